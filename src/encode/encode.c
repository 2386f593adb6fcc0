/* encode.c - a fact's keys and values, computed once: context, capture, un-rotate, round, name, store, enter in the books.
 *
 * The order makes a crash harmless: the file is durable before the books name it; a file that the books do not name is never
 * served. The books accept it only if the memory did not change meanwhile (epoch and versions), else the file goes again. */
#include "encode/encode.h"

#include <string.h>

#include "base/mem.h"

/* Raised when the meaning of rows changes without any input changing. */
static const char naming_scheme[] = "inferscale segment 1";
/* What the context's rows are held in while the span is computed: the engine's live cache. */
static const char context_held[] = "f16";

is_status is_segment_name(const is_partition *p, const is_engine_info *model, const is_profile *profile, const is_tokens *context,
                          const is_tokens *span, uint8_t out[IS_HASH_BYTES])
{
    is_hash *h = NULL;

    IS_TRY(is_hash_new(p->key, &h));
    is_hash_field(h, naming_scheme, sizeof naming_scheme);
    is_hash_field(h, model->fingerprint, IS_HASH_BYTES);
    is_hash_field(h, context_held, sizeof context_held);
    is_hash_field(h, context->ids, context->n * sizeof(int32_t));
    is_hash_field(h, span->ids, span->n * sizeof(int32_t));
    is_hash_u64(h, profile->codec);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

/* F32 room for all planes of a span: one block, rows[plane] pointing into it. */
static float **new_rows(const is_geometry *g, uint32_t n_tokens)
{
    size_t head = (g->n_planes * sizeof(float *) + 63) / 64 * 64;
    uint8_t *block = is_malloc_aligned(64, head + is_geometry_width(g) * n_tokens * sizeof(float));
    float **rows = (float **)(void *)block;
    float *at = (float *)(void *)(block + head);

    if (!block) return NULL;
    for (uint32_t i = 0; i < g->n_planes; i++) {
        rows[i] = at;
        at += (size_t)is_plane_width(&g->planes[i]) * n_tokens;
    }
    return rows;
}

static is_status unrotate(const is_encoder *enc, const is_geometry *g, float **rows, uint32_t n_tokens, uint32_t pos)
{
    for (uint32_t i = 0; i < g->n_planes; i++) IS_TRY(is_rope_rows(enc->rope, &g->planes[i], rows[i], n_tokens, pos, -1));
    return INFERSCALE_OK;
}

is_status is_encode_span(const is_encoder *enc, const uint8_t name[IS_HASH_BYTES], const is_tokens *context, const is_tokens *span,
                         is_segment **out, uint32_t *n_computed)
{
    const is_geometry *g = is_engine_geometry(enc->engine);
    is_capture c = { .context = context->ids, .n_context = context->n, .span = span->ids, .n_span = span->n };
    is_segment_desc desc = { .codec = enc->profile->codec, .n_tokens = span->n, .tokens = span->ids, .n_context = context->n, .geometry = g };
    is_status st;

    *out = NULL;
    if (!g) return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be stored: %s", is_engine_describe(enc->engine)->why_not);
    c.rows = new_rows(g, span->n);
    if (!c.rows) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the KV of %u tokens", span->n);
    memcpy(desc.name, name, IS_HASH_BYTES);
    memcpy(desc.fingerprint, is_engine_describe(enc->engine)->fingerprint, IS_HASH_BYTES);
    st = is_engine_capture(enc->engine, &c);
    if (st == INFERSCALE_OK) st = unrotate(enc, g, c.rows, span->n, context->n);
    if (st == INFERSCALE_OK) st = is_segment_new(&desc, (const float *const *)c.rows, out);
    if (n_computed) *n_computed = c.n_computed;
    is_free(c.rows);
    return st;
}

/* Stores the segment and enters it in the books; withdraws the file again if they refuse. Until they name it, it is doomed: a
 * process that dies in between leaves nothing that they do not know. */
static is_status keep(const is_encoder *enc, const is_partition *p, is_segment *seg, const is_segment_row *row, const is_context *context)
{
    is_status st = is_bank_doom(enc->bank, p, row->name);

    if (st == INFERSCALE_OK) st = is_vault_put(enc->vault, seg);
    if (st != INFERSCALE_OK) return st;
    st = is_bank_put_segment(enc->bank, p, p->epoch, enc->profile->fingerprint, row, context->deps, context->n_deps);
    if (st != INFERSCALE_OK) (void)is_vault_remove(enc->vault, row->name);
    return st;
}

static bool is_there(const is_encoder *enc, const is_partition *p, const is_policy *policy, int64_t fact_id, const uint8_t *name)
{
    is_segment_row *rows = NULL;
    size_t n = 0;
    bool found = false;

    if (is_bank_segments(enc->bank, p, enc->profile->fingerprint, policy->name, fact_id, &rows, &n) != INFERSCALE_OK) return false;
    for (size_t i = 0; i < n; i++) found = found || memcmp(rows[i].name, name, IS_HASH_BYTES) == 0;
    is_free(rows);
    return found && is_vault_has(enc->vault, name);
}

static is_status encode_in(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact, bool again,
                           const is_context *context, const is_tokens *span, is_segment_row *row)
{
    is_segment *seg = NULL;
    is_status st;

    *row = (is_segment_row){ .fact_id = fact->id, .version = fact->version, .n_tokens = span->n, .n_context = context->tokens.n };
    memcpy(row->policy, policy->name, sizeof row->policy);
    IS_TRY(is_segment_name(p, is_engine_describe(enc->engine), enc->profile, &context->tokens, span, row->name));
    if (!again && is_there(enc, p, policy, fact->id, row->name)) return INFERSCALE_OK;
    IS_TRY(is_encode_span(enc, row->name, &context->tokens, span, &seg, &row->n_computed));
    row->bytes = is_segment_bytes(seg);
    st = keep(enc, p, seg, row, context);
    is_segment_unref(seg);
    return st;
}

is_status is_encode_fact(const is_encoder *enc, const is_partition *partition, const is_policy *policy, const inferscale_item *fact,
                         bool again, is_segment_row *row)
{
    const uint32_t n_ctx = is_engine_describe(enc->engine)->n_ctx;
    is_partition p = *partition;
    is_context context = { 0 };
    is_tokens span = { 0 };
    is_status st;

    memset(row, 0, sizeof *row);
    IS_TRY(is_bank_partition_refresh(enc->bank, &p));
    st = is_profile_fact(enc->engine, fact, &span);
    if (st == INFERSCALE_OK && span.n + enc->profile->header.n >= n_ctx)
        st = is_fail(INFERSCALE_E_CONTEXT, "fact %lld has %u tokens and the context holds %u; it is served as text where it fits, or split it",
                     (long long)fact->id, span.n, n_ctx);
    if (st == INFERSCALE_OK) st = is_policy_context(policy, enc->bank, &p, enc->engine, enc->profile, fact, n_ctx - span.n - 1, &context);
    if (st == INFERSCALE_OK) st = encode_in(enc, &p, policy, fact, again, &context, &span, row);
    is_context_free(&context);
    is_tokens_free(&span);
    return st;
}
