/* segment_part.c - the partial reader: the head of the file, then only the blocks that are wanted. */
#include "kv/segment_part.h"

#include <string.h>

#include "base/mem.h"
#include "base/words.h"
#include "kv/segment_layout.h"

struct is_segment_file {
    const is_fs *fs;
    is_file *file;
    uint8_t *bytes;
    is_segment_header head;
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for a part of a KV segment; lower the RAM budget or free memory");
}

is_status is_segment_cut_check(const is_geometry *g, const is_segment_cut *cut)
{
    if (cut->plane_begin >= cut->plane_end || cut->plane_end > g->n_planes)
        return is_fail(INFERSCALE_E_INVALID, "planes %u to %u of %u; ask for planes that are there", cut->plane_begin, cut->plane_end,
                       g->n_planes);
    for (uint32_t i = cut->plane_begin; i < cut->plane_end; i++) {
        uint32_t n = g->planes[i].n_heads;

        if (n > 1 && (cut->head_begin >= cut->head_end || cut->head_end > n))
            return is_fail(INFERSCALE_E_INVALID, "heads %u to %u of %u; ask for heads that are there", cut->head_begin, cut->head_end, n);
    }
    return INFERSCALE_OK;
}

is_status is_geometry_cut(const is_geometry *g, const is_segment_cut *cut, is_geometry **out)
{
    is_geometry *part;

    *out = NULL;
    IS_TRY(is_segment_cut_check(g, cut));
    part = is_geometry_copy(g);
    if (!part) return no_memory();
    part->n_planes = cut->plane_end - cut->plane_begin;
    memmove(part->planes, part->planes + cut->plane_begin, part->n_planes * sizeof *part->planes);
    for (uint32_t i = 0; i < part->n_planes; i++) part->planes[i].n_heads = is_cut_heads(cut, &part->planes[i]);
    *out = part;
    return INFERSCALE_OK;
}

is_status is_segment_file_open(const is_fs *fs, const char *path, is_segment_file **out)
{
    is_segment_file *f = is_calloc(1, sizeof *f);
    is_status st;

    *out = NULL;
    if (!f) return no_memory();
    f->fs = fs;
    st = fs->open(fs, path, IS_OPEN_READ, &f->file);
    if (st == INFERSCALE_OK) st = is_segment_header_read(fs, f->file, &f->bytes, &f->head);
    if (st != INFERSCALE_OK) {
        is_segment_file_close(f);
        return st;
    }
    *out = f;
    return INFERSCALE_OK;
}

const is_segment_desc *is_segment_file_info(const is_segment_file *f)
{
    return &f->head.desc;
}

void is_segment_file_close(is_segment_file *f)
{
    if (!f) return;
    if (f->file) f->fs->close(f->fs, f->file);
    is_segment_header_clear(&f->head);
    is_free(f->bytes);
    is_free(f);
}

is_status is_segment_read_bare(const is_fs *fs, const char *path, is_segment **out)
{
    is_segment_file *f;
    is_status st;

    *out = NULL;
    IS_TRY(is_segment_file_open(fs, path, &f));
    st = is_segment_alloc_bare(&f->head.desc, out);
    is_segment_file_close(f);
    return st;
}

/* ---- The blocks ------------------------------------------------------------------------------------------------------------ */

/* Bytes that lie side by side in the file and in memory, but for alignment. */
typedef struct stretch {
    uint64_t file, memory, n;
} stretch;

static is_status read_stretch(is_segment_file *f, is_segment *s, const stretch *x)
{
    return x->n ? f->fs->pread(f->fs, f->file, s->payload + x->memory, (size_t)x->n, x->file) : INFERSCALE_OK;
}

/* One call for what can be read in one: where all heads are wanted, that is all planes. Only the filling between two planes is read with
 * them: a block of another worker's can be smaller than that filling. */
static is_status read_blocks(is_segment_file *f, const is_segment_cut *cut, is_segment *s)
{
    stretch run = { 0 };
    bool to_its_end = false;

    for (uint32_t i = 0; i < s->geometry->n_planes; i++) {
        const is_plane *whole = &f->head.geometry->planes[cut->plane_begin + i];
        uint64_t block = is_segment_head_bytes(s, whole), n = block * s->geometry->planes[i].n_heads;
        uint64_t file = f->head.header_bytes + f->head.plane_at[cut->plane_begin + i] + block * is_cut_head(cut, whole);
        bool joins = to_its_end && is_cut_head(cut, whole) == 0 && file - run.file == s->plane_at[i] - run.memory;

        to_its_end = is_cut_head(cut, whole) + is_cut_heads(cut, whole) == whole->n_heads;
        if (joins) {
            run.n = file - run.file + n;
            continue;
        }
        IS_TRY(read_stretch(f, s, &run));
        run = (stretch){ .file = file, .memory = s->plane_at[i], .n = n };
    }
    return read_stretch(f, s, &run);
}

/* Checksums of what was read. What lies between planes is made zero, whatever the file has there. */
static is_status verify_blocks(const is_segment_file *f, const is_segment_cut *cut, is_segment *s)
{
    const uint8_t *sums = f->head.sums;

    for (uint32_t i = 0; i < cut->plane_begin; i++) sums += 8 * (size_t)f->head.geometry->planes[i].n_heads;
    for (uint32_t i = 0; i < s->geometry->n_planes; i++) {
        const is_plane *whole = &f->head.geometry->planes[cut->plane_begin + i], *p = &s->geometry->planes[i];
        uint64_t block = is_segment_head_bytes(s, p), used = s->plane_at[i] + block * p->n_heads;
        uint64_t end = i + 1 < s->geometry->n_planes ? s->plane_at[i + 1] : s->payload_bytes;

        for (uint32_t h = 0; h < p->n_heads; h++)
            if (is_checksum(is_segment_head(s, i, h), (size_t)block) != is_get_u64(sums + 8 * (size_t)(is_cut_head(cut, whole) + h)))
                return is_fail(INFERSCALE_E_CORRUPT, "KV segment: checksum of its rows; the file is torn or damaged, its facts are "
                               "served as text until they are encoded again (%s)",
                               is_words(IS_CALL_ENCODE));
        memset(s->payload + used, 0, (size_t)(end - used));
        sums += 8 * (size_t)whole->n_heads;
    }
    return INFERSCALE_OK;
}

is_status is_segment_file_read(is_segment_file *f, const is_segment_cut *cut, is_segment **out)
{
    is_segment_desc desc = f->head.desc;
    is_geometry *part;
    is_segment *s = NULL;
    is_status st;

    *out = NULL;
    IS_TRY(is_geometry_cut(f->head.geometry, cut, &part));
    desc.geometry = part;
    st = is_segment_alloc(&desc, f->head.payload_bytes, &s);
    if (st == INFERSCALE_OK) st = read_blocks(f, cut, s);
    if (st == INFERSCALE_OK) st = verify_blocks(f, cut, s);
    is_geometry_free(part);
    if (st != INFERSCALE_OK) {
        is_segment_unref(s);
        return st;
    }
    *out = s;
    return INFERSCALE_OK;
}
