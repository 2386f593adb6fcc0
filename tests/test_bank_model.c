/* Random histories against a model in memory: after every step the bank says exactly what the model says, in each partition, and
 * forgetting returns exactly the segments that a change made untrue. The seed is printed; INFERSCALE_SEED replays it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/bank_kit.h"

enum { OWNERS = 3, AGENTS = 3, ITEMS = 4000, VERSIONS = 40, SEGMENTS = 6000, DEPS = 4, STEPS = 800 };

static const char *const agents[AGENTS] = { "", "cook", "coach" };
static const char *const policies[] = { "header", "facts:1", "turns:2" };

typedef struct m_item {
    int64_t id, source, older_sources[VERSIONS];
    int owner, kind, agent, n_versions;
    int texts[VERSIONS];      /* the text of version v + 1 is made of this number */
    bool alive, embedded;     /* embedded: the current version */
    bool withdrawn;           /* turns */
    int conversation;
} m_item;

typedef struct m_segment { int tag, fact, version, policy, n_deps, dep[DEPS], dep_version[DEPS]; bool alive; } m_segment;

typedef struct model {
    bank_kit *k;
    unsigned long long seed;
    inferscale_scope owner[OWNERS];
    is_partition p[OWNERS];
    m_item items[ITEMS];
    m_segment segments[SEGMENTS];
    int n_items, n_segments;
    int64_t epoch[OWNERS], revision[OWNERS];
} model;

static unsigned below(model *m, unsigned n) { return scratch_below(&m->seed, n); }

static const char *text_of(int number, char out[64])
{
    snprintf(out, 64, "text number %d", number);
    return out;
}

/* A random living item of an owner (-1: any) and kind (0: any), or NULL. */
static m_item *pick(model *m, int owner, int kind)
{
    if (!m->n_items) return NULL;
    for (unsigned i = 0, at = below(m, (unsigned)m->n_items); i < (unsigned)m->n_items; i++, at = (at + 1) % (unsigned)m->n_items) {
        m_item *x = &m->items[at];

        if (x->alive && (owner < 0 || x->owner == owner) && (!kind || x->kind == kind)) return x;
    }
    return NULL;
}

static m_item *new_item(model *m, int64_t id, int owner, int kind, int agent, int text)
{
    m_item *x = &m->items[m->n_items++];

    assert_true(m->n_items < ITEMS);
    for (int i = 0; i < m->n_items - 1; i++) assert_true(m->items[i].id < id); /* never used again, in order of writing */
    *x = (m_item){ .id = id, .owner = owner, .kind = kind, .agent = agent, .n_versions = 1, .texts = { text }, .alive = true };
    return x;
}

static void wrote(model *m, int owner, bool epoch)
{
    m->epoch[owner] += epoch;
    m->revision[owner]++;
}

/* ---- Steps --------------------------------------------------------------------------------------------------------------- */

static void add_facts(model *m)
{
    int owner = (int)below(m, OWNERS), agent = (int)below(m, AGENTS), n = 1 + (int)below(m, 4);
    inferscale_scope scope = m->owner[owner];
    inferscale_fact f[4] = { { 0 } };
    inferscale_event e[4];
    char texts[4][64];
    int numbers[4];
    bool any = false;

    scope.agent = agents[agent];
    for (int i = 0; i < n; i++) {
        m_item *turn = below(m, 3) ? pick(m, owner, INFERSCALE_TURNS) : NULL;

        numbers[i] = (int)below(m, 60); /* few, so that equal texts meet */
        f[i].text = text_of(numbers[i], texts[i]);
        f[i].source_turn = turn ? turn->id : 0;
    }
    OK(is_bank_add_facts(m->k->bank, &m->p[owner], &scope, f, (size_t)n, e));
    for (int i = 0; i < n; i++) {
        int64_t same = 0;

        for (int j = 0; j < m->n_items && !same; j++) {
            m_item *x = &m->items[j];
            if (x->alive && x->owner == owner && x->kind == INFERSCALE_FACTS && x->texts[x->n_versions - 1] == numbers[i] &&
                (!agent || x->agent == agent))
                same = x->id;
        }
        assert_int_equal(e[i].event, same ? INFERSCALE_EVENT_NONE : INFERSCALE_EVENT_ADD);
        if (same) assert_int_equal(e[i].id, same);
        else new_item(m, e[i].id, owner, INFERSCALE_FACTS, agent, numbers[i])->source = f[i].source_turn;
        any = any || !same;
    }
    if (any) wrote(m, owner, false);
}

static void add_turn(model *m)
{
    int owner = (int)below(m, OWNERS), agent = (int)below(m, AGENTS), number = (int)below(m, 1000), conversation = (int)below(m, 3);
    inferscale_scope scope = m->owner[owner];
    char text[64], name[16];
    inferscale_turn t = { .text = text_of(number, text), .conversation = name };
    int64_t id;

    scope.agent = agents[agent];
    snprintf(name, sizeof name, "talk %d", conversation);
    OK(is_bank_add_turns(m->k->bank, &m->p[owner], &scope, &t, 1, &id));
    new_item(m, id, owner, INFERSCALE_TURNS, agent, number)->conversation = conversation;
    wrote(m, owner, false);
}

/* Kills the segments that hold the item; they must be exactly the stale ones (added to want). */
static void kill_dependents(model *m, const m_item *x, bool *want)
{
    int at = (int)(x - m->items);

    for (int s = 0; s < m->n_segments; s++) {
        m_segment *g = &m->segments[s];
        bool holds = g->fact == at;

        for (int d = 0; d < g->n_deps; d++) holds = holds || g->dep[d] == at;
        if (g->alive && holds) g->alive = false, want[s] = true;
    }
}

static void expect_stale(model *m, const bool *want, is_names *stale)
{
    size_t n = 0;

    for (int s = 0; s < m->n_segments; s++) {
        n += want[s];
        if (want[s]) assert_true(kit_named(stale, m->segments[s].tag));
    }
    assert_int_equal(stale->n, n);
    OK(is_bank_doomed_done(m->k->bank, stale));
    is_names_free(stale);
}

static void update(model *m)
{
    int owner = (int)below(m, OWNERS), number = (int)below(m, 60);
    m_item *x = pick(m, below(m, 8) ? owner : -1, 0);
    inferscale_fact f = { 0 };
    static bool want[SEGMENTS];
    is_names stale;
    char text[64];

    if (!x || x->n_versions == VERSIONS) return;
    f.text = text_of(number, text);
    if (x->owner != owner || x->kind != INFERSCALE_FACTS) {
        FAILS(E_NOTFOUND, is_bank_update_fact(m->k->bank, &m->p[owner], x->id, &f, &stale));
        return;
    }
    OK(is_bank_update_fact(m->k->bank, &m->p[owner], x->id, &f, &stale));
    memset(want, 0, sizeof want);
    kill_dependents(m, x, want);
    expect_stale(m, want, &stale);
    x->texts[x->n_versions++] = number;
    x->older_sources[x->n_versions - 2] = x->source;
    x->source = 0;
    x->embedded = false;
    wrote(m, owner, true);
}

/* The turns that a forgotten fact came from, in any version: kept, and not used any more. */
static void withdraw_sources(model *m, const m_item *fact, bool *want)
{
    for (int i = 0; i < m->n_items; i++) {
        m_item *t = &m->items[i];
        bool source = t->id == fact->source;

        for (int v = 0; v < VERSIONS; v++) source = source || t->id == fact->older_sources[v];
        if (!source || !t->alive || t->withdrawn) continue;
        t->withdrawn = true;
        t->embedded = false;
        kill_dependents(m, t, want);
    }
}

static void forget(model *m)
{
    int owner = (int)below(m, OWNERS), agent = below(m, 3) ? 0 : 1 + (int)below(m, AGENTS - 1), n = (int)below(m, 6);
    bool all = below(m, 40) == 0;
    inferscale_scope filter = { .agent = agents[agent] };
    int64_t ids[8] = { 0 };
    static bool want[SEGMENTS];
    size_t deleted = 0, expected = 0;
    is_names stale;

    for (int i = 0; i < n; i++) {
        m_item *x = pick(m, below(m, 4) ? owner : -1, 0);

        ids[i] = x && below(m, 10) ? x->id : (int64_t)below(m, 100000);
    }
    OK(is_bank_forget(m->k->bank, &m->p[owner], all ? NULL : ids, all ? 0 : (size_t)n, &filter, &deleted, &stale));
    memset(want, 0, sizeof want);
    for (int i = 0; i < m->n_items; i++) {
        m_item *x = &m->items[i];
        bool asked = all;

        for (int j = 0; j < n; j++) asked = asked || ids[j] == x->id;
        if (!x->alive || !asked || x->owner != owner || (agent && x->agent != agent)) continue;
        x->alive = false;
        expected++;
        kill_dependents(m, x, want);
        if (x->kind == INFERSCALE_FACTS) withdraw_sources(m, x, want);
        for (int j = 0; j < m->n_items; j++) {
            if (m->items[j].source == x->id) m->items[j].source = 0;
            for (int v = 0; v < VERSIONS; v++)
                if (m->items[j].older_sources[v] == x->id) m->items[j].older_sources[v] = 0;
        }
    }
    assert_int_equal(deleted, expected);
    expect_stale(m, want, &stale);
    if (expected) wrote(m, owner, true);
}

static void embed(model *m)
{
    int owner = (int)below(m, OWNERS);
    m_item *x = pick(m, owner, 0);
    int8_t q[16] = { 0 };

    if (!x) return;
    q[0] = (int8_t)x->id;
    if (x->withdrawn) {
        FAILS(E_STALE, is_bank_put_embedding(m->k->bank, &m->p[owner], kit_model, x->id, x->n_versions, q, sizeof q, 0.5f));
        return;
    }
    OK(is_bank_put_embedding(m->k->bank, &m->p[owner], kit_model, x->id, x->n_versions, q, sizeof q, 0.5f));
    x->embedded = true;
    wrote(m, owner, false);
}

static void encode(model *m)
{
    int owner = (int)below(m, OWNERS), n = (int)below(m, DEPS);
    m_item *x = pick(m, owner, INFERSCALE_FACTS);
    m_segment g = { .tag = m->n_segments + 1, .alive = true, .policy = (int)below(m, 3) };
    bool stale_dep = false, late = below(m, 12) == 0;
    is_segment_row row = { .n_tokens = 5 };
    is_dep deps[DEPS];
    is_status st;

    if (!x) return;
    g.fact = (int)(x - m->items);
    g.version = x->n_versions;
    for (int i = 0; i < n; i++) {
        m_item *d = pick(m, below(m, 20) ? owner : -1, 0);
        int wrong = below(m, 30) == 0;

        g.dep[g.n_deps] = (int)(d - m->items);
        g.dep_version[g.n_deps++] = d->n_versions;
        deps[i] = (is_dep){ d->id, d->n_versions + wrong };
        stale_dep = stale_dep || wrong || d->owner != owner || d->withdrawn;
    }
    row.fact_id = x->id;
    row.version = x->n_versions;
    kit_name(g.tag, row.name);
    snprintf(row.policy, sizeof row.policy, "%s", policies[g.policy]);
    st = is_bank_put_segment(m->k->bank, &m->p[owner], m->epoch[owner] - late, kit_model, &row, deps, (size_t)g.n_deps);
    scratch_expect(stale_dep || late ? INFERSCALE_E_STALE : INFERSCALE_OK, st, "is_bank_put_segment", __FILE__, __LINE__);
    if (st == INFERSCALE_OK) m->segments[m->n_segments++] = g;
}

/* ---- Comparison ---------------------------------------------------------------------------------------------------------- */

static void compare_item(model *m, const m_item *x, const inferscale_item *got)
{
    char text[64], name[16];

    assert_int_equal(got->id, x->id);
    assert_int_equal(got->kind, x->kind);
    assert_int_equal(got->version, x->n_versions);
    assert_string_equal(got->text, text_of(x->texts[x->n_versions - 1], text));
    assert_string_equal(got->agent, agents[x->agent]);
    assert_string_equal(got->user, m->owner[x->owner].user);
    assert_int_equal(got->source_turn, x->source);
    snprintf(name, sizeof name, "talk %d", x->conversation);
    assert_string_equal(got->conversation, x->kind == INFERSCALE_TURNS ? name : "");
}

static void compare_segments(model *m, const m_item *x)
{
    is_segment_row *rows = NULL;
    size_t n = 0, at = 0;
    uint8_t name[IS_HASH_BYTES];

    OK(is_bank_segments(m->k->bank, &m->p[x->owner], kit_model, NULL, x->id, &rows, &n));
    for (int s = m->n_segments - 1; s >= 0; s--) { /* newest first */
        m_segment *g = &m->segments[s];

        if (!g->alive || &m->items[g->fact] != x) continue;
        assert_true(at < n);
        kit_name(g->tag, name);
        assert_memory_equal(rows[at].name, name, sizeof name);
        assert_int_equal(rows[at].version, x->n_versions);
        assert_string_equal(rows[at++].policy, policies[g->policy]);
    }
    assert_int_equal(at, n);
    is_free(rows);
}

struct walk { model *m; int owner, at; const m_item *last[3]; };
static is_status each_item(void *ctx, const inferscale_item *item, const char *prev_speaker, const char *prev_text)
{
    struct walk *w = ctx;
    model *m = w->m;
    char text[64];

    while (w->at < m->n_items && (!m->items[w->at].alive || m->items[w->at].owner != w->owner || m->items[w->at].withdrawn)) w->at++;
    assert_true(w->at < m->n_items);
    const m_item *x = &m->items[w->at++], *prev = x->kind == INFERSCALE_TURNS ? w->last[x->conversation] : NULL;
    compare_item(m, x, item);
    assert_string_equal(prev_text, prev ? text_of(prev->texts[0], text) : "");
    assert_string_equal(prev_speaker, prev ? "user" : "");
    if (x->kind == INFERSCALE_TURNS) w->last[x->conversation] = x;
    return INFERSCALE_OK;
}

static is_status each_vector(void *ctx, int64_t id, const int8_t *q, uint32_t dim, float scale)
{
    struct walk *w = ctx;
    model *m = w->m;

    while (w->at < m->n_items && (!m->items[w->at].alive || m->items[w->at].owner != w->owner || !m->items[w->at].embedded)) w->at++;
    assert_true(w->at < m->n_items && m->items[w->at++].id == id);
    assert_true(dim == 16 && q[0] == (int8_t)id && scale == 0.5f);
    return INFERSCALE_OK;
}

static void compare_ids(model *m, int owner, int policy /* -1: embeddings */)
{
    int64_t *ids = NULL;
    size_t n = 0, at = 0;

    if (policy < 0) OK(is_bank_unembedded(m->k->bank, &m->p[owner], kit_model, 0, 0, &ids, &n));
    else OK(is_bank_unencoded(m->k->bank, &m->p[owner], kit_model, policies[policy], 0, 0, 0, &ids, &n));
    for (int i = 0; i < m->n_items; i++) {
        m_item *x = &m->items[i];
        bool has = policy < 0 && x->embedded;

        if (!x->alive || x->withdrawn || x->owner != owner || (policy >= 0 && x->kind != INFERSCALE_FACTS)) continue;
        for (int s = 0; s < m->n_segments && policy >= 0; s++)
            has = has || (m->segments[s].alive && m->segments[s].fact == i && m->segments[s].policy == policy);
        if (!has) assert_true(at < n && ids[at++] == x->id);
    }
    assert_int_equal(at, n);
    is_free(ids);
}

static void compare(model *m)
{
    for (int owner = 0; owner < OWNERS; owner++) {
        struct walk items = { .m = m, .owner = owner }, vectors = items;
        is_partition now = m->p[owner];

        OK(is_bank_partition_refresh(m->k->bank, &now));
        assert_int_equal(now.epoch, m->epoch[owner]);
        assert_int_equal(now.revision, m->revision[owner]);
        OK(is_bank_each(m->k->bank, &m->p[owner], 0, each_item, &items));
        for (; items.at < m->n_items; items.at++)
            assert_false(m->items[items.at].alive && m->items[items.at].owner == owner && !m->items[items.at].withdrawn);
        OK(is_bank_each_embedding(m->k->bank, &m->p[owner], kit_model, each_vector, &vectors));
        for (; vectors.at < m->n_items; vectors.at++) {
            m_item *x = &m->items[vectors.at];
            assert_false(x->alive && x->owner == owner && x->embedded);
        }
        for (int policy = -1; policy < 3; policy++) compare_ids(m, owner, policy);
    }
    for (int i = 0; i < 10; i++) {
        m_item *x = pick(m, -1, 0), *dead = &m->items[below(m, (unsigned)m->n_items + 1)];
        inferscale_list *l = NULL;
        char text[64];

        if (!x) break;
        compare_segments(m, x);
        OK(is_bank_history(m->k->bank, &m->p[x->owner], x->id, &l));
        assert_int_equal(l->n, x->n_versions);
        for (int v = 0; v < x->n_versions; v++) assert_string_equal(l->items[v].text, text_of(x->texts[v], text));
        inferscale_list_free(l);
        FAILS(E_NOTFOUND, is_bank_history(m->k->bank, &m->p[(x->owner + 1) % OWNERS], x->id, &l));
        assert_int_equal(kit_version(m->k, &m->p[(x->owner + 1) % OWNERS], x->id), 0);
        if (dead->id && !dead->alive) assert_int_equal(kit_version(m->k, &m->p[dead->owner], dead->id), 0);
    }
}

static void test_random_history(void **state)
{
    static const inferscale_scope owners[OWNERS] = { { .user = "anna" }, { .user = "ben" }, { .tenant = "t", .user = "anna" } };
    model *m = calloc(1, sizeof *m);
    bool ok = false;

    m->k = *state;
    m->seed = scratch_seed("history");
    for (int i = 0; i < OWNERS; i++) {
        m->owner[i] = owners[i];
        OK(is_bank_partition(m->k->bank, &owners[i], true, &m->p[i]));
        m->epoch[i] = m->p[i].epoch;
        m->revision[i] = m->p[i].revision;
    }
    for (int step = 0; step < STEPS; step++) {
        unsigned dice = below(m, 100);

        if (dice < 25) add_facts(m);
        else if (dice < 45) add_turn(m);
        else if (dice < 55) update(m);
        else if (dice < 65) forget(m);
        else if (dice < 78) embed(m);
        else if (dice < 98) encode(m);
        else bank_kit_reopen(m->k, false);
        if (step % 10 == 0 || step == STEPS - 1) compare(m);
    }
    OK(is_bank_check(m->k->bank, &ok));
    assert_true(ok);
    assert_true(m->n_items > 150 && m->n_segments > 50);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(test_random_history, bank_kit_setup, bank_kit_teardown) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
