/* client.h - one HTTP POST of JSON with limits on time and size. */
#ifndef IS_EMBED_HTTP_CLIENT_H
#define IS_EMBED_HTTP_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct http_client http_client; /* keeps its connection; one thread at a time */

/* url: where to POST; key: sent as a bearer token, or NULL. E_INVALID: a key with control characters; E_NOMEM. */
is_status http_client_new(const char *url, const char *key, http_client **out);
void http_client_free(http_client *c);   /* NULL is allowed */

typedef struct http_call {
    const volatile int *cancel, *stop; /* polled, also while waiting: E_CANCELLED. NULL = none */
    uint32_t wait_ms;        /* until the first byte of an answer, all tries together; 0 = HTTP_PATIENCE_MS */
} http_call;

enum { HTTP_PATIENCE_MS = 60000 };

bool http_call_off(const http_call *call); /* is one of its flags set? */

/* Posts body; *code = the HTTP status, *response its body (at most 64 MiB), cleared first. Waits and repeats twice when the
 * server says 429 or 503 and the call may still wait. Redirects are not followed: the key would go elsewhere. E_ENGINE names the
 * URL, the cause and the next step; the key is in no message. */
is_status http_client_post(http_client *c, const char *body, long *code, is_buf *response, const http_call *call);

#endif
