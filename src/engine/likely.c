/* likely.c - how likely tokens were, from the logits that they were drawn from. */
#include <math.h>

#include "engine/engine.h"

/* The n likeliest of all; best first. Returns how many. */
static uint32_t likeliest(const float *logits, uint32_t n_vocab, uint32_t n, is_likely *out)
{
    uint32_t have = 0;

    for (uint32_t i = 0; n && i < n_vocab; i++) {
        uint32_t at = have < n ? have++ : n;

        if (at == n && !((double)logits[i] > out[n - 1].logprob)) continue;
        for (at = at == n ? n - 1 : at; at > 0 && (double)logits[i] > out[at - 1].logprob; at--) out[at] = out[at - 1];
        out[at] = (is_likely){ (int32_t)i, logits[i] };
    }
    return have;
}

/* log of the sum of exp: what turns logits into logarithms of probabilities. */
static double normaliser(const float *logits, uint32_t n)
{
    double most = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < n; i++) most = logits[i] > most ? (double)logits[i] : most;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return most + log(sum);
}

void is_likely_of(const float *logits, uint32_t n_vocab, int32_t token, uint32_t n, is_likely *out, uint32_t *n_out)
{
    const double norm = normaliser(logits, n_vocab);

    *n_out = 1 + likeliest(logits, n_vocab, n, out + 1);
    out[0] = (is_likely){ token, logits[token] };
    for (uint32_t i = 0; i < *n_out; i++) out[i].logprob -= norm;
}
