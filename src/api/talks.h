/* talks.h - conversations that may go on: their keys and values stay in the engine for a while, so that a client who sends the
 * conversation again, one turn longer, costs the new turn only.
 *
 * A talk is found by what it is: its owner's partition and the hash of all that shaped it (history.h), so that nobody reaches another
 * one's, and nothing but the same conversation goes on. It holds facts as a question under way does (hold.h): who changes or forgets
 * one of them makes it go before his call returns; what other processes change is seen when it is taken. Few are kept, the ones
 * used last; they make room as soon as the engine lacks it. */
#ifndef IS_API_TALKS_H
#define IS_API_TALKS_H

#include "api/answer.h"

typedef struct is_talk {
    struct is_talk *next;
    is_partition p;          /* id 0 = without memory */
    uint8_t key[IS_HASH_BYTES];
    is_run *run;
    int32_t pending;         /* sampled, not yet run; -1 = none. The last one of tokens */
    int32_t *tokens;         /* [n_tokens] all that the run holds, and the pending one */
    uint32_t n_tokens, n_parts;
    is_part *parts;          /* [n_parts] the same as parts */
    is_made_of rows;         /* of which rows its facts were made */
    is_dep *facts;           /* [n_facts] what is held */
    size_t n_facts;
    is_names segments;
    int64_t as_of;
    size_t n_placed, n_lost; /* turns with the memory that was placed, and those that lost it */
} is_talk;

typedef struct is_talks is_talks;

is_status is_talks_new(is_talks **out);
void is_talks_free(inferscale *is);      /* at closing: ends all of them */

/* The talk with this key, which is the caller's now; NULL = there is none, or what it held has gone. */
is_talk *is_talks_take(inferscale *is, const is_partition *p /* NULL = without memory */, const uint8_t key[IS_HASH_BYTES]);
/* Keeps a talk, unless hold says that what it holds has gone meanwhile. Takes it in any case. */
void is_talks_keep(inferscale *is, is_talk *talk, const is_hold *hold);
void is_talk_end(inferscale *is, is_talk *talk); /* NULL is allowed */
/* What a run holds after a plan and the tokens that were told: a talk without run and key. */
is_status is_talk_new(const is_plan *plan, const int32_t *told, size_t n_told, const is_hold *hold, is_talk **out);

/* Ends the talk that was used longest ago; false = there is none. */
bool is_talks_evict(inferscale *is);
/* Ends the partition's talks that hold what is gone; waits for those that are just being ended. */
void is_talks_drop(inferscale *is, const is_partition *p);

#endif
