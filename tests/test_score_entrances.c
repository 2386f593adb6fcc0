/* One score at every entrance: C, the command line, our own HTTP calls, Mem0's, MCP, and the
 * facts of an answer show the same number for the same fact, and the same threshold leaves out
 * the same facts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/program.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

#define QUESTION "Which boat does Anna keep on the lake?"
enum { FACTS = 6 };

static const char *const facts[FACTS] = {
    "Anna keeps a red boat on the lake.", "Anna would keep a boat if she had a garden.", "The lake is frozen in January.",
    "Ben has a boat.", "The dentist opens at nine.", "Anna likes tea.",
};

static serve_kit *kit;
static char *home;
static double scores[FACTS + 1]; /* by id, as C has them */

/* ---- C --------------------------------------------------------------------------------------- */

/* What C finds, into got[] by id; 0 = not found. Returns how many. */
static size_t search_c(inferscale *is, const double *threshold, double got[FACTS + 1])
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;
    size_t n;

    o.has_threshold = threshold != NULL;
    o.threshold = threshold ? *threshold : 0;
    memset(got, 0, (FACTS + 1) * sizeof *got);
    OK(inferscale_recall(is, &store_anna, QUESTION, &o, &l));
    n = l->n;
    for (size_t i = 0; i < n; i++) {
        assert_true(l->items[i].id >= 1 && l->items[i].id <= FACTS);
        assert_true(i == 0 || l->items[i].score <= l->items[i - 1].score);
        got[l->items[i].id] = l->items[i].score;
    }
    inferscale_list_free(l);
    return n;
}

static int start(void **state)
{
    inferscale *is;

    home = scratch_make();
    is = store_open(home, NULL, NULL, false);
    for (size_t i = 0; i < FACTS; i++) assert_int_equal(store_fact(is, &store_anna, facts[i]), i + 1);
    store_encode(is);
    assert_int_equal(search_c(is, NULL, scores), FACTS);
    inferscale_close(is);
    kit = serve_start("home", home, NULL);
    return program_set_up(state);
}

static int stop(void **state)
{
    serve_stop(kit);
    scratch_remove(home);
    return program_tear_down(state);
}

/* ---- The others ------------------------------------------------------------------------------ */

/* A list of objects with an id, as text or number, and a score. */
static size_t read_list(const char *where, json_t *list, double got[FACTS + 1])
{
    json_t *o;
    size_t i;

    memset(got, 0, (FACTS + 1) * sizeof *got);
    if (!json_is_array(list)) fail_msg("%s: no list", where);
    json_array_foreach(list, i, o)
    {
        json_t *id = json_object_get(o, "id"), *score = json_object_get(o, "score");
        const long at = json_is_string(id) ? atol(json_string_value(id)) : (long)json_integer_value(id);

        if (at < 1 || at > FACTS || !json_is_real(score)) fail_msg("%s: a fact without id or score", where);
        got[at] = json_number_value(score);
    }
    return json_array_size(list);
}

#define OWNER "\"user_id\": \"anna\""
#define TOOL                                                                                              \
    "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": "                \
    "\"search_memories\", \"arguments\": {\"query\": \"" QUESTION "\"%s}}}"
#define CHAT                                                                                              \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" QUESTION "\"}], \"max_tokens\": 1, "            \
    "\"memory\": {" OWNER "%s}}"

/* %s: the threshold's member. path: to the list, members by dots. */
static const struct { const char *target, *body, *path; } calls[] = {
    { "/search", "{" OWNER ", \"query\": \"" QUESTION "\"%s}", "results" },
    { "/v2/memories/search/", "{\"filters\": {" OWNER "}, \"query\": \"" QUESTION "\"%s}", "" },
    { "/v3/memories/search/", "{\"filters\": {" OWNER "}, \"query\": \"" QUESTION "\"%s}", "results" },
    { "/inferscale/dry-run", "{" OWNER ", \"question\": \"" QUESTION "\"%s}", "facts" },
    { "/v1/chat/completions", CHAT, "memory.facts" },
    { "/mcp", TOOL, "result.structuredContent.results" },
};
enum { CALLS = sizeof calls / sizeof *calls };

static size_t search_http(size_t c, const double *threshold, double got[FACTS + 1])
{
    char body[600], member[60] = "", path[80];
    serve_reply r;
    json_t *at;
    size_t n;

    if (threshold) snprintf(member, sizeof member, ", \"threshold\": %.17g", *threshold);
    snprintf(body, sizeof body, calls[c].body, member);
    snprintf(path, sizeof path, "%s", calls[c].path);
    r = serve_call(kit, "POST", calls[c].target, "X-Inferscale-User: anna\r\n", body);
    if (r.status != 200) fail_msg("%s: %d %s", calls[c].target, r.status, r.body);
    at = r.json;
    for (char *p = strtok(path, "."); p; p = strtok(NULL, ".")) at = json_object_get(at, p);
    if (!at) fail_msg("%s: no %s in %s", calls[c].target, calls[c].path, r.body);
    n = read_list(calls[c].target, at, got);
    serve_reply_free(&r);
    return n;
}

static size_t search_cli(const char *verb, const char *list, const double *threshold,
                         double got[FACTS + 1])
{
    char option[60] = "";

    if (threshold) snprintf(option, sizeof option, "--threshold %.17g", *threshold);
    sh("$IS %s --home '%s' --engine mock --user anna --json %s '%s'", verb, home, option, QUESTION);
    expect_code(0);
    return read_list(verb, json_object_get(last.json, list), got);
}

/* ---- What must hold -------------------------------------------------------------------------- */

static void same(const char *where, size_t n, const double got[FACTS + 1], size_t n_want, double least)
{
    if (n != n_want) fail_msg("%s: %zu facts, not %zu", where, n, n_want);
    for (size_t id = 1; id <= FACTS; id++) {
        const double want = scores[id] >= least ? scores[id] : 0;

        if (got[id] != want) fail_msg("%s: fact %zu has %.17g, not %.17g", where, id, got[id], want);
    }
}

static void try_all(const double *threshold, size_t n_want)
{
    inferscale *is = store_open(home, NULL, NULL, true);
    const double least = threshold ? *threshold : 0;
    double got[FACTS + 1];
    size_t n = search_c(is, threshold, got);

    same("C", n, got, n_want, least);
    inferscale_close(is);
    for (size_t c = 0; c < CALLS; c++) {
        n = search_http(c, threshold, got);
        same(calls[c].target, n, got, n_want, least);
    }
    n = search_cli("recall", "items", threshold, got);
    same("recall", n, got, n_want, least);
    n = search_cli("ask --max-tokens 1", "facts", threshold, got);
    same("ask", n, got, n_want, least);
}

static size_t n_at_least(double least)
{
    size_t n = 0;

    for (size_t id = 1; id <= FACTS; id++) n += scores[id] >= least;
    return n;
}

static void one_number_at_every_entrance(void **state)
{
    (void)state;
    for (size_t id = 1; id <= FACTS; id++) assert_true(scores[id] > 0 && scores[id] <= 1);
    assert_true(scores[1] > 0.7 && scores[1] > scores[4] && scores[5] < 0.3);
    try_all(NULL, FACTS);
}

/* Exactly the score of a fact keeps it; a little more does not. */
static void one_threshold_at_every_entrance(void **state)
{
    const double at = scores[4], above = scores[4] + 0.0001, all = 1;

    (void)state;
    assert_true(n_at_least(at) > n_at_least(above) && n_at_least(above) >= 1);
    try_all(&at, n_at_least(at));
    try_all(&above, n_at_least(above));
    try_all(&all, n_at_least(all));
}

static void thresholds_that_are_none_are_refused(void **state)
{
    static const char *const wrong[] = { "1.5", "-0.1", "\"0.5\"", "1e300" };

    (void)state;
    for (size_t c = 0; c < CALLS; c++)
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            char body[600], member[60];
            serve_reply r;

            snprintf(member, sizeof member, ", \"threshold\": %s", wrong[w]);
            snprintf(body, sizeof body, calls[c].body, member);
            r = serve_call(kit, "POST", calls[c].target, "X-Inferscale-User: anna\r\n", body);
            if (r.status == 200 && !strstr(r.body, "\"isError\":true"))
                fail_msg("%s takes the threshold %s", calls[c].target, wrong[w]);
            if (!strstr(r.body, "threshold")) fail_msg("%s: %s", calls[c].target, r.body);
            serve_reply_free(&r);
        }
    sh("$IS recall --home '%s' --engine mock --user anna --threshold 1.5 tea", home);
    expect_code(2);
    expect_in(last.err, "--threshold must be a number from 0 to 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(one_number_at_every_entrance, program_fresh),
        cmocka_unit_test_setup(one_threshold_at_every_entrance, program_fresh),
        cmocka_unit_test_setup(thresholds_that_are_none_are_refused, program_fresh),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
