/* Our own allocations fail while a real model (SmolLM2) is opened, a fact is encoded and a question asked: an error with a sentence, or
 * success; afterwards the same handle works. libllama's own allocations are not touched. A few n of each, at random from a printed seed:
 * a model takes seconds to open. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/scratch.h"
#include "support/soak.h"

enum { OPENS = 5, CALLS = 10 };

static const inferscale_scope anna = { .user = "anna" };
static char plugins[1024];
static unsigned long long seed;

static void open_store(inferscale **is, const char *home)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = home;
    o.plugin_dir = plugins;
    o.n_ctx = 512;
    o.n_threads = 1;
    o.policy = "header";
    if (inferscale_open(is, &o) != INFERSCALE_OK) fail_msg("%s", inferscale_error());
}

static inferscale_status load(inferscale *is)
{
    inferscale_model_info info;

    return inferscale_model(is, &info);
}

static inferscale_status encode(inferscale *is)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;

    o.again = 1;
    return inferscale_encode(is, &anna, &o);
}

static inferscale_status ask(inferscale *is)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    inferscale_status st;

    o.max_tokens = 2;
    st = inferscale_ask(is, &anna, "Which food is Anna allergic to?", &o, &a);
    if (st == INFERSCALE_OK) assert_int_equal(a->n_facts, 1);
    else assert_null(a);
    inferscale_answer_free(a);
    return st;
}

static void works(inferscale_status st, const char *what)
{
    if (st != INFERSCALE_OK) fail_msg("%s: %s", what, inferscale_error());
}

/* The call with its nth allocation refused, n anywhere in it; all after it too if sticky. */
static void with_fault(inferscale *is, inferscale_status (*call)(inferscale *), size_t n, bool sticky, const char *what)
{
    inferscale_status st;

    if (sticky) is_mem_fail_from(n);
    else is_mem_fail_at(n);
    st = call(is);
    is_mem_fail_at(0);
    if (st == INFERSCALE_OK) return;
    if (st != INFERSCALE_E_NOMEM || !strstr(inferscale_error(), "memory"))
        fail_msg("%s, allocation %zu%s: %s: %s", what, n, sticky ? " on" : "", inferscale_status_name(st), inferscale_error());
}

static size_t count(inferscale *is, inferscale_status (*call)(inferscale *), const char *what)
{
    size_t before = is_mem_count();

    works(call(is), what);
    return is_mem_count() - before;
}

static void opening_a_model(void **state)
{
    char *home = scratch_make();
    inferscale *is = NULL;
    size_t all;

    (void)state;
    open_store(&is, home);
    all = count(is, load, "load");
    inferscale_close(is);
    print_message("%zu allocations\n", all);
    for (int i = 0; i < OPENS; i++) {
        open_store(&is, home);
        with_fault(is, load, 1 + scratch_below(&seed, (unsigned)all), i % 2, "load");
        if (i == OPENS - 1) works(load(is), "load after it");
        inferscale_close(is);
    }
    scratch_remove(home);
}

static void encoding_and_asking(void **state)
{
    static const struct { const char *name; inferscale_status (*call)(inferscale *); } calls[] = { { "encode", encode }, { "ask", ask } };
    inferscale_fact f = { .text = "Anna is allergic to peanuts.", .event_time = 1714521600 };
    char *home = scratch_make();
    inferscale *is = NULL;

    (void)state;
    open_store(&is, home);
    works(inferscale_remember(is, &anna, &f, 1, NULL), "remember");
    works(encode(is), "encode");
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        size_t all = count(is, calls[c].call, calls[c].name);

        print_message("%s: %zu allocations\n", calls[c].name, all);
        for (int i = 0; i < CALLS; i++) with_fault(is, calls[c].call, 1 + scratch_below(&seed, (unsigned)all), i % 2, calls[c].name);
        works(calls[c].call(is), calls[c].name);
    }
    inferscale_close(is);
    scratch_remove(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(opening_a_model), cmocka_unit_test(encoding_and_asking) };

    soak_plugins(plugins, sizeof plugins);
    seed = scratch_seed("faults with a model");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
