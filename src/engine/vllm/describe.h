/* describe.h - what the connector says of a vLLM server's model. Everything in it comes from the network and is checked. */
#ifndef IS_ENGINE_VLLM_DESCRIBE_H
#define IS_ENGINE_VLLM_DESCRIBE_H

#include <jansson.h>

#include "base/hash.h"
#include "kv/codec.h"
#include "kv/geometry.h"

/* A token that the tokenizer finds in text by its literal. */
typedef struct vllm_special { int32_t id; char *text; size_t len; } vllm_special;

enum { VLLM_SERVED_MAX = 1024 };

typedef struct vllm_model {
    char connector[48], vllm[48], name[256], arch[64], dtype[16], why_not[256];
    char served[VLLM_SERVED_MAX];   /* what requests call it: a path on the server perhaps, which is nobody's business */
    int32_t max_logprobs;           /* of a token; -1 = of the whole vocabulary, or not known: vLLM will say */
    uint8_t fingerprint[IS_HASH_BYTES];
    is_codec codec;
    is_geometry *geometry;          /* NULL if can_inject is false and none was given */
    bool can_inject, adds_bos, can_evict, can_abort;
    uint32_t block_size;            /* a hit of the prefix cache is a multiple of it; without one it is larger than any prompt */
    uint32_t n_layers, n_ctx, n_vocab, tensor_parallel, pipeline_parallel;
    uint64_t n_params;
    int32_t bos;                    /* -1 = none */
    int32_t *eos;                   /* ids that end an answer */
    uint32_t n_eos;
    vllm_special *special;          /* longest text first */
    uint32_t n_special;
    uint8_t *pieces;                /* the bytes of token i are pieces[piece_at[i] .. piece_at[i + 1]) */
    uint32_t *piece_at;             /* [n_vocab + 1] */
} vllm_model;

/* E_ENGINE names what is missing or wrong; E_NOMEM. */
is_status vllm_model_read(const json_t *description, vllm_model **out);
void vllm_model_free(vllm_model *m);    /* NULL is allowed */

bool vllm_model_is_eos(const vllm_model *m, int32_t token);
const vllm_special *vllm_model_special(const vllm_model *m, int32_t token); /* NULL: it is none */
/* Appends what the tokens say, special ones by their literal. */
void vllm_model_text(const vllm_model *m, const int32_t *tokens, size_t n, is_buf *out);

#endif
