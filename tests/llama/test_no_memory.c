/* Opening a model with every allocation of ours failed in turn: "this model cannot be injected into" and "there was no
 * memory to look" are two answers. Each failure gives E_NOMEM, or the engine that is opened without one: never an engine
 * that serves everything as text. The models are tiny ones: rotated keys, frequency factors, window layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/mem.h"
#include "llama/support/tiny_models.h"
#include "support/kit.h"
#include "support/scratch.h"

static bool injects;

static is_status open_model(const char *path)
{
    is_engine_opts o = { .n_ctx = 128, .n_threads = 1, .flash_attention = INFERSCALE_FA_OFF, .no_selftest = true,
                         .n_parallel = 1 };
    is_engine *e = NULL;
    is_status st;

    o.model_path = path;
    st = is_engine_open(NULL, "llama", &o, &e);
    injects = st == INFERSCALE_OK && is_engine_describe(e)->can_inject;
    is_engine_close(e);
    return st;
}

static void fail_each(const char *name)
{
    const tiny_model *m = tiny_model_find(name);
    const char *path;
    size_t n, failed = 0;

    assert_non_null(m);
    path = tiny_model_path(m, 1);
    assert_non_null(path);
    OK(open_model(path));
    assert_true(injects);
    n = is_mem_count();
    OK(open_model(path));
    n = is_mem_count() - n;
    for (size_t i = 1; i <= n; i++)
        for (int sticky = 0; sticky < 2; sticky++) {
            is_status st;

            if (sticky) is_mem_fail_from(i);
            else is_mem_fail_at(i);
            st = open_model(path);
            is_mem_fail_at(0);
            failed += st == INFERSCALE_E_NOMEM;
            if (st == INFERSCALE_OK && injects) continue; /* it can do without this one */
            if (st != INFERSCALE_E_NOMEM)
                fail_msg("%s: allocation %zu of %zu%s fails, and the status is %s (%s)%s", name, i, n, sticky ? " on" : "",
                         inferscale_status_name(st), is_error(), st == INFERSCALE_OK ? ": served as text" : "");
        }
    print_message("%s: %zu allocations, %zu times E_NOMEM\n", name, n, failed);
    assert_true(failed > n); /* of 2 n */
}

static void opening(void **state)
{
    (void)state;
    fail_each("tiny-llama3"); /* frequency factors */
    fail_each("tiny-gemma3"); /* window layers */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(opening) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
