#include "support/fault_disk.h"

#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECTOR = 512 };

typedef struct change { /* of a file's bytes; bytes NULL: its size becomes `at` */
    uint64_t at;
    size_t n;
    uint8_t *bytes;
} change;

struct fault_inode {
    uint8_t *data;           /* as of the last sync */
    size_t n;
    change *changes;         /* since then */
    size_t n_changes, cap;
    bool is_dir;
    fault_inode *next;
};

typedef struct names { struct name { char *path; fault_inode *inode; } *v; size_t n, cap; } names;

enum op_kind { OP_ENTER, OP_RENAME, OP_UNLINK };
typedef struct op { enum op_kind kind; char *from, *to; fault_inode *inode; bool now; } op; /* of a folder's names; `to` is the name */

struct fault_disk {
    char *root;
    pthread_mutex_t lock;
    names live, durable;
    op *ops;
    size_t n_ops, cap_ops;
    fault_inode *inodes;     /* all there ever were */
    fault_disk_point_fn fn;
    void *ctx;
};

const char *fault_fate_name(enum fault_fate fate)
{
    static const char *const all[FATES] = { "drop", "keep", "tear", "garble", "mix" };

    return fate < FATES ? all[fate] : "?";
}

static void *need(void *p)
{
    if (!p) abort();
    return p;
}

static uint64_t next(uint64_t *seed)
{
    uint64_t z = *seed += 0x9E3779B97F4A7C15u; /* splitmix64 */

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* ---- Names --------------------------------------------------------------------------------------------------------------- */

static fault_inode *find(const names *list, const char *path)
{
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->v[i].path, path)) return list->v[i].inode;
    return NULL;
}

static void drop(names *list, const char *path)
{
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->v[i].path, path)) continue;
        free(list->v[i].path);
        list->v[i] = list->v[--list->n];
        return;
    }
}

static void enter(names *list, const char *path, fault_inode *inode)
{
    drop(list, path);
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 64;
        list->v = need(realloc(list->v, list->cap * sizeof *list->v));
    }
    list->v[list->n].path = need(strdup(path));
    list->v[list->n++].inode = inode;
}

static void names_free(names *list)
{
    for (size_t i = 0; i < list->n; i++) free(list->v[i].path);
    free(list->v);
}

static void apply(names *list, const op *o)
{
    if (o->kind != OP_ENTER) drop(list, o->kind == OP_RENAME ? o->from : o->to);
    if (o->kind != OP_UNLINK) enter(list, o->to, o->inode);
}

static bool lies_in(const char *path, const char *dir)
{
    size_t n = strlen(dir);

    return path && !strncmp(path, dir, n) && path[n] == '/' && !strchr(path + n + 1, '/');
}

static bool same(const char *a, const char *b)
{
    return a && b && !strcmp(a, b);
}

static bool related(const op *a, const op *b)
{
    return a->inode == b->inode || same(a->to, b->to) || same(a->to, b->from) || same(a->from, b->to) || same(a->from, b->from);
}

/* Operations that are marked become durable; so do the earlier ones on the same files and names, without which they mean nothing. */
static void settle(fault_disk *d)
{
    size_t kept = 0;

    for (size_t i = d->n_ops; i-- > 0;)
        for (size_t j = 0; d->ops[i].now && j < i; j++)
            if (related(&d->ops[j], &d->ops[i])) d->ops[j].now = true;
    for (size_t i = 0; i < d->n_ops; i++) {
        op *o = &d->ops[i];

        if (!o->now) {
            d->ops[kept++] = *o;
            continue;
        }
        apply(&d->durable, o);
        free(o->from);
        free(o->to);
    }
    d->n_ops = kept;
}

static void add_op(fault_disk *d, enum op_kind kind, const char *from, const char *to, fault_inode *inode, bool now)
{
    if (d->n_ops == d->cap_ops) {
        d->cap_ops = d->cap_ops ? 2 * d->cap_ops : 64;
        d->ops = need(realloc(d->ops, d->cap_ops * sizeof *d->ops));
    }
    d->ops[d->n_ops] = (op){ kind, from ? need(strdup(from)) : NULL, need(strdup(to)), inode, now };
    apply(&d->live, &d->ops[d->n_ops++]);
    if (now) settle(d);
}

static fault_inode *new_inode(fault_disk *d, bool is_dir)
{
    fault_inode *f = need(calloc(1, sizeof *f));

    f->is_dir = is_dir;
    f->next = d->inodes;
    d->inodes = f;
    return f;
}

/* ---- Bytes --------------------------------------------------------------------------------------------------------------- */

typedef struct bytes { uint8_t *p; size_t n, cap; } bytes;

static void resize(bytes *b, size_t n)
{
    if (n > b->cap) {
        b->cap = 2 * n;
        b->p = need(realloc(b->p, b->cap));
    }
    if (n > b->n) memset(b->p + b->n, 0, n - b->n);
    b->n = n;
}

static void put(bytes *b, uint64_t at, const uint8_t *p, size_t n)
{
    if (at + n > b->n) resize(b, (size_t)at + n);
    memcpy(b->p + at, p, n);
}

/* Sector by sector: there, missing or (noise) spoilt. */
static void put_torn(bytes *b, const change *c, bool noise, uint64_t *seed)
{
    for (size_t done = 0; done < c->n;) {
        size_t room = SECTOR - (size_t)((c->at + done) % SECTOR), n = c->n - done < room ? c->n - done : room;
        bool spoil = noise && next(seed) % 2;
        uint8_t sector[SECTOR];

        memcpy(sector, c->bytes + done, n);
        for (size_t i = 0; spoil && i < n; i++) sector[i] = (uint8_t)next(seed);
        if (noise || next(seed) % 2) put(b, c->at + done, sector, n);
        done += n;
    }
}

static void put_change(bytes *b, const change *c, enum fault_fate fate, uint64_t *seed)
{
    if (fate == FATE_MIX) fate = (enum fault_fate)(next(seed) % FATE_MIX);
    if (fate == FATE_GARBLE && next(seed) % 3 == 0) fate = next(seed) % 2 ? FATE_KEEP : FATE_DROP;
    if (fate == FATE_DROP) return;
    if (!c->bytes) {
        if (fate == FATE_KEEP || next(seed) % 2) resize(b, (size_t)c->at);
    } else if (fate == FATE_KEEP) {
        put(b, c->at, c->bytes, c->n);
    } else {
        put_torn(b, c, fate == FATE_GARBLE, seed);
    }
}

static bytes survives(const fault_inode *f, enum fault_fate fate, uint64_t *seed)
{
    bytes b = { 0 };

    resize(&b, f->n);
    if (f->n) memcpy(b.p, f->data, f->n);
    for (size_t i = 0; i < f->n_changes; i++) put_change(&b, &f->changes[i], fate, seed);
    return b;
}

static void forget_changes(fault_inode *f)
{
    for (size_t i = 0; i < f->n_changes; i++) free(f->changes[i].bytes);
    f->n_changes = 0;
}

static void add_change(fault_disk *d, fault_inode *f, change c)
{
    pthread_mutex_lock(&d->lock);
    if (f->n_changes == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 16;
        f->changes = need(realloc(f->changes, f->cap * sizeof *f->changes));
    }
    f->changes[f->n_changes++] = c;
    pthread_mutex_unlock(&d->lock);
    fault_disk_point(d);
}

/* ---- For the layers ------------------------------------------------------------------------------------------------------ */

void fault_disk_write(fault_disk *d, fault_inode *f, const void *p, size_t n, uint64_t at)
{
    change c = { at, n, need(malloc(n ? n : 1)) };

    memcpy(c.bytes, p, n);
    add_change(d, f, c);
}

void fault_disk_truncate(fault_disk *d, fault_inode *f, uint64_t size)
{
    add_change(d, f, (change){ .at = size });
}

void fault_disk_sync(fault_disk *d, fault_inode *f, bool and_name)
{
    uint64_t seed = 0;
    bytes b;

    pthread_mutex_lock(&d->lock);
    b = survives(f, FATE_KEEP, &seed);
    free(f->data);
    f->data = b.p;
    f->n = b.n;
    forget_changes(f);
    for (size_t i = 0; and_name && i < d->n_ops; i++) d->ops[i].now = d->ops[i].inode == f;
    settle(d);
    pthread_mutex_unlock(&d->lock);
}

fault_inode *fault_disk_open(fault_disk *d, const char *path, bool created)
{
    fault_inode *f;

    pthread_mutex_lock(&d->lock);
    f = find(&d->live, path);
    if (!f || created) {
        f = new_inode(d, false);
        add_op(d, OP_ENTER, NULL, path, f, false);
        created = true;
    }
    pthread_mutex_unlock(&d->lock);
    if (created) fault_disk_point(d);
    return f;
}

void fault_disk_mkdirs(fault_disk *d, const char *path)
{
    char *copy = need(strdup(path));
    bool made = false;

    pthread_mutex_lock(&d->lock);
    for (char *at = copy + strlen(d->root);; at++) {
        char end = *at;

        if (end && end != '/') continue;
        *at = 0;
        if (strlen(copy) > strlen(d->root) && !find(&d->live, copy)) {
            add_op(d, OP_ENTER, NULL, copy, new_inode(d, true), false);
            made = true;
        }
        *at = end;
        if (!end) break;
    }
    pthread_mutex_unlock(&d->lock);
    free(copy);
    if (made) fault_disk_point(d);
}

void fault_disk_rename(fault_disk *d, const char *from, const char *to)
{
    pthread_mutex_lock(&d->lock);
    if (find(&d->live, from)) add_op(d, OP_RENAME, from, to, find(&d->live, from), false);
    pthread_mutex_unlock(&d->lock);
    fault_disk_point(d);
}

void fault_disk_link(fault_disk *d, const char *from, const char *to)
{
    pthread_mutex_lock(&d->lock);
    if (find(&d->live, from)) add_op(d, OP_ENTER, NULL, to, find(&d->live, from), false);
    pthread_mutex_unlock(&d->lock);
    fault_disk_point(d);
}

void fault_disk_unlink(fault_disk *d, const char *path, bool durable)
{
    pthread_mutex_lock(&d->lock);
    if (find(&d->live, path)) add_op(d, OP_UNLINK, NULL, path, find(&d->live, path), durable);
    pthread_mutex_unlock(&d->lock);
    fault_disk_point(d);
}

void fault_disk_sync_dir(fault_disk *d, const char *path)
{
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < d->n_ops; i++) d->ops[i].now = lies_in(d->ops[i].to, path) || lies_in(d->ops[i].from, path);
    settle(d);
    pthread_mutex_unlock(&d->lock);
}

void fault_disk_on_point(fault_disk *d, fault_disk_point_fn fn, void *ctx)
{
    d->fn = fn;
    d->ctx = ctx;
}

void fault_disk_point(fault_disk *d)
{
    if (d->fn) d->fn(d->ctx, d);
}

size_t fault_disk_pending(fault_disk *d)
{
    size_t n;

    pthread_mutex_lock(&d->lock);
    n = d->n_ops;
    for (const fault_inode *f = d->inodes; f; f = f->next) n += f->n_changes;
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* ---- The image ----------------------------------------------------------------------------------------------------------- */

static bool folders_survive(const fault_disk *d, const names *left, const char *path)
{
    char *copy = need(strdup(path)), *slash;
    bool all = true;

    while (all && (slash = strrchr(copy, '/')) != NULL && (size_t)(slash - copy) > strlen(d->root)) {
        *slash = 0;
        all = find(left, copy) != NULL;
    }
    free(copy);
    return all;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct name *)a)->path, ((const struct name *)b)->path);
}

static void write_out(const char *path, const bytes *b)
{
    FILE *f = need(fopen(path, "wb"));

    if (b->n && fwrite(b->p, 1, b->n, f) != b->n) abort();
    if (fclose(f) != 0 || chmod(path, 0600) != 0) abort();
}

void fault_disk_image(fault_disk *d, const char *to, enum fault_fate fate, uint64_t seed)
{
    names left = { 0 };
    size_t n_ops;

    if (mkdir(to, 0700) != 0) abort();
    pthread_mutex_lock(&d->lock);
    for (size_t i = 0; i < d->durable.n; i++) enter(&left, d->durable.v[i].path, d->durable.v[i].inode);
    n_ops = fate == FATE_DROP ? 0 : fate == FATE_KEEP ? d->n_ops : (size_t)(next(&seed) % (d->n_ops + 1));
    for (size_t i = 0; i < n_ops; i++) apply(&left, &d->ops[i]);
    if (left.n) qsort(left.v, left.n, sizeof *left.v, by_path); /* folders before what is in them */
    for (size_t i = 0; i < left.n; i++) {
        char path[4096];

        if (!folders_survive(d, &left, left.v[i].path)) continue;
        snprintf(path, sizeof path, "%s%s", to, left.v[i].path + strlen(d->root));
        if (left.v[i].inode->is_dir) {
            if (mkdir(path, 0700) != 0) abort();
        } else {
            bytes b = survives(left.v[i].inode, fate, &seed);

            write_out(path, &b);
            free(b.p);
        }
    }
    pthread_mutex_unlock(&d->lock);
    names_free(&left);
}

/* ---- Making one ---------------------------------------------------------------------------------------------------------- */

static _Thread_local fault_disk *loading;

static int load_one(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    fault_inode *f;

    (void)ftw;
    if (strlen(path) > 4 && !strcmp(path + strlen(path) - 4, "-shm")) return 0;
    if (!strcmp(path, loading->root) || (type != FTW_F && type != FTW_D)) return 0;
    f = new_inode(loading, type == FTW_D);
    if (type == FTW_F) {
        FILE *in = need(fopen(path, "rb"));

        f->n = (size_t)s->st_size;
        f->data = need(malloc(f->n ? f->n : 1));
        if (fread(f->data, 1, f->n, in) != f->n) abort();
        fclose(in);
    }
    enter(&loading->live, path, f);
    enter(&loading->durable, path, f);
    return 0;
}

fault_disk *fault_disk_new(const char *root)
{
    fault_disk *d = need(calloc(1, sizeof *d));

    d->root = need(realpath(root, NULL));
    pthread_mutex_init(&d->lock, NULL);
    loading = d;
    nftw(d->root, load_one, 16, FTW_PHYS);
    return d;
}

void fault_disk_free(fault_disk *d)
{
    if (!d) return;
    for (fault_inode *f = d->inodes, *after; f; f = after) {
        after = f->next;
        forget_changes(f);
        free(f->changes);
        free(f->data);
        free(f);
    }
    for (size_t i = 0; i < d->n_ops; i++) {
        free(d->ops[i].from);
        free(d->ops[i].to);
    }
    free(d->ops);
    names_free(&d->live);
    names_free(&d->durable);
    pthread_mutex_destroy(&d->lock);
    free(d->root);
    free(d);
}

bool fault_disk_has(const fault_disk *d, const char *path)
{
    size_t n = strlen(d->root);

    return path && !strncmp(path, d->root, n) && (path[n] == '/' || !path[n]);
}
