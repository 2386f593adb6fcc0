/* lexical.h - an inverted index in memory, scored by BM25 (Robertson & Zaragoza, 2009) with this collection's own statistics.
 *
 * Documents belong to one of two groups (facts, turns); document counts, lengths and frequencies are kept per group, so that
 * adding long turns does not change how facts rank among facts. Appending only; not thread safe while appending. */
#ifndef IS_RECALL_LEXICAL_H
#define IS_RECALL_LEXICAL_H

#include <stdint.h>

#include "recall/terms.h"

enum { IS_LEX_GROUPS = 2 };

typedef struct is_lexical is_lexical;

is_status is_lexical_new(is_lexical **out);
void is_lexical_free(is_lexical *x); /* NULL is allowed */

/* Appends document number is_lexical_docs(x), the terms of texts[0..n) one after the other (NULL texts are skipped). After a
 * failure (E_NOMEM, or E_FULL past 2^32 - 2 documents) the index is unusable and must be freed. */
is_status is_lexical_add(is_lexical *x, unsigned group, const char *const *texts, size_t n);
size_t is_lexical_docs(const is_lexical *x);
size_t is_lexical_bytes(const is_lexical *x); /* memory held, about */

/* All arrays [is_lexical_docs(x)], written whole; by document d:
 *   scores     BM25 for the query's distinct terms; 0 where no term occurs.
 *   shares     (may be NULL) how much of what the query asks for it holds, 0 to 1: of the query's
 *              distinct terms, those that no document has included, each weighted by how rare it
 *              is. What nearly all documents of the group have weighs next to nothing.
 *   companies  (may be NULL) a number that documents of one group share whose most common term of
 *              the query is the same: that term's place among the query's terms, from 1 (0 = it has
 *              none), times IS_LEX_GROUPS, plus the group.
 * May be called from many threads. E_NOMEM. */
is_status is_lexical_score(const is_lexical *x, const char *query, double *scores, double *shares,
                           uint32_t *companies);

#endif
