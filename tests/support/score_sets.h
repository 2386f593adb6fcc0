/* score_sets.h - memories with four kinds of questions, to measure the score that users see.
 *
 * The facts are those of invented memories (eval/synth_memory.h), either of all ten people or some
 * of one of them: a memory in which one name stands in every fact. The constants of
 * src/recall/score.c were fitted to seed 1 (bench/fit_scores.py); what is reported is of seeds from
 * 1000 on. */
#ifndef SUPPORT_SCORE_SETS_H
#define SUPPORT_SCORE_SETS_H

#include <stddef.h>
#include <stdint.h>

#include "eval/synth_memory.h"

typedef enum score_kind {
    SCORE_ANSWERED,   /* facts of the memory answer it */
    SCORE_UNTOLD,     /* about a person of the memory, of what nobody told */
    SCORE_FOREIGN,    /* about nobody and nothing of the memory */
    SCORE_WORD,       /* no question: one word that a fact of the memory has */
    SCORE_KINDS
} score_kind;
extern const char *const score_kind_names[SCORE_KINDS];

enum { SCORE_ANSWERS = 8, SCORE_QUESTION = 160, SCORE_FACTS = 256, SCORE_QUESTIONS = 400 };

typedef struct score_question {
    score_kind kind;
    char text[SCORE_QUESTION];
    uint32_t answers[SCORE_ANSWERS]; /* [n_answers] facts, by number */
    size_t n_answers;
} score_question;

typedef struct score_set {
    synth_memory memory;              /* owned: the texts are its */
    const char *facts[SCORE_FACTS];
    size_t n_facts;
    score_question questions[SCORE_QUESTIONS];
    size_t n_questions;
} score_set;

enum { SCORE_TEN_PEOPLE = 0, SCORE_ONE_PERSON = SCORE_FACTS };

/* Memory `number` of a seed: all of it (size SCORE_TEN_PEOPLE), or `size` facts of people[person],
 * drawn at random, all of them if it has no more. Of either, the questions are about that person.
 * Freed with score_set_free. NULL = out of memory. */
score_set *score_set_make(uint64_t seed, uint32_t number, size_t person, size_t size);
void score_set_free(score_set *s);

#endif
