/* tempstore.h - a store of its own that is gone afterwards, for demo and doctor. */
#ifndef IS_CLI_TEMPSTORE_H
#define IS_CLI_TEMPSTORE_H

#include "cli/cli.h"

typedef struct cli_tempstore {
    char home[512];
    inferscale *is;
} cli_tempstore;

/* Makes a folder in $TMPDIR (or /tmp) and opens a store there; options->home is ignored. On failure nothing is left behind and
 * the sentence says what to do. */
inferscale_status cli_tempstore_open(const inferscale_options *options, cli_tempstore *out);
/* Closes the store and removes its folder. */
void cli_tempstore_close(cli_tempstore *t);

#endif
