/* store.c - what verbs that store share: an import with a bar, and the encoding afterwards. */
#include "cli/store.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/loading.h"
#include "cli/out.h"

void cli_scope_given(const cli_args *a, inferscale_scope *out)
{
    *out = (inferscale_scope){
        .tenant = cli_str(a, "--tenant", NULL), .user = cli_str(a, "--user", NULL), .agent = cli_str(a, "--agent", NULL),
        .run = cli_str(a, "--run", NULL),       .app = cli_str(a, "--app", NULL),
    };
}

/* ---- Import ---------------------------------------------------------------------------------------------------------------- */

void cli_import_run(inferscale *is, const inferscale_scope *base, FILE *f, const char *title, cli_import *out)
{
    cli_progress p;
    is_import_options o = { .scope = *base, .nobody = "default", .on_progress = cli_progress_at, .progress_ctx = &p };
    cli_progress_start(&p, title, 0);
    is_import_run(is, &o, f, out);
    cli_progress_end(&p);
}

void cli_import_free(cli_import *out) { is_import_free(out); }

/* " (2 were known)" */
static void add_known(char *to, size_t cap, size_t known)
{
    size_t at = strlen(to);
    if (known) snprintf(to + at, cap - at, " (%zu %s known)", known, known == 1 ? "was" : "were");
}

void cli_import_counts(const cli_import *i, char out[160])
{
    char facts[100], turns[64];
    cli_n_of(i->facts, "fact", facts);
    add_known(facts, sizeof facts, i->known);
    cli_n_of(i->turns, "turn", turns);
    snprintf(out, 160, "%s and %s", facts, turns);
    add_known(out, 160, i->known_turns);
}

void cli_import_notes(const cli_import *i)
{
    char facts[100];
    if (i->dated)
        fprintf(stderr, "Known without a date, and dated now: %s.\n",
                cli_n_of(i->dated, "fact", facts));
    if (i->kept)
        fprintf(stderr,
                "Known with another date, metadata or expiry, and kept so: %s; --json names %s,"
                " `inferscale update` changes %s.\n",
                cli_n_of(i->kept, "fact", facts), i->kept == 1 ? "it" : "them",
                i->kept == 1 ? "it" : "them");
}

int cli_import_failed(const cli_args *a, const cli_import *i, const char *source)
{
    json_t *stored = json_pack("{s:I,s:I,s:I,s:I}", "facts", (json_int_t)i->facts, "known", (json_int_t)i->known, "turns",
                               (json_int_t)i->turns, "known_turns", (json_int_t)i->known_turns);
    char counts[160];
    cli_import_counts(i, counts);
    return cli_fail_with(a, inferscale_status_name(i->status),
                         json_pack("{s:I,s:o}", "line", (json_int_t)i->failed_line, "stored", stored),
                         "%s: %s. Stored before it: %s; correct it and import again", source, i->error, counts);
}

/* ---- Encoding ------------------------------------------------------------------------------------------------------------ */

int cli_encode_after(const cli_args *a, inferscale *is, const inferscale_scope *scopes, size_t n, json_t **report)
{
    uint64_t facts = 0, stored = 0, computed = 0;
    inferscale_status st = INFERSCALE_OK;
    cli_progress p;
    double t0 = is_now_ms() - cli_loading_ms(); /* less what it loads meanwhile */
    cli_progress_start(&p, "Encoding", 0);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
        o.on_progress = cli_progress_at;
        o.progress_ctx = &p;
        st = inferscale_encode(is, &scopes[i], &o);
        facts += o.facts_encoded;
        stored += o.tokens_stored;
        computed += o.tokens_computed;
    }
    cli_progress_end(&p);
    if (st != INFERSCALE_OK)
        fprintf(stderr, "Stored. Not encoded yet: %s\n%s", inferscale_error(),
                st == INFERSCALE_E_UNSUPPORTED ? "" : "`inferscale encode` goes on; until then facts are served as text.\n");
    if (report) {
        *report = json_pack("{s:I,s:I,s:I,s:f}", "facts", (json_int_t)facts, "tokens_stored", (json_int_t)stored,
                            "tokens_computed", (json_int_t)computed, "ms", is_now_ms() - cli_loading_ms() - t0);
        if (st != INFERSCALE_OK) json_object_set_new(*report, "error", cli_json_text(inferscale_error()));
    }
    return st == INFERSCALE_E_CANCELLED ? CLI_FAILED : CLI_OK;
}

char *cli_fact_text(inferscale *is, const inferscale_scope *scope, int64_t id)
{
    inferscale_list *l = NULL;
    char *text = NULL;
    if (inferscale_show(is, scope, id, &l) == INFERSCALE_OK && l->n) text = is_strdup(l->items[l->n - 1].text);
    inferscale_list_free(l);
    return text;
}
