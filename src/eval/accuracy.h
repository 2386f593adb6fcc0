/* accuracy.h - are answers from injected memory as often right as answers from the same facts as
 * text?
 *
 * Each question is asked in several arms; those with retrieved facts have the same k facts, found
 * once:
 *
 *   none              no memory
 *   gold              only the facts that give the answer, as text
 *   text              the facts as text in the order of retrieval, the best last (first with
 *                     best_first): the reference
 *   injected POLICY   the facts' stored rows, in the order in which they are served
 *   twin POLICY       the text twin of that: the same tokens in the same order, computed
 *   plain             the prompt of a usual memory stack (plain.h), if it is asked for
 *
 * An answer is greedy and graded by its words (grade.h). Of the same prompt: the likelihood of the
 * right answer, and whether it is the likeliest of the question's choices (mean log-likelihood a
 * token). A prompt that two text arms share is run once. */
#ifndef IS_EVAL_ACCURACY_H
#define IS_EVAL_ACCURACY_H

#include "eval/fidelity.h"
#include "eval/paired.h"
#include "eval/quiz.h"

enum {
    ACCURACY_POLICIES = 6,
    ACCURACY_ARMS = 4 + 2 * ACCURACY_POLICIES,
    ACCURACY_QUESTIONS = 8000
};

typedef enum accuracy_kind {
    ARM_NONE,
    ARM_GOLD,
    ARM_TEXT,
    ARM_INJECTED,
    ARM_TWIN,
    ARM_PLAIN
} accuracy_kind;

/* Who is asked whether an answer is right; url NULL = nobody. All borrowed. */
typedef struct accuracy_judge {
    const char *url, *key, *model; /* an OpenAI endpoint; key NULL = none */
} accuracy_judge;

typedef struct accuracy_options {
    const quiz *quiz;
    fidelity_variant policies[ACCURACY_POLICIES]; /* [n_policies] 1 or more */
    size_t n_policies;
    /* facts a question, 1..1000; fewer where a store has fewer */
    uint32_t k;
    size_t n_questions;      /* at most; fewer if the quiz has fewer */
    uint32_t n_tokens;       /* of an answer, at most */
    int method;              /* retrieval: INFERSCALE_FUSED, ... */
    bool no_twins;           /* leave out the text twins */
    bool plain;              /* add the arm plain */
    bool best_first;         /* the best fact stands first, not last, in all arms but plain */
    const paired_rule *rule; /* when to stop; NULL = when all are asked */
    /* a file of results that is continued, or begun; NULL = none */
    accuracy_judge judge;
    const char *results;
    const volatile int *cancel;         /* may be NULL */
    inferscale_progress_fn on_progress; /* may be NULL */
    void *progress_ctx;
} accuracy_options;

typedef struct accuracy_arm {
    accuracy_kind kind;
    /* of injected and twin; borrowed from the options; else "" */
    const char *policy;
    char name[56]; /* "injected F1:company:10" */
} accuracy_arm;

/* What one arm made of one question. */
typedef struct accuracy_mark {
    /* false: this arm has no such question (gold without evidence) */
    bool asked;
    bool right;
    double f1, nll; /* nll: of the right answer, nats a token */
    /* 1: the right choice was the likeliest, 0: another; -1: there are none */
    int choice;
    int judged; /* by the judge: 1 right, 0 wrong, -1 not asked, or neither was said */
} accuracy_mark;

typedef struct accuracy_question {
    uint32_t type; /* index into quiz.types */
    /* share of the evidence among the k facts; NaN without evidence */
    double recall;
    accuracy_mark marks[ACCURACY_ARMS]; /* of the arms */
} accuracy_question;

typedef struct accuracy {
    accuracy_arm arms[ACCURACY_ARMS];
    size_t n_arms, text;          /* arms[text] is the reference */
    accuracy_question *questions; /* [n] question i of the quiz */
    size_t n, n_before;           /* done; of these read from the file of results */
    bool complete;                /* nothing is left to ask: all are, or the rule ended it */
} accuracy;

/* Goes on from what the file of results holds. Loads the lab's model. *out is set also when it
 * fails, with what is done (NULL only if nothing could begin), and freed with accuracy_free.
 * E_CANCELLED: told to stop; what is done is in the file. E_INVALID: the file is of another
 * configuration; E_PARSE: it holds something else; E_BUSY: another run writes it; E_UNSUPPORTED:
 * the model cannot be injected. */
is_status accuracy_run(lab *l, const accuracy_options *options, accuracy **out);
void accuracy_free(accuracy *a); /* NULL is allowed */

/* ---- What is reported ------------------------------------------------------------------------ */

/* An arm against another over the same questions. */
typedef struct accuracy_against {
    paired_counts counts;
    stats_interval interval; /* 95%, of the difference */
    double p;                /* exact McNemar */
    /* by the rule; PAIRED_OPEN where the type is not testable */
    paired_verdict verdict;
    /* questions of the run after which the rule gave it; 0 = open */
    size_t decided_at;
} accuracy_against;

typedef struct accuracy_row {
    const char *type; /* "all": every type; "testable": those that count */
    bool testable;    /* text beats no memory by ACCURACY_TESTABLE or more */
    const accuracy_arm *arm;
    size_t n;                                      /* questions */
    double right, f1, nll, choice, judged, recall; /* means; NaN where there is nothing */
    stats_interval right_i;                        /* 95%, Wilson's */
    size_t n_judged; /* of the n questions, those that the judge decided */
    bool has_text, has_twin;
    accuracy_against text, twin; /* injected: against text, against its own twin;
                                     plain: against text */
} accuracy_row;

/* 0.2: text's share of right answers less that without memory */
extern const double accuracy_testable;
enum { ACCURACY_ROWS = (QUIZ_TYPES + 2) * ACCURACY_ARMS };

/* rows[ACCURACY_ROWS], type by type, then all, then testable. */
void accuracy_rows(const accuracy *a, const accuracy_options *o, accuracy_row *rows, size_t *n);
/* Has the rule decided about every injected arm, at its looks over the first questions? */
bool accuracy_decided(const accuracy *a, const accuracy_options *o);

#endif
