/* variant.h - which of a fact's segments serves it: a fact version has any number of them, from one policy each. */
#ifndef IS_API_VARIANT_H
#define IS_API_VARIANT_H

#include "api/damage.h"
#include "plan/plan.h"

typedef struct is_variant {
    int64_t id;              /* of the fact */
    char policy[32];         /* whose rows were taken; "" = none */
    bool refined, exact;     /* by the refine policy; from behind the bare header, for the plan's first fact */
    bool has_exact;          /* it has rows from behind the bare header, taken or not */
} is_variant;

/* stage: 0 = rows of any stage; INFERSCALE_STAGE_FIRST or _REFINE = only rows by a policy of that stage.
 * The best segment there is for a fact among n_facts: the refine policy's, else the first stage's (where the prompt holds far more facts
 * than refining averaged over, the other way round), else the newest of any other. A file that is gone or bad leaves the books, so
 * that the fact is encoded again; one that cannot be read just now stays (*n_bad counts both). *out NULL: there is none, serve text. */
is_status is_variant_load(inferscale *is, const is_partition *p, const inferscale_item *fact, size_t n_facts, int stage,
                          is_variant *v, is_segment **out, is_unusable *n_bad);
/* The rows behind the bare header, which are exact where a fact stands right behind it. *out NULL: there are none. */
is_status is_variant_exact(inferscale *is, const is_partition *p, int64_t fact_id, int version, int stage,
                           is_segment **out, is_unusable *n_bad);
/* Sets exact_first of the facts that have such rows by the books: for plans that inject nothing and are to have the order of those
 * that do. One look for all of them. */
is_status is_variant_mark_exact(inferscale *is, const is_partition *p, int stage, is_plan_fact *facts, size_t n);

#endif
