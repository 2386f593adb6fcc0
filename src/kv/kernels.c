/* kernels.c - the scalar kernels (oracles, and what runs on CPUs without SIMD of ours), and the choice of the level. */
#include "kv/kernels.h"
#include "kv/int4_rows.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

static float load_one(is_codec c, const void *p, size_t i)
{
    float x;
    uint16_t h;

    if (c == IS_CODEC_F32) {
        memcpy(&x, (const uint8_t *)p + 4 * i, 4);
        return x;
    }
    if (c == IS_CODEC_INT8) {
        memcpy(&h, p, sizeof h);
        return (float)(int8_t)((const uint8_t *)p)[IS_INT8_SCALE_BYTES + i] * is_f32_from_f16(h);
    }
    memcpy(&h, (const uint8_t *)p + 2 * i, 2);
    return c == IS_CODEC_F16 ? is_f32_from_f16(h) : is_f32_from_bf16(h);
}

static void store_one(is_codec c, void *p, size_t i, float x)
{
    uint16_t h;

    if (c == IS_CODEC_F32) {
        memcpy((uint8_t *)p + 4 * i, &x, 4);
        return;
    }
    h = c == IS_CODEC_F16 ? is_f16_from_f32(x) : is_bf16_from_f32(x);
    memcpy((uint8_t *)p + 2 * i, &h, 2);
}

static void convert_range(is_codec from, const void *src, is_codec to, void *dst, size_t begin, size_t end)
{
    size_t b = is_codec_bytes(from);

    if (from == to) { /* bits, NaN payloads included; memmove because a rotation in place passes the same row */
        if (end > begin) memmove((uint8_t *)dst + b * begin, (const uint8_t *)src + b * begin, b * (end - begin));
        return;
    }
    for (size_t i = begin; i < end; i++) store_one(to, dst, i, load_one(from, src, i));
}

static void convert_scalar(is_codec from, const void *src, size_t dim, size_t at, is_codec to,
                           void *dst, size_t n)
{
    uint8_t *d = dst;

    if (from == IS_CODEC_INT4) {
        is_int4_convert(&is_kernels_scalar, src, dim, at, to, dst, n);
        return;
    }
    if (from == to) memmove(d, (const uint8_t *)src + at * is_codec_bytes(to), n * is_codec_bytes(to));
    else for (size_t i = 0; i < n; i++) store_one(to, d, i, load_one(from, src, at + i));
}

static void convert_rows_scalar(is_codec from, is_codec to, const is_rows *r, size_t n)
{
    for (size_t h = 0; h < r->n_heads; h++)
        for (size_t t = 0; t < r->n_rows; t++)
            convert_scalar(from, (const uint8_t *)r->src + h * r->src_head + t * r->src_step, n, 0, to,
                           (uint8_t *)r->dst + h * r->dst_head + t * r->dst_step, n);
}

static void rotate_row(const is_rotate *r, const uint8_t *src, uint8_t *dst, const float *cos,
                       const float *sin);

/* The whole row is decoded first. */
static void rotate_int4_row(const is_rotate *r, const uint8_t *src, uint8_t *dst, const float *cos,
                            const float *sin)
{
    float row[IS_INT4_LONGEST];
    is_rotate q = *r;

    is_int4_decode(is_int4_blocks_scalar, src, r->head_dim, 0, row, r->head_dim);
    q.from = IS_CODEC_F32;
    rotate_row(&q, (const uint8_t *)row, dst, cos, sin);
}

static void rotate_row(const is_rotate *r, const uint8_t *src, uint8_t *dst, const float *cos, const float *sin)
{
    size_t half = r->rot_dim / 2;
    bool halves = r->pairing == IS_PAIR_HALVES;

    if (r->from == IS_CODEC_INT4) {
        rotate_int4_row(r, src, dst, cos, sin);
        return;
    }
    convert_range(r->from, src, r->to, dst, 0, r->rot_begin);
    for (size_t i = 0; i < half; i++) {
        size_t i0 = r->rot_begin + (halves ? i : 2 * i), i1 = halves ? i0 + half : i0 + 1;
        float x0 = load_one(r->from, src, i0), x1 = load_one(r->from, src, i1);

        store_one(r->to, dst, i0, x0 * cos[i] - x1 * sin[i]);
        store_one(r->to, dst, i1, x0 * sin[i] + x1 * cos[i]);
    }
    convert_range(r->from, src, r->to, dst, r->rot_begin + r->rot_dim, r->head_dim);
}

static void rotate_scalar(const is_rotate *r)
{
    for (size_t h = 0; h < r->rows.n_heads; h++)
        for (size_t t = 0; t < r->rows.n_rows; t++)
            rotate_row(r, (const uint8_t *)r->rows.src + h * r->rows.src_head + t * r->rows.src_step,
                       (uint8_t *)r->rows.dst + h * r->rows.dst_head + t * r->rows.dst_step, r->cos + t * r->table_step,
                       r->sin + t * r->table_step);
}

/* ---- As another engine rotates ------------------------------------------------------------------------------------------- */

static float round_to(is_codec c, float x)
{
    uint8_t bytes[4];

    store_one(c, bytes, 0, x);
    return load_one(c, bytes, 0);
}

/* Takes the upper half: gcc 12.2 leaves out a mask of the float's bits (`u &= 0xffff0000`) here. */
static void cut_one(is_codec c, void *p, size_t i, float x)
{
    uint32_t u;
    uint16_t h;

    if (c != IS_CODEC_BF16) {
        store_one(c, p, i, x);
        return;
    }
    memcpy(&u, &x, sizeof u);
    h = (uint16_t)(u >> 16);
    memcpy((uint8_t *)p + 2 * i, &h, sizeof h);
}

static void pair_as(uint32_t arithmetic, is_codec to, float x0, float x1, float c, float s, float *y0, float *y1)
{
    switch (arithmetic) {
    case IS_ROTATE_PRODUCTS:
        *y0 = round_to(to, x0 * c) - round_to(to, x1 * s);
        *y1 = round_to(to, x0 * s) + round_to(to, x1 * c);
        return;
    case IS_ROTATE_FUSED_SIN:
        *y0 = fmaf(-x1, s, x0 * c);
        *y1 = fmaf(x0, s, x1 * c);
        return;
    case IS_ROTATE_FUSED_COS:
        *y0 = fmaf(x0, c, -(x1 * s));
        *y1 = fmaf(x1, c, x0 * s);
        return;
    default:
        *y0 = x0 * c - x1 * s;
        *y1 = x0 * s + x1 * c;
    }
}

static void rotate_row_as(const is_rotate *r, const uint8_t *src, uint8_t *dst, const float *cos, const float *sin)
{
    size_t half = r->rot_dim / 2, block = is_rotate_block(r->how), whole = block ? half - half % block : half;
    bool halves = r->pairing == IS_PAIR_HALVES;

    convert_range(r->from, src, r->to, dst, 0, r->rot_begin);
    for (size_t i = 0; i < half; i++) {
        size_t i0 = r->rot_begin + (halves ? i : 2 * i), i1 = halves ? i0 + half : i0 + 1;
        float x0 = load_one(r->from, src, i0), x1 = load_one(r->from, src, i1), y0, y1;
        void (*store)(is_codec, void *, size_t, float) = i < whole && r->how & IS_ROTATE_CUT ? cut_one : store_one;

        pair_as(i < whole ? r->how & 3 : is_rotate_rest(r->how), r->to, x0, x1, cos[i], sin[i], &y0, &y1);
        store(r->to, dst, i0, y0);
        store(r->to, dst, i1, y1);
    }
    convert_range(r->from, src, r->to, dst, r->rot_begin + r->rot_dim, r->head_dim);
}

static void rotate_as_scalar(const is_rotate *r)
{
    for (size_t h = 0; h < r->rows.n_heads; h++)
        for (size_t t = 0; t < r->rows.n_rows; t++)
            rotate_row_as(r, (const uint8_t *)r->rows.src + h * r->rows.src_head + t * r->rows.src_step,
                          (uint8_t *)r->rows.dst + h * r->rows.dst_head + t * r->rows.dst_step, r->cos + t * r->table_step,
                          r->sin + t * r->table_step);
}

bool is_rotate_known(uint32_t how)
{
    bool block = is_rotate_block(how) > 0;

    return (how & ~(UINT32_C(3) | IS_ROTATE_CUT | 0xff00 | 3u << 16)) == 0 && (block || !is_rotate_rest(how));
}

void is_kernels_rotate(const is_kernels *k, const is_rotate *r)
{
    if (r->how == IS_ROTATE_F32) k->rotate(r);
    else if (r->from == r->to) k->rotate_as(r);
    else rotate_as_scalar(r);
}

static void copy_scalar(const is_rows *r, size_t row_bytes)
{
    for (size_t h = 0; h < r->n_heads; h++)
        for (size_t t = 0; t < r->n_rows; t++)
            memcpy((uint8_t *)r->dst + h * r->dst_head + t * r->dst_step,
                   (const uint8_t *)r->src + h * r->src_head + t * r->src_step, row_bytes);
}

static void transpose_scalar(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols,
                             size_t b)
{
    for (size_t c = 0; c < n_cols; c++)
        for (size_t r = 0; r < n_rows; r++)
            memcpy((uint8_t *)dst + c * dst_step + r * b, (const uint8_t *)src + r * src_step + c * b, b);
}

static void transpose16_scalar(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols)
{
    transpose_scalar(src, src_step, dst, dst_step, n_rows, n_cols, 2);
}

static void transpose32_scalar(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols)
{
    transpose_scalar(src, src_step, dst, dst_step, n_rows, n_cols, 4);
}

static void gather16_scalar(const uint8_t *const *rows, const uint8_t *const *ahead, size_t at, void *dst, size_t dst_step,
                            size_t n_rows, size_t n_cols)
{
    (void)ahead;
    for (size_t c = 0; c < n_cols; c++)
        for (size_t r = 0; r < n_rows; r++) memcpy((uint8_t *)dst + c * dst_step + 2 * r, rows[r] + at + 2 * c, 2);
}

static void stream_scalar(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

static void drain_scalar(uint8_t *src, size_t src_step, uint8_t *dst, size_t dst_step, size_t n_cols, size_t bytes, bool first)
{
    for (size_t c = 0; c < n_cols; c++, src += src_step, dst += dst_step) {
        size_t over = (uintptr_t)dst & 63, begin = first && over ? 64 : 0, end = (over + bytes) & ~(size_t)63;

        if (begin < end) memcpy(dst - over + begin, src - over + begin, end - begin);
        if (bytes >= 64) memcpy(src - 64, src + bytes - 64, 64);
    }
}

static void fence_scalar(void)
{
}

const is_kernels is_kernels_scalar = {
    "scalar", convert_scalar, convert_rows_scalar, rotate_scalar, rotate_as_scalar, copy_scalar, transpose16_scalar, transpose32_scalar,
    gather16_scalar, stream_scalar, drain_scalar, fence_scalar, is_int4_blocks_scalar,
};

const is_kernels *is_kernels_at(is_simd level)
{
    is_simd have = is_cpu_simd();

    if (level > have) level = have;
#if defined(__x86_64__)
    if (level >= IS_SIMD_AVX512) return &is_kernels_avx512;
    if (level >= IS_SIMD_AVX2) return &is_kernels_avx2;
#endif
    return &is_kernels_scalar;
}

const is_kernels *is_kernels_best(void)
{
    static _Atomic(const is_kernels *) best; /* decided once: the hot path must not ask CPUID */
    const is_kernels *k = atomic_load_explicit(&best, memory_order_relaxed);

    if (!k) {
        k = is_kernels_at(IS_SIMD_VNNI);
        atomic_store_explicit(&best, k, memory_order_relaxed);
    }
    return k;
}
