/* What must hold of the embedder on the real MiniLM: related texts are nearer than unrelated ones, a batch gives what single
 * texts give, any length and any UTF-8 are safe, what cannot be embedded is refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "embed/embed.h"
#include "support/scratch.h"

enum { DIM = 384 };
static is_embedder *e;

/* Next to this program is tests/.., where plug-ins are built. */
static const char *plugins(void)
{
    static char dir[4096];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    assert_true(n > 0);
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    *strrchr(dir, '/') = 0;
    return dir;
}

static const char *model(const char *name)
{
    static char path[4096];
    const char *dir = getenv("INFERSCALE_MODELS"), *home = getenv("HOME");
    if (dir && *dir) snprintf(path, sizeof path, "%s/%s", dir, name);
    else snprintf(path, sizeof path, "%s/.cache/inferscale/models/%s", home ? home : ".", name);
    if (access(path, R_OK) != 0) fail_msg("%s is not there; run scripts/setup.sh", path);
    return path;
}

static int open_embedder(void **state)
{
    (void)state;
    OK(is_embedder_open(plugins(), "llama", model("all-minilm-l6-v2-f16.gguf"), NULL, 1, &e));
    return 0;
}

static int close_embedder(void **state)
{
    (void)state;
    is_embedder_close(e);
    return 0;
}

static void embed(const char *text, float *v)
{
    double square = 0;
    OK(is_embedder_embed(e, &text, 1, v));
    for (int d = 0; d < DIM; d++) square += (double)v[d] * v[d];
    assert_true(fabs(square - 1) < 1e-4);
}

static double cosine(const float *a, const float *b)
{
    double sum = 0;
    for (int d = 0; d < DIM; d++) sum += (double)a[d] * b[d];
    return sum;
}

static void related_texts_are_nearer(void **state)
{
    static const char *const sets[][3] = { /* text, related, unrelated */
        {"The cat sleeps on the sofa.", "A kitten is napping on the couch.", "The stock market fell by three percent."},
        {"What must Anna not eat?", "Anna is allergic to peanuts.", "Anna moved to Lisbon in May."},
        {"How do I bake bread?", "A recipe for sourdough loaves", "Repairing a bicycle chain"},
        {"Tom plays the violin.", "Tom's instrument is a string instrument.", "Tom's car is red."},
        {"He was born in 1974.", "His year of birth is 1974.", "She likes to swim in the lake."},
        {"My daughter starts school in September.", "Our girl will go to first grade this autumn.",
         "The printer is out of ink."},
    };
    float a[DIM], b[DIM], c[DIM];

    (void)state;
    assert_int_equal(is_embedder_dim(e), DIM);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        embed(sets[i][0], a);
        embed(sets[i][1], b);
        embed(sets[i][2], c);
        assert_true(cosine(a, b) > cosine(a, c) + 0.2);
    }
    embed("Kayak", a);
    embed("kayak", b); /* uncased model */
    assert_true(cosine(a, b) > 0.9999);
}

/* Texts of every length from a word to far over the cut, in batches cut in every way. */
static void batches_equal_single_texts(void **state)
{
    enum { N = 40 };
    unsigned long long seed = scratch_seed("batches");
    char *texts[N];
    float *all = is_malloc(N * DIM * sizeof *all), one[DIM];

    (void)state;
    for (int i = 0; i < N; i++) {
        is_buf b = IS_BUF_INIT;
        unsigned words = 1 + scratch_below(&seed, i % 4 ? 20 : 400);
        for (unsigned w = 0; w < words; w++) is_buf_fmt(&b, "%s%c%u ", w % 7 ? "word" : "zeppelin",
                                                        'a' + (int)scratch_below(&seed, 26), w);
        texts[i] = is_buf_take(&b);
    }
    OK(is_embedder_embed(e, (const char *const *)texts, N, all));
    for (int i = 0; i < N; i++) {
        embed(texts[i], one);
        for (int d = 0; d < DIM; d++) assert_true(fabsf(one[d] - all[i * DIM + d]) < 1e-3f);
        assert_true(cosine(one, all + i * DIM) > 0.99999);
    }
    for (int i = 0; i < N; i++) is_free(texts[i]);
    is_free(all);
}

/* A megabyte is its beginning: what is past the cut does not matter, what is before does. */
static void long_texts_are_cut(void **state)
{
    size_t n = 1 << 20;
    char *big = is_malloc(n + 1);
    float a[DIM], b[DIM], c[DIM];

    (void)state;
    for (size_t i = 0; i < n; i++) big[i] = "the boat sails "[i % 15];
    big[n] = 0;
    embed(big, a);
    memcpy(big + n - 7, "kitchen", 7);
    embed(big, b);
    assert_true(cosine(a, b) > 0.99999);
    memcpy(big, "kitchen sink and oven", 21);
    embed(big, c);
    assert_true(cosine(a, c) < 0.9999);
    memset(big, 'x', n); /* one word of a megabyte */
    embed(big, a);
    memset(big, ' ', n - 5); /* a megabyte of blanks, then a word */
    memcpy(big + n - 5, "kayak", 5);
    embed(big, a);
    embed("kayak", b);
    assert_true(cosine(a, b) > 0.999);
    is_free(big);
}

static void strange_texts_are_safe(void **state)
{
    static const char *const texts[] = {
        "\xf0\x9f\x98\x80", "\xe6\x9d\xb1\xe4\xba\xac\xe3\x81\xab\xe8\xa1\x8c\xe3\x81\x8f", "[CLS] [SEP] [MASK] [PAD]",
            "<|endoftext|>", "\x01\x02\x7f",
        "a", "\xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7", "e\xcc\x81\xcc\x81\xcc\x81\xcc\x81", "\xef\xbf\xbd",
            "%s%n%d\\\"'",
    };
    float v[DIM];

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) embed(texts[i], v);
    unsigned long long seed = scratch_seed("characters");
    for (int i = 0; i < 40; i++) { /* random characters of every plane */
        is_buf b = IS_BUF_INIT;
        for (int c = 0; c < 60; c++) {
            unsigned u = 0x21 + scratch_below(&seed, c % 2 ? 0x7ff : 0x1ffff);
            if (u >= 0xd800 && u < 0xe000) u = 'x';
            if (u < 0x80) is_buf_u8(&b, (uint8_t)u);
            else if (u < 0x800) is_buf_u8(&b, (uint8_t)(0xc0 | u >> 6)), is_buf_u8(&b, (uint8_t)(0x80 | (u & 0x3f)));
            else {
                if (u < 0x10000) is_buf_u8(&b, (uint8_t)(0xe0 | u >> 12));
                else is_buf_u8(&b, (uint8_t)(0xf0 | u >> 18)), is_buf_u8(&b, (uint8_t)(0x80 | (u >> 12 & 0x3f)));
                is_buf_u8(&b, (uint8_t)(0x80 | (u >> 6 & 0x3f)));
                is_buf_u8(&b, (uint8_t)(0x80 | (u & 0x3f)));
            }
        }
        embed((char *)b.data, v);
        is_buf_free(&b);
    }
}

static void blank_and_broken_texts_are_refused(void **state)
{
    const char *blank[] = {"good", ""}, *space[] = {" \n\t\xc2\xa0"}, *latin[] = {"caf\xe9"};
    float v[2 * DIM];

    (void)state;
    FAILS(E_INVALID, is_embedder_embed(e, blank, 2, v));
    FAILS(E_INVALID, is_embedder_embed(e, space, 1, v));
    FAILS(E_INVALID, is_embedder_embed(e, latin, 1, v));
    embed("still alive", v);
}

static void quantised_vectors_keep_the_angle(void **state)
{
    float a[DIM], b[DIM], sa, sb;
    int8_t qa[DIM], qb[DIM];
    int32_t dot = 0;

    (void)state;
    embed("The cat sleeps on the sofa.", a);
    embed("A kitten is napping on the couch.", b);
    is_quantize_i8(a, DIM, qa, &sa);
    is_quantize_i8(b, DIM, qb, &sb);
    for (int d = 0; d < DIM; d++) {
        dot += qa[d] * qb[d];
        assert_true(fabsf(qa[d] * sa - a[d]) <= sa * 0.501f);
    }
    assert_true(fabs(dot * (double)sa * sb - cosine(a, b)) < 0.01);
    float zero[4] = {0}, scale;
    int8_t qz[4] = {9, 9, 9, 9};
    is_quantize_i8(zero, 4, qz, &scale);
    assert_true(scale == 0 && qz[0] == 0 && qz[3] == 0);
}

static void the_fingerprint_is_the_files(void **state)
{
    is_embedder *other;

    (void)state;
    OK(is_embedder_open(plugins(), NULL, model("all-minilm-l6-v2-f16.gguf"), NULL, 2, &other));
    assert_memory_equal(is_embedder_fingerprint(e), is_embedder_fingerprint(other), IS_HASH_BYTES);
    is_embedder_close(other);
}

/* A header that says impossible things is refused, or its vectors are; the process goes on. */
static void impossible_headers_are_refused(void **state)
{
    static const char *const keys[] = { "bert.block_count", "bert.attention.layer_norm_epsilon" };
    static const uint32_t values[] = { 0, 0x7fc00000 /* NaN */ };
    char *dir = scratch_make();
    const char *bad = scratch_path(dir, "bad.gguf");
    uint8_t *whole;
    size_t n;

    (void)state;
    OK(is_file_read_all(is_fs_posix(), model("all-minilm-l6-v2-f16.gguf"), (size_t)1 << 30, &whole, &n));
    for (int i = 0; i < 2; i++) {
        uint8_t *at = memmem(whole, n, keys[i], strlen(keys[i]));
        uint8_t kept[4];
        is_embedder *other = NULL;
        FILE *f = fopen(bad, "wb");

        assert_true(at && f);
        at += strlen(keys[i]) + 4; /* behind its type */
        memcpy(kept, at, 4);
        memcpy(at, &values[i], 4);
        assert_int_equal(fwrite(whole, 1, n, f), n);
        assert_int_equal(fclose(f), 0);
        memcpy(at, kept, 4);
        FAILS(E_MODEL, is_embedder_open(plugins(), NULL, bad, NULL, 2, &other));
        assert_null(other);
    }
    is_free(whole);
    scratch_remove(dir);
}

static void other_files_are_refused(void **state)
{
    char *dir = scratch_make();
    const char *text = scratch_path(dir, "text.gguf"), *cut = scratch_path(dir, "cut.gguf");
    is_embedder *other;
    FILE *f = fopen(text, "wb"), *in;
    char *half = is_malloc(1 << 20);

    (void)state;
    fputs("this is not a model at all, but it is long enough to be looked at", f);
    fclose(f);
    in = fopen(model("all-minilm-l6-v2-f16.gguf"), "rb");
    f = fopen(cut, "wb");
    assert_int_equal(fread(half, 1, 1 << 20, in), 1 << 20);
    fwrite(half, 1, 1 << 20, f);
    fclose(f);
    fclose(in);
    is_free(half);
    FAILS(E_MODEL, is_embedder_open(plugins(), NULL, text, NULL, 1, &other));
    FAILS(E_MODEL, is_embedder_open(plugins(), NULL, cut, NULL, 1, &other));
    FAILS(E_MODEL, is_embedder_open(plugins(), NULL, scratch_path(dir, "nothing.gguf"), NULL, 1, &other));
    FAILS(E_UNSUPPORTED, is_embedder_open(plugins(), NULL, model("smollm2-135m-instruct-q4_0.gguf"), NULL, 1, &other));
    assert_null(other);
    FAILS(E_INVALID, is_embedder_open(plugins(), NULL, "", NULL, 1, &other));
    FAILS(E_NOTFOUND, is_embedder_open(plugins(), "nosuchengine", text, NULL, 1, &other));
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(related_texts_are_nearer),         cmocka_unit_test(batches_equal_single_texts),
        cmocka_unit_test(long_texts_are_cut),               cmocka_unit_test(strange_texts_are_safe),
        cmocka_unit_test(blank_and_broken_texts_are_refused), cmocka_unit_test(quantised_vectors_keep_the_angle),
        cmocka_unit_test(the_fingerprint_is_the_files),     cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(impossible_headers_are_refused),
    };
    return cmocka_run_group_tests(tests, open_embedder, close_embedder);
}
