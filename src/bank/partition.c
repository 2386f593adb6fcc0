/* partition.c - whose memory it is. */
#include <string.h>

#include "bank/sql.h"
#include "base/clock.h"

enum { OWNER_USER = 1, OWNER_AGENT = 2, OWNER_RUN = 3, OWNER_APP = 4 };

static const char *owner_of(const inferscale_scope *s, int *kind)
{
    if (*bank_given(s->user)) return *kind = OWNER_USER, s->user;
    if (*bank_given(s->agent)) return *kind = OWNER_AGENT, s->agent;
    if (*bank_given(s->run)) return *kind = OWNER_RUN, s->run;
    return *kind = OWNER_APP, s->app;
}

static is_status find(is_bank *b, const inferscale_scope *scope, is_partition *out)
{
    int kind;
    const char *owner = owner_of(scope, &kind);
    bool found;
    is_status st;
    sql q = sql_open(b, "SELECT id, key, epoch, revision FROM partitions WHERE tenant = ?1 AND owner_kind = ?2 AND owner = ?3");

    sql_text(&q, scope->tenant);
    sql_i64(&q, kind);
    sql_text(&q, owner);
    found = sql_row(&q);
    if (found) {
        const void *key = sqlite3_column_blob(q.stmt, 1);

        out->id = sqlite3_column_int64(q.stmt, 0);
        if (key && sqlite3_column_bytes(q.stmt, 1) == IS_KEY_BYTES) memcpy(out->key, key, IS_KEY_BYTES);
        else q.rc = SQLITE_CORRUPT;
        out->epoch = sqlite3_column_int64(q.stmt, 2);
        out->revision = sqlite3_column_int64(q.stmt, 3);
    }
    st = sql_end(&q);
    if (st != INFERSCALE_OK || found) return st;
    return is_fail(INFERSCALE_E_NOTFOUND, "nothing was ever remembered for this owner; check the scope, or remember something "
                   "first");
}

static is_status create_partition(is_bank *b, const inferscale_scope *scope, is_partition *out)
{
    uint8_t key[IS_KEY_BYTES];
    int kind;
    const char *owner = owner_of(scope, &kind);
    is_status st = bank_begin(b);
    sql q;

    if (st != INFERSCALE_OK) return st;
    is_random(key, sizeof key);
    /* Another process may have made it since we looked: then its key counts. */
    q = sql_open(b, "INSERT INTO partitions(tenant, owner_kind, owner, key, created) VALUES(?1, ?2, ?3, ?4, ?5) "
                    "ON CONFLICT DO NOTHING");
    sql_text(&q, scope->tenant);
    sql_i64(&q, kind);
    sql_text(&q, owner);
    sql_blob(&q, key, sizeof key);
    sql_i64(&q, is_now_epoch());
    st = sql_run(&q, NULL);
    if (st == INFERSCALE_OK) st = find(b, scope, out);
    return bank_end(b, st);
}

is_status is_bank_partition(is_bank *b, const inferscale_scope *scope, bool create, is_partition *out)
{
    is_status st;

    memset(out, 0, sizeof *out);
    IS_TRY(bank_check_scope(scope));
    IS_TRY(bank_lock(b));
    st = find(b, scope, out);
    bank_unlock(b);
    if (st == INFERSCALE_E_NOTFOUND && create) st = create_partition(b, scope, out);
    if (st != INFERSCALE_OK) memset(out, 0, sizeof *out);
    return st;
}

static is_status no_such_partition(void)
{
    return is_fail(INFERSCALE_E_NOTFOUND, "this partition is not in the bank; look it up again by its scope");
}

is_status is_bank_partition_refresh(is_bank *b, is_partition *p)
{
    bool found;
    is_status st;
    sql q;

    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT epoch, revision FROM partitions WHERE id = ?1");
    sql_i64(&q, p->id);
    found = sql_row(&q);
    if (found) {
        p->epoch = sqlite3_column_int64(q.stmt, 0);
        p->revision = sqlite3_column_int64(q.stmt, 1);
    }
    st = sql_end(&q);
    bank_unlock(b);
    if (st != INFERSCALE_OK || found) return st;
    return no_such_partition();
}

is_status bank_need_partition(is_bank *b, const is_partition *p)
{
    is_status st;
    int64_t there;
    sql q = sql_open(b, "SELECT 1 FROM partitions WHERE id = ?1");

    sql_i64(&q, p->id);
    there = sql_one_i64(&q, 0, &st);
    return st != INFERSCALE_OK || there ? st : no_such_partition();
}

is_status bank_touch(is_bank *b, const is_partition *p, bool epoch)
{
    int64_t changes = 0;
    sql q = sql_open(b, "UPDATE partitions SET revision = revision + 1, epoch = epoch + ?2 WHERE id = ?1");

    sql_i64(&q, p->id);
    sql_i64(&q, epoch);
    IS_TRY(sql_run(&q, &changes));
    return changes == 1 ? INFERSCALE_OK : no_such_partition();
}
