/* locomo.h - reader of LoCoMo files as published (evaluation only; the data never ships). */
#ifndef IS_EVAL_LOCOMO_H
#define IS_EVAL_LOCOMO_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct locomo_turn {
    char *dia_id, *speaker, *text, *caption; /* caption "" if there is none */
    int session;
    int64_t time;                            /* of the session, epoch UTC */
} locomo_turn;
typedef struct locomo_observation {
    char *speaker, *text;
    char **dia_ids; size_t n_dia_ids;        /* the turns it cites */
    int session;
    int64_t time;
} locomo_observation;
typedef struct locomo_qa {
    char *question, *answer;                 /* numbers as text; category 5: the adversarial answer */
    char **evidence; size_t n_evidence;      /* dia_ids */
    int category;
} locomo_qa;
typedef struct locomo_conversation {
    char *id;
    locomo_turn *turns; size_t n_turns;                         /* in order */
    locomo_observation *observations; size_t n_observations;    /* in session order */
    locomo_qa *qa; size_t n_qa;
} locomo_conversation;
typedef struct locomo { locomo_conversation *conversations; size_t n; } locomo;

/* Any number of conversations. E_PARSE names the place and what was expected. */
is_status locomo_parse(const char *json, size_t n, locomo **out);
is_status locomo_load(const char *path, locomo **out);
void locomo_free(locomo *l);
const locomo_conversation *locomo_find(const locomo *l, const char *id); /* NULL = not there */
/* What a turn says, with the caption of its picture: "text [caption]"; "" if there is neither. is_free'd; NULL = out of
 * memory. */
char *locomo_turn_text(const locomo_turn *t);
/* "1:56 pm on 8 May, 2023" -> epoch; 0 if it does not parse. */
int64_t locomo_time(const char *s);

#endif
