/* The vault: what was put is there after a restart or is absent, never wrong; forgetting leaves no bytes; budgets hold; threads
 * and processes may do all of it at once. */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kv/vault.h"
#include "support/fault_fs.h"
#include "support/kv_make.h"

#define OK(expr)                                                                                                               \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, is_error());                                                    \
    } while (0)

static is_geometry *geometry;
static char dir[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static int set_up(void **state)
{
    geometry = kv_geometry(2, 2, 8, IS_PAIR_HALVES, 0, 8, 1e4, 1);
    snprintf(dir, sizeof dir, "/tmp/inferscale-vault-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    is_geometry_free(geometry);
    return 0;
}

/* Segment i: its rows depend on i alone. Names differ in the first byte and in the last. */
static is_segment *segment(int i)
{
    uint64_t seed = (uint64_t)i + 1000;

    return kv_segment(geometry, IS_CODEC_F16, 6, (uint8_t)i, &seed);
}

static const uint8_t *name(int i)
{
    static _Thread_local uint8_t n[4][IS_HASH_BYTES];
    static _Thread_local int next;

    next = (next + 1) % 4;
    memset(n[next], i, IS_HASH_BYTES);
    return n[next];
}

static void check_is(const is_segment *s, int i)
{
    is_segment *want = segment(i);
    const is_segment_desc *a = is_segment_info(s), *b = is_segment_info(want);

    assert_memory_equal(a->name, b->name, IS_HASH_BYTES);
    for (uint32_t p = 0; p < geometry->n_planes; p++)
        assert_memory_equal(is_segment_head(s, p, 0), is_segment_head(want, p, 0), 2 * 6 * 8 * 2);
    is_segment_unref(want);
}

static void put(is_vault *v, int i)
{
    is_segment *s = segment(i);

    OK(is_vault_put(v, s));
    is_segment_unref(s);
}

static void get_is(is_vault *v, int i)
{
    is_segment *s;

    OK(is_vault_get(v, name(i), NULL, &s));
    check_is(s, i);
    is_segment_unref(s);
}

static void get_fails(is_vault *v, int i)
{
    is_segment *s;

    assert_int_equal(is_vault_get(v, name(i), NULL, &s), INFERSCALE_E_NOTFOUND);
    assert_null(s);
    assert_true(*is_error() != 0);
}

static is_vault *open_vault(uint64_t ram)
{
    is_vault *v;

    OK(is_vault_open(is_fs_posix(), dir, ram, false, &v));
    return v;
}

static void path_of(int i, const char *suffix, char out[256])
{
    char hex[65];

    is_hex(name(i), IS_HASH_BYTES, hex);
    snprintf(out, 256, "%s/%.2s/%s%s", dir, hex, hex, suffix);
}

/* Files anywhere under dir, whatever their names. */
static size_t n_found;
static int count_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    if (type == FTW_F) n_found++;
    return 0;
}

static size_t count_files(void)
{
    n_found = 0;
    nftw(dir, count_one, 8, FTW_PHYS);
    return n_found;
}

static void test_put_get_restart(void **state)
{
    is_vault *v = open_vault(1 << 20);
    is_vault_stats st;
    char path[256];
    struct stat s;

    for (int i = 0; i < 20; i++) put(v, i);
    for (int i = 0; i < 20; i++) get_is(v, i);
    is_vault_get_stats(v, &st);
    assert_int_equal(st.ram_hits, 20);
    assert_int_equal(st.file_reads, 0);
    is_vault_close(v);

    v = open_vault(1 << 20);
    for (int i = 0; i < 20; i++) assert_true(is_vault_has(v, name(i)));
    assert_false(is_vault_has(v, name(50)));
    for (int i = 0; i < 20; i++) get_is(v, i);
    for (int i = 0; i < 20; i++) get_is(v, i);
    get_fails(v, 50);
    OK(is_vault_scan(v, &st));
    assert_int_equal(st.file_reads, 20);
    assert_int_equal(st.ram_hits, 20);
    assert_int_equal(st.misses, 1);
    assert_int_equal(st.n_files, 20);
    path_of(3, ".seg", path);
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(st.file_bytes, 20 * s.st_size);
    *strrchr(path, '/') = 0;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0700);
    is_vault_drop_ram(v);
    OK(is_vault_drop_cache(v, name(3)));
    get_is(v, 3);
    put(v, 3); /* again: kept, fine */
    assert_int_equal(count_files(), 20);
    is_vault_close(v);
}

static void test_fingerprint_and_name_must_match(void **state)
{
    is_vault *v = open_vault(0);
    uint8_t other[IS_HASH_BYTES] = { 1 };
    char a[256], b[256];
    is_segment *s;
    is_vault_stats st;

    put(v, 1);
    assert_int_equal(is_vault_get(v, name(1), other, &s), INFERSCALE_E_NOTFOUND);
    assert_null(s);
    get_is(v, 1);                /* it is not spoilt by that */
    put(v, 2);
    path_of(1, ".seg", a);
    path_of(2, ".seg", b);
    assert_int_equal(rename(a, b), 0); /* somebody moved 1's file to 2's name */
    get_fails(v, 2);
    assert_false(is_vault_has(v, name(2)));
    is_vault_get_stats(v, &st);
    assert_int_equal(st.bad_files, 1);
    path_of(2, ".bad", b);
    assert_int_equal(access(b, F_OK), 0);
    put(v, 2);
    get_is(v, 2);
    is_vault_close(v);
}

static void test_damaged_files_are_absent(void **state)
{
    is_vault *v = open_vault(0);
    uint64_t seed = kv_seed();
    char path[256];
    is_vault_stats st;

    for (int i = 0; i < 30; i++) {
        struct stat s;
        int fd;
        uint8_t byte;
        off_t at;

        put(v, i);
        path_of(i, ".seg", path);
        assert_int_equal(stat(path, &s), 0);
        at = (off_t)kv_below(&seed, (uint32_t)s.st_size);
        fd = open(path, O_RDWR);
        if (i % 3 == 0) {
            assert_int_equal(ftruncate(fd, at), 0);
        } else {
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= (uint8_t)(1 << kv_below(&seed, 8));
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
        get_fails(v, i);
        get_fails(v, i); /* it is gone from the namespace, not found bad again and again */
        put(v, i);
        get_is(v, i);
    }
    is_vault_get_stats(v, &st);
    assert_int_equal(st.bad_files, 30);
    for (int i = 0; i < 30; i++) OK(is_vault_remove(v, name(i)));
    assert_int_equal(count_files(), 0); /* the bad ones too: they may hold a person's words */
    is_vault_close(v);
}

static void test_ram_budget(void **state)
{
    is_segment *one = segment(0), *held, *big;
    uint64_t each = is_segment_bytes(one), seed = 3;
    is_vault *v = open_vault(5 * each);
    is_geometry *wide = kv_geometry(2, 2, 512, IS_PAIR_HALVES, 0, 8, 1e4, 1);
    is_vault_stats st;

    is_segment_unref(one);
    for (int i = 0; i < 12; i++) {
        put(v, i);
        is_vault_get_stats(v, &st);
        assert_true(st.ram_bytes <= st.ram_budget);
        assert_int_equal(st.ram_bytes, (uint64_t)(i < 5 ? i + 1 : 5) * each);
    }
    assert_int_equal(st.evictions, 7);
    get_is(v, 7); /* the oldest is now the newest */
    put(v, 20);   /* so 8 goes */
    is_vault_get_stats(v, &st);
    get_is(v, 7);
    get_is(v, 8);
    {
        is_vault_stats now;

        is_vault_get_stats(v, &now);
        assert_int_equal(now.ram_hits, st.ram_hits + 1);
        assert_int_equal(now.file_reads, st.file_reads + 1);
    }
    OK(is_vault_get(v, name(8), NULL, &held));
    for (int i = 30; i < 40; i++) put(v, i); /* evicts what is held: it stays valid */
    check_is(held, 8);
    is_segment_unref(held);
    big = kv_segment(wide, IS_CODEC_F32, 6, 99, &seed); /* larger than the whole budget: served, not kept */
    OK(is_vault_put(v, big));
    is_vault_get_stats(v, &st);
    assert_true(st.ram_bytes <= st.ram_budget && st.ram_bytes > 0);
    is_segment_unref(big);
    for (int i = 100; i < 250; i++) put(v, i); /* the table grows under it */
    for (int i = 245; i < 250; i++) get_is(v, i);
    is_vault_drop_ram(v);
    is_vault_get_stats(v, &st);
    assert_int_equal(st.ram_bytes, 0);
    get_is(v, 249);
    is_vault_close(v);
    is_geometry_free(wide);
}

static void test_large_ram_tier(void **state)
{
    is_vault *v = open_vault(64 << 20);

    for (int i = 0; i < 256; i++) put(v, i);
    for (int i = 0; i < 256; i += 2) OK(is_vault_remove(v, name(i)));
    for (int i = 0; i < 256; i++) {
        if (i % 2) get_is(v, i);
        else get_fails(v, i);
    }
    is_vault_close(v);
}

static void test_remove_leaves_no_bytes(void **state)
{
    is_vault *v = open_vault(1 << 20);
    char path[256], other[256];
    struct stat s;
    uint8_t *bytes;
    int fd;

    put(v, 1);
    path_of(1, ".seg", path);
    snprintf(other, sizeof other, "%s.link", dir);
    assert_int_equal(link(path, other), 0); /* a second name shows what happens to the bytes */
    assert_int_equal(stat(other, &s), 0);
    fd = open(other, O_RDONLY);
    OK(is_vault_remove(v, name(1)));
    get_fails(v, 1);
    assert_false(is_vault_has(v, name(1)));
    assert_int_equal(count_files(), 0);
    bytes = is_malloc((size_t)s.st_size);
    assert_int_equal(pread(fd, bytes, (size_t)s.st_size, 0), s.st_size);
    for (off_t i = 0; i < s.st_size; i++)
        if (bytes[i]) fail_msg("byte %ld survived forgetting", (long)i);
    close(fd);
    unlink(other);
    is_free(bytes);
    OK(is_vault_remove(v, name(1))); /* absent is fine */
    put(v, 1);
    get_is(v, 1);
    is_vault_close(v);
}

static void write_file(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "secret", 6), 6);
    close(fd);
}

static void test_leftovers(void **state)
{
    char hex[65], dead_old[256], dead_new[256], mine[256], ancient[256], gone[256], stranger[256];
    long long now = is_now_epoch();
    pid_t dead = fork();
    is_vault *v = open_vault(0);

    if (!dead) _exit(0);
    waitpid(dead, NULL, 0);
    is_hex(name(5), IS_HASH_BYTES, hex);
    snprintf(dead_old, 256, "%s/tmp/%s.%ld.%lld.00000001.tmp", dir, hex, (long)dead, now - 100);
    snprintf(dead_new, 256, "%s/tmp/%s.%ld.%lld.00000002.tmp", dir, hex, (long)dead, now);
    snprintf(mine, 256, "%s/tmp/%s.%ld.%lld.00000003.tmp", dir, hex, (long)getpid(), now - 100);
    snprintf(ancient, 256, "%s/tmp/%s.%ld.%lld.00000004.tmp", dir, hex, (long)getpid(), now - 10000);
    snprintf(gone, 256, "%s/tmp/%s.%ld.%lld.00000005.gone", dir, hex, (long)getpid(), now);
    snprintf(stranger, 256, "%s/tmp/notes.txt", dir);
    /* who looks while it goes sees work under way, unless nobody is at it any more */
    for (int i = 0; i < 3; i++) {
        char at_work[256];

        snprintf(at_work, sizeof at_work, "%s.%ld.%lld.00000006.gone", hex, (long)(i == 1 ? dead : getpid()), i == 2 ? now - 100 : now);
        assert_int_equal(is_vault_at_work(at_work), i == 0);
        assert_true(is_vault_left_over(at_work));
    }
    write_file(dead_old), write_file(dead_new), write_file(mine), write_file(ancient), write_file(gone), write_file(stranger);
    is_vault_close(v);
    v = open_vault(0);
    assert_int_not_equal(access(dead_old, F_OK), 0);
    assert_int_not_equal(access(ancient, F_OK), 0);
    assert_int_not_equal(access(gone, F_OK), 0);
    assert_int_equal(access(dead_new, F_OK), 0);  /* may be a live process of another pid namespace */
    assert_int_equal(access(mine, F_OK), 0);
    assert_int_equal(access(stranger, F_OK), 0);  /* not ours to judge */
    OK(is_vault_remove(v, name(5)));              /* but forgetting a name takes every trace of it */
    assert_int_not_equal(access(dead_new, F_OK), 0);
    assert_int_not_equal(access(mine, F_OK), 0);
    assert_int_equal(access(stranger, F_OK), 0);
    is_vault_close(v);
}

static void test_read_only(void **state)
{
    is_vault *v = open_vault(0);
    is_segment *s = segment(2);
    char path[256];
    struct stat st;

    put(v, 1);
    put(v, 3);
    is_vault_close(v);
    path_of(3, ".seg", path);
    assert_int_equal(truncate(path, 100), 0);
    OK(is_vault_open(is_fs_posix(), dir, 1 << 20, true, &v));
    get_is(v, 1);
    get_fails(v, 3);
    assert_int_equal(stat(path, &st), 0); /* a reader moves nothing */
    assert_int_equal(is_vault_put(v, s), INFERSCALE_E_READONLY);
    assert_int_equal(is_vault_remove(v, name(1)), INFERSCALE_E_READONLY);
    get_is(v, 1);
    is_vault_close(v);
    is_segment_unref(s);
    assert_int_equal(is_vault_open(is_fs_posix(), "", 0, false, &v), INFERSCALE_E_INVALID);
    assert_null(v);
}

/* At every n-th operation, every sort of fault: put says OK only for what a clean vault then reads back whole, and whatever was
 * reported, a reader finds the right rows or nothing. Silent lies of the disk are found by reading. */
static void torture(enum fault_op op, enum fault_kind kind, bool sticky)
{
    for (unsigned n = 1;; n++) {
        fault_fs *ff = fault_fs_new(op, kind, n);
        is_segment *s = segment(7), *got = NULL;
        is_vault *v = NULL;
        is_status put_st = INFERSCALE_E_IO, remove_st;
        bool hit;

        if (sticky) fault_fs_sticky(ff);
        if (is_vault_open(fault_fs_fs(ff), dir, 0, false, &v) == INFERSCALE_OK) {
            put_st = is_vault_put(v, s);
            if (put_st != INFERSCALE_OK) assert_true(*is_error() != 0);
            if (is_vault_get(v, name(7), NULL, &got) == INFERSCALE_OK) check_is(got, 7);
            is_segment_unref(got);
        }
        is_vault_close(v);
        hit = fault_fs_hit(ff);
        assert_int_equal(fault_fs_open_files(ff), 0);
        fault_fs_free(ff);

        v = open_vault(0); /* a restart on a sound disk */
        if (is_vault_get(v, name(7), NULL, &got) == INFERSCALE_OK) check_is(got, 7);
        else
            assert_true(put_st != INFERSCALE_OK || kind == FAULT_GARBLE || kind == FAULT_TEAR_SILENT || op == FAULT_READ ||
                        op == FAULT_RENAME);
        is_segment_unref(got);
        OK(is_vault_put(v, s)); /* and it can be stored now */
        get_is(v, 7);
        is_vault_close(v);

        ff = fault_fs_new(op, kind, n); /* the same while forgetting */
        if (sticky) fault_fs_sticky(ff);
        remove_st = INFERSCALE_E_IO;
        if (is_vault_open(fault_fs_fs(ff), dir, 1 << 20, false, &v) == INFERSCALE_OK) {
            remove_st = is_vault_remove(v, name(7));
            if (remove_st == INFERSCALE_OK && kind < FAULT_TEAR_SILENT) assert_false(is_vault_has(v, name(7)));
        }
        is_vault_close(v);
        hit = hit || fault_fs_hit(ff);
        assert_int_equal(fault_fs_open_files(ff), 0);
        fault_fs_free(ff);
        v = open_vault(0);
        if (remove_st == INFERSCALE_OK && kind < FAULT_TEAR_SILENT) assert_int_equal(count_files(), 0);
        OK(is_vault_remove(v, name(7)));
        assert_int_equal(count_files(), 0);
        is_vault_close(v);
        is_segment_unref(s);
        if (!hit) break;
        assert_true(n < 200);
    }
}

static void test_faults(void **state)
{
    for (int op = 0; op < FAULT_OPS; op++)
        for (int kind = 0; kind <= FAULT_GARBLE; kind++) torture((enum fault_op)op, (enum fault_kind)kind, false);
    torture(FAULT_WRITE, FAULT_ENOSPC, true);
    torture(FAULT_SYNC, FAULT_EIO, true);
}

static void test_full_disk_says_so(void **state)
{
    fault_fs *ff = fault_fs_new(FAULT_WRITE, FAULT_ENOSPC, 1);
    is_segment *s = segment(1);
    is_vault *v;

    fault_fs_sticky(ff);
    OK(is_vault_open(fault_fs_fs(ff), dir, 1 << 20, false, &v));
    assert_int_equal(is_vault_put(v, s), INFERSCALE_E_FULL);
    get_fails(v, 1); /* not in RAM either: what was refused is not served */
    is_vault_close(v);
    fault_fs_free(ff);
    is_segment_unref(s);
    assert_int_equal(count_files(), 0);
}

/* kill -9 in the middle of puts and removes, many times: afterwards every name has its own rows or none. */
static void test_killed_processes(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 25; round++) {
        pid_t child = fork();
        is_vault *v;
        is_segment *s;

        if (!child) {
            if (is_vault_open(is_fs_posix(), dir, 1 << 16, false, &v) != INFERSCALE_OK) _exit(1);
            for (int i = 0;; i = (i + 1) % 8) {
                s = segment(i);
                if (is_vault_put(v, s) != INFERSCALE_OK) _exit(2);
                is_segment_unref(s);
                if (i % 3 == 0 && is_vault_remove(v, name((i + 4) % 8)) != INFERSCALE_OK) _exit(3);
            }
        }
        usleep(2000 + kv_below(&seed, 20000));
        kill(child, SIGKILL);
        {
            int status;

            assert_int_equal(waitpid(child, &status, 0), child);
            assert_true(WIFSIGNALED(status)); /* it did not give up by itself */
        }
        v = open_vault(0);
        for (int i = 0; i < 8; i++) {
            if (is_vault_get(v, name(i), NULL, &s) == INFERSCALE_OK) {
                check_is(s, i);
                is_segment_unref(s);
            }
        }
        {
            is_vault_stats st;

            is_vault_get_stats(v, &st);
            assert_int_equal(st.bad_files, 0); /* renamed whole, or not there */
        }
        is_vault_close(v);
    }
}

static void test_two_processes_put_the_same(void **state)
{
    pid_t children[2];

    for (int c = 0; c < 2; c++) {
        children[c] = fork();
        if (!children[c]) {
            is_vault *v;

            if (is_vault_open(is_fs_posix(), dir, 0, false, &v) != INFERSCALE_OK) _exit(1);
            for (int i = 0; i < 60; i++) {
                is_segment *s = segment(i), *got;

                if (is_vault_put(v, s) != INFERSCALE_OK) _exit(2);
                if (is_vault_get(v, name(i), NULL, &got) != INFERSCALE_OK) _exit(3);
                is_segment_unref(got);
                is_segment_unref(s);
            }
            is_vault_close(v);
            _exit(0);
        }
    }
    for (int c = 0; c < 2; c++) {
        int status;

        waitpid(children[c], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    {
        is_vault *v = open_vault(0);

        for (int i = 0; i < 60; i++) get_is(v, i);
        assert_int_equal(count_files(), 60);
        is_vault_close(v);
    }
}

/* ---- Threads (run under ThreadSanitizer too) ------------------------------------------------------------------------- */

enum { NAMES = 24, THREADS = 6, STEPS = 250 };

static is_vault *shared;
static atomic_int wrong;

static void *worker(void *arg)
{
    uint64_t seed = (uint64_t)(uintptr_t)arg * 7919 + 1;

    for (int step = 0; step < STEPS; step++) {
        int i = (int)kv_below(&seed, NAMES);
        is_segment *s = NULL;
        is_vault_stats st;
        is_status got;

        switch (kv_below(&seed, 8)) {
        case 0:
            s = segment(i);
            got = is_vault_put(shared, s); /* STALE: somebody forgot it meanwhile */
            if (got != INFERSCALE_OK && got != INFERSCALE_E_STALE) atomic_fetch_add(&wrong, 1);
            break;
        case 1:
            if (is_vault_remove(shared, name(i)) != INFERSCALE_OK) atomic_fetch_add(&wrong, 1);
            break;
        case 2:
            is_vault_get_stats(shared, &st);
            if (st.ram_bytes > st.ram_budget) atomic_fetch_add(&wrong, 1);
            break;
        case 3:
            if (kv_below(&seed, 20) == 0) is_vault_drop_ram(shared);
            (void)is_vault_has(shared, name(i));
            break;
        default:
            got = is_vault_get(shared, name(i), NULL, &s);
            if (got == INFERSCALE_OK ? memcmp(is_segment_info(s)->name, name(i), IS_HASH_BYTES) != 0
                                     : got != INFERSCALE_E_NOTFOUND)
                atomic_fetch_add(&wrong, 1);
        }
        is_segment_unref(s);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t t[THREADS];
    is_segment *one = segment(0);

    OK(is_vault_open(is_fs_posix(), dir, 9 * is_segment_bytes(one), false, &shared));
    is_segment_unref(one);
    atomic_store(&wrong, 0);
    for (uintptr_t i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&t[i], NULL, worker, (void *)i), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&wrong), 0);
    for (int i = 0; i < NAMES; i++) {
        is_segment *s;

        if (is_vault_get(shared, name(i), NULL, &s) == INFERSCALE_OK) {
            check_is(s, i);
            is_segment_unref(s);
        }
        OK(is_vault_remove(shared, name(i)));
        get_fails(shared, i); /* nothing comes back from the RAM tier */
    }
    assert_int_equal(count_files(), 0);
    is_vault_close(shared);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(test_put_get_restart),
        T(test_fingerprint_and_name_must_match),
        T(test_damaged_files_are_absent),
        T(test_ram_budget),
        T(test_large_ram_tier),
        T(test_remove_leaves_no_bytes),
        T(test_leftovers),
        T(test_read_only),
        T(test_faults),
        T(test_full_disk_says_so),
        T(test_killed_processes),
        T(test_two_processes_put_the_same),
        T(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
