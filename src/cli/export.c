/* export.c - `inferscale export`: the store as JSON Lines, so that import brings it back. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/items.h"
#include "cli/out.h"

enum { PAGE = 500 };

typedef struct export {
    inferscale *is;
    inferscale_scope scope;
    FILE *f;
    size_t facts, turns;
    size_t withdrawn; /* turns left out: imported, they would be found again */
} export;

static bool write_line(export *x, json_t *o)
{
    bool ok = json_dumpf(o, x->f, JSON_COMPACT) == 0 && fputc('\n', x->f) != EOF;
    json_decref(o);
    return ok;
}

/* Is the fact's source turn one that is left out? */
static bool lost_its_source(export *x, const inferscale_item *t)
{
    inferscale_list *turn = NULL;
    bool lost;
    if (!x->withdrawn || !t->source_turn) return false;
    lost = inferscale_show(x->is, &x->scope, t->source_turn, &turn) == INFERSCALE_OK && turn->n && turn->items[0].withdrawn;
    inferscale_list_free(turn);
    return lost;
}

/* The item's members under the names that import reads. */
static json_t *line_of(export *x, const inferscale_item *t)
{
    static const char *const not_read[] = { "kind", "pinned", "expired", "superseded_by" };
    json_t *o = cli_item_json(t, 0), *v;
    const char *name;
    void *next;
    json_object_set_new(o, "type", json_string(t->kind == INFERSCALE_FACTS ? "fact" : "turn"));
    for (size_t i = 0; i < sizeof not_read / sizeof *not_read; i++) json_object_del(o, not_read[i]);
    if (lost_its_source(x, t)) json_object_del(o, "source_turn");
    json_object_foreach_safe(o, next, name, v)
    {
        if (json_is_null(v) || (json_is_object(v) && json_object_size(v) == 0)) json_object_del(o, name);
    }
    return o;
}

/* All items of one kind, page by page. */
static inferscale_status write_kind(export *x, int kind, bool *written)
{
    int64_t after = 0;
    for (;;) {
        inferscale_list *list = NULL;
        inferscale_status st = inferscale_ls(x->is, &x->scope, kind, after, PAGE, &list);
        size_t n = st == INFERSCALE_OK ? list->n : 0;
        for (size_t i = 0; i < n && *written; i++) {
            after = list->items[i].id;
            if (list->items[i].withdrawn) {
                x->withdrawn++;
                continue;
            }
            *written = write_line(x, line_of(x, &list->items[i]));
            if (kind == INFERSCALE_FACTS) x->facts++;
            else x->turns++;
        }
        inferscale_list_free(list);
        if (st != INFERSCALE_OK || n < PAGE || !*written) return st;
    }
}

static int write_all(const cli_args *a, export *x, const char *path)
{
    bool written = write_line(x, json_pack("{s:s,s:i,s:s,s:o}", "type", "inferscale", "format", 1, "generator",
                                           "inferscale " INFERSCALE_VERSION, "exported", cli_json_time(is_now_epoch())));
    inferscale_status st = write_kind(x, INFERSCALE_TURNS, &written); /* turns first: facts refer to them */
    if (st == INFERSCALE_OK) st = write_kind(x, INFERSCALE_FACTS, &written);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (!written || fflush(x->f) != 0 || (path && fsync(fileno(x->f)) != 0))
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
    options, CLI_STORE | CLI_SCOPE | CLI_JSON, cmd_export,
};
