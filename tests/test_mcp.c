/* test_mcp.c - MCP over HTTP and on stdio: what JSON-RPC must be answered, what must not be answered at all, and tools that say what is wrong
 * instead of failing. The real client is in tests/clients/test_mcp.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "exchange/json.h"
#include "serve/mcp.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

#define ANNA "X-Inferscale-User: anna\r\nMCP-Protocol-Version: 2025-06-18\r\n"

static serve_kit *kit;

static int start(void **state)
{
    (void)state;
    kit = serve_start(NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    serve_stop(kit);
    return 0;
}

/* ---- JSON-RPC -------------------------------------------------------------------------------------------------------------- */

static json_t *post(const char *headers, const char *body, int want)
{
    serve_reply r = serve_call(kit, "POST", "/mcp", headers, body);
    json_t *o = json_incref(r.json);

    if (r.status != want) fail_msg("%.300s: %d, not %d: %.300s", body, r.status, want, r.body);
    serve_reply_free(&r);
    return o;
}

static int code_of(json_t *reply) { return (int)json_integer_value(json_object_get(json_object_get(reply, "error"), "code")); }

static void messages_are_answered_as_json_rpc_has_it(void **state)
{
    static const struct { const char *body; int status, code; } tries[] = { /* code 0: a result; 1: no body */
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}", 200, 0 },
        { "{\"jsonrpc\": \"2.0\", \"id\": \"a\", \"method\": \"ping\", \"params\": {}}", 200, 0 },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/list\"}", 200, 0 },
        { "{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}", 202, 1 },
        { "{\"jsonrpc\": \"2.0\", \"method\": \"tools/call\", \"params\": {\"name\": \"add_memory\", \"arguments\": {\"text\": \"never\"}}}", 202, 1 },
        { "{\"jsonrpc\": \"2.0\", \"id\": 9, \"result\": {}}", 202, 1 },
        { "{\"jsonrpc\": \"2.0\", \"id\": 9, \"error\": {\"code\": 1, \"message\": \"x\"}}", 202, 1 },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"resources/list\"}", 200, IS_MCP_METHOD },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"server/discover\"}", 200, IS_MCP_METHOD },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\", \"params\": []}", 200, IS_MCP_PARAMS },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"initialize\", \"params\": {}}", 200, IS_MCP_PARAMS },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\"}", 200, IS_MCP_PARAMS },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"rm\"}}", 200, IS_MCP_PARAMS },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"get_memory\", \"arguments\": [1]}}", 200, IS_MCP_PARAMS },
        { "{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"ping\"}", 200, IS_MCP_REQUEST },
        { "{\"id\": 1, \"method\": \"ping\"}", 200, IS_MCP_REQUEST },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1}", 200, IS_MCP_REQUEST },
        { "{\"jsonrpc\": \"2.0\", \"id\": null, \"method\": \"ping\"}", 200, IS_MCP_REQUEST },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1.5, \"method\": \"ping\"}", 200, IS_MCP_REQUEST },
        { "{\"jsonrpc\": \"2.0\", \"id\": {}, \"method\": \"ping\"}", 200, IS_MCP_REQUEST },
        { "[]", 200, IS_MCP_REQUEST },
        { "[{\"jsonrpc\": \"2.0\", \"method\": \"notifications/initialized\"}]", 202, 1 },
        { "7", 400, IS_MCP_PARSE },
        { "{\"jsonrpc\": \"\xff\"}", 400, IS_MCP_PARSE },
        { "\xff\xfe\xfd", 400, IS_MCP_PARSE },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"id\": 2, \"method\": \"ping\"}", 400, IS_MCP_PARSE },
        { "{\"jsonrpc\": \"2.0\", ", 400, IS_MCP_PARSE },
        { "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\\u0000\"}", 400, IS_MCP_PARSE },
    };

    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        json_t *o = post(ANNA, tries[i].body, tries[i].status);

        if (tries[i].code == 1) {
            assert_null(o);
            continue;
        }
        assert_string_equal(json_string_value(json_object_get(o, "jsonrpc")), "2.0");
        if (code_of(o) != tries[i].code || (tries[i].code == 0) != (json_object_get(o, "result") != NULL))
            fail_msg("%s: code %d, not %d", tries[i].body, code_of(o), tries[i].code);
        json_decref(o);
    }
}

static void a_batch_is_answered_in_order(void **state)
{
    json_t *o = post(ANNA, "[{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}, 7, {\"jsonrpc\": \"2.0\", \"method\": \"x\"}, "
                           "{\"jsonrpc\": \"2.0\", \"id\": 2, \"method\": \"y\"}]", 200), *many = json_array();
    char *body;

    (void)state;
    assert_int_equal(json_array_size(o), 3);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(o, 0), "id")), 1);
    assert_int_equal(code_of(json_array_get(o, 1)), IS_MCP_REQUEST);
    assert_int_equal(code_of(json_array_get(o, 2)), IS_MCP_METHOD);
    json_decref(o);
    for (int i = 0; i < 101; i++) json_array_append_new(many, json_pack("{s:s,s:i,s:s}", "jsonrpc", "2.0", "id", i, "method", "ping"));
    body = json_dumps(many, 0);
    o = post(ANNA, body, 200);
    assert_int_equal(code_of(o), IS_MCP_REQUEST);
    json_decref(o);
    json_decref(many);
    free(body);
}

static void revisions_are_agreed_on(void **state)
{
    static const struct { const char *asked, *got; } tries[] = {
        { "2025-06-18", "2025-06-18" }, { "2025-03-26", "2025-03-26" }, { "2024-11-05", "2024-11-05" }, { "2025-11-25", "2025-06-18" },
        { "1999-01-01", "2025-06-18" }, { "", "2025-06-18" },
    };
    serve_reply r;
    json_t *o;

    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        char body[200];

        snprintf(body, sizeof body, "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"initialize\", \"params\": {\"protocolVersion\": \"%s\"}}", tries[i].asked);
        o = post("X-Inferscale-User: anna\r\n", body, 200);
        assert_string_equal(json_string_value(json_object_get(json_object_get(o, "result"), "protocolVersion")), tries[i].got);
        assert_non_null(json_object_get(json_object_get(json_object_get(o, "result"), "capabilities"), "tools"));
        json_decref(o);
    }
    o = post("MCP-Protocol-Version: 2026-07-28\r\n", "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}", 400);
    assert_int_equal(code_of(o), IS_MCP_UNSUPPORTED_VERSION);
    json_decref(o);
    r = serve_call(kit, "GET", "/mcp", "Accept: text/event-stream\r\n", NULL);
    assert_int_equal(r.status, 405);
    serve_reply_free(&r);
    r = serve_call(kit, "DELETE", "/mcp", NULL, NULL);
    assert_int_equal(r.status, 405);
    serve_reply_free(&r);
    r = serve_call(kit, "POST", "/mcp", "Origin: http://evil.example\r\n", "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}");
    assert_int_equal(r.status, 403);
    serve_reply_free(&r);
}

/* ---- Tools ----------------------------------------------------------------------------------------------------------------- */

/* The structured content, or the sentence of the failure; json_decref. */
static json_t *use(const char *headers, const char *name, const char *arguments, bool fails)
{
    char body[1000];
    json_t *o, *result, *out;

    snprintf(body, sizeof body, "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"%s\", \"arguments\": %s}}", name, arguments);
    o = post(headers, body, 200);
    result = json_object_get(o, "result");
    if (!result || json_is_true(json_object_get(result, "isError")) != fails) fail_msg("%s %s: %s", name, arguments, json_dumps(o, 0));
    out = fails ? json_object_get(json_array_get(json_object_get(result, "content"), 0), "text") : json_object_get(result, "structuredContent");
    json_incref(out);
    json_decref(o);
    return out;
}

static void every_schema_is_one(void **state)
{
    json_t *tools = is_mcp_tools(), *t;
    size_t i;

    (void)state;
    assert_int_equal(json_array_size(tools), 6);
    json_array_foreach(tools, i, t)
    {
        json_t *schema = json_object_get(t, "inputSchema"), *name;
        size_t k;

        assert_non_null(json_object_get(schema, "properties"));
        json_array_foreach(json_object_get(schema, "required"), k, name)
            assert_non_null(json_object_get(json_object_get(schema, "properties"), json_string_value(name)));
        assert_non_null(json_object_get(json_object_get(t, "annotations"), "readOnlyHint"));
    }
    json_decref(tools);
}

static void wrong_arguments_are_named(void **state)
{
    static const struct { const char *tool, *arguments, *word; } tries[] = {
        { "add_memory", "{}", "text" }, { "add_memory", "{\"text\": 7}", "text" }, { "add_memory", "{\"text\": \" \"}", "" },
        { "add_memory", "{\"text\": \"x\", \"user_id\": \"ben\"}", "user_id" }, { "add_memory", "{\"text\": \"x\", \"messages\": []}", "messages" },
        { "add_memory", "{\"text\": \"x\", \"timestamp\": \"noon\"}", "timestamp" }, { "add_memory", "{\"text\": \"x\", \"metadata\": 3}", "metadata" },
        { "search_memories", "{}", "query" }, { "search_memories", "{\"query\": \"x\", \"top_k\": \"5\"}", "top_k" },
        { "search_memories", "{\"query\": \"x\", \"filters\": {\"user_id\": \"ben\"}}", "owner" },
        { "search_memories", "{\"query\": \"x\", \"filters\": {\"AND\": [{\"agent_id\": \"ben\"}]}}", "owner" },
        { "search_memories", "{\"query\": \"x\", \"filters\": {\"NOT\": []}}", "NOT" },
        { "get_memory", "{\"id\": 12}", "id" }, { "get_memory", "{\"id\": \"0\"}", "not found" }, { "get_memory", "{\"id\": \"88888888\"}", "not found" },
        { "list_memories", "{\"limit\": 0}", "limit" }, { "list_memories", "{\"after\": 3}", "after" }, { "list_memories", "{\"page\": 3}", "page" },
        { "update_memory", "{\"id\": \"88888888\", \"text\": \"x\"}", "not found" }, { "update_memory", "{\"text\": \"x\"}", "id" },
        { "delete_memory", "{\"id\": \"88888888\"}", "not found" }, { "delete_memory", "{\"all\": true}", "all" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        json_t *o = use(ANNA, tries[i].tool, tries[i].arguments, true);

        if (!strstr(json_string_value(o), tries[i].word)) fail_msg("%s %s: %s", tries[i].tool, tries[i].arguments, json_string_value(o));
        json_decref(o);
    }
    json_decref(use(NULL, "list_memories", "{}", true)); /* whose? */
}

/* The text beside structuredContent is what most models read: numbers as they are said, not as they are kept. */
static void numbers_are_shown_short(void **state)
{
    json_t *o = json_pack("{s:f}", "score", 0.346058);
    char *shown = is_json_shown(o), *kept = is_json_string(o);

    (void)state;
    assert_string_equal(shown, "{\"score\":0.346058}");
    assert_string_equal(kept, "{\"score\":0.34605799999999998}"); /* a person's metadata loses nothing */
    is_free(shown);
    is_free(kept);
    json_decref(o);
}

static void a_connections_owner_is_its_only_one(void **state)
{
    json_t *o = use(ANNA, "add_memory", "{\"text\": \"Anna's own.\"}", false);
    char arguments[80];

    (void)state;
    snprintf(arguments, sizeof arguments, "{\"id\": \"%s\"}", json_string_value(json_object_get(json_array_get(json_object_get(o, "results"), 0), "id")));
    json_decref(o);
    json_decref(use("X-Inferscale-User: ben\r\n", "get_memory", arguments, true));
    json_decref(use("X-Inferscale-User: ben\r\n", "delete_memory", arguments, true));
    json_decref(use("X-Inferscale-Agent: anna\r\n", "get_memory", arguments, true));
    json_decref(use(ANNA, "get_memory", arguments, false));
    o = use("X-Inferscale-User: ben\r\n", "search_memories", "{\"query\": \"Anna's own\"}", false);
    assert_int_equal(json_array_size(json_object_get(o, "results")), 0);
    json_decref(o);
}

/* Any bytes, in or out of JSON, have an answer or none: never a crash, never anything but JSON-RPC. */
static void random_messages_have_an_answer_or_none(void **state)
{
    static const char *const pieces[] = { "{", "}", "[", "]", ",", ":", "\"jsonrpc\"", "\"2.0\"", "\"id\"", "\"method\"", "\"params\"", "\"tools/call\"",
                                          "\"name\"", "\"arguments\"", "\"add_memory\"", "\"search_memories\"", "\"text\"", "\"query\"", "\"filters\"", "1",
                                          "null", "\"x\"", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":" };
    unsigned long long seed = scratch_seed("random_messages_have_an_answer_or_none");
    char *folder = scratch_make();
    inferscale *is = store_open(folder, NULL, NULL, false);
    is_mcp m = { .is = is, .scope = { .user = "anna" }, .has_scope = true };

    (void)state;
    for (int i = 0; i < 5000; i++) {
        char body[600] = "";
        json_t *o;
        bool bad;

        for (unsigned n = 1 + scratch_below(&seed, 14); n; n--) strcat(body, pieces[scratch_below(&seed, sizeof pieces / sizeof *pieces)]);
        o = is_mcp_answer(&m, body, strlen(body), &bad);
        if (bad) assert_int_equal(code_of(o), IS_MCP_PARSE);
        if (o && json_is_object(o)) assert_true(json_object_get(o, "result") || code_of(o) < 0);
        json_decref(o);
    }
    inferscale_close(is);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_answered_as_json_rpc_has_it),
        cmocka_unit_test(a_batch_is_answered_in_order),
        cmocka_unit_test(revisions_are_agreed_on),
        cmocka_unit_test(every_schema_is_one),
        cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(numbers_are_shown_short),
        cmocka_unit_test(a_connections_owner_is_its_only_one),
        cmocka_unit_test(random_messages_have_an_answer_or_none),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
