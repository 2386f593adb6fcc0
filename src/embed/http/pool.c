/* pool.c - clients that are idle are kept, with their connections; one is made when none is idle. */
#include "embed/http/pool.h"

#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

enum { LOOK_MS = 5 };            /* how often one that waits looks for an idle client */

struct http_pool {
    char *url, *key;             /* key: NULL = none */
    pthread_mutex_t lock;        /* of what follows; never held while a request is under way */
    http_client *idle[HTTP_POOL_MOST];
    size_t n_idle, n_busy;
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the HTTP embedder; free some and try again");
}

is_status http_pool_new(const char *url, const char *key, http_pool **out)
{
    http_pool *p = is_calloc(1, sizeof *p);
    is_status st;

    *out = NULL;
    if (!p) return no_memory();
    pthread_mutex_init(&p->lock, NULL);
    p->url = is_strdup(url);
    p->key = is_strdup(key);
    st = p->url && (!key || p->key) ? http_client_new(url, key, &p->idle[0]) : no_memory(); /* a bad key is refused at once */
    if (st != INFERSCALE_OK) {
        http_pool_free(p);
        return st;
    }
    p->n_idle = 1;
    *out = p;
    return INFERSCALE_OK;
}

void http_pool_free(http_pool *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_idle; i++) http_client_free(p->idle[i]);
    pthread_mutex_destroy(&p->lock);
    is_free(p->url);
    is_free(p->key);
    is_free(p);
}

/* Takes an idle client, or the right to make one (*c = NULL). False: as many as may be are busy. */
static bool take(http_pool *p, http_client **c)
{
    bool room;

    *c = NULL;
    pthread_mutex_lock(&p->lock);
    room = p->n_busy < HTTP_POOL_MOST;
    if (room && p->n_idle) *c = p->idle[--p->n_idle];
    if (room) p->n_busy++;
    pthread_mutex_unlock(&p->lock);
    return room;
}

static void give(http_pool *p, http_client *c)
{
    pthread_mutex_lock(&p->lock);
    if (c) p->idle[p->n_idle++] = c;
    p->n_busy--;
    pthread_mutex_unlock(&p->lock);
}

static is_status wait_for_one(http_pool *p, const http_call *call, http_client **c)
{
    const double until = is_now_ms() + (call->wait_ms ? call->wait_ms : HTTP_PATIENCE_MS);

    while (!take(p, c)) {
        const struct timespec look = { 0, LOOK_MS * 1000000L };

        if (http_call_off(call)) return is_fail(INFERSCALE_E_CANCELLED, "cancelled while texts waited for the embedder; embed them again");
        if (is_now_ms() >= until)
            return is_fail(INFERSCALE_E_ENGINE, "%s has not answered %d requests yet, and this one did not wait longer; check that the "
                           "embedder is running and not overloaded", p->url, HTTP_POOL_MOST);
        nanosleep(&look, NULL);
    }
    return INFERSCALE_OK;
}

is_status http_pool_post(http_pool *p, const char *body, long *code, is_buf *response, const http_call *call)
{
    http_client *c;
    is_status st;

    IS_TRY(wait_for_one(p, call, &c));
    st = c ? INFERSCALE_OK : http_client_new(p->url, p->key, &c);
    if (st == INFERSCALE_OK) st = http_client_post(c, body, code, response, call);
    give(p, c);
    return st;
}
