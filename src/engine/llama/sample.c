/* sample.c - from the last logits to a token.
 *
 * The logits themselves are not touched: who asks for log-probabilities wants the model's. Penalties and biases go into a list of
 * candidates, then libllama's samplers choose. A grammar is costly over a whole vocabulary, so the choice is made without it first
 * and made again among what it allows only if it forbids that: the chances are those of choosing among the allowed at once.
 *
 * A run's sampler belongs to whoever holds the run, not to the engine's thread. */
#include "engine/llama/internal.h"

#include <math.h>
#include <string.h>

/* ---- Making one ---------------------------------------------------------------------------------------------------------- */

static is_status check(const is_llama *e, const is_sampling *s)
{
    if (!(s->temperature >= 0) || s->temperature > 100 || isnan(s->top_p) || isnan(s->min_p))
        return is_fail(INFERSCALE_E_INVALID, "temperature %g, top_p %g or min_p %g is out of range; use temperature 0..100, "
                       "the others 0..1",
                       s->temperature, s->top_p, s->min_p);
    if (!(fabs(s->presence) <= 100) || !(fabs(s->frequency) <= 100))
        return is_fail(INFERSCALE_E_INVALID, "a penalty of %g or %g is out of range; use -2..2", s->presence, s->frequency);
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].token < 0 || (uint32_t)s->bias[i].token >= e->n_vocab || isnan(s->bias[i].add))
            return is_fail(INFERSCALE_E_INVALID, "the bias of token %d cannot be applied; the vocabulary has %u tokens", s->bias[i].token,
                           e->n_vocab);
    return INFERSCALE_OK;
}

/* Temperature and cuts; NULL = greedy. */
static is_status make_chain(const is_sampling *s, struct llama_sampler **out)
{
    struct llama_sampler *chain;
    uint32_t seed = (uint32_t)(s->seed ^ s->seed >> 32);

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

static is_status make_grammar(const is_llama *e, const char *text, struct llama_sampler **out)
{
    if (!text || !*text) return INFERSCALE_OK;
    if (llama_vocab_type(e->vocab) == LLAMA_VOCAB_TYPE_NONE)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model has no tokenizer, so no grammar can be held to; leave it out");
    IS_TRY(is_grammar_check(text));
    is_shim_clear();
    is_llama_clear_error();
    *out = is_shim_grammar_new(e->vocab, text);
    if (*out) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_PARSE, "the grammar cannot be used: %s; change it", *is_shim_error()        ? is_shim_error()
                                                                                    : *is_llama_last_error() ? is_llama_last_error()
                                                                                                             : "libllama does not say why");
}

is_status is_sampler_new(const is_llama *e, const is_sampling *how, is_sampler **out)
{
    is_sampler *s;
    is_status st = check(e, how);

    *out = NULL;
    if (st != INFERSCALE_OK) return st;
    s = is_calloc(1, sizeof *s);
    if (!s) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the sampler");
    s->presence = how->presence;
    s->frequency = how->frequency;
    s->n_bias = how->n_bias;
    if (s->n_bias) s->bias = is_malloc(s->n_bias * sizeof *s->bias);
    if (s->n_bias && !s->bias) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for %u biases", s->n_bias);
    else if (s->n_bias) memcpy(s->bias, how->bias, s->n_bias * sizeof *s->bias);
    if (st == INFERSCALE_OK) st = make_chain(how, &s->chain);
    if (st == INFERSCALE_OK) st = make_grammar(e, how->grammar, &s->grammar);
    if (st != INFERSCALE_OK) {
        is_sampler_free(s);
        return st;
    }
    *out = s;
    return INFERSCALE_OK;
}

void is_sampler_free(is_sampler *s)
{
    if (!s) return;
    if (s->chain) llama_sampler_free(s->chain);
    if (s->grammar) llama_sampler_free(s->grammar);
    is_free(s->bias);
    is_free(s->counts);
    is_free(s->candidates);
    is_free(s);
}

/* ---- What was fed -------------------------------------------------------------------------------------------------------- */

bool is_sampler_allows(is_sampler *s, int32_t token)
{
    llama_token_data one = { token, 1, 0 };
    llama_token_data_array all = { &one, 1, -1, false };

    return !s->grammar || (is_shim_sampler_apply(s->grammar, &all) && !isinf(one.logit));
}

is_status is_sampler_accept(is_sampler *s, int32_t token)
{
    if (s->grammar && !is_shim_sampler_accept(s->grammar, token))
        return is_fail(INFERSCALE_E_ENGINE, "the grammar could not go on (%s); ask again without it", is_shim_error());
    if (s->presence == 0 && s->frequency == 0) return INFERSCALE_OK;
    for (uint32_t i = 0; i < s->n_counts; i++)
        if (s->counts[i].token == token) {
            s->counts[i].n++;
            return INFERSCALE_OK;
        }
    if (s->n_counts == s->cap_counts) {
        uint32_t cap = s->cap_counts ? 2 * s->cap_counts : 64;
        is_count *more = is_realloc(s->counts, cap * sizeof *more);

        if (!more) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the penalties");
        s->counts = more;
        s->cap_counts = cap;
    }
    s->counts[s->n_counts++] = (is_count){ token, 1 };
    return INFERSCALE_OK;
}

/* ---- Choosing ------------------------------------------------------------------------------------------------------------ */

static int32_t argmax(const float *v, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return (int32_t)best;
}

static llama_token_data_array candidates(is_sampler *s, const float *logits, uint32_t n)
{
    llama_token_data *c = s->candidates;

    for (uint32_t i = 0; i < n; i++) c[i] = (llama_token_data){ (llama_token)i, logits[i], 0 };
    for (uint32_t i = 0; i < s->n_bias; i++) c[s->bias[i].token].logit += s->bias[i].add;
    for (uint32_t i = 0; i < s->n_counts; i++)
        c[s->counts[i].token].logit -= (float)(s->presence + s->frequency * s->counts[i].n);
    return (llama_token_data_array){ c, n, -1, false };
}

/* false = the samplers failed. */
static bool choose(is_sampler *s, llama_token_data_array *all, int32_t *token)
{
    size_t best = 0;

    if (s->chain) {
        if (!is_shim_sampler_apply(s->chain, all) || all->selected < 0 || (size_t)all->selected >= all->size) return false;
        best = (size_t)all->selected;
    } else {
        for (size_t i = 1; i < all->size; i++)
            if (all->data[i].logit > all->data[best].logit) best = i;
    }
    *token = all->data[best].id;
    return !isinf(all->data[best].logit) || all->data[best].logit > 0;
}

is_status is_sampler_choose(is_sampler *s, const float *logits, uint32_t n, int32_t *token)
{
    llama_token_data_array all;

    if (!s->chain && !s->grammar && !s->n_bias && !s->n_counts) {
        *token = argmax(logits, n);
        return INFERSCALE_OK;
    }
    if (!s->candidates) s->candidates = is_malloc(n * sizeof *s->candidates);
    if (!s->candidates) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u candidates", n);
    is_shim_clear();
    all = candidates(s, logits, n);
    if (choose(s, &all, token) && is_sampler_allows(s, *token)) return INFERSCALE_OK;
    all = candidates(s, logits, n);
    if ((!s->grammar || is_shim_sampler_apply(s->grammar, &all)) && choose(s, &all, token)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_ENGINE, "no token could be chosen (%s); loosen the grammar, the biases or the cuts",
                   *is_shim_error() ? is_shim_error() : "all are forbidden");
}
