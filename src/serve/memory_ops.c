/* memory_ops.c - finding, listing, changing and forgetting memories. The scope's agent, run and app are held against every memory that is
 * named by its id: the store itself looks at the partition only. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/time.h"
#include "exchange/json.h"
#include "serve/memory.h"

enum { PAGE = 500, TOP_K = 20, TOP_K_MAX = 1000 };

static is_status no_memory(void) { return is_fail(INFERSCALE_E_NOMEM, "out of memory"); }

static is_status not_found(int64_t id)
{
    return is_fail(INFERSCALE_E_NOTFOUND, "Memory with id %lld not found", (long long)id);
}

/* ---- Fields ---------------------------------------------------------------------------------------------------------------- */

static is_status check_fields(json_t *fields)
{
    size_t i;
    json_t *name;

    if (fields && !json_is_array(fields)) return is_fail(INFERSCALE_E_INVALID, "fields must be a list of names");
    json_array_foreach(fields, i, name)
        if (!json_is_string(name)) return is_fail(INFERSCALE_E_INVALID, "fields must be a list of names");
    return INFERSCALE_OK;
}

/* Only the members named; the id always. Steals o. */
static json_t *only(json_t *o, json_t *fields)
{
    json_t *cut, *name;
    size_t i;

    if (!fields) return o;
    cut = json_object();
    json_object_set(cut, "id", json_object_get(o, "id"));
    json_array_foreach(fields, i, name)
    {
        json_t *v = json_object_get(o, json_string_value(name));

        if (v) json_object_set(cut, json_string_value(name), v);
    }
    json_decref(o);
    return cut;
}

/* ---- Search ---------------------------------------------------------------------------------------------------------------- */

static const char *const known_search[] = { "query", "top_k", "limit", "threshold", "fields", "explain", "rerank",
                                            "keyword_search", "latest_only",
                                            "show_expired", "as_of", "filters", "user_id", "agent_id", "run_id", "app_id", "version",
                                            "output_format", "org_id", "project_id", "metadata", "source", NULL };

typedef struct search {
    inferscale_recall_options o;
    const char *query;
    size_t top_k;
    json_t *fields;
    unsigned with;
} search;

static is_status must_be_off(json_t *o, const char *name, bool off, const char *why)
{
    json_t *v = json_object_get(o, name);

    if (!v || json_is_null(v)) return INFERSCALE_OK;
    if (!json_is_boolean(v)) return is_fail(INFERSCALE_E_INVALID, "%s must be true or false", name);
    if (json_is_true(v) == off)
        return is_fail(INFERSCALE_E_INVALID, "%s: %s cannot be honoured: %s", name, off ? "true" : "false", why);
    return INFERSCALE_OK;
}

static is_status read_number(json_t *o, search *s)
{
    json_t *k = json_object_get(o, "top_k"), *threshold = json_object_get(o, "threshold"), *as_of = json_object_get(o, "as_of");

    if (!k || json_is_null(k)) k = json_object_get(o, "limit");
    s->top_k = TOP_K;
    if (k && !json_is_null(k)) {
        if (!json_is_integer(k) || json_integer_value(k) < 0 || json_integer_value(k) > TOP_K_MAX)
            return is_fail(INFERSCALE_E_INVALID, "top_k must be a whole number from 0 to %d", TOP_K_MAX);
        s->top_k = (size_t)json_integer_value(k);
    }
    s->o.has_threshold = threshold && !json_is_null(threshold);
    if (s->o.has_threshold && !is_threshold_read(threshold, &s->o.threshold))
        return is_fail(INFERSCALE_E_INVALID, "threshold must be a number from 0 to 1");
    return is_member_when(as_of, "as_of", &s->o.as_of);
}

static is_status read_search(json_t *o, search *s)
{
    json_t *query = json_object_get(o, "query"), *explain = json_object_get(o, "explain");

    *s = (search){ .o = INFERSCALE_RECALL_OPTIONS_INIT, .query = json_string_value(query), .fields = json_object_get(o, "fields") };
    IS_TRY(is_members_check(o, "the request", known_search));
    if (!s->query) return is_fail(INFERSCALE_E_INVALID, "query must be a string");
    if (json_is_null(s->fields)) s->fields = NULL;
    IS_TRY(check_fields(s->fields));
    IS_TRY(must_be_off(o, "rerank", true, "there is no second ranking; words and meaning are ranked together"));
    IS_TRY(must_be_off(o, "show_expired", true, "what has expired is not searched; list it with show_expired"));
    IS_TRY(must_be_off(o, "latest_only", false, "what was superseded is found with as_of"));
    if (explain && !json_is_boolean(explain) && !json_is_null(explain))
        return is_fail(INFERSCALE_E_INVALID, "explain must be true or false");
    s->with = IS_MEMORY_SCORE | (json_is_true(explain) ? IS_MEMORY_EXPLAIN : 0);
    return read_number(o, s);
}

inferscale_status is_memory_search(inferscale *is, const inferscale_scope *scope, json_t *request, const is_filter *f,
                                   json_t *about, json_t **results)
{
    inferscale_list *list = NULL;
    char *metadata = NULL;
    search s;
    is_status st;

    *results = NULL;
    IS_TRY(read_search(request, &s));
    if (json_object_size(f->metadata)) {
        metadata = is_json_string(f->metadata);
        if (!metadata) return no_memory();
    }
    s.o.metadata = metadata;
    s.o.from = f->from;
    s.o.to = f->to;
    if (f->as_of && s.o.as_of && is_time_seconds(f->as_of) != is_time_seconds(s.o.as_of)) {
        is_free(metadata);
        return is_fail(INFERSCALE_E_INVALID,
                       "as_of of the filter is another time than as_of beside it; give one");
    }
    if (f->as_of) s.o.as_of = f->as_of;
    s.o.k = (uint32_t)(s.top_k ? s.top_k : 1);
    st = inferscale_recall(is, scope, s.query, &s.o, &list);
    is_free(metadata);
    if (st != INFERSCALE_OK) return st;
    if (about) is_json_search(about, list);
    *results = json_array();
    for (size_t i = 0; i < list->n && json_array_size(*results) < s.top_k; i++)
        json_array_append_new(*results, only(is_memory_json(&list->items[i], s.with), s.fields));
    inferscale_list_free(list);
    return INFERSCALE_OK;
}

/* ---- List ------------------------------------------------------------------------------------------------------------------ */

/* Equal as the store has it: 1 and 1.0 are one number. */
static bool same(json_t *a, json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool has_metadata(const inferscale_item *t, json_t *want)
{
    json_t *have, *v;
    const char *name;
    bool all = true;

    if (json_object_size(want) == 0) return true;
    have = json_loads(t->metadata && *t->metadata ? t->metadata : "{}", 0, NULL);
    json_object_foreach(want, name, v)
    {
        json_t *h = json_object_get(have, name);

        if (!h || !same(h, v)) all = false;
    }
    json_decref(have);
    return all;
}

static bool passes(const inferscale_item *t, const is_filter *f, const is_memory_page *p)
{
    if ((!p->show_expired && t->expired) || (p->latest && t->superseded_by)) return false;
    if (f->from && is_time_seconds(t->event_time) < is_time_seconds(f->from)) return false;
    if (f->to && is_time_seconds(t->event_time) > is_time_seconds(f->to)) return false;
    return has_metadata(t, f->metadata);
}

static void take(const inferscale_item *t, is_memory_page *p, json_t *results)
{
    size_t at = p->total++;

    if (at < p->skip) return;
    if (json_array_size(results) < p->limit) {
        json_array_append_new(results, only(is_memory_json(t, 0), p->fields));
        p->after = t->id;
    } else if (!p->next) {
        p->next = p->after;
    }
}

inferscale_status is_memory_list(inferscale *is, const inferscale_scope *scope, const is_filter *f, is_memory_page *p, json_t **results)
{
    int64_t after = p->after;
    size_t n = PAGE;

    *results = NULL;
    p->total = 0;
    p->next = 0;
    IS_TRY(check_fields(p->fields));
    if (f->as_of)
        return is_fail(
            INFERSCALE_E_INVALID,
            "as_of of the filter is for searches; a memory's history says what held when");
    *results = json_array();
    while (*results && n == PAGE && (p->count || !p->next)) {
        inferscale_list *list = NULL;
        is_status st = inferscale_ls(is, scope, INFERSCALE_FACTS, after, PAGE, &list);

        n = st == INFERSCALE_OK ? list->n : 0;
        for (size_t i = 0; i < n; i++) {
            after = list->items[i].id;
            if (passes(&list->items[i], f, p)) take(&list->items[i], p, *results);
        }
        inferscale_list_free(list);
        if (st == INFERSCALE_OK) continue;
        json_decref(*results);
        *results = NULL;
        return st;
    }
    return *results ? INFERSCALE_OK : no_memory();
}

/* ---- One memory ------------------------------------------------------------------------------------------------------------ */

static bool fits(const char *wanted, const char *there) { return !wanted || !*wanted || !strcmp(wanted, there ? there : ""); }

inferscale_status is_memory_versions(inferscale *is, const inferscale_scope *scope, int64_t id, inferscale_list **out)
{
    is_status st = inferscale_show(is, scope, id, out);
    const inferscale_item *t = st == INFERSCALE_OK ? &(*out)->items[(*out)->n - 1] : NULL;

    if (st == INFERSCALE_E_NOTFOUND) return not_found(id);
    if (st != INFERSCALE_OK) return st;
    if (t->kind == INFERSCALE_FACTS && fits(scope->user, t->user) && fits(scope->agent, t->agent) && fits(scope->run, t->run) &&
        fits(scope->app, t->app))
        return INFERSCALE_OK;
    inferscale_list_free(*out);
    *out = NULL;
    return not_found(id);
}

/* ---- Update ---------------------------------------------------------------------------------------------------------------- */

static const char *const known_update[] = { "text", "memory", "data", "metadata", "timestamp", "expiration_date", "expires",
                                            "memory_id", "user_id",
                                            "agent_id", "run_id", "app_id", NULL };

/* The members that the request gives over those that are there; NULL = as it was, or no memory (*st). In a new string. */
static char *merged(const inferscale_item *t, json_t *change, is_status *st)
{
    json_t *m;
    char *out;

    if (!change || json_is_null(change)) return NULL;
    m = json_loads(t->metadata && *t->metadata ? t->metadata : "{}", 0, NULL);
    out = m && json_object_update(m, change) == 0 ? is_json_string(m) : NULL;
    json_decref(m);
    if (!out) *st = no_memory();
    return out;
}

/* What changes. A text without a time keeps created_at and holds from now on, but nobody said when that happened: the prompt shows no
 * date. With a time it is of that time. */
static is_status read_update(json_t *o, const inferscale_item *t, inferscale_fact *f)
{
    static const char *const names[] = { "text", "memory", "data" };
    json_t *when = json_object_get(o, "timestamp"), *text = NULL, *metadata = json_object_get(o, "metadata");
    bool expiry = json_object_get(o, "expiration_date") || json_object_get(o, "expires"), date = when && !json_is_null(when);

    IS_TRY(is_members_check(o, "the request", known_update));
    for (size_t i = 0; i < 3 && (!text || json_is_null(text)); i++) text = json_object_get(o, names[i]);
    if (json_is_null(text)) text = NULL;
    if (text && !json_is_string(text)) return is_fail(INFERSCALE_E_INVALID, "text must be a string");
    if (metadata && !json_is_object(metadata) && !json_is_null(metadata))
        return is_fail(INFERSCALE_E_INVALID, "metadata must be an object");
    if (!text && !date && !expiry && !json_is_object(metadata))
        return is_fail(INFERSCALE_E_INVALID, "At least one of text, metadata, timestamp or expiration_date must be given");
    *f = (inferscale_fact){ .text = text ? json_string_value(text) : t->text, .event_time = t->event_time, .valid_from = t->valid_from,
                            .valid_to = t->superseded_by ? 0 : t->valid_to, .expires = t->expires, .source_turn = t->source_turn,
                            .undated = !t->dated };
    if (text && strcmp(f->text, t->text) != 0) {
        f->valid_from = is_now_epoch();
        f->undated = 1;
    }
    if (date) {
        IS_TRY(is_member_when(when, "timestamp", &f->event_time));
        f->valid_from = 0;
        f->undated = 0;
    }
    return expiry ? is_expiry_parse(o, &f->expires) : INFERSCALE_OK;
}

static bool is_immutable(const inferscale_item *t)
{
    json_t *m = json_loads(t->metadata && *t->metadata ? t->metadata : "{}", 0, NULL);
    bool immutable = json_is_true(json_object_get(m, "immutable"));

    json_decref(m);
    return immutable;
}

static is_status change(inferscale *is, const inferscale_scope *scope, const inferscale_item *t, json_t *request)
{
    inferscale_fact f;
    is_status st = INFERSCALE_OK;
    char *metadata;

    if (is_immutable(t))
        return is_fail(INFERSCALE_E_INVALID, "memory %lld is immutable; delete it and add another", (long long)t->id);
    if (t->superseded_by)
        return is_fail(INFERSCALE_E_INVALID, "memory %lld was superseded by %lld; update that one", (long long)t->id,
                       (long long)t->superseded_by);
    IS_TRY(read_update(request, t, &f));
    f.metadata = metadata = merged(t, json_object_get(request, "metadata"), &st);
    if (st == INFERSCALE_OK) st = inferscale_update(is, scope, t->id, &f);
    is_free(metadata);
    return st == INFERSCALE_E_NOTFOUND ? not_found(t->id) : st; /* forgotten in between */
}

inferscale_status is_memory_update(inferscale *is, const inferscale_scope *scope, int64_t id, json_t *request, json_t **memory)
{
    inferscale_list *list = NULL;
    is_status st;

    *memory = NULL;
    IS_TRY(is_memory_versions(is, scope, id, &list));
    st = change(is, scope, &list->items[list->n - 1], request);
    inferscale_list_free(list);
    if (st != INFERSCALE_OK) return st;
    IS_TRY(is_memory_versions(is, scope, id, &list));
    *memory = is_memory_json(&list->items[list->n - 1], 0);
    inferscale_list_free(list);
    return INFERSCALE_OK;
}

/* ---- Forget ---------------------------------------------------------------------------------------------------------------- */

typedef struct ids { int64_t *p; size_t n, cap; } ids;

static bool has_id(const ids *l, int64_t id)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->p[i] == id) return true;
    return false;
}

static is_status put_id(ids *l, int64_t id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        int64_t *more = is_realloc(l->p, cap * sizeof *more);

        if (!more) return no_memory();
        l->p = more;
        l->cap = cap;
    }
    l->p[l->n++] = id;
    return INFERSCALE_OK;
}

/* A fact's successor has the greater id, so a walk backwards would find the chain at once; ids are listed upwards: again until none is new. */
static is_status add_linked(inferscale *is, const inferscale_scope *scope, ids *l)
{
    size_t before = 0;

    while (before != l->n) {
        int64_t after = 0;
        size_t n = PAGE;

        before = l->n;
        while (n == PAGE) {
            inferscale_list *list = NULL;
            is_status st = inferscale_ls(is, scope, INFERSCALE_FACTS, after, PAGE, &list);

            n = st == INFERSCALE_OK ? list->n : 0;
            for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
                const inferscale_item *t = &list->items[i];

                after = t->id;
                if (t->superseded_by && has_id(l, t->superseded_by) && !has_id(l, t->id)) st = put_id(l, t->id);
            }
            inferscale_list_free(list);
            if (st != INFERSCALE_OK) return st;
        }
    }
    return INFERSCALE_OK;
}

inferscale_status is_memory_delete(inferscale *is, const inferscale_scope *scope, int64_t id, bool linked, size_t *n)
{
    inferscale_list *list = NULL;
    ids l = { 0 };
    is_status st;

    *n = 0;
    IS_TRY(is_memory_versions(is, scope, id, &list));
    inferscale_list_free(list);
    st = put_id(&l, id);
    if (st == INFERSCALE_OK && linked) st = add_linked(is, scope, &l);
    if (st == INFERSCALE_OK) st = inferscale_forget(is, scope, l.p, l.n, n);
    is_free(l.p);
    return st == INFERSCALE_OK && *n == 0 ? not_found(id) : st; /* somebody else was faster */
}

/* ---- Owners ---------------------------------------------------------------------------------------------------------------- */

inferscale_status is_memory_owners(inferscale *is, const inferscale_scope *scope, const char *tenant, json_t **out)
{
    inferscale_usage_report *u = NULL;

    *out = NULL;
    IS_TRY(inferscale_usage(is, scope, &u));
    *out = json_array();
    for (size_t i = 0; *out && i < u->n; i++) {
        const inferscale_usage_row *r = &u->rows[i];

        if (strcmp(r->what, "text") != 0 || r->n == 0 || (tenant && strcmp(tenant, r->tenant) != 0)) continue;
        json_array_append_new(*out, json_pack("{s:s,s:s,s:s,s:s,s:I}", "id", r->owner, "name", r->owner, "type", r->owner_kind,
                                              "tenant", r->tenant,
                                              "total_memories", (json_int_t)r->n));
    }
    inferscale_usage_free(u);
    return *out ? INFERSCALE_OK : no_memory();
}
