/* mock_sample.c - the next token from logits: greedy, or drawn with temperature, top-k, top-p and min-p, by a seed, after penalties and
 * biases. */
#include "engine/mock/mock.h"

#include <math.h>
#include <string.h>

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

is_status mock_sampling_take(is_run *r, const is_sampling *how)
{
    is_bias *bias = NULL;

    if (how->grammar && *how->grammar)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "the mock cannot hold to a grammar; leave it out, or use a real model");
    if (!isfinite(how->presence) || !isfinite(how->frequency))
        return is_fail(INFERSCALE_E_INVALID, "a penalty is not a number; use -2..2");
    for (uint32_t i = 0; i < how->n_bias; i++) IS_TRY(mock_check_tokens(&how->bias[i].token, 1, "a bias"));
    if (how->n_bias) {
        bias = is_malloc(how->n_bias * sizeof *bias);
        if (!bias) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for %u biases; free some and try again", how->n_bias);
        memcpy(bias, how->bias, how->n_bias * sizeof *bias);
    }
    is_free(r->bias);
    r->bias = bias;
    r->sampling = *how;
    r->sampling.bias = bias;
    r->sampling.grammar = NULL;
    r->rng = how->seed;
    r->n_fed = 0;
    return INFERSCALE_OK;
}

/* The logits as penalties and biases leave them. The tokens fed are the last of the run. */
static void adjust(const is_run *r, float out[MOCK_VOCAB])
{
    const is_sampling *s = &r->sampling;
    uint32_t times[MOCK_VOCAB] = { 0 };

    memcpy(out, r->logits, sizeof r->logits);
    for (uint32_t i = 0; i < s->n_bias; i++) out[s->bias[i].token] += s->bias[i].add;
    for (uint32_t i = r->n - r->n_fed; i < r->n; i++) times[r->tokens[i]]++;
    for (uint32_t i = 0; i < MOCK_VOCAB; i++)
        if (times[i]) out[i] -= (float)(s->presence + s->frequency * times[i]);
}

is_status mock_sample(void *impl, is_run *run, int32_t *token)
{
    mock *m = impl;
    float logits[MOCK_VOCAB];

    IS_TRY(mock_call(&m->opt, MOCK_SAMPLE));
    adjust(run, logits);
    *token = mock_draw(logits, MOCK_VOCAB, &run->sampling, &run->rng);
    return INFERSCALE_OK;
}
