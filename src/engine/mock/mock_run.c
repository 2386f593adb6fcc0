/* mock_run.c - plans executed on a small cache that is composed into and read back like a real one. */
#include "engine/mock/mock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "kv/codec.h"
#include "kv/compose.h"

/* ---- The cache of one run ------------------------------------------------------------------------------------------------ */

static is_status reserve(is_run *r, uint64_t n)
{
    if (n > r->m->opt.n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "%llu tokens exceed the context of %u; use fewer facts or a larger context",
                       (unsigned long long)n, r->m->opt.n_ctx);
    if (n <= r->cap) return INFERSCALE_OK;
    uint32_t cap = r->cap * 2 > n ? r->cap * 2 : (uint32_t)n + 64;
    void *p = is_realloc(r->tokens, cap * sizeof *r->tokens);
    if (!p) goto nomem;
    r->tokens = p;
    for (int i = 0; i < MOCK_PLANES; i++) {
        if (!(p = is_realloc(r->rows[i], (size_t)cap * MOCK_WIDTH * sizeof **r->rows))) goto nomem;
        r->rows[i] = p;
        if (!(p = is_realloc(r->states[i], cap * sizeof **r->states))) goto nomem;
        r->states[i] = p;
    }
    r->cap = cap;
    return INFERSCALE_OK;
nomem:
    return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for a cache of %u tokens; free some and try again", cap);
}

/* Reads the rows at the next position back, as attention would, and makes the token live. */
static void see_token(is_run *r, int32_t token, uint32_t n_passes)
{
    uint32_t pos = r->n;
    uint64_t state = 0;

    for (uint32_t p = 0; p < MOCK_PLANES; p++) {
        float row[MOCK_WIDTH];
        is_codec_decode(IS_CODEC_F16, r->rows[p] + (size_t)pos * MOCK_WIDTH, row, MOCK_WIDTH);
        mock_unrotate(r->m, p, pos, row);
        if (!mock_state(r->m, p, row, n_passes, &r->states[p][pos])) r->n_foreign++;
        state = mock_see(state, p, r->states[0][pos], r->states[p][pos]);
        if (!r->m->geometry->planes[p].window) r->seen += mock_mix(mock_mix(r->states[p][pos], p), pos);
    }
    r->chain = mock_mix(r->chain, state);
    r->ids = mock_mix(r->ids, (uint64_t)token);
    r->tokens[pos] = token;
    r->n++;
}

static void compute_token(is_run *r, int32_t token)
{
    uint64_t state = mock_mix(r->chain, (uint64_t)token);

    for (uint32_t p = 0; p < MOCK_PLANES; p++) {
        float row[MOCK_WIDTH];
        mock_row(r->m, p, state, r->n, row);
        is_codec_encode(IS_CODEC_F16, row, r->rows[p] + (size_t)r->n * MOCK_WIDTH, MOCK_WIDTH);
    }
    see_token(r, token, 1);
}

/* ---- Injection: composed by src/kv as any engine does, then un-rotated here and compared with the segment ---------------- */

static is_status check_segment(const mock *m, const is_part *part)
{
    if (m->opt.noinject) return is_fail(INFERSCALE_E_UNSUPPORTED, "the mock was told not to inject; run the text twin");
    if (!part->segment) return is_fail(INFERSCALE_E_INVALID, "a stored part has no segment; compute it as text");
    if (!is_segment_has_rows(part->segment) && !(m->opt.remote && m->vault))
        return is_fail(INFERSCALE_E_INVALID, "a stored part's segment has no rows; read the whole of it");
    return mock_check_segment(m, part->segment, part->tokens, part->n_tokens);
}

/* The row of one token in the cache against the segment's own, within the rounding of 16 bits. */
static is_status check_row(is_run *r, const is_segment *s, uint32_t p, uint32_t t)
{
    float got[MOCK_WIDTH], want[MOCK_WIDTH];
    uint32_t pos = r->n + t;
    double size = 0, off = 0;

    is_codec_decode(IS_CODEC_F16, r->rows[p] + (size_t)pos * MOCK_WIDTH, got, MOCK_WIDTH);
    mock_unrotate(r->m, p, pos, got);
    mock_stored_row(s, p, t, want);
    for (int i = 0; i < MOCK_WIDTH; i++) {
        size = fmax(size, fabs((double)want[i]));
        off = fmax(off, fabs((double)got[i] - want[i]));
    }
    if (off <= 0.005 * size + 1e-4) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INTERNAL,
                   "composed rows are wrong at position %u, plane %u (by %.4g): composition is broken; report it", pos, p, off);
}

static is_status inject_part(is_run *r, const is_part *part, const is_segment *rows, is_run_stats *stats)
{
    const uint32_t n_passes = mock_passes(rows);
    double t0 = is_now_ms();

    for (uint32_t p = 0; p < MOCK_PLANES; p++)
        IS_TRY(is_compose_rows(rows, r->m->rope, p, 0, part->n_tokens, 0, MOCK_HEADS, r->n, IS_CODEC_F16,
                               r->rows[p] + (size_t)r->n * MOCK_WIDTH, MOCK_WIDTH, MOCK_HEAD_DIM));
    stats->compose_ms += is_now_ms() - t0;
    t0 = is_now_ms();
    if (r->m->opt.garble) r->rows[0][(size_t)r->n * MOCK_WIDTH] ^= 0x4000;
    for (uint32_t p = 0; p < MOCK_PLANES; p++)
        for (uint32_t t = 0; t < part->n_tokens; t++) IS_TRY(check_row(r, rows, p, t));
    r->n_foreign += n_passes == 0;
    for (uint32_t t = 0; t < part->n_tokens; t++) see_token(r, part->tokens[t], n_passes);
    stats->inject_ms += is_now_ms() - t0;
    stats->tokens_injected += part->n_tokens;
    if (r->n_foreign && !r->m->opt.lenient)
        return is_fail(INFERSCALE_E_ENGINE, "a segment holds rows that no capture of this engine made (wrongly un-rotated, of "
                                            "another layer, or foreign); encode the fact again");
    return INFERSCALE_OK;
}

/* ---- Logits -------------------------------------------------------------------------------------------------------------- */

static double unit(uint64_t x)
{
    return (double)(x >> 11) / 9007199254740992.0;
}

/* Token ids decide the answer; the rows that were seen move the logits a little (an approximation's error), foreign a lot. */
static void make_logits(is_run *r)
{
    uint64_t seen = r->seen;
    double amplitude = r->n_foreign ? 20 : 0.05;

    for (uint32_t p = 0; p < MOCK_PLANES; p++) {
        uint32_t window = r->m->geometry->planes[p].window;
        if (!window) continue;
        for (uint32_t i = r->n > window ? r->n - window : 0; i < r->n; i++) seen += mock_mix(mock_mix(r->states[p][i], p), i);
    }
    for (uint32_t j = 0; j < MOCK_VOCAB; j++)
        r->logits[j] = (float)(4 * unit(mock_mix(r->ids, j)) + amplitude * (unit(mock_mix(seen, j)) - 0.5));
    if (r->at < r->n_script) r->logits[r->script[r->at]] += 6;
}

static is_status write_script(is_run *r, const is_plan *plan)
{
    const is_part *fact = NULL;
    is_buf b = IS_BUF_INIT;
    int32_t *ids = NULL;
    uint32_t n = 0;
    char piece[8];

    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT) fact = &plan->parts[i];
    is_buf_str(&b, fact ? "I recall: " : "I recall nothing");
    for (uint32_t i = 0; fact && i < fact->n_tokens; i++)
        is_buf_add(&b, piece, (size_t)mock_token_piece(NULL, fact->tokens[i], piece, sizeof piece));
    while (b.len && !b.failed && b.data[b.len - 1] == '\n') b.len--;
    is_buf_fmt(&b, " (%08x)<|end|>", (unsigned)(r->ids >> 32));
    if (!is_buf_ok(&b)) goto nomem;
    is_status st = mock_cut((const char *)b.data, b.len, true, false, &ids, &n);
    is_buf_free(&b);
    IS_TRY(st);
    is_free(r->script);
    r->script = ids;
    r->n_script = n;
    r->at = 0;
    return INFERSCALE_OK;
nomem:
    is_buf_free(&b);
    return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for the answer; free some and try again");
}

/* ---- Runs ---------------------------------------------------------------------------------------------------------------- */

static is_status check_plan(const is_run *r, const is_plan *plan)
{
    uint64_t pos = r->n;
    bool resident = true;

    if (!plan || !plan->n_parts || !plan->parts)
        return is_fail(INFERSCALE_E_INVALID, "the plan is empty; give at least a question");
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];
        IS_TRY(mock_check_tokens(part->tokens, part->n_tokens, "a part of the plan"));
        if (part->source == IS_SRC_RESIDENT) {
            if (!resident || (uint64_t)part->pos + part->n_tokens > r->n ||
                (part->n_tokens && memcmp(part->tokens, r->tokens + part->pos, part->n_tokens * sizeof *part->tokens) != 0))
                return is_fail(INFERSCALE_E_INVALID, "part %u is not resident at position %u; compute it", i, part->pos);
            continue;
        }
        resident = false;
        if (part->pos != pos)
            return is_fail(INFERSCALE_E_INVALID, "part %u stands at position %u, the sequence at %llu; leave no gap", i,
                           part->pos, (unsigned long long)pos);
        if (part->source == IS_SRC_STORED) IS_TRY(check_segment(r->m, part));
        else if (part->source != IS_SRC_COMPUTED)
            return is_fail(INFERSCALE_E_INVALID, "part %u has no known source (%d); use stored or computed", i, part->source);
        pos += part->n_tokens;
    }
    const is_part *last = &plan->parts[plan->n_parts - 1];
    if (last->source != IS_SRC_COMPUTED || !last->n_tokens)
        return is_fail(INFERSCALE_E_INVALID, "the plan must end with tokens to compute: they give the logits; add a question");
    return INFERSCALE_OK;
}

/* How much of the plan's leading computed parts is the exact prefix kept by an earlier run; keeps this one's. */
static is_status use_prefix(is_run *r)
{
    mock *m = r->m;
    const is_plan *plan = r->plan;
    uint32_t n = 0, parts = 0;

    while (parts < r->cache_parts && parts < plan->n_parts && plan->parts[parts].source == IS_SRC_COMPUTED)
        n += plan->parts[parts++].n_tokens;
    int32_t *copy = is_malloc((n + 1) * sizeof *copy);
    if (!copy) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for a prefix of %u tokens; free some and try again", n);
    for (uint32_t i = 0, at = 0; i < parts; at += plan->parts[i++].n_tokens)
        memcpy(copy + at, plan->parts[i].tokens, plan->parts[i].n_tokens * sizeof *copy);
    while (r->n_cached < n && r->n_cached < m->n_kept && r->n_cached + 1 < plan->n_tokens && copy[r->n_cached] == m->kept[r->n_cached])
        r->n_cached++;
    is_free(m->kept);
    m->kept = copy;
    m->n_kept = n;
    return INFERSCALE_OK;
}

/* ---- What a run is given to do ------------------------------------------------------------------------------------------- */

static const is_run_opts none;

static void take_before(is_run *r)
{
    r->before = (mock_before){ r->n, r->n_foreign, r->chain, r->ids, r->seen };
}

static is_status take_plan(is_run *r, const is_plan *plan, const is_run_opts *o)
{
    uint64_t n = r->n;

    IS_TRY(check_plan(r, plan));
    r->left = 0;
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        if (plan->parts[i].source != IS_SRC_RESIDENT) n += plan->parts[i].n_tokens;
        if (plan->parts[i].source == IS_SRC_COMPUTED) r->left += plan->parts[i].n_tokens;
    }
    IS_TRY(reserve(r, n));
    take_before(r);
    r->plan = plan;
    r->part = r->at_token = r->n_cached = 0;
    r->batch = o->batch && o->batch < MOCK_BATCH ? o->batch : MOCK_BATCH;
    r->cache_parts = o->no_prefix_cache ? 0 : o->cache_parts ? o->cache_parts : 1;
    r->cancel = o->cancel;
    r->stop = o->stop;
    r->want_logits = o->want_logits;
    if (o->realm) r->realm = *o->realm;
    r->has_realm = o->realm != NULL;
    r->n_stored = r->n_refused = 0;
    r->reason[0] = 0;
    r->found.n_bad = 0;
    r->over = false;
    memset(&r->stats, 0, sizeof r->stats);
    r->stats.tokens_resident = r->n;
    return INFERSCALE_OK;
}

is_status mock_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run)
{
    mock *m = impl;
    is_run *r = NULL;
    is_status st = INFERSCALE_OK;

    *run = NULL;
    opts = opts ? opts : &none;
    IS_TRY(mock_call(&m->opt, MOCK_START));
    r = is_calloc(1, sizeof *r);
    if (!r) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for a run; free some and try again");
    r->m = m;
    r->number = __atomic_add_fetch(&m->n_begun, 1, __ATOMIC_RELAXED);
    r->chain = m->seed;
    r->ids = mock_mix(m->seed, 1);
    r->fresh = true;
    IS_TRY_GOTO(st, fail, mock_sampling_take(r, &opts->sampling));
    IS_TRY_GOTO(st, fail, take_plan(r, plan, opts));
    *run = r;
    return INFERSCALE_OK;
fail:
    mock_finish(m, r);
    return st;
}

is_status mock_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts)
{
    mock *m = impl;

    IS_TRY(mock_call(&m->opt, MOCK_EXTEND));
    IS_TRY(check_plan(run, more));
    if (opts) IS_TRY(mock_sampling_take(run, &opts->sampling));
    run->n_fed = 0;
    return take_plan(run, more, opts ? opts : &none);
}

is_status mock_token(void *impl, is_run *run, int32_t token)
{
    mock *m = impl;

    IS_TRY(mock_call(&m->opt, MOCK_FEED));
    IS_TRY(mock_check_tokens(&token, 1, "the answer"));
    IS_TRY(reserve(run, (uint64_t)run->n + 1));
    take_before(run);
    run->plan = NULL;
    run->token = token;
    run->left = 1;
    run->batch = 1;
    run->cancel = run->stop = NULL;
    return INFERSCALE_OK;
}

void mock_undo(void *impl, is_run *run)
{
    run->n = run->before.n;
    run->n_foreign = run->before.n_foreign;
    run->chain = run->before.chain;
    run->ids = run->before.ids;
    run->seen = run->before.seen;
    run->plan = NULL;
    run->left = 0;
}

/* ---- Steps --------------------------------------------------------------------------------------------------------------- */

static void fail_lane(is_lane *l, is_status st)
{
    l->status = st;
    snprintf(l->why, sizeof l->why, "%s", is_error());
}

/* A stored part as text. To who asks it counts as injected until the answer is over (mock_stats). */
static void compute_part(is_run *r, const is_part *part)
{
    if (!r->n_refused) r->first_refused = r->n;
    for (uint32_t t = 0; t < part->n_tokens; t++) compute_token(r, part->tokens[t]);
    r->n_refused += part->n_tokens;
    r->stats.tokens_injected += part->n_tokens;
}

/* What stands stored at the run's place is injected. */
static is_status provide_stored(is_run *r)
{
    const is_plan *plan = r->plan;

    if (r->fresh && r->cache_parts && !r->m->opt.remote) IS_TRY(use_prefix(r));
    r->fresh = false;
    for (; plan && plan->parts[r->part].source != IS_SRC_COMPUTED; r->part++) {
        if (plan->parts[r->part].source == IS_SRC_RESIDENT) continue;
        is_segment *rows;
        is_status st;

        IS_TRY(mock_take_part(r, &rows));
        if (!rows) {
            compute_part(r, &plan->parts[r->part]);
            continue;
        }
        st = mock_inject_time(&r->m->opt, r->cancel, r->stop);
        if (st == INFERSCALE_OK) st = inject_part(r, &plan->parts[r->part], rows, &r->stats);
        is_segment_unref(rows);
        if (st != INFERSCALE_OK) return st;
    }
    return INFERSCALE_OK;
}

/* Computes at most `most` tokens, up to the next stored part. With dry it only says how many of them cost time. */
static uint32_t compute(is_run *r, uint32_t most, bool dry)
{
    uint32_t part = r->part, at = r->at_token, cached = r->n_cached, n = 0;

    if (most > r->batch) most = r->batch;
    if (!r->plan) {
        if (!dry) compute_token(r, r->token);
        return 1;
    }
    for (; part < r->plan->n_parts && r->plan->parts[part].source == IS_SRC_COMPUTED; part++, at = 0) {
        const is_part *p = &r->plan->parts[part];

        for (; at < p->n_tokens && (cached || n < most); at++) {
            if (cached) cached--;
            else n++;
            if (!dry) compute_token(r, p->tokens[at]);
        }
        if (at < p->n_tokens) break;
    }
    if (dry) return n;
    r->stats.tokens_resident += r->n_cached - cached;
    r->left -= n + r->n_cached - cached;
    r->n_cached = cached;
    r->part = part;
    r->at_token = at;
    r->stats.tokens_computed += n;
    return n;
}

static is_status end_task(is_run *r)
{
    if (r->plan) {
        IS_TRY(write_script(r, r->plan));
    } else {
        r->n_fed++;
        r->at = r->at < r->n_script && r->script[r->at] == r->token ? r->at + 1 : r->n_script;
    }
    r->plan = NULL;
    make_logits(r);
    return INFERSCALE_OK;
}

static void advance(is_lane *l, double ms)
{
    is_run *r = l->run;
    bool token = !r->plan;

    l->n_computed = compute(r, l->most, false);
    r->stats.compute_ms += ms;
    if (token) r->left = 0;
    if (r->left) return;
    is_status st = end_task(r);
    if (st == INFERSCALE_OK) l->done = true;
    else fail_lane(l, st);
}

void mock_step(void *impl, is_lane *lanes, size_t n)
{
    mock *m = impl;
    uint32_t tokens = 0;
    double t0 = is_now_ms();

    for (size_t i = 0; i < n; i++) {
        is_status st = provide_stored(lanes[i].run);

        if (st != INFERSCALE_OK) fail_lane(&lanes[i], st);
        else tokens += compute(lanes[i].run, lanes[i].most, true);
    }
    is_status st = tokens ? mock_step_time(&m->opt, lanes, n) : INFERSCALE_OK;
    for (size_t i = 0; i < n; i++) {
        if (lanes[i].status != INFERSCALE_OK) continue;
        if (st == INFERSCALE_OK) advance(&lanes[i], is_now_ms() - t0);
        else fail_lane(&lanes[i], st);
    }
}

uint32_t mock_left(void *impl, is_run *run)
{
    return run->left;
}

void mock_stats(void *impl, is_run *run, is_run_stats *out)
{
    *out = run->stats;
    if (!run->over || !run->n_refused) return;
    out->tokens_computed += out->tokens_injected + out->tokens_resident - run->first_refused;
    out->tokens_injected -= run->n_refused;
    out->tokens_resident = run->first_refused - out->tokens_injected; /* the header is as good as cached */
    snprintf(out->reason, sizeof out->reason, "%s", run->reason);
    out->n_bad = run->found.n_bad;
    memcpy(out->bad, run->found.bad, sizeof out->bad);
    snprintf(out->why, sizeof out->why, "the mock computed %u stored tokens after all (%s)", run->n_refused, run->reason);
}

const float *mock_logits(void *impl, is_run *run)
{
    return run->m->opt.remote && !run->want_logits ? NULL : run->logits;
}

uint32_t mock_run_tokens(void *impl, is_run *run)
{
    return run->n;
}

void mock_finish(void *impl, is_run *run)
{
    if (!run) return;
    for (int i = 0; i < MOCK_PLANES; i++) {
        is_free(run->rows[i]);
        is_free(run->states[i]);
    }
    is_free(run->tokens);
    is_free(run->script);
    is_free(run->bias);
    is_free(run);
}
