/* http_conn.c - the table of connections, and who makes room when it is full.
 *
 * Beyond max_connections each newcomer costs one connection on which nobody waits for anything: of the address with the most
 * connections, that which has been silent longest. So whoever opens connections and leaves them idle takes them from himself, a health
 * check comes through, and requests at work are never touched. Where nothing is idle newcomers hear 503 on the spare connections. */
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/hash.h"
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
    h->n_buckets = 2 * h->n_slots;
    h->peers = is_calloc(h->n_buckets, sizeof *h->peers);
    if (!h->conns || !h->peers) return is_fail(INFERSCALE_E_NOMEM, "out of memory; lower max_connections");
    for (uint32_t i = 0; i < h->n_slots; i++) h->conns[i].fd = -1;
    is_random(h->peer_key, sizeof h->peer_key);
    return INFERSCALE_OK;
}

/* Which count is the address's: by a hash that nobody outside can aim at. IPv6 by /64, which is what one client gets. */
static uint32_t bucket_of(const struct is_http *h, const struct sockaddr *a)
{
    uint8_t hash[IS_HASH_BYTES];
    uint32_t n;
    const void *p = "";
    size_t len = 0;
    if (a && a->sa_family == AF_INET)
        p = &((const struct sockaddr_in *)(const void *)a)->sin_addr, len = 4;
    else if (a && a->sa_family == AF_INET6)
        p = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, len = 8;
    is_hash_once(h->peer_key, p, len, hash);
    memcpy(&n, hash, sizeof n);
    return n % h->n_buckets;
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

void is_conns_make_room(struct is_http *h, const is_conn *newest)
{
    is_conn *worst = NULL;
    uint32_t most = newest ? h->peers[newest->peer] : 1; /* never from an address that has fewer than the newcomer's */
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        if (c == newest || !may_go(c) || h->peers[c->peer] < most || has_come(c)) continue;
        if (h->peers[c->peer] == most && worst && c->since >= worst->since) continue;
        worst = c;
        most = h->peers[c->peer];
    }
    if (!worst) return;
    worst->cut = true;
    h->n_cut++;
    shutdown(worst->fd, SHUT_RDWR); /* libmicrohttpd sees that, and closes it */
    if (h->s->metrics) is_metric_add(h->s->metrics, IS_M_HTTP_REFUSED, "idle", NULL, 1);
}

bool is_conns_many(const struct is_http *h) { return h->n_open - h->n_cut > h->s->config->max_connections; }

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
            *c = (is_conn){ .fd = fd->connect_fd, .peer = bucket_of(h, from ? from->client_addr : NULL) };
            is_conn_state(c, CONN_IDLE);
            *context = c;
            h->n_open++;
            h->peers[c->peer]++;
            if (is_conns_many(h)) is_conns_make_room(h, c); /* if nobody can go yet, the watcher looks again */
            break;
        }
    } else if (*context) {
        is_conn *c = *context;
        h->peers[c->peer]--;
        h->n_cut -= c->cut;
        c->fd = -1;
        c->request = NULL;
        h->n_open--;
        *context = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}
