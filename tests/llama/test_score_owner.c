/* What must hold of the score on the real MiniLM in a memory that is about one person, whose name
 * stands in every fact: that a question names him says nothing. Three kinds of questions: facts
 * answer it, nobody told that of him, it is about something else. By hand, and of invented
 * memories of which nothing was fitted; what is measured is printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inferscale.h"
#include "support/score_sets.h"
#include "support/scratch.h"

enum { FACTS = 30, QUESTIONS = 20, MOST = SCORE_QUESTIONS };

static const char *const of_tom[FACTS] = {
    "Tom's dog Rex is afraid of fireworks.",
    "Tom works as a signalman for the railway in Crewe.",
    "Tom broke his collarbone when he fell off a ladder.",
    "Tom's daughter Lily plays the trumpet in the school band.",
    "Tom drinks his tea without sugar since the doctor warned him.",
    "Tom went sailing for the first time with his brother-in-law Greg.",
    "Tom's car failed its inspection because of worn tyres.",
    "Tom grows pumpkins on his allotment behind the gasworks.",
    "Tom is saving for a new boiler.",
    "Tom's father was a miner in Durham.",
    "Tom has been a member of the brass band for eleven years.",
    "Tom cannot eat shellfish.",
    "Tom lent his power drill to Dave and never got it back.",
    "Tom's favourite film is an old western with John Wayne.",
    "Tom and his wife Sheila honeymooned on the Isle of Skye.",
    "Tom is learning Welsh with an app on his telephone.",
    "Tom takes the six o'clock bus because parking is too dear.",
    "Tom's password hint is the name of his first goldfish.",
    "Tom painted the garden shed light blue in May.",
    "Tom supports Stoke City and goes to every home match.",
    "Tom was stung by a jellyfish in Tenby last summer.",
    "Tom's neighbour Mrs. Patel looks after the dog when they are away.",
    "Tom owes the library four pounds in fines.",
    "Tom is building a model of the Forth Bridge out of matches.",
    "Tom sleeps badly when there is a full moon.",
    "Tom's sister Joan moved to New Zealand in 2015.",
    "Tom won a hamper in the raffle at the church fete.",
    "Tom's hearing in the left ear is poor.",
    "Tom is planning a surprise party for Sheila in October.",
    "Tom reads detective novels in the bath.",
};

/* Each with the number of the fact that answers it. */
static const struct { const char *question; size_t fact; } answered[QUESTIONS] = {
    { "What frightens the dog?", 0 },
    { "What is Tom's job?", 1 },
    { "How did Tom hurt himself?", 2 },
    { "Which instrument does Lily play?", 3 },
    { "Does Tom take sugar in his tea?", 4 },
    { "Who took Tom sailing?", 5 },
    { "Why did the car not pass its test?", 6 },
    { "What vegetables does Tom grow?", 7 },
    { "What is Tom putting money aside for?", 8 },
    { "What did Tom's father do for a living?", 9 },
    { "What food does Tom have to avoid?", 11 },
    { "Who has Tom's drill?", 12 },
    { "Where did Tom and Sheila go on their honeymoon?", 14 },
    { "Which language is Tom studying?", 15 },
    { "What colour is the shed?", 18 },
    { "Which football team does Tom follow?", 19 },
    { "When was the jellyfish accident?", 20 },
    { "Who minds Rex during the holidays?", 21 },
    { "Where does Tom's sister live?", 25 },
    { "Is there something wrong with Tom's ears?", 27 },
};

static const char *const untold[QUESTIONS] = {
    "How old is Tom?",
    "How tall is Tom?",
    "When is Tom's birthday?",
    "What is Tom's surname?",
    "Is Tom religious?",
    "What does Tom weigh?",
    "Which newspaper does Tom read in the morning?",
    "What is Tom's telephone number?",
    "Did Tom go to university?",
    "What is Tom's blood group?",
    "How much rent does Tom pay?",
    "Which party does Tom vote for?",
    "Has Tom ever been to America?",
    "What was Tom like as a child?",
    "Who is Tom's boss?",
    "What is the name of Tom's cat?",
    "Does Tom smoke?",
    "When did Tom get divorced?",
    "What did Tom say about the strike?",
    "Where does Tom keep his passport?",
};

static const char *const foreign[QUESTIONS] = {
    "What time is it?",
    "How many bones does a human body have?",
    "Who is the president of France?",
    "What is photosynthesis?",
    "How do I boil an egg?",
    "Translate good morning into Spanish.",
    "Where was Mozart born?",
    "Which metal melts at the lowest temperature?",
    "What is the fastest animal on land?",
    "How does a refrigerator work?",
    "Give me a summary of the news.",
    "What is the meaning of life?",
    "When does the summer time end?",
    "Who are you?",
    "Sort these numbers in ascending order.",
    "What is the difference between HTTP and HTTPS?",
    "How far away is the nearest star?",
    "Why is bread fluffy?",
    "What happened in 1066?",
    "Can I have a refund?",
};

static const inferscale_scope owner = { .user = "anna" };
static char *scratch;

/* Next to this program is tests/.., where plug-ins are built. */
static const char *plugins(void)
{
    static char dir[4096];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);

    assert_true(n > 0);
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    *strrchr(dir, '/') = 0;
    return dir;
}

/* A new store with these facts, whose ids count from 1; a question embeds what has no vector. */
static inferscale *open_store(const char *const *facts, size_t n)
{
    static int number;
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;
    char folder[32];

    snprintf(folder, sizeof folder, "store-%d", number++);
    o.home = scratch_path(scratch, folder);
    o.plugin_dir = plugins();
    o.n_threads = 1;
    o.question_embed_ms = 600000;
    OK(inferscale_open(&is, &o));
    for (size_t i = 0; i < n; i++)
        OK(inferscale_remember(is, &owner, &(inferscale_fact){ .text = facts[i] }, 1, NULL));
    return is;
}

/* The best hit's score; 0 = nothing was found. *fact: its number, from 0. */
static double best(inferscale *is, const char *question, size_t *fact)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;
    double score;

    o.k = 1;
    OK(inferscale_recall(is, &owner, question, &o, &l));
    score = l->n ? l->items[0].score : 0;
    *fact = l->n ? (size_t)(l->items[0].id - 1) : SIZE_MAX;
    inferscale_list_free(l);
    return score;
}

/* ---- Counting -------------------------------------------------------------------------------- */

typedef struct sample { double v[MOST]; size_t n; } sample;

static void add(sample *s, double v)
{
    assert_true(s->n < MOST);
    s->v[s->n++] = v;
}

static double below(const sample *s, double limit)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++) n += s->v[i] < limit;
    return (double)n / (double)s->n;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(sample *s)
{
    qsort(s->v, s->n, sizeof *s->v, by_value);
    return s->v[s->n / 2];
}

/* The area under the curve: how often one of a scores above one of b. */
static double area(const sample *a, const sample *b)
{
    double sum = 0;

    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            sum += a->v[i] > b->v[k] ? 1 : a->v[i] < b->v[k] ? 0 : 0.5;
    return sum / (double)(a->n * b->n);
}

static void print(const char *what, sample *of)
{
    static const char *const names[SCORE_KINDS] = { "answered", "untold", "foreign", "word" };

    print_message("  %s: area %.3f of answered against untold\n", what,
                  area(&of[SCORE_ANSWERED], &of[SCORE_UNTOLD]));
    for (int k = 0; k < SCORE_KINDS; k++)
        if (of[k].n)
            print_message("    %-9s %3zu, below 0.3: %3.0f%%, median %.2f\n", names[k], of[k].n,
                          100 * below(&of[k], 0.3), median(&of[k]));
}

/* ---- By hand --------------------------------------------------------------------------------- */

static void a_name_that_all_facts_have_says_nothing(void **state)
{
    inferscale *is = open_store(of_tom, FACTS);
    sample *of = calloc(SCORE_KINDS, sizeof *of);
    size_t fact, n_right = 0;

    (void)state;
    for (size_t i = 0; i < QUESTIONS; i++) {
        add(&of[SCORE_ANSWERED], best(is, answered[i].question, &fact));
        n_right += fact == answered[i].fact;
        add(&of[SCORE_UNTOLD], best(is, untold[i], &fact));
        add(&of[SCORE_FOREIGN], best(is, foreign[i], &fact));
    }
    print("thirty facts about Tom", of);
    assert_true(n_right >= 17);
    assert_true(below(&of[SCORE_UNTOLD], 0.3) >= 0.7);
    assert_true(below(&of[SCORE_FOREIGN], 0.3) >= 0.95);
    assert_true(below(&of[SCORE_ANSWERED], 0.3) <= 0.2 && median(&of[SCORE_ANSWERED]) >= 0.8);
    assert_true(area(&of[SCORE_ANSWERED], &of[SCORE_UNTOLD]) >= 0.93);
    free(of);
    inferscale_close(is);
}

/* In a memory of a few facts it is less clear that the name is in all of them, but clear enough. */
static void nor_where_there_are_few_facts(void **state)
{
    static const char *const few[] = {
        "Tom's dog Rex is three years old.", "Tom works as a signalman in Crewe.",
        "Tom went sailing for the first time with Greg.", "Tom's daughter Lily plays the trumpet.",
        "Tom was stung by a jellyfish in Tenby last summer.", "Tom cannot eat shellfish.",
        "Tom painted the garden shed light blue.", "Tom's sister Joan lives in New Zealand.",
    };
    inferscale *is;
    size_t fact;

    (void)state;
    for (size_t n = 2; n <= 8; n *= 2) {
        is = open_store(few, n);
        assert_true(best(is, "Is Tom married?", &fact) < 0.3);
        assert_true(best(is, "When is Tom's birthday?", &fact) < 0.3);
        assert_true(best(is, "What time is it?", &fact) < 0.3);
        assert_true(best(is, "How old is Rex?", &fact) > 0.8 && fact == 0);
        assert_true(best(is, "What is Tom's job?", &fact) > 0.4 && fact == 1);
        inferscale_close(is);
    }
    is = open_store(few, 8);
    assert_true(best(is, "When was the jellyfish accident?", &fact) > 0.7 && fact == 4);
    print_message("  Is Tom married? %.2f\n", best(is, "Is Tom married?", &fact));
    print_message("  How old is Tom (whose dog is three)? %.2f\n",
                  best(is, "How old is Tom?", &fact));
    inferscale_close(is);
}

/* ---- Invented -------------------------------------------------------------------------------- */

static void ask_all(uint32_t number, size_t size, sample *of)
{
    score_set *s = score_set_make(1001, number, 0, size);
    inferscale *is;

    assert_non_null(s);
    is = open_store(s->facts, s->n_facts);
    for (size_t i = 0; i < s->n_questions; i++) {
        const score_question *q = &s->questions[i];
        bool right = false;
        size_t fact;
        const double score = best(is, q->text, &fact);

        for (size_t k = 0; k < q->n_answers; k++) right = right || q->answers[k] == fact;
        if (right || q->kind == SCORE_UNTOLD || q->kind == SCORE_FOREIGN) add(&of[q->kind], score);
    }
    inferscale_close(is);
    score_set_free(s);
}

static void invented_memories_of_one_and_of_ten_people(void **state)
{
    sample *of = calloc(SCORE_KINDS, sizeof *of);

    (void)state;
    for (uint32_t number = 0; number < 2; number++) ask_all(number, SCORE_ONE_PERSON, of);
    print("one person", of);
    assert_true(below(&of[SCORE_UNTOLD], 0.3) >= 0.65);
    assert_true(below(&of[SCORE_FOREIGN], 0.3) >= 0.95 && below(&of[SCORE_WORD], 0.3) <= 0.05);
    assert_true(below(&of[SCORE_ANSWERED], 0.3) <= 0.2);
    assert_true(area(&of[SCORE_ANSWERED], &of[SCORE_UNTOLD]) >= 0.88);
    memset(of, 0, SCORE_KINDS * sizeof *of);
    ask_all(0, SCORE_TEN_PEOPLE, of);
    print("ten people", of);
    assert_true(below(&of[SCORE_UNTOLD], 0.3) >= 0.4 && below(&of[SCORE_FOREIGN], 0.3) >= 0.9);
    assert_true(below(&of[SCORE_WORD], 0.3) <= 0.05);
    free(of);
}

static int make(void **state)
{
    (void)state;
    scratch = scratch_make();
    return 0;
}

static int drop(void **state)
{
    (void)state;
    scratch_remove(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_that_all_facts_have_says_nothing),
        cmocka_unit_test(nor_where_there_are_few_facts),
        cmocka_unit_test(invented_memories_of_one_and_of_ten_people),
    };

    return cmocka_run_group_tests(tests, make, drop);
}
