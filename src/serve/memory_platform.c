/* memory_platform.c - what Mem0's platform has and its open-source server has not: pages, owners, batches. What the platform does for its
 * own business (exports by a model, profiles, webhooks, projects) is refused in one sentence. */
#include <ctype.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/status.h"
#include "serve/keys.h"
#include "serve/memory_http.h"
#include "serve/server.h"

enum { PAGE_SIZE = 100, PAGE_SIZE_MAX = 1000, BATCH_MAX = 1000, UNPAGED_MAX = 10000 };

/* MemoryClient does not begin without an organisation and a project. */
void is_platform_ping(is_server *s, is_request *r)
{
    (void)s;
    is_reply_json(r, 200, json_pack("{s:s,s:s,s:s,s:n}", "status", "ok", "org_id", "inferscale", "project_id", "default", "user_email"));
}

void is_platform_not_here(is_server *s, is_request *r)
{
    const char *path = is_request_path(r);

    is_memory_failed(s, r, "platform",
                     is_fail(INFERSCALE_E_UNSUPPORTED, "%s is Mem0's platform's own and is not served here%s", path,
                             strstr(path, "export") ? "; GET /inferscale/export gives all memories of an owner as JSON Lines"
                             : strstr(path, "configure") ? "; settings are the server's own (inferscale serve --help)" : ""));
}

/* ---- Pages ----------------------------------------------------------------------------------------------------------------- */

static const char *const known_list[] = { "filters", "user_id", "agent_id", "run_id", "app_id", "start_date", "end_date", "show_expired",
                                          "latest_only", "page", "page_size", "fields", "top_k", "limit", "version", "output_format", "org_id",
                                          "project_id", "source", NULL };

/* filters and the dates beside them as one filter. */
static is_status filter_of(json_t *body, is_filter *f)
{
    json_t *given = json_object_get(body, "filters"), *from = json_object_get(body, "start_date"), *to = json_object_get(body, "end_date");
    json_t *both = json_pack("{s:[o,{s:{s:o,s:o}}]}", "AND", given && !json_is_null(given) ? json_incref(given) : json_object(), "created_at",
                             "gte", from ? json_incref(from) : json_null(), "lte", to ? json_incref(to) : json_null());
    is_status st = both ? is_filter_parse(both, f) : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    json_decref(both);
    return st;
}

/* page and page_size, from the query or the body. *paged = they were asked for. */
static bool read_page(is_server *s, is_request *r, json_t *body, int64_t *page, int64_t *size, bool *paged)
{
    static const char *const names[] = { "page", "page_size" };
    int64_t *const to[] = { page, size };

    *page = 1;
    *size = PAGE_SIZE;
    *paged = false;
    for (int i = 0; i < 2; i++) {
        json_t *v = json_object_get(body, names[i]);
        int64_t max = i ? PAGE_SIZE_MAX : 1000000;

        if (!is_memory_number(s, r, "list", names[i], 1, max, to[i])) return false;
        if (is_request_query(r, names[i])) *paged = true;
        if (!v || json_is_null(v)) continue;
        if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max) {
            is_memory_failed(s, r, "list", is_fail(INFERSCALE_E_INVALID, "%s must be a whole number from 1 to %lld", names[i], (long long)max));
            return false;
        }
        *to[i] = json_integer_value(v);
        *paged = true;
    }
    return true;
}

/* &name=value of the query, so that a link leads to the same owner. */
static void add_same(is_buf *b, is_request *r, const char *name)
{
    const char *v = is_request_query(r, name);

    if (!v) return;
    is_buf_fmt(b, "&%s=", name);
    for (; *v; v++) {
        if (isalnum((unsigned char)*v) || strchr("-._~", *v)) is_buf_add(b, v, 1);
        else is_buf_fmt(b, "%%%02X", (unsigned char)*v);
    }
}

static json_t *page_link(is_request *r, int64_t page, int64_t size, bool there)
{
    static const char *const same[] = { "user_id", "agent_id", "run_id", "app_id", "show_expired" };
    is_buf b = IS_BUF_INIT;
    json_t *link;

    if (!there) return json_null();
    is_buf_fmt(&b, "%s?page=%lld&page_size=%lld", is_request_path(r), (long long)page, (long long)size);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) add_same(&b, r, same[i]);
    link = is_buf_ok(&b) ? json_stringn((const char *)b.data, b.len) : NULL;
    is_buf_free(&b);
    return link;
}

static json_t *paged_json(is_request *r, const is_memory_page *p, int64_t page, int64_t size, json_t *results)
{
    return json_pack("{s:I,s:o,s:o,s:o}", "count", (json_int_t)p->total, "next", page_link(r, page + 1, size, p->next != 0), "previous",
                     page_link(r, page - 1, size, page > 1), "results", results);
}

/* NULL: replied. */
static json_t *list(is_server *s, is_request *r, json_t *body, is_memory_page *p)
{
    json_t *results = NULL, *latest = json_object_get(body, "latest_only");
    const char *asked = is_request_query(r, "show_expired");
    is_filter f;
    is_owner o;
    is_status st = body ? is_members_check(body, "the request", known_list) : INFERSCALE_OK;

    if (st == INFERSCALE_OK && latest && !json_is_boolean(latest) && !json_is_null(latest))
        st = is_fail(INFERSCALE_E_INVALID, "latest_only must be true or false");
    p->show_expired = json_is_true(json_object_get(body, "show_expired")) || (asked && (!strcmp(asked, "true") || !strcmp(asked, "1")));
    p->latest = json_is_true(latest);
    p->fields = json_object_get(body, "fields");
    if (json_is_null(p->fields)) p->fields = NULL;
    if (st == INFERSCALE_OK) st = filter_of(body, &f);
    if (st != INFERSCALE_OK) {
        is_memory_failed(s, r, "list", st);
        return NULL;
    }
    if (is_memory_owner(s, r, "list", body, &f, &o)) {
        st = is_memory_list(s->is, &o.scope, &f, p, &results);
        if (st != INFERSCALE_OK) is_memory_failed(s, r, "list", st);
    }
    is_filter_free(&f);
    return results;
}

/* always: an object with pages also where none were asked for. */
static void list_pages(is_server *s, is_request *r, json_t *body, bool always)
{
    int64_t page, size;
    bool paged;
    is_memory_page p = { .count = true };
    json_t *results;

    if (!read_page(s, r, body, &page, &size, &paged)) return;
    paged |= always;
    p.skip = paged ? (size_t)((page - 1) * size) : 0;
    p.limit = paged ? (size_t)size : UNPAGED_MAX;
    results = list(s, r, body, &p);
    if (!results) return;
    if (!paged && p.next) { /* a list cannot say that it is not all */
        json_decref(results);
        is_memory_failed(s, r, "list", is_fail(INFERSCALE_E_INVALID, "these are %zu memories; ask for them by page and page_size", p.total));
        return;
    }
    is_memory_reply(s, r, "list", paged ? paged_json(r, &p, page, size, results) : results);
}

void is_platform_list(is_server *s, is_request *r)
{
    json_t *body = is_request_json(r);

    if (body) list_pages(s, r, body, true);
}

void is_platform_list_v2(is_server *s, is_request *r)
{
    json_t *body = is_request_json(r);

    if (body) list_pages(s, r, body, false);
}

void is_platform_list_v1(is_server *s, is_request *r)
{
    static const char *const no[] = { "filters", "metadata", "categories", "keywords", "created_at", "start_date", "end_date",
                                      "fields", "top_k", "limit", NULL };

    if (is_memory_query_free_of(s, r, "list", no)) list_pages(s, r, NULL, false);
}

/* ---- Owners ---------------------------------------------------------------------------------------------------------------- */

void is_platform_entities(is_server *s, is_request *r)
{
    const is_key *k = is_request_key(r);
    json_t *owners = NULL;
    is_owner o;
    is_status st = is_scope_read(r, NULL, &o);

    if (st != INFERSCALE_OK) return;
    st = is_memory_owners(s->is, o.given ? &o.scope : NULL, k && !k->admin ? k->tenant : NULL, &owners);
    if (st == INFERSCALE_OK)
        is_memory_reply(s, r, "entities", json_pack("{s:I,s:n,s:n,s:o}", "count", (json_int_t)json_array_size(owners), "next",
                                                    "previous", "results", owners));
    else is_memory_failed(s, r, "entities", st);
}

void is_platform_delete_entity(is_server *s, is_request *r)
{
    static const char *const types[] = { "user", "agent", "run", "app" }, *const members[] = { "user_id", "agent_id", "run_id", "app_id" };
    const char *type = is_request_param(r, "type"), *name = is_request_param(r, "name"), *member = NULL;
    json_t *from;
    size_t n = 0;
    is_owner o;
    is_status st;

    for (size_t i = 0; type && i < 4; i++)
        if (!strcmp(types[i], type)) member = members[i];
    if (!member) {
        is_memory_failed(s, r, "delete_all", is_fail(INFERSCALE_E_NOTFOUND,
                                                     "there are no entities of type %.40s; user, agent, run and app are known", type));
        return;
    }
    from = json_pack("{s:s}", member, name);
    st = is_scope_read(r, from, &o);
    json_decref(from);
    if (st != INFERSCALE_OK) return;
    st = inferscale_forget_all(s->is, &o.scope, &n);
    if (st == INFERSCALE_OK && n == 0) st = INFERSCALE_E_NOTFOUND;
    if (st == INFERSCALE_E_NOTFOUND) st = is_fail(st, "nothing is remembered of this %s", type);
    if (st == INFERSCALE_OK)
        is_memory_reply(s, r, "delete_all", json_pack("{s:s,s:I}", "message", "Entity deleted successfully!", "deleted", (json_int_t)n));
    else is_memory_failed(s, r, "delete_all", st);
}

/* ---- Batches --------------------------------------------------------------------------------------------------------------- */

/* The list of the body, each with its memory found before the first is touched; is_free. NULL: replied. */
static is_memory_at *read_batch(is_server *s, is_request *r, const char *operation, json_t **list)
{
    json_t *body = is_request_json(r), *each;
    size_t i, n = json_array_size(json_object_get(body, "memories"));
    is_memory_at *at;

    *list = json_object_get(body, "memories");
    if (!body) return NULL;
    at = n && n <= BATCH_MAX ? is_calloc(n, sizeof *at) : NULL;
    if (!at) {
        is_memory_failed(s, r, operation, is_fail(n && n <= BATCH_MAX ? INFERSCALE_E_NOMEM : INFERSCALE_E_INVALID,
                                                  "memories must be a list of 1 to %d objects with memory_id", BATCH_MAX));
        return NULL;
    }
    json_array_foreach(*list, i, each)
    {
        inferscale_list *l = NULL;
        is_status st;

        if (!is_memory_find(s, r, operation, json_string_value(json_object_get(each, "memory_id")), NULL, &at[i])) break;
        st = is_memory_versions(s->is, &at[i].scope, at[i].id, &l);
        inferscale_list_free(l);
        if (st == INFERSCALE_OK) continue;
        is_memory_failed(s, r, operation, st);
        break;
    }
    if (i == n) return at;
    is_free(at);
    return NULL;
}

/* One after the other; what fails half-way says how many were done. */
static void reply_batch(is_server *s, is_request *r, const char *operation, const char *done, size_t n, size_t of, is_status st)
{
    char why[1024];

    if (st == INFERSCALE_OK) {
        is_memory_reply(s, r, operation, json_pack("{s:o}", "message", json_sprintf("Successfully %s %zu memories", done, n)));
        return;
    }
    snprintf(why, sizeof why, "%s", inferscale_error());
    is_memory_failed(s, r, operation, is_fail(st, "%zu of %zu memories were %s; then: %s", n, of, done, why));
}

void is_platform_batch_update(is_server *s, is_request *r)
{
    json_t *list, *memory;
    is_memory_at *at = read_batch(s, r, "update", &list);
    size_t n = 0, of = json_array_size(list);
    is_status st = INFERSCALE_OK;

    if (!at) return;
    while (n < of && st == INFERSCALE_OK) {
        st = is_memory_update(s->is, &at[n].scope, at[n].id, json_array_get(list, n), &memory);
        if (st != INFERSCALE_OK) break;
        json_decref(memory);
        n++;
    }
    reply_batch(s, r, "update", "updated", n, of, st);
    is_free(at);
}

void is_platform_batch_delete(is_server *s, is_request *r)
{
    json_t *list;
    is_memory_at *at = read_batch(s, r, "delete", &list);
    size_t n = 0, of = json_array_size(list), deleted;
    is_status st = INFERSCALE_OK;

    if (!at) return;
    while (n < of && st == INFERSCALE_OK) {
        st = is_memory_delete(s->is, &at[n].scope, at[n].id, false, &deleted);
        n += st == INFERSCALE_OK;
    }
    reply_batch(s, r, "delete", "deleted", n, of, st);
    is_free(at);
}
