/* encode.c - `inferscale encode`: embeddings, keys and values of everything that lacks them. */
#include <stdio.h>

#include "base/clock.h"
#include "cli/args.h"
#include "cli/out.h"

static int cmd_encode(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_status st;
    cli_progress p;
    double t0 = is_now_ms(), ms;
    char stored[32], computed[32], took[32];
    int rc;
    if (cli_n(a)) return cli_usage(a, "takes no arguments; it encodes everything of the owner that lacks it");
    cli_scope(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    o.again = cli_flag(a, "--again");
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    cli_progress_start(&p, "Encoding", 0);
    st = inferscale_encode(is, &scope, &o);
    cli_progress_end(&p);
    ms = is_now_ms() - t0;
    cli_count(o.tokens_stored, stored);
    cli_count(o.tokens_computed, computed);
    cli_ms(ms, took);
    if (st != INFERSCALE_OK)
        rc = cli_fail_as(a, st);
    else if (cli_wants_json(a))
        cli_print_json(json_pack("{s:I,s:I,s:I,s:f}", "facts_encoded", (json_int_t)o.facts_encoded, "tokens_stored",
                                 (json_int_t)o.tokens_stored, "tokens_computed", (json_int_t)o.tokens_computed, "ms", ms));
    else
        printf("Encoded %llu facts in %s: %s tokens stored, %s computed.\n", (unsigned long long)o.facts_encoded, took, stored,
               computed);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--again", NULL, "encode also what is already in the vault" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_encode = {
    "encode", "", "Embed and encode what is not yet",
    "Safe to interrupt: what is done is kept.\n\nExamples:\n  inferscale encode --user anna\n  inferscale encode --policy "
    "facts:5\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_encode,
};
