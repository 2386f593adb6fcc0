/* keeper.c - the thread that looks after the servers: each is asked now and then whether it is well, those that are not more often; who is
 * well again, or was not up before, is asked what it is; and those that have not confirmed a revocation are asked again, some memories
 * at once. All of it goes on one line and nothing is waited for alone, so a server that hangs, whatever it was asked, holds up nobody. */
#include "engine/vllm/internal.h"

#include <time.h>

enum { WELL_TICKS = 2, STEP_MS = 50 };  /* one that is well is asked every so many ticks */
enum { AGAIN = 8, CONFIRM_MS = 15000 }; /* revocations at once; longer than a connector takes to say that it is not done yet */

typedef struct look { vllm_call *call; bool describes; double next_ms; } look;

typedef struct again { vllm_call *calls[AGAIN]; is_realm of[AGAIN]; uint32_t n, n_left; bool all, said; double next_ms; } again;

typedef struct keeper { vllm *e; vllm_line *line; look of[VLLM_UPSTREAMS]; again again[VLLM_UPSTREAMS]; } keeper;

static bool is_closing(const vllm *e)
{
    return __atomic_load_n(&e->closing, __ATOMIC_ACQUIRE);
}

/* ---- Is it well? -------------------------------------------------------------------------------------------------------------------- */

static void begin(keeper *k, uint32_t i)
{
    vllm_upstream *u = &k->e->up[i];
    look *l = &k->of[i];
    bool well;

    if (l->call || is_now_ms() < l->next_ms) return;
    pthread_mutex_lock(&k->e->lock);
    well = u->state != VLLM_NEW && u->n_row == 0;
    pthread_mutex_unlock(&k->e->lock);
    l->next_ms = is_now_ms() + (double)vllm_limit.keeper_ms * (well ? WELL_TICKS : 1);
    if (vllm_call_open(k->line, u->url, "/health", NULL, 1 << 20, (vllm_patience){ vllm_limit.connect_ms, vllm_limit.small_ms }, &l->call) !=
        INFERSCALE_OK)
        is_log(IS_LOG_WARN, "vLLM at %s could not be asked whether it is well: %s", u->url, is_error());
}

/* Whatever speaks HTTP and says no fault of its own: not every proxy lets /health through. */
static is_status health_of(const vllm_call *c)
{
    if (vllm_call_end(c) != VLLM_ANSWERED) return vllm_call_fail(c);
    if (vllm_call_code(c) >= 200 && vllm_call_code(c) < 500) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_ENGINE, "%s says HTTP %ld", vllm_call_url(c), vllm_call_code(c));
}

/* One that was away may be another model since, or without the connector. */
static bool is_doubted(vllm *e, uint32_t i)
{
    const vllm_upstream *u = &e->up[i];
    bool doubted;

    pthread_mutex_lock(&e->lock);
    doubted = u->state == VLLM_NEW || u->n_row > 0 || u->unsure;
    pthread_mutex_unlock(&e->lock);
    return doubted;
}

static void end(keeper *k, uint32_t i)
{
    look *l = &k->of[i];
    const bool described = l->describes;
    is_status st = described ? vllm_describe_end(k->e, i, l->call) : health_of(l->call);

    vllm_call_close(l->call);
    l->call = NULL;
    l->describes = false;
    if (st == INFERSCALE_OK && !described) {
        if (!is_doubted(k->e, i)) return;
        st = vllm_describe_begin(k->e, i, k->line, vllm_limit.small_ms, &l->call);
        l->describes = st == INFERSCALE_OK;
        if (l->describes) return;
    }
    vllm_upstream_note(k->e, i, vllm_outcome_of(st, true));
}

/* ---- What it has not confirmed -------------------------------------------------------------------------------------------------------- */

static void close_round(again *a)
{
    for (uint32_t n = 0; n < a->n; n++) {
        vllm_call_close(a->calls[n]);
        a->calls[n] = NULL;
    }
    a->n = a->n_left = 0;
}

/* Once all of a round are confirmed the next ones follow at once. */
static void begin_again(keeper *k, uint32_t i)
{
    const uint32_t ms = vllm_limit.small_ms < CONFIRM_MS ? vllm_limit.small_ms : CONFIRM_MS;
    again *a = &k->again[i];

    if (a->n_left || is_now_ms() < a->next_ms) return;
    a->n = vllm_revoke_due(k->e, i, a->of, AGAIN);
    a->all = true;
    for (uint32_t n = 0; n < a->n; n++) {
        if (vllm_revoke_begin(k->e, i, k->line, &a->of[n], ms, &a->calls[n]) == INFERSCALE_OK) {
            a->n_left++;
            continue;
        }
        if (!a->said) is_log(IS_LOG_WARN, "a revocation could not be sent again: %s", is_error());
        a->said = true;
        a->all = false;
    }
    if (!a->n_left) a->next_ms = is_now_ms() + vllm_limit.keeper_ms;
}

/* One failure is the server's, and ends the round: it is a failed server's, asked when it is well again. */
static void end_again(keeper *k, uint32_t i)
{
    again *a = &k->again[i];

    for (uint32_t n = 0; n < a->n; n++) {
        bool ok;
        is_status st;

        if (!a->calls[n] || vllm_call_end(a->calls[n]) == VLLM_PENDING) continue;
        st = vllm_revoke_end(k->e, i, a->calls[n], &a->of[n], &ok);
        vllm_call_close(a->calls[n]);
        a->calls[n] = NULL;
        a->n_left--;
        a->all = a->all && ok;
        if (vllm_outcome_of(st, true) == VLLM_FAILED) {
            vllm_upstream_note(k->e, i, VLLM_FAILED);
            close_round(a);
        }
        if (!a->n_left) a->next_ms = a->all ? 0 : is_now_ms() + vllm_limit.keeper_ms;
    }
}

/* ---- All of them ---------------------------------------------------------------------------------------------------------------------- */

static void look_after(keeper *k, double until)
{
    if (!k->line && vllm_line_take(k->e->http, &k->line) != INFERSCALE_OK) return; /* the next time */
    for (uint32_t i = 0; i < k->e->n_up; i++) begin(k, i);
    while (!is_closing(k->e)) {
        bool left = false;

        for (uint32_t i = 0; i < k->e->n_up; i++) {
            if (k->of[i].call && vllm_call_end(k->of[i].call) != VLLM_PENDING) end(k, i);
            end_again(k, i);
            begin_again(k, i);
            left = left || k->of[i].call || k->again[i].n_left;
        }
        if (!left || is_now_ms() >= until) return; /* what is open still is looked at with the next tick */
        vllm_line_wait(k->line, until - is_now_ms() < STEP_MS ? (uint32_t)(until - is_now_ms()) + 1 : STEP_MS);
    }
}

/* ---- The thread --------------------------------------------------------------------------------------------------------------------- */

/* False: it is time to end. */
static bool sleep_until(vllm *e, double until)
{
    struct timespec t;
    double ms = until - is_now_ms();

    if (ms < 0) ms = 0;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)((ms - 1000 * (double)(time_t)(ms / 1000)) * 1e6);
    if (t.tv_nsec >= 1000000000L) t.tv_sec++, t.tv_nsec -= 1000000000L;
    pthread_mutex_lock(&e->lock);
    while (!e->closing && is_now_ms() < until)
        if (pthread_cond_timedwait(&e->wake, &e->lock, &t)) break;
    pthread_mutex_unlock(&e->lock);
    return !is_closing(e);
}

static void *keep(void *arg)
{
    keeper k = { .e = arg };
    double until = is_now_ms() + vllm_limit.keeper_ms;

    while (sleep_until(k.e, until)) {
        until = is_now_ms() + vllm_limit.keeper_ms;
        look_after(&k, until);
        vllm_spool_sweep(k.e);
    }
    vllm_line_give(k.line); /* and its calls */
    return NULL;
}

is_status vllm_keeper_start(vllm *e)
{
    if (pthread_create(&e->keeper, NULL, keep, e) != 0)
        return is_fail(INFERSCALE_E_ENGINE, "no thread can be started to look after the vLLM servers; check the limits of this process");
    e->keeping = true;
    return INFERSCALE_OK;
}

void vllm_keeper_stop(vllm *e)
{
    if (!e->keeping) return;
    pthread_mutex_lock(&e->lock);
    __atomic_store_n(&e->closing, true, __ATOMIC_RELEASE);
    __atomic_store_n(&e->stopping, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->keeper, NULL);
    e->keeping = false;
}
