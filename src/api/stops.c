/* stops.c - see stops.h. */
#include "api/stops.h"

#include <string.h>

/* The longest stop string that ends at text[end]. */
static int ends_at(const char *const *stops, size_t n, const char *text, size_t end)
{
    size_t best_len = 0;
    int best = -1;

    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(stops[i]);

        if (len <= best_len || len > end || memcmp(text + end - len, stops[i], len) != 0) continue;
        best = (int)i;
        best_len = len;
    }
    return best;
}

/* How many bytes at the end of the text a stop string may begin with: the most of all. */
static size_t held_back(const char *const *stops, size_t n, const char *text, size_t len)
{
    size_t most = 0;

    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(stops[i]) - 1;

        for (m = m < len ? m : len; m > most; m--)
            if (memcmp(text + len - m, stops[i], m) == 0) most = m;
    }
    return most;
}

int is_stops_find(const char *const *stops, size_t n, const char *text, size_t len, size_t from, size_t *cut)
{
    for (size_t end = from + 1; end <= len; end++) {
        int which = ends_at(stops, n, text, end);

        if (which < 0) continue;
        *cut = end - strlen(stops[which]);
        return which;
    }
    *cut = len - held_back(stops, n, text, len);
    return -1;
}
