/* exposition.h - a judge of Prometheus' text format: what promtool would refuse, and what would be wrong numbers though it parses. */
#ifndef TESTS_SUPPORT_EXPOSITION_H
#define TESTS_SUPPORT_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>

/* True if the text is right: HELP and TYPE once before a family's lines, which stand together; names, labels and escapes by the
 * format's grammar; no series twice; counters end in _total and are not negative; histograms have rising bounds, cumulative counts, +Inf
 * equal to _count, and _sum. Else why[256] says what is wrong with which line. */
bool exposition_ok(const char *text, size_t len, char why[256]);

/* The number of the line `series` (with labels, as written), or NaN if there is no such line. */
double exposition_value(const char *text, const char *series);

/* Runs `promtool check metrics`. *rc its exit code, report[n] what it says. False: there is no promtool. */
bool exposition_promtool(const char *text, size_t len, int *rc, char *report, size_t n);

#endif
