/* The background encoder on the mock engine: everything that is remembered gets its embedding and its KV, whoever wrote it; questions
 * come first; who tells more than it can do is refused; several handles share the work. How it ends and fails: test_background_ends.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/background.h"
#include "support/background_kit.h"
#include "support/kit.h"
#include "support/scratch.h"

/* ---- What waits is done --------------------------------------------------------------------------------------------------- */

static void what_waits_is_done(void **state)
{
    inferscale *is = bg_open_plain();
    inferscale_turn turns[2] = { { .text = "Where were you in May?" }, { .text = "In Lisbon." } };
    inferscale_answer *a = NULL;
    inferscale_list *l = NULL;
    inferscale_encoder_state s;

    OK(inferscale_encode_wait(is, NULL, FOREVER_MS)); /* of nothing */
    OK(inferscale_add_turns(is, &anna, turns, 2, NULL));
    bg_tell_many(is, &anna, 0, 40);
    bg_tell_many(is, &ben, 0, 3);
    bg_tell_many(is, &cleo, 0, 70);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    s = bg_state(is, NULL);
    assert_int_equal(s.n_unembedded + s.n_unencoded + s.n_passed, 0);
    assert_true(s.lag_s == 0);
    assert_int_equal(s.facts_encoded, 113);
    assert_int_equal(s.items_embedded, 115);
    assert_int_equal(s.error, INFERSCALE_OK);
    assert_string_equal(s.last_error, "");
    bg_expect_ready(is, &anna, 40);
    bg_expect_ready(is, &ben, 3);
    bg_expect_ready(is, &cleo, 70);
    OK(inferscale_recall(is, &anna, "Lisbon", NULL, &l));
    assert_int_equal(l->n_unembedded, 0);
    inferscale_list_free(l);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_true(a->tokens_injected > 0);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* A fact is served as text, and the answer says so, until its KV is there. */
static void text_serves_until_then(void **state)
{
    inferscale *is = bg_open_plain();
    inferscale_answer *a = NULL;
    inferscale_encoder_state s;

    is_gate_hold(is->gate); /* the encoder stands still; embedding goes on */
    bg_tell_many(is, &anna, 0, 5);
    UNTIL(bg_state(is, &anna).n_unembedded == 0);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_int_equal(a->tokens_injected, 0);
    assert_int_equal(a->n_facts, 5);
    assert_non_null(strstr(a->fallback, "5 of 5 facts had no KV"));
    inferscale_answer_free(a);
    s = bg_state(is, &anna);
    assert_int_equal(s.n_unencoded, 5);
    assert_int_equal(s.items_embedded, 5);
    assert_true(s.model_known);
    FAILS(E_BUSY, inferscale_encode_wait(is, &anna, 30));
    is_gate_release(is->gate);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_true(a->tokens_injected > 0);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* Another handle's writes are seen, changes and forgetting make work, a lost file too. */
static void what_changes_is_done_again(void **state)
{
    inferscale_options plain = bg_options("mock");
    inferscale *is = bg_open_plain(), *writer;
    inferscale_fact f = { .text = "anna owns something red now." };
    inferscale_answer *a = NULL;
    int64_t ids[10];
    size_t n;

    plain.background = 0;
    writer = bg_open(&plain);
    for (int i = 0; i < 10; i++) OK(bg_tell(writer, &anna, i, &ids[i]));
    UNTIL(bg_ready(is, &anna, &n) == 10);
    OK(inferscale_update(writer, &anna, ids[3], &f));
    UNTIL(bg_state(is, &anna).n_unencoded == 0 && bg_ready(is, &anna, &n) == 10);
    OK(inferscale_forget(writer, &anna, &ids[5], 1, NULL)); /* 6 and 7 were encoded after it */
    UNTIL(bg_ready(is, &anna, &n) == 9);
    assert_int_equal(n, 9);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    inferscale_close(writer);

    assert_int_equal(rename(scratch_path(bg_home, "vault"), scratch_path(bg_home, "away")), 0);
    assert_int_equal(mkdir(scratch_path(bg_home, "vault"), 0700), 0);
    assert_int_equal(mkdir(scratch_path(bg_home, "vault/tmp"), 0700), 0);
    is_vault_drop_ram(is->vault);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_non_null(strstr(a->fallback, "missing"));
    inferscale_answer_free(a);
    UNTIL(bg_ready(is, &anna, &n) == 9);
    inferscale_close(is);
}

static int64_t n_beginnings(void)
{
    return store_sql_int(bg_home, "SELECT count(*) FROM segments WHERE policy = 'header'");
}

static size_t remove_all(const char *suffix)
{
    size_t n;
    char **files = store_files(bg_home, suffix, &n);

    for (size_t i = 0; i < n; i++) assert_int_equal(unlink(files[i]), 0);
    store_files_free(files, n);
    return n;
}

/* Under page:N+O/E some facts have rows behind the bare header too. Those that are lost wait, and are made again, by the first stage. */
static void beginnings_are_done_again(void **state)
{
    inferscale_options plain = bg_options("mock"), busy = plain;
    inferscale_encode_options again = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_encoder_state s;
    inferscale_answer *a = NULL;
    inferscale *is;
    int64_t n;

    plain.background = 0;
    plain.policy = busy.policy = "page:8+3/2";
    is = bg_open(&plain);
    bg_tell_many(is, &anna, 0, 12);
    OK(inferscale_encode(is, &anna, NULL));
    n = n_beginnings();
    assert_in_range(n, 1, 11);
    assert_int_equal(bg_state(is, &anna).n_unencoded, 0);
    store_sql(bg_home, "DELETE FROM segments WHERE policy = 'header'");
    s = bg_state(is, &anna);
    assert_int_equal(s.n_unencoded, n);
    again.stage = INFERSCALE_STAGE_FIRST;
    OK(inferscale_encode(is, &anna, &again));
    assert_int_equal(n_beginnings(), n);
    assert_int_equal(again.facts_left, 0);
    assert_true(again.tokens_computed > 0);
    assert_int_equal(bg_state(is, &anna).n_unencoded, 0);
    inferscale_close(is);

    is = bg_open(&busy); /* and a question that finds a file gone tells the background encoder */
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_true(remove_all(".seg") > 12);
    is_vault_drop_ram(is->vault);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_non_null(strstr(a->fallback, "missing"));
    inferscale_answer_free(a);
    is_background_again(is->background, 1);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    a = NULL;
    store_sql(bg_home, "DELETE FROM segments WHERE policy = 'header'");
    is_background_again(is->background, 1);
    UNTIL(n_beginnings() == n);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    inferscale_close(is);
    store_sql(bg_home, "DELETE FROM segments WHERE policy = 'header'"); /* a restart sees it without being told */
    is = bg_open(&busy);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_int_equal(n_beginnings(), n);
    inferscale_close(is);
}

/* A fact that no context holds is passed over, counted, and keeps nothing waiting. */
static void what_cannot_be_done_is_passed(void **state)
{
    inferscale_options o = bg_options("mock:ctx=256");
    inferscale *is = bg_open(&o);
    char text[4096];
    inferscale_fact f = { .text = text };

    memset(text, 'q', sizeof text - 1);
    text[sizeof text - 1] = 0;
    bg_tell_many(is, &anna, 0, 3);
    OK(inferscale_remember(is, &anna, &f, 1, NULL));
    bg_tell_many(is, &anna, 3, 3);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    assert_int_equal(bg_state(is, &anna).n_passed, 1);
    assert_int_equal(bg_state(is, &ben).n_passed, 0);
    assert_int_equal(bg_state(is, &anna).n_unencoded, 1);
    assert_int_equal(bg_state(is, &anna).error, INFERSCALE_OK);
    inferscale_close(is);
}

/* A model whose KV cannot be injected: nothing waits for KV. */
static void nothing_to_encode_with_such_a_model(void **state)
{
    inferscale_options o = bg_options("mock:noinject");
    inferscale *is = bg_open(&o);

    bg_tell_many(is, &anna, 0, 5);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_int_equal(bg_state(is, NULL).n_unencoded, 0);
    assert_int_equal(bg_state(is, NULL).n_unembedded, 0);
    assert_int_equal(bg_state(is, NULL).error, INFERSCALE_OK);
    inferscale_close(is);
}

/* One owner's thousand does not make another's one wait for all of them. */
static void partitions_take_turns(void **state)
{
    inferscale_options o = bg_options("mock:slow=3");
    inferscale *is = bg_open(&o);
    inferscale_encoder_state a;

    is_gate_hold(is->gate);
    bg_tell_many(is, &anna, 0, 600);
    bg_tell_many(is, &ben, 0, 1);
    is_gate_release(is->gate);
    OK(inferscale_encode_wait(is, &ben, FOREVER_MS));
    a = bg_state(is, &anna);
    assert_true(a.n_unencoded > 0);
    inferscale_close(is);
}

/* The second stage runs by itself when the first is done. */
static void the_second_stage_follows(void **state)
{
    inferscale_options o = bg_options("mock");
    inferscale *is;
    inferscale_encoder_state s;

    o.refine = "facts:4";
    is = bg_open(&o);
    bg_tell_many(is, &anna, 0, 20);
    UNTIL((s = bg_state(is, &anna)).n_unencoded == 0 && s.model_known && s.n_unrefined == 0);
    UNTIL(bg_state(is, &anna).facts_refined >= 20);
    assert_int_equal(bg_state(is, &anna).facts_encoded, 20);
    inferscale_close(is);
}

/* ---- Questions first ------------------------------------------------------------------------------------------------------ */

/* What a person asked for is not dropped. */
static void foreground_captures_are_not_touched(void **state)
{
    is_engine_opts opts = { .model_path = "mock:slow=5" };
    int32_t tokens[4] = { 100, 101, 102, 103 };
    float *rows[64], room[1024];
    is_engine *e = NULL;
    is_capture c = { .span = tokens, .n_span = 4, .rows = rows };

    KIT_OK(is_engine_open(bg_plugins, "mock", &opts, &e));
    for (uint32_t p = 0; p < is_engine_geometry(e)->n_planes; p++) rows[p] = room;
    is_engine_question_begin(e);
    KIT_OK(is_engine_capture(e, &c));
    assert_int_equal(c.n_computed, 4);
    is_engine_question_end(e);
    is_engine_close(e);
}

/* Questions all the time: all are answered, and what was paused for them is done in the end, each fact once. */
static void questions_come_first(void **state)
{
    inferscale_options o = bg_options("mock:slow=10");
    inferscale *is = bg_open(&o);
    inferscale_encoder_state s;
    is_gate_stats g;

    bg_tell_many(is, &anna, 0, 80);
    UNTIL(bg_state(is, &anna).running);
    /* The encoder is to be at work when one comes: how long it needs to begin is the machine's. */
    for (int i = 0; i < 25; i++) {
        inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_answer *a = NULL;

        ask.max_tokens = 2;
        OK(inferscale_ask(is, &anna, "What does anna own?", &ask, &a));
        inferscale_answer_free(a);
        usleep(7000 + 1000 * (unsigned)i);
    }
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    s = bg_state(is, &anna);
    is_gate_get_stats(is->gate, &g);
    assert_int_equal(g.drops, 0);
    assert_int_equal(s.facts_encoded, 80);
    assert_int_equal(s.n_errors, 0);
    bg_expect_ready(is, &anna, 80);
    inferscale_close(is);
}

/* Encoding in the foreground and in the background at the same time. */
static void both_ways_at_once(void **state)
{
    inferscale_options o = bg_options("mock:slow=2");
    inferscale *is = bg_open(&o);

    for (int i = 0; i < 5; i++) {
        bg_tell_many(is, &anna, i * 20, 20);
        bg_tell_many(is, &ben, i * 20, 5);
        OK(inferscale_encode(is, &anna, NULL));
    }
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    bg_expect_ready(is, &anna, 100);
    bg_expect_ready(is, &ben, 25);
    inferscale_close(is);
}

/* ---- Back-pressure -------------------------------------------------------------------------------------------------------- */

static void too_much_is_refused_and_taken_later(void **state)
{
    inferscale_options o = bg_options("mock");
    inferscale *is;
    inferscale_turn turn = { .text = "And a turn." };
    inferscale_fact many[30];
    int taken = 0;

    o.max_pending = 20;
    is = bg_open(&o);
    OK(bg_tell(is, &anna, 1000, NULL));
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    is_gate_hold(is->gate);
    while (taken < 100 && bg_tell(is, taken % 2 ? &anna : &ben, taken, NULL) == INFERSCALE_OK) taken++;
    assert_int_equal(taken, 20);
    FAILS(E_BUSY, bg_tell(is, &anna, 99, NULL));
    assert_non_null(strstr(inferscale_error(), "20 items wait"));
    assert_non_null(strstr(inferscale_error(), "max_pending"));
    FAILS(E_BUSY, inferscale_add_turns(is, &anna, &turn, 1, NULL));
    is_gate_release(is->gate);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(bg_tell(is, &anna, 99, NULL) == INFERSCALE_OK); /* nothing was taken that was refused, nothing is refused for ever */
    for (int i = 0; i < 30; i++) {
        many[i] = (inferscale_fact){ .text = calloc(1, 32) };
        snprintf((char *)many[i].text, 32, "Batch fact %d.", i);
    }
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(inferscale_remember(is, &cleo, many, 30, NULL) == INFERSCALE_OK); /* larger than the limit, but nothing waits */
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    bg_expect_ready(is, &anna, 12);
    bg_expect_ready(is, &cleo, 30);
    for (int i = 0; i < 30; i++) free((char *)many[i].text);
    inferscale_close(is);
}

typedef struct teller { inferscale *is; int first, taken; } teller;

static void *tell_until_refused(void *arg)
{
    teller *t = arg;

    while (bg_tell(t->is, t->first % 2 ? &anna : &ben, t->first + t->taken, NULL) == INFERSCALE_OK) t->taken++;
    return NULL;
}

/* What was added is in the encoder's counts. Who waited until all is done waits for that too, but no more than a second. */
static bool all_is_counted(inferscale *is)
{
    pthread_mutex_lock(&is->background->lock);
    bool yes = is->background->workers[IS_BG_EMBEDDER].fresh + is->background->workers[IS_BG_ENCODER].fresh == 0;
    pthread_mutex_unlock(&is->background->lock);
    return yes;
}

/* Who writes and who counts at the same time: not one more is taken than may wait, and not one less. */
static void not_one_is_refused_too_early(void **state)
{
    enum { TELLERS = 3, ROUNDS = 25, MOST = 40 };
    inferscale_options o = bg_options("mock");
    inferscale *is;

    o.max_pending = MOST;
    is = bg_open(&o);
    OK(bg_tell(is, &anna, 1000000, NULL));
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[TELLERS];
        teller tellers[TELLERS];
        int taken = 0;

        UNTIL(all_is_counted(is));
        is_gate_hold(is->gate);
        for (int i = 0; i < TELLERS; i++) {
            tellers[i] = (teller){ .is = is, .first = (round * TELLERS + i) * 1000 };
            assert_int_equal(pthread_create(&threads[i], NULL, tell_until_refused, &tellers[i]), 0);
        }
        for (int i = 0; i < TELLERS; i++) {
            pthread_join(threads[i], NULL);
            taken += tellers[i].taken;
        }
        assert_int_equal(taken, MOST);
        is_gate_release(is->gate);
        OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    }
    inferscale_close(is);
}

/* ---- Several handles ------------------------------------------------------------------------------------------------------ */

static void two_handles_share_the_work(void **state)
{
    inferscale_options o = bg_options("mock:slow=1");
    inferscale *one = bg_open(&o), *two = bg_open(&o);
    uint64_t by_one, by_two;

    for (int i = 0; i < 60; i++) OK(bg_tell(i % 2 ? one : two, i % 3 ? &anna : &ben, i, NULL));
    OK(inferscale_encode_wait(one, NULL, FOREVER_MS));
    OK(inferscale_encode_wait(two, NULL, FOREVER_MS));
    by_one = bg_state(one, NULL).facts_encoded;
    by_two = bg_state(two, NULL).facts_encoded;
    assert_int_equal(by_one + by_two, 60); /* each fact once */
    assert_int_equal(bg_state(one, NULL).items_embedded + bg_state(two, NULL).items_embedded, 60);
    inferscale_close(by_one ? one : two); /* the worker goes: the other takes over */
    one = by_one ? two : one;
    bg_tell_many(one, &cleo, 0, 10);
    OK(inferscale_encode_wait(one, NULL, FOREVER_MS));
    bg_expect_ready(one, &cleo, 10);
    inferscale_close(one);
}

/* Other models and policies are other views: both handles work. */
static void two_models_two_views(void **state)
{
    inferscale_options o = bg_options("mock"), other = bg_options("mock:id=7");
    inferscale *one = bg_open(&o), *two = bg_open(&other);

    bg_tell_many(one, &anna, 0, 10);
    OK(inferscale_encode_wait(one, NULL, FOREVER_MS));
    OK(inferscale_encode_wait(two, NULL, FOREVER_MS));
    bg_expect_ready(one, &anna, 10);
    bg_expect_ready(two, &anna, 10);
    inferscale_close(two);
    inferscale_close(one);
}

/* ---- Main ----------------------------------------------------------------------------------------------------------------- */

#define TEST(f) cmocka_unit_test_setup_teardown(f, bg_set_up, bg_tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(what_waits_is_done), TEST(text_serves_until_then), TEST(what_changes_is_done_again), TEST(what_cannot_be_done_is_passed),
        TEST(nothing_to_encode_with_such_a_model), TEST(partitions_take_turns), TEST(the_second_stage_follows), TEST(beginnings_are_done_again),
        TEST(foreground_captures_are_not_touched), TEST(questions_come_first), TEST(both_ways_at_once),
        TEST(too_much_is_refused_and_taken_later), TEST(not_one_is_refused_too_early),
        TEST(two_handles_share_the_work), TEST(two_models_two_views),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, bg_find_plugins, NULL);
}
