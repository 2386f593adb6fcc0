/* http.h - the HTTP face: whole requests in, replies out, whole or as a stream. libmicrohttpd is behind this and nowhere else.
 *
 * A request is read whole (bounded), its key is checked, and then its route's function runs on a worker thread, where it may block. It
 * replies exactly once: is_reply_*, or is_stream_begin, any number of is_stream_write, is_stream_end. What it forgets to reply is a 500. */
#ifndef IS_SERVE_HTTP_H
#define IS_SERVE_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "inferscale.h"

typedef struct is_server is_server;
typedef struct is_request is_request;
typedef struct is_key is_key;          /* keys.h */

/* How errors look: OpenAI's {"error": {message, type, param, code}}, or Mem0's {"detail": message}. */
typedef enum is_face { IS_FACE_OPENAI, IS_FACE_MEMORY } is_face;

enum {
    IS_ROUTE_OPEN = 1,                 /* needs no key: health, the page's own files */
    IS_ROUTE_ENGINE = 2,               /* waits for the engine: queued apart from short work, bounded, 429 when the queue is full */
    IS_ROUTE_ADMIN = 4,                /* where there are keys: only for one that says admin. Metrics, reset, the whole store */
    IS_ROUTE_WORKER = 16,              /* for a worker's pass, and for no key of a client's (workers.h) */
    IS_ROUTE_ANSWERS = 8,              /* the model tells an answer: what the metrics count as running and waiting, as vLLM does */
};

typedef struct is_route {
    const char *method, *path;         /* "GET", "/memories/{id}": {name} is one segment; a trailing slash matches too */
    void (*handle)(is_server *s, is_request *r);
    is_face face;
    unsigned flags;
} is_route;

/* Each face's table; method NULL ends it. Listed in server.c. */
extern const is_route is_routes_openai[], is_routes_memory[], is_routes_own[], is_routes_mcp[], is_routes_ops[], is_routes_page[],
    is_worker_routes[];

/* ---- What was asked ------------------------------------------------------------------------------------------------------ */

/* Strings live as long as the request. NULL = not there. */
const char *is_request_method(const is_request *r);
const char *is_request_path(const is_request *r);
const char *is_request_param(const is_request *r, const char *name);  /* of the route's path, percent-decoded */
const char *is_request_query(const is_request *r, const char *name);
const char *is_request_header(const is_request *r, const char *name); /* case does not matter */
const char *is_request_id(const is_request *r);                       /* the caller's X-Request-Id if it is decent, else our own */
const void *is_request_body(const is_request *r, size_t *len);        /* NUL-terminated behind len */
/* The body as a JSON object, parsed at the first call (borrowed). NULL: it was none, and 400 has been replied; just return. */
json_t *is_request_json(is_request *r);
/* Becomes non-zero when the client of an engine's route or of a stream has hung up (closing its sending side counts), the server ends at
 * once, or generate_s are over; is_reply_failed knows which. Read it with __atomic_load_n. */
const volatile int *is_request_cancel(const is_request *r);
const is_key *is_request_key(const is_request *r);                    /* NULL = the server has no keys */
double is_request_age_ms(const is_request *r);                        /* since its first byte was read */

/* ---- What is replied ----------------------------------------------------------------------------------------------------- */

void is_reply_header(is_request *r, const char *name, const char *value); /* before the reply; copied */
void is_reply_json(is_request *r, int status, json_t *body);              /* steals body; NULL = 500, out of memory */
void is_reply_bytes(is_request *r, int status, const char *type, const void *data, size_t len); /* copied */
/* An error in the route's face. type and code as OpenAI has them ("invalid_request_error", "model_not_found"); param may be NULL. */
void is_reply_error(is_request *r, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* The library's failure: status and type from st (E_INVALID, E_PARSE 400; E_DENIED 403; E_NOTFOUND 404; E_CONTEXT 400
 * context_length_exceeded; E_BUSY 429 with Retry-After; E_FULL, E_READONLY 507; E_UNSUPPORTED 400; E_CANCELLED 499; E_ENGINE of servers that
 * compute elsewhere 503 with Retry-After; else 500). The message is inferscale_error(). Call it on the thread that failed. */
void is_reply_failed(is_request *r, inferscale_status st, const char *param);
/* The `code` of such an error, wherever it stands: one spelling for all of them. NULL = OpenAI has none for it (a wrong field, a wrong key). */
const char *is_error_code(const is_server *s, inferscale_status st);
/* What a client is told of a failure: where keys keep users apart, no sentence says where servers and files are; the whole of it is for the
 * log alone. said, or what stands in out then. is_told_of is the same of what was logged before. */
enum { IS_TOLD_BYTES = 1200 };
const char *is_error_message(const is_server *s, inferscale_status st, const char *said, char out[IS_TOLD_BYTES]);
const char *is_told_of(const is_server *s, inferscale_status st, const char *said, char out[IS_TOLD_BYTES]);

/* A stream. write copies; it blocks while the client is more than a bound behind, and is false when it has hung up or is too slow. */
bool is_stream_begin(is_request *r, int status, const char *type);
bool is_stream_write(is_request *r, const void *data, size_t len);
void is_stream_end(is_request *r);
/* The stream's end where its time is over or the server ends, when nothing can be written any more: an event that says so. Does nothing
 * in any other case, nor behind half an event: the connection is then cut. */
void is_stream_end_cancelled(is_request *r);
/* One SSE event `data: JSON`; steals v. */
bool is_stream_event(is_request *r, json_t *v);

/* For the log line of this request: numbers and short names, never text of prompts or memories. */
void is_request_note(is_request *r, const char *key, const char *value);

#endif
