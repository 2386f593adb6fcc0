/* vault.c - segment files by name, and the RAM tier before them.
 *
 *   DIR/ab/abcd....seg    a segment; ab = the first byte of its name in hex
 *   DIR/ab/abcd....bad    a file that did not verify, set aside
 *   DIR/tmp/abcd....PID.TIME.SALT.tmp    being written
 *   DIR/tmp/abcd....PID.TIME.SALT.gone   taken out of the namespace, being shredded
 *
 * The lock covers the RAM tier and the counters, never file I/O. A removal raises `removals` once the file is out of the
 * namespace: whoever began to read or write before that sees the change and does not put what he holds into the RAM tier, so a
 * forgotten segment cannot come back. */
#include "kv/vault.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"
#include "base/words.h"
#include "kv/head_tier.h"

enum {
    DIR_MAX = 3800,      /* so that every path fits PATH_BYTES */
    PATH_BYTES = 4096,
    HEX = 2 * IS_HASH_BYTES,
    ORPHAN_DEAD_S = 60,  /* a dead writer's file; not at once, for its process may live in another pid namespace */
    ORPHAN_OLD_S = 3600, /* anybody's: writing takes milliseconds */
};

struct is_vault {
    const is_fs *fs;
    char *dir, *tmp;
    bool read_only;
    pthread_mutex_t lock;
    ram_tier ram;
    head_tier heads;
    uint64_t removals;
    is_vault_stats stats; /* hits, reads, misses, bad files */
};

/* ---- Paths ----------------------------------------------------------------------------------------------------------- */

static void name_path(const is_vault *v, const uint8_t *name, const char *suffix, char out[PATH_BYTES])
{
    char hex[HEX + 1];

    is_hex(name, IS_HASH_BYTES, hex);
    snprintf(out, PATH_BYTES, "%s/%.2s/%s%s", v->dir, hex, hex, suffix);
}

static void fan_path(const is_vault *v, const uint8_t *name, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%02x", v->dir, name[0]);
}

static void temporary_path(const is_vault *v, const uint8_t *name, const char *suffix, char out[PATH_BYTES])
{
    char hex[HEX + 1];
    uint32_t salt;

    is_hex(name, IS_HASH_BYTES, hex);
    is_random(&salt, sizeof salt);
    snprintf(out, PATH_BYTES, "%s/%s.%ld.%lld.%08x%s", v->tmp, hex, (long)getpid(), (long long)is_now_epoch(), salt, suffix);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && !strcmp(s + n - m, end);
}

/* ---- Open and close -------------------------------------------------------------------------------------------------- */

/* Who made a file in DIR/tmp and how many seconds ago, from its name; false = it does not say. *dead: surely no process of that number. */
static bool read_maker(const char *name, long long *age, bool *dead)
{
    char *end;
    long pid = strtol(name + HEX + 1, &end, 10);

    if (pid <= 0 || *end != '.') return false;
    *age = (long long)is_now_epoch() - strtoll(end + 1, NULL, 10);
    *dead = kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    return true;
}

/* Is a file in DIR/tmp left over? Keys and values can be turned back into text: what no name leads to must not stay on disk. */
bool is_vault_left_over(const char *name)
{
    long long age;
    bool dead;

    if (strlen(name) < HEX + 2 || name[HEX] != '.') return false;
    if (ends_with(name, ".gone")) return true;
    if (!ends_with(name, ".tmp") || !read_maker(name, &age, &dead)) return false;
    return age > ORPHAN_OLD_S || (age > ORPHAN_DEAD_S && dead);
}

bool is_vault_at_work(const char *name)
{
    long long age;
    bool dead;

    if (strlen(name) < HEX + 2 || name[HEX] != '.' || !ends_with(name, ".gone")) return false;
    return read_maker(name, &age, &dead) && !dead && age <= ORPHAN_DEAD_S;
}

static is_status clean_one(void *ctx, const char *name, bool is_dir)
{
    const is_vault *v = ctx;
    char path[PATH_BYTES];

    if (is_dir || !is_vault_left_over(name)) return INFERSCALE_OK;
    snprintf(path, sizeof path, "%s/%.250s", v->tmp, name);
    if (is_file_shred(v->fs, path) != INFERSCALE_OK) is_log(IS_LOG_WARN, "vault: a left-over file stays: %s", is_error());
    return INFERSCALE_OK;
}

static is_status prepare_folders(is_vault *v)
{
    if (v->read_only) return INFERSCALE_OK;
    IS_TRY(is_file_mkdirs(v->fs, v->tmp));
    if (v->fs->list(v->fs, v->tmp, clean_one, v) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "vault: cannot look for left-overs: %s", is_error());
    return INFERSCALE_OK;
}

is_status is_vault_open(const is_fs *fs, const char *dir, uint64_t ram_budget, bool read_only, is_vault **out)
{
    is_vault *v;
    is_status st;

    *out = NULL;
    if (!dir || !*dir || strlen(dir) > DIR_MAX)
        return is_fail(INFERSCALE_E_INVALID,
                       "the vault's folder must have a name of 1 to %d bytes; choose another %s",
                       DIR_MAX, is_words(IS_CALL_HOME));
    v = is_calloc(1, sizeof *v);
    if (!v) return is_fail(INFERSCALE_E_NOMEM, "out of memory opening the vault; free memory and try again");
    pthread_mutex_init(&v->lock, NULL);
    v->fs = fs;
    v->read_only = read_only;
    v->ram.budget = ram_budget;
    head_tier_init(&v->heads, IS_HEADS_BUDGET);
    v->dir = is_strdup(dir);
    v->tmp = is_path_join(dir, "tmp");
    st = v->dir && v->tmp ? prepare_folders(v)
                          : is_fail(INFERSCALE_E_NOMEM, "out of memory opening the vault; free memory and try again");
    if (st != INFERSCALE_OK) {
        is_vault_close(v);
        return st;
    }
    *out = v;
    return INFERSCALE_OK;
}

void is_vault_close(is_vault *v)
{
    if (!v) return;
    ram_clear(&v->ram);
    head_tier_free(&v->heads);
    pthread_mutex_destroy(&v->lock);
    is_free(v->dir);
    is_free(v->tmp);
    is_free(v);
}

const is_fs *is_vault_fs(const is_vault *v)
{
    return v->fs;
}

const char *is_vault_dir(const is_vault *v)
{
    return v->dir;
}

/* ---- The RAM tier under the lock ------------------------------------------------------------------------------------- */

static uint64_t removals_now(is_vault *v)
{
    uint64_t n;

    pthread_mutex_lock(&v->lock);
    n = v->removals;
    pthread_mutex_unlock(&v->lock);
    return n;
}

/* Keeps s in RAM unless something was removed since `since`. */
static void keep_in_ram(is_vault *v, is_segment *s, uint64_t since)
{
    pthread_mutex_lock(&v->lock);
    if (v->removals == since) ram_put(&v->ram, is_segment_info(s)->name, is_segment_info(s)->name, s);
    pthread_mutex_unlock(&v->lock);
}

static void count(is_vault *v, uint64_t *counter)
{
    pthread_mutex_lock(&v->lock);
    ++*counter;
    pthread_mutex_unlock(&v->lock);
}

/* ---- Put ------------------------------------------------------------------------------------------------------------- */

/* The fan-out folder, durably there. */
static is_status make_fan(is_vault *v, const uint8_t *name, char fan[PATH_BYTES])
{
    fan_path(v, name, fan);
    return v->fs->exists(v->fs, fan) ? INFERSCALE_OK : is_file_mkdirs(v->fs, fan);
}

static is_status write_file(is_vault *v, const is_segment *s, const char *path)
{
    const uint8_t *name = is_segment_info(s)->name;
    char fan[PATH_BYTES], tmp[PATH_BYTES], why[512];
    is_status st;

    IS_TRY(make_fan(v, name, fan));
    temporary_path(v, name, ".tmp", tmp);
    IS_TRY(is_segment_write(s, v->fs, tmp));
    st = v->fs->rename(v->fs, tmp, path);
    if (st == INFERSCALE_OK) return v->fs->sync_dir(v->fs, fan);
    if (st == INFERSCALE_E_NOTFOUND)
        return is_fail(INFERSCALE_E_STALE,
                       "a KV segment was forgotten while it was being stored; encode again what is still remembered");
    snprintf(why, sizeof why, "%s", is_error());
    if (is_file_shred(v->fs, tmp) != INFERSCALE_OK) is_log(IS_LOG_WARN, "vault: a left-over file stays: %s", is_error());
    return is_fail(st, "%s", why);
}

is_status is_vault_put(is_vault *v, is_segment *s)
{
    char path[PATH_BYTES], fan[PATH_BYTES];
    uint64_t since = removals_now(v);

    if (v->read_only)
        return is_fail(INFERSCALE_E_READONLY,
                       "the vault is open for reading only, and no KV can be stored; %s",
                       is_words(IS_CALL_WRITE));
    name_path(v, is_segment_info(s)->name, ".seg", path);
    if (v->fs->exists(v->fs, path)) {
        fan_path(v, is_segment_info(s)->name, fan);
        IS_TRY(v->fs->sync_dir(v->fs, fan)); /* whoever renamed it there may not have come to this yet */
    } else {
        IS_TRY(write_file(v, s, path));
    }
    keep_in_ram(v, s, since);
    return INFERSCALE_OK;
}

/* A second name keeps hold of the old file, so that its bytes can be overwritten after the new one has taken its place: readers find
 * the one or the other. Where there are no second names, readers find none for a moment. */
is_status is_vault_replace(is_vault *v, is_segment *s)
{
    const uint8_t *name = is_segment_info(s)->name;
    char path[PATH_BYTES], gone[PATH_BYTES];
    is_status st, shred;

    if (v->read_only) return is_vault_put(v, s); /* says why not */
    name_path(v, name, ".seg", path);
    if (!v->fs->exists(v->fs, path)) return is_vault_put(v, s);
    temporary_path(v, name, ".gone", gone);
    st = v->fs->link ? v->fs->link(v->fs, path, gone) : INFERSCALE_E_UNSUPPORTED;
    if (st != INFERSCALE_OK) st = v->fs->rename(v->fs, path, gone);
    if (st == INFERSCALE_E_NOTFOUND) return is_vault_put(v, s); /* removed meanwhile */
    if (st != INFERSCALE_OK) return st;
    pthread_mutex_lock(&v->lock);
    v->removals++;
    ram_drop(&v->ram, name);
    pthread_mutex_unlock(&v->lock);
    st = write_file(v, s, path);
    if (st == INFERSCALE_OK) {
        keep_in_ram(v, s, removals_now(v));
        return is_file_shred(v->fs, gone);
    }
    /* Not written: the old one may still be there under its name, and must not be overwritten then. */
    shred = v->fs->exists(v->fs, path) ? v->fs->unlink(v->fs, gone) : v->fs->rename(v->fs, gone, path);
    return shred == INFERSCALE_OK ? st : shred;
}

/* ---- Get ------------------------------------------------------------------------------------------------------------- */

static is_status absent(void)
{
    return is_fail(INFERSCALE_E_NOTFOUND,
                   "a fact's KV is not in the vault; it is served as text until it is encoded (%s)",
                   is_words(IS_CALL_ENCODE));
}

/* A file that does not verify: out of the way, so that the next encoding can take its name. */
static void set_aside(is_vault *v, const uint8_t *name, const char *path)
{
    char bad[PATH_BYTES];

    count(v, &v->stats.bad_files);
    is_log(IS_LOG_WARN, "vault: %.64s...: %s", path + strlen(v->dir) + 1, is_error());
    if (v->read_only) return;
    name_path(v, name, ".bad", bad);
    if (v->fs->exists(v->fs, bad)) (void)is_file_shred(v->fs, bad); /* rename would leave the older one's bytes on disk */
    if (v->fs->rename(v->fs, path, bad) != INFERSCALE_OK) is_log(IS_LOG_WARN, "vault: cannot set it aside: %s", is_error());
}

static is_status read_file(is_vault *v, const uint8_t *name, bool bare, is_segment **out)
{
    char path[PATH_BYTES];
    is_status st;

    name_path(v, name, ".seg", path);
    st = bare ? head_tier_get(&v->heads, v->fs, path, name, 0, out) : is_segment_read(v->fs, path, out);
    if (st == INFERSCALE_OK && memcmp(is_segment_info(*out)->name, name, IS_HASH_BYTES)) {
        is_segment_unref(*out);
        *out = NULL;
        st =
            is_fail(INFERSCALE_E_CORRUPT, "a KV segment's file has another segment's name; its facts have to be encoded again");
    }
    if (st == INFERSCALE_E_NOTFOUND) return absent();
    if (st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN) {
        set_aside(v, name, path);
        return absent();
    }
    /* What cannot be read just now (no memory, no descriptor, a disk or a share that fails) may be well: it is not absent. */
    if (st != INFERSCALE_OK) is_log(IS_LOG_WARN, "vault: a segment cannot be read just now: %s", is_error());
    return st;
}

static is_status check_fingerprint(is_segment *s, const uint8_t *want, is_segment **out)
{
    if (want && memcmp(is_segment_info(s)->fingerprint, want, IS_HASH_BYTES)) {
        is_segment_unref(s);
        return is_fail(INFERSCALE_E_NOTFOUND,
                       "a fact's KV in the vault was computed by another model; %s makes this "
                       "one's",
                       is_words(IS_CALL_ENCODE));
    }
    *out = s;
    return INFERSCALE_OK;
}

is_status is_vault_get(is_vault *v, const uint8_t name[IS_HASH_BYTES], const uint8_t *want_fingerprint, is_segment **out)
{
    is_segment *s;
    uint64_t since;
    is_status st;

    *out = NULL;
    pthread_mutex_lock(&v->lock);
    s = ram_get(&v->ram, name);
    if (s) v->stats.ram_hits++;
    since = v->removals;
    pthread_mutex_unlock(&v->lock);
    if (s) return check_fingerprint(s, want_fingerprint, out);

    st = read_file(v, name, false, &s);
    if (st != INFERSCALE_OK) {
        count(v, &v->stats.misses);
        return st;
    }
    count(v, &v->stats.file_reads);
    keep_in_ram(v, s, since);
    return check_fingerprint(s, want_fingerprint, out);
}

is_status is_vault_get_bare(is_vault *v, const uint8_t name[IS_HASH_BYTES], const uint8_t *want_fingerprint, is_segment **out)
{
    is_segment *s;
    is_status st = read_file(v, name, true, &s);

    *out = NULL;
    if (st == INFERSCALE_OK) return check_fingerprint(s, want_fingerprint, out);
    count(v, &v->stats.misses);
    return st;
}

is_status is_vault_doubt(is_vault *v, const uint8_t name[IS_HASH_BYTES])
{
    is_segment *s;

    IS_TRY(read_file(v, name, false, &s));
    count(v, &v->stats.file_reads);
    is_segment_unref(s);
    return INFERSCALE_OK;
}

bool is_vault_has(is_vault *v, const uint8_t name[IS_HASH_BYTES])
{
    char path[PATH_BYTES];
    bool in_ram;

    pthread_mutex_lock(&v->lock);
    in_ram = ram_has(&v->ram, name);
    pthread_mutex_unlock(&v->lock);
    if (in_ram) return true;
    name_path(v, name, ".seg", path);
    return v->fs->exists(v->fs, path);
}

/* ---- Remove ---------------------------------------------------------------------------------------------------------- */

typedef struct shred_left {
    const is_vault *v;
    uint8_t (*names)[IS_HASH_BYTES]; /* sorted */
    size_t n;
    is_status st;
} shred_left;

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, IS_HASH_BYTES);
}

/* Other traces of a name in DIR/tmp: what was hidden, what a crash left, or somebody is writing right now (his rename fails then). */
static is_status shred_if_named(void *ctx, const char *name, bool is_dir)
{
    shred_left *l = ctx;
    uint8_t key[IS_HASH_BYTES];
    char path[PATH_BYTES];
    is_status st;

    if (is_dir || !is_unhex(name, IS_HASH_BYTES, key) || !is_find(key, l->names, l->n, IS_HASH_BYTES, by_bytes)) return INFERSCALE_OK;
    snprintf(path, sizeof path, "%s/%.250s", l->v->tmp, name);
    st = is_file_shred(l->v->fs, path);
    if (st != INFERSCALE_OK) l->st = st;
    return INFERSCALE_OK;
}

static is_status hide(is_vault *v, const uint8_t *name)
{
    char path[PATH_BYTES], gone[PATH_BYTES];
    is_status renamed;

    name_path(v, name, ".seg", path);
    temporary_path(v, name, ".gone", gone);
    /* Looked for first: a file that is not there is no failure, and must not leave the sentence of one. */
    renamed = v->fs->exists(v->fs, path) ? v->fs->rename(v->fs, path, gone) : INFERSCALE_E_NOTFOUND;
    pthread_mutex_lock(&v->lock); /* only now: a reader that came before found the file, one that comes after does not */
    v->removals++;
    ram_wipe(&v->ram, name);
    pthread_mutex_unlock(&v->lock);
    head_tier_forget(&v->heads, name, 0);
    return renamed == INFERSCALE_E_NOTFOUND ? INFERSCALE_OK : renamed;
}

static is_status refuse_read_only(const is_vault *v)
{
    if (!v->read_only) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_READONLY,
                   "the vault is open for reading only, and nothing can be forgotten; %s",
                   is_words(IS_CALL_WRITE));
}

is_status is_vault_hide(is_vault *v, uint8_t (*names)[IS_HASH_BYTES], size_t n)
{
    is_status st = INFERSCALE_OK;

    IS_TRY(refuse_read_only(v));
    for (size_t i = 0; i < n; i++) {
        is_status one = hide(v, names[i]);

        if (one != INFERSCALE_OK) st = one;
    }
    return st;
}

is_status is_vault_remove_all(is_vault *v, uint8_t (*names)[IS_HASH_BYTES], size_t n)
{
    shred_left left = { .v = v, .names = names, .n = n, .st = INFERSCALE_OK };
    is_status st;

    IS_TRY(refuse_read_only(v));
    if (n == 0) return INFERSCALE_OK;
    is_sort(names, n, sizeof *names, by_bytes);
    for (size_t i = 0; i < n; i++) {
        char path[PATH_BYTES];

        name_path(v, names[i], ".seg", path);
        if (hide(v, names[i]) != INFERSCALE_OK && (st = is_file_shred(v->fs, path)) != INFERSCALE_OK) left.st = st; /* where it stands */
        name_path(v, names[i], ".bad", path);
        st = is_file_shred(v->fs, path);
        if (st != INFERSCALE_OK) left.st = st;
    }
    st = v->fs->list(v->fs, v->tmp, shred_if_named, &left);
    return st != INFERSCALE_OK ? st : left.st;
}

is_status is_vault_remove(is_vault *v, const uint8_t name[IS_HASH_BYTES])
{
    uint8_t one[1][IS_HASH_BYTES];

    memcpy(one[0], name, IS_HASH_BYTES);
    return is_vault_remove_all(v, one, 1);
}

/* ---- Benchmarks and figures ------------------------------------------------------------------------------------------ */

void is_vault_drop_ram(is_vault *v)
{
    pthread_mutex_lock(&v->lock);
    ram_clear(&v->ram);
    pthread_mutex_unlock(&v->lock);
}

void is_vault_keep_no_rows(is_vault *v)
{
    pthread_mutex_lock(&v->lock);
    v->ram.budget = 0;
    ram_clear(&v->ram);
    pthread_mutex_unlock(&v->lock);
}

is_status is_vault_drop_cache(is_vault *v, const uint8_t name[IS_HASH_BYTES])
{
    char path[PATH_BYTES];
    is_file *f;
    is_status st;

    name_path(v, name, ".seg", path);
    IS_TRY(v->fs->open(v->fs, path, IS_OPEN_READ, &f));
    st = v->fs->drop_cache(v->fs, f);
    v->fs->close(v->fs, f);
    return st;
}

void is_vault_get_stats(is_vault *v, is_vault_stats *out)
{
    pthread_mutex_lock(&v->lock);
    *out = v->stats;
    out->ram_bytes = v->ram.bytes;
    out->ram_budget = v->ram.budget;
    out->evictions = v->ram.evictions;
    pthread_mutex_unlock(&v->lock);
    pthread_mutex_lock(&v->heads.lock);
    out->head_bytes = v->heads.ram.bytes;
    out->head_hits = v->heads.hits;
    out->head_reads = v->heads.reads;
    pthread_mutex_unlock(&v->heads.lock);
}
