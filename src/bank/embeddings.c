/* embeddings.c - the books of vectors. They can be made again, so a power loss may take the last of them: they are committed
 * without waiting for the disk, which is a hundred times faster. The database stays whole in any case. */
#include <stdint.h>
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"

static is_status why_not_put(is_bank *b, const is_partition *p, int64_t id)
{
    is_status st;
    sql q = sql_open(b, "SELECT 1 FROM items WHERE partition_id = ?1 AND id = ?2");
    int64_t there;

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    there = sql_one_i64(&q, 0, &st);
    if (st != INFERSCALE_OK) return st;
    if (there) return is_fail(INFERSCALE_E_STALE, "item %lld was changed meanwhile; embed its new version", (long long)id);
    return is_fail(INFERSCALE_E_NOTFOUND, "there is no item %lld in this memory; it was forgotten, leave it out",
                   (long long)id);
}

static is_status put(is_bank *b, const is_partition *p, const uint8_t *fingerprint, int64_t id, int version, const int8_t *v,
                     uint32_t dim, float scale)
{
    int64_t changes = 0;
    sql q = sql_open(b, "INSERT INTO embeddings(partition_id, item_id, fingerprint, version, scale, q, checksum)"
                        " SELECT ?1, i.id, ?3, i.version, ?5, ?6, vector_sum(i.id, i.version, ?5, ?6) FROM items i WHERE"
                        " i.partition_id = ?1 AND i.id = ?2 AND i.version = ?4 AND i.withdrawn = 0"
                        " ON CONFLICT(partition_id, item_id, fingerprint) DO UPDATE SET version = excluded.version,"
                        " scale = excluded.scale, q = excluded.q, checksum = excluded.checksum");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_i64(&q, version);
    sql_real(&q, (double)scale);
    sql_blob(&q, v, dim);
    IS_TRY(sql_run(&q, &changes));
    return changes ? INFERSCALE_OK : why_not_put(b, p, id);
}

is_status is_bank_put_embedding(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t id,
                                int version, const int8_t *q, uint32_t dim, float scale)
{
    is_status st;

    if (dim == 0) return is_fail(INFERSCALE_E_INVALID, "an embedding of no dimensions; check the embedder");
    IS_TRY(bank_begin_lazy(b));
    st = put(b, p, fingerprint, id, version, q, dim, scale);
    if (st == INFERSCALE_OK) st = bank_touch(b, p, false);
    return bank_end_lazy(b, st);
}

is_status is_bank_put_embeddings(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const is_vector *v,
                                 size_t n, uint32_t dim)
{
    size_t done = 0;
    is_status st = INFERSCALE_OK;

    if (dim == 0) return is_fail(INFERSCALE_E_INVALID, "an embedding of no dimensions; check the embedder");
    IS_TRY(bank_begin_lazy(b));
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) {
        st = put(b, p, fingerprint, v[i].id, v[i].version, v[i].q, dim, v[i].scale);
        done += st == INFERSCALE_OK;
        if (st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_E_STALE) st = INFERSCALE_OK;
    }
    if (st == INFERSCALE_OK && done) st = bank_touch(b, p, false);
    return bank_end_lazy(b, st);
}

is_status is_bank_get_embedding(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t id, int8_t **q,
                                uint32_t *dim, float *scale)
{
    is_status st = INFERSCALE_OK, ended;
    sql s;

    *q = NULL;
    *dim = 0;
    IS_TRY(bank_lock(b));
    s = sql_open(b, "SELECT e.q, e.scale FROM embeddings e JOIN items i ON i.partition_id = e.partition_id AND i.id = e.item_id"
                    " AND i.version = e.version WHERE e.partition_id = ?1 AND e.item_id = ?2 AND e.fingerprint = ?3");
    sql_i64(&s, p->id);
    sql_i64(&s, id);
    sql_blob(&s, fingerprint, IS_HASH_BYTES);
    if (sql_row(&s)) {
        const void *v = sqlite3_column_blob(s.stmt, 0);
        int n = sqlite3_column_bytes(s.stmt, 0);

        *q = v && n > 0 ? is_malloc((size_t)n) : NULL;
        if (*q) memcpy(*q, v, (size_t)n);
        else if (v && n > 0) st = is_fail(INFERSCALE_E_NOMEM, "no memory for a vector; free some memory and try again");
        else s.rc = SQLITE_CORRUPT;
        *dim = *q ? (uint32_t)n : 0;
        *scale = (float)sqlite3_column_double(s.stmt, 1);
    }
    if (st != INFERSCALE_OK) s.rc = SQLITE_OK;
    ended = sql_end(&s);
    bank_unlock(b);
    if (st == INFERSCALE_OK) st = ended;
    if (st == INFERSCALE_OK && !*q) st = is_fail(INFERSCALE_E_NOTFOUND, "item %lld has no embedding; embed it", (long long)id);
    if (st != INFERSCALE_OK) {
        is_free(*q);
        *q = NULL;
    }
    return st;
}

is_status is_bank_each_embedding(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES],
                                 is_bank_embedding_fn each, void *ctx)
{
    is_status st = INFERSCALE_OK, ended;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT e.item_id, e.q, e.scale FROM embeddings e JOIN items i ON i.partition_id = e.partition_id AND "
                 "i.id = e.item_id AND i.version = e.version WHERE e.partition_id = ?1"
                 " AND e.fingerprint = ?2 ORDER BY e.item_id");
    sql_i64(&q, p->id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    while (st == INFERSCALE_OK && sql_row(&q)) {
        const int8_t *v = sqlite3_column_blob(q.stmt, 1);
        int dim = sqlite3_column_bytes(q.stmt, 1);

        if (!v || dim <= 0) {
            q.rc = SQLITE_CORRUPT;
            break;
        }
        st = each(ctx, sqlite3_column_int64(q.stmt, 0), v, (uint32_t)dim, (float)sqlite3_column_double(q.stmt, 2));
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    bank_unlock(b);
    return st != INFERSCALE_OK ? st : ended;
}

/* ---- What cosines mean ------------------------------------------------------------------------------------------- */

is_status is_bank_put_calibration(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], double low, double high)
{
    sql q;

    if (!(low < high)) return is_fail(INFERSCALE_E_INVALID, "a calibration from %g to %g; check the embedder", low, high);
    IS_TRY(bank_begin_lazy(b));
    q = sql_open(b, "INSERT INTO calibrations(fingerprint, low, high) VALUES(?1, ?2, ?3)"
                    " ON CONFLICT(fingerprint) DO UPDATE SET low = excluded.low, high = excluded.high");
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_real(&q, low);
    sql_real(&q, high);
    return bank_end_lazy(b, sql_run(&q, NULL));
}

is_status is_bank_get_calibration(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], double *low, double *high)
{
    bool there;
    is_status st;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT low, high FROM calibrations WHERE fingerprint = ?1");
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    there = sql_row(&q);
    if (there) {
        *low = sqlite3_column_double(q.stmt, 0);
        *high = sqlite3_column_double(q.stmt, 1);
    }
    st = sql_end(&q);
    bank_unlock(b);
    if (st != INFERSCALE_OK || there) return st;
    return is_fail(INFERSCALE_E_NOTFOUND, "this embedder has no calibration yet; it is measured when facts are embedded");
}

/* ---- Lists of ids ------------------------------------------------------------------------------------------------ */

is_status bank_collect_ids(sql *q, int64_t **ids, size_t *n)
{
    is_status st = INFERSCALE_OK, ended;
    size_t cap = 0;

    *ids = NULL;
    *n = 0;
    while (st == INFERSCALE_OK && sql_row(q)) {
        if (*n == cap) {
            int64_t *grown = is_realloc(*ids, (cap = cap ? cap * 2 : 64) * sizeof *grown);

            if (!grown) {
                st = is_fail(INFERSCALE_E_NOMEM, "no memory for a list of ids; free some memory or ask for fewer");
                break;
            }
            *ids = grown;
        }
        (*ids)[(*n)++] = sqlite3_column_int64(q->stmt, 0);
    }
    if (st != INFERSCALE_OK) q->rc = SQLITE_OK;
    ended = sql_end(q);
    if (st == INFERSCALE_OK) st = ended;
    if (st != INFERSCALE_OK) {
        is_free(*ids);
        *ids = NULL;
        *n = 0;
    }
    return st;
}
