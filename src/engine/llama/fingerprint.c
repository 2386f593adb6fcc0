/* fingerprint.c - what an engine's KV depends on, and small things kept in the cache folder.
 *
 * Reading a model of gigabytes to hash it takes seconds, so the hash is kept under the file's identity: device, inode, size and
 * times. A file changed in place gets a new change time, so a stale hash cannot be picked up. */
#include "engine/llama/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* "CACHE_DIR/kind-HEX"; is_free; NULL on out of memory. */
static char *cache_path(const char *dir, const char *kind, const uint8_t key[IS_HASH_BYTES])
{
    char hex[IS_HASH_HEX], name[128];

    is_hex(key, IS_HASH_BYTES, hex);
    snprintf(name, sizeof name, "%s-%s", kind, hex);
    return is_path_join(dir, name);
}

bool is_cache_read(const char *cache_dir, const char *kind, const uint8_t key[IS_HASH_BYTES], char *out, size_t cap)
{
    char *path = cache_dir ? cache_path(cache_dir, kind, key) : NULL;
    const is_fs *fs = is_fs_posix();
    uint8_t *data = NULL;
    size_t n = 0;
    bool ok = false;

    if (path && fs->exists(fs, path) && is_file_read_all(fs, path, cap - 1, &data, &n) == INFERSCALE_OK) {
        memcpy(out, data, n);
        out[n] = 0;
        ok = true;
    }
    is_free(data);
    is_free(path);
    return ok;
}

/* Failing to keep something only costs time at the next load. */
void is_cache_write(const char *cache_dir, const char *kind, const uint8_t key[IS_HASH_BYTES], const char *text)
{
    char *path = cache_dir ? cache_path(cache_dir, kind, key) : NULL;
    const is_fs *fs = is_fs_posix();

    if (path && (fs->mkdirs(fs, cache_dir) != INFERSCALE_OK || is_file_write_atomic(fs, path, text,
        strlen(text)) != INFERSCALE_OK))
        is_log(IS_LOG_INFO, "the cache folder %s cannot be written: %s", cache_dir, is_error());
    is_free(path);
}

/* Key of a file's identity. false = it cannot be had. */
static bool identity(const char *path, uint8_t key[IS_HASH_BYTES])
{
    struct stat sb;
    is_hash *h;

    if (stat(path, &sb) != 0 || is_hash_new(NULL, &h) != INFERSCALE_OK) return false;
    is_hash_u64(h, (uint64_t)sb.st_dev);
    is_hash_u64(h, (uint64_t)sb.st_ino);
    is_hash_u64(h, (uint64_t)sb.st_size);
    is_hash_u64(h, (uint64_t)sb.st_mtim.tv_sec);
    is_hash_u64(h, (uint64_t)sb.st_mtim.tv_nsec);
    is_hash_u64(h, (uint64_t)sb.st_ctim.tv_sec);
    is_hash_u64(h, (uint64_t)sb.st_ctim.tv_nsec);
    is_hash_end(h, key);
    return true;
}

static is_status hash_content(const char *path, const volatile int *cancel, uint8_t out[IS_HASH_BYTES])
{
    enum { CHUNK = 1 << 20 };
    uint8_t *buf = is_malloc(CHUNK);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    is_hash *h = NULL;
    ssize_t n = -1;
    bool off = false, memory = buf && is_hash_new(NULL, &h) == INFERSCALE_OK;

    if (memory && fd >= 0)
        while (!(off = cancel && __atomic_load_n(cancel, __ATOMIC_ACQUIRE)) && (n = read(fd, buf, CHUNK)) > 0) is_hash_field(h, buf, (size_t)n);
    is_hash_end(h, out);
    if (fd >= 0) close(fd);
    is_free(buf);
    if (!memory) return is_fail(INFERSCALE_E_NOMEM, "out of memory while reading the model file %s; free some and try again", path);
    if (off) return is_fail(INFERSCALE_E_CANCELLED, "called off while the model file was read");
    if (n < 0) return is_fail(INFERSCALE_E_MODEL, "cannot read the model file %s (%s); check the disk", path, strerror(errno));
    return INFERSCALE_OK;
}

static bool unhex(const char *s, uint8_t out[IS_HASH_BYTES])
{
    for (int i = 0; i < IS_HASH_BYTES; i++) {
        char pair[3] = { s[2 * i], s[2 * i] ? s[2 * i + 1] : 0, 0 }, *end;

        out[i] = (uint8_t)strtoul(pair, &end, 16);
        if (end != pair + 2) return false;
    }
    return s[2 * IS_HASH_BYTES] == 0;
}

is_status is_file_fingerprint(const char *path, const char *cache_dir, const volatile int *cancel, uint8_t out[IS_HASH_BYTES])
{
    uint8_t key[IS_HASH_BYTES];
    char text[IS_HASH_HEX + 8];
    bool known = identity(path, key);

    if (known && is_cache_read(cache_dir, "file", key, text, sizeof text) && unhex(text, out)) return INFERSCALE_OK;
    IS_TRY(hash_content(path, cancel, out));
    is_hex(out, IS_HASH_BYTES, text);
    if (known) is_cache_write(cache_dir, "file", key, text);
    return INFERSCALE_OK;
}

is_status is_engine_fingerprint(is_llama *e)
{
    is_buf b = IS_BUF_INIT;
    is_hash *h;

    IS_TRY(is_hash_new(NULL, &h));
    is_hash_field(h, "llama-kv-1", 10);
    is_hash_field(h, e->file_hash, IS_HASH_BYTES);
    if (e->geometry) {
        is_geometry_write(e->geometry, &b);
        is_hash_field(h, b.data, b.len);
    }
    is_hash_end(h, e->info.fingerprint);
    if (!is_buf_ok(&b)) {
        is_buf_free(&b);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for the model's fingerprint");
    }
    is_buf_free(&b);
    return INFERSCALE_OK;
}
