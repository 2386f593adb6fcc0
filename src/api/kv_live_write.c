/* kv_live_write.c - what a worker captured, as a segment file of its layers and heads. */
#include <string.h>

#include "api/kv_live.h"
#include "base/mem.h"

/* PATH.part, synced, then PATH: who sees the name sees the whole file. */
static is_status write_renamed(const is_fs *fs, const is_segment *s, const char *path, const char *temporary)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? is_strndup(path, (size_t)(slash - path) + (slash == path)) : is_strdup(".");
    is_status st;

    if (!folder) return is_fail(INFERSCALE_E_NOMEM, "out of memory writing a capture; free memory and try again");
    st = fs->exists(fs, temporary) ? is_file_shred(fs, temporary) : INFERSCALE_OK; /* left by one who died */
    if (st == INFERSCALE_OK) st = is_segment_write(s, fs, temporary);
    if (st == INFERSCALE_OK) {
        st = fs->rename(fs, temporary, path);
        if (st == INFERSCALE_OK) st = fs->sync_dir(fs, folder);
        else fs->unlink(fs, temporary);
    }
    is_free(folder);
    return st;
}

static is_status write_segment(inferscale_kv *kv, const is_segment_desc *desc, const char *path, const void *const *rows)
{
    is_buf temporary = IS_BUF_INIT;
    is_segment *s;
    is_status st;

    IS_TRY(is_segment_new_raw(desc, rows, &s));
    is_buf_fmt(&temporary, "%s.part", path);
    st = is_buf_ok(&temporary) ? write_renamed(kv->fs, s, path, (const char *)temporary.data)
                               : is_fail(INFERSCALE_E_NOMEM, "out of memory writing a capture; free memory and try again");
    is_buf_free(&temporary);
    is_segment_unref(s);
    return st;
}

inferscale_status inferscale_kv_write(inferscale_kv *kv, const char *path, const int32_t *tokens, uint32_t n_tokens, uint32_t n_context,
                                      uint32_t plane_begin, uint32_t plane_end, uint32_t head_begin, uint32_t head_end, int src_type,
                                      const void *const *rows)
{
    is_segment_cut cut = { plane_begin, plane_end, head_begin, head_end };
    is_segment_desc desc = { .codec = (is_codec)src_type, .n_tokens = n_tokens, .tokens = tokens, .n_context = n_context };
    is_geometry *g;
    is_status st;

    if (!kv || !path || !*path || !tokens || !n_tokens || !rows || src_type < INFERSCALE_F32 || src_type > INFERSCALE_BF16)
        return is_fail(INFERSCALE_E_INVALID, "inferscale_kv_write needs an open handle, a path, tokens, and rows of a known type");
    IS_TRY(is_geometry_cut(kv->geometry, &cut, &g));
    for (uint32_t i = 0; i < g->n_planes; i++) {
        if (rows[i]) continue;
        is_geometry_free(g);
        return is_fail(INFERSCALE_E_INVALID, "no rows for plane %u; give those of every plane in the range", plane_begin + i);
    }
    memcpy(desc.fingerprint, kv->fingerprint, IS_HASH_BYTES);
    desc.geometry = g;
    st = write_segment(kv, &desc, path, rows);
    is_geometry_free(g);
    return st;
}
