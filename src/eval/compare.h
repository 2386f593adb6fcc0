/* compare.h - two fidelity reports question by question: the same questions over the same facts, in the same orders, on two engines (or two
 * models, codecs, versions of us). Each report's order ratio is taken over the questions that both have, and their difference with one
 * interval, in which a question (or conversation) is drawn for both at once.
 *
 * Reports that did not ask the same are not compared: other settings, other policies, and above all other prompts, which each
 * report holds a hash of for every question. */
#ifndef IS_EVAL_COMPARE_H
#define IS_EVAL_COMPARE_H

#include <jansson.h>

#include "eval/stats.h"

typedef struct compare_row {
    const char *arm, *system, *policy;    /* of an injecting arm; borrowed from the first report */
    int repair;
    const char *yardstick;                /* "S_free" or "S" */
    bool is_void;                         /* the yardstick is within 5 times the floor in one of them: no ratios (NaN) */
    double a, b, difference;              /* a - b */
    stats_interval a_i, b_i, difference_i;
    double kl_a, kl_b, order_a, order_b;  /* mean KL of the arm, and of the reordering */
} compare_row;

typedef struct compare {
    size_t n;                 /* questions paired */
    size_t only_a, only_b;    /* left out, with `common` */
    size_t same_answer;       /* pairs whose text twin gave the same answer on both */
    bool by_conversation;     /* what is resampled */
    compare_row *rows;
    size_t n_rows;
} compare;

/* common: go on with the questions that both have. Else one that is missing in a report is E_INVALID, and named. E_PARSE: what is no report
 * of `eval fidelity --json`, or of a version that did not list its questions. The reports must outlive *out. */
is_status compare_reports(const json_t *a, const json_t *b, bool common, uint64_t seed, compare **out);
void compare_free(compare *c);

#endif
