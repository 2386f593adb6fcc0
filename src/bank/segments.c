/* segments.c - the books of segments, and what each depends on. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "bank/sql.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

is_status bank_check_epoch(is_bank *b, const is_partition *p, int64_t epoch)
{
    is_status st;
    int64_t now;
    sql q = sql_open(b, "SELECT epoch FROM partitions WHERE id = ?1");

    sql_i64(&q, p->id);
    now = sql_one_i64(&q, -1, &st);
    if (st != INFERSCALE_OK || now == epoch) return st;
    return is_fail(INFERSCALE_E_STALE, "memory was changed or forgotten while this was made from it; make it again");
}

is_status bank_check_dep(is_bank *b, const is_partition *p, int64_t id, int version)
{
    is_status st;
    int64_t now;
    sql q = sql_open(b, "SELECT version FROM items WHERE partition_id = ?1 AND id = ?2 AND withdrawn = 0");

    sql_i64(&q, p->id);
    sql_i64(&q, id);
    now = sql_one_i64(&q, 0, &st);
    if (st != INFERSCALE_OK || (now && now == version)) return st;
    return is_fail(INFERSCALE_E_STALE, "item %lld version %d is no longer what is remembered; compute again from what is",
                   (long long)id, version);
}

static is_status add_dep(is_bank *b, const is_partition *p, int64_t segment, int64_t id, int version)
{
    sql q;

    IS_TRY(bank_check_dep(b, p, id, version));
    q = sql_open(b, "INSERT INTO segment_deps(partition_id, item_id, version, segment_id) VALUES(?1, ?2, ?3, ?4) ON CONFLICT "
                 "DO NOTHING");
    sql_i64(&q, p->id);
    sql_i64(&q, id);
    sql_i64(&q, version);
    sql_i64(&q, segment);
    return sql_run(&q, NULL);
}

/* The same fact again under the same name is the same rows: the new entry replaces the old one and is the newest. */
static is_status replace_row(is_bank *b, const is_partition *p, const uint8_t *fingerprint, const is_segment_row *row,
                             int64_t *id)
{
    char policy[sizeof row->policy + 1];
    sql q = sql_open(b, "DELETE FROM segments WHERE partition_id = ?1 AND name = ?2 AND item_id = ?3 AND policy = ?4");

    snprintf(policy, sizeof policy, "%.*s", (int)sizeof row->policy, row->policy);
    sql_i64(&q, p->id);
    sql_blob(&q, row->name, IS_HASH_BYTES);
    sql_i64(&q, row->fact_id);
    sql_text(&q, policy);
    IS_TRY(sql_run(&q, NULL));
    q = sql_open(b, "INSERT INTO segments(partition_id, item_id, version, name, fingerprint, policy, n_tokens, n_context, "
                 "n_computed, bytes, n_passes, lead, write_time, wide) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,"
                 " ?12, ?13, ?14)");
    sql_i64(&q, p->id);
    sql_i64(&q, row->fact_id);
    sql_i64(&q, row->version);
    sql_blob(&q, row->name, IS_HASH_BYTES);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    sql_i64(&q, row->n_tokens);
    sql_i64(&q, row->n_context);
    sql_i64(&q, row->n_computed);
    sql_i64(&q, (int64_t)row->bytes);
    sql_i64(&q, row->n_passes ? row->n_passes : 1);
    sql_i64(&q, row->lead);
    sql_i64(&q, is_now_epoch());
    sql_i64(&q, row->wide);
    IS_TRY(sql_run(&q, NULL));
    *id = sqlite3_last_insert_rowid(b->db);
    return INFERSCALE_OK;
}

static is_status put(is_bank *b, const is_partition *p, const uint8_t *fingerprint, const is_segment_row *row,
                     const is_dep *deps, size_t n_deps)
{
    int64_t id = 0;
    sql q;

    IS_TRY(bank_check_dep(b, p, row->fact_id, row->version));
    IS_TRY(replace_row(b, p, fingerprint, row, &id));
    IS_TRY(add_dep(b, p, id, row->fact_id, row->version)); /* a segment depends on its own fact, said or not */
    for (size_t i = 0; i < n_deps; i++) IS_TRY(add_dep(b, p, id, deps[i].item_id, deps[i].version));
    q = sql_open(b, "DELETE FROM doomed WHERE partition_id = ?1 AND name = ?2"); /* the file is wanted again */
    sql_i64(&q, p->id);
    sql_blob(&q, row->name, IS_HASH_BYTES);
    return sql_run(&q, NULL);
}

is_status is_bank_put_segment(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t fingerprint[IS_HASH_BYTES],
                              const is_segment_row *row, const is_dep *deps, size_t n_deps)
{
    const is_segment_entry one = { .row = *row, .deps = deps, .n_deps = n_deps };

    return is_bank_put_segments(b, p, epoch, fingerprint, &one, 1);
}

is_status is_bank_put_segments(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t fingerprint[IS_HASH_BYTES],
                               const is_segment_entry *entries, size_t n)
{
    is_status st;

    IS_TRY(bank_begin(b));
    st = bank_check_epoch(b, p, epoch);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++)
        st = put(b, p, fingerprint, &entries[i].row, entries[i].deps, entries[i].n_deps);
    return bank_end(b, st);
}

static bool read_row(sql *q, is_segment_row *out)
{
    const void *name = sqlite3_column_blob(q->stmt, 0);

    memset(out, 0, sizeof *out);
    if (!name || sqlite3_column_bytes(q->stmt, 0) != IS_HASH_BYTES) {
        q->rc = SQLITE_CORRUPT;
        return false;
    }
    memcpy(out->name, name, IS_HASH_BYTES);
    out->fact_id = sqlite3_column_int64(q->stmt, 1);
    out->version = sqlite3_column_int(q->stmt, 2);
    snprintf(out->policy, sizeof out->policy, "%s", bank_given((const char *)sqlite3_column_text(q->stmt, 3)));
    out->n_tokens = (uint32_t)sqlite3_column_int64(q->stmt, 4);
    out->n_context = (uint32_t)sqlite3_column_int64(q->stmt, 5);
    out->n_computed = (uint32_t)sqlite3_column_int64(q->stmt, 6);
    out->bytes = (uint64_t)sqlite3_column_int64(q->stmt, 7);
    out->n_passes = (uint32_t)sqlite3_column_int64(q->stmt, 8);
    out->lead = sqlite3_column_int(q->stmt, 9) != 0;
    out->wide = sqlite3_column_int(q->stmt, 10) != 0;
    return true;
}

is_status is_bank_segments(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                           int64_t fact_id, is_segment_row **rows, size_t *n)
{
    is_status st = INFERSCALE_OK, ended;
    is_segment_row row;
    sql q;

    *rows = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT s.name, s.item_id, s.version, s.policy, s.n_tokens, s.n_context, s.n_computed, s.bytes,"
                 " s.n_passes, s.lead, s.wide FROM "
                 "segments s JOIN items i ON i.partition_id = s.partition_id AND i.id = s.item_id"
                 " AND i.version = s.version WHERE s.partition_id = ?1 AND s.item_id = ?2 AND s.fingerprint = ?3"
                 " AND s.policy = ifnull(?4, s.policy) AND CASE WHEN ?4 IS NULL THEN s.lead = 0 ELSE s.outdated = 0 END"
                 " ORDER BY s.outdated, s.id DESC");
    sql_i64(&q, p->id);
    sql_i64(&q, fact_id);
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text_or_null(&q, policy);
    while (st == INFERSCALE_OK && sql_row(&q) && read_row(&q, &row)) {
        is_segment_row *grown = is_realloc(*rows, (*n + 1) * sizeof *grown); /* few variants a fact */

        if (!grown) {
            st = is_fail(INFERSCALE_E_NOMEM, "no memory for a fact's segments; free some memory and try again");
            break;
        }
        *rows = grown;
        grown[(*n)++] = row;
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    bank_unlock(b);
    if (st == INFERSCALE_OK) st = ended;
    if (st != INFERSCALE_OK) {
        is_free(*rows);
        *rows = NULL;
        *n = 0;
    }
    return st;
}

/* [[id, version], ...] as JSON: any number of facts is one value to bind. */
static char *list_facts(const is_dep *facts, size_t n)
{
    is_buf text = IS_BUF_INIT;

    is_buf_str(&text, "[");
    for (size_t i = 0; i < n; i++)
        is_buf_fmt(&text, "%s[%lld,%d]", i ? "," : "", (long long)facts[i].item_id, facts[i].version);
    is_buf_str(&text, "]");
    return is_buf_take(&text);
}

is_status is_bank_have_segments(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                                const is_dep *facts, size_t n, bool *have)
{
    char *list;
    is_status st;
    sql q;

    for (size_t i = 0; i < n; i++) have[i] = false;
    if (n == 0) return INFERSCALE_OK;
    list = list_facts(facts, n);
    if (!list) return is_fail(INFERSCALE_E_NOMEM, "no memory to look up a question's facts; free some memory or ask for fewer");
    st = bank_lock(b);
    if (st == INFERSCALE_OK) {
        q = sql_open(b, "SELECT w.key FROM json_each(?4) w WHERE EXISTS(SELECT 1 FROM segments s CROSS JOIN items i ON"
                        " i.partition_id = s.partition_id AND i.id = s.item_id AND i.version = s.version WHERE s.partition_id = ?1"
                        " AND s.fingerprint = ?2 AND s.policy = ?3 AND s.outdated = 0 AND s.item_id = json_extract(w.value, '$[0]') AND"
                        " s.version = json_extract(w.value, '$[1]'))");
        sql_i64(&q, p->id);
        sql_blob(&q, fingerprint, IS_HASH_BYTES);
        sql_text(&q, policy);
        sql_text(&q, list);
        while (sql_row(&q)) have[sqlite3_column_int64(q.stmt, 0)] = true;
        st = sql_end(&q);
        bank_unlock(b);
    }
    is_free(list);
    return st;
}

is_status is_bank_drop_segment(is_bank *b, const is_partition *p, const uint8_t name[IS_HASH_BYTES])
{
    is_status st;
    sql q;

    IS_TRY(bank_begin(b));
    q = sql_open(b, "DELETE FROM segments WHERE partition_id = ?1 AND name = ?2");
    sql_i64(&q, p->id);
    sql_blob(&q, name, IS_HASH_BYTES);
    st = sql_run(&q, NULL);
    return bank_end(b, st);
}
