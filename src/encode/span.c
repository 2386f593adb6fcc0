/* span.c - rows of spans: captured, un-rotated, named, rounded once into segments, stored and entered in the books.
 *
 * The order makes a crash harmless: a file is durable before the books name it; a file that the books do not name is never
 * served. The books accept it only if the memory did not change meanwhile (epoch and versions), else the file goes again. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "encode/encode.h"

/* Raised when the meaning of rows changes without any input changing. */
static const char naming_scheme[] = "inferscale segment 2";
/* What a context's rows are held in while the span is computed: the engine's live cache, computed there, or rounded to a
 * segment's codec first and then put there. */
static void add_held(is_hash *h, const is_engine_info *model, const char *how)
{
    char held[16];

    snprintf(held, sizeof held, "%s %s", is_codec_name(model->exact_codec), how);
    is_hash_field(h, held, strlen(held) + 1);
}

static void name_context(is_hash *h, const is_engine_info *model, const is_context *c, uint32_t n_behind)
{
    uint32_t n_stored = 0;

    for (uint32_t i = 0; i < c->n_stored; i++) n_stored += is_segment_info(c->stored[i])->n_tokens;
    add_held(h, model, "live");
    is_hash_field(h, c->tokens.ids, (c->tokens.n - n_stored - n_behind) * sizeof(int32_t));
    for (uint32_t i = 0; i < c->n_stored; i++) {
        add_held(h, model, "stored");
        is_hash_field(h, is_segment_info(c->stored[i])->name, IS_HASH_BYTES);
    }
    if (n_behind) is_hash_field(h, c->tokens.ids + c->tokens.n - n_behind, n_behind * sizeof(int32_t));
}

is_status is_segment_name(const is_partition *p, const is_engine_info *model, uint64_t held, const is_context *contexts,
                          size_t n, uint32_t n_behind, const is_tokens *span, uint8_t out[IS_HASH_BYTES])
{
    is_hash *h = NULL;

    IS_TRY(is_hash_new(p->key, &h));
    is_hash_field(h, naming_scheme, sizeof naming_scheme);
    is_hash_field(h, model->fingerprint, IS_HASH_BYTES);
    is_hash_u64(h, n);
    for (size_t i = 0; i < n; i++) name_context(h, model, &contexts[i], contexts[i].n_stored ? n_behind : 0);
    is_hash_field(h, span->ids, span->n * sizeof(int32_t));
    is_hash_u64(h, held);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

is_realm is_realm_of(const is_partition *p)
{
    static const char what[] = "inferscale realm 1";
    is_realm r = { .epoch = (uint64_t)p->epoch };

    is_hash_once(p->key, what, sizeof what, r.tag);
    return r;
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

is_status is_rows_new(const is_geometry *g, uint32_t n_tokens, is_rows *out)
{
    size_t head = (g->n_planes * sizeof(float *) + 63) / 64 * 64, bytes = is_geometry_width(g) * n_tokens * sizeof(float);
    uint8_t *block = is_malloc_aligned(64, head + bytes);
    float *at = (float *)(void *)(block + head);

    *out = (is_rows){ .rows = (float **)(void *)block, .n_tokens = n_tokens };
    if (!block) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the KV of %u tokens", n_tokens);
    memset(at, 0, bytes);
    for (uint32_t i = 0; i < g->n_planes; i++) {
        out->rows[i] = at;
        at += (size_t)is_plane_width(&g->planes[i]) * n_tokens;
    }
    return INFERSCALE_OK;
}

void is_rows_free(is_rows *r)
{
    is_free(r->rows);
    *r = (is_rows){ 0 };
}

static is_status capture(const is_encoder *enc, is_capture *c, size_t n)
{
    is_status st = INFERSCALE_E_BUSY;

    while (st == INFERSCALE_E_BUSY) {
        if (enc->cancel && __atomic_load_n(enc->cancel, __ATOMIC_RELAXED))
            return is_fail(INFERSCALE_E_CANCELLED, "encoding was cancelled; run it again to go on");
        st = is_engine_capture_many(enc->engine, c, n);
        if (st != INFERSCALE_E_BUSY || !enc->background || !enc->on_busy) return st;
        IS_TRY(enc->on_busy(enc->busy_ctx));
    }
    return st;
}

/* The profile's header, where the context begins with it. */
static uint32_t common_tokens(const is_encoder *enc, const is_context *c)
{
    const is_tokens *h = &enc->profile->header;

    return h->n <= c->tokens.n && (!h->n || memcmp(c->tokens.ids, h->ids, h->n * sizeof *h->ids) == 0) ? h->n : 0;
}

is_status is_capture_spans(const is_encoder *enc, const is_partition *p, const is_span *spans, size_t n, is_rows *out)
{
    const is_geometry *g = is_engine_geometry(enc->engine);
    const bool rotated = !is_engine_describe(enc->engine)->unrotated;
    const is_realm realm = p ? is_realm_of(p) : (is_realm){ .epoch = 0 };
    is_capture *c = is_calloc(n + 1, sizeof *c);
    is_status st = c ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the capture of %zu spans", n);

    memset(out, 0, n * sizeof *out);
    if (!g) st = is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be stored: %s", is_engine_describe(enc->engine)->why_not);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        const is_context *context = spans[i].context;

        st = is_rows_new(g, spans[i].tokens->n, &out[i]);
        c[i] = (is_capture){ .context = context->tokens.ids, .n_context = context->tokens.n, .span = spans[i].tokens->ids,
                             .n_span = spans[i].tokens->n, .stored = context->stored, .n_stored = context->n_stored,
                             .background = enc->background, .cancel = enc->cancel, .rows = out[i].rows,
                             .realm = p ? &realm : NULL, .n_common = common_tokens(enc, context) };
    }
    if (st == INFERSCALE_OK) st = capture(enc, c, n);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        out[i].n_computed = c[i].n_computed;
        for (uint32_t j = 0; rotated && j < g->n_planes && st == INFERSCALE_OK; j++)
            st = is_rope_rows(enc->rope, &g->planes[j], out[i].rows[j], c[i].n_span, c[i].n_context, -1);
    }
    for (size_t i = 0; i < n && st != INFERSCALE_OK; i++) is_rows_free(&out[i]);
    is_free(c);
    return st;
}

is_status is_rows_segment(const is_encoder *enc, const is_rows *r, uint32_t from, is_codec codec,
                          const uint8_t name[IS_HASH_BYTES], const is_tokens *span, uint32_t n_context,
                          is_segment **out)
{
    const is_geometry *g = is_engine_geometry(enc->engine);
    is_segment_desc desc = { .codec = codec, .n_tokens = span->n, .tokens = span->ids, .n_context = n_context, .geometry = g };
    const float **rows = is_malloc((g->n_planes + 1) * sizeof *rows);
    is_status st;

    *out = NULL;
    if (!rows) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the KV of %u tokens", span->n);
    for (uint32_t i = 0; i < g->n_planes; i++) rows[i] = r->rows[i] + (size_t)from * is_plane_width(&g->planes[i]);
    memcpy(desc.name, name, IS_HASH_BYTES);
    memcpy(desc.fingerprint, is_engine_describe(enc->engine)->fingerprint, IS_HASH_BYTES);
    st = is_segment_new(&desc, rows, out);
    is_free(rows);
    return st;
}

/* ---- Into the books ------------------------------------------------------------------------------------------------------ */

/* Until the books name it, a file is doomed: a process that dies in between leaves nothing that they do not know. */
static is_status store(const is_encoder *enc, const is_partition *p, const is_made *m)
{
    IS_TRY(is_bank_doom(enc->bank, p, m->row.name));
    return enc->replace ? is_vault_replace(enc->vault, m->segment) : is_vault_put(enc->vault, m->segment);
}

/* What could not be entered goes again; the sentence stays that of the failure. */
static is_status withdraw(const is_encoder *enc, is_status st, const is_made *made, const bool *was_there, size_t n)
{
    char why[1024];

    snprintf(why, sizeof why, "%s", is_error());
    for (size_t i = 0; i < n; i++)
        if (!was_there[i] && is_vault_remove(enc->vault, made[i].row.name) != INFERSCALE_OK)
            is_log(IS_LOG_WARN, "encode: a file that the books refused stays until the store is opened again: %s", is_error());
    return is_fail(st, "%s", why);
}

static is_status check_epoch(const is_partition *p, const is_partition *now)
{
    if (now->epoch == p->epoch) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_STALE, "memory was changed or forgotten while this was computed from it; compute it again");
}

is_status is_keep_begin(const is_encoder *enc, const is_partition *p, is_lease **lease)
{
    is_partition now = *p;

    IS_TRY(is_lease_take_writing(enc->bank, &now, lease));
    return check_epoch(p, &now);
}

is_status is_keep_goes_on(const is_encoder *enc, const is_partition *p)
{
    is_partition now = *p;

    IS_TRY(is_bank_partition_refresh(enc->bank, &now));
    return check_epoch(p, &now);
}

is_status is_keep_made(const is_encoder *enc, const is_partition *p, is_made *made, size_t n)
{
    is_lease *lease = NULL, *names = NULL;
    is_segment_entry *entries = is_calloc(n + 1, sizeof *entries);
    bool *was_there = is_calloc(n + 1, sizeof *was_there);
    is_status st = entries && was_there ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu segments", n);
    size_t n_stored = 0;

    if (st == INFERSCALE_OK) st = is_lease_take_names(enc->bank, p, false, &names);
    if (st == INFERSCALE_OK) st = is_keep_begin(enc, p, &lease);

    for (; n_stored < n && st == INFERSCALE_OK; n_stored++) {
        is_made *m = &made[n_stored];

        m->row.bytes = is_segment_bytes(m->segment);
        entries[n_stored] = (is_segment_entry){ .row = m->row, .deps = m->deps, .n_deps = m->n_deps };
        was_there[n_stored] = is_vault_has(enc->vault, m->row.name);
        st = n_stored ? is_keep_goes_on(enc, p) : INFERSCALE_OK;
        if (st == INFERSCALE_OK) st = store(enc, p, m);
    }
    if (st == INFERSCALE_OK) st = is_bank_put_segments(enc->bank, p, p->epoch, enc->profile->fingerprint, entries, n);
    if (st != INFERSCALE_OK) st = withdraw(enc, st, made, was_there, n_stored);
    is_lease_drop(lease);
    is_lease_drop(names);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++)
        if (!made[i].row.lead) st = is_retire_kept(enc, p, made[i].row.policy, made[i].row.fact_id, made[i].row.name, true);
    for (size_t i = 0; i < n; i++) {
        is_segment_unref(made[i].segment);
        made[i].segment = NULL;
    }
    is_free(entries);
    is_free(was_there);
    return st;
}

static is_status remove_stale(const is_encoder *enc, is_status st, is_names *stale)
{
    for (size_t i = 0; i < stale->n && st == INFERSCALE_OK; i++)
        st = is_vault_remove(enc->vault, stale->names[i]);
    if (st == INFERSCALE_OK && stale->n) st = is_bank_doomed_done(enc->bank, stale);
    is_names_free(stale);
    return st;
}

is_status is_retire_kept(const is_encoder *enc, const is_partition *p, const char *policy, int64_t fact_id,
                         const uint8_t name[IS_HASH_BYTES], bool others)
{
    is_names stale = { 0 };
    is_status st = is_bank_retire(enc->bank, p, enc->profile->fingerprint, policy, fact_id, name, others, &stale);

    return remove_stale(enc, st, &stale);
}

is_status is_encode_retire(const is_encoder *enc, const is_partition *p, const is_policy *policy,
                           const int64_t *ids, size_t n)
{
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        is_names stale = { 0 };

        st = is_bank_retire_outdated(enc->bank, p, enc->profile->fingerprint, policy->name, ids[i],
                                     &stale);
        st = remove_stale(enc, st, &stale);
    }
    return st;
}

bool is_find_kept(const is_encoder *enc, const is_partition *p, const char *policy, int64_t fact_id, is_segment_row *row)
{
    is_segment_row *rows = NULL;
    size_t n = 0;
    bool found = false;

    if (is_bank_segments(enc->bank, p, enc->profile->fingerprint, policy, fact_id, &rows, &n) != INFERSCALE_OK) return false;
    for (size_t i = 0; i < n && !found; i++) {
        found = is_vault_has(enc->vault, rows[i].name);
        if (found) *row = rows[i];
    }
    is_free(rows);
    return found;
}
