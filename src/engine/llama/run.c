/* run.c - a run: one live sequence, and what it has to do (step.c does it).
 *
 * What needs no engine is done here, by the caller's thread, while others are computed: checking a plan, composing what is stored. */
#include "engine/llama/internal.h"

#include <string.h>

/* Are the parts contiguous, their tokens valid, and can they be provided? *total = tokens to provide. */
static is_status check_parts(is_llama *e, const is_plan *plan, bool extend, uint32_t at, uint32_t *total)
{
    uint64_t sum = 0, resident = 0;
    bool providing = false;

    if (!plan || plan->n_parts == 0) return is_fail(INFERSCALE_E_INVALID, "the plan is empty");
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *p = &plan->parts[i];

        if (p->n_tokens && !p->tokens) return is_fail(INFERSCALE_E_INVALID, "part %u of the plan has no tokens", i);
        if (p->pos - plan->parts[0].pos != sum)
            return is_fail(INFERSCALE_E_INVALID, "part %u of the plan stands at position %u, not %llu: parts must be "
                           "contiguous", i, p->pos,
                           (unsigned long long)(plan->parts[0].pos + sum));
        sum += p->n_tokens;
        if (p->source == IS_SRC_RESIDENT) {
            if (!extend || providing) return is_fail(INFERSCALE_E_INVALID,
                                                     "part %u of the plan is resident where nothing can be", i);
            resident += p->n_tokens;
            continue;
        }
        providing = true;
        if (p->source == IS_SRC_STORED) {
            if (!e->geometry) return is_fail(INFERSCALE_E_UNSUPPORTED, "stored KV cannot be injected: %s", e->info.why_not);
            IS_TRY(is_part_check(e, p));
        } else if (p->source != IS_SRC_COMPUTED) {
            return is_fail(INFERSCALE_E_INVALID, "part %u of the plan has the unknown source %d", i, (int)p->source);
        }
        IS_TRY(is_tokens_check(e, p->tokens, p->n_tokens));
    }
    if (resident && resident != at)
        return is_fail(INFERSCALE_E_INVALID, "the plan counts %llu resident tokens and the sequence holds %u; start a new run",
                       (unsigned long long)resident, at);
    if (plan->parts[0].pos != at - resident)
        return is_fail(INFERSCALE_E_INVALID, "the plan begins at position %u, the sequence stands at %u; plan again",
                       plan->parts[0].pos, at - (uint32_t)resident);
    sum -= resident;
    if (sum == 0 || plan->parts[plan->n_parts - 1].source != IS_SRC_COMPUTED || plan->parts[plan->n_parts - 1].n_tokens == 0)
        return is_fail(INFERSCALE_E_INVALID, "the plan must end with computed tokens, whose logits are wanted");
    if (at + sum > e->n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "the plan needs %llu tokens and the engine's context has %u; use fewer facts, a "
                       "shorter question, or raise n_ctx", (unsigned long long)(at + sum), e->n_ctx);
    *total = (uint32_t)sum;
    return INFERSCALE_OK;
}

/* Joins the tokens of parts [0, n) into a new array (is_free); *sum = how many. NULL = out of memory. */
static int32_t *join(const is_part *parts, uint32_t n, uint32_t *sum)
{
    int32_t *all;

    *sum = 0;
    for (uint32_t p = 0; p < n; p++) *sum += parts[p].n_tokens;
    all = is_malloc((*sum + 1) * sizeof *all);
    for (uint32_t p = 0, at = 0; all && p < n; at += parts[p++].n_tokens)
        if (parts[p].n_tokens) memcpy(all + at, parts[p].tokens, parts[p].n_tokens * sizeof *all);
    return all;
}

/* The leading parts that may be an exact prefix. */
static is_status note_prefix(is_llama *e, is_run *run, const is_plan *plan, const is_run_opts *o)
{
    uint32_t want = o->cache_parts ? o->cache_parts : 1, parts = 0;

    if (o->no_prefix_cache || e->no_partial_memory) return INFERSCALE_OK;
    while (parts < want && parts < plan->n_parts && plan->parts[parts].source == IS_SRC_COMPUTED) parts++;
    if (parts == 0) return INFERSCALE_OK;
    run->whose = (is_whose){ .n_shared = o->n_shared };
    if (o->realm) memcpy(run->whose.tag, o->realm->tag, sizeof run->whose.tag);
    run->prefix_tokens = join(plan->parts, parts, &run->n_prefix);
    return run->prefix_tokens ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the plan's tokens");
}

/* The first stored parts in a row are composed ahead. */
static is_status compose_ahead(is_llama *e, is_run *run, const is_plan *plan)
{
    uint32_t first = 0, end;
    double t0 = is_now_ms();
    is_status st;

    while (first < plan->n_parts && plan->parts[first].source != IS_SRC_STORED) first++;
    for (end = first; end < plan->n_parts && plan->parts[end].source == IS_SRC_STORED;) end++;
    if (first == end) return INFERSCALE_OK;
    st = is_inject_ahead(e, plan->parts + first, end - first, &run->ahead);
    run->stats.compose_ms += is_now_ms() - t0;
    return st;
}

/* From here on the run has this to do. */
static void set_task(is_run *run, const is_plan *plan, const is_run_opts *o)
{
    run->plan = plan;
    run->part = run->at = 0;
    run->left = 0;
    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].source == IS_SRC_COMPUTED) run->left += plan->parts[i].n_tokens;
    run->before = run->pos;
    run->batch = o->batch;
    run->cancel = o->cancel;
    run->stop = o->stop;
    run->waited = 0;
}

static const is_run_opts none;

is_status is_llama_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **out)
{
    const is_run_opts *o = opts ? opts : &none;
    is_llama *e = impl;
    is_run *run;
    uint32_t total;
    is_status st;

    *out = NULL;
    IS_TRY(check_parts(e, plan, false, 0, &total));
    run = is_calloc(1, sizeof *run);
    if (!run) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a run");
    run->seq = run->prefix = -1;
    run->logits = is_malloc(e->n_vocab * sizeof *run->logits);
    st = run->logits ? is_sampler_new(e, &o->sampling, &run->sampler) : is_fail(INFERSCALE_E_NOMEM, "out of memory for the logits of a run");
    if (st == INFERSCALE_OK) st = note_prefix(e, run, plan, o);
    if (st == INFERSCALE_OK) st = compose_ahead(e, run, plan);
    if (st != INFERSCALE_OK) {
        is_llama_finish(e, run);
        return st;
    }
    set_task(run, plan, o);
    *out = run;
    return INFERSCALE_OK;
}

static is_status check_run(const is_run *run)
{
    if (!run) return is_fail(INFERSCALE_E_INVALID, "there is no run");
    if (run->broken) return is_fail(INFERSCALE_E_INVALID, "an earlier failure left this run incomplete; start a new one");
    return INFERSCALE_OK;
}

/* The sampler learns what was fed, now that it is the owner's time and not the engine's. */
static is_status settle(is_run *run)
{
    bool fed = run->fed;

    run->fed = false;
    return fed ? is_sampler_accept(run->sampler, run->token) : INFERSCALE_OK;
}

is_status is_llama_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts)
{
    const is_run_opts *o = opts ? opts : &none;
    is_llama *e = impl;
    is_sampler *sampler = NULL;
    uint32_t total;
    is_status st;

    IS_TRY(check_run(run));
    IS_TRY(check_parts(e, more, true, run->pos, &total));
    if (opts) IS_TRY(is_sampler_new(e, &opts->sampling, &sampler));
    memset(&run->stats, 0, sizeof run->stats);
    run->stats.tokens_resident = run->pos;
    st = compose_ahead(e, run, more);
    if (st != INFERSCALE_OK) {
        is_sampler_free(sampler);
        return st;
    }
    run->fed = false;
    run->sampler_next = sampler;
    set_task(run, more, o);
    return INFERSCALE_OK;
}

is_status is_llama_token(void *impl, is_run *run, int32_t token)
{
    is_llama *e = impl;

    IS_TRY(check_run(run));
    if (run->pos >= e->n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "the engine's context of %u tokens is full; raise n_ctx or ask for a shorter "
                       "answer", e->n_ctx);
    IS_TRY(is_tokens_check(e, &token, 1));
    IS_TRY(settle(run));
    if (!is_sampler_allows(run->sampler, token))
        return is_fail(INFERSCALE_E_INVALID, "the grammar does not allow token %d here; feed what was sampled", token);
    run->token = token;
    run->plan = NULL;
    run->left = 1;
    run->before = run->pos;
    run->batch = 0;
    run->cancel = run->stop = NULL;
    run->waited = 0;
    return INFERSCALE_OK;
}

uint32_t is_llama_left(void *impl, is_run *run)
{
    (void)impl;
    return run->left;
}

/* Takes the sequence back; window layers may have lost rows, then it is broken. */
void is_llama_undo(void *impl, is_run *run)
{
    is_llama *e = impl;
    llama_memory_t mem = llama_get_memory(e->serve);
    llama_pos window = llama_model_n_swa(e->model), low, n = (llama_pos)run->before;

    if (run->seq >= 0) {
        if (!llama_memory_seq_rm(mem, run->seq, n, -1)) run->broken = true;
        if (llama_memory_seq_pos_max(mem, run->seq) != n - 1) run->broken = true; /* a failed injection emptied it */
        low = llama_memory_seq_pos_min(mem, run->seq);
        if (window > 0 && low > 0 && low > n - window) run->broken = true;
    }
    run->pos = run->before;
    run->has_logits = run->fed = false;
    run->plan = NULL;
    run->left = 0;
    is_sampler_free(run->sampler_next);
    run->sampler_next = NULL;
    is_blob_give(e, &run->ahead);
}

static void unlink_run(is_llama *e, const is_run *run)
{
    is_run **p = &e->runs;

    while (*p && *p != run) p = &(*p)->next;
    if (*p) *p = run->next;
}

void is_llama_finish(void *impl, is_run *run)
{
    is_llama *e = impl;

    if (!run) return;
    if (run->begun) {
        unlink_run(e, run);
        is_free(run->aside);
        if (run->prefix >= 0) e->prefixes[run->prefix].n_runs--;
        is_seq_drop(e, run->seq);
    }
    is_sampler_free(run->sampler);
    is_sampler_free(run->sampler_next);
    is_blob_give(e, &run->ahead);
    is_free(run->prefix_tokens);
    is_free(run->logits);
    is_free(run);
}

void is_llama_stats(void *impl, is_run *run, is_run_stats *out)
{
    (void)impl;
    *out = run->stats;
}

is_status is_llama_sample(void *impl, is_run *run, int32_t *token)
{
    is_llama *e = impl;

    if (!run->has_logits || run->broken)
        return is_fail(INFERSCALE_E_INVALID, "there are no logits to sample from; start or extend the run first");
    IS_TRY(settle(run));
    return is_sampler_choose(run->sampler, run->logits, e->n_vocab, token);
}

const float *is_llama_logits(void *impl, is_run *run)
{
    (void)impl;
    return run && run->has_logits && !run->broken ? run->logits : NULL;
}

uint32_t is_llama_run_tokens(void *impl, is_run *run)
{
    (void)impl;
    return run ? run->pos : 0;
}

is_status is_llama_run_alone(is_llama *e, const is_plan *plan, const is_run_opts *o, is_run **out)
{
    is_lane lane = { 0 };

    IS_TRY(is_llama_begin(e, plan, o, out));
    lane.run = *out;
    while (lane.status == INFERSCALE_OK && !lane.done) {
        lane.most = e->n_batch;
        is_llama_step(e, &lane, 1);
    }
    if (lane.status == INFERSCALE_OK) return INFERSCALE_OK;
    is_llama_finish(e, *out);
    *out = NULL;
    return is_fail(lane.status, "%s", lane.why);
}
