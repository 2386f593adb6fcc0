/* man.c - the manual page as roff, from the same tables as --help. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cli/args.h"
#include "cli/help.h"

/* Text with roff's special characters escaped; a line that begins with a dot or a quote is kept as text. */
static void put(const char *s)
{
    bool start = true;
    for (; *s; s++) {
        if (start && (*s == '.' || *s == '\'')) fputs("\\&", stdout);
        if (*s == '\\')
            fputs("\\e", stdout);
        else if (*s == '-')
            fputs("\\-", stdout);
        else if (*s == '`' )
            fputs("\\(ga", stdout);
        else if (*s == '\'')
            fputs("\\(aq", stdout);
        else if (*s == '"')
            fputs("\\(dq", stdout);
        else if (*s == '~')
            fputs("\\(ti", stdout);
        else if (*s == '^')
            fputs("\\(ha", stdout);
        else
            fputc(*s, stdout);
        start = *s == '\n';
    }
}

static void put_option(const cli_option *o)
{
    char title[80];
    cli_option_title(&(cli_option){ o->name, NULL, NULL }, title);
    fputs(".TP\n\\fB", stdout);
    put(title);
    fputs("\\fR", stdout);
    if (o->arg) {
        fputs(" \\fI", stdout);
        put(o->arg);
        fputs("\\fR", stdout);
    }
    fputc('\n', stdout);
    put(o->help);
    fputc('\n', stdout);
}

/* Paragraphs as they are: lines that begin with a space are examples and keep their line ends. */
static void put_details(const char *s)
{
    bool example = false, after_blank = true;
    while (*s) {
        size_t n = strcspn(s, "\n");
        char line[512];
        snprintf(line, sizeof line, "%.*s", (int)n, s);
        if (n == 0) {
            after_blank = true;
        } else {
            if (line[0] == ' ' && !example) fputs(".PP\n.RS 4\n.nf\n", stdout);
            if (line[0] != ' ' && example) fputs(".fi\n.RE\n", stdout);
            if (line[0] != ' ' && (example || after_blank)) fputs(".PP\n", stdout);
            example = line[0] == ' ';
            after_blank = false;
            put(line + (example ? strspn(line, " ") : 0));
            fputc('\n', stdout);
        }
        s += n + (s[n] == '\n');
    }
    if (example) fputs(".fi\n.RE\n", stdout);
}

static unsigned groups_of_all(void)
{
    unsigned all = 0;
    for (size_t i = 0; cli_verbs[i]; i++) all |= cli_verbs[i]->groups;
    return all;
}

static void put_verb(const cli_verb *v)
{
    bool first = true;
    fputs(".SS \"inferscale ", stdout);
    put(v->name);
    if (v->groups || v->options) fputs(" [OPTIONS]", stdout);
    if (v->usage && *v->usage) {
        fputc(' ', stdout);
        put(v->usage);
    }
    fputs("\"\n", stdout);
    put(v->summary);
    fputs(".\n", stdout);
    if (v->details) put_details(v->details);
    for (const cli_option *o = v->options; o && o->name; o++) put_option(o);
    for (unsigned g = 1; g <= CLI_JSON; g <<= 1) {
        if (!(v->groups & g)) continue;
        fputs(first ? ".PP\nTakes also the options of: " : ", ", stdout);
        fputs(cli_group_title(g), stdout);
        first = false;
    }
    if (!first) fputs(".\n", stdout);
}

static int cmd_man(const cli_args *a)
{
    char date[32];
    if (cli_n(a)) return cli_usage(a, "takes no arguments");
    is_date_iso(is_now_epoch(), date);
    date[10] = '\0';
    printf(".TH INFERSCALE 1 \"%s\" \"inferscale %s\" \"User Commands\"\n", date, inferscale_version());
    fputs(".SH NAME\ninferscale \\- memory for language models that costs almost nothing at prompt time\n"
          ".SH SYNOPSIS\n.B inferscale\n.I COMMAND\n[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]\n"
          ".SH DESCRIPTION\n"
          "Facts and conversation turns are kept in a store. The keys and values that a model computes for a fact are computed "
          "once and\n"
          "kept without position; to answer a question, the facts that matter are found, rotated to the positions they get in "
          "this prompt,\n"
          "and written into the engine's cache. Only the question is computed.\n"
          ".PP\nResults go to standard output, everything else to standard error. Options may stand anywhere after the "
          "command, as\n"
          "\\fB\\-\\-option\\fR \\fIVALUE\\fR or \\fB\\-\\-option=\\fR\\fIVALUE\\fR; after \\fB\\-\\-\\fR all words are "
          "arguments.\n"
          ".SH COMMANDS\n",
          stdout);
    for (size_t i = 0; cli_verbs[i]; i++) put_verb(cli_verbs[i]);
    fputs(".SH \"SHARED OPTIONS\"\n", stdout);
    for (unsigned g = 1; g <= CLI_JSON; g <<= 1) {
        if (!(groups_of_all() & g)) continue;
        printf(".SS \"%s\"\n", cli_group_title(g));
        for (const cli_option *o = cli_group_options(g); o->name; o++) put_option(o);
    }
    fputs(".SH ENVIRONMENT\n", stdout);
    for (const cli_env *e = cli_environment; e->name; e++) {
        printf(".TP\n.B %s\n", e->name);
        put(e->help);
        fputc('\n', stdout);
    }
    fputs(".SH \"EXIT STATUS\"\n.TP\n0\nDone.\n.TP\n1\nFailed; the message names the cause and the next step.\n.TP\n2\nWrong "
          "usage.\n.TP\n130\nInterrupted (Ctrl-C). In a chat the first ends the answer, the second in a row the chat.\n"
          ".TP\n141\nWhoever read the output has left.\n"
          ".SH FILES\nThe store's folder is private (mode 0700): keys and values can be turned back into text.\n",
          stdout);
    return CLI_OK;
}

const cli_verb cli_verb_man = {
    "man", "", "Print the manual page (roff)", "Examples:\n  inferscale man | man -l -\n", NULL, 0, cmd_man,
};
