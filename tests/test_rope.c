/* Rotation against a long double oracle written from the papers' formula, and the identities a rotation must have. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/rope.h"
#include "support/kv_make.h"

#define OK(expr)                                                                                                               \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, is_error());                                                    \
    } while (0)

/* One head at an absolute position, in long double. */
static void oracle(const is_plane *p, const is_freqs *f, const float *x, long double *y, uint32_t pos)
{
    for (uint32_t d = 0; d < p->head_dim; d++) y[d] = x[d];
    for (uint32_t i = 0; i < p->rot_dim / 2; i++) {
        uint32_t a = p->rot_begin + (p->pairing == IS_PAIR_ADJACENT ? 2 * i : i);
        uint32_t b = p->rot_begin + (p->pairing == IS_PAIR_ADJACENT ? 2 * i + 1 : i + p->rot_dim / 2);
        long double angle = (long double)pos * f->w[i], c = cosl(angle) * f->mscale, s = sinl(angle) * f->mscale;

        y[a] = c * x[a] - s * x[b];
        y[b] = s * x[a] + c * x[b];
    }
}

/* Within a few roundings of the pair's length (that is what is preserved, not the coordinate). */
static void check_rotated(const is_plane *p, const is_freqs *f, const float *x, const float *y, uint32_t pos)
{
    long double want[4096];

    oracle(p, f, x, want, pos);
    for (uint32_t d = 0; d < p->head_dim; d++) {
        long double bound = 0, error = fabsl(want[d] - y[d]);

        for (uint32_t e = 0; e < p->head_dim; e++) bound = fmaxl(bound, fabsl((long double)x[e]));
        bound *= 4 * 0x1p-24L * f->mscale;
        if (d < p->rot_begin || d >= p->rot_begin + p->rot_dim) bound = 0;
        if (!(error <= bound))
            fail_msg("position %u, dim %u of %u: off by %Lg, allowed %Lg", pos, d, p->head_dim, error, bound);
    }
}

static float *random_rows(size_t n, uint64_t *seed)
{
    float *x = is_malloc(n * sizeof *x);

    for (size_t i = 0; i < n; i++) x[i] = kv_float(seed);
    return x;
}

static void test_against_long_double(void **state)
{
    static const struct { int pairing; uint32_t head_dim, begin, dim; double base, mscale; } cases[] = {
        { IS_PAIR_HALVES, 64, 0, 64, 1e5, 1 },    { IS_PAIR_ADJACENT, 64, 0, 64, 1e4, 1 },
        { IS_PAIR_HALVES, 80, 0, 20, 1e4, 1 },    { IS_PAIR_HALVES, 128, 0, 128, 1e6, 1.2079441541679836 },
        { IS_PAIR_ADJACENT, 128, 0, 96, 5e5, 1 }, { IS_PAIR_ADJACENT, 576, 512, 64, 1e4, 1.1 },
        { IS_PAIR_HALVES, 67, 1, 34, 1e4, 1 },    { IS_PAIR_ADJACENT, 7, 1, 6, 1e4, 0.9 },
        { IS_PAIR_HALVES, 2, 0, 2, 1e4, 1 },      { IS_PAIR_HALVES, 256, 0, 256, 1e4, 1 },
    };
    uint64_t seed = kv_seed();

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        is_geometry *g = kv_geometry(1, 3, cases[i].head_dim, cases[i].pairing, cases[i].begin, cases[i].dim, cases[i].base,
                                     cases[i].mscale);
        const is_plane *p = &g->planes[0];
        uint32_t n = 9, pos = kv_below(&seed, 32760), width = is_plane_width(p);
        float *x = random_rows((size_t)n * width, &seed), *y = is_malloc((size_t)n * width * 4);
        is_rope *r;

        OK(is_rope_new(g, 32769, &r));
        memcpy(y, x, (size_t)n * width * 4);
        OK(is_rope_rows(r, p, y, n, pos, +1));
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t h = 0; h < 3; h++)
                check_rotated(p, &g->freqs[0], x + t * width + h * p->head_dim, y + t * width + h * p->head_dim, pos + t);
        is_rope_free(r);
        is_geometry_free(g);
        is_free(x);
        is_free(y);
    }
}

static double largest(const float *x, size_t n)
{
    double m = 0;

    for (size_t i = 0; i < n; i++) m = fmax(m, fabs(x[i]));
    return m;
}

static double distance(const float *x, const float *y, size_t n)
{
    double m = 0;

    for (size_t i = 0; i < n; i++) m = fmax(m, fabs((double)x[i] - y[i]));
    return m;
}

static void test_unrotate_undoes_rotate(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 60; round++) {
        is_geometry *g = kv_random_geometry(&seed);
        const is_plane *p = &g->planes[0];
        size_t n = 5 * (size_t)is_plane_width(p);
        float *x = random_rows(n, &seed), *y = is_malloc(n * 4);
        uint32_t pos = kv_below(&seed, 8000);
        is_rope *r;

        OK(is_rope_new(g, 8192, &r));
        memcpy(y, x, n * 4);
        OK(is_rope_rows(r, p, y, 5, pos, -1));
        OK(is_rope_rows(r, p, y, 5, pos, +1));
        assert_true(distance(x, y, n) <= 5 * 0x1p-24 * largest(x, n));
        OK(is_rope_rows(r, p, y, 5, pos, +1));
        OK(is_rope_rows(r, p, y, 5, pos, -1));
        assert_true(distance(x, y, n) <= 10 * 0x1p-24 * largest(x, n));
        is_rope_free(r);
        is_geometry_free(g);
        is_free(x);
        is_free(y);
    }
}

static void test_rotations_add_up(void **state)
{
    uint64_t seed = kv_seed();

    for (int pairing = 1; pairing <= 2; pairing++) {
        is_geometry *g = kv_geometry(1, 2, 48, pairing, 0, 48, 10000, 1);
        uint32_t a = kv_below(&seed, 4000), b = kv_below(&seed, 4000);
        float *x = random_rows(96, &seed), y[96];
        is_rope *r;

        OK(is_rope_new(g, 8192, &r));
        memcpy(y, x, sizeof y);
        OK(is_rope_rows(r, &g->planes[0], y, 1, a, 1));
        OK(is_rope_rows(r, &g->planes[0], y, 1, b, 1));
        OK(is_rope_rows(r, &g->planes[0], x, 1, a + b, 1));
        assert_true(distance(x, y, 96) <= 8 * 0x1p-24 * largest(x, 96) * sqrt(2));
        is_rope_free(r);
        is_geometry_free(g);
        is_free(x);
    }
}

/* The scalar product of a rotated key and a rotated query depends on the distance alone: what Chunked RoPE rests on. */
static void test_scores_depend_on_distance(void **state)
{
    is_geometry *g = kv_geometry(1, 1, 64, IS_PAIR_HALVES, 0, 64, 100000, 1);
    uint64_t seed = kv_seed();
    float *key = random_rows(64, &seed), *query = random_rows(64, &seed), k[64], q[64];
    double first = 0, length = 0;
    is_rope *r;

    OK(is_rope_new(g, 8192, &r));
    for (int i = 0; i < 64; i++) length += fabs((double)key[i] * query[i]);
    for (uint32_t at = 0; at < 8000; at += 500) {
        double score = 0;

        memcpy(k, key, sizeof k);
        memcpy(q, query, sizeof q);
        OK(is_rope_rows(r, &g->planes[0], k, 1, at, 1));
        OK(is_rope_rows(r, &g->planes[0], q, 1, at + 100, 1));
        for (int i = 0; i < 64; i++) score += (double)k[i] * q[i];
        if (!at) first = score;
        assert_true(fabs(score - first) <= 64 * 0x1p-22 * length + 1e-4);
    }
    is_rope_free(r);
    is_geometry_free(g);
    is_free(key);
    is_free(query);
}

static void test_pairings_are_permutations_of_each_other(void **state)
{
    is_geometry *h = kv_geometry(1, 1, 64, IS_PAIR_HALVES, 0, 64, 10000, 1),
                *a = kv_geometry(1, 1, 64, IS_PAIR_ADJACENT, 0, 64, 10000, 1);
    uint64_t seed = kv_seed();
    float *x = random_rows(64, &seed), y[64], z[64];
    is_rope *rh, *ra;

    OK(is_rope_new(h, 100, &rh));
    OK(is_rope_new(a, 100, &ra));
    for (int i = 0; i < 32; i++) {
        y[2 * i] = x[i];
        y[2 * i + 1] = x[i + 32];
    }
    memcpy(z, x, sizeof z);
    OK(is_rope_rows(ra, &a->planes[0], z, 1, 77, 1));       /* the wrong pairing must matter */
    OK(is_rope_rows(ra, &a->planes[0], y, 1, 77, 1));
    OK(is_rope_rows(rh, &h->planes[0], x, 1, 77, 1));
    for (int i = 0; i < 32; i++) assert_true(y[2 * i] == x[i] && y[2 * i + 1] == x[i + 32]);
    assert_true(distance(x, z, 64) > 0.1);
    is_rope_free(rh);
    is_rope_free(ra);
    is_geometry_free(h);
    is_geometry_free(a);
    is_free(x);
}

static void test_magnitude(void **state)
{
    is_geometry *one = kv_geometry(1, 1, 64, IS_PAIR_HALVES, 0, 64, 10000, 1),
                *two = kv_geometry(1, 1, 64, IS_PAIR_HALVES, 0, 64, 10000, 2);
    uint64_t seed = kv_seed();
    float *x = random_rows(64, &seed), y[64], z[64];
    is_rope *r1, *r2;

    OK(is_rope_new(one, 5000, &r1));
    OK(is_rope_new(two, 5000, &r2));
    memcpy(y, x, sizeof y);
    memcpy(z, x, sizeof z);
    OK(is_rope_rows(r1, &one->planes[0], y, 1, 4321, 1));
    OK(is_rope_rows(r2, &two->planes[0], z, 1, 4321, 1));
    for (int i = 0; i < 64; i++) assert_true(z[i] == 2 * y[i]); /* a power of two scales without rounding */
    OK(is_rope_rows(r2, &two->planes[0], z, 1, 4321, -1));
    assert_true(distance(x, z, 64) <= 5 * 0x1p-24 * largest(x, 64));
    is_rope_free(r1);
    is_rope_free(r2);
    is_geometry_free(one);
    is_geometry_free(two);
    is_free(x);
}

static void test_ranges_and_planes_without_rope(void **state)
{
    is_geometry *g = kv_geometry(1, 2, 16, IS_PAIR_HALVES, 0, 16, 10000, 1),
                *other = kv_geometry(1, 2, 16, IS_PAIR_HALVES, 0, 8, 10000, 1);
    uint64_t seed = kv_seed();
    float *x = random_rows(32 * 4, &seed), y[32 * 4];
    is_rope *r;

    OK(is_rope_new(g, 100, &r));
    assert_int_equal(is_rope_positions(r), 100);
    memcpy(y, x, sizeof y);
    OK(is_rope_rows(r, &g->planes[1], y, 4, 4000000000u, 1)); /* V: position means nothing */
    assert_memory_equal(x, y, sizeof y);
    assert_int_equal(is_rope_rows(r, &g->planes[0], y, 4, 97, 1), INFERSCALE_E_INVALID);
    assert_int_equal(is_rope_rows(r, &g->planes[0], y, 1, 100, 1), INFERSCALE_E_INVALID);
    assert_int_equal(is_rope_rows(r, &g->planes[0], y, 4, UINT32_MAX - 1, 1), INFERSCALE_E_INVALID);
    assert_int_equal(is_rope_rows(r, &other->planes[0], y, 1, 0, 1), INFERSCALE_E_INVALID); /* another model's table */
    assert_memory_equal(x, y, sizeof y);
    OK(is_rope_rows(r, &g->planes[0], y, 4, 96, 1));
    assert_true(is_rope_cos(r, 0, 0)[0] == 1 && is_rope_sin(r, 0, 0)[0] == 0);
    assert_true(is_rope_cos(r, 0, 99)[7] == (float)cos(99 * g->freqs[0].w[7]));
    is_rope_free(r);
    assert_int_equal(is_rope_new(g, 0, &r), INFERSCALE_E_INVALID);
    assert_null(r);
    is_geometry_free(g);
    is_geometry_free(other);
    is_free(x);
}

static void test_out_of_memory(void **state)
{
    is_geometry *g = kv_smollm2();
    is_rope *r;

    for (size_t n = 1;; n++) {
        is_status st;

        is_mem_fail_at(n);
        st = is_rope_new(g, 64, &r);
        is_mem_fail_at(0);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
        assert_null(r);
    }
    is_rope_free(r);
    is_geometry_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_long_double),
        cmocka_unit_test(test_unrotate_undoes_rotate),
        cmocka_unit_test(test_rotations_add_up),
        cmocka_unit_test(test_scores_depend_on_distance),
        cmocka_unit_test(test_pairings_are_permutations_of_each_other),
        cmocka_unit_test(test_magnitude),
        cmocka_unit_test(test_ranges_and_planes_without_rope),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
