/* ask.c - `inferscale ask`: one question, answered with memory. */
#include <stdio.h>
#include <string.h>

#include "cli/answer.h"
#include "cli/args.h"
#include "cli/out.h"
#include "exchange/json.h"

static void print_result(const cli_args *a, inferscale *is, const inferscale_scope *scope, const inferscale_answer *answer,
                         double load_ms)
{
    char load[32];
    putchar('\n');
    if (!cli_printed()) return;
    if (answer->fallback && *answer->fallback) {
        fputs("Note: ", stderr);
        cli_put_text(stderr, answer->fallback, true);
        fputc('\n', stderr);
    }
    if (cli_flag(a, "--facts")) cli_answer_facts(stderr, is, scope, answer);
    if (!cli_flag(a, "--stats")) return;
    cli_answer_stats(stderr, answer);
    cli_ms(load_ms, load);
    fprintf(stderr, "  %-14s %10s  (model, embedder; not part of TTFT)\n", "loading", load);
}

static void print_json(inferscale *is, const inferscale_scope *scope, const inferscale_answer *answer,
                       const inferscale_model_info *info, double load_ms)
{
    json_t *o = cli_answer_json(is, scope, answer);
    json_object_set_new(o, "load_ms", json_real(load_ms));
    json_object_set_new(o, "model", cli_json_text(info->name));
    json_object_set_new(o, "weights", cli_json_text(info->weights));
    cli_print_json(o);
}

/* ---- --dry-run ------------------------------------------------------------------------------------------------------------- */

static void preview_text(const inferscale_preview *p)
{
    int columns = cli_columns();
    printf("%s%-9s %-9s %8s %7s  TEXT%s\n", cli_on(CLI_DIM), "PART", "SOURCE", "POSITION", "TOKENS", cli_off());
    for (size_t i = 0; i < p->n_parts; i++) {
        const inferscale_preview_part *part = &p->parts[i];
        printf("%-9s %-9s %8u %7u  ", part->role, cli_source_name(part->source), part->position, part->tokens);
        cli_put_cut(stdout, part->text, columns > 50 ? columns - 38 : columns ? 16 : 0);
        putchar('\n');
    }
    printf("\n%sPrompt: %u tokens, %u stored, %u to be computed%s\n", cli_on(CLI_DIM), p->tokens_prompt, p->tokens_stored, p->tokens_computed,
           cli_off());
    cli_put_text(stdout, p->prompt, false);
    putchar('\n');
    if (*p->fallback) {
        fputs("Note: ", stderr);
        cli_put_text(stderr, p->fallback, true);
        fputc('\n', stderr);
    }
}

static int dry_run(const cli_args *a, inferscale *is, const inferscale_scope *scope, const inferscale_ask_options *o)
{
    inferscale_preview *p = NULL;
    inferscale_status st = inferscale_dry_run(is, scope, cli_at(a, 0), o, &p);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (cli_wants_json(a))
        cli_print_json(is_preview_json(p));
    else
        preview_text(p);
    inferscale_preview_free(p);
    return CLI_OK;
}

static int cmd_ask(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_ask_options o;
    inferscale_recall_options filters;
    inferscale_answer *answer = NULL;
    inferscale_model_info info;
    inferscale_status st;
    double load_ms;
    bool told = false;
    int rc;
    if (cli_n(a) != 1) return cli_usage(a, "give one question, in quotes");
    if (cli_blank(cli_at(a, 0))) return cli_usage(a, "the question is empty; ask something");
    cli_ask_options(a, &o, &filters);
    cli_scope(a, &scope);
    if (!cli_wants_json(a)) {
        o.on_text = cli_stream;
        o.text_ctx = &told;
    }
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    if (cli_flag(a, "--dry-run")) {
        rc = dry_run(a, is, &scope, &o);
        inferscale_close(is);
        return rc;
    }
    st = cli_load(a, is, &scope, &o, &info, &load_ms);
    if (st == INFERSCALE_OK) st = inferscale_ask(is, &scope, cli_at(a, 0), &o, &answer);
    if (st != INFERSCALE_OK) {
        if (told) putchar('\n'); /* the sentence about what stopped it begins a line of its own */
        fflush(stdout);
        rc = ferror(stdout) ? cli_fail_msg(a, "%s", cli_output_lost) : cli_fail_as(a, st);
    } else if (cli_wants_json(a))
        print_json(is, &scope, answer, &info, load_ms);
    else
        print_result(a, is, &scope, answer, load_ms);
    inferscale_answer_free(answer);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    CLI_ASK_OPTIONS,
    { "--facts", NULL, "print the facts that were used" },
    { "--dry-run", NULL, "show the plan and the final prompt; the model does not run" },
    CLI_RECALL_OPTIONS,
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_ask = {
    "ask", "QUESTION", "Answer a question with what is remembered",
    "The facts that matter are found and their stored keys and values injected; only the question is computed. Where KV cannot "
    "be used the same prompt is computed as text, and a note says why.\n\n"
    "Examples:\n  inferscale ask \"Which food is Anna allergic to?\" --stats\n"
    "  inferscale ask \"Where did I go in May?\" --mode text -k 20\n"
    "  inferscale ask \"What is my budget?\" --repair 2 --json\n"
    "  inferscale ask \"What is my budget?\" --dry-run\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_ask,
};
