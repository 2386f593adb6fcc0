/* http_request.c - what was asked: the request's strings, its query, its body as JSON. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "serve/http_in.h"

struct keep {
    struct keep *next;
    char text[];
};

is_request *is_request_new(struct is_http *h, const char *target)
{
    is_request *r = is_calloc(1, sizeof *r);
    uint8_t random[12];
    char id[2 * sizeof random + 5];
    if (!r) return NULL;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->room, NULL);
    r->server = h->s;
    r->http = h;
    r->refs = 1;
    r->begun_ms = is_now_ms();
    r->body.max = (size_t)h->s->config->max_body + 1;
    r->path = is_request_keep(r, target, strlen(target)); /* until is_request_begin takes it apart */
    is_random(random, sizeof random);
    memcpy(id, "req_", 4);
    is_hex(random, sizeof random, id + 4);
    r->id = is_request_keep(r, id, sizeof id - 1);
    pthread_mutex_lock(&h->lock);
    h->n_requests++;
    pthread_mutex_unlock(&h->lock);
    if (r->path && r->id) return r;
    is_request_unref(r);
    return NULL;
}

void is_request_ref(is_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->refs++;
    pthread_mutex_unlock(&r->lock);
}

void is_request_uncount(is_request *r)
{
    pthread_mutex_lock(&r->http->lock);
    r->http->body_bytes -= r->held;
    r->held = 0;
    pthread_mutex_unlock(&r->http->lock);
}

void is_request_unref(is_request *r)
{
    struct is_http *h = r->http;
    pthread_mutex_lock(&r->lock);
    bool last = --r->refs == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last) return;
    is_request_log(r);
    is_request_uncount(r);
    if (r->response) MHD_destroy_response(r->response);
    for (size_t i = 0; i < r->n_out; i++) is_free((void *)(uintptr_t)r->out[i].value);
    for (size_t i = 0; i < r->n_out; i++) is_free((void *)(uintptr_t)r->out[i].name);
    for (size_t i = 0; i < r->n_notes; i++) is_free((void *)(uintptr_t)r->notes[i].value);
    for (size_t i = 0; i < r->n_notes; i++) is_free((void *)(uintptr_t)r->notes[i].name);
    while (r->kept) {
        struct keep *k = r->kept;
        r->kept = k->next;
        is_free(k);
    }
    json_decref(r->json);
    is_buf_free(&r->body);
    is_free(r->ring);
    pthread_cond_destroy(&r->room);
    pthread_mutex_destroy(&r->lock);
    is_free(r);
    pthread_mutex_lock(&h->lock); /* last, so that a server that counts none is free to end */
    h->n_requests--;
    pthread_mutex_unlock(&h->lock);
}

char *is_request_keep(is_request *r, const char *p, size_t n)
{
    struct keep *k = is_malloc(sizeof *k + n + 1);
    if (!k) return NULL;
    memcpy(k->text, p, n);
    k->text[n] = '\0';
    k->next = r->kept;
    r->kept = k;
    return k->text;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

char *is_request_decode(is_request *r, const char *p, size_t n, bool plus)
{
    char *s = is_request_keep(r, p, n);
    size_t to = 0;
    if (!s) return NULL;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '%') {
            if (i + 2 >= n || hex(p[i + 1]) < 0 || hex(p[i + 2]) < 0) return NULL;
            s[to++] = (char)(hex(p[i + 1]) << 4 | hex(p[i + 2]));
            i += 2;
        } else {
            s[to++] = plus && p[i] == '+' ? ' ' : p[i];
        }
    }
    s[to] = '\0';
    return is_utf8_valid(s, to, NULL) ? s : NULL; /* a NUL in it is none either */
}

/* ---- Access -------------------------------------------------------------------------------------------------------------- */

const char *is_request_method(const is_request *r) { return r->method; }
const char *is_request_path(const is_request *r) { return r->path; }
const char *is_request_id(const is_request *r) { return r->id; }
const volatile int *is_request_cancel(const is_request *r) { return &r->cancel; }
const is_key *is_request_key(const is_request *r) { return r->has_key ? &r->key : NULL; }
double is_request_age_ms(const is_request *r) { return is_now_ms() - r->begun_ms; }

static const char *find(const pair *p, size_t n, const char *name, bool any_case)
{
    for (size_t i = 0; i < n; i++)
        if ((any_case ? strcasecmp(p[i].name, name) : strcmp(p[i].name, name)) == 0) return p[i].value;
    return NULL;
}

const char *is_request_param(const is_request *r, const char *name) { return find(r->params, r->n_params, name, false); }
const char *is_request_query(const is_request *r, const char *name) { return find(r->queries, r->n_queries, name, false); }
const char *is_request_header(const is_request *r, const char *name) { return find(r->headers, r->n_headers, name, true); }

size_t is_request_count(const is_request *r, const char *header)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_headers; i++) n += strcasecmp(r->headers[i].name, header) == 0;
    return n;
}

const void *is_request_body(const is_request *r, size_t *len)
{
    *len = r->body.len;
    return r->body.data ? (const void *)r->body.data : "";
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------------- */

/* Looks at the shape before anything is allocated: a small body can stand for a big tree. NULL = fine. */
static const char *shape(const char *p, size_t n)
{
    size_t depth = 0, values = 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if (c == '[' || c == '{') {
            values++;
            if (++depth > HTTP_DEPTH) return "it is nested deeper than 64 levels";
        }
        if ((c == ']' || c == '}') && depth) depth--;
        if (c == ',' && ++values > HTTP_VALUES) return "it holds more than 1,000,000 values; send it in parts";
    }
    return NULL;
}

json_t *is_request_json(is_request *r)
{
    size_t len;
    const char *p = is_request_body(r, &len), *bad;
    json_error_t e;
    if (r->json) return r->json;
    if (len == 0) {
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "the request has no body; send a JSON object");
        return NULL;
    }
    bad = shape(p, len);
    if (bad) {
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "the body cannot be read: %s", bad);
        return NULL;
    }
    json_t *v = json_loadb(p, len, JSON_REJECT_DUPLICATES, &e);
    if (!v) {
        /* jansson quotes what it saw; the first words say enough, and a prompt does not come back in an error. */
        e.text[strcspn(e.text, "\n")] = '\0';
        char *near = strstr(e.text, " near ");
        if (near) *near = '\0';
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "the body is not JSON: %s (line %d, byte %d of the body)",
                       is_utf8_valid(e.text, strlen(e.text), NULL) ? e.text : "bad text", e.line, e.position);
        return NULL;
    }
    if (!json_is_object(v)) {
        json_decref(v);
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "the body is JSON, but no object; send {...}");
        return NULL;
    }
    return r->json = v;
}
