/* sql.h - the bank's inside: the handle, statements, transactions. Only src/bank includes it. */
#ifndef IS_BANK_SQL_H
#define IS_BANK_SQL_H

#include <pthread.h>
#include <sqlite3.h>

#include "bank/bank.h"

enum { BANK_CACHED = 96, BANK_NAME_MAX = INFERSCALE_NAME_MAX, BANK_TEXT_MAX = 64 * 1024, BANK_BUSY_MS = 10000,
       BANK_WAL_PAGES = 1000, BANK_WAL_PAGES_MAX = 16000 };

struct is_bank {
    sqlite3 *db;
    char *path;
    bool read_only;
    bool frozen;             /* opened as a file that does not change */
    struct bank_log_methods *log_methods;   /* wal.c; lives until the connection is closed */
    struct bank_file_methods *file_methods; /* gaps.c; the same */
    pthread_mutex_t lock;
    struct { const char *sql; sqlite3_stmt *stmt; } cache[BANK_CACHED]; /* keyed by the address of the literal */
    size_t n_cached;
    sqlite3_stmt *rollback;  /* ready, so that undoing needs no memory */
    bool relaxed;            /* commits may not wait for the disk: to be put right before the next durable one */
    bool no_database;        /* a statement found that the file is no database at all */
    volatile int found_damage; /* by a statement, since is_bank_probe last saw the whole file sound; atomic */
    char *home_file;         /* home.c: where given ids are written down; NULL = nowhere */
    struct is_home *home;    /* what stands there */
    int64_t last_given;      /* the highest id of the transaction; 0 = none */
    bool gave_ids;           /* by this handle */
    const volatile int *stop; /* ends waiting for other connections; NULL = nothing does */
    bool drop;               /* its pages are to be dropped (caches.c); atomic */
    is_bank *prev, *next;    /* the banks of this process (caches.c) */
};

/* The lock is held between these two; locking again in the same thread (a call from inside is_bank_each) is E_INTERNAL. */
is_status bank_lock(is_bank *b);
void bank_unlock(is_bank *b);

/* The list of the process's banks (caches.c): entered when open, left before it is closed. */
void bank_enter_list(is_bank *b);
void bank_leave_list(is_bank *b);
void bank_drop_if_asked(is_bank *b); /* the lock is not held by this thread */

/* A writing transaction with the lock held: st = bank_begin(b); if OK do things; return bank_end(b, st). bank_end commits if st
 * is OK, else rolls back and returns st with its sentence kept. E_READONLY on a read-only bank. */
is_status bank_begin(is_bank *b);
is_status bank_end(is_bank *b, is_status st);
/* The same for books that can be made again: the commit survives kill -9 but does not wait for the disk, a hundred times faster. */
is_status bank_begin_lazy(is_bank *b);
is_status bank_end_lazy(is_bank *b, is_status st);
is_status bank_prepare_rollback(is_bank *b); /* at open */
/* A reading transaction: one snapshot for several statements. Ended by bank_read_end, which returns st. */
is_status bank_read_begin(is_bank *b);
is_status bank_read_end(is_bank *b, is_status st);

/* The folder's file (home.c). record: before the commit of a transaction that gave ids, with the lock held. */
is_status bank_record_ids(is_bank *b, int64_t last);
void bank_close_home(is_bank *b);

/* SQLite deletes the log when the last connection closes; it is emptied before, quietly (wal.c). */
void bank_cut_log_at_close(is_bank *b);

/* The status of an SQLite result code, with a sentence that names the bank and the next step. */
is_status bank_fail(const is_bank *b, int rc);

/* SQLite's checks tell of a page that could not be read as if it were damaged: is this line of theirs one, and what it is then. */
bool bank_tells_unread(const char *line, unsigned failed_before /* bank_failed_reads (vfs.h) before the check */);
is_status bank_unread(const is_bank *b, const char *line);

/* One use of a statement. Errors are kept until sql_end, so that calls need no checks in between:
 *     sql q = sql_open(b, "SELECT ... WHERE partition_id = ?1 ...");   // a literal: its address is the cache's key
 *     sql_i64(&q, p->id);                                               // values are bound in order of ?1, ?2, ...
 *     while (sql_row(&q)) ... sqlite3_column_*(q.stmt, i) ...
 *     return sql_end(&q);
 * Bound memory must live until sql_end. */
typedef struct sql {
    is_bank *bank;
    sqlite3_stmt *stmt;
    int at, rc;
    bool cached;
} sql;

sql sql_open(is_bank *b, const char *literal);
sql sql_once(is_bank *b, const char *text); /* the same, not kept: for what runs seldom */
void sql_i64(sql *q, int64_t v);
void sql_text(sql *q, const char *s);  /* NULL is bound as '' */
void sql_text_or_null(sql *q, const char *s);
void sql_blob(sql *q, const void *p, size_t n);
void sql_real(sql *q, double v);
bool sql_row(sql *q);                  /* steps; true if there is a row */
is_status sql_end(sql *q);
is_status sql_run(sql *q, int64_t *changes /* may be NULL */); /* steps to the end and ends: for writes */
int64_t sql_one_i64(sql *q, int64_t none, is_status *st);      /* the first column of the first row, or none; ends */

int bank_add_functions(sqlite3 *db); /* vector_sum and one_in (functions.c); an SQLite result code */

/* Checks of what callers hand in (check.c). which: 0-based, for the sentence ("fact 3: ..."). */
is_status bank_check_scope(const inferscale_scope *scope);
is_status bank_check_text(const char *what, size_t which, const char *text);
is_status bank_check_name(const char *what, size_t which, const char *role, const char *name);
/* NULL and "" pass. Must be a JSON object of at most BANK_TEXT_MAX bytes. The lock is held. */
is_status bank_check_metadata(is_bank *b, const char *what, size_t which, const char *metadata);
const char *bank_given(const char *s);  /* NULL as "" */
const char *bank_what(const char *what, size_t which, char out[48]); /* "fact 3"; "the fact" for which = SIZE_MAX */

/* E_NOTFOUND if there is no such partition. */
is_status bank_need_partition(is_bank *b, const is_partition *p);
/* Raises the partition's revision, and its epoch if asked. E_NOTFOUND if there is no such partition. */
is_status bank_touch(is_bank *b, const is_partition *p, bool epoch);

/* Drops every segment that depends on a version of the item, and the placements that hold it. Names that no segment uses any
 * more are added to stale (may be NULL) and to the doomed table. In a transaction. */
is_status bank_drop_dependents(is_bank *b, const is_partition *p, int64_t item_id, is_names *stale);
/* The same for what was computed with the item in sight; its own segments stay. */
is_status bank_drop_onlookers(is_bank *b, const is_partition *p, int64_t item_id, is_names *stale);
/* Tombstones (tombstones.c). lift: the text is remembered again; *lifted = it was forgotten once. In a transaction. */
is_status bank_set_tombstone(is_bank *b, const is_partition *p, const char *text);
is_status bank_lift_tombstone(is_bank *b, const is_partition *p, const char *text, bool *lifted);
is_status bank_names_add(is_names *names, const void *name);
/* A name that a row gave up: doomed, and added to stale, unless another segment uses the same file. In a transaction. */
is_status bank_retire_name(is_bank *b, const is_partition *p, const uint8_t *name, is_names *stale);

/* The first column of all rows; ends the statement. *ids is is_free'd; NULL and 0 on failure. */
is_status bank_collect_ids(sql *q, int64_t **ids, size_t *n);
/* E_STALE unless the partition's epoch is still this one. */
is_status bank_check_epoch(is_bank *b, const is_partition *p, int64_t epoch);
/* E_STALE unless the item is in the partition and this is its current version. */
is_status bank_check_dep(is_bank *b, const is_partition *p, int64_t id, int version);

/* Times in the tables: event_time, valid_from and write_time are seconds. valid_to and expires are as in inferscale.h, 0 = open;
 * BANK_INSTANT is their seconds. What is compared with the present needs none: both forms of 1970's first second lie before it. */
#define BANK_TIME_ZERO "-9223372036854775807" /* INFERSCALE_TIME_ZERO */
#define BANK_INSTANT(time) "ifnull(nullif(" time ", " BANK_TIME_ZERO "), 0)"

/* Reading (read.c). The columns of BANK_ITEM_COLUMNS come first in every select whose rows are read as items. */
#define BANK_ITEM_COLUMNS                                                                                                      \
    "i.id, i.kind, ifnull(f.version, 1), ifnull(f.text, t.text), ifnull(f.event_time, t.time),"                                \
    " ifnull(f.write_time, t.write_time), ifnull(f.valid_from, 0), ifnull(f.valid_to, 0), ifnull(f.expires, 0),"               \
    " ifnull(f.source_turn, 0), ifnull(f.metadata, '{}'), ifnull(t.speaker, ''), ifnull(c.name, ''),"                          \
    " ifnull(t.external_id, ''), i.user, i.agent, i.run, i.app, i.pinned, i.withdrawn, i.superseded_by, ifnull(f.dated, t.dated)"
#define BANK_ITEM_JOINS                                                                                                        \
    " LEFT JOIN turns t ON t.partition_id = i.partition_id AND t.item_id = i.id"                                               \
    " LEFT JOIN conversations c ON c.id = t.conversation_id AND c.partition_id = i.partition_id"
#define BANK_FROM_CURRENT                                                                                                      \
    " FROM items i LEFT JOIN fact_versions f ON f.partition_id = i.partition_id AND f.item_id = i.id AND"                      \
    " f.version = i.version" BANK_ITEM_JOINS
enum { BANK_N_ITEM_COLUMNS = 22 };

/* The row's item: its strings live until the next sql_row or sql_end. false (and the statement failed) if the row has no text. */
bool bank_read_item(sql *q, inferscale_item *out);

#endif
