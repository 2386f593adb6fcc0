/* fsck.c - `inferscale fsck`: is the store sound? */
#include <stdio.h>

#include "cli/args.h"
#include "cli/out.h"

static json_t *problems_json(const inferscale_fsck_report *r)
{
    json_t *list = json_array();
    for (size_t i = 0; i < r->n_problems; i++) {
        const inferscale_problem *p = &r->problems[i];
        json_t *one = json_pack("{s:s,s:o,s:b,s:b}", "kind", p->kind,
                                "what", cli_json_text(p->what), "repaired", p->repaired > 0,
                                "note", p->repaired < 0);
        json_array_append_new(list, one);
    }
    return list;
}

static void print_json(const inferscale_fsck_report *r)
{
    cli_print_json(json_pack("{s:b,s:o,s:I,s:I,s:I,s:I,s:I}", "ok", r->ok, "problems", problems_json(r), "more", (json_int_t)r->n_more,
                             "owners", (json_int_t)r->n_owners, "segments", (json_int_t)r->n_segments, "files", (json_int_t)r->n_files,
                             "bytes_read", (json_int_t)r->bytes_read));
}

static void print_text(const inferscale_fsck_report *r, bool repair)
{
    char size[32], segments[64], owners[64], problems[64];
    size_t repaired = 0, notes = 0;
    for (size_t i = 0; i < r->n_problems; i++) {
        const inferscale_problem *p = &r->problems[i];
        printf("%s%-20s%s ", cli_on(p->repaired ? CLI_YELLOW : CLI_RED), p->kind, cli_off());
        cli_put_text(stdout, p->what, true);
        printf("%s\n", p->repaired > 0 ? " (repaired)" : "");
        repaired += p->repaired > 0;
        notes += p->repaired < 0;
    }
    if (r->n_more) printf("... and %llu more\n", (unsigned long long)r->n_more);
    cli_size(r->bytes_read, size);
    if (r->ok && repaired == 0)
        printf("%sSound.%s %s, %s, %s read.\n", cli_on(CLI_GREEN), cli_off(), cli_n_of(r->n_owners, "owner", owners),
               cli_n_of(r->n_segments, "segment", segments), size);
    else
        printf("%s, %zu repaired.%s\n",
               cli_n_of(r->n_problems - notes + r->n_more, "problem", problems), repaired,
               r->ok ? " What was dropped is made again by `inferscale encode`." : repair ? "" : " `inferscale fsck --repair` mends views.");
}

/* A bank that cannot be opened is what a check is for: it says so in its own form. */
static int not_openable(const cli_args *a, inferscale_status st)
{
    if (st != INFERSCALE_E_CORRUPT) return cli_fail_as(a, st);
    if (cli_wants_json(a))
        cli_print_json(json_pack("{s:b,s:[{s:s,s:o,s:b}]}", "ok", 0, "problems", "kind", "bank-damaged", "what",
                                 cli_json_text(inferscale_error()), "repaired", 0));
    else
        printf("%s%-20s%s %s\n", cli_on(CLI_RED), "bank-damaged", cli_off(), inferscale_error());
    return CLI_FAILED;
}

static int cmd_fsck(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_options open;
    inferscale_fsck_options o = INFERSCALE_FSCK_OPTIONS_INIT;
    inferscale_fsck_report *r = NULL;
    inferscale_status st;
    cli_progress p;
    int rc = CLI_OK;
    if (cli_n(a)) return cli_usage(a, "takes no arguments; --home names the store");
    cli_options(a, &open);
    o.repair = cli_flag(a, "--repair");
    o.quick = cli_flag(a, "--quick");
    if (o.repair && open.read_only) return cli_usage(a, "--repair writes; leave out --read-only");
    open.read_only = !o.repair; /* a check changes nothing, not even what the next opening would clean up */
    st = inferscale_open(&is, &open);
    if (st != INFERSCALE_OK) {
        inferscale_close(is);
        return not_openable(a, st);
    }
    cli_progress_start(&p, "Checking", 0);
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    st = inferscale_fsck(is, &o, &r);
    cli_progress_end(&p);
    if (st != INFERSCALE_OK)
        rc = cli_fail_as(a, st);
    else if (cli_wants_json(a))
        print_json(r);
    else
        print_text(r, o.repair);
    if (st == INFERSCALE_OK && !r->ok) rc = CLI_FAILED;
    inferscale_fsck_free(r);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--repair", NULL, "drop what is wrong in views, so that it is made again; what is remembered is never touched" },
    { "--quick", NULL, "look for segment files without reading them" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_fsck = {
    "fsck", "", "Check the store, and mend its views",
    "Checks the database, texts against their checksums, the books of embeddings, segments, pages and placements against what is "
    "remembered, the dependency table, and every segment file with all its checksums; files that are missing, cut, rotten, "
    "another's, named by no book, or readable by others. May run while the store is in use. Exit code 1 if anything is wrong and "
    "was not repaired. Files that a killed process left are named and are no damage: the next "
    "command that writes removes them.\n\n"
    "Examples:\n  inferscale fsck\n  inferscale fsck --repair --json\n",
    options, CLI_STORE | CLI_JSON | CLI_THERE, cmd_fsck,
};
