/* What must hold of the score on the real MiniLM: a question that nothing here answers scores
 * below 0.3, one that a fact answers well above it, by meaning as by words alone; and the
 * figures that are built in are those that measuring gives. The sentences are others than those
 * by which embedders are measured (src/embed/calibrate.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "embed/calibrate.h"
#include "inferscale.h"
#include "support/scratch.h"

enum { QUESTIONS = 20 };

static const char *const facts[] = {
    "Maria keeps bees on the roof of her house.",
    "The dentist appointment is on the twelfth at half past nine.",
    "Jonas collects stamps from countries that no longer exist.",
    "Our neighbour Helga bakes sourdough bread on Saturdays.",
    "Pavel is vegetarian and does not eat fish either.",
    "The wireless password is written on the back of the router.",
    "Aisha won the regional chess championship in 2019.",
    "Stefan drives a red tractor on his uncle's farm.",
    "My passport expires in November next year.",
    "Lucia teaches mathematics at the evening school.",
    "The dog is called Biscuit and hates thunderstorms.",
    "Henrik has worn glasses since he was five.",
    "We rented a cabin by the lake for the second week of July.",
    "Noor is writing her thesis about medieval bridges.",
    "Bruno's blood group is zero negative.",
    "The washing machine leaks when it spins.",
    "Tamara swims a kilometre before breakfast.",
    "Felix owes Katrin forty euros for the concert tickets.",
    "Grandfather was a conductor on the night train to Vienna.",
    "Mei is expecting twins in the spring.",
    "The recipe needs two hundred grams of butter.",
    "Anton is colour-blind and cannot tell red from green.",
    "Sofia volunteers at the hospice every second Sunday.",
    "The alarm code of the workshop is 4471.",
    "Ravi moved from Mumbai to Rotterdam for his job at the port.",
    "Julia is afraid of spiders but likes snakes.",
    "Emil's band rehearses in the garage on Thursdays.",
    "The heating engineer comes on Monday morning.",
    "Nina prefers window seats on long journeys.",
    "Omar proposed to Layla on a bridge in Prague.",
};

/* Each with the number of the fact that answers it. */
static const struct { const char *question; size_t fact; } related[QUESTIONS] = {
    { "What does Maria keep on her roof?", 0 },
    { "When do I have to see the dentist?", 1 },
    { "What does Jonas collect?", 2 },
    { "Who makes bread?", 3 },
    { "Does Pavel eat meat?", 4 },
    { "Where can I find the wifi password?", 5 },
    { "What tournament did Aisha win?", 6 },
    { "What does Lucia do for a living?", 9 },
    { "What is the dog scared of?", 10 },
    { "What is Noor's thesis about?", 13 },
    { "Which blood type does Bruno have?", 14 },
    { "What is wrong with the washing machine?", 15 },
    { "How far does Tamara swim?", 16 },
    { "How much money does Felix owe Katrin?", 17 },
    { "What was grandfather's job?", 18 },
    { "When are Mei's babies due?", 19 },
    { "Which colours does Anton mix up?", 21 },
    { "Why did Ravi leave Mumbai?", 24 },
    { "Which animals frighten Julia?", 25 },
    { "Where did Omar ask Layla to marry him?", 29 },
};

/* Of the world. */
static const char *const of_the_world[] = {
    "How many moons does Jupiter have?",
    "What is the boiling point of nitrogen?",
    "Who wrote the Critique of Pure Reason?",
    "How do I sort a list in Python?",
    "What is the capital of Mongolia?",
    "Which party won the election in Canada?",
    "What does the Higgs boson do?",
    "How is steel made?",
    "Who painted the Night Watch?",
    "What is the plot of Hamlet?",
    "How does a vaccine work?",
    "When did the Roman Empire fall?",
    "What is the exchange rate of the yen?",
    "How do volcanoes form?",
    "Which is the longest river in Africa?",
    "How do I convert inches to centimetres?",
    "What is the speed of light?",
    "Who invented the telephone?",
    "Why is the sky blue?",
    "What is a binary search tree?",
};

/* Of the kind that people ask their memory, about what was never told. */
static const char *const of_their_lives[] = {
    "What is my boss called?",
    "Which perfume does Carla use?",
    "How tall is Dmitri?",
    "Where did I park the motorcycle?",
    "What size are Ben's shoes?",
    "Which football club does Igor support?",
    "When did Wanda start to smoke?",
    "What is the name of my accountant?",
    "What did Carlos order at the restaurant?",
    "Which insurance company do I use?",
    "What did the doctor say about my knee?",
    "How often does Vera visit her mother?",
    "What is on the shopping list?",
    "Which tattoo does Zoe have?",
    "Who is godfather of my son?",
    "What kind of wine does Pierre like?",
    "Where does Olga keep her jewellery?",
    "Which gym do I go to?",
    "What did I dream last night?",
    "How long is the warranty on the laptop?",
};

static const inferscale_scope anna = { .user = "anna" };
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

/* A store with the facts, of which as many are embedded by a question as there is time for: all, or none. */
static inferscale *open_store(const char *folder, int embed_ms)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = scratch_path(scratch, folder);
    o.plugin_dir = plugins();
    o.n_threads = 1;
    o.question_embed_ms = embed_ms;
    OK(inferscale_open(&is, &o));
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        OK(inferscale_remember(is, &anna, &(inferscale_fact){ .text = facts[i] }, 1, NULL));
    return is;
}

/* The best hit's score; 0 = nothing was found. *fact (may be NULL): its id, which counts from 1. */
static double best(inferscale *is, const char *question, int method, int64_t *fact)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;
    double score = 0;

    o.method = method;
    o.k = 5;
    OK(inferscale_recall(is, &anna, question, &o, &l));
    if (l->n) score = l->items[0].score;
    if (fact) *fact = l->n ? l->items[0].id : 0;
    for (size_t i = 0; i < l->n; i++) {
        assert_true(l->items[i].score > 0 && l->items[i].score <= 1);
        assert_true(i == 0 || l->items[i].score <= l->items[i - 1].score);
        if (l->items[i].score_lexical > 0) assert_true(l->items[i].score >= 0.01);
    }
    inferscale_list_free(l);
    return score;
}

static size_t n_below(inferscale *is, const char *const *questions, int method, double limit)
{
    size_t n = 0;

    for (size_t i = 0; i < QUESTIONS; i++) {
        const double score = best(is, questions[i], method, NULL);

        n += score < limit;
        if (score >= limit) print_message("  %.3f %s\n", score, questions[i]);
    }
    print_message("  %zu of %d below %.1f\n", n, QUESTIONS, limit);
    return n;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void unrelated_questions_score_low(void **state)
{
    inferscale *is = open_store("low", 60000);

    (void)state;
    for (int method = INFERSCALE_FUSED; method <= INFERSCALE_DENSE; method++) {
        assert_true(n_below(is, of_the_world, method, 0.3) >= 18);
        assert_true(n_below(is, of_their_lives, method, 0.3) >= 18);
    }
    inferscale_close(is);
}

static void related_questions_score_high(void **state)
{
    inferscale *is = open_store("high", 60000);
    double scores[QUESTIONS];

    (void)state;
    for (size_t i = 0; i < QUESTIONS; i++) {
        int64_t fact;

        scores[i] = best(is, related[i].question, INFERSCALE_FUSED, &fact);
        assert_int_equal(fact, related[i].fact + 1);
    }
    qsort(scores, QUESTIONS, sizeof *scores, by_value);
    print_message("  related: %.3f at least, %.3f in the middle\n", scores[0], scores[QUESTIONS / 2]);
    assert_true(scores[0] >= 0.4);
    assert_true(scores[QUESTIONS / 2] >= 0.85);
    inferscale_close(is);
}

/* Nothing is embedded: the word alone finds it, and its score is no 0. */
static void words_alone_score_too(void **state)
{
    inferscale *is = open_store("words", -1);
    int64_t fact;

    (void)state;
    assert_true(n_below(is, of_the_world, INFERSCALE_FUSED, 0.3) >= 18);
    assert_true(best(is, "Biscuit", INFERSCALE_FUSED, &fact) > 0.7 && fact == 11);
    assert_true(best(is, "What is Noor's thesis about?", INFERSCALE_FUSED, &fact) > 0.3 && fact == 14);
    inferscale_close(is);
}

static void what_is_built_in_is_what_is_measured(void **state)
{
    const char *dir = getenv("INFERSCALE_MODELS"), *home = getenv("HOME");
    is_calibration built_in, measured;
    is_embedder *e = NULL;
    char path[4096], hex[2 * IS_HASH_BYTES + 1];
    float *v;

    (void)state;
    if (dir && *dir) snprintf(path, sizeof path, "%s/all-minilm-l6-v2-f16.gguf", dir);
    else snprintf(path, sizeof path, "%s/.cache/inferscale/models/all-minilm-l6-v2-f16.gguf", home ? home : ".");
    if (access(path, R_OK) != 0) fail_msg("%s is not there; run scripts/setup.sh", path);
    OK(is_embedder_open(plugins(), "llama", path, NULL, 1, &e));
    v = is_malloc((size_t)IS_CALIBRATION_TEXTS * is_embedder_dim(e) * sizeof *v);
    OK(is_embedder_embed(e, is_calibration_texts, IS_CALIBRATION_TEXTS, v));
    measured = is_calibration_of(v, is_embedder_dim(e));
    is_hex(is_embedder_fingerprint(e), IS_HASH_BYTES, hex);
    print_message("  %s: { %.4f, %.4f }\n", hex, measured.low, measured.high);
    assert_true(is_calibration_built_in(e, &built_in));
    assert_true(fabs(built_in.low - measured.low) < 0.002 && fabs(built_in.high - measured.high) < 0.002);
    is_free(v);
    is_embedder_close(e);
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
        cmocka_unit_test(what_is_built_in_is_what_is_measured),
        cmocka_unit_test(unrelated_questions_score_low),
        cmocka_unit_test(related_questions_score_high),
        cmocka_unit_test(words_alone_score_too),
    };

    return cmocka_run_group_tests(tests, make, drop);
}
