/* engine.c - the host's side of an engine: turns for what must be done alone, one thread for the steps (batch.h), and memory that is
 * the host's own. */
#include <string.h>

#include "base/mem.h"
#include "engine/batch.h"

struct is_engine {
    const is_engine_vtable *v;
    void *impl;
    is_engine_info info;
    is_gate *gate, *own_gate;
    is_turns *turns;
    is_batch *batch;         /* NULL: the engine is a remote one, which batches by itself */
};

is_status is_engine_open(const char *plugin_dir, const char *name, const is_engine_opts *opts, is_engine **out)
{
    const is_plugin *plugin;
    is_engine *e;
    is_status st;

    *out = NULL;
    IS_TRY(is_plugin_load(plugin_dir, name, &plugin));
    if (!plugin->engine) return is_fail(INFERSCALE_E_UNSUPPORTED, "the plug-in '%s' has no engine; use 'llama' or 'mock'",
                                        name);
    e = is_calloc(1, sizeof *e);
    if (!e) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the engine");
    e->v = plugin->engine;
    st = opts->gate ? INFERSCALE_OK : is_gate_new(&e->own_gate);
    e->gate = opts->gate ? opts->gate : e->own_gate;
    if (st == INFERSCALE_OK) st = e->v->open(opts, &e->impl);
    if (st == INFERSCALE_OK) st = e->v->info(e->impl, &e->info);
    if (st == INFERSCALE_OK) st = is_turns_new(&e->turns);
    if (st == INFERSCALE_OK && !e->info.remote) st = is_batch_new(e->v, e->impl, e->turns, opts->n_parallel, &e->batch);
    if (st != INFERSCALE_OK) {
        is_engine_close(e);
        return st;
    }
    *out = e;
    return INFERSCALE_OK;
}

void is_engine_close(is_engine *e)
{
    if (!e) return;
    is_batch_free(e->batch);
    if (e->impl) e->v->close(e->impl);
    is_turns_free(e->turns);
    is_gate_free(e->own_gate);
    is_free(e);
}

/* What is fixed once the engine is open, its vocabulary too, is asked without waiting for a step. */
const is_engine_info *is_engine_describe(is_engine *e)
{
    return &e->info;
}

const is_geometry *is_engine_geometry(is_engine *e)
{
    return e->v->geometry(e->impl);
}

const is_chat_format *is_engine_chat(is_engine *e)
{
    return e->v->chat_format(e->impl);
}

is_status is_engine_tokenize(is_engine *e, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                             int32_t **out, uint32_t *n)
{
    int32_t *theirs = NULL;
    is_status st;

    *out = NULL;
    *n = 0;
    st = e->v->tokenize(e->impl, whose, text, len, parse_special, add_bos, &theirs, n);
    if (st == INFERSCALE_OK) {
        *out = is_malloc((*n + 1) * sizeof **out);
        if (*out && *n) memcpy(*out, theirs, *n * sizeof **out);
        e->v->tokens_free(e->impl, theirs);
        if (!*out) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for %u tokens", *n);
    }
    if (st != INFERSCALE_OK) *n = 0;
    return st;
}

int is_engine_piece(is_engine *e, int32_t token, char *buf, int cap)
{
    return e->v->token_piece(e->impl, token, buf, cap);
}

bool is_engine_is_eog(is_engine *e, int32_t token)
{
    return e->v->is_eog(e->impl, token);
}

/* ---- Captures in the background ------------------------------------------------------------------------------------------------ */

typedef struct behind { is_engine *e; is_gate_work work; } behind;

static void take_turn(void *ctx)
{
    is_turns_take(((behind *)ctx)->e->turns);
}

static void give_turn(void *ctx)
{
    is_turns_give(((behind *)ctx)->e->turns);
}

static void pause_capture(void *ctx)
{
    behind *b = ctx;

    is_gate_work_pause(b->e->gate, &b->work);
}

static is_status dropped(is_capture *c, size_t n)
{
    for (size_t i = 0; i < n; i++) c[i].n_computed = c[i].n_injected = 0;
    return is_fail(INFERSCALE_E_BUSY, "what this capture holds was needed; wait and encode again");
}

/* It holds the engine's turn but at its pauses. */
static is_status capture_behind_gate(is_engine *e, is_capture *c, size_t n)
{
    const is_capture asked = c[0];
    behind b = { .e = e, .work = { .shares = c[0].background == IS_CAPTURE_SOON, .tag = c[0].realm ? c[0].realm->tag : NULL,
                                   .epoch = c[0].realm ? c[0].realm->epoch : 0, .take = take_turn, .give = give_turn } };
    is_status st;

    b.work.ctx = &b;
    if (!is_gate_work_begin(e->gate, &b.work)) return dropped(c, n);
    c[0].cancel = &b.work.drop;
    c[0].pause = pause_capture;
    c[0].pause_ctx = &b;
    st = e->v->capture(e->impl, c, n);
    is_gate_work_end(e->gate, &b.work);
    c[0].cancel = asked.cancel;
    c[0].pause = asked.pause;
    c[0].pause_ctx = asked.pause_ctx;
    return st == INFERSCALE_E_CANCELLED ? dropped(c, n) : st;
}

/* Its servers share their own time out. One that may only use idle time is dropped for a question: it cannot be paused from here. */
static is_status capture_elsewhere(is_engine *e, is_capture *c, size_t n)
{
    const is_capture asked = c[0];
    is_gate_work w = { .always = c[0].background == IS_CAPTURE_SOON, .tag = c[0].realm ? c[0].realm->tag : NULL,
                       .epoch = c[0].realm ? c[0].realm->epoch : 0 };
    is_status st = INFERSCALE_E_CANCELLED;

    w.shares = w.always;
    if (!is_gate_work_begin(e->gate, &w)) return dropped(c, n);
    c[0].cancel = w.always ? &w.drop : is_gate_flag(e->gate);
    c[0].crowded = is_gate_flag(e->gate);
    st = e->v->capture(e->impl, c, n);
    is_gate_work_end(e->gate, &w);
    c[0].cancel = asked.cancel;
    c[0].crowded = asked.crowded;
    return st == INFERSCALE_E_CANCELLED ? dropped(c, n) : st;
}

is_status is_engine_capture_many(is_engine *e, is_capture *c, size_t n)
{
    is_status st;

    if (n == 0) return INFERSCALE_OK;
    if (c[0].background) return e->batch ? capture_behind_gate(e, c, n) : capture_elsewhere(e, c, n);
    if (!e->batch) return e->v->capture(e->impl, c, n);
    is_gate_hold(e->gate); /* one that is paused has begun to use what this one needs */
    is_turns_take(e->turns);
    st = e->v->capture(e->impl, c, n);
    is_turns_give(e->turns);
    is_gate_release(e->gate);
    return st;
}

is_status is_engine_capture(is_engine *e, is_capture *c)
{
    return is_engine_capture_many(e, c, 1);
}

void is_engine_question_begin(is_engine *e)
{
    is_gate_enter(e->gate);
}

void is_engine_question_end(is_engine *e)
{
    is_gate_leave(e->gate);
}

bool is_engine_question_wait(is_engine *e, int64_t timeout_ms)
{
    return is_gate_wait(e->gate, timeout_ms);
}

is_status is_engine_segment(is_engine *e, is_vault *v, const uint8_t name[IS_HASH_BYTES], is_segment **out)
{
    return e->info.remote ? is_vault_get_bare(v, name, e->info.fingerprint, out) : is_vault_get(v, name, e->info.fingerprint, out);
}

static void say_begun(const is_run_opts *opts)
{
    if (opts && opts->on_begun) opts->on_begun(opts->begun_ctx);
}

/* What begin or more gave the run is computed; a remote engine has done so already. */
static is_status compute(is_engine *e, is_run *run, const is_run_opts *opts)
{
    if (!e->batch) return INFERSCALE_OK;
    return is_batch_do(e->batch, run, true, opts ? opts->cancel : NULL, opts ? opts->stop : NULL);
}

/* Where how likely tokens are is seen from logits, these are wanted. */
static const is_run_opts *with_logits(const is_engine *e, const is_run_opts *opts, is_run_opts *own)
{
    if (!opts || !opts->want_likely || opts->want_logits || e->v->likely) return opts;
    *own = *opts;
    own->want_logits = true;
    return own;
}

is_status is_engine_start(is_engine *e, const is_plan *plan, const is_run_opts *opts, is_run **run, is_run_stats *stats)
{
    is_run *made = NULL;
    is_status st;

    is_run_opts own;

    *run = NULL;
    if (stats) memset(stats, 0, sizeof *stats);
    opts = with_logits(e, opts, &own);
    IS_TRY(e->v->begin(e->impl, plan, opts, &made));
    say_begun(opts);
    st = compute(e, made, opts);
    if (st != INFERSCALE_OK) {
        is_engine_finish(e, made);
        return st;
    }
    if (stats) e->v->stats(e->impl, made, stats);
    *run = made;
    return INFERSCALE_OK;
}

is_status is_engine_extend(is_engine *e, is_run *run, const is_plan *more, const is_run_opts *opts, is_run_stats *stats)
{
    is_run_opts own;

    if (stats) memset(stats, 0, sizeof *stats);
    opts = with_logits(e, opts, &own);
    IS_TRY(e->v->more(e->impl, run, more, opts));
    say_begun(opts);
    IS_TRY(compute(e, run, opts));
    if (stats) e->v->stats(e->impl, run, stats);
    return INFERSCALE_OK;
}

is_status is_engine_sample(is_engine *e, is_run *run, int32_t *token)
{
    return e->v->sample(e->impl, run, token);
}

is_status is_engine_feed(is_engine *e, is_run *run, int32_t token)
{
    IS_TRY(e->v->token(e->impl, run, token));
    return e->batch ? is_batch_do(e->batch, run, false, NULL, NULL) : INFERSCALE_OK;
}

const float *is_engine_logits(is_engine *e, is_run *run)
{
    return e->v->logits(e->impl, run);
}

is_status is_engine_likely(is_engine *e, is_run *run, int32_t token, uint32_t n, is_likely *out, uint32_t *n_out)
{
    const float *logits;

    *n_out = 0;
    if (e->v->likely) return e->v->likely(e->impl, run, token, n, out, n_out);
    logits = e->v->logits(e->impl, run);
    if (!logits || token < 0 || (uint32_t)token >= e->info.n_vocab)
        return is_fail(INFERSCALE_E_ENGINE, "the engine does not say how likely token %d was; ask without logprobs", token);
    is_likely_of(logits, e->info.n_vocab, token, n, out, n_out);
    return INFERSCALE_OK;
}

uint32_t is_engine_run_tokens(is_engine *e, is_run *run)
{
    return e->v->run_tokens(e->impl, run);
}

void is_engine_stats(is_engine *e, is_run *run, is_run_stats *out)
{
    memset(out, 0, sizeof *out);
    if (e && run) e->v->stats(e->impl, run, out);
}

is_status is_engine_revoke(is_engine *e, const is_realm *realm, uint32_t wait_ms, size_t *n_pending)
{
    *n_pending = 0;
    if (e) is_gate_drop_of(e->gate, realm->tag, realm->epoch, wait_ms);
    return e && e->v->revoke ? e->v->revoke(e->impl, realm, wait_ms, n_pending) : INFERSCALE_OK;
}

size_t is_engine_upstreams(is_engine *e, is_upstream *out, size_t most)
{
    return e && e->v->upstreams ? e->v->upstreams(e->impl, out, most) : 0;
}

static is_status no_workers(void)
{
    return is_fail(INFERSCALE_E_UNSUPPORTED, "this engine has no workers on other hosts");
}

is_status is_engine_worker_secret(is_engine *e, uint8_t out[IS_KEY_BYTES])
{
    memset(out, 0, IS_KEY_BYTES);
    return e && e->v->worker_secret ? e->v->worker_secret(e->impl, out) : no_workers();
}

is_status is_engine_worker_rows(is_engine *e, const is_rows_piece *p)
{
    return e && e->v->worker_rows ? e->v->worker_rows(e->impl, p) : no_workers();
}

void is_engine_rest(is_engine *e, is_run *run)
{
    if (!e || !run) return;
    if (e->batch) is_batch_rest(e->batch, run);
    else if (e->v->rest) e->v->rest(e->impl, run);
}

void is_engine_finish(is_engine *e, is_run *run)
{
    if (!e || !run) return;
    if (e->batch) is_batch_finish(e->batch, run);
    else e->v->finish(e->impl, run);
}
