/* log.h - the server's log: one line a request and what the library has to say, as JSON or text, to a sink that the command line gives.
 *
 * Never in it: text of prompts or memories, keys, values of the query or of ids in paths. Lines are queued and written by a thread of
 * the log, so that a reader who is stuck holds up no request: at most 4,096 wait, further ones are dropped, counted and owned up to. */
#ifndef IS_SERVE_LOG_H
#define IS_SERVE_LOG_H

#include "base/status.h"

/* TEXT: "TIME LEVEL sentence", or "TIME LEVEL request key=value ..."; COLOUR: the same for a terminal. */
typedef enum is_log_form { IS_LOG_FORM_OFF, IS_LOG_FORM_TEXT, IS_LOG_FORM_COLOUR, IS_LOG_FORM_JSON } is_log_form;

/* Receives whole lines, each with its line end, on the log's thread. */
typedef void (*is_log_sink)(void *ctx, const char *line, size_t len);

/* Process-wide. start: E_NOMEM, E_INTERNAL. stop writes what waits. Without start nothing is logged. */
is_status is_serve_log_start(is_log_form form, is_log_sink sink, void *ctx);
void is_serve_log_stop(void);
/* Returns when all lines that were made before have been handed to the sink. */
void is_serve_log_flush(void);

/* A line being made. Values may be any bytes: what is no UTF-8 or no printable character is escaped. Fields that do not fit are left out. */
typedef struct is_log_line {
    int level;
    size_t len;
    char text[2048];
} is_log_line;

void is_log_begin(is_log_line *l, int level, const char *what); /* IS_LOG_ERROR ...; what: "request", "server", "library" */
void is_log_text(is_log_line *l, const char *key, const char *value);
void is_log_int(is_log_line *l, const char *key, long long value);
void is_log_ms(is_log_line *l, const char *key, double ms);
void is_log_end(is_log_line *l);

/* One sentence about the server itself. */
void is_serve_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* As inferscale_log_fn: what the library says joins the log. */
void is_serve_log_library(void *ctx, int level, const char *message);

#endif
