/* pin.c - `inferscale pin` and `inferscale unpin`: facts that every question uses. */
#include <stdio.h>

#include "cli/args.h"
#include "cli/out.h"

static int pin(const cli_args *a, bool pinned)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    json_t *ids = json_array();
    int rc = CLI_OK;
    if (cli_n(a) == 0) rc = cli_usage(a, "give the ids of facts; `inferscale ls` lists ids");
    for (size_t i = 0; i < cli_n(a); i++) cli_id_at(a, i);
    cli_scope(a, &scope);
    if (rc == CLI_OK) rc = cli_open(a, &is);
    for (size_t i = 0; i < cli_n(a) && rc == CLI_OK; i++) {
        inferscale_status st = inferscale_pin(is, &scope, cli_id_at(a, i), pinned);
        if (st != INFERSCALE_OK) rc = cli_fail_as(a, st);
        else json_array_append_new(ids, json_integer(cli_id_at(a, i)));
    }
    if (rc == CLI_OK && cli_wants_json(a))
        cli_print_json(json_pack("{s:O,s:b}", "ids", ids, "pinned", pinned));
    else if (rc == CLI_OK)
        printf("%s %zu fact%s.\n", pinned ? "Pinned" : "Unpinned", cli_n(a), cli_n(a) == 1 ? "" : "s");
    json_decref(ids);
    inferscale_close(is);
    return rc;
}

static int cmd_pin(const cli_args *a) { return pin(a, true); }
static int cmd_unpin(const cli_args *a) { return pin(a, false); }

const cli_verb cli_verb_pin = {
    "pin", "ID...", "Make facts stand first in every question",
    "Pinned facts are found first and used by every question whose filters they pass, at most 8 in a memory.\n\n"
    "Examples:\n  inferscale pin 12 13\n",
    NULL, CLI_STORE | CLI_SCOPE | CLI_JSON, cmd_pin,
};

const cli_verb cli_verb_unpin = {
    "unpin", "ID...", "Take the pin off facts", "Examples:\n  inferscale unpin 12\n", NULL, CLI_STORE | CLI_SCOPE | CLI_JSON, cmd_unpin,
};
