/* wal.c - emptying the write-ahead log so that nothing of it is left in the file's blocks.
 *
 * SQLite cuts the log with xTruncate on the log's file, when everything in it is in the database, nobody reads it, and it holds all
 * locks. At that moment its bytes are overwritten and synced first: the header before the rest, so that a crash half-way leaves a
 * log that is not one, never an older state of the database. */
#include "bank/sql.h"

#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

/* The log file's functions with ours in place of one. SQLite calls them through the file's first member, so that ours are found
 * again from there. */
struct bank_log_methods {
    sqlite3_io_methods ours; /* first */
    const sqlite3_io_methods *theirs;
};

enum { HEADER_BYTES = 32, CHUNK_BYTES = 64 * 1024 };

static int overwrite(const sqlite3_io_methods *m, sqlite3_file *f, sqlite3_int64 from, sqlite3_int64 to)
{
    static const uint8_t zeros[CHUNK_BYTES];
    int rc = SQLITE_OK;

    for (sqlite3_int64 at = from; rc == SQLITE_OK && at < to; at += CHUNK_BYTES)
        rc = m->xWrite(f, zeros, to - at < CHUNK_BYTES ? (int)(to - at) : CHUNK_BYTES, at);
    return rc == SQLITE_OK ? m->xSync(f, SQLITE_SYNC_FULL) : rc;
}

static int overwrite_and_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    const sqlite3_io_methods *m = ((const struct bank_log_methods *)(const void *)f->pMethods)->theirs;
    sqlite3_int64 old = 0;
    int rc = size == 0 ? m->xFileSize(f, &old) : SQLITE_OK;

    if (rc == SQLITE_OK && old > 0) rc = overwrite(m, f, 0, old < HEADER_BYTES ? old : HEADER_BYTES);
    if (rc == SQLITE_OK && old > HEADER_BYTES) rc = overwrite(m, f, HEADER_BYTES, old);
    return rc == SQLITE_OK ? m->xTruncate(f, size) : rc;
}

/* The lock is held. */
static sqlite3_file *log_file(is_bank *b)
{
    sqlite3_file *f = NULL;

    if (sqlite3_file_control(b->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &f) != SQLITE_OK) return NULL;
    return f && f->pMethods ? f : NULL;
}

/* Puts our function in place. The log's file is opened when it is first used. */
static int watch_log(is_bank *b)
{
    sqlite3_file *f = log_file(b);

    if (!f) return SQLITE_OK; /* no log on this filesystem */
    if (b->log_methods && f->pMethods == &b->log_methods->ours) return SQLITE_OK;
    if (!b->log_methods) b->log_methods = is_calloc(1, sizeof *b->log_methods);
    if (!b->log_methods) return SQLITE_NOMEM;
    b->log_methods->ours = *f->pMethods;
    b->log_methods->theirs = f->pMethods;
    b->log_methods->ours.xTruncate = overwrite_and_truncate;
    f->pMethods = &b->log_methods->ours;
    return SQLITE_OK;
}

static int cut(is_bank *b, uint32_t wait_ms)
{
    int rc = sqlite3_exec(b->db, "SELECT 1 FROM partitions LIMIT 1", NULL, NULL, NULL); /* opens the log's file */

    if (rc == SQLITE_OK) rc = watch_log(b);
    if (rc != SQLITE_OK) return rc;
    sqlite3_busy_timeout(b->db, wait_ms < INT32_MAX ? (int)wait_ms : INT32_MAX);
    rc = sqlite3_wal_checkpoint_v2(b->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    sqlite3_busy_timeout(b->db, BANK_BUSY_MS);
    /* The pages that we remember still have their middles (gaps.h): the next change would put them into the log again. Other connections
     * see that the log is another one, and read theirs anew. */
    sqlite3_db_release_memory(b->db);
    return rc;
}

/* SQLite waits for readers and writers, but tells at once of another connection that is moving the log itself (as each does after a
 * thousand pages): that is over soon, and waited for here. */
static int cut_when_free(is_bank *b, uint32_t wait_ms)
{
    static const struct timespec nap = { 0, 5 * 1000000 };
    const double until = is_now_ms() + wait_ms;
    double left = wait_ms;
    int rc;

    while (((rc = cut(b, (uint32_t)left)) & 0xff) == SQLITE_BUSY && (left = until - is_now_ms()) > 0) nanosleep(&nap, NULL);
    return rc;
}

is_status is_bank_cut_log(is_bank *b, uint32_t wait_ms)
{
    is_status st;
    int rc;

    if (b->read_only)
        return is_fail(INFERSCALE_E_READONLY, "the bank %s was opened read-only; open it for writing", b->path);
    IS_TRY(bank_lock(b));
    rc = cut_when_free(b, wait_ms);
    if ((rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED)
        st = is_fail(INFERSCALE_E_BUSY, "a reader or writer of %s kept its write-ahead log, which still holds older pages, from being "
                     "emptied for %u ms; end it and try again", b->path, wait_ms);
    else
        st = bank_fail(b, rc);
    bank_unlock(b);
    return st;
}

void bank_cut_log_at_close(is_bank *b)
{
    if (b->db && !b->read_only) (void)cut(b, 0); /* another connection is at work: then its close does it */
}
