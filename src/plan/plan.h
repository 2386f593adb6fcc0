/* plan.h - from the facts that were found to the plan in normal form (docs/design.md):
 *
 *   header | stored facts | computed facts | footer | question | tail          best fact last in each group
 *
 * Right behind the header, rows that were encoded behind the header alone are exact. So of the facts that have such rows the worst
 * one stands first: the order of the others is nobody's concern but the best one's, which stays last. With best_first each group
 * stands the other way round, and nothing is moved.
 *
 * In a conversation the memory of each turn stands before the user's words of that turn, and nothing moves afterwards:
 *
 *   header | memory | footer | user | tail | assistant | next_header | memory | next_footer | user | ... | question | tail
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

/* An earlier turn of a conversation: what was said, and what memory stood before it. The plan takes what it holds. */
typedef struct is_plan_turn {
    bool with_memory;        /* a memory block stands there, be it empty */
    is_plan_fact *facts;     /* [n_facts] in the order of the prompt */
    size_t n_facts;
    is_tokens user, assistant;
} is_plan_turn;
void is_plan_turn_free(is_plan_turn *turn);

typedef struct is_plan_opts {
    uint32_t repair;         /* the m best facts are computed */
    bool with_memory;        /* false: mode none */
    bool best_first;         /* the best fact stands first in its group, the worst last (eval accuracy) */
    bool next_turn;          /* begins with next_header instead of header */
    uint32_t pos0;           /* position of the first token; conversations: where the run stands */
    uint32_t n_ctx;          /* the context; for sentences */
    uint32_t n_ctx_left;     /* room in tokens, the answer's already taken off */
    /* Conversations that are planned as a whole. Either turns, or what a live run holds of them already. */
    is_plan_turn *turns;     /* [n_turns] oldest first; emptied when they are taken */
    size_t n_turns;
    const is_part *resident; /* [n_resident] contiguous from position 0; their tokens are borrowed as long as the plan lives */
    uint32_t n_resident;
    const is_tokens *header, *header_plain; /* of another system text; NULL = the profile's */
    bool front;              /* all memory behind the header, before the first turn */
} is_plan_opts;

/* Tokens that the plan needs without the newest facts. */
uint64_t is_plan_fixed(const is_profile *profile, const is_tokens *question, const is_plan_opts *opts);
/* facts[] best first (the array and its parts are consumed, also on failure). Facts that do not fit are dropped, worst first.
 * E_CONTEXT if is_plan_fixed is more than there is room for. */
is_status is_plan_new(const is_profile *profile, is_plan_fact *facts, size_t n, const is_tokens *question, const is_plan_opts *opts,
                      is_planned **out);
/* A text as it is, without memory and chat format. Takes the tokens. */
is_status is_plan_raw(is_tokens *text, uint32_t n_ctx_left, is_planned **out);
/* Rows averaged over the company of so many neighbours are those of a fact that stands among about so many. In a plan of several times as
 * many, rows of pages are nearer to the text twin: at k = 50 on both models that were measured (docs/design.md 4). */
bool is_plan_is_crowd(size_t n_facts, uint32_t company);
void is_planned_free(is_planned *p);
const is_plan *is_planned_plan(const is_planned *p);
size_t is_planned_dropped(const is_planned *p);
/* The first part of the newest turn. */
size_t is_planned_newest(const is_planned *p);
/* The part that stands right behind the profile's header, at the beginning of a prompt, if it is a stored fact: there rows that
 * were encoded behind that header alone are exact. n_parts if there is none. */
size_t is_planned_first(const is_planned *p);
/* Are these rows of the tokens of that stored part? */
bool is_planned_same(const is_planned *p, size_t part, const is_segment *segment);
/* Gives a stored part other rows of the same tokens (E_INVALID if they are not); takes a reference of its own. */
is_status is_planned_replace(is_planned *p, size_t part, is_segment *segment);
/* The text twin: same tokens, nothing STORED. Borrowed from p. */
const is_plan *is_planned_twin(is_planned *p);

#endif
