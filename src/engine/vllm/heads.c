/* heads.c - stored rows of what prompts begin with.
 *
 * vLLM takes rows from outside only right behind its own prefix, which for a prompt that is new to it is nothing. So what stands before the
 * first stored fact is captured once, kept as a segment and injected with the facts; its rows are exact. Those of a client's own words
 * are kept under the client's tag, go with its epoch, and are not kept beyond this process; those of a profile are nobody's and stay.
 * Rows of one run's own (tail.c) are no header's and no exact ones: they have random names, and that run alone knows them.
 *
 * What is this process's own has its mark in the name (spool.c): another process that opens the store sees that it lives, and leaves it. */
#include "engine/vllm/internal.h"

#include <string.h>

#include "base/file.h"
#include "kv/vault.h"

enum { HEADS = 4096, DOUBT_MS = 10000 };

typedef enum head_state { HEAD_NONE, HEAD_SEEN, HEAD_MAKING, HEAD_THERE } head_state;

typedef struct head {
    uint8_t name[IS_HASH_BYTES], tag[IS_HASH_BYTES];
    uint64_t epoch;                 /* of the tag, when it was made or asked for last */
    head_state state;
    bool doomed;                    /* its epoch went while it was made */
    uint64_t used;
    double doubted_ms;              /* when its file was looked at last, because a server could not use it */
} head;

struct vllm_heads {
    pthread_mutex_t lock;           /* of the table; files are touched outside it */
    is_vault *vault;
    head *table;                    /* [HEADS] */
    uint64_t clock;
    uint32_t n;
};

static const uint8_t nobody[IS_HASH_BYTES];

static is_status name_of(vllm *e, const uint8_t *tag, const uint8_t *fingerprint, const int32_t *tokens, uint32_t n,
                         uint8_t out[IS_HASH_BYTES])
{
    uint8_t secret[IS_KEY_BYTES];
    is_hash *h;
    is_status st;

    vllm_secret_get(e, secret);
    st = is_hash_new(secret, &h);
    memset(secret, 0, sizeof secret);
    if (st != INFERSCALE_OK) return st;
    is_hash_field(h, "inferscale head 1", 17);
    is_hash_field(h, tag, IS_HASH_BYTES);
    is_hash_field(h, fingerprint, IS_HASH_BYTES);
    is_hash_field(h, tokens, n * sizeof *tokens);
    is_hash_end(h, out);
    if (memcmp(tag, nobody, IS_HASH_BYTES) != 0) vllm_spool_sign(e, out);
    return INFERSCALE_OK;
}

/* ---- Open: what is not nobody's goes ------------------------------------------------------------------------------------------- */

typedef struct walk { vllm *e; const char *dir; uint64_t n_gone; } walk;

static is_status look_at_file(void *ctx, const char *name, bool is_dir)
{
    walk *w = ctx;
    char *path = is_path_join(w->dir, name);
    is_segment *s = NULL;
    uint8_t own[IS_HASH_BYTES];
    bool keep = false;

    if (!path) return vllm_no_memory();
    if (!is_dir && is_segment_read_bare(is_fs_default(), path, &s) == INFERSCALE_OK) {
        const is_segment_desc *d = is_segment_info(s);

        keep = vllm_spool_lives(w->e, d->name) ||
               (name_of(w->e, nobody, d->fingerprint, d->tokens, d->n_tokens, own) == INFERSCALE_OK &&
                memcmp(own, d->name, IS_HASH_BYTES) == 0);
    }
    is_segment_unref(s);
    if (!is_dir && !keep && is_file_shred(is_fs_default(), path) == INFERSCALE_OK) w->n_gone++;
    is_free(path);
    return INFERSCALE_OK;
}

static is_status look_at_folder(void *ctx, const char *name, bool is_dir)
{
    walk *w = ctx;
    char *dir;
    is_status st;

    if (!is_dir || strlen(name) != 2) return INFERSCALE_OK;
    dir = is_path_join(w->dir, name);
    if (!dir) return vllm_no_memory();
    st = is_fs_default()->list(is_fs_default(), dir, look_at_file, &(walk){ .e = w->e, .dir = dir });
    is_free(dir);
    return st;
}

is_status vllm_heads_open(vllm *e, vllm_heads **out)
{
    vllm_heads *h = is_calloc(1, sizeof *h);
    char *dir = is_path_join(e->dir, "heads");
    is_status st = h && dir ? INFERSCALE_OK : vllm_no_memory();

    *out = h;
    if (st == INFERSCALE_OK) {
        pthread_mutex_init(&h->lock, NULL);
        h->table = is_calloc(HEADS, sizeof *h->table);
        st = h->table ? is_vault_open(is_fs_default(), dir, 0, false, &h->vault) : vllm_no_memory();
    }
    if (st == INFERSCALE_OK) st = is_fs_default()->set_mode(is_fs_default(), dir, 0700);
    if (st == INFERSCALE_OK) st = is_fs_default()->list(is_fs_default(), dir, look_at_folder, &(walk){ .e = e, .dir = dir });
    is_free(dir);
    return st;
}

void vllm_heads_close(vllm_heads *h)
{
    if (!h) return;
    for (uint32_t i = 0; h->table && i < h->n; i++)
        if (h->table[i].state == HEAD_THERE && memcmp(h->table[i].tag, nobody, IS_HASH_BYTES) != 0) is_vault_remove(h->vault, h->table[i].name);
    is_vault_close(h->vault);
    if (h->table) pthread_mutex_destroy(&h->lock);
    is_free(h->table);
    is_free(h);
}

/* ---- The table ------------------------------------------------------------------------------------------------------------------- */

/* Under the lock. *gone: a name whose file must go, since its place was taken; else zero. NULL: all places are at work. */
static head *find(vllm_heads *h, const uint8_t *name, const uint8_t *tag, uint8_t gone[IS_HASH_BYTES])
{
    head *oldest = NULL;

    memset(gone, 0, IS_HASH_BYTES);
    for (uint32_t i = 0; i < h->n; i++) {
        head *x = &h->table[i];

        if (memcmp(x->name, name, IS_HASH_BYTES) == 0) return x;
        if (x->state != HEAD_MAKING && (!oldest || x->used < oldest->used)) oldest = x;
    }
    if (h->n < HEADS) oldest = &h->table[h->n++];
    else if (oldest && oldest->state == HEAD_THERE && memcmp(oldest->tag, nobody, IS_HASH_BYTES) != 0) memcpy(gone, oldest->name, IS_HASH_BYTES);
    if (!oldest) return NULL;
    *oldest = (head){ .state = HEAD_NONE };
    memcpy(oldest->name, name, IS_HASH_BYTES);
    memcpy(oldest->tag, tag, IS_HASH_BYTES);
    return oldest;
}

/* What is to be done about it: THERE (use it), MAKING (make it: it is ours), SEEN (leave it). */
static head_state decide(vllm_heads *h, const uint8_t *name, const uint8_t *tag, uint64_t epoch, bool there, bool soon)
{
    uint8_t gone[IS_HASH_BYTES];
    head_state out = HEAD_SEEN;
    head *x;

    pthread_mutex_lock(&h->lock);
    x = find(h, name, tag, gone);
    if (x) {
        x->used = ++h->clock;
        if (x->epoch < epoch) x->epoch = epoch;
        if (x->state == HEAD_MAKING) out = HEAD_SEEN;
        else if (there) out = x->state = HEAD_THERE;
        else if (soon || x->state != HEAD_NONE) out = x->state = HEAD_MAKING, x->doomed = false;
        else x->state = HEAD_SEEN;
    }
    pthread_mutex_unlock(&h->lock);
    if (memcmp(gone, nobody, IS_HASH_BYTES) != 0) is_vault_remove(h->vault, gone);
    return out;
}

/* The making is over. True if its rows may be used: their epoch has not gone meanwhile. */
static bool made(vllm_heads *h, const uint8_t *name, bool good)
{
    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->n; i++)
        if (memcmp(h->table[i].name, name, IS_HASH_BYTES) == 0) {
            good = good && !h->table[i].doomed;
            h->table[i].state = good ? HEAD_THERE : HEAD_SEEN;
        }
    pthread_mutex_unlock(&h->lock);
    return good;
}

/* ---- Making ------------------------------------------------------------------------------------------------------------------------ */

static void free_rows(const is_geometry *g, float **rows)
{
    for (uint32_t p = 0; rows && p < g->n_planes; p++) is_free(rows[p]);
    is_free(rows);
}

/* how NULL: of a header. */
static is_status make(vllm *e, const uint8_t *name, is_capture *c, vllm_rows_how *how)
{
    const is_geometry *g = e->model->geometry;
    is_segment_desc d = { .codec = e->model->codec, .n_tokens = c->n_span, .tokens = c->span, .geometry = g };
    is_segment *s = NULL;
    is_status st = INFERSCALE_OK;

    c->rows = is_calloc(g->n_planes + 1, sizeof *c->rows);
    for (uint32_t p = 0; c->rows && st == INFERSCALE_OK && p < g->n_planes; p++) {
        c->rows[p] = is_malloc((size_t)c->n_span * is_plane_width(&g->planes[p]) * sizeof **c->rows);
        if (!c->rows[p]) st = vllm_no_memory();
    }
    if (!c->rows) st = vllm_no_memory();
    memcpy(d.name, name, IS_HASH_BYTES);
    memcpy(d.fingerprint, e->model->fingerprint, IS_HASH_BYTES);
    if (st == INFERSCALE_OK) st = how ? vllm_capture_of_run(e, c, how) : vllm_capture(e, c, 1);
    if (st == INFERSCALE_OK) st = is_segment_new(&d, (const float *const *)c->rows, &s);
    if (st == INFERSCALE_OK) st = is_vault_put(e->heads->vault, s);
    is_segment_unref(s);
    free_rows(g, c->rows);
    c->rows = NULL;
    return st;
}

is_status vllm_heads_get(vllm *e, const is_realm *realm, const int32_t *tokens, uint32_t n, bool soon, vllm_flags flags, vllm_part *out)
{
    const uint8_t *tag = realm ? realm->tag : nobody;
    is_capture c = { .span = tokens, .n_span = n, .cancel = flags.cancel, .realm = realm };
    vllm_heads *h = e->heads;
    is_status st;

    *out = (vllm_part){ .head = true, .n_tokens = n };
    IS_TRY(name_of(e, tag, e->model->fingerprint, tokens, n, out->name));
    if (realm) vllm_heads_forget(h, tag, realm->epoch); /* another process may have raised it */
    switch (decide(h, out->name, tag, realm ? realm->epoch : 0, is_vault_has(h->vault, out->name), soon)) {
    case HEAD_THERE: break;
    case HEAD_MAKING:
        st = make(e, out->name, &c, NULL);
        if (st == INFERSCALE_OK) VLLM_COUNT(e, heads_made, 1);
        if (made(h, out->name, st == INFERSCALE_OK)) break;
        is_vault_remove(h->vault, out->name);
        return st == INFERSCALE_OK ? is_fail(INFERSCALE_E_NOTFOUND, "its epoch is over") : st;
    default: return is_fail(INFERSCALE_E_NOTFOUND, "the header's rows are not there yet");
    }
    VLLM_COUNT(e, heads_used, 1);
    return INFERSCALE_OK;
}

is_status vllm_heads_own(vllm *e, is_capture *c, vllm_rows_how *how, uint8_t name[IS_HASH_BYTES])
{
    uint8_t tag[IS_HASH_BYTES];
    vllm_heads *h = e->heads;
    is_status st;

    is_random(tag, sizeof tag); /* never nobody's: those stay */
    if (c->realm) memcpy(tag, c->realm->tag, sizeof tag);
    vllm_spool_name(e, name);
    if (decide(h, name, tag, c->realm ? c->realm->epoch : 0, false, true) != HEAD_MAKING)
        return is_fail(INFERSCALE_E_BUSY, "too many captures are under way; try again");
    st = make(e, name, c, how);
    if (made(h, name, st == INFERSCALE_OK)) return st;
    is_vault_remove(h->vault, name);
    return st == INFERSCALE_OK ? is_fail(INFERSCALE_E_STALE, "its epoch is over; ask again") : st;
}

void vllm_heads_disown(vllm *e, const uint8_t name[IS_HASH_BYTES])
{
    vllm_heads *h = e->heads;

    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->n; i++)
        if (memcmp(h->table[i].name, name, IS_HASH_BYTES) == 0) {
            h->table[i].state = HEAD_NONE;
            h->table[i].used = 0; /* its place is the next one to be given away */
        }
    pthread_mutex_unlock(&h->lock);
    if (is_vault_remove(h->vault, name) != INFERSCALE_OK) is_log(IS_LOG_WARN, "rows of a turn that is over stay for now: %s", is_error());
}

/* Is it to be looked at? Of what is not in the table nothing is known here. */
static bool may_doubt(vllm_heads *h, const uint8_t *name)
{
    bool may = false;

    pthread_mutex_lock(&h->lock);
    for (uint32_t i = 0; i < h->n; i++) {
        head *x = &h->table[i];

        if (x->state != HEAD_THERE || memcmp(x->name, name, IS_HASH_BYTES) != 0) continue;
        may = !x->doubted_ms || is_now_ms() - x->doubted_ms >= DOUBT_MS;
        if (may) x->doubted_ms = is_now_ms();
    }
    pthread_mutex_unlock(&h->lock);
    return may;
}

void vllm_heads_doubt(vllm *e, const uint8_t name[IS_HASH_BYTES])
{
    vllm_heads *h = e->heads;

    if (!may_doubt(h, name) || is_vault_doubt(h->vault, name) != INFERSCALE_E_NOTFOUND) return;
    is_log(IS_LOG_WARN, "the rows of a prompt's header are missing or damaged; they are captured anew");
    if (is_vault_remove(h->vault, name) != INFERSCALE_OK) is_log(IS_LOG_WARN, "damaged rows of a header stay for now: %s", is_error());
}

void vllm_heads_forget(vllm_heads *h, const uint8_t *tag, uint64_t epoch)
{
    for (uint32_t i = 0;; i++) {
        uint8_t name[IS_HASH_BYTES];
        bool remove = false;

        pthread_mutex_lock(&h->lock);
        while (i < h->n && (h->table[i].epoch >= epoch || memcmp(h->table[i].tag, tag, IS_HASH_BYTES) != 0)) i++;
        if (i < h->n) {
            head *x = &h->table[i];

            memcpy(name, x->name, IS_HASH_BYTES);
            if (x->state == HEAD_MAKING) x->doomed = true;
            remove = x->state == HEAD_THERE;
            if (remove) x->state = HEAD_SEEN;
        }
        pthread_mutex_unlock(&h->lock);
        if (i >= h->n) return;
        if (remove && is_vault_remove(h->vault, name) != INFERSCALE_OK)
            is_log(IS_LOG_WARN, "rows of a forgotten header stay for now: %s", is_error());
    }
}
