/* forget.c - the bank's share of forgetting: rows, and the names of every file that was computed from them.
 *
 * secure_delete overwrites the freed bytes in the database; the write-ahead log still holds older copies of the pages, so it is
 * emptied afterwards (wal.c). */
#include <string.h>

#include "bank/lease.h"
#include "bank/sql.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"

enum { LOG_WAIT_MS = 1000 };

void is_names_free(is_names *n)
{
    is_free(n->names);
    *n = (is_names){ 0 };
}

/* Capacity is the next power of two, so it need not be stored. */
is_status bank_names_add(is_names *names, const void *name)
{
    if ((names->n & (names->n - 1)) == 0) {
        size_t cap = names->n ? names->n * 2 : 1;
        void *grown = is_realloc(names->names, cap * sizeof *names->names);

        if (!grown) return is_fail(INFERSCALE_E_NOMEM, "no memory for the names of segments; free some memory and try again");
        names->names = grown;
    }
    memcpy(names->names[names->n++], name, IS_HASH_BYTES);
    return INFERSCALE_OK;
}

is_status is_names_add(is_names *names, const void *name)
{
    return bank_names_add(names, name);
}

/* Runs a literal bound to (partition, item). */
static is_status run_keyed(is_bank *b, const char *literal, const is_partition *p, int64_t id)
{
    sql q = sql_open(b, literal);

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    return sql_run(&q, NULL);
}

typedef struct id_list { int64_t *ids; size_t n; } id_list;

static is_status ids_add(id_list *l, int64_t id)
{
    if ((l->n & (l->n - 1)) == 0) {
        int64_t *grown = is_realloc(l->ids, (l->n ? l->n * 2 : 1) * sizeof *grown);

        if (!grown) return is_fail(INFERSCALE_E_NOMEM, "no memory for the list of ids; free some memory and try again");
        l->ids = grown;
    }
    l->ids[l->n++] = id;
    return INFERSCALE_OK;
}

/* Reads ids into the list; ends the statement. */
static is_status ids_read(sql *q, id_list *l)
{
    is_status st = INFERSCALE_OK, ended;

    while (st == INFERSCALE_OK && sql_row(q)) st = ids_add(l, sqlite3_column_int64(q->stmt, 0));
    if (st != INFERSCALE_OK) q->rc = SQLITE_OK;
    ended = sql_end(q);
    return st != INFERSCALE_OK ? st : ended;
}

/* Names of the segments that depend on the item, and whose they are (facts may be NULL). spare: those of the item itself stay. */
static is_status dependents(is_bank *b, const is_partition *p, int64_t item_id, bool spare, is_names *found, id_list *facts)
{
    is_status st = INFERSCALE_OK, ended;
    sql q = sql_open(b, "SELECT s.name, s.item_id FROM segment_deps d CROSS JOIN segments s ON s.id = d.segment_id AND"
                        " s.partition_id = d.partition_id WHERE d.partition_id = ?1 AND d.item_id = ?2 AND"
                        " (?3 = 0 OR s.item_id <> ?2) ORDER BY s.name");

    sql_i64(&q, p->id);
    sql_i64(&q, item_id);
    sql_i64(&q, spare);
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const void *name = sqlite3_column_blob(q.stmt, 0);

        if (!name || sqlite3_column_bytes(q.stmt, 0) != IS_HASH_BYTES) {
            q.rc = SQLITE_CORRUPT;
            break;
        }
        if (!found->n || memcmp(found->names[found->n - 1], name, IS_HASH_BYTES) != 0) st = bank_names_add(found, name);
        if (st == INFERSCALE_OK && facts) st = ids_add(facts, sqlite3_column_int64(q.stmt, 1));
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

static is_status insert_doomed(is_bank *b, const is_partition *p, const uint8_t *name)
{
    sql q = sql_open(b, "INSERT INTO doomed(partition_id, name) VALUES(?1, ?2) ON CONFLICT DO NOTHING");

    sql_i64(&q, p->id);
    sql_blob(&q, name, IS_HASH_BYTES);
    return sql_run(&q, NULL);
}

static is_status in_use(is_bank *b, const is_partition *p, const uint8_t *name, bool *used)
{
    is_status st;
    sql q = sql_open(b, "SELECT 1 FROM segments WHERE partition_id = ?1 AND name = ?2");

    sql_i64(&q, p->id);
    sql_blob(&q, name, IS_HASH_BYTES);
    *used = sql_one_i64(&q, 0, &st) != 0;
    return st;
}

/* A file shared with a segment that stays (an equal text elsewhere) stays too. */
static is_status doom(is_bank *b, const is_partition *p, const uint8_t *name, is_names *stale)
{
    bool used = false;

    IS_TRY(in_use(b, p, name, &used));
    if (used) return INFERSCALE_OK;
    IS_TRY(insert_doomed(b, p, name));
    return stale ? bank_names_add(stale, name) : INFERSCALE_OK;
}

static is_status drop_segments(is_bank *b, const is_partition *p, int64_t item_id, bool spare)
{
    /* "+": by id, not through every segment of the partition */
    sql q = sql_open(b, "DELETE FROM segments WHERE +partition_id = ?1 AND id IN (SELECT segment_id FROM segment_deps"
                     " WHERE partition_id = ?1 AND item_id = ?2) AND (?3 = 0 OR item_id <> ?2)");

    sql_i64(&q, p->id);
    sql_i64(&q, item_id);
    sql_i64(&q, spare);
    return sql_run(&q, NULL);
}

static is_status drop_dependents(is_bank *b, const is_partition *p, int64_t item_id, bool spare, is_names *stale, id_list *facts)
{
    is_names found = { 0 };
    is_status st = dependents(b, p, item_id, spare, &found, facts);

    if (st == INFERSCALE_OK) st = drop_segments(b, p, item_id, spare);
    for (size_t i = 0; st == INFERSCALE_OK && i < found.n; i++) st = doom(b, p, found.names[i], stale);
    if (st == INFERSCALE_OK)
        st = run_keyed(b, "DELETE FROM placements WHERE +partition_id = ?1 AND id IN (SELECT placement_id FROM placement_items"
                          " WHERE partition_id = ?1 AND item_id = ?2)", p, item_id);
    is_names_free(&found);
    return st;
}

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* The same, and counts the other facts that lost segments. */
static is_status drop_counted(is_bank *b, const is_partition *p, int64_t item_id, bool spare,
                              is_names *stale)
{
    id_list facts = { 0 };
    is_status st = drop_dependents(b, p, item_id, spare, stale, &facts);

    is_sort(facts.ids, facts.n, sizeof *facts.ids, by_value);
    for (size_t i = 0; stale && i < facts.n; i++)
        stale->n_others += facts.ids[i] != item_id && (i == 0 || facts.ids[i] != facts.ids[i - 1]);
    is_free(facts.ids);
    return st;
}

is_status bank_drop_dependents(is_bank *b, const is_partition *p, int64_t item_id, is_names *stale)
{
    return drop_counted(b, p, item_id, false, stale);
}

is_status bank_drop_onlookers(is_bank *b, const is_partition *p, int64_t item_id, is_names *stale)
{
    return drop_counted(b, p, item_id, true, stale);
}

/* ---- The closure ----------------------------------------------------------------------------------------------------------- */

/* A forgetting under way. */
typedef struct work {
    is_bank *b;
    const is_partition *p;
    is_closure *c;
    id_list todo;        /* grows: what goes with something that goes */
    id_list touched;     /* facts that lost segments, with repetitions */
    id_list withdrawn;   /* turns */
} work;

/* Shows the caller what is about to go, and marks what was known as forgotten. kind: of the item. */
static is_status show_texts(work *w, int64_t id, int kind)
{
    is_status st = INFERSCALE_OK, ended;
    sql q = sql_open(w->b, "SELECT text FROM fact_versions WHERE partition_id = ?1 AND item_id = ?2"
                     " UNION ALL SELECT text FROM turns WHERE partition_id = ?1 AND item_id = ?2");

    sql_i64(&q, w->p->id);
    sql_i64(&q, id);
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const char *text = bank_given((const char *)sqlite3_column_text(q.stmt, 0));

        if (w->c->each) st = w->c->each(w->c->ctx, IS_GONE_TEXT, text, strlen(text));
        if (st == INFERSCALE_OK && kind == INFERSCALE_FACTS) st = bank_set_tombstone(w->b, w->p, text);
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

static is_status show_vectors(work *w, int64_t id)
{
    is_status st = INFERSCALE_OK, ended;
    sql q;

    if (!w->c->each) return INFERSCALE_OK;
    q = sql_open(w->b, "SELECT q FROM embeddings WHERE partition_id = ?1 AND item_id = ?2");
    sql_i64(&q, w->p->id);
    sql_i64(&q, id);
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const void *v = sqlite3_column_blob(q.stmt, 0);

        if (v) st = w->c->each(w->c->ctx, IS_GONE_VECTOR, v, (size_t)sqlite3_column_bytes(q.stmt, 0));
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

/* The turn stays as what was said; from now on nothing is made of it. */
static is_status withdraw(work *w, int64_t turn)
{
    int64_t changes = 0;
    sql q = sql_open(w->b, "UPDATE items SET withdrawn = 1 WHERE partition_id = ?1 AND id = ?2 AND kind = 2 AND withdrawn = 0");

    sql_i64(&q, w->p->id);
    sql_i64(&q, turn);
    IS_TRY(sql_run(&q, &changes));
    if (!changes) return INFERSCALE_OK;
    IS_TRY(show_vectors(w, turn));
    IS_TRY(run_keyed(w->b, "DELETE FROM embeddings WHERE partition_id = ?1 AND item_id = ?2", w->p, turn));
    IS_TRY(drop_dependents(w->b, w->p, turn, false, &w->c->stale, &w->touched));
    return ids_add(&w->withdrawn, turn);
}

static is_status source_turns(work *w, int64_t fact)
{
    id_list turns = { 0 };
    sql q = sql_open(w->b, "SELECT DISTINCT source_turn FROM fact_versions WHERE partition_id = ?1 AND item_id = ?2 AND"
                     " source_turn <> 0");
    is_status st;

    sql_i64(&q, w->p->id);
    sql_i64(&q, fact);
    st = ids_read(&q, &turns);
    for (size_t i = 0; st == INFERSCALE_OK && i < turns.n; i++)
        st = w->c->with_turns ? ids_add(&w->todo, turns.ids[i]) : withdraw(w, turns.ids[i]);
    is_free(turns.ids);
    return st;
}

static is_status facts_of_turn(work *w, int64_t turn)
{
    sql q = sql_open(w->b, "SELECT DISTINCT item_id FROM fact_versions WHERE partition_id = ?1 AND source_turn = ?2 AND"
                     " source_turn <> 0");

    sql_i64(&q, w->p->id);
    sql_i64(&q, turn);
    return ids_read(&q, &w->todo);
}

static is_status kind_of(work *w, int64_t id, int64_t *kind)
{
    is_status st;
    sql q = sql_open(w->b, "SELECT kind FROM items WHERE partition_id = ?1 AND id = ?2");

    sql_i64(&q, w->p->id);
    sql_i64(&q, id);
    *kind = sql_one_i64(&q, 0, &st);
    return st;
}

static is_status delete_item(work *w, int64_t id)
{
    is_bank *b = w->b;
    int64_t kind;

    IS_TRY(kind_of(w, id, &kind));
    if (!kind) return INFERSCALE_OK; /* gone with something else */
    w->c->n_deleted++;
    IS_TRY(show_texts(w, id, (int)kind));
    IS_TRY(show_vectors(w, id));
    if (kind == INFERSCALE_FACTS) IS_TRY(source_turns(w, id));
    else if (w->c->with_facts) IS_TRY(facts_of_turn(w, id));
    IS_TRY(drop_dependents(b, w->p, id, false, &w->c->stale, &w->touched));
    IS_TRY(run_keyed(b, "UPDATE fact_versions SET source_turn = 0 WHERE partition_id = ?1 AND source_turn = ?2 AND "
                     "source_turn <> 0", w->p, id));
    IS_TRY(run_keyed(b, "UPDATE items SET superseded_by = 0 WHERE partition_id = ?1 AND superseded_by = ?2 AND"
                     " superseded_by <> 0", w->p, id));
    /* versions, turn and embeddings go with it */
    return run_keyed(b, "DELETE FROM items WHERE partition_id = ?1 AND id = ?2", w->p, id);
}

/* The ids among those asked for (one = 0: all) that are in the partition and pass the filter. */
static is_status choose(work *w, int64_t one)
{
    const inferscale_scope *filter = w->c->filter;
    sql q = one ? sql_open(w->b, "SELECT id FROM items WHERE partition_id = ?1 AND ?2 IN ('', agent) AND ?3 IN ('', run) AND"
                                 " ?4 IN ('', app) AND (?5 = 0 OR EXISTS(SELECT 1 FROM fact_versions f WHERE f.partition_id = ?1"
                                 " AND f.item_id = items.id AND f.version = items.version AND f.expires <> 0 AND f.expires <= ?5))"
                                 " AND id = ?6")
                : sql_open(w->b, "SELECT id FROM items WHERE partition_id = ?1 AND ?2 IN ('', agent) AND ?3 IN ('', run) AND"
                                 " ?4 IN ('', app) AND (?5 = 0 OR EXISTS(SELECT 1 FROM fact_versions f WHERE f.partition_id = ?1"
                                 " AND f.item_id = items.id AND f.version = items.version AND f.expires <> 0 AND f.expires <= ?5))"
                                 " ORDER BY id");

    sql_i64(&q, w->p->id);
    sql_text(&q, filter ? filter->agent : NULL);
    sql_text(&q, filter ? filter->run : NULL);
    sql_text(&q, filter ? filter->app : NULL);
    sql_i64(&q, w->c->expired ? is_now_epoch() : 0);
    if (one) sql_i64(&q, one);
    return ids_read(&q, &w->todo);
}

/* A conversation's name can be as telling as a turn. */
static is_status drop_empty_conversations(is_bank *b, const is_partition *p)
{
    sql q = sql_open(b, "DELETE FROM conversations WHERE partition_id = ?1 AND NOT EXISTS(SELECT 1 FROM turns t WHERE"
                        " t.partition_id = ?1 AND t.conversation_id = conversations.id)");

    sql_i64(&q, p->id);
    return sql_run(&q, NULL);
}

/* How many different ids of the list are still there. */
static is_status count_left(work *w, id_list *l, size_t *n)
{
    is_sort(l->ids, l->n, sizeof *l->ids, by_value);
    for (size_t i = 0; i < l->n; i++) {
        int64_t kind = 0;

        if (i && l->ids[i] == l->ids[i - 1]) continue;
        IS_TRY(kind_of(w, l->ids[i], &kind));
        *n += kind != 0;
    }
    return INFERSCALE_OK;
}

static is_status run(is_bank *b, const char *literal)
{
    sql q = sql_open(b, literal);

    return sql_run(&q, NULL);
}

/* SQLite keeps two scratch pages for a connection: one with the row that it wrote last, one with the
 * page whose rows it moved last, which holds text of rows that are deleted since. Nothing frees
 * them, so both are overwritten: a long row is written, and the pages that this changed are put back
 * through the second scratch page. The bank is then as it was. */
static is_status overwrite_scratch(is_bank *b, const is_partition *p)
{
    is_status st;
    sql q;

    IS_TRY(run(b, "SAVEPOINT scratch"));
    q = sql_open(b, "UPDATE partitions SET created = zeroblob(3900) WHERE id = ?1");
    sql_i64(&q, p->id);
    st = sql_run(&q, NULL);
    if (st == INFERSCALE_OK) st = run(b, "ROLLBACK TO scratch");
    return st == INFERSCALE_OK ? run(b, "RELEASE scratch") : st; /* else all is rolled back */
}

static is_status forget_in(work *w)
{
    is_closure *c = w->c;

    if (!c->ids) IS_TRY(choose(w, 0));
    for (size_t i = 0; c->ids && i < c->n; i++) {
        size_t before = w->todo.n;

        if (c->ids[i] > 0) IS_TRY(choose(w, c->ids[i]));
        if (w->todo.n != before) continue;
        if (c->unknown) c->unknown[c->n_unknown] = c->ids[i];
        c->n_unknown++;
    }
    for (size_t i = 0; i < w->todo.n; i++) IS_TRY(delete_item(w, w->todo.ids[i]));
    if (c->n_deleted == 0) return INFERSCALE_OK;
    IS_TRY(drop_empty_conversations(w->b, w->p));
    IS_TRY(count_left(w, &w->touched, &c->n_reencode));
    IS_TRY(count_left(w, &w->withdrawn, &c->n_withdrawn));
    IS_TRY(bank_touch(w->b, w->p, true));
    return overwrite_scratch(w->b, w->p);
}

is_status is_bank_forget_closure(is_bank *b, const is_partition *p, is_closure *c)
{
    work w = { .b = b, .p = p, .c = c };
    is_status st;

    c->n_deleted = c->n_withdrawn = c->n_reencode = c->n_unknown = 0;
    c->stale = (is_names){ 0 };
    IS_TRY(bank_begin(b));
    st = bank_end(b, forget_in(&w));
    is_free(w.todo.ids);
    is_free(w.touched.ids);
    is_free(w.withdrawn.ids);
    if (st == INFERSCALE_OK) return st;
    is_names_free(&c->stale);
    c->n_deleted = c->n_withdrawn = c->n_reencode = c->n_unknown = 0;
    return st;
}

is_status is_bank_forget(is_bank *b, const is_partition *p, const int64_t *ids, size_t n, const inferscale_scope *filter,
                         size_t *n_deleted, is_names *stale)
{
    is_closure c = { .ids = ids, .n = n, .filter = filter };

    if (n_deleted) *n_deleted = 0;
    if (stale) *stale = (is_names){ 0 };
    IS_TRY(is_bank_forget_closure(b, p, &c));
    if (n_deleted) *n_deleted = c.n_deleted;
    if (stale) *stale = c.stale;
    else is_names_free(&c.stale);
    if (c.n_deleted && is_bank_cut_log(b, LOG_WAIT_MS) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "bank: the write-ahead log could not be emptied after forgetting: %s", is_error());
    if (c.n_deleted) is_bank_drop_caches();
    return INFERSCALE_OK;
}

/* ---- Files that must go -------------------------------------------------------------------------------------------------- */

is_status is_bank_doomed(is_bank *b, is_names *out)
{
    is_status st = INFERSCALE_OK, ended;
    sql q;

    *out = (is_names){ 0 };
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT DISTINCT name FROM doomed");
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const void *name = sqlite3_column_blob(q.stmt, 0);

        if (name && sqlite3_column_bytes(q.stmt, 0) == IS_HASH_BYTES) st = bank_names_add(out, name);
        else q.rc = SQLITE_CORRUPT;
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    bank_unlock(b);
    if (st == INFERSCALE_OK) st = ended;
    if (st != INFERSCALE_OK) is_names_free(out);
    return st;
}

/* In a transaction. */
static is_status take_off(is_bank *b, const uint8_t name[IS_HASH_BYTES])
{
    sql q = sql_open(b, "DELETE FROM doomed WHERE name = ?1");

    sql_blob(&q, name, IS_HASH_BYTES);
    return sql_run(&q, NULL);
}

is_status is_bank_doomed_done(is_bank *b, const is_names *names)
{
    is_status st = INFERSCALE_OK;

    if (names->n == 0) return INFERSCALE_OK;
    IS_TRY(bank_begin(b));
    for (size_t i = 0; st == INFERSCALE_OK && i < names->n; i++) st = take_off(b, names->names[i]);
    return bank_end(b, st);
}

enum { SWEEP = 256 };

typedef struct doomed_row { int64_t partition; uint8_t name[IS_HASH_BYTES]; } doomed_row;

/* The next rows in the order of name and partition, after *at. */
static is_status read_doomed(is_bank *b, const doomed_row *at, doomed_row rows[SWEEP], size_t *n)
{
    sql q = sql_open(b, "SELECT partition_id, name FROM doomed WHERE (name, partition_id) > (?1, ?2) ORDER BY 2, 1 LIMIT ?3");

    sql_blob(&q, at->name, IS_HASH_BYTES);
    sql_i64(&q, at->partition);
    sql_i64(&q, SWEEP);
    for (*n = 0; *n < SWEEP && sql_row(&q);) {
        const void *name = sqlite3_column_blob(q.stmt, 1);

        if (!name || sqlite3_column_bytes(q.stmt, 1) != IS_HASH_BYTES) {
            q.rc = SQLITE_CORRUPT;
            break;
        }
        rows[*n].partition = sqlite3_column_int64(q.stmt, 0);
        memcpy(rows[(*n)++].name, name, IS_HASH_BYTES);
    }
    return sql_end(&q);
}

/* Those of the rows that no living process may be writing. */
static is_status left_alone(is_bank *b, const doomed_row *rows, size_t n, is_names *out)
{
    bool is_writing = false;

    for (size_t i = 0; i < n; i++) {
        if (i == 0 || rows[i].partition != rows[i - 1].partition) IS_TRY(is_lease_is_writing(b, rows[i].partition, &is_writing));
        if (!is_writing) IS_TRY(bank_names_add(out, rows[i].name));
    }
    return INFERSCALE_OK;
}

is_status is_bank_sweep_doomed(is_bank *b, is_doomed_remove_fn *remove, void *ctx, size_t *n_removed)
{
    doomed_row rows[SWEEP], at = { .partition = INT64_MIN };
    is_status st = INFERSCALE_OK;
    size_t n = SWEEP;

    for (*n_removed = 0; n == SWEEP && st == INFERSCALE_OK;) {
        is_names gone = { 0 };

        IS_TRY(bank_begin(b));
        st = read_doomed(b, &at, rows, &n);
        if (st == INFERSCALE_OK) st = left_alone(b, rows, n, &gone);
        if (st == INFERSCALE_OK && gone.n) st = remove(ctx, &gone);
        for (size_t i = 0; st == INFERSCALE_OK && i < gone.n; i++) st = take_off(b, gone.names[i]);
        st = bank_end(b, st);
        if (st == INFERSCALE_OK) *n_removed += gone.n;
        if (n) at = rows[n - 1];
        is_names_free(&gone);
    }
    return st;
}

is_status is_bank_doom(is_bank *b, const is_partition *p, const uint8_t name[IS_HASH_BYTES])
{
    bool used = false;
    is_status st;

    IS_TRY(bank_begin(b));
    st = in_use(b, p, name, &used); /* encoding again: the file that is there is wanted */
    if (st == INFERSCALE_OK && !used) st = insert_doomed(b, p, name);
    return bank_end(b, st);
}
