/* What a call costs does not grow with what is remembered: the steps of SQLite's virtual machine, counted, not timed, in a small
 * and in a large partition. A statement that walks a partition where an index was meant shows at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bank/sql.h"
#include "base/mem.h"
#include "support/bank_kit.h"

static int64_t steps(is_bank *b)
{
    int64_t sum = 0;

    for (size_t i = 0; i < b->n_cached; i++) sum += sqlite3_stmt_status(b->cache[i].stmt, SQLITE_STMTSTATUS_VM_STEP, 1);
    return sum;
}

static void fill(bank_kit *k, const is_partition *p, const inferscale_scope *scope, int n)
{
    inferscale_fact *facts = calloc((size_t)n, sizeof *facts);
    inferscale_turn *turns = calloc((size_t)n, sizeof *turns);
    inferscale_event *events = calloc((size_t)n, sizeof *events);
    char (*texts)[48] = calloc((size_t)n, sizeof *texts);

    for (int i = 0; i < n; i++) {
        snprintf(texts[i], sizeof *texts, "%d of %s", i, scope->user);
        facts[i].text = turns[i].text = turns[i].external_id = texts[i];
        turns[i].conversation = i < 4 ? "first" : i % 2 ? "odd" : "even";
    }
    OK(is_bank_add_facts(k->bank, p, scope, facts, (size_t)n, events));
    OK(is_bank_add_turns(k->bank, p, scope, turns, (size_t)n, NULL));
    for (int i = 0; i < n; i += 4) {
        int8_t q = 1;
        uint8_t prefix[IS_HASH_BYTES];

        OK(kit_segment_put(k, p, events[i].id, "header", i + 1000000 * (int)p->id, NULL, 0));
        OK(is_bank_put_embedding(k->bank, p, kit_model, events[i].id, 1, &q, 1, 1.0f));
        kit_name(i, prefix);
        OK(is_bank_put_placement(k->bank, p, kit_model, prefix, &(is_dep){ events[i].id, 1 }, 1));
    }
    free(facts);
    free(turns);
    free(events);
    free(texts);
}

enum { CALLS = 12 };
static const char *const names[CALLS] = { "add a fact", "add it again", "add a turn", "add it again by name", "get", "turns before",
                                          "facts before", "put a segment", "segments", "put an embedding", "change", "forget" };

/* The steps of each call on a partition, in the same order of calls. */
static void measure(bank_kit *k, const is_partition *p, const inferscale_scope *scope, int64_t out[CALLS])
{
    static int n_measured;
    char fact[48], turn_text[48];
    inferscale_fact f = { .text = fact };
    inferscale_turn t = { .text = turn_text, .external_id = turn_text, .conversation = "first" };
    inferscale_event e;
    inferscale_list *l = NULL;
    is_segment_row *rows = NULL;
    int64_t turn = 0;
    int8_t q = 1;
    size_t n = 0;

    snprintf(fact, sizeof fact, "the fact that is measured %d", n_measured); /* always new: old versions of equal texts are looked at */
    snprintf(turn_text, sizeof turn_text, "the turn that is measured %d", n_measured++);
    steps(k->bank);
    for (int call = 0; call < CALLS; call++) {
        switch (call) {
        case 0: case 1: OK(is_bank_add_facts(k->bank, p, scope, &f, 1, &e)); break;
        case 2: case 3: OK(is_bank_add_turns(k->bank, p, scope, &t, 1, &turn)); break;
        case 4: OK(is_bank_get(k->bank, p, &e.id, 1, &l)); break;
        case 5: OK(is_bank_turns_before(k->bank, p, turn, 4, &l)); break;
        case 6: OK(is_bank_facts_before(k->bank, p, e.id, 4, &l)); break;
        case 7: OK(kit_segment_put(k, p, e.id, "turns:4", 999000000 + (int)p->id, &(is_dep){ turn, 1 }, 1)); break;
        case 8: OK(is_bank_segments(k->bank, p, kit_model, NULL, e.id, &rows, &n)); break;
        case 9: OK(is_bank_put_embedding(k->bank, p, kit_model, e.id, 1, &q, 1, 1.0f)); break;
        case 10: OK(is_bank_update_fact(k->bank, p, e.id, &(inferscale_fact){ .text = "changed" }, NULL)); break;
        default: OK(is_bank_forget(k->bank, p, &turn, 1, NULL, NULL, NULL)); break;
        }
        inferscale_list_free(l);
        l = NULL;
        is_free(rows);
        rows = NULL;
        out[call] = steps(k->bank);
    }
}

static void test_calls_do_not_grow(void **state)
{
    bank_kit *k = *state;
    int64_t small[CALLS], large[CALLS];

    fill(k, &k->pa, &k->anna, 10);
    fill(k, &k->pb, &k->ben, 2000);
    measure(k, &k->pa, &k->anna, small);
    measure(k, &k->pb, &k->ben, large);
    for (int i = 0; i < CALLS; i++) {
        assert_true(small[i] > 0);
        if (large[i] > 2 * small[i] + 100)
            fail_msg("%s: %lld steps among 10 items, %lld among 2000", names[i], (long long)small[i], (long long)large[i]);
    }
}

/* ---- Other owners cost nothing ------------------------------------------------------------------------------------------- */

enum { OTHERS = 60 };

/* Database pages looked at since the last time, in the cache or not. */
static int pages_touched(is_bank *b)
{
    int hits = 0, misses = 0, high;

    assert_int_equal(sqlite3_db_status(b->db, SQLITE_DBSTATUS_CACHE_HIT, &hits, &high, 1), SQLITE_OK);
    assert_int_equal(sqlite3_db_status(b->db, SQLITE_DBSTATUS_CACHE_MISS, &misses, &high, 1), SQLITE_OK);
    return hits + misses;
}

static is_status count_item(void *ctx, const inferscale_item *item, const char *prev_speaker, const char *prev_text)
{
    ++*(int *)ctx;
    return INFERSCALE_OK;
}

static is_status count_vector(void *ctx, int64_t id, const int8_t *q, uint32_t dim, float scale)
{
    ++*(int *)ctx;
    return INFERSCALE_OK;
}

/* What a recall index of the partition is built from: steps and pages. */
static void measure_index(bank_kit *k, const is_partition *p, int64_t *n_steps, int *n_pages)
{
    int items = 0, vectors = 0;

    steps(k->bank);
    pages_touched(k->bank);
    OK(is_bank_each(k->bank, p, 0, count_item, &items));
    OK(is_bank_each_embedding(k->bank, p, kit_model, count_vector, &vectors));
    *n_steps = steps(k->bank);
    *n_pages = pages_touched(k->bank);
    assert_true(items > 100 && vectors > 20 && *n_steps > items && *n_pages > 1);
}

/* The same calls in one owner's memory, before and after many others came: the same steps; some pages more, for the trees are higher. */
static void test_other_owners_cost_nothing(void **state)
{
    bank_kit *k = *state;
    int64_t before[CALLS], after[CALLS], index_before, index_after;
    int pages_calls, pages_before, pages_after;

    fill(k, &k->pa, &k->anna, 100);
    measure(k, &k->pa, &k->anna, before); /* once for the statements to be there */
    measure(k, &k->pa, &k->anna, before);
    measure_index(k, &k->pa, &index_before, &pages_before);
    for (int i = 0; i < OTHERS; i++) {
        char name[16];
        inferscale_scope scope = { .user = name };
        is_partition p;

        snprintf(name, sizeof name, "other %d", i);
        OK(is_bank_partition(k->bank, &scope, true, &p));
        fill(k, &p, &scope, 60);
    }
    pages_touched(k->bank);
    measure(k, &k->pa, &k->anna, after);
    pages_calls = pages_touched(k->bank);
    measure_index(k, &k->pa, &index_after, &pages_after);
    for (int i = 0; i < CALLS; i++)
        if (after[i] > before[i] + before[i] / 20 + 10)
            fail_msg("%s: %lld steps alone, %lld beside %d others", names[i], (long long)before[i], (long long)after[i], OTHERS);
    if (index_after > index_before + index_before / 20 + 10)
        fail_msg("an index: %lld steps alone, %lld beside others", (long long)index_before, (long long)index_after);
    if (pages_after > 2 * pages_before) fail_msg("an index: %d pages alone, %d beside others", pages_before, pages_after);
    assert_true(pages_calls < 100 * CALLS); /* all the calls together touch a few hundred of some thousand pages */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls_do_not_grow, bank_kit_setup, bank_kit_teardown),
        cmocka_unit_test_setup_teardown(test_other_owners_cost_nothing, bank_kit_setup, bank_kit_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
