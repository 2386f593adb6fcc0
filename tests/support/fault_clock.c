#include "support/fault_clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct fault_clock {
    atomic_uint count[FAULT_OPS], seen, hits;
    atomic_uint mask, nth;
    atomic_int errnum;
    atomic_bool sticky, stopped;
    atomic_uint watched;
    void (*at)(void *ctx);
    void *ctx;
};

fault_clock *fault_clock_new(void)
{
    fault_clock *c = calloc(1, sizeof *c);

    if (!c) abort();
    return c;
}

void fault_clock_free(fault_clock *c)
{
    free(c);
}

void fault_clock_refuse(fault_clock *c, unsigned mask, int errnum, unsigned nth, bool sticky)
{
    c->nth = 0;
    for (int op = 0; op < FAULT_OPS; op++) c->count[op] = 0;
    c->stopped = false;
    c->seen = c->hits = 0;
    c->mask = mask;
    c->errnum = errnum;
    c->sticky = sticky;
    c->nth = nth;
}

void fault_clock_off(fault_clock *c)
{
    c->nth = 0;
    c->stopped = false;
}

unsigned fault_clock_hits(const fault_clock *c)
{
    return c->hits;
}

unsigned fault_clock_count(const fault_clock *c, unsigned mask)
{
    unsigned n = 0;

    for (unsigned op = 0; op < FAULT_OPS; op++) n += mask & 1u << op ? c->count[op] : 0;
    return n;
}

void fault_clock_stop(fault_clock *c)
{
    c->stopped = true;
}

void fault_clock_watch(fault_clock *c, unsigned mask, void (*at)(void *ctx), void *ctx)
{
    c->watched = 0;
    c->at = at;
    c->ctx = ctx;
    c->watched = at ? mask : 0;
}

int fault_clock_tick(fault_clock *c, enum fault_op op)
{
    unsigned seen, nth = c->nth;

    c->count[op]++;
    if (c->watched & 1u << op) c->at(c->ctx);
    if (c->stopped) return EIO;
    if (!nth || !(c->mask & 1u << op)) return 0;
    seen = atomic_fetch_add(&c->seen, 1) + 1;
    if (c->sticky ? seen < nth : seen != nth) return 0;
    c->hits++;
    return c->errnum;
}
