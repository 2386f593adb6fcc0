/* eval_recall.c - `inferscale eval recall`: how much of the gold evidence recall finds on a LoCoMo file. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/args.h"
#include "cli/out.h"
#include "eval/recall_eval.h"

static int on_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    return cli_progress_at(ctx, done, total, what) || *cli_interrupt();
}

static json_t *row_json(const recall_eval_row *r)
{
    return json_pack("{s:s,s:s,s:s,s:I,s:f,s:I}", "store", r->store, "method", r->method, "categories", r->categories, "k",
                     (json_int_t)r->k, "recall", r->recall, "n", (json_int_t)r->n);
}

/* The report's model is the embedder; its weight format is the last part of an installed file's name ("...-f16.gguf"). */
static json_t *new_report(const char *embedder)
{
    inferscale_model_info info = {0};
    const char *dash, *end;

    if (!embedder) return cli_report(NULL, 0);
    snprintf(info.name, sizeof info.name, "%s", embedder);
    dash = strrchr(embedder, '-');
    end = dash ? strstr(dash, ".gguf") : NULL;
    for (size_t i = 0; end && dash + 1 + i < end && i + 1 < sizeof info.weights; i++)
        info.weights[i] = (char)toupper((unsigned char)dash[1 + i]);
    return cli_report(&info, 0);
}

static int print_json(const recall_eval_report *r, const char *embedder)
{
    json_t *report = new_report(embedder), *rows = json_object_get(report, "rows");

    for (size_t i = 0; i < r->n_rows; i++) json_array_append_new(rows, row_json(&r->rows[i]));
    json_object_set_new(report, "embedder", embedder ? cli_json_text(embedder) : json_null());
    json_object_set_new(report, "conversations", json_integer((json_int_t)r->n_conversations));
    json_object_set_new(report, "turns", json_integer((json_int_t)r->n_turns));
    json_object_set_new(report, "facts", json_integer((json_int_t)r->n_facts));
    json_object_set_new(report, "embed_ms", json_real(r->embed_ms));
    json_object_set_new(report, "recall_ms", json_real(r->recall_ms));
    return cli_print_json(report);
}

/* One line a store and method; a column for each k of categories 1-4, then of 5. */
static void print_table(const recall_eval_report *r, const recall_eval_opts *o, const char *embedder)
{
    char title[32];

    printf("%zu conversations, %zu turns, %zu facts, embedder %s\n", r->n_conversations, r->n_turns, r->n_facts,
           embedder ? embedder : "none (words only)");
    printf("Mean recall of gold evidence turns, in percent.\n\n%-8s%-10s", "store", "method");
    for (int five = 0; five < 2; five++)
        for (size_t k = 0; k < o->n_k; k++) {
            snprintf(title, sizeof title, "%s @%u", five ? "5" : "1-4", o->k[k]);
            printf("%10s", title);
        }
    for (size_t i = 0; i < r->n_rows; i++) {
        const recall_eval_row *a = &r->rows[i];
        if (strcmp(a->categories, "1-4") != 0 || a->k != o->k[0]) continue;
        printf("\n%-8s%-10s", a->store, a->method);
        for (int five = 0; five < 2; five++)
            for (size_t k = 0; k < o->n_k; k++)
                for (size_t j = 0; j < r->n_rows; j++) {
                    const recall_eval_row *b = &r->rows[j];
                    if (b->k == o->k[k] && strcmp(b->categories, five ? "5" : "1-4") == 0 && strcmp(a->store, b->store) == 0 &&
                        strcmp(a->method, b->method) == 0)
                        printf("%10.1f", 100 * b->recall);
                }
    }
    printf("\n\nA question: embedding %.2f ms, search %.3f ms (medians).\n", r->embed_ms, r->recall_ms);
}

static const char *key(const cli_args *a)
{
    const char *env = getenv("INFERSCALE_EMBEDDER_KEY");
    return cli_str(a, "--embedder-key", env && *env ? env : NULL);
}

static int run(const cli_args *a, const locomo *l, recall_eval_opts *o)
{
    bool words_only = cli_flag(a, "--lexical-only");
    const char *wanted = cli_str(a, "--embedder", NULL);
    bool url = wanted && strncmp(wanted, "http", 4) == 0 && strstr(wanted, "://");
    char *spec = words_only ? NULL : url ? is_strdup(wanted) : cli_embedder_path(wanted);
    recall_eval_report *report = NULL;
    cli_progress progress;
    is_status st = INFERSCALE_OK;
    int rc;

    if (!words_only && !spec) return cli_fail(a);
    if (spec)
        st = is_embedder_open(NULL, cli_str(a, "--engine", NULL), spec, key(a),
                              (uint32_t)cli_int(a, "--threads", 0, 0, 1024), &o->embedder);
    if (st == INFERSCALE_OK) {
        o->on_progress = on_progress;
        o->progress_ctx = &progress;
        cli_progress_start(&progress, "embedding", 0);
        st = recall_eval_run(l, o, &report);
        cli_progress_end(&progress);
    }
    const char *name = spec && !url && strrchr(spec, '/') ? strrchr(spec, '/') + 1 : spec;
    if (st != INFERSCALE_OK) rc = cli_fail_as(a, st);
    else if (cli_wants_json(a)) rc = print_json(report, name);
    else {
        print_table(report, o, name);
        rc = CLI_OK;
    }
    recall_eval_free(report);
    is_embedder_close(o->embedder);
    is_free(spec);
    return rc;
}

int cmd_eval_recall(const cli_args *a)
{
    const char *path = cli_str(a, "--data", NULL);
    recall_eval_opts o = {.conversation = cli_str(a, "--conversation", NULL)};
    int64_t k[RECALL_EVAL_MAX_K + 1];
    locomo *l = NULL;

    if (cli_n(a)) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    if (!path) return cli_usage(a, "--data FILE is missing; give a LoCoMo file as published");
    o.n_k = cli_int_list(a, "--k", "10,50", k, RECALL_EVAL_MAX_K + 1);
    if (o.n_k < 1 || o.n_k > RECALL_EVAL_MAX_K) return cli_usage(a, "--k takes 1 to %d numbers with commas between",
                                                                 RECALL_EVAL_MAX_K);
    for (size_t i = 0; i < o.n_k; i++) {
        if (k[i] < 1 || k[i] > 1000) return cli_usage(a, "--k takes numbers from 1 to 1000");
        o.k[i] = (uint32_t)k[i];
    }
    cli_interrupt();
    is_status st = locomo_load(path, &l);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    int rc = run(a, l, &o);
    locomo_free(l);
    return rc;
}

static const cli_option options[] = {
    {"--data", "FILE", "a LoCoMo file as published (required)"},
    {"--conversation", "ID", "one conversation (default: all)"},
    {"--k", "K[,K]", "how many results count, 1-1000 (default: 10,50)"},
    {"--threads", "N", "of the embedder (default: physical cores)"},
    {"--lexical-only", NULL, "without an embedder"},
    {"--engine", "NAME", "engine plug-in that embeds: llama (default) or mock"},
    {"--embedder", "WHAT", CLI_EMBEDDER_HELP},
    {"--embedder-key", "KEY", "API key of an HTTP embedder (better: $INFERSCALE_EMBEDDER_KEY)"},
    {NULL, NULL, NULL},
};

const cli_verb cli_verb_eval_recall = {
    "eval recall", "", "Measure how much of the evidence recall finds",
    "Remembers each conversation of a LoCoMo file in a temporary store (turns, and observations as facts), asks its\n"
    "questions, and counts which part of the evidence turns the k best results credit: a turn credits itself, an observation\n"
    "the turns it cites. Stores turns, facts and both; methods lexical, dense and fused; categories 1-4 together, and each.\n\n"
    "Examples:\n  inferscale eval recall --data locomo10.json --k 10,50 --json\n",
    options, CLI_JSON, cmd_eval_recall,
};
