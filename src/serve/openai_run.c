/* openai_run.c - runs a request: n answers of each prompt, side by side, whole or as they come.
 *
 * All answers of a conversation use the same memory: the first one searches, and as soon as it says which facts it took
 * (on_plan) the others start with just these. The answers of one request share one stream, a chunk at a time under the run's
 * lock; the stream begins when the first prompt has been accepted: what is refused before is a plain error, and a client that
 * waits for a long prompt gets pings. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"
#include "serve/keys.h"
#include "serve/openai.h"

/* ---- A stream's chunks; under run->lock ---------------------------------------------------------------------------------- */

static bool send(is_oa_run *run, json_t *chunk)
{
    if (!run->broken && !is_stream_event(run->r, chunk)) run->broken = true;
    else if (run->broken) json_decref(chunk);
    return !run->broken;
}

static void begin(is_oa_run *run)
{
    if (run->begun) return;
    run->begun = true;
    run->broken = !is_stream_begin(run->r, 200, "text/event-stream");
}

/* What every answer begins with; so_far: the plan, or NULL. */
static void open_choice(is_oa_choice *c, const inferscale_answer *so_far)
{
    is_oa_run *run = c->run;
    const is_oa_ask *a = run->ask;
    json_t *chunk;

    if (c->opened || run->broken) return;
    c->opened = true;
    if (a->form == IS_OA_TEXT) {
        if (a->echo) send(run, is_oa_piece(c, a->prompts[c->prompt], strlen(a->prompts[c->prompt]), NULL));
        return;
    }
    chunk = is_oa_delta(c, a->call == IS_OA_CALL_NONE ? json_pack("{s:s, s:s}", "role", "assistant", "content", "")
                                                      : json_pack("{s:s, s:n}", "role", "assistant", "content"), NULL);
    if (chunk && so_far && c->index == 0) json_object_set_new(chunk, "memory", is_oa_memory_of(run, so_far, false));
    send(run, chunk);
}

static json_t *call_delta(const is_oa_choice *c, const char *name, const char *arguments, size_t len)
{
    if (name)
        return json_pack("{s:[{s:i, s:s, s:s, s:{s:s, s:s}}]}", "tool_calls", "index", 0, "id", c->call_id, "type", "function",
                         "function", "name", name, "arguments", "");
    return json_pack("{s:[{s:i, s:{s:s%}}]}", "tool_calls", "index", 0, "function", "arguments", arguments, len);
}

/* A call as far as it has come: its name when that is whole, then its arguments but for a brace at the end, which may be the
 * call's own. */
static void send_call(is_oa_choice *c)
{
    const char *text = (char *)c->text.data, *name;
    size_t at, n = c->text.len;

    if (!is_buf_ok(&c->text) || !is_oa_split_call(c->run->ask, text, n, &name, &at)) return;
    if (!c->named) {
        c->named = true;
        c->sent = at;
        send(c->run, is_oa_delta(c, call_delta(c, name, NULL, 0), NULL));
    }
    if (text[n - 1] == '}') n--;
    if (n > c->sent) send(c->run, is_oa_delta(c, call_delta(c, NULL, text + c->sent, n - c->sent), NULL));
    if (n > c->sent) c->sent = n;
}

/* What was held back, and how it ended. */
static void close_choice(is_oa_choice *c)
{
    is_oa_run *run = c->run;
    const inferscale_answer *ans = c->answer;
    const char *finish = is_oa_finish(c);
    json_t *chunk;

    open_choice(c, ans);
    if (c->named && strcmp(ans->finish, "stop") != 0 && c->text.len > c->sent)
        send(run, is_oa_delta(c, call_delta(c, NULL, (char *)c->text.data + c->sent, c->text.len - c->sent), NULL));
    /* A call that was cut before its name was whole is no call. */
    if (run->ask->call != IS_OA_CALL_NONE && !c->named && c->text.len)
        send(run, is_oa_piece(c, (char *)c->text.data, c->text.len, NULL));
    chunk = is_oa_piece(c, "", 0, finish);
    if (chunk && run->ask->form == IS_OA_CHAT && c->index == 0)
        json_object_set_new(chunk, "memory", is_oa_memory_of(run, ans, true));
    send(run, chunk);
}

/* ---- What the library calls ---------------------------------------------------------------------------------------------- */

static int on_text(void *ctx, const char *text, size_t len)
{
    is_oa_choice *c = ctx;
    is_oa_run *run = c->run;
    bool broken;

    pthread_mutex_lock(&run->lock);
    open_choice(c, NULL);
    if (run->ask->call == IS_OA_CALL_NONE) {
        send(run, is_oa_piece(c, text, len, NULL));
    } else {
        is_buf_add(&c->text, text, len);
        send_call(c);
    }
    broken = run->broken;
    pthread_mutex_unlock(&run->lock);
    return broken;
}

static int on_token(void *ctx, const inferscale_token *token)
{
    is_oa_choice *c = ctx;

    if (!c->tokens) c->tokens = json_array();
    json_array_append_new(c->tokens, is_oa_token(token));
    return 0;
}

static void start_others(is_oa_choice *first, const inferscale_answer *plan);

static void on_accepted(void *ctx)
{
    is_oa_run *run = ((is_oa_choice *)ctx)->run;

    pthread_mutex_lock(&run->lock);
    begin(run);
    pthread_mutex_unlock(&run->lock);
}

static void on_plan(void *ctx, const inferscale_answer *so_far)
{
    is_oa_choice *c = ctx;
    is_oa_run *run = c->run;

    if (run->ask->stream) {
        pthread_mutex_lock(&run->lock);
        open_choice(c, so_far);
        pthread_mutex_unlock(&run->lock);
    }
    if (c->index % run->ask->n == 0) start_others(c, so_far);
}

/* ---- One answer ---------------------------------------------------------------------------------------------------------- */

/* Where the request sets no bound a quarter of the context is kept for the answer, less if the prompt leaves less. */
static is_status complete(is_oa_choice *c)
{
    is_oa_run *run = c->run;
    const is_oa_ask *a = run->ask;
    uint32_t most = a->max_tokens ? a->max_tokens : run->n_ctx / 4;

    for (;; most /= 2) {
        c->o.ask.max_tokens = most ? most : 1;
        is_status st = inferscale_complete(run->s->is, run->scope, a->messages, a->n_messages, &c->o, &c->answer);
        if (st != INFERSCALE_E_CONTEXT || a->max_tokens || most < 32) return st;
    }
}

/* The first answer's facts; where it found none this one is to find none either, whatever has become findable since. */
static void use_same_memory(is_oa_choice *c)
{
    c->o.ids = c->run->ids;
    c->o.n_ids = c->run->n_ids;
    c->nothing = c->run->ask->recall;
    c->nothing.has_threshold = 1;
    c->nothing.threshold = DBL_MAX;
    if (c->o.n_ids == 0) c->o.ask.recall = &c->nothing;
}

static void run_choice(is_oa_choice *c)
{
    is_oa_run *run = c->run;
    const is_oa_ask *a = run->ask;

    c->o = a->o;
    c->o.ask.seed += c->index;
    c->o.ask.cancel = is_request_cancel(run->r);
    /* Without an owner there is no partition to keep callers apart: nobody is to learn by time what another key's client has said. */
    if (!run->scope && is_request_key(run->r)) c->o.cache_salt = is_request_key(run->r)->name;
    c->o.prompt = a->form == IS_OA_TEXT ? a->prompts[c->prompt] : NULL;
    c->o.on_plan = on_plan;
    c->o.plan_ctx = c;
    if (run->searched && c->index) use_same_memory(c);
    if (a->stream) {
        c->o.ask.on_text = on_text;
        c->o.ask.text_ctx = c;
        c->o.on_token = a->o.logprobs ? on_token : NULL;
        c->o.token_ctx = c;
        c->o.on_accepted = on_accepted;
        c->o.accepted_ctx = c;
    }
    c->st = complete(c);
    if (c->st == INFERSCALE_E_NOTFOUND && c->o.n_ids != a->o.n_ids) { /* forgotten since the first answer took it */
        c->o.ids = a->o.ids;
        c->o.n_ids = a->o.n_ids;
        c->st = complete(c);
    }
    if (c->st != INFERSCALE_OK) {
        snprintf(c->sentence, sizeof c->sentence, "%s", inferscale_error());
        return;
    }
    if (run->s->metrics) is_metrics_answer(run->s->metrics, c->answer);
    if (!a->stream) return;
    pthread_mutex_lock(&run->lock);
    close_choice(c);
    pthread_mutex_unlock(&run->lock);
}

/* ---- All of them --------------------------------------------------------------------------------------------------------- */

static void *run_thread(void *ctx)
{
    run_choice(ctx);
    is_stack_wipe(); /* the C library keeps the stack for the next thread */
    return NULL;
}

/* The facts of the first answer, best first: what the others use. */
static void take_ids(is_oa_run *run, const inferscale_answer *plan)
{
    double *scores = is_calloc(plan->n_facts + 1, sizeof *scores);

    run->searched = true;
    run->ids = is_calloc(plan->n_facts + 1, sizeof *run->ids);
    for (size_t i = 0; scores && run->ids && i < plan->n_facts; i++) {
        size_t at = run->n_ids++;

        for (; at > 0 && scores[at - 1] <= plan->facts[i].score; at--) { /* equal: the later is the better one */
            scores[at] = scores[at - 1];
            run->ids[at] = run->ids[at - 1];
        }
        scores[at] = plan->facts[i].score;
        run->ids[at] = plan->facts[i].id;
    }
    is_free(scores);
}

/* Once for each prompt. A thread that cannot be had is no loss but of time: run_prompt does its work. */
static void start_others(is_oa_choice *first, const inferscale_answer *plan)
{
    is_oa_run *run = first->run;

    if (first->started || run->ask->n == 1) return;
    first->started = true;
    if (plan && run->scope && run->ask->o.n_ids == 0) take_ids(run, plan);
    for (is_oa_choice *c = first + 1; c < first + run->ask->n; c++)
        c->started = pthread_create(&c->thread, NULL, run_thread, c) == 0;
}

/* False: an answer failed, *failed. */
static bool run_prompt(is_oa_run *run, size_t prompt, is_oa_choice **failed)
{
    is_oa_choice *first = &run->choices[prompt * run->ask->n];

    run_choice(first);
    for (is_oa_choice *c = first + 1; c < first + run->ask->n; c++) {
        if (c->started) pthread_join(c->thread, NULL);
        else if (first->st == INFERSCALE_OK) run_choice(c);
    }
    for (is_oa_choice *c = first; c < first + run->ask->n; c++) {
        if (c->st == INFERSCALE_OK && c->answer) continue;
        *failed = c;
        return false;
    }
    return true;
}

/* ---- Replies ------------------------------------------------------------------------------------------------------------- */

/* Before the stream began: a plain error. After it: an event, and no [DONE], which is the sign of a whole answer. A client that
 * hung up gets neither. */
static void reply_failed(is_oa_run *run, const is_oa_choice *c)
{
    const char *param = c->st == INFERSCALE_E_NOTFOUND ? "memory.ids"
                        : c->st == INFERSCALE_E_CONTEXT ? (run->ask->form == IS_OA_CHAT ? "messages" : "prompt") : NULL;

    if (!run->begun) {
        is_fail(c->st, "%s", c->sentence); /* it may be another thread's */
        is_reply_failed(run->r, c->st, param);
        return;
    }
    if (c->st != INFERSCALE_E_CANCELLED && send(run, is_oa_error_of(run->s, c->st, c->sentence))) is_stream_end(run->r);
    else is_stream_end_cancelled(run->r);
}

static void end_stream(is_oa_run *run)
{
    static const char done[] = "data: [DONE]\n\n";

    if (run->ask->include_usage && !run->broken) {
        json_t *chunk = is_oa_chunk(run, json_array());

        if (chunk) json_object_set_new(chunk, "usage", is_oa_usage(run));
        send(run, chunk);
    }
    if (!run->broken && is_stream_write(run->r, done, sizeof done - 1)) is_stream_end(run->r);
    else is_stream_end_cancelled(run->r);
}

static void note(is_oa_run *run)
{
    const inferscale_answer *a = run->choices[0].answer;
    char s[24];

    snprintf(s, sizeof s, "%s", a->mode == INFERSCALE_MODE_KV ? "kv" : a->mode == INFERSCALE_MODE_TEXT ? "text" : "none");
    is_request_note(run->r, "mode", s);
    snprintf(s, sizeof s, "%zu", a->n_facts);
    is_request_note(run->r, "facts", s);
    snprintf(s, sizeof s, "%u", a->tokens_prompt);
    is_request_note(run->r, "prompt_tokens", s);
    snprintf(s, sizeof s, "%u", a->tokens_injected + a->tokens_resident);
    is_request_note(run->r, "cached_tokens", s);
    snprintf(s, sizeof s, "%u", a->tokens_answer);
    is_request_note(run->r, "answer_tokens", s);
    is_request_note(run->r, "finish", is_oa_ended(&run->choices[0], __atomic_load_n(is_request_cancel(run->r), __ATOMIC_ACQUIRE) != 0));
}

static is_status describe(is_oa_run *run)
{
    inferscale_model_info info;
    unsigned char bytes[12];
    char hex[2 * sizeof bytes + 1];

    IS_TRY(inferscale_model(run->s->is, &info));
    run->n_ctx = info.n_ctx;
    is_random(bytes, sizeof bytes);
    is_hex(bytes, sizeof bytes, hex);
    snprintf(run->id, sizeof run->id, "%s%s", run->ask->form == IS_OA_CHAT ? "chatcmpl-" : "cmpl-", hex);
    snprintf(run->fingerprint, sizeof run->fingerprint, "fp_%.10s", info.fingerprint);
    snprintf(run->model, sizeof run->model, "%s", run->s->model);
    run->created = (json_int_t)time(NULL);
    run->choices = is_calloc(run->n_choices, sizeof *run->choices);
    return run->choices ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the answers; try again later");
}

static void run_all(is_oa_run *run)
{
    is_oa_choice *failed = NULL;

    for (size_t i = 0; i < run->n_choices; i++) {
        is_oa_choice *c = &run->choices[i];

        c->run = run;
        c->index = i;
        c->prompt = i / run->ask->n;
        is_oa_call_id(c->call_id);
    }
    for (size_t p = 0; p < run->n_choices / run->ask->n && !failed; p++) run_prompt(run, p, &failed);
    if (failed) {
        reply_failed(run, failed);
        return;
    }
    note(run);
    if (run->ask->stream) end_stream(run);
    else is_reply_json(run->r, 200, is_oa_whole(run));
}

void is_oa_answer(is_server *s, is_request *r, is_oa_ask *a, const inferscale_scope *scope)
{
    is_oa_run run = {
        .s = s, .r = r, .ask = a, .scope = scope, .n_choices = a->n * (a->form == IS_OA_TEXT ? a->n_prompts : 1)
    };

    pthread_mutex_init(&run.lock, NULL);
    const is_status st = describe(&run);
    if (st == INFERSCALE_OK) run_all(&run);
    else is_reply_failed(r, st, NULL);
    for (size_t i = 0; run.choices && i < run.n_choices; i++) {
        inferscale_answer_free(run.choices[i].answer);
        json_decref(run.choices[i].tokens);
        is_buf_free(&run.choices[i].text);
    }
    is_free(run.choices);
    is_free(run.ids);
    pthread_mutex_destroy(&run.lock);
}
