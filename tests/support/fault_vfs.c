#include "support/fault_vfs.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct wrapped {
    sqlite3_file base;
    sqlite3_file *real;      /* behind this struct */
    fault_inode *inode;      /* NULL: not on the disk */
    fault_clock *clock;      /* NULL: passes through */
    fault_disk *disk;
} wrapped;

static sqlite3_vfs vfs, *real_vfs;
static fault_clock *clock_in_use;
static fault_disk *disk_in_use;
static _Thread_local int last_errno;

static int tick(fault_clock *clock, enum fault_op op)
{
    int e = clock ? fault_clock_tick(clock, op) : 0;

    if (e) errno = last_errno = e;
    else last_errno = 0;
    return e;
}

/* The clock that a path's operations tick; NULL: none, it passes through. */
static fault_clock *clock_of(const char *path)
{
    return !disk_in_use || (path && fault_disk_has(disk_in_use, path)) ? clock_in_use : NULL;
}

/* ---- Files --------------------------------------------------------------------------------------------------------------- */

#define SELF(f) ((wrapped *)(f))
#define FORWARD(f, method, ...) SELF(f)->real->pMethods->method(SELF(f)->real, ##__VA_ARGS__)
#define REFUSE(f, op, rc)                                                                                                      \
    do {                                                                                                                       \
        if (tick(SELF(f)->clock, (op))) return (rc);                                                                            \
    } while (0)

static int f_close(sqlite3_file *f) { return FORWARD(f, xClose); }
static int f_lock(sqlite3_file *f, int l) { return FORWARD(f, xLock, l); }
static int f_unlock(sqlite3_file *f, int l) { return FORWARD(f, xUnlock, l); }
static int f_reserved(sqlite3_file *f, int *out) { return FORWARD(f, xCheckReservedLock, out); }
static int f_sector(sqlite3_file *f) { return FORWARD(f, xSectorSize); }
static int f_traits(sqlite3_file *f) { return FORWARD(f, xDeviceCharacteristics); }
static int f_shm_lock(sqlite3_file *f, int at, int n, int flags) { return FORWARD(f, xShmLock, at, n, flags); }
static void f_barrier(sqlite3_file *f) { FORWARD(f, xShmBarrier); }
static int f_unmap(sqlite3_file *f, int del) { return FORWARD(f, xShmUnmap, del); }

static int f_control(sqlite3_file *f, int what, void *arg)
{
    if (what == SQLITE_FCNTL_SIZE_HINT || what == SQLITE_FCNTL_CHUNK_SIZE) return SQLITE_OK; /* would write past the disk */
    return FORWARD(f, xFileControl, what, arg);
}

static int f_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at)
{
    REFUSE(f, FAULT_READ, SQLITE_IOERR_CORRUPTFS); /* as the unix VFS says EIO */
    return FORWARD(f, xRead, p, n, at);
}

static int f_size(sqlite3_file *f, sqlite3_int64 *n)
{
    REFUSE(f, FAULT_READ, SQLITE_IOERR_FSTAT);
    return FORWARD(f, xFileSize, n);
}

static int f_map(sqlite3_file *f, int page, int n, int extend, void volatile **p)
{
    REFUSE(f, FAULT_OPEN, extend ? SQLITE_IOERR_SHMSIZE : SQLITE_IOERR_SHMMAP);
    return FORWARD(f, xShmMap, page, n, extend, p);
}

static int f_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at)
{
    int rc;

    REFUSE(f, FAULT_WRITE, last_errno == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE);
    rc = FORWARD(f, xWrite, p, n, at);
    if (rc == SQLITE_OK && SELF(f)->inode) fault_disk_write(SELF(f)->disk, SELF(f)->inode, p, (size_t)n, (uint64_t)at);
    return rc;
}

static int f_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    int rc;

    REFUSE(f, FAULT_WRITE, SQLITE_IOERR_TRUNCATE);
    rc = FORWARD(f, xTruncate, n);
    if (rc == SQLITE_OK && SELF(f)->inode) fault_disk_truncate(SELF(f)->disk, SELF(f)->inode, (uint64_t)n);
    return rc;
}

static int f_sync(sqlite3_file *f, int flags)
{
    (void)flags;
    if (SELF(f)->inode) fault_disk_point(SELF(f)->disk);
    REFUSE(f, FAULT_SYNC, SQLITE_IOERR_FSYNC);
    if (SELF(f)->inode) fault_disk_sync(SELF(f)->disk, SELF(f)->inode, true);
    return SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    2, f_close, f_read, f_write, f_truncate, f_sync, f_size, f_lock, f_unlock, f_reserved, f_control, f_sector, f_traits, f_map,
    f_shm_lock, f_barrier, f_unmap, NULL, NULL,
};

/* ---- The filesystem ------------------------------------------------------------------------------------------------------ */

static int v_open(sqlite3_vfs *v, const char *path, sqlite3_file *file, int flags, int *out_flags)
{
    wrapped *w = (wrapped *)file;
    bool new;
    int rc;

    (void)v;
    w->base.pMethods = NULL;
    w->real = (sqlite3_file *)(w + 1);
    w->inode = NULL;
    w->clock = path ? clock_of(path) : NULL;
    w->disk = disk_in_use;
    if (tick(w->clock, FAULT_OPEN)) return SQLITE_CANTOPEN;
    new = path && access(path, F_OK) != 0;
    rc = real_vfs->xOpen(real_vfs, path, w->real, flags, out_flags);
    if (w->real->pMethods) w->base.pMethods = &methods;
    if (rc == SQLITE_OK && w->clock && disk_in_use) w->inode = fault_disk_open(disk_in_use, path, new);
    return rc;
}

static int v_delete(sqlite3_vfs *v, const char *path, int sync_dir)
{
    int rc;

    (void)v;
    if (tick(clock_of(path), FAULT_UNLINK)) return SQLITE_IOERR_DELETE;
    rc = real_vfs->xDelete(real_vfs, path, 0);
    if (rc == SQLITE_OK && disk_in_use && clock_of(path)) fault_disk_unlink(disk_in_use, path, sync_dir != 0);
    return rc;
}

static int v_access(sqlite3_vfs *v, const char *path, int flags, int *out)
{
    (void)v;
    if (tick(clock_of(path), FAULT_READ)) return SQLITE_IOERR_ACCESS;
    return real_vfs->xAccess(real_vfs, path, flags, out);
}

static int v_last_error(sqlite3_vfs *v, int n, char *text)
{
    (void)v;
    return last_errno ? last_errno : real_vfs->xGetLastError(real_vfs, n, text);
}

void fault_vfs_use(fault_clock *clock, fault_disk *disk)
{
    clock_in_use = clock;
    disk_in_use = disk;
}

void fault_vfs_install(fault_clock *clock, fault_disk *disk)
{
    fault_vfs_use(clock, disk);
    sqlite3_initialize();
    if (sqlite3_vfs_find(NULL) == &vfs) return; /* a failed test left it */
    real_vfs = sqlite3_vfs_find(NULL);
    vfs = *real_vfs;
    vfs.pNext = NULL;
    vfs.zName = "fault";
    vfs.szOsFile = (int)sizeof(wrapped) + real_vfs->szOsFile;
    vfs.xOpen = v_open;
    vfs.xDelete = v_delete;
    vfs.xAccess = v_access;
    vfs.xGetLastError = v_last_error;
    if (sqlite3_vfs_register(&vfs, 1) != SQLITE_OK) abort();
}

void fault_vfs_remove(void)
{
    sqlite3_vfs_unregister(&vfs);
    sqlite3_vfs_register(real_vfs, 1);
}
