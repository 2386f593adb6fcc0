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
static void see_token(is_run *r, int32_t token)
{
    uint32_t pos = r->n;
    uint64_t state = 0;

    for (uint32_t p = 0; p < MOCK_PLANES; p++) {
        float row[MOCK_WIDTH];
        is_codec_decode(IS_CODEC_F16, r->rows[p] + (size_t)pos * MOCK_WIDTH, row, MOCK_WIDTH);
        mock_unrotate(r->m, p, pos, row);
        if (!mock_state(r->m, p, row, &r->states[p][pos])) r->n_foreign++;
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
    see_token(r, token);
}

/* ---- Injection: composed by src/kv as any engine does, then un-rotated here and compared with the segment ---------------- */

static is_status check_segment(const mock *m, const is_part *part)
{
    if (m->opt.noinject) return is_fail(INFERSCALE_E_UNSUPPORTED, "the mock was told not to inject; run the text twin");
    if (!part->segment) return is_fail(INFERSCALE_E_INVALID, "a stored part has no segment; compute it as text");
    return mock_check_segment(m, part->segment, part->tokens, part->n_tokens);
}

/* The row of one token in the cache against the segment's own, within the rounding of 16 bits. */
static is_status check_row(is_run *r, const is_segment *s, uint32_t p, uint32_t t)
{
    is_codec codec = is_segment_info(s)->codec;
    float got[MOCK_WIDTH], want[MOCK_WIDTH];
    uint32_t pos = r->n + t;
    double size = 0, off = 0;

    is_codec_decode(IS_CODEC_F16, r->rows[p] + (size_t)pos * MOCK_WIDTH, got, MOCK_WIDTH);
    mock_unrotate(r->m, p, pos, got);
    for (uint32_t h = 0; h < MOCK_HEADS; h++) {
        const char *row = (const char *)is_segment_head(s, p, h) + (size_t)t * MOCK_HEAD_DIM * is_codec_bytes(codec);
        is_codec_decode(codec, row, want + h * MOCK_HEAD_DIM, MOCK_HEAD_DIM);
    }
    for (int i = 0; i < MOCK_WIDTH; i++) {
        size = fmax(size, fabs((double)want[i]));
        off = fmax(off, fabs((double)got[i] - want[i]));
    }
    if (off <= 0.005 * size + 1e-4) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INTERNAL,
                   "composed rows are wrong at position %u, plane %u (by %.4g): composition is broken; report it", pos, p, off);
}

static is_status inject_part(is_run *r, const is_part *part, is_run_stats *stats)
{
    double t0 = is_now_ms();

    for (uint32_t p = 0; p < MOCK_PLANES; p++)
        IS_TRY(is_compose_rows(part->segment, r->m->rope, p, 0, part->n_tokens, 0, MOCK_HEADS, r->n, IS_CODEC_F16,
                               r->rows[p] + (size_t)r->n * MOCK_WIDTH, MOCK_WIDTH, MOCK_HEAD_DIM));
    stats->compose_ms += is_now_ms() - t0;
    t0 = is_now_ms();
    if (r->m->opt.garble) r->rows[0][(size_t)r->n * MOCK_WIDTH] ^= 0x4000;
    for (uint32_t p = 0; p < MOCK_PLANES; p++)
        for (uint32_t t = 0; t < part->n_tokens; t++) IS_TRY(check_row(r, part->segment, p, t));
    for (uint32_t t = 0; t < part->n_tokens; t++) see_token(r, part->tokens[t]);
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
static is_status use_prefix(is_run *r, const is_plan *plan, const is_run_opts *opts, uint32_t *n_hit)
{
    mock *m = r->m;
    uint32_t want = opts->cache_parts ? opts->cache_parts : 1, n = 0, parts = 0;

    *n_hit = 0;
    if (opts->no_prefix_cache) return INFERSCALE_OK;
    while (parts < want && parts < plan->n_parts && plan->parts[parts].source == IS_SRC_COMPUTED)
        n += plan->parts[parts++].n_tokens;
    int32_t *copy = is_malloc((n + 1) * sizeof *copy);
    if (!copy) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for a prefix of %u tokens; free some and try again", n);
    for (uint32_t i = 0, at = 0; i < parts; at += plan->parts[i++].n_tokens)
        memcpy(copy + at, plan->parts[i].tokens, plan->parts[i].n_tokens * sizeof *copy);
    while (*n_hit < n && *n_hit < m->n_kept && *n_hit + 1 < plan->n_tokens && copy[*n_hit] == m->kept[*n_hit])
        ++*n_hit;
    is_free(m->kept);
    m->kept = copy;
    m->n_kept = n;
    return INFERSCALE_OK;
}

/* Runs the parts that are not resident. n_cached of the first computed tokens count as cached: they cost no time. */
static is_status run_each(is_run *r, const is_plan *plan, const is_run_opts *opts, uint32_t n_cached, is_run_stats *stats)
{
    uint32_t batch = opts->batch ? opts->batch : MOCK_BATCH;

    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];
        if (part->source == IS_SRC_RESIDENT) continue;
        IS_TRY(reserve(r, (uint64_t)r->n + part->n_tokens));
        if (part->source == IS_SRC_STORED) {
            IS_TRY(mock_inject_time(&r->m->opt, opts->cancel));
            IS_TRY(inject_part(r, part, stats));
            continue;
        }
        double t0 = is_now_ms();
        uint32_t cached = n_cached < part->n_tokens ? n_cached : part->n_tokens;
        n_cached -= cached;
        IS_TRY(mock_decode_time(&r->m->opt, part->n_tokens - cached, batch, opts->cancel));
        for (uint32_t t = 0; t < part->n_tokens; t++) compute_token(r, part->tokens[t]);
        stats->tokens_computed += part->n_tokens - cached;
        stats->tokens_resident += cached;
        stats->compute_ms += is_now_ms() - t0;
    }
    IS_TRY(write_script(r, plan));
    make_logits(r);
    return INFERSCALE_OK;
}

static is_status run_parts(is_run *r, const is_plan *plan, const is_run_opts *opts, uint32_t n_cached, is_run_stats *stats)
{
    is_status st;

    r->m->opt.stop = opts->stop;
    st = run_each(r, plan, opts, n_cached, stats);
    r->m->opt.stop = NULL;
    return st;
}

static const is_run_opts *or_default(const is_run_opts *opts)
{
    static const is_run_opts none;
    return opts ? opts : &none;
}

is_status mock_start(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run, is_run_stats *stats)
{
    mock *m = impl;
    is_run *r = NULL;
    is_run_stats ignored;
    is_status st = INFERSCALE_OK;
    uint32_t n_cached = 0;

    *run = NULL;
    opts = or_default(opts);
    stats = stats ? stats : &ignored;
    memset(stats, 0, sizeof *stats);
    IS_TRY(mock_call(&m->opt, MOCK_START));
    r = is_calloc(1, sizeof *r);
    if (!r) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for a run; free some and try again");
    r->m = m;
    r->chain = m->seed;
    r->ids = mock_mix(m->seed, 1);
    IS_TRY_GOTO(st, fail, mock_sampling_take(r, &opts->sampling));
    IS_TRY_GOTO(st, fail, check_plan(r, plan));
    IS_TRY_GOTO(st, fail, use_prefix(r, plan, opts, &n_cached));
    IS_TRY_GOTO(st, fail, run_parts(r, plan, opts, n_cached, stats));
    *run = r;
    return INFERSCALE_OK;
fail:
    mock_finish(m, r);
    memset(stats, 0, sizeof *stats);
    return st;
}

is_status mock_extend(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts, is_run_stats *stats)
{
    mock *m = impl;
    is_run_stats ignored;
    uint32_t n = run->n, n_foreign = run->n_foreign;
    uint64_t chain = run->chain, ids = run->ids, seen = run->seen;
    const is_sampling *anew = opts ? &opts->sampling : NULL;

    opts = or_default(opts);
    stats = stats ? stats : &ignored;
    memset(stats, 0, sizeof *stats);
    IS_TRY(mock_call(&m->opt, MOCK_EXTEND));
    IS_TRY(check_plan(run, more));
    if (anew) IS_TRY(mock_sampling_take(run, anew));
    run->n_fed = 0;
    stats->tokens_resident = run->n;
    is_status st = run_parts(run, more, opts, 0, stats);
    if (st == INFERSCALE_OK) return st;
    run->n = n; /* as it was before */
    run->n_foreign = n_foreign;
    run->chain = chain;
    run->ids = ids;
    run->seen = seen;
    memset(stats, 0, sizeof *stats);
    return st;
}

is_status mock_feed(void *impl, is_run *run, int32_t token)
{
    mock *m = impl;

    IS_TRY(mock_call(&m->opt, MOCK_FEED));
    IS_TRY(mock_check_tokens(&token, 1, "the answer"));
    IS_TRY(reserve(run, (uint64_t)run->n + 1));
    IS_TRY(mock_decode_time(&m->opt, 1, 1, NULL));
    compute_token(run, token);
    run->n_fed++;
    run->at = run->at < run->n_script && run->script[run->at] == token ? run->at + 1 : run->n_script;
    make_logits(run);
    return INFERSCALE_OK;
}

const float *mock_logits(void *impl, is_run *run)
{
    return run->logits;
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
