/* stops.h - where an answer ends because of what it says. */
#ifndef IS_API_STOPS_H
#define IS_API_STOPS_H

#include <stddef.h>

enum { IS_STOPS_MAX = 16, IS_STOP_BYTES_MAX = 256 };

/* Looks at text[0..len), of which everything before `from` was looked at before. The stop string that is complete first, byte by
 * byte, ends the text, so that it does not matter in which pieces the text came: returns its index, *cut = where it begins. Of several
 * that end there together it is the longest. -1 if there is none: then *cut = how much can be shown, since what is behind it may still become one. */
int is_stops_find(const char *const *stops, size_t n, const char *text, size_t len, size_t from, size_t *cut);

#endif
