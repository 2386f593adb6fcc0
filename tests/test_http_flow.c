/* The HTTP face under load and over time: queues, hang-ups, streams, slow clients, limits of connections, drain. Every server here has
 * routes of the test, so that a request takes as long as the test wants. */
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "serve/http.h"
#include "serve/log.h"
#include "serve/server.h"
#include "support/scratch.h"
#include "support/serve_kit.h"

static serve_kit *kit;

/* ---- Routes of the test -------------------------------------------------------------------------------------------------- */

static atomic_int running, most, cancelled, began, ended_streams;
static atomic_int gate; /* held requests wait while it is 0 */

static void pause_ms(int ms) { usleep((useconds_t)ms * 1000); }

static bool is_cancelled(is_request *r) { return __atomic_load_n(is_request_cancel(r), __ATOMIC_ACQUIRE); }

/* Runs until the gate opens or it is cancelled. */
static void hold(is_server *s, is_request *r)
{
    int now = atomic_fetch_add(&running, 1) + 1, was = atomic_load(&most);
    (void)s;
    while (now > was && !atomic_compare_exchange_weak(&most, &was, now)) {}
    atomic_fetch_add(&began, 1);
    while (!atomic_load(&gate) && !is_cancelled(r)) pause_ms(2);
    atomic_fetch_sub(&running, 1);
    if (!is_cancelled(r)) {
        is_reply_json(r, 200, json_pack("{s:s?}", "q", is_request_query(r, "q")));
        return;
    }
    atomic_fetch_add(&cancelled, 1);
    is_reply_failed(r, is_fail(INFERSCALE_E_CANCELLED, "cancelled"), NULL);
}

/* n events, ms apart; `cut` leaves the end out. */
static void stream(is_server *s, is_request *r)
{
    const char *n = is_request_query(r, "n"), *ms = is_request_query(r, "ms");
    (void)s;
    if (!is_stream_begin(r, 200, "text/event-stream")) {
        atomic_fetch_add(&ended_streams, 1);
        return;
    }
    for (int i = 0; i < (n ? strtol(n, NULL, 10) : 1); i++) {
        if (!is_stream_event(r, json_pack("{s:i}", "i", i))) {
            atomic_fetch_add(&cancelled, 1);
            atomic_fetch_add(&ended_streams, 1);
            return;
        }
        if (ms) pause_ms((int)strtol(ms, NULL, 10));
    }
    atomic_fetch_add(&ended_streams, 1);
    if (is_request_query(r, "cut")) return;
    is_stream_write(r, "data: [DONE]\n\n", 14);
    is_stream_end(r);
}

/* Megabytes, as fast as they are taken. */
static void flood(is_server *s, is_request *r)
{
    static char bytes[100000];
    (void)s;
    is_stream_begin(r, 200, "application/octet-stream");
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i % 251);
    for (int i = 0; i < 200; i++)
        if (!is_stream_write(r, bytes, sizeof bytes)) {
            atomic_fetch_add(&cancelled, 1);
            break;
        }
    is_stream_end(r);
    atomic_fetch_add(&ended_streams, 1);
}

static void forgetful(is_server *s, is_request *r) { (void)s, (void)r; }

static void twice(is_server *s, is_request *r)
{
    (void)s;
    is_reply_header(r, "X-Bad", "a\r\nInjected: 1");
    is_reply_header(r, "X-Good", "yes");
    is_reply_json(r, 201, json_pack("{s:i}", "first", 1));
    is_reply_json(r, 500, json_pack("{s:i}", "second", 2));
    is_reply_header(r, "X-Late", "no");
    assert_false(is_stream_begin(r, 200, "text/plain"));
    assert_false(is_stream_write(r, "x", 1));
    is_stream_end(r);
}

static void fail_with(is_server *s, is_request *r)
{
    const char *q = is_request_query(r, "q");
    (void)s;
    is_request_note(r, "tried", "status");
    is_request_note(r, "times", "12");
    is_reply_failed(r, is_fail((is_status)strtol(q, NULL, 10), "it went wrong; \xff do better"), "param");
}

static const is_route routes[] = {
    { "GET", "/hold", hold, IS_FACE_OPENAI, IS_ROUTE_ENGINE | IS_ROUTE_ANSWERS },
    { "GET", "/short", hold, IS_FACE_OPENAI, 0 },
    { "GET", "/stream", stream, IS_FACE_OPENAI, IS_ROUTE_ENGINE },
    { "GET", "/flood", flood, IS_FACE_OPENAI, 0 },
    { "GET", "/forget", forgetful, IS_FACE_OPENAI, 0 },
    { "GET", "/twice", twice, IS_FACE_OPENAI, 0 },
    { "GET", "/fail/{code}", fail_with, IS_FACE_OPENAI, 0 },
    { 0 },
};

/* ---- Helpers ------------------------------------------------------------------------------------------------------------- */

static void fresh(void)
{
    atomic_store(&running, 0), atomic_store(&most, 0), atomic_store(&cancelled, 0), atomic_store(&began, 0);
    atomic_store(&ended_streams, 0), atomic_store(&gate, 0);
}

/* Waits for a counter; the test fails if it never comes. */
static void until(atomic_int *what, int value, const char *name)
{
    for (int i = 0; i < 10000 && atomic_load(what) < value; i++) pause_ms(2);
    if (atomic_load(what) < value) fail_msg("%s stayed at %d, not %d", name, atomic_load(what), value);
}

static int get(const char *target)
{
    int fd = serve_connect(kit);
    serve_sendf(fd, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", target);
    return fd;
}

static void expect(int fd, int status)
{
    serve_reply r = serve_read(fd, "GET");
    if (r.status != status) fail_msg("%d, not %d: %s", r.status, status, r.body);
    assert_true(r.whole);
    serve_reply_free(&r);
    close(fd);
}

static void stop(void)
{
    serve_kit *k = kit;
    kit = NULL;
    serve_stop(k);
}

/* After a test that failed. */
static int clean(void **state)
{
    atomic_store(&gate, 1);
    if (kit) is_server_stop();
    if (kit) stop();
    is_http_set_tune(&(is_http_tune){ 0 });
    return 0;
}

static void begin(const char *name, const char *value, const char *name2, const char *value2)
{
    fresh();
    is_server_set_extra(routes);
    kit = serve_start("parallel", "2", "max_queue", "3", name, value, name2, value2, NULL);
}

/* ---- Queues -------------------------------------------------------------------------------------------------------------- */

static void what_the_queue_cannot_take_hears_429_and_when_to_come_again(void **state)
{
    int fds[5];
    begin(NULL, NULL, NULL, NULL);
    for (int i = 0; i < 5; i++) fds[i] = get("/hold?q=x");
    until(&running, 2, "running");
    serve_until_waiting(kit, NULL, 3);
    serve_reply r = serve_call(kit, "GET", "/hold", NULL, NULL);
    assert_int_equal(r.status, 429);
    assert_true(strtol(serve_head(&r, "Retry-After"), NULL, 10) >= 1);
    assert_string_equal(json_string_value(json_object_get(json_object_get(r.json, "error"), "code")), "queue_full");
    serve_reply_free(&r);
    expect(get("/health"), 200); /* short work goes past the engine's queue */
    atomic_store(&gate, 1);
    for (int i = 0; i < 5; i++) expect(fds[i], 200);
    assert_int_equal(atomic_load(&most), 2); /* never more than `parallel` */
    expect(get("/hold"), 200);
    stop();
}

/* ---- Hang-ups ------------------------------------------------------------------------------------------------------------ */

static void a_client_that_hangs_up_cancels_its_request(void **state)
{
    begin(NULL, NULL, NULL, NULL);
    int a = get("/hold"), b = get("/hold");
    until(&running, 2, "running"); /* so these two run, and who comes later waits */
    int c = get("/hold");
    serve_until_waiting(kit, NULL, 1);
    int d = get("/hold?q=d");
    serve_until_waiting(kit, NULL, 2);
    close(c); /* it waits in the queue: it never runs */
    serve_until_waiting(kit, NULL, 1);
    close(a);
    until(&cancelled, 1, "cancelled");
    until(&began, 3, "began"); /* d took its place */
    struct linger now = { 1, 0 };
    setsockopt(b, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* a reset instead of an end */
    close(b);
    until(&cancelled, 2, "cancelled");
    atomic_store(&gate, 1);
    expect(d, 200);
    pause_ms(50);
    assert_int_equal(atomic_load(&began), 3);
    /* Short work is not cut short: a half-closed socket gets its reply. */
    atomic_store(&gate, 0);
    int e = get("/short?q=e");
    shutdown(e, SHUT_WR);
    until(&running, 1, "running");
    pause_ms(400);
    atomic_store(&gate, 1);
    expect(e, 200);
    assert_int_equal(atomic_load(&cancelled), 2);
    stop();
}

static void a_client_that_hangs_up_ends_its_stream(void **state)
{
    begin(NULL, NULL, NULL, NULL);
    for (int i = 0; i < 6; i++) { /* more than run at once: each gives its worker back */
        char c[100];
        int fd = get("/stream?n=100000&ms=20");
        assert_true(recv(fd, c, sizeof c, 0) > 0);
        close(fd);
        until(&cancelled, i + 1, "cancelled");
    }
    stop();
}

static void a_request_that_takes_too_long_is_cancelled(void **state)
{
    begin("generate_s", "1", NULL, NULL);
    serve_reply r = serve_call(kit, "GET", "/hold", NULL, NULL);
    assert_int_equal(r.status, 504);
    serve_reply_free(&r);
    stop();
}

/* ---- Streams ------------------------------------------------------------------------------------------------------------- */

static void a_stream_arrives_whole_and_in_order(void **state)
{
    begin(NULL, NULL, NULL, NULL);
    for (int ms = 0; ms < 2; ms++) {
        serve_reply r = serve_call(kit, "GET", ms ? "/stream?n=50&ms=3" : "/stream?n=20000", NULL, NULL);
        int n = ms ? 50 : 20000, at = 0;
        assert_int_equal(r.status, 200);
        assert_true(r.whole);
        assert_string_equal(serve_head(&r, "Content-Type"), "text/event-stream");
        for (const char *p = r.body; (p = strstr(p, "data: {\"i\":")); p += 11, at++)
            assert_int_equal(strtol(p + 11, NULL, 10), at);
        assert_int_equal(at, n);
        assert_non_null(strstr(r.body, "data: [DONE]\n\n"));
        serve_reply_free(&r);
    }
    serve_reply r = serve_call(kit, "GET", "/flood", NULL, NULL);
    assert_int_equal(r.n, 20000000);
    for (size_t i = 0; i < r.n; i++)
        if (r.body[i] != (char)(i % 100000 % 251)) fail_msg("byte %zu is wrong", i);
    serve_reply_free(&r);
    /* One that its route did not end does not look whole. */
    r = serve_call(kit, "GET", "/stream?n=3&cut=1", NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_false(r.whole);
    assert_int_equal(serve_events(&r), 3);
    serve_reply_free(&r);
    /* HEAD has no body, and its route stops. */
    r = serve_call(kit, "HEAD", "/stream?n=100000&ms=100", NULL, NULL);
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    /* HTTP/1.0 knows no chunks: the end of the connection is the end. */
    int fd = serve_connect(kit);
    serve_sendf(fd, "GET /stream?n=5 HTTP/1.0\r\n\r\n");
    r = serve_read(fd, "GET");
    assert_null(serve_head(&r, "Transfer-Encoding"));
    assert_int_equal(serve_events(&r), 6);
    serve_reply_free(&r);
    close(fd);
    /* The connection is good for another request afterwards. */
    fd = get("/stream?n=2");
    r = serve_read(fd, "GET");
    assert_true(r.whole && !r.closes);
    serve_reply_free(&r);
    serve_sendf(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    expect(fd, 200);
    stop();
}

static void a_silent_stream_is_pinged_between_events(void **state)
{
    is_http_tune tune = { .ping_ms = 50, .watch_ms = 10 };
    is_http_set_tune(&tune);
    begin(NULL, NULL, NULL, NULL);
    serve_reply r = serve_call(kit, "GET", "/stream?n=3&ms=400", NULL, NULL);
    int pings = 0, events = 0;
    for (char *p = r.body, *end; (end = strstr(p, "\n\n")); p = end + 2) { /* nothing but whole pings and whole events */
        *end = '\0';
        if (strcmp(p, ": ping") == 0)
            pings++;
        else if (strncmp(p, "data: ", 6) == 0)
            events++;
        else
            fail_msg("neither event nor ping: %s", p);
    }
    assert_int_equal(events, 4);
    assert_true(pings >= 3);
    serve_reply_free(&r);
    stop();
    is_http_set_tune(&(is_http_tune){ 0 });
}

static void a_client_that_does_not_read_is_cut(void **state)
{
    is_http_tune tune = { .slow_ms = 400 };
    is_http_set_tune(&tune);
    begin(NULL, NULL, NULL, NULL);
    int fd = get("/flood"); /* 20 MB that nobody takes */
    until(&cancelled, 1, "cancelled");
    until(&ended_streams, 1, "streams");
    assert_true(serve_ended(fd, 5000));
    close(fd);
    expect(get("/health"), 200);
    stop();
    is_http_set_tune(&(is_http_tune){ 0 });
}

/* ---- Replies that are wrong ---------------------------------------------------------------------------------------------- */

static void a_route_replies_exactly_once(void **state)
{
    begin(NULL, NULL, NULL, NULL);
    serve_reply r = serve_call(kit, "GET", "/forget", NULL, NULL);
    assert_int_equal(r.status, 500);
    serve_reply_free(&r);
    r = serve_call(kit, "GET", "/twice", NULL, NULL);
    assert_int_equal(r.status, 201);
    assert_string_equal(r.body, "{\"first\":1}");
    assert_null(serve_head(&r, "X-Bad"));
    assert_null(serve_head(&r, "Injected"));
    assert_null(serve_head(&r, "X-Late"));
    assert_string_equal(serve_head(&r, "X-Good"), "yes");
    serve_reply_free(&r);
    static const struct {
        inferscale_status st;
        int status;
    } map[] = {
        { INFERSCALE_E_INVALID, 400 },     { INFERSCALE_E_PARSE, 400 },  { INFERSCALE_E_CONTEXT, 400 },
        { INFERSCALE_E_UNSUPPORTED, 400 }, { INFERSCALE_E_DENIED, 403 }, { INFERSCALE_E_NOTFOUND, 404 },
        { INFERSCALE_E_BUSY, 429 },        { INFERSCALE_E_FULL, 507 },   { INFERSCALE_E_READONLY, 507 },
        { INFERSCALE_E_CANCELLED, 499 },   { INFERSCALE_E_IO, 500 },     { INFERSCALE_E_INTERNAL, 500 },
        { INFERSCALE_E_STALE, 429 },
    };
    for (size_t i = 0; i < sizeof map / sizeof *map; i++) {
        char target[40];
        snprintf(target, sizeof target, "/fail/x?q=%d", map[i].st);
        r = serve_call(kit, "GET", target, NULL, NULL);
        assert_int_equal(r.status, map[i].status);
        json_t *e = json_object_get(r.json, "error");
        assert_string_equal(json_string_value(json_object_get(e, "message")), "it went wrong; ? do better");
        assert_string_equal(json_string_value(json_object_get(e, "param")), "param");
        assert_true((map[i].status == 429) == (serve_head(&r, "Retry-After") != NULL));
        serve_reply_free(&r);
    }
    stop();
}

/* ---- Slow and many ------------------------------------------------------------------------------------------------------- */

static void slow_clients_are_told_or_cut(void **state)
{
    begin("read_s", "1", "idle_s", "2");
    int idle = serve_connect(kit), line = serve_connect(kit), head = serve_connect(kit), body = serve_connect(kit),
        drip = serve_connect(kit);
    serve_sendf(line, "GET /hea");
    serve_sendf(head, "GET /health HTTP/1.1\r\nHost: loc");
    serve_sendf(body, "POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc");
    serve_sendf(drip, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 30; i++) { /* a byte now and then is no progress */
        serve_sendf(drip, "X-%d: 1\r\n", i);
        pause_ms(60);
    }
    serve_reply r = serve_read(head, "GET");
    assert_int_equal(r.status, 408);
    assert_true(r.whole);
    assert_non_null(r.json);
    serve_reply_free(&r);
    r = serve_read(body, "POST");
    assert_true(r.status == 408 || r.status == 405);
    serve_reply_free(&r);
    r = serve_read(drip, "GET");
    assert_int_equal(r.status, 408);
    serve_reply_free(&r);
    assert_true(serve_ended(line, 6000));
    assert_true(serve_ended(idle, 6000));
    close(idle), close(line), close(head), close(body), close(drip);
    expect(get("/health"), 200);
    stop();
}

static void connections_beyond_the_bound_are_told_so(void **state)
{
    enum { N = 60 };
    int fds[N], ok = 0, told = 0;
    begin("max_connections", "8", NULL, NULL);
    for (int i = 0; i < 30; i++) fds[i] = get("/short");
    for (int i = 30; i < N; i++) fds[i] = serve_connect(kit);
    pause_ms(200);
    atomic_store(&gate, 1);
    for (int i = 0; i < 30; i++) {
        serve_reply r = serve_read(fds[i], "GET");
        ok += r.status == 200;
        told += r.status == 503;
        if (r.status == 503) assert_true(r.closes && serve_head(&r, "Retry-After"));
        serve_reply_free(&r);
    }
    assert_int_equal(ok + told, 30);
    assert_true(told > 0);
    for (int i = 0; i < N; i++) close(fds[i]);
    for (int i = 0;; i++) {
        serve_reply r = serve_call(kit, "GET", "/health", NULL, NULL);
        bool good = r.status == 200;
        serve_reply_free(&r);
        if (good) break;
        assert_true(i < 200);
        pause_ms(20);
    }
    stop();
}

typedef struct caller {
    int n;
    pthread_t thread;
    int bad;
} caller;

static void *call_often(void *ctx)
{
    caller *c = ctx;
    for (int i = 0; i < 5; i++) {
        char target[64], want[32];
        snprintf(target, sizeof target, "/short?q=c%dn%d", c->n, i);
        snprintf(want, sizeof want, "c%dn%d", c->n, i);
        serve_reply r = serve_call(kit, "GET", target, NULL, NULL);
        const char *q = json_string_value(json_object_get(r.json, "q"));
        c->bad += r.status != 200 || !q || strcmp(q, want) != 0;
        serve_reply_free(&r);
    }
    return NULL;
}

static void two_hundred_connections_at_once_are_answered_and_not_mixed_up(void **state)
{
    enum { N = 200 };
    static caller callers[N];
    int bad = 0;
    begin(NULL, NULL, NULL, NULL);
    atomic_store(&gate, 1);
    for (int i = 0; i < N; i++) callers[i] = (caller){ .n = i };
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    for (int i = 0; i < N; i++) pthread_join(callers[i].thread, NULL), bad += callers[i].bad;
    assert_int_equal(bad, 0);
    stop();
}

/* ---- The end ------------------------------------------------------------------------------------------------------------- */

static void a_server_that_ends_lets_requests_end(void **state)
{
    begin("drain_s", "20", NULL, NULL);
    int a = get("/hold"), s = get("/stream?n=40&ms=20"), kept = get("/health"), other = get("/health");
    serve_reply r = serve_read(kept, "GET");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    until(&running, 1, "running");
    is_server_stop();
    for (bool ends = false; !ends; pause_ms(2)) { /* replies say it when it has begun to end */
        r = serve_read(other, "GET");
        assert_int_equal(r.status, 200);
        ends = r.closes;
        if (!ends) serve_sendf(other, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
        serve_reply_free(&r);
    }
    close(other);
    serve_sendf(kept, "GET /hold HTTP/1.1\r\nHost: localhost\r\n\r\n"); /* an old connection hears why not */
    r = serve_read(kept, "GET");
    assert_int_equal(r.status, 503);
    assert_true(r.closes && serve_head(&r, "Retry-After"));
    serve_reply_free(&r);
    close(kept);
    r = serve_read(s, "GET");
    assert_true(r.whole);
    assert_int_equal(serve_events(&r), 41);
    serve_reply_free(&r);
    close(s);
    atomic_store(&gate, 1);
    expect(a, 200);
    serve_join(kit);
    assert_int_equal(atomic_load(&cancelled), 0);
    stop();
}

static void when_the_time_is_over_or_somebody_is_in_a_hurry_requests_are_cancelled(void **state)
{
    for (int hurry = 0; hurry < 2; hurry++) {
        begin("drain_s", hurry ? "600" : "0", NULL, NULL);
        int a = get("/hold"), b = get("/hold"), waiting = get("/hold");
        until(&running, 2, "running");
        serve_until_waiting(kit, NULL, 1);
        is_server_stop();
        pause_ms(100);
        if (hurry) assert_int_equal(atomic_load(&cancelled), 0);
        if (hurry) is_server_stop();
        expect(a, 503);
        expect(b, 503);
        expect(waiting, 503);
        serve_join(kit);
        assert_int_equal(atomic_load(&cancelled), 2);
        stop();
    }
}

static void *run_server(void *ctx)
{
    static is_status st;

    st = is_server_run(ctx, NULL, NULL);
    return &st;
}

/* A model that would take ten minutes to load: who stops the server does not wait for it. */
static void a_server_that_loads_its_model_ends_too(void **state)
{
    char *home = scratch_make();
    is_config c;
    pthread_t thread;
    void *st;
    struct timespec until;

    is_server_set_extra(NULL);
    OK(is_config_init(&c));
    OK(is_config_set(&c, "port", "0", IS_BY_FLAG, 0));
    OK(is_config_set(&c, "engine", "mock", IS_BY_FLAG, 0));
    OK(is_config_set(&c, "model", "mock:load=600000", IS_BY_FLAG, 0));
    OK(is_config_set(&c, "home", home, IS_BY_FLAG, 0));
    OK(is_config_set(&c, "log", "off", IS_BY_FLAG, 0));
    assert_int_equal(pthread_create(&thread, NULL, run_server, &c), 0);
    pause_ms(500);
    is_server_stop();
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 120;
    if (pthread_timedjoin_np(thread, &st, &until) != 0) fail_msg("the server still loads");
    assert_int_equal(*(is_status *)st, INFERSCALE_OK);
    is_config_free(&c);
    scratch_remove(home);
}

/* ---- The log ------------------------------------------------------------------------------------------------------------- */

static char logged[1 << 20];
static size_t logged_n;

static void keep_line(void *ctx, const char *line, size_t n)
{
    (void)ctx;
    if (logged_n + n >= sizeof logged) return;
    memcpy(logged + logged_n, line, n);
    logged_n += n;
    logged[logged_n] = '\0';
}

static void the_log_says_what_happened_and_nothing_private(void **state)
{
    logged_n = 0;
    OK(is_serve_log_start(IS_LOG_FORM_JSON, keep_line, NULL));
    begin(NULL, NULL, NULL, NULL);
    serve_reply r = serve_call(kit, "GET", "/fail/s3cret-id?q=6&token=s3cret-query",
                               "Authorization: Bearer s3cret-key\r\nX-Request-Id: my-id\r\n", "s3cret-body");
    serve_reply_free(&r);
    r = serve_call(kit, "GET", "/s3cret-path", NULL, NULL);
    serve_reply_free(&r);
    r = serve_call(kit, "S3CRET", "/health", NULL, NULL);
    serve_reply_free(&r);
    stop();
    is_serve_log_stop();
    assert_null(strcasestr(logged, "s3cret"));
    int lines = 0, requests = 0;
    for (char *p = logged, *end; (end = strchr(p, '\n')); p = end + 1, lines++) {
        *end = '\0';
        json_t *o = json_loads(p, JSON_REJECT_DUPLICATES, NULL);
        if (!o) fail_msg("no JSON: %s", p);
        const char *id = json_string_value(json_object_get(o, "request"));
        requests += id != NULL;
        if (id && strcmp(id, "my-id") == 0) {
            assert_string_equal(json_string_value(json_object_get(o, "route")), "/fail/{code}");
            assert_string_equal(json_string_value(json_object_get(o, "method")), "GET");
            assert_string_equal(json_string_value(json_object_get(o, "tried")), "status");
            assert_int_equal(json_integer_value(json_object_get(o, "times")), 12);
            assert_int_equal(json_integer_value(json_object_get(o, "status")), 404);
            assert_true(json_is_number(json_object_get(o, "ms")) && json_is_integer(json_object_get(o, "bytes")));
            assert_int_equal(strlen(json_string_value(json_object_get(o, "time"))), 24);
        }
        json_decref(o);
    }
    assert_int_equal(requests, 3);
    assert_true(lines > 3);
}

/* ---- Starting ------------------------------------------------------------------------------------------------------------ */

static void what_cannot_start_says_why(void **state)
{
    char error[1024], port[16];
    is_server_set_extra(NULL);
    assert_int_equal(serve_start_fails(error, "host", "0.0.0.0", NULL), INFERSCALE_E_DENIED);
    assert_non_null(strstr(error, "--keys"));
    assert_int_equal(serve_start_fails(error, "host", "no.such.host.invalid", "keys", "/nonexistent", NULL),
                     INFERSCALE_E_NOTFOUND);
    assert_int_equal(serve_start_fails(error, "tls_cert", "/nonexistent", NULL), INFERSCALE_E_INVALID);
    assert_int_equal(serve_start_fails(error, "tls_cert", "/nonexistent", "tls_key", "/nonexistent", NULL),
                     INFERSCALE_E_NOTFOUND);
    assert_int_equal(serve_start_fails(error, "max_connections", "100000", NULL), INFERSCALE_E_INVALID);
    assert_non_null(strstr(error, "ulimit"));
    kit = serve_start(NULL);
    snprintf(port, sizeof port, "%d", kit->port);
    is_config c;
    OK(is_config_init(&c)); /* a second one in this process */
    FAILS(E_INVALID, is_server_run(&c, NULL, NULL));
    is_config_free(&c);
    stop();
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* a port that another has */
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
    assert_int_equal(serve_start_fails(error, "port", port, NULL), INFERSCALE_E_BUSY);
    assert_non_null(strstr(error, port));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_the_queue_cannot_take_hears_429_and_when_to_come_again, clean),
        cmocka_unit_test_teardown(a_client_that_hangs_up_cancels_its_request, clean),
        cmocka_unit_test_teardown(a_client_that_hangs_up_ends_its_stream, clean),
        cmocka_unit_test_teardown(a_request_that_takes_too_long_is_cancelled, clean),
        cmocka_unit_test_teardown(a_stream_arrives_whole_and_in_order, clean),
        cmocka_unit_test_teardown(a_silent_stream_is_pinged_between_events, clean),
        cmocka_unit_test_teardown(a_client_that_does_not_read_is_cut, clean),
        cmocka_unit_test_teardown(a_route_replies_exactly_once, clean),
        cmocka_unit_test_teardown(slow_clients_are_told_or_cut, clean),
        cmocka_unit_test_teardown(connections_beyond_the_bound_are_told_so, clean),
        cmocka_unit_test_teardown(two_hundred_connections_at_once_are_answered_and_not_mixed_up, clean),
        cmocka_unit_test_teardown(a_server_that_ends_lets_requests_end, clean),
        cmocka_unit_test_teardown(when_the_time_is_over_or_somebody_is_in_a_hurry_requests_are_cancelled, clean),
        cmocka_unit_test_teardown(a_server_that_loads_its_model_ends_too, clean),
        cmocka_unit_test_teardown(the_log_says_what_happened_and_nothing_private, clean),
        cmocka_unit_test_teardown(what_cannot_start_says_why, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
