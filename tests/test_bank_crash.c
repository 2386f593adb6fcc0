/* What was acknowledged is there: after kill -9 at random instants, after a power loss that takes every byte not yet synced, with
 * several processes and threads writing at once. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "support/bank_kit.h"

enum { ADDED = 1, CHANGED = 2, FORGETTING = 3, FORGOTTEN = 4, BATCH = 4 };

/* What the writer tells through the pipe after a call has returned: fits in one atomic write. */
typedef struct ack { int what, round, batch; int64_t ids[BATCH]; } ack;

static void say(int fd, const ack *a)
{
    if (write(fd, a, sizeof *a) != sizeof *a) _exit(90);
}

/* A child that failed says why. */
static void leave(int code)
{
    print_error("child: %s\n", is_error());
    _exit(code);
}

static const char *batch_text(int round, int batch, int i, char out[64])
{
    snprintf(out, 64, "round %d batch %d fact %d", round, batch, i);
    return out;
}

/* Writes until it is killed: batches, and now and then a change or a forgetting of an earlier batch's facts. */
static void writer(const char *path, int round, int fd)
{
    inferscale_scope anna = { .user = "anna" };
    int64_t mine[BATCH] = { 0 };
    is_bank *b = NULL;
    is_partition p;

    if (is_bank_open(path, false, &b) != INFERSCALE_OK || is_bank_partition(b, &anna, true, &p) != INFERSCALE_OK) leave(91);
    for (int batch = 0;; batch++) {
        inferscale_fact f[BATCH] = { { 0 } };
        inferscale_event e[BATCH];
        ack a = { .what = ADDED, .round = round, .batch = batch };
        char texts[BATCH][64];

        for (int i = 0; i < BATCH; i++) f[i].text = batch_text(round, batch, i, texts[i]);
        if (is_bank_add_facts(b, &p, &anna, f, BATCH, e) != INFERSCALE_OK) leave(92);
        for (int i = 0; i < BATCH; i++) a.ids[i] = e[i].id;
        say(fd, &a);
        if (batch % 3 == 1) {
            inferscale_fact changed = { .text = "changed" };

            if (is_bank_update_fact(b, &p, mine[0], &changed, NULL) != INFERSCALE_OK) leave(93);
            say(fd, &(ack){ .what = CHANGED, .ids = { mine[0] } });
        }
        if (batch % 4 == 3) {
            say(fd, &(ack){ .what = FORGETTING, .ids = { mine[1], mine[2] } }); /* killed from here on, they may be there or not */
            if (is_bank_forget(b, &p, &mine[1], 2, NULL, NULL, NULL) != INFERSCALE_OK) leave(94);
            say(fd, &(ack){ .what = FORGOTTEN, .ids = { mine[1], mine[2] } });
        }
        memcpy(mine, a.ids, sizeof mine);
    }
}

/* What the last state of each acknowledged id must be. */
enum { IDS = 200000 };
static struct { unsigned char state; } known[IDS]; /* 0 unknown, ADDED, CHANGED, ... */

static void note(const ack *a, size_t *n)
{
    for (int i = 0; i < BATCH; i++) {
        if (!a->ids[i]) continue;
        assert_true(a->ids[i] > 0 && a->ids[i] < IDS);
        *n += known[a->ids[i]].state == 0;
        known[a->ids[i]].state = (unsigned char)a->what;
    }
}

/* Everything acknowledged is as it was said; what was not acknowledged is whole or not there. */
static void expect_acknowledged(const char *path, size_t at_least)
{
    inferscale_scope anna = { .user = "anna" };
    inferscale_list *l = NULL;
    static unsigned char there[IDS];
    size_t found = 0, run = 0;
    is_bank *b = NULL;
    is_partition p;
    bool ok = false;
    is_status st;

    OK(is_bank_open(path, false, &b));
    OK(is_bank_check(b, &ok));
    assert_true(ok);
    st = is_bank_partition(b, &anna, false, &p);
    if (st == INFERSCALE_E_NOTFOUND && at_least == 0) return is_bank_close(b);
    OK(st);
    OK(is_bank_list(b, &p, NULL, 0, 0, 0, &l));
    memset(there, 0, sizeof there);
    for (size_t i = 0; i < l->n; i++) {
        int64_t id = l->items[i].id;

        there[id] = (unsigned char)l->items[i].version;
        found += known[id].state != 0;
        if (known[id].state == 0) run++;
    }
    for (int64_t id = 1; id < IDS; id++) {
        if (known[id].state == ADDED && there[id] != 1 && there[id] != 2) fail_msg("fact %lld was acknowledged and is lost", (long long)id);
        if (known[id].state == CHANGED && there[id] != 2) fail_msg("the change of %lld was acknowledged and is lost", (long long)id);
        if (known[id].state == FORGOTTEN && there[id]) fail_msg("fact %lld was forgotten and is back", (long long)id);
    }
    assert_int_equal(run % BATCH, 0); /* a batch is whole or not there at all */
    inferscale_list_free(l);
    is_bank_close(b);
}

/* ---- kill -9 ------------------------------------------------------------------------------------------------------------- */

static void test_kill_at_random_instants(void **state)
{
    char *folder = scratch_make(), *path = strdup(scratch_path(folder, "bank.sqlite"));
    unsigned long long seed = scratch_seed("kill");
    double end = is_now_ms() + 8000;
    size_t acknowledged = 0;
    int rounds = 0;

    memset(known, 0, sizeof known);
    for (; rounds < 12 || (is_now_ms() < end && rounds < 200); rounds++) {
        int pipes[2], status;
        ack a;

        assert_int_equal(pipe(pipes), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(pipes[0]);
            writer(path, rounds, pipes[1]);
        }
        close(pipes[1]);
        usleep(scratch_below(&seed, rounds % 4 ? 60000 : 6000)); /* often still while it opens, and creates */
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it had not failed by itself */
        while (read(pipes[0], &a, sizeof a) == sizeof a) note(&a, &acknowledged);
        close(pipes[0]);
        expect_acknowledged(path, acknowledged);
    }
    print_message("kill: %d rounds, %zu facts acknowledged\n", rounds, acknowledged);
    assert_true(acknowledged > 20);
    free(path);
    scratch_remove(folder);
}

/* ---- Power loss ---------------------------------------------------------------------------------------------------------- */

/* A VFS that keeps, for each file, a copy as of its last sync beside it ("FILE.synced"): what a disk that drops everything else
 * would have. Only what the bank's files use is wrapped; all else goes to the real VFS. */
typedef struct shim {
    sqlite3_file base;
    sqlite3_file *real;
    char path[512];
} shim;

static sqlite3_vfs shim_vfs, *real_vfs;
static unsigned syncs;

#define REAL(f) (((shim *)(f))->real)
#define FORWARD(f, method, ...) REAL(f)->pMethods->method(REAL(f), ##__VA_ARGS__)

static int s_close(sqlite3_file *f) { return FORWARD(f, xClose); }
static int s_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at) { return FORWARD(f, xRead, p, n, at); }
static int s_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at) { return FORWARD(f, xWrite, p, n, at); }
static int s_truncate(sqlite3_file *f, sqlite3_int64 n) { return FORWARD(f, xTruncate, n); }
static int s_size(sqlite3_file *f, sqlite3_int64 *n) { return FORWARD(f, xFileSize, n); }
static int s_lock(sqlite3_file *f, int l) { return FORWARD(f, xLock, l); }
static int s_unlock(sqlite3_file *f, int l) { return FORWARD(f, xUnlock, l); }
static int s_reserved(sqlite3_file *f, int *out) { return FORWARD(f, xCheckReservedLock, out); }
static int s_control(sqlite3_file *f, int op, void *arg) { return FORWARD(f, xFileControl, op, arg); }
static int s_sector(sqlite3_file *f) { return FORWARD(f, xSectorSize); }
static int s_traits(sqlite3_file *f) { return FORWARD(f, xDeviceCharacteristics); }
static int s_map(sqlite3_file *f, int page, int n, int extend, void volatile **p) { return FORWARD(f, xShmMap, page, n, extend, p); }
static int s_shm_lock(sqlite3_file *f, int at, int n, int flags) { return FORWARD(f, xShmLock, at, n, flags); }
static void s_barrier(sqlite3_file *f) { FORWARD(f, xShmBarrier); }
static int s_unmap(sqlite3_file *f, int del) { return FORWARD(f, xShmUnmap, del); }

static int s_sync(sqlite3_file *f, int flags)
{
    shim *s = (shim *)f;
    char copy[520];
    sqlite3_int64 n = 0;
    uint8_t *data;
    FILE *out;

    syncs++;
    FORWARD(f, xFileSize, &n);
    data = malloc((size_t)n + 1);
    if (n) FORWARD(f, xRead, data, (int)n, 0);
    snprintf(copy, sizeof copy, "%s.synced", s->path);
    out = fopen(copy, "w");
    if (!out || fwrite(data, 1, (size_t)n, out) != (size_t)n) abort();
    fclose(out);
    free(data);
    return SQLITE_OK; /* the real sync is not needed: the machine stays on */
}

static const sqlite3_io_methods shim_methods = {
    2, s_close, s_read, s_write, s_truncate, s_sync, s_size, s_lock, s_unlock, s_reserved, s_control, s_sector, s_traits, s_map,
    s_shm_lock, s_barrier, s_unmap, NULL, NULL,
};

static int shim_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out_flags)
{
    shim *s = (shim *)f;
    int rc;

    s->real = (sqlite3_file *)(s + 1);
    snprintf(s->path, sizeof s->path, "%s", name ? name : "");
    rc = real_vfs->xOpen(real_vfs, name, s->real, flags, out_flags);
    s->base.pMethods = s->real->pMethods ? &shim_methods : NULL;
    return rc;
}

static void use_shim(void)
{
    real_vfs = sqlite3_vfs_find(NULL);
    shim_vfs = *real_vfs;
    shim_vfs.pNext = NULL;
    shim_vfs.zName = "synced-only";
    shim_vfs.szOsFile = (int)sizeof(shim) + real_vfs->szOsFile;
    shim_vfs.xOpen = shim_open;
    assert_int_equal(sqlite3_vfs_register(&shim_vfs, 1), SQLITE_OK);
}

static void copy_if_there(const char *from, const char *to)
{
    const is_fs *fs = is_fs_posix();
    uint8_t *data = NULL;
    size_t n = 0;

    if (fs->exists(fs, to)) OK(fs->unlink(fs, to));
    if (!fs->exists(fs, from)) return;
    OK(is_file_read_all(fs, from, 1 << 26, &data, &n));
    OK(is_file_write_atomic(fs, to, data, n));
    is_free(data);
}

/* The bank as the disk would have it after the power went now, looked at elsewhere. */
static void expect_after_power_loss(const char *path, const char *elsewhere, size_t acknowledged)
{
    char from[540], to[540];

    snprintf(from, sizeof from, "%s.synced", path);
    copy_if_there(from, elsewhere);
    snprintf(from, sizeof from, "%s-wal.synced", path);
    snprintf(to, sizeof to, "%s-wal", elsewhere);
    copy_if_there(from, to);
    snprintf(to, sizeof to, "%s-shm", elsewhere);
    copy_if_there("", to);
    sqlite3_vfs_unregister(&shim_vfs);
    expect_acknowledged(elsewhere, acknowledged);
    assert_int_equal(sqlite3_vfs_register(&shim_vfs, 1), SQLITE_OK);
}

static void test_power_loss_after_every_write(void **state)
{
    char *folder = scratch_make(), *path = strdup(scratch_path(folder, "bank.sqlite")), *elsewhere = strdup(scratch_path(folder, "image"));
    inferscale_scope anna = { .user = "anna" };
    size_t acknowledged = 0;
    is_bank *b = NULL;
    is_partition p;
    int8_t q = 1;

    memset(known, 0, sizeof known);
    use_shim();
    OK(is_bank_open(path, false, &b));
    OK(is_bank_partition(b, &anna, true, &p));
    for (int batch = 0; batch < 60; batch++) {
        unsigned before = syncs;
        inferscale_fact f[BATCH] = { { 0 } };
        inferscale_event e[BATCH];
        ack a = { .what = ADDED };
        char texts[BATCH][64];

        for (int i = 0; i < BATCH; i++) f[i].text = batch_text(0, batch, i, texts[i]);
        OK(is_bank_add_facts(b, &p, &anna, f, BATCH, e));
        assert_true(syncs > before);
        for (int i = 0; i < BATCH; i++) a.ids[i] = e[i].id;
        note(&a, &acknowledged);
        expect_after_power_loss(path, elsewhere, acknowledged);
        before = syncs;
        OK(is_bank_put_embedding(b, &p, kit_model, e[0].id, 1, &q, 1, 1.0f));
        assert_int_equal(syncs, before); /* a view's row may be lost: it does not wait */
        if (batch % 3 == 1) {
            OK(is_bank_update_fact(b, &p, e[0].id, &(inferscale_fact){ .text = "changed" }, NULL));
            note(&(ack){ .what = CHANGED, .ids = { e[0].id } }, &acknowledged);
            expect_after_power_loss(path, elsewhere, acknowledged);
        }
        if (batch % 5 == 3) {
            OK(is_bank_forget(b, &p, &e[1].id, 1, NULL, NULL, NULL));
            note(&(ack){ .what = FORGOTTEN, .ids = { e[1].id } }, &acknowledged);
            expect_after_power_loss(path, elsewhere, acknowledged);
        }
        if (batch % 20 == 19) {
            is_bank_close(b);
            expect_after_power_loss(path, elsewhere, acknowledged);
            OK(is_bank_open(path, false, &b));
        }
    }
    is_bank_close(b);
    sqlite3_vfs_unregister(&shim_vfs);
    sqlite3_vfs_register(real_vfs, 1);
    free(path);
    free(elsewhere);
    scratch_remove(folder);
}

/* ---- Many at once -------------------------------------------------------------------------------------------------------- */

/* Several processes open a bank that does not exist yet, at the same moment, and write. None is refused, nothing is lost. */
static void test_processes_create_and_write_one_bank(void **state)
{
    enum { ROUNDS = 6, PROCESSES = 3, WRITES = 12 };

    for (int round = 0; round < ROUNDS; round++) {
        char *folder = scratch_make(), *path = strdup(scratch_path(folder, "bank.sqlite")), go;
        int start[2], status;
        pid_t pids[PROCESSES];
        is_bank_counts counts;
        is_bank *b = NULL;
        bool ok = false;

        assert_int_equal(pipe(start), 0);
        for (int i = 0; i < PROCESSES; i++) {
            if ((pids[i] = fork()) != 0) continue;
            inferscale_scope own = { .user = i ? "shared" : "first" };
            is_partition p;
            char text[64];

            close(start[1]);
            if (read(start[0], &go, 1) != 0) _exit(90); /* all wake at the end of the pipe */
            if (is_bank_open(path, false, &b) != INFERSCALE_OK) leave(1);
            if (is_bank_partition(b, &own, true, &p) != INFERSCALE_OK) leave(2);
            for (int w = 0; w < WRITES; w++) {
                inferscale_fact f = { .text = text };
                inferscale_event e;

                snprintf(text, sizeof text, "process %d write %d", i, w);
                if (is_bank_add_facts(b, &p, &own, &f, 1, &e) != INFERSCALE_OK || e.event != INFERSCALE_EVENT_ADD) leave(3);
                if (is_bank_partition_refresh(b, &p) != INFERSCALE_OK) leave(4);
            }
            if (p.revision < WRITES) leave(5);
            is_bank_close(b);
            _exit(0);
        }
        close(start[0]);
        close(start[1]);
        for (int i = 0; i < PROCESSES; i++) {
            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 0);
        }
        OK(is_bank_open(path, true, &b));
        OK(is_bank_count(b, &counts));
        assert_int_equal(counts.partitions, 2);
        assert_int_equal(counts.facts, PROCESSES * WRITES);
        OK(is_bank_check(b, &ok));
        assert_true(ok);
        is_bank_close(b);
        free(path);
        scratch_remove(folder);
    }
}

typedef struct thread { bank_kit *k; int number; bool failed; } thread;
static void *thread_main(void *arg)
{
    thread *t = arg;
    char text[64];

    for (int i = 0; i < 25 && !t->failed; i++) {
        inferscale_fact f = { .text = text };
        inferscale_list *l = NULL;
        inferscale_event e;

        snprintf(text, sizeof text, "thread %d fact %d", t->number, i);
        t->failed = is_bank_add_facts(t->k->bank, &t->k->pa, &t->k->anna, &f, 1, &e) != INFERSCALE_OK ||
                    is_bank_get(t->k->bank, &t->k->pa, &e.id, 1, &l) != INFERSCALE_OK || l->n != 1 || strcmp(l->items[0].text, text) != 0;
        inferscale_list_free(l);
    }
    return NULL;
}

static void test_threads_share_a_handle(void **state)
{
    bank_kit *k = *state;
    thread threads[4];
    pthread_t ids[4];
    is_bank_counts counts;

    for (int i = 0; i < 4; i++) {
        threads[i] = (thread){ .k = k, .number = i };
        assert_int_equal(pthread_create(&ids[i], NULL, thread_main, &threads[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(ids[i], NULL);
        assert_false(threads[i].failed);
    }
    OK(is_bank_count(k->bank, &counts));
    assert_int_equal(counts.facts, 100);
}

/* A reader in another connection keeps its snapshot: writing goes on; only the log cannot be cut before the reader is done. */
static void test_readers_do_not_stop_writers(void **state)
{
    bank_kit *k = *state;
    sqlite3 *reader = NULL;
    sqlite3_stmt *s = NULL;
    int64_t fact = kit_fact(k, &k->pa, &k->anna, "needle before");

    assert_int_equal(sqlite3_open(k->path, &reader), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(reader, "SELECT id FROM items", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW); /* holds a snapshot from here on */
    kit_fact(k, &k->pa, &k->anna, "after");
    OK(is_bank_forget(k->bank, &k->pa, &fact, 1, NULL, NULL, NULL)); /* cannot cut the log now, but forgets */
    assert_int_equal(kit_version(k, &k->pa, fact), 0);
    sqlite3_finalize(s);
    sqlite3_close(reader);
    fact = kit_fact(k, &k->pa, &k->anna, "another");
    OK(is_bank_forget(k->bank, &k->pa, &fact, 1, NULL, NULL, NULL)); /* and the next one cuts it */
    assert_false(kit_on_disk(k, "needle"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_at_random_instants),
        cmocka_unit_test(test_power_loss_after_every_write),
        cmocka_unit_test(test_processes_create_and_write_one_bank),
        cmocka_unit_test_setup_teardown(test_threads_share_a_handle, bank_kit_setup, bank_kit_teardown),
        cmocka_unit_test_setup_teardown(test_readers_do_not_stop_writers, bank_kit_setup, bank_kit_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
