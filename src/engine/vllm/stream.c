/* stream.c - server-sent events, and what one of them holds. */
#include "engine/vllm/stream.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/vllm/http.h"

enum { MAX_QUEUE = 1 << 20 };

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for vLLM's answer; free some and try again");
}

static is_status wrong(const char *what)
{
    return is_fail(INFERSCALE_E_ENGINE, "vLLM's stream holds %s; check that the address is a vLLM server of a supported version", what);
}

void vllm_stream_init(vllm_stream *s, uint32_t n_vocab, int want_logprobs)
{
    *s = (vllm_stream){ .n_vocab = n_vocab, .want_logprobs = want_logprobs, .stop_token = -1 };
    s->event.max = VLLM_EVENT_MAX;
}

void vllm_stream_free(vllm_stream *s)
{
    for (uint32_t i = s->first; i < s->n_queue; i++) vllm_token_drop(&s->queue[i]);
    is_free(s->queue);
    is_buf_free(&s->event);
    *s = (vllm_stream){ .stop_token = -1 };
}

bool vllm_stream_waits(const vllm_stream *s)
{
    return s->first < s->n_queue;
}

bool vllm_stream_next(vllm_stream *s, vllm_token *out)
{
    if (s->first == s->n_queue) return false;
    *out = s->queue[s->first++];
    if (s->first == s->n_queue) s->first = s->n_queue = 0;
    return true;
}

void vllm_token_drop(vllm_token *t)
{
    is_free(t->logprobs);
    is_free(t->likely);
    *t = (vllm_token){ .id = -1 };
}

/* What the token owns is the queue's, or gone. */
static is_status push(vllm_stream *s, vllm_token *token)
{
    if (s->n_queue == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 64;
        vllm_token *queue = cap <= MAX_QUEUE ? is_realloc(s->queue, cap * sizeof *queue) : NULL;

        if (!queue) {
            vllm_token_drop(token);
            return cap > MAX_QUEUE ? wrong("more tokens than were asked for") : no_memory();
        }
        s->queue = queue;
        s->cap = cap;
    }
    s->queue[s->n_queue++] = *token;
    return INFERSCALE_OK;
}

/* ---- One event ----------------------------------------------------------------------------------------------------------- */

/* The id of "token_id:N"; -1 if the key is another. */
static int64_t id_of_key(const char *key)
{
    static const char head[] = "token_id:";
    int64_t id = 0;
    size_t n = 0;

    if (strncmp(key, head, sizeof head - 1) != 0) return -1;
    for (key += sizeof head - 1; *key >= '0' && *key <= '9' && n < 10; key++, n++) id = 10 * id + (*key - '0');
    return n && !*key ? id : -1;
}

/* One entry of a place's log-probabilities; *id -1: of the vocabulary's padding. */
static is_status read_entry(const vllm_stream *s, const char *key, const json_t *value, int64_t *id, float *p)
{
    *id = id_of_key(key);
    *p = (float)json_number_value(value);
    if (*id < 0 || !json_is_number(value) || isnan(*p)) return wrong("log-probabilities of something that is no token");
    if (*id >= s->n_vocab) *id = -1;
    return INFERSCALE_OK;
}

/* Those of the likeliest tokens and of the chosen one, sorted. */
static is_status read_likely(const vllm_stream *s, json_t *top, vllm_token *token)
{
    const size_t most = (size_t)s->want_logprobs + 1, n = json_object_size(top);
    bool chosen = false;
    const char *key;
    json_t *value;

    if (n > most) return wrong("more log-probabilities than were asked for");
    token->likely = is_calloc(most, sizeof *token->likely);
    if (!token->likely) return no_memory();
    json_object_foreach(top, key, value) {
        uint32_t at = token->n_likely;
        int64_t id;
        float p;

        IS_TRY(read_entry(s, key, value, &id, &p));
        if (id < 0) continue;
        chosen = chosen || id == token->id;
        for (; at > 0 && token->likely[at - 1].logprob < p; at--) token->likely[at] = token->likely[at - 1];
        token->likely[at] = (is_likely){ (int32_t)id, p };
        token->n_likely++;
    }
    return chosen ? INFERSCALE_OK : wrong("no log-probability of the token that was chosen");
}

/* All log-probabilities of one place; what the vocabulary's padding has is left out. */
static is_status read_logprobs(const vllm_stream *s, json_t *top, float **out)
{
    float *all = is_malloc(s->n_vocab * sizeof *all);
    uint32_t n = 0;
    const char *key;
    json_t *value;

    *out = NULL;
    if (!all) return no_memory();
    for (uint32_t i = 0; i < s->n_vocab; i++) all[i] = -INFINITY;
    json_object_foreach(top, key, value) {
        int64_t id;
        float p;
        is_status st = read_entry(s, key, value, &id, &p);

        if (st != INFERSCALE_OK) {
            is_free(all);
            return st;
        }
        if (id < 0) continue;
        n += isinf(all[id]) != 0;
        all[id] = p;
    }
    if (n == s->n_vocab) {
        *out = all;
        return INFERSCALE_OK;
    }
    is_free(all);
    return is_fail(INFERSCALE_E_ENGINE, "vLLM gives log-probabilities of %u of %u tokens; start it with --max-logprobs -1", n, s->n_vocab);
}

static is_status read_tokens(vllm_stream *s, const json_t *choice)
{
    const json_t *ids = json_object_get(choice, "token_ids");
    const json_t *top = json_object_get(json_object_get(choice, "logprobs"), "top_logprobs");
    size_t n = json_array_size(ids);

    if (ids && !json_is_null(ids) && !json_is_array(ids)) return wrong("token ids that are no list");
    if (s->want_logprobs != VLLM_LOGPROBS_NONE && n && json_array_size(top) != n) return wrong("tokens without their log-probabilities");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        vllm_token token = { .id = (int32_t)json_integer_value(id) };
        is_status st = INFERSCALE_OK;

        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)s->n_vocab)
            return wrong("a token that is not in the vocabulary");
        if (s->want_logprobs == VLLM_LOGPROBS_ALL) st = read_logprobs(s, json_array_get(top, i), &token.logprobs);
        else if (s->want_logprobs >= 0) st = read_likely(s, json_array_get(top, i), &token);
        if (st != INFERSCALE_OK) {
            vllm_token_drop(&token);
            return st;
        }
        IS_TRY(push(s, &token));
    }
    return INFERSCALE_OK;
}

static is_status read_finish(vllm_stream *s, const json_t *choice)
{
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    const json_t *stop = json_object_get(choice, "stop_reason");

    if (!finish) return INFERSCALE_OK;
    if (json_is_integer(stop) && json_integer_value(stop) >= 0 && json_integer_value(stop) < (json_int_t)s->n_vocab)
        s->stop_token = (int32_t)json_integer_value(stop);
    if (strcmp(finish, "stop") == 0) s->finish = VLLM_STOP;
    else if (strcmp(finish, "length") == 0) s->finish = VLLM_LENGTH;
    else s->finish = VLLM_ABORTED;
    return INFERSCALE_OK;
}

static bool get_count(const json_t *o, const char *field, uint32_t *out)
{
    const json_t *v = json_object_get(o, field);

    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX) return false;
    *out = (uint32_t)json_integer_value(v);
    return true;
}

static void read_usage(vllm_stream *s, const json_t *usage)
{
    if (!json_is_object(usage)) return;
    s->has_usage = get_count(usage, "prompt_tokens", &s->n_prompt);
    s->has_cached = get_count(json_object_get(usage, "prompt_tokens_details"), "cached_tokens", &s->n_cached);
}

static is_status read_event(vllm_stream *s, const json_t *e)
{
    const json_t *choices = json_object_get(e, "choices"), *choice = json_array_get(choices, 0);

    if (!json_is_object(e) || !json_is_array(choices) || json_array_size(choices) > 1) return wrong("an event that is no completion");
    if (choice && !json_is_object(choice)) return wrong("an event that is no completion");
    if (choice && s->finish != VLLM_RUNNING) return wrong("tokens behind the end of the answer");
    IS_TRY(read_tokens(s, choice));
    IS_TRY(read_finish(s, choice));
    read_usage(s, json_object_get(e, "usage"));
    return INFERSCALE_OK;
}

/* The server's own error, in the midst of a stream that began with 200: {"error": {"message", "code": an HTTP status}}. What is wrong with the
 * request may be found that late. */
static is_status refused(vllm_stream *s, const json_t *e)
{
    const json_t *code = json_object_get(json_object_get(e, "error"), "code");

    if (!json_is_integer(code)) code = json_object_get(e, "code");
    s->refused = json_is_integer(code) && json_integer_value(code) >= 400 && json_integer_value(code) < 600 ? (long)json_integer_value(code) : 500;
    vllm_says(s->event.data, s->event.len, s->says);
    return is_fail(INFERSCALE_E_ENGINE, "vLLM gave up on the answer (%s); see its log, then try again", s->says);
}

static is_status take_event(vllm_stream *s)
{
    json_t *e;
    is_status st;

    if (s->event.len == 6 && memcmp(s->event.data, "[DONE]", 6) == 0) {
        s->done = true;
        return INFERSCALE_OK;
    }
    e = json_loadb((const char *)s->event.data, s->event.len, 0, NULL);
    if (!e) return wrong("an event that is no JSON");
    if (json_object_get(e, "error") || json_string_value(json_object_get(e, "message"))) {
        st = refused(s, e);
    } else {
        st = read_event(s, e);
    }
    json_decref(e);
    return st;
}

/* ---- Lines --------------------------------------------------------------------------------------------------------------- */

/* One line without its end. Fields other than data (comments, names, ids) mean nothing here. */
static is_status take_line(vllm_stream *s, const uint8_t *p, size_t n)
{
    is_status st;

    if (s->done) return INFERSCALE_OK;
    if (n == 0) {
        if (s->event.len == 0) return INFERSCALE_OK;
        st = take_event(s);
        is_buf_clear(&s->event);
        return st;
    }
    if (n < 5 || memcmp(p, "data:", 5) != 0) return INFERSCALE_OK;
    p += 5, n -= 5;
    if (n && *p == ' ') p++, n--;
    if (s->event.len) is_buf_u8(&s->event, '\n');
    is_buf_add(&s->event, p, n);
    if (is_buf_ok(&s->event)) return INFERSCALE_OK;
    return s->event.len + n + 1 >= VLLM_EVENT_MAX ? wrong("an event without end") : no_memory();
}

is_status vllm_stream_feed(vllm_stream *s, is_buf *in)
{
    size_t begin = 0;
    is_status st = INFERSCALE_OK;

    for (size_t at = s->scanned; st == INFERSCALE_OK && at < in->len; at++) {
        const uint8_t *end = memchr(in->data + at, '\n', in->len - at);

        if (!end) break;
        at = (size_t)(end - in->data);
        st = take_line(s, in->data + begin, at - begin - (at > begin && in->data[at - 1] == '\r'));
        begin = at + 1;
    }
    if (begin) memmove(in->data, in->data + begin, in->len - begin);
    in->len -= begin;
    s->scanned = in->len;
    return st;
}
