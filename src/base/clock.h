/* clock.h - time. Durations from the monotonic clock, dates in UTC. */
#ifndef IS_BASE_CLOCK_H
#define IS_BASE_CLOCK_H

#include <stdint.h>

double is_now_ms(void);          /* monotonic milliseconds */
int64_t is_now_epoch(void);      /* seconds since 1970, UTC */

/* "8 May 2023" of an epoch time (UTC) into out[32]; "" for 0. Used in prompts and lexical keys. */
void is_date_text(int64_t epoch, char out[32]);
/* ISO 8601 "2023-05-08T13:56:00Z" into out[32]; "" for 0. */
void is_date_iso(int64_t epoch, char out[32]);
/* Parses ISO 8601 dates and date-times (Z or +hh:mm; none = UTC) and plain epoch seconds. Returns 0 if it parses, else -1. */
int is_date_parse(const char *s, int64_t *epoch);
/* Days from civil date and back (proleptic Gregorian), for callers that parse other forms. */
int64_t is_days_from_civil(int y, int m, int d);

#endif
