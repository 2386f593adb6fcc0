/* test_own_api.c - our own paths: what goes out as JSON Lines comes back the same, forgetting proves itself, reports say what there is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

static serve_kit *kit;

static json_t *call(const char *method, const char *target, const char *body, int want)
{
    serve_reply r = serve_call(kit, method, target, NULL, body);
    json_t *o = json_incref(r.json);

    if (r.status != want || !o) fail_msg("%s %s %.200s: %d, not %d: %.300s", method, target, body ? body : "", r.status, want, r.body);
    serve_reply_free(&r);
    return o;
}

static int64_t number(json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);

    if (!json_is_integer(v)) fail_msg("%s is no number", name);
    return json_integer_value(v);
}

/* Refused in OpenAI's form by a sentence with this word. */
static void refused(const char *method, const char *target, const char *body, int want, const char *word)
{
    json_t *o = call(method, target, body, want);
    const char *said = json_string_value(json_object_get(json_object_get(o, "error"), "message"));

    if (!said || !strstr(said, word)) fail_msg("%s %s %s: \"%s\" does not say \"%s\"", method, target, body ? body : "", said ? said : "", word);
    json_decref(o);
}

static char *export(const char *target)
{
    serve_reply r = serve_call(kit, "GET", target, NULL, NULL);
    char *text = strdup(r.body ? r.body : "");

    assert_int_equal(r.status, 200);
    assert_true(r.whole);
    assert_string_equal(serve_head(&r, "Content-Type"), "application/x-ndjson");
    serve_reply_free(&r);
    return text;
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

/* The lines without what a store gives by itself, which another store gives anew: ids, write times, the owner. */
static char *without_ids(const char *lines)
{
    static const char *const own[] = { "id", "source_turn", "write_time", "exported", "user" };
    char *out = calloc(1, strlen(lines) + 2), *dump;

    while (*lines) {
        size_t n = strcspn(lines, "\n");
        json_t *o = json_loadb(lines, n, 0, NULL);

        assert_non_null(o);
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) json_object_del(o, own[i]);
        dump = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
        strcat(strcat(out, dump), "\n");
        free(dump);
        json_decref(o);
        lines += n + (lines[n] == '\n');
    }
    return out;
}

static void lines_go_out_and_come_back(void **state)
{
    static const char in[] =
        "{\"type\": \"turn\", \"id\": 5, \"text\": \"I moved to Graz.\", \"conversation\": \"c1\", \"speaker\": \"Anna\", \"time\": \"2024-05-01\"}\n"
        "{\"type\": \"fact\", \"text\": \"Anna moved to Graz.\", \"event_time\": \"2024-05-01\", \"source_turn\": 5, \"metadata\": {\"a\": [1, 2]}, \"agent\": \"bot\"}\n"
        "{\"text\": \"Anna keeps b\xc3\xa9""es.\", \"event_time\": \"2024-05-02\", \"expires\": \"2999-01-01\"}\n";
    char *a, *b, *x, *y;
    json_t *o;

    (void)state;
    o = call("POST", "/inferscale/import?user_id=out", in, 200);
    assert_true(number(o, "added") == 2 && number(o, "turns") == 1);
    json_decref(o);
    a = export("/inferscale/export?user_id=out");
    o = call("POST", "/inferscale/import?user_id=back", a, 200);
    assert_true(number(o, "added") == 2 && number(o, "turns") == 1 && number(o, "known") == 0);
    json_decref(o);
    b = export("/inferscale/export?user_id=back");
    x = without_ids(a);
    y = without_ids(b);
    assert_string_equal(x, y);
    o = call("POST", "/inferscale/import?user_id=back", b, 200); /* again: all is known */
    assert_true(number(o, "added") == 0 && number(o, "known") == 2 && number(o, "known_turns") == 1);
    json_decref(o);
    free(a);
    free(b);
    free(x);
    free(y);
}

static void a_wrong_line_is_named(void **state)
{
    json_t *o, *error;

    (void)state;
    o = call("POST", "/inferscale/import?user_id=wrong", "{\"text\": \"First.\"}\n{\"text\": \"Second.\"}\n{\"txt\": \"Third.\"}\n{\"text\": \"Fourth.\"}\n", 400);
    error = json_object_get(o, "error");
    assert_int_equal(number(error, "line"), 3);
    assert_non_null(strstr(json_string_value(json_object_get(error, "message")), "txt"));
    assert_int_equal(number(o, "added"), 2); /* what stood before it is stored, and said */
    json_decref(o);
    refused("POST", "/inferscale/import?user_id=wrong", "not json", 400, "line 1");
    refused("POST", "/inferscale/import?user_id=wrong", "{\"text\": \"x\"}\n{\"text\": \"\xff\"}", 400, "UTF-8");
    refused("POST", "/inferscale/import?user_id=wrong", NULL, 400, "empty");
    refused("POST", "/inferscale/import", "{\"text\": \"x\"}", 400, "owner");
    o = call("POST", "/inferscale/import", "{\"text\": \"Mine.\", \"user\": \"says\"}\n{\"text\": \"Its own.\", \"agent\": \"too\"}", 200);
    assert_int_equal(number(o, "added"), 2);
    json_decref(o);
    refused("GET", "/inferscale/export", NULL, 400, "whose");
}

/* Who slips on an id is told, and hears of no proof. */
static void forgetting_what_is_not_there_proves_nothing(void **state)
{
    json_t *o = call("POST", "/inferscale/forget", "{\"user_id\": \"anna\", \"ids\": [\"999999\", \"999998\"], \"prove\": true}", 404);

    (void)state;
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "error"), "code")), "not_found");
    assert_non_null(strstr(json_string_value(json_object_get(json_object_get(o, "error"), "message")), "GET /memories"));
    assert_int_equal(number(o, "forgotten"), 0);
    assert_int_equal(number(o, "not_found"), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(o, "not_found_ids"), 1)), "999998");
    assert_int_equal(number(o, "needles"), 0);
    assert_true(json_is_false(json_object_get(o, "proven")));
    json_decref(o);
}

/* Long enough to be looked for. */
static void forgetting_is_proven(void **state)
{
    char body[200];
    json_t *o;
    int64_t id, other;

    (void)state;
    o = call("POST", "/memories", "{\"user_id\": \"prove\", \"messages\": [{\"role\": \"user\", \"content\": \"The password of the safe is heliotrope.\"}, "
                                  "{\"role\": \"user\", \"content\": \"The garden gate squeaks in the wind.\"}]}", 200);
    id = atoll(json_string_value(json_object_get(json_array_get(json_object_get(o, "results"), 0), "id")));
    other = atoll(json_string_value(json_object_get(json_array_get(json_object_get(o, "results"), 1), "id")));
    json_decref(o);
    json_decref(call("POST", "/inferscale/encode", "{\"user_id\": \"prove\"}", 200));
    snprintf(body, sizeof body, "{\"user_id\": \"prove\", \"ids\": [\"%lld\"], \"prove\": true, \"wait_ms\": 60000}", (long long)id);
    o = call("POST", "/inferscale/forget", body, 200);
    assert_int_equal(number(o, "forgotten"), 1);
    assert_true(json_is_true(json_object_get(o, "proven")));
    assert_int_equal(number(o, "traces"), 0);
    assert_true(number(o, "needles") > 0 && number(o, "scanned_bytes") > 0);
    json_decref(o);
    snprintf(body, sizeof body, "/memories/%lld", (long long)id);
    json_decref(call("GET", body, NULL, 404));
    snprintf(body, sizeof body, "/memories/%lld", (long long)other);
    json_decref(call("GET", body, NULL, 200));
    o = call("POST", "/inferscale/forget", "{\"user_id\": \"prove\", \"all\": true}", 200);
    assert_int_equal(number(o, "forgotten"), 1);
    assert_null(json_object_get(o, "proven"));
    json_decref(o);
    o = call("POST", "/inferscale/forget", "{\"user_id\": \"nobody-ever\", \"all\": true}", 200);
    assert_int_equal(number(o, "forgotten"), 0);
    json_decref(o);
}

static void what_is_to_be_forgotten_must_be_said(void **state)
{
    static const struct { const char *body, *word; } tries[] = {
        { "{}", "whose" }, { "{\"all\": true}", "whose" }, { "{\"user_id\": \"a\"}", "say what" }, { "{\"user_id\": \"a\", \"all\": false}", "say what" },
        { "{\"user_id\": \"a\", \"all\": true, \"ids\": [\"1\"]}", "one of them" }, { "{\"user_id\": \"a\", \"all\": true, \"expired\": true}", "one of them" },
        { "{\"user_id\": \"a\", \"ids\": []}", "ids" }, { "{\"user_id\": \"a\", \"ids\": \"1\"}", "ids" }, { "{\"user_id\": \"a\", \"ids\": [\"x\"]}", "ids" },
        { "{\"user_id\": \"a\", \"ids\": [-1]}", "ids" }, { "{\"user_id\": \"a\", \"ids\": [1.5]}", "ids" }, { "{\"user_id\": \"a\", \"all\": 1}", "all" },
        { "{\"user_id\": \"a\", \"all\": true, \"everything\": true}", "everything" }, { "{\"user_id\": \"a\", \"all\": true, \"wait_ms\": -1}", "wait_ms" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) refused("POST", "/inferscale/forget", tries[i].body, 400, tries[i].word);
}

static void reports_say_what_there_is(void **state)
{
    json_t *o, *m;

    (void)state;
    json_decref(call("POST", "/memories", "{\"user_id\": \"rep\", \"text\": \"The report's only fact.\"}", 200));
    json_decref(call("POST", "/inferscale/encode", "{\"user_id\": \"rep\", \"stage\": \"first\"}", 200));
    o = call("GET", "/inferscale/encode?user_id=rep", NULL, 200);
    assert_int_equal(number(o, "n_unencoded"), 0);
    json_decref(o);
    o = call("GET", "/inferscale/encode", NULL, 200);
    assert_true(json_is_true(json_object_get(o, "background")));
    json_decref(o);
    o = call("GET", "/inferscale/usage?user_id=rep", NULL, 200);
    assert_true(json_array_size(json_object_get(o, "rows")) >= 2);
    json_decref(o);
    o = call("GET", "/inferscale/info", NULL, 200);
    m = json_object_get(o, "model");
    assert_string_equal(json_string_value(json_object_get(o, "version")), inferscale_version());
    assert_true(number(m, "layers") > 0 && number(m, "kv_bytes_per_token") > 0 && json_is_true(json_object_get(m, "can_inject")));
    assert_true(number(json_object_get(o, "store"), "facts") > 0);
    json_decref(o);
    refused("POST", "/inferscale/encode", "{\"user_id\": \"rep\", \"stage\": \"third\"}", 400, "stage");
    refused("POST", "/inferscale/encode", "{}", 400, "whose");
}

static void a_dry_run_shows_the_plan(void **state)
{
    json_t *o;

    (void)state;
    json_decref(call("POST", "/memories", "{\"user_id\": \"dry\", \"text\": \"Anna keeps bees.\", \"metadata\": {\"a\": 1}}", 200));
    json_decref(call("POST", "/memories", "{\"user_id\": \"dry\", \"text\": \"Anna plays the cello.\"}", 200));
    json_decref(call("POST", "/inferscale/encode", "{\"user_id\": \"dry\"}", 200));
    o = call("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"Who keeps bees?\", \"k\": 2}", 200);
    assert_non_null(strstr(json_string_value(json_object_get(o, "prompt")), "Anna keeps bees."));
    assert_int_equal(json_array_size(json_object_get(o, "facts")), 2);
    assert_true(number(o, "tokens_stored") > 0);
    json_decref(o);
    o = call("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"Who keeps bees?\", \"stage\": \"refine\"}", 200);
    assert_int_equal(number(o, "tokens_stored"), 0); /* nothing is refined */
    json_decref(o);
    o = call("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"Who keeps bees?\", \"mode\": \"text\", \"filters\": {\"a\": 1}}", 200);
    assert_int_equal(json_array_size(json_object_get(o, "facts")), 1);
    assert_int_equal(number(o, "tokens_stored"), 0);
    json_decref(o);
    refused("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\"}", 400, "question");
    refused("POST", "/inferscale/dry-run", "{\"question\": \"x\"}", 400, "whose");
    refused("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"x\", \"mode\": \"magic\"}", 400, "mode");
    refused("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"x\", \"k\": 2000}", 400, "k must");
    refused("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"x\", \"stage\": \"second\"}", 400, "stage must");
    refused("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"x\", \"filters\": {\"user_id\": \"other\"}}", 400, "beside");
    refused("POST", "/inferscale/dry-run", "{\"user_id\": \"dry\", \"question\": \"x\", \"spam\": 1}", 400, "spam");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_go_out_and_come_back),
        cmocka_unit_test(a_wrong_line_is_named),
        cmocka_unit_test(forgetting_is_proven),
        cmocka_unit_test(forgetting_what_is_not_there_proves_nothing),
        cmocka_unit_test(what_is_to_be_forgotten_must_be_said),
        cmocka_unit_test(reports_say_what_there_is),
        cmocka_unit_test(a_dry_run_shows_the_plan),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
