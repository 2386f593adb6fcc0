/* client.c - libcurl, kept on a short lead. */
#include "embed/http/client.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    CONNECT_MS = 3000,
    TOTAL_MS = 120000,
    STALL_MS = 10000,            /* an answer that has begun may stand still for so long */
    MAX_RESPONSE = 64 << 20,
    TRIES = 3,
    MAX_WAIT_S = 10,             /* however long the server asks us to wait */
    POLL_MS = 5,                 /* how often the cancel flag is looked at */
};

struct http_client {
    CURL *curl;
    CURLM *multi;                /* the one transfer runs in it, so that waiting can be cut short */
    struct curl_slist *headers;
    char *url;                   /* as given, for messages: without user and password (refused by the caller) */
    char error[CURL_ERROR_SIZE];
    const http_call *call;       /* in progress */
    is_buf *response;            /* its answer */
    double until_ms;             /* by then the next byte of its answer must be there (is_now_ms) */
    bool late;                   /* it was not */
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode init_code;

static void init(void)
{
    init_code = curl_global_init(CURL_GLOBAL_DEFAULT);
}

static size_t on_data(char *p, size_t size, size_t n, void *ctx)
{
    http_client *c = ctx;
    (void)size;
    is_buf_add(c->response, p, n);
    c->until_ms = is_now_ms() + STALL_MS;
    return is_buf_ok(c->response) ? n : 0; /* past the limit: stop the transfer */
}

static size_t on_header(char *p, size_t size, size_t n, void *ctx)
{
    http_client *c = ctx;

    (void)p;
    c->until_ms = is_now_ms() + STALL_MS;
    return size * n;
}

static bool is_set(const volatile int *flag)
{
    return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

bool http_call_off(const http_call *call)
{
    return is_set(call->cancel) || is_set(call->stop);
}

static bool cancelled(const http_client *c)
{
    return http_call_off(c->call);
}

static is_status add_header(http_client *c, const char *line)
{
    struct curl_slist *list = curl_slist_append(c->headers, line);
    if (!list) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the HTTP embedder; free some and try again");
    c->headers = list;
    return INFERSCALE_OK;
}

static is_status set_headers(http_client *c, const char *key)
{
    IS_TRY(add_header(c, "Content-Type: application/json"));
    IS_TRY(add_header(c, "Accept: application/json"));
    IS_TRY(add_header(c, "Expect:"));
    if (!key || !*key) return INFERSCALE_OK;
    for (const char *s = key; *s; s++)
        if ((unsigned char)*s < 0x21 || (unsigned char)*s > 0x7e)
            return is_fail(INFERSCALE_E_INVALID,
                           "the embedder's API key holds a space or a control character; check where it is read from");
    is_buf line = IS_BUF_INIT;
    is_buf_fmt(&line, "Authorization: Bearer %s", key);
    is_status st = is_buf_ok(&line) ? add_header(c, (const char *)line.data)
                                    : is_fail(INFERSCALE_E_NOMEM,
                                              "out of memory for the HTTP embedder; free some and try again");
    is_buf_free(&line);
    return st;
}

is_status http_client_new(const char *url, const char *key, http_client **out)
{
    *out = NULL;
    pthread_once(&once, init);
    http_client *c = init_code == CURLE_OK ? is_calloc(1, sizeof *c) : NULL;
    if (!c) return is_fail(INFERSCALE_E_NOMEM, "libcurl cannot be started; free some memory and try again");
    c->curl = curl_easy_init();
    c->multi = curl_multi_init();
    c->url = is_strdup(url);
    is_status st = c->curl && c->multi && c->url ? set_headers(c, key) : is_fail(INFERSCALE_E_NOMEM, "out of memory for the HTTP embedder");
    if (st != INFERSCALE_OK) {
        http_client_free(c);
        return st;
    }
    curl_easy_setopt(c->curl, CURLOPT_URL, c->url);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c->curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L); /* threads */
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)TOTAL_MS);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c->curl, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_ERRORBUFFER, c->error);
    curl_easy_setopt(c->curl, CURLOPT_USERAGENT, "inferscale/" INFERSCALE_VERSION);
    *out = c;
    return INFERSCALE_OK;
}

void http_client_free(http_client *c)
{
    if (!c) return;
    if (c->curl) curl_easy_cleanup(c->curl);
    if (c->multi) curl_multi_cleanup(c->multi);
    curl_slist_free_all(c->headers);
    is_free(c->url);
    is_free(c);
}

static is_status explain(http_client *c, CURLcode rc, const is_buf *response)
{
    const char *why = c->late ? "no byte of an answer came" : c->error[0] ? c->error : curl_easy_strerror(rc);

    if (rc == CURLE_WRITE_ERROR && response->failed)
        return is_fail(INFERSCALE_E_ENGINE, "%s answered more than %d MiB; check that it is an embeddings endpoint", c->url,
                       MAX_RESPONSE >> 20);
    if (rc == CURLE_OUT_OF_MEMORY) return is_fail(INFERSCALE_E_NOMEM,
                                                  "out of memory for the HTTP embedder; free some and try again");
    if (rc == CURLE_OPERATION_TIMEDOUT)
        return is_fail(INFERSCALE_E_ENGINE,
                       "%s did not answer in time (%s); check that the embedder is running and not overloaded", c->url, why);
    return is_fail(INFERSCALE_E_ENGINE, "cannot reach the embedder at %s (%s); start it, or check the address", c->url, why);
}

/* How long to wait for something to happen before the clock and the flags are looked at again. */
static int poll_ms(const http_client *c)
{
    const double left = c->until_ms - is_now_ms();

    if (c->call->cancel || c->call->stop) return POLL_MS;
    return left < 1 ? 1 : left > 1000 ? 1000 : (int)left;
}

/* curl_easy_perform that looks at the flags every few milliseconds (curl's own progress callback comes once a second on a
 * connection that is silent), and that waits for each byte of the answer no longer than it may. */
static CURLcode perform(http_client *c)
{
    CURLMcode mc = curl_multi_add_handle(c->multi, c->curl);
    CURLcode rc = CURLE_ABORTED_BY_CALLBACK;
    int running = 1, left;

    c->late = false;
    while (mc == CURLM_OK && running && !c->late && !cancelled(c)) {
        mc = curl_multi_perform(c->multi, &running);
        c->late = running && is_now_ms() >= c->until_ms;
        if (mc == CURLM_OK && running && !c->late) mc = curl_multi_poll(c->multi, NULL, 0, poll_ms(c), NULL);
    }
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));)
        if (m->msg == CURLMSG_DONE) rc = m->data.result;
    if (c->late) rc = CURLE_OPERATION_TIMEDOUT;
    if (mc != CURLM_OK) rc = mc == CURLM_OUT_OF_MEMORY ? CURLE_OUT_OF_MEMORY : CURLE_FAILED_INIT;
    curl_multi_remove_handle(c->multi, c->curl);
    return rc;
}

static is_status was_cancelled(void)
{
    return is_fail(INFERSCALE_E_CANCELLED, "cancelled while texts were embedded; embed them again");
}

static is_status post_once(http_client *c, const char *body, long *code)
{
    is_buf_clear(c->response);
    c->response->max = MAX_RESPONSE;
    c->error[0] = 0;
    curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
    CURLcode rc = perform(c);
    if (rc != CURLE_OK && cancelled(c)) return was_cancelled();
    if (rc != CURLE_OK) return explain(c, rc, c->response);
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, code);
    return INFERSCALE_OK;
}

/* False if it was cancelled meanwhile. */
static bool pause_ms(const http_client *c, long ms)
{
    for (; ms > 0 && !cancelled(c); ms -= POLL_MS) {
        struct timespec t = { 0, POLL_MS * 1000000L };

        nanosleep(&t, NULL);
    }
    return !cancelled(c);
}

static is_status post(http_client *c, const char *body, long *code)
{
    const double until = is_now_ms() + (c->call->wait_ms ? c->call->wait_ms : HTTP_PATIENCE_MS);

    for (int attempt = 1;; attempt++) {
        curl_off_t asked = 0;
        long ms;

        c->until_ms = until;
        IS_TRY(post_once(c, body, code));
        if ((*code != 429 && *code != 503) || attempt == TRIES) return INFERSCALE_OK;
        curl_easy_getinfo(c->curl, CURLINFO_RETRY_AFTER, &asked);
        if (asked > MAX_WAIT_S) asked = MAX_WAIT_S;
        ms = asked > 0 ? (long)asked * 1000 : 200L * attempt;
        if (is_now_ms() + (double)ms >= until) return INFERSCALE_OK; /* its caller cannot wait for that */
        if (!pause_ms(c, ms)) return was_cancelled();
    }
}

is_status http_client_post(http_client *c, const char *body, long *code, is_buf *response, const http_call *call)
{
    is_status st;

    c->call = call;
    c->response = response;
    st = post(c, body, code);
    c->call = NULL;
    c->response = NULL;
    return st;
}
