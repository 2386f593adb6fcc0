/* Whose file is it, can it be written, is there room: opening a bank, and every way in which that goes wrong. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "bank/maintain.h"
#include "bank/schema.h"
#include "base/file.h"
#include "base/mem.h"
#include "support/bank_kit.h"

/* Runs SQL on the file with plain SQLite, as another application (or an older version of us) would. */
static void raw_sql(const char *path, const char *statements)
{
    sqlite3 *db = NULL;
    char *why = NULL;

    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, statements, NULL, NULL, &why) != SQLITE_OK) fail_msg("%s", why);
    sqlite3_close(db);
}

static void write_file(const char *path, const char *content, size_t n)
{
    OK(is_file_shred(is_fs_posix(), path));
    OK(is_file_write_atomic(is_fs_posix(), path, content, n));
}

static const char *fresh_path(bank_kit *k)
{
    return scratch_path(k->folder, "other.sqlite");
}

/* ---- Recognising --------------------------------------------------------------------------------------------------------- */

static void test_new_bank(void **state)
{
    bank_kit *k = *state;
    struct stat s;
    bool ok = false;

    umask(0);
    bank_kit_teardown(state);
    bank_kit_setup(state); /* created under the most careless umask */
    k = *state;
    static const char *const suffixes[] = { "", "-wal", "-shm" };
    for (int i = 0; i < 3; i++) {
        char path[512];

        snprintf(path, sizeof path, "%s%s", k->path, suffixes[i]);
        assert_int_equal(stat(path, &s), 0);
        assert_int_equal(s.st_mode & 0777, 0600);
    }
    assert_string_equal(is_bank_path(k->bank), k->path);
    assert_int_equal(is_bank_schema_version(k->bank), BANK_SCHEMA_VERSION);
    OK(is_bank_check(k->bank, &ok));
    assert_true(ok);
}

static void test_paths_that_are_none(void **state)
{
    bank_kit *k = *state;
    is_bank *b = (is_bank *)8;

    FAILS(E_INVALID, is_bank_open(NULL, false, &b));
    assert_null(b);
    FAILS(E_INVALID, is_bank_open("", false, &b));
    FAILS(E_INVALID, is_bank_open(":memory:", false, &b)); /* would remember nothing */
    FAILS(E_NOTFOUND, is_bank_open(scratch_path(k->folder, "none/bank"), false, &b));
    FAILS(E_NOTFOUND, is_bank_open(fresh_path(k), true, &b));
    assert_false(is_fs_posix()->exists(is_fs_posix(), fresh_path(k))); /* looking did not create it */
    is_status st = is_bank_open(k->folder, false, &b); /* a folder */
    assert_int_not_equal(st, INFERSCALE_OK);
    assert_null(b);
    is_bank_close(NULL);
}

static void test_empty_file_is_a_new_bank(void **state)
{
    bank_kit *k = *state;
    is_bank *b = NULL;
    is_partition p;

    write_file(fresh_path(k), "", 0);
    FAILS(E_NOTFOUND, is_bank_open(fresh_path(k), true, &b));
    OK(is_bank_open(fresh_path(k), false, &b));
    OK(is_bank_partition(b, &k->anna, true, &p));
    is_bank_close(b);
}

static void test_foreign_files_are_left_alone(void **state)
{
    bank_kit *k = *state;
    char garbage[8192], before[64], after[64];
    is_bank *b = NULL;
    uint8_t *data = NULL;
    size_t n = 0;

    for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (char)(i * 7 + 1);
    write_file(fresh_path(k), garbage, sizeof garbage);
    FAILS(E_FOREIGN, is_bank_open(fresh_path(k), false, &b));
    FAILS(E_FOREIGN, is_bank_open(fresh_path(k), true, &b));
    write_file(fresh_path(k), "a letter\n", 9);
    FAILS(E_FOREIGN, is_bank_open(fresh_path(k), false, &b));
    OK(is_file_read_all(is_fs_posix(), fresh_path(k), 100, &data, &n));
    assert_string_equal((char *)data, "a letter\n");
    is_free(data);

    OK(is_file_shred(is_fs_posix(), fresh_path(k)));
    raw_sql(fresh_path(k), "CREATE TABLE bookmarks(url TEXT)"); /* another application's */
    OK(is_file_read_all(is_fs_posix(), fresh_path(k), 1 << 20, &data, &n));
    is_hex(data, 31, before);
    is_free(data);
    FAILS(E_FOREIGN, is_bank_open(fresh_path(k), false, &b));
    assert_non_null(strstr(is_error(), "another application"));
    OK(is_file_read_all(is_fs_posix(), fresh_path(k), 1 << 20, &data, &n));
    is_hex(data, 31, after); /* the header's bytes: not even turned to WAL */
    is_free(data);
    assert_string_equal(before, after);
    raw_sql(fresh_path(k), "PRAGMA application_id = 77; DROP TABLE bookmarks");
    FAILS(E_FOREIGN, is_bank_open(fresh_path(k), false, &b));
}

static void set_version(const char *path, int version)
{
    char text[64];

    snprintf(text, sizeof text, "PRAGMA user_version = %d", version);
    raw_sql(path, text);
}

static void test_newer_version_is_refused(void **state)
{
    bank_kit *k = *state;
    is_bank *b = NULL;

    is_bank_close(k->bank);
    k->bank = NULL;
    set_version(k->path, BANK_SCHEMA_VERSION + 1);
    FAILS(E_FOREIGN, is_bank_open(k->path, false, &b));
    assert_non_null(strstr(is_error(), "newer"));
    FAILS(E_FOREIGN, is_bank_open(k->path, true, &b));
    raw_sql(k->path, "PRAGMA user_version = -1");
    FAILS(E_CORRUPT, is_bank_open(k->path, false, &b));
    set_version(k->path, BANK_SCHEMA_VERSION);
    OK(is_bank_open(k->path, false, &b));
    is_bank_close(b);
}

static is_status on_problem(void *ctx, const char *kind, const char *what, bool repaired)
{
    fprintf(stderr, "%s: %s\n", kind, what);
    ++*(int *)ctx;
    return INFERSCALE_OK;
}

/* A bank as version 1 wrote it, by hand: the present version finds everything and adds what is its own. */
static void test_older_version_is_migrated(void **state)
{
    bank_kit *k = *state;
    inferscale_list *l = NULL;
    is_partition p;
    is_names doomed;

    const int64_t fact = kit_fact(k, &k->pa, &k->anna, "an old fact");
    const int8_t q[4] = { 1, 2, 3, -4 };
    int problems = 0;

    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, fact, 1, q, 4, 0.25f));
    kit_turn(k, &k->pa, &k->anna, "c", "an old turn");
    is_bank_close(k->bank);
    k->bank = NULL;
    raw_sql(k->path, "DROP TABLE page_facts; DROP TABLE pages; DROP TABLE tombstones; DROP INDEX items_pinned;"
            "ALTER TABLE items DROP COLUMN pinned; ALTER TABLE items DROP COLUMN withdrawn;"
            "DROP INDEX items_by_superseding; ALTER TABLE items DROP COLUMN superseded_by;"
            "ALTER TABLE segments DROP COLUMN n_passes; ALTER TABLE segments DROP COLUMN lead;"
            "ALTER TABLE segments DROP COLUMN write_time; ALTER TABLE embeddings DROP COLUMN checksum;"
            "DROP INDEX segments_outdated; ALTER TABLE segments DROP COLUMN outdated;"
            "DROP INDEX segments_wide; ALTER TABLE segments DROP COLUMN wide;"
            "ALTER TABLE fact_versions DROP COLUMN dated; ALTER TABLE turns DROP COLUMN dated;"
            "DROP TABLE placement_items; DROP TABLE placements; DROP TABLE doomed; DROP TABLE home; DROP TABLE calibrations;"
            "PRAGMA user_version = 1");
    FAILS(E_READONLY, is_bank_open(k->path, true, &k->bank));
    assert_non_null(strstr(is_error(), "older schema 1"));
    OK(is_bank_open(k->path, false, &k->bank));
    assert_int_equal(is_bank_schema_version(k->bank), BANK_SCHEMA_VERSION);
    OK(is_bank_partition(k->bank, &k->anna, false, &p));
    assert_memory_equal(p.key, k->pa.key, IS_KEY_BYTES);
    OK(is_bank_list(k->bank, &p, NULL, 0, 0, 0, &l));
    assert_int_equal(l->n, 2);
    assert_string_equal(l->items[0].text, "an old fact");
    inferscale_list_free(l);
    OK(is_bank_doomed(k->bank, &doomed));
    OK(is_bank_verify(k->bank, false, on_problem, &problems, NULL)); /* the old vector has its checksum */
    assert_int_equal(problems, 0);
    bank_kit_reopen(k, true);
}

/* Version 1 as it was first released, spelled out: a step that someone edits later no longer migrates this. */
static void test_migrates_the_first_schema_to_the_same_tables(void **state)
{
    bank_kit *k = *state;
    static const char list[] = "SELECT group_concat(type || name || tbl_name || ifnull(sql, '')) FROM (SELECT * FROM sqlite_master ORDER BY name)";
    char *made[2] = { 0 };
    const char *paths[2] = { k->path, fresh_path(k) };
    is_bank *b = NULL;

    raw_sql(paths[1], "CREATE TABLE partitions(id INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, owner_kind INTEGER NOT NULL,"
                      " owner TEXT NOT NULL, key BLOB NOT NULL, epoch INTEGER NOT NULL DEFAULT 1, revision INTEGER NOT NULL DEFAULT 0,"
                      " created INTEGER NOT NULL); INSERT INTO partitions VALUES(7, '', 1, 'anna', zeroblob(32), 3, 4, 5);"
                      "CREATE TABLE items(id INTEGER PRIMARY KEY AUTOINCREMENT, partition_id INTEGER NOT NULL,"
                      " UNIQUE(partition_id, id));"
                      "CREATE TABLE segments(id INTEGER PRIMARY KEY AUTOINCREMENT, partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL,"
                      " version INTEGER NOT NULL, name BLOB NOT NULL, fingerprint BLOB NOT NULL, policy TEXT NOT NULL);"
                      "CREATE TABLE segment_deps(partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
                      " segment_id INTEGER NOT NULL);"
                      "CREATE TABLE fact_versions(partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, version INTEGER NOT NULL,"
                      " event_time INTEGER NOT NULL, write_time INTEGER NOT NULL, valid_to INTEGER NOT NULL, expires INTEGER NOT NULL);"
                      "CREATE TABLE turns(partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, time INTEGER NOT NULL,"
                      " write_time INTEGER NOT NULL);"
                      "CREATE TABLE embeddings(partition_id INTEGER NOT NULL, item_id INTEGER NOT NULL, fingerprint BLOB NOT NULL,"
                      " version INTEGER NOT NULL, scale REAL NOT NULL, q BLOB NOT NULL,"
                      " PRIMARY KEY(partition_id, item_id, fingerprint)) WITHOUT ROWID;"
                      "PRAGMA application_id = 1230196034; PRAGMA user_version = 1"); /* 0x49534D42 */
    OK(is_bank_open(paths[1], false, &b)); /* only what later versions need is looked at */
    is_partition p;
    OK(is_bank_partition(b, &k->anna, false, &p));
    assert_true(p.id == 7 && p.epoch == 3 && p.revision == 4);
    is_bank_close(b);

    OK(is_file_shred(is_fs_posix(), paths[1]));
    OK(is_bank_open(paths[1], false, &b)); /* and two new banks have the same tables */
    is_bank_close(b);
    for (int i = 0; i < 2; i++) {
        sqlite3 *db = NULL;
        sqlite3_stmt *s = NULL;

        assert_int_equal(sqlite3_open(paths[i], &db), SQLITE_OK);
        assert_int_equal(sqlite3_prepare_v2(db, list, -1, &s, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_step(s), SQLITE_ROW);
        made[i] = strdup((const char *)sqlite3_column_text(s, 0));
        sqlite3_finalize(s);
        sqlite3_close(db);
    }
    assert_string_equal(made[0], made[1]);
    free(made[0]);
    free(made[1]);
}

/* What is kept of the whole store: a bank of version 9 has named no codec, and what is named is there when it is opened again. */
static void test_keeps_the_codec_that_was_named(void **state)
{
    bank_kit *k = *state;
    char codec[IS_BANK_CODEC_BYTES];

    is_bank_close(k->bank);
    k->bank = NULL;
    raw_sql(k->path, "ALTER TABLE home DROP COLUMN codec; PRAGMA user_version = 9");
    bank_kit_reopen(k, false);
    OK(is_bank_codec(k->bank, codec));
    assert_string_equal(codec, "");
    OK(is_bank_set_codec(k->bank, "bf16"));
    bank_kit_reopen(k, true);
    OK(is_bank_codec(k->bank, codec));
    assert_string_equal(codec, "bf16");
    FAILS(E_READONLY, is_bank_set_codec(k->bank, "f32"));
}

/* ---- Damage -------------------------------------------------------------------------------------------------------------- */

/* A table that another program dropped is damage, not a bug of ours. */
static void test_missing_table(void **state)
{
    static const char *const drops[] = { "PRAGMA foreign_keys = OFF; DROP TABLE partitions",
                                         "PRAGMA foreign_keys = OFF; DROP TABLE items" };
    bank_kit *k = *state;

    kit_fact(k, &k->pa, &k->anna, "a fact of a bank that loses a table");
    is_bank_close(k->bank);
    k->bank = NULL;
    for (int i = 1; i >= 0; i--) {
        is_bank *b = NULL;
        is_partition p;
        inferscale_list *l = NULL;
        is_status st;

        raw_sql(k->path, drops[i]);
        st = is_bank_open(k->path, false, &b);
        if (st == INFERSCALE_OK) st = is_bank_partition(b, &k->anna, false, &p);
        if (st == INFERSCALE_OK) st = is_bank_list(b, &p, NULL, 0, 0, 0, &l);
        assert_int_equal(st, INFERSCALE_E_CORRUPT);
        assert_non_null(strstr(is_error(), "restore"));
        inferscale_list_free(l);
        is_bank_close(b);
    }
}

static void test_damaged_bank(void **state)
{
    bank_kit *k = *state;
    unsigned long long seed = scratch_seed("damage");
    uint8_t *good = NULL;
    size_t n = 0;
    int found = 0;

    for (int i = 0; i < 300; i++) {
        char text[64];

        snprintf(text, sizeof text, "fact number %d of a bank that will be damaged", i);
        kit_fact(k, &k->pa, &k->anna, text);
    }
    is_bank_close(k->bank);
    k->bank = NULL;
    OK(is_file_read_all(is_fs_posix(), k->path, 1 << 24, &good, &n));
    for (int round = 0; round < 60; round++) {
        uint8_t *bad = malloc(n);
        is_bank *b = NULL;
        inferscale_list *l = NULL;
        bool ok = true;
        size_t keep = n;
        is_status st;

        memcpy(bad, good, n);
        if (round % 4 == 0) keep = scratch_below(&seed, (unsigned)n); /* torn off */
        for (int i = 0; i < 200; i++) bad[100 + scratch_below(&seed, (unsigned)n - 100)] ^= (uint8_t)(1 + scratch_below(&seed, 255));
        write_file(k->path, (char *)bad, keep);
        st = is_bank_open(k->path, false, &b); /* any clear answer, never a crash */
        if (st == INFERSCALE_OK) st = is_bank_list(b, &k->pa, NULL, 0, 0, 0, &l);
        if (st == INFERSCALE_OK) st = is_bank_forget(b, &k->pa, NULL, 0, NULL, NULL, NULL);
        if (st != INFERSCALE_OK) assert_true(strlen(is_error()) > 10);
        if (b) (void)is_bank_check(b, &ok);
        found += st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN || !ok;
        inferscale_list_free(l);
        is_bank_close(b);
        free(bad);
    }
    assert_true(found >= 30); /* others may hit only texts or free bytes */
    is_free(good);
}

/* ---- Read-only ----------------------------------------------------------------------------------------------------------- */

static void expect_readable_not_writable(bank_kit *k, int64_t fact)
{
    uint8_t prefix[IS_HASH_BYTES] = { 0 };
    is_segment_row row = { .fact_id = fact, .version = 1 };
    inferscale_scope nobody = { .user = "nobody" };
    inferscale_list *l = kit_get(k, &k->pa, fact);
    is_partition p;
    int8_t q = 1;

    assert_string_equal(l->items[0].text, "there");
    inferscale_list_free(l);
    OK(is_bank_partition(k->bank, &k->anna, true, &p)); /* is there: nothing to create */
    FAILS(E_READONLY, is_bank_partition(k->bank, &nobody, true, &p));
    FAILS(E_READONLY, is_bank_add_facts(k->bank, &k->pa, &k->anna, &(inferscale_fact){ .text = "x" }, 1, NULL));
    FAILS(E_READONLY, is_bank_add_turns(k->bank, &k->pa, &k->anna, &(inferscale_turn){ .text = "x" }, 1, NULL));
    FAILS(E_READONLY, is_bank_update_fact(k->bank, &k->pa, fact, &(inferscale_fact){ .text = "x" }, NULL));
    FAILS(E_READONLY, is_bank_forget(k->bank, &k->pa, &fact, 1, NULL, NULL, NULL));
    FAILS(E_READONLY, is_bank_put_embedding(k->bank, &k->pa, kit_model, fact, 1, &q, 1, 1.0f));
    FAILS(E_READONLY, is_bank_put_segment(k->bank, &k->pa, 1, kit_model, &row, NULL, 0));
    FAILS(E_READONLY, is_bank_drop_segment(k->bank, &k->pa, prefix));
    FAILS(E_READONLY, is_bank_put_placement(k->bank, &k->pa, kit_model, prefix, NULL, 0));
}

static void test_read_only_handle(void **state)
{
    bank_kit *k = *state;
    int64_t fact = kit_fact(k, &k->pa, &k->anna, "there");
    is_bank *writer = NULL;

    bank_kit_reopen(k, true);
    expect_readable_not_writable(k, fact);
    OK(is_bank_open(k->path, false, &writer)); /* and it sees what others write */
    OK(is_bank_forget(writer, &k->pa, &fact, 1, NULL, NULL, NULL));
    assert_int_equal(kit_version(k, &k->pa, fact), 0);
    is_bank_close(writer);
}

/* The whole folder on a read-only filesystem: reading works without a single file being made. Needs the right to mount. */
static void test_read_only_filesystem(void **state)
{
    bank_kit *k = *state;
    char *mounted = strdup(scratch_path(k->folder, "mounted %?#"));
    int64_t fact = kit_fact(k, &k->pa, &k->anna, "there");
    is_bank *b = NULL;

    is_bank_close(k->bank);
    k->bank = NULL;
    OK(is_fs_posix()->mkdirs(is_fs_posix(), mounted));
    if (geteuid() != 0 || mount(k->folder, mounted, NULL, MS_BIND, NULL) != 0) {
        free(mounted);
        skip(); /* reported as skipped: mounting is not allowed here */
    }
    assert_int_equal(mount(NULL, mounted, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL), 0);
    char *path = strdup(scratch_path(mounted, "bank.sqlite"));
    FAILS(E_READONLY, is_bank_open(path, false, &b));
    is_status st = is_bank_open(path, true, &k->bank);
    if (st == INFERSCALE_OK) expect_readable_not_writable(k, fact);
    is_bank_close(k->bank);
    k->bank = NULL;
    umount2(mounted, MNT_DETACH);
    scratch_expect(INFERSCALE_OK, st, "is_bank_open on a read-only filesystem", __FILE__, __LINE__);
    free(path);
    free(mounted);
}

static void test_read_only_file(void **state)
{
    bank_kit *k = *state;
    int status = 0;

    is_bank_close(k->bank);
    k->bank = NULL;
    assert_int_equal(chmod(k->path, 0444), 0);
    assert_int_equal(chmod(k->folder, 0555), 0);
    pid_t pid = fork();
    if (pid == 0) { /* root may write anything: be somebody else */
        is_bank *b = NULL;
        is_status st;

        if (geteuid() == 0 && setuid(65534) != 0) _exit(99);
        st = is_bank_open(k->path, false, &b);
        _exit(st == INFERSCALE_E_READONLY || st == INFERSCALE_E_DENIED ? 0 : 1 + (int)st);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    chmod(k->folder, 0700);
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- No room ------------------------------------------------------------------------------------------------------------- */

/* Writes until it is refused, in a child whose files may not grow; the parent then finds all that was acknowledged. */
static void test_full_disk(void **state)
{
    bank_kit *k = *state;
    int64_t acknowledged = 0, id;
    inferscale_list *l = NULL;
    int pipes[2], status = 0;
    bool ok = false;

    is_bank_close(k->bank);
    k->bank = NULL;
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = { 2000000, 2000000 };
        is_status st = is_bank_open(k->path, false, &k->bank);
        char text[4000];

        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        memset(text, 'x', sizeof text);
        text[sizeof text - 1] = 0;
        for (int i = 0; st == INFERSCALE_OK && i < 1000; i++) {
            inferscale_fact f = { .text = text };
            inferscale_event e;

            snprintf(text, 12, "%010d", i);
            text[10] = 'x';
            st = is_bank_add_facts(k->bank, &k->pa, &k->anna, &f, 1, &e);
            if (st == INFERSCALE_OK && write(pipes[1], &e.id, sizeof e.id) != sizeof e.id) _exit(90);
        }
        if (st != INFERSCALE_E_FULL) print_error("%s\n", is_error());
        if (st == INFERSCALE_E_FULL && !strstr(is_error(), "free some space")) _exit(91);
        /* reading still works, and so does giving room back */
        if (is_bank_list(k->bank, &k->pa, NULL, 0, 0, 0, &l) != INFERSCALE_OK) _exit(92);
        _exit((int)st);
    }
    close(pipes[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), INFERSCALE_E_FULL);
    bank_kit_reopen(k, false);
    while (read(pipes[0], &id, sizeof id) == sizeof id) {
        assert_int_equal(kit_version(k, &k->pa, id), 1);
        acknowledged++;
    }
    close(pipes[0]);
    assert_true(acknowledged > 10);
    OK(is_bank_check(k->bank, &ok));
    assert_true(ok);
    OK(is_bank_list(k->bank, &k->pa, NULL, 0, 0, 0, &l));
    assert_int_equal(l->n, acknowledged); /* what was refused is not half there */
    inferscale_list_free(l);
    kit_fact(k, &k->pa, &k->anna, "room again");
}

/* A really full filesystem. Needs the right to mount. */
static void test_full_filesystem(void **state)
{
    bank_kit *k = *state;
    char *mounted = strdup(scratch_path(k->folder, "small"));
    is_bank *b = NULL;
    is_partition p;
    is_status st = INFERSCALE_OK;
    int64_t n = 0;
    bool ok = false;

    OK(is_fs_posix()->mkdirs(is_fs_posix(), mounted));
    if (geteuid() != 0 || mount("tmpfs", mounted, "tmpfs", 0, "size=1m") != 0) {
        free(mounted);
        skip(); /* reported as skipped: mounting is not allowed here */
    }
    char *path = strdup(scratch_path(mounted, "bank.sqlite"));
    OK(is_bank_open(path, false, &b));
    OK(is_bank_partition(b, &k->anna, true, &p));
    while (st == INFERSCALE_OK && n < 5000) {
        char text[1200];

        memset(text, 'y', sizeof text);
        snprintf(text, 12, "%010d", (int)n);
        text[10] = 'y';
        text[sizeof text - 1] = 0;
        st = is_bank_add_facts(b, &p, &k->anna, &(inferscale_fact){ .text = text }, 1, NULL);
        n += st == INFERSCALE_OK;
    }
    char *sentence = strdup(is_error());
    if (is_bank_check(b, &ok) != INFERSCALE_OK) ok = false;
    is_bank_counts counts = { 0 };
    is_status counted = is_bank_count(b, &counts);
    is_bank_close(b);
    umount2(mounted, MNT_DETACH);
    free(path);
    free(mounted);
    assert_int_equal(st, INFERSCALE_E_FULL);
    assert_non_null(strstr(sentence, "free some space"));
    free(sentence);
    assert_true(ok && counted == INFERSCALE_OK);
    assert_true(n > 10);
    assert_int_equal(counts.facts, n);
}

/* Opening to write takes room for SQLite's shared index; what is there can be read without it. Needs the right to mount. */
static void test_full_filesystem_can_be_read(void **state)
{
    static const uint8_t block[4096] = { 1 };
    bank_kit *k = *state;
    char *mounted = strdup(scratch_path(k->folder, "small"));
    is_bank *b = NULL, *reader = NULL;
    is_bank_counts counts = { 0 };
    is_partition p;

    OK(is_fs_posix()->mkdirs(is_fs_posix(), mounted));
    if (geteuid() != 0 || mount("tmpfs", mounted, "tmpfs", 0, "size=1m") != 0) {
        free(mounted);
        skip(); /* reported as skipped: mounting is not allowed here */
    }
    char *path = strdup(scratch_path(mounted, "bank.sqlite"));
    OK(is_bank_open(path, false, &b));
    OK(is_bank_partition(b, &k->anna, true, &p));
    OK(is_bank_add_facts(b, &p, &k->anna, &(inferscale_fact){ .text = "before the disk filled" }, 1, NULL));
    is_bank_close(b);
    FILE *rest = fopen(scratch_path(mounted, "rest"), "wb");
    while (rest && fwrite(block, sizeof block, 1, rest) == 1 && fflush(rest) == 0) continue;
    if (rest) fclose(rest);
    is_status writer = is_bank_open(path, false, &b);
    is_status st = is_bank_open(path, true, &reader);
    if (st == INFERSCALE_OK) st = is_bank_count(reader, &counts);
    is_bank_close(reader);
    is_bank_close(b);
    umount2(mounted, MNT_DETACH);
    free(path);
    free(mounted);
    assert_non_null(rest);
    assert_int_equal(writer, INFERSCALE_E_FULL);
    assert_int_equal(st, INFERSCALE_OK);
    assert_int_equal(counts.facts, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_kit_setup, bank_kit_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_new_bank),
        TEST(test_paths_that_are_none),
        TEST(test_empty_file_is_a_new_bank),
        TEST(test_foreign_files_are_left_alone),
        TEST(test_newer_version_is_refused),
        TEST(test_older_version_is_migrated),
        TEST(test_keeps_the_codec_that_was_named),
        TEST(test_migrates_the_first_schema_to_the_same_tables),
        TEST(test_missing_table),
        TEST(test_damaged_bank),
        TEST(test_read_only_handle),
        TEST(test_read_only_filesystem),
        TEST(test_read_only_file),
        TEST(test_full_disk),
        TEST(test_full_filesystem),
        TEST(test_full_filesystem_can_be_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
