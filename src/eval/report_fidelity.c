/* report_fidelity.c - plots of `eval fidelity`, and of two of its reports side by side. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/report_parts.h"

/* ---- Names ----------------------------------------------------------------------------------- */

/* What an arm's row is called, and which series it is of. */
static const char *arm_name(const json_t *row, char out[CHART_TEXT])
{
    static const char *const names[][3] = {
        { "C", "no memory", "no memory" },
        { "D", "gold facts alone, as text", "gold" },
        { "N", "the same text in other batches", "numerical floor" },
        { "S", "reordered, best fact last (S)", "reordered" },
        { "S_free", "reordered (S_free)", "reordered" },
    };
    const char *arm = report_text(row, "arm"), *policy = report_text(row, "policy");
    const char *series = "injected", *first = policy[0] ? policy : arm;
    const double repair = report_number(row, "repair");
    char how[64] = "";

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(arm, names[i][0]) == 0) first = names[i][1], series = names[i][2];
    if (repair > 0) report_print(how, sizeof how, " + best %.0f as text", repair);
    report_print(out, CHART_TEXT, "%s%s%s%s", first, how,
                 strcmp(arm, "generic") == 0 || strcmp(arm, "matching") == 0 ? ", " : "",
                 strcmp(arm, "generic") == 0 || strcmp(arm, "matching") == 0 ? arm : "");
    if (strcmp(report_text(row, "system"), "client") == 0 && policy[0] == 0)
        report_copy(out + strlen(out), CHART_TEXT - strlen(out), ", client's text");
    return series;
}

static bool is_client(const json_t *row)
{
    return strcmp(report_text(row, "system"), "client") == 0;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* "NAME, Q4_0, int8": runs whose ratios may stand on one line. */
static void group_of(const report_head *h, const json_t *file, bool with_codec,
                     char out[CHART_TEXT])
{
    const char *codec = report_text(file, "codec");
    char model[CHART_TEXT];

    report_model(h, model);
    report_print(out, CHART_TEXT, "%s%s%s", model, with_codec && codec[0] ? ", rows in " : "",
                 with_codec ? codec : "");
}

static is_status add_sums(report *r, size_t head, const json_t *file, const char *name,
                          const chart_point *point, double k)
{
    const double bytes = report_number(file, "kv_bytes_per_token");
    report_sum sum = { .section = REPORT_ORDER_K, .point = *point, .head = head };
    char model[CHART_TEXT];

    if (!isfinite(k)) return INFERSCALE_OK;
    sum.point.x = k;
    report_copy(sum.series, sizeof sum.series, name);
    group_of(&r->heads[head], file, true, sum.group);
    IS_TRY(report_sum_add(r, &sum));
    if (!(bytes > 0) || report_text(file, "codec")[0] == 0) return INFERSCALE_OK;
    sum.section = REPORT_CODEC;
    sum.point.x = bytes;
    report_model(&r->heads[head], model);
    report_print(sum.group, sizeof sum.group, "%s; k = %.0f", model, k);
    return report_sum_add(r, &sum);
}

/* ---- eval fidelity --------------------------------------------------------------------------- */

static void make_command(report_head *h, const json_t *file)
{
    const json_t *rows = json_object_get(file, "rows");
    const char *talk = json_string_value(json_array_get(json_object_get(file, "conversations"), 0));
    const char *codec = report_text(file, "codec");
    char list[200] = "", model[CHART_TEXT];

    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *policy = report_text(row, "policy");
        const size_t n = strlen(list);

        if (policy[0] == 0 || is_client(row) || report_number(row, "repair") > 0) continue;
        report_print(list + n, sizeof list - n, "%s%s", n ? "," : "", policy);
    }
    report_model_option(h, model);
    report_print(h->command, sizeof h->command,
                 "inferscale eval fidelity %s%s%s%s--data FILE --conversation %s --k %.0f --n %.0f "
                 "--orders %.0f --seed %s --policy %s --json",
                 model, codec[0] ? "--codec " : "", codec, codec[0] ? " " : "", talk ? talk : "ID", report_number(json_array_get(rows, 0), "k"),
                 report_number(json_array_get(rows, 0), "n"), report_number(file, "orders"),
                 h->seed, list);
}

static void begin_plot(chart *c, const report_head *h, const json_t *file)
{
    const json_t *row = json_array_get(json_object_get(file, "rows"), 0);
    const json_t *conversations = json_object_get(file, "conversations");
    char subtitle[CHART_TEXT];

    report_subtitle(h, subtitle);
    c->kind = CHART_DOTS;
    c->value.log = true;
    c->mark = 1;
    report_copy(c->mark_name, sizeof c->mark_name, "a reordering");
    report_copy(c->id, sizeof c->id, h->file);
    report_copy(c->title, sizeof c->title,
                "Order ratio by policy: KL from the text twin over a reordering's");
    report_print(c->subtitle, sizeof c->subtitle,
                 "%s; k = %.0f, %.0f questions, %zu conversation%s", subtitle,
                 report_number(row, "k"), report_number(row, "n"),
                 json_array_size(conversations), json_array_size(conversations) == 1 ? "" : "s");
    report_copy(c->value.title, sizeof c->value.title,
                "order ratio to S_free (logarithmic; below 1: nearer than a reordering)");
    report_copy(c->x.title, sizeof c->x.title, "rows encoded under");
    report_print(c->interval, sizeof c->interval, "95%%, bootstrap over %s",
                 report_text(file, "resampled")[0] ? report_text(file, "resampled") : "questions");
    report_copy(c->more[0], sizeof c->more[0], "mean KL, nats a token");
    report_copy(c->more[1], sizeof c->more[1], "ratio to S");
}

static bool has_ratio(const json_t *rows)
{
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (isfinite(report_number(json_array_get(rows, i), "order_ratio"))) return true;
    return false;
}

/* Without a yardstick (void, or left out): the KL itself. */
static void plot_kl(chart *c)
{
    c->mark = NAN;
    report_copy(c->title, sizeof c->title, "Mean KL from the text twin by policy");
    report_copy(c->value.title, sizeof c->value.title, "mean KL, nats a token (logarithmic)");
    c->more[0][0] = 0;
}

is_status report_fidelity(report *r, size_t head, const json_t *file)
{
    const json_t *rows = json_object_get(file, "rows");
    const bool ratios = has_ratio(rows);
    report_plot *p;

    make_command(&r->heads[head], file);
    IS_TRY(report_plot_new(r, REPORT_ORDER, head, &p));
    begin_plot(&p->chart, &r->heads[head], file);
    if (!ratios) plot_kl(&p->chart);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        char name[CHART_TEXT];
        const char *series = arm_name(row, name);
        chart_point point = {
            .value = report_number(row, ratios ? "order_ratio" : "kl_mean"),
            .lo = report_number(row, ratios ? "ratio_lo" : "kl_lo"),
            .hi = report_number(row, ratios ? "ratio_hi" : "kl_hi"),
            .n = report_number(row, "n"),
            .more = { ratios ? report_number(row, "kl_mean") : NAN,
                      report_number(row, "order_ratio_s") } };
        const bool injects = strcmp(series, "injected") == 0 || strcmp(series, "no memory") == 0;

        point.x = isfinite(point.value) ? chart_row_of(&p->chart, name) : -1;
        IS_TRY(chart_add(&p->chart, series, point));
        if (!ratios || is_client(row) || !injects) continue;
        point.more[0] = point.more[1] = NAN;
        IS_TRY(add_sums(r, head, file, name, &point, report_number(row, "k")));
    }
    return INFERSCALE_OK;
}

/* ---- eval compare ---------------------------------------------------------------------------- */

static void side_name(const json_t *side, const char *letter, char out[CHART_TEXT])
{
    const char *codec = report_text(side, "codec");

    report_print(out, CHART_TEXT, "%s: %s, %s%s%s", letter, report_text(side, "engine"),
                 report_text(side, "weights"), codec[0] ? ", rows in " : "", codec);
}

static is_status compare_row(report_plot *p, const json_t *file, const json_t *row)
{
    static const char *const keys[2][4] = { { "a", "ratio_a", "ratio_a_lo", "ratio_a_hi" },
                                            { "b", "ratio_b", "ratio_b_lo", "ratio_b_hi" } };
    static const char *const letters[] = { "A", "B" };
    char name[CHART_TEXT], label[CHART_TEXT + 32];

    (void)arm_name(row, name);
    report_print(label, sizeof label, "%s, over %s", name, report_text(row, "yardstick"));
    for (int i = 0; i < 2; i++) {
        char side[CHART_TEXT];
        const chart_point point = { .x = chart_row_of(&p->chart, label),
                                    .value = report_number(row, keys[i][1]),
                                    .lo = report_number(row, keys[i][2]),
                                    .hi = report_number(row, keys[i][3]),
                                    .n = report_number(file, "n"),
                                    .more = { i == 0 ? report_number(row, "difference") : NAN,
                                              NAN } };

        side_name(json_object_get(file, keys[i][0]), letters[i], side);
        IS_TRY(chart_add(&p->chart, side, point));
    }
    return INFERSCALE_OK;
}

is_status report_compare(report *r, size_t head, const json_t *file)
{
    report_head *h = &r->heads[head];
    const json_t *rows = json_object_get(file, "rows");
    report_plot *p;
    chart *c;

    report_head_read(h, json_object_get(file, "a"));
    report_print(h->command, sizeof h->command, "inferscale eval compare A.json B.json --json");
    IS_TRY(report_plot_new(r, REPORT_ORDER, head, &p));
    c = &p->chart;
    begin_plot(c, h, file);
    report_copy(c->title, sizeof c->title, "Order ratios of two runs over the same questions");
    report_print(c->subtitle, sizeof c->subtitle, "%s (A) and %s (B), %.0f questions",
                 report_text(json_object_get(file, "a"), "model"),
                 report_text(json_object_get(file, "b"), "model"), report_number(file, "n"));
    report_copy(c->value.title, sizeof c->value.title, "order ratio (logarithmic)");
    report_copy(c->more[0], sizeof c->more[0], "A - B");
    c->more[1][0] = 0;
    for (size_t i = 0; i < json_array_size(rows); i++)
        IS_TRY(compare_row(p, file, json_array_get(rows, i)));
    return INFERSCALE_OK;
}
