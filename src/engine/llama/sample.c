/* sample.c - from the last logits to a token. */
#include "engine/llama/internal.h"

#include <math.h>

is_status is_sampler_new(const is_sampling *s, struct llama_sampler **out)
{
    struct llama_sampler *chain;
    uint32_t seed = (uint32_t)(s->seed ^ s->seed >> 32);

    *out = NULL;
    if (!(s->temperature >= 0) || s->temperature > 100 || isnan(s->top_p) || isnan(s->min_p))
        return is_fail(INFERSCALE_E_INVALID, "temperature %g, top_p %g or min_p %g is out of range; use temperature 0..100, "
                       "the others 0..1",
                       s->temperature, s->top_p, s->min_p);
    if (s->temperature == 0) return INFERSCALE_OK;
    if (seed == LLAMA_DEFAULT_SEED) seed = 1; /* that value asks libllama for a random seed */
    chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (!chain) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the sampler");
    if (s->top_k && s->top_k <= INT32_MAX) llama_sampler_chain_add(chain, llama_sampler_init_top_k((int32_t)s->top_k));
    if (s->top_p > 0 && s->top_p < 1) llama_sampler_chain_add(chain, llama_sampler_init_top_p((float)s->top_p, 1));
    if (s->min_p > 0) llama_sampler_chain_add(chain, llama_sampler_init_min_p((float)(s->min_p > 1 ? 1 : s->min_p), 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp((float)s->temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
    *out = chain;
    return INFERSCALE_OK;
}

static int32_t argmax(const float *v, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return (int32_t)best;
}

is_status is_llama_sample(void *impl, is_run *run, int32_t *token)
{
    is_llama *e = impl;
    llama_token_data_array all;

    if (!run->has_logits || run->broken)
        return is_fail(INFERSCALE_E_INVALID, "there are no logits to sample from; start or extend the run first");
    if (!run->chain) {
        *token = argmax(run->logits, e->n_vocab);
        return INFERSCALE_OK;
    }
    if (!e->candidates) e->candidates = is_malloc(e->n_vocab * sizeof *e->candidates);
    if (!e->candidates) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u candidates", e->n_vocab);
    for (uint32_t i = 0; i < e->n_vocab; i++) e->candidates[i] = (llama_token_data){ (llama_token)i, run->logits[i], 0 };
    all = (llama_token_data_array){ e->candidates, e->n_vocab, -1, false };
    if (!is_shim_sampler_apply(run->chain, &all) || all.selected < 0 || (size_t)all.selected >= all.size)
        return is_fail(INFERSCALE_E_ENGINE, "sampling failed (%s); try temperature 0", is_shim_error());
    *token = all.data[all.selected].id;
    return INFERSCALE_OK;
}
