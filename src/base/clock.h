/* clock.h - time. Durations from the monotonic clock, dates in UTC. */
#ifndef IS_BASE_CLOCK_H
#define IS_BASE_CLOCK_H

#include <stdint.h>

double is_now_ms(void);          /* monotonic milliseconds */
int64_t is_now_epoch(void);      /* seconds since 1970, UTC */

/* Times are as in inferscale.h (base/time.h reads them). */
/* "8 May 2023" of a time (UTC) into out[32]; "" if it was not given. Used in prompts and lexical keys. */
void is_date_text(int64_t time, char out[32]);
/* ISO 8601 "2023-05-08T13:56:00Z" into out[32]; "" if it was not given. */
void is_date_iso(int64_t time, char out[32]);
/* Days from civil date and back (proleptic Gregorian), for callers that parse other forms. */
int64_t is_days_from_civil(int y, int m, int d);

#endif
