/* A read that fails is an I/O error, never damage: SQLite's real unix VFS, with every read of a bank refused in turn by what the kernel
 * says, in every call that reads. The bank is sound all the time, so nobody may say that it is damaged, foreign or lost. Interrupted and
 * short reads are no failures at all. (test_faults does the same through a VFS of its own, with every public call.) */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "support/scratch.h"
#include "support/store_kit.h"

enum { SHORT = -1, READS_MAX = 400 };

static char *folder;
static char home[600];
static int serial;

/* ---- Reads that fail ------------------------------------------------------------------------------------------------------- */

static int refuse_errno;
static unsigned refuse_nth, n_reads, n_refused;
static bool refuse_rest;

static ssize_t bad_pread(int fd, void *p, size_t n, off_t at)
{
    n_reads++;
    if (refuse_nth == 0 || n_reads < refuse_nth || (n_reads > refuse_nth && !refuse_rest)) return pread(fd, p, n, at);
    n_refused++;
    if (refuse_errno == SHORT) return pread(fd, p, n > 7 ? 7 : n, at);
    errno = refuse_errno;
    return -1;
}

static const char *const names[] = { "pread", "pread64" };
static sqlite3_syscall_ptr kept[2];

static void take_over(bool on)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");

    for (int i = 0; i < 2; i++) {
        if (on) kept[i] = vfs->xGetSystemCall(vfs, names[i]);
        if (kept[i]) assert_int_equal(vfs->xSetSystemCall(vfs, names[i], on ? (sqlite3_syscall_ptr)bad_pread : kept[i]), SQLITE_OK);
    }
}

/* ---- What reads ------------------------------------------------------------------------------------------------------------ */

static inferscale_status ls(inferscale *is)
{
    inferscale_list *l = NULL;
    inferscale_status st = inferscale_ls(is, &store_anna, 0, 0, 0, &l);

    inferscale_list_free(l);
    return st;
}

static inferscale_status recall(inferscale *is)
{
    inferscale_list *l = NULL;
    inferscale_status st = inferscale_recall(is, &store_anna, "What of peanuts?", NULL, &l);

    inferscale_list_free(l);
    return st;
}

static inferscale_status remember(inferscale *is)
{
    char text[64];
    inferscale_fact f = { .text = text };

    snprintf(text, sizeof text, "Something new, number %d.", serial++);
    return inferscale_remember(is, &store_anna, &f, 1, NULL);
}

static inferscale_status forget(inferscale *is)
{
    int64_t id = 3 + serial++ % 40;

    return inferscale_forget(is, &store_anna, &id, 1, NULL);
}

static inferscale_status prove(inferscale *is)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    int64_t id = 3 + serial++ % 40;

    o.prove = 1;
    return inferscale_forget_with(is, &store_anna, &id, 1, &o, NULL);
}

static inferscale_status encode(inferscale *is)
{
    return inferscale_encode(is, &store_anna, NULL);
}

static inferscale_status usage(inferscale *is)
{
    inferscale_usage_report *r = NULL;
    inferscale_status st = inferscale_usage(is, NULL, &r);

    inferscale_usage_free(r);
    return st;
}

static inferscale_status gc(inferscale *is)
{
    return inferscale_gc(is, NULL);
}

static inferscale_status checked(inferscale *is)
{
    inferscale_store_info info;
    inferscale_status st = inferscale_store(is, 1, &info);

    if (st == INFERSCALE_OK && !info.sqlite_ok) fail_msg("a sound bank is called damaged");
    return st;
}

static inferscale_status fsck(inferscale *is)
{
    inferscale_fsck_report *r = NULL;
    inferscale_status st = inferscale_fsck(is, NULL, &r);

    if (st == INFERSCALE_OK && !r->ok) {
        store_print(r);
        fail_msg("fsck finds fault with a sound store");
    }
    inferscale_fsck_free(r);
    return st;
}

static inferscale_status back_up(inferscale *is)
{
    char to[700], command[800];
    inferscale_status st;

    snprintf(to, sizeof to, "%s/backup", folder);
    st = inferscale_backup(is, to, NULL);
    take_over(false);
    snprintf(command, sizeof command, "rm -rf '%s'", to);
    assert_int_equal(system(command), 0);
    take_over(true);
    return st;
}

static const struct {
    const char *name;
    inferscale_status (*call)(inferscale *is);
} calls[] = {
    { "ls", ls },         { "recall", recall }, { "remember", remember }, { "forget", forget },   { "prove", prove },
    { "encode", encode }, { "usage", usage },   { "gc", gc },             { "check", checked },   { "fsck", fsck },
    { "backup", back_up },
};

static inferscale_status open_and(inferscale_status (*call)(inferscale *is), bool read_only)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;
    inferscale_status st;

    o.read_only = read_only;
    st = inferscale_open(&is, &o);
    if (st == INFERSCALE_OK) st = call(is);
    inferscale_close(is);
    return st;
}

/* ---- Trying ---------------------------------------------------------------------------------------------------------------- */

static void expect_told_right(const char *call, inferscale_status st)
{
    const bool no_failure = refuse_errno == EINTR || refuse_errno == SHORT;
    const bool wrong = st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN || st == INFERSCALE_E_INTERNAL || st == INFERSCALE_E_TRACE;

    if (wrong || (st != INFERSCALE_OK && (no_failure || strstr(inferscale_error(), "damaged"))))
        fail_msg("%s, read %u%s fails with %s: %s, %s", call, refuse_nth, refuse_rest ? " and all after it" : "",
                 refuse_errno == SHORT ? "7 bytes" : strerror(refuse_errno), inferscale_status_name(st), inferscale_error());
}

static unsigned try_call(size_t i, int errnum, bool rest, unsigned step)
{
    unsigned tries = 0;

    for (unsigned nth = 1; nth < READS_MAX; nth += step, tries++) {
        inferscale_status st;

        refuse_errno = errnum;
        refuse_rest = rest;
        n_reads = n_refused = 0;
        refuse_nth = nth;
        st = open_and(calls[i].call, false);
        refuse_nth = 0;
        expect_told_right(calls[i].name, st);
        if (!n_refused) break;
    }
    return tries;
}

static void a_failed_read_is_never_damage(void **state)
{
    static const int errnos[] = { EIO, ENXIO, ERANGE, ENOSPC, ENODEV, ESTALE };
    unsigned tries = 0;

    (void)state;
    take_over(true);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        tries += try_call(i, EIO, false, 1);
        for (size_t e = 1; e < sizeof errnos / sizeof *errnos; e++) tries += try_call(i, errnos[e], false, 23);
        tries += try_call(i, EIO, true, 11);
    }
    take_over(false);
    print_message("%u failed reads\n", tries);
    assert_true(tries > 250);
    store_expect_sound(home);
}

static void an_interrupted_or_short_read_is_no_failure(void **state)
{
    (void)state;
    take_over(true);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        (void)try_call(i, EINTR, false, 17);
        (void)try_call(i, SHORT, false, 17);
    }
    take_over(false);
    store_expect_sound(home);
}

/* What is damaged is still said to be. */
static void damage_is_still_told(void **state)
{
    char path[700];
    size_t n = 0;
    char *bytes;
    inferscale_status st;

    (void)state;
    snprintf(path, sizeof path, "%s/bank.sqlite", home);
    bytes = store_read(path, &n);
    for (size_t page = 3; page * 4096 < n; page++) memset(bytes + page * 4096, 0x5a, 64);
    store_write(path, bytes, n);
    free(bytes);
    st = open_and(ls, true);
    assert_int_equal(st, INFERSCALE_E_CORRUPT);
}

static int make_store(void **state)
{
    inferscale *is;

    (void)state;
    folder = scratch_make();
    snprintf(home, sizeof home, "%s", scratch_path(folder, "home"));
    is = store_open(home, NULL, NULL, false);
    store_fill(is, 12, true);
    inferscale_close(is);
    return 0;
}

static int remove_store(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_read_is_never_damage),
        cmocka_unit_test(an_interrupted_or_short_read_is_no_failure),
        cmocka_unit_test(damage_is_still_told),
    };

    return cmocka_run_group_tests(tests, make_store, remove_store);
}
