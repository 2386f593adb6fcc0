/* known.c - records of what was loaded. The file has a line for each: SETTINGS MODEL EMBEDDER, the same
 * model and header in each codec, FILES; all hashes in hex, the newest first. FILES is of the files'
 * identities; their names are a second line, so that they can be looked at again. */
#include "api/known.h"
#include "api/store_codec.h"

#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

enum { RECORDS_MAX = 16, FILE_MAX_BYTES = 1 << 20, FIELDS = 4 + IS_CODECS, HEX = 2 * IS_HASH_BYTES, LINE = FIELDS * (HEX + 1) };

typedef struct record {
    uint8_t settings[IS_HASH_BYTES], model[IS_HASH_BYTES], embedder[IS_HASH_BYTES];
    uint8_t in_codec[IS_CODECS][IS_HASH_BYTES], files[IS_HASH_BYTES];
} record;

/* ---- Identities ---------------------------------------------------------------------------------------------------------------- */

static void hash_string(is_hash *h, const char *s)
{
    is_hash_field(h, s ? s : "", s ? strlen(s) : 0);
}

/* All that decides which files are loaded and what they then are. False: it cannot be said. */
static bool hash_settings(inferscale *is, uint8_t out[IS_HASH_BYTES])
{
    char *model = NULL, *embedder = NULL, codec[IS_BANK_CODEC_BYTES];
    bool remote = false, ok;
    is_hash *h;

    ok = !is_handle_is_remote(is) && is_handle_model_path(is, &model) == INFERSCALE_OK &&
         is_handle_embedder_path(is, &embedder, &remote) == INFERSCALE_OK && is_hash_new(NULL, &h) == INFERSCALE_OK;
    if (ok) {
        is_handle_codec_name(is, codec);
        hash_string(h, INFERSCALE_VERSION);
        hash_string(h, is->engine_name);
        hash_string(h, is->plugin_dir);
        hash_string(h, getenv("INFERSCALE_PLUGINS"));
        hash_string(h, getenv("INFERSCALE_MOCK"));
        hash_string(h, model);
        hash_string(h, remote ? "" : embedder); /* one elsewhere is asked itself */
        hash_string(h, is->system);
        hash_string(h, codec);
        is_hash_u64(h, is->n_ctx);
        is_hash_u64(h, (uint64_t)is->flash_attention);
        is_hash_end(h, out);
    }
    is_free(model);
    is_free(embedder);
    return ok;
}

static bool hash_file(is_hash *h, const char *path)
{
    const is_fs *fs = is_fs_posix();
    char real[PATH_MAX];
    is_stat s;

    if (!realpath(path, real) || fs->stat(fs, real, &s) != INFERSCALE_OK) return false;
    hash_string(h, real);
    is_hash_u64(h, s.bytes);
    is_hash_u64(h, s.version);
    return true;
}

/* names: paths, each ended by a tab. */
static bool hash_files(const char *names, uint8_t out[IS_HASH_BYTES])
{
    char path[PATH_MAX];
    bool ok = true;
    is_hash *h;

    if (is_hash_new(NULL, &h) != INFERSCALE_OK) return false;
    for (const char *s = names, *end; ok && (end = strchr(s, '\t')); s = end + 1) {
        ok = (size_t)(end - s) < sizeof path;
        if (!ok) break;
        memcpy(path, s, (size_t)(end - s));
        path[end - s] = '\0';
        ok = hash_file(h, path);
    }
    is_hash_end(h, out);
    return ok;
}

static void add_name(is_buf *names, const char *path)
{
    if (path && *path && !strpbrk(path, "\t\n")) is_buf_fmt(names, "%s\t", path);
}

/* Ours and the engines' libraries of those that this process has mapped. */
static int add_library(struct dl_phdr_info *info, size_t size, void *ctx)
{
    static const char *const parts[] = { "inferscale", "llama", "ggml" };
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;

    (void)size;
    for (int i = 0; slash && i < 3; i++)
        if (strstr(slash, parts[i])) {
            add_name(ctx, info->dlpi_name);
            break;
        }
    return 0;
}

/* is_free'd; NULL = out of memory, or a file whose name cannot be written down. */
static char *names_of_loaded(const inferscale *is)
{
    char *model = NULL, *embedder = NULL, self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    is_buf b = IS_BUF_INIT;
    bool remote = false;

    if (n > 0) {
        self[n] = '\0';
        add_name(&b, self);
    }
    if (is_handle_model_path(is, &model) == INFERSCALE_OK && is_fs_posix()->exists(is_fs_posix(), model)) add_name(&b, model);
    if (is_handle_embedder_path(is, &embedder, &remote) == INFERSCALE_OK && !remote && is_fs_posix()->exists(is_fs_posix(), embedder))
        add_name(&b, embedder);
    dl_iterate_phdr(add_library, &b);
    is_free(model);
    is_free(embedder);
    return is_buf_take(&b);
}

/* ---- The file ------------------------------------------------------------------------------------------------------------------ */

/* NULL: there is none, or no memory for its name; either way the models are loaded. */
static char *file_path(void)
{
    char *folder = NULL, *path = NULL;

    if (is_cache_folder("tuning", &folder) == INFERSCALE_OK && folder) path = is_path_join(folder, "known");
    is_free(folder);
    return path;
}

/* is_free'd, NUL-terminated; NULL = there is none. */
static char *read_file(const char *path)
{
    uint8_t *text = NULL;
    size_t n = 0;

    if (!path || !is_fs_posix()->exists(is_fs_posix(), path)) return NULL;
    if (is_file_read_all(is_fs_posix(), path, FILE_MAX_BYTES, &text, &n) != INFERSCALE_OK) return NULL;
    if (strlen((char *)text) == n) return (char *)text;
    is_free(text);
    return NULL;
}

static bool unhex(const char *s, uint8_t out[IS_HASH_BYTES])
{
    for (int i = 0; i < IS_HASH_BYTES; i++) {
        char pair[3] = { s[2 * i], s[2 * i + 1], 0 }, *end;

        out[i] = (uint8_t)strtoul(pair, &end, 16);
        if (end != pair + 2) return false;
    }
    return true;
}

/* The line's fields in their order; a buffer of each. */
static void fields_of(record *r, uint8_t *fields[FIELDS])
{
    int n = 0;

    fields[n++] = r->settings;
    fields[n++] = r->model;
    fields[n++] = r->embedder;
    for (int codec = 0; codec < IS_CODECS; codec++) fields[n++] = r->in_codec[codec];
    fields[n] = r->files;
}

static bool read_record(const char *line, record *out)
{
    uint8_t *fields[FIELDS];
    bool ok = true;

    fields_of(out, fields);
    for (int i = 0; i < FIELDS && ok; i++) ok = unhex(line + i * (HEX + 1), fields[i]);
    return ok;
}

/* The record of these settings in the file's text, and where its names begin and end. */
static bool find(const char *text, const uint8_t settings[IS_HASH_BYTES], record *out, const char **names, size_t *n)
{
    char key[HEX + 1];
    const char *line = text, *end, *next;

    is_hex(settings, IS_HASH_BYTES, key);
    for (; (end = strchr(line, '\n')) && (next = strchr(end + 1, '\n')); line = next + 1) {
        if (end - line != LINE || strncmp(line, key, HEX) != 0) continue;
        *names = end + 1;
        *n = (size_t)(next - *names);
        return read_record(line, out);
    }
    return false;
}

static void add_record(is_buf *b, record *r, const char *names)
{
    uint8_t *fields[FIELDS];
    char hex[HEX + 1];

    fields_of(r, fields);
    for (int i = 0; i < FIELDS; i++) {
        is_hex(fields[i], IS_HASH_BYTES, hex);
        is_buf_fmt(b, "%s ", hex);
    }
    is_buf_fmt(b, "\n%s\n", names);
}

/* The records of other settings, as many as there is room for. */
static void add_others(is_buf *b, const char *text, const uint8_t settings[IS_HASH_BYTES])
{
    char key[HEX + 1];
    const char *line = text, *end, *next;

    is_hex(settings, IS_HASH_BYTES, key);
    for (int n = 1; n < RECORDS_MAX && (end = strchr(line, '\n')) && (next = strchr(end + 1, '\n')); line = next + 1) {
        if (end - line != LINE || strncmp(line, key, HEX) == 0) continue;
        is_buf_add(b, line, (size_t)(next + 1 - line));
        n++;
    }
}

void is_known_keep(inferscale *is)
{
    const is_profile *profile = is_handle_profile(is);
    is_embedder *embedder = is_handle_embedder_if_loaded(is);
    char *path = NULL, *names = NULL, *text = NULL;
    is_buf b = IS_BUF_INIT;
    record r;

    if (!profile || !embedder || !is_engine_geometry(is->engine) || !hash_settings(is, r.settings)) return;
    memcpy(r.model, profile->fingerprint, IS_HASH_BYTES);
    memcpy(r.in_codec, profile->in_codec, sizeof r.in_codec);
    memcpy(r.embedder, is_embedder_fingerprint(embedder), IS_HASH_BYTES);
    path = file_path();
    names = names_of_loaded(is);
    if (path && names && hash_files(names, r.files)) {
        text = read_file(path);
        add_record(&b, &r, names);
        if (text && is_buf_ok(&b) && strncmp(text, (const char *)b.data, b.len) == 0) b.len = 0; /* it is there, and the newest */
        else if (text) add_others(&b, text, r.settings);
        if (b.len && is_buf_ok(&b)) (void)is_file_write_atomic(is_fs_posix(), path, b.data, b.len);
    }
    is_buf_free(&b);
    is_free(text);
    is_free(names);
    is_free(path);
}

/* ---- What waits ---------------------------------------------------------------------------------------------------------------- */

static bool known(inferscale *is, record *out)
{
    char *path = file_path(), *text = read_file(path), *names;
    uint8_t settings[IS_HASH_BYTES], files[IS_HASH_BYTES];
    const char *begin;
    size_t n = 0;
    bool ok = text && hash_settings(is, settings) && find(text, settings, out, &begin, &n);

    names = ok ? is_malloc(n + 1) : NULL;
    if (names) {
        memcpy(names, begin, n);
        names[n] = '\0';
    }
    ok = names && hash_files(names, files) && memcmp(files, out->files, IS_HASH_BYTES) == 0;
    is_free(names);
    is_free(text);
    is_free(path);
    return ok;
}

/* Does the partition hold no rows that wait to be rounded, nor any of the same model and header in another codec? */
static bool is_settled(inferscale *is, const is_partition *p, const record *r)
{
    uint64_t n = 0, bytes = 0;
    bool ok = is_bank_count_wide(is->bank, p, r->model, &n, &bytes) == INFERSCALE_OK && n == 0;

    for (int codec = 0; codec < IS_CODECS && ok; codec++) {
        if (memcmp(r->in_codec[codec], r->model, IS_HASH_BYTES) == 0) continue;
        ok = is_bank_count_view(is->bank, p, r->in_codec[codec], &n, &bytes) == INFERSCALE_OK && n == 0;
    }
    return ok;
}

bool is_known_nothing_waits(inferscale *is, const is_partition *p, const is_policy *policies, size_t n)
{
    int64_t *ids = NULL;
    size_t waiting = 0;
    char *spec = NULL;
    bool remote = false, ok;
    record r;

    if (is_handle_profile(is)) return false;
    ok = known(is, &r);
    if (!ok) memset(&r, 0, sizeof r); /* nobody's fingerprint: whatever is there waits */
    else ok = is_handle_embedder_path(is, &spec, &remote) == INFERSCALE_OK;
    is_free(spec);
    if (ok && remote) {
        if (is_handle_embedder(is) != INFERSCALE_OK) return false;
        memcpy(r.embedder, is_embedder_fingerprint(is->embedder), IS_HASH_BYTES);
    }
    ok = is_bank_unembedded(is->bank, p, r.embedder, 0, 1, &ids, &waiting) == INFERSCALE_OK && waiting == 0;
    is_free(ids);
    for (size_t i = 0; i < n && ok; i++) {
        ids = NULL;
        ok = is_bank_unencoded(is->bank, p, r.model, policies[i].name, policies[i].header_one_in, 0, 1, &ids, &waiting) == INFERSCALE_OK &&
             waiting == 0;
        is_free(ids);
    }
    ok = ok && is_settled(is, p, &r);
    ids = NULL;
    ok = ok && is_bank_outdated(is->bank, p, r.model, 0, 1, &ids, &waiting) == INFERSCALE_OK &&
         waiting == 0;
    is_free(ids);
    return ok;
}
