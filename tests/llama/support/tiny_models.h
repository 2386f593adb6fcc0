/* tiny_models.h - weight-free models: small GGUF files with random weights, one for each thing an engine must get right about
 * keys and values. They are opened by path like any model, so the ordinary engine is what is tested.
 *
 * Weights are drawn so that attention matters: scores spread over several units, values and outputs of the residual's own size;
 * a wrong key moves the logits by far more than rounding does. The tokenizer has bytes and letters only. */
#ifndef TESTS_LLAMA_TINY_MODELS_H
#define TESTS_LLAMA_TINY_MODELS_H

#include <stdbool.h>
#include <stdint.h>

enum { TINY_VOCAB = 320, TINY_CTX = 1024 };

typedef struct tiny_model {
    const char *name;        /* also the file's name, without .gguf */
    const char *arch;        /* libllama's */
    bool can_inject;
    const char *why_not;     /* a word that the engine's reason must contain; NULL if it can inject */
    uint32_t window;         /* sliding window of some layers; 0 = none */
    uint32_t n_layer, n_head, n_head_kv, head_dim, rot_dim, n_embd, n_ff;
} tiny_model;

extern const tiny_model tiny_models[];
extern const unsigned tiny_model_count;

/* The model of that name; NULL if there is none. */
const tiny_model *tiny_model_find(const char *name);

/* Writes the model's file. The same seed gives the same bytes. False if it cannot be written. */
bool tiny_model_write(const tiny_model *m, uint64_t seed, const char *path);

/* Writes it to a temporary folder of this process, removed at exit, unless it is there. The path, static until the next call;
 * NULL on failure. */
const char *tiny_model_path(const tiny_model *m, uint64_t seed);

/* Rewrites any model with 16-bit weights as NAME.gguf in the same folder, unless it is there. Its path goes to out[cap]. */
bool tiny_model_wide(const char *from, const char *name, char *out, unsigned cap);

#endif
