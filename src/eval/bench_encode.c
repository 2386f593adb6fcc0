/* bench_encode.c - see bench_encode.h. */
#include "eval/bench_encode.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "eval/stats.h"
#include "eval/synth.h"

enum { RUNS_MIN = 5, RUNS_MAX = 101, FACTS_MAX = 5000, SPANS_MOST = 512 };
static const double first_stage_most = 1.5;

typedef struct bench {
    const bench_encode_options *o;
    lab *l;
    is_encoder enc;
    int64_t *ids;
    size_t n_ids;
    bool cpu_clock;
    uint64_t done, total;
} bench;

/* What one policy runs: spans as they are captured one at a time, and as they are captured together. */
typedef struct work {
    is_capture *apart, *together;    /* [n_apart], [n_together] */
    size_t n_apart, n_together;
    int32_t **ids;                   /* [n_ids] owned: context and span of one, joined */
    size_t n_ids;
    is_rows rows;                    /* all write here: what the rows are does not matter */
    uint32_t n_tokens;               /* of the spans */
} work;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the encoding benchmark; ask for fewer facts");
}

static is_status tick(bench *b)
{
    b->done++;
    if ((b->o->cancel && *b->o->cancel) ||
        (b->o->on_progress && b->o->on_progress(b->o->progress_ctx, b->done, b->total, "measuring")))
        return is_fail(INFERSCALE_E_CANCELLED, "the benchmark was cancelled");
    return INFERSCALE_OK;
}

static double now_ms(const bench *b)
{
    struct timespec t;

    if (!b->cpu_clock) return is_now_ms();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* ---- What is remembered -------------------------------------------------------------------------------------------------- */

static is_status invent(bench *b, size_t n)
{
    char **texts = is_calloc(n, sizeof *texts);
    int64_t *times = is_calloc(n, sizeof *times);
    inferscale_fact *facts = is_calloc(n, sizeof *facts);
    is_status st = texts && times && facts ? synth_facts(b->o->seed, n, texts, times) : no_memory();

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) facts[i] = (inferscale_fact){ .text = texts[i], .event_time = times[i] };
    if (st == INFERSCALE_OK) st = lab_remember(b->l, facts, n, b->ids);
    for (size_t i = 0; texts && i < n; i++) is_free(texts[i]);
    is_free(texts);
    is_free(times);
    is_free(facts);
    return st;
}

static is_status remember(bench *b)
{
    const locomo_conversation *c = b->o->data;
    size_t n = c ? c->n_observations : b->o->n_facts;

    b->ids = is_calloc(n + 1, sizeof *b->ids);
    if (!b->ids) return no_memory();
    IS_TRY(c ? lab_remember_locomo(b->l, c, b->ids) : invent(b, n));
    b->n_ids = n < b->o->n_facts ? n : b->o->n_facts;
    return INFERSCALE_OK;
}

/* ---- Spans of a policy --------------------------------------------------------------------------------------------------- */

static void work_free(work *w)
{
    for (size_t i = 0; i < w->n_ids; i++) is_free(w->ids[i]);
    is_free(w->ids);
    is_free(w->apart);
    is_free(w->together);
    is_rows_free(&w->rows);
    *w = (work){ 0 };
}

/* Context and span as one array, whose parts the capture points to. A joint pass takes all behind the header as its span. */
static is_status add_span(bench *b, work *w, const is_policy *policy, const is_context *context, const is_tokens *span)
{
    uint32_t header = b->enc.profile->header.n, n = context->tokens.n + span->n, at = context->tokens.n;
    int32_t *ids = is_malloc(n * sizeof *ids);

    if (!ids) return no_memory();
    w->ids[w->n_ids++] = ids;
    if (at) memcpy(ids, context->tokens.ids, at * sizeof *ids);
    memcpy(ids + at, span->ids, span->n * sizeof *ids);
    if (policy->kind == IS_POLICY_COMPANY && header < at) at = header;
    w->apart[w->n_apart++] = (is_capture){ .context = ids, .n_context = at, .span = ids + at, .n_span = n - at };
    w->n_tokens += n - at;
    return INFERSCALE_OK;
}

/* Together: a span whose context is the one before it with that one's tokens goes on in the same pass. */
static void join(const bench *b, work *w, const is_policy *policy)
{
    uint32_t header = b->enc.profile->header.n;

    for (size_t i = 0; i < w->n_apart; i++) {
        const is_capture *c = &w->apart[i], *before = i ? &w->apart[i - 1] : NULL;

        if (policy->kind != IS_POLICY_PAGE) w->together[w->n_together++] = *c;
        else if (before && c->n_context == before->n_context + before->n_span &&
                 memcmp(c->context, before->context, c->n_context * sizeof(int32_t)) == 0) {
            is_capture *joint = &w->together[w->n_together - 1];

            joint->n_span = c->n_context + c->n_span - joint->n_context;
            joint->context = c->context; /* the longer array holds it all */
            joint->span = c->context + joint->n_context;
        } else { /* a page's overlap is computed in its pass */
            w->together[w->n_together] = *c;
            w->together[w->n_together].n_context = c->n_context < header ? c->n_context : header;
            w->together[w->n_together].span = c->context + w->together[w->n_together].n_context;
            w->together[w->n_together].n_span += c->n_context - w->together[w->n_together].n_context;
            w->n_together++;
        }
    }
}

static is_status give_rows(const bench *b, work *w)
{
    uint32_t most = 0;

    for (size_t i = 0; i < w->n_apart; i++) most = w->apart[i].n_span > most ? w->apart[i].n_span : most;
    for (size_t i = 0; i < w->n_together; i++) most = w->together[i].n_span > most ? w->together[i].n_span : most;
    IS_TRY(is_rows_new(is_engine_geometry(b->enc.engine), most, &w->rows));
    for (size_t i = 0; i < w->n_apart; i++) w->apart[i].rows = w->rows.rows;
    for (size_t i = 0; i < w->n_together; i++) w->together[i].rows = w->rows.rows;
    return INFERSCALE_OK;
}

static is_status fact_spans(bench *b, work *w, const is_policy *policy, int64_t id, size_t most)
{
    inferscale_list *item = NULL;
    is_context *contexts = NULL;
    is_tokens span = { 0 };
    size_t n = 0;
    is_status st = is_bank_get(b->l->is->bank, &b->l->partition, &id, 1, &item);

    if (st == INFERSCALE_OK && item->n == 1) {
        st = is_profile_fact(b->enc.engine, NULL, &item->items[0], &span);
        if (st == INFERSCALE_OK) st = is_encode_contexts(&b->enc, &b->l->partition, policy, &item->items[0], &contexts, &n);
        for (size_t i = 0; i < n && w->n_apart < most && st == INFERSCALE_OK; i++) st = add_span(b, w, policy, &contexts[i], &span);
    }
    is_contexts_free(contexts, n);
    is_tokens_free(&span);
    inferscale_list_free(item);
    return st;
}

/* By context and span together: what continues a span stands right behind it. */
static int by_tokens(const void *a, const void *b)
{
    const is_capture *x = a, *y = b;
    uint32_t nx = x->n_context + x->n_span, ny = y->n_context + y->n_span;
    int order = memcmp(x->context, y->context, (nx < ny ? nx : ny) * sizeof(int32_t));

    return order ? order : nx < ny ? -1 : nx > ny;
}

static is_status work_new(bench *b, const is_policy *policy, work *w)
{
    size_t most = b->o->n_spans < SPANS_MOST ? b->o->n_spans : SPANS_MOST, all = policy->kind == IS_POLICY_PAGE ? SPANS_MOST : most;

    w->apart = is_calloc(all + 1, sizeof *w->apart);
    w->together = is_calloc(all + 1, sizeof *w->together);
    w->ids = is_calloc(all + 1, sizeof *w->ids);
    if (!w->apart || !w->together || !w->ids) return no_memory();
    for (size_t i = 0; i < b->n_ids && w->n_apart < all; i++) IS_TRY(fact_spans(b, w, policy, b->ids[i], all));
    if (w->n_apart == 0) return is_fail(INFERSCALE_E_UNSUPPORTED, "%s has no spans to capture here", policy->name);
    if (policy->kind == IS_POLICY_PAGE) { /* whole pages, each in its order */
        is_sort(w->apart, w->n_apart, sizeof *w->apart, by_tokens);
        while (most < w->n_apart && w->apart[most].n_context > w->apart[most - 1].n_context) most++;
        if (most < w->n_apart) w->n_apart = most;
    }
    w->n_tokens = 0;
    for (size_t i = 0; i < w->n_apart; i++) w->n_tokens += w->apart[i].n_span;
    join(b, w, policy);
    return give_rows(b, w);
}

/* ---- The two ways -------------------------------------------------------------------------------------------------------- */

static is_status run_way(bench *b, work *w, bool together, double *ms)
{
    is_capture *c = together ? w->together : w->apart;
    size_t n = together ? w->n_together : w->n_apart, step = together ? b->o->batch : 1;
    double t0 = now_ms(b);

    for (size_t i = 0; i < n; i += step)
        IS_TRY(is_engine_capture_many(b->enc.engine, c + i, n - i < step ? n - i : step));
    *ms = now_ms(b) - t0;
    return INFERSCALE_OK;
}

static is_status measure_ratio(bench *b, const is_policy *policy, bench_encode_row *row)
{
    double apart[RUNS_MAX], together[RUNS_MAX], ratio[RUNS_MAX];
    work w = { 0 };
    rng r = rng_stream(b->o->seed, 0xba7c4, 0);
    is_status st = work_new(b, policy, &w);

    for (uint32_t i = 0; i <= b->o->runs && st == INFERSCALE_OK; i++) { /* pair 0 warms up and is not kept */
        bool first = rng_below(&r, 2);
        double ms[2];

        st = run_way(b, &w, first, &ms[first]);
        if (st == INFERSCALE_OK) st = run_way(b, &w, !first, &ms[!first]);
        if (st == INFERSCALE_OK) st = tick(b);
        if (i == 0 || st != INFERSCALE_OK) continue;
        apart[i - 1] = ms[0];
        together[i - 1] = ms[1];
        ratio[i - 1] = ms[0] / (ms[1] > 0 ? ms[1] : 1e-9);
    }
    if (st == INFERSCALE_OK) {
        row->n_spans = (uint32_t)w.n_apart;
        row->span_tokens = w.n_tokens;
        row->apart_ms = stats_median(apart, b->o->runs);
        row->together_ms = stats_median(together, b->o->runs);
        row->batched_ratio = stats_median(ratio, b->o->runs);
        row->ratio_lo = stats_percentile(ratio, b->o->runs, 0.25);
        row->ratio_hi = stats_percentile(ratio, b->o->runs, 0.75);
    }
    work_free(&w);
    return st;
}

static is_status measure_policy(bench *b, const char *name, bench_encode_row *row)
{
    const inferscale *is = b->l->is;
    is_policy policy;
    is_encode_job job = { .policy = &policy };
    double t0;

    IS_TRY(is_policy_parse(name, &policy));
    memcpy(row->policy, policy.name, sizeof row->policy);
    t0 = is_now_ms();
    IS_TRY(is_encode_facts(&b->enc, &b->l->partition, b->ids, b->n_ids, &job));
    row->facts_per_s = (double)job.facts / (is_now_ms() - t0) * 1e3;
    IS_TRY(is_bank_partition_refresh(is->bank, &b->l->partition));
    row->facts = job.facts;
    row->tokens_stored = job.tokens_stored;
    row->tokens_computed = job.tokens_computed;
    row->facts_left = job.n_left;
    row->computed_per_stored = (double)job.tokens_computed / (double)(job.tokens_stored ? job.tokens_stored : 1);
    row->first = row->computed_per_stored <= first_stage_most;
    row->is_default = strcmp(policy.name, is->policy.name) == 0 || (is->has_refine && strcmp(policy.name, is->refine.name) == 0);
    IS_TRY(tick(b));
    return measure_ratio(b, &policy, row);
}

static bool wants_vectors(const bench_encode_options *o)
{
    for (size_t i = 0; i < o->n_policies; i++) {
        is_policy p;

        if (is_policy_parse(o->policies[i], &p) != INFERSCALE_OK) continue;
        if (p.kind == IS_POLICY_NEAR || p.kind == IS_POLICY_COMPANY || (p.kind == IS_POLICY_PAGE && p.order == IS_PAGE_TOPIC)) return true;
    }
    return false;
}

static is_status set_up(bench *b, inferscale_model_info *info)
{
    is_policy p;

    for (size_t i = 0; i < b->o->n_policies; i++) IS_TRY(is_policy_parse(b->o->policies[i], &p)); /* before minutes of work */
    IS_TRY(lab_open(&b->o->store, "bench", &b->l));
    IS_TRY(inferscale_model(b->l->is, info));
    if (!info->can_inject)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "%s cannot be injected (%s); there is nothing to encode for it", info->name,
                       info->why_not);
    IS_TRY(is_handle_engine(b->l->is));
    IS_TRY(remember(b));
    if (wants_vectors(b->o)) IS_TRY(is_handle_embed(b->l->is, &b->l->partition, NULL, NULL));
    IS_TRY(is_bank_partition_refresh(b->l->is->bank, &b->l->partition));
    b->enc = is_handle_encoder(b->l->is);
    b->cpu_clock = info->n_threads == 1;
    b->total = b->o->n_policies * (b->o->runs + 2);
    return INFERSCALE_OK;
}

is_status bench_encode_run(const bench_encode_options *options, bench_encode_row *rows, size_t *n, inferscale_model_info *info,
                           bool *cpu_clock)
{
    bench b = { .o = options };
    is_status st;

    *n = 0;
    memset(rows, 0, options->n_policies * sizeof *rows);
    if (options->n_policies == 0 || options->n_policies > BENCH_ENCODE_POLICIES || options->n_facts == 0 ||
        options->n_facts > FACTS_MAX || options->runs < RUNS_MIN || options->runs > RUNS_MAX || options->batch == 0 ||
        options->n_spans == 0)
        return is_fail(INFERSCALE_E_INVALID, "the encoding benchmark takes up to %d policies, %d facts and %d to %d runs",
                       BENCH_ENCODE_POLICIES, FACTS_MAX, RUNS_MIN, RUNS_MAX);
    st = set_up(&b, info);
    *cpu_clock = b.cpu_clock;
    for (; *n < options->n_policies && st == INFERSCALE_OK; *n += st == INFERSCALE_OK)
        st = measure_policy(&b, options->policies[*n], &rows[*n]);
    lab_close(b.l);
    is_free(b.ids);
    return st;
}
