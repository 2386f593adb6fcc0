/* What must hold of the proof: nothing of what is forgotten is left in any file, and the search finds every planted copy, and only those. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <ftw.h>
#include <sqlite3.h>

#include "inferscale.h"
#include "support/forget_kit.h"
#include "support/scratch.h"

static const inferscale_scope anna = { .user = "anna" }, ben = { .user = "ben" };
static const char peanuts[] = "Anna is allergic to peanuts and to every other kind of nut that grows on trees or in the ground.";

static void nothing_is_left(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_forget_report r;
    unsigned long long seed = scratch_seed("proof");
    enum { N = 120 };
    static char texts[N][400];
    int64_t ids[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        int n = snprintf(texts[i], sizeof texts[i], "Entry %llu of Anna's long list is about ", scratch_next(&seed));

        for (unsigned k = scratch_below(&seed, 300); k > 0; k--) texts[i][n++] = (char)('a' + scratch_below(&seed, 26));
        texts[i][n] = 0;
        ids[i] = forget_tell(is, texts[i]);
    }
    OK(inferscale_encode(is, &anna, NULL));
    for (int i = 0; i < 12; i++) {
        int at = (int)scratch_below(&seed, N);

        if (!ids[at]) continue;
        OK(forget_proving(is, ids[at], &r));
        assert_int_equal(r.forgotten, 1);
        assert_true(r.proven && r.traces == 0 && r.needles > 3 && r.scanned_bytes > 100000 && r.scanned_files > 10);
        assert_false(forget_on_disk(texts[at]));
        if (strlen(texts[at]) > 120) assert_false(forget_on_disk(texts[at] + strlen(texts[at]) - 30));
        ids[at] = 0;
    }
    inferscale_close(is);
}

static void plant(const char *name, const char *text)
{
    FILE *f = fopen(scratch_path(forget_home, name), "ab");

    assert_non_null(f);
    fprintf(f, "some words before, %s and after", text);
    fclose(f);
}

static void planted_copies_are_found(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_forget_report r;
    static const char *const where[] = { "notes.txt", "vault/stray.bin", "vault/tmp/x.tmp", "leases/y", "bank.sqlite-old" };

    (void)state;
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        int64_t id = forget_tell(is, peanuts);

        OK(inferscale_encode(is, &anna, NULL));
        inferscale_answer *a = NULL;
        OK(inferscale_ask(is, &anna, "peanuts?", NULL, &a));
        inferscale_answer_free(a);
        plant(where[i], peanuts);
        assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_TRACE);
        assert_true(r.traces > 0 && !r.proven);
        if (!strstr(r.trace_text, where[i]) || !strstr(inferscale_error(), where[i])) fail_msg("%s: %s", where[i], r.trace_text);
        unlink(scratch_path(forget_home, where[i]));
        id = forget_tell(is, peanuts);
        OK(forget_proving(is, id, &r));
        assert_true(r.proven);
    }
    inferscale_close(is);
}

/* Another forgetting has taken a file out of the way and waits for a question before it overwrites it: the proof waits for that. A file
 * of the same kind that nobody takes away, and one whose maker is dead, are traces. */
static void *take_away(void *path)
{
    const struct timespec later = { 2, 0 };

    nanosleep(&later, NULL);
    assert_int_equal(unlink(path), 0);
    return NULL;
}

static void a_file_that_another_forgetting_destroys_is_waited_for(void **state)
{
    inferscale *is = forget_open(NULL);
    enum { GOES, STAYS, DEAD };

    (void)state;
    for (int kind = GOES; kind <= DEAD; kind++) {
        inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
        inferscale_forget_report r = { 0 };
        int64_t id = forget_tell(is, peanuts);
        char name[160], path[700];
        pthread_t other;

        OK(inferscale_encode(is, &anna, NULL));
        snprintf(name, sizeof name, "vault/tmp/%064d.%ld.%lld.0000000%d.gone", kind, kind == DEAD ? 99999999L : (long)getpid(),
                 (long long)time(NULL), kind);
        plant(name, peanuts);
        snprintf(path, sizeof path, "%s", scratch_path(forget_home, name));
        if (kind == GOES) assert_int_equal(pthread_create(&other, NULL, take_away, path), 0);
        o.prove = 1;
        o.wait_ms = kind == GOES ? 60000 : 1500;
        assert_int_equal(inferscale_forget_with(is, &anna, &id, 1, &o, &r), kind == GOES ? INFERSCALE_OK : INFERSCALE_E_TRACE);
        assert_true(r.proven == (kind == GOES) && (r.traces == 0) == (kind == GOES));
        if (kind == GOES) pthread_join(other, NULL);
        else assert_int_equal(unlink(path), 0);
    }
    inferscale_close(is);
}

static char segment_file[512];
static int first_segment(const char *path, const struct stat *sb, int flag, struct FTW *f)
{
    size_t n = strlen(path);

    (void)sb, (void)f;
    if (flag == FTW_F && n > 4 && strcmp(path + n - 4, ".seg") == 0) snprintf(segment_file, sizeof segment_file, "%s", path);
    return 0;
}

static void planted_keys_and_values_are_found(void **state)
{
    inferscale *is = forget_open(NULL);
    int64_t id = forget_tell(is, peanuts);
    inferscale_forget_report r;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(nftw(forget_home, first_segment, 16, FTW_PHYS), 0);
    char command[1200];
    /* the middle of the payload, at an odd offset in a file of another name */
    snprintf(command, sizeof command, "(printf abc; tail -c 3000 '%s' | head -c 700) > '%s'", segment_file, scratch_path(forget_home, "cache.bin"));
    assert_int_equal(system(command), 0);
    assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_TRACE);
    assert_non_null(strstr(r.trace_text, "cache.bin"));
    assert_non_null(strstr(r.trace_text, "keys and values"));
    inferscale_close(is);
}

/* Into a page that SQLite does not use at the moment. */
static void a_copy_in_a_free_page_is_found(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_forget_report r;
    uint8_t header[100];
    int64_t ids[40];
    FILE *f;

    (void)state;
    for (int i = 0; i < 40; i++) {
        char text[3000];

        memset(text, 'a' + i % 26, sizeof text);
        text[snprintf(text, 30, "filling number %d", i)] = ' ';
        text[sizeof text - 1] = 0;
        ids[i] = forget_tell(is, text);
    }
    int64_t id = forget_tell(is, peanuts);
    OK(inferscale_forget(is, &anna, ids, 40, NULL));
    inferscale_close(is);
    f = fopen(scratch_path(forget_home, "bank.sqlite"), "r+b");
    assert_non_null(f);
    assert_int_equal(fread(header, 1, sizeof header, f), sizeof header);
    uint32_t trunk = (uint32_t)header[32] << 24 | (uint32_t)header[33] << 16 | (uint32_t)header[34] << 8 | header[35];
    assert_true(trunk > 0);
    fseek(f, (long)(trunk - 1) * 4096 + 3000, SEEK_SET);
    assert_int_equal(fwrite(peanuts, 1, strlen(peanuts), f), strlen(peanuts));
    fclose(f);
    is = forget_open(NULL);
    assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_TRACE);
    assert_non_null(strstr(r.trace_text, "bank.sqlite"));
    inferscale_close(is);
}

static void what_others_hold_by_right_is_allowed(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_forget_report r;
    int64_t turn = forget_add_turn(is, peanuts), id = forget_tell_from(is, &anna, peanuts, turn);

    (void)state;
    forget_tell_from(is, &ben, peanuts, 0); /* the same words, his own */
    OK(inferscale_encode(is, &anna, NULL));
    OK(inferscale_encode(is, &ben, NULL));
    OK(forget_proving(is, id, &r));
    assert_true(r.proven && r.traces == 0);
    assert_true(r.allowed > 0);
    assert_non_null(strstr(r.allowed_text, "turns"));
    assert_non_null(strstr(r.allowed_text, "fact_versions"));
    plant("copy.txt", peanuts); /* one more than by right is a trace all the same */
    id = forget_tell(is, "And another fact about nothing in particular, so to say.");
    OK(forget_proving(is, id, &r));
    inferscale_close(is);
}

static void a_reader_of_the_log_makes_it_fail(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_forget_report r;
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    int64_t id = forget_tell(is, peanuts);
    sqlite3 *db = NULL;
    struct stat s;

    (void)state;
    assert_int_equal(sqlite3_open_v2(scratch_path(forget_home, "bank.sqlite"), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM items", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_BUSY);
    assert_non_null(strstr(inferscale_error(), "write-ahead log"));
    assert_false(r.proven);
    assert_int_equal(r.forgotten, 1);
    sqlite3_close(db);
    o.prove = 1;
    OK(inferscale_forget_with(is, &anna, NULL, 0, &o, &r)); /* the log alone */
    assert_int_equal(stat(scratch_path(forget_home, "bank.sqlite-wal"), &s), 0);
    assert_int_equal(s.st_size, 0);
    assert_false(forget_on_disk("every other kind of nut"));
    inferscale_close(is);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, forget_setup, forget_teardown)
    const struct CMUnitTest tests[] = {
        T(nothing_is_left),
        T(planted_copies_are_found),
        T(a_file_that_another_forgetting_destroys_is_waited_for),
        T(planted_keys_and_values_are_found),
        T(a_copy_in_a_free_page_is_found),
        T(what_others_hold_by_right_is_allowed),
        T(a_reader_of_the_log_makes_it_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
