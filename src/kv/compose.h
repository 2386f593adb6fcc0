/* compose.h - from stored rows to an engine's cache rows: rotate keys to their positions, copy values, in the engine's layout.
 *
 * The hot path of serving: it must run near memory speed. Destination layouts: token-major rows (dst[token][head][dim]) and
 * dimension-major columns (dst[head][dim][token], llama.cpp's transposed V). */
#ifndef IS_KV_COMPOSE_H
#define IS_KV_COMPOSE_H

#include "kv/rope.h"
#include "kv/segment.h"

/* Tokens [token_begin, token_end), heads [head_begin, head_end) of one plane; token token_begin stands at position pos (keys are
 * rotated there; ignored for V and planes without RoPE). dst_type as is_codec. Strides in elements. One rounding at most when
 * src and dst types are the same and nothing rotates: bits are copied. Errors: E_INVALID (ranges, position outside the table). */
is_status is_compose_rows(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                          uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst,
                          size_t token_stride, size_t head_stride);

/* Transposed: element (head, dim, token) goes to dst[((head - head_begin) * head_dim + dim) * column_stride + token - token_begin]. */
is_status is_compose_columns(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                             uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst,
                             size_t column_stride);

#endif
