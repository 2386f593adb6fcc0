/* entry.h - what every plug-in does when it is loaded: it answers for one ABI, and its error sentences, log lines and refused allocations
 * are the host's, and its sentences use the words of the host's reader. */
#ifndef IS_ENGINE_ENTRY_H
#define IS_ENGINE_ENTRY_H

#include "engine/engine.h"

/* Each plug-in defines it; it returns its table once is_plugin_enter was true, else NULL. */
__attribute__((visibility("default"))) const is_plugin *inferscale_plugin(const is_host *host);

/* False: another ABI, and nothing was done. `host` outlives the plug-in. */
bool is_plugin_enter(const is_host *host);

#endif
