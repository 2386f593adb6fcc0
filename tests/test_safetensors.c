/* test_safetensors.c - the safetensors reader gives what is there, and refuses everything that does not add up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "tools/safetensors.h"

/* header length + header + data in a block of exactly that size */
static uint8_t *make(const char *header, const void *data, size_t n_data, size_t *n)
{
    is_buf b = IS_BUF_INIT;
    uint8_t *p;

    is_buf_u64(&b, strlen(header));
    is_buf_str(&b, header);
    is_buf_add(&b, data, n_data);
    assert_true(is_buf_ok(&b));
    *n = b.len;
    p = malloc(b.len);
    assert_non_null(p);
    memcpy(p, b.data, b.len);
    is_buf_free(&b);
    return p;
}

static void refuses(is_status want, const char *header, size_t n_data, const char *says)
{
    static const uint8_t zeros[256];
    st_file *f = (st_file *)1;
    size_t n;
    uint8_t *p = make(header, zeros, n_data, &n);
    is_status st = st_parse(p, n, &f);

    free(p);
    if (st != want || f || !strstr(is_error(), says))
        fail_msg("%s: status %d, sentence: %s", header, (int)st, is_error());
}

static void test_reads(void **state)
{
    static const uint8_t data[] = { 9, 8, 7, 6, 5, 4, 3, 2, 1, 0 };
    st_file *f = NULL;
    size_t n;
    uint8_t *p = make("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[8,10]},"
                      "\"a.weight\":{\"dtype\":\"F16\",\"shape\":[2,1,2],\"data_offsets\":[0,8]},"
                      "\"none\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[8,8]}}   ", data, sizeof(data), &n);
    const st_tensor *t;

    assert_int_equal(st_parse(p, n, &f), INFERSCALE_OK);
    assert_int_equal(f->n, 3);
    t = st_find(f, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, ST_F16);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[2], 2);
    assert_int_equal(t->n_bytes, 8);
    assert_memory_equal(t->data, data, 8);
    t = st_find(f, "b");
    assert_memory_equal(t->data, data + 8, 2);
    assert_int_equal(st_find(f, "none")->n_bytes, 0);
    assert_null(st_find(f, "a"));
    assert_null(st_find(f, "__metadata__"));
    st_free(f);
    free(p);
}

static void test_refuses(void **state)
{
    const is_status bad = INFERSCALE_E_CORRUPT;

    refuses(bad, "[]", 0, "does not begin");
    refuses(bad, "{", 0, "header byte");
    refuses(bad, "{}", 1, "belong to no tensor");
    refuses(bad, "{\"a\":3}", 0, "not an object");
    refuses(bad, "{\"a\":{}}", 0, "no dtype");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\"}}", 0, "no shape");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "no data_offsets");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "no data_offsets");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, "whole number");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, "whole number");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "does not fit");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, "outside");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, "outside");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1, "outside");
    refuses(bad, "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952,8],\"data_offsets\":[0,0]}}", 0, "too large");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "hole");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                 "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3, "overlaps");
    refuses(bad, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                 "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "header byte");
    refuses(bad, "{\"__metadata__\":{\"n\":1}}", 0, "not a string");
    refuses(INFERSCALE_E_UNSUPPORTED, "{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "F4");
    refuses(INFERSCALE_E_UNSUPPORTED, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "9 dim");
}

static void test_every_cut(void **state)
{
    static const uint8_t data[8];
    st_file *f;
    size_t n;
    uint8_t *p = make("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", data, sizeof(data), &n);

    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *part = malloc(cut ? cut : 1); /* its own block, so that a read past the end is found */

        assert_non_null(part);
        memcpy(part, p, cut);
        if (st_parse(part, cut, &f) != INFERSCALE_E_CORRUPT) fail_msg("cut at %zu was accepted", cut);
        assert_null(f);
        free(part);
    }
    for (int i = 0; i < 64; i++) { /* every header length that does not fit */
        uint64_t length = (uint64_t)1 << i;

        memcpy(p, &length, 8);
        assert_int_not_equal(st_parse(p, n, &f), INFERSCALE_OK);
        assert_null(f);
    }
    free(p);
}

static void test_no_memory(void **state)
{
    st_file *f;
    size_t n, before, count;
    uint8_t *p = make("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                      "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "", 0, &n);

    before = is_mem_count();
    assert_int_equal(st_parse(p, n, &f), INFERSCALE_OK);
    st_free(f);
    count = is_mem_count() - before;
    assert_true(count >= 4); /* file, list, two names */
    for (size_t i = 1; i <= count; i++) {
        is_mem_fail_at(i);
        assert_int_equal(st_parse(p, n, &f), INFERSCALE_E_NOMEM);
        assert_null(f);
        is_mem_fail_at(0);
    }
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
