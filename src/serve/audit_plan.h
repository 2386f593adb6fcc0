/* audit_plan.h - what is kept of an answer until it is audited, and the plan made anew from it. */
#ifndef IS_SERVE_AUDIT_PLAN_H
#define IS_SERVE_AUDIT_PLAN_H

#include "api/hold.h"
#include "eval/twin.h"

/* A part of the prompt. A fact is its id and version; its tokens are read from the store again. */
typedef struct audit_part {
    is_role role;
    bool stored, resident;     /* its rows: those of the segment; or those the conversation's cache held */
    int64_t fact_id;
    int version;
    uint32_t n_tokens;
    const int32_t *tokens;     /* other parts; into the entry's tokens */
    uint8_t segment[IS_HASH_BYTES];
} audit_part;

typedef struct audit_entry {
    struct audit_entry *next;
    is_partition p;
    int64_t as_of;
    uint64_t seed;             /* of the reordering */
    audit_part *parts;         /* [n_parts] */
    uint32_t n_parts, n_tokens;
    int32_t *tokens;           /* [n_tokens] of all parts but facts, and of the answer */
    const int32_t *told;       /* [n_told] into tokens */
    uint32_t n_told;
} audit_entry;

/* Is there a fact in it that was injected, now or in an earlier turn? Else there is nothing to compare. */
bool audit_worth(const is_plan *plan);
is_status audit_entry_new(const is_partition *p, int64_t as_of, const is_plan *plan, const int32_t *told, size_t n_told, audit_entry **out);
void audit_entry_free(audit_entry *e); /* overwrites the tokens; NULL is allowed */

/* Is every fact of it still what it was? False in doubt. */
bool audit_entry_holds(inferscale *is, const is_partition *now, const audit_entry *e);

/* The same plan as a whole: stored facts from the same segments, those of earlier turns from the rows that serve them now, the rest
 * computed. Enters its facts and segments in hold, which is entered and empty. E_STALE: a fact was changed or forgotten; E_NOTFOUND: its
 * segment was replaced. audit_plan_free in any case. */
is_status audit_plan_new(inferscale *is, const audit_entry *e, is_hold *hold, is_plan *out);
void audit_plan_free(is_plan *plan);

#endif
