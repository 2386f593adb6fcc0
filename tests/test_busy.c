/* A busy store takes in memory: whatever questions are open, and whatever holds the encoder up, what is remembered gets its embedding and
 * its KV. On the mock engine; what is counted is items, steps and tokens. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/background.h"
#include "base/clock.h"
#include "support/background_kit.h"
#include "support/kit.h"
#include "support/scratch.h"

/* ---- Embedding ------------------------------------------------------------------------------------------------------------ */

/* A question that never ends: all is embedded meanwhile, each item once. */
static void embedding_does_not_wait_for_questions(void **state)
{
    inferscale *is = bg_open_plain();
    inferscale_turn turn = { .text = "And a turn." };

    is_gate_enter(is->gate);
    bg_tell_many(is, &anna, 0, 40);
    bg_tell_many(is, &ben, 0, 7);
    OK(inferscale_add_turns(is, &anna, &turn, 1, NULL));
    UNTIL(bg_state(is, NULL).n_unembedded == 0);
    UNTIL(bg_state(is, NULL).items_embedded == 48);
    assert_int_equal(bg_state(is, NULL).n_unencoded, 47);
    is_gate_leave(is->gate);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_int_equal(bg_state(is, NULL).items_embedded, 48);
    inferscale_close(is);
}

/* Nor for a capture that takes for ever. */
static void embedding_does_not_wait_for_the_encoder(void **state)
{
    inferscale_options o = bg_options("mock:slow=600000");
    inferscale *is = bg_open(&o);

    bg_tell_many(is, &anna, 0, 3);
    UNTIL(bg_state(is, NULL).n_unembedded == 0 && is->background->workers[IS_BG_ENCODER].in_slice);
    bg_tell_many(is, &ben, 0, 30);
    UNTIL(bg_state(is, NULL).items_embedded == 33);
    assert_int_equal(bg_state(is, NULL).facts_encoded, 0);
    inferscale_close(is);
}

/* ---- One capture ----------------------------------------------------------------------------------------------------------- */

enum { CAPTURE_MS = 40 };

typedef struct engine_world {
    is_gate *gate;
    is_engine *e;
    is_realm realm;
    int32_t tokens[4];
    float *rows[64], room[1024];
    is_capture c;
    pthread_t thread;
    is_status st;
} engine_world;

static void engine_open(engine_world *w, const char *model)
{
    is_engine_opts opts = { .model_path = model };

    *w = (engine_world){ .tokens = { 100, 101, 102, 103 }, .realm = { .tag = { 7 }, .epoch = 3 } };
    KIT_OK(is_gate_new(&w->gate));
    opts.gate = w->gate;
    KIT_OK(is_engine_open(bg_plugins, "mock", &opts, &w->e));
    for (uint32_t p = 0; p < is_engine_geometry(w->e)->n_planes; p++) w->rows[p] = w->room;
    w->c = (is_capture){ .span = w->tokens, .n_span = 4, .rows = w->rows, .background = IS_CAPTURE_SOON, .realm = &w->realm };
}

static void engine_close(engine_world *w)
{
    is_engine_close(w->e);
    is_gate_free(w->gate);
}

static void *capture(void *arg)
{
    engine_world *w = arg;

    w->st = is_engine_capture(w->e, &w->c);
    return NULL;
}

static is_gate_stats stats_of(is_gate *g)
{
    is_gate_stats s;

    is_gate_get_stats(g, &s);
    return s;
}

/* A capture that has begun, and was paused for a question that is open. */
static void begin_paused(engine_world *w)
{
    const uint64_t before = stats_of(w->gate).pauses;

    for (int tries = 0; stats_of(w->gate).pauses == before; tries++) {
        if (tries == 100) fail_msg("no capture is ever paused");
        if (tries) {
            is_gate_leave(w->gate);
            pthread_join(w->thread, NULL);
        }
        assert_int_equal(pthread_create(&w->thread, NULL, capture, w), 0);
        usleep(1000 * (unsigned)(1 + tries % CAPTURE_MS));
        is_gate_enter(w->gate);
        usleep(1000 * 2 * CAPTURE_MS);
    }
}

/* Questions come and go; the capture goes on each time, and ends with all of its rows. */
static void a_question_pauses_a_capture(void **state)
{
    engine_world w;

    engine_open(&w, "mock:slow=40");
    begin_paused(&w);
    for (int i = 0; i < 5; i++) {
        is_gate_leave(w.gate);
        usleep(2000);
        is_gate_enter(w.gate);
        usleep(2000);
    }
    is_gate_leave(w.gate);
    pthread_join(w.thread, NULL);
    KIT_OK(w.st);
    assert_int_equal(w.c.n_computed, 4);
    assert_int_equal(stats_of(w.gate).drops, 0);
    assert_int_equal(stats_of(w.gate).slices, 0);
    engine_close(&w);
}

/* What it holds is given up at once to who needs it: a capture that a person asks for, who revokes what it is computed from, who closes. */
static void a_paused_capture_is_dropped_for_who_needs_it(void **state)
{
    engine_world w;
    size_t pending;

    for (int who = 0; who < 3; who++) {
        engine_open(&w, "mock:slow=40");
        begin_paused(&w);
        if (who == 0) {
            is_capture own = { .span = w.tokens, .n_span = 4, .rows = w.rows };

            KIT_OK(is_engine_capture(w.e, &own));
            assert_int_equal(own.n_computed, 4);
        } else if (who == 1) {
            is_realm other = { .tag = { 8 }, .epoch = 9 }, same = w.realm, newer = { .tag = { 7 }, .epoch = 4 };

            KIT_OK(is_engine_revoke(w.e, &other, 0, &pending)); /* another's memory, and no newer epoch */
            KIT_OK(is_engine_revoke(w.e, &same, 0, &pending));
            assert_int_equal(stats_of(w.gate).drops, 0);
            KIT_OK(is_engine_revoke(w.e, &newer, FOREVER_MS, &pending));
        } else {
            is_gate_shut(w.gate);
        }
        pthread_join(w.thread, NULL);
        assert_int_equal(w.st, INFERSCALE_E_BUSY);
        assert_int_equal(w.c.n_computed, 0);
        assert_int_equal(stats_of(w.gate).drops, 1);
        if (who == 1) KIT_FAILS(INFERSCALE_E_BUSY, is_engine_capture(w.e, &w.c)); /* of what is gone none begins any more */
        engine_close(&w);
    }
}

/* With a question open for ever a capture is done in slices, if what waits has waited for too long; one for idle times is not. */
static void a_share_is_enough(void **state)
{
    const is_share_rules rules = { .limit_ms = 30, .least = 0.1, .most = 0.5, .slice_ms = 5 };
    engine_world w;

    engine_open(&w, "mock:slow=40");
    is_gate_rules(w.gate, &rules);
    is_gate_enter(w.gate);
    is_gate_waits(w.gate, true, is_now_ms());
    KIT_OK(is_engine_capture(w.e, &w.c));
    assert_int_equal(w.c.n_computed, 4);
    assert_true(stats_of(w.gate).slices > 0);
    assert_int_equal(stats_of(w.gate).drops, 0);
    w.c.background = IS_CAPTURE_IDLE;
    assert_int_equal(pthread_create(&w.thread, NULL, capture, &w), 0);
    usleep(200000);
    is_gate_drop_idle(w.gate);
    pthread_join(w.thread, NULL);
    assert_int_equal(w.st, INFERSCALE_E_BUSY);
    is_gate_leave(w.gate);
    engine_close(&w);
}

typedef struct pausing {
    is_gate *gate;
    is_gate_work work;
    int done;
} pausing;

static void *pause_once(void *arg)
{
    pausing *p = arg;

    is_gate_work_pause(p->gate, &p->work);
    __atomic_store_n(&p->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Something new comes while work for idle times runs, and a question before or after it: the work does
 * not pause until the question ends, which may be never, but is dropped. With no question it goes on. */
static void idle_work_yields_at_its_next_pause(void **state)
{
    for (int question_first = 0; question_first < 2; question_first++) {
        pausing p = { .done = 0 };
        pthread_t thread;

        KIT_OK(is_gate_new(&p.gate));
        assert_true(is_gate_work_begin(p.gate, &p.work));
        if (question_first) is_gate_enter(p.gate);
        is_gate_drop_idle(p.gate);
        assert_int_equal(p.work.drop, 0);
        if (!question_first) {
            is_gate_work_pause(p.gate, &p.work);
            assert_int_equal(p.work.drop, 0);
            is_gate_enter(p.gate);
        }
        assert_int_equal(pthread_create(&thread, NULL, pause_once, &p), 0);
        UNTIL(__atomic_load_n(&p.done, __ATOMIC_ACQUIRE));
        pthread_join(thread, NULL);
        assert_int_equal(p.work.drop, 1);
        assert_int_equal(stats_of(p.gate).drops, 1);
        assert_int_equal(stats_of(p.gate).pauses, 0);
        is_gate_work_end(p.gate, &p.work);
        is_gate_leave(p.gate);
        is_gate_free(p.gate);
    }
}

static void *begin_once(void *arg)
{
    pausing *p = arg;
    const bool begun = is_gate_work_begin(p->gate, &p->work);

    __atomic_store_n(&p->done, begun ? 2 : 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The same for work that was decided on before and begins after: it does not wait for the question. Once
 * the new thing has been seen it does, and begins when the question ends. */
static void idle_work_yields_before_it_begins(void **state)
{
    for (int seen = 0; seen < 2; seen++) {
        pausing p = { .done = 0 };
        pthread_t thread;

        KIT_OK(is_gate_new(&p.gate));
        is_gate_enter(p.gate);
        is_gate_drop_idle(p.gate);
        if (seen) is_gate_idle_again(p.gate);
        assert_int_equal(pthread_create(&thread, NULL, begin_once, &p), 0);
        if (seen) {
            usleep(20000);
            is_gate_leave(p.gate);
        }
        UNTIL(__atomic_load_n(&p.done, __ATOMIC_ACQUIRE));
        pthread_join(thread, NULL);
        assert_int_equal(p.done, seen ? 2 : 1);
        assert_int_equal(p.work.drop, !seen);
        if (seen) is_gate_work_end(p.gate, &p.work);
        else is_gate_leave(p.gate);
        is_gate_free(p.gate);
    }
}

/* ---- Clients --------------------------------------------------------------------------------------------------------------- */

enum { CLIENTS_MAX = 8, FACTS = 24, STEPS_MAX = 20000 };

typedef struct client { inferscale *is; const inferscale_scope *who; uint32_t max_tokens, pause_ms; int *stop; unsigned long n; pthread_t thread; } client;

static void *ask_on(void *arg)
{
    client *c = arg;

    while (!__atomic_load_n(c->stop, __ATOMIC_ACQUIRE)) {
        inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_answer *a = NULL;

        ask.max_tokens = c->max_tokens;
        OK(inferscale_ask(c->is, c->who, "What does anna own?", &ask, &a));
        inferscale_answer_free(a);
        c->n++;
        usleep(1000 * c->pause_ms);
    }
    return NULL;
}

static unsigned lines_of(const char *path)
{
    FILE *f = fopen(path, "r");
    unsigned n = 0;

    for (int c; f && (c = fgetc(f)) != EOF;) n += c == '\n';
    if (f) fclose(f);
    return n;
}

/* Tokens that the encoder computes for the facts when nobody asks anything. */
static uint64_t tokens_of_idle(const char *model)
{
    inferscale_options o = bg_options(model);
    inferscale *is = bg_open(&o);
    uint64_t tokens;

    is_gate_hold(is->gate);
    bg_tell_many(is, &anna, 0, FACTS);
    is_gate_release(is->gate);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    tokens = bg_state(is, NULL).tokens_computed;
    OK(inferscale_forget_all(is, &anna, NULL));
    inferscale_close(is);
    return tokens;
}

/* *s is what the state is now. */
static bool all_done(inferscale *is, uint64_t n, inferscale_encoder_state *s)
{
    *s = bg_state(is, &anna);
    return s->n_unencoded + s->n_unembedded == 0 && s->facts_encoded >= n;
}

/* So many clients, and a question that is open all the time: all is embedded and encoded within a bounded number of the engine's steps, and
 * nothing is computed twice. */
static void under_clients(int n, uint32_t max_tokens)
{
    char steps[600], model[700] = "";
    inferscale_options o = bg_options(model);
    const uint64_t idle = tokens_of_idle("mock:slow=10");
    client clients[CLIENTS_MAX];
    inferscale_encoder_state s;
    is_gate_stats g;
    inferscale *is;
    unsigned from;
    int stop = 0;

    snprintf(steps, sizeof steps, "%s/steps", bg_home);
    snprintf(model, sizeof model, "mock:slow=10,steps=%s", steps);
    o.encode_lag_s = 0.05;
    o.n_parallel = 4;
    is = bg_open(&o);
    is_gate_enter(is->gate);
    for (int i = 0; i < n; i++) {
        clients[i] = (client){ .is = is, .who = &ben, .max_tokens = max_tokens, .stop = &stop };
        assert_int_equal(pthread_create(&clients[i].thread, NULL, ask_on, &clients[i]), 0);
    }
    UNTIL(lines_of(steps) > 3);
    from = lines_of(steps);
    is_gate_hold(is->gate);
    bg_tell_many(is, &anna, 0, FACTS);
    is_gate_release(is->gate);
    while (!all_done(is, FACTS, &s)) {
        if (lines_of(steps) - from > STEPS_MAX) fail_msg("%u steps later %d facts wait for KV", STEPS_MAX, (int)s.n_unencoded);
        usleep(2000);
    }
    is_gate_get_stats(is->gate, &g);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < n; i++) pthread_join(clients[i].thread, NULL);
    is_gate_leave(is->gate);
    assert_int_equal(s.items_embedded, FACTS);
    assert_int_equal(s.facts_encoded, FACTS);
    assert_int_equal(s.tokens_computed, idle);
    assert_int_equal(g.drops, 0);
    assert_true(g.slices > 0);
    assert_true(g.used_ms > 0 && g.used_ms < g.open_ms);
    assert_true(s.n_slices > 0 && s.shared_s > 0 && s.shared_s < s.questions_s);
    assert_int_equal(s.n_drops + s.aborted_for_questions, 0);
    bg_expect_ready(is, &anna, FACTS);
    inferscale_close(is);
}

static void two_clients_without_a_gap(void **state)
{
    under_clients(2, 4);
}

static void eight_clients_without_a_gap(void **state)
{
    under_clients(8, 2);
}

static void one_endless_stream(void **state)
{
    under_clients(1, 2000);
}

/* The share is nothing before the limit, then grows with the lag up to the most, and is over with the last fact. */
static void the_state_tells_the_share(void **state)
{
    inferscale_options o = bg_options("mock");
    inferscale_encoder_state s;
    inferscale *is;

    o.encode_lag_s = 0.2;
    o.encode_share = 0.1;
    o.encode_share_most = 0.4;
    is = bg_open(&o);
    s = bg_state(is, NULL);
    assert_true(s.first_lag_s == 0 && s.share == 0 && s.questions_s == 0 && s.shared_s == 0);
    assert_int_equal(s.n_slices + s.n_pauses + s.n_drops, 0);
    is_gate_hold(is->gate);
    is_gate_enter(is->gate);
    bg_tell_many(is, &anna, 0, 3);
    while ((s = bg_state(is, NULL)).share < 0.4) {
        if (s.first_lag_s < 0.199) assert_true(s.share == 0);
        if (s.share > 0) assert_true(s.share > 0.0999 && s.first_lag_s > 0.199);
        usleep(1000);
    }
    assert_true(s.share == 0.4 && s.first_lag_s > 0.799);
    is_gate_release(is->gate);
    UNTIL(bg_state(is, &anna).facts_encoded == 3 && bg_state(is, &anna).share == 0);
    s = bg_state(is, NULL);
    assert_true(s.first_lag_s == 0 && s.n_slices > 0 && s.shared_s > 0 && s.questions_s > s.shared_s);
    is_gate_leave(is->gate);
    inferscale_close(is);
}

/* A fact of 4.7 kB whose capture takes longer than the time between two questions, and no share: it is done in the gaps, computed once. */
static void a_long_fact_between_questions(void **state)
{
    inferscale_options o = bg_options("mock:slow=60");
    inferscale *is = bg_open(&o);
    char text[4701];
    inferscale_fact f = { .text = text };
    inferscale_encoder_state s;
    client c;
    int stop = 0;

    for (size_t i = 0; i < sizeof text - 1; i++) text[i] = i % 7 == 6 ? ' ' : (char)('A' + i * 31 % 26);
    text[sizeof text - 1] = 0;
    c = (client){ .is = is, .who = &ben, .max_tokens = 1, .pause_ms = 200, .stop = &stop };
    assert_int_equal(pthread_create(&c.thread, NULL, ask_on, &c), 0);
    OK(inferscale_remember(is, &anna, &f, 1, NULL));
    for (c.n = 0; !all_done(is, 1, &s);) {
        if (c.n > 200) fail_msg("200 questions later the fact waits");
        usleep(2000);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    pthread_join(c.thread, NULL);
    assert_true(s.n_pauses > 0);
    assert_int_equal(s.n_drops, 0);
    assert_true(s.tokens_stored > 2000);
    assert_int_equal(s.n_passed, 0);
    bg_expect_ready(is, &anna, 1);
    inferscale_close(is);
}

/* While a capture is paused, all that a person may ask for returns: change and forgetting of that memory, encoding, closing. */
static void a_paused_capture_is_in_nobodys_way(void **state)
{
    inferscale_options o = bg_options("mock:slow=300");
    inferscale_fact f = { .text = "anna owns something red now." };
    inferscale *is = bg_open(&o);
    int64_t ids[4];
    uint64_t before;

    for (int i = 0; i < 4; i++) OK(bg_tell(is, &anna, i, &ids[i]));
    for (int what = 0; what < 4; what++) {
        for (int i = 0; (before = stats_of(is->gate).pauses) == stats_of(is->gate).pauses && i < 100; i++) { /* until one is paused */
            UNTIL(is->background->workers[IS_BG_ENCODER].in_slice);
            usleep(20000);
            is_gate_enter(is->gate);
            usleep(20000);
            if (stats_of(is->gate).pauses > before) break;
            is_gate_leave(is->gate);
            OK(bg_tell(is, &anna, 10 + what * 100 + i, NULL));
        }
        assert_true(stats_of(is->gate).pauses > before);
        before = stats_of(is->gate).drops;
        if (what == 0) OK(inferscale_update(is, &anna, ids[0], &f));
        if (what == 1) OK(inferscale_forget(is, &anna, &ids[1], 1, NULL));
        if (what == 2) OK(inferscale_encode(is, &anna, NULL));
        if (what == 3) {
            inferscale_close(is);
            continue;
        }
        assert_int_equal(stats_of(is->gate).drops, before + 1);
        assert_int_equal(bg_state(is, &anna).n_drops, before + 1);
        is_gate_leave(is->gate);
        OK(bg_tell(is, &anna, 90 + what, NULL));
    }
}

/* An engine elsewhere shares out its own time: encoding goes on however many questions are open. */
static void an_engine_elsewhere_goes_on(void **state)
{
    inferscale_options o = bg_options("mock:remote,slow=5");
    inferscale *is = bg_open(&o);

    is_gate_enter(is->gate);
    bg_tell_many(is, &anna, 0, FACTS);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    assert_int_equal(bg_state(is, NULL).facts_encoded, FACTS);
    assert_int_equal(stats_of(is->gate).drops + stats_of(is->gate).pauses, 0);
    is_gate_leave(is->gate);
    inferscale_close(is);
}

/* Refining has no share; and one that was paused for a question is dropped for what is new, which would else wait behind it. */
static void refining_is_for_idle_times(void **state)
{
    inferscale_options o = bg_options("mock:slow=200");
    inferscale *is;

    o.refine = "facts:4";
    o.encode_lag_s = 0.05;
    is = bg_open(&o);
    bg_tell_many(is, &anna, 0, 6);
    UNTIL(bg_state(is, &anna).facts_encoded == 6);
    UNTIL(is->background->workers[IS_BG_ENCODER].in_slice);
    usleep(20000);
    is_gate_enter(is->gate);
    bg_tell_many(is, &anna, 6, 3);
    UNTIL(bg_state(is, &anna).facts_encoded == 9);
    assert_true(bg_state(is, &anna).facts_refined < 9);
    is_gate_leave(is->gate);
    UNTIL(bg_state(is, &anna).facts_refined >= 9);
    inferscale_close(is);
}

/* ---- Main ----------------------------------------------------------------------------------------------------------------- */

#define TEST(f) cmocka_unit_test_setup_teardown(f, bg_set_up, bg_tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(embedding_does_not_wait_for_questions), TEST(embedding_does_not_wait_for_the_encoder), TEST(a_question_pauses_a_capture),
        TEST(a_paused_capture_is_dropped_for_who_needs_it), TEST(a_share_is_enough), TEST(idle_work_yields_at_its_next_pause),
        TEST(idle_work_yields_before_it_begins), TEST(two_clients_without_a_gap),
        TEST(eight_clients_without_a_gap), TEST(one_endless_stream), TEST(the_state_tells_the_share), TEST(a_long_fact_between_questions),
        TEST(a_paused_capture_is_in_nobodys_way), TEST(an_engine_elsewhere_goes_on), TEST(refining_is_for_idle_times),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, bg_find_plugins, NULL);
}
