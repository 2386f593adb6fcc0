/* gate.c - a counter of open questions, a flag that polling code reads, and a condition for those who wait. */
#include "base/gate.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "base/mem.h"

struct is_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_inside;
    bool shut;
    int flag;             /* written under the lock, read without: atomically */
};

is_status is_gate_new(is_gate **out)
{
    pthread_condattr_t attr;
    is_gate *g = is_calloc(1, sizeof *g);

    *out = g;
    if (!g) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a lock; free some and try again");
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &attr);
    pthread_condattr_destroy(&attr);
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
    g->n_inside++;
    set_flag(g);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_leave(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->n_inside--;
    set_flag(g);
    pthread_mutex_unlock(&g->lock);
}

void is_gate_shut(is_gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->shut = true;
    set_flag(g);
    pthread_mutex_unlock(&g->lock);
}

bool is_gate_open(is_gate *g)
{
    return __atomic_load_n(&g->flag, __ATOMIC_ACQUIRE) == 0;
}

bool is_gate_wait(is_gate *g, int64_t timeout_ms)
{
    struct timespec until;
    bool open;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ms > 0) {
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += timeout_ms % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
    }
    pthread_mutex_lock(&g->lock);
    while (g->n_inside > 0 && !g->shut && rc != ETIMEDOUT)
        rc = timeout_ms < 0 ? pthread_cond_wait(&g->changed, &g->lock) : pthread_cond_timedwait(&g->changed, &g->lock, &until);
    open = g->n_inside == 0;
    pthread_mutex_unlock(&g->lock);
    return open;
}

const volatile int *is_gate_flag(const is_gate *g)
{
    return &g->flag;
}
