/* Something fails inside every public call: the nth allocation (ours and the plug-in's), the nth of SQLite's, the nth read, write,
 * sync, open, rename or unlink of the whole store; once, and from then on. The call gives an error with a sentence or succeeds; nothing
 * crashes or leaks (the sanitizers look), no lock stays held, no acknowledged write is lost, none is half there; and when the fault is
 * over the same handle does everything again. A call that is not in the table of support/calls.c fails the last test.
 *
 * In a test run some n are tried where there are many, at random from a printed seed; with INFERSCALE_SOAK=seconds all of them, again
 * and again. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "support/calls.h"
#include "support/fault_fs.h"
#include "support/fault_vfs.h"
#include "support/scratch.h"
#include "support/soak.h"

static char plugins[1024];
static fault_clock *io;
static unsigned long long seed;
static unsigned long tried, injected, refused; /* tries, faults, calls that failed for it */

/* ---- SQLite's memory ----------------------------------------------------------------------------------------------------- */

static sqlite3_mem_methods real_mem;
static _Thread_local size_t sql_calls, sql_fail_at;
static _Thread_local bool sql_sticky, sql_failed;

static bool sql_refuses(void)
{
    sql_calls++;
    if (!sql_fail_at || (sql_sticky ? sql_calls < sql_fail_at : sql_calls != sql_fail_at)) return false;
    return sql_failed = true;
}

static void *sql_malloc(int n) { return sql_refuses() ? NULL : real_mem.xMalloc(n); }
static void *sql_realloc(void *p, int n) { return sql_refuses() ? NULL : real_mem.xRealloc(p, n); }

static void watch_sqlite_memory(void)
{
    sqlite3_mem_methods m;

    assert_int_equal(sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_mem), SQLITE_OK);
    m = real_mem;
    m.xMalloc = sql_malloc;
    m.xRealloc = sql_realloc;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_MALLOC, &m), SQLITE_OK);
}

static void arm_sqlite(unsigned n, bool sticky)
{
    sql_failed = false;
    sql_sticky = sticky;
    sql_calls = 0;
    sql_fail_at = n;
}

/* ---- The sorts of faults ------------------------------------------------------------------------------------------------- */

/* arm: the nth from now; n = 0 only counts. disarm: how many were injected; *seen = operations of that sort since armed. */
typedef struct fault_sort {
    const char *name;
    void (*arm)(unsigned n);
    unsigned (*disarm)(unsigned *seen);
    bool memory; /* of ours: then the status is OK or E_NOMEM */
} fault_sort;

static size_t mem_before;

static void arm_mem(unsigned n) { mem_before = is_mem_count(); is_mem_fail_at(n); }
static void arm_mem_from(unsigned n) { mem_before = is_mem_count(); if (n) is_mem_fail_from(n); else is_mem_fail_at(0); }
static void arm_sql(unsigned n) { arm_sqlite(n, false); }
static void arm_sql_from(unsigned n) { arm_sqlite(n, true); }
static void arm_io(unsigned n) { fault_clock_refuse(io, FAULT_ANY, EIO, n, false); }
static void arm_io_from(unsigned n) { fault_clock_refuse(io, FAULT_ANY, EIO, n, true); }
static void arm_full(unsigned n) { fault_clock_refuse(io, 1u << FAULT_WRITE | 1u << FAULT_SYNC, ENOSPC, n, false); }
static void arm_full_from(unsigned n) { fault_clock_refuse(io, 1u << FAULT_WRITE | 1u << FAULT_SYNC, ENOSPC, n, true); }

static unsigned disarm_mem(unsigned *seen)
{
    bool hit = is_mem_failed();

    *seen = (unsigned)(is_mem_count() - mem_before);
    is_mem_fail_at(0);
    return hit;
}

static unsigned disarm_sql(unsigned *seen)
{
    *seen = (unsigned)sql_calls;
    sql_fail_at = 0;
    return sql_failed;
}

static unsigned disarm_io(unsigned *seen)
{
    *seen = fault_clock_count(io, FAULT_ANY);
    fault_clock_off(io);
    return fault_clock_hits(io);
}

static unsigned disarm_full(unsigned *seen)
{
    *seen = fault_clock_count(io, 1u << FAULT_WRITE | 1u << FAULT_SYNC);
    fault_clock_off(io);
    return fault_clock_hits(io);
}

static const fault_sort sorts[] = {
    { "allocation", arm_mem, disarm_mem, true },
    { "allocations from", arm_mem_from, disarm_mem, true },
    { "SQLite's allocation", arm_sql, disarm_sql, true },
    { "SQLite's allocations from", arm_sql_from, disarm_sql, true },
    { "I/O", arm_io, disarm_io, false },
    { "I/Os from", arm_io_from, disarm_io, false },
    { "write, disk full,", arm_full, disarm_full, false },
    { "writes, disk full, from", arm_full_from, disarm_full, false },
};
enum { SORTS = sizeof sorts / sizeof *sorts };

/* ---- The loop ------------------------------------------------------------------------------------------------------------ */

static char doing[200]; /* told when something fails */
static char trouble[1200];

static void check_status(const fault_sort *s, inferscale_status st, unsigned hits, const char *sentence)
{
    bool good = st == INFERSCALE_OK;

    if (st == INFERSCALE_E_INTERNAL || st == INFERSCALE_E_INVALID) good = false;
    else if (s->memory) good = good || st == INFERSCALE_E_NOMEM;
    else good = good || st == INFERSCALE_E_IO || st == INFERSCALE_E_FULL;
    if (st != INFERSCALE_OK && !hits) good = false;
    if (!good) fail_msg("%s: %s: %s", doing, inferscale_status_name(st), sentence);
    if (st == INFERSCALE_OK) return;
    good = st == INFERSCALE_E_NOMEM ? strstr(sentence, "memory") != NULL : st == INFERSCALE_E_FULL ? strstr(sentence, "space") != NULL : strlen(sentence) > 10;
    if (!good) fail_msg("%s: %s has the sentence of something else: %s", doing, inferscale_status_name(st), sentence);
}

/* A fault must not leave commits that no longer wait for the disk. */
static void expect_durable(calls *c)
{
    inferscale_fact f = { .text = "This one waits for the disk." };

    fault_clock_refuse(io, 0, EIO, 0, false);
    assert_int_equal(inferscale_remember(c->is, &c->own, &f, 1, NULL), INFERSCALE_OK);
    if (fault_clock_count(io, 1u << FAULT_SYNC) == 0) fail_msg("a fact was acknowledged without a sync after %s", doing);
}

/* One try; true if the fault was met. */
static bool try_one(calls *c, const call_case *call, const fault_sort *s, unsigned n, bool thoroughly, unsigned *seen)
{
    inferscale_status st;
    unsigned hits;

    snprintf(doing, sizeof doing, "%s%s, %s %u", call->symbol, call->what, s->name, n);
    if (getenv("FAULTS_VERBOSE")) fprintf(stderr, "%s\n", doing);
    if (call->prepare) call->prepare(c);
    s->arm(n);
    st = call->run(c);
    hits = s->disarm(seen);
    snprintf(trouble, sizeof trouble, "%s", st == INFERSCALE_OK ? "" : inferscale_error());
    check_status(s, st, hits, trouble);
    if (!c->is) assert_int_equal(calls_open(c), INFERSCALE_OK);
    if (call->after) call->after(c, st);
    expect_durable(c);
    calls_expect_works(c, thoroughly);
    tried++;
    injected += hits;
    refused += st != INFERSCALE_OK;
    doing[0] = 0;
    return hits > 0;
}

/* All n, or `most` of them at random, at the first, second, ... of so many equal parts. */
static void torture(calls *c, const call_case *call, const fault_sort *s, unsigned most, double end)
{
    unsigned seen = 0, all, ignored;

    try_one(c, call, s, 0, true, &seen);
    all = seen;
    for (unsigned i = 0; i < (most && most < all ? most : all) && (end == 0 || is_now_ms() < end); i++) {
        unsigned n = i + 1;

        if (most && most < all) n = 1 + (unsigned)((i + scratch_below(&seed, 1000) / 1000.0) * all / most);
        try_one(c, call, s, n, i % 16 == 0, &ignored);
    }
}

/* only: NULL, or the symbol whose calls alone are tried. */
static void calls_with(const char *only, unsigned first_sort, unsigned n_sorts, unsigned most)
{
    char *folder = scratch_make();
    fault_fs *fs;
    calls c;
    double end = soak_seconds() > 0 ? is_now_ms() + 1000.0 * soak_seconds() / 4 : 0;

    io = fault_clock_new();
    fs = fault_fs_on(io, NULL);
    fault_vfs_install(io, NULL);
    is_fs_set_default(fault_fs_fs(fs));
    calls_begin(&c, folder, plugins);
    do {
        for (size_t i = 0; i < n_call_cases; i++)
            for (unsigned k = first_sort; k < first_sort + n_sorts; k++)
                if ((end == 0 || is_now_ms() < end) && (!only || strstr(call_cases[i].symbol, only)))
                    torture(&c, &call_cases[i], &sorts[k], end > 0 ? 0 : most, end);
    } while (end > 0 && is_now_ms() < end);
    calls_end(&c);
    assert_int_equal(fault_fs_open_files(fs), 0);
    is_fs_set_default(NULL);
    fault_vfs_remove();
    fault_fs_free(fs);
    fault_clock_free(io);
    scratch_remove(folder);
}

static void every_call_with(unsigned first_sort, unsigned n_sorts, unsigned most)
{
    calls_with(getenv("FAULTS_ONLY"), first_sort, n_sorts, most); /* a symbol: for hunting */
}

static int begin(void **state)
{
    (void)state;
    seed = scratch_seed("faults");
    return 0;
}

/* A failed test's fault must not reach the next. */
static int end_faults(void **state)
{
    (void)state;
    if (doing[0]) print_error("while: %s; the call said: %s\n", doing, trouble);
    doing[0] = 0;
    is_mem_fail_at(0);
    sql_fail_at = 0;
    is_fs_set_default(NULL);
    return 0;
}

static void our_allocations_fail(void **state) { (void)state; every_call_with(0, 2, 12); }
static void sqlite_allocations_fail(void **state) { (void)state; every_call_with(2, 2, 8); }
/* SQLite's JSON functions may say of what they had no memory to read that it is no JSON: each of the allocations, not some. */
static void metadata_is_not_blamed(void **state)
{
    (void)state;
    if (soak_seconds() > 0) return; /* there all are tried of every call */
    calls_with("inferscale_remember", 2, 2, 0);
}

/* Proving reads the bank's file itself: what it could not look at is an I/O error, not damage. Each of the operations. */
static void a_file_that_cannot_be_read_is_not_called_damaged(void **state)
{
    (void)state;
    if (soak_seconds() > 0) return;
    calls_with("inferscale_forget_with", 4, 1, 0);
}

static void io_fails(void **state) { (void)state; every_call_with(4, 2, 12); }
static void the_disk_is_full(void **state) { (void)state; every_call_with(6, 2, 8); }

static void report(void **state)
{
    (void)state;
    print_message("%lu tries, %lu faults, %lu calls failed for them\n", tried, injected, refused);
    assert_true(injected > 20 && refused > 20);
    soak_report("faults", "\"points\":%lu,\"faults\":%lu,\"refused\":%lu,\"lost\":0", tried, injected, refused);
}

/* ---- Every call is here -------------------------------------------------------------------------------------------------- */

static bool known(const char *symbol)
{
    for (size_t i = 0; i < n_call_cases; i++)
        if (!strcmp(call_cases[i].symbol, symbol)) return true;
    for (size_t i = 0; calls_cannot_fail[i]; i++)
        if (!strcmp(calls_cannot_fail[i], symbol)) return true;
    return false;
}

static void every_public_call_is_in_the_table(void **state)
{
    char path[1200], line[200];
    FILE *f;
    size_t n = 0;

    (void)state;
    snprintf(path, sizeof path, "%s/../../scripts/symbols.txt", plugins);
    f = fopen(path, "r");
    if (!f) fail_msg("cannot read %s", path);
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "inferscale", 10)) continue;
        n++;
        if (!known(line)) fail_msg("%s is in no fault loop: add it to tests/support/calls.c", line);
    }
    fclose(f);
    assert_true(n > 25);
}

#define LOOP(name) cmocka_unit_test_setup_teardown(name, begin, end_faults)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOOP(our_allocations_fail), LOOP(sqlite_allocations_fail), LOOP(metadata_is_not_blamed), LOOP(io_fails),
        LOOP(a_file_that_cannot_be_read_is_not_called_damaged), LOOP(the_disk_is_full),
        cmocka_unit_test(report), cmocka_unit_test(every_public_call_is_in_the_table),
    };

    soak_plugins(plugins, sizeof plugins);
    watch_sqlite_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
