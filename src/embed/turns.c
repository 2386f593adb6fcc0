/* turns.c - a line of questions, and background work that takes its turn between them. */
#include "embed/turns.h"

#include <time.h>

enum {
    MOST = 8,           /* texts of one turn of background work: a pass of the llama embedder */
    LOOK_MS = 5,        /* how often a waiting caller looks at its cancel flag */
};

typedef struct is_turns_waiter {
    struct is_turns_waiter *next;
    bool has_waited;    /* behind a background text: nothing but older questions goes before it now */
} waiter;

void is_turns_init(is_turns *t)
{
    pthread_condattr_t attr;

    *t = (is_turns){ 0 };
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void is_turns_destroy(is_turns *t)
{
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
}

static bool is_set(const volatile int *flag)
{
    return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

/* The lock is held. */
static void wait_changed(is_turns *t, const volatile int *cancel)
{
    struct timespec until;

    if (!cancel) {
        pthread_cond_wait(&t->changed, &t->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&t->changed, &t->lock, &until);
}

static void append(is_turns *t, waiter *w)
{
    waiter **at = &t->first;

    while (*at) at = &(*at)->next;
    *at = w;
}

static void leave(is_turns *t, const waiter *w)
{
    waiter **at = &t->first;

    while (*at != w) at = &(*at)->next;
    *at = w->next;
}

bool is_turns_question(is_turns *t, const volatile int *cancel)
{
    waiter me = { 0 };
    bool off;

    pthread_mutex_lock(&t->lock);
    append(t, &me);
    t->n_questions++;
    t->calm = 0;
    if (t->busy && t->background) __atomic_store_n(&t->yield, 1, __ATOMIC_RELEASE);
    while (!(off = is_set(cancel)) && (t->busy || t->first != &me || (t->n_background && !me.has_waited))) wait_changed(t, cancel);
    leave(t, &me);
    if (off) t->n_questions--;
    else t->busy = true;
    if (off) pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return !off;
}

size_t is_turns_background(is_turns *t, size_t left, const volatile int *cancel)
{
    size_t n = 0;

    pthread_mutex_lock(&t->lock);
    t->n_background++;
    while (!is_set(cancel) && (t->busy || (t->first && t->first->has_waited))) wait_changed(t, cancel);
    t->n_background--;
    if (!is_set(cancel)) {
        n = t->n_questions ? 1 : 1 + t->calm / 2; /* what an early end can lose is less than what was done since the last one */
        if (n > MOST) n = MOST;
        if (n > left) n = left;
        t->busy = t->background = true;
        __atomic_store_n(&t->yield, 0, __ATOMIC_RELEASE);
    } else pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return n;
}

const volatile int *is_turns_flag(const is_turns *t)
{
    return &t->yield;
}

void is_turns_end(is_turns *t, size_t n)
{
    pthread_mutex_lock(&t->lock);
    if (t->background) {
        for (waiter *w = t->first; w; w = w->next) w->has_waited = true;
        if (!t->n_questions) t->calm += n;
    } else t->n_questions--;
    t->busy = t->background = false;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void is_turns_line(is_turns *t, uint32_t *n_questions, uint32_t *n_background)
{
    pthread_mutex_lock(&t->lock);
    *n_questions = t->n_questions;
    *n_background = t->n_background;
    pthread_mutex_unlock(&t->lock);
}
