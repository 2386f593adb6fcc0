/* bench_remember.c - the verb `bench remember`: remembering while questions are answered and facts wait, and what it costs them. */
#include <math.h>
#include <stdio.h>

#include "cli/cli.h"
#include "eval/bench_busy.h"
#include "eval/bench_remember.h"

static const cli_option options[] = {
    { "--waiting", "N", "facts that wait to be encoded all the time (default: 1000)" },
    { "--rounds", "N", "questions of each kind, idle and loaded (default: 41; 0 = no first part)" },
    { "--clients", "N", "who ask without a pause (default: 8; 0 = no second part)" },
    { "--pairs", "N", "of its windows, with writes and without (default: 5)" },
    { "--window", "SECONDS", "its length, below the lag limit of encoding (default: 4)" },
    { "--batch", "N",
      "facts remembered at once, to see how fast they are embedded (default: 128)" },
    { "-k", "N", "facts a question (default: 10)" },
    { "--max-tokens", "N", "longest answer in tokens (default: 8)" },
    { "--seed", "N", "of the invented facts, the order and when questions come (default: 1)" },
    { "--engine", "NAME", "engine plug-in: llama (default) or mock" },
    { "--embedder", "WHAT", CLI_EMBEDDER_HELP },
    { "--brief", NULL, "without the single times, in the JSON" },
    { NULL, NULL, NULL },
};

static const char details[] =
    "One store with a background encoder. Facts of one owner wait for their embeddings and KV; a thread remembers facts of another\n"
    "owner one by one; a third owner's memory is asked. Remembering alternates with a bare write of 4 KiB and a sync on the same disk.\n"
    "Questions alternate between idle (encoder and writer stand still) and loaded (both in the midst of their work). The store is a\n"
    "throw-away folder under $TMPDIR: set it to the disk that is meant.\n"
    "\n"
    "The second part, in a store of its own: clients ask without a pause. Single facts are\n"
    "written, and how long each waits for its embedding is measured; the clients' time to first\n"
    "token beside that is compared with a window without writes; and how fast a batch is\n"
    "embedded beside the clients is compared with nobody asking and the encoder standing\n"
    "still. Windows come in drawn order, ratios are taken pair by pair. 0 slices: encoding had\n"
    "no share of the engine's time.\n"
    "\n"
    "Examples:\n"
    "  inferscale bench remember --threads 1 --json\n"
    "  inferscale bench remember --threads 1 --rounds 0 --clients 8";

/* ---- JSON -------------------------------------------------------------------------------- */

static void put_first(json_t *report, const inferscale_model_info *info,
                      const bench_remember_options *o, const bench_remember_result *r)
{
    json_t *more;

    more = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "p50_ms", r->p50_ms, "p99_ms", r->p99_ms, "max_ms", r->max_ms,
                     "disk_p50_ms", r->disk_p50_ms, "disk_p99_ms", r->disk_p99_ms, "disk_max_ms", r->disk_max_ms, "ttft_idle_ms",
                     r->ttft_idle_ms, "ttft_loaded_ms", r->ttft_loaded_ms, "ttft_ratio", r->ttft_ratio, "ttft_idle_p90_ms",
                     r->ttft_idle_p90_ms, "ttft_loaded_p90_ms", r->ttft_loaded_p90_ms);
    json_object_update(report, more);
    json_decref(more);
    more = json_pack("{s:i,s:i,s:I,s:I,s:I,s:f,s:i,s:i}", "n_remembered", (int)r->n_remembered, "n_questions", (int)r->n_questions,
                     "waiting_min", (json_int_t)r->waiting_min, "facts_encoded", (json_int_t)r->facts_encoded, "aborted_for_questions",
                     (json_int_t)r->aborted_for_questions, "seconds", r->seconds, "threads", (int)info->n_threads, "k", (int)o->k);
    json_object_update(report, more);
    json_decref(more);
}

/* Tenths of what they are in. */
static json_t *tenths(const double *x, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, json_real(round(10 * x[i]) / 10));
    return list;
}

static json_t *ratios(const double *x, uint32_t n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(list, json_real(round(1000 * x[i]) / 1000));
    return list;
}

static json_t *ttft_json(const bench_busy_ttft *t, uint32_t n_pairs, bool brief)
{
    json_t *o = json_pack("{s:i,s:f,s:f,s:o}", "n", (int)t->n, "median_ms", t->median_ms, "p95_ms",
                          t->p95_ms, "windows_ms", tenths(t->window_ms, n_pairs));

    if (!brief) json_object_set_new(o, "ms", tenths(t->ms, t->n));
    return o;
}

static json_t *busy_json(const bench_busy_options *o, const bench_busy_result *r, bool brief)
{
    const uint32_t n = r->n_pairs;
    json_t *lag = json_pack("{s:i,s:f,s:f,s:f}", "n", (int)r->n_lags, "p50_ms", r->lag_p50_ms,
                            "p95_ms", r->lag_p95_ms, "max_ms", r->lag_max_ms);
    json_t *rate = json_pack("{s:f,s:f,s:f,s:o,s:o,s:o}", "idle_facts_per_s", r->idle_facts_per_s,
                             "busy_facts_per_s", r->busy_facts_per_s, "ratio", r->rate_ratio,
                             "idle", tenths(r->idle, n), "busy", tenths(r->busy, n), "ratios",
                             ratios(r->rate_ratios, n));

    if (!brief) json_object_set_new(lag, "ms", tenths(r->lag_ms, r->n_lags));
    return json_pack("{s:i,s:i,s:f,s:i,s:i,s:o,s:o,s:o,s:o,s:f,s:o,s:I}", "clients",
                     (int)o->clients, "pairs", (int)n, "window_s", o->window_s, "batch",
                     (int)o->batch, "k", (int)o->k, "embedding_lag", lag, "embedding", rate,
                     "ttft_quiet", ttft_json(&r->quiet, n, brief), "ttft_told",
                     ttft_json(&r->told, n, brief), "ttft_ratio", r->ttft_ratio, "ttft_ratios",
                     ratios(r->ttft_ratios, n), "n_slices", (json_int_t)r->n_slices);
}

/* ---- Tables ------------------------------------------------------------------------------ */

static void print_table(const inferscale_model_info *info, const bench_remember_result *r)
{
    char shown[192];
    printf("%s %s, %u thread%s, at least %llu facts waiting\n\n", cli_model_shown(info, shown), info->weights, info->n_threads,
           info->n_threads == 1 ? "" : "s", (unsigned long long)r->waiting_min);
    printf("%-26s %8s %8s %8s %6s\n", "milliseconds", "p50", "p99", "max", "n");
    printf("%-26s %8.2f %8.2f %8.2f %6u\n", "remember one fact", r->p50_ms, r->p99_ms, r->max_ms, r->n_remembered);
    printf("%-26s %8.2f %8.2f %8.2f %6u\n\n", "write 4 KiB and sync", r->disk_p50_ms, r->disk_p99_ms, r->disk_max_ms, r->n_remembered);
    printf("%-26s %8s %8s %8s %6s\n", "time to first token, ms", "median", "p90", "", "n");
    printf("%-26s %8.1f %8.1f %8s %6u\n", "idle", r->ttft_idle_ms, r->ttft_idle_p90_ms, "", r->n_questions);
    printf("%-26s %8.1f %8.1f %8s %6u\n", "loaded", r->ttft_loaded_ms, r->ttft_loaded_p90_ms, "", r->n_questions);
    printf("%-26s %7.2fx\n\n", "ratio", r->ttft_ratio);
    printf("%llu facts encoded in %.1f s meanwhile, %llu passes dropped for questions\n", (unsigned long long)r->facts_encoded, r->seconds,
           (unsigned long long)r->aborted_for_questions);
}

static void print_busy(const inferscale_model_info *info, const bench_busy_options *o,
                       const bench_busy_result *r)
{
    char shown[192];

    printf("%s %s, %u thread%s, %u clients ask without a pause, %u pairs of windows\n\n",
           cli_model_shown(info, shown), info->weights, info->n_threads,
           info->n_threads == 1 ? "" : "s", o->clients, r->n_pairs);
    printf("%-26s %8s %8s %8s %6s\n", "milliseconds", "p50", "p95", "max", "n");
    printf("%-26s %8.1f %8.1f %8.1f %6u\n\n", "until a fact is embedded", r->lag_p50_ms,
           r->lag_p95_ms, r->lag_max_ms, r->n_lags);
    printf("%-26s %8s %8s %8s %6s\n", "time to first token, ms", "median", "p95", "", "n");
    printf("%-26s %8.1f %8.1f %8s %6u\n", "without writes", r->quiet.median_ms, r->quiet.p95_ms,
           "", r->quiet.n);
    printf("%-26s %8.1f %8.1f %8s %6u\n", "with writes", r->told.median_ms, r->told.p95_ms,
           "", r->told.n);
    printf("%-26s %7.2fx   %llu slices of encoding\n\n", "ratio", r->ttft_ratio,
           (unsigned long long)r->n_slices);
    printf("%-26s %8s %8s %8s %6s\n", "embedded facts a second", "idle", "busy", "ratio", "n");
    printf("%-26s %8.1f %8.1f %7.2fx %6u\n", "a batch", r->idle_facts_per_s, r->busy_facts_per_s,
           r->rate_ratio, r->n_pairs);
}

/* ---- The verb ---------------------------------------------------------------------------- */

static bench_busy_options busy_options(const cli_args *a, const bench_remember_options *first)
{
    return (bench_busy_options){
        .store = first->store,
        .clients = (uint32_t)cli_int(a, "--clients", 8, 0, BENCH_BUSY_CLIENTS),
        .pairs = (uint32_t)cli_int(a, "--pairs", 5, 1, BENCH_BUSY_PAIRS),
        .window_s = (double)cli_int(a, "--window", 4, 1, 600),
        .batch = (uint32_t)cli_int(a, "--batch", 128, 1, 1000),
        .k = first->k,
        .max_tokens = first->max_tokens,
        .seed = first->seed,
        .cancel = first->cancel,
        .on_progress = first->on_progress,
        .progress_ctx = first->progress_ctx,
    };
}

static int report(const cli_args *a, const inferscale_model_info *info,
                  const bench_remember_options *o, const bench_remember_result *r,
                  const bench_busy_options *busy, const bench_busy_result *under_load)
{
    json_t *all;

    if (!cli_flag(a, "--json")) {
        if (o->rounds) print_table(info, r);
        if (o->rounds && busy->clients) printf("\n");
        if (busy->clients) print_busy(info, busy, under_load);
        return 0;
    }
    all = cli_report(info, o->seed);
    json_object_del(all, "rows"); /* one measurement, no list */
    json_object_set_new(all, "threads", json_integer(info->n_threads));
    if (o->rounds) put_first(all, info, o, r);
    if (busy->clients)
        json_object_set_new(all, "under_load", busy_json(busy, under_load, cli_flag(a, "--brief")));
    return cli_print_json(all);
}

static int cmd_bench_remember(const cli_args *a)
{
    bench_remember_options o = {
        .waiting = (uint32_t)cli_int(a, "--waiting", 1000, 1, 5000),
        .rounds = (uint32_t)cli_int(a, "--rounds", 41, 0, 1000),
        .k = (uint32_t)cli_int(a, "-k", 10, 1, 50),
        .max_tokens = (uint32_t)cli_int(a, "--max-tokens", 8, 1, 1000),
        .seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX),
    };
    bench_remember_result result = { 0 };
    bench_busy_result under_load = { 0 };
    bench_busy_options busy;
    inferscale_model_info info;
    cli_progress bar;
    is_status st = INFERSCALE_OK;
    int rc;

    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    cli_options(a, &o.store);
    o.store.engine = cli_str(a, "--engine", NULL);
    o.store.embedder = cli_str(a, "--embedder", NULL);
    o.cancel = cli_interrupt();
    o.on_progress = cli_progress_at;
    o.progress_ctx = &bar;
    busy = busy_options(a, &o);
    if (!o.rounds && !busy.clients)
        return cli_usage(a, "--rounds 0 and --clients 0 leave nothing to measure; raise one");
    cli_progress_start(&bar, "measuring", 0);
    if (o.rounds) st = bench_remember_run(&o, &result, &info);
    if (busy.clients && st == INFERSCALE_OK) st = bench_busy_run(&busy, &under_load, &info);
    cli_progress_end(&bar);
    if (st == INFERSCALE_OK) rc = report(a, &info, &o, &result, &busy, &under_load);
    else rc = cli_fail_as(a, st);
    bench_busy_result_free(&under_load);
    return rc;
}

const cli_verb cli_verb_bench_remember = {
    "bench remember", "", "Measure remembering while questions are answered", details, options, CLI_MODEL | CLI_JSON, cmd_bench_remember,
};
