/* http_conn.c - what each client holds: the table of connections, the budgets of bodies and of
 * replies, and which client makes room when one of them is full.
 *
 * A client is a key, from the first request that showed it, or else an address. (Behind a proxy
 * all clients have one address.)
 *
 * Connections: beyond max_connections each new one costs an old one. First an idle one goes: of
 * the client with most connections the one that has been silent longest. Where none is idle, a
 * client that has more connections than the new one's loses one that is within a body, or has a
 * reply that is not read, or has a request that waits for a worker. What a worker has begun is
 * never touched. Where no client has more, the new connection is a spare one, and its requests
 * are answered with 503; older connections are served.
 *
 * Bodies: beyond the budget a body of the client with most bytes goes, the one that has stood
 * still longest. If that client is the one whose body grows, its request is refused.
 *
 * Replies: beyond the budget a reply of the client with most bytes goes that has not been read
 * for HTTP_GRACE_MS, the one that has been going out longest. */
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/http_in.h"

void is_conn_state(is_conn *c, conn_state state)
{
    c->state = state;
    c->no_more = false;
    c->accepted = false;
    c->since = c->touched = is_now_ms();
}

is_conn *is_conn_of(struct MHD_Connection *con)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(con, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

is_status is_conns_new(struct is_http *h)
{
    h->conns = is_calloc(h->n_slots, sizeof *h->conns);
    h->peers = is_calloc(h->n_slots, sizeof *h->peers);
    if (!h->conns || !h->peers) return is_fail(INFERSCALE_E_NOMEM, "out of memory; lower max_connections");
    for (uint32_t i = 0; i < h->n_slots; i++) h->conns[i].fd = -1;
    return INFERSCALE_OK;
}

/* What one client has: an IPv4 address, also where it comes as IPv6 (a listener on ::), or an IPv6 network of /64. */
static conn_address address_of(const struct sockaddr *a)
{
    conn_address at = { 0 };
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    if (!a) return at;
    if (a->sa_family == AF_INET) {
        at.v4 = true;
        memcpy(&at.prefix, &v4->sin_addr, 4);
    } else if (a->sa_family == AF_INET6) {
        at.v4 = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
        if (at.v4)
            memcpy(&at.prefix, v6->sin6_addr.s6_addr + 12, 4);
        else
            memcpy(&at.prefix, v6->sin6_addr.s6_addr, 8);
    }
    return at;
}

/* The holder's place in h->peers, kept while it has a connection. There are as many places as connections. */
static uint32_t peer_of(const struct is_http *h, conn_address from, const char *key)
{
    uint32_t unused = 0;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        const conn_peer *p = &h->peers[i];
        if (p->n && strcmp(p->key, key) == 0 && (*key || (p->from.v4 == from.v4 && p->from.prefix == from.prefix))) return i;
        if (!p->n) unused = i;
    }
    h->peers[unused].from = from;
    memcpy(h->peers[unused].key, key, strlen(key) + 1);
    return unused;
}

void is_conn_shows(struct is_http *h, is_conn *c, const is_key *key)
{
    const conn_address from = h->peers[c->peer].from;
    h->peers[c->peer].n--; /* first: its place may be the only one that is free */
    c->peer = peer_of(h, from, key->name);
    h->peers[c->peer].n++;
}

void is_conn_holder(const struct is_http *h, const is_conn *c, char out[40])
{
    const conn_peer *p = &h->peers[c->peer];
    if (*p->key) snprintf(out, 40, "%s", p->key);
    else snprintf(out, 40, "@%d.%016llx", p->from.v4, (unsigned long long)p->from.prefix);
}

/* Nobody waits for a reply on it: between two requests, in the middle of a head, or its body is only read to be thrown away. */
static bool may_go(const is_conn *c)
{
    return c->fd >= 0 && !c->cut && (c->state == CONN_IDLE || (c->state == CONN_READ && !c->accepted));
}

/* Has sent what was not read yet. */
static bool has_come(const is_conn *c)
{
    int n = 0;
    return ioctl(c->fd, FIONREAD, &n) == 0 && n > 0;
}

static bool many(const struct is_http *h) { return h->n_open - h->n_cut > h->s->config->max_connections; }

static void leaves(struct is_http *h, is_conn *c)
{
    c->cut = true;
    h->n_cut++;
}

static bool in_body(const is_conn *c) { return c->fd >= 0 && !c->cut && c->state == CONN_READ && c->accepted && c->request; }

/* Its body makes room: said where that can be said in plain (nothing else writes in this state), then it ends. */
static void body_goes(struct is_http *h, is_conn *c)
{
    static const char why[] = "{\"error\":{\"message\":\"this request was still being sent when another client needed its room; "
                              "try again in a moment\",\"type\":\"server_error\",\"param\":null,\"code\":\"busy\"}}";
    char text[500];
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     sizeof why - 1, why);
    leaves(h, c);
    c->request->gave_way = true;
    is_request_refused(c->request, "gave_way");
    if (!h->cert) (void)!send(c->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(c->fd, SHUT_RDWR);
}

/* A request that waits for a worker makes room: it hears why. False: it is no more waiting. */
static bool waiting_goes(struct is_http *h, is_conn *c)
{
    is_request *r = c->request;
    if (!is_pool_take_out(&h->engine, r) && !is_pool_take_out(&h->quick, r)) return false;
    leaves(h, c);
    r->close_after = true;
    h->body_bytes -= r->held;
    r->held = 0;
    is_request_refused(r, "gave_way");
    is_reply_header(r, "Retry-After", "2");
    is_reply_error(r, 503, "server_error", "busy", NULL, "another client needed this request's room; try again in a moment");
    is_request_finish(r);
    is_request_unref(r);
    return true;
}

/* A whole reply, or a stream's end, that its client does not read. */
static bool unread(const is_conn *c, double now)
{
    int n = 0;
    if (c->fd < 0 || c->cut || c->state != CONN_SEND || !c->request || c->since > now - HTTP_GRACE_MS) return false;
    pthread_mutex_lock(&c->request->lock);
    bool over = !c->request->streaming || c->request->ended;
    pthread_mutex_unlock(&c->request->lock);
    return over && ioctl(c->fd, TIOCOUTQ, &n) == 0 && n > 0;
}

/* How badly a connection at work may go, where it must: the longer it stands still. 0 = not at all. */
static double stands_still(const is_conn *c, double now)
{
    if (in_body(c)) return 1 + now - c->touched;
    if (unread(c, now)) return 1 + now - c->since;
    return 0;
}

/* Nothing is idle: something of a holder who has more connections than `newest`'s goes, the one that stands still longest. */
static bool make_room_at_work(struct is_http *h, const is_conn *newest)
{
    const double now = is_now_ms();
    is_conn *worst = NULL, *waiting = NULL;
    uint32_t most = h->peers[newest->peer].n;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        if (c->fd < 0 || c->cut || c->peer == newest->peer) continue;
        const uint32_t n = h->peers[c->peer].n;
        if (n <= h->peers[newest->peer].n || n < most) continue;
        const double still = stands_still(c, now);
        const bool waits = c->state == CONN_WORK && c->request;
        if (still == 0 && !waits) continue;
        if (n > most) worst = waiting = NULL, most = n;
        if (still > 0 && (!worst || still > stands_still(worst, now))) worst = c;
        if (waits && (!waiting || c->since > waiting->since)) waiting = c; /* the newest: the others' turns come sooner */
    }
    if (worst && in_body(worst)) return body_goes(h, worst), true;
    if (worst) {
        leaves(h, worst);
        shutdown(worst->fd, SHUT_RDWR);
        if (h->s->metrics) is_metric_add(h->s->metrics, IS_M_HTTP_REFUSED, "unread", NULL, 1);
        return true;
    }
    return waiting && waiting_goes(h, waiting);
}

bool is_conn_room_for(struct is_http *h, is_conn *c)
{
    if (make_room_at_work(h, c)) c->spare = false;
    return !c->spare;
}

/* ---- Bodies -------------------------------------------------------------------------------------------------------------- */

/* What each holder has of bodies; the place of him who has most. */
static uint32_t biggest_holder(struct is_http *h)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < h->n_slots; i++) h->peers[i].held = 0;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        const is_conn *c = &h->conns[i];
        if (c->fd < 0 || !c->request) continue;
        h->peers[c->peer].held += c->request->held;
        if (h->peers[c->peer].held > h->peers[most].held) most = c->peer;
    }
    return most;
}

/* One of this holder's bodies goes: the one that stands still longest, else the newest that waits for a worker. */
static bool one_goes(struct is_http *h, uint32_t peer)
{
    is_conn *worst = NULL, *waiting = NULL;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        if (c->fd < 0 || c->cut || c->peer != peer || !c->request || !c->request->held) continue;
        if (in_body(c) && (!worst || c->touched < worst->touched)) worst = c;
        if (c->state == CONN_WORK && (!waiting || c->since > waiting->since)) waiting = c;
    }
    if (!worst) return waiting && waiting_goes(h, waiting);
    is_request *r = worst->request;
    h->body_bytes -= r->held;
    r->held = 0;
    is_buf_free(&r->body); /* this thread alone fills it, and no worker has it yet */
    body_goes(h, worst);
    return true;
}

bool is_conns_relieve(struct is_http *h, const is_conn *c)
{
    while (h->body_bytes > h->body_max) {
        const uint32_t most = biggest_holder(h);
        if (h->peers[most].held <= h->peers[c->peer].held || !one_goes(h, most)) return false;
    }
    return true;
}

/* ---- Replies ------------------------------------------------------------------------------- */

/* What each holder has of replies; the place of the one that has most. *n: how many replies
 * count. */
static uint32_t biggest_reader(struct is_http *h, uint32_t *n)
{
    uint32_t most = 0;
    *n = 0;
    for (uint32_t i = 0; i < h->n_slots; i++) h->peers[i].held = 0;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        const is_conn *c = &h->conns[i];
        if (c->fd < 0 || !c->request || !c->request->reply_held) continue;
        ++*n;
        h->peers[c->peer].held += c->request->reply_held;
        if (h->peers[c->peer].held > h->peers[most].held) most = c->peer;
    }
    return most;
}

/* One reply of the biggest holder that its client has not read: the one that has been going out
 * longest. */
static bool one_reply_goes(struct is_http *h)
{
    const double now = is_now_ms();
    is_conn *oldest = NULL;
    uint32_t n;
    const uint32_t most = biggest_reader(h, &n);
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        if (c->peer != most || !unread(c, now) || !c->request->reply_held) continue;
        if (!oldest || c->since < oldest->since) oldest = c;
    }
    if (!oldest || n == 1) return false; /* however long it is, one reply has room */
    h->reply_bytes -= oldest->request->reply_held;
    oldest->request->reply_held = 0;
    leaves(h, oldest);
    shutdown(oldest->fd, SHUT_RDWR);
    if (h->s->metrics) is_metric_add(h->s->metrics, IS_M_HTTP_REFUSED, "unread", NULL, 1);
    return true;
}

void is_replies_relieve(struct is_http *h)
{
    while (h->reply_bytes > h->reply_max && one_reply_goes(h)) continue;
}

/* ---- Connections --------------------------------------------------------------------------------------------------------- */

/* One connection that was silent for `silent_ms` goes for `newest`; false = there was none that may. */
static bool make_room(struct is_http *h, const is_conn *newest, double silent_ms)
{
    is_conn *worst = NULL;
    uint32_t most = h->peers[newest->peer].n; /* never from an address that has fewer than the newcomer's */
    const double since = is_now_ms() - silent_ms;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        if (c == newest || !may_go(c) || c->since > since || h->peers[c->peer].n < most || has_come(c)) continue;
        if (h->peers[c->peer].n == most && worst && c->since >= worst->since) continue;
        worst = c;
        most = h->peers[c->peer].n;
    }
    if (!worst) return make_room_at_work(h, newest);
    leaves(h, worst);
    shutdown(worst->fd, SHUT_RDWR); /* libmicrohttpd sees that, and closes it */
    if (h->s->metrics) is_metric_add(h->s->metrics, IS_M_HTTP_REFUSED, "idle", NULL, 1);
    return true;
}

bool is_conn_spare(const struct is_http *h, is_conn *c)
{
    c->spare = c->spare && many(h); /* somebody left, it is one of them now */
    return c->spare;
}

void is_conns_look_again(struct is_http *h)
{
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        if (c->fd < 0 || c->cut || !is_conn_spare(h, c)) continue;
        c->spare = !make_room(h, c, HTTP_GRACE_MS);
    }
}

void is_conn_notify(void *cls, struct MHD_Connection *con, void **context, enum MHD_ConnectionNotificationCode what)
{
    struct is_http *h = cls;
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(con, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *from = MHD_get_connection_info(con, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = NULL;
        for (uint32_t i = 0; i < h->n_slots && fd; i++) {
            is_conn *c = &h->conns[i];
            if (c->fd >= 0) continue;
            *c = (is_conn){ .fd = fd->connect_fd, .peer = peer_of(h, address_of(from ? from->client_addr : NULL), "") };
            is_conn_state(c, CONN_IDLE);
            *context = c;
            h->n_open++;
            h->peers[c->peer].n++;
            /* This is the thread that reads: it is in the middle of no request. If nobody can go yet, the watcher looks again. */
            c->spare = many(h) && !make_room(h, c, 0);
            break;
        }
    } else if (*context) {
        is_conn *c = *context;
        h->peers[c->peer].n--;
        h->n_cut -= c->cut;
        c->fd = -1;
        c->request = NULL;
        h->n_open--;
        *context = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}
