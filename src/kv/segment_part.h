/* segment_part.h - some layers and heads of a segment: read out of a file without touching the rest, and many such parts put
 * together again. What a worker of a larger engine holds is a part: layers by pipeline rank, KV heads by tensor rank. */
#ifndef IS_KV_SEGMENT_PART_H
#define IS_KV_SEGMENT_PART_H

#include "kv/segment.h"

/* Planes [plane_begin, plane_end) and heads [head_begin, head_end) of each; of planes that have one head: that one. */
typedef struct is_segment_cut {
    uint32_t plane_begin, plane_end, head_begin, head_end;
} is_segment_cut;

static inline uint32_t is_cut_head(const is_segment_cut *c, const is_plane *p) { return p->n_heads == 1 ? 0 : c->head_begin; }
static inline uint32_t is_cut_heads(const is_segment_cut *c, const is_plane *p)
{
    return p->n_heads == 1 ? 1 : c->head_end - c->head_begin;
}

/* E_INVALID where g has no such planes and heads. */
is_status is_segment_cut_check(const is_geometry *g, const is_segment_cut *cut);
/* The geometry of that part: its planes, layer numbers as they are, with fewer heads. E_INVALID, E_NOMEM. */
is_status is_geometry_cut(const is_geometry *g, const is_segment_cut *cut, is_geometry **out);

/* A file whose head was read and verified; nothing else of it was. */
typedef struct is_segment_file is_segment_file;
/* Errors as is_segment_read. fs must outlive it. */
is_status is_segment_file_open(const is_fs *fs, const char *path, is_segment_file **out);
const is_segment_desc *is_segment_file_info(const is_segment_file *f);
/* Reads the blocks of that part, verifies their checksums, and makes a segment of them, whose geometry is the part's. */
is_status is_segment_file_read(is_segment_file *f, const is_segment_cut *cut, is_segment **out);
void is_segment_file_close(is_segment_file *f); /* NULL is allowed */

/* Puts the parts of one span together: rows[plane] = F32 [n_tokens][n_heads][head_dim] of geometry g, every value from a part that has
 * it (exact: a codec's values are F32 values). Where several have it (KV heads replicated over ranks) the first one's are taken; the
 * others may differ by an engine's noise, not by more. first_head[i]: the model's number of part i's first head. E_INVALID: parts of other
 * models, tokens, codecs or shapes, or a head that none of them has; E_CORRUPT: two that do not agree. */
is_status is_segment_merge(const is_segment *const *parts, const uint32_t *first_head, size_t n, const is_geometry *g,
                           float *const *rows);

#endif
