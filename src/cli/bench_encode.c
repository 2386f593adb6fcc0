/* bench_encode.c - the verb `bench encode`: what encoding costs by policy, and what capturing spans together gains. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "eval/bench_encode.h"

static const cli_option options[] = {
    { "--facts", "N", "facts to encode (default: 64)" },
    { "--data", "FILE", "encode the observations of a LoCoMo file's conversation, not invented facts (turns:W and cwe:W need turns)" },
    { "--conversation", "ID", "which (default: the file's first)" },
    { "--runs", "N", "pairs of runs behind batched_ratio, at least 5 (default: 7)" },
    { "--spans", "N", "spans of each policy in such a run, at most (default: 48)" },
    { "--batch", "N", "spans captured in one call (default: 16)" },
    { "--seed", "N", "of the invented facts and the order of the runs (default: 1)" },
    CLI_ENGINE_ROWS,
    CLI_UPSTREAM_HOME_ROW,
    { "--embedder", "WHAT", "for near, company and page:N@topic: " CLI_EMBEDDER_HELP },
    { NULL, NULL, NULL },
};

static const char details[] =
    "Encodes the same facts under every --policy (a list with commas; without it the defaults of both stages and their rivals) in a\n"
    "throw-away store: facts a second, and tokens computed per stored token, of the product's own encoder. A policy that computes at\n"
    "most 1.5 tokens per stored one may serve as the first stage.\n"
    "\n"
    "batched_ratio compares captures alone: the policy's spans one at a time (what of a context is still in place is not run again)\n"
    "and together (many spans in a decode; a page in one pass), by turns in one process; the median of the pairs' quotients. Above 1,\n"
    "together is faster. With --threads 1 it is the processor's time, which neighbours on a busy machine do not lengthen; else the\n"
    "wall's.\n"
    "\n"
    "Examples:\n"
    "  inferscale bench encode --threads 1 --policy header,page:16 --json";

typedef struct list { char *text; const char *names[BENCH_ENCODE_POLICIES]; size_t n; } list;

/* The names in --policy, or the defaults and their rivals. 0, or the exit code. */
static int take_policies(const cli_args *a, list *l)
{
    static const char rivals[] = IS_DEFAULT_POLICY "," IS_DEFAULT_REFINE ",alone,header,facts:5,near:3,page:16";
    char *save = NULL;

    l->text = is_strdup(cli_str(a, "--policy", rivals));
    for (char *s = l->text ? strtok_r(l->text, ",", &save) : NULL; s; s = strtok_r(NULL, ",", &save)) {
        bool twice = false;
        is_policy p;

        if (is_policy_parse(s, &p) != INFERSCALE_OK) return cli_usage(a, "%s", is_error());
        for (size_t i = 0; i < l->n; i++) twice = twice || strcmp(l->names[i], s) == 0;
        if (twice) continue;
        if (l->n == BENCH_ENCODE_POLICIES) return cli_usage(a, "--policy takes up to %d policies", BENCH_ENCODE_POLICIES);
        l->names[l->n++] = s;
    }
    return l->n ? 0 : cli_usage(a, "--policy takes policies with commas between");
}

/* ---- Output -------------------------------------------------------------------------------------------------------------- */

static const char *stage_of(const bench_encode_row *r)
{
    return r->first ? "first" : "refine";
}

static int print_json(const inferscale_model_info *info, const bench_encode_options *o, bool cpu_clock, const bench_encode_row *rows,
                      size_t n)
{
    json_t *report = cli_report(info, o->seed), *out = json_object_get(report, "rows");

    json_object_set_new(report, "threads", json_integer(info->n_threads));
    json_object_set_new(report, "runs", json_integer(o->runs));
    json_object_set_new(report, "batch", json_integer(o->batch));
    json_object_set_new(report, "facts", json_string(o->data ? "a conversation's observations" : "invented"));
    json_object_set_new(report, "ratio_clock", json_string(cpu_clock ? "processor time of the one thread" : "time on the wall"));
    for (size_t i = 0; i < n; i++) {
        const bench_encode_row *r = &rows[i];
        json_t *row = json_pack("{s:s,s:s,s:s,s:b,s:f,s:f,s:f}", "model", info->name, "policy", r->policy, "stage", stage_of(r),
                                "default", r->is_default, "facts_per_s", r->facts_per_s, "computed_per_stored",
                                r->computed_per_stored, "batched_ratio", r->batched_ratio);
        json_t *more = json_pack("{s:f,s:f,s:f,s:f,s:i,s:i,s:I,s:I,s:I,s:I}", "ratio_lo", r->ratio_lo, "ratio_hi", r->ratio_hi, "apart_ms",
                                 r->apart_ms, "together_ms", r->together_ms, "n_spans", (int)r->n_spans, "span_tokens",
                                 (int)r->span_tokens, "n_facts", (json_int_t)r->facts, "tokens_stored", (json_int_t)r->tokens_stored,
                                 "tokens_computed", (json_int_t)r->tokens_computed, "facts_left", (json_int_t)r->facts_left);

        json_object_update(row, more);
        json_decref(more);
        json_array_append_new(out, row);
    }
    return cli_print_json(report);
}

static void print_table(const inferscale_model_info *info, const bench_encode_options *o, const bench_encode_row *rows, size_t n)
{
    char shown[192];
    printf("%s %s, %u thread%s; * = the default of its stage\n\n", cli_model_shown(info, shown), info->weights, info->n_threads,
           info->n_threads == 1 ? "" : "s");
    printf("%-18s %-7s %6s %8s %9s   %9s %11s %8s   %s\n", "policy", "stage", "facts", "facts/s", "computed", "one by one", "together",
           "ratio", "quartiles");
    for (size_t i = 0; i < n; i++) {
        const bench_encode_row *r = &rows[i];

        printf("%-17s%c %-7s %6llu %8.1f %8.2fx   %7.0f ms %8.0f ms %7.2fx   %.2f - %.2f of %u\n", r->policy, r->is_default ? '*' : ' ',
               stage_of(r), (unsigned long long)r->facts, r->facts_per_s, r->computed_per_stored, r->apart_ms, r->together_ms,
               r->batched_ratio, r->ratio_lo, r->ratio_hi, o->runs);
    }
}

/* ---- The verb ------------------------------------------------------------------------------------------------------------ */

static is_status take_data(const cli_args *a, bench_encode_options *o, locomo **data)
{
    const char *path = cli_str(a, "--data", NULL), *id = cli_str(a, "--conversation", NULL);

    if (!path) return INFERSCALE_OK;
    IS_TRY(locomo_load(path, data));
    o->data = id ? locomo_find(*data, id) : (*data)->n ? &(*data)->conversations[0] : NULL;
    if (o->data) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOTFOUND, "there is no conversation \"%.60s\" in %s; name one that is", id ? id : "", path);
}

static int run(const cli_args *a, bench_encode_options *o)
{
    bench_encode_row rows[BENCH_ENCODE_POLICIES];
    inferscale_model_info info = { 0 };
    locomo *data = NULL;
    cli_progress bar;
    bool cpu_clock = false;
    size_t n = 0;
    is_status st;
    int code = 0;

    o->cancel = cli_interrupt();
    o->on_progress = cli_progress_at;
    o->progress_ctx = &bar;
    cli_progress_start(&bar, "measuring", 0);
    st = take_data(a, o, &data);
    if (st == INFERSCALE_OK) st = bench_encode_run(o, rows, &n, &info, &cpu_clock);
    cli_progress_end(&bar);
    if (st != INFERSCALE_OK) code = cli_fail_as(a, st);
    else if (cli_flag(a, "--json")) code = print_json(&info, o, cpu_clock, rows, n);
    else print_table(&info, o, rows, n);
    locomo_free(data);
    return code;
}

static int cmd_bench_encode(const cli_args *a)
{
    bench_encode_options o = {
        .n_facts = (uint32_t)cli_int(a, "--facts", 64, 1, 5000),
        .runs = (uint32_t)cli_int(a, "--runs", 7, 5, 101),
        .n_spans = (uint32_t)cli_int(a, "--spans", 48, 1, 512),
        .batch = (uint32_t)cli_int(a, "--batch", 16, 1, 512),
        .seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX),
    };
    list policies = { 0 };
    int code;

    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    code = take_policies(a, &policies);
    cli_options(a, &o.store);
    o.store.policy = NULL; /* --policy is what is measured; the store's is the default */
    cli_engine(a, &o.store);
    o.store.embedder = cli_str(a, "--embedder", NULL);
    o.policies = policies.names;
    o.n_policies = policies.n;
    if (code == 0) code = run(a, &o);
    is_free(policies.text);
    return code;
}

const cli_verb cli_verb_bench_encode = {
    "bench encode", "", "Measure encoding by policy, one span at a time and together", details, options, CLI_MODEL | CLI_JSON,
    cmd_bench_encode,
};
