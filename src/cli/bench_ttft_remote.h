/* bench_ttft_remote.h - `bench ttft` through an engine that computes elsewhere. */
#ifndef IS_CLI_BENCH_TTFT_REMOTE_H
#define IS_CLI_BENCH_TTFT_REMOTE_H

#include "cli/cli.h"
#include "eval/ttft_remote.h"

/* Measures and prints; ends the bar. Returns the exit code. */
int bench_ttft_remote(const cli_args *a, const ttft_options *o, cli_progress *bar);

#endif
