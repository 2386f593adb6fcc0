/* gaps.c - see gaps.h. */
#include "bank/gaps.h"

#include <string.h>

#include "base/mem.h"

enum { PAGE_BYTES_MIN = 512, PAGE_BYTES_MAX = 65536, INTERIOR = 12, LEAF = 8, PENDING_BYTE = 0x40000000, LARGEST_ROOT_AT = 52 };

static uint32_t u16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

bool bank_gap(const uint8_t *page, size_t bytes, size_t h, size_t *from, size_t *to)
{
    const uint8_t kind = page[h];
    const size_t head = kind == 2 || kind == 5 ? INTERIOR : LEAF, n = u16(page + h + 3);

    if (kind != 2 && kind != 5 && kind != 10 && kind != 13) return false;
    *from = h + head + 2 * n;
    *to = u16(page + h + 5) ? u16(page + h + 5) : PAGE_BYTES_MAX;
    if (*from > *to || *to > bytes) return false;
    for (size_t i = 0; i < n; i++) {
        size_t cell = u16(page + h + head + 2 * i);

        if (cell < *to || cell >= bytes) return false;
    }
    return true;
}

/* ---- On the way to the file ---------------------------------------------------------------------------------------------- */

/* The database file's functions with ours in place of two. SQLite calls them through the file's first member, so that ours are found
 * again from there. */
struct bank_file_methods {
    sqlite3_io_methods ours; /* first */
    const sqlite3_io_methods *theirs;
    bool copying; /* the connection copies the log into the file: it holds the lock for that */
    uint8_t page[PAGE_BYTES_MAX];
};

/* With auto_vacuum every so many pages one says of the others who points at them: it begins like a page of a table, and is none. */
static bool may_be_pointer_map(const sqlite3_io_methods *m, sqlite3_file *f, uint32_t number, size_t bytes)
{
    const uint32_t every = (uint32_t)bytes / 5 + 1;
    uint32_t map = (number - 2) / every * every + 2;
    uint8_t largest_root[4] = { 0 };

    if (number < 2) return false;
    map += map == PENDING_BYTE / bytes + 1;
    if (number != map) return false;
    if (m->xRead(f, largest_root, sizeof largest_root, LARGEST_ROOT_AT) != SQLITE_OK) return true; /* better a gap too many */
    return largest_root[0] | largest_root[1] | largest_root[2] | largest_root[3];
}

/* Only who copies the log into the file holds this lock (SQLite's file format, WAL_CKPT_LOCK). */
static int note_lock(sqlite3_file *f, int offset, int n, int flags)
{
    enum { COPY_LOCK = 1 };
    struct bank_file_methods *methods = (struct bank_file_methods *)(uintptr_t)f->pMethods;
    const int rc = methods->theirs->xShmLock(f, offset, n, flags);

    if (rc == SQLITE_OK && offset == COPY_LOCK && n == 1) methods->copying = flags & SQLITE_SHM_LOCK;
    return rc;
}

/* A page of a long value or of the free list begins with the number of another page: not with a page's kind, in a file of less than
 * 128 GiB, and in a larger one no such page has a list of cells that fits. */
static int put_without_gap(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    struct bank_file_methods *methods = (struct bank_file_methods *)(uintptr_t)f->pMethods;
    const sqlite3_io_methods *m = methods->theirs;
    const bool whole = n >= PAGE_BYTES_MIN && n <= PAGE_BYTES_MAX && (n & (n - 1)) == 0 && at % n == 0;
    const uint32_t number = whole ? (uint32_t)(at / n) + 1 : 0;
    size_t from = 0, to = 0, i;

    if (!whole || !bank_gap(p, (size_t)n, number == 1 ? 100 : 0, &from, &to)) return m->xWrite(f, p, n, at);
    for (i = from; i < to && ((const uint8_t *)p)[i] == 0; i++) continue;
    if (i == to || may_be_pointer_map(m, f, number, (size_t)n)) return m->xWrite(f, p, n, at);
    memcpy(methods->page, p, (size_t)n);
    memset(methods->page + from, 0, to - from);
    return m->xWrite(f, methods->page, n, at);
}

/* The log is copied page by page through a scratch page of the connection, which would hold the last
 * page for as long as the connection lives: SQLite is done with it when it is written. */
static int write_without_gap(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    const struct bank_file_methods *methods = (const struct bank_file_methods *)(uintptr_t)f->pMethods;
    const int rc = put_without_gap(f, p, n, at);

    if (methods->copying && rc == SQLITE_OK && n > 0) explicit_bzero((void *)(uintptr_t)p, (size_t)n);
    return rc;
}

void bank_clear_page(struct bank_file_methods *methods)
{
    if (methods) explicit_bzero(methods->page, sizeof methods->page);
}

int bank_keep_gaps_empty(sqlite3 *db, struct bank_file_methods **methods)
{
    sqlite3_file *f = NULL;
    int rc = sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &f);

    if (rc != SQLITE_OK || !f || !f->pMethods) return rc;
    if (!*methods) *methods = is_calloc(1, sizeof **methods);
    if (!*methods) return SQLITE_NOMEM;
    if (f->pMethods == &(*methods)->ours) return SQLITE_OK;
    (*methods)->ours = *f->pMethods;
    (*methods)->theirs = f->pMethods;
    (*methods)->ours.xWrite = write_without_gap;
    if (f->pMethods->iVersion >= 2 && f->pMethods->xShmLock) (*methods)->ours.xShmLock = note_lock;
    (*methods)->copying = false;
    f->pMethods = &(*methods)->ours;
    return SQLITE_OK;
}
