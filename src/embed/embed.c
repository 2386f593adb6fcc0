/* embed.c - the host's side of an embedder: finds its plug-in, checks texts and vectors, serialises calls. */
#include "embed/embed.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/engine.h"

struct is_embedder {
    const is_embedder_vtable *v;
    void *impl;
    uint32_t dim;
    uint8_t fingerprint[IS_HASH_BYTES];
    pthread_mutex_t lock;
};

enum { MAX_DIM = 65536 };

static bool is_url(const char *spec)
{
    return strncmp(spec, "http://", 7) == 0 || strncmp(spec, "https://", 8) == 0;
}

is_status is_embedder_open(const char *plugin_dir, const char *engine, const char *spec, const char *key, uint32_t n_threads,
                           is_embedder **out)
{
    const is_plugin *plugin = NULL;
    const char *name;

    *out = NULL;
    if (!spec || !*spec) return is_fail(INFERSCALE_E_INVALID, "no embedder given; name a GGUF file or an http(s) URL");
    name = is_url(spec) ? "embed-http" : engine && *engine ? engine : "llama";
    IS_TRY(is_plugin_load(plugin_dir, name, &plugin));
    if (!plugin->embedder)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "the plug-in %s has no embedder; use the llama engine's or an http(s) URL",
                       name);
    is_embedder *e = is_calloc(1, sizeof *e);
    if (!e) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the embedder; free some and try again");
    e->v = plugin->embedder;
    pthread_mutex_init(&e->lock, NULL);
    is_status st = e->v->open(spec, key, n_threads, &e->impl);
    if (st == INFERSCALE_OK) {
        e->dim = e->v->dim(e->impl);
        e->v->fingerprint(e->impl, e->fingerprint);
        if (e->dim == 0 || e->dim > MAX_DIM)
            st = is_fail(INFERSCALE_E_UNSUPPORTED, "the embedder's vectors have %u dimensions; 1 to %d are supported", e->dim,
                         MAX_DIM);
    }
    if (st != INFERSCALE_OK) {
        is_embedder_close(e);
        return st;
    }
    *out = e;
    return INFERSCALE_OK;
}

void is_embedder_close(is_embedder *e)
{
    if (!e) return;
    if (e->impl) e->v->close(e->impl);
    pthread_mutex_destroy(&e->lock);
    is_free(e);
}

uint32_t is_embedder_dim(is_embedder *e)
{
    return e->dim;
}

const uint8_t *is_embedder_fingerprint(is_embedder *e)
{
    return e->fingerprint;
}

static is_status check_texts(const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = texts[i] ? strlen(texts[i]) : 0, bad = 0;
        if (!is_utf8_valid(texts[i] ? texts[i] : "", len, &bad))
            return is_fail(INFERSCALE_E_INVALID, "text %zu is not UTF-8 at byte %zu; convert it first", i + 1, bad);
        if (is_utf8_blank(texts[i] ? texts[i] : "", len))
            return is_fail(INFERSCALE_E_INVALID, "text %zu is blank and has no meaning to embed; leave it out", i + 1);
    }
    return INFERSCALE_OK;
}

static is_status embed_locked(is_embedder *e, const char *const *texts, size_t n, float *out, uint64_t *n_tokens, is_gate *gate)
{
    is_status st = INFERSCALE_E_CANCELLED;

    pthread_mutex_lock(&e->lock);
    if (!gate || is_gate_open(gate)) st = e->v->embed(e->impl, texts, n, out, n_tokens, gate ? is_gate_flag(gate) : NULL);
    pthread_mutex_unlock(&e->lock);
    if (gate && st == INFERSCALE_E_CANCELLED)
        return is_fail(INFERSCALE_E_BUSY, "a question came first; wait until it is answered and embed again");
    return st;
}

static is_status embed(is_embedder *e, const char *const *texts, size_t n, float *out, uint64_t *n_tokens, is_gate *gate)
{
    if (n == 0) return INFERSCALE_OK;
    IS_TRY(check_texts(texts, n));
    IS_TRY(embed_locked(e, texts, n, out, n_tokens, gate));
    for (size_t i = 0; i < n * e->dim; i++)
        if (!isfinite(out[i]))
            return is_fail(INFERSCALE_E_ENGINE,
                           "the embedder gave a value that is no number for text %zu; check the embedder's model",
                           i / e->dim + 1);
    return INFERSCALE_OK;
}

is_status is_embedder_embed(is_embedder *e, const char *const *texts, size_t n, float *out)
{
    return embed(e, texts, n, out, NULL, NULL);
}

static is_status measure(is_embedder *e, const char *text, bool may_cut, int *cut)
{
    is_embed_size size = { 0 };
    is_status st;

    pthread_mutex_lock(&e->lock);
    st = e->v->measure(e->impl, text, &size);
    pthread_mutex_unlock(&e->lock);
    bool is_long = st == INFERSCALE_OK && size.most && size.n > size.most;
    if (cut) *cut = is_long;
    if (!is_long || may_cut) return st;
    return is_fail(INFERSCALE_E_CONTEXT, "a text is longer than the %u %s that this embedder reads; split it", size.most, size.unit);
}

is_status is_embedder_embed_counted(is_embedder *e, const char *const *texts, size_t n, bool may_cut, float *out, uint64_t *n_tokens, int *cut)
{
    *n_tokens = 0;
    for (size_t i = 0; cut && i < n; i++) cut[i] = 0;
    IS_TRY(check_texts(texts, n));
    for (size_t i = 0; i < n; i++) IS_TRY(measure(e, texts[i], may_cut, cut ? &cut[i] : NULL));
    return embed(e, texts, n, out, n_tokens, NULL);
}

is_status is_embedder_embed_background(is_embedder *e, const char *const *texts, size_t n, float *out, is_gate *gate)
{
    return embed(e, texts, n, out, NULL, gate);
}

void is_quantize_i8(const float *v, uint32_t dim, int8_t *q, float *scale)
{
    float most = 0;
    for (uint32_t d = 0; d < dim; d++)
        if (fabsf(v[d]) > most) most = fabsf(v[d]);
    *scale = most / 127.0f;
    for (uint32_t d = 0; d < dim; d++) q[d] = most > 0 ? (int8_t)lrintf(v[d] / most * 127.0f) : 0;
}
