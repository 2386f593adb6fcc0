/* find.c - recall: embed the question, search the partition's index, fetch what was found. */
#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

/* Embeds the query into a new vector; on failure the search goes on by words alone and why says so. */
static float *embed_query(inferscale *is, const char *query, char why[256])
{
    float *vec = NULL;
    is_status st = is_handle_embedder(is);

    if (st == INFERSCALE_OK) {
        vec = is_malloc(is_embedder_dim(is->embedder) * sizeof(float));
        st = vec ? is_embedder_embed(is->embedder, &query, 1, vec) : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    }
    if (st == INFERSCALE_OK) return vec;
    is_free(vec);
    snprintf(why, 256, "found by words only, no embedding: %.200s", is_error());
    is_log(IS_LOG_WARN, "%s", why);
    return NULL;
}

is_status is_handle_find(inferscale *is, const is_partition *p, const inferscale_scope *scope, const char *query,
                         const inferscale_recall_options *options, is_hit **hits, size_t *n, inferscale_list *times, char why[256])
{
    is_query q = { .text = query, .scope = scope, .pins = true };
    inferscale_recall_options o = *options;
    double t0 = is_now_ms(), t1;
    float *vec = NULL;
    is_status st;

    why[0] = 0;
    if (!is_time_given(o.as_of)) o.as_of = 0;
    if (o.method != INFERSCALE_LEXICAL) {
        vec = embed_query(is, query, why);
        if (!vec && o.method == INFERSCALE_DENSE) return is_fail(INFERSCALE_E_ENGINE, "dense search is not possible: %s", why);
        if (!vec) o.method = INFERSCALE_LEXICAL;
    }
    if (vec) {
        q.vec = vec;
        q.dim = is_embedder_dim(is->embedder);
        q.fingerprint = is_embedder_fingerprint(is->embedder);
    }
    q.options = &o;
    t1 = is_now_ms();
    st = is_recall_query(is->recall, p, &q, hits, n, &times->n_unembedded);
    if (options->method == INFERSCALE_LEXICAL) times->n_unembedded = 0; /* words were asked for, and no vector looked at */
    times->embed_ms = t1 - t0;
    times->recall_ms = is_now_ms() - t1;
    is_free(vec);
    return st;
}

static is_status check_options(const inferscale_recall_options *o)
{
    if (o->struct_size < sizeof(inferscale_recall_options))
        return is_fail(INFERSCALE_E_INVALID, "the recall options are not initialised; use INFERSCALE_RECALL_OPTIONS_INIT");
    if (o->k > 1000) return is_fail(INFERSCALE_E_INVALID, "k is %u; ask for at most 1000 items", o->k);
    if (o->method < INFERSCALE_FUSED || o->method > INFERSCALE_DENSE)
        return is_fail(INFERSCALE_E_INVALID, "method is %d; use INFERSCALE_FUSED, _LEXICAL or _DENSE", o->method);
    if (o->kinds & ~(INFERSCALE_FACTS | INFERSCALE_TURNS))
        return is_fail(INFERSCALE_E_INVALID, "kinds is %d; use INFERSCALE_FACTS and INFERSCALE_TURNS", o->kinds);
    return INFERSCALE_OK;
}

is_status is_handle_fetch(inferscale *is, const is_partition *p, const is_hit *hits, size_t n, int64_t as_of, inferscale_list **out)
{
    is_dep *versions = is_malloc((n + 1) * sizeof *versions);
    int64_t *ids = is_malloc((n + 1) * sizeof *ids);
    is_status st = INFERSCALE_OK;

    *out = NULL;
    if (!ids || !versions) st = is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        ids[i] = hits[i].id;
        versions[i] = (is_dep){ hits[i].id, hits[i].version };
    }
    if (st == INFERSCALE_OK) st = as_of ? is_bank_get_versions(is->bank, p, versions, n, out) : is_bank_get(is->bank, p, ids, n, out);
    is_free(versions);
    is_free(ids);
    return st;
}

/* The hits' items, scores filled in. An item that vanished since the search is left out. */
static is_status fetch(inferscale *is, const is_partition *p, const is_hit *hits, size_t n, int64_t as_of, inferscale_list **out)
{
    IS_TRY(is_handle_fetch(is, p, hits, n, as_of, out));
    for (size_t i = 0, h = 0; i < (*out)->n; i++) {
        inferscale_item *item = &(*out)->items[i];

        while (h < n && hits[h].id != item->id) h++;
        if (h == n) break;
        item->score = hits[h].score;
        item->score_lexical = hits[h].lexical;
        item->score_dense = hits[h].dense;
    }
    return INFERSCALE_OK;
}

is_status inferscale_recall(inferscale *is, const inferscale_scope *scope, const char *query, const inferscale_recall_options *options,
                            inferscale_list **out)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list times = { 0 };
    is_partition p;
    is_hit *hits = NULL;
    size_t n = 0;
    char why[256];
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the list; pass its address");
    *out = NULL;
    IS_TRY(is_handle_check(is));
    IS_TRY(is_text_check(query, "query"));
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory to search (user, agent, run or app)");
    if (options) {
        IS_TRY(check_options(options));
        o = *options;
    }
    if (!is_time_given(o.as_of)) o.as_of = 0;
    if (!o.k) o.k = 10;
    if (!o.kinds) o.kinds = INFERSCALE_FACTS;
    st = is_bank_partition(is->bank, scope, false, &p);
    if (st == INFERSCALE_E_NOTFOUND) {
        *out = is_list_new();
        return *out ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    }
    if (st == INFERSCALE_OK) {
        is_gate_enter(is->gate); /* a question's embedding goes before documents' */
        st = is_handle_find(is, &p, scope, query, &o, &hits, &n, &times, why);
        is_gate_leave(is->gate);
    }
    if (st == INFERSCALE_OK) st = fetch(is, &p, hits, n, o.as_of, out);
    is_free(hits);
    if (st != INFERSCALE_OK) return st;
    (*out)->embed_ms = times.embed_ms;
    (*out)->recall_ms = times.recall_ms;
    (*out)->n_unembedded = times.n_unembedded;
    return INFERSCALE_OK;
}
