/* score.c - see score.h.
 *
 * A fact with a vector: a logistic regression of three figures. u is its cosine in units of the
 * embedder's calibration, 0 at `low` and 1 at `high`; g is its ground in the same units, above FAR,
 * which is where unrelated texts are; the share of the question's words is squared, because half of
 * the words say less than half of what all of them say. By its words alone: a logistic curve of
 * that share, 0.2 at a share of about 0.4 and 0.8 at 1, because the few words that a question
 * shares with what does not answer it are common.
 *
 * The constants were fitted to invented memories (tests/support/score_sets.h, seed 1, with
 * bench/fit_scores.py), in memories of 1 to 170 facts. The questions were of four kinds: the facts
 * answer them; they name a person of whom the facts do not say that; they have nothing to do with
 * the facts; they are single words. The best hit of each question counted, and each kind as much as
 * another.
 *
 * 0.01 is the least: what was found is never 0, also with two decimals. Four decimals: what is
 * beyond them says nothing, and a score that somebody copies keeps, as a threshold, the fact
 * that it was read from. */
#include "recall/score.h"

#include <math.h>

#include "base/mem.h"
#include "recall/lexical.h"

/* Of a fact with a vector: at u = 0, by u, by g, by the share squared. */
static const double AT_0 = -0.3, BY_COSINE = 5.8, BY_GROUND = -2.7, BY_SHARE = 4.8;
static const double WORDS_ALONE_AT_0 = -3.1, WORDS_ALONE = 4.5;
/* In units of the calibration: the cosine of unrelated texts, and of those that share a name. */
static const double FAR = -2, NAMED = -0.86;
static const double OTHERS = 2; /* so many more are as if they were as near as the wider circle */
static const double LEAST = 0.01;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for scores; free some and try again");
}

static double in_units(double cosine, const is_calibration *c)
{
    return (cosine - c->low) / (c->high - c->low);
}

static double from_units(double units, const is_calibration *c)
{
    return c->low + units * (c->high - c->low);
}

double is_score_of(double cosine, double ground, double share, const is_calibration *c)
{
    double x = share > 0 ? WORDS_ALONE_AT_0 + WORDS_ALONE * share : -INFINITY;

    if (c && c->low < 1 && !isnan(cosine)) /* from 1 on nothing could be near: it cannot tell */
        x = AT_0 + BY_COSINE * in_units(cosine, c) + BY_SHARE * share * share +
            BY_GROUND * fmax(0, in_units(ground, c) - FAR);
    return LEAST + (1 - LEAST) / (1 + exp(-x));
}

typedef struct pool { double sum; size_t n; } pool;

static double mean(pool p)
{
    return p.sum / (double)p.n;
}

/* The mean of those in p but one, as if there were OTHERS more that are like `wider`. */
static double others(pool p, double one, double wider)
{
    return (p.sum - one + OTHERS * wider) / ((double)(p.n - 1) + OTHERS);
}

is_status is_score_grounds(const float *dense, const uint32_t *companies, size_t n,
                           const is_calibration *c, double *grounds)
{
    const double far = from_units(FAR, c), named = from_units(NAMED, c);
    pool groups[IS_LEX_GROUPS] = { { 0, 0 } }, *all;
    size_t n_all = IS_LEX_GROUPS;

    for (size_t i = 0; i < n; i++)
        if (companies[i] >= n_all) n_all = companies[i] + 1;
    all = is_calloc(n_all, sizeof *all);
    if (!all) return no_memory();
    for (size_t i = 0; i < n; i++) {
        if (isnan(dense[i])) continue;
        all[companies[i]].sum += (double)dense[i], all[companies[i]].n++;
        groups[companies[i] % IS_LEX_GROUPS].sum += (double)dense[i];
        groups[companies[i] % IS_LEX_GROUPS].n++;
    }
    for (size_t i = 0; i < n; i++) {
        const pool group = groups[companies[i] % IS_LEX_GROUPS];
        const double one = (double)dense[i];

        if (isnan(one)) grounds[i] = NAN;
        else if (companies[i] < IS_LEX_GROUPS) grounds[i] = others(group, one, far);
        else grounds[i] = others(all[companies[i]], one, others(group, one, named));
    }
    is_free(all);
    return INFERSCALE_OK;
}

is_status is_score_in_order(double *scores, size_t n)
{
    pool *pools = is_malloc((n ? n : 1) * sizeof *pools);
    size_t n_pools = 0, at = 0;

    if (!pools) return no_memory();
    for (size_t i = 0; i < n; i++) {
        pools[n_pools++] = (pool){ scores[i], 1 };
        for (; n_pools > 1 && mean(pools[n_pools - 1]) > mean(pools[n_pools - 2]); n_pools--) {
            pools[n_pools - 2].sum += pools[n_pools - 1].sum;
            pools[n_pools - 2].n += pools[n_pools - 1].n;
        }
    }
    for (size_t p = 0; p < n_pools; p++)
        for (size_t i = 0; i < pools[p].n; i++) scores[at++] = mean(pools[p]);
    is_free(pools);
    return INFERSCALE_OK;
}

static double rounded(double v)
{
    return round(v * 1e4) / 1e4;
}

static double score_item(const is_score_parts *p, uint32_t item, const is_calibration *c)
{
    const double cosine = p->dense && c ? (double)p->dense[item] : NAN;

    return is_score_of(cosine, isnan(cosine) ? NAN : p->grounds[item], p->shares[item], c);
}

is_status is_score_ranked(is_ranked *r, size_t n, const is_score_parts *parts,
                          const is_calibration *c)
{
    double *scores = is_malloc((n ? n : 1) * sizeof *scores);
    size_t n_free = 0;
    is_status st = INFERSCALE_OK;

    if (!scores) return no_memory();
    for (size_t i = 0; i < n; i++) {
        r[i].shown = score_item(parts, r[i].item, c);
        if (!r[i].pinned) scores[n_free++] = r[i].shown;
    }
    st = is_score_in_order(scores, n_free);
    for (size_t i = 0, at = 0; i < n && st == INFERSCALE_OK; i++)
        r[i].shown = rounded(r[i].pinned ? r[i].shown : scores[at++]);
    is_free(scores);
    return st;
}
