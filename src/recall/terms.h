/* terms.h - text to index terms: words of any script, case and Latin accents folded, without English stop words, stemmed. */
#ifndef IS_RECALL_TERMS_H
#define IS_RECALL_TERMS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { IS_TERM_MAX = 64 }; /* bytes; longer words are cut at a character boundary before stemming */

typedef struct is_terms is_terms; /* a tokeniser with its stemmer: one thread at a time */

is_status is_terms_new(is_terms **out);
void is_terms_free(is_terms *t); /* NULL is allowed */

/* Calls each(term, n) for the terms of text[0..len) in order; the term lives during the call and is not NUL-terminated. Bytes
 * that are not UTF-8 separate words. A non-OK status of each() stops and is returned. */
typedef is_status (*is_term_fn)(void *ctx, const char *term, size_t n);
is_status is_terms_each(is_terms *t, const char *text, size_t len, is_term_fn each, void *ctx);

/* True for a folded, unstemmed word of the stop list. */
bool is_stop_word(const char *word, size_t n);

#endif
