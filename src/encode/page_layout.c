/* page_layout.c - which facts share a page: see page.c. */
#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "encode/nearest.h"
#include "encode/page.h"

enum { LANES = 8, TOPIC_CHUNK = 4096 };

/* ---- Lanes --------------------------------------------------------------------------------------------------------------- */

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
    is_pager *g;
    lane lanes[LANES];
    uint32_t n_lanes;
    int64_t *pages;              /* those that were written to */
    size_t n_pages;
} layout;

static is_status line_tokens(const is_pager *g, int64_t id, uint32_t *n)
{
    is_work w;

    IS_TRY(is_work_new(g->enc, g->p, &id, 1, &w));
    *n = w.list->n ? w.tokens[0].n : 0;
    is_work_free(&w);
    return INFERSCALE_OK;
}

static is_status add_vector(const is_pager *g, lane *l, int64_t id)
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
    st = is_bank_lane(y->g->enc->bank, y->g->p, y->g->enc->profile->fingerprint, y->g->policy->name, i, &l->page);
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
    const is_pager *g = y->g;
    int64_t *pages;

    if (l->fresh.n == 0) return INFERSCALE_OK;
    l->fresh.open = l->n_facts < g->policy->w;
    IS_TRY(is_bank_lay_page(g->enc->bank, g->p, g->p->epoch, g->enc->profile->fingerprint, g->policy->name, &l->fresh));
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

/* The facts nearest to the page's first one, the nearest last, without those in `apart`. */
static is_status near_leads(const is_pager *g, const inferscale_item *first, const int64_t *apart, size_t n_apart, is_page *out)
{
    const uint32_t want = g->policy->overlap, ask = want + (uint32_t)n_apart;
    int64_t *ids = is_malloc((ask + 1) * sizeof *ids);
    inferscale_list *list = NULL;
    size_t n = 0, kept = 0;
    is_status st = ids ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");

    if (st == INFERSCALE_OK && ask) st = is_nearest(g->enc, g->p, first, ask, IS_NEAREST_DENSE, ids, &n);
    for (size_t i = 0; i < n && kept < want && st == INFERSCALE_OK; i++) {
        bool member = false;

        for (size_t j = 0; j < n_apart && !member; j++) member = apart[j] == ids[i];
        if (!member) ids[kept++] = ids[i];
    }
    if (st == INFERSCALE_OK) st = is_bank_get(g->enc->bank, g->p, ids, kept, &list);
    for (size_t i = st == INFERSCALE_OK ? list->n : 0; i-- > 0 && st == INFERSCALE_OK;)
        st = push(out, (is_dep){ list->items[i].id, list->items[i].version }, true);
    inferscale_list_free(list);
    is_free(ids);
    return st;
}

/* The last facts of the lane's page before. */
static is_status last_leads(const is_pager *g, const is_page *before, is_page *out)
{
    size_t from = before->n;

    while (from > before->n_lead && before->n - from < g->policy->overlap) from--;
    for (size_t i = from; i < before->n; i++)
        if (!before->facts[i].over) IS_TRY(push(out, before->facts[i].dep, true));
    return INFERSCALE_OK;
}

/* A new page on the lane, which begins with `first`; `with` are those that are to join it at once. It has as many leads as a quarter
 * of its room holds, the nearest. */
static is_status turn(layout *y, uint32_t i, const inferscale_item *first, const int64_t *with, size_t n_with)
{
    const is_pager *g = y->g;
    lane *l = &y->lanes[i];
    is_page before, leads = { 0 };
    size_t from;
    is_status st;

    IS_TRY(flush(y, l));
    before = l->page;
    l->page = (is_page){ 0 };
    is_page_free(&l->fresh);
    l->fresh = (is_page){ .lane = i, .open = true };
    l->n_tokens = 0;
    l->n_facts = 0;
    is_free(l->sum);
    l->sum = NULL;
    st = g->policy->order == IS_PAGE_TOPIC ? near_leads(g, first, with, n_with, &leads) : last_leads(g, &before, &leads);
    for (from = leads.n; from > 0 && st == INFERSCALE_OK; from--) {
        uint32_t n = 0;

        st = line_tokens(g, leads.facts[from - 1].dep.item_id, &n);
        if (l->n_tokens + n > g->room / 4) break;
        l->n_tokens += n;
    }
    for (; from < leads.n && st == INFERSCALE_OK; from++) st = push(&l->fresh, leads.facts[from].dep, true);
    is_page_free(&before);
    is_page_free(&leads);
    return st;
}

static uint64_t hash_of(const is_pager *g, int64_t id)
{
    uint8_t out[IS_HASH_BYTES];
    uint64_t h = 0;

    is_hash_once(g->enc->shuffle ? g->enc->shuffle : g->p->key, &id, sizeof id, out);
    memcpy(&h, out, sizeof h);
    return h;
}

/* Does the fact stand before the facts of this page already? A page holds nothing twice: what it leads it does not join. */
static bool led_by(const lane *l, int64_t id)
{
    for (size_t i = 0; i < l->page.n; i++)
        if (l->page.facts[i].lead && l->page.facts[i].dep.item_id == id) return true;
    for (size_t i = 0; i < l->fresh.n; i++)
        if (l->fresh.facts[i].lead && l->fresh.facts[i].dep.item_id == id) return true;
    return false;
}

/* The lane whose open page is nearest, of those that the fact does not lead, else the first; an empty lane counts as neither near
 * nor far. */
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
        if (dot > best && !led_by(l, id)) best = dot, *out = i;
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

/* A place for the fact, the first of those in `waiting`: they are not to lead a page that they may join. One that is too large for a
 * page of any kind is refused. */
static is_status place(layout *y, const inferscale_item *item, uint32_t n_tokens, bool bulk, const int64_t *waiting, size_t n_waiting)
{
    const is_pager *g = y->g;
    uint32_t i;
    lane *l;

    if (n_tokens > g->room - g->room / 4)
        return is_fail(INFERSCALE_E_CONTEXT, "fact %lld has %u tokens and a page holds %u; it is served as text where it fits, or split it",
                       (long long)item->id, n_tokens, g->room);
    IS_TRY(choose_lane(y, item->id, bulk, &i));
    l = &y->lanes[i];
    if (!l->fresh.open || l->n_facts >= g->policy->w || l->n_tokens + n_tokens > g->room || led_by(l, item->id))
        IS_TRY(turn(y, i, item, waiting, n_waiting));
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

/* ---- Many at once, by topic ---- */

typedef struct cloud {
    float **vecs;                /* [n] NULL = not embedded yet, or too large */
    uint32_t dim;
    bool *placed;
} cloud;

static double dot(const float *a, const float *b, uint32_t dim)
{
    float sum = 0;

    for (uint32_t i = 0; i < dim; i++) sum += a[i] * b[i];
    return (double)sum;
}

/* The unplaced fact that is nearest to the sum; n if there is none. */
static size_t nearest_of(const cloud *c, size_t n, const float *sum)
{
    size_t best = n;
    double best_dot = 0;

    for (size_t i = 0; i < n; i++) {
        double d;

        if (c->placed[i] || !c->vecs[i]) continue;
        d = dot(c->vecs[i], sum, c->dim);
        if (best == n || d > best_dot) best = i, best_dot = d;
    }
    return best;
}

/* Which facts fill a page that begins with order[first]; in the order they joined. */
static is_status gather(const is_pager *g, cloud *c, const is_work *w, const placed *order, size_t n, size_t first, size_t *members,
                        size_t *n_members)
{
    float *sum = is_calloc(c->dim + 1, sizeof *sum);
    uint32_t tokens = w->tokens[order[first].at].n;
    size_t at = first;

    *n_members = 0;
    if (!sum) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");
    while (at < n && *n_members < g->policy->w && tokens <= g->room - g->room / 4) {
        c->placed[at] = true;
        members[(*n_members)++] = at;
        for (uint32_t i = 0; c->vecs[at] && i < c->dim; i++) sum[i] += c->vecs[at][i];
        at = c->vecs[first] ? nearest_of(c, n, sum) : n;
        if (at < n) tokens += w->tokens[order[at].at].n;
    }
    is_free(sum);
    return INFERSCALE_OK;
}

/* One page on lane 0 for what is nearest to order[first]. */
static is_status place_topic(layout *y, cloud *c, const is_work *w, const placed *order, size_t n, size_t first)
{
    const is_pager *g = y->g;
    size_t *members = is_malloc((g->policy->w + 1) * sizeof *members), n_members = 0;
    int64_t *ids = is_malloc((g->policy->w + 1) * sizeof *ids);
    is_status st = members && ids ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a page");

    if (st == INFERSCALE_OK) st = gather(g, c, w, order, n, first, members, &n_members);
    for (size_t i = 0; i < n_members; i++) ids[i] = w->list->items[order[members[i]].at].id;
    if (st == INFERSCALE_OK) st = know_lane(y, 0);
    if (st == INFERSCALE_OK && n_members) st = turn(y, 0, &w->list->items[order[first].at], ids, n_members);
    for (size_t i = 0; i < n_members && st == INFERSCALE_OK; i++) {
        const inferscale_item *item = &w->list->items[order[members[i]].at];
        lane *l = &y->lanes[0];

        st = push(&l->fresh, (is_dep){ item->id, item->version }, false);
        l->n_tokens += w->tokens[order[members[i]].at].n;
        l->n_facts++;
        if (st == INFERSCALE_OK) st = add_vector(g, l, item->id);
    }
    is_free(members);
    is_free(ids);
    return st;
}

/* In chunks, so that what is compared with each other stays bounded. Facts that are too large or not embedded are left to the
 * ordinary way. */
static is_status place_topics(layout *y, const is_work *w, const placed *order, size_t n, bool *laid)
{
    const is_pager *g = y->g;
    cloud c = { .vecs = is_calloc(n + 1, sizeof *c.vecs), .placed = laid };
    is_status st = c.vecs ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for pages by topic");

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        uint32_t dim = 0;

        if (w->tokens[order[i].at].n > g->room - g->room / 4) continue;
        st = is_fact_vector(g->enc, g->p, w->list->items[order[i].at].id, &c.vecs[i], &dim);
        if (dim) c.dim = dim;
    }
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++)
        if (!c.placed[i] && c.vecs[i]) st = place_topic(y, &c, w, order, n, i);
    for (size_t i = 0; c.vecs && i < n; i++) is_free(c.vecs[i]);
    is_free(c.vecs);
    return st;
}

/* One after another, without those that are laid already. */
static is_status place_singly(layout *y, const is_work *w, const placed *order, const bool *laid, size_t n, bool bulk)
{
    int64_t *waiting = is_malloc((n + 1) * sizeof *waiting);
    size_t n_waiting = 0, at = 0;
    is_status st = waiting ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for pages");

    for (size_t i = 0; waiting && i < n; i++)
        if (!laid[i]) waiting[n_waiting++] = w->list->items[order[i].at].id;
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        const inferscale_item *item = &w->list->items[order[i].at];

        if (laid[i]) continue;
        st = place(y, item, w->tokens[order[i].at].n, bulk, waiting + at, n_waiting - at);
        if (st == INFERSCALE_E_CONTEXT) st = is_job_left(y->g->job, item->id);
        at++;
    }
    is_free(waiting);
    return st;
}

/* Places all facts of the work that have none; y->pages are the pages written to. */
static is_status lay_out(layout *y, const is_work *w, const size_t *open, size_t n_open)
{
    const is_pager *g = y->g;
    const bool bulk = n_open >= g->policy->w, topics = bulk && g->policy->order == IS_PAGE_TOPIC;
    placed *order = is_malloc((n_open + 1) * sizeof *order);
    bool *laid = is_calloc(n_open + 1, sizeof *laid);
    size_t n_paged = 0;
    is_status st = order && laid ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for pages");

    if (st == INFERSCALE_OK) st = is_bank_paged(g->enc->bank, g->p, g->enc->profile->fingerprint, g->policy->name, &n_paged);
    y->n_lanes = g->policy->order == IS_PAGE_TIME ? 1 : 1 + (uint32_t)(n_paged / (2 * (size_t)g->policy->w));
    if (y->n_lanes > LANES) y->n_lanes = LANES;
    for (size_t i = 0; i < n_open && st == INFERSCALE_OK; i++)
        order[i] = (placed){ open[i], g->policy->order != IS_PAGE_TIME ? hash_of(g, w->list->items[open[i]].id) : i };
    if (st == INFERSCALE_OK) is_sort(order, n_open, sizeof *order, by_hash);
    for (size_t i = 0; topics && i < n_open && st == INFERSCALE_OK; i += TOPIC_CHUNK)
        st = place_topics(y, w, order + i, n_open - i < TOPIC_CHUNK ? n_open - i : TOPIC_CHUNK, laid + i);
    if (st == INFERSCALE_OK) st = place_singly(y, w, order, laid, n_open, bulk);
    for (uint32_t i = 0; i < LANES && st == INFERSCALE_OK; i++) st = flush(y, &y->lanes[i]);
    is_free(order);
    is_free(laid);
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

/* Which facts of the work have no place yet. */
static is_status unplaced(const is_pager *g, const is_work *w, size_t *open, size_t *n_open)
{
    *n_open = 0;
    for (size_t i = 0; i < w->list->n; i++) {
        const inferscale_item *item = &w->list->items[i];
        is_page page;
        is_status st = is_bank_page_of(g->enc->bank, g->p, g->enc->profile->fingerprint, g->policy->name, item->id, item->version, &page);

        if (st == INFERSCALE_E_NOTFOUND) open[(*n_open)++] = i;
        else if (st != INFERSCALE_OK) return st;
        is_page_free(&page);
    }
    return INFERSCALE_OK;
}

is_status is_lay_out_pages(is_pager *g, const is_work *w)
{
    layout y = { .g = g };
    size_t *open = is_malloc((w->list->n + 1) * sizeof *open), n_open = 0;
    is_status st = open ? unplaced(g, w, open, &n_open) : is_fail(INFERSCALE_E_NOMEM, "out of memory for pages");

    if (st == INFERSCALE_OK) st = lay_out(&y, w, open, n_open);
    layout_free(&y);
    is_free(open);
    return st;
}
