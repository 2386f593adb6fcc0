/* scan.c - every byte that the bank keeps on disk, and every value that it keeps on purpose: what the proof of forgetting compares.
 *
 * It works on a connection of its own, holds the write lock while the log is empty (so the database file stands still), and reads the
 * files through SQLite's own descriptors: closing another one of the same file would drop this process's locks on it.
 *
 * The pages' unused middles (gaps.h) are zeroed first: another program, or a version before 5, may have written to the file. */
#include "bank/scan.h"

#include <stdio.h>
#include <string.h>

#include "bank/gaps.h"
#include "bank/sql.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/words.h"

enum { CHUNK_BYTES = 1 << 20, SHM_BYTES = 32768, RETRY_MS = 20, INTERIOR = 12 };

typedef struct job {
    is_bank *b;
    sqlite3_file *db, *wal;
    uint32_t page_bytes, usable, n_pages;
    uint8_t *buffer;         /* [CHUNK_BYTES] */
    const is_bank_scan *out;
} job;

/* ---- The file, standing still -------------------------------------------------------------------------------------------- */

static sqlite3_file *file_of(is_bank *b, int which)
{
    sqlite3_file *f = NULL;

    if (sqlite3_file_control(b->db, "main", which, &f) != SQLITE_OK) return NULL;
    return f && f->pMethods ? f : NULL;
}

/* Takes the write lock at a moment when the log is empty. bank_end(b, st) gives it back. */
static is_status begin_still(job *j, double until_ms)
{
    for (;;) {
        double left = until_ms - is_now_ms();
        sqlite3_int64 size = 0;

        IS_TRY(is_bank_cut_log(j->b, left > 0 ? (uint32_t)left : 0));
        IS_TRY(bank_begin(j->b));
        j->db = file_of(j->b, SQLITE_FCNTL_FILE_POINTER);
        j->wal = file_of(j->b, SQLITE_FCNTL_JOURNAL_POINTER);
        if (!j->db)
            return bank_end(j->b, is_fail(INFERSCALE_E_UNSUPPORTED, "this SQLite does not show its files; the bank cannot be searched"));
        if (j->wal && j->wal->pMethods->xFileSize(j->wal, &size) != SQLITE_OK) size = 1;
        if (size == 0) return INFERSCALE_OK;
        (void)bank_end(j->b, INFERSCALE_E_BUSY); /* another wrote in between: once more */
        if (is_now_ms() > until_ms)
            return is_fail(INFERSCALE_E_BUSY, "others write to %s without a pause, so that its log is never empty; try again when they "
                           "are done", j->b->path);
        sqlite3_sleep(RETRY_MS);
    }
}

static is_status read_at(job *j, void *p, size_t n, uint64_t at)
{
    int rc = j->db->pMethods->xRead(j->db, p, (int)n, (sqlite3_int64)at);

    return rc == SQLITE_OK || rc == SQLITE_IOERR_SHORT_READ ? INFERSCALE_OK : bank_fail(j->b, rc);
}

static uint32_t u16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static is_status read_header(job *j)
{
    uint8_t h[100];
    sqlite3_int64 size = 0;

    IS_TRY(read_at(j, h, sizeof h, 0));
    IS_TRY(bank_fail(j->b, j->db->pMethods->xFileSize(j->db, &size))); /* not the file's fault: it is not known to be short */
    j->page_bytes = u16(h + 16) == 1 ? 65536 : u16(h + 16);
    j->usable = j->page_bytes - h[20];
    if (j->page_bytes < 512 || (j->page_bytes & (j->page_bytes - 1)) || j->usable < 480)
        return is_fail(INFERSCALE_E_CORRUPT, "the bank %s has an impossible page size; restore a backup", j->b->path);
    j->n_pages = (uint32_t)(size / j->page_bytes);
    return INFERSCALE_OK;
}

/* ---- Gaps ---------------------------------------------------------------------------------------------------------------- */

typedef struct pages { uint32_t *at; size_t n, cap; } pages;

static is_status push(pages *s, uint32_t page)
{
    if (s->n == s->cap) {
        uint32_t *grown = is_realloc(s->at, (s->cap ? s->cap * 2 : 256) * sizeof *grown);

        if (!grown) return is_fail(INFERSCALE_E_NOMEM, "no memory to walk through the bank; free some and try again");
        s->at = grown;
        s->cap = s->cap ? s->cap * 2 : 256;
    }
    s->at[s->n++] = page;
    return INFERSCALE_OK;
}

static is_status damaged(const job *j, uint32_t page)
{
    return is_fail(INFERSCALE_E_CORRUPT, "page %u of the bank %s is damaged; %s says what else is, a backup mends it", page,
                   j->b->path, is_words(IS_CALL_FSCK));
}

/* Zeroes what lies between the page's cell pointers and its cells. */
static is_status zero_gap(job *j, uint32_t page, uint8_t *p, uint32_t from, uint32_t to)
{
    uint32_t i = from;
    int rc;

    while (i < to && p[i] == 0) i++;
    if (i == to) return INFERSCALE_OK;
    memset(p + from, 0, to - from);
    rc = j->db->pMethods->xWrite(j->db, p + from, (int)(to - from), (sqlite3_int64)(page - 1) * j->page_bytes + from);
    return bank_fail(j->b, rc);
}

static is_status visit(job *j, uint32_t page, pages *todo)
{
    uint8_t *p = j->buffer;
    const size_t h = page == 1 ? 100 : 0;
    size_t gap, content;

    if (page == 0 || page > j->n_pages) return damaged(j, page);
    IS_TRY(read_at(j, p, j->page_bytes, (uint64_t)(page - 1) * j->page_bytes));
    if (!bank_gap(p, j->usable, h, &gap, &content)) return damaged(j, page);
    if (p[h] == 2 || p[h] == 5) { /* it points at others */
        const uint32_t n = u16(p + h + 3);

        IS_TRY(push(todo, u32(p + h + 8)));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t cell = u16(p + h + INTERIOR + 2 * i);

            if (cell + 4 > j->usable) return damaged(j, page);
            IS_TRY(push(todo, u32(p + cell)));
        }
    }
    return zero_gap(j, page, p, (uint32_t)gap, (uint32_t)content);
}

static is_status roots(job *j, pages *todo)
{
    is_status st = push(todo, 1), ended;
    sql q = sql_open(j->b, "SELECT rootpage FROM sqlite_master WHERE rootpage > 0");

    while (st == INFERSCALE_OK && sql_row(&q)) st = push(todo, (uint32_t)sqlite3_column_int64(q.stmt, 0));
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

static is_status zero_gaps(job *j)
{
    pages todo = { 0 };
    uint64_t visited = 0;
    is_status st = roots(j, &todo);

    while (st == INFERSCALE_OK && todo.n) {
        uint32_t page = todo.at[--todo.n];

        st = ++visited <= j->n_pages + 1u ? visit(j, page, &todo) : damaged(j, page); /* a circle */
    }
    is_free(todo.at);
    if (st == INFERSCALE_OK) st = bank_fail(j->b, j->db->pMethods->xSync(j->db, SQLITE_SYNC_FULL));
    return st;
}

/* A commit, so that every connection drops the pages it remembers: written back they would bring the gaps' bytes back. */
static is_status make_others_read_again(job *j)
{
    sql q = sql_open(j->b, "UPDATE partitions SET revision = revision + 1 WHERE id = (SELECT min(id) FROM partitions)");

    return sql_run(&q, NULL);
}

static is_status clean(job *j, double until_ms, bool tell)
{
    is_status st;

    IS_TRY(begin_still(j, until_ms));
    st = read_header(j);
    if (st == INFERSCALE_OK) st = zero_gaps(j);
    if (st == INFERSCALE_OK) {
        sqlite3_db_release_memory(j->b->db); /* our own pages, too */
        st = tell ? make_others_read_again(j) : INFERSCALE_OK;
    }
    return bank_end(j->b, st);
}

is_status bank_sweep_gaps(is_bank *b, uint32_t wait_ms)
{
    job j = { .b = b, .buffer = is_malloc(CHUNK_BYTES) };
    is_status st = is_fail(INFERSCALE_E_NOMEM, "no memory to go through the bank; free some and try again");

    if (j.buffer) st = clean(&j, is_now_ms() + wait_ms, false);
    is_free(j.buffer);
    return st;
}

/* ---- Bytes --------------------------------------------------------------------------------------------------------------- */

static is_status scan_database(job *j)
{
    sqlite3_int64 size = 0;

    IS_TRY(bank_fail(j->b, j->db->pMethods->xFileSize(j->db, &size)));
    IS_TRY(j->out->begin(j->out->ctx, IS_SCAN_DATABASE));
    for (sqlite3_int64 at = 0; at < size; at += CHUNK_BYTES) {
        size_t n = size - at < CHUNK_BYTES ? (size_t)(size - at) : CHUNK_BYTES;

        IS_TRY(read_at(j, j->buffer, n, (uint64_t)at));
        IS_TRY(j->out->bytes(j->out->ctx, j->buffer, n));
    }
    return INFERSCALE_OK;
}

/* The shared index of the log: mapped already, by whoever has the bank open. */
static is_status scan_shared(job *j)
{
    const sqlite3_io_methods *m = j->db->pMethods;

    IS_TRY(j->out->begin(j->out->ctx, IS_SCAN_SHARED));
    for (int region = 0; m->iVersion >= 2 && m->xShmMap; region++) {
        void volatile *p = NULL;

        if (m->xShmMap(j->db, region, SHM_BYTES, 0, &p) != SQLITE_OK || !p) break;
        memcpy(j->buffer, (const void *)(uintptr_t)p, SHM_BYTES);
        IS_TRY(j->out->bytes(j->out->ctx, j->buffer, SHM_BYTES));
    }
    return INFERSCALE_OK;
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

/* All texts and blobs that the statement gives. The first column is an id for the report. */
static is_status hand_values(job *j, const char *table, const char *text)
{
    is_status st = INFERSCALE_OK, ended;
    sql q = sql_once(j->b, text);

    while (st == INFERSCALE_OK && sql_row(&q)) {
        int64_t id = sqlite3_column_int64(q.stmt, 0);

        for (int i = 1; st == INFERSCALE_OK && i < sqlite3_column_count(q.stmt); i++) {
            int type = sqlite3_column_type(q.stmt, i);
            const void *p = type == SQLITE_TEXT || type == SQLITE_BLOB ? sqlite3_column_blob(q.stmt, i) : NULL;

            if (p) st = j->out->value(j->out->ctx, table, id, p, (size_t)sqlite3_column_bytes(q.stmt, i));
        }
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

/* Tables once, and every index once more: it holds its columns a second time. The statements are made from the schema's own names.
 * sqlite_master holds the schema as text. */
static is_status scan_values(job *j)
{
    static const char list[] =
        "SELECT m.name, 'SELECT ' || ifnull((SELECT '\"' || name || '\"' FROM pragma_table_info(m.name) WHERE name IN ('item_id', 'id')"
        " ORDER BY name DESC LIMIT 1), '0') || ', * FROM \"' || m.name || '\"' FROM sqlite_master m WHERE m.type = 'table' AND"
        " m.rootpage > 0"
        " UNION ALL SELECT m.tbl_name, 'SELECT 0' || (SELECT group_concat(', \"' || name || '\"', '') FROM pragma_index_xinfo(m.name)"
        " WHERE cid >= 0) || ' FROM \"' || m.tbl_name || '\"' FROM sqlite_master m WHERE m.type = 'index' AND m.rootpage > 0"
        " UNION ALL SELECT 'sqlite_master', 'SELECT 0, * FROM sqlite_master'";
    is_status st = INFERSCALE_OK, ended;
    sql q = sql_open(j->b, list);

    while (st == INFERSCALE_OK && sql_row(&q)) {
        char *table = is_strdup(bank_given((const char *)sqlite3_column_text(q.stmt, 0)));
        char *text = is_strdup(bank_given((const char *)sqlite3_column_text(q.stmt, 1)));

        st = table && text ? hand_values(j, table, text)
                           : is_fail(INFERSCALE_E_NOMEM, "no memory to search the bank; free some and try again");
        is_free(table);
        is_free(text);
    }
    if (st != INFERSCALE_OK) q.rc = SQLITE_OK;
    ended = sql_end(&q);
    return st != INFERSCALE_OK ? st : ended;
}

static is_status scan_all(job *j, double until_ms)
{
    is_status st;

    IS_TRY(clean(j, until_ms, true));
    IS_TRY(begin_still(j, until_ms));
    st = scan_database(j);
    if (st == INFERSCALE_OK) st = scan_shared(j);
    if (st == INFERSCALE_OK) st = scan_values(j);
    (void)bank_end(j->b, INFERSCALE_E_CANCELLED); /* nothing was written */
    return st;
}

is_status is_bank_has_segment(is_bank *b, const uint8_t name[IS_HASH_BYTES], bool *has)
{
    is_status st;
    sql q;

    *has = false;
    IS_TRY(bank_lock(b));
    q = sql_open(b, "SELECT 1 FROM partitions p CROSS JOIN segments s ON s.partition_id = p.id AND s.name = ?1 LIMIT 1");
    sql_blob(&q, name, IS_HASH_BYTES);
    *has = sql_one_i64(&q, 0, &st) != 0;
    bank_unlock(b);
    return st;
}

is_status is_bank_scan_all(const char *path, uint32_t wait_ms, const is_bank_scan *out)
{
    const double until_ms = is_now_ms() + wait_ms;
    job j = { .out = out, .buffer = is_malloc(CHUNK_BYTES) };
    char why[1024];
    is_status st = j.buffer ? is_bank_open(path, false, &j.b)
                            : is_fail(INFERSCALE_E_NOMEM, "no memory to search the bank; free some and try again");

    if (st == INFERSCALE_OK) st = scan_all(&j, until_ms);
    snprintf(why, sizeof why, "%s", is_error());
    is_bank_close(j.b);
    is_free(j.buffer);
    return st == INFERSCALE_OK ? st : is_fail(st, "%s", why);
}
