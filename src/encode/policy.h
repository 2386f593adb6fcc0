/* policy.h - what a fact sees when its KV is computed.
 *
 *   alone        nothing, no header (the paper's w = 0; cwe:0 is this policy, and is named alone)
 *   cwe:W        the W turns before the fact's source turn, no header: Context-Window Encoding as published (arXiv 2607.27090)
 *   header       the profile's header: what the plan's first fact sees when it is served, so exact there
 *   turns:W      header + the W turns before the fact's source turn; turns:W+source: and the source turn itself. A fact without
 *                a source turn has the header only
 *   facts:W      header + the W facts before it in the partition
 *   near:N       header + the N nearest facts by their embeddings, the nearest last
 *   page:N       header + overlap + the facts before it in a page of at most N facts that are encoded in one pass (page.c).
 *                page:N+O: an overlap of O facts; @random (what page:N means), @time, @topic: which facts share a page.
 *                page:N+O/E: one fact in E (is_policy_takes_header) also gets rows behind the bare header, so that a plan over
 *                several facts can begin with one of them, exactly (plan.h)
 *   company:N    the mean of its rows over the company it keeps: joint passes of a fact and the N facts that its own text finds,
 *                in random order (company.c). company:NxM: over at most M passes a fact
 *
 * The first seven are one context a fact (is_policy_context), save that a page's is in the books of pages; company's are several. */
#ifndef IS_ENCODE_POLICY_H
#define IS_ENCODE_POLICY_H

#include "bank/bank.h"
#include "kv/rope.h"
#include "kv/vault.h"
#include "plan/profile.h"
#include "recall/recall.h"

typedef enum is_policy_kind {
    IS_POLICY_ALONE, IS_POLICY_HEADER, IS_POLICY_TURNS, IS_POLICY_FACTS, IS_POLICY_CWE, IS_POLICY_NEAR, IS_POLICY_PAGE,
    IS_POLICY_COMPANY
} is_policy_kind;
typedef enum is_page_order { IS_PAGE_RANDOM, IS_PAGE_TIME, IS_PAGE_TOPIC } is_page_order;
typedef struct is_policy {
    is_policy_kind kind;
    uint32_t w;              /* turns, facts, neighbours, facts a page */
    bool with_source;        /* turns */
    is_page_order order;     /* page */
    uint32_t overlap;        /* page */
    uint32_t header_one_in;  /* page: E; 0 = none */
    uint32_t passes;         /* company: at most so many a fact */
    char name[32];           /* as written, without what says the default */
} is_policy;

is_status is_policy_parse(const char *text, is_policy *out); /* E_INVALID names the known ones */

/* Is the fact among those that get header-only rows too? Chosen by a hash, not by order: a partition's facts come in any. */
bool is_policy_takes_header(const is_policy *policy, int64_t fact_id);

/* What encoding works with; all borrowed. */
typedef struct is_encoder {
    is_bank *bank;
    is_vault *vault;
    is_engine *engine;
    const is_profile *profile;
    const is_rope *rope;
    is_recall *recall;           /* near, company, page@topic; else may be NULL */
    const uint8_t *embedder;     /* fingerprint of the vectors in the bank; NULL = there are none to go by */
    int background;              /* IS_CAPTURE_*: captures give way to questions; one that was dropped asks on_busy (NULL: E_BUSY) */
    is_status (*on_busy)(void *ctx);
    void *busy_ctx;
    const volatile int *cancel;  /* may be NULL */
    bool replace;                /* a file that is there is written anew (rebuild) */
    const uint8_t *shuffle;      /* [IS_KEY_BYTES] random orders of page and company come from it; NULL = from the partition's key */
} is_encoder;

/* The context (header included) and what it depends on. The end of it may be held as stored rows instead of computed ones. */
typedef struct is_context {
    is_tokens tokens;
    is_dep *deps;
    size_t n_deps;
    is_segment **stored;     /* [n_stored] their tokens are the end of `tokens`; owned references */
    uint32_t n_stored;
} is_context;
void is_context_free(is_context *c);
/* One context of at most max_tokens; what does not fit is left out, the farthest first. Not for page and company (E_INVALID).
 * E_CONTEXT if the header alone does not fit; near: E_UNSUPPORTED without an embedder, E_STALE if the fact has no embedding yet. */
is_status is_policy_context(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                            uint32_t max_tokens, is_context *out);
/* Appends a line that depends on an item (id 0: on none, as the header). */
is_status is_context_add(is_context *c, const is_tokens *line, is_dep dep);

#endif
