/* pool.h - connections to one endpoint: each request has one of its own, and no request waits for another one's answer. */
#ifndef IS_EMBED_HTTP_POOL_H
#define IS_EMBED_HTTP_POOL_H

#include "embed/http/client.h"

typedef struct http_pool http_pool; /* any thread may use it */

enum { HTTP_POOL_MOST = 32 }; /* requests at a time; the next one waits, no longer than its call may */

is_status http_pool_new(const char *url, const char *key, http_pool **out); /* as http_client_new */
void http_pool_free(http_pool *p); /* NULL is allowed; no request may be under way */
/* As http_client_post. */
is_status http_pool_post(http_pool *p, const char *body, long *code, is_buf *response, const http_call *call);

#endif
