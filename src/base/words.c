/* words.c - the names of the next steps. */
#include "base/words.h"

static const char *const words[IS_CALL_COUNT][IS_READER_COUNT] = {
#define IS_CALL_X(name, c, cli, http, mcp) { c, cli, http, mcp },
    IS_CALLS(IS_CALL_X)
#undef IS_CALL_X
};

static is_reader reader;
static _Thread_local int reader_here = -1;
static is_reader (*host_reader)(void); /* set once, before a plug-in does anything */

is_reader is_reader_set(is_reader r)
{
    return __atomic_exchange_n(&reader, r, __ATOMIC_RELAXED);
}

int is_reader_here(int r)
{
    int before = reader_here;

    reader_here = r;
    return before;
}

const char *is_words_for(is_call what, is_reader r)
{
    return words[what][r];
}

const char *is_words(is_call what)
{
    return words[what][is_reader_now()];
}

is_reader is_reader_now(void)
{
    if (host_reader) return host_reader();
    return reader_here >= 0 ? (is_reader)reader_here : __atomic_load_n(&reader, __ATOMIC_RELAXED);
}

void is_reader_ask(is_reader (*now)(void))
{
    host_reader = now;
}
