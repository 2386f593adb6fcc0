/* pin.c - `inferscale pin` and `inferscale unpin`: facts that every question uses. */
#include <stdio.h>

#include "base/mem.h"
#include "cli/args.h"
#include "cli/items.h"
#include "cli/out.h"

static int pin(const cli_args *a, bool pinned)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    json_t *ids = json_array(), *report = NULL;
    int64_t *unknown;
    size_t n_unknown = 0;
    int rc = CLI_OK;
    if (cli_n(a) == 0) rc = cli_usage(a, "give the ids of facts; `inferscale ls` lists ids");
    for (size_t i = 0; i < cli_n(a); i++) cli_id_at(a, i);
    cli_scope(a, &scope);
    if (rc == CLI_OK) rc = cli_open(a, &is);
    unknown = is_calloc(cli_n(a) + 1, sizeof *unknown);
    if (!unknown && rc == CLI_OK) rc = cli_fail_msg(a, "out of memory; close other programs and try again");
    for (size_t i = 0; i < cli_n(a) && rc == CLI_OK; i++) {
        inferscale_status st = inferscale_pin(is, &scope, cli_id_at(a, i), pinned);
        if (st == INFERSCALE_E_NOTFOUND) unknown[n_unknown++] = cli_id_at(a, i);
        else if (st != INFERSCALE_OK) rc = cli_fail_as(a, st);
        else json_array_append_new(ids, json_integer(cli_id_at(a, i)));
    }
    if (rc == CLI_OK) {
        if (cli_wants_json(a)) report = json_pack("{s:O,s:b}", "ids", ids, "pinned", pinned);
        else printf("%s %zu fact%s.\n", pinned ? "Pinned" : "Unpinned", json_array_size(ids), json_array_size(ids) == 1 ? "" : "s");
        if (n_unknown) rc = cli_unknown_ids(a, unknown, n_unknown, &report);
        if (report) cli_print_json(report);
    }
    is_free(unknown);
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
