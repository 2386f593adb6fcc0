/* help.c - --help of the program and of each verb. */
#include "cli/help.h"

#include <string.h>

#include "cli/args.h"
#include "cli/out.h"

const cli_env cli_environment[] = {
    { "INFERSCALE_HOME", "the store's folder (default: $XDG_DATA_HOME/inferscale, else ~/.local/share/inferscale)" },
    { "INFERSCALE_MODELS", "the folder of installed models (default: ~/.cache/inferscale/models)" },
    { "INFERSCALE_PLUGINS", "the folder of engine plug-ins (default: beside the program, or its ../lib)" },
    { "INFERSCALE_CONFIG", "the file of `inferscale serve`'s settings; each is a variable too (INFERSCALE_PORT, ...)" },
    { "INFERSCALE_EMBEDDER_KEY", "API key of an HTTP embedder" },
    { "INFERSCALE_UPSTREAM", "the servers of engine vllm, http(s)://HOST:PORT[,...]" },
    { "INFERSCALE_UPSTREAM_KEY", "API key of these servers" },
    { "INFERSCALE_JUDGE_KEY", "API key of the judge of `eval accuracy`" },
    { "INFERSCALE_SIMD", "scalar, avx2 or avx512: use no more than this" },
    { "NO_COLOR", "if set: no colours" },
    { NULL, NULL },
};

static int help_columns(FILE *f)
{
    int c = f == stdout ? cli_columns() : 80;
    return c == 0 ? 80 : c > 100 ? 100 : c;
}

static void print_row(FILE *f, const char *left, int left_width, const char *right)
{
    int w = cli_text_width(left);
    fprintf(f, "  %s", left);
    if (w > left_width) {
        fputc('\n', f);
        w = -2;
    }
    cli_put_pad(f, left_width - w + 2);
    cli_put_wrapped(f, right, help_columns(f), left_width + 4);
}

void cli_print_overview(FILE *f)
{
    fputs("inferscale - memory for language models that costs almost nothing at prompt time\n\n"
          "Usage: inferscale COMMAND [OPTIONS] [ARGUMENTS]\n\nCommands:\n", f);
    for (size_t i = 0; cli_verbs[i]; i++) print_row(f, cli_verbs[i]->name, 16, cli_verbs[i]->summary);
    fputs("\nA first try:\n"
          "  inferscale demo\n"
          "  inferscale remember \"Anna is allergic to peanuts.\"\n"
          "  inferscale ask \"Which food is Anna allergic to?\"\n"
          "\n`inferscale COMMAND --help` explains a command; `inferscale man | man -l -` is the manual.\n"
          "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (Ctrl-C), 141 nobody\nreads the output any more.\n\nEnvironment:\n", f);
    for (const cli_env *e = cli_environment; e->name; e++) print_row(f, e->name, 24, e->help);
}

typedef struct option_list {
    FILE *f;
    unsigned group;
    bool titled;
} option_list;

void cli_option_title(const cli_option *o, char out[80])
{
    const char *space = o->arg ? " " : "", *arg = o->arg ? o->arg : "";
    if (o->name[1] == '-')
        snprintf(out, 80, "%s%s%s", o->name, space, arg);
    else
        snprintf(out, 80, "%s, -%s%s%s", o->name, o->name, space, arg);
}

static void print_option(void *ctx, const cli_option *o, unsigned group)
{
    option_list *l = ctx;
    char left[80];
    cli_option_title(o, left);
    if (!l->titled || group != l->group) fprintf(l->f, "\n%s:\n", cli_group_title(group));
    l->titled = true;
    l->group = group;
    print_row(l->f, left, 24, o->help);
}

/* Paragraphs are wrapped; lines that begin with a space are examples and stay as they are. */
static void print_details(FILE *f, const char *s)
{
    while (*s) {
        const char *end = s;
        is_buf paragraph = IS_BUF_INIT;
        if (*s == ' ' || *s == '\n') {
            end += strcspn(s, "\n");
            fprintf(f, "%.*s\n", (int)(end - s), s);
            s = end + (*end == '\n');
            continue;
        }
        while (*end && *end != ' ' && *end != '\n') {
            size_t n = strcspn(end, "\n");
            is_buf_add(&paragraph, end, n);
            is_buf_add(&paragraph, " ", 1);
            end += n + (end[n] == '\n');
        }
        if (is_buf_ok(&paragraph)) cli_put_wrapped(f, (const char *)paragraph.data, help_columns(f), 0);
        is_buf_free(&paragraph);
        s = end;
    }
}

static void print_second_words(FILE *f, const char *word)
{
    size_t n = strlen(word);
    fputs("\nCommands:\n", f);
    for (size_t i = 0; cli_verbs[i]; i++)
        if (strncmp(cli_verbs[i]->name, word, n) == 0 && cli_verbs[i]->name[n] == ' ')
            print_row(f, cli_verbs[i]->name, 16, cli_verbs[i]->summary);
}

bool cli_print_group_help(FILE *f, const char *word)
{
    if (!cli_is_group(cli_verbs, word)) return false;
    fprintf(f, "Usage: inferscale %s COMMAND [OPTIONS] [ARGUMENTS]\n", word);
    print_second_words(f, word);
    fprintf(f, "\n`inferscale %s COMMAND --help` explains a command.\n", word);
    return true;
}

void cli_print_verb_help(FILE *f, const cli_verb *verb)
{
    option_list l = { f, 0, false };
    bool any = verb->groups || (verb->options && verb->options->name);
    fprintf(f, "Usage: inferscale %s%s%s%s\n\n", verb->name, any ? " [OPTIONS]" : "", verb->usage && *verb->usage ? " " : "",
            verb->usage ? verb->usage : "");
    cli_put_wrapped(f, verb->summary, help_columns(f), 0);
    if (verb->details) {
        fputc('\n', f);
        print_details(f, verb->details);
    }
    if (cli_is_group(cli_verbs, verb->name)) print_second_words(f, verb->name);
    cli_each_option(verb, print_option, &l);
}

int cli_print_version(bool json)
{
    if (json) return cli_print_json(json_pack("{s:s,s:s}", "name", "inferscale", "version", inferscale_version()));
    printf("inferscale %s\n", inferscale_version());
    return CLI_OK;
}

static int cmd_help(const cli_args *a)
{
    char *words[2] = { NULL, NULL }, message[512];
    const cli_verb *verb;
    int used, n = (int)cli_n(a);
    if (n == 0) {
        cli_print_overview(stdout);
        return CLI_OK;
    }
    if (n > 2) return cli_usage(a, "at most two words name a command");
    for (int i = 0; i < n; i++) words[i] = (char *)(uintptr_t)cli_at(a, (size_t)i);
    verb = cli_find_verb(cli_verbs, n, words, &used);
    if (!verb && n == 1 && cli_print_group_help(stdout, words[0])) return CLI_OK;
    if (!verb || used != n) {
        cli_unknown_verb(cli_verbs, n, words, message, sizeof message);
        return cli_usage(a, "%s", message);
    }
    cli_print_verb_help(stdout, verb);
    return CLI_OK;
}

const cli_verb cli_verb_help = {
    "help", "[COMMAND]", "Explain a command", "Examples:\n  inferscale help ask\n  inferscale help bench ttft\n", NULL,
    0,      cmd_help,
};
