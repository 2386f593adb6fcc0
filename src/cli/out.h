/* out.h - what verbs print for people: text that cannot upset the terminal, tables that fit it. */
#ifndef IS_CLI_OUT_H
#define IS_CLI_OUT_H

#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "inferscale.h"

/* Colours; "" without cli_color(). */
typedef enum cli_style { CLI_PLAIN, CLI_BOLD, CLI_DIM, CLI_RED, CLI_GREEN, CLI_YELLOW, CLI_CYAN } cli_style;
const char *cli_on(cli_style style);
const char *cli_off(void);
/* The same for another stream: "" unless that is a terminal. */
const char *cli_on_in(FILE *f, cli_style style);
const char *cli_off_in(FILE *f);

/* The terminal's columns (stdout), $COLUMNS, else 80; 0 = stdout is not a terminal (print lines whole). */
int cli_columns(void);
/* Columns that s takes. */
int cli_text_width(const char *s);
/* Writes s with control characters (which could move the cursor or colour the screen) as U+FFFD and bytes that are not UTF-8
 * the same; one_line also turns line ends and tabs into spaces. */
void cli_put_text(FILE *f, const char *s, bool one_line);
/* As cli_put_text for one line, cut to at most columns with an ellipsis; returns the columns written. 0 = no limit. */
int cli_put_cut(FILE *f, const char *s, int columns);
/* Wraps s at words to columns (0 = no wrapping); lines after the first begin with indent spaces. Ends with a line end. */
void cli_put_wrapped(FILE *f, const char *s, int columns, int indent);
/* Spaces. */
void cli_put_pad(FILE *f, int n);

/* "2024-05-01" (with the time if it is not midnight: "2024-05-01 13:56"); "-" for 0. */
void cli_date(int64_t epoch, char out[32]);
/* "1.3 GiB", "12 KiB", "17 B". */
void cli_size(uint64_t bytes, char out[32]);
/* "1,234". */
void cli_count(uint64_t n, char out[32]);
/* "1 fact", "2,000 facts": one is what there is one of, its plural takes an s. Returns out. */
const char *cli_n_of(uint64_t n, const char *one, char out[64]);
/* "0.45 ms", "45.1 ms", "4.12 s". */
void cli_ms(double ms, char out[32]);

const char *cli_source_name(int source);  /* INFERSCALE_SOURCE_* -> "stored", ... */
const char *cli_mode_name(int mode);      /* INFERSCALE_MODE_* -> "kv", ... */

/* True if something that was printed could not be, because whoever read it (`| head`) has left: then nothing more is to be said, and
 * the exit code is that of SIGPIPE. A full disk is no such thing. */
bool cli_reader_left(void);
/* False if what was printed so far did not get out: what is to be said about it on stderr is then left out; main.c says why. */
bool cli_printed(void);
extern const char cli_output_lost[]; /* the sentence for a full disk */

#endif
