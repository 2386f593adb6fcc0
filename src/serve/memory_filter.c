/* memory_filter.c - Mem0's filters. What the store cannot honour is refused by name: a filter that is ignored returns what it was to
 * keep out. */
#include <string.h>

#include "base/nearest_name.h"
#include "base/status.h"
#include "exchange/json.h"
#include "serve/memory.h"

enum { DEPTH = 8 };

is_status is_member_when(const json_t *v, const char *what, int64_t *out)
{
    is_when when;

    if (!v || json_is_null(v)) return INFERSCALE_OK;
    IS_TRY(is_json_when(v, what, &when));
    *out = when.t;
    return INFERSCALE_OK;
}

/* What stands for it here. NULL: nothing that is known. */
static const char *other_name(const char *name, const char *const known[])
{
    static const char *const same[][2] = { { "event_time", "timestamp" }, { "time", "timestamp" }, { "date", "timestamp" },
                                           { "created_at", "timestamp" }, { "expires_at", "expires" } };

    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        for (size_t k = 0; strcmp(name, same[i][0]) == 0 && known[k]; k++)
            if (strcmp(known[k], same[i][1]) == 0) return known[k];
    return NULL;
}

static is_status unknown_member(const char *what, const char *name, const char *const known[])
{
    size_t n = 0;
    const char *near;

    while (known[n]) n++;
    near = other_name(name, known);
    if (!near) near = is_nearest_name(name, known, n);
    if (near) return is_fail(INFERSCALE_E_INVALID, "%s has a member \"%.60s\", which is not served here; did you mean %s?", what, name, near);
    return is_fail(INFERSCALE_E_INVALID, "%s has a member \"%.60s\", which is not served here; leave it out", what, name);
}

inferscale_status is_members_check(json_t *o, const char *what, const char *const known[])
{
    const char *name;
    json_t *v;

    json_object_foreach(o, name, v)
    {
        bool found = json_is_null(v);

        for (size_t i = 0; known[i] && !found; i++) found = !strcmp(known[i], name);
        if (!found) return unknown_member(what, name, known);
    }
    return INFERSCALE_OK;
}

/* ---- Names ----------------------------------------------------------------------------------------------------------------- */

static const char *const owner_names[] = { "user_id", "agent_id", "run_id", "app_id", NULL };
/* What Mem0 can filter by and this store cannot, and why not. */
static const struct { const char *name, *instead; } refused[] = {
    { "OR", "memories of several owners are never mixed, and members are joined by AND; send a request for each" },
    { "NOT", "only equality and ranges of created_at are filtered by" },
    { "categories", "memories have no categories here; put them into metadata" },
    { "keywords", "a search looks at words too; put them into query" },
    { "updated_at", "created_at is filtered by" },
    { "expiration_date", "show_expired lists what has expired" },
    { "memory_ids", "ask for each by its id" },
    { "id", "ask for it by its id" },
    { "hash", "compare it yourself" },
    { "score", "use threshold" },
    { "memory", "use query" },
};

static bool is_owner_name(const char *name)
{
    for (size_t i = 0; owner_names[i]; i++)
        if (!strcmp(owner_names[i], name)) return true;
    return false;
}

static is_status no_memory(void) { return is_fail(INFERSCALE_E_NOMEM, "out of memory"); }

/* Enters name = v; the same name with another value would let nothing pass, which is a mistake and no filter. */
static is_status put(json_t *o, const char *name, json_t *v)
{
    json_t *there = json_object_get(o, name);

    if (there && !json_equal(there, v))
        return is_fail(INFERSCALE_E_INVALID, "the filter wants two values of \"%.60s\" at once; give one", name);
    return json_object_set(o, name, v) == 0 ? INFERSCALE_OK : no_memory();
}

/* ---- Conditions ------------------------------------------------------------------------------------------------------------ */

/* A date alone is its whole day: up to it is up to its end, after it is after its end. */
static is_status narrow(is_filter *f, const char *what, const char *op, json_t *v)
{
    int64_t first, last;
    is_when when;

    IS_TRY(is_json_when(v, what, &when));
    first = is_time_seconds(when.t);
    last = is_time_seconds(is_when_last(&when));
    if (!strcmp(op, "gt")) first = last + 1;
    if (!strcmp(op, "lt")) last = first - 1;
    if (op[0] != 'l' && (!f->from || is_time_seconds(f->from) < first)) f->from = is_time_of(first);
    if (op[0] != 'g' && (!f->to || is_time_seconds(f->to) > last)) f->to = is_time_of(last);
    return INFERSCALE_OK;
}

/* created_at: when it was said. */
static is_status created(is_filter *f, json_t *v)
{
    static const char *const ops[] = { "eq", "gt", "gte", "lt", "lte", NULL };
    const char *op;
    json_t *bound;

    if (!json_is_object(v))
        return is_fail(INFERSCALE_E_INVALID, "created_at of the filter must be a range such as {\"gte\": \"2024-05-01\"}");
    IS_TRY(is_members_check(v, "created_at of the filter", ops));
    json_object_foreach(v, op, bound)
    {
        if (!json_is_null(bound)) IS_TRY(narrow(f, "created_at of the filter", op, bound));
    }
    return INFERSCALE_OK;
}

/* from, to and as_of, as in memory.filters of a chat. */
static is_status read_time(is_filter *f, const char *name, json_t *v)
{
    int64_t as_of = 0;

    if (json_is_null(v)) return INFERSCALE_OK;
    if (!strcmp(name, "from")) return narrow(f, "from of the filter", "gte", v);
    if (!strcmp(name, "to")) return narrow(f, "to of the filter", "lte", v);
    IS_TRY(is_member_when(v, "as_of of the filter", &as_of));
    if (f->as_of && is_time_seconds(f->as_of) != is_time_seconds(as_of))
        return is_fail(INFERSCALE_E_INVALID,
                       "the filter wants two times of \"as_of\" at once; give one");
    f->as_of = as_of;
    return INFERSCALE_OK;
}

/* The value that a condition means: itself, {"eq": v} or {"in": [v]}. NULL = no equality; the sentence is set. */
static json_t *equal_to(const char *name, json_t *v)
{
    json_t *only;

    if (json_is_string(v) && !strcmp(json_string_value(v), "*")) {
        (void)is_fail(INFERSCALE_E_INVALID, "\"%.60s\": \"*\" cannot be filtered by; name a value or leave it out", name);
        return NULL;
    }
    if (json_is_string(v) || json_is_number(v) || json_is_boolean(v)) return v;
    if (json_is_object(v) && json_object_size(v) == 1) {
        only = json_object_get(v, "eq");
        if (!only && json_array_size(json_object_get(v, "in")) == 1) only = json_array_get(json_object_get(v, "in"), 0);
        if (json_is_string(only) || json_is_number(only) || json_is_boolean(only)) return only;
    }
    (void)is_fail(INFERSCALE_E_INVALID, "\"%.60s\" of the filter cannot be honoured: metadata is compared for equality with one string, number or "
                                        "boolean", name);
    return NULL;
}

static is_status read_object(is_filter *f, json_t *o, int depth);

static is_status read_all(is_filter *f, json_t *list, int depth)
{
    size_t i;
    json_t *each;

    if (!json_is_array(list)) return is_fail(INFERSCALE_E_INVALID, "AND of the filter must be a list of filters");
    json_array_foreach(list, i, each) IS_TRY(read_object(f, each, depth));
    return INFERSCALE_OK;
}

static is_status read_metadata(is_filter *f, json_t *o)
{
    const char *name;
    json_t *v;

    if (!json_is_object(o))
        return is_fail(INFERSCALE_E_INVALID, "metadata of the filter must be an object such as {\"colour\": \"red\"}");
    json_object_foreach(o, name, v)
    {
        json_t *want = equal_to(name, v);

        if (!want) return INFERSCALE_E_INVALID;
        IS_TRY(put(f->metadata, name, want));
    }
    return INFERSCALE_OK;
}

static is_status read_member(is_filter *f, const char *name, json_t *v, int depth)
{
    json_t *want;

    if (!strcmp(name, "AND") || (!strcmp(name, "OR") && json_array_size(v) == 1)) return read_all(f, v, depth + 1);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(refused[i].name, name))
            return is_fail(INFERSCALE_E_INVALID, "\"%s\" of the filter cannot be honoured: %s", name, refused[i].instead);
    if (!strcmp(name, "created_at")) return created(f, v);
    if (!strcmp(name, "from") || !strcmp(name, "to") || !strcmp(name, "as_of"))
        return read_time(f, name, v);
    if (!strcmp(name, "metadata")) return read_metadata(f, v);
    want = equal_to(name, v);
    if (!want) return INFERSCALE_E_INVALID;
    if (is_owner_name(name) && !json_is_string(want))
        return is_fail(INFERSCALE_E_INVALID, "\"%s\" of the filter must be a string", name);
    return put(is_owner_name(name) ? f->names : f->metadata, name, want);
}

static is_status read_object(is_filter *f, json_t *o, int depth)
{
    const char *name;
    json_t *v;

    if (!json_is_object(o)) return is_fail(INFERSCALE_E_INVALID, "a filter must be an object such as {\"user_id\": \"anna\"}");
    if (depth > DEPTH) return is_fail(INFERSCALE_E_INVALID, "the filter is nested more than %d deep; write it flat", DEPTH);
    json_object_foreach(o, name, v) IS_TRY(read_member(f, name, v, depth));
    return INFERSCALE_OK;
}

inferscale_status is_filter_parse(json_t *filters, is_filter *out)
{
    is_status st = INFERSCALE_OK;

    *out = (is_filter){ .names = json_object(), .metadata = json_object() };
    if (!out->names || !out->metadata) st = no_memory();
    else if (filters && !json_is_null(filters)) st = read_object(out, filters, 0);
    if (st == INFERSCALE_OK && out->from && out->to && is_time_seconds(out->from) > is_time_seconds(out->to))
        st =
            is_fail(INFERSCALE_E_INVALID,
                    "the filter's time begins after it ends (created_at, from, to); turn it round");
    if (st != INFERSCALE_OK) is_filter_free(out);
    return st;
}

void is_filter_free(is_filter *f)
{
    json_decref(f->names);
    json_decref(f->metadata);
    *f = (is_filter){ 0 };
}
