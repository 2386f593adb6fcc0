/* ops.c - see ops.h. */
#include "serve/ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "serve/audit.h"
#include "serve/embedded.h"
#include "serve/upstreams.h"

/* A look at the store is good for so long, or for SHARE times what it took; who asks waits for a new one so long, for the first longer. */
enum { FRESH_MS = 2000, SHARE = 20, WAIT_MS = 250, WAIT_FIRST_MS = 2000 };

typedef struct is_ops {
    is_server *s;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool wanted, stop;
    uint64_t n_looks;
    double looked_ms, took_ms;
} is_ops;

/* ---- Looking --------------------------------------------------------------------------------------------------------------- */

static void look_at_encoder(is_server *s)
{
    inferscale_encoder_state e = INFERSCALE_ENCODER_STATE_INIT;

    if (inferscale_encode_status(s->is, NULL, &e) != INFERSCALE_OK) {
        is_log(IS_LOG_WARN, "metrics: the encoder's state could not be read: %s", is_error());
        return;
    }
    is_metric_set(s->metrics, IS_M_ENCODER_LAG, NULL, NULL, e.lag_s);
    is_metric_set(s->metrics, IS_M_ENCODER_WAITING, "embed", NULL, (double)e.n_unembedded);
    is_metric_set(s->metrics, IS_M_ENCODER_WAITING, "first", NULL, (double)e.n_unencoded);
    is_metric_set(s->metrics, IS_M_ENCODER_WAITING, "refine", NULL, (double)e.n_unrefined);
    is_metric_set(s->metrics, IS_M_ENCODED, "embed", NULL, (double)e.items_embedded);
    is_metric_set(s->metrics, IS_M_ENCODED, "first", NULL, (double)e.facts_encoded);
    is_metric_set(s->metrics, IS_M_ENCODED, "refine", NULL, (double)e.facts_refined);
    is_metric_set(s->metrics, IS_M_ENCODER_ERRORS, NULL, NULL, (double)e.n_errors);
}

static void look_at_store(is_server *s)
{
    inferscale_store_info i;

    if (inferscale_store(s->is, 0, &i) != INFERSCALE_OK) {
        is_log(IS_LOG_WARN, "metrics: the store's sizes could not be read: %s", is_error());
        return;
    }
    is_metric_set(s->metrics, IS_M_STORE_BYTES, "bank", NULL, (double)i.bank_bytes);
    is_metric_set(s->metrics, IS_M_STORE_BYTES, "vault", NULL, (double)i.vault_bytes);
    is_metric_set(s->metrics, IS_M_STORE_BYTES, "ram", NULL, (double)i.ram_bytes_used);
    is_metric_set(s->metrics, IS_M_STORE_ITEMS, "facts", NULL, (double)i.n_facts);
    is_metric_set(s->metrics, IS_M_STORE_ITEMS, "turns", NULL, (double)i.n_turns);
    is_metric_set(s->metrics, IS_M_STORE_ITEMS, "partitions", NULL, (double)i.n_partitions);
    is_metric_set(s->metrics, IS_M_STORE_ITEMS, "segments", NULL, (double)i.n_segments);
}

static void *looker(void *arg)
{
    is_ops *o = arg;

    pthread_mutex_lock(&o->lock);
    while (!o->stop) {
        double began;

        if (!o->wanted) {
            pthread_cond_wait(&o->changed, &o->lock);
            continue;
        }
        pthread_mutex_unlock(&o->lock);
        began = is_now_ms();
        look_at_encoder(o->s);
        look_at_store(o->s);
        pthread_mutex_lock(&o->lock);
        o->looked_ms = is_now_ms();
        o->took_ms = o->looked_ms - began;
        o->n_looks++;
        o->wanted = false;
        pthread_cond_broadcast(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* The lock is held. */
static bool is_fresh(const is_ops *o)
{
    double good = o->took_ms * SHARE > FRESH_MS ? o->took_ms * SHARE : FRESH_MS;

    return o->n_looks > 0 && is_now_ms() - o->looked_ms < good;
}

void is_ops_refresh(is_server *s)
{
    is_ops *o = s->ops;
    struct timespec until;
    uint64_t before;
    int rc = 0;

    if (o == NULL) return;
    pthread_mutex_lock(&o->lock);
    before = o->n_looks;
    if (!is_fresh(o)) {
        int ms = before ? WAIT_MS : WAIT_FIRST_MS;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += ms % 1000 * 1000000L;
        until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        o->wanted = true;
        pthread_cond_broadcast(&o->changed);
        while (o->n_looks == before && !o->stop && rc != ETIMEDOUT) rc = pthread_cond_timedwait(&o->changed, &o->lock, &until);
    }
    pthread_mutex_unlock(&o->lock);
}

is_status is_ops_start(is_server *s)
{
    pthread_condattr_t attr;
    is_ops *o = is_calloc(1, sizeof *o);

    s->ops = NULL;
    if (o == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the server's state");
    o->s = s;
    pthread_mutex_init(&o->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (pthread_create(&o->thread, NULL, looker, o) != 0) {
        pthread_cond_destroy(&o->changed);
        pthread_mutex_destroy(&o->lock);
        is_free(o);
        return is_fail(INFERSCALE_E_NOMEM, "no thread for the server's metrics; raise the limit of processes");
    }
    s->ops = o;
    return INFERSCALE_OK;
}

void is_ops_stop(is_server *s)
{
    is_ops *o = s->ops;

    if (o == NULL) return;
    pthread_mutex_lock(&o->lock);
    o->stop = true;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    pthread_cond_destroy(&o->changed);
    pthread_mutex_destroy(&o->lock);
    is_free(o);
    s->ops = NULL;
}

/* ---- Routes ---------------------------------------------------------------------------------------------------------------- */

/* The process lives and answers: nothing else, so that nobody restarts it for what a restart does not mend. */
static void get_health(is_server *s, is_request *r)
{
    (void)s;
    is_reply_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

bool is_ops_not_ready(is_server *s, char why[256])
{
    static const inferscale_scope nobody = { .user = "ready" };
    inferscale_encoder_state e = INFERSCALE_ENCODER_STATE_INIT;

    why[0] = 0;
    if (__atomic_load_n(&s->draining, __ATOMIC_ACQUIRE)) snprintf(why, 256, "the server is ending: it finishes what it has begun");
    else if (!__atomic_load_n(&s->ready, __ATOMIC_ACQUIRE)) snprintf(why, 256, "the model is being loaded");
    /* One read of the bank that looks at nothing: does it answer at all? */
    else if (inferscale_encode_status(s->is, &nobody, &e) != INFERSCALE_OK) snprintf(why, 256, "the store cannot be read: %.200s", is_error());
    return why[0] != 0;
}

static void get_ready(is_server *s, is_request *r)
{
    char why[256];
    bool not_ready = is_ops_not_ready(s, why);
    json_t *body = json_pack("{s:s}", "status", not_ready ? "not ready" : "ready");

    if (not_ready) json_object_set_new(body, "reason", json_string(why));
    /* A full disk: it still answers from what it remembers, so it is ready, and says what it cannot do. */
    else if (inferscale_notice(s->is)[0]) json_object_set_new(body, "notice", json_string(inferscale_notice(s->is)));
    if (not_ready) is_reply_header(r, "Retry-After", "1");
    is_reply_json(r, not_ready ? 503 : 200, body);
}

static void get_metrics(is_server *s, is_request *r)
{
    const char *aliases = is_request_query(r, "aliases");
    size_t len;
    char *text;

    is_ops_refresh(s);
    is_upstreams_measure(s->is, s->metrics);
    text = is_metrics_text(s->metrics, !aliases || strcmp(aliases, "no") != 0, &len);
    if (text == NULL) is_reply_error(r, 500, "server_error", NULL, NULL, "out of memory for the metrics");
    else is_reply_bytes(r, 200, "text/plain; version=0.0.4; charset=utf-8", text, len);
    is_free(text);
}

static void get_openapi(is_server *s, is_request *r)
{
    const is_embedded *f = is_embedded_find("openapi.json");

    (void)s;
    if (f == NULL)
        is_reply_error(r, 404, "invalid_request_error", "not_found", NULL, "this build carries no openapi.json; docs/server.md describes the API");
    else is_reply_bytes(r, 200, f->type, f->data, f->len);
}

static void get_audit(is_server *s, is_request *r)
{
    is_reply_json(r, 200, is_audit_json(s));
}

const is_route is_routes_ops[] = {
    { "GET", "/health", get_health, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { "GET", "/ready", get_ready, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { "GET", "/metrics", get_metrics, IS_FACE_OPENAI, IS_ROUTE_ADMIN },
    { "GET", "/openapi.json", get_openapi, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { "GET", "/inferscale/audit", get_audit, IS_FACE_OPENAI, IS_ROUTE_ADMIN },
    { 0 },
};
