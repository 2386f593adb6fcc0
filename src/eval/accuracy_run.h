/* accuracy_run.h - a run of `eval accuracy` under work (private to accuracy*.c). */
#ifndef IS_EVAL_ACCURACY_RUN_H
#define IS_EVAL_ACCURACY_RUN_H

#include "eval/accuracy_log.h"
#include "eval/grade.h"
#include "eval/plain.h"
#include "plan/plan.h"

enum { ACCURACY_KINDS = ACCURACY_POLICIES + 1 /* policies without repetition, and header */ };

typedef struct accuracy_work {
    lab *l;
    const accuracy_options *o;
    accuracy *a;
    is_engine *engine;
    grader *grader;
    accuracy_log *log; /* NULL = results are not kept */
    is_policy kinds[ACCURACY_KINDS];
    size_t n_kinds;
    int of[ACCURACY_POLICIES], header; /* the kinds of a policy, and of header; -1 = not wanted */
    uint8_t shuffle[IS_KEY_BYTES];     /* random orders of pages and company are the seed's */
    const quiz_store *store;           /* the one at hand */
    int64_t *fact_ids;                 /* [store->n_facts] */
    uint64_t total;                    /* questions, for the progress */
} accuracy_work;

/* E_CANCELLED if the listener or the cancel flag says so. */
is_status accuracy_progress(accuracy_work *w, const char *what);

/* ---- accuracy_store.c ------------------------------------------------------------------------ */

/* Which policies are to be encoded for the arms. */
is_status accuracy_kinds(accuracy_work *w);
/* Enters the store's facts as a user's memory; w->store and w->fact_ids are set. */
is_status accuracy_remember(accuracy_work *w, const quiz_store *s);
/* Embeds and encodes them as the product does. */
is_status accuracy_encode(accuracy_work *w);
/* Forgets them and their rows. */
is_status accuracy_forget(accuracy_work *w);

/* The k best facts, the best first; *ids is is_free'd. */
is_status accuracy_find(accuracy_work *w, const quiz_question *q, int64_t **ids, size_t *n);

/* An arm's prompt over facts ids[n], the best first. Arms with memory: what does not fit is
 * E_CONTEXT. */
is_status accuracy_plan(accuracy_work *w, const accuracy_arm *arm, const quiz_question *q,
                        const int64_t *ids, size_t n, is_planned **out);

/* The plain prompt over facts ids[n], the best first; all of it but the last token may be kept, as it
 * is asked several times. E_CONTEXT: it does not fit. Freed with plain_prompt_free. */
is_status accuracy_plain(accuracy_work *w, const quiz_question *q, const int64_t *ids, size_t n,
                         plain_prompt *out);

/* ---- accuracy_measure.c ---------------------------------------------------------------------- */

/* What is looked for in one question's answers. */
typedef struct accuracy_key {
    const quiz_question *question;
    is_tokens options[QUIZ_CHOICES]; /* of the choices; without them of the right answer alone */
    size_t n_options, right;
} accuracy_key;
is_status accuracy_key_new(accuracy_work *w, const quiz_question *q, accuracy_key *out);
void accuracy_key_free(accuracy_key *key);

/* The greedy answer to the prompt, graded, and the likelihoods. */
is_status accuracy_measure(accuracy_work *w, const is_plan *plan, const accuracy_key *key,
                           accuracy_mark *out);

/* ---- accuracy_judge.c ------------------------------------------------------------------------ */

/* 1 right, 0 wrong, -1 no judge, or it said neither. E_IO: it does not answer, or not with 200. */
is_status accuracy_ask_judge(accuracy_work *w, const quiz_question *q, const char *answer,
                             int *out);

#endif
