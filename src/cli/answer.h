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

/* Loads the model and, for what the options will search, the embedder, so that an answer's times are those of answering.
 * *ms = what loading took. A missing embedder is no failure here, unless --embedder
 * named it: the answer says that it was found by words. */
inferscale_status cli_load(const cli_args *a, inferscale *is, const inferscale_scope *scope, const inferscale_ask_options *ask,
                           inferscale_model_info *info, double *ms);

/* The embedder that --embedder names, loaded: INFERSCALE_OK also if it names none, or if there is no memory to search. */
inferscale_status cli_load_embedder(const cli_args *a, inferscale *is, const inferscale_scope *scope);

/* Streams to stdout: harmless text on a terminal, the bytes as they are elsewhere. For inferscale_ask_options.on_text; text_ctx, a
 * bool or NULL, is set when there was some, so that who stops in the middle of a line can end it. */
int cli_stream(void *ctx, const char *text, size_t len);

#endif
