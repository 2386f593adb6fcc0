#include "support/soak.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

double soak_seconds(void)
{
    const char *s = getenv("INFERSCALE_SOAK");

    return s ? strtod(s, NULL) : 0;
}

void soak_report(const char *name, const char *fmt, ...)
{
    va_list ap;

    if (!soak_seconds()) return;
    va_start(ap, fmt);
    printf("soak: {\"test\":\"%s\",", name);
    vprintf(fmt, ap);
    printf("}\n");
    fflush(stdout);
    va_end(ap);
}

void soak_plugins(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);

    if (n < 0) abort();
    out[n] = 0;
    for (int up = 0; up < 2; up++) *strrchr(out, '/') = 0;
}
