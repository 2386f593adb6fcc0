/* score_sets.c - see score_sets.h. */
#include "support/score_sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/stats.h"
#include "eval/synth_words.h"

const char *const score_kind_names[SCORE_KINDS] = { "answered", "untold", "foreign",
                                                     "word" };

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* What no invented memory tells of anybody. */
static const char *const never_told[] = {
    "How old is {P}?",
    "Is {P} married?",
    "When is {P}'s birthday?",
    "How tall is {P}?",
    "What is {P}'s phone number?",
    "Does {P} have children?",
    "Which school did {P} go to?",
    "What is {P}'s middle name?",
    "How much money does {P} earn?",
    "Who cuts {P}'s hair?",
    "What is {P} afraid of?",
    "When did {P} stop smoking?",
    "How much does {P} weigh?",
    "What is {P}'s shoe size?",
    "Which bank does {P} use?",
    "Who did {P} vote for?",
    "Does {P} wear glasses?",
    "What is {P}'s star sign?",
    "Which film did {P} watch yesterday?",
    "What does {P} think of the mayor?",
    "How long did {P} serve in the army?",
    "What is the name of {P}'s mother?",
    "When will {P} retire?",
    "Why is {P} angry?",
};

static const char *const of_the_world[] = {
    "What is the capital of Peru?",
    "How many legs does a spider have?",
    "Who discovered penicillin?",
    "What is the square root of two?",
    "How do I reverse a string in Java?",
    "Why do cats purr?",
    "What causes the tides?",
    "Who was the first person on the moon?",
    "How is glass made?",
    "What is the population of Nigeria?",
    "When did the Berlin Wall fall?",
    "How does a diesel engine work?",
    "What does DNA stand for?",
    "Which planet has rings?",
    "Who composed the Moonlight Sonata?",
    "How do I get a stain out of silk?",
    "What is inflation?",
    "How hot is the surface of the sun?",
    "What is the difference between a comet and an asteroid?",
    "Who wrote War and Peace?",
    "What day is it today?",
    "What is the weather like?",
    "Can you help me?",
    "Tell me something funny.",
    "What should I do next?",
    "How are you doing?",
    "Is it going to rain tomorrow?",
    "What did you say?",
    "How long does it take?",
    "Write a poem about the sea.",
};

static void put(const char *saying, const char *who, char out[SCORE_QUESTION])
{
    size_t n = 0;

    for (; *saying && n + 1 < SCORE_QUESTION; saying++)
        if (saying[0] == '{') {
            n += (size_t)snprintf(out + n, SCORE_QUESTION - n, "%s", who);
            saying += 2;
        } else out[n++] = *saying;
    out[n < SCORE_QUESTION ? n : SCORE_QUESTION - 1] = 0;
}

static score_question *add(score_set *s, score_kind kind, const char *saying, const char *who)
{
    score_question *q = &s->questions[s->n_questions];

    if (s->n_questions == SCORE_QUESTIONS) abort();
    s->n_questions++;
    q->kind = kind;
    put(saying, who, q->text);
    return q;
}

/* Its own questions of this person. What answers one may have been left out: then it is untold,
 * and a question of two hops, about somebody else, is left out itself. */
static void add_answered(score_set *s, const char *who, const int *at, int alone)
{
    for (size_t i = 0; i < s->memory.store->n_questions; i++) {
        const quiz_question *from = &s->memory.store->questions[i];
        const synth_query *query = &s->memory.queries[i];
        score_question *q;

        if (query->person != who || (alone && query->type == SYNTH_TWO_HOPS)) continue;
        q = add(s, SCORE_ANSWERED, from->text, who);
        for (size_t k = 0; k < from->n_evidence && q->n_answers < SCORE_ANSWERS; k++)
            if (at[from->evidence[k]] >= 0)
                q->answers[q->n_answers++] = (uint32_t)at[from->evidence[k]];
        if (q->n_answers == 0) q->kind = SCORE_UNTOLD;
    }
}

/* What was said of this person, as a word alone. */
static void add_words(score_set *s, const char *who, const int *at)
{
    for (size_t i = 0; i < s->memory.store->n_facts; i++) {
        const synth_record *r = &s->memory.records[i];
        score_question *q;

        if (at[i] < 0 || r->person != who || r->kind == SYNTH_CHATTER) continue;
        q = add(s, SCORE_WORD, r->value, who);
        for (size_t k = 0; k < s->memory.store->n_facts && q->n_answers < SCORE_ANSWERS; k++)
            if (s->memory.records[k].value == r->value && at[k] >= 0)
                q->answers[q->n_answers++] = (uint32_t)at[k];
    }
}

static int is_told(const score_set *s, const char *who, const char *topic)
{
    for (size_t i = 0; i < s->memory.store->n_facts; i++)
        if (s->memory.records[i].person == who && s->memory.records[i].topic == topic) return 1;
    return 0;
}

static void add_topic(score_set *s, const char *topic, const char *who, const char *stranger,
                      const char *const *sayings)
{
    if (is_told(s, who, topic)) return;
    for (size_t i = 0; i < SYNTH_SAYINGS; i++) {
        add(s, SCORE_UNTOLD, sayings[i], who);
        if (stranger) add(s, SCORE_FOREIGN, sayings[i], stranger);
    }
}

/* Who is in no fact of this memory. */
static const char *stranger_of(const score_set *s, uint32_t number)
{
    for (size_t i = 0; i < SYNTH_NAMES; i++) {
        const char *name = synth_names[(i + number * 7) % SYNTH_NAMES];
        int there = 0;

        for (size_t k = 0; k < SYNTH_PEOPLE; k++) there |= s->memory.people[k] == name;
        if (!there) return name;
    }
    return NULL;
}

/* at[i] = the number of the memory's fact i in this set; -1 = it is not in it. */
static void take_facts(score_set *s, uint64_t seed, uint32_t number, const char *who, size_t size,
                       int *at)
{
    rng r = rng_stream(seed, 0x5c03e, number);
    uint32_t order[SCORE_FACTS];
    const size_t n = s->memory.store->n_facts;

    rng_permutation(&r, order, (uint32_t)n);
    for (size_t i = 0; i < n; i++) at[i] = -1;
    for (size_t i = 0; i < n; i++) {
        if (size && (s->memory.records[order[i]].person != who || s->n_facts == size)) continue;
        at[order[i]] = (int)s->n_facts;
        s->facts[s->n_facts++] = s->memory.store->facts[order[i]].text;
    }
}

score_set *score_set_make(uint64_t seed, uint32_t number, size_t person, size_t size)
{
    score_set *s = calloc(1, sizeof *s);
    const char *who, *stranger;
    int at[SCORE_FACTS];

    if (!s || synth_memory_make(seed, number, &s->memory) != INFERSCALE_OK) {
        free(s);
        return NULL;
    }
    who = s->memory.people[person];
    take_facts(s, seed, number, who, size, at);
    stranger = size ? stranger_of(s, number) : NULL;
    add_answered(s, who, at, size != SCORE_TEN_PEOPLE);
    add_words(s, who, at);
    for (size_t i = 0; i < SYNTH_ATTRIBUTES; i++)
        add_topic(s, synth_attributes[i].topic, who, stranger, synth_attributes[i].questions);
    for (size_t i = 0; i < SYNTH_TASTES; i++)
        add_topic(s, synth_tastes[i].topic, who, stranger, synth_tastes[i].ask_liked);
    for (size_t i = 0; i < SYNTH_THINGS; i++)
        add_topic(s, synth_things[i].topic, who, stranger, synth_things[i].questions);
    for (size_t i = 0; i < COUNT(never_told); i++) add(s, SCORE_UNTOLD, never_told[i], who);
    for (size_t i = 0; i < COUNT(of_the_world); i++) add(s, SCORE_FOREIGN, of_the_world[i], "");
    return s;
}

void score_set_free(score_set *s)
{
    if (!s) return;
    synth_memory_free(&s->memory);
    free(s);
}
