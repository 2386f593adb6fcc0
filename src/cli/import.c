/* import.c - `inferscale import`: JSON Lines into the store. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/out.h"
#include "cli/store.h"

static int report(const cli_args *a, inferscale *is, const cli_import *i)
{
    json_t *encoded = NULL;
    int rc = CLI_OK;
    if (!cli_wants_json(a)) {
        char counts[160];
        cli_import_counts(i, counts);
        printf("Imported %s.\n", counts);
        cli_import_notes(i);
        fflush(stdout);
    }
    if (!cli_flag(a, "--later") && i->n_scopes) rc = cli_encode_after(a, is, i->scopes, i->n_scopes, &encoded);
    if (cli_wants_json(a)) {
        json_t *o = json_pack("{s:O,s:I,s:I,s:I,s:I}", "facts", i->events, "added", (json_int_t)i->facts, "known",
                              (json_int_t)i->known, "turns", (json_int_t)i->turns, "known_turns",
                              (json_int_t)i->known_turns);
        if (encoded) json_object_set(o, "encoded", encoded);
        cli_print_json(o);
    }
    json_decref(encoded);
    return rc;
}

static int cmd_import(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope base;
    cli_import i;
    struct stat sb;
    const char *path = cli_at(a, 0);
    FILE *f;
    int rc;
    if (cli_n(a) != 1) return cli_usage(a, "give one JSON Lines file, or - for the standard input");
    f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f || (fstat(fileno(f), &sb) == 0 && S_ISDIR(sb.st_mode))) {
        rc = cli_fail_msg(a, "%s cannot be read: %s; check the path", path, f ? "it is a folder" : strerror(errno));
        if (f) fclose(f);
        return rc;
    }
    rc = cli_open(a, &is);
    if (rc == CLI_OK) {
        cli_scope_given(a, &base);
        cli_import_run(is, &base, f, "Importing", &i);
        rc = i.status != INFERSCALE_OK ? cli_import_failed(a, &i, path) : report(a, is, &i);
        cli_import_free(&i);
    }
    if (f != stdin) fclose(f);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--later", NULL, "do not encode now; `inferscale encode` does it" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_import = {
    "import", "FILE", "Import facts and turns from JSON Lines",
    "One object a line: {\"text\": \"...\", \"event_time\": \"2024-05-01\"} (docs/formats.md has all members). Lines are\n"
    "stored in transactions of up to 256; if a line is wrong, all before it are stored and the message says which line it\n"
    "is. Scope options go before what a line says. Importing a file again adds\n"
    "nothing: a fact is known by its text, a turn by its conversation, speaker,\n"
    "text and time (a turn whose line says no time is said now, and is new).\n\n"
    "Examples:\n  inferscale import backup.jsonl\n  inferscale export --user anna | inferscale import - --user anna2\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_import,
};
