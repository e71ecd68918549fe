// Row operations: quantization of activations, RMSNorm, rotation, gated activation, soft-cap; for any lane type.
#pragma once
#include <algorithm>
#include <cmath>

#include "math.h"

namespace mansard {

// Write sixteen integers as one plane of int8, or as two: v = 256 · high + low with low in [-128, 127].
template <class L>
inline int32_t store_planes(typename L::I v, int8_t* q, int8_t* low) {
  int32_t t[16], sum = 0;
  L::store_int(t, v);
  for (int i = 0; i < 16; ++i) {
    sum += t[i];
    const int32_t high = low ? (t[i] + 128) >> 8 : t[i];
    q[i] = int8_t(high);
    if (low) low[i] = int8_t(t[i] - 256 * high);
  }
  return sum;
}

// q = round(x / scale), scale = max|x| / levels over each 32 columns; columns is a multiple of 32.
template <class L>
void quantize(const float* x, int columns, int8_t* q, int8_t* low, float* scale, int32_t* sums) {
  const float levels = low ? 127.f * 256.f : 127.f;
  for (int g = 0; g < columns / 32; ++g, x += 32, q += 32) {
    const auto a = L::load(x), b = L::load(x + 16);
    const float peak = L::reduce_max(L::max(L::abs(a), L::abs(b)));
    const bool finite = std::isfinite(L::reduce_add(L::add(L::abs(a), L::abs(b))));  // a maximum may miss a NaN
    // A peak so small that its inverse overflows is quantized to zeros.
    const float inverse = peak > 1e-30f ? levels / peak : 0.f;
    *sums++ = store_planes<L>(L::to_int(L::mul(a, L::set1(inverse))), q, low);
    *sums++ = store_planes<L>(L::to_int(L::mul(b, L::set1(inverse))), q + 16, low ? low + 16 : nullptr);
    if (low) low += 32;
    // A row that is not finite stays so: its scale poisons every product, and the sampler refuses the result.
    scale[g] = finite ? peak / levels : std::nanf("");
  }
}

template <class L>
void rms_norm(const float* x, const float* w, int n, float eps, float* out, bool add) {
  auto squares = L::zero();
  int i = 0;
  for (; i + 16 <= n; i += 16) { const auto v = L::load(x + i); squares = L::fma(v, v, squares); }
  if (i < n) { const auto v = L::load_partial(x + i, n - i); squares = L::fma(v, v, squares); }
  const auto r = L::set1(1.f / std::sqrt(L::reduce_add(squares) / float(n) + eps));
  for (i = 0; i < n; i += 16) {
    const int m = std::min(16, n - i);
    auto load = [&](const float* p) { return m == 16 ? L::load(p) : L::load_partial(p, m); };
    auto y = L::mul(L::mul(load(x + i), r), load(w + i));
    if (add) y = L::add(load(out + i), y);
    if (m == 16) L::store(out + i, y);
    else L::store_partial(out + i, y, m);
  }
}

template <class L>
void rope_head(float* x, int rotary_dim, const float* cos, const float* sin) {
  const int half = rotary_dim / 2;
  float *a = x, *b = x + half;
  for (int i = 0; i < half; i += 16) {
    const int m = std::min(16, half - i);
    auto load = [&](const float* p) { return m == 16 ? L::load(p) : L::load_partial(p, m); };
    auto store = [&](float* p, typename L::F v) { if (m == 16) L::store(p, v); else L::store_partial(p, v, m); };
    const auto c = load(cos + i), s = load(sin + i), u = load(a + i), v = load(b + i);
    store(a + i, L::sub(L::mul(u, c), L::mul(v, s)));
    store(b + i, L::add(L::mul(v, c), L::mul(u, s)));
  }
}

// up is null for an MLP without a gate.
template <class L>
void gated(const float* gate, const float* up, int n, ActivationKind act, float limit, float* out) {
  const bool oai = act == ActivationKind::SwigluOai;
  for (int i = 0; i < n; i += 16) {
    const int m = std::min(16, n - i);
    auto load = [&](const float* p) { return m == 16 ? L::load(p) : L::load_partial(p, m); };
    auto g = load(gate + i);
    if (limit > 0.f) g = L::min(g, L::set1(limit));
    auto y = activate<L>(g, act);
    if (up) {
      auto u = load(up + i);
      if (limit > 0.f) u = L::max(L::min(u, L::set1(limit)), L::set1(-limit));
      y = L::mul(y, oai ? L::add(u, L::set1(1.f)) : u);
    }
    if (m == 16) L::store(out + i, y);
    else L::store_partial(out + i, y, m);
  }
}

// x = cap · tanh(x · scale / cap), or x · scale without a cap.
template <class L>
void softcap(float* x, int n, float scale, float cap) {
  for (int i = 0; i < n; i += 16) {
    const int m = std::min(16, n - i);
    auto v = L::mul(m == 16 ? L::load(x + i) : L::load_partial(x + i, m), L::set1(scale));
    if (cap > 0.f) v = L::mul(tanh<L>(L::div(v, L::set1(cap))), L::set1(cap));
    if (m == 16) L::store(x + i, v);
    else L::store_partial(x + i, v, m);
  }
}

template <class L>
void axpy(float a, const float* x, int n, float* y) {
  for (int i = 0; i < n; i += 16) {
    const int m = std::min(16, n - i);
    if (m == 16) L::store(y + i, L::fma(L::set1(a), L::load(x + i), L::load(y + i)));
    else L::store_partial(y + i, L::fma(L::set1(a), L::load_partial(x + i, m), L::load_partial(y + i, m)), m);
  }
}

// One output row of a packed weight, as floats (an embedding look-up).
template <class L>
void dequantize_row(const PackedWeight& w, int row, float* out) {
  const int lane = row % kLanes;
  const uint8_t* p = w.panel(row / kLanes);
  if (!w.grouped()) {
    for (int k = 0; k < w.columns; ++k) {
      if (w.layout == Layout::F32) out[k] = reinterpret_cast<const float*>(p)[k * kLanes + lane];
      else {
        const uint16_t v = reinterpret_cast<const uint16_t*>(p)[k * kLanes + lane];
        out[k] = w.layout == Layout::F16 ? half_to_float(v) : bf16_to_float(v);
      }
    }
    return;
  }
  const int head = w.has_offset ? 64 : 32;
  for (int g = 0; g < w.columns / w.group; ++g, p += w.group_bytes(), out += w.group) {
    const auto* halves = reinterpret_cast<const uint16_t*>(p);
    const float scale = half_to_float(halves[lane]), offset = w.has_offset ? half_to_float(halves[kLanes + lane]) : 0.f;
    for (int c = 0; c < w.group; ++c) {
      int code;
      if (w.layout == Layout::U8) code = p[head + (c / 4) * 64 + lane * 4 + c % 4];
      else {
        const int half = w.group / 2, cc = c % half;
        const uint8_t byte = p[head + (cc / 4) * 64 + lane * 4 + cc % 4];
        code = c < half ? byte & 15 : byte >> 4;
        if (w.has_table) code = w.table[code];
      }
      out[c] = (scale * float(code - w.zero) + offset) * w.out_scale;
    }
  }
}

}  // namespace mansard
