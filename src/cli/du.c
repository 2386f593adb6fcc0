/* du.c - `inferscale du`: where the bytes are. */
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/out.h"
#include "cli/store.h"
#include "exchange/json.h"

static bool same_owner(const inferscale_usage_row *a, const inferscale_usage_row *b)
{
    return strcmp(a->tenant, b->tenant) == 0 && strcmp(a->owner_kind, b->owner_kind) == 0 && strcmp(a->owner, b->owner) == 0;
}

static void print_row(const inferscale_usage_row *r, bool first)
{
    char owner[300], n[32], size[32];
    snprintf(owner, sizeof owner, "%s%s%s %s", r->tenant, *r->tenant ? "/" : "", r->owner_kind, r->owner);
    int width = first ? cli_put_cut(stdout, owner, 24) : 0;
    cli_put_pad(stdout, 26 - width);
    cli_count(r->n, n);
    cli_size(r->bytes, size);
    printf("%-10s  %-8.8s%s  %-16.16s %9s %11s\n", r->what, *r->model ? r->model : "-", r->current ? "*" : " ", *r->policy ? r->policy : "-",
           n, size);
}

static void print_table(const inferscale_usage_report *u)
{
    char bank[32], empty[32], log[32], vault[32], unnamed[32], files[64];
    printf("%s%-26s%-10s  %-9s  %-16s %9s %11s%s\n", cli_on(CLI_DIM), "OWNER", "WHAT", "MODEL", "POLICY", "N", "SIZE", cli_off());
    for (size_t i = 0; i < u->n; i++) print_row(&u->rows[i], i == 0 || !same_owner(&u->rows[i - 1], &u->rows[i]));
    cli_size(u->bank_bytes, bank);
    cli_size(u->bank_free_bytes, empty);
    cli_size(u->log_bytes, log);
    cli_size(u->vault_bytes, vault);
    cli_size(u->unnamed_bytes, unnamed);
    printf("Database %s (%s of it empty), log %s; vault %s in %s%s%s%s.\n", bank, empty, log, vault,
           cli_n_of(u->vault_files, "file", files), u->unnamed_bytes ? ", " : "", u->unnamed_bytes ? unnamed : "",
           u->unnamed_bytes ? " of it named by no book (`inferscale gc --unnamed`)" : "");
    if (u->wide_bytes) {
        cli_size(u->wide_bytes, vault);
        printf("%s of it waits to be stored in fewer bytes (`inferscale encode`, or a server in idle time).\n", vault);
    }
}

static int cmd_du(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_usage_report *u = NULL;
    inferscale_model_info info;
    inferscale_status st = INFERSCALE_OK;
    int rc;
    if (cli_n(a)) return cli_usage(a, "takes no arguments; --user, --agent, --run or --app choose one owner");
    cli_scope_given(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    if (cli_flag(a, "--current")) st = inferscale_model(is, &info);
    if (st == INFERSCALE_OK)
        st = inferscale_usage(is, scope.user || scope.agent || scope.run || scope.app ? &scope : NULL, &u);
    if (st != INFERSCALE_OK)
        rc = cli_fail_as(a, st);
    else if (cli_wants_json(a))
        cli_print_json(is_usage_json(u));
    else
        print_table(u);
    inferscale_usage_free(u);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--current", NULL, "load the model, mark its view with *, and say what waits to be stored in fewer bytes" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_du = {
    "du", "", "Show bytes by owner, model and policy",
    "Text, embeddings and segments of every owner (or of one), by what made them: MODEL is the beginning of a fingerprint, which "
    "`inferscale gc --keep` takes.\n\n"
    "Examples:\n  inferscale du\n  inferscale du --user anna --json\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON | CLI_THERE, cmd_du,
};
