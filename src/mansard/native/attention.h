// Flash-style attention over paged KV, for any lane type (Dao et al., arXiv 2205.14135; Milakov & Gimelshein, arXiv
// 1805.02867 for the online softmax).
//
// A work item is one sequence's queries (all heads that share a KV head) against one segment of its tokens. Tokens
// are taken 64 at a time from absolute multiples of 64, so the order of operations for a query does not depend on how
// its prompt was cut into chunks, on the batch, or on the number of threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "math.h"

namespace mansard {

// Read one K tile as [dim][16 tokens] or one V tile as [16 tokens][padded_dim] floats.
template <class L>
inline void load_tile(const KvLayer& kv, const uint8_t* tile, const float* scales, bool is_v, float* out) {
  const int count = (is_v ? kv.padded_dim : kv.dim) * kBlock / 16;
  switch (kv.format) {
    case KvFormat::F32:
      for (int i = 0; i < count; ++i) L::store(out + 16 * i, L::load(reinterpret_cast<const float*>(tile) + 16 * i));
      return;
    case KvFormat::F16:
      for (int i = 0; i < count; ++i) L::store(out + 16 * i, L::load_half(reinterpret_cast<const uint16_t*>(tile) + 16 * i));
      return;
    case KvFormat::BF16:
      for (int i = 0; i < count; ++i) L::store(out + 16 * i, L::load_bf16(reinterpret_cast<const uint16_t*>(tile) + 16 * i));
      return;
    default: break;
  }
  const int per_row = is_v ? kv.padded_dim / 16 : 1;  // vectors that share a scale (V: one token's)
  const auto k_scale = L::load(scales);
  if (kv.format == KvFormat::I8) {
    for (int i = 0; i < count; ++i) {
      const auto s = is_v ? L::set1(scales[i / per_row]) : k_scale;
      L::store(out + 16 * i, L::mul(L::load_i8(reinterpret_cast<const int8_t*>(tile) + 16 * i), s));
    }
    return;
  }
  for (int i = 0; i < count; ++i) {  // I4: dimensions 2j and 2j + 1 share a byte
    int8_t codes[16];
    for (int l = 0; l < 16; ++l) {
      const int d = is_v ? (i % per_row) * 16 + l : i, token = is_v ? i / per_row : l;
      const uint8_t byte = is_v ? tile[token * (kv.padded_dim / 2) + d / 2] : tile[(d / 2) * kBlock + token];
      codes[l] = int8_t((d & 1 ? byte >> 4 : byte & 15) - 8);
    }
    const auto s = is_v ? L::set1(scales[i / per_row]) : k_scale;
    L::store(out + 16 * i, L::mul(L::load_i8(codes), s));
  }
}

// scores[r][16] = q_r · K for `Rows` rows at once.
template <class L, int Rows>
inline void score_tile(const float* const* q, int dim, const float* k, float* const* scores) {
  typename L::F s[Rows];
  for (int r = 0; r < Rows; ++r) s[r] = L::zero();
  for (int d = 0; d < dim; ++d) {
    const auto kd = L::load(k + 16 * d);
    for (int r = 0; r < Rows; ++r) s[r] = L::fma(L::set1(q[r][d]), kd, s[r]);
  }
  for (int r = 0; r < Rows; ++r) L::store(scores[r], s[r]);
}

// acc[16 · N] += Σ_t p[t] · V[t] over tokens [t0, t1) of a block.
template <class L, int N>
inline void value_tile(float* acc, const float* p, const float* v, int stride, int t0, int t1) {
  typename L::F a[N];
  for (int i = 0; i < N; ++i) a[i] = L::load(acc + 16 * i);
  for (int t = t0; t < t1; ++t) {
    const auto pt = L::set1(p[t]);
    for (int i = 0; i < N; ++i) a[i] = L::fma(pt, L::load(v + size_t(t) * stride + 16 * i), a[i]);
  }
  for (int i = 0; i < N; ++i) L::store(acc + 16 * i, a[i]);
}

template <class L>
void attend(const AttendArgs& a) {
  const KvLayer& kv = *a.kv;
  const int group = a.heads_per_kv, rows = a.num_tokens * group, pd = kv.padded_dim;
  float* q = a.scratch;                         // [rows, padded_dim], scaled
  float* scores = q + size_t(rows) * pd;        // [rows, kChunk]
  float* tile = scores + size_t(rows) * kChunk; // one K or V tile
  constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
  for (int r = 0; r < rows; ++r) {
    const float* src = a.q + size_t(r / group) * a.q_stride + size_t(r % group) * kv.dim;
    for (int d = 0; d < kv.dim; ++d) q[size_t(r) * pd + d] = src[d] * a.scale;
    for (int d = 0; d < pd; ++d) a.acc[size_t(r) * pd + d] = 0.f;
    a.max[r] = minus_infinity;
    a.sum[r] = 0.f;
  }
  // Row r sees the tokens [low(r), position + 1).
  auto high = [&](int r) { return a.position + r / group + 1; };
  auto low = [&](int r) {
    const int64_t p = a.position + r / group;
    int64_t l = a.window > 0 ? std::max<int64_t>(0, p + 1 - a.window) : 0;
    return a.chunk > 0 ? std::max(l, p / a.chunk * a.chunk) : l;
  };
  const int64_t first = std::max(a.begin, low(0) / kChunk * kChunk), last = std::min(a.end, high(rows - 1));
  for (int64_t c = first; c < last; c += kChunk) {
    const int blocks = int((std::min<int64_t>(last - c, kChunk) + kBlock - 1) / kBlock);
    for (int b = 0; b < blocks; ++b) {
      const int64_t block = a.block_table[c / kBlock + b];
      load_tile<L>(kv, kv.k_tile(block, a.kv_head), kv.k_scale ? kv.k_scales(block, a.kv_head) : nullptr, false, tile);
      for (int r = 0; r < rows; r += 4) {
        const int n = std::min(4, rows - r);
        const float* qs[4];
        float* ss[4];
        for (int i = 0; i < 4; ++i) {
          qs[i] = q + size_t(r + std::min(i, n - 1)) * pd;
          ss[i] = scores + size_t(r + std::min(i, n - 1)) * kChunk + b * kBlock;
        }
        if (n == 1) score_tile<L, 1>(qs, kv.dim, tile, ss);
        else if (n == 2) score_tile<L, 2>(qs, kv.dim, tile, ss);
        else score_tile<L, 4>(qs, kv.dim, tile, ss);
      }
    }
    for (int r = 0; r < rows; ++r) {
      float* s = scores + size_t(r) * kChunk;
      const int lo = int(std::clamp<int64_t>(low(r) - c, 0, kChunk)), hi = int(std::clamp<int64_t>(high(r) - c, 0, kChunk));
      if (a.softcap > 0.f) {
        for (int i = 0; i < blocks * kBlock; i += 16)
          L::store(s + i, L::mul(tanh<L>(L::div(L::load(s + i), L::set1(a.softcap))), L::set1(a.softcap)));
      }
      for (int t = 0; t < kChunk; ++t) if (t < lo || t >= hi) s[t] = minus_infinity;
      if (lo >= hi) continue;
      auto peak = L::load(s);
      for (int i = 16; i < kChunk; i += 16) peak = L::max(peak, L::load(s + i));
      const float old = a.max[r], now = std::max(old, L::reduce_max(peak));
      float correction[16];
      L::store(correction, exp<L>(L::set1(old - now)));
      const float scale = old == minus_infinity ? 0.f : correction[0];
      auto total = L::zero();
      for (int i = 0; i < kChunk; i += 16) {
        float* si = s + i;
        auto p = exp<L>(L::sub(L::load(si), L::set1(now)));
        L::store(si, p);
        for (int t = 0; t < 16; ++t) if (i + t < lo || i + t >= hi) si[t] = 0.f;
        total = L::add(total, L::load(si));
      }
      a.sum[r] = a.sum[r] * scale + L::reduce_add(total);
      a.max[r] = now;
      if (scale != 1.f)
        for (int d = 0; d < pd; d += 16) L::store(a.acc + size_t(r) * pd + d, L::mul(L::load(a.acc + size_t(r) * pd + d), L::set1(scale)));
    }
    for (int b = 0; b < blocks; ++b) {
      const int64_t block = a.block_table[c / kBlock + b];
      load_tile<L>(kv, kv.v_tile(block, a.kv_head), kv.v_scale ? kv.v_scales(block, a.kv_head) : nullptr, true, tile);
      for (int r = 0; r < rows; ++r) {
        // Slots outside the row's range may hold what an earlier request left: they are not read, even times zero.
        const int64_t base = c + b * kBlock;
        const int t0 = int(std::clamp<int64_t>(low(r) - base, 0, kBlock)), t1 = int(std::clamp<int64_t>(high(r) - base, 0, kBlock));
        if (t0 >= t1) continue;
        float* acc = a.acc + size_t(r) * pd;
        const float* p = scores + size_t(r) * kChunk + b * kBlock;
        int d = 0;
        for (; d + 64 <= pd; d += 64) value_tile<L, 4>(acc + d, p, tile + d, pd, t0, t1);
        for (; d < pd; d += 16) value_tile<L, 1>(acc + d, p, tile + d, pd, t0, t1);
      }
    }
  }
}

static inline void store_quantized(const float* x, int dim, int levels, float* scale, int8_t* codes) {
  float peak = 0.f;
  for (int d = 0; d < dim; ++d) peak = std::max(peak, std::fabs(x[d]));
  const float s = peak / float(levels), inverse = s > 0.f ? 1.f / s : 0.f;
  *scale = s;
  for (int d = 0; d < dim; ++d) codes[d] = int8_t(std::clamp(std::nearbyint(x[d] * inverse), float(-levels), float(levels)));
}

template <class L>
void store_kv(const KvLayer& kv, int64_t block, int slot, int head, const float* k, const float* v) {
  uint8_t *kt = kv.k_tile(block, head), *vt = kv.v_tile(block, head);
  const int dim = kv.dim, pd = kv.padded_dim;
  if (kv.format == KvFormat::F32) {
    auto *kf = reinterpret_cast<float*>(kt), *vf = reinterpret_cast<float*>(vt);
    for (int d = 0; d < dim; ++d) kf[d * kBlock + slot] = k[d], vf[slot * pd + d] = v[d];
    return;
  }
  if (kv.format == KvFormat::F16 || kv.format == KvFormat::BF16) {
    auto *kf = reinterpret_cast<uint16_t*>(kt), *vf = reinterpret_cast<uint16_t*>(vt);
    const auto convert = kv.format == KvFormat::F16 ? float_to_half : float_to_bf16;
    for (int d = 0; d < dim; ++d) kf[d * kBlock + slot] = convert(k[d]), vf[slot * pd + d] = convert(v[d]);
    return;
  }
  int8_t codes[1024];
  const bool i8 = kv.format == KvFormat::I8;
  for (int which = 0; which < 2; ++which) {
    float* scale = (which ? kv.v_scales(block, head) : kv.k_scales(block, head)) + slot;
    store_quantized(which ? v : k, dim, i8 ? 127 : 7, scale, codes);
    for (int d = 0; d < dim; ++d) {
      if (i8) {
        if (which) reinterpret_cast<int8_t*>(vt)[slot * pd + d] = codes[d];
        else reinterpret_cast<int8_t*>(kt)[d * kBlock + slot] = codes[d];
        continue;
      }
      uint8_t& byte = which ? vt[slot * (pd / 2) + d / 2] : kt[(d / 2) * kBlock + slot];
      const uint8_t code = uint8_t(codes[d] + 8);
      byte = d & 1 ? uint8_t((byte & 0x0f) | (code << 4)) : uint8_t((byte & 0xf0) | code);
    }
  }
}

}  // namespace mansard
