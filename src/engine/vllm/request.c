/* request.c - the JSON of a completion: every way of choosing mapped one by one, and refused where it cannot be. */
#include "engine/vllm/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kv/ticket.h"

enum { BIAS_MAX = 100, AHEAD_FIRST = 8, AHEAD_MAX = 256 };

/* ---- Taking options ---------------------------------------------------------------------------------------------------------------- */

static is_status check(const vllm *e, const is_sampling *s)
{
    if (!(s->temperature >= 0) || s->temperature > 100 || isnan(s->top_p) || isnan(s->min_p))
        return is_fail(INFERSCALE_E_INVALID, "temperature %g, top_p %g or min_p %g is out of range; use temperature 0..100, the others 0..1",
                       s->temperature, s->top_p, s->min_p);
    if (!(fabs(s->presence) <= 2) || !(fabs(s->frequency) <= 2))
        return is_fail(INFERSCALE_E_INVALID, "a penalty of %g or %g is out of vLLM's range; use -2..2", s->presence, s->frequency);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        const is_bias *b = &s->bias[i];

        if (b->token < 0 || (uint32_t)b->token >= e->model->n_vocab || isnan(b->add))
            return is_fail(INFERSCALE_E_INVALID, "the bias of token %d cannot be applied; the vocabulary has %u tokens", b->token, e->model->n_vocab);
        if (fabsf(b->add) > BIAS_MAX && b->add != -INFINITY)
            return is_fail(INFERSCALE_E_INVALID, "a bias of %g is out of vLLM's range; use -100..100", (double)b->add);
    }
    return INFERSCALE_OK;
}

/* The log-probabilities that these options need, if the server gives as many. */
static is_status wanted(const vllm *e, const is_run_opts *o, int *want)
{
    const int32_t most = e->model->max_logprobs;

    *want = o->want_logits ? VLLM_LOGPROBS_ALL : o->want_likely ? (int)o->n_likely : VLLM_LOGPROBS_NONE;
    if (most == -1 || *want == VLLM_LOGPROBS_NONE) return INFERSCALE_OK;
    if (*want == VLLM_LOGPROBS_ALL && (uint32_t)most < e->model->n_vocab)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this vLLM gives no log-probabilities of the whole vocabulary; start it with --max-logprobs -1");
    if (*want > most)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this vLLM gives the log-probabilities of at most %d tokens, and %u are asked for; ask for fewer, "
                       "or start it with --max-logprobs %u", most, o->n_likely, o->n_likely);
    return INFERSCALE_OK;
}

is_status vllm_sampling_take(is_run *r, const is_run_opts *o)
{
    is_sampling s = o->sampling;
    is_bias *bias = NULL;
    char *grammar = NULL;
    int want;

    IS_TRY(check(r->e, &s));
    IS_TRY(wanted(r->e, o, &want));
    if (s.n_bias) bias = is_malloc(s.n_bias * sizeof *bias);
    if (s.grammar && *s.grammar) grammar = is_strdup(s.grammar);
    if ((s.n_bias && !bias) || (s.grammar && *s.grammar && !grammar)) {
        is_free(bias);
        is_free(grammar);
        return vllm_no_memory();
    }
    if (s.n_bias) memcpy(bias, s.bias, s.n_bias * sizeof *bias);
    vllm_sampling_free(r);
    r->how = s;
    r->how.bias = bias;
    r->how.grammar = grammar;
    r->n_predict = o->n_predict;
    r->want_logprobs = want;
    r->n_ahead = AHEAD_FIRST;
    r->led = false;
    return INFERSCALE_OK;
}

void vllm_sampling_free(is_run *r)
{
    is_free((void *)(uintptr_t)r->how.bias);
    is_free((void *)(uintptr_t)r->how.grammar);
    memset(&r->how, 0, sizeof r->how);
}

/* ---- Writing --------------------------------------------------------------------------------------------------------------------------- */

/* How many tokens to ask for: all that may be wanted; log-probabilities of all words are large, so those come by and by where the
 * answer is the same however it is cut and nobody said how many, or where it is led along another one and may be cut any time. */
static uint32_t how_many(const is_run *r)
{
    uint32_t fits = r->e->model->n_ctx - r->n, told = r->n - r->fed_from;
    uint32_t n = r->n_predict > told && r->n_predict - told < fits ? r->n_predict - told : fits;
    bool one_way = r->how.temperature == 0 && r->how.presence == 0 && !r->how.grammar;

    return r->want_logprobs == VLLM_LOGPROBS_ALL && (!r->n_predict || r->led) && one_way && r->n_ahead < n ? r->n_ahead : n;
}

/* Biases, and the frequency penalty of what this answer has told already: to vLLM that is the prompt now. */
static is_status add_bias(const is_run *r, json_t *body)
{
    uint32_t told = r->how.frequency != 0 ? r->n - r->fed_from : 0;
    json_t *list = json_object();
    bool ok = list != NULL;
    char key[16];

    for (uint32_t i = 0; ok && i < r->how.n_bias + told; i++) {
        bool own = i < r->how.n_bias;
        int32_t token = own ? r->how.bias[i].token : r->tokens[r->fed_from + i - r->how.n_bias];
        double add = own ? (double)r->how.bias[i].add : -r->how.frequency, sum;

        snprintf(key, sizeof key, "%d", token);
        sum = json_number_value(json_object_get(list, key)) + (add == -INFINITY ? -BIAS_MAX : add);
        if (sum < -BIAS_MAX) sum = -BIAS_MAX;
        ok = sum > BIAS_MAX ? false : json_object_set_new(list, key, json_real(sum)) == 0;
    }
    if (ok && json_object_size(list)) ok = json_object_set(body, "logit_bias", list) == 0;
    json_decref(list);
    return ok ? INFERSCALE_OK : vllm_no_memory();
}

static is_status add_choosing(const is_run *r, json_t *body)
{
    const is_sampling *s = &r->how;
    uint32_t told = r->n - r->fed_from;
    bool ok = true;

    if (told && (s->presence != 0 || s->grammar))
        return is_fail(INFERSCALE_E_UNSUPPORTED, "vLLM cannot go on in the middle of an answer with a %s; ask for the whole answer at once",
                       s->grammar ? "grammar" : "presence penalty");
    ok = ok && json_object_set_new(body, "temperature", json_real(s->temperature)) == 0;
    ok = ok && json_object_set_new(body, "top_p", json_real(s->top_p > 0 && s->top_p < 1 ? s->top_p : 1)) == 0;
    ok = ok && json_object_set_new(body, "top_k", json_integer(s->top_k < r->e->model->n_vocab ? s->top_k : 0)) == 0;
    ok = ok && json_object_set_new(body, "min_p", json_real(s->min_p > 0 ? (s->min_p < 1 ? s->min_p : 1) : 0)) == 0;
    ok = ok && json_object_set_new(body, "presence_penalty", json_real(s->presence)) == 0;
    ok = ok && json_object_set_new(body, "frequency_penalty", json_real(s->frequency)) == 0;
    ok = ok && json_object_set_new(body, "repetition_penalty", json_real(1)) == 0; /* or the model's generation_config decides */
    if (s->temperature > 0) ok = ok && json_object_set_new(body, "seed", json_integer((json_int_t)((s->seed + told) & INT64_MAX))) == 0;
    if (s->grammar) ok = ok && json_object_set_new(body, "structured_outputs", json_pack("{s:s}", "grammar", s->grammar)) == 0;
    return ok ? add_bias(r, body) : vllm_no_memory();
}

static is_status add_ticket(is_run *r, json_t *body)
{
    vllm_ask_for a = { .op = INFERSCALE_TICKET_INJECT, .prompt = r->tokens, .n_prompt = r->n };
    char *ticket, hex[IS_HASH_HEX];
    vllm_part *parts;
    is_status st;
    bool ok;

    if (r->owned) a.realm = r->realm;
    memcpy(a.salt, r->salt, sizeof a.salt);
    is_random(r->id, sizeof r->id);
    memcpy(a.id, r->id, sizeof a.id);
    IS_TRY(vllm_tail_parts(r, r->n - 1, &parts, &a.n_parts)); /* one token is computed */
    a.parts = parts;
    st = vllm_ticket_make(r->e, &a, &ticket);
    r->n_secret = a.n_secret;
    is_free(parts);
    if (st != INFERSCALE_OK) return st;
    is_hex(r->salt, sizeof r->salt, hex);
    ok = json_object_set_new(body, "kv_transfer_params", json_pack("{s:s}", "inferscale", ticket)) == 0;
    ok = ok && json_object_set_new(body, "cache_salt", json_string(hex)) == 0; /* if the ticket is refused */
    is_free(ticket);
    return ok ? INFERSCALE_OK : vllm_no_memory();
}

static int add_bytes(const char *p, size_t n, void *buf)
{
    is_buf_add(buf, p, n);
    return is_buf_ok(buf) ? 0 : -1;
}

/* {"prompt":[ids],...}: the ids are written by hand, they are many. The model's name is each server's own (vllm_body_for). */
static is_status write(const is_run *r, const json_t *body, char **out)
{
    is_buf b = IS_BUF_INIT;
    size_t at;

    is_buf_str(&b, "{\"prompt\":[");
    for (uint32_t i = 0; i < r->n; i++) is_buf_fmt(&b, i ? ",%d" : "%d", r->tokens[i]);
    is_buf_str(&b, "],");
    at = b.len;
    if (json_dump_callback(body, add_bytes, &b, JSON_COMPACT) != 0) b.failed = true;
    if (is_buf_ok(&b)) { /* its opening brace goes */
        memmove(b.data + at, b.data + at + 1, b.len - at);
        b.len--;
    }
    *out = is_buf_take(&b);
    return *out ? INFERSCALE_OK : vllm_no_memory();
}

is_status vllm_request_make(is_run *r, char **out)
{
    json_t *body;
    is_status st;

    *out = NULL;
    if (r->n >= r->e->model->n_ctx) return is_fail(INFERSCALE_E_CONTEXT, "the context of %u tokens is full", r->e->model->n_ctx);
    r->n_asked = how_many(r);
    body = json_pack("{s:b, s:{s:b}, s:b, s:i}", "stream", 1, "stream_options", "include_usage", 1,
                     "return_token_ids", 1, "max_tokens", (int)r->n_asked);
    st = body ? add_choosing(r, body) : vllm_no_memory();
    if (st == INFERSCALE_OK && r->want_logprobs != VLLM_LOGPROBS_NONE &&
        (json_object_set_new(body, "logprobs", json_integer(r->want_logprobs)) != 0 ||
         json_object_set_new(body, "return_tokens_as_token_ids", json_true()) != 0))
        st = vllm_no_memory();
    if (st == INFERSCALE_OK) st = add_ticket(r, body);
    if (st == INFERSCALE_OK) st = write(r, body, out);
    json_decref(body);
    return st;
}
