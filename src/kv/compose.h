/* compose.h - from stored rows to an engine's cache rows: rotate keys to their positions, copy values, in the engine's layout.
 *
 * The hot path of serving: it must run near memory speed. Destination layouts: token-major rows (dst[token][head][dim]) and
 * dimension-major columns (dst[head][dim][token], llama.cpp's transposed V). All strides are in elements of dst_type. Where
 * source and destination type are the same and nothing rotates, bits are copied; else values are rounded once.
 *
 * Errors of all: E_INVALID (ranges, position outside the table, another model's table), E_NOMEM; nothing is written then. */
#ifndef IS_KV_COMPOSE_H
#define IS_KV_COMPOSE_H

#include "kv/rope.h"
#include "kv/segment.h"

/* Tokens [token_begin, token_end) of a segment; token token_begin stands at position pos (keys are rotated there; pos is
 * ignored for V and planes without RoPE). */
typedef struct is_compose_span {
    const is_segment *segment;
    uint32_t token_begin, token_end;
    uint32_t pos;
} is_compose_span;

/* From this many bytes a whole composition (all planes of all spans) is larger than the caches that it would be read back from:
 * `stream` then pays. Measured: composing and reading back 6 MB costs the same either way, 3 MB 30% more with stream, 13 MB and
 * more 20% less. */
enum { IS_COMPOSE_STREAM_BYTES = 6 << 20 };

/* One plane, all heads, all spans one after another: the fast way. The tokens of spans[0] come first, then those of spans[1]
 * and so on. Segments must share the plane's shape; each may have a codec of its own. stream: write past the caches (rows: only without gaps). */
is_status is_compose_plane_rows(const is_compose_span *spans, size_t n_spans, const is_rope *rope, uint32_t plane,
                                is_codec dst_type, void *dst, size_t token_stride, size_t head_stride, bool stream);
/* Element (head, dim, i-th token of all) goes to dst[(head * head_dim + dim) * column_stride + i]. */
is_status is_compose_plane_columns(const is_compose_span *spans, size_t n_spans, const is_rope *rope, uint32_t plane,
                                   is_codec dst_type, void *dst, size_t column_stride, bool stream);

/* One span, heads [head_begin, head_end). */
is_status is_compose_rows(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                          uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst,
                          size_t token_stride, size_t head_stride);

/* Transposed: element (head, dim, token) goes to
 * dst[((head - head_begin) * head_dim + dim) * column_stride + token - token_begin]. */
is_status is_compose_columns(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                             uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst,
                             size_t column_stride);

#endif
