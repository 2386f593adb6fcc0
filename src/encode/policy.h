/* policy.h - what a fact sees when its KV is computed.
 *
 *   alone     nothing, no header (the paper's w = 0)
 *   header    the profile's header
 *   turns:W   header + the W turns before the fact's source turn (Context-Window Encoding, arXiv 2607.27090);
 *             turns:W+source: and the source turn itself. A fact without a source turn has the header only
 *   facts:W   header + the W facts before it in the partition */
#ifndef IS_ENCODE_POLICY_H
#define IS_ENCODE_POLICY_H

#include "bank/bank.h"
#include "plan/profile.h"

typedef enum is_policy_kind { IS_POLICY_ALONE, IS_POLICY_HEADER, IS_POLICY_TURNS, IS_POLICY_FACTS } is_policy_kind;
typedef struct is_policy { is_policy_kind kind; uint32_t w; bool with_source; char name[32]; } is_policy;

is_status is_policy_parse(const char *text, is_policy *out); /* E_INVALID names the known ones */

/* The context (header included) and what it depends on. */
typedef struct is_context { is_tokens tokens; is_dep *deps; size_t n_deps; } is_context;
void is_context_free(is_context *c);
is_status is_policy_context(const is_policy *policy, is_bank *bank, const is_partition *p, is_engine *e, const is_profile *profile,
                            const inferscale_item *fact, uint32_t max_tokens, is_context *out);

#endif
