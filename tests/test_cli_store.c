/* test_cli_store.c - the program with the mock engine: import and export, and what can go wrong with a store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/program.h"

/* ---- Import and export -----------------------------------------------------------------------------------------------------
 */

/* Exports without the head line, ids and write times: what must be the same after a round trip. */
#define STRIP                                                                                                                  \
    "sed -e 1d -e "                                                                                                            \
    "'s/\"id\":[0-9]*,//;s/\"source_turn\":[0-9]*/\"source_turn\":N/;s/\"write_time\":\"[^\"]*\",//;s/\"version\":[0-9]*,//'"

static void round_trip(void **state)
{
    static const char lines[] =
        "{\"type\":\"inferscale\",\"format\":1}\n"
        "{\"type\":\"turn\",\"id\":900,\"text\":\"I cannot eat nuts "
        "\xf0\x9f\xa5\x9c\",\"conversation\":\"c1\",\"speaker\":\"Anna\",\"time\":\"2024-05-01T10:00:00Z\","
        "\"external_id\":\"m-1\"}\n"
        "{\"type\":\"turn\",\"id\":901,\"text\":\"Noted.\",\"conversation\":\"c1\",\"speaker\":\"Bot\",\"time\":\"2024-05-"
        "01T10:00:05Z\"}\n"
        "{\"text\":\"Anna is allergic to "
        "nuts.\",\"event_time\":\"2024-05-01T10:00:00Z\",\"source_turn\":900,\"metadata\":{\"a\":{\"b\":[1,\"\xc3\xa9\"]}}}\n"
        "\n"
        "{\"text\":\"A \\\"quoted\\\" \\\\ fact\\nwith two "
        "lines.\",\"event_time\":1714521600,\"valid_from\":\"2024-01-01\",\"valid_to\":\"2024-12-31\","
        "\"expires\":\"2090-01-01\",\"agent\":\"bot\"}\n";
    write_file("in.jsonl", lines, sizeof lines - 1);
    sh("$IS import --later --json --user anna in.jsonl");
    expect_code(0);
    assert_int_equal(number_at("added"), 2);
    assert_int_equal(number_at("turns"), 2);
    sh("$IS export --user anna out1.jsonl --json");
    expect_code(0);
    assert_int_equal(number_at("facts"), 2);
    assert_int_equal(number_at("turns"), 2);
    sh("stat -c %%a out1.jsonl");
    assert_string_equal(last.out, "600\n");
    sh("INFERSCALE_HOME=$PWD/home2 $IS import --later out1.jsonl && INFERSCALE_HOME=$PWD/home2 $IS export --user anna > "
       "out2.jsonl");
    expect_code(0);
    sh(STRIP " out1.jsonl > a; " STRIP " out2.jsonl > b; cmp a b && cat a");
    expect_code(0);
    expect_in(last.out, "\"source_turn\":N");
    expect_in(last.out, "\"agent\":\"bot\"");
    expect_in(last.out, "\"external_id\":\"m-1\"");
    sh("INFERSCALE_HOME=$PWD/home2 $IS ls --json --user anna");
    json_t *turn = item("items", 0), *fact = NULL;
    for (size_t i = 0; i < count("items"); i++)
        if (strcmp(of(item("items", i), "text"), "Anna is allergic to nuts.") == 0) fact = item("items", i);
    assert_non_null(fact);
    assert_string_equal(of(turn, "kind"), "turn");
    assert_int_equal(json_integer_value(json_object_get(fact, "source_turn")), json_integer_value(json_object_get(turn, "id")));
    sh("$IS import --later --json --user anna in.jsonl"); /* facts that are there stay single */
    assert_int_equal(number_at("added"), 0);
    assert_int_equal(number_at("known"), 2);
    sh("$IS import --later --json --user ben out1.jsonl && $IS ls --user ben --json"); /* the command line's owner goes first */
    assert_int_equal(count("items"), 4);
}

static void import_says_what_was_stored(void **state)
{
    char *big = malloc(1 << 21);
    size_t n = 0;
    for (int i = 0; i < 600; i++) n += (size_t)sprintf(big + n, "{\"text\":\"Fact number %d.\"}\n", i);
    n += (size_t)sprintf(big + n, "{\"text\":\"bad\",\"tags\":1}\n{\"text\":\"after\"}\n");
    write_file("bad.jsonl", big, n);
    sh("$IS import --later --json bad.jsonl");
    expect_code(1);
    expect_error("E_PARSE", "line 601");
    assert_int_equal(number_at("line"), 601);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(last.json, "stored"), "facts")), 600);
    expect_in(last.err, "600 facts");
    sh("$IS ls --json");
    assert_int_equal(count("items"), 600);

    n = (size_t)sprintf(big, "{\"text\":\"good one\"}\n{\"text\":\"");
    memset(big + n, 'a', 1 << 20);
    n += 1 << 20;
    n += (size_t)sprintf(big + n, "\"}\n{\"text\":\"after\"}\n");
    write_file("mega.jsonl", big, n); /* a fact of a megabyte: the library's sentence, with the line */
    sh("$IS import --later --json --user mega mega.jsonl");
    expect_code(1);
    assert_int_equal(number_at("line"), 2);
    expect_error("E_INVALID", "line 2: ");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(last.json, "stored"), "facts")), 1);
    free(big);

    write_file("order.jsonl", "{\"text\":\"a\",\"source_turn\":5}\n", 29);
    sh("$IS import --later --json order.jsonl");
    expect_code(1);
    expect_error("E_PARSE", "source_turn 5 is not the id of a turn in an earlier line");
    sh("$IS import --later --json missing.jsonl");
    expect_code(1);
    expect_error("FAILED", "missing.jsonl cannot be read");
    sh("$IS import --later --json .");
    expect_code(1);
    sh("$IS import --later --json - < /dev/null");
    expect_code(0);
    assert_int_equal(number_at("added"), 0);
    sh("printf '{\"text\":\"piped\"}' | $IS remember --later --json --jsonl -");
    expect_code(0);
    assert_string_equal(of(item("facts", 0), "event"), "ADD");
}

static void export_fails_whole(void **state)
{
    sh("$IS remember --later 'A fact.' && echo old > keep.jsonl && $IS export missing/x.jsonl --json x.jsonl");
    expect_code(2);
    sh("$IS export missing/x.jsonl --json");
    expect_code(1);
    expect_error("FAILED", "missing/x.jsonl cannot be written");
    sh("$IS export > /dev/full");
    expect_code(1);
    sh("$IS export keep.jsonl --json");
    expect_code(1);
    expect_error("FAILED", "--force");
    sh("cat keep.jsonl");
    assert_string_equal(last.out, "old\n");
    sh("$IS export --force keep.jsonl && head -c 8 keep.jsonl && ls");
    expect_in(last.out, "{\"type\"");
    assert_null(strstr(last.out, ".tmp."));
}

/* ---- What can go wrong ------------------------------------------------------------------------------------------------------
 */

/* What only reads makes no store: a home with a typo in its name is told. */
static void a_home_that_is_not_there_is_not_made(void **state)
{
    static const char *const verbs[] = { "ls", "show 1", "history 1", "recall x", "export", "du", "fsck", "backup b" };

    (void)state;
    sh("$IS remember --later 'Anna owns a boat.'");
    expect_code(0);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        sh("$IS %s --home typo --json", verbs[i]);
        expect_code(1);
        expect_error("E_NOTFOUND", "there is no store in typo; ");
        sh("ls -d typo");
        if (last.code == 0) fail_msg("%s made a store", verbs[i]);
    }
    sh("$IS ls");
    expect_code(0);
}

static void read_only_homes(void **state)
{
    sh("$IS remember --engine mock 'Anna is allergic to peanuts.'");
    sh("$IS remember --engine mock --read-only --json 'Anna moved.'");
    expect_code(1);
    expect_error("E_READONLY", "");
    sh("$IS ls --read-only --json");
    expect_code(0);
    assert_int_equal(count("items"), 1);
    sh("$IS ask --engine mock --read-only --json 'What about peanuts?'");
    expect_code(0);
    expect_in(text_at("answer"), "peanuts");
    sh("$IS forget 1 --read-only --json");
    expect_code(1);
    sh("$IS ls --json --home /dev/null/store");
    expect_code(1);
    assert_non_null(json_object_get(last.json, "error"));
    sh("$IS ls --json --read-only --home $PWD/nowhere && false || ls $PWD/nowhere");
    assert_int_not_equal(last.code, 0); /* reading does not create */
}

/* The kernel's own answer to a file that grows too big is a signal that ends the process. Whatever the limit, and whoever of the store's
 * files or our own meets it first: no verb is killed, what fails says so, and the store is sound with all that was acknowledged. */
static void a_limit_of_file_sizes_is_a_full_disk(void **state)
{
    static const char *const verbs[] = { "remember --engine mock \"$BIG\"", "remember --later --json \"$BIG 2\"", "encode --engine mock --again",
                                         "backup copy%u", "export --force out%u.jsonl", "forget 1 --prove" };
    unsigned failed = 0;

    sh("$IS remember --engine mock 'Anna is allergic to peanuts.' && $IS remember --engine mock 'Ben drinks tea.'");
    expect_code(0);
    for (unsigned blocks = 0; blocks <= 512; blocks = blocks ? 8 * blocks : 1)
        for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
            char verb[200];

            snprintf(verb, sizeof verb, verbs[v], blocks);
            sh("BIG=$(printf '%%04000d' %u%zu); ulimit -f %u; exec $IS %s", blocks, v, blocks, verb);
            if (last.code != 0 && last.code != 1) fail_msg("%s with ulimit -f %u: exit code %d\n%s", verb, blocks, last.code, last.err);
            failed += last.code;
        }
    assert_int_not_equal(failed, 0);
    sh("$IS fsck && $IS ls --json");
    expect_code(0);
    sh("$IS ask --engine mock --json 'What does Ben drink?'");
    expect_code(0);
    expect_in(text_at("answer"), "tea");
}

static void stores_without_a_model(void **state)
{
    sh("$IS remember --model $PWD/none.gguf --json 'Anna is allergic to peanuts.'");
    expect_code(0); /* the text is safe; what could not follow is said */
    assert_string_equal(of(item("facts", 0), "event"), "ADD");
    assert_non_null(of(json_object_get(last.json, "encoded"), "error"));
    expect_in(last.err, "Not encoded yet");
    sh("$IS ask --model $PWD/none.gguf --json 'What about peanuts?'");
    expect_code(1);
    assert_non_null(json_object_get(last.json, "error"));
    sh("$IS ls --engine nothing --json --kv");
    expect_code(1);
    expect_error("E_NOTFOUND", "nothing");
    sh("$IS doctor --engine nothing --json");
    expect_code(1);
    assert_false(json_is_true(json_object_get(last.json, "ok")));
}

static void falls_back_to_text(void **state)
{
    sh("$IS remember --engine mock --model mock:noinject --json 'Anna is allergic to peanuts.'");
    expect_code(0);
    sh("$IS ask --engine mock --model mock:noinject --json 'What about peanuts?'");
    expect_code(0);
    assert_string_equal(text_at("mode"), "text");
    assert_true(strlen(text_at("fallback")) > 0);
    expect_in(text_at("answer"), "peanuts");
    sh("$IS ask --engine mock --model mock:noinject 'What about peanuts?'");
    expect_in(last.err, "Note: ");
    sh("$IS doctor --engine mock --model mock:noinject --json");
    expect_code(0);
    sh("$IS doctor --engine mock");
    expect_code(0);
    expect_in(last.out, "geometry");
}

/* Waits (10 s at most) until a segment is stored, then presses Ctrl-C for process $pid and takes its exit code. */
#define INTERRUPT_AT_WORK                                                                                                      \
    "pid=$!; for i in $(seq 200); do [ -n \"$(find $INFERSCALE_HOME/vault -type f | head -n 1)\" ] && break;"                  \
    " sleep 0.05; done; kill -INT $pid; wait $pid"

static void interrupted_work_is_kept(void **state)
{
    size_t encoded;
    sh("for i in $(seq 40); do echo \"Fact number $i.\"; done > facts; $IS remember --later - < facts");
    expect_code(0);
    sh("$IS encode --engine mock --model mock:slow=50 --policy header --json & " INTERRUPT_AT_WORK);
    expect_code(130);
    expect_error("E_CANCELLED", "");
    sh("$IS encode --engine mock --policy header --json");
    expect_code(0);
    encoded = (size_t)number_at("facts_encoded");
    if (encoded == 0 || encoded == 40) fail_msg("%zu facts were left after the interruption, of 40", encoded);
    sh("export INFERSCALE_HOME=$PWD/second; $IS remember --engine mock --model mock:slow=100 --json One Two Three Four Five Six"
       " Seven Eight & " INTERRUPT_AT_WORK);
    expect_code(130);
    expect_in(last.err, "Stored. Not encoded yet");
    assert_int_equal(count("facts"), 8);
    sh("INFERSCALE_HOME=$PWD/second $IS ls --json");
    assert_int_equal(count("items"), 8);
}

/* One Ctrl-C ends an answer, and what is said about it begins a line of its own; so it ends the wait for a server that is not there. */
static void interrupted_answers(void **state)
{
    sh("$IS ask --engine mock --model mock:slow=100 Something > told 2> why & pid=$!; for i in $(seq 200); do [ -s told ] && break; sleep 0.05;"
       " done; kill -INT $pid; wait $pid; code=$?; cat told why; exit $code");
    expect_code(130);
    expect_in(last.out, "\ninferscale ask: the answer was cancelled");
    sh("$IS ask --engine vllm --upstream http://127.0.0.1:1 Something 2> why & pid=$!; for i in $(seq 200); do [ -s why ] && break; sleep 0.05;"
       " done; kill -INT $pid; wait $pid; code=$?; cat why; exit $code");
    expect_code(130);
    expect_in(last.out, "waiting for vLLM");
    expect_in(last.out, "called off");
}

static void corrupt_store(void **state)
{
    sh("$IS remember --later 'A fact.' && for f in $INFERSCALE_HOME/*.sqlite; do printf 'not a database at all, but long "
       "enough' > $f; done;"
       " rm -f $INFERSCALE_HOME/*-wal $INFERSCALE_HOME/*-shm; $IS ls --json");
    expect_code(1);
    assert_non_null(json_object_get(last.json, "error"));
    sh("$IS doctor --engine mock --json");
    expect_code(1);
}

static void texts_cannot_upset_the_terminal(void **state)
{
    sh("$IS remember --later \"$(printf 'Red \\033[31m alert\\007 and\\nnew line')\" && $IS ls && $IS show 1");
    expect_code(0);
    assert_null(strchr(last.out, '\033'));
    assert_null(strchr(last.out, '\007'));
    expect_in(last.out, "and new line");
    sh("$IS ls --json");
    expect_in(of(item("items", 0), "text"), "\033[31m"); /* programs get it as it is */
    sh("NO_COLOR=1 $IS ls");
    assert_null(strchr(last.out, '\033'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(round_trip, program_fresh),
        cmocka_unit_test_setup(import_says_what_was_stored, program_fresh),
        cmocka_unit_test_setup(export_fails_whole, program_fresh),
        cmocka_unit_test_setup(a_home_that_is_not_there_is_not_made, program_fresh),
        cmocka_unit_test_setup(read_only_homes, program_fresh),
        cmocka_unit_test_setup(a_limit_of_file_sizes_is_a_full_disk, program_fresh),
        cmocka_unit_test_setup(stores_without_a_model, program_fresh),
        cmocka_unit_test_setup(falls_back_to_text, program_fresh),
        cmocka_unit_test_setup(interrupted_work_is_kept, program_fresh),
        cmocka_unit_test_setup(interrupted_answers, program_fresh),
        cmocka_unit_test_setup(corrupt_store, program_fresh),
        cmocka_unit_test_setup(texts_cannot_upset_the_terminal, program_fresh),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
