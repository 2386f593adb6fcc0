/* test_sampling.c - grammars, penalties and biases, on a weight-free model: what it likes is random, so what comes out is ruled by them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "llama/support/subject.h"

enum { CTX = 256, PROMPT = 20 };

static subject s;
static kit_plan plan;

static int open_model(void **state)
{
    (void)state;
    subject_open(&s, "tiny-llama", false, CTX);
    kit_plan_begin(&plan, 0);
    kit_plan_add(&plan, IS_ROLE_QUESTION, kit_cut(s.all, 0, PROMPT), NULL);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    subject_close(&s);
    return 0;
}

/* Generates at most n tokens; their text to out. true = it ended by itself. */
static bool generate(const is_sampling *how, int n, char *out, size_t cap, int32_t *tokens)
{
    const is_run_opts o = { .sampling = *how };
    bool ended = false;
    is_run *run;
    size_t len = 0;

    KIT_OK(is_engine_start(s.e, &plan.plan, &o, &run, NULL));
    for (int i = 0; i < n && !ended; i++) {
        int32_t token;
        int got;

        KIT_OK(is_engine_sample(s.e, run, &token));
        if (tokens) tokens[i] = token;
        ended = is_engine_is_eog(s.e, token);
        if (ended) break;
        got = is_engine_piece(s.e, token, out + len, (int)(cap - len - 1));
        assert_true(got >= 0);
        len += (size_t)got;
        KIT_OK(is_engine_feed(s.e, run, token));
    }
    out[len] = 0;
    is_engine_finish(s.e, run);
    return ended;
}

static void test_a_grammar_is_held_to(void **state)
{
    static const char grammar[] = "root ::= (\"yes\" | no) \"a\"{2,3} # a comment\nno ::= \"no\" [bc]+ \"d\"\n";
    char text[256];
    int n_yes = 0, n_ended = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        const is_sampling how = { .temperature = seed % 3 ? 2 : 0, .top_k = seed % 5 ? 0 : 3, .seed = seed, .grammar = grammar };
        const char *p = text;
        bool ended = generate(&how, 60, text, sizeof text, NULL);

        n_ended += ended;
        n_yes += text[0] == 'y';
        if (!ended) { /* it may still be among the letters */
            assert_int_equal(strspn(text, "nobcyesad"), strlen(text));
            continue;
        }
        if (strncmp(p, "yes", 3) == 0) {
            p += 3;
        } else {
            assert_int_equal(strncmp(p, "no", 2), 0);
            p += 2;
            assert_true(strspn(p, "bc") > 0);
            p += strspn(p, "bc");
            assert_int_equal(*p++, 'd');
        }
        assert_true(strcmp(p, "aa") == 0 || strcmp(p, "aaa") == 0);
    }
    print_message("%d of 40 ended, %d said yes\n", n_ended, n_yes);
    assert_true(n_ended > 5);
}

/* What it forbids cannot be fed, and the run goes on as if it had not been tried. */
static void test_a_forbidden_token_is_refused(void **state)
{
    const is_run_opts o = { .sampling = { .grammar = "root ::= \"abc\"" } };
    int32_t *ids, token;
    is_run *run;
    uint32_t n;

    (void)state;
    KIT_OK(is_engine_tokenize(s.e, NULL, "zabc", 4, false, false, &ids, &n));
    assert_int_equal(n, 4);
    KIT_OK(is_engine_start(s.e, &plan.plan, &o, &run, NULL));
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_feed(s.e, run, ids[0]));
    for (int i = 1; i < 4; i++) {
        char piece[8] = { 0 }; /* a byte and a letter may be two tokens of one text */

        KIT_OK(is_engine_sample(s.e, run, &token));
        assert_int_equal(is_engine_piece(s.e, token, piece, sizeof piece), 1);
        assert_int_equal(piece[0], "zabc"[i]);
        KIT_OK(is_engine_feed(s.e, run, token));
    }
    KIT_OK(is_engine_sample(s.e, run, &token));
    assert_true(is_engine_is_eog(s.e, token));
    is_engine_finish(s.e, run);
    is_free(ids);
}

static void test_bad_grammars_are_refused(void **state)
{
    static const char *const bad[] = {
        "root", "root ::= \"a", "root ::= other", "start ::= \"a\"", "root ::= (\"a\"", "root ::= \"a\")", "root ::= *", "root ::= \"a\"{2", "root ::= [a",
        "root ::= \"\\q\"", "root ::= root \"a\"", "root ::= \"a\"{99999}", "root ::= <|im_end|>", "root ::= !<[3]>", "root ::= \"a\" \"\\x1\"", "# nothing",
        "root ::= \"a\"{3,2}", "root ::= | ::",
    };
    char deep[400];
    is_run *run;

    (void)state;
    memset(deep, '(', sizeof deep);
    memcpy(deep, "root ::= ", 9);
    deep[sizeof deep - 1] = 0;
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        const is_run_opts o = { .sampling = { .grammar = i < sizeof bad / sizeof *bad ? bad[i] : deep } };

        KIT_FAILS(INFERSCALE_E_PARSE, is_engine_start(s.e, &plan.plan, &o, &run, NULL));
        assert_null(run);
    }
}

static void test_biases_and_penalties(void **state)
{
    is_sampling how = { 0 };
    is_bias only[2] = { { .add = 1000 }, { .add = 1050 } }, none = { .add = -INFINITY };
    int32_t first[8], tokens[8];
    char text[64];

    (void)state;
    generate(&how, 1, text, sizeof text, first);
    none.token = first[0];
    how = (is_sampling){ .bias = &none, .n_bias = 1 };
    generate(&how, 8, text, sizeof text, tokens);
    for (int i = 0; i < 8; i++) assert_true(tokens[i] != first[0]);
    only[0].token = s.ids[3];
    only[1].token = s.ids[4] == s.ids[3] ? s.ids[5] : s.ids[4];
    how = (is_sampling){ .bias = only, .n_bias = 2, .frequency = 90 }; /* they take turns: each time 90 off */
    generate(&how, 4, text, sizeof text, tokens);
    assert_true(tokens[0] != tokens[1]);
    assert_int_equal(tokens[0], tokens[2]);
    assert_int_equal(tokens[1], tokens[3]);
    none.token = (int32_t)s.n_vocab;
    how = (is_sampling){ .bias = &none, .n_bias = 1 };
    {
        const is_run_opts o = { .sampling = how };
        is_run *run;

        KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(s.e, &plan.plan, &o, &run, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_grammar_is_held_to),
        cmocka_unit_test(test_a_forbidden_token_is_refused),
        cmocka_unit_test(test_bad_grammars_are_refused),
        cmocka_unit_test(test_biases_and_penalties),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
