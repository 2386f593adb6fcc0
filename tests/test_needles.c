/* The search for many byte strings at once, against memmem: every whole string is found wherever it lies and however the stream is
 * cut, nothing is found that is not there, and what cannot be looked for is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/needles.h"
#include "support/scratch.h"

enum { STRINGS = 40, STREAM = 200000 };

static bool hit[STRINGS];
static size_t n_hits;

static is_status note(void *ctx, uint32_t needle, int kind, uint64_t end)
{
    const size_t *len = ctx;

    assert_true(kind >= 0 && kind < STRINGS && needle < 100000);
    assert_true(end >= 8 && end <= STREAM);
    (void)len;
    hit[kind] = true;
    n_hits++;
    return INFERSCALE_OK;
}

static void test_finds_what_memmem_finds(void **state)
{
    unsigned long long seed = scratch_seed("needles");
    static uint8_t strings[STRINGS][300], stream[STREAM];
    size_t len[STRINGS];

    (void)state;
    for (int round = 0; round < 20; round++) {
        is_needles *s = NULL;
        bool planted[STRINGS] = { 0 };
        unsigned letters = round % 2 ? 256 : 4; /* few letters: much that is nearly there */

        OK(is_needles_new(1 << 16, &s));
        for (int i = 0; i < STRINGS; i++) {
            len[i] = 12 + scratch_below(&seed, 280);
            for (size_t k = 0; k < len[i]; k++) strings[i][k] = (uint8_t)('a' + scratch_below(&seed, letters));
            memcpy(strings[i], "\x01\x02\x03", 3); /* not all one letter */
            OK(is_needles_add(s, i, strings[i], len[i], i % 2 ? 64 : 32, 0));
        }
        assert_int_equal(is_needles_left_out(s), 0);
        for (size_t k = 0; k < STREAM; k++) stream[k] = (uint8_t)('a' + scratch_below(&seed, letters));
        for (int i = 0; i < STRINGS; i += 1 + (int)scratch_below(&seed, 3)) {
            memcpy(stream + (size_t)i * 5000 + scratch_below(&seed, 4000), strings[i], len[i]);
            planted[i] = true;
        }
        memset(hit, 0, sizeof hit);
        is_needles_begin(s);
        for (size_t at = 0; at < STREAM;) {
            size_t n = 1 + scratch_below(&seed, round < 10 ? 90000 : 50);

            if (n > STREAM - at) n = STREAM - at;
            OK(is_needles_feed(s, stream + at, n, note, len));
            at += n;
        }
        for (int i = 0; i < STRINGS; i++) {
            bool there = memmem(stream, STREAM, strings[i], len[i]) != NULL;

            assert_true(there || !planted[i]);
            if (there && !hit[i]) fail_msg("string %d of %zu bytes is there and was not found", i, len[i]);
            if (!there && hit[i] && len[i] < 32) fail_msg("string %d of %zu bytes was found and is not there", i, len[i]);
            if (!there && hit[i] && letters == 256) fail_msg("a block of string %d was found and is not there", i);
        }
        is_needles_free(s);
    }
}

static void test_a_part_of_a_long_string_is_enough(void **state)
{
    unsigned long long seed = scratch_seed("parts");
    uint8_t text[400];
    is_needles *s = NULL;

    (void)state;
    for (size_t k = 0; k < sizeof text; k++) text[k] = (uint8_t)scratch_below(&seed, 256);
    OK(is_needles_new(1000, &s));
    OK(is_needles_add(s, 1, text, sizeof text, 64, 0));
    for (size_t from = 0; from + 127 <= sizeof text; from++) {
        n_hits = 0;
        is_needles_begin(s);
        OK(is_needles_feed(s, text + from, 127, note, NULL));
        if (n_hits == 0) fail_msg("127 bytes from %zu on", from);
    }
    n_hits = 0;
    is_needles_begin(s); /* streams do not run into each other */
    OK(is_needles_feed(s, text, 40, note, NULL));
    is_needles_begin(s);
    OK(is_needles_feed(s, text + 40, 40, note, NULL));
    assert_int_equal(n_hits, 0);
    is_needles_free(s);
}

static void test_counts_what_it_leaves_out(void **state)
{
    unsigned long long seed = 7;
    static uint8_t zeros[6400], text[6400];
    is_needles *s = NULL;

    (void)state;
    for (size_t k = 0; k < sizeof text; k++) text[k] = (uint8_t)scratch_below(&seed, 256);
    OK(is_needles_new(50, &s));
    OK(is_needles_add(s, 1, "short", 5, 32, 0));
    OK(is_needles_add(s, 1, "aaaaaaaabbbbbbb", 15, 32, 0));
    OK(is_needles_add(s, 1, zeros, sizeof zeros, 64, 0));
    assert_int_equal(is_needles_count(s), 0);
    assert_int_equal(is_needles_left_out(s), 102);
    OK(is_needles_add(s, 1, text, sizeof text, 64, 10)); /* one in ten */
    assert_int_equal(is_needles_count(s), 10);
    assert_int_equal(is_needles_left_out(s), 192);
    OK(is_needles_add(s, 1, "Anna was here", 13, 32, 0));
    OK(is_needles_add(s, 1, "Anna was here", 13, 32, 0)); /* once */
    OK(is_needles_add(s, 1, "Ben also was here", 17, 32, 0)); /* the same end */
    assert_int_equal(is_needles_count(s), 12);
    n_hits = 0;
    is_needles_begin(s);
    OK(is_needles_feed(s, (const uint8_t *)"So Anna was here. Ben also was here!", 36, note, NULL));
    assert_int_equal(n_hits, 2);
    is_needles_free(s);
}

static void test_memory_may_run_out(void **state)
{
    (void)state;
    for (size_t nth = 1;; nth++) {
        is_needles *s = NULL;
        uint8_t text[64 * 300];
        is_status st;

        for (size_t k = 0; k < sizeof text; k++) text[k] = (uint8_t)(k * k >> 5);
        is_mem_fail_at(nth);
        st = is_needles_new(1000, &s);
        if (st == INFERSCALE_OK) st = is_needles_add(s, 1, text, sizeof text, 64, 0);
        if (st == INFERSCALE_OK) st = is_needles_add(s, 2, "a short needle", 14, 32, 0);
        is_mem_fail_at(0);
        is_needles_free(s);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_what_memmem_finds), cmocka_unit_test(test_a_part_of_a_long_string_is_enough),
        cmocka_unit_test(test_counts_what_it_leaves_out), cmocka_unit_test(test_memory_may_run_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
