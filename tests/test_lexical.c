/* What must hold of words: folding, stems, stop words, any bytes; and of BM25: it equals the formula written out plainly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "recall/lexical.h"

static uint64_t state;

static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* ---- Terms --------------------------------------------------------------------------------------------------------------- */

static is_status join(void *ctx, const char *term, size_t n)
{
    is_buf *b = ctx;
    if (b->len) is_buf_str(b, " ");
    is_buf_add(b, term, n);
    return INFERSCALE_OK;
}

static void expect_terms(const char *text, const char *want)
{
    is_terms *t;
    is_buf b = IS_BUF_INIT;

    assert_int_equal(is_terms_new(&t), INFERSCALE_OK);
    assert_int_equal(is_terms_each(t, text, strlen(text), join, &b), INFERSCALE_OK);
    assert_string_equal(b.data ? (char *)b.data : "", want);
    is_buf_free(&b);
    is_terms_free(t);
}

static void words_become_terms(void **ctx)
{
    (void)ctx;
    expect_terms("", "");
    expect_terms(" \t\n.,;!? -- ", "");
    expect_terms("The cats were RUNNING", "cat run");
    expect_terms("8 May 2023: painted a lake", "8 may 2023 paint lake");
    expect_terms("Anna's dog, the dogs' bed", "anna dog dog bed");
    expect_terms("Anna\u2019s don\u2019t", "anna");
    expect_terms("'quoted' ''", "quot");
    expect_terms("rock'n'roll it's x's.y", "rocknrol x y");
    expect_terms("e-mail under_score a.b", "e mail score b"); /* a is a stop word, under too */
    expect_terms("\xf0\x9f\x98\x80 smile \xf0\x9f\x98\x80", "smile");
}

static void case_and_accents_fold(void **ctx)
{
    (void)ctx;
    expect_terms("Jos\u00e9 JOS\u00c9 jose Jose\u0301", "jose jose jose jose");
    expect_terms("\u0141\u00f3d\u017a \u015eebnem \u017bubr", "lodz sebnem zubr");
    expect_terms("\u00c6sir \u00e6sir", "\u00e6sir \u00e6sir");
    expect_terms("\u0391\u0398\u0397\u039d\u0391 \u03b1\u03b8\u03b7\u03bd\u03b1",
                 "\u03b1\u03b8\u03b7\u03bd\u03b1 \u03b1\u03b8\u03b7\u03bd\u03b1");
    expect_terms("\u039f\u0394\u039f\u03a3 \u03bf\u03b4\u03bf\u03c2",
                 "\u03bf\u03b4\u03bf\u03c3 \u03bf\u03b4\u03bf\u03c3"); /* final sigma */
    expect_terms("\u041c\u041e\u0421\u041a\u0412\u0410 \u043c\u043e\u0441\u043a\u0432\u0430 \u0401\u0436",
                 "\u043c\u043e\u0441\u043a\u0432\u0430 \u043c\u043e\u0441\u043a\u0432\u0430 \u0451\u0436");
    expect_terms("soft\u00adhyphen", "softhyphen");
    expect_terms("\u6771\u4eac", "\u6771 \u6771\u4eac \u4eac"); /* characters and pairs */
    expect_terms("\u6771 \u4eac", "\u6771 \u4eac");
}

static void stop_list_is_sorted_and_found(void **ctx)
{
    static const char *const in[] = {"a", "about", "the", "youve", "dont", "i", "is", "it"};
    static const char *const out[] = {"", "may", "th", "thee", "zebra", "aa", "aboutt", "youv", "he\xc3\xa9"};

    (void)ctx;
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) assert_true(is_stop_word(in[i], strlen(in[i])));
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) assert_false(is_stop_word(out[i], strlen(out[i])));
}

static is_status check_term(void *ctx, const char *term, size_t n)
{
    (void)term;
    assert_true(n > 0 && n <= 2 * IS_TERM_MAX);
    ++*(size_t *)ctx;
    return INFERSCALE_OK;
}

/* Any bytes: no crash, bounded terms; a megabyte without a space is one word, cut. */
static void any_bytes_are_fine(void **ctx)
{
    is_terms *t;
    size_t n = 0, big = 1 << 20;
    char *p = is_malloc(big);

    (void)ctx;
    state = 77;
    assert_int_equal(is_terms_new(&t), INFERSCALE_OK);
    for (int round = 0; round < 300; round++) {
        size_t len = next() % 400;
        char *bytes = is_malloc(len + 1); /* exact, so that reading past the end is seen by the sanitizer */
        for (size_t i = 0; i < len; i++) bytes[i] = next() & 1 ? (char)next() : "'s\xe2\x80\x99 a\xf0\xc3"[next() % 9];
        assert_int_equal(is_terms_each(t, bytes, len, check_term, &n), INFERSCALE_OK);
        is_free(bytes);
    }
    memset(p, 'x', big);
    n = 0;
    assert_int_equal(is_terms_each(t, p, big, check_term, &n), INFERSCALE_OK);
    assert_int_equal(n, 1);
    is_free(p);
    is_terms_free(t);
}

/* ---- BM25 ---------------------------------------------------------------------------------------------------------------- */

enum { DOCS = 200, WORDS = 30, MAX_LEN = 20 };

typedef struct corpus { int len[DOCS], group[DOCS], word[DOCS][MAX_LEN]; char text[DOCS][MAX_LEN * 8]; } corpus;

static void make_corpus(corpus *c)
{
    for (int d = 0; d < DOCS; d++) {
        c->len[d] = (int)(next() % MAX_LEN);
        c->group[d] = (int)(next() % 2);
        c->text[d][0] = 0;
        for (int i = 0; i < c->len[d]; i++) {
            c->word[d][i] = (int)(next() % WORDS * (next() % WORDS) / WORDS); /* some words are common */
            sprintf(c->text[d] + strlen(c->text[d]), "zq%dk ", c->word[d][i]);
        }
    }
}

static int count(const corpus *c, int d, int word)
{
    int n = 0;
    for (int i = 0; i < c->len[d]; i++) n += c->word[d][i] == word;
    return n;
}

/* One term's BM25 (k1 = 0.9, b = 0.4) by the book, with the statistics of the document's own group. */
static double by_the_book(const corpus *c, int d, int word)
{
    double n = 0, df = 0, sum = 0, tf = count(c, d, word);
    for (int i = 0; i < DOCS; i++)
        if (c->group[i] == c->group[d]) n++, sum += c->len[i], df += count(c, i, word) > 0;
    if (tf == 0) return 0;
    return log(1 + (n - df + 0.5) / (df + 0.5)) * tf * 1.9 / (tf + 0.9 * (0.6 + 0.4 * c->len[d] / (sum / n)));
}

static void bm25_equals_the_formula(void **ctx)
{
    corpus *c = is_malloc(sizeof *c);
    is_lexical *x;
    double got[DOCS];

    (void)ctx;
    state = 2024;
    print_message("seed %llu\n", (unsigned long long)state);
    make_corpus(c);
    assert_int_equal(is_lexical_new(&x), INFERSCALE_OK);
    for (int d = 0; d < DOCS; d++) {
        const char *parts[] = {NULL, c->text[d]};
        assert_int_equal(is_lexical_add(x, (unsigned)c->group[d], parts, 2), INFERSCALE_OK);
    }
    assert_int_equal(is_lexical_docs(x), DOCS);
    for (int round = 0; round < 50; round++) {
        int a = (int)(next() % WORDS), b = (int)(next() % WORDS);
        char query[64];
        sprintf(query, "zq%dk, unknownword ZQ%dK zq%dk?", a, b, a); /* a repeated word counts once */
        assert_int_equal(is_lexical_score(x, query, got, NULL, NULL), INFERSCALE_OK);
        for (int d = 0; d < DOCS; d++) {
            double want = by_the_book(c, d, a) + (a == b ? 0 : by_the_book(c, d, b));
            assert_true(fabs(got[d] - want) < 1e-9);
        }
    }
    is_lexical_free(x);
    is_free(c);
}

/* Many terms and documents: the table grows, nothing is lost. */
static void index_grows(void **ctx)
{
    is_lexical *x;
    double *s = is_malloc(5000 * sizeof *s);
    char text[64];

    (void)ctx;
    assert_int_equal(is_lexical_new(&x), INFERSCALE_OK);
    for (int d = 0; d < 5000; d++) {
        const char *part = text;
        sprintf(text, "w%dq common", d);
        assert_int_equal(is_lexical_add(x, 0, &part, 1), INFERSCALE_OK);
    }
    for (int d = 0; d < 5000; d += 611) {
        sprintf(text, "w%dq", d);
        assert_int_equal(is_lexical_score(x, text, s, NULL, NULL), INFERSCALE_OK);
        for (int i = 0; i < 5000; i++) assert_true((s[i] > 0) == (i == d));
    }
    assert_true(is_lexical_bytes(x) > 5000 * 16);
    is_free(s);
    is_lexical_free(x);
}

static void groups_do_not_touch(void **ctx)
{
    is_lexical *x, *y;
    const char *a = "lake house", *b = "boat", *c = "lake lake lake cabin by a very big lake";
    double alone[2], mixed[12];

    (void)ctx;
    assert_int_equal(is_lexical_new(&x), INFERSCALE_OK);
    assert_int_equal(is_lexical_new(&y), INFERSCALE_OK);
    is_lexical_add(x, 0, &a, 1);
    is_lexical_add(x, 0, &b, 1);
    is_lexical_add(y, 0, &a, 1);
    for (int i = 0; i < 10; i++) is_lexical_add(y, 1, &c, 1);
    is_lexical_add(y, 0, &b, 1);
    is_lexical_score(x, "lake boat", alone, NULL, NULL);
    is_lexical_score(y, "lake boat", mixed, NULL, NULL);
    assert_true(alone[0] == mixed[0] && alone[1] == mixed[11]);
    assert_true(mixed[1] > 0);
    assert_int_equal(is_lexical_add(x, 2, &a, 1), INFERSCALE_E_INVALID);
    is_lexical_free(x);
    is_lexical_free(y);
}

/* Every allocation fails once: an error, no leak, no crash. */
static void out_of_memory_is_an_error(void **ctx)
{
    (void)ctx;
    for (size_t nth = 1;; nth++) {
        is_lexical *x = NULL;
        const char *text = "one two three four five six seven eight nine ten";
        double s[3];
        is_mem_fail_at(nth);
        is_status st = is_lexical_new(&x);
        for (int d = 0; st == INFERSCALE_OK && d < 3; d++) st = is_lexical_add(x, 0, &text, 1);
        if (st == INFERSCALE_OK) st = is_lexical_score(x, "two ten", s, NULL, NULL);
        is_mem_fail_at(0);
        is_lexical_free(x);
        if (st == INFERSCALE_OK) {
            assert_true(nth > 5);
            return;
        }
        assert_int_equal(st, INFERSCALE_E_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_become_terms),     cmocka_unit_test(case_and_accents_fold),
        cmocka_unit_test(stop_list_is_sorted_and_found), cmocka_unit_test(any_bytes_are_fine),
        cmocka_unit_test(bm25_equals_the_formula), cmocka_unit_test(index_grows),
        cmocka_unit_test(groups_do_not_touch),    cmocka_unit_test(out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
