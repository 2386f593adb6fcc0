/* embedder.c - sentence embeddings by a BERT-like model through libllama, in a context of its own.
 *
 * libllama ends the process when a text is longer than the model's positions or a batch longer than n_ubatch, so texts are cut
 * to 256 tokens here (what MiniLM was trained with), the closing [SEP] kept, and batches are filled to at most 8 texts and 512
 * tokens. Vectors are the mean over tokens, scaled to length 1. */
#include "engine/llama/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum {
    EMBED_BATCH = 512,          /* tokens of one pass: n_ctx = n_batch = n_ubatch */
    EMBED_SEQS = 8,             /* texts of one pass */
    EMBED_TOKENS = 256,         /* of one text */
    EMBED_BYTES = 32 << 10,     /* of one text: far more than 256 tokens of words; the tokeniser need not see a megabyte */
};

typedef struct embedder {
    struct llama_model *model;
    struct llama_context *ctx;
    const struct llama_vocab *vocab;
    uint32_t dim;
    uint32_t fit_threads;       /* threads when the machine is free; 0 = the caller's number, never changed */
    llama_token sep;
    uint8_t fingerprint[IS_HASH_BYTES];
    llama_token *tokens;        /* [EMBED_BYTES + 16] scratch of the tokeniser */
    struct llama_batch batch;
    is_embed_call *call;        /* in progress; NULL = none */
} embedder;

static void embedder_close(void *impl)
{
    embedder *e = impl;

    if (!e) return;
    if (e->batch.token) llama_batch_free(e->batch);
    if (e->ctx) llama_free(e->ctx);
    if (e->model) llama_model_free(e->model);
    is_free(e->tokens);
    is_free(e);
}

static is_status load_failed(const char *path)
{
    const char *why = is_shim_error();

    if (!*why) why = is_llama_last_error();
    return is_fail(INFERSCALE_E_MODEL, "the embedding model %s cannot be loaded (%s); fetch or convert it again", path,
                   *why ? why : "libllama does not say why");
}

/* Loads the model and refuses what the code below could not drive safely. */
static is_status load_model(embedder *e, const char *path)
{
    struct llama_model_params params = llama_model_default_params();
    is_gguf_facts facts;

    IS_TRY(is_gguf_check(path, &facts));
    if (strcmp(facts.arch, "bert") != 0)
        return is_fail(INFERSCALE_E_UNSUPPORTED,
                       "%s is a model of architecture \"%s\", not an embedding model of architecture bert; use "
                       "all-minilm-l6-v2 or an http(s) endpoint", path, facts.arch);
    params.n_gpu_layers = 0;
    is_shim_clear();
    is_llama_clear_error();
    e->model = is_shim_model_load(path, params);
    if (!e->model) return load_failed(path);
    e->vocab = llama_model_get_vocab(e->model);
    e->sep = llama_vocab_sep(e->vocab);
    int32_t dim = llama_model_n_embd(e->model), positions = llama_model_n_ctx_train(e->model);
    if (dim < 1 || positions < EMBED_TOKENS || e->sep < 0 || e->sep >= llama_vocab_n_tokens(e->vocab))
        return is_fail(INFERSCALE_E_UNSUPPORTED,
                       "%s has vectors of %d dimensions, %d positions and separator token %d, but %d positions and a [SEP] "
                       "token are needed; use all-minilm-l6-v2", path, dim, positions, e->sep, EMBED_TOKENS);
    e->dim = (uint32_t)dim;
    return INFERSCALE_OK;
}

static bool is_set(const volatile int *flag)
{
    return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

/* ggml's abort callback. */
static bool embedder_abort(void *impl)
{
    const embedder *e = impl;

    return e->call && (is_set(e->call->cancel) || is_set(e->call->stop));
}

static is_status make_context(embedder *e, const char *path, uint32_t n_threads)
{
    struct llama_context_params params = llama_context_default_params();

    params.n_ctx = params.n_batch = params.n_ubatch = EMBED_BATCH;
    params.n_seq_max = EMBED_SEQS;
    params.kv_unified = true;
    params.embeddings = true;
    params.pooling_type = LLAMA_POOLING_TYPE_MEAN;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.n_threads = params.n_threads_batch = (int32_t)(n_threads ? n_threads : is_cpu_physical_cores());
    params.no_perf = true;
    params.abort_callback = embedder_abort;
    params.abort_callback_data = e;
    e->ctx = is_shim_context_new(e->model, params);
    if (!e->ctx) return load_failed(path);
    if (llama_pooling_type(e->ctx) != LLAMA_POOLING_TYPE_MEAN || llama_n_ubatch(e->ctx) < EMBED_BATCH)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "%s cannot average over a batch of %d tokens; use all-minilm-l6-v2", path,
                       EMBED_BATCH);
    e->batch = llama_batch_init(EMBED_BATCH, 0, 1);
    e->tokens = is_malloc((EMBED_BYTES + 16) * sizeof *e->tokens);
    if (!e->batch.token || !e->tokens)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for the embedder; free some and try again");
    return INFERSCALE_OK;
}

/* The file's content and how we use it. */
static is_status make_fingerprint(embedder *e, const char *path)
{
    static const char how[] = "llama mean-pooled, 256 tokens, 1";
    uint8_t file[IS_HASH_BYTES];
    is_hash *h;

    IS_TRY(is_file_fingerprint(path, NULL, NULL, file));
    IS_TRY(is_hash_new(NULL, &h));
    is_hash_field(h, file, sizeof file);
    is_hash_field(h, how, sizeof how - 1);
    is_hash_end(h, e->fingerprint);
    return INFERSCALE_OK;
}

static is_status run_batch(embedder *e, uint32_t n_seqs, float *out);
static void add_sequence(embedder *e, uint32_t n, uint32_t seq);

/* The first text is computed with one thread, so that what ggml finds impossible in this model is an error (shim.cpp). */
static is_status first_text(embedder *e, const char *path)
{
    const int32_t threads = llama_n_threads(e->ctx), threads_batch = llama_n_threads_batch(e->ctx);
    float *vector = is_malloc(e->dim * sizeof *vector);
    char why[512];
    is_status st;

    if (!vector) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the embedder; free some and try again");
    e->tokens[0] = e->tokens[1] = e->sep;
    e->batch.n_tokens = 0;
    add_sequence(e, 2, 0);
    llama_set_n_threads(e->ctx, 1, 1);
    st = run_batch(e, 1, vector);
    llama_set_n_threads(e->ctx, threads, threads_batch);
    is_free(vector);
    if (st == INFERSCALE_OK) return INFERSCALE_OK;
    snprintf(why, sizeof why, "%s", is_error());
    return is_fail(INFERSCALE_E_MODEL, "%s: %s", path, why);
}

static is_status embedder_open(const is_embedder_opts *o, void **impl)
{
    embedder *e = is_calloc(1, sizeof *e);
    is_status st;

    *impl = NULL;
    if (!e) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the embedder; free some and try again");
    IS_TRY_GOTO(st, failed, load_model(e, o->spec));
    IS_TRY_GOTO(st, failed, make_context(e, o->spec, o->n_threads));
    IS_TRY_GOTO(st, failed, make_fingerprint(e, o->spec));
    IS_TRY_GOTO(st, failed, first_text(e, o->spec));
    if (!o->n_threads) e->fit_threads = (uint32_t)llama_n_threads(e->ctx);
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

/* The text's tokens, [CLS] ... [SEP], at most EMBED_TOKENS, in e->tokens. *whole: of the whole text; where that is longer, more than these. */
static is_status tokenize(embedder *e, const char *text, uint32_t *n, uint32_t *whole)
{
    size_t len = strlen(text);
    bool more = false;

    if (is_utf8_blank(text, len)) return is_fail(INFERSCALE_E_INVALID, "blank text has no meaning to embed; leave it out");
    while (len > EMBED_BYTES && is_utf8_blank(text, EMBED_BYTES)) { /* the words start behind a page of white space */
        text += is_utf8_whole(text, EMBED_BYTES);
        len = strlen(text);
    }
    if (len > EMBED_BYTES) {
        len = is_utf8_whole(text, EMBED_BYTES);
        more = !is_utf8_blank(text + len, strlen(text + len));
    }
    is_shim_clear();
    int32_t got = is_shim_tokenize(e->vocab, text, (int32_t)len, e->tokens, EMBED_BYTES + 16, true, false);
    if (got < 1)
        return is_fail(INFERSCALE_E_ENGINE, "the embedding model's tokenizer failed (%s); check that the text is UTF-8",
                       is_shim_error());
    *whole = more && got <= EMBED_TOKENS ? EMBED_TOKENS + 1 : (uint32_t)got;
    if (got > EMBED_TOKENS) {
        got = EMBED_TOKENS;
        e->tokens[got - 1] = e->sep;
    }
    *n = (uint32_t)got;
    return INFERSCALE_OK;
}

static void add_sequence(embedder *e, uint32_t n, uint32_t seq)
{
    struct llama_batch *b = &e->batch;

    for (uint32_t i = 0; i < n; i++) {
        int32_t at = b->n_tokens++;
        b->token[at] = e->tokens[i];
        b->pos[at] = (llama_pos)i;
        b->n_seq_id[at] = 1;
        b->seq_id[at][0] = (llama_seq_id)seq;
        b->logits[at] = 1;
    }
}

/* Runs the batch of n_seqs texts; their vectors to out[n_seqs][dim]. */
static is_status run_batch(embedder *e, uint32_t n_seqs, float *out)
{
    is_shim_clear();
    is_threads_fit(e->ctx, e->fit_threads);
    is_llama_computes(embedder_abort, e);
    int32_t rc = is_shim_encode(e->ctx, e->batch);
    is_llama_computes(NULL, NULL);
    e->batch.n_tokens = 0;
    if (rc != 0 && embedder_abort(e)) return is_fail(INFERSCALE_E_CANCELLED, "cancelled while texts were embedded; embed them again");
    if (rc != 0)
        return is_fail(INFERSCALE_E_ENGINE,
                       "embedding failed (libllama %d %s); try again, and check memory if it fails again", rc, is_shim_error());
    for (uint32_t s = 0; s < n_seqs; s++) {
        const float *v = llama_get_embeddings_seq(e->ctx, (llama_seq_id)s);
        double square = 0;
        if (!v) return is_fail(INFERSCALE_E_ENGINE, "the embedding model gave no vector; check that it is an embedding model");
        for (uint32_t d = 0; d < e->dim; d++) square += (double)v[d] * v[d];
        if (!(square > 0) || !isfinite(square))
            return is_fail(INFERSCALE_E_ENGINE,
                           "the embedding model gave a vector without length; fetch or convert the model again");
        for (uint32_t d = 0; d < e->dim; d++) out[(size_t)s * e->dim + d] = (float)(v[d] / sqrt(square));
    }
    return INFERSCALE_OK;
}

static is_status embed_texts(embedder *e, const char *const *texts, size_t n, float *out, is_embed_call *call)
{
    uint32_t waiting = 0;

    e->batch.n_tokens = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t n_tokens = 0, whole;
        IS_TRY(tokenize(e, texts[i], &n_tokens, &whole));
        call->n_tokens += n_tokens;
        if (waiting == EMBED_SEQS || (uint32_t)e->batch.n_tokens + n_tokens > EMBED_BATCH) {
            IS_TRY(run_batch(e, waiting, out + (i - waiting) * e->dim));
            waiting = 0;
            call->n_done = i;
        }
        add_sequence(e, n_tokens, waiting++);
    }
    if (waiting) IS_TRY(run_batch(e, waiting, out + (n - waiting) * e->dim));
    call->n_done = n;
    return INFERSCALE_OK;
}

static is_status embedder_embed(void *impl, const char *const *texts, size_t n, float *out, is_embed_call *call)
{
    embedder *e = impl;
    is_status st;

    e->call = call;
    st = embed_texts(e, texts, n, out, call);
    e->call = NULL;
    return st;
}

static is_status embedder_measure(void *impl, const char *text, is_embed_size *out)
{
    uint32_t n;

    *out = (is_embed_size){ .most = EMBED_TOKENS, .unit = "tokens" };
    return tokenize(impl, text, &n, &out->n);
}

extern const is_embedder_vtable is_llama_embedder;
const is_embedder_vtable is_llama_embedder = {
    .name = "llama",
    .open = embedder_open,
    .close = embedder_close,
    .dim = embedder_dim,
    .fingerprint = embedder_fingerprint,
    .embed = embedder_embed,
    .measure = embedder_measure,
};
