/* books.c - owners, and the books of views as whole lists: for checking, cleaning and measuring. */
#include <string.h>
#include <stdio.h>

#include "bank/maintain.h"
#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "no memory for the books of a store; free some memory and try again");
}

/* Room for one more of `size` bytes; capacity is the next power of two from 16 on. */
static void *grown(void *list, size_t n, size_t size)
{
    if (n && (n < 16 || (n & (n - 1)))) return list;
    return is_realloc(list, (n ? n * 2 : 16) * size);
}

static is_status end_list(sql *q, is_status st)
{
    is_status ended;

    if (st != INFERSCALE_OK) q->rc = SQLITE_OK;
    ended = sql_end(q);
    return st != INFERSCALE_OK ? st : ended;
}

/* Every row by read() into a zeroed element of `size` bytes; ends the statement. What was read stands in *out on failure too. */
static is_status read_list(sql *q, size_t size, is_status (*read)(sql *q, void *row), void **out, size_t *n)
{
    is_status st = INFERSCALE_OK;
    char *list = NULL;

    *n = 0;
    while (st == INFERSCALE_OK && sql_row(q)) {
        char *more = grown(list, *n, size);

        if (!more) {
            st = no_memory();
            break;
        }
        list = more;
        memset(list + *n * size, 0, size);
        st = read(q, list + (*n)++ * size);
    }
    *out = list;
    return end_list(q, st);
}

/* The same for rows without strings of their own: nothing is left after a failure. */
static is_status read_flat(sql *q, size_t size, is_status (*read)(sql *q, void *row), void **out, size_t *n)
{
    is_status st = read_list(q, size, read, out, n);

    if (st == INFERSCALE_OK) return st;
    is_free(*out);
    *out = NULL;
    *n = 0;
    return st;
}

/* Copies a blob of 32 bytes, or makes the statement fail. */
static bool read_hash(sql *q, int column, uint8_t out[IS_HASH_BYTES])
{
    const void *blob = sqlite3_column_blob(q->stmt, column);

    if (blob && sqlite3_column_bytes(q->stmt, column) == IS_HASH_BYTES) {
        memcpy(out, blob, IS_HASH_BYTES);
        return true;
    }
    q->rc = SQLITE_CORRUPT;
    return false;
}

static const char *text_at(const sql *q, int column)
{
    return bank_given((const char *)sqlite3_column_text(q->stmt, column));
}

/* ---- Owners -------------------------------------------------------------------------------------------------------------- */

const char *is_owner_kind_name(int kind)
{
    static const char *const names[] = { "", "user", "agent", "run", "app" };

    return kind >= 1 && kind <= 4 ? names[kind] : "";
}

inferscale_scope is_owner_scope(const is_owner *o)
{
    inferscale_scope s = { .tenant = o->tenant };
    const char **const field[] = { &s.user, &s.agent, &s.run, &s.app };

    if (o->kind >= 1 && o->kind <= 4) *field[o->kind - 1] = o->name;
    return s;
}

void is_owners_free(is_owner *owners, size_t n)
{
    for (size_t i = 0; owners && i < n; i++) {
        is_free(owners[i].tenant);
        is_free(owners[i].name);
    }
    is_free(owners);
}

static is_status read_owner(sql *q, void *row)
{
    uint8_t key[IS_HASH_BYTES];
    is_owner *o = row;

    if (!read_hash(q, 3, key)) return INFERSCALE_OK;
    memcpy(o->p.key, key, sizeof o->p.key);
    o->p.id = sqlite3_column_int64(q->stmt, 0);
    o->kind = sqlite3_column_int(q->stmt, 1);
    o->p.epoch = sqlite3_column_int64(q->stmt, 4);
    o->p.revision = sqlite3_column_int64(q->stmt, 5);
    o->tenant = is_strdup(text_at(q, 2));
    o->name = is_strdup(text_at(q, 6));
    return o->tenant && o->name ? INFERSCALE_OK : no_memory();
}

is_status is_bank_owners(is_bank *b, is_owner **out, size_t *n)
{
    is_status st;
    void *list;
    sql q;

    *out = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_once(b, "SELECT id, owner_kind, tenant, key, epoch, revision, owner FROM partitions ORDER BY id");
    st = read_list(&q, sizeof **out, read_owner, &list, n);
    bank_unlock(b);
    *out = list;
    if (st == INFERSCALE_OK) return st;
    is_owners_free(*out, *n);
    *out = NULL;
    *n = 0;
    return st;
}

/* ---- Segments ------------------------------------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return memcmp(((const is_book *)a)->name, ((const is_book *)b)->name, IS_HASH_BYTES);
}

static is_status read_book(sql *q, void *row)
{
    is_book *out = row;

    if (!read_hash(q, 0, out->name) || !read_hash(q, 1, out->fingerprint)) return INFERSCALE_OK;
    out->partition_id = sqlite3_column_int64(q->stmt, 2);
    out->item_id = sqlite3_column_int64(q->stmt, 3);
    out->version = sqlite3_column_int(q->stmt, 4);
    out->n_tokens = (uint32_t)sqlite3_column_int64(q->stmt, 5);
    out->n_passes = (uint32_t)sqlite3_column_int64(q->stmt, 6);
    out->lead = sqlite3_column_int(q->stmt, 7) != 0;
    out->write_time = sqlite3_column_int64(q->stmt, 8);
    out->pinned = sqlite3_column_int(q->stmt, 9) != 0;
    out->lapsed = sqlite3_column_int(q->stmt, 10) != 0;
    snprintf(out->policy, sizeof out->policy, "%s", text_at(q, 11));
    return INFERSCALE_OK;
}

is_status is_bank_books(is_bank *b, int64_t partition_id, is_book **out, size_t *n)
{
    is_status st;
    void *list;
    sql q;

    *out = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_once(b, "SELECT s.name, s.fingerprint, s.partition_id, s.item_id, s.version, s.n_tokens, s.n_passes, s.lead, s.write_time,"
                    " ifnull(i.pinned, 0), ifnull((f.expires <> 0 AND f.expires <= ?2) OR (f.valid_to <> 0 AND f.valid_to <= ?2), 1),"
                    " s.policy FROM segments s LEFT JOIN items i ON i.partition_id = s.partition_id AND i.id = s.item_id"
                    " LEFT JOIN fact_versions f ON f.partition_id = s.partition_id AND f.item_id = s.item_id AND f.version = s.version"
                    " WHERE ?1 IN (0, s.partition_id)");
    sql_i64(&q, partition_id);
    sql_i64(&q, is_now_epoch());
    st = read_flat(&q, sizeof **out, read_book, &list, n);
    bank_unlock(b);
    *out = list;
    is_sort(*out, *n, sizeof **out, by_name);
    return st;
}

is_status is_bank_names_it(is_bank *b, int64_t partition_id, const uint8_t name[IS_HASH_BYTES], bool *named)
{
    is_status st;
    sql q;

    *named = false;
    IS_TRY(bank_lock(b));
    q = sql_once(b, "SELECT 1 FROM segments WHERE partition_id = ?1 AND name = ?2");
    sql_i64(&q, partition_id);
    sql_blob(&q, name, IS_HASH_BYTES);
    *named = sql_one_i64(&q, 0, &st) != 0;
    bank_unlock(b);
    return st;
}

static is_status drop_book(is_bank *b, const is_book *book)
{
    sql q = sql_once(b, "INSERT INTO doomed(partition_id, name) VALUES(?1, ?2) ON CONFLICT DO NOTHING");

    sql_i64(&q, book->partition_id);
    sql_blob(&q, book->name, IS_HASH_BYTES);
    IS_TRY(sql_run(&q, NULL));
    q = sql_once(b, "DELETE FROM segments WHERE partition_id = ?1 AND name = ?2");
    sql_i64(&q, book->partition_id);
    sql_blob(&q, book->name, IS_HASH_BYTES);
    return sql_run(&q, NULL);
}

is_status is_bank_drop_books(is_bank *b, const is_book *const *books, size_t n)
{
    is_status st = INFERSCALE_OK;

    if (n == 0) return INFERSCALE_OK;
    IS_TRY(bank_begin(b));
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++) st = drop_book(b, books[i]);
    return bank_end(b, st);
}

static is_status add_names(sql *q, is_names *out)
{
    is_status st = INFERSCALE_OK;
    uint8_t name[IS_HASH_BYTES];

    while (st == INFERSCALE_OK && sql_row(q) && read_hash(q, 0, name)) st = bank_names_add(out, name);
    return end_list(q, st);
}

is_status is_bank_dependents(is_bank *b, int64_t partition_id, const int64_t *ids, size_t n, is_names *out)
{
    is_status st = INFERSCALE_OK;

    *out = (is_names){ 0 };
    IS_TRY(bank_lock(b));
    for (size_t i = 0; st == INFERSCALE_OK && i < (ids ? n : 1); i++) {
        sql q = ids ? sql_once(b, "SELECT DISTINCT s.name FROM segment_deps d CROSS JOIN segments s ON s.id = d.segment_id"
                                  " WHERE d.partition_id = ?1 AND d.item_id = ?2")
                    : sql_once(b, "SELECT DISTINCT name FROM segments WHERE partition_id = ?1");

        sql_i64(&q, partition_id);
        if (ids) sql_i64(&q, ids[i]);
        st = add_names(&q, out);
    }
    bank_unlock(b);
    if (st != INFERSCALE_OK) is_names_free(out);
    return st;
}

/* ---- Views --------------------------------------------------------------------------------------------------------------- */

static is_status read_view(sql *q, void *row)
{
    is_view_row *out = row;

    if (!read_hash(q, 0, out->fingerprint)) return INFERSCALE_OK;
    out->is_embedding = sqlite3_column_int(q->stmt, 1) != 0;
    snprintf(out->policy, sizeof out->policy, "%s", text_at(q, 2));
    out->n = (uint64_t)sqlite3_column_int64(q->stmt, 3);
    out->bytes = (uint64_t)sqlite3_column_int64(q->stmt, 4);
    return INFERSCALE_OK;
}

is_status is_bank_views(is_bank *b, is_view_row **out, size_t *n)
{
    is_status st;
    void *list;
    sql q;

    *out = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_once(b, "SELECT fingerprint, 0, policy, count(*), 0 FROM segments GROUP BY fingerprint, policy UNION ALL"
                    " SELECT fingerprint, 1, '', count(*), sum(length(q)) FROM embeddings GROUP BY fingerprint ORDER BY 2, 1, 3");
    st = read_flat(&q, sizeof **out, read_view, &list, n);
    bank_unlock(b);
    *out = list;
    return st;
}

is_status is_bank_drop_embeddings(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], uint64_t *n_dropped)
{
    int64_t changes = 0;

    *n_dropped = 0;
    do {
        is_status st;
        sql q;

        IS_TRY(bank_begin_lazy(b));
        q = sql_once(b, "DELETE FROM embeddings WHERE fingerprint = ?1 AND (partition_id, item_id) IN (SELECT partition_id, item_id FROM"
                        " embeddings WHERE fingerprint = ?1 LIMIT 2000)");
        sql_blob(&q, fingerprint, IS_HASH_BYTES);
        st = sql_run(&q, &changes);
        if (st == INFERSCALE_OK && changes) { /* indexes in memory follow the revision */
            q = sql_once(b, "UPDATE partitions SET revision = revision + 1");
            st = sql_run(&q, NULL);
        }
        IS_TRY(bank_end_lazy(b, st));
        *n_dropped += (uint64_t)changes;
    } while (changes > 0);
    return INFERSCALE_OK;
}

is_status is_bank_drop_pages(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy)
{
    sql q;

    IS_TRY(bank_begin(b));
    q = sql_once(b, "DELETE FROM pages WHERE fingerprint = ?1 AND policy = ?2"); /* their places go with them */
    sql_blob(&q, fingerprint, IS_HASH_BYTES);
    sql_text(&q, policy);
    return bank_end(b, sql_run(&q, NULL));
}

/* ---- Size ---------------------------------------------------------------------------------------------------------------- */

static is_status read_usage(sql *q, void *row)
{
    is_usage_row *out = row;

    if (!read_hash(q, 2, out->fingerprint)) return INFERSCALE_OK;
    out->partition_id = sqlite3_column_int64(q->stmt, 0);
    out->is_embedding = sqlite3_column_int(q->stmt, 1) != 0;
    out->n = (uint64_t)sqlite3_column_int64(q->stmt, 3);
    out->bytes = (uint64_t)sqlite3_column_int64(q->stmt, 4);
    return INFERSCALE_OK;
}

is_status is_bank_usage(is_bank *b, is_usage_row **out, size_t *n)
{
    is_status st;
    void *list;
    sql q;

    *out = NULL;
    *n = 0;
    IS_TRY(bank_lock(b));
    q = sql_once(b, "SELECT partition_id, 0, zeroblob(32), sum(n), sum(bytes) FROM (SELECT partition_id, count(DISTINCT item_id) AS n,"
                    " sum(length(CAST(text AS BLOB)) + length(CAST(metadata AS BLOB))) AS bytes FROM fact_versions GROUP BY partition_id"
                    " UNION ALL SELECT partition_id, count(*), sum(length(CAST(text AS BLOB)) + length(CAST(speaker AS BLOB)) +"
                    " length(CAST(external_id AS BLOB))) FROM turns GROUP BY partition_id) GROUP BY partition_id UNION ALL SELECT"
                    " partition_id, 1, fingerprint, count(*), sum(length(q)) FROM embeddings GROUP BY partition_id, fingerprint"
                    " ORDER BY 1, 2, 3");
    st = read_flat(&q, sizeof **out, read_usage, &list, n);
    bank_unlock(b);
    *out = list;
    return st;
}
