/* http_in.h - what the files of the HTTP face share; nobody else includes it.
 *
 * Threads: one of libmicrohttpd (sockets, parsing; never blocks), three pools of workers
 * (http_pool.c) that run routes, one that watches (http_watch.c: hang-ups, deadlines, pings).
 * Locks, outer first: http->lock (the table of connections), then request->lock (reply and
 * stream), then a pool's or libmicrohttpd's own.
 *
 * Bounds: max_connections (+ SPARE that hear /health or 503); 32 KiB of head a connection; one
 * body of max_body a request, body_max of them in all (a body of at most HTTP_SMALL always has
 * room); reply_max of whole replies that are not read (one of at most HTTP_SMALL always has
 * room); one job a connection, max_queue of them waiting for the engine; 64 KiB of stream a
 * request. No client uses up a bound: the holder of most gives way (http_conn.c, http_pool.c,
 * http_reply.c). */
#ifndef IS_SERVE_HTTP_IN_H
#define IS_SERVE_HTTP_IN_H

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/outside.h"
#include "serve/http_run.h"
#include "serve/server.h"

enum {
    HTTP_GRACE_MS =
        500, /* silent for less: what was read may be a head that is just being taken apart */
    HTTP_SPARE = 32, /* connections beyond the bound: they may ask for /health and /ready, others
                        are told so and closed */
    HTTP_HEAD =
        (32 << 10) +
        512, /* more than 32 KiB, so that it is mapped: zeros at first, and gone when it is freed */
    HTTP_HEADERS = 100, /* of a request */
    HTTP_QUERIES = 64,
    HTTP_PARAMS = 4,
    HTTP_NOTES = 12,
    HTTP_OUT_HEADERS = 16,
    HTTP_SHORT_WORKERS = 8,
    HTTP_AWAY = 64, /* of a pool's requests: wait for something outside, and hold no seat */
    HTTP_STREAM = 64 << 10, /* bytes a client may be behind */
    HTTP_SMALL = 64 << 10, /* bytes of a body or of a reply that no budget counts */
    HTTP_HURRY = 10, /* a stream that nobody reads gets 1/10 of slow_ms where another client waits
                        for its worker */
    HTTP_SWALLOW = 8 << 20, /* bytes of a refused body that are read before the connection is cut,
                               so that the client reads why */
    HTTP_VALUES = 1000000, /* JSON values of a body */
    HTTP_DEPTH = 64, /* of nesting */
};

typedef struct pair { const char *name, *value; } pair;

/* Why a request is to stop: the values of is_request_cancel. */
enum { CANCEL_NO, CANCEL_HUNG_UP, CANCEL_ENDING, CANCEL_TIME };

typedef enum conn_state {
    CONN_IDLE,                 /* waits for a request line */
    CONN_READ,                 /* head and body come */
    CONN_WORK,                 /* suspended: a worker has it, or it is queued */
    CONN_SEND,                 /* the reply goes out */
} conn_state;

/* Where a connection comes from. */
typedef struct conn_address {
    bool v4;
    uint64_t prefix;           /* as it is on the wire: an IPv4 address and zeros, or the first half of an IPv6 address */
} conn_address;

/* What one client holds: a key, or an address where no key was shown. */
typedef struct conn_peer {
    conn_address from;
    char key[sizeof((is_key *)NULL)->name]; /* "" = the address's */
    uint32_t n;                /* connections; 0 = the place is free */
    uint64_t held;             /* bytes of bodies or of replies: as was counted last */
} conn_peer;

typedef struct is_conn {
    int fd;                    /* -1 = the slot is free */
    conn_state state;
    uint32_t peer;             /* its holder's place in http->peers: of its address, then of the key that it showed last */
    bool cut;                  /* had to make room; it is about to end */
    bool spare;                /* came when the table was full and nothing could go */
    bool accepted;             /* of CONN_READ: the head was not refused, the rest of it is wanted */
    bool no_more;              /* the client has closed its side, and all it sent was read: as of the last look */
    double since;              /* of the state */
    double touched;            /* the last byte of its body came */
    is_request *request;
} is_conn;

typedef struct is_line is_line; /* one key's requests; http_pool.c */

typedef struct is_pool {
    struct is_http *http;
    pthread_mutex_t lock;
    pthread_cond_t more;
    is_line *lines;            /* the order of turns */
    uint32_t
        n_seats; /* requests that run at a time, but for those that wait for something outside */
    uint32_t away,
        coming; /* of the running: those that wait so; those that have, and want a seat again */
    pthread_cond_t seat;       /* for the coming */
    is_outside outside; /* what the workers' threads say when they wait for something outside */
    uint32_t waiting, running, max_waiting, n_threads;
    uint32_t answers_waiting, answers_running; /* of them, those of IS_ROUTE_ANSWERS */
    pthread_t *threads;
    double mean_ms;            /* how long a job runs, of late */
    bool stop, is_engine;
} is_pool;

struct is_http {
    is_server *s;
    const is_route *const *tables;
    is_http_tune tune;
    struct MHD_Daemon *daemon;
    char *cert, *key;          /* PEM, for libmicrohttpd's lifetime */
    int listener, port;
    char host[64];
    pthread_mutex_t lock;
    is_conn *conns;
    uint32_t n_slots, n_open, n_requests;
    uint32_t n_cut;            /* of the open ones: had to make room */
    conn_peer *peers;          /* [n_slots], in no order */
    uint64_t body_bytes, body_max; /* beyond HTTP_SMALL each, of the bodies that come or wait for a worker */
    uint64_t reply_bytes, reply_max; /* of whole replies beyond HTTP_SMALL that are going out */
    is_pool open, quick, engine;
    pthread_t watcher;
    struct pollfd *watch_fds;  /* [n_slots], as watch_at: the watcher's */
    uint32_t *watch_at;
    bool watching;
    bool has_thread;           /* libmicrohttpd's: known since the first request */
    pthread_t thread;
    volatile int stop_watching, draining, ending; /* atomic */
};

struct keep;                   /* a string that lives as long as the request */

struct is_request {
    is_server *server;
    struct is_http *http;
    struct MHD_Connection *con;
    is_conn *conn;             /* http->lock; NULL = the connection has done with the request */
    is_request *next;          /* in its line */
    is_line *line;             /* its key's, while it waits or runs; the pool's lock */
    const is_route *route;
    const char *method, *path, *query, *id;
    pair headers[HTTP_HEADERS], queries[HTTP_QUERIES], params[HTTP_PARAMS];
    size_t n_headers, n_queries, n_params;
    bool head;                 /* HEAD: no body goes out */
    bool is_1_1;
    bool begun, body_begun, dispatched, close_after, too_big, sizes_known;
    uint64_t body_said;        /* Content-Length */
    uint64_t swallowed;
    uint64_t held;             /* of body, counted in http->body_bytes; http->lock */
    uint64_t reply_held;       /* of its reply, counted in http->reply_bytes; http->lock */
    bool gave_way;             /* its body had to make room; http->lock */
    const char *raw_target, *raw_end; /* in libmicrohttpd's buffer: the request line's, and where the head was read to; http_raw.c */
    bool raw_bad;              /* something stands between the parts of the head */
    char holder[40];           /* whose turn it takes: its key's name, or its address */
    is_buf body;
    json_t *json;
    bool has_key;
    is_key key;
    double begun_ms;
    struct keep *kept;

    pthread_mutex_t lock;
    pthread_cond_t room;       /* the stream was read, or will not be any more */
    int refs;                  /* connection, worker, stream */
    volatile int cancel;       /* CANCEL_*; atomic */
    bool suspended, replied, closed, handled;
    double run_ms;             /* when its route began; 0 = not yet */
    int status;
    struct MHD_Response *response;
    pair out[HTTP_OUT_HEADERS], notes[HTTP_NOTES];
    size_t n_out, n_notes;

    bool streaming, ended, aborted, boundary, sse;
    char *ring;                /* [HTTP_STREAM] */
    size_t ring_at, ring_n;
    double wrote_ms, taken_ms;
    uint64_t bytes_out;
    double done_ms;            /* when the reply was out */
};

/* http_conn.c */
is_status is_conns_new(struct is_http *h);
is_conn *is_conn_of(struct MHD_Connection *con);
void is_conn_state(is_conn *c, conn_state state);                    /* under http->lock */
bool is_conn_spare(const struct is_http *h, is_conn *c);             /* under http->lock: one of those beyond max_connections */
bool is_conn_room_for(struct is_http *h, is_conn *c);                /* the same; one of the biggest holder's goes for it, if one may */
void is_conn_shows(struct is_http *h, is_conn *c, const is_key *key); /* the same; from now on it is one of this key's */
void is_conn_holder(const struct is_http *h, const is_conn *c, char out[40]); /* the same */
/* The same, on libmicrohttpd's thread. Bodies of whoever holds more than c's holder give way until the budget is kept; false = c's has most. */
bool is_conns_relieve(struct is_http *h, const is_conn *c);
void is_request_uncount(is_request *r);                              /* its body counts no more */
/* Under http->lock. Beyond the budget of replies those that are not read go, the biggest
 * holder's first. */
void is_replies_relieve(struct is_http *h);
void is_conns_look_again(struct is_http *h);                         /* the same; for those for whom nobody could go when they came */
void is_conn_notify(void *cls, struct MHD_Connection *con, void **context, enum MHD_ConnectionNotificationCode what);

/* http_request.c */
is_request *is_request_new(struct is_http *h, const char *target);
void is_request_unref(is_request *r);
void is_request_ref(is_request *r);
char *is_request_keep(is_request *r, const char *p, size_t n);      /* NULL = out of memory */
char *is_request_decode(is_request *r, const char *p, size_t n, bool plus); /* percent-decoded; NULL = malformed */
size_t is_request_count(const is_request *r, const char *header);

/* http_route.c: takes a header (false: no more of them); then checks the head and finds the route. What is refused has been replied. */
bool is_request_header_came(is_request *r, const char *name, size_t name_n, const char *value, size_t value_n);
void is_request_begin(is_request *r, const char *method, const char *version);
void is_request_head_bad(is_request *r); /* refuses it, and ends the connection */
is_face is_face_of_path(const char *path);                           /* where no route says it */

/* http_raw.c; all on libmicrohttpd's thread */
bool is_raw_needed(void);
void is_raw_line(is_request *r, const char *target);                 /* the request line is there */
void is_raw_begin(is_request *r, const char *method, const char *version); /* the head is there; then each header, in order */
bool is_raw_header(is_request *r, const char *name, size_t name_n, const char *value, size_t value_n); /* false: it is one of ours */
bool is_raw_good(const is_request *r);                               /* nothing was cut off a header */
bool is_raw_body(const is_request *r,
                 const char *data); /* its first bytes; false: the head ended with NULs */
void is_raw_said(struct is_http *h);                                 /* libmicrohttpd has said something to its log */

/* http_reply.c */
struct MHD_Response *is_reply_stream(is_request *r);
void is_request_cancel_for(is_request *r, int why);
void is_request_finish(is_request *r);                               /* its route is done: what was forgotten is a 500, or the stream's end */
void is_request_ping(is_request *r, double now);
void is_request_refused(is_request *r, const char *why);            /* counts */

/* http_log.c */
void is_request_log(is_request *r);

/* http_pool.c */
is_status is_pool_start(is_pool *p, struct is_http *h, uint32_t n_seats, uint32_t max_waiting);
/* False = full, stopped or out of memory. *out: what was waiting and had to make room for it; to be refused. NULL = nothing. */
bool is_pool_push(is_pool *p, is_request *r, is_request **out);
bool is_pool_take_out(is_pool *p, is_request *r);                    /* it was waiting; false = it runs, or never did */
uint32_t is_pool_retry_s(is_pool *p);                                /* when there may be room again */
bool is_pool_others_wait(is_pool *p, const is_request *r);           /* somebody else's request waits for a worker */
void is_pool_stop(is_pool *p);                                       /* what waits still runs; then nothing is taken any more */
void is_pool_free(is_pool *p);

/* http_watch.c */
is_status is_watch_start(struct is_http *h);
void is_watch_stop(struct is_http *h);
void is_conn_cut(is_request *r);                                     /* the connection ends now */

#endif
