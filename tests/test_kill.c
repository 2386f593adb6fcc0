/* kill -9 of the real thing, many times: a driver that makes public calls, and the program itself, one command after another on one
 * store. Whatever was acknowledged (the call returned, the command ended with 0) is there afterwards, what was forgotten is not, what
 * was under way is one or the other, fsck finds nothing, and work goes on. With INFERSCALE_SOAK=seconds as long as that. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/scratch.h"
#include "support/soak.h"

enum { ITEMS = 200000, GONE = 0, THERE = 1, EITHER = 2, KEEP = 40 };

static const inferscale_scope anna = { .user = "anna" };
static char plugins[1024];
static unsigned long kills, idle_kills, acknowledged; /* idle: it had ended by itself */

/* ---- What must be there: texts by their number --------------------------------------------------------------------------- */

static struct { unsigned char state; unsigned instead; } items[ITEMS]; /* instead: the text that takes its place; 0 = none */
static unsigned n_items = 1;

static const char *text_of(unsigned serial, char out[80])
{
    snprintf(out, 80, "Text %u is about number %u alone.", serial, serial);
    return out;
}

static unsigned serial_of(const char *text)
{
    unsigned n = 0;

    return sscanf(text, "Text %u is", &n) == 1 && n < ITEMS ? n : 0;
}

static inferscale *open_store(const char *home)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = home;
    o.engine = "mock";
    o.plugin_dir = plugins;
    o.policy = "facts:2";
    if (inferscale_open(&is, &o) != INFERSCALE_OK) fail_msg("open: %s", inferscale_error());
    return is;
}

/* Settles what was in doubt by what is there, so that the next round starts from a known state. */
static void check(const char *home, bool thoroughly)
{
    static unsigned char there[ITEMS];
    inferscale *is = open_store(home);
    inferscale_fsck_report *r = NULL;
    inferscale_list *l = NULL;

    memset(there, 0, sizeof there);
    assert_int_equal(inferscale_ls(is, &anna, 0, 0, 0, &l), INFERSCALE_OK);
    for (size_t i = 0; i < l->n; i++) {
        unsigned s = serial_of(l->items[i].text);

        if (!s || s >= n_items) fail_msg("\"%s\" was never written", l->items[i].text);
        there[s]++;
    }
    inferscale_list_free(l);
    for (unsigned s = 1; s < n_items; s++) {
        if (there[s] > 1) fail_msg("text %u is there %u times", s, there[s]);
        if (items[s].state == THERE && !there[s]) fail_msg("text %u was acknowledged and is lost", s);
        if (items[s].state == GONE && there[s]) fail_msg("text %u was forgotten and is back", s);
        if (items[s].instead && there[s] == there[items[s].instead]) fail_msg("text %u and %u: both or neither", s, items[s].instead);
        items[s].state = there[s] ? THERE : GONE;
        items[s].instead = 0;
    }
    assert_int_equal(inferscale_fsck(is, NULL, &r), INFERSCALE_OK);
    if (!r->ok) fail_msg("fsck: %s: %s", r->problems[0].kind, r->problems[0].what);
    inferscale_fsck_free(r);
    if (thoroughly) assert_int_equal(inferscale_encode(is, &anna, NULL), INFERSCALE_OK);
    inferscale_close(is);
}

/* ---- The driver ---------------------------------------------------------------------------------------------------------- */

typedef struct note { int what; unsigned a, b; } note; /* 'r' remembering a .. b-1, 'u' a becomes b, 'f' forgetting a; '.' done */

static void tell(int fd, int what, unsigned a, unsigned b)
{
    note n = { what, a, b };

    if (write(fd, &n, sizeof n) != (ssize_t)sizeof n) _exit(90);
}

static void ok(inferscale_status st, int code)
{
    if (st == INFERSCALE_OK) return;
    print_error("child: %s\n", inferscale_error());
    _exit(code);
}

typedef struct mine { int64_t id; unsigned serial; } mine;

static void take_in(inferscale *is, mine *m, size_t *n)
{
    inferscale_list *l = NULL;

    ok(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, KEEP, &l), 91);
    for (size_t i = 0; i < l->n; i++) m[(*n)++] = (mine){ l->items[i].id, serial_of(l->items[i].text) };
    inferscale_list_free(l);
}

static void work_until_killed(const char *home, int fd, unsigned next, unsigned long long seed)
{
    inferscale *is = open_store(home);
    mine m[2 * KEEP];
    size_t n = 0;

    take_in(is, m, &n);
    for (;;) {
        unsigned dice = n > KEEP ? 6 : scratch_below(&seed, 10), which = n ? scratch_below(&seed, (unsigned)n) : 0;
        char texts[3][80];
        inferscale_fact f[3] = { { .text = texts[0] }, { .text = texts[1] }, { .text = texts[2] } };
        inferscale_event e[3];
        inferscale_answer *a = NULL;

        if (dice < 4 || !n) {
            unsigned k = 1 + scratch_below(&seed, 3);

            for (unsigned i = 0; i < k; i++) text_of(next + i, texts[i]);
            tell(fd, 'r', next, next + k);
            ok(inferscale_remember(is, &anna, f, k, e), 92);
            for (unsigned i = 0; i < k; i++) m[n++] = (mine){ e[i].id, next + i };
            next += k;
        } else if (dice == 4) {
            text_of(next, texts[0]);
            tell(fd, 'u', m[which].serial, next);
            ok(inferscale_update(is, &anna, m[which].id, &f[0]), 93);
            m[which].serial = next++;
        } else if (dice < 7) {
            tell(fd, 'f', m[which].serial, 0);
            ok(inferscale_forget(is, &anna, &m[which].id, 1, NULL), 94);
            m[which] = m[--n];
        } else if (dice < 9) {
            ok(inferscale_encode(is, &anna, NULL), 95);
            continue;
        } else {
            inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;

            o.max_tokens = 5;
            ok(inferscale_ask(is, &anna, "What is text 3 about?", &o, &a), 96);
            inferscale_answer_free(a);
            continue;
        }
        tell(fd, '.', 0, 0);
    }
}

/* At most so many notes; `doing` is what is under way. */
static void read_notes(int fd, note *under_way, unsigned most)
{
    note n, doing = *under_way;

    for (; most && read(fd, &n, sizeof n) == (ssize_t)sizeof n; most--) {
        bool done = n.what == '.';

        if (done) n = doing;
        doing = n;
        acknowledged += done;
        if (n.what == 'r') {
            for (unsigned s = n.a; s < n.b; s++) items[s].state = done ? THERE : EITHER;
            n_items = n.b > n_items ? n.b : n_items;
        } else if (n.what == 'u') {
            items[n.a].state = done ? GONE : EITHER;
            items[n.b].state = done ? THERE : EITHER;
            items[n.a].instead = done ? 0 : n.b;
            n_items = n.b + 1;
        } else if (n.what == 'f') {
            items[n.a].state = done ? GONE : EITHER;
        }
    }
    *under_way = doing;
}

static bool time_is_over(unsigned round, unsigned rounds, double end)
{
    return soak_seconds() > 0 ? is_now_ms() > end : round >= rounds;
}

static void start_afresh(void)
{
    memset(items, 0, sizeof items);
    n_items = 1;
}

static void the_driver_is_killed(void **state)
{
    char *home = scratch_make();
    unsigned long long seed = scratch_seed("kill the driver");
    double end = is_now_ms() + 500.0 * soak_seconds();

    (void)state;
    start_afresh();
    for (unsigned round = 0; !time_is_over(round, 24, end) && n_items < ITEMS - 10000; round++) {
        int fd[2], status;
        note under_way = { 0 };
        pid_t child;

        assert_int_equal(pipe(fd), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(fd[0]);
            work_until_killed(home, fd[1], n_items, seed);
        }
        close(fd[1]);
        if (round % 3) read_notes(fd[0], &under_way, 1 + scratch_below(&seed, 24)); /* else often still while it opens */
        usleep(scratch_below(&seed, round % 3 ? 5000 : 20000));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status)) fail_msg("the driver failed by itself: %d", WEXITSTATUS(status));
        kills++;
        read_notes(fd[0], &under_way, UINT32_MAX);
        close(fd[0]);
        check(home, round % 4 == 0);
    }
    assert_true(acknowledged > 30);
    scratch_remove(home);
}

/* ---- The program --------------------------------------------------------------------------------------------------------- */

static pid_t start(char *const argv[])
{
    pid_t child = fork();

    assert_true(child >= 0);
    if (child) return child;
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(99);
    execv(argv[0], argv);
    _exit(98);
}

static double usual_ms = 40; /* what a command takes, of late: follows the machine */

/* Runs a command and kills it at some time; true if it had ended well before. */
static bool run_and_kill(const char *home, char *const words[], unsigned long long *seed)
{
    double wait_ms = usual_ms * (0.1 + scratch_below(seed, 1000) / 600.0), t0 = is_now_ms();
    char program[1100];
    char *argv[16] = { program, words[0], "--home", (char *)home, "--engine", "mock", "--policy", "facts:2", "--user", "anna" };
    int n = 10, status;
    pid_t child;

    snprintf(program, sizeof program, "%s/inferscale", plugins);
    for (int i = 1; words[i]; i++) argv[n++] = words[i];
    argv[n] = NULL;
    child = start(argv);
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (is_now_ms() - t0 < wait_ms) {
            usleep(200);
            continue;
        }
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        break;
    }
    if (!WIFEXITED(status)) {
        kills++;
        usual_ms *= 1.1; /* so that about every other is killed */
        return false;
    }
    idle_kills++;
    usual_ms = 0.5 * usual_ms + 0.5 * (is_now_ms() - t0);
    if (WEXITSTATUS(status) != 0) fail_msg("inferscale %s ended with %d", words[0], WEXITSTATUS(status));
    return true;
}

static int64_t some_fact(const char *home, unsigned long long *seed, unsigned *serial)
{
    inferscale *is = open_store(home);
    inferscale_list *l = NULL;
    int64_t id = 0;

    assert_int_equal(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &l), INFERSCALE_OK);
    if (l->n) {
        size_t i = scratch_below(seed, (unsigned)l->n);

        id = l->items[i].id;
        *serial = serial_of(l->items[i].text);
    }
    inferscale_list_free(l);
    inferscale_close(is);
    return id;
}

static void one_command(const char *home, unsigned round, unsigned long long *seed)
{
    unsigned serial = 0, dice = round < 4 ? 0 : scratch_below(seed, 8);
    int64_t id = dice >= 4 && dice < 7 ? some_fact(home, seed, &serial) : 0;
    char text[80], number[32];

    snprintf(number, sizeof number, "%lld", (long long)id);
    if (id && dice == 4) {
        items[n_items].state = EITHER;
        items[serial].state = EITHER;
        items[serial].instead = n_items;
        if (run_and_kill(home, (char *[]){ "update", number, (char *)text_of(n_items, text), NULL }, seed)) {
            items[n_items].state = THERE;
            items[serial].state = GONE;
            items[serial].instead = 0;
            acknowledged++;
        }
        n_items++;
    } else if (id) {
        items[serial].state = EITHER;
        if (run_and_kill(home, (char *[]){ "forget", number, NULL }, seed)) {
            items[serial].state = GONE;
            acknowledged++;
        }
    } else if (dice == 7) {
        run_and_kill(home, (char *[]){ "encode", NULL }, seed);
    } else {
        items[n_items].state = EITHER;
        if (run_and_kill(home, (char *[]){ "remember", dice % 2 ? "--later" : "--json", (char *)text_of(n_items, text), NULL }, seed)) {
            items[n_items].state = THERE;
            acknowledged++;
        }
        n_items++;
    }
}

static void the_program_is_killed(void **state)
{
    char *home = scratch_make();
    unsigned long long seed = scratch_seed("kill the program");
    double end = is_now_ms() + 500.0 * soak_seconds();
    unsigned long before = acknowledged;

    (void)state;
    start_afresh();
    for (unsigned round = 0; !time_is_over(round, 60, end) && n_items < ITEMS - 10; round++) {
        one_command(home, round, &seed);
        check(home, round % 10 == 9);
    }
    assert_true(acknowledged > before);
    scratch_remove(home);
}

static void report(void **state)
{
    (void)state;
    print_message("%lu kills, %lu came too late, %lu writes acknowledged\n", kills, idle_kills, acknowledged);
    assert_true(kills > 20);
    soak_report("kill", "\"points\":%lu,\"faults\":%lu,\"acknowledged\":%lu,\"lost\":0", kills + idle_kills, kills, acknowledged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_driver_is_killed), cmocka_unit_test(the_program_is_killed), cmocka_unit_test(report),
    };

    soak_plugins(plugins, sizeof plugins);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
