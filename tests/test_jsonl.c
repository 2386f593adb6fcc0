/* test_jsonl.c - the JSON Lines parser: what a line means, and that nothing else is let in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "exchange/jsonl.h"

static jsonl_record rec;

static is_status parse(const char *line) { return jsonl_parse(line, strlen(line), 7, &rec); }

static void reads_a_fact(void **state)
{
    assert_int_equal(
        parse("{\"type\":\"fact\",\"id\":12,\"version\":3,\"text\":\"caf\\u00e9 "
              "\xe2\x98\x95\",\"event_time\":\"2024-05-01T12:00:00Z\","
              "\"valid_from\":1714521600,\"valid_to\":null,\"expires\":\"2030-01-01\",\"source_turn\":4,"
              "\"metadata\":{\"b\":1,\"a\":[true]},\"user\":\"anna\",\"agent\":\"bot\",\"write_time\":\"2024-05-02\"}"),
        INFERSCALE_OK);
    assert_int_equal(rec.kind, JSONL_FACT);
    assert_int_equal(rec.line, 7);
    assert_int_equal(rec.id, 12);
    assert_string_equal(rec.text, "caf\xc3\xa9 \xe2\x98\x95");
    assert_int_equal(rec.event_time, 1714564800);
    assert_int_equal(rec.valid_from, 1714521600);
    assert_int_equal(rec.valid_to, 0);
    assert_int_equal(rec.expires, 1893456000);
    assert_int_equal(rec.source_turn, 4);
    assert_string_equal(rec.metadata, "{\"a\":[true],\"b\":1}");
    assert_string_equal(rec.user, "anna");
    assert_string_equal(rec.agent, "bot");
    assert_null(rec.run);
    jsonl_record_free(&rec);
    assert_int_equal(parse("{\"text\":\"x\"}"), INFERSCALE_OK); /* a line without type is a fact */
    assert_int_equal(rec.kind, JSONL_FACT);
    assert_null(rec.metadata);
    jsonl_record_free(&rec);
}

static void reads_a_turn(void **state)
{
    assert_int_equal(
        parse("{\"type\":\"turn\",\"id\":4,\"text\":\"Hello\",\"conversation\":\"c1\",\"speaker\":\"Anna\",\"time\":0,"
              "\"external_id\":\"m1\",\"app\":\"web\"}"),
        INFERSCALE_OK);
    assert_int_equal(rec.kind, JSONL_TURN);
    assert_string_equal(rec.conversation, "c1");
    assert_string_equal(rec.speaker, "Anna");
    assert_string_equal(rec.external_id, "m1");
    assert_string_equal(rec.app, "web");
    jsonl_record_free(&rec);
    assert_int_equal(parse("{\"type\":\"inferscale\",\"format\":1,\"exported\":\"2024-01-01\"}"), INFERSCALE_OK);
    assert_int_equal(rec.kind, JSONL_HEAD);
    jsonl_record_free(&rec);
}

static void refuses_and_names_the_line(void **state)
{
    static const struct { const char *line, *expected; } cases[] = {
        { "", "line 7: not JSON" },
        { "hello", "line 7: not JSON" },
        { "{\"text\":\"a\"", "not JSON" },
        { "{\"text\":\"a\"} {\"text\":\"b\"}", "not JSON" },
        { "{'text':'a'}", "not JSON" },
        { "{\"text\":\"a\",\"text\":\"b\"}", "not JSON" },
        { "{\"text\":\"a\\u0000b\"}", "not JSON" },
        { "{\"text\":\"\\ud800\"}", "not JSON" },
        { "{\"text\":\"a\xff\"}", "byte 11 is not valid UTF-8" },
        { "{\"text\":\"\xc0\xaf\"}", "not valid UTF-8" },
        { "{\"text\":\"\xed\xa0\x80\"}", "not valid UTF-8" },
        { "[\"text\"]", "line 7: not an object" },
        { "{}", "\"text\" is missing" },
        { "{\"text\":null}", "\"text\" is missing" },
        { "{\"text\":\"  \\n\\u00a0\"}", "\"text\" is blank" },
        { "{\"text\":5}", "\"text\" must be a string" },
        { "{\"text\":\"a\",\"tags\":[]}", "no member \"tags\"; put your own data under \"metadata\"" },
        { "{\"text\":\"a\",\"speaker\":\"b\"}", "a fact has no member \"speaker\"" },
        { "{\"type\":\"turn\",\"text\":\"a\",\"metadata\":{}}", "a turn has no member \"metadata\"" },
        { "{\"type\":\"note\",\"text\":\"a\"}", "\"type\" must be \"fact\" or \"turn\"" },
        { "{\"type\":1,\"text\":\"a\"}", "\"type\" must be" },
        { "{\"text\":\"a\",\"event_time\":\"soon\"}", "line 7: event_time: \"soon\" is no time" },
        { "{\"text\":\"a\",\"event_time\":1e300}", "event_time: 1e+300 is no number of seconds" },
        { "{\"text\":\"a\",\"event_time\":true}", "event_time is no time" },
        { "{\"text\":\"a\",\"id\":0}", "\"id\" must be a whole number above 0" },
        { "{\"text\":\"a\",\"id\":\"1\"}", "\"id\" must be" },
        { "{\"text\":\"a\",\"source_turn\":-3}", "\"source_turn\" must be" },
        { "{\"text\":\"a\",\"id\":99999999999999999999}", "not JSON" },
        { "{\"text\":\"a\",\"metadata\":[]}", "\"metadata\" must be an object" },
        { "{\"type\":\"inferscale\",\"format\":2}", "has format 2" },
        { "{\"type\":\"inferscale\"}", "has format 0" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        is_status st = parse(cases[i].line);
        if (st != INFERSCALE_E_PARSE) fail_msg("%s is let in", cases[i].line);
        if (!strstr(is_error(), cases[i].expected))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].line, is_error(), cases[i].expected);
        if (!strstr(is_error(), "line 7")) fail_msg("%s: the line is not named: %s", cases[i].line, is_error());
    }
    assert_int_equal(jsonl_parse("{\"text\":\"a\0b\"}", 14, 7, &rec), INFERSCALE_E_PARSE);
    assert_non_null(strstr(is_error(), "NUL"));
}

static void deep_nesting_is_an_error(void **state)
{
    enum { DEEP = 200000 };
    char *line = malloc(2 * DEEP + 64);
    size_t n = (size_t)sprintf(line, "{\"text\":\"a\",\"metadata\":{\"x\":");
    memset(line + n, '[', DEEP);
    memset(line + n + DEEP, ']', DEEP);
    strcpy(line + n + 2 * DEEP, "}}");
    assert_int_equal(parse(line), INFERSCALE_E_PARSE);
    free(line);
}

/* ---- Lines --------------------------------------------------------------------------------------------------------------- */

static jsonl_reader reader;

static FILE *open_text(const char *s, size_t n)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(s, 1, n, f), n);
    rewind(f);
    jsonl_reader_init(&reader, f);
    return f;
}

static void counts_lines(void **state)
{
    static const char text[] = "\xef\xbb\xbf{\"text\":\"one\"}\r\n\n   \t\n{\"text\":\"two\"}\n{\"text\":\"three\"}";
    FILE *f = open_text(text, sizeof text - 1);
    static const struct { size_t line; const char *text; } want[] = { { 1, "one" }, { 4, "two" }, { 5, "three" } };
    bool end;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(jsonl_next(&reader, &rec, &end), INFERSCALE_OK);
        assert_false(end);
        assert_int_equal(rec.line, want[i].line);
        assert_string_equal(rec.text, want[i].text);
        jsonl_record_free(&rec);
    }
    assert_int_equal(jsonl_next(&reader, &rec, &end), INFERSCALE_OK);
    assert_true(end);
    jsonl_reader_free(&reader);
    fclose(f);
}

static void bounds_a_line(void **state)
{
    size_t n = JSONL_LINE_MAX + 1000;
    char *text = malloc(n);
    bool end;
    FILE *f;
    memset(text, 'a', n);
    memcpy(text, "{\"text\":\"ok\"}\n{\"text\":\"", 23);
    f = open_text(text, n);
    assert_int_equal(jsonl_next(&reader, &rec, &end), INFERSCALE_OK);
    jsonl_record_free(&rec);
    assert_int_equal(jsonl_next(&reader, &rec, &end), INFERSCALE_E_PARSE);
    assert_non_null(strstr(is_error(), "line 2 is longer than 4 MiB"));
    jsonl_reader_free(&reader);
    fclose(f);
    /* A fact of a megabyte is well-formed here: the library refuses it with its own sentence. */
    text[1 << 20] = '"';
    strcpy(text + (1 << 20) + 1, "}\n");
    f = open_text(text, (1 << 20) + 3);
    assert_int_equal(jsonl_next(&reader, &rec, &end), INFERSCALE_OK);
    jsonl_record_free(&rec);
    assert_int_equal(jsonl_next(&reader, &rec, &end), INFERSCALE_OK);
    assert_true(strlen(rec.text) > 1000000);
    jsonl_record_free(&rec);
    jsonl_reader_free(&reader);
    fclose(f);
    free(text);
}

static void empty_files_end(void **state)
{
    static const char *const texts[] = { "", "\n", "\r\n\r\n", "\xef\xbb\xbf", "  " };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bool end = false;
        FILE *f = open_text(texts[i], strlen(texts[i]));
        assert_int_equal(jsonl_next(&reader, &rec, &end), INFERSCALE_OK);
        assert_true(end);
        jsonl_reader_free(&reader);
        fclose(f);
    }
}

/* Each allocation of ours failing in turn gives an error, not a crash or a leak. */
static void survives_no_memory(void **state)
{
    bool failed_once = false;
    for (size_t nth = 1; nth < 50; nth++) {
        is_status st;
        is_mem_fail_at(nth);
        st = parse("{\"text\":\"a\",\"metadata\":{\"a\":1}}");
        is_mem_fail_at(0);
        if (st == INFERSCALE_OK) {
            jsonl_record_free(&rec);
            assert_true(failed_once);
            return;
        }
        assert_int_equal(st, INFERSCALE_E_NOMEM);
        failed_once = true;
    }
    fail_msg("never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_fact),
        cmocka_unit_test(reads_a_turn),
        cmocka_unit_test(refuses_and_names_the_line),
        cmocka_unit_test(deep_nesting_is_an_error),
        cmocka_unit_test(counts_lines),
        cmocka_unit_test(bounds_a_line),
        cmocka_unit_test(empty_files_end),
        cmocka_unit_test(survives_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
