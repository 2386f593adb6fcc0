/* ls.c - `inferscale ls` and `inferscale show`. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/args.h"
#include "cli/items.h"
#include "cli/out.h"

/* Loads the model for --kv. CLI_KV or 0, or a negative exit code. */
static int with_kv(const cli_args *a, inferscale *is)
{
    inferscale_model_info info;
    inferscale_status st;
    if (!cli_flag(a, "--kv")) return 0;
    st = inferscale_model(is, &info);
    return st == INFERSCALE_OK ? CLI_KV : -cli_fail_as(a, st);
}

static int cmd_ls(const cli_args *a)
{
    static const char *const kinds[] = { "facts", "turns", "both", NULL };
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_list *list = NULL;
    inferscale_status st;
    int kind = cli_choice(a, "--kinds", kinds, 2) + 1;
    int64_t after = cli_int(a, "--after", 0, 0, INT64_MAX), limit = cli_int(a, "--limit", 0, 0, INT64_MAX);
    int rc, with;
    if (cli_n(a))
        return cli_usage(a, "takes no arguments; `inferscale show ID` shows one item, `inferscale recall QUERY` searches");
    cli_scope(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    with = with_kv(a, is);
    if (with < 0) {
        inferscale_close(is);
        return -with;
    }
    st = inferscale_ls(is, &scope, kind, after, (size_t)limit, &list);
    if (st != INFERSCALE_OK) {
        rc = cli_fail_as(a, st);
    } else if (cli_wants_json(a)) {
        cli_print_json(json_pack("{s:o}", "items", cli_items_json(list, (unsigned)with)));
    } else {
        cli_items_print(list, (unsigned)with);
        fflush(stdout);
        if (list->n == 0)
            fprintf(stderr, "Nothing is remembered here. Try: inferscale remember \"Anna is allergic to peanuts.\"\n");
    }
    inferscale_list_free(list);
    inferscale_close(is);
    return rc;
}

static void print_time(const char *name, int64_t t)
{
    char when[32];
    if (!t) return;
    cli_date(t, when);
    printf("  %-12s %s\n", name, when);
}

static void print_text(const char *name, const char *s)
{
    if (!s || !*s) return;
    printf("  %-12s ", name);
    cli_put_text(stdout, s, true);
    putchar('\n');
}

/* The newest version with all that is known of it, the older ones with their text. */
static void print_item(const inferscale_list *list, unsigned with)
{
    const inferscale_item *t = &list->items[list->n - 1];
    bool fact = t->kind == INFERSCALE_FACTS;
    printf("%s%s %lld%s", cli_on(CLI_BOLD), fact ? "fact" : "turn", (long long)t->id, cli_off());
    if (fact) printf("  version %d", t->version);
    if (fact && (with & CLI_KV)) printf(", keys and values %s", t->kv_ready ? "stored" : "not computed yet");
    printf("\n  %-12s ", "text");
    cli_put_wrapped(stdout, t->text, cli_columns(), 15);
    print_time(!t->dated ? "told" : fact ? "happened" : "said", t->event_time);
    print_time("written", t->write_time);
    if (t->valid_from != t->event_time) print_time("valid from", t->valid_from);
    print_time("valid to", t->valid_to);
    print_time(t->expired ? "expired" : "expires", t->expires);
    if (t->superseded_by) printf("  %-12s %lld\n", "superseded by", (long long)t->superseded_by);
    if (t->pinned) printf("  %-12s %s\n", "pinned", "used by every question");
    if (t->withdrawn) printf("  %-12s %s\n", "withdrawn", "a fact that came from it was forgotten; it is not used any more");
    if (t->source_turn) printf("  %-12s %lld\n", "source turn", (long long)t->source_turn);
    print_text("conversation", t->conversation);
    print_text("speaker", t->speaker);
    print_text("external id", t->external_id);
    if (t->metadata && strcmp(t->metadata, "{}") != 0) print_text("metadata", t->metadata);
    print_text("user", t->user);
    print_text("agent", t->agent);
    print_text("run", t->run);
    print_text("app", t->app);
    for (size_t i = list->n - 1; i-- > 0;) {
        char when[32];
        cli_date(list->items[i].write_time, when);
        printf("  %sversion %-4d%s ", cli_on(CLI_DIM), list->items[i].version, cli_off());
        cli_put_text(stdout, list->items[i].text, true);
        printf("  (written %s)\n", when);
    }
}

static int cmd_show(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    json_t *items = json_array(), *report = NULL;
    int64_t *unknown = NULL;
    size_t n_unknown = 0, n_shown = 0;
    int rc = CLI_OK, with = 0;
    if (cli_n(a) == 0) rc = cli_usage(a, "give the id of what to show; `inferscale ls` lists ids");
    for (size_t i = 0; i < cli_n(a); i++) cli_id_at(a, i);
    cli_scope(a, &scope);
    if (rc == CLI_OK) rc = cli_open(a, &is);
    if (rc == CLI_OK && (with = with_kv(a, is)) < 0) rc = -with;
    unknown = is_calloc(cli_n(a) + 1, sizeof *unknown);
    if (!unknown && rc == CLI_OK) rc = cli_fail_msg(a, "out of memory; close other programs and try again");
    for (size_t i = 0; i < cli_n(a) && rc == CLI_OK; i++) {
        inferscale_list *list = NULL;
        inferscale_status st = inferscale_show(is, &scope, cli_id_at(a, i), &list);
        if (st == INFERSCALE_E_NOTFOUND || (st == INFERSCALE_OK && list->n == 0)) {
            unknown[n_unknown++] = cli_id_at(a, i);
        } else if (st != INFERSCALE_OK) {
            rc = cli_fail_as(a, st);
        } else if (cli_wants_json(a)) {
            json_t *item = cli_item_json(&list->items[list->n - 1], (unsigned)with);
            json_object_set_new(item, "versions", cli_items_json(list, (unsigned)with));
            json_array_append_new(items, item);
        } else {
            if (n_shown++) putchar('\n');
            print_item(list, (unsigned)with);
        }
        inferscale_list_free(list);
    }
    if (rc == CLI_OK && cli_wants_json(a)) report = json_pack("{s:O}", "items", items);
    if (rc == CLI_OK && n_unknown) rc = cli_unknown_ids(a, unknown, n_unknown, &report);
    if (report) cli_print_json(report);
    is_free(unknown);
    json_decref(items);
    inferscale_close(is);
    return rc;
}

static const cli_option ls_options[] = {
    { "--kinds", "WHAT", "facts, turns or both (default)" },
    { "--after", "ID", "only items with a greater id" },
    { "--limit", "N", "at most N items" },
    { "--kv", NULL, "load the model and say which facts' keys and values are stored" },
    { NULL, NULL, NULL },
};

static const cli_option show_options[] = {
    { "--kv", NULL, "load the model and say whether keys and values are stored" },
    { NULL, NULL, NULL },
};

/* One line a version: from when until when it held. */
static void print_versions(const inferscale_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const inferscale_item *t = &list->items[i];
        char from[32], to[32], written[32];
        cli_date(t->valid_from ? t->valid_from : t->event_time, from);
        cli_date(t->valid_to, to);
        cli_date(t->write_time, written);
        printf("%s%3d%s  %s to %s  ", cli_on(CLI_CYAN), t->version, cli_off(), from, t->valid_to ? to : "now");
        cli_put_text(stdout, t->text, true);
        printf("  %s(written %s)%s\n", cli_on(CLI_DIM), written, cli_off());
    }
    if (list->n && list->items[list->n - 1].superseded_by)
        printf("     then fact %lld\n", (long long)list->items[list->n - 1].superseded_by);
}

static int cmd_history(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_list *list = NULL;
    inferscale_status st;
    int rc;
    if (cli_n(a) != 1) return cli_usage(a, "give the id of one fact; `inferscale ls` lists ids");
    cli_id_at(a, 0);
    cli_scope(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    st = inferscale_show(is, &scope, cli_id_at(a, 0), &list);
    if (st != INFERSCALE_OK) rc = cli_fail_as(a, st);
    else if (cli_wants_json(a))
        cli_print_json(json_pack("{s:I,s:o}", "id", (json_int_t)cli_id_at(a, 0), "versions", cli_items_json(list, 0)));
    else print_versions(list);
    inferscale_list_free(list);
    inferscale_close(is);
    return rc;
}

const cli_verb cli_verb_history = {
    "history", "ID", "Show a fact's versions and when each held",
    "Examples:\n  inferscale history 12\n  inferscale recall \"Where does Anna live?\" --as-of 2023-06-01\n",
    NULL, CLI_STORE | CLI_SCOPE | CLI_JSON | CLI_THERE, cmd_history,
};

const cli_verb cli_verb_ls = {
    "ls", "", "List what is remembered",
    "In the order of ids.\n\n"
    "Examples:\n  inferscale ls --kinds facts --limit 20\n  inferscale ls --user anna --json\n",
    ls_options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON | CLI_THERE, cmd_ls,
};

const cli_verb cli_verb_show = {
    "show", "ID...", "Show facts or turns with all versions", "Examples:\n  inferscale show 12\n",
    show_options,    CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON | CLI_THERE, cmd_show,
};
