/* Servers of the vLLM engine that come and go: who was away is asked again what it is and gets no work as another model, who is silent or never
 * confirms what it is told holds up nobody, and who hangs up waits for nobody's word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/scratch.h"
#include "support/vllm_kit.h"

static bool wait_up(const vt_set *s, int i, bool up)
{
    for (int k = 0; k < 1000 && vt_up_of(s, i).up != up; k++) vt_nap(10);
    return vt_up_of(s, i).up == up;
}

/* That it goes away and comes back is seen. */
static void expect_watched(const vt_set *s, int i)
{
    fake_set(s->f[i], FAKE_LOADING);
    assert_true(wait_up(s, i, false));
    fake_set(s->f[i], FAKE_GOOD);
    assert_true(wait_up(s, i, true));
}

/* Nobody needs to ask for anything. */
static void who_dies_is_noticed_and_who_comes_back(void **state)
{
    char why[256];
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    vt_question(&p);
    for (int round = 0; round < 2; round++) {
        fake_set(s.f[1], FAKE_LOADING);
        assert_true(wait_up(&s, 1, false));
        snprintf(why, sizeof why, "%s", vt_up_of(&s, 1).why);
        assert_non_null(strstr(why, "503"));
        assert_true(vt_up_of(&s, 0).up);
        vt_nap(200); /* long enough for the pauses between tries to have become long */
        fake_set(s.f[1], FAKE_GOOD);
        assert_true(wait_up(&s, 1, true));
        assert_string_equal(vt_up_of(&s, 1).why, "");
    }
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

/* One that hangs holds up nobody else's look. */
static void one_that_hangs_is_no_bother(void **state)
{
    vt_set s;

    (void)state;
    vt_start(&s, 3);
    FAKE_PUT(s.f[0], health_hangs, true);
    vt_nap(100);
    expect_watched(&s, 2);
    FAKE_PUT(s.f[0], health_hangs, false);
    vt_stop(&s);
}

/* At the start too: the others are opened without its first word, which may come an hour later. */
static void one_that_hangs_holds_up_no_start(void **state)
{
    vt_set s;

    (void)state;
    alarm(120);
    vt_start_fakes(&s, 3);
    vllm_limit.small_ms = 3600 * 1000;
    FAKE_PUT(s.f[0], op_hangs, INFERSCALE_TICKET_DESCRIBE);
    OK(vt_open_set(&s));
    alarm(0);
    assert_true(vt_up_of(&s, 1).up && vt_up_of(&s, 2).up && !vt_up_of(&s, 0).up);
    FAKE_PUT(s.f[0], op_hangs, 0);
    assert_true(wait_up(&s, 0, true));
    vt_stop(&s);
}

/* Nor does one whose first word, or whose word about what was forgotten, never comes. */
static void one_that_is_silent_is_no_bother(void **state)
{
    is_realm r = vt_realm(5, 2);
    size_t pending;
    vt_set s;

    (void)state;
    vt_start(&s, 3);
    for (int round = 0; round < 2; round++) {
        const uint32_t before = fake_look(s.f[0]).hung;

        FAKE_PUT(s.f[0], op_hangs, round ? INFERSCALE_TICKET_REVOKE : INFERSCALE_TICKET_DESCRIBE);
        if (round) {
            FAILS(E_BUSY, V->revoke(s.e, &r, 1000, &pending));
        } else {
            fake_set(s.f[0], FAKE_LOADING);
            assert_true(wait_up(&s, 0, false));
            fake_set(s.f[0], FAKE_GOOD);
        }
        for (int k = 0; k < 1000 && fake_look(s.f[0]).hung <= before + (uint32_t)round; k++) vt_nap(10);
        assert_int_equal(fake_look(s.f[0]).hung, before + 1 + (uint32_t)round); /* the keeper waits for it now */
        expect_watched(&s, 2);
        assert_int_equal(fake_look(s.f[0]).hung, before + 1 + (uint32_t)round); /* and did all the time */
        FAKE_PUT(s.f[0], op_hangs, 0);
        assert_true(wait_up(&s, 0, true));
        for (int k = 0; k < 1000 && vt_up_of(&s, 0).n_pending; k++) vt_nap(10);
        assert_int_equal(vt_up_of(&s, 0).n_pending, 0);
    }
    vt_stop(&s);
}

/* Who says nothing to a revocation has failed. */
static void silence_about_what_was_forgotten_is_a_failure(void **state)
{
    is_realm r = vt_realm(5, 2);
    size_t pending;
    vt_set s;

    (void)state;
    vt_start_fakes(&s, 2);
    vllm_limit.small_ms = 3000; /* the other one must be faster than that */
    OK(vt_open_set(&s));
    FAKE_PUT(s.f[0], op_hangs, INFERSCALE_TICKET_REVOKE);
    FAKE_PUT(s.f[0], health_hangs, true); /* nothing makes it well again */
    FAILS(E_BUSY, V->revoke(s.e, &r, 50, &pending));
    for (int k = 0; k < 1000 && !strstr(vt_up_of(&s, 0).why, "/v1/completions"); k++) vt_nap(10);
    assert_non_null(strstr(vt_up_of(&s, 0).why, "/v1/completions"));
    assert_false(vt_up_of(&s, 0).up);
    assert_true(vt_up_of(&s, 1).up);
    FAKE_PUT(s.f[0], op_hangs, 0);
    FAKE_PUT(s.f[0], health_hangs, false);
    assert_true(wait_up(&s, 0, true));
    vt_stop(&s);
}

static uint32_t n_warned, n_confirmed;

static void count_lines(void *ctx, int level, const char *text)
{
    (void)ctx;
    if (level == IS_LOG_WARN && strstr(text, "has not confirmed")) __atomic_add_fetch(&n_warned, 1, __ATOMIC_RELAXED);
    if (strstr(text, "has confirmed")) __atomic_add_fetch(&n_confirmed, 1, __ATOMIC_RELAXED);
}

/* What is never confirmed is in nobody's way, and said once. */
static void one_memory_holds_up_no_other(void **state)
{
    size_t pending;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    n_warned = n_confirmed = 0;
    is_log_set(count_lines, NULL);
    fake_set(s.f[0], FAKE_NOT_REVOKED);
    for (uint8_t tag = 5; tag < 45; tag++) {
        is_realm r = vt_realm(tag, 2);

        FAILS(E_BUSY, V->revoke(s.e, &r, 5000, &pending));
        assert_int_equal(pending, 1);
    }
    assert_int_equal(vt_up_of(&s, 0).n_pending, 40);
    FAKE_PUT(s.f[0], keeps_tag, 5);
    fake_set(s.f[0], FAKE_GOOD);
    for (int k = 0; k < 1000 && vt_up_of(&s, 0).n_pending > 1; k++) vt_nap(10);
    vt_nap(200); /* some rounds more */
    assert_int_equal(vt_up_of(&s, 0).n_pending, 1);
    assert_true(vt_up_of(&s, 0).up); /* it answers */
    FAKE_PUT(s.f[0], keeps_tag, 0);
    for (int k = 0; k < 1000 && vt_up_of(&s, 0).n_pending; k++) vt_nap(10);
    assert_int_equal(vt_up_of(&s, 0).n_pending, 0);
    V->close(s.e); /* and its thread */
    s.e = NULL;
    is_log_set(NULL, NULL);
    assert_int_equal(n_warned, 40);
    assert_int_equal(n_confirmed, 40);
    vt_stop(&s);
}

static uint32_t n_there;
static void count_there(void *ctx, int level, const char *line)
{
    (void)ctx;
    (void)level;
    if (strstr(line, " is there: ")) __atomic_add_fetch(&n_there, 1, __ATOMIC_RELAXED);
}

/* The log says once of each server that it is there, also of one that was at the first look. */
static void a_server_s_first_word_is_news(void **state)
{
    vt_set s;

    (void)state;
    n_there = 0;
    is_log_set(count_there, NULL);
    vt_start(&s, 2);
    vt_stop(&s);
    is_log_set(NULL, NULL);
    assert_int_equal(n_there, 2);
}

/* Restarted with another model: also the first request does not go there, though nobody looked after it meanwhile. */
static void another_model_gets_no_work(void **state)
{
    uint32_t before;
    is_run *run = NULL;
    vt_capture a;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start_unkept(&s, 1);
    vt_question(&p);
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_LOADING);
    FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run));
    fake_set(s.f[0], FAKE_FOREIGN);
    before = fake_look(s.f[0]).completions;
    for (int i = 0; i < 3; i++) {
        FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run));
        assert_non_null(strstr(is_error(), "another model"));
        vt_make_capture(&a, 10, 4, 2);
        FAILS(E_ENGINE, V->capture(s.e, &a.c, 1));
        vt_free_capture(&a);
    }
    assert_int_equal(fake_look(s.f[0]).completions, before);
    assert_int_equal(fake_look(s.f[0]).captures, 1);
    assert_false(vt_up_of(&s, 0).up);
    vt_drop(&p);
    vt_stop(&s);
}

/* Changed behind its address without a moment's silence: the connector knows it first, and nothing more goes there. */
static void another_model_without_a_pause(void **state)
{
    is_run_stats stats;
    uint32_t before;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start_unkept(&s, 1);
    vt_question(&p);
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_LOAD_FAILS);
    FAKE_PUT(s.f[0], load_reason, "model");
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .no_prefix_cache = true }, &run));
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->rest(s.e, run);
    V->stats(s.e, run, &stats);
    assert_string_equal(stats.reason, "model");
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_FOREIGN);
    before = fake_look(s.f[0]).completions;
    FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run));
    assert_non_null(strstr(is_error(), "another model"));
    assert_int_equal(fake_look(s.f[0]).completions, before);
    vt_drop(&p);
    vt_stop(&s);
}

/* A name that it does not know is another model too; and the right one again serves again, under whatever name. */
static void the_right_model_serves_again(void **state)
{
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    FAKE_PUT(s.f[0], served, "renamed"); /* between two looks: the request is what notices */
    FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run)); /* that one; it says what it is then */
    assert_true(wait_up(&s, 0, true));
    OK(V->begin(s.e, &p.plan, NULL, &run));
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_LOADING);
    assert_true(wait_up(&s, 0, false));
    fake_set(s.f[0], FAKE_FOREIGN);
    for (int k = 0; k < 1000 && !strstr(vt_up_of(&s, 0).why, "another model"); k++) vt_nap(10);
    assert_non_null(strstr(vt_up_of(&s, 0).why, "another model"));
    fake_set(s.f[0], FAKE_LOADING);
    vt_nap(200);
    fake_set(s.f[0], FAKE_GOOD);
    assert_true(wait_up(&s, 0, true));
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

typedef struct hanger { vllm_fake *f; uint32_t before; volatile int *cancel; } hanger;

static void *hang_up_when_asked(void *arg)
{
    const hanger *h = arg;

    for (int k = 0; k < 1000 && fake_look(h->f).hung == h->before; k++) vt_nap(10);
    __atomic_store_n(h->cancel, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A server whose first word hangs does not keep who waits for it: an answer and a capture end with their flag. */
static void who_hangs_up_waits_for_no_word(void **state)
{
    vt_capture a;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start_unkept(&s, 1);
    vt_question(&p);
    for (int i = 0; i < 2; i++) {
        const uint32_t before = fake_look(s.f[0]).hung;
        volatile int cancel = 0;
        pthread_t t;
        is_run *run = NULL;

        FAKE_PUT(s.f[0], refuse, 500);
        FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run)); /* it is to say what it is before it gets more */
        FAKE_PUT(s.f[0], refuse, 0);
        FAKE_PUT(s.f[0], op_hangs, INFERSCALE_TICKET_DESCRIBE);
        vt_make_capture(&a, 20, 8, 3);
        a.c.cancel = &cancel;
        pthread_create(&t, NULL, hang_up_when_asked, &(hanger){ s.f[0], before, &cancel });
        if (i) FAILS(E_CANCELLED, V->capture(s.e, &a.c, 1));
        else FAILS(E_CANCELLED, V->begin(s.e, &p.plan, &(is_run_opts){ .cancel = &cancel }, &run));
        pthread_join(t, NULL);
        assert_int_equal(fake_look(s.f[0]).hung, before + 1);
        FAKE_PUT(s.f[0], op_hangs, 0);
        vt_free_capture(&a);
        OK(V->begin(s.e, &p.plan, NULL, &run)); /* and who asks next is served */
        V->finish(s.e, run);
    }
    vt_drop(&p);
    vt_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_dies_is_noticed_and_who_comes_back),
        cmocka_unit_test(one_that_hangs_is_no_bother),
        cmocka_unit_test(one_that_hangs_holds_up_no_start),
        cmocka_unit_test(one_that_is_silent_is_no_bother),
        cmocka_unit_test(silence_about_what_was_forgotten_is_a_failure),
        cmocka_unit_test(one_memory_holds_up_no_other),
        cmocka_unit_test(a_server_s_first_word_is_news),
        cmocka_unit_test(another_model_gets_no_work),
        cmocka_unit_test(another_model_without_a_pause),
        cmocka_unit_test(the_right_model_serves_again),
        cmocka_unit_test(who_hangs_up_waits_for_no_word),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
