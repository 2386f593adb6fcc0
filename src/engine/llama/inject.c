/* inject.c - stored segments into the engine's cache.
 *
 * Stored facts that stand in a row become a sequence-state blob: framing, then each plane's rows in token order, keys rotated
 * to their positions. The engine loads it into a scratch sequence (loading replaces a sequence), the cells are tagged as the
 * live sequence's too, and the scratch tag is dropped: no row moves twice. Window layers get exactly the cells inside the
 * window of the last injected position.
 *
 * Where each sequence has a stream of its own there is no tagging: the blob then holds the whole sequence, with room in front for the
 * cells that were computed before, which are read back and put there.
 *
 * A long stretch in a unified cache goes in pieces, so that memory stays bounded whatever the context. They are large: a transposed V is loaded
 * column by column (thousands of short copies a piece), which costs more than a buffer that fits the caches would save.
 * Measured on 42 MB: pieces of 32 MB written past the caches 16.4 ms in all, of 16 MB 19.5, of 16 MB through the caches 23. */
#include "engine/llama/internal.h"

#include <string.h>

enum { LAYERS_MAX = 512, PIECE_BYTES = 32 << 20, PIECE_TOKENS_MIN = 64 };

bool is_blob_reserve(is_blob *b, size_t bytes)
{
    size_t cap = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
    uint8_t *p;

    if (bytes <= b->cap) return true;
    p = is_malloc_aligned(4096, cap);
    if (!p) return false;
    for (size_t i = 0; i < cap; i += 4096) p[i] = 0; /* page faults now, not in the middle of composing */
    is_free(b->bytes);
    b->bytes = p;
    b->cap = cap;
    return true;
}

/* A buffer that another run is done with: the largest; or none. */
static is_blob blob_take(is_llama *e)
{
    is_blob *best = &e->spare[0], got;

    pthread_mutex_lock(&e->blobs_lock);
    for (int i = 1; i < BLOBS_MAX; i++)
        if (e->spare[i].cap > best->cap) best = &e->spare[i];
    got = *best;
    *best = (is_blob){ 0 };
    pthread_mutex_unlock(&e->blobs_lock);
    return got;
}

void is_blob_give(is_llama *e, is_blob *b)
{
    is_blob *least = &e->spare[0], drop = *b;

    if (!b->bytes) return;
    pthread_mutex_lock(&e->blobs_lock);
    for (int i = 1; i < BLOBS_MAX; i++)
        if (e->spare[i].cap < least->cap) least = &e->spare[i];
    if (least->cap < b->cap) {
        drop = *least;
        *least = *b;
        least->len = 0;
    }
    pthread_mutex_unlock(&e->blobs_lock);
    is_free(drop.bytes);
    *b = (is_blob){ 0 };
}

is_status is_part_check(is_llama *e, const is_part *p)
{
    const is_segment_desc *d = p->segment ? is_segment_info(p->segment) : NULL;

    if (!d) return is_fail(INFERSCALE_E_INVALID, "a stored part of the plan has no segment; plan again");
    if (memcmp(d->fingerprint, e->info.fingerprint, IS_HASH_BYTES) != 0)
        return is_fail(INFERSCALE_E_INVALID,
                       "a segment was computed by another model; %s makes this one's",
                       is_words(IS_CALL_ENCODE));
    if (d->n_tokens != p->n_tokens || memcmp(d->tokens, p->tokens, p->n_tokens * sizeof *p->tokens) != 0)
        return is_fail(INFERSCALE_E_INVALID, "a segment holds %u tokens that are not the %u tokens of its fact; encode the "
                       "fact again",
                       d->n_tokens, p->n_tokens);
    if (d->geometry != e->geometry && !is_geometry_equal(d->geometry, e->geometry))
        return is_fail(INFERSCALE_E_INVALID, "a segment has another cache geometry than this engine; encode the fact again");
    return INFERSCALE_OK;
}

/* A run of stored parts, and the piece of it that is composed at a time. */
typedef struct is_stretch {
    const is_part *parts;
    is_compose_span *spans;     /* [n_parts]: the parts of the piece, made for one block at a time */
    uint32_t n_parts, n_spans;
    uint32_t pos, end;          /* positions [pos, end) of all of it */
    uint32_t from, to;          /* of this piece */
    bool stream;                /* write past the caches */
    bool whole;                 /* in one piece */
} is_stretch;

/* First position that a block holds: all, or those inside the window of the last one. */
static uint32_t first_cell(const is_block *b, uint32_t pos, uint32_t end)
{
    return b->window && end > b->window && end - b->window > pos ? end - b->window : pos;
}

/* What of the segments stands at positions [from, s->to). */
static void fill_spans(is_stretch *s, uint32_t from)
{
    uint32_t at = s->pos;

    s->n_spans = 0;
    for (uint32_t i = 0; i < s->n_parts && at < s->to; at += s->parts[i++].n_tokens) {
        uint32_t n = s->parts[i].n_tokens, begin = at < from ? from - at : 0, end = s->to - at < n ? s->to - at : n;

        if (begin < end)
            s->spans[s->n_spans++] = (is_compose_span){ s->parts[i].segment, begin, end, at + begin };
    }
}

static is_status compose_block(is_llama *e, const is_layout *l, const is_block *b, is_stretch *s, uint32_t gap, uint8_t *dst, size_t *bytes)
{
    uint8_t *rows_k[LAYERS_MAX], *rows_v[LAYERS_MAX];
    uint32_t first = first_cell(b, s->pos, s->end), from = first > s->from ? first : s->from, cells;

    if (from > s->to) from = s->to; /* this piece is outside the window */
    cells = s->to - from;
    *bytes = is_block_frame(e->geometry, l, b, dst, from - gap, gap + cells, rows_k, rows_v);
    if (cells == 0) return INFERSCALE_OK;
    fill_spans(s, from);
    for (uint32_t i = 0; i < b->n_k + b->n_v; i++) {
        bool v = i >= b->n_k;
        uint32_t plane = v ? b->v[i - b->n_k] : b->k[i];
        uint8_t *rows = v ? rows_v[i - b->n_k] : rows_k[i];
        const is_plane *p = &e->geometry->planes[plane];

        if (v && l->v_trans)
            IS_TRY(is_compose_plane_columns(s->spans, s->n_spans, e->rope, plane, IS_CODEC_F16, rows + 2 * (size_t)gap, gap + cells,
                                            s->stream));
        else
            IS_TRY(is_compose_plane_rows(s->spans, s->n_spans, e->rope, plane, IS_CODEC_F16,
                                         rows + 2 * (size_t)gap * is_plane_width(p), is_plane_width(p), p->head_dim, s->stream));
    }
    return INFERSCALE_OK;
}

static is_status compose(is_llama *e, const is_layout *l, is_stretch *s, uint32_t gap, is_blob *b)
{
    size_t bytes = 8;

    for (uint32_t i = 0; i < l->n_blocks; i++) bytes += is_block_bytes(e->geometry, l, &l->block[i], gap + s->to - s->from);
    if (!is_blob_reserve(b, bytes)) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a composition of %zu bytes", bytes);
    b->len = is_blob_head(b->bytes);
    for (uint32_t i = 0; i < l->n_blocks; i++) {
        IS_TRY(compose_block(e, l, &l->block[i], s, gap, b->bytes + b->len, &bytes));
        b->len += bytes;
    }
    b->to = s->to;
    b->gap = gap;
    return INFERSCALE_OK;
}

/* Loads the blob into the scratch sequence; frees kept prefixes while there are not enough cells (they are of the serving
 * context). */
static is_status load(is_llama *e, struct llama_context *ctx, int scratch, const is_blob *b, uint32_t tokens)
{
    is_shim_clear();
    is_llama_clear_error();
    for (;;) {
        if (is_shim_state_set(ctx, b->bytes, b->len, scratch) == b->len) return INFERSCALE_OK;
        llama_memory_seq_rm(llama_get_memory(ctx), scratch, -1, -1);
        if (ctx != e->serve || !is_prefix_evict(e, -1)) break;
    }
    return is_fail(INFERSCALE_E_CONTEXT, "no room for %u injected tokens in the engine's context of %u; end other "
                   "conversations, use fewer facts or raise n_ctx", tokens, e->n_ctx);
}

/* Tokens composed at a time. */
static uint32_t piece_tokens(const is_llama *e)
{
    uint64_t row = is_geometry_width(e->geometry) * 2, n = PIECE_BYTES / (row ? row : 1);

    return n < PIECE_TOKENS_MIN ? PIECE_TOKENS_MIN : n > e->n_ctx ? e->n_ctx : (uint32_t)n;
}

bool is_seq_save(is_llama *e, int seq, uint8_t **bytes, size_t *n)
{
    *n = is_shim_state_size(e->serve, seq);
    *bytes = *n ? is_malloc(*n) : NULL;
    if (*bytes && is_shim_state_get(e->serve, *bytes, *n, seq) == *n) return true;
    is_free(*bytes);
    *bytes = NULL;
    return false;
}

bool is_seq_load(is_llama *e, int seq, const uint8_t *bytes, size_t n)
{
    return is_shim_state_set(e->serve, bytes, n, seq) == n;
}

/* The cells that the sequence holds become the first of the blob. Streams have one block. */
static is_status fill_gap(is_llama *e, int seq, const is_blob *b, uint32_t n_cells)
{
    const is_layout *l = &e->layout;
    const is_block *block = &l->block[0];
    uint8_t *rows_k[LAYERS_MAX], *rows_v[LAYERS_MAX], *state, *from;
    size_t len, meta = 8 + 4 + 4 * (size_t)l->n_streams, head = 8 + 4 + 4 * ((size_t)seq + 1);
    uint32_t n = 0;

    if (b->gap == 0) return INFERSCALE_OK;
    if (!is_seq_save(e, seq, &state, &len)) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u cells of a sequence", b->gap);
    if (len == is_block_bytes(e->geometry, l, block, b->gap) + 8) memcpy(&n, state + head - 4, 4);
    if (n != b->gap) {
        is_free(state);
        return is_fail(INFERSCALE_E_ENGINE, "a sequence holds %u cells where %u were computed; run 'inferscale doctor'", n, b->gap);
    }
    is_block_frame(e->geometry, l, block, b->bytes + 8, 0, n_cells, rows_k, rows_v);
    memcpy(b->bytes + meta, state + head, (size_t)n * 12); /* their positions, in whatever order they lie */
    from = state + head + (size_t)n * 12 + 8;
    for (uint32_t i = 0; i < block->n_k + block->n_v; i++) {
        bool v = i >= block->n_k;
        size_t width = is_plane_width(&e->geometry->planes[v ? block->v[i - block->n_k] : block->k[i]]);
        uint8_t *to = v ? rows_v[i - block->n_k] : rows_k[i];

        from += 12;
        if (!v || !l->v_trans) memcpy(to, from, 2 * width * n);
        else for (size_t d = 0; d < width; d++) memcpy(to + 2 * d * n_cells, from + 2 * d * n, 2 * (size_t)n);
        from += 2 * width * n;
    }
    is_free(state);
    return INFERSCALE_OK;
}

/* All of the sequence at once: loading replaces what a stream holds. */
static is_status inject_stream(is_llama *e, int seq, const is_stretch *s, const is_blob *b, is_run_stats *stats)
{
    double t0 = is_now_ms();

    IS_TRY(fill_gap(e, seq, b, b->gap + s->end - s->pos));
    IS_TRY(load(e, e->serve, seq, b, s->end - s->pos));
    stats->inject_ms += is_now_ms() - t0;
    stats->tokens_injected += s->end - s->pos;
    return INFERSCALE_OK;
}

/* The piece [s->from, s->to), composed, into the sequence. */
static is_status inject_piece(is_llama *e, struct llama_context *ctx, int seq, const is_stretch *s, const is_blob *b, is_run_stats *stats)
{
    llama_memory_t mem = llama_get_memory(ctx);
    int scratch = ctx == e->serve ? (int)e->n_seqs - 1 : SEQ_SCRATCH;
    double t0 = is_now_ms();

    IS_TRY(load(e, ctx, scratch, b, s->end - s->pos));
    llama_memory_seq_cp(mem, scratch, seq, -1, -1);
    llama_memory_seq_rm(mem, scratch, -1, -1);
    stats->inject_ms += is_now_ms() - t0;
    stats->tokens_injected += s->to - s->from;
    return INFERSCALE_OK;
}

static is_status stretch_new(is_llama *e, const is_part *parts, uint32_t n, uint32_t pos, is_stretch *s)
{
    *s = (is_stretch){ .parts = parts, .n_parts = n, .pos = pos, .end = pos, .from = pos };
    s->spans = is_malloc(n * sizeof *s->spans);
    if (!s->spans) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u injected facts", n);
    for (uint32_t i = 0; i < n; i++) s->end += parts[i].n_tokens;
    s->stream = (s->end - pos) * is_geometry_width(e->geometry) * 2 >= IS_COMPOSE_STREAM_BYTES;
    return INFERSCALE_OK;
}

/* The end of the piece that begins at s->from. */
static uint32_t piece_end(const is_llama *e, const is_stretch *s)
{
    uint32_t step = piece_tokens(e);

    if (s->whole) return s->end;
    return s->end - s->from > step + step / 2 ? s->from + step : s->end; /* no small rest */
}

is_status is_inject_ahead(is_llama *e, const is_part *parts, uint32_t n, is_blob *ahead)
{
    is_stretch s;
    is_status st;

    IS_TRY(stretch_new(e, parts, n, parts[0].pos, &s));
    s.whole = e->streams;
    s.to = piece_end(e, &s);
    *ahead = blob_take(e);
    st = compose(e, &e->layout, &s, e->streams ? s.pos : 0, ahead);
    is_free(s.spans);
    if (st != INFERSCALE_OK) is_blob_give(e, ahead);
    return st;
}

is_status is_inject(is_llama *e, struct llama_context *ctx, int seq, const is_part *parts, uint32_t n, uint32_t pos, is_blob *ahead,
                    is_run_stats *stats)
{
    const bool streams = ctx == e->serve && e->streams;
    const uint32_t gap = streams && llama_memory_seq_pos_max(llama_get_memory(ctx), seq) >= 0 ? pos : 0;
    is_stretch s;
    is_status st;

    IS_TRY(stretch_new(e, parts, n, pos, &s));
    s.whole = streams;
    for (st = INFERSCALE_OK; s.from < s.end && st == INFERSCALE_OK; s.from = s.to) {
        const is_blob *b = ahead && ahead->len && s.from == pos && ahead->gap == gap ? ahead : &e->blob;
        double t0 = is_now_ms();

        if (is_llama_abort(e)) {
            st = is_fail(INFERSCALE_E_CANCELLED, "cancelled while stored facts were injected");
            break;
        }
        s.to = b == ahead ? ahead->to : piece_end(e, &s);
        if (b == &e->blob) st = compose(e, ctx == e->serve ? &e->layout : &e->layout_capture, &s, gap, &e->blob);
        if (b == &e->blob) stats->compose_ms += is_now_ms() - t0;
        if (st == INFERSCALE_OK) st = streams ? inject_stream(e, seq, &s, b, stats) : inject_piece(e, ctx, seq, &s, b, stats);
    }
    is_free(s.spans);
    return st;
}

is_status is_blob_zero(is_llama *e, const is_layout *l, uint32_t n, uint8_t **out, size_t *len)
{
    size_t bytes = 8;

    for (uint32_t i = 0; i < l->n_blocks; i++) bytes += is_block_bytes(e->geometry, l, &l->block[i], n);
    *out = is_calloc(1, bytes);
    if (!*out) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a blob of %zu bytes", bytes);
    *len = is_blob_head(*out);
    for (uint32_t i = 0; i < l->n_blocks; i++) {
        const is_block *b = &l->block[i];
        uint32_t from = first_cell(b, 0, n);

        *len += is_block_frame(e->geometry, l, b, *out + *len, from, n - from, NULL, NULL);
    }
    return INFERSCALE_OK;
}
