// Sixteen lanes as two AVX2 registers; integer dot products by 16-bit multiply-adds, which cannot saturate.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace mansard {

struct LanesAvx2 {
  static constexpr const char* name = "avx2";
  static constexpr int max_rows = 4;  // rows of a linear tile
  struct F { __m256 a, b; };
  struct I { __m256i a, b; };
  using Bytes = I;
  using Table = __m256i;

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load_partial(const float* p, int n) {
    float t[16] = {};
    std::memcpy(t, p, size_t(n) * 4);
    return load(t);
  }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
  static void store_partial(float* p, F x, int n) {
    float t[16];
    store(t, x);
    std::memcpy(p, t, size_t(n) * 4);
  }
  static F load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
  }
  static __m128i to_half(__m256 a) {
    const __m256 limit = _mm256_set1_ps(65504.f);  // the operand order keeps a NaN
    a = _mm256_max_ps(_mm256_sub_ps(_mm256_setzero_ps(), limit), _mm256_min_ps(limit, a));
    return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static void store_half(uint16_t* p, F x) {
    _mm_storeu_si128((__m128i*)p, to_half(x.a));
    _mm_storeu_si128((__m128i*)(p + 8), to_half(x.b));
  }
  static __m256 bf16x8(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
  }
  static F load_bf16(const uint16_t* p) { return {bf16x8(p), bf16x8(p + 8)}; }
  static F load_i8(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
  }
  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F abs(F x) {
    const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
  }
  static F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static F round(F x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
  }
  static __m256 exp2x8(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  static F exp2_int(F n) { return {exp2x8(n.a), exp2x8(n.b)}; }
  static float reduce_add(F x) {
    const __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float reduce_max(F x) {
    const __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
  }

  static I iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static I shift_left_8(I x) { return {_mm256_slli_epi32(x.a, 8), _mm256_slli_epi32(x.b, 8)}; }
  static I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
  static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
  static void store_int(int32_t* p, I x) { _mm256_storeu_si256((__m256i*)p, x.a); _mm256_storeu_si256((__m256i*)(p + 8), x.b); }

  static Bytes load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
  }
  static Bytes low_nibbles(Bytes x) {
    const __m256i m = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
  }
  static Bytes high_nibbles(Bytes x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }
  static Table load_table(const uint8_t* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p)); }
  static Bytes lookup(Table t, Bytes x) { return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)}; }
  static __m256i dot4x8(__m256i acc, __m256i w, __m256i even, __m256i odd) {
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), even));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_srli_epi16(w, 8), odd));
  }
  static I dot4(I acc, Bytes w, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    const __m256i v = _mm256_set1_epi32(four);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), odd = _mm256_srai_epi16(v, 8);
    return {dot4x8(acc.a, w.a, even, odd), dot4x8(acc.b, w.b, even, odd)};
  }
  static __m256 byte_x8(__m256i x, int j) {
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x, 8 * j), _mm256_set1_epi32(255)));
  }
  static F byte_to_float(Bytes x, int j) { return {byte_x8(x.a, j), byte_x8(x.b, j)}; }
  static void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
};

}  // namespace mansard
