/* fuse.c - top-m of each side by a bounded heap, then the candidates' z-scores summed.
 *
 * While a memory is being embedded only some items have a vector. Fused ranking must then give what it would give if all had one, as far
 * as that can be known; three things differ, and each vanishes with the last vector:
 *   - Which vectors are candidates. The m best of ten thousand vectors are near the question; of the first hundred that are embedded all
 *     would be candidates, however far. So of the embedded share s of the items the best s * m are taken: the same quantile.
 *   - What stands for an item without a vector. Nothing (z = 0) says that its vector is as far as the average candidate's; but words and
 *     vectors agree more often than not, and the exact word would lose to whatever vector came first. So its words speak for it, weakly:
 *     IMPUTED times its lexical z, the regression of the one side on the other.
 *   - What a z-score over a few values is worth. The best of three far vectors is 1.4 deviations above their mean, as is the best of
 *     three near ones: among few, the deviation is their accident. It counts n / (n + min(missing, DOUBT)), what the words say the rest.
 * The constants were chosen on the development conversations of LoCoMo with 0.5 to 97% of the vectors there. */
#include "recall/fuse.h"

#include <math.h>

#include "base/mem.h"
#include "base/sort.h"

/* A heap with the worst of the best m at its root. */
typedef struct best { double score; uint32_t item; } best;
typedef struct heap { best *v; size_t n, m; } heap;

static bool worse(best a, best b)
{
    return a.score < b.score || (a.score == b.score && a.item > b.item);
}

static void sink(heap *h, size_t i)
{
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= h->n) return;
        if (c + 1 < h->n && worse(h->v[c + 1], h->v[c])) c++;
        if (!worse(h->v[c], h->v[i])) return;
        best t = h->v[i];
        h->v[i] = h->v[c];
        h->v[c] = t;
        i = c;
    }
}

static void offer(heap *h, best b)
{
    if (h->n == h->m) {
        if (!worse(h->v[0], b)) return;
        h->v[0] = b;
        sink(h, 0);
        return;
    }
    size_t i = h->n++;
    for (; i > 0 && worse(b, h->v[(i - 1) / 2]); i = (i - 1) / 2) h->v[i] = h->v[(i - 1) / 2];
    h->v[i] = b;
}

static int by_item(const void *a, const void *b)
{
    uint32_t x = ((const best *)a)->item, y = ((const best *)b)->item;
    return x < y ? -1 : x > y;
}

static int by_score(const void *a, const void *b)
{
    const is_ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

static const double IMPUTED = 0.25, DOUBT = 4;

/* z[i] = (side[i] - mean) / deviation; NAN stays NAN. All 0 where that says nothing. Returns how many there are. */
static size_t z_scores(const double *side, size_t n, double *z)
{
    double sum = 0, square = 0;
    size_t have = 0;

    for (size_t i = 0; i < n; i++)
        if (!isnan(side[i])) sum += side[i], have++;
    const double mean = have ? sum / (double)have : 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(side[i])) square += (side[i] - mean) * (side[i] - mean);
    const double deviation = have ? sqrt(square / (double)have) : 0;
    for (size_t i = 0; i < n; i++) z[i] = isnan(side[i]) ? NAN : have < 2 || deviation < 1e-12 ? 0 : (side[i] - mean) / deviation;
    return have;
}

static is_status fuse_candidates(is_ranked *c, size_t n, const float *dense)
{
    double *side = is_malloc((n ? n : 1) * 3 * sizeof *side), *words = side + n, *vectors = words + n;

    if (!side) return is_fail(INFERSCALE_E_NOMEM, "out of memory while ranking; free some and try again");
    for (size_t i = 0; i < n; i++) side[i] = c[i].lexical;
    z_scores(side, n, words);
    for (size_t i = 0; i < n; i++) side[i] = dense ? dense[c[i].item] : NAN;
    const size_t have = z_scores(side, n, vectors);
    const double missing = (double)(n - have), trust = have < 2 ? 0 : (double)have / ((double)have + (missing < DOUBT ? missing : DOUBT));
    for (size_t i = 0; i < n; i++) {
        const double weight = isnan(vectors[i]) ? 0 : trust;

        c[i].score = words[i];
        if (have) c[i].score += (weight > 0 ? weight * vectors[i] : 0) + (1 - weight) * IMPUTED * words[i];
    }
    is_free(side);
    return INFERSCALE_OK;
}

/* How many of the m places the dense side may fill: the embedded share of what the filter lets through, rounded up. */
static size_t dense_places(size_t m, const float *dense, const bool *keep, size_t n)
{
    size_t kept = 0, embedded = 0;

    if (!dense) return 0;
    for (size_t i = 0; i < n; i++) {
        kept += keep[i];
        embedded += keep[i] && !isnan(dense[i]);
    }
    return kept ? (m * embedded + kept - 1) / kept : 0;
}

is_status is_fuse(const double *lexical, const float *dense, const bool *keep, size_t n, int method, size_t k, is_ranked **out,
                  size_t *n_out)
{
    size_t m = method == INFERSCALE_FUSED && k < IS_FUSE_CANDIDATES ? IS_FUSE_CANDIDATES : k;
    heap lex = {.m = m < n ? m : n}, den = {.m = m < n ? m : n};
    size_t count = 0;
    is_status st = INFERSCALE_OK;

    *out = NULL;
    *n_out = 0;
    if (n == 0 || k == 0) return INFERSCALE_OK;
    lex.v = is_malloc(2 * lex.m * sizeof *lex.v); /* the second half takes the other side when they are merged */
    den.v = is_malloc(den.m * sizeof *den.v);
    if (method == INFERSCALE_FUSED) den.m = dense_places(den.m, dense, keep, n);
    is_ranked *c = is_calloc(2 * lex.m, sizeof *c);
    if (!lex.v || !den.v || !c) {
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory while ranking; free some and try again");
        goto end;
    }
    for (size_t i = 0; i < n; i++) {
        if (!keep[i]) continue;
        if (method != INFERSCALE_DENSE && lexical[i] > 0) offer(&lex, (best){lexical[i], (uint32_t)i});
        if (method != INFERSCALE_LEXICAL && den.m && dense && !isnan(dense[i])) offer(&den, (best){dense[i], (uint32_t)i});
    }
    for (size_t i = 0; i < den.n; i++) lex.v[lex.n++] = den.v[i];
    is_sort(lex.v, lex.n, sizeof *lex.v, by_item);
    for (size_t i = 0; i < lex.n; i++) {
        uint32_t item = lex.v[i].item;
        double d = dense && !isnan(dense[item]) ? dense[item] : 0;
        if (i && item == lex.v[i - 1].item) continue;
        double score = method == INFERSCALE_DENSE ? d : method == INFERSCALE_LEXICAL ? lexical[item] : 0;
        c[count++] = (is_ranked){.item = item, .lexical = lexical[item], .dense = d, .score = score};
    }
    if (method == INFERSCALE_FUSED) IS_TRY_GOTO(st, end, fuse_candidates(c, count, dense));
    is_sort(c, count, sizeof *c, by_score);
    *n_out = count < k ? count : k;
    *out = c;
    c = NULL;
end:
    is_free(lex.v);
    is_free(den.v);
    is_free(c);
    return st;
}
