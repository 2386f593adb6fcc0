/* fidelity_rows.c - from measurements to what is reported: means, intervals, order ratios. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "eval/fidelity.h"

/* Pairs of two arms on the questions that both have. */
typedef struct pairs {
    double *num, *den;
    uint32_t *group;
    size_t n, n_groups;
} pairs;

static void pairs_free(pairs *p)
{
    is_free(p->num);
    is_free(p->den);
    is_free(p->group);
}

/* den = NULL: ones. Conversations are resampled where there are several, else questions. */
static is_status pairs_new(const fidelity *f, const double *num, const double *den, pairs *p)
{
    *p = (pairs){ .num = is_malloc(f->n_questions * sizeof(double)), .den = is_malloc(f->n_questions * sizeof(double)),
                  .group = is_malloc(f->n_questions * sizeof(uint32_t)) };
    if (p->num == NULL || p->den == NULL || p->group == NULL) {
        pairs_free(p);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory while summing up %zu questions", f->n_questions);
    }
    for (size_t i = 0; i < f->n_questions; i++) {
        double d = den ? den[i] : 1;

        if (isnan(num[i]) || isnan(d)) continue;
        p->num[p->n] = num[i];
        p->den[p->n] = d;
        p->group[p->n] = f->n_conversations > 1 ? f->group[i] : (uint32_t)p->n;
        p->n++;
    }
    p->n_groups = f->n_conversations > 1 ? f->n_conversations : p->n;
    return INFERSCALE_OK;
}

/* sum(num) / sum(den) with its interval; NaN where nothing was measured. */
static is_status ratio(const fidelity *f, const double *num, const double *den, uint64_t seed, double *value,
                       stats_interval *interval)
{
    pairs p;
    is_status st;

    *value = NAN;
    *interval = (stats_interval){ NAN, NAN };
    IS_TRY(pairs_new(f, num, den, &p));
    st = INFERSCALE_OK;
    if (p.n > 0) {
        double bottom = stats_mean(p.den, p.n);

        *value = bottom != 0 ? stats_mean(p.num, p.n) / bottom : NAN;
        st = stats_bootstrap(p.num, p.den, p.n, p.group, p.n_groups, STATS_RESAMPLES, seed, interval);
    }
    pairs_free(&p);
    return st;
}

static const fidelity_arm *find(const fidelity *f, const char *name, bool client)
{
    for (size_t i = 0; i < f->n_arms; i++)
        if (f->arms[i].client == client && strcmp(f->arms[i].name, name) == 0) return &f->arms[i];
    return NULL;
}

static double mean_of(const fidelity *f, const double *x)
{
    double sum = 0;
    size_t n = 0;

    for (size_t i = 0; i < f->n_questions; i++)
        if (!isnan(x[i])) sum += x[i], n++;
    return n ? sum / (double)n : NAN;
}

/* A yardstick that is not well above the numerical floor measures nothing. */
static is_status order_ratio(const fidelity *f, const fidelity_arm *arm, const char *yardstick, uint64_t seed, double *value,
                             stats_interval *interval)
{
    const fidelity_arm *order = find(f, yardstick, arm->client), *floor = find(f, "N", arm->client);

    *value = NAN;
    *interval = (stats_interval){ NAN, NAN };
    if (order == NULL || floor == NULL || !(mean_of(f, order->kl) > 5 * mean_of(f, floor->kl))) return INFERSCALE_OK;
    return ratio(f, arm->kl, order->kl, seed, value, interval);
}

static is_status likelihoods(const fidelity *f, const fidelity_arm *arm, uint64_t seed, fidelity_row *row)
{
    const fidelity_arm *a = find(f, "A", arm->client), *c = find(f, "C", arm->client);
    double *kept = is_malloc(3 * f->n_questions * sizeof *kept), *whole, *delta, mean;
    stats_interval i;
    is_status st;

    if (kept == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while summing up %zu questions", f->n_questions);
    whole = kept + f->n_questions;
    delta = whole + f->n_questions;
    for (size_t q = 0; q < f->n_questions; q++) {
        delta[q] = arm->nll[q] - a->nll[q];
        kept[q] = c ? c->nll[q] - arm->nll[q] : NAN;
        whole[q] = c ? c->nll[q] - a->nll[q] : NAN;
    }
    st = ratio(f, delta, NULL, seed, &row->nll_delta, &row->nll);
    if (st == INFERSCALE_OK) st = ratio(f, whole, NULL, seed, &mean, &i);
    row->memory_kept = NAN;
    row->memory_kept_i = (stats_interval){ NAN, NAN };
    if (st == INFERSCALE_OK && (i.lo > 0 || i.hi < 0)) st = ratio(f, kept, whole, seed, &row->memory_kept, &row->memory_kept_i);
    is_free(kept);
    return st;
}

static is_status summarise(const fidelity *f, const fidelity_arm *arm, uint64_t seed, fidelity_row *row)
{
    pairs p;

    *row = (fidelity_row){ .arm = arm->name, .client = arm->client, .policy = arm->policy, .repair = arm->repair,
                            .each = arm->kl };
    IS_TRY(ratio(f, arm->kl, NULL, seed, &row->kl_mean, &row->kl));
    IS_TRY(pairs_new(f, arm->kl, NULL, &p));
    row->n = p.n;
    row->kl_median = stats_median(p.num, p.n);
    row->kl_p90 = stats_percentile(p.num, p.n, 0.9);
    pairs_free(&p);
    row->kl_first = mean_of(f, arm->kl_first);
    row->top1 = mean_of(f, arm->top1);
    IS_TRY(order_ratio(f, arm, "S_free", seed, &row->ratio_free, &row->ratio_free_i));
    IS_TRY(order_ratio(f, arm, "S", seed, &row->ratio_last, &row->ratio_last_i));
    return likelihoods(f, arm, seed, row);
}

is_status fidelity_rows(const fidelity *f, uint64_t seed, fidelity_row *rows, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < f->n_arms; i++) {
        fidelity_row *row = &rows[*n];

        if (strcmp(f->arms[i].name, "A") == 0) continue;
        IS_TRY(summarise(f, &f->arms[i], seed, row));
        row->cost = row->policy ? f->arms[i].cost : NAN;
        if (row->n > 0) (*n)++;
    }
    return INFERSCALE_OK;
}
