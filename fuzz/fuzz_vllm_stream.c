/* fuzz_vllm_stream.c - what a server says to the vLLM plug-in: any bytes, cut anywhere, are tokens of the vocabulary or one failure with a
 * sentence; the same bytes in one piece give the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/vllm/stream.h"

enum { N_VOCAB = 40, MAX_TOKENS = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct heard { int32_t ids[MAX_TOKENS]; uint32_t n; is_status st; vllm_finish finish; bool done, has_cached; uint32_t n_cached; } heard;

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

/* step 0 = all at once. */
static void hear(const uint8_t *p, size_t n, size_t step, bool logprobs, heard *out)
{
    is_buf in = IS_BUF_INIT;
    vllm_stream s;
    vllm_token t;

    memset(out, 0, sizeof *out);
    vllm_stream_init(&s, N_VOCAB, logprobs);
    for (size_t at = 0; at < n && out->st == INFERSCALE_OK;) {
        size_t len = step && step < n - at ? step : n - at;

        is_buf_add(&in, p + at, len);
        at += len;
        out->st = vllm_stream_feed(&s, &in);
        while (vllm_stream_next(&s, &t)) {
            check(t.id >= 0 && t.id < N_VOCAB, "a token is in the vocabulary");
            check(logprobs == (t.logprobs != NULL), "log-probabilities where they were asked for");
            is_free(t.logprobs);
            if (out->n < MAX_TOKENS) out->ids[out->n++] = t.id;
        }
    }
    check(out->st == INFERSCALE_OK || *is_error(), "a failure has a sentence");
    out->finish = s.finish;
    out->done = s.done;
    out->has_cached = s.has_cached;
    out->n_cached = s.n_cached;
    vllm_stream_free(&s);
    is_buf_free(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static heard whole, cut;
    size_t step = size ? data[0] % 13 + 1 : 1;

    for (int logprobs = 0; logprobs < 2; logprobs++) {
        hear(data, size, 0, logprobs, &whole);
        hear(data, size, step, logprobs, &cut);
        check(whole.st == cut.st && whole.n == cut.n && whole.finish == cut.finish && whole.done == cut.done, "however the bytes are cut");
        check(memcmp(whole.ids, cut.ids, whole.n * sizeof *whole.ids) == 0, "the same tokens");
        check(whole.has_cached == cut.has_cached && whole.n_cached == cut.n_cached, "the same usage");
    }
    return 0;
}
