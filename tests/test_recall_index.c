/* The index behind recall: partitions do not touch each other, the index that followed the bank equals one built anew, whoever wrote,
 * another embedder's vectors are another view, and neither threads nor a failed allocation harm it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "support/recall_world.h"

/* Same scores to the last bit, whatever is in another partition. */
static void partitions_do_not_touch(void **state)
{
    bank_kit *k = *state;
    world *w = rw_make(k, 120, "isolation");
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_hit *before, *after;
    size_t n, m;
    is_recall *r;
    ask a;

    OK(is_recall_new(k->bank, &r));
    rw_random_ask(w, &a);
    o.k = 1000;
    o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
    OK(rw_ask(r, &k->pa, &a, &o, NULL, &before, &n, NULL));
    for (int i = 0; i < 60; i++) {
        char text[160];
        float v[DIM], scale;
        int8_t q[DIM];
        sprintf(text, "%s %s other%d", a.text, a.text, i);
        int64_t id = kit_fact(k, &k->pb, &k->ben, text);
        rw_random_vector(&w->seed, v);
        is_quantize_i8(v, DIM, q, &scale);
        OK(is_bank_put_embedding(k->bank, &k->pb, kit_model, id, 1, q, DIM, scale));
        if (i == 30) { /* the other index is alive too */
            is_hit *theirs;
            OK(rw_ask(r, &k->pb, &a, &o, NULL, &theirs, &m, NULL));
            assert_int_equal(m, 31);
            for (size_t h = 0; h < m; h++)
                for (int t = 0; t < w->n; t++) assert_int_not_equal(theirs[h].id, w->t[t].id);
            is_free(theirs);
        }
    }
    OK(rw_ask(r, &k->pa, &a, &o, NULL, &after, &m, NULL));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(before[i].id, after[i].id);
        assert_true(before[i].score == after[i].score && before[i].lexical == after[i].lexical &&
                    before[i].dense == after[i].dense);
    }
    is_free(before);
    is_free(after);
    is_recall_free(r);
    is_free(w);
}

/* Both indexes give the same hits, bit for bit. */
static void same(is_recall *r, is_recall *s, const bank_kit *k, world *w)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_hit *x, *y;
    size_t n, m;
    ask a;

    o.k = 1000;
    o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
    rw_random_ask(w, &a);
    OK(rw_ask(r, &k->pa, &a, &o, NULL, &x, &n, NULL));
    OK(rw_ask(s, &k->pa, &a, &o, NULL, &y, &m, NULL));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(x[i].id, y[i].id);
        assert_true(x[i].score == y[i].score && x[i].lexical == y[i].lexical && x[i].dense == y[i].dense);
    }
    is_free(x);
    is_free(y);
}

static void followed_equals_rebuilt(void **state)
{
    bank_kit *k = *state;
    world *w = rw_make(k, 5, "incremental");
    is_recall *followed, *fresh;

    OK(is_recall_new(k->bank, &followed));
    for (int round = 0; round < 25; round++) {
        unsigned what = scratch_below(&w->seed, 6);
        if (what == 0) {
            OK(is_bank_forget(k->bank, &k->pa, &w->t[scratch_below(&w->seed, (unsigned)w->n)].id, 1, NULL, NULL, NULL));
        } else if (what == 1) { /* a vector that came late */
            const thing *t = &w->t[scratch_below(&w->seed, (unsigned)w->n)];
            int8_t q[DIM] = {1, 2, 3};
            is_status st = is_bank_put_embedding(k->bank, &k->pa, kit_model, t->id, 1, q, DIM, 0.01f);
            assert_true(st == INFERSCALE_OK || st == INFERSCALE_E_NOTFOUND);
            is_recall_forget(followed, t->has_vector ? k->pa.id : 0); /* a held vector that is replaced is the next test's */
        } else {
            for (unsigned i = scratch_below(&w->seed, 12); i > 0 && w->n < ITEMS; i--) rw_add_thing(k, w, what != 2);
        }
        OK(is_recall_new(k->bank, &fresh));
        for (int i = 0; i < 3; i++) same(followed, fresh, k, w);
        is_recall_free(fresh);
    }
    is_recall_free(followed);
    is_free(w);
}

/* What another process writes is seen; what it changes or forgets is not found by its old words. */
static void other_processes_are_seen(void **state)
{
    bank_kit *k = *state;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    int64_t first, id = kit_fact(k, &k->pa, &k->anna, "the zebra sleeps");
    int status;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    assert_int_equal(rw_search_words(r, &k->pa, "zebra", o, &first), 1);
    for (int step = 0; step < 3; step++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) { /* its own handle; the inherited one is not touched */
            is_bank *b;
            is_partition p;
            is_status st = is_bank_open(k->path, false, &b);
            inferscale_fact f = {.text = step == 0 ? "the giraffe eats" : "the okapi sleeps"};
            if (st == INFERSCALE_OK) st = is_bank_partition(b, &k->anna, false, &p);
            if (st == INFERSCALE_OK && step == 0) st = is_bank_add_facts(b, &p, &k->anna, &f, 1, NULL);
            if (st == INFERSCALE_OK && step == 1) st = is_bank_update_fact(b, &p, id, &f, NULL);
            if (st == INFERSCALE_OK && step == 2) st = is_bank_forget(b, &p, &id, 1, NULL, NULL, NULL);
            _exit((int)st);
        }
        assert_true(child > 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(rw_search_words(r, &k->pa, "giraffe", o, &first), 1);
        assert_int_equal(rw_search_words(r, &k->pa, "zebra", o, &first), step == 0);
        assert_int_equal(rw_search_words(r, &k->pa, "okapi", o, &first), step == 1);
    }
    is_recall_free(r);
}

static void another_embedder_is_another_view(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "first"), b = kit_fact(k, &k->pa, &k->anna, "second");
    const int8_t east[4] = {127, 0, 0, 0}, north[2] = {0, 127};
    const float v4[4] = {1, 0, 0, 0}, v2[2] = {0, 1};
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = {.text = "?", .options = &o};
    is_hit *hits;
    size_t n, unembedded;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, a, 1, east, 4, 1 / 127.0f));
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_other_model, b, 1, north, 2, 1 / 127.0f));
    o.method = INFERSCALE_DENSE;
    for (int i = 0; i < 4; i++) { /* there and back */
        q.vec = i % 2 ? v2 : v4;
        q.dim = i % 2 ? 2 : 4;
        q.fingerprint = i % 2 ? kit_other_model : kit_model;
        OK(is_recall_query(r, &k->pa, &q, &hits, &n, &unembedded));
        assert_int_equal(n, 1);
        assert_int_equal(hits[0].id, i % 2 ? b : a);
        assert_true(fabs(hits[0].dense - 1) < 1e-5);
        assert_int_equal(unembedded, 1);
        is_free(hits);
    }
    q.dim = 4;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    assert_null(hits);
    is_recall_free(r);
}

/* Fails the nth allocation of a query, for every n: an error or the right answer, and the next query is right. */
static void out_of_memory_loses_nothing(void **state)
{
    bank_kit *k = *state;
    world *w = rw_make(k, 30, "memory");
    is_recall *r, *fresh;
    int failures = 0;
    ask a;

    OK(is_recall_new(k->bank, &r));
    rw_random_ask(w, &a);
    for (size_t nth = 1; nth < 4000; nth += 1 + nth / 40) {
        inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
        is_hit *hits = NULL;
        size_t n;
        is_recall_forget(r, k->pa.id);
        is_mem_fail_at(nth);
        is_status st = rw_ask(r, &k->pa, &a, &o, NULL, &hits, &n, NULL);
        is_mem_fail_at(0);
        is_free(hits);
        if (st == INFERSCALE_OK) continue;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
        failures++;
    }
    assert_true(failures > 10);
    OK(is_recall_new(k->bank, &fresh));
    same(r, fresh, k, w);
    is_recall_free(fresh);
    is_recall_free(r);
    is_free(w);
}

typedef struct reader { is_recall *r; const bank_kit *k; ask a; int wrong; } reader;

static void *read_on(void *ctx)
{
    reader *me = ctx;
    size_t last = 0;

    for (int i = 0; i < 40; i++) {
        inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
        is_query q = {.text = "zebra", .options = &o};
        is_hit *hits = NULL;
        size_t n = 0;
        o.k = 1000;
        if (is_recall_query(me->r, &me->k->pa, &q, &hits, &n, NULL) != INFERSCALE_OK || n < last) me->wrong++;
        last = n; /* facts are only added: what was seen stays */
        is_free(hits);
        if (i % 10 == 9) is_recall_forget(me->r, me->k->pa.id);
    }
    return NULL;
}

static void threads_share_an_index(void **state)
{
    bank_kit *k = *state;
    pthread_t threads[4];
    reader readers[4];
    int64_t first;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    for (int i = 0; i < 4; i++) {
        readers[i] = (reader){.r = r, .k = k};
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &readers[i]), 0);
    }
    for (int i = 0; i < 30; i++) {
        char text[40];
        sprintf(text, "zebra number %d", i);
        kit_fact(k, &k->pa, &k->anna, text);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    o.k = 1000;
    assert_int_equal(rw_search_words(r, &k->pa, "zebra", o, &first), 30);
    is_recall_free(r);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bank_kit_setup, bank_kit_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(partitions_do_not_touch),          TEST(followed_equals_rebuilt),     TEST(other_processes_are_seen),
        TEST(another_embedder_is_another_view), TEST(out_of_memory_loses_nothing), TEST(threads_share_an_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
