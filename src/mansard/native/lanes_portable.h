// Sixteen lanes in plain C++: the definition of the lane operations, used where no SIMD variant runs.
//
// Free functions in the kernel headers are static: every ISA compiles its own copy, and the linker must not merge
// them into one that another processor cannot run.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace mansard {

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  uint32_t exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff, bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {
    int shift = 0;
    while (!(mantissa & 0x400)) mantissa <<= 1, ++shift;
    bits = sign | uint32_t(113 - shift) << 23 | ((mantissa & 0x3ff) << 13);
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Round to nearest even; values beyond the largest half saturate to it instead of becoming infinite.
static inline uint16_t float_to_half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7bff;
  if (bits < 0x33000001) return sign;
  int exponent = int(bits >> 23) - 127;
  uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
  const int shift = exponent < -14 ? 13 + (-14 - exponent) : 13;
  const uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1)));
  if (exponent < -14) return sign | uint16_t(rounded);
  return sign | uint16_t(rounded + (uint32_t(exponent + 14) << 10));
}

static inline float bf16_to_float(uint16_t b) {
  const uint32_t bits = uint32_t(b) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

static inline uint16_t float_to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16) | 0x40;
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

struct LanesPortable {
  static constexpr const char* name = "portable";
  static constexpr int max_rows = 4;  // rows of a linear tile
  struct F { float v[16]; };
  struct I { int32_t v[16]; };
  struct Bytes { uint8_t v[64]; };

  template <class Op> static F map(Op op) { F r; for (int i = 0; i < 16; ++i) r.v[i] = op(i); return r; }
  template <class Op> static I imap(Op op) { I r; for (int i = 0; i < 16; ++i) r.v[i] = op(i); return r; }

  static F zero() { return set1(0.f); }
  static F set1(float x) { return map([&](int) { return x; }); }
  static F load(const float* p) { return map([&](int i) { return p[i]; }); }
  static F load_partial(const float* p, int n) { return map([&](int i) { return i < n ? p[i] : 0.f; }); }
  static void store(float* p, F a) { std::memcpy(p, a.v, 64); }
  static void store_partial(float* p, F a, int n) { std::memcpy(p, a.v, size_t(n) * 4); }
  static F load_half(const uint16_t* p) { return map([&](int i) { return half_to_float(p[i]); }); }
  // Values beyond the largest half saturate to it.
  static void store_half(uint16_t* p, F a) { for (int i = 0; i < 16; ++i) p[i] = float_to_half(a.v[i]); }
  static F load_bf16(const uint16_t* p) { return map([&](int i) { return bf16_to_float(p[i]); }); }
  static F load_i8(const int8_t* p) { return map([&](int i) { return float(p[i]); }); }
  static F add(F a, F b) { return map([&](int i) { return a.v[i] + b.v[i]; }); }
  static F sub(F a, F b) { return map([&](int i) { return a.v[i] - b.v[i]; }); }
  static F mul(F a, F b) { return map([&](int i) { return a.v[i] * b.v[i]; }); }
  static F div(F a, F b) { return map([&](int i) { return a.v[i] / b.v[i]; }); }
  static F max(F a, F b) { return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
  static F min(F a, F b) { return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
  static F abs(F a) { return map([&](int i) { return std::fabs(a.v[i]); }); }
  // The product of two floats is exact in double, so this is a fused multiply-add but for rare double rounding.
  static F fma(F a, F b, F c) { return map([&](int i) { return float(double(a.v[i]) * b.v[i] + c.v[i]); }); }
  static F round(F a) { return map([&](int i) { return std::nearbyint(a.v[i]); }); }
  // 2^n for integral n in [-126, 127].
  static F exp2_int(F n) {
    return map([&](int i) { uint32_t b = uint32_t(int32_t(n.v[i]) + 127) << 23; float f; std::memcpy(&f, &b, 4); return f; });
  }
  static float reduce_add(F a) {
    for (int step = 8; step; step /= 2) for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
    return a.v[0];
  }
  static float reduce_max(F a) { float m = a.v[0]; for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m; return m; }

  static I iset1(int32_t x) { return imap([&](int) { return x; }); }
  static I shift_left_8(I a) { return imap([&](int i) { return int32_t(uint32_t(a.v[i]) << 8); }); }
  static I iadd(I a, I b) { return imap([&](int i) { return a.v[i] + b.v[i]; }); }
  static F to_float(I a) { return map([&](int i) { return float(a.v[i]); }); }
  static I to_int(F a) { return imap([&](int i) { return int32_t(std::nearbyint(a.v[i])); }); }
  static void store_int(int32_t* p, I a) { std::memcpy(p, a.v, 64); }

  static Bytes load_bytes(const uint8_t* p) { Bytes b; std::memcpy(b.v, p, 64); return b; }
  static Bytes low_nibbles(Bytes b) { for (auto& x : b.v) x &= 15; return b; }
  static Bytes high_nibbles(Bytes b) { for (auto& x : b.v) x >>= 4; return b; }
  struct Table { uint8_t v[16]; };
  static Table load_table(const uint8_t* p) { Table t; std::memcpy(t.v, p, 16); return t; }
  static Bytes lookup(Table t, Bytes b) { for (auto& x : b.v) x = t.v[x & 15]; return b; }
  // acc[lane] += Σ_j w[4·lane + j] · x[j] for the four int8 at x.
  static I dot4(I acc, Bytes w, const int8_t* x) {
    return imap([&](int i) {
      int32_t s = acc.v[i];
      for (int j = 0; j < 4; ++j) s += int32_t(w.v[4 * i + j]) * x[j];
      return s;
    });
  }
  // Byte j (0 … 3) of each 32-bit lane as a float.
  static F byte_to_float(Bytes b, int j) { return map([&](int i) { return float(b.v[4 * i + j]); }); }
  static void prefetch(const void*) {}
};

}  // namespace mansard
