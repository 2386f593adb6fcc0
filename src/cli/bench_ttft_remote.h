/* bench_ttft_remote.h - `bench ttft` through an engine that computes elsewhere. */
#ifndef IS_CLI_BENCH_TTFT_REMOTE_H
#define IS_CLI_BENCH_TTFT_REMOTE_H

#include "cli/cli.h"
#include "eval/ttft_remote.h"

/* Prints what ttft_remote_run measured. Returns the exit code. */
int bench_ttft_remote_show(const cli_args *a, const inferscale_model_info *info, const ttft_options *o, const ttft_remote_row *rows, size_t n);

/* bench_ttft.c: what the reports of both say first. */
json_t *bench_ttft_report(const inferscale_model_info *info, const ttft_options *o);

#endif
