/* server.c - one server from start to end: the store, the model, the faces, and what a signal does. */
#include "serve/server.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/words.h"
#include "serve/audit.h"
#include "serve/http_run.h"
#include "serve/log.h"
#include "serve/ops.h"

/* Every face. The first route that fits counts. */
static const is_route *const faces[] = {
    is_routes_ops,
    is_routes_openai,
    is_routes_memory,
    is_routes_own,
    is_routes_mcp,
    is_routes_page,
    is_worker_routes,
    NULL,
};
static const is_route *extra; /* a test's */

void is_server_set_extra(const is_route *table) { extra = table; }

/* ---- Stopping ------------------------------------------------------------------------------------------------------------ */

/* An eventfd, made once and never closed: a signal handler that has just read its number must not write to another file. */
static int wake_fd = -1;
static volatile int server_runs;    /* atomic */
static volatile int stops;          /* how often it was asked to stop; atomic */

/* Only what a signal handler may do. */
void is_server_stop(void)
{
    int e = errno, fd = __atomic_load_n(&wake_fd, __ATOMIC_ACQUIRE);
    uint64_t one = 1;
    __atomic_add_fetch(&stops, 1, __ATOMIC_RELEASE);
    if (fd >= 0) (void)!write(fd, &one, sizeof one);
    errno = e;
}

static is_status make_wake(void)
{
    int fd = wake_fd >= 0 ? wake_fd : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return is_fail_errno("no descriptor to be stopped by");
    __atomic_store_n(&wake_fd, fd, __ATOMIC_RELEASE);
    return INFERSCALE_OK;
}

static int stops_now(void) { return __atomic_load_n(&stops, __ATOMIC_ACQUIRE); }

/* Until somebody calls is_server_stop, or ms are over (< 0: never). */
static void sleep_until_stop(int ms)
{
    struct pollfd p = { .fd = wake_fd, .events = POLLIN };
    uint64_t n;
    if (poll(&p, 1, ms) > 0) (void)!read(wake_fd, &n, sizeof n);
}

/* Requests end by themselves, until drain_s are over or somebody is in a hurry; then they are cancelled. */
static void drain(is_server *s)
{
    double until = is_now_ms() + 1000.0 * s->config->drain_s;
    int asked = stops_now();
    __atomic_store_n(&s->draining, 1, __ATOMIC_RELEASE);
    is_http_drain(s);
    unsigned n = is_http_in_flight(s);
    is_serve_log(IS_LOG_INFO, "ending: requests under way: %u; they get %u s", n, s->config->drain_s);
    while (is_http_in_flight(s) && is_now_ms() < until && stops_now() == asked) sleep_until_stop(20);
    n = is_http_in_flight(s);
    if (n) is_serve_log(IS_LOG_WARN, "ending: requests cancelled: %u", n);
    is_http_cancel_all(s);
    inferscale_stop_loading(s->is); /* searches that wait for the embedder serve by words now */
}

/* ---- Starting ------------------------------------------------------------------------------------------------------------ */

/* Zero means the default to the library, and no wait at all in the settings. */
#define AT_ONCE_S 0.001

static const char *given(const char *s) { return *s ? s : NULL; }

static is_status open_store(is_server *s)
{
    const is_config *c = s->config;
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    o.home = given(c->home);
    o.model = given(c->model);
    o.embedder = given(c->embedder);
    o.embedder_wait_ms = (uint32_t)(c->embedder_wait_s * 1000);
    o.engine = given(c->engine);
    if (o.engine && strcmp(o.engine, "vllm") == 0) { /* a variable may stand there for others */
        o.upstream = given(c->upstream);
        o.upstream_key = given(c->upstream_key);
    }
    o.plugin_dir = given(c->plugins);
    o.system = given(c->system);
    o.policy = given(c->policy);
    o.refine = given(c->refine);
    o.codec = given(c->codec);
    o.n_ctx = c->ctx;
    o.n_threads = c->threads;
    o.n_parallel = is_config_parallel(c);
    o.ram_bytes = c->ram;
    o.flash_attention = strcmp(c->flash_attention, "on") == 0    ? INFERSCALE_FA_ON
                        : strcmp(c->flash_attention, "off") == 0 ? INFERSCALE_FA_OFF
                                                                 : INFERSCALE_FA_AUTO;
    o.read_only = c->read_only;
    o.start_empty = c->start_empty;
    o.question_embed_ms = c->question_embed_ms ? (int)c->question_embed_ms : -1;
    o.encode_lag_s = c->encode_lag_s == 0 ? AT_ONCE_S : c->encode_lag_s;
    o.encode_share = c->encode_share;
    o.encode_share_most = c->encode_share_most;
    o.background = !c->read_only;
    o.on_log = is_serve_log_library;
    IS_TRY(inferscale_open(&s->is, &o));
    if (*inferscale_notice(s->is)) is_serve_log(IS_LOG_WARN, "%s", inferscale_notice(s->is));
    return INFERSCALE_OK;
}

/* The model is loaded by a thread of its own: /health answers meanwhile, and a stop is heard. */
typedef struct loader {
    is_server *s;
    pthread_t thread;
    bool running;
    is_status st;
    char error[1024];
    volatile int done; /* atomic */
} loader;

/* The served name is the file's, as it is installed and as --model takes it: what a file says of itself inside is seldom a name. */
static void name_model(is_server *s, const inferscale_model_info *info)
{
    const char *slash = strrchr(info->path, '/'), *name = slash ? slash + 1 : info->path;
    size_t n = strlen(name);
    if (!n) name = info->name, n = strlen(name);
    else if (n > 5 && strcmp(name + n - 5, ".gguf") == 0) n -= 5;
    snprintf(s->model, sizeof s->model, "%.*s", (int)n, name);
}

static void *load(void *ctx)
{
    loader *l = ctx;
    inferscale_model_info info;
    l->st = inferscale_model(l->s->is, &info);
    if (l->st == INFERSCALE_OK) {
        name_model(l->s, &info);
        is_metrics_name(l->s->metrics, inferscale_version(), l->s->model, info.engine);
    } else
        snprintf(l->error, sizeof l->error, "%s", inferscale_error());
    __atomic_store_n(&l->done, 1, __ATOMIC_RELEASE);
    uint64_t one = 1;
    (void)!write(wake_fd, &one, sizeof one);
    return NULL;
}

/* OK too if it was stopped meanwhile. */
static is_status load_model(is_server *s)
{
    loader l = { .s = s };
    double t0 = is_now_ms();
    if (pthread_create(&l.thread, NULL, load, &l) != 0)
        return is_fail(INFERSCALE_E_NOMEM, "no more threads; raise the limit of processes (ulimit -u)");
    while (!__atomic_load_n(&l.done, __ATOMIC_ACQUIRE) && !stops_now()) sleep_until_stop(1000);
    if (stops_now()) inferscale_stop_loading(s->is);
    pthread_join(l.thread, NULL);
    if (l.st == INFERSCALE_E_CANCELLED && stops_now()) {
        is_serve_log(IS_LOG_INFO, "ending: loading the model was called off");
        return INFERSCALE_OK;
    }
    if (l.st != INFERSCALE_OK) return is_fail(l.st, "%s", l.error);
    __atomic_store_n(&s->ready, 1, __ATOMIC_RELEASE);
    is_serve_log(IS_LOG_INFO, "ready: %s was loaded in %.1f s", s->model, (is_now_ms() - t0) / 1000);
    return INFERSCALE_OK;
}

/* tables: room for every face, one more and the end. */
static is_status serve(is_server *s, const is_route **tables, void (*on_ready)(void *ctx, const char *host, int port), void *ctx)
{
    const is_config *c = s->config;
    IS_TRY(is_config_check(c, NULL, NULL));
    IS_TRY(is_metrics_new(&s->metrics));
    if (*c->keys) IS_TRY(is_keys_open(c->keys, &s->keys));
    IS_TRY(is_http_claim(s)); /* before the store: opening it begins to load the model */
    IS_TRY(open_store(s));
    IS_TRY(is_ops_start(s));
    IS_TRY(is_audit_start(s));
    size_t n = 0;
    if (extra) tables[n++] = extra;
    for (size_t i = 0; faces[i]; i++) tables[n++] = faces[i];
    IS_TRY(is_http_start(s, tables));
    is_serve_log(IS_LOG_INFO, "listening on %s port %d; loading the model", c->host, is_http_port(s));
    IS_TRY(load_model(s));
    if (on_ready && !stops_now()) on_ready(ctx, c->host, is_http_port(s));
    while (!stops_now()) sleep_until_stop(1000);
    drain(s);
    return INFERSCALE_OK;
}

is_status is_server_run(const is_config *config, void (*on_ready)(void *ctx, const char *host, int port), void *ctx)
{
    is_server s = { .config = config, .started = is_now_epoch() };
    const is_route *tables[sizeof faces / sizeof *faces + 1] = { 0 };
    int none = 0;
    if (!__atomic_compare_exchange_n(&server_runs, &none, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return is_fail(INFERSCALE_E_INVALID, "a server runs in this process already; stop it first");
    is_reader reader = is_reader_set(IS_READER_HTTP);
    json_object_seed(0);
    is_status st = make_wake();
    if (st == INFERSCALE_OK) st = serve(&s, tables, on_ready, ctx);
    char why[1024];
    snprintf(why, sizeof why, "%s", is_error());
    is_http_stop(&s);
    is_audit_stop(&s);
    is_ops_stop(&s);
    inferscale_close(s.is);
    is_keys_close(s.keys);
    is_metrics_free(s.metrics);
    __atomic_store_n(&stops, 0, __ATOMIC_RELEASE); /* here, not at the start: a signal that came early counts */
    is_reader_set(reader);
    __atomic_store_n(&server_runs, 0, __ATOMIC_RELEASE);
    return st == INFERSCALE_OK ? st : is_fail(st, "%s", why);
}
