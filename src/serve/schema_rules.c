/* schema_rules.c - the pieces of JSON as grammar rules: strings, dates, numbers within bounds. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "serve/schema.h"

/* No \u: a half of a surrogate pair would be no text, and every character can be written as it is. 15 digits fit a double
 * whole, and no exponent of two digits overflows it. Leap years: those divisible by 4, of the centuries only those by 400;
 * years 1000 to 2999. */
static const struct { unsigned rule, needs; const char *name, *text;
} commons[] = {
    { IS_WS, 0, "ws", "\" \"?" },
    { IS_CHAR, 0, "char", "[^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" [\"\\\\/bfnrt]" },
    { IS_STRING, IS_CHAR, "string", "\"\\\"\" char* \"\\\"\"" },
    { IS_INTEGER, 0, "integer", "\"-\"? (\"0\" | [1-9] [0-9]{0,14})" },
    { IS_NUMBER, IS_INTEGER, "number", "integer (\".\" [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?" },
    { IS_OBJECT, IS_STRING | IS_WS | IS_VALUE, "object",
      "\"{\" (string \":\" ws value (\",\" ws string \":\" ws value)*)? \"}\"" },
    { IS_ARRAY, IS_WS | IS_VALUE, "array", "\"[\" (value (\",\" ws value)*)? \"]\"" },
    { IS_VALUE, IS_OBJECT | IS_ARRAY | IS_STRING | IS_NUMBER, "value",
      "object | array | string | number | \"true\" | \"false\" | \"null\"" },
    { IS_DATE, 0, "date",
      "[12] [0-9] [0-9] [0-9] \"-\" ((\"01\" | \"03\" | \"05\" | \"07\" | \"08\" | \"10\" | \"12\") \"-\" (\"0\" [1-9] | [12] "
      "[0-9] | "
      "\"3\" [01]) | (\"04\" | \"06\" | \"09\" | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | \"02-\" (\"0\" [1-9] | "
      "\"1\" [0-9] "
      "| \"2\" [0-8])) | ([12] [0-9] (\"0\" [48] | [2468] [048] | [13579] [26]) | (\"12\" | \"16\" | \"20\" | \"24\" | \"28\") "
      "\"00\") "
      "\"-02-29\"" },
    { IS_TIME, 0, "time",
      "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,6})? (\"Z\" | [-+] ([01] [0-9] "
      "| \"2\" [0-3]) \":\" [0-5] [0-9])" },
    { IS_UUID, 0, "uuid", "[0-9a-f]{8} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{12}" },
};

enum { N_COMMONS = sizeof commons / sizeof *commons };

const char *is_grammar_common(is_grammar *g, enum is_common rule)
{
    g->common |= rule;
    for (size_t i = 0; i < N_COMMONS; i++)
        if (commons[i].rule == (unsigned)rule) return commons[i].name;
    return "value";
}

void is_grammar_object(is_grammar *g, is_rule *out)
{
    snprintf(out->name, sizeof out->name, "%s", is_grammar_common(g, IS_OBJECT));
}

char *is_grammar_end(is_grammar *g, const char *body)
{
    is_buf whole = { .max = IS_SCHEMA_BYTES };
    unsigned before;
    char *text;

    do {
        before = g->common;
        for (size_t i = 0; i < N_COMMONS; i++)
            if (g->common & commons[i].rule) g->common |= commons[i].needs;
    } while (g->common != before);
    is_buf_fmt(&whole, "root ::= %s\n", body);
    if (g->text.len) is_buf_add(&whole, g->text.data, g->text.len);
    for (size_t i = 0; i < N_COMMONS; i++)
        if (g->common & commons[i].rule) is_buf_fmt(&whole, "%s ::= %s\n", commons[i].name, commons[i].text);
    if (!is_buf_ok(&g->text)) whole.failed = true;
    text = is_buf_take(&whole);
    is_buf_free(&whole);
    is_grammar_free(g);
    return text;
}

void is_grammar_free(is_grammar *g)
{
    is_buf_free(&g->text);
    memset(g, 0, sizeof *g);
}

void is_grammar_literal(is_buf *b, const char *s, size_t n)
{
    is_buf_str(b, "\"");
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"' || s[i] == '\\') is_buf_str(b, "\\");
        is_buf_add(b, s + i, 1);
    }
    is_buf_str(b, "\"");
}

/* ---- Numbers within bounds ----------------------------------------------------------------------------------------------- */

enum { DIGITS = 15 };
static const int64_t MOST = 999999999999999;

static void any_digits(is_buf *b, size_t n)
{
    if (n == 1) is_buf_str(b, " [0-9]");
    if (n > 1) is_buf_fmt(b, " [0-9]{%zu}", n);
}

static void digit_between(is_buf *b, char low, char high)
{
    if (low == high) is_buf_fmt(b, " \"%c\"", low);
    else is_buf_fmt(b, " [%c-%c]", low, high);
}

/* Digit strings of s's length that are >= s (up), or <= s. */
static void one_sided(is_buf *b, const char *s, bool up)
{
    const size_t rest = strlen(s) - 1;

    if (rest == 0) {
        digit_between(b, up ? *s : '0', up ? '9' : *s);
        return;
    }
    is_buf_str(b, " (");
    if (*s != (up ? '9' : '0')) {
        digit_between(b, up ? *s + 1 : '0', up ? '9' : *s - 1);
        any_digits(b, rest);
        is_buf_str(b, " |");
    }
    is_buf_fmt(b, " \"%c\"", *s);
    one_sided(b, s + 1, up);
    is_buf_str(b, ")");
}

/* Digit strings from low to high, which are of one length. */
static void same_length(is_buf *b, const char *low, const char *high)
{
    const size_t rest = strlen(low) - 1;

    if (rest == 0) {
        digit_between(b, *low, *high);
    } else if (*low == *high) {
        is_buf_fmt(b, " \"%c\"", *low);
        same_length(b, low + 1, high + 1);
    } else {
        is_buf_fmt(b, " (\"%c\"", *low);
        one_sided(b, low + 1, true);
        if (*high - *low > 1) {
            is_buf_str(b, " |");
            digit_between(b, *low + 1, *high - 1);
            any_digits(b, rest);
        }
        is_buf_fmt(b, " | \"%c\"", *high);
        one_sided(b, high + 1, false);
        is_buf_str(b, ")");
    }
}

/* Whole numbers from low to high, 0 <= low <= high. */
static void whole_between(is_buf *b, int64_t low, int64_t high)
{
    char from[24], to[24];
    int64_t first = 1; /* the smallest of its length */
    const char *bar = "";

    is_buf_str(b, " (");
    for (int length = 1; length <= DIGITS; length++, first *= 10) {
        const int64_t least = low > first || length == 1 ? low : first, last = first * 10 - 1, most = high < last ? high : last;

        if (least > most) continue;
        snprintf(from, sizeof from, "%" PRId64, least);
        snprintf(to, sizeof to, "%" PRId64, most);
        is_buf_str(b, bar);
        same_length(b, from, to);
        bar = " |";
    }
    is_buf_str(b, ")");
}

/* Magnitudes from low to high: one of the two ends may be left out. Fractions end in a digit that is not 0 where that matters.
 * */
static void magnitude(is_buf *b, int64_t low, bool open_low, int64_t high, bool open_high, bool whole)
{
    const char *bar = "";

    is_buf_str(b, " (");
    if (whole) {
        whole_between(b, low, high);
    } else {
        if (open_low && low < high) {
            is_buf_fmt(b, " \"%" PRId64 ".\" [0-9]{0,14} [1-9]", low);
            bar = " |";
        }
        if (low + open_low < high) {
            is_buf_str(b, bar);
            whole_between(b, low + open_low, high - 1);
            is_buf_str(b, " (\".\" [0-9]{1,15})?");
            bar = " |";
        }
        if (!open_high && (high > low || !open_low)) is_buf_fmt(b, "%s \"%" PRId64 "\" (\".\" \"0\"{1,15})?", bar, high);
    }
    is_buf_str(b, ")");
}

bool is_range_empty(const is_range *r)
{
    if (!r->has_low || !r->has_high) return false;
    return r->low > r->high || (r->low == r->high && (r->open_low || r->open_high));
}

void is_grammar_range(is_grammar *g, is_buf *b, const is_range *r, bool whole)
{
    const int64_t low = r->has_low ? r->low : -MOST, high = r->has_high ? r->high : MOST;
    const bool positive = high > 0 || (high == 0 && !r->open_high), negative = low < 0;

    if (!r->has_low && !r->has_high) {
        is_buf_fmt(b, " %s", is_grammar_common(g, whole ? IS_INTEGER : IS_NUMBER));
        return;
    }
    is_buf_str(b, " (");
    if (positive) magnitude(b, low > 0 ? low : 0, low >= 0 && r->open_low, high, r->open_high, whole);
    if (positive && negative) is_buf_str(b, " |");
    if (negative) {
        is_buf_str(b, " \"-\"");
        /* Down to 0, which is not written with a sign when something else is there for it. */
        magnitude(b, high < 0 ? -high : whole ? 1 : 0, high < 0 ? r->open_high : true, -low, r->open_low, whole);
    }
    is_buf_str(b, ")");
}
