/* Segments: rows in, the same rows out, in memory and through the file form; damage of every sort is noticed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/segment.h"
#include "support/fault_fs.h"
#include "support/kv_make.h"

#define OK(expr)                                                                                                               \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, is_error());                                                    \
    } while (0)

static void same_segment(const is_segment *a, const is_segment *b)
{
    const is_segment_desc *x = is_segment_info(a), *y = is_segment_info(b);

    assert_memory_equal(x->name, y->name, IS_HASH_BYTES);
    assert_memory_equal(x->fingerprint, y->fingerprint, IS_HASH_BYTES);
    assert_int_equal(x->codec, y->codec);
    assert_int_equal(x->n_tokens, y->n_tokens);
    assert_int_equal(x->n_context, y->n_context);
    assert_memory_equal(x->tokens, y->tokens, x->n_tokens * sizeof *x->tokens);
    assert_true(is_geometry_equal(x->geometry, y->geometry));
    for (uint32_t p = 0; p < x->geometry->n_planes; p++) {
        const is_plane *plane = &x->geometry->planes[p];

        for (uint32_t h = 0; h < plane->n_heads; h++)
            assert_memory_equal(is_segment_head(a, p, h), is_segment_head(b, p, h),
                                x->n_tokens * is_codec_row_bytes(x->codec, plane->head_dim));
    }
}

static void test_rows_are_kept(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 60; round++) {
        is_geometry *g = kv_random_geometry(&seed);
        uint32_t n = 1 + kv_below(&seed, 40);
        float **rows = kv_rows(g, n, &seed);
        int32_t tokens[40] = { 1, 2, 3 };
        is_segment_desc d = { .codec = (is_codec)(round % IS_CODECS), .n_tokens = n, .tokens = tokens, .n_context = 7, .geometry = g };
        is_segment *s;

        OK(is_segment_new(&d, (const float *const *)rows, &s));
        tokens[0] = 99; /* copied */
        assert_int_equal(is_segment_info(s)->tokens[0], 1);
        assert_true(is_segment_info(s)->geometry != g);
        for (uint32_t p = 0; p < g->n_planes; p++) {
            const is_plane *plane = &g->planes[p];

            assert_int_equal((uintptr_t)is_segment_head(s, p, 0) % 64, 0);
            for (uint32_t h = 0; h < plane->n_heads; h++)
                for (uint32_t t = 0; t < n; t++) {
                    size_t row = is_codec_row_bytes(d.codec, plane->head_dim);
                    uint8_t *want = is_malloc(row);

                    is_codec_encode(d.codec, rows[p] + ((size_t)t * plane->n_heads + h) * plane->head_dim, want, plane->head_dim);
                    assert_memory_equal((const uint8_t *)is_segment_head(s, p, h) + t * row, want, row);
                    is_free(want);
                }
        }
        assert_true(is_segment_bytes(s) >= is_geometry_token_bytes(g, d.codec) * n);
        assert_ptr_equal(is_segment_ref(s), s);
        is_segment_unref(s);
        is_segment_unref(s);
        kv_rows_free(g, rows);
        is_geometry_free(g);
    }
    is_segment_unref(NULL);
}

static void test_refusals(void **state)
{
    is_geometry *g = kv_geometry(1, 1, 4, IS_PAIR_HALVES, 0, 4, 1e4, 1);
    uint64_t seed = 1;
    float **rows = kv_rows(g, 2, &seed);
    int32_t tokens[2] = { 0 };
    is_segment_desc d = { .codec = IS_CODEC_F16, .n_tokens = 2, .tokens = tokens, .geometry = g }, bad;
    is_segment *s;

    bad = d, bad.n_tokens = 0;
    assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_INVALID);
    bad = d, bad.n_tokens = UINT32_MAX;
    assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_INVALID);
    bad = d, bad.codec = (is_codec)IS_CODECS;
    assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_INVALID);
    bad = d, bad.tokens = NULL;
    assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_INVALID);
    bad = d, bad.geometry = NULL;
    assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_INVALID);
    assert_null(s);
    rows[1][3] = 65520; /* would be infinite in f16, is fine in bf16 */
    assert_int_equal(is_segment_new(&d, (const float *const *)rows, &s), INFERSCALE_E_UNSUPPORTED);
    rows[1][3] = -65519;
    OK(is_segment_new(&d, (const float *const *)rows, &s));
    is_segment_unref(s);
    bad = d, bad.codec = IS_CODEC_BF16;
    rows[1][3] = 65520;
    OK(is_segment_new(&bad, (const float *const *)rows, &s));
    is_segment_unref(s);
    for (int c = 0; c < IS_CODECS; c++) {
        bad.codec = (is_codec)c;
        rows[1][3] = NAN;
        assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_UNSUPPORTED);
        rows[1][3] = -INFINITY;
        assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_UNSUPPORTED);
        assert_null(s);
    }
    bad.codec = IS_CODEC_INT4; /* holds what f16 holds, and some more */
    rows[1][3] = 65519;
    OK(is_segment_new(&bad, (const float *const *)rows, &s));
    is_segment_unref(s);
    rows[1][3] = -IS_INT4_LARGEST;
    assert_int_equal(is_segment_new(&bad, (const float *const *)rows, &s), INFERSCALE_E_UNSUPPORTED);
    kv_rows_free(g, rows);
    is_geometry_free(g);
}

static void test_file_round_trip(void **state)
{
    char path[] = "/tmp/inferscale-segment-XXXXXX";
    uint64_t seed = kv_seed();
    const is_fs *fs = is_fs_posix();

    assert_true(mkstemp(path) >= 0);
    for (int round = 0; round < 60; round++) {
        is_geometry *g = round ? kv_random_geometry(&seed) : kv_smollm2();
        is_segment *s = kv_segment(g, (is_codec)(round % IS_CODECS), 1 + kv_below(&seed, 40), (uint8_t)round, &seed), *a, *b;
        is_buf bytes = IS_BUF_INIT;
        uint8_t *file;
        size_t n;

        unlink(path);
        OK(is_segment_write(s, fs, path));
        assert_int_not_equal(is_segment_write(s, fs, path), INFERSCALE_OK); /* never over an existing file */
        OK(is_segment_read(fs, path, &a));
        OK(is_segment_serialize(s, &bytes));
        OK(is_segment_parse(bytes.data, bytes.len, &b));
        same_segment(s, a);
        same_segment(s, b);
        OK(is_file_read_all(fs, path, 1 << 24, &file, &n));
        assert_int_equal(n, bytes.len);
        assert_memory_equal(file, bytes.data, n);
        is_free(file);
        is_buf_free(&bytes);
        is_segment_unref(a);
        is_segment_unref(b);
        is_segment_unref(s);
        is_geometry_free(g);
    }
    unlink(path);
    {
        is_segment *none;

        assert_int_equal(is_segment_read(fs, path, &none), INFERSCALE_E_NOTFOUND);
        assert_null(none);
    }
}

/* A small segment with padding between planes, as bytes. */
static is_buf small_file(is_codec codec)
{
    is_geometry *g = kv_geometry(1, 2, codec == IS_CODEC_INT4 ? 66 : 5, IS_PAIR_HALVES, 1, 4, 1e4, 1);
    uint64_t seed = 77;
    is_segment *s = kv_segment(g, codec, 3, 9, &seed);
    is_buf b = IS_BUF_INIT;

    OK(is_segment_serialize(s, &b));
    is_segment_unref(s);
    is_geometry_free(g);
    return b;
}

static is_status parse_copy(const uint8_t *p, size_t n)
{
    uint8_t *exact = is_malloc(n); /* so that a read past the end is seen by the sanitizer */
    is_segment *s = NULL;
    is_status st;

    memcpy(exact, p, n);
    st = is_segment_parse(exact, n, &s);
    assert_true((st == INFERSCALE_OK) == (s != NULL));
    is_segment_unref(s);
    is_free(exact);
    return st;
}

/* foreign: how many flips make it another program's file, or a newer one's. */
static void check_flips(is_codec codec, size_t foreign)
{
    is_buf b = small_file(codec);

    OK(parse_copy(b.data, b.len));
    for (size_t i = 0; i < b.len * 8; i++) {
        is_status st;

        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
        st = parse_copy(b.data, b.len);
        if (st == INFERSCALE_OK) fail_msg("bit %zu of byte %zu went unnoticed", i % 8, i / 8);
        assert_true(st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN);
        if (st == INFERSCALE_E_FOREIGN) foreign--;
        b.data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_int_equal(foreign, 0);
    is_buf_free(&b);
}

/* Magic and version have 96 bits; those that lead to another known version are damage. */
static void test_every_flipped_bit_is_noticed(void **state)
{
    for (int codec = 0; codec < IS_CODECS; codec++)
        check_flips((is_codec)codec, codec == IS_CODEC_INT4 ? 94 : 95);
}

static void test_large_file_random_flips(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = kv_smollm2();
    is_segment *s = kv_segment(g, IS_CODEC_F16, 28, 1, &seed);
    is_buf b = IS_BUF_INIT;

    OK(is_segment_serialize(s, &b));
    for (int i = 0; i < 300; i++) {
        size_t at = kv_next(&seed) % b.len;
        uint8_t bit = (uint8_t)(1 << kv_below(&seed, 8));

        b.data[at] ^= bit;
        assert_int_not_equal(parse_copy(b.data, b.len), INFERSCALE_OK);
        b.data[at] ^= bit;
    }
    OK(parse_copy(b.data, b.len));
    is_buf_free(&b);
    is_segment_unref(s);
    is_geometry_free(g);
}

static void check_cuts(is_codec codec)
{
    is_buf b = small_file(codec);

    for (size_t n = 0; n < b.len; n++) {
        is_status st = parse_copy(b.data, n);

        if (st != INFERSCALE_E_CORRUPT) fail_msg("cut to %zu bytes: status %d", n, st);
    }
    is_buf_u8(&b, 0);
    assert_int_equal(parse_copy(b.data, b.len), INFERSCALE_E_CORRUPT);
    is_buf_free(&b);
}

static void test_every_cut_is_noticed(void **state)
{
    for (int codec = 0; codec < IS_CODECS; codec++) check_cuts((is_codec)codec);
}

static void test_foreign_files(void **state)
{
    is_buf b = small_file(IS_CODEC_F16);

    assert_int_equal(parse_copy((const uint8_t *)"GGUF\3\0\0\0 and so on, a file of somebody else", 40), INFERSCALE_E_FOREIGN);
    assert_int_equal(parse_copy((const uint8_t *)"x", 1), INFERSCALE_E_FOREIGN);
    b.data[8] = 4; /* a newer version says so, not that it is damaged */
    assert_int_equal(parse_copy(b.data, b.len), INFERSCALE_E_FOREIGN);
    assert_non_null(strstr(is_error(), "version 4"));
    b.data[8] = 2; /* a version that this codec's files do not have */
    assert_int_equal(parse_copy(b.data, b.len), INFERSCALE_E_CORRUPT);
    is_buf_free(&b);
}

/* Files of today's format, kept in the tree: they are read, and written again byte by byte. A change of either is a new version
 * of the format. INFERSCALE_WRITE_CORPUS=1 writes them (they are the fuzzer's seeds too). */
static void test_kept_files(void **state)
{
    static const struct {
        const char *name;
        is_codec codec;
        int pairing;
        uint32_t layers, heads, head_dim, begin, dim, tokens;
    } files[] = {
        { "f16-halves", IS_CODEC_F16, IS_PAIR_HALVES, 2, 2, 8, 0, 8, 3 },
        { "bf16-adjacent", IS_CODEC_BF16, IS_PAIR_ADJACENT, 1, 1, 12, 4, 8, 2 },
        { "f32-no-rope", IS_CODEC_F32, 0, 1, 3, 5, 0, 0, 4 },
        { "f16-odd", IS_CODEC_F16, IS_PAIR_HALVES, 1, 1, 7, 1, 6, 1 },
        { "int8-halves", IS_CODEC_INT8, IS_PAIR_HALVES, 2, 2, 8, 0, 8, 3 },
        { "int4-halves", IS_CODEC_INT4, IS_PAIR_HALVES, 1, 2, 72, 0, 72, 2 },
    };

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        /* base 1: frequencies without libm, so that the bytes are the same everywhere */
        is_geometry *g = kv_geometry(files[i].layers, files[i].heads, files[i].head_dim, files[i].pairing, files[i].begin,
                                     files[i].dim, 1, 1.25);
        uint64_t seed = i + 1;
        is_segment *s = kv_segment(g, files[i].codec, files[i].tokens, (uint8_t)(0x10 + i), &seed), *read;
        is_buf b = IS_BUF_INIT, again = IS_BUF_INIT;
        uint8_t *kept;
        char path[128];
        size_t n;

        snprintf(path, sizeof path, "fuzz/corpus/segment/%s.seg", files[i].name);
        OK(is_segment_serialize(s, &b));
        if (getenv("INFERSCALE_WRITE_CORPUS")) OK(is_file_write_atomic(is_fs_posix(), path, b.data, b.len));
        OK(is_file_read_all(is_fs_posix(), path, 1 << 20, &kept, &n));
        assert_int_equal(n, b.len);
        assert_memory_equal(kept, b.data, n);
        OK(is_segment_parse(kept, n, &read));
        same_segment(s, read);
        OK(is_segment_serialize(read, &again));
        assert_memory_equal(again.data, kept, n);
        is_free(kept);
        is_buf_free(&b);
        is_buf_free(&again);
        is_segment_unref(s);
        is_segment_unref(read);
        is_geometry_free(g);
    }
}

/* Headers that lie, with a good checksum: each field set to extremes. Never OK (they contradict the rest), never a crash. */
static void test_lying_headers(void **state)
{
    static const uint64_t lies[] = {
        0, 1, 2, 0x7f, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffffffff, UINT64_MAX, UINT64_MAX - 63
    };
    uint64_t seed = kv_seed();
    is_buf b = small_file(IS_CODEC_F16);
    uint32_t header = is_get_u32(b.data + 12);

    for (size_t at = 12; at + 4 <= header - 8; at += at >= 64 && at < 128 ? 64 : 4) {
        for (size_t l = 0; l < 40; l++) {
            uint8_t *d = is_malloc(b.len);
            uint64_t lie = l < 12 ? lies[l] : kv_next(&seed) >> kv_below(&seed, 64), sum;
            is_segment *s = NULL;

            memcpy(d, b.data, b.len);
            memcpy(d + at, &lie, at + 8 <= header - 8 && l % 2 ? 8 : 4);
            sum = is_checksum(d, header - 8);
            memcpy(d + header - 8, &sum, 8);
            if (is_segment_parse(d, b.len, &s) ==
                INFERSCALE_OK) /* codecs of one size, context, tokens, frequencies, windows: nothing contradicts them */
                assert_true((at >= 24 && is_segment_info(s)->n_tokens == 3) || !memcmp(d, b.data, b.len));
            is_segment_unref(s);
            is_free(d);
        }
    }
    is_buf_free(&b);
}

static void test_faults_while_writing_and_reading(void **state)
{
    char path[] = "/tmp/inferscale-segment-XXXXXX";
    is_geometry *g = kv_geometry(2, 2, 8, IS_PAIR_HALVES, 0, 8, 1e4, 1);
    uint64_t seed = 5;
    is_segment *s = kv_segment(g, IS_CODEC_F16, 6, 3, &seed), *back;

    assert_true(mkstemp(path) >= 0);
    for (int op = 0; op < FAULT_OPS; op++) {
        for (int kind = 0; kind <= FAULT_GARBLE; kind++) {
            for (unsigned n = 1;; n++) {
                fault_fs *ff = fault_fs_new((enum fault_op)op, (enum fault_kind)kind, n);
                bool hit;

                unlink(path);
                if (is_segment_write(s, fault_fs_fs(ff), path) != INFERSCALE_OK) {
                    assert_true(*is_error() != 0);
                    assert_int_not_equal(access(path, F_OK), 0); /* nothing torn is left where it can be helped */
                } else if (is_segment_read(fault_fs_fs(ff), path, &back) == INFERSCALE_OK) {
                    same_segment(s, back); /* whatever happened on the way: the right rows or none */
                    is_segment_unref(back);
                }
                assert_int_equal(fault_fs_open_files(ff), 0);
                hit = fault_fs_hit(ff);
                fault_fs_free(ff);
                if (!hit) break;
            }
        }
    }
    unlink(path);
    is_segment_unref(s);
    is_geometry_free(g);
}

static void test_out_of_memory(void **state)
{
    is_geometry *g = kv_geometry(2, 2, 8, IS_PAIR_HALVES, 0, 8, 1e4, 1);
    uint64_t seed = 6;
    is_segment *s = kv_segment(g, IS_CODEC_F16, 6, 3, &seed), *back;
    is_buf b = IS_BUF_INIT;

    OK(is_segment_serialize(s, &b));
    for (size_t n = 1;; n++) {
        is_status st;

        is_mem_fail_at(n);
        st = is_segment_parse(b.data, b.len, &back);
        is_mem_fail_at(0);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
        assert_null(back);
    }
    is_segment_unref(back);
    for (size_t n = 1;; n++) {
        is_buf c = IS_BUF_INIT;
        is_status st;

        is_mem_fail_at(n);
        st = is_segment_serialize(s, &c);
        is_mem_fail_at(0);
        is_buf_free(&c);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
    }
    is_buf_free(&b);
    is_segment_unref(s);
    is_geometry_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_kept),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_file_round_trip),
        cmocka_unit_test(test_every_flipped_bit_is_noticed),
        cmocka_unit_test(test_large_file_random_flips),
        cmocka_unit_test(test_every_cut_is_noticed),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_kept_files),
        cmocka_unit_test(test_lying_headers),
        cmocka_unit_test(test_faults_while_writing_and_reading),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
