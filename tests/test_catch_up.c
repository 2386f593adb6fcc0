/* test_catch_up.c - a question sees what was acknowledged before it came: what has no vector yet is embedded inside the question, within a
 * budget, and what is left is named everywhere. Texts embedded are counted; no test looks at a clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/embed_server.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

/* Words that the word index leaves out: they are found by their vector or not at all. */
#define WORDLESS "who are you"

enum { FOREVER_MS = 600000 };

static char *home;

static int set_up(void **state)
{
    (void)state;
    home = scratch_make();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(home);
    return 0;
}

/* texts: how many a question may embed; 0 = all of them; -1 = none. */
static inferscale *open_for(int texts, const char *embedder, bool read_only)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;

    o.embedder = embedder ? embedder : "mock";
    o.read_only = read_only;
    o.question_embed_ms = texts < 0 ? -1 : FOREVER_MS;
    o.question_embed_texts = texts > 0 ? (uint32_t)texts : 0;
    OK(inferscale_open(&is, &o));
    return is;
}

static size_t n_stored(void) { return (size_t)store_sql_int(home, "SELECT count(*) FROM embeddings"); }

static inferscale_list *find(inferscale *is, const char *query, const inferscale_recall_options *o)
{
    inferscale_list *l = NULL;

    OK(inferscale_recall(is, &store_anna, query, o, &l));
    return l;
}

/* The search left so many out of the vectors, and says so. */
static void expect(inferscale *is, const char *query, const inferscale_recall_options *o, size_t embedded, size_t left)
{
    inferscale_list *l = find(is, query, o);

    assert_int_equal(l->n_embedded, embedded);
    assert_int_equal(l->n_unembedded, left);
    assert_int_equal(l->fallbacks, left ? INFERSCALE_FALLBACK_NOT_EMBEDDED : 0);
    assert_true((l->fallback != NULL) == (left > 0));
    if (left) assert_int_equal(strtoul(l->fallback, NULL, 10), left);
    inferscale_list_free(l);
}

/* ---- What was told is seen ------------------------------------------------------------------------------------------------ */

static void what_was_just_told_is_found_by_its_meaning(void **state)
{
    inferscale *is = open_for(0, NULL, false);
    const int64_t id = store_fact(is, &store_anna, "Who are you?");
    inferscale_list *l = find(is, WORDLESS, NULL);

    (void)state;
    assert_int_equal(l->n, 1);
    assert_int_equal(l->items[0].id, id);
    assert_true(l->items[0].score_lexical == 0 && l->items[0].score_dense > 0.9);
    inferscale_list_free(l);
    assert_int_equal(n_stored(), 1); /* not for this question only */
    expect(is, WORDLESS, NULL, 0, 0);
    store_fact(is, &store_ben, "Who are you, too?");
    expect(is, WORDLESS, NULL, 0, 0); /* another's facts are not this question's affair */
    inferscale_close(is);
}

static void the_words_of_the_question_go_first_then_the_newest(void **state)
{
    inferscale *is = open_for(3, NULL, false);
    int64_t ids[10];
    char sql[200];

    (void)state;
    for (int i = 0; i < 10; i++) {
        char text[80];

        snprintf(text, sizeof text, i == 2 ? "A boat, and a lake." : i == 4 ? "A boat." : "Number %d of the rest.", i);
        ids[i] = store_fact(is, &store_anna, text);
    }
    expect(is, "boat on the lake", NULL, 3, 7);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM embeddings WHERE item_id IN (%lld, %lld, %lld)", (long long)ids[2], (long long)ids[4],
             (long long)ids[9]);
    assert_int_equal(store_sql_int(home, sql), 3);
    expect(is, "boat on the lake", NULL, 3, 4);
    expect(is, "boat on the lake", NULL, 3, 1);
    expect(is, "boat on the lake", NULL, 1, 0);
    inferscale_close(is);
}

/* More than one batch, and all of them are what background work would have stored. */
static void many_are_embedded_as_the_encoder_would(void **state)
{
    inferscale *is = open_for(0, NULL, false);
    inferscale_rebuild_options again = INFERSCALE_REBUILD_OPTIONS_INIT;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *mine, *its;

    (void)state;
    o.k = 100;
    again.what = INFERSCALE_REBUILD_EMBEDDINGS;
    store_fill(is, 100, false);
    mine = find(is, "tomatoes", &o); /* with the vectors of the question itself */
    assert_int_equal(mine->n_embedded, 100); /* the turns are not asked for */
    assert_int_equal(n_stored(), 100);
    OK(inferscale_rebuild(is, &store_anna, &again));
    assert_int_equal(n_stored(), 103);
    its = find(is, "tomatoes", &o);
    assert_int_equal(its->n_embedded, 0);
    assert_int_equal(mine->n, its->n);
    for (size_t i = 0; i < its->n; i++) {
        assert_int_equal(mine->items[i].id, its->items[i].id);
        assert_true(mine->items[i].score == its->items[i].score && mine->items[i].score_dense == its->items[i].score_dense);
    }
    inferscale_list_free(mine);
    inferscale_list_free(its);
    inferscale_close(is);
}

/* A store that is only read: the vector serves this question, and nothing is written. */
static void a_reader_embeds_for_itself(void **state)
{
    inferscale *is = open_for(0, NULL, false);
    inferscale_list *l;

    (void)state;
    store_fact(is, &store_anna, "Who are you?");
    inferscale_close(is);
    is = open_for(0, NULL, true);
    for (int i = 0; i < 2; i++) {
        l = find(is, WORDLESS, NULL);
        assert_int_equal(l->n, 1);
        assert_int_equal(l->n_embedded, 1);
        assert_null(l->fallback);
        inferscale_list_free(l);
    }
    inferscale_close(is);
    assert_int_equal(n_stored(), 0);
}

/* ---- What is searched decides what is named --------------------------------------------------------------------------------- */

static void only_what_the_question_may_find_counts(void **state)
{
    inferscale *is = open_for(-1, NULL, false);
    inferscale_fact red = { .text = "Who are you?", .metadata = "{\"colour\": \"red\"}", .event_time = 1714521600 };
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l;

    (void)state;
    store_fill(is, 4, false); /* and three turns */
    OK(inferscale_remember(is, &store_anna, &red, 1, NULL));
    l = find(is, WORDLESS, NULL);
    assert_int_equal(l->n, 0); /* the silent answer of before */
    inferscale_list_free(l);
    expect(is, WORDLESS, NULL, 0, 5);
    o.kinds = INFERSCALE_TURNS;
    expect(is, WORDLESS, &o, 0, 3);
    o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
    expect(is, WORDLESS, &o, 0, 8);
    o.metadata = "{\"colour\": \"red\"}";
    expect(is, WORDLESS, &o, 0, 1);
    o.metadata = "{\"colour\": \"blue\"}";
    expect(is, WORDLESS, &o, 0, 0);
    o.metadata = NULL;
    o.method = INFERSCALE_DENSE;
    expect(is, WORDLESS, &o, 0, 8);
    o.method = INFERSCALE_LEXICAL; /* words were asked for: nothing is missing */
    expect(is, WORDLESS, &o, 0, 0);
    inferscale_close(is);
    is = open_for(0, NULL, false);
    expect(is, WORDLESS, &o, 0, 0);
    assert_int_equal(n_stored(), 0); /* and nothing needed */
    o.method = INFERSCALE_DENSE;
    o.kinds = INFERSCALE_TURNS;
    expect(is, WORDLESS, &o, 3, 0);
    o.kinds = INFERSCALE_FACTS;
    o.metadata = "{\"colour\": \"red\"}";
    expect(is, WORDLESS, &o, 1, 0);
    inferscale_close(is);
}

/* What held at a time may be an older version, which has no vector of its own in the store. */
static void the_past_is_seen_too(void **state)
{
    inferscale *is = open_for(0, NULL, false);
    const int64_t id = store_fact(is, &store_anna, "Who are you?");
    inferscale_fact now = { .text = "Entirely other words.", .event_time = 1720000000 };
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l;

    (void)state;
    OK(inferscale_update(is, &store_anna, id, &now));
    expect(is, WORDLESS, NULL, 1, 0);
    o.as_of = 1715000000;
    for (int i = 0; i < 2; i++) { /* each time anew: the store keeps vectors of what holds now */
        l = find(is, WORDLESS, &o);
        assert_int_equal(l->n, 1);
        assert_string_equal(l->items[0].text, "Who are you?");
        assert_int_equal(l->n_embedded, 1);
        assert_int_equal(l->n_unembedded, 0);
        inferscale_list_free(l);
    }
    assert_int_equal(n_stored(), 1);
    inferscale_close(is);
    is = open_for(-1, NULL, false);
    expect(is, WORDLESS, &o, 0, 1);
    expect(is, WORDLESS, NULL, 0, 0);
    inferscale_close(is);
}

/* ---- Answers ---------------------------------------------------------------------------------------------------------------- */

static void expect_named(const inferscale_answer *a, size_t left)
{
    assert_true(!(a->fallbacks & INFERSCALE_FALLBACK_NOT_EMBEDDED) == (left == 0));
    assert_true((strstr(a->fallback, "no vector yet") != NULL) == (left > 0));
    assert_int_equal(a->n_unembedded, left);
}

static void every_kind_of_answer_names_it(void **state)
{
    inferscale *is = open_for(1, NULL, false);
    inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_complete_options c = INFERSCALE_COMPLETE_OPTIONS_INIT;
    inferscale_message m = { "user", WORDLESS };
    inferscale_answer *a = NULL;
    inferscale_preview *p = NULL;
    inferscale_chat *chat = NULL;
    int64_t first;

    (void)state;
    first = store_fact(is, &store_anna, "Who are you, one?");
    for (int i = 0; i < 5; i++) store_fact(is, &store_anna, i % 2 ? "Who are you?" : "Are you?");
    ask.max_tokens = c.ask.max_tokens = 4;
    assert_string_equal(inferscale_fallback_name(12), "not_embedded");
    OK(inferscale_ask(is, &store_anna, WORDLESS, &ask, &a)); /* two texts are there once */
    assert_int_equal(a->n_facts, 1);
    expect_named(a, 2);
    inferscale_answer_free(a);
    c.ids = &first; /* named facts are not searched for */
    c.n_ids = 1;
    OK(inferscale_complete(is, &store_anna, &m, 1, &c, &a));
    expect_named(a, 0);
    inferscale_answer_free(a);
    OK(inferscale_dry_run(is, &store_anna, WORDLESS, &ask, &p));
    assert_true(p->fallbacks & INFERSCALE_FALLBACK_NOT_EMBEDDED);
    assert_int_equal(p->n_unembedded, 1);
    inferscale_preview_free(p);
    store_fact(is, &store_anna, "Who are you, seven?");
    c.n_ids = 0;
    OK(inferscale_complete(is, &store_anna, &m, 1, &c, &a));
    expect_named(a, 1);
    inferscale_answer_free(a);
    store_fact(is, &store_anna, "Who are you, eight?");
    OK(inferscale_chat_open(is, &store_anna, &chat));
    OK(inferscale_chat_say(chat, WORDLESS, &ask, &a));
    expect_named(a, 1);
    inferscale_answer_free(a);
    OK(inferscale_chat_say(chat, WORDLESS, &ask, &a));
    expect_named(a, 0);
    assert_false(a->fallbacks & INFERSCALE_FALLBACK_NOT_EMBEDDED);
    inferscale_answer_free(a);
    inferscale_chat_close(chat);
    ask.mode = INFERSCALE_MODE_NONE;
    store_fact(is, &store_anna, "Who are you, nine?");
    OK(inferscale_ask(is, &store_anna, WORDLESS, &ask, &a));
    expect_named(a, 0); /* no memory was asked for */
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* ---- Embedders that fail ------------------------------------------------------------------------------------------------------ */

static void a_text_that_fails_is_passed_over(void **state)
{
    inferscale *is;

    (void)state;
    is = open_for(0, "mock:fail-embed=3", false); /* 1: the question; 2: a text that is embedded; 3: one that is not */
    store_fill(is, 6, false);
    expect(is, "tomatoes", NULL, 5, 1);
    expect(is, "tomatoes", NULL, 1, 0);
    inferscale_close(is);
}

static void without_its_embedder_a_search_says_words_only(void **state)
{
    inferscale *is = open_for(0, "http://127.0.0.1:1/v1#nobody-listens", false);
    inferscale_list *l;

    (void)state;
    store_fact(is, &store_anna, "Who are you?");
    l = find(is, WORDLESS, NULL);
    assert_int_equal(l->n, 0);
    assert_int_equal(l->fallbacks, INFERSCALE_FALLBACK_WORDS_ONLY);
    assert_int_equal(l->n_unembedded, 1);
    assert_non_null(l->fallback);
    assert_null(strstr(l->fallback, "127.0.0.1")); /* clients are told no places */
    inferscale_list_free(l);
    inferscale_close(is);
}

/* One that is asked over HTTP gets many texts at once, and where such a request fails, one by one. */
static void an_embedder_elsewhere_gets_many_texts_at_once(void **state)
{
    embed_server *s = embed_server_start("");
    inferscale *is = open_for(0, embed_server_spec(s), false);

    (void)state;
    store_fill(is, 60, false);
    expect(is, "tomatoes", NULL, 60, 0);
    /* 1, 2, 4, 8, 16, 16, 13, two before, and four by which the embedder is measured */
    assert_true(embed_server_requests(s) < 16);
    inferscale_close(is);
    store_sql(home, "DELETE FROM embeddings");
    is = open_for(0, embed_server_spec(s), false);
    embed_server_refuse(s, "day number 7.");
    expect(is, "tomatoes", NULL, 59, 1);
    inferscale_close(is);
    embed_server_stop(s);
}

/* The embedder answers what the question asks and hangs on the rest: the question goes on without it. */
static void an_embedder_that_hangs_stops_no_question(void **state)
{
    embed_server *s = embed_server_start("hang");
    inferscale_options o = store_options(home);
    inferscale *is = NULL;
    inferscale_answer *a = NULL;
    inferscale_list *l;

    (void)state;
    o.embedder = embed_server_spec(s);
    o.question_embed_ms = 20;
    OK(inferscale_open(&is, &o));
    store_fact(is, &store_anna, "Here they hang, who are you.");
    l = find(is, WORDLESS, NULL);
    assert_int_equal(l->n_embedded, 0);
    assert_int_equal(l->fallbacks, INFERSCALE_FALLBACK_NOT_EMBEDDED);
    inferscale_list_free(l);
    OK(inferscale_ask(is, &store_anna, WORDLESS, NULL, &a));
    expect_named(a, 1);
    inferscale_answer_free(a);
    embed_server_release(s);
    inferscale_close(is); /* what is left over ends, too */
    embed_server_stop(s);
}

/* ---- Over HTTP ---------------------------------------------------------------------------------------------------------------- */

static serve_kit *kit;

static json_t *call(const char *target, const char *headers, const char *body, char header[40])
{
    serve_reply r = serve_call(kit, "POST", target, headers, body);
    const char *said = serve_head(&r, "X-Inferscale-Fallback");
    json_t *o = json_incref(r.json);

    if (r.status != 200 || !o) fail_msg("%s: %d: %.300s", target, r.status, r.body);
    snprintf(header, 40, "%s", said ? said : "");
    serve_reply_free(&r);
    return o;
}

static void expect_json(json_t *o, const char *count, int left)
{
    json_t *names = json_object_get(o, "fallbacks");
    const char *why = json_string_value(json_object_get(o, "fallback"));
    bool named = false;

    assert_true(json_is_array(names));
    for (size_t i = 0; i < json_array_size(names); i++)
        named = named || strcmp(json_string_value(json_array_get(names, i)), "not_embedded") == 0;
    assert_true(named == (left > 0));
    assert_non_null(why);
    assert_true((strstr(why, "no vector yet") != NULL) == (left > 0));
    assert_true(json_is_integer(json_object_get(o, count)));
    assert_int_equal(json_integer_value(json_object_get(o, count)), left);
}

/* Each path on which memory is searched; left: how many have no vector. */
static void expect_everywhere(int left)
{
#define BODY "{\"query\": \"" WORDLESS "\", \"user_id\": \"anna\"}"
#define TOOL "{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {\"name\": \"search_memories\", \"arguments\": " \
             "{\"query\": \"" WORDLESS "\"}}}"
    static const char *const searches[] = { "/search", "/v3/memories/search/" }, *const lists[] = { "/v1/memories/search/",
                                                                                                   "/v2/memories/search/" };
    char said[40];
    json_t *o;

    for (int i = 0; i < 2; i++) {
        o = call(searches[i], NULL, BODY, said);
        expect_json(o, "words_only", left);
        assert_true(json_array_size(json_object_get(o, "results")) > 0 || left);
        assert_string_equal(said, left ? "not_embedded" : "");
        json_decref(o);
        o = call(lists[i], NULL, BODY, said); /* a bare list has no room for more than its header */
        assert_true(json_is_array(o));
        assert_string_equal(said, left ? "not_embedded" : "");
        json_decref(o);
    }
    o = call(lists[1], NULL, "{\"query\": \"" WORDLESS "\", \"user_id\": \"anna\", \"output_format\": \"v1.1\"}", said);
    expect_json(o, "words_only", left);
    json_decref(o);
    o = call("/mcp", "X-Inferscale-User: anna\r\nMCP-Protocol-Version: 2025-06-18\r\n", TOOL, said);
    expect_json(json_object_get(json_object_get(o, "result"), "structuredContent"), "words_only", left);
    json_decref(o);
    o = call("/v1/chat/completions", NULL, "{\"messages\": [{\"role\": \"user\", \"content\": \"" WORDLESS "\"}], \"max_tokens\": 4, "
             "\"memory\": {\"user_id\": \"anna\"}}", said);
    expect_json(json_object_get(o, "memory"), "not_embedded", left);
    json_decref(o);
    o = call("/inferscale/dry-run", NULL, "{\"question\": \"" WORDLESS "\", \"user_id\": \"anna\"}", said);
    expect_json(o, "not_embedded", left);
    json_decref(o);
#undef BODY
#undef TOOL
}

static void every_face_of_the_server_names_it(void **state)
{
    inferscale *is = open_for(-1, NULL, false);

    (void)state;
    store_fact(is, &store_anna, "Who are you?");
    store_fact(is, &store_anna, "You are who?");
    inferscale_close(is);
    kit = serve_start("home", home, "read_only", "on", "question_embed_ms", "0", NULL); /* nobody embeds behind the test's back */
    expect_everywhere(2);
    serve_stop(kit);
    kit = serve_start("home", home, "read_only", "on", "question_embed_ms", "60000", NULL);
    expect_everywhere(0);
    serve_stop(kit);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(what_was_just_told_is_found_by_its_meaning), CASE(the_words_of_the_question_go_first_then_the_newest),
        CASE(many_are_embedded_as_the_encoder_would), CASE(a_reader_embeds_for_itself), CASE(only_what_the_question_may_find_counts),
        CASE(the_past_is_seen_too), CASE(every_kind_of_answer_names_it), CASE(a_text_that_fails_is_passed_over),
        CASE(without_its_embedder_a_search_says_words_only), CASE(an_embedder_that_hangs_stops_no_question),
        CASE(an_embedder_elsewhere_gets_many_texts_at_once),
        CASE(every_face_of_the_server_names_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
