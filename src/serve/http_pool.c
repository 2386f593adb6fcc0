/* http_pool.c - workers that run routes: one pool for short work, one for what waits for the engine. */
#include "base/clock.h"
#include "base/mem.h"
#include "serve/http_in.h"

/* Under p->lock. */
static void show(is_pool *p)
{
    is_metrics *m = p->http->s->metrics;
    if (!m || !p->is_engine) return;
    is_metric_set(m, IS_M_RUNNING, NULL, NULL, p->running);
    is_metric_set(m, IS_M_WAITING, NULL, NULL, p->waiting);
}

static is_request *pop(is_pool *p)
{
    is_request *r = p->first;
    p->first = r->next;
    if (!p->first) p->last = NULL;
    r->next = NULL;
    p->waiting--;
    return r;
}

static void run(is_pool *p, is_request *r)
{
    double t0 = is_now_ms();
    pthread_mutex_lock(&r->lock);
    r->run_ms = t0;
    pthread_mutex_unlock(&r->lock);
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
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->first && !p->stop) pthread_cond_wait(&p->more, &p->lock);
        if (!p->first) break;
        is_request *r = pop(p);
        p->running++;
        show(p);
        pthread_mutex_unlock(&p->lock);
        run(p, r);
        pthread_mutex_lock(&p->lock);
        p->running--;
        show(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

is_status is_pool_start(is_pool *p, struct is_http *h, uint32_t n_threads, uint32_t max_waiting)
{
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    p->http = h;
    p->max_waiting = max_waiting;
    p->threads = is_calloc(n_threads, sizeof *p->threads);
    if (!p->threads) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    for (; p->n_threads < n_threads; p->n_threads++)
        if (pthread_create(&p->threads[p->n_threads], NULL, work, p) != 0)
            return is_fail(INFERSCALE_E_NOMEM, "no more threads; raise the limit of processes (ulimit -u) or lower `parallel`");
    return INFERSCALE_OK;
}

bool is_pool_push(is_pool *p, is_request *r)
{
    pthread_mutex_lock(&p->lock);
    /* Those that a worker is about to take do not wait: an idle server takes a burst as wide as its workers, and its queue. */
    bool ok = !p->stop && p->waiting < p->max_waiting + (p->n_threads - p->running);
    if (ok) {
        if (p->last)
            p->last->next = r;
        else
            p->first = r;
        p->last = r;
        p->waiting++;
        show(p);
        pthread_cond_signal(&p->more);
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}

bool is_pool_take_out(is_pool *p, is_request *r)
{
    bool found = false;
    pthread_mutex_lock(&p->lock);
    for (is_request **at = &p->first, *before = NULL; *at; before = *at, at = &(*at)->next) {
        if (*at != r) continue;
        *at = r->next;
        if (p->last == r) p->last = before;
        r->next = NULL;
        p->waiting--;
        show(p);
        found = true;
        break;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

uint32_t is_pool_retry_s(is_pool *p)
{
    pthread_mutex_lock(&p->lock);
    double s = p->mean_ms / 1000 * (p->waiting + 1) /
               (p->n_threads ? p->n_threads : 1); /* how long until one of the waiting is done */
    pthread_mutex_unlock(&p->lock);
    return s < 1 ? 1 : s > 600 ? 600 : (uint32_t)(s + 0.999);
}

void is_pool_stop(is_pool *p)
{
    if (!p->threads) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->more);
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
    pthread_mutex_destroy(&p->lock);
}
