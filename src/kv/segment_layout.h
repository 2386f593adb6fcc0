/* segment_layout.h - inside a segment (private to the kv room). The payload in memory is, byte for byte, the payload of the
 * file. */
#ifndef IS_KV_SEGMENT_LAYOUT_H
#define IS_KV_SEGMENT_LAYOUT_H

#include <stdatomic.h>

#include "kv/segment.h"

enum { IS_SEGMENT_ALIGN = 64, IS_SEGMENT_MAX_TOKENS = 1 << 20 };

struct is_segment {
    atomic_uint refs;
    atomic_bool wipe;          /* overwritten when it goes */
    is_segment_desc desc;      /* its tokens and geometry are the copies below */
    int32_t *tokens;
    is_geometry *geometry;
    uint64_t *plane_at;        /* [n_planes] offset of each plane in the payload, multiples of IS_SEGMENT_ALIGN */
    uint8_t *payload;          /* IS_SEGMENT_ALIGN-aligned; bytes between planes are zero. NULL: bare */
    uint64_t payload_bytes;
    size_t bytes;              /* all memory held */
    uint64_t file_bytes, file_version; /* of what is kept of files (head_tier.c): which file it was read from */
};

/* A segment of desc with a zeroed payload of the right size, geometry checked. max_payload: give up with E_CORRUPT instead of
 * allocating more (files); UINT64_MAX = no such limit. */
is_status is_segment_alloc(const is_segment_desc *desc, uint64_t max_payload, is_segment **out);
/* The same without a payload. */
is_status is_segment_alloc_bare(const is_segment_desc *desc, is_segment **out);
/* Where the planes of a checked desc begin in the payload: plane_at[n_planes]; returns the payload's size. */
uint64_t is_segment_lay_out(const is_segment_desc *desc, uint64_t *plane_at);

static inline uint64_t is_segment_block_bytes(const is_segment_desc *d, const is_plane *p)
{
    return (uint64_t)d->n_tokens * is_codec_row_bytes(d->codec, p->head_dim);
}

static inline uint64_t is_segment_head_bytes(const is_segment *s, const is_plane *p)
{
    return is_segment_block_bytes(&s->desc, p);
}

/* ---- The head of a file (segment_file.c): everything before the payload, checked ---- */

typedef struct is_segment_header {
    is_segment_desc desc;   /* its tokens and geometry are the copies below */
    int32_t *tokens;
    is_geometry *geometry;
    uint64_t *plane_at;     /* [n_planes] in the payload */
    uint64_t payload_bytes;
    uint32_t header_bytes;  /* where the payload begins */
    const uint8_t *sums;    /* [heads of all planes] u64 each, in the bytes that were parsed */
} is_segment_header;

/* Reads the head of an open file, nothing else. bytes: is_free, as long as out->sums is used. */
is_status is_segment_header_read(const is_fs *fs, is_file *f, uint8_t **bytes, is_segment_header *out);
void is_segment_header_clear(is_segment_header *h);

#endif
