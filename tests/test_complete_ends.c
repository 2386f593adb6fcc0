/* What must hold of how a completion ends and of what may be asked of it: stop strings are found however the text is cut into pieces,
 * logprobs are those of the raw distribution, named facts are used in their order, what is no conversation is refused. */
#include <setjmp.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/answer.h"
#include "api/stops.h"
#include "api/talks.h"
#include "base/buf.h"
#include "base/utf8.h"
#include "support/complete_kit.h"
#include "support/scratch.h"
#include "support/store_kit.h"

/* ---- How it ends --------------------------------------------------------------------------------------------------------- */

/* Byte by byte: the first stop string that is complete. */
static int oracle_stop(const char *const *stops, size_t n, const char *text, size_t *cut)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        int best = -1;

        for (size_t i = 0; i < n; i++) {
            size_t len = strlen(stops[i]);

            if (len <= end && strncmp(text + end - len, stops[i], len) == 0 && (best < 0 || len > strlen(stops[best]))) best = (int)i;
        }
        if (best < 0) continue;
        *cut = end - strlen(stops[best]);
        return best;
    }
    *cut = strlen(text);
    return -1;
}

static void stop_strings_do_not_depend_on_the_pieces(void **state)
{
    unsigned long long rng = scratch_seed("stop strings");

    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[41] = "", store_[4][7];
        const char *stops[4];
        size_t n = scratch_below(&rng, 4), len = scratch_below(&rng, 41), at = 0, want_cut, shown = 0, cut = 0;
        int want, got = -1;

        for (size_t i = 0; i < len; i++) text[i] = (char)('a' + scratch_below(&rng, 3));
        for (size_t i = 0; i < n; i++) {
            size_t k = 1 + scratch_below(&rng, 6);

            for (size_t j = 0; j < k; j++) store_[i][j] = (char)('a' + scratch_below(&rng, 3));
            store_[i][k] = 0;
            stops[i] = store_[i];
        }
        want = oracle_stop(stops, n, text, &want_cut);
        while (got < 0 && at < len) {
            size_t piece = 1 + scratch_below(&rng, 5), before = at;

            at = at + piece < len ? at + piece : len;
            got = is_stops_find(stops, n, text, at, before, &cut);
            assert_true(cut >= shown && cut <= at);
            assert_true(want < 0 || cut <= want_cut); /* never shows what it would have to take back */
            shown = cut;
        }
        assert_int_equal(got, want);
        if (want >= 0) assert_int_equal(cut, want_cut);
    }
}

typedef struct shown { char text[400]; size_t len; int tokens, after_plan, plans; const inferscale_answer *so_far; size_t facts; } shown;

static int add_text(void *ctx, const char *text, size_t len)
{
    shown *s = ctx;

    assert_true(s->len + len < sizeof s->text && s->plans == 1);
    memcpy(s->text + s->len, text, len);
    s->len += len;
    return 0;
}

static int add_token(void *ctx, const inferscale_token *token)
{
    assert_non_null(token->bytes);
    ((shown *)ctx)->tokens++;
    return 0;
}

static void on_plan(void *ctx, const inferscale_answer *so_far)
{
    shown *s = ctx;

    s->plans++;
    s->facts = so_far->n_facts;
    assert_true(so_far->tokens_prompt > 0 && s->len == 0 && s->tokens == 0 && so_far->tokens_answer <= 1);
    assert_string_equal(so_far->fallback, "");
}

static void answers_end_before_a_stop_string(void **state)
{
    static const char *const stops[] = { "no such thing", "about kites", "number" };
    inferscale_complete_options o = options();
    char want[400];
    inferscale_answer *whole, *a;
    shown seen = { .len = 0 };
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    ask_about(&t, 10);
    whole = complete(s.is, &store_anna, &t, &o);
    assert_non_null(strstr(whole->text, "about kites"));
    snprintf(want, sizeof want, "%.*s", (int)(strstr(whole->text, "about kites") - whole->text), whole->text);
    o.stop = stops;
    o.n_stop = 3;
    o.logprobs = 1;
    o.top_logprobs = 5;
    o.ask.on_text = add_text;
    o.on_token = add_token;
    o.on_plan = on_plan;
    o.ask.text_ctx = o.token_ctx = o.plan_ctx = &seen;
    a = complete(s.is, &store_anna, &t, &o);
    assert_string_equal(a->text, want);
    assert_string_equal(a->finish, "stop");
    assert_true(a->stopped_by == stops[1]);
    assert_int_equal(seen.len, strlen(want));
    assert_memory_equal(seen.text, want, seen.len);
    assert_int_equal(seen.tokens, a->n_tokens);
    assert_int_equal(seen.plans, 1);
    assert_int_equal(seen.facts, a->n_facts);
    assert_true(a->n_tokens > 0 && a->n_tokens < a->tokens_answer);
    say(&t, "assistant", a->text);
    inferscale_answer_free(a);
    ask_about(&t, 0);
    o = options();
    a = complete(s.is, &store_anna, &t, &o); /* the run had gone on behind the text: it is not used */
    assert_int_equal(resident_facts(a), 0);
    assert_int_equal(a->n_placed_kept, 1);
    inferscale_answer_free(a);
    inferscale_answer_free(whole);
    store_end(&s);
}

/* A model may tell any bytes. What a listener hears is text at every piece, and all of it is the answer. */
static int add_valid(void *ctx, const char *text, size_t len)
{
    is_buf *heard = ctx;

    assert_true(len > 0 && is_utf8_valid(text, len, NULL));
    is_buf_add(heard, text, len);
    return 0;
}

static void what_is_no_text_is_never_told(void **state)
{
    int n_mended = 0;
    store s;

    (void)state;
    store_begin(&s, "");
    for (uint64_t seed = 1; seed <= 20; seed++) {
        inferscale_complete_options o = options();
        inferscale_answer *a = NULL;
        is_buf heard = IS_BUF_INIT;

        o.prompt = "Once upon a time";
        o.ask.temperature = 1;
        o.ask.seed = seed;
        o.ask.max_tokens = 200;
        o.ask.on_text = add_valid;
        o.ask.text_ctx = &heard;
        assert_int_equal(inferscale_complete(s.is, NULL, NULL, 0, &o, &a), INFERSCALE_OK);
        assert_int_equal(strlen(a->text), heard.len);
        assert_memory_equal(a->text, heard.data, heard.len);
        n_mended += strchr(a->text, '?') != NULL;
        is_buf_free(&heard);
        inferscale_answer_free(a);
    }
    assert_true(n_mended > 0);
    store_end(&s);
}

typedef struct accepted { store *s; int times, plans; pthread_t thread; bool started; } accepted;

static void *forget_it(void *arg)
{
    forget_topic(((accepted *)arg)->s, 0);
    return NULL;
}

/* The fact of the plan goes before the first token: what was accepted is planned anew. */
static void forget_when_accepted(void *ctx)
{
    accepted *acc = ctx;
    inferscale_list *l = NULL;
    bool there = true;

    acc->times++;
    acc->started = pthread_create(&acc->thread, NULL, forget_it, acc) == 0;
    while (there) {
        OK(inferscale_ls(acc->s->is, &store_anna, INFERSCALE_FACTS, 0, 1, &l));
        there = l->n && l->items[0].id == acc->s->ids[0];
        inferscale_list_free(l);
    }
}

static void count_accepted(void *ctx)
{
    ((accepted *)ctx)->times++;
}

static void count_plan(void *ctx, const inferscale_answer *so_far)
{
    accepted *acc = ctx;

    acc->plans++;
    assert_int_equal(acc->times, 1);
    assert_false(uses(so_far, acc->s->ids[0]));
}

static void accepted_is_said_once_and_never_of_what_is_refused(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a = NULL;
    store s;
    accepted acc = { .s = &s };
    talk t = { 0 };

    (void)state;
    store_begin(&s, "");
    o.on_accepted = count_accepted;
    o.on_plan = count_plan;
    o.accepted_ctx = o.plan_ctx = &acc;
    o.grammar = "root ::= \"x\"";
    ask_about(&t, 0);
    FAILS(E_UNSUPPORTED, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    o.grammar = NULL;
    o.ask.max_tokens = 1000000;
    FAILS(E_CONTEXT, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    assert_int_equal(acc.times + acc.plans, 0);
    o.ask.max_tokens = 0;
    o.ask.k = 1;
    o.on_accepted = forget_when_accepted;
    a = complete(s.is, &store_anna, &t, &o);
    assert_true(acc.started);
    pthread_join(acc.thread, NULL);
    assert_true(acc.times == 1 && acc.plans == 1);
    assert_false(uses(a, s.ids[0]));
    inferscale_answer_free(a);
    store_end(&s);
}

static void logprobs_are_of_the_raw_distribution(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a = NULL;
    store s;

    (void)state;
    store_begin(&s, "");
    o.prompt = "Once upon a time";
    o.logprobs = 1;
    o.top_logprobs = 20;
    o.ask.temperature = 1.7;
    o.ask.seed = 5;
    o.presence_penalty = 1;
    o.ask.max_tokens = 20;
    OK(inferscale_complete(s.is, NULL, NULL, 0, &o, &a));
    assert_int_equal(a->n_tokens, a->tokens_answer);
    is_tokens ids = { 0 };
    assert_int_equal(is_profile_raw(s.is->engine, NULL, o.prompt, NULL, &ids), INFERSCALE_OK);
    is_part part = { .role = IS_ROLE_QUESTION, .source = IS_SRC_COMPUTED, .tokens = ids.ids, .n_tokens = ids.n };
    is_plan plan = { 1, &part, ids.n };
    is_run *run = NULL;
    const is_run_opts with_logits = { .want_logits = true };
    assert_int_equal(is_engine_start(s.is->engine, &plan, &with_logits, &run, NULL), INFERSCALE_OK);
    for (size_t i = 0; i < a->n_tokens; i++) {
        const uint32_t n = is_engine_describe(s.is->engine)->n_vocab;
        const float *l = is_engine_logits(s.is->engine, run);
        const inferscale_token *t = &a->tokens[i];
        long double sum = 0;
        double mass = 0;

        for (uint32_t k = 0; k < n; k++) sum += expl((long double)l[k]);
        assert_true(fabs(t->logprob - (double)((long double)l[t->id] - logl(sum))) < 1e-6);
        assert_int_equal(t->n_top, 20);
        for (size_t k = 0; k < t->n_top; k++) {
            uint32_t better = 0;

            for (uint32_t j = 0; j < n; j++) better += l[j] > l[t->top[k].id];
            assert_true(better <= k && fabs(t->top[k].logprob - (double)((long double)l[t->top[k].id] - logl(sum))) < 1e-6);
            mass += exp(t->top[k].logprob);
            for (size_t j = 0; j < k; j++) assert_int_not_equal(t->top[j].id, t->top[k].id);
        }
        assert_true(mass > 0 && mass <= 1 + 1e-9);
        assert_int_equal(is_engine_feed(s.is->engine, run, t->id), INFERSCALE_OK);
    }
    is_engine_finish(s.is->engine, run);
    is_tokens_free(&ids);
    inferscale_answer_free(a);
    store_end(&s);
}

/* ---- What is asked ------------------------------------------------------------------------------------------------------- */

static void named_facts_are_used_in_their_order(void **state)
{
    inferscale_complete_options o = options();
    int64_t ids[4];
    inferscale_answer *a = NULL;
    inferscale_event e;
    inferscale_fact f = { .text = "Ben's own.", .event_time = 1714521600 };
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    ids[0] = s.ids[7], ids[1] = s.ids[3], ids[2] = s.ids[9];
    o.ids = ids;
    o.n_ids = 3;
    ask_about(&t, 0);
    a = complete(s.is, &store_anna, &t, &o);
    assert_int_equal(a->n_facts, 3); /* not k */
    assert_int_equal(a->facts[2].id, ids[0]); /* the best stands last */
    assert_int_equal(a->facts[1].id, ids[1]);
    assert_int_equal(a->facts[0].id, ids[2]);
    say(&t, "assistant", a->text);
    inferscale_answer_free(a);
    ask_about(&t, 1);
    ids[2] = s.ids[4];
    a = complete(s.is, &store_anna, &t, &o); /* two of them stand there already */
    assert_int_equal(a->n_facts, 4);
    assert_int_equal(a->facts[3].id, ids[2]);
    inferscale_answer_free(a);
    OK(inferscale_remember(s.is, &store_ben, &f, 1, &e));
    ids[1] = e.id;
    FAILS(E_NOTFOUND, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    ids[1] = ids[0];
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    ids[1] = s.ids[3];
    forget_topic(&s, 3);
    FAILS(E_NOTFOUND, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    store_end(&s);
}

static void what_is_not_a_conversation_is_refused(void **state)
{
    static const inferscale_message wrong[][3] = {
        { { "assistant", "Hi." }, { "user", "Hi." } },
        { { "user", "Hi." }, { "assistant", "Hi." } },
        { { "user", "Hi." }, { "user", "Hi." }, { "user", "Hi." } },
        { { "user", "Hi." }, { "system", "Hi." }, { "user", "Hi." } },
        { { "system", "Hi." }, { "tool", "Hi." }, { "user", "Hi." } },
        { { "user", "Hi." }, { "assistant", "" }, { "user", "Hi." } },
        { { "user", "Hi." }, { "assistant", "\xff" }, { "user", "Hi." } },
        { { "user", NULL } },
        { { NULL, "Hi." } },
        { { "system", "Hi." } },
    };
    static const size_t n[] = { 2, 2, 3, 3, 3, 3, 3, 1, 1, 1 };
    static const char *const long_stop[] = { "" };
    inferscale_complete_options o = options();
    const inferscale_message fine = { "user", "Hi." };
    inferscale_answer *a = NULL;
    store s;

    (void)state;
    store_begin(&s, "");
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, wrong[i], n[i], NULL, &a));
        assert_true(strchr(inferscale_error(), ';') != NULL); /* the next step is named */
    }
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, NULL, 0, NULL, &a));
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, NULL, NULL));
    FAILS(E_INVALID, inferscale_complete(NULL, &store_anna, &fine, 1, NULL, &a));
    o.stop = long_stop;
    o.n_stop = 1;
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a));
    o = options();
    o.top_logprobs = 21;
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a));
    o = options();
    o.frequency_penalty = NAN;
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a));
    o = options();
    o.grammar = "root ::= \"x\"";
    FAILS(E_UNSUPPORTED, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a)); /* the mock has none */
    assert_null(a);
    store_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings_do_not_depend_on_the_pieces),
        cmocka_unit_test(answers_end_before_a_stop_string),
        cmocka_unit_test(what_is_no_text_is_never_told),
        cmocka_unit_test(accepted_is_said_once_and_never_of_what_is_refused),
        cmocka_unit_test(logprobs_are_of_the_raw_distribution),
        cmocka_unit_test(named_facts_are_used_in_their_order),
        cmocka_unit_test(what_is_not_a_conversation_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
