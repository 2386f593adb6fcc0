/* backlog.c - what waits for its embedding or its KV, and what the background encoder needs to look for it cheaply. */
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"

/* ---- Where something changed ---------------------------------------------------------------------------------------------- */

is_status is_bank_data_version(is_bank *b, int64_t *out)
{
    is_status st;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "PRAGMA data_version");
    *out = sql_one_i64(&q, 0, &st);
    bank_unlock(b);
    return st;
}

is_status is_bank_partition_marks(is_bank *b, is_partition_mark **out, size_t *n)
{
    is_status st = INFERSCALE_OK, ended;
    size_t cap = 0;
    sql q;

    *out = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT id, epoch, revision FROM partitions ORDER BY id");
    while (st == INFERSCALE_OK && sql_row(&q)) {
        if (*n == cap) {
            is_partition_mark *grown = is_realloc(*out, (cap = cap ? cap * 2 : 64) * sizeof *grown);

            if (!grown) {
                st = is_fail(INFERSCALE_E_NOMEM, "no memory for a list of partitions; free some memory and try again");
                break;
            }
            *out = grown;
        }
        (*out)[(*n)++] = (is_partition_mark){ sqlite3_column_int64(q.stmt, 0), sqlite3_column_int64(q.stmt, 1),
                                              sqlite3_column_int64(q.stmt, 2) };
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    bank_unlock(b);
    if (st == INFERSCALE_OK) st = ended;
    if (st != INFERSCALE_OK) {
        is_free(*out);
        *out = NULL;
        *n = 0;
    }
    return st;
}

is_status is_bank_partition_by_id(is_bank *b, int64_t id, is_partition *out)
{
    bool found;
    is_status st;
    sql q;

    memset(out, 0, sizeof *out);
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT key, epoch, revision FROM partitions WHERE id = ?1");
    sql_i64(&q, id);
    found = sql_row(&q);
    if (found) {
        const void *key = sqlite3_column_blob(q.stmt, 0);

        out->id = id;
        if (key && sqlite3_column_bytes(q.stmt, 0) == IS_KEY_BYTES) memcpy(out->key, key, IS_KEY_BYTES);
        else q.rc = SQLITE_CORRUPT;
        out->epoch = sqlite3_column_int64(q.stmt, 1);
        out->revision = sqlite3_column_int64(q.stmt, 2);
    }
    st = sql_end(&q);
    bank_unlock(b);
    if (st != INFERSCALE_OK || found) return st;
    return is_fail(INFERSCALE_E_NOTFOUND, "partition %lld is not in the bank; look it up again by its scope", (long long)id);
}

/* ---- What waits ----------------------------------------------------------------------------------------------------------- */

/* One wording for lists and counts: they must agree, or somebody waits for what nobody does. ?1 partition, ?2 after id, ?3 now,
 * ?4 fingerprint (NULL: any), ?5 policy (NULL: any that may be served), ?6: one fact in so many must have rows behind the bare header
 * too. Nobody asks for what is over. */
#define NO_EMBEDDING                                                                                                           \
    " i.withdrawn = 0 AND NOT EXISTS(SELECT 1 FROM embeddings e WHERE e.partition_id = i.partition_id AND e.item_id = i.id"    \
    " AND e.fingerprint = ifnull(?4, e.fingerprint) AND e.version = i.version) AND NOT EXISTS(SELECT 1 FROM fact_versions o"   \
    " WHERE o.partition_id = i.partition_id AND o.item_id = i.id AND o.version = i.version AND o.expires <> 0 AND"             \
    " o.expires <= ?3)"
#define NO_ROWS(policy)                                                                                                        \
    " NOT EXISTS(SELECT 1 FROM segments s WHERE s.partition_id = i.partition_id AND s.item_id = i.id AND s.version = i.version" \
    " AND s.fingerprint = ifnull(?4, s.fingerprint) AND " policy ")"
#define NO_SEGMENT                                                                                                             \
    " i.kind = 1 AND (" NO_ROWS("s.policy = ifnull(?5, s.policy) AND (?5 IS NOT NULL OR s.lead = 0)")                          \
    " OR (one_in(i.id, ?6) AND" NO_ROWS("s.policy = 'header'") "))" NOT_OVER
#define NOT_OVER \
    " AND NOT EXISTS(SELECT 1 FROM fact_versions o WHERE o.partition_id = i.partition_id AND o.item_id = i.id AND"             \
    " o.version = i.version AND ((o.expires <> 0 AND o.expires <= ?3) OR (o.valid_to <> 0 AND o.valid_to <= ?3)))"
#define WRITTEN                                                                                                                \
    "ifnull(min(ifnull((SELECT f.write_time FROM fact_versions f WHERE f.partition_id = i.partition_id AND f.item_id = i.id"   \
    " AND f.version = i.version), (SELECT t.write_time FROM turns t WHERE t.partition_id = i.partition_id AND"                 \
    " t.item_id = i.id))), 0)"
#define ONE_PARTITION " FROM items i WHERE i.partition_id = ?1 AND i.id > ?2 AND"
#define ALL_PARTITIONS " FROM items i WHERE ?1 = 0 AND i.id > ?2 AND"

static void bind_what(sql *q, const is_partition *p, int64_t after_id, const uint8_t *fingerprint)
{
    sql_i64(q, p ? p->id : 0);
    sql_i64(q, after_id);
    sql_i64(q, is_now_epoch());
    if (fingerprint) sql_blob(q, fingerprint, IS_HASH_BYTES);
    else sql_text_or_null(q, NULL);
}

static void bind_limit(sql *q, size_t limit)
{
    sql_i64(q, limit && limit < INT64_MAX ? (int64_t)limit : -1);
}

is_status is_bank_unembedded(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t after_id,
                             size_t limit, int64_t **ids, size_t *n)
{
    is_status st;
    sql q;

    *ids = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT i.id" ONE_PARTITION NO_EMBEDDING " ORDER BY i.id LIMIT ?5");
    bind_what(&q, p, after_id, fingerprint);
    bind_limit(&q, limit);
    st = bank_collect_ids(&q, ids, n);
    bank_unlock(b);
    return st;
}

is_status is_bank_unencoded(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                            uint32_t header_one_in, int64_t after_id, size_t limit, int64_t **ids, size_t *n)
{
    is_status st;
    sql q;

    *ids = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT i.id" ONE_PARTITION NO_SEGMENT " ORDER BY i.id LIMIT ?7");
    bind_what(&q, p, after_id, fingerprint);
    sql_text_or_null(&q, policy);
    sql_i64(&q, header_one_in);
    bind_limit(&q, limit);
    st = bank_collect_ids(&q, ids, n);
    bank_unlock(b);
    return st;
}

is_status is_bank_outdated(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t after_id, size_t limit,
                           int64_t **ids, size_t *n)
{
    is_status st;
    sql q;

    *ids = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT DISTINCT s.item_id FROM segments s INDEXED BY segments_outdated"
                    " CROSS JOIN items i ON i.partition_id = s.partition_id AND i.id = s.item_id"
                    " WHERE s.partition_id = ?1 AND s.fingerprint = ?4 AND s.item_id > ?2"
                    " AND s.outdated = 1" NOT_OVER " ORDER BY s.item_id LIMIT ?5");
    bind_what(&q, p, after_id, fingerprint);
    bind_limit(&q, limit);
    st = bank_collect_ids(&q, ids, n);
    bank_unlock(b);
    return st;
}

/* Two columns of one row: a count and the write time of the oldest. */
static is_status read_waiting(sql *q, is_waiting *out)
{
    if (sql_row(q)) {
        out->n = (uint64_t)sqlite3_column_int64(q->stmt, 0);
        out->oldest = sqlite3_column_int64(q->stmt, 1);
    }
    return sql_end(q);
}

is_status is_bank_count_unembedded(is_bank *b, const is_partition *p, const uint8_t *fingerprint, int64_t after_id, is_waiting *out)
{
    is_status st;
    sql q;

    *out = (is_waiting){ 0 };
    IS_TRY(bank_lock(b));
    q = p ? sql_open(b, "SELECT count(*), " WRITTEN ONE_PARTITION NO_EMBEDDING)
          : sql_open(b, "SELECT count(*), " WRITTEN ALL_PARTITIONS NO_EMBEDDING);
    bind_what(&q, p, after_id, fingerprint);
    st = read_waiting(&q, out);
    bank_unlock(b);
    return st;
}

is_status is_bank_count_unencoded(is_bank *b, const is_partition *p, const uint8_t *fingerprint, const char *policy,
                                  uint32_t header_one_in, int64_t after_id, is_waiting *out)
{
    is_status st;
    sql q;

    *out = (is_waiting){ 0 };
    IS_TRY(bank_lock(b));
    q = p ? sql_open(b, "SELECT count(*), " WRITTEN ONE_PARTITION NO_SEGMENT)
          : sql_open(b, "SELECT count(*), " WRITTEN ALL_PARTITIONS NO_SEGMENT);
    bind_what(&q, p, after_id, fingerprint);
    sql_text_or_null(&q, policy);
    sql_i64(&q, header_one_in);
    st = read_waiting(&q, out);
    bank_unlock(b);
    return st;
}

/* ---- A connection that works in the background ------------------------------------------------------------------------------ */

/* SQLite's own waits grow in steps of milliseconds and cannot be ended. */
static int wait_busy(void *ctx, int n_tries)
{
    is_bank *b = ctx;
    const int64_t step_us = n_tries < 20 ? 200 : n_tries < 100 ? 1000 : 5000;
    const int64_t waited_us = n_tries < 20 ? n_tries * 200LL : n_tries < 100 ? 4000 + (n_tries - 20) * 1000LL
                                                                                : 84000 + (n_tries - 100) * 5000LL;
    struct timespec t = { 0, step_us * 1000 };

    if (waited_us > BANK_BUSY_MS * 1000LL || (b->stop && __atomic_load_n(b->stop, __ATOMIC_ACQUIRE))) return 0;
    nanosleep(&t, NULL);
    return 1;
}

void is_bank_wait_finely(is_bank *b, const volatile int *stop)
{
    if (bank_lock(b) != INFERSCALE_OK) return;
    b->stop = stop;
    sqlite3_busy_handler(b->db, wait_busy, b);
    bank_unlock(b);
}

void is_bank_leave_checkpoints(is_bank *b, bool leave)
{
    if (bank_lock(b) != INFERSCALE_OK) return;
    sqlite3_wal_autocheckpoint(b->db, leave ? BANK_WAL_PAGES_MAX : BANK_WAL_PAGES);
    bank_unlock(b);
}

is_status is_bank_checkpoint(is_bank *b)
{
    is_status st;
    int rc;

    IS_TRY(bank_lock(b));
    rc = sqlite3_wal_checkpoint_v2(b->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    st = rc == SQLITE_BUSY || rc == SQLITE_LOCKED ? INFERSCALE_OK : bank_fail(b, rc); /* another is at it */
    bank_unlock(b);
    return st;
}
