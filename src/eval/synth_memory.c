/* synth_memory.c - see synth_memory.h. Facts are drafted person by person, put into a random order
 * in time, and written down; then each question is made from the records, and choices beside it. */
#include "eval/synth_memory.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "eval/stats.h"
#include "eval/synth_words.h"

enum {
    KEPT = 2,
    CHANGED = 2,
    TRIPS_LEAST = 2,
    TRIPS_MOST = 4,
    THINGS_LEAST = 2,
    THINGS_MOST = 5,
    FACTS_EACH = KEPT + 2 * CHANGED + 1 + TRIPS_MOST + 2 + THINGS_MOST + 1,
    FACTS = SYNTH_PEOPLE * FACTS_EACH,
    QUESTIONS = SYNTH_PEOPLE * SYNTH_TYPES * SYNTH_ASKED_OF_EACH,
    EVIDENCE = THINGS_MOST,
    DAY = 86400,
    DAYS_APART = 4
};
static const char trips[] = "trips"; /* one address, as all topics: they are compared by it */
static const int64_t first_day = 1672653600; /* 2 January 2023, 10:00 UTC */

const char *const synth_type_names[SYNTH_TYPES] = { "single", "two hops", "time",
                                                    "update", "negation", "count" };

/* What a person is drawn to be. */
typedef struct person {
    const char *name;
    const synth_attribute *kept[KEPT], *changed[CHANGED];
    const synth_taste *taste;
    const synth_thing *thing;
    const char *relation;
    size_t other; /* whom that is */
} person;

typedef struct draft {
    synth_record record;
    const char *saying;
} draft;

typedef struct maker {
    rng r;
    person people[SYNTH_PEOPLE];
    draft drafts[FACTS];
    size_t n;
    synth_memory *out;
} maker;

#define PICK(m, list) ((list)[rng_below(&(m)->r, sizeof(list) / sizeof *(list))])

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while inventing a memory");
}

/* {P}, {V}, {R} and {S} of a saying; is_free'd, NULL = out of memory. */
static char *fill(const char *saying, const char *p, const char *v, const char *r, const char *s)
{
    is_buf b = IS_BUF_INIT;

    for (; *saying; saying++) {
        const char *word = NULL;

        if (*saying == '{')
            word = saying[1] == 'P' ? p : saying[1] == 'V' ? v : saying[1] == 'R' ? r : s;
        if (word) is_buf_str(&b, word), saying += 2;
        else is_buf_add(&b, saying, 1);
    }
    return is_buf_take(&b);
}

/* ---- People and what is told of them --------------------------------------------------------- */

static bool begins_like(const char *a, const char *b) { return a[0] == b[0] && a[1] == b[1]; }

static void draw_names(maker *m)
{
    uint32_t order[SYNTH_NAMES];
    size_t n = 0;

    rng_permutation(&m->r, order, SYNTH_NAMES);
    for (size_t i = 0; i < SYNTH_NAMES && n < SYNTH_PEOPLE; i++) {
        bool alike = false;

        for (size_t k = 0; k < n; k++)
            alike = alike || begins_like(m->people[k].name, synth_names[order[i]]);
        if (!alike) m->people[n++].name = synth_names[order[i]];
    }
}

static void draw_person(maker *m, size_t at)
{
    person *p = &m->people[at];
    uint32_t order[SYNTH_ATTRIBUTES];
    size_t n_changed = 0, n_kept = 0;

    rng_permutation(&m->r, order, SYNTH_ATTRIBUTES);
    for (size_t i = 0; i < SYNTH_ATTRIBUTES; i++) {
        const synth_attribute *a = &synth_attributes[order[i]];

        if (n_changed < CHANGED && a->changes[0]) p->changed[n_changed++] = a;
        else if (n_kept < KEPT) p->kept[n_kept++] = a;
    }
    p->taste = &PICK(m, synth_tastes);
    p->thing = &PICK(m, synth_things);
    p->relation = PICK(m, synth_relations);
    p->other = (size_t)rng_below(&m->r, SYNTH_PEOPLE - 1);
    p->other += p->other >= at;
}

static void tell(maker *m, synth_kind kind, const person *p, const char *topic, const char *value,
                 const char *const *sayings)
{
    const char *saying = sayings[rng_below(&m->r, SYNTH_SAYINGS)];

    m->drafts[m->n++] = (draft){ { kind, p->name, topic, value, 0 }, saying };
}

/* `n` different values of a topic, one fact each. */
static void tell_several(maker *m, synth_kind kind, const person *p, const char *topic,
                         const char *const *values, size_t n, const char *const *sayings)
{
    uint32_t order[SYNTH_VALUES];

    rng_permutation(&m->r, order, SYNTH_VALUES);
    for (size_t i = 0; i < n; i++) tell(m, kind, p, topic, values[order[i]], sayings);
}

static void tell_of(maker *m, const person *p, const char *small_talk)
{
    const char *const once[SYNTH_SAYINGS] = { small_talk, small_talk, small_talk };
    uint32_t two[SYNTH_VALUES];

    for (size_t i = 0; i < KEPT; i++)
        tell_several(m, SYNTH_ATTRIBUTE, p, p->kept[i]->topic, p->kept[i]->values, 1,
                     p->kept[i]->facts);
    for (size_t i = 0; i < CHANGED; i++) {
        const synth_attribute *a = p->changed[i];

        rng_permutation(&m->r, two, SYNTH_VALUES);
        tell(m, SYNTH_ATTRIBUTE, p, a->topic, a->values[two[0]], a->facts);
        tell(m, SYNTH_CHANGE, p, a->topic, a->values[two[1]], a->changes);
    }
    tell(m, SYNTH_RELATION, p, p->relation, m->people[p->other].name, synth_relation_facts);
    tell_several(m, SYNTH_TRIP, p, trips, synth_travels.values,
                 TRIPS_LEAST + (size_t)rng_below(&m->r, TRIPS_MOST - TRIPS_LEAST + 1),
                 synth_travels.facts);
    rng_permutation(&m->r, two, SYNTH_VALUES);
    tell(m, SYNTH_LIKES, p, p->taste->topic, p->taste->values[two[0]], p->taste->likes);
    tell(m, SYNTH_DISLIKES, p, p->taste->topic, p->taste->values[two[1]], p->taste->dislikes);
    tell_several(m, SYNTH_GETS, p, p->thing->topic, p->thing->values,
                 THINGS_LEAST + (size_t)rng_below(&m->r, THINGS_MOST - THINGS_LEAST + 1),
                 p->thing->facts);
    tell(m, SYNTH_CHATTER, p, "", "", once);
}

/* A random order in which nothing changes before it was. */
static void shuffle(maker *m)
{
    for (size_t i = m->n; i > 1; i--) {
        size_t j = (size_t)rng_below(&m->r, i);
        draft d = m->drafts[i - 1];

        m->drafts[i - 1] = m->drafts[j];
        m->drafts[j] = d;
    }
    for (size_t i = 0; i < m->n; i++)
        for (size_t j = i + 1; m->drafts[i].record.kind == SYNTH_CHANGE && j < m->n; j++) {
            draft *new = &m->drafts[i], *old = &m->drafts[j], d = *new;

            if (old->record.kind != SYNTH_ATTRIBUTE || old->record.person != new->record.person ||
                old->record.topic != new->record.topic)
                continue;
            *new = *old;
            *old = d;
        }
}

static is_status write_facts(maker *m)
{
    quiz_store *s = m->out->store;
    int64_t day = 0;

    for (size_t i = 0; i < m->n; i++) {
        synth_record *r = &m->drafts[i].record;

        day += 1 + (int64_t)rng_below(&m->r, DAYS_APART);
        r->time = first_day + day * DAY;
        m->out->records[i] = *r;
        s->facts[i].time = r->time;
        s->facts[i].text = fill(m->drafts[i].saying, r->person, r->value, r->topic, "");
        s->n_facts++;
        if (s->facts[i].text == NULL) return no_memory();
    }
    return INFERSCALE_OK;
}

/* ---- Questions ------------------------------------------------------------------------------- */

/* One under work. */
typedef struct asking {
    synth_query query;
    const char *saying, *subject, *answer, *alias;
    bool nowadays;                    /* ends with "now?" */
    const char *rivals[QUIZ_CHOICES]; /* [n_rivals] wrong answers that must be among the choices */
    size_t n_rivals;
    const char *const *values; /* [n_values] the topic's */
    size_t n_values;
    uint32_t evidence[EVIDENCE];
    size_t n_evidence;
} asking;

/* The newest record of this kind from `before` on downwards; n_facts = none. */
static size_t newest(const maker *m, synth_kind kind, const char *who, const char *topic,
                     size_t before)
{
    for (size_t i = before; i-- > 0;) {
        const synth_record *r = &m->out->records[i];

        if (r->kind == kind && r->person == who && r->topic == topic) return i;
    }
    return m->n;
}

static const char *value_of(const maker *m, size_t at)
{
    return at < m->n ? m->out->records[at].value : NULL;
}

static void add_evidence(asking *a, size_t at) { a->evidence[a->n_evidence++] = (uint32_t)at; }

static void add_rival(asking *a, const char *value)
{
    if (value && a->n_rivals < QUIZ_CHOICES - 1) a->rivals[a->n_rivals++] = value;
}

static bool is_among(const char *value, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], value) == 0) return true;
    return false;
}

/* Wrong answers in order: those that must be, those that others in this memory have, any. */
static void choose(maker *m, const asking *a, const char *out[QUIZ_CHOICES])
{
    uint32_t facts[FACTS], words[SYNTH_VALUES];
    size_t n = 0;

    rng_permutation(&m->r, facts, m->n);
    rng_permutation(&m->r, words, a->n_values);
    out[n++] = a->answer;
    for (size_t i = 0; i < a->n_rivals && n < QUIZ_CHOICES; i++)
        if (!is_among(a->rivals[i], out, n)) out[n++] = a->rivals[i];
    for (size_t i = 0; i < m->n && n < QUIZ_CHOICES; i++) {
        const char *v = m->out->records[facts[i]].value;

        if (is_among(v, a->values, a->n_values) && !is_among(v, out, n)) out[n++] = v;
    }
    for (size_t i = 0; i < a->n_values && n < QUIZ_CHOICES; i++)
        if (!is_among(a->values[words[i]], out, n)) out[n++] = a->values[words[i]];
}

static is_status write_choices(maker *m, const asking *a, quiz_question *q)
{
    const char *choices[QUIZ_CHOICES];
    uint32_t order[QUIZ_CHOICES];

    choose(m, a, choices);
    rng_permutation(&m->r, order, QUIZ_CHOICES);
    for (uint32_t i = 0; i < QUIZ_CHOICES; i++) {
        q->choices[i] = is_strdup(choices[order[i]]);
        if (order[i] == 0) q->right = i;
        if (q->choices[i] == NULL) return no_memory();
    }
    return INFERSCALE_OK;
}

static is_status write_question(maker *m, const asking *a, quiz_question *q)
{
    q->type = (uint32_t)a->query.type;
    q->text = fill(a->saying, a->query.person, "", "", a->subject);
    q->answers[0] = is_strdup(a->answer);
    if (a->alias) q->answers[1] = is_strdup(a->alias);
    q->evidence = is_calloc(a->n_evidence + 1, sizeof *q->evidence);
    if (!q->text || !q->answers[0] || (a->alias && !q->answers[1]) || !q->evidence)
        return no_memory();
    memcpy(q->evidence, a->evidence, a->n_evidence * sizeof *q->evidence);
    q->n_evidence = a->n_evidence;
    if (a->nowadays) {
        is_buf b = IS_BUF_INIT;

        is_buf_add(&b, q->text, strlen(q->text) - 1);
        is_buf_str(&b, PICK(m, synth_nowadays));
        is_free(q->text);
        q->text = is_buf_take(&b);
        if (q->text == NULL) return no_memory();
    }
    return write_choices(m, a, q);
}

static void ask_attribute(maker *m, const person *p, const synth_attribute *attribute, asking *a)
{
    const size_t at = newest(m, SYNTH_ATTRIBUTE, p->name, attribute->topic, m->n);
    const size_t change = newest(m, SYNTH_CHANGE, p->name, attribute->topic, m->n);

    a->saying = PICK(m, attribute->questions);
    a->values = attribute->values;
    a->n_values = SYNTH_VALUES;
    a->query.topic = attribute->topic;
    a->nowadays = change < m->n;
    a->answer = value_of(m, a->nowadays ? change : at);
    if (a->nowadays) {
        add_evidence(a, change);
        add_rival(a, value_of(m, at));
    }
    add_evidence(a, at);
}

/* About p's cousin, by p. The cousin's own value is the answer; p's, where there is one, is not. */
static void ask_two_hops(maker *m, const person *p, const synth_attribute *attribute, asking *a)
{
    const size_t own = newest(m, SYNTH_ATTRIBUTE, p->name, attribute->topic, m->n);
    const size_t change = newest(m, SYNTH_CHANGE, p->name, attribute->topic, m->n);

    ask_attribute(m, &m->people[p->other], attribute, a);
    a->query.relation = p->relation;
    add_rival(a, value_of(m, change < m->n ? change : own));
    add_evidence(a, newest(m, SYNTH_RELATION, p->name, p->relation, m->n));
}

static void ask_trip(maker *m, const person *p, synth_which which, asking *a)
{
    size_t at[TRIPS_MOST], n = 0;

    for (size_t i = m->n; (i = newest(m, SYNTH_TRIP, p->name, trips, i)) < m->n;) at[n++] = i;
    a->query.topic = trips;
    a->query.which = which;
    a->saying =
        which == SYNTH_FIRST ? PICK(m, synth_travels.ask_first) : PICK(m, synth_travels.ask_last);
    a->values = synth_travels.values;
    a->n_values = SYNTH_VALUES;
    for (size_t i = 0; i < n; i++) {
        const size_t k = which == SYNTH_LAST ? i : n - 1 - i;

        if (i == 0) a->answer = value_of(m, at[k]);
        else add_rival(a, value_of(m, at[k]));
        add_evidence(a, at[k]);
    }
}

static void ask_taste(maker *m, const person *p, synth_which which, asking *a)
{
    const size_t liked = newest(m, SYNTH_LIKES, p->name, p->taste->topic, m->n);
    const size_t disliked = newest(m, SYNTH_DISLIKES, p->name, p->taste->topic, m->n);
    const size_t at = which == SYNTH_LIKED ? liked : disliked;
    const size_t other = which == SYNTH_LIKED ? disliked : liked;

    a->query.topic = p->taste->topic;
    a->query.which = which;
    a->saying =
        which == SYNTH_LIKED ? PICK(m, p->taste->ask_liked) : PICK(m, p->taste->ask_disliked);
    a->values = p->taste->values;
    a->n_values = SYNTH_VALUES;
    a->answer = value_of(m, at);
    add_rival(a, value_of(m, other));
    add_evidence(a, at);
    add_evidence(a, other);
}

static void ask_number(maker *m, const person *p, synth_kind kind, const char *topic,
                       const char *saying, asking *a)
{
    static const char *const digits[SYNTH_NUMBERS] = { "0", "1", "2", "3", "4", "5", "6" };

    a->query.topic = topic;
    a->saying = saying;
    a->values = synth_numbers + 1;
    a->n_values = SYNTH_NUMBERS - 1;
    for (size_t i = m->n; (i = newest(m, kind, p->name, topic, i)) < m->n;) add_evidence(a, i);
    a->answer = synth_numbers[a->n_evidence];
    a->alias = digits[a->n_evidence];
}

/* Question number `turn` of a type about a person. */
static void ask(maker *m, const person *p, synth_type type, size_t turn, asking *a)
{
    const synth_which order = turn ? SYNTH_LAST : SYNTH_FIRST;

    switch (type) {
    case SYNTH_SINGLE: ask_attribute(m, p, p->kept[turn], a); break;
    case SYNTH_TWO_HOPS: ask_two_hops(m, p, m->people[p->other].kept[turn], a); break;
    case SYNTH_TIME: ask_trip(m, p, order, a); break;
    case SYNTH_UPDATE: ask_attribute(m, p, p->changed[turn], a); break;
    case SYNTH_NEGATION: ask_taste(m, p, turn ? SYNTH_DISLIKED : SYNTH_LIKED, a); break;
    case SYNTH_COUNT:
        if (turn) ask_number(m, p, SYNTH_GETS, p->thing->topic, PICK(m, p->thing->questions), a);
        else ask_number(m, p, SYNTH_TRIP, trips, PICK(m, synth_travels.ask_number), a);
        break;
    case SYNTH_TYPES: break;
    }
}

static is_status ask_of(maker *m, const person *p, synth_type type, size_t turn, size_t at)
{
    asking a = { .query = { type, p->name, "", "", SYNTH_PLAIN } };
    char *subject = fill("{P}'s {R}", p->name, "", p->relation, "");
    is_status st;

    a.subject = type == SYNTH_TWO_HOPS ? subject : p->name;
    ask(m, p, type, turn, &a);
    m->out->queries[at] = a.query;
    st = subject ? write_question(m, &a, &m->out->store->questions[at]) : no_memory();
    is_free(subject);
    return st;
}

/* The types take turns, each in a random order of its own, so that any run of questions is about as
 * good a sample of one type as of another. */
static is_status ask_all(maker *m)
{
    enum { EACH = SYNTH_PEOPLE * SYNTH_ASKED_OF_EACH };
    uint32_t order[EACH];

    m->out->store->n_questions = QUESTIONS;
    for (int type = 0; type < SYNTH_TYPES; type++) {
        rng_permutation(&m->r, order, EACH);
        for (size_t i = 0; i < EACH; i++)
            IS_TRY(ask_of(m, &m->people[order[i] / SYNTH_ASKED_OF_EACH], (synth_type)type,
                          order[i] % SYNTH_ASKED_OF_EACH, i * SYNTH_TYPES + (size_t)type));
    }
    return INFERSCALE_OK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static is_status make(maker *m, uint32_t number)
{
    quiz_store *s = m->out->store = is_calloc(1, sizeof *s);
    uint32_t talk[SYNTH_SMALL_TALK];
    is_buf id = IS_BUF_INIT;

    if (s == NULL) return no_memory();
    is_buf_fmt(&id, "memory-%u", number);
    s->id = is_buf_take(&id);
    s->facts = is_calloc(FACTS, sizeof *s->facts);
    s->questions = is_calloc(QUESTIONS, sizeof *s->questions);
    m->out->records = is_calloc(FACTS, sizeof *m->out->records);
    m->out->queries = is_calloc(QUESTIONS, sizeof *m->out->queries);
    if (!s->id || !s->facts || !s->questions || !m->out->records || !m->out->queries)
        return no_memory();
    draw_names(m);
    for (size_t i = 0; i < SYNTH_PEOPLE; i++) draw_person(m, i);
    rng_permutation(&m->r, talk, SYNTH_SMALL_TALK);
    for (size_t i = 0; i < SYNTH_PEOPLE; i++) {
        m->out->people[i] = m->people[i].name;
        tell_of(m, &m->people[i], synth_small_talk[talk[i]]);
    }
    shuffle(m);
    IS_TRY(write_facts(m));
    return ask_all(m);
}

is_status synth_memory_make(uint64_t seed, uint32_t number, synth_memory *out)
{
    maker *m = is_calloc(1, sizeof *m);
    is_status st;

    memset(out, 0, sizeof *out);
    if (m == NULL) return no_memory();
    m->r = rng_stream(seed, 0x3e3041, number);
    m->out = out;
    st = make(m, number);
    is_free(m);
    if (st != INFERSCALE_OK) synth_memory_free(out);
    return st;
}

void synth_memory_free(synth_memory *m)
{
    quiz_store_free(m->store);
    is_free(m->records);
    is_free(m->queries);
    memset(m, 0, sizeof *m);
}
