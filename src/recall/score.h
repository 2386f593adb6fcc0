/* score.h - the score that users see: how sure it is that a fact has to do with the question, above
 * 0 and up to 1. It is computed after the ranking, and never changes it.
 *
 * It is absolute: what an embedder's cosine says is taken from its calibration
 * (embed/calibrate.h), what words say from the share of the question's words that the fact
 * holds, the rare ones counting more. So it may be compared between questions, owners and
 * embedders, and cut by one threshold. */
#ifndef IS_RECALL_SCORE_H
#define IS_RECALL_SCORE_H

#include "embed/calibrate.h"
#include "recall/fuse.h"

/* Of one fact. cosine: to the question; NAN = it has no vector. share: see is_lexical_score.
 * calibration NULL: cosines say nothing as long as nobody knows how to read them, and words
 * speak alone. From 0.01 to 1. */
double is_score_of(double cosine, double share, const is_calibration *calibration);

/* Makes scores[n], the best hit's first, fall in that order: neighbours that do not are given
 * their mean, until all do (pool-adjacent-violators, which changes the scores least). E_NOMEM. */
is_status is_score_in_order(double *scores, size_t n);

/* shown of ranked[n], which is whole: best first, as long as candidates go, so that the scores
 * of the first do not depend on how many were asked for. Those that are pinned keep what is
 * their own: they stand first whatever they score. dense (NULL = no vectors) and shares are the
 * index's, by item. E_NOMEM. */
is_status is_score_ranked(is_ranked *ranked, size_t n, const float *dense, const double *shares,
                          const is_calibration *calibration);

#endif
