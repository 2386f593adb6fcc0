/* http.c - the HTTP face's sockets: libmicrohttpd's callbacks, start and end.
 *
 * A request's life: request line (on_line) -> head (checked and routed at once) -> body (kept, or swallowed if it was refused) -> its
 * route's pool, the connection asleep -> reply -> completed. libmicrohttpd's one thread runs all of this file's callbacks. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/http_in.h"
#include "serve/log.h"

static is_http_tune tune_next;

void is_http_set_tune(const is_http_tune *tune) { tune_next = *tune; }

/* ---- Connections --------------------------------------------------------------------------------------------------------- */

/* The request line is there. What this returns comes back as *context of on_request. */
static void *on_line(void *cls, const char *target, struct MHD_Connection *con)
{
    struct is_http *h = cls;
    is_conn *c = is_conn_of(con);
    is_request *r = c ? is_request_new(h, target) : NULL;
    if (!r) return NULL;
    r->con = con;
    pthread_mutex_lock(&h->lock);
    r->conn = c;
    c->request = r;
    is_conn_state(c, CONN_READ);
    h->thread = pthread_self();
    h->has_thread = true;
    pthread_mutex_unlock(&h->lock);
    is_raw_line(r, target);
    return r;
}

static void on_completed(void *cls, struct MHD_Connection *con, void **context, enum MHD_RequestTerminationCode how)
{
    struct is_http *h = cls;
    is_request *r = *context;
    (void)con;
    *context = NULL;
    if (!r) return;
    pthread_mutex_lock(&h->lock);
    h->reply_bytes -= r->reply_held;
    r->reply_held = 0;
    if (r->conn) {
        r->conn->request = NULL;
        is_conn_state(r->conn, CONN_IDLE);
        r->conn = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    pthread_mutex_lock(&r->lock);
    r->closed = true;
    r->done_ms = is_now_ms();
    bool running = r->dispatched && !r->handled;
    struct MHD_Response *unsent = r->response; /* a stream's holds the request, which would hold it for good */
    r->response = NULL;
    pthread_cond_broadcast(&r->room);
    pthread_mutex_unlock(&r->lock);
    if (unsent) MHD_destroy_response(unsent);
    if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK && running) is_request_cancel_for(r, CANCEL_HUNG_UP);
    is_request_unref(r);
    is_stack_wipe();
}

/* ---- A request ----------------------------------------------------------------------------------------------------------- */

/* The reply goes out, and counts as long as it does; streams are bounded by their own. Under
 * http->lock. */
static void goes_out(is_request *r)
{
    if (!r->conn) return;
    is_conn_state(r->conn, CONN_SEND);
    if (!r->streaming && !r->reply_held && r->bytes_out > HTTP_SMALL) {
        r->reply_held = r->bytes_out - HTTP_SMALL;
        r->http->reply_bytes += r->reply_held;
    }
    is_replies_relieve(r->http);
}

static enum MHD_Result send_reply(is_request *r)
{
    enum MHD_Result ok = MHD_NO;
    pthread_mutex_lock(&r->http->lock);
    goes_out(r);
    pthread_mutex_unlock(&r->http->lock);
    pthread_mutex_lock(&r->lock);
    struct MHD_Response *m = r->response;
    r->response = NULL;
    pthread_mutex_unlock(&r->lock);
    if (!m) return MHD_NO; /* there was no memory even for an error */
    /* A body that was refused ends the connection, however much of it came. */
    if (r->close_after || r->swallowed || __atomic_load_n(&r->http->draining, __ATOMIC_RELAXED))
        MHD_add_response_header(m, "Connection", "close");
    ok = MHD_queue_response(r->con, (unsigned)r->status, m); /* without our lock: it has one that stands before ours */
    MHD_destroy_response(m);
    return ok;
}

/* Refused with its head, before any of the body was read: is the rest not worth reading? A client that waits for 100-continue sends no
 * body at all, and one that is far too long is not swallowed. */
static bool end_now(const is_request *r)
{
    const char *expect = is_request_header(r, "Expect");
    if (!r->replied) return false;
    return r->close_after || expect || (r->sizes_known && r->body_said > r->server->config->max_body + HTTP_SWALLOW);
}

static void too_long(is_request *r)
{
    r->close_after = true;
    is_buf_free(&r->body);
    is_request_uncount(r);
    is_request_refused(r, "body");
    is_reply_error(r, 413, "invalid_request_error", "request_too_large", NULL, "the body is longer than %llu bytes (max_body)",
                   (unsigned long long)r->server->config->max_body);
}

/* It was told so, and is not to be done as well. */
static bool gave_way(is_request *r)
{
    pthread_mutex_lock(&r->http->lock);
    bool did = r->gave_way;
    pthread_mutex_unlock(&r->http->lock);
    return did;
}

/* Counts what the body has grown to. False: it is its own holder that has too much. */
static bool has_room(is_request *r)
{
    struct is_http *h = r->http;
    const uint64_t held = r->body.len > HTTP_SMALL ? r->body.cap - HTTP_SMALL : 0;
    pthread_mutex_lock(&h->lock);
    h->body_bytes += held - r->held;
    r->held = held;
    if (r->conn) r->conn->touched = is_now_ms();
    bool ok = h->body_bytes <= h->body_max || held == 0 || (r->conn && is_conns_relieve(h, r->conn));
    pthread_mutex_unlock(&h->lock);
    return ok;
}

/* A piece of the body. False: the connection is to end. */
static bool take(is_request *r, const char *data, size_t n)
{
    struct is_http *h = r->http;
    if (gave_way(r)) return false;
    if (!r->replied && r->body.len + n > h->s->config->max_body) too_long(r);
    if (!r->replied) {
        is_buf_add(&r->body, data, n);
        if (has_room(r) && is_buf_ok(&r->body)) return true;
        is_buf_free(&r->body);
        is_request_uncount(r);
        is_request_refused(r, "memory");
        is_reply_header(r, "Retry-After", "2");
        is_reply_error(r, 503, "server_error", "busy", NULL, "too many long requests are being read; try again in a moment");
    }
    r->swallowed += n;
    return r->swallowed <= HTTP_SWALLOW + h->s->config->max_body;
}

static void refuse_queue(is_request *r, is_pool *p)
{
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%u", is_pool_retry_s(p));
    is_reply_header(r, "Retry-After", seconds);
    is_request_refused(r, "queue");
    if (__atomic_load_n(&r->http->ending, __ATOMIC_RELAXED))
        is_reply_error(r, 503, "server_error", "server_ending", NULL, "the server is ending; ask again later");
    else
        is_reply_error(r, 429, "rate_limit_error", "queue_full", NULL,
                       "%u requests wait already (max_queue); try again in %s s", p->max_waiting, seconds);
}

/* To its pool; the connection sleeps until there is a reply. */
static enum MHD_Result dispatch(is_request *r)
{
    struct is_http *h = r->http;
    unsigned flags = r->route->flags;
    is_pool *p = flags & IS_ROUTE_ENGINE ? &h->engine : flags & IS_ROUTE_OPEN ? &h->open : &h->quick;
    is_request *out;
    bool ok;
    pthread_mutex_lock(&h->lock);
    bool too_late = r->gave_way;
    if (r->conn && !too_late) is_conn_state(r->conn, CONN_WORK);
    pthread_mutex_unlock(&h->lock);
    if (too_late) return MHD_NO;
    pthread_mutex_lock(&r->lock);
    r->refs++; /* the worker's, before it can be done */
    ok = is_pool_push(p, r, &out);
    if (ok) {
        r->suspended = true;
        MHD_suspend_connection(r->con);
    } else {
        r->refs--;
    }
    pthread_mutex_unlock(&r->lock);
    if (out) { /* it waited for a worker, which it will not have */
        refuse_queue(out, p);
        is_request_finish(out);
        is_request_unref(out);
    }
    if (ok) return MHD_YES;
    refuse_queue(r, p);
    return send_reply(r);
}

static enum MHD_Result keep_header(void *ctx, enum MHD_ValueKind kind, const char *name, size_t name_n, const char *value,
                                   size_t value_n)
{
    (void)kind;
    if (!is_raw_header(ctx, name, name_n, value, value_n)) return MHD_YES;
    return is_request_header_came(ctx, name, name_n, value, value_n) ? MHD_YES : MHD_NO;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *con, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n, void **context)
{
    is_request *r = *context;
    (void)cls, (void)url;
    if (!r) return MHD_NO; /* there was no memory, or no room, for it */
    if (!r->begun) {
        r->begun = true;
        is_raw_begin(r, method, version);
        MHD_get_connection_values_n(con, MHD_HEADER_KIND, keep_header, r);
        is_request_begin(r, method, version);
        pthread_mutex_lock(&r->http->lock);
        if (r->conn) r->conn->accepted = !r->replied;
        pthread_mutex_unlock(&r->http->lock);
        return end_now(r) ? send_reply(r) : MHD_YES;
    }
    if (*n) {
        if (!r->body_begun && !r->replied && !is_raw_body(r, data)) is_request_head_bad(r);
        r->body_begun = true;
        bool go_on = take(r, data, *n);
        *n = 0;
        return go_on ? MHD_YES : MHD_NO;
    }
    if (!r->dispatched) {
        r->dispatched = true;
        return r->replied ? send_reply(r) : dispatch(r);
    }
    return send_reply(r);
}

/* ---- Start and end ------------------------------------------------------------------------------------------------------- */

static is_status bind_to(struct is_http *h, const struct addrinfo *a, const char *host)
{
    int on = 1;
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    h->listener = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->listener < 0) return is_fail_errno("no socket for %s", host);
    setsockopt(h->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(h->listener, a->ai_addr, a->ai_addrlen) != 0) {
        unsigned port = h->s->config->port;
        if (errno == EADDRINUSE)
            return is_fail(INFERSCALE_E_BUSY, "port %u of %s is taken; end what uses it, or choose another by --port", port,
                           host);
        if (errno == EACCES)
            return is_fail(INFERSCALE_E_DENIED, "port %u may not be used; choose one above 1023 by --port", port);
        return is_fail_errno("cannot listen on %s port %u", host, port);
    }
    if (listen(h->listener, 128) != 0) return is_fail_errno("cannot listen on %s", host);
    if (getsockname(h->listener, (struct sockaddr *)&at, &len) != 0) return is_fail_errno("no port for %s", host);
    h->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    return INFERSCALE_OK;
}

static is_status open_listener(struct is_http *h)
{
    const is_config *c = h->s->config;
    struct addrinfo want = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%u", c->port);
    int e = getaddrinfo(c->host, port, &want, &found);
    if (e)
        return is_fail(INFERSCALE_E_INVALID, "host \"%.100s\" is no address of this machine (%s); try 127.0.0.1", c->host,
                       gai_strerror(e));
    is_status st = bind_to(h, found, c->host);
    freeaddrinfo(found);
    return st;
}

static is_status read_tls(struct is_http *h)
{
    const is_config *c = h->s->config;
    size_t n;
    if (!*c->tls_cert) return INFERSCALE_OK;
    IS_TRY(is_file_read_all(is_fs_posix(), c->tls_cert, 1 << 20, (uint8_t **)&h->cert, &n));
    return is_file_read_all(is_fs_posix(), c->tls_key, 1 << 20, (uint8_t **)&h->key, &n);
}

/* What libmicrohttpd has to say is about single connections, and no reason to write to stderr. */
static void say(void *ctx, const char *fmt, va_list ap)
{
    char line[512];
    is_raw_said(ctx);
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\r\n")] = '\0';
    is_log(IS_LOG_DEBUG, "http: %s", line);
}

static is_status start_daemon(struct is_http *h)
{
    const is_config *c = h->s->config;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (h->cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = { { MHD_OPTION_HTTPS_MEM_CERT, 0, h->cert },
                                    { MHD_OPTION_HTTPS_MEM_KEY, 0, h->key },
                                    { MHD_OPTION_HTTPS_PRIORITIES, 0,
                                      (void *)(uintptr_t) "SECURE192:SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2" },
                                    { MHD_OPTION_END, 0, NULL } };
    struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
    uint32_t longest = c->idle_s > c->read_s ? c->idle_s : c->read_s;
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, say, h,
                                 MHD_OPTION_LISTEN_SOCKET, h->listener, MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->n_slots,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)longest + 5, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)HTTP_HEAD, MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
                                 h, MHD_OPTION_NOTIFY_CONNECTION, is_conn_notify, h, MHD_OPTION_URI_LOG_CALLBACK, on_line, h,
                                 MHD_OPTION_ARRAY, h->cert ? tls : none, MHD_OPTION_END);
    if (h->daemon) return INFERSCALE_OK;
    h->listener = -1; /* libmicrohttpd has closed it: closing it again would close what another thread has opened meanwhile */
    return h->cert ? is_fail(INFERSCALE_E_INVALID, "the server cannot start; are %s and %s a PEM certificate and its key?",
                             c->tls_cert, c->tls_key)
                   : is_fail(INFERSCALE_E_NOMEM, "the server cannot start: too few threads, descriptors or too little memory");
}

/* Sockets that cannot be had are found out now, not at the busiest moment. */
static is_status enough_descriptors(const struct is_http *h)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur == RLIM_INFINITY || l.rlim_cur >= h->n_slots + 128)
        return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID,
                   "max_connections = %u needs %u file descriptors, %llu are allowed; raise `ulimit -n` or lower it",
                   h->s->config->max_connections, h->n_slots + 128, (unsigned long long)l.rlim_cur);
}

static is_status prepare(struct is_http *h)
{
    const is_config *c = h->s->config;
    h->n_slots = c->max_connections + HTTP_SPARE;
    h->body_max = (uint64_t)64 << 20 > 4 * c->max_body ? (uint64_t)64 << 20 : 4 * c->max_body;
    h->reply_max = h->body_max;
    h->tune.ping_ms = tune_next.ping_ms ? tune_next.ping_ms : 10000;
    h->tune.slow_ms = tune_next.slow_ms ? tune_next.slow_ms : 30000;
    h->tune.watch_ms = tune_next.watch_ms ? tune_next.watch_ms : 100;
    IS_TRY(is_conns_new(h));
    IS_TRY(enough_descriptors(h));
    IS_TRY(read_tls(h));
    return open_listener(h);
}

static is_status begin(struct is_http *h)
{
    const is_config *c = h->s->config;
    IS_TRY(is_pool_start(&h->open, h, 1, c->max_connections));
    IS_TRY(is_pool_start(&h->quick, h, HTTP_SHORT_WORKERS, c->max_connections));
    IS_TRY(is_pool_start(&h->engine, h, is_config_parallel(c), c->max_queue));
    h->engine.is_engine = true;
    IS_TRY(is_watch_start(h));
    return start_daemon(h);
}

is_status is_http_claim(is_server *s)
{
    struct is_http *h = is_calloc(1, sizeof *h);
    if (!h) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    h->s = s;
    h->listener = -1;
    pthread_mutex_init(&h->lock, NULL);
    s->http = h;
    is_status st = prepare(h);
    if (st != INFERSCALE_OK) is_http_stop(s);
    return st;
}

is_status is_http_start(is_server *s, const is_route *const *tables)
{
    s->http->tables = tables;
    return begin(s->http);
}

int is_http_port(const is_server *s) { return s->http->port; }

void is_http_drain(is_server *s)
{
    struct is_http *h = s->http;
    __atomic_store_n(&h->draining, 1, __ATOMIC_RELAXED);
    if (h->listener < 0 || !h->daemon) return;
    MHD_quiesce_daemon(h->daemon);
    close(h->listener);
    h->listener = -1;
}

unsigned is_http_in_flight(const is_server *s)
{
    struct is_http *h = s->http;
    pthread_mutex_lock(&h->lock);
    unsigned n = h->n_requests;
    pthread_mutex_unlock(&h->lock);
    return n;
}

void is_http_cancel_all(is_server *s)
{
    struct is_http *h = s->http;
    __atomic_store_n(&h->ending, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->n_slots; i++)
        if (h->conns[i].fd >= 0 && h->conns[i].request) is_request_cancel_for(h->conns[i].request, CANCEL_ENDING);
    pthread_mutex_unlock(&h->lock);
}

void is_http_stop(is_server *s)
{
    struct is_http *h = s->http;
    if (!h) return;
    if (h->daemon) {
        is_http_drain(s);
        is_http_cancel_all(s);
    }
    is_pool_stop(&h->open);
    is_pool_stop(&h->quick); /* every route has returned, so that every connection is awake */
    is_pool_stop(&h->engine);
    for (int i = 0; h->daemon && i < 200 && is_http_in_flight(s); i++) usleep(10000); /* the last replies go out */
    is_watch_stop(h);
    if (h->daemon) MHD_stop_daemon(h->daemon);
    if (h->listener >= 0) close(h->listener);
    is_pool_free(&h->open);
    is_pool_free(&h->quick);
    is_pool_free(&h->engine);
    pthread_mutex_destroy(&h->lock);
    is_free(h->conns);
    is_free(h->peers);
    is_free(h->cert);
    is_free(h->key);
    is_free(h);
    s->http = NULL;
}
