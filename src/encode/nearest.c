/* nearest.c - neighbours by the recall room's own search, so that a fact's company is what it will be found with. */
#include "encode/nearest.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

is_status is_fact_vector(const is_encoder *enc, const is_partition *p, int64_t id, float **vec, uint32_t *dim)
{
    int8_t *q = NULL;
    float scale = 0;
    double sum = 0;
    is_status st;

    *vec = NULL;
    *dim = 0;
    if (!enc->embedder) return INFERSCALE_OK;
    st = is_bank_get_embedding(enc->bank, p, enc->embedder, id, &q, dim, &scale);
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK;
    if (st != INFERSCALE_OK) return st;
    *vec = is_malloc(*dim * sizeof **vec);
    for (uint32_t i = 0; i < *dim; i++) sum += (double)q[i] * q[i];
    for (uint32_t i = 0; *vec && i < *dim; i++) (*vec)[i] = sum > 0 ? (float)(q[i] / sqrt(sum)) : 0;
    is_free(q);
    return *vec ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a vector");
}

is_status is_nearest(const is_encoder *enc, const is_partition *p, const inferscale_item *fact, uint32_t n, is_nearest_by by,
                     int64_t *ids, size_t *found)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = { .text = fact->text, .fingerprint = enc->embedder, .options = &o };
    is_hit *hits = NULL;
    float *vec = NULL;
    size_t n_hits = 0;
    is_status st;

    *found = 0;
    if (by == IS_NEAREST_DENSE && !enc->embedder)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "nearest facts are found by embeddings, and there is no embedder; give one, or use "
                       "another policy");
    IS_TRY(is_fact_vector(enc, p, fact->id, &vec, &q.dim));
    if (by == IS_NEAREST_DENSE && !vec)
        return is_fail(INFERSCALE_E_STALE, "fact %lld has no embedding yet; embed it first", (long long)fact->id);
    q.vec = vec;
    o.k = n < 1000 ? n + 1 : 1000;
    o.kinds = INFERSCALE_FACTS;
    o.method = by == IS_NEAREST_DENSE ? INFERSCALE_DENSE : vec ? INFERSCALE_FUSED : INFERSCALE_LEXICAL;
    st = is_recall_query(enc->recall, p, &q, &hits, &n_hits, NULL);
    for (size_t i = 0; st == INFERSCALE_OK && i < n_hits && *found < n; i++)
        if (hits[i].id != fact->id) ids[(*found)++] = hits[i].id;
    is_free(hits);
    is_free(vec);
    return st;
}
