/* What must hold of change: old versions answer for their time, pins and expiry rule what is found; forgetting a fact withdraws the turn it
 * came from and leaves a tombstone that knows its text again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "bank/bank.h"
#include "inferscale.h"
#include "support/forget_kit.h"
#include "support/scratch.h"

static const inferscale_scope anna = { .user = "anna" }, ben = { .user = "ben" };

/* ---- Versions and time --------------------------------------------------------------------------------------------------- */

static void old_versions_answer_for_their_time(void **state)
{
    inferscale *is = forget_open(NULL);
    int64_t id = forget_tell(is, "Anna lives in Paris."), moved = 0;
    inferscale_fact second = { .text = "Anna lives in Oslo.", .event_time = YESTERDAY };
    inferscale_fact third = { .text = "Anna lives in Lisbon.", .event_time = LATER };
    inferscale_list *l;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    OK(inferscale_update(is, &anna, id, &second));
    OK(inferscale_supersede(is, &anna, id, &third, &moved));
    assert_true(moved > id);
    FAILS(E_INVALID, inferscale_supersede(is, &anna, id, &third, NULL)); /* once is enough */
    third.event_time = LONG_AGO;
    FAILS(E_INVALID, inferscale_supersede(is, &anna, moved, &third, NULL)); /* from before */
    FAILS(E_NOTFOUND, inferscale_supersede(is, &anna, 999, &third, NULL));
    FAILS(E_INVALID, inferscale_update(is, &anna, id, &second)); /* it would hold beside the other one */
    assert_non_null(strstr(inferscale_error(), "update that one"));
    OK(inferscale_show(is, &anna, id, &l));
    assert_int_equal(l->n, 2);
    assert_int_equal(l->items[0].valid_to, YESTERDAY);
    assert_int_equal(l->items[1].valid_to, LATER);
    assert_int_equal(l->items[1].superseded_by, moved);
    inferscale_list_free(l);
    static const struct { int64_t as_of; const char *city; } times[] = {
        { 0, "Lisbon" }, { LATER, "Lisbon" }, { LATER - 1, "Oslo" }, { YESTERDAY, "Oslo" }, { YESTERDAY - 1, "Paris" },
        { LONG_AGO, "Paris" }, { LONG_AGO - 1, NULL } };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_recall_options r = INFERSCALE_RECALL_OPTIONS_INIT;
        inferscale_answer *a = NULL;

        l = forget_recall(is, "Where does Anna live?", INFERSCALE_FACTS, 10, times[i].as_of);
        assert_int_equal(l->n, times[i].city ? 1 : 0);
        if (times[i].city && !strstr(l->items[0].text, times[i].city)) fail_msg("case %zu: %s", i, l->items[0].text);
        inferscale_list_free(l);
        r.as_of = times[i].as_of;
        o.recall = &r;
        OK(inferscale_ask(is, &anna, "Where does Anna live?", &o, &a));
        assert_int_equal(a->n_facts, times[i].city ? 1 : 0);
        if (times[i].city && !strstr(a->text, times[i].city)) fail_msg("case %zu: %s", i, a->text);
        inferscale_answer_free(a);
    }
    inferscale_close(is);
}

static void a_correction_was_never_true_twice(void **state)
{
    inferscale *is = forget_open(NULL);
    int64_t id = forget_tell(is, "Anna has two cats.");
    inferscale_fact f = { .text = "Anna has three cats.", .event_time = LONG_AGO };
    inferscale_list *l;

    (void)state;
    OK(inferscale_update(is, &anna, id, &f)); /* holds from when the first one did: that one is history only */
    l = forget_recall(is, "cats", INFERSCALE_FACTS, 10, LONG_AGO + 5);
    assert_int_equal(l->n, 1);
    assert_int_equal(l->items[0].version, 2);
    inferscale_list_free(l);
    inferscale_close(is);
}

static void pinned_facts_come_first(void **state)
{
    inferscale *is = forget_open(NULL);
    int64_t pins[INFERSCALE_PINNED_MAX + 1], turn = forget_add_turn(is, "We talked about the weather.");
    inferscale_list *l;
    inferscale_answer *a = NULL;

    (void)state;
    for (int i = 0; i < 20; i++) {
        char text[64];

        snprintf(text, sizeof text, "Zebra number %d likes hay.", i);
        forget_tell(is, text);
    }
    for (int i = 0; i <= INFERSCALE_PINNED_MAX; i++) {
        char text[64];

        snprintf(text, sizeof text, "House rule %c holds always.", 'A' + i);
        pins[i] = forget_tell(is, text);
        if (i < INFERSCALE_PINNED_MAX) OK(inferscale_pin(is, &anna, pins[i], 1));
    }
    OK(inferscale_pin(is, &anna, pins[0], 1)); /* again is no more */
    FAILS(E_FULL, inferscale_pin(is, &anna, pins[INFERSCALE_PINNED_MAX], 1));
    FAILS(E_NOTFOUND, inferscale_pin(is, &anna, turn, 1));
    FAILS(E_NOTFOUND, inferscale_pin(is, &ben, pins[0], 1));
    l = forget_recall(is, "zebra hay", INFERSCALE_FACTS, 10, 0);
    assert_int_equal(l->n, 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(l->items[i].pinned, i < INFERSCALE_PINNED_MAX);
        assert_int_equal(strstr(l->items[i].text, "rule") != NULL, i < INFERSCALE_PINNED_MAX);
    }
    inferscale_list_free(l);
    l = forget_recall(is, "zebra hay", INFERSCALE_FACTS, 3, 0); /* bounded by k */
    assert_int_equal(l->n, 3);
    inferscale_list_free(l);
    OK(inferscale_ask(is, &anna, "zebra hay?", NULL, &a));
    size_t used = 0;
    for (size_t i = 0; i < a->n_facts; i++)
        for (int j = 0; j < INFERSCALE_PINNED_MAX; j++) used += a->facts[i].id == pins[j];
    assert_int_equal(used, INFERSCALE_PINNED_MAX);
    inferscale_answer_free(a);
    for (int i = 0; i < INFERSCALE_PINNED_MAX; i++) OK(inferscale_pin(is, &anna, pins[i], 0));
    l = forget_recall(is, "zebra hay", INFERSCALE_FACTS, 10, 0);
    assert_non_null(strstr(l->items[0].text, "Zebra"));
    inferscale_list_free(l);
    inferscale_close(is);
}

static void what_has_expired_is_not_used_and_can_be_purged(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;
    inferscale_fact f = { .text = "The parking ticket is number 4711.", .event_time = LONG_AGO, .expires = YESTERDAY };
    inferscale_list *l;
    inferscale_answer *a = NULL;

    (void)state;
    OK(inferscale_remember(is, &anna, &f, 1, NULL));
    int64_t kept = forget_tell(is, "The parking lot is in the cellar.");
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(forget_found(is, "parking", 0), 1);
    OK(inferscale_ask(is, &anna, "Which parking ticket?", NULL, &a));
    assert_int_equal(a->n_facts, 1);
    assert_null(strstr(a->text, "4711"));
    inferscale_answer_free(a);
    OK(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &l));
    assert_true(l->n == 2 && l->items[0].expired && !l->items[1].expired);
    inferscale_list_free(l);
    o.expired = 1;
    FAILS(E_INVALID, inferscale_forget_with(is, &anna, &kept, 1, &o, &r));
    o.prove = 1;
    OK(inferscale_forget_with(is, &anna, NULL, 0, &o, &r));
    assert_int_equal(r.forgotten, 1);
    assert_false(forget_on_disk("number 4711"));
    OK(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &l));
    assert_true(l->n == 1 && l->items[0].id == kept);
    inferscale_list_free(l);
    inferscale_close(is);
}

/* ---- Sources and tombstones ---------------------------------------------------------------------------------------------- */

static void the_source_turn_is_withdrawn(void **state)
{
    inferscale *is = forget_open(NULL);
    int64_t before = forget_add_turn(is, "Hello there, how are you?"), turn = forget_add_turn(is, "I am allergic to walnuts, by the way.");
    int64_t after = forget_add_turn(is, "Noted."), fact = forget_tell_from(is, &anna, "Anna is allergic to walnuts.", turn), other;
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;
    inferscale_list *l;
    int64_t ids[4], unknown[4];
    size_t n_unknown = 0;

    (void)state;
    other = forget_tell_from(is, &anna, "Anna mentioned an allergy.", turn);
    assert_int_equal(forget_found(is, "walnuts", 0), 3); /* fact, turn, and the turn whose key holds the one before it */
    OK(inferscale_forget_with(is, &anna, &fact, 1, NULL, &r));
    assert_int_equal(r.forgotten, 1);
    assert_int_equal(r.withdrawn, 1);
    assert_int_equal(forget_found(is, "walnuts", 0), 0);
    assert_int_equal(forget_found(is, "allergy", 0), 1);
    OK(inferscale_show(is, &anna, turn, &l)); /* the record stays, and says so */
    assert_true(l->items[0].withdrawn);
    inferscale_list_free(l);
    o.with_turns = 1;
    OK(inferscale_forget_with(is, &anna, &other, 1, &o, &r));
    assert_int_equal(r.forgotten, 2);
    FAILS(E_NOTFOUND, inferscale_show(is, &anna, turn, &l));
    fact = forget_tell_from(is, &anna, "Anna says hello first.", before);
    o.with_turns = 0;
    o.with_facts = 1;
    ids[0] = 999;
    ids[1] = ids[3] = before;
    ids[2] = -1;
    o.unknown = unknown;
    o.n_unknown = &n_unknown;
    OK(inferscale_forget_with(is, &anna, ids, 4, &o, &r)); /* the turn takes its fact with it */
    assert_int_equal(r.forgotten, 2);
    assert_true(n_unknown == 2 && unknown[0] == 999 && unknown[1] == -1); /* not those that went with others, or were named twice */
    OK(inferscale_forget_with(is, &(inferscale_scope){ .user = "nobody" }, ids, 2, &o, &r));
    assert_true(n_unknown == 2 && unknown[1] == before);
    FAILS(E_NOTFOUND, inferscale_show(is, &anna, fact, &l));
    OK(inferscale_ls(is, &anna, 0, 0, 0, &l));
    assert_true(l->n == 1 && l->items[0].id == after);
    inferscale_list_free(l);
    inferscale_close(is);
}

static bool tombstoned(is_bank *bank, const inferscale_scope *who, const char *text)
{
    is_partition p;
    bool yes;

    OK(is_bank_partition(bank, who, false, &p));
    OK(is_bank_is_tombstoned(bank, &p, text, &yes));
    return yes;
}

static void tombstones_know_texts_again(void **state)
{
    inferscale *is = forget_open(NULL);
    unsigned long long seed = scratch_seed("tombstones");
    char texts[60][80];
    int64_t ids[60];
    bool gone[60] = { 0 };
    is_bank *bank = NULL;

    (void)state;
    forget_tell_from(is, &ben, "Ben is somebody else.", 0);
    for (int i = 0; i < 60; i++) {
        snprintf(texts[i], sizeof texts[i], "Thing %u of Anna's is %c%c, number %d.", scratch_below(&seed, 1000), 'A' + i % 26, 'a' + i % 7, i);
        ids[i] = forget_tell(is, texts[i]);
    }
    OK(is_bank_open(scratch_path(forget_home, "bank.sqlite"), false, &bank));
    for (int step = 0; step < 150; step++) {
        int i = (int)scratch_below(&seed, 60);
        inferscale_fact f = { .text = texts[i], .event_time = LONG_AGO };
        inferscale_event e;

        if (!gone[i]) {
            OK(inferscale_forget(is, &anna, &ids[i], 1, NULL));
        } else {
            OK(inferscale_remember(is, &anna, &f, 1, &e)); /* told again: allowed, said, and the mark is lifted */
            assert_true(e.event == INFERSCALE_EVENT_ADD && e.again == 1);
            ids[i] = e.id;
        }
        gone[i] = !gone[i];
    }
    for (int i = 0; i < 60; i++) {
        char shouted[100], spaced[100] = "";
        size_t n = 0;

        for (size_t c = 0; c <= strlen(texts[i]); c++) shouted[c] = (char)(texts[i][c] >= 'a' && texts[i][c] <= 'z' ? texts[i][c] - 32 : texts[i][c]);
        for (const char *c = texts[i]; *c && n < 90; c++) n += (size_t)snprintf(spaced + n, sizeof spaced - n, *c == ' ' ? " \t " : "%c", *c);
        assert_int_equal(tombstoned(bank, &anna, texts[i]), gone[i]);
        assert_int_equal(tombstoned(bank, &anna, shouted), gone[i]);
        if (strlen(spaced) < 88) assert_int_equal(tombstoned(bank, &anna, spaced), gone[i]);
        assert_false(tombstoned(bank, &ben, texts[i])); /* keyed by the partition */
        shouted[6] = '~';
        shouted[7] = 'q';
        assert_false(tombstoned(bank, &anna, shouted)); /* another text */
        if (gone[i]) assert_false(forget_on_disk(texts[i]));
    }
    is_bank_close(bank);
    inferscale_close(is);
}

static void equal_texts_are_recognised(void **state)
{
    inferscale *is = forget_open(NULL);
    inferscale_fact f = { .text = "Anna likes tea.", .event_time = LONG_AGO, .expires = (int64_t)time(NULL) + 1000 };
    inferscale_event first, e;

    (void)state;
    OK(inferscale_remember(is, &anna, &f, 1, &first));
    assert_true(first.event == INFERSCALE_EVENT_ADD && first.same_as == 0 && !first.again);
    OK(inferscale_remember(is, &anna, &f, 1, &e));
    assert_true(e.event == INFERSCALE_EVENT_NONE && e.id == first.id);
    f.expires = 0; /* lives longer: needed, and said to be a double */
    OK(inferscale_remember(is, &anna, &f, 1, &e));
    assert_true(e.event == INFERSCALE_EVENT_ADD && e.same_as == first.id);
    OK(inferscale_remember(is, &ben, &f, 1, &e));
    assert_true(e.event == INFERSCALE_EVENT_ADD && e.same_as == 0);
    inferscale_close(is);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, forget_setup, forget_teardown)
    const struct CMUnitTest tests[] = {
        T(old_versions_answer_for_their_time),
        T(a_correction_was_never_true_twice),
        T(pinned_facts_come_first),
        T(what_has_expired_is_not_used_and_can_be_purged),
        T(the_source_turn_is_withdrawn),
        T(tombstones_know_texts_again),
        T(equal_texts_are_recognised),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
