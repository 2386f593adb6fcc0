/* time.h - the one reader of times that people and programs write: on the command line, over HTTP and MCP, in imported files.
 *
 * What is read:
 *   2024-05-01                    a day, in UTC
 *   2024-05-01T13:56:00.5+02:00   ISO 8601, also basic (20240501T135600Z); T or a blank, seconds and zone may be missing (UTC);
 *                                 fractions are cut off; second 60 is the second after 59
 *   1714571760                    seconds since 1970, within the years 1900 to 2200
 *   @1714571760                   seconds since 1970, whatever they look like
 * The years of dates and of @N are 0 to 9999. A bare number that reads as a calendar date (20240501, 202405, 2024) is refused,
 * and so is one beyond the year 2200: milliseconds.
 *
 * Times inside the program are as in inferscale.h: 0 = not given, INFERSCALE_TIME_ZERO = the first second of 1970. Only these
 * functions turn one form into the other. */
#ifndef IS_BASE_TIME_H
#define IS_BASE_TIME_H

#include <stdbool.h>

#include "base/status.h"

/* A time that was read. day: a date without a time; t is its first second. */
typedef struct is_when {
    int64_t t;
    bool day;
} is_when;

/* The last second that it stands for: what a range ends with that ends with it. */
int64_t is_when_last(const is_when *w);

/* what: names the value in the sentence of a refusal ("--time", "timestamp"). E_INVALID; *out is zero then. */
is_status is_time_read(const char *text, const char *what, is_when *out);
is_status is_time_read_number(int64_t seconds, const char *what, is_when *out);
is_status is_time_read_real(double seconds, const char *what, is_when *out);

/* Was a time given? Not 0, not INFERSCALE_NO_TIME. */
bool is_time_given(int64_t t);
/* Seconds since 1970 of a time that was given, and back. */
int64_t is_time_seconds(int64_t t);
int64_t is_time_of(int64_t seconds);
/* Is it a time of the years 0 to 9999, or none? Other times cannot be written as ISO 8601. */
bool is_time_sound(int64_t t);

#endif
