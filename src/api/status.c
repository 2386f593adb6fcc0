/* status.c - the public face of statuses, sentences and the version. */
#include "base/status.h"

static const struct { const char *name, *meaning; } table[] = {
#define INFERSCALE_X(n, value, m) [value] = { #n, m },
    INFERSCALE_STATUS_MAP(INFERSCALE_X)
#undef INFERSCALE_X
};

const char *inferscale_status_name(inferscale_status status)
{
    return (size_t)status < sizeof table / sizeof *table ? table[status].name : "unknown";
}

const char *inferscale_status_meaning(inferscale_status status)
{
    return (size_t)status < sizeof table / sizeof *table ? table[status].meaning : "unknown";
}

const char *inferscale_error(void)
{
    return is_error();
}

const char *inferscale_version(void)
{
    return INFERSCALE_VERSION;
}
