/* What must hold of forgetting while somebody holds what is gone: nothing generated after it returns depends on it, whoever holds it (a
 * question that composes, one that decodes, a conversation, another process). */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "inferscale.h"
#include "support/forget_kit.h"
#include "support/scratch.h"

static const inferscale_scope anna = { .user = "anna" };

/* ---- Under way ----------------------------------------------------------------------------------------------------------- */

typedef struct asking {
    inferscale *is;
    const char *question;
    inferscale_status st;
    inferscale_answer *answer;
    volatile int n_heard;
    int done;
    double last_heard_ms;
} asking;

static int hear(void *ctx, const char *text, size_t len)
{
    asking *q = ctx;

    (void)text;
    (void)len;
    q->last_heard_ms = is_now_ms();
    __atomic_add_fetch(&q->n_heard, 1, __ATOMIC_RELEASE);
    return 0;
}

static void *ask_it(void *arg)
{
    asking *q = arg;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;

    o.on_text = hear;
    o.text_ctx = q;
    o.max_tokens = 400;
    q->st = inferscale_ask(q->is, &anna, q->question, &o, &q->answer);
    __atomic_store_n(&q->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void nap(long ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&t, NULL);
}

static const char peanuts[] = "Anna is allergic to peanuts and to every other kind of nut that grows on trees or in the ground.";

/* Forgets (or updates) while a question composes: it plans again without it. */
static void forgotten_while_composing(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        inferscale *is = forget_open("mock:slow-inject=150");
        int64_t id = forget_tell(is, peanuts), other = forget_tell(is, "Anna eats bread."), moved;
        inferscale_fact changed = { .text = "Anna eats everything now.", .event_time = YESTERDAY };
        asking q = { .is = is, .question = "peanuts?" };
        pthread_t t;
        double t0;

        OK(inferscale_encode(is, &anna, NULL));
        inferscale_answer *warm = NULL;
        OK(inferscale_ask(is, &anna, "bread?", NULL, &warm));
        inferscale_answer_free(warm);
        assert_int_equal(pthread_create(&t, NULL, ask_it, &q), 0);
        nap(100); /* in the midst of injecting two facts */
        t0 = is_now_ms();
        if (how == 0) OK(inferscale_forget(is, &anna, &id, 1, NULL));
        else if (how == 1) OK(inferscale_update(is, &anna, id, &changed));
        else OK(inferscale_supersede(is, &anna, id, &changed, &moved));
        t0 = is_now_ms() - t0;
        pthread_join(t, NULL);
        OK(q.st);
        assert_null(strstr(q.answer->text, "peanuts"));
        for (size_t i = 0; i < q.answer->n_facts; i++) assert_true(q.answer->facts[i].id != id || q.answer->facts[i].version == 2);
        assert_true(q.answer->n_facts > 0);
        (void)other;
        (void)t0;
        inferscale_answer_free(q.answer);
        OK(inferscale_forget_all(is, &anna, NULL));
        inferscale_close(is);
    }
}

static void forgotten_while_decoding(void **state)
{
    inferscale *is = forget_open("mock:slow=20");
    int64_t id = forget_tell(is, peanuts);
    asking q = { .is = is, .question = "peanuts?" };
    pthread_t t;
    double returned;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(pthread_create(&t, NULL, ask_it, &q), 0);
    while (__atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE) < 5) nap(1);
    OK(inferscale_forget(is, &anna, &id, 1, NULL));
    returned = is_now_ms();
    pthread_join(t, NULL);
    OK(q.st);
    assert_string_equal(q.answer->finish, "cancelled");
    assert_non_null(strstr(q.answer->fallback, "ends here"));
    assert_true(q.last_heard_ms <= returned); /* not a token after it returned */
    assert_null(strstr(q.answer->text, "ground"));
    inferscale_answer_free(q.answer);
    inferscale_close(is);
}

/* What is not concerned goes on to its end, and does not keep the one who forgets waiting for it. */
static void others_go_on(void **state)
{
    inferscale *is = forget_open("mock:slow=10");
    int64_t id = forget_tell(is, "Anna owns a kite."), kept = forget_tell(is, peanuts);
    asking q = { .is = is, .question = "peanuts?" };
    inferscale_encode_options header = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_ask_options one = INFERSCALE_ASK_OPTIONS_INIT;
    pthread_t t;

    (void)state;
    (void)one;
    header.policy = "header"; /* no other fact in its context */
    OK(inferscale_encode(is, &anna, &header));
    OK(inferscale_pin(is, &anna, kept, 1));
    (void)id;
    int64_t unrelated = forget_tell(is, "Something else entirely.");
    assert_int_equal(pthread_create(&t, NULL, ask_it, &q), 0);
    while (__atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE) < 3) nap(1);
    int64_t late = forget_tell(is, "A fact that came after the question.");
    OK(inferscale_forget(is, &anna, &late, 1, NULL)); /* raises the epoch; the answer does not use it */
    assert_true(__atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE) < 60);
    pthread_join(t, NULL);
    OK(q.st);
    assert_string_equal(q.answer->finish, "stop");
    (void)unrelated;
    inferscale_answer_free(q.answer);
    inferscale_close(is);
}

static void conversations_let_go(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_chat *chat = NULL;
    inferscale_answer *a = NULL;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_encode_options before = INFERSCALE_ENCODE_OPTIONS_INIT;
    int64_t first = forget_tell(is, "Anna keeps a secret diary in the attic."), second = forget_tell(is, peanuts);

    (void)state;
    o.k = 1;
    before.policy = "facts:4"; /* the second fact's rows are computed with the first in sight: a page may have them the other way round */
    OK(inferscale_encode(is, &anna, &before));
    OK(inferscale_chat_open(is, &anna, &chat));
    OK(inferscale_chat_say(chat, "peanuts?", &o, &a));
    assert_int_equal(a->facts[0].id, second);
    assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
    OK(inferscale_forget(is, &anna, &first, 1, NULL)); /* not placed, but in the context of what is */
    OK(inferscale_chat_say(chat, "And now?", &o, &a));
    assert_non_null(strstr(a->fallback, "computed again"));
    inferscale_answer_free(a);
    OK(inferscale_forget(is, &anna, &second, 1, NULL));
    OK(inferscale_chat_say(chat, "peanuts again?", &o, &a));
    assert_int_equal(a->n_facts, 0);
    inferscale_answer_free(a);
    inferscale_chat_close(chat);
    inferscale_close(is);
}

typedef struct saying {
    inferscale_chat *chat;
    inferscale_answer *answer;
    inferscale_status st;
} saying;

static void *say_it(void *arg)
{
    saying *s = arg;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;

    o.k = 1;
    o.max_tokens = 4;
    s->st = inferscale_chat_say(s->chat, "And now?", &o, &s->answer);
    return NULL;
}

/* Somebody whom no list of this handle names forgets what a conversation placed, while the conversation runs the last token of the turn
 * before: after it looked at what it placed, before it plans. Whenever he comes, the answer uses the fact only if it ends early. */
static void conversations_look_again_when_they_plan(void **state)
{
    inferscale *is = forget_open("mock:slow=150"), *other = forget_open(NULL);
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    saying s = { 0 };
    pthread_t t;
    int64_t id = forget_tell(is, peanuts);

    (void)state;
    (void)forget_tell(is, "Anna eats bread.");
    o.k = 1;
    o.max_tokens = 1; /* it stays to be run */
    OK(inferscale_chat_open(is, &anna, &s.chat));
    OK(inferscale_chat_say(s.chat, "peanuts?", &o, &a));
    assert_int_equal(a->facts[0].id, id);
    assert_string_equal(a->finish, "length");
    inferscale_answer_free(a);
    assert_int_equal(pthread_create(&t, NULL, say_it, &s), 0);
    nap(60);
    OK(inferscale_forget(other, &anna, &id, 1, NULL));
    pthread_join(t, NULL);
    OK(s.st);
    if (!strstr(s.answer->fallback, "computed again")) assert_string_equal(s.answer->finish, "cancelled");
    for (size_t i = 0; i < s.answer->n_facts; i++) assert_int_not_equal(s.answer->facts[i].id, id);
    inferscale_answer_free(s.answer);
    inferscale_chat_close(s.chat);
    inferscale_close(other);
    inferscale_close(is);
}

/* ---- Another process ----------------------------------------------------------------------------------------------------- */

/* A child that answers slowly and tells each piece through the pipe; '!' when it has ended. */
static pid_t slow_reader(int *out, const char *model)
{
    int fd[2];
    pid_t child;

    assert_int_equal(pipe(fd), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        asking q = { .question = "peanuts?" };
        int n = 0;

        close(fd[0]);
        q.is = forget_open(model);
        pthread_t t;
        if (pthread_create(&t, NULL, ask_it, &q) != 0) _exit(2);
        for (; n < 1000 && !__atomic_load_n(&q.done, __ATOMIC_ACQUIRE); n++) {
            int heard = __atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE);
            if (heard && write(fd[1], "x", 1) != 1) _exit(3);
            nap(5);
        }
        pthread_join(t, NULL);
        if (write(fd[1], q.answer && strcmp(q.answer->finish, "cancelled") == 0 ? "!" : "?", 1) != 1) _exit(4);
        _exit(0);
    }
    close(fd[1]);
    *out = fd[0];
    return child;
}

static void another_process_is_drained(void **state)
{
    inferscale *is = forget_open(NULL);
    int64_t id = forget_tell(is, peanuts);
    int fd, status;
    char c = 0, last = 0;
    double t0;
    pid_t child;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    inferscale_close(is); /* SQLite's handles do not survive fork */
    child = slow_reader(&fd, "mock:slow=20");
    is = forget_open(NULL);
    assert_int_equal(read(fd, &c, 1), 1); /* it speaks */
    t0 = is_now_ms();
    OK(inferscale_forget(is, &anna, &id, 1, NULL));
    assert_true(is_now_ms() - t0 < 5000);
    while (read(fd, &c, 1) == 1) last = c;
    assert_int_equal(last, '!'); /* cancelled between two tokens */
    close(fd);
    waitpid(child, &status, 0);
    inferscale_close(is);
}

static void a_killed_reader_leaves_no_lease(void **state)
{
    inferscale *is = forget_open(NULL);
    int64_t id = forget_tell(is, peanuts);
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;
    int fd, status;
    char c = 0;
    pid_t child;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    inferscale_close(is);
    child = slow_reader(&fd, "mock:slow=20");
    is = forget_open(NULL);
    assert_int_equal(read(fd, &c, 1), 1);
    kill(child, SIGSTOP); /* it holds its lease, and does not look */
    o.wait_ms = 200;
    assert_int_equal(inferscale_forget_with(is, &anna, &id, 1, &o, &r), INFERSCALE_E_BUSY);
    assert_non_null(strstr(inferscale_error(), "have not ended"));
    assert_int_equal(r.pending, 1);
    assert_int_equal(r.forgotten, 1);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    close(fd);
    id = forget_tell(is, "Another one.");
    OK(inferscale_forget_with(is, &anna, &id, 1, &o, &r)); /* nothing waits for the dead */
    assert_int_equal(r.pending, 0);
    inferscale_close(is);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, forget_setup, forget_teardown)
    const struct CMUnitTest tests[] = {
        T(forgotten_while_composing),
        T(forgotten_while_decoding),
        T(others_go_on),
        T(conversations_let_go),
        T(conversations_look_again_when_they_plan),
        T(another_process_is_drained),
        T(a_killed_reader_leaves_no_lease),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
