/* serve_kit.h - a server in a thread of the test (mock engine, a store and a port of its own), and a small HTTP client on raw sockets.
 *
 *   serve_kit *k = serve_start("parallel", "2", "max_queue", "4", NULL);        // settings as in the file
 *   serve_reply r = serve_call(k, "POST", "/search", "X-A: b\r\n", "{\"query\": \"tea\", \"user_id\": \"anna\"}");
 *   assert_int_equal(r.status, 200);                                            // r.json, r.body, serve_head(&r, "X-Request-Id")
 *   serve_reply_free(&r);
 *   serve_stop(k);
 *
 * Everything asserts. One server at a time in a process. */
#ifndef TESTS_SERVE_KIT_H
#define TESTS_SERVE_KIT_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "serve/config.h"
#include "serve/http_run.h"

typedef struct serve_kit {
    is_config config;
    char *home; /* removed by serve_stop, unless `home` was given */
    int port;
    is_status ended; /* of is_server_run; after serve_stop */
    /* private */
    bool own_home, is_ready, is_over;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    char error[1024];
} serve_kit;

/* Pairs of a setting's name and value, NULL ends them. Host, port, engine, refine and log are set already (127.0.0.1, 0, mock, none,
 * off). Returns when it is ready: the model is loaded. */
serve_kit *serve_start(const char *name, ...);
/* The same where the start is to fail: returns the status, the sentence in error (1024 bytes). */
is_status serve_start_fails(char *error, const char *name, ...);
/* Ends it (if is_server_stop has not) and frees; its end must be INFERSCALE_OK. */
void serve_stop(serve_kit *k);
/* Waits until it has ended by itself; then serve_stop frees it. */
void serve_join(serve_kit *k);

typedef struct serve_reply {
    int status;        /* 0 = the connection ended without a reply */
    char *head, *body; /* NUL-terminated; chunks are put together */
    size_t n;          /* of body */
    json_t *json;      /* the body, if it is JSON; else NULL */
    bool whole;        /* the body came to its end; the connection may be used again unless closes */
    bool closes;
    size_t cap;                /* private */
} serve_reply;

/* One request on a connection of its own. headers: lines with \r\n, or NULL; body NULL = none. */
serve_reply serve_call(const serve_kit *k, const char *method, const char *target, const char *headers, const char *body);
void serve_reply_free(serve_reply *r);
/* Until as many wait for the engine, by /metrics; headers: as serve_call. */
void serve_until_waiting(const serve_kit *k, const char *headers, int n);
/* A header of the reply, in one of 4 rotating buffers of the thread; NULL = not there. */
const char *serve_head(const serve_reply *r, const char *name);

/* Reads give up after so long without a byte, from now on; 20 s where nobody says. Before other
 * threads read. */
void serve_be_patient(int ms);

/* Piece by piece. */
int serve_connect(const serve_kit *k);
void serve_send(int fd, const void *p, size_t n); /* a closed connection is no failure: the reply tells */
void serve_sendf(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
serve_reply serve_read(int fd, const char *method); /* method: HEAD has no body */
/* True if the peer ends the connection within ms. */
bool serve_ended(int fd, int ms);

/* The data of the n-th `data:` event of a stream, as a string to free(); NULL = there are fewer. */
char *serve_event(const serve_reply *r, size_t n);
size_t serve_events(const serve_reply *r);

#endif
