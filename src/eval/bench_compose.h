/* bench_compose.h - how fast stored rows become an engine's cache rows, beside memcpy of the same bytes.
 *
 * Many segments (as one prompt has them) are composed into one destination, plane by plane, as the llama engine does. Beside
 * it, in the same process and interleaved with it, memcpy moves the same bytes to the same destination: once segment by segment
 * and plane by plane (the same pieces), once as a whole. The ratio is against the faster of the two. */
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
    double compose_gbps;   /* 10^9 bytes a second, from the median time */
    double memcpy_gbps;    /* the faster of the two below */
    double pieces_gbps, whole_gbps;
    double ratio;          /* compose_gbps / memcpy_gbps */
} bench_compose_row;

/* E_INVALID, E_NOMEM. */
is_status bench_compose(const bench_compose_options *options, bench_compose_row rows[BENCH_COMPOSE_ROWS]);

#endif
