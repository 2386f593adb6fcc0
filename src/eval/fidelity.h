/* fidelity.h - how much does injected memory change the answer, measured without a judge (docs/evaluation.md).
 *
 * Arms, for each question over the same retrieved facts with the same token ids:
 *
 *   A       the text twin: everything computed jointly; the reference
 *   B       injected, one for each encoding policy and number of repaired facts; "F1:policy" takes the plan's first stored
 *           fact from its rows behind the bare header, which are exact there, and the others from the policy
 *   C       no memory
 *   D       the question's own evidence only, as text (optional)
 *   N       A batched otherwise: the numerical floor
 *   S       the yardstick: A with its facts in another order, the best one still last; mean of several seeded permutations
 *   S_free  the same with the best one anywhere
 *
 * With a client's system text (client_system) the prompt is asked behind that, too: A, C, N, S and S_free once more, and instead of B
 *
 *   generic   rows that were encoded behind our own header stand behind the client's: what the server does with `header: generic`
 *   matching  rows that were encoded behind the client's header: what a store with that system text would inject
 *
 * both over the same tokens and measured against the text twin of that prompt, not against ours. Where the policy has rows behind the
 * bare header, matching takes the first fact's from there (exact); behind another header they are not, and generic takes none, as the
 * server does. In the layout `front` a question without earlier turns is the same prompt, token for token, so it has no arm.
 *
 * Each is led along A's own greedy answer and compared with A: mean KL(A || arm) a token. The order ratio is an arm's mean KL
 * over a reordering's. A reordering is a change nobody would call an error; below 1 an arm is closer to A than that. */
#ifndef IS_EVAL_FIDELITY_H
#define IS_EVAL_FIDELITY_H

#include "base/hash.h"
#include "eval/lab.h"
#include "eval/stats.h"

enum { FIDELITY_POLICIES = 16, FIDELITY_REPAIRS = 4, FIDELITY_ARMS = 3 * FIDELITY_POLICIES * FIDELITY_REPAIRS + 11 };

/* Arms that can be left out. */
enum { FIDELITY_SKIP_C = 1, FIDELITY_SKIP_S = 2, FIDELITY_SKIP_S_FREE = 4 };

/* What an arm B injects. */
typedef struct fidelity_variant {
    is_policy policy;
    bool first_exact;         /* F1: */
    char name[40];
} fidelity_variant;
is_status fidelity_variant_parse(const char *text, fidelity_variant *out); /* "POLICY" or "F1:POLICY"; E_INVALID */

typedef struct fidelity_options {
    const locomo_conversation *const *conversations; /* [n_conversations] */
    size_t n_conversations;
    fidelity_variant policies[FIDELITY_POLICIES];
    size_t n_policies;
    uint32_t repairs[FIDELITY_REPAIRS];  /* the m best facts computed; 0 = none */
    size_t n_repairs;
    uint32_t k;               /* facts a question, 1..1000 */
    size_t n_questions;       /* drawn without replacement from categories 1-4; fewer if there are fewer */
    uint32_t n_tokens;        /* of the answer */
    uint32_t n_orders;        /* permutations of each yardstick */
    uint32_t floor_batch;     /* decode size of arm N */
    int method;               /* retrieval: INFERSCALE_LEXICAL, ... */
    bool gold;                /* run arm D */
    bool no_nll;              /* leave out the gold answer's likelihood: a third faster */
    unsigned skip;            /* FIDELITY_SKIP_C ... */
    uint32_t floor_every;     /* N is measured in every so many questions; 0 or 1 = in all */
    const char *client_system; /* also behind this system text; NULL = only behind our own */
    uint64_t seed;
    const volatile int *cancel;          /* may be NULL; what is complete by then is kept */
    inferscale_progress_fn on_progress;  /* may be NULL */
    void *progress_ctx;
} fidelity_options;

/* One arm's measurements; [i] is question i's, NaN where it has none (D without evidence, the orders' nll). */
typedef struct fidelity_arm {
    char name[12];
    bool client;              /* behind the client's system text, and against the text twin there */
    const char *policy;       /* B, generic, matching; else NULL. Borrowed from the options */
    uint32_t repair;          /* likewise */
    double cost;              /* likewise: tokens computed a token stored when the conversations' facts were encoded, all copies */
    double *kl, *kl_first, *top1, *nll;
} fidelity_arm;

/* Which question it was, without its text. Two runs that had the same prompts have the same hash: it covers the tokens of A and of every
 * reordering of it, so facts, their order, the question and the permutations. The answer is what A gave, on this engine. */
typedef struct fidelity_question {
    uint32_t index;           /* in its conversation's list of questions */
    uint32_t n_answer;        /* tokens compared */
    uint8_t prompts[IS_HASH_BYTES], answer[IS_HASH_BYTES];
} fidelity_question;

typedef struct fidelity {
    fidelity_arm arms[FIDELITY_ARMS];    /* arms[0] is A: only its nll means something */
    size_t n_arms;
    size_t n_questions;       /* complete; the arrays' length */
    size_t n_skipped;         /* drawn, but retrieval found fewer than k facts: replaced by others */
    uint32_t *group;          /* [n_questions] the conversation's index */
    fidelity_question *questions; /* [n_questions] */
    size_t n_conversations;
    double prompt_tokens, fact_tokens;   /* mean a question */
    bool cancelled;
} fidelity;

/* Encodes what is needed, then question by question, arm by arm. Loads the lab's model. E_UNSUPPORTED if the model cannot be
 * injected. *out is freed with fidelity_free; a cancelled run with one complete question or more is OK. */
is_status fidelity_run(lab *l, const fidelity_options *options, fidelity **out);
void fidelity_free(fidelity *f);

/* What is reported of an arm: means over questions with 95% intervals (questions are resampled; conversations, if there are
 * several). */
typedef struct fidelity_row {
    const char *arm, *policy;
    bool client;
    uint32_t repair;
    size_t n;                 /* questions */
    const double *each;       /* [fidelity.n_questions] mean KL of each question, NaN where it was not measured; borrowed */
    double kl_mean, kl_median, kl_p90, kl_first, top1;
    stats_interval kl;
    double nll_delta;         /* gold answer, nats a token, against A; NaN = not measured */
    stats_interval nll;
    /* Order ratios; void (NaN) unless the yardstick's mean KL is above 5 times that of N. */
    double ratio_free, ratio_last;               /* against S_free and S */
    stats_interval ratio_free_i, ratio_last_i;
    double memory_kept;       /* (NLL_C - NLL_X) / (NLL_C - NLL_A); NaN if its denominator's interval holds 0 */
    stats_interval memory_kept_i;
    double cost;              /* B, generic, matching: tokens computed a token stored; else NaN */
} fidelity_row;

/* rows[FIDELITY_ARMS]: B, C, D, N, S, S_free, then generic, matching, C, N, S, S_free of the client's, in the order measured (A is the
 * reference and has none); *n = how many. Ratios and likelihoods are against the arms behind the same system text. */
is_status fidelity_rows(const fidelity *f, uint64_t seed, fidelity_row *rows, size_t *n);

#endif
