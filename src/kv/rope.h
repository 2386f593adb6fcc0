/* rope.h - rotary position embedding of stored keys (RoFormer, arXiv 2104.09864; Chunked RoPE, arXiv 2607.27090).
 *
 * Keys are stored without position and rotated once, when served. Tables of cos and sin are computed in double, kept in float,
 * one per frequency set, shared by all layers and requests. */
#ifndef IS_KV_ROPE_H
#define IS_KV_ROPE_H

#include "kv/geometry.h"

typedef struct is_rope is_rope; /* the tables of all frequency sets of a geometry for positions 0 .. n_pos-1; immutable */

is_status is_rope_new(const is_geometry *g, uint32_t n_pos, is_rope **out);
/* With the tables that an engine itself multiplies by, and its arithmetic, one for each frequency set of g. */
typedef struct is_rope_own {
    const float *rows; /* [n_pos][2 * n_pairs]: cosines, then sines, magnitude included; NULL = computed as is_rope_new does */
    uint32_t n_pos;
    uint32_t how;      /* IS_ROTATE_* (kernels.h) */
} is_rope_own;
is_status is_rope_new_own(const is_geometry *g, const is_rope_own *own, is_rope **out);
void is_rope_set_how(is_rope *r, uint32_t freq, uint32_t how); /* not while others use it */
uint32_t is_rope_how(const is_rope *r, uint32_t freq);
void is_rope_free(is_rope *r);
uint32_t is_rope_positions(const is_rope *r); /* of its shortest table */
/* cos and sin (times mscale) of one frequency set at a position: n_pairs floats each. */
const float *is_rope_cos(const is_rope *r, uint32_t freq, uint32_t pos);
const float *is_rope_sin(const is_rope *r, uint32_t freq, uint32_t pos);

/* Rotates (dir = +1) or un-rotates (dir = -1) rows in place: rows [n_tokens][n_heads][head_dim] F32 of a plane, token t at
 * position pos + t. Un-rotating divides mscale out. Planes without RoPE are left alone. E_INVALID outside the table. */
is_status is_rope_rows(const is_rope *r, const is_plane *plane, float *rows, uint32_t n_tokens, uint32_t pos, int dir);

#endif
