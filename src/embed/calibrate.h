/* calibrate.h - what an embedder's cosines mean. Each embedder has a scale of its own: 0.5 is near
 * for one and far for another.
 *
 * Two cosines describe it, measured once on a fixed list of questions and facts (calibrate.c).
 * They belong to the embedder's fingerprint; the bank keeps them (is_bank_put_calibration). */
#ifndef IS_EMBED_CALIBRATE_H
#define IS_EMBED_CALIBRATE_H

#include "embed/embed.h"

typedef struct is_calibration {
    double low;   /* nearly all unrelated texts are less near than this */
    double high;  /* half of the facts that answer a question are nearer to it than this; above low */
} is_calibration;

enum { IS_CALIBRATION_PAIRS = 32, IS_CALIBRATION_TEXTS = 2 * IS_CALIBRATION_PAIRS };

/* The list: question 0, its fact, question 1, its fact, ... Static. */
extern const char *const is_calibration_texts[IS_CALIBRATION_TEXTS];
/* From the vectors of the list, vecs[IS_CALIBRATION_TEXTS][dim], of unit length. */
is_calibration is_calibration_of(const float *vecs, uint32_t dim);
/* Finite numbers in order: what was read may be used. */
bool is_calibration_valid(const is_calibration *c);
/* False: it has to be measured. The default embedder's and those that an embedder knows of itself need not be. */
bool is_calibration_built_in(is_embedder *e, is_calibration *out);

#endif
