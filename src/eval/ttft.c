/* ttft.c - see ttft.h. */
#include "eval/ttft.h"

#include <stdlib.h>
#include <string.h>

#include "api/answer.h"
#include "base/clock.h"
#include "base/mem.h"
#include "eval/stats.h"

/* Arms of a round. The vault's three states are three injected arms on one handle. */
enum { TEXT, FLOOR, RAM, PAGE_CACHE, COLD, N_ARMS };
enum { SEATS = 3, FA_OFF = 0, FA_ON = 1 };

static const char *const vault_names[TTFT_VAULTS] = { "ram", "page_cache", "cold" };

typedef struct sample {
    double own_ms;                 /* question to first token, without retrieval */
    double embed_ms, recall_ms, plan_ms, compose_ms, inject_ms, question_ms;
    uint32_t n_facts, fact_tokens, computed, injected, resident;
} sample;

typedef struct names {
    uint8_t (*names)[IS_HASH_BYTES];
    size_t n;
} names;

typedef struct bench {
    const ttft_options *o;
    lab *l;                        /* fills and encodes the store */
    inferscale *seats[SEATS][2];   /* text, floor, injected; flash attention off, on; opened when first needed */
    uint32_t k;
    names names;                   /* of the segments that the plan at hand injects */
    uint64_t done, total;
} bench;

static int seat_of(int arm)
{
    return arm == TEXT ? 0 : arm == FLOOR ? 1 : 2;
}

static is_status seat(bench *b, int arm, int fa, inferscale **out)
{
    inferscale **is = &b->seats[seat_of(arm)][fa];

    if (*is == NULL) {
        inferscale_options store = b->o->store;

        store.home = b->l->home;
        store.flash_attention = fa ? INFERSCALE_FA_ON : INFERSCALE_FA_OFF;
        IS_TRY(inferscale_open(is, &store));
    }
    *out = *is;
    return is_handle_engine(*is);
}

/* ---- One measurement ----------------------------------------------------------------------------------------------------- */

static is_status start_floor(inferscale *is, is_planned *planned, is_run **run, is_run_stats *stats)
{
    const is_plan *twin = is_planned_twin(planned);
    is_run_opts opts = { .cache_parts = 1 };

    for (uint32_t i = 0; i < twin->n_parts; i++) opts.cache_parts += twin->parts[i].role == IS_ROLE_FACT;
    return is_engine_start(is->engine, twin, &opts, run, stats);
}

static void note(const is_asking *a, const is_plan *plan, sample *s)
{
    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT) s->fact_tokens += plan->parts[i].n_tokens, s->n_facts++;
    s->embed_ms = a->answer->embed_ms;
    s->recall_ms = a->answer->recall_ms;
    s->plan_ms = a->answer->plan_ms;
    s->compose_ms = a->answer->compose_ms;
    s->inject_ms = a->answer->inject_ms;
    s->question_ms = a->answer->question_ms;
    s->computed = a->answer->tokens_computed;
    s->injected = a->answer->tokens_injected;
    s->resident = a->answer->tokens_resident;
}

/* The segments' names, so that their files can be dropped from the OS's cache. */
static is_status keep_names(bench *b, const is_plan *plan)
{
    is_free(b->names.names);
    b->names = (names){ .names = is_malloc((plan->n_parts + 1) * sizeof *b->names.names) };
    if (b->names.names == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while measuring");
    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].segment)
            memcpy(b->names.names[b->names.n++], is_segment_info(plan->parts[i].segment)->name, IS_HASH_BYTES);
    return INFERSCALE_OK;
}

/* From the question to the first token, as inferscale_ask goes. */
static is_status go(bench *b, is_asking *a, int arm, is_planned **planned, is_run **run, sample *s)
{
    is_run_stats floor = { 0 };
    int32_t token;
    bool fresh;

    IS_TRY(is_asking_plan(a, planned));
    IS_TRY(is_asking_fresh(a, *planned, &fresh));
    if (arm == FLOOR) IS_TRY(start_floor(a->is, *planned, run, &floor));
    else IS_TRY(is_asking_run(a, *planned, run));
    IS_TRY(is_engine_sample(a->is->engine, *run, &token));
    s->own_ms = is_now_ms() - a->t0_ms - a->answer->embed_ms - a->answer->recall_ms;
    if (a->why.len) return is_fail(INFERSCALE_E_UNSUPPORTED, "this cannot be measured: %s", (const char *)a->why.data);
    note(a, is_planned_plan(*planned), s);
    if (arm == FLOOR) s->computed = floor.tokens_computed, s->resident = floor.tokens_resident;
    return arm >= RAM ? keep_names(b, is_planned_plan(*planned)) : INFERSCALE_OK;
}

static is_status prepare_vault(bench *b, inferscale *is, int arm)
{
    if (arm == PAGE_CACHE || arm == COLD) is_vault_drop_ram(is->vault);
    for (size_t i = 0; arm == COLD && i < b->names.n; i++) IS_TRY(is_vault_drop_cache(is->vault, b->names.names[i]));
    return INFERSCALE_OK;
}

static is_status measure(bench *b, int arm, int fa, sample *s)
{
    inferscale_ask_options options = INFERSCALE_ASK_OPTIONS_INIT;
    is_planned *planned = NULL;
    is_run *run = NULL;
    inferscale *is;
    is_asking a;
    is_status st;

    memset(s, 0, sizeof *s);
    options.k = b->k;
    options.max_tokens = 1;
    options.mode = b->k == 0 ? INFERSCALE_MODE_NONE : arm == TEXT || arm == FLOOR ? INFERSCALE_MODE_TEXT : INFERSCALE_MODE_KV;
    IS_TRY(seat(b, arm, fa, &is));
    IS_TRY(prepare_vault(b, is, arm));
    st = is_asking_begin(&a, is, &b->l->scope, b->o->question, &options);
    if (st == INFERSCALE_OK) st = go(b, &a, arm, &planned, &run, s);
    if (run) is_engine_finish(is->engine, run);
    is_planned_free(planned);
    is_asking_free(&a);
    return st;
}

static is_status step(bench *b)
{
    static const char *const what = "measuring";

    b->done++;
    if (b->o->on_progress && b->o->on_progress(b->o->progress_ctx, b->done, b->total, what) != 0)
        return is_fail(INFERSCALE_E_CANCELLED, "the benchmark was cancelled");
    if (b->o->cancel && *b->o->cancel) return is_fail(INFERSCALE_E_CANCELLED, "the benchmark was cancelled");
    return INFERSCALE_OK;
}

/* ---- The store ----------------------------------------------------------------------------------------------------------- */

static is_status fill(lab *l, const ttft_options *o)
{
    inferscale_encode_options encode = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_fact *facts = is_calloc(o->n_facts + 1, sizeof *facts);
    is_status st;

    if (facts == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", o->n_facts);
    for (size_t i = 0; i < o->n_facts; i++)
        facts[i] = (inferscale_fact){ .text = o->texts[i], .event_time = o->times ? o->times[i] : 0 };
    st = lab_remember(l, facts, o->n_facts, NULL);
    is_free(facts);
    encode.on_progress = o->on_progress;
    encode.progress_ctx = o->progress_ctx;
    return st == INFERSCALE_OK ? inferscale_encode(l->is, &l->scope, &encode) : st;
}

/* ---- One size ------------------------------------------------------------------------------------------------------------ */

/* The better flash-attention setting of an arm, by trying both; the first run of each only warms up. */
static is_status choose(bench *b, int arm, int *fa, double ms[2])
{
    const int forced = b->o->store.flash_attention;
    sample s;

    ms[0] = ms[1] = 0;
    *fa = forced == INFERSCALE_FA_ON;
    if (forced != INFERSCALE_FA_AUTO) return measure(b, arm, *fa, &s);
    for (int f = FA_OFF; f <= FA_ON; f++) {
        for (int i = 0; i < (arm == TEXT ? 2 : 4); i++) {
            IS_TRY(measure(b, arm, f, &s));
            if (i > 0 && (ms[f] == 0 || s.own_ms < ms[f])) ms[f] = s.own_ms;
        }
    }
    *fa = ms[FA_ON] < ms[FA_OFF];
    return INFERSCALE_OK;
}

/* That the arms did what they stand for. */
static is_status check(const bench *b, const sample *s)
{
    const sample *text = &s[TEXT], *floor = &s[FLOOR];

    for (int arm = RAM; arm <= COLD; arm++) {
        if (s[arm].injected != s[arm].fact_tokens || s[arm].fact_tokens != text->fact_tokens)
            return is_fail(INFERSCALE_E_INTERNAL, "of %u fact tokens %u were injected at k = %u; nothing was measured",
                           text->fact_tokens, s[arm].injected, b->k);
        if (floor->computed != s[arm].computed)
            return is_fail(INFERSCALE_E_INTERNAL, "the floor computed %u tokens, the injected arm %u; they do not compare",
                           floor->computed, s[arm].computed);
    }
    if (text->n_facts != b->k)
        return is_fail(INFERSCALE_E_INVALID, "the question finds %u facts and k is %u; give more facts or a smaller k",
                       text->n_facts, b->k);
    if (text->computed < text->fact_tokens + floor->computed)
        return is_fail(INFERSCALE_E_INTERNAL, "the text arm computed only %u tokens; facts were in its cache", text->computed);
    return INFERSCALE_OK;
}

/* One round: every arm once, in a seeded order; the round's retrieval is that of its first arm. */
static is_status round_once(bench *b, uint32_t round, const int fa[N_ARMS], sample s[N_ARMS])
{
    rng r = rng_stream(b->o->seed, b->k, round);
    uint32_t order[N_ARMS];

    rng_permutation(&r, order, N_ARMS);
    for (int i = 0; i < N_ARMS; i++) {
        int arm = (int)order[i];

        IS_TRY(measure(b, arm, fa[arm], &s[arm]));
        s[arm].embed_ms = s[order[0]].embed_ms;
        s[arm].recall_ms = s[order[0]].recall_ms;
        IS_TRY(step(b));
    }
    return check(b, s);
}

enum { VALUES = 8 }; /* of a sample, as medians are taken of */

static double value(const sample *s, int i)
{
    const double all[VALUES] = { s->own_ms + s->embed_ms + s->recall_ms, s->embed_ms, s->recall_ms, s->plan_ms, s->compose_ms,
                                 s->inject_ms, s->question_ms, 0 };
    return all[i];
}

/* Percentile p of value i of an arm over the rounds. */
static double over_rounds(const sample *rounds, uint32_t n, int arm, int i, double p)
{
    double *x = is_malloc(n * sizeof *x), result;

    for (uint32_t r = 0; x && r < n; r++) x[r] = value(&rounds[r * N_ARMS + (uint32_t)arm], i);
    result = x ? stats_percentile(x, n, p) : 0;
    is_free(x);
    return result;
}

static void sum_up(const bench *b, const sample *rounds, ttft_row *row, int vault)
{
    const uint32_t n = b->o->runs;
    const int arm = RAM + vault;

    row->vault = vault_names[vault];
    row->k = b->k;
    row->n = n;
    row->fact_tokens = rounds[arm].fact_tokens;
    row->question_tokens = rounds[arm].computed;
    row->text_ms = over_rounds(rounds, n, TEXT, 0, 0.5);
    row->text_lo = over_rounds(rounds, n, TEXT, 0, 0.25);
    row->text_hi = over_rounds(rounds, n, TEXT, 0, 0.75);
    row->floor_ms = over_rounds(rounds, n, FLOOR, 0, 0.5);
    row->floor_lo = over_rounds(rounds, n, FLOOR, 0, 0.25);
    row->floor_hi = over_rounds(rounds, n, FLOOR, 0, 0.75);
    row->injected_ms = over_rounds(rounds, n, arm, 0, 0.5);
    row->injected_lo = over_rounds(rounds, n, arm, 0, 0.25);
    row->injected_hi = over_rounds(rounds, n, arm, 0, 0.75);
    row->embed_ms = over_rounds(rounds, n, arm, 1, 0.5);
    row->recall_ms = over_rounds(rounds, n, arm, 2, 0.5);
    row->plan_ms = over_rounds(rounds, n, arm, 3, 0.5);
    row->compose_ms = over_rounds(rounds, n, arm, 4, 0.5);
    row->inject_ms = over_rounds(rounds, n, arm, 5, 0.5);
    row->question_ms = over_rounds(rounds, n, arm, 6, 0.5);
}

/* All rounds of one k: three rows. */
static is_status run_size(bench *b, ttft_row *rows)
{
    sample *rounds = is_calloc((size_t)b->o->runs * N_ARMS, sizeof *rounds), warm;
    int fa[N_ARMS], text_fa = 0, injected_fa = 0;
    double text_ms[2], injected_ms[2];
    is_status st = rounds ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for %u rounds", b->o->runs);

    if (st == INFERSCALE_OK) st = choose(b, TEXT, &text_fa, text_ms);
    if (st == INFERSCALE_OK) st = choose(b, RAM, &injected_fa, injected_ms);
    for (int arm = 0; arm < N_ARMS; arm++) fa[arm] = arm == TEXT ? text_fa : injected_fa;
    if (st == INFERSCALE_OK) st = measure(b, FLOOR, injected_fa, &warm); /* puts the prefix there */
    for (uint32_t i = 0; i < b->o->runs && st == INFERSCALE_OK; i++) st = round_once(b, i, fa, rounds + i * N_ARMS);
    for (int v = 0; v < TTFT_VAULTS && st == INFERSCALE_OK; v++) {
        sum_up(b, rounds, &rows[v], v);
        rows[v].text_fa = text_fa;
        rows[v].injected_fa = injected_fa;
        memcpy(rows[v].text_fa_ms, text_ms, sizeof text_ms);
        memcpy(rows[v].injected_fa_ms, injected_ms, sizeof injected_ms);
    }
    is_free(rounds);
    return st;
}

static void close_all(bench *b)
{
    for (int i = 0; i < SEATS; i++) inferscale_close(b->seats[i][0]), inferscale_close(b->seats[i][1]);
    is_free(b->names.names);
    lab_close(b->l);
}

is_status ttft_open(const ttft_options *o, lab **l, inferscale_model_info *info)
{
    if (o->n_k < 1 || o->n_k > TTFT_SIZES || o->runs < 1)
        return is_fail(INFERSCALE_E_INVALID, "give 1 to %d sizes k and at least one run", (int)TTFT_SIZES);
    IS_TRY(lab_open(&o->store, "benchmark", l));
    IS_TRY(inferscale_model((*l)->is, info));
    if (!info->can_inject)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be injected: %s; take another --model", info->why_not);
    return fill(*l, o);
}

is_status ttft_run(const ttft_options *options, ttft_row *rows, size_t *n, inferscale_model_info *info)
{
    bench b = { .o = options, .total = options->n_k * options->runs * N_ARMS };
    is_status st;

    *n = 0;
    st = ttft_open(options, &b.l, info);
    for (size_t i = 0; i < options->n_k && st == INFERSCALE_OK; i++) {
        b.k = options->k[i];
        st = run_size(&b, rows + *n);
        if (st == INFERSCALE_OK) *n += TTFT_VAULTS;
    }
    if (st == INFERSCALE_E_CANCELLED && *n > 0) st = INFERSCALE_OK; /* whole sizes are results */
    close_all(&b);
    return st;
}
