/* synth_memory.h - an invented memory: ten people, what is known of each, and questions whose
 * answers follow from it. No third-party text; the same bytes for the same seed and number on every
 * machine.
 *
 *   single     one fact says it
 *   two hops   one fact says who somebody's cousin is, another says something of that person
 *   time       the first or the last of several dated facts
 *   update     two facts of the same thing; the newer one holds
 *   negation   what somebody likes and what somebody does not like; the question asks for one of
 * them
 *   count      how many facts of a kind there are
 *
 * Every fact has several wordings, and so has every question. What a fact says stands beside its
 * text as a record, and what a question asks as a query, so that others can reason over them
 * without reading English. */
#ifndef IS_EVAL_SYNTH_MEMORY_H
#define IS_EVAL_SYNTH_MEMORY_H

#include "eval/quiz.h"

enum { SYNTH_PEOPLE = 10, SYNTH_ASKED_OF_EACH = 2 /* questions of each type about each person */ };

typedef enum synth_type { SYNTH_SINGLE, SYNTH_TWO_HOPS, SYNTH_TIME, SYNTH_UPDATE, SYNTH_NEGATION,
    SYNTH_COUNT, SYNTH_TYPES } synth_type;
extern const char *const synth_type_names[SYNTH_TYPES];

typedef enum synth_kind {
    SYNTH_ATTRIBUTE, SYNTH_CHANGE /* of an attribute */, SYNTH_RELATION, SYNTH_TRIP, SYNTH_LIKES,
        SYNTH_DISLIKES, SYNTH_GETS, SYNTH_CHATTER
} synth_kind;

/* What a fact says. topic: which attribute, relation, taste or kind of thing; value: the word
 * (relations: the other person's name). */
typedef struct synth_record {
    synth_kind kind;
    const char *person, *topic, *value;
    int64_t time;
} synth_record;

typedef enum synth_which { SYNTH_PLAIN, SYNTH_FIRST, SYNTH_LAST, SYNTH_LIKED,
    SYNTH_DISLIKED } synth_which;

/* What a question asks. relation: "" or whose attribute it is, as seen from person. */
typedef struct synth_query {
    synth_type type;
    const char *person, *relation, *topic;
    synth_which which;
} synth_query;

typedef struct synth_memory {
    quiz_store *store;       /* owned; records[i] is facts[i]'s, queries[i] questions[i]'s */
    synth_record *records;
    synth_query *queries;
    const char *people[SYNTH_PEOPLE];
} synth_memory;

/* *out is freed with synth_memory_free. E_NOMEM. */
is_status synth_memory_make(uint64_t seed, uint32_t number, synth_memory *out);
void synth_memory_free(synth_memory *m);

#endif
