/* memory_infer.h - adding memories, with infer. */
#ifndef IS_SERVE_MEMORY_INFER_H
#define IS_SERVE_MEMORY_INFER_H

#include "serve/server.h"

/* As is_memory_add; infer: true, or without it a model that has passed its self-test: the facts
 * that a model finds (extract.h). *cancel (may be NULL) is polled while an endpoint is waited
 * for. */
inferscale_status is_memory_add_or_infer(is_server *s, const inferscale_scope *scope,
                                         json_t *request, const volatile int *cancel,
                                         json_t **results);

#endif
