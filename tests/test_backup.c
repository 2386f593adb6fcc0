/* What must hold of backup and restore: the copy is the store of one instant, byte for byte in what it remembers, whoever writes
 * meanwhile; half a copy is never taken for a whole one, wherever it was killed or refused; what is damaged is told, and never restored as
 * if it were sound; nothing is ever overwritten. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/fault_fs.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { FACTS = 12 };

static char *folder;
static char home[600], copy[600], again[600];

static int set_up(void **state)
{
    inferscale *is;

    folder = scratch_make();
    snprintf(home, sizeof home, "%s/home", folder);
    snprintf(copy, sizeof copy, "%s/copy", folder);
    snprintf(again, sizeof again, "%s/again", folder);
    is = store_open(home, NULL, NULL, false);
    store_fill(is, FACTS, true);
    inferscale_close(is);
    return 0;
}

static int tear_down(void **state)
{
    scratch_remove(folder);
    return 0;
}

static void clear(const char *path)
{
    if (access(path, F_OK) == 0) scratch_remove(strdup(path));
}

static inferscale_backup_options backup(const char *to, bool no_vault, bool link)
{
    inferscale_backup_options o = INFERSCALE_BACKUP_OPTIONS_INIT;
    inferscale *is = store_open(home, NULL, NULL, false);

    o.no_vault = no_vault;
    o.link = link;
    OK(inferscale_backup(is, to, &o));
    inferscale_close(is);
    return o;
}

static inferscale_status verify(const char *dir, inferscale_restore_options *o)
{
    *o = (inferscale_restore_options)INFERSCALE_RESTORE_OPTIONS_INIT;
    o->verify_only = 1;
    return inferscale_restore(dir, NULL, o);
}

static char *dump_of(const char *path)
{
    inferscale *is = store_open(path, NULL, NULL, true);
    char *text = store_dump(is);

    inferscale_close(is);
    return text;
}

static void expect_same_memory(const char *a, const char *b)
{
    char *x = dump_of(a), *y = dump_of(b);

    assert_string_equal(x, y);
    free(x);
    free(y);
    x = store_truth(a);
    y = store_truth(b);
    assert_string_equal(x, y); /* ids, versions, keys, times: every row */
    free(x);
    free(y);
}

static void expect_answer(const char *path, bool injected)
{
    inferscale *is = store_open(path, NULL, NULL, false);
    inferscale_answer *a = store_ask(is);

    assert_int_equal(a->tokens_injected > 0, injected);
    if (injected) assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* ---- Round trip -------------------------------------------------------------------------------------------------------------- */

static void a_round_trip_gives_the_same_store(void **state)
{
    inferscale_backup_options b = backup(copy, false, false);
    inferscale_restore_options r;
    struct stat s;
    size_t n;
    char **files = store_files(home, ".seg", &n);

    assert_int_equal(b.vault_files, n);
    assert_int_equal(b.missing_files, 0);
    assert_int_equal(b.linked_files, 0);
    store_files_free(files, n);
    assert_int_equal(access(scratch_path(copy, "backup.part"), F_OK), -1);
    assert_int_equal(stat(scratch_path(copy, "bank.sqlite"), &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(s.st_size, b.bank_bytes);
    assert_int_equal(access(scratch_path(copy, "bank.sqlite-wal"), F_OK), -1); /* one file */
    OK(verify(copy, &r));
    assert_int_equal(r.vault_files, b.vault_files);
    assert_int_equal(r.vault_bytes, b.vault_bytes);
    assert_int_equal(r.bad_files, 0);
    assert_true(r.created > 0);
    r.verify_only = 0;
    OK(inferscale_restore(copy, again, &r));
    assert_int_equal(r.bad_files, 0);
    expect_same_memory(home, again);
    store_expect_sound(again);
    expect_answer(again, true);
    /* the copy itself can be looked into, like any store on a read-only medium */
    expect_same_memory(home, copy);
}

static void without_kv_it_is_computed_again(void **state)
{
    inferscale_backup_options b = backup(copy, true, false);
    inferscale *is;

    assert_int_equal(b.vault_files + b.vault_bytes, 0);
    OK(inferscale_restore(copy, again, NULL));
    expect_same_memory(home, again);
    store_expect_sound(again);
    expect_answer(again, false);
    is = store_open(again, NULL, NULL, false);
    store_encode(is);
    inferscale_close(is);
    expect_answer(again, true);
    store_expect_sound(again);
}

/* A linked file is the store's own: forgetting overwrites it there too, and a restore leaves it out. */
static void linked_files_are_forgotten_with_the_store(void **state)
{
    inferscale_backup_options b = backup(copy, false, true);
    inferscale_restore_options r;
    inferscale *is;
    int64_t id = store_sql_int(home, "SELECT min(item_id) FROM segments");

    assert_int_equal(b.linked_files, b.vault_files);
    OK(verify(copy, &r));
    assert_int_equal(r.bad_files, 0);
    is = store_open(home, NULL, NULL, false);
    OK(inferscale_forget(is, &store_anna, &id, 1, NULL));
    inferscale_close(is);
    OK(verify(copy, &r));
    assert_true(r.bad_files > 0);
    r.verify_only = 0;
    OK(inferscale_restore(copy, again, &r));
    store_expect_sound(again);
    is = store_open(again, NULL, NULL, false); /* the text of what was forgotten later is in the backup: said in help and docs */
    inferscale_list *l = NULL;
    OK(inferscale_show(is, &store_anna, id, &l));
    inferscale_list_free(l);
    store_encode(is);
    inferscale_close(is);
    expect_answer(again, true);
}

static void nothing_is_overwritten(void **state)
{
    inferscale_backup_options b = INFERSCALE_BACKUP_OPTIONS_INIT;
    inferscale *is = store_open(home, NULL, NULL, false);
    char *before = store_dump(is), *after;

    OK(inferscale_backup(is, copy, NULL));
    FAILS(E_INVALID, inferscale_backup(is, copy, &b));
    FAILS(E_INVALID, inferscale_backup(is, home, &b));
    FAILS(E_INVALID, inferscale_backup(is, "", &b));
    FAILS(E_INVALID, inferscale_backup(is, NULL, &b));
    FAILS(E_INVALID, inferscale_backup(is, again, &(inferscale_backup_options){ 0 }));
    FAILS(E_INVALID, inferscale_restore(copy, home, NULL));
    FAILS(E_INVALID, inferscale_restore(copy, copy, NULL));
    FAILS(E_INVALID, inferscale_restore("", again, NULL));
    FAILS(E_INVALID, inferscale_restore(copy, again, &(inferscale_restore_options){ 0 }));
    FAILS(E_NOTFOUND, inferscale_restore(scratch_path(folder, "nowhere"), again, NULL));
    FAILS(E_NOTFOUND, inferscale_restore(home, again, NULL)); /* a store is no backup */
    mkdir(again, 0700);
    store_write(scratch_path(again, "diary.txt"), "mine", 4);
    FAILS(E_INVALID, inferscale_backup(is, again, &b));
    FAILS(E_INVALID, inferscale_restore(copy, again, NULL));
    after = store_dump(is);
    assert_string_equal(before, after);
    free(before);
    free(after);
    inferscale_close(is);
    store_expect_sound(home);
}

/* ---- Damage ---------------------------------------------------------------------------------------------------------------------- */

static void flip(const char *path, size_t at)
{
    size_t n;
    char *bytes = store_read(path, &n);

    bytes[at % n] ^= 4;
    store_write(path, bytes, n);
    free(bytes);
}

static void damage_is_told_and_never_restored(void **state)
{
    unsigned long long seed = scratch_seed("damage_is_told_and_never_restored");
    inferscale_restore_options r;
    struct stat s;

    backup(copy, false, false);
    assert_int_equal(stat(scratch_path(copy, "bank.sqlite"), &s), 0);
    for (int i = 0; i < 12; i++) { /* any byte of the bank */
        size_t at = scratch_below(&seed, (unsigned)s.st_size);

        flip(scratch_path(copy, "bank.sqlite"), at);
        FAILS(E_CORRUPT, verify(copy, &r));
        FAILS(E_CORRUPT, inferscale_restore(copy, again, NULL));
        assert_int_equal(access(scratch_path(again, "bank.sqlite"), F_OK), -1);
        flip(scratch_path(copy, "bank.sqlite"), at);
    }
    assert_int_equal(stat(scratch_path(copy, "backup.txt"), &s), 0);
    for (int i = 0; i < 40; i++) { /* any byte of the manifest */
        size_t at = i < 25 ? (size_t)i : scratch_below(&seed, (unsigned)s.st_size);
        inferscale_status st;

        flip(scratch_path(copy, "backup.txt"), at);
        st = verify(copy, &r);
        if (st != INFERSCALE_E_CORRUPT && st != INFERSCALE_E_FOREIGN) fail_msg("byte %zu of the manifest: status %d", at, (int)st);
        flip(scratch_path(copy, "backup.txt"), at);
    }
    OK(verify(copy, &r));
    char *manifest = store_read(scratch_path(copy, "backup.txt"), &(size_t){ 0 });
    for (size_t n = 0; n < (size_t)s.st_size; n += 1 + (size_t)s.st_size / 20) { /* cut anywhere */
        store_write(scratch_path(copy, "backup.txt"), manifest, n);
        assert_true(verify(copy, &r) != INFERSCALE_OK);
    }
    store_write(scratch_path(copy, "backup.txt"), manifest, (size_t)s.st_size);
    free(manifest);
    OK(inferscale_restore(copy, again, NULL));
    expect_same_memory(home, again);
}

static void damaged_kv_is_left_out(void **state)
{
    inferscale_restore_options r = INFERSCALE_RESTORE_OPTIONS_INIT;
    inferscale *is;
    size_t n;

    backup(copy, false, false);
    char **files = store_files(copy, ".seg", &n);
    flip(files[0], 400);
    assert_int_equal(unlink(files[1]), 0);
    store_write(files[2], "", 0);
    OK(verify(copy, &r));
    assert_int_equal(r.bad_files, 3);
    r.verify_only = 0;
    OK(inferscale_restore(copy, again, &r));
    assert_int_equal(r.bad_files, 3);
    assert_int_equal(r.vault_files, n - 3);
    store_files_free(files, n);
    store_expect_sound(again);
    is = store_open(again, NULL, NULL, false);
    store_encode(is);
    inferscale_close(is);
    expect_answer(again, true);
    expect_same_memory(home, again);
}

/* ---- While others write ------------------------------------------------------------------------------------------------------------ */

enum { LIVING = 4000 };
static atomic_int stop, n_added;
static atomic_llong added[LIVING];
static atomic_int state_of[LIVING]; /* 1 acknowledged, 2 being forgotten, 3 forgotten */

static void *write_on(void *arg)
{
    inferscale *is = store_open(home, NULL, NULL, false);

    for (int i = 0; !atomic_load(&stop) && i < LIVING; i++) {
        char text[80];

        snprintf(text, sizeof text, "Anna writes on, number %d.", i);
        atomic_store(&added[i], store_fact(is, &store_anna, text));
        atomic_store(&state_of[i], 1);
        atomic_store(&n_added, i + 1);
        if (i % 4 == 3) OK(inferscale_encode(is, &store_anna, NULL));
        if (i % 5 == 4) {
            int64_t id = atomic_load(&added[i - 2]);

            atomic_store(&state_of[i - 2], 2);
            OK(inferscale_forget(is, &store_anna, &id, 1, NULL));
            atomic_store(&state_of[i - 2], 3);
        }
    }
    inferscale_close(is);
    return NULL;
}

static bool is_there(inferscale *is, int64_t id)
{
    inferscale_list *l = NULL;
    inferscale_status st = inferscale_show(is, &store_anna, id, &l);

    inferscale_list_free(l);
    if (st != INFERSCALE_OK) assert_int_equal(st, INFERSCALE_E_NOTFOUND);
    return st == INFERSCALE_OK;
}

static void others_write_meanwhile(void **state)
{
    static int before[LIVING];
    inferscale *is = store_open(home, NULL, NULL, false);
    pthread_t t;

    atomic_store(&stop, 0);
    assert_int_equal(pthread_create(&t, NULL, write_on, NULL), 0);
    for (int round = 0; round < 6; round++) {
        inferscale_restore_options r = INFERSCALE_RESTORE_OPTIONS_INIT;
        int n, wrote;

        while ((n = atomic_load(&n_added)) < 10 * (round + 1)) usleep(1000);
        for (int i = 0; i < n; i++) before[i] = atomic_load(&state_of[i]);
        OK(inferscale_backup(is, copy, NULL));
        wrote = atomic_load(&n_added) - n;
        OK(verify(copy, &r));
        assert_int_equal(r.bad_files, 0);
        r.verify_only = 0;
        OK(inferscale_restore(copy, again, &r));
        store_expect_sound(again);
        inferscale *restored = store_open(again, NULL, NULL, true);
        for (int i = 0; i < n; i++) {
            bool there = is_there(restored, atomic_load(&added[i]));

            if (before[i] == 3) assert_false(there);
            if (before[i] == 1 && atomic_load(&state_of[i]) == 1) assert_true(there);
        }
        inferscale_close(restored);
        printf("round %d: %d facts were there, %d were written while it was copied\n", round, n, wrote);
        clear(copy);
        clear(again);
    }
    atomic_store(&stop, 1);
    pthread_join(t, NULL);
    inferscale_close(is);
    store_expect_sound(home);
}

/* ---- Interrupted ----------------------------------------------------------------------------------------------------------------------- */

static int slowly(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    usleep(700);
    return 0;
}

static int stop_at(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    return --*(int *)ctx < 0;
}

static void kill_9_leaves_a_whole_one_or_none(void **state)
{
    unsigned long long seed = scratch_seed("kill_9_leaves_a_whole_one_or_none");
    int whole = 0, none = 0;

    for (int round = 0; round < 24; round++) {
        bool restoring = round % 2;
        inferscale_restore_options r;
        pid_t pid;
        int status;

        if (restoring) {
            clear(copy);
            backup(copy, false, false);
        }
        pid = fork();
        if (pid == 0) {
            inferscale_backup_options b = INFERSCALE_BACKUP_OPTIONS_INIT;
            inferscale_restore_options o = INFERSCALE_RESTORE_OPTIONS_INIT;

            b.on_progress = o.on_progress = slowly;
            if (restoring) _exit(inferscale_restore(copy, again, &o));
            _exit(inferscale_backup(store_open(home, NULL, NULL, false), copy, &b));
        }
        usleep(1000 + scratch_below(&seed, 250000));
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        if (restoring) {
            bool there = access(scratch_path(again, "bank.sqlite"), F_OK) == 0;

            whole += there;
            none += !there;
            if (!there) OK(inferscale_restore(copy, again, NULL)); /* the next try begins anew */
            inferscale_close(store_open(again, NULL, NULL, false));
            inferscale_fsck_free(store_fsck(again, true)); /* killed between its place and its books: mended like any missing file */
            store_expect_sound(again);
            expect_same_memory(home, again);
            clear(again);
        } else {
            inferscale_status st = verify(copy, &r);

            whole += st == INFERSCALE_OK;
            none += st == INFERSCALE_E_NOTFOUND;
            if (st != INFERSCALE_OK) assert_int_equal(st, INFERSCALE_E_NOTFOUND);
            if (st != INFERSCALE_OK) backup(copy, false, false);
            OK(verify(copy, &r));
            assert_int_equal(r.bad_files, 0);
        }
        clear(copy);
    }
    printf("%d were whole, %d not there\n", whole, none);
    assert_true(none > 0);
}

static void cancelled_is_not_whole(void **state)
{
    inferscale *is = store_open(home, NULL, NULL, false);
    inferscale_restore_options r;
    int hits = 0;

    for (int n = 0;; n++) {
        inferscale_backup_options b = INFERSCALE_BACKUP_OPTIONS_INIT;
        int left = n;
        inferscale_status st;

        b.on_progress = stop_at;
        b.progress_ctx = &left;
        st = inferscale_backup(is, copy, &b);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_CANCELLED);
        FAILS(E_NOTFOUND, verify(copy, &r));
        hits++;
    }
    assert_true(hits > 3);
    OK(verify(copy, &r));
    assert_int_equal(r.bad_files, 0);
    inferscale_close(is);
}

/* Every nth operation on files refused, torn or garbled: no backup that says it is whole and is not. */
static void every_refused_operation(void **state)
{
    static const enum fault_op ops[] = { FAULT_WRITE, FAULT_SYNC, FAULT_RENAME, FAULT_READ, FAULT_OPEN };
    inferscale *is = store_open(home, NULL, NULL, false);
    int64_t few[FACTS];
    unsigned hits = 0;
    inferscale_list *l = NULL;

    OK(inferscale_ls(is, &store_anna, INFERSCALE_FACTS, 0, 0, &l)); /* a small store is enough */
    for (size_t i = 3; i < l->n && i < FACTS; i++) few[i] = l->items[i].id;
    OK(inferscale_forget(is, &store_anna, few + 3, l->n - 3, NULL));
    inferscale_list_free(l);
    OK(inferscale_forget_all(is, &store_ben, NULL));
    OK(inferscale_encode(is, &store_anna, NULL));
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
        for (int kind = FAULT_ENOSPC; kind <= FAULT_TEAR; kind++)
            for (unsigned n = 1;; n++) {
                fault_fs *ff = fault_fs_new(ops[o], (enum fault_kind)kind, n);
                inferscale_restore_options r;
                inferscale_status made, restored = INFERSCALE_OK;
                bool hit;

                is_fs_set_default(fault_fs_fs(ff));
                made = inferscale_backup(is, copy, NULL);
                if (made == INFERSCALE_OK) restored = inferscale_restore(copy, again, NULL);
                is_fs_set_default(NULL);
                hit = fault_fs_hit(ff);
                assert_int_equal(fault_fs_open_files(ff), 0);
                fault_fs_free(ff);
                if (made == INFERSCALE_OK || access(scratch_path(copy, "backup.txt"), F_OK) == 0) OK(verify(copy, &r));
                if (made == INFERSCALE_OK && restored != INFERSCALE_OK && access(scratch_path(again, "bank.sqlite"), F_OK) != 0)
                    OK(inferscale_restore(copy, again, NULL));
                if (made == INFERSCALE_OK) {
                    inferscale_fsck_free(store_fsck(again, true));
                    expect_same_memory(home, again);
                }
                clear(copy);
                clear(again);
                hits += hit;
                if (!hit) break;
            }
    printf("%u operations refused\n", hits);
    assert_true(hits > 60);
    inferscale_close(is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_round_trip_gives_the_same_store, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_kv_it_is_computed_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(linked_files_are_forgotten_with_the_store, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_overwritten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_is_told_and_never_restored, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damaged_kv_is_left_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(others_write_meanwhile, set_up, tear_down),
        cmocka_unit_test_setup_teardown(kill_9_leaves_a_whole_one_or_none, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cancelled_is_not_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_refused_operation, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
