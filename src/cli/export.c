/* export.c - `inferscale export`: the store as JSON Lines, so that import brings it back. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/out.h"
#include "exchange/export.h"

typedef struct export {
    inferscale *is;
    inferscale_scope scope;
    FILE *f;
    size_t facts, turns;
} export;

static int write_lines(void *ctx, const void *p, size_t n) { return fwrite(p, 1, n, ctx) != n; }

static int write_all(const cli_args *a, export *x, const char *path)
{
    is_export e = { .is = x->is, .scope = &x->scope, .write = write_lines, .ctx = x->f };
    inferscale_status st = is_export_run(&e);
    x->facts = e.facts;
    x->turns = e.turns;
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (e.cut || fflush(x->f) != 0 || (path && fsync(fileno(x->f)) != 0))
        return cli_fail_msg(a, "%s cannot be written: %s; free some space and export again", path ? path : "the output",
                            strerror(errno));
    return CLI_OK;
}

/* True if there is something under this name and nobody said that it is to be replaced. */
static bool in_the_way(const cli_args *a, const char *path)
{
    struct stat sb;
    return !cli_flag(a, "--force") && stat(path, &sb) == 0;
}

/* Writes beside path and renames, so that a failed export leaves an older one as it was. Private, as the text is. */
static int export_file(const cli_args *a, export *x, const char *path)
{
    is_buf b = IS_BUF_INIT;
    char *tmp, facts[64], turns[64];
    int fd, rc;
    is_buf_fmt(&b, "%s.tmp.%ld", path, (long)getpid());
    tmp = is_buf_take(&b);
    fd = tmp ? open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    x->f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!x->f) {
        rc = cli_fail_msg(a, "%s cannot be written: %s; check the folder", path, strerror(errno));
        is_free(tmp);
        return rc;
    }
    rc = write_all(a, x, path);
    fclose(x->f);
    if (rc == CLI_OK && rename(tmp, path) != 0)
        rc = cli_fail_msg(a, "%s cannot be written: %s; check the folder", path, strerror(errno));
    if (rc != CLI_OK) unlink(tmp);
    is_free(tmp);
    if (rc == CLI_OK && cli_wants_json(a))
        cli_print_json(json_pack("{s:o,s:I,s:I}", "file", cli_json_text(path), "facts", (json_int_t)x->facts, "turns",
                                 (json_int_t)x->turns));
    else if (rc == CLI_OK)
        fprintf(stderr, "Exported %s and %s to %s.\n", cli_n_of(x->facts, "fact", facts), cli_n_of(x->turns, "turn", turns), path);
    return rc;
}

static int cmd_export(const cli_args *a)
{
    export x = { 0 };
    const char *path = cli_at(a, 0);
    int rc;
    if (cli_n(a) > 1) return cli_usage(a, "give at most one file");
    if (path && strcmp(path, "-") == 0) path = NULL;
    if (path && in_the_way(a, path)) return cli_fail_msg(a, "%s is there already; give another name, or --force to replace it", path);
    cli_scope(a, &x.scope);
    rc = cli_open(a, &x.is);
    if (rc != CLI_OK) return rc;
    if (path) {
        rc = export_file(a, &x, path);
    } else {
        x.f = stdout;
        rc = write_all(a, &x, NULL);
    }
    inferscale_close(x.is);
    return rc;
}

static const cli_option options[] = {
    { "--force", NULL, "replace FILE if it is there" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_export = {
    "export", "[FILE]", "Export facts and turns as JSON Lines",
    "Turns first, then facts with their current text, times, metadata and attributes; `inferscale import` brings them back "
    "with new ids. Without FILE the lines go to the standard output, with --json, too: they are JSON, and only an error is an object of its "
    "own. Older versions, embeddings, keys and values are not in it: the latter two are computed again.\n\n"
    "Examples:\n  inferscale export --user anna anna.jsonl\n",
    options, CLI_STORE | CLI_SCOPE | CLI_JSON | CLI_THERE, cmd_export,
};
