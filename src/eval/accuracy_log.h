/* accuracy_log.h - results of questions in a file that survives the run: JSON Lines, the first line
 * says of which configuration. Numbers only, no word of a question or an answer. Each line is
 * written whole and synced; a line that was torn (kill -9, power) is cut off when the file is
 * opened again. */
#ifndef IS_EVAL_ACCURACY_LOG_H
#define IS_EVAL_ACCURACY_LOG_H

#include <jansson.h>

#include "eval/accuracy.h"

typedef struct accuracy_log accuracy_log;

/* Opens or begins the file, alone: E_BUSY if another process has it open. configuration: borrowed.
 * Reads what it holds into a->questions (grown with is_realloc) and a->n. E_INVALID names a
 * difference between its configuration and this one; E_PARSE the line that is no result. */
is_status accuracy_log_open(const char *path, json_t *configuration, const quiz *q, accuracy *a,
                            accuracy_log **out);
/* Adds the result of question number a->n. E_FULL, E_IO: nothing of it stays. */
is_status accuracy_log_add(accuracy_log *log, const quiz *q, const accuracy *a,
                           const accuracy_question *r);
void accuracy_log_close(accuracy_log *log); /* NULL is allowed */

#endif
