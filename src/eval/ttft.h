/* ttft.h - time to first token of one question in four ways, interleaved in one process:
 *
 *   text      the k facts computed as text, with the settings that are best for text
 *   plain     the prompt of a usual memory stack (plain.h), with the settings of text
 *   injected  their stored rows injected
 *   floor     the same tokens as an exact prefix hit: nothing but footer and question is computed,
 *             and nothing is copied; no way of serving these facts can be faster
 *
 * Each arm runs the product's whole way from question to first token (search, plan, run, sample) on
 * a handle of its own, so that one arm's cells never lengthen another's cache. Searching is the
 * same work in all; its time is measured once a round and counted to each arm. All arms have the
 * header cached, plain what it shares with another user's prompt. Injected and floor use the same
 * flash-attention setting. Text's settings (flash attention, tokens of one decode) are found by
 * trying all of them at each k. */
#ifndef IS_EVAL_TTFT_H
#define IS_EVAL_TTFT_H

#include "eval/lab.h"
#include "eval/stats.h"

enum { TTFT_SIZES = 16, TTFT_VAULTS = 3, TTFT_BATCHES = 3 };

/* Tokens of one decode that are tried for text: the most that an engine here takes, and fewer. */
extern const uint32_t ttft_batches[TTFT_BATCHES];

typedef struct ttft_options {
    inferscale_options store;      /* model, engine, threads, policy, ...; flash_attention AUTO = the best of both */
    const char *const *texts;      /* [n_facts] what is remembered; enough for the largest k */
    const int64_t *times;
    size_t n_facts;
    const char *question;
    uint32_t k[TTFT_SIZES];
    size_t n_k;
    uint32_t runs;                 /* rounds; medians are reported */
    uint64_t seed;                 /* of the arms' order within a round */
    const volatile int *cancel;
    inferscale_progress_fn on_progress;
    void *progress_ctx;
} ttft_options;

/* Medians over rounds, in milliseconds. Retrieval is in the arms' times (text_ms ... floor_ms). */
typedef struct ttft_row {
    const char *vault;             /* where the segments were: "ram", "page_cache" (in files the OS holds), "cold" (on disk) */
    uint32_t k, fact_tokens;
    uint32_t question_tokens;      /* computed by the injected arm: footer, question and closing tokens */
    uint32_t n;                    /* rounds */
    uint32_t plain_tokens;         /* the plain prompt's, all in all */
    uint32_t plain_computed;       /* of these; the others stayed of another user's prompt */
    uint32_t text_computed;
    double text_ms, plain_ms, injected_ms, floor_ms;
    double text_lo, text_hi, plain_lo, plain_hi, injected_lo, injected_hi, floor_lo, floor_hi;
    stats_ratio text_over_injected, plain_over_injected; /* 95% intervals; lo, hi are quartiles */
    double embed_ms, recall_ms;    /* in all arms */
    double plan_ms, compose_ms, inject_ms, question_ms; /* of the injected arm; plan: facts and segments looked up */
    bool text_fa, injected_fa;     /* flash attention; plain has text's */
    uint32_t text_batch;           /* of ttft_batches; plain has it too */
    /* the trials behind the choices: flash attention off, on; 0 = not tried */
    double text_trial_ms[2][TTFT_BATCHES], injected_fa_ms[2];
} ttft_row;

/* rows[n_k * TTFT_VAULTS], by k, then vault; *n as far as it came (all of a k or none). What is measured is checked: the
 * injected arm injects every fact token, the floor computes as much as it. E_UNSUPPORTED if the model cannot be injected. */
is_status ttft_run(const ttft_options *options, ttft_row *rows, size_t *n, inferscale_model_info *info);

/* For both executions: a memory with the options' facts, encoded; lab_close, whatever comes back. E_UNSUPPORTED if nothing can be injected. */
is_status ttft_open(const ttft_options *o, lab **l, inferscale_model_info *info);

#endif
