/* scan.c - int8 dot products over rows: one scalar oracle, three vector kernels that must equal it exactly.
 *
 * AVX2 and AVX-512 widen to int16 and use madd: a pair's sum is at most 2 * 128 * 128 = 32,768, exact in int32.
 * VNNI multiplies unsigned by signed bytes: rows are shifted to unsigned (x ^ 0x80 = x + 128) and 128 * sum(q) is taken off at
 * the end; sums wrap modulo 2^32, and the true result fits, so the difference is exact.
 * Rows are read once, in order: beyond the cache the memory bus is the limit, not the arithmetic. */
#include "recall/scan.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define IS_SCAN_X86 1
#endif

static int32_t dot_scalar(const int8_t *a, const int8_t *b, uint32_t dim)
{
    int32_t s = 0;
    for (uint32_t d = 0; d < dim; d++) s += (int32_t)a[d] * b[d];
    return s;
}

static void scan_scalar(const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++) out[i] = dot_scalar(q, rows + i * stride, dim);
}

#ifdef IS_SCAN_X86

__attribute__((target("avx2")))
static void scan_avx2(const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out)
{
    uint32_t whole = dim & ~31u;
    for (size_t i = 0; i < n; i++) {
        const int8_t *r = rows + i * stride;
        __m256i s0 = _mm256_setzero_si256(), s1 = _mm256_setzero_si256();
        for (uint32_t d = 0; d < whole; d += 32) {
            __m256i q0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(q + d)));
            __m256i q1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(q + d + 16)));
            __m256i r0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(r + d)));
            __m256i r1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(r + d + 16)));
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(q0, r0));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(q1, r1));
        }
        s0 = _mm256_add_epi32(s0, s1);
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(s0), _mm256_extracti128_si256(s0, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
        out[i] = _mm_cvtsi128_si32(s) + dot_scalar(q + whole, r + whole, dim - whole);
    }
}

/* The last, partial vector is loaded under a mask: bytes past dim read as zero and are never touched. */
static __mmask64 tail_mask(uint32_t left)
{
    return left >= 64 ? ~(__mmask64)0 : (((__mmask64)1 << left) - 1);
}

__attribute__((target("avx512f,avx512bw")))
static void scan_avx512(const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        const int8_t *r = rows + i * stride;
        __m512i s0 = _mm512_setzero_si512(), s1 = _mm512_setzero_si512();
        for (uint32_t d = 0; d < dim; d += 64) {
            __mmask64 m = tail_mask(dim - d);
            __m512i qv = _mm512_maskz_loadu_epi8(m, q + d), rv = _mm512_maskz_loadu_epi8(m, r + d);
            __m512i q0 = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(qv));
            __m512i r0 = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(rv));
            __m512i q1 = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(qv, 1));
            __m512i r1 = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(rv, 1));
            s0 = _mm512_add_epi32(s0, _mm512_madd_epi16(q0, r0));
            s1 = _mm512_add_epi32(s1, _mm512_madd_epi16(q1, r1));
        }
        out[i] = _mm512_reduce_add_epi32(_mm512_add_epi32(s0, s1));
    }
}

__attribute__((target("avx512f,avx512bw,avx512vnni")))
static void scan_vnni(const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    uint32_t shift = 0;
    size_t i = 0;

    for (uint32_t d = 0; d < dim; d++) shift += 128u * (uint32_t)(int32_t)q[d];
    for (; i + 4 <= n; i += 4) { /* four rows share each load of q */
        const int8_t *r = rows + i * stride;
        __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0;
        for (uint32_t d = 0; d < dim; d += 64) {
            __mmask64 m = tail_mask(dim - d);
            __m512i qv = _mm512_maskz_loadu_epi8(m, q + d);
            s0 = _mm512_dpbusd_epi32(s0, _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, r + d), flip), qv);
            s1 = _mm512_dpbusd_epi32(s1, _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, r + stride + d), flip), qv);
            s2 = _mm512_dpbusd_epi32(s2, _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, r + 2 * stride + d), flip), qv);
            s3 = _mm512_dpbusd_epi32(s3, _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, r + 3 * stride + d), flip), qv);
        }
        out[i] = (int32_t)((uint32_t)_mm512_reduce_add_epi32(s0) - shift);
        out[i + 1] = (int32_t)((uint32_t)_mm512_reduce_add_epi32(s1) - shift);
        out[i + 2] = (int32_t)((uint32_t)_mm512_reduce_add_epi32(s2) - shift);
        out[i + 3] = (int32_t)((uint32_t)_mm512_reduce_add_epi32(s3) - shift);
    }
    for (; i < n; i++) {
        const int8_t *r = rows + i * stride;
        __m512i s = _mm512_setzero_si512();
        for (uint32_t d = 0; d < dim; d += 64) {
            __mmask64 m = tail_mask(dim - d);
            __m512i qv = _mm512_maskz_loadu_epi8(m, q + d);
            s = _mm512_dpbusd_epi32(s, _mm512_xor_si512(_mm512_maskz_loadu_epi8(m, r + d), flip), qv);
        }
        out[i] = (int32_t)((uint32_t)_mm512_reduce_add_epi32(s) - shift);
    }
}

#endif

void is_scan_dot_level(is_simd level, const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out)
{
    switch (level) {
#ifdef IS_SCAN_X86
    case IS_SIMD_VNNI: scan_vnni(q, rows, stride, dim, n, out); return;
    case IS_SIMD_AVX512: scan_avx512(q, rows, stride, dim, n, out); return;
    case IS_SIMD_AVX2: scan_avx2(q, rows, stride, dim, n, out); return;
#endif
    default: scan_scalar(q, rows, stride, dim, n, out); return;
    }
}

void is_scan_dot(const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n, int32_t *out)
{
    is_scan_dot_level(is_cpu_simd(), q, rows, stride, dim, n, out);
}
