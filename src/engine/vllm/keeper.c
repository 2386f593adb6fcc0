/* keeper.c - the thread that looks after the servers: those that failed are asked whether they are well, those that were not up are
 * asked what they are, and those that have not confirmed a revocation are asked again. */
#include "engine/vllm/internal.h"

#include <time.h>

static void look_after(vllm *e, uint32_t i)
{
    vllm_upstream *u = &e->up[i];
    double now = is_now_ms();
    vllm_state state;
    bool ask;

    pthread_mutex_lock(&e->lock);
    state = u->state;
    ask = u->down_until_ms <= now && (state == VLLM_NEW || u->n_row > 0);
    if (ask) u->in_flight++;
    pthread_mutex_unlock(&e->lock);
    if (!ask) return;
    if (state == VLLM_NEW) {
        vllm_upstream_give(e, i, vllm_describe(e, i) == INFERSCALE_OK ? VLLM_WORKED : VLLM_FAILED);
    } else {
        vllm_line *l = NULL;
        vllm_call *c = NULL;
        is_status st = vllm_line_take(e->http, &l);

        if (st == INFERSCALE_OK)
            st = vllm_call_open(l, u->url, "/health", NULL, 1 << 20, (vllm_patience){ vllm_limit.connect_ms, vllm_limit.small_ms }, &c);
        while (st == INFERSCALE_OK && vllm_call_end(c) == VLLM_PENDING && !__atomic_load_n(&e->closing, __ATOMIC_ACQUIRE))
            vllm_line_wait(l, 100);
        if (st == INFERSCALE_OK && vllm_call_end(c) != VLLM_ANSWERED) st = vllm_call_fail(c);
        else if (st == INFERSCALE_OK && vllm_call_code(c) != 200)
            st = is_fail(INFERSCALE_E_ENGINE, "%s says HTTP %ld", vllm_call_url(c), vllm_call_code(c));
        vllm_line_give(l);
        if (st == INFERSCALE_OK) st = vllm_describe(e, i); /* it may be another model since, or without the connector */
        vllm_upstream_give(e, i, st == INFERSCALE_OK ? VLLM_WORKED : VLLM_FAILED);
    }
}

static void *keep(void *arg)
{
    vllm *e = arg;

    for (;;) {
        struct timespec t;
        double until = is_now_ms() + vllm_limit.keeper_ms;
        bool closing;

        pthread_mutex_lock(&e->lock);
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_sec += vllm_limit.keeper_ms / 1000;
        t.tv_nsec += vllm_limit.keeper_ms % 1000 * 1000000L;
        if (t.tv_nsec >= 1000000000L) t.tv_sec++, t.tv_nsec -= 1000000000L;
        while (!e->closing && is_now_ms() < until)
            if (pthread_cond_timedwait(&e->wake, &e->lock, &t)) break;
        closing = e->closing;
        pthread_mutex_unlock(&e->lock);
        if (closing) return NULL;
        for (uint32_t i = 0; i < e->n_up; i++) look_after(e, i);
        vllm_revoke_again(e);
        vllm_spool_sweep(e);
    }
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
