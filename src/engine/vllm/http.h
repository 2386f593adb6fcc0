/* http.h - requests to servers over libcurl: answers whole, or in pieces as they come.
 *
 * A line is what one thread waits on: some requests at once, to one server or several. Lines are kept with their connections, so
 * the next request finds one open. A request that is closed before its end has its connection cut: that is how a server learns
 * that nobody waits for the answer. */
#ifndef IS_ENGINE_VLLM_HTTP_H
#define IS_ENGINE_VLLM_HTTP_H

#include "base/buf.h"
#include "base/status.h"

typedef struct vllm_http vllm_http; /* the key and the idle lines; any thread */
typedef struct vllm_line vllm_line; /* one thread at a time */
typedef struct vllm_call vllm_call; /* one request on a line */

/* How a request ended. */
typedef enum vllm_end {
    VLLM_PENDING,
    VLLM_ANSWERED,                  /* whole; its HTTP status may say no */
    VLLM_UNREACHABLE,               /* no connection came about: nothing was sent */
    VLLM_BROKEN,                    /* the connection broke */
    VLLM_SILENT,                    /* nothing came for too long */
    VLLM_TOO_LARGE,
    VLLM_NO_MEMORY,
} vllm_end;

/* What a request waits for at most. */
typedef struct vllm_patience { uint32_t connect_ms, silent_ms; } vllm_patience;

/* key: sent as a bearer token, or NULL. E_INVALID: a key with blanks or control characters; E_NOMEM. */
is_status vllm_http_new(const char *key, vllm_http **out);
void vllm_http_free(vllm_http *h);                           /* NULL is allowed; no line may be out */
is_status vllm_line_take(vllm_http *h, vllm_line **out);
void vllm_line_give(vllm_line *l);                           /* its calls are closed; NULL is allowed */

/* Starts a request: POST of body (copied), or GET where body is NULL. An answer of more than max bytes that wait to be read is
 * VLLM_TOO_LARGE. Nothing is sent before the line is waited on. */
is_status vllm_call_open(vllm_line *l, const char *base_url, const char *path, const char *body, size_t max, vllm_patience patience,
                         vllm_call **out);
void vllm_call_close(vllm_call *c);                          /* NULL is allowed */

/* Sends and receives for all calls of the line; comes back when something came for one of them, when one ended, or after ms. */
void vllm_line_wait(vllm_line *l, uint32_t ms);

vllm_end vllm_call_end(const vllm_call *c);
long vllm_call_code(const vllm_call *c);                     /* HTTP status; 0 = not known yet */
is_buf *vllm_call_body(vllm_call *c);                        /* what came; the reader may take from it */
const char *vllm_call_url(const vllm_call *c);
/* The sentence for an end that is no answer; E_ENGINE or E_NOMEM. */
is_status vllm_call_fail(const vllm_call *c);
/* The sentence for an answer whose HTTP status says no; *retry: another server may do better.
 *
 * What a status is about: E_INVALID and E_UNSUPPORTED (no retry), the request: any server would say so. E_BUSY, the moment. E_DENIED (the
 * key), E_NOTFOUND (no such path or model) and E_ENGINE, the server: it has failed. */
is_status vllm_call_refused(const vllm_call *c, bool *retry);
/* The same of a status that came otherwise; says: the server's sentence. */
is_status vllm_refused(const char *url, long code, const char *says, bool *retry);
/* What a server says went wrong, in one printable line without paths. */
void vllm_says(const uint8_t *body, size_t n, char out[240]);

#endif
