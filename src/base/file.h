/* file.h - all file I/O of vault and bank helpers goes through this vtable, so that tests can drop, tear, garble or refuse it.
 *
 * Paths are absolute or relative to the working folder. Functions return a status and leave a sentence (status.h). */
#ifndef IS_BASE_FILE_H
#define IS_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct is_file is_file;
typedef struct is_fs is_fs;

/* What an entry of a folder is. mode: the permission bits alone. */
typedef struct is_stat {
    uint64_t bytes;
    uint64_t version; /* another one when the file was changed or another took its name */
    uint32_t mode;
    bool is_dir, is_regular;
} is_stat;

enum { IS_OPEN_READ = 0, IS_OPEN_CREATE_NEW = 1 /* read-write, fails if it exists, mode 0600 */, IS_OPEN_RDWR = 2 };

struct is_fs {
    void *ctx;
    is_status (*open)(const is_fs *fs, const char *path, int mode, is_file **out);
    void (*close)(const is_fs *fs, is_file *f);
    is_status (*pread)(const is_fs *fs, is_file *f, void *p, size_t n, uint64_t offset); /* all n bytes or E_CORRUPT (short file) */
    is_status (*pwrite)(const is_fs *fs, is_file *f, const void *p, size_t n, uint64_t offset);
    is_status (*sync)(const is_fs *fs, is_file *f);
    is_status (*size)(const is_fs *fs, is_file *f, uint64_t *out);
    is_status (*drop_cache)(const is_fs *fs, is_file *f); /* ask the OS to forget its pages (benchmarks) */
    is_status (*rename)(const is_fs *fs, const char *from, const char *to);
    is_status (*unlink)(const is_fs *fs, const char *path);   /* a file, or a folder that is empty */
    is_status (*mkdirs)(const is_fs *fs, const char *path);   /* with parents, mode 0700; existing is fine */
    is_status (*sync_dir)(const is_fs *fs, const char *path);
    bool (*exists)(const is_fs *fs, const char *path);
    /* Calls each(name) for the entries of a folder, '.' and '..' left out; stops when it returns non-OK and returns that. */
    is_status (*list)(const is_fs *fs, const char *path, is_status (*each)(void *ctx, const char *name, bool is_dir), void *ctx);
    is_status (*stat)(const is_fs *fs, const char *path, is_stat *out); /* a link is not followed */
    is_status (*set_mode)(const is_fs *fs, const char *path, uint32_t mode);
    /* A second name for a file; E_UNSUPPORTED where there are none (another filesystem): copy it. Fails if `to` exists. */
    is_status (*link)(const is_fs *fs, const char *from, const char *to);
    /* A lock on the open file that ends with it, whoever ends it; E_BUSY at once if another holds one that is in the way. */
    is_status (*lock)(const is_fs *fs, is_file *f, bool exclusive);
};

const is_fs *is_fs_posix(void);
/* What the store is opened on: is_fs_posix(), unless a test has set another (NULL = back to posix; it must outlive what was
 * opened on it). Bank, vault and everything that touches a store's files asks here, never is_fs_posix() itself, so that one
 * switch puts the whole store behind the fault-injecting layer (SQLite has a switch of its own: the default VFS). */
const is_fs *is_fs_default(void);
void is_fs_set_default(const is_fs *fs);

/* Overwrites a file with zeros, syncs and unlinks it: what forgetting does to a segment. Missing is fine. */
is_status is_file_shred(const is_fs *fs, const char *path);
/* A folder with its parents, and each that was not there yet durably entered in its parent: what is later synced inside it would
 * otherwise go with it when the power does. */
is_status is_file_mkdirs(const is_fs *fs, const char *path);
/* Reads a whole file of at most max bytes into a new buffer (is_free), NUL-terminated. */
is_status is_file_read_all(const is_fs *fs, const char *path, size_t max, uint8_t **out, size_t *n);
/* Writes p to a temporary file beside path, syncs, renames over path, syncs the folder. */
is_status is_file_write_atomic(const is_fs *fs, const char *path, const void *p, size_t n);
/* "a/b" joined; is_free. NULL on out of memory. */
char *is_path_join(const char *a, const char *b);

#endif
