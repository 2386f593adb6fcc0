/* capture.c - the rows of a span as the engine computed them: F32, read at the nodes that store them into the cache.
 *
 * Rows come in the order of the tokens of a decode; with at most one micro-batch a decode, row r of a node is token at + r. */
#include "engine/llama/internal.h"

#include <string.h>

/* Copies the span's rows among the decode's tokens. false = the node is not as probed. */
static bool take_rows(is_tap *tap, const struct ggml_tensor *t, uint32_t layer, bool is_v)
{
    const struct ggml_tensor *rows = t->src[0];
    is_capture *c = tap->capture;
    int plane = layer < tap->n_layers ? tap->plane_of[2 * layer + is_v] : -1;
    uint32_t end = tap->at + tap->n, from = tap->at < c->n_context ? c->n_context : tap->at, width;
    size_t stride;

    if (plane < 0 || rows->type != GGML_TYPE_F32) return false;
    width = is_plane_width(&tap->engine->geometry->planes[plane]);
    if (rows->ne[0] == 1 && width != 1) { /* transposed V: one long column, token by token, perhaps padded */
        if (ggml_nelements(rows) % tap->n || ggml_nelements(rows) / tap->n < width) return false;
        stride = (size_t)ggml_nelements(rows) / tap->n * sizeof(float);
    } else {
        if (rows->ne[0] != width || rows->ne[1] != tap->n) return false;
        stride = rows->nb[1];
    }
    for (uint32_t i = from; i < end; i++) {
        float *dst = c->rows[plane] + (size_t)(i - c->n_context) * width;
        size_t off = (size_t)(i - tap->at) * stride;

        if (ggml_backend_buffer_is_host(rows->view_src ? rows->view_src->buffer : rows->buffer))
            memcpy(dst, (const char *)rows->data + off, width * sizeof(float));
        else
            ggml_backend_tensor_get(rows, dst, off, width * sizeof(float));
    }
    tap->n_planes_seen++;
    return true;
}

bool is_tap_eval(struct ggml_tensor *t, bool ask, void *user)
{
    is_tap *tap = user;
    uint32_t layer;
    bool is_v;

    if (tap->mode == 0) return !ask;
    if (tap->mode == 1) return ask ? is_tap_probe(tap, t) : true;
    if (!is_cache_node(t, &layer, &is_v)) return !ask;
    if (ask) return tap->at + tap->n > tap->capture->n_context; /* only decodes that touch the span */
    if (!take_rows(tap, t, layer, is_v)) tap->failed = true;
    return !tap->failed; /* false stops the computation */
}

/* How many tokens of context + span the capture sequence already holds at the same positions; cuts the rest off. */
static uint32_t keep_common(is_llama *e, const is_capture *c)
{
    llama_memory_t mem = llama_get_memory(e->capture);
    uint32_t n = 0, window = (uint32_t)llama_model_n_swa(e->model);
    llama_pos low;

    if (e->held_pos0 == c->pos0 && !e->no_partial_memory)
        while (n < e->n_held && n < c->n_context && e->held[n] == c->context[n]) n++;
    if (n > 0 && n < e->n_held) {
        low = llama_memory_seq_pos_min(mem, 0);
        /* Window layers may have dropped rows that the next token needs. */
        if (low > (llama_pos)c->pos0 && (window == 0 || low > (llama_pos)(c->pos0 + n) - (llama_pos)window)) n = 0;
        else if (!llama_memory_seq_rm(mem, 0, (llama_pos)(c->pos0 + n), -1)) n = 0;
    }
    if (n == 0) llama_memory_seq_rm(mem, 0, -1, -1);
    e->n_held = n;
    e->held_pos0 = c->pos0;
    return n;
}

static is_status run_capture(is_llama *e, is_capture *c, uint32_t from)
{
    uint32_t total = c->n_context + c->n_span;
    is_tap *tap = e->tap;

    for (uint32_t at = from; at < total; at += tap->n) {
        tap->at = at;
        tap->n = total - at < UBATCH ? total - at : UBATCH;
        tap->n_planes_seen = 0;
        IS_TRY(is_llama_decode(e, e->capture, 0, e->held + at, tap->n, c->pos0 + at, 0, false));
        e->n_held = at + tap->n;
        c->n_computed += tap->n;
        if (tap->failed || (at + tap->n > c->n_context && tap->n_planes_seen != e->geometry->n_planes))
            return is_fail(INFERSCALE_E_ENGINE, "the engine's graph gave rows of %u planes, not %u; run 'inferscale doctor'",
                           tap->n_planes_seen, e->geometry->n_planes);
    }
    return INFERSCALE_OK;
}

static is_status capture_one(is_llama *e, is_capture *c)
{
    uint32_t from;
    is_status st;

    c->n_computed = 0;
    if (c->n_stored) return is_fail(INFERSCALE_E_UNSUPPORTED, "stored context is not supported yet; compute it");
    if (!e->geometry) return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be captured: %s", e->info.why_not);
    if (c->n_span == 0 || !c->span || !c->rows || (c->n_context && !c->context))
        return is_fail(INFERSCALE_E_INVALID, "nothing to capture: the span is empty");
    if ((uint64_t)c->pos0 + c->n_context + c->n_span > e->n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "context and span end at position %llu, beyond the engine's context of %u tokens; "
                       "use a smaller window or raise n_ctx",
                       (unsigned long long)((uint64_t)c->pos0 + c->n_context + c->n_span), e->n_ctx);
    IS_TRY(is_tokens_check(e, c->context, c->n_context));
    IS_TRY(is_tokens_check(e, c->span, c->n_span));
    from = keep_common(e, c);
    if (c->n_context > from) memcpy(e->held + from, c->context + from, (c->n_context - from) * sizeof *e->held);
    memcpy(e->held + c->n_context, c->span, c->n_span * sizeof *e->held);
    e->tap->mode = 2;
    e->tap->capture = c;
    e->tap->failed = false;
    e->cancel = c->cancel;
    st = run_capture(e, c, from);
    e->cancel = NULL;
    e->tap->mode = 0;
    e->tap->capture = NULL;
    if (st != INFERSCALE_OK) { /* what the sequence holds is not known exactly any more */
        llama_memory_seq_rm(llama_get_memory(e->capture), 0, -1, -1);
        e->n_held = 0;
    }
    return st;
}

is_status is_llama_capture(void *impl, is_capture *c, size_t n)
{
    for (size_t i = 0; i < n; i++) IS_TRY(capture_one(impl, &c[i]));
    return INFERSCALE_OK;
}
