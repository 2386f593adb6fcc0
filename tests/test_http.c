/* The HTTP face: requests in every shape a client, a proxy or an enemy sends them. Each case says what must hold. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "serve/http.h"
#include "serve/server.h"
#include "support/scratch.h"
#include "support/serve_kit.h"

static serve_kit *kit;

/* ---- Routes of the test -------------------------------------------------------------------------------------------------- */

/* Says what came. */
static void echo(is_server *s, is_request *r)
{
    size_t n;
    const char *body = is_request_body(r, &n);
    const char *q = is_request_query(r, "q"), *name = is_request_param(r, "name"), *h = is_request_header(r, "x-thing");
    (void)s;
    is_reply_json(r, 200,
                  json_pack("{s:s,s:s,s:s?,s:s?,s:s?,s:I,s:s%}", "method", is_request_method(r), "path", is_request_path(r),
                            "q", q, "name", name, "thing", h, "n", (json_int_t)n, "body", body, n < 1000 ? n : 0));
}

static void parse(is_server *s, is_request *r)
{
    json_t *o = is_request_json(r);
    (void)s;
    if (o) is_reply_json(r, 200, json_pack("{s:I}", "members", (json_int_t)json_object_size(o)));
}

static const is_route routes[] = {
    { "GET", "/echo", echo, IS_FACE_OPENAI, 0 },        { "POST", "/echo", echo, IS_FACE_OPENAI, 0 },
    { "GET", "/echo/{name}", echo, IS_FACE_OPENAI, 0 }, { "DELETE", "/echo/{name}", echo, IS_FACE_MEMORY, 0 },
    { "POST", "/json", parse, IS_FACE_OPENAI, 0 },      { 0 },
};

static void expect(int status, const char *method, const char *target, const char *headers, const char *body)
{
    serve_reply r = serve_call(kit, method, target, headers, body);
    if (r.status != status) fail_msg("%s %s gave %d, not %d: %s", method, target, r.status, status, r.body);
    assert_true(r.whole);
    assert_non_null(serve_head(&r, "X-Request-Id"));
    serve_reply_free(&r);
}

/* What the answer to an unknown path names; NULL: nothing. */
static void expect_meant(const char *method, const char *path, const char *meant)
{
    serve_reply r = serve_call(kit, method, path, NULL, "{}");
    char want[100];
    snprintf(want, sizeof want, "did you mean %s?", meant ? meant : "");
    assert_int_equal(r.status, 404);
    if (meant ? !strstr(r.body, want) : !!strstr(r.body, "did you mean"))
        fail_msg("%s: %s", path, r.body);
    assert_non_null(strstr(r.body, "/openapi.json lists the paths"));
    serve_reply_free(&r);
}

static void an_unknown_path_near_a_known_one_names_it(void **state)
{
    (void)state;
    expect_meant("POST", "/chat/completions", "/v1/chat/completions");
    expect_meant("POST", "/api/v1/chat/completions", "/v1/chat/completions");
    expect_meant("POST", "/v2/embeddings", "/v1/embeddings");
    expect_meant("GET", "/models/x", "/v1/models/x");
    expect_meant("GET", "/v1/health", "/health");
    expect_meant("POST", "/v1/search", "/search");
    expect_meant("POST", "/v1/chat/completion", "/v1/chat/completions");
    expect_meant("GET", "/helth", "/health");
    expect_meant("GET", "/nowhere", NULL);
    expect_meant("POST", "/api/generate", NULL);
}

static void a_request_reaches_its_route(void **state)
{
    serve_reply r = serve_call(kit, "GET", "/echo/caf%C3%A9%2Fa?q=a+b%26c&q=second", "X-Thing: here\r\n", NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(json_string_value(json_object_get(r.json, "name")), "caf\xc3\xa9/a");
    assert_string_equal(json_string_value(json_object_get(r.json, "q")), "a b&c");
    assert_string_equal(json_string_value(json_object_get(r.json, "thing")), "here");
    serve_reply_free(&r);
    expect(200, "GET", "/echo/", NULL, NULL);
    expect(404, "GET", "/echo//", NULL, NULL);
    expect(404, "GET", "/Echo", NULL, NULL);
    expect(404, "GET", "/echo/a/b", NULL, NULL);
    expect(405, "PUT", "/echo", NULL, "{}");
    expect(200, "GET", "http://127.0.0.1/echo", NULL, NULL);
}

static void a_malformed_target_is_refused(void **state)
{
    static const char *const bad[] = { "/echo/%",
                                       "/echo/%4",
                                       "/echo/%zz",
                                       "/echo/%00",
                                       "/echo/a%00b",
                                       "/echo/%ff",
                                       "/echo/%c3%28",
                                       "/echo?q=%",
                                       "/echo?q=%00",
                                       "/echo?%ff=1",
                                       "/echo?q=%ed%a0%80",
                                       "/echo#x",
                                       "/e\x01"
                                       "cho",
                                       "/e\x7f"
                                       "cho" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect(400, "GET", bad[i], NULL, NULL);
    expect(404, "GET", "/../etc/passwd", NULL, NULL);
    expect(404, "GET", "/%2e%2e/%2e%2e/etc/passwd", NULL, NULL);
    char long_target[40000];
    memset(long_target, 'a', sizeof long_target - 1);
    long_target[0] = '/';
    long_target[sizeof long_target - 1] = '\0';
    serve_reply r = serve_call(kit, "GET", long_target, NULL, NULL);
    assert_true(r.status == 414 || r.status == 431 || r.status == 0);
    serve_reply_free(&r);
    char many[4096] = "/echo?";
    for (int i = 0; i < 70; i++) snprintf(many + strlen(many), sizeof many - strlen(many), "a%d=1&", i);
    expect(400, "GET", many, NULL, NULL);
    expect(200, "GET", "/echo?&&=&a", NULL, NULL);
}

static void methods_that_a_path_does_not_take_are_named(void **state)
{
    serve_reply r = serve_call(kit, "PUT", "/echo/x", NULL, "{}");
    assert_int_equal(r.status, 405);
    assert_string_equal(serve_head(&r, "Allow"), "GET, HEAD, DELETE, OPTIONS");
    assert_non_null(json_object_get(json_object_get(r.json, "error"), "message"));
    serve_reply_free(&r);
    r = serve_call(kit, "HEAD", "/echo", NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.n, 0);
    assert_true(strtol(serve_head(&r, "Content-Length"), NULL, 10) > 10);
    serve_reply_free(&r);
    r = serve_call(kit, "OPTIONS", "/echo", "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n", NULL);
    assert_int_equal(r.status, 204);
    assert_null(serve_head(&r, "Access-Control-Allow-Origin")); /* off unless it was configured */
    serve_reply_free(&r);
    r = serve_call(kit, "OPTIONS", "*", NULL, NULL);
    assert_int_equal(r.status, 204);
    serve_reply_free(&r);
    expect(404, "OPTIONS", "/nowhere", NULL, NULL);
    expect(405, "BREW", "/echo", NULL, NULL);
    r = serve_call(kit, "GET", "/memories/none-here/x/y", NULL, NULL); /* Mem0's clients read "detail" */
    assert_int_equal(r.status, 404);
    assert_non_null(json_object_get(r.json, "detail"));
    serve_reply_free(&r);
}

static void the_callers_id_comes_back_if_it_is_decent(void **state)
{
    serve_reply r = serve_call(kit, "GET", "/echo", "X-Request-Id: abc-1.2_3\r\n", NULL);
    assert_string_equal(serve_head(&r, "X-Request-Id"), "abc-1.2_3");
    serve_reply_free(&r);
    static const char *const odd[] = { "X-Request-Id: a b\r\n", "X-Request-Id: <b>\r\n", "X-Request-Id: \"\r\n",
                                       "X-Request-Id: "
                                       "0123456789012345678901234567890123456789012345678901234567890123456789\r\n" };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        r = serve_call(kit, "GET", "/echo", odd[i], NULL);
        assert_int_equal(strncmp(serve_head(&r, "X-Request-Id"), "req_", 4), 0);
        serve_reply_free(&r);
    }
}

/* ---- Bodies -------------------------------------------------------------------------------------------------------------- */

static void a_body_may_come_in_any_pieces(void **state)
{
    unsigned long long rng = scratch_seed("pieces");
    for (int round = 0; round < 20; round++) {
        size_t n = scratch_below(&rng, 3000), at = 0;
        char *body = malloc(n + 1), head[200];
        for (size_t i = 0; i < n; i++) body[i] = (char)('a' + scratch_below(&rng, 26));
        body[n] = '\0';
        bool chunked = scratch_below(&rng, 2);
        int fd = serve_connect(kit);
        snprintf(head, sizeof head, "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        if (!chunked) snprintf(head + strlen(head), sizeof head - strlen(head), "Content-Length: %zu\r\n\r\n", n);
        if (chunked) snprintf(head + strlen(head), sizeof head - strlen(head), "Transfer-Encoding: chunked\r\n\r\n");
        for (size_t i = 0; i < strlen(head); i++) serve_send(fd, head + i, 1);
        while (at < n) {
            size_t piece = 1 + scratch_below(&rng, 500);
            if (piece > n - at) piece = n - at;
            if (chunked) serve_sendf(fd, "%zx;ext=\"1\"\r\n", piece);
            serve_send(fd, body + at, piece);
            if (chunked) serve_sendf(fd, "\r\n");
            at += piece;
        }
        if (chunked) serve_sendf(fd, "0\r\nX-Trailer: 1\r\n\r\n");
        serve_reply r = serve_read(fd, "POST");
        assert_int_equal(r.status, 200);
        assert_int_equal(json_integer_value(json_object_get(r.json, "n")), n);
        if (n < 1000) assert_string_equal(json_string_value(json_object_get(r.json, "body")), body);
        serve_reply_free(&r);
        close(fd);
        free(body);
    }
}

static serve_reply post_bytes(size_t n, bool chunked, const char *more)
{
    char *body = malloc(n + 1);
    int fd = serve_connect(kit);
    memset(body, 'x', n);
    serve_sendf(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\n%s", more);
    if (chunked) serve_sendf(fd, "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", n);
    if (!chunked) serve_sendf(fd, "Content-Length: %zu\r\n\r\n", n);
    serve_send(fd, body, n);
    if (chunked) serve_sendf(fd, "\r\n0\r\n\r\n");
    serve_reply r = serve_read(fd, "POST");
    close(fd);
    free(body);
    return r;
}

/* max_body of this server is 64 KiB. */
static void a_body_that_is_too_long_is_413_and_not_kept(void **state)
{
    for (int chunked = 0; chunked < 2; chunked++) {
        serve_reply r = post_bytes(64 << 10, chunked, "");
        assert_int_equal(r.status, 200);
        serve_reply_free(&r);
        static const size_t long_ones[] = { (64 << 10) + 1, 1 << 20, 6 << 20 };
        for (size_t i = 0; i < 3; i++) {
            r = post_bytes(long_ones[i], chunked, "");
            assert_int_equal(r.status, 413);
            assert_string_equal(json_string_value(json_object_get(json_object_get(r.json, "error"), "code")),
                                "request_too_large");
            assert_true(r.closes);
            serve_reply_free(&r);
        }
    }
    /* One that says it will be a terabyte is told at once. */
    int fd = serve_connect(kit);
    serve_sendf(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1099511627776\r\n\r\n");
    serve_reply r = serve_read(fd, "POST");
    assert_int_equal(r.status, 413);
    serve_reply_free(&r);
    close(fd);
    /* One that never ends is cut. */
    fd = serve_connect(kit);
    serve_sendf(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    char piece[65536];
    memset(piece, 'y', sizeof piece);
    bool cut = false;
    for (int i = 0; i < 400 && !cut; i++) {
        serve_sendf(fd, "%zx\r\n", sizeof piece);
        cut = send(fd, piece, sizeof piece, MSG_NOSIGNAL) < 0;
        serve_sendf(fd, "\r\n");
    }
    assert_true(cut);
    close(fd);
}

static void a_client_that_waits_for_100_continue_hears_it_or_the_refusal(void **state)
{
    int fd = serve_connect(kit);
    serve_sendf(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    char line[64] = "";
    assert_true(recv(fd, line, sizeof line - 1, 0) > 0);
    assert_int_equal(strncmp(line, "HTTP/1.1 100", 12), 0);
    serve_sendf(fd, "abc");
    serve_reply r = serve_read(fd, "POST");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    close(fd);
    fd = serve_connect(kit);
    serve_sendf(fd, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    r = serve_read(fd, "POST");
    assert_int_equal(r.status, 404);
    serve_reply_free(&r);
    close(fd);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------------- */

static void what_is_no_json_object_is_400(void **state)
{
    static const char *const bad[] = { "",
                                       " ",
                                       "{",
                                       "{\"a\":1",
                                       "{\"a\":1}x",
                                       "[]",
                                       "1",
                                       "\"a\"",
                                       "null",
                                       "{\"a\":\"\xff\"}",
                                       "{\"a\":\"\xed\xa0\x80\"}",
                                       "{\"a\":\"b\\u0000c\"}",
                                       "{\"a\":1,\"a\":2}",
                                       "{\"a\":\"\\ud800\"}",
                                       "{'a':1}",
                                       "{\"a\":NaN}",
                                       "{\"a\":1e999}",
                                       "{\"a\":\"\x01\"}",
                                       "{\"\\u0000\":1}",
                                       "\xef\xbb\xbf{}",
                                       "{\"a\":99999999999999999999}" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        serve_reply r = serve_call(kit, "POST", "/json", NULL, bad[i]);
        if (r.status != 400) fail_msg("\"%s\" gave %d: %s", bad[i], r.status, r.body);
        assert_non_null(json_object_get(json_object_get(r.json, "error"), "message"));
        serve_reply_free(&r);
    }
    expect(200, "POST", "/json", NULL, "{}");
    expect(200, "POST", "/json", NULL, "{\"a\":\"\\u00e9\\ud83d\\ude00\"}");
    char deep[20000];
    for (int depth = 60; depth <= 9000; depth += 4470) {
        memset(deep, '[', (size_t)depth);
        memcpy(deep, "{\"a\":", 5);
        memset(deep + depth, ']', (size_t)depth - 5);
        deep[2 * depth - 5] = '}';
        deep[2 * depth - 4] = '\0';
        expect(depth == 60 ? 200 : 400, "POST", "/json", NULL, deep);
        memset(deep, '[', (size_t)depth); /* never closed */
        deep[depth] = '\0';
        expect(400, "POST", "/json", NULL, deep);
    }
    /* An error quotes nothing of what was sent. */
    serve_reply r = serve_call(kit, "POST", "/json", NULL, "{\"secret-prompt-text\" \"another-secret\"}");
    assert_int_equal(r.status, 400);
    assert_null(strstr(r.body, "secret"));
    serve_reply_free(&r);
}

/* ---- One request and no other -------------------------------------------------------------------------------------------- */

/* Sends raw bytes with a request behind them that must never be answered: one refusal, then the connection ends. */
static void smuggle(const char *raw, int status)
{
    int fd = serve_connect(kit);
    serve_sendf(fd, "%s", raw);
    shutdown(fd, SHUT_WR);
    char all[16384];
    size_t n = 0;
    ssize_t got;
    while (n < sizeof all - 1 && (got = recv(fd, all + n, sizeof all - 1 - n, 0)) > 0) n += (size_t)got;
    all[n] = '\0';
    close(fd);
    int code = 0, replies = 0;
    sscanf(all, "HTTP/1.%*d %d", &code);
    for (const char *p = all; (p = strstr(p, "HTTP/1.")); p++) replies += p[8] == ' ';
    if ((status && code != status) || (!status && code && code < 400) || replies > 1 || strstr(all, "HTTP/1.1 200") ||
        strstr(all, "smuggled"))
        fail_msg("%s\n--- gave %d replies:\n%s", raw, replies, all);
}

#define SECOND "GET /echo?q=smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define POST "POST /echo HTTP/1.1\r\nHost: localhost\r\n"

static void a_second_request_cannot_be_smuggled_in(void **state)
{
    smuggle(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SECOND, 400);
    smuggle(POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" SECOND, 400);
    smuggle(POST "Content-Length: 0\r\nContent-Length: 50\r\n\r\n" SECOND, 400);
    smuggle(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello" SECOND, 400);
    smuggle(POST "Content-Length: 0, 50\r\n\r\n" SECOND, 400);
    smuggle(POST "Content-Length: +0\r\n\r\n" SECOND, 0);
    smuggle(POST "Content-Length: -1\r\n\r\n" SECOND, 0);
    smuggle(POST "Content-Length: 0x5\r\n\r\nhello" SECOND, 0);
    smuggle(POST "Content-Length: 99999999999999999999999\r\n\r\n" SECOND, 0);
    smuggle(POST "Content-Length:\r\n\r\n" SECOND, 0);
    smuggle(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" SECOND, 501);
    smuggle(POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" SECOND, 501);
    smuggle(POST "Transfer-Encoding: identity\r\n\r\n" SECOND, 501);
    smuggle(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" SECOND, 400);
    smuggle(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" SECOND, 0);
    smuggle(POST "Content-Length : 0\r\n\r\n" SECOND, 0);
    smuggle(POST "Transfer-Encoding:\x0b"
                 "chunked\r\n\r\n0\r\n\r\n" SECOND,
            0);
    smuggle(POST "X: 1\r\n Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n" SECOND, 0);
    smuggle(POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" SECOND, 0);
    smuggle(POST "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" SECOND, 0);
    smuggle(POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n" SECOND, 0);
    smuggle(POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n" SECOND, 0);
    smuggle("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n" SECOND, 404);
    smuggle("DELETE /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n" SECOND, 405);
    smuggle("GET /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n" SECOND, 404);
    smuggle("GET /echo HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n", 400);
    smuggle("GET /echo HTTP/1.1\r\n\r\n", 400);
    smuggle("GET /echo HTTP/2.0\r\nHost: localhost\r\n\r\n", 505);
    smuggle("GET /echo HTTP/0.9\r\nHost: localhost\r\n\r\n", 0);
    smuggle("GET /echo\r\n\r\n", 0);
    smuggle("\x16\x03\x01\x02\x01\x01", 0);
    smuggle("GET /echo HTTP/1.1\r\nHost: localhost\r\nNoColon\r\n\r\n", 0);
    /* A body that is refused is swallowed, not read as a request. */
    int fd = serve_connect(kit);
    serve_sendf(fd, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", strlen(SECOND), SECOND);
    serve_reply r = serve_read(fd, "POST");
    assert_int_equal(r.status, 404);
    assert_true(r.closes);
    assert_true(serve_ended(fd, 5000));
    serve_reply_free(&r);
    close(fd);
}

static void too_many_or_too_long_headers_are_refused(void **state)
{
    int fd = serve_connect(kit);
    serve_sendf(fd, "GET /echo HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 150; i++) serve_sendf(fd, "X-%d: 1\r\n", i);
    serve_sendf(fd, "\r\n");
    serve_reply r = serve_read(fd, "GET");
    assert_int_equal(r.status, 431);
    serve_reply_free(&r);
    close(fd);
    fd = serve_connect(kit);
    serve_sendf(fd, "GET /echo HTTP/1.1\r\nHost: localhost\r\nX: ");
    for (int i = 0; i < 100; i++) serve_sendf(fd, "%01000d", i);
    serve_sendf(fd, "\r\n\r\n");
    r = serve_read(fd, "GET");
    assert_true(r.status == 431 || r.status == 413 || r.status == 0);
    serve_reply_free(&r);
    close(fd);
    expect(200, "GET", "/echo", NULL, NULL);
}

/* ---- Connections --------------------------------------------------------------------------------------------------------- */

static void connections_are_kept_and_requests_may_queue_in_them(void **state)
{
    int fd = serve_connect(kit);
    for (int i = 0; i < 50; i++) {
        serve_sendf(fd, "POST /echo?q=%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%0*d", i, 1 + i, 1 + i, i);
        serve_reply r = serve_read(fd, "POST");
        assert_int_equal(r.status, 200);
        assert_false(r.closes);
        assert_int_equal(strtol(json_string_value(json_object_get(r.json, "q")), NULL, 10), i);
        assert_int_equal(json_integer_value(json_object_get(r.json, "n")), 1 + i);
        serve_reply_free(&r);
    }
    /* Five at once: five replies, in order. */
    for (int i = 0; i < 5; i++)
        serve_sendf(fd, "GET /echo?q=p%d HTTP/1.1\r\nHost: localhost\r\n%s\r\n", i, i == 4 ? "Connection: close\r\n" : "");
    char all[16384];
    size_t n = 0;
    ssize_t got;
    while (n < sizeof all - 1 && (got = recv(fd, all + n, sizeof all - 1 - n, 0)) > 0) n += (size_t)got;
    all[n] = '\0';
    const char *at = all;
    for (int i = 0; i < 5; i++) {
        char want[32];
        snprintf(want, sizeof want, "\"q\":\"p%d\"", i);
        at = strstr(at, want);
        assert_non_null(at);
    }
    close(fd);
    /* HTTP/1.0 ends with its reply, unless it asks to be kept. */
    fd = serve_connect(kit);
    serve_sendf(fd, "GET /echo HTTP/1.0\r\n\r\n");
    serve_reply r = serve_read(fd, "GET");
    assert_int_equal(r.status, 200);
    assert_true(serve_ended(fd, 5000));
    serve_reply_free(&r);
    close(fd);
}

static void a_half_closed_connection_still_gets_its_reply(void **state)
{
    int fd = serve_connect(kit);
    serve_sendf(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi");
    shutdown(fd, SHUT_WR);
    serve_reply r = serve_read(fd, "POST");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    close(fd);
    fd = serve_connect(kit); /* and one that was never whole gets none */
    serve_sendf(fd, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\nhi");
    shutdown(fd, SHUT_WR);
    assert_true(serve_ended(fd, 5000));
    close(fd);
}

/* Without keys, and with the default of `hosts`. */
static void pages_of_other_origins_cannot_use_a_server_without_keys(void **state)
{
    static const struct {
        const char *host, *origin, *method;
        int status;
    } cases[] = {
        { "localhost:8080", NULL, "POST", 200 },
        { "127.0.0.1", NULL, "POST", 200 },
        { "127.9.9.9:1", NULL, "POST", 200 },
        { "[::1]:8080", NULL, "POST", 200 },
        { "app.localhost", NULL, "POST", 200 },
        { "evil.example", NULL, "POST", 403 },
        { "evil.example", NULL, "GET", 403 },
        { "127.0.0.1.evil.example", NULL, "GET", 403 },
        { "localhost.evil.example", NULL, "GET", 403 },
        { "evillocalhost", NULL, "GET", 403 },
        { "", NULL, "GET", 400 },
        { "10.0.0.1", NULL, "GET", 403 },
        { "localhost", "http://localhost", "POST", 200 },
        { "localhost:1", "http://localhost:1", "POST", 200 },
        { "localhost:1", "http://localhost:2", "POST", 403 },
        { "localhost", "http://evil.example", "POST", 403 },
        { "localhost", "null", "POST", 403 },
        { "localhost", "http://localhost.evil.example", "POST", 403 },
        { "localhost", "http://evil.example/?://localhost", "POST", 403 },
        { "localhost", "http://evil.example", "GET", 200 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = serve_connect(kit);
        serve_sendf(fd, "%s /echo HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: 0\r\n", cases[i].method,
                    cases[i].host);
        if (cases[i].origin) serve_sendf(fd, "Origin: %s\r\n", cases[i].origin);
        serve_sendf(fd, "\r\n");
        serve_reply r = serve_read(fd, cases[i].method);
        if (r.status != cases[i].status)
            fail_msg("Host %s Origin %s %s gave %d", cases[i].host, cases[i].origin ? cases[i].origin : "-", cases[i].method,
                     r.status);
        assert_null(serve_head(&r, "Access-Control-Allow-Origin"));
        serve_reply_free(&r);
        close(fd);
    }
}

/* ---- Anything at all ----------------------------------------------------------------------------------------------------- */

static void random_bytes_do_no_harm(void **state)
{
    static const char *const seeds[] = { POST "Content-Length: 5\r\n\r\nhello",
                                         POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                                         "GET /echo/%C3%A9?q=%20&b HTTP/1.1\r\nHost: localhost\r\nX-Thing: 1\r\n\r\n" SECOND,
                                         "POST /json HTTP/1.1\r\nHost: [::1]:8\r\nContent-Length: 12\r\n\r\n{\"a\":[1,{}]}" };
    unsigned long long rng = scratch_seed("bytes");
    for (int i = 0; i < 1500; i++) {
        char raw[512];
        const char *seed = seeds[scratch_below(&rng, 4)];
        size_t n = strlen(seed);
        memcpy(raw, seed, n);
        for (unsigned k = scratch_below(&rng, 8); k-- > 0;) {
            size_t at = scratch_below(&rng, (unsigned)n), len = scratch_below(&rng, 12);
            switch (scratch_below(&rng, 4)) {
            case 0:
                raw[at] = (char)scratch_below(&rng, 256);
                break;
            case 1:
                n = at + 1;
                break;
            case 2:
                raw[at] = "\r\n:% \0,;"[scratch_below(&rng, 8)];
                break;
            default:
                if (at + len < n) memmove(raw + at, raw + at + len, n - at - len), n -= len;
            }
        }
        int fd = serve_connect(kit);
        serve_send(fd, raw, n);
        if (scratch_below(&rng, 2)) shutdown(fd, SHUT_WR);
        if (i % 8 == 0) {
            char c[4096];
            shutdown(fd, SHUT_WR);
            while (recv(fd, c, sizeof c, 0) > 0) {}
        }
        close(fd);
    }
    expect(200, "GET", "/echo", NULL, NULL);
}

static int set_up(void **state)
{
    is_server_set_extra(routes);
    kit = serve_start("max_body", "64K", NULL);
    return 0;
}

static int tear_down(void **state)
{
    serve_stop(kit);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_path_near_a_known_one_names_it),
        cmocka_unit_test(a_request_reaches_its_route),
        cmocka_unit_test(a_malformed_target_is_refused),
        cmocka_unit_test(methods_that_a_path_does_not_take_are_named),
        cmocka_unit_test(the_callers_id_comes_back_if_it_is_decent),
        cmocka_unit_test(a_body_may_come_in_any_pieces),
        cmocka_unit_test(a_body_that_is_too_long_is_413_and_not_kept),
        cmocka_unit_test(a_client_that_waits_for_100_continue_hears_it_or_the_refusal),
        cmocka_unit_test(what_is_no_json_object_is_400),
        cmocka_unit_test(a_second_request_cannot_be_smuggled_in),
        cmocka_unit_test(too_many_or_too_long_headers_are_refused),
        cmocka_unit_test(connections_are_kept_and_requests_may_queue_in_them),
        cmocka_unit_test(a_half_closed_connection_still_gets_its_reply),
        cmocka_unit_test(pages_of_other_origins_cannot_use_a_server_without_keys),
        cmocka_unit_test(random_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
