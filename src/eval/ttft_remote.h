/* ttft_remote.h - time to first token of one question through an engine that computes elsewhere (vLLM), in five ways, interleaved:
 *
 *   text      the k facts computed as text, in a prompt that nothing is cached of
 *   plain     the prompt of a usual memory stack (plain.h), of which nothing is cached either; making
 *             its tokens is not in its time
 *   injected  their stored rows injected, under an epoch of its own: nothing of them is cached either
 *   repeat    the same prompt under the same epoch again: what the server keeps itself; nothing that serves these facts there is faster
 *   none      the question without memory
 *
 * The times are the product's whole way: search, plan, request, first token. Searching is the same work in all; its time is measured once
 * a round and counted to each arm. */
#ifndef IS_EVAL_TTFT_REMOTE_H
#define IS_EVAL_TTFT_REMOTE_H

#include "eval/stats.h"
#include "eval/ttft.h"

enum { TTFT_R_TEXT, TTFT_R_PLAIN, TTFT_R_INJECTED, TTFT_R_REPEAT, TTFT_R_NONE, TTFT_R_ARMS };
extern const char *const ttft_remote_arms[TTFT_R_ARMS];

typedef struct ttft_remote_arm {
    double ms, lo, hi;             /* median and quartiles over the rounds */
    uint32_t computed, injected, resident; /* tokens, of the last round */
} ttft_remote_arm;

typedef struct ttft_remote_row {
    uint32_t k, n, n_prompt, fact_tokens;
    ttft_remote_arm arms[TTFT_R_ARMS];
    double embed_ms, recall_ms, plan_ms;
    stats_ratio text_over_injected, plain_over_injected, injected_over_repeat, injected_over_none;
} ttft_remote_row;

/* One row a size of options->k (all >= 1). E_UNSUPPORTED if nothing can be injected there, E_ENGINE if rows were not injected. */
is_status ttft_remote_run(const ttft_options *options, ttft_remote_row *rows, size_t *n, inferscale_model_info *info);

#endif
