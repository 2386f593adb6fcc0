/* spool.c - captured rows on their way from the workers: one file of each worker, read, overwritten and removed.
 *
 * The ids of a process begin with its mark, and it holds a lock on a file of that mark as long as it lives: what a dead process left is
 * found by that and cleared, and no living one's files are touched. */
#include "engine/vllm/internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "kv/segment_part.h"

enum { MARK = 4, MARK_HEX = 2 * MARK, ID_HEX = 32, DROPPED = 256, LATE_MS = 30000 };

typedef struct dropped { uint8_t id[16]; double until_ms; } dropped;

struct vllm_spool {
    char *dir, *own;                /* own: the lock file */
    uint8_t mark[MARK];
    is_file *lock;
    pthread_mutex_t guard;          /* of what follows */
    dropped late[DROPPED];
    uint32_t n_late;
};

/* ---- Files of an id ------------------------------------------------------------------------------------------------------- */

typedef struct names { char **list; size_t n, cap; const char *prefix; } names;

static is_status note_name(void *ctx, const char *name, bool is_dir)
{
    names *w = ctx;

    if (is_dir || (w->prefix && strncmp(name, w->prefix, strlen(w->prefix)) != 0)) return INFERSCALE_OK;
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 16;
        char **list = is_realloc(w->list, cap * sizeof *list);

        if (!list) return vllm_no_memory();
        w->list = list;
        w->cap = cap;
    }
    w->list[w->n] = is_strdup(name);
    return w->list[w->n] ? w->n++, INFERSCALE_OK : vllm_no_memory();
}

static void free_names(names *w)
{
    for (size_t i = 0; i < w->n; i++) is_free(w->list[i]);
    is_free(w->list);
}

static void shred(vllm *e, const char *name)
{
    char *path = is_path_join(e->spool->dir, name);
    is_status st = path ? is_file_shred(is_fs_default(), path) : vllm_no_memory();

    if (st == INFERSCALE_OK) VLLM_COUNT(e, spool_shredded, 1);
    else is_log(IS_LOG_WARN, "captured rows stay in the spool for now: %s", is_error());
    is_free(path);
}

/* How many there were. */
static size_t clear(vllm *e, const char *prefix)
{
    names w = { .prefix = prefix };
    size_t n;

    if (is_fs_default()->list(is_fs_default(), e->spool->dir, note_name, &w) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "the spool cannot be read: %s", is_error());
    n = w.n;
    for (size_t i = 0; i < w.n; i++) shred(e, w.list[i]);
    free_names(&w);
    return n;
}

/* ---- Open: a mark, and what the dead left --------------------------------------------------------------------------------------- */

static void mark_path(const char *dir, const char *hex, is_buf *out)
{
    is_buf_clear(out);
    is_buf_fmt(out, "%s/owner-%.*s", dir, MARK_HEX, hex);
}

static is_status take_mark(vllm_spool *s)
{
    const is_fs *fs = is_fs_default();
    char hex[MARK_HEX + 1];
    is_buf path = IS_BUF_INIT;
    is_status st;

    is_random(s->mark, MARK);
    is_hex(s->mark, MARK, hex);
    mark_path(s->dir, hex, &path);
    s->own = is_buf_take(&path);
    if (!s->own) return vllm_no_memory();
    st = fs->open(fs, s->own, IS_OPEN_CREATE_NEW, &s->lock);
    if (st == INFERSCALE_OK) st = fs->lock(fs, s->lock, true);
    return st;
}

/* Does the process of this mark live? Its lock file goes if not. */
static bool lives(const char *dir, const char *hex)
{
    const is_fs *fs = is_fs_default();
    is_buf path = IS_BUF_INIT;
    is_file *f = NULL;
    bool alive = false;

    mark_path(dir, hex, &path);
    if (is_buf_ok(&path) && fs->open(fs, (const char *)path.data, IS_OPEN_RDWR, &f) == INFERSCALE_OK) {
        alive = fs->lock(fs, f, true) == INFERSCALE_E_BUSY;
        fs->close(fs, f);
        if (!alive) fs->unlink(fs, (const char *)path.data);
    }
    is_buf_free(&path);
    return alive;
}

static bool is_hex_text(const char *s, size_t n)
{
    return strlen(s) >= n && strspn(s, "0123456789abcdef") >= n;
}

static void clear_dead(vllm *e)
{
    names w = { 0 };
    size_t n = 0;

    if (is_fs_default()->list(is_fs_default(), e->spool->dir, note_name, &w) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "the spool cannot be read: %s", is_error());
    for (size_t i = 0; i < w.n; i++) {
        const char *name = w.list[i];

        if (strncmp(name, "owner-", 6) == 0) {
            if (is_hex_text(name + 6, MARK_HEX)) lives(e->spool->dir, name + 6);
            continue;
        }
        if (!is_hex_text(name, ID_HEX) || lives(e->spool->dir, name)) continue;
        shred(e, name);
        n++;
    }
    if (n) is_log(IS_LOG_INFO, "%zu files of captured rows that a process left behind were overwritten and removed", n);
    free_names(&w);
}

is_status vllm_spool_open(vllm *e)
{
    vllm_spool *s = e->spool = is_calloc(1, sizeof *s);

    if (!s) return vllm_no_memory();
    pthread_mutex_init(&s->guard, NULL);
    s->dir = is_path_join(e->dir, "spool");
    if (!s->dir) return vllm_no_memory();
    IS_TRY(is_file_mkdirs(is_fs_default(), s->dir));
    IS_TRY(is_fs_default()->set_mode(is_fs_default(), s->dir, 0700));
    IS_TRY(take_mark(s));
    clear_dead(e);
    return INFERSCALE_OK;
}

void vllm_spool_close(vllm *e)
{
    vllm_spool *s = e->spool;
    char hex[MARK_HEX + 1];

    if (!s) return;
    if (s->lock) {
        is_hex(s->mark, MARK, hex);
        clear(e, hex);
        is_fs_default()->close(is_fs_default(), s->lock);
        is_fs_default()->unlink(is_fs_default(), s->own);
    }
    pthread_mutex_destroy(&s->guard);
    is_free(s->own);
    is_free(s->dir);
    is_free(s);
    e->spool = NULL;
}

void vllm_spool_id(vllm *e, uint8_t id[16])
{
    is_random(id, 16);
    memcpy(id, e->spool->mark, MARK);
}

void vllm_spool_name(vllm *e, uint8_t name[IS_HASH_BYTES])
{
    is_random(name, IS_HASH_BYTES);
    memcpy(name, e->spool->mark, MARK);
}

void vllm_spool_sign(vllm *e, uint8_t name[IS_HASH_BYTES])
{
    memcpy(name, e->spool->mark, MARK);
}

bool vllm_spool_lives(vllm *e, const uint8_t name[IS_HASH_BYTES])
{
    char hex[MARK_HEX + 1];

    is_hex(name, MARK, hex);
    return memcmp(name, e->spool->mark, MARK) == 0 || lives(e->spool->dir, hex);
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------------ */

/* The first KV head that a file of name IDHEX.P.H holds; -1 if it is called otherwise. */
static int64_t first_head(const char *name)
{
    char *end;
    const char *at = name + ID_HEX;
    unsigned long h;

    if (*at != '.' || at[1] < '0' || at[1] > '9') return -1;
    strtoul(at + 1, &end, 10);
    if (*end != '.' || end[1] < '0' || end[1] > '9') return -1;
    h = strtoul(end + 1, &end, 10);
    return *end || h > 65535 ? -1 : (int64_t)h;
}

static is_status read_file(vllm *e, const char *name, const int32_t *span, uint32_t n_span, uint32_t *head, is_segment **out)
{
    int64_t h = first_head(name);
    char *path;
    is_status st;

    if (h < 0) return is_fail(INFERSCALE_E_ENGINE, "a file of an unfinished capture is in the spool; see vLLM's log");
    *head = (uint32_t)h;
    path = is_path_join(e->spool->dir, name);
    st = path ? is_segment_read(is_fs_default(), path, out) : vllm_no_memory();
    is_free(path);
    if (st != INFERSCALE_OK) return st;
    if (memcmp(is_segment_info(*out)->fingerprint, e->model->fingerprint, IS_HASH_BYTES) != 0 || is_segment_info(*out)->n_tokens != n_span ||
        memcmp(is_segment_info(*out)->tokens, span, n_span * sizeof *span) != 0)
        return is_fail(INFERSCALE_E_ENGINE, "a worker wrote rows of other tokens or of another model; restart vLLM and the gateway");
    return INFERSCALE_OK;
}

static is_status read_all(vllm *e, const names *w, const int32_t *span, uint32_t n_span, float **rows)
{
    is_segment **parts = is_calloc(w->n + 1, sizeof *parts);
    uint32_t *heads = is_calloc(w->n + 1, sizeof *heads);
    is_status st = parts && heads ? INFERSCALE_OK : vllm_no_memory();

    for (size_t i = 0; st == INFERSCALE_OK && i < w->n; i++) st = read_file(e, w->list[i], span, n_span, &heads[i], &parts[i]);
    if (st == INFERSCALE_OK) st = is_segment_merge((const is_segment *const *)parts, heads, w->n, e->model->geometry, rows);
    if (st == INFERSCALE_E_INVALID || st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN) /* the workers' fault, not the caller's */
        st = is_fail(INFERSCALE_E_ENGINE, "captured rows are not whole (%.300s); all workers must write to this store's vllm/spool", is_error());
    for (size_t i = 0; parts && i < w->n; i++) is_segment_unref(parts[i]);
    is_free(parts);
    is_free(heads);
    return st;
}

is_status vllm_spool_take(vllm *e, const uint8_t id[16], const int32_t *span, uint32_t n_span, float **rows)
{
    char hex[ID_HEX + 1];
    names w = { .prefix = hex };
    is_status st;

    vllm_arrivals_over(e, id);
    is_hex(id, 16, hex);
    st = is_fs_default()->list(is_fs_default(), e->spool->dir, note_name, &w);
    if (st == INFERSCALE_OK) st = read_all(e, &w, span, n_span, rows);
    for (size_t i = 0; i < w.n; i++) shred(e, w.list[i]);
    free_names(&w);
    return st;
}

/* ---- What failed ---------------------------------------------------------------------------------------------------------------- */

void vllm_spool_drop(vllm *e, const uint8_t id[16])
{
    vllm_spool *s = e->spool;
    char hex[ID_HEX + 1];

    vllm_arrivals_over(e, id);
    is_hex(id, 16, hex);
    clear(e, hex);
    pthread_mutex_lock(&s->guard);
    if (s->n_late < DROPPED) { /* the rest goes when the store is closed */
        memcpy(s->late[s->n_late].id, id, 16);
        s->late[s->n_late++].until_ms = is_now_ms() + LATE_MS;
    }
    pthread_mutex_unlock(&s->guard);
}

void vllm_spool_sweep(vllm *e)
{
    vllm_spool *s = e->spool;
    dropped late[DROPPED];
    uint32_t n, kept = 0;

    pthread_mutex_lock(&s->guard);
    n = s->n_late;
    memcpy(late, s->late, n * sizeof *late);
    for (uint32_t i = 0; i < n; i++)
        if (s->late[i].until_ms > is_now_ms()) s->late[kept++] = s->late[i];
    s->n_late = kept;
    pthread_mutex_unlock(&s->guard);
    for (uint32_t i = 0; i < n; i++) {
        char hex[ID_HEX + 1];

        is_hex(late[i].id, 16, hex);
        clear(e, hex);
    }
}
