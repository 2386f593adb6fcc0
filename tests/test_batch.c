/* test_batch.c - many threads on one engine: who is in which step, by the mock's list of steps; and that runs that share steps are what
 * they are alone, whatever is cancelled, fails or ends beside them. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/batch.h"
#include "support/kit.h"
#include "support/scratch.h"

enum { VOCAB = 1001, LONG = 7000, LINES = 4096, USERS = 6, THREADS = 32, TURNS = 12, TOKENS = 6 };

static char steps_path[1024];
static uint64_t seed;

static is_engine *open_mock(const char *options, uint32_t n_parallel)
{
    char path[1200];
    is_engine_opts o = { .model_path = path, .n_parallel = n_parallel };
    is_engine *e = NULL;

    unlink(steps_path);
    snprintf(path, sizeof path, "mock:steps=%s,%s", steps_path, options);
    KIT_OK(is_engine_open(NULL, "mock", &o, &e));
    return e;
}

static uint32_t draw(uint64_t *s, uint32_t n)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*s >> 33) % n);
}

/* ---- Steps --------------------------------------------------------------------------------------------------------------- */

typedef struct lane { unsigned run, tokens; bool done; } lane;
typedef struct step { int n; lane lanes[128]; } step;

static int read_steps(step *out, int most)
{
    static char line[8192];
    FILE *f = fopen(steps_path, "r");
    int n = 0;

    assert_non_null(f);
    while (n < most && fgets(line, sizeof line, f)) {
        step *s = &out[n++];

        s->n = 0;
        for (char *w = strtok(line, " \n"); w; w = strtok(NULL, " \n")) {
            lane *l = &s->lanes[s->n++];

            assert_int_equal(sscanf(w, "%u:%u", &l->run, &l->tokens), 2);
            l->done = strchr(w, '+') != NULL;
        }
    }
    fclose(f);
    return n;
}

static const lane *lane_of(const step *s, unsigned run)
{
    for (int i = 0; i < s->n; i++)
        if (s->lanes[i].run == run) return &s->lanes[i];
    return NULL;
}

/* ---- Who is in which step ------------------------------------------------------------------------------------------------- */

typedef struct job {
    is_engine *e;
    kit_ids ids;
    int tokens;              /* to generate */
    volatile int *go_on;     /* and for as long as this is set */
    volatile int *cancel;
    is_status st;
} job;

static void *do_job(void *arg)
{
    job *j = arg;
    is_run_opts o = { .no_prefix_cache = true, .cancel = j->cancel };
    is_run *run = NULL;
    kit_plan p;

    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, j->ids, NULL);
    j->st = is_engine_start(j->e, &p.plan, &o, &run, NULL);
    for (int i = 0; j->st == INFERSCALE_OK && (i < j->tokens || (j->go_on && __atomic_load_n(j->go_on, __ATOMIC_ACQUIRE))); i++) {
        int32_t token;

        KIT_OK(is_engine_sample(j->e, run, &token));
        j->st = is_engine_feed(j->e, run, token);
    }
    is_engine_finish(j->e, run);
    return NULL;
}

static void wait_for_steps(int n)
{
    static step s[LINES];

    for (;;) {
        if (access(steps_path, R_OK) == 0 && read_steps(s, LINES) >= n) return;
        usleep(2000);
    }
}

/* A short prompt is through in the first step that it is in, while a long one is computed and others generate; the long one goes on. */
static void test_short_prompts_pass_long_ones(void **state)
{
    static step s[LINES];
    is_engine *e = open_mock("slow=5", 8);
    int32_t *ids = kit_random_ids(&seed, LONG, 16, VOCAB);
    kit_ids all = { ids, LONG };
    job slow = { .e = e, .ids = all }, quick[3], talks = { .e = e, .ids = kit_cut(all, 5, 9) };
    pthread_t a, b, c;
    volatile int go_on = 1;
    int n, beside = 0;

    (void)state;
    talks.go_on = &go_on;
    assert_int_equal(pthread_create(&b, NULL, do_job, &talks), 0); /* run 1 */
    wait_for_steps(2);
    assert_int_equal(pthread_create(&a, NULL, do_job, &slow), 0);  /* run 2 */
    wait_for_steps(6);
    for (int i = 0; i < 3; i++) {
        quick[i] = (job){ .e = e, .ids = kit_cut(all, 100 * (uint32_t)i, 40) };
        assert_int_equal(pthread_create(&c, NULL, do_job, &quick[i]), 0); /* runs 3, 4, 5 */
        pthread_join(c, NULL);
        assert_int_equal(quick[i].st, INFERSCALE_OK);
    }
    pthread_join(a, NULL);
    __atomic_store_n(&go_on, 0, __ATOMIC_RELEASE);
    pthread_join(b, NULL);
    assert_int_equal(slow.st, INFERSCALE_OK);
    n = read_steps(s, LINES);
    for (int i = 0; i < n; i++) {
        unsigned sum = 0;

        for (int k = 0; k < s[i].n; k++) sum += s[i].lanes[k].tokens;
        assert_true(sum <= (s[i].n == 1 ? IS_ALONE_TOKENS : IS_STEP_TOKENS));
        for (unsigned r = 3; r <= 5; r++) {
            const lane *l = lane_of(&s[i], r);

            if (!l) continue;
            assert_int_equal(l->tokens, 40);
            assert_true(l->done);
            if (!lane_of(&s[i], 2)) continue;
            beside++;
            assert_true(lane_of(&s[i], 2)->done || lane_of(&s[i], 2)->tokens >= (IS_STEP_TOKENS - 1) / 4);
        }
    }
    print_message("%d of 3 short prompts met the long one\n", beside);
    is_free(ids);
    is_engine_close(e);
}

/* However many shorter prompts come, a long one gets its quarter of each step once it is the oldest. */
static void test_a_long_prompt_is_through_in_bounded_steps(void **state)
{
    static step s[LINES];
    enum { BUSY = 5 };
    is_engine *e = open_mock("slow=1", 8);
    int32_t *ids = kit_random_ids(&seed, LONG, 16, VOCAB);
    kit_ids all = { ids, LONG };
    job slow = { .e = e, .ids = kit_cut(all, 0, 2000) };
    pthread_t a, b[BUSY];
    int n, in = 0;

    (void)state;
    assert_int_equal(pthread_create(&a, NULL, do_job, &slow), 0); /* run 1 */
    wait_for_steps(1);
    for (int round = 0; round < 8; round++) {
        job busy[BUSY];

        for (int i = 0; i < BUSY; i++) busy[i] = (job){ .e = e, .ids = kit_cut(all, 7 * (uint32_t)i, 250) };
        for (int i = 0; i < BUSY; i++) assert_int_equal(pthread_create(&b[i], NULL, do_job, &busy[i]), 0);
        for (int i = 0; i < BUSY; i++) pthread_join(b[i], NULL);
        for (int i = 0; i < BUSY; i++) assert_int_equal(busy[i].st, INFERSCALE_OK);
    }
    pthread_join(a, NULL);
    assert_int_equal(slow.st, INFERSCALE_OK);
    n = read_steps(s, LINES);
    for (int i = 0; i < n; i++) {
        const lane *l = lane_of(&s[i], 1);

        if (!l) continue;
        in++;
        if (!l->done) assert_true(l->tokens >= IS_STEP_TOKENS / 4);
    }
    assert_true(in <= 2000 / (IS_STEP_TOKENS / 4) + 1);
    is_free(ids);
    is_engine_close(e);
}

/* No more runs than seats, all are served; and one thread that keeps many does not wait for ever. */
static void test_seats(void **state)
{
    static step s[LINES];
    enum { MANY = 7, SEATS = 2 };
    is_engine *e = open_mock("slow=3", SEATS);
    int32_t *ids = kit_random_ids(&seed, 400, 16, VOCAB);
    kit_ids all = { ids, 400 };
    job jobs[MANY];
    pthread_t t[MANY];
    is_run *runs[4];
    kit_plan p;

    (void)state;
    for (int i = 0; i < MANY; i++) jobs[i] = (job){ .e = e, .ids = kit_cut(all, (uint32_t)i, 300), .tokens = 3 };
    for (int i = 0; i < MANY; i++) assert_int_equal(pthread_create(&t[i], NULL, do_job, &jobs[i]), 0);
    for (int i = 0; i < MANY; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < MANY; i++) assert_int_equal(jobs[i].st, INFERSCALE_OK);
    for (int i = 0, n = read_steps(s, LINES); i < n; i++) {
        int prompts = 0;

        for (int k = 0; k < s[i].n; k++) prompts += s[i].lanes[k].tokens > 1;
        assert_true(prompts <= SEATS);
    }
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, kit_cut(all, 0, 20), NULL);
    for (int i = 0; i < 4; i++) KIT_OK(is_engine_start(e, &p.plan, NULL, &runs[i], NULL));
    for (int i = 0; i < 4; i++) is_engine_finish(e, runs[i]);
    is_free(ids);
    is_engine_close(e);
}

/* A run that rests leaves its seat: who waits for one is seated in the next steps, long before a caller counts as away. */
static void test_resting_leaves_the_seat(void **state)
{
    static step s[LINES];
    is_engine *e = open_mock("slow=3", 2);
    int32_t *ids = kit_random_ids(&seed, 60, 16, VOCAB);
    kit_ids all = { ids, 60 };
    volatile int go_on = 1;
    job generating = { .e = e, .ids = kit_cut(all, 0, 20), .go_on = &go_on };
    is_run *kept = NULL, *next = NULL;
    is_run_opts o = { .no_prefix_cache = true };
    kit_plan p;
    pthread_t t;
    int before, at = -1, n;

    (void)state;
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, kit_cut(all, 20, 20), NULL);
    KIT_OK(is_engine_start(e, &p.plan, &o, &kept, NULL));
    assert_int_equal(pthread_create(&t, NULL, do_job, &generating), 0);
    wait_for_steps(4);
    is_engine_rest(e, kept);
    before = read_steps(s, LINES);
    KIT_OK(is_engine_start(e, &p.plan, &o, &next, NULL));
    __atomic_store_n(&go_on, 0, __ATOMIC_RELEASE);
    pthread_join(t, NULL);
    n = read_steps(s, LINES);
    for (int i = before; i < n && at < 0; i++)
        for (int k = 0; k < s[i].n; k++)
            if (s[i].lanes[k].tokens == 20) at = i;
    assert_true(at >= 0 && at - before <= 40); /* a wait of IS_AWAY_MS would be 60 steps of 3 ms or more */
    is_engine_finish(e, next);
    is_engine_finish(e, kept);
    is_free(ids);
    is_engine_close(e);
}

/* Who is cancelled while it waits for a seat goes at once. */
static void test_cancelled_while_it_waits(void **state)
{
    is_engine *e = open_mock("slow=20", 1);
    int32_t *ids = kit_random_ids(&seed, 40, 16, VOCAB);
    volatile int go_on = 1, cancel = 0;
    job first = { .e = e, .ids = { ids, 40 }, .go_on = &go_on }, second = { .e = e, .ids = { ids, 30 }, .cancel = &cancel };
    pthread_t a, b;

    (void)state;
    assert_int_equal(pthread_create(&a, NULL, do_job, &first), 0);
    wait_for_steps(2);
    assert_int_equal(pthread_create(&b, NULL, do_job, &second), 0);
    usleep(20000);
    __atomic_store_n(&cancel, 1, __ATOMIC_RELEASE);
    pthread_join(b, NULL); /* while the first goes on */
    assert_int_equal(second.st, INFERSCALE_E_CANCELLED);
    __atomic_store_n(&go_on, 0, __ATOMIC_RELEASE);
    pthread_join(a, NULL);
    assert_int_equal(first.st, INFERSCALE_OK);
    is_free(ids);
    is_engine_close(e);
}

/* ---- Everything at once ---------------------------------------------------------------------------------------------------- */

typedef struct user {
    kit_plan kv, text;
    float want_kv[VOCAB], want_text[VOCAB];
    int32_t said_kv[TOKENS], said_text[TOKENS]; /* greedy */
} user;

typedef struct world {
    is_engine *e;
    is_rope *rope;
    int32_t *ids;
    user users[USERS];
    unsigned n_ok, n_cancelled, n_refused, n_ended;
} world;

static void one_run(world *w, user *u, bool kv, uint64_t *rng, bool alone)
{
    float *want = kv ? u->want_kv : u->want_text;
    int32_t *said = kv ? u->said_kv : u->said_text;
    volatile int cancel = 0;
    is_run_opts o = { .cancel = &cancel, .no_prefix_cache = alone || draw(rng, 2) };
    uint32_t stop_at = alone ? TOKENS : draw(rng, TOKENS + 1);
    is_run *run = NULL;

    KIT_OK(is_engine_start(w->e, kv ? &u->kv.plan : &u->text.plan, &o, &run, NULL));
    if (alone) memcpy(want, is_engine_logits(w->e, run), sizeof u->want_kv);
    assert_memory_equal(want, is_engine_logits(w->e, run), sizeof u->want_kv);
    for (uint32_t i = 0; i < stop_at; i++) {
        int32_t token;

        KIT_OK(is_engine_sample(w->e, run, &token));
        if (alone) said[i] = token;
        assert_int_equal(token, said[i]);
        KIT_OK(is_engine_feed(w->e, run, token));
    }
    is_engine_finish(w->e, run);
    __atomic_add_fetch(stop_at == TOKENS ? &w->n_ok : &w->n_ended, 1, __ATOMIC_RELAXED);
}

typedef struct canceller { volatile int flag; uint32_t after_us; } canceller;

static void *cancel_later(void *arg)
{
    canceller *c = arg;

    usleep(c->after_us);
    __atomic_store_n(&c->flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void one_cancelled(world *w, const user *u, uint64_t *rng)
{
    canceller c = { 0, draw(rng, 4000) };
    is_run_opts o = { .cancel = &c.flag };
    is_run *run = NULL;
    pthread_t t;
    is_status st;

    assert_int_equal(pthread_create(&t, NULL, cancel_later, &c), 0);
    st = is_engine_start(w->e, &u->text.plan, &o, &run, NULL);
    if (st == INFERSCALE_OK) assert_memory_equal(u->want_text, is_engine_logits(w->e, run), sizeof u->want_text);
    else assert_int_equal(st, INFERSCALE_E_CANCELLED);
    if (st != INFERSCALE_OK) assert_null(run);
    pthread_join(t, NULL);
    is_engine_finish(w->e, run);
    __atomic_add_fetch(&w->n_cancelled, 1, __ATOMIC_RELAXED);
}

/* A plan with another user's segment in a fact's place, one with no question, a token that is none. */
static void one_refused(world *w, const user *u, const user *other, uint64_t *rng)
{
    kit_plan bad = u->kv;
    is_run *run = NULL;

    bad.plan.parts = bad.parts;
    bad.parts[1].segment = other->kv.parts[1].segment;
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(w->e, &bad.plan, NULL, &run, NULL));
    bad = u->kv;
    bad.plan.parts = bad.parts;
    bad.plan.n_parts--;
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(w->e, &bad.plan, NULL, &run, NULL));
    KIT_OK(is_engine_start(w->e, &u->kv.plan, NULL, &run, NULL));
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_feed(w->e, run, VOCAB + (int32_t)draw(rng, 9)));
    assert_memory_equal(u->want_kv, is_engine_logits(w->e, run), sizeof u->want_kv);
    is_engine_finish(w->e, run);
    __atomic_add_fetch(&w->n_refused, 1, __ATOMIC_RELAXED);
}

typedef struct worker { world *w; uint64_t seed; } worker;

static void *work(void *arg)
{
    worker *k = arg;

    for (int i = 0; i < TURNS; i++) {
        uint32_t who = draw(&k->seed, USERS);
        user *u = &k->w->users[who], *other = &k->w->users[(who + 1) % USERS];

        switch (draw(&k->seed, 6)) {
        case 0: one_cancelled(k->w, u, &k->seed); break;
        case 1: one_refused(k->w, u, other, &k->seed); break;
        default: one_run(k->w, u, draw(&k->seed, 3) != 0, &k->seed, false);
        }
    }
    return NULL;
}

static void make_user(world *w, user *u, uint32_t who)
{
    kit_ids all = { w->ids, 4000 };
    kit_ids header = kit_cut(all, 0, 20), fact[2] = { kit_cut(all, 100 + 200 * who, 60), kit_cut(all, 170 + 200 * who, 40 + who) };

    kit_plan_begin(&u->kv, 0);
    kit_plan_add(&u->kv, IS_ROLE_HEADER, header, NULL);
    for (int i = 0; i < 2; i++) {
        kit_rows rows;

        kit_capture(w->e, header, fact[i], 3, &rows);
        kit_plan_add(&u->kv, IS_ROLE_FACT, fact[i], kit_segment(w->e, w->rope, &rows, 0, fact[i], IS_CODEC_F16, KIT_GOOD, 0));
        kit_rows_free(&rows);
    }
    kit_plan_add(&u->kv, IS_ROLE_QUESTION, kit_cut(all, 3000 + 30 * who, 25), NULL);
    kit_plan_twin(&u->kv, &u->text);
    one_run(w, u, true, &(uint64_t){ who }, true);
    one_run(w, u, false, &(uint64_t){ who }, true);
}

static void test_everything_at_once(void **state)
{
    static world w;
    static worker k[THREADS];
    pthread_t t[THREADS];

    (void)state;
    memset(&w, 0, sizeof w);
    w.e = open_mock("slow=1", 5);
    KIT_OK(is_rope_new(is_engine_geometry(w.e), 1024, &w.rope));
    w.ids = kit_random_ids(&seed, 4000, 16, VOCAB);
    for (uint32_t i = 0; i < USERS; i++) make_user(&w, &w.users[i], i);
    for (int i = 0; i < THREADS; i++) {
        k[i] = (worker){ &w, seed + 977 * (uint64_t)i };
        assert_int_equal(pthread_create(&t[i], NULL, work, &k[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    print_message("%u whole, %u ended early, %u cancelled, %u refused\n", w.n_ok, w.n_ended, w.n_cancelled, w.n_refused);
    assert_true(w.n_ok && w.n_ended && w.n_cancelled && w.n_refused);
    for (uint32_t i = 0; i < USERS; i++) kit_plan_unref(&w.users[i].kv);
    is_free(w.ids);
    is_rope_free(w.rope);
    is_engine_close(w.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short_prompts_pass_long_ones),
        cmocka_unit_test(test_a_long_prompt_is_through_in_bounded_steps),
        cmocka_unit_test(test_seats),
        cmocka_unit_test(test_resting_leaves_the_seat),
        cmocka_unit_test(test_cancelled_while_it_waits),
        cmocka_unit_test(test_everything_at_once),
    };
    char *folder;
    int failed;

    seed = scratch_seed("batch");
    folder = scratch_make();
    snprintf(steps_path, sizeof steps_path, "%s/steps", folder);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    return failed;
}
