/* serve_child.h - a server of our own in a process of its own, for benchmarks. */
#ifndef IS_CLI_SERVE_CHILD_H
#define IS_CLI_SERVE_CHILD_H

#include <sys/types.h>

#include "cli/cli.h"

typedef struct serve_child {
    pid_t pid;
    char url[64], home[512], log[560]; /* log: what it says on stderr, in home */
} serve_child;

/* Starts `inferscale serve` of this very program on a free port of 127.0.0.1 and an empty store under $TMPDIR, with options[n] besides,
 * and waits until it is ready. On failure nothing is left and the sentence says what it said last. */
inferscale_status serve_child_start(const char *const *options, size_t n, serve_child *out);
/* Ends it and removes the store; how it ended: 0 = in order. */
int serve_child_end(serve_child *c);

#endif
