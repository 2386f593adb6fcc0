/* What policies whose context is turns see in `eval accuracy`: an invented memory has no
 * conversation, so its facts are its turns, and the turns before a fact's own are the facts before
 * it. What a question finds does not change by that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "eval/accuracy_run.h"
#include "support/kit.h"

static char plugins[1024];

static int set_up(void **state)
{
    ssize_t n = readlink("/proc/self/exe", plugins, sizeof plugins - 1);

    (void)state;
    if (n < 0) return -1;
    plugins[n] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    return 0;
}

/* The first invented memory, remembered for runs under one policy. */
typedef struct remembered {
    quiz quiz;
    quiz_store *store;
    accuracy_options options;
    accuracy_work work;
} remembered;

static void begin(remembered *r, const char *policy)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    *r = (remembered){ .options = { .n_policies = 1, .k = 10, .method = INFERSCALE_LEXICAL } };
    r->options.quiz = &r->quiz;
    r->work.o = &r->options;
    o.engine = "mock";
    o.model = "mock";
    o.plugin_dir = plugins;
    KIT_OK(lab_open(&o, "tester", &r->work.l));
    KIT_OK(is_handle_engine(r->work.l->is));
    r->work.engine = r->work.l->is->engine;
    KIT_OK(quiz_synthetic(3, &r->quiz));
    KIT_OK(quiz_store_at(&r->quiz, 0, &r->store));
    KIT_OK(fidelity_variant_parse(policy, &r->options.policies[0]));
    KIT_OK(accuracy_kinds(&r->work));
    KIT_OK(accuracy_remember(&r->work, r->store));
}

static void end(remembered *r)
{
    is_free(r->work.fact_ids);
    quiz_store_free(r->store);
    lab_close(r->work.l);
}

/* The tokens that stand before fact i when it is encoded. */
static void context_of(remembered *r, size_t i, is_context *out)
{
    const is_encoder enc = is_handle_encoder(r->work.l->is);
    inferscale_list *item = NULL;

    KIT_OK(is_bank_get(enc.bank, &r->work.l->partition, &r->work.fact_ids[i], 1, &item));
    KIT_OK(is_policy_context(&enc, &r->work.l->partition, &r->work.kinds[0], &item->items[0], 4096,
                             out));
    inferscale_list_free(item);
}

/* Fact i sees the words of the `w` facts before it, in order, as turns, and nothing else. */
static void check_context(remembered *r, size_t i, size_t w)
{
    const size_t from = i > w ? i - w : 0, n = i - from;
    const lab *l = r->work.l;
    is_context c;

    context_of(r, i, &c);
    assert_int_equal(c.n_deps, n);
    assert_true((c.tokens.n > 0) == (n > 0));
    for (size_t k = 0; k < n; k++) {
        inferscale_list *turn = NULL;

        KIT_OK(is_bank_get(l->is->bank, &l->partition, &c.deps[k].item_id, 1, &turn));
        assert_int_equal(turn->items[0].kind, INFERSCALE_TURNS);
        assert_string_equal(turn->items[0].text, r->store->facts[from + k].text);
        inferscale_list_free(turn);
    }
    is_context_free(&c);
}

static void turns_are_the_facts_before(void **state)
{
    remembered r;

    (void)state;
    begin(&r, "cwe:3");
    for (size_t i = 0; i < 9; i++) check_context(&r, i, 3);
    end(&r);
    begin(&r, "cwe:0");
    for (size_t i = 0; i < 3; i++) check_context(&r, i, 0);
    end(&r);
}

/* Which facts, by their place in the memory. */
static size_t found(remembered *r, const quiz_question *q, size_t out[16])
{
    int64_t *ids = NULL;
    size_t n = 0;

    KIT_OK(accuracy_find(&r->work, q, &ids, &n));
    for (size_t i = 0; i < n; i++) {
        out[i] = 0;
        while (r->work.fact_ids[out[i]] != ids[i]) out[i]++;
    }
    is_free(ids);
    return n;
}

static void questions_find_the_same(void **state)
{
    remembered with, without;
    size_t a[16], b[16];

    (void)state;
    begin(&with, "cwe:3");
    begin(&without, "facts:3");
    for (size_t i = 0; i < with.store->n_questions; i++) {
        const size_t n = found(&with, &with.store->questions[i], a);

        assert_int_equal(n, 10);
        assert_int_equal(found(&without, &without.store->questions[i], b), n);
        assert_memory_equal(a, b, n * sizeof *a);
    }
    end(&with);
    end(&without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_are_the_facts_before),
        cmocka_unit_test(questions_find_the_same),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
