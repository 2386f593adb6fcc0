/* report_speed.c - plots of `bench ttft`, `bench serve` and `eval recall`. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/report_parts.h"

/* "0,5,10": the different values of a key, in the order of the rows. */
static void list_of(const json_t *rows, const char *key, char *out, size_t cap)
{
    double last = NAN;

    out[0] = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const double x = report_number(json_array_get(rows, i), key);
        const size_t n = strlen(out);

        if (!isfinite(x) || x == last) continue;
        report_print(out + n, cap - n, "%s%.0f", n ? "," : "", x);
        last = x;
    }
}

/* ---- bench ttft ------------------------------------------------------------------------------ */

/* What the keys "NAME_ms" of a row mean that are no arm, but a part of one. */
static bool is_part(const char *key)
{
    static const char *const parts[] = { "embed_ms", "recall_ms", "plan_ms",     "compose_ms",
                                         "inject_ms", "trial_ms", "question_ms" };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(key, parts[i]) == 0) return true;
    return false;
}

static void quartiles(const json_t *row, const char *arm, chart_point *p)
{
    const json_t *apart = json_object_get(json_object_get(row, "arms"), arm);
    char key[80];

    report_print(key, sizeof key, "%s_lo", arm);
    p->lo = apart ? report_number(apart, "lo") : report_number(row, key);
    report_print(key, sizeof key, "%s_hi", arm);
    p->hi = apart ? report_number(apart, "hi") : report_number(row, key);
}

/* Every arm that the row has: "NAME_ms". */
static is_status ttft_row(report_plot *p, const json_t *row)
{
    const double injected = report_number(row, "injected_ms");
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)row, key, value)
    {
        const size_t n = strlen(key);
        char arm[64];
        chart_point point = { .x = report_number(row, "k"), .n = report_number(row, "n") };

        if (n < 4 || n > 60 || strcmp(key + n - 3, "_ms") != 0 || is_part(key)) continue;
        if (!json_is_number(value)) continue;
        report_print(arm, sizeof arm, "%.*s", (int)(n - 3), key);
        point.value = json_number_value(value);
        quartiles(row, arm, &point);
        point.more[0] = report_number(row, "fact_tokens");
        point.more[1] = point.value / injected;
        IS_TRY(chart_add(&p->chart, arm, point));
    }
    return INFERSCALE_OK;
}

is_status report_ttft(report *r, size_t head, const json_t *file)
{
    report_head *h = &r->heads[head];
    const json_t *rows = json_object_get(file, "rows");
    const bool remote = json_object_get(json_array_get(rows, 0), "arms") != NULL;
    char ks[120], model[CHART_TEXT];
    report_plot *p;
    chart *c;

    list_of(rows, "k", ks, sizeof ks);
    report_model_option(h, model);
    report_print(h->command, sizeof h->command,
                 "inferscale bench ttft %s--k %s --runs %.0f%s --json",
                 remote ? "--engine vllm --upstream URL --home DIR " : model, ks,
                 report_number(file, "runs"), remote ? "" : " --threads 1");
    IS_TRY(report_plot_new(r, REPORT_TTFT, head, &p));
    c = &p->chart;
    c->kind = CHART_LINES;
    c->value.log = true;
    report_copy(c->id, sizeof c->id, h->file);
    report_copy(c->title, sizeof c->title, "Time to first token by number of facts");
    report_subtitle(h, c->subtitle);
    report_copy(c->x.title, sizeof c->x.title, "facts in the prompt, k");
    report_copy(c->unit, sizeof c->unit, "facts");
    report_copy(c->value.title, sizeof c->value.title, "time to first token, ms (logarithmic)");
    report_copy(c->interval, sizeof c->interval, "quartiles over rounds");
    report_copy(c->more[0], sizeof c->more[0], "fact tokens");
    report_copy(c->more[1], sizeof c->more[1], "times injected");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *vault = report_text(row, "vault");

        if (vault[0] == 0 || strcmp(vault, "ram") == 0) IS_TRY(ttft_row(p, row));
    }
    return INFERSCALE_OK;
}

/* ---- bench serve ----------------------------------------------------------------------------- */

/* The lowest and the highest window. */
static void window_range(const json_t *row, chart_point *p)
{
    const json_t *windows = json_object_get(row, "windows");

    p->lo = p->hi = NAN;
    for (size_t i = 0; i < json_array_size(windows); i++) {
        const double x = report_number(json_array_get(windows, i), "request_throughput");

        if (isnan(p->lo) || x < p->lo) p->lo = x;
        if (isnan(p->hi) || x > p->hi) p->hi = x;
    }
}

static is_status serve_rows(report_plot *p, const json_t *rows)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *mode = report_text(row, "mode");
        chart_point point = { .x = report_number(row, "users"),
                              .value = report_number(row, "request_throughput"),
                              .n = report_number(row, "completed"),
                              .more = { report_number(row, "median_ttft_ms"),
                                        report_number(row, "p99_ttft_ms") } };

        if (mode[0] == 0 || isfinite(report_number(row, "rate"))) continue; /* an open loop */
        window_range(row, &point);
        IS_TRY(chart_add(&p->chart, strcmp(mode, "kv") == 0 ? "injected" : mode, point));
    }
    return INFERSCALE_OK;
}

is_status report_serve(report *r, size_t head, const json_t *file)
{
    report_head *h = &r->heads[head];
    const json_t *rows = json_object_get(file, "rows");
    char users[120], subtitle[CHART_TEXT];
    report_plot *p;
    chart *c;

    list_of(rows, "users", users, sizeof users);
    report_print(h->command, sizeof h->command,
                 "inferscale bench serve --users %s --k %.0f --pairs %.0f --max-tokens %.0f --json",
                 users, report_number(file, "k"), report_number(file, "pairs"),
                 report_number(file, "max_tokens"));
    IS_TRY(report_plot_new(r, REPORT_SERVE, head, &p));
    c = &p->chart;
    c->kind = CHART_LINES;
    report_copy(c->id, sizeof c->id, h->file);
    report_copy(c->title, sizeof c->title, "Answers a second by number of users");
    report_subtitle(h, subtitle);
    report_print(c->subtitle, sizeof c->subtitle, "%s; k = %.0f, %.0f tokens out", subtitle,
                 report_number(file, "k"), report_number(file, "max_tokens"));
    report_copy(c->x.title, sizeof c->x.title, "users who ask without a pause");
    report_copy(c->unit, sizeof c->unit, "users");
    report_copy(c->value.title, sizeof c->value.title, "answers a second");
    report_copy(c->interval, sizeof c->interval, "the lowest and the highest window");
    report_copy(c->more[0], sizeof c->more[0], "median first token, ms");
    report_copy(c->more[1], sizeof c->more[1], "99% of first tokens, ms");
    return serve_rows(p, rows);
}

/* ---- eval recall ----------------------------------------------------------------------------- */

is_status report_recall(report *r, size_t head, const json_t *file)
{
    report_head *h = &r->heads[head];
    const json_t *rows = json_object_get(file, "rows");
    char ks[120];
    report_plot *p;
    chart *c;

    list_of(rows, "k", ks, sizeof ks);
    report_print(h->command, sizeof h->command, "inferscale eval recall --data FILE --json");
    IS_TRY(report_plot_new(r, REPORT_RECALL, head, &p));
    c = &p->chart;
    c->kind = CHART_LINES;
    report_copy(c->id, sizeof c->id, h->file);
    report_copy(c->title, sizeof c->title, "Evidence found by number of results");
    report_print(c->subtitle, sizeof c->subtitle, "%s; %.0f conversations, categories 1 to 4",
                 h->model[0] ? h->model : "words alone", report_number(file, "conversations"));
    report_copy(c->x.title, sizeof c->x.title, "results that count, k");
    report_copy(c->unit, sizeof c->unit, "results");
    report_copy(c->value.title, sizeof c->value.title, "mean recall of evidence turns, %");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const chart_point point = { .x = report_number(row, "k"),
                                    .value = 100 * report_number(row, "recall"),
                                    .lo = NAN,
                                    .hi = NAN,
                                    .n = report_number(row, "n"),
                                    .more = { NAN, NAN } };
        char series[CHART_TEXT];

        if (strcmp(report_text(row, "categories"), "1-4") != 0) continue;
        report_print(series, sizeof series, "%s, %s", report_text(row, "store"),
                     report_text(row, "method"));
        IS_TRY(chart_add(c, series, point));
    }
    return INFERSCALE_OK;
}
