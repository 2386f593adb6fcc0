/* probe.c - the geometry, read from the graph the engine really runs.
 *
 * The cache is written by SET_ROWS nodes onto cache_k_lN and cache_v_lN. From each K node the graph is walked backwards to the
 * ROPE node that made the rows: its parameters are the truth about this layer (partial rotation, its own base, frequency
 * factors, YaRN), whatever the model is called. What lies between ROPE and the cache must commute with a rotation (views,
 * copies, an unweighted norm, a scale); a learned norm weight after ROPE does not, and such a model is refused. */
#include "engine/llama/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sort.h"

typedef struct is_found {
    uint32_t layer, n_heads, head_dim, rot_begin, rot_dim;
    bool is_v, seen;
    uint8_t pairing;
    int64_t cache_cells;     /* rows of the cache tensor: smaller for window layers */
    double mscale, *w;       /* [rot_dim / 2], owned; NULL = no RoPE */
} is_found;

typedef struct is_probe {
    is_found *found;
    uint32_t n, cap, n_tokens;
    bool full;               /* there was no memory for part of it */
    char why[192];           /* "" = all understood */
} is_probe_t;

bool is_cache_node(const struct ggml_tensor *t, uint32_t *layer, bool *is_v)
{
    const char *name = t->view_src ? t->view_src->name : "";
    char *end;
    unsigned long n;

    if (t->op != GGML_OP_SET_ROWS || strncmp(name, "cache_", 6) != 0) return false;
    if (strncmp(name + 6, "k_l", 3) != 0 && strncmp(name + 6, "v_l", 3) != 0) return false;
    n = strtoul(name + 9, &end, 10);
    if (end == name + 9 || n > 4095) return false;
    *layer = (uint32_t)n;
    *is_v = name[6] == 'v';
    return true;
}

/* The walk's result: no RoPE, a ROPE node (begin = first rotated dim of its row), or not understood. */
typedef enum { PATH_PLAIN, PATH_ROPE, PATH_UNKNOWN } is_path_kind;

/* bent: something that does not commute with a rotation was passed on the way. */
static is_path_kind walk(const struct ggml_tensor *t, bool bent, int depth, const struct ggml_tensor **rope, uint32_t *begin,
                         bool *bad)
{
    const struct ggml_tensor *r2 = NULL;
    is_path_kind a, b;
    uint32_t b2 = 0;

    for (; t && depth < 64; depth++) {
        switch (t->op) {
        case GGML_OP_ROPE:
            if (bent) *bad = true;
            *rope = t;
            return PATH_ROPE;
        case GGML_OP_VIEW: case GGML_OP_RESHAPE: case GGML_OP_CONT: case GGML_OP_CPY: case GGML_OP_DUP: case GGML_OP_REPEAT:
        case GGML_OP_PERMUTE: case GGML_OP_RMS_NORM: case GGML_OP_SCALE:
            break;
        case GGML_OP_CONCAT: /* latent attention: a rotated part beside an unrotated one */
            if (t->op_params[0] != 0 || !t->src[0] || !t->src[1]) return PATH_UNKNOWN;
            a = walk(t->src[0], bent, depth + 1, rope, begin, bad);
            b = walk(t->src[1], bent, depth + 1, &r2, &b2, bad);
            if (a == PATH_UNKNOWN || b == PATH_UNKNOWN || (a == PATH_ROPE && b == PATH_ROPE)) return PATH_UNKNOWN;
            if (b == PATH_ROPE) {
                *rope = r2;
                *begin = b2 + (uint32_t)t->src[0]->ne[0];
            }
            return a == PATH_ROPE || b == PATH_ROPE ? PATH_ROPE : PATH_PLAIN;
        case GGML_OP_MUL_MAT: case GGML_OP_GET_ROWS: case GGML_OP_NONE:
            return PATH_PLAIN;
        default: /* MUL by a weight, ADD of a bias, a full norm ...: fine before ROPE, not after it */
            bent = true;
            break;
        }
        t = t->src[0];
    }
    return t ? PATH_UNKNOWN : PATH_PLAIN;
}

static float param_f32(const struct ggml_tensor *t, int i)
{
    float v;

    memcpy(&v, (const char *)t->op_params + 4 * i, sizeof v);
    return v;
}

/* YaRN: first and last dimension pair of the ramp between extrapolation and interpolation (arXiv 2309.00071). */
static void yarn_ramp(int n_dims, int n_ctx_orig, double base, double beta_fast, double beta_slow, double out[2])
{
    double lo = floor(n_dims * log(n_ctx_orig / (beta_fast * 2 * M_PI)) / (2 * log(base)));
    double hi = ceil(n_dims * log(n_ctx_orig / (beta_slow * 2 * M_PI)) / (2 * log(base)));

    out[0] = lo < 0 ? 0 : lo;
    out[1] = hi > n_dims - 1 ? n_dims - 1 : hi;
}

/* Radians per position of each pair, from the ROPE node's parameters. False with *full: out of memory; false without:
 * the table of factors is not understood. */
static bool rope_angles(const struct ggml_tensor *rope, is_found *f, bool *full)
{
    int n_dims = rope->op_params[1], n_ctx_orig = rope->op_params[4];
    double base = param_f32(rope, 5), scale = param_f32(rope, 6), ext = param_f32(rope, 7), ramp[2] = { 0, 0 };
    const struct ggml_tensor *factors = rope->src[2];
    float *ff = NULL;
    uint32_t pairs = (uint32_t)n_dims / 2;

    f->w = is_malloc(pairs * sizeof *f->w);
    if (factors) {
        if (factors->type != GGML_TYPE_F32 || ggml_nelements(factors) < pairs) return false;
        ff = is_malloc(pairs * sizeof *ff);
        if (ff) ggml_backend_tensor_get(factors, ff, 0, pairs * sizeof *ff);
    }
    if (!f->w || (factors && !ff)) {
        is_free(ff);
        *full = true;
        return false;
    }
    if (ext != 0) yarn_ramp(n_dims, n_ctx_orig, base, param_f32(rope, 9), param_f32(rope, 10), ramp);
    for (uint32_t i = 0; i < pairs; i++) {
        double extrap = pow(base, -2.0 * i / n_dims) / (ff ? ff[i] : 1.0), interp = scale * extrap, mix = 0;

        if (ext != 0) {
            double width = ramp[1] - ramp[0] < 0.001 ? 0.001 : ramp[1] - ramp[0], y = (i - ramp[0]) / width;

            mix = (1 - (y < 0 ? 0 : y > 1 ? 1 : y)) * ext;
        }
        f->w[i] = interp * (1 - mix) + extrap * mix;
    }
    f->mscale = param_f32(rope, 8) * (ext != 0 ? 1.0 + 0.1 * log(1.0 / scale) : 1.0);
    is_free(ff);
    return true;
}

/* The tensor [head_dim, heads, tokens] that was flattened into the rows. */
static const struct ggml_tensor *unflatten(const struct ggml_tensor *rows, int64_t width, uint32_t n_tokens)
{
    const struct ggml_tensor *t = rows;

    for (int i = 0; t && i < 8; i++, t = t->src[0]) {
        if (t->ne[2] == n_tokens && t->ne[3] == 1 && t->ne[0] * t->ne[1] == width) return t;
        if (t->op != GGML_OP_VIEW && t->op != GGML_OP_RESHAPE && t->op != GGML_OP_CONT) break;
    }
    return NULL;
}

/* Why it is not understood, or NULL; nothing else counts where *full was set. */
static const char *read_rope(const struct ggml_tensor *rope, uint32_t begin, is_found *f, bool *full)
{
    int mode = rope->op_params[2], n_dims = rope->op_params[1];

    if (mode != GGML_ROPE_TYPE_NORMAL && mode != GGML_ROPE_TYPE_NEOX) return "it uses a multi-dimensional rotary embedding "
        "(M-RoPE)";
    if (n_dims < 2 || n_dims % 2 || begin + (uint32_t)n_dims > f->head_dim || (rope->ne[1] != f->n_heads && rope->ne[1] != 1))
        return "its rotated range is not understood";
    f->pairing = mode == GGML_ROPE_TYPE_NEOX ? IS_PAIR_HALVES : IS_PAIR_ADJACENT;
    f->rot_begin = begin;
    f->rot_dim = (uint32_t)n_dims;
    return rope_angles(rope, f, full) ? NULL : "its frequency table cannot be read";
}

static const char *read_node(const struct ggml_tensor *t, is_found *f, uint32_t n_tokens, bool *full)
{
    const struct ggml_tensor *rows = t->src[0], *rope = NULL, *shaped;
    int64_t width = ggml_nelements(rows) / (n_tokens ? n_tokens : 1);
    uint32_t begin = 0;
    bool bad = false;
    is_path_kind kind;

    f->cache_cells = t->view_src->ne[1];
    if (t->view_src->type != GGML_TYPE_F16) return "its cache is not F16";
    if (rows->type != GGML_TYPE_F32 || width != t->view_src->ne[0] ||
        width > 1 << 20) return "its cache rows have an unknown form";
    shaped = unflatten(rows, width, n_tokens);
    f->n_heads = shaped ? (uint32_t)shaped->ne[1] : 1;
    f->head_dim = (uint32_t)(shaped ? shaped->ne[0] : width);
    if (f->is_v) return NULL;
    kind = walk(rows, false, 0, &rope, &begin, &bad);
    if (kind == PATH_UNKNOWN) return "the way its keys are made is not understood";
    if (kind == PATH_PLAIN) return NULL;
    if (bad) return "it changes keys after RoPE (a learned norm weight)";
    return read_rope(rope, begin, f, full);
}

bool is_tap_probe(is_tap *tap, struct ggml_tensor *t)
{
    is_probe_t *p = (is_probe_t *)tap->probe;
    is_found *f;
    const char *why;
    uint32_t layer;
    bool is_v;

    if (!is_cache_node(t, &layer, &is_v)) return false;
    if (p->n == p->cap) {
        uint32_t cap = p->cap ? 2 * p->cap : 64;
        is_found *more;

        if (cap > 8192) {
            snprintf(p->why, sizeof p->why, "its graph writes more than 8192 cache tensors");
            return false;
        }
        more = is_realloc(p->found, cap * sizeof *more);
        if (!more) {
            p->full = true;
            return false;
        }
        p->found = more;
        p->cap = cap;
    }
    f = &p->found[p->n++];
    memset(f, 0, sizeof *f);
    f->layer = layer;
    f->is_v = is_v;
    f->mscale = 1;
    why = read_node(t, f, p->n_tokens, &p->full);
    if (why && !p->why[0]) snprintf(p->why, sizeof p->why, "%s (layer %u)", why, layer);
    return false;
}

static int by_layer(const void *a, const void *b)
{
    const is_found *x = a, *y = b;

    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (int)x->is_v - (int)y->is_v;
}

/* Window layers are those whose cache is the smaller of two (probe_context sees to it that it is smaller). */
static uint32_t window_of(const is_llama *e, const is_probe_t *p, const is_found *f)
{
    int64_t most = 0;

    for (uint32_t i = 0; i < p->n; i++)
        if (p->found[i].cache_cells > most) most = p->found[i].cache_cells;
    return f->cache_cells < most ? (uint32_t)llama_model_n_swa(e->model) : 0;
}

static is_status build(is_llama *e, is_probe_t *p, is_geometry **out)
{
    is_geometry *g;
    uint32_t layers = 0;

    is_sort(p->found, p->n, sizeof *p->found, by_layer);
    for (uint32_t i = 1; i < p->n; i++)
        if (p->found[i].layer == p->found[i - 1].layer && p->found[i].is_v == p->found[i - 1].is_v)
            return is_fail(INFERSCALE_E_UNSUPPORTED, "its graph writes layer %u's cache twice", p->found[i].layer);
    g = is_geometry_new(p->n, 0);
    if (!g) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the model's geometry");
    for (uint32_t i = 0; i < p->n; i++) {
        const is_found *f = &p->found[i];
        int freq = f->w ? is_geometry_add_freqs(g, f->rot_dim / 2, f->mscale, f->w) : -1;

        if (f->w && freq < 0) {
            is_geometry_free(g);
            return is_fail(INFERSCALE_E_NOMEM, "out of memory for the model's frequency tables");
        }
        layers += i == 0 || f->layer != p->found[i - 1].layer;
        g->planes[i] = (is_plane){ .layer = f->layer, .is_v = f->is_v, .pairing = f->w ? f->pairing : IS_PAIR_NONE,
                                   .freq = f->w ? (uint16_t)freq : 0xffff, .n_heads = f->n_heads, .head_dim = f->head_dim,
                                   .rot_begin = f->w ? f->rot_begin : 0, .rot_dim = f->w ? f->rot_dim : 0,
                                   .window = window_of(e, p, f) };
    }
    g->n_layers = layers;
    if (is_geometry_check(g) != INFERSCALE_OK) {
        is_geometry_free(g);
        return is_fail(INFERSCALE_E_UNSUPPORTED, "its cache geometry is not one we can hold: %s", is_error());
    }
    *out = g;
    return INFERSCALE_OK;
}

/* Models with window layers are probed in a context of their own: a window's cache has room for the window and a micro-batch,
 * so in a small context, cut to the context's size, it could not be told from the others. */
static struct llama_context *probe_context(is_llama *e)
{
    int32_t window = llama_model_n_swa(e->model);

    if (window <= 0) return e->capture;
    return is_llama_context(e, (uint32_t)window + UBATCH + 1024, 1, UBATCH, e->info.flash_attention, false, false, e->tap);
}

is_status is_probe(is_llama *e, is_geometry **out)
{
    int32_t tokens[5];
    is_probe_t p = { .n_tokens = 5 };
    struct llama_context *ctx = probe_context(e);
    is_status st;

    *out = NULL;
    if (!ctx) return is_fail(INFERSCALE_E_NOMEM, "not enough memory to read the model's graph; use a smaller model");
    for (uint32_t i = 0; i < p.n_tokens; i++) tokens[i] = (int32_t)((i + 1) % e->n_vocab);
    llama_memory_clear(llama_get_memory(ctx), true);
    e->tap->mode = 1;
    e->tap->probe = (struct is_probe *)&p;
    st = is_llama_decode(e, ctx, 0, tokens, p.n_tokens, 0, 0, true);
    e->tap->mode = 0;
    e->tap->probe = NULL;
    if (ctx == e->capture) {
        llama_memory_clear(llama_get_memory(ctx), true);
        is_cells_untouch(e->tap);
    } else {
        llama_free(ctx);
    }
    if (st == INFERSCALE_OK && p.full)
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory for the model's graph; free some and try again");
    if (st == INFERSCALE_OK && p.why[0]) st = is_fail(INFERSCALE_E_UNSUPPORTED, "%s", p.why);
    if (st == INFERSCALE_OK && p.n == 0) st = is_fail(INFERSCALE_E_UNSUPPORTED,
                                                      "its graph writes no key-value cache that we know");
    if (st == INFERSCALE_OK) st = build(e, &p, out);
    for (uint32_t i = 0; i < p.n; i++) is_free(p.found[i].w);
    is_free(p.found);
    return st;
}
