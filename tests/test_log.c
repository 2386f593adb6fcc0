/* Each handle has a log function of its own: what one handle does is told to no other's, whether
 * that has a function or none, whichever was opened last. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "base/log.h"
#include "support/scratch.h"
#include "support/store_kit.h"

typedef struct heard { int n; char last[200]; } heard;

static void hear(void *ctx, int level, const char *line)
{
    heard *h = ctx;

    (void)level;
    h->n++;
    snprintf(h->last, sizeof h->last, "%s", line);
}

static inferscale *open_with(const char *home, heard *h)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;

    o.on_log = h ? hear : NULL;
    o.log_ctx = h;
    OK(inferscale_open(&is, &o));
    return is;
}

/* A question about facts that have no KV yet: it says so. */
static void ask(inferscale *is)
{
    inferscale_answer *a = NULL;

    OK(inferscale_ask(is, &store_anna, "Who is here?", NULL, &a));
    inferscale_answer_free(a);
}

static void *say(void *line)
{
    is_log(IS_LOG_INFO, "%s", (const char *)line);
    return NULL;
}

/* By a thread that has called nothing. */
static void say_elsewhere(const char *line)
{
    pthread_t t;

    assert_int_equal(pthread_create(&t, NULL, say, (void *)(uintptr_t)line), 0);
    pthread_join(t, NULL);
}

static void each_handle_is_heard_by_its_own(void **state)
{
    char *dir = scratch_make();
    heard a = { 0 }, c = { 0 };
    inferscale *with, *without, *third;
    int n;

    (void)state;
    with = open_with(scratch_path(dir, "a"), &a);
    without = open_with(scratch_path(dir, "b"), NULL);
    third = open_with(scratch_path(dir, "c"), &c);
    for (int i = 0; i < 2; i++) {
        store_fact(with, &store_anna, i ? "Anna is here." : "Ben is here.");
        store_fact(without, &store_anna, i ? "Anna is here." : "Ben is here.");
        store_fact(third, &store_anna, i ? "Anna is here." : "Ben is here.");
    }
    a.n = c.n = 0;
    ask(with);
    assert_true(a.n > 0);
    assert_int_equal(c.n, 0);
    n = a.n;
    ask(without);
    assert_int_equal(a.n, n);
    assert_int_equal(c.n, 0);
    ask(third);
    assert_int_equal(a.n, n);
    assert_true(c.n > 0);
    say_elsewhere("to the newest");
    assert_string_equal(c.last, "to the newest");
    inferscale_close(third);
    say("the handle of this thread is closed");
    assert_string_equal(a.last, "the handle of this thread is closed");
    inferscale_close(without);
    say_elsewhere("to the one that is left");
    assert_string_equal(a.last, "to the one that is left");
    inferscale_close(with);
    n = a.n;
    say_elsewhere("to nobody");
    assert_int_equal(a.n, n);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_handle_is_heard_by_its_own) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
