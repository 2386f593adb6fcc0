/* fuzz_request.c - a request's method, target, headers and body: any bytes reach a route with sound strings, or one reply of a known
 * status. The input is METHOD TARGET VERSION, header lines, an empty line, the body; libmicrohttpd, which splits the lines, is not in it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"
#include "serve/http_in.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void none(is_server *s, is_request *r) { (void)s, (void)r; }

static const is_route routes[] = {
    { "GET", "/", none, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { "GET", "/memories/{id}", none, IS_FACE_MEMORY, 0 },
    { "POST", "/memories/", none, IS_FACE_MEMORY, 0 },
    { "POST", "/v1/chat/completions", none, IS_FACE_OPENAI, IS_ROUTE_ENGINE },
    { "DELETE", "/v1/entities/{type}/{id}/", none, IS_FACE_MEMORY, IS_ROUTE_ADMIN },
    { 0 },
};
static const is_route *const tables[] = { routes, NULL };

static void sound(const char *s) { check(s && is_utf8_valid(s, strlen(s), NULL), "strings of the target are UTF-8"); }

static void routed(is_request *r, const char *body, size_t n)
{
    is_owner o;
    for (size_t i = 0; i < r->n_params; i++) sound(r->params[i].value);
    for (size_t i = 0; i < r->n_queries; i++) sound(r->queries[i].name), sound(r->queries[i].value);
    check(is_request_count(r, "Content-Length") + is_request_count(r, "Transfer-Encoding") <= 1,
          "there is one way to read its length");
    check(is_request_count(r, "Host") <= 1, "there is one host");
    is_buf_add(&r->body, body, n);
    json_t *v = is_request_json(r);
    check(v ? json_is_object(v) : r->status == 400, "a body is an object, or 400 was replied");
    if (v && is_scope_read(r, v, &o) == INFERSCALE_OK) check(!o.scope.tenant, "without a key there is no tenant");
}

static void one(struct is_http *h, char *text, size_t size)
{
    char *end = memchr(text, '\n', size), *body = text + size, *p, *method = text, *target, *version;
    if (!end) return;
    *end = '\0';
    p = end + 1;
    target = strchr(text, ' ');
    if (!target) return;
    *target++ = '\0';
    version = strchr(target, ' ');
    if (!version) return;
    *version++ = '\0';
    is_request *r = is_request_new(h, target);
    if (!r) return;
    while (p < text + size) {
        end = memchr(p, '\n', (size_t)(text + size - p));
        if (!end) break;
        if (end == p) {
            body = end + 1;
            break;
        }
        char *colon = memchr(p, ':', (size_t)(end - p));
        if (colon && !is_request_header_came(r, p, (size_t)(colon - p), colon + 1, (size_t)(end - colon - 1))) break;
        p = end + 1;
    }
    is_request_begin(r, method, version);
    if (r->replied)
        check(r->status == 204 || (r->status >= 400 && r->status < 600), "what is not routed is refused");
    else
        check(r->route != NULL, "what is not refused has a route");
    if (!r->replied) routed(r, body, (size_t)(text + size - body));
    is_request_unref(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static is_config config;
    static is_server server = { .config = &config, .ready = 1 };
    static struct is_http http = {
        .s = &server, .tables = tables, .lock = PTHREAD_MUTEX_INITIALIZER, .engine = { .lock = PTHREAD_MUTEX_INITIALIZER }
    };
    static int started;
    if (!started++) check(is_config_init(&config) == INFERSCALE_OK, "the defaults are right");
    server.http = &http;
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    one(&http, text, size);
    free(text);
    check(http.n_requests == 0, "nothing is left");
    return 0;
}
