/* test_cli_change.c - the program changes, pins and forgets: what it says and what its JSON holds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/program.h"

static json_int_t whole(json_t *o, const char *name) { return json_integer_value(json_object_get(o, name)); }

static void versions_and_history(void **state)
{
    sh("$IS remember --later --time 2023-01-01 'Anna lives in Paris.' 'Anna has two cats.' && "
       "$IS update --later --json 1 'Anna lives in Oslo.' --time 2024-01-01");
    expect_code(0);
    assert_string_equal(text_at("event"), "UPDATE");
    sh("$IS supersede --later --json 2 'Anna has three cats.' --time 2024-06-01");
    expect_code(0);
    assert_int_equal(number_at("supersedes"), 2);
    assert_int_equal(number_at("id"), 3);
    sh("$IS history 1 --json");
    assert_int_equal(count("versions"), 2);
    assert_string_equal(of(item("versions", 0), "valid_to"), "2024-01-01T00:00:00Z");
    sh("$IS history 2 && $IS show 2");
    expect_in(last.out, "then fact 3");
    expect_in(last.out, "superseded by 3");
    sh("$IS recall --method lexical --json --as-of 2023-06-01 'Where does Anna live? cats'");
    assert_int_equal(count("items"), 2);
    expect_in(of(item("items", 0), "text"), "Paris");
    expect_in(of(item("items", 1), "text"), "two");
    sh("$IS recall --method lexical --json 'Where does Anna live? cats'");
    expect_in(of(item("items", 0), "text"), "Oslo");
    expect_in(of(item("items", 1), "text"), "three");
    sh("$IS update 99 'x' --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "no fact 99");
    sh("$IS update 2 'Anna has four cats.' --later --json");
    expect_code(1);
    expect_error("E_INVALID", "superseded by fact 3; update that one");
    sh("$IS update 1");
    expect_code(2);
    sh("$IS export | grep -c superseded_by");
    assert_string_equal(last.out, "0\n"); /* import would not read it */
}

/* A fact whose context held the old text loses its keys and values, and the change says how many
 * did. */
static void a_change_says_which_others_it_cost(void **state)
{
    (void)state;
    sh("$IS remember --engine mock --policy facts:5 'Anna has a cat.' 'Anna has a dog.'"
       " 'Anna has a fish.'");
    expect_code(0);
    sh("$IS update --engine mock --policy facts:5 --later 1 'Anna has two cats.'");
    expect_in(
        last.out,
              "2 other facts lost keys and values that had seen it; `inferscale encode`");
    sh("$IS encode --engine mock --policy facts:5 &&"
       " $IS update --engine mock --policy facts:5 2 'Anna has two dogs.'");
    expect_in(last.out, "1 other fact lost keys and values that had seen it; they were made anew.");
    sh("$IS update --engine mock --policy facts:5 --json --later 1 'Anna has three cats.'");
    assert_int_equal(number_at("to_reencode"), 2);
    assert_int_equal(number_at("reencoded"), 0);
    sh("$IS encode --engine mock --policy facts:5 &&"
       " $IS supersede --engine mock --policy facts:5 --json 1 'Anna has no cat.'");
    assert_int_equal(number_at("to_reencode"), 0);
    assert_int_equal(number_at("reencoded"), 2);
    sh("$IS update --engine mock --policy facts:5 --json --later 3 'Anna has no fish.'");
    assert_int_equal(number_at("to_reencode"), 1); /* the newest stands behind it */
}

/* What has expired is embedded by nobody, and so waits for nothing. */
static void doctor_counts_what_waits(void **state)
{
    (void)state;
    sh("$IS remember --later --engine mock --expires 2020-01-01 'Old news.' &&"
       " $IS doctor --engine mock --embedder mock");
    assert_null(strstr(last.out, "no embedding yet"));
    sh("$IS remember --later --engine mock 'Good news.' &&"
       " $IS doctor --engine mock --embedder mock");
    expect_in(last.out, "1 item has no embedding yet");
}

static void pins(void **state)
{
    sh("for i in $(seq 10); do echo \"Rule number $i.\"; done | $IS remember --later - && $IS pin --json 1 2 3 4 5 6 7 8");
    expect_code(0);
    sh("$IS pin 9 --json");
    expect_code(1);
    expect_error("E_FULL", "unpin one first");
    sh("$IS unpin 1 --json && $IS pin 9 && $IS ls --json");
    expect_code(0);
    assert_false(json_is_true(json_object_get(item("items", 0), "pinned")));
    assert_true(json_is_true(json_object_get(item("items", 8), "pinned")));
}

static void forgets_and_proves(void **state)
{
    sh("$IS remember --turns --later --json 'I am allergic to walnuts, as you know.'");
    json_int_t turn = whole(item("turns", 0), "id");
    sh("$IS remember --engine mock --policy facts:5 --json --source-turn %lld 'Anna is allergic to walnuts.' 'Anna likes to bake bread.'", (long long)turn);
    expect_code(0);
    json_int_t fact = whole(item("facts", 0), "id");
    sh("$IS forget --engine mock --policy facts:5 --prove --encode --json %lld", (long long)fact);
    expect_code(0);
    assert_int_equal(number_at("forgotten"), 1);
    assert_int_equal(number_at("withdrawn"), 1);
    assert_int_equal(number_at("reencoded") + number_at("to_reencode"), 1); /* the bread was encoded with it in sight */
    assert_int_equal(number_at("reencoded"), 1);
    assert_int_equal(number_at("traces"), 0);
    assert_true(number_at("scanned_bytes") > 0);
    assert_true(json_is_true(json_object_get(last.json, "proven")));
    sh("! grep -rq 'allergic to walnuts.$' $INFERSCALE_HOME && $IS recall --method lexical --kinds both --json walnuts");
    expect_code(0);
    assert_int_equal(count("items"), 0);
    sh("$IS remember --later --json 'Anna is allergic to walnuts.'");
    assert_true(json_is_true(json_object_get(item("facts", 0), "again")));
    fact = whole(item("facts", 0), "id");
    sh("printf 'Note: Anna is allergic to walnuts. Or so.' > $INFERSCALE_HOME/stray && $IS forget --prove --json %lld", (long long)fact);
    expect_code(1);
    assert_true(number_at("traces") > 0);
    expect_error("E_TRACE", "stray");
    expect_in(json_string_value(item("traces_at", 0)), "stray");
    sh("rm $INFERSCALE_HOME/stray; $IS forget --turn %lld --json", (long long)turn);
    expect_code(0);
    assert_int_equal(number_at("forgotten"), 2); /* the turn, and what still came from it */
    sh("$IS remember --later --user anna --run r1 'One.' && $IS remember --later --user anna --run r2 'Two.' && "
       "$IS forget --user anna --run r1 --yes --json && $IS ls --user anna --json");
    expect_code(0);
    assert_int_equal(count("items"), 1);
    sh("$IS remember --later --expires 2020-01-01 'Old news.' && $IS ls");
    expect_in(last.out, "[expired]");
    expect_in(last.err, "--expires 2020-01-01 is over already");
    sh("$IS remember --later --expires 2999-01-01 'Good for long.' --user carl");
    assert_string_equal(last.err, "");
    sh("$IS forget --expired --json");
    assert_int_equal(number_at("forgotten"), 1);
    sh("$IS forget --expired 1");
    expect_code(2);
    sh("$IS forget --run r1 </dev/null");
    expect_code(2);
}

/* Processes that round one owner's rows to codecs of their own, and that store new ones beside it: the books and the files
 * agree in the end, and forgetting leaves no KV. */
static void codecs_at_once_leave_nothing_behind(void **state)
{
    (void)state;
    sh("for i in $(seq 120); do echo \"{\\\"text\\\":\\\"Anna keeps thing $i in box $((i * 7)).\\\"}\"; done > facts.jsonl;"
       " $IS import facts.jsonl --engine mock --codec f32 --later --json && $IS encode --engine mock --codec f32 --json");
    expect_code(0);
    for (int i = 0; i < 3; i++) {
        sh("$IS encode --engine mock --codec int8 --json & $IS encode --engine mock --codec f16 --json; wait;"
           " $IS encode --engine mock --codec f32 --again --json & $IS encode --engine mock --codec int8 --json; wait");
        sh("$IS fsck --json");
        assert_int_equal(count("problems"), 0);
    }
    sh("for w in 1 2 3; do (for i in 1 2 3 4 5 6; do $IS remember \"Anna told $w $i.\" --engine mock --codec int8 --json; done) & done; wait");
    sh("$IS fsck --json");
    assert_int_equal(count("problems"), 0);
    sh("$IS forget --all --yes && $IS gc && find \"$INFERSCALE_HOME/vault\" -name '*.seg' | wc -l");
    expect_in(last.out, "\n0\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(versions_and_history, program_fresh),
        cmocka_unit_test_setup(a_change_says_which_others_it_cost, program_fresh),
        cmocka_unit_test_setup(doctor_counts_what_waits, program_fresh),
        cmocka_unit_test_setup(codecs_at_once_leave_nothing_behind, program_fresh),
        cmocka_unit_test_setup(pins, program_fresh),
        cmocka_unit_test_setup(forgets_and_proves, program_fresh),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
