/* server.h - one server: the store it serves, its settings, and what its faces share. */
#ifndef IS_SERVE_SERVER_H
#define IS_SERVE_SERVER_H

#include "serve/config.h"
#include "serve/http.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/scope.h"

struct is_server {
    const is_config *config;
    inferscale *is;
    is_keys *keys;                 /* NULL = none needed (127.0.0.1 only) */
    is_metrics *metrics;
    struct is_http *http;
    struct is_audit *audit;        /* NULL = off */
    struct is_ops *ops;            /* ops.h */
    char model[128];               /* the name that is served, and accepted in requests */
    int64_t started;               /* seconds since the epoch */
    volatile int ready, draining;  /* atomic */
};

/* Opens the store, loads the model, listens. Blocks until is_server_stop was called and all requests have ended (or drain_s is over).
 * on_ready (may be NULL) is called with the port once it listens and the model is loaded; /health answers before that. */
inferscale_status is_server_run(const is_config *config, void (*on_ready)(void *ctx, const char *host, int port), void *ctx);
/* Drains and ends the server that runs in this process, or is about to; from a signal handler too. A second call cancels what runs. */
void is_server_stop(void);

#endif
