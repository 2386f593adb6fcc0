/* The evaluation over the mock engine, whose logits are exact: equal contexts give equal bits, others do not. So what must be
 * zero is exactly zero, and the arms' order is known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "eval/fidelity.h"
#include "eval/plain.h"
#include "eval/synth.h"
#include "eval/trace.h"
#include "eval/ttft.h"
#include "support/kit.h"

#define NEAR(a, b, tolerance)                                                                                                  \
    do {                                                                                                                       \
        double a_ = (a), b_ = (b);                                                                                             \
        if (!(fabs(a_ - b_) <= (tolerance)))                                                                                   \
            fail_msg("%s = %.17g, expected %.17g +- %g", #a, a_, b_, (double)(tolerance));                                     \
    } while (0)

static char plugins[1024];

static int find_plugins(void **state)
{
    ssize_t n = readlink("/proc/self/exe", plugins, sizeof plugins - 1);

    if (n < 0) return -1;
    plugins[n] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    return 0;
}

static inferscale_options mock_options(const char *model)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.engine = "mock";
    o.model = model;
    o.plugin_dir = plugins;
    o.n_threads = 1;
    return o;
}

/* ---- A conversation of our own ------------------------------------------------------------------------------------------- */

enum { FACTS = 12, QUESTIONS = 9, TURNS = 12 };

static locomo_turn turns[TURNS];
static locomo_observation observations[FACTS];
static locomo_qa questions[QUESTIONS];
static char dia[TURNS][8], *cited[TURNS], turn_text[TURNS][64], fact_text[FACTS][64], question_text[QUESTIONS][64];
static locomo_conversation talk = { .id = "talk-1", .turns = turns, .n_turns = TURNS, .observations = observations,
                                    .n_observations = FACTS, .qa = questions, .n_qa = QUESTIONS };
static const char *const fruits[FACTS] = { "apples", "pears", "plums", "figs", "limes", "dates", "grapes", "melons", "cherries",
                                           "quinces", "lemons", "olives" };

static int make_talk(void **state)
{
    for (int i = 0; i < TURNS; i++) {
        snprintf(dia[i], sizeof dia[i], "D1:%d", i + 1);
        cited[i] = dia[i];
        snprintf(turn_text[i], sizeof turn_text[i], "Today I bought %s.", fruits[i % FACTS]);
        turns[i] = (locomo_turn){ .dia_id = dia[i], .speaker = "Ann", .text = turn_text[i], .caption = "", .session = 1,
                                  .time = 1672567200 };
    }
    for (int i = 0; i < FACTS; i++) {
        snprintf(fact_text[i], sizeof fact_text[i], "Ann bought %s at the market.", fruits[i]);
        observations[i] = (locomo_observation){ .speaker = "Ann", .text = fact_text[i], .dia_ids = &cited[i], .n_dia_ids = 1,
                                                .session = 1, .time = 1672567200 + i * 86400 };
    }
    for (int i = 0; i < QUESTIONS; i++) {
        snprintf(question_text[i], sizeof question_text[i], "Where did Ann buy %s?", fruits[i]);
        questions[i] = (locomo_qa){ .question = question_text[i], .answer = "at the market", .evidence = &cited[i],
                                    .n_evidence = 1, .category = i == QUESTIONS - 1 ? 5 : 1 + i % 4 };
    }
    return find_plugins(state);
}

static const locomo_conversation *const one_talk[] = { &talk };

static fidelity_options small_study(uint32_t k)
{
    fidelity_options o = { .conversations = one_talk, .n_conversations = 1, .n_policies = 2, .n_repairs = 2, .k = k,
                           .n_questions = 5, .n_tokens = 6, .n_orders = 3, .floor_batch = 7, .method = INFERSCALE_LEXICAL,
                           .gold = true, .seed = 3 };

    KIT_OK(fidelity_variant_parse("header", &o.policies[0]));
    KIT_OK(fidelity_variant_parse("facts:2", &o.policies[1]));
    o.repairs[1] = k;
    return o;
}

static lab *open_lab(const char *model)
{
    inferscale_options options = mock_options(model);
    lab *l = NULL;

    KIT_OK(lab_open(&options, "tester", &l));
    return l;
}

static const fidelity_row *row_of(const fidelity_row *rows, size_t n, const char *arm, const char *policy, uint32_t repair)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].arm, arm) == 0 && (!policy || strcmp(rows[i].policy, policy) == 0) && rows[i].repair == repair)
            return &rows[i];
    fail_msg("no row %s %s %u", arm, policy ? policy : "", repair);
    return NULL;
}

/* ---- Traces -------------------------------------------------------------------------------------------------------------- */

static void test_trace(void **state)
{
    lab *l = open_lab("mock");
    is_engine *e;
    is_planned *memory = NULL, *none = NULL;
    is_plan_opts with = { .with_memory = true, .n_ctx_left = 2000 }, without = { .n_ctx_left = 2000 };
    is_run_opts plain = { 0 }, batched = { .batch = 3, .no_prefix_cache = true };
    is_plan_fact fact = { .id = 1, .version = 1 };
    inferscale_item item = { .text = "Ann bought figs at the market.", .event_time = 1672567200, .dated = 1 };
    is_tokens q = { 0 };
    trace *t = NULL;
    trace_distance d;
    uint32_t n;
    double greedy, other;

    KIT_OK(is_handle_engine(l->is));
    e = l->is->engine;
    KIT_OK(is_profile_question(e, NULL, "Where did Ann buy figs?", &q));
    KIT_OK(is_profile_fact(e, NULL, &item, &fact.tokens));
    KIT_OK(is_plan_new(l->is->profile, &fact, 1, &q, &with, &memory));
    KIT_OK(is_plan_new(l->is->profile, NULL, 0, &q, &without, &none));
    KIT_OK(trace_new(e, 8, &t));
    KIT_FAILS(INFERSCALE_E_INVALID, trace_compare(t, is_planned_plan(memory), &plain, &d));
    KIT_OK(trace_record(t, is_planned_plan(memory), &plain));
    is_tokens answer = { .ids = (int32_t *)trace_answer(t, &n), .n = 0 };
    assert_int_equal(n, 8);
    KIT_OK(trace_compare(t, is_planned_plan(memory), &batched, &d));
    assert_true(d.kl == 0 && d.kl_first == 0 && d.top1 == 1);
    KIT_OK(trace_compare(t, is_planned_plan(none), &plain, &d));
    assert_true(d.kl > 0 && d.kl_first > 0);
    /* The greedy answer is likelier where it came from. */
    answer.n = n;
    KIT_OK(trace_nll(t, is_planned_plan(memory), &plain, &answer, &greedy));
    KIT_OK(trace_nll(t, is_planned_plan(none), &plain, &answer, &other));
    assert_true(greedy > 0 && greedy < other);
    answer.n = 0;
    KIT_FAILS(INFERSCALE_E_INVALID, trace_nll(t, is_planned_plan(memory), &plain, &answer, &other));
    int32_t outside = 1 << 30;
    answer = (is_tokens){ .ids = &outside, .n = 1 };
    KIT_FAILS(INFERSCALE_E_INVALID, trace_nll(t, is_planned_plan(memory), &plain, &answer, &other));
    trace_free(t);
    is_planned_free(memory);
    is_planned_free(none);
    is_tokens_free(&q);
    lab_close(l);
}

/* ---- Fidelity ------------------------------------------------------------------------------------------------------------ */

static void test_fidelity_arms(void **state)
{
    fidelity_options o = small_study(4);
    lab *l = open_lab("mock");
    fidelity_row rows[FIDELITY_ARMS];
    fidelity *f = NULL;
    size_t n;

    KIT_OK(fidelity_run(l, &o, &f));
    assert_int_equal(f->n_questions, 5);
    assert_false(f->cancelled);
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    assert_int_equal(n, 9); /* 2 policies x 2 repairs, C, D, N, S, S_free */
    const fidelity_row *stitched = row_of(rows, n, "B", "header", 0), *repaired = row_of(rows, n, "B", "header", 4);
    /* The same text in other batches, and with every fact computed, is the text twin itself: zero, not nearly so. */
    assert_true(row_of(rows, n, "N", NULL, 0)->kl_mean == 0);
    assert_true(repaired->kl_mean == 0 && repaired->top1 == 1 && repaired->nll_delta == 0 && repaired->ratio_free == 0);
    assert_true(row_of(rows, n, "B", "facts:2", 4)->kl_mean == 0);
    /* Facts that did not see each other are not. */
    assert_true(stitched->kl_mean > 0 && stitched->kl.lo <= stitched->kl_mean && stitched->kl_mean <= stitched->kl.hi);
    assert_true(row_of(rows, n, "S", NULL, 0)->kl_mean > 0);
    assert_true(row_of(rows, n, "C", NULL, 0)->kl_mean > 0);
    assert_true(row_of(rows, n, "D", NULL, 0)->kl_mean > 0);
    /* A yardstick is one of itself, and its interval too: resampled together. */
    const fidelity_row *order = row_of(rows, n, "S_free", NULL, 0);
    NEAR(order->ratio_free, 1, 1e-12);
    NEAR(order->ratio_free_i.lo, 1, 1e-12);
    NEAR(order->ratio_free_i.hi, 1, 1e-12);
    NEAR(stitched->ratio_free, stitched->kl_mean / order->kl_mean, 1e-12);
    assert_true(stitched->cost >= 1 && row_of(rows, n, "B", "facts:2", 0)->cost > stitched->cost);
    assert_true(f->prompt_tokens > f->fact_tokens && f->fact_tokens > 4);
    fidelity_free(f);
    lab_close(l);
}

static void test_one_fact_after_the_header_is_exact(void **state)
{
    fidelity_options o = small_study(1);
    lab *l = open_lab("mock");
    fidelity_row rows[FIDELITY_ARMS];
    fidelity *f = NULL;
    size_t n;

    o.n_repairs = 1;
    KIT_OK(fidelity_run(l, &o, &f));
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    assert_true(row_of(rows, n, "B", "header", 0)->kl_mean == 0);
    assert_true(row_of(rows, n, "B", "facts:2", 0)->kl_mean > 0);
    /* One fact cannot be reordered: no yardstick, so no ratio. */
    assert_true(row_of(rows, n, "S_free", NULL, 0)->kl_mean == 0);
    assert_true(isnan(row_of(rows, n, "B", "facts:2", 0)->ratio_free) && isnan(row_of(rows, n, "C", NULL, 0)->ratio_last));
    fidelity_free(f);
    lab_close(l);
}

static void test_fidelity_repeats(void **state)
{
    fidelity_options o = small_study(3);
    double first[3][5];

    for (int i = 0; i < 3; i++) {
        lab *l = open_lab("mock");
        fidelity *f = NULL;

        o.seed = i == 2 ? 4 : 3;
        KIT_OK(fidelity_run(l, &o, &f));
        assert_int_equal(f->n_questions, 5);
        memcpy(first[i], f->arms[f->n_arms - 1].kl, sizeof first[i]);
        fidelity_free(f);
        lab_close(l);
    }
    assert_memory_equal(first[0], first[1], sizeof first[0]);
    assert_true(memcmp(first[0], first[2], sizeof first[0]) != 0);
}

/* Random orders in what is encoded come from the seed, not from a store's secret: two stores measure the same, and know that they asked the
 * same. */
static void test_random_orders_are_of_the_seed(void **state)
{
    fidelity_options o = small_study(4);
    fidelity *f[3] = { NULL };
    bool moved = false;

    KIT_OK(fidelity_variant_parse("page:4+1/2", &o.policies[0]));
    KIT_OK(fidelity_variant_parse("company:2", &o.policies[1]));
    o.n_repairs = 1;
    for (int i = 0; i < 3; i++) {
        lab *l = open_lab("mock");

        o.seed = i == 2 ? 4 : 3;
        KIT_OK(fidelity_run(l, &o, &f[i]));
        lab_close(l);
    }
    assert_int_equal(f[0]->n_questions, 5);
    for (size_t q = 0; q < 5; q++) {
        const fidelity_question *a = &f[0]->questions[q], *b = &f[1]->questions[q];

        assert_int_equal(a->index, b->index);
        assert_memory_equal(a->prompts, b->prompts, sizeof a->prompts);
        assert_memory_equal(a->answer, b->answer, sizeof a->answer);
        for (size_t arm = 0; arm < f[0]->n_arms; arm++) {
            assert_memory_equal(&f[0]->arms[arm].kl[q], &f[1]->arms[arm].kl[q], sizeof(double));
            moved = moved || (f[0]->arms[arm].policy && f[0]->arms[arm].kl[q] > 0);
        }
        for (size_t other = 0; other < q; other++)
            assert_true(memcmp(a->prompts, f[0]->questions[other].prompts, sizeof a->prompts) != 0);
        /* Another seed permutes otherwise. */
        for (size_t other = 0; other < 5; other++)
            assert_true(memcmp(a->prompts, f[2]->questions[other].prompts, sizeof a->prompts) != 0);
    }
    assert_true(moved);
    for (int i = 0; i < 3; i++) fidelity_free(f[i]);
}

/* A fact that stands first because it is exact there may be one of the m best in another arm, which computes it at the end: no arm may begin
 * with it then, or they would see different tokens. */
static void test_repaired_facts_do_not_begin(void **state)
{
    for (uint32_t k = 2; k <= 5; k++) {
        fidelity_options o = small_study(k);
        lab *l = open_lab("mock");
        fidelity *f = NULL;

        KIT_OK(fidelity_variant_parse("page:4+1/2", &o.policies[0]));
        o.n_policies = 1;
        o.n_questions = QUESTIONS;
        o.n_repairs = 3;
        o.repairs[1] = 1;
        o.repairs[2] = k - 1;
        o.client_system = k == 4 ? "You are somebody else's assistant." : NULL;
        KIT_OK(fidelity_run(l, &o, &f));
        fidelity_free(f);
        lab_close(l);
    }
}

static void test_arms_can_be_left_out(void **state)
{
    fidelity_options o = small_study(4);
    lab *l = open_lab("mock");
    fidelity_row rows[FIDELITY_ARMS];
    fidelity *f = NULL;
    size_t n;

    o.skip = FIDELITY_SKIP_C | FIDELITY_SKIP_S;
    o.floor_every = 2;
    o.gold = false;
    KIT_OK(fidelity_run(l, &o, &f));
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    assert_int_equal(n, 6); /* 2 policies x 2 repairs, N, S_free */
    assert_int_equal(row_of(rows, n, "N", NULL, 0)->n, 3);
    assert_true(isnan(row_of(rows, n, "N", NULL, 0)->each[1]) && row_of(rows, n, "N", NULL, 0)->each[2] == 0);
    assert_true(row_of(rows, n, "B", "header", 0)->ratio_free > 0 && isnan(row_of(rows, n, "B", "header", 0)->ratio_last));
    assert_true(isnan(row_of(rows, n, "B", "header", 0)->memory_kept));
    fidelity_free(f);
    lab_close(l);
}

static void test_questions_are_of_categories_1_to_4(void **state)
{
    fidelity_options o = small_study(2);
    lab *l = open_lab("mock");
    fidelity *f = NULL;

    o.n_questions = 1000;
    o.n_policies = o.n_repairs = 1;
    KIT_OK(fidelity_run(l, &o, &f));
    assert_int_equal(f->n_questions, QUESTIONS - 1);
    fidelity_free(f);
    o.k = 1000;
    KIT_FAILS(INFERSCALE_E_INVALID, fidelity_run(l, &o, &f));
    assert_null(f);
    lab_close(l);
}

/* Stops after a number of steps. */
typedef struct stopper { uint64_t at; volatile int cancel; } stopper;
static int stop_at(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    stopper *s = ctx;

    assert_true(done <= total);
    assert_true(what[0] != 0);
    if (done >= s->at) s->cancel = 1;
    return 0;
}

static void test_cancelling_keeps_whole_questions(void **state)
{
    fidelity_options o = small_study(2);
    bool kept_some = false, kept_none = false;

    o.n_repairs = 1;
    o.on_progress = stop_at;
    for (uint64_t at = 1; at < 40; at += 3) {
        stopper s = { .at = at };
        lab *l = open_lab("mock");
        fidelity *f = NULL;
        is_status st;

        o.cancel = &s.cancel;
        o.progress_ctx = &s;
        st = fidelity_run(l, &o, &f);
        if (st == INFERSCALE_OK) {
            assert_true(f->n_questions >= 1 && (f->n_questions == 5 || f->cancelled));
            for (size_t i = 0; i < f->n_questions; i++) assert_false(isnan(f->arms[f->n_arms - 1].kl[i]));
            kept_some = kept_some || f->cancelled;
        } else {
            assert_int_equal(st, INFERSCALE_E_CANCELLED);
            assert_null(f);
            kept_none = true;
        }
        fidelity_free(f);
        lab_close(l);
    }
    assert_true(kept_some && kept_none);
}

static void test_fidelity_failures(void **state)
{
    static const char *const calls[] = { "tokenize", "capture", "start", "feed" };
    fidelity_options o = small_study(2);
    fidelity *f = NULL;
    lab *l = open_lab("mock:noinject");

    KIT_FAILS(INFERSCALE_E_UNSUPPORTED, fidelity_run(l, &o, &f));
    lab_close(l);
    for (size_t i = 0; i < 4; i++) {
        for (int nth = 1; nth < 50; nth += 12) {
            char model[64];
            is_status st;

            snprintf(model, sizeof model, "mock:fail-%s=%d", calls[i], nth);
            l = open_lab(model);
            st = fidelity_run(l, &o, &f);
            assert_true(st == INFERSCALE_OK || st == INFERSCALE_E_ENGINE);
            assert_true(nth > 1 || st == INFERSCALE_E_ENGINE);
            assert_true((f != NULL) == (st == INFERSCALE_OK));
            fidelity_free(f);
            lab_close(l);
        }
    }
}

/* ---- Behind a client's system text --------------------------------------------------------------------------------------- */

static const fidelity_row *client_row(const fidelity_row *rows, size_t n, const char *arm, const char *policy, uint32_t repair)
{
    for (size_t i = 0; i < n; i++)
        if (rows[i].client && strcmp(rows[i].arm, arm) == 0 && (!policy || strcmp(rows[i].policy, policy) == 0) && rows[i].repair == repair)
            return &rows[i];
    fail_msg("no row %s %s %u behind the client's system text", arm, policy ? policy : "", repair);
    return NULL;
}

/* One fact behind the header that it was encoded behind is the text twin itself; behind another it is not. So an arm with the other's
 * rows, or one measured against the other's twin, would show. */
static void test_rows_of_the_clients_header_match_and_ours_do_not(void **state)
{
    fidelity_options o = small_study(1);
    lab *l = open_lab("mock");
    fidelity_row rows[FIDELITY_ARMS];
    fidelity *f = NULL;
    size_t n;

    KIT_OK(fidelity_variant_parse("F1:facts:2", &o.policies[o.n_policies++]));
    o.client_system = "You are a parrot. Speak like one.";
    KIT_OK(fidelity_run(l, &o, &f));
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    assert_true(client_row(rows, n, "matching", "header", 0)->kl_mean == 0 && client_row(rows, n, "matching", "header", 0)->top1 == 1);
    assert_true(client_row(rows, n, "generic", "header", 0)->kl_mean > 0);
    assert_true(client_row(rows, n, "matching", "facts:2", 0)->kl_mean > 0);
    /* The first fact's rows behind the bare header are exact behind their own alone, and behind another they are not taken. */
    assert_true(row_of(rows, n, "B", "F1:facts:2", 0)->kl_mean == 0 && client_row(rows, n, "matching", "F1:facts:2", 0)->kl_mean == 0);
    assert_true(client_row(rows, n, "generic", "F1:facts:2", 0)->kl_mean == client_row(rows, n, "generic", "facts:2", 0)->kl_mean);
    /* With the fact computed there is nothing left of either header's rows. */
    assert_true(client_row(rows, n, "generic", "header", 1)->kl_mean == 0 && client_row(rows, n, "matching", "header", 1)->kl_mean == 0);
    assert_true(client_row(rows, n, "N", NULL, 0)->kl_mean == 0 && client_row(rows, n, "C", NULL, 0)->kl_mean > 0);
    assert_true(row_of(rows, n, "B", "header", 0)->kl_mean == 0); /* ours is what it is without a client */
    fidelity_free(f);
    lab_close(l);
}

/* Many facts, and a policy whose first fact has rows behind the bare header: all arms hold the same tokens (else the run fails), the
 * yardstick is that of the client's own prompt, and the arms of ours are as without a client. */
static void test_a_client_has_arms_of_its_own(void **state)
{
    fidelity_options o = small_study(4);
    fidelity_row rows[FIDELITY_ARMS], alone[FIDELITY_ARMS];
    fidelity *f = NULL, *f_alone = NULL;
    lab *l = open_lab("mock");
    size_t n, n_alone, of_client = 0;

    KIT_OK(fidelity_variant_parse("page:4/2", &o.policies[1]));
    o.n_repairs = 1;
    KIT_OK(fidelity_run(l, &o, &f_alone));
    KIT_OK(fidelity_rows(f_alone, 1, alone, &n_alone));
    lab_close(l);
    l = open_lab("mock");
    o.client_system = "You are a parrot. Speak like one.";
    KIT_OK(fidelity_run(l, &o, &f));
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    assert_int_equal(n, n_alone + 8); /* 2 policies generic and matching, C, N, S, S_free */
    for (size_t i = 0; i < n; i++) of_client += rows[i].client;
    assert_int_equal(of_client, 8);
    for (size_t i = 0; i < n_alone; i++) {
        assert_string_equal(rows[i].arm, alone[i].arm);
        assert_true(!rows[i].client && rows[i].n == alone[i].n);
        /* Which facts share a page is drawn with the partition's key, which is another in each store. */
        if (alone[i].policy == NULL || strcmp(alone[i].policy, "header") == 0) assert_true(rows[i].kl_mean == alone[i].kl_mean);
    }
    const fidelity_row *order = client_row(rows, n, "S_free", NULL, 0), *generic = client_row(rows, n, "generic", "page:4/2", 0);
    const fidelity_row *matching = client_row(rows, n, "matching", "page:4/2", 0);
    NEAR(order->ratio_free, 1, 1e-12);
    assert_true(order->kl_mean > 0 && order->kl_mean != row_of(rows, n, "S_free", NULL, 0)->kl_mean);
    NEAR(generic->ratio_free, generic->kl_mean / order->kl_mean, 1e-12);
    NEAR(matching->ratio_free, matching->kl_mean / order->kl_mean, 1e-12);
    assert_true(generic->kl_mean > 0 && matching->kl_mean > 0 && generic->kl_mean != matching->kl_mean);
    assert_true(generic->cost >= 1 && matching->cost >= 1);
    fidelity_free(f);
    fidelity_free(f_alone);
    lab_close(l);
}

/* A client whose system text is ours is no other client: the same rows, the same twin. */
static void test_our_own_text_from_a_client(void **state)
{
    fidelity_options o = small_study(3);
    lab *l = open_lab("mock");
    fidelity_row rows[FIDELITY_ARMS];
    fidelity *f = NULL;
    size_t n;

    o.client_system = "You are a helpful assistant.";
    KIT_OK(fidelity_run(l, &o, &f));
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    for (size_t p = 0; p < o.n_policies; p++) {
        const fidelity_row *own = row_of(rows, n, "B", o.policies[p].name, 0);

        assert_true(own->kl_mean > 0);
        assert_true(client_row(rows, n, "generic", o.policies[p].name, 0)->kl_mean == own->kl_mean);
        assert_true(client_row(rows, n, "matching", o.policies[p].name, 0)->kl_mean == own->kl_mean);
    }
    fidelity_free(f);
    o.client_system = "\xff";
    KIT_FAILS(INFERSCALE_E_INVALID, fidelity_run(l, &o, &f));
    lab_close(l);
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

enum { Q = 100 };

static void set_arm(fidelity *f, const char *name, const char *policy, double kl, double nll)
{
    fidelity_arm *a = &f->arms[f->n_arms++];

    *a = (fidelity_arm){ .policy = policy, .cost = 2, .kl = is_calloc(4 * Q, sizeof(double)) };
    snprintf(a->name, sizeof a->name, "%s", name);
    a->kl_first = a->kl + Q, a->top1 = a->kl + 2 * Q, a->nll = a->kl + 3 * Q;
    for (int i = 0; i < Q; i++) a->kl[i] = kl * (1 + i % 3), a->kl_first[i] = kl, a->top1[i] = i % 2, a->nll[i] = nll;
}

static fidelity *known_study(double floor)
{
    fidelity *f = is_calloc(1, sizeof *f);

    f->n_questions = Q;
    f->n_conversations = 1;
    f->group = is_calloc(Q, sizeof *f->group);
    set_arm(f, "A", NULL, 0, 1.0);
    set_arm(f, "B", "header", 0.3, 1.5);
    set_arm(f, "C", NULL, 0.6, 3.0);
    set_arm(f, "N", NULL, floor, NAN);
    set_arm(f, "S", NULL, 0.05, NAN);
    set_arm(f, "S_free", NULL, 0.1, NAN);
    return f;
}

static void test_rows(void **state)
{
    fidelity *f = known_study(0.001);
    fidelity_row rows[FIDELITY_ARMS];
    size_t n;

    f->arms[1].kl[0] = NAN; /* one question not measured: left out of num and den alike, so the ratio stays exact */
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    const fidelity_row *b = row_of(rows, n, "B", "header", 0);
    assert_int_equal(b->n, Q - 1);
    NEAR(b->ratio_free, 3, 1e-12);
    NEAR(b->ratio_free_i.lo, 3, 1e-12);
    NEAR(b->ratio_free_i.hi, 3, 1e-12);
    NEAR(b->ratio_last, 6, 1e-12);
    NEAR(b->nll_delta, 0.5, 1e-12);
    NEAR(b->memory_kept, 0.75, 1e-12);
    NEAR(b->top1, 0.5, 0.01);
    NEAR(b->kl_median, 0.6, 1e-12);
    NEAR(b->kl_first, 0.3, 1e-12);
    NEAR(b->cost, 2, 0);
    NEAR(row_of(rows, n, "C", NULL, 0)->memory_kept, 0, 1e-12);
    assert_true(isnan(row_of(rows, n, "S", NULL, 0)->nll_delta) && isnan(row_of(rows, n, "S", NULL, 0)->cost));
    fidelity_free(f);
}

static void test_rows_are_void_near_the_floor(void **state)
{
    fidelity *f = known_study(0.015); /* S: 0.05 < 5 x 0.015 < S_free: 0.1 */
    fidelity_row rows[FIDELITY_ARMS];
    size_t n;

    for (int i = 0; i < Q; i++) f->arms[2].nll[i] = i % 2 ? 0.5 : 1.5; /* C - A: mean 0, so no memory kept can be told */
    KIT_OK(fidelity_rows(f, 1, rows, &n));
    const fidelity_row *b = row_of(rows, n, "B", "header", 0);
    NEAR(b->ratio_free, 3, 1e-12);
    assert_true(isnan(b->ratio_last) && isnan(b->ratio_last_i.lo));
    assert_true(isnan(b->memory_kept));
    fidelity_free(f);
}

/* ---- Invented facts ------------------------------------------------------------------------------------------------------ */

static void test_synth(void **state)
{
    enum { MANY = 500 };
    static char *a[MANY], *b[MANY];
    static int64_t ta[MANY], tb[MANY];
    char q[SYNTH_QUESTION], q2[SYNTH_QUESTION];

    KIT_OK(synth_facts(1, MANY, a, ta));
    KIT_OK(synth_facts(1, MANY, b, tb));
    for (int i = 0; i < MANY; i++) {
        assert_string_equal(a[i], b[i]);
        assert_true(ta[i] == tb[i] && (i == 0 || ta[i] >= ta[i - 1]));
        assert_null(strpbrk(a[i], "{}"));
        assert_true(strlen(a[i]) > 40 && strlen(a[i]) < 120);
        for (int j = 0; j < i; j++) assert_true(strcmp(a[i], a[j]) != 0);
        is_free(b[i]);
    }
    KIT_OK(synth_facts(2, MANY, b, tb));
    assert_true(strcmp(a[0], b[0]) != 0 || strcmp(a[1], b[1]) != 0);
    for (int i = 0; i < MANY; i++) is_free(a[i]), is_free(b[i]);
    synth_question(1, q);
    synth_question(2, q2);
    assert_true(strchr(q, '{') == NULL && q[strlen(q) - 1] == '?' && strcmp(q, q2) != 0);
    is_mem_fail_at(3);
    KIT_FAILS(INFERSCALE_E_NOMEM, synth_facts(1, MANY, a, ta));
    is_mem_fail_at(0);
    assert_null(a[0]);
}

/* ---- The prompt of a usual stack ----------------------------------------------------------------- */

/* Appends the text's tokens to ids[*n]. */
static void add_tokens(is_engine *e, const char *text, bool special, bool bos, int32_t *ids,
                       uint32_t *n)
{
    int32_t *part = NULL;
    uint32_t n_part = 0;

    KIT_OK(is_engine_tokenize(e, NULL, text, strlen(text), special, bos, &part, &n_part));
    memcpy(ids + *n, part, n_part * sizeof *part);
    *n += n_part;
    is_free(part);
}

static uint32_t plain_expected(is_engine *e, const char *system, const char *question, int32_t *ids)
{
    const is_chat_format *c = is_engine_chat(e);
    uint32_t n = 0;

    add_tokens(e, c->system_open, true, true, ids, &n);
    add_tokens(e, system, false, false, ids, &n);
    add_tokens(e, c->system_close, true, false, ids, &n);
    add_tokens(e, c->user_open, true, false, ids, &n);
    add_tokens(e, question, false, false, ids, &n);
    add_tokens(e, c->user_close, true, false, ids, &n);
    add_tokens(e, c->assistant_open, true, false, ids, &n);
    return n;
}

/* Starts the prompt and says what was computed of it. */
static is_run_stats run_plain(is_engine *e, const plain_prompt *p)
{
    const is_run_opts opts = { .cache_parts = 1 };
    is_run_stats stats;
    is_run *run = NULL;

    KIT_OK(is_engine_start(e, &p->plan, &opts, &run, &stats));
    is_engine_finish(e, run);
    return stats;
}

static void test_plain_prompt(void **state)
{
    static const plain_fact facts[] = { { "Ann bought figs.", 1672567200 },
                                        { "Ann likes plums.", 0 } },
                            others[] = { { "Bob bought limes.", 0 } };
    static const char system[] = "You are a helpful assistant.\n\nUser memories:\n"
                                 "- 1 January 2023: Ann bought figs.\n- Ann likes plums.";
    lab *l = open_lab("mock");
    int32_t want[512];
    is_run_stats stats;
    plain_prompt p, q, none;
    is_engine *e;
    uint32_t n;

    KIT_OK(is_handle_engine(l->is));
    e = l->is->engine;
    KIT_OK(plain_prompt_new(e, NULL, facts, 2, "What fruit?", &p));
    n = plain_expected(e, system, "What fruit?", want);
    assert_int_equal(p.tokens.n, n);
    assert_memory_equal(p.tokens.ids, want, n * sizeof *want);
    KIT_OK(plain_prompt_new(e, NULL, NULL, 0, "What fruit?", &none));
    n = plain_expected(e, "You are a helpful assistant.", "What fruit?", want);
    assert_int_equal(none.tokens.n, n);
    assert_memory_equal(none.tokens.ids, want, n * sizeof *want);

    /* Behind another user's prompt the system text is there and all facts are computed. */
    KIT_OK(plain_prompt_new(e, NULL, others, 1, "And Bob?", &q));
    n = 0;
    add_tokens(e, is_engine_chat(e)->system_open, true, true, want, &n);
    add_tokens(e, "You are a helpful assistant.\n\nUser memories:\n- ", false, false, want, &n);
    assert_in_range(p.n_shared, n - 2, n);
    run_plain(e, &q);
    stats = run_plain(e, &p);
    assert_int_equal(stats.tokens_resident, p.n_shared);
    assert_int_equal(stats.tokens_computed, p.tokens.n - p.n_shared);
    plain_prompt_free(&p);
    plain_prompt_free(&q);
    plain_prompt_free(&none);
    lab_close(l);
}

/* ---- Time to first token ------------------------------------------------------------------------------------------------- */

static void test_ttft_rows(void **state)
{
    enum { MEMORY = 24 };
    static char *texts[MEMORY];
    static int64_t times[MEMORY];
    char question[SYNTH_QUESTION];
    ttft_options o = { .store = mock_options("mock"), .times = times, .n_facts = MEMORY, .k = { 0, 2, 6 }, .n_k = 3, .runs = 3 };
    inferscale_model_info info;
    ttft_row rows[3 * TTFT_VAULTS];
    size_t n = 0;

    KIT_OK(synth_facts(1, MEMORY, texts, times));
    synth_question(1, question);
    o.texts = (const char *const *)texts;
    o.question = question;
    KIT_OK(ttft_run(&o, rows, &n, &info));
    assert_int_equal(n, 9);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(rows[i].k, o.k[i / 3]);
        assert_int_equal(rows[i].n, 3);
        assert_int_equal(rows[i].fact_tokens, rows[i / 3 * 3].fact_tokens);
        assert_true((rows[i].k == 0) == (rows[i].fact_tokens == 0));
        assert_true(rows[i].question_tokens > 0 && rows[i].text_ms > 0 && rows[i].injected_ms > 0 && rows[i].floor_ms > 0);
        assert_true(rows[i].injected_lo <= rows[i].injected_ms && rows[i].injected_ms <= rows[i].injected_hi);
        assert_true(rows[i].injected_ms >= rows[i].embed_ms + rows[i].recall_ms);
        assert_true(rows[i].plain_ms > 0 && rows[i].text_batch > 0);
        /* Text computes facts and question; plain all but what another user's prompt shares. */
        assert_int_equal(rows[i].text_computed, rows[i].fact_tokens + rows[i].question_tokens);
        assert_true(rows[i].plain_computed < rows[i].plain_tokens);
        assert_true(rows[i].plain_computed > rows[i].fact_tokens - 3 * rows[i].k);
        assert_true(rows[i].text_over_injected.in.lo <= rows[i].text_over_injected.is);
        assert_true(rows[i].plain_over_injected.is <= rows[i].plain_over_injected.in.hi);
    }
    assert_string_equal(rows[3].vault, "ram");
    assert_string_equal(rows[4].vault, "page_cache");
    assert_string_equal(rows[5].vault, "cold");
    assert_true(rows[6].fact_tokens > rows[3].fact_tokens);

    o.k[2] = MEMORY + 1; /* more than there are */
    KIT_FAILS(INFERSCALE_E_INVALID, ttft_run(&o, rows, &n, &info));
    o.k[2] = 6;
    o.store.model = "mock:noinject";
    KIT_FAILS(INFERSCALE_E_UNSUPPORTED, ttft_run(&o, rows, &n, &info));
    for (int i = 0; i < MEMORY; i++) is_free(texts[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_fidelity_arms),
        cmocka_unit_test(test_one_fact_after_the_header_is_exact),
        cmocka_unit_test(test_fidelity_repeats),
        cmocka_unit_test(test_random_orders_are_of_the_seed),
        cmocka_unit_test(test_repaired_facts_do_not_begin),
        cmocka_unit_test(test_arms_can_be_left_out),
        cmocka_unit_test(test_questions_are_of_categories_1_to_4),
        cmocka_unit_test(test_cancelling_keeps_whole_questions),
        cmocka_unit_test(test_fidelity_failures),
        cmocka_unit_test(test_rows_of_the_clients_header_match_and_ours_do_not),
        cmocka_unit_test(test_a_client_has_arms_of_its_own),
        cmocka_unit_test(test_our_own_text_from_a_client),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_are_void_near_the_floor),
        cmocka_unit_test(test_synth),
        cmocka_unit_test(test_plain_prompt),
        cmocka_unit_test(test_ttft_rows),
    };
    return cmocka_run_group_tests(tests, make_talk, NULL);
}
