/* remember.c - `inferscale remember`: text is durable first, then it is encoded in the same process. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/args.h"
#include "exchange/json.h"
#include "exchange/jsonl.h"
#include "cli/out.h"
#include "cli/store.h"

/* Texts from the arguments or from stdin, one a line. */
typedef struct texts {
    char **at;
    size_t n, cap;
} texts;

static void texts_free(texts *t)
{
    for (size_t i = 0; i < t->n; i++) is_free(t->at[i]);
    is_free(t->at);
}

static is_status texts_add(texts *t, const char *s, size_t n)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 16;
        char **at = is_realloc(t->at, cap * sizeof *at);
        if (!at) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
        t->at = at;
        t->cap = cap;
    }
    t->at[t->n] = is_strndup(s, n);
    if (!t->at[t->n]) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    t->n++;
    return INFERSCALE_OK;
}

static is_status texts_read(texts *t, FILE *f)
{
    jsonl_reader *r = is_malloc(sizeof *r);
    is_status st = INFERSCALE_OK;
    bool end = false;
    if (!r) return is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    jsonl_reader_init(r, f);
    while (st == INFERSCALE_OK && (st = jsonl_next_line(r, &end)) == INFERSCALE_OK && !end) {
        size_t bad;
        if (!is_utf8_valid((const char *)r->text.data, r->text.len, &bad))
            st = is_fail(INFERSCALE_E_PARSE,
                         "line %zu: byte %zu is not valid UTF-8 text; convert the input (for example with iconv)", r->line,
                         bad + 1);
        else
            st = texts_add(t, (const char *)r->text.data, r->text.len);
    }
    jsonl_reader_free(r);
    is_free(r);
    return st;
}

static is_status gather(const cli_args *a, texts *t)
{
    if (cli_n(a) == 0) return texts_read(t, stdin);
    for (size_t i = 0; i < cli_n(a); i++) {
        const char *s = cli_at(a, i);
        is_status st = strcmp(s, "-") == 0 ? texts_read(t, stdin) : texts_add(t, s, strlen(s));
        if (st != INFERSCALE_OK) return st;
    }
    return INFERSCALE_OK;
}

/* facts [{id, event, ...}] (is_event_json) */
static is_status remember_facts(const cli_args *a, inferscale *is, const inferscale_scope *scope, const texts *t,
                                json_t *result)
{
    inferscale_fact *facts = is_calloc(t->n + 1, sizeof *facts);
    inferscale_event *events = is_calloc(t->n + 1, sizeof *events);
    json_t *list = json_array();
    is_status st = INFERSCALE_OK;
    if (!facts || !events) st = is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    for (size_t i = 0; i < t->n && st == INFERSCALE_OK; i++)
        facts[i] = (inferscale_fact){ .text = t->at[i],
                                      .event_time = cli_time(a, "--time"),
                                      .expires = cli_time(a, "--expires"),
                                      .source_turn = cli_int(a, "--source-turn", 0, 1, INT64_MAX),
                                      .metadata = cli_json_object(a, "--metadata") };
    if (st == INFERSCALE_OK) st = inferscale_remember(is, scope, facts, t->n, events);
    for (size_t i = 0; i < t->n && st == INFERSCALE_OK; i++) {
        char note[192];
        json_array_append_new(list, is_event_json(&events[i]));
        if (events[i].again) fprintf(stderr, "Fact %lld was forgotten once, and is remembered again.\n", (long long)events[i].id);
        if (events[i].same_as)
            fprintf(stderr, "Fact %lld has the same text as fact %lld.\n", (long long)events[i].id, (long long)events[i].same_as);
        if (is_event_text(&events[i], note))
            fprintf(stderr, "%c%s.\n", toupper((unsigned char)*note), note + 1);
        if (cli_wants_json(a)) continue;
        printf("%s%6lld%s  %-5s ", cli_on(CLI_CYAN), (long long)events[i].id, cli_off(),
               events[i].event == INFERSCALE_EVENT_ADD ? "new" : "known");
        cli_put_cut(stdout, t->at[i], cli_columns() ? cli_columns() - 15 : 0);
        putchar('\n');
    }
    json_object_set_new(result, "facts", list);
    is_free(facts);
    is_free(events);
    return st;
}

static is_status remember_turns(const cli_args *a, inferscale *is, const inferscale_scope *scope, const texts *t,
                                json_t *result)
{
    inferscale_turn *turns = is_calloc(t->n + 1, sizeof *turns);
    int64_t *ids = is_calloc(t->n + 1, sizeof *ids);
    json_t *list = json_array();
    is_status st = INFERSCALE_OK;
    if (!turns || !ids) st = is_fail(INFERSCALE_E_NOMEM, "out of memory; close other programs and try again");
    for (size_t i = 0; i < t->n && st == INFERSCALE_OK; i++)
        turns[i] = (inferscale_turn){ .conversation = cli_str(a, "--conversation", NULL),
                                      .speaker = cli_str(a, "--speaker", NULL),
                                      .text = t->at[i],
                                      .time = cli_time(a, "--time") };
    if (st == INFERSCALE_OK) st = inferscale_add_turns(is, scope, turns, t->n, ids);
    for (size_t i = 0; i < t->n && st == INFERSCALE_OK; i++) {
        json_array_append_new(list, json_pack("{s:I}", "id", (json_int_t)ids[i]));
        if (cli_wants_json(a)) continue;
        printf("%s%6lld%s  turn  ", cli_on(CLI_CYAN), (long long)ids[i], cli_off());
        cli_put_cut(stdout, t->at[i], cli_columns() ? cli_columns() - 15 : 0);
        putchar('\n');
    }
    json_object_set_new(result, "facts", json_array());
    json_object_set_new(result, "turns", list);
    is_free(turns);
    is_free(ids);
    return st;
}

/* Without --later: embeds and encodes; adds "encoded" to the result. Prints the result if it is JSON. Takes result. */
static int finish(const cli_args *a, inferscale *is, const inferscale_scope *scopes, size_t n, json_t *result)
{
    json_t *encoded = NULL;
    int rc = CLI_OK;
    fflush(stdout);
    if (!cli_flag(a, "--later") && n) rc = cli_encode_after(a, is, scopes, n, &encoded);
    if (encoded) json_object_set_new(result, "encoded", encoded);
    if (cli_wants_json(a))
        cli_print_json(result);
    else
        json_decref(result);
    return rc;
}

static int remember_jsonl(const cli_args *a, inferscale *is, const char *path)
{
    inferscale_scope base;
    cli_import i;
    int rc = CLI_OK;
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f) return cli_fail_msg(a, "%s cannot be read: %s; check the path", path, strerror(errno));
    cli_scope_given(a, &base);
    cli_import_run(is, &base, f, "Remembering", &i);
    if (f != stdin) fclose(f);
    if (i.status != INFERSCALE_OK) {
        rc = cli_import_failed(a, &i, path);
    } else {
        char counts[160];
        cli_import_counts(&i, counts);
        if (!cli_wants_json(a)) printf("Remembered %s.\n", counts);
        if (!cli_wants_json(a)) cli_import_notes(&i);
        rc = finish(a, is, i.scopes, i.n_scopes, json_pack("{s:O,s:I,s:I}", "facts", i.events, "turns", (json_int_t)i.turns,
                                                           "known_turns", (json_int_t)i.known_turns));
    }
    cli_import_free(&i);
    return rc;
}

static int check_usage(const cli_args *a)
{
    bool turns = cli_flag(a, "--turns"), jsonl = cli_str(a, "--jsonl", NULL) != NULL;
    if (jsonl && cli_n(a)) return cli_usage(a, "--jsonl reads its facts from the file; leave out the text");
    if (jsonl && turns) return cli_usage(a, "--jsonl says on each line whether it is a turn; leave out --turns");
    if (!turns && (cli_str(a, "--conversation", NULL) || cli_str(a, "--speaker", NULL)))
        return cli_usage(a, "--conversation and --speaker are for conversation turns; add --turns");
    if (turns && (cli_str(a, "--metadata", NULL) || cli_str(a, "--expires", NULL) || cli_str(a, "--source-turn", NULL)))
        return cli_usage(a, "--metadata, --expires and --source-turn are for facts; leave out --turns");
    if (jsonl && (cli_str(a, "--time", NULL) || cli_str(a, "--metadata", NULL) || cli_str(a, "--expires", NULL) ||
                  cli_str(a, "--source-turn", NULL)))
        return cli_usage(a, "with --jsonl, times, metadata and source turns stand on each line; leave out the options");
    if (!jsonl && cli_n(a) == 0 && isatty(STDIN_FILENO))
        return cli_usage(a, "nothing to remember; give the text in quotes, or pipe it in, one fact a line");
    /* Values are checked before anything is stored. */
    cli_time(a, "--time");
    cli_note_expired(a);
    cli_json_object(a, "--metadata");
    cli_int(a, "--source-turn", 0, 1, INT64_MAX);
    return CLI_OK;
}

static int cmd_remember(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    texts t = { 0 };
    json_t *result = NULL;
    is_status st;
    int rc = check_usage(a);
    if (rc == CLI_OK) rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    cli_scope(a, &scope);
    if (cli_str(a, "--jsonl", NULL)) {
        rc = remember_jsonl(a, is, cli_str(a, "--jsonl", NULL));
        inferscale_close(is);
        return rc;
    }
    result = json_object();
    st = gather(a, &t);
    if (st == INFERSCALE_OK && t.n == 0) st = is_fail(INFERSCALE_E_INVALID, "the input holds no text; write one fact a line");
    if (st == INFERSCALE_OK)
        st = cli_flag(a, "--turns") ? remember_turns(a, is, &scope, &t, result) : remember_facts(a, is, &scope, &t, result);
    if (st == INFERSCALE_OK) {
        rc = finish(a, is, &scope, 1, result);
    } else {
        rc = cli_fail_as(a, st);
        json_decref(result);
    }
    texts_free(&t);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--time", "DATE", "when it happened or was said; the prompt shows it (default: nobody said, and it shows none)" },
    { "--metadata", "JSON", "an object kept with the fact, e.g. '{\"topic\": \"food\"}'" },
    { "--expires", "DATE", "not recalled from then on" },
    { "--source-turn", "ID", "the conversation turn that the fact comes from" },
    { "--turns", NULL, "the text is conversation turns, not facts" },
    { "--conversation", "NAME", "turns: the conversation (default: \"default\")" },
    { "--speaker", "NAME", "turns: who said it (default: \"user\")" },
    { "--jsonl", "FILE", "read facts and turns from JSON Lines; - = standard input" },
    { "--later", NULL, "do not encode now; `inferscale encode` does it" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_remember = {
    "remember", "[TEXT...]", "Remember facts or conversation turns",
    "Each TEXT is one fact; without TEXT, or for \"-\", each line of the standard input is one. "
    "The text is durable when the ids are printed (a text that is known already keeps its id, and "
    "takes the --time if it has no date); then embeddings, keys and values are computed, and an "
    "interruption there loses nothing.\n\n"
    "Examples:\n"
    "  inferscale remember \"Anna is allergic to peanuts.\" --time 2024-05-01\n"
    "  inferscale remember --turns --conversation chat1 --speaker Anna \"I moved to Lyon.\"\n"
    "  inferscale remember --jsonl facts.jsonl --user anna\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_remember,
};
