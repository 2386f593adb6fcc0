/* A memory that lives: threads add, change and forget facts in three partitions while others ask, talk, look for facts and encode. A
 * model in memory and the engine's own witness say what must hold:
 *   - no text that an update or forget has ended is computed on once that call has returned, however the question stood then;
 *   - no run and no encoding ever sees facts of two partitions;
 *   - no acknowledged fact is lost, at the end and at any moment between.
 * And forget in the midst of composing and in the midst of decoding, on purpose, not by luck.
 *
 * The seed is printed; INFERSCALE_SEED replays the choices (threads interleave as they like). INFERSCALE_LIVE_FACTS sets the number of
 * facts, INFERSCALE_SOAK=SECONDS repeats the whole until then. */
#include <setjmp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/live.h"
#include "support/scratch.h"

#if defined(__SANITIZE_THREAD__)
enum { FACTS = 150 };
#elif defined(__SANITIZE_ADDRESS__)
enum { FACTS = 600 };
#else
enum { FACTS = 2000 };
#endif
enum { WRITERS = 3, ASKERS = 2, THREADS = WRITERS + ASKERS + 3 };

static live *l;
static inferscale *is;
static int n_facts;

static unsigned long long rng_of(int thread)
{
    return l->seed ^ (0x9e3779b97f4a7c15ull * (unsigned long long)(thread + 1));
}

static bool over(void)
{
    return atomic_load(&l->writers) == 0 || atomic_load(&l->failures) > 100;
}

/* On a crowded machine the readers may be late: they go on until they have seen something. */
static bool too_few(atomic_ulong *done, unsigned long wanted)
{
    return atomic_load(done) < wanted && atomic_load(&l->failures) == 0;
}

/* ---- Everything at once -------------------------------------------------------------------------------------------------- */

/* Forgets one or two of the facts that this writer owns. */
static void forget_some(int w, int next, unsigned long long *rng)
{
    int n[2] = { live_pick(l, rng, next, w, WRITERS), live_pick(l, rng, next, w, WRITERS) };
    size_t count = n[0] >= 0 && n[1] >= 0 && n[1] != n[0] && live_partition(n[0]) == live_partition(n[1]) ? 2 : 1;

    if (n[0] >= 0) live_forget(l, is, n, count);
}

static void *write_facts(void *arg)
{
    int w = (int)(intptr_t)arg, next = w, n;
    unsigned long long rng = rng_of(w);

    while (next < n_facts && atomic_load(&l->failures) <= 100) {
        unsigned dice = scratch_below(&rng, 10);

        if (dice < 5) {
            live_add(l, is, next);
            next += WRITERS;
        } else if (dice < 8) {
            if ((n = live_pick(l, &rng, next, w, WRITERS)) >= 0) live_change(l, is, n);
        } else forget_some(w, next, &rng);
    }
    atomic_fetch_sub(&l->writers, 1);
    return NULL;
}

static void *encode_all_the_time(void *arg)
{
    unsigned long long rng = rng_of((int)(intptr_t)arg);

    while (!over() || too_few(&l->encodes, 6)) {
        if (inferscale_encode(is, live_scope((int)scratch_below(&rng, LIVE_PARTITIONS)), NULL) != INFERSCALE_OK)
            live_complain(l, "encode: %s", inferscale_error());
        atomic_fetch_add(&l->encodes, 1);
    }
    return NULL;
}

static void *ask_all_the_time(void *arg)
{
    unsigned long long rng = rng_of((int)(intptr_t)arg);

    while (!over() || too_few(&l->asks, 40)) live_ask(l, is, &rng, n_facts, 4 + scratch_below(&rng, 60));
    return NULL;
}

static void *find_all_the_time(void *arg)
{
    unsigned long long rng = rng_of((int)(intptr_t)arg);

    while (!over() || too_few(&l->finds, 40)) live_find(l, is, &rng, n_facts);
    return NULL;
}

static void *talk_all_the_time(void *arg)
{
    unsigned long long rng = rng_of((int)(intptr_t)arg);

    while (!over() || too_few(&l->chats, 2)) live_chat(l, is, &rng, n_facts);
    return NULL;
}

static void run_threads(void)
{
    void *(*const work[THREADS])(void *) = { write_facts, write_facts, write_facts, encode_all_the_time, ask_all_the_time,
                                             ask_all_the_time, find_all_the_time, talk_all_the_time };
    pthread_t threads[THREADS];

    atomic_store(&l->writers, WRITERS);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work[i], (void *)(intptr_t)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static void live_once(unsigned long long seed)
{
    char *home = scratch_make(), model[600];
    live_seen seen;

    l = live_new(seed);
    snprintf(model, sizeof model, "mock:witness=%s", scratch_path(home, "witness"));
    is = live_open(scratch_path(home, "store"), model);
    assert_non_null(is);
    run_threads();
    live_check_store(l, is, n_facts);
    inferscale_close(is);
    is = live_open(scratch_path(home, "store"), model); /* and on the disk */
    assert_non_null(is);
    live_check_store(l, is, n_facts);
    inferscale_close(is);
    seen = live_check_witness(l, scratch_path(home, "witness"));
    print_message("added %lu, changed %lu, forgotten %lu; asked %lu (%lu cut, %lu gave up), found %lu, talks %lu, encodings %lu; "
                  "witness: %lu calls, %lu runs on %lu texts, %lu captures (%lu of ended texts, refused)\n", l->adds, l->changes,
                  l->forgets, l->asks, l->cut, l->stale, l->finds, l->chats, l->encodes, seen.calls, seen.runs, seen.tags,
                  seen.captures, seen.late_captures);
    assert_int_equal(l->adds, n_facts);
    assert_true(l->changes > (unsigned long)n_facts / 4 && l->forgets > (unsigned long)n_facts / 8);
    assert_true(seen.runs > 10 && seen.tags > 20 && seen.captures > 10 && l->finds > 10 && l->chats > 0); /* it saw something */
    assert_int_equal(l->failures, 0);
    live_free(l);
    scratch_remove(home);
}

static void nothing_stale_nothing_foreign_nothing_lost(void **state)
{
    const char *facts = getenv("INFERSCALE_LIVE_FACTS"), *soak = getenv("INFERSCALE_SOAK");
    double until = is_now_ms() + (soak ? atof(soak) * 1000 : 0);
    unsigned long long seed = scratch_seed("live");

    (void)state;
    n_facts = facts ? atoi(facts) : FACTS;
    if (n_facts < 20 || n_facts > LIVE_FACTS) n_facts = FACTS;
    do {
        print_message("seed %llu, %d facts\n", seed, n_facts);
        live_once(seed++);
    } while (is_now_ms() < until);
}

/* ---- In the midst -------------------------------------------------------------------------------------------------------- */

enum { FEW = 12, MIDST_TRIES = 6 };

typedef struct asker { int partition; inferscale_status st; inferscale_answer *answer; _Atomic double asked, done; atomic_int pieces; } asker;

static int count_piece(void *ctx, const char *text, size_t len)
{
    atomic_fetch_add(&((asker *)ctx)->pieces, 1);
    return 0;
}

static void *ask_slowly(void *arg)
{
    asker *a = arg;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_recall_options by_words = INFERSCALE_RECALL_OPTIONS_INIT;

    by_words.method = INFERSCALE_LEXICAL; /* the fact must be found: by meaning, others' vectors may outrank its one word */
    o.recall = &by_words;
    o.k = 4;
    o.max_tokens = 100; /* the mock's answer ends after some 60 */
    o.on_text = count_piece;
    o.text_ctx = a;
    a->asked = is_now_ms();
    a->st = inferscale_ask(is, live_scope(a->partition), "What about kx00000, the lamp and the garden?", &o, &a->answer);
    a->done = is_now_ms();
    return NULL;
}

/* Asks, and as soon as when() says so, forgets the fact that the answer is about. *began, *ended: of the forgetting. */
static void forget_during(asker *a, bool (*when)(asker *a), double *began, double *ended)
{
    pthread_t thread;
    int first = 0;

    *a = (asker){ .partition = 0 };
    assert_int_equal(pthread_create(&thread, NULL, ask_slowly, a), 0);
    while (!when(a)) usleep(200);
    *began = is_now_ms();
    live_forget(l, is, &first, 1);
    *ended = is_now_ms();
    pthread_join(thread, NULL);
}

static void with_few_facts(const char *options, char *home)
{
    char model[700];

    l = live_new(scratch_seed("in the midst"));
    snprintf(model, sizeof model, "mock:%s,witness=%s", options, scratch_path(home, "witness"));
    is = live_open(scratch_path(home, "store"), model);
    assert_non_null(is);
    for (int i = 0; i < FEW; i++) live_add(l, is, i * LIVE_PARTITIONS); /* all in one partition */
    assert_int_equal(inferscale_encode(is, live_scope(0), NULL), INFERSCALE_OK);
}

static void end_of_few(char *home)
{
    inferscale_close(is);
    live_check_witness(l, scratch_path(home, "witness"));
    assert_int_equal(l->failures, 0);
    live_free(l);
    scratch_remove(home);
}

static bool says_the_tag(const inferscale_answer *a)
{
    return strstr(a->text, "zq00000v1p0") != NULL;
}

static bool uses_the_fact(const inferscale_answer *a)
{
    for (size_t i = 0; i < a->n_facts; i++)
        if (a->facts[i].id == atomic_load(&l->facts[0].id)) return true;
    return false;
}

static bool has_spoken(asker *a)
{
    return atomic_load(&a->pieces) >= 5;
}

/* The answer recites the fact, a token every 50 ms; after five it is forgotten. Not one token more comes after forget returned (the
 * witness says so), and forget does not wait until the answer is told. */
static void forgetting_cuts_an_answer_that_is_being_told(void **state)
{
    char *home = scratch_make();
    double began, ended;
    asker a;

    (void)state;
    with_few_facts("slow=50", home);
    forget_during(&a, has_spoken, &began, &ended);
    assert_int_equal(a.st, INFERSCALE_OK);
    assert_true(uses_the_fact(a.answer));
    assert_string_equal(a.answer->finish, "cancelled");
    assert_true(a.answer->fallback[0] != 0);
    assert_false(says_the_tag(a.answer)); /* it had not come to that word */
    assert_true(a.answer->tokens_answer >= 5 && a.answer->tokens_answer < 40);
    inferscale_answer_free(a.answer);
    end_of_few(home);
}

static double compose_from_ms;

/* In the midst of composing: parts take 40 ms each, and nothing was said yet. */
static bool is_composing(asker *a)
{
    return a->asked != 0 && is_now_ms() > a->asked + compose_from_ms;
}

/* Nothing was shown yet, so the question is planned again without the fact: the answer is whole and knows nothing of it. */
static void forgetting_while_rows_are_composed_gives_an_answer_without_them(void **state)
{
    int in_the_midst = 0;

    (void)state;
    for (int i = 0; i < MIDST_TRIES; i++) {
        char *home = scratch_make();
        double began, ended;
        asker a;

        with_few_facts("slow-inject=40", home);
        compose_from_ms = 20 + 20 * i;
        forget_during(&a, is_composing, &began, &ended);
        assert_true(a.st == INFERSCALE_OK || a.st == INFERSCALE_E_STALE);
        in_the_midst += a.st == INFERSCALE_OK && a.done > began && a.answer->n_facts > 0 && !uses_the_fact(a.answer);
        if (a.st == INFERSCALE_OK && a.asked < began && a.done > ended) assert_false(says_the_tag(a.answer));
        inferscale_answer_free(a.answer);
        end_of_few(home);
    }
    assert_true(in_the_midst > 0);
}

/* A conversation whose memory holds the fact: the next turn is told without it. */
static void forgetting_between_turns_drops_the_rows(void **state)
{
    char *home = scratch_make();
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL, *b = NULL;
    inferscale_chat *chat = NULL;
    int first = 0;

    (void)state;
    with_few_facts("ctx=4096", home);
    o.k = 4;
    o.max_tokens = 12;
    assert_int_equal(inferscale_chat_open(is, live_scope(0), &chat), INFERSCALE_OK);
    assert_int_equal(inferscale_chat_say(chat, "What about kx00000?", &o, &a), INFERSCALE_OK);
    assert_true(uses_the_fact(a));
    assert_true(live_forget(l, is, &first, 1));
    assert_int_equal(inferscale_chat_say(chat, "And what about kx00000 now?", &o, &b), INFERSCALE_OK);
    assert_false(uses_the_fact(b));
    assert_true(b->fallback[0] != 0);
    inferscale_answer_free(a);
    inferscale_answer_free(b);
    inferscale_chat_close(chat);
    end_of_few(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stale_nothing_foreign_nothing_lost),
        cmocka_unit_test(forgetting_cuts_an_answer_that_is_being_told),
        cmocka_unit_test(forgetting_while_rows_are_composed_gives_an_answer_without_them),
        cmocka_unit_test(forgetting_between_turns_drops_the_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
