/* completion.c - completion scripts for bash, zsh and fish, from the verbs' table. */
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/help.h"

/* Words that an option's value can be. Options that are not here complete file names. */
static const struct { const char *option, *words; } values[] = {
    { "--mode", "kv text none" },       { "--kinds", "facts turns both" },
    { "--method", "fused lexical dense" }, { "--codec", "default auto f16 bf16 f32 int8 int4" },
    { "--flash-attention", "auto on off" }, { "--engine", "llama vllm mock" },
    { "--policy", "page:16/6 page:16 header facts:5 turns:5 near:3 cwe:5 alone" },
    { "--refine", "company:10 near:3 none" },
    { "--stage", "first refine all" },
};

static void put_name(void *ctx, const cli_option *o, unsigned group)
{
    printf(" %s", o->name);
    if (o->name[1] != '-') printf(" -%s", o->name); /* -k is --k, too */
}

/* The second words of two-word verbs that begin with first. */
static void put_second_words(const char *first, size_t n)
{
    for (size_t i = 0; cli_verbs[i]; i++)
        if (strncmp(cli_verbs[i]->name, first, n) == 0 && cli_verbs[i]->name[n] == ' ')
            printf(" %s", cli_verbs[i]->name + n + 1);
}

/* First words, each once. */
static void each_first_word(void (*each)(const char *word, size_t n, const cli_verb *v))
{
    for (size_t i = 0; cli_verbs[i]; i++) {
        const char *name = cli_verbs[i]->name;
        size_t n = strcspn(name, " ");
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++)
            seen = strcspn(cli_verbs[j]->name, " ") == n && strncmp(cli_verbs[j]->name, name, n) == 0;
        if (!seen) each(name, n, cli_verbs[i]);
    }
}

static void put_first(const char *word, size_t n, const cli_verb *v) { printf(" %.*s", (int)n, word); }

static void put_bash_group(const char *word, size_t n, const cli_verb *v)
{
    bool group = false;
    for (size_t i = 0; cli_verbs[i] && !group; i++)
        group = strncmp(cli_verbs[i]->name, word, n) == 0 && cli_verbs[i]->name[n] == ' ';
    if (!group) return;
    printf("    %.*s) second=\"", (int)n, word);
    put_second_words(word, n);
    printf("\" ;;\n");
}

static void put_bash(void)
{
    printf("# bash completion for inferscale; load with: source <(inferscale completion bash)\n"
           "_inferscale() {\n"
           "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" verb=\"${COMP_WORDS[1]}\" "
           "second=\"\" words=\"\"\n"
           "  COMPREPLY=()\n"
           "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W \"--help --version");
    each_first_word(put_first);
    printf("\" -- \"$cur\"))\n    return\n  fi\n  case \"$prev\" in\n");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        printf("    %s) COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n", values[i].option, values[i].words);
    printf("  esac\n  case \"$verb\" in\n");
    each_first_word(put_bash_group);
    printf("    completion) second=\"bash zsh fish\" ;;\n    help) second=\"");
    each_first_word(put_first);
    printf("\" ;;\n  esac\n"
           "  if [ \"$COMP_CWORD\" -eq 2 ] && [ -n \"$second\" ] && [[ \"$cur\" != -* ]]; then\n"
           "    COMPREPLY=($(compgen -W \"$second\" -- \"$cur\"))\n"
           "    [ \"${#COMPREPLY[@]}\" -gt 0 ] && return\n  fi\n"
           "  case \" $second \" in *\" ${COMP_WORDS[2]} \"*) [ -n \"${COMP_WORDS[2]}\" ] && verb=\"$verb ${COMP_WORDS[2]}\" "
           ";; esac\n"
           "  case \"$verb\" in\n");
    for (size_t i = 0; cli_verbs[i]; i++) {
        printf("    \"%s\") words=\"--help", cli_verbs[i]->name);
        cli_each_option(cli_verbs[i], put_name, NULL);
        printf("\" ;;\n");
    }
    printf("  esac\n"
           "  if [[ \"$cur\" == -* ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")); else COMPREPLY=($(compgen -f -- "
           "\"$cur\")); fi\n"
           "}\n"
           "complete -o filenames -F _inferscale inferscale\n");
}

/* A help line inside single quotes of a shell; zsh's brackets and colons are escaped too. */
static void put_quoted(const char *s, bool zsh)
{
    for (; *s; s++) {
        if (*s == '\'')
            fputs(zsh ? "'\\''" : "\\'", stdout);
        else if (*s == '\\' || (zsh && (*s == '[' || *s == ']' || *s == ':')))
            printf("\\%c", *s);
        else
            fputc(*s, stdout);
    }
}

static const char *value_words(const char *option)
{
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(values[i].option, option) == 0) return values[i].words;
    return NULL;
}

static void put_zsh_option(void *ctx, const cli_option *o, unsigned group)
{
    const char *words = o->arg ? value_words(o->name) : NULL;
    if (o->name[1] == '-')
        printf(" \\\n        '%s%s[", o->name, o->arg ? "=" : "");
    else
        printf(" \\\n        {%s,-%s=}'[", o->name, o->name);
    put_quoted(o->help, true);
    fputc(']', stdout);
    if (words) printf(":value:(%s)", words);
    else if (o->arg) printf(":%s:_files", o->arg);
    fputc('\'', stdout);
}

static void put_zsh_first(const char *word, size_t n, const cli_verb *v)
{
    printf("    '%.*s:", (int)n, word);
    put_quoted(v->name[n] == ' ' ? "(see its second words)" : v->summary, true);
    printf("'\n");
}

static void put_zsh_group(const char *word, size_t n, const cli_verb *v)
{
    bool group = false;
    for (size_t i = 0; cli_verbs[i] && !group; i++)
        group = strncmp(cli_verbs[i]->name, word, n) == 0 && cli_verbs[i]->name[n] == ' ';
    if (!group) return;
    printf("    %.*s) second=(", (int)n, word);
    put_second_words(word, n);
    printf(" ) ;;\n");
}

static void put_zsh(void)
{
    printf("#compdef inferscale\n# zsh completion for inferscale; save as _inferscale in a folder of $fpath\n"
           "_inferscale() {\n  local -a verbs second\n  verbs=(\n");
    each_first_word(put_zsh_first);
    printf("  )\n  if (( CURRENT == 2 )); then _describe command verbs; return; fi\n"
           "  local verb=$words[2]\n  second=()\n  case $verb in\n");
    each_first_word(put_zsh_group);
    printf("    completion) second=(bash zsh fish) ;;\n  esac\n"
           "  if (( CURRENT == 3 )) && (( $#second )) && [[ $words[3] != -* ]]; then _describe word second; return; fi\n"
           "  (( $second[(Ie)$words[3]] )) && verb=\"$verb $words[3]\"\n  case $verb in\n");
    for (size_t i = 0; cli_verbs[i]; i++) {
        printf("    '%s')\n      _arguments", cli_verbs[i]->name);
        cli_each_option(cli_verbs[i], put_zsh_option, NULL);
        printf(" \\\n        '*:argument:_files' ;;\n");
    }
    printf("  esac\n}\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then _inferscale \"$@\"; else compdef _inferscale "
           "inferscale; fi\n");
}

static void put_fish_condition(const cli_verb *v)
{
    const char *space = strchr(v->name, ' ');
    if (space)
        printf("__fish_seen_subcommand_from %.*s; and __fish_seen_subcommand_from %s", (int)(space - v->name), v->name,
               space + 1);
    else
        printf("__fish_seen_subcommand_from %s", v->name);
}

static void put_fish_option(void *ctx, const cli_option *o, unsigned group)
{
    const cli_verb *v = ctx;
    const char *words = o->arg ? value_words(o->name) : NULL;
    printf("complete -c inferscale -n '");
    put_fish_condition(v);
    if (o->name[1] == '-')
        printf("' -l %s -d '", o->name + 2);
    else
        printf("' -s %s -l %s -d '", o->name + 1, o->name + 1);
    put_quoted(o->help, false);
    printf("'%s", o->arg ? " -r" : "");
    if (words) printf(" -f -a '%s'", words);
    fputc('\n', stdout);
}

static void put_fish(void)
{
    printf("# fish completion for inferscale; save as ~/.config/fish/completions/inferscale.fish\n");
    for (size_t i = 0; cli_verbs[i]; i++) {
        const cli_verb *v = cli_verbs[i];
        const char *space = strchr(v->name, ' ');
        if (space)
            printf("complete -c inferscale -n '__fish_use_subcommand' -f -a %.*s\n"
                   "complete -c inferscale -n '__fish_seen_subcommand_from %.*s' -f -a %s -d '",
                   (int)(space - v->name), v->name, (int)(space - v->name), v->name, space + 1);
        else
            printf("complete -c inferscale -n '__fish_use_subcommand' -f -a %s -d '", v->name);
        put_quoted(v->summary, false);
        printf("'\n");
        cli_each_option(v, put_fish_option, (void *)(uintptr_t)v);
    }
    printf("complete -c inferscale -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n");
}

static int cmd_completion(const cli_args *a)
{
    static const char *const shells[] = { "bash", "zsh", "fish" };
    const char *shell = cli_at(a, 0), *near;
    if (cli_n(a) != 1) return cli_usage(a, "name one shell: bash, zsh or fish");
    if (strcmp(shell, "bash") == 0) put_bash();
    else if (strcmp(shell, "zsh") == 0) put_zsh();
    else if (strcmp(shell, "fish") == 0) put_fish();
    else if ((near = cli_nearest(shell, shells, 3)) != NULL)
        return cli_usage(a, "there is no script for \"%.40s\"; did you mean %s? There are bash, zsh and fish", shell, near);
    else return cli_usage(a, "there is no script for \"%.40s\"; there are bash, zsh and fish", shell);
    return CLI_OK;
}

const cli_verb cli_verb_completion = {
    "completion", "SHELL", "Print a completion script for bash, zsh or fish",
    "Examples:\n  source <(inferscale completion bash)\n  inferscale completion fish > "
    "~/.config/fish/completions/inferscale.fish\n",
    NULL, 0, cmd_completion,
};
