/* plant.c - see plant.h. */
#include "llama/support/plant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/rope.h"

enum { CAPTURES = 512, OTHERS = 64, EXCHANGES = 128, SPANS = 64 };

/* Rows of n tokens, plane after plane. */
typedef struct held {
    uint8_t key[IS_HASH_BYTES];
    uint32_t n;
    float *rows;
} held;

typedef struct exchange {
    int32_t *now, *before; /* [n] */
    uint32_t n;
} exchange;

static struct {
    plant now;
    unsigned hits, stored;     /* stored: segments made since the fault was planted */
    uint32_t n_header;
    bool record;
    held captures[CAPTURES], others[OTHERS];
    size_t n_captures, n_others, bytes;
    exchange exchanges[EXCHANGES];
    size_t n_exchanges;
} state;

const char *plant_name(plant p)
{
    static const char *const names[PLANTS] = {
        "no fault", "positions off by one", "encoded without header", "plan without header",
        "scales swapped", "K and V swapped", "another owner's rows", "rows of a stale text",
        "one layer not written",
    };

    return names[p];
}

void plant_set(plant p)
{
    state.now = p;
    state.hits = state.stored = 0;
}

unsigned plant_hits(void) { return state.hits; }

void plant_header(uint32_t n_tokens) { state.n_header = n_tokens; }

void plant_record(bool on) { state.record = on; }

size_t plant_bytes(void) { return state.bytes; }

static int32_t *copy_ids(const int32_t *ids, size_t n)
{
    int32_t *copy = is_malloc((n + 1) * sizeof *copy);

    assert_non_null(copy);
    if (n) memcpy(copy, ids, n * sizeof *copy);
    return copy;
}

bool plant_exchange(const is_tokens *now, const is_tokens *before)
{
    exchange *x = &state.exchanges[state.n_exchanges];

    if (now->n != before->n || memcmp(now->ids, before->ids, now->n * sizeof *now->ids) == 0)
        return false;
    assert_true(state.n_exchanges < EXCHANGES);
    *x = (exchange){ copy_ids(now->ids, now->n), copy_ids(before->ids, now->n), now->n };
    state.n_exchanges++;
    return true;
}

static void free_held(held *h, size_t n)
{
    for (size_t i = 0; i < n; i++) is_free(h[i].rows);
}

void plant_free(void)
{
    free_held(state.captures, state.n_captures);
    free_held(state.others, state.n_others);
    for (size_t i = 0; i < state.n_exchanges; i++) {
        is_free(state.exchanges[i].now);
        is_free(state.exchanges[i].before);
    }
    memset(&state, 0, sizeof state);
}

/* ---- Rows as one block ----------------------------------------------------------------------- */

static void hold(held *h, const is_geometry *g, const float *const *rows, uint32_t n)
{
    float *at = h->rows = is_malloc(is_geometry_width(g) * n * sizeof *at);

    assert_non_null(at);
    h->n = n;
    for (uint32_t p = 0; p < g->n_planes; p++) {
        const size_t size = is_plane_width(&g->planes[p]) * n;

        memcpy(at, rows[p], size * sizeof *at);
        at += size;
    }
}

static void give(const held *h, const is_geometry *g, float **rows)
{
    const float *at = h->rows;

    for (uint32_t p = 0; p < g->n_planes; p++) {
        const size_t size = is_plane_width(&g->planes[p]) * h->n;

        memcpy(rows[p], at, size * sizeof *at);
        at += size;
    }
}

/* ---- Captures -------------------------------------------------------------------------------- */

static held *find(const is_capture *c, uint8_t key[IS_HASH_BYTES])
{
    is_hash *h = NULL;

    if (is_hash_new(NULL, &h) != INFERSCALE_OK) fail_msg("no memory for a hash");
    is_hash_field(h, c->context, c->n_context * sizeof *c->context);
    is_hash_field(h, c->span, c->n_span * sizeof *c->span);
    is_hash_u64(h, c->pos0);
    is_hash_end(h, key);
    for (size_t i = 0; i < state.n_captures; i++)
        if (memcmp(state.captures[i].key, key, IS_HASH_BYTES) == 0) return &state.captures[i];
    return NULL;
}

/* Every fact that stands in the tokens as it stood before it was changed. */
static void put_back(int32_t *ids, uint32_t n)
{
    for (size_t i = 0; i < state.n_exchanges; i++) {
        const exchange *x = &state.exchanges[i];
        const size_t size = x->n * sizeof *ids;

        for (uint32_t at = 0; at + x->n <= n; at++) {
            if (memcmp(ids + at, x->now, size) != 0) continue;
            memcpy(ids + at, x->before, size);
            state.hits++;
        }
    }
}

/* What is asked of the engine, with the fault. Returns tokens to be freed, or NULL. */
static int32_t *spoil(is_capture *c)
{
    int32_t *own = NULL;

    if (state.now == PLANT_NO_HEADER && c->n_context >= state.n_header) {
        c->context += state.n_header;
        c->n_context -= state.n_header;
        c->pos0 += state.n_header; /* what follows the header stands where it stood */
        c->n_common = 0;
        state.hits++;
    }
    if (state.now == PLANT_STALE) {
        c->span = own = copy_ids(c->span, c->n_span);
        put_back(own, c->n_span);
    }
    return own;
}

/* The Makefile reads the lines that begin with this. */
#define WRAP(type, name, params)                                                                   \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params

WRAP(is_status, is_engine_capture_many, (is_engine *e, is_capture *c, size_t n))
{
    const is_geometry *g = is_engine_geometry(e);
    uint8_t keys[SPANS][IS_HASH_BYTES];
    held *known[SPANS];
    int32_t *own[SPANS];
    is_capture asked[SPANS];
    bool all = true;
    is_status st = INFERSCALE_OK;

    assert_true(n <= SPANS);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(c[i].n_stored, 0); /* new pages: rows depend on the tokens alone */
        asked[i] = c[i];
        own[i] = spoil(&asked[i]);
        known[i] = find(&asked[i], keys[i]);
        all = all && known[i];
    }
    if (!all) st = __real_is_engine_capture_many(e, asked, n);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        if (all) give(known[i], g, c[i].rows);
        c[i].n_computed = all ? c[i].n_span : asked[i].n_computed;
        if (known[i]) continue;
        assert_true(state.n_captures < CAPTURES);
        hold(&state.captures[state.n_captures], g, (const float *const *)c[i].rows, c[i].n_span);
        memcpy(state.captures[state.n_captures++].key, keys[i], IS_HASH_BYTES);
        state.bytes += is_geometry_width(g) * c[i].n_span * sizeof(float);
    }
    for (size_t i = 0; i < n; i++) is_free(own[i]);
    return st;
}

/* ---- Positions ------------------------------------------------------------------------------- */

WRAP(is_status, is_rope_rows, (const is_rope *r, const is_plane *plane, float *rows, uint32_t n,
                               uint32_t pos, int dir))
{
    if (state.now == PLANT_POSITION && dir < 0 && pos > 0) {
        pos--; /* one is left: keys are served at p + 1 */
        state.hits++;
    }
    return __real_is_rope_rows(r, plane, rows, n, pos, dir);
}

/* ---- What is stored -------------------------------------------------------------------------- */

/* The scale is the first thing of a row of int8 (codec.h). */
static void swap_scales(is_segment *s)
{
    const is_segment_desc *d = is_segment_info(s);

    for (uint32_t p = 0; p < d->geometry->n_planes; p++) {
        const size_t row = is_codec_row_bytes(d->codec, d->geometry->planes[p].head_dim);
        uint8_t *a = (uint8_t *)(uintptr_t)is_segment_head(s, p, 0);
        uint8_t *b = (uint8_t *)(uintptr_t)is_segment_head(s, p, 1);

        for (uint32_t t = 0; t < d->n_tokens; t++, a += row, b += row) {
            uint8_t scale[IS_INT8_SCALE_BYTES];

            memcpy(scale, a, sizeof scale);
            memcpy(a, b, sizeof scale);
            memcpy(b, scale, sizeof scale);
        }
    }
    state.hits++;
}

/* The plane of the same layer that holds the other of keys and values. */
static uint32_t partner(const is_geometry *g, uint32_t p)
{
    for (uint32_t o = 0; o < g->n_planes; o++)
        if (g->planes[o].layer == g->planes[p].layer && g->planes[o].is_v != g->planes[p].is_v)
            return o;
    return p;
}

/* Rows of another owner's fact, as many as are wanted: where it has fewer, from its first again. */
static void give_others(const held *h, const is_geometry *g, uint32_t n, float *const *rows)
{
    const float *at = h->rows;

    for (uint32_t p = 0; p < g->n_planes; p++) {
        const size_t width = is_plane_width(&g->planes[p]);

        for (uint32_t t = 0; t < n; t++)
            memcpy(rows[p] + t * width, at + t % h->n * width, width * sizeof *at);
        at += width * h->n;
    }
}

/* rows[plane], to be changed at will: pointers and what they point at. */
static void spoil_rows(const is_geometry *g, uint32_t n, float **rows)
{
    const uint32_t lost = g->planes[g->n_planes / 2].layer;

    if (state.now == PLANT_K_AND_V)
        for (uint32_t p = 0; p < g->n_planes; p++) {
            const uint32_t o = partner(g, p);
            float *keep = rows[p];

            if (o <= p) continue;
            rows[p] = rows[o];
            rows[o] = keep;
        }
    if (state.now == PLANT_LAYER)
        for (uint32_t p = 0; p < g->n_planes; p++)
            if (g->planes[p].layer == lost)
                memset(rows[p], 0, is_plane_width(&g->planes[p]) * n * sizeof **rows);
    if (state.now == PLANT_OTHER_OWNER) {
        if (state.stored++ % PLANT_ONE_IN) return;
        assert_true(state.n_others > 0);
        give_others(&state.others[state.stored / PLANT_ONE_IN % state.n_others], g, n, rows);
    }
    state.hits++;
}

WRAP(is_status, is_segment_new, (const is_segment_desc *desc, const float *const *rows,
                                 is_segment **out))
{
    const is_geometry *g = desc->geometry;
    const bool spoilt = state.now == PLANT_K_AND_V || state.now == PLANT_LAYER ||
                        state.now == PLANT_OTHER_OWNER;
    float **own = NULL, *at;
    held copy;
    is_status st;

    if (state.record && state.n_others < OTHERS)
        hold(&state.others[state.n_others++], g, rows, desc->n_tokens);
    if (spoilt) {
        hold(&copy, g, rows, desc->n_tokens);
        own = is_malloc((g->n_planes + 1) * sizeof *own);
        assert_non_null(own);
        at = copy.rows;
        for (uint32_t p = 0; p < g->n_planes; p++) {
            own[p] = at;
            at += is_plane_width(&g->planes[p]) * desc->n_tokens;
        }
        spoil_rows(g, desc->n_tokens, own);
    }
    st = __real_is_segment_new(desc, spoilt ? (const float *const *)own : rows, out);
    if (spoilt) {
        is_free(copy.rows);
        is_free(own);
    }
    if (st == INFERSCALE_OK && state.now == PLANT_SCALES && desc->codec == IS_CODEC_INT8)
        swap_scales(*out);
    return st;
}

/* ---- What the engine is given ---------------------------------------------------------------- */

static uint32_t n_stored(const is_plan *plan)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].source == IS_SRC_STORED) n += plan->parts[i].n_tokens;
    return n;
}

WRAP(is_status, is_engine_start, (is_engine *e, const is_plan *plan, const is_run_opts *opts,
                                  is_run **run, is_run_stats *stats))
{
    is_run_opts own = *opts;
    is_plan less;
    is_status st;

    if (state.now != PLANT_PLAN_NO_HEADER || !n_stored(plan)) {
        st = __real_is_engine_start(e, plan, opts, run, stats);
        if (st == INFERSCALE_OK) /* what is stored was injected, not computed after all */
            assert_int_equal(stats->tokens_injected, n_stored(plan));
        return st;
    }
    assert_int_equal(plan->parts[0].role, IS_ROLE_HEADER);
    less.n_parts = plan->n_parts - 1;
    less.n_tokens = plan->n_tokens - plan->parts[0].n_tokens;
    less.parts = is_malloc(less.n_parts * sizeof *less.parts);
    assert_non_null(less.parts);
    memcpy(less.parts, plan->parts + 1, less.n_parts * sizeof *less.parts);
    for (uint32_t i = 0; i < less.n_parts; i++) less.parts[i].pos -= plan->parts[0].n_tokens;
    own.no_prefix_cache = true; /* that of the prompt begins with the header */
    st = __real_is_engine_start(e, &less, &own, run, stats);
    is_free(less.parts);
    state.hits++;
    return st;
}
