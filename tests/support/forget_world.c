#include "support/forget_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/live.h"
#include "support/scratch.h"

unsigned fw_below(world *w, unsigned n)
{
    return scratch_below(&w->seed, n);
}

void fw_word(const world *w, int n, int version, char out[WORD])
{
    const item *x = &w->items[n];

    if (x->kind == INFERSCALE_FACTS) snprintf(out, WORD, "zq%05dv%dp%d", n, version, x->owner);
    else snprintf(out, WORD, "zt%05dv1p%d", n, x->owner);
}

/* One text in six is long enough to need pages of its own in the database. */
void fw_text(world *w, int n, int version, char out[6000])
{
    static const char *const words[] = { "lamp", "attic", "river", "winter", "clock", "paper", "garden", "copper" };
    char word[WORD];
    unsigned count = fw_below(w, 6) ? 3 + fw_below(w, 12) : 60;
    int at;

    fw_word(w, n, version, word);
    at = snprintf(out, 6000, "About %s:", word);
    for (unsigned i = 0; i < count; i++) at += snprintf(out + at, 6000 - (size_t)at, " %s", words[fw_below(w, 8)]);
    snprintf(out + at, 6000 - (size_t)at, " %s.", word); /* at both ends */
}

int fw_pick(world *w, int owner, int kind)
{
    for (int tries = 0; w->n_items && tries < 60; tries++) {
        int n = (int)fw_below(w, (unsigned)w->n_items);
        const item *x = &w->items[n];

        if (x->alive && (owner < 0 || x->owner == owner) && (!kind || x->kind == kind)) return n;
    }
    return -1;
}

int fw_item(const world *w, int64_t id)
{
    for (int n = 0; n < w->n_items; n++)
        if (w->items[n].id == id) return n;
    return -1;
}

/* ---- Sets ---------------------------------------------------------------------------------------------------------------- */

bool fw_set_has(const set *s, int64_t v)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i] == v) return true;
    return false;
}

void fw_set_add(set *s, int64_t v)
{
    if (fw_set_has(s, v)) return;
    s->v = realloc(s->v, (s->n + 1) * sizeof *s->v);
    assert_non_null(s->v);
    s->v[s->n++] = v;
}

void fw_set_join(set *s, const set *more)
{
    for (size_t i = 0; i < more->n; i++) fw_set_add(s, more->v[i]);
}

bool fw_set_within(const set *s, const set *all)
{
    for (size_t i = 0; i < s->n; i++)
        if (!fw_set_has(all, s->v[i])) return false;
    return true;
}

void fw_set_free(set *s)
{
    free(s->v);
    *s = (set){ 0 };
}

/* The items whose words stand in text[0..n). */
void fw_add_words(const world *w, const char *text, size_t n, set *out)
{
    for (const char *p = text; p + 2 < text + n; p++) {
        int number, version, owner;

        if (p[0] != 'z' || (p[1] != 'q' && p[1] != 't') || sscanf(p + 2, "%5dv%dp%1d", &number, &version, &owner) != 3) continue;
        assert_true(number < w->n_items);
        fw_set_add(out, w->items[number].id * 1000 + version);
    }
}

/* ---- The witness --------------------------------------------------------------------------------------------------------- */

segment *fw_known_by_name(world *w, const uint8_t *name)
{
    for (size_t i = 0; i < w->n_known; i++)
        if (memcmp(w->known[i].name, name, IS_HASH_BYTES) == 0) return &w->known[i];
    return NULL;
}

static void read_capture(world *w, const char *text)
{
    capture *x = &w->captures[w->n_captures++];

    assert_true(w->n_captures < CAPTURES);
    *x = (capture){ 0 };
    captured_read(text, &x->c);
    fw_add_words(w, x->c.context, strlen(x->c.context), &x->context);
    for (uint32_t i = 0; i < x->c.n_stored; i++) {
        const segment *s = fw_known_by_name(w, x->c.stored[i]);

        if (s) fw_set_join(&x->context, &s->from);
    }
}

void fw_free_captures(world *w)
{
    for (size_t i = 0; i < w->n_captures; i++) {
        fw_set_free(&w->captures[i].context);
        captured_free(&w->captures[i].c);
    }
    w->n_captures = 0;
}

/* A run that met something forgotten. */
static void check_run(const world *w, const char *text)
{
    set met = { 0 };

    fw_add_words(w, text, strlen(text), &met);
    for (size_t i = 0; i < met.n; i++) {
        const item *x = &w->items[fw_item(w, met.v[i] / 1000)];

        if (!x->alive || x->over || (int)(met.v[i] % 1000) != x->version)
            fail_msg("a run of the engine met item %lld version %d, which is gone or over", (long long)x->id, (int)(met.v[i] % 1000));
    }
    fw_set_free(&met);
}

/* What the engine did since the last time: captures are kept for the check of the books, runs are checked at once. */
void fw_read_witness(world *w)
{
    FILE *f = fopen(w->witness, "r");
    char *line = NULL, call[16];
    size_t cap = 0;

    fw_free_captures(w);
    if (!f) return; /* no engine yet */
    assert_int_equal(fseek(f, w->witness_at, SEEK_SET), 0);
    while (getline(&line, &cap, f) > 0) {
        int status, at = 0;

        line[strcspn(line, "\n")] = 0;
        assert_int_equal(sscanf(line, "%15s %*d %*u %*f %*f %d%n", call, &status, &at), 2);
        if (status != 0) continue;
        if (strcmp(call, "capture") == 0) read_capture(w, line + at);
        else if (strcmp(call, "start") == 0 || strcmp(call, "extend") == 0) check_run(w, line + at);
    }
    w->witness_at = ftell(f);
    free(line);
    fclose(f);
}

/* ---- The books, read past the library ------------------------------------------------------------------------------------ */

sqlite3 *fw_open_bank(const world *w)
{
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open_v2(scratch_path(w->store, "bank.sqlite"), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

sqlite3_stmt *fw_query(sqlite3 *db, const char *sql, int64_t bound)
{
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK) fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    if (sqlite3_bind_parameter_count(s)) sqlite3_bind_int64(s, 1, bound);
    return s;
}

static void read_deps(sqlite3 *db, segment *s)
{
    sqlite3_stmt *q = fw_query(db, "SELECT item_id, version FROM segment_deps WHERE segment_id = ?1", s->row);

    while (sqlite3_step(q) == SQLITE_ROW) fw_set_add(&s->from, sqlite3_column_int64(q, 0) * 1000 + sqlite3_column_int64(q, 1));
    sqlite3_finalize(q);
}

/* All rows of segments with their dependencies, in order of rows. free_segments. */
segment *fw_read_books(const world *w, size_t *n)
{
    sqlite3 *db = fw_open_bank(w);
    sqlite3_stmt *q = fw_query(db, "SELECT id, item_id, version, name, lead, n_passes FROM segments ORDER BY id", 0);
    segment *all = NULL;

    *n = 0;
    while (sqlite3_step(q) == SQLITE_ROW) {
        segment *s;

        all = realloc(all, (*n + 1) * sizeof *all);
        s = &all[(*n)++];
        *s = (segment){ .row = sqlite3_column_int64(q, 0), .item = sqlite3_column_int64(q, 1), .version = sqlite3_column_int(q, 2),
                        .lead = sqlite3_column_int(q, 4), .n_passes = sqlite3_column_int(q, 5) };
        assert_int_equal(sqlite3_column_bytes(q, 3), IS_HASH_BYTES);
        memcpy(s->name, sqlite3_column_blob(q, 3), IS_HASH_BYTES);
        read_deps(db, s);
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    return all;
}

void fw_free_segments(segment *all, size_t n)
{
    for (size_t i = 0; i < n; i++) fw_set_free(&all[i].from);
    free(all);
}

int64_t fw_count(const world *w, const char *sql, int64_t bound)
{
    sqlite3 *db = fw_open_bank(w);
    sqlite3_stmt *q = fw_query(db, sql, bound);
    int64_t v = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : -1;

    sqlite3_finalize(q);
    sqlite3_close(db);
    return v;
}
