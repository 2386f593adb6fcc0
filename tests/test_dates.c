/* Dates in prompts are those that somebody gave. What nobody dated has none there, nor among its words; filters find it by the time
 * of writing. In a store of commit 287338c, which dated everything, such facts are told apart, their rows serve as they are, and are
 * replaced when the encoder has nothing else to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/handle.h"
#include "base/clock.h"
#include "support/background_kit.h"

#define MAY 1714521600 /* 2024-05-01 */

#define OK(call)                                                                                                               \
    do {                                                                                                                       \
        inferscale_status st_ = (call);                                                                                        \
        if (st_ != INFERSCALE_OK) fail_msg("%s: %s", #call, inferscale_error());                                               \
    } while (0)

static int64_t tell(inferscale *is, const inferscale_scope *who, inferscale_fact f)
{
    inferscale_event e;

    OK(inferscale_remember(is, who, &f, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);
    return e.id;
}

/* The last version of an item, to be freed as a list. */
static inferscale_list *show(inferscale *is, int64_t id)
{
    inferscale_list *l = NULL;

    OK(inferscale_show(is, &anna, id, &l));
    l->items[0] = l->items[l->n - 1];
    return l;
}

static void expect_item(inferscale *is, int64_t id, int dated, int64_t event_time)
{
    inferscale_list *l = NULL;
    const inferscale_item *t;

    OK(inferscale_show(is, &anna, id, &l));
    t = &l->items[l->n - 1];
    if (t->dated != dated || (event_time && t->event_time != event_time))
        fail_msg("%s: dated %d, event_time %lld", t->text, t->dated, (long long)t->event_time);
    if (!event_time) assert_true(t->event_time == t->write_time);
    inferscale_list_free(l);
}

/* Is this the line of the fact in the prompt? mode: INFERSCALE_MODE_*. */
static bool in_prompt(inferscale *is, const inferscale_scope *who, int mode, const char *question, const char *line)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_preview *p = NULL;
    bool found = false;

    o.mode = mode;
    o.k = 100;
    OK(inferscale_dry_run(is, who, question, &o, &p));
    for (size_t i = 0; i < p->n_parts; i++) found = found || (p->parts[i].id && strcmp(p->parts[i].text, line) == 0);
    inferscale_preview_free(p);
    return found;
}

#define expect_line(is, line)                                                                                                  \
    do {                                                                                                                       \
        assert_true(in_prompt((is), &anna, INFERSCALE_MODE_TEXT, "What of Anna?", (line)));                                    \
        assert_true(in_prompt((is), &anna, INFERSCALE_MODE_KV, "What of Anna?", (line)));                                      \
    } while (0)

/* ---- What is given ----------------------------------------------------------------------------------------------------------- */

static void only_dates_that_were_given_stand_in_prompts(void **state)
{
    inferscale *is = bg_open_plain();

    tell(is, &anna, (inferscale_fact){ .text = "Anna has a cat.", .event_time = MAY });
    tell(is, &anna, (inferscale_fact){ .text = "Anna has a dog." });
    tell(is, &anna, (inferscale_fact){ .text = "Anna has a fish.", .event_time = INFERSCALE_NO_TIME });
    tell(is, &anna, (inferscale_fact){ .text = "Anna has a bird.", .event_time = MAY, .undated = 1 });
    tell(is, &anna, (inferscale_fact){ .text = "Anna was born.", .event_time = INFERSCALE_TIME_ZERO });
    tell(is, &anna, (inferscale_fact){ .text = "Anna's house was built.", .event_time = -2208988800 });
    for (int encoded = 0; encoded < 2; encoded++) {
        expect_line(is, "- 1 May 2024: Anna has a cat.\n");
        expect_line(is, "- Anna has a dog.\n");
        expect_line(is, "- Anna has a fish.\n");
        expect_line(is, "- Anna has a bird.\n");
        expect_line(is, "- 1 January 1970: Anna was born.\n");
        expect_line(is, "- 1 January 1900: Anna's house was built.\n");
        OK(inferscale_encode(is, &anna, NULL));
    }
    inferscale_close(is);
}

static void what_is_given_is_kept(void **state)
{
    inferscale *is = bg_open_plain();
    inferscale_turn turns[] = { { .text = "Hello." }, { .text = "Hello in May.", .time = MAY }, { .text = "Hm.", .time = MAY, .undated = 1 } };
    int64_t ids[3], dated = tell(is, &anna, (inferscale_fact){ .text = "Anna has a cat.", .event_time = MAY }), next;
    int64_t undated = tell(is, &anna, (inferscale_fact){ .text = "Anna has a dog." });
    int64_t moved = tell(is, &anna, (inferscale_fact){ .text = "Anna has a bird.", .event_time = MAY, .undated = 1 });

    OK(inferscale_add_turns(is, &anna, turns, 3, ids));
    expect_item(is, dated, 1, MAY);
    expect_item(is, undated, 0, 0);
    expect_item(is, moved, 0, MAY);
    expect_item(is, ids[0], 0, 0);
    expect_item(is, ids[1], 1, MAY);
    expect_item(is, ids[2], 0, MAY);

    /* A change without a time: the same words keep their date, other words have none. */
    OK(inferscale_update(is, &anna, dated, &(inferscale_fact){ .text = "Anna has a cat.", .metadata = "{\"n\":1}" }));
    expect_item(is, dated, 1, MAY);
    OK(inferscale_update(is, &anna, moved, &(inferscale_fact){ .text = "Anna has a bird.", .metadata = "{\"n\":1}" }));
    expect_item(is, moved, 0, MAY);
    OK(inferscale_update(is, &anna, dated, &(inferscale_fact){ .text = "Anna has two cats." }));
    expect_item(is, dated, 0, 0);
    OK(inferscale_update(is, &anna, dated, &(inferscale_fact){ .text = "Anna has two cats.", .event_time = MAY + 5 }));
    expect_item(is, dated, 1, MAY + 5);
    expect_line(is, "- 1 May 2024: Anna has two cats.\n");
    OK(inferscale_supersede(is, &anna, dated, &(inferscale_fact){ .text = "Anna has no cat." }, &next));
    expect_item(is, next, 0, 0);
    expect_line(is, "- Anna has no cat.\n");
    inferscale_close(is);
}

static size_t hits(inferscale *is, const char *query, int64_t from, int64_t to)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;
    size_t n;

    o.method = INFERSCALE_LEXICAL;
    o.from = from;
    o.to = to;
    OK(inferscale_recall(is, &anna, query, &o, &l));
    n = l->n;
    inferscale_list_free(l);
    return n;
}

/* ---- What is known already ------------------------------------------------------------------- */

static inferscale_event again(inferscale *is, inferscale_fact f)
{
    inferscale_event e;

    OK(inferscale_remember(is, &anna, &f, 1, &e));
    return e;
}

/* A known fact takes the date that it does not have, and nothing else of what is given. Its rows
 * without the date go, and come again with it. */
static void a_known_fact_takes_the_date_that_it_has_not(void **state)
{
    inferscale *is = bg_open_plain();
    const char *metadata = "{\"n\":1}";
    int64_t id = tell(is, &anna,
                      (inferscale_fact){ .text = "Anna has a cat.", .metadata = metadata }),
            next;
    inferscale_list *l = NULL;
    inferscale_event e;

    tell(is, &anna, (inferscale_fact){ .text = "Anna has a dog." });
    OK(inferscale_encode(is, &anna, NULL));
    e = again(is, (inferscale_fact){ .text = "Anna has a cat.", .event_time = MAY, .undated = 1 });
    assert_true(e.id == id && e.event == INFERSCALE_EVENT_NONE && !e.kept);
    expect_line(is, "- Anna has a cat.\n");
    e = again(is, (inferscale_fact){ .text = "Anna has a cat.", .event_time = MAY });
    assert_true(e.id == id && e.event == INFERSCALE_EVENT_UPDATE && !e.kept);
    for (int encoded = 0; encoded < 2; encoded++) {
        expect_item(is, id, 1, MAY);
        expect_line(is, "- 1 May 2024: Anna has a cat.\n");
        OK(inferscale_encode(is, &anna, NULL));
    }
    store_expect_sound(bg_home);
    assert_int_equal(hits(is, "May 2024", 0, 0), 1);
    OK(inferscale_show(is, &anna, id, &l));
    assert_true(l->n == 2 && !l->items[0].dated && l->items[1].dated &&
                l->items[1].valid_from == MAY);
    assert_string_equal(l->items[1].metadata, metadata);
    inferscale_list_free(l);

    /* What was superseded stays so. */
    OK(inferscale_supersede(is, &anna, id, &(inferscale_fact){ .text = "Anna has no cat." },
                            &next));
    e = again(is, (inferscale_fact){ .text = "Anna has no cat.", .event_time = MAY });
    assert_true(e.id == next && e.event == INFERSCALE_EVENT_UPDATE);
    OK(inferscale_show(is, &anna, id, &l));
    assert_true(l->items[1].superseded_by == next);
    inferscale_list_free(l);
    inferscale_close(is);
}

static void what_a_known_fact_keeps_is_said(void **state)
{
    inferscale *is = bg_open_plain();
    const inferscale_fact first = { .text = "Anna has a cat.",
                                    .event_time = MAY,
                                    .metadata = "{\"n\": 1}" };
    const inferscale_fact fixed = { .text = "Anna has a dog.",
                                    .metadata = "{\"immutable\": true}" };
    const struct { inferscale_fact f; int kept;
    } tries[] = {
        { { .text = first.text }, 0 },
        { first, 0 },
        { { .text = first.text, .event_time = MAY + 86400 }, INFERSCALE_KEPT_DATE },
        { { .text = first.text, .event_time = INFERSCALE_TIME_ZERO }, INFERSCALE_KEPT_DATE },
        { { .text = first.text, .metadata = "{\"n\":2}" }, INFERSCALE_KEPT_METADATA },
        { { .text = first.text, .metadata = "{}" }, 0 },
        { { .text = first.text,
            .event_time = 1,
            .metadata = "{\"m\":1}",
            .expires = INT64_C(4102444800) },
          INFERSCALE_KEPT_DATE | INFERSCALE_KEPT_METADATA | INFERSCALE_KEPT_EXPIRES },
        { { .text = fixed.text, .event_time = MAY }, INFERSCALE_KEPT_DATE },
    };
    int64_t id = tell(is, &anna, first), other = tell(is, &anna, fixed);

    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        inferscale_event e = again(is, tries[i].f);

        if (e.event != INFERSCALE_EVENT_NONE || e.kept != tries[i].kept)
            fail_msg("%zu: event %d, kept %d", i, e.event, e.kept);
        assert_int_equal(e.id, tries[i].f.text == first.text ? id : other);
        expect_item(is, id, 1, MAY);
        expect_item(is, other, 0, 0);
    }
    inferscale_close(is);
}

/* ---- Words and filters ----------------------------------------------------------------------- */

static void words_are_of_given_dates_and_filters_of_all(void **state)
{
    inferscale *is = bg_open_plain();
    const int64_t before = is_now_epoch();
    char today[32];

    tell(is, &anna, (inferscale_fact){ .text = "Anna has a cat.", .event_time = MAY });
    tell(is, &anna, (inferscale_fact){ .text = "Anna has a dog." });
    tell(is, &anna, (inferscale_fact){ .text = "Anna was born.", .event_time = INFERSCALE_TIME_ZERO });
    is_date_text(before, today);
    assert_int_equal(hits(is, "May 2024", 0, 0), 1);
    assert_int_equal(hits(is, strrchr(today, ' ') + 1, 0, 0), 0); /* the year */
    assert_int_equal(hits(is, "Anna", 0, 0), 3);
    assert_int_equal(hits(is, "Anna", before, 0), 1);
    assert_int_equal(hits(is, "Anna", 0, before - 1), 2);
    assert_int_equal(hits(is, "Anna", INFERSCALE_TIME_ZERO, MAY), 2);
    assert_int_equal(hits(is, "Anna", INFERSCALE_NO_TIME, INFERSCALE_TIME_ZERO), 1);
    assert_int_equal(hits(is, "Anna", 1, MAY), 1);
    assert_int_equal(hits(is, "Anna", 0, -1), 0);
    inferscale_close(is);
}

/* The first second of 1970 is a time like any other in each place: as an end, as an expiry, as the time asked about. */
static void the_first_second_is_a_time(void **state)
{
    inferscale *is = bg_open_plain();
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    const int64_t zero = INFERSCALE_TIME_ZERO, asked[] = { -2, -1, zero, 1 };
    int64_t id = tell(is, &anna, (inferscale_fact){ .text = "Anna is four.", .event_time = -1, .valid_from = -1, .valid_to = zero }), gone;
    int64_t changed = tell(is, &anna, (inferscale_fact){ .text = "Anna is at school.", .event_time = -1 });
    inferscale_list *l = NULL;

    gone = tell(is, &anna, (inferscale_fact){ .text = "Anna is small.", .event_time = -5, .expires = zero });
    OK(inferscale_update(is, &anna, changed, &(inferscale_fact){ .text = "Anna is at home.", .event_time = zero }));
    OK(inferscale_show(is, &anna, changed, &l));
    assert_true(l->n == 2 && l->items[0].valid_to == zero && l->items[1].valid_from == zero && l->items[1].event_time == zero);
    inferscale_list_free(l);
    l = show(is, id);
    assert_true(l->items[0].valid_to == zero && l->items[0].valid_from == -1);
    l = (inferscale_list_free(l), show(is, gone));
    assert_true(l->items[0].expires == zero && l->items[0].expired);
    inferscale_list_free(l);
    o.method = INFERSCALE_LEXICAL;
    for (size_t i = 0; i < 4; i++) {
        o.as_of = asked[i];
        OK(inferscale_recall(is, &anna, "four", &o, &l));
        assert_int_equal(l->n, asked[i] == -1);
        inferscale_list_free(l);
        OK(inferscale_recall(is, &anna, "school", &o, &l));
        assert_int_equal(l->n && strstr(l->items[0].text, "school"), asked[i] == -1);
        inferscale_list_free(l);
    }
    inferscale_close(is);
}

static void times_beyond_all_dates_are_refused(void **state)
{
    static const int64_t bad[] = { INT64_MAX, INT64_MIN + 2, INT64_C(253402300800), INT64_C(-62167219201) };
    inferscale *is = bg_open_plain();

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        inferscale_fact facts[] = { { .text = "x", .event_time = bad[i] }, { .text = "x", .valid_from = bad[i] },
                                    { .text = "x", .valid_to = bad[i] }, { .text = "x", .expires = bad[i] } };
        inferscale_turn turn = { .text = "x", .time = bad[i] };

        for (int k = 0; k < 4; k++) assert_int_equal(inferscale_remember(is, &anna, &facts[k], 1, NULL), INFERSCALE_E_INVALID);
        assert_non_null(strstr(inferscale_error(), "expires lies outside the years 0 to 9999"));
        assert_int_equal(inferscale_add_turns(is, &anna, &turn, 1, NULL), INFERSCALE_E_INVALID);
    }
    inferscale_close(is);
}

/* ---- A store of commit 287338c ------------------------------------------------------------------------------------------------ */

static char old_home[600];

static int unpack(void **state)
{
    char root[1200], command[4000];
    ssize_t n = readlink("/proc/self/exe", root, sizeof root - 1);

    bg_set_up(state);
    assert_true(n > 0);
    root[n] = 0;
    for (int i = 0; i < 4; i++) *strrchr(root, '/') = 0;
    snprintf(command, sizeof command, "tar -xzf '%s/tests/fixtures/store-287338c.tar.gz' -C '%s'", root, bg_home);
    assert_int_equal(system(command), 0);
    snprintf(old_home, sizeof old_home, "%s/mock", bg_home);
    return 0;
}

static inferscale *open_old(bool background, const char *refine)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = old_home;
    o.engine = "mock";
    o.plugin_dir = bg_plugins;
    o.background = background;
    o.codec = "f32"; /* what anna's rows are in: her view is this one */
    o.refine = refine;
    return bg_open(&o);
}

#define ANNAS " partition_id = (SELECT id FROM partitions WHERE owner = 'anna' AND tenant = '')"
#define CURRENT_VIEW " AND fingerprint = (SELECT fingerprint FROM segments WHERE" ANNAS " GROUP BY fingerprint ORDER BY count(*) DESC LIMIT 1)"

static int64_t outdated(void) { return store_sql_int(old_home, "SELECT count(*) FROM segments WHERE outdated = 1 AND" ANNAS CURRENT_VIEW); }

static void expect_told_apart(inferscale *is)
{
    static const int undated[] = { 5, 6, 7, 8, 13 };
    inferscale_list *l = NULL;

    OK(inferscale_ls(is, &anna, 0, 0, 0, &l));
    assert_true(l->n >= 14);
    for (size_t i = 0; i < l->n; i++) {
        bool none = false;

        for (size_t k = 0; k < sizeof undated / sizeof *undated; k++) none = none || l->items[i].id == undated[k];
        if (l->items[i].dated == none) fail_msg("%lld %s: dated %d", (long long)l->items[i].id, l->items[i].text, l->items[i].dated);
    }
    inferscale_list_free(l);
    OK(inferscale_show(is, &anna, 6, &l));
    assert_true(l->n == 2 && !l->items[0].dated && !l->items[1].dated);
    inferscale_list_free(l);
    OK(inferscale_show(is, &anna, 3, &l));
    assert_true(l->n == 2 && l->items[0].dated && l->items[1].dated);
    inferscale_list_free(l);
}

/* Every file of the vault is named by the books, and every name has its file. */
static void expect_books_and_files_agree(void)
{
    size_t n = 0;
    char **files = store_files(old_home, ".seg", &n);

    assert_int_equal(n, store_sql_int(old_home, "SELECT count(DISTINCT hex(name)) FROM segments"));
    assert_int_equal(store_sql_int(old_home, "SELECT count(*) FROM doomed"), 0);
    store_files_free(files, n);
    store_expect_sound(old_home);
}

/* Before anything is encoded: old rows serve with the words that they were computed from; as text the fact has no date. */
static void old_rows_serve_until_they_are_replaced(void **state)
{
    inferscale *is = open_old(false, NULL);
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    inferscale_list *l = NULL;

    expect_told_apart(is);
    assert_true(outdated() > 0);
    assert_true(in_prompt(is, &anna, INFERSCALE_MODE_TEXT, "Where does Anna work?", "- Anna works as a nurse.\n"));
    assert_true(in_prompt(is, &anna, INFERSCALE_MODE_KV, "Where does Anna work?", "- 1 December 2026: Anna works as a nurse.\n"));
    o.max_tokens = 4;
    OK(inferscale_ask(is, &anna, "Where does Anna work?", &o, &a));
    assert_true(a->tokens_injected > 0);
    for (size_t i = 0; i < a->n_facts; i++) assert_int_equal(a->facts[i].source, INFERSCALE_SOURCE_STORED);
    inferscale_answer_free(a);

    /* The encoder that a person runs replaces them. */
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(outdated(), 0);
    assert_true(in_prompt(is, &anna, INFERSCALE_MODE_KV, "Where does Anna work?", "- Anna works as a nurse.\n"));
    assert_true(in_prompt(is, &anna, INFERSCALE_MODE_KV, "Where does Anna live?", "- 1 June 2024: Anna lives in Oslo.\n"));
    OK(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &l));
    for (size_t i = 0; i < l->n; i++)
        if (!l->items[i].expired && !l->items[i].valid_to) assert_true(l->items[i].kv_ready);
    inferscale_list_free(l);
    inferscale_close(is);
    expect_books_and_files_agree();
}

/* The background does it by itself, both stages; a question asked all the while is answered, from rows or from text. */
static void the_background_replaces_old_rows(void **state)
{
    inferscale *is = open_old(true, NULL);
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;

    o.max_tokens = 2;
    do {
        inferscale_answer *a = NULL;

        OK(inferscale_ask(is, &anna, "Where does Anna work?", &o, &a));
        assert_true(a->n_facts > 0);
        inferscale_answer_free(a);
        usleep(1000);
    } while (outdated() > 0);
    UNTIL((inferscale_encode_status(is, NULL, &s), s.n_unembedded + s.n_unencoded + s.n_unrefined == 0 && !s.running));
    assert_int_equal(s.n_errors, 0);
    assert_true(in_prompt(is, &anna, INFERSCALE_MODE_KV, "Where does Anna work?", "- Anna works as a nurse.\n"));
    inferscale_close(is);
    expect_books_and_files_agree();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_dates_that_were_given_stand_in_prompts, bg_set_up,
                                        bg_tear_down),
        cmocka_unit_test_setup_teardown(what_is_given_is_kept, bg_set_up, bg_tear_down),
        cmocka_unit_test_setup_teardown(a_known_fact_takes_the_date_that_it_has_not, bg_set_up,
                                        bg_tear_down),
        cmocka_unit_test_setup_teardown(what_a_known_fact_keeps_is_said, bg_set_up, bg_tear_down),
        cmocka_unit_test_setup_teardown(words_are_of_given_dates_and_filters_of_all, bg_set_up,
                                        bg_tear_down),
        cmocka_unit_test_setup_teardown(the_first_second_is_a_time, bg_set_up, bg_tear_down),
        cmocka_unit_test_setup_teardown(times_beyond_all_dates_are_refused, bg_set_up,
                                        bg_tear_down),
        cmocka_unit_test_setup_teardown(old_rows_serve_until_they_are_replaced, unpack,
                                        bg_tear_down),
        cmocka_unit_test_setup_teardown(the_background_replaces_old_rows, unpack, bg_tear_down),
    };

    return cmocka_run_group_tests(tests, bg_find_plugins, NULL);
}
