/* embed.h - text to vector, and vectors as they are kept: int8 with one scale.
 *
 * An embedding is a view of the bank, keyed by the embedder's fingerprint: another embedder is another view. */
#ifndef IS_EMBED_EMBED_H
#define IS_EMBED_EMBED_H

#include <stdbool.h>

#include "base/gate.h"
#include "base/hash.h"
#include "base/status.h"

typedef struct is_embedder is_embedder; /* serialised inside */

/* spec: GGUF path (embedder of the engine plug-in `engine`, "llama" or "mock") or http(s) URL of an OpenAI-style /v1 endpoint
 * (plug-in embed-http; "URL#model" names the model). */
is_status is_embedder_open(const char *plugin_dir, const char *engine, const char *spec, const char *key, uint32_t n_threads,
                           is_embedder **out);
void is_embedder_close(is_embedder *e);
uint32_t is_embedder_dim(is_embedder *e);
const uint8_t *is_embedder_fingerprint(is_embedder *e);
is_status is_embedder_embed(is_embedder *e, const char *const *texts, size_t n, float *out /* [n][dim] */);
/* The same with *n_tokens = the tokens that were embedded, in the embedder's count (0 where it is not known). cut[i] (may be NULL) = text i is
 * too long for it. Such a text is cut if may_cut, else E_CONTEXT (the first of them; cut[] of those behind it is not said). */
is_status is_embedder_embed_counted(is_embedder *e, const char *const *texts, size_t n, bool may_cut, float *out, uint64_t *n_tokens, int *cut);
/* The same for work that can wait: E_BUSY, within milliseconds, when the gate is not open or a question enters it. */
is_status is_embedder_embed_background(is_embedder *e, const char *const *texts, size_t n, float *out, is_gate *gate);

/* v[dim] (unit length) -> q[dim] int8, scale such that v ~ q * scale. */
void is_quantize_i8(const float *v, uint32_t dim, int8_t *q, float *scale);

#endif
