/* stats.c - see stats.h. */
#include "eval/stats.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"

/* ---- Random numbers ------------------------------------------------------------------------------------------------------ */

uint64_t rng_next(rng *r)
{
    uint64_t z = (r->state += 0x9E3779B97F4A7C15ull);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

uint64_t rng_below(rng *r, uint64_t n)
{
    /* Values below 2^64 mod n are drawn again, so that what is left divides evenly. */
    uint64_t reject = n ? (0 - n) % n : 0, x;

    do x = rng_next(r);
    while (x < reject);
    return n ? x % n : 0;
}

double rng_unit(rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1.0p-53;
}

void rng_permutation(rng *r, uint32_t *perm, size_t n)
{
    for (size_t i = 0; i < n; i++) perm[i] = (uint32_t)i;
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)rng_below(r, i);
        uint32_t t = perm[i - 1];

        perm[i - 1] = perm[j];
        perm[j] = t;
    }
}

rng rng_stream(uint64_t seed, uint64_t a, uint64_t b)
{
    rng r = { seed };

    r.state = rng_next(&r) ^ a;
    r.state = rng_next(&r) ^ b;
    r.state = rng_next(&r);
    return r;
}

/* ---- Order statistics ---------------------------------------------------------------------------------------------------- */

double stats_mean(const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += x[i];
    return n ? sum / (double)n : NAN;
}

double stats_sd(const double *x, size_t n)
{
    double mean = stats_mean(x, n), sum = 0;

    for (size_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return n > 1 ? sqrt(sum / (double)(n - 1)) : NAN;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile_sorted(const double *x, size_t n, double p)
{
    double at = p * (double)(n - 1);
    size_t i = at > 0 ? (size_t)at : 0;

    if (i + 1 >= n) return x[n - 1];
    return x[i] + (at - (double)i) * (x[i + 1] - x[i]);
}

double stats_percentile(const double *x, size_t n, double p)
{
    double *sorted, value;

    if (n == 0 || (sorted = is_malloc(n * sizeof *sorted)) == NULL) return NAN;
    memcpy(sorted, x, n * sizeof *sorted);
    is_sort(sorted, n, sizeof *sorted, ascending);
    value = percentile_sorted(sorted, n, p);
    is_free(sorted);
    return value;
}

double stats_median(const double *x, size_t n)
{
    return stats_percentile(x, n, 0.5);
}

/* ---- Intervals ----------------------------------------------------------------------------------------------------------- */

/* Sums by group: drawing a group draws all its pairs at once. */
static is_status group_sums(const double *num, const double *den, size_t n, const uint32_t *group, size_t n_groups,
                            double *sums)
{
    memset(sums, 0, 2 * n_groups * sizeof *sums);
    for (size_t i = 0; i < n; i++) {
        size_t g = group ? group[i] : i;

        if (g >= n_groups) return is_fail(INFERSCALE_E_INVALID, "group %zu of pair %zu is outside 0..%zu", g, i, n_groups - 1);
        sums[2 * g] += num[i];
        sums[2 * g + 1] += den ? den[i] : 1;
    }
    return INFERSCALE_OK;
}

is_status stats_bootstrap(const double *num, const double *den, size_t n, const uint32_t *group, size_t n_groups,
                          size_t resamples, uint64_t seed, stats_interval *out)
{
    double *sums = NULL, *values = NULL;
    rng r = rng_stream(seed, 0xb007, resamples);
    size_t kept = 0;
    is_status st;

    *out = (stats_interval){ NAN, NAN };
    if (group == NULL) n_groups = n;
    if (n == 0 || n_groups == 0 || resamples == 0)
        return is_fail(INFERSCALE_E_INVALID, "a bootstrap needs data; give it at least one pair");
    sums = is_malloc(2 * n_groups * sizeof *sums);
    values = is_malloc(resamples * sizeof *values);
    if (sums == NULL || values == NULL) {
        st = is_fail(INFERSCALE_E_NOMEM, "no memory for %zu resamples; use fewer", resamples);
        goto done;
    }
    IS_TRY_GOTO(st, done, group_sums(num, den, n, group, n_groups, sums));
    for (size_t b = 0; b < resamples; b++) {
        double top = 0, bottom = 0;

        for (size_t g = 0; g < n_groups; g++) {
            size_t i = (size_t)rng_below(&r, n_groups);

            top += sums[2 * i];
            bottom += sums[2 * i + 1];
        }
        if (bottom != 0) values[kept++] = top / bottom;
    }
    if (kept > 0) {
        is_sort(values, kept, sizeof *values, ascending);
        *out = (stats_interval){ percentile_sorted(values, kept, 0.025), percentile_sorted(values, kept, 0.975) };
    }
done:
    is_free(sums);
    is_free(values);
    return st;
}

is_status stats_bootstrap_difference(const double *num_a, const double *den_a, const double *num_b, const double *den_b, size_t n,
                                     const uint32_t *group, size_t n_groups, size_t resamples, uint64_t seed, stats_interval *out)
{
    rng r = rng_stream(seed, 0xb007, resamples); /* the draws of stats_bootstrap */
    double *sums, *values;
    size_t kept = 0;
    is_status st;

    *out = (stats_interval){ NAN, NAN };
    if (group == NULL) n_groups = n;
    if (n == 0 || n_groups == 0 || resamples == 0)
        return is_fail(INFERSCALE_E_INVALID, "a bootstrap needs data; give it at least one pair");
    sums = is_malloc(4 * n_groups * sizeof *sums);
    values = is_malloc(resamples * sizeof *values);
    st = sums && values ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "no memory for %zu resamples; use fewer", resamples);
    if (st == INFERSCALE_OK) st = group_sums(num_a, den_a, n, group, n_groups, sums);
    if (st == INFERSCALE_OK) st = group_sums(num_b, den_b, n, group, n_groups, sums + 2 * n_groups);
    for (size_t b = 0; b < resamples && st == INFERSCALE_OK; b++) {
        double sum[4] = { 0 };

        for (size_t g = 0; g < n_groups; g++) {
            size_t i = 2 * (size_t)rng_below(&r, n_groups);

            for (size_t k = 0; k < 4; k++) sum[k] += sums[k / 2 * 2 * n_groups + i + k % 2];
        }
        if (sum[1] != 0 && sum[3] != 0) values[kept++] = sum[0] / sum[1] - sum[2] / sum[3];
    }
    if (kept > 0) {
        is_sort(values, kept, sizeof *values, ascending);
        *out = (stats_interval){ percentile_sorted(values, kept, 0.025), percentile_sorted(values, kept, 0.975) };
    }
    is_free(sums);
    is_free(values);
    return st;
}

is_status stats_median_ratio(const double *over, const double *under, size_t n, uint64_t seed,
                             stats_ratio *out)
{
    enum { DRAWS = 2000 };
    rng r = rng_stream(seed, 0x5a710, n);
    double *x = is_calloc(2 * n + DRAWS, sizeof *x), *y, *all;

    *out = (stats_ratio){ NAN, { NAN, NAN } };
    if (x == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a ratio of %zu rounds", n);
    y = x + n;
    all = y + n;
    out->is = stats_median(over, n) / stats_median(under, n);
    for (size_t d = 0; d < DRAWS; d++) {
        for (size_t i = 0; i < n; i++) {
            const size_t k = (size_t)rng_below(&r, n);

            x[i] = over[k];
            y[i] = under[k];
        }
        all[d] = stats_median(x, n) / stats_median(y, n);
    }
    out->in = (stats_interval){ stats_percentile(all, DRAWS, 0.025),
                                stats_percentile(all, DRAWS, 0.975) };
    is_free(x);
    return INFERSCALE_OK;
}

/* ---- Student's t --------------------------------------------------------------------------------------------------------- */

/* Continued fraction of the incomplete beta function, by the modified Lentz method (DLMF 8.17.22). */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1), f;

    d = 1 / (fabs(d) < tiny ? tiny : d);
    f = d;
    for (int m = 1; m < 500; m++) {
        for (int odd = 0; odd < 2; odd++) {
            double e = odd ? -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
                           : m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));

            d = 1 + e * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + e / c;
            if (fabs(c) < tiny) c = tiny;
            f *= c * d;
        }
        if (fabs(c * d - 1) < 1e-15) break;
    }
    return f;
}

/* The regularised incomplete beta function I_x(a, b). */
static double beta_incomplete(double a, double b, double x)
{
    double front;

    if (x <= 0) return 0;
    if (x >= 1) return 1;
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    /* The fraction converges fast on one side of the mean; the other is its mirror. */
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double stats_t_cdf(double t, double df)
{
    double tail = 0.5 * beta_incomplete(df / 2, 0.5, df / (df + t * t));

    return t > 0 ? 1 - tail : tail;
}

is_status stats_tost(const double *diff, size_t n, double margin, stats_tost_result *out)
{
    double mean, error, upper;

    if (n < 2 || !(margin > 0)) return is_fail(INFERSCALE_E_INVALID, "TOST needs two differences or more and a margin above 0");
    mean = stats_mean(diff, n);
    error = stats_sd(diff, n) / sqrt((double)n);
    out->mean = mean;
    if (error == 0) {
        out->p_no_worse = mean > -margin ? 0 : 1;
        out->p = fabs(mean) < margin ? 0 : 1;
        return INFERSCALE_OK;
    }
    out->p_no_worse = stats_t_cdf(-(mean + margin) / error, (double)(n - 1));
    upper = stats_t_cdf((mean - margin) / error, (double)(n - 1));
    out->p = upper > out->p_no_worse ? upper : out->p_no_worse;
    return INFERSCALE_OK;
}

/* ---- Next-token distributions -------------------------------------------------------------------------------------------- */

void stats_log_softmax(const float *logits, size_t n, double *out)
{
    double max = -INFINITY, sum = 0, log_sum;

    for (size_t i = 0; i < n; i++)
        if (logits[i] > max) max = logits[i];
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    log_sum = log(sum);
    for (size_t i = 0; i < n; i++) out[i] = ((double)logits[i] - max) - log_sum; /* exact first, then one rounding */
}

double stats_kl(const double *log_a, const double *log_b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        if (log_a[i] != -INFINITY) sum += exp(log_a[i]) * (log_a[i] - log_b[i]);
    return sum > 0 || isnan(sum) ? sum : 0;
}

size_t stats_argmax(const float *logits, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
