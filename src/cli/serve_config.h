/* serve_config.h - the server's settings from a command line: flags, environment and file together. */
#ifndef IS_CLI_SERVE_CONFIG_H
#define IS_CLI_SERVE_CONFIG_H

#include "cli/cli.h"
#include "serve/config.h"

/* --config and every setting of the table; ends with a NULL name. */
extern const cli_option serve_options[];

/* The file that --config or INFERSCALE_CONFIG names; NULL = none. */
const char *serve_config_path(const cli_args *a);
/* Reads all three into an initialised c; every error goes to on_error. The first one is returned. */
is_status serve_config_read(const cli_args *a, const char *path, is_config *c, is_config_error on_error, void *ctx);

#endif
