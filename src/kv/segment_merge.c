/* segment_merge.c - the parts that an engine's workers captured, put together to the rows of the whole model. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kv/segment_layout.h"
#include "kv/segment_part.h"

static is_status strange(const char *what, size_t part)
{
    return is_fail(INFERSCALE_E_INVALID, "part %zu of a capture has %s; all workers must run the same model and version", part, what);
}

/* The model's plane that plane i of a part is, or -1. */
static long find_plane(const is_geometry *g, const is_plane *p)
{
    for (uint32_t i = 0; i < g->n_planes; i++)
        if (g->planes[i].layer == p->layer && g->planes[i].is_v == p->is_v) return (long)i;
    return -1;
}

/* The same plane but for the number of heads; freq by what it says, since a part may number its tables otherwise. */
static bool same_shape(const is_geometry *a, const is_plane *p, const is_geometry *b, const is_plane *q)
{
    const is_freqs *x, *y;

    if (p->head_dim != q->head_dim || p->pairing != q->pairing || p->rot_begin != q->rot_begin || p->rot_dim != q->rot_dim ||
        p->window != q->window)
        return false;
    if (p->pairing == IS_PAIR_NONE) return true;
    x = &a->freqs[p->freq];
    y = &b->freqs[q->freq];
    return x->n_pairs == y->n_pairs && !memcmp(&x->mscale, &y->mscale, sizeof x->mscale) &&
           !memcmp(x->w, y->w, x->n_pairs * sizeof *x->w);
}

static is_status check_part(const is_segment *s, const is_segment *first, const is_geometry *g, uint32_t first_head, size_t index)
{
    const is_segment_desc *d = &s->desc, *f = &first->desc;

    if (memcmp(d->fingerprint, f->fingerprint, IS_HASH_BYTES)) return strange("another model", index);
    if (d->codec != f->codec) return strange("another type", index);
    if (d->n_tokens != f->n_tokens || memcmp(d->tokens, f->tokens, d->n_tokens * sizeof *d->tokens) || d->n_context != f->n_context)
        return strange("other tokens", index);
    for (uint32_t i = 0; i < s->geometry->n_planes; i++) {
        const is_plane *p = &s->geometry->planes[i];
        long at = find_plane(g, p);

        if (at < 0 || !same_shape(s->geometry, p, g, &g->planes[at])) return strange("a plane of another shape", index);
        if (g->planes[at].n_heads > 1 && (uint64_t)first_head + p->n_heads > g->planes[at].n_heads)
            return strange("heads that the model has not", index);
    }
    return INFERSCALE_OK;
}

typedef struct merge {
    const is_segment *const *parts;
    const is_geometry *g;
    float *const *rows;
    size_t *head_at;  /* [n_planes] where a plane's heads begin in: */
    uint32_t *from;   /* [all heads of all planes] part + 1 that gave it; 0 = none yet */
    float *row;       /* [a head's size, at most] */
} merge;

static void decode(const merge *m, const is_segment *s, uint32_t i, uint32_t h, uint32_t plane, uint32_t head)
{
    const is_plane *q = &m->g->planes[plane];
    size_t row = is_codec_row_bytes(s->desc.codec, q->head_dim), width = is_plane_width(q);
    const uint8_t *src = is_segment_head(s, i, h);
    float *dst = m->rows[plane] + (size_t)head * q->head_dim;

    for (uint32_t t = 0; t < s->desc.n_tokens; t++) is_codec_decode(s->desc.codec, src + t * row, dst + t * width, q->head_dim);
}

/* The same but for noise: ranks that were wired up wrongly have altogether other values. */
static bool agrees(const merge *m, const is_segment *s, uint32_t i, uint32_t h, uint32_t plane, uint32_t head)
{
    const is_plane *q = &m->g->planes[plane];
    size_t row = is_codec_row_bytes(s->desc.codec, q->head_dim), width = is_plane_width(q);
    const float *have = m->rows[plane] + (size_t)head * q->head_dim;
    const uint8_t *src = is_segment_head(s, i, h);
    double largest = 0, apart = 0;

    for (uint32_t t = 0; t < s->desc.n_tokens; t++) {
        is_codec_decode(s->desc.codec, src + t * row, m->row, q->head_dim);
        for (uint32_t d = 0; d < q->head_dim; d++) {
            largest = fmax(largest, fabs((double)have[t * width + d]));
            apart = fmax(apart, fabs((double)have[t * width + d] - (double)m->row[d]));
        }
    }
    return apart <= largest / 16;
}

static is_status take_part(const merge *m, size_t part, uint32_t first_head)
{
    const is_segment *s = m->parts[part];

    for (uint32_t i = 0; i < s->geometry->n_planes; i++) {
        const is_plane *p = &s->geometry->planes[i];
        uint32_t plane = (uint32_t)find_plane(m->g, p);

        for (uint32_t h = 0; h < p->n_heads; h++) {
            uint32_t head = m->g->planes[plane].n_heads == 1 ? h : first_head + h, *from = &m->from[m->head_at[plane] + head];

            if (!*from) {
                *from = (uint32_t)part + 1;
                decode(m, s, i, h, plane, head);
            } else if (!agrees(m, s, i, h, plane, head)) {
                return is_fail(INFERSCALE_E_CORRUPT, "parts %u and %zu of a capture differ in layer %u, head %u, which both have; capture "
                               "again", *from - 1, part, p->layer, head);
            }
        }
    }
    return INFERSCALE_OK;
}

static is_status merge_all(const merge *m, const uint32_t *first_head, size_t n)
{
    for (size_t i = 0; i < n; i++) IS_TRY(take_part(m, i, first_head[i]));
    for (uint32_t i = 0; i < m->g->n_planes; i++)
        for (uint32_t h = 0; h < m->g->planes[i].n_heads; h++)
            if (!m->from[m->head_at[i] + h])
                return is_fail(INFERSCALE_E_INVALID, "no part of a capture has layer %u, head %u; a worker did not write its own",
                               m->g->planes[i].layer, h);
    return INFERSCALE_OK;
}

is_status is_segment_merge(const is_segment *const *parts, const uint32_t *first_head, size_t n, const is_geometry *g,
                           float *const *rows)
{
    merge m = { .parts = parts, .g = g, .rows = rows };
    size_t n_heads = 0;
    uint32_t longest = 0;
    is_status st;

    IS_TRY(is_geometry_check(g));
    if (!n || n > UINT32_MAX - 1) return is_fail(INFERSCALE_E_INVALID, "a capture without parts; no worker has written its own");
    for (size_t i = 0; i < n; i++) IS_TRY(check_part(parts[i], parts[0], g, first_head[i], i));
    m.head_at = is_malloc(g->n_planes * sizeof *m.head_at);
    for (uint32_t i = 0; m.head_at && i < g->n_planes; i++) {
        m.head_at[i] = n_heads;
        n_heads += g->planes[i].n_heads;
        if (g->planes[i].head_dim > longest) longest = g->planes[i].head_dim;
    }
    m.from = is_calloc(n_heads + 1, sizeof *m.from);
    m.row = is_malloc(longest * sizeof *m.row);
    st = m.head_at && m.from && m.row ? merge_all(&m, first_head, n)
                                      : is_fail(INFERSCALE_E_NOMEM, "out of memory merging a capture; free memory and try again");
    is_free(m.head_at);
    is_free(m.from);
    is_free(m.row);
    return st;
}
