/* head_tier.c - see head_tier.h. */
#include "kv/head_tier.h"

#include <string.h>

#include "kv/segment_layout.h"

void head_tier_init(head_tier *t, uint64_t budget)
{
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    t->ram.budget = budget;
}

void head_tier_free(head_tier *t)
{
    ram_clear(&t->ram);
    pthread_mutex_destroy(&t->lock);
}

static void key_of(const uint8_t *name, uint32_t salt, uint8_t key[IS_HASH_BYTES])
{
    memcpy(key, name, IS_HASH_BYTES);
    for (int i = 0; i < 4; i++) key[IS_HASH_BYTES - 1 - i] ^= (uint8_t)(salt >> 8 * i);
}

/* What is kept, if it is of the file as it is now. *since: to be given to keep(). */
static is_segment *kept(head_tier *t, const uint8_t *key, const is_stat *file, uint64_t *since)
{
    is_segment *s;

    pthread_mutex_lock(&t->lock);
    *since = t->n_forgotten;
    s = ram_get(&t->ram, key);
    if (s && (s->file_version != file->version || s->file_bytes != file->bytes)) {
        ram_drop(&t->ram, key);
        is_segment_unref(s);
        s = NULL;
    }
    *(s ? &t->hits : &t->reads) += 1;
    pthread_mutex_unlock(&t->lock);
    return s;
}

/* Unless something was forgotten meanwhile: it may have been this. */
static void keep(head_tier *t, const uint8_t *key, const uint8_t *name, is_segment *s, uint64_t since)
{
    pthread_mutex_lock(&t->lock);
    if (t->n_forgotten == since) {
        ram_drop(&t->ram, key); /* another thread's of an older file */
        ram_put(&t->ram, key, name, s);
    }
    pthread_mutex_unlock(&t->lock);
}

is_status head_tier_get(head_tier *t, const is_fs *fs, const char *path, const uint8_t name[IS_HASH_BYTES], uint32_t salt, is_segment **out)
{
    uint8_t key[IS_HASH_BYTES];
    uint64_t since;
    is_status st;
    is_stat file;

    *out = NULL;
    key_of(name, salt, key);
    st = fs->stat(fs, path, &file); /* before it is read: what is written meanwhile is another file the next time */
    if (st == INFERSCALE_E_NOTFOUND) head_tier_forget(t, name, salt); /* nothing is kept of a file that is gone */
    if (st != INFERSCALE_OK) return st;
    *out = kept(t, key, &file, &since);
    if (*out) return INFERSCALE_OK;
    IS_TRY(is_segment_read_bare(fs, path, out));
    (*out)->file_version = file.version;
    (*out)->file_bytes = file.bytes;
    keep(t, key, name, *out, since);
    return INFERSCALE_OK;
}

void head_tier_forget(head_tier *t, const uint8_t name[IS_HASH_BYTES], uint32_t salt)
{
    uint8_t key[IS_HASH_BYTES];

    key_of(name, salt, key);
    pthread_mutex_lock(&t->lock);
    t->n_forgotten++;
    ram_wipe(&t->ram, key);
    pthread_mutex_unlock(&t->lock);
}
