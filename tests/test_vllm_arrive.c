/* Captured rows that workers on other hosts bring: those that were asked for make the capture, in whatever pieces they come; nothing else is
 * written, and nothing stays behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "support/scratch.h"
#include "support/vllm_kit.h"

typedef struct work { vt_set *s; vt_capture a; is_status st; char why[512]; pthread_t thread; } work;

static void *capture(void *ctx)
{
    work *w = ctx;

    w->st = V->capture(w->s->e, &w->a.c, 1);
    snprintf(w->why, sizeof w->why, "%s", is_error());
    return NULL;
}

/* n_context: a header that is asked for a second time is captured too, as one of its own. */
static void begin(work *w, vt_set *s, uint32_t tp, uint32_t n_context)
{
    *w = (work){ .s = s };
    s->f[0]->tp = tp;
    s->f[0]->elsewhere = scratch_make();
    vt_make_capture(&w->a, n_context, 30, 3);
    assert_int_equal(pthread_create(&w->thread, NULL, capture, w), 0);
}

static void end(work *w)
{
    vt_free_capture(&w->a);
    scratch_remove(w->s->f[0]->elsewhere);
    w->s->f[0]->elsewhere = NULL;
}

/* Names of the files that the worker left, n of them, in the order of the names. */
static void left(const work *w, uint32_t n, char names[][64])
{
    for (int k = 0; k < 2000; k++, vt_nap(10)) {
        DIR *d = opendir(w->s->f[0]->elsewhere);
        uint32_t found = 0;

        for (struct dirent *x; (x = readdir(d));)
            if (x->d_name[0] != '.' && !strstr(x->d_name, ".part") && found < n) snprintf(names[found++], 64, "%.63s", x->d_name);
        closedir(d);
        if (found < n) continue;
        qsort(names, n, 64, (int (*)(const void *, const void *))strcmp);
        return;
    }
    fail_msg("the worker has captured nothing: %s", w->why);
}

static uint8_t *read_rows(const work *w, const char *name, size_t *n)
{
    char *path = is_path_join(w->s->f[0]->elsewhere, name);
    uint8_t *p;

    OK(is_file_read_all(is_fs_default(), path, 1 << 24, &p, n));
    is_free(path);
    return p;
}

static is_status piece(const work *w, const char *name, const uint8_t *p, uint64_t at, size_t n, uint64_t total)
{
    return V->worker_rows(w->s->e, &(is_rows_piece){ .name = name, .at = at, .total = total, .data = p + at, .n = n });
}

static void bring(const work *w, const char *name, size_t step)
{
    size_t n;
    uint8_t *p = read_rows(w, name, &n);

    for (size_t at = 0; at < n; at += step) OK(piece(w, name, p, at, n - at < step ? n - at : step, n));
    is_free(p);
}

static size_t in_spool(const vt_set *s)
{
    return vt_files_in(s->home, "spool");
}

static void rows_come_in_pieces(void **state)
{
    static const size_t steps[] = { 1 << 20, 1000, 97 };

    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (uint32_t tp = 1; tp <= 2; tp++) {
            char names[2][64];
            vt_set s;
            work w;

            vt_start(&s, 1);
            begin(&w, &s, tp, 10);
            left(&w, tp, names);
            for (uint32_t k = 0; k < tp; k++) bring(&w, names[tp - 1 - k], steps[i]);
            pthread_join(w.thread, NULL);
            if (w.st != INFERSCALE_OK) fail_msg("steps of %zu, %u workers: %s", steps[i], tp, w.why);
            vt_expect_rows(&w.a);
            assert_int_equal(in_spool(&s), 0);
            { /* nobody waits for them any more */
                size_t n;
                uint8_t *p = read_rows(&w, names[0], &n);

                FAILS(E_NOTFOUND, piece(&w, names[0], p, 0, n, n));
                is_free(p);
            }
            end(&w);
            vt_stop(&s);
        }
}

/* Pieces twice, out of order, beyond the end, of other names: refused, and the capture is none the worse. */
static void what_was_not_asked_for_is_not_written(void **state)
{
    static const char *const wrong[] = { "", ".", "..", "../secret", "x", "00000000000000000000000000000000", "00000000000000000000000000000000.0",
                                         "00000000000000000000000000000000.0.0.part", "00000000000000000000000000000000.00.0",
                                         "00000000000000000000000000000000.0.123456", "0000000000000000000000000000000G.0.0",
                                         "00000000000000000000000000000000/../x.0", "ABCDEF00000000000000000000000000.0.0" };
    char names[1][64], other[64];
    uint8_t *p;
    size_t n;
    vt_set s;
    work w;

    (void)state;
    vt_start(&s, 1);
    begin(&w, &s, 1, 10);
    left(&w, 1, names);
    p = read_rows(&w, names[0], &n);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) FAILS(E_INVALID, piece(&w, wrong[i], p, 0, n, n));
    snprintf(other, sizeof other, "%s", names[0]);
    other[31] = other[31] == '0' ? '1' : '0';
    FAILS(E_NOTFOUND, piece(&w, other, p, 0, n, n));
    FAILS(E_NOTFOUND, piece(&w, names[0], p, 0, n, (uint64_t)1 << 30)); /* no span of 30 tokens is that large */
    FAILS(E_INVALID, piece(&w, names[0], p, 0, 0, n));
    FAILS(E_INVALID, piece(&w, names[0], p, 1, n, n));
    FAILS(E_INVALID, V->worker_rows(s.e, &(is_rows_piece){ .name = names[0], .at = UINT64_MAX, .total = n, .data = p, .n = 2 }));
    FAILS(E_STALE, piece(&w, names[0], p, 100, 100, n));
    assert_int_equal(in_spool(&s), 0);
    OK(piece(&w, names[0], p, 0, 200, n));
    FAILS(E_STALE, piece(&w, names[0], p, 300, 100, n));
    OK(piece(&w, names[0], p, 100, 100, n)); /* once more */
    OK(piece(&w, names[0], p, 0, 150, n));   /* from the beginning */
    OK(piece(&w, names[0], p, 150, n - 150, n));
    pthread_join(w.thread, NULL);
    if (w.st != INFERSCALE_OK) fail_msg("%s", w.why);
    vt_expect_rows(&w.a);
    assert_int_equal(in_spool(&s), 0);
    is_free(p);
    end(&w);
    vt_stop(&s);
}

static void rows_that_do_not_come_are_not_waited_for_for_ever(void **state)
{
    char names[2][64];
    vt_set s;
    work w;

    (void)state;
    vt_start(&s, 1);
    vllm_limit.arrive_ms = 2000; /* time enough for the first */
    begin(&w, &s, 2, 10);
    left(&w, 2, names);
    bring(&w, names[0], 5000); /* one of two */
    pthread_join(w.thread, NULL);
    assert_int_equal(w.st, INFERSCALE_E_ENGINE);
    assert_non_null(strstr(w.why, "1 of 2"));
    assert_int_equal(in_spool(&s), 0);
    end(&w);
    vllm_limit.arrive_ms = 20000;
    vt_nap(100); /* the server is left alone for a moment after a failure */
    begin(&w, &s, 2, 11);
    left(&w, 2, names);
    for (int k = 0; k < 2; k++) bring(&w, names[k], 5000);
    pthread_join(w.thread, NULL);
    if (w.st != INFERSCALE_OK) fail_msg("%s", w.why);
    vt_expect_rows(&w.a);
    end(&w);
    vt_stop(&s);
}

/* Who sends what is there already, over and over, brings nothing. */
static void nor_are_those_that_come_again_and_again(void **state)
{
    is_status st = INFERSCALE_OK;
    char names[1][64];
    uint8_t *p;
    size_t n;
    vt_set s;
    work w;

    (void)state;
    vt_start(&s, 1);
    vllm_limit.arrive_ms = 2000;
    begin(&w, &s, 1, 10);
    left(&w, 1, names);
    p = read_rows(&w, names[0], &n);
    OK(piece(&w, names[0], p, 0, 200, n));
    for (int i = 0; st == INFERSCALE_OK; i++) {
        vt_nap(10);
        st = piece(&w, names[0], p, 100, 100, n);
        if (i == 1000) fail_msg("it is waited for for ever");
    }
    assert_int_equal(st, INFERSCALE_E_NOTFOUND); /* given up */
    pthread_join(w.thread, NULL);
    assert_int_equal(w.st, INFERSCALE_E_ENGINE);
    assert_int_equal(in_spool(&s), 0);
    is_free(p);
    end(&w);
    vllm_limit.arrive_ms = 20000;
    vt_stop(&s);
}

static void rows_that_are_wrong_are_no_capture(void **state)
{
    char names[1][64];
    uint8_t *p;
    size_t n;
    vt_set s;
    work w;

    (void)state;
    vt_start(&s, 1);
    begin(&w, &s, 1, 10);
    left(&w, 1, names);
    p = read_rows(&w, names[0], &n);
    p[n - 100] ^= 1;
    OK(piece(&w, names[0], p, 0, n, n));
    pthread_join(w.thread, NULL);
    assert_int_equal(w.st, INFERSCALE_E_ENGINE);
    assert_int_equal(in_spool(&s), 0);
    is_free(p);
    end(&w);
    vt_stop(&s);
}

static void a_capture_that_is_called_off_takes_no_rows(void **state)
{
    volatile int cancel = 0;
    char names[1][64];
    uint8_t *p;
    size_t n;
    vt_set s;
    work w;

    (void)state;
    vt_start(&s, 1);
    w = (work){ .s = &s };
    s.f[0]->elsewhere = scratch_make();
    vt_make_capture(&w.a, 10, 30, 3);
    w.a.c.cancel = &cancel;
    assert_int_equal(pthread_create(&w.thread, NULL, capture, &w), 0);
    left(&w, 1, names);
    p = read_rows(&w, names[0], &n);
    OK(piece(&w, names[0], p, 0, 500, n));
    __atomic_store_n(&cancel, 1, __ATOMIC_RELEASE);
    pthread_join(w.thread, NULL);
    assert_int_equal(w.st, INFERSCALE_E_CANCELLED);
    FAILS(E_NOTFOUND, piece(&w, names[0], p, 500, n - 500, n));
    assert_int_equal(in_spool(&s), 0);
    is_free(p);
    end(&w);
    vt_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_in_pieces),
        cmocka_unit_test(what_was_not_asked_for_is_not_written),
        cmocka_unit_test(rows_that_do_not_come_are_not_waited_for_for_ever),
        cmocka_unit_test(nor_are_those_that_come_again_and_again),
        cmocka_unit_test(rows_that_are_wrong_are_no_capture),
        cmocka_unit_test(a_capture_that_is_called_off_takes_no_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
