/* args.h - the command line's parser, for main.c and the tests. Verbs use the typed access of cli.h. */
#ifndef IS_CLI_ARGS_H
#define IS_CLI_ARGS_H

#include <stddef.h>

#include "cli/cli.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* The options of one shared group (a single CLI_* bit); the table ends with a NULL name. */
const cli_option *cli_group_options(unsigned group);
/* What the group is called in --help and the man page, e.g. "Store". */
const char *cli_group_title(unsigned group);

/* Calls each(option, group) for every option of the verb: its own (group 0) first, then the shared groups' in order. */
void cli_each_option(const cli_verb *verb, void (*each)(void *ctx, const cli_option *o, unsigned group), void *ctx);

/* The verb that argv[0..argc) begins with, two-word names first ("bench ttft"); *used = words taken. NULL if there is none. */
const cli_verb *cli_find_verb(const cli_verb *const *verbs, int argc, char **argv, int *used);

/* True if word is the first of two-word verbs ("bench"). */
bool cli_is_group(const cli_verb *const *verbs, const char *word);

/* The name nearest to word among names[n], if it is near enough to be a typing error (distance <= a third of its length,
 * transpositions count once); else NULL. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

/* Parses argv[0..argc), what follows the verb. Accepted: --option VALUE, --option=VALUE, flags, positionals in any place, "--"
 * (all that follows are positionals), "-" (a positional), --help. An option given twice keeps the last value. Returns 0 and
 * *out (cli_args_free), or CLI_USAGE with a sentence in message[cap]. Strings are borrowed from argv. Every argument must be
 * UTF-8. */
int cli_args_parse(const cli_verb *verb, int argc, char **argv, cli_args **out, char *message, size_t cap);
void cli_args_free(cli_args *a);
/* True if the verb takes the option: what asks for others' values must know. */
bool cli_has(const cli_args *a, const char *option);
bool cli_wants_help(const cli_args *a);
bool cli_wants_json(const cli_args *a);

/* One "did you mean" sentence for an unknown verb, into message[cap]. */
void cli_unknown_verb(const cli_verb *const *verbs, int argc, char **argv, char *message, size_t cap);

/* Value parsers, false if the text is not exactly such a value. Sizes: "512M", "2G", "1048576" (powers of 1,024). */
bool cli_parse_int(const char *s, int64_t *out);
bool cli_parse_num(const char *s, double *out);
bool cli_parse_size(const char *s, uint64_t *out);

/* More typed access, as in cli.h. A time (base/time.h); 0 if it was not given. */
int64_t cli_time(const cli_args *a, const char *option);
/* The same where a range ends with it: a date alone is its last second. */
int64_t cli_time_last(const cli_args *a, const char *option);
/* Says on stderr that --expires is a time that is over, if it is. */
void cli_note_expired(const cli_args *a);
/* The index of the value among names (NULL ends them), fallback if it was not given. */
int cli_choice(const cli_args *a, const char *option, const char *const *names, int fallback);
/* A JSON object as text, checked; NULL if it was not given. */
const char *cli_json_object(const cli_args *a, const char *option);
/* True if the text says nothing: such a question is refused before anything is loaded. */
bool cli_blank(const char *s);
/* A positional as an id > 0. */
int64_t cli_id_at(const cli_args *a, size_t i);

/* Options of recall and ask: they fill a recall_options with the filters. */
#define CLI_RECALL_OPTIONS                                                                         \
    { "--kinds", "WHAT", "what to search: facts (default), turns or both" },                       \
        { "--method", "HOW", "fused (default), lexical (words) or dense (meaning)" },              \
        { "--threshold", "SCORE", "leave out what scores less, 0 to 1; pinned facts stay" },       \
        { "--from", "DATE",                                                                        \
          "only what happened then or later; what has no date: what was told then or later" },     \
        { "--to", "DATE", "the same for earlier; a day includes all of it" },                      \
        { "--as-of", "DATE", "facts that were valid at this time (default: now)" },                \
    {                                                                                              \
        "--metadata", "JSON", "only items whose metadata has these members"                        \
    }
void cli_recall_options(const cli_args *a, inferscale_recall_options *out);

/* Options of ask and chat. */
#define CLI_ASK_OPTIONS                                                                                                        \
    { "--mode", "MODE", "kv (default): inject stored facts; text: compute the same tokens; none: no memory" },                 \
        { "-k", "N", "facts to use, 1-1000 (default: 10)" },                                                                   \
        { "--repair", "M", "compute the M best facts instead of injecting them: more faithful, slower" },                      \
        { "--stage", "STAGE", "best (default): the best rows that a fact has; first or refine: rows of that stage only" },     \
        { "--max-tokens", "N", "longest answer in tokens (default: 128)" },                                                    \
        { "--temperature", "T", "0 (default) always takes the likeliest token" },                                              \
        { "--top-k", "N", "sample among the N likeliest tokens; 0 = off" },                                                    \
        { "--top-p", "P", "sample among the likeliest tokens that hold this much probability" },                               \
        { "--min-p", "P", "sample among tokens at least P times as likely as the likeliest" },                                 \
        { "--seed", "N", "seed of the sampling (default: 0)" },                                                                \
        { "--stats", NULL, "print what was computed and injected, and the time of each part" }
/* recall receives the filters and is pointed to by out->recall. */
void cli_ask_options(const cli_args *a, inferscale_ask_options *out, inferscale_recall_options *recall);

/* As cli_fail_msg with a code and, in JSON, more members beside "error" (extra is stolen; may be NULL). */
int cli_fail_with(const cli_args *a, const char *code, json_t *extra, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Reports wrong usage where there are no arguments yet. Prints, returns CLI_USAGE. */
int cli_usage_at(const char *verb, bool json, const char *message);

#endif
