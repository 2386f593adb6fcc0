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
    is_reply_json(r, 200, json_pack("{s:s,s:s,s:s?,s:s?,s:s?,s:I,s:s%}", "method", is_request_method(r), "path", is_request_path(r), "q", q,
                                    "name", name, "thing", h, "n", (json_int_t)n, "body", body, n < 1000 ? n : 0));
}

static void parse(is_server *s, is_request *r)
{
    json_t *o = is_request_json(r);
    (void)s;
    if (o) is_reply_json(r, 200, json_pack("{s:I}", "members", (json_int_t)json_object_size(o)));
}

static const is_route routes[] = {
    { "GET", "/echo", echo, IS_FACE_OPENAI, 0 },
    { "POST", "/echo", echo, IS_FACE_OPENAI, 0 },
    { "GET", "/echo/{name}", echo, IS_FACE_OPENAI, 0 },
    { "DELETE", "/echo/{name}", echo, IS_FACE_MEMORY, 0 },
    { "POST", "/json", parse, IS_FACE_OPENAI, 0 },
    { 0 },
};

static void expect(int status, const char *method, const char *target, const char *headers, const char *body)
{
    serve_reply r = serve_call(kit, method, target, headers, body);
    if (r.status != status) fail_msg("%s %s gave %d, not %d: %s", method, target, r.status, status, r.body);
    assert_true(r.whole);
    assert_non_null(serve_head(&r, "X-Request-Id"));
    serve_reply_free(&r);
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

static int set_up(void **state)
{
    is_server_set_extra(routes);
    kit = serve_start(NULL);
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
        cmocka_unit_test(a_request_reaches_its_route),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
