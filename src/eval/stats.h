/* stats.h - the arithmetic of the evaluation: seeded random numbers, order statistics, intervals, tests, and distances between
 * next-token distributions. Everything is in double and reproducible from a seed. */
#ifndef IS_EVAL_STATS_H
#define IS_EVAL_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* ---- Random numbers ------------------------------------------------------------------------------------------------------ */

/* splitmix64 (Steele, Lea, Flood 2014): one word of state, the same sequence on every machine. */
typedef struct rng { uint64_t state; } rng;

uint64_t rng_next(rng *r);
uint64_t rng_below(rng *r, uint64_t n);                 /* uniform in 0 .. n-1 without modulo bias; n >= 1 */
double rng_unit(rng *r);                                /* uniform in [0, 1) */
void rng_permutation(rng *r, uint32_t *perm, size_t n); /* a uniform permutation of 0 .. n-1 */
/* A generator for one use, from a seed and up to two labels (question, draw): independent streams that do not shift when
 * another use draws more numbers. */
rng rng_stream(uint64_t seed, uint64_t a, uint64_t b);

/* ---- Order statistics ---------------------------------------------------------------------------------------------------- */

double stats_mean(const double *x, size_t n);           /* NaN for n = 0 */
double stats_sd(const double *x, size_t n);             /* with n - 1; NaN for n < 2 */
/* p in 0..1 by linear interpolation between order statistics; x is not changed. NaN for n = 0 and on out of memory. */
double stats_percentile(const double *x, size_t n, double p);
double stats_median(const double *x, size_t n);

/* ---- Intervals and tests ------------------------------------------------------------------------------------------------- */

enum { STATS_RESAMPLES = 10000 };

typedef struct stats_interval { double lo, hi; } stats_interval;

/* 95% percentile bootstrap of sum(num) / sum(den) over pairs that are resampled together; den = NULL stands for ones, which
 * makes it the interval of a mean. What is drawn with replacement are groups (conversations, stores): group[i] < n_groups is
 * pair i's; NULL = every pair by itself. Resamples whose denominator is 0 are left out. n >= 1; E_INVALID, E_NOMEM. */
is_status stats_bootstrap(const double *num, const double *den, size_t n, const uint32_t *group, size_t n_groups,
                          size_t resamples, uint64_t seed, stats_interval *out);

/* The same of sum(num_a) / sum(den_a) - sum(num_b) / sum(den_b): what is drawn is drawn for both. */
is_status stats_bootstrap_difference(const double *num_a, const double *den_a, const double *num_b, const double *den_b, size_t n,
                                     const uint32_t *group, size_t n_groups, size_t resamples, uint64_t seed, stats_interval *out);

/* median(over) / median(under) of n rounds, with its 95% percentile interval: rounds are drawn with
 * replacement, the same ones for both. n >= 1; the seed is that of the draws. E_NOMEM. */
typedef struct stats_ratio {
    double is;
    stats_interval in;
} stats_ratio;
is_status stats_median_ratio(const double *over, const double *under, size_t n, uint64_t seed,
                             stats_ratio *out);

double stats_t_cdf(double t, double df);                /* Student's distribution, df > 0 */

/* Two one-sided t tests on paired differences: is their mean inside (-margin, margin)? p = the larger of the two p values;
 * p_no_worse = that of "mean > -margin" alone. n >= 2, margin > 0; all differences equal gives p = 0 or 1. */
typedef struct stats_tost_result { double mean, p, p_no_worse; } stats_tost_result;
is_status stats_tost(const double *diff, size_t n, double margin, stats_tost_result *out);

/* ---- Next-token distributions -------------------------------------------------------------------------------------------- */

/* Natural log-probabilities of logits[n] into out[n]. Logits may be -inf (probability 0), not all of them. */
void stats_log_softmax(const float *logits, size_t n, double *out);
/* KL(A || B) in nats from log-probabilities, over the full vocabulary. Where A is 0 nothing is added; +inf where only B is 0.
 * Rounding can make it -1e-17: it is cut at 0. */
double stats_kl(const double *log_a, const double *log_b, size_t n);
size_t stats_argmax(const float *logits, size_t n);     /* the first of equals */

#endif
