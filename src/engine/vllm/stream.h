/* stream.h - the answer of POST /v1/completions as it comes: server-sent events to token ids, log-probabilities and usage. Bytes may
 * come cut anywhere and may be anything. */
#ifndef IS_ENGINE_VLLM_STREAM_H
#define IS_ENGINE_VLLM_STREAM_H

#include "base/buf.h"
#include "base/status.h"
#include "engine/engine.h"

enum { VLLM_EVENT_MAX = 48 << 20 };     /* bytes: log-probabilities of a vocabulary of a million fit */

typedef enum vllm_finish { VLLM_RUNNING = 0, VLLM_STOP, VLLM_LENGTH, VLLM_ABORTED } vllm_finish;

/* How many log-probabilities are wanted of each place: those of the n likeliest tokens beside the one that was chosen, or: */
enum { VLLM_LOGPROBS_NONE = -2, VLLM_LOGPROBS_ALL = -1 };

/* What it owns belongs to whoever took it: vllm_token_drop. */
typedef struct vllm_token {
    int32_t id;
    float *logprobs;                    /* [n_vocab], if all are wanted */
    is_likely *likely;                  /* [n_likely], the likeliest first, the chosen one among them; if some are wanted */
    uint32_t n_likely;
} vllm_token;
void vllm_token_drop(vllm_token *t);

typedef struct vllm_stream {
    uint32_t n_vocab;
    int want_logprobs;
    /* Read by the caller: */
    vllm_finish finish;
    int32_t stop_token;                 /* what ended it, if the server names a token; else -1 */
    bool done;                          /* [DONE] came: there is nothing more */
    bool has_usage, has_cached;
    uint32_t n_prompt, n_cached;
    long refused;                       /* after a failure: the server's own error, as an HTTP status; 0 = it was none */
    char says[240];                     /* and its sentence */
    /* Its own: */
    vllm_token *queue;
    uint32_t first, n_queue, cap;
    is_buf event;
    size_t scanned;
} vllm_stream;

void vllm_stream_init(vllm_stream *s, uint32_t n_vocab, int want_logprobs);
void vllm_stream_free(vllm_stream *s);

/* Takes the whole lines from `in`. E_ENGINE: the server's own error, or what is no answer of vLLM's; E_NOMEM. */
is_status vllm_stream_feed(vllm_stream *s, is_buf *in);
bool vllm_stream_next(vllm_stream *s, vllm_token *out);  /* false: none is there yet */
bool vllm_stream_waits(const vllm_stream *s);            /* a token waits to be taken */

#endif
