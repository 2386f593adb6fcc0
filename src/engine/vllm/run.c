/* run.c - a run's requests: begun, read token by token, begun anew where the caller goes another way, called off.
 *
 * A request is a stream that runs ahead of its reader. sample gives the token that stands next in it, token takes it. If another one is
 * fed, the stream is cut and a new request goes on from there; its prefix is in the server's cache under the run's salt. */
#include "engine/vllm/run.h"

#include <stdio.h>
#include <string.h>

enum { READ_OUT_MS = 2000, NAP_MS = 10 };

static const is_run_opts no_opts;

/* ---- A request ------------------------------------------------------------------------------------------------------------------------ */

static void drop_next(is_run *r)
{
    if (r->has_next) vllm_token_drop(&r->next);
    r->has_next = false;
    r->next = (vllm_token){ .id = -1 };
}

/* Cuts what is under way. */
static void hang_up(is_run *r, vllm_outcome outcome)
{
    if (r->call) {
        vllm_line_give(r->line);
        vllm_upstream_give(r->e, r->up, outcome);
    }
    r->line = NULL;
    r->call = NULL;
}

static void reset(is_run *r)
{
    hang_up(r, VLLM_NEITHER);
    drop_next(r);
    vllm_stream_free(&r->stream);
    r->handed = r->gave_stop = false;
}

/* What a server's refusal means to our caller; st: as vllm_refused says. */
static is_status translate(const is_run *r, is_status st)
{
    char says[512];

    if (st != INFERSCALE_E_INVALID) return vllm_server_fault(st);
    snprintf(says, sizeof says, "%s", is_error());
    if (strstr(says, "logprobs") && strstr(says, "max allowed"))
        return is_fail(INFERSCALE_E_UNSUPPORTED, "%s; ask for fewer log-probabilities, or start it with a larger --max-logprobs", says);
    if (strstr(says, "maximum context length") || strstr(says, "max_model_len")) return is_fail(INFERSCALE_E_CONTEXT, "%s", says);
    if (r->how.grammar && strstr(says, "rammar")) return is_fail(INFERSCALE_E_PARSE, "%s; change the grammar", says);
    return is_fail(INFERSCALE_E_INVALID, "%s", says);
}

/* Takes what has come. *over: the server says no more. */
static is_status take(is_run *r, bool *retry, bool *over)
{
    vllm_end end = vllm_call_end(r->call);
    long code = vllm_call_code(r->call);
    is_status st = INFERSCALE_OK;

    *retry = true;
    *over = false;
    if (code == 200 && end != VLLM_TOO_LARGE) st = vllm_stream_feed(&r->stream, vllm_call_body(r->call));
    if (r->stream.refused) return translate(r, vllm_refused(vllm_call_url(r->call), r->stream.refused, r->stream.says, retry));
    if (st != INFERSCALE_OK) {
        *retry = st == INFERSCALE_E_ENGINE;
        return st;
    }
    *over = r->stream.done || end == VLLM_ANSWERED;
    if (end == VLLM_PENDING || vllm_stream_waits(&r->stream) || r->stream.finish) return INFERSCALE_OK;
    if (end != VLLM_ANSWERED) return vllm_call_fail(r->call);
    if (code != 200) return translate(r, vllm_call_refused(r->call, retry));
    return is_fail(INFERSCALE_E_ENGINE, "%s ended its answer in the middle; see vLLM's log, then try again", vllm_call_url(r->call));
}

/* Waits for the next token or the end of the stream. */
static is_status pump(is_run *r, bool *retry)
{
    for (;;) {
        bool over;
        is_status st = take(r, retry, &over);

        if (st != INFERSCALE_OK) return st;
        if (r->on_begun && vllm_call_code(r->call) == 200) { /* a long prefill is not waited for in silence */
            r->on_begun(r->begun_ctx);
            r->on_begun = NULL;
        }
        if (vllm_stream_next(&r->stream, &r->next)) {
            r->has_next = r->began = true;
            return INFERSCALE_OK;
        }
        if (r->stream.finish) return INFERSCALE_OK;
        if (vllm_flagged(r->flags)) {
            *retry = false;
            return is_fail(INFERSCALE_E_CANCELLED, "the answer was cancelled");
        }
        vllm_line_wait(r->line, VLLM_POLL_MS);
    }
}

static is_status dial(is_run *r, const char *body)
{
    char *named = NULL;
    is_status st = vllm_line_take(r->e->http, &r->line);

    if (st == INFERSCALE_OK) st = vllm_body_for(r->e, r->up, body, &named);
    if (st == INFERSCALE_OK)
        st = vllm_call_open(r->line, r->e->up[r->up].url, "/v1/completions", named, 2 * (size_t)VLLM_EVENT_MAX,
                            (vllm_patience){ vllm_limit.connect_ms, vllm_limit.silent_ms }, &r->call);
    is_free(named);
    if (st == INFERSCALE_OK) {
        vllm_stream_free(&r->stream);
        vllm_stream_init(&r->stream, r->e->model->n_vocab, r->want_logprobs);
        return st;
    }
    vllm_line_give(r->line);
    r->line = NULL;
    vllm_upstream_give(r->e, r->up, VLLM_NEITHER);
    return st;
}

/* The server that has this run's blocks first, then any other. Who asks while servers are being told of a change waits for the first that
 * has confirmed: most do within one step. What the run is made of may be what was changed. */
static is_status choose(is_run *r, uint64_t *tried)
{
    const uint8_t *tag = r->owned ? r->realm.tag : NULL;
    const double until = is_now_ms() + vllm_limit.confirm_ms;

    for (;;) {
        is_status st;

        if (r->has_up && !*tried && vllm_upstream_take_this(r->e, tag, tried, r->up)) return INFERSCALE_OK;
        st = vllm_upstream_take(r->e, tag, tried, r->flags, &r->up);
        if (st != INFERSCALE_E_BUSY || is_now_ms() >= until) return st;
        if (vllm_flagged(r->flags)) return is_fail(INFERSCALE_E_CANCELLED, "the answer was cancelled");
        vllm_nap(NAP_MS);
        IS_TRY(vllm_realm_check(r->e, r->owned ? &r->realm : NULL));
    }
}

/* A new request from where the run stands, until its first token is there: on one server after another, since nothing of it was handed
 * out yet. */
static is_status start(is_run *r)
{
    char why[1024] = "";
    uint64_t tried = 0;
    char *body = NULL;
    is_status st = INFERSCALE_OK;

    reset(r);
    IS_TRY(vllm_realm_check(r->e, r->owned ? &r->realm : NULL));
    IS_TRY(vllm_request_make(r, &body));
    r->at = r->n;
    for (uint32_t n = 0;; n++) {
        bool retry = false;
        is_status chosen = choose(r, &tried);

        if (chosen != INFERSCALE_OK) {
            st = !n || chosen == INFERSCALE_E_CANCELLED ? chosen : is_fail(st, "%s", why); /* the sentence belongs to the status */
            break;
        }
        if (n) VLLM_COUNT(r->e, retries, 1);
        r->has_up = true;
        st = dial(r, body);
        if (st == INFERSCALE_OK) st = pump(r, &retry);
        if (st == INFERSCALE_OK && r->stream.finish == VLLM_ABORTED) {
            st = is_fail(INFERSCALE_E_ENGINE, "%s gave the request up; see vLLM's log, then try again", r->e->up[r->up].url);
            retry = true;
        }
        if (st == INFERSCALE_OK) {
            VLLM_COUNT(r->e, completions, 1);
            break;
        }
        snprintf(why, sizeof why, "%s", is_error());
        hang_up(r, vllm_outcome_of(st, retry));
        if (!retry) break;
        vllm_upstream_retried(r->e, r->up);
    }
    is_free(body);
    if (st != INFERSCALE_OK) reset(r);
    return st;
}

/* ---- The next token ------------------------------------------------------------------------------------------------------------------- */

/* Nothing but the end of the stream can follow what was handed out. */
static bool is_told(const is_run *r)
{
    if (r->stream.finish || (r->has_next && vllm_model_is_eos(r->e->model, r->next.id))) return true;
    return r->n_predict && r->n - r->fed_from + r->has_next >= r->n_predict;
}

/* A stream that came to its end is read out: its last event says how much of the prompt was cached. */
static void read_out(is_run *r)
{
    double until = is_now_ms() + READ_OUT_MS;
    bool retry, over = r->call == NULL;

    while (!over && is_told(r) && is_now_ms() < until) {
        if (take(r, &retry, &over) != INFERSCALE_OK) break;
        if (!over) vllm_line_wait(r->line, VLLM_POLL_MS);
    }
    if (r->at != r->fed_from || !r->stream.has_cached) return;
    r->has_cached = true;
    r->n_cached = r->stream.n_cached;
}

/* The end of the answer as a token, where the server ended it without giving one. */
static is_status end_token(is_run *r)
{
    int32_t token = r->stream.stop_token;

    if (token < 0 && r->e->model->n_eos) token = r->e->model->eos[0];
    if (token < 0) return is_fail(INFERSCALE_E_ENGINE, "vLLM ended the answer, and the model has no token that does; see its generation_config");
    r->next = (vllm_token){ .id = token };
    r->has_next = r->gave_stop = true;
    return INFERSCALE_OK;
}

/* The next token stands in r->next. */
static is_status need(is_run *r)
{
    bool retry, ended;
    is_status st;

    if (r->has_next) return INFERSCALE_OK;
    if (!r->call && !r->stream.finish) return start(r);
    st = r->call && !r->stream.finish ? pump(r, &retry) : INFERSCALE_OK;
    if (st != INFERSCALE_OK) {
        hang_up(r, st == INFERSCALE_E_ENGINE ? VLLM_FAILED : VLLM_NEITHER);
        reset(r);
        return st;
    }
    if (r->has_next || vllm_stream_next(&r->stream, &r->next)) {
        r->has_next = true;
        return INFERSCALE_OK;
    }
    ended = r->n > r->at && vllm_is_eog(r->e, r->tokens[r->n - 1]);
    if (r->stream.finish == VLLM_STOP && !ended && !r->gave_stop) return end_token(r);
    if (r->stream.finish == VLLM_ABORTED) {
        reset(r);
        return is_fail(INFERSCALE_E_ENGINE, "vLLM gave the answer up in the middle; see its log, then try again");
    }
    read_out(r);
    VLLM_COUNT(r->e, continued, 1); /* as many as were asked for, or more wanted behind the end */
    if (r->n_ahead < 256) r->n_ahead *= 2;
    return start(r);
}

is_status vllm_sample(void *impl, is_run *r, int32_t *token)
{
    (void)impl;
    IS_TRY(need(r));
    *token = r->next.id;
    r->handed = true;
    return INFERSCALE_OK;
}

const float *vllm_logits(void *impl, is_run *r)
{
    (void)impl;
    return r->want_logprobs == VLLM_LOGPROBS_ALL && need(r) == INFERSCALE_OK ? r->next.logprobs : NULL;
}

is_status vllm_likely(void *impl, is_run *r, int32_t token, uint32_t n, is_likely *out, uint32_t *n_out)
{
    const vllm *e = impl;
    const vllm_token *next = &r->next;

    *n_out = 0;
    if (token < 0 || (uint32_t)token >= e->model->n_vocab)
        return is_fail(INFERSCALE_E_INVALID, "token %d is not in the vocabulary of %u", token, e->model->n_vocab);
    IS_TRY(need(r));
    for (uint32_t i = 0; i < next->n_likely && !*n_out; i++)
        if (next->likely[i].id == token) out[(*n_out)++] = next->likely[i];
    if (!*n_out) return is_fail(INFERSCALE_E_ENGINE, "vLLM did not say how likely token %d was; ask without logprobs", token);
    for (uint32_t i = 0; i < next->n_likely && i < n; i++) out[(*n_out)++] = next->likely[i];
    return INFERSCALE_OK;
}

static is_status go_another_way(is_run *r)
{
    is_status st;

    read_out(r);
    VLLM_COUNT(r->e, continued, 1);
    r->n_ahead = 1;
    r->led = true;
    st = start(r);
    if (st != INFERSCALE_OK) r->n--;
    return st;
}

is_status vllm_token_fed(void *impl, is_run *r, int32_t token)
{
    vllm *e = impl;
    bool as_told;

    if (token < 0 || (uint32_t)token >= e->model->n_vocab)
        return is_fail(INFERSCALE_E_INVALID, "token %d is not in the vocabulary of %u", token, e->model->n_vocab);
    if (r->n + 1 > e->model->n_ctx) return is_fail(INFERSCALE_E_CONTEXT, "the context of %u tokens is full", e->model->n_ctx);
    IS_TRY(vllm_prompt_room(r, (uint64_t)r->n + 1));
    if (!r->has_next && r->call) IS_TRY(need(r));
    as_told = !r->has_next || r->next.id == token; /* nobody was told another: what comes next is computed when it is asked for */
    r->tokens[r->n++] = token;
    if (!as_told) return go_another_way(r);
    drop_next(r);
    VLLM_COUNT(e, tokens_out, 1);
    return INFERSCALE_OK;
}

uint32_t vllm_run_tokens(void *impl, is_run *r)
{
    (void)impl;
    return r->n;
}

/* ---- Begin, more, rest ------------------------------------------------------------------------------------------------------------------ */

static void take_opts(is_run *r, const is_run_opts *o)
{
    r->flags = (vllm_flags){ o->cancel, o->stop };
    r->on_begun = o->on_begun;
    r->begun_ctx = o->begun_ctx;
    if (!o->realm) return;
    r->owned = true;
    r->realm = *o->realm;
}

/* The prompt stands: it is sent. */
static is_status go(is_run *r)
{
    IS_TRY(vllm_prompt_salt(r));
    IS_TRY(vllm_tail_bridge(r));
    vllm_stats_plan(r);
    r->again = !r->apart && r->stats.tokens_injected && vllm_seen(r->e, r->salt, r->n_before);
    r->fed_from = r->n;
    r->settled = r->began = r->has_cached = false;
    r->n_cached = 0;
    return start(r);
}

is_status vllm_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run)
{
    is_run *r = is_calloc(1, sizeof *r);
    is_status st;

    *run = NULL;
    opts = opts ? opts : &no_opts;
    if (!r) return vllm_no_memory();
    r->e = impl;
    r->next.id = r->stream.stop_token = -1;
    r->apart = opts->no_prefix_cache;
    take_opts(r, opts);
    st = vllm_realm_check(r->e, opts->realm);
    if (st == INFERSCALE_OK) st = vllm_sampling_take(r, opts);
    if (st == INFERSCALE_OK) st = vllm_prompt_add(r, plan, true);
    if (st == INFERSCALE_OK) st = go(r);
    if (st != INFERSCALE_OK) {
        vllm_finish_run(impl, r);
        return st;
    }
    *run = r;
    return INFERSCALE_OK;
}

is_status vllm_more(void *impl, is_run *r, const is_plan *more, const is_run_opts *opts)
{
    const uint32_t n = r->n, n_parts = r->n_parts, fed_from = r->fed_from;
    const is_run_stats stats = r->stats;
    is_status st = INFERSCALE_OK;

    if (opts && opts->realm && r->owned && memcmp(opts->realm->tag, r->realm.tag, IS_HASH_BYTES) != 0)
        return is_fail(INFERSCALE_E_INVALID, "a conversation goes on with another's memory; begin a new one");
    IS_TRY(vllm_realm_check(r->e, opts ? opts->realm : NULL));
    if (opts) st = vllm_sampling_take(r, opts);
    if (st == INFERSCALE_OK) st = vllm_prompt_add(r, more, false);
    if (st == INFERSCALE_OK) {
        take_opts(r, opts ? opts : &no_opts);
        st = go(r);
    }
    if (st == INFERSCALE_OK) return st;
    vllm_tail_drop(r);
    r->n = n;
    r->n_parts = n_parts;
    r->fed_from = fed_from;
    r->stats = stats;
    return st;
}

/* The answer is over. A stream that has not come to its end is cut. */
void vllm_rest(void *impl, is_run *r)
{
    (void)impl;
    read_out(r);
    hang_up(r, r->stream.finish ? VLLM_WORKED : VLLM_NEITHER);
    vllm_stats_settle(r);
    vllm_tail_drop(r);
    drop_next(r);
    r->flags = (vllm_flags){ NULL, NULL }; /* the caller's, and gone soon */
}

void vllm_finish_run(void *impl, is_run *r)
{
    (void)impl;
    if (!r) return;
    reset(r);
    vllm_tail_drop(r);
    vllm_sampling_free(r);
    is_free(r->tokens);
    is_free(r->parts);
    is_free(r);
}

uint32_t vllm_left(void *impl, is_run *r)
{
    (void)impl;
    (void)r;
    return 0;
}

void vllm_undo(void *impl, is_run *r) /* what fails has left the run as it was */
{
    (void)impl;
    (void)r;
}
