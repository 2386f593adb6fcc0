/* What must hold of recall: it ranks as plain brute force does, filters come before top-k, what is not valid is not found, vectors that
 * are missing are made up for. Its index: test_recall_index.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "recall/fuse.h"
#include "support/recall_world.h"

static void equals_brute_force(void **state)
{
    static const uint32_t ks[] = {1, 10, 99, 150, 1000};
    bank_kit *k = *state;
    world *w = rw_make(k, ITEMS, "brute force");
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    for (int round = 0; round < 12; round++)
        for (int method = 0; method < 3; method++)
            for (int kinds = 1; kinds <= 3; kinds++) {
                inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
                is_hit *hits;
                size_t n, unembedded, want = 0;
                ask a;
                rw_random_ask(w, &a);
                o.k = ks[scratch_below(&w->seed, 5)];
                o.method = method;
                o.kinds = kinds;
                OK(rw_ask(r, &k->pa, &a, &o, NULL, &hits, &n, &unembedded));
                rw_compare(w, &a, &o, NULL, hits, n);
                for (int i = 0; i < w->n; i++) want += (w->t[i].kind & kinds) && !w->t[i].has_vector && !w->t[i].expired;
                assert_int_equal(unembedded, want);
                is_free(hits);
            }
    is_recall_free(r);
    is_free(w);
}

/* The fused rank (0 = best) of item 0, and its score. */
static int rank_of_first(const double *lexical, const float *dense, size_t n, double *score)
{
    bool keep[256];
    is_ranked *ranked = NULL;
    size_t n_out = 0, rank = n;

    memset(keep, 1, sizeof keep);
    OK(is_fuse(lexical, dense, keep, n, INFERSCALE_FUSED, n, &ranked, &n_out));
    for (size_t i = 0; i < n_out; i++)
        if (ranked[i].item == 0) rank = i, *score = ranked[i].score;
    is_free(ranked);
    return (int)rank;
}

/* Item 0 holds the question's words best and has no vector yet; a few that hold one of the words have one, far from the question. None
 * of these may come before it, however the far ones lie among one another. */
static void few_far_vectors_do_not_outrank_the_words(void **state)
{
    unsigned long long seed = scratch_seed("few vectors");
    int first = 0, rounds = 0;
    double lexical[200], score;
    float dense[200];

    (void)state;
    for (size_t n_embedded = 1; n_embedded <= 20; n_embedded++)
        for (int round = 0; round < 100; round++) {
            const size_t n = 2 * n_embedded + 10;

            lexical[0] = 8;
            dense[0] = NAN;
            for (size_t i = 1; i < n; i++) {
                lexical[i] = scratch_below(&seed, 600) / 100.0;
                dense[i] = i <= n_embedded ? (float)scratch_below(&seed, 1000) / 10000 - 0.05f : NAN; /* all nearly at right angles */
            }
            first += rank_of_first(lexical, dense, n, &score) == 0;
            rounds++;
        }
    printf("first in %d of %d\n", first, rounds);
    assert_true(first >= rounds * 99 / 100);

    const double words[5] = {8, 5, 4.5, 7, 4}; /* the smallest such case: the best of three far vectors won */
    const float far[5] = {NAN, -0.02f, 0.001f, 0.06f, NAN};
    assert_int_equal(rank_of_first(words, far, 5, &score), 0);
}

/* With the last vector the rule is the sum of two z-scores, and one vector that is missing changes little. */
static void with_all_vectors_it_is_the_plain_sum(void **state)
{
    const double lexical[4] = {3, 0, 1, 0};
    const float dense[4] = {0.5f, 0.25f, 0, 0.25f};
    double score;

    (void)state;
    assert_int_equal(rank_of_first(lexical, dense, 4, &score), 0);
    assert_true(fabs(score - (2 / sqrt(1.5) + 0.25 / sqrt(0.03125))) < 1e-6);
    assert_int_equal(rank_of_first(lexical, NULL, 4, &score), 0);
    assert_true(fabs(score - (3 - 2) / 1.0) < 1e-6); /* words alone, over the two that hold one */
}

static bool keep_planner(const thing *t) { return t->agent == 1; }
static bool keep_window(const thing *t) { return t->time >= 1700000000 + 86400 * 20 && t->time <= 1700000000 + 86400 * 60; }
static bool keep_colour(const thing *t) { return t->kind == INFERSCALE_FACTS && t->colour == 2; }
static bool keep_all_three(const thing *t) { return keep_planner(t) && keep_window(t) && keep_colour(t); }

static void filters_come_before_top_k(void **state)
{
    bank_kit *k = *state;
    world *w = rw_make(k, ITEMS, "filters");
    const inferscale_scope planner = {.user = "anna", .agent = "planner"}, nobody = {.user = "anna", .agent = "nobody"};
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    for (int round = 0; round < 10; round++) {
        const keep_fn keeps[] = {keep_planner, keep_window, keep_colour, keep_all_three};
        for (int f = 0; f < 5; f++) {
            inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
            is_hit *hits;
            size_t n;
            ask a;
            rw_random_ask(w, &a);
            o.k = f == 3 ? 1000 : 10;
            o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
            if (f == 1 || f == 3) o.from = 1700000000 + 86400 * 20, o.to = 1700000000 + 86400 * 60;
            if (f == 2 || f == 3) o.metadata = "{\"colour\":2}";
            OK(rw_ask(r, &k->pa, &a, &o, f == 4 ? &nobody : f == 0 || f == 3 ? &planner : NULL, &hits, &n, NULL));
            if (f == 4) assert_int_equal(n, 0);
            else rw_compare(w, &a, &o, keeps[f], hits, n);
            if (f < 3) assert_int_equal(n, 10); /* enough match: a filter does not cost results */
            is_free(hits);
        }
    }
    is_recall_free(r);
    is_free(w);
}

static void validity_and_expiry(void **state)
{
    bank_kit *k = *state;
    int64_t now = is_now_epoch(), id;
    inferscale_fact facts[] = {
        {.text = "boat moored north", .event_time = now - 1000, .valid_to = now - 500},
        {.text = "boat moored south", .event_time = now - 500},
        {.text = "boat moored east", .event_time = now - 10, .expires = now - 5},
        {.text = "boat moored west", .event_time = now - 10, .valid_from = now + 5000},
    };
    inferscale_event e[4];
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, facts, 4, e));
    assert_int_equal(rw_search_words(r, &k->pa, "boat", o, &id), 1);
    assert_int_equal(id, e[1].id);
    o.as_of = now - 700;
    assert_int_equal(rw_search_words(r, &k->pa, "boat", o, &id), 1);
    assert_int_equal(id, e[0].id);
    o.as_of = now - 500; /* closed at this very second, and open from it on */
    assert_int_equal(rw_search_words(r, &k->pa, "boat", o, &id), 1);
    assert_int_equal(id, e[1].id);
    o.as_of = now + 5000;
    assert_int_equal(rw_search_words(r, &k->pa, "boat", o, &id), 2);
    o.as_of = now - 5000;
    assert_int_equal(rw_search_words(r, &k->pa, "boat", o, &id), 0);
    is_recall_free(r);
}

/* A clock that was an hour ahead when something was told, and was put right. */
static void a_clock_that_goes_back_hides_nothing(void **state)
{
    bank_kit *k = *state;
    int64_t now = is_now_epoch(), id;
    inferscale_fact facts[] = { {.text = "boat moored north"}, {.text = "boat moored west", .event_time = now - 10, .valid_from = now + 5000} };
    inferscale_event e[2];
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    sqlite3 *db = NULL;
    is_recall *r;

    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, facts, 2, e));
    assert_int_equal(sqlite3_open(k->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "UPDATE fact_versions SET write_time = write_time + 3600, valid_from = valid_from + 3600", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    OK(is_recall_new(k->bank, &r));
    assert_int_equal(rw_search_words(r, &k->pa, "boat", o, &id), 1); /* what is to hold only later waits as ever */
    assert_int_equal(id, e[0].id);
    o.as_of = now;
    assert_int_equal(rw_search_words(r, &k->pa, "boat", o, &id), 0); /* what held at a time is what the books say of it */
    is_recall_free(r);
}

static void threshold_cuts_the_tail(void **state)
{
    bank_kit *k = *state;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = {.text = "lake boat", .options = &o};
    is_hit *all, *some;
    size_t n_all, n_some;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    kit_fact(k, &k->pa, &k->anna, "a boat on the lake");
    kit_fact(k, &k->pa, &k->anna, "a house by the lake");
    kit_fact(k, &k->pa, &k->anna, "the lake in winter is frozen and quiet and white");
    OK(is_recall_query(r, &k->pa, &q, &all, &n_all, NULL));
    assert_int_equal(n_all, 3);
    o.has_threshold = 1;
    o.threshold = all[0].score;
    assert_true(all[1].score < o.threshold && all[2].score == all[1].score); /* they share the same word */
    OK(is_recall_query(r, &k->pa, &q, &some, &n_some, NULL));
    assert_int_equal(n_some, 1);
    assert_int_equal(some[0].id, all[0].id);
    is_free(all);
    is_free(some);
    is_recall_free(r);
}

static void refusals_name_the_cause(void **state)
{
    bank_kit *k = *state;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = {.text = "x", .options = &o};
    is_hit *hits;
    size_t n;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    o.k = 1001;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.k = 1000;
    o.method = 7;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.method = INFERSCALE_DENSE;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.method = INFERSCALE_FUSED;
    o.kinds = 8;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.kinds = 0;
    o.from = 20;
    o.to = 10;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.from = o.to = 0;
    q.text = NULL;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    q.text = "nothing is here";
    OK(is_recall_query(r, &k->pa, &q, &hits, &n, NULL)); /* an empty memory is no error */
    assert_int_equal(n, 0);
    is_free(hits);
    is_recall_free(r);
}

static void dense_text_is_what_is_said(void **state)
{
    inferscale_item turn = {.kind = INFERSCALE_TURNS, .speaker = "Anna", .text = "I sail."};
    inferscale_item fact = {.kind = INFERSCALE_FACTS, .speaker = "", .text = "Anna sails."};
    char *a = is_dense_text(&turn), *b = is_dense_text(&fact);

    (void)state;
    assert_string_equal(a, "Anna: I sail.");
    assert_string_equal(b, "Anna sails.");
    is_free(a);
    is_free(b);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bank_kit_setup, bank_kit_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(equals_brute_force),       TEST(filters_come_before_top_k), TEST(validity_and_expiry),
        TEST(a_clock_that_goes_back_hides_nothing),
        TEST(threshold_cuts_the_tail),  TEST(refusals_name_the_cause),   cmocka_unit_test(few_far_vectors_do_not_outrank_the_words),
        cmocka_unit_test(with_all_vectors_it_is_the_plain_sum),          cmocka_unit_test(dense_text_is_what_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
