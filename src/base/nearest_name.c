/* nearest_name.c - "did you mean", by the distance between words. */
#include "base/nearest_name.h"

#include <string.h>

enum { WORD_MAX = IS_WORD_MAX };

/* Optimal string alignment distance of words under WORD_MAX bytes. */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
    unsigned char d[WORD_MAX + 1][WORD_MAX + 1];
    for (size_t i = 0; i <= n; i++) d[i][0] = (unsigned char)i;
    for (size_t j = 0; j <= m; j++) d[0][j] = (unsigned char)j;
    for (size_t i = 1; i <= n; i++) {
        for (size_t j = 1; j <= m; j++) {
            unsigned best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1u < best) best = d[i - 1][j] + 1u;
            if (d[i][j - 1] + 1u < best) best = d[i][j - 1] + 1u;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1u < best)
                best = d[i - 2][j - 2] + 1u;
            d[i][j] = (unsigned char)best;
        }
    }
    return d[n][m];
}

const char *is_nearest_name(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    unsigned best_d = 0;
    size_t len = strlen(word);
    if (len == 0 || len > WORD_MAX) return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(names[i]);
        if (m > WORD_MAX) continue;
        unsigned d = distance(word, len, names[i], m);
        size_t longer = len > m ? len : m;
        unsigned limit = longer < 3 ? 1 : (unsigned)(longer + 2) / 3;
        /* The start of a name is a good guess too: "comp" for "completion". */
        if (len >= 3 && m > len && memcmp(word, names[i], len) == 0 && limit <= d) d = limit;
        if (d <= limit && (!best || d < best_d)) {
            best = names[i];
            best_d = d;
        }
    }
    return best;
}
