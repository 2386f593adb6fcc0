/* embed.c - the host's side of an embedder: finds its plug-in, checks texts and vectors, gives turns. */
#include "embed/embed.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "embed/turns.h"
#include "engine/engine.h"

struct is_embedder {
    const is_embedder_vtable *v;
    void *impl;
    uint32_t dim;
    uint8_t fingerprint[IS_HASH_BYTES];
    uint32_t wait_ms;   /* of a question */
    const volatile int *stop; /* ends a question's wait for an endpoint; NULL = none */
    is_turns turns;     /* not used if v->remote */
};

enum { MAX_DIM = 65536, GROUP = 8 /* texts of a question's turn: a pass of the llama embedder */ };

static bool is_url(const char *spec)
{
    return strncmp(spec, "http://", 7) == 0 || strncmp(spec, "https://", 8) == 0;
}

is_status is_embedder_open(const char *plugin_dir, const char *engine, const char *spec, const char *key, uint32_t n_threads,
                           is_embedder **out)
{
    const is_embedder_plug plug = { .plugin_dir = plugin_dir, .engine = engine, .spec = spec, .key = key, .n_threads = n_threads };

    return is_embedder_open_with(&plug, out);
}

is_status is_embedder_open_with(const is_embedder_plug *plug, is_embedder **out)
{
    const uint32_t wait_ms = plug->wait_ms ? plug->wait_ms : IS_EMBED_WAIT_MS;
    const is_embedder_opts o = { .spec = plug->spec, .key = plug->key, .n_threads = plug->n_threads, .cancel = plug->cancel,
                                 .wait_ms = plug->patient ? 0 : wait_ms };
    const is_plugin *plugin = NULL;
    const char *name;

    *out = NULL;
    if (!o.spec || !*o.spec) return is_fail(INFERSCALE_E_INVALID, "no embedder given; name a GGUF file or an http(s) URL");
    name = is_url(o.spec) ? "embed-http" : plug->engine && *plug->engine ? plug->engine : "llama";
    IS_TRY(is_plugin_load(plug->plugin_dir, name, &plugin));
    if (!plugin->embedder)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "the plug-in %s has no embedder; use the llama engine's or an http(s) URL",
                       name);
    is_embedder *e = is_calloc(1, sizeof *e);
    if (!e) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the embedder; free some and try again");
    e->v = plugin->embedder;
    e->wait_ms = wait_ms;
    e->stop = plug->cancel;
    is_turns_init(&e->turns);
    is_status st = e->v->open(&o, &e->impl);
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
    is_turns_destroy(&e->turns);
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

bool is_embedder_is_remote(const is_embedder *e)
{
    return e->v->remote;
}

bool is_embedder_scale(const is_embedder *e, double *low, double *high)
{
    *low = (double)e->v->cosine_low;
    *high = (double)e->v->cosine_high;
    return *low < *high;
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

static is_status cancelled(void)
{
    return is_fail(INFERSCALE_E_CANCELLED, "cancelled while texts were embedded; embed them again");
}

static is_status check_vectors(const is_embedder *e, const float *v, size_t n)
{
    for (size_t i = 0; i < n * e->dim; i++)
        if (!isfinite(v[i]))
            return is_fail(INFERSCALE_E_ENGINE,
                           "the embedder gave a value that is no number for text %zu; check the embedder's model",
                           i / e->dim + 1);
    return INFERSCALE_OK;
}

/* Group by group, so that a question of many texts does not keep the others waiting. */
static is_status in_turns(is_embedder *e, const char *const *texts, size_t n, float *out, is_embed_call *call)
{
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i += GROUP) {
        if (!is_turns_question(&e->turns, call->cancel)) return cancelled();
        st = e->v->embed(e->impl, texts + i, n - i < GROUP ? n - i : GROUP, out + i * e->dim, call);
        is_turns_end(&e->turns, 0);
    }
    return st;
}

static is_status embed_by(is_embedder *e, const char *const *texts, size_t n, float *out, is_embed_call *call)
{
    if (n == 0) return INFERSCALE_OK;
    IS_TRY(check_texts(texts, n));
    if (e->v->remote) IS_TRY(e->v->embed(e->impl, texts, n, out, call));
    else IS_TRY(in_turns(e, texts, n, out, call));
    return check_vectors(e, out, n);
}

static is_status embed(is_embedder *e, const char *const *texts, size_t n, float *out, uint64_t *n_tokens, const volatile int *cancel)
{
    is_embed_call call = { .cancel = cancel, .stop = e->v->remote ? e->stop : NULL,
                           .wait_ms = e->wait_ms };

    IS_TRY(embed_by(e, texts, n, out, &call));
    if (n_tokens) *n_tokens = call.n_tokens;
    return INFERSCALE_OK;
}

is_status is_embedder_embed(is_embedder *e, const char *const *texts, size_t n, float *out)
{
    return embed(e, texts, n, out, NULL, NULL);
}

is_status is_embedder_embed_until(is_embedder *e, const char *const *texts, size_t n, float *out, const volatile int *cancel)
{
    return embed(e, texts, n, out, NULL, cancel);
}

is_status is_embedder_embed_within(is_embedder *e, const char *const *texts, size_t n, float *out, uint32_t wait_ms)
{
    is_embed_call call = { .wait_ms = wait_ms < e->wait_ms ? wait_ms : e->wait_ms };

    return embed_by(e, texts, n, out, &call);
}

static is_status measure(is_embedder *e, const char *text, bool may_cut, int *cut)
{
    is_embed_size size = { 0 };
    is_status st;

    if (!e->v->remote) is_turns_question(&e->turns, NULL);
    st = e->v->measure(e->impl, text, &size);
    if (!e->v->remote) is_turns_end(&e->turns, 0);
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

/* A turn of several texts is ended by a question that comes; a turn of one is not. *n_done: texts that are done, also on failure. */
static is_status background_turn(is_embedder *e, const char *const *texts, size_t n, float *out, const volatile int *cancel, size_t *n_done)
{
    is_embed_call call = { .cancel = cancel };
    size_t most = is_turns_background(&e->turns, n, cancel);
    is_status st;

    *n_done = 0;
    if (!most) return cancelled();
    if (most > 1) call.stop = is_turns_flag(&e->turns);
    st = e->v->embed(e->impl, texts, most, out, &call);
    is_turns_end(&e->turns, call.n_done);
    *n_done = call.n_done;
    if (st != INFERSCALE_E_CANCELLED || !call.stop) return st;
    return cancel && __atomic_load_n(cancel, __ATOMIC_ACQUIRE) ? st : INFERSCALE_OK; /* else a question has ended the turn */
}

is_status is_embedder_embed_background(is_embedder *e, const char *const *texts, size_t n, float *out, const volatile int *cancel)
{
    is_embed_call call = { .cancel = cancel };

    IS_TRY(check_texts(texts, n));
    if (e->v->remote && n) IS_TRY(e->v->embed(e->impl, texts, n, out, &call));
    for (size_t i = 0, done; !e->v->remote && i < n; i += done)
        IS_TRY(background_turn(e, texts + i, n - i, out + i * e->dim, cancel, &done));
    return check_vectors(e, out, n);
}

void is_embedder_line(is_embedder *e, uint32_t *n_questions, uint32_t *n_background)
{
    is_turns_line(&e->turns, n_questions, n_background);
}

void is_quantize_i8(const float *v, uint32_t dim, int8_t *q, float *scale)
{
    float most = 0;
    for (uint32_t d = 0; d < dim; d++)
        if (fabsf(v[d]) > most) most = fabsf(v[d]);
    *scale = most / 127.0f;
    for (uint32_t d = 0; d < dim; d++) q[d] = most > 0 ? (int8_t)lrintf(v[d] / most * 127.0f) : 0;
}
