/* nearest.h - a fact's neighbours in its partition: what near, company and topical pages are built from. */
#ifndef IS_ENCODE_NEAREST_H
#define IS_ENCODE_NEAREST_H

#include "encode/policy.h"

typedef enum is_nearest_by {
    IS_NEAREST_DENSE,   /* by embeddings. E_UNSUPPORTED without an embedder, E_STALE if the fact has no embedding yet */
    IS_NEAREST_TEXT     /* what recall finds with the fact's text as the question: words and, where there are, embeddings */
} is_nearest_by;

/* The n nearest facts, best first, the fact itself apart; of equals the one remembered first. ids[n]; *found may be less. Facts
 * that recall would not find now (expired, not valid) are nobody's neighbours. */
is_status is_nearest(const is_encoder *enc, const is_partition *p, const inferscale_item *fact, uint32_t n, is_nearest_by by,
                     int64_t *ids, size_t *found);

/* A fact's vector, [dim] of unit length; NULL if it has none. is_free'd. */
is_status is_fact_vector(const is_encoder *enc, const is_partition *p, int64_t id, float **vec, uint32_t *dim);

#endif
