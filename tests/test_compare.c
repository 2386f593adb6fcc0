/* Two fidelity reports compared question by question: identities, pairing by identity, refusals, the interval against oracles, and reports that
 * are anything. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/mem.h"
#include "eval/compare.h"
#include "support/kit.h"
#include "support/scratch.h"

#define NEAR(a, b, tolerance)                                                                                                  \
    do {                                                                                                                       \
        double a_ = (a), b_ = (b);                                                                                             \
        if (!(fabs(a_ - b_) <= (tolerance)))                                                                                   \
            fail_msg("%s = %.17g, expected %.17g +- %g", #a, a_, b_, (double)(tolerance));                                    \
    } while (0)

enum { N = 40 };

/* ---- A report ------------------------------------------------------------------------------------------------------------ */

static json_t *row(const char *arm, const char *policy, const double *each, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++) json_array_append_new(list, isnan(each[i]) ? json_null() : json_real(each[i]));
    return json_pack("{s:s,s:s,s:o,s:i,s:i,s:o}", "arm", arm, "system", "own", "policy", policy ? json_string(policy) : json_null(), "repair", 0,
                     "k", 10, "kl_each", list);
}

/* n questions of n_talks conversations, whose distances are drawn with the seed about those of the question. */
static json_t *report(size_t n, size_t n_talks, uint64_t seed)
{
    rng r = rng_stream(seed, 1, 2);
    json_t *questions = json_array();
    double b[N], s[N], floor[N];

    assert_true(n <= N);
    for (size_t i = 0; i < n; i++) {
        rng of = rng_stream(99, i, 0);
        char talk[16], prompts[20], answer[20];

        snprintf(talk, sizeof talk, "talk-%zu", i % n_talks);
        snprintf(prompts, sizeof prompts, "%016llx", (unsigned long long)rng_next(&of));
        snprintf(answer, sizeof answer, "%016llx", (unsigned long long)(i % 4 ? i : rng_next(&r)));
        json_array_append_new(questions, json_pack("{s:s,s:i,s:s,s:s,s:i}", "conversation", talk, "index", (int)(3 * i + 1), "prompts", prompts,
                                                   "answer", answer, "answer_tokens", 4));
        b[i] = 0.05 * (0.5 + rng_unit(&of)) + 0.01 * rng_unit(&r);
        s[i] = 0.05 * (0.5 + rng_unit(&of)) + 0.01 * rng_unit(&r);
        floor[i] = i % 4 ? NAN : 0.0001;
    }
    return json_pack("{s:s,s:i,s:i,s:i,s:s,s:o,s:[o,o,o]}", "model", "m", "seed", 1, "orders", 3, "answer_tokens", 4, "retrieval", "lexical",
                     "questions", questions, "rows", row("B", "page:16/6", b, n), row("N", NULL, floor, n), row("S_free", NULL, s, n));
}

static json_t *question(json_t *r, size_t i)
{
    return json_array_get(json_object_get(r, "questions"), i);
}

static json_t *each(json_t *r, size_t row)
{
    return json_object_get(json_array_get(json_object_get(r, "rows"), row), "kl_each");
}

/* Moves question i to the end, with its numbers. */
static void to_the_end(json_t *r, size_t i)
{
    json_t *lists[4] = { json_object_get(r, "questions"), each(r, 0), each(r, 1), each(r, 2) };

    for (size_t k = 0; k < 4; k++) {
        json_array_append(lists[k], json_array_get(lists[k], i));
        json_array_remove(lists[k], i);
    }
}

static void leave_out(json_t *r, size_t i)
{
    json_array_remove(json_object_get(r, "questions"), i);
    for (size_t k = 0; k < 3; k++) json_array_remove(each(r, k), i);
}

static compare *compared(const json_t *a, const json_t *b)
{
    compare *c = NULL;

    KIT_OK(compare_reports(a, b, false, 1, &c));
    return c;
}

/* ---- Identities ---------------------------------------------------------------------------------------------------------- */

static void test_a_report_against_itself(void **state)
{
    for (size_t talks = 1; talks <= 3; talks++) {
        json_t *a = report(N, talks, 1);
        compare *c = compared(a, a);
        double sum = 0, order = 0;

        for (size_t i = 0; i < N; i++) sum += json_number_value(json_array_get(each(a, 0), i));
        for (size_t i = 0; i < N; i++) order += json_number_value(json_array_get(each(a, 2), i));
        assert_true(c->n == N && c->same_answer == N && c->n_rows == 1 && !c->rows[0].is_void);
        assert_true(c->by_conversation == (talks > 1));
        NEAR(c->rows[0].a, sum / order, 1e-12);
        assert_true(c->rows[0].difference == 0 && c->rows[0].difference_i.lo == 0 && c->rows[0].difference_i.hi == 0);
        assert_true(c->rows[0].a_i.lo < c->rows[0].a && c->rows[0].a < c->rows[0].a_i.hi && c->rows[0].a_i.lo == c->rows[0].b_i.lo);
        assert_string_equal(c->rows[0].yardstick, "S_free");
        compare_free(c);
        json_decref(a);
    }
}

static void test_questions_pair_by_identity(void **state)
{
    json_t *a = report(N, 1, 1), *b = report(N, 1, 2);
    compare *plain = compared(a, b), *mixed;
    rng r = { 5 };

    for (int i = 0; i < 200; i++) to_the_end(b, rng_below(&r, N));
    mixed = compared(a, b);
    assert_true(mixed->n == N && mixed->same_answer == plain->same_answer && plain->same_answer < N);
    assert_memory_equal(&mixed->rows[0].difference_i, &plain->rows[0].difference_i, sizeof(stats_interval));
    assert_true(mixed->rows[0].difference == plain->rows[0].difference && plain->rows[0].difference != 0);
    compare_free(mixed);
    mixed = compared(b, a); /* the other way round: the order of drawing changes, the figures only their sign */
    NEAR(mixed->rows[0].difference, -plain->rows[0].difference, 1e-12);
    NEAR(mixed->rows[0].difference_i.lo, -plain->rows[0].difference_i.hi, 0.01);
    compare_free(mixed);
    compare_free(plain);
    json_decref(a);
    json_decref(b);
}

static void test_a_missing_question_is_said(void **state)
{
    for (int side = 0; side < 2; side++) {
        json_t *r[2] = { report(N, 1, 1), report(N, 1, 2) };
        compare *c = NULL;

        leave_out(r[side], 7);
        KIT_FAILS(INFERSCALE_E_INVALID, compare_reports(r[0], r[1], false, 1, &c));
        assert_null(c);
        assert_non_null(strstr(is_error(), "question 22 of talk-0 is not in the "));
        assert_non_null(strstr(is_error(), side ? "second" : "first"));
        KIT_OK(compare_reports(r[0], r[1], true, 1, &c));
        assert_true(c->n == N - 1 && c->only_a == (size_t)side && c->only_b == (size_t)!side);
        compare_free(c);
        json_decref(r[0]);
        json_decref(r[1]);
    }
    json_t *a = report(3, 1, 1), *b = report(3, 1, 1);
    compare *c = NULL;

    for (size_t i = 0; i < 3; i++) json_object_set_new(question(b, i), "index", json_integer(100 + (json_int_t)i));
    KIT_FAILS(INFERSCALE_E_INVALID, compare_reports(a, b, true, 1, &c)); /* nothing in common */
    json_decref(a);
    json_decref(b);
}

/* ---- Refusals ------------------------------------------------------------------------------------------------------------ */

static void refused(is_status status, const char *says, const json_t *a, const json_t *b)
{
    compare *c = NULL;

    for (int common = 0; common < 2; common++) {
        KIT_FAILS(status, compare_reports(a, b, common, 1, &c));
        assert_null(c);
        if (!strstr(is_error(), says)) fail_msg("\"%s\" does not say \"%s\"", is_error(), says);
    }
}

static void test_other_runs_are_refused(void **state)
{
    static const char *const settings[] = { "seed", "orders", "answer_tokens", "retrieval", "client_system" };
    static const char *const of_row[] = { "policy", "repair", "k" };
    json_t *a = report(N, 1, 1), *b;

    for (size_t i = 0; i < 5; i++) {
        b = report(N, 1, 1);
        json_object_set_new(b, settings[i], json_string("another"));
        refused(INFERSCALE_E_INVALID, settings[i], a, b);
        refused(INFERSCALE_E_INVALID, settings[i], b, a);
        json_decref(b);
    }
    for (size_t i = 0; i < 3; i++) {
        b = report(N, 1, 1);
        json_object_set_new(json_array_get(json_object_get(b, "rows"), 0), of_row[i], i ? json_integer(7) : json_string("header"));
        refused(INFERSCALE_E_INVALID, "policy", a, b);
        json_decref(b);
    }
    b = report(N, 1, 1); /* an arm more on one side */
    json_array_append_new(json_object_get(b, "rows"), json_deep_copy(json_array_get(json_object_get(b, "rows"), 0)));
    json_object_set_new(json_array_get(json_object_get(b, "rows"), 3), "policy", json_string("header"));
    refused(INFERSCALE_E_INVALID, "first file has no policy header", a, b);
    json_decref(b);
    b = report(N, 1, 1);
    json_object_set_new(question(b, 4), "prompts", json_string("0011223344556677"));
    refused(INFERSCALE_E_INVALID, "question 13 of talk-0 had other prompts", a, b);
    json_decref(b);
    b = report(N, 1, 1); /* the yardstick was left out on one side */
    json_array_remove(json_object_get(b, "rows"), 2);
    refused(INFERSCALE_E_INVALID, "S_free", a, b);
    refused(INFERSCALE_E_INVALID, "no order ratio", b, b);
    json_decref(b);
    json_decref(a);
}

static void test_what_is_no_report_is_refused(void **state)
{
    json_t *a = report(N, 1, 1), *b = report(N, 1, 1), *none = json_null();

    refused(INFERSCALE_E_PARSE, "first", none, a);
    refused(INFERSCALE_E_PARSE, "second", a, none);
    json_array_remove(each(b, 0), 3);
    refused(INFERSCALE_E_PARSE, "number for each question", a, b);
    json_array_append_new(each(b, 0), json_real(-1));
    refused(INFERSCALE_E_PARSE, "no number", a, b);
    json_array_set_new(each(b, 0), N - 1, json_null()); /* not measured: nothing to compare */
    refused(INFERSCALE_E_PARSE, "lacks a distance", a, b);
    json_decref(b);
    b = report(N, 1, 1);
    json_object_set(question(b, 3), "index", json_object_get(question(b, 2), "index"));
    compare *c = NULL;
    KIT_FAILS(INFERSCALE_E_INVALID, compare_reports(a, b, false, 1, &c)); /* one is missing */
    KIT_FAILS(INFERSCALE_E_PARSE, compare_reports(a, b, true, 1, &c));
    assert_non_null(strstr(is_error(), "twice"));
    json_decref(b);
    json_decref(a);
}

static void test_a_yardstick_near_the_floor_is_void(void **state)
{
    json_t *a = report(N, 1, 1), *b = report(N, 1, 2);
    compare *c;

    for (size_t i = 0; i < N; i += 4) json_array_set_new(each(b, 1), i, json_real(0.05));
    c = compared(a, b);
    assert_true(c->rows[0].is_void && isnan(c->rows[0].a) && isnan(c->rows[0].difference) && isnan(c->rows[0].difference_i.lo));
    assert_true(c->rows[0].kl_a > 0 && c->rows[0].order_b > 0);
    compare_free(c);
    json_decref(a);
    json_decref(b);
}

/* ---- The interval -------------------------------------------------------------------------------------------------------- */

/* Where both have one denominator the difference of ratios is the ratio of differences, whose interval another function knows; where the
 * denominators differ by a factor, the numerators' does. */
static void test_the_interval_of_a_difference(void **state)
{
    double a[N], b[N], den[N], twice[N], both[N], half[N];
    uint32_t group[N];
    rng r = { 17 };
    stats_interval difference, oracle;

    for (size_t i = 0; i < N; i++) {
        a[i] = rng_unit(&r);
        b[i] = rng_unit(&r);
        den[i] = 0.5 + rng_unit(&r);
        twice[i] = 2 * den[i];
        both[i] = a[i] - b[i];
        half[i] = a[i] - b[i] / 2;
        group[i] = (uint32_t)(i % 7);
    }
    for (int grouped = 0; grouped < 2; grouped++) {
        const uint32_t *g = grouped ? group : NULL;

        KIT_OK(stats_bootstrap_difference(a, den, b, den, N, g, 7, 2000, 3, &difference));
        KIT_OK(stats_bootstrap(both, den, N, g, 7, 2000, 3, &oracle));
        NEAR(difference.lo, oracle.lo, 1e-12);
        NEAR(difference.hi, oracle.hi, 1e-12);
        KIT_OK(stats_bootstrap_difference(a, den, b, twice, N, g, 7, 2000, 3, &difference));
        KIT_OK(stats_bootstrap(half, den, N, g, 7, 2000, 3, &oracle));
        NEAR(difference.lo, oracle.lo, 1e-12);
        NEAR(difference.hi, oracle.hi, 1e-12);
    }
    KIT_FAILS(INFERSCALE_E_INVALID, stats_bootstrap_difference(a, den, b, den, 0, NULL, 0, 100, 3, &difference));
    group[3] = 9;
    KIT_FAILS(INFERSCALE_E_INVALID, stats_bootstrap_difference(a, den, b, den, N, group, 7, 100, 3, &difference));
}

/* It holds the truth about as often as it says: 300 pairs of samples whose ratios are 1.2 and 1. Paired noise cancels. */
static void test_the_interval_covers(void **state)
{
    enum { SAMPLES = 300 };
    rng r = { 23 };
    int held = 0;
    double width = 0, width_a = 0;

    for (int s = 0; s < SAMPLES; s++) {
        double a[N], b[N], da[N], db[N];
        stats_interval i, own;

        for (size_t q = 0; q < N; q++) {
            const double hard = 0.2 + rng_unit(&r), off = rng_unit(&r);

            da[q] = hard * (0.9 + 0.2 * rng_unit(&r));
            db[q] = hard * (0.9 + 0.2 * rng_unit(&r));
            a[q] = 1.2 * hard * (0.5 + off) * (0.9 + 0.2 * rng_unit(&r));
            b[q] = hard * (0.5 + off) * (0.9 + 0.2 * rng_unit(&r));
        }
        KIT_OK(stats_bootstrap_difference(a, da, b, db, N, NULL, 0, 400, (uint64_t)s, &i));
        KIT_OK(stats_bootstrap(a, da, N, NULL, 0, 400, (uint64_t)s, &own));
        held += i.lo <= 0.2 && 0.2 <= i.hi;
        width += i.hi - i.lo;
        width_a += own.hi - own.lo;
    }
    assert_in_range(held, 265, 297); /* 95% would be 285; percentile intervals of 40 pairs fall a little short */
    assert_true(width < 0.6 * width_a);
}

/* ---- Anything ------------------------------------------------------------------------------------------------------------ */

static json_t *anything(rng *r)
{
    switch (rng_below(r, 8)) {
    case 0: return json_null();
    case 1: return json_integer((json_int_t)rng_next(r));
    case 2: return json_real(rng_unit(r) * 1e300);
    case 3: return json_array();
    case 4: return json_object();
    case 5: return json_string("conv");
    case 6: return json_true();
    default: return json_pack("[i,s]", 1, "x");
    }
}

/* Replaces something at random, deep or not. */
static void spoil(json_t *o, rng *r)
{
    const size_t n = json_is_array(o) ? json_array_size(o) : json_object_size(o);
    size_t at = n ? rng_below(r, n) : 0;
    const char *key = NULL;
    void *it;
    json_t *inner;

    if (!n) return;
    if (json_is_array(o)) {
        inner = json_array_get(o, at);
    } else {
        for (it = json_object_iter(o); at--; it = json_object_iter_next(o, it)) continue;
        key = json_object_iter_key(it);
        inner = json_object_iter_value(it);
    }
    if ((json_is_array(inner) || json_is_object(inner)) && rng_below(r, 4)) spoil(inner, r);
    else if (key) json_object_set_new(o, key, anything(r));
    else if (rng_below(r, 3) == 0) json_array_remove(o, at);
    else json_array_set_new(o, at, anything(r));
}

static void test_reports_that_are_anything(void **state)
{
    const uint64_t seed = scratch_seed("reports");
    rng r = { seed };
    int ok = 0;

    for (int i = 0; i < 400; i++) {
        json_t *a = report(6, 2, 1), *b = report(6, 2, 2);
        compare *c = NULL;
        is_status st;

        for (size_t n = rng_below(&r, 4); n-- > 0;) spoil(rng_below(&r, 2) ? a : b, &r);
        st = compare_reports(a, b, rng_below(&r, 2), 1, &c);
        assert_true((st == INFERSCALE_OK) == (c != NULL));
        assert_true(st == INFERSCALE_OK || st == INFERSCALE_E_PARSE || st == INFERSCALE_E_INVALID);
        ok += st == INFERSCALE_OK;
        compare_free(c);
        json_decref(a);
        json_decref(b);
    }
    assert_true(ok > 40 && ok < 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_report_against_itself),
        cmocka_unit_test(test_questions_pair_by_identity),
        cmocka_unit_test(test_a_missing_question_is_said),
        cmocka_unit_test(test_other_runs_are_refused),
        cmocka_unit_test(test_what_is_no_report_is_refused),
        cmocka_unit_test(test_a_yardstick_near_the_floor_is_void),
        cmocka_unit_test(test_the_interval_of_a_difference),
        cmocka_unit_test(test_the_interval_covers),
        cmocka_unit_test(test_reports_that_are_anything),
    };

    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
