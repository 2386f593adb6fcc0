/* demo.c - `inferscale demo`: an invented person's memory, three questions, both executions side by side. */
#include "cli/demo.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/sort.h"
#include "cli/args.h"
#include "exchange/jsonl.h"
#include "cli/out.h"
#include "cli/store.h"
#include "cli/tempstore.h"

typedef struct demo {
    const cli_args *a;
    inferscale *is;
    demo_text text;            /* whom text is asked from */
    inferscale_scope scope;
    inferscale_model_info model;
    char *questions[DEMO_QUESTIONS_MAX];
    size_t n_questions;
    demo_pair pairs[DEMO_QUESTIONS_MAX];
    demo_k ks[DEMO_K_MAX];
    size_t n_ks;
    int64_t k, runs, max_tokens;
    bool both;                 /* the second stage is encoded and asked too */
    bool talk;                 /* people read along; without it only the JSON line */
} demo;

/* ---- Data ---------------------------------------------------------------------------------------------------------------- */

char *demo_data_path(const char *name)
{
    static const char *const places[] = { "../share/inferscale", "../../data", "../../../data" };
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash;
    if (n > 0) {
        exe[n] = '\0';
        slash = strrchr(exe, '/');
        if (slash) *slash = '\0';
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            is_buf b = IS_BUF_INIT;
            char *path;
            is_buf_fmt(&b, "%s/%s/%s", exe, places[i], name);
            path = is_buf_take(&b);
            if (path && is_fs_posix()->exists(is_fs_posix(), path)) return path;
            is_free(path);
        }
    }
    is_fail(INFERSCALE_E_NOTFOUND,
            "%s is neither in share/inferscale beside the program's folder nor in the source tree; give it with --data and "
            "--questions",
            name);
    return NULL;
}

static is_status read_questions(demo *d, const char *path)
{
    FILE *f = fopen(path, "rb");
    jsonl_reader *r = f ? is_malloc(sizeof *r) : NULL;
    is_status st = INFERSCALE_OK;
    bool end = false;
    if (!r) {
        st = is_fail_errno("%s cannot be read", path);
        if (f) fclose(f);
        return st;
    }
    jsonl_reader_init(r, f);
    while (d->n_questions < DEMO_QUESTIONS_MAX && (st = jsonl_next_line(r, &end)) == INFERSCALE_OK && !end) {
        d->questions[d->n_questions] = is_strndup((const char *)r->text.data, r->text.len);
        if (d->questions[d->n_questions]) d->n_questions++;
    }
    if (st == INFERSCALE_OK && d->n_questions == 0)
        st = is_fail(INFERSCALE_E_PARSE, "%s holds no question; write one a line", path);
    jsonl_reader_free(r);
    is_free(r);
    fclose(f);
    return st;
}

/* The first stage was encoded as it is when facts are told. */
static int encode_second(demo *d)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_status st;
    cli_progress p;
    char tokens[32], computed[32], ms[32];
    const double t0 = is_now_ms();

    o.stage = INFERSCALE_STAGE_REFINE;
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    cli_progress_start(&p, "Second stage", 0);
    st = inferscale_encode(d->is, &d->scope, &o);
    cli_progress_end(&p);
    if (st != INFERSCALE_OK) return cli_fail_as(d->a, st);
    cli_count(o.tokens_stored, tokens);
    cli_count(o.tokens_computed, computed);
    cli_ms(is_now_ms() - t0, ms);
    if (d->talk)
        printf("Second stage, which a server encodes when it is idle: %s tokens in %s, by computing "
               "%s.\n\n", tokens, ms, computed);
    return CLI_OK;
}

static int remember(demo *d, const char *path)
{
    cli_import i;
    json_t *encoded = NULL;
    FILE *f = fopen(path, "rb");
    double t0 = is_now_ms(), stored_ms;
    char a[32], b[32], c[32], n[64];
    int rc;
    if (!f) return cli_fail_msg(d->a, "%s cannot be read: %s; check the path", path, strerror(errno));
    cli_import_run(d->is, &d->scope, f, "Remembering", &i);
    fclose(f);
    stored_ms = is_now_ms() - t0;
    if (i.status != INFERSCALE_OK) {
        rc = cli_import_failed(d->a, &i, path);
    } else {
        rc = cli_encode_after(d->a, d->is, &d->scope, 1, &encoded);
        cli_ms(stored_ms, a);
        cli_ms(json_real_value(json_object_get(encoded, "ms")), b);
        cli_count((uint64_t)json_integer_value(json_object_get(encoded, "tokens_stored")), c);
        if (rc == CLI_OK && d->talk)
            printf("Remembered %s in %s; encoded %s tokens in %s, once (first stage).\n\n",
                   cli_n_of(i.facts, "fact", n), a, c, b);
        if (rc == CLI_OK && d->both) rc = encode_second(d);
    }
    json_decref(encoded);
    cli_import_free(&i);
    return rc;
}

/* ---- Measuring ----------------------------------------------------------------------------------------------------------- */

/* stage: 0 = the best rows that there are. */
static inferscale_status ask_stage(demo *d, const char *question, int mode, int stage, int64_t k,
                                   int64_t max_tokens, inferscale_answer **out)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    o.mode = mode;
    o.stage = stage;
    o.k = (uint32_t)k;
    o.max_tokens = (uint32_t)max_tokens;
    o.cancel = cli_interrupt();
    return inferscale_ask(mode == INFERSCALE_MODE_TEXT ? d->text.is : d->is, &d->scope, question, &o, out);
}

static inferscale_status ask(demo *d, const char *question, int mode, int64_t k, int64_t max_tokens,
                             inferscale_answer **out)
{
    return ask_stage(d, question, mode, 0, k, max_tokens, out);
}

/* Loads models, the cached header and the segments' pages, so that neither arm pays for being first. */
static inferscale_status warm_up(demo *d, const char *question, int64_t k)
{
    static const int modes[] = { INFERSCALE_MODE_TEXT, INFERSCALE_MODE_KV };
    for (size_t i = 0; i < 2; i++) {
        inferscale_answer *answer = NULL;
        inferscale_status st = ask(d, question, modes[i], k, 1, &answer);
        inferscale_answer_free(answer);
        if (st != INFERSCALE_OK) return st;
    }
    return INFERSCALE_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inferscale_status measure_k(demo *d, demo_k *row, cli_progress *p)
{
    enum { RUNS_MAX = 99 };
    double ms[2][RUNS_MAX];
    const char *question = d->questions[0];
    inferscale_status st = warm_up(d, question, row->k);
    for (int64_t run = 0; run < d->runs && st == INFERSCALE_OK; run++) {
        for (int arm = 0; arm < 2 && st == INFERSCALE_OK; arm++) {
            inferscale_answer *answer = NULL;
            st = ask(d, question, arm == 0 ? INFERSCALE_MODE_KV : INFERSCALE_MODE_TEXT, row->k, 1, &answer);
            if (st == INFERSCALE_OK) {
                ms[arm][run] = answer->ttft_ms;
                row->facts = (uint32_t)answer->n_facts;
                row->fact_tokens = 0;
                for (size_t i = 0; i < answer->n_facts; i++) row->fact_tokens += answer->facts[i].tokens;
            }
            inferscale_answer_free(answer);
        }
        cli_progress_at(p, p->done + 1, p->total, NULL);
    }
    if (st != INFERSCALE_OK) return st;
    for (int arm = 0; arm < 2; arm++) is_sort(ms[arm], (size_t)d->runs, sizeof **ms, by_value);
    row->kv_ms = ms[0][d->runs / 2];
    row->text_ms = ms[1][d->runs / 2];
    return INFERSCALE_OK;
}

/* ---- The whole ----------------------------------------------------------------------------------------------------------- */

static inferscale_status ask_both(demo *d, const char *question, int stage, inferscale_answer **kv,
                                  inferscale_answer **text)
{
    inferscale_status st =
        ask_stage(d, question, INFERSCALE_MODE_KV, stage, d->k, d->max_tokens, kv);

    if (st != INFERSCALE_OK) return st;
    return ask_stage(d, question, INFERSCALE_MODE_TEXT, stage, d->k, d->max_tokens, text);
}

static inferscale_status questions(demo *d)
{
    inferscale_status st = warm_up(d, "Who is it about?", d->k);
    for (size_t i = 0; i < d->n_questions && st == INFERSCALE_OK; i++) {
        demo_pair *p = &d->pairs[i];
        st = warm_up(d, d->questions[i], d->k);
        if (st == INFERSCALE_OK)
            st = ask_both(d, d->questions[i], d->both ? INFERSCALE_STAGE_FIRST : 0, &p->kv,
                          &p->text);
        if (st == INFERSCALE_OK && d->both)
            st = ask_both(d, d->questions[i], 0, &p->second, &p->second_text);
        if (st == INFERSCALE_OK && d->talk) demo_print_pair(d->is, &d->scope, i + 1, d->questions[i], p);
    }
    return st;
}

static void announce_costs(const demo *d)
{
    printf("Measuring what k facts cost, k =");
    for (size_t i = 0; i < d->n_ks; i++) printf("%s %lld", i ? "," : "", (long long)d->ks[i].k);
    printf(": %lld runs of each, both ways. This takes a while.\n\n", (long long)d->runs);
    fflush(stdout);
}

static inferscale_status costs(demo *d)
{
    inferscale_status st = INFERSCALE_OK;
    cli_progress p;
    if (d->talk) announce_costs(d);
    cli_progress_start(&p, "Measuring", d->n_ks * (uint64_t)d->runs);
    for (size_t i = 0; i < d->n_ks && st == INFERSCALE_OK; i++) st = measure_k(d, &d->ks[i], &p);
    cli_progress_end(&p);
    if (st == INFERSCALE_OK && d->talk) demo_print_k(d->ks, d->n_ks, d->runs);
    return st;
}

/* Which flash attention the columns ran with. */
static const char *settings_of(const demo *d)
{
    const demo_text *t = &d->text;

    if (!t->tried) return "Both ran with the same settings.";
    if (t->fa == t->kv_fa) return t->fa ? "Both ran with flash attention, which is faster for each of them."
                                        : "Both ran without flash attention, which is faster for each of them.";
    return t->fa ? "Each ran with what is faster for it: text with flash attention, injected memory without."
                 : "Each ran with what is faster for it: injected memory with flash attention, text without.";
}

static void print_method(const demo *d)
{
    char line[1200], shown[192];
    snprintf(line, sizeof line,
             "Both columns see the same tokens in the same order; only who computed the facts' keys and values differs. TTFT "
             "is from the question "
             "to the first token, embedding it and searching included. The header is cached in both, the facts' keys and "
             "values are in memory, and "
             "an untimed run came first. %s Injected facts did not see all of each other when they were "
             "encoded, so that an answer may differ from text's; which ones are encoded together is "
             "drawn for each store. %s, %s weights, %u thread%s.",
             settings_of(d), cli_model_shown(&d->model, shown), d->model.weights, d->model.n_threads,
             d->model.n_threads == 1 ? "" : "s");
    fputs(cli_on(CLI_DIM), stdout);
    cli_put_wrapped(stdout, line, cli_columns() ? cli_columns() : 80, 0);
    fputs(cli_off(), stdout);
    putchar('\n');
}

static int print_json(const demo *d)
{
    json_t *qs = json_array(), *ks = json_array();
    for (size_t i = 0; i < d->n_questions; i++)
        json_array_append_new(qs, json_pack("{s:o,s:o,s:o,s:o,s:o}", "question",
                                            cli_json_text(d->questions[i]), "kv",
                                            demo_answer_json(d->pairs[i].kv), "second",
                                            demo_answer_json(d->pairs[i].second), "text",
                                            demo_answer_json(d->pairs[i].text), "second_text",
                                            demo_answer_json(d->pairs[i].second_text)));
    for (size_t i = 0; i < d->n_ks; i++)
        json_array_append_new(ks, json_pack("{s:I,s:I,s:I,s:f,s:f,s:f}", "k", (json_int_t)d->ks[i].k, "facts",
                                            (json_int_t)d->ks[i].facts, "fact_tokens", (json_int_t)d->ks[i].fact_tokens,
                                            "kv_ms", d->ks[i].kv_ms, "text_ms", d->ks[i].text_ms, "ratio",
                                            d->ks[i].kv_ms > 0 ? d->ks[i].text_ms / d->ks[i].kv_ms : 0.0));
    return cli_print_json(json_pack("{s:o,s:o,s:b,s:b,s:o,s:o}", "model", cli_json_text(d->model.name),
                                    "weights", cli_json_text(d->model.weights),
                                    "kv_flash_attention", d->text.kv_fa, "text_flash_attention",
                                    d->text.fa, "questions", qs, "k", ks));
}

/* o, home: of the store. */
static int show(demo *d, const char *data, const inferscale_options *o, const char *home)
{
    inferscale_status st = inferscale_model(d->is, &d->model);
    int rc;
    if (st != INFERSCALE_OK) return cli_fail_as(d->a, st);
    if (d->talk)
        printf("%sInferScale demo%s: the memory of Nora, an invented person.\n\n", cli_on(CLI_BOLD), cli_off());
    fflush(stdout);
    rc = remember(d, data);
    if (rc != CLI_OK) return rc;
    d->text = (demo_text){ .scope = &d->scope, .question = d->questions[0], .k = d->k };
    st = demo_text_open(d->is, o, home, &d->text);
    if (st == INFERSCALE_OK) st = questions(d);
    if (st == INFERSCALE_OK) st = costs(d);
    if (st != INFERSCALE_OK) return cli_fail_as(d->a, st);
    if (d->talk) print_method(d);
    if (d->talk) demo_print_next();
    return print_json(d);
}

/* A store of its own, removed at the end. */
static int with_store(demo *d, const char *data)
{
    cli_tempstore store;
    inferscale_options o;
    inferscale_status st;
    int rc;
    cli_options(d->a, &o);
    cli_engine(d->a, &o);
    o.embedder = cli_str(d->a, "--embedder", NULL);
    o.embedder_key = cli_str(d->a, "--embedder-key", NULL);
    if (!cli_embedder_is_there(&o)) return cli_fail_as(d->a, INFERSCALE_E_NOTFOUND);
    st = cli_tempstore_open(&o, &store);
    if (st != INFERSCALE_OK) return cli_fail_as(d->a, st);
    d->is = store.is;
    rc = show(d, data, &o, store.home);
    demo_text_close(&d->text);
    for (size_t i = 0; i < d->n_questions; i++) {
        inferscale_answer_free(d->pairs[i].kv);
        inferscale_answer_free(d->pairs[i].second);
        inferscale_answer_free(d->pairs[i].second_text);
        inferscale_answer_free(d->pairs[i].text);
    }
    cli_tempstore_close(&store);
    return rc;
}

static int cmd_demo(const cli_args *a)
{
    demo d = { .a = a, .scope = { .user = "nora" }, .talk = !cli_wants_json(a) };
    int64_t ks[DEMO_K_MAX];
    char *data, *asked;
    is_status st = INFERSCALE_OK;
    int rc;
    if (cli_n(a)) return cli_usage(a, "takes no arguments");
    d.both = strcmp(cli_str(a, "--stage", "first"), "all") == 0;
    if (!d.both && strcmp(cli_str(a, "--stage", "first"), "first") != 0)
        return cli_usage(a, "--stage is first or all, not \"%.40s\"", cli_str(a, "--stage", ""));
    d.k = cli_int(a, "-k", 10, 1, 1000);
    d.runs = cli_int(a, "--runs", 5, 1, 99);
    d.max_tokens = cli_int(a, "--max-tokens", 48, 1, 4096);
    d.n_ks = cli_int_list(a, "--costs", "5,20,50", ks, DEMO_K_MAX);
    for (size_t i = 0; i < d.n_ks; i++) {
        if (ks[i] < 1 || ks[i] > 1000) return cli_usage(a, "--costs takes numbers of facts from 1 to 1000");
        d.ks[i].k = ks[i];
    }
    cli_interrupt();
    data = cli_str(a, "--data", NULL) ? is_strdup(cli_str(a, "--data", NULL)) : demo_data_path("demo.jsonl");
    asked = !data                             ? NULL
            : cli_str(a, "--questions", NULL) ? is_strdup(cli_str(a, "--questions", NULL))
                                              : demo_data_path("demo-questions.txt");
    if (!data || !asked) st = INFERSCALE_E_NOTFOUND;
    if (st == INFERSCALE_OK) st = read_questions(&d, asked);
    rc = st == INFERSCALE_OK ? with_store(&d, data) : cli_fail_as(a, st);
    for (size_t i = 0; i < d.n_questions; i++) is_free(d.questions[i]);
    is_free(data);
    is_free(asked);
    return rc;
}

static const cli_option options[] = {
    { "-k", "N", "facts for each question (default: 10)" },
    { "--costs", "LIST", "numbers of facts in the cost table (default: 5,20,50)" },
    { "--runs", "N", "runs behind each median (default: 5)" },
    { "--max-tokens", "N", "longest answer in tokens (default: 48)" },
    { "--stage", "STAGE", "first (default): answer from what is there at once; all: encode the "
                          "second stage as well, a minute or more, and answer from that too" },
    { "--data", "FILE", "other facts, as JSON Lines" },
    { "--questions", "FILE", "other questions, one a line" },
    CLI_ENGINE_ROWS,
    { "--embedder", "WHAT", CLI_EMBEDDER_HELP },
    { "--embedder-key", "KEY", "API key of an HTTP embedder" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_demo = {
    "demo", "", "See memory answered without prefilling it",
    "Remembers an invented person's facts in a store of its own, asks three questions both ways, and measures what k facts "
    "cost. Each answer says from which stage's rows it is, and whether it differs from text's. The\n"
    "last line is one JSON object; with --json it is the only one.\n\n"
    "Examples:\n  inferscale demo\n  inferscale demo --stage all\n"
    "  inferscale demo --costs 10,50 --runs 11\n",
    options, CLI_MODEL | CLI_JSON, cmd_demo,
};
