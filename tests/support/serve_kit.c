/* serve_kit.c - a server in a thread of the test, and a client that leaves nothing to a library. */
#include "support/serve_kit.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "serve/server.h"
#include "support/live.h"
#include "support/scratch.h"

enum { REPLY_MAX = 64 << 20 };

static int patience_ms = 20000;

void serve_be_patient(int ms)
{
    patience_ms = ms;
}

/* ---- The server ---------------------------------------------------------------------------------------------------------- */

static void on_ready(void *ctx, const char *host, int port)
{
    serve_kit *k = ctx;
    (void)host;
    pthread_mutex_lock(&k->lock);
    k->port = port;
    k->is_ready = true;
    pthread_cond_broadcast(&k->change);
    pthread_mutex_unlock(&k->lock);
}

static void *run(void *ctx)
{
    serve_kit *k = ctx;
    is_status st = is_server_run(&k->config, on_ready, k);
    pthread_mutex_lock(&k->lock);
    k->ended = st;
    if (st != INFERSCALE_OK) snprintf(k->error, sizeof k->error, "%s", is_error());
    k->is_over = true;
    pthread_cond_broadcast(&k->change);
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

static void set(serve_kit *k, const char *name, const char *value, is_set_by by)
{
    OK(is_config_set(&k->config, name, value, by, 0));
}

static serve_kit *start(const char *name, va_list ap)
{
    serve_kit *k = calloc(1, sizeof *k);
    assert_non_null(k);
    pthread_mutex_init(&k->lock, NULL);
    pthread_cond_init(&k->change, NULL);
    OK(is_config_init(&k->config));
    set(k, "port", "0", IS_BY_FILE);
    set(k, "engine", "mock", IS_BY_FILE);
    set(k, "plugins", live_plugins(), IS_BY_FILE);
    set(k, "refine", "none", IS_BY_FILE);
    set(k, "log", "off", IS_BY_FILE);
    for (; name; name = va_arg(ap, const char *)) set(k, name, va_arg(ap, const char *), IS_BY_FLAG);
    if (!*k->config.home) {
        k->own_home = true;
        k->home = scratch_make();
        set(k, "home", k->home, IS_BY_FLAG);
    } else {
        k->home = strdup(k->config.home);
    }
    assert_int_equal(pthread_create(&k->thread, NULL, run, k), 0);
    pthread_mutex_lock(&k->lock);
    while (!k->is_ready && !k->is_over) pthread_cond_wait(&k->change, &k->lock);
    pthread_mutex_unlock(&k->lock);
    return k;
}

static void drop(serve_kit *k)
{
    pthread_join(k->thread, NULL);
    if (k->own_home)
        scratch_remove(k->home);
    else
        free(k->home);
    is_config_free(&k->config);
    pthread_cond_destroy(&k->change);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

serve_kit *serve_start(const char *name, ...)
{
    va_list ap;
    va_start(ap, name);
    serve_kit *k = start(name, ap);
    va_end(ap);
    if (k->is_over) fail_msg("the server did not start: %s", k->error);
    return k;
}

is_status serve_start_fails(char *error, const char *name, ...)
{
    va_list ap;
    va_start(ap, name);
    serve_kit *k = start(name, ap);
    va_end(ap);
    assert_true(k->is_over);
    is_status st = k->ended;
    snprintf(error, 1024, "%s", k->error);
    drop(k);
    return st;
}

void serve_join(serve_kit *k)
{
    pthread_mutex_lock(&k->lock);
    while (!k->is_over) pthread_cond_wait(&k->change, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

void serve_stop(serve_kit *k)
{
    pthread_mutex_lock(&k->lock);
    bool over = k->is_over;
    pthread_mutex_unlock(&k->lock);
    if (!over) is_server_stop();
    serve_join(k);
    if (k->ended != INFERSCALE_OK) fail_msg("the server ended with %s: %s", inferscale_status_name(k->ended), k->error);
    drop(k);
}

/* ---- The client ---------------------------------------------------------------------------------------------------------- */

int serve_connect(const serve_kit *k)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)k->port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) fail_msg("no connection to port %d: %s", k->port, strerror(errno));
    return fd;
}

void serve_send(int fd, const void *p, size_t n)
{
    const char *at = p;
    while (n) {
        ssize_t put = send(fd, at, n, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return;
        at += put;
        n -= (size_t)put;
    }
}

void serve_sendf(int fd, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    assert_true(n >= 0);
    serve_send(fd, text, (size_t)n);
    free(text);
}

bool serve_ended(int fd, int ms)
{
    double until = is_now_ms() + ms;
    char c[4096];
    for (;;) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        int left = (int)(until - is_now_ms());
        if (left < 0 || poll(&p, 1, left) == 0) return false;
        ssize_t n = recv(fd, c, sizeof c, 0);
        if (n == 0 || (n < 0 && errno != EINTR)) return true;
    }
}

typedef struct input {
    int fd;
    char *p;
    size_t n, at, cap;
} input;

/* One more piece; false at the end. */
static bool more(input *in)
{
    struct pollfd p = { .fd = in->fd, .events = POLLIN };
    if (poll(&p, 1, patience_ms) == 0)
        fail_msg("no bytes for %d s; so far: %.*s", patience_ms / 1000, (int)in->n,
                 in->p ? in->p : "");
    if (in->cap < in->n + (64 << 10) + 1) {
        in->cap = 2 * in->cap + (64 << 10) + 1;
        in->p = realloc(in->p, in->cap);
        assert_non_null(in->p);
    }
    ssize_t n = recv(in->fd, in->p + in->n, 64 << 10, 0);
    if (n <= 0) n = 0;
    in->n += (size_t)n;
    in->p[in->n] = '\0';
    if (in->n > REPLY_MAX) fail_msg("a reply of more than 64 MiB");
    return n > 0;
}

static bool wait_for(input *in, size_t n)
{
    while (in->n - in->at < n)
        if (!more(in)) return false;
    return true;
}

/* The line at in->at, without its end; NULL if it never came. */
static char *line(input *in)
{
    for (;;) {
        char *end = in->n > in->at ? memmem(in->p + in->at, in->n - in->at, "\r\n", 2) : NULL;
        if (end) {
            char *s = strndup(in->p + in->at, (size_t)(end - in->p) - in->at);
            in->at = (size_t)(end - in->p) + 2;
            return s;
        }
        if (!more(in)) return NULL;
    }
}

static void append(serve_reply *r, const char *p, size_t n)
{
    if (r->cap < r->n + n + 1) {
        r->cap = 2 * (r->n + n) + 1;
        r->body = realloc(r->body, r->cap);
        assert_non_null(r->body);
    }
    memcpy(r->body + r->n, p, n);
    r->n += n;
    r->body[r->n] = '\0';
}

static bool take(input *in, serve_reply *r, size_t n)
{
    bool whole = wait_for(in, n);
    size_t there = in->n - in->at < n ? in->n - in->at : n;
    append(r, in->p + in->at, there);
    in->at += there;
    return whole;
}

static bool chunks(input *in, serve_reply *r)
{
    for (;;) {
        char *s = line(in), *end;
        if (!s) return false;
        unsigned long n = strtoul(s, &end, 16);
        if (end == s) fail_msg("\"%s\" is no length of a chunk", s);
        free(s);
        if (n == 0) return (s = line(in)) != NULL && (free(s), true);
        if (!take(in, r, n)) return false;
        s = line(in);
        if (!s) return false;
        assert_string_equal(s, "");
        free(s);
    }
}

const char *serve_head(const serve_reply *r, const char *name)
{
    static _Thread_local char buffers[4][4096];
    static _Thread_local unsigned turn;
    size_t n = strlen(name);
    for (const char *p = r->head; p && *p; p = strstr(p, "\r\n") ? strstr(p, "\r\n") + 2 : NULL) {
        if (strncasecmp(p, name, n) != 0 || p[n] != ':') continue;
        p += n + 1 + strspn(p + n + 1, " ");
        char *to = buffers[turn++ % 4];
        snprintf(to, sizeof *buffers, "%.*s", (int)strcspn(p, "\r"), p);
        return to;
    }
    return NULL;
}

serve_reply serve_read(int fd, const char *method)
{
    input in = { .fd = fd };
    serve_reply r = { 0 };
    const char *v;
    do { /* 100 Continue comes before the reply */
        char *end;
        while (!(in.n > in.at && (end = strstr(in.p + in.at, "\r\n\r\n"))))
            if (!more(&in)) break;
        if (!in.p || !strstr(in.p + in.at, "\r\n\r\n")) {
            free(in.p);
            r.body = calloc(1, 1);
            return r;
        }
        end = strstr(in.p + in.at, "\r\n\r\n");
        free(r.head);
        r.head = strndup(in.p + in.at, (size_t)(end - in.p) + 2 - in.at);
        in.at = (size_t)(end - in.p) + 4;
        if (sscanf(r.head, "HTTP/1.%*d %d", &r.status) != 1) fail_msg("no HTTP reply: %.200s", r.head);
    } while (r.status == 100);
    append(&r, "", 0);
    v = serve_head(&r, "Connection");
    r.closes = v && strcasecmp(v, "close") == 0;
    if (strcmp(method, "HEAD") == 0 || r.status == 204 || r.status == 304) {
        r.whole = true;
    } else if ((v = serve_head(&r, "Transfer-Encoding")) && strcasecmp(v, "chunked") == 0) {
        r.whole = chunks(&in, &r);
    } else if ((v = serve_head(&r, "Content-Length"))) {
        r.whole = take(&in, &r, strtoul(v, NULL, 10));
    } else {
        while (more(&in)) {}
        append(&r, in.p + in.at, in.n - in.at);
        r.whole = r.closes = true;
    }
    if (r.n) r.json = json_loadb(r.body, r.n, 0, NULL);
    free(in.p);
    return r;
}

serve_reply serve_call(const serve_kit *k, const char *method, const char *target, const char *headers, const char *body)
{
    int fd = serve_connect(k);
    serve_sendf(fd, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n%s", method, target, k->port,
                headers ? headers : "");
    if (body) serve_sendf(fd, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    serve_sendf(fd, "\r\n%s", body ? body : "");
    serve_reply r = serve_read(fd, method);
    close(fd);
    return r;
}

void serve_until_waiting(const serve_kit *k, const char *headers, int n)
{
    char want[64];
    snprintf(want, sizeof want, "\ninferscale_requests_waiting %d\n", n);
    for (int i = 0; i < 5000; i++) {
        serve_reply r = serve_call(k, "GET", "/metrics", headers, NULL);
        assert_int_equal(r.status, 200);
        bool there = strstr(r.body, want);
        serve_reply_free(&r);
        if (there) return;
        usleep(2000);
    }
    fail_msg("never %d requests waiting", n);
}

void serve_reply_free(serve_reply *r)
{
    free(r->head);
    free(r->body);
    json_decref(r->json);
    memset(r, 0, sizeof *r);
}

/* ---- Streams ------------------------------------------------------------------------------------------------------------- */

static const char *event_at(const serve_reply *r, size_t n)
{
    for (const char *p = r->body; p && *p; p = strstr(p, "\n\n") ? strstr(p, "\n\n") + 2 : NULL)
        if (strncmp(p, "data: ", 6) == 0 && n-- == 0) return p + 6;
    return NULL;
}

char *serve_event(const serve_reply *r, size_t n)
{
    const char *p = event_at(r, n);
    return p ? strndup(p, strcspn(p, "\n")) : NULL;
}

size_t serve_events(const serve_reply *r)
{
    size_t n = 0;
    while (event_at(r, n)) n++;
    return n;
}
