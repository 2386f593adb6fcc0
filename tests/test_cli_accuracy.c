/* The verb `eval accuracy`: what it prints, results that go on, Ctrl-C, refusals. The mock engine
 * and an invented file of LoCoMo's form. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/program.h"

#define RUN                                                                                        \
    "$IS eval accuracy --data $DATA --engine mock --model mock --method lexical --policy header "

static int set_up(void **state)
{
    char here[1024], path[1200];

    if (!getcwd(here, sizeof here)) return -1;
    snprintf(path, sizeof path, "%s/fuzz/corpus/locomo/small.json", here);
    setenv("DATA", path, 1);
    return program_set_up(state);
}

static void prints_its_questions(void **state)
{
    json_t *first;

    sh("$IS eval accuracy --print 2 --seed 5");
    expect_code(0);
    expect_in(last.out, "1. [memory-0, single] ");
    expect_in(last.out, "\n   choices  ");
    expect_in(last.out, "2. [memory-0, two hops] ");
    sh("$IS eval accuracy --print 121 --seed 5 --json");
    expect_code(0);
    assert_int_equal(number_at("n"), 121);
    assert_int_equal(count("memories"), 2);
    first = item("memories", 0);
    assert_int_equal(json_array_size(json_object_get(first, "questions")), 120);
    assert_int_equal(json_array_size(json_object_get(item("memories", 1), "questions")), 1);
    assert_true(json_array_size(json_object_get(first, "facts")) > 100);
    sh("$IS eval accuracy --print 100 --data $DATA");
    expect_code(0);
    expect_in(last.out, "[talk-1, single-hop] What did Ada buy?");
}

static void measures(void **state)
{
    json_t *row;

    sh(RUN "--k 2 --json");
    expect_code(0);
    assert_int_equal(number_at("n"), 4); /* of categories 1 to 4 */
    assert_string_equal(text_at("questions"), "locomo");
    assert_true(json_is_true(json_object_get(last.json, "complete")));
    row = item("rows", 0);
    assert_string_equal(of(row, "type"), "multi-hop");
    assert_string_equal(of(row, "arm"), "none");
    assert_true(json_is_null(json_object_get(row, "choice"))); /* LoCoMo has no choices */
    assert_true(json_is_null(json_object_get(row, "against_text")));
    row = item("rows", 3);
    assert_string_equal(of(row, "arm"), "injected header");
    assert_true(json_is_object(json_object_get(row, "against_text")));
    assert_true(json_is_object(json_object_get(row, "against_twin")));
    sh(RUN "--k 2 --no-twins");
    expect_code(0);
    expect_in(last.out, "4 questions (locomo");
    expect_in(last.out, "injected header");
    expect_in(last.out, "margin of 3 points");
    assert_null(strstr(last.out, "twin header"));
}

static void goes_on(void **state)
{
    sh(RUN "--k 2 --results r.jsonl --json");
    expect_code(0);
    assert_int_equal(number_at("n_before"), 0);
    sh("wc -l < r.jsonl; head -n 3 r.jsonl > before; cp before r.jsonl; printf '{\"index\":2,\"ty' "
       ">> r.jsonl; " RUN "--k 2 --results r.jsonl --json");
    expect_code(0);
    assert_int_equal(number_at("n_before"), 2);
    assert_int_equal(number_at("n"), 4);
    sh("head -n 3 r.jsonl | cmp - before && wc -l < r.jsonl && ! grep -q -i -e kayak -e boat "
       "r.jsonl");
    expect_code(0);
    expect_in(last.out, "5\n");
    sh(RUN "--k 2 --results r.jsonl --questions 3 --json"); /* another sample */
    expect_code(1);
    expect_error("E_INVALID", "\"questions_digest\"");
    sh(RUN "--k 2 --codec int8 --results r.jsonl --json");
    expect_code(1);
    expect_error("E_INVALID", "\"codec\" is");
    sh(RUN "--k 3 --results r.jsonl --json");
    expect_code(1);
    expect_error("E_INVALID", "\"k\" is 2 there and 3 here");
}

/* One that writes lets nobody else write; Ctrl-C keeps what is done, and the code is 130. */
static void interrupted(void **state)
{
    sh(RUN "--k 2 --results r.jsonl --model mock:slow=30 2> why & pid=$!; for i in $(seq 400); do"
           " [ $(cat r.jsonl 2> none | wc -l) -ge 2 ] && break; sleep 0.05; done;" RUN
           "--k 2 --results r.jsonl 2> other; echo other $?; kill -INT $pid; wait $pid; code=$?; "
           "cat why other; exit $code");
    expect_code(130);
    expect_in(last.out, "other 1");
    expect_in(last.out, "another run is writing to r.jsonl");
    expect_in(last.out, "are in r.jsonl, and the same command goes on from there");
    sh(RUN "--k 2 --results r.jsonl --model mock:slow=1 --json");
    expect_code(0);
    assert_true(number_at("n_before") >= 1 && number_at("n_before") < 4);
    assert_int_equal(number_at("n"), 4);
}

static void refuses_what_is_wrong(void **state)
{
    sh("$IS eval accuracy --policy nonsense");
    expect_code(2);
    sh("$IS eval accuracy --policy a,b,c,d,e,f,g,h");
    expect_code(2);
    sh("$IS eval accuracy --method loud");
    expect_code(2);
    expect_in(last.err, "--method");
    sh("$IS eval accuracy --judge http://127.0.0.1:1");
    expect_code(2);
    expect_in(last.err, "--judge-model");
    sh("$IS eval accuracy x");
    expect_code(2);
    sh("$IS eval accuracy --data nowhere.json");
    expect_code(1);
    sh("printf 'my notes\\n' > notes; " RUN
       "--results notes --json; code=$?; cat notes; exit $code");
    expect_code(1);
    expect_in(last.out, "my notes");
    expect_in(last.err, "no file of results");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(prints_its_questions, program_fresh),
        cmocka_unit_test_setup(measures, program_fresh),
        cmocka_unit_test_setup(goes_on, program_fresh),
        cmocka_unit_test_setup(interrupted, program_fresh),
        cmocka_unit_test_setup(refuses_what_is_wrong, program_fresh),
    };

    return cmocka_run_group_tests(tests, set_up, program_tear_down);
}
