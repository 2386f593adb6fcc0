/* bench_compose.h - how fast stored rows become an engine's cache rows, beside memcpy of the same bytes.
 *
 * Many segments (as one prompt has them) are composed into one destination, plane by plane, as the llama engine does. Beside
 * it, in the same process and interleaved with it, memcpy moves the same bytes from the same segments to the same places (what
 * composing would cost if nothing had to be rotated or transposed), and one contiguous block of the same size to the same
 * destination (which libc does past the caches from some size on: the fastest that this memory can be copied). */
#ifndef IS_EVAL_BENCH_COMPOSE_H
#define IS_EVAL_BENCH_COMPOSE_H

#include "kv/codec.h"
#include "kv/geometry.h"

typedef struct bench_compose_options {
    const is_geometry *geometry; /* NULL = SmolLM2-135M's: 30 layers, 3 KV heads x 64, halves */
    is_codec codec;              /* of the segments and the destination */
    uint32_t n_segments;         /* 0 = 50 */
    uint32_t n_tokens;           /* mean of a segment; 0 = 28. Lengths vary by a quarter either way */
    uint32_t repeats;            /* 0 = 21; at least 11 */
    uint64_t seed;
} bench_compose_options;

enum { BENCH_COMPOSE_ROWS = 5 };

typedef struct bench_compose_row {
    const char *layout;    /* "rows": K and V token-major; "columns": K token-major, V transposed; "k_rows" (rotation alone),
                              "v_rows", "v_columns" */
    size_t bytes;          /* written to the destination */
    size_t memcpy_bytes; /* of the segments' rows as they are stored: the same, unless their codec
                            is another */
    double compose_gbps;   /* 10^9 bytes a second, from the median time */
    double memcpy_gbps;    /* these, from the same segments to the same places */
    double block_gbps;     /* one contiguous block of as many bytes */
    double ratio;          /* compose_gbps / memcpy_gbps */
    double ratio_block;    /* compose_gbps / block_gbps */
} bench_compose_row;

/* E_INVALID, E_NOMEM. */
is_status bench_compose(const bench_compose_options *options, bench_compose_row rows[BENCH_COMPOSE_ROWS]);

#endif
