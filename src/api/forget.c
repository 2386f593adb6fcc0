/* forget.c - changing and forgetting, in the order that lets nothing slip through (docs/design.md):
 *
 *   commit, with the epoch raised and the names of all that goes entered as doomed
 *   stop what holds it: questions under way in this process, idle conversations
 *   take the files out of the namespace
 *   wait for the leases of all other questions
 *   overwrite, sync, unlink; the bank stops naming them; indexes and the log are emptied
 *   return
 *
 * A crash on the way leaves doomed names, which the next open finishes. */
#include <stdio.h>
#include <string.h>

#include "api/background.h"
#include "api/room.h"
#include "api/hold.h"
#include "api/prove.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { WAIT_MS_DEFAULT = 10000, LOG_WAIT_MS = 1000 };

static is_status begin(inferscale *is, const inferscale_scope *scope, const char *what, is_partition *p)
{
    IS_TRY(is_handle_check(is));
    if (is->read_only) return is_room_refuse(is, what);
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory it is (user, agent, run or app)");
    return is_bank_partition(is->bank, scope, false, p);
}

/* The first of two failures is the one to tell. */
static is_status first_of(is_status st, is_status later)
{
    return st != INFERSCALE_OK ? st : later;
}

is_status is_handle_carry_out(inferscale *is, const is_partition *p, is_names *stale,
                              uint32_t wait_ms, size_t *n_pending)
{
    char why[1024] = "";
    is_status st = is_vault_hide(is->vault, stale->names, stale->n), drained, removed;

    if (st != INFERSCALE_OK) is_log(IS_LOG_WARN, "a segment could not be renamed: %s", is_error()); /* it is overwritten where it stands */
    drained = is_handle_drain(is, p, wait_ms, n_pending);
    if (drained != INFERSCALE_OK) snprintf(why, sizeof why, "%s", is_error());
    removed = is_handle_drop(is, p, stale);
    is_background_look(is->background);
    return drained == INFERSCALE_OK ? removed : is_fail(drained, "%s", why);
}

/* ---- Change -------------------------------------------------------------------------------------------------------------- */

is_status is_handle_update(inferscale *is, const inferscale_scope *scope, int64_t id,
                           const inferscale_fact *fact, size_t *n_others)
{
    is_partition p;
    is_names stale = { 0 };
    size_t n_pending;

    *n_others = 0;
    if (!fact) return is_fail(INFERSCALE_E_INVALID, "fact is NULL; pass the new version");
    IS_TRY(begin(is, scope, "change a fact", &p));
    IS_TRY(is_bank_update_fact(is->bank, &p, id, fact, &stale));
    *n_others = stale.n_others;
    return is_handle_carry_out(is, &p, &stale, WAIT_MS_DEFAULT, &n_pending);
}

is_status inferscale_update(inferscale *is, const inferscale_scope *scope, int64_t id,
                            const inferscale_fact *fact)
{
    size_t n_others;

    return is_handle_update(is, scope, id, fact, &n_others);
}

is_status is_handle_supersede(inferscale *is, const inferscale_scope *scope, int64_t id,
                              const inferscale_fact *fact, int64_t *new_id, size_t *n_others)
{
    is_partition p;
    is_names stale = { 0 };
    int64_t made = 0;
    size_t n_pending;
    is_status st;

    *n_others = 0;
    if (new_id) *new_id = 0;
    if (!fact) return is_fail(INFERSCALE_E_INVALID, "fact is NULL; pass the new fact");
    IS_TRY(begin(is, scope, "change a fact", &p));
    IS_TRY(is_background_take(is->background, 1));
    st = is_bank_supersede(is->bank, &p, scope, id, fact, &made, &stale);
    is_background_took(is->background, 1, st == INFERSCALE_OK);
    if (st != INFERSCALE_OK) return st;
    if (new_id) *new_id = made;
    *n_others = stale.n_others;
    return is_handle_carry_out(is, &p, &stale, WAIT_MS_DEFAULT, &n_pending);
}

is_status inferscale_supersede(inferscale *is, const inferscale_scope *scope, int64_t id,
                               const inferscale_fact *fact, int64_t *new_id)
{
    size_t n_others;

    return is_handle_supersede(is, scope, id, fact, new_id, &n_others);
}

is_status inferscale_pin(inferscale *is, const inferscale_scope *scope, int64_t id, int pinned)
{
    is_partition p;

    IS_TRY(begin(is, scope, "pin a fact", &p));
    return is_bank_pin(is->bank, &p, id, pinned != 0);
}

/* ---- Forget -------------------------------------------------------------------------------------------------------------- */

static is_status check_options(const inferscale_forget_options *o, const int64_t *ids, size_t n)
{
    if (o->struct_size < sizeof *o)
        return is_fail(INFERSCALE_E_INVALID, "the forget options are not initialised; use INFERSCALE_FORGET_OPTIONS_INIT");
    if (n && (o->all || o->expired))
        return is_fail(INFERSCALE_E_INVALID, "ids were given together with `all` or `expired`; give one or the other");
    if (n && !ids) return is_fail(INFERSCALE_E_INVALID, "ids is NULL; pass the ids to forget, or set `all`");
    return INFERSCALE_OK;
}

/* One forgetting from the commit on. proof may be NULL. */
static is_status forget(inferscale *is, const is_partition *p, is_closure *c, const inferscale_forget_options *o, is_proof *proof,
                        inferscale_forget_report *r)
{
    const uint32_t wait_ms = o->wait_ms ? o->wait_ms : WAIT_MS_DEFAULT;
    char why[1024] = "";
    size_t pending = 0;
    is_status st, cut;

    c->each = proof ? is_proof_gone : NULL;
    c->ctx = proof;
    st = is_bank_forget_closure(is->bank, p, c);
    if (st == INFERSCALE_E_FULL && (proof || c->expired ? is_room_release(is) : is_room_make(is, p, c->ids, c->n)))
        st = is_bank_forget_closure(is->bank, p, c);
    if (st != INFERSCALE_OK) return st;
    if (o->n_unknown) *o->n_unknown = c->n_unknown;
    r->forgotten = c->n_deleted;
    r->withdrawn = c->n_withdrawn;
    r->reencode = c->n_reencode;
    r->segments = c->stale.n;
    st = proof ? is_proof_segments(proof, &c->stale) : INFERSCALE_OK; /* before the files go; a failure must not keep them */
    st = first_of(st, is_handle_carry_out(is, p, &c->stale, wait_ms, &pending));
    r->pending = pending;
    if (st != INFERSCALE_OK) snprintf(why, sizeof why, "%s", is_error());
    if (proof) {
        if (st == INFERSCALE_OK) st = is_proof_search(proof, wait_ms, o->on_progress, o->progress_ctx, r);
        if (c->n_deleted) is_bank_drop_caches();
        return st;
    }
    cut = c->n_deleted ? is_bank_cut_log(is->bank, LOG_WAIT_MS) : INFERSCALE_OK;
    if (c->n_deleted) is_bank_drop_caches();
    if (cut != INFERSCALE_OK) is_log(IS_LOG_WARN, "bank: the write-ahead log could not be emptied after forgetting: %s", is_error());
    return st == INFERSCALE_OK ? st : is_fail(st, "%s", why);
}

/* An owner nobody knows has none of the ids. */
static void all_unknown(const inferscale_forget_options *o, const int64_t *ids, size_t n)
{
    if (o->n_unknown) *o->n_unknown = n;
    if (o->unknown && n) memcpy(o->unknown, ids, n * sizeof *ids);
}

is_status inferscale_forget_with(inferscale *is, const inferscale_scope *scope, const int64_t *ids, size_t n,
                                 const inferscale_forget_options *options, inferscale_forget_report *report)
{
    const inferscale_forget_options none = INFERSCALE_FORGET_OPTIONS_INIT, *o = options ? options : &none;
    inferscale_forget_report own, *r = report ? report : &own;
    is_closure c = { .ids = ids, .n = n, .filter = scope, .with_turns = o->with_turns != 0, .with_facts = o->with_facts != 0 };
    static const int64_t nobody = 0;
    is_proof *proof = NULL;
    is_partition p;
    is_status st;

    memset(r, 0, sizeof *r);
    IS_TRY(is_handle_check(is));
    IS_TRY(check_options(o, ids, n));
    c.unknown = o->unknown;
    if (o->n_unknown) *o->n_unknown = 0;
    st = begin(is, scope, "forget", &p);
    if (st != INFERSCALE_OK && st != INFERSCALE_E_NOTFOUND) return st;
    if (st == INFERSCALE_E_NOTFOUND) all_unknown(o, ids, n);
    if (st == INFERSCALE_E_NOTFOUND && !o->prove) return INFERSCALE_OK; /* an owner nobody knows has nothing to forget */
    if (st == INFERSCALE_E_NOTFOUND || (n == 0 && !o->all && !o->expired)) /* nothing but the log, which may be left from before */
        return is_bank_cut_log(is->bank, o->wait_ms ? o->wait_ms : WAIT_MS_DEFAULT);
    if (o->all || o->expired) c.ids = NULL;
    else if (!ids) c.ids = &nobody;
    c.expired = o->expired != 0;
    if (o->prove) IS_TRY(is_proof_new(is, &proof));
    st = forget(is, &p, &c, o, proof, r);
    is_proof_free(proof);
    return st;
}

static is_status forget_plainly(inferscale *is, const inferscale_scope *scope, const int64_t *ids, size_t n, int all, size_t *n_deleted)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r = { 0 };
    is_status st;

    o.all = all;
    st = inferscale_forget_with(is, scope, ids, n, &o, &r);
    if (n_deleted) *n_deleted = r.forgotten;
    return st;
}

is_status inferscale_forget(inferscale *is, const inferscale_scope *scope, const int64_t *ids, size_t n, size_t *n_deleted)
{
    if (n_deleted) *n_deleted = 0;
    return n ? forget_plainly(is, scope, ids, n, 0, n_deleted) : is_handle_check(is);
}

is_status inferscale_forget_all(inferscale *is, const inferscale_scope *scope, size_t *n_deleted)
{
    if (n_deleted) *n_deleted = 0;
    return forget_plainly(is, scope, NULL, 0, 1, n_deleted);
}
