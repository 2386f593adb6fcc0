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

#include "kv/kernels.h"
#include "kv/rope_table.h"
#include "kv/segment_layout.h"

enum {
    BLOCK_BYTES = 2 << 10,  /* destination bytes of a block of tokens */
    AHEAD_BYTES = 12 << 10, /* how far reading ahead is ahead */
    STAGE_BYTES = 16 << 10, /* one token's row of 4,096 f32 fits */
    LINE = 64,
    TILE_RUN = 2 << 10,     /* bytes of one column in a tile of columns */
    TILE_STEP = TILE_RUN + LINE, /* not a power of two: columns must not all fall into the same cache set */
};

/* What all spans of a call share. */
typedef struct compose_job {
    const is_kernels *k;
    const is_rope *rope;
    const is_compose_span *spans;
    size_t n_spans;
    uint32_t plane, head_begin, n_heads, head_dim;
    is_codec to;
    size_t dst_row; /* bytes of one head of one token */
} compose_job;

static const is_plane *plane_of(const compose_job *j, const is_compose_span *s)
{
    return &s->segment->geometry->planes[j->plane];
}

static is_status check_span(const compose_job *j, const is_compose_span *s)
{
    const is_plane *p;

    if (!s->segment || j->plane >= s->segment->geometry->n_planes)
        return is_fail(INFERSCALE_E_INVALID, "composing plane %u of a segment that has none such; check the engine's geometry", j->plane);
    p = plane_of(j, s);
    if (s->token_begin > s->token_end || s->token_end > s->segment->desc.n_tokens || j->head_begin > p->n_heads ||
        j->n_heads > p->n_heads - j->head_begin || j->head_dim != p->head_dim)
        return is_fail(INFERSCALE_E_INVALID, "tokens %u to %u, %u heads x %u from %u on are not in a segment of %u tokens and %u heads x %u; "
                       "ask for rows that are there", s->token_begin, s->token_end, j->n_heads, j->head_dim, j->head_begin,
                       s->segment->desc.n_tokens, p->n_heads, p->head_dim);
    if (p->pairing == IS_PAIR_NONE || s->token_begin == s->token_end) return INFERSCALE_OK;
    return is_rope_set_for(j->rope, p, s->pos, s->token_end - s->token_begin) ? INFERSCALE_OK : INFERSCALE_E_INVALID;
}

/* Fills in what is left and checks every span before anything is written. head_end = UINT32_MAX: all heads. */
static is_status prepare(compose_job *j, uint32_t head_begin, uint32_t head_end, const void *dst)
{
    if (!dst || !j->n_spans || (unsigned)j->to > IS_CODEC_BF16 || head_begin > head_end || !j->spans[0].segment ||
        j->plane >= j->spans[0].segment->geometry->n_planes)
        return is_fail(INFERSCALE_E_INVALID, "composing needs segments, a destination, a plane and heads of them, and f32, f16 or bf16; "
                       "check the engine's geometry");
    j->k = is_kernels_best();
    j->head_begin = head_begin;
    j->n_heads = (head_end == UINT32_MAX ? plane_of(j, &j->spans[0])->n_heads : head_end) - head_begin;
    j->head_dim = plane_of(j, &j->spans[0])->head_dim;
    j->dst_row = j->head_dim * is_codec_bytes(j->to);
    for (size_t i = 0; i < j->n_spans; i++) IS_TRY(check_span(j, &j->spans[i]));
    return INFERSCALE_OK;
}

static const uint8_t *source(const compose_job *j, const is_compose_span *s, uint32_t head, uint32_t t, size_t src_row)
{
    return (const uint8_t *)is_segment_head(s->segment, j->plane, j->head_begin + head) + (s->token_begin + t) * src_row;
}

/* Tokens t .. t+n-1 of a span, heads head .. head+n_heads-1 of the job, to rows. */
static void run_block(const compose_job *j, const is_compose_span *s, uint32_t head, uint32_t n_heads, uint32_t t, uint32_t n,
                      uint8_t *dst, size_t dst_step, size_t dst_head)
{
    const is_plane *p = plane_of(j, s);
    is_codec from = s->segment->desc.codec;
    size_t src_row = p->head_dim * is_codec_bytes(from);
    is_rows rows = {
        .src = source(j, s, head, t, src_row), .dst = dst, .src_step = src_row, .dst_step = dst_step,
        .src_head = (size_t)is_segment_head_bytes(s->segment, p), .dst_head = dst_head, .n_rows = n, .n_heads = n_heads,
    };

    if (p->pairing != IS_PAIR_NONE) {
        const is_rope_set *set = &j->rope->sets[p->freq];
        const float *row = set->rows + ((size_t)s->pos + t) * 2 * set->half;
        is_rotate r = {
            .rows = rows, .cos = row, .sin = row + set->half, .table_step = 2 * (size_t)set->half, .from = from, .to = j->to,
            .head_dim = p->head_dim, .rot_begin = p->rot_begin, .rot_dim = p->rot_dim, .pairing = p->pairing,
        };

        j->k->rotate(&r);
    } else if (from == j->to) {
        j->k->copy(&rows, src_row);
    } else {
        for (uint32_t h = 0; h < n_heads; h++)
            for (uint32_t i = 0; i < n; i++)
                j->k->convert(from, (const uint8_t *)rows.src + h * rows.src_head + i * src_row, j->to, dst + h * dst_head + i * dst_step,
                              p->head_dim);
    }
}

/* ---- Reading ahead -------------------------------------------------------------------------------------------------------- */

typedef struct ahead {
    const compose_job *j;
    size_t span;
    uint32_t token;
} ahead;

/* Moves on by n tokens; with fetch, asks for their rows. */
static void ahead_move(ahead *a, uint32_t n, bool fetch)
{
    while (n && a->span < a->j->n_spans) {
        const is_compose_span *s = &a->j->spans[a->span];
        uint32_t left = s->token_end - s->token_begin - a->token, m = n < left ? n : left;
        size_t src_row = a->j->head_dim * is_codec_bytes(s->segment->desc.codec);

        for (uint32_t h = 0; fetch && h < a->j->n_heads; h++) {
            const uint8_t *p = source(a->j, s, h, a->token, src_row);

            for (size_t i = 0; i < m * src_row; i += LINE) __builtin_prefetch(p + i);
        }
        n -= m;
        a->token += m;
        if (m < left) return;
        a->span++;
        a->token = 0;
    }
}

static ahead ahead_start(const compose_job *j)
{
    ahead a = { .j = j };
    size_t row = j->dst_row * j->n_heads;

    ahead_move(&a, (uint32_t)(AHEAD_BYTES / (row ? row : 1)) + 1, false);
    return a;
}

static uint32_t block_tokens(size_t bytes, size_t row)
{
    return row && bytes / row > 1 ? (uint32_t)(bytes / row) : 1;
}

/* ---- Rows ----------------------------------------------------------------------------------------------------------------- */

static void rows_plain(const compose_job *j, uint8_t *dst, size_t token_step, size_t head_step)
{
    uint32_t block = block_tokens(BLOCK_BYTES, j->dst_row * j->n_heads);
    ahead a = ahead_start(j);

    for (size_t i = 0; i < j->n_spans; i++) {
        const is_compose_span *s = &j->spans[i];
        uint32_t n = s->token_end - s->token_begin;

        for (uint32_t t = 0, m; t < n; t += m, dst += m * token_step) {
            m = n - t < block ? n - t : block;
            ahead_move(&a, m, true);
            run_block(j, s, 0, j->n_heads, t, m, dst, token_step, head_step);
        }
    }
}

/* Rows without gaps, through the stage. `fill` bytes of it wait to be written to `line`, an aligned address; of the first line
 * only what is behind `skip` is ours. */
static void rows_stream(const compose_job *j, uint8_t *dst)
{
    _Alignas(LINE) uint8_t stage[STAGE_BYTES + LINE];
    size_t row = j->dst_row * j->n_heads, skip = (uintptr_t)dst & (LINE - 1), fill = skip;
    uint32_t block = block_tokens(BLOCK_BYTES, row);
    uint8_t *line = dst - skip;
    ahead a = ahead_start(j);

    for (size_t i = 0; i < j->n_spans; i++) {
        const is_compose_span *s = &j->spans[i];
        uint32_t n = s->token_end - s->token_begin;

        for (uint32_t t = 0, m; t < n; t += m) {
            size_t whole;

            m = n - t < block ? n - t : block;
            ahead_move(&a, m, true);
            run_block(j, s, 0, j->n_heads, t, m, stage + fill, row, j->dst_row);
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

is_status is_compose_plane_rows(const is_compose_span *spans, size_t n_spans, const is_rope *rope, uint32_t plane, is_codec dst_type,
                                void *dst, size_t token_stride, size_t head_stride, bool stream)
{
    compose_job j = { .rope = rope, .spans = spans, .n_spans = n_spans, .plane = plane, .to = dst_type };
    size_t b = is_codec_bytes(dst_type);

    IS_TRY(prepare(&j, 0, UINT32_MAX, dst));
    if (stream && head_stride == j.head_dim && token_stride == (size_t)j.head_dim * j.n_heads && j.dst_row * j.n_heads <= STAGE_BYTES)
        rows_stream(&j, dst);
    else
        rows_plain(&j, dst, token_stride * b, head_stride * b);
    return INFERSCALE_OK;
}

is_status is_compose_rows(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                          uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst, size_t token_stride,
                          size_t head_stride)
{
    is_compose_span span = { .segment = s, .token_begin = token_begin, .token_end = token_end, .pos = pos };
    compose_job j = { .rope = rope, .spans = &span, .n_spans = 1, .plane = plane, .to = dst_type };
    size_t b = is_codec_bytes(dst_type);

    IS_TRY(prepare(&j, head_begin, head_end, dst));
    rows_plain(&j, dst, token_stride * b, head_stride * b);
    return INFERSCALE_OK;
}

/* ---- Columns -------------------------------------------------------------------------------------------------------------- */

typedef void (*transpose_fn)(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols);

static transpose_fn transpose_for(const compose_job *j)
{
    return is_codec_bytes(j->to) == 2 ? j->k->transpose16 : j->k->transpose32;
}

/* Bits stay as they are: no rotation, no conversion. */
static bool is_copy(const compose_job *j, const is_compose_span *s)
{
    return plane_of(j, s)->pairing == IS_PAIR_NONE && s->segment->desc.codec == j->to;
}

/* One head of one span; what has to be rotated or converted first goes through a stage. */
static void columns_head(const compose_job *j, const is_compose_span *s, uint32_t head, uint8_t *dst, size_t column_step)
{
    _Alignas(LINE) uint8_t stage[STAGE_BYTES];
    uint32_t n = s->token_end - s->token_begin, block = block_tokens(STAGE_BYTES, j->dst_row);
    transpose_fn transpose = transpose_for(j);

    if (is_copy(j, s)) {
        transpose(source(j, s, head, 0, j->dst_row), j->dst_row, dst, column_step, n, j->head_dim);
        return;
    }
    for (uint32_t t = 0, m; t < n; t += m) {
        m = n - t < block ? n - t : block;
        run_block(j, s, head, 1, t, m, stage, j->dst_row, 0);
        transpose(stage, j->dst_row, dst + t * is_codec_bytes(j->to), column_step, m, j->head_dim);
    }
}

static void columns_plain(const compose_job *j, uint8_t *dst, size_t column_step)
{
    ahead a = ahead_start(j);

    for (size_t i = 0; i < j->n_spans; i++) {
        const is_compose_span *s = &j->spans[i];
        uint32_t n = s->token_end - s->token_begin;

        ahead_move(&a, n, true);
        for (uint32_t h = 0; h < j->n_heads; h++) columns_head(j, s, h, dst + (size_t)h * j->head_dim * column_step, column_step);
        dst += n * is_codec_bytes(j->to);
    }
}

/* One source line of dims (LINE bytes) of up to TILE_RUN bytes of tokens: columns are made in a tile in the second-level cache and
 * leave it as whole lines. */
typedef struct tile {
    _Alignas(LINE) uint8_t data[LINE / 2 * TILE_STEP];
    size_t run;      /* bytes of each column in it */
} tile;

static void tile_flush(const compose_job *j, tile *t, uint8_t *dst, size_t column_step, uint32_t n_dims)
{
    for (uint32_t d = 0; d < n_dims; d++) j->k->stream(dst + d * column_step, t->data + d * TILE_STEP, t->run);
}

static void columns_stream_dims(const compose_job *j, uint32_t head, uint32_t dim, uint32_t n_dims, uint8_t *dst, size_t column_step)
{
    size_t b = is_codec_bytes(j->to);
    transpose_fn transpose = transpose_for(j);
    ahead a = ahead_start(j);
    tile out;

    out.run = 0;
    for (size_t i = 0; i < j->n_spans; i++) {
        const is_compose_span *s = &j->spans[i];
        uint32_t n = s->token_end - s->token_begin;

        if (!head && !dim) ahead_move(&a, n, true);
        for (uint32_t t = 0, m; t < n; t += m) {
            uint32_t room = (uint32_t)((TILE_RUN - out.run) / b);

            m = n - t < room ? n - t : room;
            transpose(source(j, s, head, t, j->dst_row) + dim * b, j->dst_row, out.data + out.run, TILE_STEP, m, n_dims);
            out.run += m * b;
            if (out.run < TILE_RUN) continue;
            tile_flush(j, &out, dst, column_step, n_dims);
            dst += out.run;
            out.run = 0;
        }
    }
    if (out.run) tile_flush(j, &out, dst, column_step, n_dims);
}

static void columns_stream(const compose_job *j, uint8_t *dst, size_t column_step)
{
    uint32_t dims = (uint32_t)(LINE / is_codec_bytes(j->to));

    for (uint32_t h = 0; h < j->n_heads; h++)
        for (uint32_t d = 0; d < j->head_dim; d += dims)
            columns_stream_dims(j, h, d, j->head_dim - d < dims ? j->head_dim - d : dims,
                                dst + ((size_t)h * j->head_dim + d) * column_step, column_step);
    j->k->fence();
}

is_status is_compose_plane_columns(const is_compose_span *spans, size_t n_spans, const is_rope *rope, uint32_t plane,
                                   is_codec dst_type, void *dst, size_t column_stride, bool stream)
{
    compose_job j = { .rope = rope, .spans = spans, .n_spans = n_spans, .plane = plane, .to = dst_type };
    size_t column_step = column_stride * is_codec_bytes(dst_type);

    IS_TRY(prepare(&j, 0, UINT32_MAX, dst));
    for (size_t i = 0; i < n_spans; i++) stream = stream && is_copy(&j, &spans[i]);
    if (stream) columns_stream(&j, dst, column_step);
    else columns_plain(&j, dst, column_step);
    return INFERSCALE_OK;
}

is_status is_compose_columns(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                             uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst, size_t column_stride)
{
    is_compose_span span = { .segment = s, .token_begin = token_begin, .token_end = token_end, .pos = pos };
    compose_job j = { .rope = rope, .spans = &span, .n_spans = 1, .plane = plane, .to = dst_type };

    IS_TRY(prepare(&j, head_begin, head_end, dst));
    columns_plain(&j, dst, column_stride * is_codec_bytes(dst_type));
    return INFERSCALE_OK;
}
