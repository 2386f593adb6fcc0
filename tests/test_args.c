/* test_args.c - the argument parser: what it takes, what it refuses, and that the verbs' table is sound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/args.h"
#include "cli/out.h"
#include "support/scratch.h"

static int run_none(const cli_args *a) { return 0; }

static const cli_option own[] = {
    { "--count", "N", "how many" }, { "--name", "NAME", "a name" }, { "--fast", NULL, "a flag" },
    { "-k", "N", "short" },         { NULL, NULL, NULL },
};
static const cli_verb verb = { "try", "", "a verb", NULL, own, CLI_SCOPE | CLI_MODEL | CLI_JSON, run_none };
static const cli_verb verb_two = { "try hard", "", "two words", NULL, own, 0, run_none };
static const cli_verb verb_bench = { "bench one", "", "", NULL, NULL, 0, run_none };
static const cli_verb verb_remember = { "remember", "", "", NULL, NULL, 0, run_none };
static const cli_verb *const verbs[] = { &verb, &verb_two, &verb_bench, &verb_remember, NULL };

#define ARGV(...) (char *[]){ __VA_ARGS__ }, sizeof((char *[]){ __VA_ARGS__ }) / sizeof(char *)

static char message[512];

static cli_args *parse(char **argv, size_t n)
{
    cli_args *a = NULL;
    message[0] = '\0';
    if (cli_args_parse(&verb, (int)n, argv, &a, message, sizeof message) != CLI_OK) assert_null(a);
    return a;
}

static void accepts_both_forms(void **state)
{
    cli_args *a = parse(ARGV("one", "--count", "7", "--name=a=b", "two", "--fast", "-k", "3", "--json"));
    assert_non_null(a);
    assert_int_equal(cli_n(a), 2);
    assert_string_equal(cli_at(a, 0), "one");
    assert_string_equal(cli_at(a, 1), "two");
    assert_null(cli_at(a, 2));
    assert_int_equal(cli_int(a, "--count", 0, 0, 10), 7);
    assert_string_equal(cli_str(a, "--name", NULL), "a=b");
    assert_true(cli_flag(a, "--fast"));
    assert_true(cli_wants_json(a));
    assert_int_equal(cli_int(a, "-k", 1, 0, 10), 3);
    assert_int_equal(cli_int(a, "--k", 1, 0, 10), 3);
    assert_false(cli_wants_help(a));
    cli_args_free(a);
}

static void one_letter_takes_one_dash_or_two(void **state)
{
    cli_args *a = parse(ARGV("--k=4"));
    assert_non_null(a);
    assert_int_equal(cli_int(a, "-k", 1, 0, 10), 4);
    cli_args_free(a);
    a = parse(ARGV("-k", "5", "--k", "6"));
    assert_int_equal(cli_int(a, "-k", 1, 0, 10), 6);
    cli_args_free(a);
    assert_null(parse(ARGV("--x=4")));
}

static void values_may_look_like_options(void **state)
{
    cli_args *a = parse(ARGV("--name", "--fast", "--count", "-5", "--name=", "-"));
    assert_non_null(a);
    assert_string_equal(cli_str(a, "--name", NULL), ""); /* the last one counts */
    assert_false(cli_flag(a, "--fast"));
    assert_int_equal(cli_int(a, "--count", 0, -9, 9), -5);
    assert_int_equal(cli_n(a), 1);
    assert_string_equal(cli_at(a, 0), "-");
    cli_args_free(a);
}

static void two_dashes_end_options(void **state)
{
    cli_args *a = parse(ARGV("--", "--fast", "--", "--nothing"));
    assert_non_null(a);
    assert_int_equal(cli_n(a), 3);
    assert_string_equal(cli_at(a, 0), "--fast");
    assert_string_equal(cli_at(a, 1), "--");
    assert_false(cli_flag(a, "--fast"));
    cli_args_free(a);
    a = parse(ARGV("--help"));
    assert_true(cli_wants_help(a));
    cli_args_free(a);
}

static void refuses_with_the_next_step(void **state)
{
    static const struct { char *arg; const char *expected; } cases[] = {
        { "--cuont", "did you mean --count?" },
        { "--cuont=7", "did you mean --count?" },
        { "--modle", "did you mean --model?" },
        { "--usr=x", "did you mean --user?" },
        { "--zzzzzzzzz", "after \"--\"" },
        { "--count", "--count needs a value: --count N" },
        { "--fast=1", "--fast takes no value" },
        { "-x", "there is no option -x" },
        { "--", NULL },
        { "\xff\xfe", "not valid UTF-8" },
        { "--name=\xc3\x28", "not valid UTF-8" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_args *a = parse(&(char *){ cases[i].arg }, 1);
        if (!cases[i].expected) {
            assert_non_null(a);
            cli_args_free(a);
            continue;
        }
        assert_null(a);
        if (!strstr(message, cases[i].expected))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].arg, message, cases[i].expected);
    }
}

static void finds_verbs(void **state)
{
    int used;
    assert_ptr_equal(cli_find_verb(verbs, 2, (char *[]){ "try", "hard" }, &used), &verb_two);
    assert_int_equal(used, 2);
    assert_ptr_equal(cli_find_verb(verbs, 2, (char *[]){ "try", "harder" }, &used), &verb);
    assert_int_equal(used, 1);
    assert_ptr_equal(cli_find_verb(verbs, 1, (char *[]){ "try" }, &used), &verb);
    assert_null(cli_find_verb(verbs, 1, (char *[]){ "bench" }, &used));
    assert_null(cli_find_verb(verbs, 1, (char *[]){ "try hard" }, &used));
    assert_int_equal(used, 0);
}

static const char *unknown(char **argv, int n)
{
    cli_unknown_verb(verbs, n, argv, message, sizeof message);
    return message;
}

static void guesses_verbs(void **state)
{
    assert_non_null(strstr(unknown((char *[]){ "remeber" }, 1), "did you mean \"remember\"?"));
    assert_non_null(strstr(unknown((char *[]){ "rem" }, 1), "did you mean \"remember\"?"));
    assert_non_null(strstr(unknown((char *[]){ "bench", "onne" }, 2), "did you mean \"bench one\"?"));
    assert_non_null(strstr(unknown((char *[]){ "bench" }, 1), "needs a second word: \"bench one\""));
    assert_non_null(strstr(unknown((char *[]){ "xylophone" }, 1), "--help"));
    assert_null(strstr(unknown((char *[]){ "" }, 1), "mean"));
}

static void parses_values(void **state)
{
    int64_t i;
    double d;
    uint64_t u;
    assert_true(cli_parse_int("-12", &i) && i == -12);
    assert_true(cli_parse_int("9223372036854775807", &i) && i == INT64_MAX);
    assert_false(cli_parse_int("9223372036854775808", &i));
    assert_false(cli_parse_int("", &i));
    assert_false(cli_parse_int(" 1", &i));
    assert_false(cli_parse_int("1 ", &i));
    assert_false(cli_parse_int("+1", &i));
    assert_false(cli_parse_int("1.5", &i));
    assert_false(cli_parse_int("0x10", &i));
    assert_false(cli_parse_int("-", &i));
    assert_true(cli_parse_num("0.25", &d) && d == 0.25);
    assert_true(cli_parse_num("-1e3", &d) && d == -1000);
    assert_false(cli_parse_num("nan", &d));
    assert_false(cli_parse_num("inf", &d));
    assert_false(cli_parse_num("1e999", &d));
    assert_false(cli_parse_num("0x1p3", &d));
    assert_false(cli_parse_num("1,5", &d));
    assert_true(cli_parse_size("512M", &u) && u == 512u << 20);
    assert_true(cli_parse_size("2g", &u) && u == (uint64_t)2 << 30);
    assert_true(cli_parse_size("3GiB", &u) && u == (uint64_t)3 << 30);
    assert_true(cli_parse_size("17", &u) && u == 17);
    assert_false(cli_parse_size("17x", &u));
    assert_false(cli_parse_size("99999999999G", &u));
    assert_false(cli_parse_size("-1", &u));
    assert_false(cli_parse_size("M", &u));
}

static void parses_lists(void **state)
{
    int64_t v[4];
    cli_args *a = parse(ARGV("--name", "0,5,10"));
    assert_int_equal(cli_int_list(a, "--name", NULL, v, 4), 3);
    assert_int_equal(v[2], 10);
    assert_int_equal(cli_int_list(a, "--count", "7", v, 4), 1);
    cli_args_free(a);
}

/* Typed access ends the process on wrong values: in a child, quietly. */
static int exit_code_of(char **argv, size_t n, void (*access)(cli_args *a))
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cli_args *a = NULL;
        if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
        if (cli_args_parse(&verb, (int)n, argv, &a, message, sizeof message) != CLI_OK) _exit(98);
        access(a);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void get_count(cli_args *a) { cli_int(a, "--count", 1, 0, 10); }
static void get_num(cli_args *a) { cli_num(a, "--count", 1, 0, 1); }
static void get_list(cli_args *a)
{
    int64_t v[2];
    cli_int_list(a, "--name", NULL, v, 2);
}
static void get_foreign(cli_args *a) { cli_str(a, "--not-in-the-table", NULL); }
static void get_time(cli_args *a) { cli_time(a, "--name"); }
static void get_object(cli_args *a) { cli_json_object(a, "--name"); }
static void get_options(cli_args *a)
{
    inferscale_options o;
    cli_options(a, &o);
}

static void wrong_values_end_with_2(void **state)
{
    assert_int_equal(exit_code_of(ARGV("--count", "10"), get_count), 0);
    assert_int_equal(exit_code_of(ARGV("--count", "11"), get_count), 2);
    assert_int_equal(exit_code_of(ARGV("--count", "ten"), get_count), 2);
    assert_int_equal(exit_code_of(ARGV("--count", "0.5"), get_num), 0);
    assert_int_equal(exit_code_of(ARGV("--count", "1.5"), get_num), 2);
    assert_int_equal(exit_code_of(ARGV("--name", "1,2"), get_list), 0);
    assert_int_equal(exit_code_of(ARGV("--name", "1,2,3"), get_list), 2);
    assert_int_equal(exit_code_of(ARGV("--name", "1,"), get_list), 2);
    assert_int_equal(exit_code_of(ARGV("--name", ",1"), get_list), 2);
    assert_int_equal(exit_code_of(ARGV("--name", "1,x"), get_list), 2);
    assert_int_equal(exit_code_of(ARGV("--name", ""), get_list), 2);
    assert_int_equal(exit_code_of(ARGV("--name", "2024-05-01"), get_time), 0);
    assert_int_equal(exit_code_of(ARGV("--name", "yesterday"), get_time), 2);
    assert_int_equal(exit_code_of(ARGV("--name", "{\"a\":1}"), get_object), 0);
    assert_int_equal(exit_code_of(ARGV("--name", "[1]"), get_object), 2);
    assert_int_equal(exit_code_of(ARGV("--name", "{"), get_object), 2);
    assert_int_equal(exit_code_of(ARGV("--ram", "2G", "--flash-attention", "off"), get_options), 0);
    assert_int_equal(exit_code_of(ARGV("--ram", "2X"), get_options), 2);
    assert_int_equal(exit_code_of(ARGV("--ram", "0"), get_options), 2);
    assert_int_equal(exit_code_of(ARGV("--flash-attention", "of"), get_options), 2);
    assert_int_equal(exit_code_of(ARGV("--ctx", "-1"), get_options), 2);
    assert_int_equal(exit_code_of(ARGV("--fast"), get_foreign), 1);
}

static void scope_defaults_only_without_owner(void **state)
{
    inferscale_scope s;
    cli_args *a = parse(ARGV("--tenant", "t"));
    cli_scope(a, &s);
    assert_string_equal(s.user, "default");
    assert_string_equal(s.tenant, "t");
    cli_args_free(a);
    a = parse(ARGV("--agent", "bot"));
    cli_scope(a, &s);
    assert_null(s.user);
    assert_string_equal(s.agent, "bot");
    cli_args_free(a);
}

/* No input makes the parser read beyond it or loop: random words of the dangerous characters, under the sanitizers too. */
static void survives_random_words(void **state)
{
    static const char *const pieces[] = { "-",    "--", "=",    "count",    "name", "k", "fast", "json",
                                          "help", "",   "\xff", "\xc3\xa9", "7",    ",", "user" };
    unsigned seed = (unsigned)scratch_seed("words");
    srand(seed);
    for (int round = 0; round < 20000; round++) {
        char words[6][64];
        char *argv[6];
        size_t n = (size_t)rand() % 7;
        cli_args *a;
        for (size_t i = 0; i < n; i++) {
            words[i][0] = '\0';
            for (int p = rand() % 4; p >= 0; p--) strcat(words[i], pieces[(size_t)rand() % (sizeof pieces / sizeof *pieces)]);
            argv[i] = words[i];
        }
        a = parse(argv, n);
        if (a) {
            assert_true(cli_n(a) <= n);
            cli_args_free(a);
        } else {
            assert_true(message[0] != '\0');
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_both_forms),       cmocka_unit_test(one_letter_takes_one_dash_or_two),
              cmocka_unit_test(values_may_look_like_options),
        cmocka_unit_test(two_dashes_end_options),   cmocka_unit_test(refuses_with_the_next_step),
        cmocka_unit_test(finds_verbs),              cmocka_unit_test(guesses_verbs),
        cmocka_unit_test(parses_values),            cmocka_unit_test(parses_lists),
        cmocka_unit_test(wrong_values_end_with_2),  cmocka_unit_test(scope_defaults_only_without_owner),
        cmocka_unit_test(survives_random_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
