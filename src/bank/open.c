/* open.c - opening, recognising, migrating, checking and closing a bank. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bank/gaps.h"
#include "bank/schema.h"
#include "bank/sql.h"
#include "bank/vfs.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

/* ---- The connection ------------------------------------------------------------------------------------------------------ */

/* We make the file ourselves: SQLite would use the umask, and its name must survive a power loss before anything is
 * acknowledged. */
static is_status create_file(const char *path)
{
    const is_fs *fs = is_fs_default();
    const char *slash = strrchr(path, '/');
    is_file *f = NULL;
    is_status st;
    char *dir;

    /* Asked, not tried: closing a second descriptor of the file would drop the locks SQLite holds for this process. */
    if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0) return INFERSCALE_OK;
    if (errno != ENOENT) return is_fail_errno("cannot write the bank %s", path);
    st = fs->open(fs, path, IS_OPEN_CREATE_NEW, &f);
    if (st != INFERSCALE_OK) return errno == EEXIST ? INFERSCALE_OK : st; /* another process was faster */
    fs->close(fs, f);
    dir = !slash ? is_strdup(".") : slash == path ? is_strdup("/") : is_strndup(path, (size_t)(slash - path));
    if (!dir) return is_fail(INFERSCALE_E_NOMEM, "no memory to create %s; free some memory and try again", path);
    st = fs->sync_dir(fs, dir);
    is_free(dir);
    return st;
}

static is_status pragma(is_bank *b, const char *literal)
{
    return bank_fail(b, sqlite3_exec(b->db, literal, NULL, NULL, NULL));
}

static is_status open_database_on(is_bank *b, const char *vfs, const char *name, int flags)
{
    int rc = sqlite3_open_v2(name, &b->db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, vfs);

    if (rc != SQLITE_OK) return bank_fail(b, rc);
    sqlite3_busy_timeout(b->db, BANK_BUSY_MS);
    sqlite3_db_config(b->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(b->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    if (!b->read_only) IS_TRY(bank_fail(b, bank_keep_gaps_empty(b->db, &b->file_methods)));
    return bank_fail(b, bank_add_functions(b->db));
}

static is_status open_database(is_bank *b, const char *name, int flags)
{
    return open_database_on(b, bank_vfs(), name, flags);
}

static is_status configure(is_bank *b)
{
    IS_TRY(bank_prepare_rollback(b));
    return pragma(b, "PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -8192;"
                     "PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON; PRAGMA synchronous = FULL");
}

static is_status connect_to(is_bank *b, const char *name, int flags)
{
    IS_TRY(open_database(b, name, flags));
    return configure(b);
}

static is_status read_int(is_bank *b, const char *literal, int64_t *out)
{
    sql q = sql_open(b, literal);
    is_status st;

    *out = sql_one_i64(&q, 0, &st);
    return st;
}

static void disconnect(is_bank *b)
{
    for (size_t i = 0; i < b->n_cached; i++) sqlite3_finalize(b->cache[i].stmt);
    b->n_cached = 0;
    sqlite3_finalize(b->rollback);
    b->rollback = NULL;
    sqlite3_close(b->db);
    b->db = NULL;
}

/* "file:/path?immutable=1" with the path's special bytes escaped; is_free. */
static char *immutable_uri(const char *path)
{
    is_buf uri = IS_BUF_INIT;

    is_buf_str(&uri, "file:");
    for (; *path; path++) {
        if (strchr("%?#", *path)) is_buf_fmt(&uri, "%%%02X", (unsigned char)*path);
        else is_buf_add(&uri, path, 1);
    }
    is_buf_str(&uri, "?immutable=1");
    return is_buf_take(&uri);
}

/* A full disk and a log with writes in it: alone, SQLite needs no file beside the database, and keeps the log's index in memory. */
static is_status connect_alone(is_bank *b, is_status why)
{
    int64_t ignored;
    is_status st;

    disconnect(b);
    st = open_database(b, b->path, SQLITE_OPEN_READWRITE);
    if (st == INFERSCALE_OK) st = pragma(b, "PRAGMA locking_mode = EXCLUSIVE"); /* before the first read */
    if (st == INFERSCALE_OK) st = configure(b);
    if (st == INFERSCALE_OK) st = read_int(b, "SELECT count(*) FROM sqlite_master", &ignored);
    if (st == INFERSCALE_OK) return st;
    return is_fail(why, "no space left for the bank %s, and another process has it open; free some space there and try again", b->path);
}

static bool on_read_only_filesystem(const char *path)
{
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0 && errno == EROFS;
}

/* A read-only filesystem and a log with writes in it, which nobody is using (else SQLite would have found its index): nothing can change,
 * so no locks are needed, and the log's index is kept in memory. */
static is_status connect_to_log(is_bank *b, is_status why)
{
    const char *vfs = bank_vfs_without_locks();
    int64_t ignored;
    is_status st;

    disconnect(b);
    if (!vfs) return is_fail(why, "%s has writes waiting in its log, which cannot be read here; open it once where it can be written", b->path);
    st = open_database_on(b, vfs, b->path, SQLITE_OPEN_READONLY);
    if (st == INFERSCALE_OK) sqlite3_db_config(b->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    if (st == INFERSCALE_OK) st = pragma(b, "PRAGMA locking_mode = EXCLUSIVE"); /* before the first read */
    if (st == INFERSCALE_OK) st = configure(b);
    if (st == INFERSCALE_OK) st = read_int(b, "SELECT count(*) FROM sqlite_master", &ignored);
    b->frozen = st == INFERSCALE_OK;
    return st;
}

/* A read-only medium or a full one: SQLite wants to make its -shm file beside a WAL database and cannot. If there is no log to be replayed
 * the file alone is the whole truth, and it can be read without one. */
static is_status connect_immutable(is_bank *b, is_status why)
{
    const is_fs *fs = is_fs_default();
    char *wal = is_malloc(strlen(b->path) + sizeof "-wal"), *uri = immutable_uri(b->path);
    uint64_t size = 0;
    is_file *f = NULL;
    is_status st;

    if (!wal || !uri) {
        st = is_fail(INFERSCALE_E_NOMEM, "no memory to open %s; free some memory and try again", b->path);
        goto done;
    }
    snprintf(wal, strlen(b->path) + sizeof "-wal", "%s-wal", b->path);
    if (fs->exists(fs, wal)) { /* a log that cannot be looked at is no empty log */
        st = fs->open(fs, wal, IS_OPEN_READ, &f);
        if (st == INFERSCALE_OK) st = fs->size(fs, f, &size);
        fs->close(fs, f);
        if (st != INFERSCALE_OK) goto done;
    }
    if (size > 0 && why == INFERSCALE_E_FULL) {
        st = connect_alone(b, why);
        goto done;
    }
    if (size > 0 && on_read_only_filesystem(b->path)) {
        st = connect_to_log(b, why);
        goto done;
    }
    if (size > 0) {
        st = is_fail(why, "%s has writes waiting in its log, which cannot be read in a read-only folder; open it once where "
                     "it can be written", b->path);
        goto done;
    }
    disconnect(b);
    st = connect_to(b, uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
    b->frozen = true;
done:
    is_free(wal);
    is_free(uri);
    return st;
}

static is_status connect_as_reader(is_bank *b)
{
    int64_t ignored;

    IS_TRY(connect_to(b, b->path, SQLITE_OPEN_READONLY));
    return read_int(b, "SELECT count(*) FROM sqlite_master", &ignored);
}

static is_status connect_reader(is_bank *b)
{
    is_status st = connect_as_reader(b);

    if (st == INFERSCALE_E_IO) { /* one that passes must not end in a connection that no longer sees what is written */
        disconnect(b);
        st = connect_as_reader(b);
    }
    if (st == INFERSCALE_E_IO || st == INFERSCALE_E_READONLY || st == INFERSCALE_E_DENIED || st == INFERSCALE_E_NOTFOUND ||
        st == INFERSCALE_E_FULL)
        if (is_fs_default()->exists(is_fs_default(), b->path)) return connect_immutable(b, st);
    return st;
}

static is_status connect_writer(is_bank *b)
{
    IS_TRY(create_file(b->path));
    IS_TRY(connect_to(b, b->path, SQLITE_OPEN_READWRITE));
    /* SQLite falls back to reading in silence; the caller who wants to write must hear it now. */
    if (sqlite3_db_readonly(b->db, "main") != 1) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_READONLY, "the bank %s cannot be written; check its mode and owner, or open it read-only",
                   b->path);
}

/* ---- Whose file it is, and of which version ------------------------------------------------------------------------------ */

typedef struct identity { int64_t application_id, version, n_tables; } identity;

static is_status identify(is_bank *b, identity *id)
{
    IS_TRY(read_int(b, "PRAGMA application_id", &id->application_id));
    IS_TRY(read_int(b, "PRAGMA user_version", &id->version));
    IS_TRY(read_int(b, "SELECT count(*) FROM sqlite_master", &id->n_tables));
    if (id->application_id == 0 && id->version == 0 && id->n_tables == 0) return INFERSCALE_OK; /* empty: new */
    if (id->application_id != BANK_APPLICATION_ID)
        return is_fail(INFERSCALE_E_FOREIGN, "%s is another application's database; choose another folder, or move it away",
                       b->path);
    if (id->version > BANK_SCHEMA_VERSION)
        return is_fail(INFERSCALE_E_FOREIGN, "the bank %s was written by a newer InferScale (schema %lld, this one knows %d); "
                       "upgrade", b->path, (long long)id->version, BANK_SCHEMA_VERSION);
    if (id->version < 1)
        return is_fail(INFERSCALE_E_CORRUPT, "the bank %s has the impossible schema version %lld; restore a backup", b->path,
                       (long long)id->version);
    return INFERSCALE_OK;
}

/* Changing to WAL needs the file for a moment alone, and SQLite does not wait for that by itself. */
static is_status use_wal(is_bank *b)
{
    is_status st = INFERSCALE_OK;

    for (int waited_ms = 0; waited_ms < BANK_BUSY_MS; waited_ms += 10) {
        sql q = sql_open(b, "PRAGMA journal_mode = WAL");
        bool wal = sql_row(&q) && strcmp(bank_given((const char *)sqlite3_column_text(q.stmt, 0)), "wal") == 0;

        st = sql_end(&q);
        if (st == INFERSCALE_OK && !wal)
            is_log(IS_LOG_WARN, "bank: this filesystem has no write-ahead log; writing will be slower");
        if (st != INFERSCALE_E_BUSY) return st;
        usleep(10000);
    }
    return st;
}

/* All steps in one transaction: a crash leaves the old version or the new. The version is read again inside: another process
 * may have migrated while we waited. */
static is_status migrate(is_bank *b)
{
    char marks[96];
    identity id = { 0 };
    is_status st = bank_begin(b);

    if (st != INFERSCALE_OK) return st;
    st = identify(b, &id);
    for (int64_t v = id.version; st == INFERSCALE_OK && v < BANK_SCHEMA_VERSION; v++) st = pragma(b, bank_schema_steps[v]);
    snprintf(marks, sizeof marks, "PRAGMA application_id = %d; PRAGMA user_version = %d", BANK_APPLICATION_ID,
             BANK_SCHEMA_VERSION);
    if (st == INFERSCALE_OK) st = pragma(b, marks);
    return bank_end(b, st);
}

/* Is there a file with anything in it? Asked before SQLite opens it, which deletes the log of an empty database. */
static is_status holds_bytes(const is_bank *b, bool *holds)
{
    const is_fs *fs = is_fs_default();
    is_stat s;
    is_status st = fs->stat(fs, b->path, &s);

    *holds = st == INFERSCALE_OK && !(s.is_regular && s.bytes == 0);
    return st == INFERSCALE_E_NOTFOUND ? INFERSCALE_OK : st;
}

static is_status no_tables(const is_bank *b, const char *how)
{
    return is_fail(INFERSCALE_E_CORRUPT, "the bank %s %s; restore a backup", b->path, how);
}

static is_status prepare(is_bank *b, bool existing, bool *lost)
{
    identity id = { 0 };
    bool holds = true;
    is_status st;

    if (existing) IS_TRY(holds_bytes(b, &holds));
    *lost = !holds;
    if (!holds) return no_tables(b, "is missing or empty");
    st = b->read_only ? connect_reader(b) : connect_writer(b);
    if (st != INFERSCALE_OK && b->db && sqlite3_errcode(b->db) == SQLITE_NOTADB) b->no_database = true;
    if (st == INFERSCALE_OK) st = bank_read_begin(b); /* one snapshot: another process may be creating the tables right now */
    if (st == INFERSCALE_OK) st = bank_read_end(b, identify(b, &id));
    *lost = existing && b->no_database;
    IS_TRY(st);
    *lost = existing && id.n_tables == 0;
    if (id.n_tables == 0 && (existing || id.version > 0)) return no_tables(b, "has lost its tables");
    if (b->read_only && id.version == 0)
        return is_fail(INFERSCALE_E_NOTFOUND, "%s holds no bank yet; open it for writing once", b->path);
    if (b->read_only && id.version < BANK_SCHEMA_VERSION)
        return is_fail(INFERSCALE_E_READONLY, "the bank %s has the older schema %lld; open it for writing once to migrate it",
                       b->path, (long long)id.version);
    if (b->read_only) return INFERSCALE_OK;
    /* Only a file without tables takes it: what gc frees can then be given back to the disk. */
    if (id.version == 0 && id.n_tables == 0) IS_TRY(pragma(b, "PRAGMA auto_vacuum = INCREMENTAL"));
    IS_TRY(use_wal(b));
    if (id.version > 0 && id.version < 5) IS_TRY(bank_sweep_gaps(b, BANK_BUSY_MS));
    return id.version < BANK_SCHEMA_VERSION ? migrate(b) : INFERSCALE_OK;
}

/* ---- Public -------------------------------------------------------------------------------------------------------------- */

static is_status open_bank(const char *path, bool read_only, bool existing, bool *lost, is_bank **out)
{
    pthread_mutexattr_t attr;
    is_bank *b;
    is_status st;

    *out = NULL;
    *lost = false;
    if (!path || !*path || path[0] == ':') /* ":memory:" would remember nothing */
        return is_fail(INFERSCALE_E_INVALID, "\"%s\" is no path for a bank; give a file in a folder of its own",
                       bank_given(path));
    b = is_calloc(1, sizeof *b);
    if (!b || !(b->path = is_strdup(path))) {
        is_free(b);
        return is_fail(INFERSCALE_E_NOMEM, "no memory to open the bank %s; free some memory and try again", path);
    }
    b->read_only = read_only;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK); /* a deadlock becomes an error */
    pthread_mutex_init(&b->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    st = prepare(b, existing, lost);
    if (st != INFERSCALE_OK) {
        is_bank_close(b);
        return st;
    }
    bank_enter_list(b);
    *out = b;
    return INFERSCALE_OK;
}

is_status is_bank_open(const char *path, bool read_only, is_bank **out)
{
    bool lost;

    return open_bank(path, read_only, false, &lost, out);
}

is_status is_bank_open_existing(const char *path, bool read_only, bool *lost, is_bank **out)
{
    return open_bank(path, read_only, true, lost, out);
}

void is_bank_close(is_bank *b)
{
    if (!b) return;
    bank_leave_list(b);
    bank_cut_log_at_close(b);
    bank_close_home(b);
    disconnect(b);
    is_free(b->log_methods);
    is_free(b->file_methods);
    pthread_mutex_destroy(&b->lock);
    is_free(b->path);
    is_free(b);
}

bool is_bank_frozen(const is_bank *b)
{
    return b->frozen;
}

const char *is_bank_path(const is_bank *b)
{
    return b->path;
}

int is_bank_schema_version(is_bank *b)
{
    int64_t v = 0;

    if (bank_lock(b) != INFERSCALE_OK) return 0;
    if (read_int(b, "PRAGMA user_version", &v) != INFERSCALE_OK) v = 0;
    bank_unlock(b);
    return (int)v;
}

/* For want of memory no read fails: then the line has to say so. */
bool bank_tells_unread(const char *told, unsigned failed_before)
{
    return bank_failed_reads() != failed_before || strstr(told, "unable to get the page") || strstr(told, "failed to get page") ||
           strstr(told, "ailed to read ptrmap");
}

is_status bank_unread(const is_bank *b, const char *told)
{
    const char *code = strstr(told, "error code=");
    const int rc = code ? (int)strtol(code + strlen("error code="), NULL, 10) : sqlite3_errcode(b->db);

    if (rc % 256 == SQLITE_NOMEM) return bank_fail(b, SQLITE_NOMEM);
    return is_fail(INFERSCALE_E_IO, "a page of the bank %s could not be read to be checked; check the disk and try again", b->path);
}

is_status is_bank_check(is_bank *b, bool *ok)
{
    is_status st, unread = INFERSCALE_OK;
    const unsigned failed = bank_failed_reads();
    sql q;

    *ok = false;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "PRAGMA quick_check(1)");
    if (sql_row(&q)) {
        const char *told = bank_given((const char *)sqlite3_column_text(q.stmt, 0));

        *ok = strcmp(told, "ok") == 0;
        if (!*ok && bank_tells_unread(told, failed)) unread = bank_unread(b, told);
    }
    st = sql_end(&q);
    bank_unlock(b);
    if (unread != INFERSCALE_OK) return unread;
    return st == INFERSCALE_E_CORRUPT ? INFERSCALE_OK : st; /* damaged is an answer, not a failure to answer */
}

is_status is_bank_count(is_bank *b, is_bank_counts *out)
{
    static const char *const literals[] = {
        "SELECT count(*) FROM partitions", "SELECT count(*) FROM items WHERE kind = 1",
        "SELECT count(*) FROM items WHERE kind = 2",
        "SELECT count(*) FROM embeddings", "SELECT count(*) FROM segments",
        "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    };
    uint64_t *const fields[] = { &out->partitions, &out->facts, &out->turns, &out->embeddings, &out->segments, &out->bytes };
    is_status st;

    memset(out, 0, sizeof *out);
    IS_TRY(bank_read_begin(b));
    st = INFERSCALE_OK;
    for (size_t i = 0; st == INFERSCALE_OK && i < sizeof literals / sizeof *literals; i++) {
        int64_t v;

        st = read_int(b, literals[i], &v);
        *fields[i] = (uint64_t)v;
    }
    return bank_read_end(b, st);
}
