/* bench_serve.c - the verb `bench serve`: a server under load, with memory injected and as text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/serve_child.h"
#include "eval/bench_serve.h"

enum { CHILD_OPTIONS = 40 };

static const cli_option options[] = {
    { "--users", "N[,N]", "how many ask at once (default: 1,8,32,100)" },
    { "--k", "N", "facts a question (default: 50)" },
    { "--rate", "R[,R]", "also open loops: requests a second, at random times (default: none)" },
    { "--pairs", "N", "pairs of windows, one kv and one text, at each load (default: 5)" },
    { "--facts", "N", "facts each owner has (default: K + 14)" },
    { "--max-tokens", "N", "tokens out (default: 32)" },
    { "--completions", "N", "answers a window, at least one a user (default: 32 of kv, 16 of text)" },
    { "--window", "SECONDS", "a window of text, or at a rate, that takes longer is cut when it has 20 answers (default: 60)" },
    { "--seed", "N", "of facts, questions and times (default: 1)" },
    { "--brief", NULL, "without ttfts and itls, the single times, in the JSON" },
    { "--url", "URL", "a server that runs already, instead of one of our own; the owners stay in its store" },
    { "--key", "KEY", "its API key (default: $INFERSCALE_KEY)" },
    { "--parallel", "N", "our own server: requests in the engine at once (default: 8)" },
    { "--model", "NAME", "our own server: a GGUF file or an installed name" },
    { "--engine", "NAME", "our own server: llama (default), vllm or mock" },
    { "--upstream", "URL[,URL]", "our own server, engine vllm: its servers (default: $INFERSCALE_UPSTREAM)" },
    { "--home", "FOLDER", "our own server, engine vllm: the store that its connector reads; the owners stay in it" },
    { "--embedder", "WHAT", CLI_EMBEDDER_HELP },
    { "--policy", "POLICY", "our own server: encoding policy (default: header; it costs nothing when facts are served)" },
    { "--ctx", "TOKENS", "our own server: engine context" },
    { "--threads", "N", "our own server: threads" },
    { NULL, NULL, NULL },
};

static const char details[] =
    "Starts `inferscale serve` on a throw-away store (or takes --url), gives every owner facts of his own, waits until they are encoded,\n"
    "and then lets many ask at once: streamed, greedy, each about another memory, a new question each time. Memory injected (kv) and the\n"
    "same memory computed as text alternate, a window each; throughputs are medians over windows, and kv over text is taken window by\n"
    "window. Closed loop: everybody asks again when answered. With --rate, open loop. Of every answer it is checked that it used facts of\n"
    "its owner only. The JSON's rows have the keys of `vllm bench serve`; ttfts and itls are in seconds, as there.\n"
    "\n"
    "Examples:\n"
    "  inferscale bench serve --users 1,8,32,100 --k 50 --json\n"
    "  inferscale bench serve --users 8 --pairs 3 --rate 0.5,2\n"
    "  inferscale bench serve --url http://127.0.0.1:8080 --users 8";

/* ---- Output -------------------------------------------------------------------------------------------------------------- */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void put_times(json_t *o, const char *what, const bench_serve_times *t)
{
    const struct { const char *name; double x; } all[] = { { "mean", t->mean }, { "median", t->median }, { "std", t->std }, { "p99", t->p99 } };
    char key[32];

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(key, sizeof key, "%s_%s_ms", all[i].name, what);
        json_object_set_new(o, key, number(all[i].x));
    }
}

/* Seconds to a tenth of a millisecond. */
static json_t *seconds(double ms)
{
    return json_real(round(ms * 10) / 10000);
}

static void put_samples(json_t *o, const bench_serve_row *r)
{
    json_t *ttfts = json_array(), *itls = json_array();
    size_t at = 0;

    for (uint32_t i = 0; i < r->completed; i++) {
        json_t *one = json_array();

        json_array_append_new(ttfts, seconds(r->ttft_ms[i]));
        for (uint32_t j = 0; j < r->n_itls[i]; j++) json_array_append_new(one, seconds(r->itl_ms[at++]));
        json_array_append_new(itls, one);
    }
    json_object_set_new(o, "ttfts", ttfts);
    json_object_set_new(o, "itls", itls);
}

static json_t *windows_json(const bench_serve_row *r)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < r->n_windows; i++) {
        const bench_serve_window *w = &r->windows[i];
        json_t *o = json_pack("{s:f,s:f,s:f,s:i,s:i,s:i}", "request_throughput", w->request_throughput, "output_throughput", w->output_throughput,
                              "duration", w->seconds, "completed", (int)w->completed, "failed", (int)w->failed, "cut", (int)w->cut);

        if (r->rate > 0) json_object_set_new(o, "offered", json_real(w->offered));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *row_json(const bench_serve_row *r, bool brief)
{
    json_t *o = json_pack("{s:i,s:s,s:o,s:f,s:f}", "users", (int)r->users, "mode", r->arm == BENCH_SERVE_KV ? "kv" : "text", "rate",
                          r->rate > 0 ? json_real(r->rate) : json_null(), "request_throughput", r->request_throughput, "output_throughput",
                          r->output_throughput);

    put_times(o, "ttft", &r->ttft);
    put_times(o, "tpot", &r->tpot);
    put_times(o, "itl", &r->itl);
    put_times(o, "e2el", &r->e2el);
    json_object_update_new(o, json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "completed", (int)r->completed, "failed", (int)r->failed, "cut", (int)r->cut,
                                        "lost", (int)r->lost, "mixed_up", (int)r->mixed_up, "unlike_asked", (int)r->unlike, "full_length",
                                        (int)r->full_length));
    json_object_set_new(o, "tokens", json_pack("{s:f,s:f,s:f,s:f,s:f}", "prompt", r->prompt, "computed", r->computed, "injected", r->injected,
                                               "resident", r->resident, "output", r->output));
    json_object_set_new(o, "goodput_2x", json_real(r->good[0]));
    json_object_set_new(o, "goodput_4x", json_real(r->good[1]));
    json_object_set_new(o, "windows", windows_json(r));
    if (r->error[0]) json_object_set_new(o, "first_error", cli_json_text(r->error));
    if (!brief) put_samples(o, r);
    return o;
}

static json_t *ratio_json(const bench_serve_ratio *q)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < q->n; i++) json_array_append_new(list, json_real(q->quotients[i]));
    return json_pack("{s:i,s:o,s:o,s:o,s:o,s:o}", "users", (int)q->users, "rate", q->rate > 0 ? json_real(q->rate) : json_null(), "kv_over_text",
                     number(q->median), "lo", number(q->lo), "hi", number(q->hi), "windows", list);
}

static int print_json(const cli_args *a, const bench_serve_options *o, const bench_serve_result *r, json_t *info)
{
    json_t *report = cli_report(NULL, o->seed), *rows = json_object_get(report, "rows"), *ratios = json_array();

    json_object_set_new(report, "model", cli_json_text(r->model));
    json_object_update_new(report, json_pack("{s:i,s:i,s:i,s:i,s:i,s:b,s:f}", "k", (int)o->k, "facts", (int)r->facts, "owners", (int)r->n_owners,
                                             "max_tokens", (int)o->max_tokens, "pairs", (int)o->pairs, "ignore_eos", r->ignores_eos,
                                             "window_s", o->window_s));
    json_object_update_new(report, json_pack("{s:f,s:f,s:f,s:f,s:i,s:i}", "remember_s", r->remember_s, "encode_s", r->encode_s,
                                             "idle_text_ttft_ms", r->idle_text_ms, "idle_kv_ttft_ms", r->idle_kv_ms, "markers_found",
                                             (int)r->markers_found, "markers_told", (int)r->markers_told));
    if (info) json_object_set(report, "server", info);
    for (size_t i = 0; i < r->n_loads; i++) {
        for (size_t arm = 0; arm < BENCH_SERVE_ARMS; arm++)
            json_array_append_new(rows, row_json(&r->rows[i * BENCH_SERVE_ARMS + arm], cli_flag(a, "--brief")));
        json_array_append_new(ratios, ratio_json(&r->ratios[i]));
    }
    json_object_set_new(report, "kv_over_text", ratios);
    return cli_print_json(report);
}

static void print_row(const bench_serve_row *r)
{
    char load[32];

    if (r->rate > 0) snprintf(load, sizeof load, "%.3g/s", r->rate);
    else snprintf(load, sizeof load, "closed");
    printf("%5u  %-7s %-4s  %8.3f  %8.1f  %9.0f  %9.0f  %8.1f  %8.3f  %8.3f  %5u %6u %4u\n", r->users, load, r->arm == BENCH_SERVE_KV ? "kv" : "text",
           r->request_throughput, r->output_throughput, r->ttft.median, r->ttft.p99, r->tpot.median, r->good[0], r->good[1], r->completed, r->failed,
           r->cut);
}

static void print_table(const bench_serve_options *o, const bench_serve_result *r)
{
    printf("%s, %u owners with %u facts, k = %u, %u tokens out%s; medians of %u pairs of windows\n", r->model, r->n_owners, r->facts, o->k,
           o->max_tokens, r->ignores_eos ? "" : " at most", o->pairs);
    printf("Idle server: TTFT %.0f ms text, %.0f ms kv. %u of %u markers found, %u told.\n\n", r->idle_text_ms, r->idle_kv_ms, r->markers_found,
           r->n_owners, r->markers_told);
    printf("%5s  %-7s %-4s  %8s  %8s  %9s  %9s  %8s  %8s  %8s  %5s %6s %4s\n", "users", "load", "mode", "req/s", "tokens/s", "TTFT p50", "TTFT p99",
           "TPOT p50", "good 2x", "good 4x", "done", "failed", "cut");
    for (size_t i = 0; i < r->n_loads; i++) {
        const bench_serve_ratio *q = &r->ratios[i];

        print_row(&r->rows[i * BENCH_SERVE_ARMS]);
        print_row(&r->rows[i * BENCH_SERVE_ARMS + 1]);
        printf("       kv over text: %.2fx (%.2f-%.2f)\n", q->median, q->lo, q->hi);
    }
    printf("\nTimes in ms. good 2x, 4x: answers a second whose TTFT was within 2 and 4 times that of one text request on the idle server.\n");
}

/* What must not be, said where it cannot be overlooked. */
static int verdict(const cli_args *a, const bench_serve_result *r)
{
    uint32_t mixed = 0, lost = 0, failed = 0, unlike = 0;

    for (size_t i = 0; i < r->n_loads * BENCH_SERVE_ARMS; i++) {
        mixed += r->rows[i].mixed_up;
        lost += r->rows[i].lost;
        failed += r->rows[i].failed;
        unlike += r->rows[i].unlike;
    }
    if (unlike) fprintf(stderr, "%u answers were made otherwise than asked (unlike_asked); look at inferscale_fallbacks_total in /metrics\n", unlike);
    if (failed) fprintf(stderr, "%u requests failed; first_error says how\n", failed);
    if (mixed + lost == 0) return 0;
    return cli_fail_msg(a, "%u answers were mixed up and %u requests lost; this is a fault of the server", mixed, lost);
}

/* ---- The verb ------------------------------------------------------------------------------------------------------------ */

static int take_rates(const cli_args *a, bench_serve_options *o)
{
    const char *s = cli_str(a, "--rate", "");

    while (*s) {
        char *end;
        double x = strtod(s, &end);

        if (end == s || !(x > 0) || x > 10000 || (*end && *end != ','))
            return cli_usage(a, "--rate takes requests a second with commas between, e.g. 0.5,2, not \"%.40s\"", s);
        if (o->n_rates == BENCH_SERVE_LIST) return cli_usage(a, "--rate takes %d at most", (int)BENCH_SERVE_LIST);
        o->rates[o->n_rates++] = x;
        s = *end ? end + 1 : end;
    }
    return 0;
}

static int take_options(const cli_args *a, bench_serve_options *o)
{
    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    o->n_users = cli_int_list(a, "--users", "1,8,32,100", o->users, BENCH_SERVE_LIST);
    for (size_t i = 0; i < o->n_users; i++)
        if (o->users[i] < 1 || o->users[i] > 1000) return cli_usage(a, "--users takes counts from 1 to 1000");
    o->k = (uint32_t)cli_int(a, "--k", 50, 1, 1000);
    o->facts = (uint32_t)cli_int(a, "--facts", (int64_t)o->k + 14, 1, 5000);
    o->pairs = (uint32_t)cli_int(a, "--pairs", 5, 1, BENCH_SERVE_PAIRS);
    o->max_tokens = (uint32_t)cli_int(a, "--max-tokens", 32, 1, 4096);
    o->completions = (uint32_t)cli_int(a, "--completions", 0, 0, 100000);
    o->window_s = cli_num(a, "--window", 60, 1, 86400);
    o->seed = (uint64_t)cli_int(a, "--seed", 1, 0, 1 << 30);
    o->url = cli_str(a, "--url", NULL);
    o->key = cli_str(a, "--key", getenv("INFERSCALE_KEY"));
    o->echoes = strncmp(cli_str(a, "--engine", ""), "mock", 4) == 0;
    return take_rates(a, o);
}

static inferscale_status start(const cli_args *a, const bench_serve_options *o, serve_child *child)
{
    static const char *const passed[] = { "--model", "--engine", "--upstream", "--home", "--embedder", "--ctx", "--threads" };
    const char *argv[CHILD_OPTIONS];
    char connections[16];
    int64_t most = 1;
    size_t n = 0;

    for (size_t i = 0; i < o->n_users; i++) most = o->users[i] > most ? o->users[i] : most;
    snprintf(connections, sizeof connections, "%d", (int)(most < 200 ? 400 : 2 * most));
    const char *const own[] = { "--parallel", cli_str(a, "--parallel", "8"), "--max-connections", connections, "--max-queue", connections,
                                "--policy", cli_str(a, "--policy", "header"), "--refine", "none", "--log", "off", "--generate-s", "3600" };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) argv[n++] = own[i];
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
        if (cli_str(a, passed[i], NULL)) {
            argv[n++] = passed[i];
            argv[n++] = cli_str(a, passed[i], NULL);
        }
    return serve_child_start(argv, n, child);
}

static int cmd_bench_serve(const cli_args *a)
{
    bench_serve_options o = { 0 };
    bench_serve_result result = { 0 };
    serve_child child = { 0 };
    json_t *info = NULL;
    cli_progress bar;
    inferscale_status st = INFERSCALE_OK;
    long status = 0;
    int code = take_options(a, &o);

    if (code != 0) return code;
    o.cancel = cli_interrupt();
    o.on_progress = cli_progress_at;
    o.progress_ctx = &bar;
    cli_progress_start(&bar, "starting", 0);
    if (!o.url) st = start(a, &o, &child);
    if (st == INFERSCALE_OK && !o.url) o.url = child.url;
    if (st == INFERSCALE_OK) st = bench_serve_run(&o, &result);
    if (st == INFERSCALE_OK && load_call(o.url, o.key, "GET", "/inferscale/info", NULL, &status, &info) == INFERSCALE_OK && status != 200) {
        json_decref(info);
        info = NULL;
    }
    cli_progress_end(&bar);
    if (st != INFERSCALE_OK) code = cli_fail_as(a, st);
    else if (cli_flag(a, "--json")) code = print_json(a, &o, &result, info);
    else print_table(&o, &result);
    if (st == INFERSCALE_OK && code == 0) code = verdict(a, &result);
    if (child.pid > 0 && serve_child_end(&child) != 0 && code == 0) code = cli_fail_msg(a, "the server did not end in order when it was asked to");
    json_decref(info);
    bench_serve_result_free(&result);
    return code;
}

const cli_verb cli_verb_bench_serve = {
    "bench serve", "", "Measure a server under load", details, options, CLI_JSON, cmd_bench_serve,
};
