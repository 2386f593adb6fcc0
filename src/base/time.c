/* time.c - see time.h. */
#include "base/time.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

enum { DAY = 86400, DIGITS_MAX = 18 };

/* The first seconds of the years 0, 1900, 2201 and 10000. */
static const int64_t year_0 = INT64_C(-62167219200), year_1900 = INT64_C(-2208988800), year_2201 = INT64_C(7289654400),
                     year_10000 = INT64_C(253402300800);

bool is_time_given(int64_t t)
{
    return t != 0 && t != INFERSCALE_NO_TIME;
}

int64_t is_time_seconds(int64_t t)
{
    return t == INFERSCALE_TIME_ZERO ? 0 : t;
}

int64_t is_time_of(int64_t seconds)
{
    return seconds == 0 ? INFERSCALE_TIME_ZERO : seconds;
}

static bool has_date(int64_t seconds)
{
    return seconds >= year_0 && seconds < year_10000;
}

bool is_time_sound(int64_t t)
{
    return !is_time_given(t) || has_date(is_time_seconds(t));
}

/* ---- Digits -------------------------------------------------------------------------------------------------------------- */

static bool digits(const char **s, int n, int *out)
{
    *out = 0;
    for (int i = 0; i < n; i++, (*s)++) {
        if (**s < '0' || **s > '9') return false;
        *out = *out * 10 + (**s - '0');
    }
    return true;
}

static bool expect(const char **s, char c)
{
    if (**s != c) return false;
    (*s)++;
    return true;
}

static size_t count_digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* ".5" or ",5", skipped. False: a point without digits. */
static bool skip_fraction(const char **s)
{
    size_t n;

    if (**s != '.' && **s != ',') return true;
    n = count_digits(*s + 1);
    *s += 1 + n;
    return n > 0;
}

static bool in_calendar(int y, int m, int d)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    const bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;

    return m >= 1 && m <= 12 && d >= 1 && d <= days[m - 1] + (m == 2 && leap);
}

/* ---- ISO 8601 ------------------------------------------------------------------------------------------------------------ */

/* hh:mm[:ss[.fraction]], or hhmm[ss[.fraction]]. */
static bool read_clock(const char **s, bool basic, int64_t *seconds)
{
    int h, m, sec = 0;

    if (!digits(s, 2, &h) || (!basic && !expect(s, ':')) || !digits(s, 2, &m)) return false;
    if (basic ? count_digits(*s) > 0 : **s == ':') {
        if (!basic) (*s)++;
        if (!digits(s, 2, &sec) || !skip_fraction(s)) return false;
    }
    if (h > 23 || m > 59 || sec > 60) return false;
    *seconds = h * 3600 + m * 60 + sec;
    return true;
}

/* Z, +hh:mm, +hhmm, +hh or nothing; *offset in seconds east of UTC. */
static bool read_zone(const char **s, int64_t *offset)
{
    int sign, h, m = 0;

    *offset = 0;
    if (**s == 'Z' || **s == 'z') return (*s)++, true;
    if (**s != '+' && **s != '-') return true;
    sign = *(*s)++ == '-' ? -1 : 1;
    if (!digits(s, 2, &h)) return false;
    if (**s == ':') (*s)++;
    if (**s && !digits(s, 2, &m)) return false;
    if (h > 18 || m > 59) return false;
    *offset = sign * (h * 3600 + m * 60);
    return true;
}

static bool read_iso(const char *s, int64_t *seconds, bool *day)
{
    const bool basic = count_digits(s) == 8;
    int y, m, d;
    int64_t clock = 0, offset = 0;

    if (!digits(&s, 4, &y) || (!basic && !expect(&s, '-')) || !digits(&s, 2, &m) || (!basic && !expect(&s, '-')) ||
        !digits(&s, 2, &d) || !in_calendar(y, m, d))
        return false;
    *day = !*s;
    if (*day && basic) return false; /* eight digits alone are a number */
    if (!*day) {
        if (*s != 'T' && *s != 't' && (basic || *s != ' ')) return false;
        s++;
        if (!read_clock(&s, basic, &clock) || !read_zone(&s, &offset) || *s) return false;
    }
    *seconds = is_days_from_civil(y, m, d) * DAY + clock - offset;
    return has_date(*seconds);
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------------- */

typedef struct number {
    int64_t seconds;   /* rounded down */
    bool huge;         /* more digits than any second of the years 0 to 9999 has */
} number;

/* [-]digits[.digits] and nothing else. */
static bool read_number(const char *s, number *out)
{
    const bool minus = *s == '-';
    bool fraction = false;
    size_t n;

    *out = (number){ 0 };
    s += minus;
    n = count_digits(s);
    if (n == 0) return false;
    out->huge = n > DIGITS_MAX;
    for (size_t i = 0; i < n && !out->huge; i++) out->seconds = out->seconds * 10 + (s[i] - '0');
    s += n;
    if (*s == '.') {
        n = count_digits(++s);
        if (n == 0) return false;
        fraction = strspn(s, "0") < n;
        s += n;
    }
    if (minus) out->seconds = -out->seconds - fraction;
    return !*s;
}

/* Writes the date that the digits of a number read as, "" if they read as none: YYYYMMDD, YYYYMM or YYYY, the latter two in the
 * years that numbers may mean. */
static void calendar_reading(const char *s, char out[32])
{
    const size_t n = count_digits(s);
    int y, m = 1, d = 1;
    const char *at = s;

    out[0] = 0;
    if (s[n] || (n != 8 && n != 6 && n != 4)) return;
    (void)digits(&at, 4, &y);
    if (n >= 6) (void)digits(&at, 2, &m);
    if (n == 8) (void)digits(&at, 2, &d);
    if (!in_calendar(y, m, d) || (n < 8 && (y < 1900 || y > 2200))) return;
    if (n == 8) snprintf(out, 32, "%04d-%02d-%02d", y, m, d);
    else if (n == 6) snprintf(out, 32, "%04d-%02d", y, m);
    else snprintf(out, 32, "%04d", y);
}

static is_status refuse_reading(const char *what, const char *s, const char *date, int64_t seconds)
{
    const char *rest = strlen(date) == 10 ? "" : strlen(date) == 7 ? "-01" : "-01-01";
    char iso[32];

    is_date_iso(is_time_of(seconds), iso);
    return is_fail(INFERSCALE_E_INVALID, "%.60s: %s may mean %s, or %s seconds since 1970, which is %s; write %s%s for the first, @%s "
                   "for the second", what, s, date, s, iso, date, rest, s);
}

static is_status refuse_range(const char *what, const char *shown)
{
    return is_fail(INFERSCALE_E_INVALID, "%.60s: %.24s is no number of seconds since 1970 within the years 1900 to 2200; if it "
                   "counts milliseconds, divide by 1000; a date is written as 2024-05-01 or 2024-05-01T13:56:00Z", what, shown);
}

/* shown: the number as it was written. */
static is_status take_number(const number *n, const char *what, const char *shown, is_when *out)
{
    char date[32];

    calendar_reading(shown, date);
    if (date[0]) return refuse_reading(what, shown, date, n->seconds);
    if (n->huge || n->seconds < year_1900 || n->seconds >= year_2201) return refuse_range(what, shown);
    *out = (is_when){ .t = is_time_of(n->seconds) };
    return INFERSCALE_OK;
}

static is_status take_forced(const char *text, const char *what, is_when *out)
{
    number n;

    if (!read_number(text + 1, &n))
        return is_fail(INFERSCALE_E_INVALID, "%.60s: \"%.40s\" is no time; @ is followed by seconds since 1970, as in "
                       "@1714571760", what, text);
    if (n.huge || !has_date(n.seconds))
        return is_fail(INFERSCALE_E_INVALID, "%.60s: %.40s lies outside the years 0 to 9999; if it counts milliseconds, "
                       "divide by 1000", what, text);
    *out = (is_when){ .t = is_time_of(n.seconds) };
    return INFERSCALE_OK;
}

int64_t is_when_last(const is_when *w)
{
    return w->day ? is_time_of(is_time_seconds(w->t) + DAY - 1) : w->t;
}

/* ---- Public -------------------------------------------------------------------------------------------------------------- */

is_status is_time_read(const char *text, const char *what, is_when *out)
{
    int64_t seconds = 0;
    bool day = false;
    number n;

    *out = (is_when){ 0 };
    if (*text == '@') return take_forced(text, what, out);
    if (read_number(text, &n)) return take_number(&n, what, text, out);
    if (!read_iso(text, &seconds, &day))
        return is_fail(INFERSCALE_E_INVALID, "%.60s: \"%.40s\" is no time; write it as 2024-05-01, 2024-05-01T13:56:00Z, or in "
                       "seconds since 1970", what, text);
    *out = (is_when){ .t = is_time_of(seconds), .day = day };
    return INFERSCALE_OK;
}

is_status is_time_read_number(int64_t seconds, const char *what, is_when *out)
{
    const number n = { .seconds = seconds };
    char shown[24];

    *out = (is_when){ 0 };
    snprintf(shown, sizeof shown, "%lld", (long long)seconds);
    return take_number(&n, what, shown, out);
}

is_status is_time_read_real(double seconds, const char *what, is_when *out)
{
    char shown[32];

    *out = (is_when){ 0 };
    snprintf(shown, sizeof shown, "%.15g", seconds);
    if (!(seconds >= (double)year_1900 && seconds < (double)year_2201)) return refuse_range(what, shown);
    return is_time_read_number((int64_t)floor(seconds), what, out);
}
