/* rope.c - tables of cos and sin, and rotation of F32 rows in place. */
#include "kv/rope.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/words.h"
#include "kv/kernels.h"
#include "kv/rope_table.h"

enum { MAX_POSITIONS = 1 << 24 };

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for rotation tables; use a shorter context or free memory");
}

/* An empty table of n_pos rows, its padding zero. */
static is_status begin_set(const is_freqs *f, uint32_t n_pos, is_rope_set *out)
{
    uint32_t half = (f->n_pairs + 15) / 16 * 16;
    size_t n = (size_t)n_pos * 2 * half;

    if (n_pos < 1 || n_pos > MAX_POSITIONS)
        return is_fail(INFERSCALE_E_INVALID, "rotation tables for %u positions; the context must be 1 to %d tokens long", n_pos,
                       MAX_POSITIONS);
    out->n_pairs = f->n_pairs;
    out->half = half;
    out->n_pos = n_pos;
    out->mscale = f->mscale;
    if (n > SIZE_MAX / 8) return no_memory();
    out->rows = is_malloc_aligned(64, n * sizeof(float));
    if (!out->rows) return no_memory();
    if (half != f->n_pairs) memset(out->rows, 0, n * sizeof(float));
    return INFERSCALE_OK;
}

/* Angles are reduced in double: at position 10^6 the error is about 10^-10 radians, far below the float that is kept. */
static is_status fill_set(const is_freqs *f, uint32_t n_pos, is_rope_set *out)
{
    IS_TRY(begin_set(f, n_pos, out));
    for (uint32_t p = 0; p < n_pos; p++) {
        float *cosines = out->rows + (size_t)p * 2 * out->half, *sines = cosines + out->half;

        for (uint32_t i = 0; i < f->n_pairs; i++) {
            double angle = (double)p * f->w[i];

            cosines[i] = (float)(cos(angle) * f->mscale);
            sines[i] = (float)(sin(angle) * f->mscale);
        }
    }
    return INFERSCALE_OK;
}

static is_status copy_set(const is_freqs *f, const is_rope_own *own, is_rope_set *out)
{
    if (!own->rows) return fill_set(f, own->n_pos, out);
    IS_TRY(begin_set(f, own->n_pos, out));
    for (uint32_t p = 0; p < own->n_pos; p++) {
        const float *from = own->rows + (size_t)p * 2 * f->n_pairs;
        float *to = out->rows + (size_t)p * 2 * out->half;

        memcpy(to, from, f->n_pairs * sizeof *to);
        memcpy(to + out->half, from + f->n_pairs, f->n_pairs * sizeof *to);
    }
    return INFERSCALE_OK;
}

/* own: one a frequency set, or NULL: n_pos computed rows each. */
static is_status make(const is_geometry *g, const is_rope_own *own, uint32_t n_pos, is_rope **out)
{
    is_rope *r;

    *out = NULL;
    IS_TRY(is_geometry_check(g));
    if (!own && (n_pos < 1 || n_pos > MAX_POSITIONS))
        return is_fail(INFERSCALE_E_INVALID, "rotation tables for %u positions; the context must be 1 to %d tokens long", n_pos,
                       MAX_POSITIONS);
    r = is_calloc(1, sizeof *r);
    if (!r) return no_memory();
    r->n_pos = own ? MAX_POSITIONS : n_pos;
    r->sets = is_calloc(g->n_freqs ? g->n_freqs : 1, sizeof *r->sets);
    if (!r->sets) {
        is_rope_free(r);
        return no_memory();
    }
    for (r->n_sets = 0; r->n_sets < g->n_freqs; r->n_sets++) {
        is_rope_set *set = &r->sets[r->n_sets];
        const is_rope_own *o = own ? &own[r->n_sets] : NULL;
        is_status st = o ? copy_set(&g->freqs[r->n_sets], o, set) : fill_set(&g->freqs[r->n_sets], n_pos, set);

        if (st != INFERSCALE_OK) {
            is_rope_free(r);
            return st;
        }
        if (o) set->how = o->how;
        if (set->n_pos < r->n_pos) r->n_pos = set->n_pos;
    }
    *out = r;
    return INFERSCALE_OK;
}

is_status is_rope_new(const is_geometry *g, uint32_t n_pos, is_rope **out)
{
    return make(g, NULL, n_pos, out);
}

is_status is_rope_new_own(const is_geometry *g, const is_rope_own *own, is_rope **out)
{
    return make(g, own, 0, out);
}

void is_rope_set_how(is_rope *r, uint32_t freq, uint32_t how)
{
    r->sets[freq].how = how;
}

uint32_t is_rope_how(const is_rope *r, uint32_t freq)
{
    return r->sets[freq].how;
}

void is_rope_free(is_rope *r)
{
    if (!r) return;
    if (r->sets)
        for (uint32_t i = 0; i < r->n_sets; i++) is_free(r->sets[i].rows);
    is_free(r->sets);
    is_free(r);
}

uint32_t is_rope_positions(const is_rope *r)
{
    return r->n_pos;
}

const float *is_rope_cos(const is_rope *r, uint32_t freq, uint32_t pos)
{
    return r->sets[freq].rows + (size_t)pos * 2 * r->sets[freq].half;
}

const float *is_rope_sin(const is_rope *r, uint32_t freq, uint32_t pos)
{
    return is_rope_cos(r, freq, pos) + r->sets[freq].half;
}

const is_rope_set *is_rope_set_for(const is_rope *r, const is_plane *plane, uint64_t pos, uint64_t n)
{
    if (!r || plane->freq >= r->n_sets || r->sets[plane->freq].n_pairs != plane->rot_dim / 2) {
        is_fail(INFERSCALE_E_INVALID, "no rotation table for layer %u; make the tables from the same model's geometry",
                plane->layer);
        return NULL;
    }
    if (pos > r->sets[plane->freq].n_pos || n > r->sets[plane->freq].n_pos - pos) {
        is_fail(INFERSCALE_E_INVALID,
                "position %llu is outside the rotation table of %u positions; use a longer context "
                "(%s)", (unsigned long long)(pos + n - 1), r->sets[plane->freq].n_pos,
                is_words(IS_CALL_CTX));
        return NULL;
    }
    return &r->sets[plane->freq];
}

/* x = R^T y / mscale, where the table holds mscale * cos and mscale * sin. In double: it runs once per encoded row, and what is
 * stored is the base of all later rotations. */
static void unrotate_head(const is_plane *p, const is_rope_set *set, float *head, const float *cosines, const float *sines)
{
    double scale = 1 / (set->mscale * set->mscale);
    uint32_t half = p->rot_dim / 2;
    bool halves = p->pairing == IS_PAIR_HALVES;

    for (uint32_t i = 0; i < half; i++) {
        float *y0 = head + p->rot_begin + (halves ? i : 2 * i), *y1 = halves ? y0 + half : y0 + 1;
        double c = cosines[i] * scale, s = sines[i] * scale, a = *y0, b = *y1;

        *y0 = (float)(a * c + b * s);
        *y1 = (float)(b * c - a * s);
    }
}

is_status is_rope_rows(const is_rope *r, const is_plane *plane, float *rows, uint32_t n_tokens, uint32_t pos, int dir)
{
    const is_rope_set *set;
    size_t width = is_plane_width(plane);

    if (plane->pairing == IS_PAIR_NONE || !n_tokens) return INFERSCALE_OK;
    set = is_rope_set_for(r, plane, pos, n_tokens);
    if (!set) return INFERSCALE_E_INVALID;
    for (uint32_t h = 0; h < plane->n_heads; h++) {
        float *head = rows + (size_t)h * plane->head_dim;
        const float *cosines = is_rope_cos(r, plane->freq, pos), *sines = cosines + set->half;

        if (dir > 0) {
            is_rotate job = {
                .rows = { .src = head,
                          .dst = head,
                          .src_step = width * 4,
                          .dst_step = width * 4,
                          .n_rows = n_tokens,
                          .n_heads = 1 },
                .cos = cosines,
                .sin = sines,
                .table_step = 2 * (size_t)set->half,
                .from = IS_CODEC_F32,
                .to = IS_CODEC_F32,
                .head_dim = plane->head_dim,
                .rot_begin = plane->rot_begin,
                .rot_dim = plane->rot_dim,
                .pairing = plane->pairing,
            };

            is_kernels_best()->rotate(&job);
        } else {
            for (uint32_t t = 0; t < n_tokens; t++)
                unrotate_head(plane, set, head + t * width, cosines + t * 2 * (size_t)set->half,
                              sines + t * 2 * (size_t)set->half);
        }
    }
    return INFERSCALE_OK;
}
