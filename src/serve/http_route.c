/* http_route.c - from a request's head to its route: is it one request and no other, may it come from there, what does it want, and
 * whose key is it. What is refused here has no body kept. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/nearest_name.h"
#include "base/utf8.h"
#include "serve/http_in.h"
#include "serve/workers.h"

is_face is_face_of_path(const char *path)
{
    static const char *const memory[] = { "/memories", "/search",  "/reset",       "/v1/memories", "/v2/",
                                          "/v3/",      "/v1/ping", "/v1/entities", "/configure" };
    for (size_t i = 0; path && i < sizeof memory / sizeof *memory; i++)
        if (strncmp(path, memory[i], strlen(memory[i])) == 0) return IS_FACE_MEMORY;
    return IS_FACE_OPENAI;
}

static bool refuse(is_request *r, const char *why) { return is_request_refused(r, why), false; }

/* ---- One request and no other -------------------------------------------------------------------------------------------- */

/* Two readings of where a request ends are how another one is smuggled in: then it is refused, and the connection with it. */
static bool framing(is_request *r)
{
    static const char *const single[] = {
        "Host",   "Content-Length",    "Transfer-Encoding",  "Content-Type",     "Authorization",   "X-API-Key",
        "Origin", "X-Inferscale-User", "X-Inferscale-Agent", "X-Inferscale-Run", "X-Inferscale-App",
        "X-Inferscale-Pass", "Content-Range"
    };
    const char *length = is_request_header(r, "Content-Length"), *coding = is_request_header(r, "Transfer-Encoding");
    const char *host = is_request_header(r, "Host");
    if (!host && r->is_1_1) {
        r->close_after = true;
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "the request has no header Host");
        return refuse(r, "framing");
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        if (is_request_count(r, single[i]) < 2) continue;
        r->close_after = true;
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "the header %s is there twice; send it once", single[i]);
        return refuse(r, "framing");
    }
    if (length && coding) {
        r->close_after = true;
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL,
                       "Content-Length and Transfer-Encoding contradict each other; send one of them");
        return refuse(r, "framing");
    }
    if (coding && strcasecmp(coding, "chunked") != 0) {
        r->close_after = true;
        is_reply_error(r, 501, "invalid_request_error", NULL, NULL, "only the transfer encoding \"chunked\" is known here");
        return refuse(r, "framing");
    }
    if (length) {
        size_t n = strspn(length, "0123456789");
        if (n == 0 || n > 18 || length[n]) {
            r->close_after = true;
            is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "Content-Length is no number of bytes");
            return refuse(r, "framing");
        }
        r->body_said = strtoull(length, NULL, 10);
        r->sizes_known = true;
    }
    return true;
}

/* A name is a token, a value has no control characters: "Transfer-Encoding : chunked" is a header to some, and none to others. */
static bool good_header(const char *name, size_t name_n, const char *value, size_t value_n)
{
    for (size_t i = 0; i < name_n; i++)
        if (!isalnum((unsigned char)name[i]) && (!name[i] || !strchr("!#$%&'*+-.^_`|~", name[i]))) return false;
    for (size_t i = 0; i < value_n; i++)
        if (((unsigned char)value[i] < 0x20 && value[i] != '\t') || value[i] == 0x7f) return false;
    return name_n > 0;
}

bool is_request_header_came(is_request *r, const char *name, size_t name_n, const char *value, size_t value_n)
{
    if (r->n_headers == HTTP_HEADERS) {
        r->too_big = true;
        return false;
    }
    pair *p = &r->headers[r->n_headers];
    if (strcasecmp(name, "Transfer-Encoding") != 0) /* there a blank means that libmicrohttpd has read it otherwise than we would */
        while (value && value_n && (value[value_n - 1] == ' ' || value[value_n - 1] == '\t')) value_n--;
    p->name = is_request_keep(r, name, name_n);
    p->value = is_request_keep(r, value ? value : "", value ? value_n : 0);
    if (!p->name || !p->value) { /* what has lost a header is not routed */
        r->close_after = true;
        return false;
    }
    r->n_headers++;
    if (!good_header(name, name_n, value, value ? value_n : 0)) r->close_after = true; /* read as: malformed */
    return true;
}

void is_request_head_bad(is_request *r)
{
    r->close_after = true;
    is_reply_error(
        r, 400, "invalid_request_error", NULL, NULL,
        "the request's head is malformed: lines end with CR and LF, and no header is folded or holds a"
        " NUL");
    is_request_refused(r, "headers");
}

static bool head(is_request *r, const char *version)
{
    r->is_1_1 = strcmp(version, "HTTP/1.1") == 0;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        r->close_after = true;
        is_reply_error(r, 505, "invalid_request_error", NULL, NULL, "HTTP/1.1 and HTTP/1.0 are spoken here");
        return refuse(r, "version");
    }
    if (r->too_big) {
        r->too_big = false;
        r->close_after = true;
        is_reply_error(r, 431, "invalid_request_error", NULL, NULL, "more than %d headers", HTTP_HEADERS);
        return refuse(r, "headers");
    }
    if (r->close_after || !is_raw_good(r)) {
        is_request_head_bad(r);
        return false;
    }
    return framing(r);
}

/* The caller's own id, if it can stand in a header and a log. */
static void take_id(is_request *r)
{
    const char *id = is_request_header(r, "X-Request-Id");
    size_t n = id ? strlen(id) : 0;
    if (n == 0 || n > 64) return;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)id[i]) && !strchr("._-", id[i])) return;
    r->id = id;
}

/* ---- Where it comes from ------------------------------------------------------------------------------------------------- */

/* "name:port" without its port; an IPv6 address keeps its brackets. */
static size_t host_len(const char *s)
{
    const char *end = *s == '[' ? strchr(s, ']') : NULL;
    return end ? (size_t)(end - s) + 1 : strcspn(s, ":");
}

static bool same_host(const char *s, size_t n, const char *name) { return strlen(name) == n && strncasecmp(s, name, n) == 0; }

static bool loopback(const char *s, size_t n)
{
    if (same_host(s, n, "localhost") || same_host(s, n, "[::1]")) return true;
    if (n > 10 && strncasecmp(s + n - 10, ".localhost", 10) == 0) return true; /* RFC 6761: never another machine */
    return n >= 7 && n <= 15 && strncmp(s, "127.", 4) == 0 && strspn(s, "0123456789.") >= n;
}

static bool listed(const char *list, const char *s, size_t n)
{
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',') {
        p += strspn(p, " ");
        size_t len = strcspn(p, ", ");
        if ((len == 1 && *p == '*') || (len == n && strncasecmp(p, s, n) == 0)) return true;
    }
    return false;
}

/* An address, or labels of letters, digits, - and _ with dots between them; one dot may end it. */
static bool name_is_good(const char *s, size_t n)
{
    char name[254];
    struct in6_addr six;
    struct in_addr four;
    size_t label = 0;
    if (n == 0 || n >= sizeof name) return false;
    memcpy(name, s, n);
    name[n] = '\0';
    if (*name == '[') {
        name[n - 1] = '\0'; /* the bracket: host_len saw it */
        return inet_pton(AF_INET6, name + 1, &six) == 1;
    }
    if (strspn(name, "0123456789.") == n) return inet_pton(AF_INET, name, &four) == 1;
    for (size_t i = 0; i < n; i++) {
        if (name[i] == '.' ? label == 0
                           : !isalnum((unsigned char)name[i]) && !strchr("-_", name[i]))
            return false;
        label = name[i] == '.' ? 0 : label + 1;
    }
    return true;
}

/* NAME or NAME:PORT (whose number may be left out): "localhost:evil.com" is neither. */
static bool host_is_good(const char *host)
{
    const size_t n = host_len(host);
    const char *port = host + n + 1;
    if (!name_is_good(host, n)) return false;
    if (!host[n]) return true;
    if (host[n] != ':' || port[strspn(port, "0123456789")]) return false;
    return strlen(port) < 5 || (strlen(port) == 5 && strcmp(port, "65535") <= 0);
}

/* Without keys whoever reaches the port may do everything: a page in a browser of this machine must not. Its script speaks with the
 * name that it came from (DNS rebinding) or says where it came from (Origin). */
static bool origin(is_request *r)
{
    const is_config *c = r->server->config;
    const char *host = is_request_header(r, "Host"), *from = is_request_header(r, "Origin"), *at;
    if (host && !host_is_good(host)) {
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "the header Host is malformed; send NAME or NAME:PORT");
        return refuse(r, "host");
    }
    if (r->server->keys) return true;
    if (host && !loopback(host, host_len(host)) && !same_host(host, host_len(host), c->host) &&
        !listed(c->hosts, host, host_len(host))) {
        is_reply_error(r, 403, "permission_error", "host", NULL,
                       "this server is not called \"%.100s\"; add the name to `hosts`, or set up keys", host);
        return refuse(r, "host");
    }
    if (!from || strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0 || strcmp(r->method, "OPTIONS") == 0)
        return true;
    at = strstr(from, "://");
    if (at && host && strcasecmp(at + 3, host) == 0) return true;
    if (*c->cors && (strcmp(c->cors, "*") == 0 || strcasecmp(c->cors, from) == 0)) return true;
    is_reply_error(r, 403, "permission_error", "origin", NULL,
                   "pages of %.100s may not change anything here; allow them by `cors`", from);
    return refuse(r, "origin");
}

/* ---- What it wants ------------------------------------------------------------------------------------------------------- */

static bool bad_target(is_request *r)
{
    is_reply_error(r, 400, "invalid_request_error", NULL, NULL,
                   "the request's path or query is malformed: %%XX escapes of UTF-8 text without NUL are read");
    return refuse(r, "target");
}

static bool parse_query(is_request *r, const char *q)
{
    while (*q) {
        size_t n = strcspn(q, "&"), eq = strcspn(q, "=&");
        if (n && r->n_queries == HTTP_QUERIES) return bad_target(r);
        if (n) {
            pair *p = &r->queries[r->n_queries];
            p->name = is_request_decode(r, q, eq, true);
            p->value = eq < n ? is_request_decode(r, q + eq + 1, n - eq - 1, true) : is_request_keep(r, "", 0);
            if (!p->name || !p->value) return bad_target(r);
            r->n_queries++;
        }
        q += n + (q[n] == '&');
    }
    return true;
}

/* The target in path and query; http://HOST/PATH is as good as /PATH. */
static bool parse_target(is_request *r)
{
    const char *t = r->path;
    if (strncasecmp(t, "http://", 7) == 0 || strncasecmp(t, "https://", 8) == 0) {
        t = strstr(t, "://") + 3;
        t += strcspn(t, "/?");
    }
    size_t n = strcspn(t, "?");
    char *path = n ? is_request_keep(r, t, n) : is_request_keep(r, "/", 1);
    if (!path) return bad_target(r);
    r->path = path;
    for (const char *p = t; *p; p++)
        if ((unsigned char)*p <= 0x20 || *p == 0x7f || *p == '#') return bad_target(r);
    if (*path != '/' && strcmp(path, "*") != 0) return bad_target(r);
    return t[n] ? parse_query(r, t + n + 1) : true;
}

/* Does the route's path fit? Segments are compared decoded, so that an escaped slash parts nothing. False in *ok: it is malformed. */
static bool fits(is_request *r, const char *pattern, bool *ok)
{
    const char *p = r->path;
    r->n_params = 0;
    while (*pattern == '/' && *p == '/') {
        size_t a = strcspn(++pattern, "/"), b = strcspn(++p, "/");
        if (a == 0 && b == 0) break; /* both end with a slash */
        char *segment = is_request_decode(r, p, b, false);
        if (!segment) return *ok = false;
        if (a > 2 && *pattern == '{' && r->n_params < HTTP_PARAMS) {
            if (b == 0) return false;
            const char *name = is_request_keep(r, pattern + 1, a - 2);
            if (!name) return *ok = false;
            r->params[r->n_params++] = (pair){ name, segment };
        } else if (strlen(segment) != a || strncmp(segment, pattern, a) != 0) {
            return false;
        }
        pattern += a;
        p += b;
    }
    if (strcmp(pattern, "/") == 0) pattern++;
    if (strcmp(p, "/") == 0) p++;
    return *pattern == '\0' && *p == '\0';
}

static void add_word(char *to, size_t cap, const char *word)
{
    size_t n = strlen(to);
    char *at = strstr(to, word);
    if (at && (at[strlen(word)] == ',' || at[strlen(word)] == '\0')) return;
    snprintf(to + n, cap - n, "%s%s", n ? ", " : "", word);
}

/* Finds the route; allow[] = the methods of the path. False: the path is malformed. */
static bool find(is_request *r, char *allow, size_t cap)
{
    const char *method = r->head ? "GET" : r->method;
    pair params[HTTP_PARAMS] = { { 0 } };
    size_t n_params = 0;
    bool ok = true;
    *allow = '\0';
    for (size_t t = 0; r->http->tables[t]; t++)
        for (const is_route *x = r->http->tables[t]; x->method; x++) {
            if (!fits(r, x->path, &ok)) {
                if (!ok) return false;
                continue;
            }
            add_word(allow, cap, x->method);
            if (strcmp(x->method, "GET") == 0) add_word(allow, cap, "HEAD");
            if (r->route || strcmp(x->method, method) != 0) continue;
            r->route = x; /* the first one counts */
            memcpy(params, r->params, sizeof params);
            n_params = r->n_params;
        }
    memcpy(r->params, params, sizeof params);
    r->n_params = n_params;
    if (*allow) add_word(allow, cap, "OPTIONS");
    return true;
}

static void answer_options(is_request *r, const char *allow)
{
    const char *from = is_request_header(r, "Origin"), *cors = r->server->config->cors;
    if (*cors && from && (strcmp(cors, "*") == 0 || strcasecmp(cors, from) == 0)) {
        is_reply_header(r, "Access-Control-Allow-Methods", allow);
        is_reply_header(
            r, "Access-Control-Allow-Headers",
            "Authorization, Content-Type, X-API-Key, X-Request-Id, X-Inferscale-User, X-Inferscale-Agent, X-Inferscale-Run, "
            "X-Inferscale-App, Mcp-Session-Id, Mcp-Protocol-Version, Last-Event-ID, *");
        is_reply_header(r, "Access-Control-Max-Age", "600");
    }
    is_reply_header(r, "Allow", allow);
    is_reply_bytes(r, 204, NULL, NULL, 0);
}

/* ---- What was probably meant --------------------------------------------------------------- */

/* Is there a route of this path, for any method? */
static bool is_path(is_request *r, const char *path)
{
    const char *asked = r->path;
    bool found = false, ok = true;
    r->path = path;
    for (size_t t = 0; r->http->tables[t] && !found; t++)
        for (const is_route *x = r->http->tables[t]; x->method && !found; x++)
            found = !(x->flags & IS_ROUTE_WORKER) && fits(r, x->path, &ok);
    r->path = asked;
    r->n_params = 0;
    return found;
}

/* The same path with /v1 before it, or without what stands there. NULL = there is none such. */
static const char *other_version(is_request *r)
{
    static const char *const versions[] = { "/v1", "/v2", "/v3", "/api/v1", "/api" };
    char with[200];
    if (strlen(r->path) >= sizeof with - 3) return NULL;
    snprintf(with, sizeof with, "/v1%s", r->path);
    if (is_path(r, with)) return is_request_keep(r, with, strlen(with));
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const size_t n = strlen(versions[i]);
        if (strncmp(r->path, versions[i], n) != 0 || r->path[n] != '/' || !r->path[n + 1]) continue;
        snprintf(with, sizeof with, "/v1%s", r->path + n);
        if (is_path(r, with)) return is_request_keep(r, with, strlen(with));
        if (is_path(r, r->path + n)) return r->path + n;
    }
    return NULL;
}

/* A path that was probably meant. NULL = none is near. */
static const char *meant(is_request *r)
{
    enum { MOST = 128 };
    const char *names[MOST], *other = other_version(r);
    size_t n = 0;
    if (other) return other;
    for (size_t t = 0; r->http->tables[t]; t++)
        for (const is_route *x = r->http->tables[t]; x->method && n < MOST; x++)
            if (!(x->flags & IS_ROUTE_WORKER) && !strchr(x->path, '{') && x->path[1])
                names[n++] = x->path;
    return is_nearest_name(r->path, names, n);
}

static bool route(is_request *r)
{
    char allow[128] = "GET, HEAD, POST, PUT, DELETE, OPTIONS";
    bool any = strcmp(r->path, "*") == 0, is_options = strcmp(r->method, "OPTIONS") == 0;
    if (!any && !find(r, allow, sizeof allow)) return bad_target(r);
    if (r->route) return true;
    if (is_options && *allow) return answer_options(r, allow), false;
    if (*allow && !any) {
        is_reply_header(r, "Allow", allow);
        is_reply_error(r, 405, "invalid_request_error", "method_not_allowed", NULL, "%.20s is not for this path; it takes %s",
                       r->method, allow);
        return refuse(r, "method");
    }
    const char *near = meant(r);
    is_reply_error(r, 404, "invalid_request_error", "not_found", NULL,
                   "there is no %.20s %.200s here; %s%.200s%s/openapi.json lists the paths",
                   r->method, r->path, near ? "did you mean " : "", near ? near : "",
                   near ? "? " : "");
    return refuse(r, "path");
}

/* ---- Whose key it is ----------------------------------------------------------------------------------------------------- */

static const char *presented(const is_request *r, bool *two)
{
    const char *a = is_request_header(r, "Authorization"), *x = is_request_header(r, "X-API-Key");
    if (a && strncasecmp(a, "Bearer ", 7) == 0)
        a += 7;
    else if (a && strncasecmp(a, "Token ", 6) == 0)
        a += 6; /* Mem0's client */
    else
        a = NULL;
    if (a) a += strspn(a, " ");
    *two = a && x && strcmp(a, x) != 0;
    return a ? a : x;
}

static bool authorise(is_request *r)
{
    bool two = false;
    const char *key;
    if (r->route->flags & IS_ROUTE_WORKER) return is_worker_authorise(r->server, r) || refuse(r, "pass");
    if (!r->server->keys || (r->route->flags & IS_ROUTE_OPEN)) return true;
    key = presented(r, &two);
    r->has_key = key && !two && is_keys_find(r->server->keys, key, &r->key);
    if (!r->has_key) {
        is_reply_header(r, "WWW-Authenticate", "Bearer realm=\"inferscale\"");
        is_reply_error(r, 401, "authentication_error", "invalid_api_key", NULL, "%s",
                       two   ? "Authorization and X-API-Key name two different keys; send one"
                       : key ? "this API key is not known here"
                             : "an API key is needed: send it as `Authorization: Bearer KEY`");
        return refuse(r, "key");
    }
    if ((r->route->flags & IS_ROUTE_ADMIN) && !r->key.admin) {
        is_reply_error(r, 403, "permission_error", "admin_only", NULL,
                       "only a key with the word admin in the keys file may do this");
        return refuse(r, "admin");
    }
    return true;
}

/* ---- May it come in now -------------------------------------------------------------------------------------------------- */

static bool admit(is_request *r)
{
    struct is_http *h = r->http;
    bool open = r->route->flags & IS_ROUTE_OPEN;
    pthread_mutex_lock(&h->lock);
    if (r->conn && r->has_key) is_conn_shows(h, r->conn, &r->key);
    bool spare = r->conn && is_conn_spare(h, r->conn) && !is_conn_room_for(h, r->conn);
    if (r->conn) is_conn_holder(h, r->conn, r->holder);
    pthread_mutex_unlock(&h->lock);
    if (__atomic_load_n(&h->draining, __ATOMIC_RELAXED) && !open) {
        is_reply_header(r, "Retry-After", "5");
        is_reply_error(r, 503, "server_error", "server_ending", NULL, "the server is ending; ask again later");
        return refuse(r, "ending");
    }
    if (spare) r->close_after = true; /* what needs no key is answered even so: is the server alive? */
    if (spare && !open) {
        is_reply_header(r, "Retry-After", "1");
        is_reply_error(r, 503, "server_error", "too_many_connections", NULL,
                       "more than max_connections = %u are open; close some or try again", h->s->config->max_connections);
        return refuse(r, "connections");
    }
    if ((r->route->flags & IS_ROUTE_ENGINE) && !__atomic_load_n(&h->s->ready, __ATOMIC_RELAXED)) {
        is_reply_header(r, "Retry-After", "2");
        is_reply_error(r, 503, "server_error", "loading", NULL, "the model is being loaded; try again in a moment");
        return refuse(r, "loading");
    }
    return true;
}

static bool size(is_request *r)
{
    uint64_t max = r->server->config->max_body;
    if (!r->sizes_known || r->body_said <= max) return true;
    r->close_after = false;
    is_reply_error(r, 413, "invalid_request_error", "request_too_large", NULL,
                   "the body has %llu bytes, at most %llu are read (max_body)", (unsigned long long)r->body_said,
                   (unsigned long long)max);
    return refuse(r, "body");
}

void is_request_begin(is_request *r, const char *method, const char *version)
{
    r->method = is_request_keep(r, method, strnlen(method, 32));
    if (!r->method) r->method = "-";
    r->head = strcmp(method, "HEAD") == 0;
    /* Each refuses by replying. */
    (void)(head(r, version) && (take_id(r), parse_target(r)) && origin(r) && route(r) && authorise(r) && admit(r) && size(r));
}
