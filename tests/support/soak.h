/* soak.h - tests that run as long as they are let: INFERSCALE_SOAK=seconds; what they report then is one line of JSON that scripts/soak.py
 * collects. */
#ifndef TESTS_SOAK_H
#define TESTS_SOAK_H

#include <stddef.h>

double soak_seconds(void);   /* 0: an ordinary test run */
/* Prints {"test":NAME,...} where soaking; fmt: the other members. */
void soak_report(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The folder of the plug-ins: above the test's own. */
void soak_plugins(char *out, size_t cap);

#endif
