/* The questions of `eval accuracy`: the same bytes on every machine, answers that follow from the
 * facts (by an oracle of its own, over what the facts say, not their words), no answer in its
 * question; and how answers are graded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "eval/grade.h"
#include "eval/stats.h"
#include "eval/synth_memory.h"
#include "support/kit.h"

enum { MEMORIES = 40 };

/* ---- Invented memories ----------------------------------------------------------------------- */

static void hash_memory(is_hash *h, uint64_t seed, uint32_t number)
{
    synth_memory m;

    KIT_OK(synth_memory_make(seed, number, &m));
    for (size_t i = 0; i < m.store->n_facts; i++) {
        is_hash_field(h, m.store->facts[i].text, strlen(m.store->facts[i].text));
        is_hash_u64(h, (uint64_t)m.store->facts[i].time);
    }
    for (size_t i = 0; i < m.store->n_questions; i++) {
        const quiz_question *q = &m.store->questions[i];

        is_hash_field(h, q->text, strlen(q->text));
        is_hash_u64(h, q->right);
        for (size_t k = 0; k < q->n_evidence; k++) is_hash_u64(h, q->evidence[k]);
        for (size_t k = 0; k < QUIZ_CHOICES; k++)
            is_hash_field(h, q->choices[k], strlen(q->choices[k]));
    }
    synth_memory_free(&m);
}

static void digest_of(uint64_t seed, uint32_t number, char hex[IS_HASH_HEX])
{
    uint8_t digest[IS_HASH_BYTES];
    is_hash *h = NULL;

    KIT_OK(is_hash_new(NULL, &h));
    hash_memory(h, seed, number);
    is_hash_end(h, digest);
    is_hex(digest, 8, hex);
}

/* Results of another machine or another day are only comparable over the same questions. */
static void the_same_bytes_everywhere(void **state)
{
    static const struct {
        uint64_t seed;
        uint32_t number;
        const char *digest;
    } known[] = { { 0, 0, "cf449bdaada729a3" },
                  { 1, 0, "ad995a6fb6835704" },
                  { 1, 66, "9091b1baa9bb1a81" },
                  { 1000, 3, "f27ab5737b565eb1" } };
    char hex[IS_HASH_HEX], other[IS_HASH_HEX];

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        digest_of(known[i].seed, known[i].number, hex);
        assert_string_equal(hex, known[i].digest);
    }
    digest_of(7, 1, hex);
    digest_of(7, 2, other);
    assert_string_not_equal(hex, other);
}

/* What the facts say, read in time order. */
static const char *attribute_of(const synth_memory *m, const char *who, const char *topic,
                                size_t *n)
{
    const char *now = NULL;

    *n = 0;
    for (size_t i = 0; i < m->store->n_facts; i++) {
        const synth_record *r = &m->records[i];

        if (i) assert_true(r->time > m->records[i - 1].time);
        if (r->kind != SYNTH_ATTRIBUTE && r->kind != SYNTH_CHANGE) continue;
        if (strcmp(r->person, who) != 0 || strcmp(r->topic, topic) != 0) continue;
        assert_int_equal(r->kind == SYNTH_CHANGE, *n > 0); /* nothing changes before it was */
        now = r->value;
        ++*n;
    }
    return now;
}

static const char *related(const synth_memory *m, const char *who, const char *relation)
{
    for (size_t i = 0; i < m->store->n_facts; i++)
        if (m->records[i].kind == SYNTH_RELATION && strcmp(m->records[i].person, who) == 0 &&
            strcmp(m->records[i].topic, relation) == 0)
            return m->records[i].value;
    fail_msg("%s has no %s", who, relation);
    return NULL;
}

/* The n-th (from 0), the last and the number of records of a kind. */
static size_t several(const synth_memory *m, synth_kind kind, const char *who, const char *topic,
                      const char **first, const char **last)
{
    size_t n = 0;

    for (size_t i = 0; i < m->store->n_facts; i++) {
        const synth_record *r = &m->records[i];

        if (r->kind != kind || strcmp(r->person, who) != 0 || strcmp(r->topic, topic) != 0)
            continue;
        if (n++ == 0) *first = r->value;
        *last = r->value;
    }
    return n;
}

static const char *reasoned(const synth_memory *m, const synth_query *q)
{
    static const char *const numbers[] = { "none", "one", "two", "three", "four", "five" };
    const char *who = q->relation[0] ? related(m, q->person, q->relation) : q->person, *answer;
    const char *first = NULL, *last = NULL;
    size_t n;

    switch (q->type) {
    case SYNTH_SINGLE:
    case SYNTH_TWO_HOPS:
    case SYNTH_UPDATE:
        answer = attribute_of(m, who, q->topic, &n);
        assert_int_equal(n, q->type == SYNTH_UPDATE ? 2 : 1);
        assert_int_equal(q->relation[0] != 0, q->type == SYNTH_TWO_HOPS);
        return answer;
    case SYNTH_TIME:
        assert_true(several(m, SYNTH_TRIP, who, q->topic, &first, &last) >= 2);
        return q->which == SYNTH_FIRST ? first : last;
    case SYNTH_NEGATION:
        assert_int_equal(several(m, SYNTH_LIKES, who, q->topic, &first, &last), 1);
        if (q->which == SYNTH_LIKED) return first;
        assert_int_equal(several(m, SYNTH_DISLIKES, who, q->topic, &first, &last), 1);
        return first;
    default:
        n = several(m, SYNTH_TRIP, who, q->topic, &first, &last) +
            several(m, SYNTH_GETS, who, q->topic, &first, &last);
        assert_in_range(n, 2, 5);
        return numbers[n];
    }
}

static void answers_follow_from_the_facts(void **state)
{
    for (uint32_t i = 0; i < MEMORIES; i++) {
        synth_memory m;

        KIT_OK(synth_memory_make(11, i, &m));
        for (size_t k = 0; k < m.store->n_questions; k++) {
            const quiz_question *q = &m.store->questions[k];
            const char *want = reasoned(&m, &m.queries[k]);

            if (strcmp(q->answers[0], want) != 0)
                fail_msg("memory %u, \"%s\": %s, but the facts say %s", i, q->text, q->answers[0],
                         want);
            assert_int_equal(q->type, m.queries[k].type);
            assert_string_equal(q->choices[q->right], want);
        }
        synth_memory_free(&m);
    }
}

/* Is w a word of the text? Both as they stand. */
static bool holds_word(const char *text, const char *w)
{
    for (const char *p = text; (p = strstr(p, w)) != NULL; p++) {
        const char before = p == text ? ' ' : p[-1], after = p[strlen(w)];
        const bool begins = !((before | 32) >= 'a' && (before | 32) <= 'z');

        if (begins && !((after | 32) >= 'a' && (after | 32) <= 'z')) return true;
    }
    return false;
}

/* The facts that are named give the answer, whoever reads them. */
static void check_evidence(const synth_memory *m, size_t at)
{
    const quiz_question *q = &m->store->questions[at];
    size_t telling = 0;

    assert_true(q->n_evidence >= 1);
    for (size_t e = 0; e < q->n_evidence; e++) {
        assert_true(q->evidence[e] < m->store->n_facts);
        telling += holds_word(m->store->facts[q->evidence[e]].text, q->answers[0]);
    }
    if (q->type != SYNTH_COUNT && telling != 1)
        fail_msg("\"%s\": %zu of its facts say %s", q->text, telling, q->answers[0]);
    if (q->type == SYNTH_COUNT) assert_true(q->n_evidence >= 2 && q->answers[1] != NULL);
}

static void questions_do_not_tell(void **state)
{
    for (uint32_t i = 0; i < MEMORIES; i++) {
        synth_memory m;

        KIT_OK(synth_memory_make(12, i, &m));
        for (size_t k = 0; k < m.store->n_questions; k++) {
            const quiz_question *q = &m.store->questions[k];

            for (size_t c = 0; c < QUIZ_CHOICES; c++) {
                if (holds_word(q->text, q->choices[c]))
                    fail_msg("\"%s\" says %s", q->text, q->choices[c]);
                for (size_t d = 0; d < c; d++)
                    assert_string_not_equal(q->choices[c], q->choices[d]);
            }
            assert_true(holds_word(q->text, m.queries[k].person));
            assert_null(strchr(q->text, '{'));
            assert_int_equal(q->text[strlen(q->text) - 1], '?');
            check_evidence(&m, k);
        }
        synth_memory_free(&m);
    }
}

static void facts_say_their_records(void **state)
{
    for (uint32_t i = 0; i < MEMORIES; i++) {
        synth_memory m;

        KIT_OK(synth_memory_make(13, i, &m));
        for (size_t k = 0; k < m.store->n_facts; k++) {
            const char *text = m.store->facts[k].text;

            assert_true(holds_word(text, m.records[k].person));
            assert_true(!m.records[k].value[0] || holds_word(text, m.records[k].value));
            assert_null(strchr(text, '{'));
            for (size_t j = 0; j < k; j++) assert_string_not_equal(text, m.store->facts[j].text);
        }
        synth_memory_free(&m);
    }
}

/* Any beginning of a run is as good a sample of one type as of another; wrong choices are tempting.
 * */
static void types_take_turns(void **state)
{
    synth_memory m;
    size_t at[QUIZ_CHOICES] = { 0 }, old = 0, updates = 0;

    KIT_OK(synth_memory_make(14, 0, &m));
    assert_int_equal(m.store->n_questions, 120);
    for (size_t k = 0; k < m.store->n_questions; k++) {
        const quiz_question *q = &m.store->questions[k];

        assert_int_equal(q->type, k % SYNTH_TYPES);
        at[q->right]++;
        if (q->type != SYNTH_UPDATE) continue;
        updates++;
        for (size_t c = 0; c < QUIZ_CHOICES; c++)
            old += holds_word(m.store->facts[q->evidence[1]].text, q->choices[c]);
    }
    for (size_t c = 0; c < QUIZ_CHOICES; c++) assert_in_range(at[c], 15, 45);
    assert_int_equal(old,
                     updates); /* what it was before is a choice, and no other word of that fact */
    synth_memory_free(&m);
}

static void no_memory_leaves_nothing(void **state)
{
    for (size_t nth = 1; nth < 400; nth += 7) {
        synth_memory m;

        is_mem_fail_at(nth);
        KIT_FAILS(INFERSCALE_E_NOMEM, synth_memory_make(1, 0, &m));
        is_mem_fail_at(0);
        assert_null(m.store);
    }
}

static void a_quiz_is_named_by_its_words(void **state)
{
    quiz a, b;
    quiz_store *s = NULL;

    KIT_OK(quiz_synthetic(1, &a));
    KIT_OK(quiz_synthetic(2, &b));
    assert_memory_not_equal(a.digest, b.digest, sizeof a.digest);
    KIT_OK(quiz_store_at(&a, 5, &s));
    assert_string_equal(s->id, "memory-5");
    quiz_store_free(s);
}

/* ---- LoCoMo ---------------------------------------------------------------------------------- */

static void locomo_as_published(void **state)
{
    locomo *data = NULL;
    quiz_store *s = NULL;
    quiz q;

    KIT_OK(locomo_load("fuzz/corpus/locomo/small.json", &data));
    KIT_OK(quiz_locomo(data, 1, 100, &q));
    assert_int_equal(q.n, 4);
    assert_int_equal(q.n_types, 4);
    KIT_OK(quiz_store_at(&q, 0, &s));
    assert_int_equal(s->n_facts, data->conversations[0].n_observations);
    assert_true(s->n_questions > 0);
    for (size_t i = 0; i < s->n_questions; i++) {
        assert_true(s->questions[i].type < 4);
        assert_null(s->questions[i].choices[0]);
        assert_int_equal(s->questions[i].is_list, s->questions[i].type == 0);
        for (size_t k = 1; k < s->questions[i].n_evidence; k++)
            assert_true(s->questions[i].evidence[k] < s->questions[i].evidence[k - 1]);
    }
    quiz_store_free(s);
    KIT_FAILS(INFERSCALE_E_NOTFOUND, quiz_store_at(&q, (uint32_t)data->n, &s));
    assert_null(s);
    locomo_free(data);
}

/* Each conversation gives its share, the same for the same seed, none twice. */
static void locomo_in_proportion(void **state)
{
    enum { TALKS = 3 };
    static const size_t has[TALKS] = { 10, 0, 30 }, want[TALKS] = { 5, 0, 15 };
    locomo_qa qa[30];
    locomo_conversation talks[TALKS];
    locomo data = { talks, TALKS };
    char names[30][16];
    quiz q, other;
    size_t different = 0;

    for (size_t i = 0; i < 30; i++) {
        snprintf(names[i], sizeof names[i], "Question %zu?", i);
        qa[i] = (locomo_qa){ .question = names[i], .answer = "yes; no", .category = 1 + i % 4 };
    }
    for (size_t i = 0; i < TALKS; i++)
        talks[i] = (locomo_conversation){ .id = "talk", .qa = qa, .n_qa = has[i] };
    KIT_OK(quiz_locomo(&data, 1, 20, &q));
    KIT_OK(quiz_locomo(&data, 2, 20, &other));
    assert_memory_not_equal(q.digest, other.digest, sizeof q.digest);
    for (uint32_t i = 0; i < TALKS; i++) {
        quiz_store *s = NULL, *t = NULL;

        KIT_OK(quiz_store_at(&q, i, &s));
        KIT_OK(quiz_store_at(&other, i, &t));
        assert_int_equal(s->n_questions, want[i]);
        for (size_t k = 0; k < s->n_questions; k++) {
            const quiz_question *ask = &s->questions[k];

            different += strcmp(ask->text, t->questions[k].text) != 0;
            assert_string_equal(ask->answers[0], ask->type == 2 ? "yes" : "yes; no");
            for (size_t j = 0; j < k; j++) assert_string_not_equal(s->questions[j].text, ask->text);
        }
        quiz_store_free(s);
        quiz_store_free(t);
    }
    assert_true(different > 0);
    KIT_OK(quiz_locomo(&data, 1, 1000, &q));
    assert_int_equal(q.n, 40);
}

/* ---- Grades ---------------------------------------------------------------------------------- */

static grade graded(const quiz_question *q, const char *answer)
{
    grader *g = NULL;
    grade out;

    KIT_OK(grader_new(&g));
    KIT_OK(grade_answer(g, q, answer, &out));
    grader_free(g);
    return out;
}

#define F1(q, answer, want) assert_float_equal(graded((q), (answer)).f1, (want), 1e-6)

static void an_answer_names_the_right_choice_first(void **state)
{
    quiz_question pet = { .answers = { "dog" },
                          .choices = { "cat", "dog", "guinea pig", "goat" },
                          .right = 1 };
    quiz_question number = { .answers = { "three", "3" },
                             .choices = { "two", "three", "four", "six" },
                             .right = 1 };
    quiz_question plain = { .answers = { "peanuts" } };

    assert_true(graded(&pet, "Anna keeps a DOG.").right);
    assert_true(graded(&pet, "dogs!").right);
    assert_true(graded(&pet, "A dog, not a cat.").right);
    assert_false(graded(&pet, "A cat or a dog.").right);
    assert_false(graded(&pet, "a guinea pig and a dog").right);
    assert_true(graded(&pet, "a guinea dog pig").right);
    assert_false(graded(&pet, "hotdog").right);
    assert_false(graded(&pet, "").right);
    assert_true(graded(&number, "She has 3 of them").right);
    assert_true(graded(&number, "three").right);
    assert_false(graded(&number, "2, no, 3").right);
    assert_false(graded(&number, "33").right);
    assert_true(graded(&plain, "It is the peanut/egg she avoids").right);
    assert_false(graded(&plain, "\xff\xfe pea nuts").right);
}

/* By hand: precision and recall over stems, articles and punctuation gone. */
static void f1_is_locomos(void **state)
{
    quiz_question trip = { .answers = { "the Cats and dogs" } },
                  list = { .answers = { "tea, green apples" }, .is_list = true };

    F1(&trip, "cat dog", 1);
    F1(&trip, "A cat", 2 * 1 * 0.5 / 1.5);
    F1(&trip, "one cat, two birds", 2 * 0.25 * 0.5 / 0.75);
    F1(&trip, "cat cat", 0.5);
    F1(&trip, "nothing", 0);
    F1(&trip, "", 0);
    F1(&list, "tea", 0.5);
    F1(&list, "apple, tea", (1 + 2 * 1 * 0.5 / 1.5) / 2);
    F1(&list, "tea green apples", (2 * (1.0 / 3) / (4.0 / 3) + 2 * (2.0 / 3) / (5.0 / 3)) / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bytes_everywhere),
        cmocka_unit_test(answers_follow_from_the_facts),
        cmocka_unit_test(questions_do_not_tell),
        cmocka_unit_test(facts_say_their_records),
        cmocka_unit_test(types_take_turns),
        cmocka_unit_test(no_memory_leaves_nothing),
        cmocka_unit_test(a_quiz_is_named_by_its_words),
        cmocka_unit_test(locomo_as_published),
        cmocka_unit_test(locomo_in_proportion),
        cmocka_unit_test(an_answer_names_the_right_choice_first),
        cmocka_unit_test(f1_is_locomos),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
