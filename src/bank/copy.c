/* copy.c - copying a bank that is in use, and giving back what it does not use.
 *
 * A copy reads through a connection of its own that holds one snapshot: in a write-ahead log readers and writers do not wait for each
 * other, and the copy is the bank of one instant however long it takes. Only the log cannot be cut meanwhile. */
#include <string.h>
#include <unistd.h>

#include "bank/gaps.h"
#include "bank/maintain.h"
#include "bank/sql.h"
#include "bank/vfs.h"
#include "base/file.h"
#include "base/mem.h"

enum { STEP_PAGES = 128, STEP_PAUSE_US = 500, WAIT_STEPS = 2000, VACUUM_PAGES = 256 };

static is_status one_int(is_bank *b, const char *text, int64_t *out)
{
    is_status st;
    sql q = sql_once(b, text);

    *out = sql_one_i64(&q, 0, &st);
    return st;
}

/* ---- Free pages ------------------------------------------------------------------------------------------------------------ */

static is_status free_bytes(is_bank *b, int64_t *pages, int64_t *page_size)
{
    IS_TRY(one_int(b, "PRAGMA freelist_count", pages));
    return one_int(b, "PRAGMA page_size", page_size);
}

is_status is_bank_free_bytes(is_bank *b, uint64_t *out)
{
    int64_t pages = 0, size = 0;
    is_status st;

    *out = 0;
    IS_TRY(bank_lock(b));
    st = free_bytes(b, &pages, &size);
    bank_unlock(b);
    *out = (uint64_t)(pages * size);
    return st;
}

static is_status run_text(is_bank *b, const char *text)
{
    return bank_fail(b, sqlite3_exec(b->db, text, NULL, NULL, NULL));
}

/* One step with the lock held: *left = free pages that can still be given back. */
static is_status vacuum_step(is_bank *b, int64_t *left)
{
    int64_t before = 0, mode = 0;

    *left = 0;
    IS_TRY(one_int(b, "PRAGMA auto_vacuum", &mode));
    IS_TRY(one_int(b, "PRAGMA freelist_count", &before));
    if (mode == 0 || before == 0) return INFERSCALE_OK;
    IS_TRY(run_text(b, "PRAGMA incremental_vacuum(256)"));
    IS_TRY(one_int(b, "PRAGMA freelist_count", left));
    if (*left >= before) *left = 0; /* it does not get less: enough */
    return INFERSCALE_OK;
}

is_status is_bank_compact(is_bank *b, bool full, uint64_t *freed)
{
    int64_t before = 0, after = 0, size = 0, left = 0;
    is_status st = INFERSCALE_OK;

    *freed = 0;
    if (b->read_only)
        return is_fail(INFERSCALE_E_READONLY, "the bank %s was opened read-only; open it for writing to give space back", b->path);
    IS_TRY(bank_lock(b));
    st = one_int(b, "SELECT page_count FROM pragma_page_count", &before);
    if (st == INFERSCALE_OK) st = one_int(b, "PRAGMA page_size", &size);
    if (st == INFERSCALE_OK && full) st = run_text(b, "PRAGMA auto_vacuum = INCREMENTAL; VACUUM");
    bank_unlock(b);
    for (bool more = st == INFERSCALE_OK; more; more = st == INFERSCALE_OK && left > 0) {
        IS_TRY(bank_lock(b));
        st = vacuum_step(b, &left);
        bank_unlock(b);
    }
    IS_TRY(st);
    IS_TRY(bank_lock(b));
    st = one_int(b, "SELECT page_count FROM pragma_page_count", &after);
    if (st == INFERSCALE_OK) (void)sqlite3_wal_checkpoint_v2(b->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    bank_unlock(b);
    *freed = before > after ? (uint64_t)((before - after) * size) : 0;
    return st;
}

/* ---- Copy ------------------------------------------------------------------------------------------------------------------ */

static is_status new_file(const char *to)
{
    const is_fs *fs = is_fs_default();
    is_file *f = NULL;

    IS_TRY(fs->open(fs, to, IS_OPEN_CREATE_NEW, &f)); /* SQLite would use the umask */
    fs->close(fs, f);
    return INFERSCALE_OK;
}

static is_status copy_fail(sqlite3 *db, int rc, const char *to)
{
    if (rc == SQLITE_IOERR_NOMEM) rc = SQLITE_NOMEM;
    if ((rc & 0xff) == SQLITE_FULL || (rc & 0xff) == SQLITE_IOERR)
        return is_fail((rc & 0xff) == SQLITE_FULL ? INFERSCALE_E_FULL : INFERSCALE_E_IO, "the copy %s cannot be written (%s); check the "
                       "space there and try again", to, sqlite3_errstr(rc));
    if ((rc & 0xff) == SQLITE_NOMEM)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory while the bank was copied to %s; free some memory and try again", to);
    return is_fail((rc & 0xff) == SQLITE_CORRUPT ? INFERSCALE_E_CORRUPT : INFERSCALE_E_IO,
                   "the bank could not be copied to %s (%s); try again", to, db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
}

static is_status copy_steps(sqlite3_backup *job, sqlite3 *db, const char *to, inferscale_progress_fn progress, void *ctx)
{
    for (int waited = 0;;) {
        int rc = sqlite3_backup_step(job, STEP_PAGES), total = sqlite3_backup_pagecount(job);

        if (rc == SQLITE_DONE) return INFERSCALE_OK;
        if (rc == SQLITE_BUSY || rc == SQLITE_LOCKED) {
            if (++waited > WAIT_STEPS) return is_fail(INFERSCALE_E_BUSY, "the bank is held by another process; try the backup again later");
        } else if (rc != SQLITE_OK) {
            return copy_fail(db, rc, to);
        }
        if (progress && progress(ctx, (uint64_t)(total - sqlite3_backup_remaining(job)), (uint64_t)total, "copying the bank"))
            return is_fail(INFERSCALE_E_CANCELLED, "the backup was cancelled; what is half there does not count as one");
        usleep(STEP_PAUSE_US); /* the disk is for those who serve */
    }
}

/* The copy says of itself that it has a log, as its original does; made one file again, it can be checked by its bytes alone. */
static is_status settle(const char *to)
{
    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(to, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, bank_vfs());

    if (rc == SQLITE_OK) rc = sqlite3_exec(db, "PRAGMA synchronous = FULL; PRAGMA journal_mode = DELETE", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        is_status st = copy_fail(db, rc, to);
        sqlite3_close(db);
        return st;
    }
    sqlite3_close(db);
    return INFERSCALE_OK;
}

static is_status copy_pages(is_bank *from, const char *to, inferscale_progress_fn progress, void *ctx)
{
    sqlite3 *db = NULL;
    sqlite3_backup *job = NULL;
    struct bank_file_methods *methods = NULL;
    is_status st;
    int rc = sqlite3_open_v2(to, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, bank_vfs());

    if (rc == SQLITE_OK) rc = bank_keep_gaps_empty(db, &methods); /* what is deleted later leaves nothing there either */
    if (rc == SQLITE_OK) rc = sqlite3_exec(db, "PRAGMA journal_mode = OFF; PRAGMA synchronous = FULL", NULL, NULL, NULL);
    if (rc == SQLITE_OK && !(job = sqlite3_backup_init(db, "main", from->db, "main"))) rc = sqlite3_errcode(db);
    st = rc == SQLITE_OK ? copy_steps(job, db, to, progress, ctx) : copy_fail(db, rc, to);
    rc = job ? sqlite3_backup_finish(job) : SQLITE_OK;
    if (st == INFERSCALE_OK && rc != SQLITE_OK) st = copy_fail(db, rc, to);
    sqlite3_close(db);
    is_free(methods);
    return st == INFERSCALE_OK ? settle(to) : st;
}

is_status is_bank_copy(const char *from, const char *to, inferscale_progress_fn progress, void *ctx)
{
    is_bank *source = NULL;
    int64_t ignored;
    bool wal = false;
    is_status st;

    IS_TRY(is_bank_open(from, true, &source));
    IS_TRY_GOTO(st, done, new_file(to));
    IS_TRY_GOTO(st, done, bank_lock(source));
    sql q = sql_once(source, "PRAGMA journal_mode");
    wal = sql_row(&q) && strcmp(bank_given((const char *)sqlite3_column_text(q.stmt, 0)), "wal") == 0;
    st = sql_end(&q);
    bank_unlock(source);
    if (st != INFERSCALE_OK) goto done;
    if (!wal) { /* holding a snapshot would keep writers out; SQLite begins again when one comes between */
        st = copy_pages(source, to, progress, ctx);
        goto done;
    }
    IS_TRY_GOTO(st, done, bank_read_begin(source));
    st = one_int(source, "SELECT count(*) FROM sqlite_master", &ignored); /* from here on one snapshot */
    if (st == INFERSCALE_OK) st = copy_pages(source, to, progress, ctx);
    st = bank_read_end(source, st);
done:
    is_bank_close(source);
    return st;
}
