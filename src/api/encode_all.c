/* encode_all.c - bring the views of one partition up to date: embeddings of all items, KV of all facts. */
#include <stdbool.h>
#include <stdio.h>

#include "api/handle.h"
#include "base/log.h"
#include "base/mem.h"

enum { EMBED_BATCH = 16, TRIES_STALE = 3 };

typedef struct work {
    inferscale *is;
    is_partition p;
    inferscale_encode_options *o;
    uint64_t done, total;
} work;

static is_status tick(work *w, const char *what)
{
    if (w->o->on_progress && w->o->on_progress(w->o->progress_ctx, w->done, w->total, what))
        return is_fail(INFERSCALE_E_CANCELLED, "encoding was cancelled; what is done is kept, run it again to go on");
    return INFERSCALE_OK;
}

/* ---- Embeddings ---------------------------------------------------------------------------------------------------------- */

static is_status store_vectors(work *w, const inferscale_list *items, const float *vecs)
{
    is_embedder *e = w->is->embedder;
    uint32_t dim = is_embedder_dim(e);
    int8_t *q = is_malloc(dim);
    is_status st = q ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    for (size_t i = 0; i < items->n && st == INFERSCALE_OK; i++) {
        float scale;

        is_quantize_i8(vecs + i * dim, dim, q, &scale);
        st = is_bank_put_embedding(w->is->bank, &w->p, is_embedder_fingerprint(e), items->items[i].id, items->items[i].version, q, dim, scale);
        if (st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_STALE) st = INFERSCALE_OK; /* forgotten or changed meanwhile */
    }
    is_free(q);
    return st;
}

static is_status embed_items(work *w, const inferscale_list *items)
{
    char *texts[EMBED_BATCH] = { 0 };
    float *vecs = is_malloc((size_t)EMBED_BATCH * is_embedder_dim(w->is->embedder) * sizeof(float));
    is_status st = vecs ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    for (size_t i = 0; i < items->n && st == INFERSCALE_OK; i++) {
        texts[i] = is_dense_text(&items->items[i]);
        if (!texts[i]) st = is_fail(INFERSCALE_E_NOMEM, "out of memory");
    }
    if (st == INFERSCALE_OK && items->n) st = is_embedder_embed(w->is->embedder, (const char *const *)texts, items->n, vecs);
    if (st == INFERSCALE_OK) st = store_vectors(w, items, vecs);
    for (size_t i = 0; i < items->n; i++) is_free(texts[i]);
    is_free(vecs);
    return st;
}

static is_status embed_all(work *w)
{
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    IS_TRY(is_handle_embedder(w->is));
    IS_TRY(is_bank_unembedded(w->is->bank, &w->p, is_embedder_fingerprint(w->is->embedder), 0, &ids, &n));
    w->done = 0;
    w->total = n;
    st = INFERSCALE_OK;
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i += EMBED_BATCH) {
        inferscale_list *items = NULL;
        size_t batch = n - i < EMBED_BATCH ? n - i : EMBED_BATCH;

        st = is_bank_get(w->is->bank, &w->p, ids + i, batch, &items);
        if (st == INFERSCALE_OK) st = embed_items(w, items);
        inferscale_list_free(items);
        w->done += batch;
        if (st == INFERSCALE_OK) st = tick(w, "embedding");
    }
    is_free(ids);
    return st;
}

/* ---- KV ------------------------------------------------------------------------------------------------------------------ */

/* One fact; a memory that changes under our hands is tried again, and left for the next run if it keeps changing. */
static is_status encode_one(work *w, const is_encoder *enc, const is_policy *policy, int64_t id)
{
    is_segment_row row = { 0 };
    is_status st = INFERSCALE_E_STALE;

    for (int i = 0; i < TRIES_STALE && st == INFERSCALE_E_STALE; i++) {
        inferscale_list *item = NULL;

        IS_TRY(is_bank_get(w->is->bank, &w->p, &id, 1, &item));
        if (item->n == 0) {
            inferscale_list_free(item);
            return INFERSCALE_OK; /* forgotten meanwhile */
        }
        st = is_encode_fact(enc, &w->p, policy, &item->items[0], w->o->again != 0, &row);
        inferscale_list_free(item);
    }
    if (st == INFERSCALE_E_STALE || st == INFERSCALE_E_CONTEXT) {
        is_log(IS_LOG_WARN, "fact %lld has no KV yet: %s", (long long)id, is_error());
        return INFERSCALE_OK;
    }
    if (st != INFERSCALE_OK) return st;
    w->o->facts_encoded++;
    w->o->tokens_stored += row.n_tokens;
    w->o->tokens_computed += row.n_computed;
    return INFERSCALE_OK;
}

static is_status fact_ids(work *w, const is_policy *policy, int64_t **ids, size_t *n)
{
    inferscale_list *all = NULL;

    if (!w->o->again) return is_bank_unencoded(w->is->bank, &w->p, w->is->profile->fingerprint, policy->name, 0, ids, n);
    IS_TRY(is_bank_list(w->is->bank, &w->p, NULL, INFERSCALE_FACTS, 0, 0, &all));
    *ids = is_malloc((all->n + 1) * sizeof **ids);
    *n = *ids ? all->n : 0;
    for (size_t i = 0; i < *n; i++) (*ids)[i] = all->items[i].id;
    inferscale_list_free(all);
    return *ids ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

static is_status encode_all(work *w)
{
    is_policy policy = w->is->policy;
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    IS_TRY(is_handle_engine(w->is));
    if (!is_engine_geometry(w->is->engine))
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be injected (%s); asking works, and computes the facts as text",
                       is_engine_describe(w->is->engine)->why_not);
    if (w->o->policy) IS_TRY(is_policy_parse(w->o->policy, &policy));
    IS_TRY(fact_ids(w, &policy, &ids, &n));
    const is_encoder enc = is_handle_encoder(w->is);
    w->done = 0;
    w->total = n;
    st = INFERSCALE_OK;
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        st = encode_one(w, &enc, &policy, ids[i]);
        w->done++;
        if (st == INFERSCALE_OK) st = tick(w, "encoding");
    }
    is_free(ids);
    return st;
}

is_status inferscale_encode(inferscale *is, const inferscale_scope *scope, inferscale_encode_options *options)
{
    inferscale_encode_options none = INFERSCALE_ENCODE_OPTIONS_INIT;
    work w = { .is = is, .o = options ? options : &none };
    char why[512];
    is_status st, embedded;

    IS_TRY(is_handle_check(is));
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory to encode (user, agent, run or app)");
    if (w.o->struct_size < sizeof none)
        return is_fail(INFERSCALE_E_INVALID, "the encode options are not initialised; use INFERSCALE_ENCODE_OPTIONS_INIT");
    if (is->read_only) return is_fail(INFERSCALE_E_READONLY, "the store was opened read-only; open it for writing to encode");
    w.o->facts_encoded = w.o->tokens_stored = w.o->tokens_computed = 0;
    st = is_bank_partition(is->bank, scope, false, &w.p);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK;
    if (st != INFERSCALE_OK) return st;
    embedded = embed_all(&w); /* a missing embedder must not keep the KV from being made; it is reported in the end */
    if (embedded == INFERSCALE_E_CANCELLED) return embedded;
    snprintf(why, sizeof why, "%s", embedded == INFERSCALE_OK ? "" : is_error());
    IS_TRY(encode_all(&w));
    return embedded == INFERSCALE_OK ? INFERSCALE_OK
                                     : is_fail(embedded, "KV is computed, but new items are found by words only: %s", why);
}
