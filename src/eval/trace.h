/* trace.h - how far is one execution of a prompt from another: the reference's greedy answer is recorded with its next-token
 * distributions; another plan is then led along the same answer (teacher forced) and compared token by token. The flags of is_run_opts are
 * looked at before each token: E_CANCELLED. */
#ifndef IS_EVAL_TRACE_H
#define IS_EVAL_TRACE_H

#include "plan/plan.h"

typedef struct trace trace;

/* For answers of up to max_tokens tokens; holds max_tokens + 1 of its distributions over the vocabulary, in double. */
is_status trace_new(is_engine *e, uint32_t max_tokens, trace **out);
void trace_free(trace *t);                /* NULL is allowed */

/* Runs the plan and records its greedy answer: max_tokens tokens, or fewer if it ends; the end counts as a token. */
is_status trace_record(trace *t, const is_plan *plan, const is_run_opts *opts);
/* Runs the plan along an answer that is given, the first max_tokens tokens of it, and records that. answer->n >= 1. */
is_status trace_record_along(trace *t, const is_plan *plan, const is_run_opts *opts, const is_tokens *answer);
const int32_t *trace_answer(const trace *t, uint32_t *n);

typedef struct trace_distance {
    double kl;        /* KL(reference || plan), nats, mean over the answer's tokens */
    double kl_first;  /* of the first token */
    double top1;      /* share of tokens where both hold the same one for the likeliest */
} trace_distance;
is_status trace_compare(trace *t, const is_plan *plan, const is_run_opts *opts, trace_distance *out);

/* Mean negative log-likelihood (nats a token) of an answer given the plan. answer->n >= 1. Independent of what was recorded. */
is_status trace_nll(trace *t, const is_plan *plan, const is_run_opts *opts, const is_tokens *answer, double *out);

#endif
