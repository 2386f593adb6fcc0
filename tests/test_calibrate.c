/* When an embedder's cosines are measured (api/calibrate.h): once for an embedder and a store,
 * by whoever comes first; not for an embedder that is known; and whatever the embedder does,
 * questions are answered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/background_kit.h"
#include "support/embed_server.h"
#include "support/scratch.h"
#include "support/store_kit.h"

#define COUNT "SELECT count(*) FROM calibrations"
enum { REQUESTS = 4 }; /* of 16 texts each */

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

static inferscale *open_at(const embed_server *s, bool background, bool read_only)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;

    o.embedder = s ? embed_server_spec(s) : NULL;
    o.background = background;
    o.read_only = read_only;
    OK(inferscale_open(&is, &o));
    return is;
}

/* The best hit's score. *fallbacks (may be NULL): the list's. */
static double ask(inferscale *is, const char *query, unsigned *fallbacks)
{
    inferscale_list *l = NULL;
    double score;

    OK(inferscale_recall(is, &store_anna, query, NULL, &l));
    score = l->n ? l->items[0].score : 0;
    if (fallbacks) *fallbacks = l->fallbacks;
    inferscale_list_free(l);
    return score;
}

static void the_first_question_measures(void **state)
{
    embed_server *s = embed_server_start("");
    inferscale *is = open_at(s, false, false);
    int before;
    double first;

    (void)state;
    store_fact(is, &store_anna, "Anna keeps bees.");
    first = ask(is, "Anna keeps bees.", NULL);
    assert_true(first > 0.5);
    assert_int_equal(store_sql_int(home, COUNT), 1);
    before = embed_server_requests(s);
    assert_true(ask(is, "Anna keeps bees.", NULL) == first);
    assert_int_equal(embed_server_requests(s), before + 1); /* the question */
    inferscale_close(is);
    is = open_at(s, false, false); /* it is kept */
    before = embed_server_requests(s);
    assert_true(ask(is, "Anna keeps bees.", NULL) == first);
    assert_int_equal(embed_server_requests(s), before + 2); /* how long are its vectors; the question */
    inferscale_close(is);
    embed_server_stop(s);
}

/* Nothing is written; each handle measures for itself. */
static void a_store_that_is_only_read_measures_in_memory(void **state)
{
    embed_server *s = embed_server_start("");
    inferscale *is = open_at(s, false, false);
    int before;
    double first;

    (void)state;
    store_fact(is, &store_anna, "Anna keeps bees.");
    first = ask(is, "Does Anna keep bees?", NULL);
    inferscale_close(is);
    store_sql(home, "DELETE FROM calibrations");
    is = open_at(s, false, true);
    before = embed_server_requests(s);
    assert_true(ask(is, "Does Anna keep bees?", NULL) == first);
    assert_int_equal(embed_server_requests(s), before + 2 + REQUESTS);
    assert_true(ask(is, "Does Anna keep bees?", NULL) == first);
    assert_int_equal(embed_server_requests(s), before + 3 + REQUESTS);
    inferscale_close(is);
    assert_int_equal(store_sql_int(home, COUNT), 0);
    embed_server_stop(s);
}

static void the_background_measures_without_a_question(void **state)
{
    embed_server *s = embed_server_start("");
    inferscale *is = open_at(s, true, false);
    int before;

    (void)state;
    store_fact(is, &store_anna, "Anna keeps bees.");
    UNTIL(store_sql_int(home, COUNT) == 1);
    before = embed_server_requests(s);
    store_fact(is, &store_anna, "Ben keeps a boat.");
    UNTIL(bg_state(is, NULL).n_unembedded == 0);
    assert_int_equal(embed_server_requests(s), before + 1);
    inferscale_close(is);
    embed_server_stop(s);
}

/* One of the texts is never answered. The question is, by its words, and nobody holds the embedder for dead. */
static void one_that_hangs_meanwhile_stops_no_question(void **state)
{
    embed_server *s = embed_server_start("spare keys hang");
    inferscale *is = open_at(s, false, false);
    unsigned fallbacks;
    int before;

    (void)state;
    store_fact(is, &store_anna, "Anna keeps bees.");
    assert_true(ask(is, "Does Anna keep bees?", &fallbacks) > 0.5); /* all words that count */
    assert_int_equal(fallbacks, 0);
    assert_true(ask(is, "x", NULL) <= 0.02); /* found by its vector, which nobody can read */
    before = embed_server_requests(s);
    assert_true(ask(is, "Does Anna keep bees?", &fallbacks) > 0.5);
    assert_int_equal(fallbacks, 0);
    assert_int_equal(embed_server_requests(s), before + 1); /* not tried again at once */
    assert_int_equal(store_sql_int(home, COUNT), 0);
    embed_server_release(s);
    inferscale_close(is);
    embed_server_stop(s);
}

static void rebuilding_measures_again(void **state)
{
    embed_server *s = embed_server_start("");
    inferscale *is = open_at(s, false, false);
    inferscale_rebuild_options o = INFERSCALE_REBUILD_OPTIONS_INIT;
    double first;

    (void)state;
    store_fact(is, &store_anna, "Anna keeps bees.");
    first = ask(is, "Anna keeps bees.", NULL);
    store_sql(home, "UPDATE calibrations SET low = 0.1, high = 0.2");
    inferscale_close(is);
    is = open_at(s, false, false);
    assert_true(ask(is, "Anna keeps bees.", NULL) > first);
    o.what = INFERSCALE_REBUILD_EMBEDDINGS;
    OK(inferscale_rebuild(is, NULL, &o));
    assert_true(ask(is, "Anna keeps bees.", NULL) == first);
    assert_int_equal(store_sql_int(home, COUNT " WHERE low > 0.3"), 1);
    inferscale_close(is);
    embed_server_stop(s);
}

/* The mock's figures come with its plug-in. */
static void what_is_known_is_not_measured(void **state)
{
    inferscale *is = open_at(NULL, false, false);

    (void)state;
    store_fact(is, &store_anna, "Anna keeps bees.");
    assert_true(ask(is, "Anna keeps bees.", NULL) > 0.9);
    store_encode(is);
    inferscale_close(is);
    assert_int_equal(store_sql_int(home, COUNT), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_first_question_measures),
        TEST(a_store_that_is_only_read_measures_in_memory),
        TEST(the_background_measures_without_a_question),
        TEST(one_that_hangs_meanwhile_stops_no_question),
        TEST(rebuilding_measures_again),
        TEST(what_is_known_is_not_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
