/* bench_busy.h - what becomes of new facts, and of questions, while clients ask without a pause.
 *
 * One store, one handle with a background encoder, so many clients (threads) that ask about one
 * owner's memory, each again as soon as it is answered. A pair is four windows in drawn order:
 *   quiet   the clients ask, nothing is told
 *   told    the clients ask, and single facts of another owner are told, the next one some time
 *           after the last one was embedded; the window is shorter than the lag from which on
 *           encoding gets a share of the engine's time
 *   idle    a batch of facts is told at once, nobody asks, the encoder stands still: how fast it is
 *           embedded
 *   busy    the same with the clients asking
 * Before each window everything that was told is embedded and encoded. */
#ifndef IS_EVAL_BENCH_BUSY_H
#define IS_EVAL_BENCH_BUSY_H

#include "eval/lab.h"

enum { BENCH_BUSY_PAIRS = 25, BENCH_BUSY_CLIENTS = 64 };
enum { BENCH_BUSY_LAGS = 4000, BENCH_BUSY_TTFTS = 20000 }; /* samples kept, at most */

typedef struct bench_busy_options {
    inferscale_options store;      /* home is ignored; background is switched on, refining off */
    uint32_t clients;              /* 1 .. BENCH_BUSY_CLIENTS */
    uint32_t pairs;                /* 1 .. BENCH_BUSY_PAIRS */
    double window_s;               /* of quiet and told */
    uint32_t batch;                /* facts of idle and busy */
    uint32_t k, max_tokens;        /* of a question */
    uint64_t seed;
    const volatile int *cancel;
    inferscale_progress_fn on_progress;
    void *progress_ctx;
} bench_busy_options;

/* The clients' questions in the windows of one kind. */
typedef struct bench_busy_ttft {
    double *ms;                    /* [n] until the first token, in the order they ended */
    uint32_t n;
    double window_ms[BENCH_BUSY_PAIRS]; /* median of each window */
    double median_ms, p95_ms;      /* over all of them */
} bench_busy_ttft;

typedef struct bench_busy_result {
    uint32_t n_pairs;
    bench_busy_ttft quiet, told;
    double ttft_ratios[BENCH_BUSY_PAIRS], ttft_ratio; /* told over quiet, by pairs; their median */
    double *lag_ms;                /* [n_lags] from a fact's acknowledgement until it is embedded */
    uint32_t n_lags;
    double lag_p50_ms, lag_p95_ms, lag_max_ms;
    double idle[BENCH_BUSY_PAIRS], busy[BENCH_BUSY_PAIRS]; /* facts a second */
    double rate_ratios[BENCH_BUSY_PAIRS];                  /* busy over idle, by pairs */
    double idle_facts_per_s, busy_facts_per_s, rate_ratio; /* medians */
    uint64_t n_slices;             /* of encoding in the windows `told`: 0 = below the lag limit */
} bench_busy_result;

/* *out is to be freed in any case. E_UNSUPPORTED if the model's KV cannot be injected, E_CANCELLED,
 * E_INVALID (more of something than is possible), and what questions and the encoder fail with. */
is_status bench_busy_run(const bench_busy_options *options, bench_busy_result *out,
                         inferscale_model_info *info);
void bench_busy_result_free(bench_busy_result *r);

#endif
