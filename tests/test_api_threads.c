/* One handle, many threads: two people remember, encode, ask, change and forget at the same time. Nobody sees the other's memory,
 * no answer uses what was forgotten before the question, nothing fails but what may (E_STALE, a memory that changes too fast). */
#include <setjmp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "inferscale.h"
#include "support/scratch.h"

enum { ROUNDS = 40, WRITERS = 2, ASKERS = 4 };

static char plugins[1024];
static inferscale *is;
static const inferscale_scope who[2] = { { .user = "anna" }, { .user = "ben" } };
static atomic_int failures, stop;
static atomic_llong forgotten[2]; /* every fact with a smaller id of this person is forgotten */

static void complain(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, inferscale_error());
    atomic_fetch_add(&failures, 1);
}

static void *write_and_forget(void *arg)
{
    int w = (int)(intptr_t)arg;
    int64_t ids[3] = { 0 };

    for (int i = 0; i < ROUNDS && !failures; i++) {
        char text[80];
        inferscale_fact f = { .text = text, .event_time = 1714521600 };
        inferscale_event e;

        snprintf(text, sizeof text, "%s owns thing number %d.", who[w].user, i);
        if (inferscale_remember(is, &who[w], &f, 1, &e) != INFERSCALE_OK) complain("remember");
        if (inferscale_encode(is, &who[w], NULL) != INFERSCALE_OK) complain("encode");
        if (i >= 3) {
            if (inferscale_forget(is, &who[w], &ids[i % 3], 1, NULL) != INFERSCALE_OK) complain("forget");
            atomic_store(&forgotten[w], ids[i % 3] + 1);
        }
        ids[i % 3] = e.id;
    }
    atomic_fetch_add(&stop, 1);
    return NULL;
}

static void *ask_all_the_time(void *arg)
{
    int w = (int)(intptr_t)arg % 2;

    while (atomic_load(&stop) < WRITERS && !failures) {
        int64_t gone = atomic_load(&forgotten[w]);
        inferscale_answer *a = NULL;
        inferscale_status st = inferscale_ask(is, &who[w], "What do anna and ben own?", NULL, &a);

        if (st == INFERSCALE_E_STALE) continue;
        if (st != INFERSCALE_OK) {
            complain("ask");
            break;
        }
        if (strstr(a->text, who[!w].user)) complain("another one's memory was used");
        for (size_t i = 0; i < a->n_facts; i++)
            if (a->facts[i].id < gone) complain("a forgotten fact was used");
        inferscale_answer_free(a);
    }
    return NULL;
}

static void threads_share_a_handle(void **state)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    pthread_t threads[WRITERS + ASKERS];
    char *home = scratch_make();

    (void)state;
    o.home = home;
    o.engine = "mock";
    o.plugin_dir = plugins;
    OK(inferscale_open(&is, &o));
    for (int i = 0; i < WRITERS + ASKERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i < WRITERS ? write_and_forget : ask_all_the_time, (void *)(intptr_t)i), 0);
    for (int i = 0; i < WRITERS + ASKERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(failures, 0);
    for (int w = 0; w < 2; w++) {
        inferscale_list *l = NULL;

        OK(inferscale_ls(is, &who[w], INFERSCALE_FACTS, 0, 0, &l));
        assert_int_equal(l->n, 3);
        inferscale_list_free(l);
    }
    inferscale_close(is);
    scratch_remove(home);
}

int main(void)
{
    ssize_t len = readlink("/proc/self/exe", plugins, sizeof plugins - 1);
    const struct CMUnitTest tests[] = { cmocka_unit_test(threads_share_a_handle) };

    if (len < 0) return 1;
    plugins[len] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
