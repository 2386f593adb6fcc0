/* What must hold of forgetting in the bank's files: however rows moved from page to page while they were there, after forgetting returns
 * no byte of them is in the database or its log, and nothing that is written later brings one back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include <sqlite3.h>

#include "bank/gaps.h"
#include "bank/maintain.h"
#include "base/file.h"
#include "base/mem.h"
#include "support/bank_kit.h"

enum { TEXTS = 4096, STEPS = 500, DIM = 384 };

/* Every text has a word of its own, zq00001z, as often as it is long. */
typedef struct texts {
    int64_t id[TEXTS];       /* 0 = forgotten */
    bool gone[TEXTS];
    unsigned instead_of[TEXTS]; /* the text whose place it took; 0 = none */
    unsigned n, there, seen;
    unsigned long long seed;
} texts;

static const char *text_of(texts *t, unsigned serial)
{
    static char text[4096];
    unsigned words = 2 + scratch_below(&t->seed, scratch_below(&t->seed, 20) ? 20 : 400); /* some need pages of their own */
    int n = 0;

    for (unsigned i = 0; i < words; i++) n += snprintf(text + n, sizeof text - (size_t)n, "zq%05uz ", serial);
    text[n - 1] = '.';
    return text;
}

static void look_into(texts *t, const char *path)
{
    uint8_t *data = NULL;
    size_t n = 0;

    if (!is_fs_posix()->exists(is_fs_posix(), path)) return;
    OK(is_file_read_all(is_fs_posix(), path, 1 << 28, &data, &n));
    for (uint8_t *at = data; (at = memmem(at, n - (size_t)(at - data), "zq", 2)) != NULL && (size_t)(at - data) + 8 <= n; at += 2) {
        unsigned serial = 0;

        for (int i = 2; i < 7 && serial < TEXTS; i++) serial = at[i] >= '0' && at[i] <= '9' ? serial * 10 + (unsigned)(at[i] - '0') : TEXTS;
        if (serial >= TEXTS || at[7] != 'z') continue;
        t->seen++;
        if (t->gone[serial]) fail_msg("%s holds text %u at %zu, which was forgotten; %u texts so far", path, serial, (size_t)(at - data), t->n);
    }
    is_free(data);
}

static void look(texts *t, const bank_kit *k)
{
    char log[512];

    snprintf(log, sizeof log, "%s-wal", k->path);
    look_into(t, k->path);
    look_into(t, log);
}

static unsigned some(texts *t)
{
    unsigned serial;

    do serial = 1 + scratch_below(&t->seed, t->n);
    while (!t->id[serial]);
    return serial;
}

static void add(texts *t, bank_kit *k)
{
    t->n++;
    t->id[t->n] = kit_fact(k, &k->pa, &k->anna, text_of(t, t->n));
    t->there++;
}

static void change(texts *t, bank_kit *k)
{
    unsigned old = some(t);
    inferscale_fact f = { .text = text_of(t, ++t->n) };

    OK(is_bank_update_fact(k->bank, &k->pa, t->id[old], &f, NULL));
    t->id[t->n] = t->id[old];
    t->instead_of[t->n] = old;
    t->id[old] = 0;
}

static void give_vector(texts *t, bank_kit *k)
{
    unsigned serial = some(t);
    int8_t q[DIM];

    for (int i = 0; i < DIM; i += 8) { /* numbers that say whose they are */
        char word[9];

        snprintf(word, sizeof word, "zq%05uz", serial);
        memcpy(q + i, word, 8);
    }
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, t->id[serial], kit_version(k, &k->pa, t->id[serial]), q, DIM, 1));
}

static void forget(texts *t, bank_kit *k)
{
    unsigned serial = some(t);
    size_t n = 0;

    OK(is_bank_forget(k->bank, &k->pa, &t->id[serial], 1, NULL, &n, NULL));
    assert_int_equal(n, 1);
    t->id[serial] = 0;
    t->there--;
    for (; serial; serial = t->instead_of[serial]) t->gone[serial] = true;
    look(t, k);
}

static void a_step(texts *t, bank_kit *k)
{
    unsigned dice = scratch_below(&t->seed, 10), most = 60;

    if (t->there < 5 || (t->there < most && dice < 4)) add(t, k);
    else if (dice < 6) change(t, k);
    else if (dice < 8) give_vector(t, k);
    else forget(t, k);
}

static void expect_sound(const bank_kit *k)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;

    assert_int_equal(sqlite3_open_v2(k->path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_string_equal((const char *)sqlite3_column_text(s, 0), "ok");
    sqlite3_finalize(s);
    sqlite3_close(db);
}

/* Two connections take turns: each remembers pages that the other one changes. */
static void nothing_forgotten_is_in_a_file(void **state)
{
    bank_kit *k = *state;
    texts *t = calloc(1, sizeof *t);
    is_bank *other = NULL;

    t->seed = scratch_seed("rows that move");
    OK(is_bank_open(k->path, false, &other));
    for (int i = 0; i < STEPS; i++) {
        a_step(t, k);
        if (scratch_below(&t->seed, 40) == 0) {
            is_bank *swap = k->bank;

            k->bank = other;
            other = swap;
        }
        if (scratch_below(&t->seed, 100) == 0) bank_kit_reopen(k, false);
        if (scratch_below(&t->seed, 10) == 0) look(t, k); /* what was written after a forgetting did not bring it back */
    }
    while (t->there) forget(t, k);
    assert_true(t->seen > 1000);
    is_bank_close(other);
    bank_kit_reopen(k, false);
    look(t, k);
    expect_sound(k);
    free(t);
}

/* Bytes that are not zero in the middles of the file's pages. */
static size_t bytes_in_gaps(const char *path)
{
    uint8_t *data = NULL;
    size_t n = 0, from, to, found = 0;

    OK(is_file_read_all(is_fs_posix(), path, 1 << 28, &data, &n));
    for (size_t page = 2 * 4096; page < n; page += 4096) { /* the second one says who points at whom */
        if (!bank_gap(data + page, 4096, 0, &from, &to)) continue;
        for (; from < to; from++) found += data[page + from] != 0;
    }
    is_free(data);
    return found;
}

static void nothing_forgotten_is_in_a_copy(void **state)
{
    bank_kit *k = *state;
    texts *t = calloc(1, sizeof *t);
    const char *first = k->path, *copy = strdup(scratch_path(k->folder, "copy"));

    t->seed = scratch_seed("rows that moved before they were copied");
    for (int i = 0; i < STEPS / 4; i++) a_step(t, k);
    for (int i = 0; i < 100; i++) { /* the log is full of pages that rows have moved on */
        add(t, k);
        if (i % 2) change(t, k);
        if (i % 3 == 0) give_vector(t, k);
    }
    OK(is_bank_copy(k->path, copy, NULL, NULL));
    assert_int_equal(bytes_in_gaps(copy), 0);
    k->path = copy;
    bank_kit_reopen(k, false);
    while (t->there) forget(t, k);
    expect_sound(k);
    k->path = first;
    bank_kit_reopen(k, false);
    free((char *)copy);
    free(t);
}

/* ---- Banks of versions that did not do so --------------------------------------------------------------------------------- */

/* Writes it into the middle of a page of the closed bank, as moved rows would lie there. */
static void leave_in_a_gap(const bank_kit *k, const char *text)
{
    uint8_t *data = NULL;
    size_t n = 0, from, to;
    FILE *f;

    OK(is_file_read_all(is_fs_posix(), k->path, 1 << 28, &data, &n));
    assert_true(n > 3 * 4096);
    for (size_t page = n - 4096;; page -= 4096) {
        assert_true(page >= 2 * 4096); /* the second one says who points at whom */
        if (!bank_gap(data + page, 4096, 0, &from, &to) || to - from < strlen(text) + 64) continue;
        f = fopen(k->path, "r+");
        assert_non_null(f);
        assert_int_equal(fseek(f, (long)(page + (from + to) / 2), SEEK_SET), 0);
        assert_int_equal(fwrite(text, strlen(text), 1, f), 1);
        assert_int_equal(fclose(f), 0);
        break;
    }
    is_free(data);
}

/* Back to a version that lacks what came after 5. */
static void set_version(const bank_kit *k, int version)
{
    sqlite3 *db = NULL;
    char text[600];

    snprintf(text, sizeof text,
             "DROP TABLE IF EXISTS home; DROP TABLE calibrations; DROP INDEX segments_outdated;"
             " ALTER TABLE segments DROP COLUMN outdated; DROP INDEX segments_wide;"
             " ALTER TABLE segments DROP COLUMN wide; ALTER TABLE fact_versions DROP COLUMN dated;"
             " ALTER TABLE turns DROP COLUMN dated; PRAGMA user_version = %d", version);
    assert_int_equal(sqlite3_open(k->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void an_older_bank_is_swept(void **state)
{
    static const char left[] = "what an older version left behind";
    bank_kit *k = *state;
    texts *t = calloc(1, sizeof *t);

    t->seed = scratch_seed("an older bank");
    for (int i = 0; i < 60; i++) a_step(t, k);
    for (int version = 4; version <= 5; version++) {
        is_bank_close(k->bank);
        k->bank = NULL;
        set_version(k, version);
        leave_in_a_gap(k, left);
        assert_true(kit_on_disk(k, left));
        bank_kit_reopen(k, false);
        assert_int_equal(kit_on_disk(k, left), version == 5); /* where nothing can be there, nothing is looked for */
    }
    expect_sound(k);
    free(t);
}

/* ---- Pages ---------------------------------------------------------------------------------------------------------------- */

static void what_is_no_page_of_cells_has_no_gap(void **state)
{
    unsigned long long seed = scratch_seed("pages of chance");
    uint8_t page[1024];
    size_t from, to, found = 0;
    (void)state;

    for (int i = 0; i < 200000; i++) {
        const size_t h = scratch_below(&seed, 2) ? 100 : 0;

        for (size_t k = 0; k < sizeof page; k++) page[k] = (uint8_t)scratch_next(&seed);
        page[h] = (uint8_t[]){ 2, 5, 10, 13, 1, 0 }[scratch_below(&seed, 6)];
        page[h + 3] = 0;
        page[h + 4] = (uint8_t)scratch_below(&seed, 3);
        page[h + 5] = (uint8_t)scratch_below(&seed, 6);
        if (!bank_gap(page, sizeof page, h, &from, &to)) continue;
        found++;
        assert_true(page[h] != 0 && page[h] != 1);
        assert_true(from >= h + 8 + 2u * page[h + 4] && from <= to && to <= sizeof page);
    }
    assert_true(found > 1000);
}

/* Another connection that moves the log into the database again and again, as each does on its own now and then. */
typedef struct mover { const char *path; int stop; unsigned n; } mover;

static void *move_the_log(void *arg)
{
    mover *m = arg;
    sqlite3 *db = NULL;

    if (sqlite3_open(m->path, &db) == SQLITE_OK && sqlite3_exec(db, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL) == SQLITE_OK)
        for (; !__atomic_load_n(&m->stop, __ATOMIC_RELAXED); __atomic_fetch_add(&m->n, 1, __ATOMIC_RELAXED))
            sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    sqlite3_close(db);
    return NULL;
}

static void who_empties_the_log_waits_for_one_who_moves_it(void **state)
{
    bank_kit *k = *state;
    mover m = { .path = k->path };
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, move_the_log, &m), 0);
    while (__atomic_load_n(&m.n, __ATOMIC_RELAXED) < 10) continue;
    for (int i = 0; i < 200; i++) OK(is_bank_cut_log(k->bank, 60000));
    __atomic_store_n(&m.stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_forgotten_is_in_a_file, bank_kit_setup, bank_kit_teardown),
        cmocka_unit_test_setup_teardown(nothing_forgotten_is_in_a_copy, bank_kit_setup, bank_kit_teardown),
        cmocka_unit_test_setup_teardown(an_older_bank_is_swept, bank_kit_setup, bank_kit_teardown),
        cmocka_unit_test_setup_teardown(who_empties_the_log_waits_for_one_who_moves_it, bank_kit_setup, bank_kit_teardown),
        cmocka_unit_test(what_is_no_page_of_cells_has_no_gap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
