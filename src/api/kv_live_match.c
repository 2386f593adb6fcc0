/* kv_live_match.c - how does the live engine rotate? Its own results say: every arithmetic that is known is tried on the same keys. */
#include <string.h>

#include "api/kv_live.h"
#include "base/mem.h"
#include "kv/kernels.h"
#include "kv/rope_table.h"

enum { FEWEST_PAIRS = 512 }; /* below that another arithmetic might give the same bits by chance */

static bool gives(const is_rotate *base, uint32_t how, const void *want, size_t bytes)
{
    is_rotate r = *base;

    r.how = how;
    is_kernels_rotate(is_kernels_best(), &r);
    return !memcmp(base->rows.dst, want, bytes);
}

/* Whole heads by one arithmetic first, then blocks of the vector lengths that there are. */
static bool find(const is_rotate *base, const void *want, size_t bytes, uint32_t *how)
{
    static const uint32_t blocks[] = { 0, 8, 16, 32, 4 };
    uint32_t half = base->rot_dim / 2, n_cuts = base->to == IS_CODEC_BF16 ? 2 : 1;

    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        if (blocks[b] && half % blocks[b] == 0) continue; /* no rest: that was tried */
        for (uint32_t cut = 0; cut < n_cuts; cut++)
            for (uint32_t body = 0; body < 4; body++)
                for (uint32_t rest = 0; rest < (blocks[b] ? 4u : 1u); rest++) {
                    *how = body | cut * IS_ROTATE_CUT | (uint32_t)INFERSCALE_ROT_BLOCK(blocks[b], rest);
                    if (gives(base, *how, want, bytes)) return true;
                }
    }
    return false;
}

static is_status match(inferscale_kv *kv, const is_plane *p, is_codec type, const void *keys, const void *rotated, uint32_t n_tokens,
                       uint32_t n_heads, uint32_t pos, uint32_t *how)
{
    const is_rope_set *set = is_rope_set_for(kv->rope, p, pos, n_tokens);
    size_t row = p->head_dim * is_codec_bytes(type), bytes = row * n_heads * n_tokens;
    const float *table;
    bool found;
    void *made;

    if (!set) return INFERSCALE_E_INVALID;
    if ((uint64_t)n_tokens * n_heads * (p->rot_dim / 2) < FEWEST_PAIRS)
        return is_fail(INFERSCALE_E_INVALID, "too few keys to tell how an engine rotates; give random ones, %d pairs or more", FEWEST_PAIRS);
    made = is_malloc(bytes);
    if (!made) return is_fail(INFERSCALE_E_NOMEM, "out of memory comparing rotations; free memory and try again");
    table = set->rows + (size_t)pos * 2 * set->half;
    is_rotate r = {
        .rows = { .src = keys, .dst = made, .src_step = row * n_heads, .dst_step = row * n_heads, .src_head = row, .dst_head = row,
                  .n_rows = n_tokens, .n_heads = n_heads },
        .cos = table, .sin = table + set->half, .table_step = 2 * (size_t)set->half, .from = type, .to = type, .head_dim = p->head_dim,
        .rot_begin = p->rot_begin, .rot_dim = p->rot_dim, .pairing = p->pairing,
    };
    found = find(&r, rotated, bytes, how);
    is_free(made);
    if (found) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_UNSUPPORTED, "the engine rotates layer %u in a way that is not known bit for bit; keys will be near, not "
                   "the same", p->layer);
}

inferscale_status inferscale_kv_match(inferscale_kv *kv, uint32_t plane, int type, const void *keys, const void *rotated, uint32_t n_tokens,
                                      uint32_t n_heads, uint32_t pos, int *rotation)
{
    const is_plane *p;
    uint32_t how = IS_ROTATE_F32;

    if (rotation) *rotation = IS_ROTATE_F32;
    if (!kv || !keys || !rotated || !n_tokens || !n_heads || n_heads > 4096 || n_tokens > 1 << 20 || plane >= kv->geometry->n_planes ||
        type < INFERSCALE_F32 || type > INFERSCALE_BF16)
        return is_fail(INFERSCALE_E_INVALID, "inferscale_kv_match needs an open handle, a plane of it, and keys of a known type before and "
                       "after");
    p = &kv->geometry->planes[plane];
    if (p->pairing != IS_PAIR_NONE) {
        IS_TRY(match(kv, p, (is_codec)type, keys, rotated, n_tokens, n_heads, pos, &how));
        is_rope_set_how(kv->rope, p->freq, how);
    }
    if (rotation) *rotation = (int)how;
    return INFERSCALE_OK;
}
