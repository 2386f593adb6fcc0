/* bench_remember.h - what remembering costs while questions are answered and facts wait to be encoded, and what that costs the
 * questions.
 *
 * One store, one handle with a background encoder, three owners: one is asked about (encoded before), one has the facts that wait,
 * one remembers while it is measured. Remembering alternates with a bare write of 4 KiB and a sync on the same disk, so both
 * meet the same neighbours. Questions alternate between idle (encoder and writer stand still) and loaded (both at work). */
#ifndef IS_EVAL_BENCH_REMEMBER_H
#define IS_EVAL_BENCH_REMEMBER_H

#include "eval/lab.h"

typedef struct bench_remember_options {
    inferscale_options store;      /* home is ignored; background is switched on */
    uint32_t waiting;              /* facts that wait all the time */
    uint32_t rounds;               /* one idle and one loaded question each */
    uint32_t k, max_tokens;
    uint64_t seed;
    const volatile int *cancel;
    inferscale_progress_fn on_progress;
    void *progress_ctx;
} bench_remember_options;

typedef struct bench_remember_result {
    uint32_t n_remembered, n_questions; /* n_questions: of each kind */
    double p50_ms, p99_ms, max_ms;          /* of remembering one fact */
    double disk_p50_ms, disk_p99_ms, disk_max_ms; /* of writing 4 KiB and syncing */
    double ttft_idle_ms, ttft_loaded_ms, ttft_ratio; /* medians and their quotient */
    double ttft_idle_p90_ms, ttft_loaded_p90_ms;
    uint64_t waiting_min;                   /* facts that waited when fewest did */
    uint64_t facts_encoded, aborted_for_questions; /* by the background encoder meanwhile */
    double seconds;                         /* that were loaded */
} bench_remember_result;

/* E_UNSUPPORTED if the model's KV cannot be injected, E_CANCELLED, E_INVALID (no rounds). */
is_status bench_remember_run(const bench_remember_options *options, bench_remember_result *out, inferscale_model_info *info);

#endif
