/* quiz.c - see quiz.h. */
#include "eval/quiz.h"

#include <string.h>

#include "base/mem.h"
#include "eval/stats.h"
#include "eval/synth_memory.h"

enum { CATEGORIES = 4, LIST = 1, OPEN = 3 /* categories */ };

void quiz_store_free(quiz_store *s)
{
    if (s == NULL) return;
    for (size_t i = 0; s->facts && i < s->n_facts; i++) is_free(s->facts[i].text);
    for (size_t i = 0; s->questions && i < s->n_questions; i++) {
        quiz_question *q = &s->questions[i];

        is_free(q->text);
        for (size_t k = 0; k < QUIZ_ANSWERS; k++) is_free(q->answers[k]);
        for (size_t k = 0; k < QUIZ_CHOICES; k++) is_free(q->choices[k]);
        is_free(q->evidence);
    }
    is_free(s->facts);
    is_free(s->questions);
    is_free(s->id);
    is_free(s);
}

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while preparing questions");
}

/* Adds all of a store's words to what is hashed. */
static void hash_store(is_hash *h, const quiz_store *s)
{
    for (size_t i = 0; i < s->n_facts; i++) {
        is_hash_field(h, s->facts[i].text, strlen(s->facts[i].text));
        is_hash_u64(h, (uint64_t)s->facts[i].time);
    }
    for (size_t i = 0; i < s->n_questions; i++) {
        const quiz_question *q = &s->questions[i];

        is_hash_u64(h, q->type);
        is_hash_field(h, q->text, strlen(q->text));
        for (size_t k = 0; k < QUIZ_ANSWERS && q->answers[k]; k++)
            is_hash_field(h, q->answers[k], strlen(q->answers[k]));
        for (size_t k = 0; k < q->n_evidence; k++) is_hash_u64(h, q->evidence[k]);
        for (size_t k = 0; k < QUIZ_CHOICES && q->choices[k]; k++)
            is_hash_field(h, q->choices[k], strlen(q->choices[k]));
        is_hash_u64(h, q->right);
    }
}

/* Of the name, the seed and the first `n` stores. */
static is_status digest(quiz *q, uint32_t n)
{
    is_hash *h = NULL;
    is_status st = is_hash_new(NULL, &h);

    if (st != INFERSCALE_OK) return st;
    is_hash_field(h, q->name, strlen(q->name));
    is_hash_u64(h, q->seed);
    for (uint32_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        quiz_store *s = NULL;

        st = quiz_store_at(q, i, &s);
        if (st == INFERSCALE_OK) hash_store(h, s);
        quiz_store_free(s);
    }
    is_hash_end(h, q->digest);
    return st;
}

/* ---- LoCoMo ---------------------------------------------------------------------------------- */

static bool is_asked(const locomo_qa *qa)
{
    return qa->category >= 1 && qa->category <= CATEGORIES && qa->question[0] && qa->answer[0];
}

/* What follows a semicolon in an answer of category 3 explains it; LoCoMo's score leaves it out. */
static size_t answer_length(const locomo_qa *qa)
{
    return qa->category == OPEN ? strcspn(qa->answer, ";") : strlen(qa->answer);
}

/* The observations that cite a turn which the question cites. */
static is_status find_evidence(const locomo_conversation *c, const locomo_qa *qa, quiz_question *q)
{
    q->evidence = is_calloc(c->n_observations + 1, sizeof *q->evidence);
    if (q->evidence == NULL) return no_memory();
    for (size_t i = c->n_observations; i-- > 0;) { /* the newest stands last in a prompt */
        const locomo_observation *o = &c->observations[i];
        bool cites = false;

        for (size_t a = 0; a < o->n_dia_ids; a++)
            for (size_t b = 0; b < qa->n_evidence; b++)
                cites = cites || strcmp(o->dia_ids[a], qa->evidence[b]) == 0;
        if (cites) q->evidence[q->n_evidence++] = (uint32_t)i;
    }
    return INFERSCALE_OK;
}

static size_t n_asked(const locomo_conversation *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_qa; i++) n += is_asked(&c->qa[i]);
    return n;
}

/* How many of q->n are of conversation `index`: its share, rounded so that all shares add up. */
static size_t share_of(const quiz *q, uint32_t index)
{
    size_t all = 0, before = 0, here;

    for (uint32_t i = 0; i < q->data->n; i++) {
        const size_t n = n_asked(&q->data->conversations[i]);

        all += n;
        if (i < index) before += n;
    }
    here = n_asked(&q->data->conversations[index]);
    return all ? (before + here) * q->n / all - before * q->n / all : 0;
}

static is_status take_question(const locomo_conversation *c, const locomo_qa *qa, quiz_store *s)
{
    quiz_question *q = &s->questions[s->n_questions++];

    q->type = (uint32_t)qa->category - 1;
    q->text = is_strdup(qa->question);
    q->is_list = qa->category == LIST;
    q->answers[0] = is_strndup(qa->answer, answer_length(qa));
    if (!q->text || !q->answers[0]) return no_memory();
    return find_evidence(c, qa, q);
}

/* The first n of its questions in the seed's order. */
static is_status take_questions(const locomo_conversation *c, rng r, size_t n, quiz_store *s)
{
    uint32_t *order = is_calloc(c->n_qa + 1, sizeof *order);
    is_status st = order ? INFERSCALE_OK : no_memory();

    if (order) rng_permutation(&r, order, c->n_qa);
    for (size_t i = 0; i < c->n_qa && s->n_questions < n && st == INFERSCALE_OK; i++)
        if (is_asked(&c->qa[order[i]])) st = take_question(c, &c->qa[order[i]], s);
    is_free(order);
    return st;
}

static is_status take_talk(const quiz *q, uint32_t index, quiz_store *s)
{
    const locomo_conversation *c = &q->data->conversations[index];

    s->talk = c;
    s->id = is_strdup(c->id);
    s->facts = is_calloc(c->n_observations + 1, sizeof *s->facts);
    s->questions = is_calloc(c->n_qa + 1, sizeof *s->questions);
    if (!s->id || !s->facts || !s->questions) return no_memory();
    for (size_t i = 0; i < c->n_observations; i++) {
        s->n_facts++;
        s->facts[i].time = c->observations[i].time;
        s->facts[i].text = is_strdup(c->observations[i].text);
        if (s->facts[i].text == NULL) return no_memory();
    }
    return take_questions(c, rng_stream(q->seed, 0x10c0, index), share_of(q, index), s);
}

static is_status talk_at(const quiz *q, uint32_t index, quiz_store **out)
{
    const locomo *data = q->data;
    is_status st;

    if (index >= data->n)
        return is_fail(INFERSCALE_E_NOTFOUND, "the file has %zu conversations", data->n);
    *out = is_calloc(1, sizeof **out);
    st = *out ? take_talk(q, index, *out) : no_memory();
    if (st == INFERSCALE_OK) return st;
    quiz_store_free(*out);
    *out = NULL;
    return st;
}

static is_status memory_at(const quiz *q, uint32_t index, quiz_store **out)
{
    synth_memory m;

    IS_TRY(synth_memory_make(q->seed, index, &m));
    *out = m.store;
    m.store = NULL;
    synth_memory_free(&m);
    return INFERSCALE_OK;
}

is_status quiz_store_at(const quiz *q, uint32_t index, quiz_store **out)
{
    *out = NULL;
    return q->make(q, index, out);
}

is_status quiz_synthetic(uint64_t seed, quiz *out)
{
    *out = (quiz){
        .name = "synthetic", .n_types = SYNTH_TYPES, .seed = seed, .margin = 0.01, .make = memory_at
    };
    for (size_t i = 0; i < SYNTH_TYPES; i++) out->types[i] = synth_type_names[i];
    return digest(out, 1);
}

is_status quiz_locomo(const locomo *data, uint64_t seed, size_t n, quiz *out)
{
    static const char *const names[CATEGORIES] = { "multi-hop", "temporal", "open-domain",
                                                   "single-hop" };

    *out = (quiz){ .name = "locomo",
                   .n_types = CATEGORIES,
                   .data = data,
                   .seed = seed,
                   .margin = 0.03,
                   .make = talk_at };
    for (size_t i = 0; i < CATEGORIES; i++) out->types[i] = names[i];
    for (size_t i = 0; i < data->n; i++) out->n += n_asked(&data->conversations[i]);
    if (n < out->n) out->n = n;
    return digest(out, (uint32_t)data->n);
}
