// Sixteen lanes as one AVX-512 register, with VNNI integer dot products.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace mansard {

struct LanesAvx512 {
  static constexpr const char* name = "avx512";
  static constexpr int max_rows = 16;  // rows of a linear tile
  using F = __m512;
  using I = __m512i;
  using Bytes = __m512i;
  using Table = __m512i;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static __mmask16 mask(int n) { return __mmask16((1u << n) - 1); }
  static F load_partial(const float* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static void store_partial(float* p, F a, int n) { _mm512_mask_storeu_ps(p, mask(n), a); }
  static F load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  static void store_half(uint16_t* p, F a) {
    const F limit = _mm512_set1_ps(65504.f);  // the operand order keeps a NaN
    a = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), _mm512_min_ps(limit, a));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static F load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  static F load_i8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F exp2_int(F n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
  }
  static float reduce_add(F a) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
  }
  static float reduce_max(F a) { return _mm512_reduce_max_ps(a); }

  static I iset1(int32_t x) { return _mm512_set1_epi32(x); }
  static I shift_left_8(I a) { return _mm512_slli_epi32(a, 8); }
  static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static I to_int(F a) { return _mm512_cvtps_epi32(a); }
  static void store_int(int32_t* p, I a) { _mm512_storeu_si512(p, a); }

  static Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Bytes low_nibbles(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
  static Bytes high_nibbles(Bytes b) { return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15)); }
  static Table load_table(const uint8_t* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p)); }
  static Bytes lookup(Table t, Bytes b) { return _mm512_shuffle_epi8(t, b); }
  static I dot4(I acc, Bytes w, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(four));
  }
  static F byte_to_float(Bytes b, int j) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(b, 8 * j), _mm512_set1_epi32(255)));
  }
  static void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
};

}  // namespace mansard
