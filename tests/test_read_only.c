/* A read-only filesystem for real: what is on it is listed, found, answered from, checked and backed up elsewhere, whether or not the
 * bank's log has writes in it that were not copied into the database; writing is refused with the cause. Needs the right to mount. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/program.h"
#include "support/scratch.h"
#include "support/store_kit.h"

static char *folder;
static char disk[600], home[700], elsewhere[700];
static char *memory; /* what is remembered there */
static int64_t fact;

enum log_state { LOG_CUT, LOG_AND_INDEX, LOG_ALONE }; /* as a kill leaves it, with and without the file of its index */

static bool mount_disk(void)
{
    return geteuid() == 0 && mount("tmpfs", disk, "tmpfs", 0, "size=16m") == 0;
}

/* A store on the disk, which is read-only from then on. */
static bool make_disk(enum log_state log)
{
    char made[700], path[2000];
    inferscale *is;

    snprintf(made, sizeof made, "%s/made", folder);
    snprintf(path, sizeof path, "rm -rf '%s' '%s'", made, elsewhere);
    assert_int_equal(system(path), 0);
    assert_int_equal(mkdir(disk, 0700), 0);
    if (!mount_disk()) return false;
    is = store_open(made, NULL, NULL, false);
    store_fill(is, 6, true);
    fact = store_fact(is, &store_anna, "The last thing said.");
    free(memory);
    memory = store_dump(is);
    if (log != LOG_CUT) store_copy(made, home); /* now, as a kill would leave it */
    inferscale_close(is);
    if (log == LOG_CUT) store_copy(made, home);
    snprintf(path, sizeof path, "%s/bank.sqlite-shm", home);
    if (log == LOG_ALONE) assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/bank.sqlite-wal", home);
    assert_int_equal(access(path, F_OK) == 0, log != LOG_CUT);
    assert_int_equal(mount(NULL, disk, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    return true;
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    snprintf(disk, sizeof disk, "%s", scratch_path(folder, "disk"));
    snprintf(home, sizeof home, "%s/store", disk);
    snprintf(elsewhere, sizeof elsewhere, "%s", scratch_path(folder, "elsewhere"));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    umount2(disk, MNT_DETACH);
    scratch_remove(folder);
    free(memory);
    memory = NULL;
    return 0;
}

static void expect_read(inferscale *is)
{
    inferscale_fsck_report *r = NULL;
    inferscale_list *l = NULL;
    inferscale_answer *a;
    char *now = store_dump(is);

    assert_string_equal(now, memory);
    free(now);
    OK(inferscale_recall(is, &store_anna, "What was the last thing said?", NULL, &l));
    assert_true(l->n > 0);
    inferscale_list_free(l);
    a = store_ask(is);
    assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
    OK(inferscale_fsck(is, NULL, &r));
    if (!r->ok) store_print(r);
    assert_true(r->ok);
    inferscale_fsck_free(r);
    OK(inferscale_backup(is, elsewhere, NULL));
}

static void expect_no_writing(inferscale *is)
{
    inferscale_fact f = { .text = "Not to be kept." };

    FAILS(E_READONLY, inferscale_remember(is, &store_anna, &f, 1, NULL));
    assert_non_null(strstr(inferscale_error(), "read-only filesystem"));
    FAILS(E_READONLY, inferscale_forget(is, &store_anna, &fact, 1, NULL));
    assert_non_null(strstr(inferscale_error(), "read-only filesystem"));
    FAILS(E_READONLY, inferscale_encode(is, &store_anna, NULL));
    FAILS(E_READONLY, inferscale_gc(is, NULL));
}

static void it_is_read_and_copied(enum log_state log)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL, *second = NULL;
    char restored[700];

    if (!make_disk(log)) skip(); /* reported as skipped: mounting is not allowed here */
    o.background = 1;
    OK(inferscale_open(&is, &o));
    assert_non_null(strstr(inferscale_notice(is), "read-only filesystem"));
    expect_read(is);
    expect_no_writing(is);
    o.background = 0;
    o.read_only = 1;
    OK(inferscale_open(&second, &o)); /* beside it */
    assert_string_equal(inferscale_notice(second), "");
    inferscale_close(second);
    inferscale_close(is);
    snprintf(restored, sizeof restored, "%s/restored", folder);
    OK(inferscale_restore(elsewhere, restored, NULL));
    is = store_open(restored, NULL, NULL, false);
    char *now = store_dump(is);
    assert_string_equal(now, memory);
    free(now);
    inferscale_close(is);
}

static void a_store_at_rest(void **state)
{
    (void)state;
    it_is_read_and_copied(LOG_CUT);
}

static void a_store_with_writes_in_its_log(void **state)
{
    (void)state;
    it_is_read_and_copied(LOG_AND_INDEX);
}

static void a_store_with_writes_in_its_log_alone(void **state)
{
    (void)state;
    it_is_read_and_copied(LOG_ALONE);
}

static void the_program(void **state)
{
    static const char *const reads[] = { "ls", "show 1", "recall peanuts", "ask peanuts --max-tokens 2", "du", "fsck", "export",
                                         "gc --dry-run", "history 1" };

    (void)state;
    program_fresh(NULL);
    if (!make_disk(LOG_ALONE)) skip();
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        const bool scoped = strcmp(reads[i], "fsck") != 0 && strncmp(reads[i], "gc", 2) != 0;

        sh("\"$IS\" %s --engine mock --home '%s'%s", reads[i], home, scoped ? " --user anna" : "");
        if (last.code) fail_msg("%s: exit code %d\n%s\n%s", reads[i], last.code, last.out, last.err);
    }
    sh("\"$IS\" backup '%s' --engine mock --home '%s'", elsewhere, home);
    expect_code(0);
    expect_in(last.err, "read-only filesystem");
    sh("\"$IS\" remember x --user anna --engine mock --home '%s'", home);
    expect_code(1);
    expect_in(last.err, "read-only filesystem");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_store_at_rest, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_store_with_writes_in_its_log, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_store_with_writes_in_its_log_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_program, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
