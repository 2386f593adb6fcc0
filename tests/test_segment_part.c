/* Parts of segments: the partial reader gives what the whole reader gives and touches nothing else of the file; parts that ranks wrote make
 * the whole again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/segment_part.h"
#include "support/fault_fs.h"
#include "support/kv_make.h"
#include "support/scratch.h"

static char path[1024];

/* ---- A filesystem that marks what was read ----------------------------------------------------------------------------------- */

static uint8_t *touched;
static size_t touched_bytes;

static is_status marking_pread(const is_fs *fs, is_file *f, void *p, size_t n, uint64_t offset)
{
    assert_true(offset + n <= touched_bytes);
    memset(touched + offset, 1, n);
    return is_fs_posix()->pread(fs, f, p, n, offset);
}

static is_fs marking(size_t bytes)
{
    is_fs fs = *is_fs_posix();

    fs.pread = marking_pread;
    free(touched);
    touched = calloc(1, bytes);
    touched_bytes = bytes;
    return fs;
}

/* ---- Random things --------------------------------------------------------------------------------------------------------------- */

/* Latent attention now and then: a plane with one head beside planes with several. */
static is_geometry *random_geometry(uint64_t *seed)
{
    is_geometry *g = kv_random_geometry(seed);

    if (kv_below(seed, 4) == 0) g->planes[kv_below(seed, g->n_planes)].n_heads = 1;
    return g;
}

static uint32_t most_heads(const is_geometry *g)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < g->n_planes; i++) n = g->planes[i].n_heads > n ? g->planes[i].n_heads : n;
    return n;
}

static is_segment_cut random_cut(const is_geometry *g, uint64_t *seed)
{
    uint32_t heads = most_heads(g), p = kv_below(seed, g->n_planes), h = kv_below(seed, heads);

    return (is_segment_cut){ p, p + 1 + kv_below(seed, g->n_planes - p), h, h + 1 + kv_below(seed, heads - h) };
}

static void same_block(const is_segment *part, const is_segment *whole, const is_segment_cut *cut)
{
    const is_segment_desc *d = is_segment_info(whole);

    for (uint32_t i = 0; i < is_segment_info(part)->geometry->n_planes; i++) {
        const is_plane *w = &d->geometry->planes[cut->plane_begin + i], *p = &is_segment_info(part)->geometry->planes[i];

        assert_true(p->layer == w->layer && p->is_v == w->is_v && p->n_heads == is_cut_heads(cut, w));
        for (uint32_t h = 0; h < p->n_heads; h++)
            assert_memory_equal(is_segment_head(part, i, h), is_segment_head(whole, cut->plane_begin + i, is_cut_head(cut, w) + h),
                                (size_t)d->n_tokens * p->head_dim * is_codec_bytes(d->codec));
    }
}

/* Where block (plane, head) of the file lies. */
static size_t block_at(const is_segment *s, size_t file_bytes, uint32_t plane, uint32_t head)
{
    const is_geometry *g = is_segment_info(s)->geometry;
    const uint8_t *last = is_segment_head(s, g->n_planes - 1, 0), *at = is_segment_head(s, plane, head);
    size_t end = (size_t)g->planes[g->n_planes - 1].n_heads * is_segment_info(s)->n_tokens * g->planes[g->n_planes - 1].head_dim *
                 is_codec_bytes(is_segment_info(s)->codec);

    return file_bytes - (end + 63) / 64 * 64 - (size_t)(last - at);
}

static void write_file(const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static bool wanted(const is_segment_cut *cut, const is_geometry *g, uint32_t plane, uint32_t head)
{
    const is_plane *p = &g->planes[plane];

    return plane >= cut->plane_begin && plane < cut->plane_end && head >= is_cut_head(cut, p) &&
           head < is_cut_head(cut, p) + is_cut_heads(cut, p);
}

/* ---- The reader --------------------------------------------------------------------------------------------------------------------- */

static is_status read_part(const is_fs *fs, const is_segment_cut *cut, is_segment **out)
{
    is_segment_file *f;
    is_status st;

    *out = NULL;
    IS_TRY(is_segment_file_open(fs, path, &f));
    st = is_segment_file_read(f, cut, out);
    is_segment_file_close(f);
    return st;
}

/* The same rows; every byte of other blocks is left alone; rot is noticed where it was read and only there. */
static void test_reads_only_its_own(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 60; round++) {
        is_geometry *g = random_geometry(&seed);
        is_segment *s = kv_segment(g, (is_codec)kv_below(&seed, 3), 1 + kv_below(&seed, 30), 1, &seed), *part;
        is_segment_cut cut = random_cut(g, &seed);
        is_buf file = IS_BUF_INIT;
        is_fs fs;

        OK(is_segment_serialize(s, &file));
        write_file(file.data, file.len);
        fs = marking(file.len);
        OK(read_part(&fs, &cut, &part));
        same_block(part, s, &cut);
        is_segment_unref(part);
        for (uint32_t i = 0; i < g->n_planes; i++)
            for (uint32_t h = 0; h < g->planes[i].n_heads; h++) {
                size_t n = (size_t)is_segment_info(s)->n_tokens * g->planes[i].head_dim * is_codec_bytes(is_segment_info(s)->codec);
                size_t at = block_at(s, file.len, i, h), flip = at + kv_below(&seed, (uint32_t)n);

                assert_memory_equal(file.data + at, is_segment_head(s, i, h), n);
                for (size_t b = at; b < at + n; b++) assert_int_equal(touched[b], wanted(&cut, g, i, h));
                file.data[flip] ^= 0x10;
                write_file(file.data, file.len);
                assert_int_equal(read_part(is_fs_posix(), &cut, &part), wanted(&cut, g, i, h) ? INFERSCALE_E_CORRUPT : INFERSCALE_OK);
                if (part) same_block(part, s, &cut);
                is_segment_unref(part);
                file.data[flip] ^= 0x10;
            }
        is_buf_free(&file);
        is_segment_unref(s);
        is_geometry_free(g);
    }
}

/* Cut anywhere, flipped anywhere in the head, grown, empty: never a segment. */
static void test_torn_files(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = kv_geometry(2, 2, 8, IS_PAIR_HALVES, 0, 8, 10000, 1);
    is_segment *s = kv_segment(g, IS_CODEC_BF16, 5, 1, &seed), *part;
    is_segment_cut cut = { 1, 3, 1, 2 };
    is_buf file = IS_BUF_INIT;
    size_t header;
    is_status st;

    OK(is_segment_serialize(s, &file));
    header = is_get_u32(file.data + 12);
    for (size_t n = 0; n < file.len; n += 1 + n / 40) {
        write_file(file.data, n);
        st = read_part(is_fs_posix(), &cut, &part);
        assert_true((st == INFERSCALE_E_CORRUPT || (n < 8 && st == INFERSCALE_E_FOREIGN)) && !part);
    }
    for (size_t i = 0; i < header; i++) {
        file.data[i] ^= 0x04;
        write_file(file.data, file.len);
        st = read_part(is_fs_posix(), &cut, &part);
        assert_true((st == INFERSCALE_E_CORRUPT || (i < 12 && st == INFERSCALE_E_FOREIGN)) && !part);
        file.data[i] ^= 0x04;
    }
    is_buf_u8(&file, 0);
    write_file(file.data, file.len);
    assert_int_equal(read_part(is_fs_posix(), &cut, &part), INFERSCALE_E_CORRUPT);
    unlink(path);
    assert_int_equal(read_part(is_fs_posix(), &cut, &part), INFERSCALE_E_NOTFOUND);
    is_buf_free(&file);
    is_segment_unref(s);
    is_geometry_free(g);
}

static void test_faults(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = kv_geometry(2, 3, 8, IS_PAIR_HALVES, 0, 8, 10000, 1);
    is_segment *s = kv_segment(g, IS_CODEC_F16, 5, 1, &seed), *part;
    is_segment_cut cut = { 0, 4, 1, 2 };
    is_buf file = IS_BUF_INIT;
    is_status st;

    OK(is_segment_serialize(s, &file));
    write_file(file.data, file.len);
    for (unsigned n = 1;; n++) {
        fault_fs *ff = fault_fs_new(FAULT_READ, n % 2 ? FAULT_EIO : FAULT_GARBLE, (n + 1) / 2);
        bool hit;

        st = read_part(fault_fs_fs(ff), &cut, &part);
        hit = fault_fs_hit(ff);
        assert_true(hit ? st != INFERSCALE_OK && !part : st == INFERSCALE_OK);
        assert_int_equal(fault_fs_open_files(ff), 0);
        fault_fs_free(ff);
        is_segment_unref(part);
        if (!hit) break;
    }
    for (size_t n = 1;; n++) {
        is_mem_fail_at(n);
        st = read_part(is_fs_posix(), &cut, &part);
        if (st == INFERSCALE_OK) break;
        assert_true(st == INFERSCALE_E_NOMEM && !part);
    }
    is_mem_fail_at(0);
    same_block(part, s, &cut);
    is_segment_unref(part);
    for (int i = 0; i < 5; i++) {
        static const is_segment_cut bad[] = { { 0, 5, 0, 1 }, { 2, 2, 0, 1 }, { 0, 4, 1, 4 }, { 0, 4, 2, 2 }, { 3, 2, 0, 1 } };

        assert_int_equal(read_part(is_fs_posix(), &bad[i], &part), INFERSCALE_E_INVALID);
        assert_null(part);
    }
    is_buf_free(&file);
    is_segment_unref(s);
    is_geometry_free(g);
}

/* Two processes, as two tensor-parallel workers, read disjoint heads of one file; together they have what one reader has. */
static void test_two_processes(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = kv_geometry(3, 4, 16, IS_PAIR_HALVES, 0, 16, 10000, 1);
    is_segment *s = kv_segment(g, IS_CODEC_BF16, 33, 1, &seed);
    size_t head = 33 * 16 * 2, n = 6 * 4 * head;
    uint8_t *both = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    is_buf file = IS_BUF_INIT;

    assert_true(both != MAP_FAILED);
    OK(is_segment_serialize(s, &file));
    write_file(file.data, file.len);
    for (uint32_t rank = 0; rank < 2; rank++) {
        pid_t child = fork();

        assert_true(child >= 0);
        if (child == 0) {
            is_segment_cut cut = { 0, 6, 2 * rank, 2 * rank + 2 };
            is_segment *part;

            if (read_part(is_fs_posix(), &cut, &part) != INFERSCALE_OK) _exit(1);
            for (uint32_t p = 0; p < 6; p++)
                for (uint32_t h = 0; h < 2; h++) memcpy(both + (4 * p + 2 * rank + h) * head, is_segment_head(part, p, h), head);
            _exit(0);
        }
    }
    for (int i = 0, status; i < 2; i++) {
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    for (uint32_t p = 0; p < 6; p++)
        for (uint32_t h = 0; h < 4; h++) assert_memory_equal(both + (4 * p + h) * head, is_segment_head(s, p, h), head);
    munmap(both, n);
    is_buf_free(&file);
    is_segment_unref(s);
    is_geometry_free(g);
}

/* ---- Merging ------------------------------------------------------------------------------------------------------------------------ */

enum { MOST_PARTS = 64 };
typedef struct shards {
    is_segment *parts[MOST_PARTS];
    uint32_t first[MOST_PARTS];
    size_t n;
} shards;

/* Pipeline ranks hold runs of layers, tensor ranks runs of heads; more ranks than heads: each head on several. */
static void split(const is_segment *s, shards *out, uint64_t *seed)
{
    const is_geometry *g = is_segment_info(s)->geometry;
    uint32_t heads = most_heads(g), divisor = 1 + kv_below(seed, heads), copies = 1 + kv_below(seed, 3);
    is_buf file = IS_BUF_INIT;

    while (heads % divisor) divisor--;
    OK(is_segment_serialize(s, &file));
    write_file(file.data, file.len);
    out->n = 0;
    for (uint32_t p = 0, next; p < g->n_planes; p = next) {
        next = p + 1 + kv_below(seed, g->n_planes - p);
        for (uint32_t h = 0; h < heads; h += heads / divisor)
            for (uint32_t k = 0; k < copies && out->n < MOST_PARTS; k++) {
                is_segment_cut cut = { p, next, h, h + heads / divisor };

                out->first[out->n] = h;
                OK(read_part(is_fs_posix(), &cut, &out->parts[out->n++]));
            }
    }
    for (size_t i = out->n; i > 1; i--) { /* in any order */
        size_t k = kv_below(seed, (uint32_t)i);
        is_segment *t = out->parts[i - 1];
        uint32_t f = out->first[i - 1];

        out->parts[i - 1] = out->parts[k], out->first[i - 1] = out->first[k];
        out->parts[k] = t, out->first[k] = f;
    }
    is_buf_free(&file);
}

static void drop(shards *x)
{
    for (size_t i = 0; i < x->n; i++) is_segment_unref(x->parts[i]);
}

static is_status merge(const shards *x, const is_geometry *g, float **rows)
{
    return is_segment_merge((const is_segment *const *)x->parts, x->first, x->n, g, rows);
}

/* Every value is there again bit for bit: the same segment can be made of it. */
static void test_merge_is_the_whole(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 80; round++) {
        is_geometry *g = kv_random_geometry(&seed);
        uint32_t n = 1 + kv_below(&seed, 20);
        is_segment *s = kv_segment(g, (is_codec)kv_below(&seed, 3), n, 1, &seed), *again;
        float **rows = kv_rows(g, n, &seed);
        shards x;

        split(s, &x, &seed);
        OK(merge(&x, g, rows));
        OK(is_segment_new(is_segment_info(s), (const float *const *)rows, &again));
        same_block(again, s, &(is_segment_cut){ 0, g->n_planes, 0, most_heads(g) });
        is_segment_unref(again);
        drop(&x);
        kv_rows_free(g, rows);
        is_segment_unref(s);
        is_geometry_free(g);
    }
}

static void test_merge_refuses(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = kv_geometry(2, 4, 8, IS_PAIR_HALVES, 0, 8, 10000, 1), *h = kv_geometry(2, 4, 8, IS_PAIR_HALVES, 0, 4, 10000, 1);
    is_segment *s = kv_segment(g, IS_CODEC_F32, 6, 1, &seed), *t = kv_segment(g, IS_CODEC_F32, 6, 1, &seed), *part;
    float **rows = kv_rows(g, 6, &seed);
    is_buf file = IS_BUF_INIT;
    shards x = { .n = 2 };

    for (uint32_t i = 0; i < 2; i++) { /* two ranks of two heads */
        OK(is_segment_serialize(s, &file));
        write_file(file.data, file.len);
        is_buf_clear(&file);
        x.first[i] = 2 * i;
        OK(read_part(is_fs_posix(), &(is_segment_cut){ 0, 4, 2 * i, 2 * i + 2 }, &x.parts[i]));
    }
    OK(merge(&x, g, rows));
    x.n = 1;
    assert_int_equal(merge(&x, g, rows), INFERSCALE_E_INVALID); /* a rank is missing */
    x.n = 0;
    assert_int_equal(merge(&x, g, rows), INFERSCALE_E_INVALID);
    x.n = 2;
    x.first[1] = 3;
    assert_int_equal(merge(&x, g, rows), INFERSCALE_E_INVALID); /* a head that is not there */
    x.first[1] = 0;
    assert_int_equal(merge(&x, g, rows), INFERSCALE_E_CORRUPT); /* two that do not agree */
    x.first[1] = 2;
    assert_int_equal(merge(&x, h, rows), INFERSCALE_E_INVALID); /* another model's shape */
    OK(is_segment_serialize(t, &file));
    write_file(file.data, file.len);
    OK(read_part(is_fs_posix(), &(is_segment_cut){ 0, 4, 2, 4 }, &part));
    is_segment_unref(x.parts[1]);
    x.parts[1] = part;
    assert_int_equal(merge(&x, g, rows), INFERSCALE_E_INVALID); /* other tokens */
    for (size_t n = 1; n < 4; n++) {
        shards one = { .parts = { s }, .n = 1 };

        is_mem_fail_at(n);
        assert_int_equal(merge(&one, g, rows), INFERSCALE_E_NOMEM);
    }
    is_mem_fail_at(0);
    drop(&x);
    is_buf_free(&file);
    kv_rows_free(g, rows);
    is_segment_unref(s);
    is_segment_unref(t);
    is_geometry_free(g);
    is_geometry_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_only_its_own), cmocka_unit_test(test_torn_files),         cmocka_unit_test(test_faults),
        cmocka_unit_test(test_two_processes),      cmocka_unit_test(test_merge_is_the_whole), cmocka_unit_test(test_merge_refuses),
    };
    char *folder = scratch_make();
    int failed;

    snprintf(path, sizeof path, "%s", scratch_path(folder, "a.seg"));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    free(touched);
    return failed;
}
