/* recode.c - the books of segments when their rows move to another codec: the same rows under another view, name and file.
 *
 * A row keeps its id, so what it depends on, pinned by id in the dependency table, is told by the same entries as before: what is
 * forgotten later takes the rows with it, whichever codec they are in by then. */
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"

/* Does a row s belong to an open page of one of these views? ?2 is the view that rows move to, ?3 the one
 * that they come from. */
#define OPEN_IN(views)                                                                             \
    "EXISTS(SELECT 1 FROM page_facts f CROSS JOIN pages g ON g.id = f.page_id WHERE"               \
    " f.partition_id = s.partition_id AND f.item_id = s.item_id AND f.version = s.version AND"     \
    " f.lead = s.lead AND g.open = 1 AND g.fingerprint IN " views " AND s.policy ="             \
    " CASE WHEN s.lead THEN substr(g.policy, 1, 24) || '#lead' ELSE g.policy END)"
#define OPEN OPEN_IN("(?2, ?3)")
#define OPEN_OWN OPEN_IN("(?2)")
#define THERE                                                                                      \
    "EXISTS(SELECT 1 FROM segments t WHERE t.partition_id = s.partition_id AND"                    \
    " t.item_id = s.item_id AND t.version = s.version AND t.fingerprint = ?2 AND"                  \
    " (s.lead OR t.policy = s.policy))"

static is_status read_one(sql *q, is_recode *out)
{
    const void *name = sqlite3_column_blob(q->stmt, 1);

    *out = (is_recode){ .row_id = sqlite3_column_int64(q->stmt, 0),
                        .keep = sqlite3_column_int(q->stmt, 2) != 0,
                        .open = sqlite3_column_int(q->stmt, 3) != 0,
                        .bytes = (uint64_t)sqlite3_column_int64(q->stmt, 4) };
    if (!name || sqlite3_column_bytes(q->stmt, 1) != IS_HASH_BYTES) {
        q->rc = SQLITE_CORRUPT;
        return INFERSCALE_OK;
    }
    memcpy(out->from, name, IS_HASH_BYTES);
    return INFERSCALE_OK;
}

is_status is_bank_recodable(is_bank *b, const is_partition *p, const uint8_t from[IS_HASH_BYTES],
                            const uint8_t to[IS_HASH_BYTES], const is_recode_range *range, is_recode *out,
                            size_t *n)
{
    const bool own = memcmp(from, to, IS_HASH_BYTES) == 0;
    is_status st;
    sql q;

    *n = 0;
    IS_TRY(bank_lock(b));
    q = own ? sql_open(b, "SELECT s.id, s.name, s.lead = 0, 0, s.bytes FROM segments s WHERE s.partition_id = ?1"
                          " AND s.fingerprint = ?2 AND s.wide = 1 AND s.id > ?4 AND s.id <= ?5 AND NOT " OPEN
                          " ORDER BY s.id LIMIT ?6")
            : sql_open(b, "SELECT s.id, s.name, ?7 AND s.lead = 0 AND NOT " THERE ", " OPEN ", s.bytes"
                          " FROM segments s WHERE s.partition_id = ?1 AND s.fingerprint = ?3 AND s.id > ?4"
                          " AND s.id <= ?5 AND (?7 OR " THERE ") ORDER BY s.id LIMIT ?6");
    sql_i64(&q, p->id);
    sql_blob(&q, to, IS_HASH_BYTES);
    sql_blob(&q, from, IS_HASH_BYTES);
    sql_i64(&q, range->after);
    sql_i64(&q, range->until);
    sql_i64(&q, (int64_t)range->most);
    if (!own) sql_i64(&q, range->take);
    while (*n < range->most && sql_row(&q)) (void)read_one(&q, &out[(*n)++]);
    st = sql_end(&q);
    bank_unlock(b);
    if (st != INFERSCALE_OK) *n = 0;
    return st;
}

is_status is_bank_last_segment(is_bank *b, int64_t *id)
{
    is_status st;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT ifnull(max(id), 0) FROM segments");
    *id = sql_one_i64(&q, 0, &st);
    bank_unlock(b);
    return st;
}

/* Rows and bytes that a statement adds up: `one` of a partition (?1) and a view (?2), `all` of a view in all
 * partitions. Two statements, so that the first finds its rows by an index. */
static is_status count(is_bank *b, const is_partition *p, const uint8_t *fingerprint, const char *one,
                       const char *all, uint64_t *n, uint64_t *bytes)
{
    is_status st;
    sql q;

    *n = *bytes = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, p ? one : all);
    sql_i64(&q, p ? p->id : 0);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    if (sql_row(&q)) {
        *bytes = (uint64_t)sqlite3_column_int64(q.stmt, 0);
        *n = (uint64_t)sqlite3_column_int64(q.stmt, 1);
    }
    st = sql_end(&q);
    bank_unlock(b);
    return st;
}

is_status is_bank_count_view(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], uint64_t *n, uint64_t *bytes)
{
    return count(b, p, fingerprint,
                 "SELECT ifnull(sum(bytes), 0), count(*) FROM segments WHERE partition_id = ?1 AND fingerprint = ?2",
                 "SELECT ifnull(sum(bytes), 0), count(*) FROM segments WHERE ?1 = 0 AND fingerprint = ?2", n, bytes);
}

is_status is_bank_count_wide(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], uint64_t *n,
                             uint64_t *bytes)
{
    return count(b, p, fingerprint,
                 "SELECT ifnull(sum(s.bytes), 0), count(*) FROM segments s WHERE s.partition_id = ?1 AND"
                 " s.fingerprint = ?2 AND s.wide = 1 AND NOT " OPEN_OWN,
                 "SELECT ifnull(sum(s.bytes), 0), count(*) FROM segments s WHERE ?1 = 0 AND s.fingerprint = ?2"
                 " AND s.wide = 1 AND NOT " OPEN_OWN, n, bytes);
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

/* The new file is wanted where a row names it, and else goes: the row was replaced since it was read. */
static is_status settle_name(is_bank *b, const is_partition *p, const uint8_t *name, is_names *stale)
{
    sql q = sql_open(b, "DELETE FROM doomed WHERE partition_id = ?1 AND name = ?2 AND EXISTS(SELECT 1 FROM segments s"
                        " WHERE s.partition_id = ?1 AND s.name = ?2)");

    sql_i64(&q, p->id);
    sql_blob(&q, name, IS_HASH_BYTES);
    IS_TRY(sql_run(&q, NULL));
    return bank_retire_name(b, p, name, stale);
}

/* Only what the row was when it was read is moved or removed: an encoding may have replaced it meanwhile. */
static is_status move_row(is_bank *b, const is_partition *p, const uint8_t *from, const uint8_t *to, const is_recode *r,
                          int64_t *moved)
{
    sql q;

    q = r->keep ? sql_open(b, "UPDATE segments SET name = ?5, fingerprint = ?6, bytes = ?7, write_time = ?8, wide = ?9"
                              " WHERE partition_id = ?1 AND id = ?2 AND name = ?3 AND fingerprint = ?4")
                : sql_open(b, "DELETE FROM segments WHERE partition_id = ?1 AND id = ?2 AND name = ?3 AND fingerprint = ?4");
    sql_i64(&q, p->id);
    sql_i64(&q, r->row_id);
    sql_blob(&q, r->from, IS_HASH_BYTES);
    sql_blob(&q, from, IS_HASH_BYTES);
    if (!r->keep) return sql_run(&q, moved);
    sql_blob(&q, r->to, IS_HASH_BYTES);
    sql_blob(&q, to, IS_HASH_BYTES);
    sql_i64(&q, (int64_t)r->bytes);
    sql_i64(&q, is_now_epoch());
    sql_i64(&q, r->wide);
    return sql_run(&q, moved);
}

/* Where the new view has no pages of a policy yet, the old one's are its pages from now on. */
static is_status move_pages(is_bank *b, const is_partition *p, const uint8_t *from, const uint8_t *to)
{
    sql q = sql_open(b, "UPDATE pages SET fingerprint = ?3 WHERE partition_id = ?1 AND fingerprint = ?2 AND policy NOT IN"
                        " (SELECT q.policy FROM pages q WHERE q.partition_id = ?1 AND q.fingerprint = ?3)");

    sql_i64(&q, p->id);
    sql_blob(&q, from, IS_HASH_BYTES);
    sql_blob(&q, to, IS_HASH_BYTES);
    IS_TRY(sql_run(&q, NULL));
    q = sql_open(b, "DELETE FROM pages WHERE partition_id = ?1 AND fingerprint = ?2");
    sql_i64(&q, p->id);
    sql_blob(&q, from, IS_HASH_BYTES);
    return sql_run(&q, NULL);
}

is_status is_bank_recode(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t from[IS_HASH_BYTES],
                         const uint8_t to[IS_HASH_BYTES], const is_recode *rows, size_t n, is_names *stale)
{
    is_status st;

    *stale = (is_names){ 0 };
    IS_TRY(bank_begin(b));
    st = bank_check_epoch(b, p, epoch);
    if (st == INFERSCALE_OK && memcmp(from, to, IS_HASH_BYTES) != 0) st = move_pages(b, p, from, to);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        int64_t moved = 0;

        st = move_row(b, p, from, to, &rows[i], &moved);
        if (st == INFERSCALE_OK && rows[i].keep) st = settle_name(b, p, rows[i].to, stale);
        if (st == INFERSCALE_OK && moved) st = bank_retire_name(b, p, rows[i].from, stale); /* else another has */
    }
    st = bank_end(b, st);
    if (st != INFERSCALE_OK) is_names_free(stale);
    return st;
}
