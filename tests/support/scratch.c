#include "support/scratch.h"
#include "support/soak.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

void scratch_expect(is_status want, is_status got, const char *what, const char *file, int line)
{
    if (got == want) return;
    print_error("%s:%d: %s gave %s, not %s: %s\n", file, line, what, inferscale_status_name(got), inferscale_status_name(want),
                got ? is_error() : "");
    _fail(file, line);
}

char *scratch_make(void)
{
    const char *base = getenv("TMPDIR");
    char *path = NULL;

    if (asprintf(&path, "%s/inferscale-test-XXXXXX", base && *base ? base : "/tmp") < 0 || !mkdtemp(path)) abort();
    return path;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    if (type == FTW_DNR) chmod(path, 0700);
    return remove(path);
}

void scratch_remove(char *path)
{
    if (!path) return;
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    free(path);
}

const char *scratch_path(const char *folder, const char *name)
{
    static char buffers[8][512];
    static unsigned turn;
    char *to = buffers[turn++ % 8];

    snprintf(to, sizeof buffers[0], "%s/%s", folder, name);
    return to;
}

/* One number for each test, the same every time: FNV-1a of its name. */
static unsigned long long own_seed(const char *test)
{
    unsigned long long h = 0xcbf29ce484222325ull;

    for (; *test; test++) h = (h ^ (unsigned char)*test) * 0x100000001b3ull;
    return h;
}

unsigned long long scratch_seed(const char *test)
{
    const char *given = getenv("INFERSCALE_SEED");
    const bool random = given ? strcmp(given, "random") == 0 : soak_seconds() > 0;
    unsigned long long seed = own_seed(test);
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (random) seed = (unsigned long long)t.tv_sec * 1000003u ^ (unsigned long long)t.tv_nsec;
    else if (given && *given) seed = strtoull(given, NULL, 0);
    print_message("%s: INFERSCALE_SEED=%llu\n", test, seed);
    return seed;
}

unsigned long long scratch_next(unsigned long long *s)
{
    unsigned long long z = *s += 0x9E3779B97F4A7C15ull; /* splitmix64 */

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

unsigned scratch_below(unsigned long long *s, unsigned n)
{
    return (unsigned)(scratch_next(s) % n);
}

char *scratch_home;

int scratch_set_up(void **state)
{
    (void)state;
    scratch_home = scratch_make();
    return 0;
}

int scratch_tear_down(void **state)
{
    (void)state;
    scratch_remove(scratch_home);
    scratch_home = NULL;
    return 0;
}
