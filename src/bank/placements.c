/* placements.c - which memory stood before which turn of a conversation, so that a client who resends bare messages gets the
 * same prompt again. A placement goes when one of its facts is changed or forgotten. */
#include <stdint.h>

#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"

/* Of one partition as many are kept, the newest; now and then the others go. */
enum { KEPT = 10000, TRIM_EVERY = 64 };

static is_status trim(is_bank *b, const is_partition *p, int64_t newest)
{
    sql q;

    if (newest % TRIM_EVERY) return INFERSCALE_OK;
    q = sql_open(b, "DELETE FROM placements WHERE partition_id = ?1 AND id <= (SELECT id FROM placements WHERE partition_id = ?1"
                 " ORDER BY id DESC LIMIT 1 OFFSET ?2)");
    sql_i64(&q, p->id);
    sql_i64(&q, KEPT);
    return sql_run(&q, NULL);
}

static is_status replace(is_bank *b, const is_partition *p, const uint8_t *profile, const uint8_t *prefix, int64_t *id)
{
    sql q = sql_open(b, "DELETE FROM placements WHERE partition_id = ?1 AND profile = ?2 AND prefix = ?3");

    sql_i64(&q, p->id);
    sql_blob(&q, profile, IS_HASH_BYTES);
    sql_blob(&q, prefix, IS_HASH_BYTES);
    IS_TRY(sql_run(&q, NULL));
    q = sql_open(b, "INSERT INTO placements(partition_id, profile, prefix, write_time) VALUES(?1, ?2, ?3, ?4)");
    sql_i64(&q, p->id);
    sql_blob(&q, profile, IS_HASH_BYTES);
    sql_blob(&q, prefix, IS_HASH_BYTES);
    sql_i64(&q, is_now_epoch());
    IS_TRY(sql_run(&q, NULL));
    *id = sqlite3_last_insert_rowid(b->db);
    return INFERSCALE_OK;
}

static is_status put(is_bank *b, const is_partition *p, const uint8_t *profile, const uint8_t *prefix, const is_dep *facts,
                     size_t n)
{
    int64_t id = 0;

    IS_TRY(replace(b, p, profile, prefix, &id));
    for (size_t i = 0; i < n; i++) {
        sql q;

        IS_TRY(bank_check_dep(b, p, facts[i].item_id, facts[i].version));
        q = sql_open(b, "INSERT INTO placement_items(partition_id, item_id, version, placement_id, position) VALUES(?1, ?2, "
                     "?3, ?4, ?5)");
        sql_i64(&q, p->id);
        sql_i64(&q, facts[i].item_id);
        sql_i64(&q, facts[i].version);
        sql_i64(&q, id);
        sql_i64(&q, (int64_t)i);
        IS_TRY(sql_run(&q, NULL));
    }
    return trim(b, p, id);
}

is_status is_bank_put_placement(is_bank *b, const is_partition *p, const uint8_t profile[IS_HASH_BYTES],
                                const uint8_t prefix[IS_HASH_BYTES], const is_dep *facts, size_t n)
{
    IS_TRY(bank_begin(b));
    return bank_end(b, put(b, p, profile, prefix, facts, n));
}

static is_status read_items(is_bank *b, const is_partition *p, int64_t placement, is_dep **facts, size_t *n)
{
    is_status st = INFERSCALE_OK, ended;
    sql q = sql_open(b, "SELECT item_id, version FROM placement_items WHERE partition_id = ?1 AND placement_id = ?2 ORDER BY "
                     "position");

    sql_i64(&q, p->id);
    sql_i64(&q, placement);
    while (sql_row(&q)) {
        is_dep *grown = is_realloc(*facts, (*n + 1) * sizeof *grown);

        if (!grown) {
            st = is_fail(INFERSCALE_E_NOMEM, "no memory for a placement; free some memory and try again");
            q.rc = SQLITE_OK;
            break;
        }
        *facts = grown;
        grown[*n].item_id = sqlite3_column_int64(q.stmt, 0);
        grown[(*n)++].version = sqlite3_column_int(q.stmt, 1);
    }
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

is_status is_bank_placement(is_bank *b, const is_partition *p, const uint8_t profile[IS_HASH_BYTES],
                            const uint8_t prefix[IS_HASH_BYTES], is_dep **facts, size_t *n)
{
    int64_t id;
    is_status st;
    sql q;

    *facts = NULL;
    *n = 0;
    IS_TRY(bank_read_begin(b));
    q = sql_open(b, "SELECT id FROM placements WHERE partition_id = ?1 AND profile = ?2 AND prefix = ?3");
    sql_i64(&q, p->id);
    sql_blob(&q, profile, IS_HASH_BYTES);
    sql_blob(&q, prefix, IS_HASH_BYTES);
    id = sql_one_i64(&q, 0, &st);
    if (st == INFERSCALE_OK && !id)
        st = is_fail(INFERSCALE_E_NOTFOUND, "no memory was placed before this turn; place it afresh");
    if (st == INFERSCALE_OK) st = read_items(b, p, id, facts, n);
    st = bank_read_end(b, st);
    if (st != INFERSCALE_OK) {
        is_free(*facts);
        *facts = NULL;
        *n = 0;
    }
    return st;
}
