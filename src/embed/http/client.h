/* client.h - one HTTP POST of JSON with limits on time and size. */
#ifndef IS_EMBED_HTTP_CLIENT_H
#define IS_EMBED_HTTP_CLIENT_H

#include "base/buf.h"
#include "base/status.h"

typedef struct http_client http_client; /* keeps its connection; one thread at a time */

/* url: where to POST; key: sent as a bearer token, or NULL. E_INVALID: a key with control characters; E_NOMEM. */
is_status http_client_new(const char *url, const char *key, http_client **out);
void http_client_free(http_client *c);   /* NULL is allowed */

/* Posts body; *code = the HTTP status, *response its body (at most 64 MiB), cleared first. Waits and repeats twice when the
 * server says 429 or 503. Redirects are not followed: the key would go elsewhere. E_ENGINE names the URL, the cause and the
 * next step; the key is in no message. cancel (may be NULL) is polled, also while waiting: E_CANCELLED. */
is_status http_client_post(http_client *c, const char *body, long *code, is_buf *response, const volatile int *cancel);

#endif
