/* http_conn.c - the table of connections, and who makes room when it is full.
 *
 * Beyond max_connections each newcomer costs one connection on which nobody waits for anything: of the address with the most
 * connections, that which has been silent longest. So whoever opens connections and leaves them idle takes them from himself, a health
 * check comes through, and requests at work are never touched. Where nothing is idle newcomers hear 503 on the spare connections; those
 * who were there before them do not, whenever their request is read. */
#include <netinet/in.h>
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
    c->since = is_now_ms();
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

/* The address's place in h->peers, which it keeps while it has a connection. There are as many places as connections. */
static uint32_t peer_of(const struct is_http *h, conn_address from)
{
    uint32_t unused = 0;
    for (uint32_t i = 0; i < h->n_slots; i++) {
        const conn_peer *p = &h->peers[i];
        if (p->n && p->from.v4 == from.v4 && p->from.prefix == from.prefix) return i;
        if (!p->n) unused = i;
    }
    h->peers[unused].from = from;
    return unused;
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
    if (!worst) return false;
    worst->cut = true;
    h->n_cut++;
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
            *c = (is_conn){ .fd = fd->connect_fd, .peer = peer_of(h, address_of(from ? from->client_addr : NULL)) };
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
