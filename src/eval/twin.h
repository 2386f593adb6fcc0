/* twin.h - one answer's fidelity: the same plan three times along the answer that was given. The text twin (everything computed) is the
 * reference; the plan as it is, stored rows injected, is compared with it, and so is a reordering (docs/evaluation.md, arms B and S): a
 * change nobody would call an error, as the yardstick. */
#ifndef IS_EVAL_TWIN_H
#define IS_EVAL_TWIN_H

#include "eval/stats.h"
#include "eval/trace.h"

typedef struct twin_result {
    trace_distance kv;        /* of the plan from its text twin */
    trace_distance order;     /* of the text twin with the newest turn's facts in another order, the best one still last */
    trace_distance noise;     /* of the text twin from itself, batched otherwise: what arithmetic alone makes (arm N) */
    bool has_order;           /* order and noise; false: there are fewer than three facts to reorder */
    uint32_t n_tokens;        /* compared */
} twin_result;

/* Compares along the answer's first max_tokens tokens. seed: of the reordering. Errors of the engine; E_CANCELLED by opts' flags. */
is_status twin_measure(is_engine *e, const is_plan *plan, const is_tokens *answer, uint32_t max_tokens, uint64_t seed,
                       const is_run_opts *opts, twin_result *out);

/* The order ratio of n results: sums of the injected plans' KL over the reorderings', of the *used ones that have both. NaN = these are fewer
 * than TWIN_ORDERS_LEAST (one answer's ratio may be anything), or the reorderings' KL is not above 5 times the noise's: then the yardstick itself
 * is noise, and the ratio would say nothing. *interval (may be NULL): 95%, answers resampled; NaN where the ratio is. */
enum { TWIN_ORDERS_LEAST = 10 };
double twin_order_ratio(const twin_result *r, size_t n, size_t *used, stats_interval *interval);

/* order[n] = another order than 0, 1, ... of all but the last, which stays: what arm S draws. n >= 3. */
void twin_order(uint64_t seed, uint32_t *order, uint32_t n);

#endif
