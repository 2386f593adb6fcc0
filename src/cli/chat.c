/* chat.c - `inferscale chat`: a conversation with memory, on a terminal or through a pipe. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/answer.h"
#include "cli/args.h"
#include "exchange/jsonl.h"
#include "cli/out.h"
#include "cli/store.h"

typedef struct session {
    const cli_args *a;
    inferscale *is;
    inferscale_scope scope;
    inferscale_chat *chat;
    inferscale_ask_options ask;
    inferscale_recall_options filters;
    inferscale_answer *last;   /* NULL before the first answer */
    bool tty;                  /* a person types */
    bool asked_to_leave;       /* Ctrl-C, and nothing was typed since */
} session;

enum { PATIENCE = 2 }; /* interrupts while one answer ends; one more ends the program */

static const char help_text[] = "/facts  the facts that the last answer used\n"
                                "/stats  what was computed and injected, and the time of each part\n"
                                "/remember TEXT  remember a fact\n"
                                "/quit  leave (also Ctrl-D)\n"
                                "Ctrl-C  end the answer; once more, leave\n";

static int remember(session *s, const char *text)
{
    inferscale_fact fact = { .text = text };
    inferscale_event event;
    inferscale_status st = inferscale_remember(s->is, &s->scope, &fact, 1, &event);
    if (st != INFERSCALE_OK) return cli_fail_as(s->a, st);
    fprintf(stderr, "%s as %lld.\n", event.event == INFERSCALE_EVENT_ADD ? "Remembered" : "Known",
            (long long)event.id);
    return cli_encode_after(s->a, s->is, &s->scope, 1, NULL);
}

/* A line that begins with a slash. Returns -1 to leave, else an exit code. */
static int command(session *s, const char *line)
{
    static const char *const names[] = { "/facts", "/stats", "/remember", "/quit", "/help" };
    const char *near;
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return -1;
    if (strcmp(line, "/help") == 0) {
        fputs(help_text, stderr);
    } else if (strcmp(line, "/remember") == 0 || (strncmp(line, "/remember ", 10) == 0 && cli_blank(line + 10))) {
        fprintf(stderr, "Say what: /remember TEXT\n");
        return CLI_FAILED;
    } else if (strncmp(line, "/remember ", 10) == 0) {
        return remember(s, line + 10);
    } else if (strcmp(line, "/facts") != 0 && strcmp(line, "/stats") != 0) {
        near = cli_nearest(line, names, sizeof names / sizeof *names);
        fprintf(stderr, "There is no %.40s; %s%s%s\n", line, near ? "did you mean " : "/help lists commands", near ? near : "",
                near ? "?" : "");
        return CLI_FAILED;
    } else if (!s->last) {
        fprintf(stderr, "Nothing was asked yet.\n");
    } else if (cli_wants_json(s->a)) {
        return cli_print_json(cli_answer_json(s->is, &s->scope, s->last));
    } else if (strcmp(line, "/facts") == 0) {
        cli_answer_facts(stdout, s->is, &s->scope, s->last);
    } else {
        cli_answer_stats(stdout, s->last);
    }
    return CLI_OK;
}

static int say(session *s, const char *line)
{
    inferscale_answer *answer = NULL;
    inferscale_status st = inferscale_chat_say(s->chat, line, &s->ask, &answer);
    if (st != INFERSCALE_OK) {
        if (!cli_wants_json(s->a)) putchar('\n');
        return ferror(stdout) ? cli_fail_msg(s->a, "%s", cli_output_lost) : cli_fail_as(s->a, st);
    }
    inferscale_answer_free(s->last);
    s->last = answer;
    if (cli_wants_json(s->a)) return cli_print_json(cli_answer_json(s->is, &s->scope, answer));
    putchar('\n');
    if (!cli_printed()) return CLI_FAILED;
    if (answer->fallback && *answer->fallback) fprintf(stderr, "Note: %s\n", answer->fallback);
    if (cli_flag(s->a, "--stats")) cli_answer_stats(stderr, answer);
    return CLI_OK;
}

/* A person's Ctrl-C ends what goes on, an answer or a line that is being typed, and the second in a row the chat. What is piped in ends
 * with the first. True: leave. */
static bool leaves(session *s)
{
    if (!cli_interrupted()) return false;
    if (!s->tty || s->asked_to_leave) return true;
    s->asked_to_leave = true;
    cli_interrupt_over(PATIENCE);
    clearerr(stdin);
    fprintf(stderr, "%sCtrl-C again leaves; so do /quit and Ctrl-D.%s\n", cli_on_in(stderr, CLI_DIM), cli_off_in(stderr));
    return false;
}

/* One line, answered. *over: it was the last one. Returns an exit code. */
static int turn(session *s, jsonl_reader *r, bool *over)
{
    int rc;
    if (s->tty) {
        fprintf(stderr, "%syou>%s ", cli_on_in(stderr, CLI_BOLD), cli_off_in(stderr));
        fflush(stderr);
    }
    if ((s->tty && !cli_input_comes(STDIN_FILENO)) || jsonl_next_line(r, over) != INFERSCALE_OK) {
        if (!cli_interrupted()) {
            *over = true;
            return cli_fail(s->a);
        }
        if (s->tty) fputc('\n', stderr);
        *over = leaves(s);
        return *over ? CLI_FAILED : CLI_OK;
    }
    if (*over) return CLI_OK;
    s->asked_to_leave = false;
    rc = r->text.data[0] == '/' ? command(s, (const char *)r->text.data) : say(s, (const char *)r->text.data);
    *over = rc < 0 || ferror(stdout);
    if (leaves(s)) *over = true;
    return rc < 0 ? CLI_OK : rc;
}

/* Reads and answers until the end. A failed line does not end the talk; piped, the exit code remembers it. */
static int talk(session *s)
{
    jsonl_reader *r = is_malloc(sizeof *r);
    bool over = false;
    int rc = CLI_OK;
    if (!r) return cli_fail_msg(s->a, "out of memory; close other programs and try again");
    jsonl_reader_init(r, stdin);
    if (s->tty) cli_interrupt_over(PATIENCE);
    while (!over) {
        int one = turn(s, r, &over);
        if (one != CLI_OK && (!s->tty || (over && cli_interrupted()))) rc = one;
    }
    jsonl_reader_free(r);
    is_free(r);
    if (s->tty) fputc('\n', stderr);
    return rc;
}

static int cmd_chat(const cli_args *a)
{
    session s = { .a = a, .tty = isatty(STDIN_FILENO) };
    inferscale_model_info info;
    inferscale_status st;
    double load_ms;
    int rc;
    if (cli_n(a)) return cli_usage(a, "takes no text; type it, or pipe it in, one message a line");
    cli_ask_options(a, &s.ask, &s.filters);
    cli_scope(a, &s.scope);
    if (!cli_wants_json(a)) s.ask.on_text = cli_stream;
    rc = cli_open_background(a, &s.is);
    if (rc != CLI_OK) return rc;
    st = cli_load(a, s.is, &s.scope, &s.ask, &info, &load_ms);
    if (st == INFERSCALE_OK) st = inferscale_chat_open(s.is, &s.scope, &s.chat);
    if (st != INFERSCALE_OK) {
        rc = cli_fail_as(a, st);
    } else {
        if (s.tty)
            fprintf(stderr, "%sType a message; /help lists commands.%s\n", cli_on_in(stderr, CLI_DIM), cli_off_in(stderr));
        rc = talk(&s);
    }
    inferscale_answer_free(s.last);
    inferscale_chat_close(s.chat);
    inferscale_close(s.is);
    return rc;
}

static const cli_option options[] = {
    CLI_ASK_OPTIONS,
    CLI_RECALL_OPTIONS,
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_chat = {
    "chat", "", "Talk with memory; earlier turns stay computed",
    "One message a line. New memory is placed before the newest message, so nothing earlier is computed again. Commands: "
    "/facts, /stats, /remember TEXT, /help, /quit. While it waits for you, it encodes what this and other programs have remembered.\n\n"
    "Examples:\n  inferscale chat --user anna\n  printf 'Hello\\n/stats\\n' | inferscale chat\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_chat,
};
