/* score.c - see score.h.
 *
 * A fact with a vector: the cosine `low` of the embedder's calibration is worth 0.2 and `high` 0.8,
 * with a logistic curve through both; words add up to WORDS on the logistic scale. By its words
 * alone: a logistic curve of its share of the question's words, which is 0.2 at a share of about
 * 0.4 and 0.8 at 1, for the few words that a question shares with what does not answer it are
 * common. The better of both counts: a name or number that the question asks for tells more than
 * its vector. The constants were chosen on the development conversations of LoCoMo and on sentences
 * that have nothing to do with them, such that the best of hundreds of facts stays below 0.3 where
 * none of them answers.
 *
 * 0.01 is the least: what was found is never 0, also with two decimals. Four decimals: what is
 * beyond them says nothing, and a score that somebody copies keeps, as a threshold, the fact
 * that it was read from. */
#include "recall/score.h"

#include <math.h>

#include "base/mem.h"

static const double AT_HIGH = 1.3862943611198906; /* logit(0.8); low is -AT_HIGH */
static const double WORDS = 2, WORDS_ALONE_AT_0 = -3.1, WORDS_ALONE = 4.5;
static const double LEAST = 0.01;

double is_score_of(double cosine, double share, const is_calibration *c)
{
    double x = share > 0 ? WORDS_ALONE_AT_0 + WORDS_ALONE * share : -INFINITY;

    if (c && !isnan(cosine))
        x = fmax(x, AT_HIGH * (2 * (cosine - c->low) / (c->high - c->low) - 1) + WORDS * share);
    return LEAST + (1 - LEAST) / (1 + exp(-x));
}

typedef struct pool { double sum; size_t n; } pool;

static double mean(pool p)
{
    return p.sum / (double)p.n;
}

is_status is_score_in_order(double *scores, size_t n)
{
    pool *pools = is_malloc((n ? n : 1) * sizeof *pools);
    size_t n_pools = 0, at = 0;

    if (!pools) return is_fail(INFERSCALE_E_NOMEM, "out of memory for scores; free some and try again");
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

is_status is_score_ranked(is_ranked *r, size_t n, const float *dense, const double *shares,
                          const is_calibration *c)
{
    double *scores = is_malloc((n ? n : 1) * sizeof *scores);
    size_t n_free = 0;
    is_status st = INFERSCALE_OK;

    if (!scores) return is_fail(INFERSCALE_E_NOMEM, "out of memory for scores; free some and try again");
    for (size_t i = 0; i < n; i++) {
        r[i].shown = is_score_of(dense ? (double)dense[r[i].item] : NAN, shares[r[i].item], c);
        if (!r[i].pinned) scores[n_free++] = r[i].shown;
    }
    st = is_score_in_order(scores, n_free);
    for (size_t i = 0, at = 0; i < n && st == INFERSCALE_OK; i++)
        r[i].shown = rounded(r[i].pinned ? r[i].shown : scores[at++]);
    is_free(scores);
    return st;
}
