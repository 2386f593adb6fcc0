/* http_watch.c - one thread that looks at every connection a few times a second: has the client of a running request hung up, is
 * somebody too slow with a request, has a stream been silent for long. libmicrohttpd sees none of this while a connection sleeps. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/http_in.h"

/* Under h->lock, as long as which the descriptor cannot be closed and given to another. What is cut ends as if the client had gone. */
static void cut(is_conn *c) { shutdown(c->fd, SHUT_RDWR); }

void is_conn_cut(is_request *r)
{
    pthread_mutex_lock(&r->http->lock);
    if (r->conn) cut(r->conn);
    pthread_mutex_unlock(&r->http->lock);
}

/* Too slow with its request: said where that can be said in plain, then cut. Nothing else writes in this state. */
static void too_slow(struct is_http *h, is_conn *c)
{
    static const char why[] = "{\"error\":{\"message\":\"the request took too long to arrive (read_s)\",\"type\":\"timeout\","
                              "\"param\":null,\"code\":\"timeout\"}}";
    char text[400];
    int n = snprintf(
        text, sizeof text,
        "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
        sizeof why - 1, why);
    if (!h->cert && c->state == CONN_READ) (void)!send(c->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (h->s->metrics && c->state == CONN_READ) is_metric_add(h->s->metrics, IS_M_HTTP_REFUSED, "slow", NULL, 1);
    if (c->state == CONN_READ && c->request) c->request->gave_way = true; /* what was told to be late is not done after all */
    cut(c);
}

static void deadline(struct is_http *h, is_conn *c, double now)
{
    const is_config *o = h->s->config;
    double s = (now - c->since) / 1000;
    if ((c->state == CONN_IDLE && s > o->idle_s) || (c->state == CONN_READ && s > o->read_s)) too_slow(h, c);
}

/* The request of a connection that works or sends. hung_up: its client is not there any more. */
static void look(struct is_http *h, is_request *r, bool hung_up, double now)
{
    pthread_mutex_lock(&r->lock);
    double run_ms = r->run_ms;
    bool streaming = r->streaming, over = r->handled;
    pthread_mutex_unlock(&r->lock);
    bool engine = r->route && (r->route->flags & IS_ROUTE_ENGINE);
    /* Short work is done before anyone is missed; a half-closed socket may still read its reply. */
    if (hung_up && !over && (engine || streaming)) {
        is_request_cancel_for(r, CANCEL_HUNG_UP);
        if (engine && is_pool_take_out(&h->engine, r)) {
            is_reply_error(r, 499, "server_error", "cancelled", NULL, "the client hung up before it was its turn");
            is_request_finish(r);
            is_request_unref(r);
            return;
        }
    }
    if (engine && !over && run_ms && (now - run_ms) / 1000 > h->s->config->generate_s) is_request_cancel_for(r, CANCEL_TIME);
    if (streaming) is_request_ping(r, now);
}

/* A request that breaks off: the client will send no more, and all that it sent was read. libmicrohttpd would wait. Seen twice, as what
 * was read a moment ago may be a whole request that is just being taken apart. */
static void broken_off(is_conn *c, bool no_more)
{
    int left = 1;
    no_more = no_more && ioctl(c->fd, FIONREAD, &left) == 0 && left == 0;
    if (no_more && c->no_more) cut(c);
    c->no_more = no_more;
}

static void look_at_all(struct is_http *h)
{
    struct pollfd *fds = h->watch_fds;
    uint32_t *at = h->watch_at;
    double now = is_now_ms();
    uint32_t n = 0;
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        if (c->fd < 0) continue;
        if (c->state == CONN_IDLE || c->state == CONN_READ) deadline(h, c, now);
        fds[n] = (struct pollfd){ .fd = c->fd, .events = POLLRDHUP };
        at[n++] = i;
    }
    if (n && poll(fds, n, 0) >= 0)
        for (uint32_t i = 0; i < n; i++) {
            is_conn *c = &h->conns[at[i]];
            bool no_more = fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR);
            if (c->state == CONN_IDLE || c->state == CONN_READ)
                broken_off(c, no_more);
            else if (c->request)
                look(h, c->request, no_more, now);
        }
    is_conns_look_again(h);
    is_replies_relieve(h);
    uint32_t open = h->n_open;
    const uint64_t replies = h->reply_bytes;
    pthread_mutex_unlock(&h->lock);
    if (!h->s->metrics) return;
    is_metric_set(h->s->metrics, IS_M_HTTP_OPEN, NULL, NULL, open);
    is_metric_set(h->s->metrics, IS_M_HTTP_REPLIES, NULL, NULL, (double)replies);
}

static void *watch(void *ctx)
{
    struct is_http *h = ctx;
    while (!__atomic_load_n(&h->stop_watching, __ATOMIC_ACQUIRE)) {
        struct timespec t = { .tv_sec = (time_t)(h->tune.watch_ms / 1000), .tv_nsec = (long)h->tune.watch_ms % 1000 * 1000000 };
        nanosleep(&t, NULL);
        look_at_all(h);
    }
    return NULL;
}

is_status is_watch_start(struct is_http *h)
{
    h->watch_fds = is_calloc(h->n_slots, sizeof *h->watch_fds);
    h->watch_at = is_calloc(h->n_slots, sizeof *h->watch_at);
    if (!h->watch_fds || !h->watch_at) return is_fail(INFERSCALE_E_NOMEM, "out of memory; lower max_connections");
    if (pthread_create(&h->watcher, NULL, watch, h) != 0)
        return is_fail(INFERSCALE_E_NOMEM, "no more threads; raise the limit of processes (ulimit -u)");
    h->watching = true;
    return INFERSCALE_OK;
}

void is_watch_stop(struct is_http *h)
{
    if (h->watching) {
        __atomic_store_n(&h->stop_watching, 1, __ATOMIC_RELEASE);
        pthread_join(h->watcher, NULL);
    }
    h->watching = false;
    is_free(h->watch_fds);
    is_free(h->watch_at);
    h->watch_fds = NULL;
    h->watch_at = NULL;
}
