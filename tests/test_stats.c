/* The evaluation's arithmetic against closed forms. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "eval/stats.h"

#define NEAR(a, b, tolerance)                                                                                                  \
    do {                                                                                                                       \
        double a_ = (a), b_ = (b);                                                                                             \
        if (!(fabs(a_ - b_) <= (tolerance)))                                                                                   \
            fail_msg("%s = %.17g, expected %.17g +- %g", #a, a_, b_, (double)(tolerance));                                    \
    } while (0)

/* ---- Random numbers ------------------------------------------------------------------------------------------------------ */

static void test_splitmix_sequence(void **state)
{
    static const uint64_t published[] = { 6457827717110365317ull, 3203168211198807973ull, 9817491932198370423ull,
                                          4593380528125082431ull, 16408922859458223821ull };
    rng r = { 1234567 };

    for (size_t i = 0; i < 5; i++) assert_true(rng_next(&r) == published[i]);
}

static void test_below_is_uniform(void **state)
{
    /* n just above 2^63: taking the remainder would make the lower half twice as likely as the upper. */
    uint64_t n = (1ull << 63) + (1ull << 62), low = 0;
    rng r = { 7 };

    for (int i = 0; i < 30000; i++) {
        uint64_t x = rng_below(&r, n);

        assert_true(x < n);
        low += x < n / 3;
    }
    NEAR((double)low / 30000, 1.0 / 3, 0.012); /* 4.4 standard errors; the remainder gives 1/2 */
    for (int i = 0; i < 100; i++) assert_true(rng_below(&r, 1) == 0);
}

static void test_permutations_are_uniform(void **state)
{
    int count[256] = { 0 };
    double chi = 0;
    rng r = { 42 };

    for (int i = 0; i < 24000; i++) {
        uint32_t p[4], seen = 0;

        rng_permutation(&r, p, 4);
        for (int j = 0; j < 4; j++) seen |= 1u << p[j];
        assert_int_equal(seen, 15);
        count[p[0] * 64 + p[1] * 16 + p[2] * 4 + p[3]]++;
    }
    for (int i = 0; i < 256; i++) chi += count[i] ? (count[i] - 1000.0) * (count[i] - 1000.0) / 1000 : 0;
    assert_true(chi < 49.7); /* 23 degrees of freedom: p = 0.001 */
    int kinds = 0;
    for (int i = 0; i < 256; i++) kinds += count[i] > 0;
    assert_int_equal(kinds, 24);
}

static void test_streams_differ_and_repeat(void **state)
{
    rng a = rng_stream(1, 2, 3), b = rng_stream(1, 2, 3), c = rng_stream(1, 3, 2), d = rng_stream(2, 2, 3);
    uint64_t x = rng_next(&a);

    assert_true(x == rng_next(&b));
    assert_true(x != rng_next(&c));
    assert_true(x != rng_next(&d));
}

/* ---- Order statistics ---------------------------------------------------------------------------------------------------- */

static void test_percentiles(void **state)
{
    double x[] = { 9, 1, 5, 3, 7 }, even[] = { 4, 1, 3, 2 };

    NEAR(stats_median(x, 5), 5, 0);
    NEAR(stats_median(even, 4), 2.5, 0);
    NEAR(stats_percentile(x, 5, 0), 1, 0);
    NEAR(stats_percentile(x, 5, 1), 9, 0);
    NEAR(stats_percentile(x, 5, 0.9), 8.2, 1e-12); /* position 3.6: 7 + 0.6 * 2 */
    NEAR(x[0], 9, 0);                              /* the input is left as it was */
    NEAR(stats_mean(x, 5), 5, 0);
    NEAR(stats_sd(x, 5), sqrt(10), 1e-12);
    assert_true(isnan(stats_median(x, 0)) && isnan(stats_mean(x, 0)) && isnan(stats_sd(x, 1)));
    NEAR(stats_median(x, 1), 9, 0);
}

/* ---- Bootstrap ----------------------------------------------------------------------------------------------------------- */

enum { N = 400 };

static void normal_sample(uint64_t seed, double mean, double sd, double *x, size_t n)
{
    rng r = { seed };

    for (size_t i = 0; i < n; i++) {
        double u = 1 - rng_unit(&r), v = rng_unit(&r);

        x[i] = mean + sd * sqrt(-2 * log(u)) * cos(2 * M_PI * v);
    }
}

static void test_bootstrap_mean_is_the_normal_interval(void **state)
{
    double x[N], mean, half;
    stats_interval i, again, other;

    normal_sample(11, 5, 2, x, N);
    mean = stats_mean(x, N);
    half = 1.959964 * stats_sd(x, N) / sqrt(N);
    assert_int_equal(stats_bootstrap(x, NULL, N, NULL, 0, STATS_RESAMPLES, 1, &i), INFERSCALE_OK);
    NEAR(i.lo, mean - half, 0.04 * half);
    NEAR(i.hi, mean + half, 0.04 * half);
    assert_int_equal(stats_bootstrap(x, NULL, N, NULL, 0, STATS_RESAMPLES, 1, &again), INFERSCALE_OK);
    assert_memory_equal(&i, &again, sizeof i);
    assert_int_equal(stats_bootstrap(x, NULL, N, NULL, 0, STATS_RESAMPLES, 2, &other), INFERSCALE_OK);
    assert_true(memcmp(&i, &other, sizeof i) != 0);
}

static void test_bootstrap_resamples_pairs_together(void **state)
{
    double num[N], den[N], half, mean_den, residual[N];
    stats_interval i;

    normal_sample(3, 4, 1, den, N);
    for (size_t j = 0; j < N; j++) num[j] = 2 * den[j];
    assert_int_equal(stats_bootstrap(num, den, N, NULL, 0, 2000, 1, &i), INFERSCALE_OK);
    NEAR(i.lo, 2, 1e-12); /* apart, the ratio would spread by sqrt(2) * 0.25 / 20 */
    NEAR(i.hi, 2, 1e-12);

    /* With noise: the delta method's interval of a ratio of means. */
    normal_sample(4, 0, 1, residual, N);
    for (size_t j = 0; j < N; j++) num[j] = 2 * den[j] + residual[j];
    mean_den = stats_mean(den, N);
    double ratio = stats_mean(num, N) / mean_den;
    for (size_t j = 0; j < N; j++) residual[j] = num[j] - ratio * den[j];
    half = 1.959964 * stats_sd(residual, N) / sqrt(N) / mean_den;
    assert_int_equal(stats_bootstrap(num, den, N, NULL, 0, STATS_RESAMPLES, 1, &i), INFERSCALE_OK);
    NEAR(i.lo, ratio - half, 0.05 * half);
    NEAR(i.hi, ratio + half, 0.05 * half);
}

static void test_bootstrap_of_groups_is_wider(void **state)
{
    double x[N];
    uint32_t group[N];
    stats_interval apart, grouped;

    /* Each value four times over: only N / 4 independent ones, so the right interval is twice the naive one. */
    normal_sample(8, 0, 1, x, N / 4);
    for (size_t i = 0; i < N; i++) group[i] = (uint32_t)(i % (N / 4));
    for (size_t i = N; i-- > 0;) x[i] = x[i % (N / 4)];
    assert_int_equal(stats_bootstrap(x, NULL, N, NULL, 0, STATS_RESAMPLES, 5, &apart), INFERSCALE_OK);
    assert_int_equal(stats_bootstrap(x, NULL, N, group, N / 4, STATS_RESAMPLES, 5, &grouped), INFERSCALE_OK);
    NEAR((grouped.hi - grouped.lo) / (apart.hi - apart.lo), 2, 0.1);
}

static void test_bootstrap_refuses(void **state)
{
    double x[2] = { 1, 2 };
    uint32_t group[2] = { 0, 9 };
    stats_interval i;

    assert_int_equal(stats_bootstrap(x, NULL, 0, NULL, 0, 100, 1, &i), INFERSCALE_E_INVALID);
    assert_int_equal(stats_bootstrap(x, NULL, 2, group, 2, 100, 1, &i), INFERSCALE_E_INVALID);
    assert_true(isnan(i.lo));
    is_mem_fail_at(1);
    assert_int_equal(stats_bootstrap(x, NULL, 2, NULL, 0, 100, 1, &i), INFERSCALE_E_NOMEM);
    is_mem_fail_at(2);
    assert_int_equal(stats_bootstrap(x, NULL, 2, NULL, 0, 100, 1, &i), INFERSCALE_E_NOMEM);
    is_mem_fail_at(0);
}

static void test_median_ratio(void **state)
{
    static const double over[] = { 10, 12, 8, 30, 10 }, under[] = { 2, 2, 2, 2, 4 };
    stats_ratio r, again;

    assert_int_equal(stats_median_ratio(over, under, 5, 7, &r), INFERSCALE_OK);
    assert_true(r.is == 5);
    assert_true(r.in.lo < 5 && r.in.lo >= 2 && r.in.hi > 5 && r.in.hi <= 15);
    assert_int_equal(stats_median_ratio(over, under, 5, 7, &again), INFERSCALE_OK);
    assert_memory_equal(&r, &again, sizeof r);
    assert_int_equal(stats_median_ratio(over, under, 1, 7, &r), INFERSCALE_OK); /* one round: nothing to resample */
    assert_true(r.is == 5 && r.in.lo == 5 && r.in.hi == 5);
    is_mem_fail_at(1);
    assert_int_equal(stats_median_ratio(over, under, 5, 7, &r), INFERSCALE_E_NOMEM);
    is_mem_fail_at(0);
}

/* ---- Student's t --------------------------------------------------------------------------------------------------------- */

static void test_t_distribution(void **state)
{
    for (double t = -30; t <= 30; t += 0.37) {
        NEAR(stats_t_cdf(t, 1), 0.5 + atan(t) / M_PI, 1e-13);
        NEAR(stats_t_cdf(t, 2), 0.5 + t / (2 * sqrt(2 + t * t)), 1e-13);
        NEAR(stats_t_cdf(t, 1e8), 0.5 * erfc(-t / sqrt(2)), 1e-6);
        NEAR(stats_t_cdf(t, 9) + stats_t_cdf(-t, 9), 1, 1e-13);
    }
    NEAR(stats_t_cdf(2.228138852, 10), 0.975, 1e-9); /* tables */
    NEAR(stats_t_cdf(1.697260887, 30), 0.95, 1e-9);
    NEAR(stats_t_cdf(0, 5), 0.5, 1e-15);
}

static void test_tost(void **state)
{
    double d[3] = { 0.1, 0.2, 0.6 }, same[2] = { 0.5, 0.5 }, mean = 0.3, error = sqrt(0.07 / 3);
    stats_tost_result r;

    /* df = 2 has a closed form. */
    double t1 = (mean + 1) / error, t2 = (1 - mean) / error;
    assert_int_equal(stats_tost(d, 3, 1, &r), INFERSCALE_OK);
    NEAR(r.mean, mean, 1e-15);
    NEAR(r.p_no_worse, 0.5 - t1 / (2 * sqrt(2 + t1 * t1)), 1e-12);
    NEAR(r.p, 0.5 - t2 / (2 * sqrt(2 + t2 * t2)), 1e-12);
    assert_int_equal(stats_tost(d, 3, 0.2, &r), INFERSCALE_OK);
    assert_true(r.p > 0.5 && r.p_no_worse < 0.5); /* the mean is outside above: not equivalent, surely no worse */
    assert_int_equal(stats_tost(same, 2, 1, &r), INFERSCALE_OK);
    NEAR(r.p, 0, 0);
    assert_int_equal(stats_tost(same, 2, 0.4, &r), INFERSCALE_OK);
    NEAR(r.p, 1, 0);
    assert_int_equal(stats_tost(d, 1, 1, &r), INFERSCALE_E_INVALID);
    assert_int_equal(stats_tost(d, 3, 0, &r), INFERSCALE_E_INVALID);
}

/* ---- Distributions ------------------------------------------------------------------------------------------------------- */

enum { VOCAB = 49152 };

static void test_log_softmax(void **state)
{
    float logits[4] = { 0, (float)log(2), (float)log(3), (float)log(4) }, shifted[4], far[3] = { 3e4f, -3e4f, 3e4f };
    double a[4], b[4], sum = 0;

    stats_log_softmax(logits, 4, a);
    for (int i = 0; i < 4; i++) NEAR(a[i], log((i + 1) / 10.0), 1e-6);
    for (int i = 0; i < 4; i++) sum += exp(a[i]);
    NEAR(sum, 1, 1e-14);
    for (int i = 0; i < 4; i++) shifted[i] = logits[i] + 64;
    stats_log_softmax(shifted, 4, b);
    for (int i = 0; i < 4; i++) NEAR(a[i], b[i], 1e-5);
    stats_log_softmax(far, 3, a);
    NEAR(a[0], -log(2), 1e-15);
    NEAR(a[1], -6e4 - log(2), 1e-9);
}

static void test_kl_closed_forms(void **state)
{
    static float a[VOCAB], b[VOCAB];
    static double la[VOCAB], lb[VOCAB];
    double p = 0.7, q = 0.2, z = 1.5;
    size_t m = 1000;

    /* Two outcomes. */
    la[0] = log(p), la[1] = log(1 - p), lb[0] = log(q), lb[1] = log(1 - q);
    NEAR(stats_kl(la, lb, 2), p * log(p / q) + (1 - p) * log((1 - p) / (1 - q)), 1e-15);
    assert_true(fabs(stats_kl(la, lb, 2) - stats_kl(lb, la, 2)) > 0.01); /* it has a direction */

    /* The whole vocabulary: m tokens raised by z against the uniform distribution. log b = -log V, so KL(B||A) =
     * log((m e^z + V - m) / V) - m z / V. */
    for (size_t i = 0; i < VOCAB; i++) a[i] = i % (VOCAB / m) == 0 && i / (VOCAB / m) < m ? (float)z : 0, b[i] = 0;
    stats_log_softmax(a, VOCAB, la);
    stats_log_softmax(b, VOCAB, lb);
    NEAR(stats_kl(lb, la, VOCAB), log((m * exp(z) + VOCAB - m) / VOCAB) - m * z / VOCAB, 1e-12);
    NEAR(stats_kl(la, la, VOCAB), 0, 0);
}

static void test_kl_edges(void **state)
{
    float a[3] = { 0, 0, -INFINITY }, b[3] = { 0, 0, 0 };
    double la[3], lb[3], same[3];

    stats_log_softmax(a, 3, la);
    stats_log_softmax(b, 3, lb);
    NEAR(stats_kl(la, lb, 3), log(1.5), 1e-15); /* impossible under A: adds nothing */
    assert_true(isinf(stats_kl(lb, la, 3)));    /* possible under A, impossible under B */
    memcpy(same, la, sizeof same);
    NEAR(stats_kl(la, same, 3), 0, 0);
    same[0] = NAN;
    /* A broken run does not look like a perfect one. */
    assert_true(isnan(stats_kl(same, la, 3)) && isnan(stats_kl(la, same, 3)));
}

static void test_argmax(void **state)
{
    float x[5] = { -3, 2, 7, 7, 1 };

    assert_int_equal(stats_argmax(x, 5), 2);
    assert_int_equal(stats_argmax(x, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splitmix_sequence),
        cmocka_unit_test(test_below_is_uniform),
        cmocka_unit_test(test_permutations_are_uniform),
        cmocka_unit_test(test_streams_differ_and_repeat),
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_bootstrap_mean_is_the_normal_interval),
        cmocka_unit_test(test_bootstrap_resamples_pairs_together),
        cmocka_unit_test(test_bootstrap_of_groups_is_wider),
        cmocka_unit_test(test_bootstrap_refuses),
        cmocka_unit_test(test_median_ratio),
        cmocka_unit_test(test_t_distribution),
        cmocka_unit_test(test_tost),
        cmocka_unit_test(test_log_softmax),
        cmocka_unit_test(test_kl_closed_forms),
        cmocka_unit_test(test_kl_edges),
        cmocka_unit_test(test_argmax),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
