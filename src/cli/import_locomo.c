/* import_locomo.c - `inferscale import locomo`: a LoCoMo conversation as memory. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/args.h"
#include "cli/out.h"
#include "cli/store.h"
#include "eval/locomo.h"

enum { BATCH = 256 };

typedef struct job {
    inferscale *is;
    inferscale_scope scope;
    const locomo_conversation *c;
    int64_t *turn_ids;        /* [n_turns]; 0 = left out */
    cli_import in;            /* its counts and events */
    cli_progress progress;
    uint64_t done;
} job;

static is_status step(job *j, size_t n)
{
    j->done += n;
    cli_progress_at(&j->progress, j->done, j->c->n_turns + j->c->n_observations, "Importing");
    return *cli_interrupt() ? is_fail(INFERSCALE_E_CANCELLED,
                                      "stopped; what was imported stays, and importing again adds the rest")
                            : INFERSCALE_OK;
}

/* Finds the turns that an earlier import left, so that importing again adds only what is missing. */
static is_status find_known(job *j)
{
    int64_t after = 0;

    for (;;) {
        inferscale_list *list = NULL;
        IS_TRY(inferscale_ls(j->is, &j->scope, INFERSCALE_TURNS, after, 4 * BATCH, &list));
        for (size_t i = 0; i < list->n; i++) {
            const inferscale_item *item = &list->items[i];
            after = item->id;
            if (strcmp(item->conversation, j->c->id) != 0) continue;
            for (size_t t = 0; t < j->c->n_turns; t++)
                if (strcmp(j->c->turns[t].dia_id, item->external_id) == 0) j->turn_ids[t] = item->id;
        }
        size_t n = list->n;
        inferscale_list_free(list);
        if (n == 0) return INFERSCALE_OK;
    }
}

static is_status add_turns(job *j)
{
    const locomo_conversation *c = j->c;

    for (size_t from = 0; from < c->n_turns; from += BATCH) {
        size_t n = 0, to = from + BATCH < c->n_turns ? from + BATCH : c->n_turns, at[BATCH];
        inferscale_turn turns[BATCH];
        char *texts[BATCH];
        int64_t ids[BATCH];
        is_status st = INFERSCALE_OK;

        for (size_t i = from; i < to && st == INFERSCALE_OK; i++) {
            const locomo_turn *t = &c->turns[i];
            if (j->turn_ids[i]) {
                j->in.known_turns++;
                continue;
            }
            char *text = locomo_turn_text(t);
            if (!text) {
                st = is_fail(INFERSCALE_E_NOMEM, "out of memory during the import; free some and import again");
            } else if (is_utf8_blank(text, strlen(text))) {
                is_free(text); /* a picture without caption says nothing */
            } else {
                texts[n] = text;
                at[n] = i;
                turns[n++] = (inferscale_turn){ .conversation = c->id, .speaker = t->speaker, .text = text,
                                               .external_id = t->dia_id, .time = t->time };
            }
        }
        if (st == INFERSCALE_OK) st = inferscale_add_turns(j->is, &j->scope, turns, n, ids);
        for (size_t i = 0; i < n; i++) {
            is_free(texts[i]);
            if (st == INFERSCALE_OK) j->turn_ids[at[i]] = ids[i];
        }
        if (st != INFERSCALE_OK) return st;
        j->in.turns += n;
        IS_TRY(step(j, to - from));
    }
    return INFERSCALE_OK;
}

/* The id of the first cited turn that was imported; 0 if none was. */
static int64_t source_of(const job *j, const locomo_observation *o)
{
    for (size_t d = 0; d < o->n_dia_ids; d++)
        for (size_t i = 0; i < j->c->n_turns; i++)
            if (j->turn_ids[i] && strcmp(j->c->turns[i].dia_id, o->dia_ids[d]) == 0) return j->turn_ids[i];
    return 0;
}

/* {"conversation": ID, "speaker": NAME, "dia_ids": [..]} */
static char *metadata_of(const job *j, const locomo_observation *o)
{
    json_t *ids = json_array(), *m = json_object();

    for (size_t d = 0; d < o->n_dia_ids; d++) json_array_append_new(ids, cli_json_text(o->dia_ids[d]));
    json_object_set_new(m, "conversation", cli_json_text(j->c->id));
    json_object_set_new(m, "speaker", cli_json_text(o->speaker));
    json_object_set_new(m, "dia_ids", ids);
    char *s = json_dumps(m, JSON_COMPACT);
    json_decref(m);
    return s;
}

static is_status add_facts(job *j)
{
    const locomo_conversation *c = j->c;

    for (size_t from = 0; from < c->n_observations; from += BATCH) {
        size_t n = 0, to = from + BATCH < c->n_observations ? from + BATCH : c->n_observations;
        inferscale_fact facts[BATCH];
        inferscale_event events[BATCH];
        char *metadata[BATCH];

        for (size_t i = from; i < to; i++) {
            const locomo_observation *o = &c->observations[i];
            if (is_utf8_blank(o->text, strlen(o->text))) continue;
            metadata[n] = metadata_of(j, o);
            facts[n] = (inferscale_fact){.text = o->text, .event_time = o->time, .source_turn = source_of(j, o),
                                         .metadata = metadata[n]};
            n++;
        }
        is_status st = inferscale_remember(j->is, &j->scope, facts, n, events);
        for (size_t i = 0; i < n; i++) is_free(metadata[i]); /* jansson allocates by base/mem.h (main.c) */
        if (st != INFERSCALE_OK) return st;
        for (size_t i = 0; i < n; i++) is_import_count(&j->in, &events[i]);
        IS_TRY(step(j, to - from));
    }
    return INFERSCALE_OK;
}

static int report(const cli_args *a, job *j)
{
    json_t *encoded = NULL;
    int rc = CLI_OK;

    if (!cli_wants_json(a)) {
        char counts[160];
        cli_import_counts(&j->in, counts);
        printf("Imported %s of %s.\n", counts, j->c->id);
        cli_import_notes(&j->in);
        fflush(stdout);
    }
    if (!cli_flag(a, "--later")) rc = cli_encode_after(a, j->is, &j->scope, 1, &encoded);
    if (cli_wants_json(a)) {
        json_t *o = json_pack("{s:o,s:O,s:I,s:I,s:I,s:I}", "conversation", cli_json_text(j->c->id),
                              "facts", j->in.events, "added", (json_int_t)j->in.facts, "known",
                              (json_int_t)j->in.known, "turns", (json_int_t)j->in.turns,
                              "known_turns", (json_int_t)j->in.known_turns);
        if (encoded) json_object_set(o, "encoded", encoded);
        cli_print_json(o);
    }
    json_decref(encoded);
    return rc;
}

static int import(const cli_args *a, const locomo_conversation *c)
{
    static const char *const stores[] = {"both", "turns", "facts", NULL};
    int store = cli_choice(a, "--store", stores, 0), rc;
    job j = {.c = c};
    is_status st;

    rc = cli_open(a, &j.is);
    if (rc != CLI_OK) {
        inferscale_close(j.is);
        return rc;
    }
    cli_scope(a, &j.scope);
    cli_interrupt();
    j.in.events = json_array();
    j.turn_ids = is_calloc(c->n_turns + 1, sizeof *j.turn_ids);
    cli_progress_start(&j.progress, "Importing", c->n_turns + c->n_observations);
    st = j.in.events && j.turn_ids ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM,
                                                          "out of memory for the import; free some and try again");
    if (st == INFERSCALE_OK) st = find_known(&j);
    if (st == INFERSCALE_OK && store != 2) st = add_turns(&j);
    if (st == INFERSCALE_OK && store != 1) st = add_facts(&j);
    cli_progress_end(&j.progress);
    rc = st == INFERSCALE_OK ? report(a, &j) : cli_fail_as(a, st);
    is_free(j.turn_ids);
    json_decref(j.in.events);
    inferscale_close(j.is);
    return rc;
}

int cmd_import_locomo(const cli_args *a)
{
    const char *wanted = cli_str(a, "--conversation", NULL);
    const locomo_conversation *c = NULL;
    locomo *l = NULL;
    int rc;

    if (cli_n(a) != 1) return cli_usage(a, "give one LoCoMo file");
    is_status st = locomo_load(cli_at(a, 0), &l);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (wanted) c = locomo_find(l, wanted);
    else if (l->n == 1) c = &l->conversations[0];
    if (c) rc = import(a, c);
    else if (wanted) rc = cli_fail_msg(a, "there is no conversation \"%.60s\" in the file; the first is %.60s", wanted,
                                       l->conversations[0].id);
    else
        rc = cli_usage(a, "the file holds %zu conversations; choose one, for example --conversation %.60s", l->n,
                       l->conversations[0].id);
    locomo_free(l);
    return rc;
}

static const cli_option options[] = {
    {"--conversation", "ID", "the conversation to import; may be left out if there is only one"},
    {"--store", "WHAT", "both (default), turns, or facts (the file's observations)"},
    {"--later", NULL, "do not encode now; `inferscale encode` does it"},
    {NULL, NULL, NULL},
};

const cli_verb cli_verb_import_locomo = {
    "import locomo", "FILE", "Import a conversation of a LoCoMo file",
    "Turns become turns, observations become facts that name the turn they come from; event times are the\n"
    "conversation's own.\n\n"
    "Examples:\n  inferscale import locomo locomo10.json --conversation conv-26 --user caroline\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_import_locomo,
};
