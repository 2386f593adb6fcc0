/* backup_files.c - the files of a backup: manifest, folders, checked copies. */
#include "api/backup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/words.h"

enum { HEX = 2 * IS_HASH_BYTES, CHUNK = 256 * 1024, MANIFEST_MAX = 1 << 30, SEGMENT_MAX = 1 << 30 };

static const char first_line[] = "inferscale backup 1\n";

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for a backup; free some memory and try again");
}

void is_inside(const char *dir, const char *name, char out[IS_VAULT_PATH_BYTES])
{
    snprintf(out, IS_VAULT_PATH_BYTES, "%s/%s", dir, name);
}

void is_backup_path(const char *dir, const uint8_t name[IS_HASH_BYTES], char out[IS_VAULT_PATH_BYTES], char *folder)
{
    char hex[HEX + 1];

    is_hex(name, IS_HASH_BYTES, hex);
    snprintf(out, IS_VAULT_PATH_BYTES, "%s/vault/%.2s/%s.seg", dir, hex, hex);
    if (folder) snprintf(folder, IS_VAULT_PATH_BYTES, "%s/vault/%.2s", dir, hex);
}

/* ---- Manifest ------------------------------------------------------------------------------------------------------------------ */

void is_manifest_free(is_manifest *m)
{
    is_free(m->files);
    *m = (is_manifest){ 0 };
}

is_status is_manifest_write(const is_fs *fs, const char *dir, const is_manifest *m)
{
    char path[IS_VAULT_PATH_BYTES], hex[IS_HASH_HEX];
    uint8_t sum[IS_HASH_BYTES];
    is_buf b = IS_BUF_INIT;
    is_status st;

    is_hex(m->bank_sum, IS_HASH_BYTES, hex);
    is_buf_str(&b, first_line);
    is_buf_fmt(&b, "created %lld\nwritten-by %s\nbank %llu %s\n", (long long)m->created, INFERSCALE_VERSION,
               (unsigned long long)m->bank_bytes, hex);
    for (size_t i = 0; i < m->n; i++) {
        is_hex(m->files[i].name, IS_HASH_BYTES, hex);
        is_buf_fmt(&b, "kv %s %llu ", hex, (unsigned long long)m->files[i].bytes);
        if (m->files[i].has_sum) is_buf_fmt(&b, "%016llx\n", (unsigned long long)m->files[i].sum);
        else is_buf_str(&b, "-\n");
    }
    if (is_buf_ok(&b)) is_hash_once(NULL, b.data, b.len, sum);
    is_hex(sum, IS_HASH_BYTES, hex);
    is_buf_fmt(&b, "end %s\n", hex);
    is_inside(dir, IS_BACKUP_MANIFEST, path);
    st = is_buf_ok(&b) ? is_file_write_atomic(fs, path, b.data, b.len) : no_memory();
    is_buf_free(&b);
    return st;
}

/* A decimal number and the blank or line end after it. */
static bool read_number(const char **at, uint64_t *out)
{
    char *end;

    if (**at < '0' || **at > '9') return false;
    *out = strtoull(*at, &end, 10);
    if (*end != ' ' && *end != '\n') return false;
    *at = end + 1;
    return true;
}

static bool read_file_line(const char *at, is_backup_file *f)
{
    uint8_t sum[8];

    memset(f, 0, sizeof *f);
    if (!is_unhex(at, IS_HASH_BYTES, f->name) || at[HEX] != ' ') return false;
    at += HEX + 1;
    if (!read_number(&at, &f->bytes)) return false;
    if (strncmp(at, "-\n", 2) == 0) return true;
    if (!is_unhex(at, sizeof sum, sum) || at[16] != '\n') return false;
    f->has_sum = true;
    for (int i = 0; i < 8; i++) f->sum = f->sum << 8 | sum[i];
    return true;
}

static bool add_file(is_manifest *m, const is_backup_file *f)
{
    if ((m->n & (m->n - 1)) == 0) {
        is_backup_file *more = is_realloc(m->files, (m->n ? m->n * 2 : 1) * sizeof *more);

        if (!more) return false;
        m->files = more;
    }
    m->files[m->n++] = *f;
    return true;
}

static is_status damaged(const char *dir)
{
    return is_fail(INFERSCALE_E_CORRUPT, "the manifest of the backup in %s does not match its checksum; take another backup", dir);
}

/* text[n], NUL-terminated, whose checksum was right. */
static is_status parse(const char *dir, const char *text, is_manifest *m)
{
    bool has_bank = false;

    for (const char *line = strchr(text, '\n') + 1; *line; line = strchr(line, '\n') + 1) {
        const char *at = line;
        uint64_t created;
        is_backup_file f;

        if (strncmp(line, "created ", 8) == 0 && (at += 8, read_number(&at, &created))) {
            m->created = (int64_t)created;
        } else if (strncmp(line, "bank ", 5) == 0 && (at += 5, read_number(&at, &m->bank_bytes)) && is_unhex(at, IS_HASH_BYTES, m->bank_sum)) {
            has_bank = true;
        } else if (strncmp(line, "kv ", 3) == 0 && read_file_line(line + 3, &f)) {
            if (!add_file(m, &f)) return no_memory();
        } else if (strncmp(line, "written-by ", 11) != 0) {
            return damaged(dir);
        }
    }
    return has_bank ? INFERSCALE_OK : damaged(dir);
}

static is_status check(const char *dir, char *text, size_t n)
{
    uint8_t sum[IS_HASH_BYTES], said[IS_HASH_BYTES];
    const size_t end = 4 + HEX + 1; /* "end HEX\n" */
    char *last;

    if (n < sizeof first_line || strncmp(text, first_line, 18) != 0 || strlen(text) != n)
        return is_fail(INFERSCALE_E_FOREIGN, "%s holds no backup of InferScale; give the folder that %s wrote", dir, is_words(IS_CALL_BACKUP));
    if (strncmp(text, first_line, sizeof first_line - 1) != 0)
        return is_fail(INFERSCALE_E_FOREIGN, "the backup in %s was written by a newer InferScale; upgrade", dir);
    if (n < sizeof first_line + end || text[n - 1] != '\n') return damaged(dir);
    last = text + n - end;
    if (last[-1] != '\n' || strncmp(last, "end ", 4) != 0 || !is_unhex(last + 4, IS_HASH_BYTES, said)) return damaged(dir);
    is_hash_once(NULL, text, (size_t)(last - text), sum);
    if (memcmp(sum, said, sizeof sum) != 0) return damaged(dir);
    *last = 0;
    return INFERSCALE_OK;
}

is_status is_manifest_read(const is_fs *fs, const char *dir, is_manifest *out)
{
    char path[IS_VAULT_PATH_BYTES];
    uint8_t *text = NULL;
    size_t n = 0;
    is_status st;

    *out = (is_manifest){ 0 };
    is_inside(dir, IS_BACKUP_MANIFEST, path);
    if (!fs->exists(fs, path))
        return is_fail(INFERSCALE_E_NOTFOUND, "there is no whole backup in %s: its manifest, which is written last, is not there; give the "
                       "folder of another", dir);
    IS_TRY(is_file_read_all(fs, path, MANIFEST_MAX, &text, &n));
    st = check(dir, (char *)text, n);
    if (st == INFERSCALE_OK) st = parse(dir, (char *)text, out);
    if (st != INFERSCALE_OK) is_manifest_free(out);
    is_free(text);
    return st;
}

/* ---- Copies ---------------------------------------------------------------------------------------------------------------------- */

static is_status sum_chunks(const is_fs *fs, is_file *from, is_file *to, is_hash *h, uint64_t bytes)
{
    uint8_t *chunk = is_malloc(CHUNK);
    is_status st = chunk ? INFERSCALE_OK : no_memory();

    for (uint64_t at = 0; st == INFERSCALE_OK && at < bytes; at += CHUNK) {
        size_t n = bytes - at < CHUNK ? (size_t)(bytes - at) : CHUNK;

        st = fs->pread(fs, from, chunk, n, at);
        if (st != INFERSCALE_OK) break;
        is_hash_bytes(h, chunk, n);
        if (to) st = fs->pwrite(fs, to, chunk, n, at);
    }
    is_free(chunk);
    return st;
}

is_status is_file_sum(const is_fs *fs, const char *path, const char *to, uint8_t sum[IS_HASH_BYTES], uint64_t *bytes)
{
    is_file *in = NULL, *out = NULL;
    is_hash *h = NULL;
    is_status st;

    *bytes = 0;
    IS_TRY(is_hash_new(NULL, &h));
    st = fs->open(fs, path, IS_OPEN_READ, &in);
    if (st == INFERSCALE_OK) st = fs->size(fs, in, bytes);
    if (st == INFERSCALE_OK && to) st = fs->open(fs, to, IS_OPEN_CREATE_NEW, &out);
    if (st == INFERSCALE_OK) st = sum_chunks(fs, in, out, h, *bytes);
    if (st == INFERSCALE_OK && to) st = fs->sync(fs, out);
    if (in) fs->close(fs, in);
    if (out) fs->close(fs, out);
    is_hash_end(h, sum);
    return st;
}

is_status is_backup_read(const is_fs *fs, const char *path, const uint8_t name[IS_HASH_BYTES], uint8_t **data, size_t *n)
{
    is_segment *s = NULL;
    is_status st;

    IS_TRY(is_file_read_all(fs, path, SEGMENT_MAX, data, n));
    st = is_segment_parse(*data, *n, &s);
    if (st == INFERSCALE_OK && memcmp(is_segment_info(s)->name, name, IS_HASH_BYTES) != 0)
        st = is_fail(INFERSCALE_E_FOREIGN, "%s holds another segment; its facts are encoded again", path);
    is_segment_unref(s);
    if (st == INFERSCALE_OK) return st;
    is_free(*data);
    *data = NULL;
    return st;
}

is_status is_backup_put(const is_fs *fs, const char *dir, const uint8_t name[IS_HASH_BYTES], const void *data, size_t n)
{
    char path[IS_VAULT_PATH_BYTES], folder[IS_VAULT_PATH_BYTES];
    is_file *f = NULL;
    is_status st;

    is_backup_path(dir, name, path, folder);
    if (!fs->exists(fs, folder)) IS_TRY(is_file_mkdirs(fs, folder));
    IS_TRY(fs->open(fs, path, IS_OPEN_CREATE_NEW, &f));
    st = fs->pwrite(fs, f, data, n, 0);
    if (st == INFERSCALE_OK) st = fs->sync(fs, f);
    fs->close(fs, f);
    return st;
}

/* ---- Folders ----------------------------------------------------------------------------------------------------------------------- */

typedef struct folder {
    const is_fs *fs;
    const char *path;
    const char *mark, *whole;
    size_t n_entries;
    bool has_mark, marked, is_whole;
} folder;

static is_status look(void *ctx, const char *name, bool is_dir)
{
    folder *f = ctx;

    f->n_entries++;
    f->has_mark = f->has_mark || strcmp(name, f->mark) == 0;
    f->marked = f->marked || strncmp(name, f->mark, strlen(f->mark)) == 0; /* also one that was being written */
    f->is_whole = f->is_whole || strcmp(name, f->whole) == 0;
    return INFERSCALE_OK;
}

/* Unlinked, not overwritten: a linked file is the store's own. */
static is_status clear_kv(void *ctx, const char *name, bool is_dir)
{
    folder *f = ctx, inner = *f;
    char path[IS_VAULT_PATH_BYTES];
    size_t n = strlen(name);

    snprintf(path, sizeof path, "%s/%.256s", f->path, name);
    if (is_dir && n == 2) {
        inner.path = path;
        return f->fs->list(f->fs, path, clear_kv, &inner);
    }
    return !is_dir && n == HEX + 4 && strcmp(name + HEX, ".seg") == 0 ? f->fs->unlink(f->fs, path) : INFERSCALE_OK;
}

/* What is_file_write_atomic was writing. */
static is_status clear_temporary(void *ctx, const char *name, bool is_dir)
{
    const folder *f = ctx;
    size_t mark = strlen(f->mark), whole = strlen(f->whole);
    char path[IS_VAULT_PATH_BYTES];

    if (is_dir || !((strncmp(name, f->mark, mark) == 0 && strncmp(name + mark, ".tmp-", 5) == 0) ||
                    (strncmp(name, f->whole, whole) == 0 && strncmp(name + whole, ".tmp-", 5) == 0)))
        return INFERSCALE_OK;
    snprintf(path, sizeof path, "%s/%.256s", f->path, name);
    return f->fs->unlink(f->fs, path);
}

static is_status clear_interrupted(folder *f)
{
    static const char *const names[] = { "bank.sqlite", "bank.sqlite-wal", "bank.sqlite-shm", "bank.sqlite-journal", "bank.sqlite.part" };
    char path[IS_VAULT_PATH_BYTES];
    folder vault = *f;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        is_inside(f->path, names[i], path);
        if (f->fs->exists(f->fs, path)) IS_TRY(f->fs->unlink(f->fs, path));
    }
    IS_TRY(f->fs->list(f->fs, f->path, clear_temporary, f));
    is_inside(f->path, "vault", path);
    vault.path = path;
    return f->fs->exists(f->fs, path) ? f->fs->list(f->fs, path, clear_kv, &vault) : INFERSCALE_OK;
}

is_status is_folder_claim(const is_fs *fs, const char *dir, const char *mark, const char *whole)
{
    folder f = { .fs = fs, .path = dir, .mark = mark, .whole = whole };
    char path[IS_VAULT_PATH_BYTES];

    if (!dir || !*dir || strlen(dir) > IS_VAULT_PATH_BYTES - 256)
        return is_fail(INFERSCALE_E_INVALID, "the folder must have a name of 1 to %d bytes; give another", IS_VAULT_PATH_BYTES - 256);
    IS_TRY(is_file_mkdirs(fs, dir));
    IS_TRY(fs->list(fs, dir, look, &f));
    if (f.n_entries && (f.is_whole || !f.marked))
        return is_fail(INFERSCALE_E_INVALID, "%s is not empty, and nothing is ever overwritten; give a new folder, or empty that one", dir);
    is_inside(dir, mark, path);
    if (f.marked) IS_TRY(clear_interrupted(&f));
    return f.has_mark ? INFERSCALE_OK : is_file_write_atomic(fs, path, "not whole yet\n", 14);
}

typedef struct sync_job { const is_fs *fs; const char *path; } sync_job;

static is_status sync_fan(void *ctx, const char *name, bool is_dir)
{
    const sync_job *j = ctx;
    char path[IS_VAULT_PATH_BYTES];

    if (!is_dir) return INFERSCALE_OK;
    snprintf(path, sizeof path, "%s/%.256s", j->path, name);
    return j->fs->sync_dir(j->fs, path);
}

is_status is_backup_sync(const is_fs *fs, const char *dir)
{
    char path[IS_VAULT_PATH_BYTES];
    sync_job j = { fs, path };

    is_inside(dir, "vault", path);
    if (fs->exists(fs, path)) IS_TRY(fs->list(fs, path, sync_fan, &j));
    return fs->sync_dir(fs, dir);
}
