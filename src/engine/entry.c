#include "engine/entry.h"

#include "base/log.h"
#include "base/mem.h"

static const is_host *our_host;

static void log_to_host(void *ctx, int level, const char *message)
{
    (void)ctx;
    if (our_host->log) our_host->log(level, message);
}

bool is_plugin_enter(const is_host *host)
{
    if (!host || host->abi != IS_ENGINE_ABI) return false;
    our_host = host;
    is_error_set_sink(host->error);
    is_mem_ask(host->refuse);
    is_reader_ask(host->reader);
    is_log_set(log_to_host, NULL);
    return true;
}
