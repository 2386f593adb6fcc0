/* answer.h - an answer as JSON and as lines, for ask, chat and demo. */
#ifndef IS_CLI_ANSWER_H
#define IS_CLI_ANSWER_H

#include "cli/cli.h"

/* {answer, mode, finish, facts [{id, version, score, tokens, source, text}], tokens_*, ttft_ms, ..., fallback}. is may be NULL
 * (then the facts have no text). */
json_t *cli_answer_json(inferscale *is, const inferscale_scope *scope, const inferscale_answer *answer);
/* The facts used, best first, cut to the terminal; to f. */
void cli_answer_facts(FILE *f, inferscale *is, const inferscale_scope *scope, const inferscale_answer *answer);
/* Tokens and the time of each part; to f. */
void cli_answer_stats(FILE *f, const inferscale_answer *answer);

/* Streams to stdout: harmless text on a terminal, the bytes as they are elsewhere. For inferscale_ask_options.on_text. */
int cli_stream(void *ctx, const char *text, size_t len);

#endif
