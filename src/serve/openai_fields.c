/* openai_fields.c - the fields of /v1/chat/completions and /v1/completions, one table: what is read and within which bounds,
 * what is accepted because it changes nothing, what is refused and why. A field that is not here is refused by its name. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/nearest_name.h"
#include "serve/openai.h"

enum { N_STOPS = 16, STOP_BYTES = 256, N_BIAS = 1024, TOKENS_MOST = 1 << 20 };

bool is_oa_refuse(is_oa_fault *f, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;

    f->status = 400;
    f->type = "invalid_request_error";
    f->code = code;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return false;
}

bool is_oa_no_memory(is_oa_fault *f)
{
    is_oa_refuse(f, NULL, NULL, "out of memory; try again later");
    f->status = 500;
    f->type = "server_error";
    return false;
}

void *is_oa_keep(is_oa_ask *a, size_t n)
{
    void **grown = is_realloc(a->kept, (a->n_kept + 1) * sizeof *grown), *p;

    if (!grown) return NULL;
    a->kept = grown;
    p = is_calloc(1, n ? n : 1);
    if (p) a->kept[a->n_kept++] = p;
    return p;
}

char *is_oa_keep_buf(is_oa_ask *a, is_buf *b)
{
    char *copy = is_buf_ok(b) ? is_oa_keep(a, b->len + 1) : NULL;

    if (copy && b->len) memcpy(copy, b->data, b->len);
    is_buf_free(b);
    return copy;
}

void is_oa_ask_free(is_oa_ask *a)
{
    for (size_t i = 0; i < a->n_kept; i++) is_free(a->kept[i]);
    is_free(a->kept);
    memset(a, 0, sizeof *a);
}

/* ---- Readers of single fields -------------------------------------------------------------------------------------------- */

static bool read_model(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    a->model = json_string_value(v);
    return a->model && *a->model ? true
                                 : is_oa_refuse(f, NULL, name, "model must be the name of a model; GET /v1/models lists them");
}

static bool add_stop(is_oa_ask *a, const char **stops, json_t *v, is_oa_fault *f)
{
    const char *s = json_string_value(v);

    if (!s || !*s) return is_oa_refuse(f, NULL, "stop", "stop must be a string or a list of strings, none of them empty");
    if (strlen(s) > STOP_BYTES) return is_oa_refuse(f, NULL, "stop", "a stop string may have %d bytes", STOP_BYTES);
    stops[a->o.n_stop++] = s;
    return true;
}

static bool read_stop(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    const char **stops = is_oa_keep(a, N_STOPS * sizeof *stops);
    json_t *one;
    size_t i;

    if (!stops) return is_oa_no_memory(f);
    a->o.stop = stops;
    if (!json_is_array(v)) return add_stop(a, stops, v, f);
    if (json_array_size(v) > N_STOPS) return is_oa_refuse(f, NULL, name, "at most %d stop strings are supported", N_STOPS);
    json_array_foreach(v, i, one)
        if (!add_stop(a, stops, one, f)) return false;
    return true;
}

static bool read_seed(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    if (!json_is_integer(v)) return is_oa_refuse(f, NULL, name, "seed must be a whole number");
    a->o.ask.seed = (uint64_t)json_integer_value(v);
    a->has_seed = true;
    return true;
}

/* {"TOKEN": BIAS}: the model's own token numbers. */
static bool read_bias(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    inferscale_bias *list;
    const char *token;
    json_t *bias;

    if (!json_is_object(v)) return is_oa_refuse(f, NULL, name, "logit_bias must be an object of token numbers and biases");
    if (json_object_size(v) > N_BIAS) return is_oa_refuse(f, NULL, name, "at most %d tokens can be biased", N_BIAS);
    list = is_oa_keep(a, (json_object_size(v) + 1) * sizeof *list);
    if (!list) return is_oa_no_memory(f);
    json_object_foreach(v, token, bias)
    {
        const size_t digits = strspn(token, "0123456789");
        const double x = json_number_value(bias);
        int64_t id = 0;

        for (size_t i = 0; i < digits && digits <= 9; i++) id = id * 10 + (token[i] - '0');
        if (!digits || token[digits] || digits > 9 || (a->known->n_vocab && id >= a->known->n_vocab))
            return is_oa_refuse(f, NULL, name, "logit_bias: \"%.20s\" is not a token number of this model (0 to %u)", token,
                                a->known->n_vocab ? a->known->n_vocab - 1 : 999999999u);
        if (!json_is_number(bias) || !(x >= -100 && x <= 100))
            return is_oa_refuse(f, NULL, name, "logit_bias: the bias of token %.20s must be a number from -100 to 100", token);
        list[a->o.n_bias++] = (inferscale_bias){ (int32_t)id, x };
    }
    a->o.bias = list;
    return true;
}

/* Chat: true or false, how many is top_logprobs. Completions: how many. */
static bool read_logprobs(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    if (a->form == IS_OA_CHAT) {
        if (!json_is_boolean(v)) return is_oa_refuse(f, NULL, name, "logprobs must be true or false");
        a->o.logprobs = json_is_true(v);
        return true;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 20)
        return is_oa_refuse(f, NULL, name, "logprobs must be a whole number from 0 to 20");
    a->o.logprobs = 1;
    a->o.top_logprobs = (uint32_t)json_integer_value(v);
    return true;
}

static bool read_top_logprobs(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 20)
        return is_oa_refuse(f, NULL, name, "top_logprobs must be a whole number from 0 to 20");
    a->o.top_logprobs = (uint32_t)json_integer_value(v);
    a->has_top_logprobs = true;
    return true;
}

/* vLLM's, which load generators send: the answer ends at max_tokens. */
static bool read_ignore_eos(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    if (!json_is_boolean(v)) return is_oa_refuse(f, NULL, name, "ignore_eos must be true or false");
    a->o.endless = json_is_true(v);
    return true;
}

static bool read_stream_options(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    const char *member;
    json_t *x;

    if (!json_is_object(v)) return is_oa_refuse(f, NULL, name, "stream_options must be an object");
    a->has_stream_options = true;
    json_object_foreach(v, member, x)
    {
        char param[100];

        snprintf(param, sizeof param, "%s.%.60s", name, member);
        if (json_is_null(x)) continue;
        if (!json_is_boolean(x)) return is_oa_refuse(f, NULL, param, "%s must be true or false", param);
        if (strcmp(member, "include_usage") == 0) a->include_usage = json_is_true(x);
        else if (strcmp(member, "continuous_usage_stats") == 0) continue; /* vLLM's; usage comes once, at the end */
        else if (strcmp(member, "include_obfuscation") != 0 || json_is_true(x))
            return is_oa_refuse(f, "unsupported", param, "%s is not supported", param);
    }
    return true;
}

static bool read_prompt(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (n == 0 || n > IS_OA_PROMPTS)
        return is_oa_refuse(f, NULL, name, "prompt must be a string or a list of 1 to %d strings", IS_OA_PROMPTS);
    a->prompts = is_oa_keep(a, n * sizeof *a->prompts);
    if (!a->prompts) return is_oa_no_memory(f);
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_is_array(v) ? json_array_get(v, i) : v;

        if (json_is_integer(one) || json_is_array(one))
            return is_oa_refuse(f, "unsupported", name, "a prompt of token numbers is not supported; send the text");
        if (!json_is_string(one) || json_string_length(one) == 0)
            return is_oa_refuse(f, NULL, name, "prompt must be a string or a list of strings, none of them empty");
        a->prompts[a->n_prompts++] = json_string_value(one);
    }
    return true;
}

static bool keep_tools(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    if (!json_is_array(v)) return is_oa_refuse(f, NULL, name, "tools must be a list");
    a->tools = v;
    return true;
}

static bool keep_tool_choice(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    a->tool_choice = v;
    return true;
}

static bool keep_format(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    a->response_format = v;
    return true;
}

/* Only text goes in and out. */
static bool read_modalities(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    if (json_array_size(v) == 1 && json_is_string(json_array_get(v, 0)) &&
        strcmp(json_string_value(json_array_get(v, 0)), "text") == 0)
        return true;
    return is_oa_refuse(f, "unsupported", name, "modalities: only [\"text\"] is supported");
}

/* ---- The table ----------------------------------------------------------------------------------------------------------- */

/* FREE: changes nothing for the answer, whatever its value. NO: refused; text says what to do instead. */
typedef enum field_kind { NUMBER, WHOLE, FLAG, READ, FREE, NO } field_kind;

typedef struct field {
    const char *name;
    int in;
    field_kind kind;
    size_t at;                 /* NUMBER: a double; WHOLE: a uint32_t; FLAG: a bool of is_oa_ask */
    double low, high;
    bool (*read)(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f);
    const char *text;
} field;

enum { BOTH = IS_OA_CHAT | IS_OA_TEXT };
#define BETWEEN(member, least, most) .at = offsetof(is_oa_ask, member), .low = least, .high = most

static const field fields[] = {
    { "model", BOTH, READ, .read = read_model },
    { "messages", IS_OA_CHAT, READ, .read = is_oa_read_messages },
    { "prompt", IS_OA_TEXT, READ, .read = read_prompt },
    { "memory", IS_OA_CHAT, READ, .read = is_oa_read_memory },
    { "memory", IS_OA_TEXT, NO, .text = "a bare prompt has no place for it; use /v1/chat/completions" },
    { "temperature", BOTH, NUMBER, BETWEEN(o.ask.temperature, 0, 2) },
    { "top_p", BOTH, NUMBER, BETWEEN(o.ask.top_p, 0, 1) },
    { "min_p", BOTH, NUMBER, BETWEEN(o.ask.min_p, 0, 1) },
    { "top_k", BOTH, WHOLE, BETWEEN(o.ask.top_k, 0, TOKENS_MOST) },
    { "presence_penalty", BOTH, NUMBER, BETWEEN(o.presence_penalty, -2, 2) },
    { "frequency_penalty", BOTH, NUMBER, BETWEEN(o.frequency_penalty, -2, 2) },
    { "seed", BOTH, READ, .read = read_seed },
    { "max_tokens", BOTH, WHOLE, BETWEEN(max_tokens, 1, TOKENS_MOST) },
    { "max_completion_tokens", IS_OA_CHAT, WHOLE, BETWEEN(max_completion_tokens, 1, TOKENS_MOST) },
    { "n", BOTH, WHOLE, BETWEEN(n, 1, IS_OA_N_MAX) },
    { "best_of", IS_OA_TEXT, WHOLE, BETWEEN(best_of, 1, IS_OA_N_MAX) },
    { "stop", BOTH, READ, .read = read_stop },
    { "logit_bias", BOTH, READ, .read = read_bias },
    { "ignore_eos", BOTH, READ, .read = read_ignore_eos },
    { "logprobs", BOTH, READ, .read = read_logprobs },
    { "top_logprobs", IS_OA_CHAT, READ, .read = read_top_logprobs },
    { "stream", BOTH, FLAG, .at = offsetof(is_oa_ask, stream) },
    { "stream_options", BOTH, READ, .read = read_stream_options },
    { "echo", IS_OA_TEXT, FLAG, .at = offsetof(is_oa_ask, echo) },
    { "suffix", IS_OA_TEXT, NO, .text = "this model fills in no gaps" },
    { "response_format", IS_OA_CHAT, READ, .read = keep_format },
    { "tools", IS_OA_CHAT, READ, .read = keep_tools },
    { "tool_choice", IS_OA_CHAT, READ, .read = keep_tool_choice },
    { "functions", IS_OA_CHAT, NO, .text = "use tools" },
    { "function_call", IS_OA_CHAT, NO, .text = "use tool_choice" },
    { "modalities", IS_OA_CHAT, READ, .read = read_modalities },
    { "audio", IS_OA_CHAT, NO, .text = "there is no audio here" },
    { "reasoning_effort", IS_OA_CHAT, NO, .text = "it cannot be set for this model" },
    { "verbosity", IS_OA_CHAT, NO, .text = "it cannot be set for this model; ask for it in the messages" },
    { "web_search_options", IS_OA_CHAT, NO, .text = "this server searches no web" },
    { "parallel_tool_calls", IS_OA_CHAT, FREE, .text = NULL },
    { "prediction", IS_OA_CHAT, FREE, .text = NULL },
    { "store", IS_OA_CHAT, FREE, .text = NULL },
    { "metadata", IS_OA_CHAT, FREE, .text = NULL },
    { "service_tier", IS_OA_CHAT, FREE, .text = NULL },
    { "safety_identifier", IS_OA_CHAT, FREE, .text = NULL },
    { "prompt_cache_key", IS_OA_CHAT, FREE, .text = NULL },
    { "prompt_cache_retention", IS_OA_CHAT, FREE, .text = NULL },
    { "user", BOTH, FREE, .text = NULL },
    { "cache_salt", BOTH, FREE, .text = NULL },         /* vLLM's: taken out, whatever they say. What is kept apart, and what an */
    { "kv_transfer_params", BOTH, FREE, .text = NULL }, /* engine is told of stored rows, is this server's to decide */
};

static bool read_field(is_oa_ask *a, const field *d, json_t *v, is_oa_fault *f)
{
    void *at = (char *)a + d->at;
    const double x = json_number_value(v);

    switch (d->kind) {
    case NUMBER:
        if (!json_is_number(v) || !(x >= d->low && x <= d->high))
            return is_oa_refuse(f, NULL, d->name, "%s must be a number from %g to %g", d->name, d->low, d->high);
        *(double *)at = x;
        return true;
    case WHOLE:
        if (!json_is_integer(v) || !(x >= d->low && x <= d->high))
            return is_oa_refuse(f, NULL, d->name, "%s must be a whole number from %.0f to %.0f", d->name, d->low, d->high);
        *(uint32_t *)at = (uint32_t)x;
        return true;
    case FLAG:
        if (!json_is_boolean(v)) return is_oa_refuse(f, NULL, d->name, "%s must be true or false", d->name);
        *(bool *)at = json_is_true(v);
        return true;
    case READ: return d->read(a, v, d->name, f);
    case FREE: return true;
    default: return is_oa_refuse(f, "unsupported", d->name, "%s is not supported: %s", d->name, d->text);
    }
}

/* A name of memory's that stands beside `memory` is meant for it; else the nearest name that is served here. */
static bool refuse_unknown(const is_oa_ask *a, const char *name, is_oa_fault *f)
{
    const char *names[sizeof fields / sizeof *fields], *near;
    size_t n = 0;

    if (a->form == IS_OA_CHAT && is_oa_names_memory(name))
        return is_oa_refuse(f, "unknown_parameter", name, "\"%.60s\" belongs into memory: {\"memory\": {\"%.60s\": ...}}", name, name);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if ((fields[i].in & a->form) && fields[i].kind != NO) names[n++] = fields[i].name;
    near = is_nearest_name(name, names, n);
    return is_oa_refuse(f, "unknown_parameter", name, "\"%.60s\" is not a parameter of this endpoint%s%s%s", name,
                        near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static bool read_fields(is_oa_ask *a, json_t *body, is_oa_fault *f)
{
    const char *name;
    json_t *v;

    json_object_foreach(body, name, v)
    {
        const field *d = NULL;

        for (size_t i = 0; i < sizeof fields / sizeof *fields && !d; i++)
            if ((fields[i].in & a->form) && strcmp(fields[i].name, name) == 0) d = &fields[i];
        if (!d) return refuse_unknown(a, name, f);
        if (!json_is_null(v) && !read_field(a, d, v, f)) return false;
    }
    return true;
}

/* ---- What fields say together -------------------------------------------------------------------------------------------- */

static bool check_together(is_oa_ask *a, is_oa_fault *f)
{
    if (a->form == IS_OA_CHAT && !a->n_messages) return is_oa_refuse(f, NULL, "messages", "messages are missing");
    if (a->form == IS_OA_TEXT && !a->n_prompts) return is_oa_refuse(f, NULL, "prompt", "the prompt is missing");
    if (a->has_top_logprobs && !a->o.logprobs)
        return is_oa_refuse(f, NULL, "top_logprobs", "top_logprobs needs logprobs: true");
    if (a->has_stream_options && !a->stream)
        return is_oa_refuse(f, NULL, "stream_options", "stream_options needs stream: true");
    if (a->max_tokens && a->max_completion_tokens && a->max_tokens != a->max_completion_tokens)
        return is_oa_refuse(f, NULL, "max_tokens",
                            "max_tokens and max_completion_tokens mean the same and differ; send one of them");
    if (a->best_of && a->best_of != a->n)
        return is_oa_refuse(f, "unsupported", "best_of", "best_of is not supported; ask for n answers and choose");
    if (a->echo && a->o.logprobs)
        return is_oa_refuse(f, "unsupported", "echo", "echo is not supported with logprobs: the prompt has none");
    return true;
}

/* A missing temperature is OpenAI's 1; a top_p of 0 leaves the likeliest token, and the library's 0 would switch it off. */
static void fill_in(is_oa_ask *a)
{
    if (!a->max_tokens) a->max_tokens = a->max_completion_tokens;
    if (!a->max_tokens && a->form == IS_OA_TEXT) a->max_tokens = 16;
    if (a->o.ask.top_p == 0) a->o.ask.top_p = 1e-9;
    if (!a->has_seed) is_random(&a->o.ask.seed, sizeof a->o.ask.seed);
}

bool is_oa_parse(int form, json_t *body, const is_oa_known *known, is_oa_ask *out, is_oa_fault *f)
{
    memset(f, 0, sizeof *f);
    memset(out, 0, sizeof *out);
    out->form = form;
    out->known = known;
    out->body = body;
    out->o = (inferscale_complete_options)INFERSCALE_COMPLETE_OPTIONS_INIT;
    out->recall = (inferscale_recall_options)INFERSCALE_RECALL_OPTIONS_INIT;
    out->o.ask.temperature = 1;
    out->o.ask.top_p = 1;
    out->o.ask.mode = known->mode;
    out->o.ask.k = known->k;
    out->n = 1;
    if (!read_fields(out, body, f) || !check_together(out, f)) return false;
    if (form == IS_OA_CHAT && (!is_oa_finish_grammar(out, f) || !is_oa_finish_messages(out, f))) return false;
    fill_in(out);
    return true;
}
