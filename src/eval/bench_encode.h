/* bench_encode.h - what encoding costs under each policy, and what it gains when spans are captured together.
 *
 *   facts_per_s, computed_per_stored    the product's own encoder over all the facts: contexts, captures, files, books
 *   batched_ratio                       captures alone: the policy's spans one at a time against the same spans together, the two
 *                                       ways by turns in one process; the median of the pairs' quotients
 *
 * One at a time is the engine as it was before batching: the part of a context that the last capture left in place is not run
 * again. Together is what the encoder does: for a page one span that goes through all of it, for other policies `batch` spans a
 * call. The two ways give the same rows up to the noise of another batching (tests/llama/test_capture.c). */
#ifndef IS_EVAL_BENCH_ENCODE_H
#define IS_EVAL_BENCH_ENCODE_H

#include "eval/lab.h"

enum { BENCH_ENCODE_POLICIES = 16 };

typedef struct bench_encode_options {
    inferscale_options store;        /* home is ignored; policy and refine say which are the defaults */
    const char *const *policies;     /* [n_policies] at most BENCH_ENCODE_POLICIES */
    size_t n_policies;
    const locomo_conversation *data; /* its first n_facts observations are encoded; NULL = invented facts */
    uint32_t n_facts;
    uint32_t n_spans;                /* of each policy for batched_ratio, at most */
    uint32_t batch;                  /* spans a call */
    uint32_t runs;                   /* pairs, at least 5 */
    uint64_t seed;
    const volatile int *cancel;
    inferscale_progress_fn on_progress;
    void *progress_ctx;
} bench_encode_options;

typedef struct bench_encode_row {
    char policy[32];
    bool first;                      /* cheap enough for the first stage: at most 1.5 computed tokens per stored */
    bool is_default;                 /* of the first or the second stage */
    uint64_t facts, tokens_stored, tokens_computed, facts_left;
    double facts_per_s, computed_per_stored;
    uint32_t n_spans, span_tokens;   /* behind batched_ratio: spans one at a time, and their tokens */
    double batched_ratio, ratio_lo, ratio_hi;   /* median and quartiles of one at a time / together */
    double apart_ms, together_ms;    /* medians */
} bench_encode_row;

/* rows[n_policies]; *n as far as it came. E_UNSUPPORTED if the model cannot be injected, or a policy lacks an embedder. *cpu_clock:
 * batched_ratio compares this thread's time on a processor (one thread: what others take on a busy machine is not counted), else
 * time on the wall. */
is_status bench_encode_run(const bench_encode_options *options, bench_encode_row *rows, size_t *n, inferscale_model_info *info,
                           bool *cpu_clock);

#endif
