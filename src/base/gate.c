/* gate.c - a counter of open questions, a flag that polling code reads, and a condition that
 * background work waits on. */
#include "base/gate.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

enum { GONE = 32 };

struct is_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_inside, n_holding;
    bool shut;
    int flag;             /* written under the lock, read without: atomically */
    is_gate_work *works;  /* that have begun, or wait to; a list */
    bool busy;            /* one that is not `always` has begun */
    bool no_idle;         /* work without a share does not wait for questions, but is dropped */
    is_share share;
    uint64_t pauses, drops;
    struct { uint8_t tag[IS_HASH_BYTES]; uint64_t epoch; } gone[GONE]; /* whose work was dropped of late: some may be on its way here */
    unsigned n_gone;
};

is_status is_gate_new(is_gate **out)
{
    const is_share_rules never = { .limit_ms = -1, .least = IS_SHARE_LEAST, .most = IS_SHARE_MOST, .slice_ms = IS_SHARE_SLICE_MS };
    pthread_condattr_t attr;
    is_gate *g = is_calloc(1, sizeof *g);

    *out = g;
    if (!g) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a lock; free some and try again");
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &attr);
    pthread_condattr_destroy(&attr);
    is_share_init(&g->share, &never, is_now_ms());
    return INFERSCALE_OK;
}

void is_gate_free(is_gate *g)
{
    if (!g) return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    is_free(g);
}

/* The lock is held. */
static void set_flag(is_gate *g)
{
    __atomic_store_n(&g->flag, g->n_inside > 0 || g->shut, __ATOMIC_RELEASE);
    if (g->n_inside == 0 || g->shut) pthread_cond_broadcast(&g->changed);
}

void is_gate_enter(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    if (g->n_inside++ == 0) is_share_questions(&g->share, is_now_ms(), true);
    set_flag(g);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_leave(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    if (--g->n_inside == 0) is_share_questions(&g->share, is_now_ms(), false);
    set_flag(g);
    pthread_mutex_unlock(&g->lock);
}

static void drop(is_gate *g, is_gate_work *w)
{
    if (w->drop) return;
    __atomic_store_n(&w->drop, 1, __ATOMIC_RELEASE);
    g->drops += w->begun;
    pthread_cond_broadcast(&g->changed);
}

void is_gate_shut(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->shut = true;
    for (is_gate_work *w = g->works; w; w = w->next) drop(g, w);
    set_flag(g);
    pthread_mutex_unlock(&g->lock);
}

bool is_gate_open(is_gate *g)
{
    return __atomic_load_n(&g->flag, __ATOMIC_ACQUIRE) == 0;
}

/* Waits for a change, at most until then (< 0: for ever). False: the time is over. The lock is held. */
static bool wait_change(is_gate *g, double until_ms)
{
    struct timespec t = { (time_t)(until_ms / 1000), (long)((until_ms - 1000.0 * (double)(time_t)(until_ms / 1000)) * 1e6) };

    if (until_ms < 0) return pthread_cond_wait(&g->changed, &g->lock) == 0;
    return pthread_cond_timedwait(&g->changed, &g->lock, &t) != ETIMEDOUT;
}

static double until_of(int64_t timeout_ms)
{
    return timeout_ms < 0 ? -1 : is_now_ms() + (double)timeout_ms;
}

bool is_gate_wait(is_gate *g, int64_t timeout_ms)
{
    const double until = until_of(timeout_ms);
    bool open, in_time = true;

    pthread_mutex_lock(&g->lock);
    while (g->n_inside > 0 && !g->shut && in_time) in_time = wait_change(g, until);
    open = g->n_inside == 0;
    pthread_mutex_unlock(&g->lock);
    return open;
}

const volatile int *is_gate_flag(const is_gate *g)
{
    return &g->flag;
}

/* ---- Paced work ------------------------------------------------------------------------------------------------------------ */

/* The earlier of two moments, < 0 = never. */
static double earlier(double a, double b)
{
    return a < 0 ? b : b < 0 || a < b ? a : b;
}

/* May it run? If it is to have a slice, that is begun. The lock is held, as what it takes. */
static bool may_run(is_gate *g, is_gate_work *w)
{
    if (w->drop || w->always || g->n_inside == 0) return true;
    w->slice = w->shares && is_share_begin(&g->share, is_now_ms());
    return w->slice;
}

static bool is_unwanted(const is_gate *g, const is_gate_work *w)
{
    return g->no_idle && g->n_inside > 0 && !w->shares && !w->always;
}

/* Waits until it is worth trying. The lock is held. Work that meets a hold before it has begun is dropped: whoever holds may be doing
 * what it was prepared for. */
static void wait_for_chance(is_gate *g, is_gate_work *w)
{
    const bool first = !w->begun;

    if (first && g->n_holding) drop(g, w);
    while (!w->drop) {
        const double now = is_now_ms(), next = w->shares ? is_share_next(&g->share, now) : -1;
        const bool free = !first || w->always || !g->busy;

        if (is_unwanted(g, w)) drop(g, w);
        if (w->drop || (free && (w->always || g->n_inside == 0 || next == 0))) return;
        wait_change(g, free && next > 0 ? now + next : -1);
    }
}

/* Until it may run or is dropped; what it takes is then taken. The lock is held, but not while something is taken. */
static void come_in(is_gate *g, is_gate_work *w)
{
    for (;;) {
        wait_for_chance(g, w);
        if (!w->begun) {
            if (w->drop) return;
            w->begun = true;
            g->busy = g->busy || !w->always;
        }
        pthread_mutex_unlock(&g->lock);
        if (w->take) w->take(w->ctx);
        pthread_mutex_lock(&g->lock);
        if (may_run(g, w)) return;
        pthread_mutex_unlock(&g->lock);
        if (w->give) w->give(w->ctx);
        pthread_mutex_lock(&g->lock);
    }
}

static void leave_list(is_gate *g, is_gate_work *w)
{
    is_gate_work **at = &g->works;

    while (*at != w) at = &(*at)->next;
    *at = w->next;
    if (w->begun && !w->always) g->busy = false;
    pthread_cond_broadcast(&g->changed);
}

/* What it was prepared from has gone meanwhile. */
static bool is_gone(const is_gate *g, const is_gate_work *w)
{
    bool gone = false;

    for (unsigned i = 0; w->tag && i < GONE && i < g->n_gone; i++)
        gone = gone || (w->epoch < g->gone[i].epoch && memcmp(w->tag, g->gone[i].tag, IS_HASH_BYTES) == 0);
    return gone;
}

bool is_gate_work_begin(is_gate *g, is_gate_work *w)
{
    bool begun;

    pthread_mutex_lock(&g->lock);
    w->drop = g->shut || is_gone(g, w);
    w->begun = w->paused = w->slice = false;
    w->next = g->works;
    g->works = w;
    come_in(g, w);
    begun = w->begun;
    if (!begun) leave_list(g, w);
    pthread_mutex_unlock(&g->lock);
    return begun;
}

static void end_slice(is_gate *g, is_gate_work *w)
{
    if (w->slice) is_share_end(&g->share, is_now_ms());
    w->slice = false;
}

void is_gate_work_pause(is_gate *g, is_gate_work *w)
{
    if (w->always || __atomic_load_n(&w->drop, __ATOMIC_ACQUIRE) || (is_gate_open(g) && !w->slice)) return;
    pthread_mutex_lock(&g->lock);
    if (w->slice && g->n_inside > 0 && is_share_go_on(&g->share, is_now_ms())) {
        pthread_mutex_unlock(&g->lock);
        return;
    }
    end_slice(g, w);
    if (is_unwanted(g, w)) drop(g, w);
    if (g->n_inside > 0 && !w->drop) {
        g->pauses++;
        w->paused = true;
        pthread_mutex_unlock(&g->lock);
        if (w->give) w->give(w->ctx);
        pthread_mutex_lock(&g->lock);
        come_in(g, w);
        w->paused = false;
    }
    pthread_mutex_unlock(&g->lock);
}

void is_gate_work_end(is_gate *g, is_gate_work *w)
{
    if (w->give) w->give(w->ctx);
    pthread_mutex_lock(&g->lock);
    end_slice(g, w);
    leave_list(g, w);
    pthread_mutex_unlock(&g->lock);
}

bool is_gate_work_wait(is_gate *g, bool shares, int64_t timeout_ms)
{
    const double until = until_of(timeout_ms);
    bool may, in_time = true;

    pthread_mutex_lock(&g->lock);
    for (;;) {
        const double now = is_now_ms(), limit = g->share.rules.limit_ms;
        const double from = shares && g->share.waits && limit >= 0 ? g->share.since_ms + limit : -1;

        may = !g->shut && g->n_holding == 0 && (g->n_inside == 0 || (from >= 0 && now >= from));
        if (may || g->shut || !in_time) break;
        in_time = wait_change(g, earlier(until, g->n_holding ? -1 : from)) || until < 0 || is_now_ms() < until;
    }
    pthread_mutex_unlock(&g->lock);
    return may;
}

bool is_gate_hold_wait(is_gate *g, int64_t timeout_ms)
{
    const double until = until_of(timeout_ms);
    bool held, in_time = true;

    pthread_mutex_lock(&g->lock);
    while (g->n_holding > 0 && !g->shut && in_time) in_time = wait_change(g, until);
    held = g->n_holding > 0;
    pthread_mutex_unlock(&g->lock);
    return !held;
}

/* Is there work of this tag (NULL: that has begun, whosever it is)? With drop_it all of it is dropped. */
static bool any_of(is_gate *g, const uint8_t *tag, uint64_t epoch, bool drop_it)
{
    bool there = false;

    for (is_gate_work *w = g->works; w; w = w->next) {
        const bool hit = tag ? w->tag && w->epoch < epoch && memcmp(w->tag, tag, IS_HASH_BYTES) == 0 : w->begun;

        if (hit && drop_it) drop(g, w);
        there = there || hit;
    }
    return there;
}

void is_gate_hold(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->n_holding++;
    for (is_gate_work *w = g->works; w; w = w->next) drop(g, w);
    while (any_of(g, NULL, 0, false)) wait_change(g, -1);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_release(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->n_holding--;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_drop_of(is_gate *g, const uint8_t tag[IS_HASH_BYTES], uint64_t epoch, uint32_t wait_ms)
{
    const double until = is_now_ms() + wait_ms;

    pthread_mutex_lock(&g->lock);
    memcpy(g->gone[g->n_gone % GONE].tag, tag, IS_HASH_BYTES);
    g->gone[g->n_gone++ % GONE].epoch = epoch;
    any_of(g, tag, epoch, true);
    while (any_of(g, tag, epoch, false) && wait_change(g, until)) continue;
    pthread_mutex_unlock(&g->lock);
}

void is_gate_drop_idle(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->no_idle = true;
    for (is_gate_work *w = g->works; w; w = w->next)
        if (!w->shares && (w->paused || !w->begun)) drop(g, w);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_idle_again(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->no_idle = false;
    pthread_mutex_unlock(&g->lock);
}

void is_gate_rules(is_gate *g, const is_share_rules *rules)
{
    pthread_mutex_lock(&g->lock);
    g->share.rules = *rules;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_rules_of(is_gate *g, is_share_rules *out)
{
    pthread_mutex_lock(&g->lock);
    *out = g->share.rules;
    pthread_mutex_unlock(&g->lock);
}

void is_gate_waits(is_gate *g, bool waits, double since_ms)
{
    pthread_mutex_lock(&g->lock);
    is_share_waits(&g->share, is_now_ms(), waits, since_ms);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_get_stats(is_gate *g, is_gate_stats *out)
{
    const double now = is_now_ms();

    pthread_mutex_lock(&g->lock);
    is_share_questions(&g->share, now, g->share.open); /* accounts up to now */
    *out = (is_gate_stats){ .lag_ms = is_share_lag(&g->share, now), .share = is_share_now(&g->share, now), .open_ms = g->share.open_ms,
                            .used_ms = g->share.used_ms, .slices = g->share.slices, .pauses = g->pauses, .drops = g->drops };
    pthread_mutex_unlock(&g->lock);
}
