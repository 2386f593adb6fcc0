/* eval_fidelity.c - the verb `eval fidelity`: how far injected memory moves the answer, in units of a harmless reordering. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "eval/fidelity.h"

enum { CONVERSATIONS = 64, LINE_EVERY_MS = 30000, HASH_SHOWN = 8 /* bytes: 64 bits tell questions apart */ };

static const cli_option options[] = {
    { "--data", "FILE", "a LoCoMo file as published (required)" },
    { "--conversation", "ID[,ID]", "conversations (default: the file's first; \"all\")" },
    { "--k", "N", "facts retrieved a question (default: 10)" },
    { "--n", "N", "questions of categories 1-4, drawn with the seed (default: 104)" },
    { "--tokens", "N", "answer tokens compared (default: 16)" },
    { "--repair", "M[,M]", "also with the M best facts computed instead of injected (default: 0)" },
    { "--method", "METHOD", "retrieval, shared by all arms: lexical (default), fused or dense" },
    { "--orders", "N", "permutations of each reordering yardstick (default: 3)" },
    { "--floor-batch", "N", "decode size of the numerical floor's arm (default: 64)" },
    { "--floor-every", "N", "measure the numerical floor in every Nth question only (default: 1)" },
    { "--skip", "ARM[,ARM]", "leave out arms C, S or S_free (an engine that gives log-probabilities slowly)" },
    { "--generic", NULL, "also behind a client's system text: rows of our header (generic) and of its own (matching)" },
    { "--client-system", "TEXT", "the client's system text (implies --generic; default: two neutral sentences)" },
    { "--gold", NULL, "also measure the gold facts alone (arm D)" },
    { "--no-nll", NULL, "leave out the gold answer's likelihood (a third faster)" },
    { "--seed", "N", "of questions, orders and resampling (default: 1)" },
    CLI_ENGINE_ROWS,
    CLI_UPSTREAM_HOME_ROW,
    { "--embedder", "WHAT", "for --method fused or dense" },
    { NULL, NULL, NULL },
};

/* As long as those that clients send, and about nothing in particular. */
static const char neutral_system[] = "You are a friendly assistant inside a mobile application. Answer the user's questions briefly and "
                                     "accurately, and say so when you do not know something.";

static const char details[] =
    "Retrieves K facts for each question and runs the same tokens in several ways: A, all computed together as text, which is\n"
    "the reference; B, injected, once for every --policy (a list, e.g. alone,header,facts:5) and --repair; C, without memory;\n"
    "N, A in other batches, the numerical floor; S, A with its facts reordered but the best one still last, and S_free with\n"
    "the best one anywhere. F1:POLICY takes the first fact of the prompt from its rows behind the bare header.\n"
    "\n"
    "Every arm is led along A's own greedy answer. Its distance is the mean KL divergence from A of the next-token\n"
    "distributions; the order ratio divides it by that of a reordering (order_ratio by S_free's, order_ratio_s by S's). A\n"
    "reordering is a change nobody would call an error: below 1, injecting moves the answer less than that. Ratios are void\n"
    "unless the yardstick is 5 times the floor. Intervals are 95%, by paired bootstrap over questions, or conversations if\n"
    "there are several.\n"
    "\n"
    "--generic asks each prompt behind a client's system text as well. generic injects rows that were encoded behind our header, as\n"
    "the server does then (`header: generic`); matching injects rows encoded behind the client's. Both, and C', N', S', S_free'\n"
    "beside them, are measured against the text twin of that prompt.\n"
    "\n"
    "Ctrl-C ends it with the questions done so far.\n"
    "\n"
    "Examples:\n"
    "  inferscale eval fidelity --data locomo10.json --conversation conv-26 --policy alone,header,facts:5";

/* ---- Arguments ----------------------------------------------------------------------------------------------------------- */

/* Splits "a,b,c" in place. */
static size_t split(char *list, char **out, size_t max)
{
    size_t n = 0;

    for (char *save = NULL, *s = strtok_r(list, ",", &save); s && n < max; s = strtok_r(NULL, ",", &save)) out[n++] = s;
    return n;
}

static int take_policies(const cli_args *a, fidelity_options *o)
{
    char *list = is_strdup(cli_str(a, "--policy", IS_DEFAULT_POLICY)), *names[FIDELITY_POLICIES + 1];
    size_t n = list ? split(list, names, FIDELITY_POLICIES + 1) : 0;
    int code = 0;

    if (n < 1 || n > FIDELITY_POLICIES)
        code = cli_usage(a, "--policy takes 1 to %d policies with commas between", (int)FIDELITY_POLICIES);
    for (size_t i = 0; i < n && code == 0; i++)
        if (fidelity_variant_parse(names[i], &o->policies[i]) != INFERSCALE_OK) code = cli_usage(a, "%s", is_error());
    o->n_policies = n;
    is_free(list);
    return code;
}

static int take_skips(const cli_args *a, fidelity_options *o)
{
    static const struct { const char *name; unsigned bit; } arms[] = { { "C", FIDELITY_SKIP_C }, { "S", FIDELITY_SKIP_S },
                                                                       { "S_free", FIDELITY_SKIP_S_FREE } };
    char *list = is_strdup(cli_str(a, "--skip", "")), *names[4];
    size_t n = list ? split(list, names, 4) : 0;
    int code = 0;

    for (size_t i = 0; i < n && code == 0; i++) {
        const unsigned before = o->skip;

        for (size_t k = 0; k < sizeof arms / sizeof *arms; k++)
            if (strcmp(names[i], arms[k].name) == 0) o->skip |= arms[k].bit;
        if (o->skip == before) code = cli_usage(a, "--skip takes C, S and S_free, each once, not \"%.40s\"", names[i]);
    }
    is_free(list);
    return code;
}

static int take_options(const cli_args *a, fidelity_options *o)
{
    static const char *const methods[] = { "fused", "lexical", "dense" };
    const char *method = cli_str(a, "--method", "lexical");
    int64_t repairs[FIDELITY_REPAIRS];
    int code;

    o->method = -1;
    for (int i = 0; i < 3; i++)
        if (strcmp(method, methods[i]) == 0) o->method = i; /* in the order of INFERSCALE_FUSED ... */
    if (o->method < 0) return cli_usage(a, "--method is lexical, fused or dense, not \"%.40s\"", method);
    o->k = (uint32_t)cli_int(a, "--k", 10, 1, 1000);
    o->n_questions = (size_t)cli_int(a, "--n", 104, 1, 1000000);
    o->n_tokens = (uint32_t)cli_int(a, "--tokens", 16, 1, 1024);
    o->n_orders = (uint32_t)cli_int(a, "--orders", 3, 1, 100);
    o->floor_batch = (uint32_t)cli_int(a, "--floor-batch", 64, 1, 1 << 20);
    o->floor_every = (uint32_t)cli_int(a, "--floor-every", 1, 1, 1000000);
    o->seed = (uint64_t)cli_int(a, "--seed", 1, 0, INT64_MAX);
    o->gold = cli_flag(a, "--gold");
    o->client_system = cli_str(a, "--client-system", cli_flag(a, "--generic") ? neutral_system : NULL);
    o->no_nll = cli_flag(a, "--no-nll");
    o->n_repairs = cli_int_list(a, "--repair", "0", repairs, FIDELITY_REPAIRS);
    for (size_t i = 0; i < o->n_repairs; i++) {
        if (repairs[i] < 0 || repairs[i] > o->k) return cli_usage(a, "--repair takes counts from 0 to --k (%u)", o->k);
        o->repairs[i] = (uint32_t)repairs[i];
    }
    code = take_skips(a, o);
    return code == 0 ? take_policies(a, o) : code;
}

static int take_conversations(const cli_args *a, const locomo *data, const locomo_conversation **out, size_t *n)
{
    const char *wanted = cli_str(a, "--conversation", NULL);
    char *list, *ids[CONVERSATIONS];
    size_t n_ids;
    int code = 0;

    *n = 0;
    if (data->n == 0) return cli_fail_msg(a, "there are no conversations in the file; give a LoCoMo file as published");
    if (wanted == NULL) out[(*n)++] = &data->conversations[0];
    for (size_t i = 0; wanted && strcmp(wanted, "all") == 0 && i < data->n && i < CONVERSATIONS; i++)
        out[(*n)++] = &data->conversations[i];
    if (*n > 0) return 0;
    list = is_strdup(wanted);
    n_ids = list ? split(list, ids, CONVERSATIONS) : 0;
    for (size_t i = 0; i < n_ids && code == 0; i++) {
        out[*n] = locomo_find(data, ids[i]);
        if (out[*n] != NULL) ++*n;
        else code = cli_fail_msg(a, "there is no conversation \"%.60s\"; the first is %s", ids[i], data->conversations[0].id);
    }
    is_free(list);
    if (code == 0 && *n == 0) code = cli_usage(a, "--conversation takes ids with commas between, or \"all\"");
    return code;
}

/* ---- Progress ------------------------------------------------------------------------------------------------------------ */

typedef struct watch {
    cli_progress bar;
    double line_ms;
} watch;

/* A bar on a terminal; elsewhere a line now and then, so that a log shows the results so far. */
static int on_progress(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    watch *w = ctx;

    if (!w->bar.tty && is_now_ms() - w->line_ms >= LINE_EVERY_MS) {
        w->line_ms = is_now_ms();
        fprintf(stderr, "%llu of %llu: %s\n", (unsigned long long)done, (unsigned long long)total, what);
    }
    return cli_progress_at(&w->bar, done, total, what);
}

/* ---- Output -------------------------------------------------------------------------------------------------------------- */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void put_interval(json_t *o, const char *lo, const char *hi, stats_interval i)
{
    json_object_set_new(o, lo, number(i.lo));
    json_object_set_new(o, hi, number(i.hi));
}

/* Each question's number, in the order of the report's "questions". */
static json_t *each_json(const fidelity_row *r, const fidelity *f)
{
    json_t *list = json_array();

    for (size_t i = 0; i < f->n_questions; i++) json_array_append_new(list, number(r->each[i]));
    return list;
}

/* Which questions they were, without a word of them: what `eval compare` pairs by. */
static json_t *questions_json(const fidelity_options *o, const fidelity *f)
{
    json_t *list = json_array();
    char prompts[IS_HASH_HEX], answer[IS_HASH_HEX];

    for (size_t i = 0; i < f->n_questions; i++) {
        const fidelity_question *q = &f->questions[i];

        is_hex(q->prompts, HASH_SHOWN, prompts);
        is_hex(q->answer, HASH_SHOWN, answer);
        json_array_append_new(list, json_pack("{s:o,s:I,s:s,s:s,s:I}", "conversation", cli_json_text(o->conversations[f->group[i]]->id), "index",
                                              (json_int_t)q->index, "prompts", prompts, "answer", answer, "answer_tokens",
                                              (json_int_t)q->n_answer));
    }
    return list;
}

static json_t *row_json(const fidelity_row *r, const fidelity_options *o, const fidelity *f)
{
    json_t *j = json_object();

    json_object_set_new(j, "arm", json_string(r->arm));
    json_object_set_new(j, "system", json_string(r->client ? "client" : "own"));
    json_object_set_new(j, "policy", r->policy ? json_string(r->policy) : json_null());
    json_object_set_new(j, "repair", json_integer(r->repair));
    json_object_set_new(j, "k", json_integer(o->k));
    json_object_set_new(j, "n", json_integer((json_int_t)r->n));
    json_object_set_new(j, "kl_mean", number(r->kl_mean));
    put_interval(j, "kl_lo", "kl_hi", r->kl);
    json_object_set_new(j, "kl_median", number(r->kl_median));
    json_object_set_new(j, "kl_p90", number(r->kl_p90));
    json_object_set_new(j, "kl_first", number(r->kl_first));
    json_object_set_new(j, "yardstick", json_string("S_free"));
    json_object_set_new(j, "order_ratio", number(r->ratio_free));
    put_interval(j, "ratio_lo", "ratio_hi", r->ratio_free_i);
    json_object_set_new(j, "order_ratio_s", number(r->ratio_last));
    put_interval(j, "ratio_s_lo", "ratio_s_hi", r->ratio_last_i);
    json_object_set_new(j, "void", json_boolean(isnan(r->ratio_free)));
    json_object_set_new(j, "top1", number(r->top1));
    json_object_set_new(j, "nll_delta", number(r->nll_delta));
    put_interval(j, "nll_lo", "nll_hi", r->nll);
    json_object_set_new(j, "memory_kept", number(r->memory_kept));
    put_interval(j, "memory_kept_lo", "memory_kept_hi", r->memory_kept_i);
    json_object_set_new(j, "computed_per_stored", number(r->cost));
    json_object_set_new(j, "kl_each", each_json(r, f));
    return j;
}

static int print_json(const lab *l, const inferscale_model_info *info, const fidelity_options *o,
                      const fidelity *f, const fidelity_row *rows, size_t n_rows, const char *method)
{
    json_t *report = cli_report(info, o->seed), *list = json_object_get(report, "rows"), *ids = json_array();

    for (size_t i = 0; i < o->n_conversations; i++) json_array_append_new(ids, cli_json_text(o->conversations[i]->id));
    json_object_set_new(report, "conversations", ids);
    json_object_set_new(report, "retrieval", json_string(method));
    if (o->client_system) json_object_set_new(report, "client_system", cli_json_text(o->client_system));
    json_object_set_new(report, "answer_tokens", json_integer(o->n_tokens));
    json_object_set_new(report, "orders", json_integer(o->n_orders));
    json_object_set_new(report, "floor_batch", json_integer(o->floor_batch));
    json_object_set_new(report, "floor_every", json_integer(o->floor_every));
    json_object_set_new(report, "resampled", json_string(o->n_conversations > 1 ? "conversations" : "questions"));
    json_object_set_new(report, "resamples", json_integer(STATS_RESAMPLES));
    json_object_set_new(report, "prompt_tokens", number(f->prompt_tokens));
    json_object_set_new(report, "fact_tokens", number(f->fact_tokens));
    json_object_set_new(report, "skipped", json_integer((json_int_t)f->n_skipped));
    json_object_set_new(report, "complete", json_boolean(!f->cancelled));
    json_object_set_new(report, "questions", questions_json(o, f));
    json_object_set_new(report, "engine", cli_json_text(info->engine));
    json_object_set_new(report, "codec", json_string(is_codec_name(l->is->profile->codec)));
    json_object_set_new(report, "kv_bytes_per_token", json_integer(info->kv_bytes_per_token));
    json_object_set_new(report, "flash_attention", json_boolean(info->flash_attention));
    for (size_t i = 0; i < n_rows; i++) json_array_append_new(list, row_json(&rows[i], o, f));
    return cli_print_json(report);
}

/* "0.409 [0.35, 0.47]" */
static void with_interval(char *out, size_t cap, int digits, double x, stats_interval i)
{
    if (isnan(x)) snprintf(out, cap, "-");
    else snprintf(out, cap, "%.*f [%.*f, %.*f]", digits, x, digits, i.lo, digits, i.hi);
}

static void print_table(const inferscale_model_info *info, const fidelity_options *o, const fidelity *f,
                        const fidelity_row *rows, size_t n_rows)
{
    char shown[192];
    printf("%s %s: %zu questions%s, %u facts each (%.0f tokens of a prompt of %.0f), %u answer tokens\n\n", cli_model_shown(info, shown),
           info->weights, f->n_questions, f->cancelled ? " (stopped early)" : "", o->k, f->fact_tokens, f->prompt_tokens,
           o->n_tokens);
    printf("%-8s %-14s %3s  %-23s %7s %7s %6s  %-19s %-19s %8s\n", "arm", "policy", "rep", "mean KL [95%]", "median", "p90",
           "top-1", "x S_free [95%]", "x S [95%]", "gold NLL");
    for (size_t i = 0; i < n_rows; i++) {
        const fidelity_row *r = &rows[i];
        char kl[64], free_[64], last[64], nll[32] = "-", arm[16];

        snprintf(arm, sizeof arm, "%s%s", r->arm, r->client && !r->policy ? "'" : "");
        with_interval(kl, sizeof kl, 4, r->kl_mean, r->kl);
        with_interval(free_, sizeof free_, 2, r->ratio_free, r->ratio_free_i);
        with_interval(last, sizeof last, 2, r->ratio_last, r->ratio_last_i);
        if (!isnan(r->nll_delta)) snprintf(nll, sizeof nll, "%+.3f", r->nll_delta);
        printf("%-8s %-14s %3.0u  %-23s %7.4f %7.4f %5.1f%%  %-19s %-19s %8s\n", arm, r->policy ? r->policy : "",
               r->repair, kl, r->kl_median, r->kl_p90, 100 * r->top1, free_, last, nll);
    }
    printf("\nx S_free: mean KL over that of the same facts reordered (the order ratio); void (-) where the yardstick is\n"
           "within 5 times the numerical floor N. gold NLL: the right answer's negative log-likelihood a token, against A.\n");
}

/* ---- The verb ------------------------------------------------------------------------------------------------------------ */

static int report(const cli_args *a, lab *l, const fidelity_options *o, const fidelity *f)
{
    inferscale_model_info info;
    fidelity_row rows[FIDELITY_ARMS];
    size_t n = 0;
    is_status st = inferscale_model(l->is, &info);

    if (st == INFERSCALE_OK) st = fidelity_rows(f, o->seed, rows, &n);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (cli_flag(a, "--json")) return print_json(l, &info, o, f, rows, n, cli_str(a, "--method", "lexical"));
    print_table(&info, o, f, rows, n);
    return 0;
}

static int measure(const cli_args *a, fidelity_options *o)
{
    inferscale_options store;
    fidelity *f = NULL;
    lab *l = NULL;
    watch w = { .line_ms = is_now_ms() };
    is_status st;
    int code;

    cli_options(a, &store);
    cli_engine(a, &store);
    store.embedder = cli_str(a, "--embedder", NULL);
    store.policy = NULL; /* a list here, and the lab's own store serves none */
    o->cancel = cli_interrupt();
    o->on_progress = on_progress;
    o->progress_ctx = &w;
    cli_progress_start(&w.bar, "evaluating", 0);
    st = lab_open(&store, "evaluation", &l);
    if (st == INFERSCALE_OK) st = fidelity_run(l, o, &f);
    cli_progress_end(&w.bar);
    code = st == INFERSCALE_OK ? report(a, l, o, f) : cli_fail_as(a, st);
    fidelity_free(f);
    lab_close(l);
    return code;
}

int cmd_eval_fidelity(const cli_args *a)
{
    const char *path = cli_str(a, "--data", NULL);
    const locomo_conversation *chosen[CONVERSATIONS];
    fidelity_options o = { .conversations = chosen };
    locomo *data = NULL;
    is_status st;
    int code;

    if (cli_n(a) > 0) return cli_usage(a, "\"%.40s\" is not expected here; options begin with --", cli_at(a, 0));
    if (path == NULL) return cli_usage(a, "--data FILE is missing; give a LoCoMo file as published");
    code = take_options(a, &o);
    if (code != 0) return code;
    st = locomo_load(path, &data);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    code = take_conversations(a, data, chosen, &o.n_conversations);
    if (code == 0) code = measure(a, &o);
    locomo_free(data);
    return code;
}

const cli_verb cli_verb_eval_fidelity = {
    "eval fidelity", "", "Measure how far injected memory moves the answer", details, options, CLI_MODEL | CLI_JSON,
    cmd_eval_fidelity,
};
