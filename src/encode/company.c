/* company.c - rows averaged over simulated retrievals.
 *
 * A fact is served among others that a question found with it. What a question finds together, a fact's own text mostly finds
 * too. So each fact seeds a pass: itself and the N facts that its text finds, in a keyed random order, encoded jointly. A fact's
 * rows are the mean over the passes that it stood in (its own, and those of the facts nearest to it that have it as a
 * neighbour), save where it stood first, right behind the header, which is not what it will see.
 *
 * Sums are kept in F32, un-rotated (positions differ from pass to pass), and rounded once. Memory is bounded: when the sums of
 * facts that are not complete outgrow the budget, those with the fewest passes are dropped and their passes run again later. */
#include "encode/encode.h"

#include <string.h>

#include "base/mem.h"
#include "base/sort.h"
#include "encode/nearest.h"

enum { RAM_DEFAULT_MB = 512, PASSES_MAX = 64, REVERSE = 4 };

/* One fact of the partition. What costs something is found when it is first wanted. */
typedef struct mate {
    int64_t id;
    int version;
    bool wanted, done;           /* to be encoded; encoded or given up */
    is_tokens tokens;
    bool has_order, has_passes;
    uint32_t *order;             /* [n_order] the pass it seeds: places of mates in order, itself among them */
    uint32_t n_order;
    uint32_t passes[PASSES_MAX]; /* [n_passes] the seeds whose passes its rows are the mean of */
    uint32_t n_passes;
    uint64_t summed;             /* bit i: passes[i] is in the sum */
    is_rows sum;                 /* rows NULL: none yet */
} mate;

typedef struct company {
    const is_encoder *enc;
    const is_partition *p;
    const is_policy *policy;
    is_encode_job *job;
    uint32_t room;               /* tokens of a pass behind the header */
    inferscale_list *list;       /* every fact of the partition, in id order */
    mate *mates;                 /* [list->n] */
    uint64_t budget, held;       /* bytes of sums */
    uint64_t n_computed;         /* since it was last told */
} company;

/* ---- Who keeps company with whom ----------------------------------------------------------------------------------------- */

static int by_id(const void *key, const void *item)
{
    int64_t a = *(const int64_t *)key, b = ((const mate *)item)->id;

    return (a > b) - (a < b);
}

static mate *find(const company *c, int64_t id)
{
    return is_find(&id, c->mates, c->list->n, sizeof *c->mates, by_id);
}

static is_status tokens_of(company *c, mate *m)
{
    const is_realm whose = is_realm_of(c->p);

    if (m->tokens.ids) return INFERSCALE_OK;
    return is_profile_fact(c->enc->engine, &whose, &c->list->items[m - c->mates], &m->tokens);
}

static is_status neighbours(company *c, const mate *m, uint32_t n, uint32_t **out, uint32_t *n_out)
{
    int64_t *ids = is_malloc((n + 1) * sizeof *ids);
    size_t found = 0;
    is_status st;

    *n_out = 0;
    *out = is_malloc((n + 1) * sizeof **out);
    st = ids && *out ? is_nearest(c->enc, c->p, &c->list->items[m - c->mates], n, IS_NEAREST_TEXT, ids, &found)
                     : is_fail(INFERSCALE_E_NOMEM, "out of memory for a fact's neighbours");
    for (size_t i = 0; i < found && st == INFERSCALE_OK; i++) {
        const mate *other = find(c, ids[i]);

        if (other) (*out)[(*n_out)++] = (uint32_t)(other - c->mates); /* else remembered since: not of this job */
    }
    is_free(ids);
    if (st == INFERSCALE_OK) return st;
    is_free(*out);
    *out = NULL;
    return st;
}

static uint64_t draw(const company *c, const mate *seed, const mate *member)
{
    const int64_t both[2] = { seed->id, member->id };
    uint8_t out[IS_HASH_BYTES];
    uint64_t h;

    is_hash_once(c->enc->shuffle ? c->enc->shuffle : c->p->key, both, sizeof both, out);
    memcpy(&h, out, sizeof h);
    return h;
}

/* A keyed random order of the seed and its neighbours. The seed itself never stands first where there is another: its own pass is
 * one that it always has. */
static void shuffle(const company *c, mate *seed)
{
    for (uint32_t i = 1; i < seed->n_order; i++) /* insertion by hash: a dozen items */
        for (uint32_t j = i; j > 0; j--) {
            uint32_t a = seed->order[j - 1], b = seed->order[j];

            if (draw(c, seed, &c->mates[a]) <= draw(c, seed, &c->mates[b])) break;
            seed->order[j - 1] = b;
            seed->order[j] = a;
        }
    if (seed->n_order > 1 && seed->order[0] == (uint32_t)(seed - c->mates)) {
        seed->order[0] = seed->order[1];
        seed->order[1] = (uint32_t)(seed - c->mates);
    }
}

/* The pass that a fact seeds: with as many of its nearest as fit. */
static is_status order_of(company *c, mate *seed)
{
    uint32_t *near = NULL, n = 0, room, kept = 0;
    is_status st = INFERSCALE_OK;

    if (seed->has_order) return INFERSCALE_OK;
    IS_TRY(tokens_of(c, seed));
    if (seed->tokens.n > c->room)
        return is_fail(INFERSCALE_E_CONTEXT, "fact %lld has %u tokens and the context holds %u behind the header; it is served as text where "
                       "it fits, or split it", (long long)seed->id, seed->tokens.n, c->room);
    IS_TRY(neighbours(c, seed, c->policy->w, &near, &n));
    room = c->room - seed->tokens.n;
    for (uint32_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        mate *m = &c->mates[near[i]];

        st = tokens_of(c, m);
        if (st != INFERSCALE_OK || m->tokens.n > room) continue;
        room -= m->tokens.n;
        near[kept++] = near[i];
    }
    if (st != INFERSCALE_OK) {
        is_free(near);
        return st;
    }
    near[kept++] = (uint32_t)(seed - c->mates); /* there is room for one more than the neighbours */
    seed->order = near;
    seed->n_order = kept;
    shuffle(c, seed);
    seed->has_order = true;
    return INFERSCALE_OK;
}

/* Does the pass that `seed` seeds hold the fact, and not as the first? */
static bool stands_in(const company *c, const mate *seed, const mate *m)
{
    for (uint32_t i = 1; i < seed->n_order; i++)
        if (seed->order[i] == (uint32_t)(m - c->mates)) return true;
    return false;
}

/* The passes of a fact: its own, and those of the facts nearest to it that have it as a neighbour. A fact without any company
 * has its own, in which it stands first. */
static is_status passes_of(company *c, mate *m)
{
    uint32_t *near = NULL, n = 0;
    is_status st = INFERSCALE_OK;

    if (m->has_passes) return INFERSCALE_OK;
    IS_TRY(order_of(c, m));
    m->passes[m->n_passes++] = (uint32_t)(m - c->mates);
    if (c->policy->passes > 1) st = neighbours(c, m, REVERSE * c->policy->w < 999 ? REVERSE * c->policy->w : 999, &near, &n);
    for (uint32_t i = 0; i < n && st == INFERSCALE_OK && m->n_passes < c->policy->passes; i++) {
        mate *seed = &c->mates[near[i]];

        st = order_of(c, seed);
        if (st == INFERSCALE_E_CONTEXT) st = INFERSCALE_OK; /* seeds no pass */
        else if (st == INFERSCALE_OK && stands_in(c, seed, m)) m->passes[m->n_passes++] = near[i];
    }
    is_free(near);
    m->has_passes = st == INFERSCALE_OK;
    if (!m->has_passes) m->n_passes = 0;
    return st;
}

/* ---- Sums ---------------------------------------------------------------------------------------------------------------- */

static uint64_t sum_bytes(const company *c, const mate *m)
{
    return is_geometry_width(is_engine_geometry(c->enc->engine)) * m->tokens.n * sizeof(float);
}

static void drop_sum(company *c, mate *m)
{
    if (!m->sum.rows) return;
    c->held -= sum_bytes(c, m);
    is_rows_free(&m->sum);
    m->summed = 0;
}

static uint32_t n_summed(const mate *m)
{
    return (uint32_t)__builtin_popcountll(m->summed);
}

/* Makes room for one more sum; `spare` is the fact being worked for. */
static void make_room(company *c, const mate *spare, uint64_t bytes)
{
    while (c->held + bytes > c->budget) {
        mate *least = NULL;

        for (size_t i = 0; i < c->list->n; i++) {
            mate *m = &c->mates[i];

            if (m != spare && m->sum.rows && (!least || n_summed(m) < n_summed(least))) least = m;
        }
        if (!least) return;
        drop_sum(c, least);
    }
}

static void add_rows(const is_geometry *g, const is_rows *from, uint32_t at, is_rows *sum)
{
    for (uint32_t i = 0; i < g->n_planes; i++) {
        const size_t width = is_plane_width(&g->planes[i]), n = width * sum->n_tokens;
        const float *src = from->rows[i] + at * width;

        for (size_t j = 0; j < n; j++) sum->rows[i][j] += src[j];
    }
}

/* Adds the rows of one member of a pass to its sum, if it is to have them and has them not. */
static is_status take(company *c, const mate *seed, mate *m, const mate *spare, const is_rows *rows, uint32_t at)
{
    const is_geometry *g = is_engine_geometry(c->enc->engine);

    if (!m->wanted || m->done) return INFERSCALE_OK;
    IS_TRY(passes_of(c, m));
    for (uint32_t i = 0; i < m->n_passes; i++) {
        if (m->passes[i] != (uint32_t)(seed - c->mates) || m->summed >> i & 1) continue;
        if (!m->sum.rows) {
            if (m != spare) make_room(c, spare, sum_bytes(c, m));
            if (m != spare && c->held + sum_bytes(c, m) > c->budget) return INFERSCALE_OK; /* its turn comes */
            IS_TRY(is_rows_new(g, m->tokens.n, &m->sum));
            c->held += sum_bytes(c, m);
        }
        add_rows(g, rows, at, &m->sum);
        m->summed |= UINT64_C(1) << i;
    }
    return INFERSCALE_OK;
}

/* The pass that `seed` seeds, for the sums of all who want it. */
static is_status run_pass(company *c, mate *seed, const mate *spare)
{
    is_context header = { .tokens = c->enc->profile->header }; /* borrowed */
    is_tokens span = { 0 };
    is_span what = { &header, &span };
    is_rows rows = { 0 };
    uint32_t at = 0;
    is_status st;

    for (uint32_t i = 0; i < seed->n_order; i++) span.n += c->mates[seed->order[i]].tokens.n;
    span.ids = is_malloc((span.n + 1) * sizeof *span.ids);
    if (!span.ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a pass of %u tokens", span.n);
    for (uint32_t i = 0; i < seed->n_order; i++) {
        const is_tokens *t = &c->mates[seed->order[i]].tokens;

        memcpy(span.ids + at, t->ids, t->n * sizeof *span.ids);
        at += t->n;
    }
    st = is_capture_spans(c->enc, c->p, &what, 1, &rows);
    c->n_computed += rows.n_computed;
    at = 0;
    for (uint32_t i = 0; i < seed->n_order && st == INFERSCALE_OK; i++) {
        mate *m = &c->mates[seed->order[i]];

        if (i > 0 || seed->n_order == 1) st = take(c, seed, m, spare, &rows, at);
        at += m->tokens.n;
        if (st == INFERSCALE_E_CONTEXT) st = INFERSCALE_OK; /* told when its turn comes */
    }
    is_rows_free(&rows);
    is_tokens_free(&span);
    return st;
}

/* ---- Finished facts ------------------------------------------------------------------------------------------------------ */

/* What a fact saw in the pass that `seed` seeds. */
static is_status context_in(const company *c, const mate *seed, const mate *m, is_context *out)
{
    *out = (is_context){ 0 };
    IS_TRY(is_context_add(out, &c->enc->profile->header, (is_dep){ 0, 0 }));
    for (uint32_t i = 0; i < seed->n_order && seed->order[i] != (uint32_t)(m - c->mates); i++) {
        const mate *before = &c->mates[seed->order[i]];

        IS_TRY(is_context_add(out, &before->tokens, (is_dep){ before->id, before->version }));
    }
    return INFERSCALE_OK;
}

static is_status contexts_of(const company *c, const mate *m, is_context **out)
{
    is_status st = INFERSCALE_OK;

    *out = is_calloc(m->n_passes + 1, sizeof **out);
    if (!*out) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a fact's contexts");
    for (uint32_t i = 0; i < m->n_passes && st == INFERSCALE_OK; i++) st = context_in(c, &c->mates[m->passes[i]], m, &(*out)[i]);
    if (st == INFERSCALE_OK) return st;
    is_contexts_free(*out, m->n_passes);
    *out = NULL;
    return st;
}

/* All that any of the contexts held. */
static is_status all_deps(const is_context *contexts, size_t n, is_dep **deps, size_t *n_deps)
{
    size_t cap = 1;

    *n_deps = 0;
    for (size_t i = 0; i < n; i++) cap += contexts[i].n_deps;
    *deps = is_malloc(cap * sizeof **deps);
    if (!*deps) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a fact's dependencies");
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < contexts[i].n_deps; j++) {
            bool known = false;

            for (size_t k = 0; k < *n_deps && !known; k++) known = (*deps)[k].item_id == contexts[i].deps[j].item_id;
            if (!known) (*deps)[(*n_deps)++] = contexts[i].deps[j];
        }
    return INFERSCALE_OK;
}

static void divide(const is_geometry *g, is_rows *sum, uint32_t n)
{
    for (uint32_t i = 0; i < g->n_planes; i++)
        for (size_t j = 0; j < (size_t)is_plane_width(&g->planes[i]) * sum->n_tokens; j++) sum->rows[i][j] /= (float)n;
}

static uint32_t longest(const is_context *contexts, size_t n)
{
    uint32_t most = 0;

    for (size_t i = 0; i < n; i++)
        if (contexts[i].tokens.n > most) most = contexts[i].tokens.n;
    return most;
}

static is_status keep_mean(company *c, mate *m, const is_context *contexts, uint8_t name[IS_HASH_BYTES])
{
    is_made made = { .row = { .fact_id = m->id, .version = m->version, .n_tokens = m->tokens.n, .n_passes = m->n_passes,
                              .n_context = longest(contexts, m->n_passes), .n_computed = (uint32_t)c->n_computed } };
    is_dep *deps = NULL;
    is_status st;

    memcpy(made.row.policy, c->policy->name, sizeof made.row.policy);
    memcpy(made.row.name, name, IS_HASH_BYTES);
    divide(is_engine_geometry(c->enc->engine), &m->sum, m->n_passes);
    st = all_deps(contexts, m->n_passes, &deps, &made.n_deps);
    made.deps = deps;
    if (st == INFERSCALE_OK) st = is_rows_segment(c->enc, &m->sum, 0, c->enc->profile->codec, name, &m->tokens, made.row.n_context,
                             &made.segment);
    if (st == INFERSCALE_OK) st = is_keep_made(c->enc, c->p, &made, 1);
    is_free(deps);
    return st;
}

/* Runs what passes the fact still lacks, and keeps the mean; nothing to do if it is there under its name. */
static is_status finish(company *c, mate *m)
{
    const is_engine_info *model = is_engine_describe(c->enc->engine);
    is_context *contexts = NULL;
    is_segment_row row;
    uint8_t name[IS_HASH_BYTES];
    uint64_t computed;
    bool there = false;
    is_status st;

    IS_TRY(passes_of(c, m));
    IS_TRY(contexts_of(c, m, &contexts));
    st = is_segment_name(c->p, model, c->enc->profile->codec, contexts, m->n_passes, 0, &m->tokens, name);
    if (st == INFERSCALE_OK && !c->job->again && is_find_kept(c->enc, c->p, c->policy->name, m->id, &row))
        there = memcmp(row.name, name, IS_HASH_BYTES) == 0;
    for (uint32_t i = 0; i < m->n_passes && st == INFERSCALE_OK && !there; i++)
        if (!(m->summed >> i & 1)) st = run_pass(c, &c->mates[m->passes[i]], m);
    if (st == INFERSCALE_OK && !there) st = keep_mean(c, m, contexts, name);
    is_contexts_free(contexts, m->n_passes);
    if (st != INFERSCALE_OK) return st;
    m->done = true;
    drop_sum(c, m);
    computed = c->n_computed;
    c->n_computed = 0;
    return is_job_done(c->job, 1, m->tokens.n, computed);
}

/* The wanted fact that is nearest to being complete: its sum is given back soonest. */
static mate *next(company *c)
{
    mate *best = NULL;
    uint32_t best_missing = UINT32_MAX;

    for (size_t i = 0; i < c->list->n; i++) {
        mate *m = &c->mates[i];
        uint32_t missing = m->has_passes ? m->n_passes - n_summed(m) : PASSES_MAX;

        if (m->wanted && !m->done && missing < best_missing) best = m, best_missing = missing;
    }
    return best;
}

/* ---- The job ------------------------------------------------------------------------------------------------------------- */

static void company_free(company *c)
{
    for (size_t i = 0; c->mates && i < c->list->n; i++) {
        is_tokens_free(&c->mates[i].tokens);
        is_free(c->mates[i].order);
        is_rows_free(&c->mates[i].sum);
    }
    is_free(c->mates);
    inferscale_list_free(c->list);
}

static is_status company_new(const is_encoder *enc, const is_partition *p, const is_policy *policy, is_encode_job *job, company *c)
{
    const uint32_t n_ctx = is_engine_describe(enc->engine)->n_ctx, header = enc->profile->header.n;

    *c = (company){ .enc = enc, .p = p, .policy = policy, .job = job, .room = n_ctx > header + 1 ? n_ctx - header - 1 : 0 };
    c->budget = job && job->ram_bytes ? job->ram_bytes : (uint64_t)RAM_DEFAULT_MB << 20;
    IS_TRY(is_bank_list(enc->bank, p, NULL, INFERSCALE_FACTS, 0, 0, &c->list));
    c->mates = is_calloc(c->list->n + 1, sizeof *c->mates);
    if (!c->mates) {
        is_status st = is_fail(INFERSCALE_E_NOMEM, "out of memory for the company of %zu facts", c->list->n);

        company_free(c);
        return st;
    }
    for (size_t i = 0; i < c->list->n; i++) {
        c->mates[i].id = c->list->items[i].id;
        c->mates[i].version = c->list->items[i].version;
    }
    return INFERSCALE_OK;
}

is_status is_encode_company(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job)
{
    company c;
    is_status st = company_new(enc, p, job->policy, job, &c);
    mate *m;

    if (st != INFERSCALE_OK) return st;
    for (size_t i = 0; i < n; i++) {
        m = find(&c, ids[i]);
        if (m) m->wanted = true;
    }
    while (st == INFERSCALE_OK && (m = next(&c)) != NULL) {
        st = finish(&c, m);
        if (st != INFERSCALE_E_CONTEXT) continue;
        m->done = true;
        st = is_job_left(job, m->id);
    }
    company_free(&c);
    return st;
}

is_status is_company_contexts(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                              is_context **out, size_t *n)
{
    company c;
    mate *m;
    is_status st;

    IS_TRY(company_new(enc, p, policy, NULL, &c));
    m = find(&c, fact->id);
    st = m ? passes_of(&c, m) : is_fail(INFERSCALE_E_NOTFOUND, "there is no fact %lld; list the facts for their ids", (long long)fact->id);
    if (st == INFERSCALE_OK) st = contexts_of(&c, m, out);
    if (st == INFERSCALE_OK) *n = m->n_passes;
    company_free(&c);
    return st;
}
