/* eval_compare.c - the verb `eval compare`: two reports of `eval fidelity --json`, question by question. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/out.h"
#include "eval/compare.h"

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void put(json_t *o, const char *name, const char *lo, const char *hi, double x, stats_interval i)
{
    json_object_set_new(o, name, number(x));
    json_object_set_new(o, lo, number(i.lo));
    json_object_set_new(o, hi, number(i.hi));
}

static json_t *row_json(const compare_row *r)
{
    json_t *j = json_object();

    json_object_set_new(j, "arm", cli_json_text(r->arm));
    json_object_set_new(j, "system", cli_json_text(r->system));
    json_object_set_new(j, "policy", cli_json_text(r->policy));
    json_object_set_new(j, "repair", json_integer(r->repair));
    json_object_set_new(j, "yardstick", json_string(r->yardstick));
    json_object_set_new(j, "void", json_boolean(r->is_void));
    put(j, "ratio_a", "ratio_a_lo", "ratio_a_hi", r->a, r->a_i);
    put(j, "ratio_b", "ratio_b_lo", "ratio_b_hi", r->b, r->b_i);
    put(j, "difference", "difference_lo", "difference_hi", r->difference, r->difference_i);
    json_object_set_new(j, "kl_a", number(r->kl_a));
    json_object_set_new(j, "kl_b", number(r->kl_b));
    json_object_set_new(j, "yardstick_kl_a", number(r->order_a));
    json_object_set_new(j, "yardstick_kl_b", number(r->order_b));
    return j;
}

/* What each run was of. */
static json_t *run_json(const json_t *report)
{
    static const char *const keys[] = { "model",  "engine", "weights", "codec",
                                        "machine", "commit", "date",    "kv_bytes_per_token" };
    json_t *j = json_object();

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) json_object_set(j, keys[i], json_object_get(report, keys[i]));
    return j;
}

static int print_json(const json_t *a, const json_t *b, const compare *c, uint64_t seed)
{
    json_t *report = json_pack("{s:o,s:o,s:I,s:I,s:I,s:I,s:s,s:i,s:I,s:[]}", "a", run_json(a), "b", run_json(b), "n", (json_int_t)c->n, "only_a",
                               (json_int_t)c->only_a, "only_b", (json_int_t)c->only_b, "same_answer", (json_int_t)c->same_answer, "resampled",
                               c->by_conversation ? "conversations" : "questions", "resamples", (int)STATS_RESAMPLES, "seed", (json_int_t)seed,
                               "rows");

    for (size_t i = 0; i < c->n_rows; i++) json_array_append_new(json_object_get(report, "rows"), row_json(&c->rows[i]));
    return cli_print_json(report);
}

/* "A: smollm2 (vllm, f32), 2026-11-30" */
static void print_run(const char *side, const json_t *report)
{
    char line[512];
    const char *model = json_string_value(json_object_get(report, "model")), *engine = json_string_value(json_object_get(report, "engine"));
    const char *weights = json_string_value(json_object_get(report, "weights")), *date = json_string_value(json_object_get(report, "date"));

    snprintf(line, sizeof line, "%s: %s (%s, %s), %s", side, model ? model : "-", engine ? engine : "-", weights ? weights : "-", date ? date : "-");
    cli_put_text(stdout, line, true);
    putchar('\n');
}

static void with_interval(char *out, size_t cap, double x, stats_interval i)
{
    if (isnan(x)) snprintf(out, cap, "-");
    else snprintf(out, cap, "%.3f [%.3f, %.3f]", x, i.lo, i.hi);
}

static void print_table(const json_t *a, const json_t *b, const compare *c)
{
    print_run("A", a);
    print_run("B", b);
    printf("%zu questions of both, %zu with the same reference answer", c->n, c->same_answer);
    if (c->only_a + c->only_b) printf("; left out: %zu that only A has, %zu that only B has", c->only_a, c->only_b);
    printf("\n\n%-9s %-16s %3s %-6s  %-22s %-22s %-24s\n", "arm", "policy", "rep", "order", "ratio of A [95%]", "ratio of B [95%]", "A - B [95%]");
    for (size_t i = 0; i < c->n_rows; i++) {
        const compare_row *r = &c->rows[i];
        char ratios[3][64], line[400];

        with_interval(ratios[0], sizeof ratios[0], r->a, r->a_i);
        with_interval(ratios[1], sizeof ratios[1], r->b, r->b_i);
        with_interval(ratios[2], sizeof ratios[2], r->difference, r->difference_i);
        snprintf(line, sizeof line, "%-9s %-16s %3d %-6s  %-22s %-22s %-24s", r->arm, r->policy, r->repair, r->yardstick, ratios[0], ratios[1],
                 ratios[2]);
        cli_put_text(stdout, line, true);
        putchar('\n');
    }
    printf("\nRatios are mean KL over that of the same facts reordered, of the questions that both have; void (-) where a reordering is\n"
           "within 5 times the numerical floor. A question is drawn for both at once, so the difference has an interval of its own.\n");
}

static int load(const cli_args *a, size_t i, json_t **out)
{
    json_error_t e;

    *out = json_load_file(cli_at(a, i), JSON_REJECT_DUPLICATES, &e);
    if (*out) return CLI_OK;
    return e.line > 0 ? cli_fail_msg(a, "%.200s is no JSON: line %d: %.120s", cli_at(a, i), e.line, e.text)
                      : cli_fail_msg(a, "%.120s", e.text); /* it names the file */
}

static int cmd_eval_compare(const cli_args *a)
{
    uint64_t seed;
    json_t *reports[2] = { NULL, NULL };
    compare *c = NULL;
    int rc;

    if (cli_n(a) != 2) return cli_usage(a, "give two files that `inferscale eval fidelity --json` wrote");
    seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX);
    rc = load(a, 0, &reports[0]);
    if (rc == CLI_OK) rc = load(a, 1, &reports[1]);
    if (rc == CLI_OK) {
        is_status st = compare_reports(reports[0], reports[1], cli_flag(a, "--common"), seed, &c);

        if (st != INFERSCALE_OK) rc = cli_fail_as(a, st);
        else if (cli_wants_json(a)) rc = print_json(reports[0], reports[1], c, seed);
        else print_table(reports[0], reports[1], c);
    }
    compare_free(c);
    json_decref(reports[0]);
    json_decref(reports[1]);
    return rc;
}

static const cli_option options[] = {
    { "--common", NULL, "take the questions that both have, and say how many were left out" },
    { "--seed", "N", "of the resampling (default: 1)" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_eval_compare = {
    "eval compare", "A.json B.json", "Compare two runs of eval fidelity question by question",
    "Pairs the questions of two reports and gives each run's order ratio over them, and the difference of the two with a 95% interval: the\n"
    "same weights on two engines, two codecs, two versions. Runs that did not ask the same are refused: other settings, other\n"
    "policies or k, a question that only one has, or a question with other prompts (each report holds a hash of what was asked).\n\n"
    "To ask the same of two engines, give both the same options, and stores that held nothing before: facts are told apart by\n"
    "their numbers there. scripts/gguf2hf.py and scripts/gguf2bf16.py write the same weights for vLLM and for libllama.\n\n"
    "Examples:\n"
    "  inferscale eval fidelity --data locomo10.json --json >llama.json\n"
    "  inferscale eval fidelity --data locomo10.json --json --engine vllm --upstream http://127.0.0.1:8000 --home DIR >vllm.json\n"
    "  inferscale eval compare vllm.json llama.json\n",
    options, CLI_JSON, cmd_eval_compare,
};
