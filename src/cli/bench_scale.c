/* bench_scale.c - the verb `bench scale`: is one owner's memory as quick beside a thousand others as alone? */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/out.h"
#include "eval/bench_scale.h"

static const cli_option options[] = {
    { "--owners", "N", "owners in the large store (default: 1000)" },
    { "--facts", "N", "facts of each owner, 50-10000 (default: 1000)" },
    { "--kv-owners", "N", "owners whose facts get KV as well (default: 3)" },
    { "--repeats", "N", "measurements of each quick call in each store (default: 101)" },
    { "--seed", "N", "of the facts (default: 1)" },
    { NULL, NULL, NULL },
};

static const char details[] =
    "Makes two throw-away stores in $TMPDIR (some 1.2 KB a fact): a large one with many owners, whose facts are written in\n"
    "rounds, and one that holds only the first of them. Facts are invented, vectors and KV come from the mock engine, so no\n"
    "model is needed. Then the same calls are made in both, interleaved; medians and their ratio are printed: 1 means that\n"
    "other owners cost nothing. Memory is measured in a process of its own.\n"
    "\n"
    "Examples:\n"
    "  inferscale bench scale --json\n"
    "  inferscale bench scale --owners 50 --facts 200";

typedef struct named { const char *name, *json; const bench_scale_pair *pair; } named;

enum { PAIRS = 8 };

static void list_pairs(const bench_scale_row *r, named out[PAIRS])
{
    const named all[PAIRS] = {
        { "recall, index in memory", "recall", &r->recall }, { "recall by words alone", "recall_words", &r->recall_words },
        { "first recall (index built)", "first_recall", &r->first_recall }, { "ask, 10 facts, 1 token", "ask", &r->ask },
        { "remember one", "remember", &r->remember }, { "update one", "update", &r->update },
        { "forget one", "forget", &r->forget }, { "open and close", "open", &r->open },
    };

    for (int i = 0; i < PAIRS; i++) out[i] = all[i];
}

static int print_json(const bench_scale_options *o, const bench_scale_row *r)
{
    json_t *report = cli_report(NULL, o->seed), *row;
    named pairs[PAIRS];

    json_object_set_new(report, "model", json_string("none: mock engine and embedder"));
    row = json_pack("{s:i,s:i,s:I,s:i,s:i}", "owners", (int)r->owners, "facts_per_owner", (int)r->facts, "facts",
                    (json_int_t)r->owners * r->facts, "kv_owners", (int)r->kv_owners, "repeats", (int)r->repeats);
    list_pairs(r, pairs);
    for (int i = 0; i < PAIRS; i++) {
        char key[64];

        snprintf(key, sizeof key, "%s_ms", pairs[i].json);
        json_object_set_new(row, key, json_real(pairs[i].pair->many_ms));
        snprintf(key, sizeof key, "%s_alone_ms", pairs[i].json);
        json_object_set_new(row, key, json_real(pairs[i].pair->alone_ms));
        snprintf(key, sizeof key, "%s_ratio", pairs[i].json);
        json_object_set_new(row, key, json_real(pairs[i].pair->ratio));
    }
    json_object_set_new(row, "forget_owner_ms", json_real(r->forget_owner_ms));
    json_object_set_new(row, "store_info_ms", json_real(r->store_info_ms));
    json_object_set_new(row, "fill_s", json_real(r->fill_s));
    json_object_set_new(row, "encode_s", json_real(r->encode_s));
    json_object_set_new(row, "rss_open_bytes", json_integer((json_int_t)r->rss_open_bytes));
    json_object_set_new(row, "rss_one_owner_bytes", json_integer((json_int_t)r->rss_one_bytes));
    json_object_set_new(row, "rss_100_owners_bytes", json_integer((json_int_t)r->rss_many_bytes));
    json_object_set_new(row, "bank_bytes", json_integer((json_int_t)r->bank_bytes));
    json_object_set_new(row, "vault_bytes", json_integer((json_int_t)r->vault_bytes));
    json_object_set_new(row, "files", json_integer((json_int_t)r->n_files));
    json_object_set_new(row, "folders", json_integer((json_int_t)r->n_folders));
    json_array_append_new(json_object_get(report, "rows"), row);
    return cli_print_json(report);
}

static int print_table(const bench_scale_row *r)
{
    named pairs[PAIRS];
    char a[32], c[32], d[32];

    cli_count((uint64_t)r->owners * r->facts, a);
    printf("%u owners x %u facts = %s, against one owner alone; medians\n\n", r->owners, r->facts, a);
    printf("%-28s %12s %12s %7s\n", "", "among all", "alone", "ratio");
    list_pairs(r, pairs);
    for (int i = 0; i < PAIRS; i++) {
        cli_ms(pairs[i].pair->many_ms, a);
        cli_ms(pairs[i].pair->alone_ms, c);
        printf("%-28s %12s %12s %7.2f\n", pairs[i].name, a, c, pairs[i].pair->ratio);
    }
    cli_ms(r->forget_owner_ms, a);
    cli_ms(r->store_info_ms, c);
    printf("\nforget a whole owner %s; figures of the whole store %s; filled in %.0f s, KV of %u owners in %.0f s\n", a, c, r->fill_s,
           r->kv_owners, r->encode_s);
    cli_size(r->rss_open_bytes, a);
    cli_size(r->rss_one_bytes, c);
    cli_size(r->rss_many_bytes, d);
    printf("resident memory: open %s, after one owner's recall %s, after 100 owners' %s\n", a, c, d);
    cli_size(r->bank_bytes, a);
    cli_size(r->vault_bytes, c);
    printf("on disk: bank %s (%.0f bytes a fact), vault %s, %llu files in %llu folders\n", a,
           (double)r->bank_bytes / ((double)r->owners * r->facts), c, (unsigned long long)r->n_files, (unsigned long long)r->n_folders);
    return 0;
}

/* ---- Memory is measured in a process that has not made the stores --------------------------------------------------------- */

typedef struct watcher { pid_t pid; int to, from; } watcher;

/* Waits for the store's folder, measures, tells. */
static void watch(const bench_scale_options *o, int in, int out)
{
    char home[4096] = "";
    uint64_t rss[3] = { 0 };
    ssize_t n = read(in, home, sizeof home - 1);

    if (n > 0 && bench_scale_memory(o, home, rss) == INFERSCALE_OK) n = write(out, rss, sizeof rss);
    _exit(n > 0 ? 0 : 1);
}

static is_status start_watcher(const bench_scale_options *o, watcher *w)
{
    int to[2], from[2];

    if (pipe(to) != 0 || pipe(from) != 0) return is_fail_errno("cannot make a pipe for the scale benchmark");
    w->pid = fork();
    if (w->pid < 0) return is_fail_errno("cannot start a process for the scale benchmark");
    if (w->pid == 0) {
        close(to[1]);
        close(from[0]);
        watch(o, to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    w->to = to[1];
    w->from = from[0];
    return INFERSCALE_OK;
}

static is_status ask_watcher(void *ctx, const char *home, uint64_t rss[3])
{
    watcher *w = ctx;
    ssize_t n = write(w->to, home, strlen(home));

    if (n > 0) n = read(w->from, rss, 3 * sizeof *rss);
    if (n == (ssize_t)(3 * sizeof *rss)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_ENGINE, "the process that measures memory failed; run the benchmark again");
}

/* Closing its pipe ends one that was never asked. */
static void end_watcher(watcher *w)
{
    if (w->pid <= 0) return;
    close(w->to);
    close(w->from);
    waitpid(w->pid, NULL, 0);
}

static int cmd_bench_scale(const cli_args *a)
{
    bench_scale_options o = {
        .owners = (uint32_t)cli_int(a, "--owners", 1000, 2, 1000000), .facts = (uint32_t)cli_int(a, "--facts", 1000, 50, 10000),
        .kv_owners = (uint32_t)cli_int(a, "--kv-owners", 3, 1, 1000),
        .repeats = (uint32_t)cli_int(a, "--repeats", 101, 3, 1000), .seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX / 2),
    };
    bench_scale_row row;
    watcher w = { 0 };
    cli_progress bar;
    is_status st;

    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    if (o.kv_owners >= o.owners) return cli_usage(a, "--kv-owners must be less than --owners");
    o.store = (inferscale_options)INFERSCALE_OPTIONS_INIT;
    o.on_progress = cli_progress_at;
    o.progress_ctx = &bar;
    o.on_home = ask_watcher;
    o.home_ctx = &w;
    st = start_watcher(&o, &w);
    cli_progress_start(&bar, "measuring", 0);
    if (st == INFERSCALE_OK) st = bench_scale(&o, &row);
    cli_progress_end(&bar);
    end_watcher(&w);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    return cli_flag(a, "--json") ? print_json(&o, &row) : print_table(&row);
}

const cli_verb cli_verb_bench_scale = {
    "bench scale", "", "Measure one owner's memory beside many others", details, options, CLI_JSON, cmd_bench_scale,
};
