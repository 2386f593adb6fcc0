/* Later turns of a conversation on a fake vLLM: what must hold of the rows between what the server has of the earlier turns and the new facts (the
 * tail). They are captured under the conversation's salt, before the turn is asked for; they are the model's at that place; they are gone when
 * the turn is over, when its memory is revoked, and at the next open. Whatever fails, the answer is the exact one, and it is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "kv/ticket.h"
#include "support/scratch.h"
#include "support/vllm_kit.h"

typedef struct talk {
    vt_set s;
    is_realm anna;
    is_run_opts o;
    is_run *run;
    vt_plan first, turn;            /* turn: its ids are all of the conversation's */
    uint8_t salt[32];
} talk;

/* ---- A conversation ----------------------------------------------------------------------------------------------------------------------- */

static uint32_t n_segments;

static int count_segment(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    n_segments += kind == FTW_F && strlen(path) > 4 && strcmp(path + strlen(path) - 4, ".seg") == 0;
    return 0;
}

/* Segments under heads: the header's, and a tail while it is there. */
static uint32_t heads(const vt_set *s)
{
    n_segments = 0;
    nftw(scratch_path(s->home, "vllm/heads"), count_segment, 8, FTW_PHYS);
    return n_segments;
}

/* Three tokens are told and taken, and the turn is over. */
static void tell(talk *t, int32_t *ids, uint32_t *n)
{
    int32_t token;

    for (int i = 0; i < 3; i++) {
        OK(V->sample(t->s.e, t->run, &token));
        OK(V->token(t->s.e, t->run, token));
        ids[(*n)++] = token;
    }
    V->rest(t->s.e, t->run);
}

static void begin_with(talk *t, int servers, bool no_prefix_cache)
{
    *t = (talk){ .anna = vt_realm(7, 3) };
    t->o = (is_run_opts){ .realm = &t->anna };
    vt_start_fakes(&t->s, servers);
    for (int i = 0; i < servers; i++) t->s.f[i]->no_prefix_cache = no_prefix_cache;
    OK(vt_open_set(&t->s));
    vt_question(&t->first);
    OK(V->begin(t->s.e, &t->first.plan, &t->o, &t->run));
    memcpy(t->salt, t->s.f[0]->ticket ? t->s.f[0]->ticket->salt : t->salt, 32);
    t->turn.n = t->first.n;
    memcpy(t->turn.ids, t->first.ids, t->first.n * sizeof *t->turn.ids);
    tell(t, t->turn.ids, &t->turn.n);
    for (int i = 0; i < servers; i++) fake_forget_jobs(t->s.f[i]);
}

static void begin_on(talk *t, int servers)
{
    begin_with(t, servers, false);
}

static void end(talk *t)
{
    V->finish(t->s.e, t->run);
    vt_drop(&t->first);
    vt_drop(&t->turn);
    assert_true(heads(&t->s) <= 1);
    vt_stop(&t->s);
}

/* The next turn's plan: an opener of so many tokens, facts, a question. Positions are those behind what was said so far. */
static void plan_turn(talk *t, uint32_t opener, const char *fact, uint8_t name)
{
    char text[65];
    vt_plan *q = &t->turn;

    vt_drop(q);
    memset(q->parts, 0, sizeof q->parts);
    q->plan = (is_plan){ .n_tokens = q->n };
    memset(text, '.', opener);
    text[opener] = 0;
    vt_add(q, IS_ROLE_HEADER, text, 0);
    vt_add(q, IS_ROLE_FACT, fact, name);
    vt_add(q, IS_ROLE_QUESTION, "And who sings?", 0);
    q->plan.n_tokens -= q->parts[0].pos;
}

#define FACT "- Carl sings whenever he is asked to, and then some.\n"

static is_status go_on(talk *t)
{
    return V->more(t->s.e, t->run, &t->turn.plan, &t->o);
}

static is_run_stats over(talk *t)
{
    is_run_stats stats;

    V->rest(t->s.e, t->run);
    V->stats(t->s.e, t->run, &stats);
    assert_int_equal(stats.tokens_computed + stats.tokens_injected + stats.tokens_resident, t->turn.n);
    return stats;
}

static uint64_t counted(const talk *t, const char *reason)
{
    is_upstream up[SERVERS];
    uint64_t n = 0;

    V->upstreams(t->s.e, up, SERVERS);
    for (uint32_t k = 0; k < up[0].n_reasons; k++)
        if (strcmp(up[0].reasons[k].code, reason) == 0) n += up[0].reasons[k].n;
    return n;
}

/* ---- It works ------------------------------------------------------------------------------------------------------------------------------ */

static void expect_jobs(talk *t, uint32_t n_earlier)
{
    const is_part *fact = &t->turn.parts[1];
    uint32_t from = (fact->pos - 1) / FAKE_BLOCK * FAKE_BLOCK;
    fake_job jobs[FAKE_JOBS];

    assert_int_equal(fake_jobs(t->s.f[0], jobs), 2);
    assert_int_equal(jobs[0].op, INFERSCALE_TICKET_CAPTURE);
    assert_memory_equal(jobs[0].salt, t->salt, 32);
    assert_int_equal(jobs[0].n_prompt, fact->pos);
    assert_int_equal(jobs[0].capture_from, from);
    assert_int_equal(jobs[0].capture_n, fact->pos - from);
    assert_int_equal(jobs[0].n_parts, n_earlier);
    assert_true(jobs[0].local > 0 && jobs[0].local <= from); /* the earlier turns are a hit */
    assert_int_equal(jobs[1].op, INFERSCALE_TICKET_INJECT);
    assert_memory_equal(jobs[1].salt, t->salt, 32);
    assert_int_equal(jobs[1].local, fact->pos / FAKE_BLOCK * FAKE_BLOCK);
    assert_int_equal(jobs[1].local + jobs[1].injected, fact->pos + fact->n_tokens);
    assert_int_equal(jobs[1].n_parts, n_earlier + 2);
    assert_true(jobs[1].tail_there);
    assert_int_equal(jobs[1].tail_pos, from);
    assert_int_equal(jobs[1].tail_n, fact->pos - from);
}

/* Three turns, with the borders of blocks at every place of them. */
static void new_facts_come_within_reach(void **state)
{
    (void)state;
    for (uint32_t opener = 1; opener <= 2 * FAKE_BLOCK; opener += 3) {
        uint8_t tail[2][32];
        talk t;

        begin_on(&t, 1);
        for (uint32_t turn = 0; turn < 2; turn++) {
            fake_job jobs[FAKE_JOBS];
            is_run_stats stats;

            plan_turn(&t, opener + turn, FACT, (uint8_t)(3 + turn));
            OK(go_on(&t));
            expect_jobs(&t, 3 + turn);
            fake_jobs(t.s.f[0], jobs);
            memcpy(tail[turn], jobs[1].tail, 32);
            assert_int_equal(heads(&t.s), 2);
            if (turn == 0) vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
            stats = over(&t);
            assert_int_equal(heads(&t.s), 1); /* the header's */
            assert_string_equal(stats.reason, "");
            assert_int_equal(stats.tokens_injected, t.turn.parts[1].n_tokens);
            assert_int_equal(stats.tokens_resident, jobs[0].local + jobs[0].injected); /* an earlier fact in the unfinished block */
            for (uint32_t told = 0; turn == 0 && told < t.s.f[0]->length; told++) { /* what the run has told by now */
                t.turn.ids[t.turn.n] = fake_next(t.turn.ids, t.turn.n, t.turn.n - told, t.s.f[0]->length);
                t.turn.n++;
            }
            fake_forget_jobs(t.s.f[0]);
        }
        assert_memory_not_equal(tail[0], tail[1], 32);
        assert_int_equal(vt_files_in(t.s.home, "spool"), 0);
        end(&t);
    }
}

/* Equal conversations of one owner share their salt, never their tails. */
static void a_tail_is_one_run_s(void **state)
{
    fake_job jobs[FAKE_JOBS];
    is_run *other;
    talk t;

    (void)state;
    begin_on(&t, 1);
    OK(V->begin(t.s.e, &t.first.plan, &t.o, &other));
    for (uint32_t i = t.first.n; i < t.turn.n; i++) OK(V->token(t.s.e, other, t.turn.ids[i]));
    V->rest(t.s.e, other);
    plan_turn(&t, 6, FACT, 3);
    fake_forget_jobs(t.s.f[0]);
    OK(go_on(&t));
    OK(V->more(t.s.e, other, &t.turn.plan, &t.o));
    assert_int_equal(fake_jobs(t.s.f[0], jobs), 4);
    assert_memory_equal(jobs[1].salt, jobs[3].salt, 32);
    assert_memory_not_equal(jobs[1].tail, jobs[3].tail, 32);
    assert_int_equal(heads(&t.s), 3);
    V->finish(t.s.e, other);
    assert_int_equal(heads(&t.s), 2);
    end(&t);
}

/* A conversation that is taken up again is planned as a whole: each turn's new facts are brought within reach. */
static void a_conversation_is_taken_up(void **state)
{
    is_realm anna = vt_realm(7, 3);
    fake_job jobs[FAKE_JOBS];
    is_run_stats stats;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    vt_question(&p);
    for (uint8_t turn = 0; turn < 2; turn++) {
        vt_add(&p, IS_ROLE_HEADER, "Tea. And who sings?", 0);
        vt_add(&p, IS_ROLE_FACT, FACT, (uint8_t)(3 + turn));
        vt_add(&p, IS_ROLE_QUESTION, "What then?", 0);
    }
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &anna }, &run));
    for (int i = 0; i < 2; i++) {
        uint32_t n = fake_jobs(s.f[i], jobs);

        if (n < 3) continue; /* the other one, or the header alone */
        assert_int_equal(jobs[n - 3].op, INFERSCALE_TICKET_CAPTURE);
        assert_int_equal(jobs[n - 2].op, INFERSCALE_TICKET_CAPTURE);
        assert_int_equal(jobs[n - 1].op, INFERSCALE_TICKET_INJECT);
        assert_memory_equal(jobs[n - 3].salt, jobs[n - 1].salt, 32);
        assert_memory_equal(jobs[n - 2].salt, jobs[n - 1].salt, 32);
        assert_true(jobs[n - 2].tail_there && jobs[n - 1].tail_there);
        assert_memory_not_equal(jobs[n - 2].tail, jobs[n - 1].tail, 32);
        assert_int_equal(jobs[n - 1].local + jobs[n - 1].injected, p.parts[9].pos + p.parts[9].n_tokens);
        assert_int_equal(heads(&s), 2);
        vt_expect_answer(s.e, run, p.ids, p.n, s.f[i]->length);
        V->rest(s.e, run);
        V->stats(s.e, run, &stats);
        assert_string_equal(stats.reason, "");
        assert_int_equal(stats.tokens_computed + stats.tokens_injected + stats.tokens_resident, p.n);
        V->finish(s.e, run);
        vt_drop(&p);
        assert_int_equal(heads(&s), 1);
        vt_stop(&s);
        return;
    }
    fail_msg("no server had both captures and the answer");
}

static void little_is_computed_at_once(void **state)
{
    fake_job jobs[FAKE_JOBS];
    talk t;

    (void)state;
    begin_on(&t, 1);
    plan_turn(&t, 2 * FAKE_BLOCK - t.turn.n % FAKE_BLOCK, "- Hi", 3); /* a full block of rows for 4 tokens */
    OK(go_on(&t));
    assert_int_equal(fake_jobs(t.s.f[0], jobs), 1);
    assert_int_equal(jobs[0].op, INFERSCALE_TICKET_INJECT);
    vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
    assert_string_equal(over(&t).reason, "gap");
    end(&t);
}

/* ---- It fails -------------------------------------------------------------------------------------------------------------------------------- */

static void a_capture_that_fails_is_counted(void **state)
{
    static const fake_mood moods[] = { FAKE_CAPTURE_500, FAKE_CAPTURE_LIES, FAKE_CAPTURE_HALF, FAKE_CAPTURE_OTHER, FAKE_CAPTURE_HANG };

    (void)state;
    for (size_t i = 0; i < sizeof moods / sizeof *moods; i++) {
        is_run_stats stats;
        talk t;

        begin_on(&t, 1);
        if (moods[i] == FAKE_CAPTURE_HALF) t.s.f[0]->tp = 2;
        fake_set(t.s.f[0], moods[i]);
        plan_turn(&t, 6, FACT, 3);
        OK(go_on(&t));
        assert_int_equal(heads(&t.s), 1);
        vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
        stats = over(&t);
        if (strcmp(stats.reason, "tail") != 0) fail_msg("mood %d: %s, %s", moods[i], stats.reason, stats.why);
        assert_int_equal(stats.tokens_injected, 0);
        assert_true(counted(&t, "tail") >= 1);
        fake_set(t.s.f[0], FAKE_GOOD);
        end(&t);
    }
}

/* Blocks that go between the capture and the turn. */
static void a_shorter_hit_is_computed(void **state)
{
    is_run_stats stats;
    talk t;

    (void)state;
    begin_on(&t, 1);
    fake_set(t.s.f[0], FAKE_EVICTED);
    plan_turn(&t, 6, FACT, 3);
    OK(go_on(&t));
    vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
    stats = over(&t);
    assert_string_equal(stats.reason, "gap");
    assert_int_equal(stats.tokens_injected, t.first.parts[1].n_tokens + t.first.parts[2].n_tokens); /* the first turn's, from its beginning on */
    assert_int_equal(counted(&t, "gap"), 1);
    assert_int_equal(heads(&t.s), 1);
    end(&t);
}

/* Without a prefix cache nothing of the earlier turns is a hit. The tail is then all that stands between the first turn's stored rows and the new ones, if
 * these are more; else the new ones are computed. */
static void a_server_without_a_prefix_cache(void **state)
{
    (void)state;
    for (uint32_t more = 0; more < 2; more++) {
        fake_job jobs[FAKE_JOBS];
        const is_part *fact;
        is_run_stats stats;
        uint32_t from, n;
        talk t;

        begin_with(&t, 1, true);
        plan_turn(&t, 6, more ? FACT FACT FACT : "- Hi", 3);
        fact = &t.turn.parts[1];
        from = t.first.parts[2].pos + t.first.parts[2].n_tokens;
        OK(go_on(&t));
        vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
        n = fake_jobs(t.s.f[0], jobs);
        assert_int_equal(n, 1 + more);
        assert_int_equal(jobs[n - 1].local, 0);
        assert_int_equal(jobs[n - 1].injected, more ? fact->pos + fact->n_tokens : from);
        if (more) {
            assert_int_equal(jobs[0].capture_from, from);
            assert_int_equal(jobs[0].capture_n, fact->pos - from);
            assert_true(jobs[1].tail_there);
        }
        stats = over(&t);
        assert_string_equal(stats.reason, more ? "" : "gap");
        assert_int_equal(stats.tokens_injected, t.first.parts[1].n_tokens + t.first.parts[2].n_tokens + (more ? fact->n_tokens : 0));
        end(&t);
    }
}

static void what_fails_leaves_the_run_as_it_was(void **state)
{
    volatile int cancel = 1;
    fake_job jobs[FAKE_JOBS];
    uint32_t n;
    talk t;

    (void)state;
    begin_on(&t, 1);
    n = t.turn.n;
    plan_turn(&t, 6, FACT, 3);
    fake_set(t.s.f[0], FAKE_500); /* of the turn, after its capture */
    FAILS(E_ENGINE, go_on(&t));
    assert_int_equal(V->run_tokens(t.s.e, t.run), n);
    assert_int_equal(heads(&t.s), 1);
    fake_set(t.s.f[0], FAKE_GOOD);
    vt_nap(100);
    t.o.cancel = &cancel;
    FAILS(E_CANCELLED, go_on(&t));
    assert_int_equal(V->run_tokens(t.s.e, t.run), n);
    assert_int_equal(heads(&t.s), 1);
    t.o.cancel = NULL;
    fake_forget_jobs(t.s.f[0]);
    OK(go_on(&t));
    assert_int_equal(fake_jobs(t.s.f[0], jobs), 2);
    vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
    assert_string_equal(over(&t).reason, "");
    end(&t);
}

/* The server that has the earlier turns is gone: another one computes all of it. */
static void another_server_goes_on(void **state)
{
    fake_job jobs[FAKE_JOBS];
    int has;
    talk t;

    (void)state;
    begin_on(&t, 2);
    has = fake_look(t.s.f[0]).completions ? 0 : 1;
    fake_set(t.s.f[has], FAKE_LOADING);
    plan_turn(&t, 6, FACT, 3);
    OK(go_on(&t));
    assert_true(fake_jobs(t.s.f[1 - has], jobs) >= 1);
    vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
    assert_string_equal(over(&t).reason, "gap"); /* there is nothing of the conversation there */
    assert_int_equal(counted(&t, "tail"), 1);
    fake_set(t.s.f[has], FAKE_GOOD);
    end(&t);
}

static void memory_that_fails_leaves_no_tail(void **state)
{
    uint32_t failed = 0;
    talk t;

    (void)state;
    begin_on(&t, 1);
    plan_turn(&t, 6, FACT, 3);
    for (size_t nth = 1;; nth += nth < 80 ? 1 : 9) {
        bool refused;
        is_status st;

        is_mem_fail_at(nth);
        st = go_on(&t);
        refused = is_mem_failed();
        is_mem_fail_at(0);
        if (!refused) {
            OK(st);
            break;
        }
        failed += st != INFERSCALE_OK;
        if (st == INFERSCALE_OK) { /* it went on without */
            end(&t);
            begin_on(&t, 1);
            plan_turn(&t, 6, FACT, 3);
        }
        assert_int_equal(heads(&t.s), 1);
    }
    assert_true(failed > 20);
    vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, t.s.f[0]->length);
    end(&t);
}

/* ---- It goes ----------------------------------------------------------------------------------------------------------------------------------- */

static void what_is_revoked_takes_its_tail_along(void **state)
{
    is_realm later = vt_realm(7, 4), other = vt_realm(8, 9);
    size_t pending;
    talk t;

    (void)state;
    begin_on(&t, 1);
    plan_turn(&t, 6, FACT, 3);
    OK(go_on(&t));
    OK(V->revoke(t.s.e, &other, 5000, &pending));
    assert_int_equal(heads(&t.s), 2);
    OK(V->revoke(t.s.e, &later, 5000, &pending));
    assert_int_equal(heads(&t.s), 1);
    V->rest(t.s.e, t.run);
    plan_turn(&t, 6, FACT, 4);
    FAILS(E_STALE, go_on(&t));
    end(&t);
}

/* What a dead process left goes at the next open; a living one's stays. */
static void leftovers_go(void **state)
{
    const int32_t tokens[] = { 'a', 'b', 'c' };
    is_segment *left = vt_segment_of(tokens, 3, 0x5a);
    char path[128];
    void *second;
    talk t;

    (void)state;
    begin_on(&t, 1);
    plan_turn(&t, 6, FACT, 3);
    OK(go_on(&t));
    mkdir(scratch_path(t.s.home, "vllm/heads/5a"), 0700);
    snprintf(path, sizeof path, "vllm/heads/5a/");
    for (int i = 0; i < 32; i++) strcat(path, "5a");
    strcat(path, ".seg");
    OK(is_segment_write(left, is_fs_posix(), scratch_path(t.s.home, path)));
    is_segment_unref(left);
    assert_int_equal(heads(&t.s), 3);
    OK(vt_open_urls(t.s.home, t.s.f[0]->url, &second));
    assert_int_equal(heads(&t.s), 2);
    V->close(second);
    assert_int_equal(heads(&t.s), 2);
    end(&t);
}

/* Conversations at once, while the memory of some is revoked: each answer is the model's, or there is none; no tail stays. */
typedef struct talker { vt_set *s; uint8_t number; uint32_t n_over, n_refused; } talker;

static void *hold_talks(void *arg)
{
    talker *w = arg;

    for (uint8_t round = 0; round < 6; round++) {
        talk t = { .s = *w->s, .anna = vt_realm((uint8_t)(1 + w->number % 2), 1 + (uint64_t)round) };
        size_t pending;
        is_status st;

        t.o = (is_run_opts){ .realm = &t.anna };
        vt_question(&t.first);
        t.turn.n = t.first.n;
        memcpy(t.turn.ids, t.first.ids, t.first.n * sizeof *t.turn.ids);
        st = V->begin(t.s.e, &t.first.plan, &t.o, &t.run);
        if (st == INFERSCALE_OK) {
            tell(&t, t.turn.ids, &t.turn.n);
            plan_turn(&t, 2 + w->number, FACT, (uint8_t)(3 + round));
            st = go_on(&t);
        }
        if (st == INFERSCALE_OK) vt_expect_answer(t.s.e, t.run, t.turn.ids, t.turn.n, w->s->f[0]->length);
        w->n_over += st == INFERSCALE_OK;
        w->n_refused += st == INFERSCALE_E_STALE || st == INFERSCALE_E_BUSY; /* revoked; not confirmed yet */
        t.anna.epoch++;
        if (w->number < 2) V->revoke(t.s.e, &t.anna, 20000, &pending);
        V->finish(t.s.e, t.run);
        vt_drop(&t.first);
        vt_drop(&t.turn);
    }
    return NULL;
}

static void many_conversations_at_once(void **state)
{
    pthread_t thread[6];
    talker w[6];
    uint32_t n_over = 0, n_refused = 0;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    for (uint8_t i = 0; i < 6; i++) {
        w[i] = (talker){ .s = &s, .number = i };
        pthread_create(&thread[i], NULL, hold_talks, &w[i]);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(thread[i], NULL);
        n_over += w[i].n_over;
        n_refused += w[i].n_refused;
    }
    assert_int_equal(n_over + n_refused, 36);
    assert_true(n_over >= 6);
    assert_true(heads(&s) <= 1);
    vt_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_facts_come_within_reach),
        cmocka_unit_test(a_tail_is_one_run_s),
        cmocka_unit_test(a_conversation_is_taken_up),
        cmocka_unit_test(little_is_computed_at_once),
        cmocka_unit_test(a_capture_that_fails_is_counted),
        cmocka_unit_test(a_shorter_hit_is_computed),
        cmocka_unit_test(a_server_without_a_prefix_cache),
        cmocka_unit_test(what_fails_leaves_the_run_as_it_was),
        cmocka_unit_test(another_server_goes_on),
        cmocka_unit_test(memory_that_fails_leaves_no_tail),
        cmocka_unit_test(what_is_revoked_takes_its_tail_along),
        cmocka_unit_test(leftovers_go),
        cmocka_unit_test(many_conversations_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
