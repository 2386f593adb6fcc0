/* vfs.h - SQLite's default VFS with one thing put right: a read that fails is an I/O error.
 *
 * On EIO, ENXIO and ERANGE SQLite's unix VFS gives SQLITE_IOERR_CORRUPTFS, which its virtual machine turns into SQLITE_CORRUPT: a disk
 * that fails for a moment would be told as a damaged bank. Here such a read is SQLITE_IOERR_READ, and failed reads are counted, for
 * SQLite's integrity check tells of them as if the pages were damaged. */
#ifndef IS_BANK_VFS_H
#define IS_BANK_VFS_H

/* The name to give to sqlite3_open_v2; NULL (SQLite's default) if it cannot be made. Stands on what is the default VFS right now. */
const char *bank_vfs(void);
/* The same that takes no locks, for a filesystem on which nothing can change. NULL: there is none. */
const char *bank_vfs_without_locks(void);
/* Reads that failed in this thread so far. */
unsigned bank_failed_reads(void);

#endif
