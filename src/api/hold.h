/* hold.h - what the questions under way hold: which fact versions and segments, under which epoch, with which lease.
 *
 * A question enters itself before it plans and leaves after its last token. Who changes or forgets something commits first, then
 * stops those in this process that hold it, and waits for the leases of all (bank/lease.h). Between tokens a question looks at the
 * epoch: if it moved and nothing it holds is concerned, it goes on under the new one; else it ends, or plans again if it has not
 * shown anything yet. */
#ifndef IS_API_HOLD_H
#define IS_API_HOLD_H

#include "api/handle.h"
#include "bank/lease.h"
#include "plan/plan.h"

typedef struct is_hold {
    inferscale *is;          /* NULL = not entered */
    struct is_hold *next;
    is_partition p;          /* id 0 = no partition yet, nothing held */
    int64_t as_of;
    is_dep *facts;           /* [n_facts] */
    size_t n_facts;
    is_names segments;
    is_lease *lease;
    int stop;                /* read and written atomically: what is held has gone */
} is_hold;

void is_hold_enter(is_hold *h, inferscale *is, int64_t as_of);
void is_hold_leave(is_hold *h); /* also if it was not entered */

/* A lease on the partition's epoch, which *p (refreshed) then has. *gone = something that is held is not there any more: the old lease
 * stays until that has been let go of (is_hold_nothing). */
is_status is_hold_lease(is_hold *h, is_partition *p, bool *gone);
/* Adds what the plan's facts are and are made of. */
is_status is_hold_plan(is_hold *h, const is_plan *plan);
is_status is_hold_add(is_hold *h, const is_dep *facts, size_t n, const is_names *segments);
void is_hold_nothing(is_hold *h); /* forgets what it held, whose runs have ended; the lease stays */
/* *gone = something that is held was forgotten, changed, superseded or has expired since. Moves the lease if not. */
is_status is_hold_check(is_hold *h, bool *gone);
bool is_hold_stopped(const is_hold *h);

/* After a commit that raised p's epoch: stops those in this process that hold what is gone, ends idle conversations that do, and
 * waits for all leases on older epochs, those of who is storing KV included. E_BUSY after wait_ms, *n_pending = how many are left. */
is_status is_handle_drain(inferscale *is, const is_partition *p, uint32_t wait_ms, size_t *n_pending);
/* The whole of what comes after such a commit (forget.c): hides the stale segments' files, drains,
 * and removes them. Goes on after a failure, so that as much as can be is gone; frees the names.
 * E_BUSY as above. */
is_status is_handle_carry_out(inferscale *is, const is_partition *p, is_names *stale,
                              uint32_t wait_ms, size_t *n_pending);
/* inferscale_update and inferscale_supersede; *n_others = facts that lost KV whose context had held
 * the old text: the next encode makes it anew. */
is_status is_handle_update(inferscale *is, const inferscale_scope *scope, int64_t id,
                           const inferscale_fact *fact, size_t *n_others);
is_status is_handle_supersede(inferscale *is, const inferscale_scope *scope, int64_t id,
                              const inferscale_fact *fact, int64_t *new_id, size_t *n_others);
/* Idle conversations of the partition that hold what is gone let go of it (chat.c). Returns how many are just beginning to speak, so
 * that it is not known yet what they hold: to be called again. no lock is held. */
size_t is_handle_drop_chats(inferscale *is, const is_partition *p);

#endif
