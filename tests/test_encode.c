/* The encode room on the mock engine, whose rows tell exactly what stood before a token: what a segment holds must be what the room
 * says it was computed from, under every policy; what depends on a fact is in the dependency table, and nothing else is; pages and
 * company cost what they are to cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/mem.h"
#include "eval/lab.h"
#include "support/kit.h"
#include "support/scratch.h"

enum { FACTS = 45, TURNS = 30 };

static char plugins[1024];
static unsigned long long rng;

static int find_plugins(void **state)
{
    ssize_t n = readlink("/proc/self/exe", plugins, sizeof plugins - 1);

    if (n < 0) return -1;
    plugins[n] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    rng = scratch_seed("test_encode");
    return 0;
}

/* ---- A memory ------------------------------------------------------------------------------------------------------------ */

static const char *const who[] = { "Anna", "Ben", "Cleo", "Dora" }, *const what[] = { "plums", "boats", "chess", "rain", "tea" };

static void remember(lab *l, int from, int n, int64_t *ids)
{
    for (int i = from; i < from + n; i++) {
        char text[96];
        inferscale_fact f = { .text = text, .event_time = 1700000000 + i * 1000 };
        inferscale_turn t = { .speaker = who[i % 4], .text = text, .time = 1700000000 + i * 1000 };

        snprintf(text, sizeof text, "%s number %d said that %s are fine.", who[i % 4], i, what[i % 5]);
        if (i < TURNS) KIT_OK(is_bank_add_turns(l->is->bank, &l->partition, &l->scope, &t, 1, &f.source_turn));
        snprintf(text, sizeof text, "%s likes %s and knows number %d.", who[i % 4], what[i % 5], i);
        KIT_OK(lab_remember(l, &f, 1, &ids[i]));
    }
}

static lab *open_lab(const char *model, const char *policy, const char *refine, const char *codec)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    lab *l = NULL;

    o.engine = "mock";
    o.model = model;
    o.embedder = "mock";
    o.plugin_dir = plugins;
    o.policy = policy;
    o.refine = refine;
    o.codec = codec;
    KIT_OK(lab_open(&o, "tester", &l));
    KIT_OK(is_handle_engine(l->is));
    return l;
}

static is_encoder encoder(lab *l)
{
    KIT_OK(is_handle_embed(l->is, &l->partition, NULL, NULL));
    KIT_OK(is_bank_partition_refresh(l->is->bank, &l->partition));
    return is_handle_encoder(l->is);
}

static is_policy policy_of(const char *text)
{
    is_policy p;

    KIT_OK(is_policy_parse(text, &p));
    return p;
}

static is_encode_job encode(lab *l, const is_policy *policy, const int64_t *ids, size_t n, uint64_t ram)
{
    const is_encoder enc = encoder(l);
    is_encode_job job = { .policy = policy, .ram_bytes = ram };

    KIT_OK(is_encode_facts(&enc, &l->partition, ids, n, &job));
    return job;
}

static inferscale_list *item_of(lab *l, int64_t id)
{
    inferscale_list *list = NULL;

    KIT_OK(is_bank_get(l->is->bank, &l->partition, &id, 1, &list));
    assert_int_equal(list->n, 1);
    return list;
}

static bool has_row(lab *l, const is_policy *policy, int64_t id, is_segment_row *row)
{
    const is_encoder enc = is_handle_encoder(l->is);

    return is_find_kept(&enc, &l->partition, policy->name, id, row);
}

static size_t n_rows(lab *l, const is_policy *policy, int64_t id)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    KIT_OK(is_bank_segments(l->is->bank, &l->partition, l->is->profile->fingerprint, policy->name, id, &rows, &n));
    is_free(rows);
    return n;
}

/* ---- The dependency table, read apart ------------------------------------------------------------------------------------ */

/* The items that the fact's segments under the policy depend on, in id order; returns how many. */
static size_t deps_of(lab *l, const char *policy, int64_t id, int64_t *out, size_t cap)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    size_t n = 0;

    assert_int_equal(sqlite3_open_v2(is_bank_path(l->is->bank), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT DISTINCT d.item_id FROM segments s JOIN segment_deps d ON d.segment_id = s.id WHERE"
                                            " s.item_id = ?1 AND s.policy = ?2 ORDER BY 1", -1, &q, NULL), SQLITE_OK);
    sqlite3_bind_int64(q, 1, id);
    sqlite3_bind_text(q, 2, policy, -1, SQLITE_STATIC);
    while (sqlite3_step(q) == SQLITE_ROW && n < cap) out[n++] = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* The items that the contexts hold, and the fact itself. */
static size_t held_by(const is_context *contexts, size_t n, int64_t self, int64_t *out)
{
    size_t m = 0, k = 0;

    out[m++] = self;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < contexts[i].n_deps; j++) out[m++] = contexts[i].deps[j].item_id;
    qsort(out, m, sizeof *out, by_value);
    for (size_t i = 0; i < m; i++)
        if (i == 0 || out[i] != out[i - 1]) out[k++] = out[i];
    return k;
}

/* Every dependency's own line stands in one of the contexts: the table names texts that were really there. */
static bool stands_in(lab *l, const is_context *contexts, size_t n, int64_t id)
{
    inferscale_list *list = item_of(l, id);
    is_tokens line = { 0 };
    bool found = false;

    if (list->items[0].kind == INFERSCALE_TURNS) KIT_OK(is_profile_turn(l->is->engine, &list->items[0], &line));
    else KIT_OK(is_profile_fact(l->is->engine, &list->items[0], &line));
    for (size_t i = 0; i < n; i++)
        for (uint32_t at = 0; at + line.n <= contexts[i].tokens.n && !found; at++)
            found = memcmp(contexts[i].tokens.ids + at, line.ids, line.n * sizeof *line.ids) == 0;
    is_tokens_free(&line);
    inferscale_list_free(list);
    return found;
}

/* ---- What a segment holds is what it was computed from ------------------------------------------------------------------- */

/* The mean of the rows of span behind each context, as a segment. */
static is_segment *made_by_hand(lab *l, const is_context *contexts, size_t n, const is_tokens *span)
{
    const is_encoder enc = is_handle_encoder(l->is);
    const is_geometry *g = is_engine_geometry(enc.engine);
    const uint8_t name[IS_HASH_BYTES] = { 0 };
    is_segment *out = NULL;
    is_rows sum;

    KIT_OK(is_rows_new(g, span->n, &sum));
    for (size_t i = 0; i < n; i++) {
        is_span one = { &contexts[i], span };
        is_rows rows;

        KIT_OK(is_capture_spans(&enc, NULL, &one, 1, &rows));
        for (uint32_t p = 0; p < g->n_planes; p++)
            for (size_t j = 0; j < (size_t)is_plane_width(&g->planes[p]) * span->n; j++) sum.rows[p][j] += rows.rows[p][j] / (float)n;
        is_rows_free(&rows);
    }
    KIT_OK(is_rows_segment(&enc, &sum, 0, name, span, 0, &out));
    is_rows_free(&sum);
    return out;
}

/* Rows are equal but for the rounding of a sum in another order (a mean of a dozen multiples of 1/2, as f16). */
static bool same_rows(const is_geometry *g, const is_segment *a, const is_segment *b, bool exactly)
{
    const uint32_t n = is_segment_info(a)->n_tokens;

    if (n != is_segment_info(b)->n_tokens) return false;
    for (uint32_t p = 0; p < g->n_planes; p++)
        for (uint32_t h = 0; h < g->planes[p].n_heads; h++) {
            const uint16_t *x = is_segment_head(a, p, h), *y = is_segment_head(b, p, h);

            for (size_t i = 0; i < (size_t)n * g->planes[p].head_dim; i++) {
                float d = is_f32_from_f16(x[i]) - is_f32_from_f16(y[i]);

                if (exactly ? x[i] != y[i] : !(d < 0.01f && d > -0.01f)) return false;
            }
        }
    return true;
}

static void check_fact(lab *l, const is_policy *policy, int64_t id)
{
    const is_encoder enc = is_handle_encoder(l->is);
    inferscale_list *list = item_of(l, id);
    is_context *contexts = NULL;
    is_segment_row row;
    is_segment *kept = NULL, *other;
    is_tokens span = { 0 };
    int64_t want[512], got[512];
    size_t n = 0, n_want, n_got;

    KIT_OK(is_encode_contexts(&enc, &l->partition, policy, &list->items[0], &contexts, &n));
    assert_true(n >= 1);
    assert_true(has_row(l, policy, id, &row));
    assert_int_equal(row.n_passes, n);
    assert_int_equal(n_rows(l, policy, id), 1);
    KIT_OK(is_vault_get(enc.vault, row.name, NULL, &kept));
    KIT_OK(is_profile_fact(enc.engine, &list->items[0], &span));
    other = made_by_hand(l, contexts, n, &span);
    if (!same_rows(is_engine_geometry(enc.engine), kept, other, n == 1))
        fail_msg("the rows of fact %lld under %s are not those of its contexts", (long long)id, policy->name);
    n_want = held_by(contexts, n, id, want);
    n_got = deps_of(l, policy->name, id, got, 512);
    if (n_want != n_got || memcmp(want, got, n_want * sizeof *want) != 0)
        fail_msg("fact %lld under %s: %zu items in its contexts, %zu in the table", (long long)id, policy->name, n_want, n_got);
    for (size_t i = 0; i < n_want; i++)
        if (want[i] != id) assert_true(stands_in(l, contexts, n, want[i]));
    is_segment_unref(kept);
    is_segment_unref(other);
    is_tokens_free(&span);
    is_contexts_free(contexts, n);
    inferscale_list_free(list);
}

static const char *const all_policies[] = { "alone", "header", "turns:3", "turns:2+source", "facts:4", "cwe:3", "near:4", "page:8",
                                            "page:5+2", "page:6+0@time", "page:7+3@topic", "page:6+2/3", "company:4", "company:3x2" };

static void segments_hold_what_they_say(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_policies / sizeof all_policies[0]; i++) {
        lab *l = open_lab("mock", NULL, NULL, NULL);
        is_policy policy = policy_of(all_policies[i]);
        int64_t ids[FACTS];
        is_encode_job job;

        remember(l, 0, FACTS, ids);
        job = encode(l, &policy, ids, FACTS, 0);
        assert_int_equal(job.facts, FACTS);
        assert_int_equal(job.n_left, 0);
        for (int f = 0; f < FACTS; f++) check_fact(l, &policy, ids[f]);
        job = encode(l, &policy, ids, FACTS, 0); /* nothing is left to do */
        assert_int_equal(job.tokens_computed, 0);
        lab_close(l);
    }
}

/* Facts that come one by one, or a few at a time, under a page policy: the same truth, whatever was stored and whatever computed. */
static void facts_that_come_one_by_one(void **state)
{
    static const char *const codecs[] = { "f16", "bf16", "f32" };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        lab *l = open_lab("mock", NULL, NULL, codecs[i]);
        is_policy policy = policy_of("page:6+2");
        int64_t ids[FACTS];
        uint64_t own = 0, computed = 0;

        for (int done = 0; done < FACTS;) {
            int n = 1 + (int)scratch_below(&rng, 3);
            is_encode_job job;

            if (n > FACTS - done) n = FACTS - done;
            remember(l, done, n, ids);
            job = encode(l, &policy, ids + done, (size_t)n, 0);
            assert_int_equal(job.facts, n);
            own += job.tokens_stored;
            computed += job.tokens_computed;
            done += n;
        }
        if (strcmp(codecs[i], "f16") == 0)
            for (int f = 0; f < FACTS; f++) check_fact(l, &policy, ids[f]);
        /* a page costs its header's tokens and its leads once, a fact its own; bf16 rows are not good enough to build upon */
        if (i != 1) assert_true((double)computed < 2.6 * (double)own);
        else assert_true(computed > own);
        lab_close(l);
    }
}

/* A page's leads need not have a place of their own yet. When they get one, it is not on the page that they lead: no fact sees its own
 * text before it. */
static void no_fact_joins_a_page_that_it_leads(void **state)
{
    static const char *const policies[] = { "page:6+3@topic", "page:4+1@topic", "page:5+2", "page:6+2@time" };
    size_t n_led = 0;

    (void)state;
    for (size_t round = 0; round < 24; round++) {
        lab *l = open_lab("mock", NULL, NULL, NULL);
        is_policy policy = policy_of(policies[round % 4]);
        const is_encoder enc = encoder(l);
        int64_t ids[FACTS];

        remember(l, 0, FACTS, ids); /* all are there to be found, a few at a time are encoded */
        for (int done = 0, n; done < FACTS; done += n) {
            n = 1 + (int)scratch_below(&rng, round < 12 ? 3 : 9);
            if (n > FACTS - done) n = FACTS - done;
            encode(l, &policy, ids + done, (size_t)n, 0);
        }
        for (int f = 0; f < FACTS; f++) {
            is_page page;

            KIT_OK(is_bank_page_of(enc.bank, &l->partition, enc.profile->fingerprint, policy.name, ids[f], 1, &page));
            for (size_t i = 0; i < page.n; i++)
                for (size_t j = i + 1; j < page.n; j++) assert_true(page.facts[i].dep.item_id != page.facts[j].dep.item_id);
            n_led += page.n_lead;
            is_page_free(&page);
            check_fact(l, &policy, ids[f]);
        }
        lab_close(l);
    }
    assert_true(n_led > 0);
}

static void one_that_joins_costs_its_own_tokens(void **state)
{
    lab *l = open_lab("mock", NULL, NULL, NULL);
    is_policy policy = policy_of("page:12+4@time");
    const is_encoder enc = encoder(l);
    int64_t ids[FACTS];
    is_encode_job job;
    is_page page;

    (void)state;
    remember(l, 0, 20, ids);
    encode(l, &policy, ids, 20, 0);
    KIT_OK(is_bank_lane(enc.bank, &l->partition, enc.profile->fingerprint, policy.name, 0, &page));
    assert_true(page.open && page.n_lead == 4 && page.n == 12);
    is_page_free(&page);
    remember(l, 20, 1, ids);
    job = encode(l, &policy, ids + 20, 1, 0);
    assert_true(job.tokens_computed - job.tokens_stored <= enc.profile->header.n);
    remember(l, 21, 1, ids);
    job = encode(l, &policy, ids + 21, 1, 0);
    assert_int_equal(job.tokens_computed, job.tokens_stored); /* the header is still there */
    lab_close(l);
}

/* page:N/E: about one fact in E has header-only rows too, no other has; they hold what they say, cost their tokens, and are not
 * made twice. */
static void some_can_begin_a_plan(void **state)
{
    lab *l = open_lab("mock", NULL, NULL, NULL);
    is_policy with = policy_of("page:8+3/3"), without = policy_of("page:8+3"), header = policy_of("header");
    int64_t ids[FACTS];
    is_encode_job job, bare;
    int n = 0;

    (void)state;
    remember(l, 0, FACTS, ids);
    bare = encode(l, &without, ids, FACTS, 0);
    job = encode(l, &with, ids, FACTS, 0);
    for (int f = 0; f < FACTS; f++) {
        size_t rows = n_rows(l, &header, ids[f]);

        assert_int_equal(rows, is_policy_takes_header(&with, ids[f]));
        if (rows) check_fact(l, &header, ids[f]), n++;
    }
    assert_true(n > 0 && n < FACTS);
    assert_int_equal(job.tokens_stored, bare.tokens_stored);
    assert_true(job.tokens_computed > bare.tokens_computed);
    assert_int_equal(encode(l, &with, ids, FACTS, 0).tokens_computed, 0);
    lab_close(l);
    n = 0;
    for (int64_t id = 1; id <= 6000; id++) n += is_policy_takes_header(&with, id);
    assert_in_range(n, 1900, 2100);
}

/* ---- Pages --------------------------------------------------------------------------------------------------------------- */

static void pages_are_as_laid_out(void **state)
{
    lab *l = open_lab("mock", NULL, NULL, NULL);
    is_policy policy = policy_of("page:8+3");
    const is_encoder enc = encoder(l);
    int64_t ids[FACTS];
    is_encode_job job;
    bool seen[FACTS] = { false };
    size_t n_leads = 0;

    (void)state;
    remember(l, 0, FACTS, ids);
    job = encode(l, &policy, ids, FACTS, 0);
    assert_true((double)job.tokens_computed <= 1.5 * (double)job.tokens_stored);
    for (int f = 0; f < FACTS; f++) {
        is_page page;
        is_segment_row row;

        KIT_OK(is_bank_page_of(enc.bank, &l->partition, enc.profile->fingerprint, policy.name, ids[f], 1, &page));
        assert_true(page.n - page.n_lead <= 8 && page.n_lead <= 3);
        for (size_t i = 0; i < page.n; i++) {
            assert_true((i < page.n_lead) == page.facts[i].lead);
            if (!page.facts[i].lead && page.facts[i].dep.item_id == ids[f]) {
                assert_false(seen[f]);
                seen[f] = true;
            }
        }
        /* rows of leads are kept while a page is open, and no longer */
        for (size_t i = 0; i < page.n_lead; i++) {
            is_segment_row *rows = NULL;
            size_t n = 0;

            KIT_OK(is_bank_segments(enc.bank, &l->partition, enc.profile->fingerprint, "page:8+3#lead", page.facts[i].dep.item_id, &rows, &n));
            assert_int_equal(n, page.open);
            n_leads += n;
            if (n) assert_true(rows[0].lead);
            is_free(rows);
        }
        assert_true(has_row(l, &policy, ids[f], &row) && !row.lead);
        is_page_free(&page);
    }
    assert_true(n_leads > 0); /* 45 = 5 pages of 8 and an open one of 5 */
    lab_close(l);
}

/* What a fact's absence touches: the facts that stood behind it, and those of pages that it led. */
static void a_fact_taken_out_reencodes_what_held_it(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        lab *l = open_lab("mock", NULL, NULL, NULL);
        is_policy policy = policy_of(round % 3 == 0 ? "page:6+2@time" : round % 3 == 1 ? "page:8+3" : "page:5+4@topic");
        const is_encoder enc = encoder(l);
        int64_t ids[FACTS], victim;
        uint8_t names[FACTS][IS_HASH_BYTES];
        bool held[FACTS];
        size_t n_held = 0;
        is_names stale = { 0 };
        is_encode_job job;

        remember(l, 0, FACTS, ids);
        encode(l, &policy, ids, FACTS, 0);
        victim = ids[scratch_below(&rng, FACTS)];
        for (int f = 0; f < FACTS; f++) {
            int64_t deps[512];
            size_t n = deps_of(l, policy.name, ids[f], deps, 512);
            is_segment_row row;

            held[f] = false;
            for (size_t i = 0; i < n; i++) held[f] = held[f] || deps[i] == victim;
            n_held += held[f] && ids[f] != victim;
            assert_true(has_row(l, &policy, ids[f], &row));
            memcpy(names[f], row.name, IS_HASH_BYTES);
        }
        if (round % 2) KIT_OK(is_bank_forget(enc.bank, &l->partition, &victim, 1, NULL, NULL, &stale));
        else KIT_OK(is_bank_update_fact(enc.bank, &l->partition, victim, &(inferscale_fact){ .text = "Nobody is here now." }, &stale));
        for (size_t i = 0; i < stale.n; i++) KIT_OK(is_vault_remove(enc.vault, stale.names[i]));
        is_names_free(&stale);
        KIT_OK(is_bank_partition_refresh(enc.bank, &l->partition));
        for (int f = 0; f < FACTS; f++) {
            is_segment_row row;

            assert_int_equal(has_row(l, &policy, ids[f], &row), !held[f]);
        }
        job = encode(l, &policy, ids, FACTS, 0);
        assert_int_equal(job.facts, n_held + (round % 2 ? 0 : 1));
        for (int f = 0; f < FACTS; f++) {
            is_segment_row row;

            if (ids[f] == victim && round % 2) continue;
            assert_true(has_row(l, &policy, ids[f], &row));
            if (!held[f]) assert_memory_equal(row.name, names[f], IS_HASH_BYTES);
            else assert_memory_not_equal(row.name, names[f], IS_HASH_BYTES);
            check_fact(l, &policy, ids[f]);
        }
        lab_close(l);
    }
}

/* What was superseded stays in the record with its own rows, and nothing that is encoded from then on sees it. */
static void what_is_over_is_seen_no_more(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        lab *l = open_lab("mock", NULL, NULL, NULL);
        is_policy policy = policy_of(round % 2 ? "page:30+3@time" : "page:8+3@time");
        const is_encoder enc = encoder(l);
        int64_t ids[FACTS], victim, heir;
        is_names stale = { 0 };
        is_segment_row row;

        remember(l, 0, 30, ids);
        encode(l, &policy, ids, 30, 0);
        victim = ids[scratch_below(&rng, 30)];
        KIT_OK(is_bank_supersede(enc.bank, &l->partition, &l->scope, victim, &(inferscale_fact){ .text = "It is all different." }, &heir, &stale));
        for (size_t i = 0; i < stale.n; i++) KIT_OK(is_vault_remove(enc.vault, stale.names[i]));
        is_names_free(&stale);
        remember(l, 30, 5, ids);
        encode(l, &policy, ids, 35, 0);
        encode(l, &policy, &heir, 1, 0);
        for (int f = 0; f < 35; f++) {
            int64_t deps[512];
            size_t n = deps_of(l, policy.name, ids[f], deps, 512);

            if (ids[f] == victim) continue;
            check_fact(l, &policy, ids[f]);
            for (size_t i = 0; i < n; i++) assert_true(deps[i] != victim);
        }
        check_fact(l, &policy, heir);
        assert_true(has_row(l, &policy, victim, &row));
        lab_close(l);
    }
}

/* A process that died after pages were laid out, a file that was lost, a capture that failed half-way. */
static void what_was_interrupted_goes_on(void **state)
{
    lab *l = open_lab("mock", NULL, NULL, NULL);
    is_policy policy = policy_of("page:8+3@time");
    is_encoder enc = encoder(l);
    int64_t ids[FACTS];
    is_page page = { .open = true };
    is_page_fact places[5];
    is_segment_row row;
    volatile int cancel = 1;
    is_encode_job job = { .policy = &policy };

    (void)state;
    remember(l, 0, 20, ids);
    enc = encoder(l);
    for (int i = 0; i < 5; i++) places[i] = (is_page_fact){ .dep = { ids[i], 1 } };
    page.n = 5;
    page.facts = places;
    KIT_OK(is_bank_lay_page(enc.bank, &l->partition, l->partition.epoch, enc.profile->fingerprint, policy.name, &page));
    page.id = 0;
    KIT_FAILS(INFERSCALE_E_STALE, is_bank_lay_page(enc.bank, &l->partition, l->partition.epoch, enc.profile->fingerprint, policy.name, &page));
    enc.cancel = &cancel;
    KIT_FAILS(INFERSCALE_E_CANCELLED, is_encode_facts(&enc, &l->partition, ids, 20, &job));
    job = encode(l, &policy, ids, 20, 0);
    assert_int_equal(job.facts, 20);
    for (int f = 0; f < 20; f++) check_fact(l, &policy, ids[f]);
    /* one lost file: that fact and no other */
    assert_true(has_row(l, &policy, ids[9], &row));
    KIT_OK(is_vault_remove(enc.vault, row.name));
    job = encode(l, &policy, ids, 20, 0);
    assert_int_equal(job.facts, 1);
    for (int f = 0; f < 20; f++) check_fact(l, &policy, ids[f]);
    lab_close(l);
}

static void what_does_not_fit_is_left(void **state)
{
    static const char *const policies[] = { "page:8", "company:4", "header", "near:3" };
    char text[4000];

    (void)state;
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (size_t i = 0; i < 4; i++) {
        lab *l = open_lab("mock:ctx=700", NULL, NULL, NULL);
        is_policy policy = policy_of(policies[i]);
        int64_t ids[FACTS + 1];
        is_encode_job job;

        remember(l, 0, 20, ids);
        KIT_OK(lab_remember(l, &(inferscale_fact){ .text = text }, 1, &ids[20]));
        job = encode(l, &policy, ids, 21, 0);
        assert_int_equal(job.n_left, 1);
        assert_int_equal(job.facts, 20);
        for (int f = 0; f < 20; f++) check_fact(l, &policy, ids[f]);
        lab_close(l);
    }
}

/* ---- Company ------------------------------------------------------------------------------------------------------------- */

/* With room for few sums the rows are the same, and passes are run again. */
static void company_within_a_budget(void **state)
{
    lab *l = open_lab("mock", NULL, NULL, NULL), *tight = open_lab("mock", NULL, NULL, NULL);
    is_policy policy = policy_of("company:6");
    int64_t ids[FACTS], other[FACTS];
    is_encode_job roomy, cramped;
    uint64_t one;

    (void)state;
    remember(l, 0, FACTS, ids);
    remember(tight, 0, FACTS, other);
    roomy = encode(l, &policy, ids, FACTS, 0);
    one = is_geometry_width(is_engine_geometry(l->is->engine)) * sizeof(float) * (roomy.tokens_stored / FACTS);
    cramped = encode(tight, &policy, other, FACTS, 3 * one);
    assert_true(cramped.tokens_computed > roomy.tokens_computed);
    assert_true((double)roomy.tokens_computed <= 7.5 * (double)roomy.tokens_stored); /* one pass of 7 facts a fact */
    for (int f = 0; f < FACTS; f++) check_fact(tight, &policy, other[f]);
    lab_close(l);
    lab_close(tight);
}

static void one_fact_has_no_company(void **state)
{
    lab *l = open_lab("mock", NULL, NULL, NULL);
    is_policy policy = policy_of("company:6");
    int64_t ids[FACTS];
    is_segment_row row;

    (void)state;
    remember(l, 0, 1, ids);
    encode(l, &policy, ids, 1, 0);
    assert_true(has_row(l, &policy, ids[0], &row));
    assert_int_equal(row.n_passes, 1);
    check_fact(l, &policy, ids[0]);
    remember(l, 1, 3, ids);
    encode(l, &policy, ids, 4, 0); /* now it has, and the rows from before are not kept beside the new ones */
    for (int f = 0; f < 4; f++) check_fact(l, &policy, ids[f]);
    lab_close(l);
}

/* ---- What answers take --------------------------------------------------------------------------------------------------- */

static inferscale_answer *ask(lab *l, uint32_t k)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.k = k;
    KIT_OK(inferscale_ask(l->is, &l->scope, "Who likes chess?", &o, &a));
    return a;
}

static inferscale_encode_options encode_stage(lab *l, int stage, const char *refine)
{
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;

    o.stage = stage;
    o.refine = refine;
    KIT_OK(inferscale_encode(l->is, &l->scope, &o));
    return o;
}

static void answers_take_the_best_rows(void **state)
{
    lab *l = open_lab("mock", "page:8", "company:4", NULL);
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_answer *a;
    int64_t ids[FACTS];

    (void)state;
    remember(l, 0, 30, ids);
    assert_int_equal(encode_stage(l, INFERSCALE_STAGE_FIRST, NULL).facts_encoded, 30);
    a = ask(l, 6);
    assert_int_equal(a->n_facts, 6);
    assert_true(a->n_refined == 0 && a->n_exact == 0);
    for (size_t i = 0; i < 6; i++) assert_string_equal(a->facts[i].policy, "page:8");
    inferscale_answer_free(a);
    assert_int_equal(encode_stage(l, INFERSCALE_STAGE_REFINE, NULL).facts_encoded, 60); /* company and header */
    a = ask(l, 6);
    assert_true(a->n_refined == 5 && a->n_exact == 1);
    assert_string_equal(a->fallback, "");
    assert_string_equal(a->facts[0].policy, "header");
    for (size_t i = 1; i < 6; i++) assert_string_equal(a->facts[i].policy, "company:4");
    inferscale_answer_free(a);
    a = ask(l, 13); /* far more than four neighbours: pages are nearer */
    assert_true(a->n_facts == 13 && a->n_refined == 0 && a->n_exact == 1);
    for (size_t i = 1; i < 13; i++) assert_string_equal(a->facts[i].policy, "page:8");
    inferscale_answer_free(a);
    a = ask(l, 12);
    assert_true(a->n_facts == 12 && a->n_refined == 11);
    inferscale_answer_free(a);
    assert_int_equal(encode_stage(l, INFERSCALE_STAGE_ALL, NULL).facts_encoded, 0);
    o.stage = INFERSCALE_STAGE_REFINE;
    o.refine = "none";
    KIT_FAILS(INFERSCALE_E_INVALID, inferscale_encode(l->is, &l->scope, &o));
    o.stage = 4;
    KIT_FAILS(INFERSCALE_E_INVALID, inferscale_encode(l->is, &l->scope, &o));
    lab_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_hold_what_they_say),
        cmocka_unit_test(facts_that_come_one_by_one),
        cmocka_unit_test(no_fact_joins_a_page_that_it_leads),
        cmocka_unit_test(one_that_joins_costs_its_own_tokens),
        cmocka_unit_test(some_can_begin_a_plan),
        cmocka_unit_test(pages_are_as_laid_out),
        cmocka_unit_test(a_fact_taken_out_reencodes_what_held_it),
        cmocka_unit_test(what_is_over_is_seen_no_more),
        cmocka_unit_test(what_was_interrupted_goes_on),
        cmocka_unit_test(what_does_not_fit_is_left),
        cmocka_unit_test(company_within_a_budget),
        cmocka_unit_test(one_fact_has_no_company),
        cmocka_unit_test(answers_take_the_best_rows),
    };

    return cmocka_run_group_tests(tests, find_plugins, NULL);
}
