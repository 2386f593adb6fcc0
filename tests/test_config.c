/* The server's settings: one table, three places, every error with its line; and `inferscale config check`, which shows them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/serve_config.h"
#include "serve/config.h"
#include "support/program.h"
#include "support/scratch.h"

static char errors[16][1500];
static size_t n_errors;

static void keep(void *ctx, const char *sentence)
{
    (void)ctx;
    if (n_errors < 16) snprintf(errors[n_errors], sizeof errors[0], "%s", sentence);
    n_errors++;
}

static is_status read_text(is_config *c, const char *text)
{
    char *copy = strdup(text);
    n_errors = 0;
    is_status st = is_config_text(c, "f.conf", copy, strlen(copy), keep, NULL);
    free(copy);
    return st;
}

static void wrong(const char *text, const char *part)
{
    is_config c;
    OK(is_config_init(&c));
    is_status st = read_text(&c, text);
    if (st != INFERSCALE_E_PARSE || n_errors != 1 || !strstr(errors[0], part) || !strstr(errors[0], "f.conf, line "))
        fail_msg("\"%s\" gave %s, %zu errors: %s", text, inferscale_status_name(st), n_errors, errors[0]);
    assert_string_equal(is_error(), errors[0]);
    is_config_free(&c);
}

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

static void a_file_sets_what_it_names(void **state)
{
    is_config c;
    OK(is_config_init(&c));
    OK(read_text(
        &c,
        "# the server\n\n  port=9000\r\nhost = 127.0.0.2 \nmax-body = 2m\nread_only = YES\naudit = 0.25\nmode = text\n"
        "system = \"a # b \\\"c\\\"\\n d \"  # why\nalias = one, two # not a comment\nram = 1234567\nextractor_key =\nk = 7"));
    assert_int_equal(c.port, 9000);
    assert_string_equal(c.host, "127.0.0.2");
    assert_int_equal(c.max_body, 2 << 20);
    assert_true(c.read_only);
    assert_true(c.audit == 0.25);
    assert_string_equal(c.mode, "text");
    assert_string_equal(c.system, "a # b \"c\"\n d ");
    assert_string_equal(c.alias, "one, two # not a comment");
    assert_int_equal(c.k, 7);
    assert_int_equal(c.from[IS_SET_port].line, 3);
    assert_int_equal(c.from[IS_SET_port].by, IS_BY_FILE);
    assert_int_equal(c.from[IS_SET_idle_s].by, IS_BY_DEFAULT);
    is_config_free(&c);
}

static void what_is_wrong_is_said_with_its_line(void **state)
{
    wrong("prot = 1\n", "did you mean port?");
    wrong("\n\nmax_bdy = 1\n", "line 3");
    wrong("zzzzzzzz = 1\n", "serve --help");
    wrong("port\n", "name = value");
    wrong("[server]\n", "sections");
    wrong("port = 1\nport = 2\n", "line 1 already");
    wrong("max_body = 1M\nmax-body = 2M\n", "line 1 already");
    wrong("system = \"abc\n", "not closed");
    wrong("system = \"a\\x\"\n", "backslash");
    wrong("system = \"a\" b\n", "behind the closing quote");
    static const char *const bad[] = { "port = -1",
                                       "port = 65536",
                                       "port = 80a",
                                       "port = ",
                                       "port = 0x50",
                                       "port = 1e3",
                                       "port = 99999999999999999999",
                                       "k = 0",
                                       "k = 1001",
                                       "parallel = 0",
                                       "parallel = 1000",
                                       "max_body = 1",
                                       "max_body = 2G",
                                       "max_body = 5X",
                                       "max_body = 99999999999999999999",
                                       "max_body = 8388608T",
                                       "ram = -1",
                                       "read_only = maybe",
                                       "audit = 1.5",
                                       "audit = -0.1",
                                       "audit = nan",
                                       "audit = inf",
                                       "audit = 0x1",
                                       "audit = half",
                                       "encode_lag_s = -2",
                                       "encode_lag_s = 86401",
                                       "encode_lag_s = 5s",
                                       "encode_share = 1.5",
                                       "encode_share = -0.1",
                                       "encode_share_most = 2",
                                       "encode_share_most = all",
                                       "mode = KV",
                                       "mode = kv|text",
                                       "codec = f8",
                                       "log = xml",
                                       "mode =" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) wrong(bad[i], "takes");
    is_config c;
    OK(is_config_init(&c));
    FAILS(E_PARSE, read_text(&c, "a = 1\nport = x\nk = 5\nmode = y\n")); /* all of them, and the rest counts */
    assert_int_equal(n_errors, 3);
    assert_non_null(strstr(errors[1], "line 2"));
    assert_non_null(strstr(errors[2], "line 4"));
    assert_int_equal(c.k, 5);
    assert_int_equal(c.port, 8080);
    char binary[] = "port = 1\nhost = a\0b\n", latin[] = "k = 3\n\nsystem = caf\xe9\n";
    n_errors = 0;
    FAILS(E_PARSE, is_config_text(&c, "f", binary, sizeof binary - 1, keep, NULL));
    FAILS(E_PARSE, is_config_text(&c, "f", latin, sizeof latin - 1, keep, NULL));
    assert_non_null(strstr(errors[0], "line 2"));
    assert_non_null(strstr(errors[1], "line 3"));
    is_config_free(&c);
}

/* ---- The three places ---------------------------------------------------------------------------------------------------- */

static void flags_go_before_variables_and_those_before_the_file(void **state)
{
    char *const environment[] = { (char[]){ "INFERSCALE_PORT=2" },
                                  (char[]){ "INFERSCALE_K=20" },
                                  (char[]){ "INFERSCALE_HOST=" },
                                  (char[]){ "INFERSCALE_MAX_BODY=2M" },
                                  (char[]){ "PORT=9" },
                                  (char[]){ "INFERSCALE_PORTX=9" },
                                  NULL };
    for (int order = 0; order < 6; order++) { /* in whatever order they are read */
        static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
        is_config c;
        OK(is_config_init(&c));
        for (int i = 0; i < 3; i++) {
            if (orders[order][i] == 0) OK(read_text(&c, "port = 1\nk = 10\nidle_s = 5\nhost = 127.0.0.9\n"));
            if (orders[order][i] == 1) OK(is_config_environment(&c, (char **)(uintptr_t)environment, keep, NULL));
            if (orders[order][i] == 2) OK(is_config_set(&c, "port", "3", IS_BY_FLAG, 0));
        }
        assert_int_equal(c.port, 3);
        assert_int_equal(c.k, 20);
        assert_int_equal(c.idle_s, 5);
        assert_string_equal(c.host, "127.0.0.9"); /* an empty variable sets nothing */
        assert_int_equal(c.max_body, 2 << 20);
        is_config_free(&c);
    }
    is_config c;
    char *bad[] = { (char[]){ "INFERSCALE_PORT=x" }, (char[]){ "INFERSCALE_MODE=z" }, NULL };
    OK(is_config_init(&c));
    n_errors = 0;
    FAILS(E_INVALID, is_config_environment(&c, bad, keep, NULL));
    assert_int_equal(n_errors, 2);
    assert_non_null(strstr(errors[0], "INFERSCALE_PORT"));
    is_config_free(&c);
}

static void every_setting_reads_back_as_it_is_written(void **state)
{
    is_config a, b;
    OK(is_config_init(&a));
    OK(is_config_init(&b));
    OK(read_text(&a, "port = 1\nram = 1536M\nmax_body = 1025\nread_only = on\naudit = 0.125\nmode = none\nhosts = a, b\n"
                     "encode_lag_s = -1\nencode_share = 0.25\nencode_share_most = 0.75\n"));
    for (int i = 0; i < IS_N_SETTINGS; i++) {
        char *v = is_config_value(&a, (enum is_setting_id)i), *w;
        OK(is_config_set(&b, is_config_name((enum is_setting_id)i), v, IS_BY_FLAG, 0));
        w = is_config_value(&b, (enum is_setting_id)i);
        assert_string_equal(v, w);
        is_free(v);
        is_free(w);
    }
    assert_int_equal(b.ram, (uint64_t)1536 << 20);
    assert_int_equal(b.max_body, 1025);
    assert_true(b.encode_lag_s == -1 && b.encode_share == 0.25 && b.encode_share_most == 0.75);
    is_config_free(&a);
    is_config_free(&b);
}

static void what_no_single_value_says_is_checked(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        { "host = 0.0.0.0\n", "--keys" },
        { "host = ::\n", "--keys" },
        { "host = 192.168.1.5\n", "--keys" },
        { "host = example.org\n", "--keys" },
        { "host = 127.0.0.1.example.org\n", "--keys" },
        { "tls_cert = a\n", "belong together" },
        { "tls_key = a\n", "belong together" },
        { "cors = *\n", "cors" },
        { "cors = app.example\n", "origin" },
        { "cors = https://app.example/x\n", "origin" },
        { "encode_share = 0\n", "encode_share" },
        { "encode_share = 0.6\n", "encode_share_most" },
        { "encode_share_most = 0.05\n", "encode_share_most" },
        { "encode_share_most = 1\n", "below 1" },
    };
    is_config c;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        OK(is_config_init(&c));
        OK(read_text(&c, cases[i].text));
        n_errors = 0;
        if (is_config_check(&c, keep, NULL) == INFERSCALE_OK || n_errors != 1 || !strstr(errors[0], cases[i].part))
            fail_msg("%s: %zu errors, %s", cases[i].text, n_errors, errors[0]);
        is_config_free(&c);
    }
    static const char *const good[] = { "",
                                        "host = ::1",
                                        "host = localhost",
                                        "host = 127.1.2.3",
                                        "host = 0.0.0.0\nkeys = k",
                                        "tls_cert = a\ntls_key = b",
                                        "cors = https://app.example",
                                        "cors = *\nkeys = k",
                                        "encode_lag_s = 0",
                                        "encode_share = 0.9\nencode_share_most = 0.9" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        OK(is_config_init(&c));
        OK(read_text(&c, good[i]));
        OK(is_config_check(&c, NULL, NULL));
        is_config_free(&c);
    }
}

static void no_memory_is_said(void **state)
{
    for (size_t nth = 1;; nth++) {
        is_config c;
        char text[] = "host = 127.0.0.3\nsystem = \"x\"\n";
        is_mem_fail_at(nth);
        is_status st = is_config_init(&c);
        if (st == INFERSCALE_OK) st = is_config_text(&c, "f", text, strlen(text), NULL, NULL);
        bool failed = is_mem_failed();
        is_mem_fail_at(0);
        is_config_free(&c);
        if (!failed) break;
        assert_int_not_equal(st, INFERSCALE_OK);
    }
}

/* ---- The program --------------------------------------------------------------------------------------------------------- */

static void the_flags_are_the_table(void **state)
{
    for (int i = 0; i < IS_N_SETTINGS; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "--%s", is_config_name((enum is_setting_id)i));
        for (char *p = flag; *p; p++) *p = *p == '_' ? '-' : *p;
        assert_string_equal(serve_options[i + 1].name, flag);
    }
    assert_int_equal(sh("$IS serve --help"), 0);
    expect_in(last.out, "--max-body SIZE");
    expect_in(last.out, "(default: 16M)");
}

static void config_check_shows_values_and_where_they_came_from(void **state)
{
    static const char text[] = "port = 9000\nextractor_key = very-secret\nmode = text\n";
    write_file("a.conf", text, sizeof text - 1);
    assert_int_equal(sh("INFERSCALE_MODE=none INFERSCALE_PROT=1 $IS config check a.conf --k 5 --json"), 0);
    assert_true(json_is_true(json_object_get(last.json, "ok")));
    bool port = false, mode = false, k = false, idle = false;
    for (size_t i = 0; i < count("settings"); i++) {
        json_t *o = item("settings", i);
        const char *name = of(o, "name"), *from = of(o, "from"), *value = of(o, "value");
        port |= !strcmp(name, "port") && !strcmp(from, "file") && !strcmp(value, "9000") &&
                json_integer_value(json_object_get(o, "line")) == 1;
        mode |= !strcmp(name, "mode") && !strcmp(from, "environment") && !strcmp(value, "none");
        k |= !strcmp(name, "k") && !strcmp(from, "flag") && !strcmp(value, "5");
        idle |= !strcmp(name, "idle_s") && !strcmp(from, "default") && !strcmp(value, "75");
    }
    assert_true(port && mode && k && idle);
    assert_null(strstr(last.out, "very-secret"));
    expect_in(last.out, "INFERSCALE_PROT sets nothing; did you mean INFERSCALE_PORT?");
    assert_int_equal(sh("INFERSCALE_ENCODE_SHARE=0.2 $IS config check a.conf --encode-lag-s -1 --json"), 0);
    expect_in(last.out, "{\"name\":\"encode_lag_s\",\"value\":\"-1\",\"from\":\"flag\"}");
    expect_in(last.out, "{\"name\":\"encode_share\",\"value\":\"0.2\",\"from\":\"environment\"}");
    assert_int_equal(sh("INFERSCALE_CONFIG=a.conf $IS config check"), 0);
    expect_in(last.out, "9000");
    assert_null(strstr(last.out, "very-secret"));
    static const char bad[] = "prot = 9000\nk = 5000\nkeys = nothing.txt\nhost = 0.0.0.0\n";
    write_file("b.conf", bad, sizeof bad - 1);
    assert_int_equal(sh("$IS config check b.conf"), 1);
    expect_in(last.err, "b.conf, line 1: there is no setting \"prot\"; did you mean port?");
    expect_in(last.err, "b.conf, line 2: k takes a number from 1 to 1000");
    expect_in(last.err, "nothing.txt");
    assert_int_equal(sh("$IS serve --config b.conf"), 1);
    expect_in(last.err, "line 1");
    assert_int_equal(sh("$IS serve --port 70000"), 1);
    expect_in(last.err, "--port");
    assert_int_equal(sh("$IS serve --host 0.0.0.0"), 1);
    expect_in(last.err, "--keys");
    assert_int_equal(sh("$IS config check none.conf"), 1);
    assert_int_equal(sh("$IS serve something"), 2);
}

/* ---- The server as a program --------------------------------------------------------------------------------------------- */

static void the_program_serves_until_it_is_told_to_end(void **state)
{
    static const char *const signals[] = { "TERM", "INT" };
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(sh("rm -f o e; $IS serve --engine mock --refine none --port 0 --json --log json >o 2>e & p=$!; n=0; "
                            "while [ ! -s o ] && [ $n -lt 200 ]; do sleep 0.1; n=$((n+1)); done; kill -%s $p; wait $p; echo "
                            "\"ended $?\" >&2; cat e >&2; cat o",
                            signals[i]),
                         0);
        expect_in(last.err, "ended 0");
        assert_string_equal(text_at("host"), "127.0.0.1");
        assert_true(number_at("port") > 0);
        expect_in(text_at("url"), "http://127.0.0.1:");
        expect_in(last.err, "\"message\":\"ready: ");
        expect_in(last.err, "\"message\":\"ending: ");
    }
    /* A signal that comes before it is ready is not lost. (The shell gets it into the server itself: `timeout`, told to end while it begins, may
     * leave its command behind.) */
    for (int ms = 0; ms < 200; ms += 20) {
        assert_int_equal(
            sh("timeout -k 1 60 sh -c '$IS serve --engine mock --refine none --port 0 >o 2>&1 & p=$!; sleep 0.%03d; kill -TERM $p; "
               "wait $p'; r=$?; [ $r = 0 ] || [ $r = 143 ]",
               ms),
            0);
    }
    assert_int_equal(sh("$IS serve --engine mock --home /proc/nowhere --port 0"), 1);
    assert_int_equal(sh("$IS serve --engine none --port 0"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_sets_what_it_names),
        cmocka_unit_test(what_is_wrong_is_said_with_its_line),
        cmocka_unit_test(flags_go_before_variables_and_those_before_the_file),
        cmocka_unit_test(every_setting_reads_back_as_it_is_written),
        cmocka_unit_test(what_no_single_value_says_is_checked),
        cmocka_unit_test(no_memory_is_said),
        cmocka_unit_test_setup(the_flags_are_the_table, program_fresh),
        cmocka_unit_test_setup(config_check_shows_values_and_where_they_came_from, program_fresh),
        cmocka_unit_test_setup(the_program_serves_until_it_is_told_to_end, program_fresh),
    };
    return cmocka_run_group_tests(tests, program_set_up, program_tear_down);
}
