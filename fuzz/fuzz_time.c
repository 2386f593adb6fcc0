/* fuzz_time.c - any bytes as a time: read as a second of the years 0 to 9999 that is written and read again as itself, or refused
 * with one sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void check_read(const char *text, const is_when *when)
{
    char iso[32], forced[32];
    is_when again;

    check(is_time_given(when->t) && is_time_sound(when->t), "what is read is a time");
    check(!when->day || is_time_seconds(when->t) % 86400 == 0, "a day begins at midnight");
    check(!when->day || strlen(text) == 10, "a day is written as one");
    is_date_iso(when->t, iso);
    check(is_time_read(iso, "it", &again) == INFERSCALE_OK && again.t == when->t, "its ISO form is read as itself");
    snprintf(forced, sizeof forced, "@%lld", (long long)is_time_seconds(when->t));
    check(is_time_read(forced, "it", &again) == INFERSCALE_OK && again.t == when->t, "its seconds are read as itself");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[512];
    is_when when;

    if (size >= sizeof text) size = sizeof text - 1;
    memcpy(text, data, size);
    text[size] = 0;
    is_error_clear();
    if (is_time_read(text, "it", &when) == INFERSCALE_OK) check_read(text, &when);
    else check(when.t == 0 && !when.day && strncmp(is_error(), "it: ", 4) == 0, "a refusal has its sentence and leaves nothing");
    if (size >= sizeof(double)) {
        double d;

        memcpy(&d, data, sizeof d);
        if (is_time_read_real(d, "it", &when) == INFERSCALE_OK) check(is_time_given(when.t) && is_time_sound(when.t), "a real is a time");
    }
    return 0;
}
