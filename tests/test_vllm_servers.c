/* Whatever vLLM servers do, the engine ends with a status and a sentence, leaves nothing behind, and the run is where it was; another
 * server answers instead where it may; what was revoked is used nowhere. Captures: test_vllm_capture.c. */
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

/* ---- What goes wrong ------------------------------------------------------------------------------------------------------------------------------------ */

/* A server that fails before anything was handed out, or in the middle of an answer. */
static void survives_every_failure(void **state)
{
    static const fake_mood moods[] = { FAKE_500, FAKE_429, FAKE_TORN_FIRST, FAKE_TORN_MID, FAKE_WRONG_ID, FAKE_NOT_JSON, FAKE_ENDLESS, FAKE_ERROR_EVENT,
                                       FAKE_ABORTED, FAKE_TWO_CHOICES, FAKE_BEHIND_THE_END, FAKE_DEEP, FAKE_EMPTY, FAKE_HANG, FAKE_HANG_MID,
                                       FAKE_REDIRECT };

    (void)state;
    for (size_t i = 0; i < sizeof moods / sizeof *moods; i++) {
        is_status st;
        int32_t token;
        uint32_t n = 0;
        is_run *run;
        vt_plan p;
        vt_set s;

        vt_start(&s, 1);
        vllm_limit.silent_ms = 300;
        vt_question(&p);
        fake_set(s.f[0], moods[i]);
        st = V->begin(s.e, &p.plan, NULL, &run);
        for (; st == INFERSCALE_OK && n < 100; n++) {
            st = V->sample(s.e, run, &token);
            if (st != INFERSCALE_OK || V->is_eog(s.e, token)) break;
            assert_int_equal(token, fake_next(p.ids, p.n, p.plan.n_tokens, 12));
            st = V->token(s.e, run, token);
            if (st == INFERSCALE_OK) p.ids[p.n++] = token;
        }
        if (st == INFERSCALE_OK && moods[i] != FAKE_BEHIND_THE_END && moods[i] != FAKE_TWO_CHOICES) fail_msg("mood %d went well", moods[i]);
        if (st != INFERSCALE_OK && st != INFERSCALE_E_ENGINE && st != INFERSCALE_E_BUSY) fail_msg("mood %d: status %d, %s", moods[i], st, is_error());
        assert_true(*is_error());
        fake_set(s.f[0], FAKE_GOOD);
        vllm_limit.silent_ms = 20000;
        vt_nap(100);
        if (run) { /* it goes on from where it is */
            assert_int_equal(V->run_tokens(s.e, run), p.n);
            V->rest(s.e, run);
            vt_expect_answer(s.e, run, p.ids, p.n, 12);
        } else {
            OK(V->begin(s.e, &p.plan, NULL, &run));
            vt_expect_answer(s.e, run, p.ids, p.n, 12);
        }
        V->finish(s.e, run);
        vt_drop(&p);
        vt_stop(&s);
    }
}

static void another_server_answers_instead(void **state)
{
    static const fake_mood moods[] = { FAKE_500, FAKE_429, FAKE_TORN_FIRST, FAKE_NOT_JSON, FAKE_ERROR_EVENT, FAKE_HANG, FAKE_EMPTY };

    (void)state;
    for (size_t i = 0; i < sizeof moods / sizeof *moods; i++) {
        is_upstream up[SERVERS];
        uint64_t retries = 0;
        vt_plan p;
        vt_set s;

        vt_start(&s, 2);
        if (moods[i] == FAKE_HANG) vllm_limit.silent_ms = 1000; /* the other one must be faster than that */
        vt_question(&p);
        fake_set(s.f[0], moods[i]);
        for (uint8_t k = 1; k <= 6; k++) { /* some of these are the bad one's own */
            is_realm r = vt_realm(k, 1);
            is_run *run;

            OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &r }, &run));
            vt_expect_answer(s.e, run, p.ids, p.n, 12);
            V->finish(s.e, run);
        }
        V->upstreams(s.e, up, SERVERS);
        for (int k = 0; k < 2; k++) retries += up[k].n_retries;
        assert_int_equal(retries, fake_look(s.f[0]).completions);
        vt_drop(&p);
        vt_stop(&s);
    }
}

/* Once something of an answer was handed out no other server goes on with it. */
static void no_other_server_goes_on(void **state)
{
    int32_t token;
    is_status st = INFERSCALE_OK;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    vt_question(&p);
    fake_set(s.f[0], FAKE_TORN_MID);
    fake_set(s.f[1], FAKE_TORN_MID);
    OK(V->begin(s.e, &p.plan, NULL, &run));
    while (st == INFERSCALE_OK) {
        st = V->sample(s.e, run, &token);
        if (st == INFERSCALE_OK) OK(V->token(s.e, run, token));
    }
    assert_int_equal(st, INFERSCALE_E_ENGINE);
    assert_int_equal(fake_look(s.f[0]).completions + fake_look(s.f[1]).completions, 1);
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

typedef struct canceller { int flag; uint32_t ms; } canceller;

static void *cancel_soon(void *arg)
{
    canceller *c = arg;

    vt_nap(c->ms);
    __atomic_store_n(&c->flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void gives_up_when_told(void **state)
{
    canceller c = { 0, 50 };
    int32_t token;
    pthread_t t;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    fake_set(s.f[0], FAKE_HANG);
    pthread_create(&t, NULL, cancel_soon, &c);
    FAILS(E_CANCELLED, V->begin(s.e, &p.plan, &(is_run_opts){ .cancel = &c.flag }, &run));
    pthread_join(t, NULL);
    c.flag = 0;
    fake_set(s.f[0], FAKE_HANG_MID);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .stop = &c.flag }, &run));
    pthread_create(&t, NULL, cancel_soon, &c);
    for (is_status st = INFERSCALE_OK; st == INFERSCALE_OK;) {
        st = V->sample(s.e, run, &token);
        if (st == INFERSCALE_OK) st = V->token(s.e, run, token);
        if (st != INFERSCALE_OK) assert_int_equal(st, INFERSCALE_E_CANCELLED);
    }
    pthread_join(t, NULL);
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

static void rest_calls_it_off(void **state)
{
    is_run_stats stats;
    int32_t token;
    uint32_t cut;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    s.f[0]->length = 1500;
    s.f[0]->chunk = 200;
    s.f[0]->delay_ms = 2;
    vt_question(&p);
    cut = fake_look(s.f[0]).cut;
    OK(V->begin(s.e, &p.plan, NULL, &run));
    for (int i = 0; i < 5; i++) {
        OK(V->sample(s.e, run, &token));
        OK(V->token(s.e, run, token));
    }
    V->rest(s.e, run);
    for (int i = 0; i < 400 && fake_look(s.f[0]).cut == cut; i++) vt_nap(10);
    assert_int_equal(fake_look(s.f[0]).cut, cut + 1);
    V->stats(s.e, run, &stats); /* and what was injected is known all the same */
    assert_int_equal(fake_look(s.f[0]).statuses, 1);
    assert_int_equal(stats.tokens_injected, p.parts[1].n_tokens + p.parts[2].n_tokens);
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

static void says_what_was_not_injected(void **state)
{
    is_realm anna = vt_realm(7, 3);
    is_upstream up;
    is_run_stats stats;
    uint8_t salt[32];
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .no_prefix_cache = true }, &run)); /* the header is there */
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_LOAD_FAILS);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &anna }, &run));
    memcpy(salt, s.f[0]->ticket->salt, 32);
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->rest(s.e, run);
    V->stats(s.e, run, &stats);
    assert_string_equal(stats.reason, "torn");
    assert_string_equal(stats.why, "a segment was torn or damaged"); /* ours, not the server's: that one names a file */
    assert_int_equal(stats.n_bad, 1);
    assert_memory_equal(stats.bad[0].name, is_segment_info(p.parts[1].segment)->name, IS_HASH_BYTES);
    assert_string_equal(stats.bad[0].reason, "torn");
    assert_int_equal(stats.tokens_injected, 0);
    assert_int_equal(stats.tokens_computed, p.n);
    V->finish(s.e, run);
    V->upstreams(s.e, &up, 1);
    assert_string_equal(up.reasons[0].code, "torn");
    fake_set(s.f[0], FAKE_GOOD);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &anna }, &run));
    assert_memory_not_equal(salt, s.f[0]->ticket->salt, 32); /* that salt has exact blocks now */
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->rest(s.e, run);
    V->stats(s.e, run, &stats);
    assert_string_equal(stats.why, "");
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_NO_USAGE); /* then the connector is asked */
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .no_prefix_cache = true }, &run));
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->rest(s.e, run);
    V->stats(s.e, run, &stats);
    assert_int_equal(stats.tokens_injected, p.parts[1].n_tokens + p.parts[2].n_tokens);
    assert_int_equal(stats.tokens_resident, p.parts[0].n_tokens);
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

static void ends_without_an_end_token(void **state)
{
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    fake_set(s.f[0], FAKE_NO_END_TOKEN);
    OK(V->begin(s.e, &p.plan, NULL, &run));
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

/* ---- Servers ---------------------------------------------------------------------------------------------------------------------------------------------- */

static void a_tag_has_a_server_of_its_own(void **state)
{
    uint32_t used = 0;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 3);
    vt_question(&p);
    for (uint8_t tag = 1; tag <= 40; tag++) { /* ports are drawn: of 12 tags one run in 40 left a server without any */
        is_realm r = vt_realm(tag, 1);
        uint32_t before[SERVERS], moved = 0;

        for (int i = 0; i < 3; i++) before[i] = fake_look(s.f[i]).completions;
        for (int k = 0; k < 3; k++) {
            is_run *run;

            OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &r }, &run));
            V->rest(s.e, run);
            V->finish(s.e, run);
        }
        for (int i = 0; i < 3; i++) moved += fake_look(s.f[i]).completions != before[i], used |= (uint32_t)(fake_look(s.f[i]).completions != before[i]) << i;
        assert_int_equal(moved, 1);
    }
    assert_int_equal(used, 7);
    vt_drop(&p);
    vt_stop(&s);
}

static void no_server_has_much_more_than_its_share(void **state)
{
    is_realm r = vt_realm(9, 1);
    is_run *runs[12];
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 3);
    for (int i = 0; i < 3; i++) s.f[i]->length = 1900; /* they stay open */
    vt_question(&p);
    for (int i = 0; i < 12; i++) OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &r }, &runs[i]));
    for (int i = 0; i < 3; i++) assert_in_range(fake_look(s.f[i]).completions, 2, 6);
    for (int i = 0; i < 12; i++) V->finish(s.e, runs[i]);
    vt_drop(&p);
    vt_stop(&s);
}

static void what_was_revoked_is_used_nowhere(void **state)
{
    is_realm old = vt_realm(5, 1), now = vt_realm(5, 2), other = vt_realm(6, 1);
    size_t pending;
    is_upstream up[SERVERS];
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    vt_question(&p);
    p.parts[0].common = false; /* a client's own words */
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &old }, &run));
    V->finish(s.e, run);
    assert_int_equal(vt_files_in(s.home, "heads"), 2); /* its folder, tmp */
    fake_set(s.f[0], FAKE_NOT_REVOKED);
    FAILS(E_BUSY, V->revoke(s.e, &now, 5000, &pending));
    assert_int_equal(pending, 1);
    FAILS(E_STALE, V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &old }, &run));
    for (int i = 0; i < 3; i++) { /* none of this tag's work at the one that has not confirmed */
        uint32_t before = fake_look(s.f[0]).completions;

        OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &now }, &run));
        V->finish(s.e, run);
        assert_int_equal(fake_look(s.f[0]).completions, before);
    }
    fake_set(s.f[1], FAKE_NOT_REVOKED);
    now.epoch = 3;
    FAILS(E_BUSY, V->revoke(s.e, &now, 5000, &pending));
    assert_int_equal(pending, 2);
    FAILS(E_BUSY, V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &now }, &run));
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &other }, &run)); /* others are not touched */
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_GOOD); /* asked again in the background */
    vllm_limit.confirm_ms = 20000;
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &now }, &run)); /* waits for that */
    vllm_limit.confirm_ms = 0;
    V->upstreams(s.e, up, SERVERS);
    assert_int_equal(up[0].n_pending, 0);
    assert_int_equal(up[1].n_pending, 1);
    V->finish(s.e, run);
    fake_set(s.f[1], FAKE_GOOD);
    OK(V->revoke(s.e, &now, 5000, &pending));
    assert_int_equal(pending, 0);
    vt_drop(&p);
    vt_stop(&s);
}

/* It may have rows from before this process began: told when it is first there. One of another model is told at once. */
static void who_was_not_there_is_told_when_it_is(void **state)
{
    is_realm r = vt_realm(5, 2);
    is_upstream up[SERVERS];
    size_t pending;
    vt_set s;

    (void)state;
    vt_start_fakes(&s, 3);
    fake_set(s.f[1], FAKE_LOADING);
    fake_set(s.f[2], FAKE_FOREIGN);
    OK(vt_open_set(&s));
    OK(V->revoke(s.e, &r, 20000, &pending));
    assert_int_equal(pending, 0);
    assert_int_equal(fake_look(s.f[0]).revokes, 1);
    assert_int_equal(fake_look(s.f[2]).revokes, 1);
    V->upstreams(s.e, up, SERVERS);
    assert_int_equal(up[1].n_pending, 1);
    fake_set(s.f[1], FAKE_GOOD);
    for (int k = 0; k < 1000 && up[1].n_pending; k++) {
        vt_nap(10);
        V->upstreams(s.e, up, SERVERS);
    }
    assert_int_equal(up[1].n_pending, 0);
    assert_int_equal(fake_look(s.f[1]).revokes, 1);
    assert_true(up[1].up);
    vt_stop(&s);
}

static void a_server_that_hangs_does_not_hold_up_a_revocation(void **state)
{
    is_realm now = vt_realm(5, 2);
    size_t pending;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    fake_stop(s.f[1]); /* its port answers no more */
    s.f[1] = NULL;
    FAILS(E_BUSY, V->revoke(s.e, &now, 300, &pending));
    assert_int_equal(pending, 1);
    vt_stop(&s);
}

/* ---- Many at once, and memory that fails ------------------------------------------------------------------------------------------------------------------------ */

typedef struct worker { vt_set *s; uint8_t number; } worker;

static void *work(void *arg)
{
    worker *w = arg;

    for (int round = 0; round < 4; round++) {
        is_realm r = vt_realm((uint8_t)(1 + w->number % 3), 1);
        char text[64];
        vt_capture a;
        is_run *run;
        vt_plan p;
        size_t pending;

        vt_question(&p);
        OK(V->begin(w->s->e, &p.plan, &(is_run_opts){ .realm = &r }, &run));
        snprintf(text, sizeof text, "fact %d of %d <|im_end|>", round, w->number);
        vt_expect_plain(w->s->e, text);
        vt_expect_answer(w->s->e, run, p.ids, p.n, 12);
        V->rest(w->s->e, run);
        V->finish(w->s->e, run);
        vt_make_capture(&a, 20, 8, (uint8_t)(w->number + round));
        OK(V->capture(w->s->e, &a.c, 1));
        vt_expect_rows(&a);
        vt_free_capture(&a);
        r = vt_realm(200, (uint64_t)(10 * round + w->number));
        OK(V->revoke(w->s->e, &r, 20000, &pending));
        vt_drop(&p);
    }
    return NULL;
}

static void many_threads_use_it(void **state)
{
    pthread_t t[6];
    worker w[6];
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    for (uint8_t i = 0; i < 6; i++) {
        w[i] = (worker){ &s, i };
        pthread_create(&t[i], NULL, work, &w[i]);
    }
    for (int i = 0; i < 6; i++) pthread_join(t[i], NULL);
    assert_int_equal(vt_files_in(s.home, "spool"), 0);
    vt_stop(&s);
}

static is_status all_of_it(vt_set *s, vt_plan *p, vt_capture *a)
{
    is_realm r = vt_realm(3, 1);
    is_run *run = NULL;
    size_t pending;
    int32_t token, *ids = NULL;
    uint32_t n;
    is_status st;

    st = V->begin(s->e, &p->plan, &(is_run_opts){ .realm = &r, .no_prefix_cache = true, .want_logits = true }, &run);
    if (st == INFERSCALE_OK) st = V->sample(s->e, run, &token);
    if (st == INFERSCALE_OK) st = V->token(s->e, run, token);
    if (st == INFERSCALE_OK) st = V->token(s->e, run, 'X');
    if (st == INFERSCALE_OK) V->rest(s->e, run);
    if (st == INFERSCALE_OK) st = V->tokenize(s->e, NULL, "some <s> text", 13, false, true, &ids, &n);
    if (st == INFERSCALE_OK) V->tokens_free(s->e, ids);
    if (st == INFERSCALE_OK) st = V->capture(s->e, &a->c, 1);
    if (st == INFERSCALE_OK) st = V->revoke(s->e, &r, 20000, &pending);
    if (run) V->finish(s->e, run);
    return st;
}

static void memory_that_fails_is_said(void **state)
{
    uint32_t failed = 0;
    vt_capture a;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    vt_make_capture(&a, 20, 8, 2);
    for (size_t nth = 1;; nth += nth < 60 ? 1 : 7) {
        bool refused;
        is_status st;

        V->close(s.e);
        is_mem_fail_at(nth);
        st = vt_open_set(&s);
        if (st == INFERSCALE_OK) st = all_of_it(&s, &p, &a);
        refused = is_mem_failed();
        is_mem_fail_at(0);
        if (!refused) break;
        if (st != INFERSCALE_OK) failed++, assert_true(*is_error());
        if (!s.e) OK(vt_open_set(&s));
    }
    assert_true(failed > 50);
    OK(all_of_it(&s, &p, &a));
    vt_free_capture(&a);
    vt_drop(&p);
    vt_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_every_failure),
        cmocka_unit_test(another_server_answers_instead),
        cmocka_unit_test(no_other_server_goes_on),
        cmocka_unit_test(gives_up_when_told),
        cmocka_unit_test(rest_calls_it_off),
        cmocka_unit_test(says_what_was_not_injected),
        cmocka_unit_test(ends_without_an_end_token),
        cmocka_unit_test(a_tag_has_a_server_of_its_own),
        cmocka_unit_test(no_server_has_much_more_than_its_share),
        cmocka_unit_test(what_was_revoked_is_used_nowhere),
        cmocka_unit_test(who_was_not_there_is_told_when_it_is),
        cmocka_unit_test(a_server_that_hangs_does_not_hold_up_a_revocation),
        cmocka_unit_test(many_threads_use_it),
        cmocka_unit_test(memory_that_fails_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
