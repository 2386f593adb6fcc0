/* test_cli.c - the program with the mock engine: usage, each verb, the manual, completions, the demo. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/program.h"

/* ---- Usage --------------------------------------------------------------------------------------------------------------- */

static void explains_itself(void **state)
{
    static const char *const verbs[] = { "remember",   "recall",        "ask",         "chat",          "ls",
                                         "show",       "forget",        "encode",      "import",        "export",
                                         "demo",       "doctor",        "completion",  "man",           "help",
                                         "bench ttft", "bench compose", "eval recall", "eval fidelity", "import locomo",
                                         "eval accuracy" };
    sh("$IS");
    expect_code(2);
    assert_string_equal(last.out, "");
    sh("$IS --help");
    expect_code(0);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) expect_in(last.out, verbs[i]);
    expect_in(last.out, "INFERSCALE_HOME");
    sh("$IS --version");
    expect_code(0);
    expect_in(last.out, "inferscale 0.");
    sh("$IS --version --json");
    assert_non_null(text_at("version"));
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        char *by_option;
        sh("$IS %s --help", verbs[i]);
        expect_code(0);
        expect_in(last.out, "Usage: inferscale ");
        expect_in(last.out, verbs[i]);
        by_option = strdup(last.out);
        sh("$IS help %s", verbs[i]);
        expect_code(0);
        assert_string_equal(last.out, by_option);
        free(by_option);
        /* At 80 columns nothing is wrapped by the terminal but examples. */
        for (const char *line = last.out; *line;) {
            size_t n = strcspn(line, "\n");
            if (n > 80 && strncmp(line + strspn(line, " "), "inferscale", 10) != 0 && strncmp(line, "Usage", 5) != 0)
                fail_msg("%s --help has a line of %zu columns: %.*s", verbs[i], n, (int)n, line);
            line += n + (line[n] == '\n');
        }
    }
}

static void guesses_what_was_meant(void **state)
{
    sh("$IS remmeber x");
    expect_code(2);
    expect_in(last.err, "did you mean \"remember\"?");
    sh("$IS bench tttf");
    expect_code(2);
    expect_in(last.err, "did you mean \"bench ttft\"?");
    sh("$IS bench");
    expect_code(2);
    expect_in(last.err, "needs a second word");
    sh("$IS ls --limti 3");
    expect_code(2);
    expect_in(last.err, "did you mean --limit?");
    expect_in(last.err, "inferscale ls --help");
    sh("$IS remember x --date 2024-05-01");
    expect_code(2);
    expect_in(last.err, "did you mean --time?");
    sh("$IS recall x --method lexicl");
    expect_code(2);
    expect_in(last.err, "did you mean lexical?");
    sh("$IS help doctr");
    expect_code(2);
    expect_in(last.err, "did you mean \"doctor\"?");
    sh("$IS --user anna ls");
    expect_code(2);
    expect_in(last.err, "options come after the command");
    sh("$IS frobnicate --json");
    expect_code(2);
    expect_error("USAGE", "no command");
    sh("$IS ls --limit --json"); /* --json is the value here, so the error is a wrong value */
    expect_code(2);
    expect_in(last.err, "--limit must be a whole number");
}

static void refuses_wrong_usage(void **state)
{
    static const char *const commands[] = {
        "recall",
        "recall a b",
        "recall q -k 0",
        "recall q -k 1001",
        "recall q --from yesterday",
        "recall q --metadata '[1]'",
        "recall q --from 2024-02-01 --to 2024-01-01",
        "ask",
        "ask q --mode maybe",
        "ask q --temperature -1",
        "ask q --top-p 2",
        "ask q --max-tokens 0",
        "ask q --repair x",
        "show",
        "show x",
        "show 0",
        "show -1",
        "forget",
        "forget 1 --all",
        "forget --all",
        "forget one",
        "remember x --turns --metadata '{}'",
        "remember x --speaker Anna",
        "remember x --time never",
        "remember --jsonl f x",
        "remember x --ram 3Q",
        "import",
        "import a b",
        "export a b",
        "ls x",
        "chat x",
        "encode x",
        "encode --stage second",
        "doctor x",
        "demo x",
        "demo --costs 0",
        "demo --costs ,",
        "completion",
        "completion tcsh",
        "man x",
        "help a b c",
        "ls --json=1",
        "ls --nothing",
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        sh("$IS %s </dev/null", commands[i]);
        if (last.code != 2) fail_msg("%s: exit code %d\n%s", commands[i], last.code, last.err);
        if (!strstr(commands[i], "--json")) assert_string_equal(last.out, "");
        expect_in(last.err, "inferscale ");
    }
    sh("$IS recall q -k 0 --json");
    expect_code(2);
    expect_error("USAGE", "-k must be a whole number from 1 to 1000");
}

/* ---- Verbs -----------------------------------------------------------------------------------------------------------------
 */

static void whole_flow(void **state)
{
    json_int_t id;
    sh("$IS remember --engine mock --json --time 2024-05-01 'Anna is allergic to peanuts.' 'Anna moved to Lyon.'");
    expect_code(0);
    assert_int_equal(count("facts"), 2);
    assert_string_equal(of(item("facts", 0), "event"), "ADD");
    id = json_integer_value(json_object_get(item("facts", 0), "id"));
    assert_true(id > 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(last.json, "encoded"), "facts")), 2);
    sh("$IS remember --engine mock --json 'Anna is allergic to peanuts.'");
    expect_code(0);
    assert_string_equal(of(item("facts", 0), "event"), "NONE");
    assert_int_equal(json_integer_value(json_object_get(item("facts", 0), "id")), id);

    sh("$IS recall --engine mock --json 'What must Anna not eat? peanuts'");
    expect_code(0);
    assert_int_equal(count("items"), 2);
    assert_string_equal(of(item("items", 0), "text"), "Anna is allergic to peanuts.");
    assert_string_equal(of(item("items", 0), "event_time"), "2024-05-01T00:00:00Z");
    assert_true(json_is_number(json_object_get(item("items", 0), "score")));

    sh("$IS ask --engine mock --json 'What must Anna not eat? peanuts'");
    expect_code(0);
    expect_in(text_at("answer"), "allergic to peanuts");
    assert_string_equal(text_at("mode"), "kv");
    assert_string_equal(text_at("fallback"), "");
    assert_int_equal(count("facts"), 2);
    assert_string_equal(of(item("facts", 1), "source"), "stored");
    assert_true(number_at("tokens_injected") > 0);
    assert_true(number_at("tokens_computed") > 0);
    assert_true(json_real_value(json_object_get(last.json, "ttft_ms")) > 0);
    assert_string_equal(text_at("weights"), "none");

    sh("$IS ask --engine mock --json --mode text 'What must Anna not eat? peanuts'");
    expect_code(0);
    assert_string_equal(text_at("mode"), "text");
    assert_int_equal(number_at("tokens_injected"), 0);
    sh("$IS ask --engine mock --json --repair 1 'What must Anna not eat? peanuts'");
    assert_string_equal(of(item("facts", 1), "source"), "computed");
    assert_string_equal(of(item("facts", 0), "source"), "stored");
    sh("$IS ask --engine mock --json --mode none 'What must Anna not eat?'");
    assert_string_equal(text_at("mode"), "none");
    assert_int_equal(count("facts"), 0);

    sh("$IS ask --engine mock --stats 'What must Anna not eat? peanuts'");
    expect_code(0);
    expect_in(last.out, "allergic to peanuts");
    expect_in(last.err, "injected");
    expect_in(last.err, "TTFT");

    sh("$IS forget --json %lld 999999", (long long)id);
    expect_code(1);
    assert_int_equal(number_at("deleted"), 1);
    assert_int_equal(number_at("unknown"), 1);
    expect_error("E_NOTFOUND", "no item 999999");
    sh("$IS ls --json");
    assert_int_equal(count("items"), 1);
    sh("$IS show --json %lld", (long long)id);
    expect_code(1);
    expect_error("E_NOTFOUND", "");
    sh("$IS ask --engine mock --json 'What must Anna not eat? peanuts'");
    assert_null(strstr(text_at("answer"), "allergic"));
    sh("grep -rl peanuts $INFERSCALE_HOME");
    assert_string_equal(last.out, "");
}

static void remembers_from_everywhere(void **state)
{
    sh("printf 'One is a fact.\\n\\nTwo is a fact.\\r\\n' | $IS remember --later --json");
    expect_code(0);
    assert_int_equal(count("facts"), 2);
    assert_null(json_object_get(last.json, "encoded"));
    sh("printf 'Three is a fact.\\n' | $IS remember --later --json - 'Four is a fact.'");
    assert_int_equal(count("facts"), 2);
    sh("$IS remember --later --json -- '--five is a fact'");
    assert_int_equal(count("facts"), 1);
    sh("$IS remember --later --turns --conversation c1 --speaker Anna --json 'Hello there' 'I like tea'");
    expect_code(0);
    assert_int_equal(count("turns"), 2);
    sh("$IS ls --json");
    assert_int_equal(count("items"), 7);
    sh("$IS ls --json --kinds turns");
    assert_int_equal(count("items"), 2);
    assert_string_equal(of(item("items", 0), "speaker"), "Anna");
    assert_string_equal(of(item("items", 0), "conversation"), "c1");
    sh("$IS ls --json --kinds facts --limit 2 --after 1");
    assert_int_equal(count("items"), 2);
    sh("$IS remember --later --json --metadata '{\"topic\":\"food\"}' --expires 2090-01-01 'Six is a fact.'");
    expect_code(0);
    sh("$IS show --json %lld", (long long)json_integer_value(json_object_get(item("facts", 0), "id")));
    assert_string_equal(of(json_object_get(item("items", 0), "metadata"), "topic"), "food");
    assert_string_equal(of(item("items", 0), "expires"), "2090-01-01T00:00:00Z");
    sh("$IS recall --method lexical --metadata '{\"topic\":\"food\"}' --json fact");
    assert_int_equal(count("items"), 1);
    sh("printf '\\n \\n' | $IS remember --later --json");
    expect_code(1);
    expect_error("E_INVALID", "no text");
    sh("printf 'a\\377b\\n' | $IS remember --later --json");
    expect_code(1);
    expect_error("E_PARSE", "line 1: byte 2 is not valid UTF-8");
    sh("$IS encode --engine mock --json");
    expect_code(0);
    assert_int_equal(number_at("facts_encoded"), 6);
    sh("$IS encode --engine mock --json");
    assert_int_equal(number_at("facts_encoded"), 0);
    sh("$IS encode --engine mock --json --again");
    assert_int_equal(number_at("facts_encoded"), 6);
    sh("$IS encode --engine mock --json --stage refine --refine near:2"); /* and a copy behind the bare header */
    assert_int_equal(number_at("facts_encoded"), 6);
    assert_int_equal(number_at("sets_encoded"), 11); /* one of the six has it from the first stage: page:16/6 */
    sh("$IS encode --engine mock --json --stage all --refine near:2");
    assert_int_equal(number_at("facts_encoded"), 0);
}

static void scopes_stay_apart(void **state)
{
    sh("$IS remember --later --user anna 'Anna likes tea.' && $IS remember --later --user ben 'Ben likes coffee.' &&"
       " $IS remember --later --tenant t2 --user anna 'Another Anna.' && $IS remember --later --user anna --agent bot 'For the "
       "bot.'");
    expect_code(0);
    sh("$IS ls --json --user anna");
    assert_int_equal(count("items"), 2);
    sh("$IS ls --json --user anna --agent bot");
    assert_int_equal(count("items"), 1);
    sh("$IS recall --json --method lexical --user ben likes");
    assert_int_equal(count("items"), 1);
    expect_in(of(item("items", 0), "text"), "Ben");
    sh("$IS ls --json");
    assert_int_equal(count("items"), 0);
    sh("$IS forget --all --yes --user anna --agent bot --json");
    assert_int_equal(number_at("deleted"), 1);
    sh("$IS forget --all --yes --user anna --json");
    assert_int_equal(number_at("deleted"), 1);
    sh("$IS ls --json --tenant t2 --user anna");
    assert_int_equal(count("items"), 1);
    sh("$IS ls --json --user ben");
    assert_int_equal(count("items"), 1);
}

static void chats(void **state)
{
    sh("$IS remember --engine mock 'Anna is allergic to peanuts.'");
    sh("printf 'What about peanuts?\\n/facts\\n/stats\\n/nothing\\n/remember Anna moved to Lyon.\\nWhere did Anna "
       "move?\\n/quit\\nnot read\\n' |"
       " $IS chat --engine mock");
    expect_code(1); /* piped, an unknown command is a failure */
    expect_in(last.err, "There is no /nothing");
    expect_in(last.err, "Remembered as");
    expect_in(last.out, "I recall");
    expect_in(last.out, "TTFT");
    assert_null(strstr(last.out, "not read"));
    json_int_t first;
    sh("printf 'What about peanuts?\\n' | $IS chat --engine mock --json");
    expect_code(0);
    first = number_at("tokens_computed");
    sh("printf 'What about peanuts?\\nWhat about peanuts?\\n' | $IS chat --engine mock --json");
    expect_code(0);
    assert_true(first > 0 && number_at("tokens_computed") < first); /* the second answer found the header computed */
    sh("mkfifo in; $IS chat --engine mock --json < in > answers & exec 3> in; echo 'What about peanuts?' >&3;"
       " for i in $(seq 400); do [ -s answers ] && echo answered && break; sleep 0.05; done; exec 3>&-; wait");
    assert_string_equal(last.out, "answered\n"); /* before the input ended: a person waits for it */
    sh("$IS chat --engine mock </dev/null");
    expect_code(0);
    assert_string_equal(last.out, "");
}

/* What is remembered for later waits, is seen to wait, and is done by whoever waits for it. */
static void waits_and_is_waited_for(void **state)
{
    sh("$IS remember --engine mock --later --user anna 'Anna is allergic to peanuts.' &&"
       " $IS remember --engine mock --later --user ben 'Ben sails.'");
    sh("$IS encode --engine mock --status --json");
    expect_code(0);
    assert_int_equal(number_at("n_unencoded"), 2); /* of the whole store */
    assert_int_equal(number_at("n_unembedded"), 2);
    sh("$IS encode --engine mock --status --user ben --json");
    assert_int_equal(number_at("n_unencoded"), 1);
    sh("$IS encode --engine mock --status");
    expect_in(last.out, "2 facts for KV");
    sh("$IS doctor --engine mock --json");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(last.json, "backlog"), "n_unencoded")), 2);
    sh("$IS encode --engine mock --wait --timeout 60 --json");
    expect_code(0);
    assert_int_equal(number_at("n_unencoded") + number_at("n_unembedded"), 0);
    assert_int_equal(number_at("facts_encoded"), 2);
    sh("$IS ask --engine mock --user ben --json 'What does Ben do?'");
    assert_true(number_at("tokens_injected") > 0);
    /* It recovers. A policy of which no fact has rows yet: of pages, one fact in six has header rows too. */
    sh("$IS encode --engine mock --model mock:fail-capture=1 --policy alone --wait --timeout 60 --json");
    expect_code(0);
    assert_int_equal(number_at("n_errors"), 1);
    sh("$IS encode --engine mock --wait --read-only --json");
    expect_code(1);
}

/* ---- Manual and completion --------------------------------------------------------------------------------------------------
 */

static void manual_renders(void **state)
{
    sh("$IS man > inferscale.1 && grep -c '^\\.S[HS]' inferscale.1");
    expect_code(0);
    assert_true(atoi(last.out) > 25);
    sh("command -v groff >/dev/null && echo yes");
    if (strcmp(last.out, "yes\n") != 0) {
        print_message("groff is not installed: apt-get install groff-base; the rendering was not looked at\n");
        skip();
    }
    sh("groff -man -Tutf8 -ww -rLL=78n -P-c -P-b -P-u inferscale.1");
    expect_code(0);
    assert_string_equal(last.err, "");
    expect_in(last.out, "inferscale remember");
    expect_in(last.out, "--jsonl FILE");
    expect_in(last.out, "INFERSCALE_HOME");
}

static void completions_load(void **state)
{
    sh("bash -c 'set -eu; source <($IS completion bash); complete -p inferscale;"
       " comp() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _inferscale; echo \"$1 ${COMPREPLY[*]-}\"; };"
       " comp inferscale rem; comp inferscale ask --mo; comp inferscale ask --mode t; comp inferscale bench t;"
       " comp inferscale bench ttft --js; comp inferscale completion z'");
    expect_code(0);
    expect_in(last.out, "inferscale remember\n");
    expect_in(last.out, "inferscale --mode --model\n");
    expect_in(last.out, "inferscale text\n");
    expect_in(last.out, "inferscale ttft\n");
    expect_in(last.out, "inferscale --json\n");
    expect_in(last.out, "inferscale zsh\n");
    sh("$IS completion zsh > z && $IS completion fish > f && wc -l < z");
    expect_code(0);
    sh("if command -v zsh >/dev/null; then zsh -n z; fi; if command -v fish >/dev/null; then fish -n f; fi");
    expect_code(0);
}

static void demo_runs(void **state)
{
    sh("TMPDIR=$PWD $IS demo --engine mock --runs 1 --costs 5,20");
    expect_code(0);
    assert_string_equal(text_at("model"), "mock");
    assert_int_equal(count("questions"), 3);
    assert_int_equal(count("k"), 2);
    for (size_t i = 0; i < 3; i++) {
        json_t *kv = json_object_get(item("questions", i), "kv"), *text = json_object_get(item("questions", i), "text");
        assert_string_equal(of(kv, "mode"), "kv");
        assert_string_equal(of(text, "mode"), "text");
        assert_true(json_integer_value(json_object_get(kv, "tokens_injected")) > 100);
        assert_int_equal(json_integer_value(json_object_get(text, "tokens_injected")), 0);
        assert_true(json_real_value(json_object_get(kv, "ttft_ms")) > 0);
        assert_true(json_equal(json_object_get(kv, "facts"), json_object_get(text, "facts")));
    }
    assert_true(json_is_boolean(json_object_get(last.json, "kv_flash_attention")));
    assert_true(json_is_boolean(json_object_get(last.json, "text_flash_attention")));
    expect_in(last.out, "Both ran"); /* the mock has no other setting */
    /* The fact that answers is among those used: the first one in the table. */
    expect_in(last.out, "facts used   Nora left a spare key");
    expect_in(last.out, "facts used   Jonas invited Nora to his birthday");
    sh("ls -d inferscale-* 2>/dev/null");
    assert_string_equal(last.out, ""); /* the demo's store is gone */
    sh("$IS demo --engine mock --runs 1 --costs 5 --json | wc -l");
    assert_string_equal(last.out, "1\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(explains_itself, program_fresh),
        cmocka_unit_test_setup(guesses_what_was_meant, program_fresh),
        cmocka_unit_test_setup(refuses_wrong_usage, program_fresh),
        cmocka_unit_test_setup(whole_flow, program_fresh),
        cmocka_unit_test_setup(remembers_from_everywhere, program_fresh),
        cmocka_unit_test_setup(scopes_stay_apart, program_fresh),
        cmocka_unit_test_setup(chats, program_fresh),
        cmocka_unit_test_setup(waits_and_is_waited_for, program_fresh),
        cmocka_unit_test_setup(manual_renders, program_fresh),
        cmocka_unit_test_setup(completions_load, program_fresh),
        cmocka_unit_test_setup(demo_runs, program_fresh),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
