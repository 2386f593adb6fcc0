/* bench_serve.h - what a server does under load with memory injected and with the same memory as
 * text.
 *
 * A running server is given owners with invented facts (each another memory, each with a marker
 * that no other has), they are encoded, and then many of them ask at once, streamed and greedy:
 *
 *   kv      memory injected
 *   text    the same memory computed as text
 *   plain   requests of a usual memory stack: the facts are searched for, and sent as plain lines of
 *           the system message (plain.h) to a server that knows of no memory; the search itself is
 *           not in the times of requests
 *
 * Text and plain run where text is faster: on the same server, or on a second one that reads the
 * same store with another setting. Which one is tried at each number of users, before its windows.
 * The arms come in alternating windows of one arm each: what the machine does meanwhile meets all.
 * A window's questions are asked in it alone, so nothing it needs is left over from another. Of
 * every answer it is checked that the facts it used belong to who asked. */
#ifndef IS_EVAL_BENCH_SERVE_H
#define IS_EVAL_BENCH_SERVE_H

#include "eval/load.h"

enum { BENCH_SERVE_LIST = 8, BENCH_SERVE_PAIRS = 50, BENCH_SERVE_SLO = 2, BENCH_SERVE_IDLE = 5 };
enum { BENCH_SERVE_PLACES = 2 }; /* where text may run: url, text_url */
typedef enum bench_serve_arm {
    BENCH_SERVE_KV,
    BENCH_SERVE_TEXT,
    BENCH_SERVE_PLAIN,
    BENCH_SERVE_ARMS
} bench_serve_arm;
extern const char *const bench_serve_arms[BENCH_SERVE_ARMS]; /* their names */

typedef struct bench_serve_options {
    const char *url, *key;
    const char *text_url;         /* a second server on the same store; NULL = there is none */
    int64_t users[BENCH_SERVE_LIST];
    size_t n_users;
    double rates[BENCH_SERVE_LIST]; /* open loops besides the closed one */
    size_t n_rates;
    uint32_t k, facts, pairs, max_tokens;
    uint32_t completions;         /* of a window; 0 = max(users, 32) of kv, max(users, 16) of the others */
    double window_s;              /* then a window is cut, if it has 20 completions */
    bool echoes;                  /* the mock engine: an answer begins with the prompt's last fact, which is checked */
    uint64_t seed;
    const volatile int *cancel;
    int (*on_progress)(void *ctx, uint64_t done, uint64_t total, const char *what);
    void *progress_ctx;
} bench_serve_options;

typedef struct bench_serve_times { double mean, median, std, p99; } bench_serve_times; /* ms */

typedef struct bench_serve_window {
    double request_throughput, output_throughput, seconds, offered;
    uint32_t completed, failed, cut;
} bench_serve_window;

/* What an arm did in all its windows at one load. */
typedef struct bench_serve_row {
    uint32_t users;
    bench_serve_arm arm;
    double rate;                  /* 0 = closed loop */
    bool second;                  /* it ran on text_url */
    bench_serve_window windows[BENCH_SERVE_PAIRS];
    uint32_t n_windows, completed, failed, cut;
    uint32_t mixed_up;            /* answers that used a fact of somebody else, or echo another's text */
    uint32_t lost;                /* requests that neither ended, failed nor were cut */
    uint32_t unlike;              /* answers in another mode than asked, with a fallback, or (plain) with
                                     memory */
    uint32_t full_length;         /* answers of max_tokens tokens */
    double request_throughput, output_throughput; /* medians over windows */
    bench_serve_times ttft, tpot, itl, e2el;
    double *ttft_ms, *tpot_ms, *e2el_ms, *itl_ms; /* [completed]; itl [n_itl], n_itls[completed] of each */
    uint32_t *n_itls;
    size_t cap, n_itl, cap_itl;
    double prompt, computed, injected, resident, output; /* mean tokens a request */
    double good[BENCH_SERVE_SLO]; /* completed requests a second with TTFT within 2 and 4 idle text TTFTs */
    char error[200];              /* of the first that failed */
} bench_serve_row;

/* kv over text or plain at one load, window by window. */
typedef struct bench_serve_ratio {
    uint32_t users, n;
    bench_serve_arm under;        /* BENCH_SERVE_TEXT or _PLAIN */
    double rate, quotients[BENCH_SERVE_PAIRS], median, lo, hi;
} bench_serve_ratio;

typedef struct bench_serve_result {
    bench_serve_row *rows;        /* [n_loads][BENCH_SERVE_ARMS] */
    bench_serve_ratio *ratios;    /* [n_loads][2]: over text, over plain */
    /* [n_users] requests a second of text at each place, when they were tried; 0 = not tried */
    double (*trials)[BENCH_SERVE_PLACES];
    size_t n_loads;
    double idle_text_ms, idle_kv_ms; /* TTFT of one request on an idle server, medians;
                                            text where it is faster */
    uint32_t n_owners, facts, markers_found, markers_told; /* who found the marker among the facts; whose answer says it */
    bool ignores_eos;             /* the server takes ignore_eos: every answer has its full length */
    double remember_s, encode_s;
    char model[128], server[160];
} bench_serve_result;

/* The server's owners are named bench-SEED-N and stay there. E_IO (no answer), E_UNSUPPORTED (it lacks what is needed), E_CANCELLED. */
is_status bench_serve_run(const bench_serve_options *options, bench_serve_result *out);
void bench_serve_result_free(bench_serve_result *r);

#endif
