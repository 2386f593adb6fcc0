/* keeper.c - the thread that looks after the servers: each is asked now and then whether it is well, those that are not more often, all at
 * once, so that one that hangs holds up nobody; who is well again, or was not up before, is asked what it is; and those that have not
 * confirmed a revocation are asked again. */
#include "engine/vllm/internal.h"

#include <time.h>

enum { WELL_TICKS = 2, STEP_MS = 50 };  /* one that is well is asked every so many ticks */

typedef struct look { vllm_call *call; double next_ms; } look;

typedef struct keeper { vllm *e; vllm_line *line; look of[VLLM_UPSTREAMS]; } keeper;

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
static void end(keeper *k, uint32_t i)
{
    vllm *e = k->e;
    vllm_upstream *u = &e->up[i];
    is_status st = health_of(k->of[i].call);
    bool ask;

    vllm_call_close(k->of[i].call);
    k->of[i].call = NULL;
    pthread_mutex_lock(&e->lock);
    ask = u->state == VLLM_NEW || u->n_row > 0 || u->unsure;
    pthread_mutex_unlock(&e->lock);
    if (st == INFERSCALE_OK && !ask) return;
    if (st == INFERSCALE_OK) st = vllm_describe(e, i, (vllm_flags){ &e->stopping, NULL }, vllm_limit.small_ms);
    vllm_upstream_note(e, i, vllm_outcome_of(st, true));
}

static void look_after(keeper *k, double until)
{
    bool left = true;

    if (!k->line && vllm_line_take(k->e->http, &k->line) != INFERSCALE_OK) return; /* the next time */
    for (uint32_t i = 0; i < k->e->n_up; i++) begin(k, i);
    while (left && !is_closing(k->e)) {
        left = false;
        for (uint32_t i = 0; i < k->e->n_up; i++) {
            if (k->of[i].call && vllm_call_end(k->of[i].call) != VLLM_PENDING) end(k, i);
            left = left || k->of[i].call;
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
        vllm_revoke_again(k.e);
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
