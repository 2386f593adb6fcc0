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
    sh("$IS demo --engine llama --embedder none-of-them --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "none-of-them");
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
    sh("for v in remember update supersede pin unpin history recall ask chat ls show forget encode import 'import locomo' export fsck gc du backup restore rebuild"
       " 'bench ttft' 'bench compose' 'bench encode' 'bench remember' 'bench scale' 'eval recall' 'eval fidelity' 'eval compare' 'eval accuracy' demo doctor"
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
    sh("$IS remember x --later && $IS recall x --method lexical --threads 1 --k 3 && $IS recall x --method lexical --threads 0");
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

/* ---- Measuring --------------------------------------------------------------------------- */

/* What is measured under load has figures of every window; --brief leaves out the single times. */
static void bench_remember_measures_under_load(void **state)
{
    static const char command[] = "$IS bench remember --engine mock --embedder mock --rounds 0"
                                  " --clients 3 --pairs 2 --window 1 --batch 5 --json";
    json_t *load, *told, *lag;

    sh("%s", command);
    expect_code(0);
    assert_null(json_object_get(last.json, "p50_ms")); /* the first part's */
    load = json_object_get(last.json, "under_load");
    told = json_object_get(load, "ttft_told");
    lag = json_object_get(load, "embedding_lag");
    assert_int_equal(json_integer_value(json_object_get(load, "clients")), 3);
    assert_int_equal(json_array_size(json_object_get(load, "ttft_ratios")), 2);
    assert_int_equal(json_array_size(json_object_get(told, "windows_ms")), 2);
    assert_true(json_integer_value(json_object_get(told, "n")) >= 2);
    assert_true(json_integer_value(json_object_get(json_object_get(load, "ttft_quiet"), "n")) >= 2);
    assert_true(json_integer_value(json_object_get(lag, "n")) >= 2);
    assert_int_equal(json_array_size(json_object_get(lag, "ms")),
                     json_integer_value(json_object_get(lag, "n")));
    for (size_t i = 0; i < 2; i++)
        assert_true(json_number_value(json_array_get(
                        json_object_get(json_object_get(load, "embedding"), "busy"), i)) > 0);
    sh("%s --brief", command);
    expect_code(0);
    lag = json_object_get(json_object_get(last.json, "under_load"), "embedding_lag");
    assert_true(json_integer_value(json_object_get(lag, "n")) >= 2);
    assert_null(json_object_get(lag, "ms"));
    refuses("bench remember --rounds 0 --clients 0", "nothing to measure");
}

/* Elsewhere too text and a usual stack's prompt are computed whole, and both are divided. */
static void bench_ttft_elsewhere_has_a_usual_stack(void **state)
{
    static const char *const computed[] = { "text", "plain" };
    const json_t *row, *arms, *ratio;

    sh("$IS bench ttft --remote --engine mock --model mock:remote --embedder mock --k 5 --runs 2"
       " --json");
    expect_code(0);
    row = json_array_get(json_object_get(last.json, "rows"), 0);
    arms = json_object_get(row, "arms");
    assert_int_equal(json_object_size(arms), 5);
    for (size_t i = 0; i < 2; i++) {
        const json_t *arm = json_object_get(arms, computed[i]);
        char key[32];

        assert_int_equal(json_integer_value(json_object_get(arm, "injected")), 0);
        assert_true(json_integer_value(json_object_get(arm, "computed")) >=
                    json_integer_value(json_object_get(row, "fact_tokens")));
        snprintf(key, sizeof key, "%s_over_injected", computed[i]);
        ratio = json_object_get(row, key);
        assert_true(json_number_value(json_object_get(ratio, "lo")) <=
                    json_number_value(json_object_get(ratio, "ratio")));
    }
}

static double tokens_of(const json_t *row, const char *what)
{
    return json_number_value(json_object_get(json_object_get(row, "tokens"), what));
}

/* Three arms a round; text and plain on the second server, on which nothing is injected. */
static void bench_serve_has_text_and_a_usual_stack(void **state)
{
    static const char *const modes[] = { "kv", "text", "plain" };
    const json_t *rows, *servers, *one;
    bool second;
    size_t i;

    sh("$IS bench serve --engine mock --embedder mock --users 2 --k 5 --facts 8 --pairs 2"
       " --completions 4 --max-tokens 40 --brief --json");
    expect_code(0);
    assert_null(strstr(last.err, "otherwise than asked")); /* where it is slow, progress is there */
    rows = json_object_get(last.json, "rows");
    servers = json_object_get(last.json, "servers");
    assert_int_equal(json_array_size(rows), 3);
    second = json_is_true(json_object_get(json_array_get(rows, 1), "second_server"));
    json_array_foreach(rows, i, one) {
        assert_string_equal(json_string_value(json_object_get(one, "mode")), modes[i]);
        assert_int_equal(json_integer_value(json_object_get(one, "completed")), 8);
        assert_int_equal(json_integer_value(json_object_get(one, "mixed_up")), 0);
        assert_int_equal(json_integer_value(json_object_get(one, "unlike_asked")), 0);
        assert_int_equal(json_is_true(json_object_get(one, "second_server")), i > 0 && second);
        assert_true((tokens_of(one, "injected") > 0) == (i == 0));
    }
    /* What was injected is computed in the others: five facts, which take tokens. */
    for (i = 1; i < 3; i++)
        assert_true(tokens_of(json_array_get(rows, i), "computed") >
                    tokens_of(json_array_get(rows, 0), "computed") +
                        0.9 * tokens_of(json_array_get(rows, 0), "injected"));
    one = json_array_get(json_object_get(servers, "trials"), 0);
    for (i = 0; i < 2; i++)
        assert_true(json_number_value(json_array_get(
                        json_object_get(one, "request_throughput"), i)) > 0);
    one = json_array_get(json_object_get(last.json, "kv_over_plain"), 0);
    assert_int_equal(json_array_size(json_object_get(one, "windows")), 2);
    assert_true(json_number_value(json_object_get(one, "kv_over_plain")) > 0);
    one = json_array_get(json_object_get(last.json, "kv_over_text"), 0);
    assert_true(json_number_value(json_object_get(one, "kv_over_text")) > 0);
}

/* ---- Import and export ------------------------------------------------------------------------------------------------------ */

static void importing_again_adds_nothing(void **state)
{
    static const char lines[] = "{\"type\":\"turn\",\"id\":1,\"text\":\"I cannot eat nuts.\",\"speaker\":\"Anna\",\"time\":\"2024-05-01T10:00:00Z\"}\n"
                                "{\"type\":\"turn\",\"id\":2,\"text\":\"Yes.\",\"time\":\"2024-05-01T10:00:05Z\"}\n"
                                "{\"type\":\"turn\",\"id\":3,\"text\":\"Yes.\",\"time\":\"2024-05-01T10:00:05Z\"}\n"
                                "{\"type\":\"turn\",\"id\":4,\"text\":\"Yes.\",\"time\":\"2024-05-01T10:00:05Z\",\"agent\":\"bot\"}\n"
                                "{\"type\":\"turn\",\"id\":5,\"text\":\"Named.\",\"external_id\":\"m-1\",\"time\":\"2024-05-01T10:00:09Z\"}\n"
                                "{\"text\":\"Anna is allergic to nuts.\",\"source_turn\":1,\"event_time\":\"2024-05-01T10:00:00Z\"}\n";
    char *before;
    write_file("in.jsonl", lines, sizeof lines - 1);
    sh("$IS import --later --json --user anna in.jsonl");
    expect_code(0);
    assert_int_equal(number_at("turns"), 5); /* who says the same twice has said it twice */
    assert_int_equal(number_at("known_turns"), 0);
    sh("$IS export --user anna out.jsonl && $IS ls --user anna --json");
    before = strdup(last.out);
    sh("$IS import --later --json --user anna in.jsonl");
    expect_code(0);
    assert_int_equal(number_at("added"), 0);
    assert_int_equal(number_at("turns"), 0);
    assert_int_equal(number_at("known_turns"), 5);
    sh("$IS import --later --json out.jsonl"); /* its own export, too: the lines say whose they are */
    expect_code(0);
    assert_int_equal(number_at("turns") + number_at("added"), 0);
    sh("$IS ls --user anna --json");
    assert_string_equal(last.out, before);
    free(before);
    /* Another time, speaker, conversation or owner is another turn. */
    sh("sed -e 1s/10:00:00/11:00:00/ -e 2s/Yes/No/ -e '3s/\"id\"/\"conversation\":\"c\",\"id\"/' in.jsonl | $IS import --later --json --user anna -");
    assert_int_equal(number_at("turns"), 3);
    assert_int_equal(number_at("known_turns"), 2);
    sh("$IS import --later --json --user ben in.jsonl");
    assert_int_equal(number_at("turns"), 5);
    sh("head -n 1 in.jsonl | $IS import --later --user anna -");
    assert_string_equal(last.out, "Imported 0 facts and 0 turns (1 was known).\n");
    sh("sed -n 6p in.jsonl | sed 's/\"source_turn\":1,//' | $IS import --later --user cleo -");
    assert_string_equal(last.out, "Imported 1 fact and 0 turns.\n");
}

static void export_replaces_only_when_told(void **state)
{
    sh("$IS remember --later 'A fact.' && $IS export x.jsonl");
    expect_code(0);
    expect_in(last.err, "Exported 1 fact and 0 turns");
    sh("$IS remember --later 'Another.' && cp x.jsonl y && $IS export x.jsonl");
    expect_code(1);
    expect_in(last.err, "--force");
    sh("cmp x.jsonl y && $IS export x.jsonl --force --json");
    expect_code(0);
    assert_int_equal(number_at("facts"), 2);
    sh("$IS export --json | sed 1d"); /* the lines are JSON already */
    expect_code(0);
    assert_string_equal(text_at("text"), "Another.");
}

/* ---- What is said ----------------------------------------------------------------------------------------------------------- */

static void counts_what_words_must_find(void **state)
{
    sh("$IS remember --engine mock 'Anna likes tea.' 'Anna likes dogs.'");
    sh("$IS recall --engine mock --method lexical --json likes");
    assert_int_equal(count("items"), 2);
    assert_int_equal(number_at("unembedded"), 0); /* words were asked for, and are not all there is */
    sh("$IS remember --engine mock --later 'Anna likes rain.' && $IS recall --engine mock --method lexical --json likes");
    assert_int_equal(number_at("unembedded"), 1);
    sh("$IS recall --engine mock --json likes"); /* embeds it first; on a machine too busy for that it is named */
    assert_true(number_at("unembedded") == 0 || number_at("unembedded") == 1);
    assert_int_equal(count("fallbacks"), number_at("unembedded"));
}

static void asks_about_nobody(void **state)
{
    sh("$IS remember --engine mock --user anna 'Anna likes tea.' && $IS ask --engine mock --user ana --json 'What does Anna like?'");
    expect_code(0);
    expect_in(text_at("fallback"), "nothing is remembered for this user");
    sh("$IS ask --engine mock --agent bot 'What does Anna like?'");
    expect_in(last.err, "Note: nothing is remembered for this agent");
    sh("$IS ask --engine mock --user anna --json 'What does Anna like?'");
    assert_string_equal(text_at("fallback"), "");
    sh("$IS ask --engine mock --user anna --metadata '{\"x\":1}' --json 'What does Anna like?'"); /* there is something, only not this */
    assert_string_equal(text_at("fallback"), "");
    sh("$IS ask --engine mock --user ana --mode none --json 'What does Anna like?'"); /* nothing was wanted */
    assert_string_equal(text_at("fallback"), "");
    sh("$IS forget --user anna 1 --json && $IS ask --engine mock --user anna --json 'What does Anna like?'");
    expect_in(text_at("fallback"), "nothing is remembered for this user");
    sh("printf 'Hello\\nAgain\\n' | $IS chat --engine mock --user ana --json | grep -c 'nothing is remembered'");
    assert_string_equal(last.out, "1\n"); /* once, not in every turn */
}

static void unknown_ids(void **state)
{
    sh("$IS remember --later 'A fact.' && $IS show 99 --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "`inferscale ls`");
    sh("$IS update 99 'Other.' --later --json");
    expect_error("E_NOTFOUND", "`inferscale ls`");
    sh("$IS forget 99");
    expect_code(1);
    assert_string_equal(last.out, "Nothing was forgotten.\n");
    assert_string_equal(last.err, "inferscale forget: there is no item 99 in this memory; `inferscale ls` lists the ids\n");
    sh("$IS forget 98 99 --user nobody");
    expect_code(1);
    expect_in(last.err, "there are no items 98 and 99 in this memory");
    sh("$IS forget 98 99 --json --prove");
    expect_code(1);
    assert_int_equal(number_at("unknown"), 2);
    assert_int_equal(json_integer_value(item("unknown_ids", 1)), 99);
    assert_true(json_is_false(json_object_get(last.json, "proven")));
    expect_error("E_NOTFOUND", "`inferscale ls` lists the ids");
    /* What is there is done, whatever else was named; an id that is given twice is there. */
    sh("$IS forget 1 1");
    expect_code(0);
    assert_string_equal(last.out, "Forgot 1 item.\n");
    sh("$IS remember --later 'Another.' 'And one.' && $IS forget 2 99");
    expect_code(1);
    expect_in(last.out, "Forgot 1 item.");
    expect_in(last.err, "no item 99");
    sh("$IS pin 99 3 --json");
    expect_code(1);
    expect_error("E_NOTFOUND", "no item 99");
    assert_int_equal(json_integer_value(item("ids", 0)), 3);
    sh("$IS show 98 3 99");
    expect_code(1);
    expect_in(last.out, "And one.");
    expect_in(last.err, "no items 98 and 99");
    sh("for v in 'update 99 x' 'supersede 99 x' 'pin 99' 'unpin 99' 'show 99' 'history 99' 'forget 99' 'forget 99 --prove' 'forget --turn 99';"
       " do $IS $v --json | tail -1 | grep -q '\"code\":\"E_NOTFOUND\".*`inferscale ls`' && ! $IS $v >.said 2>&1 &&"
       " ! grep -q 'inferscale_[a-z]' .said || echo \"$v\"; done 2>.err");
    assert_string_equal(last.out, "");
    sh("$IS remember --later 'Over.' --expires 2001-01-01 && $IS ls");
    expect_in(last.out, "expired");
}

static void chat_explains_a_bare_command(void **state)
{
    sh("printf '/remember\\n/remember  \\n' | $IS chat --engine mock");
    expect_code(1);
    expect_in(last.err, "Say what: /remember TEXT");
    assert_null(strstr(last.err, "did you mean"));
    sh("$IS ls --json");
    assert_int_equal(count("items"), 0);
}

static void demo_says_what_it_does(void **state)
{
    sh("$IS demo --engine mock --runs 1 --costs 5,20");
    expect_code(0);
    char *told = strstr(last.out, "k = 5, 20"), *table = strstr(last.out, "What k facts cost before"), *next = strstr(last.out, "Next");
    assert_true(told && table && told < table && next && next > table);
    expect_in(next, " remember \"");
    expect_in(next, "inferscale ask \"");
    assert_non_null(json_object_get(last.json, "questions")); /* and the last line is the object still */
    sh("PATH=$(dirname $IS):$PATH inferscale demo --engine mock --runs 1 --costs 5");
    expect_in(last.out, "\n   inferscale remember ");
}

static const char *rows_of(size_t question, const char *arm)
{
    json_t *q = json_array_get(json_object_get(last.json, "questions"), question);

    return json_string_value(json_object_get(json_object_get(q, arm), "rows"));
}

/* Every answer of the demo names the stage of its rows, and whether it differs from text's. */
static void demo_names_the_stage_of_each_answer(void **state)
{
    sh("$IS demo --engine mock --runs 1 --costs 5");
    expect_code(0);
    expect_in(last.out, "rows         first stage                      none: all is computed");
    expect_in(last.out, "once (first stage).");
    assert_null(strstr(last.out, "Second stage"));
    assert_true(strstr(last.out, "the same words as text's") ||
                strstr(last.out, "other words than text's"));
    for (size_t i = 0; i < 3; i++) {
        json_t *q = json_array_get(json_object_get(last.json, "questions"), i);

        assert_string_equal(rows_of(i, "kv"), "first stage");
        assert_string_equal(rows_of(i, "text"), "none");
        assert_true(json_is_null(json_object_get(q, "second")));
    }
    sh("$IS demo --engine mock --runs 1 --costs 5 --stage all");
    expect_code(0);
    expect_in(last.out, "Second stage, which a server encodes when it is idle: ");
    expect_in(last.out, "rows         second stage\n");
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(rows_of(i, "kv"), "first stage");
        assert_string_equal(rows_of(i, "second"), "second stage");
        assert_string_equal(rows_of(i, "text"), "none");
    }
    sh("$IS demo --engine mock --stage second");
    expect_code(2);
    expect_in(last.err, "--stage is first or all");
}

/* Where nobody watches, long work leaves lines that a log can hold. */
static void logs_show_life(void **state)
{
    sh("for i in $(seq 20); do echo \"Fact number $i.\"; done | $IS remember --later - > ids && $IS encode --engine mock"
       " --model mock:slow=1500 --policy facts:5");
    expect_code(0);
    expect_in(last.err, " of 20, ");
    assert_null(strchr(last.err, '\r'));
    assert_null(strchr(last.err, '\033'));
}

/* int8 rows have fewer bytes than what is composed of them; memcpy's are counted as they are. */
static void bench_compose_counts_what_memcpy_copies(void **state)
{
    static const char *const codecs[] = { "f16", "int8" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        json_int_t copied, composed;

        sh("$IS bench compose --codec %s --segments 2 --repeats 11 --json", codecs[i]);
        expect_code(0);
        copied = json_integer_value(json_object_get(item("rows", 0), "memcpy_bytes"));
        composed = json_integer_value(json_object_get(item("rows", 0), "bytes"));
        if (copied <= 0 || (i ? copied >= composed : copied != composed))
            fail_msg("%s: %lld copied, %lld composed", codecs[i], (long long)copied,
                     (long long)composed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(bench_compose_counts_what_memcpy_copies, program_fresh),
        cmocka_unit_test_setup(empty_questions, program_fresh),
        cmocka_unit_test_setup(empty_owners, program_fresh),
        cmocka_unit_test_setup(an_embedder_that_is_not_there, program_fresh),
        cmocka_unit_test_setup(groups_list_their_commands, program_fresh),
        cmocka_unit_test_setup(headings_are_the_same, program_fresh),
        cmocka_unit_test_setup(options_are_the_same_everywhere, program_fresh),
        cmocka_unit_test_setup(bench_remember_measures_under_load, program_fresh),
        cmocka_unit_test_setup(bench_ttft_elsewhere_has_a_usual_stack, program_fresh),
        cmocka_unit_test_setup(bench_serve_has_text_and_a_usual_stack, program_fresh),
        cmocka_unit_test_setup(importing_again_adds_nothing, program_fresh),
        cmocka_unit_test_setup(export_replaces_only_when_told, program_fresh),
        cmocka_unit_test_setup(counts_what_words_must_find, program_fresh),
        cmocka_unit_test_setup(asks_about_nobody, program_fresh),
        cmocka_unit_test_setup(unknown_ids, program_fresh),
        cmocka_unit_test_setup(chat_explains_a_bare_command, program_fresh),
        cmocka_unit_test_setup(demo_says_what_it_does, program_fresh),
        cmocka_unit_test_setup(demo_names_the_stage_of_each_answer, program_fresh),
        cmocka_unit_test_setup(logs_show_life, program_fresh),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
