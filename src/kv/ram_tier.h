/* ram_tier.h - segments kept in memory within a byte budget, least recently used out first (for the vault and the live KV of a connector).
 *
 * Not thread safe: its owner's lock covers it. An evicted segment that somebody still holds lives on until he lets go; it is
 * simply no longer counted here. */
#ifndef IS_KV_RAM_TIER_H
#define IS_KV_RAM_TIER_H

#include "kv/segment.h"

typedef struct ram_entry ram_entry;

typedef struct ram_tier {
    uint64_t budget, bytes, evictions;
    size_t n_entries, n_buckets;  /* n_buckets: a power of two, 0 at first */
    ram_entry **buckets;
    ram_entry *newest, *oldest;
} ram_tier;

void ram_clear(ram_tier *r);                                          /* empties it and frees the table */
is_segment *ram_get(ram_tier *r,
                    const uint8_t name[IS_HASH_BYTES]); /* a new reference, now the newest; NULL if it is not there */
bool ram_has(const ram_tier *r, const uint8_t name[IS_HASH_BYTES]);
/* Keeps s under that name (taking a reference) unless it is larger than the budget or memory is out: the tier is only a convenience.
 * of: whose rows they are, where the name says more than that. */
void ram_put(ram_tier *r, const uint8_t name[IS_HASH_BYTES], const uint8_t of[IS_HASH_BYTES], is_segment *s);
void ram_drop(ram_tier *r, const uint8_t name[IS_HASH_BYTES]);
/* The same, and its memory is overwritten when nobody uses it any more. */
void ram_wipe(ram_tier *r, const uint8_t name[IS_HASH_BYTES]);
/* That for all that is kept of these segments, under whatever name. */
void ram_forget(ram_tier *r, const uint8_t (*of)[IS_HASH_BYTES], size_t n);

#endif
