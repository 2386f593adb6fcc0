/* encode.h - from a fact to its segment: context, capture, un-rotate, name, store, enter in the books. */
#ifndef IS_ENCODE_ENCODE_H
#define IS_ENCODE_ENCODE_H

#include "encode/policy.h"
#include "kv/rope.h"
#include "kv/vault.h"

typedef struct is_encoder {       /* all borrowed */
    is_bank *bank;
    is_vault *vault;
    is_engine *engine;
    const is_profile *profile;
    const is_rope *rope;
} is_encoder;

/* The segment's name: keyed by the partition, of EVERYTHING its rows are computed from. */
is_status is_segment_name(const is_partition *p, const is_engine_info *model, const is_profile *profile, const is_tokens *context,
                          const is_tokens *span, uint8_t out[IS_HASH_BYTES]);

/* Rows of span after context as a segment (not stored). Used by the encoder, the evaluation and tests. *n_computed may be NULL. */
is_status is_encode_span(const is_encoder *enc, const uint8_t name[IS_HASH_BYTES], const is_tokens *context, const is_tokens *span,
                         is_segment **out, uint32_t *n_computed);

/* Encodes one fact under a policy unless it is there already; E_STALE if the memory changed meanwhile (nothing is left behind). */
is_status is_encode_fact(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact, bool again,
                         is_segment_row *row);

#endif
