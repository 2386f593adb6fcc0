/* fuzz_vllm_description.c - what a connector says of its model: any JSON is a model within its bounds, or one failure with a sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/vllm/describe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void check_model(const vllm_model *m)
{
    is_buf text = IS_BUF_INIT;

    check(m->n_vocab >= 1 && m->n_ctx >= 2 && m->n_layers >= 1 && m->block_size >= 1, "sizes");
    check(m->bos >= -1 && m->bos < (int32_t)m->n_vocab && (m->bos >= 0 || !m->adds_bos), "bos");
    check(!m->can_inject || (m->geometry && is_geometry_check(m->geometry) == INFERSCALE_OK), "what can inject has a geometry");
    check(m->can_inject || *m->why_not, "what cannot says why");
    for (uint32_t i = 0; i < m->n_eos; i++) check(vllm_model_is_eos(m, m->eos[i]) && (uint32_t)m->eos[i] < m->n_vocab, "eos");
    for (uint32_t i = 0; i < m->n_special; i++) {
        check(m->special[i].len > 0 && (uint32_t)m->special[i].id < m->n_vocab, "special tokens");
        check(i == 0 || m->special[i - 1].len >= m->special[i].len, "longest first");
    }
    for (uint32_t i = 0; i < m->n_vocab && i < 1000; i++) {
        int32_t id = (int32_t)i;

        check(m->piece_at[i] <= m->piece_at[i + 1], "pieces ascend");
        vllm_model_text(m, &id, 1, &text);
    }
    is_buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *d = json_loadb((const char *)data, size, JSON_DECODE_ANY, NULL);
    vllm_model *m = NULL;

    if (!d) return 0;
    if (vllm_model_read(d, &m) == INFERSCALE_OK) check_model(m);
    else check(m == NULL && *is_error(), "a failure has a sentence");
    vllm_model_free(m);
    json_decref(d);
    return 0;
}
