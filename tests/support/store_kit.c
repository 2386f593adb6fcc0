/* store_kit.c - whole stores for tests. */
#include "support/store_kit.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "support/scratch.h"

const inferscale_scope store_anna = { .user = "anna" }, store_ben = { .user = "ben", .tenant = "north" };

static const char *plugins(void)
{
    static char path[1024];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    assert_true(n > 0);
    path[n] = 0;
    *strrchr(path, '/') = 0;
    *strrchr(path, '/') = 0;
    return path;
}

inferscale_options store_options(const char *home)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = home;
    o.engine = "mock";
    o.refine = "none";
    o.plugin_dir = plugins();
    return o;
}

inferscale *store_open(const char *home, const char *model, const char *embedder, bool read_only)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;

    o.model = model;
    o.embedder = embedder;
    o.read_only = read_only;
    OK(inferscale_open(&is, &o));
    return is;
}

int64_t store_fact(inferscale *is, const inferscale_scope *who, const char *text)
{
    inferscale_fact f = { .text = text, .event_time = 1714521600 };
    inferscale_event e;

    memset(&e, 0, sizeof e);
    OK(inferscale_remember(is, who, &f, 1, &e));
    return e.id;
}

void store_fill(inferscale *is, int n, bool encode)
{
    static const char *const things[] = { "peanuts", "a cello", "tomatoes", "heights", "a bicycle", "Oslo", "coffee", "ships" };
    inferscale_turn turns[3] = { { .text = "I cannot eat peanuts.", .speaker = "Anna", .external_id = "m-1", .time = 1714521000 },
                                 { .text = "Noted.", .speaker = "Bot", .time = 1714521001 },
                                 { .text = "Good.", .speaker = "Anna", .time = 1714521002 } };
    char text[120];

    OK(inferscale_add_turns(is, &store_anna, turns, 3, NULL));
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "Anna thinks of %s on day number %d.", things[i % 8], i);
        store_fact(is, &store_anna, text);
        snprintf(text, sizeof text, "Ben has %s, and that is note %d.", things[(i + 3) % 8], i);
        if (i % 2) store_fact(is, &store_ben, text);
    }
    if (encode) store_encode(is);
}

void store_encode(inferscale *is)
{
    OK(inferscale_encode(is, &store_anna, NULL));
    OK(inferscale_encode(is, &store_ben, NULL));
}

static void dump_list(FILE *f, const inferscale_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const inferscale_item *t = &l->items[i];

        fprintf(f, "%lld %d v%d %lld %lld %lld %lld %lld turn %lld [%s] [%s] [%s] [%s] %s [%s] [%s] [%s] [%s]\n", (long long)t->id, t->kind,
                t->version, (long long)t->event_time, (long long)t->write_time, (long long)t->valid_from, (long long)t->valid_to,
                (long long)t->expires, (long long)t->source_turn, t->text, t->speaker, t->conversation, t->external_id, t->metadata, t->user,
                t->agent, t->run, t->app);
    }
}

char *store_dump(inferscale *is)
{
    const inferscale_scope *const owners[] = { &store_anna, &store_ben };
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    assert_non_null(f);
    for (size_t o = 0; o < 2; o++) {
        inferscale_list *all = NULL;

        OK(inferscale_ls(is, owners[o], 0, 0, 0, &all));
        for (size_t i = 0; i < all->n; i++) {
            inferscale_list *versions = NULL;

            OK(inferscale_show(is, owners[o], all->items[i].id, &versions));
            dump_list(f, versions);
            inferscale_list_free(versions);
        }
        inferscale_list_free(all);
    }
    fclose(f);
    return text;
}

inferscale_answer *store_ask(inferscale *is)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.k = 6;
    OK(inferscale_ask(is, &store_anna, "What does Anna think of on day number 3?", &o, &a));
    return a;
}

/* ---- fsck ---------------------------------------------------------------------------------------------------------------- */

inferscale_fsck_report *store_fsck(const char *home, bool repair)
{
    inferscale_fsck_options o = INFERSCALE_FSCK_OPTIONS_INIT;
    inferscale_fsck_report *r = NULL;
    inferscale *is = store_open(home, NULL, NULL, !repair);

    o.repair = repair;
    OK(inferscale_fsck(is, &o, &r));
    inferscale_close(is);
    return r;
}

size_t store_count_kind(const inferscale_fsck_report *r, const char *kind)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n_problems; i++) n += strcmp(r->problems[i].kind, kind) == 0;
    return n;
}

void store_print(const inferscale_fsck_report *r)
{
    for (size_t i = 0; i < r->n_problems; i++)
        print_error("  %s: %s%s\n", r->problems[i].kind, r->problems[i].what,
                    r->problems[i].repaired > 0 ? " (repaired)" : "");
}

void store_expect_sound(const char *home)
{
    inferscale_fsck_report *r = store_fsck(home, false);

    if (!r->ok || r->n_problems) {
        store_print(r);
        fail_msg("%zu problems in %s", r->n_problems, home);
    }
    inferscale_fsck_free(r);
}

/* ---- Past the library ------------------------------------------------------------------------------------------------------ */

static sqlite3 *raw(const char *home)
{
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open(scratch_path(home, "bank.sqlite"), &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

void store_sql(const char *home, const char *sql)
{
    sqlite3 *db = raw(home);
    char *error = NULL;

    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK) fail_msg("%s: %s", sql, error);
    sqlite3_close(db);
}

int64_t store_sql_int(const char *home, const char *sql)
{
    sqlite3 *db = raw(home);
    sqlite3_stmt *s = NULL;
    int64_t v;

    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK) fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return v;
}

char *store_truth(const char *home)
{
    static const char *const selects[] = {
        "SELECT * FROM items ORDER BY 1", "SELECT * FROM fact_versions ORDER BY 1, 2, 3", "SELECT * FROM turns ORDER BY 1, 2",
        "SELECT * FROM conversations ORDER BY 1", "SELECT id, tenant, owner_kind, owner, hex(key) FROM partitions ORDER BY 1",
        "SELECT partition_id, hex(hash) FROM tombstones ORDER BY 1, 2",
    };
    sqlite3 *db = raw(home);
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    for (size_t i = 0; i < sizeof selects / sizeof *selects; i++) {
        sqlite3_stmt *s = NULL;

        assert_int_equal(sqlite3_prepare_v2(db, selects[i], -1, &s, NULL), SQLITE_OK);
        while (sqlite3_step(s) == SQLITE_ROW) {
            for (int c = 0; c < sqlite3_column_count(s); c++) {
                const char *v = (const char *)sqlite3_column_text(s, c);

                fprintf(f, "%s|", v ? v : "NULL");
            }
            fputc('\n', f);
        }
        sqlite3_finalize(s);
    }
    fclose(f);
    sqlite3_close(db);
    return text;
}

static const char *wanted_suffix;
static char **found;
static size_t n_found;

static int collect(const char *path, const struct stat *sb, int flag, struct FTW *ftw)
{
    size_t n = strlen(path), m = strlen(wanted_suffix);

    if (flag != FTW_F || n < m || strcmp(path + n - m, wanted_suffix) != 0) return 0;
    found = realloc(found, (n_found + 1) * sizeof *found);
    found[n_found++] = strdup(path);
    return 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **store_files(const char *home, const char *suffix, size_t *n)
{
    wanted_suffix = suffix;
    found = calloc(1, sizeof *found);
    n_found = 0;
    (void)nftw(scratch_path(home, "vault"), collect, 16, FTW_PHYS);
    qsort(found, n_found, sizeof *found, by_path);
    *n = n_found;
    return found;
}

void store_files_free(char **files, size_t n)
{
    for (size_t i = 0; i < n; i++) free(files[i]);
    free(files);
}

void store_write(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

void *store_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat s;
    char *bytes;

    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &s), 0);
    *n = (size_t)s.st_size;
    bytes = malloc(*n + 1);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    bytes[*n] = 0;
    return bytes;
}

void store_copy(const char *from, const char *to)
{
    char command[600];

    snprintf(command, sizeof command, "rm -rf '%s' && cp -a '%s' '%s'", to, from, to);
    assert_int_equal(system(command), 0);
}
