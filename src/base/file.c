/* file.c - what is the same on every filesystem: shred, whole reads, atomic writes, paths. */
#include "base/file.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

static _Atomic(const is_fs *) fs_default;

const is_fs *is_fs_default(void)
{
    const is_fs *fs = atomic_load(&fs_default);

    return fs ? fs : is_fs_posix();
}

void is_fs_set_default(const is_fs *fs)
{
    atomic_store(&fs_default, fs);
}

/* Cleaning up after a failure must not replace its sentence with one of its own. */
static is_status keep(is_status st, void (*clean)(const is_fs *fs, const char *path), const is_fs *fs, const char *path)
{
    char sentence[1024];

    snprintf(sentence, sizeof sentence, "%s", is_error());
    clean(fs, path);
    return is_fail(st, "%s", sentence);
}

static void unlink_quietly(const is_fs *fs, const char *path)
{
    (void)fs->unlink(fs, path);
}

static is_status overwrite(const is_fs *fs, is_file *f)
{
    static const uint8_t zeros[64 * 1024];
    uint64_t size = 0;

    IS_TRY(fs->size(fs, f, &size));
    for (uint64_t at = 0; at < size; at += sizeof zeros) {
        size_t n = size - at < sizeof zeros ? (size_t)(size - at) : sizeof zeros;

        IS_TRY(fs->pwrite(fs, f, zeros, n, at));
    }
    return fs->sync(fs, f);
}

is_status is_file_shred(const is_fs *fs, const char *path)
{
    is_file *f = NULL;
    is_status st, gone;

    if (!fs->exists(fs, path)) return INFERSCALE_OK;
    st = fs->open(fs, path, IS_OPEN_RDWR, &f);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK; /* someone else was faster */
    if (st == INFERSCALE_OK) {
        st = overwrite(fs, f);
        fs->close(fs, f);
    }
    /* A file that cannot be overwritten is still taken out of the namespace, and the failure reported. */
    if (st != INFERSCALE_OK) return keep(st, unlink_quietly, fs, path);
    gone = fs->unlink(fs, path);
    return gone == INFERSCALE_E_NOTFOUND ? INFERSCALE_OK : gone;
}

is_status is_file_read_all(const is_fs *fs, const char *path, size_t max, uint8_t **out, size_t *n)
{
    is_file *f = NULL;
    uint64_t size = 0;
    uint8_t *data = NULL;
    is_status st;

    *out = NULL;
    *n = 0;
    IS_TRY(fs->open(fs, path, IS_OPEN_READ, &f));
    IS_TRY_GOTO(st, done, fs->size(fs, f, &size));
    if (size > max) {
        st = is_fail(INFERSCALE_E_INVALID, "%s has %llu bytes, more than the %zu allowed here; is it the right file?", path,
                     (unsigned long long)size, max);
        goto done;
    }
    data = is_malloc((size_t)size + 1);
    if (!data) {
        st = is_fail(INFERSCALE_E_NOMEM, "no memory for the %llu bytes of %s; free some memory and try again",
                     (unsigned long long)size, path);
        goto done;
    }
    IS_TRY_GOTO(st, done, fs->pread(fs, f, data, (size_t)size, 0));
    data[size] = 0;
    *out = data;
    *n = (size_t)size;
    data = NULL;
done:
    is_free(data);
    fs->close(fs, f);
    return st;
}

/* The folder that holds path; is_free. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash) return is_strdup(".");
    return slash == path ? is_strdup("/") : is_strndup(path, (size_t)(slash - path));
}

/* From the first missing folder down: each is durable in its parent before the next is made in it. */
static is_status enter_missing(const is_fs *fs, const char *path)
{
    char *parent;
    is_status st;

    if (fs->exists(fs, path)) return INFERSCALE_OK;
    parent = parent_of(path);
    if (!parent) return is_fail(INFERSCALE_E_NOMEM, "no memory to make %s; free some memory and try again", path);
    st = strcmp(parent, path) != 0 ? enter_missing(fs, parent) : INFERSCALE_OK;
    if (st == INFERSCALE_OK) st = fs->mkdirs(fs, path);
    if (st == INFERSCALE_OK) st = fs->sync_dir(fs, parent);
    is_free(parent);
    return st;
}

is_status is_file_mkdirs(const is_fs *fs, const char *path)
{
    char *copy = is_strdup(path);
    size_t n = copy ? strlen(copy) : 0;
    is_status st;

    if (!copy) return is_fail(INFERSCALE_E_NOMEM, "no memory to make %s; free some memory and try again", path);
    while (n > 1 && copy[n - 1] == '/') copy[--n] = 0;
    st = enter_missing(fs, copy);
    is_free(copy);
    return st == INFERSCALE_OK ? fs->mkdirs(fs, path) : st; /* says so if what is there is no folder */
}

static char *temporary_name(const char *path)
{
    uint8_t salt[8];
    char hex[2 * sizeof salt + 1];
    size_t size = strlen(path) + sizeof ".tmp-" + sizeof hex;
    char *name = is_malloc(size);

    if (!name) return NULL;
    is_random(salt, sizeof salt);
    is_hex(salt, sizeof salt, hex);
    snprintf(name, size, "%s.tmp-%s", path, hex);
    return name;
}

static is_status write_new(const is_fs *fs, const char *path, const void *p, size_t n)
{
    is_file *f = NULL;
    is_status st;

    IS_TRY(fs->open(fs, path, IS_OPEN_CREATE_NEW, &f));
    st = fs->pwrite(fs, f, p, n, 0);
    if (st == INFERSCALE_OK) st = fs->sync(fs, f);
    fs->close(fs, f);
    return st == INFERSCALE_OK ? st : keep(st, unlink_quietly, fs, path);
}

is_status is_file_write_atomic(const is_fs *fs, const char *path, const void *p, size_t n)
{
    char *temporary = temporary_name(path), *parent = parent_of(path);
    is_status st = INFERSCALE_OK;

    if (!temporary || !parent) st = is_fail(INFERSCALE_E_NOMEM, "no memory to write %s; free some memory and try again", path);
    if (st == INFERSCALE_OK) st = write_new(fs, temporary, p, n);
    if (st == INFERSCALE_OK) {
        st = fs->rename(fs, temporary, path);
        if (st == INFERSCALE_OK) st = fs->sync_dir(fs, parent);
        else st = keep(st, unlink_quietly, fs, temporary);
    }
    is_free(temporary);
    is_free(parent);
    return st;
}

char *is_path_join(const char *a, const char *b)
{
    size_t na = strlen(a), size = na + strlen(b) + 2;
    bool slash = na > 0 && a[na - 1] != '/';
    char *joined = is_malloc(size);

    if (joined) snprintf(joined, size, "%s%s%s", a, slash ? "/" : "", b);
    return joined;
}
