/* The one reader of times (base/time.h): every form, every refusal with its sentence, against the C library's calendar. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/time.h"
#include "exchange/json.h"
#include "support/scratch.h"

enum { DAY = 86400 };

static const int64_t year_0 = INT64_C(-62167219200), year_1900 = INT64_C(-2208988800), year_2201 = INT64_C(7289654400),
                     year_10000 = INT64_C(253402300800);

/* The seconds that a text is read as. */
static int64_t seconds_of(const char *text)
{
    is_when when;

    if (is_time_read(text, "it", &when) != INFERSCALE_OK) fail_msg("\"%s\" is refused: %s", text, is_error());
    if (!is_time_given(when.t)) fail_msg("\"%s\" is read as no time at all", text);
    return is_time_seconds(when.t);
}

/* The sentence that refuses a text; it begins with the name. */
static const char *refusal(const char *text)
{
    is_when when = { 1, true };

    is_error_clear();
    if (is_time_read(text, "it", &when) == INFERSCALE_OK) fail_msg("\"%s\" is read as %lld", text, (long long)when.t);
    assert_true(when.t == 0 && !when.day);
    assert_true(strncmp(is_error(), "it: ", 4) == 0);
    return is_error();
}

static void must_say(const char *text, const char *piece)
{
    const char *said = refusal(text);

    if (!strstr(said, piece)) fail_msg("\"%s\": \"%s\" does not say \"%s\"", text, said, piece);
}

/* ---- Against the C library ------------------------------------------------------------------------------------------------- */

static void check_forms(int64_t t)
{
    static const char *const forms[] = { "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ", "@%s" };
    char iso[32], text[64], want[64], month[32];
    time_t tt = (time_t)t;
    struct tm tm;

    gmtime_r(&tt, &tm);
    is_date_iso(is_time_of(t), iso);
    snprintf(want, sizeof want, "%04d-%02d-%02dT%02d:%02d:%02dZ", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
             tm.tm_min, tm.tm_sec);
    assert_string_equal(iso, want);
    assert_true(seconds_of(iso) == t);
    for (size_t i = 0; i + 1 < sizeof forms / sizeof *forms; i++) {
        if (tm.tm_year < -900) break; /* strftime writes fewer digits */
        strftime(text, sizeof text, forms[i], &tm);
        if (seconds_of(text) != t) fail_msg("%s is read as %lld", text, (long long)seconds_of(text));
    }
    snprintf(text, sizeof text, "@%lld", (long long)t);
    assert_true(seconds_of(text) == t);
    assert_true(is_days_from_civil(tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday) * DAY == t - (t % DAY + DAY) % DAY);
    strftime(month, sizeof month, "%B", &tm); /* the test runs in the C locale */
    snprintf(want, sizeof want, "%d %s %d", tm.tm_mday, month, tm.tm_year + 1900);
    is_date_text(is_time_of(t), text);
    assert_string_equal(text, want);
}

static void test_all_forms_against_the_c_library(void **state)
{
    unsigned long long seed = scratch_seed("dates");

    for (int i = 0; i < 20000; i++) check_forms((int64_t)(scratch_next(&seed) % (uint64_t)(year_10000 - year_0)) + year_0);
    check_forms(0);
    check_forms(year_0);
    check_forms(year_10000 - 1);
}

/* Every day of three hundred years, as a date, in both directions. */
static void test_every_day(void **state)
{
    char text[32];

    for (int64_t day = year_1900 / DAY; day < year_2201 / DAY; day++) {
        is_when when;

        is_date_iso(is_time_of(day * DAY), text);
        text[10] = 0;
        assert_int_equal(is_time_read(text, "it", &when), INFERSCALE_OK);
        assert_true(when.day && is_time_seconds(when.t) == day * DAY);
    }
}

/* ---- Forms ----------------------------------------------------------------------------------------------------------------- */

static void test_forms_that_are_read(void **state)
{
    static const struct { const char *s; int64_t t; } good[] = {
        { "2023-05-08", 1683504000 }, { "2023-05-08T13:56", 1683554160 }, { "2023-05-08 13:56:07", 1683554167 },
        { "2023-05-08T13:56:00Z", 1683554160 }, { "2023-05-08T15:56:00+02:00", 1683554160 },
        { "2023-05-08T08:26:00-0530", 1683554160 }, { "2023-05-08T15:56+02", 1683554160 },
        { "2023-05-08t13:56:00z", 1683554160 }, { "2023-05-08T13:56:00.123456Z", 1683554160 },
        { "2023-05-08T13:56:00,9", 1683554160 }, { "20230508T135600Z", 1683554160 }, { "20230508T1356", 1683554160 },
        { "20230508T135600.5+0200", 1683546960 }, { "2024-02-29", 1709164800 }, { "1969-12-31T23:59:59Z", -1 },
        { "1970-01-01", 0 }, { "1970-01-01T01:00:00+01:00", 0 }, { "2016-12-31T23:59:60Z", 1483228800 },
        { "1683554160", 1683554160 }, { "1683554160.99", 1683554160 }, { "-5", -5 }, { "-5.5", -6 }, { "-5.0", -5 },
        { "0", 0 }, { "-0", 0 }, { "0.5", 0 }, { "1", 1 }, { "86400", 86400 }, { "-2208988800", -2208988800 },
        { "7289654399", INT64_C(7289654399) }, { "@20240501", 20240501 }, { "@2024", 2024 }, { "@0", 0 }, { "@-1.5", -2 },
        { "@253402300799", INT64_C(253402300799) }, { "20241301", 20241301 }, { "20230229", 20230229 }, { "202400", 202400 },
        { "2201", 2201 }, { "1899", 1899 }, { "20240501.5", 20240501 }, { "-20240501", -20240501 }, { "020240501", 20240501 },
    };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (seconds_of(good[i].s) != good[i].t) fail_msg("%s is read as %lld", good[i].s, (long long)seconds_of(good[i].s));
}

static void test_forms_that_are_refused(void **state)
{
    static const char *const bad[] = {
        "", " ", "x", "@", "@x", "@1x", "@@1", "@2024-05-01", "2023-02-29x", "2023-02-29", "2023-13-01", "2023-00-10", "2023-04-31",
        "2023-05-08T", "2023-05-08T24:00", "2023-05-08T13", "2023-05-08T13:60", "2023-05-08T13:56:61", "2023-05-08T13:56:00+",
        "2023-05-08Z1", "2023-05-08T13:56:00.", "2023-05-08T13:56:00+99:00", "2023-05-08T1356", "20230508 135600", "20230508T13",
        "20230508T13:56", "8 May 2023", "--5", "5-", "5.", ".5", "+5", "1e9", "0x10", "2023-5-8", "1900-02-29", " 2023-05-08",
        "2023-05-08 ", "1683554160 ", "2023-W18-1", "12345-01-01", "now", "0000-01-01T00:00:00+01:00", "9999-12-31T23:59:60Z",
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (strncmp(bad[i], "9999", 4) && strncmp(bad[i], "0000", 4)) refusal(bad[i]);
        else must_say(bad[i], "is no time");
    }
    must_say("8 May 2023", "2024-05-01T13:56:00Z");
    must_say("@1x", "@1714571760");
}

/* A number that reads as a calendar date names both readings, and how to say each; both of these are then read as said. */
static void test_numbers_that_read_as_dates(void **state)
{
    must_say("20240501", "it: 20240501 may mean 2024-05-01, or 20240501 seconds since 1970, which is 1970-08-23T06:21:41Z");
    must_say("20240501", "write 2024-05-01 for the first, @20240501 for the second");
    must_say("202405", "write 2024-05-01 for the first, @202405 for the second");
    must_say("2024", "write 2024-01-01 for the first, @2024 for the second");
    must_say("99991231", "9999-12-31");
    must_say("00010101", "0001-01-01");
    for (int64_t day = year_1900 / DAY; day < year_2201 / DAY; day += 7) {
        char iso[32], number[9], forced[10];
        is_when when;

        is_date_iso(is_time_of(day * DAY), iso);
        snprintf(number, sizeof number, "%.4s%.2s%.2s", iso, iso + 5, iso + 8);
        iso[10] = 0;
        must_say(number, iso);
        assert_int_equal(is_time_read_number(strtoll(number, NULL, 10), "it", &when), INFERSCALE_E_INVALID);
        assert_int_equal(is_time_read_real(strtod(number, NULL), "it", &when), INFERSCALE_E_INVALID);
        snprintf(forced, sizeof forced, "@%s", number);
        assert_true(seconds_of(forced) == strtoll(number, NULL, 10));
    }
}

/* Milliseconds of any time from 1971 on are refused, as text and as a number. */
static void test_milliseconds(void **state)
{
    static const char *const far[] = { "1714571760000", "7289654400", "-2208988801", "12345678901234567890", "-99999999999999999999",
                                       "1714571760000000", "20240501135600", "7289654400.5" };

    for (size_t i = 0; i < sizeof far / sizeof *far; i++) must_say(far[i], "if it counts milliseconds, divide by 1000");
    must_say("@253402300800", "divide by 1000");
    must_say("@-62167219201", "divide by 1000");
    must_say("@99999999999999999999", "divide by 1000");
    for (int64_t t = 365 * DAY; t < year_2201; t += 50 * DAY) {
        is_when when;

        assert_int_equal(is_time_read_number(t * 1000, "it", &when), INFERSCALE_E_INVALID);
        assert_non_null(strstr(is_error(), "divide by 1000"));
    }
}

/* ---- Numbers and JSON ------------------------------------------------------------------------------------------------------ */

static void test_numbers_are_read_as_their_text(void **state)
{
    unsigned long long seed = scratch_seed("numbers");

    for (int i = 0; i < 20000; i++) {
        const int bits = 1 + (int)(scratch_next(&seed) % 62);
        const int64_t n = (int64_t)(scratch_next(&seed) >> (64 - bits)) * (i % 2 ? 1 : -1);
        is_when number, text, real;
        char s[32];
        is_status st = is_time_read_number(n, "it", &number);

        snprintf(s, sizeof s, "%lld", (long long)n);
        assert_int_equal(is_time_read(s, "it", &text), st);
        assert_int_equal(is_time_read_real((double)n, "it", &real), st);
        assert_true(number.t == text.t && real.t == text.t);
        if (st == INFERSCALE_OK) assert_true(is_time_seconds(number.t) == n);
    }
}

static void test_reals(void **state)
{
    static const double bad[] = { NAN, INFINITY, -INFINITY, 1e300, -1e300, 1e18, 7289654400.0, -2208988800.5 };
    is_when when;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(is_time_read_real(bad[i], "it", &when), INFERSCALE_E_INVALID);
    assert_int_equal(is_time_read_real(1714571760.75, "it", &when), INFERSCALE_OK);
    assert_true(when.t == 1714571760);
    assert_int_equal(is_time_read_real(-0.5, "it", &when), INFERSCALE_OK);
    assert_true(when.t == -1);
    assert_int_equal(is_time_read_real(0.0, "it", &when), INFERSCALE_OK);
    assert_true(when.t == INFERSCALE_TIME_ZERO);
}

static is_status read_json(const char *text, is_when *out)
{
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    is_status st = is_json_when(v, "event_time", out);

    json_decref(v);
    return st;
}

static void test_json(void **state)
{
    static const char *const bad[] = { "true", "false", "null", "[]", "{}", "\"\"", "20240501", "\"20240501\"", "1714571760000" };
    is_when when;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read_json(bad[i], &when), INFERSCALE_E_INVALID);
        assert_true(strncmp(is_error(), "event_time", 10) == 0);
    }
    assert_int_equal(read_json("0", &when), INFERSCALE_OK);
    assert_true(when.t == INFERSCALE_TIME_ZERO);
    assert_int_equal(read_json("\"@0\"", &when), INFERSCALE_OK);
    assert_true(when.t == INFERSCALE_TIME_ZERO);
    assert_int_equal(read_json("1714571760", &when), INFERSCALE_OK);
    assert_true(when.t == 1714571760);
}

/* ---- No time and the first second ------------------------------------------------------------------------------------------ */

static void test_no_time_and_the_first_second(void **state)
{
    char out[32] = "x";

    assert_false(is_time_given(0));
    assert_false(is_time_given(INFERSCALE_NO_TIME));
    assert_true(is_time_given(INFERSCALE_TIME_ZERO) && is_time_given(-1));
    assert_true(is_time_of(0) == INFERSCALE_TIME_ZERO && is_time_seconds(INFERSCALE_TIME_ZERO) == 0);
    assert_true(is_time_sound(0) && is_time_sound(INFERSCALE_NO_TIME) && is_time_sound(INFERSCALE_TIME_ZERO));
    assert_true(is_time_sound(year_0) && is_time_sound(year_10000 - 1));
    assert_false(is_time_sound(year_0 - 1) || is_time_sound(year_10000) || is_time_sound(INT64_MAX) || is_time_sound(INT64_MIN + 2));
    is_date_text(0, out);
    assert_string_equal(out, "");
    is_date_iso(INFERSCALE_NO_TIME, out);
    assert_string_equal(out, "");
    is_date_text(INFERSCALE_TIME_ZERO, out);
    assert_string_equal(out, "1 January 1970");
    is_date_iso(INFERSCALE_TIME_ZERO, out);
    assert_string_equal(out, "1970-01-01T00:00:00Z");
    is_date_text(INT64_MAX, out); /* bounded, whatever comes */
    is_date_iso(INT64_MIN + 2, out);
}

/* A range that ends with a day ends with its last second; any other time ends itself. */
static void test_the_last_second_of_what_was_read(void **state)
{
    static const struct { const char *text; int64_t last; } tries[] = {
        { "2024-05-01", 1714607999 }, { "2024-05-01T00:00:00Z", 1714521600 }, { "@1714521600", 1714521600 },
        { "1970-01-01", 86399 }, { "1969-12-31", -1 }, { "@0", INFERSCALE_TIME_ZERO },
        { "9999-12-31", INT64_C(253402300799) },
    };

    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        is_when when;

        OK(is_time_read(tries[i].text, "t", &when));
        assert_true(is_when_last(&when) == tries[i].last);
    }
    assert_true(is_when_last(&(is_when){ 0 }) == 0); /* not given stays so */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_forms_against_the_c_library),
        cmocka_unit_test(test_every_day),
        cmocka_unit_test(test_forms_that_are_read),
        cmocka_unit_test(test_forms_that_are_refused),
        cmocka_unit_test(test_numbers_that_read_as_dates),
        cmocka_unit_test(test_milliseconds),
        cmocka_unit_test(test_numbers_are_read_as_their_text),
        cmocka_unit_test(test_reals),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_no_time_and_the_first_second),
        cmocka_unit_test(test_the_last_second_of_what_was_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
