/* profile.h - how memory is laid out in a prompt of one model: the header that facts are encoded after, the separators, the
 * footer. Pieces are tokenised apart, so that a fact has the same token ids wherever it stands.
 *
 *   header   = system turn up to the end of its text + opener of the memory block
 *   fact     = "- 8 May 2023: text\n", or "- text\n" where nobody gave a date
 *   footer   = end of the system turn + opener of the user turn
 *   question = the user's words
 *   tail     = end of the user turn + opener of the assistant turn */
#ifndef IS_PLAN_PROFILE_H
#define IS_PLAN_PROFILE_H

#include "base/hash.h"
#include "engine/engine.h"
#include "kv/codec.h"

typedef struct is_tokens { int32_t *ids; uint32_t n; } is_tokens;
void is_tokens_free(is_tokens *t);

typedef struct is_profile {
    is_tokens header;        /* with memory: what segments are encoded after; begins with BOS where the model has one */
    is_tokens header_plain;  /* without memory (mode none): system turn + opener of the user turn */
    is_tokens footer, tail;
    is_tokens next_header;   /* later turns: end of the assistant turn + opener of the user turn + opener of the memory block */
    is_tokens next_footer;   /* later turns: end of the memory block */
    is_tokens next_plain;    /* later turns without memory */
    is_codec codec;
    uint8_t fingerprint[IS_HASH_BYTES]; /* model fingerprint + header tokens + codec: keys the segments' books */
    uint8_t in_codec[IS_CODECS][IS_HASH_BYTES]; /* the same for every codec: views that differ in nothing else */
} is_profile;

is_status is_profile_new(is_engine *e, const char *system /* NULL = default */, is_codec codec, is_profile **out);
/* The same layout for rows in another codec. *out is is_profile_free'd. E_NOMEM. */
is_status is_profile_in(const is_profile *p, is_codec codec, is_profile **out);
const char *is_profile_system_default(void); /* the system text where none is given; static */
void is_profile_free(is_profile *p);

/* What a prompt with another system text begins with, instead of header and header_plain. whose, here and below: whose text it is
 * (is_engine_tokenize). */
is_status is_profile_system(is_engine *e, const is_realm *whose, const char *system, const is_fit *fit, is_tokens *header,
                            is_tokens *header_plain);

/* A fact's or a turn's text as it stands in the prompt or in an encoding context, tokenised. Control tokens written out in the
 * text stay text. */
is_status is_profile_fact(is_engine *e, const is_realm *whose, const inferscale_item *fact, is_tokens *out);
is_status is_profile_turn(is_engine *e, const is_realm *whose, const inferscale_item *turn, is_tokens *out);
is_status is_profile_question(is_engine *e, const is_realm *whose, const char *text, is_tokens *out);
/* The same of a text that has to fit (is_engine_tokenize_fit), as those above and below with a fit; NULL = of any length. */
is_status is_profile_words(is_engine *e, const is_realm *whose, const char *text, const is_fit *fit, is_tokens *out);
/* With BOS where the model wants one, without the chat format. */
is_status is_profile_raw(is_engine *e, const is_realm *whose, const char *text, const is_fit *fit, is_tokens *out);

#endif
