/* test_complete.c - conversations that are sent whole, with SmolLM2: a turn that goes on in the engine's cache gives the distribution of
 * one whose history is put in again; another system text before the facts serves; idle conversations make room; answers keep to a
 * grammar. Distributions are compared over the 20 likeliest first tokens, against how far another memory moves them. */
#include <setjmp.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "inferscale.h"
#include "support/scratch.h"

static const char *const facts[] = { "Anna keeps bees in Graz.", "Anna plays the cello.", "Anna is allergic to peanuts.", "Anna drives a red van.",
                                     "Anna was born in Linz.", "Anna works at the harbour." };
enum { FACTS = sizeof facts / sizeof *facts };

static const inferscale_scope anna = { .user = "anna" };

static inferscale *open_store(const char *home, uint32_t n_ctx, uint32_t n_parallel)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = home;
    o.refine = "none";
    o.n_ctx = n_ctx;
    o.n_parallel = n_parallel;
    OK(inferscale_open(&is, &o));
    return is;
}

static void fill(inferscale *is)
{
    for (int i = 0; i < FACTS; i++) {
        inferscale_fact f = { .text = facts[i], .event_time = 1714521600 };

        OK(inferscale_remember(is, &anna, &f, 1, NULL));
    }
    OK(inferscale_encode(is, &anna, NULL));
}

static inferscale_complete_options options(void)
{
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;

    o.ask.k = 2;
    o.ask.max_tokens = 24;
    o.logprobs = 1;
    o.top_logprobs = 20;
    return o;
}

static inferscale_answer *complete(inferscale *is, const inferscale_message *m, size_t n, const inferscale_complete_options *o)
{
    inferscale_answer *a = NULL;

    OK(inferscale_complete(is, &anna, m, n, o, &a));
    assert_true(a->n_tokens > 0);
    return a;
}

static double logprob_of(const inferscale_token *t, int32_t id, double floor)
{
    for (size_t i = 0; i < t->n_top; i++)
        if (t->top[i].id == id) return t->top[i].logprob;
    return floor;
}

/* KL of the first tokens over a's likeliest 20; what b has not among its own is as unlikely as its last. */
static double apart(const inferscale_answer *a, const inferscale_answer *b)
{
    const inferscale_token *p = &a->tokens[0], *q = &b->tokens[0];
    double kl = 0;

    for (size_t i = 0; i < p->n_top; i++)
        kl += exp(p->top[i].logprob) * (p->top[i].logprob - logprob_of(q, p->top[i].id, q->top[q->n_top - 1].logprob));
    return fabs(kl);
}

static void going_on_in_the_cache_is_going_on(void **state)
{
    char *home = scratch_make();
    inferscale *is = open_store(home, 2048, 0);
    inferscale_complete_options o = options();
    inferscale_message m[5] = { { "user", "Where does Anna keep bees?" } };
    inferscale_answer *said[2] = { NULL, NULL };

    (void)state;
    fill(is);
    for (int turn = 0; turn < 2; turn++) {
        inferscale_answer *live, *again, *other;

        said[turn] = complete(is, m, 2 * (size_t)turn + 1, &o);
        m[2 * turn + 1] = (inferscale_message){ "assistant", said[turn]->text };
        m[2 * turn + 2] = (inferscale_message){ "user", turn ? "Which car does Anna drive?" : "Which instrument does Anna play?" };
        live = complete(is, m, 2 * (size_t)turn + 3, &o);
        again = complete(is, m, 2 * (size_t)turn + 3, &o); /* the run that stood there has gone on */
        o.ask.mode = INFERSCALE_MODE_NONE;
        other = complete(is, m, 2 * (size_t)turn + 3, &o);
        o.ask.mode = INFERSCALE_MODE_KV;
        print_message("turn %d: resident %u, again %u of %u tokens; apart by %.2e, without memory by %.2e\n", turn + 2, live->tokens_resident,
                      again->tokens_resident, again->tokens_prompt, apart(live, again), apart(live, other));
        /* What stands there is the answer as it was drawn, which the tokenizer may cut otherwise when it reads its text. */
        assert_true(abs((int)live->tokens_prompt - (int)again->tokens_prompt) <= 2);
        assert_true(live->tokens_resident > again->tokens_resident && live->tokens_computed < again->tokens_computed);
        assert_int_equal(live->n_facts, again->n_facts);
        assert_true(apart(live, again) < 0.02 && apart(live, other) > 5 * apart(live, again));
        inferscale_answer_free(live);
        inferscale_answer_free(again);
        inferscale_answer_free(other);
    }
    inferscale_answer_free(said[0]);
    inferscale_answer_free(said[1]);
    inferscale_close(is);
    scratch_remove(home);
}

/* Facts that were encoded behind the handle's header serve behind another one: nearer to the text of both than no memory is. */
static void another_header_serves(void **state)
{
    const inferscale_message m[2] = { { "system", "You answer questions about people in few words." }, { "user", "Where does Anna keep bees?" } };
    inferscale_complete_options o = options();
    inferscale_answer *kv, *text, *none;
    char *home = scratch_make();
    inferscale *is = open_store(home, 2048, 0);

    (void)state;
    fill(is);
    kv = complete(is, m, 2, &o);
    o.ask.mode = INFERSCALE_MODE_TEXT;
    text = complete(is, m, 2, &o);
    o.ask.mode = INFERSCALE_MODE_NONE;
    none = complete(is, m, 2, &o);
    print_message("header %s: from text %.3f, without memory from text %.3f; it says: %s\n", kv->header, apart(text, kv), apart(text, none),
                  kv->text);
    assert_string_equal(kv->header, "generic");
    assert_true(kv->tokens_injected > 0 && text->tokens_injected == 0 && kv->tokens_prompt == text->tokens_prompt);
    assert_true(apart(text, kv) < apart(text, none));
    inferscale_answer_free(kv);
    inferscale_answer_free(text);
    inferscale_answer_free(none);
    inferscale_close(is);
    scratch_remove(home);
}

/* A context for one conversation at a time: what is idle goes when the next one needs its cells. */
static void idle_conversations_make_room(void **state)
{
    inferscale_complete_options o = options();
    char *home = scratch_make(), text[4][1200];
    inferscale *is = open_store(home, 512, 1);

    (void)state;
    fill(is);
    for (int i = 0; i < 4; i++) {
        inferscale_message m = { "user", text[i] };
        inferscale_answer *a;

        size_t len = (size_t)snprintf(text[i], sizeof text[i], "Number %d.", i);

        for (int k = 0; k < 60; k++) len += (size_t)snprintf(text[i] + len, sizeof text[i] - len, " Bees and a cello.");
        a = complete(is, &m, 1, &o);
        assert_true(a->tokens_prompt > 300);
        inferscale_answer_free(a);
    }
    inferscale_close(is);
    scratch_remove(home);
}

static void answers_keep_to_a_grammar_and_end_at_a_stop(void **state)
{
    const inferscale_message m = { "user", "Does Anna keep bees? Tell me about it." };
    const char *const stop[] = { "e" };
    inferscale_complete_options o = options();
    char *home = scratch_make();
    inferscale *is = open_store(home, 1024, 0);
    inferscale_answer *a;

    (void)state;
    fill(is);
    o.grammar = "root ::= \"yes, \" (\"always\" | \"never\")";
    a = complete(is, &m, 1, &o);
    assert_true(!strcmp(a->text, "yes, always") || !strcmp(a->text, "yes, never"));
    assert_string_equal(a->finish, "stop");
    inferscale_answer_free(a);
    a = NULL;
    o.grammar = "root ::= (";
    FAILS(E_PARSE, inferscale_complete(is, &anna, &m, 1, &o, &a));
    assert_null(a);
    o.grammar = NULL;
    o.stop = stop;
    o.n_stop = 1;
    a = complete(is, &m, 1, &o);
    assert_null(strchr(a->text, 'e'));
    assert_true(a->stopped_by == stop[0]);
    inferscale_answer_free(a);
    inferscale_close(is);
    scratch_remove(home);
}

/* Nobody named a codec: rows are stored in int8, and no wider. */
static void rows_are_stored_in_int8(void **state)
{
    enum { BYTES = 11880 }; /* 30 layers, keys and values of 3 heads of 64 elements and a scale of two bytes */
    inferscale_fact f = { .text = facts[0], .event_time = 1714521600 };
    inferscale_encode_options encoded = INFERSCALE_ENCODE_OPTIONS_INIT;
    char *home = scratch_make();
    inferscale *is = open_store(home, 2048, 1);
    inferscale_model_info m;
    inferscale_store_info store;

    (void)state;
    encoded.policy = "header"; /* in a page that takes more facts they would be wider */
    OK(inferscale_remember(is, &anna, &f, 1, NULL));
    OK(inferscale_encode(is, &anna, &encoded));
    OK(inferscale_model(is, &m));
    assert_int_equal(m.kv_bytes_per_token, BYTES);
    assert_int_equal(encoded.facts_encoded, 1);
    OK(inferscale_store(is, 0, &store));
    assert_int_equal(store.n_segments, 1);
    assert_true(encoded.tokens_stored >= 8 && store.vault_bytes >= encoded.tokens_stored * BYTES);
    assert_true(store.vault_bytes - encoded.tokens_stored * BYTES < 2 * BYTES); /* the file's head and tables; f16 would be twice as much */
    inferscale_close(is);
    scratch_remove(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(going_on_in_the_cache_is_going_on),
        cmocka_unit_test(another_header_serves),
        cmocka_unit_test(idle_conversations_make_room),
        cmocka_unit_test(answers_keep_to_a_grammar_and_end_at_a_stop),
        cmocka_unit_test(rows_are_stored_in_int8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
