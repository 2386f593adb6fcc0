/* catch_up.h - a question sees what was acknowledged before it came: items that have no vector yet are embedded inside the question, as
 * many as its budget allows, those that share words with it first. Their vectors are stored; what is left is counted by the search. */
#ifndef IS_API_CATCH_UP_H
#define IS_API_CATCH_UP_H

#include "api/handle.h"

typedef struct is_catch_up is_catch_up; /* one for a handle: the work that questions have begun */

is_status is_catch_up_new(is_catch_up **out);
/* Waits for what is under way, which ends soon: its questions have left. NULL is allowed. */
void is_catch_up_free(is_catch_up *c);

/* Vectors for this question alone: what the bank has by now is not lost, what it does not have (a store that is only read) is here. */
typedef struct is_caught {
    is_vector *v;  /* [n], into q */
    int8_t *q;
    size_t n;
} is_caught;

/* q: the query with its vector. Never waits longer than the budget for the embedder, however slow it is. What cannot be embedded is left
 * out and no failure. Errors: those of the search (is_recall_missing), E_NOMEM. *out is is_caught_free'd, also on failure. */
is_status is_catch_up_run(inferscale *is, const is_partition *p, const is_query *q, is_caught *out);
void is_caught_free(is_caught *c);

#endif
