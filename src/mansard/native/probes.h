// What this machine can do at most, measured with the kernels' own instructions: the roof that speeds are held against.
#pragma once
#include <chrono>

#include "kernels.h"

namespace mansard {

constexpr int kChains = 12;  // independent accumulators: enough to hide an instruction's latency

// Fused multiply-adds from registers; returns a value so that nothing is optimized away. 2 · 16 · kChains operations
// an iteration.
template <class L>
float probe_fma(int64_t iterations) {
  typename L::F acc[kChains], x = L::set1(0.999f), y = L::set1(1e-3f);
  for (int i = 0; i < kChains; ++i) acc[i] = L::set1(float(i));
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = L::fma(acc[i], x, y);
  }
  float sum = 0.f;
  for (int i = 0; i < kChains; ++i) sum += L::reduce_add(acc[i]);
  return sum;
}

// Integer dot products from registers: 2 · 64 · kChains operations an iteration.
template <class L>
float probe_dot(int64_t iterations) {
  alignas(64) uint8_t bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = uint8_t(i & 15);
  const int8_t x[4] = {1, -2, 3, -1};
  typename L::I acc[kChains];
  const auto w = L::load_bytes(bytes);
  for (int i = 0; i < kChains; ++i) acc[i] = L::iset1(i);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) acc[i] = L::dot4(acc[i], w, x);
  }
  float sum = 0.f;
  for (int i = 0; i < kChains; ++i) sum += L::reduce_add(L::to_float(acc[i]));
  return sum;
}

// Read `bytes` (a multiple of 4 KiB) from `p` as four forward streams.
template <class L>
float probe_read(const uint8_t* p, size_t bytes) {
  const size_t stride = bytes / 4;
  typename L::I acc[4] = {L::iset1(0), L::iset1(0), L::iset1(0), L::iset1(0)};
  const int8_t ones[4] = {1, 1, 1, 1};
  for (size_t i = 0; i < stride; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const uint8_t* at = p + s * stride + i;
      L::prefetch(at + 2048);
      acc[s] = L::dot4(acc[s], L::load_bytes(at), ones);
    }
  }
  return L::reduce_add(L::to_float(L::iadd(L::iadd(acc[0], acc[1]), L::iadd(acc[2], acc[3]))));
}

}  // namespace mansard
