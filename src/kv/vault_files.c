/* vault_files.c - walking through the vault's folders, and telling what each file is by its place and name. */
#include "kv/vault_files.h"

#include <stdio.h>
#include <string.h>

enum { HEX = 2 * IS_HASH_BYTES };

void is_vault_path(const is_vault *v, const uint8_t name[IS_HASH_BYTES], char out[IS_VAULT_PATH_BYTES])
{
    char hex[HEX + 1];

    is_hex(name, IS_HASH_BYTES, hex);
    snprintf(out, IS_VAULT_PATH_BYTES, "%s/%.2s/%s.seg", is_vault_dir(v), hex, hex);
}

/* ---- Walk -------------------------------------------------------------------------------------------------------------- */

typedef struct walk {
    is_vault *v;
    is_status (*each)(void *ctx, const is_vault_entry *e);
    void *ctx;
    const char *folder;  /* its name in DIR; NULL at the top */
} walk;

static bool is_fan(const char *name)
{
    uint8_t byte;

    return strlen(name) == 2 && is_unhex(name, 1, &byte);
}

static is_vault_kind kind_of(const walk *w, const char *name, const is_stat *st, uint8_t id[IS_HASH_BYTES])
{
    bool fan = w->folder && is_fan(w->folder), tmp = w->folder && strcmp(w->folder, "tmp") == 0;
    bool named = strlen(name) == HEX + 4 && is_unhex(name, IS_HASH_BYTES, id);

    if (st->is_dir) return !w->folder && (is_fan(name) || strcmp(name, "tmp") == 0) ? IS_VAULT_FOLDER : IS_VAULT_STRAY;
    if (!st->is_regular) return IS_VAULT_STRAY;
    if (tmp) {
        size_t n = strlen(name);

        if (n < HEX + 6 || !is_unhex(name, IS_HASH_BYTES, id) || name[HEX] != '.') return IS_VAULT_STRAY;
        memset(id, 0, IS_HASH_BYTES);
        if (strcmp(name + n - 4, ".tmp") != 0 && strcmp(name + n - 5, ".gone") != 0) return IS_VAULT_STRAY;
        return is_vault_left_over(name) && !is_vault_at_work(name) ? IS_VAULT_LEFT_OVER : IS_VAULT_BUSY;
    }
    if (named && strcmp(name + HEX, ".seg") == 0)
        return fan && strncmp(w->folder, name, 2) == 0 ? IS_VAULT_SEGMENT : IS_VAULT_MISPLACED;
    if (named && strcmp(name + HEX, ".bad") == 0) return IS_VAULT_BAD;
    memset(id, 0, IS_HASH_BYTES);
    return IS_VAULT_STRAY;
}

static is_status walk_entry(void *ctx, const char *name, bool is_dir)
{
    walk *w = ctx, inner = *w;
    const is_fs *fs = is_vault_fs(w->v);
    char path[IS_VAULT_PATH_BYTES + 512];
    is_vault_entry e = { .path = path };
    is_status st;

    if (w->folder) snprintf(path, sizeof path, "%s/%s/%.256s", is_vault_dir(w->v), w->folder, name);
    else snprintf(path, sizeof path, "%s/%.256s", is_vault_dir(w->v), name);
    st = fs->stat(fs, path, &e.stat);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK; /* removed meanwhile */
    if (st != INFERSCALE_OK) return st;
    e.kind = kind_of(w, name, &e.stat, e.name);
    IS_TRY(w->each(w->ctx, &e));
    if (e.kind != IS_VAULT_FOLDER) return INFERSCALE_OK;
    inner.folder = name;
    st = fs->list(fs, path, walk_entry, &inner);
    return st == INFERSCALE_E_NOTFOUND && !fs->exists(fs, path) ? INFERSCALE_OK : st;
}

is_status is_vault_walk(is_vault *v, is_status (*each)(void *ctx, const is_vault_entry *e), void *ctx)
{
    const is_fs *fs = is_vault_fs(v);
    is_vault_entry top = { .kind = IS_VAULT_FOLDER, .path = is_vault_dir(v) };
    walk w = { .v = v, .each = each, .ctx = ctx };

    if (!fs->exists(fs, top.path)) return INFERSCALE_OK;
    IS_TRY(fs->stat(fs, top.path, &top.stat));
    IS_TRY(each(ctx, &top));
    return fs->list(fs, top.path, walk_entry, &w);
}

static is_status add_up(void *ctx, const is_vault_entry *e)
{
    is_vault_stats *sum = ctx;

    sum->n_files += e->kind == IS_VAULT_SEGMENT;
    sum->file_bytes += e->kind == IS_VAULT_SEGMENT ? e->stat.bytes : 0;
    return INFERSCALE_OK;
}

is_status is_vault_scan(is_vault *v, is_vault_stats *out)
{
    is_vault_get_stats(v, out);
    return is_vault_walk(v, add_up, out);
}

/* ---- Read and replace ---------------------------------------------------------------------------------------------------- */

is_status is_vault_verify(is_vault *v, const uint8_t name[IS_HASH_BYTES], is_segment **out)
{
    char path[IS_VAULT_PATH_BYTES];

    is_vault_path(v, name, path);
    IS_TRY(is_segment_read(is_vault_fs(v), path, out));
    if (memcmp(is_segment_info(*out)->name, name, IS_HASH_BYTES) == 0) return INFERSCALE_OK;
    is_segment_unref(*out);
    *out = NULL;
    return is_fail(INFERSCALE_E_FOREIGN, "a KV segment's file holds another segment; its facts have to be encoded again");
}
