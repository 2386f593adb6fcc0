/* open.c - the servers' addresses, the folders that gateway and workers share, and the servers' first word. */
#include "engine/chat_pieces.h"
#include "engine/vllm/internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/url.h"
#include "base/words.h"
#include "kv/ticket.h"

enum { SAY_EVERY_MS = 10000, LOOK_EVERY_MS = 250, GRACE_MS = 2000 };

vllm_limits vllm_limit = { .connect_ms = 5000, .silent_ms = 300000, .small_ms = 60000, .open_ms = 600000, .backoff_ms = 500,
                           .keeper_ms = 1000, .arrive_ms = 15000, .confirm_ms = 10000 };

/* ---- The servers' addresses ------------------------------------------------------------------------------------------------ */

/* One address p[0..n): http(s)://host[:port][/path], without user or password. */
static is_status add_url(vllm *e, const char *p, size_t n)
{
    char *url;

    while (n && (*p == ' ' || *p == '\t')) p++, n--;
    while (n && (p[n - 1] == '/' || p[n - 1] == ' ' || p[n - 1] == '\t')) n--;
    if (n > 3 && memcmp(p + n - 3, "/v1", 3) == 0) n -= 3;
    if (n == 0) return INFERSCALE_OK;
    if (e->n_up == VLLM_UPSTREAMS) return is_fail(INFERSCALE_E_INVALID, "more than %d vLLM servers; name fewer", VLLM_UPSTREAMS);
    IS_TRY(is_url_check(p, n));
    url = is_strndup(p, n);
    if (!url) return vllm_no_memory();
    for (uint32_t i = 0; i < e->n_up; i++)
        if (strcmp(e->up[i].url, url) == 0) {
            is_free(url);
            return INFERSCALE_OK;
        }
    e->up[e->n_up++].url = url;
    return INFERSCALE_OK;
}

static is_status add_urls(vllm *e, const char *list)
{
    for (const char *p = list ? list : ""; *p;) {
        size_t n = strcspn(p, ",");

        IS_TRY(add_url(e, p, n));
        p += n + (p[n] == ',');
    }
    if (e->n_up) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID,
                   "no vLLM server is named; say where one is, as in %s http://host:port",
                   is_words(IS_CALL_UPSTREAM));
}

/* ---- Folders ----------------------------------------------------------------------------------------------------------------------- */

static is_status make_folder(const char *path)
{
    IS_TRY(is_file_mkdirs(is_fs_default(), path));
    return is_fs_default()->set_mode(is_fs_default(), path, 0700);
}

static is_status make_folders(vllm *e, const char *home)
{
    if (!home || !*home)
        return is_fail(INFERSCALE_E_INVALID,
                       "the vLLM engine shares the store's folder with its workers; give %s",
                       is_words(IS_CALL_HOME));
    e->home = is_strdup(home);
    e->dir = e->home ? is_path_join(home, "vllm") : NULL;
    return e->dir ? make_folder(e->dir) : vllm_no_memory();
}

/* ---- What the servers are ------------------------------------------------------------------------------------------------------- */

static is_status adopt(vllm *e, uint32_t i, vllm_model *m)
{
    vllm_upstream *u = &e->up[i];
    const vllm_model *seen = m;
    bool same, news, was_foreign;

    pthread_mutex_lock(&e->lock);
    was_foreign = u->state == VLLM_FOREIGN;
    news = u->unsure || u->version[0] == 0;
    if (!e->model) {
        e->model = m;
        m = NULL;
    }
    same = !m || memcmp(e->model->fingerprint, m->fingerprint, IS_HASH_BYTES) == 0;
    u->state = same ? VLLM_READY : VLLM_FOREIGN;
    snprintf(u->version, sizeof u->version, "vLLM %.20s, connector %.20s", seen->vllm, seen->connector);
    snprintf(u->name, sizeof u->name, "%.127s", seen->name);
    snprintf(u->served, sizeof u->served, "%s", seen->served);
    memcpy(u->fingerprint, seen->fingerprint, IS_HASH_BYTES);
    u->can_inject = same && seen->can_inject;
    u->unsure = false;
    if (u->n_row == 0) u->why[0] = 0;
    if (!same) snprintf(u->why, sizeof u->why, "it serves another model (%.40s) than the one that this gateway was started with (%.40s); start "
                        "the gateway anew for that, or vLLM with the old one", m->name, e->model->name);
    pthread_mutex_unlock(&e->lock);
    if (!same && !was_foreign) {
        VLLM_COUNT(e, foreign_servers, 1);
        is_log(IS_LOG_ERROR, "vLLM at %s gets no work: it serves another model (%.100s) than the one that this gateway was started with (%.100s)",
               u->url, m->name, e->model->name);
    } else if (same && news) {
        is_log(IS_LOG_INFO, "vLLM at %s is there: %s, %s, connector %s", u->url, e->model->name, e->model->vllm, e->model->connector);
    }
    vllm_model_free(m);
    return INFERSCALE_OK;
}

/* Somebody may have given the address of an `inferscale serve`: it answers as vLLM does, but for what is between a gateway and vLLM. */
static is_status name_gateway(vllm *e, uint32_t i, vllm_flags flags, is_status failed)
{
    vllm_upstream *u = &e->up[i];
    json_t *api = NULL;
    char why[512];
    bool retry, ours;

    if (u->no_gateway || failed == INFERSCALE_E_NOMEM || failed == INFERSCALE_E_CANCELLED) return failed;
    snprintf(why, sizeof why, "%s", is_error());
    if (vllm_ask(e, i, "/openapi.json", NULL, flags, vllm_limit.small_ms, &api, &retry) != INFERSCALE_OK)
        return is_fail(failed, "%s", why);
    ours = json_is_string(json_object_get(json_object_get(api, "info"), "title")) &&
           strcmp(json_string_value(json_object_get(json_object_get(api, "info"), "title")), "InferScale") == 0;
    json_decref(api);
    u->no_gateway = !ours;
    if (!ours) return is_fail(failed, "%s", why);
    return is_fail(INFERSCALE_E_INVALID, "%s is an `inferscale serve`, not a vLLM; give the address of the vLLM server that is to compute", u->url);
}

static const int32_t no_prompt[] = { 0 };
static const vllm_ask_for what_it_is = { .op = INFERSCALE_TICKET_DESCRIBE, .prompt = no_prompt, .n_prompt = 1 };

/* st: of the question. said is let go of. */
static is_status take_in(vllm *e, uint32_t i, is_status st, json_t *said, vllm_flags flags)
{
    vllm_model *m = NULL;

    if (st == INFERSCALE_OK) st = vllm_model_read(said, &m);
    json_decref(said);
    if (st == INFERSCALE_OK) return adopt(e, i, m);
    if (!e->model) st = name_gateway(e, i, flags, st); /* nobody has said yet what is served: the address may be a wrong one */
    if (st == INFERSCALE_E_CANCELLED) return st;
    pthread_mutex_lock(&e->lock);
    snprintf(e->up[i].why, sizeof e->up[i].why, "%s", is_error());
    pthread_mutex_unlock(&e->lock);
    return st;
}

is_status vllm_describe(vllm *e, uint32_t i, vllm_flags flags, uint32_t ms)
{
    vllm_ask_for a = what_it_is;
    json_t *said = NULL;
    is_status st = vllm_ticket_ask(e, i, &a, flags, ms, &said, NULL);

    return take_in(e, i, st, said, flags);
}

is_status vllm_describe_begin(vllm *e, uint32_t i, vllm_line *l, uint32_t ms, vllm_call **out)
{
    vllm_ask_for a = what_it_is;
    char *body = NULL;
    is_status st = vllm_ticket_body(e, &a, &body);

    *out = NULL;
    if (st == INFERSCALE_OK)
        st = vllm_call_open(l, e->up[i].url, "/v1/completions", body, VLLM_ANSWER_MAX, (vllm_patience){ vllm_limit.connect_ms, ms }, out);
    is_free(body);
    return st;
}

is_status vllm_describe_end(vllm *e, uint32_t i, vllm_call *c)
{
    json_t *answer = NULL, *said = NULL;
    bool retry;
    is_status st = vllm_call_json(c, &answer, &retry);

    if (st == INFERSCALE_OK) st = vllm_ticket_answer(answer, &said, NULL);
    json_decref(answer);
    if (st == INFERSCALE_E_DENIED) vllm_secret_again(e); /* the next question is signed with what it finds */
    return take_in(e, i, st, said, (vllm_flags){ &e->stopping, NULL });
}

void vllm_nap(uint32_t ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

    nanosleep(&t, NULL);
}

static is_status silent(const vllm_upstream *u)
{
    return is_fail(INFERSCALE_E_ENGINE, "%s has not said yet what it serves; see its log", u->url);
}

/* Waits until all calls have ended. Once one has, the others get GRACE_MS: one that hangs stops
 * none. */
static is_status wait_for_words(vllm_line *l, vllm_call *const *calls, uint32_t n, vllm_flags flags)
{
    double until = is_now_ms() + vllm_limit.small_ms;

    for (;;) {
        uint32_t pending = 0, ended = 0;

        for (uint32_t i = 0; i < n; i++) {
            if (!calls[i]) continue;
            pending += vllm_call_end(calls[i]) == VLLM_PENDING;
            ended += vllm_call_end(calls[i]) != VLLM_PENDING;
        }
        if (ended && until > is_now_ms() + GRACE_MS) until = is_now_ms() + GRACE_MS;
        if (!pending || is_now_ms() >= until) return INFERSCALE_OK;
        if (vllm_flagged(flags))
            return is_fail(INFERSCALE_E_CANCELLED, "called off while a vLLM server was waited for");
        vllm_line_wait(l, VLLM_POLL_MS);
    }
}

/* Asks all that have not said what they are, at once; their words count in the order of the
 * addresses. *st: the last failure of a server; *n_loading: servers that may answer later.
 * E_CANCELLED, E_NOMEM. */
static is_status describe_round(vllm *e, vllm_flags flags, is_status *st, uint32_t *n_loading)
{
    vllm_call *calls[VLLM_UPSTREAMS] = { 0 };
    vllm_line *l;
    is_status whole = INFERSCALE_OK;

    IS_TRY(vllm_line_take(e->http, &l));
    for (uint32_t i = 0; i < e->n_up && whole == INFERSCALE_OK; i++)
        if (e->up[i].state == VLLM_NEW)
            whole = vllm_describe_begin(e, i, l, vllm_limit.small_ms, &calls[i]);
    if (whole == INFERSCALE_OK) whole = wait_for_words(l, calls, e->n_up, flags);
    for (uint32_t i = 0; i < e->n_up && whole == INFERSCALE_OK; i++) {
        is_status own;

        if (!calls[i]) continue;
        own = vllm_call_end(calls[i]) == VLLM_PENDING ? silent(&e->up[i])
                                                      : vllm_describe_end(e, i, calls[i]);
        if (own != INFERSCALE_OK) *st = own;
        *n_loading += own == INFERSCALE_E_ENGINE || own == INFERSCALE_E_BUSY;
    }
    vllm_line_give(l);
    return whole;
}

/* At least one server must say what it is. Those that are not up yet are waited for; one that answers otherwise than a vLLM server
 * with our connector does is not. */
static is_status describe_all(vllm *e, uint32_t open_ms, const volatile int *cancel)
{
    double begin = is_now_ms(), said = begin;
    is_status st = INFERSCALE_OK;

    for (;;) {
        uint32_t n_ready = 0, n_loading = 0;

        IS_TRY(describe_round(e, (vllm_flags){ cancel, NULL }, &st, &n_loading));
        for (uint32_t i = 0; i < e->n_up; i++) n_ready += e->up[i].state == VLLM_READY;
        if (n_ready) return INFERSCALE_OK;
        if (cancel && __atomic_load_n(cancel, __ATOMIC_ACQUIRE))
            return is_fail(INFERSCALE_E_CANCELLED, "called off while a vLLM server was waited for");
        if (!n_loading || is_now_ms() - begin > open_ms) return st;
        if (is_now_ms() - said >= SAY_EVERY_MS || said == begin) {
            said = is_now_ms() + (said == begin);
            is_log(IS_LOG_INFO, "waiting for vLLM (%.0f s of %u s): %s", (is_now_ms() - begin) / 1000, open_ms / 1000, is_error());
        }
        vllm_nap(LOOK_EVERY_MS);
    }
}

/* ---- Open and close --------------------------------------------------------------------------------------------------------------- */

void vllm_close(void *impl)
{
    vllm *e = impl;

    if (!e) return;
    vllm_keeper_stop(e);
    is_chat_format_free(&e->chat);
    vllm_tokens_drop(e->tokens);
    vllm_heads_close(e->heads);
    for (uint32_t i = 0; i < e->n_up; i++) {
        is_free(e->up[i].url);
        is_free(e->up[i].pending);
    }
    vllm_model_free(e->model);
    vllm_http_free(e->http);
    is_free(e->attempts);
    vllm_arrivals_free(e);
    vllm_spool_close(e);
    vllm_seen_close(e);
    is_free(e->floors);
    is_free(e->dir);
    is_free(e->home);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->lock);
    vllm_secret_close(e);
    pthread_mutex_destroy(&e->secret.lock);
    is_free(e);
}

static is_status open_all(vllm *e, const is_engine_opts *opts)
{
    IS_TRY(add_urls(e, opts->model_path));
    IS_TRY(make_folders(e, opts->home));
    IS_TRY(vllm_secret_open(e));
    IS_TRY(vllm_seen_open(e));
    IS_TRY(vllm_spool_open(e));
    IS_TRY(vllm_arrivals_new(e));
    IS_TRY(vllm_http_new(opts->key, &e->http));
    IS_TRY(vllm_tokens_new(&e->tokens));
    IS_TRY(describe_all(e, opts->open_ms ? opts->open_ms : vllm_limit.open_ms, opts->cancel));
    if (opts->n_ctx && opts->n_ctx < e->model->n_ctx) e->model->n_ctx = opts->n_ctx;
    IS_TRY(vllm_heads_open(e, &e->heads));
    IS_TRY(vllm_chat_find(e));
    return vllm_keeper_start(e);
}

is_status vllm_open(const is_engine_opts *opts, void **impl)
{
    pthread_condattr_t attr;
    vllm *e = is_calloc(1, sizeof *e);
    is_status st;

    *impl = NULL;
    if (!e) return vllm_no_memory();
    e->attempts = is_calloc(VLLM_ATTEMPTS, sizeof *e->attempts);
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->secret.lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attr);
    pthread_condattr_destroy(&attr);
    st = e->attempts ? open_all(e, opts) : vllm_no_memory();
    if (st != INFERSCALE_OK) {
        vllm_close(e);
        return st;
    }
    *impl = e;
    return INFERSCALE_OK;
}
