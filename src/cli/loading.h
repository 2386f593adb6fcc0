/* loading.h - loading of models, for whoever waits for it. */
#ifndef IS_CLI_LOADING_H
#define IS_CLI_LOADING_H

#include "cli/cli.h"

/* As inferscale_options.on_loading. A terminal shows "Loading the model NAME ..." at once, and no more of it when it is loaded. ctx:
 * where the handle is (or NULL), so that Ctrl-C can end the loading. */
void cli_on_loading(void *ctx, int loading, const char *what, const char *name);

/* How long this process has loaded models for so far. */
double cli_loading_ms(void);

#endif
