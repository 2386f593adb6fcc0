/* forget.c - the bank's share of forgetting: rows, and the names of every file that was computed from them.
 *
 * secure_delete overwrites the freed bytes in the database; the write-ahead log still holds older copies of the pages, so it is
 * checkpointed and cut to nothing afterwards. */
#include <string.h>

#include "bank/sql.h"
#include "base/log.h"
#include "base/mem.h"

enum { CHECKPOINT_WAIT_MS = 1000 };

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

/* Runs a literal bound to (partition, item). */
static is_status run_keyed(is_bank *b, const char *literal, const is_partition *p, int64_t id)
{
    sql q = sql_open(b, literal);

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    return sql_run(&q, NULL);
}

static is_status dependents(is_bank *b, const is_partition *p, int64_t item_id, is_names *found)
{
    is_status st = INFERSCALE_OK, ended;
    sql q = sql_open(b, "SELECT DISTINCT s.name FROM segment_deps d CROSS JOIN segments s ON s.id = d.segment_id AND"
                        " s.partition_id = d.partition_id WHERE d.partition_id = ?1 AND d.item_id = ?2");

    sql_i64(&q, p->id);
    sql_i64(&q, item_id);
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const void *name = sqlite3_column_blob(q.stmt, 0);

        if (!name || sqlite3_column_bytes(q.stmt, 0) != IS_HASH_BYTES) {
            q.rc = SQLITE_CORRUPT;
            break;
        }
        st = bank_names_add(found, name);
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

is_status bank_drop_dependents(is_bank *b, const is_partition *p, int64_t item_id, is_names *stale)
{
    is_names found = { 0 };
    is_status st = dependents(b, p, item_id, &found);

    if (st == INFERSCALE_OK) /* "+": by id, not through every segment of the partition */
        st = run_keyed(b, "DELETE FROM segments WHERE +partition_id = ?1 AND id IN (SELECT segment_id FROM segment_deps"
                          " WHERE partition_id = ?1 AND item_id = ?2)", p, item_id);
    for (size_t i = 0; st == INFERSCALE_OK && i < found.n; i++) st = doom(b, p, found.names[i], stale);
    if (st == INFERSCALE_OK)
        st = run_keyed(b, "DELETE FROM placements WHERE +partition_id = ?1 AND id IN (SELECT placement_id FROM placement_items"
                          " WHERE partition_id = ?1 AND item_id = ?2)", p, item_id);
    is_names_free(&found);
    return st;
}

static is_status delete_item(is_bank *b, const is_partition *p, int64_t id, is_names *stale)
{
    IS_TRY(bank_drop_dependents(b, p, id, stale));
    IS_TRY(run_keyed(b, "UPDATE fact_versions SET source_turn = 0 WHERE partition_id = ?1 AND source_turn = ?2 AND "
                     "source_turn <> 0", p, id));
    /* versions, turn and embeddings go with it */
    return run_keyed(b, "DELETE FROM items WHERE partition_id = ?1 AND id = ?2", p, id);
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

/* The ids among those asked for (one = 0: all) that are in the partition and pass the filter. */
static is_status choose(is_bank *b, const is_partition *p, const inferscale_scope *filter, int64_t one, id_list *chosen)
{
    is_status st = INFERSCALE_OK, ended;
    sql q = one ? sql_open(b, "SELECT id FROM items WHERE partition_id = ?1 AND ?2 IN ('', agent) AND ?3 IN ('', run) AND"
                              " ?4 IN ('', app) AND id = ?5")
                : sql_open(b, "SELECT id FROM items WHERE partition_id = ?1 AND ?2 IN ('', agent) AND ?3 IN ('', run) AND"
                              " ?4 IN ('', app) ORDER BY id");

    sql_i64(&q, p->id);
    sql_text(&q, filter ? filter->agent : NULL);
    sql_text(&q, filter ? filter->run : NULL);
    sql_text(&q, filter ? filter->app : NULL);
    if (one) sql_i64(&q, one);
    while (st == INFERSCALE_OK && sql_row(&q)) st = ids_add(chosen, sqlite3_column_int64(q.stmt, 0));
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

/* A conversation's name can be as telling as a turn. */
static is_status drop_empty_conversations(is_bank *b, const is_partition *p)
{
    sql q = sql_open(b, "DELETE FROM conversations WHERE partition_id = ?1 AND NOT EXISTS(SELECT 1 FROM turns t WHERE"
                        " t.partition_id = ?1 AND t.conversation_id = conversations.id)");

    sql_i64(&q, p->id);
    return sql_run(&q, NULL);
}

static is_status forget_in(is_bank *b, const is_partition *p, const int64_t *ids, size_t n, const inferscale_scope *filter,
                           size_t *n_deleted, is_names *stale)
{
    is_status st = INFERSCALE_OK;
    id_list chosen = { 0 };
    size_t deleted = 0;

    if (!ids) st = choose(b, p, filter, 0, &chosen);
    for (size_t i = 0; st == INFERSCALE_OK && i < (ids ? n : chosen.n); i++) {
        id_list one = { 0 };

        if (!ids) {
            st = delete_item(b, p, chosen.ids[i], stale);
            deleted++;
            continue;
        }
        if (ids[i] > 0) st = choose(b, p, filter, ids[i], &one);
        if (st == INFERSCALE_OK && one.n) {
            st = delete_item(b, p, ids[i], stale);
            deleted++;
        }
        is_free(one.ids);
    }
    is_free(chosen.ids);
    if (st != INFERSCALE_OK || deleted == 0) return st;
    IS_TRY(drop_empty_conversations(b, p));
    *n_deleted = deleted;
    return bank_touch(b, p, true);
}

/* Best effort: a reader in another process can hold the log for a while; then the next checkpoint does it. */
static void cut_log(is_bank *b)
{
    int rc;

    if (bank_lock(b) != INFERSCALE_OK) return;
    sqlite3_busy_timeout(b->db, CHECKPOINT_WAIT_MS);
    rc = sqlite3_wal_checkpoint_v2(b->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    sqlite3_busy_timeout(b->db, BANK_BUSY_MS);
    if (rc != SQLITE_OK)
        is_log(IS_LOG_WARN, "bank: the write-ahead log could not be cut after forgetting (%s)", sqlite3_errstr(rc));
    bank_unlock(b);
}

is_status is_bank_forget(is_bank *b, const is_partition *p, const int64_t *ids, size_t n, const inferscale_scope *filter,
                         size_t *n_deleted, is_names *stale)
{
    is_status st;
    size_t deleted = 0;

    if (n_deleted) *n_deleted = 0;
    if (stale) *stale = (is_names){ 0 };
    IS_TRY(bank_begin(b));
    st = bank_end(b, forget_in(b, p, ids, n, filter, &deleted, stale));
    if (st != INFERSCALE_OK) {
        if (stale) is_names_free(stale);
        return st;
    }
    if (n_deleted) *n_deleted = deleted;
    if (deleted) cut_log(b);
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

is_status is_bank_doomed_done(is_bank *b, const is_names *names)
{
    is_status st = INFERSCALE_OK;

    if (names->n == 0) return INFERSCALE_OK;
    IS_TRY(bank_begin(b));
    for (size_t i = 0; st == INFERSCALE_OK && i < names->n; i++) {
        sql q = sql_open(b, "DELETE FROM doomed WHERE name = ?1");

        sql_blob(&q, names->names[i], IS_HASH_BYTES);
        st = sql_run(&q, NULL);
    }
    return bank_end(b, st);
}

is_status is_bank_doom(is_bank *b, const is_partition *p, const uint8_t name[IS_HASH_BYTES])
{
    bool used = false;
    is_status st;

    IS_TRY(bank_begin_lazy(b));
    st = in_use(b, p, name, &used); /* encoding again: the file that is there is wanted */
    if (st == INFERSCALE_OK && !used) st = insert_doomed(b, p, name);
    return bank_end_lazy(b, st);
}
