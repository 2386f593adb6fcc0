/* Metrics: the text is right by Prometheus' own checker and by one of ours (which is tried on wrong texts first), numbers are those that
 * were counted, also from many threads; series stay few, labels cannot break out, a failing allocation loses no count. */
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

#include "base/mem.h"
#include "serve/metrics.h"
#include "support/exposition.h"
#include "support/kit.h"

static char *shown(is_metrics *m, bool aliases, size_t *len)
{
    char why[256], *text = is_metrics_text(m, aliases, len);

    assert_non_null(text);
    assert_int_equal(strlen(text), *len);
    if (!exposition_ok(text, *len, why)) fail_msg("%s", why);
    return text;
}

static double value_of(is_metrics *m, const char *series)
{
    size_t len;
    char *text = shown(m, true, &len);
    double v = exposition_value(text, series);

    is_free(text);
    return v;
}

#define HEAD(name, type) "# HELP " name " what\n# TYPE " name " " type "\n"

static void test_our_checker_finds_what_is_wrong(void **state)
{
    static const char *const wrong[] = {
        "", HEAD("a", "gauge") "a 1", "a 1\n", "# TYPE a gauge\na 1\n", "# HELP a what\na 1\n", HEAD("a", "gauge") HEAD("a", "gauge"),
        HEAD("a", "gauge") "b 1\n", HEAD("a", "gauge") "a 1\na 2\n", HEAD("a", "gauge") "a{x=\"1\"} 1\na{x=\"1\"} 1\n",
        HEAD("a", "gauge") "a one\n", HEAD("a", "gauge") "a  1\n", HEAD("a", "gauge") "a{x=1} 1\n", HEAD("a", "gauge") "a{x=\"1} 1\n",
        HEAD("a", "gauge") "a{x=\"\\t\"} 1\n", HEAD("a", "gauge") "a{x=\"1\" y=\"2\"} 1\n", HEAD("a", "gauge") "a{x=\"1\",x=\"2\"} 1\n",
        HEAD("a", "gauge") "a{x=\"b\"c\"} 1\n", HEAD("a", "counter") "a 1\n", HEAD("a_total", "counter") "a_total -1\n",
        HEAD("a_total", "gauge") "a_total 1\n", HEAD("a", "histogram") "a_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        HEAD("a", "histogram") "a_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        HEAD("a", "histogram") "a_bucket{le=\"2\"} 1\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        HEAD("a", "histogram") "a_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 1\na_count 1\n",
        HEAD("a", "histogram") "a_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_count 2\n",
        HEAD("a", "histogram") "a_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 1\n",
        HEAD("a", "histogram") "a 1\n", HEAD("1a", "gauge") "1a 1\n", HEAD("a", "sort") "a 1\n",
    };
    static const char right[] = HEAD("a", "gauge") "a{x=\"\\\"\\\\\\n,}\"} -1.5e-7\na 2\n" HEAD("b", "histogram")
        "b_bucket{m=\"1\",le=\"0.1\"} 0\nb_bucket{m=\"1\",le=\"+Inf\"} 2\nb_sum{m=\"1\"} 1\nb_count{m=\"1\"} 2\n" HEAD("c_total", "counter");
    char why[256];

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (exposition_ok(wrong[i], strlen(wrong[i]), why)) fail_msg("nothing was said against number %zu: %s", i, wrong[i]);
        assert_true(why[0]);
    }
    if (!exposition_ok(right, strlen(right), why)) fail_msg("%s", why);
}

/* One of each, with values that try to break out. */
static is_metrics *full(void)
{
    static const char *const nasty[] = { "\"} 1\nforged 1\n", "back\\slash", "new\nline", "\xff\xfe", "gr\xc3\xbc\xc3\x9f", "", "{le=\"1\"}" };
    is_metrics *m = NULL;

    KIT_OK(is_metrics_new(&m));
    is_metrics_name(m, "0.1.0", "a \"model\"", "mock");
    for (int id = 0; id < IS_N_METRICS; id++)
        for (size_t i = 0; i < sizeof nasty / sizeof *nasty; i++) {
            if (id == IS_M_BUILD) continue;
            is_metric_add(m, (enum is_metric)id, nasty[i], nasty[i], 1.5);
            is_metric_observe(m, (enum is_metric)id, nasty[i], 0.3);
        }
    return m;
}

static void test_text_is_right(void **state)
{
    is_metrics *m = NULL;
    size_t len;
    char *text;

    (void)state;
    KIT_OK(is_metrics_new(&m));
    text = shown(m, true, &len); /* before anything has happened */
    assert_true(isnan(exposition_value(text, "inferscale_audit_order_ratio"))); /* not measured is not 0 */
    assert_true(exposition_value(text, "inferscale_generation_tokens_total") == 0);
    assert_true(exposition_value(text, "inferscale_fallbacks_total{why=\"other\"}") == 0);
    assert_true(exposition_value(text, "inferscale_encoder_turns_total{what=\"pause\"}") == 0);
    assert_true(exposition_value(text, "inferscale_time_to_first_token_seconds_count{mode=\"kv\"}") == 0);
    is_free(text);
    is_metrics_free(m);
    m = full();
    text = shown(m, true, &len);
    assert_null(strstr(text, "\nforged"));
    assert_non_null(strstr(text, "gr\xc3\xbc\xc3\x9f"));
    assert_null(strstr(text, "\xff"));
    assert_non_null(strstr(text, "vllm:num_requests_running{model_name=\"a \\\"model\\\"\",engine=\"0\"} 10.5\n"));
    is_free(text);
    text = shown(m, false, &len);
    assert_null(strstr(text, "vllm:"));
    is_free(text);
    is_metrics_free(m);
}

static void test_promtool_accepts(void **state)
{
    is_metrics *m = full();
    char report[20000], *text, *save = NULL;
    size_t len;
    int rc;

    (void)state;
    text = shown(m, false, &len);
    if (!exposition_promtool(text, len, &rc, report, sizeof report)) {
        print_message("promtool is not here (Debian's package prometheus has it): only our own checker looked\n");
        is_free(text);
        is_metrics_free(m);
        skip();
    }
    if (rc != 0 || report[0]) fail_msg("promtool: %d %s", rc, report);
    is_free(text);
    /* Of the aliases it dislikes nothing but vLLM's colon. */
    text = shown(m, true, &len);
    assert_true(exposition_promtool(text, len, &rc, report, sizeof report));
    for (char *p = strtok_r(report, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
        if (strncmp(p, "vllm:", 5) != 0 || !strstr(p, "should not contain ':'")) fail_msg("promtool: %s", p);
    /* It can refuse. */
    assert_true(exposition_promtool("a 1\na 1\n", 8, &rc, report, sizeof report));
    assert_int_not_equal(rc, 0);
    is_free(text);
    is_metrics_free(m);
}

static void test_histogram(void **state)
{
    static const double xs[] = { 0.0005, 0.001, 0.0011, 0.2, 0.25, 299, 1000, -1, NAN, INFINITY };
    is_metrics *m = NULL;

    (void)state;
    KIT_OK(is_metrics_new(&m));
    for (size_t i = 0; i < sizeof xs / sizeof *xs; i++) is_metric_observe(m, IS_M_TTFT, "kv", xs[i]);
#define AT(series) value_of(m, "inferscale_time_to_first_token_seconds" series)
    assert_true(AT("_bucket{mode=\"kv\",le=\"0.001\"}") == 3); /* a bound is inside; -1 is below all */
    assert_true(AT("_bucket{mode=\"kv\",le=\"0.0025\"}") == 4);
    assert_true(AT("_bucket{mode=\"kv\",le=\"0.25\"}") == 6);
    assert_true(AT("_bucket{mode=\"kv\",le=\"300\"}") == 7);
    assert_true(AT("_bucket{mode=\"kv\",le=\"+Inf\"}") == 8);
    assert_true(AT("_count{mode=\"kv\"}") == 8); /* no number is not counted */
    assert_true(fabs(AT("_sum{mode=\"kv\"}") - 1298.4526) < 1e-9);
    assert_true(value_of(m, "vllm:time_to_first_token_seconds_count{model_name=\"\",engine=\"0\"}") == 8);
    is_metric_observe(m, IS_M_AUDIT_KL, NULL, 0.002);
    assert_true(value_of(m, "inferscale_audit_kl_bucket{le=\"0.003\"}") == 1);
    assert_true(value_of(m, "inferscale_audit_kl_bucket{le=\"0.001\"}") == 0);
    is_metrics_free(m);
}

static void test_kinds_are_kept_apart(void **state)
{
    is_metrics *m = NULL;

    (void)state;
    KIT_OK(is_metrics_new(&m));
    is_metric_add(m, IS_M_TTFT, "kv", NULL, 1);
    is_metric_set(m, IS_M_TTFT, "kv", NULL, 1);
    is_metric_observe(m, IS_M_TOKENS_ANSWER, NULL, 1);
    is_metric_add(m, IS_M_TOKENS_ANSWER, NULL, NULL, -1);
    is_metric_add(m, IS_M_TOKENS_ANSWER, NULL, NULL, NAN);
    assert_true(value_of(m, "inferscale_time_to_first_token_seconds_count{mode=\"kv\"}") == 0);
    assert_true(value_of(m, "inferscale_generation_tokens_total") == 0);
    is_metric_set(m, IS_M_ENCODER_ERRORS, NULL, NULL, 5); /* counted elsewhere; never falls */
    is_metric_set(m, IS_M_ENCODER_ERRORS, NULL, NULL, 3);
    assert_true(value_of(m, "inferscale_encoder_errors_total") == 5);
    is_metric_add(m, IS_M_RUNNING, NULL, NULL, 3);
    is_metric_add(m, IS_M_RUNNING, NULL, NULL, -1);
    assert_true(value_of(m, "inferscale_requests_running") == 2);
    is_metric_set(m, IS_M_STORE_BYTES, "vault", NULL, 123456789012345);
    assert_true(value_of(m, "inferscale_store_bytes{what=\"vault\"}") == 123456789012345);
    is_metrics_free(m);
}

static void test_series_are_bounded(void **state)
{
    is_metrics *m = NULL;
    size_t len, n = 0;
    char name[500], *text;

    (void)state;
    KIT_OK(is_metrics_new(&m));
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "/route/%d", i);
        is_metric_add(m, IS_M_HTTP_REQUESTS, name, "200", 1);
    }
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    is_metric_add(m, IS_M_HTTP_REFUSED, name, NULL, 1);
    memcpy(name + 126, "\xc3\xa4", 2); /* cut between characters, also where that is in the middle of one */
    is_metric_add(m, IS_M_HTTP_REFUSED, name, NULL, 1);
    text = shown(m, true, &len);
    for (char *p = text; (p = strstr(p, "\ninferscale_http_requests_total{")); p++) n++;
    assert_int_equal(n, 201);
    assert_true(exposition_value(text, "inferscale_http_requests_total{route=\"other\",code=\"other\"}") == 800);
    assert_true(exposition_value(text, "inferscale_http_requests_total{route=\"/route/199\",code=\"200\"}") == 1);
    assert_null(strstr(text, "\xc3"));
    assert_null(strstr(text, "?"));
    is_free(text);
    is_metrics_free(m);
}

/* Counted is counted, whatever memory says: what finds no room for its labels is among "other". */
static void test_no_count_is_lost_without_memory(void **state)
{
    (void)state;
    for (size_t at = 1; at < 12; at++) {
        is_metrics *m = NULL;
        double sum = 0;
        size_t len;
        char *text;

        KIT_OK(is_metrics_new(&m));
        is_mem_fail_at(at);
        for (int i = 0; i < 6; i++) is_metric_add(m, IS_M_MEMORY_OPS, i % 2 ? "add" : "get", i < 3 ? "ok" : "failed", 1);
        is_mem_fail_at(0);
        text = shown(m, true, &len);
        for (char *p = text; (p = strstr(p, "\ninferscale_memory_operations_total{")); p++) sum += strtod(strchr(p, '}') + 1, NULL);
        if (sum != 6) fail_msg("%g of 6 were counted when allocation %zu failed", sum, at);
        is_free(text);
        is_metrics_free(m);
    }
    for (size_t at = 1;; at++) { /* new itself, and the text */
        is_metrics *m = NULL;
        size_t len;

        is_mem_fail_at(at);
        if (is_metrics_new(&m) == INFERSCALE_OK) is_free(is_metrics_text(m, true, &len));
        is_metrics_free(m);
        if (!is_mem_failed()) break;
    }
    is_mem_fail_at(0);
}

enum { THREADS = 8, ROUNDS = 5000 };

static void *count(void *arg)
{
    is_metrics *m = arg;

    for (int i = 0; i < ROUNDS; i++) {
        is_metric_add(m, IS_M_TOKENS_ANSWER, NULL, NULL, 1);
        is_metric_observe(m, IS_M_TTFT, i % 2 ? "kv" : "text", 0.1);
        is_metric_add(m, IS_M_HTTP_REQUESTS, i % 3 ? "/a" : "/b", "200", 1);
        if (i % 1000 == 0) {
            size_t len;
            char why[256], *text = is_metrics_text(m, true, &len);

            if (!exposition_ok(text, len, why)) return "torn";
            is_free(text);
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t threads[THREADS];
    is_metrics *m = NULL;

    (void)state;
    KIT_OK(is_metrics_new(&m));
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, count, m), 0);
    for (int i = 0; i < THREADS; i++) {
        void *result;

        pthread_join(threads[i], &result);
        assert_null(result);
    }
    assert_true(value_of(m, "inferscale_generation_tokens_total") == THREADS * ROUNDS);
    assert_true(value_of(m, "inferscale_time_to_first_token_seconds_count{mode=\"kv\"}") == THREADS * ROUNDS / 2);
    assert_true(value_of(m, "inferscale_http_requests_total{route=\"/a\",code=\"200\"}") +
                    value_of(m, "inferscale_http_requests_total{route=\"/b\",code=\"200\"}") == THREADS * ROUNDS);
    is_metrics_free(m);
}

static void test_an_answer(void **state)
{
    inferscale_used facts[] = { { .source = INFERSCALE_SOURCE_STORED }, { .source = INFERSCALE_SOURCE_STORED },
                                { .source = INFERSCALE_SOURCE_COMPUTED }, { .source = INFERSCALE_SOURCE_RESIDENT } };
    char fallback[] = "1 of 4 facts had no KV and were computed as text; encode them to inject them; 3 facts were left out: the context of "
                      "512 tokens is full", unheard[] = "the moon is full";
    inferscale_answer a = { .finish = "length", .mode = INFERSCALE_MODE_KV, .fallback = fallback, .facts = facts, .n_facts = 4,
                            .tokens_prompt = 341, .tokens_computed = 29, .tokens_injected = 280, .tokens_resident = 32,
                            .fallbacks = INFERSCALE_FALLBACK_NOT_ENCODED | INFERSCALE_FALLBACK_CONTEXT_FULL,
                            .tokens_answer = 11, .ttft_ms = 50, .total_ms = 350, .n_placed_kept = 2, .n_placed_new = 1 };
    is_metrics *m = NULL;

    (void)state;
    KIT_OK(is_metrics_new(&m));
    is_metrics_name(m, "0.1.0", "m", "mock");
    is_metrics_answer(m, &a);
    is_metrics_answer(m, NULL);
    assert_true(value_of(m, "inferscale_time_to_first_token_seconds_sum{mode=\"kv\"}") == 0.05);
    assert_true(fabs(value_of(m, "inferscale_time_per_output_token_seconds_sum{mode=\"kv\"}") - 0.03) < 1e-12);
    assert_true(value_of(m, "inferscale_e2e_request_latency_seconds_sum{mode=\"kv\"}") == 0.35);
    assert_true(value_of(m, "inferscale_facts_used_total{source=\"stored\"}") == 2);
    assert_true(value_of(m, "inferscale_facts_used_total{source=\"resident\"}") == 1);
    assert_true(value_of(m, "inferscale_prompt_tokens_total{source=\"injected\"}") == 280);
    assert_true(value_of(m, "vllm:prompt_tokens_total{model_name=\"m\",engine=\"0\"}") == 341);
    assert_true(value_of(m, "vllm:prefix_cache_hits_total{model_name=\"m\",engine=\"0\"}") == 32);
    assert_true(value_of(m, "vllm:generation_tokens_total{model_name=\"m\",engine=\"0\"}") == 11);
    assert_true(value_of(m, "inferscale_placements_total{what=\"kept\"}") == 2);
    assert_true(value_of(m, "inferscale_answers_total{finish=\"length\",mode=\"kv\"}") == 1);
    assert_true(value_of(m, "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"length\"}") == 1);
    assert_true(value_of(m, "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"stop\"}") == 0);
    assert_true(value_of(m, "inferscale_fallbacks_total{why=\"not_encoded\"}") == 1);
    assert_true(value_of(m, "inferscale_fallbacks_total{why=\"context_full\"}") == 1);
    assert_true(value_of(m, "inferscale_fallbacks_total{why=\"other\"}") == 0);
    a.fallback = unheard;
    a.fallbacks = 0;
    a.finish = "cancelled";
    a.mode = INFERSCALE_MODE_NONE;
    a.tokens_answer = 0; /* no token came: there is no time to the first */
    is_metrics_answer(m, &a);
    assert_true(value_of(m, "inferscale_fallbacks_total{why=\"other\"}") == 1);
    assert_true(value_of(m, "inferscale_time_to_first_token_seconds_count{mode=\"none\"}") == 0);
    assert_true(value_of(m, "vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"abort\"}") == 1);
    is_metrics_free(m);
}

static void test_process(void **state)
{
    is_metrics *m = NULL;
    double now = (double)time(NULL);

    (void)state;
    KIT_OK(is_metrics_new(&m));
    assert_true(fabs(value_of(m, "process_start_time_seconds") - now) < 600);
    assert_true(value_of(m, "process_resident_memory_bytes") > 1e5);
    assert_true(value_of(m, "process_open_fds") >= 3 && value_of(m, "process_open_fds") < 200);
    assert_true(value_of(m, "process_cpu_seconds_total") > 0);
    is_metrics_free(m);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < IS_N_METRICS; i++) assert_non_null(is_metric_name(i));
    assert_null(is_metric_name(IS_N_METRICS));
    assert_null(is_metric_name(-1));
    assert_true(is_metric_known("inferscale_http_requests_total"));
    assert_true(is_metric_known("inferscale_audit_kl_bucket"));
    assert_true(is_metric_known("vllm:num_requests_running"));
    assert_true(is_metric_known("vllm:request_success_total"));
    assert_false(is_metric_known("inferscale_audit_kl"));
    assert_false(is_metric_known("inferscale_http_requests"));
    assert_false(is_metric_known("inferscale_requests_running_count"));
    assert_false(is_metric_known("vllm:gpu_cache_usage_perc"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_our_checker_finds_what_is_wrong),
        cmocka_unit_test(test_text_is_right),
        cmocka_unit_test(test_promtool_accepts),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_kinds_are_kept_apart),
        cmocka_unit_test(test_series_are_bounded),
        cmocka_unit_test(test_no_count_is_lost_without_memory),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_an_answer),
        cmocka_unit_test(test_process),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
