/* config.h - the server's settings. One table gives the flag --NAME, the variable INFERSCALE_NAME and the line `name = value` of the
 * file; flags go before variables, those before the file. Help, `config check` and the parser are made of it. */
#ifndef IS_SERVE_CONFIG_H
#define IS_SERVE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "inferscale.h"

/* X(FIELD, "flag", KIND, "ARGUMENT", "default", min, max or choices, "help"). KIND: TEXT, COUNT, SIZE, SWITCH, NUMBER, CHOICE, SECRET. The
 * name of the variable and of the line in the file is the field's. Help shows the default of an X; the text of a Y says what none means. */
#define IS_CONFIG_MAP(X, Y) \
    Y(home, "home", TEXT, "FOLDER", "", 0, 0, "", "the store (default: ~/.local/share/inferscale)") \
    Y(model, "model", TEXT, "NAME", "", 0, 0, "", "a GGUF file or an installed name (default: smollm2-135m-instruct-q4_0)") \
    Y(embedder, "embedder", TEXT, "WHAT", "", 0, 0, "", "a GGUF file, an installed name, or http(s)://HOST/v1#MODEL") \
    X(embedder_wait_s, "embedder-wait-s", NUMBER, "SECONDS", "5", 0, 600, "", "how long a question waits for an HTTP embedder; then words serve") \
    Y(engine, "engine", TEXT, "NAME", "", 0, 0, "", "engine plug-in: llama (default), vllm or mock") \
    Y(upstream, "upstream", TEXT, "URL[,URL]", "", 0, 0, "", "engine vllm: its servers, e.g. http://127.0.0.1:8000; commas between") \
    Y(upstream_key, "upstream-key", SECRET, "KEY", "", 0, 0, "", "their API key (better: $INFERSCALE_UPSTREAM_KEY, which `ps` does not show)") \
    Y(plugins, "plugins", TEXT, "FOLDER", "", 0, 0, "", "where plug-ins are (default: beside the program)") \
    Y(system, "system", TEXT, "TEXT", "", 0, 0, "", "system text that facts are encoded after") \
    Y(policy, "policy", TEXT, "POLICY", "", 0, 0, "", "what a fact sees when it is encoded; see inferscale encode --help") \
    Y(refine, "refine", TEXT, "POLICY", "", 0, 0, "", "the same for the second stage, in idle time; none = off") \
    Y(codec, "codec", CHOICE, "CODEC", "", 0, 0, "default|auto|f16|bf16|f32|int8|int4", \
      "how KV is stored, from now on (unset: as the store has it); default = int8, auto = as the model holds it") \
    Y(ctx, "ctx", COUNT, "TOKENS", "0", 0, 1 << 24, "", "engine context; 0 = 8192, or what the model was trained for") \
    Y(threads, "threads", COUNT, "N", "0", 0, 1024, "", "threads of the engine; 0 = physical cores") \
    X(parallel, "parallel", COUNT, "N", "4", 1, 256, "", "requests in the engine at once; with engine vllm 32 unless set") \
    X(ram, "ram", SIZE, "SIZE", "1G", 1 << 20, INT64_MAX, "", "budget of the KV kept in memory") \
    X(question_embed_ms, "question-embed-ms", COUNT, "MS", "50", 0, 60000, "", \
      "a question first embeds what is new of its owner, so long at most; 0 = never") \
    X(encode_lag_s, "encode-lag-s", NUMBER, "SECONDS", "5", -1, 86400, "", \
      "facts that have waited so long get KV while questions are open too; 0 = all do, -1 = none") \
    X(encode_share, "encode-share", NUMBER, "SHARE", "0.1", 0, 1, "", "share of that time that the encoder gets at first") \
    X(encode_share_most, "encode-share-most", NUMBER, "SHARE", "0.5", 0, 1, "", "it grows with the lag up to this one") \
    X(flash_attention, "flash-attention", CHOICE, "WHEN", "auto", 0, 0, "auto|on|off", \
      "auto = what is faster for injected memory, measured when the model loads") \
    Y(read_only, "read-only", SWITCH, NULL, "off", 0, 0, "", "never write to the store") \
    Y(start_empty, "start-empty", SWITCH, NULL, "off", 0, 0, "", "where the bank is lost: begin a new memory, and keep the rest in HOME/lost-N") \
    X(host, "host", TEXT, "ADDRESS", "127.0.0.1", 0, 0, "", "address to listen on; any but this machine's own needs keys") \
    X(port, "port", COUNT, "N", "8080", 0, 65535, "", "port to listen on; 0 = any free one") \
    Y(hosts, "hosts", TEXT, "NAMES", "", 0, 0, "", "without keys: further names this server is called by, commas between; * = any") \
    Y(keys, "keys", TEXT, "FILE", "", 0, 0, "", "API keys, one a line; read again when it changes") \
    Y(tls_cert, "tls-cert", TEXT, "FILE", "", 0, 0, "", "certificate (PEM) for https") \
    Y(tls_key, "tls-key", TEXT, "FILE", "", 0, 0, "", "its private key (PEM)") \
    Y(cors, "cors", TEXT, "ORIGIN", "", 0, 0, "", "pages of this origin may use the server, e.g. https://app.example; * = any") \
    X(max_connections, "max-connections", COUNT, "N", "512", 1, 100000, "", "open connections; more hear 503") \
    X(max_queue, "max-queue", COUNT, "N", "256", 0, 100000, "", "requests that wait for the engine; more hear 429") \
    X(max_body, "max-body", SIZE, "SIZE", "16M", 1024, 1 << 30, "", "longest request") \
    X(read_s, "read-s", COUNT, "SECONDS", "30", 1, 86400, "", "time to send a request") \
    X(idle_s, "idle-s", COUNT, "SECONDS", "75", 1, 86400, "", "time between two requests of a connection") \
    X(drain_s, "drain-s", COUNT, "SECONDS", "30", 0, 86400, "", "time that requests get to end when the server ends") \
    X(generate_s, "generate-s", COUNT, "SECONDS", "600", 1, 86400, "", "longest time to answer one request") \
    Y(alias, "alias", TEXT, "NAMES", "", 0, 0, "", "further names of the model, commas between") \
    X(k, "k", COUNT, "N", "10", 1, 1000, "", "facts when a request does not say") \
    X(mode, "mode", CHOICE, "MODE", "kv", 0, 0, "kv|text|none", "what is done with facts when a request does not say") \
    X(audit, "audit", NUMBER, "SHARE", "0", 0, 1, "", "share of answers that is compared with its text twin in idle time") \
    Y(extractor, "extractor", TEXT, "URL", "", 0, 0, "", "OpenAI endpoint for infer: true, e.g. https://HOST/v1; none = the served model") \
    Y(extractor_model, "extractor-model", TEXT, "NAME", "", 0, 0, "", "its model") \
    Y(extractor_key, "extractor-key", SECRET, "KEY", "", 0, 0, "", "its API key (better: $INFERSCALE_EXTRACTOR_KEY, which `ps` does not show)") \
    X(log, "log", CHOICE, "FORM", "auto", 0, 0, "auto|json|text|off", "log on stderr; auto = text on a terminal, else json")

enum is_setting_id {
#define IS_X(field, flag, kind, arg, fallback, min, max, choices, help) IS_SET_##field,
    IS_CONFIG_MAP(IS_X, IS_X)
#undef IS_X
    IS_N_SETTINGS
};

typedef enum is_set_by { IS_BY_DEFAULT, IS_BY_FILE, IS_BY_VARIABLE, IS_BY_FLAG } is_set_by;

typedef struct is_config {
    /* the store and the model: as inferscale_options */
    char *home, *model, *embedder, *engine, *upstream, *upstream_key, *plugins, *system, *policy, *refine, *codec;
    uint32_t ctx, threads, parallel;       /* parallel: requests in the engine at once */
    uint64_t ram;
    char *flash_attention;                 /* auto, on or off */
    bool read_only, start_empty;
    uint32_t question_embed_ms;
    double encode_lag_s, encode_share, encode_share_most; /* encoding while questions are open */
    /* listening */
    char *host;                            /* 127.0.0.1; another address needs keys */
    uint32_t port;
    char *hosts;                           /* names beside the loopback's that Host may say when there are no keys; "*" = any */
    char *keys, *tls_cert, *tls_key, *cors; /* files; cors: allowed origin, "" = off */
    uint32_t max_connections, max_queue;   /* max_queue: requests waiting for the engine */
    uint64_t max_body;                     /* bytes */
    uint32_t read_s, idle_s, drain_s, generate_s; /* seconds: to send a request, between requests, to drain, to generate */
    char *alias;                           /* further names of the model, commas between */
    /* behaviour */
    uint32_t k;                            /* facts when a request does not say */
    char *mode;                            /* kv, text or none when a request does not say */
    double embedder_wait_s;
    double audit;                          /* share of answers to audit, 0 to 1 */
    char *extractor, *extractor_model, *extractor_key; /* an OpenAI endpoint for infer: true; "" = the served model */
    char *log;                             /* auto, json, text or off */
    /* where each came from; line: of the file */
    struct { is_set_by by; uint32_t line; } from[IS_N_SETTINGS];
} is_config;

/* Strings are never NULL: "" = not given. */
is_status is_config_init(is_config *c);         /* all defaults. E_NOMEM */
void is_config_free(is_config *c);

/* Each reports every error there is to on_error (NULL = none) and returns the first. A setting that was set by something stronger
 * stays. In tests: is_config_set(&c, "port", "0", IS_BY_FLAG, 0). */
typedef void (*is_config_error)(void *ctx, const char *sentence);
is_status is_config_set(is_config *c, const char *name, const char *value, is_set_by by, uint32_t line);
is_status is_config_text(is_config *c, const char *path, char *text, size_t n, is_config_error on_error, void *ctx); /* text is taken apart */
is_status is_config_file(is_config *c, const char *path, is_config_error on_error, void *ctx);
is_status is_config_environment(is_config *c, char **environment, is_config_error on_error, void *ctx);
/* What no single value says: a public address without keys, half of a TLS pair. */
is_status is_config_check(const is_config *c, is_config_error on_error, void *ctx);

const char *is_config_name(enum is_setting_id id);
bool is_config_secret(enum is_setting_id id);
/* The value as the file would have it; a new string for is_free. */
char *is_config_value(const is_config *c, enum is_setting_id id);
/* Requests in the engine at once. One that computes elsewhere batches by itself: many more where nobody said. */
uint32_t is_config_parallel(const is_config *c);
/* Only this machine can reach it. */
bool is_config_local(const is_config *c);

#endif
