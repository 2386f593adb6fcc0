/* tools.h - what inferscale-models does: models made ready for use. Each function writes OUT whole or not at all (a temporary
 * file beside it, synced, renamed). */
#ifndef IS_TOOLS_TOOLS_H
#define IS_TOOLS_TOOLS_H

#include <stdbool.h>

#include "base/status.h"

/* Rewrites a GGUF model with other weights: "q4_0", "q4_1", "q8_0", "f16", "bf16" or "f32"; already quantised weights are
 * allowed as input (the loss of the first quantisation stays). E_INVALID: unknown type; E_MODEL: the input is no model. */
is_status tool_quantize(const char *in, const char *out, const char *type);

/* A sentence-transformers folder of a BERT encoder (model.safetensors, tokenizer.json) as a GGUF file that libllama embeds
 * with: matrices f16; norms, biases, position and token type tables f32. E_CORRUPT / E_UNSUPPORTED say what does not fit. */
is_status tool_convert_minilm(const char *dir, const char *out);

/* The temporary name that OUT is written under; is_free. NULL = out of memory. */
char *tool_temp_name(const char *out);
/* Syncs temp and renames it to out; removes temp on failure. */
is_status tool_commit(const char *temp, const char *out);

#endif
