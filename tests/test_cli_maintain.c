/* test_cli_maintain.c - the program with the mock engine: checking, cleaning, measuring, copying and rebuilding a store, and asking
 * without running the model. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/program.h"

static int filled(void **state)
{
    int rc = program_fresh(state);
    sh("$IS remember --engine mock --policy facts:2 --json --time 2024-05-01 'Anna is allergic to peanuts.' 'Anna moved to Lyon.' 'Anna plays the cello.'");
    expect_code(0);
    return rc;
}

static bool flag(const char *name)
{
    return json_is_true(json_object_get(last.json, name));
}

static void fsck_says_what_is_wrong(void **state)
{
    sh("$IS fsck --json");
    expect_code(0);
    assert_true(flag("ok"));
    assert_int_equal(count("problems"), 0);
    assert_true(number_at("segments") > 0);
    sh("$IS fsck");
    expect_code(0);
    expect_in(last.out, "Sound.");
    sh("f=$(find $INFERSCALE_HOME/vault -name '*.seg' | head -1) && truncate -s 100 $f && $IS fsck --json");
    expect_code(1);
    assert_false(flag("ok"));
    assert_int_equal(count("problems"), 1);
    assert_string_equal(of(item("problems", 0), "kind"), "file-torn");
    assert_true(json_is_false(json_object_get(item("problems", 0), "repaired")));
    assert_non_null(of(item("problems", 0), "what"));
    sh("$IS fsck");
    expect_code(1);
    expect_in(last.out, "file-torn");
    expect_in(last.out, "--repair");
    sh("n=$(head -c 64 /dev/zero | tr '\\0' 0).999999.1000000000.00000000.tmp; "
       "umask 077; : > $INFERSCALE_HOME/vault/tmp/$n; $IS fsck --quick");
    expect_code(0); /* what a killed process leaves is no damage */
    expect_in(last.out, "file-left-over");
    expect_in(last.out, "Sound.");
    sh("$IS fsck --quick --json");
    expect_code(0);
    assert_true(flag("ok"));
    assert_true(json_is_true(json_object_get(item("problems", 0), "note")));
    assert_true(json_is_false(json_object_get(item("problems", 0), "repaired")));
    sh("$IS fsck --quick --json"); /* it is there: that is all a quick look sees */
    expect_code(0);
    sh("$IS fsck --repair --json");
    expect_code(0);
    assert_true(flag("ok"));
    assert_true(json_is_true(json_object_get(item("problems", 0), "repaired")));
    sh("$IS fsck --json && $IS encode --engine mock --policy facts:2 --json");
    expect_code(0);
    assert_true(number_at("facts_encoded") >= 1);
    sh("printf 'no database' > $INFERSCALE_HOME/bank.sqlite; rm -f $INFERSCALE_HOME/bank.sqlite-*; $IS fsck --json");
    expect_code(1);
}

static void a_broken_database_is_a_problem_not_a_failure(void **state)
{
    sh("rm -f $INFERSCALE_HOME/bank.sqlite-*; n=$(stat -c %%s $INFERSCALE_HOME/bank.sqlite); head -c $((n - 4096)) /dev/zero | tr '\\0' 'Z' | "
       "dd of=$INFERSCALE_HOME/bank.sqlite bs=4096 seek=1 conv=notrunc status=none; $IS fsck --json");
    expect_code(1);
    assert_false(flag("ok"));
    assert_string_equal(of(item("problems", 0), "kind"), "bank-damaged");
}

static void gc_and_du(void **state)
{
    json_int_t bytes;
    sh("$IS du --json");
    expect_code(0);
    assert_true(count("rows") >= 3); /* text, embeddings, segments */
    assert_true(number_at("vault_bytes") > 0);
    assert_true(number_at("bank_bytes") > 0);
    assert_string_equal(of(item("rows", 0), "owner"), "default");
    assert_string_equal(of(item("rows", 0), "what"), "text");
    bytes = number_at("vault_bytes");
    sh("$IS du");
    expect_in(last.out, "OWNER");
    expect_in(last.out, "segments");
    sh("$IS du --user nobody --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "nothing was ever remembered");
    sh("$IS encode --engine mock --model mock:id=2 --json && $IS gc --engine mock --keep current --dry-run --json");
    expect_code(0);
    assert_true(number_at("view_files") > 0);
    assert_true(flag("dry_run"));
    sh("$IS gc --engine mock --keep current --json");
    expect_code(0);
    assert_int_equal(number_at("vault_bytes"), bytes);
    sh("$IS gc --max-bytes 1 --json");
    expect_code(0);
    assert_true(number_at("evicted_files") > 0);
    assert_int_equal(number_at("vault_bytes"), 0);
    sh("$IS gc");
    expect_in(last.out, "Removed 0 B");
    sh("$IS gc --keep nonsense");
    expect_code(1);
    sh("$IS gc --max-bytes lots");
    expect_code(2);
}

#define EXPORT "$IS export | sed -e 1d"

static void backup_and_restore(void **state)
{
    sh("$IS backup saved --json");
    expect_code(0);
    assert_true(number_at("vault_files") > 0);
    assert_int_equal(number_at("missing_files"), 0);
    sh("$IS restore --verify saved --json");
    expect_code(0);
    assert_int_equal(number_at("bad_files"), 0);
    assert_true(flag("verified_only"));
    sh("$IS restore saved --home again --json");
    expect_code(0);
    sh(EXPORT " > a; INFERSCALE_HOME=$PWD/again; export INFERSCALE_HOME; " EXPORT " > b; cmp a b && wc -l < a && $IS fsck --json");
    expect_code(0);
    expect_in(last.out, "3\n");
    sh("$IS restore saved --home again");
    expect_code(1);
    expect_in(last.err, "not empty");
    sh("$IS backup saved");
    expect_code(1);
    sh("$IS backup");
    expect_code(2);
    sh("$IS backup light --no-vault && $IS backup linked --link --json");
    expect_code(0);
    assert_int_equal(number_at("linked_files"), number_at("vault_files"));
    expect_in(last.out, "stays in this backup");
    sh("$IS backup --help");
    expect_in(last.out, "HOLDS WHAT IS FORGOTTEN");
    sh("rm saved/backup.txt; $IS restore saved --home third --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "manifest");
}

static void rebuild_makes_views_anew(void **state)
{
    sh("$IS rebuild embeddings --engine mock --json");
    expect_code(0);
    assert_int_equal(number_at("embedded"), 3);
    assert_int_equal(number_at("facts_encoded"), 0);
    sh("$IS rebuild kv index --engine mock --refine none --json");
    expect_code(0);
    assert_int_equal(number_at("facts_encoded"), 3);
    assert_int_equal(number_at("owners"), 1);
    sh("$IS rebuild everything --engine mock");
    expect_code(2);
    sh("$IS fsck --json");
    expect_code(0);
}

static void a_dry_run_shows_the_prompt(void **state)
{
    sh("$IS ask --engine mock --refine none --json 'What must Anna not eat? peanuts'");
    expect_code(0);
    json_int_t prompt = number_at("tokens_prompt"), injected = number_at("tokens_injected");
    sh("$IS ask --engine mock --refine none --dry-run --json 'What must Anna not eat? peanuts'");
    expect_code(0);
    assert_true(flag("dry_run"));
    assert_int_equal(number_at("tokens_prompt"), prompt);
    assert_int_equal(number_at("tokens_stored"), injected);
    assert_int_equal(count("facts"), 3);
    expect_in(text_at("prompt"), "What must Anna not eat? peanuts");
    expect_in(text_at("prompt"), "Anna is allergic to peanuts.");
    assert_string_equal(of(item("parts", 0), "role"), "header");
    sh("$IS ask --engine mock --dry-run 'What must Anna not eat? peanuts'");
    expect_code(0);
    expect_in(last.out, "PART");
    expect_in(last.out, "stored");
    expect_in(last.out, "Anna is allergic to peanuts.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(fsck_says_what_is_wrong, filled),
        cmocka_unit_test_setup(a_broken_database_is_a_problem_not_a_failure, filled),
        cmocka_unit_test_setup(gc_and_du, filled),
        cmocka_unit_test_setup(backup_and_restore, filled),
        cmocka_unit_test_setup(rebuild_makes_views_anew, filled),
        cmocka_unit_test_setup(a_dry_run_shows_the_prompt, filled),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
