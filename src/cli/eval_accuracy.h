/* eval_accuracy.h - what the files of the verb `eval accuracy` share. */
#ifndef IS_CLI_EVAL_ACCURACY_H
#define IS_CLI_EVAL_ACCURACY_H

#include "cli/cli.h"
#include "eval/accuracy.h"

/* Prints what was measured, as a table, or as one JSON object. info: of the model. */
void accuracy_print_table(const inferscale_model_info *info, const accuracy_options *o,
                          const accuracy *a);
int accuracy_print_json(const inferscale_model_info *info, const accuracy_options *o,
                        const accuracy *a);
/* Prints the quiz's first n questions with their answers, choices and facts; returns the exit code.
 * */
int accuracy_print_questions(const cli_args *args, const quiz *q, size_t n);

#endif
