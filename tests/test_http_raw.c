/* One request, one reply: raw heads and bodies that are malformed, odd or legal and rare, sent whole and byte by byte. Each hears one
 * status line, and what is not legal hears no 200 and no route sees it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/http.h"
#include "serve/server.h"
#include "support/serve_kit.h"

static serve_kit *kit;
static atomic_int routed;

static void echo(is_server *s, is_request *r)
{
    size_t n;
    const char *user = is_request_header(r, "X-Inferscale-User"), *body = is_request_body(r, &n);
    (void)s;
    atomic_fetch_add(&routed, 1);
    is_reply_json(r, 200, json_pack("{s:s?,s:s%}", "user", user, "body", body, n));
}

static const is_route routes[] = {
    { "GET", "/echo", echo, IS_FACE_OPENAI, 0 },
    { "POST", "/echo", echo, IS_FACE_OPENAI, 0 },
    { "POST", "/memories/echo", echo, IS_FACE_MEMORY, 0 },
    { 0 },
};

/* ---- Raw ----------------------------------------------------------------------------------------------------------------- */

typedef struct answer {
    char text[16384];
    int status, replies;
    bool json;                 /* our form: an object with "error" or "detail" */
} answer;

static answer talk(const char *raw, size_t n, bool slowly)
{
    answer a = { .status = 0 };
    size_t at = 0;
    ssize_t got;
    int fd = serve_connect(kit);
    for (size_t i = 0; slowly && i < n; i++) serve_send(fd, raw + i, 1);
    if (!slowly) serve_send(fd, raw, n);
    shutdown(fd, SHUT_WR);
    while (at < sizeof a.text - 1 && (got = recv(fd, a.text + at, sizeof a.text - 1 - at, 0)) > 0) at += (size_t)got;
    close(fd);
    sscanf(a.text, "HTTP/1.%*d %d", &a.status);
    for (const char *p = a.text; (p = strstr(p, "HTTP/1.")); p++) a.replies += p[8] == ' ' && strspn(p + 9, "0123456789") == 3;
    a.json = strstr(a.text, "\r\n\r\n{\"error\":{") || strstr(a.text, "\r\n\r\n{\"detail\":");
    return a;
}

#define LOCAL "Host: localhost\r\n"
#define POST "POST /echo HTTP/1.1\r\n" LOCAL
#define GET "GET /echo HTTP/1.1\r\n" LOCAL
#define RAW(text) text, sizeof text - 1

typedef struct raw_case {
    const char *raw;
    size_t n;
    int status;                /* 0 = any from 400 on; where the form of the reply is libmicrohttpd's: -1 */
} raw_case;

/* ---- Refused ------------------------------------------------------------------------------------------------------------- */

static const raw_case refused[] = {
    { RAW(POST "Content-Length: +2\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: +16\r\n\r\n{\"a\":\"0123456\"}"), 400 },
    { RAW(POST "Content-Length: 0x10\r\n\r\n{\"a\":\"0123456\"}"), 400 },
    { RAW(POST "Content-Length: 16, 16\r\n\r\n{\"a\":\"0123456\"}"), 400 },
    { RAW(POST "Content-Length: 16,16\r\n\r\n{\"a\":\"0123456\"}"), 400 },
    { RAW(POST "Content-Length: 1 6\r\n\r\n{\"a\":\"0123456\"}"), 400 },
    { RAW(POST "Content-Length: -1\r\n\r\n"), 400 },
    { RAW(POST "Content-Length: -0\r\n\r\n"), 400 },
    { RAW(POST "Content-Length: 1e1\r\n\r\n0123456789"), 400 },
    { RAW(POST "Content-Length: 2.0\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: \"2\"\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: two\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length:\r\n\r\n"), 400 },
    { RAW(POST "Content-Length: \r\n\r\n"), 400 },
    { RAW(POST "Content-Length: 18446744073709551616\r\n\r\n"), 413 },
    { RAW(POST "Content-Length: 99999999999999999999999\r\n\r\n"), 413 },
    { RAW(POST "Content-Length: 18446744073709551615\r\n\r\n"), 0 },
    { RAW(POST "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: 2\r\nContent-Length: x\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: x\r\nContent-Length: 2\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400 },
    { RAW(POST "Content-Length: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400 },
    { RAW("POST /memories/echo HTTP/1.1\r\n" LOCAL "Content-Length: +2\r\n\r\n{}"), 400 },
    { RAW("GET /echo HTTP/1.1\r\n\r\n"), 400 },
    { RAW("GET /echo HTTP/1.1\r\nX: y\r\n\r\n"), 400 },
    { RAW("GET /health HTTP/1.1\r\n\r\n"), 400 },
    { RAW("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"), 400 },
    { RAW("POST /echo HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}"), 400 },
    { RAW("GET /echo HTTP/1.1\r\nHost: localhost:evil.com\r\n\r\n"), 400 },
    { RAW("GET /echo HTTP/1.1\r\nHost: 127.0.0.1:18103.evil.com\r\n\r\n"), 400 },
    { RAW("GET /echo HTTP/1.1\r\nHost: [::1]evil.com\r\n\r\n"), 400 },
    { RAW(GET "Host: localhost\r\n\r\n"), 400 },
    { RAW(POST "Transfer-Encoding: gzip\r\n\r\n"), 501 },
    { RAW(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 501 },
    { RAW(POST "Transfer-Encoding: identity\r\n\r\n"), 501 },
    { RAW(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400 },
    { RAW(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400 },
    { RAW(POST "Content-Length : 2\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length\t: 2\r\n\r\n{}"), 400 },
    { RAW(POST "Transfer-Encoding:\x0b" "chunked\r\n\r\n0\r\n\r\n"), 0 },
    { RAW(POST "X: 1\r\n folded\r\nContent-Length: 2\r\n\r\n{}"), 400 },
    { RAW(POST "X: 1\r\n\tfolded\r\nContent-Length: 2\r\n\r\n{}"), 400 },
    { RAW(POST "X: 1\r\n Content-Length: 60\r\n\r\n"), 400 },
    { RAW(GET "X\x01: 1\r\n\r\n"), 400 },
    { RAW(GET "X: a\rb\r\n\r\n"), 400 },
    { RAW(GET "X: a\x7f\r\n\r\n"), 400 },
    { RAW(GET "X y: 1\r\n\r\n"), 400 },
    { RAW(GET ": 1\r\n\r\n"), 400 },
    { RAW("GET /echo HTTP/1.1\nHost: localhost\n\n"), 400 },
    { RAW("GET /echo HTTP/1.1\r\nHost: localhost\nX: 1\r\n\r\n"), 400 },
    { RAW(GET "NoColon\r\n\r\n"), -1 },
    { RAW("GET /echo HTTP/2.0\r\n" LOCAL "\r\n"), -1 },
    { RAW("GET /echo HTTP/0.9\r\n" LOCAL "\r\n"), -1 },
    { RAW("GET /echo HTTP/1.10\r\n" LOCAL "\r\n"), -1 },
    { RAW("GET /echo http/1.1\r\n" LOCAL "\r\n"), -1 },
    { RAW("GET /echo HTTP/1.2\r\n" LOCAL "\r\n"), 505 },
    { RAW("GET /ec ho HTTP/1.1\r\n" LOCAL "\r\n"), 400 },
    { RAW("GET  HTTP/1.1\r\n" LOCAL "\r\n"), -1 },
    { RAW("GET /echo#x HTTP/1.1\r\n" LOCAL "\r\n"), 400 },
    { RAW("GET echo HTTP/1.1\r\n" LOCAL "\r\n"), 400 },
    { RAW("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), -1 },
    { RAW(POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n"), -1 },
    { RAW(POST "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n"), -1 },
    { RAW(POST "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n"), -1 },
    { RAW(POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n"), -1 },
};

/* A NUL in every place where a word of ours may stand. What is before it must not be taken for the whole. */
static const raw_case with_nul[] = {
    { RAW(GET "X-Inferscale-User: anna\0ben\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale-User: anna\0ben\r\nX: 1\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale-User: anna\0\r\nX: 1\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale-User: anna\0\0ben\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale-User: anna\0\0ben\r\nX: 1\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale-User: \0ben\r\nX: 1\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale-User:\0ben\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale-User: anna \0 ben\r\n\r\n"), 400 },
    { RAW(GET "X-Inferscale\0-User: ben\r\n\r\n"), -1 },
    { RAW(GET "Authorization: Bearer x\0y\r\n\r\n"), 400 },
    { RAW("GET /echo HTTP/1.1\r\nHost: localhost\0.evil.com\r\n\r\n"), 400 },
    { RAW("GET /echo\0x HTTP/1.1\r\n" LOCAL "\r\n"), 400 },
    { RAW("GET /echo?user_id=anna\0ben HTTP/1.1\r\n" LOCAL "\r\n"), 400 },
    { RAW("GET\0 /echo HTTP/1.1\r\n" LOCAL "\r\n"), 0 },
    { RAW("GET\0X /echo HTTP/1.1\r\n" LOCAL "\r\n"), 0 },
    { RAW("GET /echo HTTP/1.1\0\r\n" LOCAL "\r\n"), -1 },
    { RAW(POST "Content-Length: 2\0" "0\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: 2\0\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: 2\0\0\0\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: 2\0\r\nX: 1\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: 2 \0\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: \0" "2\r\n\r\n{}"), 400 },
    { RAW(POST "Content-Length: 2\r\nX-Inferscale-User: anna\0\r\n\r\n{}"), 400 },
    { RAW(POST "Transfer-Encoding: chunked\0\r\n\r\n2\r\n{}\r\n0\r\n\r\n"), 400 },
    { RAW(POST "Transfer-Encoding: chunked\0x\r\n\r\n0\r\n\r\n"), 400 },
};

static void show(const raw_case *c, const answer *a, const char *why)
{
    fail_msg("%s; sent %zu bytes:\n%s\n--- heard %d replies:\n%s", why, c->n, c->raw, a->replies, a->text);
}

static void each_hears_one_refusal(const raw_case *cases, size_t n)
{
    atomic_store(&routed, 0);
    for (size_t i = 0; i < 2 * n; i++) {
        const raw_case *c = &cases[i / 2];
        answer a = talk(c->raw, c->n, i % 2);
        if (a.replies != 1) show(c, &a, "not one reply");
        if (a.status < 400) show(c, &a, "no refusal");
        if (c->status > 0 && a.status != c->status) show(c, &a, "another status");
        if (c->status >= 0 && !a.json) show(c, &a, "not our form");
        if (atomic_load(&routed)) show(c, &a, "a route has run");
    }
}

static void what_is_malformed_hears_one_refusal(void **state)
{
    (void)state;
    each_hears_one_refusal(refused, sizeof refused / sizeof *refused);
}

static void what_holds_a_nul_is_not_cut_but_refused(void **state)
{
    (void)state;
    each_hears_one_refusal(with_nul, sizeof with_nul / sizeof *with_nul);
}

/* Cookies are of no use here, and cost no memory: more of them than libmicrohttpd can take apart were two replies once. */
static void cookies_are_not_taken_apart(void **state)
{
    char raw[20000] = GET "Cookie: ";
    (void)state;
    for (int i = 0; i < 6000; i++) strcat(raw + (i ? strlen(raw) - 2 : 0), "a;");
    strcat(raw, "\r\n\r\n");
    answer a = talk(raw, strlen(raw), false);
    assert_int_equal(a.replies, 1);
    assert_int_equal(a.status, 200);
}

/* ---- Legal --------------------------------------------------------------------------------------------------------------- */

static const char *const legal[] = {
    POST "Content-Length: 2 \r\n\r\n{}",
    POST "Content-Length: 2\t \r\nX: 1\r\n\r\n{}",
    POST "X: 1\r\nContent-Length:   2   \r\n\r\n{}",
    POST "content-length: 2 \r\n\r\n{}",
    POST "Content-Length: 02\r\n\r\n{}",
    POST "Transfer-Encoding: chunked \r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    POST "Transfer-Encoding: Chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nX: trailer\r\n\r\n",
    POST "X-Inferscale-User: anna \r\nContent-Length:2\r\n\r\n{}",
    POST "X:\r\nY: \r\nCookie: a=b; c=d\r\nContent-Length: 2\r\n\r\n{}",
    "POST  /echo HTTP/1.1\r\nHost: localhost:80\r\nContent-Length: 2\r\n\r\n{}",
    "POST /echo HTTP/1.1\r\nHost: localhost:\r\nContent-Length: 2\r\n\r\n{}",
    "POST /echo HTTP/1.1\r\nHost: [::1]:8080 \r\nContent-Length: 2\r\n\r\n{}",
    "POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    "POST /echo HTTP/1.0\r\nContent-Length: 2 \r\n\r\n{}",
};

static void what_is_legal_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof legal / sizeof *legal; i++) {
        answer a = talk(legal[i], strlen(legal[i]), false);
        if (a.replies != 1 || a.status != 200 || !strstr(a.text, "\"body\":\"{}\""))
            fail_msg("%s\n--- heard %d replies:\n%s", legal[i], a.replies, a.text);
        if (strstr(legal[i], "anna")) assert_non_null(strstr(a.text, "\"user\":\"anna\"")); /* a blank behind is none of it */
    }
}

/* Bodies that hold what looks like a header with blanks behind come as they were sent, also in a second request. */
static void only_heads_are_read_as_heads(void **state)
{
    static const char body[] = "x\r\nContent-Length: 5  \r\nTransfer-Encoding: gzip  \r\n\r\nContent-Length: 6  \r\n";
    char raw[1000];
    (void)state;
    snprintf(raw, sizeof raw, POST "Content-Length: %zu \r\n\r\n%s" POST "Content-Length: %zu \r\n\r\n%s", sizeof body - 1, body,
             sizeof body - 1, body);
    answer a = talk(raw, strlen(raw), false);
    assert_int_equal(a.replies, 2);
    int whole = 0;
    for (const char *p = a.text; (p = strstr(p, "Content-Length: 6  \\r\\n\"")); p++) whole++;
    if (whole != 2 || !strstr(a.text, "x\\r\\nContent-Length: 5  \\r\\nTransfer-Encoding: gzip  \\r\\n")) fail_msg("%s", a.text);
}

/* ---- Host ------------------------------------------------------------------------------------ */

/* 400: no NAME or NAME:PORT. 403: none of this server's names. */
static const struct { const char *host; int status;
} hosts[] = {
    { "localhost", 200 },
    { "LocalHost:80", 200 },
    { "localhost:", 200 },
    { "a.b_c-d.localhost", 200 },
    { "127.0.0.1", 200 },
    { "127.0.0.1:65535", 200 },
    { "127.255.255.254", 200 },
    { "[::1]", 200 },
    { "[::1]:8080", 200 },
    { "evil.com", 403 },
    { "evil.com:80", 403 },
    { "localhost.evil.com", 403 },
    { "127.0.0.1.evil.com", 403 },
    { "128.0.0.1", 403 },
    { "[::2]", 403 },
    { "[1::1]:80", 403 },
    { "notlocalhost", 403 },
    { "localhost.", 403 },
    { "", 400 },
    { ":80", 400 },
    { "localhost:65536", 400 },
    { "localhost:000080", 400 },
    { "localhost:80:80", 400 },
    { "localhost: 80", 400 },
    { "localhost:-1", 400 },
    { "localhost:+80", 400 },
    { ".localhost", 400 },
    { "a..localhost", 400 },
    { "a b.localhost", 400 },
    { "a/.localhost", 400 },
    { "a@b.localhost", 400 },
    { "a,b.localhost", 400 },
    { "a%2e.localhost", 400 },
    { "\xc3\xa9.localhost", 400 },
    { "localhost,evil.com", 400 },
    { "localhost#", 400 },
    { "http://localhost", 400 },
    { "127.0.0.256", 400 },
    { "127.0.0.1.", 400 },
    { "127.999.999.9", 400 },
    { "127.....", 400 },
    { "127.1", 400 },
    { "127.0.0.1.1", 400 },
    { "::1", 400 },
    { "[::1", 400 },
    { "[]", 400 },
    { "[", 400 },
    { "[::1]80", 400 },
    { "[::1]x", 400 },
    { "[evil.localhost]", 400 },
    { "[::1%25lo]", 400 },
    { "[127.0.0.1]", 400 },
};

static void a_host_is_a_name_of_the_server_and_a_port(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        char raw[300];
        snprintf(raw, sizeof raw, "GET /echo HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[i].host);
        answer a = talk(raw, strlen(raw), false);
        if (a.replies != 1 || a.status != hosts[i].status)
            fail_msg("Host \"%s\": %d, not %d:\n%s", hosts[i].host, a.status, hosts[i].status,
                     a.text);
    }
}

static int set_up(void **state)
{
    (void)state;
    is_server_set_extra(routes);
    kit = serve_start(NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    serve_stop(kit);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_malformed_hears_one_refusal),
        cmocka_unit_test(what_holds_a_nul_is_not_cut_but_refused),
        cmocka_unit_test(a_host_is_a_name_of_the_server_and_a_port),
        cmocka_unit_test(cookies_are_not_taken_apart),
        cmocka_unit_test(what_is_legal_is_read),
        cmocka_unit_test(only_heads_are_read_as_heads),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
