/* What must hold of the score that users see (recall/score.h): above 0, at most 1, in the order
 * of the ranking, the same for the first hits however many are asked for; it rises with the
 * cosine and with the words, and falls with what the question's words alone explain of the cosine;
 * it never changes the ranking. And of what it is computed from: the calibration of an embedder,
 * the share of the question's words, the grounds. On the real MiniLM: tests/llama/test_score.c; at
 * every entrance: tests/test_score_entrances.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "recall/lexical.h"
#include "recall/score.h"
#include "support/recall_world.h"

static const is_calibration wide = { 0.4, 0.7 }, blind = { 1.1, 1.2 };

static double draw(unsigned long long *seed, double from, double to)
{
    return from + (to - from) * scratch_below(seed, 1000001) / 1e6;
}

/* ---- One fact -------------------------------------------------------------------------------- */

static void rises_with_meaning_and_words(void **state)
{
    unsigned long long seed = scratch_seed("one score");

    (void)state;
    for (int i = 0; i < 20000; i++) {
        const double low = draw(&seed, -1, 1.2);
        const is_calibration c = { low, low + draw(&seed, 0.02, 1) };
        const double a = draw(&seed, -1, 1), b = draw(&seed, -1, 1);
        const double g = draw(&seed, -1, 1), lower = draw(&seed, -1, g);
        const double share = draw(&seed, 0, 1), more = draw(&seed, share, 1);
        const double score = is_score_of(a, g, share, &c), other = is_score_of(b, g, share, &c);

        assert_true(score >= 0.01 && score <= 1);
        assert_true(a <= b ? score <= other : score >= other);
        assert_true(is_score_of(a, g, more, &c) >= score);
        assert_true(is_score_of(a, lower, share, &c) >= score);
        assert_true(is_score_of(NAN, g, more, &c) >= is_score_of(NAN, g, share, &c));
        assert_true(is_score_of(NAN, g, share, &c) >= 0.01 && is_score_of(NAN, g, share, &c) <= 1);
        /* Nobody can read it. */
        assert_true(is_score_of(a, g, share, NULL) == is_score_of(NAN, g, share, &c));
    }
    /* One cosine: it answers where nothing else is near, and not where all of the others are. */
    assert_true(is_score_of(wide.high, -0.2, 0, &wide) > 0.8);
    assert_true(is_score_of(wide.low, wide.low, 0, &wide) < 0.3);
    assert_true(is_score_of(wide.high, wide.high, 0, &wide) < 0.3);
    /* No word helps what is far from the question; a whole question is more than half of one. */
    assert_true(is_score_of(-0.2, -0.2, 1, &wide) < 0.05);
    assert_true(is_score_of(wide.low, -0.2, 1, &wide) > 0.8);
    assert_true(is_score_of(wide.low, 0.2, 0.5, &wide) < 0.3);
    /* An embedder by which nothing can be near says nothing. */
    assert_true(is_score_of(1, 1, 0.7, &blind) == is_score_of(NAN, NAN, 0.7, NULL));
    assert_true(is_score_of(NAN, NAN, 0.4, NULL) < 0.3 && is_score_of(NAN, NAN, 1, NULL) > 0.75);
}

/* ---- Grounds --------------------------------------------------------------------------------- */

enum { CROWD = 64, WORDS_ASKED = 5 };

/* By the definition, document by document. */
static double ground_of(const float *dense, const uint32_t *companies, size_t n, size_t d)
{
    const double far = 0.4 - 2 * 0.3, named = 0.4 - 0.86 * 0.3;
    double group = 0, company = 0, wider;
    size_t in_group = 0, in_company = 0;

    for (size_t i = 0; i < n; i++) {
        if (i == d || isnan(dense[i]) || companies[i] % 2 != companies[d] % 2) continue;
        group += (double)dense[i], in_group++;
        if (companies[i] == companies[d]) company += (double)dense[i], in_company++;
    }
    wider = (group + 2 * (companies[d] < 2 ? far : named)) / ((double)in_group + 2);
    if (companies[d] < 2) return wider;
    return (company + 2 * wider) / ((double)in_company + 2);
}

static void grounds_are_those_of_the_others(void **state)
{
    unsigned long long seed = scratch_seed("grounds");
    float dense[CROWD];
    uint32_t companies[CROWD];
    double grounds[CROWD];

    (void)state;
    OK(is_score_grounds(NULL, NULL, 0, &wide, grounds));
    for (int round = 0; round < 500; round++) {
        const size_t n = 1 + scratch_below(&seed, CROWD);

        for (size_t i = 0; i < n; i++) {
            dense[i] = scratch_below(&seed, 8) ? (float)draw(&seed, -1, 1) : NAN;
            companies[i] = (uint32_t)scratch_below(&seed, 2 * WORDS_ASKED);
        }
        OK(is_score_grounds(dense, companies, n, &wide, grounds));
        for (size_t i = 0; i < n; i++) {
            const double want = ground_of(dense, companies, n, i);

            assert_true(isnan(dense[i]) ? isnan(grounds[i]) : fabs(grounds[i] - want) < 1e-6);
        }
    }
}

/* ---- Many ------------------------------------------------------------------------------------ */

static void falls_in_order_and_keeps_what_it_can(void **state)
{
    unsigned long long seed = scratch_seed("score order");
    double s[200], before[200];

    (void)state;
    OK(is_score_in_order(s, 0));
    for (int round = 0; round < 2000; round++) {
        const size_t n = 1 + scratch_below(&seed, 200);
        double sum = 0, most = 0;
        bool fell = true;

        for (size_t i = 0; i < n; i++) {
            s[i] = before[i] = draw(&seed, 0.01, 1);
            if (round % 4 == 0 && i) s[i] = before[i] = s[i - 1] * draw(&seed, 0.9, 1.001);
            fell = fell && (i == 0 || s[i] <= s[i - 1]);
            sum += s[i];
            most = fmax(most, s[i]);
        }
        OK(is_score_in_order(s, n));
        for (size_t i = 0; i < n; i++) {
            assert_true(i == 0 || s[i] <= s[i - 1]);
            if (fell) assert_true(s[i] == before[i]);
            sum -= s[i];
        }
        assert_true(fabs(sum) < 1e-9);                     /* nothing is added on the whole */
        assert_true(s[0] >= before[0] && s[0] <= most); /* the best hit is no worse than it was alone */
    }
}

/* The ranking is that of the search without a calibration; the scores are what was promised. */
static void check_hits(const is_hit *hits, size_t n, const is_hit *plain, size_t n_plain)
{
    assert_int_equal(n, n_plain);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(hits[i].id, plain[i].id);
        assert_true(hits[i].fused == plain[i].fused && hits[i].dense == plain[i].dense);
        assert_true(hits[i].score >= 0.01 && hits[i].score <= 1);
        assert_true(i == 0 || hits[i].score <= hits[i - 1].score);
    }
}

static void never_changes_the_ranking(void **state)
{
    static const uint32_t ks[] = { 1, 3, 10, 99, 150, 1000 };
    bank_kit *k = *state;
    world *w = rw_make(k, ITEMS, "score ranking");
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    for (int round = 0; round < 40; round++)
        for (int method = 0; method < 3; method++) {
            inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
            is_hit *hits, *plain, *some;
            size_t n, n_plain, n_some;
            ask a;

            rw_random_ask(w, &a);
            o.k = ks[scratch_below(&w->seed, 6)];
            o.method = method;
            o.kinds = 3;
            is_query q = { .text = a.text, .vec = a.vec, .dim = DIM, .fingerprint = kit_model,
                           .options = &o };
            OK(is_recall_query(r, &k->pa, &q, &plain, &n_plain, NULL));
            q.calibration = &wide;
            OK(is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
            check_hits(hits, n, plain, n_plain);
            if (o.k <= 99) { /* the candidates are the same: so are the scores of the first */
                o.k = 1 + scratch_below(&w->seed, o.k);
                OK(is_recall_query(r, &k->pa, &q, &some, &n_some, NULL));
                for (size_t i = 0; i < n_some; i++) assert_true(some[i].score == hits[i].score);
                is_free(some);
            }
            o.k = (uint32_t)(n ? n : 1);
            o.has_threshold = 1;
            o.threshold = n ? hits[n / 2].score : 0.5;
            OK(is_recall_query(r, &k->pa, &q, &some, &n_some, NULL));
            if (n && n < 100) assert_true(n_some > n / 2); /* a score that was shown keeps its fact */
            for (size_t i = 0; i < n_some; i++) assert_true(some[i].score >= o.threshold);
            is_free(some);
            is_free(hits);
            is_free(plain);
        }
    is_recall_free(r);
    is_free(w);
}

/* One that is ranked before a better one is not pooled with it if it is pinned. */
static void pinned_facts_are_not_pooled(void **state)
{
    const float dense[2] = { 0.45f, 0.7f };
    const double shares[2] = { 0 }, grounds[2] = { 0, 0 };
    const is_score_parts parts = { dense, grounds, shares };
    const double low = is_score_of((double)dense[0], 0, 0, &wide),
                 high = is_score_of((double)dense[1], 0, 0, &wide);

    (void)state;
    for (int pinned = 0; pinned < 2; pinned++) {
        is_ranked r[2] = { { .item = 0, .pinned = pinned }, { .item = 1 } };

        OK(is_score_ranked(r, 2, &parts, &wide));
        assert_true(fabs(r[0].shown - (pinned ? low : (low + high) / 2)) < 1e-4);
        assert_true(fabs(r[1].shown - (pinned ? high : (low + high) / 2)) < 1e-4);
    }
}

/* Pinned facts stand first, with scores of their own; they change nobody else's. */
static void pinned_facts_keep_their_own(void **state)
{
    bank_kit *k = *state;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = { .text = "lake boat", .options = &o };
    is_hit *before, *after;
    size_t n_before, n_after;
    int64_t other;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    kit_fact(k, &k->pa, &k->anna, "a boat on the lake");
    kit_fact(k, &k->pa, &k->anna, "a house by the lake");
    other = kit_fact(k, &k->pa, &k->anna, "the dentist opens at nine");
    OK(is_recall_query(r, &k->pa, &q, &before, &n_before, NULL));
    assert_int_equal(n_before, 2);
    OK(is_bank_pin(k->bank, &k->pa, other, true));
    q.pins = true;
    o.has_threshold = 1;
    o.threshold = 0.2;
    OK(is_recall_query(r, &k->pa, &q, &after, &n_after, NULL));
    assert_true(n_after >= 2 && after[0].id == other && after[0].score >= 0.01 && after[0].score < 0.1);
    assert_true(after[1].id == before[0].id && after[1].score == before[0].score);
    is_free(before);
    is_free(after);
    is_recall_free(r);
}

/* ---- Words ----------------------------------------------------------------------------------- */

static double share_of(const is_lexical *x, const char *query, size_t doc)
{
    double scores[8], shares[8];

    OK(is_lexical_score(x, query, scores, shares, NULL));
    for (size_t d = 0; d < is_lexical_docs(x); d++) {
        assert_true(shares[d] >= 0 && shares[d] <= 1);
        assert_true((shares[d] > 0) == (scores[d] > 0));
    }
    return shares[doc];
}

static void shares_are_of_what_was_asked(void **state)
{
    static const char *const texts[] = { "Anna keeps bees", "Anna keeps a boat", "Anna sings", "boat" };
    is_lexical *x;

    (void)state;
    OK(is_lexical_new(&x));
    for (size_t i = 0; i < 4; i++) OK(is_lexical_add(x, i == 3, &texts[i], 1));
    assert_true(share_of(x, "bees", 0) == 1);
    assert_true(share_of(x, "bees bees, the bees", 0) == 1); /* distinct words, and stop words are none */
    assert_true(share_of(x, "bees zeppelin", 0) > 0.4 && share_of(x, "bees zeppelin", 0) < 0.5);
    assert_true(share_of(x, "zeppelin quark", 0) == 0);
    assert_true(share_of(x, "Anna bees", 0) == 1 && share_of(x, "Anna bees", 1) < 0.5);
    assert_true(share_of(x, "Anna bees", 1) < share_of(x, "Anna bees", 0) / 2); /* the rarer counts more */
    assert_true(share_of(x, "boat", 3) == 1);
    assert_true(share_of(x, "the of", 0) == 0);
    is_lexical_free(x);
}

/* The name of the only person whom a memory is about counts next to nothing in a question, and the
 * less, the more facts there are; where there is one fact, every word of it counts. */
static void what_all_facts_say_tells_nothing(void **state)
{
    double before = 1;

    (void)state;
    for (size_t n = 1; n <= 64; n *= 4) {
        is_lexical *x;
        double *scores = is_malloc(n * sizeof *scores), *shares = is_malloc(n * sizeof *shares);

        OK(is_lexical_new(&x));
        for (size_t i = 0; i < n; i++) {
            const char *text = i ? "Tom sings" : "Tom keeps bees";

            OK(is_lexical_add(x, 0, &text, 1));
        }
        OK(is_lexical_score(x, "Is Tom married?", scores, shares, NULL));
        assert_true(shares[0] > 0 && shares[0] < before && scores[0] > 0);
        assert_true(n == 1 ? shares[0] > 0.3 : n < 16 || shares[0] < 0.05);
        before = shares[0];
        OK(is_lexical_score(x, "Does Tom keep bees?", scores, shares, NULL));
        assert_true(shares[0] == 1);
        is_free(scores);
        is_free(shares);
        is_lexical_free(x);
    }
}

/* Documents of one group are of one company if their commonest word of the question is the same. */
static void companies_share_their_most_common_word(void **state)
{
    static const char *const texts[] = { "Anna keeps bees", "Anna keeps a boat", "Anna sings",
                                         "a boat", "bees sting", "Bo snores", "bees" };
    double scores[7];
    uint32_t of[7];
    is_lexical *x;

    (void)state;
    OK(is_lexical_new(&x));
    for (size_t i = 0; i < 7; i++) OK(is_lexical_add(x, i == 6, &texts[i], 1));
    OK(is_lexical_score(x, "Where are Anna, the boat, the zeppelin, the bees?", scores, NULL, of));
    assert_true(of[0] == of[1] && of[1] == of[2]);
    assert_true(of[3] != of[0] && of[4] != of[0] && of[3] != of[4]);
    assert_true(of[5] == 0 && of[6] > 1 && of[6] % 2 == 1 && of[6] / 2 == of[4] / 2);
    is_lexical_free(x);
}

/* ---- Calibration ----------------------------------------------------------------------------- */

enum { N = IS_CALIBRATION_PAIRS };

/* Every question is near its fact by `near`, and nothing else is near anything. */
static float *vectors(double near, bool constant)
{
    float *v = is_calloc((size_t)IS_CALIBRATION_TEXTS * 2 * N, sizeof *v);

    for (size_t i = 0; i < N; i++) {
        float *question = v + 2 * i * 2 * N, *fact = question + 2 * N;

        question[constant ? 0 : i] = 1;
        fact[constant ? 0 : i] = constant ? 1 : (float)near;
        if (!constant) fact[N + i] = (float)sqrt(1 - near * near);
    }
    return v;
}

static void calibrations_tell_near_from_far(void **state)
{
    float *v = vectors(0.8, false);
    is_calibration c = is_calibration_of(v, 2 * N);

    (void)state;
    assert_true(fabs(c.low) < 1e-6 && fabs(c.high - 0.8) < 1e-6 && is_calibration_valid(&c));
    is_free(v);
    v = vectors(0, true); /* an embedder that says the same of everything: nothing is near */
    c = is_calibration_of(v, 2 * N);
    assert_true(is_calibration_valid(&c) && is_score_of(1, 1, 0, &c) < 0.3);
    is_free(v);
    assert_false(is_calibration_valid(&(is_calibration){ NAN, 1 }));
    assert_false(is_calibration_valid(&(is_calibration){ 0.5, 0.5 }));
    for (size_t i = 0; i < IS_CALIBRATION_TEXTS; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(is_calibration_texts[i], is_calibration_texts[j]);
}

static void calibrations_are_kept_by_fingerprint(void **state)
{
    bank_kit *k = *state;
    uint8_t other[IS_HASH_BYTES] = { 7 };
    double low, high;

    FAILS(E_NOTFOUND, is_bank_get_calibration(k->bank, kit_model, &low, &high));
    FAILS(E_INVALID, is_bank_put_calibration(k->bank, kit_model, 0.5, 0.5));
    FAILS(E_INVALID, is_bank_put_calibration(k->bank, kit_model, NAN, 0.5));
    OK(is_bank_put_calibration(k->bank, kit_model, 0.25, 0.5));
    OK(is_bank_put_calibration(k->bank, other, -0.5, 2));
    OK(is_bank_put_calibration(k->bank, kit_model, 0.125, 0.75)); /* replaced */
    bank_kit_reopen(k, false);
    OK(is_bank_get_calibration(k->bank, kit_model, &low, &high));
    assert_true(low == 0.125 && high == 0.75);
    OK(is_bank_get_calibration(k->bank, other, &low, &high));
    assert_true(low == -0.5 && high == 2);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bank_kit_setup, bank_kit_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rises_with_meaning_and_words),
        cmocka_unit_test(grounds_are_those_of_the_others),
        cmocka_unit_test(falls_in_order_and_keeps_what_it_can),
        TEST(never_changes_the_ranking),
        cmocka_unit_test(pinned_facts_are_not_pooled),
        TEST(pinned_facts_keep_their_own),
        cmocka_unit_test(shares_are_of_what_was_asked),
        cmocka_unit_test(what_all_facts_say_tells_nothing),
        cmocka_unit_test(companies_share_their_most_common_word),
        cmocka_unit_test(calibrations_tell_near_from_far),
        TEST(calibrations_are_kept_by_fingerprint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
