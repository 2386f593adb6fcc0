/* What must hold of the rows that an answer is made from:
 *   - rows_digest is the same for the same facts from the same rows, also after a restart, and another one when a fact or its rows
 *     changed (rows that an engine elsewhere did not use after all: test_remote);
 *   - with a stage an answer is made of that stage's rows or of text, whatever was encoded meanwhile;
 *   - in conversations too, whether the engine still holds the earlier turns or not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/complete_kit.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { K = 4, BEST = 0, FIRST = INFERSCALE_STAGE_FIRST, REFINE = INFERSCALE_STAGE_REFINE };

typedef struct seen { char digest[65], text[400]; size_t n_stored, n_computed, n_better; unsigned fallbacks; char why[400]; } seen;

static inferscale *open_as(const char *model, const char *policy, const char *refine)
{
    inferscale_options o = store_options(scratch_path(scratch_home, "store"));
    inferscale *is = NULL;

    o.model = model;
    o.policy = policy;
    o.refine = refine;
    OK(inferscale_open(&is, &o));
    return is;
}

static inferscale *open_it(void)
{
    return open_as("mock", "page:8", "company:4");
}

static void encode(inferscale *is, int stage)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;

    o.stage = stage;
    OK(inferscale_encode(is, &store_anna, &o));
}

static seen look(inferscale_answer *a)
{
    seen s = { .fallbacks = a->fallbacks, .n_better = a->n_refined + a->n_exact };

    for (size_t i = 0; i < a->n_facts; i++) {
        s.n_stored += a->facts[i].source == INFERSCALE_SOURCE_STORED;
        s.n_computed += a->facts[i].source == INFERSCALE_SOURCE_COMPUTED;
    }
    snprintf(s.digest, sizeof s.digest, "%s", a->rows_digest);
    snprintf(s.text, sizeof s.text, "%s", a->text);
    snprintf(s.why, sizeof s.why, "%s", a->fallback);
    inferscale_answer_free(a);
    return s;
}

static seen ask_in(inferscale *is, int stage, int mode)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.k = K;
    o.stage = stage;
    o.mode = mode;
    o.max_tokens = 80;
    OK(inferscale_ask(is, &store_anna, "What about bees and the cello?", &o, &a));
    return look(a);
}

static seen ask(inferscale *is, int stage)
{
    return ask_in(is, stage, INFERSCALE_MODE_KV);
}

static void expect_same(const seen *a, const seen *b)
{
    assert_string_equal(a->digest, b->digest);
    assert_string_equal(a->text, b->text);
    assert_int_equal(strlen(a->digest), 64);
}

/* ---- Questions ----------------------------------------------------------------------------------------------------------- */

static void refining_changes_the_digest_and_a_stage_keeps_it(void **state)
{
    inferscale *is = open_it();
    seen first, again, best;

    (void)state;
    remember_topics(is, &store_anna, NULL);
    encode(is, FIRST);
    first = ask(is, BEST);
    assert_true(first.n_stored == K && first.n_better == 0);
    again = ask(is, BEST);
    expect_same(&again, &first);
    encode(is, REFINE);
    best = ask(is, BEST);
    assert_true(best.n_stored == K && best.n_better == K);
    assert_string_not_equal(best.digest, first.digest);
    for (int opened = 0; opened < 2; opened++) {
        again = ask(is, FIRST);
        assert_true(again.n_stored == K && again.n_better == 0 && again.fallbacks == 0);
        expect_same(&again, &first);
        again = ask(is, REFINE);
        assert_true(again.n_stored == K && again.n_better == K && again.fallbacks == 0);
        expect_same(&again, &best);
        again = ask(is, BEST);
        expect_same(&again, &best);
        if (opened) break;
        inferscale_close(is);
        is = open_it();
    }
    inferscale_close(is);
}

static void a_changed_fact_changes_the_digest(void **state)
{
    inferscale_fact f = { .text = "Something about bees that anna likes no longer." };
    inferscale *is = open_it();
    int64_t ids[FACTS];
    seen before, computed, encoded;

    (void)state;
    remember_topics(is, &store_anna, ids);
    encode(is, FIRST);
    before = ask(is, FIRST);
    OK(inferscale_update(is, &store_anna, ids[0], &f));
    computed = ask(is, FIRST);
    assert_true(computed.n_computed > 0);
    assert_string_not_equal(computed.digest, before.digest);
    encode(is, FIRST);
    encoded = ask(is, FIRST);
    assert_int_equal(encoded.n_computed, 0);
    assert_string_not_equal(encoded.digest, before.digest);
    assert_string_not_equal(encoded.digest, computed.digest);
    inferscale_close(is);
}

static void without_rows_of_the_stage_facts_are_computed(void **state)
{
    inferscale *is = open_it();
    seen pinned, text;

    (void)state;
    remember_topics(is, &store_anna, NULL);
    encode(is, FIRST);
    pinned = ask(is, REFINE);
    assert_true(pinned.n_stored == 0 && pinned.n_computed == K);
    assert_int_equal(pinned.fallbacks, INFERSCALE_FALLBACK_NOT_ENCODED);
    assert_non_null(strstr(pinned.why, "no KV of the second stage"));
    text = ask_in(is, REFINE, INFERSCALE_MODE_TEXT); /* computed is computed, whoever asked for it */
    expect_same(&text, &pinned);
    assert_string_equal(ask_in(is, BEST, INFERSCALE_MODE_NONE).digest, "");
    inferscale_close(is);
    is = open_as("mock", "page:8", "none");
    pinned = ask(is, REFINE);
    assert_true(pinned.n_stored == 0 && pinned.fallbacks == INFERSCALE_FALLBACK_NOT_ENCODED);
    assert_non_null(strstr(pinned.why, "the second stage is off"));
    inferscale_close(is);
    is = open_as("mock", "facts:2", "company:4"); /* rows of a policy that is no longer the first stage's */
    assert_int_equal(ask(is, BEST).n_stored, K);
    pinned = ask(is, FIRST);
    assert_true(pinned.n_stored == 0 && pinned.fallbacks == INFERSCALE_FALLBACK_NOT_ENCODED);
    assert_non_null(strstr(pinned.why, "no KV of the first stage"));
    inferscale_close(is);
}

/* Where the first stage's policy is `header`, its rows are the first stage's, not the second's. */
static void header_rows_belong_to_one_stage(void **state)
{
    inferscale *is = open_as("mock", "header", "company:4");

    (void)state;
    remember_topics(is, &store_anna, NULL);
    encode(is, FIRST);
    assert_int_equal(ask(is, FIRST).n_stored, K);
    assert_int_equal(ask(is, REFINE).n_stored, 0);
    inferscale_close(is);
}

static void other_stages_are_refused(void **state)
{
    inferscale *is = open_it();

    (void)state;
    for (int stage = -1; stage <= 4; stage++) {
        inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_complete_options c = INFERSCALE_COMPLETE_OPTIONS_INIT;
        const inferscale_message m = { "user", "What about bees?" };
        inferscale_answer *a = NULL;

        if (stage >= BEST && stage <= REFINE) continue;
        c.ask.stage = o.stage = stage;
        FAILS(E_INVALID, inferscale_ask(is, &store_anna, "q", &o, &a));
        FAILS(E_INVALID, inferscale_complete(is, &store_anna, &m, 1, &c, &a));
        assert_null(a);
    }
    inferscale_close(is);
}

/* ---- Conversations ------------------------------------------------------------------------------------------------------- */

/* Two turns told; the third's answer. resident: what of its facts the engine held. */
static seen third_turn(inferscale *is, const talk *told, int stage, uint32_t *resident)
{
    inferscale_complete_options o = options();
    talk t = *told;
    inferscale_answer *a;

    for (size_t i = 0; i < t.n; i++) t.m[i].content = t.text[i];
    o.ask.stage = stage;
    ask_about(&t, 2);
    a = complete(is, &store_anna, &t, &o);
    *resident = resident_facts(a);
    return look(a);
}

static void a_conversation_has_one_digest_however_it_goes_on(void **state)
{
    inferscale_complete_options o = options();
    inferscale_ask_options ask_options = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale *is = open_it();
    inferscale_chat *chat = NULL;
    inferscale_answer *a = NULL;
    talk t = { 0 };
    uint32_t resident;
    seen held, placed, chatted, pinned;

    (void)state;
    remember_topics(is, &store_anna, NULL);
    encode(is, FIRST);
    tell(is, &store_anna, &t, 0, 2, &o, NULL);
    held = third_turn(is, &t, BEST, &resident);
    assert_int_equal(resident, 4);
    pinned = third_turn(is, &t, FIRST, &resident); /* a run that was begun without a stage is not gone on with */
    assert_int_equal(resident, 0);
    expect_same(&pinned, &held);
    inferscale_close(is);
    is = open_it();
    placed = third_turn(is, &t, BEST, &resident);
    assert_int_equal(resident, 0);
    expect_same(&placed, &held);
    ask_options.k = o.ask.k;
    ask_options.max_tokens = o.ask.max_tokens;
    OK(inferscale_chat_open(is, &store_anna, &chat));
    for (int i = 0; i < 3; i++) {
        char text[100];

        snprintf(text, sizeof text, "What about %s?", topics[i]);
        OK(inferscale_chat_say(chat, text, &ask_options, &a));
        chatted = look(a);
    }
    assert_string_equal(chatted.digest, held.digest);
    inferscale_chat_close(chat);
    encode(is, REFINE);
    inferscale_close(is);
    is = open_it();
    pinned = third_turn(is, &t, FIRST, &resident);
    expect_same(&pinned, &held);
    assert_string_not_equal(third_turn(is, &t, BEST, &resident).digest, held.digest);
    inferscale_close(is);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_set_up, scratch_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(refining_changes_the_digest_and_a_stage_keeps_it),
        TEST(a_changed_fact_changes_the_digest),
        TEST(without_rows_of_the_stage_facts_are_computed),
        TEST(header_rows_belong_to_one_stage),
        TEST(other_stages_are_refused),
        TEST(a_conversation_has_one_digest_however_it_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
