/* kernels_body.h - the SIMD kernels, written once over a small vector vocabulary that the including file defines:
 *
 *   IS_TARGET, IS_W           function attributes; floats per vector
 *   IS_SELF                   the table of these kernels
 *   vf, vi                    float and integer vectors; IS_LANES 128-bit lanes each
 *   ld_T, st_T                whole vectors of type T = f32, f16, bf16 to and from vf
 *   ld_int8, ldn_int8         signed bytes as floats
 *   v_f16_everywhere          the f16 at an address in every place
 *   ldn_T, stn_T              the same for the first n elements (n <= 0 reads or writes nothing; missing ones load as 0)
 *   v_mul, v_add, v_sub, v_fma (a * b + c), v_fms (a * b - c), v_fnma (c - a * b)
 *   round_f16, round_bf16     a vf rounded to that type
 *   st_cut, stn_cut           as st_bf16, stn_bf16, but the low 16 bits are cut off
 *   v_even, v_odd             of 2 W interleaved floats (two vectors): even and odd ones, in an order of the ISA's choice
 *   v_order                   W floats put into that order
 *   v_low, v_high             inverse of v_even, v_odd: the two interleaved vectors
 *   vi_get, vi_set, vi_stream whole integer vectors; vi_stream past the caches, to an aligned address
 *   vi_rows, vi_rows4         one 128-bit load per lane from IS_LANES pointers, 8 or 4 apart
 *   vi_lo16/hi16/lo32/hi32/lo64/hi64   in-lane unpacks
 *   vi_put                    stores the first n bytes of a vector
 *
 * Included by kernels_avx2.c and kernels_avx512.c only. */
#include <string.h>

#include "kv/int4_rows.h"

#define IS_SIZE_f32 4
#define IS_SIZE_f16 2
#define IS_SIZE_bf16 2
#define IS_SIZE_int8 1

/* Bytes of a row before its first value, and what its values are multiplied with. */
#define IS_HEAD_f32 0
#define IS_HEAD_f16 0
#define IS_HEAD_bf16 0
#define IS_HEAD_int8 IS_INT8_SCALE_BYTES
#define IS_PLAIN(T)                                                                                                            \
    IS_INLINE vf scale_##T(const uint8_t *row) { return (void)row, (vf) { 0 }; }                                               \
    IS_INLINE vf lds_##T(const uint8_t *p, vf scale) { return (void)scale, ld_##T(p); }                                        \
    IS_INLINE vf ldsn_##T(const uint8_t *p, vf scale, long n) { return (void)scale, ldn_##T(p, n); }
IS_PLAIN(f32)
IS_PLAIN(f16)
IS_PLAIN(bf16)
IS_INLINE vf scale_int8(const uint8_t *row) { return v_f16_everywhere(row); }
IS_INLINE vf lds_int8(const uint8_t *p, vf scale) { return v_mul(ld_int8(p), scale); }
IS_INLINE vf ldsn_int8(const uint8_t *p, vf scale, long n) { return v_mul(ldn_int8(p, n), scale); }

/* Asks for bytes that will be read soon, in the second-level cache (3% faster than in the first). One line at a time between
 * the stores, for a burst of requests would take all of the processor's line buffers, which stores past the caches need too. */
IS_INLINE void fetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* ---- Convert --------------------------------------------------------------------------------------------------------- */

/* Values [at, at + n) of a row. */
#define IS_CONVERT(F, T)                                                                                                       \
    IS_INLINE void convert_##F##_##T(const void *src, size_t at, void *dst, size_t n)                                          \
    {                                                                                                                          \
        const uint8_t *s = (const uint8_t *)src + IS_HEAD_##F + at * IS_SIZE_##F;                                              \
        const vf scale = scale_##F(src);                                                                                       \
        uint8_t *d = dst;                                                                                                      \
        size_t i = 0;                                                                                                          \
                                                                                                                               \
        for (; i + IS_W <= n; i += IS_W) st_##T(d + i * IS_SIZE_##T, lds_##F(s + i * IS_SIZE_##F, scale));                     \
        if (i < n) stn_##T(d + i * IS_SIZE_##T, ldsn_##F(s + i * IS_SIZE_##F, scale, (long)(n - i)), (long)(n - i));           \
    }

/* Rows of n values; the two commonest head sizes have loops of known length. */
#define IS_CONVERT_ROWS(F, T)                                                                                                  \
    static IS_TARGET void rows_##F##_##T(const is_rows *r, size_t n)                                                           \
    {                                                                                                                          \
        for (size_t h = 0; h < r->n_heads; h++) {                                                                              \
            const uint8_t *s = (const uint8_t *)r->src + h * r->src_head;                                                      \
            const uint8_t *ahead = r->ahead ? (const uint8_t *)r->ahead + h * r->ahead_head : s;                               \
            uint8_t *d = (uint8_t *)r->dst + h * r->dst_head;                                                                  \
                                                                                                                               \
            for (size_t t = r->n_rows; t--; s += r->src_step, d += r->dst_step, ahead += r->src_step) {                        \
                fetch(ahead, IS_HEAD_##F + n * IS_SIZE_##F);                                                                   \
                if (n == 64) convert_##F##_##T(s, 0, d, 64);                                                                   \
                else if (n == 128) convert_##F##_##T(s, 0, d, 128);                                                            \
                else convert_##F##_##T(s, 0, d, n);                                                                            \
            }                                                                                                                  \
        }                                                                                                                      \
    }

/* Same types keep their bits; memmove because a rotation in place passes the same row. */
#define IS_CONVERT_SAME(T)                                                                                                     \
    static void convert_##T##_##T(const void *src, size_t at, void *dst, size_t n)                                             \
    {                                                                                                                          \
        memmove(dst, (const uint8_t *)src + at * IS_SIZE_##T, n * IS_SIZE_##T);                                                \
    }

/* ---- Rotate ---------------------------------------------------------------------------------------------------------- */

/* A vector of pairs is loaded whole before anything of it is stored, so that a row may be rotated in place. The two commonest
 * head sizes have loops of known length: their rows are too short for the branches of the general one. */
#define IS_ROTATE_HALVES(F, T)                                                                                                 \
    IS_INLINE void halves_row_##F##_##T(const uint8_t *row, uint8_t *d, const size_t begin, const float *cos, const float *sin, const size_t half) \
    {                                                                                                                          \
        const uint8_t *s0 = row + IS_HEAD_##F + begin * IS_SIZE_##F, *s1 = s0 + half * IS_SIZE_##F;                            \
        uint8_t *d0 = d + begin * IS_SIZE_##T, *d1 = d0 + half * IS_SIZE_##T;                                                  \
        const vf scale = scale_##F(row);                                                                                       \
        size_t i = 0;                                                                                                          \
                                                                                                                               \
        for (; i + IS_W <= half; i += IS_W) {                                                                                  \
            vf a = lds_##F(s0 + i * IS_SIZE_##F, scale), b = lds_##F(s1 + i * IS_SIZE_##F, scale);                             \
            vf c = ld_f32(cos + i), z = ld_f32(sin + i);                                                                       \
                                                                                                                               \
            st_##T(d0 + i * IS_SIZE_##T, v_sub(v_mul(a, c), v_mul(b, z)));                                                     \
            st_##T(d1 + i * IS_SIZE_##T, v_add(v_mul(a, z), v_mul(b, c)));                                                     \
        }                                                                                                                      \
        if (i < half) {                                                                                                        \
            long k = (long)(half - i);                                                                                         \
            vf a = ldsn_##F(s0 + i * IS_SIZE_##F, scale, k), b = ldsn_##F(s1 + i * IS_SIZE_##F, scale, k);                     \
            vf c = ld_f32(cos + i), z = ld_f32(sin + i);                                                                       \
                                                                                                                               \
            stn_##T(d0 + i * IS_SIZE_##T, v_sub(v_mul(a, c), v_mul(b, z)), k);                                                 \
            stn_##T(d1 + i * IS_SIZE_##T, v_add(v_mul(a, z), v_mul(b, c)), k);                                                 \
        }                                                                                                                      \
    }                                                                                                                          \
                                                                                                                               \
    static IS_TARGET void halves_##F##_##T(const is_rotate *r)                                                                 \
    {                                                                                                                          \
        const size_t half = r->rot_dim / 2, begin = r->rot_begin, end = begin + r->rot_dim, n = r->head_dim;                   \
        const size_t src_step = r->rows.src_step, dst_step = r->rows.dst_step, table = r->table_step;                          \
                                                                                                                               \
        for (size_t h = 0; h < r->rows.n_heads; h++) {                                                                         \
            const uint8_t *s = (const uint8_t *)r->rows.src + h * r->rows.src_head;                                            \
            uint8_t *d = (uint8_t *)r->rows.dst + h * r->rows.dst_head;                                                        \
            const uint8_t *ahead = r->rows.ahead ? (const uint8_t *)r->rows.ahead + h * r->rows.ahead_head : s;                \
            const float *cos = r->cos, *sin = r->sin;                                                                          \
                                                                                                                               \
            if (half == 32 && n == 64) {                                                                                       \
                for (size_t t = r->rows.n_rows; t--; s += src_step, d += dst_step, cos += table, sin += table) {               \
                    fetch(ahead, IS_HEAD_##F + 64 * IS_SIZE_##F);                                                              \
                    ahead += src_step;                                                                                         \
                    halves_row_##F##_##T(s, d, 0, cos, sin, 32);                                                               \
                }                                                                                                              \
            } else if (half == 64 && n == 128) {                                                                               \
                for (size_t t = r->rows.n_rows; t--; s += src_step, d += dst_step, cos += table, sin += table) {               \
                    fetch(ahead, IS_HEAD_##F + 128 * IS_SIZE_##F);                                                             \
                    ahead += src_step;                                                                                         \
                    halves_row_##F##_##T(s, d, 0, cos, sin, 64);                                                               \
                }                                                                                                              \
            } else {                                                                                                           \
                for (size_t t = r->rows.n_rows; t--; s += src_step, d += dst_step, cos += table, sin += table) {               \
                    fetch(ahead, IS_HEAD_##F + n * IS_SIZE_##F);                                                               \
                    ahead += src_step;                                                                                         \
                    if (begin) convert_##F##_##T(s, 0, d, begin);                                                              \
                    halves_row_##F##_##T(s, d, begin, cos, sin, half);                                                         \
                    if (end < n) convert_##F##_##T(s, end, d + end * IS_SIZE_##T, n - end);                                    \
                }                                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
    }

#define IS_ROTATE_ADJACENT(F, T)                                                                                               \
    IS_INLINE void adjacent_row_##F##_##T(const uint8_t *row, uint8_t *d, const size_t begin, const float *cos, const float *sin, const size_t half) \
    {                                                                                                                          \
        const uint8_t *s = row + IS_HEAD_##F + begin * IS_SIZE_##F;                                                            \
        const vf scale = scale_##F(row);                                                                                       \
        size_t i = 0;                                                                                                          \
                                                                                                                               \
        d += begin * IS_SIZE_##T;                                                                                              \
        for (; i + IS_W <= half; i += IS_W) {                                                                                  \
            vf p = lds_##F(s + 2 * i * IS_SIZE_##F, scale), q = lds_##F(s + (2 * i + IS_W) * IS_SIZE_##F, scale);              \
            vf a = v_even(p, q), b = v_odd(p, q), c = v_order(ld_f32(cos + i)), z = v_order(ld_f32(sin + i));                  \
            vf y0 = v_sub(v_mul(a, c), v_mul(b, z)), y1 = v_add(v_mul(a, z), v_mul(b, c));                                     \
                                                                                                                               \
            st_##T(d + 2 * i * IS_SIZE_##T, v_low(y0, y1));                                                                    \
            st_##T(d + (2 * i + IS_W) * IS_SIZE_##T, v_high(y0, y1));                                                          \
        }                                                                                                                      \
        if (i < half) {                                                                                                        \
            long k = 2 * (long)(half - i), k0 = k < IS_W ? k : IS_W, k1 = k - k0;                                              \
            vf p = ldsn_##F(s + 2 * i * IS_SIZE_##F, scale, k0), q = ldsn_##F(s + (2 * i + IS_W) * IS_SIZE_##F, scale, k1);    \
            vf a = v_even(p, q), b = v_odd(p, q), c = v_order(ld_f32(cos + i)), z = v_order(ld_f32(sin + i));                  \
            vf y0 = v_sub(v_mul(a, c), v_mul(b, z)), y1 = v_add(v_mul(a, z), v_mul(b, c));                                     \
                                                                                                                               \
            stn_##T(d + 2 * i * IS_SIZE_##T, v_low(y0, y1), k0);                                                               \
            stn_##T(d + (2 * i + IS_W) * IS_SIZE_##T, v_high(y0, y1), k1);                                                     \
        }                                                                                                                      \
    }                                                                                                                          \
                                                                                                                               \
    static IS_TARGET void adjacent_##F##_##T(const is_rotate *r)                                                               \
    {                                                                                                                          \
        const size_t half = r->rot_dim / 2, begin = r->rot_begin, end = begin + r->rot_dim, n = r->head_dim;                   \
        const size_t src_step = r->rows.src_step, dst_step = r->rows.dst_step, table = r->table_step;                          \
                                                                                                                               \
        for (size_t h = 0; h < r->rows.n_heads; h++) {                                                                         \
            const uint8_t *s = (const uint8_t *)r->rows.src + h * r->rows.src_head;                                            \
            uint8_t *d = (uint8_t *)r->rows.dst + h * r->rows.dst_head;                                                        \
            const uint8_t *ahead = r->rows.ahead ? (const uint8_t *)r->rows.ahead + h * r->rows.ahead_head : s;                \
            const float *cos = r->cos, *sin = r->sin;                                                                          \
                                                                                                                               \
            if (half == 32 && n == 64) {                                                                                       \
                for (size_t t = r->rows.n_rows; t--; s += src_step, d += dst_step, cos += table, sin += table) {               \
                    fetch(ahead, IS_HEAD_##F + 64 * IS_SIZE_##F);                                                              \
                    ahead += src_step;                                                                                         \
                    adjacent_row_##F##_##T(s, d, 0, cos, sin, 32);                                                             \
                }                                                                                                              \
            } else if (half == 64 && n == 128) {                                                                               \
                for (size_t t = r->rows.n_rows; t--; s += src_step, d += dst_step, cos += table, sin += table) {               \
                    fetch(ahead, IS_HEAD_##F + 128 * IS_SIZE_##F);                                                             \
                    ahead += src_step;                                                                                         \
                    adjacent_row_##F##_##T(s, d, 0, cos, sin, 64);                                                             \
                }                                                                                                              \
            } else {                                                                                                           \
                for (size_t t = r->rows.n_rows; t--; s += src_step, d += dst_step, cos += table, sin += table) {               \
                    fetch(ahead, IS_HEAD_##F + n * IS_SIZE_##F);                                                               \
                    ahead += src_step;                                                                                         \
                    if (begin) convert_##F##_##T(s, 0, d, begin);                                                              \
                    adjacent_row_##F##_##T(s, d, begin, cos, sin, half);                                                       \
                    if (end < n) convert_##F##_##T(s, end, d + end * IS_SIZE_##T, n - end);                                    \
                }                                                                                                              \
            }                                                                                                                  \
        }                                                                                                                      \
    }

#define IS_PAIR_OF_TYPES(F, T) IS_ROTATE_HALVES(F, T) IS_ROTATE_ADJACENT(F, T) IS_CONVERT_ROWS(F, T)

IS_CONVERT_SAME(f32)
IS_CONVERT_SAME(f16)
IS_CONVERT_SAME(bf16)
IS_CONVERT(f32, f16)
IS_CONVERT(f32, bf16)
IS_CONVERT(f16, f32)
IS_CONVERT(f16, bf16)
IS_CONVERT(bf16, f32)
IS_CONVERT(bf16, f16)
IS_CONVERT(int8, f32)
IS_CONVERT(int8, f16)
IS_CONVERT(int8, bf16)
IS_PAIR_OF_TYPES(f32, f32)
IS_PAIR_OF_TYPES(f32, f16)
IS_PAIR_OF_TYPES(f32, bf16)
IS_PAIR_OF_TYPES(f16, f32)
IS_PAIR_OF_TYPES(f16, f16)
IS_PAIR_OF_TYPES(f16, bf16)
IS_PAIR_OF_TYPES(bf16, f32)
IS_PAIR_OF_TYPES(bf16, f16)
IS_PAIR_OF_TYPES(bf16, bf16)
IS_PAIR_OF_TYPES(int8, f32)
IS_PAIR_OF_TYPES(int8, f16)
IS_PAIR_OF_TYPES(int8, bf16)

/* Indexed by is_codec: f32 = 0, f16 = 1, bf16 = 2, int8 = 3 (from only). int4 goes through F32
 * (int4_rows.h). */
enum { TABLE_CODECS = 4 };
#define IS_TABLE(prefix)                                                                                                       \
    {                                                                                                                          \
        { prefix##_f32_f32, prefix##_f32_f16, prefix##_f32_bf16 }, { prefix##_f16_f32, prefix##_f16_f16, prefix##_f16_bf16 },  \
        { prefix##_bf16_f32, prefix##_bf16_f16, prefix##_bf16_bf16 },                                                          \
        { prefix##_int8_f32, prefix##_int8_f16, prefix##_int8_bf16 },                                                          \
    }

static void convert(is_codec from, const void *src, size_t dim, size_t at, is_codec to, void *dst,
                    size_t n)
{
    static void (*const table[TABLE_CODECS][IS_CACHE_TYPES])(const void *, size_t, void *, size_t) = IS_TABLE(convert);

    if (from == IS_CODEC_INT4) is_int4_convert(IS_SELF, src, dim, at, to, dst, n);
    else table[from][to](src, at, dst, n);
}

static void convert_rows(is_codec from, is_codec to, const is_rows *r, size_t n)
{
    static void (*const table[TABLE_CODECS][IS_CACHE_TYPES])(const is_rows *, size_t) = IS_TABLE(rows);

    if (from == IS_CODEC_INT4) is_int4_convert_rows(IS_SELF, to, r, n, 0, n);
    else table[from][to](r, n);
}

static void rotate(const is_rotate *r)
{
    static void (*const table_halves[TABLE_CODECS][IS_CACHE_TYPES])(const is_rotate *) = IS_TABLE(halves);
    static void (*const table_adjacent[TABLE_CODECS][IS_CACHE_TYPES])(const is_rotate *) = IS_TABLE(adjacent);

    if (r->from == IS_CODEC_INT4) is_int4_rotate(IS_SELF, r);
    else (r->pairing == IS_PAIR_HALVES ? table_halves : table_adjacent)[r->from][r->to](r);
}

/* ---- As another engine rotates ------------------------------------------------------------------------------------------- */

/* y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin: a, b = x0, x1; c, z = cos, sin. R: rounds to the type. */
#define IS_Y0_plain(R) v_sub(v_mul(a, c), v_mul(b, z))
#define IS_Y1_plain(R) v_add(v_mul(a, z), v_mul(b, c))
#define IS_Y0_products(R) v_sub(R(v_mul(a, c)), R(v_mul(b, z)))
#define IS_Y1_products(R) v_add(R(v_mul(a, z)), R(v_mul(b, c)))
#define IS_Y0_fused_sin(R) v_fnma(b, z, v_mul(a, c))
#define IS_Y1_fused_sin(R) v_fma(a, z, v_mul(b, c))
#define IS_Y0_fused_cos(R) v_fms(a, c, v_mul(b, z))
#define IS_Y1_fused_cos(R) v_fma(b, c, v_mul(a, z))

IS_INLINE vf v_same(vf v) { return v; }

/* n pairs of one row by one arithmetic: x0 at s0, x1 at s1. T: the type; ST: how it is stored (the type, or cut). */
#define IS_PAIRS(HOW, T, R, ST)                                                                                                \
    static IS_TARGET void halves_##HOW##_##ST(const uint8_t *s0, const uint8_t *s1, uint8_t *d0, uint8_t *d1,                  \
                                              const float *cos, const float *sin, size_t n)                                    \
    {                                                                                                                          \
        for (size_t i = 0; i < n; i += IS_W) {                                                                                 \
            long k = n - i < IS_W ? (long)(n - i) : IS_W;                                                                      \
            vf a = k == IS_W ? ld_##T(s0 + i * IS_SIZE_##T) : ldn_##T(s0 + i * IS_SIZE_##T, k);                                \
            vf b = k == IS_W ? ld_##T(s1 + i * IS_SIZE_##T) : ldn_##T(s1 + i * IS_SIZE_##T, k);                                \
            vf c = k == IS_W ? ld_f32(cos + i) : ldn_f32(cos + i, k);                                                          \
            vf z = k == IS_W ? ld_f32(sin + i) : ldn_f32(sin + i, k);                                                          \
            vf y0 = IS_Y0_##HOW(R), y1 = IS_Y1_##HOW(R);                                                                       \
                                                                                                                               \
            if (k == IS_W) {                                                                                                   \
                st_##ST(d0 + i * IS_SIZE_##T, y0);                                                                             \
                st_##ST(d1 + i * IS_SIZE_##T, y1);                                                                             \
            } else {                                                                                                           \
                stn_##ST(d0 + i * IS_SIZE_##T, y0, k);                                                                         \
                stn_##ST(d1 + i * IS_SIZE_##T, y1, k);                                                                         \
            }                                                                                                                  \
        }                                                                                                                      \
    }                                                                                                                          \
                                                                                                                               \
    static IS_TARGET void adjacent_##HOW##_##ST(const uint8_t *s, const uint8_t *s1, uint8_t *d, uint8_t *d1,                  \
                                                const float *cos, const float *sin, size_t n)                                  \
    {                                                                                                                          \
        (void)s1, (void)d1;                                                                                                    \
        for (size_t i = 0; i < n; i += IS_W) {                                                                                 \
            long k = n - i < IS_W ? 2 * (long)(n - i) : 2 * IS_W, k0 = k < IS_W ? k : IS_W, k1 = k - k0;                       \
            vf p = ldn_##T(s + 2 * i * IS_SIZE_##T, k0), q = ldn_##T(s + (2 * i + IS_W) * IS_SIZE_##T, k1);                    \
            vf a = v_even(p, q), b = v_odd(p, q);                                                                              \
            vf c = v_order(ldn_f32(cos + i, k / 2)), z = v_order(ldn_f32(sin + i, k / 2));                                     \
            vf y0 = IS_Y0_##HOW(R), y1 = IS_Y1_##HOW(R);                                                                       \
                                                                                                                               \
            stn_##ST(d + 2 * i * IS_SIZE_##T, v_low(y0, y1), k0);                                                              \
            stn_##ST(d + (2 * i + IS_W) * IS_SIZE_##T, v_high(y0, y1), k1);                                                    \
        }                                                                                                                      \
    }

/* Of F32 a product is rounded anyway, and only bf16 is cut: cutting is a matter of bytes there. */
#define IS_SIZE_cut 2
IS_PAIRS(plain, f32, v_same, f32)
IS_PAIRS(plain, f16, v_same, f16)
IS_PAIRS(plain, bf16, v_same, bf16)
IS_PAIRS(plain, bf16, v_same, cut)
IS_PAIRS(products, f16, round_f16, f16)
IS_PAIRS(products, bf16, round_bf16, bf16)
IS_PAIRS(products, bf16, round_bf16, cut)
IS_PAIRS(fused_sin, f32, v_same, f32)
IS_PAIRS(fused_sin, f16, v_same, f16)
IS_PAIRS(fused_sin, bf16, v_same, bf16)
IS_PAIRS(fused_sin, bf16, v_same, cut)
IS_PAIRS(fused_cos, f32, v_same, f32)
IS_PAIRS(fused_cos, f16, v_same, f16)
IS_PAIRS(fused_cos, bf16, v_same, bf16)
IS_PAIRS(fused_cos, bf16, v_same, cut)

typedef void (*pairs_fn)(const uint8_t *s0, const uint8_t *s1, uint8_t *d0, uint8_t *d1, const float *cos, const float *sin, size_t n);

/* [arithmetic][codec], codec 3 = bf16, cut. */
#define IS_PAIRS_TABLE(P)                                                                                                      \
    {                                                                                                                          \
        { P##_plain_f32, P##_plain_f16, P##_plain_bf16, P##_plain_cut },                                                       \
        { P##_plain_f32, P##_products_f16, P##_products_bf16, P##_products_cut },                                              \
        { P##_fused_sin_f32, P##_fused_sin_f16, P##_fused_sin_bf16, P##_fused_sin_cut },                                       \
        { P##_fused_cos_f32, P##_fused_cos_f16, P##_fused_cos_bf16, P##_fused_cos_cut },                                       \
    }

static pairs_fn pairs_for(const is_rotate *r, uint32_t arithmetic, bool is_cut)
{
    static const pairs_fn halves[4][4] = IS_PAIRS_TABLE(halves), adjacent[4][4] = IS_PAIRS_TABLE(adjacent);
    int codec = is_cut && r->to == IS_CODEC_BF16 ? 3 : (int)r->to;

    return (r->pairing == IS_PAIR_HALVES ? halves : adjacent)[arithmetic][codec];
}

/* Whole blocks by one arithmetic, what is left of a head by another. from and to are the same. */
static IS_TARGET void rotate_as(const is_rotate *r)
{
    const size_t size = is_codec_bytes(r->to), half = r->rot_dim / 2, block = is_rotate_block(r->how);
    const size_t whole = block ? half - half % block : half, before = r->rot_begin * size;
    const size_t after = before + r->rot_dim * size, row = r->head_dim * size;
    const size_t second = r->pairing == IS_PAIR_HALVES ? half * size : size; /* where x1 is from x0 */
    const size_t rest = r->pairing == IS_PAIR_HALVES ? whole * size : 2 * whole * size;
    const pairs_fn first_pairs = pairs_for(r, r->how & 3, r->how & IS_ROTATE_CUT);
    const pairs_fn last_pairs = pairs_for(r, is_rotate_rest(r->how), false);

    for (size_t h = 0; h < r->rows.n_heads; h++) {
        const uint8_t *s = (const uint8_t *)r->rows.src + h * r->rows.src_head;
        uint8_t *d = (uint8_t *)r->rows.dst + h * r->rows.dst_head;
        const uint8_t *ahead = r->rows.ahead ? (const uint8_t *)r->rows.ahead + h * r->rows.ahead_head : s;
        const float *cos = r->cos, *sin = r->sin;

        for (size_t t = r->rows.n_rows; t--; s += r->rows.src_step, d += r->rows.dst_step, ahead += r->rows.src_step) {
            const uint8_t *s0 = s + before;
            uint8_t *d0 = d + before;

            fetch(ahead, row);
            if (before && s != d) memcpy(d, s, before);
            first_pairs(s0, s0 + second, d0, d0 + second, cos, sin, whole);
            if (whole < half) last_pairs(s0 + rest, s0 + rest + second, d0 + rest, d0 + rest + second, cos + whole, sin + whole, half - whole);
            if (after < row && s != d) memcpy(d + after, s + after, row - after);
            cos += r->table_step;
            sin += r->table_step;
        }
    }
}

/* ---- Copy ------------------------------------------------------------------------------------------------------------ */

static IS_TARGET void copy(const is_rows *r, size_t row_bytes)
{
    for (size_t h = 0; h < r->n_heads; h++) {
        const uint8_t *s = (const uint8_t *)r->src + h * r->src_head;
        const uint8_t *ahead = r->ahead ? (const uint8_t *)r->ahead + h * r->ahead_head : s;
        uint8_t *d = (uint8_t *)r->dst + h * r->dst_head;

        for (size_t n = r->n_rows; n--; s += r->src_step, d += r->dst_step, ahead += r->src_step) {
            fetch(ahead, row_bytes);
            if (row_bytes % (4 * IS_W)) memcpy(d, s, row_bytes);
            else
                for (size_t i = 0; i < row_bytes; i += 4 * IS_W) vi_set(d + i, vi_get(s + i));
        }
    }
}

static IS_TARGET void stream(void *dst, const void *src, size_t bytes)
{
    const uint8_t *s = src;
    uint8_t *d = dst;
    size_t lead = -(uintptr_t)d & 63;

    if (lead > bytes) lead = bytes;
    if (lead) memcpy(d, s, lead);
    for (d += lead, s += lead, bytes -= lead; bytes >= 64; d += 64, s += 64, bytes -= 64)
        for (size_t i = 0; i < 64; i += 4 * IS_W) vi_stream(d + i, vi_get(s + i));
    if (bytes) memcpy(d, s, bytes);
}

static IS_TARGET void drain(uint8_t *src, size_t src_step, uint8_t *dst, size_t dst_step, size_t n_cols, size_t bytes,
                            bool first)
{
    for (size_t c = 0; c < n_cols; c++, src += src_step, dst += dst_step) {
        size_t over = (uintptr_t)dst & 63, end = (over + bytes) & ~(size_t)63;
        const uint8_t *s = src - over;
        uint8_t *d = dst - over;

        for (size_t i = first && over ? 64 : 0; i < end; i += 4 * IS_W) vi_stream(d + i, vi_get(s + i));
        for (size_t i = 0; bytes >= 64 && i < 64; i += 4 * IS_W) vi_set(src - 64 + i, vi_get(src + bytes - 64 + i));
    }
}

static void fence(void)
{
    _mm_sfence();
}

/* ---- Transpose ------------------------------------------------------------------------------------------------------- */

/* IS_LANES x 8 rows by 8 columns of 16 bits. A vector takes row i of every lane's eight, so three stages of in-lane unpacks
 * give whole columns: no shuffle crosses lanes. Rows past the end repeat the last one and are not stored. */
static IS_TARGET void block16(const uint8_t *const *row, size_t at, uint8_t *dst, size_t dst_step, size_t bytes)
{
    vi r0 = vi_rows(row + 0, at), r1 = vi_rows(row + 1, at), r2 = vi_rows(row + 2, at), r3 = vi_rows(row + 3, at);
    vi r4 = vi_rows(row + 4, at), r5 = vi_rows(row + 5, at), r6 = vi_rows(row + 6, at), r7 = vi_rows(row + 7, at);
    vi a0 = vi_lo16(r0, r1), a1 = vi_hi16(r0, r1), a2 = vi_lo16(r2, r3), a3 = vi_hi16(r2, r3);
    vi a4 = vi_lo16(r4, r5), a5 = vi_hi16(r4, r5), a6 = vi_lo16(r6, r7), a7 = vi_hi16(r6, r7);
    vi b0 = vi_lo32(a0, a2), b1 = vi_hi32(a0, a2), b2 = vi_lo32(a1, a3), b3 = vi_hi32(a1, a3);
    vi b4 = vi_lo32(a4, a6), b5 = vi_hi32(a4, a6), b6 = vi_lo32(a5, a7), b7 = vi_hi32(a5, a7);

    vi_put(dst + 0 * dst_step, vi_lo64(b0, b4), bytes);
    vi_put(dst + 1 * dst_step, vi_hi64(b0, b4), bytes);
    vi_put(dst + 2 * dst_step, vi_lo64(b1, b5), bytes);
    vi_put(dst + 3 * dst_step, vi_hi64(b1, b5), bytes);
    vi_put(dst + 4 * dst_step, vi_lo64(b2, b6), bytes);
    vi_put(dst + 5 * dst_step, vi_hi64(b2, b6), bytes);
    vi_put(dst + 6 * dst_step, vi_lo64(b3, b7), bytes);
    vi_put(dst + 7 * dst_step, vi_hi64(b3, b7), bytes);
}

/* IS_LANES x 4 rows by 4 columns of 32 bits, the same way. */
static IS_TARGET void block32(const uint8_t *const *row, size_t at, uint8_t *dst, size_t dst_step, size_t bytes)
{
    vi r0 = vi_rows4(row + 0, at), r1 = vi_rows4(row + 1, at), r2 = vi_rows4(row + 2, at), r3 = vi_rows4(row + 3, at);
    vi a0 = vi_lo32(r0, r1), a1 = vi_hi32(r0, r1), a2 = vi_lo32(r2, r3), a3 = vi_hi32(r2, r3);

    vi_put(dst + 0 * dst_step, vi_lo64(a0, a2), bytes);
    vi_put(dst + 1 * dst_step, vi_hi64(a0, a2), bytes);
    vi_put(dst + 2 * dst_step, vi_lo64(a1, a3), bytes);
    vi_put(dst + 3 * dst_step, vi_hi64(a1, a3), bytes);
}

/* Columns that do not fill a block of 128-bit loads. */
static void transpose_rest(const uint8_t *src, size_t src_step, uint8_t *dst, size_t dst_step, size_t n_rows, size_t n_cols,
                           size_t b)
{
    for (size_t c = 0; c < n_cols; c++)
        for (size_t r = 0; r < n_rows; r++) memcpy(dst + c * dst_step + r * b, src + r * src_step + c * b, b);
}

static IS_TARGET void transpose16(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols)
{
    enum { ROWS = 8 * IS_LANES, COLS = 8 };
    size_t whole = n_cols - n_cols % COLS;

    for (size_t r = 0; r < n_rows; r += ROWS) {
        const uint8_t *row[ROWS], *s = (const uint8_t *)src + r * src_step;
        size_t n = n_rows - r < ROWS ? n_rows - r : ROWS;
        uint8_t *d = (uint8_t *)dst + 2 * r;

        for (size_t i = 0; i < ROWS; i++) row[i] = s + (i < n ? i : n - 1) * src_step;
        for (size_t c = 0; c < whole; c += COLS) block16(row, 2 * c, d + c * dst_step, dst_step, 2 * n);
        if (whole < n_cols) transpose_rest(s + 2 * whole, src_step, d + whole * dst_step, dst_step, n, n_cols - whole, 2);
    }
}

/* The same from rows that lie anywhere. The lines of `ahead` are asked for a few at a time, between the stores. */
static IS_TARGET void gather16(const uint8_t *const *rows, const uint8_t *const *ahead, size_t at, void *dst, size_t dst_step,
                               size_t n_rows, size_t n_cols)
{
    enum { ROWS = 8 * IS_LANES, COLS = 8, LINE_COLS = 32, ASK = IS_GATHER / (LINE_COLS / COLS) };
    size_t whole = n_cols - n_cols % COLS;

    for (size_t r = 0; r < n_rows; r += ROWS) {
        const uint8_t *few[ROWS], *const *row = rows + r;
        size_t n = n_rows - r < ROWS ? n_rows - r : ROWS;
        uint8_t *d = (uint8_t *)dst + 2 * r;

        for (size_t i = 0; n < ROWS && i < ROWS; i++) few[i] = row[i < n ? i : n - 1];
        if (n < ROWS) row = few;
        for (size_t c = 0; c < whole; c += COLS) {
            block16(row, at + 2 * c, d + c * dst_step, dst_step, 2 * n);
            if (r > 0 || !ahead) continue;
            for (size_t i = 0; i < ASK; i++)
                __builtin_prefetch(ahead[c % LINE_COLS / COLS * ASK + i] + at + 2 * (c - c % LINE_COLS), 0, 2);
        }
        for (size_t c = whole; c < n_cols; c++)
            for (size_t i = 0; i < n; i++) memcpy(d + c * dst_step + 2 * i, row[i] + at + 2 * c, 2);
    }
}

static IS_TARGET void transpose32(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols)
{
    enum { ROWS = 4 * IS_LANES, COLS = 4 };
    size_t whole = n_cols - n_cols % COLS;

    for (size_t r = 0; r < n_rows; r += ROWS) {
        const uint8_t *row[ROWS], *s = (const uint8_t *)src + r * src_step;
        size_t n = n_rows - r < ROWS ? n_rows - r : ROWS;
        uint8_t *d = (uint8_t *)dst + 4 * r;

        for (size_t i = 0; i < ROWS; i++) row[i] = s + (i < n ? i : n - 1) * src_step;
        for (size_t c = 0; c < whole; c += COLS) block32(row, 4 * c, d + c * dst_step, dst_step, 4 * n);
        if (whole < n_cols) transpose_rest(s + 4 * whole, src_step, d + whole * dst_step, dst_step, n, n_cols - whole, 4);
    }
}
