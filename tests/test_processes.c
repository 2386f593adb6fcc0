/* Many processes on one bank and one vault: a writer and readers, two writers, readers that are killed while they answer, an encoder that
 * is killed while it encodes. Each process checks what it sees against a model that all share (support/live.h); afterwards the store, the
 * engine's witness and the vault's files are checked: nothing stale, nothing foreign, nothing lost, nothing left behind.
 *
 * The seed is printed; INFERSCALE_SEED replays the choices. INFERSCALE_SOAK=SECONDS repeats each case until then. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/clock.h"
#include "base/file.h"
#include "support/live.h"
#include "support/scratch.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { FACTS = 90, KILLS = 5 };
#else
enum { FACTS = 400, KILLS = 12 };
#endif
enum { CHILDREN = 8, WHOLE_ANSWER = 100 };

static live *l;
static char *home;
static const char *engine_options = "";

static inferscale *open_store(void)
{
    char model[700];

    snprintf(model, sizeof model, "mock:%s,witness=%s", engine_options, scratch_path(home, "witness"));
    return live_open(scratch_path(home, "store"), model);
}

static void begin(void)
{
    home = scratch_make();
    l = live_new(scratch_seed("processes"));
    engine_options = "";
}

static void end(int limit)
{
    inferscale *is = open_store();

    assert_non_null(is);
    live_check_store(l, is, limit);
    inferscale_close(is);
    live_check_witness(l, scratch_path(home, "witness"));
    print_message("added %lu, changed %lu, forgotten %lu; asked %lu (%lu cut, %lu gave up), found %lu, encodings %lu\n", l->adds,
                  l->changes, l->forgets, l->asks, l->cut, l->stale, l->finds, l->encodes);
    assert_int_equal(l->failures, 0);
    live_free(l);
    scratch_remove(home);
}

/* ---- Processes ----------------------------------------------------------------------------------------------------------- */

typedef void (*work_fn)(inferscale *is, int arg, unsigned long long *rng);

static pid_t start(work_fn work, int arg)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        unsigned long long rng = l->seed + 0x9e3779b97f4a7c15ull * (unsigned long long)(arg + 1);
        inferscale *is = open_store();

        if (!is) _exit(3);
        work(is, arg, &rng);
        inferscale_close(is);
        _exit(0);
    }
    return pid;
}

static void wait_for(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) live_complain(l, "a process ended with status %x", status);
}

static bool over(void)
{
    return atomic_load(&l->writers) == 0 || atomic_load(&l->failures) > 100;
}

/* Writer w of `of`: adds, changes and forgets facts of its own. */
static void write_facts(inferscale *is, int w, int of, unsigned long long *rng)
{
    for (int next = w; next < FACTS && atomic_load(&l->failures) <= 100;) {
        unsigned dice = scratch_below(rng, 10);
        int n = live_pick(l, rng, next, w, of);

        if (dice < 5 || n < 0) {
            live_add(l, is, next);
            next += of;
        } else if (dice < 8) live_change(l, is, n);
        else live_forget(l, is, &n, 1);
    }
    atomic_fetch_sub(&l->writers, 1);
}

static void write_alone(inferscale *is, int arg, unsigned long long *rng)
{
    write_facts(is, 0, 1, rng);
}

static void write_half(inferscale *is, int arg, unsigned long long *rng)
{
    write_facts(is, arg, 2, rng);
}

/* Until the writers are done; a process that got no time until then still does something. */
static bool go_on(atomic_ulong *count, int *extra)
{
    return !over() || (atomic_load(count) == 0 && (*extra)++ < 100);
}

static void read_facts(inferscale *is, int arg, unsigned long long *rng)
{
    int extra = 0;

    while (go_on(&l->finds, &extra)) {
        live_ask(l, is, rng, FACTS, 4 + scratch_below(rng, 40));
        live_find(l, is, rng, FACTS);
        if (scratch_below(rng, 4) == 0) live_chat(l, is, rng, FACTS);
    }
}

static void encode_facts(inferscale *is, int arg, unsigned long long *rng)
{
    int extra = 0;

    while (go_on(&l->encodes, &extra)) {
        inferscale_status st = inferscale_encode(is, live_scope((int)scratch_below(rng, LIVE_PARTITIONS)), NULL);

        if (st != INFERSCALE_OK && !live_is_to_try_again(st))
            live_complain(l, "encode: %s", inferscale_error());
        atomic_fetch_add(&l->encodes, 1);
    }
}

/* ---- Living processes ---------------------------------------------------------------------------------------------------- */

static void run(const work_fn *work, int n, int writers)
{
    pid_t pids[CHILDREN];

    atomic_store(&l->writers, writers);
    for (int i = 0; i < n; i++) pids[i] = start(work[i], i);
    for (int i = 0; i < n; i++) wait_for(pids[i]);
}

static void a_writer_an_encoder_and_readers(void **state)
{
    static const work_fn work[] = { write_alone, encode_facts, read_facts, read_facts };

    (void)state;
    begin();
    run(work, 4, 1);
    assert_true(l->asks > 0 && l->finds > 0 && l->encodes > 0 && l->changes > 0);
    end(FACTS);
}

static void two_writers_two_encoders(void **state)
{
    static const work_fn work[] = { write_half, write_half, encode_facts, encode_facts, read_facts };

    (void)state;
    begin();
    run(work, 5, 2);
    assert_int_equal(l->adds, FACTS);
    end(FACTS);
}

static void expect_sound(void)
{
    inferscale_fsck_options o = INFERSCALE_FSCK_OPTIONS_INIT;
    inferscale_fsck_report *r = NULL;
    inferscale *is = open_store();

    assert_non_null(is);
    assert_int_equal(inferscale_fsck(is, &o, &r), INFERSCALE_OK);
    for (size_t i = 0; i < r->n_problems && i < 3; i++) live_complain(l, "fsck: %s: %s", r->problems[i].kind, r->problems[i].what);
    if (!r->ok) live_complain(l, "fsck: %zu problems", r->n_problems);
    inferscale_fsck_free(r);
    inferscale_close(is);
}

static int n_opened;

/* Whatever is renamed into the vault: before the books name it, somebody else opens the store. */
static is_status opened_meanwhile(const is_fs *fs, const char *from, const char *to)
{
    const size_t n = strlen(to);
    is_status st = is_fs_posix()->rename(is_fs_posix(), from, to);
    inferscale *other;

    (void)fs;
    if (n < 4 || strcmp(to + n - 4, ".seg") != 0) return st;
    other = open_store();
    n_opened += other != NULL;
    inferscale_close(other);
    return st;
}

/* Files that a living process is writing are doomed until the books name them; opening the store
 * must leave them alone. */
static void opening_removes_nothing_that_is_wanted(void **state)
{
    is_fs slow = *is_fs_posix();
    inferscale *is;

    (void)state;
    begin();
    slow.rename = opened_meanwhile;
    is_fs_set_default(&slow);
    is = open_store();
    assert_non_null(is);
    for (int i = 0; i < 3; i++) live_add(l, is, 3 * i);
    assert_int_equal(inferscale_encode(is, live_scope(0), NULL), INFERSCALE_OK);
    inferscale_close(is);
    is_fs_set_default(NULL);
    assert_true(n_opened >= 3);
    expect_sound();
    end(FACTS);
}

static void count_files(const char *dir, size_t *segments, size_t *others);

/* Opens the store and says how many segment files are left. */
static size_t files_after_opening(void)
{
    inferscale *is = open_store();
    size_t segments = 0, others = 0;

    assert_non_null(is);
    inferscale_close(is);
    count_files(scratch_path(home, "store/vault"), &segments, &others);
    return segments;
}

static void doom_all(char lease[64])
{
    static const char sql[] = "INSERT INTO doomed(partition_id, name) SELECT DISTINCT partition_id, name FROM segments; DELETE FROM segments";
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;

    assert_int_equal(sqlite3_open(scratch_path(home, "store/bank.sqlite"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT id, epoch FROM partitions", -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    snprintf(lease, 64, "store/leases/%d.%d.writing", sqlite3_column_int(q, 0), sqlite3_column_int(q, 1));
    sqlite3_finalize(q);
    sqlite3_close(db);
}

static void expect_check_ok(void)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;

    assert_int_equal(sqlite3_open(scratch_path(home, "store/bank.sqlite"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA quick_check", -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(q, 0), "ok");
    sqlite3_finalize(q);
    sqlite3_close(db);
}

/* The same by hand: the names of a partition stay as long as anybody holds a writer's lease on it, and go then. */
static void doomed_names_wait_for_writers(void **state)
{
    char lease[64];
    size_t n;
    int fd;

    (void)state;
    begin();
    for (int i = 0; i < 4; i++) {
        inferscale *is = open_store();

        assert_non_null(is);
        live_add(l, is, 3 * i); /* all in the first partition */
        assert_int_equal(inferscale_encode(is, live_scope(0), NULL), INFERSCALE_OK);
        inferscale_close(is);
    }
    n = files_after_opening();
    assert_true(n >= 4);
    doom_all(lease);
    expect_check_ok(); /* with names there, too */
    fd = open(scratch_path(home, lease), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    assert_int_equal(files_after_opening(), n);
    close(fd);
    assert_int_equal(files_after_opening(), 0);
    end(FACTS);
}

/* ---- Readers of another process are cut, dead ones do not hold anything up ------------------------------------------------ */

enum { FEW = 12 };

static int told_fd;

static int tell(void *ctx, const char *text, size_t len)
{
    return write(told_fd, "t", 1) != 1;
}

/* Asks about fact arg, slowly, and tells the parent at each piece. */
static void ask_slowly(inferscale *is, int arg, unsigned long long *rng)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    char text[80];

    snprintf(text, sizeof text, "What about kx%05d, the lamp and the garden?", arg);
    o.k = 4;
    o.max_tokens = WHOLE_ANSWER;
    o.on_text = tell;
    if (inferscale_ask(is, live_scope(live_partition(arg)), text, &o, &a) != INFERSCALE_OK) {
        live_complain(l, "ask: %s", inferscale_error());
        return;
    }
    atomic_fetch_add(&l->asks, 1);
    if (strcmp(a->finish, "cancelled") == 0 && a->fallback[0]) atomic_fetch_add(&l->cut, 1);
    inferscale_answer_free(a);
}

/* Starts a reader of fact n and returns when it has said a few pieces; *fd is its pipe's end. */
static pid_t start_reader(int n, int *fd)
{
    int ends[2];
    char c;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    told_fd = ends[1];
    pid = start(ask_slowly, n);
    close(ends[1]);
    for (int i = 0; i < 4; i++) assert_int_equal(read(ends[0], &c, 1), 1);
    *fd = ends[0];
    return pid;
}

static void fill_few(int first)
{
    inferscale *is = open_store();

    assert_non_null(is);
    for (int i = first; i < first + FEW; i++) live_add(l, is, i * LIVE_PARTITIONS);
    if (inferscale_encode(is, live_scope(0), NULL) != INFERSCALE_OK) live_complain(l, "encode: %s", inferscale_error());
    inferscale_close(is);
}

static void forgetting_cuts_readers_of_other_processes(void **state)
{
    pid_t pids[2];
    int fds[2], first = 0;
    inferscale *is;

    (void)state;
    begin();
    signal(SIGPIPE, SIG_IGN);
    engine_options = "slow=10";
    fill_few(0);
    for (int i = 0; i < 2; i++) pids[i] = start_reader(first, &fds[i]);
    is = open_store();
    assert_non_null(is);
    live_forget(l, is, &first, 1); /* the witness will say that no token came after this */
    inferscale_close(is);
    for (int i = 0; i < 2; i++) {
        wait_for(pids[i]);
        close(fds[i]);
    }
    assert_int_equal(l->asks, 2);
    assert_int_equal(l->cut, 2);
    end(FEW * LIVE_PARTITIONS);
}

/* A reader that was killed while it answered holds nothing: forget ends, and is not pending. */
static void killed_readers_leave_no_lease(void **state)
{
    (void)state;
    begin();
    signal(SIGPIPE, SIG_IGN);
    engine_options = "slow=10";
    fill_few(0);
    for (int i = 0; i < KILLS / 3; i++) {
        int fd, n = i * LIVE_PARTITIONS, status;
        pid_t pid = start_reader(n, &fd);
        inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
        inferscale_forget_report report = { 0 };
        inferscale *is;
        int64_t id = atomic_load(&l->facts[n].id);

        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status)); /* it was at work */
        close(fd);
        is = open_store();
        assert_non_null(is);
        OK(inferscale_forget_with(is, live_scope(0), &id, 1, &o, &report));
        assert_int_equal(report.forgotten, 1);
        assert_int_equal(report.pending, 0);
        atomic_store(&l->facts[n].ended[1], is_now_ms());
        atomic_store(&l->facts[n].forgotten, 1);
        inferscale_close(is);
    }
    end(FEW * LIVE_PARTITIONS);
}

/* ---- Killed encoders ----------------------------------------------------------------------------------------------------- */

static void encode_until_killed(inferscale *is, int arg, unsigned long long *rng)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;

    o.again = 1; /* there is always something to do */
    for (;;) {
        inferscale_status st = inferscale_encode(is, live_scope(arg % LIVE_PARTITIONS), &o);

        if (st == INFERSCALE_OK || live_is_to_try_again(st)) continue;
        live_complain(l, "encode: %s", inferscale_error());
        return;
    }
}

/* Files under the vault: those of segments, and all others. */
static void count_files(const char *dir, size_t *segments, size_t *others)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1200];
        struct stat st;
        const char *dot = strrchr(e->d_name, '.');

        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (stat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode)) count_files(path, segments, others);
        else if (dot && strcmp(dot, ".seg") == 0) ++*segments;
        else ++*others;
    }
    if (d) closedir(d);
}

/* After everything was forgotten nothing is in the vault, whatever the dead left. */
static void check_nothing_left(inferscale *is)
{
    size_t segments = 0, others = 0;

    for (int p = 0; p < LIVE_PARTITIONS; p++) OK(inferscale_forget_all(is, live_scope(p), NULL));
    for (int i = 0; i < FACTS; i++)
        if (atomic_load(&l->facts[i].id)) atomic_store(&l->facts[i].forgotten, 1);
    count_files(scratch_path(home, "store/vault"), &segments, &others);
    assert_int_equal(segments, 0);
    assert_int_equal(others, 0);
}

static void killed_encoders_leave_nothing_behind(void **state)
{
    unsigned long long rng;
    inferscale *is;

    (void)state;
    begin();
    rng = l->seed;
    is = open_store();
    assert_non_null(is);
    for (int i = 0; i < 60; i++) live_add(l, is, i);
    inferscale_close(is);
    for (int i = 0; i < KILLS; i++) {
        pid_t pid = start(encode_until_killed, i);
        int status, n;

        usleep(20000 + scratch_below(&rng, 150000));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        is = open_store();
        assert_non_null(is);
        if ((n = live_pick(l, &rng, 60, 0, 1)) >= 0) live_forget(l, is, &n, 1);
        if ((n = live_pick(l, &rng, 60, 0, 1)) >= 0) live_change(l, is, n);
        live_ask(l, is, &rng, 60, 20);
        live_check_store(l, is, 60);
        inferscale_close(is);
    }
    is = open_store();
    assert_non_null(is);
    for (int p = 0; p < LIVE_PARTITIONS; p++) OK(inferscale_encode(is, live_scope(p), NULL));
    check_nothing_left(is);
    inferscale_close(is);
    end(60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_an_encoder_and_readers),
        cmocka_unit_test(two_writers_two_encoders),
        cmocka_unit_test(opening_removes_nothing_that_is_wanted),
        cmocka_unit_test(doomed_names_wait_for_writers),
        cmocka_unit_test(forgetting_cuts_readers_of_other_processes),
        cmocka_unit_test(killed_readers_leave_no_lease),
        cmocka_unit_test(killed_encoders_leave_nothing_behind),
    };
    const char *soak = getenv("INFERSCALE_SOAK");
    double until = is_now_ms() + (soak ? atof(soak) * 1000 : 0);
    int failed;

    do failed = cmocka_run_group_tests(tests, NULL, NULL);
    while (!failed && is_now_ms() < until);
    return failed;
}
