/* recall_eval.h - how much of the gold evidence does recall find? (evaluation only)
 *
 * Each conversation is remembered in a partition of a temporary bank; each question is asked of it. A question's recall is the
 * part of its evidence turns that the k results credit: a turn credits itself, an observation the turns it cites. */
#ifndef IS_EVAL_RECALL_EVAL_H
#define IS_EVAL_RECALL_EVAL_H

#include "embed/embed.h"
#include "eval/locomo.h"

enum { RECALL_EVAL_MAX_K = 8 };

typedef struct recall_eval_opts {
    const char *conversation;                  /* one id; NULL = all */
    uint32_t k[RECALL_EVAL_MAX_K]; size_t n_k; /* 1 .. 1000 each */
    is_embedder *embedder;                     /* NULL = lexical only */
    inferscale_progress_fn on_progress;        /* may be NULL */
    void *progress_ctx;
} recall_eval_opts;

typedef struct recall_eval_row {
    const char *store, *method;                /* "turns" "facts" "both"; "lexical" "dense" "fused" */
    const char *categories;                    /* "1-4", "1" .. "5" */
    uint32_t k;
    double recall;                             /* mean over questions, 0 .. 1 */
    size_t n;                                  /* questions with at least one evidence turn in the conversation */
} recall_eval_row;

typedef struct recall_eval_report {
    recall_eval_row *rows; size_t n_rows;
    size_t n_conversations, n_turns, n_facts, n_questions;
    double embed_ms;                           /* a question, median */
    double recall_ms;                          /* a fused search of both stores (lexical if there is no embedder), median */
} recall_eval_report;

/* Runs all stores, methods, categories and k. *out is freed with recall_eval_free. E_NOTFOUND: no such conversation. */
is_status recall_eval_run(const locomo *l, const recall_eval_opts *opts, recall_eval_report **out);
void recall_eval_free(recall_eval_report *r); /* NULL is allowed */

#endif
