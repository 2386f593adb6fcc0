/* int4_rows.c - rows in int4 through a stage. */
#include "kv/int4_rows.h"

#include "kv/int4.h"

enum {
    STAGE = IS_INT4_LONGEST,
    AT_A_TIME = 1024, /* values of rows that are decoded before the first is used */
    LINE = 64,
};

void is_int4_convert(const is_kernels *k, const void *row, size_t dim, size_t at, is_codec to,
                     void *dst, size_t n)
{
    _Alignas(LINE) float stage[IS_INT4_BLOCK];
    const size_t b = is_codec_bytes(to);
    uint8_t *d = dst;

    for (size_t m; n; n -= m, at += m, d += m * b) { /* a block, or what is wanted of it */
        m = IS_INT4_BLOCK - at % IS_INT4_BLOCK < n ? IS_INT4_BLOCK - at % IS_INT4_BLOCK : n;
        is_int4_decode(k->int4_blocks, row, dim, at, stage, m);
        k->convert(IS_CODEC_F32, stage, m, 0, to, d, m);
    }
}

/* Values [at, at + n) of a few rows of dim values each. */
typedef struct wanted {
    size_t dim, at, n;
} wanted;

/* Of rows [t, t + m) of head h, to the stage. */
static void decode_rows(const is_kernels *k, const is_rows *r, size_t h, size_t t, size_t m,
                        wanted w, float *stage)
{
    const uint8_t *src = (const uint8_t *)r->src + h * r->src_head + t * r->src_step, *ahead = src;
    const size_t bytes = is_int4_row_bytes(w.dim);

    if (r->ahead) ahead = (const uint8_t *)r->ahead + h * r->ahead_head + t * r->src_step;
    for (size_t i = 0; i < m; i++, ahead += r->src_step)
        for (size_t b = 0; b < bytes; b += LINE) __builtin_prefetch(ahead + b, 0, 2);
    is_int4_decode_rows(k->int4_blocks, src, r->src_step, w.dim, w.at, stage, w.n, m);
}

/* The same rows in the stage. */
static is_rows staged(const is_rows *r, size_t h, size_t t, size_t m, size_t n, const float *stage)
{
    return (is_rows) {
        .src = stage,
        .dst = (uint8_t *)r->dst + h * r->dst_head + t * r->dst_step,
        .src_step = n * sizeof *stage,
        .dst_step = r->dst_step,
        .n_rows = m,
        .n_heads = 1,
    };
}

static size_t rows_at_a_time(size_t n, size_t left)
{
    const size_t m = n < AT_A_TIME ? AT_A_TIME / n : 1;

    return m < left ? m : left;
}

void is_int4_convert_rows(const is_kernels *k, is_codec to, const is_rows *r, size_t dim, size_t at,
                          size_t n)
{
    _Alignas(LINE) float stage[STAGE];

    for (size_t h = 0; h < r->n_heads && n; h++)
        for (size_t t = 0, m; t < r->n_rows; t += m) {
            is_rows few;

            m = rows_at_a_time(n, r->n_rows - t);
            decode_rows(k, r, h, t, m, (wanted) { dim, at, n }, stage);
            few = staged(r, h, t, m, n, stage);
            if (to == IS_CODEC_F32) k->copy(&few, n * sizeof *stage);
            else k->convert_rows(IS_CODEC_F32, to, &few, n);
        }
}

void is_int4_rotate(const is_kernels *k, const is_rotate *r)
{
    _Alignas(LINE) float stage[STAGE];
    const size_t n = r->head_dim;

    for (size_t h = 0; h < r->rows.n_heads; h++)
        for (size_t t = 0, m; t < r->rows.n_rows; t += m) {
            is_rotate few = *r;

            m = rows_at_a_time(n, r->rows.n_rows - t);
            decode_rows(k, &r->rows, h, t, m, (wanted) { n, 0, n }, stage);
            few.rows = staged(&r->rows, h, t, m, n, stage);
            few.from = IS_CODEC_F32;
            few.cos += t * r->table_step;
            few.sin += t * r->table_step;
            k->rotate(&few);
        }
}
