/* encode.c - facts under a policy that gives each of them one context: contexts, names, captures in batches. */
#include "encode/encode.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"

enum { TRIES_STALE = 3, BATCH_FACTS = 16, BATCH_TOKENS = 1024 };

/* ---- What all policies share --------------------------------------------------------------------------------------------- */

void is_work_free(is_work *w)
{
    for (size_t i = 0; w->tokens && i < w->list->n; i++) is_tokens_free(&w->tokens[i]);
    is_free(w->tokens);
    inferscale_list_free(w->list);
    *w = (is_work){ 0 };
}

is_status is_work_new(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_work *out)
{
    const is_realm whose = is_realm_of(p);
    is_status st;

    *out = (is_work){ 0 };
    IS_TRY(is_bank_get(enc->bank, p, ids, n, &out->list));
    out->tokens = is_calloc(out->list->n + 1, sizeof *out->tokens);
    st = out->tokens ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", n);
    for (size_t i = 0; i < out->list->n && st == INFERSCALE_OK; i++)
        st = is_profile_fact(enc->engine, &whose, &out->list->items[i], &out->tokens[i]);
    if (st != INFERSCALE_OK) is_work_free(out);
    return st;
}

is_status is_job_done(is_encode_job *job, size_t n, uint64_t stored, uint64_t computed)
{
    job->facts += n;
    job->tokens_stored += stored;
    job->tokens_computed += computed;
    return job->on_facts ? job->on_facts(job->ctx, n, "encoding") : INFERSCALE_OK;
}

is_status is_job_left(is_encode_job *job, int64_t fact_id)
{
    is_log(IS_LOG_WARN, "fact %lld has no KV yet: %s", (long long)fact_id, is_error());
    job->n_left++;
    return job->on_facts ? job->on_facts(job->ctx, 1, "encoding") : INFERSCALE_OK;
}

/* ---- One context a fact -------------------------------------------------------------------------------------------------- */

/* A fact of a batch: what it is encoded after, and what comes of it. */
typedef struct ready {
    const inferscale_item *item; /* all borrowed but the context */
    const is_tokens *tokens;
    is_context context;
    is_segment_row row;
    bool there;                  /* in the vault already */
} ready;

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

/* On failure there is no context. */
static is_status prepare(const is_encoder *enc, const is_partition *p, const is_policy *policy, bool again, ready *r)
{
    const uint32_t n_ctx = is_engine_describe(enc->engine)->n_ctx;
    is_status st;

    if (r->tokens->n + 1 >= n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "fact %lld has %u tokens and the context holds %u; it is served as text where it fits, or split it",
                       (long long)r->item->id, r->tokens->n, n_ctx);
    IS_TRY(is_policy_context(enc, p, policy, r->item, n_ctx - r->tokens->n - 1, &r->context));
    r->row = (is_segment_row){ .fact_id = r->item->id, .version = r->item->version, .n_tokens = r->tokens->n,
                               .n_context = r->context.tokens.n, .n_passes = 1 };
    memcpy(r->row.policy, policy->name, sizeof r->row.policy);
    st = is_segment_name(p, is_engine_describe(enc->engine), enc->profile->codec, &r->context, 1, 0, r->tokens, r->row.name);
    if (st != INFERSCALE_OK) {
        is_context_free(&r->context);
        return st;
    }
    r->there = !again && is_there(enc, p, policy, r->item->id, r->row.name);
    return INFERSCALE_OK;
}

/* Captures what is not there and keeps it. */
static is_status run_batch(const is_encoder *enc, const is_partition *p, ready *batch, size_t n)
{
    is_span spans[BATCH_FACTS];
    is_rows rows[BATCH_FACTS];
    is_made made[BATCH_FACTS] = { 0 };
    ready *of[BATCH_FACTS];
    size_t m = 0;
    is_status st;

    for (size_t i = 0; i < n; i++) {
        if (batch[i].there) continue;
        spans[m] = (is_span){ .context = &batch[i].context, .tokens = batch[i].tokens };
        of[m++] = &batch[i];
    }
    if (m == 0) return INFERSCALE_OK;
    IS_TRY(is_capture_spans(enc, p, spans, m, rows));
    st = INFERSCALE_OK;
    for (size_t i = 0; i < m; i++) {
        of[i]->row.n_computed = rows[i].n_computed;
        if (st == INFERSCALE_OK)
            st = is_rows_segment(enc, &rows[i], 0, enc->profile->codec, of[i]->row.name, of[i]->tokens,
                                 of[i]->context.tokens.n, &made[i].segment);
        made[i].row = of[i]->row;
        made[i].deps = of[i]->context.deps;
        made[i].n_deps = of[i]->context.n_deps;
        is_rows_free(&rows[i]);
    }
    if (st == INFERSCALE_OK) return is_keep_made(enc, p, made, m);
    for (size_t i = 0; i < m; i++) is_segment_unref(made[i].segment);
    return st;
}

static is_status tell_batch(is_encode_job *job, const ready *batch, size_t n)
{
    uint64_t stored = 0, computed = 0;

    for (size_t i = 0; i < n; i++) {
        stored += batch[i].row.n_tokens;
        computed += batch[i].row.n_computed;
    }
    return n ? is_job_done(job, n, stored, computed) : INFERSCALE_OK;
}

/* One batch under a fresh partition: from fact *at of the work on; *at is moved behind it. */
static is_status next_batch(const is_encoder *enc, const is_partition *p, const is_work *w, size_t *at, is_encode_job *job)
{
    ready batch[BATCH_FACTS] = { 0 };
    const size_t first = *at;
    size_t n = 0;
    uint32_t n_tokens = 0;
    is_status st = INFERSCALE_OK;

    for (; *at < w->list->n && n < BATCH_FACTS && n_tokens < BATCH_TOKENS && st == INFERSCALE_OK; ++*at) {
        batch[n] = (ready){ .item = &w->list->items[*at], .tokens = &w->tokens[*at] };
        st = prepare(enc, p, job->policy, job->again, &batch[n]);
        n_tokens += w->tokens[*at].n;
        if (st == INFERSCALE_OK) n++;
        else if (st == INFERSCALE_E_CONTEXT) st = is_job_left(job, w->list->items[*at].id);
    }
    if (st == INFERSCALE_OK) st = run_batch(enc, p, batch, n);
    if (st == INFERSCALE_OK) st = tell_batch(job, batch, n);
    else if (st == INFERSCALE_E_STALE) *at = first;
    for (size_t i = 0; i < n; i++) is_context_free(&batch[i].context);
    return st;
}

static is_status encode_each(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job)
{
    size_t done = 0;
    is_status st = INFERSCALE_OK;

    for (int tries = 0; done < n && st == INFERSCALE_OK;) {
        size_t chunk = n - done < BATCH_FACTS ? n - done : BATCH_FACTS, at = 0;
        is_partition now = *p;
        is_work w;

        IS_TRY(is_bank_partition_refresh(enc->bank, &now));
        IS_TRY(is_work_new(enc, &now, ids + done, chunk, &w));
        while (at < w.list->n && st == INFERSCALE_OK) st = next_batch(enc, &now, &w, &at, job);
        if (st == INFERSCALE_E_STALE && ++tries < TRIES_STALE) { /* what is done of the chunk is found there */
            st = INFERSCALE_OK;
            is_work_free(&w);
            continue;
        }
        for (; st == INFERSCALE_E_STALE && at < w.list->n; at++)
            if (is_job_left(job, w.list->items[at].id) != INFERSCALE_OK) break;
        if (st == INFERSCALE_E_STALE && at == w.list->n) st = INFERSCALE_OK;
        is_work_free(&w);
        done += chunk;
        tries = 0;
    }
    return st;
}

is_status is_encode_fact(const is_encoder *enc, const is_partition *partition, const is_policy *policy, const inferscale_item *fact,
                         bool again, is_segment_row *row)
{
    is_partition p = *partition;
    is_tokens span = { 0 };
    ready r = { .item = fact, .tokens = &span };
    is_realm whose;
    is_status st;

    memset(row, 0, sizeof *row);
    IS_TRY(is_bank_partition_refresh(enc->bank, &p));
    if (policy->kind == IS_POLICY_PAGE || policy->kind == IS_POLICY_COMPANY) {
        is_encode_job job = { .policy = policy, .again = again };

        IS_TRY(is_encode_facts(enc, &p, &fact->id, 1, &job));
        if (job.n_left) return is_fail(INFERSCALE_E_STALE, "fact %lld could not be encoded now; encode it again", (long long)fact->id);
        if (!is_find_kept(enc, &p, policy->name, fact->id, row))
            return is_fail(INFERSCALE_E_STALE, "fact %lld changed meanwhile; encode it again", (long long)fact->id);
        row->n_computed = (uint32_t)job.tokens_computed;
        return INFERSCALE_OK;
    }
    whose = is_realm_of(&p);
    st = is_profile_fact(enc->engine, &whose, fact, &span);
    if (st == INFERSCALE_OK) st = prepare(enc, &p, policy, again, &r);
    if (st == INFERSCALE_OK) st = run_batch(enc, &p, &r, 1);
    *row = r.row;
    is_context_free(&r.context);
    is_tokens_free(&span);
    return st;
}

/* ---- Jobs ---------------------------------------------------------------------------------------------------------------- */

/* Facts that are encoded together are done in one call; while it succeeds in part, what is left is tried again. */
static is_status encode_together(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job)
{
    bool page = job->policy->kind == IS_POLICY_PAGE;
    is_status st = INFERSCALE_E_STALE;

    for (int i = 0; i < TRIES_STALE && st == INFERSCALE_E_STALE; i++) {
        is_partition now = *p;

        IS_TRY(is_bank_partition_refresh(enc->bank, &now));
        st = page ? is_encode_pages(enc, &now, ids, n, job) : is_encode_company(enc, &now, ids, n, job);
    }
    if (st != INFERSCALE_E_STALE) return st;
    is_log(IS_LOG_WARN, "encoding with %s was given up: %s", job->policy->name, is_error());
    job->n_left++;
    return INFERSCALE_OK;
}

static is_status hear_nothing_done(void *ctx, size_t n, const char *what)
{
    is_encode_job *job = ctx;

    (void)n;
    return job->on_facts ? job->on_facts(job->ctx, 0, what) : INFERSCALE_OK;
}

/* Those of the facts that a plan may begin with get header-only rows as well. Their tokens count as computed, not as stored again. */
static is_status encode_beginnings(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job)
{
    is_encode_job header = { .again = job->again, .on_facts = hear_nothing_done, .ctx = job };
    int64_t *chosen = is_malloc((n + 1) * sizeof *chosen);
    is_policy policy;
    size_t m = 0;
    is_status st = is_policy_parse("header", &policy);

    if (!chosen) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", n);
    for (size_t i = 0; i < n; i++)
        if (is_policy_takes_header(job->policy, ids[i])) chosen[m++] = ids[i];
    header.policy = &policy;
    if (st == INFERSCALE_OK && m) st = encode_each(enc, p, chosen, m, &header);
    job->tokens_computed += header.tokens_computed;
    is_free(chosen);
    return st;
}

is_status is_encode_facts(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job)
{
    if (!is_engine_geometry(enc->engine))
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be stored: %s", is_engine_describe(enc->engine)->why_not);
    if (n == 0) return INFERSCALE_OK;
    if (job->policy->header_one_in) IS_TRY(encode_beginnings(enc, p, ids, n, job)); /* first: a page that is there is not looked at again */
    if (job->policy->kind == IS_POLICY_PAGE || job->policy->kind == IS_POLICY_COMPANY) return encode_together(enc, p, ids, n, job);
    return encode_each(enc, p, ids, n, job);
}

void is_contexts_free(is_context *contexts, size_t n)
{
    for (size_t i = 0; i < n; i++) is_context_free(&contexts[i]);
    is_free(contexts);
}

is_status is_encode_contexts(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                             is_context **out, size_t *n)
{
    const uint32_t n_ctx = is_engine_describe(enc->engine)->n_ctx;
    const is_realm whose = is_realm_of(p);
    is_tokens span = { 0 };
    is_status st;

    *out = NULL;
    *n = 0;
    if (policy->kind == IS_POLICY_PAGE) return is_page_contexts(enc, p, policy, fact, out, n);
    if (policy->kind == IS_POLICY_COMPANY) return is_company_contexts(enc, p, policy, fact, out, n);
    *out = is_calloc(1, sizeof **out);
    if (!*out) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a context");
    *n = 1;
    st = is_profile_fact(enc->engine, &whose, fact, &span);
    if (st == INFERSCALE_OK)
        st = is_policy_context(enc, p, policy, fact, n_ctx > span.n + 1 ? n_ctx - span.n - 1 : 0, *out);
    is_tokens_free(&span);
    if (st != INFERSCALE_OK) {
        is_contexts_free(*out, *n);
        *out = NULL;
        *n = 0;
    }
    return st;
}
