/* outside.c - who wants to know that a thread waits. */
#include "base/outside.h"

#include <stddef.h>

static _Thread_local const is_outside *told;

void is_outside_tell(const is_outside *o)
{
    told = o;
}

void is_outside_begin(void)
{
    if (told) told->begin(told->ctx);
}

void is_outside_end(void)
{
    if (told) told->end(told->ctx);
}
