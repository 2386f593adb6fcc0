/* The audit: its numbers are those of the comparison made by hand along the same tokens; what is forgotten or changed while it waits is
 * dropped before the call returns; questions come first; little waits, and what is not done is counted by why. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "api/handle.h"
#include "api/variant.h"
#include "base/gate.h"
#include "base/mem.h"
#include "eval/twin.h"
#include "serve/audit.h"
#include "support/exposition.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

enum { PATIENCE_MS = 60000 };

typedef struct audited {
    char *home;
    is_config config;
    is_server s;
} audited;

/* options NULL: the mock engine on a filled store. */
static void begin(audited *t, double share, const inferscale_options *options)
{
    memset(t, 0, sizeof *t);
    t->home = options ? NULL : scratch_make();
    t->config.audit = share;
    t->s.config = &t->config;
    if (options) {
        OK(inferscale_open(&t->s.is, options));
    } else {
        t->s.is = store_open(t->home, NULL, NULL, false);
        store_fill(t->s.is, 16, true);
    }
    OK(is_metrics_new(&t->s.metrics));
    OK(is_audit_start(&t->s));
}

static void end(audited *t)
{
    is_audit_stop(&t->s);
    is_metrics_free(t->s.metrics);
    inferscale_close(t->s.is);
    if (t->home) scratch_remove(t->home);
}

/* One answer of anna's; its tokens are in it. */
static inferscale_answer *ask(audited *t, int mode, uint32_t k, const char *question)
{
    const inferscale_message m = { "user", question };
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.ask.mode = mode;
    o.ask.k = k;
    o.ask.max_tokens = 6;
    o.logprobs = 1;
    OK(inferscale_complete(t->s.is, &store_anna, &m, 1, &o, &a));
    return a;
}

static void ask_and_drop(audited *t, int mode, uint32_t k, const char *question)
{
    inferscale_answer_free(ask(t, mode, k, question));
}

static json_int_t skipped(json_t *o, const char *why)
{
    return json_integer_value(json_object_get(json_object_get(o, "skipped"), why));
}

static json_int_t all_skipped(json_t *o)
{
    const char *key;
    json_t *v;
    json_int_t n = 0;

    json_object_foreach(json_object_get(o, "skipped"), key, v) n += json_integer_value(v);
    return n;
}

static json_int_t count_of(json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static double number(json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}

/* Waits until n answers that were chosen, n < 0: all of them, have come to an end. json_decref. */
static json_t *wait_for(audited *t, json_int_t n)
{
    for (int ms = 0; ms < PATIENCE_MS; ms += 5) {
        const struct timespec pause = { 0, 5000000 };
        json_t *o = is_audit_json(&t->s);

        assert_non_null(o);
        if (count_of(o, "done") + count_of(o, "failed") + all_skipped(o) >= (n < 0 ? count_of(o, "chosen") : n)) {
            assert_int_equal(count_of(o, "chosen"), count_of(o, "done") + count_of(o, "failed") + all_skipped(o) + count_of(o, "waiting"));
            if (count_of(o, "failed")) fail_msg("failed: %s", json_string_value(json_object_get(o, "last_error")));
            return o;
        }
        if (ms == PATIENCE_MS - 5) json_dumpf(o, stderr, 0);
        json_decref(o);
        nanosleep(&pause, NULL);
    }
    fail_msg("%d audits did not come to an end", (int)n);
    return NULL;
}

/* ---- The numbers ----------------------------------------------------------------------------------------------------------- */

/* The plan of a first turn made by hand: the facts the answer used, in the order it used them, from the rows that serve them. */
static void by_hand(inferscale *is, const inferscale_answer *a, const char *question, bool inject, const uint32_t *order, is_planned **out)
{
    is_plan_fact *facts = is_calloc(a->n_facts + 1, sizeof *facts);
    is_plan_opts opts = { .with_memory = true, .n_ctx_left = is_engine_describe(is->engine)->n_ctx - 64 };
    is_partition p;
    is_tokens q = { 0 };
    is_unusable n_bad = { 0 };

    OK(is_bank_partition(is->bank, &store_anna, false, &p));
    for (size_t i = 0; i < a->n_facts; i++) {
        size_t from = a->n_facts - 1 - i; /* best first, as plans are asked for; the answer has the best one last */
        const inferscale_used *u = &a->facts[order ? order[from] : from];
        const is_dep dep = { u->id, u->version };
        inferscale_list *l = NULL;
        is_variant v;

        OK(is_bank_get_versions(is->bank, &p, &dep, 1, &l));
        facts[i] = (is_plan_fact){ .id = u->id, .version = u->version };
        OK(is_profile_fact(is->engine, NULL, &l->items[0], &facts[i].tokens));
        if (inject && from == 0 && strcmp(u->policy, "header") == 0) OK(is_variant_exact(is, &p, u->id, u->version, 0, &facts[i].segment, &n_bad));
        else if (inject) OK(is_variant_load(is, &p, &l->items[0], a->n_facts, 0, &v, &facts[i].segment, &n_bad));
        inferscale_list_free(l);
    }
    OK(is_profile_question(is->engine, NULL, question, &q));
    OK(is_plan_new(is->profile, facts, a->n_facts, &q, &opts, out));
    is_tokens_free(&q);
    is_free(facts);
}

/* KL and top-1 by their definitions, from the engine's logits, with nothing of the audit's code. */
static void compare_by_hand(inferscale *is, const is_plan *p, const is_plan *q, const inferscale_answer *a, double *kl, double *top1)
{
    const uint32_t n_vocab = is_engine_describe(is->engine)->n_vocab;
    const is_run_opts opts = { .want_logits = true };
    double *logs[2] = { malloc(n_vocab * a->n_tokens * sizeof(double)), malloc(n_vocab * a->n_tokens * sizeof(double)) };
    const is_plan *const plans[2] = { p, q };

    for (int side = 0; side < 2; side++) {
        is_run *run = NULL;
        is_run_stats stats;

        OK(is_engine_start(is->engine, plans[side], &opts, &run, &stats));
        for (size_t i = 0; i < a->n_tokens; i++) {
            const float *l = is_engine_logits(is->engine, run);
            double sum = 0, most = -INFINITY;

            for (uint32_t v = 0; v < n_vocab; v++) most = fmax(most, (double)l[v]);
            for (uint32_t v = 0; v < n_vocab; v++) sum += exp((double)l[v] - most);
            for (uint32_t v = 0; v < n_vocab; v++) logs[side][i * n_vocab + v] = (double)l[v] - most - log(sum);
            if (i + 1 < a->n_tokens) OK(is_engine_feed(is->engine, run, a->tokens[i].id));
        }
        is_engine_finish(is->engine, run);
    }
    *kl = *top1 = 0;
    for (size_t i = 0; i < a->n_tokens; i++) {
        const double *x = logs[0] + i * n_vocab, *y = logs[1] + i * n_vocab;
        uint32_t top_x = 0, top_y = 0;

        for (uint32_t v = 0; v < n_vocab; v++) {
            *kl += exp(x[v]) * (x[v] - y[v]) / (double)a->n_tokens;
            if (x[v] > x[top_x]) top_x = v;
            if (y[v] > y[top_y]) top_y = v;
        }
        *top1 += (top_x == top_y) / (double)a->n_tokens;
    }
    free(logs[0]);
    free(logs[1]);
}

static void expect_numbers(audited *t, const inferscale_answer *a, const char *question, json_t *o, double tolerance)
{
    json_t *r = json_array_get(json_object_get(o, "recent"), 0);
    is_planned *kv = NULL, *text = NULL;
    double kl, top1;

    by_hand(t->s.is, a, question, true, NULL, &kv);
    by_hand(t->s.is, a, question, false, NULL, &text);
    compare_by_hand(t->s.is, is_planned_plan(text), is_planned_plan(kv), a, &kl, &top1);
    print_message("KL %g by hand, %g audited; top-1 %g and %g\n", kl, number(r, "kl"), top1, number(r, "top1"));
    assert_int_equal(count_of(r, "tokens"), a->n_tokens);
    if (!(fabs(kl - number(r, "kl")) <= tolerance * (1 + fabs(kl)))) fail_msg("KL %.17g by hand, %.17g audited", kl, number(r, "kl"));
    if (!(fabs(top1 - number(r, "top1")) < 1e-9)) fail_msg("top-1 %g by hand, %g audited", top1, number(r, "top1"));
    is_planned_free(kv);
    is_planned_free(text);
}

static void test_numbers_are_those_made_by_hand(void **state)
{
    static const char question[] = "What does Anna think of on day number 3?";
    audited t;
    inferscale_answer *a;
    json_t *o;

    (void)state;
    begin(&t, 1, NULL);
    a = ask(&t, INFERSCALE_MODE_KV, 5, question);
    assert_int_equal(a->n_facts, 5);
    assert_true(a->tokens_injected > 0);
    o = wait_for(&t, 1);
    assert_int_equal(count_of(o, "done"), 1);
    expect_numbers(&t, a, question, o, 1e-12);
    assert_true(number(o, "kl_mean") > 0); /* stitched rows are no exact ones, and the mock tells */
    assert_true(number(json_array_get(json_object_get(o, "recent"), 0), "order_kl") > 0);
    assert_true(json_is_null(json_object_get(o, "order_ratio"))); /* of one answer it says nothing */
    json_decref(o);
    inferscale_answer_free(a);
    end(&t);
}

/* Rows behind the bare header are exact where they stand: the audit must say so. */
static void test_an_exact_answer_has_no_distance(void **state)
{
    inferscale_encode_options e = INFERSCALE_ENCODE_OPTIONS_INIT;
    audited t;
    inferscale_answer *a;
    json_t *o;

    (void)state;
    begin(&t, 1, NULL);
    e.policy = "header";
    OK(inferscale_encode(t.s.is, &store_anna, &e));
    a = ask(&t, INFERSCALE_MODE_KV, 1, "What does Anna think of on day number 3?");
    assert_int_equal(a->n_exact, 1);
    o = wait_for(&t, 1);
    assert_int_equal(count_of(o, "done"), 1);
    assert_true(number(o, "kl_mean") == 0 && number(o, "top1") == 1);
    assert_true(json_is_null(json_object_get(o, "order_ratio"))); /* one fact has no other order: not measured is not 0 */
    json_decref(o);
    inferscale_answer_free(a);
    end(&t);
}

static void test_metrics(void **state)
{
    audited t;
    json_t *o;
    size_t len;
    char *text;

    (void)state;
    begin(&t, 1, NULL);
    for (int i = 0; i < TWIN_ORDERS_LEAST; i++) {
        ask_and_drop(&t, INFERSCALE_MODE_KV, 4, "What does Anna think of?");
        json_decref(wait_for(&t, i + 1));
    }
    o = wait_for(&t, TWIN_ORDERS_LEAST);
    double order = 0;
    for (size_t i = 0; i < TWIN_ORDERS_LEAST; i++) order += number(json_array_get(json_object_get(o, "recent"), i), "order_kl");
    assert_true(fabs(number(o, "order_ratio") - TWIN_ORDERS_LEAST * number(o, "kl_mean") / order) < 1e-12);
    json_t *interval = json_object_get(o, "order_ratio_95");
    assert_true(json_real_value(json_array_get(interval, 0)) <= number(o, "order_ratio") && json_real_value(json_array_get(interval, 1)) >= number(o, "order_ratio"));
    text = is_metrics_text(t.s.metrics, true, &len);
    assert_true(exposition_value(text, "inferscale_audits_total{result=\"done\"}") == TWIN_ORDERS_LEAST);
    assert_true(exposition_value(text, "inferscale_audits_total{result=\"skipped\"}") == 0);
    assert_true(exposition_value(text, "inferscale_audit_kl_count") == TWIN_ORDERS_LEAST);
    assert_true(fabs(exposition_value(text, "inferscale_audit_kl_sum") - TWIN_ORDERS_LEAST * number(o, "kl_mean")) < 1e-9);
    assert_true(exposition_value(text, "inferscale_audit_tokens_total{top1=\"same\"}") +
                    exposition_value(text, "inferscale_audit_tokens_total{top1=\"different\"}") == (double)count_of(o, "tokens"));
    assert_true(fabs(exposition_value(text, "inferscale_audit_order_ratio") - number(o, "order_ratio")) < 1e-9);
    is_free(text);
    json_decref(o);
    end(&t);
}

/* Earlier turns' facts, which the engine's cache held, are audited with the rest. */
static void test_a_conversation(void **state)
{
    inferscale_complete_options c = INFERSCALE_COMPLETE_OPTIONS_INIT;
    audited t;
    inferscale_answer *first, *second = NULL;
    json_t *o;

    (void)state;
    begin(&t, 1, NULL);
    first = ask(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of on day number 3?");
    inferscale_message m[] = { { "user", "What does Anna think of on day number 3?" }, { "assistant", first->text }, { "user", "And on day number 5?" } };
    c.ask.k = 3;
    c.ask.max_tokens = 6;
    OK(inferscale_complete(t.s.is, &store_anna, m, 3, &c, &second));
    o = wait_for(&t, 2);
    assert_int_equal(count_of(o, "done"), 2);
    assert_true(number(json_array_get(json_object_get(o, "recent"), 0), "kl") > 0);
    json_decref(o);
    inferscale_answer_free(first);
    inferscale_answer_free(second);
    end(&t);
}

/* ---- What is chosen -------------------------------------------------------------------------------------------------------- */

static void test_only_injected_answers_are_chosen(void **state)
{
    const inferscale_message m = { "user", "Hello" };
    inferscale_answer *a = NULL;
    audited t;
    json_t *o;

    (void)state;
    begin(&t, 1, NULL);
    ask_and_drop(&t, INFERSCALE_MODE_TEXT, 4, "What does Anna think of?");
    ask_and_drop(&t, INFERSCALE_MODE_NONE, 4, "What does Anna think of?");
    OK(inferscale_complete(t.s.is, NULL, &m, 1, NULL, &a));
    inferscale_answer_free(a);
    o = is_audit_json(&t.s);
    assert_int_equal(count_of(o, "chosen"), 0);
    json_decref(o);
    end(&t);
}

static void test_the_share(void **state)
{
    char *home = scratch_make();
    is_config config = { .audit = 1.5 };
    is_server s = { .config = &config };
    audited t;
    json_t *o;

    (void)state;
    s.is = store_open(home, NULL, NULL, false);
    FAILS(E_INVALID, is_audit_start(&s));
    config.audit = NAN;
    FAILS(E_INVALID, is_audit_start(&s));
    inferscale_close(s.is);
    scratch_remove(home);
    begin(&t, 0, NULL);
    assert_null(t.s.audit);
    ask_and_drop(&t, INFERSCALE_MODE_KV, 2, "What does Anna think of?");
    o = is_audit_json(&t.s);
    assert_true(number(o, "share") == 0);
    json_decref(o);
    end(&t);
    begin(&t, 0.25, NULL);
    for (int i = 0; i < 200; i++) ask_and_drop(&t, INFERSCALE_MODE_KV, 1, "What does Anna think of?");
    o = is_audit_json(&t.s);
    print_message("%d of 200 were chosen, 50 expected\n", (int)count_of(o, "chosen"));
    assert_in_range(count_of(o, "chosen"), 20, 90); /* five standard deviations */
    json_decref(o);
    end(&t);
}

/* ---- What waits ------------------------------------------------------------------------------------------------------------ */

/* While a question is open nothing is audited, little waits, and what is forgotten meanwhile goes. */
static void test_what_waits_is_bounded_and_forgotten(void **state)
{
    audited t;
    inferscale_answer *a;
    int64_t other;
    inferscale_fact changed = { .text = "Anna thinks of nothing at all." };
    json_t *o;

    (void)state;
    begin(&t, 1, NULL);
    ask_and_drop(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of?");
    json_decref(wait_for(&t, 1));
    is_gate_enter(t.s.is->gate);
    a = ask(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of?");
    for (int i = 0; i < 20; i++) ask_and_drop(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of?");
    o = is_audit_json(&t.s);
    assert_int_equal(count_of(o, "done"), 1);
    assert_in_range(count_of(o, "waiting"), 7, 8); /* one may be in the auditor's hand */
    assert_in_range(skipped(o, "queue_full"), 12, 13);
    json_decref(o);
    other = store_fact(t.s.is, &store_anna, "Anna keeps a secret that no answer has used.");
    OK(inferscale_forget(t.s.is, &store_anna, &other, 1, NULL));
    o = is_audit_json(&t.s);
    assert_in_range(count_of(o, "waiting"), 7, 8); /* it concerns none of them */
    json_decref(o);
    OK(inferscale_forget(t.s.is, &store_anna, &a->facts[0].id, 1, NULL));
    o = is_audit_json(&t.s);
    assert_int_equal(count_of(o, "waiting"), 0); /* before anything is measured; all used it */
    assert_in_range(skipped(o, "forgotten_or_changed"), 7, 8);
    json_decref(o);
    inferscale_answer_free(a);
    is_gate_leave(t.s.is->gate);
    o = wait_for(&t, 22); /* the one in its hand finds that its fact has gone */
    assert_int_equal(skipped(o, "forgotten_or_changed"), 8 + (skipped(o, "queue_full") == 12));
    assert_int_equal(count_of(o, "done"), 1);
    json_decref(o);
    store_encode(t.s.is); /* what lost its KV to the forgetting has it again */
    is_gate_enter(t.s.is->gate);
    a = ask(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of?");
    assert_true(a->tokens_injected > 0);
    OK(inferscale_update(t.s.is, &store_anna, a->facts[1].id, &changed));
    inferscale_answer_free(a);
    is_gate_leave(t.s.is->gate);
    o = wait_for(&t, 23);
    assert_int_equal(count_of(o, "done"), 1);
    json_decref(o);
    end(&t);
}

/* Rows that are gone are not made again for an audit. */
static void test_rows_that_are_gone_are_not_recomputed(void **state)
{
    inferscale_gc_options gc = INFERSCALE_GC_OPTIONS_INIT;
    audited t;
    json_t *o;

    (void)state;
    begin(&t, 1, NULL);
    is_gate_enter(t.s.is->gate);
    ask_and_drop(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of?");
    gc.max_bytes = 1;
    OK(inferscale_gc(t.s.is, &gc));
    assert_true(gc.evicted_files > 0);
    is_gate_leave(t.s.is->gate);
    o = wait_for(&t, 1);
    assert_int_equal(count_of(o, "done"), 0);
    assert_int_equal(all_skipped(o), 1);
    json_decref(o);
    end(&t);
}

static void test_it_ends_with_answers_waiting(void **state)
{
    audited t;

    (void)state;
    begin(&t, 1, NULL);
    is_gate_enter(t.s.is->gate);
    for (int i = 0; i < 5; i++) ask_and_drop(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of?");
    is_audit_stop(&t.s);
    assert_null(t.s.audit);
    is_gate_leave(t.s.is->gate);
    ask_and_drop(&t, INFERSCALE_MODE_KV, 3, "What does Anna think of?"); /* nobody listens any more */
    end(&t);
}

/* ---- Side by side ---------------------------------------------------------------------------------------------------------- */

typedef struct worker { audited *t; int n; bool writes; } worker;

static void *work(void *arg)
{
    worker *w = arg;

    for (int i = 0; i < 25; i++) {
        const struct timespec pause = { 0, 40000000 };

        if (w->writes) {
            char text[80];
            int64_t id;

            snprintf(text, sizeof text, "Anna thinks of lamp %d of thread %d.", i, w->n);
            id = store_fact(w->t->s.is, &store_anna, text);
            OK(inferscale_encode(w->t->s.is, &store_anna, NULL));
            OK(inferscale_forget(w->t->s.is, &store_anna, &id, 1, NULL));
        } else {
            ask_and_drop(w->t, INFERSCALE_MODE_KV, 4, "Which lamp does Anna think of?");
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static void test_beside_questions_and_forgetting(void **state)
{
    pthread_t threads[3];
    worker workers[3];
    audited t;
    json_t *o;

    (void)state;
    begin(&t, 1, NULL);
    for (int i = 0; i < 3; i++) {
        workers[i] = (worker){ &t, i, i == 2 };
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    ask_and_drop(&t, INFERSCALE_MODE_KV, 4, "What does Anna think of?");
    o = wait_for(&t, -1);
    print_message("of %d chosen %d were audited, %d went with what they used, %d found no room to wait\n", (int)count_of(o, "chosen"),
                  (int)count_of(o, "done"), (int)skipped(o, "forgotten_or_changed"), (int)skipped(o, "queue_full"));
    assert_in_range(count_of(o, "chosen"), 10, 51); /* those that forgetting cut short are not offered */
    assert_true(count_of(o, "done") >= 1);
    json_decref(o);
    end(&t);
}

static void test_over_http(void **state)
{
    serve_kit *k = serve_start("audit", "0.5", NULL);
    serve_reply r = serve_call(k, "GET", "/inferscale/audit", NULL, NULL);

    (void)state;
    assert_int_equal(r.status, 200);
    assert_true(number(r.json, "share") == 0.5);
    assert_int_equal(count_of(r.json, "chosen"), 0);
    serve_reply_free(&r);
    serve_stop(k);
}

/* ---- When it is void ------------------------------------------------------------------------------------------------------- */

static void test_a_yardstick_within_the_noise_is_none(void **state)
{
    enum { N = 2 * TWIN_ORDERS_LEAST };
    twin_result r[N];
    stats_interval i;
    size_t n;

    (void)state;
    for (int k = 0; k < N; k++) /* every other one has nothing that could be reordered */
        r[k] = (twin_result){ .kv.kl = k % 4 ? 0.2 : 0.1, .order.kl = k % 4 ? 0.3 : 0.1, .noise.kl = 0.03, .has_order = k % 2 == 0 };
    assert_true(fabs(twin_order_ratio(r, N, &n, &i) - 1.5 / 2.0) < 1e-12 && n == TWIN_ORDERS_LEAST); /* 2.0 > 5 * 0.3 */
    assert_true(i.lo < 0.75 && i.hi > 0.75 && i.lo > 2 / 3.0 - 1e-9 && i.hi < 1 + 1e-9);
    assert_true(isnan(twin_order_ratio(r, N - 2, &n, &i)) && n == TWIN_ORDERS_LEAST - 1 && isnan(i.lo));
    r[2].noise.kl = 0.15; /* 2.0 < 5 * 0.42 */
    assert_true(isnan(twin_order_ratio(r, N, &n, &i)) && n == TWIN_ORDERS_LEAST && isnan(i.lo));
    assert_true(isnan(twin_order_ratio(r, 0, &n, NULL)) && n == 0);
    for (int k = 0; k < N; k++) r[k].order.kl = 2e-7, r[k].noise.kl = 0; /* rounding of sums is no yardstick either */
    assert_true(isnan(twin_order_ratio(r, N, &n, NULL)));
    for (int k = 0; k < N; k++) r[k].order.kl = 1e-6;
    assert_true(isfinite(twin_order_ratio(r, N, &n, NULL)));
}

/* ---- SmolLM2 --------------------------------------------------------------------------------------------------------------- */

static void test_numbers_of_a_real_model(void **state)
{
    static const char question[] = "What does Anna think of on day number 3?";
    char *home = scratch_make();
    inferscale_options options = store_options(home);
    audited t;
    inferscale_answer *a;
    json_t *o;

    (void)state;
    options.engine = "llama";
    options.n_ctx = 1024;
    begin(&t, 1, &options);
    store_fill(t.s.is, 6, true);
    a = ask(&t, INFERSCALE_MODE_KV, 5, question);
    assert_true(a->tokens_injected > 0);
    o = wait_for(&t, 1);
    assert_int_equal(count_of(o, "done"), 1);
    expect_numbers(&t, a, question, o, 1e-3); /* the same sums in other batches */
    json_t *r = json_array_get(json_object_get(o, "recent"), 0);
    print_message("KL %g, of a reordering %g, of another batching %g\n", number(r, "kl"), number(r, "order_kl"), number(r, "noise_kl"));
    assert_true(number(r, "noise_kl") >= 0 && number(r, "noise_kl") < number(r, "order_kl")); /* 0 where all batches compute alike */
    assert_true(number(o, "kl_mean") > 0 && number(o, "kl_mean") < 1);
    json_decref(o);
    inferscale_answer_free(a);
    end(&t);
    scratch_remove(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_are_those_made_by_hand),
        cmocka_unit_test(test_an_exact_answer_has_no_distance),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_a_conversation),
        cmocka_unit_test(test_only_injected_answers_are_chosen),
        cmocka_unit_test(test_the_share),
        cmocka_unit_test(test_what_waits_is_bounded_and_forgotten),
        cmocka_unit_test(test_rows_that_are_gone_are_not_recomputed),
        cmocka_unit_test(test_it_ends_with_answers_waiting),
        cmocka_unit_test(test_beside_questions_and_forgetting),
        cmocka_unit_test(test_over_http),
        cmocka_unit_test(test_a_yardstick_within_the_noise_is_none),
        cmocka_unit_test(test_numbers_of_a_real_model),
    };

    return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
