/* test_cli_first.c - the program with the mock engine, in the hands of someone who is new to it: what is asked wrongly is refused before
 * anything is done, and every answer says what to type next. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/program.h"

static void refuses(const char *command, const char *why)
{
    sh("$IS %s </dev/null", command);
    if (last.code != 2) fail_msg("%s: exit code %d\n%s", command, last.code, last.err);
    expect_in(last.err, why);
}

static void expect_no_store(void)
{
    sh("ls $INFERSCALE_HOME");
    if (last.code == 0) fail_msg("a store was made: %s", last.out);
}

/* ---- Refused before anything is loaded -------------------------------------------------------------------------------------- */

static void empty_questions(void **state)
{
    /* An engine that does not exist: whoever loads first fails otherwise. */
    refuses("ask '' --engine nothing", "the question is empty");
    refuses("ask ' \t' --engine nothing --dry-run", "the question is empty");
    refuses("recall '' --engine nothing", "the query is empty");
    refuses("chat '' --engine nothing", "takes no text");
    expect_no_store();
    sh("$IS ask '' --json");
    expect_error("USAGE", "the question is empty");
}

static void empty_owners(void **state)
{
    static const char *const options[] = { "--user", "--agent", "--run", "--app", "--tenant" };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char command[64];
        snprintf(command, sizeof command, "ls %s ''", options[i]);
        refuses(command, "is empty; give a name");
        snprintf(command, sizeof command, "remember x --later %s=' '", options[i]);
        refuses(command, options[i]);
    }
    refuses("forget --all --yes --user=", "--user is empty");
    refuses("ls --home ''", "--home is empty");
    expect_no_store();
}

static void an_embedder_that_is_not_there(void **state)
{
    sh("$IS ask q --engine llama --embedder $PWD/none.gguf --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "none.gguf");
    sh("$IS remember x --embedder none-of-them --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "none-of-them");
    expect_no_store();
    sh("$IS remember 'Anna likes tea.' --engine mock && $IS recall tea --engine mock --embedder http://127.0.0.1:9/v1#m --json");
    expect_code(1); /* named, so it is not searched by words alone in silence */
    assert_non_null(json_object_get(last.json, "error"));
    sh("$IS ask tea --engine mock --embedder http://127.0.0.1:9/v1#m --json");
    expect_code(1);
    assert_non_null(json_object_get(last.json, "error"));
    sh("$IS recall tea --engine mock --embedder http://127.0.0.1:9/v1#m --method lexical --json");
    expect_code(0);
}

/* ---- Help ------------------------------------------------------------------------------------------------------------------- */

static void groups_list_their_commands(void **state)
{
    static const char *const groups[] = { "bench", "eval", "import" };
    static const char *const seconds[] = { "bench ttft", "eval recall", "import locomo" };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        sh("$IS %s --help && $IS %s -h && $IS help %s", groups[i], groups[i], groups[i]);
        expect_code(0);
        expect_in(last.out, seconds[i]);
        expect_in(last.out, "\nCommands:\n");
        assert_string_equal(last.err, "");
    }
    sh("$IS nothing --help");
    expect_code(2);
}

/* What is between the summary and the options has the same headings everywhere. */
static void headings_are_the_same(void **state)
{
    static const char *const known[] = { "Examples:", "Commands:", "Options:", "Store:", "Whose memory:", "Model:", "Output:" };
    sh("for v in remember recall ask chat ls show forget encode import 'import locomo' export fsck gc du backup restore rebuild"
       " 'bench ttft' 'bench compose' 'bench encode' 'bench remember' 'bench scale' 'eval recall' 'eval fidelity' demo doctor"
       " completion man help; do $IS $v --help > one || exit 1; grep -q '^Examples:$' one || echo \"none in $v\"; grep -E '^[A-Z].*:$' one;"
       " done | sort -u");
    expect_code(0);
    for (char *line = strtok(last.out, "\n"); line; line = strtok(NULL, "\n")) {
        bool ok = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) ok = ok || strcmp(line, known[i]) == 0;
        if (!ok && strchr(line, ' ') && strcmp(line, "Whose memory:") != 0 && strncmp(line, "none in", 7) != 0) ok = true; /* a sentence */
        if (!ok) fail_msg("a heading of its own: %s", line);
    }
}

static void options_are_the_same_everywhere(void **state)
{
    sh("$IS recall --help");
    expect_in(last.out, "-k, --k N");
    expect_in(last.out, "--threads N");
    expect_in(last.out, "http(s)://HOST/v1#MODEL");
    sh("$IS recall x --method lexical --threads 1 --k 3 && $IS recall x --method lexical --threads 0");
    expect_code(2);
    sh("$IS ask --help");
    expect_in(last.out, "-k, --k N");
    expect_in(last.out, "(default:");
    sh("$IS encode --help | sed -n '/--policy/,/--codec/p' | tr -s ' \\n' ' '");
    for (const char *const *p = (const char *const[]){ "page:N", "facts:W", "header", "turns:W", "near:N", "company:N", "cwe:W", "alone", NULL }; *p; p++)
        expect_in(last.out, *p);
    sh("$IS man | grep -c '\\-k, \\\\-\\\\-k'; $IS completion fish | grep -q -e '-s k -l k' && $IS completion zsh | grep -q -e '{-k,--k=}'");
    expect_code(0);
    sh("grep -rn 'HOST/v1\"' $(dirname $IS)/../../src/cli $(dirname $IS)/../../include");
    assert_string_equal(last.out, ""); /* an endpoint without its model is no embedder */
    refuses("completion tcsh", "bash, zsh and fish");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(empty_questions, program_fresh),
        cmocka_unit_test_setup(empty_owners, program_fresh),
        cmocka_unit_test_setup(an_embedder_that_is_not_there, program_fresh),
        cmocka_unit_test_setup(groups_list_their_commands, program_fresh),
        cmocka_unit_test_setup(headings_are_the_same, program_fresh),
        cmocka_unit_test_setup(options_are_the_same_everywhere, program_fresh),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
