/* paired.c - see paired.h. */
#include "eval/paired.h"

#include <math.h>

/* By numerical integration over the joint density of the five looks (information 1/16, 1/8, 1/4,
 * 1/2, 1): 2.2031. The same program gives the published 2.512 for eight equal looks at one-sided
 * 0.025. */
const paired_rule paired_sequential = {
    .alpha = 0.05, .bound = 2.204, .n_looks = PAIRED_LOOKS, .looks = { 500, 1000, 2000, 4000, 8000 }
};
const paired_rule paired_fixed = { .alpha = 0.05, .bound = 1.644854, .n_looks = 0 };

double paired_difference(const paired_counts *c)
{
    return c->n ? ((double)c->won - (double)c->lost) / (double)c->n : NAN;
}

double paired_mcnemar(const paired_counts *c)
{
    const uint64_t m = c->lost + c->won, least = c->lost < c->won ? c->lost : c->won;
    const double all = lgamma((double)m + 1) - (double)m * log(2);
    double tail = 0;

    for (uint64_t i = 0; i <= least; i++)
        tail += exp(all - lgamma((double)i + 1) - lgamma((double)(m - i) + 1));
    return 2 * tail < 1 ? 2 * tail : 1;
}

double paired_z(const paired_counts *c, double delta)
{
    const double n = (double)c->n, won = (double)c->won, lost = (double)c->lost;
    /* The likeliest share of `lost` if the difference were delta solves a q^2 + b q + k = 0. */
    const double a = 2 * n, b = -won - lost + (2 * n - won + lost) * delta,
                 k = -lost * delta * (1 - delta);
    const double root = b * b - 4 * a * k, q = (sqrt(root > 0 ? root : 0) - b) / (2 * a);
    const double variance = n * (2 * q + delta * (1 - delta)), above = won - lost - n * delta;

    if (variance > 1e-12) return above / sqrt(variance);
    return above > 1e-9 ? INFINITY : above < -1e-9 ? -INFINITY : 0;
}

/* Where paired_z, which falls, passes `z`. */
static double crossing(const paired_counts *c, double z)
{
    double lo = -1, hi = 1;

    for (int i = 0; i < 60; i++) {
        const double mid = (lo + hi) / 2;

        if (paired_z(c, mid) > z) lo = mid;
        else hi = mid;
    }
    return (lo + hi) / 2;
}

stats_interval paired_interval(const paired_counts *c, double z)
{
    if (c->n == 0) return (stats_interval){ NAN, NAN };
    return (stats_interval){ crossing(c, z), crossing(c, -z) };
}

paired_verdict paired_look(const paired_counts *c, double margin, double bound)
{
    double above, below;

    if (c->n == 0) return PAIRED_OPEN;
    above = paired_z(c, -margin); /* of "worse by the margin" */
    below = paired_z(c, margin);  /* of "better by the margin" */
    if (above < -bound) return PAIRED_WORSE;
    if (above <= bound) return PAIRED_OPEN;
    return below < -bound ? PAIRED_EQUAL : PAIRED_NO_WORSE;
}
