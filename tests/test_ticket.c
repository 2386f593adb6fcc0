/* Tickets: what was written is read, and nothing else is: no bit can be changed, no field can lie, no time can pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base64.h"
#include "base/mem.h"
#include "kv/ticket.h"
#include "support/kv_make.h"

enum { MOST = 20 };
static const uint8_t secret[32] = { 1, 2, 3 }, other[32] = { 1, 2, 4 };

static void fill(uint8_t *p, size_t n, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)kv_next(seed);
}

static void random_ticket(inferscale_ticket *t, inferscale_kv_part parts[MOST], uint64_t *seed)
{
    *t = (inferscale_ticket)INFERSCALE_TICKET_INIT;
    t->op = 1 + (int)kv_below(seed, 5);
    fill(t->id, sizeof t->id, seed);
    fill(t->fingerprint, sizeof t->fingerprint, seed);
    fill(t->tag, sizeof t->tag, seed);
    fill(t->salt, sizeof t->salt, seed);
    fill(t->prompt_hash, sizeof t->prompt_hash, seed);
    t->epoch = kv_next(seed);
    t->expires = (int64_t)(kv_next(seed) >> 20);
    t->n_prompt = kv_below(seed, 5000);
    if (t->op == INFERSCALE_TICKET_CAPTURE) {
        t->n_prompt += 1;
        t->capture_from = kv_below(seed, t->n_prompt);
        t->capture_n = 1 + kv_below(seed, t->n_prompt - t->capture_from);
    }
    if (t->op != INFERSCALE_TICKET_CAPTURE && t->op != INFERSCALE_TICKET_INJECT) return;
    t->parts = parts;
    for (uint32_t pos = kv_below(seed, 3); t->n_parts < MOST; t->n_parts++) {
        inferscale_kv_part *p = &parts[t->n_parts];

        memset(p, 0, sizeof *p);
        fill(p->name, sizeof p->name, seed);
        *p = (inferscale_kv_part){ .dir = kv_below(seed, 3), .begin = kv_below(seed, 100), .n_tokens = 1 + kv_below(seed, 300),
                                   .pos = pos + kv_below(seed, 2) * kv_below(seed, 50) };
        fill(p->name, sizeof p->name, seed);
        pos = p->pos + p->n_tokens;
        if (pos > t->n_prompt) break;
    }
}

static void same(const inferscale_ticket *a, const inferscale_ticket *b)
{
    assert_true(a->op == b->op && a->epoch == b->epoch && a->expires == b->expires && a->n_prompt == b->n_prompt);
    assert_true(a->n_parts == b->n_parts && a->capture_from == b->capture_from && a->capture_n == b->capture_n);
    assert_memory_equal(a->id, b->id, sizeof a->id);
    assert_memory_equal(a->fingerprint, b->fingerprint, 32);
    assert_memory_equal(a->tag, b->tag, 32);
    assert_memory_equal(a->salt, b->salt, 32);
    assert_memory_equal(a->prompt_hash, b->prompt_hash, 32);
    for (uint32_t i = 0; i < a->n_parts; i++) assert_memory_equal(&a->parts[i], &b->parts[i], sizeof a->parts[i]);
}

static char *written(const inferscale_ticket *t)
{
    char *text = NULL;

    if (inferscale_ticket_write(t, secret, &text) != INFERSCALE_OK) fail_msg("%s", inferscale_error());
    return text;
}

static void refused(inferscale_status want, const char *text, const uint8_t *key, int64_t now)
{
    inferscale_ticket *t = (void *)&secret;

    assert_int_equal(inferscale_ticket_read(text, key, now, &t), want);
    assert_null(t);
    assert_true(*inferscale_error());
}

static void test_round_trip(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 500; round++) {
        inferscale_kv_part parts[MOST];
        inferscale_ticket t, *back;
        char *text, *again;

        random_ticket(&t, parts, &seed);
        text = written(&t);
        assert_int_equal(inferscale_ticket_read(text, secret, t.expires, &back), INFERSCALE_OK);
        assert_true(back->struct_size == sizeof t);
        same(&t, back);
        again = written(back); /* one text for one ticket */
        assert_string_equal(text, again);
        refused(INFERSCALE_E_DENIED, text, other, t.expires);
        refused(INFERSCALE_E_STALE, text, secret, t.expires + 1);
        inferscale_ticket_free(back);
        inferscale_ticket_text_free(text);
        inferscale_ticket_text_free(again);
    }
}

/* Every bit of a ticket, and every character of its text replaced, cut or added. */
static void test_no_bit_can_be_changed(void **state)
{
    uint64_t seed = kv_seed();
    inferscale_kv_part parts[MOST];
    inferscale_ticket t;
    uint8_t *bytes;
    char *text;
    size_t n;

    do random_ticket(&t, parts, &seed);
    while (t.n_parts < 2);
    text = written(&t);
    assert_int_equal(is_base64url_read(text, 1 << 20, &bytes, &n), INFERSCALE_OK);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        char *flipped;

        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        flipped = is_base64url(bytes, n);
        refused(bit < 8 ? INFERSCALE_E_PARSE : INFERSCALE_E_DENIED, flipped, secret, 0);
        is_free(flipped);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t i = 0, length = strlen(text); i < length; i++) {
        inferscale_ticket *back = NULL;
        char was = text[i];

        for (const char *c = "AZaz09-_=+/ "; *c; c++) {
            text[i] = *c;
            assert_true(*c == was || inferscale_ticket_read(text, secret, 0, &back) != INFERSCALE_OK);
        }
        text[i] = 0;
        assert_int_not_equal(inferscale_ticket_read(text, secret, 0, &back), INFERSCALE_OK);
        text[i] = was;
    }
    is_free(bytes);
    inferscale_ticket_text_free(text);
}

static void test_what_is_not_a_ticket(void **state)
{
    static const char *const none[] = { "", "A", "AA==", "not a ticket", "AQEAAA", "\xff\xfe", "AQ\n" };
    char *long_one = malloc(5 << 20);

    for (size_t i = 0; i < sizeof none / sizeof *none; i++) refused(INFERSCALE_E_PARSE, none[i], secret, 0);
    assert_non_null(long_one);
    memset(long_one, 'A', (5 << 20) - 1);
    long_one[(5 << 20) - 1] = 0;
    refused(INFERSCALE_E_PARSE, long_one, secret, 0);
    free(long_one);
    refused(INFERSCALE_E_INVALID, NULL, secret, 0);
    refused(INFERSCALE_E_INVALID, "", NULL, 0);
    assert_int_equal(inferscale_ticket_read("", secret, 0, NULL), INFERSCALE_E_INVALID);
    inferscale_ticket_free(NULL);
    inferscale_ticket_text_free(NULL);
}

/* What no gateway writes is refused when it is written, and when another has signed it. */
static void expect_nonsense(const inferscale_ticket *t)
{
    char *text = (char *)"";

    assert_int_equal(inferscale_ticket_write(t, secret, &text), INFERSCALE_E_INVALID);
    assert_null(text);
}

static void test_nonsense(void **state)
{
    inferscale_kv_part parts[2] = { { .n_tokens = 10 }, { .n_tokens = 5, .pos = 10 } };
    inferscale_ticket good = INFERSCALE_TICKET_INIT, t;

    good.op = INFERSCALE_TICKET_CAPTURE;
    good.n_prompt = 20;
    good.n_parts = 2;
    good.parts = parts;
    good.capture_from = 15;
    good.capture_n = 5;
    inferscale_ticket_text_free(written(&good));
#define BAD(change) t = good, change, expect_nonsense(&t)
    BAD(t.op = 0);
    BAD(t.op = 6);
    BAD(t.op = INFERSCALE_TICKET_DESCRIBE); /* with parts */
    BAD(t.op = INFERSCALE_TICKET_INJECT);   /* with rows to capture */
    BAD(t.capture_n = 0);
    BAD(t.capture_n = 6);
    BAD(t.capture_from = UINT32_MAX);
    BAD(t.n_prompt = 14);
    BAD(t.n_prompt = (1 << 24) + 1);
    BAD(t.n_parts = 65537);
    BAD(t.parts = NULL);
    BAD(t.struct_size = 8);
#define BAD_PART(change) do { inferscale_kv_part was = parts[1]; change; expect_nonsense(&good); parts[1] = was; } while (0)
    BAD_PART(parts[1].pos = 9);
    BAD_PART(parts[1].pos = 16);
    BAD_PART(parts[1].n_tokens = 0);
    BAD_PART(parts[1].n_tokens = UINT32_MAX);
    BAD_PART(parts[1].begin = UINT32_MAX);
    inferscale_ticket_text_free(written(&good));
}

static char *signed_anyway(uint8_t *bytes, size_t n) /* n without the signature, for which there is room */
{
    is_hash *h;

    assert_int_equal(is_hash_new(secret, &h), INFERSCALE_OK);
    is_hash_field(h, "inferscale ticket 1", 20);
    is_hash_field(h, bytes, n);
    is_hash_end(h, bytes + n);
    return is_base64url(bytes, n + 32);
}

/* Signed bytes that say anything: a ticket that could have been written, or refused; never a crash. */
static void test_signed_nonsense(void **state)
{
    uint64_t seed = kv_seed();
    size_t read = 0;

    for (int round = 0; round < 4000; round++) {
        inferscale_kv_part parts[MOST];
        inferscale_ticket t, *back = NULL;
        uint8_t *bytes, room[8192];
        char *text;
        size_t n;

        random_ticket(&t, parts, &seed);
        text = written(&t);
        assert_int_equal(is_base64url_read(text, sizeof room, &bytes, &n), INFERSCALE_OK);
        memcpy(room, bytes, n);
        is_free(bytes);
        inferscale_ticket_text_free(text);
        n -= 32;
        if (kv_below(&seed, 4) == 0) n -= kv_below(&seed, (uint32_t)n);
        for (uint32_t k = kv_below(&seed, 4); k && n; k--) room[kv_below(&seed, (uint32_t)n)] ^= (uint8_t)kv_next(&seed);
        text = signed_anyway(room, n);
        if (inferscale_ticket_read(text, secret, INT64_MIN, &back) == INFERSCALE_OK) {
            char *again = written(back);

            assert_string_equal(again, text);
            inferscale_ticket_text_free(again);
            read++;
        }
        inferscale_ticket_free(back);
        is_free(text);
    }
    assert_true(read > 100);
}

static void test_salt(void **state)
{
    static const uint8_t names[3][32] = { { 1 }, { 2 }, { 3 } }, swapped[3][32] = { { 2 }, { 1 }, { 3 } };
    is_ticket_salt_of of = { .tag = { 9 }, .epoch = 4, .names = names, .n_names = 3 }, o;
    uint8_t salts[10][32];
    size_t n = 0;

#define SALT(key, change)                                                                                                      \
    do {                                                                                                                       \
        o = of;                                                                                                                \
        change;                                                                                                                \
        assert_int_equal(is_ticket_salt(key, &o, salts[n++]), INFERSCALE_OK);                                                  \
    } while (0)
    SALT(secret, (void)o);
    SALT(other, (void)o);
    SALT(secret, o.tag[31] = 1);
    SALT(secret, o.epoch++);
    SALT(secret, o.fingerprint[0] = 1);
    SALT(secret, o.profile[0] = 1);
    SALT(secret, o.attempt = 1);
    SALT(secret, o.n_names = 2);
    SALT(secret, o.names = swapped);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) assert_memory_not_equal(salts[i], salts[k], 32);
    SALT(secret, (void)o);
    assert_memory_equal(salts[0], salts[n - 1], 32);
}

static void test_prompt_hash(void **state)
{
    static const int32_t ids[] = { 1, 258, -1, 0x01020304 };
    static const uint8_t bytes[] = { 1, 0, 0, 0, 2, 1, 0, 0, 255, 255, 255, 255, 4, 3, 2, 1 };
    uint8_t a[32], b[32];

    assert_int_equal(is_ticket_prompt(ids, 4, a), INFERSCALE_OK);
    inferscale_hash(NULL, bytes, sizeof bytes, b);
    assert_memory_equal(a, b, 32);
    inferscale_hash(secret, bytes, sizeof bytes, b);
    assert_memory_not_equal(a, b, 32);
}

static void test_out_of_memory(void **state)
{
    uint64_t seed = kv_seed();
    inferscale_kv_part parts[MOST];
    inferscale_ticket t, *back;
    char *text = NULL, *good;
    is_status st;

    do random_ticket(&t, parts, &seed);
    while (!t.n_parts);
    good = written(&t);
    for (size_t n = 1;; n++) {
        is_mem_fail_at(n);
        st = inferscale_ticket_write(&t, secret, &text);
        if (st == INFERSCALE_OK) break;
        assert_true(st == INFERSCALE_E_NOMEM && !text);
    }
    inferscale_ticket_text_free(text);
    for (size_t n = 1;; n++) {
        is_mem_fail_at(n);
        st = inferscale_ticket_read(good, secret, 0, &back);
        if (st == INFERSCALE_OK) break;
        assert_true(st == INFERSCALE_E_NOMEM && !back);
    }
    is_mem_fail_at(0);
    inferscale_ticket_free(back);
    inferscale_ticket_text_free(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_no_bit_can_be_changed),
        cmocka_unit_test(test_what_is_not_a_ticket),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_signed_nonsense),
        cmocka_unit_test(test_salt),
        cmocka_unit_test(test_prompt_hash),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
