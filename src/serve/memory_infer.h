/* memory_infer.h - adding memories, with infer. */
#ifndef IS_SERVE_MEMORY_INFER_H
#define IS_SERVE_MEMORY_INFER_H

#include "serve/server.h"

/* As is_memory_add; infer: true, or without it a model that has passed its self-test: the facts
 * that a model finds (extract.h). *cancel (may be NULL) is polled while an endpoint is waited
 * for. *inferred: whether a model was asked. */
inferscale_status is_memory_add_or_infer(is_server *s, const inferscale_scope *scope,
                                         json_t *request, const volatile int *cancel,
                                         json_t **results, bool *inferred);
/* The reply to the request: {"results": results}, which are stolen; where a model was asked and found
 * nothing also "note": why that may be, and the next step. NULL = out of memory. */
json_t *is_memory_added(is_server *s, json_t *results, bool inferred);

#endif
