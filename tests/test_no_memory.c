/* "There is none" and "there was no memory to look" are two answers: of the functions that know both, every allocation is failed in turn,
 * and each gives E_NOMEM or what it gives without a fault, never that there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handle.h"
#include "base/mem.h"
#include "engine/chat_pieces.h"
#include "engine/vllm/internal.h"
#include "support/scratch.h"

static char *dir;

static int set_up(void **state)
{
    FILE *f;

    (void)state;
    dir = scratch_make();
    f = fopen(scratch_path(dir, "tiny.gguf"), "w");
    assert_non_null(f);
    fclose(f);
    return setenv("INFERSCALE_MODELS", dir, 1) || setenv("INFERSCALE_CACHE", dir, 1);
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

static is_status by_name(void)
{
    char *path = NULL;
    is_status st = is_model_find("tiny", NULL, &path);

    assert_int_equal(st == INFERSCALE_OK, path != NULL);
    if (path) assert_non_null(strstr(path, "tiny.gguf"));
    is_free(path);
    return st;
}

static is_status by_path(void)
{
    char *path = NULL;
    is_status st = is_model_find(scratch_path(dir, "tiny.gguf"), NULL, &path);

    assert_int_equal(st == INFERSCALE_OK, path != NULL);
    is_free(path);
    return st;
}

static is_status cached(void)
{
    char *path = NULL;
    is_status st = is_cache_folder("what", &path);

    assert_int_equal(st == INFERSCALE_OK, path != NULL);
    is_free(path);
    return st;
}

static is_status chat(void)
{
    static const is_chat_marks m = { "SYSTEM", "USER", "ASSISTANT", "SECOND" };
    is_chat_format f = { 0 };
    bool found = true;
    is_status st = is_chat_cut(&m, "<s>SYSTEM</s><u>USER</u><a>ASSISTANT</a><u>SECOND</u><a>", "<u>USER</u>", NULL, &f, &found);

    if (st == INFERSCALE_OK) assert_true(found);
    is_chat_format_free(&f);
    return st;
}

static is_status chat_without_system(void)
{
    static const is_chat_marks m = { "SYSTEM", "USER", "ASSISTANT", "SECOND" };
    is_chat_format f = { 0 };
    bool found = true;
    is_status st = is_chat_cut(&m, "<u>USER</u><a>ASSISTANT</a><u>SECOND</u><a>", NULL, NULL, &f, &found);

    if (st == INFERSCALE_OK) assert_true(found);
    is_chat_format_free(&f);
    return st;
}

/* What the vLLM engine makes of a server's template: pieces of use, with and without blanks at their ends. */
static is_status template_of(const char *again)
{
    bool trims = false;
    const char *why = "";
    is_status st = vllm_chat_doubt("<s>Qsystemz</s><u>Quserz<a>Qassistantz<u>Qsecondz<a>", again, true, &trims, &why);

    if (st == INFERSCALE_OK) assert_null(why);
    return st;
}

static is_status template_literal(void)
{
    return template_of("<s>  Xsys 41 tem words\n</s><u> Xus 1999 er\n\n<a>\nXassi 7 stant, longer than before  <u>"
                       "\tXse 23 cond <a>");
}

static is_status template_trims(void)
{
    return template_of("<s>Xsys 41 tem words</s><u>Xus 1999 er<a>Xassi 7 stant, longer than before<u>Xse 23 cond<a>");
}

static void fail_each(is_status (*f)(void), size_t at_least)
{
    size_t n;

    assert_int_equal(f(), INFERSCALE_OK);
    n = is_mem_count();
    assert_int_equal(f(), INFERSCALE_OK);
    n = is_mem_count() - n;
    assert_true(n >= at_least);
    for (size_t i = 1; i <= n; i++)
        for (int sticky = 0; sticky < 2; sticky++) {
            is_status st;

            if (sticky) is_mem_fail_from(i);
            else is_mem_fail_at(i);
            st = f();
            is_mem_fail_at(0);
            if (st != INFERSCALE_E_NOMEM) fail_msg("allocation %zu of %zu fails, and the status is %s (%s)", i, n, inferscale_status_name(st), is_error());
        }
}

static void models(void **state)
{
    (void)state;
    fail_each(by_name, 3);
    fail_each(by_path, 1);
    fail_each(cached, 1);
}

static void chat_formats(void **state)
{
    (void)state;
    fail_each(chat, 11);
    fail_each(chat_without_system, 8);
    fail_each(template_literal, 2);
    fail_each(template_trims, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(models), cmocka_unit_test(chat_formats) };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
