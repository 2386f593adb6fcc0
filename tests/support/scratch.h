/* scratch.h - a folder of a test's own, and checks that print the sentence. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include "base/status.h"

/* The call must give this status; on failure the test fails with both names and the sentence. */
#define OK(expr) scratch_expect(INFERSCALE_OK, (expr), #expr, __FILE__, __LINE__)
#define FAILS(status, expr) scratch_expect(INFERSCALE_##status, (expr), #expr, __FILE__, __LINE__)
void scratch_expect(is_status want, is_status got, const char *what, const char *file, int line);

/* Makes an empty folder under $TMPDIR (default /tmp); free() the path. */
char *scratch_make(void);
void scratch_remove(char *path);                         /* with all that is in it; frees path */
/* Set-up and tear-down for cmocka: each test has a folder of its own, in scratch_home. */
extern char *scratch_home;
int scratch_set_up(void **state);
int scratch_tear_down(void **state);
/* "folder/name" in one of 8 rotating static buffers. */
const char *scratch_path(const char *folder, const char *name);

/* Random numbers for tests. Without more each test has a seed of its own and does the same every time. $INFERSCALE_SEED=N gives
 * another, "random" (and soaking) one that nobody knows before. It is printed. */
unsigned long long scratch_seed(const char *test);
unsigned long long scratch_next(unsigned long long *s);
unsigned scratch_below(unsigned long long *s, unsigned n);

#endif
