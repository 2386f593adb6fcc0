/* The books of the views, and what forgetting and changing do to them: nothing that was computed from a text stays in the books
 * when the text goes. */
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

static is_partition fresh(bank_kit *k, is_partition p)
{
    OK(is_bank_partition_refresh(k->bank, &p));
    return p;
}

static size_t n_segments(bank_kit *k, const is_partition *p, int64_t fact, const char *policy)
{
    is_segment_row *rows = NULL;
    size_t n = 0;

    OK(is_bank_segments(k->bank, p, kit_model, policy, fact, &rows, &n));
    is_free(rows);
    return n;
}

static bool listed(const int64_t *ids, size_t n, int64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static bool unencoded(bank_kit *k, const is_partition *p, const char *policy, int64_t id)
{
    int64_t *ids = NULL;
    size_t n = 0;
    bool there;

    OK(is_bank_unencoded(k->bank, p, kit_model, policy, 0, 0, 0, &ids, &n));
    there = listed(ids, n, id);
    is_free(ids);
    return there;
}

/* ---- Embeddings ---------------------------------------------------------------------------------------------------------- */

struct vectors { int n; int64_t ids[8]; int8_t first[8]; float scales[8]; uint32_t dims[8]; };
static is_status each_vector(void *ctx, int64_t id, const int8_t *q, uint32_t dim, float scale)
{
    struct vectors *v = ctx;

    assert_true(v->n < 8);
    v->ids[v->n] = id;
    v->first[v->n] = q[0];
    v->dims[v->n] = dim;
    v->scales[v->n++] = scale;
    return v->n == 3 ? is_fail(INFERSCALE_E_CANCELLED, "three are enough") : INFERSCALE_OK;
}

static void test_embeddings(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), t = kit_turn(k, &k->pa, &k->anna, "c", "t"), b = kit_fact(k, &k->pb, &k->ben, "b");
    int8_t q[1536] = { -128, 127 };
    struct vectors v = { 0 };
    int64_t *ids = NULL, revision = fresh(k, k->pa).revision;
    size_t n = 0;

    OK(is_bank_unembedded(k->bank, &k->pa, kit_model, 0, 0, &ids, &n));
    assert_int_equal(n, 2);
    assert_true(ids[0] == a && ids[1] == t);
    is_free(ids);
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, t, 1, q, 1536, 0.5f));
    q[0] = 5;
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, a, 1, q, 384, 0.25f));
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_other_model, a, 1, q, 384, 1.0f));
    assert_true(fresh(k, k->pa).revision > revision); /* the recall index must see them */
    FAILS(E_STALE, is_bank_put_embedding(k->bank, &k->pa, kit_model, a, 2, q, 384, 1.0f));
    FAILS(E_NOTFOUND, is_bank_put_embedding(k->bank, &k->pa, kit_model, b, 1, q, 384, 1.0f));
    FAILS(E_INVALID, is_bank_put_embedding(k->bank, &k->pa, kit_model, a, 1, q, 0, 1.0f));
    OK(is_bank_each_embedding(k->bank, &k->pa, kit_model, each_vector, &v));
    assert_int_equal(v.n, 2);
    assert_true(v.ids[0] == a && v.first[0] == 5 && v.dims[0] == 384 && v.scales[0] == 0.25f);
    assert_true(v.ids[1] == t && v.first[1] == -128 && v.dims[1] == 1536);
    q[0] = 6;
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, a, 1, q, 384, 0.25f)); /* replaces */
    OK(is_bank_unembedded(k->bank, &k->pa, kit_model, 0, 0, &ids, &n));
    assert_int_equal(n, 0);
    is_free(ids);

    OK(is_bank_update_fact(k->bank, &k->pa, a, &(inferscale_fact){ .text = "a2" }, NULL));
    OK(is_bank_unembedded(k->bank, &k->pa, kit_model, 0, 1, &ids, &n));
    assert_true(n == 1 && ids[0] == a);
    is_free(ids);
    memset(&v, 0, sizeof v);
    OK(is_bank_each_embedding(k->bank, &k->pa, kit_model, each_vector, &v));
    assert_int_equal(v.n, 1);
    OK(is_bank_each_embedding(k->bank, &k->pa, kit_other_model, each_vector, &v));
    assert_int_equal(v.n, 1);
}

/* Work goes through ids once: what comes after the last one that was done, and nothing that is over. Lists and counts agree. */
static void test_what_waits(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), b = kit_fact(k, &k->pa, &k->anna, "b"), t = kit_turn(k, &k->pa, &k->anna, "c", "t");
    inferscale_event over[2] = { { 0 } };
    const inferscale_fact facts[2] = { { .text = "milk until yesterday", .expires = 1000 }, { .text = "lived there", .valid_from = 500, .valid_to = 1000 } };
    int64_t *ids = NULL;
    is_waiting w;
    size_t n = 0;

    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, facts, 2, over));
    OK(is_bank_unembedded(k->bank, &k->pa, kit_model, 0, 0, &ids, &n)); /* who asks about the past may still find the second */
    assert_true(n == 4 && ids[0] == a && ids[1] == b && ids[2] == t && ids[3] == over[1].id);
    is_free(ids);
    OK(is_bank_count_unembedded(k->bank, &k->pa, kit_model, 0, &w));
    assert_int_equal(w.n, 4);
    OK(is_bank_unembedded(k->bank, &k->pa, kit_model, b, 0, &ids, &n));
    assert_true(n == 2 && ids[0] == t && ids[1] == over[1].id);
    is_free(ids);
    for (int with_policy = 0; with_policy < 2; with_policy++) {
        OK(is_bank_unencoded(k->bank, &k->pa, kit_model, with_policy ? "header" : NULL, 0, 0, 0, &ids, &n));
        assert_true(n == 2 && ids[0] == a && ids[1] == b);
        is_free(ids);
        OK(is_bank_count_unencoded(k->bank, &k->pa, kit_model, with_policy ? "header" : NULL, 0, 0, &w));
        assert_int_equal(w.n, 2);
    }
    OK(is_bank_unencoded(k->bank, &k->pa, kit_model, "header", 0, a, 0, &ids, &n));
    assert_true(n == 1 && ids[0] == b);
    is_free(ids);
    OK(is_bank_unencoded(k->bank, &k->pa, kit_model, "header", 0, b, 0, &ids, &n));
    assert_true(n == 0);
    is_free(ids);
    OK(is_bank_count_unencoded(k->bank, NULL, NULL, NULL, 0, a, &w));
    assert_int_equal(w.n, 1);
    OK(kit_segment_put(k, &k->pa, a, "page:8/1", 1, NULL, 0));
    OK(is_bank_unencoded(k->bank, &k->pa, kit_model, "page:8/1", 0, 0, 0, &ids, &n));
    assert_true(n == 1 && ids[0] == b);
    is_free(ids);
    OK(is_bank_unencoded(k->bank, &k->pa, kit_model, "page:8/1", 1, 0, 0, &ids, &n)); /* every fact's, behind the header too */
    assert_true(n == 2 && ids[0] == a && ids[1] == b);
    is_free(ids);
    OK(kit_segment_put(k, &k->pa, a, "header", 2, NULL, 0));
    OK(is_bank_count_unencoded(k->bank, &k->pa, kit_model, "page:8/1", 1, 0, &w));
    assert_int_equal(w.n, 1);
}

static void test_which_have_segments(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), b = kit_fact(k, &k->pa, &k->anna, "b"), x = kit_fact(k, &k->pb, &k->ben, "x");
    const is_dep asked[] = { { a, 1 }, { b, 1 }, { x, 1 }, { a, 1 }, { a, 2 }, { a + 1000, 1 } };
    bool have[6] = { false, true, true, false, true, true };

    OK(is_bank_have_segments(k->bank, &k->pa, kit_model, "header", NULL, 0, NULL));
    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(kit_segment_put(k, &k->pa, b, "facts:1", 2, NULL, 0));
    OK(kit_segment_put(k, &k->pb, x, "header", 3, NULL, 0));
    OK(is_bank_have_segments(k->bank, &k->pa, kit_model, "header", asked, 6, have));
    for (int i = 0; i < 6; i++) assert_int_equal(have[i], i == 0 || i == 3); /* another owner's, another policy's, no such version */
    OK(is_bank_have_segments(k->bank, &k->pa, kit_other_model, "header", asked, 6, have));
    for (int i = 0; i < 6; i++) assert_false(have[i]);
    OK(is_bank_update_fact(k->bank, &k->pa, a, &(inferscale_fact){ .text = "a, changed" }, NULL));
    OK(is_bank_have_segments(k->bank, &k->pa, kit_model, "header", asked, 6, have));
    for (int i = 0; i < 6; i++) assert_false(have[i]);
}

/* ---- Segments ------------------------------------------------------------------------------------------------------------ */

static void test_segments_are_entered_while_true(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), b = kit_fact(k, &k->pa, &k->anna, "b"), x = kit_fact(k, &k->pb, &k->ben, "x");
    int64_t epoch = fresh(k, k->pa).epoch;
    is_segment_row row = { .fact_id = a, .version = 1, .policy = "header", .n_tokens = 7 }, *rows = NULL;
    size_t n = 0;

    assert_true(unencoded(k, &k->pa, "header", a));
    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(kit_segment_put(k, &k->pa, a, "facts:1", 2, &(is_dep){ b, 1 }, 1));
    OK(kit_segment_put(k, &k->pa, a, "header", 3, NULL, 0));
    assert_false(unencoded(k, &k->pa, "header", a));
    assert_true(unencoded(k, &k->pa, "turns:4", a));
    assert_false(unencoded(k, &k->pa, NULL, a));
    assert_true(unencoded(k, &k->pa, NULL, b));
    OK(is_bank_segments(k->bank, &k->pa, kit_model, "header", a, &rows, &n));
    assert_int_equal(n, 2);
    kit_name(3, row.name);
    assert_memory_equal(rows[0].name, row.name, IS_HASH_BYTES); /* newest first */
    assert_string_equal(rows[0].policy, "header");
    assert_true(rows[0].n_tokens == 10 && rows[0].n_context == 20 && rows[0].n_computed == 30 && rows[0].bytes == 40);
    assert_true(rows[0].fact_id == a && rows[0].version == 1);
    is_free(rows);
    assert_int_equal(n_segments(k, &k->pa, a, NULL), 3);
    assert_int_equal(n_segments(k, &k->pb, a, NULL), 0);
    OK(is_bank_segments(k->bank, &k->pa, kit_other_model, NULL, a, &rows, &n));
    assert_int_equal(n, 0);

    FAILS(E_STALE, is_bank_put_segment(k->bank, &k->pa, epoch + 1, kit_model, &row, NULL, 0));
    FAILS(E_STALE, is_bank_put_segment(k->bank, &k->pa, epoch, kit_model, &row, &(is_dep){ b, 2 }, 1));
    FAILS(E_STALE, is_bank_put_segment(k->bank, &k->pa, epoch, kit_model, &row, &(is_dep){ x, 1 }, 1)); /* ben's */
    FAILS(E_STALE, is_bank_put_segment(k->bank, &k->pb, k->pb.epoch, kit_model, &row, NULL, 0));
    row.version = 2;
    FAILS(E_STALE, is_bank_put_segment(k->bank, &k->pa, epoch, kit_model, &row, NULL, 0));
    assert_int_equal(n_segments(k, &k->pa, a, NULL), 3);

    OK(is_bank_drop_segment(k->bank, &k->pb, row.name)); /* not ben's to drop */
    assert_int_equal(n_segments(k, &k->pa, a, "header"), 2);
    OK(is_bank_drop_segment(k->bank, &k->pa, row.name));
    assert_int_equal(n_segments(k, &k->pa, a, "header"), 1);
}

/* Change b: everything whose context or span held b goes, and nothing else. */
static void test_update_drops_what_depends(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), b = kit_fact(k, &k->pa, &k->anna, "b"), c = kit_fact(k, &k->pa, &k->anna, "c");
    int64_t epoch = fresh(k, k->pa).epoch;
    is_segment_row late = { .fact_id = c, .version = 1, .policy = "facts:1" };
    is_names stale = { 0 };

    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(kit_segment_put(k, &k->pa, b, "header", 2, NULL, 0));
    OK(kit_segment_put(k, &k->pa, c, "facts:1", 3, &(is_dep){ b, 1 }, 1));
    OK(is_bank_update_fact(k->bank, &k->pa, b, &(inferscale_fact){ .text = "b2" }, &stale));
    assert_int_equal(stale.n, 2);
    assert_true(kit_named(&stale, 2) && kit_named(&stale, 3));
    is_names_free(&stale);
    assert_int_equal(n_segments(k, &k->pa, a, NULL), 1);
    assert_int_equal(n_segments(k, &k->pa, b, NULL), 0);
    assert_int_equal(n_segments(k, &k->pa, c, NULL), 0);
    assert_true(unencoded(k, &k->pa, "facts:1", c));
    FAILS(E_STALE, is_bank_put_segment(k->bank, &k->pa, epoch, kit_model, &late, NULL, 0)); /* an encoder that was at work meanwhile */
}

/* Equal texts in equal contexts have one name and one file, which lives as long as one of them does. */
static void test_a_shared_file_stays_for_the_other(void **state)
{
    bank_kit *k = *state;
    inferscale_scope cook = { .user = "anna", .agent = "cook" }, coach = { .user = "anna", .agent = "coach" };
    int64_t a = kit_fact(k, &k->pa, &cook, "same"), b = kit_fact(k, &k->pa, &coach, "same");
    is_names stale = { 0 };

    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(kit_segment_put(k, &k->pa, b, "header", 1, NULL, 0));
    assert_false(unencoded(k, &k->pa, "header", a));
    assert_false(unencoded(k, &k->pa, "header", b));
    OK(is_bank_forget(k->bank, &k->pa, &a, 1, NULL, NULL, &stale));
    assert_int_equal(stale.n, 0);
    assert_int_equal(n_segments(k, &k->pa, b, "header"), 1);
    OK(is_bank_forget(k->bank, &k->pa, &b, 1, NULL, NULL, &stale));
    assert_true(stale.n == 1 && kit_named(&stale, 1));
    is_names_free(&stale);
}

/* ---- Forgetting ---------------------------------------------------------------------------------------------------------- */

static void test_forget_closure(void **state)
{
    bank_kit *k = *state;
    int64_t turn = kit_turn(k, &k->pa, &k->anna, "holiday plans with Zoltan", "the source"), other = kit_turn(k, &k->pa, &k->anna, "d", "o");
    inferscale_fact f = { .text = "from the source", .source_turn = turn };
    inferscale_event e;
    int64_t a, b = kit_fact(k, &k->pa, &k->anna, "b"), epoch = fresh(k, k->pa).epoch, bens = kit_fact(k, &k->pb, &k->ben, "x"), ids[5];
    is_names stale = { 0 };
    inferscale_list *l;
    size_t n = 0;

    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &f, 1, &e));
    a = e.id;
    OK(kit_segment_put(k, &k->pa, a, "turns:1", 1, &(is_dep){ turn, 1 }, 1));
    OK(kit_segment_put(k, &k->pa, b, "header", 2, NULL, 0));
    OK(kit_segment_put(k, &k->pa, b, "facts:1", 3, &(is_dep){ a, 1 }, 1));
    ids[0] = turn, ids[1] = bens, ids[2] = 12345, ids[3] = turn, ids[4] = -1;
    OK(is_bank_forget(k->bank, &k->pa, ids, 5, NULL, &n, &stale));
    assert_int_equal(n, 1); /* once, and not ben's */
    assert_true(stale.n == 1 && kit_named(&stale, 1));
    is_names_free(&stale);
    assert_int_equal(fresh(k, k->pa).epoch, epoch + 1);
    l = kit_get(k, &k->pa, a);
    assert_int_equal(l->items[0].source_turn, 0); /* provenance does not point to what is gone */
    inferscale_list_free(l);
    assert_int_equal(kit_version(k, &k->pa, turn), 0);
    assert_int_equal(kit_version(k, &k->pa, other), 1);
    assert_int_equal(kit_version(k, &k->pb, bens), 1);
    assert_false(kit_on_disk(k, "Zoltan")); /* the conversation's name went with its last turn */

    OK(is_bank_forget(k->bank, &k->pa, &a, 1, NULL, &n, &stale));
    assert_true(stale.n == 1 && kit_named(&stale, 3)); /* b's own header segment stays */
    is_names_free(&stale);
    assert_int_equal(n_segments(k, &k->pa, b, NULL), 1);
    FAILS(E_NOTFOUND, is_bank_history(k->bank, &k->pa, a, &l));
    epoch = fresh(k, k->pa).epoch;
    OK(is_bank_forget(k->bank, &k->pa, &a, 1, NULL, &n, &stale));
    assert_int_equal(n, 0);
    assert_int_equal(fresh(k, k->pa).epoch, epoch); /* nothing happened, nothing is stale */
}

static void test_forget_by_attribute_and_all(void **state)
{
    bank_kit *k = *state;
    inferscale_scope cook = { .user = "anna", .agent = "cook", .run = "r" }, coach = { .user = "anna", .agent = "coach" };
    int64_t bens = kit_fact(k, &k->pb, &k->ben, "x"), a = kit_fact(k, &k->pa, &coach, "c");
    size_t n = 0;
    is_bank_counts counts;

    kit_fact(k, &k->pa, &cook, "a");
    kit_turn(k, &k->pa, &cook, "c", "t");
    kit_fact(k, &k->pa, &k->anna, "plain");
    OK(is_bank_forget(k->bank, &k->pa, &a, 1, &cook, &n, NULL)); /* the id is there, but not with these attributes */
    assert_int_equal(n, 0);
    OK(is_bank_forget(k->bank, &k->pa, NULL, 0, &(inferscale_scope){ .user = "anna", .agent = "cook", .run = "other" }, &n, NULL));
    assert_int_equal(n, 0);
    OK(is_bank_forget(k->bank, &k->pa, NULL, 0, &cook, &n, NULL));
    assert_int_equal(n, 2);
    assert_int_equal(kit_version(k, &k->pa, a), 1);
    OK(is_bank_forget(k->bank, &k->pa, NULL, 0, &k->anna, &n, NULL));
    assert_int_equal(n, 2);
    assert_int_equal(kit_version(k, &k->pb, bens), 1);
    OK(is_bank_count(k->bank, &counts));
    assert_true(counts.facts == 1 && counts.turns == 0 && counts.partitions == 2 && counts.bytes > 0);
}

/* Not only unlinked: the bytes are gone from the database and from its log, while the bank is open. */
static void test_forgotten_text_leaves_the_disk(void **state)
{
    bank_kit *k = *state;
    char big[20000];
    int64_t small, large, changed, turn;

    memset(big, 'z', sizeof big);
    memcpy(big + 10000, "needle-in-an-overflow-page", 26);
    big[sizeof big - 1] = 0;
    for (int i = 0; i < 200; i++) {
        char text[64];

        snprintf(text, sizeof text, "neighbour number %d", i);
        kit_fact(k, &k->pa, &k->anna, text);
    }
    small = kit_fact(k, &k->pa, &k->anna, "needle-small");
    large = kit_fact(k, &k->pa, &k->anna, big);
    changed = kit_fact(k, &k->pa, &k->anna, "needle-first-version");
    OK(is_bank_update_fact(k->bank, &k->pa, changed, &(inferscale_fact){ .text = "second", .metadata = "{\"m\":\"needle-meta\"}" }, NULL));
    turn = kit_turn(k, &k->pa, &k->anna, "needle-conversation", "needle-turn");
    assert_true(kit_on_disk(k, "needle-small") && kit_on_disk(k, "needle-in-an-overflow-page") && kit_on_disk(k, "needle-turn"));
    OK(is_bank_forget(k->bank, &k->pa, (int64_t[]){ small, large, changed, turn }, 4, NULL, NULL, NULL));
    assert_false(kit_on_disk(k, "needle"));
    assert_true(kit_on_disk(k, "neighbour number 7"));
}

static void test_doomed_names_survive_a_crash(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), b = kit_fact(k, &k->pa, &k->anna, "b");
    is_names doomed = { 0 };

    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(kit_segment_put(k, &k->pa, b, "header", 2, NULL, 0));
    OK(is_bank_doomed(k->bank, &doomed));
    assert_int_equal(doomed.n, 0);
    OK(is_bank_forget(k->bank, &k->pa, NULL, 0, NULL, NULL, NULL)); /* the caller dies before it removes the files */
    bank_kit_reopen(k, false);
    OK(is_bank_doomed(k->bank, &doomed));
    assert_true(doomed.n == 2 && kit_named(&doomed, 1) && kit_named(&doomed, 2));
    OK(is_bank_doomed_done(k->bank, &(is_names){ .n = 1, .names = doomed.names }));
    is_names_free(&doomed);
    OK(is_bank_doomed(k->bank, &doomed));
    assert_int_equal(doomed.n, 1);
    is_names_free(&doomed);
    a = kit_fact(k, &k->pa, &k->anna, "a"); /* remembered and encoded again: its file is wanted */
    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(kit_segment_put(k, &k->pa, a, "header", 2, NULL, 0));
    OK(is_bank_doomed(k->bank, &doomed));
    assert_int_equal(doomed.n, 0);
}

/* An encoder that dies between its file and the books leaves a name behind, not an unknown file. */
static void test_a_file_is_doomed_until_it_is_entered(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a");
    uint8_t name[IS_HASH_BYTES];
    is_names doomed = { 0 };

    kit_name(1, name);
    OK(is_bank_doom(k->bank, &k->pa, name));
    OK(is_bank_doom(k->bank, &k->pa, name));
    bank_kit_reopen(k, false);
    OK(is_bank_doomed(k->bank, &doomed));
    assert_true(doomed.n == 1 && kit_named(&doomed, 1));
    is_names_free(&doomed);
    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(is_bank_doomed(k->bank, &doomed));
    assert_int_equal(doomed.n, 0);
    OK(is_bank_doom(k->bank, &k->pa, name)); /* encoded again while the file is in use */
    OK(is_bank_doomed(k->bank, &doomed));
    assert_int_equal(doomed.n, 0);
    bank_kit_reopen(k, true);
    FAILS(E_READONLY, is_bank_doom(k->bank, &k->pa, name));
}

static void test_placements(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), b = kit_fact(k, &k->pa, &k->anna, "b"), c = kit_fact(k, &k->pa, &k->anna, "c");
    is_dep ba[] = { { b, 1 }, { a, 1 } }, only_c[] = { { c, 1 } }, *facts = NULL;
    uint8_t one[IS_HASH_BYTES] = { 1 }, two[IS_HASH_BYTES] = { 2 };
    size_t n = 0;

    FAILS(E_NOTFOUND, is_bank_placement(k->bank, &k->pa, kit_model, one, &facts, &n));
    OK(is_bank_put_placement(k->bank, &k->pa, kit_model, one, only_c, 1));
    OK(is_bank_put_placement(k->bank, &k->pa, kit_model, one, ba, 2)); /* replaces */
    OK(is_bank_put_placement(k->bank, &k->pa, kit_model, two, only_c, 1));
    OK(is_bank_placement(k->bank, &k->pa, kit_model, one, &facts, &n));
    assert_int_equal(n, 2);
    assert_true(facts[0].item_id == b && facts[1].item_id == a && facts[1].version == 1); /* in order */
    is_free(facts);
    FAILS(E_NOTFOUND, is_bank_placement(k->bank, &k->pb, kit_model, one, &facts, &n));
    FAILS(E_NOTFOUND, is_bank_placement(k->bank, &k->pa, kit_other_model, one, &facts, &n));
    FAILS(E_STALE, is_bank_put_placement(k->bank, &k->pa, kit_model, one, &(is_dep){ a, 2 }, 1));
    FAILS(E_STALE, is_bank_put_placement(k->bank, &k->pb, kit_model, one, &(is_dep){ a, 1 }, 1));
    OK(is_bank_update_fact(k->bank, &k->pa, a, &(inferscale_fact){ .text = "a2" }, NULL));
    FAILS(E_NOTFOUND, is_bank_placement(k->bank, &k->pa, kit_model, one, &facts, &n)); /* held the old a */
    OK(is_bank_placement(k->bank, &k->pa, kit_model, two, &facts, &n));
    is_free(facts);
    OK(is_bank_forget(k->bank, &k->pa, &c, 1, NULL, NULL, NULL));
    FAILS(E_NOTFOUND, is_bank_placement(k->bank, &k->pa, kit_model, two, &facts, &n));
    assert_null(facts);
}

/* The oldest go when there are many; another owner's are not counted. */
static void test_placements_are_bounded(void **state)
{
    bank_kit *k = *state;
    uint8_t prefix[IS_HASH_BYTES] = { 0 }, first[IS_HASH_BYTES] = { [8] = 1 }, other[IS_HASH_BYTES] = { [8] = 2 };
    is_dep *facts = NULL;
    int there = 0;
    size_t n = 0;

    kit_fact(k, &k->pa, &k->anna, "a");
    kit_fact(k, &k->pb, &k->ben, "b");
    OK(is_bank_put_placement(k->bank, &k->pb, kit_model, other, NULL, 0));
    OK(is_bank_put_placement(k->bank, &k->pa, kit_model, first, NULL, 0));
    for (uint32_t i = 0; i < 10200; i++) {
        memcpy(prefix, &i, sizeof i);
        OK(is_bank_put_placement(k->bank, &k->pa, kit_model, prefix, NULL, 0));
    }
    FAILS(E_NOTFOUND, is_bank_placement(k->bank, &k->pa, kit_model, first, &facts, &n));
    OK(is_bank_placement(k->bank, &k->pb, kit_model, other, &facts, &n));
    OK(is_bank_placement(k->bank, &k->pa, kit_model, prefix, &facts, &n)); /* the newest */
    for (uint32_t i = 0; i < 10200; i++) {
        memcpy(prefix, &i, sizeof i);
        there += is_bank_placement(k->bank, &k->pa, kit_model, prefix, &facts, &n) == INFERSCALE_OK;
        is_free(facts);
    }
    assert_true(there >= 10000 && there < 10100);
}

/* ---- Out of memory ------------------------------------------------------------------------------------------------------- */

/* One pass over the calls that allocate; returns the first failure. Everything it got is freed in any case. */
static is_status many_calls(bank_kit *k, int64_t a, int64_t b, is_names *stale)
{
    inferscale_list *l = NULL;
    is_segment_row *rows = NULL;
    int64_t *ids = NULL, both[2] = { a, b };
    size_t n = 0;
    is_dep *facts = NULL;
    uint8_t one[IS_HASH_BYTES] = { 1 };
    is_status st = is_bank_list(k->bank, &k->pa, NULL, 0, 0, 0, &l);

    if (st == INFERSCALE_OK) inferscale_list_free(l), st = is_bank_get(k->bank, &k->pa, both, 2, &l);
    if (st == INFERSCALE_OK) inferscale_list_free(l), st = is_bank_history(k->bank, &k->pa, a, &l);
    if (st == INFERSCALE_OK) inferscale_list_free(l), st = is_bank_facts_before(k->bank, &k->pa, b, 3, &l);
    if (st == INFERSCALE_OK) inferscale_list_free(l);
    else assert_null(l);
    if (st == INFERSCALE_OK) st = is_bank_segments(k->bank, &k->pa, kit_model, NULL, a, &rows, &n);
    is_free(rows);
    if (st == INFERSCALE_OK) st = is_bank_unencoded(k->bank, &k->pa, kit_model, NULL, 0, 0, 0, &ids, &n);
    is_free(ids);
    ids = NULL;
    if (st == INFERSCALE_OK) st = is_bank_unembedded(k->bank, &k->pa, kit_model, 0, 0, &ids, &n);
    is_free(ids);
    if (st == INFERSCALE_OK) st = is_bank_placement(k->bank, &k->pa, kit_model, one, &facts, &n);
    is_free(facts);
    if (st == INFERSCALE_OK) st = is_bank_forget(k->bank, &k->pa, NULL, 0, NULL, &n, stale);
    return st;
}

static void test_every_allocation_may_fail(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "a"), b = kit_fact(k, &k->pa, &k->anna, "b");
    uint8_t one[IS_HASH_BYTES] = { 1 };
    is_names stale = { 0 };
    size_t nth = 0;
    is_status st;

    OK(kit_segment_put(k, &k->pa, a, "header", 1, NULL, 0));
    OK(kit_segment_put(k, &k->pa, b, "facts:1", 2, &(is_dep){ a, 1 }, 1));
    OK(is_bank_put_placement(k->bank, &k->pa, kit_model, one, &(is_dep){ a, 1 }, 1));
    do {
        is_mem_fail_at(++nth);
        st = many_calls(k, a, b, &stale);
        is_mem_fail_at(0);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
        assert_int_equal(stale.n, 0);
        assert_int_equal(n_segments(k, &k->pa, a, NULL), 1); /* forgetting that failed did nothing */
        assert_int_equal(kit_version(k, &k->pa, b), 1);
    } while (nth < 1000);
    OK(st);
    assert_true(nth > 15);
    assert_int_equal(stale.n, 2);
    is_names_free(&stale);
    for (nth = 1;; nth++) { /* opening */
        is_bank *second = NULL;

        is_mem_fail_at(nth);
        st = is_bank_open(k->path, false, &second);
        is_mem_fail_at(0);
        is_bank_close(second);
        if (st == INFERSCALE_OK) break;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
        assert_null(second);
    }
    assert_true(nth > 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_kit_setup, bank_kit_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_embeddings),
        TEST(test_what_waits),
        TEST(test_which_have_segments),
        TEST(test_segments_are_entered_while_true),
        TEST(test_update_drops_what_depends),
        TEST(test_a_shared_file_stays_for_the_other),
        TEST(test_forget_closure),
        TEST(test_forget_by_attribute_and_all),
        TEST(test_forgotten_text_leaves_the_disk),
        TEST(test_doomed_names_survive_a_crash),
        TEST(test_a_file_is_doomed_until_it_is_entered),
        TEST(test_placements),
        TEST(test_placements_are_bounded),
        TEST(test_every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
