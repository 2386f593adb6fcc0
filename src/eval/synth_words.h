/* synth_words.h - the vocabulary of invented memories (private to synth_memory.c). {P} is a person,
 * {V} a value, {S} whoever a question is about ("Anna" or "Anna's cousin"). All values of one topic
 * are words of one kind, so that each may stand in a choice beside any other. */
#ifndef IS_EVAL_SYNTH_WORDS_H
#define IS_EVAL_SYNTH_WORDS_H

enum { SYNTH_NAMES = 44, SYNTH_ATTRIBUTES = 8, SYNTH_TASTES = 3, SYNTH_THINGS = 3,
    SYNTH_RELATIONS = 6, SYNTH_VALUES = 12, SYNTH_SAYINGS = 3,
       SYNTH_SMALL_TALK = 16, SYNTH_NUMBERS = 7 };

/* An attribute: one value at a time. */
typedef struct synth_attribute {
    const char *topic;
    const char *values[SYNTH_VALUES];
    /* changes[0] NULL = it does not change */
    const char *facts[SYNTH_SAYINGS], *changes[SYNTH_SAYINGS];
    const char *questions[SYNTH_SAYINGS];
} synth_attribute;

typedef struct synth_taste {
    const char *topic;
    const char *values[SYNTH_VALUES];
    const char *likes[SYNTH_SAYINGS], *dislikes[SYNTH_SAYINGS];
    const char *ask_liked[SYNTH_SAYINGS], *ask_disliked[SYNTH_SAYINGS];
} synth_taste;

/* Things that are counted. */
typedef struct synth_thing {
    const char *topic;
    const char *values[SYNTH_VALUES];
    const char *facts[SYNTH_SAYINGS], *questions[SYNTH_SAYINGS];
} synth_thing;

typedef struct synth_trips {
    const char *values[SYNTH_VALUES];
    const char *facts[SYNTH_SAYINGS];
    const char *ask_first[SYNTH_SAYINGS], *ask_last[SYNTH_SAYINGS], *ask_number[SYNTH_SAYINGS];
} synth_trips;

extern const char *const synth_names[SYNTH_NAMES];
extern const synth_attribute synth_attributes[SYNTH_ATTRIBUTES];
extern const synth_taste synth_tastes[SYNTH_TASTES];
extern const synth_thing synth_things[SYNTH_THINGS];
extern const synth_trips synth_travels;
extern const char *const synth_relations[SYNTH_RELATIONS];
/* {P}, {R} = the relation, {V} = the other person */
extern const char *const synth_relation_facts[SYNTH_SAYINGS];
extern const char *const synth_small_talk[SYNTH_SMALL_TALK];
extern const char *const synth_nowadays[SYNTH_SAYINGS]; /* ends of questions about what changed */
extern const char *const synth_numbers[SYNTH_NUMBERS];  /* "zero", "one", ... */

#endif
