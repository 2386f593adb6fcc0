/* kernels_avx512.c - the vector vocabulary of kernels_body.h in AVX-512 (F, BW, VL, DQ). */
#include "kv/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define IS_TARGET __attribute__((target("avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512dq")))
#define IS_INLINE static inline IS_TARGET __attribute__((always_inline))
#define IS_SELF (&is_kernels_avx512)
#define IS_W 16
#define IS_LANES 4
typedef __m512 vf;
typedef __m512i vi;

IS_INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
IS_INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
IS_INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }

IS_INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
IS_INLINE vf v_fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }
IS_INLINE vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }

IS_INLINE __m256i bf16_of(vf v)
{
    __m512i u = _mm512_castps_si512(v), up = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(up, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);

    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, up, _mm512_set1_epi32(0x40)));
}
IS_INLINE vf of_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
IS_INLINE __m256i f16_of(vf v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

IS_INLINE __mmask16 first(long n) { return (__mmask16)(n <= 0 ? 0 : (1u << n) - 1); }

IS_INLINE vf ld_f32(const void *p) { return _mm512_loadu_ps(p); }
IS_INLINE vf ld_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
IS_INLINE vf ld_bf16(const void *p) { return of_bf16(_mm256_loadu_si256(p)); }
IS_INLINE vf ld_int8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
IS_INLINE vf ldn_int8(const void *p, long n) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p))); }
IS_INLINE vf v_f16_everywhere(const void *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)h));
}
IS_INLINE void st_f32(void *p, vf v) { _mm512_storeu_ps(p, v); }
IS_INLINE void st_f16(void *p, vf v) { _mm256_storeu_si256(p, f16_of(v)); }
IS_INLINE void st_bf16(void *p, vf v) { _mm256_storeu_si256(p, bf16_of(v)); }
IS_INLINE vf ldn_f32(const void *p, long n) { return _mm512_maskz_loadu_ps(first(n), p); }
IS_INLINE vf ldn_f16(const void *p, long n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
IS_INLINE vf ldn_bf16(const void *p, long n) { return of_bf16(_mm256_maskz_loadu_epi16(first(n), p)); }
IS_INLINE void stn_f32(void *p, vf v, long n) { _mm512_mask_storeu_ps(p, first(n), v); }
IS_INLINE void stn_f16(void *p, vf v, long n) { _mm256_mask_storeu_epi16(p, first(n), f16_of(v)); }
IS_INLINE void stn_bf16(void *p, vf v, long n) { _mm256_mask_storeu_epi16(p, first(n), bf16_of(v)); }
IS_INLINE vf round_f16(vf v) { return _mm512_cvtph_ps(f16_of(v)); }
IS_INLINE vf round_bf16(vf v) { return of_bf16(bf16_of(v)); }
IS_INLINE __m256i cut_of(vf v) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16)); }
IS_INLINE void st_cut(void *p, vf v) { _mm256_storeu_si256(p, cut_of(v)); }
IS_INLINE void stn_cut(void *p, vf v, long n) { _mm256_mask_storeu_epi16(p, first(n), cut_of(v)); }

/* In-lane shuffles: lane k of even/odd holds pairs 2k, 2k+1 of the first vector, then of the second. */
IS_INLINE vf v_even(vf p, vf q) { return _mm512_shuffle_ps(p, q, 0x88); }
IS_INLINE vf v_odd(vf p, vf q) { return _mm512_shuffle_ps(p, q, 0xdd); }
IS_INLINE vf v_order(vf c)
{
    return _mm512_castpd_ps(_mm512_permutexvar_pd(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), _mm512_castps_pd(c)));
}
IS_INLINE vf v_low(vf even, vf odd) { return _mm512_unpacklo_ps(even, odd); }
IS_INLINE vf v_high(vf even, vf odd) { return _mm512_unpackhi_ps(even, odd); }

IS_INLINE vi vi_get(const void *p) { return _mm512_loadu_si512(p); }
IS_INLINE void vi_set(void *p, vi v) { _mm512_storeu_si512(p, v); }
IS_INLINE void vi_stream(void *p, vi v) { _mm512_stream_si512(p, v); }
IS_INLINE vi gather_lanes(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d)
{
    vi v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)a));

    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)b), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)c), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const void *)d), 3);
}
IS_INLINE vi vi_rows(const uint8_t *const *row, size_t at)
{
    return gather_lanes(row[0] + at, row[8] + at, row[16] + at, row[24] + at);
}
IS_INLINE vi vi_rows4(const uint8_t *const *row, size_t at)
{
    return gather_lanes(row[0] + at, row[4] + at, row[8] + at, row[12] + at);
}
IS_INLINE vi vi_lo16(vi a, vi b) { return _mm512_unpacklo_epi16(a, b); }
IS_INLINE vi vi_hi16(vi a, vi b) { return _mm512_unpackhi_epi16(a, b); }
IS_INLINE vi vi_lo32(vi a, vi b) { return _mm512_unpacklo_epi32(a, b); }
IS_INLINE vi vi_hi32(vi a, vi b) { return _mm512_unpackhi_epi32(a, b); }
IS_INLINE vi vi_lo64(vi a, vi b) { return _mm512_unpacklo_epi64(a, b); }
IS_INLINE vi vi_hi64(vi a, vi b) { return _mm512_unpackhi_epi64(a, b); }
IS_INLINE void vi_put(void *p, vi v, size_t bytes)
{
    _mm512_mask_storeu_epi16(p, (__mmask32)(0xffffffffu >> (32 - bytes / 2)), v); /* bytes is even, 2 .. 64 */
}

IS_INLINE void st_bytes(float *p, __m128i bytes, int offset, vf scale)
{
    const __m512i codes = _mm512_add_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(offset));

    st_f32(p, v_mul(_mm512_cvtepi32_ps(codes), scale));
}

#include "kv/kernels_body.h"
#include "kv/kernels_int4.h"

const is_kernels is_kernels_avx512 = { "avx512", convert, convert_rows, rotate, rotate_as, copy, transpose16, transpose32,
                                       gather16, stream, drain, fence, int4_blocks };
#endif
