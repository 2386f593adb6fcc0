/* Two arms over the same questions: exact small cases against numbers made by hand, and the rule's
 * error rates by simulation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "eval/paired.h"
#include "support/scratch.h"

#define NEAR(a, b, tolerance)                                                                      \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(fabs(a_ - b_) <= (tolerance)))                                                       \
            fail_msg("%s = %.17g, expected %.17g +- %g", #a, a_, b_, (double)(tolerance));         \
    } while (0)

static paired_counts counts(uint64_t n, uint64_t lost, uint64_t won)
{
    return (paired_counts){ n, lost, won };
}

/* Twice the smaller tail of so many throws of a coin. */
static void mcnemar_by_hand(void **state)
{
    static const struct {
        uint64_t lost, won;
        double p;
    } known[] = {
        { 0, 0, 1 }, { 1, 0, 1 },          { 0, 5, 2.0 / 32 },      { 5, 0, 2.0 / 32 },
        { 3, 3, 1 }, { 1, 8, 20.0 / 512 }, { 2, 10, 158.0 / 4096 }, { 10, 2, 158.0 / 4096 },
        { 4, 5, 1 },
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        paired_counts c = counts(100, known[i].lost, known[i].won);

        NEAR(paired_mcnemar(&c), known[i].p, 1e-12);
    }
    paired_counts many =
        counts(8000, 500, 400); /* normal, with continuity correction: z = 99 / 30 */
    NEAR(paired_mcnemar(&many), erfc(3.3 / sqrt(2)), 2e-5);
}

static void score_by_hand(void **state)
{
    paired_counts c = counts(100, 4, 9), none = counts(500, 0, 0), small = counts(10, 1, 0);

    NEAR(paired_z(&c, 0), 5 / sqrt(13), 1e-12); /* at 0 it is McNemar's */
    /* Nothing lost or won: if the difference were -0.01, its share of lost would be 0.01 and
     * z = 0.01 n / sqrt(n (0.02 - 0.0101)). */
    NEAR(paired_z(&none, -0.01), 5 / sqrt(500 * 0.0099), 1e-9);
    NEAR(paired_z(&none, 0), 0, 1e-12);
    /* n = 10, lost 1, delta = -0.2: 20 q^2 - 5.2 q + 0.24 = 0, q = (5.2 + sqrt(7.84)) / 40 = 0.2,
     * where nothing is won; variance 10 (0.4 - 0.24) = 1.6; above = -1 + 2 = 1. */
    NEAR(paired_z(&small, -0.2), 1 / sqrt(1.6), 1e-9);
    for (double d = -0.9; d < 0.95; d += 0.1) { /* falls, and turns with the arms */
        paired_counts turned = counts(100, 9, 4);

        assert_true(paired_z(&c, d) > paired_z(&c, d + 0.05));
        NEAR(paired_z(&c, d), -paired_z(&turned, -d), 1e-9);
    }
}

static void intervals_hold_what_is_not_rejected(void **state)
{
    const double z = 1.959964;
    paired_counts c = counts(200, 12, 7), empty = counts(0, 0, 0);
    stats_interval i = paired_interval(&c, z);

    NEAR(paired_z(&c, i.lo), z, 1e-6);
    NEAR(paired_z(&c, i.hi), -z, 1e-6);
    assert_true(i.lo < paired_difference(&c) && paired_difference(&c) < i.hi);
    assert_true(isnan(paired_interval(&empty, z).lo) && isnan(paired_difference(&empty)));
}

static void verdicts(void **state)
{
    const double bound = paired_fixed.bound;
    const struct {
        paired_counts c;
        paired_verdict want;
    } known[] = {
        { counts(8000, 200, 200), PAIRED_EQUAL }, { counts(8000, 0, 0), PAIRED_EQUAL },
        { counts(8000, 500, 300), PAIRED_WORSE }, { counts(8000, 300, 500), PAIRED_NO_WORSE },
        { counts(100, 3, 3), PAIRED_OPEN },       { counts(0, 0, 0), PAIRED_OPEN },
        { counts(8000, 280, 200), PAIRED_OPEN },  { counts(8000, 100, 180), PAIRED_NO_WORSE },
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_int_equal(paired_look(&known[i].c, 0.01, bound), known[i].want);
}

/* All tables of n questions, weighed by their probability: how often is "no worse" said where the
 * truth is worse by exactly the margin? Exact, for a margin that 40 questions can show. */
static void exact_error_of_one_look(void **state)
{
    const double p_lost = 0.3, p_won = 0.1, margin = 0.2, same = 1 - p_lost - p_won;
    const uint64_t n = 40;
    double said = 0, all = 0;

    for (uint64_t lost = 0; lost <= n; lost++)
        for (uint64_t won = 0; lost + won <= n; won++) {
            const uint64_t rest = n - lost - won;
            const double log_ways = lgamma((double)n + 1) - lgamma((double)lost + 1) -
                                    lgamma((double)won + 1) - lgamma((double)rest + 1);
            const double p = exp(log_ways + (double)lost * log(p_lost) + (double)won * log(p_won) +
                                 (double)rest * log(same));
            paired_counts c = counts(n, lost, won);

            all += p;
            if (paired_z(&c, -margin) > paired_fixed.bound) said += p;
        }
    NEAR(all, 1, 1e-9);
    assert_true(said > 0.03 && said < 0.06);
}

/* ---- The rule -------------------------------------------------------------------------------- */

typedef struct said {
    double worse, no_worse, equal, open, questions;
} said;

/* Whole runs: how often each verdict is given, and how long a run is. */
static said simulate(uint64_t seed, double p_lost, double p_won, double margin, size_t runs)
{
    rng r = rng_stream(seed, 0x5e9, 0);
    said s = { 0 };

    for (size_t i = 0; i < runs; i++) {
        paired_counts c = { 0 };
        paired_verdict v = PAIRED_OPEN;

        for (size_t k = 0; k < paired_sequential.n_looks && v == PAIRED_OPEN; k++) {
            for (; c.n < paired_sequential.looks[k]; c.n++) {
                const double x = rng_unit(&r);

                c.lost += x < p_lost;
                c.won += x >= p_lost && x < p_lost + p_won;
            }
            v = paired_look(&c, margin, paired_sequential.bound);
        }
        s.worse += v == PAIRED_WORSE;
        s.no_worse += v == PAIRED_NO_WORSE || v == PAIRED_EQUAL;
        s.equal += v == PAIRED_EQUAL;
        s.open += v == PAIRED_OPEN;
        s.questions += (double)c.n;
    }
    s.worse /= (double)runs, s.no_worse /= (double)runs, s.equal /= (double)runs,
        s.open /= (double)runs;
    s.questions /= (double)runs;
    return s;
}

/* Where the truth is worse by exactly the margin, "no worse" and "worse" are both wrong at most one
 * time in twenty: over all looks. Three standard errors of 3,000 runs are 0.012. */
static void errors_over_all_looks(void **state)
{
    static const struct {
        double lost, won;
    } truths[] = { { 0.015, 0.005 }, { 0.04, 0.03 }, { 0.08, 0.07 }, { 0.155, 0.145 } };
    const unsigned long long seed = scratch_seed("errors_over_all_looks");

    for (size_t i = 0; i < sizeof truths / sizeof *truths; i++) {
        said s = simulate(seed + i, truths[i].lost, truths[i].won, 0.01, 3000);

        print_message("lost %.3f won %.3f: no worse %.3f, worse %.3f, open %.3f, %.0f questions\n",
                      truths[i].lost, truths[i].won, s.no_worse, s.worse, s.open, s.questions);
        assert_true(s.no_worse < 0.062);
        assert_true(s.worse < 0.062);
        assert_true(s.no_worse + s.worse > 0.02); /* and it does say something */
    }
}

/* Differences that are planted are found; arms that are equal are found to be. */
static void planted_differences_are_found(void **state)
{
    const unsigned long long seed = scratch_seed("planted_differences_are_found");
    const said loses4 = simulate(seed, 0.07, 0.03, 0.01, 500),
               same = simulate(seed + 1, 0.03, 0.03, 0.01, 500),
               wins2 = simulate(seed + 2, 0.03, 0.05, 0.01, 500);

    print_message("4 points lost: worse %.3f after %.0f; equal: no worse %.3f after %.0f; 2 points "
                  "won: %.3f after %.0f\n",
                  loses4.worse, loses4.questions, same.no_worse, same.questions, wins2.no_worse,
                  wins2.questions);
    assert_true(loses4.worse > 0.99 && loses4.questions < 3000);
    assert_true(same.no_worse > 0.85 && same.worse < 0.01);
    assert_true(wins2.no_worse > 0.99 && wins2.equal < 0.1);
}

/* The bound against what it is defined by: a Brownian motion seen at 1/16, 1/8, 1/4, 1/2 and 1. */
static void the_bound_is_of_its_looks(void **state)
{
    enum { RUNS = 200000 };
    const unsigned long long seed = scratch_seed("the_bound_is_of_its_looks");
    rng r = rng_stream(seed, 0xb0, 0);
    size_t passed = 0;

    for (size_t i = 0; i < RUNS; i++) {
        double x = 0, t = 0;
        bool over = false;

        for (size_t k = 0; k < paired_sequential.n_looks; k++) {
            const double now = (double)paired_sequential.looks[k] /
                               (double)paired_sequential.looks[PAIRED_LOOKS - 1];
            const double u =
                sqrt(-2 * log(1 - rng_unit(&r))) * cos(2 * 3.14159265358979 * rng_unit(&r));

            x += u * sqrt(now - t);
            t = now;
            over = over || x / sqrt(t) > paired_sequential.bound;
        }
        passed += over;
    }
    NEAR((double)passed / RUNS, paired_sequential.alpha, 0.0016); /* three standard errors */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mcnemar_by_hand),
        cmocka_unit_test(score_by_hand),
        cmocka_unit_test(intervals_hold_what_is_not_rejected),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(exact_error_of_one_look),
        cmocka_unit_test(errors_over_all_looks),
        cmocka_unit_test(planted_differences_are_found),
        cmocka_unit_test(the_bound_is_of_its_looks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
