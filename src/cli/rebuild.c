/* rebuild.c - `inferscale rebuild`: views made anew from what is remembered. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/args.h"
#include "cli/out.h"
#include "cli/store.h"

static bool parse_what(const char *s, int *what)
{
    static const struct { const char *name; int what; } known[] = {
        { "embeddings", INFERSCALE_REBUILD_EMBEDDINGS },
        { "index", INFERSCALE_REBUILD_INDEX },
        { "kv", INFERSCALE_REBUILD_KV },
        { "all", INFERSCALE_REBUILD_ALL },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(s, known[i].name) != 0) continue;
        *what |= known[i].what;
        return true;
    }
    return false;
}

static void print_result(const cli_args *a, const inferscale_rebuild_options *o, double ms)
{
    char took[32], computed[32], owners[64], items[64], facts[64];
    cli_ms(ms, took);
    cli_count(o->tokens_computed, computed);
    if (cli_wants_json(a))
        cli_print_json(json_pack("{s:I,s:I,s:I,s:I,s:I,s:f}", "owners", (json_int_t)o->owners, "embedded", (json_int_t)o->embedded,
                                 "facts_encoded", (json_int_t)o->facts_encoded, "tokens_stored", (json_int_t)o->tokens_stored,
                                 "tokens_computed", (json_int_t)o->tokens_computed, "ms", ms));
    else
        printf("Rebuilt for %s in %s: %s embedded, %s encoded (%s tokens computed).\n", cli_n_of(o->owners, "owner", owners), took,
               cli_n_of(o->embedded, "item", items), cli_n_of(o->facts_encoded, "fact", facts), computed);
}

static int cmd_rebuild(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_rebuild_options o = INFERSCALE_REBUILD_OPTIONS_INIT;
    inferscale_status st;
    double t0 = is_now_ms();
    cli_progress p;
    int rc;
    for (size_t i = 0; i < cli_n(a); i++)
        if (!parse_what(cli_at(a, i), &o.what)) return cli_usage(a, "\"%.40s\" is no view; give embeddings, index, kv or all", cli_at(a, i));
    cli_scope_given(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    cli_progress_start(&p, "Rebuilding", 0);
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    st = inferscale_rebuild(is, scope.user || scope.agent || scope.run || scope.app ? &scope : NULL, &o);
    cli_progress_end(&p);
    if (st != INFERSCALE_OK)
        rc = cli_fail_as(a, st);
    else
        print_result(a, &o, is_now_ms() - t0);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = { { NULL, NULL, NULL } };

const cli_verb cli_verb_rebuild = {
    "rebuild", "[embeddings|index|kv|all]", "Make views anew from what is remembered",
    "For every owner, or for one; for the model, system text, codec, policy and embedder given. A view of another model is made beside "
    "the old one, which stays and serves that model (`inferscale gc --keep current` drops it). While the new one is not ready its facts "
    "are served as text. Shows progress and the time left on a terminal; safe to interrupt.\n\n"
    "Examples:\n  inferscale rebuild\n  inferscale rebuild kv --model other-model\n  inferscale rebuild embeddings --user anna\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_rebuild,
};
