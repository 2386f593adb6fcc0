/* step.c - one decode for several runs.
 *
 * Each run provides its parts in order:
 *   leading computed parts   found as an exact prefix, else computed (and kept as one)
 *   stored parts in a row    one blob (inject.c), composed before by the run's owner
 *   computed parts in a row  decoded, as many tokens a step as the lane may
 *
 * Once a stored part was injected nothing of the sequence is kept as an exact prefix.
 *
 * Cells can run out. Kept prefixes make room first; then the newest prompts wait while others go on and end; and if nobody could go
 * on, the newest fails. */
#include "engine/llama/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- One lane ------------------------------------------------------------------------------------------------------------ */

static void fail_lane(is_lane *l, is_status st)
{
    l->status = st;
    snprintf(l->why, sizeof l->why, "%s", is_error());
    l->run->chunk = 0;
}

static bool is_in_step(const is_llama *e, const is_run *run)
{
    for (size_t i = 0; i < e->n_lanes; i++)
        if (e->lanes[i].run == run) return true;
    return false;
}

/* The run that has not been in a step for longest, and is not in this one, gives its stream; its state waits in memory. */
static bool put_one_aside(is_llama *e)
{
    is_run *oldest = NULL;

    for (is_run *r = e->runs; r; r = r->next)
        if (r->seq >= 0 && !is_in_step(e, r) && (!oldest || r->stepped_at < oldest->stepped_at)) oldest = r;
    if (!e->streams || !oldest || !is_seq_save(e, oldest->seq, &oldest->aside, &oldest->n_aside)) return false;
    is_seq_drop(e, oldest->seq);
    oldest->seq = -1;
    return true;
}

static is_status take_sequence(is_llama *e, is_run *run)
{
    run->seq = is_seq_take(e);
    while (run->seq < 0 && (is_prefix_evict(e, -1) || put_one_aside(e))) run->seq = is_seq_take(e);
    if (run->seq < 0) return is_fail(INFERSCALE_E_BUSY, "all %u sequences of the engine are in use; end other conversations", e->n_seqs);
    return INFERSCALE_OK;
}

/* A run that was put aside comes back. */
static is_status come_back(is_llama *e, is_run *run)
{
    IS_TRY(take_sequence(e, run));
    if (!is_seq_load(e, run->seq, run->aside, run->n_aside)) {
        is_seq_drop(e, run->seq);
        run->seq = -1;
        return is_fail(INFERSCALE_E_ENGINE, "a run's state could not be put back (%s); start it again", is_llama_last_error());
    }
    is_free(run->aside);
    run->aside = NULL;
    return INFERSCALE_OK;
}

/* A sequence, and the longest exact prefix that is there. E_BUSY. */
static is_status first_step(is_llama *e, is_run *run)
{
    double t0 = is_now_ms();
    uint32_t hit = 0, whole = run->plan->n_tokens;

    IS_TRY(take_sequence(e, run));
    run->begun = true;
    run->next = e->runs;
    e->runs = run;
    if (!run->n_prefix) return INFERSCALE_OK;
    /* the last token must be run: its logits are wanted */
    is_prefix_find(e, &run->whose, run->prefix_tokens, run->n_prefix - (run->n_prefix == whole), run->seq, &hit, &run->prefix);
    if (run->prefix >= 0) e->prefixes[run->prefix].n_runs++;
    run->stats.inject_ms += is_now_ms() - t0; /* a parked prefix was copied back */
    run->stats.tokens_resident += hit;
    run->pos = hit;
    run->left -= hit;
    run->at = hit;
    while (run->at && run->at >= run->plan->parts[run->part].n_tokens) run->at -= run->plan->parts[run->part++].n_tokens;
    return INFERSCALE_OK;
}

/* Injects what is stored at the run's place, and passes over what is there. */
static is_status provide_stored(is_llama *e, is_run *run)
{
    while (run->plan) {
        const is_part *p = &run->plan->parts[run->part];
        uint32_t n = 0, j = run->part;

        if (p->source == IS_SRC_RESIDENT || run->at == p->n_tokens) {
            run->part++;
            run->at = 0;
            continue;
        }
        if (p->source != IS_SRC_STORED) break;
        while (run->plan->parts[j].source == IS_SRC_STORED) n += run->plan->parts[j++].n_tokens;
        IS_TRY(is_inject(e, e->serve, run->seq, p, j - run->part, run->pos, &run->ahead, &run->stats));
        is_blob_give(e, &run->ahead);
        run->pos += n;
        run->part = j;
        run->moved = true;
    }
    return INFERSCALE_OK;
}

/* How many tokens this step computes for it: up to the next stored part, the prefix's end, its own batch. */
static uint32_t chunk(const is_llama *e, const is_run *run, uint32_t most)
{
    uint32_t n = 0;

    if (most > e->n_batch) most = e->n_batch;
    if (run->batch && most > run->batch) most = run->batch;
    if (!run->plan) return 1;
    if (run->pos < run->n_prefix && most > run->n_prefix - run->pos) most = run->n_prefix - run->pos;
    for (uint32_t i = run->part; i < run->plan->n_parts && run->plan->parts[i].source == IS_SRC_COMPUTED && n < most; i++)
        n += run->plan->parts[i].n_tokens - (i == run->part ? run->at : 0);
    return n < most ? n : most;
}

static void prepare(is_llama *e, is_lane *l, size_t n_lanes)
{
    is_run *run = l->run;
    is_status st = INFERSCALE_OK;

    run->chunk = 0;
    run->moved = false;
    l->n_computed = 0;
    l->done = false;
    l->status = INFERSCALE_OK;
    run->stepped_at = ++e->clock;
    if (run->aside) st = come_back(e, run);
    else if (!run->begun) st = first_step(e, run);
    if (st == INFERSCALE_OK) st = provide_stored(e, run);
    if ((st == INFERSCALE_E_CONTEXT || st == INFERSCALE_E_BUSY) && n_lanes > 1) { /* perhaps when others have ended */
        run->waited = st;
        return;
    }
    if (st != INFERSCALE_OK) fail_lane(l, st);
    else run->chunk = chunk(e, run, l->most);
}

/* ---- The decode ---------------------------------------------------------------------------------------------------------- */

/* The lane's tokens into the batch. */
static uint32_t add_tokens(is_llama *e, is_run *run, uint32_t n)
{
    uint32_t part = run->part, at = run->at, first = n;

    for (uint32_t i = 0; i < run->chunk; i++, n++) {
        if (run->plan)
            while (at == run->plan->parts[part].n_tokens) part++, at = 0;
        e->b_token[n] = run->plan ? run->plan->parts[part].tokens[at++] : run->token;
        e->b_pos[n] = (int32_t)(run->pos + i);
        e->b_ids[n] = run->seq;
        e->b_out[n] = 0;
    }
    run->last = n - 1;
    e->b_out[n - 1] = run->left == n - first;
    return n;
}

static is_status decode(is_llama *e, is_lane *lanes, size_t n)
{
    is_run *by_seq[SERVE_SEQS_MAX] = { NULL };
    uint32_t tokens = 0;

    for (size_t i = 0; i < n; i++)
        if (lanes[i].run->chunk) by_seq[lanes[i].run->seq] = lanes[i].run;
    for (uint32_t s = 0; s < e->n_seqs; s++) { /* streams share a micro-batch only where they follow one another */
        is_run *run = by_seq[s];

        if (!run) continue;

        if (run->chunk > e->n_batch - tokens) run->chunk = e->n_batch - tokens;
        if (run->chunk) tokens = add_tokens(e, run, tokens);
    }
    return tokens ? is_llama_decode_mixed(e, e->serve, e->b_token, e->b_pos, e->b_ids, e->b_out, tokens) : INFERSCALE_OK;
}

/* What a failed decode left of the lanes' tokens. */
static void clear_rest(is_llama *e, const is_lane *lanes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (lanes[i].run->chunk) llama_memory_seq_rm(llama_get_memory(e->serve), lanes[i].run->seq, (llama_pos)lanes[i].run->pos, -1);
}

/* The last lane that has tokens to run, or with idle those that wait; only prompts if so wanted. NULL = none. */
static is_lane *newest(is_lane *lanes, size_t n, bool prompts, bool idle)
{
    for (size_t i = n; i-- > 0;)
        if (lanes[i].status == INFERSCALE_OK && (lanes[i].run->plan || !prompts) && (idle || lanes[i].run->chunk)) return &lanes[i];
    return NULL;
}

/* There are no cells for all. false = nothing more can be done. */
static bool make_room(is_llama *e, is_lane *lanes, size_t n)
{
    is_lane *last = newest(lanes, n, true, false);
    size_t running = 0;

    if (is_prefix_evict(e, -1)) return true;
    for (size_t i = 0; i < n; i++) running += lanes[i].run->chunk > 0;
    if (last && running > 1) {
        last->run->chunk = 0;
        last->run->waited = INFERSCALE_E_CONTEXT;
        return true;
    }
    last = newest(lanes, n, true, true);
    if (!last) last = newest(lanes, n, false, false);
    if (!last) return false;
    is_fail(INFERSCALE_E_CONTEXT, "no free cells in the engine's context; end other conversations or raise n_ctx");
    fail_lane(last, INFERSCALE_E_CONTEXT);
    is_llama_undo(e, last->run);
    return true;
}

/* A failure of the engine itself, in which lane? Each alone. */
static void decode_each(is_llama *e, is_lane *lanes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        is_status st;

        if (!lanes[i].run->chunk || lanes[i].status != INFERSCALE_OK) continue;
        st = decode(e, &lanes[i], 1);
        if (st != INFERSCALE_OK) {
            clear_rest(e, &lanes[i], 1);
            fail_lane(&lanes[i], st);
        }
    }
}

static is_status decode_all(is_llama *e, is_lane *lanes, size_t n)
{
    is_status st = decode(e, lanes, n);

    while (st == INFERSCALE_E_CONTEXT) {
        clear_rest(e, lanes, n);
        if (!make_room(e, lanes, n)) break;
        st = decode(e, lanes, n);
    }
    if (st == INFERSCALE_OK) return st;
    clear_rest(e, lanes, n);
    for (size_t i = 0; i < n; i++)
        if (lanes[i].run->chunk && (n == 1 || st == INFERSCALE_E_CANCELLED)) fail_lane(&lanes[i], st);
    return st;
}

/* ---- What came of it ----------------------------------------------------------------------------------------------------- */

static is_status take_logits(is_llama *e, is_run *run)
{
    const float *last = llama_get_logits_ith(e->serve, (int32_t)run->last);

    if (!last) return is_fail(INFERSCALE_E_ENGINE, "the engine gave no logits (%s); run 'inferscale doctor'", is_llama_last_error());
    memcpy(run->logits, last, e->n_vocab * sizeof *last);
    return INFERSCALE_OK;
}

static void keep_prefix(is_llama *e, is_run *run)
{
    int kept;

    if (!run->n_prefix || run->pos < run->n_prefix) return;
    if (run->pos == run->n_prefix) is_prefix_keep(e, &run->whose, run->prefix_tokens, run->n_prefix, run->seq, &kept);
    else kept = -1;
    if (kept >= 0) {
        if (run->prefix >= 0) e->prefixes[run->prefix].n_runs--;
        run->prefix = kept;
        e->prefixes[kept].n_runs++;
    }
    run->n_prefix = 0;
}

static void end_task(is_run *run)
{
    run->fed = !run->plan;
    run->plan = NULL;
    run->has_logits = true;
    if (!run->sampler_next) {
        if (!run->fed) run->sampler->n_counts = 0;
        return;
    }
    is_sampler_free(run->sampler);
    run->sampler = run->sampler_next;
    run->sampler_next = NULL;
}

/* The lane's tokens are run. */
static void advance(is_llama *e, is_lane *l, double ms)
{
    is_run *run = l->run;

    run->stats.compute_ms += ms;
    if (!run->chunk || l->status != INFERSCALE_OK) return;
    l->n_computed = run->chunk;
    run->pos += run->chunk;
    run->left -= run->chunk;
    run->stats.tokens_computed += run->chunk;
    run->at += run->chunk;
    while (run->plan && run->part < run->plan->n_parts && run->at > run->plan->parts[run->part].n_tokens)
        run->at -= run->plan->parts[run->part++].n_tokens;
    keep_prefix(e, run);
    l->done = run->left == 0;
    if (!l->done) return;
    if (take_logits(e, run) == INFERSCALE_OK) end_task(run);
    else fail_lane(l, INFERSCALE_E_ENGINE);
}

/* If no lane could do anything, none will: the newest fails of what it waits for. */
static void refuse_one(is_lane *lanes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (lanes[i].run->chunk || lanes[i].run->moved || lanes[i].status != INFERSCALE_OK) return;
    is_fail(lanes[n - 1].run->waited ? lanes[n - 1].run->waited : INFERSCALE_E_CONTEXT,
            "the engine has no room for another prompt; end other conversations or raise n_ctx");
    fail_lane(&lanes[n - 1], lanes[n - 1].run->waited ? lanes[n - 1].run->waited : INFERSCALE_E_CONTEXT);
}

void is_llama_step(void *impl, is_lane *lanes, size_t n)
{
    is_llama *e = impl;
    is_status st;
    double t0;

    e->lanes = lanes;
    e->n_lanes = n;
    for (size_t i = 0; i < n; i++) prepare(e, &lanes[i], n);
    refuse_one(lanes, n);
    t0 = is_now_ms();
    st = decode_all(e, lanes, n);
    if (st == INFERSCALE_OK) {
        for (size_t i = 0; i < n; i++) advance(e, &lanes[i], is_now_ms() - t0);
    } else if (st != INFERSCALE_E_CANCELLED && n > 1) {
        for (size_t i = 0; i < n; i++) {
            decode_each(e, &lanes[i], 1);
            advance(e, &lanes[i], is_now_ms() - t0);
        }
    }
    e->lanes = NULL;
    e->n_lanes = 0;
}
