/* memory.c - Mem0's paths: those of its open-source server here, those of its platform, which MemoryClient calls, beside them
 * (memory_platform.c). */
#include "serve/memory_http.h"
#include "serve/memory_infer.h"

#include <string.h>

#include "base/status.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/server.h"

enum { LIST = 100, LIST_MAX = 1000 };

static const char *const not_narrowing[] = { "filters", "metadata", "categories", "keywords", "memory_ids", "ids", "created_at", "start_date",
                                             "end_date", "from", "to", "before", NULL };

/* ---- Add, search ----------------------------------------------------------------------------------------------------------- */

void is_memory_add_route(is_server *s, is_request *r)
{
    json_t *body = is_request_json(r), *results;
    is_filter f;
    is_owner o;
    is_status st;
    bool inferred;

    if (!body) return;
    st = is_filter_parse(json_object_get(body, "filters"), &f); /* the platform's way to say whose */
    if (st == INFERSCALE_OK && (json_object_size(f.metadata) || f.from || f.to || f.as_of)) {
        is_filter_free(&f);
        st = is_fail(INFERSCALE_E_INVALID, "filters of what is added may only name its owner (user_id, agent_id, run_id, app_id)");
    }
    if (st != INFERSCALE_OK) {
        is_memory_failed(s, r, "add", st);
        return;
    }
    if (is_memory_owner(s, r, "add", body, &f, &o)) {
        st = is_memory_add_or_infer(s, &o.scope, body, is_request_cancel(r), &results, &inferred);
        if (st == INFERSCALE_OK) is_memory_reply(s, r, "add", is_memory_added(s, results, inferred));
        else is_memory_failed(s, r, "add", st);
    }
    is_filter_free(&f);
}

/* A search needs the embedder, which is loaded after the model: waiting for that here would keep /health waiting too. */
static bool is_loading(is_server *s, is_request *r)
{
    if (__atomic_load_n(&s->ready, __ATOMIC_ACQUIRE)) return false;
    is_reply_header(r, "Retry-After", "2");
    is_metric_add(s->metrics, IS_M_MEMORY_OPS, "search", "refused", 1);
    is_reply_error(r, 503, "server_error", "loading", NULL, "the model is being loaded; try again in a moment");
    return true;
}

/* What the search could not do is counted, and said in a header too: some of Mem0's replies are bare lists. */
static void say_fallbacks(is_server *s, is_request *r, json_t *about)
{
    json_t *names = json_object_get(about, "fallbacks"), *name;
    size_t i;

    json_array_foreach(names, i, name)
    {
        is_metric_add(s->metrics, IS_M_FALLBACKS, json_string_value(name), NULL, 1);
        is_reply_header(r, "X-Inferscale-Fallback", json_string_value(name));
    }
}

/* Steals both. */
static json_t *with_results(json_t *about, json_t *results)
{
    json_t *o = json_pack("{s:o}", "results", results);

    if (o) json_object_update(o, about);
    json_decref(about);
    return o;
}

/* NULL: replied. */
static json_t *search(is_server *s, is_request *r, json_t *body, json_t *about)
{
    json_t *results = NULL;
    is_filter f;
    is_owner o;
    is_status st;

    if (is_loading(s, r)) return NULL;
    st = is_filter_parse(json_object_get(body, "filters"), &f);
    if (st != INFERSCALE_OK) {
        is_memory_failed(s, r, "search", st);
        return NULL;
    }
    if (is_memory_owner(s, r, "search", body, &f, &o)) {
        st = is_memory_search(s->is, &o.scope, body, &f, about, &results);
        if (st != INFERSCALE_OK) is_memory_failed(s, r, "search", st);
        else say_fallbacks(s, r, about);
    }
    is_filter_free(&f);
    return results;
}

void is_memory_search_route(is_server *s, is_request *r)
{
    json_t *about = json_object(), *body = is_request_json(r), *results = body ? search(s, r, body, about) : NULL;

    if (results) is_memory_reply(s, r, "search", with_results(about, results));
    else json_decref(about);
}

void is_platform_search_list(is_server *s, is_request *r)
{
    json_t *about = json_object(), *body = is_request_json(r), *results = body ? search(s, r, body, about) : NULL;
    const char *form = json_string_value(json_object_get(body, "output_format"));
    const bool bare = results && !(form && !strcmp(form, "v1.1"));

    if (results) is_memory_reply(s, r, "search", bare ? results : with_results(about, results));
    if (!results || bare) json_decref(about);
}

/* ---- List ------------------------------------------------------------------------------------------------------------------ */

static void list(is_server *s, is_request *r)
{
    is_memory_page p = { 0 };
    int64_t limit = LIST;
    const char *expired = is_request_query(r, "show_expired");
    json_t *results;
    is_filter f;
    is_owner o;
    is_status st;
    char next[24];

    if (is_request_query(r, "page") || is_request_query(r, "page_size")) {
        static const char *const other[] = { "limit", "after", "top_k", NULL }; /* two ways to turn pages do not mix */

        if (is_memory_query_free_of(s, r, "list", not_narrowing) && is_memory_query_free_of(s, r, "list", other)) is_platform_list_v1(s, r);
        return;
    }
    if (!is_memory_query_free_of(s, r, "list", not_narrowing) || !is_memory_number(s, r, "list", "top_k", 1, LIST_MAX, &limit) ||
        !is_memory_number(s, r, "list", "limit", 1, LIST_MAX, &limit) || !is_memory_number(s, r, "list", "after", 0, INT64_MAX, &p.after))
        return;
    p.limit = (size_t)limit;
    p.show_expired = expired && (!strcmp(expired, "true") || !strcmp(expired, "1"));
    if (!is_memory_owner(s, r, "list", NULL, NULL, &o)) return;
    st = is_filter_parse(NULL, &f);
    if (st == INFERSCALE_OK) {
        st = is_memory_list(s->is, &o.scope, &f, &p, &results);
        is_filter_free(&f);
    }
    if (st != INFERSCALE_OK) {
        is_memory_failed(s, r, "list", st);
        return;
    }
    snprintf(next, sizeof next, "%lld", (long long)p.next);
    is_memory_reply(s, r, "list", json_pack("{s:o,s:o}", "results", results, "next", p.next ? json_string(next) : json_null()));
}

/* ---- One memory ------------------------------------------------------------------------------------------------------------ */

static void serve_versions(is_server *s, is_request *r, const char *op, json_t *(*make)(const inferscale_list *versions))
{
    inferscale_list *l = NULL;
    is_memory_at at;
    is_status st;

    if (!is_memory_find(s, r, op, is_request_param(r, "id"), NULL, &at)) return;
    st = is_memory_versions(s->is, &at.scope, at.id, &l);
    if (st == INFERSCALE_OK) is_memory_reply(s, r, op, make(l));
    else is_memory_failed(s, r, op, st);
    inferscale_list_free(l);
}

static json_t *newest(const inferscale_list *versions)
{
    return is_memory_json(&versions->items[versions->n - 1], 0);
}

void is_memory_get_route(is_server *s, is_request *r)
{
    serve_versions(s, r, "get", newest);
}

void is_memory_history_route(is_server *s, is_request *r)
{
    serve_versions(s, r, "history", is_memory_history_json);
}

void is_memory_put_route(is_server *s, is_request *r)
{
    json_t *body = is_request_json(r), *memory;
    is_memory_at at;
    is_status st;

    if (!body || !is_memory_find(s, r, "update", is_request_param(r, "id"), body, &at)) return;
    st = is_memory_update(s->is, &at.scope, at.id, body, &memory);
    if (st != INFERSCALE_OK) {
        is_memory_failed(s, r, "update", st);
        return;
    }
    json_object_set_new(memory, "message", json_string("Memory updated successfully!"));
    is_memory_reply(s, r, "update", memory);
}

void is_memory_delete_route(is_server *s, is_request *r)
{
    const char *linked = is_request_query(r, "delete_linked");
    size_t n;
    is_memory_at at;
    is_status st;

    if (!is_memory_find(s, r, "delete", is_request_param(r, "id"), NULL, &at)) return;
    st = is_memory_delete(s->is, &at.scope, at.id, linked && (!strcmp(linked, "true") || !strcmp(linked, "1")), &n);
    if (st == INFERSCALE_OK)
        is_memory_reply(s, r, "delete", json_pack("{s:s,s:I}", "message", "Memory deleted successfully!", "deleted", (json_int_t)n));
    else is_memory_failed(s, r, "delete", st);
}

/* ---- Many ------------------------------------------------------------------------------------------------------------------ */

/* The request itself must say whose, whatever its key says: a call without a name is a mistake. */
static bool names_an_owner(is_request *r)
{
    return is_request_query(r, "user_id") || is_request_query(r, "agent_id") || is_request_query(r, "run_id") || is_request_query(r, "app_id");
}

void is_memory_delete_all_route(is_server *s, is_request *r)
{
    size_t n;
    is_owner o;
    is_status st;

    if (!is_memory_query_free_of(s, r, "delete_all", not_narrowing)) return;
    if (!names_an_owner(r)) {
        is_memory_no_owner(s, r, "delete_all");
        return;
    }
    if (!is_memory_owner(s, r, "delete_all", NULL, NULL, &o)) return;
    st = inferscale_forget_all(s->is, &o.scope, &n);
    if (st == INFERSCALE_E_NOTFOUND) {
        st = INFERSCALE_OK;
        n = 0;
    }
    if (st == INFERSCALE_OK)
        is_memory_reply(s, r, "delete_all", json_pack("{s:s,s:I}", "message", "Memories deleted successfully!", "deleted", (json_int_t)n));
    else is_memory_failed(s, r, "delete_all", st);
}

static is_status forget_everybody(inferscale *is, json_int_t *deleted)
{
    json_t *owners, *o;
    size_t i;
    is_status st;

    IS_TRY(is_memory_owners(is, NULL, NULL, &owners));
    st = INFERSCALE_OK;
    json_array_foreach(owners, i, o)
    {
        const char *type = json_string_value(json_object_get(o, "type")), *name = json_string_value(json_object_get(o, "name"));
        inferscale_scope scope = { .tenant = json_string_value(json_object_get(o, "tenant")) };
        size_t n = 0;

        *(*type == 'u' ? &scope.user : !strcmp(type, "agent") ? &scope.agent : *type == 'r' ? &scope.run : &scope.app) = name;
        st = inferscale_forget_all(is, &scope, &n);
        *deleted += (json_int_t)n;
        if (st != INFERSCALE_OK) break;
    }
    json_decref(owners);
    return st;
}

/* Mem0's clients send no body. An admin key is what says that it is meant; where there are no keys a word must say it. */
static void reset(is_server *s, is_request *r)
{
    size_t len = 0;
    json_t *body;
    json_int_t deleted = 0;
    is_status st;

    is_request_body(r, &len);
    body = len ? is_request_json(r) : NULL;
    if (len && !body) return;
    if (!is_request_key(r) && !json_is_true(json_object_get(body, "confirm"))) {
        is_memory_failed(s, r, "reset", is_fail(INFERSCALE_E_INVALID,
                                                "this forgets everything of everybody; send {\"confirm\": true} (or use an admin key)"));
        return;
    }
    st = forget_everybody(s->is, &deleted);
    if (st == INFERSCALE_OK)
        is_memory_reply(s, r, "reset", json_pack("{s:s,s:I}", "message", "All memories reset", "deleted", deleted));
    else is_memory_failed(s, r, "reset", st);
}

/* ---- The table ------------------------------------------------------------------------------------------------------------- */

#define ONE(method, path, handle) { method, path, handle, IS_FACE_MEMORY, 0 }
#define NOT_HERE(path)                                                                                                         \
    ONE("GET", path, is_platform_not_here), ONE("POST", path, is_platform_not_here), ONE("PUT", path, is_platform_not_here),   \
        ONE("DELETE", path, is_platform_not_here), ONE("PATCH", path, is_platform_not_here)

const is_route is_routes_memory[] = {
    ONE("POST", "/memories", is_memory_add_route),
    ONE("GET", "/memories", list),
    ONE("DELETE", "/memories", is_memory_delete_all_route),
    ONE("GET", "/memories/{id}", is_memory_get_route),
    ONE("PUT", "/memories/{id}", is_memory_put_route),
    ONE("DELETE", "/memories/{id}", is_memory_delete_route),
    ONE("GET", "/memories/{id}/history", is_memory_history_route),
    ONE("POST", "/search", is_memory_search_route),
    { "POST", "/reset", reset, IS_FACE_MEMORY, IS_ROUTE_ADMIN },
    /* the platform, as MemoryClient 2 calls it */
    ONE("GET", "/v1/ping", is_platform_ping),
    ONE("POST", "/v3/memories/add", is_memory_add_route),
    ONE("POST", "/v3/memories/search", is_memory_search_route),
    ONE("POST", "/v3/memories", is_platform_list),
    ONE("DELETE", "/v1/memories", is_memory_delete_all_route),
    ONE("GET", "/v1/memories/{id}", is_memory_get_route),
    ONE("PUT", "/v1/memories/{id}", is_memory_put_route),
    ONE("DELETE", "/v1/memories/{id}", is_memory_delete_route),
    ONE("GET", "/v1/memories/{id}/history", is_memory_history_route),
    ONE("GET", "/v1/entities", is_platform_entities),
    ONE("DELETE", "/v1/entities/{type}/{name}", is_platform_delete_entity),
    ONE("DELETE", "/v2/entities/{type}/{name}", is_platform_delete_entity),
    ONE("PUT", "/v1/batch", is_platform_batch_update),
    ONE("DELETE", "/v1/batch", is_platform_batch_delete),
    /* and as older ones did */
    ONE("POST", "/v1/memories", is_memory_add_route),
    ONE("GET", "/v1/memories", is_platform_list_v1),
    ONE("POST", "/v1/memories/search", is_platform_search_list),
    ONE("POST", "/v2/memories/search", is_platform_search_list),
    ONE("POST", "/v2/memories", is_platform_list_v2),
    NOT_HERE("/configure"),
    NOT_HERE("/v1/exports"),
    NOT_HERE("/v1/exports/get"),
    NOT_HERE("/v1/summary"),
    NOT_HERE("/v1/feedback"),
    NOT_HERE("/v2/entities/user/{name}/profile"),
    NOT_HERE("/v2/profiles/jobs"),
    NOT_HERE("/v2/profiles/jobs/{job}"),
    NOT_HERE("/v2/profiles/settings"),
    NOT_HERE("/api/v1/webhooks/{id}"),
    NOT_HERE("/api/v1/webhooks/projects/{id}"),
    NOT_HERE("/api/v1/orgs/organizations/{org}/projects"),
    NOT_HERE("/api/v1/orgs/organizations/{org}/projects/{project}"),
    NOT_HERE("/api/v1/orgs/organizations/{org}/projects/{project}/members"),
    { 0 },
};
