/* keys.c - the file of API keys. Keys are kept as hashes under a key of this process, and a presented one is compared with all of them:
 * how long that takes says nothing about any of them. */
#include "serve/keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sort.h"
#include "base/utf8.h"

enum { KEY_MIN = 16, KEY_MAX = 512, KEYS_MAX = 100000, FILE_MAX = 16 << 20, LOOK_MS = 500, SETTLE_MS = 300 };

/* Names are short, and there may be 100,000 keys: an entry holds what its names need. */
typedef struct entry {
    uint8_t hash[IS_HASH_BYTES];
    size_t line;
    char name[24];             /* as in is_key */
    bool admin, bound;
    char *names;               /* tenant, user, agent, run, app, each with its NUL */
} entry;

typedef struct table {
    entry *entries;
    size_t n, cap;
} table;

/* What changes when a file is written again, or replaced. */
typedef struct stamp {
    int64_t mtime_s, mtime_ns, ctime_s, ctime_ns, size;
    uint64_t inode;
} stamp;

struct is_keys {
    pthread_mutex_t lock;      /* of now and stop; never over a file */
    pthread_cond_t stopped;
    char *path;
    uint8_t secret[IS_KEY_BYTES];
    table now;
    bool stop, has_thread;
    pthread_t thread;          /* looks whether the file changed; what follows is its own */
    stamp seen, coming;        /* coming: changed of late, and perhaps not written to its end */
    double coming_ms;
};

static void table_free(table *t)
{
    for (size_t i = 0; i < t->n; i++) is_free(t->entries[i].names);
    is_free(t->entries);
    *t = (table){ 0 };
}

static char *pack_names(const is_key *k)
{
    const char *const names[] = { k->tenant, k->user, k->agent, k->run, k->app };
    size_t total = 0;
    char *out, *at;

    for (size_t i = 0; i < 5; i++) total += strlen(names[i]) + 1;
    out = at = is_malloc(total);
    for (size_t i = 0; out && i < 5; i++) at = stpcpy(at, names[i]) + 1;
    return out;
}

static void unpack(const entry *e, is_key *out)
{
    char *const names[] = { out->tenant, out->user, out->agent, out->run, out->app };
    const char *at = e->names;

    memcpy(out->name, e->name, sizeof out->name);
    out->admin = e->admin;
    out->bound = e->bound;
    for (size_t i = 0; i < 5; at += strlen(at) + 1, i++) memcpy(names[i], at, strlen(at) + 1);
}

/* ---- Parsing ------------------------------------------------------------------------------------------------------------- */

static is_status bad(size_t line, const char *why, const char *word, size_t n)
{
    /* Never the key itself: what stands here goes to logs. */
    return is_fail(INFERSCALE_E_PARSE, "keys file, line %zu: %s%s%.*s%s", line, why, word ? " \"" : "", (int)(n > 40 ? 40 : n),
                   word ? word : "", word ? "\"" : "");
}

/* One name: what stands behind user=. Quotes allow blanks. */
static is_status take_name(size_t line, const char **at, char to[INFERSCALE_NAME_MAX + 1])
{
    const char *p = *at;
    size_t n;
    if (*p == '"') {
        n = strcspn(++p, "\"");
        if (p[n] != '"') return bad(line, "a quote is not closed", NULL, 0);
        *at = p + n + 1;
    } else {
        n = strcspn(p, " \t");
        *at = p + n;
    }
    if (n == 0 || n > INFERSCALE_NAME_MAX) return bad(line, "a name has 1 to 512 bytes", NULL, 0);
    if (!is_utf8_valid(p, n, NULL)) return bad(line, "a name is not UTF-8", NULL, 0);
    memcpy(to, p, n);
    to[n] = '\0';
    return INFERSCALE_OK;
}

static is_status take_word(size_t line, const char **at, is_key *k)
{
    static const char *const names[] = { "tenant=", "user=", "agent=", "run=", "app=" };
    char *const to[] = { k->tenant, k->user, k->agent, k->run, k->app };
    for (size_t i = 0; i < 5; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(*at, names[i], n) != 0) continue;
        if (*to[i]) return bad(line, "a name is there twice:", names[i], n - 1);
        *at += n;
        IS_TRY(take_name(line, at, to[i]));
        if (i > 0) k->bound = true;
        return INFERSCALE_OK;
    }
    size_t n = strcspn(*at, " \t");
    if (n != 5 || strncmp(*at, "admin", 5) != 0)
        return bad(line, "after the key come admin, tenant=NAME, user=NAME, agent=NAME, run=NAME or app=NAME, not", *at,
                   strcspn(*at, " \t="));
    k->admin = true;
    *at += 5;
    return INFERSCALE_OK;
}

static is_status add(const is_keys *k, table *t, const char *key, size_t n, const is_key *may, size_t line)
{
    if (t->n == KEYS_MAX) return bad(line, "more than 100,000 keys", NULL, 0);
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 16;
        entry *more = is_realloc(t->entries, cap * sizeof *more);
        if (!more) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the keys; close other programs and try again");
        t->entries = more;
        t->cap = cap;
    }
    entry *e = &t->entries[t->n];
    uint8_t name[IS_HASH_BYTES];
    *e = (entry){ .admin = may->admin, .bound = may->bound, .names = pack_names(may), .line = line };
    if (!e->names) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the keys; close other programs and try again");
    is_hash_once(k->secret, key, n, e->hash);
    is_hash_once(NULL, key, n, name); /* the same in every process, so that logs can be put beside one another */
    is_hex(name, 5, e->name);
    t->n++;
    return INFERSCALE_OK;
}

static int by_hash(const void *a, const void *b)
{
    const entry *x = *(const entry *const *)a, *y = *(const entry *const *)b;
    int d = memcmp(x->hash, y->hash, IS_HASH_BYTES);
    return d ? d : (x->line > y->line) - (x->line < y->line);
}

/* Sorted, as 100,000 keys compared with each other would hold the server up for minutes. */
static is_status each_once(const table *t)
{
    const entry **sorted = is_calloc(t->n + 1, sizeof *sorted);
    size_t twice = 0;
    if (!sorted) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the keys; close other programs and try again");
    for (size_t i = 0; i < t->n; i++) sorted[i] = &t->entries[i];
    is_sort(sorted, t->n, sizeof *sorted, by_hash);
    for (size_t i = 1; i < t->n; i++)
        if (memcmp(sorted[i - 1]->hash, sorted[i]->hash, IS_HASH_BYTES) == 0 && (!twice || sorted[i]->line < twice)) twice = sorted[i]->line;
    is_free(sorted);
    return twice ? bad(twice, "this key is there twice; a key has one line", NULL, 0) : INFERSCALE_OK;
}

static is_status parse_line(const is_keys *k, table *t, char *s, size_t line)
{
    is_key may = { .name = "" };
    const char *at;
    size_t n;
    s += strspn(s, " \t");
    if (*s == '\0' || *s == '#') return INFERSCALE_OK;
    n = strcspn(s, " \t");
    if (n < KEY_MIN) return bad(line, "a key has 16 bytes or more, and what it may do stands behind it (`openssl rand -hex 24` makes one)", NULL, 0);
    if (n > KEY_MAX) return bad(line, "a key has at most 512 bytes", NULL, 0);
    for (size_t i = 0; i < n; i++)
        if (s[i] <= 0x20 || s[i] >= 0x7f) return bad(line, "a key is made of ASCII letters, digits and signs", NULL, 0);
    for (at = s + n; at += strspn(at, " \t"), *at && *at != '#';) IS_TRY(take_word(line, &at, &may));
    if (may.admin && (may.bound || *may.tenant))
        return bad(line, "an admin key is not bound; leave out admin or the names", NULL, 0);
    return add(k, t, s, n, &may, line);
}

static is_status parse(const is_keys *k, char *text, size_t n, table *t)
{
    size_t line = 1;
    if (memchr(text, 0, n)) return is_fail(INFERSCALE_E_PARSE, "keys file: there is a NUL in it; is it a text file?");
    for (char *p = text; p < text + n; line++) {
        size_t len = strcspn(p, "\n"), end = len;
        if (end && p[end - 1] == '\r') end--;
        bool last = p + len >= text + n;
        p[end] = '\0';
        IS_TRY(parse_line(k, t, p, line));
        if (last) break;
        p += len + 1;
    }
    return each_once(t);
}

is_status is_keys_check_text(char *text, size_t n, size_t *n_keys)
{
    is_keys k = { .path = NULL };
    table t = { 0 };
    is_status st = parse(&k, text, n, &t);
    *n_keys = t.n;
    table_free(&t);
    return st;
}

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

static is_status look(const char *path, stamp *out)
{
    struct stat s;
    if (stat(path, &s) != 0) return is_fail_errno("cannot read the keys file %s", path);
    if (!S_ISREG(s.st_mode)) return is_fail(INFERSCALE_E_INVALID, "the keys file %s is no file", path);
    if (s.st_mode & 077)
        return is_fail(INFERSCALE_E_DENIED, "others may read or change the keys file %s; run: chmod 600 %s", path, path);
    *out = (stamp){ s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec, s.st_size, s.st_ino };
    return INFERSCALE_OK;
}

static bool same_stamp(const stamp *a, const stamp *b)
{
    return a->mtime_s == b->mtime_s && a->mtime_ns == b->mtime_ns && a->ctime_s == b->ctime_s && a->ctime_ns == b->ctime_ns &&
           a->size == b->size && a->inode == b->inode;
}

static is_status read_keys(const is_keys *k, table *t)
{
    uint8_t *text = NULL;
    size_t n = 0;
    IS_TRY(is_file_read_all(is_fs_default(), k->path, FILE_MAX, &text, &n));
    is_status st = n ? parse(k, (char *)text, n, t) : is_fail(INFERSCALE_E_PARSE, "the keys file %s is empty", k->path);
    is_wipe(text, n);
    is_free(text);
    if (st != INFERSCALE_OK) table_free(t);
    return st;
}

/* Written to its end? Half a line may open more than the whole: "KEY user=anna" begins with "KEY",
 * which opens every owner. So a file counts when nothing has changed it for a while: by its own
 * time, or, where clocks differ, by ours since it was first seen so. */
static bool settled(is_keys *k, const stamp *s, double now)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    double age = (double)(t.tv_sec - s->ctime_s) * 1000 + (double)(t.tv_nsec - s->ctime_ns) / 1e6;
    if (!same_stamp(s, &k->coming)) k->coming_ms = now;
    k->coming = *s;
    return age >= SETTLE_MS || now - k->coming_ms >= SETTLE_MS;
}

static void take_over(is_keys *k, table *fresh)
{
    table old;
    pthread_mutex_lock(&k->lock);
    old = k->now;
    k->now = *fresh;
    pthread_mutex_unlock(&k->lock);
    table_free(&old);
}

/* What does not parse leaves the old keys in force, and is said once. Returns when to look again.
 */
static int look_again(is_keys *k)
{
    table fresh = { 0 };
    stamp s = { 0 }, after;
    is_status st = look(k->path, &s);
    if (st == INFERSCALE_OK && same_stamp(&s, &k->seen)) return LOOK_MS;
    if (st != INFERSCALE_OK && k->seen.inode == 0) return LOOK_MS; /* said already */
    if (st == INFERSCALE_OK && !settled(k, &s, is_now_ms())) return SETTLE_MS;
    if (st == INFERSCALE_OK) st = read_keys(k, &fresh);
    if (st == INFERSCALE_OK &&
        (look(k->path, &after) != INFERSCALE_OK || !same_stamp(&s, &after))) {
        table_free(&fresh); /* somebody writes: at the next look */
        return LOOK_MS;
    }
    k->seen = s;
    if (st != INFERSCALE_OK) {
        is_log(IS_LOG_ERROR, "the keys are still the old ones: %s", is_error());
        return LOOK_MS;
    }
    is_log(IS_LOG_INFO, "the keys file was read again: %zu keys", fresh.n);
    take_over(k, &fresh);
    return LOOK_MS;
}

static void *look_now_and_then(void *ctx)
{
    is_keys *k = ctx;
    struct timespec until;
    int ms = LOOK_MS;
    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += ms * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_cond_timedwait(&k->stopped, &k->lock, &until) != ETIMEDOUT) continue;
        pthread_mutex_unlock(&k->lock);
        ms = look_again(k);
        pthread_mutex_lock(&k->lock);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

is_status is_keys_open(const char *path, is_keys **out)
{
    is_keys *k = is_calloc(1, sizeof *k);
    pthread_condattr_t attr;
    is_status st = INFERSCALE_OK;
    *out = NULL;
    if (!k || !(k->path = is_strdup(path))) {
        is_free(k);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for the keys; close other programs and try again");
    }
    pthread_mutex_init(&k->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&k->stopped, &attr);
    pthread_condattr_destroy(&attr);
    is_random(k->secret, sizeof k->secret);
    IS_TRY_GOTO(st, done, look(path, &k->seen));
    IS_TRY_GOTO(st, done, read_keys(k, &k->now));
    if (k->now.n == 0)
        st = is_fail(INFERSCALE_E_PARSE, "the keys file %s holds no key; write one a line, e.g. from `openssl rand -hex 24`",
                     path);
    if (st == INFERSCALE_OK)
        k->has_thread = pthread_create(&k->thread, NULL, look_now_and_then, k) == 0;
    if (st == INFERSCALE_OK && !k->has_thread)
        st = is_fail(INFERSCALE_E_NOMEM,
                     "no thread to look after the keys file; raise the limit of processes");
done:
    if (st == INFERSCALE_OK)
        *out = k;
    else
        is_keys_close(k);
    return st;
}

void is_keys_close(is_keys *k)
{
    if (!k) return;
    pthread_mutex_lock(&k->lock);
    k->stop = true;
    pthread_cond_signal(&k->stopped);
    pthread_mutex_unlock(&k->lock);
    if (k->has_thread) pthread_join(k->thread, NULL);
    table_free(&k->now);
    pthread_cond_destroy(&k->stopped);
    pthread_mutex_destroy(&k->lock);
    is_free(k->path);
    is_free(k);
}

static unsigned differ(const uint8_t *a, const uint8_t *b)
{
    unsigned d = 0;
    for (size_t i = 0; i < IS_HASH_BYTES; i++) d |= a[i] ^ b[i];
    return d;
}

bool is_keys_find(is_keys *k, const char *key, is_key *out)
{
    uint8_t hash[IS_HASH_BYTES];
    size_t n = strlen(key), at = 0;
    unsigned found = 0;
    memset(out, 0, sizeof *out);
    if (n > KEY_MAX) return false;
    pthread_mutex_lock(&k->lock);
    is_hash_once(k->secret, key, n, hash);
    for (size_t i = 0; i < k->now.n; i++) {
        unsigned same = ((differ(k->now.entries[i].hash, hash) - 1) >> 31) & 1; /* 1 if nothing differs, without a branch */
        at |= i & (0 - (size_t)same);
        found |= same;
    }
    if (found) unpack(&k->now.entries[at], out);
    pthread_mutex_unlock(&k->lock);
    return found;
}
