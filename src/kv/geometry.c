/* geometry.c - building, checking and serialising the shape of a KV cache. */
#include "kv/geometry.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum {
    MAX_PLANES = 4096,
    MAX_FREQS = 1024,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 4096,
    MAX_WIDTH = 1 << 20,
    NO_FREQ = 0xffff,
    GEOMETRY_VERSION = 1,
    PLANE_BYTES = 32, /* of one plane in serial form */
};

uint64_t is_geometry_token_bytes(const is_geometry *g, is_codec codec)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_planes; i++) n += g->planes[i].n_heads * is_codec_row_bytes(codec, g->planes[i].head_dim);
    return n;
}

uint64_t is_geometry_width(const is_geometry *g)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_planes; i++) n += is_plane_width(&g->planes[i]);
    return n;
}

is_geometry *is_geometry_new(uint32_t n_planes, uint32_t n_freqs)
{
    is_geometry *g = is_calloc(1, sizeof *g);

    if (!g) return NULL;
    g->n_planes = n_planes;
    g->n_freqs = n_freqs;
    g->planes = is_calloc(n_planes ? n_planes : 1, sizeof *g->planes);
    g->freqs = is_calloc(n_freqs ? n_freqs : 1, sizeof *g->freqs);
    if (!g->planes || !g->freqs) {
        is_geometry_free(g);
        return NULL;
    }
    return g;
}

void is_geometry_free(is_geometry *g)
{
    if (!g) return;
    if (g->freqs)
        for (uint32_t i = 0; i < g->n_freqs; i++) is_free(g->freqs[i].w);
    is_free(g->freqs);
    is_free(g->planes);
    is_free(g);
}

static bool freqs_set(is_freqs *f, uint32_t n_pairs, double mscale, const double *w)
{
    double *copy = is_malloc((n_pairs ? n_pairs : 1) * sizeof *copy);

    if (!copy) return false;
    if (n_pairs) memcpy(copy, w, n_pairs * sizeof *copy);
    f->n_pairs = n_pairs;
    f->mscale = mscale;
    f->w = copy;
    return true;
}

static bool freqs_equal(const is_freqs *a, uint32_t n_pairs, double mscale, const double *w)
{
    /* By bits: equal geometries must be byte-equal in serial form. */
    return a->n_pairs == n_pairs && !memcmp(&a->mscale, &mscale, sizeof mscale) &&
           (!n_pairs || !memcmp(a->w, w, n_pairs * sizeof *w));
}

is_geometry *is_geometry_copy(const is_geometry *g)
{
    is_geometry *c = is_geometry_new(g->n_planes, g->n_freqs);

    if (!c) return NULL;
    c->n_layers = g->n_layers;
    if (g->n_planes) memcpy(c->planes, g->planes, g->n_planes * sizeof *g->planes);
    for (uint32_t i = 0; i < g->n_freqs; i++) {
        if (!freqs_set(&c->freqs[i], g->freqs[i].n_pairs, g->freqs[i].mscale, g->freqs[i].w)) {
            is_geometry_free(c);
            return NULL;
        }
    }
    return c;
}

int is_geometry_add_freqs(is_geometry *g, uint32_t n_pairs, double mscale, const double *w)
{
    is_freqs *grown;
    uint32_t i;

    for (i = 0; i < g->n_freqs; i++)
        if (g->freqs[i].w && freqs_equal(&g->freqs[i], n_pairs, mscale, w)) return (int)i;
    for (i = 0; i < g->n_freqs; i++) /* a slot that is_geometry_new left empty */
        if (!g->freqs[i].w) return freqs_set(&g->freqs[i], n_pairs, mscale, w) ? (int)i : -1;
    grown = is_realloc(g->freqs, (g->n_freqs + 1) * sizeof *grown);
    if (!grown) return -1;
    g->freqs = grown;
    memset(&g->freqs[g->n_freqs], 0, sizeof *grown);
    if (!freqs_set(&g->freqs[g->n_freqs], n_pairs, mscale, w)) return -1;
    return (int)g->n_freqs++;
}

/* ---- Check --------------------------------------------------------------------------------------------------------------- */

static is_status bad(const char *what, uint32_t index)
{
    return is_fail(INFERSCALE_E_INVALID, "KV geometry: %s (index %u); the engine that made it is not supported, or the file "
                   "is damaged and has to be encoded again", what, index);
}

static is_status check_freqs(const is_freqs *f, uint32_t index)
{
    if (f->n_pairs < 1 || f->n_pairs > MAX_HEAD_DIM / 2 || !f->w) return bad("frequency table without pairs", index);
    if (!isfinite(f->mscale) || f->mscale <= 0 || f->mscale > 1e6) return bad("magnitude scale out of range", index);
    for (uint32_t i = 0; i < f->n_pairs; i++)
        if (!isfinite(f->w[i]) || fabs(f->w[i]) > 1e6) return bad("rotation frequency out of range", index);
    return INFERSCALE_OK;
}

static is_status check_rotation(const is_geometry *g, const is_plane *p, uint32_t index)
{
    if (p->pairing == IS_PAIR_NONE) {
        if (p->rot_dim || p->rot_begin || p->freq != NO_FREQ) return bad("rotated range on a plane without RoPE", index);
        return INFERSCALE_OK;
    }
    if (p->pairing != IS_PAIR_ADJACENT && p->pairing != IS_PAIR_HALVES) return bad("unknown pairing", index);
    if (p->is_v) return bad("rotated values", index);
    if (p->rot_dim < 2 || p->rot_dim % 2) return bad("rotated range that is not made of pairs", index);
    if (p->rot_begin > p->head_dim || p->rot_dim > p->head_dim - p->rot_begin)
        return bad("rotated range outside the head", index);
    if (p->freq >= g->n_freqs) return bad("frequency table that is not there", index);
    if (g->freqs[p->freq].n_pairs != p->rot_dim / 2) return bad("frequency table of another size", index);
    return INFERSCALE_OK;
}

is_status is_geometry_check(const is_geometry *g)
{
    if (!g) return is_fail(INFERSCALE_E_INVALID, "no KV geometry given; open a model that can inject first");
    if (g->n_planes < 1 || g->n_planes > MAX_PLANES || !g->planes) return bad("number of planes", g->n_planes);
    if (g->n_layers < 1 || g->n_layers > MAX_PLANES) return bad("number of layers", g->n_layers);
    if (g->n_freqs > MAX_FREQS || !g->freqs) return bad("number of frequency tables", g->n_freqs);
    for (uint32_t i = 0; i < g->n_freqs; i++) IS_TRY(check_freqs(&g->freqs[i], i));
    for (uint32_t i = 0; i < g->n_planes; i++) {
        const is_plane *p = &g->planes[i];

        if (p->layer >= g->n_layers) return bad("layer out of range", i);
        if (p->is_v > 1) return bad("plane that is neither K nor V", i);
        if (p->n_heads < 1 || p->n_heads > MAX_HEADS) return bad("number of heads", i);
        if (p->head_dim < 1 || p->head_dim > MAX_HEAD_DIM) return bad("head size", i);
        if (p->n_heads * p->head_dim > MAX_WIDTH) return bad("row size", i);
        if (i && 2u * p->layer + p->is_v <= 2u * p[-1].layer + p[-1].is_v) return bad("planes out of order", i);
        IS_TRY(check_rotation(g, p, i));
    }
    return INFERSCALE_OK;
}

/* ---- Serial form (docs/formats.md) --------------------------------------------------------------------------------------- */

static uint64_t bits_of(double x)
{
    uint64_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static double double_of(uint64_t u)
{
    double x;

    memcpy(&x, &u, sizeof x);
    return x;
}

void is_geometry_write(const is_geometry *g, is_buf *out)
{
    is_buf_u32(out, GEOMETRY_VERSION);
    is_buf_u32(out, g->n_layers);
    is_buf_u32(out, g->n_planes);
    is_buf_u32(out, g->n_freqs);
    for (uint32_t i = 0; i < g->n_planes; i++) {
        const is_plane *p = &g->planes[i];

        is_buf_u32(out, p->layer);
        is_buf_u8(out, p->is_v);
        is_buf_u8(out, p->pairing);
        is_buf_u16(out, p->freq);
        is_buf_u32(out, p->n_heads);
        is_buf_u32(out, p->head_dim);
        is_buf_u32(out, p->rot_begin);
        is_buf_u32(out, p->rot_dim);
        is_buf_u32(out, p->window);
        is_buf_u32(out, 0);
    }
    for (uint32_t i = 0; i < g->n_freqs; i++) {
        const is_freqs *f = &g->freqs[i];

        is_buf_u32(out, f->n_pairs);
        is_buf_u32(out, 0);
        is_buf_u64(out, bits_of(f->mscale));
        for (uint32_t k = 0; k < f->n_pairs; k++) is_buf_u64(out, bits_of(f->w[k]));
    }
}

static is_status corrupt(const char *what)
{
    return is_fail(INFERSCALE_E_CORRUPT, "KV geometry in a file: %s; the file is damaged, encode its facts again", what);
}

static void read_plane(const uint8_t *p, is_plane *out)
{
    out->layer = is_get_u32(p);
    out->is_v = p[4];
    out->pairing = p[5];
    out->freq = is_get_u16(p + 6);
    out->n_heads = is_get_u32(p + 8);
    out->head_dim = is_get_u32(p + 12);
    out->rot_begin = is_get_u32(p + 16);
    out->rot_dim = is_get_u32(p + 20);
    out->window = is_get_u32(p + 24);
}

/* Frequency tables from p[0..n), which must be used up exactly. */
static is_status read_freqs(const uint8_t *p, size_t n, is_geometry *g)
{
    for (uint32_t i = 0; i < g->n_freqs; i++) {
        is_freqs *f = &g->freqs[i];
        uint32_t n_pairs;

        if (n < 16) return corrupt("cut off in the frequency tables");
        n_pairs = is_get_u32(p);
        if (n_pairs < 1 || n_pairs > MAX_HEAD_DIM / 2 || is_get_u32(p + 4)) return corrupt("a frequency table's size");
        if ((n - 16) / 8 < n_pairs) return corrupt("cut off in the frequency tables");
        f->w = is_malloc(n_pairs * sizeof *f->w);
        if (!f->w) return is_fail(INFERSCALE_E_NOMEM, "out of memory reading a KV geometry; free memory and try again");
        f->n_pairs = n_pairs;
        f->mscale = double_of(is_get_u64(p + 8));
        for (uint32_t k = 0; k < n_pairs; k++) f->w[k] = double_of(is_get_u64(p + 16 + 8 * (size_t)k));
        p += 16 + 8 * (size_t)n_pairs;
        n -= 16 + 8 * (size_t)n_pairs;
    }
    return n ? corrupt("bytes left over") : INFERSCALE_OK;
}

is_status is_geometry_read(const uint8_t *p, size_t n, is_geometry **out)
{
    is_status st = INFERSCALE_OK;
    uint32_t n_planes, n_freqs;
    is_geometry *g;

    *out = NULL;
    if (n < 16) return corrupt("too short");
    if (is_get_u32(p) != GEOMETRY_VERSION) return corrupt("unknown version");
    n_planes = is_get_u32(p + 8);
    n_freqs = is_get_u32(p + 12);
    if (n_planes < 1 || n_planes > MAX_PLANES || n_freqs > MAX_FREQS) return corrupt("counts out of range");
    if ((n - 16) / PLANE_BYTES < n_planes) return corrupt("cut off in the planes");
    if ((n - 16 - (size_t)n_planes * PLANE_BYTES) / 24 < n_freqs) return corrupt("cut off in the frequency tables");
    g = is_geometry_new(n_planes, n_freqs);
    if (!g) return is_fail(INFERSCALE_E_NOMEM, "out of memory reading a KV geometry; free memory and try again");
    g->n_layers = is_get_u32(p + 4);
    for (uint32_t i = 0; i < n_planes; i++) {
        const uint8_t *at = p + 16 + (size_t)i * PLANE_BYTES;

        read_plane(at, &g->planes[i]);
        if (is_get_u32(at + 28)) st = corrupt("reserved bytes in use");
    }
    if (st == INFERSCALE_OK)
        st = read_freqs(p + 16 + (size_t)n_planes * PLANE_BYTES, n - 16 - (size_t)n_planes * PLANE_BYTES, g);
    if (st == INFERSCALE_OK && is_geometry_check(g) != INFERSCALE_OK) st = corrupt("it contradicts itself");
    if (st != INFERSCALE_OK) {
        is_geometry_free(g);
        return st;
    }
    *out = g;
    return INFERSCALE_OK;
}

static bool plane_equal(const is_plane *a, const is_plane *b)
{
    return a->layer == b->layer && a->is_v == b->is_v && a->pairing == b->pairing && a->freq == b->freq &&
           a->n_heads == b->n_heads && a->head_dim == b->head_dim && a->rot_begin == b->rot_begin &&
           a->rot_dim == b->rot_dim && a->window == b->window;
}

bool is_geometry_equal(const is_geometry *a, const is_geometry *b)
{
    if (a == b) return true;
    if (!a || !b || a->n_layers != b->n_layers || a->n_planes != b->n_planes || a->n_freqs != b->n_freqs) return false;
    for (uint32_t i = 0; i < a->n_planes; i++)
        if (!plane_equal(&a->planes[i], &b->planes[i])) return false;
    for (uint32_t i = 0; i < a->n_freqs; i++)
        if (!freqs_equal(&a->freqs[i], b->freqs[i].n_pairs, b->freqs[i].mscale, b->freqs[i].w)) return false;
    return true;
}
