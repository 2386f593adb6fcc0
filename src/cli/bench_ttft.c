/* bench_ttft.c - the verb `bench ttft`: time to first token with the memory as text, injected, and as an exact prefix. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "exchange/jsonl.h"
#include "eval/synth.h"
#include "eval/ttft.h"
#include "cli/bench_ttft_remote.h"

enum { FACTS_MIN = 100 };

static const cli_option options[] = {
    { "--k", "N[,N]", "facts a question (default: 0,5,10,20,50,100)" },
    { "--runs", "N", "rounds; medians are reported (default: 11)" },
    { "--data", "FILE", "facts to remember, as JSON Lines (default: invented ones)" },
    { "--question", "TEXT", "the question (default: an invented one; 28 tokens with what closes the prompt)" },
    { "--seed", "N", "of the invented facts and the order of the arms (default: 1)" },
    CLI_ENGINE_ROWS,
    CLI_UPSTREAM_HOME_ROW,
    { "--embedder", "WHAT", CLI_EMBEDDER_HELP },
    { "--remote", NULL, "the arms of engine vllm, for any engine that computes elsewhere" },
    { NULL, NULL, NULL },
};

static const char details[] =
    "Measures the time from a question to the first token of its answer, search included, with K facts in four ways: text,\n"
    "the facts computed as text; plain, the prompt of a usual memory stack (system text, facts as plain lines, the best first;\n"
    "what it shares with another user's prompt is cached); injected, their stored keys and values injected; floor, the same\n"
    "tokens as an exact prefix hit, which nothing that serves these facts can beat. They are interleaved in one process, on\n"
    "the same model file, with the prompt's header cached in all of them. Text has its best settings: at each K it is tried\n"
    "with flash attention off and on and with decodes of 512, 256 and 128 tokens. Plain has the same settings; injected and\n"
    "floor share the flash-attention setting that is better for injection. Ratios have 95% intervals, rounds resampled.\n"
    "\n"
    "Facts are encoded under --policy header unless told otherwise: the policy has no part in these times.\n"
    "\n"
    "Rows come for three states of the vault: ram, page_cache (RAM tier emptied before every round), cold (the files dropped\n"
    "from the operating system's cache too, as far as it does so).\n"
    "\n"
    "With --engine vllm the arms are text, plain, injected, repeat (the same prompt again: what vLLM itself keeps) and none (no memory).\n"
    "\n"
    "Examples:\n"
    "  inferscale bench ttft --engine vllm --upstream http://127.0.0.1:8000 --k 5,20,50 --runs 21\n"
    "  inferscale bench ttft --k 0,5,10,20,50,100 --threads 1 --json";

/* ---- What is remembered -------------------------------------------------------------------------------------------------- */

typedef struct memory {
    char **texts;
    int64_t *times;
    size_t n, cap;
    char question[SYNTH_QUESTION];
} memory;

static void memory_free(memory *m)
{
    for (size_t i = 0; i < m->n; i++) is_free(m->texts[i]);
    is_free(m->texts);
    is_free(m->times);
}

static is_status add(memory *m, const char *text, int64_t time)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 256;
        char **texts = is_realloc(m->texts, cap * sizeof *texts);
        int64_t *times;

        if (texts) m->texts = texts;
        times = is_realloc(m->times, cap * sizeof *times);
        if (times) m->times = times;
        if (!texts || !times) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", cap);
        m->cap = cap;
    }
    m->texts[m->n] = is_strdup(text);
    if (!m->texts[m->n]) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", m->n);
    m->times[m->n++] = time;
    return INFERSCALE_OK;
}

static is_status read_facts(const char *path, memory *m)
{
    FILE *f = fopen(path, "rb");
    jsonl_reader *r = f ? is_calloc(1, sizeof *r) : NULL;
    is_status st = INFERSCALE_OK;
    bool end = false;

    if (!f) return is_fail_errno("cannot read %s", path);
    if (!r) st = is_fail(INFERSCALE_E_NOMEM, "out of memory while reading %s", path);
    else jsonl_reader_init(r, f);
    while (st == INFERSCALE_OK && !end) {
        jsonl_record record = { 0 };

        st = jsonl_next(r, &record, &end);
        if (st == INFERSCALE_OK && !end && record.kind == JSONL_FACT) st = add(m, record.text, record.event_time);
        if (st == INFERSCALE_OK && !end) jsonl_record_free(&record);
    }
    if (r) jsonl_reader_free(r);
    is_free(r);
    fclose(f);
    return st;
}

static is_status invent(uint64_t seed, size_t n, memory *m)
{
    m->texts = is_calloc(n, sizeof *m->texts);
    m->times = is_calloc(n, sizeof *m->times);
    if (!m->texts || !m->times) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", n);
    IS_TRY(synth_facts(seed, n, m->texts, m->times));
    m->n = m->cap = n;
    return INFERSCALE_OK;
}

/* ---- Output -------------------------------------------------------------------------------------------------------------- */

static void put_number(json_t *o, const char *key, double x)
{
    json_object_set_new(o, key, isfinite(x) ? json_real(x) : json_null());
}

static void put_ratio(json_t *o, const char *key, const stats_ratio *r)
{
    char name[48];

    put_number(o, key, r->is);
    snprintf(name, sizeof name, "%s_95", key);
    json_object_set_new(o, name, json_pack("[f,f]", r->in.lo, r->in.hi));
}

/* How text ran, and the milliseconds that each setting took when it was tried; null = not tried. */
static void put_settings(json_t *o, const ttft_row *r)
{
    json_t *batches = json_array(), *trial = json_object();

    for (int i = 0; i < TTFT_BATCHES; i++)
        json_array_append_new(batches, json_integer(ttft_batches[i]));
    json_object_set_new(trial, "text_batches", batches);
    for (int fa = 0; fa < 2; fa++) {
        json_t *list = json_array();

        for (int i = 0; i < TTFT_BATCHES; i++) {
            const double ms = r->text_trial_ms[fa][i];

            json_array_append_new(list, ms > 0 ? json_real(ms) : json_null());
        }
        json_object_set_new(trial, fa ? "text_flash_attention" : "text_no_flash_attention", list);
    }
    json_object_set_new(trial, "injected",
                        json_pack("[f,f]", r->injected_fa_ms[0], r->injected_fa_ms[1]));
    json_object_set_new(o, "text_flash_attention", json_boolean(r->text_fa));
    json_object_set_new(o, "text_batch", json_integer(r->text_batch));
    json_object_set_new(o, "injected_flash_attention", json_boolean(r->injected_fa));
    json_object_set_new(o, "trial_ms", trial);
}

static json_t *row_json(const ttft_row *r)
{
    json_t *j = json_pack("{s:s,s:i,s:i,s:i,s:i}", "vault", r->vault, "k", (int)r->k, "fact_tokens", (int)r->fact_tokens,
                          "question_tokens", (int)r->question_tokens, "n", (int)r->n);

    put_number(j, "text_ms", r->text_ms);
    put_number(j, "plain_ms", r->plain_ms);
    put_number(j, "injected_ms", r->injected_ms);
    put_number(j, "floor_ms", r->floor_ms);
    put_ratio(j, "text_over_injected", &r->text_over_injected);
    put_ratio(j, "plain_over_injected", &r->plain_over_injected);
    json_object_set_new(j, "text_computed", json_integer(r->text_computed));
    json_object_set_new(j, "plain_tokens", json_integer(r->plain_tokens));
    json_object_set_new(j, "plain_computed", json_integer(r->plain_computed));
    put_number(j, "injected_over_floor", r->injected_ms / r->floor_ms);
    put_number(j, "embed_ms", r->embed_ms);
    put_number(j, "recall_ms", r->recall_ms);
    put_number(j, "plan_ms", r->plan_ms);
    put_number(j, "compose_ms", r->compose_ms);
    put_number(j, "inject_ms", r->inject_ms);
    put_number(j, "question_ms", r->question_ms);
    put_number(j, "text_lo", r->text_lo);
    put_number(j, "text_hi", r->text_hi);
    put_number(j, "plain_lo", r->plain_lo);
    put_number(j, "plain_hi", r->plain_hi);
    put_number(j, "injected_lo", r->injected_lo);
    put_number(j, "injected_hi", r->injected_hi);
    put_number(j, "floor_lo", r->floor_lo);
    put_number(j, "floor_hi", r->floor_hi);
    put_settings(j, r);
    return j;
}

json_t *bench_ttft_report(const inferscale_model_info *info, const ttft_options *o)
{
    json_t *report = cli_report(info, o->seed);

    json_object_set_new(report, "runs", json_integer(o->runs));
    json_object_set_new(report, "facts", json_integer((json_int_t)o->n_facts));
    json_object_set_new(report, "kv_bytes_per_token", json_integer(info->kv_bytes_per_token));
    return report;
}

static int print_json(const inferscale_model_info *info, const ttft_options *o, const ttft_row *rows, size_t n)
{
    json_t *report = bench_ttft_report(info, o), *list = json_object_get(report, "rows");

    json_object_set_new(report, "threads", json_integer(info->n_threads));
    for (size_t i = 0; i < n; i++) json_array_append_new(list, row_json(&rows[i]));
    return cli_print_json(report);
}

static void print_table(const inferscale_model_info *info, const ttft_options *o, const ttft_row *rows, size_t n)
{
    char shown[192];
    printf("%s %s, %u thread%s, medians of %u interleaved rounds; milliseconds from question to first token\n\n", cli_model_shown(info, shown),
           info->weights, info->n_threads, info->n_threads == 1 ? "" : "s", o->runs);
    printf("%-10s %4s %7s %9s %9s %9s %9s   %-22s %-22s %7s   %s\n", "vault", "k", "tokens", "text",
           "plain", "injected", "floor", "text/injected", "plain/injected", "in/flr", "text ran with");
    for (size_t i = 0; i < n; i++) {
        const ttft_row *r = &rows[i];
        const stats_ratio *a = &r->text_over_injected, *b = &r->plain_over_injected;

        printf("%-10s %4u %7u %9.1f %9.1f %9.1f %9.1f   %5.1f [%5.1f, %5.1f]   %5.1f [%5.1f, %5.1f]   "
               "%6.2fx   flash attention %s, %u a decode\n",
               r->vault, r->k, r->fact_tokens, r->text_ms, r->plain_ms, r->injected_ms, r->floor_ms,
               a->is, a->in.lo, a->in.hi, b->is, b->in.lo, b->in.hi, r->injected_ms / r->floor_ms,
               r->text_fa ? "on" : "off", r->text_batch);
    }
    printf("\n%-10s %4s   %6s %6s %6s %7s %7s %8s\n", "injected:", "k", "embed", "recall", "plan",
           "compose", "inject", "question");
    for (size_t i = 0; i < n; i++)
        printf("%-10s %4u   %6.1f %6.2f %6.2f %7.2f %7.2f %8.1f\n", rows[i].vault, rows[i].k,
               rows[i].embed_ms, rows[i].recall_ms, rows[i].plan_ms, rows[i].compose_ms,
               rows[i].inject_ms, rows[i].question_ms);
}

/* ---- The verb ------------------------------------------------------------------------------------------------------------ */

/* The mock too can stand for an engine that computes elsewhere; tests say so. */
static bool is_remote(const cli_args *a)
{
    return strcmp(cli_str(a, "--engine", ""), "vllm") == 0 || cli_flag(a, "--remote");
}

static int take_options(const cli_args *a, ttft_options *o)
{
    int64_t sizes[TTFT_SIZES];

    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    o->n_k = cli_int_list(a, "--k", is_remote(a) ? "5,20,50" : "0,5,10,20,50,100", sizes, TTFT_SIZES);
    for (size_t i = 0; i < o->n_k; i++) {
        if (sizes[i] < is_remote(a) || sizes[i] > 1000) return cli_usage(a, "--k takes counts from %d to 1000", is_remote(a));
        o->k[i] = (uint32_t)sizes[i];
    }
    o->runs = (uint32_t)cli_int(a, "--runs", 11, 1, 10000);
    o->seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX);
    cli_options(a, &o->store);
    cli_engine(a, &o->store);
    o->store.embedder = cli_str(a, "--embedder", NULL);
    if (!o->store.policy) o->store.policy = "header"; /* what a fact was encoded after costs nothing when it is served */
    return 0;
}

static is_status remember(const cli_args *a, ttft_options *o, memory *m)
{
    const char *path = cli_str(a, "--data", NULL);
    size_t n = FACTS_MIN;

    for (size_t i = 0; i < o->n_k; i++)
        if (2 * (size_t)o->k[i] > n) n = 2 * (size_t)o->k[i];
    IS_TRY(path ? read_facts(path, m) : invent(o->seed, n, m));
    synth_question(o->seed, m->question);
    o->texts = (const char *const *)m->texts;
    o->times = m->times;
    o->n_facts = m->n;
    o->question = cli_str(a, "--question", m->question);
    return INFERSCALE_OK;
}

int cmd_bench_ttft(const cli_args *a)
{
    const bool remote = is_remote(a);
    ttft_row rows[TTFT_SIZES * TTFT_VAULTS];
    ttft_remote_row remote_rows[TTFT_SIZES];
    inferscale_model_info info;
    ttft_options o = { 0 };
    cli_progress bar;
    memory m = { 0 };
    size_t n = 0;
    is_status st;
    int code = take_options(a, &o);

    if (code != 0) return code;
    o.cancel = cli_interrupt();
    o.on_progress = cli_progress_at;
    o.progress_ctx = &bar;
    cli_progress_start(&bar, "measuring", 0);
    st = remember(a, &o, &m);
    if (st == INFERSCALE_OK) st = remote ? ttft_remote_run(&o, remote_rows, &n, &info) : ttft_run(&o, rows, &n, &info);
    cli_progress_end(&bar);
    if (st != INFERSCALE_OK) code = cli_fail_as(a, st);
    else if (remote) code = bench_ttft_remote_show(a, &info, &o, remote_rows, n);
    else if (cli_flag(a, "--json")) code = print_json(&info, &o, rows, n);
    else print_table(&info, &o, rows, n);
    memory_free(&m);
    return code;
}

const cli_verb cli_verb_bench_ttft = {
    "bench ttft", "", "Measure the time to first token", details, options, CLI_MODEL | CLI_JSON, cmd_bench_ttft,
};
