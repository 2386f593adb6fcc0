/* mock_capture.c - the rows of spans: of each token's state, which follows from all that stands before it. */
#include "engine/mock/mock.h"

#include <string.h>

#include "base/mem.h"

static const int32_t *nth(const is_capture *c, uint32_t i)
{
    return i < c->n_context ? &c->context[i] : &c->span[i - c->n_context];
}

static is_status check_capture(const mock *m, const is_capture *c, uint32_t pos0)
{
    uint64_t total = (uint64_t)c->n_context + c->n_span, stored = 0;

    if (!c->n_span || !c->span || !c->rows)
        return is_fail(INFERSCALE_E_INVALID, "nothing to capture: give a span of tokens and room for its rows");
    if (c->pos0 != pos0)
        return is_fail(INFERSCALE_E_INVALID, "spans captured together begin at one position, not at %u and %u; capture them apart",
                       pos0, c->pos0);
    if (c->pos0 + total > m->opt.n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "%llu tokens from position %u exceed the context of %u; shorten what comes before",
                       (unsigned long long)total, c->pos0, m->opt.n_ctx);
    IS_TRY(mock_check_tokens(c->context, c->n_context, "the context"));
    IS_TRY(mock_check_tokens(c->span, c->n_span, "the span"));
    for (uint32_t i = 0; i < c->n_stored; i++) {
        if (!c->stored || !c->stored[i]) return is_fail(INFERSCALE_E_INVALID, "stored context %u has no segment; compute it", i);
        if (!is_segment_has_rows(c->stored[i])) return is_fail(INFERSCALE_E_INVALID, "stored context %u has no rows; read the whole of it", i);
        stored += is_segment_info(c->stored[i])->n_tokens;
    }
    if (stored > c->n_context)
        return is_fail(INFERSCALE_E_INVALID, "the stored context has %llu tokens, the whole context %u; give the tokens of both",
                       (unsigned long long)stored, c->n_context);
    for (uint32_t i = 0, at = c->n_context - (uint32_t)stored; i < c->n_stored; at += is_segment_info(c->stored[i++])->n_tokens)
        IS_TRY(mock_check_segment(m, c->stored[i], c->context + at, is_segment_info(c->stored[i])->n_tokens));
    return INFERSCALE_OK;
}

/* Tokens of the context that are computed: all but the stored end. */
static uint32_t n_own(const is_capture *c)
{
    uint32_t n = c->n_context;

    for (uint32_t i = 0; i < c->n_stored; i++) n -= is_segment_info(c->stored[i])->n_tokens;
    return n;
}

/* The state that attention reads from one stored token. */
static is_status read_token(const mock *m, const is_segment *s, uint32_t n_passes, uint32_t t, uint64_t *seen)
{
    uint64_t first = 0;

    *seen = 0;
    for (uint32_t p = 0; p < MOCK_PLANES; p++) {
        float row[MOCK_WIDTH];
        uint64_t state;

        mock_stored_row(s, p, t, row);
        if ((!mock_state(m, p, row, n_passes, &state) || !n_passes) && !m->opt.lenient)
            return is_fail(INFERSCALE_E_ENGINE, "stored context holds rows that no capture of this engine made; encode it again");
        if (p == 0) first = state;
        *seen = mock_see(*seen, p, first, state);
    }
    return INFERSCALE_OK;
}

static is_status run_span(const mock *m, is_capture *c)
{
    uint32_t own = n_own(c), at = own, total = c->n_context + c->n_span;
    uint64_t chain = m->seed;

    for (uint32_t i = 0; i < own; i++) chain = mock_mix(chain, mock_mix(chain, (uint64_t)c->context[i]));
    for (uint32_t i = 0; i < c->n_stored; i++) {
        const uint32_t n_passes = mock_passes(c->stored[i]);

        for (uint32_t t = 0; t < is_segment_info(c->stored[i])->n_tokens; t++, at++) {
            uint64_t state;

            IS_TRY(read_token(m, c->stored[i], n_passes, t, &state));
            chain = mock_mix(chain, state);
        }
    }
    for (; at < total; at++) {
        uint64_t state = mock_mix(chain, (uint64_t)*nth(c, at));

        chain = mock_mix(chain, state);
        for (uint32_t p = 0; p < MOCK_PLANES; p++) {
            float *row = c->rows[p] + (size_t)(at - c->n_context) * MOCK_WIDTH;

            mock_row(m, p, state, c->pos0 + at, row);
            if (m->opt.remote) mock_unrotate(m, p, c->pos0 + at, row);
        }
    }
    c->n_injected = c->n_context - own;
    return INFERSCALE_OK;
}

/* The prefix that all the computed contexts share. */
static uint32_t common_prefix(const is_capture *c, size_t n)
{
    uint32_t len = n_own(&c[0]);

    for (size_t i = 1; i < n; i++) {
        uint32_t k = 0, most = n_own(&c[i]) < len ? n_own(&c[i]) : len;

        while (k < most && c[i].context[k] == c[0].context[k]) k++;
        len = k;
    }
    return len;
}

/* Tokens of the prefix that the last capture left in place. */
static uint32_t prefix_kept(const mock *m, const is_capture *c, uint32_t len)
{
    uint32_t n = 0;

    if (!m->captured || m->captured_pos0 != c->pos0) return 0;
    while (n < len && n < m->n_captured && c->context[n] == m->captured[n]) n++;
    return n;
}

/* A span alone without stored context stays in place with all that was computed, else only the prefix does. */
static is_status keep_captured(mock *m, const is_capture *c, uint32_t n)
{
    if (m->opt.remote) return INFERSCALE_OK; /* called by several threads, for several owners */
    int32_t *copy = is_malloc((n + 1) * sizeof *copy);

    if (!copy) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for %u tokens; free some and try again", n);
    for (uint32_t i = 0; i < n; i++) copy[i] = *nth(c, i);
    is_free(m->captured);
    m->captured = copy;
    m->n_captured = n;
    m->captured_pos0 = c->pos0;
    return INFERSCALE_OK;
}

is_status mock_capture_here(mock *m, is_capture *c, size_t n)
{
    uint64_t sum = 0;
    uint32_t shared, kept;

    if (m->opt.remote && m->opt.down) return is_fail(INFERSCALE_E_ENGINE, "mock: its server is not up; drop `down` to go on");
    if (n && mock_is_revoked(m, c[0].realm)) return is_fail(INFERSCALE_E_STALE, "mock: this memory was changed or forgotten; read it again");
    if (m->opt.noinject) return is_fail(INFERSCALE_E_UNSUPPORTED, "the mock was told not to inject; serve the facts as text");
    for (size_t i = 0; i < n; i++) IS_TRY(check_capture(m, &c[i], c[0].pos0));
    shared = common_prefix(c, n);
    kept = prefix_kept(m, c, shared);
    for (size_t i = 0; i < n; i++) sum += n_own(&c[i]) + c[i].n_span - (i ? shared : kept);
    IS_TRY(mock_capture_time(&m->opt, sum < UINT32_MAX - MOCK_BATCH ? (uint32_t)sum : UINT32_MAX - MOCK_BATCH, c));
    for (size_t i = 0; i < n; i++) IS_TRY(run_span(m, &c[i]));
    IS_TRY(keep_captured(m, c, n == 1 && !c->n_stored ? c->n_context + c->n_span : shared));
    for (size_t i = 0; i < n; i++) c[i].n_computed = n_own(&c[i]) + c[i].n_span - (i ? shared : kept);
    return INFERSCALE_OK;
}

is_status mock_capture(void *impl, is_capture *c, size_t n)
{
    mock *m = impl;

    for (size_t i = 0; i < n; i++) c[i].n_computed = c[i].n_injected = 0;
    IS_TRY(mock_call(&m->opt, MOCK_CAPTURE));
    return m->opt.remote ? mock_capture_elsewhere(m, c, n) : mock_capture_here(m, c, n);
}
