/* report.h - one page of plots and tables from files of results: `eval report`.
 *
 * Files are recognised by what they hold, not by their names: results of `eval accuracy` (the file
 * of --results, or --json), and the JSON of `eval fidelity`, `eval compare`, `eval recall`,
 * `bench ttft` and `bench serve`. What is drawn is what a file says: an arm that is in it, and no
 * other. Nothing of a file is believed: sizes and types are checked, text is escaped. */
#ifndef IS_EVAL_REPORT_H
#define IS_EVAL_REPORT_H

#include "base/status.h"

typedef struct report report;

/* *out is freed with report_free. */
is_status report_new(report **out);
void report_free(report *r); /* NULL is allowed */

/* Reads a file. E_PARSE: it is empty, no JSON, or not complete, with the line; E_INVALID: it is
 * JSON and no result that a plot is made of; E_NOTFOUND, E_IO. A torn last line of results of
 * `eval accuracy` is left out, as by the run that goes on from it. */
is_status report_add(report *r, const char *path);
/* The same from memory; name is what the page calls it. */
is_status report_add_text(report *r, const char *name, const void *text, size_t n);

typedef struct report_written {
    size_t n_plots;
    size_t n_missing;          /* kinds of plots that nothing was given for */
    const char *missing[16];   /* [n_missing] the commands that make it; constants */
} report_written;
/* Writes folder/index.html, and each plot as an SVG file beside it; the folder is made if it is not
 * there, files of these names are replaced. Call it once, after the last file. */
is_status report_write(report *r, const char *folder, report_written *out);

#endif
