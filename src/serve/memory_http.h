/* memory_http.h - what the handlers of Mem0's paths share: whose memory is meant, and how an operation ends. */
#ifndef IS_SERVE_MEMORY_HTTP_H
#define IS_SERVE_MEMORY_HTTP_H

#include "serve/http.h"
#include "serve/memory.h"
#include "serve/scope.h"

/* Every reply goes through one of these: it is counted as an operation of the memory API. failed: E_UNSUPPORTED is 501. */
void is_memory_reply(is_server *s, is_request *r, const char *operation, json_t *body);
void is_memory_failed(is_server *s, is_request *r, const char *operation, inferscale_status st);
/* 400 without any owner: nothing is ever done to everybody's memory because a name was left out. */
void is_memory_no_owner(is_server *s, is_request *r, const char *operation);

/* Names beside the filter's must be the same. The owner, from body, filter, query, headers and key. false: replied. */
bool is_memory_owner(is_server *s, is_request *r, const char *operation, json_t *body, const is_filter *f, is_owner *out);

/* The memory {id} of the path, or any id, and whose it is: the request's and key's owner, or, for those who may ask about every owner
 * and named none, its own. false: replied (404 also for ids that are none). */
typedef struct is_memory_at {
    int64_t id;
    inferscale_scope scope;    /* points into the two below */
    is_owner asked;
    inferscale_owner found;
} is_memory_at;
bool is_memory_find(is_server *s, is_request *r, const char *operation, const char *id, json_t *body, is_memory_at *out);

/* A whole number of the query. false: replied. */
bool is_memory_number(is_server *s, is_request *r, const char *operation, const char *name, int64_t min, int64_t max, int64_t *inout);
/* Names that the query must not have: what they would narrow is not narrowed by. false: replied. */
bool is_memory_query_free_of(is_server *s, is_request *r, const char *operation, const char *const names[]);

/* Handlers that more than one path has (memory.c); the rest of the platform's are in memory_platform.c. */
void is_memory_add_route(is_server *s, is_request *r);
void is_memory_get_route(is_server *s, is_request *r);
void is_memory_put_route(is_server *s, is_request *r);
void is_memory_delete_route(is_server *s, is_request *r);
void is_memory_delete_all_route(is_server *s, is_request *r);
void is_memory_history_route(is_server *s, is_request *r);
void is_memory_search_route(is_server *s, is_request *r);

void is_platform_ping(is_server *s, is_request *r);
void is_platform_list(is_server *s, is_request *r);         /* POST: {"count", "next", "previous", "results"} */
void is_platform_list_v2(is_server *s, is_request *r);      /* without pages a list */
void is_platform_list_v1(is_server *s, is_request *r);      /* GET, the same */
void is_platform_search_list(is_server *s, is_request *r);  /* a list, unless output_format is v1.1 */
void is_platform_entities(is_server *s, is_request *r);
void is_platform_delete_entity(is_server *s, is_request *r);
void is_platform_batch_update(is_server *s, is_request *r);
void is_platform_batch_delete(is_server *s, is_request *r);
void is_platform_not_here(is_server *s, is_request *r);     /* 501 */

#endif
