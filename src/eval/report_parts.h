/* report_parts.h - a report under work (private to report*.c). */
#ifndef IS_EVAL_REPORT_PARTS_H
#define IS_EVAL_REPORT_PARTS_H

#include <jansson.h>

#include "eval/chart.h"
#include "eval/report.h"

/* The page's sections, in its order. */
typedef enum report_section {
    REPORT_ACCURACY, REPORT_ACCURACY_K, REPORT_ORDER, REPORT_ORDER_K, REPORT_TTFT, REPORT_SERVE,
    REPORT_CODEC, REPORT_RECALL, REPORT_SECTIONS
} report_section;

/* What a file says of itself; "" = it does not say. */
typedef struct report_head {
    char file[CHART_TEXT];
    char model[CHART_TEXT], weights[64], engine[CHART_TEXT], machine[CHART_TEXT];
    char commit[64], date[64], seed[32];
    char command[400]; /* that makes such a file, from its settings */
    char note[200];
} report_head;

typedef struct report_plot {
    report_section section;
    chart chart;
    char interval_note[CHART_TEXT];
    size_t *heads; /* [n_heads] indexes of report.heads */
    size_t n_heads;
} report_plot;

/* A number that files share a plot for: accuracy and order ratio against k, quality per byte. */
typedef struct report_sum {
    report_section section;
    char group[CHART_TEXT], series[CHART_TEXT];
    chart_point point;
    size_t head;
} report_sum;

struct report {
    report_head *heads;
    size_t n_heads;
    report_plot **plots;
    size_t n_plots;
    report_sum *sums;
    size_t n_sums;
};

/* ---- report.c -------------------------------------------------------------------------------- */

is_status report_no_memory(void);
/* A new plot over this file; owned by the report, its address stays. */
is_status report_plot_new(report *r, report_section section, size_t head, report_plot **out);
is_status report_sum_add(report *r, const report_sum *sum);
/* Plots of what files share; once, before writing. */
is_status report_shared(report *r);

/* ---- What files hold; each makes the plots of one kind of file ------------------------------- */

is_status report_accuracy_lines(report *r, size_t head, const char *text, size_t n);
is_status report_accuracy_rows(report *r, size_t head, const json_t *file);
is_status report_fidelity(report *r, size_t head, const json_t *file);
is_status report_compare(report *r, size_t head, const json_t *file);
is_status report_ttft(report *r, size_t head, const json_t *file);
is_status report_serve(report *r, size_t head, const json_t *file);
is_status report_recall(report *r, size_t head, const json_t *file);

/* ---- Reading (report_read.c) ----------------------------------------------------------------- */

double report_number(const json_t *o, const char *key);      /* NaN: none */
const char *report_text(const json_t *o, const char *key);   /* "": none */
void report_copy(char *out, size_t cap, const char *s);      /* cut at a character */
/* As snprintf, cut at a character. */
void report_print(char *out, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* model, weights, ... of a report's object. */
void report_head_read(report_head *h, const json_t *o);
/* "Qwen2.5 0.5B, Q4_0": one name for runs of one model. */
void report_model(const report_head *h, char out[CHART_TEXT]);
/* "--model NAME " where the file names the model's file, else "". */
void report_model_option(const report_head *h, char out[CHART_TEXT]);
/* "MODEL, WEIGHTS; MACHINE" */
void report_subtitle(const report_head *h, char out[CHART_TEXT]);

/* ---- report_page.c --------------------------------------------------------------------------- */

typedef struct report_about {
    const char *id, *title, *text, *command; /* command: what makes such a file */
} report_about;
extern const report_about report_abouts[REPORT_SECTIONS];
void report_page(const report *r, is_buf *out);

#endif
