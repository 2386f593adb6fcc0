/* What must hold of forgetting beside questions, whatever the threads' order: when a call that forgets or changes a fact returns, no run of
 * the engine holds what went, no computation on it is under way, and none begins later.
 *
 * The order is forced, not hoped for. The functions below are wrapped by the linker (Makefile); each call of one is a point at which the
 * thread can be stopped. A question is stopped at one of its points, then the forgetting at one of its own, then the question goes to
 * its end, then the forgetting; or the other way round. Which runs hold the fact is read from the plans that the engine is given. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "api/answer.h"
#include "api/hold.h"
#include "api/listen.h"
#include "api/talks.h"
#include "base/clock.h"
#include "support/complete_kit.h"
#include "support/scratch.h"
#include "support/soak.h"
#include "support/store_kit.h"

enum { RUNS = 64, BLOCKED_MS = 30, WAIT_MS = 60000, MARKS = 400 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SCHEDULES = 150 };
#else
enum { SCHEDULES = 400 };
#endif

/* ---- Stopping a thread ----------------------------------------------------------------------------------------------------- */

typedef struct side {
    unsigned stop_at, count;   /* the how manieth point; 0 = none */
    const char *stop_in;       /* the first call of this function; NULL = none */
    const char *where;         /* it stands */
    bool parked, go, ended;
    const char *passed[MARKS]; /* points, in order */
} side;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static _Thread_local side *me;
static unsigned long parked_twice, blocked; /* schedules in which both stood; in which the second waited for the first */

static void point(const char *name)
{
    side *s = me;

    if (!s) return;
    pthread_mutex_lock(&lock);
    if (s->count < MARKS) s->passed[s->count] = name;
    s->count++;
    if (s->count == s->stop_at || (s->stop_in && strcmp(s->stop_in, name) == 0)) {
        s->stop_in = NULL;
        s->where = name;
        s->parked = true;
        pthread_cond_broadcast(&moved);
        while (!s->go) pthread_cond_wait(&moved, &lock);
        s->parked = false;
    }
    pthread_mutex_unlock(&lock);
}

/* Until it stands or has ended; false: it does neither for so long. */
static bool wait_for(side *s, bool end, double ms)
{
    const struct timespec pause = { 0, 500000 };
    bool there = false;

    for (double until = is_now_ms() + ms; !there && is_now_ms() < until;) {
        pthread_mutex_lock(&lock);
        there = s->ended || (!end && s->parked);
        pthread_mutex_unlock(&lock);
        if (!there) nanosleep(&pause, NULL);
    }
    return there;
}

static void let_go_on(side *s)
{
    pthread_mutex_lock(&lock);
    s->go = true;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&lock);
}

/* ---- Which runs hold it ---------------------------------------------------------------------------------------------------- */

static struct { is_run *run; bool used, holds; } runs[RUNS];
static int64_t secret;
static int secret_version;
static bool is_gone;             /* the call that forgets it has returned */
static char violation[300];
static unsigned long held;       /* how often a run held it at all */

static bool has_secret(const is_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT && plan->parts[i].fact_id == secret && plan->parts[i].version == secret_version) return true;
    return false;
}

static int entry_of(const is_run *run)
{
    for (int i = 0; i < RUNS; i++)
        if (runs[i].used && runs[i].run == run) return i;
    return -1;
}

/* A computation begins on a run (NULL: a new one) with what it holds and this plan. Returns its entry. */
static int computing(const is_run *run, const is_plan *plan, const char *what)
{
    int at;

    pthread_mutex_lock(&lock);
    at = run ? entry_of(run) : -1;
    for (int i = 0; at < 0 && i < RUNS; i++)
        if (!runs[i].used) runs[at = i].used = true, runs[i].run = NULL, runs[i].holds = false;
    if (plan && has_secret(plan)) held += !runs[at].holds, runs[at].holds = true;
    if (is_gone && runs[at].holds) snprintf(violation, sizeof violation, "%s on what was forgotten, after forgetting had returned", what);
    pthread_mutex_unlock(&lock);
    return at;
}

static void computed(int at, is_run *run, bool is_there)
{
    pthread_mutex_lock(&lock);
    runs[at].run = run;
    runs[at].used = is_there;
    pthread_mutex_unlock(&lock);
}

static void expect_none_holds(const char *when)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RUNS; i++)
        if (runs[i].used && runs[i].holds) snprintf(violation, sizeof violation, "%s: a run still holds it", when);
    pthread_mutex_unlock(&lock);
}

/* ---- The points: WRAP lines are read by the Makefile ----------------------------------------------------------------------- */

#define WRAP(type, name, params, args)                                                                                         \
    type __real_##name params;                                                                                                 \
    type __wrap_##name params;                                                                                                 \
    type __wrap_##name params                                                                                                  \
    {                                                                                                                          \
        point(#name);                                                                                                          \
        return __real_##name args;                                                                                             \
    }
#define WRAPPED(type, name, params) type __real_##name params; type __wrap_##name params; type __wrap_##name params

WRAP(void, is_hold_leave, (is_hold *h), (h))
WRAP(is_status, is_hold_lease, (is_hold *h, is_partition *p, bool *gone), (h, p, gone))
WRAP(is_status, is_hold_plan, (is_hold *h, const is_plan *plan), (h, plan))
WRAP(is_status, is_hold_add, (is_hold *h, const is_dep *facts, size_t n, const is_names *segments), (h, facts, n, segments))
WRAP(is_status, is_hold_check, (is_hold *h, bool *gone), (h, gone))
WRAP(is_talk *, is_talks_take, (inferscale *is, const is_partition *p, const uint8_t key[IS_HASH_BYTES]), (is, p, key))
WRAP(void, is_talks_keep, (inferscale *is, is_talk *kept, const is_hold *hold), (is, kept, hold))
WRAP(is_status, is_talk_new, (const is_plan *plan, const int32_t *told, size_t n, const is_hold *hold, is_talk **out), (plan, told, n, hold, out))
WRAP(void, is_talks_drop, (inferscale *is, const is_partition *p), (is, p))
WRAP(is_status, is_asking_fresh, (is_asking *a, const is_planned *planned, bool *fresh), (a, planned, fresh))
WRAP(void, is_handle_answered, (const is_asking *a, const is_plan *plan, const int32_t *told, size_t n), (a, plan, told, n))
WRAP(size_t, is_handle_drop_chats, (inferscale *is, const is_partition *p), (is, p))
WRAP(void, is_handle_gone, (inferscale *is, const is_partition *p), (is, p))
WRAP(is_status, is_handle_drain, (inferscale *is, const is_partition *p, uint32_t ms, size_t *n), (is, p, ms, n))
WRAP(is_status, is_handle_drop, (inferscale *is, const is_partition *p, is_names *stale), (is, p, stale))
WRAP(is_status, is_lease_wait, (is_bank *b, const is_partition *p, uint32_t ms, size_t *n), (b, p, ms, n))
WRAP(is_status, is_bank_forget_closure, (is_bank *b, const is_partition *p, is_closure *c), (b, p, c))
WRAP(is_status, is_bank_update_fact, (is_bank *b, const is_partition *p, int64_t id, const inferscale_fact *f, is_names *s), (b, p, id, f, s))
WRAP(is_status, is_bank_cut_log, (is_bank *b, uint32_t ms), (b, ms))
WRAP(is_status, is_vault_hide, (is_vault *v, uint8_t (*names)[IS_HASH_BYTES], size_t n), (v, names, n))

WRAPPED(is_status, is_engine_start, (is_engine *e, const is_plan *plan, const is_run_opts *opts, is_run **run, is_run_stats *stats))
{
    int at;
    is_status st;

    point("is_engine_start");
    at = computing(NULL, plan, "a prompt");
    st = __real_is_engine_start(e, plan, opts, run, stats);
    computed(at, *run, st == INFERSCALE_OK);
    return st;
}

WRAPPED(is_status, is_engine_extend, (is_engine *e, is_run *run, const is_plan *more, const is_run_opts *opts, is_run_stats *stats))
{
    point("is_engine_extend");
    (void)computing(run, more, "a turn");
    return __real_is_engine_extend(e, run, more, opts, stats);
}

WRAPPED(is_status, is_engine_sample, (is_engine *e, is_run *run, int32_t *token))
{
    point("is_engine_sample");
    (void)computing(run, NULL, "a token");
    return __real_is_engine_sample(e, run, token);
}

WRAPPED(is_status, is_engine_feed, (is_engine *e, is_run *run, int32_t token))
{
    point("is_engine_feed");
    (void)computing(run, NULL, "a token's rows");
    return __real_is_engine_feed(e, run, token);
}

WRAPPED(void, is_engine_finish, (is_engine *e, is_run *run))
{
    const struct timespec slow = { 0, 5000000 }; /* a real engine's takes a while, in which who waits for a lease looks for it more than once */
    int at;

    point("is_engine_finish");
    if (me) nanosleep(&slow, NULL);
    __real_is_engine_finish(e, run);
    pthread_mutex_lock(&lock);
    at = entry_of(run);
    if (at >= 0) runs[at].used = false;
    pthread_mutex_unlock(&lock);
}

/* ---- Both sides ------------------------------------------------------------------------------------------------------------ */

/* How the question comes to hold the fact, and what happens to it. */
enum { FIRST_TURN, FROM_A_TALK, FROM_THE_BANK, AS_TEXT, ASKED, CHATTED, WAYS };
enum { FORGOTTEN, CHANGED, DEEDS };
static const char *const ways[] = { "first turn", "from a talk", "from the bank", "as text", "asked", "chatted" };

static store kit;
static unsigned serial;
static talk conversation;
static inferscale_chat *chat;
static int way, deed;
static side asker, forgetter;

static inferscale_complete_options short_answer(void)
{
    inferscale_complete_options o = options();

    o.ask.max_tokens = 6;
    if (way == AS_TEXT) o.ask.mode = INFERSCALE_MODE_TEXT;
    return o;
}

static void one_question(void)
{
    inferscale_complete_options o = short_answer();
    inferscale_answer *a = NULL;
    is_status st;

    if (way == ASKED) st = inferscale_ask(kit.is, &store_anna, conversation.m[conversation.n - 1].content, &o.ask, &a);
    else if (way == CHATTED) st = inferscale_chat_say(chat, conversation.m[conversation.n - 1].content, &o.ask, &a);
    else st = inferscale_complete(kit.is, &store_anna, conversation.m, conversation.n, &o, &a);
    if (st != INFERSCALE_OK && st != INFERSCALE_E_STALE && st != INFERSCALE_E_CANCELLED)
        snprintf(violation, sizeof violation, "the question failed: %.200s", is_error());
    inferscale_answer_free(a);
}

static void *ask(void *unused)
{
    (void)unused;
    me = &asker;
    one_question();
    me = NULL;
    pthread_mutex_lock(&lock);
    asker.ended = true;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *forget(void *unused)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r = { 0 };
    inferscale_fact other = { .text = "Something else." };
    is_status st;

    (void)unused;
    o.wait_ms = WAIT_MS;
    me = &forgetter;
    st = deed == CHANGED ? inferscale_update(kit.is, &store_anna, secret, &other) : inferscale_forget_with(kit.is, &store_anna, &secret, 1, &o, &r);
    me = NULL;
    pthread_mutex_lock(&lock);
    is_gone = true;
    if (st != INFERSCALE_OK || r.pending) snprintf(violation, sizeof violation, "forgetting failed: %.200s", is_error());
    pthread_mutex_unlock(&lock);
    if (st == INFERSCALE_OK && !r.pending) expect_none_holds("forgetting has returned"); /* else it was said above */
    pthread_mutex_lock(&lock);
    forgetter.ended = true;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void remember_secret(void)
{
    char text[120];
    inferscale_fact f = { .text = text };
    inferscale_event e;

    serial++;
    snprintf(text, sizeof text, "Something about saffron that only anna likes, number %u.", serial);
    OK(inferscale_remember(kit.is, &store_anna, &f, 1, &e));
    OK(inferscale_encode(kit.is, &store_anna, NULL));
    pthread_mutex_lock(&lock);
    secret = e.id;
    secret_version = 1;
    is_gone = false;
    pthread_mutex_unlock(&lock);
}

static void ask_for_it(void)
{
    char text[100];

    snprintf(text, sizeof text, "What about saffron, number %u, asked %zu?", serial, conversation.n);
    say(&conversation, "user", text);
}

/* What stands before the question. */
static void prepare(void)
{
    inferscale_complete_options o;
    inferscale_answer *a;

    remember_secret();
    memset(&conversation, 0, sizeof conversation);
    ask_for_it();
    if (way == CHATTED) OK(inferscale_chat_open(kit.is, &store_anna, &chat));
    if (way == FROM_A_TALK || way == FROM_THE_BANK) {
        o = short_answer();
        a = complete(kit.is, &store_anna, &conversation, &o);
        assert_true(uses(a, secret));
        say(&conversation, "assistant", a->text);
        inferscale_answer_free(a);
        ask_for_it();
    } else if (way == CHATTED) {
        one_question();
    }
    if (way != FROM_A_TALK)
        while (is_talks_evict(kit.is)) continue;
}

static void clear_up(void)
{
    if (way == CHATTED) inferscale_chat_close(chat);
    chat = NULL;
    if (deed == CHANGED) OK(inferscale_forget(kit.is, &store_anna, &secret, 1, NULL));
    while (is_talks_evict(kit.is)) continue;
}

/* The first runs to its point and stands; then the second, or it waits for the first; the first goes to its end, then the second. */
static void schedule(side *first, void *(*begin)(void *), side *second, void *(*follow)(void *))
{
    pthread_t threads[2];
    bool both;

    assert_int_equal(pthread_create(&threads[0], NULL, begin, NULL), 0);
    assert_true(wait_for(first, false, WAIT_MS));
    assert_int_equal(pthread_create(&threads[1], NULL, follow, NULL), 0);
    both = wait_for(second, false, BLOCKED_MS);
    parked_twice += both && second->parked && first->parked;
    blocked += !both;
    let_go_on(first);
    (void)wait_for(first, true, BLOCKED_MS); /* it may have to wait for the second */
    let_go_on(second);
    assert_true(wait_for(first, true, WAIT_MS) && wait_for(second, true, WAIT_MS));
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
}

static void tell_steps(const char *who, const side *s)
{
    fprintf(stderr, "%s:", who);
    for (unsigned i = 0; i < s->count && i < MARKS; i++) fprintf(stderr, " %s%s", s->passed[i], s->stop_at == i + 1 ? " [stood]" : "");
    fprintf(stderr, "\n");
}

static void try(bool question_first)
{
    prepare();
    if (question_first) schedule(&asker, ask, &forgetter, forget);
    else schedule(&forgetter, forget, &asker, ask);
    one_question(); /* nor does the same question, sent again */
    expect_none_holds("after all");
    clear_up();
    if (*violation) {
        tell_steps("the question", &asker);
        tell_steps("forgetting", &forgetter);
        fail_msg("%s, %s, %s first; the question stood in %s, forgetting in %s: %s", ways[way], deed == CHANGED ? "changed" : "forgotten",
                 question_first ? "question" : "forgetting", asker.where ? asker.where : "-", forgetter.where ? forgetter.where : "-", violation);
    }
}

static void at_points(unsigned a, unsigned b)
{
    asker = (side){ .stop_at = a };
    forgetter = (side){ .stop_at = b };
}

/* ---- Tests ----------------------------------------------------------------------------------------------------------------- */

/* What a question keeps for the next turn, against every step of forgetting: the run is handed over at one moment or the other. */
static void what_is_kept_while_it_is_forgotten(void **state)
{
    static const char *const his[] = { "is_talks_take", "is_hold_add", "is_hold_plan", "is_asking_fresh", "is_engine_extend", "is_hold_check",
                                       "is_engine_sample", "is_handle_answered", "is_talk_new", "is_talks_keep", "is_hold_leave" };
    static const char *const theirs[] = { "is_bank_forget_closure", "is_vault_hide", "is_handle_drain", "is_handle_drop_chats", "is_handle_gone",
                                          "is_talks_drop", "is_lease_wait", "is_handle_drop", "is_bank_cut_log" };
    unsigned long before = held;
    (void)state;

    way = FROM_A_TALK;
    deed = FORGOTTEN;
    for (size_t i = 0; i < sizeof his / sizeof *his; i++)
        for (size_t j = 0; j < sizeof theirs / sizeof *theirs; j++)
            for (int first = 0; first < 2; first++) {
                at_points(0, 0);
                asker.stop_in = his[i];
                forgetter.stop_in = theirs[j];
                try(first);
            }
    assert_true(held > before + 90 && parked_twice > 50);
}

/* How many points each way has when nothing disturbs it. */
static unsigned count_points(side *s)
{
    at_points(0, 0);
    me = s;
    if (s == &asker) one_question();
    else (void)inferscale_forget(kit.is, &store_anna, &secret, 1, NULL);
    me = NULL;
    assert_true(s->count > 5);
    return s->count;
}

static void any_order_of_steps(void **state)
{
    unsigned long long seed = scratch_seed("any order");
    unsigned his[WAYS], theirs[DEEDS] = { 0 };
    double until = is_now_ms() + 1000 * soak_seconds();
    (void)state;

    for (way = 0; way < WAYS; way++) {
        deed = FORGOTTEN;
        prepare();
        his[way] = count_points(&asker);
        clear_up();
        inferscale_forget(kit.is, &store_anna, &secret, 1, NULL);
    }
    way = FIRST_TURN;
    prepare();
    theirs[FORGOTTEN] = theirs[CHANGED] = count_points(&forgetter);
    for (unsigned n = 0; n < SCHEDULES || is_now_ms() < until; n++) {
        way = (int)scratch_below(&seed, WAYS);
        deed = (int)scratch_below(&seed, DEEDS);
        at_points(1 + scratch_below(&seed, his[way]), 1 + scratch_below(&seed, theirs[deed]));
        try(scratch_below(&seed, 2));
    }
    print_message("%lu schedules with both stopped, %lu in which the second waited for the first; %lu runs held what then went\n", parked_twice,
                  blocked, held);
    soak_report("forget_schedule", "\"points\":%lu,\"faults\":%lu,\"lost\":0", parked_twice + blocked, held);
}

static int begin(void **state)
{
    (void)state;
    store_begin(&kit, "");
    return 0;
}

static int end(void **state)
{
    (void)state;
    store_end(&kit);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_kept_while_it_is_forgotten),
        cmocka_unit_test(any_order_of_steps),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
