/* bench_serve_owners.c - see bench_serve_owners.h. */
#include "eval/bench_serve_owners.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "eval/stats.h"
#include "eval/synth.h"

enum { POLL_US = 200000 };

const char owner_marker_question[] = "Which badge number does the locker have?";

void owner_name(const bench_serve_options *o, uint32_t owner, char out[OWNER_NAME])
{
    snprintf(out, OWNER_NAME, "bench-%llu-%04u", (unsigned long long)o->seed, owner);
}

void owner_marker(const bench_serve_options *o, uint32_t owner, char out[MARKER])
{
    rng r = rng_stream(o->seed, 0x3a4c, owner);

    snprintf(out, MARKER, "%04u-%04u", (unsigned)rng_below(&r, 10000), owner);
}

/* ---- Making them --------------------------------------------------------------------------------------------------------- */

/* The reply's {"results": [{"id", "memory", ...}]} into the books. */
static is_status note_facts(owners *w, uint32_t owner, int64_t time, const json_t *reply, size_t want)
{
    const json_t *results = json_object_get(reply, "results"), *one;
    size_t i;

    if (json_array_size(results) != want)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "the server remembered %zu of %zu facts; is it an InferScale server that is new enough?",
                       json_array_size(results), want);
    json_array_foreach(results, i, one) {
        const char *id = json_string_value(json_object_get(one, "id")), *text = json_string_value(json_object_get(one, "memory"));
        owner_fact *f = &w->facts[w->n_facts];

        *f = (owner_fact){ .owner = owner, .time = time, .id = id ? strtoll(id, NULL, 10) : 0 };
        if (f->id <= 0 || !text) return is_fail(INFERSCALE_E_UNSUPPORTED, "the server's reply to POST /memories names no ids");
        if (!(f->text = is_strdup(text))) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the owners' facts");
        w->n_facts++;
    }
    return INFERSCALE_OK;
}

static json_t *add_body(const bench_serve_options *o, uint32_t owner, char *const *texts, const int64_t *times)
{
    char name[OWNER_NAME], date[32], marker[MARKER], line[160];
    json_t *messages = json_array();

    owner_name(o, owner, name);
    owner_marker(o, owner, marker);
    snprintf(line, sizeof line, "The locker has the badge number %s.", marker);
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", line));
    for (uint32_t i = 1; i < o->facts; i++) json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", texts[i]));
    is_date_iso(times[0], date);
    return json_pack("{s:o,s:s,s:b,s:s}", "messages", messages, "user_id", name, "infer", 0, "timestamp", date);
}

static is_status give(const bench_serve_options *o, owners *w, uint32_t owner)
{
    char **texts = is_calloc(o->facts, sizeof *texts);
    int64_t *times = is_calloc(o->facts, sizeof *times);
    json_t *body = NULL, *reply = NULL;
    long status = 0;
    is_status st;

    if (!texts || !times) IS_TRY_GOTO(st, done, is_fail(INFERSCALE_E_NOMEM, "out of memory for the owners' facts"));
    IS_TRY_GOTO(st, done, synth_facts(o->seed * 1000003 + owner, o->facts, texts, times));
    body = add_body(o, owner, texts, times);
    IS_TRY_GOTO(st, done, load_call(o->url, o->key, "POST", "/memories", body, &status, &reply));
    if (status != 200 && status != 201) {
        const char *why = json_string_value(json_object_get(reply, "detail"));

        IS_TRY_GOTO(st, done, is_fail(INFERSCALE_E_UNSUPPORTED, "POST /memories says HTTP %ld: %.200s", status, why ? why : "no reason"));
    }
    st = note_facts(w, owner, times[0], reply, o->facts);
done:
    for (uint32_t i = 0; texts && i < o->facts; i++) is_free(texts[i]);
    is_free(texts);
    is_free(times);
    json_decref(body);
    json_decref(reply);
    return st;
}

static int by_id(const void *a, const void *b)
{
    const owner_fact *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

/* How many items of all owners wait; E_UNSUPPORTED if the server does not say. */
static is_status waiting(const bench_serve_options *o, uint64_t *out)
{
    json_t *reply = NULL;
    const json_t *embed, *kv;
    long status;
    bool said;

    IS_TRY(load_call(o->url, o->key, "GET", "/inferscale/encode", NULL, &status, &reply));
    embed = json_object_get(reply, "n_unembedded");
    kv = json_object_get(reply, "n_unencoded");
    *out = (uint64_t)(json_integer_value(embed) + json_integer_value(kv));
    said = status == 200 && json_is_integer(embed) && json_is_integer(kv);
    json_decref(reply);
    if (said) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_UNSUPPORTED, "GET /inferscale/encode says HTTP %ld and not what waits; the benchmark needs it", status);
}

static is_status progress(const bench_serve_options *o, uint64_t done, uint64_t total, const char *what)
{
    if ((o->cancel && *o->cancel) || (o->on_progress && o->on_progress(o->progress_ctx, done, total, what)))
        return is_fail(INFERSCALE_E_CANCELLED, "cancelled");
    return INFERSCALE_OK;
}

is_status owners_make(const bench_serve_options *o, uint32_t n, owners *out, double *remember_s, double *encode_s)
{
    double t0 = is_now_ms();
    uint64_t left = 0, most = 1;

    *out = (owners){ .n = n, .cap = (size_t)n * o->facts };
    out->facts = is_calloc(out->cap + 1, sizeof *out->facts);
    if (!out->facts) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u owners", n);
    for (uint32_t i = 0; i < n; i++) {
        IS_TRY(progress(o, i, n, "remembering"));
        IS_TRY(give(o, out, i));
    }
    is_sort(out->facts, out->n_facts, sizeof *out->facts, by_id);
    *remember_s = (is_now_ms() - t0) / 1000;
    do {
        IS_TRY(waiting(o, &left));
        if (left > most) most = left;
        IS_TRY(progress(o, most - left, most, "encoding"));
        if (left) usleep(POLL_US);
    } while (left);
    *encode_s = (is_now_ms() - t0) / 1000;
    return INFERSCALE_OK;
}

void owners_free(owners *w)
{
    for (size_t i = 0; i < w->n_facts; i++) is_free(w->facts[i].text);
    is_free(w->facts);
    memset(w, 0, sizeof *w);
}

/* ---- Checking what they get ---------------------------------------------------------------------------------------------- */

const owner_fact *owners_find(const owners *w, int64_t id)
{
    const owner_fact key = { .id = id };

    return is_find(&key, w->facts, w->n_facts, sizeof key, by_id);
}

static uint32_t number_of(const json_t *o, const char *name)
{
    return (uint32_t)json_integer_value(json_object_get(o, name));
}

/* The placement of a turn serves only those who go on with the conversation: nobody here does. */
static bool is_not_kept(const json_t *fallbacks)
{
    const char *first = json_string_value(json_array_get(fallbacks, 0));

    return json_array_size(fallbacks) == 1 && first && strcmp(first, "placement_not_kept") == 0;
}

answer_memory owners_check(const owners *w, const load_sample *s)
{
    const json_t *facts = json_object_get(s->memory, "facts"), *tokens = json_object_get(s->memory, "tokens"), *one;
    const char *asked = json_string_value(json_object_get(s->memory, "asked")), *mode = json_string_value(json_object_get(s->memory, "mode"));
    const char *fallback = json_string_value(json_object_get(s->memory, "fallback"));
    answer_memory m = { .there = json_is_array(facts) };
    size_t i;

    json_array_foreach(facts, i, one) {
        const char *id = json_string_value(json_object_get(one, "id"));

        m.last = id ? owners_find(w, strtoll(id, NULL, 10)) : NULL;
        m.foreign = m.foreign || !m.last || m.last->owner != s->user;
        m.n_facts++;
    }
    m.not_kept = is_not_kept(json_object_get(s->memory, "fallbacks"));
    m.unlike = !asked || !mode || strcmp(asked, mode) != 0 || (fallback && *fallback && !m.not_kept);
    m.computed = number_of(tokens, "computed");
    m.injected = number_of(tokens, "injected");
    m.resident = number_of(tokens, "resident");
    return m;
}

bool owners_echoes(const load_sample *s, const owner_fact *last)
{
    static const char begin[] = "I recall: ";
    const char *text = s->text.data ? (const char *)s->text.data : "", *at;
    size_t n = strlen(last->text);

    if (strncmp(text, begin, sizeof begin - 1) != 0) return false;
    for (at = text; *at; at++) { /* a date may stand before the fact, and the answer may end inside it */
        size_t rest = strlen(at);

        if (strncmp(at, last->text, rest < n ? rest : n) == 0) return rest >= n || rest >= 8;
    }
    return false;
}
