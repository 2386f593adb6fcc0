/* encode_status.h - `encode --status` and `encode --wait`, and the state of an encoder as JSON. */
#ifndef IS_CLI_ENCODE_STATUS_H
#define IS_CLI_ENCODE_STATUS_H

#include "cli/cli.h"

/* What waits, of the scope that was given, else of the whole store; encodes nothing. Both return the exit code. */
int cli_encode_status(const cli_args *a);
/* Waits until nothing does, encoding here unless another process on the store is at it. */
int cli_encode_wait(const cli_args *a);

json_t *cli_encoder_json(const inferscale_encoder_state *s);

#endif
