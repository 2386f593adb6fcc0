/* kv_live_load.c - parts of segments made ready for an engine's cache: read and verified once, kept in memory, rotated when they are
 * copied out. */
#include <string.h>

#include "api/kv_live.h"
#include "base/mem.h"
#include "kv/compose.h"

struct inferscale_kv_load {
    inferscale_kv *kv;
    is_segment_cut cut;
    size_t n;
    uint64_t n_tokens;
    is_compose_span spans[]; /* each with a reference to its segment */
};

/* What a part of a segment is kept under: another worker's part of the same segment is another thing, and so is what a file that was
 * written anew says. A file that is gone, because it was forgotten, has no name: what memory holds of it serves no more. */
static is_status ram_name(const inferscale_kv *kv, const inferscale_kv_part *part, const is_segment_cut *cut, uint8_t out[IS_HASH_BYTES])
{
    struct {
        uint8_t name[IS_HASH_BYTES];
        uint64_t version, bytes;
        uint32_t dir, plane_begin, plane_end, head_begin, head_end, none;
    } of = { .dir = part->dir, .plane_begin = cut->plane_begin, .plane_end = cut->plane_end, .head_begin = cut->head_begin,
             .head_end = cut->head_end };
    char *path = kv_part_path(kv, part);
    is_stat file;
    is_status st;

    if (!path) return is_fail(INFERSCALE_E_NOMEM, "out of memory loading KV segments; free memory and try again");
    st = kv->fs->stat(kv->fs, path, &file);
    is_free(path);
    if (st == INFERSCALE_E_NOTFOUND) return kv_not_there();
    if (st != INFERSCALE_OK) return st;
    memcpy(of.name, part->name, IS_HASH_BYTES);
    of.version = file.version;
    of.bytes = file.bytes;
    is_hash_once(NULL, &of, sizeof of, out);
    return INFERSCALE_OK;
}

static is_segment *from_ram(inferscale_kv *kv, const uint8_t name[IS_HASH_BYTES])
{
    is_segment *s;

    pthread_mutex_lock(&kv->lock);
    s = ram_get(&kv->ram, name);
    pthread_mutex_unlock(&kv->lock);
    return s;
}

/* A forgotten segment may have been read just before: it is not kept then. */
static is_status from_file(inferscale_kv *kv, const inferscale_kv_part *part, const is_segment_cut *cut,
                           const uint8_t name[IS_HASH_BYTES], is_segment **out)
{
    is_segment_file *f;
    uint64_t since;
    is_status st;

    pthread_mutex_lock(&kv->lock);
    since = kv->n_forgotten;
    pthread_mutex_unlock(&kv->lock);
    IS_TRY(kv_open_part(kv, part, &f));
    st = is_segment_file_read(f, cut, out);
    is_segment_file_close(f);
    if (st != INFERSCALE_OK) return st;
    pthread_mutex_lock(&kv->lock);
    if (kv->n_forgotten == since) ram_put(&kv->ram, name, part->name, *out);
    pthread_mutex_unlock(&kv->lock);
    return INFERSCALE_OK;
}

static is_status load_part(inferscale_kv_load *l, const inferscale_kv_part *part)
{
    uint8_t name[IS_HASH_BYTES];
    is_segment *s;

    IS_TRY(kv_part_known(l->kv, part));
    if ((uint64_t)part->pos + part->n_tokens > is_rope_positions(l->kv->rope))
        return is_fail(INFERSCALE_E_INVALID, "a part up to position %llu, beyond the engine's table of %u; its context is shorter",
                       (unsigned long long)part->pos + part->n_tokens - 1, is_rope_positions(l->kv->rope));
    IS_TRY(ram_name(l->kv, part, &l->cut, name));
    s = from_ram(l->kv, name);
    if (!s) IS_TRY(from_file(l->kv, part, &l->cut, name, &s));
    l->spans[l->n++] = (is_compose_span){ .segment = s, .token_begin = part->begin, .token_end = part->begin + part->n_tokens, .pos = part->pos };
    l->n_tokens += part->n_tokens;
    if (part->begin + part->n_tokens > is_segment_info(s)->n_tokens)
        return is_fail(INFERSCALE_E_INVALID, "tokens %u to %u of a KV segment of %u; ask for tokens that are there", part->begin,
                       part->begin + part->n_tokens, is_segment_info(s)->n_tokens);
    return INFERSCALE_OK;
}

inferscale_status inferscale_kv_load_open(inferscale_kv *kv, const inferscale_kv_part *parts, size_t n, uint32_t plane_begin,
                                          uint32_t plane_end, uint32_t head_begin, uint32_t head_end, inferscale_kv_load **out, size_t *bad)
{
    is_segment_cut cut = { plane_begin, plane_end, head_begin, head_end };
    inferscale_kv_load *l;
    is_status st = INFERSCALE_OK;

    if (out) *out = NULL;
    if (bad) *bad = 0;
    if (!kv || !out || !parts || !n || n > SIZE_MAX / 2 / sizeof l->spans[0])
        return is_fail(INFERSCALE_E_INVALID, "inferscale_kv_load_open needs an open handle, parts and a place for its result");
    IS_TRY(is_segment_cut_check(kv->geometry, &cut));
    l = is_malloc(sizeof *l + n * sizeof l->spans[0]);
    if (!l) return is_fail(INFERSCALE_E_NOMEM, "out of memory loading KV segments; free memory and try again");
    *l = (inferscale_kv_load){ .kv = kv, .cut = cut };
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        st = load_part(l, &parts[i]);
        if (st != INFERSCALE_OK && bad) *bad = i;
    }
    if (st != INFERSCALE_OK) {
        inferscale_kv_load_close(l);
        return st;
    }
    *out = l;
    return INFERSCALE_OK;
}

void inferscale_kv_load_close(inferscale_kv_load *load)
{
    if (!load) return;
    for (size_t i = 0; i < load->n; i++) is_segment_unref((is_segment *)load->spans[i].segment);
    is_free(load);
}

inferscale_status inferscale_kv_load_read(const inferscale_kv_load *load, uint32_t plane, int dst_type, void *dst, size_t token_stride,
                                          size_t head_stride)
{
    if (!load || !dst || dst_type < INFERSCALE_F32 || dst_type > INFERSCALE_BF16)
        return is_fail(INFERSCALE_E_INVALID, "inferscale_kv_load_read needs an open load, a destination and its type, INFERSCALE_F32, _F16 or "
                       "_BF16");
    if (plane < load->cut.plane_begin || plane >= load->cut.plane_end)
        return is_fail(INFERSCALE_E_INVALID, "plane %u of a load of planes %u to %u; ask for one that was loaded", plane,
                       load->cut.plane_begin, load->cut.plane_end);
    return is_compose_plane_rows(load->spans, load->n, load->kv->rope, plane - load->cut.plane_begin, (is_codec)dst_type, dst,
                                 token_stride, head_stride, false);
}
