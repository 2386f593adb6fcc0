/* The background encoder on the mock engine: everything that is remembered gets its embedding and its KV, whoever wrote it, however
 * often the process is killed; questions come first; failures are kept, backed off and survived; closing does not wait. */
#include <setjmp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/background.h"
#include "support/kit.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { FOREVER_MS = 120000 }; /* longer than any test may take: a wait that needs it has failed */

static char plugins[1024];
static char *home;
static const inferscale_scope anna = { .user = "anna" }, ben = { .user = "ben" }, cleo = { .user = "cleo" };

static inferscale_options options(const char *model)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = home;
    o.engine = "mock";
    o.model = model;
    o.embedder = "mock"; /* as fast as it is, whatever the model's options say */
    o.plugin_dir = plugins;
    o.policy = "facts:2";
    o.refine = "none";
    o.background = 1;
    return o;
}

static inferscale *open_as(const inferscale_options *o)
{
    inferscale *is = NULL;

    OK(inferscale_open(&is, o));
    return is;
}

static inferscale *open_plain(void)
{
    inferscale_options o = options("mock");

    return open_as(&o);
}

static inferscale_status tell(inferscale *is, const inferscale_scope *who, int n, int64_t *id)
{
    char text[96];
    inferscale_fact f = { .text = text, .event_time = 1714521600 };
    inferscale_event e = { 0 };
    inferscale_status st;

    snprintf(text, sizeof text, "%s owns thing number %d, which is blue.", who->user, n);
    st = inferscale_remember(is, who, &f, 1, &e);
    if (id) *id = e.id;
    return st;
}

static void tell_many(inferscale *is, const inferscale_scope *who, int from, int n)
{
    for (int i = 0; i < n; i++) OK(tell(is, who, from + i, NULL));
}

static inferscale_encoder_state state_of(inferscale *is, const inferscale_scope *who)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;

    OK(inferscale_encode_status(is, who, &s));
    return s;
}

/* How many facts of the owner have KV for the model that is loaded. */
static size_t ready(inferscale *is, const inferscale_scope *who, size_t *n)
{
    inferscale_model_info m;
    inferscale_list *l = NULL;
    size_t sum = 0;

    OK(inferscale_model(is, &m));
    OK(inferscale_ls(is, who, INFERSCALE_FACTS, 0, 0, &l));
    for (size_t i = 0; i < l->n; i++) sum += l->items[i].kv_ready != 0;
    *n = l->n;
    inferscale_list_free(l);
    return sum;
}

static void expect_all_ready(inferscale *is, const inferscale_scope *who, size_t want)
{
    size_t n;

    assert_int_equal(ready(is, who, &n), want);
    assert_int_equal(n, want);
}

/* Polls until the condition holds; a condition that never comes fails the test. */
#define UNTIL(cond)                                                                                                            \
    do {                                                                                                                       \
        int tries_ = 0;                                                                                                        \
        while (!(cond)) {                                                                                                      \
            if (++tries_ > FOREVER_MS) fail_msg("never: %s", #cond);                                                           \
            usleep(1000);                                                                                                      \
        }                                                                                                                      \
    } while (0)

/* ---- What waits is done --------------------------------------------------------------------------------------------------- */

static void what_waits_is_done(void **state)
{
    inferscale *is = open_plain();
    inferscale_turn turns[2] = { { .text = "Where were you in May?" }, { .text = "In Lisbon." } };
    inferscale_answer *a = NULL;
    inferscale_list *l = NULL;
    inferscale_encoder_state s;

    OK(inferscale_encode_wait(is, NULL, FOREVER_MS)); /* of nothing */
    OK(inferscale_add_turns(is, &anna, turns, 2, NULL));
    tell_many(is, &anna, 0, 40);
    tell_many(is, &ben, 0, 3);
    tell_many(is, &cleo, 0, 70);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    s = state_of(is, NULL);
    assert_int_equal(s.n_unembedded + s.n_unencoded + s.n_passed, 0);
    assert_true(s.lag_s == 0);
    assert_int_equal(s.facts_encoded, 113);
    assert_int_equal(s.items_embedded, 115);
    assert_int_equal(s.error, INFERSCALE_OK);
    assert_string_equal(s.last_error, "");
    expect_all_ready(is, &anna, 40);
    expect_all_ready(is, &ben, 3);
    expect_all_ready(is, &cleo, 70);
    OK(inferscale_recall(is, &anna, "Lisbon", NULL, &l));
    assert_int_equal(l->n_unembedded, 0);
    inferscale_list_free(l);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_true(a->tokens_injected > 0);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* A fact is served as text, and the answer says so, until its KV is there. */
static void text_serves_until_then(void **state)
{
    inferscale *is = open_plain();
    inferscale_answer *a = NULL;
    inferscale_encoder_state s;

    is_gate_enter(is->gate); /* the encoder stands still, as during a question */
    tell_many(is, &anna, 0, 5);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_int_equal(a->tokens_injected, 0);
    assert_int_equal(a->n_facts, 5);
    assert_non_null(strstr(a->fallback, "5 of 5 facts had no KV"));
    inferscale_answer_free(a);
    s = state_of(is, &anna);
    assert_int_equal(s.n_unencoded, 5);
    assert_int_equal(s.n_unembedded, 5);
    assert_true(s.model_known);
    FAILS(E_BUSY, inferscale_encode_wait(is, &anna, 30));
    is_gate_leave(is->gate);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_true(a->tokens_injected > 0);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* Another handle's writes are seen, changes and forgetting make work, a lost file too. */
static void what_changes_is_done_again(void **state)
{
    inferscale_options plain = options("mock");
    inferscale *is = open_plain(), *writer;
    inferscale_fact f = { .text = "anna owns something red now." };
    inferscale_answer *a = NULL;
    int64_t ids[10];
    size_t n;

    plain.background = 0;
    writer = open_as(&plain);
    for (int i = 0; i < 10; i++) OK(tell(writer, &anna, i, &ids[i]));
    UNTIL(ready(is, &anna, &n) == 10);
    OK(inferscale_update(writer, &anna, ids[3], &f));
    UNTIL(state_of(is, &anna).n_unencoded == 0 && ready(is, &anna, &n) == 10);
    OK(inferscale_forget(writer, &anna, &ids[5], 1, NULL)); /* 6 and 7 were encoded after it */
    UNTIL(ready(is, &anna, &n) == 9);
    assert_int_equal(n, 9);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    inferscale_close(writer);

    assert_int_equal(rename(scratch_path(home, "vault"), scratch_path(home, "away")), 0);
    assert_int_equal(mkdir(scratch_path(home, "vault"), 0700), 0);
    assert_int_equal(mkdir(scratch_path(home, "vault/tmp"), 0700), 0);
    is_vault_drop_ram(is->vault);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_non_null(strstr(a->fallback, "missing"));
    inferscale_answer_free(a);
    UNTIL(ready(is, &anna, &n) == 9);
    inferscale_close(is);
}

static int64_t n_beginnings(void)
{
    return store_sql_int(home, "SELECT count(*) FROM segments WHERE policy = 'header'");
}

static size_t remove_all(const char *suffix)
{
    size_t n;
    char **files = store_files(home, suffix, &n);

    for (size_t i = 0; i < n; i++) assert_int_equal(unlink(files[i]), 0);
    store_files_free(files, n);
    return n;
}

/* Under page:N+O/E some facts have rows behind the bare header too. Those that are lost wait, and are made again, by the first stage. */
static void beginnings_are_done_again(void **state)
{
    inferscale_options plain = options("mock"), busy = plain;
    inferscale_encode_options again = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_encoder_state s;
    inferscale_answer *a = NULL;
    inferscale *is;
    int64_t n;

    plain.background = 0;
    plain.policy = busy.policy = "page:8+3/2";
    is = open_as(&plain);
    tell_many(is, &anna, 0, 12);
    OK(inferscale_encode(is, &anna, NULL));
    n = n_beginnings();
    assert_in_range(n, 1, 11);
    assert_int_equal(state_of(is, &anna).n_unencoded, 0);
    store_sql(home, "DELETE FROM segments WHERE policy = 'header'");
    s = state_of(is, &anna);
    assert_int_equal(s.n_unencoded, n);
    again.stage = INFERSCALE_STAGE_FIRST;
    OK(inferscale_encode(is, &anna, &again));
    assert_int_equal(n_beginnings(), n);
    assert_int_equal(again.facts_left, 0);
    assert_true(again.tokens_computed > 0);
    assert_int_equal(state_of(is, &anna).n_unencoded, 0);
    inferscale_close(is);

    is = open_as(&busy); /* and a question that finds a file gone tells the background encoder */
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_true(remove_all(".seg") > 12);
    is_vault_drop_ram(is->vault);
    OK(inferscale_ask(is, &anna, "What does anna own?", NULL, &a));
    assert_non_null(strstr(a->fallback, "missing"));
    inferscale_answer_free(a);
    is_background_again(is->background, 1);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    a = NULL;
    store_sql(home, "DELETE FROM segments WHERE policy = 'header'");
    is_background_again(is->background, 1);
    UNTIL(n_beginnings() == n);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    inferscale_close(is);
    store_sql(home, "DELETE FROM segments WHERE policy = 'header'"); /* a restart sees it without being told */
    is = open_as(&busy);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_int_equal(n_beginnings(), n);
    inferscale_close(is);
}

/* A fact that no context holds is passed over, counted, and keeps nothing waiting. */
static void what_cannot_be_done_is_passed(void **state)
{
    inferscale_options o = options("mock:ctx=256");
    inferscale *is = open_as(&o);
    char text[4096];
    inferscale_fact f = { .text = text };

    memset(text, 'q', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tell_many(is, &anna, 0, 3);
    OK(inferscale_remember(is, &anna, &f, 1, NULL));
    tell_many(is, &anna, 3, 3);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    assert_int_equal(state_of(is, &anna).n_passed, 1);
    assert_int_equal(state_of(is, &ben).n_passed, 0);
    assert_int_equal(state_of(is, &anna).n_unencoded, 1);
    assert_int_equal(state_of(is, &anna).error, INFERSCALE_OK);
    inferscale_close(is);
}

/* A model whose KV cannot be injected: nothing waits for KV. */
static void nothing_to_encode_with_such_a_model(void **state)
{
    inferscale_options o = options("mock:noinject");
    inferscale *is = open_as(&o);

    tell_many(is, &anna, 0, 5);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_int_equal(state_of(is, NULL).n_unencoded, 0);
    assert_int_equal(state_of(is, NULL).n_unembedded, 0);
    assert_int_equal(state_of(is, NULL).error, INFERSCALE_OK);
    inferscale_close(is);
}

/* One owner's thousand does not make another's one wait for all of them. */
static void partitions_take_turns(void **state)
{
    inferscale_options o = options("mock:slow=3");
    inferscale *is = open_as(&o);
    inferscale_encoder_state a;

    is_gate_enter(is->gate);
    tell_many(is, &anna, 0, 600);
    tell_many(is, &ben, 0, 1);
    is_gate_leave(is->gate);
    OK(inferscale_encode_wait(is, &ben, FOREVER_MS));
    a = state_of(is, &anna);
    assert_true(a.n_unencoded > 0);
    inferscale_close(is);
}

/* The second stage runs by itself when the first is done. */
static void the_second_stage_follows(void **state)
{
    inferscale_options o = options("mock");
    inferscale *is;
    inferscale_encoder_state s;

    o.refine = "facts:4";
    is = open_as(&o);
    tell_many(is, &anna, 0, 20);
    UNTIL((s = state_of(is, &anna)).n_unencoded == 0 && s.model_known && s.n_unrefined == 0);
    UNTIL(state_of(is, &anna).facts_refined >= 20);
    assert_int_equal(state_of(is, &anna).facts_encoded, 20);
    inferscale_close(is);
}

/* ---- Restart and kill ----------------------------------------------------------------------------------------------------- */

/* Closing drops what is in progress; the next handle does the rest and nothing twice. */
static void a_restart_goes_on(void **state)
{
    inferscale_options o = options("mock:slow=5");
    inferscale *is = open_as(&o);
    size_t n, before;
    uint64_t first;

    tell_many(is, &anna, 0, 300);
    UNTIL(state_of(is, &anna).facts_encoded > 0);
    first = state_of(is, &anna).n_unencoded;
    inferscale_close(is);
    o.model = "mock";
    o.background = 0;
    is = open_as(&o);
    before = ready(is, &anna, &n);
    inferscale_close(is);
    assert_true(first > 0 && before > 0);
    is = open_plain();
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    expect_all_ready(is, &anna, 300);
    assert_int_equal(state_of(is, &anna).facts_encoded, 300 - before);
    inferscale_close(is);
}

/* Remembers and encodes until it is killed; every acknowledged fact's number is written to the pipe. */
static void live_until_killed(int fd, int from)
{
    inferscale_options o = options("mock:slow=1");
    inferscale *is = NULL;

    if (inferscale_open(&is, &o) != INFERSCALE_OK) _exit(3);
    for (int i = from;; i++) {
        if (tell(is, i % 2 ? &anna : &ben, i, NULL) != INFERSCALE_OK || write(fd, &i, sizeof i) != sizeof i) _exit(4);
    }
}

static void killed_in_the_midst_nothing_is_lost(void **state)
{
    unsigned long long seed = scratch_seed("kill");
    int next = 0, acked = 0;
    inferscale *is;
    inferscale_store_info info;
    size_t n, a, b;

    for (int round = 0; round < 8; round++) {
        int pipes[2], number, most = 5 + (int)scratch_below(&seed, 60), got = 0;
        pid_t child;

        assert_int_equal(pipe(pipes), 0);
        child = fork();
        if (child == 0) {
            close(pipes[0]);
            live_until_killed(pipes[1], next);
        }
        close(pipes[1]);
        while (got < most && read(pipes[0], &number, sizeof number) == sizeof number) got++;
        usleep(scratch_below(&seed, 20000)); /* in the midst of whatever */
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(pipes[0], &number, sizeof number) == sizeof number) got++;
        close(pipes[0]);
        acked += got;
        next += got + 1; /* the one in progress may be there or not */
    }
    is = open_plain();
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    a = ready(is, &anna, &n);
    assert_int_equal(a, n);
    b = ready(is, &ben, &n);
    assert_int_equal(b, n);
    assert_in_range(a + b, (size_t)acked, (size_t)acked + 8);
    OK(inferscale_store(is, 1, &info));
    assert_true(info.sqlite_ok);
    assert_int_equal(info.n_segments, a + b); /* no file that nobody knows */
    inferscale_close(is);
}

/* A minute's capture is under way; closing must not wait for it. The test's own time limit is the judge. */
static void closing_drops_a_capture(void **state)
{
    inferscale_options o = options("mock:slow=600000");
    inferscale *is = open_as(&o);

    tell_many(is, &anna, 0, 3);
    UNTIL(state_of(is, &anna).n_unembedded == 0 && state_of(is, &anna).running);
    usleep(50000);
    inferscale_close(is);

    o.embedder = "mock:slow=600000"; /* and an embedding */
    o.model = "mock:id=2";
    is = open_as(&o);
    tell_many(is, &anna, 3, 3);
    usleep(50000);
    inferscale_close(is);
}

static void opening_and_closing_at_once(void **state)
{
    for (int i = 0; i < 20; i++) {
        inferscale *is = open_plain();

        if (i % 2) OK(tell(is, &anna, i, NULL));
        inferscale_close(is);
    }
}

/* ---- Questions first ------------------------------------------------------------------------------------------------------ */

typedef struct capture_call { is_engine *e; is_status st; is_capture c; } capture_call;

static void *capture_in_thread(void *arg)
{
    capture_call *call = arg;

    call->st = is_engine_capture(call->e, &call->c);
    return NULL;
}

/* In calls, not in time: a capture of ten minutes ends when a question begins; while it is open none is started at all. */
static void a_question_ends_a_capture(void **state)
{
    is_engine_opts opts = { .model_path = "mock:slow=600000,fail-capture=2" };
    int32_t tokens[4] = { 100, 101, 102, 103 };
    float **rows, room[1024];
    is_engine *e = NULL;
    capture_call call = { 0 };
    pthread_t thread;

    KIT_OK(is_engine_open(plugins, "mock", &opts, &e));
    rows = calloc(is_engine_geometry(e)->n_planes, sizeof *rows);
    for (uint32_t p = 0; p < is_engine_geometry(e)->n_planes; p++) rows[p] = room;
    call = (capture_call){ .e = e, .c = { .span = tokens, .n_span = 4, .rows = rows, .background = true } };
    assert_int_equal(pthread_create(&thread, NULL, capture_in_thread, &call), 0);
    usleep(50000);
    is_engine_question_begin(e);
    pthread_join(thread, NULL);
    assert_int_equal(call.st, INFERSCALE_E_BUSY);
    assert_int_equal(call.c.n_computed, 0);
    is_engine_question_begin(e); /* a second question, and the first one's end */
    is_engine_question_end(e);
    for (int i = 0; i < 5; i++) KIT_FAILS(INFERSCALE_E_BUSY, is_engine_capture(e, &call.c));
    assert_false(is_engine_question_wait(e, 20));
    is_engine_question_end(e);
    assert_true(is_engine_question_wait(e, -1));
    KIT_FAILS(INFERSCALE_E_ENGINE, is_engine_capture(e, &call.c)); /* the plug-in's second call: those five never reached it */
    is_engine_close(e);
    free(rows);
}

/* What a person asked for is not dropped. */
static void foreground_captures_are_not_touched(void **state)
{
    is_engine_opts opts = { .model_path = "mock:slow=5" };
    int32_t tokens[4] = { 100, 101, 102, 103 };
    float *rows[64], room[1024];
    is_engine *e = NULL;
    is_capture c = { .span = tokens, .n_span = 4, .rows = rows };

    KIT_OK(is_engine_open(plugins, "mock", &opts, &e));
    for (uint32_t p = 0; p < is_engine_geometry(e)->n_planes; p++) rows[p] = room;
    is_engine_question_begin(e);
    KIT_OK(is_engine_capture(e, &c));
    assert_int_equal(c.n_computed, 4);
    is_engine_question_end(e);
    is_engine_close(e);
}

/* Questions all the time: all are answered, and what was dropped for them is done in the end, each fact once. */
static void questions_come_first(void **state)
{
    inferscale_options o = options("mock:slow=10");
    inferscale *is = open_as(&o);
    inferscale_encoder_state s;

    tell_many(is, &anna, 0, 80);
    UNTIL(state_of(is, &anna).running);
    for (int i = 0; i < 25; i++) {
        inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_answer *a = NULL;

        ask.max_tokens = 2;
        OK(inferscale_ask(is, &anna, "What does anna own?", &ask, &a));
        inferscale_answer_free(a);
        usleep(7000);
    }
    s = state_of(is, &anna);
    assert_true(s.aborted_for_questions > 0);
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    s = state_of(is, &anna);
    assert_int_equal(s.facts_encoded, 80);
    assert_int_equal(s.n_errors, 0);
    expect_all_ready(is, &anna, 80);
    inferscale_close(is);
}

/* Encoding in the foreground and in the background at the same time. */
static void both_ways_at_once(void **state)
{
    inferscale_options o = options("mock:slow=2");
    inferscale *is = open_as(&o);

    for (int i = 0; i < 5; i++) {
        tell_many(is, &anna, i * 20, 20);
        tell_many(is, &ben, i * 20, 5);
        OK(inferscale_encode(is, &anna, NULL));
    }
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    expect_all_ready(is, &anna, 100);
    expect_all_ready(is, &ben, 25);
    inferscale_close(is);
}

/* ---- Back-pressure -------------------------------------------------------------------------------------------------------- */

static void too_much_is_refused_and_taken_later(void **state)
{
    inferscale_options o = options("mock");
    inferscale *is;
    inferscale_turn turn = { .text = "And a turn." };
    inferscale_fact many[30];
    int taken = 0;

    o.max_pending = 20;
    is = open_as(&o);
    OK(tell(is, &anna, 1000, NULL));
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(is_background_room(is->background, 20) == INFERSCALE_OK); /* its count is as of its last look: on a fast disk 20 are told before the next */
    is_gate_enter(is->gate);
    while (taken < 100 && tell(is, taken % 2 ? &anna : &ben, taken, NULL) == INFERSCALE_OK) taken++;
    assert_int_equal(taken, 20);
    FAILS(E_BUSY, tell(is, &anna, 99, NULL));
    assert_non_null(strstr(inferscale_error(), "20 items wait"));
    assert_non_null(strstr(inferscale_error(), "max_pending"));
    FAILS(E_BUSY, inferscale_add_turns(is, &anna, &turn, 1, NULL));
    is_gate_leave(is->gate);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(tell(is, &anna, 99, NULL) == INFERSCALE_OK); /* nothing was taken that was refused, nothing is refused for ever */
    for (int i = 0; i < 30; i++) {
        many[i] = (inferscale_fact){ .text = calloc(1, 32) };
        snprintf((char *)many[i].text, 32, "Batch fact %d.", i);
    }
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(inferscale_remember(is, &cleo, many, 30, NULL) == INFERSCALE_OK); /* larger than the limit, but nothing waits */
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    expect_all_ready(is, &anna, 12);
    expect_all_ready(is, &cleo, 30);
    for (int i = 0; i < 30; i++) free((char *)many[i].text);
    inferscale_close(is);
}

/* ---- Several handles ------------------------------------------------------------------------------------------------------ */

static void two_handles_share_the_work(void **state)
{
    inferscale_options o = options("mock:slow=1");
    inferscale *one = open_as(&o), *two = open_as(&o);
    uint64_t by_one, by_two;

    for (int i = 0; i < 60; i++) OK(tell(i % 2 ? one : two, i % 3 ? &anna : &ben, i, NULL));
    OK(inferscale_encode_wait(one, NULL, FOREVER_MS));
    OK(inferscale_encode_wait(two, NULL, FOREVER_MS));
    by_one = state_of(one, NULL).facts_encoded;
    by_two = state_of(two, NULL).facts_encoded;
    assert_int_equal(by_one + by_two, 60); /* each fact once */
    assert_int_equal(state_of(one, NULL).items_embedded + state_of(two, NULL).items_embedded, 60);
    inferscale_close(by_one ? one : two); /* the worker goes: the other takes over */
    one = by_one ? two : one;
    tell_many(one, &cleo, 0, 10);
    OK(inferscale_encode_wait(one, NULL, FOREVER_MS));
    expect_all_ready(one, &cleo, 10);
    inferscale_close(one);
}

/* Other models and policies are other views: both handles work. */
static void two_models_two_views(void **state)
{
    inferscale_options o = options("mock"), other = options("mock:id=7");
    inferscale *one = open_as(&o), *two = open_as(&other);

    tell_many(one, &anna, 0, 10);
    OK(inferscale_encode_wait(one, NULL, FOREVER_MS));
    OK(inferscale_encode_wait(two, NULL, FOREVER_MS));
    expect_all_ready(one, &anna, 10);
    expect_all_ready(two, &anna, 10);
    inferscale_close(two);
    inferscale_close(one);
}

/* ---- Failures ------------------------------------------------------------------------------------------------------------- */

static void a_failure_passes(void **state)
{
    inferscale_options o = options("mock:fail-capture=2");
    inferscale *is;
    inferscale_encoder_state s;

    o.embedder = "mock:fail-embed=1";
    is = open_as(&o);
    tell_many(is, &anna, 0, 60);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    tell_many(is, &anna, 60, 60);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    s = state_of(is, NULL);
    assert_int_equal(s.n_errors, 2);
    assert_int_equal(s.error, INFERSCALE_OK);
    assert_non_null(strstr(s.last_error, "fails, as asked for"));
    assert_true(s.error_time > 0);
    assert_int_equal(s.n_unencoded + s.n_unembedded, 0);
    expect_all_ready(is, &anna, 120);
    inferscale_close(is);
}

/* A failure that stays is told to who waits, and is over when its cause is. */
static void a_failure_that_stays_is_told(void **state)
{
    char tmp[512], away[512];
    inferscale *is = open_plain();
    inferscale_encoder_state s;
    FILE *f;

    tell_many(is, &anna, 0, 3);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    snprintf(tmp, sizeof tmp, "%s", scratch_path(home, "vault"));
    snprintf(away, sizeof away, "%s", scratch_path(home, "away"));
    assert_int_equal(rename(tmp, away), 0);
    assert_non_null(f = fopen(tmp, "w")); /* no folder where the vault was */
    fclose(f);
    tell_many(is, &anna, 3, 3); /* remembering goes on */
    assert_int_not_equal(inferscale_encode_wait(is, NULL, FOREVER_MS), INFERSCALE_OK);
    assert_non_null(strstr(inferscale_error(), "the background encoder fails"));
    s = state_of(is, NULL);
    assert_true(s.n_errors >= 3);
    assert_int_not_equal(s.error, INFERSCALE_OK);
    assert_true(s.retry_s > 0);
    assert_int_equal(s.n_unencoded, 3);
    assert_int_equal(s.n_unembedded, 0); /* the other stage is not held up */
    assert_int_equal(unlink(tmp), 0);
    assert_int_equal(rename(away, tmp), 0);
    UNTIL(state_of(is, NULL).error == INFERSCALE_OK);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    expect_all_ready(is, &anna, 6);
    inferscale_close(is);
}

/* The model is not there: embedding and remembering go on, the state says why. */
static void a_model_that_is_gone(void **state)
{
    inferscale_options o = options("/nowhere/model.gguf");
    inferscale *is;
    inferscale_encoder_state s;

    o.engine = "llama";
    o.embedder = "/nowhere/embedder.gguf";
    is = open_as(&o);
    tell_many(is, &anna, 0, 3);
    FAILS(E_NOTFOUND, inferscale_encode_wait(is, NULL, FOREVER_MS));
    s = state_of(is, NULL);
    assert_int_equal(s.model_known, 0);
    assert_int_equal(s.n_unencoded, 3);
    assert_int_equal(s.n_unembedded, 3);
    assert_non_null(strstr(s.last_error, "/nowhere/"));
    inferscale_close(is);
}

static void misuse_is_refused(void **state)
{
    inferscale_options o = options("mock");
    inferscale_encoder_state s = { 0 };
    inferscale *is = NULL;

    o.background = 0;
    is = open_as(&o);
    OK(tell(is, &anna, 1, NULL));
    FAILS(E_INVALID, inferscale_encode_wait(is, NULL, 10));
    FAILS(E_INVALID, inferscale_encode_status(is, NULL, &s));
    FAILS(E_INVALID, inferscale_encode_status(is, NULL, NULL));
    s = state_of(is, &anna);
    assert_int_equal(s.background, 0);
    assert_int_equal(s.n_unencoded, 1); /* of no model at all */
    assert_int_equal(s.model_known, 0);
    assert_int_equal(state_of(is, &ben).n_unencoded, 0);
    inferscale_close(is);
    o.background = o.read_only = 1;
    is = NULL;
    FAILS(E_INVALID, inferscale_open(&is, &o));
}

/* ---- Main ----------------------------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    home = scratch_make();
    return 0;
}

static int tear_down(void **state)
{
    scratch_remove(home);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(int argc, char **argv)
{
    ssize_t len = readlink("/proc/self/exe", plugins, sizeof plugins - 1);
    const struct CMUnitTest tests[] = {
        TEST(what_waits_is_done), TEST(text_serves_until_then), TEST(what_changes_is_done_again), TEST(what_cannot_be_done_is_passed),
        TEST(nothing_to_encode_with_such_a_model), TEST(partitions_take_turns), TEST(the_second_stage_follows), TEST(a_restart_goes_on),
        TEST(beginnings_are_done_again), TEST(killed_in_the_midst_nothing_is_lost), TEST(closing_drops_a_capture), TEST(opening_and_closing_at_once),
        TEST(a_question_ends_a_capture), TEST(foreground_captures_are_not_touched), TEST(questions_come_first), TEST(both_ways_at_once),
        TEST(too_much_is_refused_and_taken_later), TEST(two_handles_share_the_work), TEST(two_models_two_views), TEST(a_failure_passes),
        TEST(a_failure_that_stays_is_told), TEST(a_model_that_is_gone), TEST(misuse_is_refused),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (len < 0) return 1;
    plugins[len] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
