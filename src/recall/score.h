/* score.h - the score that users see: how sure it is that a fact has to do with the question, above
 * 0 and up to 1. It is computed after the ranking, and never changes it.
 *
 * It says the same of all questions, owners and embedders, so that one threshold may cut it. What
 * an embedder's cosine says is taken from its calibration (embed/calibrate.h) and from the cosines
 * of the owner's other facts: a question that names Tom is near to every fact about Tom, and only
 * what stands out among them answers it. What words say is taken from the share of the question's
 * words that the fact holds, the rare ones counting more. */
#ifndef IS_RECALL_SCORE_H
#define IS_RECALL_SCORE_H

#include "embed/calibrate.h"
#include "recall/fuse.h"

/* Of one fact. cosine: to the question; NAN = it has no vector. ground: see is_score_grounds; not
 * used without a cosine. share: see is_lexical_score. calibration NULL: cosines say nothing as long
 * as nobody knows how to read them, and words speak alone; so they do if its low is 1 or more, for
 * then unrelated texts are as near as equal ones. From 0.01 to 1. */
double is_score_of(double cosine, double ground, double share, const is_calibration *calibration);

/* grounds[n]: how near to the question a document would be that tells nothing about it. That is the
 * mean cosine of the others of its company (is_lexical_score); the fewer they are, the more that of
 * the others of its group; the fewer those are, the more a constant. NAN without a cosine.
 * dense[n]: cosines, NAN = none. E_NOMEM. */
is_status is_score_grounds(const float *dense, const uint32_t *companies, size_t n,
                           const is_calibration *calibration, double *grounds);

/* Makes scores[n], the best hit's first, fall in that order: neighbours that do not are given
 * their mean, until all do (pool-adjacent-violators, which changes the scores least). E_NOMEM. */
is_status is_score_in_order(double *scores, size_t n);

/* What is known of the index's items, by item. Borrowed. */
typedef struct is_score_parts {
    const float *dense;     /* NULL = no vectors */
    const double *grounds;  /* not used without vectors or without a calibration */
    const double *shares;
} is_score_parts;

/* shown of ranked[n], which is whole: best first, as long as candidates go, so that the scores
 * of the first do not depend on how many were asked for. Those that are pinned keep what is
 * their own: they stand first whatever they score. E_NOMEM. */
is_status is_score_ranked(is_ranked *ranked, size_t n, const is_score_parts *parts,
                          const is_calibration *calibration);

#endif
