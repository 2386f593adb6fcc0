/* bench_serve_plain.c - the requests of a stack that keeps its memory apart from the engine: it
 * searches, and sends what it found as text. */
#include <stdlib.h>

#include "base/mem.h"
#include "eval/bench_serve_owners.h"
#include "eval/plain.h"

static is_status search(const bench_serve_options *o, uint32_t owner, const char *question,
                        json_t **out)
{
    char name[OWNER_NAME];
    json_t *body;
    long status = 0;
    is_status st;

    owner_name(o, owner, name);
    body = json_pack("{s:s,s:s,s:i}", "query", question, "user_id", name, "top_k", (int)o->k);
    st = load_call(o->url, o->key, "POST", "/search", body, &status, out);
    json_decref(body);
    if (st == INFERSCALE_OK && (status != 200 || !json_is_array(json_object_get(*out, "results"))))
        return is_fail(INFERSCALE_E_UNSUPPORTED,
                       "POST /search says HTTP %ld and finds nothing; the plain prompt needs it",
                       status);
    return st;
}

/* The facts of a search into facts[json_array_size(results)]; *n of them are known here. */
static void take(const owners *w, uint32_t owner, const json_t *results, plain_fact *facts,
                 size_t *n, bool *foreign)
{
    const json_t *one;
    size_t i;

    *n = 0;
    json_array_foreach(results, i, one) {
        const char *id = json_string_value(json_object_get(one, "id"));
        const owner_fact *f = id ? owners_find(w, strtoll(id, NULL, 10)) : NULL;

        *foreign = *foreign || !f || f->owner != owner;
        if (f) facts[(*n)++] = (plain_fact){ f->text, f->time };
    }
}

is_status plain_messages(const bench_serve_options *o, const owners *w, uint32_t owner,
                         const char *question, json_t **out, bool *foreign)
{
    is_buf system = IS_BUF_INIT;
    json_t *reply = NULL;
    const json_t *results;
    plain_fact *facts;
    size_t n = 0;
    is_status st = search(o, owner, question, &reply);

    *out = NULL;
    results = json_object_get(reply, "results");
    facts = is_calloc(json_array_size(results) + 1, sizeof *facts);
    if (st == INFERSCALE_OK && facts) {
        take(w, owner, results, facts, &n, foreign);
        plain_system(&system, NULL, facts, n);
        if (is_buf_ok(&system))
            *out = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content",
                             (const char *)system.data, "role", "user", "content", question);
    }
    if (st == INFERSCALE_OK && !*out)
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a prompt of %zu facts", n);
    is_buf_free(&system);
    is_free(facts);
    json_decref(reply);
    return st;
}
