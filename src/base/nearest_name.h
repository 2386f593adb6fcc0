/* nearest_name.h - "did you mean": the name that a mistyped word was probably meant to be. */
#ifndef IS_BASE_NEAREST_NAME_H
#define IS_BASE_NEAREST_NAME_H

#include <stddef.h>

enum { IS_WORD_MAX = 40 };

/* The name nearest to word among names[n], if it is near enough to be a typing error (distance <= a third of its length, transpositions
 * count once; the beginning of a name is near too); else NULL. */
const char *is_nearest_name(const char *word, const char *const *names, size_t n);

#endif
