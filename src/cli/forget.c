/* forget.c - `inferscale forget`: text, versions, index rows, embeddings, keys and values; and the proof. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/args.h"
#include "cli/items.h"
#include "cli/out.h"
#include "cli/store.h"
#include "exchange/json.h"

/* True if the person at the terminal types yes. */
static bool confirmed(const inferscale_scope *s, const char *run)
{
    char line[16] = "";
    fprintf(stderr, "Forget everything of %s%s%s? This cannot be undone. Type yes: ",
            s->user    ? s->user
            : s->agent ? s->agent
            : s->run   ? s->run
                       : s->app,
            run && s->user ? ", run " : "", run && s->user ? run : "");
    fflush(stderr);
    if (!fgets(line, sizeof line, stdin)) return false;
    line[strcspn(line, "\r\n")] = '\0';
    return strcmp(line, "yes") == 0;
}

/* What is asked for, checked. all: everything in the scope. */
static int check_usage(const cli_args *a, bool *all)
{
    bool expired = cli_flag(a, "--expired"), turn = cli_str(a, "--turn", NULL) != NULL, run = cli_str(a, "--run", NULL) != NULL;
    *all = cli_flag(a, "--all");
    if (*all && cli_n(a)) return cli_usage(a, "give ids or --all, not both");
    if (expired && (*all || turn || cli_n(a))) return cli_usage(a, "--expired chooses for itself; leave out ids, --turn and --all");
    if (turn && (*all || cli_n(a))) return cli_usage(a, "give ids, --turn or --all, not several");
    if (!*all && !expired && !turn && cli_n(a) == 0) {
        if (!run) return cli_usage(a, "give the ids of what to forget, --turn ID, --run NAME or --all; `inferscale ls` lists ids");
        *all = true; /* a run, whole */
    }
    for (size_t i = 0; i < cli_n(a); i++) cli_id_at(a, i);
    cli_int(a, "--turn", 0, 1, INT64_MAX);
    cli_int(a, "--wait", 10000, 1, 3600000);
    return CLI_OK;
}

/* reencoded: computed anew by this call (--encode); to_reencode: left for the next encode. */
static json_t *report_json(const cli_args *a, const inferscale_forget_report *r, inferscale_status st, size_t unknown, uint64_t reencoded,
                           uint64_t left)
{
    json_t *o = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "forgotten", (json_int_t)r->forgotten, "deleted", (json_int_t)r->forgotten,
                          "unknown", (json_int_t)unknown, "withdrawn", (json_int_t)r->withdrawn, "segments", (json_int_t)r->segments,
                          "reencoded", (json_int_t)reencoded, "to_reencode", (json_int_t)left, "pending", (json_int_t)r->pending);
    if (cli_flag(a, "--prove")) {
        is_proof_json(o, r);
    }
    if (st != INFERSCALE_OK)
        json_object_set_new(o, "error", json_pack("{s:s,s:o}", "code", inferscale_status_name(st), "message", cli_json_text(inferscale_error())));
    return o;
}

static void print_text(const cli_args *a, const inferscale_forget_report *r, size_t unknown, uint64_t left)
{
    char size[32], items[64], proof[512];
    if (unknown && !r->forgotten) printf("Nothing was forgotten.\n");
    else printf("Forgot %s.\n", cli_n_of(r->forgotten, "item", items));
    if (r->withdrawn)
        printf("%llu source turn%s withdrawn: kept in the record, not found or used any more (--with-turns deletes them).\n",
               (unsigned long long)r->withdrawn, r->withdrawn == 1 ? "" : "s");
    if (left)
        printf("%llu other fact%s lost keys and values that had seen it; `inferscale encode` makes them anew.\n", (unsigned long long)left,
               left == 1 ? "" : "s");
    if (!cli_flag(a, "--prove")) return;
    is_proof_text(r, proof);
    if (!r->needles) {
        printf("%s\n", proof);
        return;
    }
    cli_size(r->scanned_bytes, size);
    printf("Searched %s for %llu pieces of it. %s\n", size, (unsigned long long)r->needles, proof);
    if (r->traces) cli_put_text(stdout, r->trace_text, false);
    if (r->unsearched) printf("%llu pieces were too short or too uniform to look for.\n", (unsigned long long)r->unsearched);
}

static int carry_out(const cli_args *a, inferscale *is, const inferscale_scope *scope, const int64_t *ids, size_t n,
                     inferscale_forget_options *o)
{
    inferscale_forget_report r;
    inferscale_encode_options e = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_status st;
    uint64_t reencoded = 0, left;
    size_t unknown = 0;
    json_t *report = NULL;
    cli_progress p;
    int rc = CLI_OK;
    o->n_unknown = &unknown;
    cli_progress_start(&p, "Searching", 0);
    o->on_progress = cli_progress_at;
    o->progress_ctx = &p;
    st = inferscale_forget_with(is, scope, ids, n, o, &r);
    cli_progress_end(&p);
    left = r.reencode;
    if (st != INFERSCALE_OK && !r.forgotten) return cli_fail_as(a, st); /* nothing was done */
    if (st == INFERSCALE_OK && left && cli_flag(a, "--encode")) {
        st = inferscale_encode(is, scope, &e);
        reencoded = e.facts_encoded;
        left -= reencoded < left ? reencoded : left;
    }
    if (st != INFERSCALE_OK) fprintf(stderr, "inferscale forget: %s\n", inferscale_error());
    if (cli_wants_json(a)) report = report_json(a, &r, st, unknown, reencoded, left);
    else print_text(a, &r, unknown, left);
    if (unknown) rc = cli_unknown_ids(a, o->unknown, unknown, &report);
    if (report) cli_print_json(report);
    return st == INFERSCALE_OK ? rc : CLI_FAILED;
}

static int cmd_forget(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    bool all = false;
    size_t n = cli_n(a);
    int64_t *ids, *unknown, turn = cli_int(a, "--turn", 0, 1, INT64_MAX);
    int rc = check_usage(a, &all);
    if (rc != CLI_OK) return rc;
    cli_scope(a, &scope);
    if (all && !cli_flag(a, "--yes")) {
        if (!isatty(STDIN_FILENO))
            return cli_usage(a, "--all forgets everything of this owner, --run everything of the run; add --yes to say that you mean it");
        if (!confirmed(&scope, scope.run)) return cli_fail_msg(a, "not confirmed; nothing was forgotten");
    }
    ids = is_calloc(n + 1, 2 * sizeof *ids);
    if (!ids) return cli_fail_msg(a, "out of memory; close other programs and try again");
    unknown = ids + n + 1;
    for (size_t i = 0; i < n; i++) ids[i] = cli_id_at(a, i);
    if (turn) ids[n++] = turn;
    o.unknown = unknown;
    o.all = all;
    o.expired = cli_flag(a, "--expired");
    o.with_turns = cli_flag(a, "--with-turns");
    o.with_facts = turn != 0;
    o.prove = cli_flag(a, "--prove");
    o.wait_ms = (uint32_t)cli_int(a, "--wait", 10000, 1, 3600000);
    rc = cli_open(a, &is);
    if (rc == CLI_OK) rc = carry_out(a, is, &scope, ids, n, &o);
    is_free(ids);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "--all", NULL, "forget everything of this owner (with --agent, --run or --app beside --user: what carries them)" },
    { "--turn", "ID", "forget a conversation turn and the facts that came from it" },
    { "--expired", NULL, "forget the facts whose time is over" },
    { "--with-turns", NULL, "delete the turns that the facts came from, too (else they are withdrawn)" },
    { "--prove", NULL, "search every file of the store for what was forgotten" },
    { "--wait", "MS", "how long to wait for questions under way and for readers (default: 10000)" },
    { "--encode", NULL, "compute the keys and values anew that other facts lost by it" },
    { "--yes", NULL, "do not ask back" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_forget = {
    "forget", "[ID...]", "Forget facts, turns, a run or everything",
    "Deletes text, versions, index rows, embeddings, keys and values, and every stored segment whose encoding context held it. "
    "The turn a fact came from is withdrawn: it stays in the record and is not found or used any more. Questions that use it end "
    "before their next token, in other processes too. --run NAME without ids forgets the run.\n\n"
    "--prove searches the bank, its log, free pages and every other file of the store, and fails if it finds a piece of it that no "
    "other row accounts for. Backups, snapshots, copy-on-write filesystems, old blocks of an SSD, swap and core dumps cannot be "
    "reached. Ids that are not there are named, the others forgotten; it then exits with 1.\n\n"
    "Examples:\n  inferscale forget 12 13\n  inferscale forget 12 --prove --json\n  inferscale forget --turn 7\n"
    "  inferscale forget --user anna --run r1 --yes\n  inferscale forget --all --user anna\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL | CLI_JSON, cmd_forget,
};
