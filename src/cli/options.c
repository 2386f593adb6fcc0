/* options.c - the options that verbs share, and what they become: library options, scopes, filters. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handle.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "base/url.h"
#include "cli/args.h"
#include "cli/loading.h"

static const cli_option store_options[] = {
    { "--home", "FOLDER", "the store (default: $INFERSCALE_HOME, else ~/.local/share/inferscale)" },
    CLI_ENGINE_ROWS,
    { "--embedder", "WHAT", CLI_EMBEDDER_HELP },
    { "--embedder-key", "KEY", "API key of an HTTP embedder (default: $INFERSCALE_EMBEDDER_KEY)" },
    { "--embedder-wait-s", "SECONDS", "how long a question waits for an HTTP embedder before words alone serve (default: 5)" },
    { "--read-only", NULL, "never write to the store" },
    { "--start-empty", NULL, "where the bank is lost: begin a new memory, and keep the rest in HOME/lost-N" },
    { NULL, NULL, NULL },
};

static const cli_option scope_options[] = {
    { "--user", "NAME", "whose memory (default: \"default\" if no other owner is given)" },
    { "--agent", "NAME", "the agent: owner without --user, else an attribute" },
    { "--run", "NAME", "the run: owner without --user and --agent, else an attribute" },
    { "--app", "NAME", "the application: owner if nothing else is given, else an attribute" },
    { "--tenant", "NAME", "the tenant; tenants never see one another's memory" },
    { NULL, NULL, NULL },
};

static const cli_option model_options[] = {
    { "--model", "NAME", "a GGUF file or an installed name (default: smollm2-135m-instruct-q4_0)" },
    { "--system", "TEXT", "system text of the encoding header" },
    { "--policy", "POLICY", "what a fact sees when it is encoded: page:N, facts:W, header, turns:W, near:N, company:N, cwe:W or alone; "
                            "`inferscale encode --help` explains them (default: " IS_DEFAULT_POLICY ")" },
    { "--refine", "POLICY", "the same for the second stage, in idle time: company:N or any other; none = off (default: " IS_DEFAULT_REFINE ")" },
    { "--codec", "CODEC", "how KV is stored from now on, in every program that uses the store and names none: default (int8), "
                         "auto (as the model holds it), f16, bf16, f32, int8, int4 (unset: $INFERSCALE_CODEC, else as the "
                         "store has it)" },
    { "--ctx", "TOKENS", "engine context (default: 8192, or what the model was trained for)" },
    { "--threads", "N", "threads (default: physical cores)" },
    { "--flash-attention", "WHEN", "on, off or auto (default: measured when the model loads)" },
    { "--ram", "SIZE", "budget of the KV kept in memory, e.g. 512M, 2G (default: 1G)" },
    { NULL, NULL, NULL },
};

static const cli_option json_options[] = {
    { "--json", NULL, "print the result, or the error, as one JSON object" },
    { NULL, NULL, NULL },
};

const cli_option *cli_group_options(unsigned group)
{
    return group == CLI_STORE   ? store_options
           : group == CLI_SCOPE ? scope_options
           : group == CLI_MODEL ? model_options
           : group == CLI_JSON  ? json_options
                                : NULL;
}

const char *cli_group_title(unsigned group)
{
    return group == CLI_STORE   ? "Store"
           : group == CLI_SCOPE ? "Whose memory"
           : group == CLI_MODEL ? "Model"
           : group == CLI_JSON  ? "Output"
                                : "Options";
}

static is_when read_time(const cli_args *a, const char *option)
{
    const char *s = cli_str(a, option, NULL);
    is_when when = { 0 };
    if (s && is_time_read(s, option, &when) != INFERSCALE_OK) exit(cli_usage(a, "%s", is_error()));
    return when;
}

int64_t cli_time(const cli_args *a, const char *option)
{
    return read_time(a, option).t;
}

int64_t cli_time_last(const cli_args *a, const char *option)
{
    const is_when when = read_time(a, option);
    return is_when_last(&when);
}

void cli_note_expired(const cli_args *a)
{
    const char *expires = cli_str(a, "--expires", NULL);
    if (expires && is_time_seconds(cli_time(a, "--expires")) <= is_now_epoch())
        fprintf(stderr, "Note: --expires %s is over already: what is stored so is kept, and never recalled.\n", expires);
}

int cli_choice(const cli_args *a, const char *option, const char *const *names, int fallback)
{
    const char *s = cli_str(a, option, NULL), *near;
    char list[128] = "";
    size_t n = 0, at = 0;
    if (!s) return fallback;
    for (; names[n]; n++)
        if (strcmp(names[n], s) == 0) return (int)n;
    for (size_t i = 0; i < n && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", names[i]);
    near = cli_nearest(s, names, n);
    if (near) exit(cli_usage(a, "%s is %s, not \"%.40s\"; did you mean %s?", option, list, s, near));
    exit(cli_usage(a, "%s is %s, not \"%.40s\"", option, list, s));
}

const char *cli_json_object(const cli_args *a, const char *option)
{
    const char *s = cli_str(a, option, NULL);
    json_error_t error;
    json_t *o;
    if (!s) return NULL;
    o = json_loads(s, JSON_REJECT_DUPLICATES, &error);
    if (!o)
        exit(cli_usage(a, "%s is not JSON (%.100s, at byte %d); write e.g. '{\"topic\": \"food\"}'", option, error.text,
                       error.position));
    bool object = json_is_object(o);
    json_decref(o);
    if (!object) exit(cli_usage(a, "%s must be a JSON object, e.g. '{\"topic\": \"food\"}'", option));
    return s;
}

int64_t cli_id_at(const cli_args *a, size_t i)
{
    int64_t id;
    if (!cli_parse_int(cli_at(a, i), &id) || id <= 0)
        exit(cli_usage(a, "\"%.40s\" is not an id; ids are the numbers that `inferscale ls` shows", cli_at(a, i)));
    return id;
}

void cli_recall_options(const cli_args *a, inferscale_recall_options *out)
{
    static const char *const kinds[] = { "facts", "turns", "both", NULL };
    static const char *const methods[] = { "fused", "lexical", "dense", NULL };
    *out = (inferscale_recall_options)INFERSCALE_RECALL_OPTIONS_INIT;
    out->k = (uint32_t)cli_int(a, "-k", 10, 1, 1000);
    out->kinds = cli_choice(a, "--kinds", kinds, 0) + 1; /* facts 1, turns 2, both 3 */
    out->method = cli_choice(a, "--method", methods, INFERSCALE_FUSED);
    out->has_threshold = cli_str(a, "--threshold", NULL) != NULL;
    out->threshold = cli_num(a, "--threshold", 0, 0, 1);
    out->from = cli_time(a, "--from");
    out->to = cli_time_last(a, "--to");
    out->as_of = cli_time(a, "--as-of");
    out->metadata = cli_json_object(a, "--metadata");
    if (out->from && out->to && is_time_seconds(out->from) > is_time_seconds(out->to)) exit(cli_usage(a, "--from is later than --to; swap them"));
}

void cli_ask_options(const cli_args *a, inferscale_ask_options *out, inferscale_recall_options *recall)
{
    static const char *const modes[] = { "kv", "text", "none", NULL };
    static const char *const stages[] = { "best", "first", "refine", NULL }; /* 0 and INFERSCALE_STAGE_*, in order */
    *out = (inferscale_ask_options)INFERSCALE_ASK_OPTIONS_INIT;
    cli_recall_options(a, recall);
    out->recall = recall;
    out->mode = cli_choice(a, "--mode", modes, INFERSCALE_MODE_KV);
    out->stage = cli_choice(a, "--stage", stages, 0);
    out->k = recall->k;
    out->repair = (uint32_t)cli_int(a, "--repair", 0, 0, 1000);
    out->max_tokens = (uint32_t)cli_int(a, "--max-tokens", 128, 1, 1 << 20);
    out->temperature = cli_num(a, "--temperature", 0, 0, 100);
    out->top_k = (uint32_t)cli_int(a, "--top-k", 0, 0, 1 << 20);
    out->top_p = cli_num(a, "--top-p", 0, 0, 1);
    out->min_p = cli_num(a, "--min-p", 0, 0, 1);
    out->seed = (uint64_t)cli_int(a, "--seed", 0, 0, INT64_MAX);
    out->cancel = cli_interrupt();
}

/* A server that is not up yet is waited for, for minutes: the user hears that, and why. And that rows change their
 * codec, which is the whole store's. Other messages are for logs. */
static void show_message(void *ctx, int level, const char *message)
{
    static const char waiting[] = "waiting for ", codec[] = "rows change their codec: ";

    (void)ctx;
    (void)level;
    if (strncmp(message, waiting, sizeof waiting - 1) == 0) fprintf(stderr, "%s (Ctrl-C ends it)\n", message);
    if (strncmp(message, codec, sizeof codec - 1) == 0) fprintf(stderr, "%s\n", message);
}

void cli_engine(const cli_args *a, inferscale_options *out)
{
    out->engine = cli_str(a, "--engine", NULL);
    out->on_log = show_message;
    out->upstream = cli_str(a, "--upstream", NULL);
    if (out->upstream && *out->upstream && is_urls_check(out->upstream) != INFERSCALE_OK) exit(cli_usage(a, "--upstream: %s", is_error()));
    if (cli_has(a, "--home")) out->home = cli_str(a, "--home", NULL);
}

void cli_options(const cli_args *a, inferscale_options *out)
{
    static const char *const attention[] = { "auto", "on", "off", NULL }; /* in the order of INFERSCALE_FA_* */
    unsigned groups = cli_current(a)->groups;
    *out = (inferscale_options)INFERSCALE_OPTIONS_INIT;
    out->on_loading = cli_on_loading;
    if (groups & CLI_STORE) {
        out->home = cli_str(a, "--home", NULL);
        cli_engine(a, out);
        out->embedder = cli_str(a, "--embedder", NULL);
        out->embedder_key = cli_str(a, "--embedder-key", NULL);
        out->embedder_wait_ms = (uint32_t)(1000 * cli_num(a, "--embedder-wait-s", 0, 0, 600));
        out->read_only = cli_flag(a, "--read-only");
        out->start_empty = cli_flag(a, "--start-empty");
    }
    if (cli_has(a, "--threads")) out->n_threads = (uint32_t)cli_int(a, "--threads", 0, 1, 1024);
    if (groups & CLI_MODEL) {
        const char *ram = cli_str(a, "--ram", NULL);
        out->model = cli_str(a, "--model", NULL);
        out->system = cli_str(a, "--system", NULL);
        out->policy = cli_str(a, "--policy", NULL);
        out->refine = cli_str(a, "--refine", NULL);
        out->codec = cli_str(a, "--codec", getenv("INFERSCALE_CODEC"));
        out->n_ctx = (uint32_t)cli_int(a, "--ctx", 0, 64, 1 << 24);
        out->flash_attention = cli_choice(a, "--flash-attention", attention, INFERSCALE_FA_AUTO);
        if (ram && (!cli_parse_size(ram, &out->ram_bytes) || out->ram_bytes == 0))
            exit(cli_usage(a, "--ram takes a size such as 512M or 2G, not \"%.40s\"", ram));
    }
}

void cli_scope(const cli_args *a, inferscale_scope *out)
{
    *out = (inferscale_scope){
        .tenant = cli_str(a, "--tenant", NULL), .user = cli_str(a, "--user", NULL), .agent = cli_str(a, "--agent", NULL),
        .run = cli_str(a, "--run", NULL),       .app = cli_str(a, "--app", NULL),
    };
    if (!(out->user && *out->user) && !(out->agent && *out->agent) && !(out->run && *out->run) && !(out->app && *out->app))
        out->user = "default";
}

/* An embedder that was named and is not there is found out before anything is done. The mock engine's are no files. */
bool cli_embedder_is_there(const inferscale_options *o)
{
    char *path;
    if (!o->embedder || strstr(o->embedder, "://") || (o->engine && strcmp(o->engine, "mock") == 0)) return true;
    path = cli_embedder_path(o->embedder);
    is_free(path);
    return path != NULL;
}

/* What Ctrl-C ends the loading of. A verb has one handle at a time. */
static inferscale *opened;

/* What is only read must be there: a home with a typo in its name is no new store. */
static is_status check_there(const cli_args *a, const inferscale_options *o)
{
    const is_fs *fs = is_fs_default();
    char *home = o->home && o->home[0] ? is_strdup(o->home) : is_default_home();
    is_status st = INFERSCALE_OK;
    if (!home) return is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");
    if ((cli_current(a)->groups & CLI_THERE) && !fs->exists(fs, home))
        st = is_fail(INFERSCALE_E_NOTFOUND, "there is no store in %.200s; `inferscale remember` makes one, or give another --home",
                     home);
    is_free(home);
    return st;
}

static int open_as(const cli_args *a, bool background, inferscale **out)
{
    inferscale_options o;
    inferscale_status st;
    cli_options(a, &o);
    if (!cli_embedder_is_there(&o)) return cli_fail_as(a, INFERSCALE_E_NOTFOUND);
    st = check_there(a, &o);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    o.background = background && !o.read_only;
    o.loading_ctx = &opened;
    __atomic_store_n(&opened, NULL, __ATOMIC_RELEASE);
    st = inferscale_open(out, &o);
    __atomic_store_n(&opened, *out, __ATOMIC_RELEASE); /* a background encoder may be loading by now */
    if (cli_interrupted()) inferscale_stop_loading(*out);
    if (st == INFERSCALE_OK && *inferscale_notice(*out)) fprintf(stderr, "Note: %s\n", inferscale_notice(*out));
    if (st == INFERSCALE_OK) return CLI_OK;
    cli_fail_as(a, st);
    inferscale_close(*out);
    *out = NULL;
    return CLI_FAILED;
}

int cli_open(const cli_args *a, inferscale **out)
{
    return open_as(a, false, out);
}

int cli_open_background(const cli_args *a, inferscale **out)
{
    return open_as(a, true, out);
}
