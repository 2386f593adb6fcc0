/* test_mock_capture.c - what tests above engines rely on in the mock's captures: many spans have the rows that each has alone, a
 * span after stored context those it has after the same context computed, bit for bit; after other rows it has others; wrong
 * segments, tokens and positions are refused as a whole; and what was run is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/kit.h"

enum { HEADER = 20, A_LEN = 70, B_LEN = 33, C_LEN = 15, IDS = 300, VOCAB = 1001 };

typedef struct fixture {
    is_engine *e;
    is_rope *rope;
    int32_t *ids;
    kit_ids all, header, a, b, c, context;       /* context = header a b; c stands behind it */
    is_segment *exact[2], *foreign[2], *other_model;
    kit_rows want, got;                          /* of c */
} fixture;

static is_engine *open_mock(const char *path)
{
    is_engine_opts opts = { .model_path = path };
    is_engine *e = NULL;

    KIT_OK(is_engine_open(NULL, "mock", &opts, &e));
    return e;
}

static is_segment *segment_after(fixture *f, is_engine *e, kit_ids context, kit_ids span)
{
    kit_rows r;
    is_segment *s;

    kit_capture(e, context, span, 0, &r);
    s = kit_segment(e, f->rope, &r, 0, span, IS_CODEC_F16, KIT_GOOD, 0);
    kit_rows_free(&r);
    return s;
}

static int set_up(void **state)
{
    fixture *f = is_calloc(1, sizeof *f);
    uint64_t seed = 20261129;
    is_engine *other;

    assert_non_null(f);
    f->e = open_mock("mock");
    KIT_OK(is_rope_new(is_engine_geometry(f->e), 1024, &f->rope));
    f->ids = kit_random_ids(&seed, IDS, 16, VOCAB);
    f->all = (kit_ids){ f->ids, IDS };
    f->header = kit_cut(f->all, 0, HEADER);
    f->a = kit_cut(f->all, HEADER, A_LEN);
    f->b = kit_cut(f->all, HEADER + A_LEN, B_LEN);
    f->context = kit_cut(f->all, 0, HEADER + A_LEN + B_LEN);
    f->c = kit_cut(f->all, HEADER + A_LEN + B_LEN, C_LEN);
    f->exact[0] = segment_after(f, f->e, f->header, f->a);
    f->exact[1] = segment_after(f, f->e, kit_cut(f->all, 0, HEADER + A_LEN), f->b);
    f->foreign[0] = segment_after(f, f->e, (kit_ids){ 0 }, f->a);
    f->foreign[1] = segment_after(f, f->e, kit_cut(f->all, 250, 9), f->b);
    other = open_mock("mock:id=7");
    f->other_model = segment_after(f, other, f->header, f->b);
    is_engine_close(other);
    kit_capture(f->e, f->context, f->c, 0, &f->want);
    kit_capture(f->e, f->header, f->c, 0, &f->got);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;

    for (int i = 0; i < 2; i++) {
        is_segment_unref(f->exact[i]);
        is_segment_unref(f->foreign[i]);
    }
    is_segment_unref(f->other_model);
    kit_rows_free(&f->want);
    kit_rows_free(&f->got);
    is_free(f->ids);
    is_rope_free(f->rope);
    is_engine_close(f->e);
    is_free(f);
    return 0;
}

static bool same_rows(const kit_rows *a, const kit_rows *b)
{
    for (uint32_t i = 0; i < a->g->n_planes; i++)
        if (memcmp(a->rows[i], b->rows[i], (size_t)a->n * is_plane_width(&a->g->planes[i]) * sizeof(float)) != 0) return false;
    return true;
}

static is_capture capture_c(const fixture *f, const kit_rows *out, is_segment *const *stored, uint32_t n_stored)
{
    return (is_capture){ .context = f->context.p, .n_context = f->context.n, .span = f->c.p, .n_span = f->c.n, .rows = out->rows,
                         .stored = stored, .n_stored = n_stored };
}

static void test_stored_context(void **state)
{
    fixture *f = *state;
    is_capture c = capture_c(f, &f->got, f->exact, 2);
    kit_rows again;

    assert_false(same_rows(&f->want, &f->got));
    KIT_OK(is_engine_capture(f->e, &c));
    assert_true(same_rows(&f->want, &f->got));
    assert_int_equal(c.n_injected, A_LEN + B_LEN);
    assert_int_equal(c.n_computed, C_LEN); /* the header was left in place by what came before */
    c = capture_c(f, &f->got, f->exact + 1, 1); /* header and a computed, b stored */
    KIT_OK(is_engine_capture(f->e, &c));
    assert_true(same_rows(&f->want, &f->got));
    assert_int_equal(c.n_injected, B_LEN);
    c = capture_c(f, &f->got, f->foreign, 2);
    KIT_OK(is_engine_capture(f->e, &c));
    assert_false(same_rows(&f->want, &f->got));
    kit_capture(f->e, f->header, f->c, 0, &again);
    c.rows = again.rows;
    KIT_OK(is_engine_capture(f->e, &c));
    assert_true(same_rows(&f->got, &again)); /* the same rows give the same rows */
    c = capture_c(f, &f->got, NULL, 0);
    KIT_OK(is_engine_capture(f->e, &c));
    assert_true(same_rows(&f->want, &f->got)); /* what was injected is gone */
    assert_int_equal(c.n_computed, A_LEN + B_LEN + C_LEN);
    kit_rows_free(&again);
}

static void test_many(void **state)
{
    enum { N = 9 };
    fixture *f = *state;
    kit_rows alone[N], many[N];
    is_capture c[N];
    uint32_t sum = 0, want = 0;

    for (uint32_t i = 0; i < N; i++) {
        kit_ids context = kit_cut(f->all, 0, i % 3 ? HEADER + i : HEADER), span = kit_cut(f->all, 100 + 13 * i, 1 + 3 * i);

        kit_capture(f->e, context, span, 0, &alone[i]);
        kit_capture(f->e, (kit_ids){ 0 }, span, 0, &many[i]);
        c[i] = (is_capture){ .context = context.p, .n_context = context.n, .span = span.p, .n_span = span.n, .rows = many[i].rows };
        want += context.n - HEADER + span.n;
    }
    KIT_OK(is_engine_capture_many(f->e, c, N));
    for (uint32_t i = 0; i < N; i++) {
        assert_true(same_rows(&alone[i], &many[i]));
        sum += c[i].n_computed;
        kit_rows_free(&alone[i]);
        kit_rows_free(&many[i]);
    }
    assert_int_equal(sum, want + HEADER); /* the header once */
    assert_true(is_engine_describe(f->e)->n_capture_spans > 1);
    assert_string_equal(is_engine_describe(f->e)->why_one, "");
    KIT_OK(is_engine_capture_many(f->e, c, 0));
}

static void refuse(fixture *f, is_capture *c, is_status why)
{
    c[0].n_computed = c[1].n_computed = 99;
    KIT_FAILS(why, is_engine_capture_many(f->e, c, 2));
    assert_int_equal(c[0].n_computed + c[1].n_computed, 0);
}

static void test_refusals(void **state)
{
    fixture *f = *state;
    is_capture good[2] = { capture_c(f, &f->got, NULL, 0), capture_c(f, &f->got, f->exact, 2) }, bad[2];
    is_segment *swapped[2] = { f->exact[1], f->exact[0] }, *none = NULL;
    int32_t wrong_token = VOCAB + 1;

#define BAD(why, change)                                                                                                       \
    do {                                                                                                                       \
        memcpy(bad, good, sizeof good);                                                                                        \
        change;                                                                                                                \
        refuse(f, bad, INFERSCALE_##why);                                                                                      \
    } while (0)
    BAD(E_INVALID, bad[1].n_span = 0);
    BAD(E_INVALID, bad[1].rows = NULL);
    BAD(E_INVALID, bad[1].pos0 = 1);
    BAD(E_INVALID, (bad[0].span = &wrong_token, bad[0].n_span = 1));
    BAD(E_INVALID, bad[1].stored = swapped);
    BAD(E_INVALID, bad[1].stored = NULL);
    BAD(E_INVALID, (bad[1].stored = &none, bad[1].n_stored = 1));
    BAD(E_INVALID, (bad[1].stored = &f->other_model, bad[1].n_stored = 1));
    BAD(E_INVALID, bad[1].n_context--);
    BAD(E_INVALID, bad[1].n_context = A_LEN + B_LEN - 1);
    BAD(E_CONTEXT, (bad[0].pos0 = bad[1].pos0 = 8192));
#undef BAD
    KIT_OK(is_engine_capture_many(f->e, good, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stored_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_many, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
