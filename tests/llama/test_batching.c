/* test_batching.c - a run in a batch of others is the run alone. Runs of several users, injected and computed, start at random moments
 * in as many threads; the logits of every token are those of the same run with nobody beside it, up to the noise of another batching.
 * That they are each user's own, and not another's, is the same comparison. More runs than the engine has streams are kept alive, fed in
 * turn and extended: those that wait aside come back as they were. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "llama/support/subject.h"
#include "support/scratch.h"

enum { USERS = 4, JOBS = 10, KEPT = 8, FED = 3, HEADER = 24, FACT = 30, QUESTION = 12, CTX = 512, ROWS = FED + 2 };

#ifdef __SANITIZE_ADDRESS__
enum { EVERY = 4, SMOLLM2_FA = 1 }; /* minutes each there; whether memory is misused does not depend on the model */
#else
enum { EVERY = 1, SMOLLM2_FA = 2 };
#endif

typedef struct user {
    kit_plan kv, text, more;  /* more: a stored fact and another question, behind the answer */
    int32_t fed[FED];
    float *want[2];           /* computed, injected: [ROWS][n_vocab] of the run alone: the start, each token, the extension */
} user;

typedef struct world {
    subject *s;
    user users[USERS];
    floor_n n;
} world;

static unsigned long long seed;

/* A run: begun, fed, extended. out = [ROWS][n_vocab] */
static void run_whole(const world *w, const user *u, bool kv, const is_run_opts *o, float *out)
{
    const size_t n = w->s->n_vocab;
    is_run *run;

    KIT_OK(is_engine_start(w->s->e, kv ? &u->kv.plan : &u->text.plan, o, &run, NULL));
    memcpy(out, is_engine_logits(w->s->e, run), n * sizeof *out);
    for (int i = 0; i < FED; i++) {
        KIT_OK(is_engine_feed(w->s->e, run, u->fed[i]));
        memcpy(out + (size_t)(i + 1) * n, is_engine_logits(w->s->e, run), n * sizeof *out);
    }
    KIT_OK(is_engine_extend(w->s->e, run, &u->more.plan, o, NULL));
    memcpy(out + (size_t)(FED + 1) * n, is_engine_logits(w->s->e, run), n * sizeof *out);
    is_engine_finish(w->s->e, run);
}

static is_segment *encode(const world *w, kit_ids header, kit_ids fact)
{
    kit_rows rows;
    is_segment *segment;

    kit_capture(w->s->e, header, fact, 0, &rows);
    segment = kit_segment(w->s->e, w->s->rope, &rows, 0, fact, IS_CODEC_F16, KIT_GOOD, 0);
    kit_rows_free(&rows);
    return segment;
}

static float *table(const world *w)
{
    float *t = is_malloc(ROWS * (size_t)w->s->n_vocab * sizeof *t);

    assert_non_null(t);
    return t;
}

static void make_user(world *w, uint32_t who)
{
    static const uint32_t ways[] = { 1, 7, 24 };
    user *u = &w->users[who];
    kit_ids all = w->s->all, header = kit_cut(all, 0, HEADER);
    uint32_t at = 100 + 130 * who, n = HEADER;
    float *other = table(w);

    kit_plan_begin(&u->kv, 0);
    kit_plan_add(&u->kv, IS_ROLE_HEADER, header, NULL);
    for (int i = 0; i < 2; i++, at += FACT, n += FACT) {
        kit_ids fact = kit_cut(all, at, FACT);

        kit_plan_add(&u->kv, IS_ROLE_FACT, fact, encode(w, header, fact));
    }
    kit_plan_add(&u->kv, IS_ROLE_QUESTION, kit_cut(all, at, QUESTION + who), NULL);
    n += QUESTION + who;
    kit_plan_twin(&u->kv, &u->text);
    for (int i = 0; i < FED; i++) u->fed[i] = all.p[at + 20 + (uint32_t)i];
    kit_plan_begin(&u->more, n + FED);
    kit_plan_add(&u->more, IS_ROLE_FACT, kit_cut(all, at + 25, FACT), encode(w, header, kit_cut(all, at + 25, FACT)));
    kit_plan_add(&u->more, IS_ROLE_QUESTION, kit_cut(all, at + 60, QUESTION), NULL);
    for (int kv = 0; kv < 2; kv++) {
        const is_run_opts alone = { .no_prefix_cache = true };

        u->want[kv] = table(w);
        run_whole(w, u, kv, &alone, u->want[kv]);
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways + (w->s->noisy ? 2 : 0); i++) {
        const bool kept = i >= sizeof ways / sizeof *ways; /* the header apart: computed, then as it was kept */
        const is_run_opts split = { .no_prefix_cache = !kept, .batch = kept ? 0 : ways[i] };

        run_whole(w, u, false, &split, other);
        for (uint32_t r = 0; r < ROWS; r++) {
            const float *a = u->want[0] + (size_t)r * w->s->n_vocab, *b = other + (size_t)r * w->s->n_vocab;

            if (kept) assert_true(logits_kl(a, b, w->s->n_vocab) < 0.1); /* another header, or another's, is above 1 */
            w->n.kl = fmax(w->n.kl, logits_kl(a, b, w->s->n_vocab));
            w->n.diff = fmax(w->n.diff, logits_max_diff(a, b, w->s->n_vocab));
        }
    }
    is_free(other);
}

static void compare(const world *w, const char *what, const user *u, bool kv, const float *got)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        char name[64];

        snprintf(name, sizeof name, "%s, user %d, %s, row %u", what, (int)(u - w->users), kv ? "kv" : "text", r);
        subject_same(w->s, name, u->want[kv] + (size_t)r * w->s->n_vocab, got + (size_t)r * w->s->n_vocab, w->n);
    }
}

/* ---- At once ---------------------------------------------------------------------------------------------------------------- */

typedef struct job { const world *w; const user *u; bool kv, cached; unsigned wait_us; float *got; pthread_t thread; } job;

static void *do_job(void *arg)
{
    job *j = arg;
    is_run_opts o = { .no_prefix_cache = !j->cached };

    usleep(j->wait_us);
    run_whole(j->w, j->u, j->kv, &o, j->got);
    return NULL;
}

static void all_at_once(world *w)
{
    job jobs[JOBS];

    for (int i = 0; i < JOBS; i++) {
        jobs[i] = (job){ .w = w, .u = &w->users[scratch_below(&seed, USERS)], .kv = scratch_below(&seed, 2), .got = table(w),
                         .cached = scratch_below(&seed, 2), .wait_us = scratch_below(&seed, w->s->noisy ? 300000 : 5000) };
        assert_int_equal(pthread_create(&jobs[i].thread, NULL, do_job, &jobs[i]), 0);
    }
    for (int i = 0; i < JOBS; i++) pthread_join(jobs[i].thread, NULL);
    for (int i = 0; i < JOBS; i++) {
        compare(w, "at once", jobs[i].u, jobs[i].kv, jobs[i].got);
        is_free(jobs[i].got);
    }
}

/* ---- Kept ------------------------------------------------------------------------------------------------------------------- */

static void keep(const world *w, is_run *run, float *got, int row)
{
    memcpy(got + (size_t)row * w->s->n_vocab, is_engine_logits(w->s->e, run), w->s->n_vocab * sizeof *got);
}

static void kept_alive(world *w)
{
    is_run *runs[KEPT];
    float *got[KEPT];

    for (int i = 0; i < KEPT; i++) {
        const user *u = &w->users[i % USERS];

        got[i] = table(w);
        KIT_OK(is_engine_start(w->s->e, i / USERS ? &u->kv.plan : &u->text.plan, NULL, &runs[i], NULL));
        keep(w, runs[i], got[i], 0);
    }
    for (int k = 0; k < FED; k++)
        for (int i = 0; i < KEPT; i++) {
            KIT_OK(is_engine_feed(w->s->e, runs[i], w->users[i % USERS].fed[k]));
            keep(w, runs[i], got[i], k + 1);
        }
    for (int i = 0; i < KEPT; i++) {
        KIT_OK(is_engine_extend(w->s->e, runs[i], &w->users[i % USERS].more.plan, NULL, NULL));
        keep(w, runs[i], got[i], FED + 1);
        is_engine_finish(w->s->e, runs[i]);
        compare(w, "kept", &w->users[i % USERS], i / USERS, got[i]);
        is_free(got[i]);
    }
}

/* ---- Models ----------------------------------------------------------------------------------------------------------------- */

static void one_model(const char *name, bool fa)
{
    subject s;
    world w = { .s = &s, .n = { SUBJECT_KL_FLOOR, SUBJECT_DIFF_FLOOR } };

    subject_open(&s, name, fa, CTX);
    for (uint32_t i = 0; i < USERS; i++) make_user(&w, i);
    print_message("  %-16s fa %-3s N = KL %.3g, largest difference %.3g\n", s.name, s.fa ? "on" : "off", w.n.kl, w.n.diff);
    all_at_once(&w);
    kept_alive(&w);
    for (int i = 0; i < USERS; i++) {
        kit_plan_unref(&w.users[i].kv);
        kit_plan_unref(&w.users[i].more);
        for (int kv = 0; kv < 2; kv++) is_free(w.users[i].want[kv]);
    }
    subject_close(&s);
    subject_verdict();
}

static void test_weightless_models(void **state)
{
    (void)state;
    for (unsigned i = 0; i < tiny_model_count; i += EVERY)
        for (int fa = 0; fa < 2 && tiny_models[i].can_inject; fa++) one_model(tiny_models[i].name, fa);
}

static void test_smollm2(void **state)
{
    (void)state;
    for (int fa = 0; fa < SMOLLM2_FA; fa++) one_model("smollm2", fa);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_weightless_models), cmocka_unit_test(test_smollm2) };

    seed = scratch_seed("batching");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
