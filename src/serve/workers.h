/* workers.h - what workers on other hosts fetch from here and bring (docs/vllm.md, "Other hosts"): no part of the API of clients. */
#ifndef IS_SERVE_WORKERS_H
#define IS_SERVE_WORKERS_H

#include "serve/http.h"

/* Does the request have a pass of a worker's? Of IS_ROUTE_WORKER's head, before a body is read. false: refused, and replied. */
bool is_worker_authorise(is_server *s, is_request *r);

#endif
