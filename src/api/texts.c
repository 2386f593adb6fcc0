/* texts.c - texts to tokens and to vectors, as the loaded model and embedder have them. */
#include <string.h>

#include "api/handle.h"
#include "base/mem.h"
#include "base/outside.h"
#include "base/utf8.h"

is_status inferscale_tokenize(inferscale *is, const char *text, int32_t **ids, size_t *n)
{
    is_tokens t = { 0 };
    size_t bad = 0;

    if (!ids || !n) return is_fail(INFERSCALE_E_INVALID, "there is no place for the tokens; pass the addresses of both");
    *ids = NULL;
    *n = 0;
    IS_TRY(is_handle_check(is));
    if (!text) return is_fail(INFERSCALE_E_INVALID, "the text is NULL; give a UTF-8 string");
    if (!is_utf8_valid(text, strlen(text), &bad))
        return is_fail(INFERSCALE_E_INVALID, "the text is not valid UTF-8 at byte %zu; convert it first", bad);
    IS_TRY(is_handle_engine(is));
    IS_TRY(is_profile_question(is->engine, NULL, text, &t));
    if (!t.ids) t.ids = is_malloc(sizeof *t.ids); /* of no tokens */
    if (!t.ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    *ids = t.ids;
    *n = t.n;
    return INFERSCALE_OK;
}

void inferscale_tokens_free(int32_t *ids)
{
    is_free(ids);
}

static is_status load_embedder(inferscale *is)
{
    is_status st;

    is_outside_begin(); /* an embedder elsewhere is asked what it is, and may not answer */
    st = is_handle_embedder(is);
    is_outside_end();
    return st;
}

static is_status embed(inferscale *is, const char *const *texts, size_t n, bool may_cut, int *cut, float **out, uint32_t *dim,
                       uint64_t *n_tokens)
{
    float *vecs;
    is_status st;

    if (!out || !dim) return is_fail(INFERSCALE_E_INVALID, "there is no place for the vectors; pass the addresses of both");
    *out = NULL;
    *dim = 0;
    IS_TRY(is_handle_check(is));
    if (n && !texts) return is_fail(INFERSCALE_E_INVALID, "texts is NULL; pass an array of n texts");
    for (size_t i = 0; i < n; i++) IS_TRY(is_text_check(texts[i], "text to embed"));
    IS_TRY(load_embedder(is));
    vecs = is_calloc(n ? n : 1, is_embedder_dim(is->embedder) * sizeof *vecs);
    if (!vecs) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu vectors", n);
    is_gate_enter(is->gate); /* somebody waits for it, so it goes before documents' */
    if (is_embedder_is_remote(is->embedder)) is_outside_begin();
    st = is_embedder_embed_counted(is->embedder, texts, n, may_cut, vecs, n_tokens, cut);
    if (is_embedder_is_remote(is->embedder)) is_outside_end();
    is_gate_leave(is->gate);
    if (st != INFERSCALE_OK) {
        is_free(vecs);
        return st;
    }
    *out = vecs;
    *dim = is_embedder_dim(is->embedder);
    return INFERSCALE_OK;
}

is_status inferscale_embed(inferscale *is, const char *const *texts, size_t n, float **out, uint32_t *dim)
{
    uint64_t ignored = 0;

    return embed(is, texts, n, true, NULL, out, dim, &ignored);
}

is_status inferscale_embed_whole(inferscale *is, const char *const *texts, size_t n, int may_cut, int *cut, float **out, uint32_t *dim,
                                 uint64_t *n_tokens)
{
    uint64_t count = 0;
    is_status st = embed(is, texts, n, may_cut != 0, cut, out, dim, &count);

    if (n_tokens) *n_tokens = count;
    return st;
}

void inferscale_vectors_free(float *vectors)
{
    is_free(vectors);
}
