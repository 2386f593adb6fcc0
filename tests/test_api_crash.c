/* kill -9 of a process that remembers, encodes and forgets through the public calls: afterwards every acknowledged fact is there,
 * every forgotten one is not, and the vault holds exactly the files that the books name: no KV of forgotten text stays behind. */
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
#include <sqlite3.h>

#include "base/status.h"
#include "support/scratch.h"

enum { ROUNDS = 25, MAX_FACTS = 4000 };

static const inferscale_scope anna = { .user = "anna" };
static char plugins[1024];

static inferscale *open_store(const char *home)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = home;
    o.engine = "mock";
    o.plugin_dir = plugins;
    if (inferscale_open(&is, &o) != INFERSCALE_OK) fail_msg("open: %s", inferscale_error());
    return is;
}

/* What the child tells: 'r' id = remembered, 'f' id = about to forget, 'g' id = forgotten. */
typedef struct note {
    int64_t id;
    int64_t what;
} note;

static void tell(int fd, int64_t id, char what)
{
    note n = { id, what };

    if (write(fd, &n, sizeof n) != (ssize_t)sizeof n) _exit(3);
}

static void work_until_killed(const char *home, int fd, unsigned round)
{
    inferscale *is = open_store(home);
    int64_t last = 0;

    for (unsigned i = 0;; i++) {
        char text[80];
        inferscale_fact f = { .text = text, .event_time = 1714521600 };
        inferscale_event e;

        snprintf(text, sizeof text, "Fact number %u of round %u about nothing at all.", i, round);
        if (inferscale_remember(is, &anna, &f, 1, &e) != INFERSCALE_OK) _exit(4);
        tell(fd, e.id, 'r');
        if (i % 3 == 2 && inferscale_encode(is, &anna, NULL) != INFERSCALE_OK) _exit(5);
        if (i % 5 == 4) {
            tell(fd, last, 'f');
            if (inferscale_forget(is, &anna, &last, 1, NULL) != INFERSCALE_OK) _exit(6);
            tell(fd, last, 'g');
        }
        last = e.id;
    }
}

typedef struct model { int64_t id; int state; /* 1 there, 2 either, 0 gone */ } model;

static size_t read_notes(int fd, model *m, size_t n)
{
    note got;

    while (read(fd, &got, sizeof got) == (ssize_t)sizeof got) {
        size_t i = 0;

        while (i < n && m[i].id != got.id) i++;
        if (i == n) {
            assert_true(n < MAX_FACTS);
            m[n++] = (model){ got.id, 0 };
        }
        m[i].state = got.what == 'r' ? 1 : got.what == 'f' ? 2 : 0;
    }
    return n;
}

/* Files that the books name: two policies that meant the same context share one. */
static uint64_t named_files(const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    uint64_t n;

    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(DISTINCT name) FROM segments", -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    n = (uint64_t)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

static void check(const char *home, const model *m, size_t n)
{
    inferscale *is = open_store(home);
    inferscale_store_info info;
    inferscale_list *list = NULL;
    char path[600];

    assert_int_equal(inferscale_store(is, 1, &info), INFERSCALE_OK);
    assert_true(info.sqlite_ok);
    assert_int_equal(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &list), INFERSCALE_OK);
    for (size_t i = 0; i < n; i++) {
        bool there = false;

        for (size_t j = 0; j < list->n && !there; j++) there = list->items[j].id == m[i].id;
        if (m[i].state == 1) assert_true(there);
        if (m[i].state == 0) assert_false(there);
    }
    inferscale_list_free(list);
    snprintf(path, sizeof path, "%s/bank.sqlite", home);
    assert_int_equal(named_files(path), info.n_segments);
    assert_int_equal(inferscale_encode(is, &anna, NULL), INFERSCALE_OK); /* and it goes on working */
    inferscale_close(is);
}

static void kill_9_loses_nothing_and_leaves_nothing(void **state)
{
    static model m[MAX_FACTS];
    char *home = scratch_make();
    unsigned seed = (unsigned)scratch_seed("crash");
    size_t n = 0, told = 0;

    (void)state;
    srand(seed);
    for (unsigned round = 0; round < ROUNDS; round++) {
        int fd[2], status;
        pid_t child;

        assert_int_equal(pipe(fd), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(fd[0]);
            work_until_killed(home, fd[1], round);
        }
        close(fd[1]);
        usleep(50000 + (unsigned)rand() % 250000);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status)); /* it was at work until then */
        n = read_notes(fd[0], m, n);
        close(fd[0]);
        check(home, m, n);
        told += n;
    }
    assert_true(told > 0);
    scratch_remove(home);
}

int main(void)
{
    ssize_t len = readlink("/proc/self/exe", plugins, sizeof plugins - 1);
    const struct CMUnitTest tests[] = { cmocka_unit_test(kill_9_loses_nothing_and_leaves_nothing) };

    if (len < 0) return 1;
    plugins[len] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
