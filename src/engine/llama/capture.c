/* capture.c - the rows of spans as the engine computed them: F32, read at the nodes that store them into the cache.
 *
 * Sequence 0 of the capture context holds tokens that were computed here, in this order, and nothing else: what the next capture
 * has in common with them is not run again. A span alone goes on in it. Several spans, and spans with stored context, go on from
 * the prefix that they share in sequences of their own, which end with the call: so injected rows can never be taken for
 * computed ones, nor one span's context for another's.
 *
 * A decode has at most one micro-batch, whose rows come in the order of its tokens (the cache is unified): row r of a node is
 * the r-th token's, whichever sequence that is of. */
#include "engine/llama/internal.h"

#include <string.h>

enum { SEQ_HELD = 0, CELLS_STEP = 256 /* libllama attends over used cells, rounded up to so many */ };

/* One span on its way through the engine. */
typedef struct is_track {
    is_capture *c;
    uint32_t at, end;        /* the next token of context + span, and where to stop */
    int seq;
} is_track;

/* ---- Rows out of the graph ------------------------------------------------------------------------------------------------ */

/* Copies the rows of the decode's tokens to where they are wanted. false = the node is not as probed. */
static bool take_rows(is_tap *tap, const struct ggml_tensor *t, uint32_t layer, bool is_v)
{
    const struct ggml_tensor *rows = t->src[0];
    int plane = layer < tap->n_layers ? tap->plane_of[2 * layer + is_v] : -1;
    uint32_t width;
    size_t stride;
    bool host;

    if (plane < 0 || rows->type != GGML_TYPE_F32) return false;
    width = is_plane_width(&tap->engine->geometry->planes[plane]);
    if (rows->ne[0] == 1 && width != 1) { /* transposed V: one long column, token by token, perhaps padded */
        if (ggml_nelements(rows) % tap->n || ggml_nelements(rows) / tap->n < width) return false;
        stride = (size_t)ggml_nelements(rows) / tap->n * sizeof(float);
    } else {
        if (rows->ne[0] != width || rows->ne[1] != tap->n) return false;
        stride = rows->nb[1];
    }
    host = ggml_backend_buffer_is_host(rows->view_src ? rows->view_src->buffer : rows->buffer);
    for (uint32_t i = 0; i < tap->n; i++) {
        const is_slot *s = &tap->slot[i];

        if (!s->c) continue;
        if (host) memcpy(s->c->rows[plane] + (size_t)s->row * width, (const char *)rows->data + i * stride, width * sizeof(float));
        else ggml_backend_tensor_get(rows, s->c->rows[plane] + (size_t)s->row * width, i * stride, width * sizeof(float));
    }
    tap->n_planes_seen++;
    return true;
}

/* ---- Pauses ---------------------------------------------------------------------------------------------------------------- */

/* A graph is computed in pieces, up to each node that is_tap_eval asks for; between two of them no thread of the pool is at work, so a
 * step of the serving context may be. (In ggml's abort callback, which comes after every node, the pool's other threads stand in a
 * barrier and burn their cores.) Pieces of about PIECE_MS cost no more than the pieces that end at the rows. */
enum { PIECE_MS = 3 };

/* The multiplications that a node stands for: nearly all of the time goes there. */
static double work_of(const struct ggml_tensor *t)
{
    if (t->op != GGML_OP_MUL_MAT && t->op != GGML_OP_MUL_MAT_ID && t->op != GGML_OP_FLASH_ATTN_EXT) return 0;
    return (double)ggml_nelements(t) * (double)(t->op == GGML_OP_FLASH_ATTN_EXT ? t->src[1]->ne[1] : t->src[0]->ne[0]);
}

static bool is_pause_due(is_tap *tap, const struct ggml_tensor *t)
{
    if (!tap->engine->pause) return false;
    tap->work += work_of(t);
    return tap->work > 0 && tap->work >= PIECE_MS * tap->work_per_ms;
}

static void pause_here(is_tap *tap)
{
    is_llama *e = tap->engine;
    const double ms = is_now_ms() - tap->paused_ms, of_late = tap->work_per_ms > 0 ? 0.75 : 0;

    if (!e->pause) return;
    if (ms > 0 && tap->work > 0) tap->work_per_ms = of_late * tap->work_per_ms + (1 - of_late) * tap->work / ms;
    tap->work = 0;
    e->pause(e->pause_ctx); /* once it was dropped, libllama's abort callback sees that behind the next node */
    tap->paused_ms = is_now_ms();
}

static bool tap_capture(is_tap *tap, struct ggml_tensor *t, bool ask)
{
    uint32_t layer;
    bool is_v, rows = tap->wanted && is_cache_node(t, &layer, &is_v); /* only decodes that touch a span have rows */

    if (ask) return is_pause_due(tap, t) || rows;
    if (rows && !take_rows(tap, t, layer, is_v)) tap->failed = true;
    else pause_here(tap);
    return !tap->failed; /* false stops the computation */
}

bool is_tap_eval(struct ggml_tensor *t, bool ask, void *user)
{
    is_tap *tap = user;

    if (tap->mode == 0) return !ask;
    if (tap->mode == 1) return ask ? is_tap_probe(tap, t) : true;
    if (tap->mode == 3) return ask ? is_cells_find(tap, t) : true;
    return tap_capture(tap, t, ask);
}

/* ---- Tokens into the engine ----------------------------------------------------------------------------------------------- */

/* The batch of one decode. */
typedef struct is_mixed {
    uint32_t n;
    int32_t token[UBATCH], pos[UBATCH];
    llama_seq_id seq[UBATCH];
} is_mixed;

static void add_token(is_llama *e, is_mixed *b, const is_track *l)
{
    is_capture *c = l->c;
    bool in_span = l->at >= c->n_context;
    uint32_t i = b->n++;

    b->token[i] = in_span ? c->span[l->at - c->n_context] : c->context[l->at];
    b->pos[i] = (int32_t)(c->pos0 + l->at);
    b->seq[i] = l->seq;
    e->tap->slot[i] = (is_slot){ in_span ? c : NULL, in_span ? l->at - c->n_context : 0 };
    if (in_span) e->tap->wanted = true;
    if (l->seq == SEQ_HELD) e->held[l->at] = b->token[i];
}

/* One decode of what is in the batch. */
static is_status decode(is_llama *e, is_mixed *b)
{
    is_tap *tap = e->tap;

    tap->n = b->n;
    tap->n_planes_seen = 0;
    tap->work = 0;
    tap->paused_ms = is_now_ms();
    IS_TRY(is_llama_decode_mixed(e, e->capture, b->token, b->pos, b->seq, NULL, b->n));
    if (tap->failed || (tap->wanted && tap->n_planes_seen != e->geometry->n_planes))
        return is_fail(INFERSCALE_E_ENGINE, "the engine's graph gave rows of %u planes, not %u; run 'inferscale doctor'",
                       tap->n_planes_seen, e->geometry->n_planes);
    return INFERSCALE_OK;
}

/* Runs every lane to its end, as many tokens in a decode as fit, whosever they are. */
static is_status run_lanes(is_llama *e, is_track *lane, size_t n)
{
    uint32_t most = UBATCH < e->n_batch ? UBATCH : e->n_batch;
    is_mixed b;

    for (size_t i = 0; i < n;) {
        size_t first = i;

        b.n = 0;
        e->tap->wanted = false;
        while (i < n && b.n < most) {
            for (; lane[i].at < lane[i].end && b.n < most; lane[i].at++) add_token(e, &b, &lane[i]);
            if (lane[i].at == lane[i].end) i++;
        }
        if (b.n == 0) break;
        IS_TRY(decode(e, &b));
        for (size_t k = first; k < n && k <= i; k++)
            if (lane[k].seq == SEQ_HELD) e->n_held = lane[k].at;
    }
    return INFERSCALE_OK;
}

/* ---- What is held --------------------------------------------------------------------------------------------------------- */

static void forget_held(is_llama *e)
{
    llama_memory_clear(llama_get_memory(e->capture), false);
    e->n_held = 0;
}

/* How many of the first n tokens of c's context sequence 0 already holds at the same positions; cuts the rest off. */
static uint32_t keep_common(is_llama *e, const is_capture *c, uint32_t most)
{
    llama_memory_t mem = llama_get_memory(e->capture);
    uint32_t n = 0, window = (uint32_t)llama_model_n_swa(e->model);
    llama_pos low;

    if (e->held_pos0 == c->pos0 && !e->no_partial_memory)
        while (n < e->n_held && n < most && e->held[n] == c->context[n]) n++;
    if (n > 0 && n < e->n_held) {
        low = llama_memory_seq_pos_min(mem, SEQ_HELD);
        /* Window layers may have dropped rows that the next token needs. */
        if (low > (llama_pos)c->pos0 && (window == 0 || low > (llama_pos)(c->pos0 + n) - (llama_pos)window)) n = 0;
        else if (!llama_memory_seq_rm(mem, SEQ_HELD, (llama_pos)(c->pos0 + n), -1)) n = 0;
    }
    if (n == 0) llama_memory_seq_rm(mem, SEQ_HELD, -1, -1);
    e->n_held = n;
    e->held_pos0 = c->pos0;
    return n;
}

/* After a failure: the sequences of the call go; sequence 0 is cut to what was computed in full, or dropped if it is not surely
 * that. What was computed before a question came in is there when the capture is tried again. */
static void tidy_up(is_llama *e, is_status why)
{
    llama_memory_t mem = llama_get_memory(e->capture);
    llama_pos want = e->n_held ? (llama_pos)(e->held_pos0 + e->n_held) - 1 : -1;

    if (why != INFERSCALE_E_CANCELLED && why != INFERSCALE_E_CONTEXT) {
        forget_held(e);
        return;
    }
    for (int s = SEQ_HELD + 1; s < SEQ_MAX; s++) llama_memory_seq_rm(mem, s, -1, -1);
    if (!llama_memory_seq_rm(mem, SEQ_HELD, (llama_pos)(e->held_pos0 + e->n_held), -1) ||
        llama_memory_seq_pos_max(mem, SEQ_HELD) != want)
        forget_held(e);
}

/* ---- Spans ---------------------------------------------------------------------------------------------------------------- */

/* Tokens of the context that are computed: all but the stored end. */
static uint32_t n_own(const is_capture *c)
{
    uint32_t n = c->n_context;

    for (uint32_t i = 0; i < c->n_stored; i++) n -= is_segment_info(c->stored[i])->n_tokens;
    return n;
}

static uint32_t common_prefix(const is_capture *c, size_t n)
{
    uint32_t len = n_own(&c[0]);

    for (size_t i = 1; i < n; i++) {
        uint32_t k = 0, own = n_own(&c[i]), most = own < len ? own : len;

        while (k < most && c[i].context[k] == c[0].context[k]) k++;
        len = k;
    }
    return len;
}

/* The stored end of a span's context into its sequence. */
static is_status inject_stored(is_llama *e, const is_track *l)
{
    is_capture *c = l->c;
    is_part *parts = is_calloc(c->n_stored, sizeof *parts);
    uint32_t at = n_own(c);
    is_run_stats stats = { 0 };
    is_status st;

    if (!parts) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u stored segments of a context", c->n_stored);
    for (uint32_t i = 0; i < c->n_stored; i++) {
        parts[i] = (is_part){ .role = IS_ROLE_FACT, .source = IS_SRC_STORED, .tokens = c->context + at, .pos = c->pos0 + at,
                              .n_tokens = is_segment_info(c->stored[i])->n_tokens, .segment = c->stored[i] };
        at += parts[i].n_tokens;
    }
    st = is_inject(e, e->capture, l->seq, parts, c->n_stored, c->pos0 + n_own(c), NULL, &stats);
    is_free(parts);
    c->n_injected = st == INFERSCALE_OK ? stats.tokens_injected : 0;
    return st;
}

/* Some spans together, from the shared prefix in sequence 0: what of their contexts must be computed before stored rows, those
 * rows, the rest. */
static is_status run_wave(is_llama *e, is_capture *c, size_t n, uint32_t shared)
{
    llama_memory_t mem = llama_get_memory(e->capture);
    is_track lane[SPANS_MAX];

    for (size_t i = 0; i < n; i++) {
        lane[i] = (is_track){ .c = &c[i], .at = shared, .end = c[i].n_stored ? n_own(&c[i]) : shared, .seq = (int)i + 1 };
        if (shared) llama_memory_seq_cp(mem, SEQ_HELD, lane[i].seq, -1, -1);
    }
    IS_TRY(run_lanes(e, lane, n));
    for (size_t i = 0; i < n; i++) {
        if (c[i].n_stored) IS_TRY(inject_stored(e, &lane[i]));
        c[i].n_computed += lane[i].at - shared;
        if (c[i].n_stored) lane[i].at = c[i].n_context;
        lane[i].end = c[i].n_context + c[i].n_span;
        c[i].n_computed += lane[i].end - lane[i].at;
    }
    IS_TRY(run_lanes(e, lane, n));
    for (size_t i = 0; i < n; i++) llama_memory_seq_rm(mem, lane[i].seq, -1, -1);
    return INFERSCALE_OK;
}

/* How many of the next spans go together: as many as one decode takes, and as the first would attend over alone. In a unified cache
 * every span pays for the cells of all, so beyond the next step more spans cost more than they share. Measured, SmolLM2 Q4_0, spans
 * of 28 tokens after a header of 16, one thread, without flash attention: 8 in a decode (256 cells) 1.20 times as fast as one by one,
 * 16 (512 cells) 0.97 times; with flash attention 16 are 1.18 times as fast. */
static size_t wave(const is_llama *e, const is_capture *c, size_t n, uint32_t shared)
{
    uint32_t room = e->info.n_capture_spans > 1 ? SPANS_MAX : 1;
    uint64_t cells = shared, run = 0, most = 0;
    size_t k = 0;

    for (; k < n && k < room; k++) {
        uint32_t own = n_own(&c[k]) + c[k].n_span - shared;

        cells += c[k].n_context + c[k].n_span - shared;
        run += own;
        if (k == 0) most = (cells + CELLS_STEP - 1) / CELLS_STEP * CELLS_STEP;
        else if (run > UBATCH || cells > most || cells > e->n_ctx) break;
    }
    return k;
}

static is_status run_capture(is_llama *e, is_capture *c, size_t n, bool apart)
{
    bool alone = n == 1 && c->n_stored == 0;
    uint32_t shared = common_prefix(c, n), from = keep_common(e, c, shared);
    is_track head = { .c = c, .at = from, .end = alone ? c->n_context + c->n_span : shared, .seq = SEQ_HELD };

    c->n_computed += head.end - from;
    IS_TRY(run_lanes(e, &head, 1));
    for (size_t i = 0, k; i < n && !alone; i += k) {
        k = apart ? 1 : wave(e, c + i, n - i, shared);
        IS_TRY(run_wave(e, c + i, k, shared));
    }
    return INFERSCALE_OK;
}

static is_status check_stored(is_llama *e, const is_capture *c)
{
    uint64_t sum = 0;
    uint32_t at;

    for (uint32_t i = 0; i < c->n_stored; i++) {
        if (!c->stored || !c->stored[i])
            return is_fail(INFERSCALE_E_INVALID, "stored part %u of a context has no segment; compute it", i);
        sum += is_segment_info(c->stored[i])->n_tokens;
    }
    if (sum > c->n_context)
        return is_fail(INFERSCALE_E_INVALID, "the stored part of a context has %llu tokens, the whole context %u; give the tokens "
                       "of both", (unsigned long long)sum, c->n_context);
    at = c->n_context - (uint32_t)sum;
    for (uint32_t i = 0; i < c->n_stored; i++) {
        is_part p = { .tokens = c->context + at, .n_tokens = is_segment_info(c->stored[i])->n_tokens, .segment = c->stored[i] };

        IS_TRY(is_part_check(e, &p));
        at += p.n_tokens;
    }
    return INFERSCALE_OK;
}

static is_status check(is_llama *e, const is_capture *c, uint32_t pos0)
{
    if (c->n_span == 0 || !c->span || !c->rows || (c->n_context && !c->context))
        return is_fail(INFERSCALE_E_INVALID, "nothing to capture: the span is empty");
    if (c->pos0 != pos0)
        return is_fail(INFERSCALE_E_INVALID, "spans captured together begin at one position, not at %u and %u; capture them apart",
                       pos0, c->pos0);
    if ((uint64_t)c->pos0 + c->n_context + c->n_span > e->n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "context and span end at position %llu, beyond the engine's context of %u tokens; "
                       "use a smaller window or raise n_ctx",
                       (unsigned long long)((uint64_t)c->pos0 + c->n_context + c->n_span), e->n_ctx);
    IS_TRY(is_tokens_check(e, c->context, c->n_context));
    IS_TRY(is_tokens_check(e, c->span, c->n_span));
    return check_stored(e, c);
}

is_status is_llama_capture(void *impl, is_capture *c, size_t n)
{
    is_llama *e = impl;
    is_status st;

    for (size_t i = 0; i < n; i++) c[i].n_computed = c[i].n_injected = 0;
    if (!e->geometry) return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be captured: %s", e->info.why_not);
    for (size_t i = 0; i < n; i++) IS_TRY(check(e, &c[i], c[0].pos0));
    e->tap->mode = 2;
    e->tap->failed = false;
    e->cancel = c->cancel;
    e->pause = c->pause;
    e->pause_ctx = c->pause_ctx;
    st = run_capture(e, c, n, false);
    if (st == INFERSCALE_E_CONTEXT) { /* everything fits by count: cells lie in pieces. Once more, from an empty cache */
        is_log(IS_LOG_INFO, "the capture cache has no room in one piece (%s); it is emptied", is_error());
        forget_held(e);
        st = run_capture(e, c, n, true);
    }
    e->cancel = NULL;
    e->pause = NULL;
    e->tap->mode = 0;
    if (st != INFERSCALE_OK) {
        tidy_up(e, st);
        for (size_t i = 0; i < n; i++) c[i].n_computed = c[i].n_injected = 0;
    }
    return st;
}
