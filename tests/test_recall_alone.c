/* test_recall_alone.c - one owner's index is built without holding up another's: while every read of the one hangs, the other's search
 * returns. And what a search waited for is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/mem.h"
#include "recall/recall.h"
#include "support/bank_kit.h"
#include "support/fault_vfs.h"

enum { STUCK_S = 120 }; /* a search that never returns fails here */

static __thread bool hangs; /* this thread's reads do */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool held, released;

static void at_read(void *ctx)
{
    (void)ctx;
    if (!hangs) return;
    pthread_mutex_lock(&lock);
    held = true;
    pthread_cond_broadcast(&changed);
    while (!released) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

typedef struct search {
    is_recall *recall;
    const is_partition *p;
    is_index_wait wait;
    size_t n;
    is_status st;
} search;

static void find(search *s, const char *text)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = { .text = text, .options = &o, .wait = &s->wait };
    is_hit *hits = NULL;

    s->wait = (is_index_wait){ 0 };
    s->st = is_recall_query(s->recall, s->p, &q, &hits, &s->n, NULL);
    is_free(hits);
}

static void *find_hanging(void *ctx)
{
    hangs = true;
    find(ctx, "boat");
    return NULL;
}

static void another_owners_search_returns_meanwhile(void **state)
{
    fault_clock *clock = fault_clock_new();
    bank_kit *k;
    is_recall *r;
    search anna, ben;
    pthread_t t;

    alarm(STUCK_S);
    fault_vfs_install(clock, NULL);
    assert_int_equal(bank_kit_setup(state), 0);
    k = *state;
    for (int i = 0; i < 300; i++) {
        char text[80];

        snprintf(text, sizeof text, "Boat number %d lies on the lake.", i);
        kit_fact(k, &k->pa, &k->anna, text);
    }
    kit_fact(k, &k->pb, &k->ben, "A boat.");
    OK(is_recall_new(k->bank, &r));
    anna = (search){ .recall = r, .p = &k->pa };
    ben = (search){ .recall = r, .p = &k->pb };
    fault_clock_watch(clock, 1u << FAULT_READ, at_read, NULL);
    assert_int_equal(pthread_create(&t, NULL, find_hanging, &anna), 0);
    pthread_mutex_lock(&lock);
    while (!held) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < 2; i++) {
        find(&ben, "boat"); /* builds his own index, then uses it */
        OK(ben.st);
        assert_int_equal(ben.n, 1);
        assert_int_equal(ben.wait.built, i == 0);
    }
    pthread_mutex_lock(&lock);
    released = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(t, NULL);
    OK(anna.st);
    assert_int_equal(anna.n, 10);
    assert_true(anna.wait.built && anna.wait.ms >= 0);
    kit_fact(k, &k->pa, &k->anna, "One more boat.");
    find(&anna, "boat");
    assert_false(anna.wait.built); /* it follows the bank */
    is_recall_free(r);
    fault_clock_watch(clock, 0, NULL, NULL);
    bank_kit_teardown(state);
    fault_vfs_remove();
    fault_clock_free(clock);
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(another_owners_search_returns_meanwhile) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
