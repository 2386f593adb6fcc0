/* memory.h - what the memory faces share (Mem0's paths, our own, MCP): requests read and checked, the calls they mean, memories as Mem0
 * writes them. Nothing here knows HTTP: a failure is a status and its sentence. */
#ifndef IS_SERVE_MEMORY_H
#define IS_SERVE_MEMORY_H

#include <jansson.h>
#include <stdbool.h>

#include "inferscale.h"

/* ---- Filters (memory_filter.c) --------------------------------------------------------------------------------------------- */

/* Mem0's filters as far as the store can honour them: owner names, equality of metadata, ranges of
 * created_at, joined by AND; and from, to and as_of, which are times at every entrance (metadata of
 * that name: inside metadata). */
typedef struct is_filter {
    json_t *names;             /* {"user_id": "anna", ...}: for is_scope_read */
    json_t *metadata;          /* members that must be equal; never NULL after a success */
    int64_t from, to;          /* event time in [from, to]; 0 = open */
    int64_t as_of;             /* what held then; 0 = now. For searches alone */
} is_filter;

/* filters NULL or null: none. E_INVALID names the member that cannot be honoured. */
inferscale_status is_filter_parse(json_t *filters, is_filter *out);
void is_filter_free(is_filter *f);
/* A member that may be a time (base/time.h); left out or null: *out stays as it is. what: for the sentence. E_INVALID. */
inferscale_status is_member_when(const json_t *v, const char *what, int64_t *out);
/* expires, or Mem0's expiration_date (the last day that counts), of o; 0 = neither. E_INVALID. */
inferscale_status is_expiry_parse(json_t *o, int64_t *out);
/* Members other than these (NULL ends them) are refused by name; null counts as left out. what: "the request". */
inferscale_status is_members_check(json_t *o, const char *what, const char *const known[]);

/* ---- Memories (memory_json.c) ---------------------------------------------------------------------------------------------- */

enum { IS_MEMORY_SCORE = 1, IS_MEMORY_EXPLAIN = 2 };

/* A fact as Mem0 returns it: id, memory, hash, metadata, score, created_at, updated_at, user_id, ... */
json_t *is_memory_json(const inferscale_item *t, unsigned with);
/* Its versions as Mem0's history has them, oldest first. */
json_t *is_memory_history_json(const inferscale_list *versions);
/* A number from 0 to 1, as scores are; false: it is none. */
bool is_threshold_read(const json_t *v, double *out);
/* "12" -> 12. false: no id (ids are decimal numbers above 0). */
bool is_memory_id(const char *s, int64_t *id);

/* ---- Operations (memory_add.c, memory_ops.c) ------------------------------------------------------------------------------- */

/* {messages or text, metadata, timestamp, expiration_date, infer, ...}: *results = [{id, memory, event, ...}]. E_UNSUPPORTED: infer. */
inferscale_status is_memory_add(inferscale *is, const inferscale_scope *scope, json_t *request, json_t **results);
extern const char *const is_memory_add_members[]; /* what such a request may hold; NULL ends it */

/* {query, top_k or limit, threshold, fields, explain, ...}: *results = memories, best first. about (an object, may be NULL) gets
 * what the search could not do: words_only, fallback, fallbacks (is_json_search). */
inferscale_status is_memory_search(inferscale *is, const inferscale_scope *scope, json_t *request, const is_filter *f,
                                   json_t *about, json_t **results);

typedef struct is_memory_page {
    int64_t after;             /* ids above this one */
    size_t skip, limit;        /* of what passes the filter; limit 0 = none are returned, only counted */
    bool show_expired, latest; /* latest: without what was superseded */
    bool count;                /* go on to the end, so that total is all there are */
    json_t *fields;            /* names to return; NULL = all */
    size_t total;              /* out: that passed */
    int64_t next;              /* out: the last id returned if there are more, else 0 */
} is_memory_page;
/* In id order: the oldest first. */
inferscale_status is_memory_list(inferscale *is, const inferscale_scope *scope, const is_filter *f, is_memory_page *page, json_t **results);

/* All versions of a fact of this scope, its agent, run and app included. E_NOTFOUND: also a turn, also somebody else's. */
inferscale_status is_memory_versions(inferscale *is, const inferscale_scope *scope, int64_t id, inferscale_list **out);
/* {text or memory or data, metadata, timestamp, expiration_date}: metadata is merged into what is there. *memory = how it is now. */
inferscale_status is_memory_update(inferscale *is, const inferscale_scope *scope, int64_t id, json_t *request, json_t **memory);
/* linked: also the facts that it took the place of, and those that these took the place of. */
inferscale_status is_memory_delete(inferscale *is, const inferscale_scope *scope, int64_t id, bool linked, size_t *n);

/* Every owner who has something: {"id", "name", "type", "tenant", "total_memories"}; of one scope (NULL = of all), of one tenant (NULL =
 * of all). */
inferscale_status is_memory_owners(inferscale *is, const inferscale_scope *scope, const char *tenant, json_t **out);

#endif
