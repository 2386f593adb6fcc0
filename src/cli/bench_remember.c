/* bench_remember.c - the verb `bench remember`: remembering while questions are answered and facts wait, and what it costs them. */
#include <stdio.h>

#include "cli/cli.h"
#include "eval/bench_remember.h"

static const cli_option options[] = {
    { "--waiting", "N", "facts that wait to be encoded all the time (default: 1000)" },
    { "--rounds", "N", "questions of each kind, idle and loaded (default: 41)" },
    { "-k", "N", "facts a question (default: 10)" },
    { "--max-tokens", "N", "longest answer in tokens (default: 8)" },
    { "--seed", "N", "of the invented facts, the order and when questions come (default: 1)" },
    { "--engine", "NAME", "engine plug-in: llama (default) or mock" },
    { "--embedder", "WHAT", CLI_EMBEDDER_HELP },
    { NULL, NULL, NULL },
};

static const char details[] =
    "One store with a background encoder. Facts of one owner wait for their embeddings and KV; a thread remembers facts of another\n"
    "owner one by one; a third owner's memory is asked. Remembering alternates with a bare write of 4 KiB and a sync on the same disk.\n"
    "Questions alternate between idle (encoder and writer stand still) and loaded (both in the midst of their work). The store is a\n"
    "throw-away folder under $TMPDIR: set it to the disk that is meant.\n"
    "\n"
    "Examples:\n"
    "  inferscale bench remember --threads 1 --json";

static int print_json(const inferscale_model_info *info, const bench_remember_options *o, const bench_remember_result *r)
{
    json_t *report = cli_report(info, o->seed), *more;

    json_object_del(report, "rows"); /* one measurement, no list */
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
    return cli_print_json(report);
}

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

static int cmd_bench_remember(const cli_args *a)
{
    bench_remember_options o = {
        .waiting = (uint32_t)cli_int(a, "--waiting", 1000, 1, 5000),
        .rounds = (uint32_t)cli_int(a, "--rounds", 41, 1, 1000),
        .k = (uint32_t)cli_int(a, "-k", 10, 1, 50),
        .max_tokens = (uint32_t)cli_int(a, "--max-tokens", 8, 1, 1000),
        .seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX),
    };
    bench_remember_result result;
    inferscale_model_info info;
    cli_progress bar;
    is_status st;

    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    cli_options(a, &o.store);
    o.store.engine = cli_str(a, "--engine", NULL);
    o.store.embedder = cli_str(a, "--embedder", NULL);
    o.cancel = cli_interrupt();
    o.on_progress = cli_progress_at;
    o.progress_ctx = &bar;
    cli_progress_start(&bar, "measuring", 0);
    st = bench_remember_run(&o, &result, &info);
    cli_progress_end(&bar);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (cli_flag(a, "--json")) return print_json(&info, &o, &result);
    print_table(&info, &result);
    return 0;
}

const cli_verb cli_verb_bench_remember = {
    "bench remember", "", "Measure remembering while questions are answered", details, options, CLI_MODEL | CLI_JSON, cmd_bench_remember,
};
