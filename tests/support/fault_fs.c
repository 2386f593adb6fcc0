/* fault_fs.c - the filesystem that fails on purpose. Thread safe: counters are atomic. */
#include "support/fault_fs.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct fault_fs {
    is_fs fs;
    const is_fs *real;
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

static is_status f_open(const is_fs *fs, const char *path, int mode, is_file **out)
{
    fault_fs *f = self(fs);
    is_status st;

    *out = NULL;
    if (fails(f, FAULT_OPEN)) return refuse(f, "open");
    st = f->real->open(f->real, path, mode, out);
    if (st == INFERSCALE_OK) f->open_files++;
    return st;
}

static void f_close(const is_fs *fs, is_file *file)
{
    fault_fs *f = self(fs);

    if (!file) return;
    f->open_files--;
    f->real->close(f->real, file);
}

static is_status f_pread(const is_fs *fs, is_file *file, void *p, size_t n, uint64_t offset)
{
    fault_fs *f = self(fs);
    bool now = fails(f, FAULT_READ);

    if (now && refuses(f)) return refuse(f, "read");
    IS_TRY(f->real->pread(f->real, file, p, n, offset));
    if (now && n) ((uint8_t *)p)[n / 2] ^= 0x40;
    return INFERSCALE_OK;
}

static is_status f_pwrite(const is_fs *fs, is_file *file, const void *p, size_t n, uint64_t offset)
{
    fault_fs *f = self(fs);
    uint8_t *copy;
    is_status st;

    if (!fails(f, FAULT_WRITE)) return f->real->pwrite(f->real, file, p, n, offset);
    if (f->kind == FAULT_TEAR || f->kind == FAULT_TEAR_SILENT) {
        IS_TRY(f->real->pwrite(f->real, file, p, n / 2, offset));
        return f->kind == FAULT_TEAR ? refuse(f, "write") : INFERSCALE_OK;
    }
    if (f->kind != FAULT_GARBLE) return refuse(f, "write");
    copy = malloc(n ? n : 1);
    if (!copy) abort();
    memcpy(copy, p, n);
    if (n) copy[n / 2] ^= 0x40;
    st = f->real->pwrite(f->real, file, copy, n, offset);
    free(copy);
    return st;
}

static is_status f_sync(const is_fs *fs, is_file *file)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_SYNC)) return refuses(f) ? refuse(f, "sync") : INFERSCALE_OK;
    return f->real->sync(f->real, file);
}

static is_status f_sync_dir(const is_fs *fs, const char *path)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_SYNC)) return refuses(f) ? refuse(f, "sync") : INFERSCALE_OK;
    return f->real->sync_dir(f->real, path);
}

static is_status f_rename(const is_fs *fs, const char *from, const char *to)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_RENAME)) return refuses(f) ? refuse(f, "rename") : INFERSCALE_OK;
    return f->real->rename(f->real, from, to);
}

static is_status f_unlink(const is_fs *fs, const char *path)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_UNLINK)) return refuses(f) ? refuse(f, "unlink") : INFERSCALE_OK;
    return f->real->unlink(f->real, path);
}

static is_status f_size(const is_fs *fs, is_file *file, uint64_t *out)
{
    return self(fs)->real->size(self(fs)->real, file, out);
}

static is_status f_drop_cache(const is_fs *fs, is_file *file)
{
    return self(fs)->real->drop_cache(self(fs)->real, file);
}

static is_status f_mkdirs(const is_fs *fs, const char *path)
{
    return self(fs)->real->mkdirs(self(fs)->real, path);
}

static bool f_exists(const is_fs *fs, const char *path)
{
    return self(fs)->real->exists(self(fs)->real, path);
}

static is_status f_list(const is_fs *fs, const char *path, is_status (*each)(void *ctx, const char *name, bool is_dir), void *ctx)
{
    return self(fs)->real->list(self(fs)->real, path, each, ctx);
}

static is_status f_stat(const is_fs *fs, const char *path, is_stat *out)
{
    return self(fs)->real->stat(self(fs)->real, path, out);
}

static is_status f_set_mode(const is_fs *fs, const char *path, uint32_t mode)
{
    return self(fs)->real->set_mode(self(fs)->real, path, mode);
}

static is_status f_link(const is_fs *fs, const char *from, const char *to)
{
    fault_fs *f = self(fs);

    if (fails(f, FAULT_WRITE)) return refuses(f) ? refuse(f, "link") : INFERSCALE_OK;
    return f->real->link(f->real, from, to);
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
                     .stat = f_stat, .set_mode = f_set_mode, .link = f_link };
    return f;
}

void fault_fs_free(fault_fs *f) { free(f); }
void fault_fs_sticky(fault_fs *f) { f->sticky = true; }
const is_fs *fault_fs_fs(fault_fs *f) { return &f->fs; }
bool fault_fs_hit(const fault_fs *f) { return f->hit; }
unsigned fault_fs_count(const fault_fs *f, enum fault_op op) { return f->count[op]; }
int fault_fs_open_files(const fault_fs *f) { return f->open_files; }
