/* ttft.c - see ttft.h. */
#include "eval/ttft.h"

#include <stdlib.h>
#include <string.h>

#include "api/answer.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/batch.h"
#include "eval/plain.h"

/* Arms of a round. The vault's three states are three injected arms on one handle. */
enum { TEXT, PLAIN, FLOOR, RAM, PAGE_CACHE, COLD, N_ARMS };
enum { SEATS = 4, FA_OFF = 0, FA_ON = 1, TRIALS = 2 };

/* A setting is tried once more if trying it took no longer than this. */
static const double AGAIN_MS = 3000;

const uint32_t ttft_batches[TTFT_BATCHES] = { IS_ALONE_TOKENS, 256, 128 };

/* How an arm runs. */
typedef struct setting {
    int fa;
    uint32_t batch; /* tokens of one decode; text and plain */
} setting;

static const char *const vault_names[TTFT_VAULTS] = { "ram", "page_cache", "cold" };

typedef struct sample {
    double own_ms;                 /* question to first token, without retrieval */
    double embed_ms, recall_ms, plan_ms, compose_ms, inject_ms, question_ms;
    uint32_t n_facts, fact_tokens, computed, injected, resident;
    uint32_t prompt, shared;       /* plain: tokens of the prompt, and of its part that another shares */
} sample;

typedef struct names {
    uint8_t (*names)[IS_HASH_BYTES];
    size_t n;
} names;

typedef struct bench {
    const ttft_options *o;
    lab *l;                        /* fills and encodes the store */
    inferscale *seats[SEATS][2];   /* text, plain, floor, injected; flash attention off, on; opened when
                                      first needed */
    uint32_t k;
    names names;                   /* of the segments that the plan at hand injects */
    uint64_t done, total;
} bench;

static int seat_of(int arm)
{
    return arm < RAM ? arm : RAM;
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

/* The text twin; of it only the header is in the engine already. */
static is_status start_text(inferscale *is, is_planned *planned, uint32_t batch, is_run **run,
                            is_run_stats *stats)
{
    const is_run_opts opts = { .cache_parts = 1, .batch = batch, .n_predict = 1 };

    return is_engine_start(is->engine, is_planned_twin(planned), &opts, run, stats);
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
static is_status go(bench *b, is_asking *a, int arm, setting how, is_planned **planned, is_run **run,
                    sample *s)
{
    is_run_stats own = { 0 };
    int32_t token;
    bool fresh;

    IS_TRY(is_asking_plan(a, planned));
    IS_TRY(is_asking_fresh(a, *planned, &fresh));
    if (arm == FLOOR) IS_TRY(start_floor(a->is, *planned, run, &own));
    else if (arm == TEXT) IS_TRY(start_text(a->is, *planned, how.batch, run, &own));
    else IS_TRY(is_asking_run(a, *planned, run));
    IS_TRY(is_engine_sample(a->is->engine, *run, &token));
    s->own_ms = is_now_ms() - a->t0_ms - a->answer->embed_ms - a->answer->recall_ms;
    if (a->why.len) return is_fail(INFERSCALE_E_UNSUPPORTED, "this cannot be measured: %s", (const char *)a->why.data);
    note(a, is_planned_plan(*planned), s);
    if (arm < RAM) s->computed = own.tokens_computed, s->resident = own.tokens_resident;
    return arm >= RAM ? keep_names(b, is_planned_plan(*planned)) : INFERSCALE_OK;
}

/* From the question to the first token, as a stack goes that searches and sends a prompt. */
static is_status go_plain(bench *b, inferscale *is, const inferscale_list *found, double t0_ms,
                          setting how, sample *s)
{
    const is_run_opts opts = { .cache_parts = 1, .batch = how.batch, .n_predict = 1 };
    plain_fact *facts = is_calloc(found->n + 1, sizeof *facts);
    plain_prompt p = { .n_shared = 0 };
    is_run_stats stats = { 0 };
    is_run *run = NULL;
    int32_t token;
    is_status st = facts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a prompt");

    for (size_t i = 0; facts && i < found->n; i++) {
        const inferscale_item *item = &found->items[i];

        facts[i] = (plain_fact){ item->text, item->dated ? item->event_time : 0 };
    }
    if (st == INFERSCALE_OK)
        st = plain_prompt_new(is->engine, is->system, facts, found->n, b->o->question, &p);
    if (st == INFERSCALE_OK) st = is_engine_start(is->engine, &p.plan, &opts, &run, &stats);
    if (st == INFERSCALE_OK) st = is_engine_sample(is->engine, run, &token);
    s->own_ms = is_now_ms() - t0_ms - found->embed_ms - found->recall_ms;
    s->n_facts = (uint32_t)found->n;
    s->prompt = p.tokens.n;
    s->shared = p.n_shared;
    s->embed_ms = found->embed_ms;
    s->recall_ms = found->recall_ms;
    s->computed = stats.tokens_computed;
    s->resident = stats.tokens_resident;
    if (run) is_engine_finish(is->engine, run);
    plain_prompt_free(&p);
    is_free(facts);
    return st;
}

static is_status measure_plain(bench *b, setting how, sample *s)
{
    inferscale_recall_options options = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list none = { 0 }, *found = NULL;
    inferscale *is;
    double t0_ms;
    is_status st = INFERSCALE_OK;

    memset(s, 0, sizeof *s);
    options.k = b->k;
    IS_TRY(seat(b, PLAIN, how.fa, &is));
    t0_ms = is_now_ms();
    if (b->k) st = inferscale_recall(is, &b->l->scope, b->o->question, &options, &found);
    if (st == INFERSCALE_OK) st = go_plain(b, is, found ? found : &none, t0_ms, how, s);
    inferscale_list_free(found);
    return st;
}

static is_status prepare_vault(bench *b, inferscale *is, int arm)
{
    if (arm == PAGE_CACHE || arm == COLD) is_vault_drop_ram(is->vault);
    for (size_t i = 0; arm == COLD && i < b->names.n; i++) IS_TRY(is_vault_drop_cache(is->vault, b->names.names[i]));
    return INFERSCALE_OK;
}

static is_status measure(bench *b, int arm, setting how, sample *s)
{
    inferscale_ask_options options = INFERSCALE_ASK_OPTIONS_INIT;
    is_planned *planned = NULL;
    is_run *run = NULL;
    inferscale *is;
    is_asking a;
    is_status st;

    if (arm == PLAIN) return measure_plain(b, how, s);
    memset(s, 0, sizeof *s);
    options.k = b->k;
    options.max_tokens = 1;
    options.mode = b->k == 0 ? INFERSCALE_MODE_NONE : arm == TEXT || arm == FLOOR ? INFERSCALE_MODE_TEXT : INFERSCALE_MODE_KV;
    IS_TRY(seat(b, arm, how.fa, &is));
    IS_TRY(prepare_vault(b, is, arm));
    st = is_asking_begin(&a, is, &b->l->scope, b->o->question, &options);
    if (st == INFERSCALE_OK) st = go(b, &a, arm, how, &planned, &run, s);
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

static bool is_tried(const bench *b, int fa)
{
    const int forced = b->o->store.flash_attention;

    return forced == INFERSCALE_FA_AUTO || fa == (forced == INFERSCALE_FA_ON);
}

/* The better flash-attention setting of injection, by trying both; the first run of each only warms
 * up. */
static is_status choose(bench *b, setting *how, double ms[2])
{
    sample s;

    ms[0] = ms[1] = 0;
    *how = (setting){ .fa = b->o->store.flash_attention == INFERSCALE_FA_ON };
    if (b->o->store.flash_attention != INFERSCALE_FA_AUTO) return measure(b, RAM, *how, &s);
    for (int fa = FA_OFF; fa <= FA_ON; fa++) {
        for (int i = 0; i < 4; i++) {
            IS_TRY(measure(b, RAM, (setting){ .fa = fa }, &s));
            if (i > 0 && (ms[fa] == 0 || s.own_ms < ms[fa])) ms[fa] = s.own_ms;
        }
    }
    how->fa = ms[FA_ON] < ms[FA_OFF];
    return INFERSCALE_OK;
}

static is_status try_text(bench *b, setting how, double *ms)
{
    sample s;

    *ms = 0;
    for (int i = 0; i < TRIALS && (i == 0 || *ms < AGAIN_MS); i++) {
        IS_TRY(measure(b, TEXT, how, &s));
        if (*ms == 0 || s.own_ms < *ms) *ms = s.own_ms;
    }
    return INFERSCALE_OK;
}

/* The best settings of text, by trying all; the first run with each flash attention only warms up. */
static is_status choose_text(bench *b, setting *how, double ms[2][TTFT_BATCHES])
{
    double best = 0;
    sample s;

    for (int fa = FA_OFF; fa <= FA_ON; fa++) {
        for (int i = 0; i < TTFT_BATCHES; i++) {
            const setting one = { fa, ttft_batches[i] };

            ms[fa][i] = 0;
            if (!is_tried(b, fa)) continue;
            if (i == 0) IS_TRY(measure(b, TEXT, one, &s));
            IS_TRY(try_text(b, one, &ms[fa][i]));
            if (best == 0 || ms[fa][i] < best) *how = one, best = ms[fa][i];
        }
    }
    return INFERSCALE_OK;
}

/* That the arms did what they stand for. */
static is_status check(const bench *b, const sample *s)
{
    const sample *text = &s[TEXT], *plain = &s[PLAIN], *floor = &s[FLOOR];

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
    if (plain->n_facts != text->n_facts || plain->resident != plain->shared ||
        plain->computed + plain->shared != plain->prompt)
        return is_fail(INFERSCALE_E_INTERNAL,
                       "the plain arm has %u facts and computed %u of %u tokens, not all but the %u "
                       "that another prompt shares; they do not compare",
                       plain->n_facts, plain->computed, plain->prompt, plain->shared);
    if (text->computed < text->fact_tokens + floor->computed)
        return is_fail(INFERSCALE_E_INTERNAL, "the text arm computed only %u tokens; facts were in its cache", text->computed);
    return INFERSCALE_OK;
}

/* One round: every arm once, in a seeded order; the round's retrieval is that of its first arm. */
static is_status round_once(bench *b, uint32_t round, const setting how[N_ARMS], sample s[N_ARMS])
{
    rng r = rng_stream(b->o->seed, b->k, round);
    uint32_t order[N_ARMS];

    rng_permutation(&r, order, N_ARMS);
    for (int i = 0; i < N_ARMS; i++) {
        int arm = (int)order[i];

        IS_TRY(measure(b, arm, how[arm], &s[arm]));
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

static is_status ratio(const bench *b, const sample *rounds, int over, int under, stats_ratio *out)
{
    const uint32_t n = b->o->runs;
    double *x = is_malloc(2 * n * sizeof *x);
    is_status st;

    if (!x) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u rounds", n);
    for (uint32_t r = 0; r < n; r++) {
        x[r] = value(&rounds[r * N_ARMS + (uint32_t)over], 0);
        x[n + r] = value(&rounds[r * N_ARMS + (uint32_t)under], 0);
    }
    st = stats_median_ratio(x, x + n, n, b->o->seed + b->k, out);
    is_free(x);
    return st;
}

static is_status sum_up(const bench *b, const sample *rounds, ttft_row *row, int vault)
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
    row->text_computed = rounds[TEXT].computed;
    row->plain_tokens = rounds[PLAIN].prompt;
    row->plain_computed = rounds[PLAIN].computed;
    row->plain_ms = over_rounds(rounds, n, PLAIN, 0, 0.5);
    row->plain_lo = over_rounds(rounds, n, PLAIN, 0, 0.25);
    row->plain_hi = over_rounds(rounds, n, PLAIN, 0, 0.75);
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
    IS_TRY(ratio(b, rounds, TEXT, arm, &row->text_over_injected));
    return ratio(b, rounds, PLAIN, arm, &row->plain_over_injected);
}

/* All rounds of one k: three rows. */
static is_status run_size(bench *b, ttft_row *rows)
{
    sample *rounds = is_calloc((size_t)b->o->runs * N_ARMS, sizeof *rounds), warm;
    double text_ms[2][TTFT_BATCHES], injected_ms[2];
    setting how[N_ARMS], text = { 0 }, injected = { 0 };
    is_status st = rounds ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for %u rounds", b->o->runs);

    if (st == INFERSCALE_OK) st = choose_text(b, &text, text_ms);
    if (st == INFERSCALE_OK) st = choose(b, &injected, injected_ms);
    for (int arm = 0; arm < N_ARMS; arm++) how[arm] = arm == TEXT || arm == PLAIN ? text : injected;
    /* These put their prefixes there. */
    if (st == INFERSCALE_OK) st = measure(b, FLOOR, injected, &warm);
    if (st == INFERSCALE_OK) st = measure(b, PLAIN, text, &warm);
    for (uint32_t i = 0; i < b->o->runs && st == INFERSCALE_OK; i++) st = round_once(b, i, how, rounds + i * N_ARMS);
    for (int v = 0; v < TTFT_VAULTS && st == INFERSCALE_OK; v++) {
        st = sum_up(b, rounds, &rows[v], v);
        rows[v].text_fa = text.fa;
        rows[v].text_batch = text.batch;
        rows[v].injected_fa = injected.fa;
        memcpy(rows[v].text_trial_ms, text_ms, sizeof text_ms);
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
