/* http_reply.c - what is replied: whole, as an error in the route's face, or as a stream. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "api/answer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "serve/http_in.h"
#include "serve/log.h"
#include "serve/upstreams.h"

enum { UPSTREAM_RETRY_S = 2 }; /* they are looked at every second */

/* ---- Headers ------------------------------------------------------------------------------------------------------------- */

static bool good_header(const char *name, const char *value)
{
    if (!*name || !*value) return false;
    for (const char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '-' && *p != '_') return false;
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) return false;
    return true;
}

/* Copies of at most so many bytes behind those of the list. Where it is full, or memory out, the reply goes without. Under r->lock. */
static void add_pair(pair *list, size_t *n, size_t cap, const char *name, size_t name_max, const char *value, size_t value_max)
{
    if (*n == cap) return;
    pair p = { is_strndup(name, name_max), is_strndup(value, value_max) };
    if (p.name && p.value) {
        list[(*n)++] = p;
        return;
    }
    is_free((void *)(uintptr_t)p.name);
    is_free((void *)(uintptr_t)p.value);
}

void is_reply_header(is_request *r, const char *name, const char *value)
{
    pthread_mutex_lock(&r->lock);
    if (!r->replied && good_header(name, value))
        add_pair(r->out, &r->n_out, HTTP_OUT_HEADERS, name, SIZE_MAX, value, SIZE_MAX);
    pthread_mutex_unlock(&r->lock);
}

static bool has_out(const is_request *r, const char *name)
{
    for (size_t i = 0; i < r->n_out; i++)
        if (strcasecmp(r->out[i].name, name) == 0) return true;
    return false;
}

/* The page's scripts read across origins only where `cors` says so. */
static void add_cors(const is_request *r, struct MHD_Response *m)
{
    const char *allowed = r->server->config->cors, *origin = is_request_header(r, "Origin");
    if (!allowed || !*allowed) return;
    MHD_add_response_header(m, "Vary", "Origin");
    if (!origin || (strcmp(allowed, "*") != 0 && strcasecmp(allowed, origin) != 0)) return;
    MHD_add_response_header(m, "Access-Control-Allow-Origin", strcmp(allowed, "*") == 0 ? "*" : origin);
    MHD_add_response_header(m, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

static void add_headers(is_request *r, struct MHD_Response *m, const char *type)
{
    if (type) MHD_add_response_header(m, "Content-Type", type);
    MHD_add_response_header(m, "X-Request-Id", r->id);
    MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    if (!has_out(r, "Cache-Control")) MHD_add_response_header(m, "Cache-Control", "no-store");
    add_cors(r, m);
    for (size_t i = 0; i < r->n_out; i++) MHD_add_response_header(m, r->out[i].name, r->out[i].value);
}

/* ---- Whole replies ------------------------------------------------------------------------------------------------------- */

/* Lets libmicrohttpd go on with the connection. Under r->lock. */
static void wake(is_request *r)
{
    if (!r->suspended) return;
    r->suspended = false;
    MHD_resume_connection(r->con);
}

/* Takes the response; the first reply counts. */
static void reply(is_request *r, int status, const char *type, struct MHD_Response *m, uint64_t bytes)
{
    if (!m) {
        static char sorry[] = "{\"error\":{\"message\":\"out of memory; try again "
                              "later\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
        m = MHD_create_response_from_buffer(sizeof sorry - 1, sorry, MHD_RESPMEM_PERSISTENT);
        status = 500;
        type = "application/json";
        bytes = sizeof sorry - 1;
    }
    pthread_mutex_lock(&r->lock);
    if (r->replied) {
        pthread_mutex_unlock(&r->lock);
        if (m) MHD_destroy_response(m);
        is_serve_log(IS_LOG_ERROR, "request %s was replied to twice; this is a fault of ours", r->id);
        return;
    }
    if (m) add_headers(r, m, type);
    r->response = m; /* NULL: there is no memory even for that; the connection ends */
    r->status = status;
    r->replied = true;
    r->bytes_out = r->head ? 0 : bytes;
    wake(r);
    pthread_mutex_unlock(&r->lock);
}

void is_reply_bytes(is_request *r, int status, const char *type, const void *data, size_t len)
{
    void *copy = is_malloc(len + 1);
    struct MHD_Response *m = NULL;
    if (copy && len) memcpy(copy, data, len);
    if (copy) m = MHD_create_response_from_buffer_with_free_callback(len, copy, is_free);
    if (!m) is_free(copy);
    reply(r, status, type, m, len);
}

/* JSON is written here, not by jansson: whose strings are made by is_malloc or malloc, as the program says. */
typedef struct text {
    char *p;
    size_t n, cap;
    bool failed;
} text;

static int add_text(const char *p, size_t n, void *ctx)
{
    text *t = ctx;
    if (t->n + n > t->cap) {
        size_t cap = (t->n + n) * 2 + 256;
        char *more = is_realloc(t->p, cap);
        if (!more) return -1;
        t->p = more;
        t->cap = cap;
    }
    memcpy(t->p + t->n, p, n);
    t->n += n;
    return 0;
}

void is_reply_json(is_request *r, int status, json_t *body)
{
    text t = { 0 };
    struct MHD_Response *m = NULL;
    if (body && json_dump_callback(body, add_text, &t, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) == 0)
        m = MHD_create_response_from_buffer_with_free_callback(t.n, t.p, is_free);
    if (!m) is_free(t.p);
    reply(r, status, "application/json", m, t.n);
    json_decref(body);
}

/* Text of an error may quote what was sent: what is no UTF-8 would leave no error at all. */
static json_t *error_text(char *s)
{
    size_t bad;
    while (!is_utf8_valid(s, strlen(s), &bad)) s[bad] = '?';
    return json_string(s);
}

static json_t *error_body(const is_request *r, const char *type, const char *code, const char *param, char *message)
{
    if (r->route ? r->route->face == IS_FACE_MEMORY : is_face_of_path(r->path) == IS_FACE_MEMORY)
        return json_pack("{s:o}", "detail", error_text(message));
    return json_pack("{s:{s:o,s:s,s:s?,s:s?}}", "error", "message", error_text(message), "type", type, "param", param, "code",
                     code);
}

void is_reply_error(is_request *r, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
{
    char message[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    is_reply_json(r, status, error_body(r, type, code, param, message));
}

static void retry_after(is_request *r, uint32_t seconds)
{
    char s[16];
    snprintf(s, sizeof s, "%u", seconds);
    is_reply_header(r, "Retry-After", s);
}

/* Why it was cancelled though its client waits; NULL: it was not. */
static const char *cancelled_code(const is_request *r, char message[160])
{
    int why = __atomic_load_n(&r->cancel, __ATOMIC_RELAXED);
    if (why == CANCEL_TIME) {
        snprintf(message, 160, "it took longer than generate_s = %u seconds; ask for fewer tokens",
                 r->server->config->generate_s);
        return "timeout";
    }
    if (why != CANCEL_ENDING) return NULL;
    snprintf(message, 160, "the server is ending; ask again later");
    return "server_ending";
}

static void reply_cancelled(is_request *r, const char *param, const char *said)
{
    char message[160];
    const char *code = cancelled_code(r, message);
    if (!code) {
        is_reply_error(r, 499, "server_error", "cancelled", param, "%s", said);
    } else if (strcmp(code, "timeout") == 0) {
        is_reply_error(r, 504, "server_error", code, param, "%s", message);
    } else {
        retry_after(r, 5);
        is_reply_error(r, 503, "server_error", code, param, "%s", message);
    }
}

static bool is_upstream_failure(const is_server *s, inferscale_status st)
{
    return st == INFERSCALE_E_ENGINE && is_upstreams_compute(s->is);
}

const char *is_error_code(const is_server *s, inferscale_status st)
{
    switch (st) {
    case INFERSCALE_OK:
    case INFERSCALE_E_INVALID:
    case INFERSCALE_E_PARSE:
    case INFERSCALE_E_DENIED: return NULL;
    case INFERSCALE_E_NOMEM: return "out_of_memory";
    case INFERSCALE_E_FULL:
    case INFERSCALE_E_READONLY: return "insufficient_storage";
    case INFERSCALE_E_NOTFOUND: return "not_found";
    case INFERSCALE_E_BUSY: return "busy";
    case INFERSCALE_E_STALE: return "changed_meanwhile";
    case INFERSCALE_E_CONTEXT: return "context_length_exceeded";
    case INFERSCALE_E_UNSUPPORTED: return "unsupported";
    case INFERSCALE_E_CANCELLED: return "cancelled";
    case INFERSCALE_E_ENGINE: return is_upstream_failure(s, st) ? "upstream_unavailable" : "engine_failed";
    case INFERSCALE_E_CORRUPT: return "store_damaged";
    case INFERSCALE_E_IO: return "io_failed";
    case INFERSCALE_E_TRACE: return "trace_found";
    default: return "internal_error";
    }
}

/* The client's own fault: its sentence is of what it sent, and names paths of the API. */
static bool is_clients_fault(inferscale_status st)
{
    return st == INFERSCALE_E_INVALID || st == INFERSCALE_E_PARSE || st == INFERSCALE_E_UNSUPPORTED || st == INFERSCALE_E_CONTEXT;
}

/* A failure at a server says more of it than its URL (host and port in the words of libcurl): nothing of such a sentence is told. */
const char *is_told_of(const is_server *s, inferscale_status st, const char *said, char out[IS_TOLD_BYTES])
{
    const bool names_server = strstr(said, "://") != NULL;
    is_buf b = IS_BUF_INIT;

    if (!s->keys || (is_clients_fault(st) && !names_server)) return said;
    if (is_upstream_failure(s, st)) return "no server that computes answers could take the request; try again in a moment";
    if (names_server && !is_clients_fault(st) && st != INFERSCALE_E_BUSY)
        return "a server that this one needs did not do its part; try again in a moment";
    is_add_without_places(&b, said);
    snprintf(out, IS_TOLD_BYTES, "%.*s", is_buf_ok(&b) ? (int)b.len : 0, b.len ? (const char *)b.data : "");
    is_buf_free(&b);
    return out;
}

const char *is_error_message(const is_server *s, inferscale_status st, const char *said, char out[IS_TOLD_BYTES])
{
    const char *told = is_told_of(s, st, said, out);

    if (strcmp(told, said) != 0) is_serve_log(IS_LOG_WARN, "a request failed: %s", said);
    return told;
}

void is_reply_failed(is_request *r, inferscale_status st, const char *param)
{
    char told[IS_TOLD_BYTES];
    const char *said = is_error_message(r->server, st, inferscale_error(), told), *code = is_error_code(r->server, st);
    switch (st) {
    case INFERSCALE_E_INVALID:
    case INFERSCALE_E_PARSE:
    case INFERSCALE_E_UNSUPPORTED:
    case INFERSCALE_E_CONTEXT:
        is_reply_error(r, 400, "invalid_request_error", code, param, "%s", said);
        return;
    case INFERSCALE_E_DENIED:
        is_reply_error(r, 403, "permission_error", code, param, "%s", said);
        return;
    case INFERSCALE_E_NOTFOUND:
        is_reply_error(r, 404, "not_found_error", code, param, "%s", said);
        return;
    case INFERSCALE_E_BUSY:
    case INFERSCALE_E_STALE: /* whoever changes memory without a pause leaves no time to answer from it: nothing is broken */
        retry_after(r, is_pool_retry_s(&r->http->engine));
        is_reply_error(r, 429, "rate_limit_error", code, param, "%s", said);
        return;
    case INFERSCALE_E_FULL:
    case INFERSCALE_E_READONLY:
        is_reply_error(r, 507, "server_error", code, param, "%s", said);
        return;
    case INFERSCALE_E_CANCELLED:
        reply_cancelled(r, param, said);
        return;
    default:
        if (is_upstream_failure(r->server, st)) retry_after(r, UPSTREAM_RETRY_S);
        is_reply_error(r, is_upstream_failure(r->server, st) ? 503 : 500, "server_error", code, param, "%s", said);
    }
}

void is_request_finish(is_request *r)
{
    pthread_mutex_lock(&r->lock);
    bool forgotten = !r->replied;
    r->handled = true;
    if (r->streaming && !r->ended) { /* the client must not take what it has for the whole */
        r->ended = r->aborted = true;
        wake(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (forgotten)
        is_reply_error(r, 500, "server_error", NULL, NULL,
                       "the server forgot to reply; please report it with this request's id");
}

void is_request_refused(is_request *r, const char *why)
{
    if (r->server->metrics) is_metric_add(r->server->metrics, IS_M_HTTP_REFUSED, why, NULL, 1);
    is_request_note(r, "refused", why);
}

void is_request_note(is_request *r, const char *key, const char *value)
{
    if (!key || !value) return;
    pthread_mutex_lock(&r->lock);
    add_pair(r->notes, &r->n_notes, HTTP_NOTES, key, 40, value, 120);
    pthread_mutex_unlock(&r->lock);
}

void is_request_cancel_for(is_request *r, int why)
{
    int none = CANCEL_NO;
    __atomic_compare_exchange_n(&r->cancel, &none, why, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    pthread_mutex_lock(&r->lock);
    pthread_cond_broadcast(&r->room);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Streams ------------------------------------------------------------------------------------------------------------- */

/* libmicrohttpd asks for bytes. What is empty and not over is put to sleep; whoever writes wakes it. */
static ssize_t read_stream(void *ctx, uint64_t pos, char *to, size_t max)
{
    is_request *r = ctx;
    ssize_t got = 0;
    pthread_mutex_lock(&r->lock);
    if (r->ring_n) {
        size_t n = r->ring_n < max ? r->ring_n : max, end = HTTP_STREAM - r->ring_at, first = n < end ? n : end;
        memcpy(to, r->ring + r->ring_at, first);
        memcpy(to + first, r->ring, n - first);
        r->ring_at = (r->ring_at + n) % HTTP_STREAM;
        r->ring_n -= n;
        r->bytes_out += n;
        r->taken_ms = is_now_ms();
        pthread_cond_broadcast(&r->room);
        got = (ssize_t)n;
    } else if (r->ended) {
        got = r->aborted ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->con);
    }
    pthread_mutex_unlock(&r->lock);
    return got;
}

static void free_stream(void *ctx) { is_request_unref(ctx); }

static bool begin(is_request *r, int status, const char *type)
{
    if (r->closed) return false; /* nobody would take the response, nor let go of it */
    r->ring = is_malloc(HTTP_STREAM);
    if (!r->ring) return false;
    r->response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, r, free_stream);
    if (!r->response) return false;
    r->refs++; /* the response's */
    if (strncmp(type, "text/event-stream", 17) == 0) {
        r->sse = true;
        MHD_add_response_header(r->response, "X-Accel-Buffering", "no"); /* proxies are to pass it on as it comes */
    }
    add_headers(r, r->response, type);
    r->status = status;
    r->replied = r->streaming = r->boundary = true;
    r->wrote_ms = r->taken_ms = is_now_ms();
    if (r->head) r->ended = true;
    wake(r);
    return true;
}

bool is_stream_begin(is_request *r, int status, const char *type)
{
    bool ok = false, again, closed;
    pthread_mutex_lock(&r->lock);
    again = r->replied;
    closed = r->closed;
    if (!again) ok = begin(r, status, type);
    pthread_mutex_unlock(&r->lock);
    if (!ok && !again) is_reply_json(r, closed ? 499 : 500, NULL);
    return ok;
}

/* Under r->lock: waits for room until somebody reads, the time is over or nobody will. */
static bool wait_for_room(is_request *r, double since)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 50 * 1000 * 1000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&r->room, &r->lock, &t);
    double last = r->taken_ms > since ? r->taken_ms : since, slow = r->http->tune.slow_ms;
    if ((r->route->flags & IS_ROUTE_ENGINE) && is_pool_others_wait(&r->http->engine, r)) slow /= HTTP_HURRY; /* it keeps a worker from them */
    return is_now_ms() - last < slow;
}

static bool gone(const is_request *r)
{
    return r->closed || r->ended || __atomic_load_n(&r->cancel, __ATOMIC_RELAXED) != CANCEL_NO;
}

/* n bytes, for which there is room. */
static void put(is_request *r, const char *p, size_t n)
{
    size_t at = (r->ring_at + r->ring_n) % HTTP_STREAM, end = HTTP_STREAM - at, first = n < end ? n : end;
    memcpy(r->ring + at, p, first);
    memcpy(r->ring, p + first, n - first);
    r->ring_n += n;
    r->wrote_ms = is_now_ms();
    r->boundary = n >= 2 ? p[n - 1] == '\n' && p[n - 2] == '\n' : false;
    wake(r);
}

bool is_stream_write(is_request *r, const void *data, size_t len)
{
    const char *p = data;
    double since = is_now_ms();
    bool slow = false;
    pthread_mutex_lock(&r->lock);
    while (r->streaming && len && !slow && !gone(r)) {
        size_t room = HTTP_STREAM - r->ring_n, n = len < room ? len : room;
        if (n == 0) {
            slow = !wait_for_room(r, since);
            continue;
        }
        put(r, p, n);
        p += n;
        len -= n;
    }
    bool ok = r->streaming && !slow && !gone(r);
    pthread_mutex_unlock(&r->lock);
    if (slow) {
        is_request_note(r, "cut", "the client read too slowly");
        is_request_cancel_for(r, CANCEL_HUNG_UP);
        is_conn_cut(r);
    }
    return ok;
}

void is_stream_end(is_request *r)
{
    pthread_mutex_lock(&r->lock);
    if (r->streaming && !r->ended) {
        r->ended = true;
        wake(r);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Steals v. */
static bool add_event(json_t *v, text *t)
{
    bool ok = v && add_text("data: ", 6, t) == 0 &&
              json_dump_callback(v, add_text, t, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) == 0 &&
              add_text("\n\n", 2, t) == 0;
    json_decref(v);
    return ok;
}

bool is_stream_event(is_request *r, json_t *v)
{
    text t = { 0 };
    bool ok = add_event(v, &t) && is_stream_write(r, t.p, t.n);
    is_free(t.p);
    return ok;
}

void is_stream_end_cancelled(is_request *r)
{
    char message[160];
    const char *code = cancelled_code(r, message);
    text t = { 0 };
    if (!code || !r->sse || !add_event(error_body(r, "server_error", code, NULL, message), &t)) {
        is_free(t.p);
        return;
    }
    pthread_mutex_lock(&r->lock);
    if (r->streaming && !r->ended && !r->closed && r->boundary && t.n <= HTTP_STREAM - r->ring_n) {
        put(r, t.p, t.n);
        r->ended = true;
    }
    pthread_mutex_unlock(&r->lock);
    is_free(t.p);
}

void is_request_ping(is_request *r, double now)
{
    static const char ping[] = ": ping\n\n";
    pthread_mutex_lock(&r->lock);
    /* Between two events only, and never to somebody who is behind: the ring is empty. */
    if (r->streaming && r->sse && !gone(r) && r->boundary && r->ring_n == 0 && now - r->wrote_ms >= r->http->tune.ping_ms) {
        for (size_t i = 0; i < sizeof ping - 1; i++) r->ring[(r->ring_at + i) % HTTP_STREAM] = ping[i];
        r->ring_n = sizeof ping - 1;
        r->wrote_ms = now;
        wake(r);
    }
    pthread_mutex_unlock(&r->lock);
}
