/* metrics_answer.c - what an answer adds to the metrics. */
#include <string.h>

#include "serve/metrics.h"
#include "serve/reasons.h"

/* The reasons, by words of their sentences (src/api notes them; tests/test_ops.c makes them happen). Several may hold at once. */
static const struct { const char *reason, *words; } REASONS[] = {
    { "not_encoded", "had no KV and were computed" },
    { "no_injection", "KV cannot be injected" },
    { "damaged", "segments were missing or damaged" },
    { "refused", "the engine refused the stored rows" },
    { "computed_after_all", "stored facts were computed after all" },
    { "context_full", "were left out: the context" },
    { "turns_dropped", "oldest turns were left out" },
    { "placement_not_kept", "could not be kept" },
    { "words_only", "found by words only" },
    { "nothing_remembered", "nothing is remembered" },
    { "changed_meanwhile", "it ends here" },
    { "changed_earlier", "was forgotten or changed: " },
    { "other", NULL },
};
enum { N_REASONS = sizeof REASONS / sizeof *REASONS };

size_t is_metrics_n_reasons(void)
{
    return N_REASONS;
}

const char *is_metrics_reason(size_t i)
{
    return REASONS[i].reason;
}

void is_metrics_reasons(const char *fallback, bool *has)
{
    bool any = false;

    for (size_t i = 0; i + 1 < N_REASONS; i++) any |= has[i] = strstr(fallback, REASONS[i].words) != NULL;
    has[N_REASONS - 1] = fallback[0] && !any;
}

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
    bool has[N_REASONS];

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
    is_metrics_reasons(a->fallback ? a->fallback : "", has);
    for (size_t i = 0; i < N_REASONS; i++)
        if (has[i]) is_metric_add(m, IS_M_FALLBACKS, is_metrics_reason(i), NULL, 1);
}
