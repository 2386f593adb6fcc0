/* Random histories: facts and turns are added, changed, superseded, expired, encoded under every policy, asked and talked about; then
 * something is forgotten: a fact, a turn, a run, an owner. After each change and each forgetting:
 *
 *   - The books hold exactly the segments whose rows were computed from nothing that went: none more, none less. What each segment was
 *     computed from is not taken from the dependency table but from the engine's witness (mock_witness.c): the texts that stood in the
 *     captures. When a segment is entered its dependencies must be that, and its rows those that the same capture gives from scratch.
 *   - After forget --prove no byte of what is forgotten is in any file of the store: not the texts' unique words, not the vectors, not
 *     one of the 64-byte windows of the KV that was dropped (in the vault: without --prove neither). The search is the tests' own.
 *   - Neither recall nor any later run of the engine meets it.
 *
 * The seed is printed; INFERSCALE_SEED replays it, INFERSCALE_STEPS shortens the history that fails, INFERSCALE_SOAK=SECONDS goes on. */
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "support/forget_world.h"
#include "support/live.h"
#include "support/scratch.h"

enum { OWNERS = FW_CHATS, RUNS = 3 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HISTORIES = 2, STEPS = 70 };
#else
enum { HISTORIES = 4, STEPS = 110 };
#endif

static const char *const policies[] = { "alone", "header", "turns:2", "turns:3+source", "facts:3", "cwe:4", "near:3",
                                         "page:6", "page:5+2", "page:4@time", "page:4+1@topic", "company:3" };
enum { POLICIES = sizeof policies / sizeof *policies };
_Static_assert(POLICIES <= sizeof((world *)0)->n_by_policy / sizeof(unsigned), "a count for each");

static const inferscale_scope owners[OWNERS] = { { .user = "anna" }, { .user = "ben" } };
static const char *const runs[RUNS] = { "", "monday", "tuesday" };

/* ---- Steps --------------------------------------------------------------------------------------------------------------- */

static void add_fact(world *w)
{
    int n = w->n_items++, owner = (int)fw_below(w, OWNERS), run = (int)fw_below(w, RUNS), source = fw_below(w, 3) ? fw_pick(w, owner, INFERSCALE_TURNS) : -1;
    item *x = &w->items[n];
    char text[6000];
    inferscale_scope scope = owners[owner];
    inferscale_fact f = { .text = text, .event_time = 1714521600 + n * 3600 };
    inferscale_event e = { 0 };

    assert_true(n < ITEMS);
    *x = (item){ .kind = INFERSCALE_FACTS, .owner = owner, .run = run, .version = 1, .source = source };
    if (source >= 0) f.source_turn = w->items[source].id;
    fw_text(w, n, 1, text);
    scope.run = runs[run];
    OK(inferscale_remember(w->is, &scope, &f, 1, &e));
    x->id = e.id;
    x->alive = true;
}

static void add_turn(world *w)
{
    int n = w->n_items++, owner = (int)fw_below(w, OWNERS), run = (int)fw_below(w, RUNS);
    item *x = &w->items[n];
    char text[6000];
    inferscale_scope scope = owners[owner];
    inferscale_turn t = { .text = text, .speaker = fw_below(w, 2) ? "Tom" : "Eva", .conversation = fw_below(w, 2) ? "walk" : "tea" };

    assert_true(n < ITEMS);
    *x = (item){ .kind = INFERSCALE_TURNS, .owner = owner, .run = run, .version = 1, .source = -1 };
    fw_text(w, n, 1, text);
    scope.run = runs[run];
    OK(inferscale_add_turns(w->is, &scope, &t, 1, &x->id));
    x->alive = true;
}

/* A new version; one in four says that the fact is over. */
static void change_fact(world *w)
{
    int n = fw_pick(w, -1, INFERSCALE_FACTS);
    item *x = &w->items[n < 0 ? 0 : n];
    char text[6000];
    inferscale_fact f = { .text = text, .event_time = 1714521600 };
    set gone = { 0 };
    inferscale_status st;
    bool over;

    if (n < 0 || x->version > 20) return;
    fw_text(w, n, x->version + 1, text);
    over = fw_below(w, 4) == 0;
    if (over) f.expires = is_now_epoch() - 1;
    st = inferscale_update(w->is, &owners[x->owner], x->id, &f);
    if (st == INFERSCALE_E_INVALID) return; /* it was superseded */
    OK(st);
    x->over = over;
    x->version++;
    fw_set_add(&gone, x->id);
    fw_check_books(w, &gone, 0);
    fw_set_free(&gone);
}

static void supersede_fact(world *w)
{
    int old = fw_pick(w, -1, INFERSCALE_FACTS), n = w->n_items;
    item *x = &w->items[n];
    char text[6000];
    inferscale_fact f = { .text = text, .event_time = is_now_epoch() };
    set gone = { 0 };
    inferscale_status st;

    if (old < 0) return;
    assert_true(n + 1 < ITEMS);
    *x = (item){ .kind = INFERSCALE_FACTS, .owner = w->items[old].owner, .version = 1, .source = -1 };
    w->n_items++;
    fw_text(w, n, 1, text);
    st = inferscale_supersede(w->is, &owners[x->owner], w->items[old].id, &f, &x->id);
    if (st == INFERSCALE_E_INVALID) { /* it was superseded before */
        w->n_items--;
        return;
    }
    OK(st);
    x->alive = true;
    w->items[old].over = true;
    fw_set_add(&gone, w->items[old].id);
    fw_check_books(w, &gone, w->items[old].id);
    fw_set_free(&gone);
}

static void encode(world *w)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    unsigned which = fw_below(w, POLICIES);

    o.policy = policies[which];
    OK(inferscale_encode(w->is, &owners[fw_below(w, OWNERS)], &o));
    w->n_by_policy[which]++;
    fw_learn_books(w);
}

static void question(world *w, int owner, char out[80])
{
    int n = fw_pick(w, owner, INFERSCALE_FACTS);

    snprintf(out, 80, "What about the lamp and the %s?", n < 0 || n % 2 ? "garden" : "river");
}

static void ask(world *w)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    int owner = (int)fw_below(w, OWNERS);
    char text[80];

    question(w, owner, text);
    o.k = 1 + fw_below(w, 12);
    o.max_tokens = 8; /* too short to recite anything */
    OK(inferscale_ask(w->is, &owners[owner], text, &o, &a));
    inferscale_answer_free(a);
    fw_read_witness(w);
}

static void talk(world *w)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    int owner = (int)fw_below(w, OWNERS);
    inferscale_status st;
    char text[80];

    if (!w->chat[owner]) OK(inferscale_chat_open(w->is, &owners[owner], &w->chat[owner]));
    question(w, owner, text);
    o.k = 3;
    o.max_tokens = 8;
    st = inferscale_chat_say(w->chat[owner], text, &o, &a);
    if (st != INFERSCALE_E_CONTEXT) OK(st);
    inferscale_answer_free(a);
    fw_read_witness(w);
    if (st == INFERSCALE_OK && fw_below(w, 6)) return;
    inferscale_chat_close(w->chat[owner]);
    w->chat[owner] = NULL;
}

static void not_found(world *w, const int *which, size_t n)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;

    o.k = 50;
    o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
    for (size_t i = 0; i < n && i < 3; i++) {
        inferscale_list *l = NULL;
        char word[WORD];

        fw_word(w, which[i], 1, word);
        OK(inferscale_recall(w->is, &owners[w->items[which[i]].owner], word, &o, &l));
        for (size_t k = 0; k < l->n; k++) assert_int_not_equal(l->items[k].id, w->items[which[i]].id);
        inferscale_list_free(l);
    }
}

/* A fact, a turn, some of both, a run, or an owner. Half the time with --prove, which must agree. */
static void forget(world *w)
{
    int which[ITEMS], owner = (int)fw_below(w, OWNERS), run = -1;
    unsigned dice = fw_below(w, 20);
    int64_t ids[ITEMS];
    inferscale_scope scope = owners[owner];
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report report = { 0 };
    size_t n = 0;
    traces x;

    if (dice == 0) run = -2; /* the owner */
    else if (dice < 4) run = 1 + (int)fw_below(w, RUNS - 1);
    for (int i = 0; run != -1 && i < w->n_items; i++)
        if (w->items[i].alive && w->items[i].owner == owner && (run == -2 || w->items[i].run == run)) which[n++] = i;
    for (unsigned i = 0, many = dice < 8 ? 3 : 1; run == -1 && i < many; i++) {
        int one = fw_pick(w, owner, dice % 3 ? INFERSCALE_FACTS : INFERSCALE_TURNS);

        if (one >= 0 && (n == 0 || which[n - 1] != one) && (n < 2 || which[0] != one)) which[n++] = one;
    }
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) ids[i] = w->items[which[i]].id;
    x = fw_traces_of(w, which, n);
    if (run > 0) scope.run = runs[run];
    o.all = run != -1;
    o.prove = (int)fw_below(w, 2);
    OK(inferscale_forget_with(w->is, &scope, run == -1 ? ids : NULL, run == -1 ? n : 0, &o, &report));
    assert_int_equal(report.forgotten, n);
    assert_int_equal(report.traces, 0);
    assert_int_equal(report.pending, 0);
    assert_int_equal(report.proven, o.prove);
    fw_check_forgotten(w, which, n, &x, o.prove);
    not_found(w, which, n);
    traces_free(&x);
}

/* ---- Histories ----------------------------------------------------------------------------------------------------------- */

static void begin(world *w, unsigned long long seed)
{
    is_engine_opts opts = { .model_path = "mock", .n_ctx = 8192 };
    char model[700];

    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->home = scratch_make();
    w->store = strdup(scratch_path(w->home, "store"));
    w->vault = strdup(scratch_path(w->store, "vault"));
    w->witness = strdup(scratch_path(w->home, "witness"));
    w->captures = calloc(CAPTURES, sizeof *w->captures);
    snprintf(model, sizeof model, "mock:witness=%s", w->witness);
    w->is = live_open(w->store, model);
    assert_non_null(w->is);
    OK(is_engine_open(live_plugins(), "mock", &opts, &w->engine));
    OK(is_rope_new(is_engine_geometry(w->engine), 8192, &w->rope));
}

static void end(world *w)
{
    for (int i = 0; i < OWNERS; i++) inferscale_chat_close(w->chat[i]);
    inferscale_close(w->is);
    is_rope_free(w->rope);
    is_engine_close(w->engine);
    fw_free_captures(w);
    free(w->captures);
    fw_free_segments(w->known, w->n_known);
    free(w->store);
    free(w->vault);
    free(w->witness);
    scratch_remove(w->home);
}

static void step(world *w)
{
    unsigned dice = fw_below(w, 100);

    if (dice < 34) add_fact(w);
    else if (dice < 46) add_turn(w);
    else if (dice < 56) change_fact(w);
    else if (dice < 61) supersede_fact(w);
    else if (dice < 79) encode(w);
    else if (dice < 85) ask(w);
    else if (dice < 90) talk(w);
    else forget(w);
}

static void one_history(world *w, unsigned long long seed, int steps)
{
    begin(w, seed);
    for (int i = 0; i < 12; i++) add_fact(w);
    for (int i = 0; i < steps; i++) step(w);
    for (int owner = 0; owner < OWNERS; owner++) OK(inferscale_encode(w->is, &owners[owner], NULL));
    fw_learn_books(w);
    for (int i = 0; i < 3; i++) forget(w);
    print_message("seed %llu: %d items, %zu segments, %u forgettings, %u KV windows looked for; rows made again %u (means: %u), not possible %u\n",
                  seed, w->n_items, w->n_known, w->n_forgets, w->n_windows, w->n_checked, w->n_means, w->n_unchecked);
}

static void what_is_forgotten_is_gone_and_nothing_else(void **state)
{
    const char *steps = getenv("INFERSCALE_STEPS"), *soak = getenv("INFERSCALE_SOAK");
    double until = is_now_ms() + (soak ? atof(soak) * 1000 : 0);
    unsigned long long seed = scratch_seed("forget");
    unsigned forgets = 0, checked = 0, windows = 0, by_policy[POLICIES] = { 0 };
    world *w = calloc(1, sizeof *w);

    (void)state;
    for (int i = 0; i < HISTORIES || is_now_ms() < until; i++) {
        print_message("INFERSCALE_SEED=%llu\n", seed + (unsigned)i);
        one_history(w, seed + (unsigned)i, steps ? atoi(steps) : STEPS);
        forgets += w->n_forgets;
        checked += w->n_checked;
        windows += w->n_windows;
        for (int p = 0; p < POLICIES; p++) by_policy[p] += w->n_by_policy[p];
        end(w);
    }
    free(w);
    if (steps) return;
    assert_true(forgets > 10 && checked > 100 && windows > 1000); /* it looked at something */
    for (int p = 0; p < POLICIES; p++)
        if (!by_policy[p]) print_message("policy %s was never drawn\n", policies[p]);
}

/* The search itself: a planted word, vector and window are found, and what is not there is not. */
static void the_search_finds_what_is_planted(void **state)
{
    char *home = scratch_make(), where[900];
    uint8_t noise[4096], vector[TRACES_VECTOR], window[TRACES_WINDOW];
    unsigned long long s = 7;
    traces x = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)scratch_next(&s);
    for (size_t i = 0; i < sizeof vector; i++) vector[i] = (uint8_t)scratch_next(&s);
    for (size_t i = 0; i < sizeof window; i++) window[i] = (uint8_t)scratch_next(&s);
    traces_add_word(&x, "zq00000v1p0");
    traces_add_vector(&x, vector);
    traces_add_window(&x, window);
    OK(is_file_write_atomic(is_fs_posix(), scratch_path(home, "clean"), noise, sizeof noise));
    assert_int_equal(traces_search(&x, home, NULL, NULL, where), 0);
    memcpy(noise + 1001, "zq00000v1p0", 11);
    memcpy(noise + 2003, vector, sizeof vector);
    memcpy(noise + 3005, window, sizeof window);
    OK(is_file_write_atomic(is_fs_posix(), scratch_path(home, "planted"), noise, sizeof noise));
    assert_int_equal(traces_search(&x, home, NULL, NULL, where), 3);
    assert_non_null(strstr(where, "planted"));
    traces_free(&x);
    scratch_remove(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_is_planted),
        cmocka_unit_test(what_is_forgotten_is_gone_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
