/* known.h - the turns that a store holds already, so that importing a file again adds none of them. A turn has no name of its own unless
 * the application gave one (external_id; the bank sees to those): it is the same if its owner, attributes, conversation, speaker, text
 * and time are. Someone may say the same twice in a second: each turn of the store stands for one line of the file. */
#ifndef IS_EXCHANGE_KNOWN_H
#define IS_EXCHANGE_KNOWN_H

#include "base/status.h"
#include "inferscale.h"

typedef struct known_turns known_turns;

known_turns *known_new(void);                   /* NULL = out of memory */
void known_free(known_turns *k);                /* NULL is allowed */

/* *id = the turn of this scope that is this one and stood for no other yet; 0 = there is none, or the turn says no time. The first
 * question about a scope reads its turns. */
is_status known_take(known_turns *k, inferscale *is, const inferscale_scope *scope, const inferscale_turn *turn, int64_t *id);

#endif
