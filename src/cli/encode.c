/* encode.c - `inferscale encode`: embeddings, keys and values of everything that lacks them. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/args.h"
#include "cli/encode_status.h"
#include "cli/loading.h"
#include "cli/out.h"

/* 0 = there is no such stage. */
static int stage_of(const char *name)
{
    static const char *const names[] = { "first", "refine", "all" };

    for (int i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) return INFERSCALE_STAGE_FIRST + i;
    return 0;
}

static int cmd_encode(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_status st;
    cli_progress p;
    double t0 = is_now_ms() - cli_loading_ms(), ms; /* less what it loads meanwhile */
    char stored[32], computed[32], took[32], facts[64], sets[64];
    int rc;
    if (cli_n(a)) return cli_usage(a, "takes no arguments; it encodes everything of the owner that lacks it");
    o.stage = stage_of(cli_str(a, "--stage", "first"));
    if (o.stage == 0) return cli_usage(a, "--stage is first, refine or all, not \"%.40s\"", cli_str(a, "--stage", ""));
    if (cli_flag(a, "--status")) return cli_encode_status(a);
    if (cli_flag(a, "--wait")) return cli_encode_wait(a);
    cli_scope(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    o.again = cli_flag(a, "--again");
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    cli_progress_start(&p, "Encoding", 0);
    st = inferscale_encode(is, &scope, &o);
    cli_progress_end(&p);
    ms = is_now_ms() - cli_loading_ms() - t0;
    snprintf(sets, sizeof sets, " (%llu sets of rows)", (unsigned long long)o.sets_encoded);
    cli_count(o.tokens_stored, stored);
    cli_count(o.tokens_computed, computed);
    cli_ms(ms, took);
    if (st != INFERSCALE_OK)
        rc = cli_fail_as(a, st);
    else if (cli_wants_json(a))
        cli_print_json(json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f}", "facts_left", (json_int_t)o.facts_left,
                                 "sets_encoded", (json_int_t)o.sets_encoded,
                                 "segments_rounded", (json_int_t)o.rounded, "facts_encoded",
                                 (json_int_t)o.facts_encoded, "tokens_stored",
                                 (json_int_t)o.tokens_stored, "tokens_computed", (json_int_t)o.tokens_computed, "ms", ms, "load_ms",
                                 cli_loading_ms()));
    else if (o.facts_encoded == 0 && o.rounded == 0 && cli_loading_ms() == 0)
        printf("Nothing waits to be encoded.\n");
    else
        printf("Encoded %s%s in %s: %s tokens stored, %s computed.\n", cli_n_of(o.facts_encoded, "fact", facts),
               o.sets_encoded == o.facts_encoded ? "" : sets, took, stored, computed);
    if (st == INFERSCALE_OK && o.rounded && !cli_wants_json(a))
        printf("%s rounded to the store's codec.\n", cli_n_of(o.rounded, "segment", facts));
    if (st == INFERSCALE_OK && o.facts_left && !cli_wants_json(a))
        printf("%s could not be encoded now and %s served as text.\n", cli_n_of(o.facts_left, "fact", facts),
               o.facts_left == 1 ? "is" : "are");
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--again", NULL, "encode also what is already in the vault" },
    { "--stage", "STAGE", "first (default): soon and cheap; refine: many passes a fact, closer to text; all: both" },
    { "--status", NULL, "say what waits, of the owner or without one of the whole store; encode nothing" },
    { "--wait", NULL, "wait until nothing waits: encodes here unless another process is at it" },
    { "--timeout", "SECONDS", "with --wait: give up after so long (default: never)" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_encode = {
    "encode", "", "Embed and encode what is not yet",
    "Safe to interrupt: what is done is kept. Encoding comes in two stages: the first (--policy) computes each fact about\n"
    "once, the second (--refine) takes the time for many passes and stores a second copy for the fact that comes first in a\n"
    "prompt. Answers take the best rows there are. Policies:\n"
    "  page:N     facts encoded together, N a page, with an overlap of 5 facts\n"
    "             (page:N+O@ORDER; random, time or topic; page:N/E: one fact in E\n"
    "             behind the header, too, to come first in a prompt)\n"
    "  header     behind the memory header only\n"
    "  facts:W    behind the header and the W facts before it\n"
    "  turns:W    behind the header and the W turns before its source turn\n"
    "  near:N     behind the header and the N nearest facts\n"
    "  company:N  the mean of a fact's rows over passes with the N facts that its\n"
    "             text finds (company:NxPASSES)\n"
    "  alone      without the header: nothing; cwe:W: the W turns before its source\n"
    "             turn (Context-Window Encoding as published; cwe:0 is alone)\n"
    "\nExamples:\n  inferscale encode --user anna\n  inferscale encode --user anna --stage refine\n"
    "  inferscale encode --user anna --policy near:3\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_encode,
};
