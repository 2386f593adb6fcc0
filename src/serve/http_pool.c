/* http_pool.c - workers that run routes: one pool for short work, one for what waits for the
 * engine, one for what needs no key.
 *
 * A request waits in the line of its key (without keys: of its address). A worker that
 * is free goes to the line of which the fewest requests run; among equals the lines take turns. A
 * full queue makes room for a key by turning away the newest request of the key that has most
 * waiting: however much one key asks, another waits for a turn and not for all of it.
 *
 * A worker that waits for something outside (base/outside.h: an embedder's endpoint) holds no seat
 * meanwhile: another takes it, and is started for that if none is free, up to HTTP_AWAY of them. It
 * wants a seat again before it goes on, and has it before whoever waits in a line. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/outside.h"
#include "serve/http_in.h"

/* One key's requests. It is there while one of them waits or runs. */
struct is_line {
    struct is_line *next;      /* in the order of turns: the one that was served last is the last */
    char key[sizeof((is_request *)NULL)->holder];
    is_request *first, *last;
    uint32_t waiting, running;
};

/* ---- Lines; all under p->lock -------------------------------------------------------------------------------------------- */

/* 1: an answer of the model; 0: an embedding, encoding, a dry run, which hold no seat in the engine's steps. */
static uint32_t is_answer(const is_request *r)
{
    return (r->route->flags & IS_ROUTE_ANSWERS) != 0;
}

/* There are as many workers as seats, so that an answer that is being worked on has one, or a resting conversation makes room for it. */
static void show(is_pool *p)
{
    is_metrics *m = p->http->s->metrics;
    if (!m || !p->is_engine) return;
    is_metric_set(m, IS_M_RUNNING, NULL, NULL, p->answers_running);
    is_metric_set(m, IS_M_WAITING, NULL, NULL, p->answers_waiting);
}

/* Is there one for a request of a line? Those that come back have theirs first. */
static bool has_seat(const is_pool *p)
{
    return p->running - p->away + p->coming < p->n_seats;
}

static void append(is_pool *p, is_line *l)
{
    is_line **at = &p->lines;
    while (*at) at = &(*at)->next;
    l->next = NULL;
    *at = l;
}

static void take_off(is_pool *p, is_line *l)
{
    is_line **at = &p->lines;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
}

/* NULL = out of memory. A new one comes last: who asks one thing after another has no advantage over those who wait. */
static is_line *line_of(is_pool *p, const is_request *r)
{
    const char *key = r->holder;
    is_line *l = p->lines;
    while (l && strcmp(l->key, key) != 0) l = l->next;
    if (l) return l;
    l = is_calloc(1, sizeof *l);
    if (!l) return NULL;
    memcpy(l->key, key, strlen(key) + 1);
    append(p, l);
    return l;
}

static void drop_if_empty(is_pool *p, is_line *l)
{
    if (l->waiting || l->running) return;
    take_off(p, l);
    is_free(l);
}

static void unlink_request(is_pool *p, is_line *l, is_request *r)
{
    is_request **at = &l->first, *before = NULL;
    while (*at != r) before = *at, at = &(*at)->next;
    *at = r->next;
    if (l->last == r) l->last = before;
    r->next = NULL;
    l->waiting--;
    p->waiting--;
    p->answers_waiting -= is_answer(r);
}

static is_request *pop(is_pool *p)
{
    is_line *best = NULL;
    for (is_line *l = p->lines; l; l = l->next)
        if (l->waiting && (!best || l->running < best->running)) best = l;
    is_request *r = best->first;
    unlink_request(p, best, r);
    take_off(p, best);
    append(p, best);
    best->running++;
    p->running++;
    p->answers_running += is_answer(r);
    show(p);
    return r;
}

/* The newest request of the key that has most waiting, if that is more than `l` has with one more. */
static is_request *make_room(is_pool *p, const is_line *l)
{
    is_line *most = p->lines;
    for (is_line *x = p->lines; x; x = x->next)
        if (x->waiting > most->waiting) most = x;
    if (most->waiting <= l->waiting + 1) return NULL;
    is_request *r = most->last;
    unlink_request(p, most, r);
    r->line = NULL;
    drop_if_empty(p, most);
    return r;
}

/* ---- Workers --------------------------------------------------------------------------------- */

static _Thread_local bool is_away;           /* this worker holds no seat */
static _Thread_local uint32_t its_answers;   /* is_answer of what it runs */

static void run(is_pool *p, is_request *r)
{
    double t0 = is_now_ms();
    pthread_mutex_lock(&r->lock);
    r->run_ms = t0;
    pthread_mutex_unlock(&r->lock);
    is_request_uncount(r); /* there are as many of these as workers */
    int why = __atomic_load_n(&r->cancel, __ATOMIC_RELAXED);
    if (why)
        is_reply_failed(r,
                        is_fail(INFERSCALE_E_CANCELLED, why == CANCEL_HUNG_UP ? "the client hung up before it was its turn"
                                                                              : "the server is ending; ask again later"),
                        NULL);
    else
        r->route->handle(r->server, r);
    is_request_finish(r);
    is_request_unref(r);
    if (why) return;
    pthread_mutex_lock(&p->lock);
    p->mean_ms = p->mean_ms == 0 ? is_now_ms() - t0 : 0.8 * p->mean_ms + 0.2 * (is_now_ms() - t0);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *ctx)
{
    is_pool *p = ctx;
    is_outside_tell(&p->outside);
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!(p->waiting && (p->stop || has_seat(p))) && !(p->stop && !p->waiting))
            pthread_cond_wait(&p->more, &p->lock);
        if (!p->waiting) break;
        is_request *r = pop(p);
        is_line *l = r->line;
        its_answers = is_answer(r);
        pthread_mutex_unlock(&p->lock);
        run(p, r);
        is_stack_wipe();
        pthread_mutex_lock(&p->lock);
        l->running--;
        drop_if_empty(p, l);
        p->running--;
        p->answers_running -= its_answers;
        show(p);
        if (p->coming) pthread_cond_signal(&p->seat);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Under p->lock, or before there are others. */
static bool one_more(is_pool *p)
{
    if (p->n_threads == p->n_seats + HTTP_AWAY) return false;
    if (pthread_create(&p->threads[p->n_threads], NULL, work, p) != 0) return false;
    p->n_threads++;
    return true;
}

/* ---- Waiting outside ------------------------------------------------------------------------- */

/* The seat is given back, if somebody can take it. */
static void leave_seat(void *ctx)
{
    is_pool *p = ctx;
    pthread_mutex_lock(&p->lock);
    if (!p->stop && p->away < HTTP_AWAY && (p->running < p->n_threads || one_more(p))) {
        p->away++;
        is_away = true;
        p->answers_running -= its_answers;
        p->answers_waiting += its_answers;
        show(p);
        if (p->coming) pthread_cond_signal(&p->seat);
        else pthread_cond_signal(&p->more);
    }
    pthread_mutex_unlock(&p->lock);
}

static void take_seat(void *ctx)
{
    is_pool *p = ctx;
    if (!is_away) return;
    is_away = false;
    pthread_mutex_lock(&p->lock);
    p->coming++;
    while (p->running - p->away >= p->n_seats && !p->stop) pthread_cond_wait(&p->seat, &p->lock);
    p->coming--;
    p->away--;
    p->answers_running += its_answers;
    p->answers_waiting -= its_answers;
    show(p);
    pthread_mutex_unlock(&p->lock);
}

is_status is_pool_start(is_pool *p, struct is_http *h, uint32_t n_seats, uint32_t max_waiting)
{
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    pthread_cond_init(&p->seat, NULL);
    p->http = h;
    p->max_waiting = max_waiting;
    p->n_seats = n_seats;
    p->outside = (is_outside){ leave_seat, take_seat, p };
    p->threads = is_calloc(n_seats + HTTP_AWAY, sizeof *p->threads);
    if (!p->threads) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    while (p->n_threads < n_seats)
        if (!one_more(p))
            return is_fail(INFERSCALE_E_NOMEM, "no more threads; raise the limit of processes (ulimit -u) or lower `parallel`");
    return INFERSCALE_OK;
}

bool is_pool_push(is_pool *p, is_request *r, is_request **out)
{
    *out = NULL;
    pthread_mutex_lock(&p->lock);
    is_line *l = p->stop ? NULL : line_of(p, r);
    /* Those that a worker is about to take do not wait: an idle server takes a burst as wide as its workers, and its queue. */
    const uint32_t held = p->running - p->away + p->coming;
    bool full = l && p->waiting >= p->max_waiting + (held < p->n_seats ? p->n_seats - held : 0);
    if (full) *out = make_room(p, l);
    bool ok = l && (!full || *out);
    if (ok) {
        if (l->last)
            l->last->next = r;
        else
            l->first = r;
        l->last = r;
        r->line = l;
        l->waiting++;
        p->waiting++;
        p->answers_waiting += is_answer(r);
        show(p);
        pthread_cond_signal(&p->more);
    } else if (l) {
        drop_if_empty(p, l);
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}

bool is_pool_take_out(is_pool *p, is_request *r)
{
    bool found = false;
    pthread_mutex_lock(&p->lock);
    for (is_line *l = p->lines; l && !found; l = l->next) {
        for (is_request *x = l->first; x && !found; x = x->next) found = x == r;
        if (!found) continue;
        unlink_request(p, l, r);
        drop_if_empty(p, l);
        show(p);
        break;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

bool is_pool_others_wait(is_pool *p, const is_request *r)
{
    pthread_mutex_lock(&p->lock);
    const uint32_t own = r->line ? r->line->waiting : 0;
    bool others = p->waiting > own;
    pthread_mutex_unlock(&p->lock);
    return others;
}

uint32_t is_pool_retry_s(is_pool *p)
{
    pthread_mutex_lock(&p->lock);
    double s = p->mean_ms / 1000 * (p->waiting + 1) /
               (p->n_seats ? p->n_seats : 1); /* how long until one of the waiting is done */
    pthread_mutex_unlock(&p->lock);
    return s < 1 ? 1 : s > 600 ? 600 : (uint32_t)(s + 0.999);
}

void is_pool_stop(is_pool *p)
{
    if (!p->threads) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->more);
    pthread_cond_broadcast(&p->seat);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    p->n_threads = 0;
}

void is_pool_free(is_pool *p)
{
    if (!p->threads) return;
    is_free(p->threads);
    p->threads = NULL;
    pthread_cond_destroy(&p->more);
    pthread_cond_destroy(&p->seat);
    pthread_mutex_destroy(&p->lock);
}
