/* loader.c - one thread loads, those that need the same wait for it. */
#include "api/loader.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

void is_loader_init(is_loader *l)
{
    pthread_condattr_t attr;

    *l = (is_loader){ 0 };
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void is_loader_destroy(is_loader *l)
{
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
}

static struct timespec in_ms(uint32_t ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000L;
    if (t.tv_nsec >= 1000000000L) {
        t.tv_nsec -= 1000000000L;
        t.tv_sec++;
    }
    return t;
}

/* The lock is held. The result of the load that is under way. */
static is_status wait_for_it(is_loader *l, uint32_t wait_ms)
{
    const struct timespec until = in_ms(wait_ms);
    const uint64_t before = l->n_ended;
    int rc = 0;

    while (l->n_ended == before && rc != ETIMEDOUT)
        rc = wait_ms ? pthread_cond_timedwait(&l->changed, &l->lock, &until) : pthread_cond_wait(&l->changed, &l->lock);
    if (l->loaded) return INFERSCALE_OK;
    if (l->n_ended == before)
        return is_fail(INFERSCALE_E_BUSY, "another thread has been loading it for more than %u ms; ask again", wait_ms);
    return is_fail(l->status, "%s", l->why);
}

is_status is_loader_run(is_loader *l, uint32_t wait_ms, is_status (*load)(void *ctx), void *ctx)
{
    is_status st = INFERSCALE_OK;

    pthread_mutex_lock(&l->lock);
    if (!l->loaded && l->loading) st = wait_for_it(l, wait_ms);
    else if (!l->loaded) {
        l->loading = true;
        pthread_mutex_unlock(&l->lock);
        st = load(ctx);
        pthread_mutex_lock(&l->lock);
        l->loading = false;
        l->loaded = st == INFERSCALE_OK;
        l->status = st;
        if (st != INFERSCALE_OK) snprintf(l->why, sizeof l->why, "%s", is_error());
        l->n_ended++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

bool is_loader_done(is_loader *l)
{
    bool done;

    pthread_mutex_lock(&l->lock);
    done = l->loaded;
    pthread_mutex_unlock(&l->lock);
    return done;
}
