/* hold.c - the list of questions under way, and the draining of it. */
#include "api/hold.h"
#include "api/listen.h"
#include "api/talks.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

/* A connection that follows the bank's first one; NULL and a sentence if there can be none. */
static is_bank *open_watch(const inferscale *is)
{
    is_bank *w = NULL;

    if (is_bank_open(is_bank_path(is->bank), true, &w) != INFERSCALE_OK) return NULL;
    if (!is_bank_frozen(w) || is_bank_frozen(is->bank)) return w;
    is_bank_close(w); /* it would show one epoch for ever */
    is_fail(INFERSCALE_E_IO, "a second connection to the bank cannot follow the first; check the disk");
    return NULL;
}

/* Epochs are read on a connection of their own: the bank's first one may be writing, and a token must not wait for the disk. Two
 * first questions may both open one, without a lock; one is kept. */
static is_bank *watch_of(inferscale *is)
{
    is_bank *watch = __atomic_load_n(&is->watch, __ATOMIC_ACQUIRE), *mine;

    if (watch) return watch;
    mine = open_watch(is);
    pthread_mutex_lock(&is->watch_lock);
    watch = is->watch;
    if (!watch) {
        if (!mine) is_log(IS_LOG_WARN, "questions read the epoch where others write: %s", is_error());
        watch = mine ? mine : is->bank;
        __atomic_store_n(&is->watch, watch, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&is->watch_lock);
    if (mine != watch) is_bank_close(mine);
    return watch;
}

void is_hold_enter(is_hold *h, inferscale *is, int64_t as_of)
{
    memset(h, 0, sizeof *h);
    h->is = is;
    h->as_of = is_time_given(as_of) ? as_of : 0;
    pthread_mutex_lock(&is->holds_lock);
    h->next = is->holds;
    is->holds = h;
    pthread_mutex_unlock(&is->holds_lock);
}

void is_hold_leave(is_hold *h)
{
    is_hold **at;

    if (!h->is) return;
    pthread_mutex_lock(&h->is->holds_lock);
    for (at = &h->is->holds; *at && *at != h; at = &(*at)->next) continue;
    if (*at) *at = h->next;
    pthread_mutex_unlock(&h->is->holds_lock);
    is_lease_drop(h->lease);
    is_free(h->facts);
    is_names_free(&h->segments);
    memset(h, 0, sizeof *h);
}

/* To the epoch of *now, which is refreshed. First the lease, then the look: what comes after the look finds the lease. Who must end keeps the
 * old one until what it holds has ended, so that who made it end waits for it. */
static is_status move_lease(is_hold *h, is_bank *watch, is_partition *now, bool *gone)
{
    is_lease *lease = NULL, *old;
    bool holds = true;
    is_status st = is_lease_take(watch, now, &lease);

    if (st == INFERSCALE_OK && (h->n_facts || h->segments.n))
        st = is_bank_still_holds(watch, now, h->facts, h->n_facts, &h->segments, h->as_of, &holds);
    *gone = st == INFERSCALE_OK && !holds;
    if (st == INFERSCALE_OK && holds) {
        pthread_mutex_lock(&h->is->holds_lock);
        old = h->lease;
        h->lease = lease;
        h->p = *now;
        pthread_mutex_unlock(&h->is->holds_lock);
        lease = old;
    }
    is_lease_drop(lease);
    return st;
}

is_status is_hold_lease(is_hold *h, is_partition *p, bool *gone)
{
    is_bank *watch = watch_of(h->is);

    *gone = is_hold_stopped(h);
    if (*gone) return INFERSCALE_OK;
    IS_TRY(is_bank_partition_refresh(watch, p));
    if (h->lease && h->p.id == p->id && h->p.epoch == p->epoch) return INFERSCALE_OK;
    return move_lease(h, watch, p, gone);
}

is_status is_hold_add(is_hold *h, const is_dep *facts, size_t n, const is_names *segments)
{
    is_status st = INFERSCALE_OK;
    is_dep *grown;

    pthread_mutex_lock(&h->is->holds_lock);
    grown = is_realloc(h->facts, (h->n_facts + n + 1) * sizeof *grown);
    if (!grown) st = is_fail(INFERSCALE_E_NOMEM, "out of memory");
    else h->facts = grown;
    if (grown && n) memcpy(grown + h->n_facts, facts, n * sizeof *grown);
    if (grown) h->n_facts += n;
    for (size_t i = 0; st == INFERSCALE_OK && i < segments->n; i++) st = is_names_add(&h->segments, segments->names[i]);
    pthread_mutex_unlock(&h->is->holds_lock);
    return st;
}

is_status is_hold_plan(is_hold *h, const is_plan *plan)
{
    is_dep *facts = is_calloc(plan->n_parts + 1u, sizeof *facts);
    is_names segments = { 0 };
    is_status st = facts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    size_t n = 0;

    for (uint32_t i = 0; st == INFERSCALE_OK && i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];

        if (part->role != IS_ROLE_FACT || part->source == IS_SRC_RESIDENT) continue; /* who has those resident adds them */
        facts[n++] = (is_dep){ part->fact_id, part->version };
        if (part->segment) st = is_names_add(&segments, is_segment_info(part->segment)->name);
    }
    if (st == INFERSCALE_OK) st = is_hold_add(h, facts, n, &segments);
    is_names_free(&segments);
    is_free(facts);
    return st;
}

void is_hold_nothing(is_hold *h)
{
    pthread_mutex_lock(&h->is->holds_lock);
    h->n_facts = 0;
    is_names_free(&h->segments);
    pthread_mutex_unlock(&h->is->holds_lock);
    __atomic_store_n(&h->stop, 0, __ATOMIC_RELEASE);
}

bool is_hold_stopped(const is_hold *h)
{
    return __atomic_load_n(&h->stop, __ATOMIC_ACQUIRE) != 0;
}

is_status is_hold_check(is_hold *h, bool *gone)
{
    is_bank *watch;
    is_partition now;

    *gone = is_hold_stopped(h);
    if (*gone || !h->p.id) return INFERSCALE_OK;
    watch = watch_of(h->is);
    now = h->p;
    IS_TRY(is_bank_partition_refresh(watch, &now));
    return now.epoch == h->p.epoch ? INFERSCALE_OK : move_lease(h, watch, &now, gone);
}

/* ---- Draining ------------------------------------------------------------------------------------------------------------ */

static void stop_holders(inferscale *is, const is_partition *p)
{
    pthread_mutex_lock(&is->holds_lock);
    for (is_hold *h = is->holds; h; h = h->next) {
        bool holds = true;

        if (h->p.id != p->id || is_hold_stopped(h)) continue;
        if (is_bank_still_holds(is->bank, p, h->facts, h->n_facts, &h->segments, h->as_of, &holds) == INFERSCALE_OK && holds) continue;
        __atomic_store_n(&h->stop, 1, __ATOMIC_RELEASE); /* when in doubt, it looks for itself */
    }
    pthread_mutex_unlock(&is->holds_lock);
}

/* Those of this process that could not get a lease. */
static size_t count_leaseless(inferscale *is, const is_partition *p)
{
    size_t n = 0;

    pthread_mutex_lock(&is->holds_lock);
    for (is_hold *h = is->holds; h; h = h->next) n += h->p.id == p->id && h->p.epoch < p->epoch && !h->lease;
    pthread_mutex_unlock(&is->holds_lock);
    return n;
}

/* Servers elsewhere let go of what they computed of it too. One that was never asked for anything may have been by another process, so
 * it is asked for the first time here. */
static is_status revoke(inferscale *is, const is_partition *p, uint32_t wait_ms, size_t *n_pending)
{
    const is_realm realm = is_realm_of(p);

    *n_pending = 0;
    if (!is_handle_engine_if_loaded(is)) {
        if (!is_handle_is_remote(is)) return INFERSCALE_OK;
        if (is_handle_engine_within(is, wait_ms) != INFERSCALE_OK) {
            *n_pending = 1;
            is_log(IS_LOG_WARN, "no upstream could be told to let go of what was changed or forgotten: %s", is_error());
            return is_fail(INFERSCALE_E_BUSY, "no upstream could be told to let go of what was changed or forgotten (the log says why); what they "
                           "keep of it is not used any more, and forgetting again tells them");
        }
    }
    return is_engine_revoke(is->engine, &realm, wait_ms, n_pending);
}

/* What is left of wait_ms, but never nothing: who was waited for first must not keep the others from being asked. */
static uint32_t left_of(uint32_t wait_ms, double until)
{
    const double left = until - is_now_ms(), least = wait_ms / 4.0;

    return (uint32_t)(left > least ? left : least);
}

is_status is_handle_drain(inferscale *is, const is_partition *p, uint32_t wait_ms, size_t *n_pending)
{
    const struct timespec pause = { 0, 1000000 };
    const double until = is_now_ms() + wait_ms;
    is_partition now = *p;
    size_t n_servers = 0, beginning;
    is_status st, revoked;
    char why[1024] = "";

    *n_pending = 0;
    IS_TRY(is_bank_partition_refresh(is->bank, &now));
    stop_holders(is, &now);
    is_handle_gone(is, &now);
    is_talks_drop(is, &now);
    while ((beginning = is_handle_drop_chats(is, &now)) && is_now_ms() < until) nanosleep(&pause, NULL);
    revoked = revoke(is, &now, wait_ms, &n_servers);
    if (revoked != INFERSCALE_OK) snprintf(why, sizeof why, "%s", is_error());
    st = is_lease_wait(is->bank, &now, left_of(wait_ms, until), n_pending);
    while (count_leaseless(is, &now) && is_now_ms() < until) nanosleep(&pause, NULL);
    *n_pending += count_leaseless(is, &now) + beginning;
    if (st == INFERSCALE_OK && *n_pending == 0 && revoked != INFERSCALE_OK) st = is_fail(revoked, "%s", why);
    if (st != INFERSCALE_OK || *n_pending == 0) {
        *n_pending += n_servers;
        return st;
    }
    *n_pending += n_servers;
    return is_fail(INFERSCALE_E_BUSY, "questions of this process that may use what was changed or forgotten have not ended in %u ms; they "
                   "end before their next token", wait_ms);
}
