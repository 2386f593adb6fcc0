/* decode.c - tokens to libllama, checked first, in batches; sequences. */
#include "engine/llama/internal.h"

#include <stdio.h>

static bool is_set(const volatile int *flag)
{
    return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

bool is_llama_abort(void *engine)
{
    is_llama *e = engine;

    if (is_set(e->load_off)) return true;
    if (e->n_lanes == 0) return is_set(e->cancel);
    for (size_t i = 0; i < e->n_lanes; i++)
        if (!is_set(e->lanes[i].run->cancel) && !is_set(e->lanes[i].run->stop)) return false;
    return true;
}

is_status is_tokens_check(const is_llama *e, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= e->n_vocab)
            return is_fail(INFERSCALE_E_INVALID, "token %d at index %u is outside the model's vocabulary of %u; tokenise with "
                           "this model",
                           tokens[i], i, e->n_vocab);
    return INFERSCALE_OK;
}

/* The status of a non-zero llama_decode. */
static is_status decode_failed(int32_t rc)
{
    if (rc == 2) return is_fail(INFERSCALE_E_CANCELLED, "cancelled while the engine was computing");
    if (rc == 1)
        return is_fail(INFERSCALE_E_CONTEXT, "no free cells in the engine's context; end other conversations or raise n_ctx");
    if (rc == SHIM_THROWN)
        return is_fail(INFERSCALE_E_ENGINE, "libllama failed while computing (%s); run 'inferscale doctor'", is_shim_error());
    return is_fail(INFERSCALE_E_ENGINE, "llama_decode failed with %d (%s); run 'inferscale doctor'", rc, is_llama_last_error());
}

static int32_t decode(is_llama *e, struct llama_context *ctx, struct llama_batch b)
{
    int32_t rc;

    is_llama_computes(is_llama_abort, e);
    rc = is_shim_decode(ctx, b);
    is_llama_computes(NULL, NULL);
    return rc;
}

is_status is_llama_decode(is_llama *e, struct llama_context *ctx, int seq, const int32_t *tokens, uint32_t n, uint32_t pos,
                          uint32_t batch, bool want_last)
{
    uint32_t most = llama_n_batch(ctx) < e->n_batch ? llama_n_batch(ctx) : e->n_batch;

    IS_TRY(is_tokens_check(e, tokens, n));
    if (batch == 0 || batch > most) batch = most;
    e->b_id = seq;
    is_llama_clear_error();
    is_threads_fit(ctx, e->fit_threads);
    for (uint32_t done = 0; done < n;) {
        uint32_t m = n - done < batch ? n - done : batch;
        struct llama_batch b = { .n_tokens = (int32_t)m, .token = (llama_token *)(tokens + done), .pos = e->b_pos,
                                 .n_seq_id = e->b_nseq, .seq_id = e->b_seq, .logits = e->b_out };
        int32_t rc;

        if (is_llama_abort(e)) return decode_failed(2);
        for (uint32_t i = 0; i < m; i++) {
            e->b_pos[i] = (int32_t)(pos + done + i);
            e->b_out[i] = 0;
        }
        e->b_out[m - 1] = want_last && done + m == n;
        rc = decode(e, ctx, b);
        if (rc != 0) return decode_failed(rc);
        done += m;
    }
    return INFERSCALE_OK;
}

is_status is_llama_decode_mixed(is_llama *e, struct llama_context *ctx, const int32_t *tokens, const int32_t *pos,
                                llama_seq_id *seq, int8_t *out, uint32_t n)
{
    const bool capture = ctx == e->capture;
    llama_seq_id **ids = capture ? e->c_seq : e->b_seq;
    int8_t *none = capture ? e->c_out : e->b_out;
    struct llama_batch b = { .n_tokens = (int32_t)n, .token = (llama_token *)tokens, .pos = (llama_pos *)pos,
                             .n_seq_id = e->b_nseq, .seq_id = ids, .logits = out ? out : none };
    int32_t rc;

    if (is_llama_abort(e)) return decode_failed(2);
    is_llama_clear_error();
    is_threads_fit(ctx, e->fit_threads);
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = &seq[i];
        if (!out) none[i] = 0;
    }
    rc = decode(e, ctx, b);
    for (uint32_t i = 0; i < n; i++) ids[i] = &e->b_id;
    return rc == 0 ? INFERSCALE_OK : decode_failed(rc);
}

is_status is_llama_first_token(is_llama *e, struct llama_context *ctx)
{
    const int32_t threads = llama_n_threads(ctx), threads_batch = llama_n_threads_batch(ctx), token = 0;
    const uint32_t fit = e->fit_threads;
    is_status st;

    e->fit_threads = 0;
    llama_set_n_threads(ctx, 1, 1);
    st = is_llama_decode(e, ctx, 0, &token, 1, 0, 0, true);
    llama_set_n_threads(ctx, threads, threads_batch);
    e->fit_threads = fit;
    if (st != INFERSCALE_OK) {
        char why[512];

        snprintf(why, sizeof why, "%s", *is_shim_error() ? is_shim_error() : is_llama_last_error());
        return is_fail(INFERSCALE_E_MODEL, "%s cannot compute a token (%s); fetch or convert the model again", e->path,
                       *why ? why : "libllama does not say why");
    }
    llama_memory_clear(llama_get_memory(ctx), true);
    return INFERSCALE_OK;
}

int is_seq_take(is_llama *e)
{
    for (int i = 0; i < (int)e->n_seqs - !e->streams; i++)
        if (!e->seq_used[i]) {
            e->seq_used[i] = true;
            return i;
        }
    return -1;
}

void is_seq_drop(is_llama *e, int seq)
{
    if (seq < 0) return;
    llama_memory_seq_rm(llama_get_memory(e->serve), seq, -1, -1);
    e->seq_used[seq] = false;
}
