/* config.h - the server's settings. One table (config.c) gives the flag --NAME, the variable INFERSCALE_NAME and the line `name = value`
 * of the file; flags go before variables, those before the file. */
#ifndef IS_SERVE_CONFIG_H
#define IS_SERVE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inferscale.h"

typedef struct is_config {
    /* the store and the model: as inferscale_options */
    char *home, *model, *embedder, *engine, *plugins, *system, *policy, *refine, *codec;
    uint32_t ctx, threads, parallel;       /* parallel: requests in the engine at once */
    uint64_t ram;
    bool read_only;
    /* listening */
    char *host;                            /* 127.0.0.1; another address needs keys */
    uint32_t port;
    char *keys, *tls_cert, *tls_key, *cors; /* files; cors: allowed origin, "" = off */
    uint32_t max_connections, max_queue;   /* max_queue: requests waiting for the engine */
    uint64_t max_body;                     /* bytes */
    uint32_t read_s, idle_s, drain_s, generate_s; /* seconds: to send a request, between requests, to drain, to generate */
    char *alias;                           /* further names of the model, commas between */
    /* behaviour */
    uint32_t k;                            /* facts when a request does not say */
    char *mode;                            /* kv, text or none when a request does not say */
    double audit;                          /* share of answers to audit, 0 to 1 */
    char *extractor, *extractor_model, *extractor_key; /* an OpenAI endpoint for infer: true; "" = the served model */
    char *log;                             /* json, text or off */
} is_config;

#endif
