/* captured.h - a capture as the mock engine's witness wrote it down (mock_witness.c): which texts and tokens stood where; and the same
 * capture once more, from scratch, to compare rows with those in the vault. */
#ifndef TESTS_CAPTURED_H
#define TESTS_CAPTURED_H

#include "engine/engine.h"
#include "kv/rope.h"

enum { CAPTURED_STORED = 256 };

typedef struct captured {
    char *context, *span;    /* texts */
    int32_t *ids;            /* [n_context + n_span] */
    uint32_t n_context, n_span;
    uint8_t (*stored)[IS_HASH_BYTES]; /* [n_stored] names of the segments whose rows were taken for the end of the context */
    uint32_t n_stored;
} captured;

/* From the line's text (what stands behind the status). Asserts that it is one. */
void captured_read(const char *text, captured *out);
void captured_free(captured *c);
/* Where these tokens begin in the span; n_span if they are not in it. */
uint32_t captured_offset(const captured *c, const int32_t *tokens, uint32_t n);

/* Rows of the whole span, un-rotated: rows[plane] = [n_span][width]; captured_rows_free. NULL if a stored segment is not in the vault
 * folder any more. */
float **captured_again(const captured *c, is_engine *e, const is_rope *rope, const char *vault);
void captured_rows_free(const is_geometry *g, float **rows);

/* Are the segment's rows the mean of those at places at[i] of rows[i], within the rounding of 16 bits? */
bool captured_is_mean(const is_segment *kept, float **const *rows, const uint32_t *at, size_t n);

/* A segment's file under the vault's folder. */
void captured_path(const char *vault, const uint8_t *name, char out[700]);

#endif
