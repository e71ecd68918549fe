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
#include <type_traits>

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
      codes[l] = int8_t(d & 1 ? byte >> 4 : byte & 15);
    }
    const auto s = is_v ? L::set1(scales[i / per_row]) : k_scale;
    const auto m = is_v ? L::set1(scales[kBlock + i / per_row]) : L::load(scales + kBlock);
    L::store(out + 16 * i, L::fma(L::load_i8(codes), s, m));
  }
}

// How a chunk's keys and values are read: straight from the cache, when each is needed by few rows, or unpacked once for
// many. Both give the same floats.
template <class L, KvFormat format>
struct Stored {
  const uint8_t* tile[kChunk / kBlock];
  const float* scale[kChunk / kBlock];
  int vectors;  // of one token's values

  typename L::F at(int b, int i) const {
    if constexpr (format == KvFormat::F32) return L::load(reinterpret_cast<const float*>(tile[b]) + 16 * i);
    else if constexpr (format == KvFormat::F16) return L::load_half(reinterpret_cast<const uint16_t*>(tile[b]) + 16 * i);
    else if constexpr (format == KvFormat::BF16) return L::load_bf16(reinterpret_cast<const uint16_t*>(tile[b]) + 16 * i);
    else return L::load_i8(reinterpret_cast<const int8_t*>(tile[b]) + 16 * i);
  }
  typename L::F k(int b, int d) const {
    if constexpr (format == KvFormat::I8) return L::mul(at(b, d), L::load(scale[b]));
    else return at(b, d);
  }
  typename L::F v(int b, int t, int i) const {
    if constexpr (format == KvFormat::I8) return L::mul(at(b, t * vectors + i), L::set1(scale[b][t]));
    else return at(b, t * vectors + i);
  }
};

template <class L>
struct Unpacked {
  const float* data;
  int tile_floats, vectors;
  typename L::F k(int b, int d) const { return L::load(data + size_t(b) * tile_floats + 16 * d); }
  typename L::F v(int b, int t, int i) const { return L::load(data + size_t(b) * tile_floats + 16 * (t * vectors + i)); }
};

// scores[r][16 · Blocks] = q_r · K for `Rows` rows and blocks `b0` … at once: enough independent sums to hide the
// latency of a multiply-add.
template <class L, int Rows, int Blocks, class Keys>
inline void score_tile(const float* q, int q_stride, int dim, const Keys& keys, int b0, float* scores) {
  typename L::F s[Rows][Blocks];
  for (int r = 0; r < Rows; ++r)
    for (int b = 0; b < Blocks; ++b) s[r][b] = L::zero();
  for (int d = 0; d < dim; ++d) {
    typename L::F k[Blocks];
    for (int b = 0; b < Blocks; ++b) k[b] = keys.k(b0 + b, d);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const auto qd = L::set1(q[size_t(r) * q_stride + d]);
      for (int b = 0; b < Blocks; ++b) s[r][b] = L::fma(qd, k[b], s[r][b]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int b = 0; b < Blocks; ++b) L::store(scores + size_t(r) * kChunk + kBlock * (b0 + b), s[r][b]);
}

// acc[r][16 · N] += Σ_t p[r][t] · V[t] over tokens [t0, t1) of the chunk. A row that does not see a token has
// probability zero for it, which leaves its sums as they are.
template <class L, int Rows, int N, class Values>
inline void value_tile(float* acc, int acc_stride, const float* p, const Values& values, int i0, int t0, int t1) {
  typename L::F a[Rows][N];
  for (int r = 0; r < Rows; ++r)
    for (int i = 0; i < N; ++i) a[r][i] = L::load(acc + size_t(r) * acc_stride + 16 * (i0 + i));
  for (int t = t0; t < t1; ++t) {
    typename L::F v[N];
    for (int i = 0; i < N; ++i) v[i] = values.v(t / kBlock, t % kBlock, i0 + i);
    for (int r = 0; r < Rows; ++r) {
      const auto pt = L::set1(p[size_t(r) * kChunk + t]);
      for (int i = 0; i < N; ++i) a[r][i] = L::fma(pt, v[i], a[r][i]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int i = 0; i < N; ++i) L::store(acc + size_t(r) * acc_stride + 16 * (i0 + i), a[r][i]);
}

// Cover `rows` rows with calls of body.template operator()<Rows>(first row), four rows at a time.
template <class Body>
inline void cover_rows(int rows, const Body& body) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) body(std::integral_constant<int, 4>{}, r);
  if (rows - r == 3) body(std::integral_constant<int, 3>{}, r);
  if (rows - r == 2) body(std::integral_constant<int, 2>{}, r);
  if (rows - r == 1) body(std::integral_constant<int, 1>{}, r);
}

// The queries of a work item and their running softmax over its tokens.
template <class L>
class AttentionItem {
 public:
  explicit AttentionItem(const AttendArgs& args)
      : a(args), kv(*args.kv), rows(args.num_tokens * args.heads_per_kv), pd(args.kv->padded_dim),
        q(args.scratch), scores(q + size_t(rows) * pd), unpacked(scores + size_t(rows) * kChunk) {
    for (int r = 0; r < rows; ++r) {
      const float* src = a.q + size_t(r / a.heads_per_kv) * a.q_stride + size_t(r % a.heads_per_kv) * kv.dim;
      for (int d = 0; d < kv.dim; ++d) q[size_t(r) * pd + d] = src[d] * a.scale;
      std::fill(a.acc + size_t(r) * pd, a.acc + size_t(r + 1) * pd, 0.f);
      a.max[r] = -std::numeric_limits<float>::infinity();
      a.sum[r] = 0.f;
    }
  }

  void run() {
    const int64_t first = std::max(a.begin, low(0) / kChunk * kChunk), last = std::min(a.end, high(rows - 1));
    const bool few = rows <= 4;
    for (int64_t c = first; c < last; c += kChunk) {
      const int blocks = int((std::min<int64_t>(last - c, kChunk) + kBlock - 1) / kBlock);
      if (few && kv.format == KvFormat::F16) stored_chunk<KvFormat::F16>(c, blocks);
      else if (few && kv.format == KvFormat::BF16) stored_chunk<KvFormat::BF16>(c, blocks);
      else if (few && kv.format == KvFormat::I8) stored_chunk<KvFormat::I8>(c, blocks);
      else if (few && kv.format == KvFormat::F32) stored_chunk<KvFormat::F32>(c, blocks);
      else unpacked_chunk(c, blocks);
    }
  }

 private:
  // Row r sees the tokens [low(r), high(r)).
  int64_t high(int r) const { return a.position + r / a.heads_per_kv + 1; }
  int64_t low(int r) const {
    const int64_t p = a.position + r / a.heads_per_kv, l = a.window > 0 ? std::max<int64_t>(0, p + 1 - a.window) : 0;
    return a.chunk > 0 ? std::max(l, p / a.chunk * a.chunk) : l;
  }
  int begin(int r, int64_t c) const { return int(std::clamp<int64_t>(low(r) - c, 0, kChunk)); }
  int end(int r, int64_t c) const { return int(std::clamp<int64_t>(high(r) - c, 0, kChunk)); }

  template <KvFormat format>
  void stored_chunk(int64_t c, int blocks) {
    Stored<L, format> keys{{}, {}, pd / 16}, values{{}, {}, pd / 16};
    for (int b = 0; b < blocks; ++b) {
      const int64_t block = a.block_table[c / kBlock + b];
      keys.tile[b] = kv.k_tile(block, a.kv_head), values.tile[b] = kv.v_tile(block, a.kv_head);
      if (kv.k_scale) keys.scale[b] = kv.k_scales(block, a.kv_head), values.scale[b] = kv.v_scales(block, a.kv_head);
    }
    score(keys, blocks);
    soften(c, blocks);
    accumulate(values, c);
  }

  void unpacked_chunk(int64_t c, int blocks) {
    const int size = kBlock * pd;
    const Unpacked<L> tiles{unpacked, size, pd / 16};
    for (const bool is_v : {false, true}) {
      for (int b = 0; b < blocks; ++b) {
        const int64_t block = a.block_table[c / kBlock + b];
        const float* scales = !kv.k_scale ? nullptr : is_v ? kv.v_scales(block, a.kv_head) : kv.k_scales(block, a.kv_head);
        load_tile<L>(kv, is_v ? kv.v_tile(block, a.kv_head) : kv.k_tile(block, a.kv_head), scales, is_v, unpacked + b * size);
      }
      if (is_v) accumulate(tiles, c);
      else score(tiles, blocks), soften(c, blocks);
    }
  }

  template <class Keys>
  void score(const Keys& keys, int blocks) {
    cover_rows(rows, [&](auto n, int r) {
      const float* from = q + size_t(r) * pd;
      float* to = scores + size_t(r) * kChunk;
      if (blocks == kChunk / kBlock) return score_tile<L, n, kChunk / kBlock>(from, pd, kv.dim, keys, 0, to);
      for (int b = 0; b < blocks; ++b) score_tile<L, n, 1>(from, pd, kv.dim, keys, b, to);
    });
  }

  // Turn scores into probabilities relative to the row's running maximum, and rescale what was summed before.
  void soften(int64_t c, int blocks) {
    constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
    for (int r = 0; r < rows; ++r) {
      float* s = scores + size_t(r) * kChunk;
      const int lo = begin(r, c), hi = end(r, c);
      if (lo >= hi) {
        std::fill(s, s + kChunk, 0.f);
        continue;
      }
      if (a.softcap > 0.f)
        for (int i = 0; i < blocks * kBlock; i += 16)
          L::store(s + i, L::mul(tanh<L>(L::div(L::load(s + i), L::set1(a.softcap))), L::set1(a.softcap)));
      std::fill(s, s + lo, minus_infinity);
      std::fill(s + hi, s + kChunk, minus_infinity);
      auto peak = L::load(s);
      for (int i = 16; i < kChunk; i += 16) peak = L::max(peak, L::load(s + i));
      const float old = a.max[r], now = std::max(old, L::reduce_max(peak));
      auto total = L::zero();
      for (int i = 0; i < kChunk; i += 16) L::store(s + i, exp<L>(L::sub(L::load(s + i), L::set1(now))));
      std::fill(s, s + lo, 0.f);
      std::fill(s + hi, s + kChunk, 0.f);
      for (int i = 0; i < kChunk; i += 16) total = L::add(total, L::load(s + i));
      if (now != old) {
        float correction[16];
        L::store(correction, exp<L>(L::set1(old - now)));
        const auto scale = L::set1(old == minus_infinity ? 0.f : correction[0]);
        a.sum[r] = old == minus_infinity ? 0.f : a.sum[r] * correction[0];
        float* acc = a.acc + size_t(r) * pd;
        for (int d = 0; d < pd; d += 16) L::store(acc + d, L::mul(L::load(acc + d), scale));
        a.max[r] = now;
      }
      a.sum[r] += L::reduce_add(total);
    }
  }

  template <class Values>
  void accumulate(const Values& values, int64_t c) {
    cover_rows(rows, [&](auto n, int r) {
      // Slots past the last row's range may hold what an earlier request left: they are not read, even times zero.
      const int t0 = begin(r, c), t1 = end(r + n - 1, c);
      float* acc = a.acc + size_t(r) * pd;
      const float* p = scores + size_t(r) * kChunk;
      int i = 0;
      for (; i + 4 <= pd / 16; i += 4) value_tile<L, n, 4>(acc, pd, p, values, i, t0, t1);
      for (; i < pd / 16; ++i) value_tile<L, n, 1>(acc, pd, p, values, i, t0, t1);
    });
  }

  const AttendArgs& a;
  const KvLayer& kv;
  const int rows, pd;
  float* const q;         // [rows, padded_dim], scaled
  float* const scores;    // [rows, kChunk]
  float* const unpacked;  // a chunk's K or V tiles
};

template <class L>
void attend(const AttendArgs& args) {
  AttentionItem<L>(args).run();
}

// int8: x = scale · code, codes -127 … 127. A vector that is not finite gets a scale that is not, so that what reads it
// is not finite either.
static inline void quantize_i8(const float* x, int dim, float* scale, int8_t* codes) {
  float peak = 0.f, poison = 0.f;
  for (int d = 0; d < dim; ++d) peak = std::max(peak, std::fabs(x[d])), poison += x[d] * 0.f;
  *scale = peak / 127.f + poison;
  for (int d = 0; d < dim; ++d)
    codes[d] = *scale > 0.f ? int8_t(std::clamp(std::nearbyint(x[d] / *scale), -127.f, 127.f)) : int8_t(0);
}

// int4: x = minimum + scale · code, codes 0 … 15.
static inline void quantize_i4(const float* x, int dim, float* scale, float* minimum, int8_t* codes) {
  float low = x[0], high = x[0], poison = 0.f;
  for (int d = 0; d < dim; ++d) low = std::min(low, x[d]), high = std::max(high, x[d]), poison += x[d] * 0.f;
  *scale = (high - low) / 15.f + poison, *minimum = low;
  for (int d = 0; d < dim; ++d)
    codes[d] = *scale > 0.f ? int8_t(std::clamp(std::nearbyint((x[d] - low) / *scale), 0.f, 15.f)) : int8_t(0);
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
    auto *kf = reinterpret_cast<uint16_t*>(kt), *vf = reinterpret_cast<uint16_t*>(vt) + slot * pd;
    for (int d = 0; d < dim; d += 16) {
      const int m = std::min(16, dim - d);
      alignas(64) uint16_t halves[2][16];
      for (int which = 0; which < 2; ++which) {
        const float* x = (which ? v : k) + d;
        const auto value = m == 16 ? L::load(x) : L::load_partial(x, m);
        if (kv.format == KvFormat::F16) L::store_half(halves[which], value);
        else for (int i = 0; i < m; ++i) halves[which][i] = float_to_bf16(x[i]);
      }
      for (int i = 0; i < m; ++i) kf[(d + i) * kBlock + slot] = halves[0][i];
      std::copy(halves[1], halves[1] + m, vf + d);
    }
    return;
  }
  int8_t codes[1024];
  const bool i8 = kv.format == KvFormat::I8;
  for (int which = 0; which < 2; ++which) {
    const float* x = which ? v : k;
    float* scale = (which ? kv.v_scales(block, head) : kv.k_scales(block, head)) + slot;
    if (i8) quantize_i8(x, dim, scale, codes);
    else quantize_i4(x, dim, scale, scale + kBlock, codes);
    for (int d = 0; d < dim; ++d) {
      if (i8) {
        (which ? vt[slot * pd + d] : kt[d * kBlock + slot]) = uint8_t(codes[d]);
        continue;
      }
      uint8_t& byte = which ? vt[slot * (pd / 2) + d / 2] : kt[(d / 2) * kBlock + slot];
      byte = d & 1 ? uint8_t((byte & 0x0f) | (codes[d] << 4)) : uint8_t((byte & 0xf0) | codes[d]);
    }
  }
}

}  // namespace mansard
