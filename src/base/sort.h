/* sort.h - qsort and bsearch for lists that may be empty. An empty list of ours is often a null pointer, and C does not define what
 * the two do with one, not even for no elements. scripts/check-source.py bans them everywhere else in src. */
#ifndef IS_BASE_SORT_H
#define IS_BASE_SORT_H

#include <stddef.h>
#include <stdlib.h>

typedef int (*is_order)(const void *a, const void *b); /* < 0: a stands before b */

static inline void is_sort(void *list, size_t n, size_t size, is_order order)
{
    if (n > 1) qsort(list, n, size, order);
}

/* An element for which order(key, element) is 0, or NULL. The list is sorted by the same order. */
static inline void *is_find(const void *key, const void *list, size_t n, size_t size, is_order order)
{
    return n ? bsearch(key, list, n, size, order) : NULL;
}

#endif
