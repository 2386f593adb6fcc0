/* Geometry: what checks and what does not, and a serial form that is exact, canonical and strict. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/geometry.h"
#include "support/kv_make.h"

/* Gemma-like: two bases, sliding windows on some layers, a layer without RoPE, a latent plane alone in its layer. */
static is_geometry *mixed(void)
{
    static const double local[] = { 1, 0.1 }, global[] = { 1, 0.01, 0.0001, 1e-6 };
    is_geometry *g = is_geometry_new(6, 0);

    assert_non_null(g);
    g->n_layers = 9;
    assert_int_equal(is_geometry_add_freqs(g, 2, 1, local), 0);
    assert_int_equal(is_geometry_add_freqs(g, 4, 1.25, global), 1);
    g->planes[0] = (is_plane){ .layer = 0,
                               .pairing = IS_PAIR_HALVES,
                               .freq = 0,
                               .n_heads = 2,
                               .head_dim = 8,
                               .rot_begin = 2,
                               .rot_dim = 4,
                               .window = 512 };
    g->planes[1] = (is_plane) { .layer = 0, .is_v = 1, .freq = 0xffff, .n_heads = 2, .head_dim = 6, .window = 512 };
    g->planes[2] = (is_plane) { .layer = 3, .pairing = IS_PAIR_ADJACENT, .freq = 1, .n_heads = 1, .head_dim = 8, .rot_dim = 8 };
    g->planes[3] = (is_plane) { .layer = 3, .is_v = 1, .freq = 0xffff, .n_heads = 1, .head_dim = 8 };
    g->planes[4] = (is_plane) { .layer = 4, .freq = 0xffff, .n_heads = 1, .head_dim = 3 };
    g->planes[5] = (is_plane){
        .layer = 8, .pairing = IS_PAIR_ADJACENT, .freq = 1, .n_heads = 1, .head_dim = 72, .rot_begin = 64, .rot_dim = 8
    };
    return g;
}

static void test_mixed_geometry_is_good(void **state)
{
    is_geometry *g = mixed(), *c = is_geometry_copy(g);

    if (is_geometry_check(g) != INFERSCALE_OK) fail_msg("%s", is_error());
    assert_int_equal(is_geometry_width(g), 16 + 12 + 8 + 8 + 3 + 72);
    assert_true(is_geometry_equal(g, c));
    c->freqs[1].w[3] = nextafter(c->freqs[1].w[3], 1);
    assert_false(is_geometry_equal(g, c));
    is_geometry_free(c);
    is_geometry_free(g);
    is_geometry_free(NULL);
}

static void test_frequency_tables_are_shared(void **state)
{
    is_geometry *g = is_geometry_new(1, 2); /* two slots for the first two tables */
    double a[] = { 1, 0.5 }, b[] = { 1, 0.25 };

    assert_int_equal(is_geometry_add_freqs(g, 2, 1, a), 0);
    assert_int_equal(is_geometry_add_freqs(g, 2, 1, b), 1);
    assert_int_equal(is_geometry_add_freqs(g, 2, 1, a), 0);
    assert_int_equal(is_geometry_add_freqs(g, 1, 1, a), 2);
    assert_int_equal(is_geometry_add_freqs(g, 2, 1.5, a), 3);
    assert_int_equal(is_geometry_add_freqs(g, 2, 1, b), 1);
    assert_int_equal(g->n_freqs, 4);
    a[0] = 7; /* they were copied */
    assert_true(g->freqs[0].w[0] == 1);
    is_geometry_free(g);
}

#define BREAK(what)                                                                                                            \
    do {                                                                                                                       \
        is_geometry *g = mixed();                                                                                              \
                                                                                                                               \
        what;                                                                                                                  \
        if (is_geometry_check(g) != INFERSCALE_E_INVALID) fail_msg("taken for good: %s", #what);                               \
        assert_true(*is_error() != 0);                                                                                         \
        is_geometry_free(g);                                                                                                   \
    } while (0)

static void test_what_is_refused(void **state)
{
    BREAK(g->n_layers = 8);
    BREAK(g->n_layers = 0);
    BREAK(g->n_layers = 5000);
    BREAK(g->planes[1].is_v = 2);
    BREAK(g->planes[1].is_v = 0);              /* two K planes of one layer */
    BREAK(g->planes[2].layer = 0);             /* out of order */
    BREAK(g->planes[0].n_heads = 0);
    BREAK(g->planes[0].n_heads = 4097);
    BREAK(g->planes[0].head_dim = 0);
    BREAK(g->planes[0].head_dim = 4097);
    BREAK(g->planes[0].n_heads = 4096; g->planes[0].head_dim = 4096);
    BREAK(g->planes[0].rot_dim = 5);
    BREAK(g->planes[0].rot_dim = 0);
    BREAK(g->planes[0].rot_dim = 8);           /* begin + dim behind the head */
    BREAK(g->planes[0].rot_begin = 5);
    BREAK(g->planes[0].rot_begin = UINT32_MAX);
    BREAK(g->planes[0].rot_dim = UINT32_MAX - 1);
    BREAK(g->planes[0].freq = 2);
    BREAK(g->planes[0].freq = 1);              /* of another size */
    BREAK(g->planes[0].pairing = 3);
    BREAK(g->planes[0].pairing = 0);           /* but a range is given */
    BREAK(g->planes[4].freq = 0);
    BREAK(g->planes[1].pairing = IS_PAIR_HALVES; g->planes[1].freq = 0; g->planes[1].rot_dim = 4); /* rotated V */
    BREAK(g->freqs[0].w[1] = NAN);
    BREAK(g->freqs[0].w[1] = INFINITY);
    BREAK(g->freqs[0].mscale = 0);
    BREAK(g->freqs[0].mscale = -1);
    BREAK(g->freqs[0].mscale = NAN);
    assert_int_equal(is_geometry_check(NULL), INFERSCALE_E_INVALID);
}

static void test_serial_form(void **state)
{
    uint64_t seed = kv_seed();

    for (int i = 0; i < 200; i++) {
        is_geometry *g = i ? kv_random_geometry(&seed) : mixed(), *back = NULL;
        is_buf a = IS_BUF_INIT, b = IS_BUF_INIT;

        is_geometry_write(g, &a);
        assert_true(is_buf_ok(&a));
        if (is_geometry_read(a.data, a.len, &back) != INFERSCALE_OK) fail_msg("%s", is_error());
        assert_true(is_geometry_equal(g, back));
        is_geometry_write(back, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        for (size_t n = 0; n < a.len; n++) { /* cut anywhere, from exactly as much memory */
            uint8_t *cut = is_malloc(n);
            is_geometry *none;

            memcpy(cut, a.data, n);
            assert_int_equal(is_geometry_read(cut, n, &none), INFERSCALE_E_CORRUPT);
            assert_null(none);
            is_free(cut);
        }
        is_buf_u8(&a, 0);
        is_geometry_free(back);
        assert_int_equal(is_geometry_read(a.data, a.len, &back), INFERSCALE_E_CORRUPT); /* and too long */
        is_buf_free(&a);
        is_buf_free(&b);
        is_geometry_free(g);
    }
}

/* Damaged bytes give a geometry that checks, or E_CORRUPT; what is read is written back byte by byte. */
static void test_damaged_bytes(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = mixed();
    is_buf a = IS_BUF_INIT;
    int good = 0, bad = 0;

    is_geometry_write(g, &a);
    for (int i = 0; i < 50000; i++) {
        uint8_t *d = is_malloc(a.len);
        is_geometry *back = NULL;
        is_status st;

        memcpy(d, a.data, a.len);
        for (uint32_t n = 1 + kv_below(&seed, 3); n; n--)
            d[kv_below(&seed, (uint32_t)a.len)] = (uint8_t)(kv_below(&seed, 2) ? kv_next(&seed) : 0xff);
        st = is_geometry_read(d, a.len, &back);
        if (st == INFERSCALE_OK) {
            is_buf b = IS_BUF_INIT;

            good++;
            assert_int_equal(is_geometry_check(back), INFERSCALE_OK);
            is_geometry_write(back, &b);
            assert_int_equal(b.len, a.len);
            assert_memory_equal(b.data, d, b.len);
            is_buf_free(&b);
        } else {
            bad++;
            assert_int_equal(st, INFERSCALE_E_CORRUPT);
            assert_null(back);
        }
        is_geometry_free(back);
        is_free(d);
    }
    assert_true(good > 100 && bad > 10000);
    is_buf_free(&a);
    is_geometry_free(g);
}

static void test_out_of_memory(void **state)
{
    is_geometry *g = mixed(), *made;
    is_buf a = IS_BUF_INIT;

    is_geometry_write(g, &a);
    for (size_t n = 1;; n++) {
        is_status st;

        is_mem_fail_at(n);
        st = is_geometry_read(a.data, a.len, &made);
        is_mem_fail_at(0);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
    }
    is_geometry_free(made);
    for (size_t n = 1;; n++) {
        is_mem_fail_at(n);
        made = is_geometry_copy(g);
        is_mem_fail_at(0);
        if (made) break;
        assert_true(n < 20);
    }
    is_geometry_free(made);
    is_buf_free(&a);
    is_geometry_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed_geometry_is_good), cmocka_unit_test(test_frequency_tables_are_shared),
        cmocka_unit_test(test_what_is_refused),        cmocka_unit_test(test_serial_form),
        cmocka_unit_test(test_damaged_bytes),          cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
