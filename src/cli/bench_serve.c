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
    { "--pairs", "N", "rounds of windows, one of each arm, at each load (default: 5)" },
    { "--facts", "N", "facts each owner has (default: K + 14)" },
    { "--max-tokens", "N", "tokens out (default: 32)" },
    { "--completions", "N", "answers a window, at least one a user (default: 32 of kv, 16 of text and plain)" },
    { "--window", "SECONDS", "a window of text or plain, or at a rate, that takes longer is cut when it has 20 answers (default: 60)" },
    { "--seed", "N", "of facts, questions and times (default: 1)" },
    { "--brief", NULL, "without ttfts and itls, the single times, in the JSON" },
    { "--url", "URL", "a server that runs already, instead of one of our own; the owners stay in its store" },
    { "--text-url", "URL", "with --url: a second server on the same store, with another setting, where text may run" },
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
    "and then lets many ask at once: streamed, greedy, each about another memory, a new question each time. Three arms alternate, a\n"
    "window each: memory injected (kv); the same memory computed as text; and plain, the requests of a usual memory stack: it searches\n"
    "(not counted in its times) and sends the facts as plain lines of the system message. Text and plain run with text's best setting:\n"
    "a second server reads the same store, with flash attention on where the first has it off or the other way round, and text is tried\n"
    "on both before the windows of each number of users. Throughputs are medians over windows; kv over text and kv over plain are taken\n"
    "window by window. Closed loop: everybody asks again when answered. With --rate, open loop. Of every answer it is checked that it used facts of\n"
    "its owner only. The JSON's rows have the keys of `vllm bench serve`; ttfts and itls are in seconds, as there.\n"
    "\n"
    "Examples:\n"
    "  inferscale bench serve --users 1,8,32,100 --k 50 --json\n"
    "  inferscale bench serve --users 8 --pairs 3 --rate 0.5,2\n"
    "  inferscale bench serve --url http://127.0.0.1:8080 --users 8";

/* The servers: url, text_url. */
typedef struct places {
    bool known[BENCH_SERVE_PLACES], fa[BENCH_SERVE_PLACES]; /* whether they have flash attention */
    json_t *info;                                           /* what the first says of itself */
} places;

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
    json_t *o = json_pack("{s:i,s:s,s:b,s:o,s:f,s:f}", "users", (int)r->users, "mode", bench_serve_arms[r->arm], "second_server", r->second, "rate",
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
    return json_pack("{s:i,s:o,s:o,s:o,s:o,s:o}", "users", (int)q->users, "rate",
                     q->rate > 0 ? json_real(q->rate) : json_null(),
                     q->under == BENCH_SERVE_TEXT ? "kv_over_text" : "kv_over_plain",
                     number(q->median), "lo", number(q->lo), "hi", number(q->hi), "windows", list);
}

/* The flash attention of the two servers, and how fast text was on each when it was tried. */
static json_t *places_json(const bench_serve_options *o, const bench_serve_result *r,
                           const places *p)
{
    json_t *list = json_array(), *fa = json_array();

    for (int i = 0; i < BENCH_SERVE_PLACES; i++)
        json_array_append_new(fa, p->known[i] ? json_boolean(p->fa[i]) : json_null());
    for (size_t u = 0; u < o->n_users; u++)
        json_array_append_new(list, json_pack("{s:i,s:[f,f]}", "users", (int)o->users[u],
                                              "request_throughput", r->trials[u][0],
                                              r->trials[u][1]));
    return json_pack("{s:o,s:o}", "flash_attention", fa, "trials", list);
}

static int print_json(const cli_args *a, const bench_serve_options *o, const bench_serve_result *r,
                      const places *p)
{
    json_t *report = cli_report(NULL, o->seed), *rows = json_object_get(report, "rows");
    json_t *text = json_array(), *plain = json_array();

    json_object_set_new(report, "model", cli_json_text(r->model));
    json_object_update_new(report, json_pack("{s:i,s:i,s:i,s:i,s:i,s:b,s:f}", "k", (int)o->k, "facts", (int)r->facts, "owners", (int)r->n_owners,
                                             "max_tokens", (int)o->max_tokens, "pairs", (int)o->pairs, "ignore_eos", r->ignores_eos,
                                             "window_s", o->window_s));
    json_object_update_new(report, json_pack("{s:f,s:f,s:f,s:f,s:i,s:i}", "remember_s", r->remember_s, "encode_s", r->encode_s,
                                             "idle_text_ttft_ms", r->idle_text_ms, "idle_kv_ttft_ms", r->idle_kv_ms, "markers_found",
                                             (int)r->markers_found, "markers_told", (int)r->markers_told));
    if (p->info) json_object_set(report, "server", p->info);
    if (o->text_url) json_object_set_new(report, "servers", places_json(o, r, p));
    for (size_t i = 0; i < r->n_loads; i++) {
        for (size_t arm = 0; arm < BENCH_SERVE_ARMS; arm++)
            json_array_append_new(rows, row_json(&r->rows[i * BENCH_SERVE_ARMS + arm], cli_flag(a, "--brief")));
        json_array_append_new(text, ratio_json(&r->ratios[2 * i]));
        json_array_append_new(plain, ratio_json(&r->ratios[2 * i + 1]));
    }
    json_object_set_new(report, "kv_over_text", text);
    json_object_set_new(report, "kv_over_plain", plain);
    return cli_print_json(report);
}

static void print_row(const bench_serve_row *r)
{
    char load[32];

    if (r->rate > 0) snprintf(load, sizeof load, "%.3g/s", r->rate);
    else snprintf(load, sizeof load, "closed");
    printf("%5u  %-7s %-5s  %8.3f  %8.1f  %9.0f  %9.0f  %8.1f  %8.3f  %8.3f  %5u %6u %4u\n", r->users, load, bench_serve_arms[r->arm],
           r->request_throughput, r->output_throughput, r->ttft.median, r->ttft.p99, r->tpot.median, r->good[0], r->good[1], r->completed, r->failed,
           r->cut);
}

/* Which setting an arm ran with. */
static const char *setting_of(const bench_serve_row *r, const places *p)
{
    if (!p->known[r->second]) return "the server's own setting";
    return p->fa[r->second] ? "flash attention on" : "flash attention off";
}

static void print_load(const bench_serve_result *r, size_t i, const places *p)
{
    const bench_serve_row *rows = &r->rows[i * BENCH_SERVE_ARMS];
    const bench_serve_ratio *q = &r->ratios[2 * i];

    for (int arm = 0; arm < BENCH_SERVE_ARMS; arm++) print_row(&rows[arm]);
    printf("       kv (%s) over text: %.2fx (%.2f-%.2f), over plain: %.2fx (%.2f-%.2f) (%s)\n",
           setting_of(&rows[BENCH_SERVE_KV], p), q[0].median, q[0].lo, q[0].hi, q[1].median,
           q[1].lo, q[1].hi, setting_of(&rows[BENCH_SERVE_TEXT], p));
}

static void print_table(const bench_serve_options *o, const bench_serve_result *r, const places *p)
{
    printf("%s, %u owners with %u facts, k = %u, %u tokens out%s; medians of %u rounds of windows\n", r->model, r->n_owners, r->facts, o->k,
           o->max_tokens, r->ignores_eos ? "" : " at most", o->pairs);
    printf("Idle server: TTFT %.0f ms text, %.0f ms kv. %u of %u markers found, %u told.\n\n", r->idle_text_ms, r->idle_kv_ms, r->markers_found,
           r->n_owners, r->markers_told);
    printf("%5s  %-7s %-5s  %8s  %8s  %9s  %9s  %8s  %8s  %8s  %5s %6s %4s\n", "users", "load", "mode", "req/s", "tokens/s", "TTFT p50", "TTFT p99",
           "TPOT p50", "good 2x", "good 4x", "done", "failed", "cut");
    for (size_t i = 0; i < r->n_loads; i++) print_load(r, i, p);
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
    o->text_url = o->url ? cli_str(a, "--text-url", NULL) : NULL;
    o->key = cli_str(a, "--key", getenv("INFERSCALE_KEY"));
    o->echoes = strncmp(cli_str(a, "--engine", ""), "mock", 4) == 0;
    return take_rates(a, o);
}

/* first: NULL, or the server whose store this one reads, to serve text. */
static inferscale_status start(const cli_args *a, const bench_serve_options *o,
                               const serve_child *first, bool fa, serve_child *child)
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
    if (first) {
        argv[n++] = "--home";
        argv[n++] = first->home;
        argv[n++] = "--read-only";
        argv[n++] = "--flash-attention";
        argv[n++] = fa ? "on" : "off";
    }
    return serve_child_start(argv, n, child);
}

/* What a server says of itself (json_decref), and whether it has flash attention, which is known of
 * libllama alone. NULL = nothing. */
static json_t *look(const bench_serve_options *o, const char *url, bool *known, bool *fa)
{
    json_t *info = NULL;
    const json_t *on;
    const char *engine;
    long status = 0;

    *known = *fa = false;
    if (load_call(url, o->key, "GET", "/inferscale/info", NULL, &status, &info) != INFERSCALE_OK)
        return NULL;
    if (status != 200) {
        json_decref(info);
        return NULL;
    }
    on = json_object_get(json_object_get(info, "model"), "flash_attention");
    engine = json_string_value(json_object_get(json_object_get(info, "model"), "engine"));
    *known = json_is_boolean(on) && engine && strncmp(engine, "libllama", 8) == 0;
    *fa = json_is_true(on);
    return info;
}

/* Only an engine that computes here has a setting that suits injection or text. */
static bool wants_second(const cli_args *a)
{
    return strcmp(cli_str(a, "--engine", "llama"), "vllm") != 0;
}

static inferscale_status start_servers(const cli_args *a, bench_serve_options *o, places *p,
                                       serve_child child[BENCH_SERVE_PLACES])
{
    if (!o->url) {
        IS_TRY(start(a, o, NULL, false, &child[0]));
        o->url = child[0].url;
        p->info = look(o, o->url, &p->known[0], &p->fa[0]);
        if (wants_second(a)) {
            IS_TRY(start(a, o, &child[0], !p->fa[0], &child[1]));
            o->text_url = child[1].url;
        }
    } else {
        p->info = look(o, o->url, &p->known[0], &p->fa[0]);
    }
    if (o->text_url) json_decref(look(o, o->text_url, &p->known[1], &p->fa[1]));
    return INFERSCALE_OK;
}

static int end_servers(const cli_args *a, serve_child child[BENCH_SERVE_PLACES], int code)
{
    for (int i = BENCH_SERVE_PLACES - 1; i >= 0; i--)
        if (child[i].pid > 0 && serve_child_end(&child[i]) != 0 && code == 0)
            code = cli_fail_msg(a, "a server did not end in order when it was asked to");
    return code;
}

static int cmd_bench_serve(const cli_args *a)
{
    bench_serve_options o = { 0 };
    bench_serve_result result = { 0 };
    serve_child child[BENCH_SERVE_PLACES] = { 0 };
    places at = { 0 };
    cli_progress bar;
    inferscale_status st;
    int code = take_options(a, &o);

    if (code != 0) return code;
    o.cancel = cli_interrupt();
    o.on_progress = cli_progress_at;
    o.progress_ctx = &bar;
    cli_progress_start(&bar, "starting", 0);
    st = start_servers(a, &o, &at, child);
    if (st == INFERSCALE_OK) st = bench_serve_run(&o, &result);
    json_decref(at.info); /* once more, with what the store has become */
    at.info = st == INFERSCALE_OK ? look(&o, o.url, &at.known[0], &at.fa[0]) : NULL;
    cli_progress_end(&bar);
    if (st != INFERSCALE_OK) code = cli_fail_as(a, st);
    else if (cli_flag(a, "--json")) code = print_json(a, &o, &result, &at);
    else print_table(&o, &result, &at);
    if (st == INFERSCALE_OK && code == 0) code = verdict(a, &result);
    code = end_servers(a, child, code);
    json_decref(at.info);
    bench_serve_result_free(&result);
    return code;
}

const cli_verb cli_verb_bench_serve = {
    "bench serve", "", "Measure a server under load", details, options, CLI_JSON, cmd_bench_serve,
};
