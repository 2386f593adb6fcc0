/* fuse.h - two score lists to one ranking. */
#ifndef IS_RECALL_FUSE_H
#define IS_RECALL_FUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { IS_FUSE_CANDIDATES = 100 }; /* of each side, or k if that is more */

typedef struct is_ranked {
    uint32_t item;
    double lexical, dense, score; /* dense: 0 where the item has no vector */
    double shown;                 /* what users are shown (score.h); 0 = not computed */
    bool pinned;
} is_ranked;

/* Ranks items 0 .. n-1, best first, at most k, into *out (is_free). lexical[n]: > 0 where a word matched; dense[n]: cosine, NAN
 * without a vector, NULL = no dense side; keep[n]: the filter, applied first. method: INFERSCALE_FUSED, _LEXICAL (items with a
 * matching word), _DENSE (items with a vector). Equal scores: the lower item first.
 *
 * Fused: candidates are the best max(k, 100) of each side, z-scores are taken over all candidates with BOTH true scores, and
 * summed 1:1; a side without spread adds nothing. While some items have no vector yet, their words speak for it: see fuse.c. */
is_status is_fuse(const double *lexical, const float *dense, const bool *keep, size_t n, int method, size_t k, is_ranked **out,
                  size_t *n_out);

#endif
