/* shim.h - the libllama calls that may throw, as plain C functions (shim.cpp, the only C++ of the tree).
 *
 * A failed assertion of ggml's is an exception too, where it can be (see is_shim_catch_aborts). A caught exception reads as the
 * call's own failure value, or SHIM_THROWN where it has none; is_shim_error() says why. */
#ifndef IS_LLAMA_SHIM_H
#define IS_LLAMA_SHIM_H

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIM_THROWN = -1000 };

const char *is_shim_error(void); /* this thread's last caught exception; "" if none since is_shim_clear */
void is_shim_clear(void);
/* From now on a failed assertion inside one of the calls below is such an exception, unless several threads compute. */
void is_shim_catch_aborts(void);
/* Given by the plug-in: ggml is about to end the process, and this is why. */
void is_llama_fatal(const char *why);

struct llama_model *is_shim_model_load(const char *path, struct llama_model_params params);      /* NULL on failure */
struct llama_context *is_shim_context_new(struct llama_model *m, struct llama_context_params p); /* NULL on failure */
/* llama_decode or SHIM_THROWN */
int32_t is_shim_decode(struct llama_context *ctx, struct llama_batch batch);
/* llama_encode or SHIM_THROWN */
int32_t is_shim_encode(struct llama_context *ctx, struct llama_batch batch);
size_t is_shim_state_size(struct llama_context *ctx, llama_seq_id seq);                          /* 0 on failure */
size_t is_shim_state_get(struct llama_context *ctx, uint8_t *dst, size_t size, llama_seq_id seq);
size_t is_shim_state_set(struct llama_context *ctx, const uint8_t *src, size_t size, llama_seq_id seq);
/* As llama_tokenize; INT32_MIN when it threw. */
int32_t is_shim_tokenize(const struct llama_vocab *vocab, const char *text, int32_t len, llama_token *out, int32_t max,
                         bool add_special, bool parse_special);
/* As llama_token_to_piece; SHIM_THROWN when it threw. */
int32_t is_shim_piece(const struct llama_vocab *vocab, llama_token token, char *buf, int32_t cap, bool special);
/* As llama_chat_apply_template; -1 when it threw or does not know the template. */
int32_t is_shim_chat_apply(const char *tmpl, const struct llama_chat_message *msgs, size_t n, bool add_assistant, char *buf,
                           int32_t cap);
/* Applies a sampler chain; false when it threw. */
bool is_shim_sampler_apply(struct llama_sampler *chain, llama_token_data_array *candidates);
bool is_shim_sampler_accept(struct llama_sampler *chain, llama_token token);                     /* false when it threw */
struct llama_sampler *is_shim_grammar_new(const struct llama_vocab *vocab, const char *grammar); /* root "root"; NULL on failure */

#ifdef __cplusplus
}
#endif

#endif
