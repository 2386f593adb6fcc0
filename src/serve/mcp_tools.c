/* mcp_tools.c - the tools that a model gets: add, search, get, list, update and delete memories of one owner. A call that fails is a result
 * with isError and the sentence, so that the model can mend it. */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "exchange/json.h"
#include "serve/http.h"
#include "serve/mcp.h"
#include "serve/memory.h"

enum { LIST = 50, LIST_MAX = 500 };

typedef struct tool {
    const char *name, *title, *description, *operation;
    bool reads, destroys, again;   /* again: a second call changes nothing more */
    const char *properties;        /* JSON: the arguments */
    const char *required;          /* JSON: a list */
    is_status (*run)(const is_mcp *m, json_t *arguments, json_t **out);
} tool;

#define FILTERS                                                                                                                \
    "\"filters\":{\"type\":\"object\",\"description\":\"Members that must be equal in a memory's metadata, and created_at as a range: "        \
    "{\\\"topic\\\": \\\"food\\\", \\\"created_at\\\": {\\\"gte\\\": \\\"2024-05-01\\\"}}\"}"
#define WHEN "\"timestamp\":{\"type\":\"string\",\"description\":\"When it happened or was said, as ISO 8601; left out: nobody said\"}"
#define METADATA "\"metadata\":{\"type\":\"object\",\"description\":\"Your own fields, kept with the memory and used by filters\"}"
#define EXPIRES "\"expiration_date\":{\"type\":\"string\",\"description\":\"The last day on which it counts, YYYY-MM-DD\"}"
#define ID "\"id\":{\"type\":\"string\",\"pattern\":\"^[1-9][0-9]*$\",\"description\":\"The memory's id\"}"

/* ---- Runs ------------------------------------------------------------------------------------------------------------------ */

static is_status run_add(const is_mcp *m, json_t *a, json_t **out)
{
    json_t *results;

    IS_TRY(is_memory_add(m->is, &m->scope, a, &results));
    *out = json_pack("{s:o}", "results", results);
    return INFERSCALE_OK;
}

/* The owner is the connection's: a filter that names one would be another's memory. */
static is_status filter_of(json_t *a, is_filter *f)
{
    IS_TRY(is_filter_parse(json_object_get(a, "filters"), f));
    if (json_object_size(f->names) == 0) return INFERSCALE_OK;
    is_filter_free(f);
    return is_fail(INFERSCALE_E_INVALID, "filters cannot name an owner here; whose memory this is was decided by the connection");
}

static is_status run_search(const is_mcp *m, json_t *a, json_t **out)
{
    json_t *results, *about = json_object();
    is_filter f;
    is_status st = filter_of(a, &f);

    if (st == INFERSCALE_OK) {
        st = is_memory_search(m->is, &m->scope, a, &f, about, &results);
        is_filter_free(&f);
    }
    if (st == INFERSCALE_OK) {
        *out = json_pack("{s:o}", "results", results);
        json_object_update(*out, about);
    }
    json_decref(about);
    return st;
}

static is_status id_of(json_t *a, int64_t *id)
{
    const char *text = json_string_value(json_object_get(a, "id"));

    return is_memory_id(text, id) ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOTFOUND, "Memory with id %.40s not found", text ? text : "");
}

static is_status run_get(const is_mcp *m, json_t *a, json_t **out)
{
    inferscale_list *l = NULL;
    int64_t id;

    IS_TRY(id_of(a, &id));
    IS_TRY(is_memory_versions(m->is, &m->scope, id, &l));
    *out = is_memory_json(&l->items[l->n - 1], 0);
    json_object_set_new(*out, "history", is_memory_history_json(l));
    inferscale_list_free(l);
    return INFERSCALE_OK;
}

static is_status run_list(const is_mcp *m, json_t *a, json_t **out)
{
    json_t *limit = json_object_get(a, "limit"), *after = json_object_get(a, "after"), *results;
    is_memory_page p = { .limit = LIST, .latest = true };
    is_filter f;
    is_status st;
    char next[24];

    if (limit && (!json_is_integer(limit) || json_integer_value(limit) < 1 || json_integer_value(limit) > LIST_MAX))
        return is_fail(INFERSCALE_E_INVALID, "limit must be a whole number from 1 to %d", LIST_MAX);
    if (limit) p.limit = (size_t)json_integer_value(limit);
    if (after && !is_memory_id(json_string_value(after), &p.after))
        return is_fail(INFERSCALE_E_INVALID, "after must be the `next` of the list before, a string");
    IS_TRY(filter_of(a, &f));
    st = is_memory_list(m->is, &m->scope, &f, &p, &results);
    is_filter_free(&f);
    if (st != INFERSCALE_OK) return st;
    snprintf(next, sizeof next, "%lld", (long long)p.next);
    *out = json_pack("{s:o,s:o}", "results", results, "next", p.next ? json_string(next) : json_null());
    return INFERSCALE_OK;
}

static is_status run_update(const is_mcp *m, json_t *a, json_t **out)
{
    int64_t id;
    json_t *change = json_copy(a);
    is_status st = change ? id_of(a, &id) : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    if (st == INFERSCALE_OK) {
        json_object_del(change, "id");
        st = is_memory_update(m->is, &m->scope, id, change, out);
    }
    json_decref(change);
    return st;
}

static is_status run_delete(const is_mcp *m, json_t *a, json_t **out)
{
    size_t n;
    int64_t id;

    IS_TRY(id_of(a, &id));
    IS_TRY(is_memory_delete(m->is, &m->scope, id, false, &n));
    *out = json_pack("{s:I}", "deleted", (json_int_t)n);
    return INFERSCALE_OK;
}

/* ---- The table ------------------------------------------------------------------------------------------------------------- */

static const tool tools[] = {
    { "add_memory", "Remember", "Remember one self-contained fact about the user, in a full sentence. The same text twice is kept once.", "add",
      false, false, true,
      "{\"text\":{\"type\":\"string\",\"minLength\":1,\"description\":\"The fact, understandable by itself\"}," WHEN "," METADATA "," EXPIRES "}",
      "[\"text\"]", run_add },
    { "search_memories", "Search memories", "Find what is remembered about a question, best first, by meaning and by words.",
      "search", true, false,
      true,
      "{\"query\":{\"type\":\"string\",\"minLength\":1,\"description\":\"A question or some words\"},"
      "\"top_k\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000,\"description\":\"How many at most (20)\"},"
      "\"threshold\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1,\"description\":\"Leave out what scores less\"}," FILTERS "}",
      "[\"query\"]", run_search },
    { "get_memory", "Get a memory", "One memory by its id, with its earlier versions.", "get", true, false, true, "{" ID "}",
      "[\"id\"]", run_get },
    { "list_memories", "List memories", "All memories, the oldest first, some at a time: pass `next` of a reply as `after` of the next call.", "list",
      true, false, true,
      "{\"limit\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":500,\"description\":\"How many at most (50)\"},"
      "\"after\":{\"type\":\"string\",\"description\":\"`next` of the list before\"}," FILTERS "}",
      "[]", run_list },
    { "update_memory", "Change a memory", "Give a memory a new text or other fields. The old text stays in its history and is not used any more.",
      "update", false, true, true,
      "{" ID ",\"text\":{\"type\":\"string\",\"minLength\":1,\"description\":\"The new text\"}," WHEN "," METADATA "," EXPIRES "}", "[\"id\"]",
      run_update },
    { "delete_memory", "Forget a memory", "Forget a memory for good: its text, versions and everything computed from it.", "delete", false, true,
      false, "{" ID "}", "[\"id\"]", run_delete },
};
enum { N_TOOLS = sizeof tools / sizeof *tools };

static json_t *schema_of(const tool *t)
{
    return json_pack("{s:s,s:o,s:o,s:b}", "type", "object", "properties", json_loads(t->properties, 0, NULL), "required",
                     json_loads(t->required, 0, NULL), "additionalProperties", 0);
}

json_t *is_mcp_tools(void)
{
    json_t *list = json_array();

    for (size_t i = 0; i < N_TOOLS; i++) {
        const tool *t = &tools[i];

        json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:o,s:{s:s,s:b,s:b,s:b,s:b}}", "name", t->name, "title", t->title, "description",
                                              t->description, "inputSchema", schema_of(t), "annotations", "title", t->title,
                                                  "readOnlyHint", t->reads,
                                              "destructiveHint", t->destroys, "idempotentHint", t->again, "openWorldHint", 0));
    }
    return list;
}

/* Arguments that are not in the schema are refused; the types are looked at by those who use them. */
static is_status check(const tool *t, json_t *a)
{
    json_t *properties = json_loads(t->properties, 0, NULL), *required = json_loads(t->required, 0, NULL), *v;
    const char *name;
    size_t i;
    is_status st = properties && required ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    json_object_foreach(a, name, v)
        if (st == INFERSCALE_OK && !json_object_get(properties, name))
            st = is_fail(INFERSCALE_E_INVALID, "%s has no argument \"%.60s\"; leave it out", t->name, name);
    json_array_foreach(required, i, v)
        if (st == INFERSCALE_OK && !json_is_string(json_object_get(a, json_string_value(v))))
            st = is_fail(INFERSCALE_E_INVALID, "%s needs the argument \"%s\", a string", t->name, json_string_value(v));
    json_decref(properties);
    json_decref(required);
    return st;
}

static json_t *result(json_t *structured, const char *error)
{
    char *text = structured ? is_json_shown(structured) : NULL;
    json_t *o = json_pack("{s:[{s:s,s:o}],s:b}", "content", "type", "text", "text", is_json_text(structured ? text : error), "isError",
                          !structured);

    if (structured) json_object_set_new(o, "structuredContent", structured);
    is_free(text);
    return o;
}

json_t *is_mcp_call(const is_mcp *m, const char *name, json_t *arguments)
{
    const tool *t = NULL;
    json_t *structured = NULL, *none = arguments ? NULL : json_object();
    char told[IS_TOLD_BYTES];
    is_status st;

    for (size_t i = 0; i < N_TOOLS; i++)
        if (!strcmp(tools[i].name, name)) t = &tools[i];
    if (!t) {
        json_decref(none);
        return NULL;
    }
    st = check(t, arguments ? arguments : none);
    if (st == INFERSCALE_OK && !m->has_scope) st = is_fail(INFERSCALE_E_INVALID, "whose memory this is was not said; %s", m->how_to_name);
    if (st == INFERSCALE_OK && m->loading && t->run == run_search)
        st = is_fail(INFERSCALE_E_BUSY, "the model is being loaded; try again in a moment");
    if (st == INFERSCALE_OK) st = t->run(m, arguments ? arguments : none, &structured);
    if (m->count) {
        bool callers = st == INFERSCALE_E_INVALID || st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_PARSE || st == INFERSCALE_E_UNSUPPORTED;

        m->count(m->ctx, t->operation, st == INFERSCALE_OK ? "ok" : callers ? "refused" : "failed");
    }
    json_decref(none);
    if (st == INFERSCALE_OK) return result(structured, NULL);
    return result(NULL, m->server ? is_error_message(m->server, st, inferscale_error(), told) : inferscale_error());
}
