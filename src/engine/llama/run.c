/* run.c - executing a plan: one live sequence, its parts provided in order.
 *
 *   leading computed parts   found as an exact prefix, else computed (and kept as one)
 *   stored parts in a row    one blob (inject.c)
 *   computed parts in a row  decoded together
 *
 * Once a stored part was injected nothing of the sequence is kept as an exact prefix. */
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

/* Decodes; frees kept prefixes while there are not enough cells. */
static is_status compute(is_llama *e, is_run *run, const int32_t *tokens, uint32_t n, uint32_t batch, bool want_last,
                         is_run_stats *stats)
{
    double t0 = is_now_ms();
    is_status st;

    for (;;) {
        st = is_llama_decode(e, e->serve, run->seq, tokens, n, run->pos, batch, want_last);
        if (st != INFERSCALE_E_CONTEXT) break;
        llama_memory_seq_rm(llama_get_memory(e->serve), run->seq, (llama_pos)run->pos, -1); /* what fitted of the batch */
        if (!is_prefix_evict(e, run->prefix)) break;
    }
    stats->compute_ms += is_now_ms() - t0;
    IS_TRY(st);
    run->pos += n;
    stats->tokens_computed += n;
    return INFERSCALE_OK;
}

/* Joins the tokens of parts [i, j) into a new array (is_free); *n = how many. NULL = out of memory. */
static int32_t *join(const is_part *parts, uint32_t i, uint32_t j, uint32_t *n)
{
    uint32_t sum = 0;
    int32_t *all;

    for (uint32_t p = i; p < j; p++) sum += parts[p].n_tokens;
    all = is_malloc((sum + 1) * sizeof *all);
    *n = 0;
    for (uint32_t p = i; all && p < j; p++) {
        if (parts[p].n_tokens) memcpy(all + *n, parts[p].tokens, parts[p].n_tokens * sizeof *all);
        *n += parts[p].n_tokens;
    }
    return all;
}

static is_status take_logits(is_llama *e, is_run *run)
{
    const float *last = llama_get_logits_ith(e->serve, -1);

    if (!last) return is_fail(INFERSCALE_E_ENGINE, "the engine gave no logits (%s); run 'inferscale doctor'",
                              is_llama_last_error());
    memcpy(run->logits, last, e->n_vocab * sizeof *last);
    run->has_logits = true;
    return INFERSCALE_OK;
}

/* The parts [0, *done) that may be an exact prefix: found, or computed and kept. */
static is_status provide_prefix(is_llama *e, is_run *run, const is_plan *plan, const is_run_opts *o, is_run_stats *stats,
                                uint32_t *done)
{
    uint32_t want = o->cache_parts ? o->cache_parts : 1, parts = 0, n, hit = 0;
    int32_t *tokens;
    double t0 = is_now_ms();
    bool all;
    is_status st = INFERSCALE_OK;

    while (parts < want && parts < plan->n_parts && plan->parts[parts].source == IS_SRC_COMPUTED) parts++;
    *done = 0;
    if (parts == 0) return INFERSCALE_OK;
    tokens = join(plan->parts, 0, parts, &n);
    if (!tokens) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the plan's tokens");
    all = n == plan->n_tokens; /* the last token must be run: its logits are wanted */
    if (!o->no_prefix_cache && !e->no_partial_memory) is_prefix_find(e, tokens, n - all, run->seq, &hit, &run->prefix);
    if (hit) e->prefixes[run->prefix].n_runs++;
    stats->inject_ms += is_now_ms() - t0; /* a parked prefix was copied back */
    run->pos = hit;
    stats->tokens_resident += hit;
    if (hit < n) st = compute(e, run, tokens + hit, n - hit, o->batch, all, stats);
    if (st == INFERSCALE_OK && hit < n && !o->no_prefix_cache && !e->no_partial_memory) {
        int kept;

        is_prefix_keep(e, tokens, n, run->seq, &kept);
        if (kept >= 0) {
            if (run->prefix >= 0) e->prefixes[run->prefix].n_runs--;
            run->prefix = kept;
            e->prefixes[kept].n_runs++;
        }
    }
    is_free(tokens);
    *done = parts;
    return st;
}

static is_status provide(is_llama *e, is_run *run, const is_plan *plan, const is_run_opts *o, uint32_t first,
                         is_run_stats *stats)
{
    for (uint32_t i = first; i < plan->n_parts;) {
        is_source source = plan->parts[i].source;
        uint32_t j = i, n = 0;
        is_status st;

        while (j < plan->n_parts && plan->parts[j].source == source) n += plan->parts[j++].n_tokens;
        if (is_llama_abort(e)) return is_fail(INFERSCALE_E_CANCELLED, "cancelled before the engine had all of the prompt");
        if (source == IS_SRC_STORED) {
            IS_TRY(is_inject(e, e->serve, run->seq, plan->parts + i, j - i, run->pos, stats));
            run->pos += n;
        } else if (source == IS_SRC_COMPUTED) {
            int32_t *tokens = join(plan->parts, i, j, &n);

            st = tokens ? compute(e, run, tokens, n, o->batch, j == plan->n_parts, stats) : is_fail(INFERSCALE_E_NOMEM,
                "out of memory");
            is_free(tokens);
            IS_TRY(st);
        }
        i = j;
    }
    return take_logits(e, run);
}

static void unlink_run(is_llama *e, is_run *run)
{
    is_run **p = &e->runs;

    while (*p && *p != run) p = &(*p)->next;
    if (*p) *p = run->next;
}

void is_llama_finish(void *impl, is_run *run)
{
    is_llama *e = impl;

    if (!run) return;
    unlink_run(e, run);
    if (run->prefix >= 0) e->prefixes[run->prefix].n_runs--;
    is_seq_drop(e, run->seq);
    is_sampler_free(run->sampler);
    is_free(run->logits);
    is_free(run);
}

static is_status new_run(is_llama *e, const is_run_opts *o, is_run **out)
{
    is_run *run = is_calloc(1, sizeof *run);
    is_status st;

    if (!run) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a run");
    run->prefix = -1;
    run->next = e->runs;
    e->runs = run;
    run->logits = is_malloc(e->n_vocab * sizeof *run->logits);
    run->seq = is_seq_take(e);
    st = is_sampler_new(e, &o->sampling, &run->sampler);
    if (st == INFERSCALE_OK && !run->logits) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for the logits of a run");
    if (st == INFERSCALE_OK && run->seq < 0)
        st = is_fail(INFERSCALE_E_BUSY, "all %d sequences of the engine are in use; end other conversations", SEQ_SCRATCH);
    if (st != INFERSCALE_OK) {
        is_llama_finish(e, run);
        return st;
    }
    *out = run;
    return INFERSCALE_OK;
}

is_status is_llama_start(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run, is_run_stats *stats)
{
    static const is_run_opts none;
    const is_run_opts *o = opts ? opts : &none;
    is_llama *e = impl;
    is_run_stats unwanted, *s = stats ? stats : &unwanted;
    uint32_t total, done = 0;
    is_status st;

    *run = NULL;
    memset(s, 0, sizeof *s);
    IS_TRY(check_parts(e, plan, false, 0, &total));
    IS_TRY(new_run(e, o, run));
    e->cancel = o->cancel;
    e->stop = o->stop;
    st = provide_prefix(e, *run, plan, o, s, &done);
    if (st == INFERSCALE_OK) st = provide(e, *run, plan, o, done, s);
    e->cancel = e->stop = NULL;
    if (st != INFERSCALE_OK) {
        is_llama_finish(e, *run);
        *run = NULL;
    }
    return st;
}

/* Takes a sequence back to its first n tokens; window layers may have lost rows, then it is broken. */
static void undo(is_llama *e, is_run *run, uint32_t n)
{
    llama_memory_t mem = llama_get_memory(e->serve);
    llama_pos window = llama_model_n_swa(e->model), low;

    if (!llama_memory_seq_rm(mem, run->seq, (llama_pos)n, -1)) run->broken = true;
    low = llama_memory_seq_pos_min(mem, run->seq);
    if (window > 0 && low > 0 && low > (llama_pos)n - window) run->broken = true;
    run->pos = n;
    run->has_logits = false;
}

static is_status check_run(const is_run *run)
{
    if (!run) return is_fail(INFERSCALE_E_INVALID, "there is no run");
    if (run->broken) return is_fail(INFERSCALE_E_INVALID, "an earlier failure left this run incomplete; start a new one");
    return INFERSCALE_OK;
}

is_status is_llama_extend(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts, is_run_stats *stats)
{
    static const is_run_opts none;
    const is_run_opts *o = opts ? opts : &none;
    is_llama *e = impl;
    is_run_stats unwanted, *s = stats ? stats : &unwanted;
    uint32_t total, before, first = 0;
    is_sampler *sampler = NULL;
    is_status st;

    memset(s, 0, sizeof *s);
    IS_TRY(check_run(run));
    IS_TRY(check_parts(e, more, true, run->pos, &total));
    if (opts) IS_TRY(is_sampler_new(e, &opts->sampling, &sampler));
    before = run->pos;
    while (more->parts[first].source == IS_SRC_RESIDENT) first++;
    s->tokens_resident = before;
    e->cancel = o->cancel;
    e->stop = o->stop;
    st = provide(e, run, more, o, first, s);
    e->cancel = e->stop = NULL;
    if (st != INFERSCALE_OK) {
        undo(e, run, before);
        is_sampler_free(sampler);
    } else if (sampler) {
        is_sampler_free(run->sampler);
        run->sampler = sampler;
    } else {
        run->sampler->n_counts = 0;
    }
    return st;
}

is_status is_llama_feed(void *impl, is_run *run, int32_t token)
{
    is_llama *e = impl;
    is_run_stats unused = { 0 };
    uint32_t before;
    is_status st;

    IS_TRY(check_run(run));
    if (run->pos >= e->n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "the engine's context of %u tokens is full; raise n_ctx or ask for a shorter "
                       "answer", e->n_ctx);
    IS_TRY(is_tokens_check(e, &token, 1));
    if (!is_sampler_allows(run->sampler, token))
        return is_fail(INFERSCALE_E_INVALID, "the grammar does not allow token %d here; feed what was sampled", token);
    before = run->pos;
    st = compute(e, run, &token, 1, 0, true, &unused);
    if (st == INFERSCALE_OK) st = take_logits(e, run);
    if (st == INFERSCALE_OK) st = is_sampler_accept(run->sampler, token);
    if (st != INFERSCALE_OK) undo(e, run, before);
    return st;
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
