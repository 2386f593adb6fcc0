/* load_events.h - what a load generator takes from a stream of server-sent events (private to load.c and its test). */
#ifndef IS_EVAL_LOAD_EVENTS_H
#define IS_EVAL_LOAD_EVENTS_H

#include "eval/load.h"

typedef struct load_events {
    is_buf line;              /* the line that has not ended yet */
    bool done;                /* [DONE] came */
    double last_ms;           /* when the last piece of text came */
    bool is_counted;          /* usage said how many tokens there were */
} load_events;

void load_events_reset(load_events *e);
void load_events_free(load_events *e);
/* Bytes that came now_ms after the request was sent. False: they are no such stream, s->error says why. */
bool load_events_feed(load_events *e, const char *data, size_t n, double now_ms, load_sample *s);

#endif
