/* bench_compose.c - compose against memcpy, arms interleaved. */
#include "eval/bench_compose.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "eval/stats.h"
#include "kv/compose.h"

enum { K_ROWS = 1, V_ROWS = 2, V_COLUMNS = 4, MAX_REPEATS = 1000, FRAME = 12 };
enum { ARM_COMPOSE, ARM_PIECES, ARM_BLOCK, ARMS };

static const struct { const char *name; int parts;
} layouts[BENCH_COMPOSE_ROWS] = {
    { "rows", K_ROWS | V_ROWS }, { "columns", K_ROWS | V_COLUMNS }, { "k_rows", K_ROWS },
    { "v_rows", V_ROWS },        { "v_columns", V_COLUMNS },
};

typedef struct bench {
    is_geometry *own_geometry;
    const is_geometry *g;
    is_codec codec, to; /* of the segments, of the destination */
    is_rope *rope;
    is_compose_span *spans;        /* [n_segments]; whole segments, owned */
    uint32_t n_segments, n_total;  /* tokens of all */
    uint8_t *dst, *flat;           /* destination, and a contiguous source of the same size */
    size_t bytes;
} bench;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the compose benchmark; ask for fewer or shorter segments");
}

static is_status smollm2(is_geometry **out)
{
    enum { LAYERS = 30 };
    is_geometry *g = is_geometry_new(2 * LAYERS, 1);
    double w[32];

    *out = g;
    for (int i = 0; i < 32; i++) w[i] = pow(100000, -2.0 * i / 64);
    if (!g || is_geometry_add_freqs(g, 32, 1, w) != 0) return no_memory();
    g->n_layers = LAYERS;
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        g->planes[i] = (is_plane) { .layer = i / 2, .is_v = i % 2, .freq = 0xffff, .n_heads = 3, .head_dim = 64 };
        if (i % 2) continue;
        g->planes[i].freq = 0;
        g->planes[i].pairing = IS_PAIR_HALVES;
        g->planes[i].rot_dim = 64;
    }
    return INFERSCALE_OK;
}

/* One segment of random rows. Their values do not matter to the clock as long as they are ordinary numbers. */
static is_status make_segment(const bench *b, uint32_t n_tokens, rng *r, is_segment **out)
{
    is_segment_desc desc = { .codec = b->codec, .n_tokens = n_tokens, .geometry = b->g };
    float **rows = is_calloc(b->g->n_planes, sizeof *rows);
    int32_t *tokens = is_calloc(n_tokens, sizeof *tokens);
    is_status st = rows && tokens ? INFERSCALE_OK : no_memory();

    desc.tokens = tokens;
    for (uint32_t p = 0; p < b->g->n_planes && st == INFERSCALE_OK; p++) {
        size_t n = (size_t)n_tokens * is_plane_width(&b->g->planes[p]);

        rows[p] = is_malloc(n * sizeof **rows);
        if (!rows[p]) st = no_memory();
        for (size_t i = 0; rows[p] && i < n; i++) rows[p][i] = (float)(4 * rng_unit(r) - 2);
    }
    if (st == INFERSCALE_OK) st = is_segment_new(&desc, (const float *const *)rows, out);
    for (uint32_t p = 0; rows && p < b->g->n_planes; p++) is_free(rows[p]);
    is_free(rows);
    is_free(tokens);
    return st;
}

static is_status set_up(bench *b, const bench_compose_options *o)
{
    uint32_t mean = o->n_tokens ? o->n_tokens : 28;
    rng r = rng_stream(o->seed, 0, 0);
    size_t room;

    if (mean > 4096 || o->n_segments > 4096 || o->repeats > MAX_REPEATS)
        return is_fail(INFERSCALE_E_INVALID, "the compose benchmark takes up to 4096 segments of 4096 tokens and %d repeats",
                       MAX_REPEATS);
    b->codec = o->codec;
    b->to = is_codec_plain(o->codec) ? o->codec : IS_CODEC_F16; /* what an engine holds */
    b->g = o->geometry;
    if (!b->g) {
        IS_TRY(smollm2(&b->own_geometry));
        b->g = b->own_geometry;
    }
    b->n_segments = o->n_segments ? o->n_segments : 50;
    b->spans = is_calloc(b->n_segments, sizeof *b->spans);
    if (!b->spans) return no_memory();
    for (uint32_t i = 0; i < b->n_segments; i++) {
        is_segment *made;

        b->spans[i].token_end = mean - mean / 4 + (uint32_t)rng_below(&r, mean / 2 + 1);
        b->spans[i].pos = 32 + b->n_total;
        IS_TRY(make_segment(b, b->spans[i].token_end, &r, &made));
        b->spans[i].segment = made;
        b->n_total += b->spans[i].token_end;
    }
    IS_TRY(is_rope_new(b->g, b->n_total + 64, &b->rope));
    b->bytes = is_geometry_token_bytes(b->g, b->to) * b->n_total;
    room = b->bytes + (size_t)FRAME * (b->g->n_planes + 1);
    b->dst = is_malloc_aligned(64, room);
    b->flat = is_malloc_aligned(64, b->bytes);
    if (!b->dst || !b->flat) return no_memory();
    memset(b->dst, 1, room); /* touched: page faults are not what is measured */
    memset(b->flat, 2, b->bytes);
    return INFERSCALE_OK;
}

static void tear_down(bench *b)
{
    for (uint32_t i = 0; b->spans && i < b->n_segments; i++) is_segment_unref((is_segment *)b->spans[i].segment);
    is_free(b->spans);
    is_rope_free(b->rope);
    is_geometry_free(b->own_geometry);
    is_free(b->dst);
    is_free(b->flat);
}

/* All segments of one plane to dst. *copied grows by what memcpy copies: rows as they are stored.
 */
static is_status run_plane(const bench *b, uint32_t plane, int arm, bool columns, bool stream,
                           uint8_t *dst, size_t *copied)
{
    const is_plane *p = &b->g->planes[plane];
    size_t row = p->n_heads * is_codec_row_bytes(b->codec, p->head_dim);

    if (arm == ARM_COMPOSE && columns)
        return is_compose_plane_columns(b->spans, b->n_segments, b->rope, plane, b->to, dst, b->n_total, stream);
    if (arm == ARM_COMPOSE)
        return is_compose_plane_rows(b->spans, b->n_segments, b->rope, plane, b->to, dst, is_plane_width(p), p->head_dim,
                                     stream);
    for (uint32_t i = 0; i < b->n_segments; i++) {
        size_t n = b->spans[i].token_end * row;

        memcpy(dst, is_segment_head(b->spans[i].segment, plane, 0), n);
        dst += n;
        *copied += n;
    }
    return INFERSCALE_OK;
}

/* One composition. *bytes: what the arm writes to the destination. Planes begin FRAME bytes apart
 * from where the last one ended, as in an engine's state. */
static is_status run(const bench *b, int parts, int arm, size_t *bytes)
{
    bool stream = b->bytes >= IS_COMPOSE_STREAM_BYTES;
    uint8_t *dst = b->dst;
    size_t copied = 0;

    *bytes = 0;
    for (uint32_t plane = 0; plane < b->g->n_planes; plane++) {
        const is_plane *p = &b->g->planes[plane];
        size_t n = (size_t)is_plane_width(p) * b->n_total * is_codec_bytes(b->to);

        if (!(parts & (p->is_v ? V_ROWS | V_COLUMNS : K_ROWS))) continue;
        dst += FRAME;
        if (arm != ARM_BLOCK)
            IS_TRY(run_plane(b, plane, arm, p->is_v && (parts & V_COLUMNS), stream, dst, &copied));
        dst += n;
        *bytes += n;
    }
    if (arm == ARM_BLOCK) memcpy(b->dst + FRAME, b->flat, *bytes);
    if (arm == ARM_PIECES) *bytes = copied;
    return INFERSCALE_OK;
}

/* This thread's time on a processor: what other processes take on a busy machine is not ours. */
static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static is_status measure(const bench *b, uint32_t repeats, bench_compose_row *rows)
{
    double (*ms)[ARMS][MAX_REPEATS] = is_malloc(BENCH_COMPOSE_ROWS * sizeof *ms);
    is_status st = ms ? INFERSCALE_OK : no_memory();

    /* Repeat 0 warms up and is not kept. Every repeat runs every arm, so that a slow moment hits them alike. */
    for (uint32_t i = 0; i <= repeats && st == INFERSCALE_OK; i++) {
        for (int l = 0; l < BENCH_COMPOSE_ROWS && st == INFERSCALE_OK; l++) {
            for (int arm = 0; arm < ARMS && st == INFERSCALE_OK; arm++) {
                double t0 = cpu_ms();

                st = run(b, layouts[l].parts, arm,
                         arm == ARM_PIECES ? &rows[l].memcpy_bytes : &rows[l].bytes);
                if (i) ms[l][arm][i - 1] = cpu_ms() - t0;
            }
        }
    }
    for (int l = 0; l < BENCH_COMPOSE_ROWS && st == INFERSCALE_OK; l++) {
        bench_compose_row *r = &rows[l];

        r->layout = layouts[l].name;
        r->compose_gbps = (double)r->bytes / stats_median(ms[l][ARM_COMPOSE], repeats) / 1e6;
        r->memcpy_gbps = (double)r->memcpy_bytes / stats_median(ms[l][ARM_PIECES], repeats) / 1e6;
        r->block_gbps = (double)r->bytes / stats_median(ms[l][ARM_BLOCK], repeats) / 1e6;
        r->ratio = r->compose_gbps / r->memcpy_gbps;
        r->ratio_block = r->compose_gbps / r->block_gbps;
    }
    is_free(ms);
    return st;
}

is_status bench_compose(const bench_compose_options *options, bench_compose_row rows[BENCH_COMPOSE_ROWS])
{
    uint32_t repeats = options->repeats ? options->repeats : 21;
    bench b = { 0 };
    is_status st;

    memset(rows, 0, BENCH_COMPOSE_ROWS * sizeof *rows);
    st = set_up(&b, options);
    if (st == INFERSCALE_OK) st = measure(&b, repeats < 11 ? 11 : repeats, rows);
    tear_down(&b);
    return st;
}
