/* page.c - facts encoded together, about one computed token a stored one.
 *
 *   header | overlap | fact 1 | fact 2 | ... | fact N          one pass; rows sliced into one segment a fact
 *
 * The overlap (leads) are the last facts of the lane's page before, or by topic the facts nearest to the page's first; they are
 * computed again after the header in this page's pass, never spliced from where they stand. Lanes are pages that are open side by
 * side. By time there is one. In random order a batch that fills pages is put in an order of keyed hashes and fills them one
 * after another; facts that come one by one are spread over lanes by their hash, so that neighbours in time do not share a page
 * either. By topic a batch fills pages with what is nearest to the facts already there; a fact alone joins the open page whose
 * facts are nearest to it on average.
 *
 * A fact that joins an open page costs its own tokens: the rows before it are injected from their segments (leads have segments
 * for that, while the page is open). The name of its segment holds theirs, as the name of one computed in the same pass holds
 * the tokens; what a segment saw is never two things under one name. */
#include "encode/page.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { PAGE_TOKENS = 4096 };

static const uint8_t *view(const is_pager *g)
{
    return g->enc->profile->fingerprint;
}

static is_pager pager_of(const is_encoder *enc, const is_partition *p, const is_policy *policy, is_encode_job *job)
{
    const uint32_t n_ctx = is_engine_describe(enc->engine)->n_ctx, header = enc->profile->header.n;
    is_pager g = { .enc = enc, .p = p, .job = job, .policy = policy, .room = n_ctx > header + 1 ? n_ctx - header - 1 : 0 };

    if (g.room > PAGE_TOKENS) g.room = PAGE_TOKENS;
    snprintf(g.lead_policy, sizeof g.lead_policy, "%.24s#lead", policy->name);
    return g;
}

/* ---- Encoding a page ----------------------------------------------------------------------------------------------------- */

/* A page under work: its facts' lines, and what is kept of each. */
typedef struct sheet {
    const is_page *page;
    is_work w;                   /* in the order of the places */
    is_segment_row *rows;        /* [n] */
    bool *kept;                  /* [n] rows[i] is in the vault */
} sheet;

static void sheet_free(sheet *s)
{
    is_work_free(&s->w);
    is_free(s->rows);
    is_free(s->kept);
}

/* What the rows of a page are held in. A page that takes more facts builds on its rows, so these are
 * kept in the type of the engine's cache where the profile's codec loses precision; is_encode_settle
 * makes them narrow when the page is closed. */
static is_codec codec_of(const is_pager *g, bool open)
{
    const is_codec codec = g->enc->profile->codec;

    return open && !is_codec_plain(codec) ? is_engine_describe(g->enc->engine)->exact_codec : codec;
}

/* What the names of rows in this codec say of it (is_segment_name). */
static uint64_t held_in(const is_pager *g, is_codec codec)
{
    const is_codec own = g->enc->profile->codec;

    return codec == own ? (uint64_t)codec : (uint64_t)own << 8 | (uint64_t)codec;
}

/* Header and the places before `end` as a context, without what is over. */
static is_status context_before(const is_pager *g, const sheet *s, size_t end, is_context *c)
{
    *c = (is_context){ 0 };
    IS_TRY(is_context_add(c, &g->enc->profile->header, (is_dep){ 0, 0 }));
    for (size_t i = 0; i < end; i++)
        if (!s->page->facts[i].over) IS_TRY(is_context_add(c, &s->w.tokens[i], s->page->facts[i].dep));
    return INFERSCALE_OK;
}

/* What this page calls a lead's rows: other pages may have rows of the same fact. */
static is_status lead_name(const is_pager *g, const sheet *s, size_t i, uint8_t name[IS_HASH_BYTES])
{
    is_context c;
    is_status st = context_before(g, s, i, &c);

    if (st == INFERSCALE_OK)
        st = is_segment_name(g->p, is_engine_describe(g->enc->engine), held_in(g, codec_of(g, true)), &c, 1, 0,
                             &s->w.tokens[i], name);
    is_context_free(&c);
    return st;
}

/* What the vault has of a place. */
static is_status look_up(const is_pager *g, sheet *s, size_t i)
{
    const is_page_fact *f = &s->page->facts[i];
    is_segment_row *rows = NULL;
    uint8_t name[IS_HASH_BYTES];
    size_t n = 0;

    s->kept[i] = false;
    if (!f->lead) {
        s->kept[i] = is_find_kept(g->enc, g->p, g->policy->name, f->dep.item_id, &s->rows[i]);
        return INFERSCALE_OK;
    }
    IS_TRY(lead_name(g, s, i, name));
    IS_TRY(is_bank_segments(g->enc->bank, g->p, view(g), g->lead_policy, f->dep.item_id, &rows, &n));
    for (size_t j = 0; j < n && !s->kept[i]; j++) {
        s->kept[i] = memcmp(rows[j].name, name, IS_HASH_BYTES) == 0 && is_vault_has(g->enc->vault, name);
        if (s->kept[i]) s->rows[i] = rows[j];
    }
    is_free(rows);
    return INFERSCALE_OK;
}

static is_status sheet_new(const is_pager *g, const is_page *page, sheet *s)
{
    int64_t *ids = is_malloc((page->n + 1) * sizeof *ids);
    is_status st = ids ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");

    *s = (sheet){ .page = page, .rows = is_calloc(page->n + 1, sizeof *s->rows), .kept = is_calloc(page->n + 1, sizeof *s->kept) };
    for (size_t i = 0; ids && i < page->n; i++) ids[i] = page->facts[i].dep.item_id;
    if (!s->rows || !s->kept) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");
    if (st == INFERSCALE_OK) st = is_work_new(g->enc, g->p, ids, page->n, &s->w);
    if (st == INFERSCALE_OK && s->w.list->n != page->n) st = is_fail(INFERSCALE_E_STALE, "a page lost a fact meanwhile; lay it out again");
    for (size_t i = 0; i < page->n && st == INFERSCALE_OK; i++) {
        const is_page_fact *f = &page->facts[i];

        if (s->w.list->items[i].version != f->dep.version) st = is_fail(INFERSCALE_E_STALE, "a fact of a page changed meanwhile; lay it out again");
        if (st == INFERSCALE_OK) st = look_up(g, s, i);
    }
    is_free(ids);
    if (st != INFERSCALE_OK) sheet_free(s);
    return st;
}

/* Are the rows of a place good enough to build on? Rows in int8 or int4, and in bf16 (unless the
 * model itself is bf16), are not of reference precision. */
static bool of_reference(const is_pager *g, const is_segment_row *row)
{
    const is_codec codec = g->enc->profile->codec;

    if (!is_codec_plain(codec)) return row->wide;
    return codec != IS_CODEC_BF16 || is_engine_describe(g->enc->engine)->exact_codec == IS_CODEC_BF16;
}

/* The rows of all places before `end` as they are stored, if there are all of them; else the context stays computed. So it does if
 * one of them is over: the rows behind it saw it. */
static is_status hold_stored(const is_pager *g, const sheet *s, size_t end, is_context *c)
{
    if (end == 0) return INFERSCALE_OK;
    for (size_t i = 0; i < end; i++)
        if (!s->kept[i] || s->page->facts[i].over || !of_reference(g, &s->rows[i])) return INFERSCALE_OK;
    c->stored = is_calloc(end, sizeof *c->stored);
    if (!c->stored) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a page's context");
    for (; c->n_stored < end; c->n_stored++)
        if (is_engine_segment(g->enc->engine, g->enc->vault, s->rows[c->n_stored].name, &c->stored[c->n_stored]) != INFERSCALE_OK) break;
    if (c->n_stored == end) return INFERSCALE_OK;
    for (uint32_t i = 0; i < c->n_stored; i++) is_segment_unref(c->stored[i]);
    is_free(c->stored);
    c->stored = NULL;
    c->n_stored = 0;
    return INFERSCALE_OK;
}

/* Slices the pass over places [from, to) into segments; made[to - from]. `c` is the pass's context and grows place by place:
 * deps of place i are its first deps. */
static is_status slice(const is_pager *g, const sheet *s, size_t from, size_t to, const is_rows *rows, is_context *c, is_made *made,
                       size_t *n_made)
{
    const is_engine_info *model = is_engine_describe(g->enc->engine);
    const is_codec codec = codec_of(g, s->page->open);
    uint32_t at = 0, others = 0;

    for (size_t i = from + 1; i < to; i++) others += s->w.tokens[i].n;
    for (size_t i = from; i < to; i++) {
        const is_tokens *own = &s->w.tokens[i];
        const is_page_fact *f = &s->page->facts[i];
        is_made *m = &made[*n_made];

        if (!f->lead || s->page->open) { /* leads are kept for those who join later */
            m->row = (is_segment_row){ .fact_id = f->dep.item_id, .version = f->dep.version, .n_tokens = own->n,
                                       .n_context = c->tokens.n, .n_passes = 1, .lead = f->lead,
                                       .wide = codec != g->enc->profile->codec };
            snprintf(m->row.policy, sizeof m->row.policy, "%.31s", f->lead ? g->lead_policy : g->policy->name);
            m->row.n_computed = i > from ? own->n : rows->n_computed > others ? rows->n_computed - others : 0;
            m->n_deps = c->n_deps;
            IS_TRY(is_segment_name(g->p, model, held_in(g, codec), c, 1, at, own, m->row.name));
            IS_TRY(is_rows_segment(g->enc, rows, at, codec, m->row.name, own, c->tokens.n, &m->segment));
            ++*n_made;
        }
        IS_TRY(is_context_add(c, own, f->dep));
        at += own->n;
    }
    for (size_t i = 0; i < *n_made; i++) made[i].deps = c->deps; /* where it lies now that it grows no more */
    return INFERSCALE_OK;
}

/* One pass over places [from, to) behind those before them. */
static is_status run_pass(const is_pager *g, const sheet *s, size_t from, size_t to, bool stored, uint32_t *n_computed)
{
    is_made *made = is_calloc(to - from, sizeof *made);
    is_context c = { 0 };
    is_tokens span = { 0 };
    is_span what = { &c, &span };
    is_rows rows = { 0 };
    size_t n_made = 0;
    is_status st = made ? context_before(g, s, from, &c) : is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");

    if (st == INFERSCALE_OK && stored) st = hold_stored(g, s, from, &c);
    for (size_t i = from; i < to; i++) span.n += s->w.tokens[i].n;
    span.ids = is_malloc((span.n + 1) * sizeof *span.ids);
    if (st == INFERSCALE_OK && !span.ids) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");
    for (size_t i = from, at = 0; i < to && span.ids; at += s->w.tokens[i++].n)
        memcpy(span.ids + at, s->w.tokens[i].ids, s->w.tokens[i].n * sizeof *span.ids);
    if (st == INFERSCALE_OK) st = is_capture_spans(g->enc, g->p, &what, 1, &rows);
    *n_computed = rows.n_computed;
    if (st == INFERSCALE_OK) st = slice(g, s, from, to, &rows, &c, made, &n_made);
    is_rows_free(&rows);
    if (st == INFERSCALE_OK) st = is_keep_made(g->enc, g->p, made, n_made);
    else for (size_t i = 0; i < n_made; i++) is_segment_unref(made[i].segment);
    is_context_free(&c);
    is_tokens_free(&span);
    is_free(made);
    return st;
}

static bool any_over(const is_page *page, size_t end)
{
    for (size_t i = 0; i < end; i++)
        if (page->facts[i].over) return true;
    return false;
}

/* The next run of places whose rows are wanted: [*from, *to). The pass that begins a page computes its leads too. */
static bool next_run(const sheet *s, size_t at, bool again, size_t *from, size_t *to)
{
    const size_t n = s->page->n, n_lead = s->page->n_lead;

    const is_page_fact *facts = s->page->facts;

    for (; at < n; at++)
        if (at >= n_lead && !facts[at].over && (again || !s->kept[at])) break;
    if (at == n) return false;
    *from = at;
    for (; at < n && !facts[at].over && (again || !s->kept[at]); at++) {}
    *to = at;
    if (*from == n_lead && !any_over(s->page, n_lead)) *from = 0;
    return true;
}

/* A closed page needs its leads' rows no more. */
static is_status retire_leads(const is_pager *g, const sheet *s)
{
    for (size_t i = 0; i < s->page->n_lead; i++) {
        uint8_t name[IS_HASH_BYTES];

        IS_TRY(lead_name(g, s, i, name));
        IS_TRY(is_retire_kept(g->enc, g->p, g->lead_policy, s->page->facts[i].dep.item_id, name, false));
    }
    return INFERSCALE_OK;
}

static is_status encode_page(const is_pager *g, const is_page *page)
{
    sheet s;
    size_t from = 0, to = 0, at = 0;
    is_status st;

    IS_TRY(sheet_new(g, page, &s));
    st = INFERSCALE_OK;
    while (st == INFERSCALE_OK && next_run(&s, at, g->job->again, &from, &to)) {
        uint32_t n_computed = 0;
        uint64_t n_stored = 0;
        size_t n_facts = 0;

        st = run_pass(g, &s, from, to, true, &n_computed);
        if (st == INFERSCALE_E_UNSUPPORTED) st = run_pass(g, &s, from, to, false, &n_computed);
        for (size_t i = from; i < to && st == INFERSCALE_OK; i++) {
            st = look_up(g, &s, i);
            n_stored += page->facts[i].lead ? 0 : s.w.tokens[i].n;
            n_facts += !page->facts[i].lead;
        }
        if (st == INFERSCALE_E_CONTEXT) { /* laid out for a larger context */
            st = INFERSCALE_OK;
            for (size_t i = from; i < to && st == INFERSCALE_OK; i++)
                if (!page->facts[i].lead) st = is_job_left(g->job, page->facts[i].dep.item_id);
        } else if (st == INFERSCALE_OK) {
            st = is_job_done(g->job, n_facts, n_stored, n_computed);
        }
        at = to;
    }
    if (st == INFERSCALE_OK && !page->open) st = retire_leads(g, &s);
    sheet_free(&s);
    return st;
}

/* ---- The job ------------------------------------------------------------------------------------------------------------- */

/* Page by page; a page that was done with another of its facts has nothing left to do. */
static is_status encode_all(is_pager *g, const is_work *w)
{
    int64_t *done = is_malloc((w->list->n + 1) * sizeof *done);
    size_t n_done = 0;
    is_status st = done ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for pages");

    for (size_t i = 0; i < w->list->n && st == INFERSCALE_OK; i++) {
        const inferscale_item *item = &w->list->items[i];
        is_page page;
        bool again = false;

        st = is_bank_page_of(g->enc->bank, g->p, view(g), g->policy->name, item->id, item->version, &page);
        if (st == INFERSCALE_E_NOTFOUND) {
            st = INFERSCALE_OK; /* too large for one; told */
            continue;
        }
        for (size_t j = 0; j < n_done; j++) again = again || done[j] == page.id;
        if (st == INFERSCALE_OK && !again) {
            done[n_done++] = page.id;
            st = encode_page(g, &page);
        }
        is_page_free(&page);
    }
    is_free(done);
    return st;
}

is_status is_encode_pages(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job)
{
    is_pager g = pager_of(enc, p, job->policy, job);
    is_work w;
    is_status st;

    if (job->policy->order == IS_PAGE_TOPIC && !enc->embedder)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "pages by topic need embeddings, and there is no embedder; give one, or use @random");
    IS_TRY(is_work_new(enc, p, ids, n, &w));
    st = is_lay_out_pages(&g, &w);
    if (st == INFERSCALE_OK) st = encode_all(&g, &w);
    is_work_free(&w);
    return st;
}

is_status is_page_contexts(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                           is_context **out, size_t *n)
{
    is_pager g = pager_of(enc, p, policy, NULL);
    is_page page;
    sheet s;
    size_t end = 0;
    is_status st = is_bank_page_of(enc->bank, p, view(&g), policy->name, fact->id, fact->version, &page);

    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK;
    IS_TRY(st);
    *out = is_calloc(1, sizeof **out);
    if (!*out) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a context");
    if (st == INFERSCALE_OK) st = sheet_new(&g, &page, &s);
    if (st == INFERSCALE_OK) {
        while (end < page.n && (page.facts[end].lead || page.facts[end].dep.item_id != fact->id)) end++;
        st = context_before(&g, &s, end, *out);
        sheet_free(&s);
    }
    is_page_free(&page);
    *n = *out ? 1 : 0;
    if (st == INFERSCALE_OK) return INFERSCALE_OK;
    is_contexts_free(*out, *n);
    *out = NULL;
    *n = 0;
    return st;
}
