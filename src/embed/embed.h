/* embed.h - text to vector, and vectors as they are kept: int8 with one scale.
 *
 * An embedding is a view of the bank, keyed by the embedder's fingerprint: another embedder is another view. */
#ifndef IS_EMBED_EMBED_H
#define IS_EMBED_EMBED_H

#include <stdbool.h>

#include "base/hash.h"
#include "base/status.h"

/* Any thread may call any function. An embedder that runs here computes one thing at a time, in the order of turns.h; one that
 * computes elsewhere gets many requests at once. No lock is held while something is computed or waited for. */
typedef struct is_embedder is_embedder;

typedef struct is_embedder_plug {
    const char *plugin_dir;  /* as in is_plugin_load */
    const char *engine;      /* the plug-in of an embedder that runs here, "llama" or "mock"; NULL = llama */
    const char *spec;        /* GGUF path, or http(s) URL of an OpenAI-style /v1 endpoint ("URL#model" names the model) */
    const char *key;         /* API key of the endpoint; NULL = none */
    uint32_t n_threads;      /* 0 = physical cores */
    uint32_t wait_ms;        /* how long a question waits for the first byte of an endpoint's answer; 0 = IS_EMBED_WAIT_MS */
    bool patient;            /* opening it may take longer than that: a minute. For background work */
    const volatile int *cancel; /* polled while it opens and while a question waits for an endpoint:
                                   E_CANCELLED. Lives as long as the embedder; NULL = none */
} is_embedder_plug;

enum { IS_EMBED_WAIT_MS = 5000 };

is_status is_embedder_open(const char *plugin_dir, const char *engine, const char *spec, const char *key, uint32_t n_threads,
                           is_embedder **out);
is_status is_embedder_open_with(const is_embedder_plug *plug, is_embedder **out);
void is_embedder_close(is_embedder *e);
uint32_t is_embedder_dim(is_embedder *e);
const uint8_t *is_embedder_fingerprint(is_embedder *e);
bool is_embedder_is_remote(const is_embedder *e); /* it computes elsewhere */
/* How its cosines are to be read (calibrate.h), where the plug-in knows that for every model it runs; false: it does not. */
bool is_embedder_scale(const is_embedder *e, double *low, double *high);
/* A question's: it goes next after at most one background text in progress. out: [n][dim]. */
is_status is_embedder_embed(is_embedder *e, const char *const *texts, size_t n, float *out);
/* The same; E_CANCELLED, also while it waits for its turn or for an endpoint, when *cancel is set (NULL = never). */
is_status is_embedder_embed_until(is_embedder *e, const char *const *texts, size_t n, float *out, const volatile int *cancel);
/* The same, waiting for the first byte of an endpoint's answer no longer than wait_ms, if its own limit is longer. */
is_status is_embedder_embed_within(is_embedder *e, const char *const *texts, size_t n, float *out, uint32_t wait_ms);
/* The same with *n_tokens = the tokens that were embedded, in the embedder's count (0 where it is not known). cut[i] (may be NULL) = text i is
 * too long for it. Such a text is cut if may_cut, else E_CONTEXT (the first of them; cut[] of those behind it is not said). */
is_status is_embedder_embed_counted(is_embedder *e, const char *const *texts, size_t n, bool may_cut, float *out, uint64_t *n_tokens, int *cut);
/* For work that can wait. It never gives up for a question: while questions are about it goes on text by text between them, and
 * nothing that is done is lost. E_CANCELLED only when *cancel is set (NULL = never). */
is_status is_embedder_embed_background(is_embedder *e, const char *const *texts, size_t n, float *out, const volatile int *cancel);
/* Questions that wait for their turn or compute now, and background callers that wait; none for an embedder elsewhere. */
void is_embedder_line(is_embedder *e, uint32_t *n_questions, uint32_t *n_background);

/* v[dim] (unit length) -> q[dim] int8, scale such that v ~ q * scale. */
void is_quantize_i8(const float *v, uint32_t dim, int8_t *q, float *scale);

#endif
