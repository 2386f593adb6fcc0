/* test_memory_api.c - Mem0's paths from outside: what is added comes back as its clients expect it, what cannot be honoured is refused by name,
 * and nobody sees, changes or forgets another's memory, by whatever way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

static serve_kit *kit;

/* The reply's JSON, to json_decref; its status must be `want`. */
static json_t *call_as(const char *headers, const char *method, const char *target, const char *body, int want)
{
    serve_reply r = serve_call(kit, method, target, headers, body);
    json_t *o = json_incref(r.json);

    if (r.status != want || !o) fail_msg("%s %s %.200s: %d, not %d: %.300s", method, target, body ? body : "", r.status, want, r.body);
    serve_reply_free(&r);
    return o;
}

static json_t *call(const char *method, const char *target, const char *body, int want) { return call_as(NULL, method, target, body, want); }

static const char *text(json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));

    return s ? s : "";
}

static json_t *result(json_t *reply, size_t i) { return json_array_get(json_object_get(reply, "results"), i); }
static size_t n_results(json_t *reply) { return json_array_size(json_object_get(reply, "results")); }

/* Refused with this status, in Mem0's form, by a sentence with this word. */
static void refused_as(const char *headers, const char *method, const char *target, const char *body, int want, const char *word)
{
    json_t *o = call_as(headers, method, target, body, want);

    if (!strstr(text(o, "detail"), word)) fail_msg("%s %s: \"%s\" does not say \"%s\"", method, target, text(o, "detail"), word);
    json_decref(o);
}

static void refused(const char *method, const char *target, const char *body, int want, const char *word)
{
    refused_as(NULL, method, target, body, want, word);
}

/* Adds one text for a user; its id into id. */
static void add_for(const char *user, const char *what, char id[24])
{
    char body[600];
    json_t *o;

    snprintf(body, sizeof body, "{\"user_id\": \"%s\", \"text\": \"%s\"}", user, what);
    o = call("POST", "/memories", body, 200);
    snprintf(id, 24, "%s", text(result(o, 0), "id"));
    json_decref(o);
}

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

/* ---- Add, get, list, search ------------------------------------------------------------------------------------------------ */

static void each_message_becomes_a_memory(void **state)
{
    json_t *o, *m;
    char target[80];

    (void)state;
    o = call("POST", "/memories", "{\"user_id\": \"add\", \"agent_id\": \"bot\", \"metadata\": {\"topic\": \"tea\", \"n\": 1}, \"messages\": ["
             "{\"role\": \"system\", \"content\": \"Be brief.\"},"
             "{\"role\": \"user\", \"content\": \"I like green tea.\", \"timestamp\": \"2024-05-01T10:00:00+02:00\", \"name\": \"Anna\"},"
             "{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"Noted:\"}, {\"type\": \"text\", \"text\": \"green tea.\"}]}]}",
             200);
    assert_int_equal(n_results(o), 2);
    assert_string_equal(text(result(o, 0), "memory"), "I like green tea.");
    assert_string_equal(text(result(o, 0), "event"), "ADD");
    assert_string_equal(text(result(o, 0), "actor_id"), "Anna");
    assert_string_equal(text(result(o, 1), "memory"), "Noted:\ngreen tea.");
    assert_string_equal(text(result(o, 1), "role"), "assistant");
    snprintf(target, sizeof target, "/memories/%s", text(result(o, 0), "id"));
    m = call("GET", target, NULL, 200);
    assert_string_equal(text(m, "created_at"), "2024-05-01T08:00:00Z");
    assert_string_equal(text(m, "user_id"), "add");
    assert_string_equal(text(m, "agent_id"), "bot");
    assert_int_equal(json_object_size(json_object_get(m, "metadata")), 2);
    assert_int_equal(strlen(text(m, "hash")), 32);
    json_decref(m);
    snprintf(target, sizeof target, "/v1/memories/%s/", text(result(o, 1), "id"));
    m = call("GET", target, NULL, 200);
    assert_string_equal(text(m, "created_at"), "2024-05-01T08:00:00Z"); /* of the message before it, not today's */
    json_decref(m);
    json_decref(o);
    o = call("POST", "/memories", "{\"user_id\": \"add\", \"agent_id\": \"bot\", \"messages\": \"I like green tea.\"}", 200);
    assert_string_equal(text(result(o, 0), "event"), "NONE");
    json_decref(o);
}

static void expiry_is_the_end_of_its_day(void **state)
{
    json_t *o;

    (void)state;
    json_decref(call("POST", "/memories", "{\"user_id\": \"exp\", \"text\": \"Gone.\", \"expiration_date\": \"2020-02-29\"}", 200));
    json_decref(call("POST", "/memories", "{\"user_id\": \"exp\", \"text\": \"Lasting.\", \"expiration_date\": \"2999-02-28\"}", 200));
    o = call("GET", "/memories?user_id=exp", NULL, 200);
    assert_int_equal(n_results(o), 1);
    assert_string_equal(text(result(o, 0), "expiration_date"), "2999-02-28");
    json_decref(o);
    o = call("GET", "/memories?user_id=exp&show_expired=true", NULL, 200);
    assert_int_equal(n_results(o), 2);
    assert_string_equal(text(result(o, 0), "expiration_date"), "2020-02-29");
    json_decref(o);
}

/* More than the store lists at once, by cursor and by page: each exactly once, in order. */
static void pages_have_each_memory_once(void **state)
{
    json_t *messages = json_array(), *body = json_pack("{s:s,s:o}", "user_id", "pages", "messages", messages), *o;
    char *dump, target[100], next[24] = "0";
    size_t seen = 0;

    (void)state;
    for (int i = 0; i < 701; i++) json_array_append_new(messages, json_pack("{s:s,s:o}", "role", "user", "content", json_sprintf("Number %d.", i)));
    dump = json_dumps(body, 0);
    json_decref(call("POST", "/memories", dump, 200));
    free(dump);
    json_decref(body);
    while (*next) {
        snprintf(target, sizeof target, "/memories?user_id=pages&limit=97&after=%s", next);
        o = call("GET", target, NULL, 200);
        for (size_t i = 0; i < n_results(o); i++) {
            char want[24];

            snprintf(want, sizeof want, "Number %zu.", seen++);
            assert_string_equal(text(result(o, i), "memory"), want);
        }
        snprintf(next, sizeof next, "%s", text(o, "next"));
        json_decref(o);
    }
    assert_int_equal(seen, 701);
    o = call("POST", "/v3/memories/?page=8&page_size=100", "{\"filters\": {\"user_id\": \"pages\"}}", 200);
    assert_int_equal(json_integer_value(json_object_get(o, "count")), 701);
    assert_int_equal(n_results(o), 1);
    assert_string_equal(text(result(o, 0), "memory"), "Number 700.");
    assert_string_equal(text(o, "previous"), "/v3/memories/?page=7&page_size=100");
    assert_true(json_is_null(json_object_get(o, "next")));
    json_decref(o);
    o = call("GET", "/memories?user_id=pages&page=2&page_size=100", NULL, 200); /* and on the open-source server's path */
    assert_int_equal(json_integer_value(json_object_get(o, "count")), 701);
    assert_int_equal(n_results(o), 100);
    assert_string_equal(text(result(o, 0), "memory"), "Number 100.");
    assert_string_equal(text(o, "next"), "/memories?page=3&page_size=100&user_id=pages");
    json_decref(o);
    o = call("GET", "/memories?page=3&page_size=100&user_id=pages", NULL, 200);
    assert_string_equal(text(result(o, 0), "memory"), "Number 200.");
    json_decref(o);
    o = call("GET", "/v1/memories/?user_id=pages", NULL, 200);
    assert_int_equal(json_array_size(o), 701);
    json_decref(o);
}

static void filters_are_honoured(void **state)
{
    static const struct { const char *filter; const char *want; } tries[] = { /* a, b, c: the memories that pass, in order */
        { "{\"user_id\": \"fil\"}", "abc" },
        { "{\"AND\": [{\"user_id\": \"fil\"}, {\"kind\": \"x\"}]}", "ac" },
        { "{\"user_id\": \"fil\", \"metadata\": {\"kind\": \"x\", \"n\": 1.0}}", "a" },
        { "{\"user_id\": \"fil\", \"n\": {\"eq\": 2}}", "b" },
        { "{\"user_id\": \"fil\", \"n\": {\"in\": [2]}}", "b" },
        { "{\"user_id\": \"fil\", \"yes\": true}", "c" },
        { "{\"user_id\": \"fil\", \"yes\": \"true\"}", "" },
        { "{\"user_id\": \"fil\", \"created_at\": {\"gte\": \"2024-05-02\"}}", "bc" },
        { "{\"user_id\": \"fil\", \"created_at\": {\"gt\": \"2024-05-02\"}}", "c" },
        { "{\"user_id\": \"fil\", \"created_at\": {\"lte\": \"2024-05-02\"}}", "ab" },
        { "{\"user_id\": \"fil\", \"created_at\": {\"lt\": \"2024-05-02\", \"gt\": 1}}", "a" },
        { "{\"user_id\": \"fil\", \"created_at\": {\"eq\": \"2024-05-03\"}}", "c" },
        { "{\"OR\": [{\"AND\": [{\"user_id\": \"fil\"}, {\"n\": 3}]}]}", "c" },
        { "{\"user_id\": \"fil\", \"agent_id\": \"bot\"}", "b" },
        { "{\"user_id\": \"nobody\"}", "" },
    };

    (void)state;
    json_decref(call("POST", "/memories", "{\"user_id\": \"fil\", \"text\": \"tea a\", \"timestamp\": \"2024-05-01T23:59:59Z\", \"metadata\": {\"kind\": \"x\", \"n\": 1}}", 200));
    json_decref(call("POST", "/memories",
                     "{\"user_id\": \"fil\", \"agent_id\": \"bot\", \"text\": \"tea b\", \"timestamp\": \"2024-05-02T12:00:00Z\", \"metadata\": {\"kind\": \"y\", \"n\": 2}}", 200));
    json_decref(call("POST", "/memories", "{\"user_id\": \"fil\", \"text\": \"tea c\", \"timestamp\": \"2024-05-03\", \"metadata\": {\"kind\": \"x\", \"n\": 3, \"yes\": true}}", 200));
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        char body[400], got[8] = "";
        json_t *o;

        snprintf(body, sizeof body, "{\"filters\": %s}", tries[i].filter);
        o = call("POST", "/v3/memories/", body, 200);
        for (size_t k = 0; k < n_results(o); k++) strncat(got, text(result(o, k), "memory") + 4, 1);
        if (strcmp(got, tries[i].want)) fail_msg("list, %s: \"%s\", not \"%s\"", tries[i].filter, got, tries[i].want);
        json_decref(o);
        snprintf(body, sizeof body, "{\"query\": \"tea\", \"filters\": %s}", tries[i].filter);
        o = call("POST", "/search", body, 200);
        if (n_results(o) != strlen(tries[i].want)) fail_msg("search, %s: %zu", tries[i].filter, n_results(o));
        for (size_t k = 0; k < n_results(o); k++) assert_non_null(strchr(tries[i].want, text(result(o, k), "memory")[4]));
        json_decref(o);
    }
}

static void search_says_how_near(void **state)
{
    json_t *o;

    (void)state;
    json_decref(call("POST", "/memories", "{\"user_id\": \"near\", \"text\": \"Peppermint only.\"}", 200));
    o = call("POST", "/search", "{\"query\": \"peppermint\", \"user_id\": \"near\", \"threshold\": 0.0, \"explain\": true, \"fields\": [\"memory\", \"score\"]}", 200);
    assert_int_equal(n_results(o), 1);
    assert_int_equal(json_object_size(result(o, 0)), 3); /* the id always */
    json_decref(o);
    o = call("POST", "/v2/memories/search/", "{\"query\": \"peppermint\", \"filters\": {\"user_id\": \"near\"}}", 200);
    assert_int_equal(json_array_size(o), 1);
    assert_true(json_number_value(json_object_get(json_array_get(o, 0), "score")) >= 0);
    json_decref(o);
    o = call("POST", "/search", "{\"query\": \"peppermint\", \"user_id\": \"near\", \"top_k\": 0}", 200);
    assert_int_equal(n_results(o), 0);
    json_decref(o);
}

/* ---- Change, forget -------------------------------------------------------------------------------------------------------- */

static void an_update_is_a_version(void **state)
{
    char id[24], target[80];
    json_t *o;

    (void)state;
    o = call("POST", "/memories", "{\"user_id\": \"upd\", \"text\": \"Anna lives in Graz.\", \"timestamp\": 1714521600, \"metadata\": {\"a\": 1, \"b\": 2}}", 200);
    snprintf(id, sizeof id, "%s", text(result(o, 0), "id"));
    json_decref(o);
    snprintf(target, sizeof target, "/memories/%s", id);
    o = call("PUT", target, "{\"text\": \"Anna lives in Wien.\", \"metadata\": {\"b\": 3}}", 200);
    assert_string_equal(text(o, "memory"), "Anna lives in Wien.");
    assert_string_equal(text(o, "created_at"), "2024-05-01T00:00:00Z");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "metadata"), "a")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "metadata"), "b")), 3);
    json_decref(o);
    json_decref(call("PUT", target, "{\"data\": \"Anna lives in Linz.\", \"timestamp\": \"2024-06-01\"}", 200));
    snprintf(target, sizeof target, "/memories/%s/history", id);
    o = call("GET", target, NULL, 200);
    assert_int_equal(json_array_size(o), 3);
    assert_string_equal(text(json_array_get(o, 2), "old_memory"), "Anna lives in Wien.");
    assert_string_equal(text(json_array_get(o, 2), "new_memory"), "Anna lives in Linz.");
    assert_string_equal(text(json_array_get(o, 2), "created_at"), "2024-06-01T00:00:00Z");
    assert_string_equal(text(json_array_get(o, 0), "event"), "ADD");
    json_decref(o);
    o = call("POST", "/search", "{\"query\": \"Graz\", \"user_id\": \"upd\", \"fields\": [\"memory\"]}", 200);
    for (size_t i = 0; i < n_results(o); i++) assert_string_equal(text(result(o, i), "memory"), "Anna lives in Linz.");
    json_decref(o);
    o = call("POST", "/memories", "{\"user_id\": \"upd\", \"text\": \"Carved in stone.\", \"immutable\": true}", 200);
    snprintf(target, sizeof target, "/memories/%s", text(result(o, 0), "id"));
    json_decref(o);
    refused("PUT", target, "{\"text\": \"Sand.\"}", 400, "immutable");
    o = call("GET", target, NULL, 200);
    assert_true(json_is_true(json_object_get(o, "immutable")));
    json_decref(o);
}

/* A second handle supersedes: the server has no path for that, others on the store do. */
static void delete_takes_what_it_replaced(void **state)
{
    inferscale *other = store_open(kit->home, NULL, NULL, false);
    inferscale_scope who = { .user = "linked" };
    int64_t a = store_fact(other, &who, "First."), b = 0, c = 0, apart = store_fact(other, &who, "Apart.");
    char target[80];
    json_t *o;

    (void)state;
    assert_int_equal(inferscale_supersede(other, &who, a, &(inferscale_fact){ .text = "Second." }, &b), INFERSCALE_OK);
    assert_int_equal(inferscale_supersede(other, &who, b, &(inferscale_fact){ .text = "Third." }, &c), INFERSCALE_OK);
    snprintf(target, sizeof target, "/memories/%lld", (long long)a);
    refused("PUT", target, "{\"text\": \"x\"}", 400, "superseded");
    snprintf(target, sizeof target, "/v1/memories/%lld/?delete_linked=true", (long long)c);
    o = call("DELETE", target, NULL, 200);
    assert_int_equal(json_integer_value(json_object_get(o, "deleted")), 3);
    json_decref(o);
    o = call("GET", "/memories?user_id=linked", NULL, 200);
    assert_int_equal(n_results(o), 1);
    assert_int_equal(atoll(text(result(o, 0), "id")), apart);
    json_decref(o);
    inferscale_close(other);
}

static void batches_are_looked_at_before_they_are_done(void **state)
{
    char a[24], b[24], body[400];
    json_t *o;

    (void)state;
    add_for("batch", "one", a);
    add_for("batch", "two", b);
    snprintf(body, sizeof body, "{\"memories\": [{\"memory_id\": \"%s\"}, {\"memory_id\": \"999999\"}]}", a);
    refused("DELETE", "/v1/batch/", body, 404, "999999");
    snprintf(body, sizeof body, "{\"memories\": [{\"memory_id\": \"%s\", \"text\": \"uno\"}, {\"memory_id\": \"%s\", \"metadata\": {\"x\": 1}}]}", a, b);
    json_decref(call("PUT", "/v1/batch/", body, 200));
    o = call("GET", "/memories?user_id=batch", NULL, 200);
    assert_int_equal(n_results(o), 2);
    assert_string_equal(text(result(o, 0), "memory"), "uno");
    json_decref(o);
    snprintf(body, sizeof body, "{\"memories\": [{\"memory_id\": \"%s\"}, {\"memory_id\": \"%s\"}]}", a, b);
    json_decref(call("DELETE", "/v1/batch/", body, 200));
    refused("DELETE", "/v1/batch/", "{\"memories\": []}", 400, "1 to");
    refused("DELETE", "/v1/batch/", "{\"memories\": {\"memory_id\": \"1\"}}", 400, "list");
}

/* What other systems did: wiped everything because a name was missing. */
static void nothing_goes_without_a_name(void **state)
{
    static const char *const targets[] = { "/memories", "/memories/", "/v1/memories/", "/memories?userid=keep", "/memories?user=keep", "/memories?" };
    char id[24];
    json_t *o;

    (void)state;
    add_for("keep", "Keep me.", id);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) refused("DELETE", targets[i], NULL, 400, "identifier");
    refused("DELETE", "/memories?user_id=", NULL, 400, "user_id");
    refused("DELETE", "/memories?user_id=keep&metadata=%7B%7D", NULL, 400, "metadata");
    refused("DELETE", "/v1/memories/?filters=%7B%22user_id%22:%22keep%22%7D", NULL, 400, "filters");
    refused("POST", "/reset", "{}", 400, "confirm");
    refused("POST", "/reset", NULL, 400, "confirm");
    refused("POST", "/reset", "{\"confirm\": \"true\"}", 400, "confirm");
    o = call("GET", "/memories?user_id=keep", NULL, 200);
    assert_int_equal(n_results(o), 1);
    json_decref(o);
    json_decref(call("DELETE", "/memories?user_id=nobody-ever", NULL, 200));
    json_decref(call("DELETE", "/memories?user_id=keep", NULL, 200));
    o = call("GET", "/memories?user_id=keep", NULL, 200);
    assert_int_equal(n_results(o), 0);
    json_decref(o);
}

/* ---- Wrong and hostile ----------------------------------------------------------------------------------------------------- */

static void what_is_wrong_is_named(void **state)
{
    static const struct { const char *method, *target, *body; int status; const char *word; } tries[] = {
        { "POST", "/memories", "{\"text\": \"x\"}", 400, "identifier" },
        { "POST", "/search", "{\"user_id\": \"a\", \"qurey\": \"x\"}", 400, "did you mean query?" },
        { "POST", "/memories", "{\"user_id\": 7, \"text\": \"x\"}", 400, "user_id" },
        { "POST", "/memories", "{\"user_id\": \"\", \"text\": \"x\"}", 400, "user_id" },
        { "POST", "/memories", "{\"user_id\": \"a\"}", 400, "messages" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"messages\": \"y\"}", 400, "messages" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"messages\": []}", 400, "1 to" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"messages\": 3}", 400, "messages" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"messages\": [7]}", 400, "message 1" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", 400, "role" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"messages\": [{\"role\": \"user\"}]}", 400, "content" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", 400, "text" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"x\", \"weight\": 1}]}", 400, "weight" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"  \"}", 400, "" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"metadata\": []}", 400, "metadata" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"timestamp\": \"yesterday\"}", 400, "timestamp" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"timestamp\": 1714521600000}", 400, "milliseconds" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"timestamp\": 1e300}", 400, "timestamp" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"event_time\": \"2024-05-01\"}", 400, "did you mean timestamp" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"expiration_date\": \"soon\"}", 400, "expiration_date" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"infer\": true}", 400, "infer" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"infer\": \"no\"}", 400, "infer" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"enable_graph\": true}", 400, "enable_graph" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"filters\": {\"colour\": \"red\"}}", 400, "owner" },
        { "POST", "/memories", "{\"user_id\": \"a\", \"text\": \"x\", \"filters\": {\"user_id\": \"b\"}}", 400, "differ" },
        { "POST", "/search", "{\"user_id\": \"a\"}", 400, "query" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"\"}", 400, "query" },
        { "POST", "/search", "{\"query\": \"x\"}", 400, "identifier" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"top_k\": -1}", 400, "top_k" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"top_k\": 1001}", 400, "top_k" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"top_k\": true}", 400, "top_k" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"threshold\": 2}", 400, "threshold" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"fields\": \"memory\"}", 400, "fields" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"rerank\": true}", 400, "rerank" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"latest_only\": false}", 400, "latest_only" },
        { "POST", "/search", "{\"user_id\": \"a\", \"query\": \"x\", \"filters\": []}", 400, "filter" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"OR\": [{\"user_id\": \"a\"}, {\"user_id\": \"b\"}]}}", 400, "OR" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"NOT\": [{\"user_id\": \"a\"}]}}", 400, "NOT" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"AND\": [{\"user_id\": \"a\"}, {\"user_id\": \"b\"}]}}", 400, "user_id" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"user_id\": [\"a\"]}}", 400, "user_id" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"user_id\": \"a\", \"n\": {\"gt\": 1}}}", 400, "\"n\"" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"user_id\": \"a\", \"n\": null}}", 400, "\"n\"" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"user_id\": \"a\", \"created_at\": \"2024\"}}", 400, "created_at" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"user_id\": \"a\", \"created_at\": {\"ne\": 1}}}", 400, "ne" },
        { "POST", "/search", "{\"query\": \"x\", \"filters\": {\"user_id\": \"a\", \"created_at\": {\"gt\": 9, \"lt\": 3}}}", 400, "ends" },
        { "GET", "/memories", NULL, 400, "identifier" },
        { "GET", "/memories?user_id=a&limit=0", NULL, 400, "limit" },
        { "GET", "/memories?user_id=a&limit=1e9", NULL, 400, "limit" },
        { "GET", "/memories?user_id=a&after=-3", NULL, 400, "after" },
        { "GET", "/memories?user_id=a&after=x", NULL, 400, "`next`" },
        { "GET", "/memories?user_id=a&after=99999999999999999999", NULL, 400, "`next`" },
        { "GET", "/memories?user_id=a&page=0", NULL, 400, "page" },
        { "GET", "/memories?user_id=a&page=2&after=3", NULL, 400, "after" },
        { "GET", "/memories?user_id=a&page=2&limit=3", NULL, 400, "limit" },
        { "GET", "/memories?user_id=a&filters=%7B%7D", NULL, 400, "filters" },
        { "POST", "/v3/memories/?page=0", "{\"filters\": {\"user_id\": \"a\"}}", 400, "page" },
        { "POST", "/v3/memories/", "{\"filters\": {\"user_id\": \"a\"}, \"page_size\": \"many\"}", 400, "page_size" },
        { "POST", "/v3/memories/", "{\"filters\": {\"user_id\": \"a\"}, \"categories\": [\"x\"]}", 400, "categories" },
        { "GET", "/memories/0", NULL, 404, "not found" },
        { "GET", "/memories/-1", NULL, 404, "not found" },
        { "GET", "/memories/+1", NULL, 404, "not found" },
        { "GET", "/memories/01", NULL, 404, "not found" },
        { "GET", "/memories/1e3", NULL, 404, "not found" },
        { "GET", "/memories/9223372036854775808", NULL, 404, "not found" },
        { "GET", "/memories/18446744073709551617", NULL, 404, "not found" },
        { "GET", "/memories/1%20OR%201=1", NULL, 404, "not found" },
        { "PUT", "/memories/424242", "{\"text\": \"x\"}", 404, "not found" },
        { "DELETE", "/memories/424242", NULL, 404, "not found" },
        { "GET", "/memories/424242/history", NULL, 404, "not found" },
        { "DELETE", "/v2/entities/user/nobody-ever/", NULL, 404, "nothing" },
        { "DELETE", "/v2/entities/planet/mars/", NULL, 404, "planet" },
        { "POST", "/v1/exports/", "{}", 501, "not served" },
        { "GET", "/v2/profiles/settings/", NULL, 501, "not served" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        refused(tries[i].method, tries[i].target, tries[i].body, tries[i].status, tries[i].word);
}

/* n times open, then close, in a filter and in metadata. */
static void deep_and_large_input_is_refused(void **state)
{
    static const int depths[] = { 9, 500, 5000 };
    char *body = malloc(400000);

    (void)state;
    for (size_t d = 0; d < 3; d++) {
        size_t n = (size_t)snprintf(body, 100, "{\"query\": \"x\", \"filters\": ");

        for (int i = 0; i < depths[d]; i++) n += (size_t)sprintf(body + n, "{\"AND\":[");
        n += (size_t)sprintf(body + n, "{\"user_id\":\"a\"}");
        for (int i = 0; i < depths[d]; i++) n += (size_t)sprintf(body + n, "]}");
        sprintf(body + n, "}");
        json_decref(call("POST", "/search", body, 400));
        n = (size_t)snprintf(body, 100, "{\"user_id\": \"deep\", \"text\": \"x\", \"metadata\": {\"a\":");
        for (int i = 0; i < depths[d]; i++) n += (size_t)sprintf(body + n, "[");
        for (int i = 0; i < depths[d]; i++) n += (size_t)sprintf(body + n, "]");
        sprintf(body + n, "}}");
        json_decref(call("POST", "/memories", body, depths[d] < 60 ? 200 : 400));
    }
    strcpy(body, "{\"user_id\": \"large\", \"text\": \"");
    memset(body + strlen(body), 'x', 70000);
    strcpy(body + strlen("{\"user_id\": \"large\", \"text\": \"") + 70000, "\"}");
    json_decref(call("POST", "/memories", body, 400));
    free(body);
    json_decref(call("POST", "/memories", "{\"user_id\": \"a\", \"text\": \"\\u0000\"}", 400));
    json_decref(call("POST", "/memories", "{\"user_id\": \"a\", \"text\": \"\xff\xfe\"}", 400));
    json_decref(call("POST", "/memories", "[1]", 400));
    json_decref(call("POST", "/memories", "{", 400));
    json_decref(call("GET", "/memories?user_id=a", NULL, 200));
}

/* ---- Others' memory -------------------------------------------------------------------------------------------------------- */

/* By name, by filter, by header, by a guessed id. */
static void a_named_owner_sees_its_own(void **state)
{
    char mine[24], theirs[24], target[100], body[200];
    json_t *o;

    (void)state;
    add_for("own-a", "Mine.", mine);
    add_for("own-b", "Theirs.", theirs);
    snprintf(target, sizeof target, "/memories/%s?user_id=own-a", theirs);
    refused("GET", target, NULL, 404, "not found");
    refused("DELETE", target, NULL, 404, "not found");
    snprintf(body, sizeof body, "{\"text\": \"Taken.\", \"user_id\": \"own-a\"}");
    snprintf(target, sizeof target, "/memories/%s", theirs);
    refused("PUT", target, body, 404, "not found");
    refused_as("X-Inferscale-User: own-a\r\n", "GET", target, NULL, 404, "not found");
    snprintf(target, sizeof target, "/memories/%s/history", theirs);
    refused_as("X-Inferscale-User: own-a\r\n", "GET", target, NULL, 404, "not found");
    snprintf(body, sizeof body, "{\"memories\": [{\"memory_id\": \"%s\"}, {\"memory_id\": \"%s\"}]}", mine, theirs);
    refused_as("X-Inferscale-User: own-a\r\n", "DELETE", "/v1/batch/", body, 404, "not found");
    snprintf(target, sizeof target, "/memories/%s?user_id=own-a&agent_id=other", mine);
    refused("GET", target, NULL, 404, "not found"); /* its own, but not of that agent */
    snprintf(target, sizeof target, "/memories/%s", theirs);
    o = call("GET", target, NULL, 200); /* without keys whoever asks may name every id */
    assert_string_equal(text(o, "memory"), "Theirs.");
    json_decref(o);
}

/* A turn is no memory: its id is not found. */
static void turns_are_not_memories(void **state)
{
    inferscale *other = store_open(kit->home, NULL, NULL, false);
    inferscale_scope who = { .user = "turns" };
    int64_t id = 0;
    char target[80];

    (void)state;
    assert_int_equal(inferscale_add_turns(other, &who, &(inferscale_turn){ .text = "Hello." }, 1, &id), INFERSCALE_OK);
    inferscale_close(other);
    snprintf(target, sizeof target, "/memories/%lld", (long long)id);
    refused("GET", target, NULL, 404, "not found");
    refused("PUT", target, "{\"text\": \"x\"}", 404, "not found");
    refused("DELETE", target, NULL, 404, "not found");
}

static void operations_are_counted(void **state)
{
    serve_reply r;

    (void)state;
    json_decref(call("GET", "/memories?user_id=count", NULL, 200));
    refused("GET", "/memories/0", NULL, 404, "");
    r = serve_call(kit, "GET", "/metrics", NULL, NULL);
    assert_non_null(strstr(r.body, "inferscale_memory_operations_total{operation=\"list\",result=\"ok\"}"));
    assert_non_null(strstr(r.body, "inferscale_memory_operations_total{operation=\"get\",result=\"refused\"}"));
    serve_reply_free(&r);
}

/* One limit everywhere: an owner whom the library takes is reached over HTTP, in the body, the query and the header; a byte more is
 * refused by both. */
static void names_have_one_limit(void **state)
{
    char name[INFERSCALE_NAME_MAX + 2], body[900], target[700], header[700];
    json_t *o;

    (void)state;
    memset(name, 'n', sizeof name);
    for (int over = 0; over < 2; over++) {
        name[INFERSCALE_NAME_MAX + over] = 0;
        snprintf(body, sizeof body, "{\"user_id\": \"%s\", \"text\": \"Anna has a long name.\"}", name);
        snprintf(target, sizeof target, "/memories?user_id=%s", name);
        snprintf(header, sizeof header, "X-Inferscale-User: %s\r\n", name);
        if (over) {
            refused("POST", "/memories", body, 400, "512 bytes");
            refused("GET", target, NULL, 400, "512 bytes");
            refused_as(header, "GET", "/memories", NULL, 400, "512 bytes");
            name[INFERSCALE_NAME_MAX] = 'n';
            continue;
        }
        json_decref(call("POST", "/memories", body, 200));
        o = call("GET", target, NULL, 200);
        assert_int_equal(n_results(o), 1);
        json_decref(o);
        o = call_as(header, "GET", "/memories", NULL, 200);
        assert_int_equal(n_results(o), 1);
        json_decref(o);
        name[INFERSCALE_NAME_MAX] = 'n';
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_have_one_limit),
        cmocka_unit_test(each_message_becomes_a_memory),
        cmocka_unit_test(expiry_is_the_end_of_its_day),
        cmocka_unit_test(pages_have_each_memory_once),
        cmocka_unit_test(filters_are_honoured),
        cmocka_unit_test(search_says_how_near),
        cmocka_unit_test(an_update_is_a_version),
        cmocka_unit_test(delete_takes_what_it_replaced),
        cmocka_unit_test(batches_are_looked_at_before_they_are_done),
        cmocka_unit_test(nothing_goes_without_a_name),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(deep_and_large_input_is_refused),
        cmocka_unit_test(a_named_owner_sees_its_own),
        cmocka_unit_test(turns_are_not_memories),
        cmocka_unit_test(operations_are_counted),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
