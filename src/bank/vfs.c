/* vfs.c - see vfs.h. A copy of the default VFS opens files by it and gives them a copy of their own methods with another xRead. Others
 * (gaps.c, wal.c) copy these methods again, so a read cannot find its original by the file: each set of methods has a function of its
 * own. */
#include "bank/vfs.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { SLOTS = 8, SHIMS = 4, NAME_BYTES = 96 };

typedef struct shim {
    sqlite3_vfs vfs;         /* first: what SQLite gets */
    sqlite3_vfs *theirs;
    char name[NAME_BYTES];
} shim;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static shim shims[SHIMS];
static struct { const sqlite3_io_methods *theirs; sqlite3_io_methods ours; } slots[SLOTS];
static _Thread_local unsigned failed_reads;

unsigned bank_failed_reads(void)
{
    return failed_reads;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

static int read_by(const sqlite3_io_methods *theirs, sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    const int rc = theirs->xRead(f, p, n, at);

    if (rc == SQLITE_OK || rc == SQLITE_IOERR_SHORT_READ) return rc;
    failed_reads++;
    return rc == SQLITE_IOERR_CORRUPTFS ? SQLITE_IOERR_READ : rc;
}

#define READ(i)                                                                                                              \
    static int read_##i(sqlite3_file *f, void *p, int n, sqlite3_int64 at)                                                    \
    {                                                                                                                         \
        return read_by(slots[i].theirs, f, p, n, at);                                                                         \
    }
READ(0)
READ(1)
READ(2)
READ(3)
READ(4)
READ(5)
READ(6)
READ(7)
#undef READ

static int (*const readers[SLOTS])(sqlite3_file *, void *, int, sqlite3_int64) = { read_0, read_1, read_2, read_3,
                                                                                   read_4, read_5, read_6, read_7 };

/* Theirs with our function, or theirs as they are where there are more kinds of files than we have functions. */
static const sqlite3_io_methods *methods_over(const sqlite3_io_methods *theirs)
{
    const sqlite3_io_methods *found = theirs;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].theirs && slots[i].theirs != theirs) continue;
        if (!slots[i].theirs) {
            slots[i].ours = *theirs;
            slots[i].ours.xRead = readers[i];
            slots[i].theirs = theirs;
        }
        found = &slots[i].ours;
        break;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    sqlite3_vfs *theirs = ((shim *)(void *)vfs)->theirs;
    const int rc = theirs->xOpen(theirs, name, f, flags, out);

    if (rc == SQLITE_OK && f->pMethods) f->pMethods = methods_over(f->pMethods);
    return rc;
}

/* ---- The VFS ------------------------------------------------------------------------------------------------------------- */

static bool make(shim *s, sqlite3_vfs *theirs)
{
    s->vfs = *theirs;
    s->theirs = theirs;
    snprintf(s->name, sizeof s->name, "inferscale-%.80s", theirs->zName);
    s->vfs.zName = s->name;
    s->vfs.pNext = NULL;
    s->vfs.xOpen = open_file;
    if (sqlite3_vfs_register(&s->vfs, 0) == SQLITE_OK) return true;
    s->theirs = NULL;
    return false;
}

static const char *over(sqlite3_vfs *theirs)
{
    const char *name = NULL;

    pthread_mutex_lock(&lock);
    for (int i = 0; theirs && !name && i < SHIMS; i++) {
        if (shims[i].theirs && shims[i].theirs != theirs) continue;
        if (shims[i].theirs || make(&shims[i], theirs)) name = shims[i].name;
    }
    pthread_mutex_unlock(&lock);
    return name;
}

const char *bank_vfs(void)
{
    return over(sqlite3_vfs_find(NULL));
}

const char *bank_vfs_without_locks(void)
{
    return over(sqlite3_vfs_find("unix-none"));
}
