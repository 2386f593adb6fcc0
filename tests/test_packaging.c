/* What operators install: the dashboard, the alert rules and the service file name only metrics and labels that the server has, and what
 * checkers there are on this machine accept them. */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "serve/metrics.h"

enum { EXPRS = 200 };

static char root[1024];
static bool used[IS_N_METRICS];

/* The sources are three folders above the test program. */
static const char *source(const char *name)
{
    static char paths[4][1200];
    static int next;
    char *p = paths[next++ % 4];

    if (!root[0]) {
        ssize_t n = readlink("/proc/self/exe", root, sizeof root - 1);

        assert_true(n > 0);
        root[n] = 0;
        for (int i = 0; i < 4; i++) *strrchr(root, '/') = 0;
    }
    snprintf(p, sizeof paths[0], "%s/%s", root, name);
    return p;
}

static char *read_source(const char *name)
{
    FILE *f = fopen(source(name), "r");
    char *text = calloc(1, 1 << 20);

    if (!f || !text) fail_msg("%s cannot be read", source(name));
    assert_true(fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

/* ---- PromQL, as far as names go -------------------------------------------------------------------------------------------- */

static bool one_of(const char *word, size_t n, const char *const *list)
{
    for (; *list; list++)
        if (strlen(*list) == n && strncmp(*list, word, n) == 0) return true;
    return false;
}

static bool is_label(const char *word, size_t n)
{
    static const char *const others[] = { "le", "job", "instance", NULL };
    static const char *const labels[] = {
#define IS_X(id, kind, name, labels, help) labels,
        IS_METRICS_MAP(IS_X)
#undef IS_X
    };

    if (one_of(word, n, others)) return true;
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        for (const char *p = labels[i]; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ','))
            if (strcspn(p, ",") == n && strncmp(p, word, n) == 0) return true;
    return false;
}

static bool is_series(const char *word, size_t n)
{
    char name[200];

    if (n >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    for (int i = 0; i < IS_N_METRICS; i++) {
        const char *m = is_metric_name(i);

        used[i] = used[i] || (strncmp(name, m, strlen(m)) == 0 && is_metric_known(name));
    }
    return is_metric_known(name) || strcmp(name, "up") == 0;
}

/* Every word of an expression is a function, a metric of ours, or, where labels stand, a label of ours. why[200]: the first that is not. */
static bool expression_ok(const char *e, char *why)
{
    static const char *const functions[] = { "sum", "rate", "increase", "max", "min", "histogram_quantile", "topk", "and", NULL };
    static const char *const groupings[] = { "by", "on", NULL };
    bool in_labels = false, in_group = false;
    size_t n;

    why[0] = 0;
    for (const char *p = e; *p; p += n) {
        n = 1;
        if (*p == '"') n = strcspn(p + 1, "\"") + 2;
        else if (*p == '[') n = strcspn(p, "]") + 1;
        else if (*p == '{') in_labels = true;
        else if (*p == '}') in_labels = false;
        else if (*p == ')') in_group = false;
        else if (isdigit((unsigned char)*p)) n = strspn(p, "0123456789.e");
        else if (isalpha((unsigned char)*p) || *p == '_') {
            while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == ':') n++;
            if (in_labels || in_group ? is_label(p, n) : one_of(p, n, functions) || is_series(p, n)) continue;
            if (!in_labels && !in_group && one_of(p, n, groupings)) {
                in_group = true;
                continue;
            }
            snprintf(why, 200, "\"%.*s\" in %.150s", (int)n, p, e);
            return false;
        }
    }
    return true;
}

static void test_the_reader_finds_wrong_names(void **state)
{
    static const char *const wrong[] = {
        "inferscale_request_running", "sum(rate(inferscale_audit_kl[5m]))", "rate(inferscale_requests_running_total[1h])",
        "inferscale_audits_total{outcome=\"done\"}", "sum by (mod) (inferscale_audits_total)", "averag(inferscale_requests_running)",
        "histogram_quantile(0.5, sum by (le) (rate(inferscale_time_to_first_token_bucket[5m])))", "vllm:gpu_cache_usage_perc",
    };
    char why[200];

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (expression_ok(wrong[i], why)) fail_msg("nothing was said against %s", wrong[i]);
    if (!expression_ok("sum by (mode, le) (rate(inferscale_time_to_first_token_seconds_bucket{mode=\"kv\"}[5m])) > 1.5 and on (instance) up == 0", why))
        fail_msg("%s", why);
}

/* ---- The files ------------------------------------------------------------------------------------------------------------- */

static size_t read_expressions(json_t *v)
{
    const char *key;
    json_t *child;
    size_t i, n = 0;
    char why[200];

    json_array_foreach(v, i, child) n += read_expressions(child);
    json_object_foreach(v, key, child) {
        if (strcmp(key, "expr") == 0) {
            if (!expression_ok(json_string_value(child), why)) fail_msg("grafana.json: %s", why);
            n++;
        }
        n += read_expressions(child);
    }
    return n;
}

static void test_dashboard(void **state)
{
    json_error_t error;
    json_t *d = json_load_file(source("packaging/grafana.json"), JSON_REJECT_DUPLICATES, &error), *panel;
    static const char *const nowhere[] = { "inferscale_build_info", "process_start_time_seconds", NULL }; /* in its variable; of no use in a graph */
    bool ids[1000] = { false };
    size_t i;

    (void)state;
    if (!d) fail_msg("grafana.json:%d: %s", error.line, error.text);
    memset(used, 0, sizeof used);
    assert_true(read_expressions(d) > 30);
    for (int m = 0; m < IS_N_METRICS; m++)
        if (!used[m] && !one_of(is_metric_name(m), strlen(is_metric_name(m)), nowhere)) fail_msg("%s is on no panel", is_metric_name(m));
    json_array_foreach(json_object_get(d, "panels"), i, panel) {
        json_int_t id = json_integer_value(json_object_get(panel, "id"));
        json_t *at = json_object_get(panel, "gridPos");

        assert_in_range(id, 1, 999);
        if (ids[id]) fail_msg("two panels have id %d", (int)id);
        ids[id] = true;
        assert_true(json_string_length(json_object_get(panel, "title")) > 0);
        assert_in_range(json_integer_value(json_object_get(at, "x")) + json_integer_value(json_object_get(at, "w")), 1, 24);
    }
    json_decref(d);
}

static void test_alerts(void **state)
{
    char *text = read_source("packaging/alerts.yml"), *save = NULL, why[200];
    size_t n = 0, n_alerts = 0, n_next = 0;

    (void)state;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *e = strstr(line, "expr: ");

        n_alerts += strstr(line, "- alert: ") != NULL;
        n_next += strstr(line, " next: ") != NULL;
        if (!e) continue;
        n++;
        if (!expression_ok(e + 6, why)) fail_msg("alerts.yml: %s", why);
    }
    assert_true(n >= 8);
    assert_int_equal(n, n_alerts);
    assert_int_equal(n, n_next); /* each says what to do */
    free(text);
}

/* 0 = accepted; 127 = the checker is not here. What it says is shown if it refuses. */
static int run(const char *command)
{
    char *say = calloc(1, 1 << 16);
    FILE *f = popen(command, "r");
    int rc;

    assert_non_null(f);
    assert_non_null(say);
    assert_true(fread(say, 1, (1 << 16) - 1, f) < (1 << 16) - 1);
    rc = WEXITSTATUS(pclose(f));
    if (rc != 0 && rc != 127) print_error("%s\n%s\n", command, say);
    free(say);
    return rc;
}

static void run_or_skip(const char *command, const char *what)
{
    int rc = run(command);

    if (rc == 127) {
        print_message("%s\n", what);
        skip();
    }
    assert_int_equal(rc, 0);
}

static void test_promtool_accepts_the_alerts(void **state)
{
    char command[3000];

    (void)state;
    snprintf(command, sizeof command, "promtool check rules %s 2>&1 && promtool test rules %s 2>&1", source("packaging/alerts.yml"),
             source("tests/alerts.yml"));
    run_or_skip(command, "promtool is not here (Debian's package prometheus has it)");
}

/* With the program's path replaced by one that is there. The exposure it reports is of 0 (none) to 100. */
static void test_systemd_accepts_the_service(void **state)
{
    char command[4000];

    (void)state;
    snprintf(command, sizeof command,
             "command -v systemd-analyze >/dev/null || exit 127; d=$(mktemp -d) && sed 's|/usr/local/bin/inferscale|/bin/true|' %s > $d/inferscale.service && "
             "systemd-analyze verify --man=no $d/inferscale.service 2>&1 && "
             "systemd-analyze security --offline=true --threshold=20 $d/inferscale.service 2>&1; rc=$?; rm -r $d; exit $rc",
             source("packaging/inferscale.service"));
    run_or_skip(command, "systemd-analyze is not here");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_reader_finds_wrong_names),
        cmocka_unit_test(test_dashboard),
        cmocka_unit_test(test_alerts),
        cmocka_unit_test(test_promtool_accepts_the_alerts),
        cmocka_unit_test(test_systemd_accepts_the_service),
    };

    return cmocka_run_group_tests_name("packaging", tests, NULL, NULL);
}
