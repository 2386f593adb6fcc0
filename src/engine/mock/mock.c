/* mock.c - the plug-in's entry, and what the mock says of itself. mock.h says what it is. */
#include "engine/chat_pieces.h"
#include "engine/entry.h"
#include "engine/mock/mock.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

static void mock_close(void *impl)
{
    mock *m = impl;

    if (!m) return;
    is_chat_format_free(&m->chat);
    mock_witness_close(m);
    pthread_mutex_destroy(&m->lock);
    is_free(m->revoked);
    is_free(m->kept);
    is_free(m->captured);
    is_free(m->vault);
    is_rope_free(m->rope);
    is_geometry_free(m->geometry);
    is_free(m);
}

static is_status open_chat(mock *m)
{
    bool plain = m->opt.nochat;

    m->chat.system_open = is_strdup(plain ? "" : "<|system|>\n");
    m->chat.system_close = is_strdup(plain ? "\n\n" : "<|end|>\n");
    m->chat.user_open = is_strdup(plain ? "User: " : "<|user|>\n");
    m->chat.user_close = is_strdup(plain ? "\n" : "<|end|>\n");
    m->chat.assistant_open = is_strdup(plain ? "Assistant: " : "<|assistant|>\n");
    m->chat.assistant_close = is_strdup(plain ? "\n" : "<|end|>\n");
    if (m->chat.system_open && m->chat.system_close && m->chat.user_open && m->chat.user_close && m->chat.assistant_open &&
        m->chat.assistant_close)
        return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for the chat format; free some and try again");
}

static is_status mock_open(const is_engine_opts *opts, void **impl)
{
    mock *m = is_calloc(1, sizeof *m);
    is_status st = INFERSCALE_OK;

    *impl = NULL;
    if (!m) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for an engine; free some and try again");
    m->witness_fd = m->steps_fd = -1;
    pthread_mutex_init(&m->lock, NULL);
    IS_TRY_GOTO(st, fail, mock_opts_parse(opts->model_path, &m->opt));
    IS_TRY_GOTO(st, fail, mock_witness_open(m));
    IS_TRY_GOTO(st, fail, mock_load_time(&m->opt, opts->cancel));
    if (!m->opt.n_ctx) m->opt.n_ctx = opts->n_ctx ? opts->n_ctx : 8192;
    if (m->opt.n_ctx > (1u << 20)) {
        st = is_fail(INFERSCALE_E_INVALID, "mock: a context of %u tokens is too large; use at most %u", m->opt.n_ctx, 1u << 20);
        goto fail;
    }
    m->vault = opts->home ? is_path_join(opts->home, "vault") : NULL;
    if (opts->home && !m->vault) {
        st = is_fail(INFERSCALE_E_NOMEM, "mock: no memory for the vault's name; free some and try again");
        goto fail;
    }
    m->seed = mock_mix(0x6d6f636b, m->opt.id);
    is_hash_once(NULL, &m->seed, sizeof m->seed, m->fingerprint);
    m->geometry = mock_geometry();
    if (!m->geometry) {
        st = is_fail(INFERSCALE_E_NOMEM, "mock: no memory for the geometry; free some and try again");
        goto fail;
    }
    IS_TRY_GOTO(st, fail, is_geometry_check(m->geometry));
    IS_TRY_GOTO(st, fail, is_rope_new(m->geometry, m->opt.n_ctx, &m->rope));
    IS_TRY_GOTO(st, fail, open_chat(m));
    *impl = m;
    return INFERSCALE_OK;
fail:
    mock_close(m);
    return st;
}

static is_status mock_info(void *impl, is_engine_info *out)
{
    const mock *m = impl;

    memset(out, 0, sizeof *out);
    snprintf(out->engine, sizeof out->engine, "mock 1");
    snprintf(out->name, sizeof out->name, m->opt.id ? "mock-%u" : "mock", m->opt.id);
    snprintf(out->arch, sizeof out->arch, "mock");
    snprintf(out->weights, sizeof out->weights, "none");
    memcpy(out->fingerprint, m->fingerprint, sizeof out->fingerprint);
    out->can_inject = !m->opt.noinject;
    if (m->opt.noinject) snprintf(out->why_not, sizeof out->why_not, "the mock was told not to inject (noinject)");
    out->has_chat_template = !m->opt.nochat;
    out->n_params = 1;
    out->n_layers = MOCK_LAYERS;
    out->n_ctx = m->opt.n_ctx;
    out->n_ctx_train = m->opt.n_ctx;
    out->n_vocab = MOCK_VOCAB;
    out->longest_piece = m->opt.unsized ? 0 : 2;
    out->n_threads = 1;
    out->n_batch = MOCK_BATCH;
    out->n_capture_spans = m->opt.noinject ? 0 : MOCK_SPANS;
    out->remote = out->unrotated = m->opt.remote;
    out->exact_codec = m->opt.remote ? IS_CODEC_BF16 : IS_CODEC_F16; /* what is in its rows both hold without loss */
    out->default_codec = out->exact_codec; /* tests compare its rows bit for bit */
    return INFERSCALE_OK;
}

static const is_geometry *mock_get_geometry(void *impl)
{
    const mock *m = impl;
    return m->opt.noinject ? NULL : m->geometry;
}

static const is_chat_format *mock_chat_format(void *impl)
{
    return &((mock *)impl)->chat;
}

static const is_engine_vtable mock_engine = {
    .name = "mock", .open = mock_open, .close = mock_close, .info = mock_info, .geometry = mock_get_geometry,
    .chat_format = mock_chat_format, .tokenize = mock_tokenize, .tokens_free = mock_tokens_free,
    .token_piece = mock_token_piece, .is_eog = mock_is_eog, .capture = mock_seen_capture, .begin = mock_whole_begin,
    .more = mock_whole_more, .token = mock_whole_token, .left = mock_left, .step = mock_seen_step, .undo = mock_seen_undo,
    .finish = mock_finish, .stats = mock_stats, .sample = mock_seen_sample, .logits = mock_logits, .run_tokens = mock_run_tokens,
    .revoke = mock_revoke, .rest = mock_rest, .upstreams = mock_upstreams,
};

static const is_plugin plugin = {
    .abi = IS_ENGINE_ABI, .name = "mock", .version = "1", .engine = &mock_engine, .embedder = &mock_embedder,
};

const is_plugin *inferscale_plugin(const is_host *host)
{
    return is_plugin_enter(host) ? &plugin : NULL;
}
