/* Every entrance reads times by the one reader (base/time.h): the command line, HTTP, MCP, imported lines. A number that reads as a
 * date and a number of milliseconds are refused at each of them, and 0 is the first second of 1970 at each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/program.h"
#include "support/serve_kit.h"

static serve_kit *kit;

static int start(void **state)
{
    kit = serve_start(NULL);
    return program_set_up(state);
}

static int stop(void **state)
{
    serve_stop(kit);
    return program_tear_down(state);
}

/* What each entrance is tried with, as JSON; the sentences must hold said. NULL: it is taken. */
static const struct { const char *value, *said[2]; } tries[] = {
    { "20240501", { "2024-05-01", "@20240501" } },
    { "\"20240501\"", { "2024-05-01", "@20240501" } },
    { "\"202405\"", { "2024-05-01", "@202405" } },
    { "2024", { "2024-01-01", "@2024" } },
    { "1714571760000", { "divide by 1000", "1714571760000" } },
    { "\"1714571760000\"", { "divide by 1000", "1714571760000" } },
    { "1e300", { "divide by 1000", "" } },
    { "\"8 May 2023\"", { "2024-05-01T13:56:00Z", "8 May 2023" } },
    { "true", { "2024-05-01T13:56:00Z", "" } },
    { "0", { NULL, NULL } },
    { "-86400", { NULL, NULL } },
    { "1714571760", { NULL, NULL } },
    { "1714571760.5", { NULL, NULL } },
    { "\"@20240501\"", { NULL, NULL } },
    { "\"1900-01-01\"", { NULL, NULL } },
    { "\"2200-12-31T23:59:59+02:00\"", { NULL, NULL } },
};
enum { TRIES = sizeof tries / sizeof *tries };

/* ---- HTTP and MCP ---------------------------------------------------------------------------------------------------------- */

#define OWNER "\"user_id\": \"anna\""
#define MCP(tool, arguments)                                                                                                   \
    "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"" tool "\", \"arguments\": {" arguments "}}}"
#define CREATED(op) "{" OWNER ", \"query\": \"tea\", \"filters\": {\"created_at\": {\"" op "\": %s}}}"
#define FILTER(member) "{" OWNER ", \"query\": \"tea\", \"filters\": {\"" member "\": %s}}"
#define DRY(member) "{" OWNER ", \"question\": \"tea\", \"filters\": {\"" member "\": %s}}"
#define CHAT(member) "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": 1, \"memory\": {" OWNER ", \"filters\": {\"" member "\": %s}}}"

static const struct { const char *method, *target, *body; } entrances[] = { /* %s: the value */
    { "POST", "/memories", "{" OWNER ", \"text\": \"tea\", \"timestamp\": %s}" },
    { "POST", "/memories", "{" OWNER ", \"text\": \"tea\", \"expires\": %s}" },
    { "POST", "/memories", "{" OWNER ", \"text\": \"tea\", \"expiration_date\": %s}" },
    { "POST", "/memories", "{" OWNER ", \"messages\": [{\"role\": \"user\", \"content\": \"tea\", \"timestamp\": %s}]}" },
    { "POST", "/memories", "{" OWNER ", \"messages\": [{\"role\": \"user\", \"content\": \"tea\", \"created_at\": %s}]}" },
    { "PUT", "/memories/1", "{\"timestamp\": %s}" },
    { "PUT", "/memories/1", "{\"text\": \"tea\", \"timestamp\": %s}" },
    { "PUT", "/memories/1", "{\"expires\": %s}" },
    { "POST", "/search", "{" OWNER ", \"query\": \"tea\", \"as_of\": %s}" },
    { "POST", "/search", CREATED("eq") },
    { "POST", "/search", CREATED("gt") },
    { "POST", "/search", CREATED("gte") },
    { "POST", "/search", CREATED("lt") },
    { "POST", "/search", CREATED("lte") },
    { "POST", "/search", FILTER("from") },
    { "POST", "/search", FILTER("to") },
    { "POST", "/search", FILTER("as_of") },
    { "POST", "/v3/memories/", "{\"filters\": {" OWNER ", \"from\": %s}}" },
    { "POST", "/v3/memories/", "{\"filters\": {\"AND\": [{" OWNER "}, {\"to\": %s}]}}" },
    { "POST", "/inferscale/dry-run", DRY("from") },
    { "POST", "/inferscale/dry-run", DRY("to") },
    { "POST", "/inferscale/dry-run", DRY("as_of") },
    { "POST", "/mcp", MCP("search_memories", "\"query\": \"tea\", \"filters\": {\"as_of\": %s}") },
    { "POST", "/v3/memories/", "{\"filters\": {" OWNER "}, \"start_date\": %s}" },
    { "POST", "/v3/memories/", "{\"filters\": {" OWNER "}, \"end_date\": %s}" },
    { "POST", "/v1/chat/completions", CHAT("from") },
    { "POST", "/v1/chat/completions", CHAT("to") },
    { "POST", "/v1/chat/completions", CHAT("as_of") },
    { "POST", "/mcp", MCP("add_memory", "\"text\": \"tea\", \"timestamp\": %s") },
    { "POST", "/mcp", MCP("add_memory", "\"text\": \"tea\", \"expiration_date\": %s") },
    { "POST", "/mcp", MCP("search_memories", "\"query\": \"tea\", \"filters\": {\"created_at\": {\"gte\": %s}}") },
    { "POST", "/inferscale/import", "{\"text\": \"a fact\", \"event_time\": %s}" },
    { "POST", "/inferscale/import", "{\"text\": \"a fact\", \"valid_from\": %s}" },
    { "POST", "/inferscale/import", "{\"text\": \"a fact\", \"valid_from\": \"0000-01-01\", \"valid_to\": %s}" },
    { "POST", "/inferscale/import", "{\"text\": \"a fact\", \"expires\": %s}" },
    { "POST", "/inferscale/import", "{\"type\": \"turn\", \"text\": \"hi\", \"time\": %s}" },
};

static void try_it(size_t e, size_t t)
{
    const bool mcp = !strcmp(entrances[e].target, "/mcp");
    char body[600];
    serve_reply r;
    bool ok;

    /* The tools' schemas say strings, and the schema is kept to before a time is read. */
    snprintf(body, sizeof body, entrances[e].body, tries[t].value);
    r = serve_call(kit, entrances[e].method, entrances[e].target, "X-Inferscale-User: anna\r\n", body);
    ok = r.status == 200 && (!mcp || !strstr(r.body, "\"isError\":true"));
    if (ok == (tries[t].said[0] != NULL)) fail_msg("%s %s: %d %s", entrances[e].target, body, r.status, r.body);
    for (int i = 0; i < 2 && tries[t].said[i] && !(mcp && tries[t].value[0] != '"'); i++)
        if (!strstr(r.body, tries[t].said[i])) fail_msg("%s %s: no \"%s\" in %s", entrances[e].target, body, tries[t].said[i], r.body);
    serve_reply_free(&r);
}

static void http_and_mcp_read_times_alike(void **state)
{
    serve_reply r = serve_call(kit, "POST", "/memories", NULL, "{" OWNER ", \"text\": \"Anna drinks tea.\"}");

    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    for (size_t e = 0; e < sizeof entrances / sizeof *entrances; e++)
        for (size_t t = 0; t < TRIES; t++) try_it(e, t);
}

/* What was read is what comes back: the same second at each entrance that stores one. */
static void times_come_back_as_they_were_read(void **state)
{
    static const struct { const char *value, *iso; } read[] = {
        { "0", "1970-01-01T00:00:00Z" }, { "\"@0\"", "1970-01-01T00:00:00Z" }, { "\"1970-01-01\"", "1970-01-01T00:00:00Z" },
        { "-1", "1969-12-31T23:59:59Z" }, { "\"@20240501\"", "1970-08-23T06:21:41Z" }, { "\"2024-05-01\"", "2024-05-01T00:00:00Z" },
        { "1714571760", "2024-05-01T13:56:00Z" }, { "\"2200-12-31T23:59:59+02:00\"", "2200-12-31T21:59:59Z" },
    };
    char body[300];

    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        const char *path[2] = { "/memories", "/inferscale/import" };
        serve_reply r;

        for (int k = 0; k < 2; k++) {
            snprintf(body, sizeof body, k ? "{\"text\": \"imported %zu\", \"event_time\": %s}"
                                          : "{\"user_id\": \"ben\", \"text\": \"added %zu\", \"timestamp\": %s}", i, read[i].value);
            r = serve_call(kit, "POST", path[k], "X-Inferscale-User: ben\r\n", body);
            assert_int_equal(r.status, 200);
            serve_reply_free(&r);
        }
        r = serve_call(kit, "GET", "/memories?user_id=ben", NULL, NULL);
        for (int k = 0; k < 2; k++) {
            json_t *list = json_object_get(r.json, "results"), *m;
            const char *at = NULL;
            size_t n;
            char text[40];

            snprintf(text, sizeof text, k ? "imported %zu" : "added %zu", i);
            json_array_foreach(list, n, m)
            {
                if (!strcmp(json_string_value(json_object_get(m, "memory")), text)) at = json_string_value(json_object_get(m, "created_at"));
            }
            if (!at || strcmp(at, read[i].iso) != 0) fail_msg("%s came back as %s, not %s", read[i].value, at ? at : "nothing", read[i].iso);
        }
        serve_reply_free(&r);
    }
}

/* ---- The command line ------------------------------------------------------------------------------------------------------ */

static void the_command_line_reads_times_alike(void **state)
{
    static const char *const commands[] = {
        "remember --user a --later --time %s tea", "remember --user a --later --expires %s tea", "remember --user a --turns --later --time %s tea",
        "update --user a --later 1 tea --time %s", "update --user a --later 1 tea --valid-from %s", "update --user a --later 1 tea --expires %s",
        "supersede --user a --later 1 tea --time %s", "recall --user a tea --method lexical --from %s", "recall --user a tea --method lexical --to %s",
        "recall --user a tea --method lexical --as-of %s", "ask --user a tea --as-of %s --dry-run",
    };
    static const struct { const char *value, *said; } bad[] = {
        { "20240501", "write 2024-05-01 for the first, @20240501 for the second" }, { "2024", "@2024" },
        { "1714571760000", "divide by 1000" }, { "yesterday", "is no time" }, { "''", "is no time" },
    };

    for (size_t c = 0; c < sizeof commands / sizeof *commands; c++)
        for (size_t b = 0; b < (c < 2 ? sizeof bad / sizeof *bad : 1); b++) {
            char command[200];

            snprintf(command, sizeof command, commands[c], bad[b].value);
            sh("$IS %s", command);
            expect_code(2);
            expect_in(last.err, bad[b].said);
        }
    sh("$IS remember --user a --later --engine mock --time 0 'Anna was born.' && $IS export --user a");
    expect_code(0);
    expect_in(last.out, "\"event_time\":\"1970-01-01T00:00:00Z\"");
}

/* What happened at noon is within a range that ends with its day, and not within one that ends as the
 * day begins. */
static void a_range_that_ends_with_a_day_holds_all_of_it(void **state)
{
    static const struct { const char *to; bool found; } ends[] = {
        { "2024-05-01", true }, { "2024-05-01T00:00:00Z", false }, { "2024-04-30", false },
        { "2024-05-01T12:00:00Z", true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char body[300];
        serve_reply r;

        sh("$IS remember --user a --later --engine mock --time 2024-05-01T12:00:00Z 'Anna drinks tea.'; "
           "$IS recall --user a --engine mock --json --to %s tea", ends[i].to);
        expect_code(0);
        assert_int_equal(count("items"), ends[i].found);
        r = serve_call(kit, "POST", "/memories", NULL,
                       "{\"user_id\": \"day\", \"text\": \"Tea at noon.\", \"timestamp\": \"2024-05-01T12:00:00Z\"}");
        assert_int_equal(r.status, 200);
        serve_reply_free(&r);
        for (int chat = 0; chat < 2; chat++) {
            json_t *list;

            snprintf(body, sizeof body,
                     chat ? "{\"messages\": [{\"role\": \"user\", \"content\": \"tea\"}], \"max_tokens\": 1, "
                            "\"memory\": {\"user_id\": \"day\", \"filters\": {\"to\": \"%s\"}}}"
                          : "{\"user_id\": \"day\", \"query\": \"tea\", "
                            "\"filters\": {\"created_at\": {\"lte\": \"%s\"}}}", ends[i].to);
            r = serve_call(kit, "POST", chat ? "/v1/chat/completions" : "/search", NULL, body);
            list = chat ? json_object_get(json_object_get(r.json, "memory"), "facts")
                        : json_object_get(r.json, "results");
            if (r.status != 200 || (json_array_size(list) == 1) != ends[i].found)
                fail_msg("%s: %d %s", body, r.status, r.body);
            serve_reply_free(&r);
        }
    }
}

/* from, to and as_of in filters: the same facts pass at every entrance that has filters. */
static void filters_read_times_alike(void **state)
{
    static const struct { const char *filter; bool found; } filters[] = {
        { "\"from\": \"2024-05-02\"", true }, { "\"from\": \"2024-05-03\"", false },
        { "\"to\": \"2024-05-02\"", true }, { "\"to\": \"2024-05-01\"", false },
        { "\"as_of\": \"2024-05-03\"", true }, { "\"as_of\": \"2024-05-01\"", false },
        { "\"from\": \"2024-05-01\", \"to\": \"2024-05-03\"", true },
    };
    static const struct { const char *target, *body;
    } asked[] = {
        { "/search", "{\"user_id\": \"zoe\", \"query\": \"tea\", \"filters\": {%s}}" },
        { "/v3/memories/search/",
          "{\"query\": \"tea\", \"filters\": {\"AND\": [{\"user_id\": \"zoe\"}, {%s}]}}" },
        { "/inferscale/dry-run",
          "{\"user_id\": \"zoe\", \"question\": \"tea\", \"filters\": {%s}}" },
        { "/v1/chat/completions",
          "{\"messages\": [{\"role\": \"user\", \"content\": \"tea\"}], \"max_tokens\": 1,"
          " \"memory\": {\"user_id\": \"zoe\", \"return_text\": true, \"filters\": {%s}}}" },
        { "/v3/memories/", "{\"filters\": {\"user_id\": \"zoe\", %s}}" },
    };
    serve_reply r = serve_call(kit, "POST", "/memories", NULL,
                               "{\"user_id\": \"zoe\", \"text\": \"Zoe drinks tea.\","
                               " \"timestamp\": \"2024-05-02T12:00:00Z\"}");

    (void)state;
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    for (size_t a = 0; a < sizeof asked / sizeof *asked; a++)
        for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
            const bool list = !strcmp(asked[a].target, "/v3/memories/"),
                       as_of = strstr(filters[i].filter, "as_of");
            char body[400];

            snprintf(body, sizeof body, asked[a].body, filters[i].filter);
            r = serve_call(kit, "POST", asked[a].target, NULL, body);
            if (r.status != (list && as_of ? 400 : 200))
                fail_msg("%s: %d %s", body, r.status, r.body);
            if (r.status == 200 && !strstr(r.body, "Zoe drinks tea.") == filters[i].found)
                fail_msg("%s %s: %s", asked[a].target, body, r.body);
            serve_reply_free(&r);
        }
}

/* ---- What is known already ------------------------------------------------------------------- */

/* At each entrance a known text takes the date that it does not have, keeps the one that it has,
 * and the reply says which, with the next step in the caller's words. */
static const struct {
    const char *target, *body, *next;
} again[] = {
    /* %s: the fact's text, then its date or null */
    { "/memories", "{\"user_id\": \"eve\", \"text\": \"%s\", \"timestamp\": %s}",
      "PUT /memories/{id} changes that" },
    { "/v3/memories/add/",
      "{\"user_id\": \"eve\", \"infer\": false, \"messages\": [{\"role\": \"user\", \"content\":"
      " \"%s\"}], \"timestamp\": %s}",
      "PUT /memories/{id} changes that" },
    { "/mcp", MCP("add_memory", "\"text\": \"%s\", \"timestamp\": %s"),
      "update_memory changes that" },
    { "/inferscale/import", "{\"text\": \"%s\", \"event_time\": %s}",
      "PUT /memories/{id} changes that" },
};

static void remember_again(size_t e, const char *date, const char *said, bool is_said)
{
    static const char header[] = "X-Inferscale-User: eve\r\n";
    char body[500], text[40];
    serve_reply r;

    snprintf(text, sizeof text, "Eve lives in house %zu.", e);
    snprintf(body, sizeof body, again[e].body, text, date);
    r = serve_call(kit, "POST", again[e].target, header, body);
    if (r.status != 200 || !strstr(r.body, said) == is_said)
        fail_msg("%s: %d %s", body, r.status, r.body);
    serve_reply_free(&r);
}

static void a_known_text_takes_a_date_or_says_that_it_keeps_its_own(void **state)
{
    for (size_t e = 0; e < sizeof again / sizeof *again; e++) {
        const bool mcp = !strcmp(again[e].target, "/mcp");
        const char *quoted = mcp ? "\\\"event\\\":\\\"UPDATE\\\"" : "\"event\":\"UPDATE\"";
        serve_reply r = { 0 };
        char text[60];

        snprintf(text, sizeof text, "{\"user_id\": \"eve\", \"text\": \"Eve lives in house %zu.\"}",
                 e);
        r = serve_call(kit, "POST", "/memories", NULL, text);
        assert_int_equal(r.status, 200);
        serve_reply_free(&r);
        remember_again(e, "\"2024-05-01\"", quoted, true);
        remember_again(e, "\"2024-05-01\"", quoted, false);
        remember_again(e, "\"2024-05-01\"", again[e].next, false);
        remember_again(e, "\"2024-05-02\"", again[e].next, true);
        remember_again(e, "\"2024-05-02\"", "keeps its date", true);
    }
}

static void the_command_line_says_what_became_of_a_known_texts_date(void **state)
{
    sh("$IS remember --user a --later --engine mock tea && $IS remember --user a --later --engine "
       "mock --time 2024-05-01 tea");
    expect_in(last.err, "Fact 1 was known without a date, and has this one now.");
    sh("$IS remember --user a --later --engine mock --time 2024-05-02 tea");
    expect_in(last.err,
              "Fact 1 was known; it keeps its date, and `inferscale update` changes that.");
    expect_in(last.out, "known");
    sh("$IS remember --user a --later --engine mock --json --time 2024-05-02 tea");
    assert_string_equal(of(item("facts", 0), "event"), "NONE");
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(item("facts", 0), "kept"), 0)), "date");
    expect_in(of(item("facts", 0), "note"), "`inferscale update`");

    sh("echo '{\"text\": \"tea\", \"event_time\": \"2024-05-02\"}' > f; $IS import --user a "
       "--later --engine mock f");
    expect_in(last.err, "kept so: 1 fact; --json names it");
    sh("$IS remember --user b --later --engine mock tea; $IS import --user b --later --engine mock "
       "f");
    expect_in(last.err, "Known without a date, and dated now: 1 fact.");
    sh("$IS import --user b --later --engine mock --json f; echo '{\"text\": \"tea\", "
       "\"event_time\": 1}' |"
       " $IS remember --jsonl - --user b --later --engine mock --json");
    expect_in(last.out, "\"kept\":[\"date\"]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(http_and_mcp_read_times_alike),
        cmocka_unit_test(times_come_back_as_they_were_read),
        cmocka_unit_test_setup(the_command_line_reads_times_alike, program_fresh),
        cmocka_unit_test(filters_read_times_alike),
        cmocka_unit_test(a_known_text_takes_a_date_or_says_that_it_keeps_its_own),
        cmocka_unit_test_setup(the_command_line_says_what_became_of_a_known_texts_date,
                               program_fresh),
        cmocka_unit_test_setup(a_range_that_ends_with_a_day_holds_all_of_it, program_fresh),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
