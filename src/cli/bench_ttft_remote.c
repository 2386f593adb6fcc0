/* bench_ttft_remote.c - see bench_ttft_remote.h. */
#include "cli/bench_ttft_remote.h"

#include <math.h>
#include <stdio.h>

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *ratio_json(const stats_ratio *r)
{
    return json_pack("{s:o,s:o,s:o}", "ratio", number(r->is), "lo", number(r->in.lo), "hi", number(r->in.hi));
}

static json_t *row_json(const ttft_remote_row *r)
{
    json_t *j = json_pack("{s:i,s:i,s:i,s:i}", "k", (int)r->k, "n", (int)r->n, "prompt_tokens", (int)r->n_prompt, "fact_tokens",
                          (int)r->fact_tokens), *arms = json_object();

    for (int i = 0; i < TTFT_R_ARMS; i++) {
        const ttft_remote_arm *arm = &r->arms[i];
        char key[32];

        snprintf(key, sizeof key, "%s_ms", ttft_remote_arms[i]);
        json_object_set_new(j, key, number(arm->ms));
        json_object_set_new(arms, ttft_remote_arms[i],
                            json_pack("{s:o,s:o,s:i,s:i,s:i}", "lo", number(arm->lo), "hi", number(arm->hi), "computed", (int)arm->computed,
                                      "injected", (int)arm->injected, "resident", (int)arm->resident));
    }
    json_object_set_new(j, "arms", arms);
    json_object_set_new(j, "text_over_injected", ratio_json(&r->text_over_injected));
    json_object_set_new(j, "plain_over_injected", ratio_json(&r->plain_over_injected));
    json_object_set_new(j, "injected_over_repeat", ratio_json(&r->injected_over_repeat));
    json_object_set_new(j, "injected_over_none", ratio_json(&r->injected_over_none));
    json_object_set_new(j, "embed_ms", number(r->embed_ms));
    json_object_set_new(j, "recall_ms", number(r->recall_ms));
    json_object_set_new(j, "plan_ms", number(r->plan_ms));
    return j;
}

static int print_json(const inferscale_model_info *info, const ttft_options *o, const ttft_remote_row *rows, size_t n)
{
    json_t *report = bench_ttft_report(info, o), *list = json_object_get(report, "rows");

    json_object_set_new(report, "engine", cli_json_text(info->engine));
    for (size_t i = 0; i < n; i++) json_array_append_new(list, row_json(&rows[i]));
    return cli_print_json(report);
}

static void print_table(const inferscale_model_info *info, const ttft_options *o, const ttft_remote_row *rows, size_t n)
{
    char shown[192];

    printf("%s on %s, medians of %u interleaved rounds; milliseconds from question to first token\n\n", cli_model_shown(info, shown),
           info->engine, o->runs);
    printf("%5s %8s %9s %9s %9s %9s %9s   %-21s  %-21s  %s\n", "k", "tokens", "text", "plain",
           "injected", "repeat", "none", "text / injected", "plain / injected",
           "injected / repeat");
    for (size_t i = 0; i < n; i++) {
        const ttft_remote_row *r = &rows[i];
        const stats_ratio *a = &r->text_over_injected, *b = &r->plain_over_injected;
        const stats_ratio *c = &r->injected_over_repeat;

        printf("%5u %8u %9.1f %9.1f %9.1f %9.1f %9.1f   %5.2f [%5.2f, %5.2f]   %5.2f [%5.2f, %5.2f]   "
               "%4.2f [%4.2f, %4.2f]\n",
               r->k, r->n_prompt, r->arms[TTFT_R_TEXT].ms, r->arms[TTFT_R_PLAIN].ms,
               r->arms[TTFT_R_INJECTED].ms, r->arms[TTFT_R_REPEAT].ms, r->arms[TTFT_R_NONE].ms,
               a->is, a->in.lo, a->in.hi, b->is, b->in.lo, b->in.hi, c->is, c->in.lo, c->in.hi);
    }
}

int bench_ttft_remote_show(const cli_args *a, const inferscale_model_info *info, const ttft_options *o, const ttft_remote_row *rows, size_t n)
{
    if (cli_flag(a, "--json")) return print_json(info, o, rows, n);
    print_table(info, o, rows, n);
    return 0;
}
