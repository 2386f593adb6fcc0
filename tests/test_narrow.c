/* Rows that were stored in f32 and rounded in idle time (encode/narrow.c) are, bit for bit, the
 * rows that storing them at once in the narrower codec gives: both round the same f32 values,
 * once. What is promised is this much, of one capture: a capture whose context was itself stored
 * rows saw these in f32 in the one case and rounded in the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/handle.h"
#include "bank/maintain.h"
#include "base/mem.h"
#include "kv/segment_layout.h"
#include "support/kv_make.h"
#include "support/scratch.h"
#include "support/store_kit.h"

/* ---- One segment ---------------------------------------------------------------------------- */

/* Where rounding is hard: ties, subnormal numbers of f16, the ends of its range, zeros of both
 * signs. */
static float hard_float(uint64_t *seed)
{
    static const float hard[] = { 0.0f, -0.0f, 65504.0f, -65504.0f, 65519.0f, 0x1p-24f, 0x1p-25f,
                                  0x1.8p-25f, 0x1p-14f, 0x1.ffcp-15f, 0x1.002p0f, 0x1.006p0f,
                                  0x1.001p0f, 0x1.01p0f, 0x1.03p0f, 0x1p-149f };
    const uint32_t n = sizeof hard / sizeof *hard, i = kv_below(seed, 4 * n);

    return i < n ? hard[i] : kv_float(seed);
}

static void expect_equal(const is_segment *a, const is_segment *b)
{
    const is_geometry *g = is_segment_info(a)->geometry;

    assert_int_equal(is_segment_info(a)->codec, is_segment_info(b)->codec);
    assert_int_equal(is_segment_info(a)->n_tokens, is_segment_info(b)->n_tokens);
    assert_int_equal(is_segment_bytes(a), is_segment_bytes(b));
    assert_true(is_geometry_equal(g, is_segment_info(b)->geometry));
    for (uint32_t p = 0; p < g->n_planes; p++)
        for (uint32_t h = 0; h < g->planes[p].n_heads; h++)
            assert_memory_equal(is_segment_head(a, p, h), is_segment_head(b, p, h),
                                is_segment_head_bytes(a, &g->planes[p]));
}

static void rounding_a_segment_is_storing_it_narrow(void **state)
{
    uint64_t seed = kv_seed();
    const uint8_t name[IS_HASH_BYTES] = { 7 };

    (void)state;
    for (int round = 0; round < 100; round++) {
        is_geometry *g = kv_random_geometry(&seed);
        const uint32_t n = 1 + kv_below(&seed, 20);
        float **rows = kv_rows(g, n, &seed);
        int32_t tokens[20] = { 0 };

        for (uint32_t p = 0; p < g->n_planes; p++)
            for (size_t i = 0; i < (size_t)n * is_plane_width(&g->planes[p]); i++)
                rows[p][i] = hard_float(&seed);
        for (int codec = 0; codec < IS_CODECS; codec++) {
            is_segment_desc d = { .codec = IS_CODEC_F32, .n_tokens = n, .tokens = tokens,
                                  .geometry = g };
            is_segment *wide, *rounded, *once;

            OK(is_segment_new(&d, (const float *const *)rows, &wide));
            OK(is_segment_recode(wide, name, (is_codec)codec, &rounded));
            memcpy(d.name, name, IS_HASH_BYTES);
            d.codec = (is_codec)codec;
            OK(is_segment_new(&d, (const float *const *)rows, &once));
            expect_equal(rounded, once);
            assert_memory_equal(is_segment_info(rounded)->name, name, IS_HASH_BYTES);
            is_segment_unref(wide);
            is_segment_unref(rounded);
            is_segment_unref(once);
        }
        kv_rows_free(g, rows);
        is_geometry_free(g);
    }
}

/* What the narrower codec has no number for is refused in both ways. */
static void what_does_not_fit_is_refused(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = kv_random_geometry(&seed);
    float **rows = kv_rows(g, 1, &seed);
    int32_t token = 0;
    is_segment_desc d = { .codec = IS_CODEC_F32, .n_tokens = 1, .tokens = &token, .geometry = g };
    is_segment *wide, *narrow = NULL;

    (void)state;
    rows[g->n_planes - 1][0] = 65520.0f; /* the first that would become infinite */
    OK(is_segment_new(&d, (const float *const *)rows, &wide));
    assert_int_equal(is_segment_recode(wide, d.name, IS_CODEC_F16, &narrow),
                     INFERSCALE_E_UNSUPPORTED);
    assert_null(narrow);
    d.codec = IS_CODEC_F16;
    assert_int_equal(is_segment_new(&d, (const float *const *)rows, &narrow),
                     INFERSCALE_E_UNSUPPORTED);
    assert_null(narrow);
    is_segment_unref(wide);
    kv_rows_free(g, rows);
    is_geometry_free(g);
}

/* ---- A store -------------------------------------------------------------------------------- */

static inferscale *open_as(const char *home, const char *codec)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;

    o.codec = codec;
    o.policy = "page:4";
    o.refine = "none";
    OK(inferscale_open(&is, &o));
    return is;
}

static is_segment *rows_of(inferscale *is, int64_t item)
{
    is_book *books = NULL;
    is_segment *s = NULL;
    size_t n = 0;

    OK(is_bank_books(is->bank, 0, &books, &n));
    for (size_t i = 0; i < n && !s; i++)
        if (books[i].item_id == item) OK(is_vault_get(is->vault, books[i].name, NULL, &s));
    is_free(books);
    assert_non_null(s);
    return s;
}

/* The same store twice: encoded in f32 and then rounded; and encoded in the narrower codec. */
static void check_rounded_store(const char *name, is_codec codec)
{
    enum { FACTS = 12 };
    char *dir = scratch_make();
    char *wide = strdup(scratch_path(dir, "wide")), *once = strdup(scratch_path(dir, "once"));
    int64_t ids[FACTS];
    inferscale *a = open_as(wide, NULL), *b;
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;

    for (int i = 0; i < FACTS; i++) {
        char text[60];

        snprintf(text, sizeof text, "Anna has %d apples and %d pears.", i, 3 * i);
        ids[i] = store_fact(a, &store_anna, text);
    }
    inferscale_close(a);
    store_copy(wide, once);
    a = open_as(wide, "f32");
    OK(inferscale_encode(a, &store_anna, NULL));
    inferscale_close(a);
    a = open_as(wide, name);
    b = open_as(once, name);
    OK(inferscale_encode(a, &store_anna, &o));
    assert_int_equal(o.facts_encoded, 0); /* rounded, not computed */
    OK(inferscale_encode(b, &store_anna, &o));
    assert_int_equal(o.facts_encoded, FACTS);
    for (int i = 0; i < FACTS; i++) {
        is_segment *rounded = rows_of(a, ids[i]), *stored = rows_of(b, ids[i]);

        assert_int_equal(is_segment_info(rounded)->codec, codec);
        expect_equal(rounded, stored);
        is_segment_unref(rounded);
        is_segment_unref(stored);
    }
    inferscale_close(a);
    inferscale_close(b);
    free(wide);
    free(once);
    scratch_remove(dir);
}

static void a_store_that_was_rounded_holds_what_the_other_does(void **state)
{
    check_rounded_store("auto", IS_CODEC_F16);
    check_rounded_store("int8", IS_CODEC_INT8); /* the mock's rows are numbers that f16 holds */
    check_rounded_store("int4", IS_CODEC_INT4);
}

/* ---- int8, and the pages that take more facts ----------------------------------------------- */

/* Single facts are spread over 8 pages of 4 by the store's own key: with 3 in each, 24 are in open pages. */
enum { MANY = 40, FEW = 22 };

static void remember(inferscale *is, int from, int n, int64_t *ids)
{
    for (int i = from; i < from + n; i++) {
        char text[60];

        snprintf(text, sizeof text, "Anna has %d apples and %d pears.", i, 3 * i);
        ids[i] = store_fact(is, &store_anna, text);
    }
}

/* Files of each codec in the vault. */
static void count_codecs(const char *home, size_t n[IS_CODECS])
{
    size_t n_files = 0;
    char **files = store_files(home, ".seg", &n_files);

    memset(n, 0, IS_CODECS * sizeof *n);
    for (size_t i = 0; i < n_files; i++) {
        is_segment *s = NULL;

        OK(is_segment_read(is_fs_posix(), files[i], &s));
        n[is_segment_info(s)->codec]++;
        is_segment_unref(s);
    }
    store_files_free(files, n_files);
}

static uint64_t encode(inferscale *is)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;

    OK(inferscale_encode(is, &store_anna, &o));
    return o.tokens_computed;
}

/* Facts that come one by one stay in the cache's type while their page is open, and no longer; each then
 * holds what rounding the rows of a store in that type gives. */
static void check_full_pages(const char *name, is_codec codec)
{
    char *dir = scratch_make();
    char *home = strdup(scratch_path(dir, name));
    const char *open_rows = "SELECT count(*) FROM segments s WHERE s.lead OR EXISTS(SELECT 1 FROM"
                            " page_facts f JOIN pages g ON g.id = f.page_id WHERE f.item_id ="
                            " s.item_id AND f.lead = 0 AND g.open)";
    inferscale *is = open_as(home, name);
    int64_t ids[MANY];
    size_t n[IS_CODECS];

    for (int i = 0; i < MANY; i++) {
        remember(is, i, 1, ids);
        encode(is);
        count_codecs(home, n);
        if (i == 0) assert_int_equal(n[IS_CODEC_F16], 1);
        assert_int_equal(n[IS_CODEC_F16], store_sql_int(home, open_rows));
        assert_int_equal(n[IS_CODEC_F16], store_sql_int(home, "SELECT sum(wide) FROM segments"));
    }
    assert_true(n[codec] >= MANY - 24);
    assert_int_equal(n[IS_CODEC_F32], 0);
    assert_int_equal(store_sql_int(home, "SELECT count(*) FROM doomed"), 0);
    inferscale_close(is);
    store_expect_sound(home);
    free(home);
    scratch_remove(dir);
}

static void pages_that_are_full_become_int8(void **state)
{
    check_full_pages("int8", IS_CODEC_INT8);
}

static void pages_that_are_full_become_int4(void **state)
{
    check_full_pages("int4", IS_CODEC_INT4);
}

/* Whatever codec is asked for next, one set of rows is left, and what can be rounded is not computed. */
static void a_store_has_one_set_of_rows(void **state)
{
    static const struct { const char *codec; is_codec left; bool computes; } turns[] = {
        { "f32", IS_CODEC_F32, true }, { "auto", IS_CODEC_F16, false }, { "int8", IS_CODEC_INT8, false },
        { "auto", IS_CODEC_F16, true }, { "int4", IS_CODEC_INT4, false }, { "int8", IS_CODEC_INT8, true },
        { "int4", IS_CODEC_INT4, true }, { "bf16", IS_CODEC_BF16, true }, { "int8", IS_CODEC_INT8, true },
    };
    char *dir = scratch_make();
    char *home = strdup(scratch_path(dir, "turns"));
    inferscale *is = open_as(home, "f32");
    size_t n[IS_CODECS];
    int64_t ids[16];

    (void)state;
    remember(is, 0, 16, ids); /* four pages, all of them full */
    inferscale_close(is);
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        is = open_as(home, turns[i].codec);
        assert_int_equal(encode(is) > 0, turns[i].computes);
        inferscale_close(is);
        count_codecs(home, n);
        for (int c = 0; c < IS_CODECS; c++) assert_int_equal(n[c], c == (int)turns[i].left ? 16 : 0);
        assert_int_equal(store_sql_int(home, "SELECT count(*) FROM segments"), 16);
        assert_int_equal(store_sql_int(home, "SELECT count(DISTINCT fingerprint) FROM pages"), 1);
        store_expect_sound(home);
    }
    free(home);
    scratch_remove(dir);
}

/* A fact that joins a page after the store went over to int8 builds on the page's rows: they came along as
 * they were. */
static void open_pages_come_along(void **state)
{
    char *dir = scratch_make();
    char *home = strdup(scratch_path(dir, "open"));
    inferscale *is = open_as(home, "auto");
    int64_t ids[3];
    uint64_t first;

    (void)state;
    remember(is, 0, 1, ids);
    first = encode(is);
    assert_true(first > 0);
    inferscale_close(is);
    is = open_as(home, "int8");
    assert_int_equal(encode(is), 0);
    assert_int_equal(store_sql_int(home, "SELECT sum(wide) FROM segments"), 1);
    inferscale_close(is);
    store_expect_sound(home);
    free(home);
    scratch_remove(dir);
}

/* What is forgotten goes in either codec, and the store proves it. */
static void forgetting_reaches_both(void **state)
{
    char *dir = scratch_make();
    char *home = strdup(scratch_path(dir, "forget"));
    inferscale *is = open_as(home, "int8");
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    int64_t ids[FEW];
    size_t n[IS_CODECS];

    (void)state;
    remember(is, 0, FEW - 1, ids); /* five full pages, and one fact in the sixth */
    encode(is);
    remember(is, FEW - 1, 1, ids);
    encode(is);
    count_codecs(home, n);
    assert_true(n[IS_CODEC_INT8] > 0 && n[IS_CODEC_F16] > 0);
    o.prove = 1;
    for (int i = 0; i < FEW; i++) {
        inferscale_forget_report r;

        OK(inferscale_forget_with(is, &store_anna, &ids[i], 1, &o, &r));
        assert_true(r.proven && r.traces == 0);
    }
    inferscale_close(is);
    count_codecs(home, n);
    for (int c = 0; c < IS_CODECS; c++) assert_int_equal(n[c], 0);
    free(home);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_a_segment_is_storing_it_narrow),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_store_that_was_rounded_holds_what_the_other_does),
        cmocka_unit_test(pages_that_are_full_become_int8),
        cmocka_unit_test(pages_that_are_full_become_int4),
        cmocka_unit_test(a_store_has_one_set_of_rows),
        cmocka_unit_test(open_pages_come_along),
        cmocka_unit_test(forgetting_reaches_both),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
