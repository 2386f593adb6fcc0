/* test_pass.c - a pass is good for one request, one body and one time; nothing else opens anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kv/pass.h"

enum { NOW = 1796000000 };

static uint8_t secret[IS_KEY_BYTES];
static const is_pass_for put = { "PUT", "/inferscale/kv/spool/x", "bytes 0-3/4" };

/* As the connector makes them (python/inferscale_vllm/gateway.py). */
static const char theirs[] = "1.1796000000.6465666768696a6b6c6d6e6f70717273.2b492deb3f168fc524a0e70112047a24cde68acd7abfbceaecd793d2a5d24f95."
                             "f365fc58abcaff2885e2da485448a1eb8f52a576d89f8fb1400487b6bc0890c3";
static const char their_seal[] = "7b9e77769a381bc2293235926cde11cc25b99a8472c644b287134e100790bb5e";

static void the_connector_s_are_read(void **state)
{
    char hex[IS_HASH_HEX];
    uint8_t seal[IS_HASH_BYTES];
    is_pass p;
    is_hash *h;

    (void)state;
    assert_int_equal(is_pass_read(secret, &put, theirs, NOW, &p), INFERSCALE_OK);
    assert_true(is_pass_fits(&p, "rows", 4));
    assert_false(is_pass_fits(&p, "rowz", 4));
    assert_false(is_pass_fits(&p, "rows", 3));
    assert_int_equal(is_pass_seal(secret, &p, &h), INFERSCALE_OK);
    is_hash_bytes(h, "seg", 3); /* in whatever pieces */
    is_hash_bytes(h, "ment", 4);
    is_hash_end(h, seal);
    is_hex(seal, sizeof seal, hex);
    assert_string_equal(hex, their_seal);
}

static void ours_are_read_once_each(void **state)
{
    char a[IS_PASS_TEXT], b[IS_PASS_TEXT];
    is_pass p;

    (void)state;
    assert_int_equal(is_pass_write(secret, &put, "rows", 4, NOW, a), INFERSCALE_OK);
    assert_int_equal(is_pass_write(secret, &put, "rows", 4, NOW, b), INFERSCALE_OK);
    assert_string_not_equal(a, b);
    assert_int_equal(is_pass_read(secret, &put, a, NOW, &p), INFERSCALE_OK);
    assert_true(is_pass_fits(&p, "rows", 4));
    assert_int_equal(is_pass_write(secret, &put, NULL, 0, NOW, a), INFERSCALE_OK);
    assert_int_equal(is_pass_read(secret, &put, a, NOW, &p), INFERSCALE_OK);
    assert_true(is_pass_fits(&p, "", 0));
    assert_false(is_pass_fits(&p, "\0", 1));
}

static void any_other_letter_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof theirs - 1; i++)
        for (int c = 1; c < 256; c++) {
            char text[sizeof theirs];
            is_pass p;

            memcpy(text, theirs, sizeof theirs);
            if (text[i] == (char)c) continue;
            text[i] = (char)c;
            if (is_pass_read(secret, &put, text, NOW, &p) == INFERSCALE_OK) fail_msg("byte %zu may be %d", i, c);
        }
    for (size_t n = 0; n < sizeof theirs - 1; n++) {
        char text[sizeof theirs + 1];
        is_pass p;

        memcpy(text, theirs, n);
        text[n] = '\0';
        assert_int_equal(is_pass_read(secret, &put, text, NOW, &p), INFERSCALE_E_PARSE);
    }
}

static void it_is_for_one_request_and_one_time(void **state)
{
    static const is_pass_for others[] = {
        { "GET", "/inferscale/kv/spool/x", "bytes 0-3/4" }, { "PUT", "/inferscale/kv/spool/y", "bytes 0-3/4" },
        { "PUT", "/inferscale/kv/spool/x", "" }, { "PUT", "/inferscale/kv/spool/x", "bytes 0-3/8" },
        { "PUT/inferscale", "/kv/spool/x", "bytes 0-3/4" }, { "PUT", "/inferscale/kv/spool/xbytes 0-3/4", "" },
    };
    uint8_t other[IS_KEY_BYTES];
    is_pass p;

    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(is_pass_read(secret, &others[i], theirs, NOW, &p), INFERSCALE_E_DENIED);
    for (size_t i = 0; i < sizeof other; i++) {
        memcpy(other, secret, sizeof other);
        other[i] ^= 1;
        assert_int_equal(is_pass_read(other, &put, theirs, NOW, &p), INFERSCALE_E_DENIED);
    }
    assert_int_equal(is_pass_read(secret, &put, theirs, NOW + IS_PASS_SKEW, &p), INFERSCALE_OK);
    assert_int_equal(is_pass_read(secret, &put, theirs, NOW - IS_PASS_SKEW, &p), INFERSCALE_OK);
    assert_int_equal(is_pass_read(secret, &put, theirs, NOW + IS_PASS_SKEW + 1, &p), INFERSCALE_E_STALE);
    assert_int_equal(is_pass_read(secret, &put, theirs, NOW - IS_PASS_SKEW - 1, &p), INFERSCALE_E_STALE);
}

static void ranges(void **state)
{
    static const char *const wrong[] = { "", "bytes", "bytes ", "bytes 0-3", "bytes 0-3/", "bytes 0-3/*", "bytes */4", "bytes 4-3/9", "bytes 0-4/4",
                                         "bytes 00-3/4", "bytes 0-3/4 ", " bytes 0-3/4", "Bytes 0-3/4", "bytes -3/4", "bytes +0-3/4", "bytes 0--3/4",
                                         "bytes 0-3/9999999999999999", "bytes 0x0-3/4", "bytes 0-3/4,5-6/9" };
    uint64_t at, n, total;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (is_pass_range(wrong[i], &at, &n, &total)) fail_msg("\"%s\" is no range", wrong[i]);
    assert_true(is_pass_range("bytes 0-0/1", &at, &n, &total));
    assert_true(at == 0 && n == 1 && total == 1);
    assert_true(is_pass_range("bytes 262144-524287/999999999999999", &at, &n, &total));
    assert_true(at == 262144 && n == 262144 && total == 999999999999999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_connector_s_are_read),
        cmocka_unit_test(ours_are_read_once_each),
        cmocka_unit_test(any_other_letter_is_refused),
        cmocka_unit_test(it_is_for_one_request_and_one_time),
        cmocka_unit_test(ranges),
    };

    for (size_t i = 0; i < sizeof secret; i++) secret[i] = (uint8_t)i;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
