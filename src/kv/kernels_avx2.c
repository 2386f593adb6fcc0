/* kernels_avx2.c - the vector vocabulary of kernels_body.h in AVX2 with F16C. */
#include "kv/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define IS_TARGET __attribute__((target("avx2,f16c,fma")))
#define IS_INLINE static inline IS_TARGET __attribute__((always_inline))
#define IS_SELF (&is_kernels_avx2)
#define IS_W 8
#define IS_LANES 2
typedef __m256 vf;
typedef __m256i vi;

IS_INLINE vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
IS_INLINE vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
IS_INLINE vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }

IS_INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
IS_INLINE vf v_fms(vf a, vf b, vf c) { return _mm256_fmsub_ps(a, b, c); }
IS_INLINE vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }

IS_INLINE __m128i bf16_of(vf v)
{
    __m256i u = _mm256_castps_si256(v), up = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(up, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i h = _mm256_blendv_epi8(rounded, _mm256_or_si256(up, _mm256_set1_epi32(0x40)), nan);

    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08));
}
IS_INLINE vf of_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }

IS_INLINE vf ld_f32(const void *p) { return _mm256_loadu_ps(p); }
IS_INLINE vf ld_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
IS_INLINE vf ld_bf16(const void *p) { return of_bf16(_mm_loadu_si128(p)); }
IS_INLINE vf ld_int8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }
IS_INLINE vf v_f16_everywhere(const void *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16((short)h));
}
IS_INLINE void st_f32(void *p, vf v) { _mm256_storeu_ps(p, v); }
IS_INLINE void st_f16(void *p, vf v) { _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
IS_INLINE void st_bf16(void *p, vf v) { _mm_storeu_si128(p, bf16_of(v)); }
IS_INLINE vf round_f16(vf v) { return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
IS_INLINE vf round_bf16(vf v) { return of_bf16(bf16_of(v)); }
IS_INLINE void st_cut(void *p, vf v)
{
    __m256i h = _mm256_srli_epi32(_mm256_castps_si256(v), 16);

    _mm_storeu_si128(p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08)));
}

/* Ends of rows go through a small buffer: AVX2 has no masks for 16-bit elements. */
#define IS_END_LOAD(T, SIZE)                                                                                                   \
    IS_INLINE vf ldn_##T(const void *p, long n)                                                                                \
    {                                                                                                                          \
        uint8_t end[8 * (SIZE)] = { 0 };                                                                                       \
                                                                                                                               \
        if (n > 0) memcpy(end, p, (size_t)n * (SIZE));                                                                         \
        return ld_##T(end);                                                                                                    \
    }
#define IS_ENDS(T, SIZE)                                                                                                       \
    IS_END_LOAD(T, SIZE)                                                                                                       \
    IS_INLINE void stn_##T(void *p, vf v, long n)                                                                              \
    {                                                                                                                          \
        uint8_t end[8 * (SIZE)];                                                                                               \
                                                                                                                               \
        st_##T(end, v);                                                                                                        \
        if (n > 0) memcpy(p, end, (size_t)n * (SIZE));                                                                         \
    }
#define ld_cut ld_bf16
IS_ENDS(f32, 4)
IS_ENDS(f16, 2)
IS_ENDS(bf16, 2)
IS_ENDS(cut, 2)
IS_END_LOAD(int8, 1)

/* In-lane shuffles: lane k of even/odd holds pairs 2k, 2k+1 of the first vector, then of the second. */
IS_INLINE vf v_even(vf p, vf q) { return _mm256_shuffle_ps(p, q, 0x88); }
IS_INLINE vf v_odd(vf p, vf q) { return _mm256_shuffle_ps(p, q, 0xdd); }
IS_INLINE vf v_order(vf c) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(c), 0xd8)); }
IS_INLINE vf v_low(vf even, vf odd) { return _mm256_unpacklo_ps(even, odd); }
IS_INLINE vf v_high(vf even, vf odd) { return _mm256_unpackhi_ps(even, odd); }

IS_INLINE vi vi_get(const void *p) { return _mm256_loadu_si256(p); }
IS_INLINE void vi_set(void *p, vi v) { _mm256_storeu_si256(p, v); }
IS_INLINE void vi_stream(void *p, vi v) { _mm256_stream_si256(p, v); }
IS_INLINE vi gather_lanes(const uint8_t *a, const uint8_t *b)
{
    vi v = _mm256_castsi128_si256(_mm_loadu_si128((const void *)a));

    return _mm256_inserti128_si256(v, _mm_loadu_si128((const void *)b), 1);
}
IS_INLINE vi vi_rows(const uint8_t *const *row, size_t at) { return gather_lanes(row[0] + at, row[8] + at); }
IS_INLINE vi vi_rows4(const uint8_t *const *row, size_t at) { return gather_lanes(row[0] + at, row[4] + at); }
IS_INLINE vi vi_lo16(vi a, vi b) { return _mm256_unpacklo_epi16(a, b); }
IS_INLINE vi vi_hi16(vi a, vi b) { return _mm256_unpackhi_epi16(a, b); }
IS_INLINE vi vi_lo32(vi a, vi b) { return _mm256_unpacklo_epi32(a, b); }
IS_INLINE vi vi_hi32(vi a, vi b) { return _mm256_unpackhi_epi32(a, b); }
IS_INLINE vi vi_lo64(vi a, vi b) { return _mm256_unpacklo_epi64(a, b); }
IS_INLINE vi vi_hi64(vi a, vi b) { return _mm256_unpackhi_epi64(a, b); }
/* The first bytes (even, below 16) of v. */
IS_INLINE void put_first(uint8_t *p, __m128i v, size_t bytes)
{
    if (bytes & 8) {
        _mm_storel_epi64((void *)p, v);
        v = _mm_srli_si128(v, 8);
        p += 8;
    }
    if (bytes & 4) {
        _mm_storeu_si32(p, v);
        v = _mm_srli_si128(v, 4);
        p += 4;
    }
    if (bytes & 2) _mm_storeu_si16(p, v);
}
IS_INLINE void vi_put(void *p, vi v, size_t bytes)
{
    if (bytes == 32) {
        _mm256_storeu_si256(p, v);
    } else if (bytes >= 16) {
        _mm_storeu_si128(p, _mm256_castsi256_si128(v));
        put_first((uint8_t *)p + 16, _mm256_extracti128_si256(v, 1), bytes - 16);
    } else {
        put_first(p, _mm256_castsi256_si128(v), bytes);
    }
}

IS_INLINE void st_bytes(float *p, __m128i bytes, int offset, vf scale)
{
    const __m256i add = _mm256_set1_epi32(offset);
    const __m256i low = _mm256_cvtepu8_epi32(bytes);
    const __m256i high = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));

    st_f32(p, v_mul(_mm256_cvtepi32_ps(_mm256_add_epi32(low, add)), scale));
    st_f32(p + 8, v_mul(_mm256_cvtepi32_ps(_mm256_add_epi32(high, add)), scale));
}

#include "kv/kernels_body.h"
#include "kv/kernels_int4.h"

const is_kernels is_kernels_avx2 = { "avx2", convert, convert_rows, rotate, rotate_as, copy, transpose16, transpose32,
                                     gather16, stream, drain, fence, int4_blocks };
#endif
