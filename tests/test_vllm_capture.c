/* What vLLM servers capture: the rows of all workers, behind context that is stored, or nothing at all; and what the dead left in the spool
 * goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/scratch.h"
#include "support/vllm_kit.h"

static void captures_from_all_workers(void **state)
{
    static const struct { uint32_t tp, pp; } shapes[] = { { 1, 1 }, { 2, 1 }, { 4, 2 }, { 1, 4 } };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        vt_capture a[20];
        is_capture c[20];
        vt_set s;

        vt_start_fakes(&s, 1);
        s.f[0]->tp = shapes[i].tp;
        s.f[0]->pp = shapes[i].pp;
        OK(vt_open_set(&s));
        for (uint8_t k = 0; k < 20; k++) vt_make_capture(&a[k], 30, 5 + k, k + 1), c[k] = a[k].c;
        OK(V->capture(s.e, c, 20));
        for (int k = 0; k < 20; k++) vt_expect_rows(&a[k]);
        assert_int_equal(vt_files_in(s.home, "spool"), 0);
        assert_in_range(fake_look(s.f[0]).captures, 20, 21); /* and the header that they share */
        for (int k = 0; k < 20; k++) vt_free_capture(&a[k]);
        vt_stop(&s);
    }
}

/* Bit for bit, whatever the type of the server's cache; it is the one that the codec `auto`
 * stores. */
static void rows_of_every_type_come_as_they_are(void **state)
{
    static const is_codec types[] = { IS_CODEC_F16, IS_CODEC_BF16, IS_CODEC_F32 };

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        is_geometry *g = fake_geometry();
        is_engine_info info;
        is_segment *stored;
        vt_capture a;
        vt_set s;

        fake_codec = types[i];
        vt_start(&s, 1);
        OK(V->info(s.e, &info));
        assert_int_equal(info.exact_codec, types[i]);
        vt_make_capture(&a, 30, 9, 3);
        OK(V->capture(s.e, &a.c, 1));
        vt_expect_rows(&a);
        is_segment_desc d = { .codec = info.exact_codec, .n_tokens = 9, .tokens = a.ids + 30,
                              .geometry = g };
        OK(is_segment_new(&d, (const float *const *)a.rows, &stored));
        for (uint32_t p = 0; p < 2 * FAKE_LAYERS; p++)
            for (uint32_t h = 0; h < FAKE_HEADS; h++) {
                float x[9 * FAKE_DIM];

                is_codec_decode(types[i], is_segment_head(stored, p, h), x, 9 * FAKE_DIM);
                for (uint32_t k = 0; k < 9 * FAKE_DIM; k++) /* nothing is lost */
                    assert_true(x[k] == fake_row(p, h, k % FAKE_DIM, a.ids, 30 + k / FAKE_DIM));
            }
        is_segment_unref(stored);
        is_geometry_free(g);
        vt_free_capture(&a);
        vt_stop(&s);
    }
    fake_codec = IS_CODEC_BF16;
}

static void stored_context_is_injected(void **state)
{
    vt_capture a;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_make_capture(&a, 60, 9, 3);
    a.stored = vt_segment_of(a.ids + 40, 20, 9);
    a.c.stored = &a.stored;
    a.c.n_stored = 1;
    OK(V->capture(s.e, &a.c, 1));
    vt_expect_rows(&a);
    assert_int_equal(a.c.n_injected, 20);
    assert_int_equal(a.c.n_computed, 9);
    a.ids[50] ^= 1;
    FAILS(E_INVALID, V->capture(s.e, &a.c, 1));
    a.ids[50] ^= 1;
    a.c.n_context = 10;
    FAILS(E_INVALID, V->capture(s.e, &a.c, 1));
    a.c.n_context = 60;
    a.c.n_span = 0;
    FAILS(E_INVALID, V->capture(s.e, &a.c, 1));
    a.c.n_span = 9;
    vt_free_capture(&a);
    vt_stop(&s);
}

static void a_capture_that_fails_leaves_nothing(void **state)
{
    static const fake_mood moods[] = { FAKE_CAPTURE_LIES, FAKE_CAPTURE_HALF, FAKE_CAPTURE_OTHER, FAKE_CAPTURE_500, FAKE_CAPTURE_HANG, FAKE_UNSIGNED,
                                       FAKE_NO_CONNECTOR };
    vt_capture a;
    vt_set s;

    (void)state;
    vt_start_fakes(&s, 1);
    s.f[0]->tp = 2;
    OK(vt_open_set(&s));
    for (size_t i = 0; i < sizeof moods / sizeof *moods; i++) {
        is_status st;

        vt_make_capture(&a, 10, 7, 3);
        fake_set(s.f[0], moods[i]);
        st = V->capture(s.e, &a.c, 1);
        if (st == INFERSCALE_OK) fail_msg("mood %d went well", moods[i]);
        assert_true(*is_error());
        assert_int_equal(vt_files_in(s.home, "spool"), 0);
        assert_int_equal(a.c.n_computed, 0);
        fake_set(s.f[0], FAKE_GOOD);
        vt_nap(60);
        OK(V->capture(s.e, &a.c, 1));
        vt_expect_rows(&a);
        vt_free_capture(&a);
    }
    vt_stop(&s);
}

static void the_spool_of_the_dead_is_cleared(void **state)
{
    const char *dead = "00112233445566778899aabbccddeeff.0.0.part";
    char path[512];
    vt_set s, other;
    FILE *out;

    (void)state;
    vt_start(&s, 1);
    snprintf(path, sizeof path, "%s/vllm/spool/%s", s.home, dead);
    out = fopen(path, "w");
    fputs("rows", out);
    fclose(out);
    other = s;
    OK(vt_open_set(&other)); /* a second process's view: the first one's mark lives, the dead one's does not */
    assert_int_equal(vt_files_in(s.home, "spool"), 0);
    V->close(other.e);
    vt_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captures_from_all_workers),
        cmocka_unit_test(rows_of_every_type_come_as_they_are),
        cmocka_unit_test(stored_context_is_injected),
        cmocka_unit_test(a_capture_that_fails_leaves_nothing),
        cmocka_unit_test(the_spool_of_the_dead_is_cleared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
