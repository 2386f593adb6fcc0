/* quiz.h - what `eval accuracy` asks: stores of facts with questions whose right answers are known.
 * Where they come from: an invented memory (synth_memory.h), or a file of LoCoMo. */
#ifndef IS_EVAL_QUIZ_H
#define IS_EVAL_QUIZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "eval/locomo.h"

enum { QUIZ_CHOICES = 4, QUIZ_ANSWERS = 2, QUIZ_TYPES = 8 };

typedef struct quiz_fact {
    char *text;
    int64_t time;            /* when it happened, epoch UTC */
} quiz_fact;

typedef struct quiz_question {
    uint32_t type;           /* index into quiz.types */
    char *text;
    char *answers[QUIZ_ANSWERS]; /* the right one, then other words for it; NULL = no more */
    bool is_list;            /* its answer is several, with commas between (LoCoMo's multi-hop) */
    uint32_t *evidence;      /* [n_evidence] indexes of the facts that give the answer, the most */
    size_t n_evidence;       /* telling first */
    char *choices[QUIZ_CHOICES]; /* all different; NULL = there are none (LoCoMo) */
    uint32_t right;          /* which of them is right */
} quiz_question;

/* One memory. Owned by whoever took it from the quiz: quiz_store_free. */
typedef struct quiz_store {
    char *id;
    quiz_fact *facts;
    size_t n_facts;
    quiz_question *questions; /* in the order in which they are asked */
    size_t n_questions;
    const locomo_conversation *talk; /* facts[i] is its observation i; borrowed; NULL = invented */
} quiz_store;
void quiz_store_free(quiz_store *s); /* NULL is allowed */

typedef struct quiz quiz;
struct quiz {
    const char *name;        /* "synthetic" or "locomo" */
    const char *types[QUIZ_TYPES];
    size_t n_types;
    uint8_t digest[IS_HASH_BYTES]; /* of all that decides what is asked */
    uint64_t seed;
    const locomo *data;      /* NULL = invented; borrowed */
    size_t n;                /* of its questions; 0 = endless */
    double margin;           /* "no worse" means: by no more than this share of the questions */
    is_status (*make)(const quiz *q, uint32_t index, quiz_store **out); /* as quiz_store_at */
};

/* Invented people; endless. Seeds below 1000 are for development. */
is_status quiz_synthetic(uint64_t seed, quiz *out);
/* A file of LoCoMo as published: n questions of categories 1 to 4 (fewer if it has fewer), drawn
 * from its conversations in proportion to what they have; the observations are the facts. */
is_status quiz_locomo(const locomo *data, uint64_t seed, size_t n, quiz *out);
/* The quiz's store number `index`, from 0; E_NOTFOUND = there are no more. */
is_status quiz_store_at(const quiz *q, uint32_t index, quiz_store **out);

#endif
