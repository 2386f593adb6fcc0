/* Files of the base room: what every store relies on, looked at through a second name, and under faults. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "support/fault_fs.h"
#include "support/scratch.h"

static char *folder;

static int setup(void **state)
{
    folder = scratch_make();
    return 0;
}

static int teardown(void **state)
{
    scratch_remove(folder);
    folder = NULL;
    return 0;
}

static unsigned mode_of(const char *path)
{
    struct stat s;

    assert_int_equal(stat(path, &s), 0);
    return s.st_mode & 07777;
}

/* The descriptor that has this file open, by asking the system. */
static int descriptor_of(const char *path)
{
    struct stat want, s;

    assert_int_equal(stat(path, &want), 0);
    for (int fd = 3; fd < 256; fd++)
        if (fstat(fd, &s) == 0 && s.st_ino == want.st_ino && s.st_dev == want.st_dev) return fd;
    return -1;
}

static void test_file_basics(void **state)
{
    const is_fs *fs = is_fs_posix();
    const char *path = scratch_path(folder, "f");
    uint64_t size = 0;
    is_file *f = NULL, *g = NULL;
    char data[16];

    umask(0); /* the mode must not come from here */
    OK(fs->open(fs, path, IS_OPEN_CREATE_NEW, &f));
    assert_int_equal(mode_of(path), 0600);
    assert_true(fcntl(descriptor_of(path), F_GETFD) & FD_CLOEXEC);
    OK(fs->pwrite(fs, f, "0123456789", 10, 5));
    OK(fs->size(fs, f, &size));
    assert_int_equal(size, 15);
    OK(fs->pread(fs, f, data, 10, 5));
    assert_memory_equal(data, "0123456789", 10);
    FAILS(E_CORRUPT, fs->pread(fs, f, data, 10, 6));
    OK(fs->sync(fs, f));
    OK(fs->drop_cache(fs, f));
    FAILS(E_IO, fs->open(fs, path, IS_OPEN_CREATE_NEW, &g));
    assert_null(g);
    fs->close(fs, f);
    FAILS(E_NOTFOUND, fs->open(fs, scratch_path(folder, "none"), IS_OPEN_READ, &f));
    FAILS(E_NOTFOUND, fs->unlink(fs, scratch_path(folder, "none")));
    FAILS(E_INVALID, fs->open(fs, path, 17, &f));
    assert_true(fs->exists(fs, path));
    OK(fs->rename(fs, path, scratch_path(folder, "g")));
    assert_false(fs->exists(fs, path));
    OK(fs->open(fs, folder, IS_OPEN_READ, &f));
    FAILS(E_INVALID, fs->size(fs, f, &size)); /* a folder is no file */
    fs->close(fs, f);
    fs->close(fs, NULL);
}

struct seen { int n, dirs; const char *stop_at; };
static is_status each_entry(void *ctx, const char *name, bool is_dir)
{
    struct seen *s = ctx;

    s->n++;
    s->dirs += is_dir;
    assert_true(strcmp(name, ".") && strcmp(name, ".."));
    return s->stop_at ? is_fail(INFERSCALE_E_CANCELLED, "enough") : INFERSCALE_OK;
}

static void test_folders(void **state)
{
    const is_fs *fs = is_fs_posix();
    struct seen seen = { 0 }, stopped = { .stop_at = "a" };

    umask(0);
    OK(fs->mkdirs(fs, scratch_path(folder, "a/b//c/")));
    OK(fs->mkdirs(fs, scratch_path(folder, "a/b/c")));
    assert_int_equal(mode_of(scratch_path(folder, "a/b/c")), 0700);
    assert_int_equal(mode_of(scratch_path(folder, "a")), 0700);
    OK(is_file_write_atomic(fs, scratch_path(folder, "a/file"), "x", 1));
    FAILS(E_IO, fs->mkdirs(fs, scratch_path(folder, "a/file/d")));
    FAILS(E_IO, fs->mkdirs(fs, scratch_path(folder, "a/file")));
    OK(fs->sync_dir(fs, folder));
    OK(fs->list(fs, scratch_path(folder, "a"), each_entry, &seen));
    assert_int_equal(seen.n, 2);
    assert_int_equal(seen.dirs, 1);
    FAILS(E_CANCELLED, fs->list(fs, scratch_path(folder, "a"), each_entry, &stopped));
    assert_int_equal(stopped.n, 1);
    FAILS(E_NOTFOUND, fs->list(fs, scratch_path(folder, "none"), each_entry, &seen));
}

static void expect_content(const char *path, const char *want)
{
    uint8_t *data = NULL;
    size_t n = 0;

    OK(is_file_read_all(is_fs_posix(), path, 1 << 20, &data, &n));
    assert_int_equal(n, strlen(want));
    assert_string_equal((char *)data, want);
    is_free(data);
}

static void test_read_all_is_bounded(void **state)
{
    const char *path = scratch_path(folder, "f");
    uint8_t *data = NULL;
    size_t n = 0;

    OK(is_file_write_atomic(is_fs_posix(), path, "hello", 5));
    assert_int_equal(mode_of(path), 0600);
    expect_content(path, "hello");
    FAILS(E_INVALID, is_file_read_all(is_fs_posix(), path, 4, &data, &n));
    assert_null(data);
    OK(is_file_write_atomic(is_fs_posix(), path, "", 0));
    expect_content(path, "");
    is_mem_fail_at(2);
    FAILS(E_NOMEM, is_file_read_all(is_fs_posix(), path, 4, &data, &n));
    is_mem_fail_at(0);
}

/* Whatever fails, the file holds the old bytes or the new ones, and nothing else is left beside it. */
static void test_atomic_write_under_faults(void **state)
{
    static const enum fault_op ops[] = { FAULT_OPEN, FAULT_WRITE, FAULT_SYNC, FAULT_RENAME };
    static const enum fault_kind kinds[] = { FAULT_ENOSPC, FAULT_EIO, FAULT_TEAR };
    const char *path = scratch_path(folder, "f");
    unsigned hits = 0;

    for (size_t o = 0; o < 4; o++) {
        for (size_t k = 0; k < 3; k++) {
            for (unsigned n = 1;; n++) {
                fault_fs *ff = fault_fs_new(ops[o], kinds[k], n);
                struct seen seen = { 0 };
                is_status st;
                bool hit;

                OK(is_file_write_atomic(is_fs_posix(), path, "old", 3));
                st = is_file_write_atomic(fault_fs_fs(ff), path, "brand new", 9);
                hit = fault_fs_hit(ff);
                assert_int_equal(fault_fs_open_files(ff), 0);
                assert_int_equal(st, !hit ? INFERSCALE_OK : kinds[k] == FAULT_ENOSPC ? INFERSCALE_E_FULL : INFERSCALE_E_IO);
                if (hit) assert_non_null(strstr(is_error(), "injected")); /* not the clean-up's sentence */
                expect_content(path, !hit || (ops[o] == FAULT_SYNC && n == 2) ? "brand new" : "old");
                OK(is_fs_posix()->list(is_fs_posix(), folder, each_entry, &seen));
                assert_int_equal(seen.n, 1);
                fault_fs_free(ff);
                hits += hit;
                if (!hit) break;
            }
        }
    }
    assert_int_equal(hits, 3 * (1 + 1 + 2 + 1));
}

static void test_shred_leaves_no_bytes(void **state)
{
    const is_fs *fs = is_fs_posix();
    const char *path = scratch_path(folder, "secret"), *other = scratch_path(folder, "second-name");
    size_t n = 200001, got = 0;
    uint8_t *data = malloc(n), *left = NULL;
    is_file *f = NULL;

    memset(data, 's', n);
    OK(fs->open(fs, path, IS_OPEN_CREATE_NEW, &f));
    OK(fs->pwrite(fs, f, data, n, 0));
    fs->close(fs, f);
    assert_int_equal(link(path, other), 0); /* keeps the bytes in sight */
    OK(is_file_shred(fs, path));
    assert_false(fs->exists(fs, path));
    OK(is_file_read_all(fs, other, n, &left, &got));
    assert_int_equal(got, n);
    memset(data, 0, n);
    assert_memory_equal(left, data, n);
    is_free(left);
    free(data);
    OK(is_file_shred(fs, path)); /* missing is fine */
}

/* What lies in a file's place must not keep us waiting (a named pipe), nor have us write elsewhere (a link). */
static void test_what_is_no_file(void **state)
{
    const is_fs *fs = is_fs_posix();
    const char *queue = scratch_path(folder, "pipe"), *name = scratch_path(folder, "link"), *far = scratch_path(folder, "far");
    uint8_t *data = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(mkfifo(queue, 0600), 0);
    assert_int_not_equal(is_file_read_all(fs, queue, 100, &data, &n), INFERSCALE_OK);
    assert_int_not_equal(is_file_shred(fs, queue), INFERSCALE_OK);
    assert_false(fs->exists(fs, queue));
    OK(is_file_write_atomic(fs, far, "someone's words", 15));
    assert_int_equal(symlink(far, name), 0);
    assert_int_not_equal(is_file_shred(fs, name), INFERSCALE_OK);
    assert_false(fs->exists(fs, name));
    expect_content(far, "someone's words");
    assert_int_not_equal(is_file_read_all(fs, "/dev/null", 100, &data, &n), INFERSCALE_OK);
}

/* A file that cannot be overwritten leaves the namespace all the same, and the caller hears of it. */
static void test_shred_under_faults(void **state)
{
    static const enum fault_op ops[] = { FAULT_OPEN, FAULT_WRITE, FAULT_SYNC };
    const char *path = scratch_path(folder, "secret");

    for (size_t o = 0; o < 3; o++) {
        fault_fs *ff = fault_fs_new(ops[o], FAULT_EIO, 1);

        OK(is_file_write_atomic(is_fs_posix(), path, "secret", 6));
        FAILS(E_IO, is_file_shred(fault_fs_fs(ff), path));
        assert_non_null(strstr(is_error(), "injected"));
        assert_false(is_fs_posix()->exists(is_fs_posix(), path));
        assert_int_equal(fault_fs_open_files(ff), 0);
        fault_fs_free(ff);
    }
}

static void test_fault_fs_tears_and_garbles(void **state)
{
    static const struct { enum fault_kind kind; const char *want; is_status st; } cases[] = {
        { FAULT_TEAR, "0123", INFERSCALE_E_IO }, { FAULT_TEAR_SILENT, "0123", INFERSCALE_OK }, { FAULT_GARBLE, "0123t567", INFERSCALE_OK },
    };

    for (size_t i = 0; i < 3; i++) {
        fault_fs *ff = fault_fs_new(FAULT_WRITE, cases[i].kind, 1);
        const is_fs *fs = fault_fs_fs(ff);
        const char *path = scratch_path(folder, "f");
        is_file *f = NULL;

        OK(fs->open(fs, path, IS_OPEN_CREATE_NEW, &f));
        assert_int_equal(fs->pwrite(fs, f, "01234567", 8, 0), cases[i].st);
        fs->close(fs, f);
        expect_content(path, cases[i].want);
        OK(is_file_shred(is_fs_posix(), path));
        fault_fs_free(ff);
    }
}

static void test_paths(void **state)
{
    static const struct { const char *a, *b, *want; } cases[] = { { "a", "b", "a/b" }, { "a/", "b", "a/b" }, { "", "b", "b" }, { "/", "b", "/b" } };

    for (size_t i = 0; i < 4; i++) {
        char *p = is_path_join(cases[i].a, cases[i].b);

        assert_string_equal(p, cases[i].want);
        is_free(p);
    }
    is_mem_fail_at(1);
    assert_null(is_path_join("a", "b"));
}

#define FILE_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FILE_TEST(test_file_basics),
        FILE_TEST(test_folders),
        FILE_TEST(test_read_all_is_bounded),
        FILE_TEST(test_atomic_write_under_faults),
        FILE_TEST(test_shred_leaves_no_bytes),
        FILE_TEST(test_shred_under_faults),
        FILE_TEST(test_what_is_no_file),
        FILE_TEST(test_fault_fs_tears_and_garbles),
        cmocka_unit_test(test_paths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
