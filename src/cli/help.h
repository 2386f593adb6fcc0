/* help.h - what the verbs' table says: --help, the man page, completions. */
#ifndef IS_CLI_HELP_H
#define IS_CLI_HELP_H

#include <stdio.h>

#include "cli/cli.h"

void cli_print_overview(FILE *f);
/* The commands whose first word this is ("bench"): what `inferscale bench --help` prints. False, and nothing printed, if there are none. */
bool cli_print_group_help(FILE *f, const char *word);
void cli_print_verb_help(FILE *f, const cli_verb *verb);
/* "-k, --k N": an option as help and manual write it; one-letter options have both forms. */
void cli_option_title(const cli_option *o, char out[80]);
int cli_print_version(bool json);

/* Environment variables, for help and man: name and meaning, ends with a NULL name. */
typedef struct cli_env { const char *name, *help; } cli_env;
extern const cli_env cli_environment[];

#endif
