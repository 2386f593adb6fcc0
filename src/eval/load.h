/* load.h - a load generator for any OpenAI endpoint: streamed chat completions, many at once, one thread.
 *
 * Closed loop: so many users, each sends its next request when its last one has ended. Open loop (rate > 0): requests come at random
 * times (Poisson, from a seed), whether or not the server keeps up. Times are taken when bytes arrive, by one monotonic clock. */
#ifndef IS_EVAL_LOAD_H
#define IS_EVAL_LOAD_H

#include <jansson.h>

#include "base/buf.h"
#include "base/status.h"

/* One request and what came of it. */
typedef struct load_sample {
    uint32_t number, user;     /* of the window's requests; whose it is */
    long status;               /* HTTP; 0 = no reply */
    bool completed;            /* 200, a finish_reason, [DONE] */
    bool cut;                  /* the window was over: ended by us, no failure */
    double begun_ms, ttft_ms, e2el_ms; /* begun: since the window's begin. ttft, e2el: since it was sent (closed) or due (open) */
    uint32_t n_tokens;         /* completion tokens: the server's usage if it says so, else pieces */
    uint32_t n_prompt;         /* prompt tokens as usage says */
    uint32_t n_cached;         /* of these, so many were not computed, as usage says */
    double *itl_ms;            /* [n_itl] between pieces of text */
    size_t n_itl, cap_itl;
    char finish[24];           /* finish_reason */
    is_buf text;               /* of the answer */
    json_t *memory;            /* the answer's `memory`, of the last chunk that had it; NULL = none */
    char error[200];           /* why it failed; "" */
} load_sample;

typedef struct load_options {
    const char *url, *key;     /* "http://127.0.0.1:8080" (an added /v1 is cut); key NULL = none */
    uint32_t users;
    double rate;               /* requests a second, 0 = closed loop */
    uint64_t seed;
    uint32_t n;                /* requests to complete */
    double seconds_max;        /* then what is under way is cut, once n_min have been completed; 0 = no bound */
    uint32_t n_min;
    char *(*body)(void *ctx, uint32_t number, uint32_t user); /* the request's JSON for is_free; NULL = out of memory */
    void *ctx;
    const volatile int *cancel;
    bool (*on_done)(void *ctx, const load_sample *s); /* after each; false stops. May be NULL */
} load_options;

typedef struct load_result {
    load_sample *samples;      /* in the order they were begun */
    size_t n, n_completed, n_failed, n_cut;
    double seconds;            /* from the first request sent (due) to the last one ended */
    double offered;            /* requests a second as they came due; 0 = closed loop */
} load_result;

/* Runs one window. E_INVALID, E_NOMEM, E_CANCELLED; a server that fails or is not there gives failed samples, no error. */
is_status load_run(const load_options *o, load_result *out);
void load_result_free(load_result *r);

/* One call outside of measurements. *out = the reply's JSON (may be NULL), *status the HTTP code. body NULL = no body. E_IO: no reply. */
is_status load_call(const char *url, const char *key, const char *method, const char *path, const json_t *body, long *status, json_t **out);

void load_sample_free(load_sample *s);

#endif
