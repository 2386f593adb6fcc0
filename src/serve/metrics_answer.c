/* metrics_answer.c - what an answer adds to the metrics. */
#include <string.h>

#include "serve/metrics.h"

static const char *mode_name(int mode)
{
    return mode == INFERSCALE_MODE_KV ? "kv" : mode == INFERSCALE_MODE_TEXT ? "text" : "none";
}

static void count_facts(is_metrics *m, const inferscale_answer *a)
{
    static const char *const sources[] = { "stored", "computed", "resident" };

    for (int source = INFERSCALE_SOURCE_STORED; source <= INFERSCALE_SOURCE_RESIDENT; source++) {
        size_t n = 0;

        for (size_t i = 0; i < a->n_facts; i++) n += a->facts[i].source == source;
        is_metric_add(m, IS_M_FACTS, sources[source - INFERSCALE_SOURCE_STORED], NULL, (double)n);
    }
}

void is_metrics_answer(is_metrics *m, const inferscale_answer *a)
{
    const char *mode;

    if (m == NULL || a == NULL) return;
    mode = mode_name(a->mode);
    if (a->tokens_answer > 0) is_metric_observe(m, IS_M_TTFT, mode, a->ttft_ms / 1000);
    if (a->tokens_answer > 1)
        is_metric_observe(m, IS_M_TPOT, mode, (a->total_ms - a->ttft_ms) / 1000 / (a->tokens_answer - 1));
    is_metric_observe(m, IS_M_E2E, mode, a->total_ms / 1000);
    count_facts(m, a);
    is_metric_add(m, IS_M_TOKENS_PROMPT, "computed", NULL, a->tokens_computed);
    is_metric_add(m, IS_M_TOKENS_PROMPT, "injected", NULL, a->tokens_injected);
    is_metric_add(m, IS_M_TOKENS_PROMPT, "resident", NULL, a->tokens_resident);
    is_metric_add(m, IS_M_TOKENS_ANSWER, NULL, NULL, a->tokens_answer);
    is_metric_add(m, IS_M_PLACEMENTS, "kept", NULL, (double)a->n_placed_kept);
    is_metric_add(m, IS_M_PLACEMENTS, "new", NULL, (double)a->n_placed_new);
    is_metric_add(m, IS_M_PLACEMENTS, "lost", NULL, (double)a->n_placed_lost);
    is_metric_add(m, IS_M_FINISHED, a->finish ? a->finish : "other", mode, 1);
    for (unsigned i = 0; i < INFERSCALE_N_FALLBACKS; i++)
        if (a->fallbacks >> i & 1) is_metric_add(m, IS_M_FALLBACKS, inferscale_fallback_name(i), NULL, 1);
    /* A reason without a code is none of ours; it is counted all the same. */
    if (!a->fallbacks && a->fallback && *a->fallback) is_metric_add(m, IS_M_FALLBACKS, "other", NULL, 1);
}
