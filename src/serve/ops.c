/* ops.c - see ops.h. */
#include "serve/ops.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/handle.h"
#include "api/room.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "exchange/json.h"
#include "serve/audit.h"
#include "serve/embedded.h"
#include "serve/upstreams.h"
#include "serve/log.h"

/* A look is good for so long, or for SHARE times what it took; who asks waits for a new one so long, for the first longer. A store that has
 * not answered for STUCK_MS is not ready. */
enum { FRESH_MS = 2000, SHARE = 20, WAIT_MS = 250, WAIT_FIRST_MS = 2000, STUCK_MS = 15000 };

typedef struct is_ops is_ops;

/* A thread that looks at something when it is asked to. */
typedef struct looker {
    is_ops *o;
    void (*look)(is_ops *o);
    pthread_t thread;
    bool running, wanted;
    uint64_t n_looks;
    double wanted_ms, looked_ms, took_ms;
} looker;

struct is_ops {
    is_server *s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    looker sizes, store;
    is_room_state state;       /* what `store` saw last */
};

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
    is_metric_set(s->metrics, IS_M_ENCODER_FIRST_LAG, NULL, NULL, e.first_lag_s);
    is_metric_set(s->metrics, IS_M_ENCODER_SHARE, NULL, NULL, e.share);
    is_metric_set(s->metrics, IS_M_ENCODER_SHARED, NULL, NULL, e.shared_s);
    is_metric_set(s->metrics, IS_M_ENCODER_QUESTIONS, NULL, NULL, e.questions_s);
    is_metric_set(s->metrics, IS_M_ENCODER_TURNS, "slice", NULL, (double)e.n_slices);
    is_metric_set(s->metrics, IS_M_ENCODER_TURNS, "pause", NULL, (double)e.n_pauses);
    is_metric_set(s->metrics, IS_M_ENCODER_TURNS, "drop", NULL, (double)e.n_drops);
    is_metric_set(s->metrics, IS_M_DAMAGED, "queued", NULL, (double)e.damaged_queued);
    is_metric_set(s->metrics, IS_M_DAMAGED, "resting", NULL, (double)e.damaged_resting);
    is_metric_set(s->metrics, IS_M_DAMAGED, "disputed", NULL, (double)e.damaged_disputed);
}

static void look_at_embedder(is_server *s)
{
    uint64_t n_failed, n_spared;
    const bool well = is_handle_embedder_state(s->is, &n_failed, &n_spared);

    is_metric_set(s->metrics, IS_M_EMBEDDER_UP, NULL, NULL, well);
    is_metric_set(s->metrics, IS_M_EMBEDDER_FAILED, "failed", NULL, (double)n_failed);
    is_metric_set(s->metrics, IS_M_EMBEDDER_FAILED, "spared", NULL, (double)n_spared);
}

static void look_at_items(is_server *s)
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

static void look_at_sizes(is_ops *o)
{
    look_at_encoder(o->s);
    look_at_embedder(o->s);
    look_at_items(o->s);
}

/* Said once when it changes, not at every look. */
static void tell(const char *what, is_status before, is_status now, const char *why)
{
    if (before == now) return;
    if (now == INFERSCALE_OK) is_serve_log(IS_LOG_INFO, "the store can be %s again", what);
    else is_serve_log(IS_LOG_ERROR, "the store cannot be %s: %s", what, why);
}

static void look_at_store(is_ops *o)
{
    is_room_state now, before;

    is_room_look(o->s->is, &now);
    pthread_mutex_lock(&o->lock);
    before = o->state;
    o->state = now;
    pthread_mutex_unlock(&o->lock);
    tell("read", before.read, now.read, now.why_read);
    tell("written", before.write, now.write, now.why_write);
    if (before.write == INFERSCALE_E_FULL && now.write == INFERSCALE_OK) is_room_reserve(o->s->is); /* forgetting may have used it up */
    is_metric_set(o->s->metrics, IS_M_STORE_USABLE, "read", NULL, now.read == INFERSCALE_OK);
    if (!o->s->config->read_only)
        is_metric_set(o->s->metrics, IS_M_STORE_USABLE, "write", NULL, now.write == INFERSCALE_OK && !inferscale_notice(o->s->is)[0]);
}

static void *run(void *arg)
{
    looker *l = arg;
    is_ops *o = l->o;

    pthread_mutex_lock(&o->lock);
    while (!o->stop) {
        double began;

        if (!l->wanted) {
            pthread_cond_wait(&o->changed, &o->lock);
            continue;
        }
        pthread_mutex_unlock(&o->lock);
        began = is_now_ms();
        l->look(o);
        pthread_mutex_lock(&o->lock);
        l->looked_ms = is_now_ms();
        l->took_ms = l->looked_ms - began;
        l->n_looks++;
        l->wanted = false;
        pthread_cond_broadcast(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* The lock is held. */
static bool is_fresh(const looker *l)
{
    double good = l->took_ms * SHARE > FRESH_MS ? l->took_ms * SHARE : FRESH_MS;

    return l->n_looks > 0 && is_now_ms() - l->looked_ms < good;
}

/* The lock is held: asks for a look if there is need of one, and waits for it a moment. */
static void refresh(looker *l)
{
    is_ops *o = l->o;
    struct timespec until;
    uint64_t before = l->n_looks;
    int rc = 0, ms = before ? WAIT_MS : WAIT_FIRST_MS;

    if (is_fresh(l)) return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * 1000000L;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (!l->wanted) l->wanted_ms = is_now_ms();
    l->wanted = true;
    pthread_cond_broadcast(&o->changed);
    while (l->n_looks == before && !o->stop && rc != ETIMEDOUT) rc = pthread_cond_timedwait(&o->changed, &o->lock, &until);
}

void is_ops_refresh(is_server *s)
{
    is_ops *o = s->ops;

    if (o == NULL) return;
    pthread_mutex_lock(&o->lock);
    refresh(&o->sizes);
    refresh(&o->store);
    pthread_mutex_unlock(&o->lock);
}

static is_status begin(is_ops *o, looker *l, void (*look)(is_ops *o))
{
    l->o = o;
    l->look = look;
    l->running = pthread_create(&l->thread, NULL, run, l) == 0;
    return l->running ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "no thread for the server's metrics; raise the limit of processes");
}

is_status is_ops_start(is_server *s)
{
    pthread_condattr_t attr;
    is_ops *o = is_calloc(1, sizeof *o);
    is_status st;

    s->ops = NULL;
    if (o == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the server's state");
    o->s = s;
    pthread_mutex_init(&o->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&o->changed, &attr);
    pthread_condattr_destroy(&attr);
    s->ops = o;
    st = begin(o, &o->sizes, look_at_sizes);
    if (st == INFERSCALE_OK) st = begin(o, &o->store, look_at_store);
    if (st != INFERSCALE_OK) is_ops_stop(s);
    return st;
}

void is_ops_stop(is_server *s)
{
    is_ops *o = s->ops;

    if (o == NULL) return;
    pthread_mutex_lock(&o->lock);
    o->stop = true;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    if (o->sizes.running) pthread_join(o->sizes.thread, NULL);
    if (o->store.running) pthread_join(o->store.thread, NULL);
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

/* What is known of the store, looked at anew if that is old. stuck: there is no answer, and that for long. */
static is_room_state state_of(is_server *s, bool *stuck)
{
    is_ops *o = s->ops;
    is_room_state now;

    *stuck = false;
    if (!o) { /* no thread for it: by this one */
        is_room_look(s->is, &now);
        return now;
    }
    pthread_mutex_lock(&o->lock);
    refresh(&o->store);
    now = o->state;
    *stuck = o->store.wanted && is_now_ms() - o->store.wanted_ms > STUCK_MS;
    pthread_mutex_unlock(&o->lock);
    return now;
}

static void not_ready(is_server *s, const is_room_state *now, bool stuck, char why[256])
{
    why[0] = 0;
    if (__atomic_load_n(&s->draining, __ATOMIC_ACQUIRE)) snprintf(why, 256, "the server is ending: it finishes what it has begun");
    else if (!__atomic_load_n(&s->ready, __ATOMIC_ACQUIRE)) snprintf(why, 256, "the model is being loaded");
    else if (stuck) snprintf(why, 256, "the store has not answered for %d s; look at its disk", STUCK_MS / 1000);
    else if (now->read != INFERSCALE_OK) snprintf(why, 256, "the store cannot be read: %.200s", now->why_read);
    else is_upstreams_down(s->is, s->keys == NULL, why); /* without keys everybody may know where they are */
}

bool is_ops_not_ready(is_server *s, char why[256])
{
    bool stuck;
    is_room_state now = state_of(s, &stuck);

    not_ready(s, &now, stuck, why);
    return why[0] != 0;
}

void is_ops_notice(is_server *s, char notice[256])
{
    bool stuck;
    is_room_state now = state_of(s, &stuck);

    snprintf(notice, 256, "%s", inferscale_notice(s->is)[0] ? inferscale_notice(s->is) : now.why_write);
}

static void get_ready(is_server *s, is_request *r)
{
    char why[256], notice[256] = "";
    bool not = is_ops_not_ready(s, why);
    json_t *body = json_pack("{s:s}", "status", not ? "not ready" : "ready");

    if (!not) is_ops_notice(s, notice);
    if (not) json_object_set_new(body, "reason", is_json_text(why));
    /* A full disk: it still answers from what it remembers, so it is ready, and says what it cannot do. */
    else if (*notice) json_object_set_new(body, "notice", is_json_text(notice));
    if (not) is_reply_header(r, "Retry-After", "1");
    is_reply_json(r, not ? 503 : 200, body);
}

static void get_metrics(is_server *s, is_request *r)
{
    const char *aliases = is_request_query(r, "aliases");
    char why[256];
    size_t len;
    char *text;

    is_ops_refresh(s);
    is_upstreams_measure(s->is, s->metrics);
    is_metric_set(s->metrics, IS_M_READY, NULL, NULL, !is_ops_not_ready(s, why));
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
