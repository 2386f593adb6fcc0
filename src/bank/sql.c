/* sql.c - statements, transactions and what their failures mean. */
#include "bank/sql.h"

#include <errno.h>
#include <string.h>
#include <stdio.h>

#include "base/log.h"

/* ---- Failures ------------------------------------------------------------------------------------------------------------ */

static bool out_of_space(int e)
{
    return e == ENOSPC || e == EDQUOT || e == EFBIG;
}

static is_status fail_io(const is_bank *b, int rc)
{
    int seen = errno, e = b->db ? sqlite3_system_errno(b->db) : 0;

    if (!out_of_space(e) && out_of_space(seen)) e = seen; /* SQLite does not tell the cause when it is the commit that fails */
    if (rc == SQLITE_IOERR_NOMEM)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory in the bank; free some memory and try again");
    if (out_of_space(e))
        return is_fail(INFERSCALE_E_FULL, "no space left for the bank %s; free some space there and try again (opened read-only it can be read "
                       "meanwhile)", b->path);
    if (e) {
        errno = e;
        return is_fail_errno("cannot %s the bank %s", (rc & 0xff) == SQLITE_CANTOPEN ? "open" : "read or write", b->path);
    }
    return is_fail(INFERSCALE_E_IO, "input/output error at the bank %s (%s); check the disk and try again", b->path,
                   sqlite3_errstr(rc));
}

is_status bank_fail(const is_bank *b, int rc)
{
    const char *detail = b->db ? sqlite3_errmsg(b->db) : sqlite3_errstr(rc);

    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE: return INFERSCALE_OK;
    case SQLITE_FULL:
        return is_fail(INFERSCALE_E_FULL, "no space left for the bank %s; free some space there and try again", b->path);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN: return fail_io(b, rc);
    case SQLITE_READONLY:
        return is_fail(INFERSCALE_E_READONLY, "the bank %s cannot be written; check its mode and its folder's, or open it "
                       "read-only", b->path);
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return is_fail(INFERSCALE_E_DENIED, "no permission for the bank %s; check who owns it and its mode", b->path);
    case SQLITE_BUSY:
    case SQLITE_PROTOCOL:
    case SQLITE_LOCKED:
        return is_fail(INFERSCALE_E_BUSY, "another process holds the bank %s; try again when it is done", b->path);
    case SQLITE_NOMEM: return is_fail(INFERSCALE_E_NOMEM, "out of memory in the bank; free some memory and try again");
    case SQLITE_CORRUPT:
        return is_fail(INFERSCALE_E_CORRUPT, "the bank %s is damaged (%s); restore a backup, or save what can be read with "
                       "`sqlite3 FILE .recover`", b->path, detail);
    case SQLITE_NOTADB:
        return is_fail(INFERSCALE_E_FOREIGN, "%s is not a bank (not an SQLite file at all); choose another folder, or move it "
                       "away", b->path);
    case SQLITE_TOOBIG: return is_fail(INFERSCALE_E_INVALID, "a value is too large for the bank; split it");
    case SQLITE_INTERRUPT: return is_fail(INFERSCALE_E_CANCELLED, "the bank's work was interrupted; try again");
    case SQLITE_ERROR:
        if (strncmp(detail, "no such ", 8) == 0 || strstr(detail, "has no column"))
            return is_fail(INFERSCALE_E_CORRUPT, "a part of the bank %s is gone (%s): another program changed it; restore a "
                           "backup", b->path, detail);
        /* fall through */
    default:
        return is_fail(INFERSCALE_E_INTERNAL, "the bank %s refused a statement (%s); this is a bug, please report it", b->path,
                       detail);
    }
}

/* ---- The lock and transactions ------------------------------------------------------------------------------------------- */

is_status bank_lock(is_bank *b)
{
    if (pthread_mutex_lock(&b->lock) == 0) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INTERNAL, "the bank was called from inside one of its own callbacks; copy the item and call "
                   "later");
}

void bank_unlock(is_bank *b)
{
    pthread_mutex_unlock(&b->lock);
    bank_drop_if_asked(b);
}

static is_status run_literal(is_bank *b, const char *literal)
{
    sql q = sql_open(b, literal);

    return sql_run(&q, NULL);
}

/* Prepared when the bank is opened, so that ending a transaction that failed for want of memory needs none. */
is_status bank_prepare_rollback(is_bank *b)
{
    return bank_fail(b, sqlite3_prepare_v3(b->db, "ROLLBACK", -1, SQLITE_PREPARE_PERSISTENT, &b->rollback, NULL));
}

/* SQLite may have rolled back by itself (full disk); asking again would be an error that hides the first. */
static void roll_back(is_bank *b)
{
    if (sqlite3_get_autocommit(b->db)) return;
    sqlite3_step(b->rollback);
    sqlite3_reset(b->rollback);
    if (!sqlite3_get_autocommit(b->db)) is_log(IS_LOG_ERROR, "bank: a transaction could not be rolled back; the next call tries again");
}

/* What a call before could not put back for want of memory: a transaction that would not end, and commits that do not wait for the
 * disk. With the lock held. */
static is_status settle(is_bank *b)
{
    roll_back(b);
    if (b->relaxed) IS_TRY(bank_fail(b, sqlite3_exec(b->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL)));
    b->relaxed = false;
    if (sqlite3_get_autocommit(b->db)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "out of memory in the bank: an earlier call cannot be undone yet; free some memory and try again");
}

static is_status refuse_read_only(const is_bank *b)
{
    return is_fail(INFERSCALE_E_READONLY, "the bank %s was opened read-only; open it for writing", b->path);
}

is_status bank_begin(is_bank *b)
{
    is_status st;

    if (b->read_only) return refuse_read_only(b);
    IS_TRY(bank_lock(b));
    st = settle(b);
    b->last_given = 0;
    if (st == INFERSCALE_OK) st = run_literal(b, "BEGIN IMMEDIATE");
    if (st != INFERSCALE_OK) bank_unlock(b);
    return st;
}

is_status bank_end(is_bank *b, is_status st)
{
    if (st == INFERSCALE_OK && b->last_given) st = bank_record_ids(b, b->last_given);
    if (st == INFERSCALE_OK) st = run_literal(b, "COMMIT");
    if (st != INFERSCALE_OK) roll_back(b);
    bank_unlock(b);
    return st;
}

/* synchronous is no part of the transaction: it is set before one begins, and executed when prepared, so not cached. */
is_status bank_begin_lazy(is_bank *b)
{
    is_status st;

    if (b->read_only) return refuse_read_only(b);
    IS_TRY(bank_lock(b));
    st = settle(b);
    b->relaxed = true;
    if (st == INFERSCALE_OK) st = bank_fail(b, sqlite3_exec(b->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL));
    if (st == INFERSCALE_OK) st = run_literal(b, "BEGIN IMMEDIATE");
    return st == INFERSCALE_OK ? st : bank_end_lazy(b, st);
}

is_status bank_end_lazy(is_bank *b, is_status st)
{
    if (st == INFERSCALE_OK) st = run_literal(b, "COMMIT");
    if (st != INFERSCALE_OK) roll_back(b);
    /* Were this to fail in silence, later writes would not be durable: then the next one puts it right first, or is refused. */
    b->relaxed = sqlite3_exec(b->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL) != SQLITE_OK;
    bank_unlock(b);
    return st;
}

is_status bank_read_begin(is_bank *b)
{
    is_status st;

    IS_TRY(bank_lock(b));
    st = settle(b);
    if (st == INFERSCALE_OK) st = run_literal(b, "BEGIN");
    if (st != INFERSCALE_OK) bank_unlock(b);
    return st;
}

is_status bank_read_end(is_bank *b, is_status st)
{
    if (st == INFERSCALE_OK) st = run_literal(b, "COMMIT");
    if (st != INFERSCALE_OK) roll_back(b);
    bank_unlock(b);
    return st;
}

/* ---- Statements ---------------------------------------------------------------------------------------------------------- */

sql sql_once(is_bank *b, const char *text)
{
    sql q = { .bank = b };

    q.rc = sqlite3_prepare_v2(b->db, text, -1, &q.stmt, NULL);
    return q;
}

sql sql_open(is_bank *b, const char *literal)
{
    sql q = { .bank = b };

    for (size_t i = 0; i < b->n_cached; i++) {
        if (b->cache[i].sql != literal) continue;
        q.stmt = b->cache[i].stmt;
        q.cached = true;
        return q;
    }
    q.cached = b->n_cached < BANK_CACHED;
    q.rc = sqlite3_prepare_v3(b->db, literal, -1, q.cached ? SQLITE_PREPARE_PERSISTENT : 0, &q.stmt, NULL);
    if (q.rc != SQLITE_OK) {
        q.cached = false;
    } else if (q.cached) {
        b->cache[b->n_cached].sql = literal;
        b->cache[b->n_cached++].stmt = q.stmt;
    }
    return q;
}

static void bound(sql *q, int rc)
{
    if (q->rc == SQLITE_OK) q->rc = rc;
}

void sql_i64(sql *q, int64_t v)
{
    if (q->rc == SQLITE_OK) bound(q, sqlite3_bind_int64(q->stmt, ++q->at, v));
}

void sql_text(sql *q, const char *s)
{
    if (q->rc == SQLITE_OK) bound(q, sqlite3_bind_text(q->stmt, ++q->at, s ? s : "", -1, SQLITE_STATIC));
}

void sql_text_or_null(sql *q, const char *s)
{
    if (q->rc == SQLITE_OK) bound(q, sqlite3_bind_text(q->stmt, ++q->at, s, -1, SQLITE_STATIC));
}

void sql_blob(sql *q, const void *p, size_t n)
{
    if (q->rc == SQLITE_OK) bound(q, sqlite3_bind_blob64(q->stmt, ++q->at, p ? p : "", n, SQLITE_STATIC));
}

void sql_real(sql *q, double v)
{
    if (q->rc == SQLITE_OK) bound(q, sqlite3_bind_double(q->stmt, ++q->at, v));
}

bool sql_row(sql *q)
{
    if (q->rc != SQLITE_OK && q->rc != SQLITE_ROW) return false;
    errno = 0; /* so that a failure's cause is not an old one's */
    q->rc = sqlite3_step(q->stmt);
    return q->rc == SQLITE_ROW;
}

is_status sql_end(sql *q)
{
    is_status st = bank_fail(q->bank, q->rc); /* before the reset, while the connection still knows why */

    if (st == INFERSCALE_E_CORRUPT) __atomic_store_n(&q->bank->found_damage, 1, __ATOMIC_RELAXED);
    if ((q->rc & 0xff) == SQLITE_NOTADB) q->bank->no_database = true;
    if (q->stmt && q->cached) {
        sqlite3_reset(q->stmt);
        sqlite3_clear_bindings(q->stmt);
    } else {
        sqlite3_finalize(q->stmt);
    }
    q->stmt = NULL;
    return st;
}

is_status sql_run(sql *q, int64_t *changes)
{
    is_status st;

    while (sql_row(q)) continue;
    st = sql_end(q);
    if (changes) *changes = st == INFERSCALE_OK ? sqlite3_changes64(q->bank->db) : 0;
    return st;
}

int64_t sql_one_i64(sql *q, int64_t none, is_status *st)
{
    int64_t v = sql_row(q) ? sqlite3_column_int64(q->stmt, 0) : none;

    *st = sql_end(q);
    return *st == INFERSCALE_OK ? v : none;
}
