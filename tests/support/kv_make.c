#include "support/kv_make.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/scratch.h"

uint64_t kv_next(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t kv_below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(kv_next(seed) % n);
}

float kv_float(uint64_t *seed)
{
    double sum = 0;

    for (int i = 0; i < 12; i++) sum += (double)(kv_next(seed) >> 11) * 0x1p-53;
    return (float)((sum - 6) * (kv_below(seed, 50) ? 1 : 30));
}

uint64_t kv_seed(void)
{
    return scratch_seed("kv");
}

is_geometry *kv_geometry(uint32_t n_layers, uint32_t n_heads, uint32_t head_dim, int pairing, uint32_t rot_begin,
                         uint32_t rot_dim, double base, double mscale)
{
    is_geometry *g = is_geometry_new(2 * n_layers, rot_dim ? 1 : 0);
    double w[2048];

    assert_non_null(g);
    g->n_layers = n_layers;
    for (uint32_t i = 0; i < rot_dim / 2; i++) w[i] = pow(base, -2.0 * i / rot_dim);
    if (rot_dim) assert_int_equal(is_geometry_add_freqs(g, rot_dim / 2, mscale, w), 0);
    for (uint32_t i = 0; i < 2 * n_layers; i++) {
        is_plane *p = &g->planes[i];

        p->layer = i / 2;
        p->is_v = i % 2;
        p->n_heads = n_heads;
        p->head_dim = head_dim;
        p->freq = 0xffff;
        if (p->is_v || !rot_dim) continue;
        p->freq = 0;
        p->pairing = (uint8_t)pairing;
        p->rot_begin = rot_begin;
        p->rot_dim = rot_dim;
    }
    if (is_geometry_check(g) != INFERSCALE_OK) fail_msg("%s", is_error());
    return g;
}

is_geometry *kv_smollm2(void)
{
    return kv_geometry(30, 3, 64, IS_PAIR_HALVES, 0, 64, 100000, 1);
}

is_geometry *kv_random_geometry(uint64_t *seed)
{
    uint32_t head_dim = 1 + kv_below(seed, 80), rot_dim = 2 * kv_below(seed, head_dim / 2 + 1);
    uint32_t rot_begin = rot_dim ? kv_below(seed, head_dim - rot_dim + 1) : 0;
    int pairing = 1 + (int)kv_below(seed, 2);

    return kv_geometry(1 + kv_below(seed, 3), 1 + kv_below(seed, 4), head_dim, pairing, rot_begin, rot_dim, 10000,
                       kv_below(seed, 2) ? 1 : 1.2);
}

float **kv_rows(const is_geometry *g, uint32_t n_tokens, uint64_t *seed)
{
    float **rows = is_calloc(g->n_planes, sizeof *rows);

    assert_non_null(rows);
    for (uint32_t p = 0; p < g->n_planes; p++) {
        size_t n = (size_t)n_tokens * is_plane_width(&g->planes[p]);

        rows[p] = is_malloc(n * sizeof **rows);
        assert_non_null(rows[p]);
        for (size_t i = 0; i < n; i++) rows[p][i] = kv_float(seed);
    }
    return rows;
}

void kv_rows_free(const is_geometry *g, float **rows)
{
    for (uint32_t p = 0; p < g->n_planes; p++) is_free(rows[p]);
    is_free(rows);
}

is_segment *kv_segment(const is_geometry *g, is_codec codec, uint32_t n_tokens, uint8_t name, uint64_t *seed)
{
    is_segment_desc desc = { .codec = codec, .n_tokens = n_tokens, .n_context = kv_below(seed, 100), .geometry = g };
    int32_t *tokens = is_malloc(n_tokens * sizeof *tokens);
    float **rows = kv_rows(g, n_tokens, seed);
    is_segment *s = NULL;

    assert_non_null(tokens);
    for (uint32_t i = 0; i < n_tokens; i++) tokens[i] = (int32_t)kv_below(seed, 50000);
    memset(desc.name, name, sizeof desc.name);
    memset(desc.fingerprint, 0xf1, sizeof desc.fingerprint);
    desc.tokens = tokens;
    if (is_segment_new(&desc, (const float *const *)rows, &s) != INFERSCALE_OK) fail_msg("%s", is_error());
    kv_rows_free(g, rows);
    is_free(tokens);
    return s;
}
