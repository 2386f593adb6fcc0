/* layout.c - the framing of a sequence's state, as llama_state_seq_get_data writes it (little-endian, no checksum, no version):
 *
 *   u32 magic, i32 sequence
 *   per KV cache (window models: full layers, then window layers)
 *     u32 streams (1 = unified), per stream u32 cells; nothing more of a stream if cells = 0
 *     per cell: i32 position, u32 1, i32 sequence
 *     u32 v_trans, u32 layers
 *     per layer K: i32 type, u64 row bytes, rows
 *     per layer V: i32 type, u64 row bytes, rows            (v_trans = 0)
 *                  i32 type, u32 element bytes, u32 width, columns: element (dim, cell) at dim * cells + cell   (v_trans = 1)
 *
 * It is checked against a state that the engine itself wrote before anything is composed in it. */
#include "engine/llama/internal.h"

#include <string.h>

enum { MAGIC = (int)0xaf143cd8u, CELL_BYTES = 12, PLANE_HEAD = 12 };

static uint8_t *put_u32(uint8_t *p, uint32_t v)
{
    memcpy(p, &v, 4); /* libllama writes native integers too */
    return p + 4;
}

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, 4);
    return v;
}

size_t is_blob_head(uint8_t *dst)
{
    put_u32(put_u32(dst, (uint32_t)MAGIC), 0);
    return 8;
}

size_t is_block_bytes(const is_geometry *g, const is_layout *l, const is_block *b, uint32_t n_cells)
{
    size_t bytes = 4 + 4 * (size_t)l->n_streams;

    if (n_cells == 0) return bytes;
    bytes += (size_t)n_cells * CELL_BYTES + 8;
    for (uint32_t i = 0; i < b->n_k; i++) bytes += PLANE_HEAD + (size_t)n_cells * is_plane_width(&g->planes[b->k[i]]) * 2;
    for (uint32_t i = 0; i < b->n_v; i++) bytes += PLANE_HEAD + (size_t)n_cells * is_plane_width(&g->planes[b->v[i]]) * 2;
    return bytes;
}

static uint8_t *plane_head(uint8_t *p, const is_plane *plane, bool transposed)
{
    uint32_t width = is_plane_width(plane);
    uint64_t row = (uint64_t)width * 2;

    p = put_u32(p, GGML_TYPE_F16);
    if (transposed) return put_u32(put_u32(p, 2), width);
    memcpy(p, &row, 8);
    return p + 8;
}

size_t is_block_frame(const is_geometry *g, const is_layout *l, const is_block *b, uint8_t *dst, uint32_t pos, uint32_t n,
                      uint8_t **rows_k, uint8_t **rows_v)
{
    uint8_t *p = put_u32(dst, l->n_streams);

    for (uint32_t i = 1; i < l->n_streams; i++) p = put_u32(p, 0); /* other streams hold nothing; which is whose does not matter */
    p = put_u32(p, n);
    if (n == 0) return (size_t)(p - dst);
    for (uint32_t i = 0; i < n; i++) p = put_u32(put_u32(put_u32(p, pos + i), 1), 0);
    p = put_u32(put_u32(p, l->v_trans), b->n_k);
    for (uint32_t i = 0; i < b->n_k; i++) {
        p = plane_head(p, &g->planes[b->k[i]], false);
        if (rows_k) rows_k[i] = p;
        p += (size_t)n * is_plane_width(&g->planes[b->k[i]]) * 2;
    }
    for (uint32_t i = 0; i < b->n_v; i++) {
        p = plane_head(p, &g->planes[b->v[i]], l->v_trans);
        if (rows_v) rows_v[i] = p;
        p += (size_t)n * is_plane_width(&g->planes[b->v[i]]) * 2;
    }
    return (size_t)(p - dst);
}

void is_layout_free(is_layout *l)
{
    for (int i = 0; i < 2; i++) {
        is_free(l->block[i].k);
        is_free(l->block[i].v);
    }
    memset(l, 0, sizeof *l);
}

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the cache's layout; free some and try again");
}

/* The planes of one block, in layer order. E_NOMEM. */
static is_status fill_block(const is_geometry *g, bool windowed, is_block *b)
{
    b->k = is_malloc(g->n_planes * sizeof *b->k);
    b->v = is_malloc(g->n_planes * sizeof *b->v);
    if (!b->k || !b->v) return no_memory();
    for (uint32_t i = 0; i < g->n_planes; i++) {
        const is_plane *p = &g->planes[i];

        if ((p->window > 0) != windowed) continue;
        if (p->is_v) b->v[b->n_v++] = i;
        else b->k[b->n_k++] = i;
        if (p->window) b->window = p->window;
    }
    return INFERSCALE_OK;
}

/* Compares the framing of n cells in state[0..len) with what we would write. E_NOMEM. */
static is_status same_framing(const is_geometry *g, const is_layout *l, const uint8_t *state, size_t len,
                              uint32_t n, bool *same)
{
    size_t at = 8, want = 8;
    bool ok = true;

    *same = false;
    for (uint32_t i = 0; i < l->n_blocks; i++) want += is_block_bytes(g, l, &l->block[i], n);
    if (len != want || get_u32(state) != (uint32_t)MAGIC) return INFERSCALE_OK;
    for (uint32_t i = 0; i < l->n_blocks && ok; i++) {
        const is_block *b = &l->block[i];
        size_t bytes = is_block_bytes(g, l, b, n), head = 4 + 4 * (size_t)l->n_streams, off = head + (size_t)n * CELL_BYTES + 8;
        uint8_t *mine = is_calloc(1, bytes);

        if (!mine) return no_memory();
        is_block_frame(g, l, b, mine, 0, n, NULL, NULL);
        /* Everything but the rows and the cells' sequence ids must be byte-equal. */
        ok = memcmp(mine, state + at, head) == 0 && memcmp(mine + off - 8, state + at + off - 8, 8) == 0;
        for (uint32_t c = 0; c < n && ok; c++)
            ok = memcmp(mine + head + c * CELL_BYTES, state + at + head + c * CELL_BYTES, 8) == 0;
        for (uint32_t k = 0; k < b->n_k + b->n_v && ok; k++) {
            const is_plane *p = &g->planes[k < b->n_k ? b->k[k] : b->v[k - b->n_k]];

            ok = memcmp(mine + off, state + at + off, PLANE_HEAD) == 0;
            off += PLANE_HEAD + (size_t)n * is_plane_width(p) * 2;
        }
        is_free(mine);
        at += bytes;
    }
    *same = ok;
    return INFERSCALE_OK;
}

static is_status unreadable(void)
{
    return is_fail(INFERSCALE_E_UNSUPPORTED, "its sequence state cannot be read (%s)", is_llama_last_error());
}

/* The state of a few tokens as the engine writes it, in *out (is_free). E_NOMEM, E_UNSUPPORTED: it cannot be read. */
static is_status sample_state(is_llama *e, struct llama_context *ctx, uint32_t n, uint8_t **out, size_t *len)
{
    int32_t tokens[8];
    int seq = (int)llama_n_seq_max(ctx) - 1; /* the last stream, if each has its own */
    is_status st;

    *out = NULL;
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)((3 * i + 1) % e->n_vocab);
    st = is_llama_decode(e, ctx, seq, tokens, n, 0, 0, false);
    if (st == INFERSCALE_OK) {
        *len = is_shim_state_size(ctx, seq);
        *out = *len ? is_malloc(*len) : NULL;
        if (!*len) st = unreadable();
        else if (!*out) st = no_memory();
        else if (is_shim_state_get(ctx, *out, *len, seq) != *len) st = unreadable();
    } else if (st != INFERSCALE_E_NOMEM && st != INFERSCALE_E_CANCELLED) {
        st = unreadable();
    }
    llama_memory_seq_rm(llama_get_memory(ctx), seq, -1, -1);
    if (st == INFERSCALE_OK) return st;
    is_free(*out);
    *out = NULL;
    return st;
}

is_status is_layout_find(is_llama *e, struct llama_context *ctx, is_layout *out)
{
    enum { N = 6 };
    size_t len = 0;
    uint8_t *state = NULL;
    bool ok = false;
    is_status st;

    memset(out, 0, sizeof *out);
    out->n_streams = ctx == e->serve && e->streams ? llama_n_seq_max(ctx) : 1;
    IS_TRY(sample_state(e, ctx, N, &state, &len));
    st = fill_block(e->geometry, false, &out->block[0]);
    if (st == INFERSCALE_OK) st = fill_block(e->geometry, true, &out->block[1]);
    /* The framing says for itself whether V is transposed and whether there is a second block. */
    for (int attempt = 0; attempt < 4 && st == INFERSCALE_OK && !ok; attempt++) {
        out->v_trans = attempt & 1;
        out->n_blocks = 1 + (uint32_t)(attempt >> 1);
        if (out->n_blocks == 1 && out->block[1].n_k) continue;
        st = same_framing(e->geometry, out, state, len, N, &ok);
    }
    is_free(state);
    if (ok && out->block[0].n_k <= 512 && out->block[1].n_k <= 512) return INFERSCALE_OK;
    is_layout_free(out);
    if (st != INFERSCALE_OK) return st;
    return is_fail(INFERSCALE_E_UNSUPPORTED, "its sequence state has a layout that this version does not know");
}
