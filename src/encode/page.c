/* page.c - facts encoded together, about one computed token a stored one.
 *
 *   header | overlap | fact 1 | fact 2 | ... | fact N          one pass; rows sliced into one segment a fact
 *
 * The overlap (leads) are the last facts of the lane's page before, computed again after the header, never spliced. Lanes are
 * pages that are open side by side. By time there is one. In random order a batch that fills pages is put in an order of keyed
 * hashes and fills them one after another; facts that come one by one are spread over lanes by their hash, so that neighbours
 * in time do not share a page either. By topic a fact joins the open page whose facts are nearest to it on average.
 *
 * A fact that joins an open page costs its own tokens: the rows before it are injected from their segments (leads have segments
 * for that, while the page is open). The name of its segment holds theirs, as the name of one computed in the same pass holds
 * the tokens; what a segment saw is never two things under one name. */
#include "encode/encode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encode/nearest.h"

enum { LANES = 8, PAGE_TOKENS = 4096 };

typedef struct pager {
    const is_encoder *enc;
    const is_partition *p;
    is_encode_job *job;
    const is_policy *policy;
    char lead_policy[40];        /* the leads' rows are entered under this name */
    uint32_t room;               /* tokens of a page behind the header */
} pager;

static const uint8_t *view(const pager *g)
{
    return g->enc->profile->fingerprint;
}

static pager pager_of(const is_encoder *enc, const is_partition *p, const is_policy *policy, is_encode_job *job)
{
    const uint32_t n_ctx = is_engine_describe(enc->engine)->n_ctx, header = enc->profile->header.n;
    pager g = { .enc = enc, .p = p, .job = job, .policy = policy, .room = n_ctx > header + 1 ? n_ctx - header - 1 : 0 };

    if (g.room > PAGE_TOKENS) g.room = PAGE_TOKENS;
    snprintf(g.lead_policy, sizeof g.lead_policy, "%.24s#lead", policy->name);
    return g;
}

/* ---- Laying out ---------------------------------------------------------------------------------------------------------- */

/* The newest page of a lane as it will be. */
typedef struct lane {
    bool known;
    is_page page;                /* as in the books */
    is_page fresh;               /* what is to be appended (id 0: a new page) */
    uint32_t n_tokens;           /* of all its places */
    size_t n_facts;              /* leads apart */
    float *sum;                  /* topic: of its facts' vectors */
} lane;

typedef struct layout {
    pager *g;
    lane lanes[LANES];
    uint32_t n_lanes;
    int64_t *pages;              /* those that were written to */
    size_t n_pages;
} layout;

static is_status line_tokens(const pager *g, int64_t id, uint32_t *n)
{
    is_work w;

    IS_TRY(is_work_new(g->enc, g->p, &id, 1, &w));
    *n = w.list->n ? w.tokens[0].n : 0;
    is_work_free(&w);
    return INFERSCALE_OK;
}

static is_status add_vector(const pager *g, lane *l, int64_t id)
{
    float *v = NULL;
    uint32_t dim = 0;

    if (g->policy->order != IS_PAGE_TOPIC) return INFERSCALE_OK;
    IS_TRY(is_fact_vector(g->enc, g->p, id, &v, &dim));
    if (v && !l->sum) l->sum = is_calloc(dim, sizeof *l->sum);
    for (uint32_t i = 0; v && l->sum && i < dim; i++) l->sum[i] += v[i];
    is_free(v);
    return INFERSCALE_OK;
}

/* What the books say of the lane's newest page. */
static is_status know_lane(layout *y, uint32_t i)
{
    lane *l = &y->lanes[i];
    is_status st;

    if (l->known) return INFERSCALE_OK;
    st = is_bank_lane(y->g->enc->bank, y->g->p, view(y->g), y->g->policy->name, i, &l->page);
    if (st != INFERSCALE_OK && st != INFERSCALE_E_NOTFOUND) return st;
    for (size_t f = 0; f < l->page.n; f++) {
        uint32_t n = 0;

        IS_TRY(line_tokens(y->g, l->page.facts[f].dep.item_id, &n));
        l->n_tokens += n;
        if (!l->page.facts[f].lead) IS_TRY(add_vector(y->g, l, l->page.facts[f].dep.item_id));
    }
    l->n_facts = l->page.n - l->page.n_lead;
    l->fresh = (is_page){ .id = l->page.id, .lane = i, .open = l->page.open };
    l->known = true;
    return INFERSCALE_OK;
}

static is_status push(is_page *page, is_dep dep, bool lead)
{
    is_page_fact *facts = is_realloc(page->facts, (page->n + 1) * sizeof *facts);

    if (!facts) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");
    page->facts = facts;
    facts[page->n++] = (is_page_fact){ .dep = dep, .lead = lead };
    page->n_lead += lead;
    return INFERSCALE_OK;
}

/* Writes what was appended to the lane's page; the lane then knows the page as the books do. */
static is_status flush(layout *y, lane *l)
{
    const pager *g = y->g;
    int64_t *pages;

    if (l->fresh.n == 0) return INFERSCALE_OK;
    l->fresh.open = l->n_facts < g->policy->w;
    IS_TRY(is_bank_lay_page(g->enc->bank, g->p, g->p->epoch, view(g), g->policy->name, &l->fresh));
    pages = is_realloc(y->pages, (y->n_pages + 1) * sizeof *pages);
    if (!pages) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a list of pages");
    y->pages = pages;
    pages[y->n_pages++] = l->fresh.id;
    for (size_t i = 0; i < l->fresh.n; i++) IS_TRY(push(&l->page, l->fresh.facts[i].dep, l->fresh.facts[i].lead));
    l->page.id = l->fresh.id;
    l->page.open = l->fresh.open;
    l->fresh.n = l->fresh.n_lead = 0;
    return INFERSCALE_OK;
}

/* A new page on the lane: its leads are the last facts of the one before, as many as the overlap and a quarter of the room hold. */
static is_status turn(layout *y, uint32_t i)
{
    const pager *g = y->g;
    lane *l = &y->lanes[i];
    is_page before;
    size_t from;
    uint32_t n_tokens = 0;
    is_status st = INFERSCALE_OK;

    IS_TRY(flush(y, l));
    before = l->page;
    l->page = (is_page){ 0 };
    is_page_free(&l->fresh);
    l->fresh = (is_page){ .lane = i, .open = true };
    l->n_tokens = 0;
    l->n_facts = 0;
    is_free(l->sum);
    l->sum = NULL;
    for (from = before.n; from > before.n_lead && before.n - from < g->policy->overlap && st == INFERSCALE_OK; from--) {
        uint32_t n = 0;

        st = line_tokens(g, before.facts[from - 1].dep.item_id, &n);
        if (n_tokens + n > g->room / 4) break;
        n_tokens += n;
    }
    for (size_t f = from; f < before.n && st == INFERSCALE_OK; f++)
        if (!before.facts[f].over) st = push(&l->fresh, before.facts[f].dep, true);
    l->n_tokens = n_tokens;
    is_page_free(&before);
    return st;
}

static uint64_t hash_of(const pager *g, int64_t id)
{
    uint8_t out[IS_HASH_BYTES];
    uint64_t h = 0;

    is_hash_once(g->p->key, &id, sizeof id, out);
    memcpy(&h, out, sizeof h);
    return h;
}

/* The lane whose open page is nearest; an empty lane counts as neither near nor far. */
static is_status nearest_lane(layout *y, int64_t id, uint32_t *out)
{
    float *v = NULL;
    uint32_t dim = 0;
    double best = -2;

    IS_TRY(is_fact_vector(y->g->enc, y->g->p, id, &v, &dim));
    *out = 0;
    for (uint32_t i = 0; i < y->n_lanes; i++) {
        const lane *l = &y->lanes[i];
        double dot = 0;

        for (uint32_t d = 0; v && l->sum && d < dim; d++) dot += (double)v[d] * l->sum[d];
        if (l->n_facts) dot /= (double)l->n_facts;
        if (!l->sum) dot = 0.2;
        if (dot > best) best = dot, *out = i;
    }
    is_free(v);
    return INFERSCALE_OK;
}

static is_status choose_lane(layout *y, int64_t id, bool bulk, uint32_t *out)
{
    is_status st = INFERSCALE_OK;

    *out = 0;
    if (y->g->policy->order == IS_PAGE_TOPIC) {
        for (uint32_t i = 0; i < y->n_lanes && st == INFERSCALE_OK; i++) st = know_lane(y, i);
        if (st == INFERSCALE_OK) st = nearest_lane(y, id, out);
    } else if (y->g->policy->order == IS_PAGE_RANDOM && !bulk) {
        *out = (uint32_t)(hash_of(y->g, id) % y->n_lanes);
    }
    return st == INFERSCALE_OK ? know_lane(y, *out) : st;
}

/* A place for the fact. One that is too large for a page of any kind is refused. */
static is_status place(layout *y, const inferscale_item *item, uint32_t n_tokens, bool bulk)
{
    const pager *g = y->g;
    uint32_t i;
    lane *l;

    if (n_tokens > g->room - g->room / 4)
        return is_fail(INFERSCALE_E_CONTEXT, "fact %lld has %u tokens and a page holds %u; it is served as text where it fits, or split it",
                       (long long)item->id, n_tokens, g->room);
    IS_TRY(choose_lane(y, item->id, bulk, &i));
    l = &y->lanes[i];
    if (!l->fresh.open || l->n_facts >= g->policy->w || l->n_tokens + n_tokens > g->room) IS_TRY(turn(y, i));
    IS_TRY(push(&l->fresh, (is_dep){ item->id, item->version }, false));
    l->n_tokens += n_tokens;
    l->n_facts++;
    return add_vector(g, l, item->id);
}

typedef struct placed { size_t at; uint64_t hash; } placed;

static int by_hash(const void *a, const void *b)
{
    const placed *x = a, *y = b;

    return x->hash < y->hash ? -1 : x->hash > y->hash ? 1 : (x->at > y->at) - (x->at < y->at);
}

/* Places all facts of the work that have none; y->pages are the pages written to. */
static is_status lay_out(layout *y, const is_work *w, const size_t *open, size_t n_open)
{
    const pager *g = y->g;
    const bool bulk = n_open >= g->policy->w;
    placed *order = is_malloc((n_open + 1) * sizeof *order);
    size_t n_paged = 0;
    is_status st = order ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for pages");

    if (st == INFERSCALE_OK) st = is_bank_paged(g->enc->bank, g->p, view(g), g->policy->name, &n_paged);
    y->n_lanes = g->policy->order == IS_PAGE_TIME ? 1 : 1 + (uint32_t)((n_paged + (bulk ? n_open : 0)) / (2 * (size_t)g->policy->w));
    if (y->n_lanes > LANES) y->n_lanes = LANES;
    for (size_t i = 0; i < n_open && st == INFERSCALE_OK; i++)
        order[i] = (placed){ open[i], g->policy->order == IS_PAGE_RANDOM ? hash_of(g, w->list->items[open[i]].id) : i };
    if (st == INFERSCALE_OK) qsort(order, n_open, sizeof *order, by_hash);
    for (size_t i = 0; i < n_open && st == INFERSCALE_OK; i++) {
        const inferscale_item *item = &w->list->items[order[i].at];

        st = place(y, item, w->tokens[order[i].at].n, bulk);
        if (st == INFERSCALE_E_CONTEXT) st = is_job_left(g->job, item->id);
    }
    for (uint32_t i = 0; i < LANES && st == INFERSCALE_OK; i++) st = flush(y, &y->lanes[i]);
    is_free(order);
    return st;
}

static void layout_free(layout *y)
{
    for (uint32_t i = 0; i < LANES; i++) {
        is_page_free(&y->lanes[i].page);
        is_page_free(&y->lanes[i].fresh);
        is_free(y->lanes[i].sum);
    }
    is_free(y->pages);
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

static is_status sheet_new(const pager *g, const is_page *page, sheet *s)
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
        s->kept[i] = is_find_kept(g->enc, g->p, f->lead ? g->lead_policy : g->policy->name, f->dep.item_id, &s->rows[i]);
    }
    is_free(ids);
    if (st != INFERSCALE_OK) sheet_free(s);
    return st;
}

/* Header and the places before `end` as a context, without what is over. */
static is_status context_before(const pager *g, const sheet *s, size_t end, is_context *c)
{
    *c = (is_context){ 0 };
    IS_TRY(is_context_add(c, &g->enc->profile->header, (is_dep){ 0, 0 }));
    for (size_t i = 0; i < end; i++)
        if (!s->page->facts[i].over) IS_TRY(is_context_add(c, &s->w.tokens[i], s->page->facts[i].dep));
    return INFERSCALE_OK;
}

/* The rows of all places before `end` as they are stored, if there are all of them; else the context stays computed. So it does if
 * one of them is over: the rows behind it saw it. bf16 rows are not of reference precision. */
static is_status hold_stored(const pager *g, const sheet *s, size_t end, is_context *c)
{
    const uint8_t *model = is_engine_describe(g->enc->engine)->fingerprint;

    if (end == 0 || g->enc->profile->codec == IS_CODEC_BF16) return INFERSCALE_OK;
    for (size_t i = 0; i < end; i++)
        if (!s->kept[i] || s->page->facts[i].over) return INFERSCALE_OK;
    c->stored = is_calloc(end, sizeof *c->stored);
    if (!c->stored) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a page's context");
    for (; c->n_stored < end; c->n_stored++)
        if (is_vault_get(g->enc->vault, s->rows[c->n_stored].name, model, &c->stored[c->n_stored]) != INFERSCALE_OK) break;
    if (c->n_stored == end) return INFERSCALE_OK;
    for (uint32_t i = 0; i < c->n_stored; i++) is_segment_unref(c->stored[i]);
    is_free(c->stored);
    c->stored = NULL;
    c->n_stored = 0;
    return INFERSCALE_OK;
}

/* Slices the pass over places [from, to) into segments; made[to - from]. `c` is the pass's context and grows place by place:
 * deps of place i are its first deps. */
static is_status slice(const pager *g, const sheet *s, size_t from, size_t to, const is_rows *rows, is_context *c, is_made *made,
                       size_t *n_made)
{
    const is_engine_info *model = is_engine_describe(g->enc->engine);
    uint32_t at = 0, others = 0;

    for (size_t i = from + 1; i < to; i++) others += s->w.tokens[i].n;
    for (size_t i = from; i < to; i++) {
        const is_tokens *own = &s->w.tokens[i];
        const is_page_fact *f = &s->page->facts[i];
        is_made *m = &made[*n_made];

        if (!f->lead || s->page->open) { /* leads are kept for those who join later */
            m->row = (is_segment_row){ .fact_id = f->dep.item_id, .version = f->dep.version, .n_tokens = own->n,
                                       .n_context = c->tokens.n, .n_passes = 1, .lead = f->lead };
            snprintf(m->row.policy, sizeof m->row.policy, "%.31s", f->lead ? g->lead_policy : g->policy->name);
            m->row.n_computed = i > from ? own->n : rows->n_computed > others ? rows->n_computed - others : 0;
            m->n_deps = c->n_deps;
            IS_TRY(is_segment_name(g->p, model, g->enc->profile, c, 1, at, own, m->row.name));
            IS_TRY(is_rows_segment(g->enc, rows, at, m->row.name, own, c->tokens.n, &m->segment));
            ++*n_made;
        }
        IS_TRY(is_context_add(c, own, f->dep));
        at += own->n;
    }
    for (size_t i = 0; i < *n_made; i++) made[i].deps = c->deps; /* where it lies now that it grows no more */
    return INFERSCALE_OK;
}

/* One pass over places [from, to) behind those before them. */
static is_status run_pass(const pager *g, const sheet *s, size_t from, size_t to, bool stored, uint32_t *n_computed)
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
    if (st == INFERSCALE_OK) st = is_capture_spans(g->enc, &what, 1, &rows);
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
static is_status retire_leads(const pager *g, const is_page *page)
{
    for (size_t i = 0; i < page->n_lead; i++)
        IS_TRY(is_retire_kept(g->enc, g->p, g->lead_policy, page->facts[i].dep.item_id, NULL));
    return INFERSCALE_OK;
}

static is_status encode_page(const pager *g, const is_page *page)
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
            const char *under = page->facts[i].lead ? g->lead_policy : g->policy->name;

            s.kept[i] = is_find_kept(g->enc, g->p, under, page->facts[i].dep.item_id, &s.rows[i]);
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
    if (st == INFERSCALE_OK && !page->open) st = retire_leads(g, page);
    sheet_free(&s);
    return st;
}

/* ---- The job ------------------------------------------------------------------------------------------------------------- */

/* Which facts of the work have no place yet. */
static is_status unplaced(const pager *g, const is_work *w, size_t *open, size_t *n_open)
{
    *n_open = 0;
    for (size_t i = 0; i < w->list->n; i++) {
        is_page page;
        is_status st = is_bank_page_of(g->enc->bank, g->p, view(g), g->policy->name, w->list->items[i].id, w->list->items[i].version, &page);

        if (st == INFERSCALE_E_NOTFOUND) open[(*n_open)++] = i;
        else if (st != INFERSCALE_OK) return st;
        is_page_free(&page);
    }
    return INFERSCALE_OK;
}

/* Page by page; a page that was done with another of its facts has nothing left to do. */
static is_status encode_all(pager *g, const is_work *w)
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
    pager g = pager_of(enc, p, job->policy, job);
    layout y = { .g = &g };
    is_work w;
    size_t *open, n_open = 0;
    is_status st;

    if (job->policy->order == IS_PAGE_TOPIC && !enc->embedder)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "pages by topic need embeddings, and there is no embedder; give one, or use @random");
    IS_TRY(is_work_new(enc, p, ids, n, &w));
    open = is_malloc((w.list->n + 1) * sizeof *open);
    st = open ? unplaced(&g, &w, open, &n_open) : is_fail(INFERSCALE_E_NOMEM, "out of memory for pages");
    if (st == INFERSCALE_OK) st = lay_out(&y, &w, open, n_open);
    layout_free(&y);
    is_free(open);
    if (st == INFERSCALE_OK) st = encode_all(&g, &w);
    is_work_free(&w);
    return st;
}

is_status is_page_contexts(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                           is_context **out, size_t *n)
{
    pager g = pager_of(enc, p, policy, NULL);
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
