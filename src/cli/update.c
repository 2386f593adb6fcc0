/* update.c - `inferscale update` and `inferscale supersede`: a fact changes, or another takes its place. */
#include <stdio.h>

#include "cli/args.h"
#include "cli/out.h"
#include "cli/store.h"

/* The new text and its times from the command line. */
static void fact_of(const cli_args *a, inferscale_fact *out)
{
    *out = (inferscale_fact){ .text = cli_at(a, 1), .event_time = cli_time(a, "--time"), .valid_from = cli_time(a, "--valid-from"),
                              .expires = cli_time(a, "--expires"), .metadata = cli_json_object(a, "--metadata") };
}

/* Tells, and encodes again what the change has cost. id: of the fact that holds now. */
static int finish(const cli_args *a, inferscale *is, const inferscale_scope *scope, const char *event, int64_t id, int64_t old)
{
    json_t *encoded = NULL, *o;
    int rc = CLI_OK;
    if (!cli_flag(a, "--later")) rc = cli_encode_after(a, is, scope, 1, &encoded);
    if (cli_wants_json(a)) {
        o = json_pack("{s:I,s:s}", "id", (json_int_t)id, "event", event);
        if (old) json_object_set_new(o, "supersedes", json_integer(old));
        if (encoded) json_object_set_new(o, "encoded", encoded);
        cli_print_json(o);
        return rc;
    }
    json_decref(encoded);
    if (old) printf("Fact %lld takes the place of fact %lld.\n", (long long)id, (long long)old);
    else printf("Updated fact %lld.\n", (long long)id);
    return rc;
}

static int change(const cli_args *a, bool supersede)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_fact fact;
    inferscale_status st;
    int64_t id, made = 0;
    int rc;
    if (cli_n(a) != 2) return cli_usage(a, "give the fact's id and its new text, in quotes; `inferscale ls` lists ids");
    id = cli_id_at(a, 0);
    fact_of(a, &fact);
    cli_scope(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    st = supersede ? inferscale_supersede(is, &scope, id, &fact, &made) : inferscale_update(is, &scope, id, &fact);
    if (st != INFERSCALE_OK) rc = cli_fail_as(a, st);
    else rc = finish(a, is, &scope, supersede ? "ADD" : "UPDATE", supersede ? made : id, supersede ? id : 0);
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
    "from it goes. With the --time of the old version it is a correction: the old text was never true.\n\n"
    "Examples:\n  inferscale update 12 \"Anna lives in Oslo.\"\n  inferscale update 12 \"Anna has three cats.\" --time 2024-05-01\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_update,
};

const cli_verb cli_verb_supersede = {
    "supersede", "ID TEXT", "Put a new fact in the place of an old one",
    "The old fact's validity ends where the new one's begins; both stay, and the old one leads to the new one.\n\n"
    "Examples:\n  inferscale supersede 12 \"Anna moved to Lisbon.\" --time 2024-06-01\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_supersede,
};
