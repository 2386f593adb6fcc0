/* ttft_remote.c - see ttft_remote.h. */
#include "eval/ttft_remote.h"

#include <math.h>
#include <string.h>

#include "api/answer.h"
#include "base/clock.h"
#include "base/mem.h"
#include "eval/plain.h"

const char *const ttft_remote_arms[TTFT_R_ARMS] = { "text", "plain", "injected", "repeat", "none" };

typedef struct sample {
    double own_ms;                 /* question to first token, without retrieval */
    double embed_ms, recall_ms, plan_ms;
    uint32_t n_facts, fact_tokens, n_prompt;
    is_run_stats stats;
} sample;

typedef struct bench {
    const ttft_options *o;
    lab *l;
    uint32_t k;
    uint64_t epoch;                /* of the last run that was to find nothing kept */
    uint64_t injected_epoch;       /* of the last injected one */
    uint64_t done, total;
} bench;

/* ---- One measurement ----------------------------------------------------------------------------------------------------- */

/* Epochs are part of what a server keeps rows under: another one finds nothing. Nothing is revoked here, so any will do. */
static is_realm realm_of(bench *b, int arm)
{
    is_realm r = is_realm_of(&b->l->partition);

    if (arm != TTFT_R_REPEAT) b->epoch++;
    if (arm == TTFT_R_INJECTED) b->injected_epoch = b->epoch;
    r.epoch += arm == TTFT_R_REPEAT ? b->injected_epoch : b->epoch;
    return r;
}

static is_status run(bench *b, is_asking *a, int arm, is_planned *planned, sample *s)
{
    const is_plan *plan = arm == TTFT_R_TEXT ? is_planned_twin(planned) : is_planned_plan(planned);
    const is_realm realm = realm_of(b, arm);
    const is_run_opts opts = { .cache_parts = 1, .realm = &realm, .n_predict = 1, .cancel = b->o->cancel,
                               .no_prefix_cache = arm == TTFT_R_TEXT || arm == TTFT_R_NONE };
    is_engine *e = a->is->engine;
    is_run *run = NULL;
    int32_t token;
    is_status st;

    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT) s->fact_tokens += plan->parts[i].n_tokens, s->n_facts++;
    s->n_prompt = plan->n_tokens;
    IS_TRY(is_engine_start(e, plan, &opts, &run, NULL));
    st = is_engine_sample(e, run, &token);
    s->own_ms = is_now_ms() - a->t0_ms - a->answer->embed_ms - a->answer->recall_ms;
    is_engine_rest(e, run);
    is_engine_stats(e, run, &s->stats);
    is_engine_finish(e, run);
    return st;
}

static is_status run_plain(bench *b, const inferscale_list *found, sample *s)
{
    const is_realm realm = realm_of(b, TTFT_R_PLAIN);
    const is_run_opts opts = { .realm = &realm, .n_predict = 1, .cancel = b->o->cancel,
                               .no_prefix_cache = true };
    plain_fact *facts = is_calloc(found->n + 1, sizeof *facts);
    plain_prompt p = { .n_shared = 0 };
    is_engine *e = b->l->is->engine;
    is_run *run = NULL;
    double t0_ms = 0;
    int32_t token;
    is_status st = facts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a prompt");

    for (size_t i = 0; facts && i < found->n; i++) {
        const inferscale_item *item = &found->items[i];

        facts[i] = (plain_fact){ item->text, item->dated ? item->event_time : 0 };
    }
    if (st == INFERSCALE_OK)
        st = plain_prompt_new(e, b->l->is->system, facts, found->n, b->o->question, &p);
    t0_ms = is_now_ms();
    if (st == INFERSCALE_OK) st = is_engine_start(e, &p.plan, &opts, &run, NULL);
    if (st == INFERSCALE_OK) st = is_engine_sample(e, run, &token);
    s->own_ms = is_now_ms() - t0_ms;
    if (run) {
        is_engine_rest(e, run);
        is_engine_stats(e, run, &s->stats);
        is_engine_finish(e, run);
    }
    s->n_facts = (uint32_t)found->n;
    s->n_prompt = p.tokens.n;
    plain_prompt_free(&p);
    is_free(facts);
    return st;
}

static is_status measure_plain(bench *b, sample *s)
{
    inferscale_recall_options options = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *found = NULL;
    is_status st;

    memset(s, 0, sizeof *s);
    options.k = b->k;
    st = inferscale_recall(b->l->is, &b->l->scope, b->o->question, &options, &found);
    if (st == INFERSCALE_OK) {
        s->embed_ms = found->embed_ms;
        s->recall_ms = found->recall_ms;
        st = run_plain(b, found, s);
    }
    inferscale_list_free(found);
    return st;
}

static is_status measure(bench *b, int arm, sample *s)
{
    inferscale_ask_options options = INFERSCALE_ASK_OPTIONS_INIT;
    is_planned *planned = NULL;
    is_asking a;
    is_status st;

    if (arm == TTFT_R_PLAIN) return measure_plain(b, s);
    memset(s, 0, sizeof *s);
    options.k = b->k;
    options.max_tokens = 1;
    options.mode = arm == TTFT_R_NONE ? INFERSCALE_MODE_NONE : INFERSCALE_MODE_KV; /* text: the twin of the same plan */
    st = is_asking_begin(&a, b->l->is, &b->l->scope, b->o->question, &options);
    if (st == INFERSCALE_OK) st = is_asking_plan(&a, &planned);
    if (st == INFERSCALE_OK) st = run(b, &a, arm, planned, s);
    if (st == INFERSCALE_OK && a.why.len) st = is_fail(INFERSCALE_E_UNSUPPORTED, "this cannot be measured: %s", (const char *)a.why.data);
    if (st == INFERSCALE_OK) {
        s->embed_ms = a.answer->embed_ms;
        s->recall_ms = a.answer->recall_ms;
        s->plan_ms = a.answer->plan_ms;
    }
    is_planned_free(planned);
    is_asking_free(&a);
    return st;
}

/* That the arms did what they stand for. */
static is_status check(const bench *b, const sample s[TTFT_R_ARMS])
{
    const sample *text = &s[TTFT_R_TEXT], *plain = &s[TTFT_R_PLAIN];
    const sample *injected = &s[TTFT_R_INJECTED];

    if (text->n_facts != b->k)
        return is_fail(INFERSCALE_E_INVALID, "the question finds %u facts and k is %u; give more facts or a smaller k", text->n_facts, b->k);
    if (injected->stats.why[0])
        return is_fail(INFERSCALE_E_ENGINE, "stored rows were computed after all (%s: %s); nothing was measured", injected->stats.reason,
                       injected->stats.why);
    if (injected->stats.tokens_injected < injected->fact_tokens)
        return is_fail(INFERSCALE_E_ENGINE, "of %u fact tokens %u were injected at k = %u; nothing was measured", injected->fact_tokens,
                       injected->stats.tokens_injected, b->k);
    if (plain->n_facts != b->k || plain->stats.tokens_computed < plain->n_prompt)
        return is_fail(INFERSCALE_E_ENGINE,
                       "the plain arm has %u facts and computed only %u of %u tokens: some were kept "
                       "from before", plain->n_facts, plain->stats.tokens_computed,
                       plain->n_prompt);
    if (text->stats.tokens_computed < text->fact_tokens)
        return is_fail(INFERSCALE_E_ENGINE, "the text arm computed only %u of %u tokens: some were kept from before", text->stats.tokens_computed,
                       text->n_prompt);
    return INFERSCALE_OK;
}

static is_status step(bench *b)
{
    b->done++;
    if (b->o->on_progress && b->o->on_progress(b->o->progress_ctx, b->done, b->total, "measuring") != 0)
        return is_fail(INFERSCALE_E_CANCELLED, "the benchmark was cancelled");
    if (b->o->cancel && *b->o->cancel) return is_fail(INFERSCALE_E_CANCELLED, "the benchmark was cancelled");
    return INFERSCALE_OK;
}

/* Every arm once, in a seeded order: repeat takes the epoch of the last injected one, of this round or the one before. */
static is_status round_once(bench *b, uint32_t round, sample s[TTFT_R_ARMS])
{
    rng r = rng_stream(b->o->seed, b->k, round);
    uint32_t order[TTFT_R_ARMS];

    rng_permutation(&r, order, TTFT_R_ARMS);
    for (int i = 0; i < TTFT_R_ARMS; i++) {
        sample *one = &s[order[i]];

        IS_TRY(measure(b, (int)order[i], one));
        one->embed_ms = s[order[0]].embed_ms ? s[order[0]].embed_ms : one->embed_ms; /* `none` searches nothing */
        one->recall_ms = s[order[0]].recall_ms ? s[order[0]].recall_ms : one->recall_ms;
        IS_TRY(step(b));
    }
    return check(b, s);
}

/* ---- Sums ---------------------------------------------------------------------------------------------------------------- */

static double whole(const sample *s)
{
    return s->own_ms + s->embed_ms + s->recall_ms;
}

/* The median of an arm's times; the times into x[n]. */
static double median_of(const sample *rounds, uint32_t n, int arm, double *x)
{
    for (uint32_t i = 0; i < n; i++) x[i] = whole(&rounds[i * TTFT_R_ARMS + (uint32_t)arm]);
    return stats_median(x, n);
}

static is_status ratio(const bench *b, const sample *rounds, int over, int under, stats_ratio *out)
{
    const uint32_t n = b->o->runs;
    double *x = is_calloc(2 * n, sizeof *x);
    is_status st;

    if (!x) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u rounds", n);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = whole(&rounds[i * TTFT_R_ARMS + (uint32_t)over]);
        x[n + i] = whole(&rounds[i * TTFT_R_ARMS + (uint32_t)under]);
    }
    st = stats_median_ratio(x, x + n, n, b->o->seed + b->k, out);
    is_free(x);
    return st;
}

static is_status sum_arm(const bench *b, const sample *rounds, int arm, ttft_remote_arm *out)
{
    const uint32_t n = b->o->runs;
    const is_run_stats *last = &rounds[(n - 1) * TTFT_R_ARMS + (uint32_t)arm].stats;
    double *x = is_calloc(n, sizeof *x);

    if (!x) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u rounds", n);
    out->ms = median_of(rounds, n, arm, x);
    out->lo = stats_percentile(x, n, 0.25);
    out->hi = stats_percentile(x, n, 0.75);
    out->computed = last->tokens_computed;
    out->injected = last->tokens_injected;
    out->resident = last->tokens_resident;
    is_free(x);
    return INFERSCALE_OK;
}

static is_status sum_up(const bench *b, const sample *rounds, ttft_remote_row *row)
{
    const sample *one = &rounds[TTFT_R_INJECTED];

    *row = (ttft_remote_row){ .k = b->k, .n = b->o->runs, .n_prompt = one->n_prompt, .fact_tokens = one->fact_tokens, .embed_ms = one->embed_ms,
                              .recall_ms = one->recall_ms, .plan_ms = one->plan_ms };
    for (int arm = 0; arm < TTFT_R_ARMS; arm++) IS_TRY(sum_arm(b, rounds, arm, &row->arms[arm]));
    IS_TRY(ratio(b, rounds, TTFT_R_TEXT, TTFT_R_INJECTED, &row->text_over_injected));
    IS_TRY(ratio(b, rounds, TTFT_R_PLAIN, TTFT_R_INJECTED, &row->plain_over_injected));
    IS_TRY(ratio(b, rounds, TTFT_R_INJECTED, TTFT_R_REPEAT, &row->injected_over_repeat));
    return ratio(b, rounds, TTFT_R_INJECTED, TTFT_R_NONE, &row->injected_over_none);
}

static is_status run_size(bench *b, ttft_remote_row *row)
{
    sample *rounds = is_calloc((size_t)b->o->runs * TTFT_R_ARMS, sizeof *rounds), warm;
    is_status st = rounds ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for %u rounds", b->o->runs);

    for (int arm = 0; arm < TTFT_R_ARMS && st == INFERSCALE_OK; arm++) st = measure(b, arm, &warm); /* in this order: injected before repeat */
    for (uint32_t i = 0; i < b->o->runs && st == INFERSCALE_OK; i++) st = round_once(b, i, rounds + i * TTFT_R_ARMS);
    if (st == INFERSCALE_OK) st = sum_up(b, rounds, row);
    is_free(rounds);
    return st;
}

is_status ttft_remote_run(const ttft_options *options, ttft_remote_row *rows, size_t *n, inferscale_model_info *info)
{
    bench b = { .o = options, .total = options->n_k * options->runs * TTFT_R_ARMS };
    is_status st;

    *n = 0;
    st = ttft_open(options, &b.l, info);
    for (size_t i = 0; i < options->n_k && st == INFERSCALE_OK; i++) {
        b.k = options->k[i];
        st = run_size(&b, rows + *n);
        if (st == INFERSCALE_OK) ++*n;
    }
    if (st == INFERSCALE_E_CANCELLED && *n > 0) st = INFERSCALE_OK; /* whole sizes are results */
    lab_close(b.l);
    return st;
}
