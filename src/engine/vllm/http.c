/* http.c - libcurl, kept on a short lead. */
#include "engine/vllm/http.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { IDLE_LINES = 16, KEPT_CONNECTIONS = 8 };

struct vllm_http {
    pthread_mutex_t lock;
    struct curl_slist *headers;     /* read only once made */
    vllm_line *idle;
    uint32_t n_idle;
};

struct vllm_line {
    vllm_http *http;
    CURLM *multi;
    vllm_call *calls;
    vllm_line *next;                /* idle */
    bool moved;                     /* something came or ended since the wait began */
    double left_ms;                 /* when it was last waited on */
};

struct vllm_call {
    vllm_line *line;
    vllm_call *next;
    CURL *curl;
    char *url;
    is_buf body;
    vllm_end end;
    CURLcode rc;
    vllm_patience patience;
    double last_ms;                 /* when something last came */
    char error[CURL_ERROR_SIZE];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode init_code;

static void init(void)
{
    init_code = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for a request to vLLM; free some and try again");
}

/* ---- The key and the lines ----------------------------------------------------------------------------------------------- */

static bool add_header(vllm_http *h, const char *line)
{
    struct curl_slist *list = curl_slist_append(h->headers, line);

    if (list) h->headers = list;
    return list != NULL;
}

static is_status set_headers(vllm_http *h, const char *key)
{
    is_buf line = IS_BUF_INIT;
    bool ok = add_header(h, "Content-Type: application/json") && add_header(h, "Expect:");

    for (const char *s = key ? key : ""; *s; s++)
        if ((unsigned char)*s < 0x21 || (unsigned char)*s > 0x7e)
            return is_fail(INFERSCALE_E_INVALID, "vLLM's API key holds a blank or a control character; check where it is read from");
    if (ok && key && *key) {
        is_buf_fmt(&line, "Authorization: Bearer %s", key);
        ok = is_buf_ok(&line) && add_header(h, (const char *)line.data);
    }
    is_buf_free(&line);
    return ok ? INFERSCALE_OK : no_memory();
}

is_status vllm_http_new(const char *key, vllm_http **out)
{
    vllm_http *h;
    is_status st;

    *out = NULL;
    pthread_once(&once, init);
    if (init_code != CURLE_OK) return no_memory();
    h = is_calloc(1, sizeof *h);
    if (!h) return no_memory();
    pthread_mutex_init(&h->lock, NULL);
    st = set_headers(h, key);
    if (st != INFERSCALE_OK) {
        vllm_http_free(h);
        return st;
    }
    *out = h;
    return INFERSCALE_OK;
}

static void free_line(vllm_line *l)
{
    if (l->multi) curl_multi_cleanup(l->multi);
    is_free(l);
}

void vllm_http_free(vllm_http *h)
{
    if (!h) return;
    while (h->idle) {
        vllm_line *l = h->idle;

        h->idle = l->next;
        free_line(l);
    }
    curl_slist_free_all(h->headers);
    pthread_mutex_destroy(&h->lock);
    is_free(h);
}

is_status vllm_line_take(vllm_http *h, vllm_line **out)
{
    vllm_line *l;

    pthread_mutex_lock(&h->lock);
    l = h->idle;
    if (l) {
        h->idle = l->next;
        h->n_idle--;
    }
    pthread_mutex_unlock(&h->lock);
    *out = l;
    if (l) return INFERSCALE_OK;
    l = is_calloc(1, sizeof *l);
    if (!l) return no_memory();
    l->http = h;
    l->multi = curl_multi_init();
    if (!l->multi) {
        free_line(l);
        return no_memory();
    }
    curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, (long)KEPT_CONNECTIONS);
    *out = l;
    return INFERSCALE_OK;
}

void vllm_line_give(vllm_line *l)
{
    vllm_http *h;

    if (!l) return;
    h = l->http;
    while (l->calls) vllm_call_close(l->calls);
    pthread_mutex_lock(&h->lock);
    if (h->n_idle < IDLE_LINES) {
        l->next = h->idle;
        h->idle = l;
        h->n_idle++;
        l = NULL;
    }
    pthread_mutex_unlock(&h->lock);
    if (l) free_line(l);
}

/* ---- A request ----------------------------------------------------------------------------------------------------------- */

static size_t on_data(char *p, size_t size, size_t n, void *ctx)
{
    vllm_call *c = ctx;

    (void)size;
    is_buf_add(&c->body, p, n);
    c->line->moved = true;
    c->last_ms = is_now_ms();
    return is_buf_ok(&c->body) ? n : 0;
}

static bool set_options(vllm_call *c, const char *body)
{
    CURL *curl = c->curl;
    bool ok = curl_easy_setopt(curl, CURLOPT_URL, c->url) == CURLE_OK;

    ok = ok && curl_easy_setopt(curl, CURLOPT_HTTPHEADER, c->line->http->headers) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L); /* the key would go elsewhere */
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)c->patience.connect_ms);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(curl, CURLOPT_PRIVATE, c);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "inferscale/" INFERSCALE_VERSION);
    if (!body) return ok;
    ok = ok && curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body)) == CURLE_OK;
    return ok && curl_easy_setopt(curl, CURLOPT_COPYPOSTFIELDS, body) == CURLE_OK;
}

is_status vllm_call_open(vllm_line *l, const char *base_url, const char *path, const char *body, size_t max, vllm_patience patience,
                         vllm_call **out)
{
    vllm_call *c = is_calloc(1, sizeof *c);
    is_buf url = IS_BUF_INIT;

    *out = NULL;
    if (!c) return no_memory();
    is_buf_str(&url, base_url);
    is_buf_str(&url, path);
    c->url = is_buf_take(&url);
    c->line = l;
    c->body.max = max;
    c->patience = patience;
    c->last_ms = is_now_ms();
    c->next = l->calls;
    l->calls = c;
    c->curl = curl_easy_init();
    if (!c->url || !c->curl || !set_options(c, body) || curl_multi_add_handle(l->multi, c->curl) != CURLM_OK) {
        vllm_call_close(c);
        return no_memory();
    }
    *out = c;
    return INFERSCALE_OK;
}

void vllm_call_close(vllm_call *c)
{
    if (!c) return;
    for (vllm_call **at = &c->line->calls; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    if (c->curl) {
        curl_multi_remove_handle(c->line->multi, c->curl);
        curl_easy_cleanup(c->curl);
    }
    is_free(c->url);
    is_buf_free(&c->body);
    is_free(c);
}

/* ---- Waiting ------------------------------------------------------------------------------------------------------------- */

static vllm_end end_of(const vllm_call *c, CURLcode rc)
{
    if (rc == CURLE_OK) return VLLM_ANSWERED;
    if (c->body.failed) return VLLM_TOO_LARGE;
    if (rc == CURLE_OUT_OF_MEMORY) return VLLM_NO_MEMORY;
    if (rc == CURLE_COULDNT_CONNECT || rc == CURLE_COULDNT_RESOLVE_HOST || rc == CURLE_URL_MALFORMAT || rc == CURLE_UNSUPPORTED_PROTOCOL)
        return VLLM_UNREACHABLE;
    if (rc == CURLE_OPERATION_TIMEDOUT) return VLLM_UNREACHABLE; /* only connecting has a limit of curl's own */
    return VLLM_BROKEN;
}

static void end_call(vllm_call *c, vllm_end end, CURLcode rc)
{
    c->end = end;
    c->rc = rc;
    c->line->moved = true;
}

/* Ends those that have, and those that have been silent for too long. */
static void collect(vllm_line *l)
{
    double now = is_now_ms();
    int left;

    for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &left));) {
        vllm_call *c = NULL;

        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
        if (c && c->end == VLLM_PENDING) end_call(c, end_of(c, m->data.result), m->data.result);
    }
    for (vllm_call *c = l->calls; c; c = c->next)
        if (c->end == VLLM_PENDING && now - c->last_ms > c->patience.silent_ms) end_call(c, VLLM_SILENT, CURLE_OK);
}

void vllm_line_wait(vllm_line *l, uint32_t ms)
{
    double begin = is_now_ms(), until = begin + ms;
    CURLMcode mc = CURLM_OK;
    int running;

    l->moved = false;
    if (l->left_ms > 0) /* silence counts while somebody listens */
        for (vllm_call *c = l->calls; c; c = c->next) c->last_ms += begin - (c->last_ms > l->left_ms ? c->last_ms : l->left_ms);
    for (;;) {
        double now;

        mc = curl_multi_perform(l->multi, &running);
        if (mc == CURLM_OK) collect(l);
        now = is_now_ms();
        if (mc != CURLM_OK || l->moved || now >= until) break;
        mc = curl_multi_poll(l->multi, NULL, 0, (int)(until - now) + 1, NULL);
        if (mc != CURLM_OK) break;
    }
    l->left_ms = is_now_ms();
    if (mc == CURLM_OK) return;
    for (vllm_call *c = l->calls; c; c = c->next)
        if (c->end == VLLM_PENDING) end_call(c, mc == CURLM_OUT_OF_MEMORY ? VLLM_NO_MEMORY : VLLM_BROKEN, CURLE_FAILED_INIT);
}

vllm_end vllm_call_end(const vllm_call *c)
{
    return c->end;
}

long vllm_call_code(const vllm_call *c)
{
    long code = 0;

    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

is_buf *vllm_call_body(vllm_call *c)
{
    return &c->body;
}

const char *vllm_call_url(const vllm_call *c)
{
    return c->url;
}

/* ---- What went wrong ----------------------------------------------------------------------------------------------------- */

is_status vllm_call_fail(const vllm_call *c)
{
    const char *why = c->error[0] ? c->error : curl_easy_strerror(c->rc);

    switch (c->end) {
    case VLLM_UNREACHABLE:
        return is_fail(INFERSCALE_E_ENGINE, "cannot reach vLLM at %s (%s); start it, or check the address", c->url, why);
    case VLLM_SILENT:
        return is_fail(INFERSCALE_E_ENGINE, "%s has said nothing for %u s; see vLLM's log and load", c->url,
                       c->patience.silent_ms / 1000);
    case VLLM_TOO_LARGE:
        return is_fail(INFERSCALE_E_ENGINE, "%s answers more than is taken (%zu MiB); check that it is a vLLM server", c->url,
                       c->body.max >> 20);
    case VLLM_NO_MEMORY: return no_memory();
    default: return is_fail(INFERSCALE_E_ENGINE, "the connection to %s broke (%s); see vLLM's log, then try again", c->url, why);
    }
}

/* A file's path says where things are on the server: that is not for its clients' clients. "/v1" alone is none. */
static void hide_paths(char *s)
{
    static const char mark[] = "...", before[] = " '\"(`[{=:,";
    char *to = s;

    for (const char *p = s; *p;) {
        size_t n = *p == '/' && (p == s || strchr(before, p[-1])) ? strcspn(p, " '\")`]},;") : 0;

        if (n >= sizeof mark - 1 && memchr(p + 1, '/', n - 1)) {
            memcpy(to, mark, sizeof mark - 1);
            to += sizeof mark - 1;
            p += n;
        } else {
            *to++ = *p++;
        }
    }
    *to = 0;
}

void vllm_says(const uint8_t *body, size_t n, char out[240])
{
    json_t *root = n ? json_loadb((const char *)body, n, 0, NULL) : NULL, *error = json_object_get(root, "error");
    const char *s = json_string_value(json_is_string(error) ? error : json_object_get(error, "message"));
    size_t len = 0, at = 0;

    if (!s) s = json_string_value(json_object_get(root, "message"));
    if (!s) s = json_string_value(json_object_get(root, "detail"));
    if (s) n = strlen(s);
    else s = n ? (const char *)body : "no message", n = n ? n : strlen(s);
    for (; at < n && s[at] && len < 220; at++) out[len++] = (unsigned char)s[at] < 0x20 || s[at] == 0x7f ? ' ' : s[at];
    len = is_utf8_whole(out, len);
    out[len] = 0;
    hide_paths(out);
    json_decref(root);
}

is_status vllm_call_refused(const vllm_call *c, bool *retry)
{
    char says[240];

    vllm_says(c->body.data, c->body.len, says);
    return vllm_refused(c->url, vllm_call_code(c), says, retry);
}

is_status vllm_refused(const char *url, long code, const char *says, bool *retry)
{
    *retry = true;
    if (code == 401 || code == 403)
        return is_fail(INFERSCALE_E_DENIED, "%s refuses the API key (HTTP %ld: %s); set the one that vLLM was started with", url, code, says);
    if (code == 404)
        return is_fail(INFERSCALE_E_NOTFOUND, "%s is not there (HTTP 404: %s); check that the address is a vLLM server's, without /v1", url, says);
    if (code == 429) return is_fail(INFERSCALE_E_BUSY, "%s has too much to do (HTTP 429: %s); try again later", url, says);
    if (code == 501 || (code >= 400 && code < 500 && code != 408)) *retry = false;
    if (code == 501) return is_fail(INFERSCALE_E_UNSUPPORTED, "this vLLM cannot do that (HTTP 501: %s)", says);
    if (!*retry) return is_fail(INFERSCALE_E_INVALID, "vLLM refuses the request (HTTP %ld: %s)", code, says);
    return is_fail(INFERSCALE_E_ENGINE, "%s failed (HTTP %ld: %s); see vLLM's log, then try again", url, code, says);
}
