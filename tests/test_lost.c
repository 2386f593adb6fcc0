/* A bank that is gone is not an empty memory: every way in which it can be lost, through every call that opens a store; a backup that
 * is put in its place, a new memory that is begun on purpose; ids that are never given twice in a home; another memory's bank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bank/home.h"
#include "support/program.h"
#include "support/scratch.h"
#include "support/store_kit.h"

static char *folder;
static char home[700], made[700], backup[700], other[700];

static const char *in_home(const char *name)
{
    return scratch_path(home, name);
}

/* A store with a backup and with things that came after it, closed; another memory's store beside it. */
static int make_stores(void **state)
{
    inferscale *is;

    (void)state;
    folder = scratch_make();
    snprintf(made, sizeof made, "%s", scratch_path(folder, "made"));
    snprintf(home, sizeof home, "%s", scratch_path(folder, "home"));
    snprintf(backup, sizeof backup, "%s", scratch_path(folder, "backup"));
    snprintf(other, sizeof other, "%s", scratch_path(folder, "other"));
    is = store_open(made, NULL, NULL, false);
    store_fill(is, 4, true);
    OK(inferscale_backup(is, backup, NULL));
    for (int i = 0; i < 3; i++) store_fact(is, &store_anna, i == 0 ? "After the backup one." : i == 1 ? "Two came." : "And a third.");
    store_encode(is);
    inferscale_close(is);
    is = store_open(other, NULL, NULL, false);
    store_fill(is, 2, false);
    inferscale_close(is);
    return 0;
}

static int remove_stores(void **state)
{
    (void)state;
    scratch_remove(folder);
    return 0;
}

static int fresh(void **state)
{
    (void)state;
    store_copy(made, home);
    return 0;
}

static int64_t highest(const char *store)
{
    return store_sql_int(store, "SELECT seq FROM sqlite_sequence WHERE name = 'items'");
}

/* ---- Ways to lose a bank --------------------------------------------------------------------------------------------------- */

static void bank_deleted(void)
{
    unlink(in_home("bank.sqlite"));
}

static void bank_emptied(void)
{
    assert_int_equal(truncate(in_home("bank.sqlite"), 0), 0);
}

/* What stays of the first n bytes; the rest of the length is zeros. */
static void zero_from(size_t keep)
{
    size_t n = 0;
    char *bytes = store_read(in_home("bank.sqlite"), &n);

    memset(bytes + keep, 0, n - keep);
    store_write(in_home("bank.sqlite"), bytes, n);
    free(bytes);
}

static void bank_zeroed(void)
{
    zero_from(0);
}

static void bank_of_noise(void)
{
    store_write(in_home("bank.sqlite"), "this was a bank once, and now it is something else altogether", 60);
}

static void header_alone(void)
{
    assert_int_equal(truncate(in_home("bank.sqlite"), 100), 0);
}

static void first_page_alone(void)
{
    assert_int_equal(truncate(in_home("bank.sqlite"), 4096), 0);
}

static void tables_gone(void)
{
    unlink(in_home("bank.sqlite"));
    store_sql(home, "PRAGMA application_id = 1230196034; PRAGMA user_version = 5; CREATE TABLE x(y); DROP TABLE x");
}

static void empty_database(void)
{
    unlink(in_home("bank.sqlite"));
    store_sql(home, "CREATE TABLE x(y); DROP TABLE x");
}

/* A log without its database, which SQLite would delete. */
static void log_alone(void)
{
    unlink(in_home("bank.sqlite"));
    store_write(in_home("bank.sqlite-wal"), "not empty, and all that is left", 31);
}

/* As stores of version 0.1 are: without the file that outlives a bank. */
static void old_and_deleted(void)
{
    unlink(in_home("bank.sqlite"));
    unlink(in_home(IS_HOME_NAME));
}

static void old_without_kv(void)
{
    char command[3000];

    old_and_deleted();
    snprintf(command, sizeof command, "rm -rf '%s'/vault/[0-9a-f][0-9a-f] '%s'/leases", home, home);
    assert_int_equal(system(command), 0);
}

static void alone_with_its_id(void)
{
    char command[3000];

    unlink(in_home("bank.sqlite"));
    snprintf(command, sizeof command, "rm -rf '%s'/vault '%s'/leases '%s'/reserve", home, home, home);
    assert_int_equal(system(command), 0);
}

static void id_damaged_too(void)
{
    bank_emptied();
    store_write(in_home(IS_HOME_NAME), "InferScale", 10);
}

static const struct {
    const char *name;
    void (*lose)(void);
} losses[] = {
    { "deleted", bank_deleted },
    { "emptied", bank_emptied },
    { "zeroed", bank_zeroed },
    { "noise", bank_of_noise },
    { "header alone", header_alone },
    { "first page alone", first_page_alone },
    { "tables gone", tables_gone },
    { "empty database", empty_database },
    { "log alone", log_alone },
    { "old, deleted", old_and_deleted },
    { "old, no KV", old_without_kv },
    { "only its id left", alone_with_its_id },
    { "id damaged too", id_damaged_too },
};
enum { LOSSES = sizeof losses / sizeof *losses };

/* Every file and what is in it, but for the locks that SQLite's index of the log stands for. */
static char *listing(void)
{
    char command[2000], *text = calloc(1, 1 << 16);
    size_t n;
    FILE *p;

    snprintf(command, sizeof command, "cd '%s' && find . -type f ! -name '*-shm' ! -name 'reserve' ! \\( -name '*-wal' -empty \\) -exec cksum {} + | sort", home);
    p = popen(command, "r");
    assert_non_null(p);
    n = fread(text, 1, (1 << 16) - 1, p);
    assert_true(n < (1 << 16) - 1);
    assert_int_equal(pclose(p), 0);
    return text;
}

static void expect_untouched(const char *before, const char *what)
{
    char *after = listing();

    if (strcmp(before, after) != 0) fail_msg("%s changed the folder from\n%s to\n%s", what, before, after);
    free(after);
}

static void a_lost_bank_is_refused_and_nothing_is_touched(void **state)
{
    (void)state;
    for (int i = 0; i < LOSSES; i++) {
        for (int read_only = 0; read_only <= 1; read_only++) {
            inferscale_options o = store_options(home);
            inferscale *is = NULL;
            char *before;
            inferscale_status st;

            store_copy(made, home);
            losses[i].lose();
            before = listing();
            o.read_only = read_only;
            for (int again = 0; again < 2; again++) {
                st = inferscale_open(&is, &o);
                if (st != INFERSCALE_E_CORRUPT)
                    fail_msg("%s, read_only %d: %s, %s", losses[i].name, read_only, inferscale_status_name(st), inferscale_error());
                assert_null(is);
                if (!strstr(inferscale_error(), "restore")) fail_msg("%s: %s", losses[i].name, inferscale_error());
            }
            expect_untouched(before, losses[i].name);
            free(before);
        }
    }
}

/* ---- Ways out -------------------------------------------------------------------------------------------------------------- */

static size_t count_kv(void)
{
    char command[3000];
    unsigned long n = 0;
    FILE *p;

    snprintf(command, sizeof command, "find '%s' -name '*.seg' | wc -l", home);
    p = popen(command, "r");
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%lu", &n), 1);
    assert_int_equal(pclose(p), 0);
    return n;
}

static void a_backup_takes_the_place_and_ids_go_on(void **state)
{
    const int64_t given = highest(made);
    char *told = NULL;

    (void)state;
    for (int i = 0; i < LOSSES; i++) {
        const bool has_id = losses[i].lose != old_and_deleted && losses[i].lose != old_without_kv && losses[i].lose != id_damaged_too;
        inferscale_gc_options gc = INFERSCALE_GC_OPTIONS_INIT;
        size_t kv;
        inferscale *is;
        char *now;
        int64_t id;

        store_copy(made, home);
        losses[i].lose();
        kv = count_kv();
        OK(inferscale_restore(backup, home, NULL));
        is = store_open(home, NULL, NULL, false);
        now = store_dump(is);
        if (!told) told = strdup(now);
        if (strcmp(told, now) != 0) fail_msg("%s: what was restored differs", losses[i].name);
        free(now);
        if (kv && count_kv() < kv) fail_msg("%s: %zu KV files of %zu are left", losses[i].name, count_kv(), kv);
        OK(inferscale_gc(is, &gc));
        assert_int_equal(gc.unnamed_files, 0);
        if (kv && count_kv() < kv) fail_msg("%s: gc removed what the older bank does not name", losses[i].name);
        id = store_fact(is, &store_anna, "Told to the restored memory.");
        if (has_id && id <= given) fail_msg("%s: id %lld was given before", losses[i].name, (long long)id);
        gc = (inferscale_gc_options)INFERSCALE_GC_OPTIONS_INIT;
        gc.unnamed = 1;
        OK(inferscale_gc(is, &gc));
        store_encode(is);
        inferscale_close(is);
        store_expect_sound(home);
    }
    free(told);
}

static void a_new_memory_begins_on_purpose_and_ids_go_on(void **state)
{
    const int64_t given = highest(made);

    (void)state;
    for (int i = 0; i < LOSSES; i++) {
        const bool has_id = losses[i].lose != old_and_deleted && losses[i].lose != old_without_kv && losses[i].lose != id_damaged_too;
        inferscale_options o = store_options(home);
        inferscale_gc_options gc = INFERSCALE_GC_OPTIONS_INIT;
        inferscale_list *l = NULL;
        inferscale *is = NULL;
        size_t kv;
        int64_t id;

        store_copy(made, home);
        losses[i].lose();
        kv = count_kv();
        o.start_empty = 1;
        o.read_only = 1;
        FAILS(E_INVALID, inferscale_open(&is, &o));
        o.read_only = 0;
        OK(inferscale_open(&is, &o));
        OK(inferscale_ls(is, &store_anna, 0, 0, 0, &l));
        assert_int_equal(l->n, 0);
        inferscale_list_free(l);
        OK(inferscale_gc(is, &gc));
        if (count_kv() != kv) fail_msg("%s: %zu KV files of %zu are left", losses[i].name, count_kv(), kv);
        if (gc.kept_unnamed_files < kv) fail_msg("%s: gc does not say what it keeps", losses[i].name);
        id = store_fact(is, &store_anna, "A new beginning.");
        if (has_id && id <= given) fail_msg("%s: id %lld was given before", losses[i].name, (long long)id);
        inferscale_close(is);
        OK(inferscale_open(&is, &o)); /* asked again it is opened as ever */
        OK(inferscale_ls(is, &store_anna, 0, 0, 0, &l));
        assert_int_equal(l->n, 1);
        inferscale_list_free(l);
        gc.unnamed = 1;
        OK(inferscale_gc(is, &gc));
        if (gc.unnamed_files < kv || count_kv()) fail_msg("%s: gc did not remove what it was told to", losses[i].name);
        inferscale_close(is);
        assert_int_equal(access(in_home("lost-1"), F_OK), -1);
        store_expect_sound(home);
    }
}

/* Setting aside and beginning anew may be interrupted between any two steps. */
static void what_is_set_aside_goes_on_where_it_was_interrupted(void **state)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;

    (void)state;
    fresh(NULL);
    bank_emptied();
    assert_int_equal(mkdir(in_home("lost-1"), 0700), 0);
    assert_int_equal(rename(in_home("vault"), in_home("lost-1/vault")), 0);
    FAILS(E_CORRUPT, inferscale_open(&is, &o));
    o.start_empty = 1;
    OK(inferscale_open(&is, &o));
    inferscale_close(is);
    assert_int_equal(access(in_home("lost-2/bank.sqlite"), F_OK), 0);
}

/* ---- Ids ------------------------------------------------------------------------------------------------------------------- */

static int64_t tell(const char *text)
{
    inferscale *is = store_open(home, NULL, NULL, false);
    int64_t id = store_fact(is, &store_anna, text);

    inferscale_close(is);
    return id;
}

static void ids_go_on_one_by_one_and_over_the_ends_of_blocks(void **state)
{
    inferscale_fact *facts = calloc(3 * IS_HOME_BLOCK, sizeof *facts);
    inferscale_event *events = calloc(3 * IS_HOME_BLOCK, sizeof *events);
    inferscale *is;
    int64_t before, id;
    is_home h;

    (void)state;
    fresh(NULL);
    before = highest(home);
    for (int i = 0; i < 4; i++) assert_int_equal(tell(i % 2 ? "It is odd." : i ? "It is even." : "It is none."), before + (i < 2 ? i + 1 : i == 2 ? 3 : 2));
    is = store_open(home, NULL, NULL, false);
    for (int i = 0; i < 3 * IS_HOME_BLOCK; i++) {
        char *text = malloc(40);

        snprintf(text, 40, "Number %d of many.", i);
        facts[i].text = text;
    }
    OK(inferscale_remember(is, &store_anna, facts, 3 * IS_HOME_BLOCK, events));
    inferscale_close(is);
    OK(is_home_read(is_fs_posix(), home, &h));
    assert_true(h.whole && h.last == highest(home) && h.below > h.last);
    id = tell("And one more.");
    assert_int_equal(id, before + 3 + 3 * IS_HOME_BLOCK + 1);
    for (int i = 0; i < 3 * IS_HOME_BLOCK; i++) free((char *)(uintptr_t)facts[i].text);
    free(facts);
    free(events);
}

/* A bank that was copied by hand and is put back, with as many writes between as there are: none, some within a block, more. */
static void an_older_bank_goes_on_above_what_was_given(void **state)
{
    (void)state;
    for (int writes = 0; writes <= 3; writes++) {
        size_t n = 0;
        char *bytes;
        int64_t given, next;

        fresh(NULL);
        given = highest(home);
        bytes = store_read(in_home("bank.sqlite"), &n);
        for (int i = 0; i < writes; i++) given = tell(i == 0 ? "First." : i == 1 ? "Second." : "Third.");
        store_write(in_home("bank.sqlite"), bytes, n);
        free(bytes);
        next = tell("Told to the older bank.");
        if (writes == 0) assert_int_equal(next, given + 1);
        if (next <= given) fail_msg("%d writes: id %lld was given before (up to %lld)", writes, (long long)next, (long long)given);
        assert_int_equal(tell("And again."), next + 1); /* a jump once, not at every opening */
        unlink(in_home(IS_HOME_NAME)); /* the bank alone goes on too */
        assert_int_equal(tell("Without the file."), next + 2);
    }
}

static void what_is_damaged_of_the_file_is_made_again(void **state)
{
    static const size_t places[] = { 0, 20, 30, 60, 80, 100, 110, 130 };

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t n = 0;
        char *bytes;
        int64_t given;
        is_home h;

        fresh(NULL);
        given = highest(home);
        bytes = store_read(in_home(IS_HOME_NAME), &n);
        assert_true(places[i] < n);
        bytes[places[i]] ^= 1;
        store_write(in_home(IS_HOME_NAME), bytes, n);
        free(bytes);
        assert_true(tell("Told in spite of that.") > given);
        OK(is_home_read(is_fs_posix(), home, &h));
        assert_true(h.whole && h.last > given && h.below > h.last);
    }
}

/* ---- Another memory's bank ----------------------------------------------------------------------------------------------------- */

static void another_memorys_bank_is_noticed(void **state)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;
    char *bytes, *before;
    size_t n = 0;

    (void)state;
    fresh(NULL);
    bytes = store_read(scratch_path(other, "bank.sqlite"), &n);
    store_write(in_home("bank.sqlite"), bytes, n);
    free(bytes);
    before = listing();
    for (int read_only = 0; read_only <= 1; read_only++) {
        o.read_only = read_only;
        FAILS(E_FOREIGN, inferscale_open(&is, &o));
        assert_non_null(strstr(inferscale_error(), "another memory"));
    }
    FAILS(E_INVALID, inferscale_restore(backup, home, NULL)); /* it is a bank, and nothing is overwritten */
    free(before);
    o.read_only = 0;
    o.start_empty = 1;
    OK(inferscale_open(&is, &o));
    inferscale_close(is);
    assert_int_equal(access(in_home("lost-1/bank.sqlite"), F_OK), 0);
}

static void another_memorys_backup_does_not_go_beside_this_vault(void **state)
{
    const char *theirs = strdup(scratch_path(folder, "backup-of-other"));
    inferscale *is = store_open(other, NULL, NULL, false);

    (void)state;
    OK(inferscale_backup(is, theirs, NULL));
    inferscale_close(is);
    fresh(NULL);
    bank_deleted();
    FAILS(E_FOREIGN, inferscale_restore(theirs, home, NULL));
    OK(inferscale_restore(backup, home, NULL)); /* ours does, after that too */
    store_expect_sound(scratch_path(folder, "other"));
    free((char *)(uintptr_t)theirs);
}

/* ---- The program ----------------------------------------------------------------------------------------------------------- */

static void every_verb_refuses(void **state)
{
    static const char *const verbs[] = {
        "ls --user otto", "remember x --user otto", "ask x --user otto --max-tokens 2", "recall x --user otto", "forget 1 --user otto",
        "encode --user otto", "gc", "gc --unnamed", "du", "backup there", "fsck", "fsck --repair", "rebuild", "export --user otto",
        "show 1 --user otto", "doctor --check", "serve --port 0", "mcp",
    };

    (void)state;
    program_fresh(NULL);
    sh("\"$IS\" remember \"Otto collects stamps.\" --user otto --engine mock");
    expect_code(0);
    sh("\"$IS\" encode --user otto --engine mock");
    expect_code(0);
    sh("rm \"$INFERSCALE_HOME\"/bank.sqlite*; cp -a \"$INFERSCALE_HOME\" lost");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strncmp(verbs[i], "doctor", 6) == 0) continue; /* it tells of everything, and goes on */
        sh("timeout 60 \"$IS\" %s --engine mock </dev/null", verbs[i]);
        if (last.code != 1 || !strstr(strncmp(verbs[i], "fsck", 4) ? last.err : last.out, "--start-empty"))
            fail_msg("%s: exit code %d\n%s\n%s", verbs[i], last.code, last.out, last.err);
        sh("diff -r \"$INFERSCALE_HOME\" lost");
        if (last.code) fail_msg("%s changed the folder: %s", verbs[i], last.out);
    }
    sh("INFERSCALE_START_EMPTY=on \"$IS\" config check --json");
    expect_code(0);
    expect_in(last.out, "start_empty");
    sh("\"$IS\" remember \"Otto began anew.\" --user otto --engine mock --start-empty --json");
    expect_code(0);
    sh("\"$IS\" ls --user otto --engine mock");
    expect_code(0);
    expect_in(last.out, "began anew");
    sh("\"$IS\" fsck --engine mock");
    expect_code(0);
    sh("\"$IS\" gc --engine mock");
    expect_in(last.out, "gc --unnamed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_bank_is_refused_and_nothing_is_touched),
        cmocka_unit_test(a_backup_takes_the_place_and_ids_go_on),
        cmocka_unit_test(a_new_memory_begins_on_purpose_and_ids_go_on),
        cmocka_unit_test(what_is_set_aside_goes_on_where_it_was_interrupted),
        cmocka_unit_test(ids_go_on_one_by_one_and_over_the_ends_of_blocks),
        cmocka_unit_test(an_older_bank_goes_on_above_what_was_given),
        cmocka_unit_test(what_is_damaged_of_the_file_is_made_again),
        cmocka_unit_test(another_memorys_bank_is_noticed),
        cmocka_unit_test(another_memorys_backup_does_not_go_beside_this_vault),
        cmocka_unit_test_setup_teardown(every_verb_refuses, program_set_up, program_tear_down),
    };

    return cmocka_run_group_tests(tests, make_stores, remove_stores);
}
