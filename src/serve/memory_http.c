/* memory_http.c - whose memory a request of Mem0's clients means, and how its reply is counted. */
#include "serve/memory_http.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/server.h"

static const char *const owner_names[] = { "user_id", "agent_id", "run_id", "app_id" };

/* ---- Replies --------------------------------------------------------------------------------------------------------------- */

void is_memory_reply(is_server *s, is_request *r, const char *operation, json_t *body)
{
    is_metric_add(s->metrics, IS_M_MEMORY_OPS, operation, body ? "ok" : "failed", 1);
    is_reply_json(r, 200, body);
}

void is_memory_failed(is_server *s, is_request *r, const char *operation, inferscale_status st)
{
    bool callers = st == INFERSCALE_E_INVALID || st == INFERSCALE_E_PARSE || st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_DENIED ||
                   st == INFERSCALE_E_UNSUPPORTED;
    char told[IS_TOLD_BYTES];

    is_metric_add(s->metrics, IS_M_MEMORY_OPS, operation, callers ? "refused" : "failed", 1);
    if (st == INFERSCALE_E_UNSUPPORTED)
        is_reply_error(r, 501, "invalid_request_error", "unsupported", NULL, "%s", is_error_message(s, st, inferscale_error(), told));
    else is_reply_failed(r, st, NULL);
}

void is_memory_no_owner(is_server *s, is_request *r, const char *operation)
{
    is_memory_failed(s, r, operation, is_fail(INFERSCALE_E_INVALID, "At least one identifier is required: user_id, agent_id, run_id or app_id"));
}

/* ---- Whose ----------------------------------------------------------------------------------------------------------------- */

/* The names of the body and of the filter in one object. NULL: they differ, or no memory. */
static json_t *names_of(json_t *body, const is_filter *f, is_status *st)
{
    json_t *names = json_object();

    *st = names ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; names && i < 4; i++) {
        json_t *a = json_object_get(body, owner_names[i]), *b = f ? json_object_get(f->names, owner_names[i]) : NULL;

        if (json_is_null(a)) a = NULL;
        if (a && b && !json_equal(a, b)) {
            *st = is_fail(INFERSCALE_E_INVALID, "%s of the request and of its filters differ; give one", owner_names[i]);
            json_decref(names);
            return NULL;
        }
        if (a || b) json_object_set(names, owner_names[i], a ? a : b);
    }
    return names;
}

bool is_memory_owner(is_server *s, is_request *r, const char *operation, json_t *body, const is_filter *f, is_owner *out)
{
    is_status st;
    json_t *names = names_of(body, f, &st);

    if (!names) {
        is_memory_failed(s, r, operation, st);
        return false;
    }
    st = is_scope_read(r, names, out);
    json_decref(names);
    if (st != INFERSCALE_OK) {
        is_metric_add(s->metrics, IS_M_MEMORY_OPS, operation, "refused", 1);
        return false;
    }
    if (!out->given) is_memory_no_owner(s, r, operation);
    return out->given;
}

static is_status find_anywhere(is_server *s, is_request *r, is_memory_at *at)
{
    const is_key *k = is_request_key(r);
    is_status st = inferscale_whose(s->is, at->id, &at->found);

    if (st == INFERSCALE_OK && k && !k->admin && strcmp(k->tenant, at->found.tenant) != 0) st = INFERSCALE_E_NOTFOUND;
    if (st == INFERSCALE_E_NOTFOUND) return is_fail(st, "Memory with id %lld not found", (long long)at->id);
    at->scope = (inferscale_scope){ at->found.tenant, at->found.user, at->found.agent, at->found.run, at->found.app };
    return st;
}

bool is_memory_find(is_server *s, is_request *r, const char *operation, const char *id, json_t *body, is_memory_at *out)
{
    is_status st;

    memset(out, 0, sizeof *out);
    st = is_scope_read(r, body, &out->asked);
    if (st != INFERSCALE_OK) {
        is_metric_add(s->metrics, IS_M_MEMORY_OPS, operation, "refused", 1);
        return false;
    }
    if (!is_memory_id(id, &out->id)) st = is_fail(INFERSCALE_E_NOTFOUND, "Memory with id %.40s not found", id ? id : "");
    else if (out->asked.given) out->scope = out->asked.scope;
    else st = find_anywhere(s, r, out);
    if (st != INFERSCALE_OK) is_memory_failed(s, r, operation, st);
    return st == INFERSCALE_OK;
}

/* ---- The query ------------------------------------------------------------------------------------------------------------- */

bool is_memory_number(is_server *s, is_request *r, const char *operation, const char *name, int64_t min, int64_t max, int64_t *inout)
{
    const char *text = is_request_query(r, name);
    char *end = NULL;
    long long v;

    if (!text) return true;
    v = strtoll(text, &end, 10);
    if (*text >= '0' && *text <= '9' && strlen(text) <= 18 && !*end && v >= min && v <= max) {
        *inout = v;
        return true;
    }
    is_memory_failed(s, r, operation, max == INT64_MAX
                     ? is_fail(INFERSCALE_E_INVALID, "%s must be the `next` that the page before gave, a whole number", name)
                     : is_fail(INFERSCALE_E_INVALID, "%s must be a whole number from %lld to %lld", name, (long long)min, (long long)max));
    return false;
}

bool is_memory_query_free_of(is_server *s, is_request *r, const char *operation, const char *const names[])
{
    for (size_t i = 0; names[i]; i++) {
        if (!is_request_query(r, names[i])) continue;
        is_memory_failed(s, r, operation, is_fail(INFERSCALE_E_INVALID, "%s is not served in the query here; leave it out", names[i]));
        return false;
    }
    return true;
}
