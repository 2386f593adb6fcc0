/* inject.c - stored segments into the engine's cache.
 *
 * All stored facts of a run become one sequence-state blob: framing, then each plane's rows in token order, keys rotated to their
 * positions. The engine loads it into a scratch sequence (loading replaces a sequence), the cells are tagged as the live
 * sequence's too, and the scratch tag is dropped: no row moves twice. Window layers get exactly the cells inside the window of
 * the last injected position. */
#include "engine/llama/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PLANES_ON_STACK = 512 };

bool is_blob_reserve(is_llama *e, size_t bytes)
{
    size_t cap = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
    uint8_t *p;

    if (bytes <= e->blob_cap) return true;
    p = is_malloc_aligned(4096, cap);
    if (!p) return false;
    for (size_t i = 0; i < cap; i += 4096) p[i] = 0; /* page faults now, not in the middle of composing */
    is_free(e->blob);
    e->blob = p;
    e->blob_cap = cap;
    return true;
}

is_status is_part_check(is_llama *e, const is_part *p)
{
    const is_segment_desc *d = p->segment ? is_segment_info(p->segment) : NULL;

    if (!d) return is_fail(INFERSCALE_E_INVALID, "a stored part of the plan has no segment; plan again");
    if (memcmp(d->fingerprint, e->info.fingerprint, IS_HASH_BYTES) != 0)
        return is_fail(INFERSCALE_E_INVALID, "a segment was computed by another model; run 'inferscale encode' for this one");
    if (d->n_tokens != p->n_tokens || memcmp(d->tokens, p->tokens, p->n_tokens * sizeof *p->tokens) != 0)
        return is_fail(INFERSCALE_E_INVALID, "a segment holds %u tokens that are not the %u tokens of its fact; encode the fact again",
                       d->n_tokens, p->n_tokens);
    if (d->geometry != e->geometry && !is_geometry_equal(d->geometry, e->geometry))
        return is_fail(INFERSCALE_E_INVALID, "a segment has another cache geometry than this engine; encode the fact again");
    return INFERSCALE_OK;
}

/* Cells of a block for tokens at positions pos ... pos + n - 1: all, or those inside the window of the last one. */
static uint32_t first_cell(const is_block *b, uint32_t pos, uint32_t n)
{
    uint32_t last = pos + n - 1;

    return b->window && last + 1 > b->window && last + 1 - b->window > pos ? last + 1 - b->window : pos;
}

/* Fills the rows of one plane from all parts; dst is for cells [from, from + cells). */
static is_status fill_plane(is_llama *e, const is_part *parts, uint32_t n, uint32_t pos, uint32_t plane, uint32_t from, uint32_t cells,
                            bool columns, uint8_t *dst)
{
    const is_plane *pl = &e->geometry->planes[plane];
    uint32_t width = is_plane_width(pl), at = pos;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t skip = at < from ? from - at : 0, m = parts[i].n_tokens;

        if (skip < m) {
            uint32_t cell = at + skip - from;

            if (columns)
                IS_TRY(is_compose_columns(parts[i].segment, e->rope, plane, skip, m, 0, pl->n_heads, at + skip, IS_CODEC_F16,
                                          dst + (size_t)cell * 2, cells));
            else
                IS_TRY(is_compose_rows(parts[i].segment, e->rope, plane, skip, m, 0, pl->n_heads, at + skip, IS_CODEC_F16,
                                       dst + (size_t)cell * width * 2, width, pl->head_dim));
        }
        at += m;
    }
    return INFERSCALE_OK;
}

static is_status compose_block(is_llama *e, const is_block *b, const is_part *parts, uint32_t n, uint32_t pos, uint32_t tokens,
                               uint8_t *dst, size_t *bytes)
{
    uint8_t *k_stack[PLANES_ON_STACK], *v_stack[PLANES_ON_STACK], **rows_k = k_stack, **rows_v = v_stack;
    uint32_t from = first_cell(b, pos, tokens), cells = pos + tokens - from;
    is_status st = INFERSCALE_OK;

    if (b->n_k > PLANES_ON_STACK || b->n_v > PLANES_ON_STACK)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "the model has more than %d layers", PLANES_ON_STACK);
    if (b->n_k == 0 && b->n_v == 0) cells = tokens; /* an empty cache of the model still counts its cells */
    *bytes = is_block_frame(e->geometry, &e->layout, b, dst, from, cells, rows_k, rows_v);
    for (uint32_t i = 0; i < b->n_k && st == INFERSCALE_OK; i++)
        st = fill_plane(e, parts, n, pos, b->k[i], from, cells, false, rows_k[i]);
    for (uint32_t i = 0; i < b->n_v && st == INFERSCALE_OK; i++)
        st = fill_plane(e, parts, n, pos, b->v[i], from, cells, e->layout.v_trans, rows_v[i]);
    return st;
}

static is_status compose(is_llama *e, const is_part *parts, uint32_t n, uint32_t pos, uint32_t tokens, size_t *len)
{
    size_t bytes = 8;

    for (uint32_t i = 0; i < e->layout.n_blocks; i++) bytes += is_block_bytes(e->geometry, &e->layout, &e->layout.block[i], tokens);
    if (!is_blob_reserve(e, bytes)) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a composition of %zu bytes", bytes);
    *len = is_blob_head(e->blob);
    for (uint32_t i = 0; i < e->layout.n_blocks; i++) {
        IS_TRY(compose_block(e, &e->layout.block[i], parts, n, pos, tokens, e->blob + *len, &bytes));
        *len += bytes;
    }
    return INFERSCALE_OK;
}

/* Loads the blob into the scratch sequence; frees kept prefixes while there are not enough cells. */
static is_status load(is_llama *e, size_t len, uint32_t tokens)
{
    is_shim_clear();
    is_llama_clear_error();
    for (;;) {
        if (is_shim_state_set(e->serve, e->blob, len, SEQ_SCRATCH) == len) return INFERSCALE_OK;
        llama_memory_seq_rm(llama_get_memory(e->serve), SEQ_SCRATCH, -1, -1);
        if (!is_prefix_evict(e, -1)) break;
    }
    return is_fail(INFERSCALE_E_CONTEXT, "no room for %u injected tokens in the engine's context of %u; end other conversations, use "
                   "fewer facts or raise n_ctx", tokens, e->n_ctx);
}

is_status is_inject(is_llama *e, int seq, const is_part *parts, uint32_t n, uint32_t pos, is_run_stats *stats)
{
    llama_memory_t mem = llama_get_memory(e->serve);
    double t0 = is_now_ms(), t1, t2;
    uint32_t tokens = 0;
    size_t len = 0;

    for (uint32_t i = 0; i < n; i++) tokens += parts[i].n_tokens;
    if (tokens == 0) return INFERSCALE_OK;
    IS_TRY(compose(e, parts, n, pos, tokens, &len));
    t1 = is_now_ms();
    IS_TRY(load(e, len, tokens));
    llama_memory_seq_cp(mem, SEQ_SCRATCH, seq, -1, -1);
    llama_memory_seq_rm(mem, SEQ_SCRATCH, -1, -1);
    t2 = is_now_ms();
    stats->compose_ms += t1 - t0;
    stats->inject_ms += t2 - t1;
    stats->tokens_injected += tokens;
    return INFERSCALE_OK;
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
