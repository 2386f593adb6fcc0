/* vllm_fake_answer.c - what the fake server's model says, as the events of a stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/vllm_fake.h"
#include "support/vllm_fake_parts.h"

static fake_mood mood_of(const vllm_fake *f)
{
    return __atomic_load_n(&f->mood, __ATOMIC_ACQUIRE);
}

bool fake_is_salted(const json_t *body, const inferscale_ticket *t)
{
    const char *salt = json_string_value(json_object_get(body, "cache_salt"));
    char hex[IS_HASH_HEX];

    is_hex(t->salt, sizeof t->salt, hex);
    return salt && strcmp(salt, hex) == 0;
}

void fake_add_event(is_buf *b, json_t *e)
{
    char *text = json_dumps(e, JSON_COMPACT);

    is_buf_fmt(b, "data: %s\r\n\r\n", text);
    free(text);
    json_decref(e);
}

static void add_logprob(json_t *top, int id, double p)
{
    char key[32];

    snprintf(key, sizeof key, "token_id:%d", id);
    json_object_set_new(top, key, json_real(p));
}

/* n = -1: of all tokens. Else as vLLM: of the chosen one, then of the n likeliest, among which it is the third, behind 0 and 1. few: one is
 * missing. */
static json_t *logprobs_of(int32_t token, int n, bool few)
{
    json_t *top = json_object();

    for (int i = 0; n == -1 && i < FAKE_VOCAB - few; i++) add_logprob(top, i, i == token ? -0.125 : -9 - i / 100.0);
    if (n >= 0 && !few) add_logprob(top, token, -0.5);
    for (int rank = 0, id = 0; rank < n; rank++)
        if (rank != 2) add_logprob(top, id, id < 2 ? -0.25 - id / 8.0 : -9 - id / 100.0), id++;
    return json_pack("{s:[o]}", "top_logprobs", top);
}

enum { NO_LOGPROBS = -2 };

static void add_token(is_buf *b, int32_t token, int logprobs, bool few)
{
    json_t *choice = json_pack("{s:i, s:s, s:[i], s:n}", "index", 0, "text", "?", "token_ids", token, "finish_reason");

    if (logprobs != NO_LOGPROBS) json_object_set_new(choice, "logprobs", logprobs_of(token, logprobs, few));
    fake_add_event(b, json_pack("{s:s, s:[o]}", "id", "cmpl-1", "choices", choice));
}

static void add_end(is_buf *b, const char *finish)
{
    fake_add_event(b, json_pack("{s:s, s:[{s:i, s:s, s:[], s:s}]}", "id", "cmpl-1", "choices", "index", 0, "text", "", "token_ids", "finish_reason", finish));
}

/* What the model says to this prompt, as events. *answer: the plain length of what a good server says. */
void fake_write_answer(vllm_fake *f, const json_t *body, int32_t *tokens, uint32_t n, uint32_t cached, is_buf *b)
{
    uint32_t most = (uint32_t)json_integer_value(json_object_get(body, "max_tokens")), told = 0, prompt = n;
    const json_t *asked = json_object_get(body, "logprobs");
    int logprobs = asked ? (int)json_integer_value(asked) : NO_LOGPROBS;
    bool ended = false;
    fake_mood mood = mood_of(f);

    is_buf_str(b, ": hello\n\n");
    for (; told < most && !ended; told++) {
        int32_t token = fake_next(tokens, n, prompt, f->length);

        ended = token == FAKE_END;
        if (mood == FAKE_WRONG_ID && told == 2) token = 70000;
        if (!ended || mood != FAKE_NO_END_TOKEN) add_token(b, token, logprobs, mood == FAKE_FEW_LOGPROBS);
        if (!ended) tokens[n++] = token;
    }
    if (mood == FAKE_TWO_CHOICES) fake_add_event(b, json_pack("{s:[{s:i},{s:i}]}", "choices", "index", 0, "index", 1));
    add_end(b, mood == FAKE_ABORTED ? "abort" : ended ? "stop" : "length");
    if (mood == FAKE_BEHIND_THE_END) add_token(b, 'z', logprobs, false);
    if (mood == FAKE_NO_USAGE) fake_add_event(b, json_pack("{s:[], s:{s:i}}", "choices", "usage", "prompt_tokens", (int)prompt));
    else fake_add_event(b, json_pack("{s:[], s:{s:i, s:i, s:{s:i}}}", "choices", "usage", "prompt_tokens", (int)prompt, "completion_tokens", (int)told,
                                "prompt_tokens_details", "cached_tokens", (int)cached));
    is_buf_str(b, "data: [DONE]\n\n");
}
