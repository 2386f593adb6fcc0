/* encode_all.c - bring the views of one partition up to date: embeddings of all items, KV of all facts, stage by stage. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "api/calibrate.h"
#include "api/known.h"
#include "api/room.h"
#include "api/store_codec.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/words.h"

enum { EMBED_BATCH = 16 };

typedef struct work {
    inferscale *is;
    is_partition p;
    inferscale_encode_options *o;
    inferscale_progress_fn on_progress;
    void *progress_ctx;
    uint64_t done, total;
    bool embed_again;            /* every item, not only those that lack it */
    int64_t *ids;                /* [n_ids] facts that waited under any of the policies, in order */
    size_t n_ids;
    uint64_t most;               /* facts that one policy encoded */
} work;

static is_status tick(work *w, const char *what)
{
    if (w->on_progress && w->on_progress(w->progress_ctx, w->done, w->total, what))
        return is_fail(INFERSCALE_E_CANCELLED, "encoding was cancelled; what is done is kept, run it again to go on");
    return INFERSCALE_OK;
}

/* ---- Embeddings ---------------------------------------------------------------------------------------------------------- */

is_status is_vectors_store(is_bank *bank, const is_partition *p, is_embedder *e, const inferscale_list *items, const float *vecs)
{
    uint32_t dim = is_embedder_dim(e);
    int8_t *q = is_malloc(items->n * dim + 1);
    is_vector *v = is_malloc((items->n + 1) * sizeof *v);
    is_status st = q && v ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");

    for (size_t i = 0; i < items->n && st == INFERSCALE_OK; i++) {
        v[i] = (is_vector){ .id = items->items[i].id, .version = items->items[i].version, .q = q + i * dim };
        is_quantize_i8(vecs + i * dim, dim, q + i * dim, &v[i].scale);
    }
    if (st == INFERSCALE_OK && items->n) st = is_bank_put_embeddings(bank, p, is_embedder_fingerprint(e), v, items->n, dim);
    is_free(v);
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
    if (st == INFERSCALE_OK && items->n) st = is_embedder_embed_background(w->is->embedder, (const char *const *)texts, items->n, vecs, NULL);
    if (st == INFERSCALE_OK) st = is_vectors_store(w->is->bank, &w->p, w->is->embedder, items, vecs);
    for (size_t i = 0; i < items->n; i++) is_free(texts[i]);
    is_free(vecs);
    return st;
}

static is_status all_ids(work *w, int kinds, int64_t **ids, size_t *n)
{
    inferscale_list *all = NULL;

    IS_TRY(is_bank_list(w->is->bank, &w->p, NULL, kinds, 0, 0, &all));
    *ids = is_malloc((all->n + 1) * sizeof **ids);
    *n = *ids ? all->n : 0;
    for (size_t i = 0; i < *n; i++) (*ids)[i] = all->items[i].id;
    inferscale_list_free(all);
    return *ids ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

static is_status embed_all(work *w)
{
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    IS_TRY(is_handle_embedder(w->is));
    if (w->embed_again) IS_TRY(all_ids(w, INFERSCALE_FACTS | INFERSCALE_TURNS, &ids, &n));
    else IS_TRY(is_bank_unembedded(w->is->bank, &w->p, is_embedder_fingerprint(w->is->embedder), 0, 0, &ids, &n));
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
    if (st == INFERSCALE_OK && n) is_handle_calibrate(w->is, w->is->bank, IS_CALIBRATE_IN_BACKGROUND, NULL);
    return st;
}

is_status is_handle_embed(inferscale *is, const is_partition *p, inferscale_progress_fn on_progress, void *ctx)
{
    work w = { .is = is, .p = *p, .on_progress = on_progress, .progress_ctx = ctx };

    return embed_all(&w);
}

is_status is_handle_embed_again(inferscale *is, const is_partition *p, inferscale_progress_fn on_progress, void *ctx, uint64_t *n)
{
    work w = { .is = is, .p = *p, .on_progress = on_progress, .progress_ctx = ctx, .embed_again = true };
    is_status st = embed_all(&w);

    *n += w.done < w.total ? w.done : w.total;
    return st;
}

/* ---- KV ------------------------------------------------------------------------------------------------------------------ */

/* The ids of both lists, each in order, into the first. */
static is_status merge_ids(int64_t **ids, size_t *n, const int64_t *more, size_t n_more)
{
    int64_t *both = is_malloc((*n + n_more + 1) * sizeof *both);
    size_t at = 0;

    if (!both) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a list of ids");
    for (size_t i = 0, j = 0; i < *n || j < n_more;) {
        const int64_t next = j == n_more || (i < *n && (*ids)[i] <= more[j]) ? (*ids)[i] : more[j];

        both[at++] = next;
        i += i < *n && (*ids)[i] == next;
        j += j < n_more && more[j] == next;
    }
    is_free(*ids);
    *ids = both;
    *n = at;
    return INFERSCALE_OK;
}

/* What has no rows under the policy, and what has outdated ones. */
static is_status fact_ids(work *w, const is_policy *policy, int64_t **ids, size_t *n)
{
    int64_t *outdated = NULL;
    size_t n_outdated = 0;
    is_status st;

    if (w->o->again) return all_ids(w, INFERSCALE_FACTS, ids, n);
    IS_TRY(is_bank_unencoded(w->is->bank, &w->p, is_handle_profile(w->is)->fingerprint, policy->name, policy->header_one_in, 0, 0,
                             ids, n));
    st = is_bank_outdated(w->is->bank, &w->p, is_handle_profile(w->is)->fingerprint, 0, 0, &outdated, &n_outdated);
    if (st == INFERSCALE_OK && n_outdated) st = merge_ids(ids, n, outdated, n_outdated);
    is_free(outdated);
    if (st != INFERSCALE_OK) {
        is_free(*ids);
        *ids = NULL;
        *n = 0;
    }
    return st;
}

static is_status on_facts(void *ctx, size_t n, const char *what)
{
    work *w = ctx;

    w->done += n;
    return tick(w, what);
}

/* Under the handle's own policy of the first stage outdated rows are replaced; under another one
 * they stay for it. */
static is_status encode_under(work *w, const is_policy *policy)
{
    const bool replaces = strcmp(policy->name, w->is->policy.name) == 0;
    is_encoder enc = is_handle_encoder(w->is);
    is_encode_job job = { .policy = policy, .again = w->o->again != 0, .on_facts = on_facts, .ctx = w };
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    enc.replace = w->o->again != 0;
    IS_TRY(fact_ids(w, policy, &ids, &n));
    w->done = 0;
    w->total = n;
    st = is_encode_facts(&enc, &w->p, ids, n, &job);
    if (st == INFERSCALE_OK && replaces) st = is_encode_retire(&enc, &w->p, policy, ids, n);
    if (st == INFERSCALE_OK) st = merge_ids(&w->ids, &w->n_ids, ids, n);
    is_free(ids);
    if (job.facts > w->most) w->most = job.facts;
    w->o->sets_encoded += job.facts;
    w->o->tokens_stored += job.tokens_stored;
    w->o->tokens_computed += job.tokens_computed;
    w->o->facts_left += job.n_left;
    return st;
}

/* ---- Rows in other codecs ------------------------------------------------------------------------------------------------- */

bool is_handle_narrows(inferscale *is)
{
    return !is->read_only && is_handle_profile(is);
}

typedef is_status (*narrow_fn)(const is_encoder *enc, const is_partition *p, is_narrowing *n);

static is_status walk_all(const is_encoder *enc, const is_partition *p, narrow_fn next, is_narrowing *n)
{
    is_status st = INFERSCALE_OK;

    for (int tries = 0; !n->done && st == INFERSCALE_OK;) {
        st = next(enc, p, n);
        if (st == INFERSCALE_E_STALE && ++tries < 3) st = INFERSCALE_OK;
    }
    return st;
}

is_status is_handle_narrow(inferscale *is, const is_partition *p, uint64_t *rounded)
{
    is_encoder enc = is_handle_encoder(is);
    is_narrowing n = { 0 }, closed = { 0 };
    char name[IS_BANK_CODEC_BYTES];
    is_status st;

    if (!is_handle_narrows(is)) return INFERSCALE_OK;
    st = walk_all(&enc, p, is_encode_narrow, &n);
    if (st == INFERSCALE_OK) st = walk_all(&enc, p, is_encode_settle, &closed);
    is_handle_codec_name(is, name);
    if (n.files + n.entered && !is->codec_told && (is->codec_named || !name[0]))
        is_log(IS_LOG_WARN, "rows change their codec: %llu segments are taken over to be %s, %s; the store keeps the codec that"
               " is named last (%s)",
               (unsigned long long)(n.files + n.entered), is_codec_name(enc.profile->codec),
               name[0] ? "which was named" : "the default", is_words(IS_CALL_CODEC));
    *rounded += n.files + closed.files;
    if (n.files + closed.files)
        is_log(IS_LOG_INFO, "%llu segments were rounded to %s: %llu bytes, before %llu",
               (unsigned long long)(n.files + closed.files), is_codec_name(enc.profile->codec),
               (unsigned long long)(n.bytes_after + closed.bytes_after),
               (unsigned long long)(n.bytes_before + closed.bytes_before));
    return st;
}

/* The policies of the stages asked for, with the call's own in place of the handle's. */
static is_status stage_policies(const work *w, is_policy *out, size_t *n)
{
    inferscale own = { .policy = w->is->policy, .refine = w->is->refine, .has_refine = w->is->has_refine };
    const int stage = w->o->stage ? w->o->stage : INFERSCALE_STAGE_FIRST;

    if (w->o->policy) IS_TRY(is_policy_parse(w->o->policy, &own.policy));
    if (w->o->refine) own.has_refine = strcmp(w->o->refine, "none") != 0;
    if (w->o->refine && own.has_refine) IS_TRY(is_policy_parse(w->o->refine, &own.refine));
    *n = 0;
    if (stage & INFERSCALE_STAGE_FIRST) *n += is_handle_policies(&own, INFERSCALE_STAGE_FIRST, out);
    if (stage & INFERSCALE_STAGE_REFINE) *n += is_handle_policies(&own, INFERSCALE_STAGE_REFINE, out + *n);
    if (*n == 0) return is_fail(INFERSCALE_E_INVALID, "the second stage is switched off; give it a policy, e.g. " IS_DEFAULT_REFINE);
    return INFERSCALE_OK;
}

static is_status encode_all(work *w, const is_policy *policies, size_t n)
{
    IS_TRY(is_handle_engine(w->is));
    if (!is_engine_geometry(w->is->engine))
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be injected (%s); asking works, and computes the facts as text",
                       is_engine_describe(w->is->engine)->why_not);
    IS_TRY(is_handle_narrow(w->is, &w->p, &w->o->rounded));
    for (size_t i = 0; i < n; i++) IS_TRY(encode_under(w, &policies[i]));
    return is_handle_narrow(w->is, &w->p, &w->o->rounded); /* what there are new rows for, and pages that are full now */
}

/* How many facts have new rows: all that waited, unless some were left. */
static void count_facts(work *w)
{
    const uint64_t all = w->n_ids < w->o->sets_encoded ? w->n_ids : w->o->sets_encoded;

    w->o->facts_encoded = w->o->facts_left ? w->most : all;
    is_free(w->ids);
    w->ids = NULL;
}

static is_status encode_views(work *w, const is_policy *policies, size_t n)
{
    char why[512];
    is_status st, embedded = embed_all(w); /* a missing embedder must not keep the KV from being made; it is reported in the end */

    if (embedded == INFERSCALE_E_CANCELLED) return embedded;
    snprintf(why, sizeof why, "%s", embedded == INFERSCALE_OK ? "" : is_error());
    st = encode_all(w, policies, n);
    count_facts(w);
    if (st != INFERSCALE_OK) return st;
    return embedded == INFERSCALE_OK ? INFERSCALE_OK
                                     : is_fail(embedded, "KV is computed, but new items are found by words only: %s", why);
}

is_status inferscale_encode(inferscale *is, const inferscale_scope *scope, inferscale_encode_options *options)
{
    inferscale_encode_options none = INFERSCALE_ENCODE_OPTIONS_INIT;
    work w = { .is = is, .o = options ? options : &none };
    is_policy policies[2 * IS_STAGE_POLICIES];
    size_t n_policies;
    is_status st;

    IS_TRY(is_handle_check(is));
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory to encode (user, agent, run or app)");
    if (w.o->struct_size < sizeof none)
        return is_fail(INFERSCALE_E_INVALID, "the encode options are not initialised; use INFERSCALE_ENCODE_OPTIONS_INIT");
    if (w.o->stage < 0 || w.o->stage > INFERSCALE_STAGE_ALL)
        return is_fail(INFERSCALE_E_INVALID, "stage is %d; use INFERSCALE_STAGE_FIRST, _REFINE or _ALL", w.o->stage);
    if (is->read_only) return is_room_refuse(is, "encode");
    IS_TRY(is_handle_follow_codec(is, is->bank));
    w.on_progress = w.o->on_progress;
    w.progress_ctx = w.o->progress_ctx;
    w.o->facts_encoded = w.o->sets_encoded = w.o->tokens_stored = w.o->tokens_computed = w.o->facts_left = w.o->rounded = 0;
    IS_TRY(stage_policies(&w, policies, &n_policies));
    st = is_bank_partition(is->bank, scope, false, &w.p);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK;
    if (st != INFERSCALE_OK) return st;
    if (!w.o->again && is_known_nothing_waits(is, &w.p, policies, n_policies)) return INFERSCALE_OK;
    is_gate_enter(is->gate);
    is_gate_hold(is->gate); /* the background encoder stands still: nothing is done twice */
    st = encode_views(&w, policies, n_policies);
    is_gate_release(is->gate);
    is_gate_leave(is->gate);
    if (st == INFERSCALE_OK) is_known_keep(is);
    return st;
}
