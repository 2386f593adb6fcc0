/* eval_report.c - the verb `eval report`: a page of plots and tables from files of results. */
#include <stdio.h>
#include <sys/stat.h>

#include "cli/args.h"
#include "cli/out.h"
#include "eval/report.h"

static int print_json(const char *folder, const report_written *w)
{
    json_t *missing = json_array();

    for (size_t i = 0; i < w->n_missing; i++)
        json_array_append_new(missing, cli_json_text(w->missing[i]));
    return cli_print_json(json_pack("{s:o,s:I,s:o}", "folder", cli_json_text(folder), "plots",
                                    (json_int_t)w->n_plots, "missing", missing));
}

static void print_table(const char *folder, const report_written *w)
{
    char plots[64];

    cli_put_text(stdout, folder, true);
    printf("/index.html: %s\n", cli_n_of(w->n_plots, "plot", plots));
    if (w->n_missing) printf("Left out, for want of results; these make them:\n");
    for (size_t i = 0; i < w->n_missing; i++) printf("  %s\n", w->missing[i]);
}

static int check_files(const cli_args *a)
{
    struct stat s;

    for (size_t i = 0; i < cli_n(a); i++)
        if (stat(cli_at(a, i), &s) == 0 && S_ISDIR(s.st_mode))
            return cli_usage(a, "%.200s is a folder; give the files of results in it, e.g. %.200s/*.json", cli_at(a, i),
                             cli_at(a, i));
    return CLI_OK;
}

static int cmd_eval_report(const cli_args *a)
{
    const char *folder = cli_str(a, "--out", NULL);
    report_written written;
    report *r = NULL;
    is_status st;

    if (cli_n(a) == 0)
        return cli_usage(a, "give one or more files of results; --help says which");
    if (folder == NULL) return cli_usage(a, "--out DIR is missing; the page is written there");
    if (check_files(a) != CLI_OK) return CLI_USAGE;
    st = report_new(&r);
    for (size_t i = 0; i < cli_n(a) && st == INFERSCALE_OK; i++) st = report_add(r, cli_at(a, i));
    if (st == INFERSCALE_OK) st = report_write(r, folder, &written);
    report_free(r);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (cli_wants_json(a)) return print_json(folder, &written);
    print_table(folder, &written);
    return CLI_OK;
}

static const cli_option options[] = {
    { "--out", "DIR", "where the page and the plots are written (required)" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_eval_report = {
    "eval report", "FILE...", "Make a page of plots from results",
    "Reads results and writes DIR/index.html, one page that needs no other file, and each\n"
    "plot as an SVG file beside it, called as the file that it comes from. Files are\n"
    "recognised by what they hold: results of eval accuracy (--results, or --json), and the\n"
    "JSON of eval fidelity, eval compare, eval recall, bench ttft and bench serve. Below each\n"
    "plot stand its numbers, their intervals, and machine, model, date, commit and command as\n"
    "far as the file says. Where nothing was given for a plot, page and output name the command\n"
    "that makes it. A file that is none of these ends the command, and nothing is written.\n\n"
    "Examples:\n"
    "  inferscale bench ttft --json >ttft.json\n"
    "  inferscale eval report ttft.json accuracy.jsonl --out report\n",
    options, CLI_JSON, cmd_eval_report,
};
