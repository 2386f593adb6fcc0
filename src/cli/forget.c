/* forget.c - `inferscale forget`: text, versions, index rows, embeddings, keys and values. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/args.h"
#include "cli/out.h"

/* True if the person at the terminal types yes. */
static bool confirmed(const inferscale_scope *s)
{
    char line[16] = "";
    fprintf(stderr, "Forget everything of %s? This cannot be undone. Type yes: ",
            s->user    ? s->user
            : s->agent ? s->agent
            : s->run   ? s->run
                       : s->app);
    fflush(stderr);
    if (!fgets(line, sizeof line, stdin)) return false;
    line[strcspn(line, "\r\n")] = '\0';
    return strcmp(line, "yes") == 0;
}

static int cmd_forget(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_status st;
    bool all = cli_flag(a, "--all");
    size_t n = cli_n(a), deleted = 0;
    int64_t *ids = NULL;
    int rc;
    if (all && n) return cli_usage(a, "give ids or --all, not both");
    if (!all && n == 0) return cli_usage(a, "give the ids of what to forget, or --all; `inferscale ls` lists ids");
    for (size_t i = 0; i < n; i++) cli_id_at(a, i);
    cli_scope(a, &scope);
    if (all && !cli_flag(a, "--yes")) {
        if (!isatty(STDIN_FILENO))
            return cli_usage(a, "--all forgets everything of this owner; add --yes to say that you mean it");
        if (!confirmed(&scope)) return cli_fail_msg(a, "not confirmed; nothing was forgotten");
    }
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    ids = is_calloc(n + 1, sizeof *ids);
    if (!ids) {
        inferscale_close(is);
        return cli_fail_msg(a, "out of memory; close other programs and try again");
    }
    for (size_t i = 0; i < n; i++) ids[i] = cli_id_at(a, i);
    st = all ? inferscale_forget_all(is, &scope, &deleted) : inferscale_forget(is, &scope, ids, n, &deleted);
    if (st != INFERSCALE_OK) {
        rc = cli_fail_as(a, st);
    } else if (cli_wants_json(a)) {
        cli_print_json(json_pack("{s:I,s:I}", "deleted", (json_int_t)deleted, "unknown",
                                 (json_int_t)(all || deleted > n ? 0 : n - deleted)));
    } else {
        printf("Forgot %zu %s%s.\n", deleted, deleted == 1 ? "item" : "items",
               !all && deleted < n ? "; the other ids are not in this scope" : "");
    }
    is_free(ids);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--all", NULL, "forget everything of this owner (with --agent, --run or --app beside --user: what carries them)" },
    { "--yes", NULL, "do not ask back" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_forget = {
    "forget", "[ID...]", "Forget facts, turns or everything",
    "Deletes text, versions, index rows, embeddings, keys and values, and every stored segment whose encoding context held the "
    "fact. Backups, snapshots and copy-on-write filesystems cannot be reached.\n\n"
    "Examples:\n  inferscale forget 12 13\n  inferscale forget --all --user anna\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_forget,
};
