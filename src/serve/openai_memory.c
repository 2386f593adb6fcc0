/* openai_memory.c - the `memory` object: what a request may say of it, and what an answer says (docs/server.md). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/nearest_name.h"
#include "exchange/json.h"
#include "serve/memory.h"
#include "serve/openai.h"

enum { K_MOST = 1000 };

/* ---- Asked --------------------------------------------------------------------------------------------------------------- */

typedef struct asked {
    is_oa_ask *a;
    is_oa_fault *f;
    const char *param;         /* "memory.k" */
} asked;

static bool read_choice(asked *m, json_t *v, const char *const *names, int *out)
{
    const char *s = json_string_value(v);
    char all[80] = "";

    for (int i = 0; names[i]; i++) {
        const size_t n = strlen(all);

        if (s && strcmp(s, names[i]) == 0) {
            *out = i;
            return true;
        }
        snprintf(all + n, sizeof all - n, "%s%s", i ? (names[i + 1] ? ", " : " or ") : "", names[i]);
    }
    return is_oa_refuse(m->f, NULL, m->param, "%s must be %s", m->param, all);
}

static bool read_mode(asked *m, json_t *v)
{
    static const char *const names[] = { "kv", "text", "none", NULL }; /* INFERSCALE_MODE_* in order */

    if (!read_choice(m, v, names, &m->a->o.ask.mode)) return false;
    m->a->memory_named |= m->a->o.ask.mode != INFERSCALE_MODE_NONE;
    return true;
}

static bool read_layout(asked *m, json_t *v)
{
    static const char *const names[] = { "turns", "front", NULL };

    return read_choice(m, v, names, &m->a->o.layout);
}

static bool read_stage(asked *m, json_t *v)
{
    static const char *const names[] = { "best", "first", "refine", NULL }; /* 0 and INFERSCALE_STAGE_*, in order */

    if (!read_choice(m, v, names, &m->a->o.ask.stage)) return false;
    m->a->memory_named = true;
    return true;
}

static bool read_on_full(asked *m, json_t *v)
{
    static const char *const names[] = { "refuse", "drop", NULL };

    return read_choice(m, v, names, &m->a->o.on_full);
}

static bool read_count(asked *m, json_t *v, json_int_t least, uint32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > K_MOST)
        return is_oa_refuse(m->f, NULL, m->param, "%s must be a whole number from %d to %d", m->param, (int)least, K_MOST);
    *out = (uint32_t)json_integer_value(v);
    m->a->memory_named = true;
    return true;
}

static bool read_k(asked *m, json_t *v) { return read_count(m, v, 1, &m->a->o.ask.k); }

static bool read_repair(asked *m, json_t *v) { return read_count(m, v, 0, &m->a->o.ask.repair); }

static bool read_threshold(asked *m, json_t *v)
{
    if (!is_threshold_read(v, &m->a->recall.threshold))
        return is_oa_refuse(m->f, NULL, m->param, "%s must be a number from 0 to 1", m->param);
    m->a->recall.has_threshold = 1;
    m->a->o.ask.recall = &m->a->recall;
    m->a->memory_named = true;
    return true;
}

/* Ids are decimal numbers in strings; numbers are taken too. */
static bool read_id(json_t *v, int64_t *out)
{
    const char *s = json_string_value(v);
    char *end;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else {
        if (!s || *s < '0' || *s > '9') return false;
        errno = 0;
        *out = strtoll(s, &end, 10);
        if (errno || *end) return false;
    }
    return *out > 0;
}

static bool read_ids(asked *m, json_t *v)
{
    const size_t n = json_array_size(v);
    int64_t *ids;

    if (n == 0 || n > K_MOST) return is_oa_refuse(m->f, NULL, m->param, "%s must be a list of 1 to %d ids", m->param, K_MOST);
    ids = is_oa_keep(m->a, n * sizeof *ids);
    if (!ids) return is_oa_no_memory(m->f);
    for (size_t i = 0; i < n; i++) {
        if (!read_id(json_array_get(v, i), &ids[i]))
            return is_oa_refuse(m->f, NULL, m->param, "%s[%zu] must be the id of a fact, as \"12\"", m->param, i);
        for (size_t j = 0; j < i; j++)
            if (ids[j] == ids[i]) return is_oa_refuse(m->f, NULL, m->param, "%s[%zu] is there twice", m->param, i);
    }
    m->a->o.ids = ids;
    m->a->o.n_ids = n;
    m->a->memory_named = true;
    return true;
}

/* last: where a range ends with it. */
static bool read_date(asked *m, json_t *v, bool last, int64_t *out)
{
    is_when when;
    const bool ok = is_json_when(v, m->param, &when) == INFERSCALE_OK;

    *out = last ? is_when_last(&when) : when.t;
    return ok || is_oa_refuse(m->f, NULL, m->param, "%s", is_error());
}

static bool read_metadata(asked *m, json_t *v)
{
    is_buf text = IS_BUF_INIT;
    size_t n;

    if (!json_is_object(v)) return is_oa_refuse(m->f, NULL, m->param, "%s must be an object", m->param);
    n = json_dumpb(v, NULL, 0, JSON_COMPACT);
    if (!n || !is_buf_reserve(&text, n + 1)) return is_oa_no_memory(m->f);
    json_dumpb(v, (char *)text.data, n, JSON_COMPACT);
    text.len = n;
    m->a->recall.metadata = is_oa_keep_buf(m->a, &text);
    return m->a->recall.metadata ? true : is_oa_no_memory(m->f);
}

static bool read_filters(asked *m, json_t *v)
{
    inferscale_recall_options *r = &m->a->recall;
    const char *name;
    json_t *x;

    if (!json_is_object(v)) return is_oa_refuse(m->f, NULL, m->param, "%s must be an object", m->param);
    json_object_foreach(v, name, x)
    {
        char param[120];
        asked one = { m->a, m->f, param };
        bool ok;

        snprintf(param, sizeof param, "%s.%.60s", m->param, name);
        if (json_is_null(x)) continue;
        if (strcmp(name, "metadata") == 0) ok = read_metadata(&one, x);
        else if (strcmp(name, "from") == 0) ok = read_date(&one, x, false, &r->from);
        else if (strcmp(name, "to") == 0) ok = read_date(&one, x, true, &r->to);
        else if (strcmp(name, "as_of") == 0) ok = read_date(&one, x, false, &r->as_of);
        else
            ok = is_oa_refuse(m->f, "unknown_parameter", param, "%s is not known; there are metadata, from, to and as_of",
                              param);
        if (!ok) return false;
    }
    m->a->o.ask.recall = r;
    m->a->memory_named = true;
    return true;
}

static bool read_return_text(asked *m, json_t *v)
{
    if (!json_is_boolean(v)) return is_oa_refuse(m->f, NULL, m->param, "%s must be true or false", m->param);
    m->a->return_text = json_is_true(v);
    return true;
}

/* Whose memory: the server's scope reader looks at these (scope.h). */
static bool read_name(asked *m, json_t *v) { return true; }

static const struct { const char *name; bool (*read)(asked *m, json_t *v); } members[] = {
    { "user_id", read_name }, { "agent_id", read_name }, { "run_id", read_name }, { "app_id", read_name },
    { "mode", read_mode }, { "k", read_k }, { "threshold", read_threshold }, { "repair", read_repair }, { "ids", read_ids },
    { "filters", read_filters }, { "layout", read_layout }, { "stage", read_stage }, { "on_full", read_on_full },
    { "return_text", read_return_text },
};

enum { N_MEMBERS = sizeof members / sizeof *members };

bool is_oa_names_memory(const char *name)
{
    for (size_t i = 0; i < N_MEMBERS; i++)
        if (strcmp(members[i].name, name) == 0) return true;
    return false;
}

static bool refuse_member(const char *member, const char *param, is_oa_fault *f)
{
    const char *names[N_MEMBERS], *near;

    for (size_t i = 0; i < N_MEMBERS; i++) names[i] = members[i].name;
    near = strcmp(member, "user") == 0 ? "user_id" : is_nearest_name(member, names, N_MEMBERS);
    return is_oa_refuse(f, "unknown_parameter", param, "%s is not a member of memory%s%s%s", param, near ? "; did you mean " : "",
                        near ? near : "", near ? "?" : "");
}

bool is_oa_read_memory(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    const char *member;
    json_t *x;

    if (!json_is_object(v)) return is_oa_refuse(f, NULL, name, "memory must be an object");
    json_object_foreach(v, member, x)
    {
        char param[80];
        asked m = { a, f, param };
        size_t i = 0;

        snprintf(param, sizeof param, "memory.%.60s", member);
        while (i < N_MEMBERS && strcmp(members[i].name, member) != 0) i++;
        if (i == N_MEMBERS) return refuse_member(member, param, f);
        if (!json_is_null(x) && !members[i].read(&m, x)) return false;
    }
    if (a->o.n_ids && (a->o.ask.recall || json_is_integer(json_object_get(v, "k"))))
        return is_oa_refuse(f, NULL, "memory.ids",
                            "memory.ids are used as they are: k, threshold and filters cannot be beside them");
    return true;
}

/* ---- Answered ------------------------------------------------------------------------------------------------------------ */

static const char *mode_name(int mode)
{
    return mode == INFERSCALE_MODE_KV ? "kv" : mode == INFERSCALE_MODE_TEXT ? "text" : "none";
}

static const char *source_name(int source)
{
    return source == INFERSCALE_SOURCE_STORED ? "stored" : source == INFERSCALE_SOURCE_RESIDENT ? "resident" : "computed";
}

/* As it was when the prompt was made; null if it is gone since. */
static json_t *text_of(const is_oa_run *run, const inferscale_used *u)
{
    inferscale_list *l = NULL;
    json_t *text = NULL;

    if (run->scope && is_memory_versions(run->s->is, run->scope, u->id, &l) == INFERSCALE_OK)
        for (size_t i = 0; i < l->n && !text; i++)
            if (l->items[i].version == u->version) text = is_json_text(l->items[i].text);
    inferscale_list_free(l);
    return text ? text : json_null();
}

static json_t *facts_of(const is_oa_run *run, const inferscale_answer *ans)
{
    json_t *list = json_array();

    for (size_t i = 0; list && i < ans->n_facts; i++) {
        const inferscale_used *u = &ans->facts[i];
        char id[24];

        snprintf(id, sizeof id, "%lld", (long long)u->id);
        json_t *fact = json_pack("{s:s, s:i, s:f, s:i, s:s, s:s}", "id", id, "version", u->version, "score", u->score, "tokens",
                                 (int)u->tokens, "source", source_name(u->source), "policy", u->policy);
        if (run->ask->return_text) json_object_set_new(fact, "text", text_of(run, u));
        json_array_append_new(list, fact);
    }
    return list;
}

static void add_time(json_t *times, const char *name, double ms)
{
    json_object_set_new(times, name, json_real((double)(int64_t)(ms * 1000) / 1000));
}

static json_t *times_of(const inferscale_answer *ans, bool whole)
{
    json_t *t = json_object();

    if (!t) return NULL;
    add_time(t, "embed_ms", ans->embed_ms);
    add_time(t, "recall_ms", ans->recall_ms);
    add_time(t, "index_ms", ans->index_ms);
    add_time(t, "plan_ms", ans->plan_ms);
    add_time(t, "compose_ms", ans->compose_ms);
    add_time(t, "inject_ms", ans->inject_ms);
    add_time(t, "question_ms", ans->question_ms);
    if (!whole) return t;
    add_time(t, "ttft_ms", ans->ttft_ms);
    add_time(t, "total_ms", ans->total_ms);
    return t;
}

json_t *is_oa_memory_of(const is_oa_run *run, const inferscale_answer *ans, bool whole)
{
    json_t *o = json_pack("{s:s, s:s, s:s, s:o, s:{s:i, s:i, s:i, s:i}, s:{s:i, s:i, s:i}, s:i, s:i, s:i, s:b, s:s, s:o, s:o}", "asked",
                          mode_name(run->ask->o.ask.mode), "mode", mode_name(ans->mode), "header", ans->header ? ans->header : "none",
                          "facts", facts_of(run, ans), "tokens", "prompt", (int)ans->tokens_prompt, "computed", (int)ans->tokens_computed,
                          "injected", (int)ans->tokens_injected, "resident", (int)ans->tokens_resident, "placed", "kept",
                          (int)ans->n_placed_kept, "new", (int)ans->n_placed_new, "lost", (int)ans->n_placed_lost, "dropped",
                          (int)ans->n_dropped, "turns_dropped", (int)ans->n_turns_dropped, "not_embedded", (int)ans->n_unembedded,
                          "index_built", ans->index_built, "fallback", ans->fallback ? ans->fallback : "",
                          "fallbacks", is_json_fallbacks(ans->fallbacks), "timings", times_of(ans, whole));

    if (o && whole) json_object_set_new(o, "rows_digest", json_string(ans->rows_digest));
    return o;
}
