/* ticket.h - what a gateway lets a connector do inside another engine: a signed, bounded, dated text (docs/formats.md, "Ticket").
 *
 * Both sides have the secret. A ticket says everything that it allows: the exact prompt, the model, whose memory, until when. */
#ifndef IS_KV_TICKET_H
#define IS_KV_TICKET_H

#include "base/hash.h"

enum { IS_TICKET_MAX_PARTS = 65536, IS_TICKET_MAX_PROMPT = 1 << 24 };

/* The signed text (is_free). E_INVALID: a ticket that is_ticket_read would refuse. */
is_status is_ticket_write(const inferscale_ticket *t, const uint8_t secret[IS_KEY_BYTES], char **text);
/* E_PARSE (not a ticket), E_DENIED (not signed with this secret), E_STALE (over), E_INVALID (signed nonsense), E_NOMEM. *out: one
 * allocation, its parts included (is_free). */
is_status is_ticket_read(const char *text, const uint8_t secret[IS_KEY_BYTES], int64_t now, inferscale_ticket **out);

/* What prompt_hash must be. */
is_status is_ticket_prompt(const int32_t *tokens, size_t n, uint8_t out[IS_HASH_BYTES]);

/* The cache salt of a conversation: a keyed hash of all that makes its first turn's blocks what they are. names: of its stored parts, in
 * order. attempt: raised after a failed load, whose salt has exact blocks. */
typedef struct is_ticket_salt_of {
    uint8_t tag[IS_HASH_BYTES];          /* whose memory: opaque; zero = nobody's */
    uint64_t epoch;
    uint8_t fingerprint[IS_HASH_BYTES];  /* of the model */
    uint8_t profile[IS_HASH_BYTES];      /* hash of the header's tokens */
    const uint8_t (*names)[IS_HASH_BYTES];
    size_t n_names;
    uint32_t attempt;
} is_ticket_salt_of;

is_status is_ticket_salt(const uint8_t secret[IS_KEY_BYTES], const is_ticket_salt_of *of, uint8_t out[IS_HASH_BYTES]);

#endif
