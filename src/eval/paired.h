/* paired.h - two arms over the same questions, each right or wrong: is one worse, and by how much
 * at most? Exact McNemar, Tango's score interval and test for the difference of paired proportions,
 * and the rule by which a run stops. */
#ifndef IS_EVAL_PAIRED_H
#define IS_EVAL_PAIRED_H

#include "eval/stats.h"

/* The difference is of shares of right answers, the other arm's minus the reference's. */
typedef struct paired_counts {
    uint64_t n;              /* questions */
    uint64_t lost, won;      /* right in the reference alone; right in the other arm alone */
} paired_counts;

double paired_difference(const paired_counts *c); /* NaN for n = 0 */

/* Exact McNemar: p of "lost and won are equally likely", two-sided (twice the smaller tail of a
 * binomial, at most 1). */
double paired_mcnemar(const paired_counts *c);

/* Tango's score statistic (1998) of "the difference is `delta`", -1 < delta < 1: about standard
 * normal if it is; above 0 where the data are above it. n >= 1. */
double paired_z(const paired_counts *c, double delta);

/* All differences with |paired_z| <= z: 1.959964 gives 95%. NaN for n = 0. */
stats_interval paired_interval(const paired_counts *c, double z);

/* What is said of the other arm at a margin (a share of questions, > 0). */
typedef enum paired_verdict {
    PAIRED_OPEN,             /* not decided */
    PAIRED_WORSE,            /* by more than the margin */
    PAIRED_NO_WORSE,         /* by no more than the margin, at least */
    PAIRED_EQUAL             /* within the margin on both sides (TOST) */
} paired_verdict;

/* The rule, named before anything is measured. At each look, over the first `looks[i]` questions,
 * every one-sided test is made at `bound`: the first look that gives PAIRED_WORSE, PAIRED_NO_WORSE
 * or PAIRED_EQUAL ends the run. The bound is the same at each look (Pocock) and such that a
 * standard Brownian motion passes it at any look with probability `alpha`. */
enum { PAIRED_LOOKS = 5 };
typedef struct paired_rule {
    double alpha, bound;
    uint64_t looks[PAIRED_LOOKS];
    size_t n_looks;          /* 0 = one look, when all questions are done, at `bound` */
} paired_rule;
/* After 500, 1,000, 2,000, 4,000 and 8,000 questions; alpha = 0.05 for each side of the TOST. */
extern const paired_rule paired_sequential;
/* One look at the end, the same alpha. */
extern const paired_rule paired_fixed;

paired_verdict paired_look(const paired_counts *c, double margin, double bound);

#endif
