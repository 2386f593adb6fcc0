/* kv_live.c - a live model's KV as its engine describes it: opened once by a connector, asked whether segments fit it. */
#include "api/kv_live.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kv/kernels.h"

#define RAM_DEFAULT (UINT64_C(256) << 20)

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the live KV of an engine; lower ram_bytes or free memory");
}

/* ---- Open ------------------------------------------------------------------------------------------------------------------ */

static is_status take_planes(const inferscale_kv_desc *d, is_geometry *g)
{
    for (uint32_t i = 0; i < d->n_planes; i++) {
        const inferscale_plane *p = &d->planes[i];
        bool rotates = p->rot_dim > 0;

        if ((p->is_v != 0 && p->is_v != 1) || p->layer >= UINT16_MAX || p->pairing < 0 || p->pairing > IS_PAIR_HALVES ||
            rotates != (p->pairing != IS_PAIR_NONE) || (rotates && p->freq >= d->n_freqs))
            return is_fail(INFERSCALE_E_INVALID, "KV plane %u of a live model contradicts itself; see inferscale_plane", i);
        g->planes[i] = (is_plane){ .layer = p->layer, .is_v = (uint8_t)p->is_v, .n_heads = p->n_heads, .head_dim = p->head_dim,
                                   .window = p->window, .pairing = (uint8_t)p->pairing, .freq = 0xffff };
        if (rotates) {
            g->planes[i].rot_begin = p->rot_begin;
            g->planes[i].rot_dim = p->rot_dim;
            g->planes[i].freq = (uint16_t)p->freq;
        }
        if (p->layer >= g->n_layers) g->n_layers = p->layer + 1;
    }
    return INFERSCALE_OK;
}

static is_status take_freqs(const inferscale_kv_desc *d, is_geometry *g)
{
    for (uint32_t i = 0; i < d->n_freqs; i++) {
        const inferscale_kv_freqs *f = &d->freqs[i];

        if (!f->w || f->n_pairs < 1 || f->n_pairs > 4096)
            return is_fail(INFERSCALE_E_INVALID, "rotary embedding %u of a live model has no angles; give w[n_pairs]", i);
        g->freqs[i].w = is_malloc(f->n_pairs * sizeof *f->w);
        if (!g->freqs[i].w) return no_memory();
        memcpy(g->freqs[i].w, f->w, f->n_pairs * sizeof *f->w);
        g->freqs[i].n_pairs = f->n_pairs;
        g->freqs[i].mscale = f->mscale;
    }
    return INFERSCALE_OK;
}

static is_status take_geometry(inferscale_kv *kv, const inferscale_kv_desc *d)
{
    is_status st;

    if (d->n_planes < 1 || d->n_planes > 4096 || d->n_freqs > 1024 || !d->planes || (d->n_freqs && !d->freqs))
        return is_fail(INFERSCALE_E_INVALID, "a live model of %u KV planes and %u rotary embeddings; describe its layers", d->n_planes,
                       d->n_freqs);
    kv->geometry = is_geometry_new(d->n_planes, d->n_freqs);
    if (!kv->geometry) return no_memory();
    st = take_planes(d, kv->geometry);
    if (st == INFERSCALE_OK) st = take_freqs(d, kv->geometry);
    IS_TRY(st);
    IS_TRY(is_geometry_check(kv->geometry));
    is_geometry_write(kv->geometry, &kv->bytes);
    return is_buf_ok(&kv->bytes) ? INFERSCALE_OK : no_memory();
}

static is_status take_tables(inferscale_kv *kv, const inferscale_kv_desc *d)
{
    is_rope_own *own;
    is_status st;

    if (d->rotation < 0 || !is_rotate_known((uint32_t)d->rotation))
        return is_fail(INFERSCALE_E_INVALID, "unknown arithmetic %d of a rotation; use INFERSCALE_ROT_*", d->rotation);
    own = is_calloc(d->n_freqs ? d->n_freqs : 1, sizeof *own);
    if (!own) return no_memory();
    for (uint32_t i = 0; i < d->n_freqs; i++)
        own[i] = (is_rope_own){ .rows = d->freqs[i].table, .n_pos = d->freqs[i].n_pos, .how = (uint32_t)d->rotation };
    st = is_rope_new_own(kv->geometry, own, &kv->rope);
    is_free(own);
    return st;
}

static is_status take_dirs(inferscale_kv *kv, const inferscale_kv_desc *d)
{
    if (d->n_dirs > 1024 || (d->n_dirs && !d->dirs)) return is_fail(INFERSCALE_E_INVALID, "%u folders of segments; give dirs[n_dirs]", d->n_dirs);
    kv->dirs = is_calloc(d->n_dirs ? d->n_dirs : 1, sizeof *kv->dirs);
    if (!kv->dirs) return no_memory();
    for (; kv->n_dirs < d->n_dirs; kv->n_dirs++) {
        const char *dir = d->dirs[kv->n_dirs];

        if (!dir || !*dir) return is_fail(INFERSCALE_E_INVALID, "folder %u of segments has no name; give its path", kv->n_dirs);
        kv->dirs[kv->n_dirs] = is_strdup(dir);
        if (!kv->dirs[kv->n_dirs]) return no_memory();
    }
    return INFERSCALE_OK;
}

inferscale_status inferscale_kv_open(const inferscale_kv_desc *desc, inferscale_kv **out)
{
    inferscale_kv *kv;
    is_status st;

    if (out) *out = NULL;
    if (!desc || !out || desc->struct_size < sizeof *desc)
        return is_fail(INFERSCALE_E_INVALID, "inferscale_kv_open needs a description begun with INFERSCALE_KV_DESC_INIT and a place for its "
                       "result");
    kv = is_calloc(1, sizeof *kv);
    if (!kv) return no_memory();
    pthread_mutex_init(&kv->lock, NULL);
    kv->fs = is_fs_default();
    kv->ram.budget = desc->ram_bytes ? desc->ram_bytes : RAM_DEFAULT;
    head_tier_init(&kv->heads, IS_HEADS_BUDGET);
    memcpy(kv->fingerprint, desc->fingerprint, sizeof kv->fingerprint);
    st = take_geometry(kv, desc);
    if (st == INFERSCALE_OK) st = take_tables(kv, desc);
    if (st == INFERSCALE_OK) st = take_dirs(kv, desc);
    if (st != INFERSCALE_OK) {
        inferscale_kv_close(kv);
        return st;
    }
    *out = kv;
    return INFERSCALE_OK;
}

void inferscale_kv_close(inferscale_kv *kv)
{
    if (!kv) return;
    ram_clear(&kv->ram);
    head_tier_free(&kv->heads);
    pthread_mutex_destroy(&kv->lock);
    for (uint32_t i = 0; i < kv->n_dirs; i++) is_free(kv->dirs[i]);
    is_free(kv->dirs);
    is_rope_free(kv->rope);
    is_buf_free(&kv->bytes);
    is_geometry_free(kv->geometry);
    is_free(kv);
}

inferscale_status inferscale_kv_geometry(const inferscale_kv *kv, const uint8_t **bytes, size_t *n)
{
    if (!kv || !bytes || !n) return is_fail(INFERSCALE_E_INVALID, "inferscale_kv_geometry needs an open handle and places for its results");
    *bytes = kv->bytes.data;
    *n = kv->bytes.len;
    return INFERSCALE_OK;
}

/* ---- Segments of it ---------------------------------------------------------------------------------------------------------- */

char *kv_part_path(const inferscale_kv *kv, const inferscale_kv_part *part)
{
    char hex[IS_HASH_HEX];
    is_buf b = IS_BUF_INIT;

    is_hex(part->name, IS_HASH_BYTES, hex);
    is_buf_fmt(&b, "%s/%.2s/%s.seg", kv->dirs[part->dir], hex, hex);
    return is_buf_take(&b);
}

is_status kv_part_known(const inferscale_kv *kv, const inferscale_kv_part *part)
{
    if (part->dir >= kv->n_dirs)
        return is_fail(INFERSCALE_E_INVALID, "a part in folder %u of %u; give the folder's index in dirs", part->dir, kv->n_dirs);
    if (!part->n_tokens || (uint64_t)part->begin + part->n_tokens > UINT32_MAX)
        return is_fail(INFERSCALE_E_INVALID, "a part of %u tokens from %u; ask for tokens that are there", part->n_tokens, part->begin);
    return INFERSCALE_OK;
}

static is_status check_file(const inferscale_kv *kv, const inferscale_kv_part *part, const is_segment_desc *d)
{
    static const uint8_t unnamed[IS_HASH_BYTES]; /* as inferscale_kv_write leaves it */

    if (memcmp(d->name, part->name, IS_HASH_BYTES) && memcmp(d->name, unnamed, IS_HASH_BYTES))
        return is_fail(INFERSCALE_E_FOREIGN, "a KV segment's file has another segment's name; encode its facts again");
    if (memcmp(d->fingerprint, kv->fingerprint, IS_HASH_BYTES) || !is_geometry_equal(d->geometry, kv->geometry))
        return is_fail(INFERSCALE_E_FOREIGN, "a KV segment of another model; encode its facts for this one");
    if (part->begin + part->n_tokens > d->n_tokens)
        return is_fail(INFERSCALE_E_INVALID, "tokens %u to %u of a KV segment of %u; ask for tokens that are there", part->begin,
                       part->begin + part->n_tokens, d->n_tokens);
    return INFERSCALE_OK;
}

/* Where the file lies is not told: the sentence goes to the clients of whoever asked for the rows. */
is_status kv_not_there(void)
{
    return is_fail(INFERSCALE_E_NOTFOUND, "a KV segment is not in the store's folder as this worker sees it; its facts are computed as text "
                   "until they are encoded again");
}

is_status kv_open_part(inferscale_kv *kv, const inferscale_kv_part *part, is_segment_file **out)
{
    char *path = kv_part_path(kv, part);
    is_status st;

    *out = NULL;
    if (!path) return no_memory();
    st = is_segment_file_open(kv->fs, path, out);
    is_free(path);
    if (st == INFERSCALE_E_NOTFOUND) return kv_not_there();
    if (st == INFERSCALE_OK) st = check_file(kv, part, is_segment_file_info(*out));
    if (st == INFERSCALE_OK) return st;
    is_segment_file_close(*out);
    *out = NULL;
    return st;
}

inferscale_status inferscale_kv_check(inferscale_kv *kv, const inferscale_kv_part *part, const int32_t *prompt, uint32_t n_prompt)
{
    is_segment *head = NULL;
    char *path;
    is_status st;

    if (!kv || !part || !prompt) return is_fail(INFERSCALE_E_INVALID, "inferscale_kv_check needs an open handle, a part and the prompt");
    IS_TRY(kv_part_known(kv, part));
    if (part->pos > n_prompt || part->n_tokens > n_prompt - part->pos)
        return is_fail(INFERSCALE_E_INVALID, "a part of %u tokens at position %u of a prompt of %u; parts must lie in it", part->n_tokens,
                       part->pos, n_prompt);
    path = kv_part_path(kv, part);
    if (!path) return no_memory();
    st = head_tier_get(&kv->heads, kv->fs, path, part->name, part->dir, &head);
    is_free(path);
    if (st == INFERSCALE_E_NOTFOUND) return kv_not_there();
    if (st == INFERSCALE_OK) st = check_file(kv, part, is_segment_info(head));
    if (st == INFERSCALE_OK && memcmp(is_segment_info(head)->tokens + part->begin, prompt + part->pos, part->n_tokens * sizeof *prompt))
        st = is_fail(INFERSCALE_E_INVALID, "a KV segment of other tokens than the prompt's at position %u; the prompt is computed instead",
                     part->pos);
    is_segment_unref(head);
    return st;
}

void inferscale_kv_forget(inferscale_kv *kv, const uint8_t (*names)[32], size_t n)
{
    if (!kv || !names) return;
    pthread_mutex_lock(&kv->lock);
    kv->n_forgotten++;
    ram_forget(&kv->ram, names, n);
    pthread_mutex_unlock(&kv->lock);
    for (size_t i = 0; i < n; i++)
        for (uint32_t dir = 0; dir < kv->n_dirs; dir++) head_tier_forget(&kv->heads, names[i], dir);
}

void inferscale_hash(const uint8_t *key, const void *bytes, size_t n, uint8_t out[32])
{
    is_hash_once(key, bytes, n, out);
}
