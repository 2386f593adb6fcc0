/* compose.c - the hot path of serving: stored rows to an engine's cache rows.
 *
 * What costs time here is memory, not arithmetic. Three things were worth having, measured on 32 MB of SmolLM2's rows (memcpy
 * 11.7 GB/s, the obvious loop 4.6):
 *
 *   - Stores past the caches. An ordinary store first reads the line that it will overwrite whole. Destinations are not aligned
 *     (an engine's state has 12-byte frames between planes), so rows are made in a small staging buffer at the destination's
 *     own misalignment and leave it as whole lines; the rest of a line waits for the next block.
 *   - Small blocks (about 2 KB), so that reading the next block overlaps with writing the last.
 *   - Reading ahead by hand, across the end of a segment: the hardware's own reading ahead starts anew in every piece, and a
 *     piece (one plane of one fact) is only 10 KB. */
#include "kv/compose.h"

#include <string.h>

#include "base/mem.h"
#include "kv/int4_rows.h"
#include "kv/kernels.h"
#include "kv/rope_table.h"
#include "kv/segment_layout.h"

enum {
    BLOCK_BYTES = 3 << 9,  /* destination bytes of a block of tokens */
    INT4_BYTES = 3 << 11,  /* the same of rows in int4, several of which are decoded at a time */
    AHEAD_BYTES = 12 << 10, /* how far reading ahead is ahead */
    STAGE_BYTES = 16 << 10, /* one token's row of 4,096 f32 fits */
    LINE = 64,
    STRIPE_COLS = 64,       /* columns made at a time, */
    STRIPE_BYTES = 256,     /* and bytes of each */
    STRIPE_STEP = STRIPE_BYTES + LINE,
    AHEAD_TOKENS = 2 * IS_GATHER, /* how far reading ahead is ahead where columns are made */
};

/* One span, resolved: what the loops need and nothing that would make them wait for a segment's own memory. */
typedef struct run {
    const uint8_t *src;  /* the first token of the first head wanted */
    size_t src_row;      /* bytes of one head of one token */
    size_t src_head;     /* bytes from head to head */
    uint32_t n, pos;
    is_codec from;
} run;

enum { RUNS_ON_STACK = 128 };

/* What all spans of a call share. */
typedef struct compose_job {
    const is_kernels *k;
    const is_plane *p;
    const is_rope_set *set; /* NULL = nothing rotates */
    bool int4;              /* some rows are */
    run *runs, on_stack[RUNS_ON_STACK];
    size_t n_runs;
    uint32_t head_begin, n_heads, head_dim;
    is_codec to;
    size_t dst_row; /* bytes of one head of one token */
} compose_job;

static bool same_plane(const is_plane *a, const is_plane *b)
{
    return a->n_heads == b->n_heads && a->head_dim == b->head_dim && a->pairing == b->pairing && a->freq == b->freq &&
           a->rot_begin == b->rot_begin && a->rot_dim == b->rot_dim;
}

static is_status resolve(compose_job *j, const is_compose_span *s, const is_geometry *g, const is_rope *rope, uint32_t plane,
                         run *out)
{
    const is_segment *seg = s->segment;

    if (!seg || plane >= seg->geometry->n_planes ||
        (seg->geometry != g && !same_plane(&seg->geometry->planes[plane], j->p)))
        return is_fail(INFERSCALE_E_INVALID,
                       "segments of different models in one composition (plane %u); compose each kind by itself", plane);
    if (!seg->payload) return is_fail(INFERSCALE_E_INVALID, "a segment without its rows cannot be composed; read the whole of it");
    if (s->token_begin > s->token_end || s->token_end > seg->desc.n_tokens)
        return is_fail(INFERSCALE_E_INVALID, "tokens %u to %u of a segment of %u; ask for tokens that are there",
                       s->token_begin, s->token_end, seg->desc.n_tokens);
    out->n = s->token_end - s->token_begin;
    out->pos = s->pos;
    out->from = seg->desc.codec;
    j->int4 = j->int4 || out->from == IS_CODEC_INT4;
    out->src_row = is_codec_row_bytes(out->from, j->head_dim);
    out->src_head = seg->desc.n_tokens * out->src_row;
    out->src = seg->payload + seg->plane_at[plane] + j->head_begin * out->src_head + s->token_begin * out->src_row;
    if (j->p->pairing == IS_PAIR_NONE || !out->n) return INFERSCALE_OK;
    j->set = is_rope_set_for(rope, j->p, s->pos, out->n);
    return j->set ? INFERSCALE_OK : INFERSCALE_E_INVALID;
}

/* Resolves and checks all spans before anything is written. head_end = UINT32_MAX: all heads. finish() is due even on failure.
 */
static is_status prepare(compose_job *j, const is_compose_span *spans, size_t n, const is_rope *rope, uint32_t plane,
                         uint32_t head_begin, uint32_t head_end, is_codec to, const void *dst)
{
    const is_segment *first = n ? spans[0].segment : NULL;

    j->runs = j->on_stack;
    if (!dst || !first || !is_codec_plain(to) || plane >= first->geometry->n_planes)
        return is_fail(INFERSCALE_E_INVALID,
                       "composing needs segments, a destination, a plane of them, and f32, f16 or bf16; check the "
                       "engine's geometry");
    j->p = &first->geometry->planes[plane];
    if (head_end == UINT32_MAX) head_end = j->p->n_heads;
    if (head_begin > head_end || head_end > j->p->n_heads)
        return is_fail(INFERSCALE_E_INVALID, "heads %u to %u of %u; ask for heads that are there", head_begin, head_end,
                       j->p->n_heads);
    j->k = is_kernels_best();
    j->set = NULL;
    j->int4 = false;
    j->head_begin = head_begin;
    j->n_heads = head_end - head_begin;
    j->head_dim = j->p->head_dim;
    j->to = to;
    j->dst_row = is_codec_row_bytes(to, j->head_dim);
    if (n > RUNS_ON_STACK && !(j->runs = is_malloc(n * sizeof *j->runs)))
        return is_fail(INFERSCALE_E_NOMEM, "out of memory composing %zu segments; use fewer facts", n);
    for (j->n_runs = 0; j->n_runs < n; j->n_runs++)
        IS_TRY(resolve(j, &spans[j->n_runs], first->geometry, rope, plane, &j->runs[j->n_runs]));
    return INFERSCALE_OK;
}

static void finish(compose_job *j)
{
    if (j->runs != j->on_stack) is_free(j->runs);
}

/* ---- Reading ahead --------------------------------------------------------------------------------------------------- */

/* The token that is about AHEAD_BYTES further on than the one being worked on, in this span or a later one. */
typedef struct ahead {
    size_t run;
    uint32_t token;
} ahead;

static void ahead_move(const compose_job *j, ahead *a, uint32_t n)
{
    while (a->run < j->n_runs) {
        uint32_t left = j->runs[a->run].n - a->token;

        if (n < left) {
            a->token += n;
            return;
        }
        n -= left;
        a->run++;
        a->token = 0;
    }
}

static ahead ahead_start(const compose_job *j)
{
    ahead a = { 0 };
    size_t row = j->n_runs ? j->runs[0].src_row * j->n_heads : 0;

    ahead_move(j, &a, (uint32_t)(AHEAD_BYTES / (row ? row : 1)) + 1);
    return a;
}

/* How many of n tokens from there on lie in one span. */
static uint32_t ahead_limit(const compose_job *j, const ahead *a, uint32_t n)
{
    uint32_t left = a->run < j->n_runs ? j->runs[a->run].n - a->token : n;

    return n < left ? n : left;
}

/* ---- A block --------------------------------------------------------------------------------------------------------- */

/* Tokens t .. t+n-1 of a span, heads head .. head+n_heads-1 of the job, to rows. a may be NULL. */
static void run_block(const compose_job *j, const run *s, uint32_t head, uint32_t n_heads, uint32_t t, uint32_t n, uint8_t *dst,
                      size_t dst_step, size_t dst_head, const ahead *a)
{
    is_rows rows = {
        .src = s->src + head * s->src_head + t * s->src_row, .dst = dst, .src_step = s->src_row, .dst_step = dst_step,
        .src_head = s->src_head, .dst_head = dst_head, .n_rows = n, .n_heads = n_heads,
    };

    if (a && a->run < j->n_runs) {
        rows.ahead = j->runs[a->run].src + a->token * j->runs[a->run].src_row;
        rows.ahead_head = j->runs[a->run].src_head;
    }
    if (j->set) {
        const float *row = j->set->rows + ((size_t)s->pos + t) * 2 * j->set->half;
        is_rotate r = {
            .rows = rows,
            .cos = row,
            .sin = row + j->set->half,
            .table_step = 2 * (size_t)j->set->half,
            .from = s->from,
            .to = j->to,
            .head_dim = j->head_dim,
            .rot_begin = j->p->rot_begin,
            .rot_dim = j->p->rot_dim,
            .pairing = j->p->pairing,
            .how = is_codec_plain(s->from) ? j->set->how : IS_ROTATE_F32, /* other bits than the engine's anyway */
        };

        is_kernels_rotate(j->k, &r);
    } else if (s->from == j->to) {
        j->k->copy(&rows, s->src_row);
    } else {
        j->k->convert_rows(s->from, j->to, &rows, j->head_dim);
    }
}

static uint32_t block_tokens(size_t bytes, size_t row)
{
    return row && bytes / row > 1 ? (uint32_t)(bytes / row) : 1;
}

static uint32_t rows_block(const compose_job *j)
{
    return block_tokens(j->int4 ? INT4_BYTES : BLOCK_BYTES, j->dst_row * j->n_heads);
}

/* ---- Rows ------------------------------------------------------------------------------------------------------------ */

static void rows_plain(const compose_job *j, uint8_t *dst, size_t token_step, size_t head_step)
{
    uint32_t block = rows_block(j);
    ahead a = ahead_start(j);

    for (const run *s = j->runs; s < j->runs + j->n_runs; s++) {
        for (uint32_t t = 0, m; t < s->n; t += m, dst += m * token_step) {
            m = ahead_limit(j, &a, s->n - t < block ? s->n - t : block);
            run_block(j, s, 0, j->n_heads, t, m, dst, token_step, head_step, &a);
            ahead_move(j, &a, m);
        }
    }
}

/* Rows without gaps, through the stage. `fill` bytes of it wait to be written to `line`, an aligned address; of the first line
 * only what is behind `skip` is ours. */
static void rows_stream(const compose_job *j, uint8_t *dst)
{
    _Alignas(LINE) uint8_t stage[STAGE_BYTES + LINE];
    size_t row = j->dst_row * j->n_heads, skip = (uintptr_t)dst & (LINE - 1), fill = skip;
    uint32_t block = rows_block(j);
    uint8_t *line = dst - skip;
    ahead a = ahead_start(j);

    for (const run *s = j->runs; s < j->runs + j->n_runs; s++) {
        for (uint32_t t = 0, m; t < s->n; t += m) {
            size_t whole;

            m = ahead_limit(j, &a, s->n - t < block ? s->n - t : block);
            run_block(j, s, 0, j->n_heads, t, m, stage + fill, row, j->dst_row, &a);
            ahead_move(j, &a, m);
            fill += m * row;
            whole = fill & ~(size_t)(LINE - 1);
            if (!whole) continue;
            j->k->stream(line + skip, stage + skip, whole - skip);
            line += whole;
            fill -= whole;
            skip = 0;
            memcpy(stage, stage + whole, LINE); /* the unfinished line, whole because that is one move */
        }
    }
    if (fill > skip) memcpy(line + skip, stage + skip, fill - skip);
    j->k->fence();
}

is_status is_compose_plane_rows(const is_compose_span *spans, size_t n_spans, const is_rope *rope, uint32_t plane,
                                is_codec dst_type, void *dst, size_t token_stride, size_t head_stride, bool stream)
{
    is_status st;
    compose_job j;
    size_t b = is_codec_bytes(dst_type);

    st = prepare(&j, spans, n_spans, rope, plane, 0, UINT32_MAX, dst_type, dst);
    if (st != INFERSCALE_OK) goto done;
    if (stream && head_stride == j.head_dim && token_stride == (size_t)j.head_dim * j.n_heads &&
        j.dst_row * j.n_heads <= STAGE_BYTES)
        rows_stream(&j, dst);
    else
        rows_plain(&j, dst, token_stride * b, head_stride * b);
done:
    finish(&j);
    return st;
}

is_status is_compose_rows(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                          uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst,
                          size_t token_stride, size_t head_stride)
{
    is_compose_span span = { .segment = s, .token_begin = token_begin, .token_end = token_end, .pos = pos };
    compose_job j;
    size_t b = is_codec_bytes(dst_type);

    IS_TRY(prepare(&j, &span, 1, rope, plane, head_begin, head_end, dst_type, dst)); /* one run: nothing to free */
    rows_plain(&j, dst, token_stride * b, head_stride * b);
    return INFERSCALE_OK;
}

/* ---- Columns --------------------------------------------------------------------------------------------------------- */

typedef void (*transpose_fn)(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols);

static transpose_fn transpose_for(const compose_job *j)
{
    return is_codec_bytes(j->to) == 2 ? j->k->transpose16 : j->k->transpose32;
}

/* One head of one span; what has to be rotated or converted first goes through a stage. */
static void columns_head(const compose_job *j, const run *s, uint32_t head, uint8_t *dst, size_t column_step)
{
    _Alignas(LINE) uint8_t stage[STAGE_BYTES];
    uint32_t block = block_tokens(STAGE_BYTES, j->dst_row);
    transpose_fn transpose = transpose_for(j);

    if (!j->set && s->from == j->to) {
        transpose(s->src + head * s->src_head, j->dst_row, dst, column_step, s->n, j->head_dim);
        return;
    }
    for (uint32_t t = 0, m; t < s->n; t += m) {
        m = s->n - t < block ? s->n - t : block;
        run_block(j, s, head, 1, t, m, stage, j->dst_row, 0, NULL);
        transpose(stage, j->dst_row, dst + t * is_codec_bytes(j->to), column_step, m, j->head_dim);
    }
}

/* Asks for all rows of the span after s. Long ones the hardware reads ahead by itself. */
static void fetch_next(const compose_job *j, const run *s)
{
    size_t bytes = ++s < j->runs + j->n_runs ? s->n * s->src_row : 0;

    if (bytes > 2 * AHEAD_BYTES) return;
    for (uint32_t h = 0; h < j->n_heads; h++)
        for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(s->src + h * s->src_head + i);
}

static void columns_plain(const compose_job *j, uint8_t *dst, size_t column_step)
{
    for (const run *s = j->runs; s < j->runs + j->n_runs; s++) {
        fetch_next(j, s);
        for (uint32_t h = 0; h < j->n_heads; h++)
            columns_head(j, s, h, dst + (size_t)h * j->head_dim * column_step, column_step);
        dst += s->n * is_codec_bytes(j->to);
    }
}

/* Columns on their way to the destination: STRIPE_COLS of them, STRIPE_BYTES of each at a time. They stand in the first-level
 * cache behind the last line of what came before, so that whole lines can leave whatever the destination's alignment. */
typedef struct stripe {
    _Alignas(LINE) uint8_t data[STRIPE_COLS * STRIPE_STEP]; /* of a column: LINE bytes of history, then `bytes` new ones */
    uint8_t *dst;                                          /* where the first column's new bytes go */
    size_t bytes;
    bool first;                                            /* no history yet */
} stripe;

static void stripe_flush(const compose_job *j, stripe *s, size_t column_step, uint32_t n_cols, bool last)
{
    uint8_t *data = s->data + LINE;

    for (uint32_t c = 0; c < n_cols && (s->first || last); c++) { /* lines that are ours in part */
        const uint8_t *from = data + c * STRIPE_STEP;
        uint8_t *to = s->dst + c * column_step;
        size_t over = (uintptr_t)to & (LINE - 1), end = over + s->bytes, tail = end & (LINE - 1);

        if (s->first && over) memcpy(to, from, end < LINE ? s->bytes : LINE - over);
        if (last && !(s->first && over && end < LINE)) memcpy(to + s->bytes - tail, from + s->bytes - tail, tail);
    }
    j->k->drain(data, STRIPE_STEP, s->dst, column_step, n_cols, s->bytes, s->first);
    s->dst += s->bytes;
    s->bytes = 0;
    s->first = false;
}

/* A row of a head where it is stored. */
typedef struct place { const uint8_t *row; is_codec codec; } place;

/* The next tokens' rows of a head; returns how many of n there are. */
static uint32_t next_rows(const compose_job *j, ahead *a, uint32_t head, uint32_t n, place *rows)
{
    uint32_t got = 0;

    while (got < n && a->run < j->n_runs) {
        const run *s = &j->runs[a->run];
        const uint8_t *row = s->src + head * s->src_head + a->token * s->src_row;
        uint32_t m = s->n - a->token < n - got ? s->n - a->token : n - got;

        for (uint32_t i = 0; i < m; i++, row += s->src_row) rows[got++] = (place){ row, s->from };
        ahead_move(j, a, m);
    }
    return got;
}

/* How many of n rows, the first of which is in int4, are in int4 and stand right behind it. */
static uint32_t int4_run(const place *rows, uint32_t n, size_t row_bytes)
{
    uint32_t m = 1;

    while (m < n && rows[m].codec == IS_CODEC_INT4 && rows[m].row == rows[0].row + m * row_bytes) m++;
    return m;
}

/* Values of m such rows, to the stage. */
static void int4_in_type(const compose_job *j, const uint8_t *row, uint32_t m, uint32_t dim,
                         uint32_t n_cols, uint8_t stage[][2 * STRIPE_COLS])
{
    const is_rows rows = {
        .src = row,
        .dst = stage[0],
        .src_step = is_codec_row_bytes(IS_CODEC_INT4, j->head_dim),
        .dst_step = sizeof stage[0],
        .n_rows = m,
        .n_heads = 1,
    };

    is_int4_convert_rows(j->k, j->to, &rows, j->head_dim, dim, n_cols);
}

/* Where values [dim, dim + n_cols) of the rows begin in the destination's type: in the segment, or converted to the stage. */
static void in_type(const compose_job *j, const place *rows, uint32_t n, uint32_t dim, uint32_t n_cols,
                    uint8_t stage[IS_GATHER][2 * STRIPE_COLS], const uint8_t **out)
{
    for (uint32_t i = 0, m; i < n; i += m) {
        const is_codec from = rows[i].codec;

        m = 1;
        out[i] = from == j->to ? rows[i].row + 2 * dim : stage[i];
        if (from == IS_CODEC_INT4) {
            m = int4_run(rows + i, n - i, is_codec_row_bytes(from, j->head_dim));
            for (uint32_t k = 1; k < m; k++) out[i + k] = stage[i + k];
            int4_in_type(j, rows[i].row, m, dim, n_cols, stage + i);
        } else if (from != j->to) {
            j->k->convert(from, rows[i].row, j->head_dim, dim, j->to, stage[i], n_cols);
        }
    }
}

/* 16-bit columns [dim, dim + n_cols) of a head. */
static void columns_stripe(const compose_job *j, uint32_t head, uint32_t dim, uint32_t n_cols, uint8_t *dst, size_t column_step)
{
    _Alignas(LINE) uint8_t stage[IS_GATHER][2 * STRIPE_COLS];
    const uint8_t *values[IS_GATHER], *soon[IS_GATHER];
    place rows[IS_GATHER], soon_rows[IS_GATHER];
    ahead now = { 0 }, later = { 0 };
    stripe s;
    uint32_t n;

    s.dst = dst;
    s.bytes = 0;
    s.first = true;
    ahead_move(j, &later, AHEAD_TOKENS);
    while ((n = next_rows(j, &now, head, IS_GATHER, rows)) > 0) {
        bool more = next_rows(j, &later, head, IS_GATHER, soon_rows) == IS_GATHER;

        for (uint32_t i = 0; more && i < IS_GATHER; i++)
            soon[i] = soon_rows[i].row + is_codec_row_bytes(soon_rows[i].codec, dim);
        in_type(j, rows, n, dim, n_cols, stage, values);
        j->k->gather16(values, more ? soon : NULL, 0, s.data + LINE + s.bytes, STRIPE_STEP, n, n_cols);
        s.bytes += n * 2;
        if (n < IS_GATHER) break;
        if (s.bytes == STRIPE_BYTES) stripe_flush(j, &s, column_step, n_cols, false);
    }
    stripe_flush(j, &s, column_step, n_cols, true);
}

static void columns_stream(const compose_job *j, uint8_t *dst, size_t column_step)
{
    for (uint32_t h = 0; h < j->n_heads; h++)
        for (uint32_t d = 0; d < j->head_dim; d += STRIPE_COLS)
            columns_stripe(j, h, d, j->head_dim - d < STRIPE_COLS ? j->head_dim - d : STRIPE_COLS,
                           dst + ((size_t)h * j->head_dim + d) * column_step, column_step);
    j->k->fence();
}

is_status is_compose_plane_columns(const is_compose_span *spans, size_t n_spans, const is_rope *rope, uint32_t plane,
                                   is_codec dst_type, void *dst, size_t column_stride, bool stream)
{
    size_t column_step = column_stride * is_codec_bytes(dst_type);
    compose_job j;
    is_status st = prepare(&j, spans, n_spans, rope, plane, 0, UINT32_MAX, dst_type, dst);

    if (st == INFERSCALE_OK && stream && !j.set && is_codec_bytes(dst_type) == 2) columns_stream(&j, dst, column_step);
    else if (st == INFERSCALE_OK) columns_plain(&j, dst, column_step);
    finish(&j);
    return st;
}

is_status is_compose_columns(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                             uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst,
                             size_t column_stride)
{
    is_compose_span span = { .segment = s, .token_begin = token_begin, .token_end = token_end, .pos = pos };
    compose_job j;

    IS_TRY(prepare(&j, &span, 1, rope, plane, head_begin, head_end, dst_type, dst));
    columns_plain(&j, dst, column_stride * is_codec_bytes(dst_type));
    return INFERSCALE_OK;
}
