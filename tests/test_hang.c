/* While an outside thing hangs, nobody waits for it who does not need it: a running stream has all its tokens, forget and questions by words
 * return, the store closes. The embedder's endpoint here accepts and never answers, and may be waited for for an hour: so whatever returns has
 * not waited for it. The only clock is the watchdog's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/handle.h"
#include "api/talks.h"
#include "support/embed_server.h"
#include "support/scratch.h"
#include "support/silent.h"
#include "support/store_kit.h"

enum { WATCHDOG_S = 300, HOUR_MS = 3600 * 1000 };

static char *home, url[100];
static silent never;
static int64_t doomed_id;

static int set_up(void **state)
{
    inferscale *is;

    (void)state;
    alarm(WATCHDOG_S);
    home = scratch_make();
    is = store_open(home, NULL, NULL, false);
    store_fill(is, 6, true);
    doomed_id = store_fact(is, &store_anna, "Anna has a secret.");
    inferscale_close(is);
    silent_start(&never);
    snprintf(url, sizeof url, "%s#m", never.url);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    silent_stop(&never);
    scratch_remove(home);
    alarm(0);
    return 0;
}

static inferscale *open_with(uint32_t wait_ms, int background)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;

    o.embedder = url;
    o.embedder_wait_ms = wait_ms;
    o.background = background;
    OK(inferscale_open(&is, &o));
    return is;
}

/* ---- Callers ------------------------------------------------------------------------------------------------------------- */

typedef struct caller {
    inferscale *is;
    pthread_t thread;
    int pieces, proceed, done;   /* of the stream; atomic */
    inferscale_status status;
} caller;

static void sleep_ms(void)
{
    const struct timespec ms = { 0, 1000000 };

    nanosleep(&ms, NULL);
}

static void wait_for(const int *what, int at_least)
{
    while (__atomic_load_n(what, __ATOMIC_ACQUIRE) < at_least) sleep_ms();
}

/* The first piece of the answer waits until the test says so: the stream runs while all else is tried. */
static int on_text(void *ctx, const char *text, size_t len)
{
    caller *c = ctx;

    (void)text;
    (void)len;
    if (__atomic_add_fetch(&c->pieces, 1, __ATOMIC_ACQ_REL) == 1) wait_for(&c->proceed, 1);
    return 0;
}

static void *stream(void *ctx)
{
    static const inferscale_recall_options words = { .struct_size = sizeof words, .method = INFERSCALE_LEXICAL };
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    caller *c = ctx;

    o.recall = &words;
    o.on_text = on_text;
    o.text_ctx = c;
    o.max_tokens = 30;
    o.k = 2;
    c->status = inferscale_ask(c->is, &store_ben, "What does Ben have?", &o, &a);
    inferscale_answer_free(a);
    __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A question by meaning. */
static void *by_meaning(void *ctx)
{
    inferscale_list *l = NULL;
    caller *c = ctx;

    c->status = inferscale_recall(c->is, &store_anna, "What is on her mind?", NULL, &l);
    inferscale_list_free(l);
    __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void by_words(inferscale *is)
{
    inferscale_recall_options words = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;

    words.method = INFERSCALE_LEXICAL;
    OK(inferscale_recall(is, &store_anna, "peanuts", &words, &l));
    assert_true(l->n > 0);
    inferscale_list_free(l);
}

static void begin(caller *c, inferscale *is, void *(*f)(void *))
{
    *c = (caller){ .is = is };
    assert_int_equal(pthread_create(&c->thread, NULL, f, c), 0);
}

static int pieces_undisturbed(void)
{
    inferscale *is = store_open(home, NULL, NULL, false);
    caller c = { .is = is, .proceed = 1 };

    stream(&c);
    assert_int_equal(c.status, INFERSCALE_OK);
    inferscale_close(is);
    return c.pieces;
}

/* ---- What must hold ------------------------------------------------------------------------------------------------------ */

static void hang(int background)
{
    const int all = pieces_undisturbed();
    inferscale *is = open_with(HOUR_MS, background);
    caller running, hung[4];
    size_t n = 0;

    begin(&running, is, stream);
    wait_for(&running.pieces, 1);
    for (int i = 0; i < 4; i++) begin(&hung[i], is, by_meaning);
    if (!background) { /* else the background may be the one that opens it */
        while (!__atomic_load_n(&is->embedder_slot.loader.loading, __ATOMIC_ACQUIRE)) sleep_ms();
    }
    by_words(is);
    OK(inferscale_forget(is, &store_anna, &doomed_id, 1, &n));
    by_words(is);
    __atomic_store_n(&running.proceed, 1, __ATOMIC_RELEASE);
    assert_int_equal(pthread_join(running.thread, NULL), 0);
    assert_int_equal(running.status, INFERSCALE_OK);
    assert_int_equal(running.pieces, all);
    for (int i = 0; i < 4; i++) assert_int_equal(__atomic_load_n(&hung[i].done, __ATOMIC_ACQUIRE), 0); /* it does hang */
    inferscale_stop_loading(is);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(hung[i].thread, NULL), 0);
        assert_int_equal(hung[i].status, INFERSCALE_OK); /* by words, then */
    }
    inferscale_close(is);
}

static void questions_hang(void **state)
{
    (void)state;
    hang(0);
}

static void the_background_hangs_too(void **state)
{
    inferscale *is = open_with(HOUR_MS, 1);

    (void)state;
    store_fact(is, &store_anna, "Something new."); /* it is to be embedded, and the store closes all the same */
    while (!__atomic_load_n(&is->embedder_slot.loader.loading, __ATOMIC_ACQUIRE)) sleep_ms();
    by_words(is);
    inferscale_close(is);
    hang(1);
}

static void it_is_said_and_not_asked_again_by_everybody(void **state)
{
    enum { QUESTIONS = 6 };
    inferscale *is = open_with(200, 0);
    uint64_t n_failed = 0, n_spared = 0;

    (void)state;
    for (int i = 0; i < QUESTIONS; i++) {
        inferscale_answer *a = store_ask(is);

        assert_true(a->fallbacks & INFERSCALE_FALLBACK_WORDS_ONLY);
        assert_true(a->n_facts > 0);
        inferscale_answer_free(a);
    }
    assert_false(is_handle_embedder_state(is, &n_failed, &n_spared));
    assert_int_equal(n_failed + n_spared, QUESTIONS);
    assert_true(n_failed >= 1 && n_spared >= 1); /* each failure doubles the time that the others are spared */
    inferscale_close(is);
}

static void *go_on(void *ctx)
{
    static const inferscale_message said[] = { { "user", "Who is Anna?" },
                                               { "assistant", "" },
                                               { "user", "And umbrellas?" } };
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;
    inferscale_message m[3];
    inferscale_answer *a = NULL;
    caller *c = ctx;

    memcpy(m, said, sizeof m);
    o.ask.max_tokens = 4;
    o.layout = INFERSCALE_LAYOUT_TURNS;
    c->status = inferscale_complete(c->is, &store_anna, m, 1, &o, &a);
    if (c->status == INFERSCALE_OK) {
        m[1].content = a->text;
        __atomic_store_n(&c->proceed, 1, __ATOMIC_RELEASE);
        inferscale_answer *next = NULL;
        c->status = inferscale_complete(c->is, &store_anna, m, 3, &o, &next);
        inferscale_answer_free(next);
    }
    inferscale_answer_free(a);
    __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A conversation that rests in the engine is taken up only when the question has its vector: until
 * then it makes room for others. */
static void a_conversation_rests_until_the_question_is_embedded(void **state)
{
    embed_server *s = embed_server_start("umbrellas");
    inferscale_options o = store_options(home);
    inferscale *is = NULL;
    caller c;

    (void)state;
    o.embedder = embed_server_spec(s);
    o.embedder_wait_ms = HOUR_MS;
    OK(inferscale_open(&is, &o));
    begin(&c, is, go_on);
    while (embed_server_held(s) == 0 && !__atomic_load_n(&c.done, __ATOMIC_ACQUIRE)) sleep_ms();
    assert_false(__atomic_load_n(&c.done, __ATOMIC_ACQUIRE));
    assert_true(is_talks_evict(is));
    embed_server_release(s);
    assert_int_equal(pthread_join(c.thread, NULL), 0);
    assert_int_equal(c.status, INFERSCALE_OK);
    inferscale_close(is);
    embed_server_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(questions_hang), cmocka_unit_test(the_background_hangs_too),
        cmocka_unit_test(a_conversation_rests_until_the_question_is_embedded),
        cmocka_unit_test(it_is_said_and_not_asked_again_by_everybody),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
