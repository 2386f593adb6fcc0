/* store.h - what remember, import and demo share: storing JSON Lines, and encoding what was stored. */
#ifndef IS_CLI_STORE_H
#define IS_CLI_STORE_H

#include <stdio.h>

#include "cli/cli.h"
#include "exchange/import.h"

typedef is_import cli_import;

/* Stores the records of f; lines that name no owner are the user "default"'s. Never prints but for the progress bar. */
void cli_import_run(inferscale *is, const inferscale_scope *base, FILE *f, const char *title, cli_import *out);
void cli_import_free(cli_import *out);
/* "2 facts (1 was known) and 1 turn", into out. */
void cli_import_counts(const cli_import *i, char out[160]);
/* To stderr: how many known facts took a date, or keep something that the file has otherwise;
 * --json names them. */
void cli_import_notes(const cli_import *i);
/* The scope as written on the command line, without the default. */
void cli_scope_given(const cli_args *a, inferscale_scope *out);
/* Reports a failed import (message on stderr; with --json an object that also says what was stored). Returns the exit code. */
int cli_import_failed(const cli_args *a, const cli_import *i, const char *source);

/* Embeds and encodes the scopes with a progress bar. Failing is no failure of what was stored: the reason goes to stderr as a
 * note and into *report ({"facts", "tokens_stored", "tokens_computed", "error"}; may be NULL). Returns CLI_OK, or CLI_FAILED if
 * interrupted. */
int cli_encode_after(const cli_args *a, inferscale *is, const inferscale_scope *scopes, size_t n, json_t **report);

/* The text of a fact that an answer used, in a new string (is_free); NULL if it is gone. */
char *cli_fact_text(inferscale *is, const inferscale_scope *scope, int64_t id);

#endif
