/* update.c - `inferscale update` and `inferscale supersede`: a fact changes, or another takes its place. */
#include <stdio.h>

#include "api/hold.h"
#include "cli/args.h"
#include "cli/out.h"
#include "cli/store.h"

/* The new text and its times from the command line. */
static void fact_of(const cli_args *a, inferscale_fact *out)
{
    *out = (inferscale_fact){ .text = cli_at(a, 1), .event_time = cli_time(a, "--time"), .valid_from = cli_time(a, "--valid-from"),
                              .expires = cli_time(a, "--expires"), .metadata = cli_json_object(a, "--metadata") };
}

/* What became of a change. */
typedef struct changed {
    const char *event;
    int64_t id, old; /* of the fact that holds now; of the one that it took the place of, or 0 */
    size_t n_others;           /* facts that lost keys and values which had seen the old text */
} changed;

static int print_json(const changed *c, json_t *encoded, bool anew)
{
    json_t *o = json_pack("{s:I,s:s,s:I,s:I}", "id", (json_int_t)c->id, "event", c->event,
                          "reencoded", (json_int_t)(anew ? c->n_others : 0), "to_reencode",
                          (json_int_t)(anew ? 0 : c->n_others));
    if (c->old) json_object_set_new(o, "supersedes", json_integer(c->old));
    if (encoded) json_object_set_new(o, "encoded", encoded);
    return cli_print_json(o);
}

/* Says so, and encodes again what the change has cost. */
static int finish(const cli_args *a, inferscale *is, const inferscale_scope *scope,
                  const changed *c)
{
    json_t *encoded = NULL;
    int rc = CLI_OK;
    bool anew;
    if (!cli_flag(a, "--later")) rc = cli_encode_after(a, is, scope, 1, &encoded);
    anew = encoded && !json_object_get(encoded, "error");
    if (cli_wants_json(a)) {
        print_json(c, encoded, anew);
        return rc;
    }
    json_decref(encoded);
    if (c->old)
        printf("Fact %lld takes the place of fact %lld.\n", (long long)c->id, (long long)c->old);
    else printf("Updated fact %lld.\n", (long long)c->id);
    if (c->n_others)
        printf("%zu other fact%s lost keys and values that had seen it; %s.\n", c->n_others,
               c->n_others == 1 ? "" : "s",
               anew ? "they were made anew" : "`inferscale encode` makes them anew");
    return rc;
}

static int change(const cli_args *a, bool supersede)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_fact fact;
    inferscale_status st;
    changed c;
    int64_t id, made = 0;
    size_t n = 0;
    int rc;
    if (cli_n(a) != 2) return cli_usage(a, "give the fact's id and its new text, in quotes; `inferscale ls` lists ids");
    id = cli_id_at(a, 0);
    fact_of(a, &fact);
    cli_note_expired(a);
    cli_scope(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    st = supersede ? is_handle_supersede(is, &scope, id, &fact, &made, &n)
                   : is_handle_update(is, &scope, id, &fact, &n);
    if (st != INFERSCALE_OK) rc = cli_fail_as(a, st);
    c = (changed){ supersede ? "ADD" : "UPDATE", supersede ? made : id, supersede ? id : 0, n };
    if (st == INFERSCALE_OK) rc = finish(a, is, &scope, &c);
    inferscale_close(is);
    return rc;
}

static int cmd_update(const cli_args *a) { return change(a, false); }
static int cmd_supersede(const cli_args *a) { return change(a, true); }

static const cli_option options[] = {
    { "--time", "DATE", "when it happened or was said; the prompt shows it (default: of the same text as before, else none)" },
    { "--valid-from", "DATE", "when it begins to hold (default: --time)" },
    { "--expires", "DATE", "not recalled from then on" },
    { "--metadata", "JSON", "an object kept with the fact (default: as it was; for supersede: none)" },
    { "--later", NULL, "do not encode now; `inferscale encode` does it" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_update = {
    "update", "ID TEXT", "Change a fact: a new version",
    "The old version stays in the history, valid until the new one begins; `recall --as-of` finds it for its time. What was computed "
    "from it goes. With the --time of the old version it is a correction: the old text was never true. A fact "
    "that was superseded gets no new version; change the one that took its place.\n\n"
    "Examples:\n  inferscale update 12 \"Anna lives in Oslo.\"\n  inferscale update 12 \"Anna has three cats.\" --time 2024-05-01\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_update,
};

const cli_verb cli_verb_supersede = {
    "supersede", "ID TEXT", "Put a new fact in the place of an old one",
    "The old fact's validity ends where the new one's begins; both stay, and the old one leads to the new one.\n\n"
    "Examples:\n  inferscale supersede 12 \"Anna moved to Lisbon.\" --time 2024-06-01\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_supersede,
};
