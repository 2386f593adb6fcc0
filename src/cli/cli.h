/* cli.h - what the verbs of the command line share. One table (verbs.c) makes the parser, --help, the man page and the shell
 * completions. Results go to stdout, chatter to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage; main.c makes
 * 130 of a failure that Ctrl-C made, and 141 where the reader of stdout has left. */
#ifndef IS_CLI_CLI_H
#define IS_CLI_CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "inferscale.h"

typedef struct cli_option {
    const char *name;   /* "--user"; NULL ends a table */
    const char *arg;    /* "NAME" or NULL for a flag */
    const char *help;   /* one line */
} cli_option;

typedef struct cli_args cli_args; /* a parsed command line */

typedef struct cli_verb {
    const char *name;             /* "remember", "bench ttft" */
    const char *usage;            /* positionals: "[TEXT...]" */
    const char *summary;          /* one line */
    const char *details;          /* paragraphs with examples; may be NULL */
    const cli_option *options;    /* the verb's own */
    unsigned groups;              /* which shared option groups it takes */
    int (*run)(const cli_args *a);
} cli_verb;

enum {
    CLI_STORE = 1,   /* --home, --engine, --embedder, --embedder-key, --read-only */
    CLI_SCOPE = 2,   /* --tenant --user --agent --run --app (user defaults to "default" if no owner is given) */
    CLI_MODEL = 4,   /* --model --system --policy --codec --ctx --threads --flash-attention on|off|auto --ram SIZE */
    CLI_JSON = 8,    /* --json */
    CLI_THERE = 16   /* no options: the verb only reads, and a store's folder that is not there is not made */
};

/* Which engine, in every table that has it; read by cli_engine. */
#define CLI_ENGINE_ROWS \
    { "--engine", "NAME", "engine plug-in: llama (default), vllm or mock" }, \
    { "--upstream", "URL[,URL]", "engine vllm: its servers (default: $INFERSCALE_UPSTREAM; their key: $INFERSCALE_UPSTREAM_KEY)" }

/* Beside them, for what measures: an upstream's connector reads one store. */
#define CLI_UPSTREAM_HOME_ROW \
    { "--home", "FOLDER", "engine vllm: the store that its connector reads; what is remembered to be measured is forgotten afterwards" }

/* What --embedder takes, in every table that has it. */
#define CLI_EMBEDDER_HELP "a GGUF file, an installed name, or http(s)://HOST/v1#MODEL"

/* Typed access; the option must be in the verb's tables (else an internal error is reported). Values are checked on access:
 * a wrong one prints the cause and the next step and ends the verb with exit code 2 (cli_usage). */
const char *cli_str(const cli_args *a, const char *option, const char *fallback);
int64_t cli_int(const cli_args *a, const char *option, int64_t fallback, int64_t min, int64_t max);
double cli_num(const cli_args *a, const char *option, double fallback, double min, double max);
bool cli_flag(const cli_args *a, const char *option);
size_t cli_int_list(const cli_args *a, const char *option, const char *fallback, int64_t *out, size_t max); /* "0,5,10" */
size_t cli_n(const cli_args *a);                    /* positionals */
const char *cli_at(const cli_args *a, size_t i);
const cli_verb *cli_current(const cli_args *a);

/* Wrong usage: prints "inferscale VERB: message" and a pointer to --help; returns 2. */
int cli_usage(const cli_args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Failure: prints inferscale_error(); with --json also an object {"error":{code,message}} on stdout; returns 1. */
int cli_fail(const cli_args *a);
/* The same with the status that the call returned, which is then the error's code in JSON ("E_NOTFOUND"); preferred. */
int cli_fail_as(const cli_args *a, inferscale_status status);
int cli_fail_msg(const cli_args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void cli_options(const cli_args *a, inferscale_options *out);   /* from the STORE and MODEL groups; strings borrowed */
void cli_engine(const cli_args *a, inferscale_options *out);    /* from CLI_ENGINE_ROWS */
void cli_scope(const cli_args *a, inferscale_scope *out);
int cli_open(const cli_args *a, inferscale **out);              /* inferscale_open + error report; 0 or the exit code */
int cli_open_background(const cli_args *a, inferscale **out);   /* the same with a background encoder, unless --read-only */
/* The model NAME|PATH (NULL = default) as a file path: installed models are in the cache folder set up by scripts/setup.sh
 * ($INFERSCALE_MODELS, else $XDG_CACHE_HOME/inferscale/models, else ~/.cache/inferscale/models). is_free'd; NULL + error. */
char *cli_model_path(const char *name);
char *cli_embedder_path(const char *name);
bool cli_embedder_is_there(const inferscale_options *o); /* false + error: the embedder that was named is not installed */

/* A progress bar on stderr; where that is no terminal a line every 5 seconds, so that a log shows life. Usable as
 * inferscale_progress_fn with ctx = cli_progress*. */
typedef struct cli_progress { const char *title; double started_ms, drawn_ms, loading_ms; uint64_t done, total; bool tty; } cli_progress;
void cli_progress_start(cli_progress *p, const char *title, uint64_t total);
int cli_progress_at(void *ctx, uint64_t done, uint64_t total, const char *what);
void cli_progress_end(cli_progress *p);

/* 1 from the moment the person pressed Ctrl-C (a second one ends the process). Progress bars stop on it by themselves. Until this is
 * called the first time Ctrl-C ends the process at once. */
const volatile int *cli_interrupt(void);
bool cli_interrupted(void);
/* What was interrupted has ended, and the verb goes on: *cli_interrupt() is 0 again. From now on so many interrupts (1 to begin with)
 * are asked for politely, and one more ends the process. */
void cli_interrupt_over(int more);
/* Waits until fd can be read. false: an interrupt came, also one that came just before the call. (A read that is called just behind the
 * interrupt would wait for the next line.) */
bool cli_input_comes(int fd);
/* Until it is called with NULL Ctrl-C also ends the loading of models by the handle there: servers may be waited for for minutes. */
void cli_interrupt_loading(inferscale **at);

bool cli_color(void);                               /* stdout is a terminal and NO_COLOR is not set */
int cli_print_json(json_t *object);                 /* one line on stdout; steals the reference; returns 0 */

/* JSON values: text as a string (bytes that are not UTF-8 become U+FFFD), a time as ISO 8601 or null for 0. */
json_t *cli_json_text(const char *s);
json_t *cli_json_time(int64_t epoch);

/* The model's name with the name of its file, which tells apart those whose name is only "smollm2 135m": "NAME (FILE)". Returns out. */
const char *cli_model_shown(const inferscale_model_info *info, char out[192]);

/* The head of every report: {"machine", "model", "weights", "commit", "date", "seed", "rows": []}; info may be NULL. */
json_t *cli_report(const inferscale_model_info *info, uint64_t seed);

/* Each verb file defines its run function and its own row of the table beside it:
 *     const cli_verb cli_verb_ls = { "ls", "", "List what is remembered", details, options, CLI_STORE | CLI_SCOPE, cmd_ls };
 * verbs.c only lists the rows, in the order of --help. */
extern const cli_verb *const cli_verbs[];           /* NULL-terminated */
extern const cli_verb cli_verb_remember, cli_verb_recall, cli_verb_ask, cli_verb_chat, cli_verb_ls, cli_verb_show,
    cli_verb_forget, cli_verb_encode, cli_verb_import, cli_verb_import_locomo, cli_verb_export, cli_verb_bench_ttft,
    cli_verb_bench_compose, cli_verb_bench_encode, cli_verb_bench_remember, cli_verb_bench_scale, cli_verb_bench_serve, cli_verb_eval_recall,
    cli_verb_eval_fidelity, cli_verb_eval_compare, cli_verb_eval_accuracy, cli_verb_eval_report,
    cli_verb_doctor, cli_verb_demo, cli_verb_completion, cli_verb_man, cli_verb_help, cli_verb_fsck,
    cli_verb_gc, cli_verb_backup, cli_verb_restore, cli_verb_du, cli_verb_rebuild, cli_verb_history, cli_verb_update,
    cli_verb_supersede, cli_verb_pin, cli_verb_unpin, cli_verb_serve, cli_verb_mcp, cli_verb_config_check;

/* Written by other files of this room; the rest are static beside their rows. */
int cmd_import_locomo(const cli_args *a);
int cmd_bench_ttft(const cli_args *a);
int cmd_bench_compose(const cli_args *a);
int cmd_eval_recall(const cli_args *a);
int cmd_eval_fidelity(const cli_args *a);

#endif
