/* openai_embed.c - /v1/embeddings: vectors of the server's embedder, as numbers or base64. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "serve/openai.h"

enum { INPUTS = 2048, AT_ONCE = 32 };

/* What is asked for. */
typedef struct wanted {
    const char **texts;
    size_t n;
    bool base64, truncate;
    uint32_t dimensions;       /* 0 = not said */
    const char *model;
} wanted;

static bool read_input(wanted *w, json_t *v, is_oa_fault *f)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;

    if (!v || n == 0 || n > INPUTS)
        return is_oa_refuse(f, NULL, "input", "input must be a string or a list of 1 to %d strings", INPUTS);
    w->texts = is_calloc(n, sizeof *w->texts);
    if (!w->texts) return is_oa_no_memory(f);
    for (; w->n < n; w->n++) {
        json_t *one = json_is_array(v) ? json_array_get(v, w->n) : v;
        const char *text = json_string_value(one);

        if (json_is_integer(one) || json_is_array(one))
            return is_oa_refuse(f, "unsupported", "input", "token numbers are not supported; send the text");
        if (!text || is_utf8_blank(text, strlen(text)))
            return is_oa_refuse(f, NULL, "input", "input must be a string or a list of strings, none of them blank");
        w->texts[w->n] = text;
    }
    return true;
}

static bool read_wanted(json_t *body, wanted *w, is_oa_fault *f)
{
    const char *name;
    json_t *v;

    memset(f, 0, sizeof *f);
    json_object_foreach(body, name, v)
    {
        const char *s = json_string_value(v);

        if (strcmp(name, "input") == 0 || json_is_null(v) || strcmp(name, "user") == 0) continue;
        if (strcmp(name, "model") == 0) {
            if (!s || !*s) return is_oa_refuse(f, NULL, name, "model must be the embedder's name; GET /v1/models lists it");
            w->model = s;
        } else if (strcmp(name, "encoding_format") == 0) {
            if (!s || (strcmp(s, "float") != 0 && strcmp(s, "base64") != 0))
                return is_oa_refuse(f, NULL, name, "encoding_format must be float or base64");
            w->base64 = strcmp(s, "base64") == 0;
        } else if (strcmp(name, "dimensions") == 0) {
            if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 20)
                return is_oa_refuse(f, NULL, name, "dimensions must be a whole number above 0");
            w->dimensions = (uint32_t)json_integer_value(v);
        } else if (strcmp(name, "truncate_prompt_tokens") == 0) { /* as vLLM has it */
            if (!json_is_integer(v) || json_integer_value(v) != -1)
                return is_oa_refuse(f, NULL, name, "truncate_prompt_tokens must be -1: as much as the embedder reads");
            w->truncate = true;
        } else {
            return is_oa_refuse(f, "unknown_parameter", name, "\"%.60s\" is not a parameter of this endpoint", name);
        }
    }
    return read_input(w, json_object_get(body, "input"), f);
}

/* ---- Answered ------------------------------------------------------------------------------------------------------------ */

/* 32-bit floats, little-endian. */
static json_t *base64_of(const float *v, uint32_t dim)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n = (size_t)dim * 4;
    is_buf bytes = IS_BUF_INIT, text = IS_BUF_INIT;
    json_t *s;

    for (uint32_t i = 0; i < dim; i++) {
        uint32_t bits;

        memcpy(&bits, &v[i], sizeof bits);
        is_buf_u32(&bytes, bits);
    }
    for (size_t i = 0; is_buf_ok(&bytes) && i < n; i += 3) {
        const uint32_t left = (uint32_t)(n - i), x = (uint32_t)bytes.data[i] << 16 |
                                                     (left > 1 ? (uint32_t)bytes.data[i + 1] << 8 : 0) |
                                                     (left > 2 ? bytes.data[i + 2] : 0u);
        const char four[4] = { digits[x >> 18], digits[x >> 12 & 63], left > 1 ? digits[x >> 6 & 63] : '=',
                               left > 2 ? digits[x & 63] : '=' };

        is_buf_add(&text, four, sizeof four);
    }
    s = is_buf_ok(&bytes) && is_buf_ok(&text) ? json_stringn((char *)text.data, text.len) : NULL;
    is_buf_free(&bytes);
    is_buf_free(&text);
    return s;
}

static json_t *numbers_of(const float *v, uint32_t dim)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list && i < dim; i++) json_array_append_new(list, json_real((double)v[i]));
    return list;
}

/* Appends n vectors; false = out of memory. */
static bool add_vectors(json_t *data, const wanted *w, const float *v, size_t n, uint32_t dim)
{
    for (size_t i = 0; i < n; i++, v += dim) {
        json_t *one = json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", (int)json_array_size(data), "embedding",
                                w->base64 ? base64_of(v, dim) : numbers_of(v, dim));

        if (json_array_append_new(data, one) != 0) return false;
    }
    return true;
}

/* at: of the first of the few texts that were given to the library. */
static is_status too_long(size_t at, const int *cut)
{
    char said[400];

    while (!*cut) at++, cut++;
    snprintf(said, sizeof said, "%s", inferscale_error());
    return is_fail(INFERSCALE_E_CONTEXT, "input[%zu]: %s, or say \"truncate_prompt_tokens\": -1", at, said);
}

/* A few texts at a time, so that questions are not kept waiting and a client that hangs up is noticed. */
static is_status embed(is_server *s, is_request *r, const wanted *w, json_t *data, json_t *truncated, json_int_t *tokens)
{
    int cut[AT_ONCE];

    for (size_t at = 0; at < w->n; at += AT_ONCE) {
        const size_t n = w->n - at < AT_ONCE ? w->n - at : AT_ONCE;
        float *v = NULL;
        uint32_t dim = 0;
        uint64_t counted = 0;
        is_status st;

        if (__atomic_load_n(is_request_cancel(r), __ATOMIC_ACQUIRE))
            return is_fail(INFERSCALE_E_CANCELLED, "the request was cancelled");
        st = inferscale_embed_whole(s->is, w->texts + at, n, w->truncate, cut, &v, &dim, &counted);
        if (st == INFERSCALE_E_CONTEXT) return too_long(at, cut);
        IS_TRY(st);
        *tokens += (json_int_t)counted;
        for (size_t i = 0; w->truncate && i < n; i++)
            if (cut[i]) json_array_append_new(truncated, json_integer((json_int_t)(at + i)));
        if (w->dimensions && w->dimensions != dim)
            st = is_fail(INFERSCALE_E_INVALID, "this embedder's vectors have %u dimensions, not %u; leave dimensions out", dim,
                         w->dimensions);
        else
            st = add_vectors(data, w, v, n, dim) ? INFERSCALE_OK
                                                 : is_fail(INFERSCALE_E_NOMEM, "out of memory; send fewer texts");
        inferscale_vectors_free(v);
        IS_TRY(st);
    }
    return INFERSCALE_OK;
}

static void answer(is_server *s, is_request *r, const wanted *w)
{
    char name[128];
    json_t *data, *cut, *body;
    json_int_t tokens = 0;
    is_status st;

    is_oa_embedder_name(s, name, sizeof name);
    if (w->model && strcmp(w->model, name) != 0) {
        is_oa_not_a_model(r, w->model, name, "");
        return;
    }
    data = json_array();
    cut = json_array();
    st = data && cut ? embed(s, r, w, data, cut, &tokens) : is_fail(INFERSCALE_E_NOMEM, "out of memory; try again later");
    if (st != INFERSCALE_OK) {
        json_decref(data);
        json_decref(cut);
        is_reply_failed(r, st, st == INFERSCALE_E_CONTEXT ? "input" : st == INFERSCALE_E_INVALID && w->dimensions ? "dimensions" : NULL);
        return;
    }
    body = json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", data, "model", name, "usage", "prompt_tokens", tokens,
                     "total_tokens", tokens);
    if (json_array_size(cut)) json_object_set(body, "truncated", cut);
    json_decref(cut);
    is_reply_json(r, 200, body);
}

void is_oa_handle_embeddings(is_server *s, is_request *r)
{
    json_t *body = is_request_json(r);
    wanted w = { 0 };
    is_oa_fault f;

    if (!body) return;
    if (read_wanted(body, &w, &f)) answer(s, r, &w);
    else is_oa_reply_fault(r, &f);
    is_free(w.texts);
}
