/* What must hold of the LoCoMo reader: dates, the published files' quirks (an invented small file has them all), and that
 * anything else is refused with the place and the next step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "eval/locomo.h"
#include "eval/recall_eval.h"
#include "support/scratch.h"

static void dates(void **ctx)
{
    static const struct { const char *text; int64_t want; } good[] = {
        {"1:56 pm on 8 May, 2023", 1683554160},        {"12:00 am on 1 January, 2023", 1672531200},
        {"12:30 pm on 1 January, 2023", 1672576200},   {"11:59 pm on 29 February, 2024", 1709251140},
        {"9:05 AM on 3 march, 2024", 1709456700},      {"  1:00 am on 1 December , 1970 ", 28861200},
    };
    static const char *const bad[] = {"", "8 May, 2023", "13:00 pm on 8 May, 2023", "0:10 am on 8 May, 2023",
                                      "1:60 pm on 8 May, 2023",
                                      "1:56 pm on 31 April, 2023", "1:56 pm on 29 February, 2023", "1:56 pm on 8 Mai, 2023",
                                      "1:56 pm on 8 May, 2023 x", "1:56 xm on 8 May, 2023", "1:56 pm on 0 May, 2023",
                                          "-1:56 pm on 8 May, 2023"};

    (void)ctx;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_int_equal(locomo_time(good[i].text), good[i].want);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (locomo_time(bad[i])) print_message("accepted: %s\n", bad[i]);
        assert_int_equal(locomo_time(bad[i]), 0);
    }
    assert_int_equal(locomo_time(NULL), 0);
}

static locomo *load_small(void)
{
    locomo *l;
    OK(locomo_load("fuzz/corpus/locomo/small.json", &l));
    return l;
}

static void turns_come_in_order(void **ctx)
{
    locomo *l = load_small();
    const locomo_conversation *c = locomo_find(l, "talk-1");

    (void)ctx;
    assert_int_equal(l->n, 2);
    assert_non_null(c);
    assert_null(locomo_find(l, "talk-3"));
    assert_int_equal(c->n_turns, 4);
    assert_string_equal(c->turns[0].dia_id, "D1:1"); /* session 1 first, wherever it stands in the file */
    assert_string_equal(c->turns[3].dia_id, "D2:1");
    assert_int_equal(c->turns[3].session, 2);
    assert_int_equal(c->turns[0].time, locomo_time("11:30 pm on 29 February, 2024"));
    assert_string_equal(c->turns[1].caption, "a green kayak on a beach");
    static const char *const texts[] = {"I bought a kayak.", "Show me! [a green kayak on a beach]", "[a paddle]",
                                        "My boat is blue."};
    for (size_t i = 0; i < 4; i++) {
        char *text = locomo_turn_text(&c->turns[i]);
        assert_string_equal(text, texts[i]);
        is_free(text);
    }
    assert_int_equal(l->conversations[1].n_turns, 0);
    locomo_free(l);
}

static void observations_cite_turns(void **ctx)
{
    locomo *l = load_small();
    const locomo_conversation *c = &l->conversations[0];

    (void)ctx;
    assert_int_equal(c->n_observations, 3);
    assert_string_equal(c->observations[0].speaker, "Ada");
    assert_int_equal(c->observations[0].n_dia_ids, 1);
    assert_int_equal(c->observations[1].n_dia_ids, 2);
    assert_string_equal(c->observations[1].dia_ids[0], "D1:3");
    assert_int_equal(c->observations[2].time, locomo_time("9:05 am on 3 March, 2024"));
    locomo_free(l);
}

static void evidence_is_read_as_written(void **ctx)
{
    locomo *l = load_small();
    const locomo_qa *q = l->conversations[0].qa;

    (void)ctx;
    assert_int_equal(l->conversations[0].n_qa, 5);
    assert_int_equal(q[0].n_evidence, 1);
    assert_int_equal(q[1].n_evidence, 2); /* "D1:1; D2:01", "D" */
    assert_string_equal(q[1].evidence[1], "D2:1");
    assert_string_equal(q[1].answer, "2");
    assert_int_equal(q[2].n_evidence, 2); /* "D:1:3 D2:1" */
    assert_string_equal(q[2].evidence[0], "D1:3");
    assert_string_equal(q[2].answer, "2.5");
    assert_string_equal(q[3].answer, "Bo");
    assert_int_equal(q[4].n_evidence, 0);
    locomo_free(l);
}

static void refuse(const char *json, const char *place)
{
    locomo *l = (locomo *)1;

    assert_int_equal(locomo_parse(json, strlen(json), &l), INFERSCALE_E_PARSE);
    assert_null(l);
    if (!strstr(is_error(), place)) print_message("%s\n", is_error());
    assert_non_null(strstr(is_error(), place));
}

static void anything_else_is_refused(void **ctx)
{
    (void)ctx;
    refuse("", "not JSON");
    refuse("[1, 2", "not JSON at line 1");
    refuse("7", "not JSON"); /* JSON texts of LoCoMo are lists */
    refuse("[]", "no conversation");
    refuse("[7]", "conversation 1, top level");
    refuse("[{\"sample_id\": 3}]", "sample_id");
    refuse("[{\"sample_id\": \"a\"}]", "an object named conversation");
    refuse("[{\"sample_id\":\"a\",\"conversation\":{\"session_1\":7}}]", "conversation a, session_1");
    refuse("[{\"sample_id\":\"a\",\"conversation\":{\"session_1\":[{}]}}]", "session_1_date_time");
    refuse("[{\"sample_id\":\"a\",\"conversation\":{\"session_1_date_time\":\"1:00 am on 1 May, 2023\","
           "\"session_1\":[{\"dia_id\":\"D1:1\"}]}}]",
           "session_1 turn 1: expected speaker");
    refuse("[{\"sample_id\":\"a\",\"conversation\":{},\"observation\":[]}]", "observation");
    refuse("[{\"sample_id\":\"a\",\"conversation\":{},\"qa\":[{\"question\":\"q\",\"category\":9}]}]",
           "question 1: expected a category");
    refuse("[{\"sample_id\":\"a\",\"conversation\":{},\"qa\":[{\"question\":\"q\",\"category\":1,\"evidence\":[7]}]}]",
           "list of turn ids");
    refuse("[{\"sample_id\":\"a\",\"conversation\":{},\"qa\":[{\"question\":\"q\",\"category\":1,\"answer\":[]}]}]",
           "a text or a number");
}

static void deep_and_strange_files_end_well(void **ctx)
{
    size_t n = 1 << 20;
    char *deep = is_malloc(n);
    locomo *l;

    (void)ctx;
    memset(deep, '[', n);
    FAILS(E_PARSE, locomo_parse(deep, n, &l));
    for (size_t i = 0; i < n; i++) deep[i] = "{\"a\":"[i % 5];
    FAILS(E_PARSE, locomo_parse(deep, n, &l));
    FAILS(E_PARSE, locomo_parse("[\"\xff\xfe\"]", 6, &l));
    FAILS(E_PARSE, locomo_parse("[{\0}]", 5, &l));
    FAILS(E_NOTFOUND, locomo_load("no/such/file.json", &l));
    is_free(deep);
}

/* Each allocation of ours fails once. */
static void out_of_memory_is_an_error(void **ctx)
{
    (void)ctx;
    for (size_t nth = 1;; nth++) {
        locomo *l = NULL;
        is_mem_fail_at(nth);
        is_status st = locomo_load("fuzz/corpus/locomo/small.json", &l);
        is_mem_fail_at(0);
        locomo_free(l);
        if (st == INFERSCALE_OK) {
            assert_true(nth > 20);
            return;
        }
        assert_int_equal(st, INFERSCALE_E_NOMEM);
    }
}

static const recall_eval_row *row(const recall_eval_report *r, const char *store, const char *categories, uint32_t k)
{
    for (size_t i = 0; i < r->n_rows; i++)
        if (strcmp(r->rows[i].store, store) == 0 && strcmp(r->rows[i].categories, categories) == 0 && r->rows[i].k == k)
            return &r->rows[i];
    fail();
    return NULL;
}

/* The small file's questions can be followed by hand: credit is by turn, and a cited turn counts. */
static void recall_is_counted_by_evidence(void **ctx)
{
    locomo *l = load_small();
    recall_eval_opts o = {.k = {1, 10}, .n_k = 2};
    recall_eval_report *r;

    (void)ctx;
    OK(recall_eval_run(l, &o, &r));
    assert_int_equal(r->n_turns, 4);
    assert_int_equal(r->n_facts, 3);
    assert_int_equal(r->n_questions, 3); /* the others have no evidence */
    /* "What did Ada buy?": words ada (in all facts of Ada); "How many boats?": boat; "When?": a stop word finds nothing. */
    assert_true(row(r, "facts", "4", 10)->recall == 1.0);
    assert_true(row(r, "facts", "1", 10)->recall == 0.5);
    assert_true(row(r, "both", "2", 10)->recall == 0.0);
    assert_true(row(r, "turns", "1", 10)->recall >= 0.5);
    const recall_eval_row *all = row(r, "facts", "1-4", 10);
    assert_int_equal(all->n, 3);
    assert_true(all->recall > 0.499 && all->recall < 0.501);
    recall_eval_free(r);
    o.conversation = "nobody";
    FAILS(E_NOTFOUND, recall_eval_run(l, &o, &r));
    assert_null(r);
    locomo_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dates),
        cmocka_unit_test(turns_come_in_order),
        cmocka_unit_test(observations_cite_turns),
        cmocka_unit_test(evidence_is_read_as_written),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(deep_and_strange_files_end_well),
        cmocka_unit_test(out_of_memory_is_an_error),
        cmocka_unit_test(recall_is_counted_by_evidence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
