/* Random histories: facts and turns are added, changed, superseded, expired, encoded under every policy, asked and talked about; then
 * something is forgotten: a fact, a turn, a run, an owner. After each change and each forgetting:
 *
 *   - The books hold exactly the segments whose rows were computed from nothing that went: none more, none less. What each segment was
 *     computed from is not taken from the dependency table but from the engine's witness (mock_witness.c): the texts that stood in the
 *     captures. When a segment is entered its dependencies must be that, and its rows those that the same capture gives from scratch.
 *   - After forget --prove no byte of what is forgotten is in any file of the store: not the texts' unique words, not the vectors, not
 *     one of the 64-byte windows of the KV that was dropped (in the vault: without --prove neither). The search is the tests' own.
 *   - Neither recall nor any later run of the engine meets it.
 *
 * The seed is printed; INFERSCALE_SEED replays it, INFERSCALE_STEPS shortens the history that fails, INFERSCALE_SOAK=SECONDS goes on. */
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "kv/rope.h"
#include "support/captured.h"
#include "support/live.h"
#include "support/scratch.h"
#include "support/traces.h"

enum { OWNERS = 2, RUNS = 3, ITEMS = 1200, SEGMENTS = 20000, CAPTURES = 4000, WORD = TRACES_WORD, MATES = 24 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HISTORIES = 2, STEPS = 70 };
#else
enum { HISTORIES = 4, STEPS = 110 };
#endif

static const char *const policies[] = { "alone", "header", "turns:2", "turns:3+source", "facts:3", "cwe:4", "near:3",
                                         "page:6", "page:5+2", "page:4@time", "page:4+1@topic", "company:3" };
enum { POLICIES = sizeof policies / sizeof *policies };

/* ---- The model ----------------------------------------------------------------------------------------------------------- */

typedef struct item {
    int64_t id;
    int kind, owner, run, version, source; /* source: item number of the turn, -1 none */
    bool alive, withdrawn, over;                        /* over: expired or superseded */
} item;

typedef struct set { int64_t *v; size_t n; } set;      /* of id * 1000 + version */

typedef struct capture { captured c; set context; } capture; /* context: its texts, and what its stored parts were computed from */

typedef struct segment {
    int64_t row, item;
    int version, lead, n_passes;
    uint8_t name[IS_HASH_BYTES];
    set from;                                           /* what its rows were computed from */
    uint64_t file_hash;
} segment;

typedef struct world {
    unsigned long long seed;
    char *home, *store, *vault, *witness;
    inferscale *is;
    inferscale_chat *chat[OWNERS];
    item items[ITEMS];
    int n_items;
    segment *known;
    size_t n_known;
    capture *captures;
    size_t n_captures;
    long witness_at;
    is_engine *engine;                                  /* a second one, that computes from scratch */
    is_rope *rope;
    unsigned n_forgets, n_checked, n_means, n_unchecked, n_windows, n_by_policy[POLICIES];
} world;

static const inferscale_scope owners[OWNERS] = { { .user = "anna" }, { .user = "ben" } };
static const char *const runs[RUNS] = { "", "monday", "tuesday" };

static unsigned below(world *w, unsigned n)
{
    return scratch_below(&w->seed, n);
}

static void word_of(const world *w, int n, int version, char out[WORD])
{
    const item *x = &w->items[n];

    if (x->kind == INFERSCALE_FACTS) snprintf(out, WORD, "zq%05dv%dp%d", n, version, x->owner);
    else snprintf(out, WORD, "zt%05dv1p%d", n, x->owner);
}

/* One text in six is long enough to need pages of its own in the database. */
static void text_of(world *w, int n, int version, char out[6000])
{
    static const char *const words[] = { "lamp", "attic", "river", "winter", "clock", "paper", "garden", "copper" };
    char word[WORD];
    unsigned count = below(w, 6) ? 3 + below(w, 12) : 60;
    int at;

    word_of(w, n, version, word);
    at = snprintf(out, 6000, "About %s:", word);
    for (unsigned i = 0; i < count; i++) at += snprintf(out + at, 6000 - (size_t)at, " %s", words[below(w, 8)]);
    snprintf(out + at, 6000 - (size_t)at, " %s.", word); /* at both ends */
}

static int pick(world *w, int owner, int kind)
{
    for (int tries = 0; w->n_items && tries < 60; tries++) {
        int n = (int)below(w, (unsigned)w->n_items);
        const item *x = &w->items[n];

        if (x->alive && (owner < 0 || x->owner == owner) && (!kind || x->kind == kind)) return n;
    }
    return -1;
}

static int item_of(const world *w, int64_t id)
{
    for (int n = 0; n < w->n_items; n++)
        if (w->items[n].id == id) return n;
    return -1;
}

/* ---- Sets ---------------------------------------------------------------------------------------------------------------- */

static bool set_has(const set *s, int64_t v)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i] == v) return true;
    return false;
}

static void set_add(set *s, int64_t v)
{
    if (set_has(s, v)) return;
    s->v = realloc(s->v, (s->n + 1) * sizeof *s->v);
    assert_non_null(s->v);
    s->v[s->n++] = v;
}

static void set_join(set *s, const set *more)
{
    for (size_t i = 0; i < more->n; i++) set_add(s, more->v[i]);
}

static bool set_within(const set *s, const set *all)
{
    for (size_t i = 0; i < s->n; i++)
        if (!set_has(all, s->v[i])) return false;
    return true;
}

static void set_free(set *s)
{
    free(s->v);
    *s = (set){ 0 };
}

/* The items whose words stand in text[0..n). */
static void add_words(const world *w, const char *text, size_t n, set *out)
{
    for (const char *p = text; p + 2 < text + n; p++) {
        int number, version, owner;

        if (p[0] != 'z' || (p[1] != 'q' && p[1] != 't') || sscanf(p + 2, "%5dv%dp%1d", &number, &version, &owner) != 3) continue;
        assert_true(number < w->n_items);
        set_add(out, w->items[number].id * 1000 + version);
    }
}

/* ---- The witness --------------------------------------------------------------------------------------------------------- */

static segment *known_by_name(world *w, const uint8_t *name)
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
    add_words(w, x->c.context, strlen(x->c.context), &x->context);
    for (uint32_t i = 0; i < x->c.n_stored; i++) {
        const segment *s = known_by_name(w, x->c.stored[i]);

        if (s) set_join(&x->context, &s->from);
    }
}

static void free_captures(world *w)
{
    for (size_t i = 0; i < w->n_captures; i++) {
        set_free(&w->captures[i].context);
        captured_free(&w->captures[i].c);
    }
    w->n_captures = 0;
}

/* A run that met something forgotten. */
static void check_run(const world *w, const char *text)
{
    set met = { 0 };

    add_words(w, text, strlen(text), &met);
    for (size_t i = 0; i < met.n; i++) {
        const item *x = &w->items[item_of(w, met.v[i] / 1000)];

        if (!x->alive || x->over || (int)(met.v[i] % 1000) != x->version)
            fail_msg("a run of the engine met item %lld version %d, which is gone or over", (long long)x->id, (int)(met.v[i] % 1000));
    }
    set_free(&met);
}

/* What the engine did since the last time: captures are kept for the check of the books, runs are checked at once. */
static void read_witness(world *w)
{
    FILE *f = fopen(w->witness, "r");
    char *line = NULL, call[16];
    size_t cap = 0;

    free_captures(w);
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

static sqlite3 *open_bank(const world *w)
{
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open_v2(scratch_path(w->store, "bank.sqlite"), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    return db;
}

static sqlite3_stmt *query(sqlite3 *db, const char *sql, int64_t bound)
{
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK) fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    if (sqlite3_bind_parameter_count(s)) sqlite3_bind_int64(s, 1, bound);
    return s;
}

static void read_deps(sqlite3 *db, segment *s)
{
    sqlite3_stmt *q = query(db, "SELECT item_id, version FROM segment_deps WHERE segment_id = ?1", s->row);

    while (sqlite3_step(q) == SQLITE_ROW) set_add(&s->from, sqlite3_column_int64(q, 0) * 1000 + sqlite3_column_int64(q, 1));
    sqlite3_finalize(q);
}

/* All rows of segments with their dependencies, in order of rows. free_segments. */
static segment *read_books(const world *w, size_t *n)
{
    sqlite3 *db = open_bank(w);
    sqlite3_stmt *q = query(db, "SELECT id, item_id, version, name, lead, n_passes FROM segments ORDER BY id", 0);
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

static void free_segments(segment *all, size_t n)
{
    for (size_t i = 0; i < n; i++) set_free(&all[i].from);
    free(all);
}

static int64_t count(const world *w, const char *sql, int64_t bound)
{
    sqlite3 *db = open_bank(w);
    sqlite3_stmt *q = query(db, sql, bound);
    int64_t v = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : -1;

    sqlite3_finalize(q);
    sqlite3_close(db);
    return v;
}

/* ---- Files --------------------------------------------------------------------------------------------------------------- */

static uint8_t *read_whole(const char *path, size_t *n)
{
    uint8_t *bytes = NULL;

    *n = 0;
    return is_file_read_all(is_fs_posix(), path, 1u << 30, &bytes, n) == INFERSCALE_OK ? bytes : NULL;
}

/* ---- A new segment: its rows are what the engine gives, its dependencies what the engine saw ------------------------------- */

/* The captures that may have made the segment, or a part of it: their spans hold its tokens. */
typedef struct mates { size_t n; const capture *x[MATES]; float **rows[MATES]; uint32_t at[MATES]; set from[MATES]; } mates;

/* What rows at the segment's place in the span were computed from. */
static void seen_by(const world *w, const capture *x, const segment *s, set *from)
{
    char word[WORD];
    const char *own;

    word_of(w, item_of(w, s->item), s->version, word);
    own = strstr(x->c.span, word);
    assert_non_null(own);
    set_join(from, &x->context);
    add_words(w, x->c.span, (size_t)(own - x->c.span) + strlen(word), from);
}

/* false if the rows of one cannot be made again. */
static bool find_mates(world *w, const segment *s, const is_segment *kept, mates *m)
{
    const is_segment_desc *d = is_segment_info(kept);
    bool all = true;

    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < w->n_captures; i++) {
        const capture *x = &w->captures[i];
        uint32_t at = captured_offset(&x->c, d->tokens, d->n_tokens);

        if (at == x->c.n_span) continue;
        assert_true(m->n < MATES);
        m->x[m->n] = x;
        m->at[m->n] = at;
        m->rows[m->n] = captured_again(&x->c, w->engine, w->rope, w->vault);
        all = all && m->rows[m->n];
        seen_by(w, x, s, &m->from[m->n++]);
    }
    return all;
}

static void free_mates(world *w, mates *m)
{
    for (size_t i = 0; i < m->n; i++) {
        captured_rows_free(is_engine_geometry(w->engine), m->rows[i]);
        set_free(&m->from[i]);
    }
}

/* Which k of the mates have the file's rows as their mean? Tries all choices. */
static bool find_choice(const is_segment *kept, const mates *m, size_t k, size_t from, size_t depth, size_t *chosen)
{
    if (depth == k) {
        float **rows[MATES];
        uint32_t at[MATES];

        for (size_t i = 0; i < k; i++) rows[i] = m->rows[chosen[i]], at[i] = m->at[chosen[i]];
        return captured_is_mean(kept, (float **const *)rows, at, k);
    }
    for (size_t i = from; i + (k - depth) <= m->n; i++) {
        chosen[depth] = i;
        if (find_choice(kept, m, k, i + 1, depth + 1, chosen)) return true;
    }
    return false;
}

static void print_set(const char *what, const set *s)
{
    print_message("%s:", what);
    for (size_t i = 0; i < s->n; i++) print_message(" %lld.%lld", (long long)(s->v[i] / 1000), (long long)(s->v[i] % 1000));
    print_message("\n");
}

/* Where a stored row that stood in for context is not there any more, the rows cannot be made again: the dependencies must then be
 * those of one capture, or of several together. */
static void check_without_rows(world *w, const segment *s, const mates *m)
{
    set all = { 0 };

    for (size_t i = 0; i < m->n; i++)
        if (set_within(&m->from[i], &s->from)) set_join(&all, &m->from[i]);
    assert_int_equal(all.n, s->from.n);
    set_free(&all);
    w->n_unchecked++;
}

static void check_new(world *w, const segment *s)
{
    size_t chosen[MATES], k = s->n_passes > 1 ? (size_t)s->n_passes : 1;
    is_segment *kept = NULL;
    set from = { 0 };
    char path[700];
    mates m;
    bool all;

    captured_path(w->vault, s->name, path);
    OK(is_segment_read(is_fs_posix(), path, &kept));
    all = find_mates(w, s, kept, &m);
    if (!all) check_without_rows(w, s, &m);
    else if (!find_choice(kept, &m, k, 0, 0, chosen))
        fail_msg("item %lld: the rows are not those of %zu of the %zu captures of its text", (long long)s->item, k, m.n);
    for (size_t i = 0; all && i < k; i++) set_join(&from, &m.from[chosen[i]]);
    if (all && (from.n != s->from.n || !set_within(&from, &s->from))) {
        print_set("dependencies in the books", &s->from);
        print_set("texts that the engine saw", &from);
        fail_msg("item %lld version %d: the dependencies are not what its rows were computed from", (long long)s->item, s->version);
    }
    w->n_checked += all;
    w->n_means += all && k > 1;
    set_free(&from);
    free_mates(w, &m);
    is_segment_unref(kept);
}

static uint64_t file_hash(const world *w, const segment *s)
{
    char path[700];
    size_t n;
    uint8_t *bytes;
    uint64_t h;

    captured_path(w->vault, s->name, path);
    bytes = read_whole(path, &n);
    if (!bytes) fail_msg("the books name a segment of item %lld whose file is not there", (long long)s->item);
    h = is_checksum(bytes, n);
    is_free(bytes);
    return h;
}

static const segment *find_row(const segment *all, size_t n, int64_t row)
{
    for (size_t i = 0; i < n; i++)
        if (all[i].row == row) return &all[i];
    return NULL;
}

/* After encoding: new rows are checked against the witness, old ones are as they were (or replaced). */
static void learn_books(world *w)
{
    size_t n;
    segment *now = read_books(w, &n);

    read_witness(w);
    for (size_t i = 0; i < n; i++) {
        const segment *old = find_row(w->known, w->n_known, now[i].row);

        now[i].file_hash = file_hash(w, &now[i]);
        if (!old) {
            const segment *same = known_by_name(w, now[i].name);

            if (same) assert_true(set_within(&same->from, &now[i].from) && set_within(&now[i].from, &same->from)); /* one name, one truth */
            else check_new(w, &now[i]);
        } else assert_true(old->file_hash == now[i].file_hash && set_within(&old->from, &now[i].from));
    }
    free_segments(w->known, w->n_known);
    w->known = now;
    w->n_known = n;
}

/* ---- What is forgotten leaves no byte ------------------------------------------------------------------------------------ */

static void add_vectors(const world *w, int64_t id, traces *out)
{
    sqlite3 *db = open_bank(w);
    sqlite3_stmt *q = query(db, "SELECT q FROM embeddings WHERE item_id = ?1", id);

    while (sqlite3_step(q) == SQLITE_ROW) {
        assert_int_equal(sqlite3_column_bytes(q, 0), TRACES_VECTOR);
        traces_add_vector(out, sqlite3_column_blob(q, 0));
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
}

static bool vector_is_wanted(void *ctx, const uint8_t *v)
{
    sqlite3 *db = open_bank(ctx);
    sqlite3_stmt *q = query(db, "SELECT q FROM embeddings", 0);
    bool wanted = false;

    while (sqlite3_step(q) == SQLITE_ROW) wanted = wanted || memcmp(sqlite3_column_blob(q, 0), v, TRACES_VECTOR) == 0;
    sqlite3_finalize(q);
    sqlite3_close(db);
    return wanted;
}

/* The first token whose rows are like no other fact's: the one behind the word, for what stands before it ("- 1 May 2024: About ")
 * stands before others too, and gives the same rows after the same context. */
static uint32_t behind_word(const world *w, const is_segment_desc *d, const char *word)
{
    char text[16384], piece[16];
    size_t n = 0;

    for (uint32_t t = 0; t < d->n_tokens; t++) {
        int len = is_engine_piece(w->engine, d->tokens[t], piece, sizeof piece);

        assert_true(len >= 0 && n + (size_t)len < sizeof text);
        memcpy(text + n, piece, (size_t)len);
        text[n += (size_t)len] = 0;
        if (strstr(text, word)) return t + 1;
    }
    return d->n_tokens;
}

/* A segment that is to go, in windows of four tokens of a head. own: it is the forgotten item's. */
static void add_windows(const world *w, const segment *s, bool own, traces *x)
{
    is_segment *kept = NULL;
    const is_segment_desc *d;
    char path[700], word[WORD];
    uint32_t from = 0;

    captured_path(w->vault, s->name, path);
    OK(is_segment_read(is_fs_posix(), path, &kept));
    d = is_segment_info(kept);
    word_of(w, item_of(w, s->item), s->version, word);
    if (own) from = behind_word(w, d, word);
    for (uint32_t p = 0; p < d->geometry->n_planes; p++)
        for (uint32_t h = 0; h < d->geometry->planes[p].n_heads; h++) {
            size_t row = d->geometry->planes[p].head_dim * is_codec_bytes(d->codec);

            for (size_t at = from * row; at + TRACES_WINDOW <= d->n_tokens * row; at += TRACES_WINDOW)
                traces_add_window(x, (const uint8_t *)is_segment_head(kept, p, h) + at);
        }
    is_segment_unref(kept);
}

/* Everything about the items that are to go, taken before. */
static traces traces_of(const world *w, const int *which, size_t n)
{
    traces x = { 0 };
    char word[WORD];

    for (size_t i = 0; i < n; i++) {
        for (int v = 1; v <= w->items[which[i]].version; v++) {
            word_of(w, which[i], v, word);
            traces_add_word(&x, word);
        }
        add_vectors(w, w->items[which[i]].id, &x);
    }
    for (size_t i = 0; i < w->n_known; i++) {
        const segment *s = &w->known[i];
        bool hit = false, own = false;

        for (size_t k = 0; k < n; k++) {
            int64_t id = w->items[which[k]].id;

            own = own || s->item == id;
            for (size_t d = 0; d < s->from.n; d++) hit = hit || s->from.v[d] / 1000 == id;
        }
        if (hit) add_windows(w, s, own, &x);
    }
    return x;
}

/* ---- What must go, and what must stay ------------------------------------------------------------------------------------ */

typedef struct named { const world *w; const segment *now; size_t n; } named;

static void must_be_named(void *ctx, const char *path)
{
    const named *x = ctx;

    for (size_t k = 0; k < x->n; k++) {
        char own[700];

        captured_path(x->w->vault, x->now[k].name, own);
        if (strcmp(path, own) == 0) return;
    }
    fail_msg("the file %s is named by nothing", path);
}

/* Files in the vault = names in the books. */
static void check_files(const world *w, const segment *now, size_t n)
{
    named x = { w, now, n };

    traces_each_file(w->vault, must_be_named, &x);
}

/* After a change: the books hold exactly the segments of before that nothing in gone was computed into. own: segments of this item stay
 * (0 = none). */
static void check_books(world *w, const set *gone_items, int64_t own)
{
    size_t n;
    segment *now = read_books(w, &n);
    size_t expected = 0;

    for (size_t i = 0; i < w->n_known; i++) {
        const segment *s = &w->known[i], *there = find_row(now, n, s->row);
        bool hit = false;

        for (size_t k = 0; k < s->from.n; k++) hit = hit || set_has(gone_items, s->from.v[k] / 1000);
        if (own && s->item == own) hit = false;
        expected += !hit;
        if (hit && there) fail_msg("a segment of item %lld was computed from what is gone, and is still in the books", (long long)s->item);
        if (!hit && !there) fail_msg("a segment of item %lld was dropped, and nothing that went was in it", (long long)s->item);
        if (there && file_hash(w, there) != s->file_hash) fail_msg("a segment's file changed");
    }
    assert_int_equal(expected, n);
    for (size_t i = 0; i < n; i++) now[i].file_hash = file_hash(w, &now[i]);
    check_files(w, now, n);
    free_segments(w->known, w->n_known);
    w->known = now;
    w->n_known = n;
}

/* Turns that became withdrawn join the set, and the model. */
static void learn_withdrawn(world *w, set *gone)
{
    sqlite3 *db = open_bank(w);
    sqlite3_stmt *q = query(db, "SELECT id FROM items WHERE withdrawn <> 0", 0);

    while (sqlite3_step(q) == SQLITE_ROW) {
        int n = item_of(w, sqlite3_column_int64(q, 0));

        assert_true(n >= 0 && w->items[n].alive);
        if (!w->items[n].withdrawn) set_add(gone, w->items[n].id);
        w->items[n].withdrawn = true;
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
}

/* everywhere: the whole store is searched, as after --prove; else the vault (SQLite leaves copies of rows that it moved in the unused
 * middles of pages, which only the proof zeroes). */
static void check_forgotten(world *w, const int *which, size_t n, traces *x, bool everywhere)
{
    set gone = { 0 };
    char where[900];
    size_t hits;

    for (size_t i = 0; i < n; i++) {
        set_add(&gone, w->items[which[i]].id);
        w->items[which[i]].alive = false;
    }
    learn_withdrawn(w, &gone);
    check_books(w, &gone, 0);
    hits = traces_search(x, everywhere ? w->store : w->vault, vector_is_wanted, w, where);
    if (hits) fail_msg("%zu traces of what is forgotten, the first in %s", hits, where);
    for (size_t i = 0; i < n; i++) {
        int64_t id = w->items[which[i]].id;

        assert_int_equal(count(w, "SELECT (SELECT count(*) FROM items WHERE id = ?1) + (SELECT count(*) FROM fact_versions WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM turns WHERE item_id = ?1) + (SELECT count(*) FROM embeddings WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM segment_deps WHERE item_id = ?1) + (SELECT count(*) FROM page_facts WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM placement_items WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM fact_versions WHERE source_turn = ?1)", id), 0);
    }
    set_free(&gone);
    w->n_forgets++;
    w->n_windows += (unsigned)x->n_windows;
}

/* ---- Steps --------------------------------------------------------------------------------------------------------------- */

static void add_fact(world *w)
{
    int n = w->n_items++, owner = (int)below(w, OWNERS), run = (int)below(w, RUNS), source = below(w, 3) ? pick(w, owner, INFERSCALE_TURNS) : -1;
    item *x = &w->items[n];
    char text[6000];
    inferscale_scope scope = owners[owner];
    inferscale_fact f = { .text = text, .event_time = 1714521600 + n * 3600 };
    inferscale_event e = { 0 };

    assert_true(n < ITEMS);
    *x = (item){ .kind = INFERSCALE_FACTS, .owner = owner, .run = run, .version = 1, .source = source };
    if (source >= 0) f.source_turn = w->items[source].id;
    text_of(w, n, 1, text);
    scope.run = runs[run];
    OK(inferscale_remember(w->is, &scope, &f, 1, &e));
    x->id = e.id;
    x->alive = true;
}

static void add_turn(world *w)
{
    int n = w->n_items++, owner = (int)below(w, OWNERS), run = (int)below(w, RUNS);
    item *x = &w->items[n];
    char text[6000];
    inferscale_scope scope = owners[owner];
    inferscale_turn t = { .text = text, .speaker = below(w, 2) ? "Tom" : "Eva", .conversation = below(w, 2) ? "walk" : "tea" };

    assert_true(n < ITEMS);
    *x = (item){ .kind = INFERSCALE_TURNS, .owner = owner, .run = run, .version = 1, .source = -1 };
    text_of(w, n, 1, text);
    scope.run = runs[run];
    OK(inferscale_add_turns(w->is, &scope, &t, 1, &x->id));
    x->alive = true;
}

/* A new version; one in four says that the fact is over. */
static void change_fact(world *w)
{
    int n = pick(w, -1, INFERSCALE_FACTS);
    item *x = &w->items[n < 0 ? 0 : n];
    char text[6000];
    inferscale_fact f = { .text = text, .event_time = 1714521600 };
    set gone = { 0 };

    if (n < 0 || x->version > 20) return;
    text_of(w, n, x->version + 1, text);
    x->over = below(w, 4) == 0;
    if (x->over) f.expires = is_now_epoch() - 1;
    OK(inferscale_update(w->is, &owners[x->owner], x->id, &f));
    x->version++;
    set_add(&gone, x->id);
    check_books(w, &gone, 0);
    set_free(&gone);
}

static void supersede_fact(world *w)
{
    int old = pick(w, -1, INFERSCALE_FACTS), n = w->n_items;
    item *x = &w->items[n];
    char text[6000];
    inferscale_fact f = { .text = text, .event_time = is_now_epoch() };
    set gone = { 0 };
    inferscale_status st;

    if (old < 0) return;
    assert_true(n + 1 < ITEMS);
    *x = (item){ .kind = INFERSCALE_FACTS, .owner = w->items[old].owner, .version = 1, .source = -1 };
    w->n_items++;
    text_of(w, n, 1, text);
    st = inferscale_supersede(w->is, &owners[x->owner], w->items[old].id, &f, &x->id);
    if (st == INFERSCALE_E_INVALID) { /* it was superseded before */
        w->n_items--;
        return;
    }
    OK(st);
    x->alive = true;
    w->items[old].over = true;
    set_add(&gone, w->items[old].id);
    check_books(w, &gone, w->items[old].id);
    set_free(&gone);
}

static void encode(world *w)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    unsigned which = below(w, POLICIES);

    o.policy = policies[which];
    OK(inferscale_encode(w->is, &owners[below(w, OWNERS)], &o));
    w->n_by_policy[which]++;
    learn_books(w);
}

static void question(world *w, int owner, char out[80])
{
    int n = pick(w, owner, INFERSCALE_FACTS);

    snprintf(out, 80, "What about the lamp and the %s?", n < 0 || n % 2 ? "garden" : "river");
}

static void ask(world *w)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    int owner = (int)below(w, OWNERS);
    char text[80];

    question(w, owner, text);
    o.k = 1 + below(w, 12);
    o.max_tokens = 8; /* too short to recite anything */
    OK(inferscale_ask(w->is, &owners[owner], text, &o, &a));
    inferscale_answer_free(a);
    read_witness(w);
}

static void talk(world *w)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    int owner = (int)below(w, OWNERS);
    inferscale_status st;
    char text[80];

    if (!w->chat[owner]) OK(inferscale_chat_open(w->is, &owners[owner], &w->chat[owner]));
    question(w, owner, text);
    o.k = 3;
    o.max_tokens = 8;
    st = inferscale_chat_say(w->chat[owner], text, &o, &a);
    if (st != INFERSCALE_E_CONTEXT) OK(st);
    inferscale_answer_free(a);
    read_witness(w);
    if (st == INFERSCALE_OK && below(w, 6)) return;
    inferscale_chat_close(w->chat[owner]);
    w->chat[owner] = NULL;
}

static void not_found(world *w, const int *which, size_t n)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;

    o.k = 50;
    o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
    for (size_t i = 0; i < n && i < 3; i++) {
        inferscale_list *l = NULL;
        char word[WORD];

        word_of(w, which[i], 1, word);
        OK(inferscale_recall(w->is, &owners[w->items[which[i]].owner], word, &o, &l));
        for (size_t k = 0; k < l->n; k++) assert_int_not_equal(l->items[k].id, w->items[which[i]].id);
        inferscale_list_free(l);
    }
}

/* A fact, a turn, some of both, a run, or an owner. Half the time with --prove, which must agree. */
static void forget(world *w)
{
    int which[ITEMS], owner = (int)below(w, OWNERS), run = -1;
    unsigned dice = below(w, 20);
    int64_t ids[ITEMS];
    inferscale_scope scope = owners[owner];
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report report = { 0 };
    size_t n = 0;
    traces x;

    if (dice == 0) run = -2; /* the owner */
    else if (dice < 4) run = 1 + (int)below(w, RUNS - 1);
    for (int i = 0; run != -1 && i < w->n_items; i++)
        if (w->items[i].alive && w->items[i].owner == owner && (run == -2 || w->items[i].run == run)) which[n++] = i;
    for (unsigned i = 0, many = dice < 8 ? 3 : 1; run == -1 && i < many; i++) {
        int one = pick(w, owner, dice % 3 ? INFERSCALE_FACTS : INFERSCALE_TURNS);

        if (one >= 0 && (n == 0 || which[n - 1] != one) && (n < 2 || which[0] != one)) which[n++] = one;
    }
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) ids[i] = w->items[which[i]].id;
    x = traces_of(w, which, n);
    if (run > 0) scope.run = runs[run];
    o.all = run != -1;
    o.prove = (int)below(w, 2);
    OK(inferscale_forget_with(w->is, &scope, run == -1 ? ids : NULL, run == -1 ? n : 0, &o, &report));
    assert_int_equal(report.forgotten, n);
    assert_int_equal(report.traces, 0);
    assert_int_equal(report.pending, 0);
    assert_int_equal(report.proven, o.prove);
    check_forgotten(w, which, n, &x, o.prove);
    not_found(w, which, n);
    traces_free(&x);
}

/* ---- Histories ----------------------------------------------------------------------------------------------------------- */

static void begin(world *w, unsigned long long seed)
{
    is_engine_opts opts = { .model_path = "mock", .n_ctx = 8192 };
    char model[700];

    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->home = scratch_make();
    w->store = strdup(scratch_path(w->home, "store"));
    w->vault = strdup(scratch_path(w->store, "vault"));
    w->witness = strdup(scratch_path(w->home, "witness"));
    w->captures = calloc(CAPTURES, sizeof *w->captures);
    snprintf(model, sizeof model, "mock:witness=%s", w->witness);
    w->is = live_open(w->store, model);
    assert_non_null(w->is);
    OK(is_engine_open(live_plugins(), "mock", &opts, &w->engine));
    OK(is_rope_new(is_engine_geometry(w->engine), 8192, &w->rope));
}

static void end(world *w)
{
    for (int i = 0; i < OWNERS; i++) inferscale_chat_close(w->chat[i]);
    inferscale_close(w->is);
    is_rope_free(w->rope);
    is_engine_close(w->engine);
    free_captures(w);
    free(w->captures);
    free_segments(w->known, w->n_known);
    free(w->store);
    free(w->vault);
    free(w->witness);
    scratch_remove(w->home);
}

static void step(world *w)
{
    unsigned dice = below(w, 100);

    if (dice < 34) add_fact(w);
    else if (dice < 46) add_turn(w);
    else if (dice < 56) change_fact(w);
    else if (dice < 61) supersede_fact(w);
    else if (dice < 79) encode(w);
    else if (dice < 85) ask(w);
    else if (dice < 90) talk(w);
    else forget(w);
}

static void one_history(world *w, unsigned long long seed, int steps)
{
    begin(w, seed);
    for (int i = 0; i < 12; i++) add_fact(w);
    for (int i = 0; i < steps; i++) step(w);
    for (int owner = 0; owner < OWNERS; owner++) OK(inferscale_encode(w->is, &owners[owner], NULL));
    learn_books(w);
    for (int i = 0; i < 3; i++) forget(w);
    print_message("seed %llu: %d items, %zu segments, %u forgettings, %u KV windows looked for; rows made again %u (means: %u), not possible %u\n",
                  seed, w->n_items, w->n_known, w->n_forgets, w->n_windows, w->n_checked, w->n_means, w->n_unchecked);
}

static void what_is_forgotten_is_gone_and_nothing_else(void **state)
{
    const char *steps = getenv("INFERSCALE_STEPS"), *soak = getenv("INFERSCALE_SOAK");
    double until = is_now_ms() + (soak ? atof(soak) * 1000 : 0);
    unsigned long long seed = scratch_seed("forget");
    unsigned forgets = 0, checked = 0, windows = 0, by_policy[POLICIES] = { 0 };
    world *w = calloc(1, sizeof *w);

    (void)state;
    for (int i = 0; i < HISTORIES || is_now_ms() < until; i++) {
        print_message("INFERSCALE_SEED=%llu\n", seed + (unsigned)i);
        one_history(w, seed + (unsigned)i, steps ? atoi(steps) : STEPS);
        forgets += w->n_forgets;
        checked += w->n_checked;
        windows += w->n_windows;
        for (int p = 0; p < POLICIES; p++) by_policy[p] += w->n_by_policy[p];
        end(w);
    }
    free(w);
    if (steps) return;
    assert_true(forgets > 10 && checked > 100 && windows > 1000); /* it looked at something */
    for (int p = 0; p < POLICIES; p++)
        if (!by_policy[p]) print_message("policy %s was never drawn\n", policies[p]);
}

/* The search itself: a planted word, vector and window are found, and what is not there is not. */
static void the_search_finds_what_is_planted(void **state)
{
    char *home = scratch_make(), where[900];
    uint8_t noise[4096], vector[TRACES_VECTOR], window[TRACES_WINDOW];
    unsigned long long s = 7;
    traces x = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)scratch_next(&s);
    for (size_t i = 0; i < sizeof vector; i++) vector[i] = (uint8_t)scratch_next(&s);
    for (size_t i = 0; i < sizeof window; i++) window[i] = (uint8_t)scratch_next(&s);
    traces_add_word(&x, "zq00000v1p0");
    traces_add_vector(&x, vector);
    traces_add_window(&x, window);
    OK(is_file_write_atomic(is_fs_posix(), scratch_path(home, "clean"), noise, sizeof noise));
    assert_int_equal(traces_search(&x, home, NULL, NULL, where), 0);
    memcpy(noise + 1001, "zq00000v1p0", 11);
    memcpy(noise + 2003, vector, sizeof vector);
    memcpy(noise + 3005, window, sizeof window);
    OK(is_file_write_atomic(is_fs_posix(), scratch_path(home, "planted"), noise, sizeof noise));
    assert_int_equal(traces_search(&x, home, NULL, NULL, where), 3);
    assert_non_null(strstr(where, "planted"));
    traces_free(&x);
    scratch_remove(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_is_planted),
        cmocka_unit_test(what_is_forgotten_is_gone_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
