/* kit.c - see kit.h. */
#include "support/kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"

void kit_ok(is_status st, const char *what, const char *file, int line)
{
    if (st == INFERSCALE_OK) return;
    print_error("%s:%d: %s gave %s: %s\n", file, line, what, inferscale_status_name(st), is_error());
    _fail(file, line);
}

void kit_fails(is_status want, is_status got, const char *what, const char *file, int line)
{
    if (got == want && is_error()[0]) return;
    print_error("%s:%d: %s gave %s (%s), not %s\n", file, line, what, inferscale_status_name(got), got ? is_error() : "",
                inferscale_status_name(want));
    _fail(file, line);
}

kit_ids kit_cut(kit_ids all, uint32_t begin, uint32_t n)
{
    assert_true(begin + n <= all.n);
    return (kit_ids){ all.p + begin, n };
}

int32_t *kit_random_ids(uint64_t *seed, uint32_t n, int32_t low, int32_t high)
{
    int32_t *ids = is_malloc((n + 1) * sizeof *ids);

    assert_non_null(ids);
    for (uint32_t i = 0; i < n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = low + (int32_t)((*seed >> 33) % (uint64_t)(high - low));
    }
    return ids;
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

static void rows_new(const is_geometry *g, uint32_t n, kit_rows *out)
{
    *out = (kit_rows){ .g = g, .n = n, .rows = is_calloc(g->n_planes, sizeof *out->rows) };
    assert_non_null(out->rows);
    for (uint32_t p = 0; p < g->n_planes; p++) {
        out->rows[p] = is_calloc((size_t)n * is_plane_width(&g->planes[p]), sizeof **out->rows);
        assert_non_null(out->rows[p]);
    }
}

void kit_rows_free(kit_rows *r)
{
    for (uint32_t p = 0; r->rows && p < r->g->n_planes; p++) is_free(r->rows[p]);
    is_free(r->rows);
    memset(r, 0, sizeof *r);
}

void kit_capture(is_engine *e, kit_ids context, kit_ids span, uint32_t pos0, kit_rows *out)
{
    const is_geometry *g = is_engine_geometry(e);

    assert_non_null(g);
    rows_new(g, span.n, out);
    out->pos = pos0 + context.n;
    is_capture c = { .context = context.p, .n_context = context.n, .span = span.p, .n_span = span.n, .pos0 = pos0,
                     .rows = out->rows };
    KIT_OK(is_engine_capture(e, &c));
    assert_in_range(c.n_computed, span.n, context.n + span.n);
}

/* ---- Segments ------------------------------------------------------------------------------------------------------------ */

const char *kit_harm_name(kit_harm h)
{
    static const char *const names[KIT_HARMS] = { "good", "not rotated", "position + 1", "layers swapped", "other pairing" };
    return names[h];
}

/* Un-rotates token t of a plane's rows, rightly or as the harm says. */
static void unrotate(const is_rope *rope, const is_plane *plane, float *row, uint32_t pos, uint32_t serve_pos, kit_harm harm)
{
    is_plane other = *plane;

    if (harm == KIT_OTHER_PAIRING && plane->pairing)
        other.pairing = plane->pairing == IS_PAIR_HALVES ? IS_PAIR_ADJACENT : IS_PAIR_HALVES;
    KIT_OK(is_rope_rows(rope, &other, row, 1, harm == KIT_POSITION_PLUS_1 ? pos - 1 : pos, -1));
    if (harm == KIT_NOT_ROTATED) KIT_OK(is_rope_rows(rope, plane, row, 1, serve_pos, -1));
}

/* With layers swapped a layer's rows come from another of the same shape and rotation, so that only the content is wrong. */
static uint32_t source_plane(const is_geometry *g, uint32_t p, kit_harm harm)
{
    if (harm != KIT_LAYERS_SWAPPED) return p;
    for (uint32_t k = 1; k < g->n_planes; k++) {
        uint32_t o = (p + k) % g->n_planes;
        const is_plane *a = &g->planes[p], *b = &g->planes[o];
        if (a->is_v == b->is_v && a->freq == b->freq && a->n_heads == b->n_heads && a->head_dim == b->head_dim) return o;
    }
    return p;
}

is_segment *kit_segment(is_engine *e, const is_rope *rope, const kit_rows *r, uint32_t begin, kit_ids ids, is_codec codec,
                        kit_harm harm, uint32_t serve_pos)
{
    is_segment_desc d = { .codec = codec, .n_tokens = ids.n, .tokens = ids.p, .n_context = begin, .geometry = r->g };
    kit_rows own;
    is_segment *s = NULL;

    assert_true(begin + ids.n <= r->n);
    rows_new(r->g, ids.n, &own);
    for (uint32_t p = 0; p < r->g->n_planes; p++) {
        const is_plane *plane = &r->g->planes[p];
        size_t width = is_plane_width(plane);
        memcpy(own.rows[p], r->rows[source_plane(r->g, p, harm)] + begin * width, ids.n * width * sizeof(float));
        for (uint32_t t = 0; t < ids.n; t++)
            unrotate(rope, plane, own.rows[p] + t * width, r->pos + begin + t, serve_pos + t, harm);
    }
    memcpy(d.fingerprint, is_engine_describe(e)->fingerprint, sizeof d.fingerprint);
    is_random(d.name, sizeof d.name);
    KIT_OK(is_segment_new(&d, (const float *const *)own.rows, &s));
    kit_rows_free(&own);
    return s;
}

/* ---- Plans --------------------------------------------------------------------------------------------------------------- */

void kit_plan_begin(kit_plan *p, uint32_t pos)
{
    memset(p, 0, sizeof *p);
    p->plan.parts = p->parts;
    p->parts[0].pos = pos;
}

void kit_plan_add(kit_plan *p, is_role role, kit_ids ids, is_segment *segment)
{
    uint32_t i = p->plan.n_parts++;
    uint32_t pos = i ? p->parts[i - 1].pos + p->parts[i - 1].n_tokens : p->parts[0].pos;

    assert_true(i < KIT_PARTS);
    p->parts[i] = (is_part){ .role = role, .source = segment ? IS_SRC_STORED : IS_SRC_COMPUTED, .tokens = ids.p,
                             .n_tokens = ids.n, .pos = pos, .segment = segment, .fact_id = role == IS_ROLE_FACT ? i : 0,
                             .version = 1 };
    p->plan.n_tokens += ids.n;
}

void kit_plan_twin(const kit_plan *p, kit_plan *twin)
{
    *twin = *p;
    twin->plan.parts = twin->parts;
    for (uint32_t i = 0; i < twin->plan.n_parts; i++) {
        twin->parts[i].segment = NULL;
        twin->parts[i].source = IS_SRC_COMPUTED;
    }
}

void kit_plan_unref(kit_plan *p)
{
    for (uint32_t i = 0; i < p->plan.n_parts; i++) is_segment_unref(p->parts[i].segment);
    p->plan.n_parts = 0;
}

void kit_logits(is_engine *e, const is_plan *plan, const is_run_opts *opts, float *out, is_run_stats *stats)
{
    is_run_opts with_logits = *opts;
    is_run_stats own;
    is_run *run = NULL;
    const float *p;

    with_logits.want_logits = true;
    KIT_OK(is_engine_start(e, plan, &with_logits, &run, stats ? stats : &own));
    assert_int_equal(is_engine_run_tokens(e, run), plan->parts[0].pos + plan->n_tokens);
    p = is_engine_logits(e, run);
    assert_non_null(p);
    memcpy(out, p, is_engine_describe(e)->n_vocab * sizeof *out);
    is_engine_finish(e, run);
}
