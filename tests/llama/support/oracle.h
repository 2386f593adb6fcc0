/* oracle.h - what libllama itself computes: the truth that injection is compared with. Uses llama.h only, none of our code.
 *
 * Logits are [oracle_vocab] floats of the last token, caller-allocated. Functions return false on failure (and say why on
 * stderr): a test fails then. */
#ifndef TESTS_LLAMA_ORACLE_H
#define TESTS_LLAMA_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct oracle oracle;

/* One thread, F16 cache. flash_attention also decides how values lie in the cache (off: transposed). */
oracle *oracle_open(const char *path, uint32_t n_ctx, bool flash_attention);
void oracle_close(oracle *o);
uint32_t oracle_vocab(const oracle *o);

/* Plain prefill of tokens[n] from position 0 in decodes of `batch` tokens (0 = all at once, up to 512). */
bool oracle_prefill(oracle *o, const int32_t *tokens, uint32_t n, uint32_t batch, float *logits);

typedef struct oracle_span {
    const int32_t *context;  /* what it was encoded after: [n_context] */
    uint32_t n_context;
    const int32_t *tokens;   /* [n_tokens] */
    uint32_t n_tokens;
} oracle_span;

/* Stitching as the engine itself would do it: each fact is decoded after a copy of its own context in a sequence of its own, at
 * the position where it will be served; the copy of the context is removed and the fact's cells are given to the live sequence,
 * which holds the real header; then tail[n_tail] is decoded there. (Distances are all that counts, window masks included, so
 * the whole plan moves up where a context would begin below 0.) */
bool oracle_stitch(oracle *o, const int32_t *header, uint32_t n_header, const oracle_span *facts, uint32_t n_facts,
                   const int32_t *tail, uint32_t n_tail, float *logits);

/* KL(softmax(p) || softmax(q)) in nats; the index of the largest; its lead over the next; the largest |p - q| after both were
 * shifted to the same log-sum-exp. */
double logits_kl(const float *p, const float *q, uint32_t n);
uint32_t logits_top(const float *p, uint32_t n);
double logits_margin(const float *p, uint32_t n);
double logits_max_diff(const float *p, const float *q, uint32_t n);

#endif
