/* clock.c - time and dates, independent of locale and time zone. */
#include "base/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

double is_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int64_t is_now_epoch(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec;
}

/* Dates count in years that begin on 1 March, so that the leap day is the last of its year; an era is 400 such years. */
enum { DAYS_IN_ERA = 146097, DAYS_TO_1970 = 719468 };

int64_t is_days_from_civil(int y, int m, int d)
{
    int64_t year = (int64_t)y - (m <= 2);
    int64_t era = (year >= 0 ? year : year - 399) / 400;
    int64_t in_era = year - era * 400;
    int64_t day_of_year = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    int64_t day_of_era = in_era * 365 + in_era / 4 - in_era / 100 + day_of_year;

    return era * DAYS_IN_ERA + day_of_era - DAYS_TO_1970;
}

typedef struct civil { int64_t y; int m, d, h, min, s; } civil;

static civil civil_of(int64_t epoch)
{
    int64_t days = epoch / 86400, rest = epoch % 86400, era, doe, yoe, doy;
    civil c;
    int mp;

    if (rest < 0) days--, rest += 86400;
    days += DAYS_TO_1970;
    era = (days >= 0 ? days : days - (DAYS_IN_ERA - 1)) / DAYS_IN_ERA;
    doe = days - era * DAYS_IN_ERA;
    yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    mp = (int)((5 * doy + 2) / 153);
    c.d = (int)(doy - (153 * mp + 2) / 5 + 1);
    c.m = mp < 10 ? mp + 3 : mp - 9;
    c.y = yoe + era * 400 + (c.m <= 2);
    c.h = (int)(rest / 3600);
    c.min = (int)(rest / 60 % 60);
    c.s = (int)(rest % 60);
    return c;
}

void is_date_text(int64_t epoch, char out[32])
{
    static const char *const months[] = { "January", "February", "March", "April", "May", "June", "July", "August",
                                          "September", "October", "November", "December" };
    civil c;

    out[0] = 0;
    if (epoch == 0) return;
    c = civil_of(epoch);
    snprintf(out, 32, "%d %s %lld", c.d, months[c.m - 1], (long long)c.y);
}

void is_date_iso(int64_t epoch, char out[32])
{
    civil c;

    out[0] = 0;
    if (epoch == 0) return;
    c = civil_of(epoch);
    snprintf(out, 32, "%04lld-%02d-%02dT%02d:%02d:%02dZ", (long long)c.y, c.m, c.d, c.h, c.min, c.s);
}

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

static int days_in_month(int y, int m)
{
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };

    return m == 2 && ((y % 4 == 0 && y % 100 != 0) || y % 400 == 0) ? 29 : days[m - 1];
}

/* hh:mm[:ss[.fraction]] */
static bool parse_time(const char **s, int64_t *seconds)
{
    int h, m, sec = 0;

    if (!digits(s, 2, &h) || !expect(s, ':') || !digits(s, 2, &m)) return false;
    if (**s == ':') {
        (*s)++;
        if (!digits(s, 2, &sec)) return false;
        if (**s == '.' || **s == ',') {
            const char *first = ++*s;
            while (**s >= '0' && **s <= '9') (*s)++;
            if (*s == first) return false;
        }
    }
    if (h > 23 || m > 59 || sec > 60) return false; /* 60: a leap second counts as the next second */
    *seconds = h * 3600 + m * 60 + sec;
    return true;
}

/* Z, +hh:mm, +hhmm, +hh or nothing; *offset in seconds east of UTC. */
static bool parse_zone(const char **s, int64_t *offset)
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

/* Plain seconds: at most 12 digits, which is beyond the year 9999 and far from overflow. */
static bool parse_seconds(const char *s, int64_t *epoch)
{
    bool minus = *s == '-';
    int64_t v = 0;
    int n = 0;

    if (minus) s++;
    for (; *s >= '0' && *s <= '9' && n < 13; s++, n++) v = v * 10 + (*s - '0');
    if (*s || n == 0 || n > 12) return false;
    *epoch = minus ? -v : v;
    return true;
}

int is_date_parse(const char *s, int64_t *epoch)
{
    int y, m, d;
    int64_t seconds = 0, offset = 0;
    const char *at = s;

    *epoch = 0;
    if (parse_seconds(s, epoch)) return 0;
    *epoch = 0;
    if (!digits(&at, 4, &y) || !expect(&at, '-') || !digits(&at, 2, &m) || !expect(&at, '-') || !digits(&at, 2, &d)) return -1;
    if (m < 1 || m > 12 || d < 1 || d > days_in_month(y, m)) return -1;
    if (*at == 'T' || *at == 't' || *at == ' ') {
        at++;
        if (!parse_time(&at, &seconds) || !parse_zone(&at, &offset)) return -1;
    }
    if (*at) return -1;
    *epoch = is_days_from_civil(y, m, d) * 86400 + seconds - offset;
    return 0;
}
