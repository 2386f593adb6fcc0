/* gc.c - `inferscale gc`: removes what nobody needs any more. */
#include <stdio.h>

#include "cli/args.h"
#include "cli/out.h"

static void print_json(const inferscale_gc_options *o)
{
    cli_print_json(json_pack("{s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "dry_run", o->dry_run, "unnamed_files",
                             (json_int_t)o->unnamed_files, "bad_files", (json_int_t)o->bad_files, "left_over_files",
                             (json_int_t)o->left_over_files, "view_files", (json_int_t)o->view_files, "view_embeddings",
                             (json_int_t)o->view_embeddings, "evicted_files", (json_int_t)o->evicted_files, "removed_bytes",
                             (json_int_t)o->removed_bytes, "vault_bytes", (json_int_t)o->vault_bytes, "bank_freed_bytes",
                             (json_int_t)o->bank_freed_bytes, "kept_unnamed_files", (json_int_t)o->kept_unnamed_files,
                             "kept_unnamed_bytes", (json_int_t)o->kept_unnamed_bytes));
}

static void line(uint64_t n, const char *what)
{
    char count[32];
    if (n == 0) return;
    cli_count(n, count);
    printf("  %10s  %s\n", count, what);
}

static void print_text(const inferscale_gc_options *o)
{
    char removed[32], vault[32], bank[32], kept[32], files[64];
    cli_size(o->removed_bytes, removed);
    cli_size(o->vault_bytes, vault);
    cli_size(o->bank_freed_bytes, bank);
    line(o->unnamed_files, "files that no book names");
    line(o->bad_files, "damaged files that were set aside");
    line(o->left_over_files, "files left by processes that are gone");
    line(o->view_files, "segments of views that are not kept");
    line(o->view_embeddings, "embeddings of views that are not kept");
    line(o->evicted_files, "segments over the budget (their facts are served as text until they are encoded again)");
    printf("%s %s; the vault %s %s. The database %s %s.\n", o->dry_run ? "Would remove" : "Removed", removed,
           o->dry_run ? "would hold" : "holds", vault, o->dry_run ? "could give back" : "gave back", bank);
    if (!o->kept_unnamed_files) return;
    cli_size(o->kept_unnamed_bytes, kept);
    printf("Kept %s (%s) that no book names: a lost or newer bank may. `inferscale gc --unnamed` removes them.\n",
           cli_n_of(o->kept_unnamed_files, "file", files), kept);
}

static int cmd_gc(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    const char *max = cli_str(a, "--max-bytes", NULL);
    inferscale_status st;
    cli_progress p;
    int rc;
    if (cli_n(a)) return cli_usage(a, "takes no arguments; --keep names the views to keep");
    if (max && (!cli_parse_size(max, &o.max_bytes) || o.max_bytes == 0))
        return cli_usage(a, "--max-bytes takes a size such as 512M or 2G, not \"%.40s\"", max);
    o.keep = cli_str(a, "--keep", NULL);
    o.dry_run = cli_flag(a, "--dry-run");
    o.compact = cli_flag(a, "--compact");
    o.unnamed = cli_flag(a, "--unnamed");
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    cli_progress_start(&p, "Cleaning", 0);
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    st = inferscale_gc(is, &o);
    cli_progress_end(&p);
    if (st != INFERSCALE_OK)
        rc = cli_fail_as(a, st);
    else if (cli_wants_json(a))
        print_json(&o);
    else
        print_text(&o);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--keep", "VIEWS", "views to keep, commas between: current, hex digits of a model as `du` shows them, policy:NAME (default: all)" },
    { "--max-bytes", "SIZE", "budget of the vault, e.g. 2G: what is least useful goes first" },
    { "--unnamed", NULL, "also remove KV files that no book names (a lost or newer bank may name them), and HOME/lost-N" },
    { "--compact", NULL, "make the database file anew without gaps; writers wait meanwhile" },
    { "--dry-run", NULL, "only say what would be removed" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_gc = {
    "gc", "", "Remove files and views that nobody needs",
    "Removes damaged files that were set aside and what crashes left; gives free pages of the database back. Files that no book "
    "names are kept, for a bank that was lost or is newer may name them; --unnamed removes them too, and what lost memories "
    "left. With --keep also views (segments, embeddings) of other models, system texts, codecs and embedders than those named. "
    "With --max-bytes segments go until the vault fits, least useful first: rows that only served as context, views that are not "
    "in use, facts that are over, second variants, then the oldest; pinned facts last. `inferscale encode` makes them again. What is "
    "remembered is never touched.\n\n"
    "Examples:\n  inferscale gc --dry-run\n  inferscale gc --keep current\n  inferscale gc --keep current,policy:page:16 --max-bytes "
    "2G\n",
    options, CLI_STORE | CLI_MODEL | CLI_JSON, cmd_gc,
};
