/* The encode room on the mock engine, whose rows tell exactly what stood before a token: what a segment holds must be what the room
 * says it was computed from, under every policy; what depends on a fact is in the dependency table, and nothing else is; company costs
 * what it is to cost; answers take the best rows. Pages: test_encode_pages.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/encode_kit.h"

static const char *const all_policies[] = { "alone", "header", "turns:3", "turns:2+source", "facts:4", "cwe:3", "near:4", "page:8",
                                            "page:5+2", "page:6+0@time", "page:7+3@topic", "page:6+2/3", "company:4", "company:3x2" };

static void segments_hold_what_they_say(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_policies / sizeof all_policies[0]; i++) {
        lab *l = ek_open("mock", NULL, NULL, NULL);
        is_policy policy = ek_policy(all_policies[i]);
        int64_t ids[FACTS];
        is_encode_job job;

        ek_remember(l, 0, FACTS, ids);
        job = ek_encode(l, &policy, ids, FACTS, 0);
        assert_int_equal(job.facts, FACTS);
        assert_int_equal(job.n_left, 0);
        for (int f = 0; f < FACTS; f++) ek_check_fact(l, &policy, ids[f]);
        job = ek_encode(l, &policy, ids, FACTS, 0); /* nothing is left to do */
        assert_int_equal(job.tokens_computed, 0);
        lab_close(l);
    }
}

/* Facts that come one by one, or a few at a time, under a page policy: the same truth, whatever was stored and whatever computed. */
static void facts_that_come_one_by_one(void **state)
{
    static const char *const codecs[] = { "f16", "bf16", "f32", "int8" };

    (void)state;
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        lab *l = ek_open("mock", NULL, NULL, codecs[i]);
        is_policy policy = ek_policy("page:6+2");
        int64_t ids[FACTS];
        uint64_t own = 0, computed = 0;

        for (int done = 0; done < FACTS;) {
            int n = 1 + (int)scratch_below(&ek_rng, 3);
            is_encode_job job;

            if (n > FACTS - done) n = FACTS - done;
            ek_remember(l, done, n, ids);
            job = ek_encode(l, &policy, ids + done, (size_t)n, 0);
            assert_int_equal(job.facts, n);
            own += job.tokens_stored;
            computed += job.tokens_computed;
            done += n;
        }
        if (strcmp(codecs[i], "f16") == 0)
            for (int f = 0; f < FACTS; f++) ek_check_fact(l, &policy, ids[f]);
        /* A page costs its header's tokens and its leads once, a fact its own: what an open page builds on is
         * not int8 yet. bf16 rows are not good enough. */
        if (strcmp(codecs[i], "bf16") != 0) assert_true((double)computed < 1.8 * (double)own);
        else assert_true((double)computed > 1.8 * (double)own);
        lab_close(l);
    }
}

/* page:N/E: about one fact in E has header-only rows too, no other has; they hold what they say, cost their tokens, and are not
 * made twice. */
static void some_can_begin_a_plan(void **state)
{
    lab *l = ek_open("mock", NULL, NULL, NULL);
    is_policy with = ek_policy("page:8+3/3"), without = ek_policy("page:8+3"), header = ek_policy("header");
    int64_t ids[FACTS];
    is_encode_job job, bare;
    int n = 0;

    (void)state;
    ek_remember(l, 0, FACTS, ids);
    bare = ek_encode(l, &without, ids, FACTS, 0);
    job = ek_encode(l, &with, ids, FACTS, 0);
    for (int f = 0; f < FACTS; f++) {
        size_t rows = ek_n_rows(l, &header, ids[f]);

        assert_int_equal(rows, is_policy_takes_header(&with, ids[f]));
        if (rows) ek_check_fact(l, &header, ids[f]), n++;
    }
    assert_true(n > 0 && n < FACTS);
    assert_int_equal(job.tokens_stored, bare.tokens_stored);
    assert_true(job.tokens_computed > bare.tokens_computed);
    assert_int_equal(ek_encode(l, &with, ids, FACTS, 0).tokens_computed, 0);
    lab_close(l);
    n = 0;
    for (int64_t id = 1; id <= 6000; id++) n += is_policy_takes_header(&with, id);
    assert_in_range(n, 1900, 2100);
}

static void what_does_not_fit_is_left(void **state)
{
    static const char *const policies[] = { "page:8", "company:4", "header", "near:3" };
    char text[4000];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (size_t i = 0; i < 4; i++) {
        lab *l = ek_open("mock:ctx=700", NULL, NULL, NULL);
        is_policy policy = ek_policy(policies[i]);
        int64_t ids[FACTS + 1];
        is_encode_job job;

        ek_remember(l, 0, 20, ids);
        KIT_OK(lab_remember(l, &(inferscale_fact){ .text = text }, 1, &ids[20]));
        job = ek_encode(l, &policy, ids, 21, 0);
        assert_int_equal(job.n_left, 1);
        assert_int_equal(job.facts, 20);
        for (int f = 0; f < 20; f++) ek_check_fact(l, &policy, ids[f]);
        lab_close(l);
    }
}

/* ---- Company ------------------------------------------------------------------------------------------------------------- */

/* With room for few sums the rows are the same, and passes are run again. */
static void company_within_a_budget(void **state)
{
    lab *l = ek_open("mock", NULL, NULL, NULL), *tight = ek_open("mock", NULL, NULL, NULL);
    is_policy policy = ek_policy("company:6");
    int64_t ids[FACTS], other[FACTS];
    is_encode_job roomy, cramped;
    uint64_t one;

    (void)state;
    ek_remember(l, 0, FACTS, ids);
    ek_remember(tight, 0, FACTS, other);
    roomy = ek_encode(l, &policy, ids, FACTS, 0);
    one = is_geometry_width(is_engine_geometry(l->is->engine)) * sizeof(float) * (roomy.tokens_stored / FACTS);
    cramped = ek_encode(tight, &policy, other, FACTS, 3 * one);
    assert_true(cramped.tokens_computed > roomy.tokens_computed);
    assert_true((double)roomy.tokens_computed <= 7.5 * (double)roomy.tokens_stored); /* one pass of 7 facts a fact */
    for (int f = 0; f < FACTS; f++) ek_check_fact(tight, &policy, other[f]);
    lab_close(l);
    lab_close(tight);
}

static void one_fact_has_no_company(void **state)
{
    lab *l = ek_open("mock", NULL, NULL, NULL);
    is_policy policy = ek_policy("company:6");
    int64_t ids[FACTS];
    is_segment_row row;

    (void)state;
    ek_remember(l, 0, 1, ids);
    ek_encode(l, &policy, ids, 1, 0);
    assert_true(ek_has_row(l, &policy, ids[0], &row));
    assert_int_equal(row.n_passes, 1);
    ek_check_fact(l, &policy, ids[0]);
    ek_remember(l, 1, 3, ids);
    ek_encode(l, &policy, ids, 4, 0); /* now it has, and the rows from before are not kept beside the new ones */
    for (int f = 0; f < 4; f++) ek_check_fact(l, &policy, ids[f]);
    lab_close(l);
}

/* ---- What answers take --------------------------------------------------------------------------------------------------- */

static inferscale_answer *ask(lab *l, uint32_t k)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.k = k;
    KIT_OK(inferscale_ask(l->is, &l->scope, "Who likes chess?", &o, &a));
    return a;
}

static inferscale_encode_options encode_stage(lab *l, int stage, const char *refine)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;

    o.stage = stage;
    o.refine = refine;
    KIT_OK(inferscale_encode(l->is, &l->scope, &o));
    return o;
}

static void answers_take_the_best_rows(void **state)
{
    lab *l = ek_open("mock", "page:8", "company:4", NULL);
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_answer *a;
    int64_t ids[FACTS];

    (void)state;
    ek_remember(l, 0, 30, ids);
    assert_int_equal(encode_stage(l, INFERSCALE_STAGE_FIRST, NULL).facts_encoded, 30);
    a = ask(l, 6);
    assert_int_equal(a->n_facts, 6);
    assert_true(a->n_refined == 0 && a->n_exact == 0);
    for (size_t i = 0; i < 6; i++) assert_string_equal(a->facts[i].policy, "page:8");
    inferscale_answer_free(a);
    o = encode_stage(l, INFERSCALE_STAGE_REFINE, NULL);
    assert_int_equal(o.facts_encoded, 30);
    assert_int_equal(o.sets_encoded, 60); /* company and header */
    a = ask(l, 6);
    assert_true(a->n_refined == 5 && a->n_exact == 1);
    assert_string_equal(a->fallback, "");
    assert_string_equal(a->facts[0].policy, "header");
    for (size_t i = 1; i < 6; i++) assert_string_equal(a->facts[i].policy, "company:4");
    inferscale_answer_free(a);
    a = ask(l, 13); /* far more than four neighbours: pages are nearer */
    assert_true(a->n_facts == 13 && a->n_refined == 0 && a->n_exact == 1);
    for (size_t i = 1; i < 13; i++) assert_string_equal(a->facts[i].policy, "page:8");
    inferscale_answer_free(a);
    a = ask(l, 12);
    assert_true(a->n_facts == 12 && a->n_refined == 11);
    inferscale_answer_free(a);
    assert_int_equal(encode_stage(l, INFERSCALE_STAGE_ALL, NULL).facts_encoded, 0);
    o.stage = INFERSCALE_STAGE_REFINE;
    o.refine = "none";
    KIT_FAILS(INFERSCALE_E_INVALID, inferscale_encode(l->is, &l->scope, &o));
    o.stage = 4;
    KIT_FAILS(INFERSCALE_E_INVALID, inferscale_encode(l->is, &l->scope, &o));
    lab_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_hold_what_they_say),
        cmocka_unit_test(facts_that_come_one_by_one),
        cmocka_unit_test(some_can_begin_a_plan),
        cmocka_unit_test(what_does_not_fit_is_left),
        cmocka_unit_test(company_within_a_budget),
        cmocka_unit_test(one_fact_has_no_company),
        cmocka_unit_test(answers_take_the_best_rows),
    };

    return cmocka_run_group_tests(tests, ek_begin, NULL);
}
