/* Composition: every SIMD level gives the scalar oracle's bits, for all pairs of types, pairings, ranges, strides and sizes;
 * rows and columns hold exactly what an independent computation says, and nothing beside them is touched. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/compose.h"
#include "kv/kernels.h"
#include "support/kv_make.h"

#define OK(expr)                                                                                                               \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, is_error());                                                    \
    } while (0)

/* ---- Kernels --------------------------------------------------------------------------------------------------------- */

static void random_values(is_codec c, uint8_t *p, size_t n, uint64_t *seed)
{
    float *x = is_malloc((n + 1) * sizeof *x);

    for (size_t i = 0; i < n; i++) /* subnormals too */
        x[i] = kv_below(seed, 40) ? kv_float(seed) : ldexpf(kv_float(seed), -(int)kv_below(seed, 30));
    is_codec_encode(c, x, p, n);
    is_free(x);
}

/* One random rotation by both; whole buffers are compared, so that a store outside the rows is seen. */
static void rotate_once(const is_kernels *k, uint64_t *seed, uint32_t max_dim)
{
    uint32_t head_dim = 2 + kv_below(seed, max_dim), rot_dim = 2 * (1 + kv_below(seed, head_dim / 2)), n = kv_below(seed, 6);
    uint32_t rot_begin = kv_below(seed, 2) ? 0 : kv_below(seed, head_dim - rot_dim + 1);
    uint32_t half = (rot_dim / 2 + 15) / 16 * 16, step = 2 * half;
    is_codec from = (is_codec)kv_below(seed, IS_CODECS), to = (is_codec)kv_below(seed, IS_CACHE_TYPES);
    size_t src_step = is_codec_row_bytes(from, head_dim) + kv_below(seed, 70),
           dst_step = is_codec_row_bytes(to, head_dim) + kv_below(seed, 70);
    size_t src_bytes = 5 * src_step + 8, dst_bytes = 5 * dst_step + 8;
    uint8_t *src = is_calloc(1, src_bytes), *want = is_malloc(dst_bytes), *got = is_malloc(dst_bytes);
    float *table = is_malloc_aligned(64, (5 * (size_t)step + 16) * sizeof *table);
    is_rotate r = {
        .rows = { .src = src + 2, .dst = want + 2, .src_step = src_step, .dst_step = dst_step, .n_rows = n, .n_heads = 1 },
        .cos = table,
        .sin = table + half,
        .table_step = step,
        .from = from,
        .to = to,
        .head_dim = head_dim,
        .rot_begin = rot_begin,
        .rot_dim = rot_dim,
        .pairing = (uint8_t)(1 + kv_below(seed, 2)),
    };

    for (uint32_t t = 0; t < 5; t++) random_values(from, src + 2 + t * src_step, head_dim, seed);
    for (size_t i = 0; i < 5 * (size_t)step + 16; i++) table[i] = (float)cos((double)kv_below(seed, 100000));
    memset(want, 0x5a, dst_bytes);
    memset(got, 0x5a, dst_bytes);
    is_kernels_scalar.rotate(&r);
    r.rows.dst = got + 2;
    k->rotate(&r);
    if (memcmp(want, got, dst_bytes))
        fail_msg("%s: %u rows, head %u, rotated %u+%u, pairing %u, %s to %s differ", k->name, n, head_dim, rot_begin, rot_dim,
                 r.pairing, is_codec_name(from), is_codec_name(to));
    if (from == to) { /* as another engine does */
        r.how = kv_below(seed, 4) | kv_below(seed, 2) * IS_ROTATE_CUT;
        if (kv_below(seed, 2)) r.how |= (uint32_t)INFERSCALE_ROT_BLOCK(4u << kv_below(seed, 4), kv_below(seed, 4));
        assert_true(is_rotate_known(r.how));
        memset(want, 0x5a, dst_bytes);
        memset(got, 0x5a, dst_bytes);
        r.rows.dst = want + 2;
        is_kernels_scalar.rotate_as(&r);
        r.rows.dst = got + 2;
        k->rotate_as(&r);
        if (memcmp(want, got, dst_bytes))
            fail_msg("%s: %u rows, head %u, rotated %u+%u, pairing %u, %s, as %#x differ", k->name, n, head_dim, rot_begin, rot_dim,
                     r.pairing, is_codec_name(from), r.how);
        r.how = IS_ROTATE_F32;
    }
    if (from == to) { /* in place, as un-rotating does */
        memcpy(got, src, src_bytes < dst_bytes ? src_bytes : dst_bytes);
        memcpy(want, src, src_bytes < dst_bytes ? src_bytes : dst_bytes);
        r.rows.n_rows = n ? 1 : 0;
        r.rows.src = r.rows.dst = want + 2;
        is_kernels_scalar.rotate(&r);
        r.rows.src = r.rows.dst = got + 2;
        k->rotate(&r);
        assert_memory_equal(want, got, dst_bytes);
    }
    is_free(src);
    is_free(want);
    is_free(got);
    is_free(table);
}

static void test_rotate_kernels(void **state)
{
    uint64_t seed = kv_seed();

    for (int level = IS_SIMD_AVX2; level <= IS_SIMD_AVX512; level++)
        for (int i = 0; i < 6000; i++) rotate_once(is_kernels_at((is_simd)level), &seed, i % 10 ? 140 : 600);
}

static void test_copy_and_transpose_kernels(void **state)
{
    enum { MAX = 70 };
    static uint8_t src[(MAX + 1) * (4 * MAX + 64)], want[sizeof src], got[sizeof src];
    uint64_t seed = kv_seed();

    for (size_t i = 0; i < sizeof src; i++) src[i] = (uint8_t)kv_next(&seed);
    for (int i = 0; i < 6000; i++) {
        const is_kernels *k = is_kernels_at(i % 2 ? IS_SIMD_AVX2 : IS_SIMD_AVX512);
        size_t rows = kv_below(&seed, MAX), cols = kv_below(&seed, MAX), b = i % 3 == 0 ? 4 : 2;
        size_t src_step = cols * b + kv_below(&seed, 60), dst_step = rows * b + kv_below(&seed, 60);

        memset(want, 0x77, sizeof want);
        memset(got, 0x77, sizeof got);
        if (i % 3 == 2) {
            dst_step = cols * b + kv_below(&seed, 60);
            is_rows r = {
                .src = src + 1, .dst = want + 3, .src_step = src_step, .dst_step = dst_step, .n_heads = 1, .n_rows = rows
            };

            if (i % 4 == 0) { /* several heads, interleaved in the destination */
                r = (is_rows){ .src = src + 1,
                               .dst = want + 3,
                               .src_step = cols * b,
                               .src_head = cols * b * (rows / 3),
                               .n_heads = 3,
                               .dst_step = 3 * cols * b,
                               .dst_head = cols * b,
                               .n_rows = rows / 3 };
            }
            is_kernels_scalar.copy(&r, cols * b);
            r.dst = got + 3;
            k->copy(&r, cols * b);
        } else if (b == 4) {
            is_kernels_scalar.transpose32(src + 1, src_step, want + 3, dst_step, rows, cols);
            k->transpose32(src + 1, src_step, got + 3, dst_step, rows, cols);
        } else {
            is_kernels_scalar.transpose16(src + 1, src_step, want + 3, dst_step, rows, cols);
            k->transpose16(src + 1, src_step, got + 3, dst_step, rows, cols);
        }
        if (memcmp(want, got, sizeof want))
            fail_msg("%s: %zu x %zu of %zu bytes differ (sort %d)", k->name, rows, cols, b, i % 3);
    }
}

static void test_stream_kernels(void **state)
{
    static _Alignas(64) uint8_t src[1000], want[1000], got[1000];
    uint64_t seed = kv_seed();

    for (size_t i = 0; i < sizeof src; i++) src[i] = (uint8_t)kv_next(&seed);
    for (int i = 0; i < 4000; i++) {
        const is_kernels *k = is_kernels_at(i % 2 ? IS_SIMD_AVX2 : IS_SIMD_AVX512);
        size_t n = kv_below(&seed, 700), from = kv_below(&seed, 130), to = kv_below(&seed, 130);

        memset(want, 0x11, sizeof want);
        memset(got, 0x11, sizeof got);
        memcpy(want + to, src + from, n);
        k->stream(got + to, src + from, n);
        k->fence();
        assert_memory_equal(want, got, sizeof want);
    }
}

static void test_gather_kernels(void **state)
{
    enum { STEP = 71, COLS = 80 };
    static uint8_t src[4096], want[COLS * STEP + 8], got[sizeof want];
    uint64_t seed = kv_seed();

    for (size_t i = 0; i < sizeof src; i++) src[i] = (uint8_t)kv_next(&seed);
    for (int i = 0; i < 6000; i++) {
        const is_kernels *k = is_kernels_at(i % 2 ? IS_SIMD_AVX2 : IS_SIMD_AVX512);
        size_t n = 1 + kv_below(&seed, IS_GATHER), cols = 1 + kv_below(&seed, COLS), at = kv_below(&seed, 200);
        const uint8_t *rows[IS_GATHER], *ahead[IS_GATHER];

        for (size_t r = 0; r < IS_GATHER; r++) {
            rows[r] = src + kv_below(&seed, sizeof src - 200 - 2 * COLS);
            ahead[r] = src + kv_below(&seed, sizeof src);
        }
        memset(want, 0x33, sizeof want);
        memset(got, 0x33, sizeof got);
        is_kernels_scalar.gather16(rows, NULL, at, want + 1, STEP, n, cols);
        k->gather16(rows, i % 3 ? ahead : NULL, at, got + 1, STEP, n, cols);
        if (memcmp(want, got, sizeof want)) fail_msg("%s: %zu rows x %zu columns differ", k->name, n, cols);
    }
}

/* Columns leave in random portions: after each, the lines that are whole so far are there, and nothing else was touched. */
static void test_drain_kernels(void **state)
{
    enum { COLS = 5, STEP = 64 + 320, SPAN = 2000 };
    static _Alignas(64) uint8_t stage[COLS * STEP], all[COLS][SPAN], want[COLS * SPAN + 256], got[sizeof want];
    uint64_t seed = kv_seed();

    for (size_t i = 0; i < sizeof all; i++) (&all[0][0])[i] = (uint8_t)kv_next(&seed);
    for (int i = 0; i < 2000; i++) {
        const is_kernels *k = i % 5 == 0 ? &is_kernels_scalar : is_kernels_at(i % 2 ? IS_SIMD_AVX2 : IS_SIMD_AVX512);
        size_t lead = kv_below(&seed, 130), step = 1700 + kv_below(&seed, 200), done = 0;

        memset(want, 0x44, sizeof want);
        memset(got, 0x44, sizeof got);
        for (int portion = 0; portion < 5; portion++) {
            size_t bytes = portion == 4 ? kv_below(&seed, 320) : 64 * (1 + kv_below(&seed, 5));

            for (size_t c = 0; c < COLS; c++) memcpy(stage + c * STEP + 64, all[c] + done, bytes);
            k->drain(stage + 64, STEP, got + lead + done, step, COLS, bytes, portion == 0);
            k->fence();
            done += bytes;
            for (size_t c = 0; c < COLS; c++) {
                size_t begin = (lead + c * step + 63) & ~(size_t)63, end = (lead + c * step + done) & ~(size_t)63;

                if (begin < end) memcpy(want + begin, all[c] + (begin - lead - c * step), end - begin);
            }
            if (memcmp(want, got, sizeof want)) fail_msg("%s: lead %zu, step %zu, portion %d", k->name, lead, step, portion);
        }
    }
}

/* ---- Composition ----------------------------------------------------------------------------------------------------- */

/* What element (head, dim, token) must be, by its definition. */
static void expected(const is_segment *s, const is_rope *r, uint32_t plane, uint32_t head, uint32_t dim, uint32_t token,
                     uint32_t pos, is_codec to, void *out)
{
    const is_segment_desc *d = is_segment_info(s);
    const is_plane *p = &d->geometry->planes[plane];
    const uint8_t *row = (const uint8_t *)is_segment_head(s, plane, head) + token * is_codec_row_bytes(d->codec, p->head_dim);
    uint32_t i = dim - p->rot_begin, half = p->rot_dim / 2, pair, other;
    float x, y, c, z, value;
    bool second;

    if (p->pairing == IS_PAIR_NONE || dim < p->rot_begin || i >= p->rot_dim) {
        is_kernels_scalar.convert(d->codec, row, p->head_dim, dim, to, out, 1); /* the same type: bits */
        return;
    }
    second = p->pairing == IS_PAIR_HALVES ? i >= half : i % 2;
    pair = p->pairing == IS_PAIR_HALVES ? i % half : i / 2;
    other = p->pairing == IS_PAIR_HALVES ? (second ? dim - half : dim + half) : (second ? dim - 1 : dim + 1);
    is_kernels_scalar.convert(d->codec, row, p->head_dim, dim, IS_CODEC_F32, &x, 1);
    is_kernels_scalar.convert(d->codec, row, p->head_dim, other, IS_CODEC_F32, &y, 1);
    c = is_rope_cos(r, p->freq, pos + token)[pair];
    z = is_rope_sin(r, p->freq, pos + token)[pair];
    value = second ? y * z + x * c : x * c - y * z;
    is_kernels_scalar.convert(IS_CODEC_F32, &value, 1, 0, to, out, 1);
}

/* One plane, random ranges and strides, to rows or columns, into a guarded buffer. */
static void compose_once(const is_segment *s, const is_rope *r, uint32_t plane, bool columns, uint64_t *seed)
{
    const is_segment_desc *d = is_segment_info(s);
    const is_plane *p = &d->geometry->planes[plane];
    uint32_t t0 = kv_below(seed, d->n_tokens + 1), t1 = t0 + kv_below(seed, d->n_tokens - t0 + 1);
    uint32_t h0 = kv_below(seed, p->n_heads + 1), h1 = h0 + kv_below(seed, p->n_heads - h0 + 1);
    uint32_t pos = kv_below(seed, 400), n = t1 - t0, heads = h1 - h0;
    is_codec to = (is_codec)kv_below(seed, 3);
    size_t b = is_codec_bytes(to), head_stride = p->head_dim + kv_below(seed, 5);
    size_t token_stride = head_stride * p->n_heads + kv_below(seed, 9), column_stride = n + kv_below(seed, 9);
    size_t total = columns ? (size_t)p->n_heads * p->head_dim * column_stride : (size_t)d->n_tokens * token_stride;
    uint8_t *dst = is_malloc(total * b + 32), *want = is_malloc(total * b + 32);

    memset(dst, 0x99, total * b + 32);
    memset(want, 0x99, total * b + 32);
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t k = 0; k < p->head_dim; k++)
            for (uint32_t t = 0; t < n; t++) {
                size_t at =
                    columns ? ((size_t)h * p->head_dim + k) * column_stride + t : t * token_stride + h * head_stride + k;

                expected(s, r, plane, h0 + h, k, t0 + t, pos - t0, to, want + 16 + at * b);
            }
    if (columns) OK(is_compose_columns(s, r, plane, t0, t1, h0, h1, pos, to, dst + 16, column_stride));
    else OK(is_compose_rows(s, r, plane, t0, t1, h0, h1, pos, to, dst + 16, token_stride, head_stride));
    if (memcmp(dst, want, total * b + 32))
        fail_msg("plane %u (head %u, rotated %u+%u, pairing %u), tokens %u-%u, heads %u-%u, pos %u, %s to %s, %s", plane,
                 p->head_dim, p->rot_begin, p->rot_dim, p->pairing, t0, t1, h0, h1, pos, is_codec_name(d->codec),
                 is_codec_name(to), columns ? "columns" : "rows");
    is_free(dst);
    is_free(want);
}

static void test_rows_and_columns(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 400; round++) {
        is_geometry *g = kv_random_geometry(&seed);
        is_segment *s = kv_segment(g, (is_codec)kv_below(&seed, IS_CODECS), 1 + kv_below(&seed, 70), 1, &seed);
        is_rope *r;

        OK(is_rope_new(g, 512, &r));
        for (uint32_t plane = 0; plane < g->n_planes; plane++)
            for (int i = 0; i < 4; i++) compose_once(s, r, plane, i % 2, &seed);
        is_rope_free(r);
        is_segment_unref(s);
        is_geometry_free(g);
    }
}

/* A whole plane from several spans, plain and past the caches, must be what the spans give one by one. */
static void plane_once(is_segment *const *segments, const is_rope *r, uint32_t plane, bool columns, bool gaps, uint64_t *seed)
{
    const is_plane *p = &is_segment_info(segments[0])->geometry->planes[plane];
    is_compose_span spans[150]; /* more than the composer keeps on its stack */
    size_t n = 1 + kv_below(seed, kv_below(seed, 20) ? 9 : 150);
    is_codec to = (is_codec)kv_below(seed, 3);
    size_t b = is_codec_bytes(to), total = 0, lead = 64 + 2 * kv_below(seed, 40);
    size_t head_stride = p->head_dim + (gaps ? 3 : 0), token_stride = head_stride * p->n_heads + (gaps ? 5 : 0), column_stride,
           bytes;
    uint8_t *want, *got;

    for (size_t i = 0; i < n; i++) {
        is_segment *s = segments[kv_below(seed, 4)];
        uint32_t all = is_segment_info(s)->n_tokens, t0 = kv_below(seed, 3) ? 0 : kv_below(seed, all),
                 t1 = t0 + 1 + kv_below(seed, all - t0);

        spans[i] = (is_compose_span) { .segment = s, .token_begin = t0, .token_end = t1, .pos = kv_below(seed, 900) };
        total += t1 - t0;
    }
    column_stride = total + (gaps ? 7 : 0);
    bytes = b * (columns ? column_stride * p->n_heads * p->head_dim : token_stride * total) + lead + 64;
    want = is_malloc_aligned(64, bytes);
    got = is_malloc_aligned(64, bytes);
    for (int stream = 0; stream <= 1; stream++) {
        size_t at = 0;

        memset(want, 0xee, bytes);
        memset(got, 0xee, bytes);
        for (size_t i = 0; i < n; i++) {
            const is_compose_span *s = &spans[i];

            if (columns)
                OK(is_compose_columns(s->segment, r, plane, s->token_begin, s->token_end, 0, p->n_heads, s->pos, to,
                                      want + lead + at * b, column_stride));
            else
                OK(is_compose_rows(s->segment, r, plane, s->token_begin, s->token_end, 0, p->n_heads, s->pos, to,
                                   want + lead + at * token_stride * b, token_stride, head_stride));
            at += s->token_end - s->token_begin;
        }
        if (columns) OK(is_compose_plane_columns(spans, n, r, plane, to, got + lead, column_stride, stream));
        else OK(is_compose_plane_rows(spans, n, r, plane, to, got + lead, token_stride, head_stride, stream));
        if (memcmp(want, got, bytes))
            fail_msg("plane %u, %zu spans, %zu tokens, %u heads x %u, lead %zu, %s, gaps %d, stream %d", plane, n, total,
                     p->n_heads, p->head_dim, lead, columns ? "columns" : "rows", gaps, stream);
    }
    is_free(want);
    is_free(got);
}

static void test_planes_of_many_spans(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 300; round++) {
        is_geometry *g =
            round % 10 ? kv_random_geometry(&seed) : kv_geometry(2, 1 + round % 3, 128, IS_PAIR_HALVES, 0, 128, 1e4, 1);
        is_segment *segments[4];
        is_rope *r;

        for (int i = 0; i < 4; i++) /* now and then long enough for several stripes of columns */
            segments[i] = kv_segment(g, (is_codec)(round % 4 ? round % 2 * 2 + 1 : (int)kv_below(&seed, IS_CODECS)), 1 + kv_below(&seed, round % 20 ? 60 : 1500), (uint8_t)i, &seed);
        OK(is_rope_new(g, 2500, &r));
        for (int i = 0; i < 8; i++) plane_once(segments, r, kv_below(&seed, g->n_planes), i & 1, i & 2, &seed);
        is_rope_free(r);
        for (int i = 0; i < 4; i++) is_segment_unref(segments[i]);
        is_geometry_free(g);
    }
}

/* Wide planes cross the blocks' and the stage's sizes. */
static void test_wide_planes(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 6; round++) {
        is_geometry *g =
            kv_geometry(1, round % 2 ? 8 : 1, round % 2 ? 128 : 4096, 1 + round % 2, 0, round % 2 ? 128 : 64, 1e4, 1);
        is_segment *s = kv_segment(g, (is_codec)(round % IS_CODECS), 45, 1, &seed);
        is_rope *r;

        OK(is_rope_new(g, 512, &r));
        for (int i = 0; i < 6; i++) compose_once(s, r, i % 2, i & 2, &seed);
        is_rope_free(r);
        is_segment_unref(s);
        is_geometry_free(g);
    }
}

/* Pieces put side by side are the whole: position and token offset go together. */
static void test_pieces_make_the_whole(void **state)
{
    is_geometry *g = kv_smollm2();
    uint64_t seed = kv_seed();
    is_segment *s = kv_segment(g, IS_CODEC_F16, 28, 1, &seed);
    uint16_t whole[28 * 192], pieces[28 * 192];
    is_rope *r;

    OK(is_rope_new(g, 2048, &r));
    for (uint32_t cut = 0; cut <= 28; cut++) {
        OK(is_compose_rows(s, r, 0, 0, 28, 0, 3, 1000, IS_CODEC_F16, whole, 192, 64));
        OK(is_compose_rows(s, r, 0, 0, cut, 0, 3, 1000, IS_CODEC_F16, pieces, 192, 64));
        OK(is_compose_rows(s, r, 0, cut, 28, 0, 1, 1000 + cut, IS_CODEC_F16, pieces + cut * 192, 192, 64));
        OK(is_compose_rows(s, r, 0, cut, 28, 1, 3, 1000 + cut, IS_CODEC_F16, pieces + cut * 192 + 64, 192, 64));
        assert_memory_equal(whole, pieces, sizeof whole);
    }
    OK(is_compose_rows(s, r, 0, 0, 28, 0, 3, 1001, IS_CODEC_F16, pieces, 192, 64)); /* another position must show */
    assert_memory_not_equal(whole, pieces, sizeof whole);
    is_rope_free(r);
    is_segment_unref(s);
    is_geometry_free(g);
}

static void test_refusals(void **state)
{
    is_geometry *g = kv_smollm2(), *other = kv_geometry(30, 3, 64, IS_PAIR_HALVES, 0, 32, 10000, 1);
    uint64_t seed = kv_seed();
    is_segment *s = kv_segment(g, IS_CODEC_F16, 8, 1, &seed);
    uint16_t dst[8 * 192], before[8 * 192];
    is_rope *r, *r2;

    OK(is_rope_new(g, 64, &r));
    OK(is_rope_new(other, 64, &r2));
    memset(dst, 1, sizeof dst);
    memcpy(before, dst, sizeof dst);
#define REFUSED(...) assert_int_equal(is_compose_rows(__VA_ARGS__, 192, 64), INFERSCALE_E_INVALID)
    REFUSED(NULL, r, 0, 0, 8, 0, 3, 0, IS_CODEC_F16, dst);
    REFUSED(s, r, 60, 0, 8, 0, 3, 0, IS_CODEC_F16, dst);
    REFUSED(s, r, 0, 0, 9, 0, 3, 0, IS_CODEC_F16, dst);
    REFUSED(s, r, 0, 5, 4, 0, 3, 0, IS_CODEC_F16, dst);
    REFUSED(s, r, 0, 0, 8, 0, 4, 0, IS_CODEC_F16, dst);
    REFUSED(s, r, 0, 0, 8, 3, 2, 0, IS_CODEC_F16, dst);
    REFUSED(s, r, 0, 0, 8, 0, 3, 57, IS_CODEC_F16, dst);
    REFUSED(s, r, 0, 0, 8, 0, 3, UINT32_MAX, IS_CODEC_F16, dst);
    REFUSED(s, r, 0, 0, 8, 0, 3, 0, IS_CODEC_INT8, dst);
    REFUSED(s, r, 0, 0, 8, 0, 3, 0, IS_CODEC_F16, NULL);
    REFUSED(s, NULL, 0, 0, 8, 0, 3, 0, IS_CODEC_F16, dst);
    REFUSED(s, r2, 0, 0, 8, 0, 3, 0, IS_CODEC_F16, dst);
    assert_int_equal(is_compose_columns(s, r, 0, 0, 9, 0, 3, 0, IS_CODEC_F16, dst, 8), INFERSCALE_E_INVALID);
    assert_int_equal(is_compose_columns(s, r, 0, 0, 8, 0, 3, 57, IS_CODEC_F16, dst, 8), INFERSCALE_E_INVALID);
    assert_memory_equal(dst, before, sizeof dst);
    {
        is_segment *narrow = kv_segment(other, IS_CODEC_F16, 8, 2, &seed);
        is_geometry *small = kv_geometry(1, 3, 32, IS_PAIR_HALVES, 0, 32, 10000, 1);
        is_segment *foreign = kv_segment(small, IS_CODEC_F16, 8, 3, &seed);
        is_compose_span spans[2] = { { .segment = s, .token_end = 8 }, { .segment = foreign, .token_end = 8, .pos = 8 } };

        assert_int_equal(is_compose_plane_rows(spans, 2, r, 1, IS_CODEC_F16, dst, 192, 64, true), INFERSCALE_E_INVALID);
        assert_int_equal(is_compose_plane_columns(spans, 2, r, 1, IS_CODEC_F16, dst, 16, true), INFERSCALE_E_INVALID);
        spans[1].segment = narrow; /* same shape, another rotation */
        assert_int_equal(is_compose_plane_rows(spans, 2, r, 0, IS_CODEC_F16, dst, 192, 64, false), INFERSCALE_E_INVALID);
        spans[1].segment = NULL;
        assert_int_equal(is_compose_plane_rows(spans, 2, r, 0, IS_CODEC_F16, dst, 192, 64, false), INFERSCALE_E_INVALID);
        assert_int_equal(is_compose_plane_rows(spans, 0, r, 0, IS_CODEC_F16, dst, 192, 64, false), INFERSCALE_E_INVALID);
        assert_memory_equal(dst, before, sizeof dst);
        is_segment_unref(narrow);
        is_segment_unref(foreign);
        is_geometry_free(small);
    }
    OK(is_compose_rows(s, NULL, 1, 0, 8, 0, 3, UINT32_MAX, IS_CODEC_F16, dst, 192,
                       64)); /* V needs neither table nor position */
    OK(is_compose_rows(s, r, 0, 8, 8, 0, 3, 64, IS_CODEC_F16, dst, 192, 64));            /* nothing */
    is_rope_free(r);
    is_rope_free(r2);
    is_segment_unref(s);
    is_geometry_free(g);
    is_geometry_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotate_kernels),
        cmocka_unit_test(test_copy_and_transpose_kernels),
        cmocka_unit_test(test_stream_kernels),
        cmocka_unit_test(test_gather_kernels),
        cmocka_unit_test(test_drain_kernels),
        cmocka_unit_test(test_rows_and_columns),
        cmocka_unit_test(test_planes_of_many_spans),
        cmocka_unit_test(test_wide_planes),
        cmocka_unit_test(test_pieces_make_the_whole),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
