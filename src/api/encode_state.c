/* encode_state.c - what waits to be encoded, how the background encoder fares, and waiting for it. */
#include <string.h>

#include "api/background.h"
#include "api/damage.h"
#include "base/clock.h"
#include "base/words.h"

/* The partition of a scope; *p is left zeroed for NULL (the whole store). *there = false: nothing was ever remembered there (id -1). */
static is_status find(inferscale *is, const inferscale_scope *scope, is_partition *p, bool *there)
{
    is_status st;

    memset(p, 0, sizeof *p);
    *there = true;
    if (!scope) return INFERSCALE_OK;
    st = is_bank_partition(is->bank, scope, false, p);
    if (st == INFERSCALE_E_NOTFOUND) {
        *there = false;
        p->id = -1;
    }
    return *there ? st : INFERSCALE_OK;
}

static int64_t older(int64_t a, int64_t b)
{
    return !a ? b : !b ? a : a < b ? a : b;
}

/* Facts that lack rows of the second stage: under its policy, or, where it has two, behind the bare
 * header, which is the other. */
static is_status count_unrefined(inferscale *is, is_bank *bank, const is_partition *p,
                                 const is_profile *profile, is_waiting *out)
{
    is_policy refine[IS_STAGE_POLICIES];
    const size_t n = is_handle_policies(is, INFERSCALE_STAGE_REFINE, refine);

    const uint32_t one_in = n > 1 ? 1 : n ? refine[0].header_one_in : 0;

    if (n == 0) return INFERSCALE_OK;
    return is_bank_count_unencoded(bank, p, profile->fingerprint, refine[0].name, one_in, 0, out);
}

/* Counts what waits in the partition (id 0: everywhere). The background encoder's connection is used where there is one: a long count
 * must not hold up who remembers. */
static is_status count(inferscale *is, const is_partition *part, inferscale_encoder_state *out)
{
    is_bank *bank = is->background ? is->background->workers[IS_BG_ENCODER].bank : is->bank;
    const is_partition *p = part->id ? part : NULL;
    const is_profile *profile = is_handle_profile(is);
    is_embedder *embedder = is_handle_embedder_if_loaded(is);
    const bool can_inject = !profile || is_engine_geometry(is->engine);
    is_waiting e, k = { 0 }, r = { 0 };
    int64_t oldest;

    IS_TRY(is_bank_count_unembedded(bank, p, embedder ? is_embedder_fingerprint(embedder) : NULL, 0, &e));
    if (can_inject)
        IS_TRY(is_bank_count_unencoded(bank, p, profile ? profile->fingerprint : NULL, profile ? is->policy.name : NULL,
                                       profile ? is->policy.header_one_in : 0, 0, &k));
    if (profile && can_inject) IS_TRY(count_unrefined(is, bank, p, profile, &r));
    if (profile && can_inject && is_handle_narrows(is))
        IS_TRY(is_encode_count_wide(bank, is_engine_describe(is->engine), profile, p, &out->n_wide, &out->wide_bytes));
    out->n_unrefined = r.n;
    out->model_known = profile != NULL;
    out->n_unembedded = e.n;
    out->n_unencoded = k.n;
    oldest = older(e.oldest, k.oldest);
    out->lag_s = oldest && is_now_epoch() > oldest ? (double)(is_now_epoch() - oldest) : 0;
    return INFERSCALE_OK;
}

/* The encoder's own figures. */
static void add_live(is_background *b, const is_partition *p, inferscale_encoder_state *out)
{
    pthread_mutex_lock(&b->lock);
    *out = b->state;
    out->running = out->elsewhere = 0;
    for (int i = 0; i < IS_BG_WORKERS; i++) out->running |= b->workers[i].working || b->workers[i].in_slice;
    for (int s = 0; s < IS_STAGES; s++) out->elsewhere |= b->elsewhere[s];
    out->n_passed = 0;
    for (size_t i = 0; i < b->n_passed; i++)
        if (p->id == 0 || b->passed[i].partition == p->id) out->n_passed += b->passed[i].n;
    pthread_mutex_unlock(&b->lock);
    out->struct_size = sizeof *out;
}

/* How encoding fares beside questions. */
static void add_share(inferscale *is, inferscale_encoder_state *out)
{
    is_gate_stats s;

    is_gate_get_stats(is->gate, &s);
    out->first_lag_s = s.lag_ms / 1000;
    out->share = s.share;
    out->questions_s = s.open_ms / 1000;
    out->shared_s = s.used_ms / 1000;
    out->n_slices = s.slices;
    out->n_pauses = s.pauses;
    out->n_drops = s.drops;
}

is_status inferscale_encode_status(inferscale *is, const inferscale_scope *scope, inferscale_encoder_state *out)
{
    is_damage_counts damage;
    is_partition p;
    bool there;

    IS_TRY(is_handle_check(is));
    if (!out || out->struct_size < sizeof *out)
        return is_fail(INFERSCALE_E_INVALID, "the encoder state is not initialised; use INFERSCALE_ENCODER_STATE_INIT");
    *out = (inferscale_encoder_state)INFERSCALE_ENCODER_STATE_INIT;
    IS_TRY(find(is, scope, &p, &there));
    if (is->background) {
        add_live(is->background, &p, out);
        add_share(is, out);
    }
    is_damage_count(is, &damage);
    out->damaged_queued = damage.queued;
    out->damaged_resting = damage.rested;
    out->damaged_disputed = damage.disputed;
    return there ? count(is, &p, out) : INFERSCALE_OK;
}

/* ---- Waiting -------------------------------------------------------------------------------------------------------------- */

/* Before a model is loaded it is not known what waits for its KV: then only a memory without facts is done. */
static is_status is_done(inferscale *is, const inferscale_scope *scope, const inferscale_encoder_state *s, bool *done)
{
    static const uint8_t nobody[IS_HASH_BYTES];
    is_waiting w = { 0 };
    is_partition p;
    bool there;

    *done = s->n_unembedded + s->n_unencoded <= s->n_passed;
    if (s->model_known || !*done) return INFERSCALE_OK;
    IS_TRY(find(is, scope, &p, &there));
    if (there) IS_TRY(is_bank_count_unencoded(is->background->workers[IS_BG_ENCODER].bank, p.id ? &p : NULL, nobody, "", 0, 0, &w)); /* all facts */
    *done = w.n == 0;
    return INFERSCALE_OK;
}

static is_status failing(is_background *b)
{
    is_status st = INFERSCALE_OK;

    pthread_mutex_lock(&b->lock);
    for (int s = 0; s <= IS_STAGE_FIRST; s++)
        if (b->failed_in_a_row[s] >= 3) st = is_fail(b->state.error, "the background encoder fails: %s", b->state.last_error);
    pthread_mutex_unlock(&b->lock);
    return st;
}

/* The slice that did the last of it may not have been counted yet, nor what was added just now: waits for that, at most so long. */
static void settle(is_background *b, bool model_known, double ms)
{
    struct timespec until = is_in_ms(ms);
    int rc = 0;

    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < IS_BG_WORKERS; i++) {
        const is_bg_worker *w = &b->workers[i];

        for (uint64_t n = w->n_slices; w->in_slice && w->n_slices == n && rc == 0;) rc = pthread_cond_timedwait(&b->moved, &b->lock, &until);
        while (model_known && w->fresh && rc == 0) rc = pthread_cond_timedwait(&b->moved, &b->lock, &until);
    }
    pthread_mutex_unlock(&b->lock);
}

/* Until something moved, or so long. */
static void wait_moved(is_background *b, double ms)
{
    struct timespec until = is_in_ms(ms);

    pthread_mutex_lock(&b->lock);
    pthread_cond_timedwait(&b->moved, &b->lock, &until);
    pthread_mutex_unlock(&b->lock);
}

is_status inferscale_encode_wait(inferscale *is, const inferscale_scope *scope, int64_t timeout_ms)
{
    const double t0 = is_now_ms();

    IS_TRY(is_handle_check(is));
    if (!is->background)
        return is_fail(INFERSCALE_E_INVALID, "there is no background encoder to wait for; %s", is_words(IS_CALL_BACKGROUND));
    is_background_look(is->background);
    for (;;) {
        inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
        double asked = is_now_ms(), took;
        bool done;

        IS_TRY(inferscale_encode_status(is, scope, &s));
        IS_TRY(is_done(is, scope, &s, &done));
        if (done) {
            settle(is->background, s.model_known, 1000);
            return INFERSCALE_OK;
        }
        IS_TRY(failing(is->background));
        took = is_now_ms() - asked;
        if (timeout_ms >= 0 && is_now_ms() - t0 >= (double)timeout_ms)
            return is_fail(INFERSCALE_E_BUSY, "%llu items still wait for their embedding and %llu facts for their KV; wait longer",
                           (unsigned long long)s.n_unembedded, (unsigned long long)s.n_unencoded);
        wait_moved(is->background, took * 10 < 10 ? 10 : took * 10 < 500 ? took * 10 : 500);
    }
}
