/* test_out.c - what people see: cut and wrapped to the terminal, and never able to upset it. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "cli/out.h"
#include "support/scratch.h"

static char *memory;
static size_t memory_n;

static FILE *begin(void)
{
    FILE *f;
    free(memory);
    memory = NULL;
    f = open_memstream(&memory, &memory_n);
    assert_non_null(f);
    return f;
}

static void put(void (*function)(FILE *f, const char *s), const char *s)
{
    FILE *f = begin();
    function(f, s);
    fclose(f);
}

static void text(FILE *f, const char *s) { cli_put_text(f, s, false); }
static void line(FILE *f, const char *s) { cli_put_text(f, s, true); }
static void cut10(FILE *f, const char *s) { cli_put_cut(f, s, 10); }
static void cut0(FILE *f, const char *s) { cli_put_cut(f, s, 0); }
static void wrap(FILE *f, const char *s) { cli_put_wrapped(f, s, 20, 4); }

static void text_is_harmless(void **state)
{
    put(text, "a\033[31mb\007\r\nc\td\x7f");
    assert_string_equal(memory, "a\xef\xbf\xbd[31mb\xef\xbf\xbd \nc\td\xef\xbf\xbd");
    put(line, "a\nb\tc");
    assert_string_equal(memory, "a b c");
    put(line, "\xe2\x80\xae" "reversed \xc2\x9b" "31m \xff \xed\xa0\x80");
    assert_null(strstr(memory, "\xe2\x80\xae"));
    assert_null(strstr(memory, "\xc2\x9b"));
    assert_true(is_utf8_valid(memory, memory_n, NULL));
    put(line, "caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80");
    assert_string_equal(memory, "caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80");
}

static void cuts_by_columns(void **state)
{
    put(cut10, "0123456789");
    assert_string_equal(memory, "0123456789");
    put(cut10, "0123456789a");
    assert_string_equal(memory, "012345678\xe2\x80\xa6");
    put(cut0, "0123456789a");
    assert_string_equal(memory, "0123456789a");
    put(cut10, "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e"); /* six characters, twelve columns */
    assert_int_equal(cli_text_width(memory), 9);
    assert_int_equal(cli_text_width("e\xcc\x81"), 1); /* a combining accent takes no column */
}

static void wraps_at_words(void **state)
{
    put(wrap, "one two three four five six");
    assert_string_equal(memory, "one two three\n    four five six\n");
    put(wrap, "");
    assert_string_equal(memory, "\n");
    put(wrap, "  one   two  ");
    assert_string_equal(memory, "one two\n");
    char words[902 + 2] = "";
    for (int i = 0; i < 300; i++) strcat(words, "\xe6\x97\xa5"); /* a script without spaces */
    put(wrap, words);
    assert_int_equal(memory_n, 901);
    assert_memory_equal(memory, words, 900);
}

static void numbers_for_people(void **state)
{
    char s[32];
    cli_count(0, s);
    assert_string_equal(s, "0");
    cli_count(999, s);
    assert_string_equal(s, "999");
    cli_count(1234567, s);
    assert_string_equal(s, "1,234,567");
    cli_count(UINT64_MAX, s);
    assert_string_equal(s, "18,446,744,073,709,551,615");
    cli_size(17, s);
    assert_string_equal(s, "17 B");
    cli_size(23040, s);
    assert_string_equal(s, "22.5 KiB");
    cli_size((uint64_t)1 << 40, s);
    assert_string_equal(s, "1.00 TiB");
    cli_ms(0.45, s);
    assert_string_equal(s, "0.45 ms");
    cli_ms(45.06, s);
    assert_string_equal(s, "45.1 ms");
    cli_ms(4120, s);
    assert_string_equal(s, "4.12 s");
    cli_date(0, s);
    assert_string_equal(s, "-");
    cli_date(1714521600, s);
    assert_string_equal(s, "2024-05-01");
    cli_date(1714571760, s);
    assert_string_equal(s, "2024-05-01 13:56");
}

/* Random bytes: the output is valid UTF-8, has no control character but line ends, and keeps to its columns. */
static void survives_any_bytes(void **state)
{
    unsigned seed = (unsigned)scratch_seed("bytes");
    srand(seed);
    for (int round = 0; round < 20000; round++) {
        char s[700];
        int n = rand() % (round % 10 == 0 ? 690 : 40), limit = 5 + rand() % 30;
        FILE *f;
        for (int i = 0; i < n; i++) s[i] = (char)(rand() % 4 ? 32 + rand() % 95 : 1 + rand() % 255);
        s[n] = '\0';
        f = begin();
        assert_true(cli_put_cut(f, s, limit) <= limit);
        fclose(f);
        assert_true(is_utf8_valid(memory, memory_n, NULL));
        assert_true(cli_text_width(memory) <= limit);
        for (size_t i = 0; i < memory_n; i++) assert_true((unsigned char)memory[i] >= 0x20 && memory[i] != 0x7f);
        f = begin();
        cli_put_wrapped(f, s, limit + 20, 2);
        fclose(f);
        assert_true(is_utf8_valid(memory, memory_n, NULL));
        for (size_t i = 0; i < memory_n; i++) assert_true((unsigned char)memory[i] >= 0x20 || memory[i] == '\n');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_harmless),   cmocka_unit_test(cuts_by_columns),    cmocka_unit_test(wraps_at_words),
        cmocka_unit_test(numbers_for_people), cmocka_unit_test(survives_any_bytes),
    };
    int failed;
    setlocale(LC_CTYPE, "C.UTF-8");
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(memory);
    return failed;
}
