/* Power loss at any write, sync, rename or unlink of the whole store, in SQLite's manner: a script of public calls runs on a disk that
 * remembers what is not synced (support/fault_disk.h); at each point at which something new waits or is about to be synced, what the
 * disk would hold after a power loss is made in another folder (the waiting writes dropped, kept, torn, spoilt, or a mixture), and opened
 * there. Then every acknowledged call is in force, the one in flight is wholly there or not at all, forgotten text is nowhere, the
 * database is sound, the vault holds only what the books know, and encoding, asking and remembering work. Some images lose their
 * power a second time, while they are being opened and encoded.
 *
 * In a test run a random part of the points is tried; with INFERSCALE_SOAK=seconds script after script at all of them, and a line of
 * JSON says how many. */
#include <ftw.h>
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
#include <sqlite3.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "bank/bank.h"
#include "kv/vault.h"
#include "support/fault_fs.h"
#include "support/fault_vfs.h"
#include "support/scratch.h"
#include "support/soak.h"

enum { OWNERS = 2, ITEMS_MAX = 400, TEXT = 120, CALLS = 26, IMAGES = 240 };

static const inferscale_scope owners[OWNERS] = { { .user = "anna" }, { .user = "ben", .tenant = "t" } };
static char plugins[1024];

/* ---- What must be there -------------------------------------------------------------------------------------------------- */

/* An item by its text, which is unique: as acknowledged, and as it is once the call in flight is done; "" = not there. */
typedef struct item {
    int owner, kind;
    int64_t id;
    char now[TEXT], after[TEXT];
} item;

typedef struct run {
    unsigned long long seed, dice;
    char *folder, *root, *home; /* root: what is on the disk; home: the store in it */
    fault_clock *clock;
    fault_disk *disk;
    fault_fs *fs;
    fault_clock *calm_clock; /* for what is looked at: nothing fails, nothing waits for the real disk */
    fault_fs *calm;
    inferscale *is;
    item items[ITEMS_MAX];
    size_t n;
    char gone[ITEMS_MAX][TEXT]; /* forgotten, acknowledged */
    size_t n_gone;
    unsigned serial;
    const char *call;        /* in flight */
    double chance;           /* of a fate at a point to be tried */
    bool counting;           /* only counts points */
    double end_ms;           /* soaking: no more images from then on, in the midst of a script; 0 = no end */
    unsigned long points, images, second; /* points seen, images checked, of these after a second loss */
} run;

static bool lives(const item *it) { return it->now[0] != 0; }

static const char *new_text(run *r, const char *what, char out[TEXT])
{
    snprintf(out, TEXT, "%s number %u keeps the word n%016llx in mind.", what, r->serial, scratch_next(&r->seed));
    r->serial++;
    return out;
}

static item *add_item(run *r, int owner, int kind, const char *what)
{
    item *it = &r->items[r->n++];

    assert_true(r->n < ITEMS_MAX);
    *it = (item){ .owner = owner, .kind = kind };
    new_text(r, what, it->after);
    return it;
}

/* The call returned: what it was to do is acknowledged. */
static void acknowledge(run *r)
{
    for (size_t i = 0; i < r->n; i++) {
        item *it = &r->items[i];

        if (lives(it) && !it->after[0]) memcpy(r->gone[r->n_gone++], it->now, TEXT);
        memcpy(it->now, it->after, TEXT);
    }
    r->call = "nothing";
}

/* ---- What is there after the power came back ----------------------------------------------------------------------------- */

static char where[160]; /* for messages */

#define CHECK(cond, ...)                                                                                                       \
    do {                                                                                                                       \
        if (!(cond)) {                                                                                                         \
            print_error("%s: ", where);                                                                                        \
            print_error(__VA_ARGS__);                                                                                          \
            print_error("\n");                                                                                                 \
            fail();                                                                                                            \
        }                                                                                                                      \
    } while (0)
#define WORKS(expr) CHECK((expr) == INFERSCALE_OK, "%s: %s", #expr, inferscale_error())

static inferscale *open_store(const char *home)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = home;
    o.engine = "mock";
    o.plugin_dir = plugins;
    o.policy = "facts:2";
    WORKS(inferscale_open(&is, &o));
    return is;
}

static bool listed(const inferscale_list *l, const char *text)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->items[i].text, text)) return true;
    return false;
}

/* All acknowledged items, and the call in flight wholly done (1), not at all (0); -1 = it changes nothing here. */
static void expect_items(const run *r, inferscale *is)
{
    int done = -1;

    for (int o = 0; o < OWNERS; o++) {
        inferscale_list *l = NULL;
        size_t expected = 0;

        WORKS(inferscale_ls(is, &owners[o], 0, 0, 0, &l));
        for (size_t i = 0; i < r->n; i++) {
            const item *it = &r->items[i];
            bool changes = strcmp(it->now, it->after) != 0, as_now, as_after;

            if (it->owner != o) continue;
            as_now = it->now[0] ? listed(l, it->now) : !it->after[0] || !listed(l, it->after);
            as_after = it->after[0] ? listed(l, it->after) : !it->now[0] || !listed(l, it->now);
            if (!changes) CHECK(as_now, "\"%s\" was acknowledged and is lost", it->now);
            else CHECK(as_now != as_after, "\"%s\" -> \"%s\" is neither", it->now, it->after);
            if (changes && done < 0) done = as_after;
            if (changes) CHECK(done == as_after, "the call in flight is half there: %s", it->after[0] ? it->after : it->now);
            expected += changes && done ? it->after[0] != 0 : it->now[0] != 0;
        }
        CHECK(l->n == expected, "%zu items are listed, not %zu", l->n, expected);
        for (size_t i = 0; i < r->n_gone; i++) CHECK(!listed(l, r->gone[i]), "\"%s\" was forgotten and is back", r->gone[i]);
        inferscale_list_free(l);
    }
}

static void expect_sound(const char *bank_path)
{
    static const char *const pragmas[] = { "PRAGMA integrity_check", "PRAGMA foreign_key_check" };
    sqlite3 *db = NULL;

    CHECK(sqlite3_open_v2(bank_path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK, "cannot open %s", bank_path);
    for (int i = 0; i < 2; i++) {
        sqlite3_stmt *s = NULL;
        int rc;

        CHECK(sqlite3_prepare_v2(db, pragmas[i], -1, &s, NULL) == SQLITE_OK, "%s: %s", pragmas[i], sqlite3_errmsg(db));
        rc = sqlite3_step(s);
        if (i == 0) CHECK(rc == SQLITE_ROW && !strcmp((const char *)sqlite3_column_text(s, 0), "ok"), "integrity_check: %s",
                          rc == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : sqlite3_errmsg(db));
        else CHECK(rc == SQLITE_DONE, "foreign_key_check found a row of %s", (const char *)sqlite3_column_text(s, 0));
        sqlite3_finalize(s);
    }
    sqlite3_close(db);
}

/* Walks the store's files: bytes of forgotten text, and segments that no row of the books names. */
static struct { const run *r; sqlite3_stmt *named; } walk;

static bool in_books(const uint8_t name[IS_HASH_BYTES])
{
    bool found;

    sqlite3_bind_blob(walk.named, 1, name, IS_HASH_BYTES, SQLITE_STATIC);
    found = sqlite3_step(walk.named) == SQLITE_ROW;
    sqlite3_reset(walk.named);
    return found;
}

static int look_at_file(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    const char *dot = strrchr(path, '.');
    uint8_t *data = NULL;
    size_t n = 0;
    is_segment *seg = NULL;

    (void)s;
    (void)ftw;
    if (type != FTW_F) return 0;
    if (is_file_read_all(is_fs_posix(), path, 1 << 28, &data, &n) != INFERSCALE_OK) return 0;
    for (size_t i = 0; i < walk.r->n_gone; i++) {
        const char *needle = strstr(walk.r->gone[i], " n") + 1;

        CHECK(!memmem(data, n, needle, 17), "the forgotten \"%s\" stands in %s", walk.r->gone[i], path);
    }
    is_free(data);
    if (!walk.named || !dot || strcmp(dot, ".seg")) return 0;
    if (is_segment_read(is_fs_posix(), path, &seg) != INFERSCALE_OK) return 0; /* torn: read as absent */
    CHECK(in_books(is_segment_info(seg)->name), "%s is a whole segment that the books do not know", path);
    is_segment_unref(seg);
    return 0;
}

static void expect_no_trace(const run *r, const char *home, bool books)
{
    char path[600];
    sqlite3 *db = NULL;

    snprintf(path, sizeof path, "%s/bank.sqlite", home);
    walk.r = r;
    walk.named = NULL;
    if (books) {
        CHECK(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK, "cannot open %s", path);
        CHECK(sqlite3_prepare_v2(db, "SELECT 1 FROM segments WHERE name = ?1", -1, &walk.named, NULL) == SQLITE_OK, "%s",
              sqlite3_errmsg(db));
    }
    nftw(home, look_at_file, 16, FTW_PHYS);
    sqlite3_finalize(walk.named);
    sqlite3_close(db);
}

static void expect_answers(const run *r, inferscale *is)
{
    for (int o = 0; o < OWNERS; o++) {
        inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_answer *a = NULL;

        ask.max_tokens = 40;
        WORKS(inferscale_ask(is, &owners[o], "Which number keeps which word in mind?", &ask, &a));
        for (size_t i = 0; i < r->n_gone; i++)
            CHECK(!strstr(a->text, strstr(r->gone[i], " n") + 1), "an answer tells what was forgotten: %s", a->text);
        inferscale_answer_free(a);
    }
}

static void expect_works_on(inferscale *is)
{
    inferscale_fact f = { .text = "And life goes on." };
    inferscale_event e = { 0 };
    inferscale_list *l = NULL;

    WORKS(inferscale_remember(is, &owners[0], &f, 1, &e));
    for (int o = 0; o < OWNERS; o++) WORKS(inferscale_encode(is, &owners[o], NULL));
    WORKS(inferscale_ls(is, &owners[0], INFERSCALE_FACTS, 0, 0, &l));
    for (size_t i = 0; i < l->n; i++) CHECK(l->items[i].kv_ready, "\"%s\" has no KV after encoding", l->items[i].text);
    inferscale_list_free(l);
}

/* Everything that must hold of a store after a power loss. */
static void expect_whole(const run *r, const char *home)
{
    char bank[640];
    struct stat s;
    inferscale *is;

    snprintf(bank, sizeof bank, "%s/bank.sqlite", home);
    if (stat(bank, &s) != 0) /* not even created: nothing can have been acknowledged */
        for (size_t i = 0; i < r->n; i++) CHECK(!lives(&r->items[i]), "the whole store is lost");
    is = open_store(home);
    expect_items(r, is);
    expect_sound(bank);
    expect_answers(r, is);
    expect_no_trace(r, home, true);
    expect_works_on(is);
    expect_answers(r, is);
    inferscale_close(is);
    expect_no_trace(r, home, true);
}

/* ---- Losing power -------------------------------------------------------------------------------------------------------- */

static double next_chance(run *r)
{
    return (double)(scratch_next(&r->dice) >> 11) / 9007199254740992.0;
}

typedef struct second { run *r; const char *to; unsigned at, seen; enum fault_fate fate; bool taken; } second;

static void second_point(void *ctx, fault_disk *d)
{
    second *s = ctx;

    if (++s->seen != s->at) return;
    fault_disk_image(d, s->to, s->fate, scratch_next(&s->r->dice));
    s->taken = true;
}

/* Opens and encodes what is in root on a disk of its own, which loses power at some point; what is left stands in `to`. */
static bool lose_again(run *r, const char *root, const char *home, const char *to)
{
    second s = { .r = r, .to = to, .at = 1 + scratch_below(&r->dice, 60), .fate = (enum fault_fate)scratch_below(&r->dice, FATES) };
    fault_clock *clock = fault_clock_new();
    fault_disk *disk = fault_disk_new(root);
    fault_fs *fs = fault_fs_on(clock, disk);
    inferscale *is;

    fault_disk_on_point(disk, second_point, &s);
    fault_vfs_use(clock, disk);
    is_fs_set_default(fault_fs_fs(fs));
    is = open_store(home);
    for (int o = 0; o < OWNERS; o++) WORKS(inferscale_encode(is, &owners[o], NULL));
    inferscale_close(is);
    is_fs_set_default(fault_fs_fs(r->calm));
    fault_vfs_use(NULL, NULL);
    fault_fs_free(fs);
    fault_disk_free(disk);
    fault_clock_free(clock);
    return s.taken;
}

static void try_fate(run *r, enum fault_fate fate)
{
    char *image = strdup(scratch_path(r->folder, "image")), *again = strdup(scratch_path(r->folder, "again"));
    char home[600];
    bool twice = next_chance(r) < 0.15;

    snprintf(where, sizeof where, "point %lu (%s), fate %s%s", r->points, r->call, fault_fate_name(fate), twice ? ", twice" : "");
    fault_disk_image(r->disk, image, fate, scratch_next(&r->dice));
    is_fs_set_default(fault_fs_fs(r->calm));
    fault_vfs_use(NULL, NULL);
    snprintf(home, sizeof home, "%s/store", image);
    if (fate == FATE_DROP) expect_no_trace(r, home, false); /* before anything is put right */
    if (twice && lose_again(r, image, home, again)) {
        snprintf(home, sizeof home, "%s/store", again);
        r->second++;
    }
    expect_whole(r, home);
    r->images++;
    fault_vfs_use(r->clock, r->disk);
    is_fs_set_default(fault_fs_fs(r->fs));
    scratch_remove(image);
    scratch_remove(again);
}

static void on_point(void *ctx, fault_disk *d)
{
    run *r = ctx;

    r->points++;
    if (r->counting || (r->end_ms > 0 && is_now_ms() > r->end_ms)) return;
    fault_disk_on_point(d, NULL, NULL); /* what the check does is not on this disk */
    for (int fate = 0; fate < FATES; fate++)
        if (next_chance(r) < r->chance) try_fate(r, (enum fault_fate)fate);
    fault_disk_on_point(d, on_point, r);
}

/* ---- The script ---------------------------------------------------------------------------------------------------------- */

static item *any(run *r, int owner, int kind)
{
    unsigned n = 0;

    for (size_t i = 0; i < r->n; i++) n += lives(&r->items[i]) && r->items[i].owner == owner && r->items[i].kind & kind;
    if (!n) return NULL;
    n = scratch_below(&r->seed, n);
    for (size_t i = 0;; i++)
        if (lives(&r->items[i]) && r->items[i].owner == owner && r->items[i].kind & kind && n-- == 0) return &r->items[i];
}

static void do_remember(run *r, int o)
{
    size_t n = 1 + scratch_below(&r->seed, 3), first = r->n;
    const item *turn = any(r, o, INFERSCALE_TURNS);
    inferscale_fact f[3] = { { 0 } };
    inferscale_event e[3];

    r->call = "remember";
    for (size_t i = 0; i < n; i++) {
        f[i].text = add_item(r, o, INFERSCALE_FACTS, "Fact")->after;
        f[i].event_time = 1714521600 + (int64_t)r->serial;
        f[i].source_turn = turn ? turn->id : 0;
    }
    WORKS(inferscale_remember(r->is, &owners[o], f, n, e));
    for (size_t i = 0; i < n; i++) r->items[first + i].id = e[i].id;
}

static void do_turns(run *r, int o)
{
    size_t n = 1 + scratch_below(&r->seed, 4), first = r->n;
    inferscale_turn t[4] = { { 0 } };
    int64_t ids[4];

    r->call = "add_turns";
    for (size_t i = 0; i < n; i++) t[i].text = add_item(r, o, INFERSCALE_TURNS, "Turn")->after;
    WORKS(inferscale_add_turns(r->is, &owners[o], t, n, ids));
    for (size_t i = 0; i < n; i++) r->items[first + i].id = ids[i];
}

static void do_update(run *r, int o)
{
    item *it = any(r, o, INFERSCALE_FACTS);
    inferscale_fact f = { 0 };

    if (!it) return;
    r->call = "update";
    f.text = new_text(r, "Update", it->after);
    WORKS(inferscale_update(r->is, &owners[o], it->id, &f));
    memcpy(it->now, it->after, TEXT); /* the old version is history, not forgotten */
}

static void do_forget(run *r, int o)
{
    item *it = any(r, o, INFERSCALE_FACTS | INFERSCALE_TURNS);

    if (!it) return;
    r->call = "forget";
    it->after[0] = 0;
    WORKS(inferscale_forget(r->is, &owners[o], &it->id, 1, NULL));
}

static void do_forget_all(run *r, int o)
{
    r->call = "forget_all";
    for (size_t i = 0; i < r->n; i++)
        if (r->items[i].owner == o) r->items[i].after[0] = 0;
    WORKS(inferscale_forget_all(r->is, &owners[o], NULL));
}

static void do_encode(run *r, int o)
{
    r->call = "encode";
    WORKS(inferscale_encode(r->is, &owners[o], NULL));
}

static void do_ask(run *r, int o)
{
    inferscale_answer *a = NULL;

    r->call = "ask";
    WORKS(inferscale_ask(r->is, &owners[o], "Which word does the last one keep in mind?", NULL, &a));
    inferscale_answer_free(a);
}

static void do_reopen(run *r, int o)
{
    (void)o;
    r->call = "close";
    inferscale_close(r->is);
    r->call = "open";
    r->is = open_store(r->home);
}

/* Once every call has returned, nothing may be in doubt: all fates are tried. */
static void after_call(run *r)
{
    acknowledge(r);
    if (r->counting || (r->end_ms > 0 && is_now_ms() > r->end_ms)) return;
    fault_disk_on_point(r->disk, NULL, NULL);
    for (int fate = 0; fate < FATES; fate++)
        if (fate == FATE_DROP || next_chance(r) < 4 * r->chance) try_fate(r, (enum fault_fate)fate);
    fault_disk_on_point(r->disk, on_point, r);
}

static void script(run *r)
{
    static void (*const steps[])(run *, int) = { do_remember, do_turns, do_remember, do_encode, do_update, do_forget, do_encode, do_ask,
                                                 do_forget, do_reopen };

    r->call = "open";
    r->is = open_store(r->home);
    after_call(r);
    for (int i = 0; i < CALLS; i++) {
        unsigned step = i < 7 ? (unsigned)i : scratch_below(&r->seed, sizeof steps / sizeof *steps);

        (i == CALLS - 4 ? do_forget_all : steps[step])(r, i < 7 ? 0 : (int)scratch_below(&r->seed, OWNERS));
        after_call(r);
    }
    r->call = "close";
    inferscale_close(r->is);
    r->is = NULL;
    after_call(r);
}

static void begin_run(run *r, unsigned long long seed)
{
    char *made = scratch_make();

    r->seed = r->dice = seed;
    r->n = r->n_gone = r->serial = 0;
    r->folder = realpath(made, NULL);
    free(made);
    r->root = strdup(scratch_path(r->folder, "disk"));
    assert_int_equal(mkdir(r->root, 0700), 0);
    r->home = strdup(scratch_path(r->root, "store"));
    r->clock = fault_clock_new();
    r->disk = fault_disk_new(r->root);
    r->fs = fault_fs_on(r->clock, r->disk);
    r->calm_clock = fault_clock_new();
    r->calm = fault_fs_on(r->calm_clock, NULL);
    fault_vfs_use(r->clock, r->disk);
    is_fs_set_default(fault_fs_fs(r->fs));
    fault_disk_on_point(r->disk, on_point, r);
}

static void end_run(run *r)
{
    is_fs_set_default(NULL);
    assert_int_equal(fault_fs_open_files(r->fs), 0);
    fault_fs_free(r->fs);
    fault_fs_free(r->calm);
    fault_clock_free(r->calm_clock);
    fault_disk_free(r->disk);
    fault_clock_free(r->clock);
    free(r->root);
    free(r->home);
    scratch_remove(r->folder);
}

static void power_loss_at_every_point(void **state)
{
    unsigned long long seed = scratch_seed("power loss");
    static run r;
    double end = is_now_ms() + 1000.0 * soak_seconds();
    unsigned scripts = 0;

    (void)state;
    memset(&r, 0, sizeof r);
    r.end_ms = soak_seconds() > 0 ? end : 0;
    fault_vfs_install(NULL, NULL);
    do {
        unsigned long points;

        r.counting = true;
        begin_run(&r, seed);
        script(&r);
        end_run(&r);
        points = r.points;
        r.points = 0;
        assert_true(points > 100);
        r.counting = false;
        r.chance = soak_seconds() ? 1.0 : (double)IMAGES / (double)(points * FATES);
        begin_run(&r, seed);
        script(&r);
        end_run(&r);
        scripts++;
        if (!soak_seconds()) print_message("%lu points, %lu images, %lu after a second loss\n", r.points, r.images, r.second);
        scratch_next(&seed);
    } while (is_now_ms() < end);
    fault_vfs_remove();
    assert_true(r.images > (soak_seconds() > 0 ? 10 : 100));
    soak_report("crash_points", "\"scripts\":%u,\"points\":%lu,\"faults\":%lu,\"second\":%lu,\"lost\":0", scripts, r.points, r.images, r.second);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(power_loss_at_every_point) };

    soak_plugins(plugins, sizeof plugins);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
