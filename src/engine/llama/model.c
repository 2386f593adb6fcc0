/* model.c - opening a model: validate the file, load it, choose flash attention, read the geometry, test injection. */
#include "engine/chat_pieces.h"
#include "engine/llama/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The package that libllama was built from, if the Makefile knows it: libllama's own version says less. */
#ifndef IS_LLAMA_FROM
#define IS_LLAMA_FROM ""
#endif

enum { N_CTX_DEFAULT = 8192, N_BATCH_MAX = 2048, STREAMS_MORE = 1 };

void is_llama_refuse(is_llama *e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(e->info.why_not, sizeof e->info.why_not, fmt, ap);
    va_end(ap);
    e->info.can_inject = false;
    e->info.n_capture_spans = 0;
    is_geometry_free(e->geometry);
    e->geometry = NULL;
    is_rope_free(e->rope);
    e->rope = NULL;
    is_layout_free(&e->layout);
    is_log(IS_LOG_WARN, "KV cannot be injected into %s: %s; its memory is served as text", e->info.name, e->info.why_not);
}

struct llama_context *is_llama_context(is_llama *e, uint32_t n_ctx, uint32_t n_seq, uint32_t n_batch, bool flash_attention,
                                       bool whole, bool streams, is_tap *tap)
{
    struct llama_context_params p = llama_context_default_params();
    struct llama_context *ctx;

    p.n_ctx = n_ctx;
    p.n_batch = n_batch;
    p.n_ubatch = UBATCH;
    p.n_seq_max = n_seq;
    p.n_outputs_max = n_seq; /* one token of logits a run; the default reserves a whole batch of them */
    p.n_threads = p.n_threads_batch = (int32_t)e->info.n_threads;
    p.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p.type_k = p.type_v = GGML_TYPE_F16; /* a quantised K cache is rotated by a Hadamard matrix as well */
    p.kv_unified = !streams;
    p.swa_full = whole;
    p.offload_kqv = false;
    p.abort_callback = is_llama_abort;
    p.abort_callback_data = e;
    if (tap) {
        p.cb_eval = is_tap_eval;
        p.cb_eval_user_data = tap;
    }
    is_llama_clear_error();
    is_shim_clear();
    ctx = is_shim_context_new(e->model, p);
    if (ctx && e->pool) llama_attach_threadpool(ctx, e->pool, e->pool);
    return ctx;
}

/* Threads of our own that sleep between decodes: without OpenMP, ggml would start and join them at every one. */
static void make_pool(is_llama *e)
{
    struct ggml_threadpool_params p = ggml_threadpool_params_default((int)e->info.n_threads);

    if (e->info.n_threads < 2) return;
    p.poll = 0;
    e->pool = ggml_threadpool_new(&p);
}

static bool is_off(const is_llama *e)
{
    return e->load_off && __atomic_load_n(e->load_off, __ATOMIC_ACQUIRE);
}

/* libllama's, while it reads tensors: false = no further. */
static bool go_on(float progress, void *engine)
{
    (void)progress;
    return !is_off(engine);
}

static is_status load_model(is_llama *e, const is_engine_opts *o)
{
    struct llama_model_params mp = llama_model_default_params();
    is_gguf_facts facts;

    IS_TRY(is_gguf_check(o->model_path, &facts));
    IS_TRY(is_file_fingerprint(o->model_path, o->cache_dir, o->cancel, e->file_hash));
    mp.n_gpu_layers = 0;
    mp.progress_callback = go_on;
    mp.progress_callback_user_data = e;
    is_llama_clear_error();
    is_shim_clear();
    e->model = is_shim_model_load(o->model_path, mp);
    if (!e->model) {
        const char *why = *is_llama_last_error() ? is_llama_last_error() : is_shim_error();

        return is_fail(INFERSCALE_E_MODEL, "libllama %s cannot load %s (architecture '%s'): %s; use a model that it supports",
                       llama_version(), o->model_path, facts.arch, *why ? why : "no reason given");
    }
    e->vocab = llama_model_get_vocab(e->model);
    snprintf(e->info.weights, sizeof e->info.weights, "%s", facts.weights);
    snprintf(e->info.arch, sizeof e->info.arch, "%s", facts.arch);
    return INFERSCALE_OK;
}

static is_status describe(is_llama *e, const is_engine_opts *o)
{
    is_engine_info *i = &e->info;
    enum llama_ftype type = llama_model_ftype(e->model);
    const char *slash = strrchr(o->model_path, '/');

    snprintf(i->engine, sizeof i->engine, "libllama %s" IS_LLAMA_FROM, llama_version());
    if (llama_model_meta_val_str(e->model, "general.name", i->name, sizeof i->name) <= 0)
        snprintf(i->name, sizeof i->name, "%s", slash ? slash + 1 : o->model_path);
    if (!(type & LLAMA_FTYPE_GUESSED) && strncmp(llama_ftype_name(type), "unknown", 7) != 0)
        snprintf(i->weights, sizeof i->weights, "%s", llama_ftype_name(type));
    i->n_params = llama_model_n_params(e->model);
    i->n_layers = (uint32_t)llama_model_n_layer(e->model);
    i->n_ctx_train = (uint32_t)llama_model_n_ctx_train(e->model);
    i->n_vocab = (uint32_t)llama_vocab_n_tokens(e->vocab);
    i->exact_codec = IS_CODEC_F16; /* is_llama_context: the type of both caches */
    i->default_codec = IS_CODEC_INT8;
    i->n_threads = o->n_threads ? o->n_threads : is_cpu_physical_cores();
    if (i->n_threads > 512) i->n_threads = 512; /* ggml's limit */
    if (!o->n_threads) e->fit_threads = i->n_threads;
    e->n_vocab = i->n_vocab;
    i->longest_piece = is_llama_longest_piece(e);
    e->n_ctx = o->n_ctx ? o->n_ctx : i->n_ctx_train && i->n_ctx_train < N_CTX_DEFAULT ? i->n_ctx_train : N_CTX_DEFAULT;
    if (e->n_ctx > 1u << 22)
        return is_fail(INFERSCALE_E_INVALID, "n_ctx %u is out of range; use at most %u", e->n_ctx, 1u << 22);
    if (e->n_vocab == 0)
        return is_fail(INFERSCALE_E_MODEL, "%s has no vocabulary; use a complete language model", o->model_path);
    if (!llama_model_has_decoder(e->model) || llama_model_has_encoder(e->model) || llama_model_is_diffusion(e->model) ||
        strcmp(i->arch, "bert") == 0 || strstr(i->arch, "-bert"))
        return is_fail(INFERSCALE_E_MODEL, "%s (architecture '%s') is not a decoder-only language model, so it cannot answer; "
                       "use one",
                       o->model_path, i->arch);
    return INFERSCALE_OK;
}

static is_status make_batch(is_llama *e)
{
    e->b_token = is_malloc(e->n_batch * sizeof *e->b_token);
    e->b_ids = is_malloc(e->n_batch * sizeof *e->b_ids);
    e->b_pos = is_malloc(e->n_batch * sizeof *e->b_pos);
    e->b_nseq = is_malloc(e->n_batch * sizeof *e->b_nseq);
    e->b_seq = is_malloc(e->n_batch * sizeof *e->b_seq);
    e->b_out = is_malloc(e->n_batch);
    e->held = is_malloc(e->n_ctx * sizeof *e->held);
    if (!e->b_token || !e->b_ids || !e->b_pos || !e->b_nseq || !e->b_seq || !e->b_out || !e->held)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for a batch of %u tokens", e->n_batch);
    for (uint32_t i = 0; i < e->n_batch; i++) {
        e->b_nseq[i] = 1;
        e->b_seq[i] = &e->b_id;
    }
    return INFERSCALE_OK;
}

static is_status no_context(const is_llama *e)
{
    const char *why = *is_llama_last_error() ? is_llama_last_error() : is_shim_error();

    return is_fail(INFERSCALE_E_MODEL, "a context of %u tokens cannot be made for this model (%s); lower n_ctx or free some "
                   "memory", e->n_ctx,
                   *why ? why : "no reason given");
}

/* Table for capture: (layer, K or V) -> plane. */
static is_status make_tap_table(is_llama *e)
{
    is_tap *t = e->tap;
    uint32_t most = 0;

    for (uint32_t i = 0; i < e->geometry->n_planes; i++)
        if (e->geometry->planes[i].layer > most) most = e->geometry->planes[i].layer;
    is_free(t->plane_of);
    t->n_layers = most + 1;
    t->plane_of = is_malloc(2 * (size_t)t->n_layers * sizeof *t->plane_of);
    if (!t->plane_of) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the capture table");
    for (uint32_t i = 0; i < 2 * t->n_layers; i++) t->plane_of[i] = -1;
    for (uint32_t i = 0; i < e->geometry->n_planes; i++)
        t->plane_of[2 * e->geometry->planes[i].layer + e->geometry->planes[i].is_v] = (int)i;
    return INFERSCALE_OK;
}

/* Why this kind of model cannot take injected KV at all; NULL = it may. */
static const char *kind_refused(const is_llama *e)
{
    enum llama_rope_type rope = llama_model_rope_type(e->model);

    if (llama_model_is_recurrent(e->model)) return "it is a recurrent model: its memory is not a list of keys and values";
    if (llama_model_is_hybrid(e->model)) return "it is a hybrid model: part of its memory is not a list of keys and values";
    if (rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE || rope == LLAMA_ROPE_TYPE_VISION)
        return "it uses a multi-dimensional rotary embedding (M-RoPE)";
    if (strcmp(e->info.arch, "llama4") == 0 && e->n_ctx > (uint32_t)llama_model_n_swa(e->model) &&
        llama_model_n_swa(e->model) > 0)
        return "its layers attend in chunks, and the context is longer than one; lower n_ctx to inject";
    return NULL;
}

/* Geometry, layout, tables. A model that does not fit is refused (OK: it is served as text); other failures are errors. */
static is_status learn(is_llama *e)
{
    const char *why = kind_refused(e);
    is_status st;

    if (why) {
        is_llama_refuse(e, "%s", why);
        return INFERSCALE_OK;
    }
    st = is_probe(e, &e->geometry);
    if (st == INFERSCALE_OK) st = make_tap_table(e);
    if (st == INFERSCALE_OK) st = is_layout_find(e, e->serve, &e->layout);
    e->layout_capture = e->layout;
    e->layout_capture.n_streams = 1;
    if (st == INFERSCALE_OK) st = is_rope_new(e->geometry, e->n_ctx, &e->rope);
    if (st != INFERSCALE_E_UNSUPPORTED) return st;
    is_llama_refuse(e, "%s", is_error());
    is_error_clear();
    return INFERSCALE_OK;
}

/* Cells of the serving context. libllama gives each stream as many, in steps of 256. */
static uint32_t serve_cells(const is_llama *e)
{
    return e->streams ? (e->n_ctx + 255) / 256 * 256 * e->n_seqs : e->n_ctx * e->n_parallel;
}

/* Computes it, and finds out by the way where the cells lie, which are then given back. */
static is_status first_token(is_llama *e, struct llama_context *ctx, is_tap *tap)
{
    is_status st;

    tap->mode = 3;
    tap->n_cells = 0;
    st = is_llama_first_token(e, ctx);
    tap->mode = 0;
    if (st == INFERSCALE_OK) is_cells_untouch(tap);
    return st;
}

/* The two contexts. Flash attention is measured with contexts of its own, which needs the geometry: so on an AUTO without a
 * kept measurement the model is probed with it on first, and the contexts are made again if off is faster. */
static is_status make_contexts(is_llama *e, bool fa)
{
    e->serve = is_llama_context(e, serve_cells(e), e->n_seqs, e->n_batch, fa, false, e->streams, e->tap_serve);
    if (!e->serve && fa) { /* some architectures have no flash attention */
        fa = false;
        e->serve = is_llama_context(e, serve_cells(e), e->n_seqs, e->n_batch, fa, false, e->streams, e->tap_serve);
    }
    if (!e->serve) return no_context(e);
    e->info.flash_attention = fa;
    IS_TRY(first_token(e, e->serve, e->tap_serve));
    if (kind_refused(e)) return INFERSCALE_OK;
    /* Whole: a prefix that spans go on from, one after the other, must not lose the rows that the next one sees. */
    e->capture = is_llama_context(e, e->n_ctx, SEQ_MAX, UBATCH, fa, true, false, e->tap);
    return e->capture ? first_token(e, e->capture, e->tap) : no_context(e);
}

static void drop_contexts(is_llama *e)
{
    if (e->serve) llama_free(e->serve);
    if (e->capture) llama_free(e->capture);
    e->serve = e->capture = NULL;
    e->n_held = 0;
}

static is_status bring_up(is_llama *e, const is_engine_opts *o)
{
    bool fa = o->flash_attention != INFERSCALE_FA_OFF;

    e->no_partial_memory = llama_model_is_recurrent(e->model) || llama_model_is_hybrid(e->model);
    /* Window layers and recurrent state do not come out and in as whole sequences: there all share one pool. */
    e->streams = e->n_parallel > 1 && !e->no_partial_memory && llama_model_n_swa(e->model) <= 0;
    e->n_seqs = e->streams ? e->n_parallel + STREAMS_MORE : e->n_parallel > 8 ? 2 * e->n_parallel + 16 : 32;
    e->n_batch = e->n_ctx < N_BATCH_MAX ? e->n_ctx : N_BATCH_MAX;
    IS_TRY(make_batch(e));
    make_pool(e);
    IS_TRY(make_contexts(e, fa));
    e->info.can_inject = true;
    e->info.n_capture_spans = SPANS_MAX;
    IS_TRY(learn(e));
    if (o->flash_attention == INFERSCALE_FA_AUTO && e->info.can_inject && e->info.flash_attention &&
        !is_tune_flash_attention(e)) {
        drop_contexts(e);
        is_geometry_free(e->geometry);
        e->geometry = NULL;
        is_rope_free(e->rope);
        e->rope = NULL;
        is_layout_free(&e->layout);
        IS_TRY(make_contexts(e, false));
        IS_TRY(learn(e));
    }
    e->info.n_ctx = e->n_ctx;
    e->info.n_batch = e->n_batch;
    IS_TRY(is_engine_fingerprint(e));
    if (e->info.can_inject && !o->no_selftest) {
        is_status st = is_selftest(e);

        if (st == INFERSCALE_E_UNSUPPORTED) is_llama_refuse(e, "%s", is_error());
        else IS_TRY(st);
    }
    return is_chat_format_find(e);
}

is_status is_llama_open(const is_engine_opts *o, void **impl)
{
    is_llama *e;
    is_status st;

    *impl = NULL;
    if (!o || !o->model_path || !*o->model_path)
        return is_fail(INFERSCALE_E_INVALID, "no model file was given; use --model PATH, or run 'make demo' to fetch the "
                       "default");
    e = is_calloc(1, sizeof *e);
    if (e) e->tap = is_calloc(1, sizeof *e->tap);
    if (e) e->tap_serve = is_calloc(1, sizeof *e->tap_serve);
    if (!e || !e->tap || !e->tap_serve) {
        if (e) is_free(e->tap);
        if (e) is_free(e->tap_serve);
        is_free(e);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for the engine");
    }
    e->tap->engine = e;
    pthread_mutex_init(&e->blobs_lock, NULL);
    e->n_parallel = o->n_parallel ? o->n_parallel : IS_PARALLEL_DEFAULT;
    if (e->n_parallel > IS_PARALLEL_MAX) e->n_parallel = IS_PARALLEL_MAX;
    for (int i = 0; i < PREFIX_MAX; i++) e->prefixes[i].seq = -1;
    e->path = is_strdup(o->model_path);
    e->cache_dir = is_strdup(o->cache_dir);
    e->load_off = o->cancel;
    st = load_model(e, o);
    if (st == INFERSCALE_OK) st = describe(e, o);
    if (st == INFERSCALE_OK) st = bring_up(e, o);
    if (is_off(e)) st = is_fail(INFERSCALE_E_CANCELLED, "loading %s was called off", o->model_path);
    e->load_off = NULL;
    if (st != INFERSCALE_OK) {
        is_llama_close(e);
        return st;
    }
    *impl = e;
    return INFERSCALE_OK;
}

void is_llama_close(void *impl)
{
    is_llama *e = impl;

    if (!e) return;
    while (e->runs) is_llama_finish(e, e->runs);
    is_prefix_free_all(e);
    drop_contexts(e);
    if (e->pool) ggml_threadpool_free(e->pool);
    if (e->model) llama_model_free(e->model);
    is_geometry_free(e->geometry);
    is_rope_free(e->rope);
    is_layout_free(&e->layout);
    is_chat_format_free(&e->chat);
    is_free(e->blob.bytes);
    for (int i = 0; i < BLOBS_MAX; i++) is_free(e->spare[i].bytes);
    pthread_mutex_destroy(&e->blobs_lock);
    is_free(e->b_token);
    is_free(e->b_ids);
    is_free(e->b_pos);
    is_free(e->b_nseq);
    is_free(e->b_seq);
    is_free(e->b_out);
    is_free(e->held);
    is_free(e->tap->plane_of);
    is_free(e->tap);
    is_free(e->tap_serve);
    is_free(e->path);
    is_free(e->cache_dir);
    is_free(e);
}

is_status is_llama_info(void *impl, is_engine_info *out)
{
    *out = ((is_llama *)impl)->info;
    return INFERSCALE_OK;
}

const is_geometry *is_llama_geometry(void *impl)
{
    is_llama *e = impl;

    return e->info.can_inject ? e->geometry : NULL;
}

const is_chat_format *is_llama_chat(void *impl)
{
    return &((is_llama *)impl)->chat;
}
