/* background_work.c - one slice of the background encoder's work: a few items of one partition, embedded or encoded. */
#include <stdio.h>
#include <string.h>

#include "api/background.h"
#include "base/log.h"
#include "base/mem.h"

enum { EMBED_SLICE = 16, ENCODE_SLICE = 32, REFINE_SLICE = 256 /* sharing passes */ }; /* at most */
enum { LOOK_UP_MS = 50 };

bool is_bg_stopping(const is_background *b)
{
    return __atomic_load_n(&b->stop, __ATOMIC_ACQUIRE) != 0;
}

/* ---- What a stage works on ------------------------------------------------------------------------------------------------ */

const is_policy *is_bg_policy(is_background *b, int stage)
{
    return &b->policies[stage];
}

const uint8_t *is_bg_view(is_background *b, int stage)
{
    return stage == IS_STAGE_EMBED ? is_embedder_fingerprint(b->is->embedder) : is_handle_profile(b->is)->fingerprint;
}

is_status is_bg_prepare(is_background *b, int stage)
{
    if (stage == IS_STAGE_EMBED) return is_handle_embedder(b->is);
    IS_TRY(is_handle_engine(b->is));
    if (is_engine_geometry(b->is->engine)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be injected (%s); facts are served as text",
                   is_engine_describe(b->is->engine)->why_not);
}

size_t is_bg_servers_up(is_background *b)
{
    is_engine *e = is_handle_engine_if_loaded(b->is);
    size_t n = is_engine_upstreams(e, NULL, 0), n_up = 0;
    is_upstream *list = n ? is_calloc(n, sizeof *list) : NULL;

    if (list) is_engine_upstreams(e, list, n);
    for (size_t i = 0; list && i < n; i++) n_up += list[i].up;
    is_free(list);
    return n_up;
}

/* What failed because no server that computes was there is tried again as soon as one is. */
void is_bg_watch_servers(is_bg_worker *w)
{
    is_bg_stage *stages = w->b->stages;
    size_t before = w->n_up;
    bool failing = false;

    for (int i = w->first; i < w->end; i++) failing = failing || stages[i].n_failed;
    if (!failing || w->first == IS_STAGE_EMBED) return;
    w->n_up = is_bg_servers_up(w->b);
    if (before || !w->n_up) return;
    for (int i = w->first; i < w->end; i++)
        if (stages[i].n_failed) stages[i].retry_ms = stages[i].delay_ms = 0;
}

/* ---- What goes by vectors waits for them ----------------------------------------------------------------------------------- */

static bool goes_by_vectors(const is_policy *p)
{
    return p->kind == IS_POLICY_NEAR || p->kind == IS_POLICY_COMPANY || (p->kind == IS_POLICY_PAGE && p->order == IS_PAGE_TOPIC);
}

/* Embeddings will come, by this handle's embedder. *counted: it has its view, and has looked. */
static bool embedder_works(is_background *b, bool *counted, bool *waits)
{
    const is_bg_worker *w = &b->workers[IS_BG_EMBEDDER];
    bool works;

    pthread_mutex_lock(&b->lock);
    works = b->failed_in_a_row[IS_STAGE_EMBED] == 0 && !b->elsewhere[IS_STAGE_EMBED];
    *counted = w->counted;
    *waits = !w->counted || b->waiting[IS_STAGE_EMBED] + w->fresh > 0;
    pthread_mutex_unlock(&b->lock);
    return works;
}

bool is_bg_embeds_first(is_bg_worker *w, int stage, const is_bg_part *part)
{
    is_background *b = w->b;
    is_partition p = { .id = part->id };
    bool counted, waits;
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    if (stage < IS_STAGE_REFINE && !goes_by_vectors(is_bg_policy(b, stage))) return false;
    if (!embedder_works(b, &counted, &waits) || !waits) return false;
    if (stage >= IS_STAGE_REFINE || !counted) return true;
    st = is_bank_unembedded(w->bank, &p, is_bg_view(b, IS_STAGE_EMBED), 0, 1, &ids, &n);
    is_free(ids);
    return st == INFERSCALE_OK && n > 0;
}

/* ---- Giving way ----------------------------------------------------------------------------------------------------------- */

/* The first stage does not wait for questions there. */
static bool computes_elsewhere(const is_background *b)
{
    is_engine *e = is_handle_engine_if_loaded(b->is);

    return e && is_engine_describe(e)->remote;
}

bool is_bg_give_way(is_background *b, int stage)
{
    const bool first = stage == IS_STAGE_FIRST, elsewhere = first && computes_elsewhere(b);
    is_gate *gate = b->is->gate;

    while (!is_bg_stopping(b) && !(elsewhere ? is_gate_hold_wait(gate, -1) : is_gate_work_wait(gate, first, -1))) continue;
    return !is_bg_stopping(b);
}

static is_status ended(void)
{
    return is_fail(INFERSCALE_E_CANCELLED, "the store is being closed; what waits is encoded when it is opened again");
}

/* What was in progress is dropped, because somebody needs what it holds. The next slice is smaller, so that there is less to drop. */
static is_status on_busy(void *ctx)
{
    is_bg_worker *w = ctx;
    is_background *b = w->b;

    if (is_bg_stopping(b)) return ended();
    w->dropped = true;
    pthread_mutex_lock(&b->lock);
    b->state.aborted_for_questions++;
    pthread_mutex_unlock(&b->lock);
    return is_fail(INFERSCALE_E_BUSY, "what was being encoded was dropped; it is begun again");
}

/* ---- Embedding ------------------------------------------------------------------------------------------------------------ */

/* Does not wait for questions. */
static is_status embed(is_bg_worker *w, const is_partition *p, const inferscale_list *items)
{
    is_background *b = w->b;
    char *texts[EMBED_SLICE] = { 0 };
    float *vecs = is_malloc((size_t)EMBED_SLICE * is_embedder_dim(b->is->embedder) * sizeof *vecs);
    is_status st = vecs ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for vectors; free some and try again");

    for (size_t i = 0; i < items->n && st == INFERSCALE_OK; i++)
        if (!(texts[i] = is_dense_text(&items->items[i]))) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a text");
    if (st == INFERSCALE_OK) st = is_embedder_embed_background(b->is->embedder, (const char *const *)texts, items->n, vecs, &b->stop);
    if (st == INFERSCALE_OK && items->n) is_handle_embedder_well(b->is);
    if (st == INFERSCALE_OK && items->n) st = is_vectors_store(w->bank, p, b->is->embedder, items, vecs);
    for (size_t i = 0; i < items->n; i++) is_free(texts[i]);
    is_free(vecs);
    return st;
}

static is_status embed_ids(is_bg_worker *w, const is_partition *p, const int64_t *ids, size_t n)
{
    is_background *b = w->b;
    inferscale_list *items = NULL;
    is_status st = is_bank_get(w->bank, p, ids, n, &items);

    if (st == INFERSCALE_OK) st = embed(w, p, items);
    if (st == INFERSCALE_OK) {
        pthread_mutex_lock(&b->lock);
        b->state.items_embedded += items->n;
        pthread_mutex_unlock(&b->lock);
    }
    inferscale_list_free(items);
    return st;
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------------- */

/* After every few facts: end if the handle is closed, and let a question's reader have the machine. */
static is_status on_facts(void *ctx, size_t n, const char *what)
{
    is_bg_worker *w = ctx;

    return is_bg_give_way(w->b, IS_STAGE_FIRST) ? INFERSCALE_OK : ended();
}

static bool is_poked(is_bg_worker *w)
{
    bool poked;

    pthread_mutex_lock(&w->b->lock);
    poked = w->poked;
    pthread_mutex_unlock(&w->b->lock);
    return poked;
}

/* Refining stands back behind questions, and behind what is new. */
static is_status on_refined(void *ctx, size_t n, const char *what)
{
    is_bg_worker *w = ctx;

    do {
        if (is_bg_stopping(w->b)) return ended();
        if (is_poked(w)) return is_fail(INFERSCALE_E_CANCELLED, "something new is to be embedded or encoded first; refining goes on after it");
    } while (!is_gate_work_wait(w->b->is->gate, false, LOOK_UP_MS));
    return INFERSCALE_OK;
}

/* By the stage's policy; idle: in idle time alone, whatever the stage. */
static is_status encode_ids(is_bg_worker *w, int stage, bool idle, const is_partition *p, const int64_t *ids, size_t n,
                            is_bg_part *part)
{
    is_background *b = w->b;
    is_encoder enc = is_handle_encoder(b->is);
    is_encode_job job = { .policy = is_bg_policy(b, stage), .on_facts = idle ? on_refined : on_facts, .ctx = w };
    is_status st;

    enc.bank = w->bank;
    enc.background = idle ? IS_CAPTURE_IDLE : IS_CAPTURE_SOON;
    enc.on_busy = on_busy;
    enc.busy_ctx = w;
    enc.cancel = NULL;
    st = is_encode_facts(&enc, p, ids, n, &job);
    part->passed[stage] += (uint32_t)job.n_left;
    pthread_mutex_lock(&b->lock);
    if (stage == IS_STAGE_FIRST) b->state.facts_encoded += job.facts;
    else b->state.facts_refined += job.facts;
    b->state.tokens_stored += job.tokens_stored;
    b->state.tokens_computed += job.tokens_computed;
    pthread_mutex_unlock(&b->lock);
    b->rate_facts += (double)job.facts;
    return st;
}

/* What was replaced, all of it or a part. *st is the worse of both. */
static void retire_replaced(is_bg_worker *w, const is_partition *p, const int64_t *ids, size_t n,
                            is_status *st)
{
    is_encoder enc = is_handle_encoder(w->b->is);
    char why[512];
    is_status retired;

    snprintf(why, sizeof why, "%s", is_error());
    enc.bank = w->bank;
    retired = is_encode_retire(&enc, p, is_bg_policy(w->b, IS_STAGE_FIRST), ids, n);
    if (*st != INFERSCALE_OK) *st = is_fail(*st, "%s", why);
    else *st = retired;
}

/* What is replaced goes under every policy: the second stage has it to do again. */
is_status is_bg_replace(is_bg_worker *w, is_bg_part *part, uint32_t *n_done)
{
    is_background *b = w->b;
    is_bg_stage *s = &b->stages[IS_STAGE_FIRST];
    const size_t most = s->slice ? s->slice : ENCODE_SLICE;
    is_partition p;
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    *n_done = 0;
    w->dropped = false;
    IS_TRY(is_bank_partition_by_id(w->bank, part->id, &p));
    st = is_bank_outdated(w->bank, &p, is_bg_view(b, IS_STAGE_FIRST), part->replaced_to, most, &ids, &n);
    if (st == INFERSCALE_OK && n) {
        st = encode_ids(w, IS_STAGE_FIRST, true, &p, ids, n, part);
        retire_replaced(w, &p, ids, n, &st);
        if (w->dropped) s->slice = n > 1 ? n / 2 : 1;
        for (int i = IS_STAGE_REFINE; i < IS_STAGES; i++) {
            part->dirty[i] = true;
            part->done[i] = 0;
        }
    }
    if (st == INFERSCALE_OK && n) {
        part->replaced_to = ids[n - 1];
        *n_done = (uint32_t)n;
    }
    is_free(ids);
    return st;
}

/* ---- The slice ------------------------------------------------------------------------------------------------------------ */

is_status is_bg_slice(is_bg_worker *w, int stage, is_bg_part *part, uint32_t *n_done)
{
    is_background *b = w->b;
    is_bg_stage *s = &b->stages[stage];
    const size_t limit = stage == IS_STAGE_EMBED ? EMBED_SLICE : stage >= IS_STAGE_REFINE ? REFINE_SLICE : ENCODE_SLICE;
    const size_t most = s->careful ? 1 : s->slice ? s->slice : limit;
    is_partition p;
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    *n_done = 0;
    w->dropped = false;
    IS_TRY(is_bank_partition_by_id(w->bank, part->id, &p));
    if (stage == IS_STAGE_EMBED) st = is_bank_unembedded(w->bank, &p, is_bg_view(b, stage), part->done[stage], most, &ids, &n);
    else st = is_bank_unencoded(w->bank, &p, is_bg_view(b, stage), is_bg_policy(b, stage)->name, is_bg_policy(b, stage)->header_one_in,
                                part->done[stage], most, &ids, &n);
    if (st == INFERSCALE_OK && n > 0) {
        st = stage == IS_STAGE_EMBED ? embed_ids(w, &p, ids, n) : encode_ids(w, stage, stage >= IS_STAGE_REFINE, &p, ids, n, part);
        if (w->dropped) s->slice = n > 1 ? n / 2 : 1;
        else if (st == INFERSCALE_OK) s->slice = most < limit ? 2 * most : limit;
        if (st == INFERSCALE_OK || (s->careful && !w->dropped && st != INFERSCALE_E_CANCELLED)) {
            part->done[stage] = ids[n - 1];
            *n_done = (uint32_t)n;
        }
        if (st != INFERSCALE_OK && *n_done) part->again[stage] = true; /* one bad item: the others go on, it is tried again later */
    }
    is_free(ids);
    return st;
}

/* ---- Rows in other codecs ------------------------------------------------------------------------------------------------- */

enum { NARROW_TRIES = 3 };

typedef is_status (*narrow_fn)(const is_encoder *enc, const is_partition *p, is_narrowing *n);

static void count_narrowed(is_bg_worker *w, is_bg_part *part, const is_narrowing *before, const is_narrowing *now)
{
    is_background *b = w->b;

    for (int s = IS_STAGE_FIRST; s < IS_STAGES; s++) part->dirty[s] = true; /* what waited may have its rows now */
    pthread_mutex_lock(&b->lock);
    b->state.narrowed += now->rows - before->rows;
    b->state.narrowed_bytes += now->bytes_before - now->bytes_after - (before->bytes_before - before->bytes_after);
    w->poked = true;
    pthread_mutex_unlock(&b->lock);
}

static bool narrow_part(is_bg_worker *w, is_bg_part *part, narrow_fn next, is_narrowing *n, is_status *st)
{
    const is_narrowing before = *n;
    is_encoder enc = is_handle_encoder(w->b->is);
    is_partition p;

    *st = is_bank_partition_by_id(w->bank, part->id, &p);
    if (*st == INFERSCALE_E_NOTFOUND) n->done = true, *st = INFERSCALE_OK;
    if (*st == INFERSCALE_OK && n->done) return false;
    enc.bank = w->bank;
    if (*st == INFERSCALE_OK) *st = next(&enc, &p, n);
    if (*st == INFERSCALE_E_STALE) {
        *st = INFERSCALE_OK; /* it changes right now: the next time */
        return false;
    }
    if (*st == INFERSCALE_OK && !n->done) count_narrowed(w, part, &before, n);
    if (*st == INFERSCALE_OK) return !n->done;
    n->done = ++part->narrow_failed >= NARROW_TRIES; /* until the store is opened again: encoding must go on */
    return true;
}

static bool narrow_next(is_bg_worker *w, bool settle, is_status *st)
{
    *st = INFERSCALE_OK;
    if (!is_handle_narrows(w->b->is)) return false;
    for (size_t i = 0; i < w->n_parts; i++) {
        is_bg_part *part = &w->parts[i];
        is_narrowing *n = settle ? &part->settling : &part->narrowing;

        if (n->done) continue;
        /* Not for ever: the next look tells how long facts have waited. */
        if (computes_elsewhere(w->b) ? !is_gate_hold_wait(w->b->is->gate, LOOK_UP_MS)
                                     : !is_gate_work_wait(w->b->is->gate, true, LOOK_UP_MS))
            return true;
        if (narrow_part(w, part, settle ? is_encode_settle : is_encode_narrow, n, st)) return true;
    }
    return false;
}

bool is_bg_narrow(is_bg_worker *w, is_status *st)
{
    return narrow_next(w, false, st);
}

bool is_bg_settle(is_bg_worker *w, is_status *st)
{
    return narrow_next(w, true, st);
}

void is_bg_narrow_again(is_bg_part *part)
{
    part->settling = (is_narrowing){ 0 };
    if (part->narrowing.left) part->narrowing = (is_narrowing){ .until = part->narrowing.until };
}
