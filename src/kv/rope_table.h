/* rope_table.h - the rope's tables as the composer sees them (private to the kv room).
 *
 * One frequency set: for every position a row of 2 * half floats, cosines then sines, each padded with zeros to half = a
 * multiple of 16 (so that whole vectors can be read), rows 64-byte aligned. */
#ifndef IS_KV_ROPE_TABLE_H
#define IS_KV_ROPE_TABLE_H

#include "kv/rope.h"

typedef struct is_rope_set {
    uint32_t n_pairs, half, n_pos;
    uint32_t how; /* IS_ROTATE_*: how rows are rotated by it (is_rope_rows, which is for capture, takes F32 always) */
    double mscale;
    float *rows; /* [n_pos][2 * half] */
} is_rope_set;

struct is_rope {
    uint32_t n_sets, n_pos; /* n_pos: of the shortest set */
    is_rope_set *sets;
};

/* The set for a plane that rotates, if rows at pos .. pos + n - 1 are in it; else NULL and a sentence. */
const is_rope_set *is_rope_set_for(const is_rope *r, const is_plane *plane, uint64_t pos, uint64_t n);

#endif
