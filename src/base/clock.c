/* clock.c - time and dates, independent of locale and time zone. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

#include "base/time.h"

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
    if (!is_time_given(epoch)) return;
    c = civil_of(is_time_seconds(epoch));
    snprintf(out, 32, "%d %s %lld", c.d, months[c.m - 1], (long long)c.y);
}

void is_date_iso(int64_t epoch, char out[32])
{
    civil c;

    out[0] = 0;
    if (!is_time_given(epoch)) return;
    c = civil_of(is_time_seconds(epoch));
    snprintf(out, 32, "%04lld-%02d-%02dT%02d:%02d:%02dZ", (long long)c.y, c.m, c.d, c.h, c.min, c.s);
}
