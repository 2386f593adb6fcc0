/* plan.h - from the facts that were found to the plan in normal form (docs/design.md):
 *
 *   header | stored facts | computed facts | footer | question | tail          best fact last in each group
 *
 * Right behind the header, rows that were encoded behind the header alone are exact. So of the facts that have such rows the worst
 * one stands first: the order of the others is nobody's concern but the best one's, which stays last.
 *
 * The order is made first; the text twin is the same plan with everything computed: the same tokens at the same positions. */
#ifndef IS_PLAN_PLAN_H
#define IS_PLAN_PLAN_H

#include "kv/vault.h"
#include "plan/profile.h"

typedef struct is_plan_fact {
    int64_t id;
    int version;
    is_tokens tokens;        /* owned by the plan after is_plan_new took it */
    is_segment *segment;     /* NULL = no KV; the plan takes the reference */
    bool exact_first;        /* it has rows from behind the bare header */
} is_plan_fact;

typedef struct is_planned is_planned; /* a plan with all it owns */

typedef struct is_plan_opts {
    uint32_t repair;         /* the m best facts are computed */
    bool with_memory;        /* false: mode none */
    bool next_turn;          /* begins with next_header instead of header */
    uint32_t pos0;           /* position of the first token; conversations: where the run stands */
    uint32_t n_ctx_left;     /* room in tokens, the answer's already taken off */
} is_plan_opts;

/* facts[] best first (the array and its parts are consumed, also on failure). Facts that do not fit are dropped, worst first.
 * E_CONTEXT if header, footer and question alone do not fit. */
is_status is_plan_new(const is_profile *profile, is_plan_fact *facts, size_t n, const is_tokens *question, const is_plan_opts *opts,
                      is_planned **out);
void is_planned_free(is_planned *p);
const is_plan *is_planned_plan(const is_planned *p);
size_t is_planned_dropped(const is_planned *p);
/* The part that stands right behind the profile's header, at the beginning of a prompt, if it is a stored fact: there rows that
 * were encoded behind that header alone are exact. n_parts if there is none. */
size_t is_planned_first(const is_planned *p);
/* Gives a stored part other rows of the same tokens (E_INVALID if they are not); takes a reference of its own. */
is_status is_planned_replace(is_planned *p, size_t part, is_segment *segment);
/* The text twin: same tokens, all COMPUTED. Borrowed from p. */
const is_plan *is_planned_twin(is_planned *p);

#endif
