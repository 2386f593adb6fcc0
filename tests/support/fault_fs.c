/* fault_fs.c - the filesystem that fails on purpose. Thread safe: counters are atomic. */
#include "support/fault_fs.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Ours stands before the real one, which knows nothing of it: the type is opaque in file.h. */
struct is_file {
    is_file *real;
    fault_inode *inode;      /* NULL: not on the disk */
    bool ours;               /* ticks the clock */
};

struct fault_fs {
    is_fs fs;
    const is_fs *real;
    fault_clock *clock;      /* NULL: the nth of one sort, below */
    fault_disk *disk;
    enum fault_op op;
    enum fault_kind kind;
    unsigned nth;
    bool sticky;
    atomic_bool hit;
    atomic_uint count[FAULT_OPS];
    atomic_int open_files;
};

static fault_fs *self(const is_fs *fs)
{
    return fs->ctx;
}

static bool touches(const fault_fs *f, const char *path)
{
    return !f->disk || fault_disk_has(f->disk, path);
}

/* Counts an operation; true if it is the one to fail. */
static bool fails(fault_fs *f, enum fault_op op)
{
    unsigned seen = atomic_fetch_add(&f->count[op], 1) + 1;

    if (op != f->op || f->nth == 0 || (f->sticky ? seen < f->nth : seen != f->nth)) return false;
    f->hit = true;
    return true;
}

static bool refuses(const fault_fs *f)
{
    return f->kind == FAULT_ENOSPC || f->kind == FAULT_EIO || f->kind == FAULT_TEAR;
}

static is_status refuse(const fault_fs *f, const char *what)
{
    if (f->kind == FAULT_ENOSPC) return is_fail(INFERSCALE_E_FULL, "injected: no space left to %s; free some space", what);
    return is_fail(INFERSCALE_E_IO, "injected: input/output error at %s; check the disk", what);
}

/* The clock's say, as the system would put it. */
static is_status tick(const fault_fs *f, bool ours, enum fault_op op, const char *what)
{
    int e = f->clock && ours ? fault_clock_tick(f->clock, op) : 0;

    if (!e) return INFERSCALE_OK;
    errno = e;
    return is_fail_errno("injected: cannot %s", what);
}

static is_status f_open(const is_fs *fs, const char *path, int mode, is_file **out)
{
    fault_fs *f = self(fs);
    is_file *file;
    is_status st;

    *out = NULL;
    IS_TRY(tick(f, touches(f, path), FAULT_OPEN, "open"));
    if (fails(f, FAULT_OPEN)) return refuse(f, "open");
    file = calloc(1, sizeof *file);
    if (!file) abort();
    file->ours = touches(f, path);
    st = f->real->open(f->real, path, mode, &file->real);
    if (st != INFERSCALE_OK) {
        free(file);
        return st;
    }
    if (f->disk && file->ours && mode != IS_OPEN_READ) file->inode = fault_disk_open(f->disk, path, mode == IS_OPEN_CREATE_NEW);
    f->open_files++;
    *out = file;
    return INFERSCALE_OK;
}

static void f_close(const is_fs *fs, is_file *file)
{
    fault_fs *f = self(fs);

    if (!file) return;
    f->open_files--;
    f->real->close(f->real, file->real);
    free(file);
}

static is_status f_pread(const is_fs *fs, is_file *file, void *p, size_t n, uint64_t offset)
{
    fault_fs *f = self(fs);
    bool now = fails(f, FAULT_READ);

    if (now && refuses(f)) return refuse(f, "read");
    IS_TRY(tick(f, file->ours, FAULT_READ, "read"));
    IS_TRY(f->real->pread(f->real, file->real, p, n, offset));
    if (now && n) ((uint8_t *)p)[n / 2] ^= 0x40;
    return INFERSCALE_OK;
}

static is_status write_through(fault_fs *f, is_file *file, const void *p, size_t n, uint64_t offset)
{
    IS_TRY(tick(f, file->ours, FAULT_WRITE, "write"));
    IS_TRY(f->real->pwrite(f->real, file->real, p, n, offset));
    if (file->inode) fault_disk_write(f->disk, file->inode, p, n, offset);
    return INFERSCALE_OK;
}

static is_status f_pwrite(const is_fs *fs, is_file *file, const void *p, size_t n, uint64_t offset)
{
    fault_fs *f = self(fs);
    uint8_t *copy;
    is_status st;

    if (!fails(f, FAULT_WRITE)) return write_through(f, file, p, n, offset);
    if (f->kind == FAULT_TEAR || f->kind == FAULT_TEAR_SILENT) {
        IS_TRY(write_through(f, file, p, n / 2, offset));
        return f->kind == FAULT_TEAR ? refuse(f, "write") : INFERSCALE_OK;
    }
    if (f->kind != FAULT_GARBLE) return refuse(f, "write");
    copy = malloc(n ? n : 1);
    if (!copy) abort();
    memcpy(copy, p, n);
    if (n) copy[n / 2] ^= 0x40;
    st = write_through(f, file, copy, n, offset);
    free(copy);
    return st;
}

static is_status f_sync(const is_fs *fs, is_file *file)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_SYNC)) return refuses(f) ? refuse(f, "sync") : INFERSCALE_OK;
    if (file->inode) fault_disk_point(f->disk);
    IS_TRY(tick(f, file->ours, FAULT_SYNC, "sync"));
    if (!f->clock) return f->real->sync(f->real, file->real);
    if (file->inode) fault_disk_sync(f->disk, file->inode, false); /* the machine stays on: no real sync is needed */
    return INFERSCALE_OK;
}

static is_status f_sync_dir(const is_fs *fs, const char *path)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_SYNC)) return refuses(f) ? refuse(f, "sync") : INFERSCALE_OK;
    if (f->disk && touches(f, path)) fault_disk_point(f->disk);
    IS_TRY(tick(f, touches(f, path), FAULT_SYNC, "sync the folder"));
    if (!f->clock) return f->real->sync_dir(f->real, path);
    if (f->disk && touches(f, path)) fault_disk_sync_dir(f->disk, path);
    return INFERSCALE_OK;
}

static is_status f_rename(const is_fs *fs, const char *from, const char *to)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_RENAME)) return refuses(f) ? refuse(f, "rename") : INFERSCALE_OK;
    IS_TRY(tick(f, touches(f, to), FAULT_RENAME, "rename"));
    IS_TRY(f->real->rename(f->real, from, to));
    if (f->disk && touches(f, to)) fault_disk_rename(f->disk, from, to);
    return INFERSCALE_OK;
}

static is_status f_unlink(const is_fs *fs, const char *path)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_UNLINK)) return refuses(f) ? refuse(f, "unlink") : INFERSCALE_OK;
    IS_TRY(tick(f, touches(f, path), FAULT_UNLINK, "delete"));
    IS_TRY(f->real->unlink(f->real, path));
    if (f->disk && touches(f, path)) fault_disk_unlink(f->disk, path, false);
    return INFERSCALE_OK;
}

static is_status f_size(const is_fs *fs, is_file *file, uint64_t *out)
{
    IS_TRY(tick(self(fs), file->ours, FAULT_READ, "stat"));
    return self(fs)->real->size(self(fs)->real, file->real, out);
}

static is_status f_drop_cache(const is_fs *fs, is_file *file)
{
    return self(fs)->real->drop_cache(self(fs)->real, file->real);
}

static is_status f_mkdirs(const is_fs *fs, const char *path)
{
    fault_fs *f = self(fs);

    IS_TRY(tick(f, touches(f, path), FAULT_WRITE, "make the folder"));
    IS_TRY(f->real->mkdirs(f->real, path));
    if (f->disk && touches(f, path)) fault_disk_mkdirs(f->disk, path);
    return INFERSCALE_OK;
}

static bool f_exists(const is_fs *fs, const char *path)
{
    return self(fs)->real->exists(self(fs)->real, path);
}

static is_status f_list(const is_fs *fs, const char *path, is_status (*each)(void *ctx, const char *name, bool is_dir), void *ctx)
{
    IS_TRY(tick(self(fs), touches(self(fs), path), FAULT_READ, "list the folder"));
    return self(fs)->real->list(self(fs)->real, path, each, ctx);
}

static is_status f_stat(const is_fs *fs, const char *path, is_stat *out)
{
    IS_TRY(tick(self(fs), touches(self(fs), path), FAULT_READ, "stat"));
    return self(fs)->real->stat(self(fs)->real, path, out);
}

static is_status f_set_mode(const is_fs *fs, const char *path, uint32_t mode)
{
    IS_TRY(tick(self(fs), touches(self(fs), path), FAULT_WRITE, "set the mode"));
    return self(fs)->real->set_mode(self(fs)->real, path, mode);
}

static is_status f_link(const is_fs *fs, const char *from, const char *to)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_WRITE)) return refuses(f) ? refuse(f, "link") : INFERSCALE_OK;
    IS_TRY(tick(f, touches(f, to), FAULT_WRITE, "link"));
    IS_TRY(f->real->link(f->real, from, to));
    if (f->disk && touches(f, to)) fault_disk_link(f->disk, from, to);
    return INFERSCALE_OK;
}

static is_status f_lock(const is_fs *fs, is_file *f, bool exclusive)
{
    return self(fs)->real->lock(self(fs)->real, f->real, exclusive);
}

fault_fs *fault_fs_new(enum fault_op op, enum fault_kind kind, unsigned nth)
{
    fault_fs *f = calloc(1, sizeof *f);

    if (!f) abort();
    f->real = is_fs_posix();
    f->op = op;
    f->kind = kind;
    f->nth = nth;
    f->fs = (is_fs){ .ctx = f, .open = f_open, .close = f_close, .pread = f_pread, .pwrite = f_pwrite, .sync = f_sync,
                     .size = f_size, .drop_cache = f_drop_cache, .rename = f_rename, .unlink = f_unlink, .mkdirs = f_mkdirs,
                     .sync_dir = f_sync_dir, .exists = f_exists, .list = f_list,
                     .stat = f_stat, .set_mode = f_set_mode, .link = f_link, .lock = f_lock };
    return f;
}

fault_fs *fault_fs_on(fault_clock *clock, fault_disk *disk)
{
    fault_fs *f = fault_fs_new(FAULT_WRITE, FAULT_EIO, 0);

    f->clock = clock;
    f->disk = disk;
    return f;
}

void fault_fs_free(fault_fs *f) { free(f); }
void fault_fs_sticky(fault_fs *f) { f->sticky = true; }
const is_fs *fault_fs_fs(fault_fs *f) { return &f->fs; }
bool fault_fs_hit(const fault_fs *f) { return f->hit; }
unsigned fault_fs_count(const fault_fs *f, enum fault_op op) { return f->count[op]; }
int fault_fs_open_files(const fault_fs *f) { return f->open_files; }
