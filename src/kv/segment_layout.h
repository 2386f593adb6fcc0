/* segment_layout.h - inside a segment (private to the kv room). The payload in memory is, byte for byte, the payload of the
 * file. */
#ifndef IS_KV_SEGMENT_LAYOUT_H
#define IS_KV_SEGMENT_LAYOUT_H

#include <stdatomic.h>

#include "kv/segment.h"

enum { IS_SEGMENT_ALIGN = 64, IS_SEGMENT_MAX_TOKENS = 1 << 20 };

struct is_segment {
    atomic_uint refs;
    is_segment_desc desc;      /* its tokens and geometry are the copies below */
    int32_t *tokens;
    is_geometry *geometry;
    uint64_t *plane_at;        /* [n_planes] offset of each plane in the payload, multiples of IS_SEGMENT_ALIGN */
    uint8_t *payload;          /* IS_SEGMENT_ALIGN-aligned; bytes between planes are zero */
    uint64_t payload_bytes;
    size_t bytes;              /* all memory held */
};

/* A segment of desc with a zeroed payload of the right size, geometry checked. max_payload: give up with E_CORRUPT instead of
 * allocating more (files); UINT64_MAX = no such limit. */
is_status is_segment_alloc(const is_segment_desc *desc, uint64_t max_payload, is_segment **out);

static inline uint64_t is_segment_head_bytes(const is_segment *s, const is_plane *p)
{
    return (uint64_t)s->desc.n_tokens * p->head_dim * is_codec_bytes(s->desc.codec);
}

#endif
