/* embedder.c - embeddings from any OpenAI-style endpoint: POST {base}/embeddings with a model and a list of texts.
 *
 * The spec is "http(s)://host[:port]/v1#model". One text is embedded when it is opened: that says early whether the endpoint
 * works, and how many dimensions its vectors have. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "embed/http/pool.h"
#include "engine/entry.h"

enum {
    BATCH = 64,
    MAX_DIM = 65536,
    MORE_TEXTS = 10,             /* so many more texts make the limit for the first byte twice as long */
    MAX_TEXT = 8000,             /* bytes: at most as many tokens, under the 8,191 of OpenAI's models */
};

typedef struct embedder {
    http_pool *pool;
    char *url, *model;           /* url: {base}/embeddings */
    uint32_t dim;
    uint8_t fingerprint[IS_HASH_BYTES];
} embedder;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the HTTP embedder; free some and try again");
}

static void embedder_close(void *impl)
{
    embedder *e = impl;
    if (!e) return;
    http_pool_free(e->pool);
    is_free(e->url);
    is_free(e->model);
    is_free(e);
}

/* "http://host/v1#model" -> {base}/embeddings and the model. */
static is_status read_spec(embedder *e, const char *spec)
{
    static const char tail[] = "/embeddings";
    const char *hash = strchr(spec, '#'), *host = strstr(spec, "://"), *at = host ? strchr(host, '@') : NULL;
    size_t n = hash ? (size_t)(hash - spec) : strlen(spec);
    is_buf url = IS_BUF_INIT;

    if (!hash || !hash[1])
        return is_fail(INFERSCALE_E_INVALID, "the embedder's URL names no model; write it as http://host:port/v1#MODEL");
    if (!host || host[3] == 0 || host[3] == '/' || host[3] == '#')
        return is_fail(INFERSCALE_E_INVALID, "the embedder's URL has no host; write it as http://host:port/v1#MODEL");
    if (at && at < spec + n && !memchr(host + 3, '/', (size_t)(at - host - 3)))
        return is_fail(INFERSCALE_E_INVALID,
                       "the embedder's URL holds a user or password; give the key with --embedder-key or "
                       "$INFERSCALE_EMBEDDER_KEY");
    while (n && spec[n - 1] == '/') n--;
    if (n > sizeof tail && memcmp(spec + n - (sizeof tail - 1), tail, sizeof tail - 1) == 0) n -= sizeof tail - 1;
    is_buf_add(&url, spec, n);
    is_buf_str(&url, tail);
    e->url = is_buf_take(&url);
    e->model = is_strdup(hash + 1);
    return e->url && e->model ? INFERSCALE_OK : no_memory();
}

/* ---- Request and answer -------------------------------------------------------------------------------------------------- */

static int add_bytes(const char *p, size_t n, void *buf)
{
    is_buf_add(buf, p, n);
    return is_buf_ok(buf) ? 0 : -1;
}

/* Into a buffer of ours: which allocator the process gave jansson is the host's business. */
static is_status make_body(const embedder *e, const char *const *texts, size_t n, is_buf *out)
{
    json_t *input = json_array(), *body = json_object();
    bool ok = input && body;

    for (size_t i = 0; ok && i < n; i++) {
        size_t len = strlen(texts[i]);
        if (len > MAX_TEXT) len = is_utf8_whole(texts[i], MAX_TEXT);
        ok = json_array_append_new(input, json_stringn(texts[i], len)) == 0;
    }
    ok = ok && json_object_set_new(body, "model", json_string(e->model)) == 0 && json_object_set(body, "input", input) == 0 &&
         json_object_set_new(body, "encoding_format", json_string("float")) == 0;
    ok = ok && json_dump_callback(body, add_bytes, out, JSON_COMPACT) == 0;
    json_decref(input);
    json_decref(body);
    return ok ? INFERSCALE_OK : is_fail(INFERSCALE_E_INVALID,
                                          "the texts or the model's name cannot be written as JSON; check that they are UTF-8");
}

/* What the server says went wrong, in one printable line: {"error":{"message":...}}, {"detail":...} or the body. */
static void server_says(const is_buf *response, char out[200])
{
    json_t *root = response->len ? json_loadb((const char *)response->data, response->len, 0, NULL) : NULL;
    json_t *error = json_object_get(root, "error");
    const char *s = json_string_value(json_is_string(error) ? error : json_object_get(error, "message"));
    size_t n = 0;

    if (!s) s = json_string_value(json_object_get(root, "detail"));
    if (!s) s = response->len ? (const char *)response->data : "no message";
    for (; *s && n < 180; s++) out[n++] = (unsigned char)*s < 0x20 || *s == 0x7f ? ' ' : *s;
    n = is_utf8_whole(out, n);
    out[n] = 0;
    json_decref(root);
}

static is_status refused(const embedder *e, long code, const is_buf *response)
{
    char says[200];

    server_says(response, says);
    if (code == 401 || code == 403)
        return is_fail(INFERSCALE_E_DENIED,
                       "%s refuses the API key (HTTP %ld: %s); set $INFERSCALE_EMBEDDER_KEY or --embedder-key", e->url, code,
                           says);
    if (code == 404)
        return is_fail(INFERSCALE_E_ENGINE,
                       "%s is not there or knows no model \"%s\" (HTTP 404: %s); check the URL's path and model", e->url,
                       e->model, says);
    if (code >= 300 && code < 400)
        return is_fail(INFERSCALE_E_ENGINE,
                       "%s redirects (HTTP %ld), and the key is not sent elsewhere; use the final address", e->url, code);
    return is_fail(INFERSCALE_E_ENGINE, "%s failed (HTTP %ld: %s); see its log, then try again", e->url, code, says);
}

static is_status read_vector(const embedder *e, const json_t *vector, uint32_t dim, float *out)
{
    double square = 0;

    if (!json_is_array(vector)) return is_fail(INFERSCALE_E_ENGINE,
                                               "%s answers without numbers; it must support encoding_format float", e->url);
    if (json_array_size(vector) != dim)
        return is_fail(INFERSCALE_E_ENGINE, "%s gives vectors of %zu and of %u dimensions; use one model", e->url,
                       json_array_size(vector), dim);
    for (uint32_t d = 0; d < dim; d++) {
        const json_t *x = json_array_get(vector, d);
        if (!json_is_number(x)) return is_fail(INFERSCALE_E_ENGINE, "%s gives a vector with something that is no number",
                                               e->url);
        out[d] = (float)json_number_value(x);
        square += (double)out[d] * out[d];
    }
    if (!(square > 0) || !isfinite(square)) return is_fail(INFERSCALE_E_ENGINE,
                                                           "%s gives a vector without length; check its model", e->url);
    for (uint32_t d = 0; d < dim; d++) out[d] = (float)(out[d] / sqrt(square));
    return INFERSCALE_OK;
}

/* data: [{"index": i, "embedding": [...]}], in any order. *dim 0: taken from the first vector (out is then NULL). */
static is_status read_data(const embedder *e, const json_t *data, size_t n, uint32_t *dim, float *out)
{
    bool seen[BATCH] = {false};

    if (!json_is_array(data) || json_array_size(data) != n)
        return is_fail(INFERSCALE_E_ENGINE, "%s answers %zu vectors for %zu texts; check that it is an embeddings endpoint",
                       e->url,
                       json_array_size(data), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(data, i), *index = json_object_get(entry, "index"),
            *vector = json_object_get(entry, "embedding");
        json_int_t at = json_is_integer(index) ? json_integer_value(index) : (json_int_t)i;
        if (at < 0 || at >= (json_int_t)n || seen[at]) return is_fail(INFERSCALE_E_ENGINE, "%s numbers its vectors wrongly",
                                                                      e->url);
        seen[at] = true;
        if (*dim == 0) {
            size_t size = json_array_size(vector);
            if (size == 0 || size > MAX_DIM)
                return is_fail(INFERSCALE_E_ENGINE, "%s gives vectors of %zu dimensions; 1 to %d are supported", e->url, size,
                               MAX_DIM);
            *dim = (uint32_t)size;
        }
        if (out) IS_TRY(read_vector(e, vector, *dim, out + (size_t)at * *dim));
    }
    return INFERSCALE_OK;
}

/* The call's limit is for one text; the endpoint may take more time for more. */
static uint32_t wait_ms(const is_embed_call *call, size_t n)
{
    return call->wait_ms + (uint32_t)(n - 1) * (call->wait_ms / MORE_TEXTS);
}

/* call->n_tokens += what the endpoint says that it has counted. */
static is_status request(const embedder *e, const char *const *texts, size_t n, uint32_t *dim, float *out, is_embed_call *call)
{
    const http_call how = { .cancel = call->cancel, .stop = call->stop, .wait_ms = call->wait_ms ? wait_ms(call, n) : 0 };
    is_buf response = IS_BUF_INIT, body = IS_BUF_INIT;
    json_error_t error;
    json_t *root = NULL;
    long code = 0;
    is_status st;

    IS_TRY_GOTO(st, end, make_body(e, texts, n, &body));
    IS_TRY_GOTO(st, end, http_pool_post(e->pool, (const char *)body.data, &code, &response, &how));
    if (code != 200) IS_TRY_GOTO(st, end, refused(e, code, &response));
    root = json_loadb(response.data ? (const char *)response.data : "", response.len, 0, &error);
    if (!root)
        st = is_fail(INFERSCALE_E_ENGINE,
                     "%s does not answer in JSON (%s); check that the URL ends in the API's path, like /v1", e->url,
                         error.text);
    else st = read_data(e, json_object_get(root, "data"), n, dim, out);
    json_int_t counted = json_integer_value(json_object_get(json_object_get(root, "usage"), "prompt_tokens"));
    if (st == INFERSCALE_OK && counted > 0) call->n_tokens += (uint64_t)counted;
end:
    json_decref(root);
    is_buf_free(&body);
    is_buf_free(&response);
    return st;
}

/* ---- The table ----------------------------------------------------------------------------------------------------------- */

static is_status make_fingerprint(embedder *e)
{
    is_hash *h;
    IS_TRY(is_hash_new(NULL, &h));
    is_hash_field(h, "http", 4);
    is_hash_field(h, e->url, strlen(e->url));
    is_hash_field(h, e->model, strlen(e->model));
    is_hash_u64(h, e->dim);
    is_hash_end(h, e->fingerprint);
    return INFERSCALE_OK;
}

static is_status embedder_open(const is_embedder_opts *o, void **impl)
{
    is_embed_call call = { .cancel = o->cancel, .wait_ms = o->wait_ms };
    static const char *const probe[] = {"dimensions"};
    embedder *e = is_calloc(1, sizeof *e);
    is_status st;

    *impl = NULL;
    if (!e) return no_memory();
    IS_TRY_GOTO(st, failed, read_spec(e, o->spec));
    IS_TRY_GOTO(st, failed, http_pool_new(e->url, o->key, &e->pool));
    IS_TRY_GOTO(st, failed, request(e, probe, 1, &e->dim, NULL, &call));
    IS_TRY_GOTO(st, failed, make_fingerprint(e));
    *impl = e;
    return INFERSCALE_OK;
failed:
    embedder_close(e);
    return st;
}

static uint32_t embedder_dim(void *impl)
{
    return ((embedder *)impl)->dim;
}

static void embedder_fingerprint(void *impl, uint8_t out[IS_HASH_BYTES])
{
    memcpy(out, ((embedder *)impl)->fingerprint, IS_HASH_BYTES);
}

static is_status embedder_embed(void *impl, const char *const *texts, size_t n, float *out, is_embed_call *call)
{
    const embedder *e = impl;
    uint32_t dim = e->dim;

    for (size_t i = 0; i < n; i++)
        if (is_utf8_blank(texts[i], strlen(texts[i])))
            return is_fail(INFERSCALE_E_INVALID, "text %zu is blank and has no meaning to embed; leave it out", i + 1);
    for (size_t i = 0; i < n; i = call->n_done) {
        size_t some = n - i < BATCH ? n - i : BATCH;

        IS_TRY(request(e, texts + i, some, &dim, out + i * dim, call));
        call->n_done = i + some;
    }
    return INFERSCALE_OK;
}

/* What the endpoint's tokens are only the endpoint knows. */
static is_status embedder_measure(void *impl, const char *text, is_embed_size *out)
{
    const size_t len = strlen(text);

    (void)impl;
    *out = (is_embed_size){ .n = len > UINT32_MAX ? UINT32_MAX : (uint32_t)len, .most = MAX_TEXT, .unit = "bytes" };
    return INFERSCALE_OK;
}

static const is_embedder_vtable vtable = {
    .name = "http",
    .remote = true,
    .open = embedder_open,
    .close = embedder_close,
    .dim = embedder_dim,
    .fingerprint = embedder_fingerprint,
    .embed = embedder_embed,
    .measure = embedder_measure,
};

const is_plugin *inferscale_plugin(const is_host *host)
{
    static const is_plugin plugin = {.abi = IS_ENGINE_ABI, .name = "embed-http", .version = INFERSCALE_VERSION,
                                     .embedder = &vtable};

    return is_plugin_enter(host) ? &plugin : NULL;
}
