/* load.c - see load.h. libcurl's multi interface drives all requests from one thread, so that a measurement on one core is not one
 * of thread switches. */
#include "eval/load.h"

#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "eval/load_events.h"
#include "eval/stats.h"

enum { POLL_MS = 100, IN_FLIGHT_MAX = 4096, CONNECT_S = 10, PATIENCE = 5 };

/* One request under way. The window owns these; a slot is used again for the next request, with its connection. */
typedef struct slot {
    struct window *w;
    CURL *easy;
    size_t sample;
    load_events events;
    char *body;
    is_buf refused;            /* what came with another status than 200 */
    double sent_ms;
    bool busy;
} slot;

typedef struct window {
    const load_options *o;
    load_result *r;
    CURLM *multi;
    struct curl_slist *headers;
    char endpoint[600];
    slot **slots;
    size_t n_slots, n_busy;
    double begin_ms, *due_ms;  /* due_ms[n]: open loop, since the begin */
    uint32_t n_begun;
    bool stopped;
    is_status st;
} window;

/* ---- Addresses ----------------------------------------------------------------------------------------------------------- */

static is_status join(const char *url, const char *path, char *out, size_t cap)
{
    size_t n = strlen(url);

    while (n && url[n - 1] == '/') n--;
    if (n > 3 && memcmp(url + n - 3, "/v1", 3) == 0) n -= 3;
    if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
        return is_fail(INFERSCALE_E_INVALID, "\"%.100s\" is no address of a server; give it as http://HOST:PORT", url);
    if ((size_t)snprintf(out, cap, "%.*s%s", (int)n, url, path) >= cap)
        return is_fail(INFERSCALE_E_INVALID, "the server's address is too long (%zu bytes)", strlen(url));
    return INFERSCALE_OK;
}

static is_status make_headers(const char *key, struct curl_slist **out)
{
    char line[600];
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json"), *more = list;

    if (more) more = curl_slist_append(list, "Expect:"); /* a request is sent whole, without asking first */
    if (more && key && *key) {
        snprintf(line, sizeof line, "Authorization: Bearer %.500s", key);
        more = curl_slist_append(list, line);
    }
    if (!more) curl_slist_free_all(list);
    *out = more ? list : NULL;
    return more ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while making a request");
}

/* ---- What arrives -------------------------------------------------------------------------------------------------------- */

static size_t on_bytes(char *data, size_t size, size_t n, void *ctx)
{
    slot *s = ctx;
    load_sample *to = &s->w->r->samples[s->sample];

    n *= size;
    if (to->status == 0) curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &to->status);
    if (to->status != 200) {
        is_buf_add(&s->refused, data, n);
        return n;
    }
    return load_events_feed(&s->events, data, n, is_now_ms() - s->sent_ms, to) ? n : 0;
}

/* ---- Beginning and ending requests --------------------------------------------------------------------------------------- */

static is_status new_slot(window *w, slot **out)
{
    slot **grown = is_realloc(w->slots, (w->n_slots + 1) * sizeof *grown), *s;

    if (grown) w->slots = grown;
    s = grown ? is_calloc(1, sizeof *s) : NULL;
    if (!s || !(s->easy = curl_easy_init())) {
        is_free(s);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu requests at once", w->n_slots + 1);
    }
    s->w = w;
    s->refused.max = 1 << 16;
    curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    curl_easy_setopt(s->easy, CURLOPT_URL, w->endpoint);
    curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, w->headers);
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(s->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(s->easy, CURLOPT_NOPROXY, "*"); /* what is measured is the server, not a proxy on the way */
    curl_easy_setopt(s->easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(s->easy, CURLOPT_TCP_NODELAY, 1L);
    w->slots[w->n_slots++] = *out = s;
    return INFERSCALE_OK;
}

static slot *free_slot(window *w)
{
    for (size_t i = 0; i < w->n_slots; i++)
        if (!w->slots[i]->busy) return w->slots[i];
    return NULL;
}

/* late_ms: how long ago it was due. */
static is_status begin(window *w, uint32_t user, double late_ms)
{
    load_result *r = w->r;
    load_sample *to = &r->samples[r->n];
    slot *s = free_slot(w);

    if (!s) IS_TRY(new_slot(w, &s));
    s->body = w->o->body(w->o->ctx, w->n_begun, user);
    if (!s->body) return is_fail(INFERSCALE_E_NOMEM, "out of memory while making a request");
    s->sample = r->n++;
    s->sent_ms = is_now_ms() - late_ms;
    s->busy = true;
    load_events_reset(&s->events);
    is_buf_clear(&s->refused);
    *to = (load_sample){ .number = w->n_begun++, .user = user, .begun_ms = s->sent_ms - w->begin_ms };
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE, (long)strlen(s->body));
    w->n_busy++;
    if (curl_multi_add_handle(w->multi, s->easy) != CURLM_OK) return is_fail(INFERSCALE_E_NOMEM, "out of memory while sending a request");
    return INFERSCALE_OK;
}

static void leave(window *w, slot *s)
{
    curl_multi_remove_handle(w->multi, s->easy);
    is_free(s->body);
    s->body = NULL;
    s->busy = false;
    w->n_busy--;
}

static void say_refused(const slot *s, load_sample *to)
{
    json_t *o = s->refused.len ? json_loadb((const char *)s->refused.data, s->refused.len, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(json_object_get(o, "error"), "message"));

    if (!why) why = json_string_value(json_object_get(o, "detail"));
    snprintf(to->error, sizeof to->error, "HTTP %ld%s%.150s", to->status, why ? ": " : "", why ? why : "");
    json_decref(o);
}

static void end(window *w, slot *s, CURLcode code)
{
    load_sample *to = &w->r->samples[s->sample];

    to->e2el_ms = is_now_ms() - s->sent_ms;
    if (to->status == 0) curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &to->status);
    if (to->status && to->status != 200) say_refused(s, to);
    else if (code != CURLE_OK && !to->error[0]) snprintf(to->error, sizeof to->error, "%.190s", curl_easy_strerror(code));
    else if (!s->events.done && !to->error[0]) snprintf(to->error, sizeof to->error, "the stream ended without [DONE]");
    else if (!to->finish[0] && !to->error[0]) snprintf(to->error, sizeof to->error, "no finish_reason came");
    to->completed = !to->error[0];
    w->r->n_completed += to->completed;
    w->r->n_failed += !to->completed;
    w->r->seconds = (is_now_ms() - w->begin_ms) / 1000;
    leave(w, s);
    if (w->o->on_done && !w->o->on_done(w->o->ctx, to)) w->stopped = true;
}

/* ---- The window ---------------------------------------------------------------------------------------------------------- */

static is_status make_due(window *w)
{
    rng r = rng_stream(w->o->seed, 0x10ad, (uint64_t)(w->o->rate * 1000));
    double at = 0;

    w->due_ms = is_malloc((w->o->n + 1) * sizeof *w->due_ms);
    if (!w->due_ms) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u requests", w->o->n);
    for (uint32_t i = 0; i < w->o->n; i++) {
        w->due_ms[i] = at;
        at += -log(1 - rng_unit(&r)) * 1000 / w->o->rate;
    }
    w->r->offered = w->o->n > 1 && w->due_ms[w->o->n - 1] > 0 ? (w->o->n - 1) / w->due_ms[w->o->n - 1] * 1000 : w->o->rate;
    return INFERSCALE_OK;
}

/* Open loop: begins what is due. */
static is_status begin_due(window *w)
{
    double now = is_now_ms() - w->begin_ms;

    while (!w->stopped && w->n_begun < w->o->n && w->due_ms[w->n_begun] <= now && w->n_busy < IN_FLIGHT_MAX) {
        IS_TRY(begin(w, w->n_begun % w->o->users, now - w->due_ms[w->n_begun]));
        now = is_now_ms() - w->begin_ms;
    }
    return INFERSCALE_OK;
}

static int wait_ms(const window *w)
{
    double ms = POLL_MS;

    if (w->due_ms && w->n_begun < w->o->n) ms = w->due_ms[w->n_begun] - (is_now_ms() - w->begin_ms);
    return ms < 0 ? 0 : ms > POLL_MS ? POLL_MS : (int)ms;
}

static is_status reap(window *w)
{
    CURLMsg *m;
    int left;

    while ((m = curl_multi_info_read(w->multi, &left)) != NULL) {
        CURLcode code = m->data.result;
        char *of = NULL;
        uint32_t user;

        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &of);
        user = w->r->samples[((slot *)of)->sample].user;
        end(w, (slot *)of, code);
        if (!w->due_ms && !w->stopped && w->n_begun < w->o->n) IS_TRY(begin(w, user, 0));
    }
    return INFERSCALE_OK;
}

static bool time_is_over(const window *w)
{
    double s = (is_now_ms() - w->begin_ms) / 1000, max = w->o->seconds_max;

    return max > 0 && s > max && (w->r->n_completed >= w->o->n_min || s > PATIENCE * max);
}

static is_status turn(window *w)
{
    int running;

    w->begin_ms = is_now_ms();
    for (uint32_t u = 0; !w->due_ms && u < w->o->users && u < w->o->n; u++) IS_TRY(begin(w, u, 0));
    for (;;) {
        if (w->o->cancel && *w->o->cancel) return is_fail(INFERSCALE_E_CANCELLED, "cancelled");
        if (w->due_ms) IS_TRY(begin_due(w));
        if (curl_multi_perform(w->multi, &running) != CURLM_OK) return is_fail(INFERSCALE_E_IO, "the requests cannot be driven any more");
        IS_TRY(reap(w));
        if (w->stopped || time_is_over(w)) return INFERSCALE_OK;
        if (w->n_busy == 0 && w->n_begun >= w->o->n) return INFERSCALE_OK;
        if (curl_multi_poll(w->multi, NULL, 0, wait_ms(w), NULL) != CURLM_OK) return is_fail(INFERSCALE_E_IO, "waiting for the server failed");
    }
}

/* What is still under way when the window is over: its time counts, its answers do not. */
static void cut(window *w)
{
    if (w->n_busy) w->r->seconds = (is_now_ms() - w->begin_ms) / 1000;
    for (size_t i = 0; i < w->n_slots; i++) {
        slot *s = w->slots[i];

        if (!s->busy) continue;
        w->r->samples[s->sample].cut = true;
        w->r->samples[s->sample].e2el_ms = is_now_ms() - s->sent_ms;
        w->r->n_cut++;
        leave(w, s);
    }
}

static void close_window(window *w)
{
    if (w->r) cut(w);
    for (size_t i = 0; i < w->n_slots; i++) {
        curl_easy_cleanup(w->slots[i]->easy);
        load_events_free(&w->slots[i]->events);
        is_buf_free(&w->slots[i]->refused);
        is_free(w->slots[i]);
    }
    is_free(w->slots);
    is_free(w->due_ms);
    if (w->multi) curl_multi_cleanup(w->multi);
    curl_slist_free_all(w->headers);
}

is_status load_run(const load_options *o, load_result *out)
{
    window w = { .o = o, .r = out };
    is_status st = INFERSCALE_OK;

    memset(out, 0, sizeof *out);
    if (o->n == 0 || o->users == 0) return is_fail(INFERSCALE_E_INVALID, "a load needs at least one user and one request");
    out->samples = is_calloc(o->n, sizeof *out->samples);
    if (!out->samples) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u requests", o->n);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || !(w.multi = curl_multi_init()))
        IS_TRY_GOTO(st, done, is_fail(INFERSCALE_E_NOMEM, "libcurl cannot be started; free some memory"));
    curl_multi_setopt(w.multi, CURLMOPT_MAXCONNECTS, (long)(o->users < IN_FLIGHT_MAX ? o->users + 1 : IN_FLIGHT_MAX));
    IS_TRY_GOTO(st, done, join(o->url, "/v1/chat/completions", w.endpoint, sizeof w.endpoint));
    IS_TRY_GOTO(st, done, make_headers(o->key, &w.headers));
    if (o->rate > 0) IS_TRY_GOTO(st, done, make_due(&w));
    IS_TRY_GOTO(st, done, turn(&w));
done:
    close_window(&w);
    if (st != INFERSCALE_OK) load_result_free(out);
    return st;
}

void load_result_free(load_result *r)
{
    for (size_t i = 0; i < r->n; i++) load_sample_free(&r->samples[i]);
    is_free(r->samples);
    memset(r, 0, sizeof *r);
}

/* ---- Single calls -------------------------------------------------------------------------------------------------------- */

static size_t keep(char *data, size_t size, size_t n, void *ctx)
{
    is_buf_add(ctx, data, size * n);
    return is_buf_ok(ctx) ? size * n : 0;
}

is_status load_call(const char *url, const char *key, const char *method, const char *path, const json_t *body, long *status, json_t **out)
{
    struct curl_slist *headers = NULL;
    is_buf reply = { .max = 64 << 20 };
    char *sent = body ? json_dumps(body, JSON_COMPACT) : NULL, address[900];
    CURL *easy = curl_easy_init();
    CURLcode code;
    is_status st;

    *status = 0;
    *out = NULL;
    if (!easy || (body && !sent)) IS_TRY_GOTO(st, done, is_fail(INFERSCALE_E_NOMEM, "out of memory while asking %.100s", url));
    IS_TRY_GOTO(st, done, join(url, path, address, sizeof address));
    IS_TRY_GOTO(st, done, make_headers(key, &headers));
    curl_easy_setopt(easy, CURLOPT_URL, address);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &reply);
    if (sent) curl_easy_setopt(easy, CURLOPT_POSTFIELDS, sent);
    code = curl_easy_perform(easy);
    if (code != CURLE_OK)
        IS_TRY_GOTO(st, done, is_fail(INFERSCALE_E_IO, "%s does not answer (%s); is the server running?", address, curl_easy_strerror(code)));
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, status);
    if (reply.len) *out = json_loadb((const char *)reply.data, reply.len, JSON_DECODE_ANY, NULL);
    st = INFERSCALE_OK;
done:
    curl_slist_free_all(headers);
    if (easy) curl_easy_cleanup(easy);
    free(sent);
    is_buf_free(&reply);
    return st;
}
