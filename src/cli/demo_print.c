/* demo_print.c - the demo's tables. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/demo.h"
#include "cli/out.h"
#include "cli/store.h"

enum { LEFT = 13, COLUMN = 31, FACTS_SHOWN = 3, BAR = 24 };

/* The next line of *s, at most columns wide, broken at a space where there is one; false at the end. */
static bool next_line(const char **s, int columns, char *line, size_t cap)
{
    const char *p = *s;
    size_t take = 0, fits = 0;
    while (*p == ' ' || *p == '\n') p++;
    if (!*p) return false;
    while (p[take] && p[take] != '\n' && take + 4 < cap) {
        size_t n = 1;
        while (((unsigned char)p[take + n] & 0xc0) == 0x80) n++;
        memcpy(line, p, take + n);
        line[take + n] = '\0';
        if (cli_text_width(line) > columns) break;
        take += n;
        if (p[take] == ' ' || p[take] == '\n' || p[take] == '\0') fits = take;
    }
    if (fits) take = fits;
    memcpy(line, p, take);
    line[take] = '\0';
    *s = p + take;
    return true;
}

/* A row with two cells, each wrapped in its column. */
static void row(const char *name, const char *left, const char *right)
{
    char a[256], b[256];
    bool first = true;
    for (;;) {
        bool more_a = next_line(&left, COLUMN, a, sizeof a), more_b = next_line(&right, COLUMN, b, sizeof b);
        if (!more_a && !more_b && !first) break;
        if (!more_a) a[0] = '\0';
        if (!more_b) b[0] = '\0';
        printf("   %s%-*s%s", cli_on(CLI_DIM), LEFT, first ? name : "", cli_off());
        cli_put_text(stdout, a, true);
        cli_put_pad(stdout, b[0] ? COLUMN + 2 - cli_text_width(a) : 0);
        cli_put_text(stdout, b, true);
        putchar('\n');
        first = false;
    }
}

static void print_facts(inferscale *is, const inferscale_scope *scope, const inferscale_answer *r)
{
    int columns = cli_columns() ? cli_columns() : 80;
    for (size_t i = 0; i < r->n_facts && i < FACTS_SHOWN; i++) {
        char *text = cli_fact_text(is, scope, r->facts[r->n_facts - 1 - i].id);
        printf("   %s%-*s%s", cli_on(CLI_DIM), LEFT, i == 0 ? "facts used" : "", cli_off());
        cli_put_cut(stdout, text ? text : "", columns - LEFT - 4);
        putchar('\n');
        is_free(text);
    }
    if (r->n_facts > FACTS_SHOWN)
        printf("   %-*s%sand %zu more%s\n", LEFT, "", cli_on(CLI_DIM), r->n_facts - FACTS_SHOWN, cli_off());
}

const char *demo_rows(const inferscale_answer *r)
{
    size_t n_injected = 0;

    for (size_t i = 0; i < r->n_facts; i++)
        n_injected += r->facts[i].source == INFERSCALE_SOURCE_STORED;
    if (n_injected == 0) return "none";
    if (r->n_refined == 0) return "first stage";
    return r->n_refined + r->n_exact < n_injected ? "both stages" : "second stage";
}

static const char *against(const inferscale_answer *kv, const inferscale_answer *text)
{
    const bool same = strcmp(kv->text, text->text) == 0;

    return same ? "the same words as text's" : "other words than text's";
}

/* The one that the second stage's rows give, below what the first stage's gave. */
static void print_second(const inferscale_answer *second, const inferscale_answer *text)
{
    char ms[32];

    row("rows", demo_rows(second), "");
    row("answer", second->text, "");
    row("", against(second, text), "");
    cli_ms(second->ttft_ms, ms);
    row("first token", ms, "");
}

void demo_print_pair(inferscale *is, const inferscale_scope *scope, size_t number, const char *question, const demo_pair *p)
{
    char a[96], b[96];
    printf("%s%zu. ", cli_on(CLI_BOLD), number);
    cli_put_text(stdout, question, true);
    printf("%s\n", cli_off());
    print_facts(is, scope, p->kv);
    row("", p->kv->mode == INFERSCALE_MODE_KV ? "INJECTED (kv)" : "KV NOT USED (see note)", "PREFILLED (text)");
    row("rows", demo_rows(p->kv), "none: all is computed");
    row("answer", p->kv->text, p->text->text);
    row("", against(p->kv, p->text), "");
    snprintf(a, sizeof a, "%u tokens (%u injected)", p->kv->tokens_computed, p->kv->tokens_injected);
    snprintf(b, sizeof b, "%u tokens", p->text->tokens_computed);
    row("computed", a, b);
    cli_ms(p->kv->ttft_ms, a);
    cli_ms(p->text->ttft_ms, b);
    row("first token", a, b);
    if (p->kv->ttft_ms > 0 && p->kv->ttft_ms < p->text->ttft_ms)
        printf("   %s%-*s%s%s%.1fx%s sooner with injected memory\n", cli_on(CLI_DIM), LEFT, "ratio", cli_off(),
               cli_on(CLI_GREEN), p->text->ttft_ms / p->kv->ttft_ms, cli_off());
    if (p->kv->fallback && *p->kv->fallback) row("note", p->kv->fallback, "");
    if (p->second) print_second(p->second, p->second_text);
    putchar('\n');
    fflush(stdout);
}

static void bar(double ms, double longest)
{
    int eighths = longest > 0 ? (int)(ms / longest * BAR * 8 + 0.5) : 0;
    static const char *const part[] = {
        "", "\xe2\x96\x8f", "\xe2\x96\x8e", "\xe2\x96\x8d", "\xe2\x96\x8c", "\xe2\x96\x8b", "\xe2\x96\x8a", "\xe2\x96\x89"
    };
    if (eighths < 1) eighths = 1;
    for (int i = 0; i < eighths / 8; i++) fputs("\xe2\x96\x88", stdout);
    fputs(part[eighths % 8], stdout);
}

void demo_print_k(const demo_k *rows, size_t n, int64_t runs)
{
    double longest = 0;
    for (size_t i = 0; i < n; i++) {
        if (rows[i].text_ms > longest) longest = rows[i].text_ms;
        if (rows[i].kv_ms > longest) longest = rows[i].kv_ms;
    }
    printf("%sWhat k facts cost before the first token%s (medians of %lld, arms taken in turn)\n", cli_on(CLI_BOLD), cli_off(),
           (long long)runs);
    printf("   %s%4s  %11s  %-9s %9s%s\n", cli_on(CLI_DIM), "k", "fact tokens", "memory", "TTFT", cli_off());
    for (size_t i = 0; i < n; i++) {
        char ms[32];
        cli_ms(rows[i].kv_ms, ms);
        printf("   %4lld  %11u  injected  %9s  %s", (long long)rows[i].k, rows[i].fact_tokens, ms, cli_on(CLI_GREEN));
        bar(rows[i].kv_ms, longest);
        if (rows[i].kv_ms > 0 && rows[i].kv_ms < rows[i].text_ms)
            printf("%s  %.1fx sooner\n", cli_off(), rows[i].text_ms / rows[i].kv_ms);
        else
            printf("%s  no gain here\n", cli_off());
        cli_ms(rows[i].text_ms, ms);
        printf("   %4s  %11s  prefilled %9s  %s", "", "", ms, cli_on(CLI_YELLOW));
        bar(rows[i].text_ms, longest);
        printf("%s\n", cli_off());
    }
    putchar('\n');
    fflush(stdout);
}

/* How this program is called from the folder the shell is in: by its name if that finds it, else by its path. */
static void program_name(char *out, size_t cap)
{
    char exe[4096], here[4096], found[4400];
    const char *path = getenv("PATH");
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    snprintf(out, cap, "inferscale");
    if (n <= 0) return;
    exe[n] = '\0';
    while (path && *path) {
        size_t len = strcspn(path, ":");
        char real[PATH_MAX];
        snprintf(found, sizeof found, "%.*s/inferscale", (int)(len < 4096 ? len : 4096), path);
        if (realpath(found, real) && strcmp(real, exe) == 0) return;
        path += len + (path[len] == ':');
    }
    if (getcwd(here, sizeof here) && strncmp(exe, here, strlen(here)) == 0 && exe[strlen(here)] == '/')
        snprintf(out, cap, "%s", exe + strlen(here) + 1);
    else
        snprintf(out, cap, "%s", exe);
}

void demo_print_next(void)
{
    char program[4096];
    program_name(program, sizeof program);
    printf("%sNext%s: a memory of your own (kept in ~/.local/share/inferscale unless --home or $INFERSCALE_HOME says otherwise)\n",
           cli_on(CLI_BOLD), cli_off());
    printf("   %s remember \"Anna is allergic to peanuts.\" --user anna\n", program);
    printf("   %s ask \"Which food is Anna allergic to?\" --user anna --stats\n", program);
    printf("   %s --help\n\n", program);
}

json_t *demo_answer_json(const inferscale_answer *r)
{
    json_t *facts;

    if (!r) return json_null();
    facts = json_array();
    for (size_t i = 0; i < r->n_facts; i++) json_array_append_new(facts, json_integer(r->facts[i].id));
    return json_pack("{s:o,s:s,s:f,s:I,s:I,s:s,s:o,s:o}", "answer", cli_json_text(r->text),
                     "rows", demo_rows(r), "ttft_ms", r->ttft_ms,
                     "tokens_computed", (json_int_t)r->tokens_computed, "tokens_injected", (json_int_t)r->tokens_injected,
                     "mode", cli_mode_name(r->mode), "fallback", cli_json_text(r->fallback ? r->fallback : ""), "facts", facts);
}
