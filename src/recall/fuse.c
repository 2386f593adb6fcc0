/* fuse.c - top-m of each side by a bounded heap, then the candidates' z-scores summed. */
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

/* Adds (x - mean) / deviation of one side to the candidates' scores; items without the value (NAN) add nothing. */
static void add_z(is_ranked *c, size_t n, const double *side)
{
    double sum = 0, square = 0;
    size_t have = 0;

    for (size_t i = 0; i < n; i++)
        if (!isnan(side[i])) sum += side[i], have++;
    if (have < 2) return;
    double mean = sum / (double)have;
    for (size_t i = 0; i < n; i++)
        if (!isnan(side[i])) square += (side[i] - mean) * (side[i] - mean);
    double deviation = sqrt(square / (double)have);
    if (deviation < 1e-12) return;
    for (size_t i = 0; i < n; i++)
        if (!isnan(side[i])) c[i].score += (side[i] - mean) / deviation;
}

static is_status fuse_candidates(is_ranked *c, size_t n, const float *dense)
{
    double *side = is_malloc((n ? n : 1) * sizeof *side);
    if (!side) return is_fail(INFERSCALE_E_NOMEM, "out of memory while ranking; free some and try again");
    for (size_t i = 0; i < n; i++) side[i] = c[i].lexical;
    add_z(c, n, side);
    for (size_t i = 0; i < n; i++) side[i] = dense ? dense[c[i].item] : NAN;
    add_z(c, n, side);
    is_free(side);
    return INFERSCALE_OK;
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
    is_ranked *c = is_calloc(2 * lex.m, sizeof *c);
    if (!lex.v || !den.v || !c) {
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory while ranking; free some and try again");
        goto end;
    }
    for (size_t i = 0; i < n; i++) {
        if (!keep[i]) continue;
        if (method != INFERSCALE_DENSE && lexical[i] > 0) offer(&lex, (best){lexical[i], (uint32_t)i});
        if (method != INFERSCALE_LEXICAL && dense && !isnan(dense[i])) offer(&den, (best){dense[i], (uint32_t)i});
    }
    for (size_t i = 0; i < den.n; i++) lex.v[lex.n++] = den.v[i];
    is_sort(lex.v, lex.n, sizeof *lex.v, by_item);
    for (size_t i = 0; i < lex.n; i++) {
        uint32_t item = lex.v[i].item;
        double d = dense && !isnan(dense[item]) ? dense[item] : 0;
        if (i && item == lex.v[i - 1].item) continue;
        double score = method == INFERSCALE_DENSE ? d : method == INFERSCALE_LEXICAL ? lexical[item] : 0;
        c[count++] = (is_ranked){item, lexical[item], d, score};
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
