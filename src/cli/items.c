/* items.c - facts and turns for people and for programs. */
#include "cli/items.h"

#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/out.h"

json_t *cli_item_json(const inferscale_item *t, unsigned with) { return is_item_json(t, with); }

json_t *cli_items_json(const inferscale_list *list, unsigned with)
{
    json_t *a = json_array();
    for (size_t i = 0; i < list->n; i++) json_array_append_new(a, cli_item_json(&list->items[i], with));
    return a;
}

static int digits(int64_t v)
{
    int n = 1;
    while (v >= 10) {
        v /= 10;
        n++;
    }
    return n;
}

/* What sets an item apart, in front of its text; returns the columns. */
static int put_marks(const inferscale_item *t)
{
    const char *mark = t->withdrawn ? "[withdrawn] " : t->expired ? "[expired] " : t->superseded_by ? "[superseded] " : t->pinned ? "[pinned] " : "";
    printf("%s%s%s", cli_on(CLI_DIM), mark, cli_off());
    return (int)strlen(mark);
}

void cli_items_print(const inferscale_list *list, unsigned with)
{
    int columns = cli_columns(), id_width = 2;
    bool turns = false, facts = false, kv;
    for (size_t i = 0; i < list->n; i++) {
        if (digits(list->items[i].id) > id_width) id_width = digits(list->items[i].id);
        if (list->items[i].kind == INFERSCALE_TURNS) turns = true;
        else facts = true;
    }
    if (list->n == 0) return;
    kv = facts && (with & CLI_KV);
    printf("%s%*s  %s%-10s  %s%sTEXT%s\n", cli_on(CLI_DIM), id_width, "ID", with & CLI_SCORE ? " SCORE  " : "", "WHEN",
           turns && facts ? "KIND  " : "", kv ? "KV  " : "", cli_off());
    for (size_t i = 0; i < list->n; i++) {
        const inferscale_item *t = &list->items[i];
        bool fact = t->kind == INFERSCALE_FACTS;
        char when[32];
        int used = id_width + 2 + (with & CLI_SCORE ? 8 : 0) + 12 + (turns && facts ? 6 : 0) + (kv ? 4 : 0);
        cli_date(t->event_time, when);
        when[strcspn(when, " ")] = '\0'; /* the day is enough in a table */
        printf("%s%*lld%s  ", cli_on(CLI_CYAN), id_width, (long long)t->id, cli_off());
        if (with & CLI_SCORE) printf("%6.2f  ", t->score);
        printf("%-10s  ", when);
        if (turns && facts) printf("%-6s", fact ? "fact" : "turn");
        if (kv)
            printf("%s%s%s  ", cli_on(CLI_GREEN), !fact ? "  " : t->kv_ready ? "\xe2\x9c\x93 " : "\xc2\xb7 ", cli_off());
        if (!fact) {
            cli_put_text(stdout, t->speaker, true);
            fputs(": ", stdout);
            used += cli_text_width(t->speaker) + 2;
        }
        used += put_marks(t);
        cli_put_cut(stdout, t->text, columns ? (columns - used > 10 ? columns - used : 10) : 0);
        putchar('\n');
    }
}

/* "there is no item 7 in this memory", "there are no items 7 and 9 in this memory"; ids beyond the first few are counted. */
static void unknown_sentence(const int64_t *ids, size_t n, char *out, size_t cap)
{
    enum { SHOWN = 8 };
    const size_t shown = n <= SHOWN ? n : SHOWN;
    size_t at = (size_t)snprintf(out, cap, "there %s no item%s", n == 1 ? "is" : "are", n == 1 ? "" : "s");

    for (size_t i = 0; i < shown; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%lld", i == 0 ? " " : i + 1 == n ? " and " : ", ", (long long)ids[i]);
    if (n > shown) at += (size_t)snprintf(out + at, cap - at, " and %zu more", n - shown);
    snprintf(out + at, cap - at, " in this memory; `inferscale ls` lists the ids");
}

int cli_unknown_ids(const cli_args *a, const int64_t *ids, size_t n, json_t **report)
{
    char sentence[512];
    json_t *list;

    unknown_sentence(ids, n, sentence, sizeof sentence);
    fflush(stdout);
    fprintf(stderr, "inferscale %s: %s\n", cli_current(a)->name, sentence);
    if (!cli_wants_json(a)) return CLI_FAILED;
    if (!*report) *report = json_object();
    list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    json_object_set_new(*report, "unknown_ids", list);
    json_object_set_new(*report, "error", json_pack("{s:s,s:s}", "code", inferscale_status_name(INFERSCALE_E_NOTFOUND), "message", sentence));
    return CLI_FAILED;
}
