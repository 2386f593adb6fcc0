/* openai_reply.c - answers and their pieces as OpenAI's JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "serve/openai.h"

static bool is_chat(const is_oa_choice *c) { return c->run->ask->form == IS_OA_CHAT; }

/* ---- Tokens -------------------------------------------------------------------------------------------------------------- */

/* A token's bytes as text; what is no whole character is spelt out as OpenAI does. */
static json_t *token_text(const inferscale_token *t)
{
    is_buf b = IS_BUF_INIT;
    json_t *s;

    if (is_utf8_valid(t->bytes, t->len, NULL)) return json_stringn(t->bytes, t->len);
    is_buf_str(&b, "bytes:");
    for (size_t i = 0; i < t->len; i++) is_buf_fmt(&b, "\\x%02x", (unsigned char)t->bytes[i]);
    s = is_buf_ok(&b) ? json_stringn((char *)b.data, b.len) : NULL;
    is_buf_free(&b);
    return s;
}

/* A probability of 0 has no logarithm in JSON. */
static json_t *logprob(double x) { return json_real(isfinite(x) ? x : -9999.0); }

static json_t *one_token(const inferscale_token *t)
{
    json_t *bytes = json_array();

    for (size_t i = 0; bytes && i < t->len; i++) json_array_append_new(bytes, json_integer((unsigned char)t->bytes[i]));
    return json_pack("{s:o, s:o, s:o}", "token", token_text(t), "logprob", logprob(t->logprob), "bytes", bytes);
}

json_t *is_oa_token(const inferscale_token *t)
{
    json_t *o = one_token(t), *top = json_array();

    for (size_t i = 0; top && i < t->n_top; i++) json_array_append_new(top, one_token(&t->top[i]));
    if (json_object_set_new(o, "top_logprobs", top) == 0) return o;
    json_decref(o);
    return NULL;
}

static size_t n_characters(json_t *token)
{
    json_t *bytes = json_object_get(token, "bytes"), *b;
    size_t n = 0, i;

    json_array_foreach(bytes, i, b) n += (json_integer_value(b) & 0xc0) != 0x80;
    return n;
}

/* Completions' form: four lists. */
static json_t *as_lists(const is_oa_choice *c, json_t *tokens, size_t *offset)
{
    json_t *texts = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array(), *t, *x;
    size_t i, j;

    json_array_foreach(tokens, i, t)
    {
        json_t *top = json_object();

        json_array_append(texts, json_object_get(t, "token"));
        json_array_append(logprobs, json_object_get(t, "logprob"));
        json_array_append_new(offsets, json_integer((json_int_t)*offset));
        json_array_foreach(json_object_get(t, "top_logprobs"), j, x)
            json_object_set(top, json_string_value(json_object_get(x, "token")), json_object_get(x, "logprob"));
        json_array_append_new(tops, top);
        *offset += n_characters(t);
    }
    if (c->run->ask->o.top_logprobs == 0) {
        json_decref(tops);
        tops = json_null();
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", texts, "token_logprobs", logprobs, "top_logprobs", tops, "text_offset",
                     offsets);
}

json_t *is_oa_logprobs(const is_oa_choice *c, json_t *tokens, size_t *offset)
{
    if (!c->run->ask->o.logprobs || !tokens) return json_null();
    return is_chat(c) ? json_pack("{s:O, s:n}", "content", tokens, "refusal") : as_lists(c, tokens, offset);
}

/* ---- Pieces -------------------------------------------------------------------------------------------------------------- */

static const char *object_of(const is_oa_run *run, bool chunk)
{
    return run->ask->form == IS_OA_TEXT ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
}

json_t *is_oa_chunk(const is_oa_run *run, json_t *choices)
{
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", run->id, "object", object_of(run, true), "created",
                          run->created, "model", run->model, "system_fingerprint", run->fingerprint, "choices", choices);

    if (o && run->ask->include_usage) json_object_set_new(o, "usage", json_null());
    return o;
}

json_t *is_oa_delta(is_oa_choice *c, json_t *delta, const char *finish)
{
    json_t *logprobs = is_oa_logprobs(c, c->tokens, &c->text_offset);

    json_decref(c->tokens);
    c->tokens = NULL;
    return is_oa_chunk(c->run, json_pack("[{s:i, s:o, s:o, s:s?}]", "index", (int)c->index, is_chat(c) ? "delta" : "text",
                                         delta, "logprobs", logprobs, "finish_reason", finish));
}

json_t *is_oa_piece(is_oa_choice *c, const char *text, size_t len, const char *finish)
{
    json_t *s = json_stringn(text, len);

    if (!is_chat(c)) return is_oa_delta(c, s, finish);
    return is_oa_delta(c, len ? json_pack("{s:o}", "content", s) : (json_decref(s), json_object()), finish);
}

/* ---- Whole answers ------------------------------------------------------------------------------------------------------- */

/* OpenAI ends an answer early for one reason only, its filter; ours are in memory.fallback. A function that was named in the
 * request is a stop, any other call "tool_calls". */
const char *is_oa_finish(const is_oa_choice *c)
{
    const char *finish = c->answer->finish;

    if (finish && strcmp(finish, "length") == 0) return "length";
    if (finish && strcmp(finish, "cancelled") == 0) return "content_filter";
    return c->run->ask->call == IS_OA_CALL_ANY ? "tool_calls" : "stop";
}

const char *is_oa_ended(const is_oa_choice *c, bool called_off)
{
    const char *finish = c->answer->finish;

    return called_off && finish && strcmp(finish, "cancelled") == 0 ? finish : is_oa_finish(c);
}

json_t *is_oa_usage(const is_oa_run *run)
{
    json_int_t prompt = 0, cached = 0, answer = 0;

    for (size_t i = 0; i < run->n_choices; i++) {
        const inferscale_answer *a = run->choices[i].answer;

        answer += a->tokens_answer;
        if (i % run->ask->n) continue; /* a prompt counts once, however many answers it has */
        prompt += a->tokens_prompt;
        cached += (json_int_t)a->tokens_injected + a->tokens_resident;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", answer, "total_tokens",
                     prompt + answer, "prompt_tokens_details", "cached_tokens", cached);
}

static json_t *all_tokens(const is_oa_choice *c)
{
    json_t *list = c->run->ask->o.logprobs ? json_array() : NULL;

    for (size_t i = 0; list && i < c->answer->n_tokens; i++) json_array_append_new(list, is_oa_token(&c->answer->tokens[i]));
    return list;
}

/* The brace that closes the call's object is not part of its arguments; a call that was cut has none. */
static json_t *message_of(is_oa_choice *c)
{
    const char *text = c->answer->text, *name;
    size_t n = strlen(text), at;

    if (!is_oa_split_call(c->run->ask, text, n, &name, &at))
        return json_pack("{s:s, s:s, s:n}", "role", "assistant", "content", text, "refusal");
    if (strcmp(c->answer->finish, "stop") == 0 && n > at && text[n - 1] == '}') n--;
    return json_pack("{s:s, s:n, s:n, s:[{s:s, s:s, s:{s:s, s:s%}}]}", "role", "assistant", "content", "refusal", "tool_calls",
                     "id", c->call_id, "type", "function", "function", "name", name, "arguments", text + at, n - at);
}

static json_t *text_of(const is_oa_choice *c)
{
    is_buf b = IS_BUF_INIT;
    json_t *s;

    if (!c->run->ask->echo) return json_string(c->answer->text);
    is_buf_fmt(&b, "%s%s", c->run->ask->prompts[c->prompt], c->answer->text);
    s = is_buf_ok(&b) ? json_stringn((char *)b.data, b.len) : NULL;
    is_buf_free(&b);
    return s;
}

static json_t *choice_of(is_oa_choice *c)
{
    json_t *tokens = all_tokens(c), *logprobs = is_oa_logprobs(c, tokens, &c->text_offset);

    json_decref(tokens);
    return json_pack("{s:i, s:o, s:o, s:s}", "index", (int)c->index, is_chat(c) ? "message" : "text",
                     is_chat(c) ? message_of(c) : text_of(c), "logprobs", logprobs, "finish_reason", is_oa_finish(c));
}

json_t *is_oa_whole(is_oa_run *run)
{
    json_t *choices = json_array();

    for (size_t i = 0; choices && i < run->n_choices; i++) {
        if (json_array_append_new(choices, choice_of(&run->choices[i])) == 0) continue;
        json_decref(choices);
        return NULL;
    }
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s, s:o, s:o}", "id", run->id, "object", object_of(run, false), "created",
                          run->created, "model", run->model, "system_fingerprint", run->fingerprint, "choices", choices,
                          "usage", is_oa_usage(run));
    if (o && run->ask->form == IS_OA_CHAT)
        json_object_set_new(o, "memory", is_oa_memory_of(run, run->choices[0].answer, true));
    return o;
}

/* ---- Errors in the midst of a stream ------------------------------------------------------------------------------------- */

json_t *is_oa_error_of(const is_server *s, is_status st, const char *message)
{
    const bool request =
        st == INFERSCALE_E_INVALID || st == INFERSCALE_E_PARSE || st == INFERSCALE_E_UNSUPPORTED || st == INFERSCALE_E_CONTEXT;
    char told[IS_TOLD_BYTES];

    return json_pack("{s:{s:s, s:s, s:n, s:s?}}", "error", "message", is_error_message(s, st, message, told), "type",
                     request                                              ? "invalid_request_error"
                     : st == INFERSCALE_E_BUSY || st == INFERSCALE_E_STALE ? "rate_limit_error"
                                                                           : "server_error", "param", "code",
                     is_error_code(s, st));
}
