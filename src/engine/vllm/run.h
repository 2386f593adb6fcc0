/* run.h - one live sequence: what was fed, which of it is stored, and the request that computes its next tokens. */
#ifndef IS_ENGINE_VLLM_RUN_H
#define IS_ENGINE_VLLM_RUN_H

#include "engine/vllm/internal.h"

struct is_run {
    vllm *e;
    is_realm realm;
    bool owned;                     /* has a realm */
    bool apart;                     /* no_prefix_cache: a salt of its own */
    vllm_flags flags;
    void (*on_begun)(void *ctx);    /* until it was called */
    void *begun_ctx;

    /* The sequence (prompt.c) */
    int32_t *tokens;
    uint32_t n, cap;
    vllm_part *parts;               /* stored parts of all turns, the header's first, ascending */
    uint32_t n_parts, cap_parts;
    uint32_t n_header, n_first;     /* tokens before the first turn's memory; parts of the first turn */
    uint8_t salt[IS_HASH_BYTES], key[IS_HASH_BYTES]; /* key: the salt of attempt 0 */
    uint32_t attempt;

    vllm_part tail;                 /* rows of this turn alone: from what the server has up to the new facts. n_tokens 0 = none (tail.c) */
    uint32_t n_ahead_computed;      /* tokens that its captures computed */

    /* Choosing (request.c) */
    is_sampling how;                /* its pointers are ours */
    uint32_t n_predict, n_ahead, fed_from; /* fed_from: where the answer begins */
    int want_logprobs;              /* as vllm_stream has it */
    bool led;                       /* another token was fed than the model would have taken */

    /* The request under way (run.c) */
    uint8_t id[16];
    uint64_t n_secret;              /* which secret its ticket was signed with */
    vllm_line *line;
    vllm_call *call;
    vllm_stream stream;
    uint32_t up, at, n_asked;       /* at: tokens of its prompt; n_asked: max_tokens */
    bool has_up, handed, gave_stop; /* handed: the caller has seen something of it; gave_stop: its end was handed out as a token */
    vllm_token next;                /* the token that the caller sees next */
    bool has_next;

    /* What came of it (run_stats.c) */
    is_run_stats stats;
    uint32_t n_before, n_planned;   /* fed before this begin or more; tokens of its prompt that need not be computed, as planned */
    uint32_t plan_stored;           /* stored tokens of this plan */
    bool again;                     /* vLLM may have some of what was new in it: it was sent before */
    bool settled, began;            /* settled: what was injected is known; began: at least one token came */
    bool has_cached;                /* the first request's stream said what was cached */
    uint32_t n_cached;
};

/* Appends the plan's parts. On failure the caller goes back to what was before. */
is_status vllm_prompt_add(is_run *r, const is_plan *plan, bool first);
/* The salt for what is stored now; after an add that was the first, and when the epoch or the attempts change. */
is_status vllm_prompt_salt(is_run *r);
is_status vllm_prompt_room(is_run *r, uint64_t n);

is_status vllm_sampling_take(is_run *r, const is_run_opts *opts);
void vllm_sampling_free(is_run *r);
/* The JSON of the request for the next tokens; E_UNSUPPORTED where it cannot be what the whole answer's would have been. */
is_status vllm_request_make(is_run *r, char **body);

/* Stored parts of this plan that stand behind computed tokens are brought within reach: what stands before them is computed and captured, under
 * the run's salt. What does not succeed is computed, and it is said why. E_CANCELLED, E_NOMEM, E_STALE: those ends. */
is_status vllm_tail_bridge(is_run *r);
void vllm_tail_drop(is_run *r);
/* The stored parts within the first n tokens, the tail among them (is_free). */
is_status vllm_tail_parts(const is_run *r, uint32_t n, vllm_part **out, uint32_t *n_out);
/* How far stored rows reach without a gap from `at` on. */
uint32_t vllm_tail_reach(const is_run *r, uint32_t at);

/* Before a begin or more: what is planned of it. After: what came. */
void vllm_stats_plan(is_run *r);
/* The answer is over: finds out, by asking the connector if need be, what was injected. Waits for a moment at most. */
void vllm_stats_settle(is_run *r);

#endif
