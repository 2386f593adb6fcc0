/* main.c - finds the verb, parses what follows it, runs it. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/words.h"
#include "cli/args.h"
#include "cli/help.h"
#include "cli/out.h"
#include "cli/wipe.h"

static bool has_json(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0) return true;
    return false;
}

static bool is_help(const char *s) { return strcmp(s, "--help") == 0 || strcmp(s, "-h") == 0; }

static int run(int argc, char **argv)
{
    char message[1024];
    const cli_verb *verb;
    cli_args *args = NULL;
    int used, rc;

    if (argc == 0) {
        cli_print_overview(stderr);
        return CLI_USAGE;
    }
    if (is_help(argv[0])) {
        cli_print_overview(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[0], "--version") == 0 || strcmp(argv[0], "-V") == 0) return cli_print_version(has_json(argc, argv));

    verb = cli_find_verb(cli_verbs, argc, argv, &used);
    if (!verb && argc == 2 && is_help(argv[1]) && cli_print_group_help(stdout, argv[0])) return CLI_OK;
    if (!verb) {
        if (argv[0][0] == '-' && strcmp(argv[0], "--") != 0)
            snprintf(message, sizeof message,
                     "options come after the command: inferscale COMMAND %.60s; `inferscale --help` lists commands", argv[0]);
        else
            cli_unknown_verb(cli_verbs, argc, argv, message, sizeof message);
        return cli_usage_at("", has_json(argc, argv), message);
    }
    rc = cli_args_parse(verb, argc - used, argv + used, &args, message, sizeof message);
    if (rc != CLI_OK) return cli_usage_at(verb->name, has_json(argc, argv), message);
    if (cli_wants_help(args))
        cli_print_verb_help(stdout, verb);
    else
        rc = verb->run(args);
    cli_args_free(args);
    return rc;
}

/* What a shell shows of a program that the signal has ended. */
static int code_of(int sig) { return 128 + sig; }

int main(int argc, char **argv)
{
    int rc;

    is_reader_set(IS_READER_CLI);
    setlocale(LC_CTYPE, "C.UTF-8"); /* for the width of characters; numbers and dates stay in the C locale */
    signal(SIGPIPE, SIG_IGN);       /* a closed pipe is a failed write, not a killed encoder */
    signal(SIGXFSZ, SIG_IGN);       /* beyond `ulimit -f` (systemd's LimitFSIZE) a write fails with EFBIG, as on a full disk */
    cli_wipe_set_up();
    json_set_alloc_funcs(is_malloc, is_free);
    rc = run(argc - 1, argv + 1);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (cli_reader_left()) return code_of(SIGPIPE);
        if (rc == CLI_OK) {
            fprintf(stderr, "inferscale: %s\n", cli_output_lost);
            rc = CLI_FAILED;
        }
    }
    return rc == CLI_FAILED && cli_interrupted() ? code_of(SIGINT) : rc;
}
