/* test_cli_terminal.c - the program on a terminal: Ctrl-C, what is shown while a model loads, the server's log; and outputs that end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/program.h"
#include "support/terminal.h"

#define CTRL_C "\x03"
#define CTRL_D "\x04"

/* The answer tells the fact, a token for two letters: at 150 ms a step it takes a minute. */
#define FACT \
    "Anna is allergic to peanuts and she lives in Lisbon with two cats and a parrot that says good morning to the neighbours before sunrise " \
    "while the baker across the street carries his baskets to the market and the tram climbs the hill with its bell and its few sleepy " \
    "passengers and the river lies under the bridge like a long grey ribbon that somebody has forgotten there on the way to the ocean " \
    "many years ago when the houses were smaller and the ships had sails and nobody in the whole town had ever heard of a peanut butter " \
    "sandwich or of the doctor who would one day write down that Anna must not eat one"

static int with_a_fact(void **state)
{
    int rc = program_fresh(state);

    unsetenv("INFERSCALE_MOCK");
    sh("$IS remember --engine mock '" FACT "'");
    setenv("INFERSCALE_MOCK", "slow=150", 1);
    return rc || last.code;
}

static int without_mock(void **state)
{
    (void)state;
    unsetenv("INFERSCALE_MOCK");
    return 0;
}

/* ---- Ctrl-C ----------------------------------------------------------------------------------------------------------------- */

static void ctrl_c_ends_the_answer_not_the_chat(void **state)
{
    terminal t;

    (void)state;
    terminal_start(&t, "exec $IS chat --engine mock --max-tokens 400");
    for (int i = 0; i < 2; i++) { /* each time anew */
        terminal_sees(&t, "you>");
        terminal_type(&t, "What must Anna not eat?\n");
        terminal_sees(&t, "I recall"); /* it streams */
        terminal_type(&t, CTRL_C);
        terminal_sees(&t, "inferscale chat: the answer was cancelled");
        terminal_sees(&t, "Ctrl-C again leaves");
    }
    terminal_sees(&t, "you>");
    terminal_type(&t, "/stats\n");
    terminal_sees(&t, "Nothing was asked yet");
    terminal_sees(&t, "you>");
    terminal_type(&t, "/quit\n");
    assert_int_equal(terminal_ends(&t), 0);
    terminal_free(&t);
}

static void two_ctrl_c_in_a_row_end_the_chat(void **state)
{
    terminal t;

    (void)state;
    terminal_start(&t, "exec $IS chat --engine mock --max-tokens 400");
    terminal_sees(&t, "you>");
    terminal_type(&t, "half a line" CTRL_C);
    terminal_sees(&t, "Ctrl-C again leaves");
    terminal_sees(&t, "you>");
    terminal_type(&t, "/help\n"); /* not in a row */
    terminal_sees(&t, "/quit");
    terminal_sees(&t, "you>");
    terminal_type(&t, CTRL_C);
    terminal_sees(&t, "Ctrl-C again leaves");
    terminal_sees(&t, "you>");
    terminal_type(&t, CTRL_C);
    assert_int_equal(terminal_ends(&t), 130);
    terminal_free(&t);
    /* One during an answer, one at the prompt. */
    terminal_start(&t, "exec $IS chat --engine mock --max-tokens 400");
    terminal_sees(&t, "you>");
    terminal_type(&t, "What must Anna not eat?\n");
    terminal_sees(&t, "I recall");
    terminal_type(&t, CTRL_C);
    terminal_sees(&t, "Ctrl-C again leaves"); /* two that come at once are one signal */
    terminal_sees(&t, "you>");
    terminal_type(&t, CTRL_C);
    assert_int_equal(terminal_ends(&t), 130);
    terminal_free(&t);
    terminal_start(&t, "exec $IS chat --engine mock --max-tokens 400");
    terminal_sees(&t, "you>");
    terminal_type(&t, CTRL_D);
    assert_int_equal(terminal_ends(&t), 0);
    terminal_free(&t);
}

/* What is interrupted says so, and exits as what a signal has ended. gate: the embedder waits until it is open. */
static void interrupts(const char *command, const char *when, const char *says)
{
    terminal t;

    write_file("gate", "", 0);
    terminal_start(&t, "%s", command);
    terminal_sees(&t, when);
    terminal_type(&t, CTRL_C);
    terminal_sees(&t, "^C"); /* what the terminal shows when it has sent the signal */
    write_file("gate", "many texts may be embedded now", 30);
    if (says) terminal_sees(&t, says);
    if (terminal_ends(&t) != 130) fail_msg("%s does not exit with 130: %s", command, t.text);
    terminal_free(&t);
}

static void an_interrupt_exits_with_130(void **state)
{
    (void)state;
    interrupts("exec $IS ask --engine mock --max-tokens 400 'What must Anna not eat?'", "I recall", "the answer was cancelled");
    write_file("questions", "What must Anna not eat?\nAnd Ben?\n", 33);
    interrupts("exec $IS chat --engine mock --max-tokens 400 < questions", "I recall", "the answer was cancelled");
    setenv("INFERSCALE_MOCK", "embed-gate=gate", 1);
    interrupts("exec $IS encode --engine mock --again", "Encoding", "inferscale encode: ");
    interrupts("exec $IS remember --engine mock 'Another fact.'", "Encoding", "Not encoded yet");
    interrupts("exec $IS update 1 --engine mock 'Anna is allergic to nuts.'", "Encoding", "Not encoded yet");
    write_file("in.jsonl", "{\"text\": \"One.\"}\n", 17);
    interrupts("exec $IS import --engine mock in.jsonl", "Encoding", NULL);
    interrupts("exec $IS bench ttft --engine mock --runs 50", "measuring", NULL);
    interrupts("exec $IS forget --all", "Type yes", NULL); /* nothing catches it: the signal itself */
}

static void a_model_that_loads_is_shown_and_can_be_left(void **state)
{
    terminal t;

    (void)state;
    setenv("INFERSCALE_MOCK", "load=120000", 1);
    interrupts("exec $IS ask --engine mock --method lexical 'What must Anna not eat?'", "Loading the model mock ...", "inferscale ask: ");
    interrupts("exec $IS chat --engine mock --method lexical", "Loading the model mock ...", "inferscale chat: ");
    setenv("INFERSCALE_MOCK", "load=700", 1);
    terminal_start(&t, "exec $IS encode --engine mock --again");
    terminal_sees(&t, "Loading the model mock ...");
    terminal_sees(&t, "\r\033[K"); /* gone when it is loaded */
    terminal_sees(&t, "Encoded 1 fact in ");
    assert_int_equal(terminal_ends(&t), 0);
    assert_null(strstr(t.text + t.seen, "Loading"));
    terminal_free(&t);
    sh("$IS encode --engine mock --again --json");
    expect_code(0);
    assert_string_equal(last.err, ""); /* no terminal, and not long */
    assert_true(json_number_value(json_object_get(last.json, "load_ms")) >= 700);
    assert_true(number_at("facts_encoded") == 1);
}

/* Whether something waits is known without a model where the same ones were loaded before. */
static void nothing_is_loaded_where_nothing_waits(void **state)
{
    static const char load[] = "load_ms";

    (void)state;
    sh("mkdir cache");
    unsetenv("INFERSCALE_MOCK");
    setenv("INFERSCALE_CACHE", "cache", 1);
    sh("$IS encode --engine mock --json"); /* not known yet here */
    assert_true(json_number_value(json_object_get(last.json, load)) > 0);
    sh("$IS encode --engine mock --json");
    assert_true(json_number_value(json_object_get(last.json, load)) == 0);
    assert_int_equal(number_at("facts_encoded"), 0);
    sh("$IS encode --engine mock");
    assert_string_equal(last.out, "Nothing waits to be encoded.\n");
    sh("$IS encode --engine mock --json --stage refine"); /* that waits */
    assert_true(number_at("facts_encoded") > 0);
    sh("$IS encode --engine mock --json --stage all");
    assert_true(json_number_value(json_object_get(last.json, load)) == 0);
    sh("$IS remember --later 'Ben plays the cello.' && $IS encode --engine mock --json");
    assert_int_equal(number_at("facts_encoded"), 1);
    /* Another model, other settings, a changed file: nothing is known of them. */
    sh("$IS encode --engine mock --json --model mock:id=7");
    assert_int_equal(number_at("facts_encoded"), 2);
    sh("$IS encode --engine mock --json --system 'Another header.'");
    assert_int_equal(number_at("facts_encoded"), 2);
    sh("$IS encode --engine mock --json --policy header");
    assert_int_equal(number_at("facts_encoded"), 1); /* the second stage has made the other's */
    sh("$IS encode --engine mock --json");
    assert_true(json_number_value(json_object_get(last.json, load)) == 0);
    sh("sed -i 's/^\\([0-9a-f]* \\)[0-9a-f]* /\\1'$(printf 'ab%%.0s' $(seq 32))' /' cache/tuning/known && $IS encode --engine mock --json");
    assert_true(json_number_value(json_object_get(last.json, load)) > 0); /* of that model nothing is stored */
    sh("sed -i 's/[0-9a-f]* $/'$(printf 'cd%%.0s' $(seq 32))' /' cache/tuning/known && $IS encode --engine mock --json");
    assert_true(json_number_value(json_object_get(last.json, load)) > 0); /* other files than then */
    sh("printf 'x' > cache/tuning/known && $IS encode --engine mock --json");
    assert_true(json_number_value(json_object_get(last.json, load)) > 0);
    sh("$IS forget --all --yes && rm -r cache && $IS encode --engine mock --json"); /* an empty memory needs no record */
    assert_true(json_number_value(json_object_get(last.json, load)) == 0);
    unsetenv("INFERSCALE_CACHE");
}

/* A call that names another codec than the store's changes its rows: it says so, once. One that names none changes nothing. */
static void a_change_of_codec_is_told(void **state)
{
    (void)state;
    sh("$IS remember 'Nora owns a boat.' --engine mock --codec int8 --user nora");
    sh("$IS remember 'Nora owns a bike.' --engine mock --codec f32 --user nora --later");
    expect_in(last.err, "rows change their codec: ");
    sh("$IS encode --engine mock --user nora");
    assert_string_equal(last.err, "");
    sh("$IS encode --engine mock --codec f16 --user nora");
    expect_in(last.err, "rows change their codec: ");
    sh("$IS encode --engine mock --user nora");
    assert_string_equal(last.err, "");
    sh("$IS forget --all --yes --user nora");
}

/* ---- Outputs that end --------------------------------------------------------------------------------------------------------- */

static const char *const prints[] = {
    "help", "--help", "ask --help", "--version", "man", "completion bash", "ls", "ls --json", "show 1", "history 1", "export", "recall peanuts --method lexical",
    "ask --engine mock 'What?'", "ask --engine mock --json 'What?'", "ask --engine mock --dry-run 'What?'", "du", "fsck", "encode --status --engine mock",
    "config check", "remember --later 'One more.'", "forget 99", "gc --dry-run --engine mock",
};

static void a_closed_pipe_ends_in_silence(void **state)
{
    (void)state;
    unsetenv("INFERSCALE_MOCK");
    for (size_t i = 0; i < sizeof prints / sizeof *prints; i++) {
        /* The reader is gone before anything is written. */
        sh("{ sleep 0.2; $IS %s; echo $? > code; } | true; while [ ! -s code ]; do sleep 0.02; done; cat code; rm code", prints[i]);
        if (strcmp(last.out, "141\n") != 0) fail_msg("%s exits with %s", prints[i], last.out);
        if (last.err[0] && !strstr(prints[i], "forget")) fail_msg("%s says: %s", prints[i], last.err);
    }
    sh("printf '{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}\\n' | { sleep 0.2; $IS mcp --engine mock; echo $? > code; } | true;"
       " while [ ! -s code ]; do sleep 0.02; done; cat code; rm code");
    assert_string_equal(last.out, "141\n");
    assert_string_equal(last.err, "");
    sh("printf 'What?\\nAnd?\\n' | { sleep 0.2; $IS chat --engine mock; echo $? > code; } | true; while [ ! -s code ]; do sleep 0.02; done; cat code");
    assert_string_equal(last.out, "141\n");
    assert_string_equal(last.err, "");
    sh("$IS help | head -1");
    expect_code(0);
    assert_string_equal(last.err, "");
}

static void a_full_disk_is_told(void **state)
{
    (void)state;
    unsetenv("INFERSCALE_MOCK");
    for (size_t i = 0; i < sizeof prints / sizeof *prints; i++) {
        sh("$IS %s > /dev/full", prints[i]);
        if (last.code != 1) fail_msg("%s exits with %d", prints[i], last.code);
        if (strstr(prints[i], "forget")) continue; /* it fails by itself */
        if (!strstr(last.err, "full") && !strstr(last.err, "No space")) fail_msg("%s says only: %s", prints[i], last.err);
        if (strchr(last.err, '\n') != strrchr(last.err, '\n')) fail_msg("%s says it twice: %s", prints[i], last.err);
    }
}

/* ---- The server's log --------------------------------------------------------------------------------------------------------- */

static void a_server_on_a_terminal_speaks_to_a_person(void **state)
{
    terminal t;
    const char *said;

    (void)state;
    unsetenv("INFERSCALE_MOCK");
    terminal_start(&t, "exec $IS serve --engine mock --port 0");
    terminal_sees(&t, "Serving at ");
    terminal_sees(&t, "the page");
    terminal_sees(&t, "Ctrl-C ends it");
    said = strstr(t.text, "Serving at ");
    assert_non_null(strstr(said, "http://127.0.0.1:"));
    terminal_sees(&t, "\r\n\r\n");
    said = strstr(said, "Ctrl-C ends it.") + 15;
    assert_int_equal(strspn(said, "\r\n"), strlen(said)); /* the last line */
    assert_null(strstr(t.text, "{\"time\""));
    terminal_type(&t, CTRL_C);
    assert_int_equal(terminal_ends(&t), 0); /* drained, as asked */
    assert_null(strstr(t.text, "{\"time\""));
    terminal_free(&t);
    terminal_start(&t, "exec $IS serve --engine mock --port 0 2> log");
    terminal_sees(&t, "Ctrl-C ends it");
    terminal_type(&t, CTRL_C);
    assert_int_equal(terminal_ends(&t), 0);
    terminal_free(&t);
    sh("head -1 log");
    assert_non_null(last.json); /* a file gets JSON */
    terminal_start(&t, "exec $IS serve --engine mock --port 0 --log json");
    terminal_sees(&t, "{\"");
    terminal_sees(&t, "Ctrl-C ends it");
    terminal_type(&t, CTRL_C);
    assert_int_equal(terminal_ends(&t), 0);
    terminal_free(&t);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, with_a_fact, without_mock)
    const struct CMUnitTest tests[] = {
        CASE(ctrl_c_ends_the_answer_not_the_chat),
        CASE(two_ctrl_c_in_a_row_end_the_chat),
        CASE(an_interrupt_exits_with_130),
        CASE(a_model_that_loads_is_shown_and_can_be_left),
        CASE(nothing_is_loaded_where_nothing_waits),
        cmocka_unit_test(a_change_of_codec_is_told),
        CASE(a_closed_pipe_ends_in_silence),
        CASE(a_full_disk_is_told),
        CASE(a_server_on_a_terminal_speaks_to_a_person),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
