/* mock_sample.c - the next token from logits: greedy, or drawn with temperature, top-k, top-p and min-p, by a seed. */
#include "engine/mock/mock.h"

#include <math.h>

#include "base/mem.h"
#include "base/sort.h"

typedef struct candidate { float logit; int32_t id; } candidate;

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->logit > y->logit ? -1 : x->logit < y->logit ? 1 : (x->id > y->id) - (x->id < y->id);
}

static int32_t best(const float *logits, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[at]) at = i;
    return (int32_t)at;
}

int32_t mock_draw(const float *logits, uint32_t n, const is_sampling *how, uint64_t *rng)
{
    candidate c[MOCK_VOCAB];
    double p[MOCK_VOCAB], sum = 0, kept = 0, reach = 0;
    uint32_t k = how->top_k && how->top_k < n ? how->top_k : n, m = 0;

    if (!(how->temperature > 0) || n > MOCK_VOCAB) return best(logits, n);
    for (uint32_t i = 0; i < n; i++) c[i] = (candidate){ logits[i], (int32_t)i };
    is_sort(c, n, sizeof *c, by_logit);
    for (uint32_t i = 0; i < k; i++) sum += p[i] = exp((c[i].logit - c[0].logit) / how->temperature);
    while (m < k && (m == 0 || ((how->top_p <= 0 || how->top_p >= 1 || reach < how->top_p) && p[m] >= how->min_p * p[0]))) {
        reach += p[m] / sum;
        kept += p[m++];
    }
    *rng = mock_mix(*rng, how->seed);
    double left = (double)(*rng >> 11) / 9007199254740992.0 * kept;
    for (uint32_t i = 0; i + 1 < m; i++)
        if ((left -= p[i]) < 0) return c[i].id;
    return c[m - 1].id;
}

is_status mock_sample(void *impl, is_run *run, int32_t *token)
{
    mock *m = impl;

    IS_TRY(mock_call(&m->opt, MOCK_SAMPLE));
    *token = mock_draw(run->logits, MOCK_VOCAB, &run->sampling, &run->rng);
    return INFERSCALE_OK;
}
