/* batch.c - the engine's thread, and how calls get into its steps and back (batch.h has the rules). */
#include "engine/batch.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"

enum { LANES_MAX = 128 };

/* A call under way; it stands on its caller's stack. */
typedef struct call {
    struct seat *seat;
    const volatile int *cancel, *stop;
    bool prompt, done;
    uint32_t left, overtaken; /* tokens that it has to compute yet; how often a shorter one was seated before it */
    is_status status;
    char why[512];
    pthread_cond_t back;
    struct call *next;
} call;

/* A live run, as the scheduler sees it. */
typedef struct seat {
    is_run *run;
    call *busy;              /* the call under way; NULL = its caller is away, since: */
    double away_ms;
    bool seated, expected, ended; /* expected: it got logits in the last step */
    struct seat *next;
} seat;

struct is_batch {
    uint64_t log;              /* where its thread's lines go: where those of its maker went */
    const is_engine_vtable *v;
    void *impl;
    is_turns *turns;
    uint32_t n_parallel;
    pthread_t thread;
    bool has_thread;
    /* all that follows under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool closing;
    seat *seats;             /* every live run */
    call *waiting, *active;  /* in the order in which they came */
    uint32_t n_seated, n_expected, n_ended;
    double gather_until_ms;
    is_lane lanes[LANES_MAX]; /* the thread's own */
    call *lane_call[LANES_MAX];
};

/* ---- Turns --------------------------------------------------------------------------------------------------------------- */

struct is_turns {
    pthread_mutex_t lock;
    pthread_cond_t next;
    uint64_t drawn, served;
};

is_status is_turns_new(is_turns **out)
{
    is_turns *t = is_calloc(1, sizeof *t);

    *out = t;
    if (!t) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the engine's lock");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->next, NULL);
    return INFERSCALE_OK;
}

void is_turns_free(is_turns *t)
{
    if (!t) return;
    pthread_cond_destroy(&t->next);
    pthread_mutex_destroy(&t->lock);
    is_free(t);
}

void is_turns_take(is_turns *t)
{
    uint64_t mine;

    pthread_mutex_lock(&t->lock);
    mine = t->drawn++;
    while (mine != t->served) pthread_cond_wait(&t->next, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void is_turns_give(is_turns *t)
{
    pthread_mutex_lock(&t->lock);
    t->served++;
    if (t->served != t->drawn) pthread_cond_broadcast(&t->next);
    pthread_mutex_unlock(&t->lock);
}

/* ---- Seats --------------------------------------------------------------------------------------------------------------- */

static seat *seat_of(is_batch *b, const is_run *run)
{
    for (seat *s = b->seats; s; s = s->next)
        if (s->run == run && !s->ended) return s;
    return NULL;
}

static void sit(is_batch *b, seat *s)
{
    if (!s->seated) b->n_seated++;
    s->seated = true;
}

static void stand_up(is_batch *b, seat *s)
{
    if (s->seated) b->n_seated--;
    s->seated = false;
}

static void not_expected(is_batch *b, seat *s)
{
    if (s->expected) b->n_expected--;
    s->expected = false;
}

/* Runs whose callers have been away for too long make room while somebody waits. Returns when the next one will have, 0 = none. */
static double free_seats(is_batch *b, double now)
{
    double next = 0;

    for (seat *s = b->seats; s && b->waiting; s = s->next) {
        double until = s->away_ms + IS_AWAY_MS;

        if (!s->seated || s->busy) continue;
        if (until <= now) stand_up(b, s);
        else if (next == 0 || until < next) next = until;
    }
    return next;
}

static void append(call **list, call *c)
{
    while (*list) list = &(*list)->next;
    c->next = NULL;
    *list = c;
}

static void unlink_call(call **list, const call *c)
{
    while (*list != c) list = &(*list)->next;
    *list = c->next;
}

/* Who is to be seated next: the first, or a short one that may still pass all before it. */
static call *next_waiting(is_batch *b)
{
    for (call *c = b->waiting; c; c = c->next) {
        if (c != b->waiting && c->left > IS_SHORT_TOKENS) continue;
        if (c == b->waiting && c->left <= IS_SHORT_TOKENS) return c;
        if (c == b->waiting) continue; /* a long one: is there a short one behind it? */
        for (call *before = b->waiting; before != c; before = before->next)
            if (before->overtaken >= IS_OVERTAKEN) return b->waiting;
        for (call *before = b->waiting; before != c; before = before->next) before->overtaken++;
        return c;
    }
    return b->waiting;
}

static bool is_set(const volatile int *flag)
{
    return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static void end_call(is_batch *b, call *c, is_status st, const char *why)
{
    c->status = st;
    snprintf(c->why, sizeof c->why, "%s", why);
    c->seat->busy = NULL;
    c->seat->away_ms = is_now_ms();
    c->done = true;
    pthread_cond_signal(&c->back);
}

/* Those that wait come in; those whose flag is set go. */
static void admit(is_batch *b)
{
    for (call **at = &b->waiting; *at;) {
        call *c = *at;

        if (is_set(c->cancel) || is_set(c->stop)) {
            *at = c->next;
            end_call(b, c, INFERSCALE_E_CANCELLED, "cancelled before the engine had begun");
        } else {
            at = &c->next;
        }
    }
    while (b->waiting && b->n_seated < b->n_parallel) {
        call *c = next_waiting(b);

        unlink_call(&b->waiting, c);
        sit(b, c->seat);
        append(&b->active, c);
    }
}

/* ---- A step's lanes ------------------------------------------------------------------------------------------------------ */

static int by_left(const void *a, const void *b)
{
    const call *x = *(call *const *)a, *y = *(call *const *)b;

    return x->left < y->left ? -1 : x->left > y->left;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static size_t add_lane(is_batch *b, size_t n, call *c, uint32_t most)
{
    b->lane_call[n] = c;
    b->lanes[n] = (is_lane){ .run = c->seat->run, .most = most };
    return n + 1;
}

/* Shares the step's tokens out to the prompts. */
static size_t add_prompts(is_batch *b, call **prompt, size_t n_prompts, size_t n, uint32_t tokens)
{
    call *oldest = n_prompts ? prompt[0] : NULL;
    uint32_t share = oldest ? least(oldest->left, tokens / 4 ? tokens / 4 : 1) : 0;

    tokens -= least(share, tokens);
    is_sort(prompt, n_prompts, sizeof *prompt, by_left);
    for (size_t i = 0; i < n_prompts && n < LANES_MAX; i++) {
        uint32_t more = least(prompt[i]->left - (prompt[i] == oldest ? share : 0), tokens);
        uint32_t most = more + (prompt[i] == oldest ? share : 0);

        tokens -= more;
        if (most) n = add_lane(b, n, prompt[i], most);
    }
    return n;
}

/* The lanes of the next step; calls that were cancelled are marked. Under the turn. */
static size_t make_lanes(is_batch *b)
{
    call *prompt[LANES_MAX];
    size_t n = 0, n_prompts = 0;
    uint32_t budget;

    for (call *c = b->active; c && n < LANES_MAX; c = c->next)
        if (!c->prompt) n = add_lane(b, n, c, 1);
    for (call *c = b->active; c && n_prompts < LANES_MAX; c = c->next) {
        if (!c->prompt) continue;
        c->left = b->v->left(b->impl, c->seat->run);
        if (c->left == 0) c->left = 1; /* it must come to its end */
        prompt[n_prompts++] = c;
    }
    budget = n + n_prompts == 1 ? IS_ALONE_TOKENS : IS_STEP_TOKENS;
    return add_prompts(b, prompt, n_prompts, n, budget > n + 4 ? budget - (uint32_t)n : 4);
}

/* What was cancelled or has failed is undone, and its caller told. Under turn and lock. */
static void fail_call(is_batch *b, call *c, is_status st, const char *why)
{
    b->v->undo(b->impl, c->seat->run);
    unlink_call(&b->active, c);
    end_call(b, c, st, why);
}

static void drop_cancelled(is_batch *b)
{
    for (call *c = b->active, *next; c; c = next) {
        next = c->next;
        if (is_set(c->cancel) || is_set(c->stop)) fail_call(b, c, INFERSCALE_E_CANCELLED, "cancelled before the engine had all of the prompt");
    }
}

static void deliver(is_batch *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        call *c = b->lane_call[i];
        const is_lane *l = &b->lanes[i];

        if (l->status != INFERSCALE_OK) {
            fail_call(b, c, l->status, l->why);
        } else if (l->done) {
            unlink_call(&b->active, c);
            c->seat->expected = true;
            b->n_expected++;
            end_call(b, c, INFERSCALE_OK, "");
        }
    }
}

/* Runs that were finished. Under turn and lock. */
static void drop_ended(is_batch *b)
{
    for (seat **at = &b->seats; *at && b->n_ended;) {
        seat *s = *at;

        if (!s->ended) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        b->n_ended--;
        b->v->finish(b->impl, s->run);
        is_free(s);
    }
}

/* ---- The thread ---------------------------------------------------------------------------------------------------------- */

static void wait_until(is_batch *b, double until_ms)
{
    struct timespec t = { (time_t)(until_ms / 1000), (long)((until_ms - 1000.0 * (double)(time_t)(until_ms / 1000)) * 1e6) };

    if (until_ms <= 0) pthread_cond_wait(&b->work, &b->lock);
    else pthread_cond_timedwait(&b->work, &b->lock, &t);
}

/* Waits for something to do. A flag of a call that waits for a seat is looked at now and then. */
static void wait_for_work(is_batch *b)
{
    for (;;) {
        double now = is_now_ms(), until = free_seats(b, now);

        admit(b);
        if (b->n_expected && now >= b->gather_until_ms)
            for (seat *s = b->seats; s; s = s->next) not_expected(b, s);
        if (b->closing || ((b->active || b->n_ended) && !b->n_expected)) return;
        if (b->n_expected) until = b->gather_until_ms;
        else if (b->waiting && (until == 0 || until > now + 10)) until = now + 10;
        wait_until(b, until);
    }
}

static void *engine_thread(void *arg)
{
    is_batch *b = arg;

    is_log_for(b->log);
    pthread_mutex_lock(&b->lock);
    for (;;) {
        double began, took;
        size_t n;

        wait_for_work(b);
        pthread_mutex_unlock(&b->lock);
        is_turns_take(b->turns);
        pthread_mutex_lock(&b->lock);
        drop_ended(b);
        if (b->closing) break;
        admit(b);
        drop_cancelled(b);
        n = make_lanes(b);
        pthread_mutex_unlock(&b->lock);
        began = is_now_ms();
        if (n) b->v->step(b->impl, b->lanes, n);
        took = is_now_ms() - began;
        pthread_mutex_lock(&b->lock);
        deliver(b, n);
        b->gather_until_ms = is_now_ms() + (took / 4 < IS_GATHER_MS ? took / 4 : IS_GATHER_MS);
        is_turns_give(b->turns);
        is_stack_wipe();
    }
    is_turns_give(b->turns);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

is_status is_batch_new(const is_engine_vtable *v, void *impl, is_turns *turns, uint32_t n_parallel, is_batch **out)
{
    is_batch *b = is_calloc(1, sizeof *b);
    pthread_condattr_t attr;

    *out = NULL;
    if (!b) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the engine's thread");
    b->log = is_log_here();
    b->v = v;
    b->impl = impl;
    b->turns = turns;
    b->n_parallel = n_parallel ? n_parallel : IS_PARALLEL_DEFAULT;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->work, &attr);
    pthread_condattr_destroy(&attr);
    b->has_thread = pthread_create(&b->thread, NULL, engine_thread, b) == 0;
    if (!b->has_thread) {
        is_batch_free(b);
        return is_fail(INFERSCALE_E_NOMEM, "the engine's thread cannot be started; raise the limit on threads");
    }
    *out = b;
    return INFERSCALE_OK;
}

void is_batch_free(is_batch *b)
{
    if (!b) return;
    if (b->has_thread) {
        pthread_mutex_lock(&b->lock);
        b->closing = true;
        pthread_cond_signal(&b->work);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->thread, NULL);
    }
    for (seat *s = b->seats, *next; s; s = next) { /* what was never finished goes with the engine */
        next = s->next;
        is_free(s);
    }
    pthread_cond_destroy(&b->work);
    pthread_mutex_destroy(&b->lock);
    is_free(b);
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

/* The lock is held. The run's, made at its first call: one for all of its tokens. NULL = out of memory. */
static seat *seat_for(is_batch *b, is_run *run)
{
    seat *s = seat_of(b, run);

    if (s) return s;
    s = is_calloc(1, sizeof *s);
    if (!s) return NULL;
    *s = (seat){ .run = run, .next = b->seats };
    return b->seats = s;
}

is_status is_batch_do(is_batch *b, is_run *run, bool prompt, const volatile int *cancel, const volatile int *stop)
{
    call c = { .cancel = cancel, .stop = stop, .prompt = prompt, .left = 1 };
    is_status st = INFERSCALE_OK;

    if (prompt) c.left = b->v->left(b->impl, run);
    pthread_mutex_lock(&b->lock);
    c.seat = seat_for(b, run);
    if (!c.seat) {
        pthread_mutex_unlock(&b->lock);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for a run");
    }
    pthread_cond_init(&c.back, NULL);
    c.seat->busy = &c;
    not_expected(b, c.seat);
    if (prompt && !c.seat->seated) append(&b->waiting, &c);
    else append(&b->active, &c);
    pthread_cond_signal(&b->work);
    while (!c.done) pthread_cond_wait(&c.back, &b->lock);
    pthread_mutex_unlock(&b->lock);
    pthread_cond_destroy(&c.back);
    if (c.status != INFERSCALE_OK) st = is_fail(c.status, "%s", c.why);
    return st;
}

void is_batch_rest(is_batch *b, is_run *run)
{
    seat *s;

    pthread_mutex_lock(&b->lock);
    s = seat_of(b, run);
    if (s && !s->busy) {
        stand_up(b, s);
        not_expected(b, s);
        pthread_cond_signal(&b->work);
    }
    pthread_mutex_unlock(&b->lock);
}

void is_batch_finish(is_batch *b, is_run *run)
{
    seat *s;

    pthread_mutex_lock(&b->lock);
    s = seat_of(b, run);
    if (s) {
        stand_up(b, s);
        not_expected(b, s);
        s->ended = true;
        b->n_ended++;
        pthread_cond_signal(&b->work);
    }
    pthread_mutex_unlock(&b->lock);
    if (s) return;
    is_turns_take(b->turns); /* it never came to its first step */
    b->v->finish(b->impl, run);
    is_turns_give(b->turns);
}
