/* file_posix.c - the file vtable on a POSIX system. Interrupted calls are repeated, short ones continued; descriptors are not
 * inherited by children; what is created belongs to its user alone (0600, 0700). */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

struct is_file {
    int fd;
    char path[]; /* for sentences */
};

static is_status posix_open(const is_fs *fs, const char *path, int mode, is_file **out)
{
    static const int flags[] = { [IS_OPEN_READ] = O_RDONLY, [IS_OPEN_CREATE_NEW] = O_RDWR | O_CREAT | O_EXCL,
                                 [IS_OPEN_RDWR] = O_RDWR | O_NOFOLLOW }; /* what a link points to is not ours to write */
    size_t n = strlen(path) + 1;
    is_file *f;
    int fd;

    *out = NULL;
    if (mode < 0 || mode > IS_OPEN_RDWR)
        return is_fail(INFERSCALE_E_INVALID, "%s: unknown open mode %d; use IS_OPEN_*", path, mode);
    f = is_malloc(sizeof *f + n);
    if (!f) return is_fail(INFERSCALE_E_NOMEM, "no memory to open %s; free some memory and try again", path);
    /* O_NONBLOCK means nothing to a file; a named pipe in its place would wait for its other end. */
    do fd = open(path, flags[mode] | O_CLOEXEC | O_NONBLOCK, 0600);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        is_status st = is_fail_errno("cannot %s %s", mode == IS_OPEN_CREATE_NEW ? "create" : "open", path);
        is_free(f);
        return st;
    }
    f->fd = fd;
    memcpy(f->path, path, n);
    *out = f;
    return INFERSCALE_OK;
}

static void posix_close(const is_fs *fs, is_file *f)
{
    if (!f) return;
    close(f->fd); /* not repeated on EINTR: Linux has closed it */
    is_free(f);
}

static is_status posix_pread(const is_fs *fs, is_file *f, void *p, size_t n, uint64_t offset)
{
    uint8_t *to = p;

    while (n > 0) {
        ssize_t got = pread(f->fd, to, n, (off_t)offset);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return is_fail_errno("cannot read %s", f->path);
        if (got == 0) {
            return is_fail(INFERSCALE_E_CORRUPT, "%s ends at byte %llu, %zu bytes too early; restore it or delete it", f->path,
                           (unsigned long long)offset, n);
        }
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return INFERSCALE_OK;
}

static is_status posix_pwrite(const is_fs *fs, is_file *f, const void *p, size_t n, uint64_t offset)
{
    const uint8_t *from = p;

    while (n > 0) {
        ssize_t put = pwrite(f->fd, from, n, (off_t)offset);

        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC; /* a device that takes nothing and says nothing */
        if (put <= 0) return is_fail_errno("cannot write %s", f->path);
        from += put;
        offset += (uint64_t)put;
        n -= (size_t)put;
    }
    return INFERSCALE_OK;
}

static int sync_fd(int fd)
{
    int rc;

    do rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    return rc;
}

static is_status posix_sync(const is_fs *fs, is_file *f)
{
    return sync_fd(f->fd) == 0 ? INFERSCALE_OK : is_fail_errno("cannot sync %s", f->path);
}

static is_status posix_size(const is_fs *fs, is_file *f, uint64_t *out)
{
    struct stat s;

    *out = 0;
    if (fstat(f->fd, &s) != 0) return is_fail_errno("cannot stat %s", f->path);
    if (!S_ISREG(s.st_mode)) return is_fail(INFERSCALE_E_INVALID, "%s is not a regular file; check the path", f->path);
    *out = (uint64_t)s.st_size;
    return INFERSCALE_OK;
}

static is_status posix_drop_cache(const is_fs *fs, is_file *f)
{
    int rc;

    if (sync_fd(f->fd) != 0 && errno != EROFS && errno != EINVAL) return is_fail_errno("cannot sync %s", f->path);
    rc = posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED); /* only clean pages can be dropped, hence the sync */
    if (rc == 0) return INFERSCALE_OK;
    errno = rc;
    return is_fail_errno("cannot drop the cached pages of %s", f->path);
}

static is_status posix_rename(const is_fs *fs, const char *from, const char *to)
{
    return rename(from, to) == 0 ? INFERSCALE_OK : is_fail_errno("cannot rename %s to %s", from, to);
}

static is_status posix_unlink(const is_fs *fs, const char *path)
{
    if (unlink(path) == 0 || (errno == EISDIR && rmdir(path) == 0)) return INFERSCALE_OK;
    return is_fail_errno("cannot delete %s", path);
}

static is_status make_one(const char *path)
{
    struct stat s;

    if (mkdir(path, 0700) == 0) return INFERSCALE_OK;
    /* read-only parent, folder is there */
    if (errno != EEXIST && stat(path, &s) == 0 && S_ISDIR(s.st_mode)) return INFERSCALE_OK;
    if (errno != EEXIST) return is_fail_errno("cannot make the folder %s", path);
    if (stat(path, &s) != 0) return is_fail_errno("cannot stat %s", path);
    if (!S_ISDIR(s.st_mode))
        return is_fail(INFERSCALE_E_IO, "%s exists and is not a folder; move it away or choose another path", path);
    return INFERSCALE_OK;
}

static is_status posix_mkdirs(const is_fs *fs, const char *path)
{
    char *copy = is_strdup(path);
    is_status st = INFERSCALE_OK;

    if (!copy) return is_fail(INFERSCALE_E_NOMEM, "no memory to make %s; free some memory and try again", path);
    for (char *at = copy; st == INFERSCALE_OK && (at = strchr(at + 1, '/')) != NULL;) {
        *at = 0;
        if (at[-1] != 0 && at[-1] != '/') st = make_one(copy);
        *at = '/';
    }
    if (st == INFERSCALE_OK) st = make_one(copy);
    is_free(copy);
    return st;
}

static is_status posix_sync_dir(const is_fs *fs, const char *path)
{
    is_status st = INFERSCALE_OK;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) return is_fail_errno("cannot open the folder %s", path);
    /* EINVAL: has no such thing */
    if (sync_fd(fd) != 0 && errno != EINVAL) st = is_fail_errno("cannot sync the folder %s", path);
    close(fd);
    return st;
}

static bool posix_exists(const is_fs *fs, const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0;
}

static bool entry_is_dir(DIR *d, const struct dirent *e)
{
    struct stat s;

    if (e->d_type != DT_UNKNOWN) return e->d_type == DT_DIR;
    return fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(s.st_mode);
}

static is_status posix_list(const is_fs *fs, const char *path, is_status (*each)(void *ctx, const char *name, bool is_dir),
                            void *ctx)
{
    is_status st = INFERSCALE_OK;
    struct dirent *e;
    DIR *d = opendir(path);

    if (!d) return is_fail_errno("cannot open the folder %s", path);
    for (;;) {
        errno = 0;
        e = readdir(d);
        if (!e && errno) st = is_fail_errno("cannot read the folder %s", path);
        if (!e) break;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        st = each(ctx, e->d_name, entry_is_dir(d, e));
        if (st != INFERSCALE_OK) break;
    }
    closedir(d);
    return st;
}

static is_status posix_stat(const is_fs *fs, const char *path, is_stat *out)
{
    struct stat s;

    memset(out, 0, sizeof *out);
    if (lstat(path, &s) != 0) return is_fail_errno("cannot stat %s", path);
    out->bytes = (uint64_t)s.st_size;
    out->version = ((uint64_t)s.st_ctim.tv_sec * 1000000000u + (uint64_t)s.st_ctim.tv_nsec) ^ (uint64_t)s.st_ino << 40;
    out->mode = s.st_mode & 07777;
    out->is_dir = S_ISDIR(s.st_mode);
    out->is_regular = S_ISREG(s.st_mode);
    return INFERSCALE_OK;
}

static is_status posix_set_mode(const is_fs *fs, const char *path, uint32_t mode)
{
    return chmod(path, (mode_t)mode) == 0 ? INFERSCALE_OK : is_fail_errno("cannot change the mode of %s", path);
}

static is_status posix_link(const is_fs *fs, const char *from, const char *to)
{
    if (link(from, to) == 0) return INFERSCALE_OK;
    if (errno == EXDEV || errno == EPERM || errno == EOPNOTSUPP || errno == EMLINK)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "%s cannot have a second name %s; copy it", from, to);
    return is_fail_errno("cannot link %s to %s", from, to);
}

static is_status posix_lock(const is_fs *fs, is_file *f, bool exclusive)
{
    int rc;

    do rc = flock(f->fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB);
    while (rc != 0 && errno == EINTR);
    if (rc == 0) return INFERSCALE_OK;
    if (errno == EWOULDBLOCK) return is_fail(INFERSCALE_E_BUSY, "%s is locked by another; try again", f->path);
    return is_fail_errno("cannot lock %s", f->path);
}

const is_fs *is_fs_posix(void)
{
    static const is_fs fs = {
        .open = posix_open, .close = posix_close, .pread = posix_pread, .pwrite = posix_pwrite, .sync = posix_sync,
        .size = posix_size, .drop_cache = posix_drop_cache, .rename = posix_rename, .unlink = posix_unlink,
        .mkdirs = posix_mkdirs, .sync_dir = posix_sync_dir, .exists = posix_exists, .list = posix_list,
        .stat = posix_stat, .set_mode = posix_set_mode, .link = posix_link, .lock = posix_lock,
    };

    return &fs;
}
