#include "support/forget_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "support/live.h"
#include "support/scratch.h"

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

    fw_word(w, fw_item(w, s->item), s->version, word);
    own = strstr(x->c.span, word);
    assert_non_null(own);
    fw_set_join(from, &x->context);
    fw_add_words(w, x->c.span, (size_t)(own - x->c.span) + strlen(word), from);
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
        fw_set_free(&m->from[i]);
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
        if (fw_set_within(&m->from[i], &s->from)) fw_set_join(&all, &m->from[i]);
    assert_int_equal(all.n, s->from.n);
    fw_set_free(&all);
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
    for (size_t i = 0; all && i < k; i++) fw_set_join(&from, &m.from[chosen[i]]);
    if (all && (from.n != s->from.n || !fw_set_within(&from, &s->from))) {
        print_set("dependencies in the books", &s->from);
        print_set("texts that the engine saw", &from);
        fail_msg("item %lld version %d: the dependencies are not what its rows were computed from", (long long)s->item, s->version);
    }
    w->n_checked += all;
    w->n_means += all && k > 1;
    fw_set_free(&from);
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
void fw_learn_books(world *w)
{
    size_t n;
    segment *now = fw_read_books(w, &n);

    fw_read_witness(w);
    for (size_t i = 0; i < n; i++) {
        const segment *old = find_row(w->known, w->n_known, now[i].row);

        now[i].file_hash = file_hash(w, &now[i]);
        if (!old) {
            const segment *same = fw_known_by_name(w, now[i].name);

            if (same) assert_true(fw_set_within(&same->from, &now[i].from) && fw_set_within(&now[i].from, &same->from)); /* one name, one truth */
            else check_new(w, &now[i]);
        } else assert_true(old->file_hash == now[i].file_hash && fw_set_within(&old->from, &now[i].from));
    }
    fw_free_segments(w->known, w->n_known);
    w->known = now;
    w->n_known = n;
}

/* ---- What is forgotten leaves no byte ------------------------------------------------------------------------------------ */

static void add_vectors(const world *w, int64_t id, traces *out)
{
    sqlite3 *db = fw_open_bank(w);
    sqlite3_stmt *q = fw_query(db, "SELECT q FROM embeddings WHERE item_id = ?1", id);

    while (sqlite3_step(q) == SQLITE_ROW) {
        assert_int_equal(sqlite3_column_bytes(q, 0), TRACES_VECTOR);
        traces_add_vector(out, sqlite3_column_blob(q, 0));
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
}

static bool vector_is_wanted(void *ctx, const uint8_t *v)
{
    sqlite3 *db = fw_open_bank(ctx);
    sqlite3_stmt *q = fw_query(db, "SELECT q FROM embeddings", 0);
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
    fw_word(w, fw_item(w, s->item), s->version, word);
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
traces fw_traces_of(const world *w, const int *which, size_t n)
{
    traces x = { 0 };
    char word[WORD];

    for (size_t i = 0; i < n; i++) {
        for (int v = 1; v <= w->items[which[i]].version; v++) {
            fw_word(w, which[i], v, word);
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
void fw_check_books(world *w, const set *gone_items, int64_t own)
{
    size_t n;
    segment *now = fw_read_books(w, &n);
    size_t expected = 0;

    for (size_t i = 0; i < w->n_known; i++) {
        const segment *s = &w->known[i], *there = find_row(now, n, s->row);
        bool hit = false;

        for (size_t k = 0; k < s->from.n; k++) hit = hit || fw_set_has(gone_items, s->from.v[k] / 1000);
        if (own && s->item == own) hit = false;
        expected += !hit;
        if (hit && there) fail_msg("a segment of item %lld was computed from what is gone, and is still in the books", (long long)s->item);
        if (!hit && !there) fail_msg("a segment of item %lld was dropped, and nothing that went was in it", (long long)s->item);
        if (there && file_hash(w, there) != s->file_hash) fail_msg("a segment's file changed");
    }
    assert_int_equal(expected, n);
    for (size_t i = 0; i < n; i++) now[i].file_hash = file_hash(w, &now[i]);
    check_files(w, now, n);
    fw_free_segments(w->known, w->n_known);
    w->known = now;
    w->n_known = n;
}

/* Turns that became withdrawn join the set, and the model. */
static void learn_withdrawn(world *w, set *gone)
{
    sqlite3 *db = fw_open_bank(w);
    sqlite3_stmt *q = fw_query(db, "SELECT id FROM items WHERE withdrawn <> 0", 0);

    while (sqlite3_step(q) == SQLITE_ROW) {
        int n = fw_item(w, sqlite3_column_int64(q, 0));

        assert_true(n >= 0 && w->items[n].alive);
        if (!w->items[n].withdrawn) fw_set_add(gone, w->items[n].id);
        w->items[n].withdrawn = true;
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
}

/* everywhere: the whole store is searched, as after --prove; else the vault (SQLite leaves copies of rows that it moved in the unused
 * middles of pages, which only the proof zeroes). */
void fw_check_forgotten(world *w, const int *which, size_t n, traces *x, bool everywhere)
{
    set gone = { 0 };
    char where[900];
    size_t hits;

    for (size_t i = 0; i < n; i++) {
        fw_set_add(&gone, w->items[which[i]].id);
        w->items[which[i]].alive = false;
    }
    learn_withdrawn(w, &gone);
    fw_check_books(w, &gone, 0);
    hits = traces_search(x, everywhere ? w->store : w->vault, vector_is_wanted, w, where);
    if (hits) fail_msg("%zu traces of what is forgotten, the first in %s", hits, where);
    for (size_t i = 0; i < n; i++) {
        int64_t id = w->items[which[i]].id;

        assert_int_equal(fw_count(w, "SELECT (SELECT count(*) FROM items WHERE id = ?1) + (SELECT count(*) FROM fact_versions WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM turns WHERE item_id = ?1) + (SELECT count(*) FROM embeddings WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM segment_deps WHERE item_id = ?1) + (SELECT count(*) FROM page_facts WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM placement_items WHERE item_id = ?1)"
                               " + (SELECT count(*) FROM fact_versions WHERE source_turn = ?1)", id), 0);
    }
    fw_set_free(&gone);
    w->n_forgets++;
    w->n_windows += (unsigned)x->n_windows;
}
