// out = x · Wᵀ over packed weights, for any lane type.
//
// A micro-kernel holds `Panels` × `Rows` accumulators, one output row of the weight in each lane. Each accumulator adds
// up its columns (groups) in order with fused multiply-adds, and integer dot products within a group are exact, so
// every tile shape, and every ISA with a fused multiply-add, gives bit-identical results.
#pragma once
#include <algorithm>

#include "kernels.h"

namespace mansard {

template <class L, int Bits_, int Group_, bool Offset_, bool Table_>
struct Grouped {
  static constexpr int bits = Bits_, group = Group_, quads = Group_ / 4;
  static constexpr bool offset = Offset_, table = Table_;
  static constexpr int head_bytes = Offset_ ? 64 : 32;
  static constexpr int bytes = head_bytes + Group_ * (Bits_ == 4 ? 8 : 16);

  // Unpack a group's codes: quads[i] holds columns 4i … 4i + 3 of all sixteen rows.
  static inline void unpack(const uint8_t* p, typename L::Table t, typename L::Bytes* out) {
    const uint8_t* codes = p + head_bytes;
    if constexpr (bits == 8) {
      for (int i = 0; i < quads; ++i) out[i] = L::load_bytes(codes + 64 * i);
    } else {
      for (int i = 0; i < quads / 2; ++i) {
        const auto b = L::load_bytes(codes + 64 * i);
        out[i] = L::low_nibbles(b);
        out[i + quads / 2] = L::high_nibbles(b);
        if constexpr (table) out[i] = L::lookup(t, out[i]), out[i + quads / 2] = L::lookup(t, out[i + quads / 2]);
      }
    }
  }
};

template <class L>
inline void write_out(const LinearArgs& a, int row, int panel, typename L::F v) {
  const PackedWeight& w = *a.weight;
  const int n0 = panel * kLanes, n = std::min(kLanes, w.rows - n0);
  float* out = a.out + size_t(row) * a.out_stride + n0;
  if (w.out_scale != 1.f) v = L::mul(v, L::set1(w.out_scale));
  if (a.bias) v = L::add(v, n == kLanes ? L::load(a.bias + n0) : L::load_partial(a.bias + n0, n));
  if (a.add) v = L::add(n == kLanes ? L::load(out) : L::load_partial(out, n), v);
  if (n == kLanes) L::store(out, v);
  else L::store_partial(out, v, n);
}

// Integer path: one or two planes of int8 activations against u4 or u8 codes.
template <class L, class G, int Planes, int Panels, int Rows>
inline void integer_tile(const LinearArgs& a, int row, int panel) {
  using F = typename L::F;
  const PackedWeight& w = *a.weight;
  const QuantizedRows& x = *a.q;
  const auto table = L::load_table(w.table);
  const int groups = w.columns / G::group;
  const uint8_t* p[Panels];
  F acc[Panels][Rows];
  for (int i = 0; i < Panels; ++i) {
    p[i] = w.panel(panel + i);
    for (int r = 0; r < Rows; ++r) acc[i][r] = L::zero();
  }
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < Panels; ++i) {
      if constexpr (Panels > 1) L::prefetch(p[i] + 2048), L::prefetch(p[i] + 2112), L::prefetch(p[i] + 2176);
      typename L::Bytes codes[G::quads];
      G::unpack(p[i], table, codes);
      const F scale = L::load_half(reinterpret_cast<const uint16_t*>(p[i]));
      F offset = scale;
      if constexpr (G::offset) offset = L::load_half(reinterpret_cast<const uint16_t*>(p[i]) + kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const int8_t* xq = x.row(row + r) + g * G::group;
        const int32_t* sums = x.row_sums(row + r) + g * (G::group / 16);
        const float sx = x.scales(row + r)[g * G::group / kActivationGroup];
        const int32_t sum = G::group == 32 ? sums[0] + sums[1] : sums[0];
        auto even = L::iset1(Planes == 1 ? -w.zero * sum : 0), odd = L::iset1(0);
#pragma GCC unroll 8
        for (int i4 = 0; i4 < G::quads; i4 += 2) {
          even = L::dot4(even, codes[i4], xq + 4 * i4);
          odd = L::dot4(odd, codes[i4 + 1], xq + 4 * i4 + 4);
        }
        if constexpr (Planes == 2) {
          const int8_t* xl = x.low_row(row + r) + g * G::group;
          even = L::iadd(L::shift_left_8(L::iadd(even, odd)), L::iset1(-w.zero * sum)), odd = L::iset1(0);
#pragma GCC unroll 8
          for (int i4 = 0; i4 < G::quads; i4 += 2) {
            even = L::dot4(even, codes[i4], xl + 4 * i4);
            odd = L::dot4(odd, codes[i4 + 1], xl + 4 * i4 + 4);
          }
        }
        acc[i][r] = L::fma(L::mul(scale, L::set1(sx)), L::to_float(L::iadd(even, odd)), acc[i][r]);
        if constexpr (G::offset) acc[i][r] = L::fma(offset, L::set1(sx * float(sum)), acc[i][r]);
      }
      p[i] += G::bytes;
    }
  }
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) write_out<L>(a, row + r, panel + i, acc[i][r]);
}

// Exact path: float activations against grouped codes.
template <class L, class G, int Panels, int Rows>
inline void exact_tile(const LinearArgs& a, int row, int panel) {
  using F = typename L::F;
  static_assert(Panels == 1 || Rows == 1, "");
  const PackedWeight& w = *a.weight;
  const auto table = L::load_table(w.table);
  const int groups = w.columns / G::group;
  const F zero = L::set1(float(-w.zero));
  for (int i = 0; i < Panels; ++i) {
    const uint8_t* p = w.panel(panel + i);
    F acc[Rows];
    for (int r = 0; r < Rows; ++r) acc[r] = L::zero();
    for (int g = 0; g < groups; ++g, p += G::bytes) {
      typename L::Bytes codes[G::quads];
      G::unpack(p, table, codes);
      const F scale = L::load_half(reinterpret_cast<const uint16_t*>(p));
      F offset = L::zero();
      if constexpr (G::offset) offset = L::load_half(reinterpret_cast<const uint16_t*>(p) + kLanes);
      for (int c = 0; c < G::group; ++c) {
        const F value = L::fma(scale, L::add(L::byte_to_float(codes[c / 4], c % 4), zero), offset);
        for (int r = 0; r < Rows; ++r)
          acc[r] = L::fma(value, L::set1(a.x[size_t(row + r) * a.x_stride + g * G::group + c]), acc[r]);
      }
    }
    for (int r = 0; r < Rows; ++r) write_out<L>(a, row + r, panel + i, acc[r]);
  }
}

template <class L, Layout layout>
inline typename L::F load_dense(const uint8_t* p) {
  if constexpr (layout == Layout::F32) return L::load(reinterpret_cast<const float*>(p));
  else if constexpr (layout == Layout::F16) return L::load_half(reinterpret_cast<const uint16_t*>(p));
  else return L::load_bf16(reinterpret_cast<const uint16_t*>(p));
}

template <class L, Layout layout, int Panels, int Rows>
inline void dense_tile(const LinearArgs& a, int row, int panel) {
  using F = typename L::F;
  constexpr int bytes = layout == Layout::F32 ? 64 : 32;
  const PackedWeight& w = *a.weight;
  const uint8_t* p[Panels];
  F acc[Panels][Rows];
  for (int i = 0; i < Panels; ++i) {
    p[i] = w.panel(panel + i);
    for (int r = 0; r < Rows; ++r) acc[i][r] = L::zero();
  }
  const float* x = a.x + size_t(row) * a.x_stride;
  for (int k = 0; k < w.columns; ++k) {
#pragma GCC unroll 4
    for (int i = 0; i < Panels; ++i) {
      if (Panels > 1) L::prefetch(p[i] + 1024);
      const F value = load_dense<L, layout>(p[i]);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) acc[i][r] = L::fma(value, L::set1(x[size_t(r) * a.x_stride + k]), acc[i][r]);
      p[i] += bytes;
    }
  }
  for (int i = 0; i < Panels; ++i)
    for (int r = 0; r < Rows; ++r) write_out<L>(a, row + r, panel + i, acc[i][r]);
}

// Cover rows × panels with tiles: panels outside, so that a panel stays in cache for all rows.
template <class L, template <class, int, int> class Tile>
inline void cover(const LinearArgs& a, int begin, int end) {
  if (a.rows == 1) {
    int p = begin;
    for (; p + 4 <= end; p += 4) Tile<L, 4, 1>::run(a, 0, p);
    for (; p < end; ++p) Tile<L, 1, 1>::run(a, 0, p);
    return;
  }
  for (int p = begin; p < end; ++p) {
    int r = 0;
    if constexpr (L::max_rows >= 16) for (; r + 16 <= a.rows; r += 16) Tile<L, 1, 16>::run(a, r, p);
    if constexpr (L::max_rows >= 8) for (; r + 8 <= a.rows; r += 8) Tile<L, 1, 8>::run(a, r, p);
    for (; r + 4 <= a.rows; r += 4) Tile<L, 1, 4>::run(a, r, p);
    for (; r + 2 <= a.rows; r += 2) Tile<L, 1, 2>::run(a, r, p);
    for (; r < a.rows; ++r) Tile<L, 1, 1>::run(a, r, p);
  }
}

template <int Bits, int Group, bool Offset, bool Table>
struct GroupedTiles {
  template <class L, int Panels, int Rows>
  struct OnePlane {
    static void run(const LinearArgs& a, int r, int p) { integer_tile<L, Grouped<L, Bits, Group, Offset, Table>, 1, Panels, Rows>(a, r, p); }
  };
  template <class L, int Panels, int Rows>
  struct TwoPlanes {
    static void run(const LinearArgs& a, int r, int p) { integer_tile<L, Grouped<L, Bits, Group, Offset, Table>, 2, Panels, Rows>(a, r, p); }
  };
  template <class L, int Panels, int Rows>
  struct Exact {
    static void run(const LinearArgs& a, int r, int p) { exact_tile<L, Grouped<L, Bits, Group, Offset, Table>, Panels, Rows>(a, r, p); }
  };
  template <class L>
  static void run(const LinearArgs& a, int begin, int end) {
    if (!a.q) cover<L, Exact>(a, begin, end);
    else if (a.q->low) cover<L, TwoPlanes>(a, begin, end);
    else cover<L, OnePlane>(a, begin, end);
  }
};

template <Layout layout>
struct DenseTiles {
  template <class L, int Panels, int Rows>
  struct Tile {
    static void run(const LinearArgs& a, int r, int p) { dense_tile<L, layout, Panels, Rows>(a, r, p); }
  };
};

template <class L>
void linear(const LinearArgs& a, int begin, int end) {
  const PackedWeight& w = *a.weight;
  switch (w.layout) {
    case Layout::F32: return cover<L, DenseTiles<Layout::F32>::template Tile>(a, begin, end);
    case Layout::F16: return cover<L, DenseTiles<Layout::F16>::template Tile>(a, begin, end);
    case Layout::BF16: return cover<L, DenseTiles<Layout::BF16>::template Tile>(a, begin, end);
    case Layout::U8:
      if (w.group == 16) return w.has_offset ? GroupedTiles<8, 16, true, false>::run<L>(a, begin, end)
                                             : GroupedTiles<8, 16, false, false>::run<L>(a, begin, end);
      return w.has_offset ? GroupedTiles<8, 32, true, false>::run<L>(a, begin, end)
                          : GroupedTiles<8, 32, false, false>::run<L>(a, begin, end);
    case Layout::U4:
      if (w.has_table) return GroupedTiles<4, 32, false, true>::run<L>(a, begin, end);
      if (w.group == 16) return w.has_offset ? GroupedTiles<4, 16, true, false>::run<L>(a, begin, end)
                                             : GroupedTiles<4, 16, false, false>::run<L>(a, begin, end);
      return w.has_offset ? GroupedTiles<4, 32, true, false>::run<L>(a, begin, end)
                          : GroupedTiles<4, 32, false, false>::run<L>(a, begin, end);
  }
}

}  // namespace mansard
