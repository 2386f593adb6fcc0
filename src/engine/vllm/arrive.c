/* arrive.c - captured rows that workers on other hosts bring over HTTP: piece by piece into the spool, under the names that workers on this
 * host give their files.
 *
 * Nothing is written that was not asked for: a name's first half is the id of a capture that is under way, and its file cannot be larger than
 * the rows of that capture's span. */
#include "engine/vllm/internal.h"

#include <string.h>

#include "base/file.h"

enum { ID_HEX = 32, RANK_DIGITS = 5, SLACK = 1 << 20 };

typedef struct arrival {
    uint8_t id[16];
    uint64_t most;                  /* bytes of one file */
    uint32_t n_whole;
    double since;
} arrival;

struct vllm_arrivals {
    pthread_mutex_t lock;           /* of the list, and of writing: an id that was taken off it is not written to any more */
    arrival *list;
    size_t n, cap;
};

is_status vllm_arrivals_new(vllm *e)
{
    e->arrivals = is_calloc(1, sizeof *e->arrivals);
    if (!e->arrivals) return vllm_no_memory();
    pthread_mutex_init(&e->arrivals->lock, NULL);
    return INFERSCALE_OK;
}

void vllm_arrivals_free(vllm *e)
{
    if (!e->arrivals) return;
    pthread_mutex_destroy(&e->arrivals->lock);
    is_free(e->arrivals->list);
    is_free(e->arrivals);
    e->arrivals = NULL;
}

/* ---- What is expected ---------------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static arrival *find(vllm_arrivals *a, const uint8_t id[16])
{
    for (size_t i = 0; i < a->n; i++)
        if (memcmp(a->list[i].id, id, 16) == 0) return &a->list[i];
    return NULL;
}

/* A segment of all planes in F32, its head, and room for what stands between planes. */
static uint64_t most_of(const vllm *e, uint32_t n_span)
{
    uint64_t n = SLACK + 4 * (uint64_t)n_span;

    for (uint32_t p = 0; p < e->model->geometry->n_planes; p++)
        n += 256 + 8 * (uint64_t)e->model->geometry->planes[p].n_heads + 4 * (uint64_t)n_span * is_plane_width(&e->model->geometry->planes[p]);
    return n;
}

is_status vllm_arrivals_expect(vllm *e, const uint8_t id[16], uint32_t n_span)
{
    vllm_arrivals *a = e->arrivals;
    is_status st = INFERSCALE_OK;

    pthread_mutex_lock(&a->lock);
    if (a->n == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 32;
        arrival *list = is_realloc(a->list, cap * sizeof *list);

        if (list) a->list = list, a->cap = cap;
        else st = vllm_no_memory();
    }
    if (st == INFERSCALE_OK) {
        a->list[a->n] = (arrival){ .most = most_of(e, n_span), .since = is_now_ms() };
        memcpy(a->list[a->n++].id, id, 16);
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

void vllm_arrivals_over(vllm *e, const uint8_t id[16])
{
    vllm_arrivals *a = e->arrivals;
    arrival *x;

    pthread_mutex_lock(&a->lock);
    x = find(a, id);
    if (x) *x = a->list[--a->n];
    pthread_mutex_unlock(&a->lock);
}

uint32_t vllm_arrivals_count(vllm *e, const uint8_t id[16], double *since)
{
    vllm_arrivals *a = e->arrivals;
    const arrival *x;
    uint32_t n;

    pthread_mutex_lock(&a->lock);
    x = find(a, id);
    n = x ? x->n_whole : 0;
    *since = x ? x->since : 0;
    pthread_mutex_unlock(&a->lock);
    return n;
}

/* ---- A piece ----------------------------------------------------------------------------------------------------------------------- */

/* ".N" at *p, as the workers write numbers. */
static bool skip_rank(const char **p)
{
    size_t n;

    if (**p != '.') return false;
    n = strspn(*p + 1, "0123456789");
    if (n == 0 || n > RANK_DIGITS || (n > 1 && (*p)[1] == '0')) return false;
    *p += 1 + n;
    return true;
}

/* IDHEX.P.H and nothing else: it becomes a file's name. */
static bool read_name(const char *name, uint8_t id[16])
{
    const char *p = name + ID_HEX;

    return is_unhex(name, 16, id) && skip_rank(&p) && skip_rank(&p) && !*p;
}

/* Opens the file that grows, or begins it anew. *size: what it had. */
static is_status open_part(const is_fs *fs, const char *path, uint64_t at, uint64_t *size, is_file **out)
{
    is_stat was = { 0 };
    is_status st;

    *size = 0;
    if (at == 0) {
        if (fs->exists(fs, path) && fs->stat(fs, path, &was) == INFERSCALE_OK) *size = was.bytes;
        IS_TRY(is_file_shred(fs, path));
        return fs->open(fs, path, IS_OPEN_CREATE_NEW, out);
    }
    st = fs->open(fs, path, IS_OPEN_RDWR, out);
    if (st == INFERSCALE_OK) st = fs->size(fs, *out, size);
    if (st == INFERSCALE_E_NOTFOUND || (st == INFERSCALE_OK && *size < at))
        st = is_fail(INFERSCALE_E_STALE, "a piece of captured rows before its forerunner; send the file from its beginning");
    return st;
}

/* *grown: there is more of it than before this piece. *whole: it has become whole by it. */
static is_status write_piece(const char *path, const is_rows_piece *p, bool *grown, bool *whole)
{
    const is_fs *fs = is_fs_default();
    is_buf part = IS_BUF_INIT;
    is_file *f = NULL;
    uint64_t size = 0;
    is_status st;

    if (fs->exists(fs, path)) return INFERSCALE_OK; /* its last piece came before, and only the answer was lost */
    is_buf_fmt(&part, "%s.part", path);
    st = is_buf_ok(&part) ? open_part(fs, (const char *)part.data, p->at, &size, &f) : vllm_no_memory();
    if (st == INFERSCALE_OK) st = fs->pwrite(fs, f, p->data, p->n, p->at);
    if (f) fs->close(fs, f);
    *grown = st == INFERSCALE_OK && p->at + p->n > size;
    if (st == INFERSCALE_OK && p->at + p->n == p->total) {
        st = fs->rename(fs, (const char *)part.data, path);
        *whole = st == INFERSCALE_OK;
    }
    is_buf_free(&part);
    return st;
}

static is_status take_piece(vllm *e, const uint8_t id[16], const is_rows_piece *p)
{
    arrival *x = find(e->arrivals, id);
    is_buf path = IS_BUF_INIT;
    bool grown = false, whole = false;
    is_status st;

    if (!x || p->total > x->most) return is_fail(INFERSCALE_E_NOTFOUND, "no rows of this name and size are waited for; give them up");
    is_buf_fmt(&path, "%s/spool/%s", e->dir, p->name);
    st = is_buf_ok(&path) ? write_piece((const char *)path.data, p, &grown, &whole) : vllm_no_memory();
    is_buf_free(&path);
    if (st != INFERSCALE_OK) return st;
    x->n_whole += whole;
    if (grown) x->since = is_now_ms(); /* who sends the same again and again is not waited for */
    return st;
}

is_status vllm_worker_rows(void *impl, const is_rows_piece *p)
{
    vllm *e = impl;
    uint8_t id[16];
    is_status st;

    if (!read_name(p->name, id)) return is_fail(INFERSCALE_E_INVALID, "captured rows are named ID.PIPELINE.HEAD; this is another name");
    if (!p->n || p->at > p->total || p->n > p->total - p->at) return is_fail(INFERSCALE_E_INVALID, "a piece of captured rows beyond their end");
    pthread_mutex_lock(&e->arrivals->lock);
    st = take_piece(e, id, p);
    pthread_mutex_unlock(&e->arrivals->lock);
    return st;
}

is_status vllm_worker_secret(void *impl, uint8_t out[IS_KEY_BYTES])
{
    vllm_secret_get(impl, out);
    return INFERSCALE_OK;
}
