/* The verb `eval report`: what is drawn is what the files say, computed back from where it is
 * drawn; files that are torn, empty, foreign or hostile. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/program.h"

static int set_up(void **state)
{
    char here[1024], path[1200];

    if (!getcwd(here, sizeof here)) return -1;
    snprintf(path, sizeof path, "%s/fuzz/corpus/locomo/small.json", here);
    setenv("DATA", path, 1);
    return program_set_up(state);
}

/* ---- Reading a plot -------------------------------------------------------------------------- */

typedef struct axis {
    double value[2], at[2]; /* two ticks */
    bool log;
} axis;

typedef struct drawn {
    double x, y, lo, hi; /* px; lo, hi: from the point, NaN without a bar */
} drawn;

static double attribute(const char *tag, const char *name)
{
    char key[40];
    const char *s;

    snprintf(key, sizeof key, " %s=\"", name);
    s = strstr(tag, key);
    if (s == NULL) fail_msg("no %s in %.120s", name, tag);
    return strtod(s + strlen(key), NULL);
}

/* The first and the last tick of an axis. */
static axis axis_of(const char *svg, char which, bool log)
{
    char tag[64];
    axis a = { .log = log };
    size_t n = 0;

    snprintf(tag, sizeof tag, "<g class=\"tick\" data-axis=\"%c\"", which);
    for (const char *s = strstr(svg, tag); s; s = strstr(s + 1, tag), n++) {
        const size_t i = n ? 1 : 0;

        a.value[i] = attribute(s, "data-value");
        a.at[i] = attribute(s, "data-at");
    }
    assert_true(n >= 2);
    return a;
}

static double value_at(const axis *a, double at)
{
    const double t = (at - a->at[0]) / (a->at[1] - a->at[0]);

    if (a->log) return a->value[0] * pow(a->value[1] / a->value[0], t);
    return a->value[0] + t * (a->value[1] - a->value[0]);
}

/* The points of a series in the order in which they are drawn. across: bars lie. */
static size_t points_of(const char *svg, int series, bool across, drawn *out, size_t most)
{
    char tag[80];
    size_t n = 0;

    snprintf(tag, sizeof tag, "<g class=\"point\" data-series=\"%d\" transform=\"translate(",
             series);
    for (const char *s = strstr(svg, tag); s && n < most; s = strstr(s + 1, tag), n++) {
        const char *end = strstr(s, "</g>"), *bar = strstr(s, "class=\"bar");
        drawn *d = &out[n];

        assert_int_equal(sscanf(s + strlen(tag), "%lf %lf", &d->x, &d->y), 2);
        d->lo = d->hi = NAN;
        if (bar == NULL || bar > end) continue;
        bar = strstr(bar, " d=\"") + 4;
        if (across) assert_int_equal(sscanf(bar, "M%lf -4v8m0 -4H%lf", &d->lo, &d->hi), 2);
        else assert_int_equal(sscanf(bar, "M-4 %lfh8m-4 0V%lf", &d->lo, &d->hi), 2);
    }
    return n;
}

static void near(double got, double want)
{
    if (fabs(got - want) > 0.002 * fabs(want) + 0.02) fail_msg("%g is drawn for %g", got, want);
}

/* The plot of this name, kept until the next one. */
static const char *plot(const char *name)
{
    sh("cat 'out/%s.svg'", name);
    expect_code(0);
    return last.out;
}

static void put(const char *name, const char *text) { write_file(name, text, strlen(text)); }

static void expect_not_in(const char *text, const char *part)
{
    if (strstr(text, part)) fail_msg("\"%s\" is in: %.400s", part, strstr(text, part));
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static const char ttft[] =
    "{\"machine\":\"M1\",\"model\":\"tiny\",\"weights\":\"Q4_0\",\"commit\":\"abc\",\"date\":"
    "\"2026-12-01\","
    "\"seed\":1,\"runs\":11,\"rows\":["
    "{\"vault\":\"ram\",\"k\":0,\"fact_tokens\":0,\"n\":11,\"text_ms\":30,\"injected_ms\":29,"
    "\"floor_ms\":28,\"embed_ms\":5,\"text_lo\":29,\"text_hi\":33},"
    "{\"vault\":\"cold\",\"k\":0,\"fact_tokens\":0,\"n\":11,\"text_ms\":31,\"injected_ms\":999,"
    "\"floor_ms\":28},"
    "{\"vault\":\"ram\",\"k\":37,\"fact_tokens\":900,\"n\":11,\"text_ms\":700,\"injected_ms\":50,"
    "\"plain_ms\":600,\"plain_lo\":550,\"plain_hi\":650,\"floor_ms\":49,\"text_lo\":650,"
    "\"text_hi\":790},"
    "{\"vault\":\"ram\",\"k\":100,\"fact_tokens\":2800,\"n\":11,\"text_ms\":7306,"
    "\"injected_ms\":125,\"floor_ms\":123,\"text_lo\":7000,\"text_hi\":7400}]}";

static void lines_stand_where_the_numbers_are(void **state)
{
    static const double k[] = { 0, 37, 100 }, text[] = { 30, 700, 7306 }, lo[] = { 29, 650, 7000 },
                        hi[] = { 33, 790, 7400 };
    drawn d[8];
    axis x, y;
    const char *svg;

    (void)state;
    put("ttft.json", ttft);
    sh("$IS eval report ttft.json --out out --json");
    expect_code(0);
    assert_int_equal(number_at("plots"), 1);
    assert_int_equal(count("missing"), 7);
    svg = plot("ttft");
    x = axis_of(svg, 'x', false);
    y = axis_of(svg, 'y', true);
    assert_int_equal(points_of(svg, 0, false, d, 8), 3);
    for (int i = 0; i < 3; i++) {
        near(value_at(&x, d[i].x), k[i]);
        near(value_at(&y, d[i].y), text[i]);
        near(value_at(&y, d[i].y + d[i].lo), lo[i]);
        near(value_at(&y, d[i].y + d[i].hi), hi[i]);
    }
    assert_int_equal(points_of(svg, 1, false, d, 8), 3); /* injected; the cold vault is not drawn */
    near(value_at(&y, d[0].y), 29);
    assert_true(isnan(d[0].lo));
    assert_int_equal(points_of(svg, 3, false, d, 8), 1); /* an arm that one row has */
    near(value_at(&x, d[0].x), 37);
    near(value_at(&y, d[0].y), 600);
    assert_int_equal(points_of(svg, 4, false, d, 8), 0); /* embed_ms is no arm */
    expect_in(svg, ">plain</text>");
    sh("cat out/index.html");
    expect_in(last.out, "<td>[650, 790]</td><td>11</td><td>900</td><td>14</td>");
    expect_in(last.out, "<dd>M1</dd>");
    expect_in(last.out, "<dd>inferscale bench ttft --k 0,37,100 --runs 11 --threads 1 --json</dd>");
    expect_in(last.out, "<code>inferscale bench serve ");
}

#define HEAD                                                                                       \
    "{\"results\":\"inferscale eval accuracy\",\"version\":2,\"digest\":\"x\",\"configuration\":{" \
    "\"k\":10,\"model\":\"tiny\",\"policies\":[\"header\"],\"questions\":\"synthetic\",\"seed\":"  \
    "7,\"weights\":\"Q4_0\"},\"arms\":[\"none\",\"gold\",\"text\",\"injected header\",\"twin "     \
    "header\"],\"marks\":[\"right\",\"f1\",\"gold_nll\",\"choice\",\"judged\"]}\n"
#define MARK(right) "[" #right ",0,1,null,null]"
#define QUESTION(type, none, text, injected)                                                       \
    "{\"index\":0,\"type\":\"" type "\",\"recall\":1,\"marks\":[" MARK(none) ",null," MARK(        \
        text) "," MARK(injected) "," MARK(text) "]}\n"

static const char accuracy[] = HEAD QUESTION("single", 0, 1, 1) QUESTION("single", 0, 1, 0)
    QUESTION("single", 1, 1, 0) QUESTION("single", 0, 1, 0) QUESTION("time", 0, 0, 1);

static void dots_stand_where_the_shares_are(void **state)
{
    drawn d[8];
    axis x;
    const char *svg;

    (void)state;
    put("accuracy.jsonl", accuracy);
    sh("$IS eval report accuracy.jsonl --out out");
    expect_code(0);
    expect_in(last.out, "out/index.html: 1 plot\n");
    svg = plot("accuracy");
    x = axis_of(svg, 'x', false);
    /* none, text, injected; nobody asked gold, and twins are not drawn. single, time, all, and the
     * types that count: single, where text is right in 4 of 4 and no memory in 1. */
    assert_int_equal(points_of(svg, 0, true, d, 8), 4);
    near(value_at(&x, d[0].x), 25);
    near(value_at(&x, d[2].x), 20);
    assert_int_equal(points_of(svg, 1, true, d, 8), 4);
    near(value_at(&x, d[0].x), 100);
    near(value_at(&x, d[0].x + d[0].lo), 51.0109); /* Wilson's, 4 of 4 */
    near(value_at(&x, d[2].x), 80);
    assert_int_equal(points_of(svg, 2, true, d, 8), 4);
    near(value_at(&x, d[0].x), 25);
    near(value_at(&x, d[1].x), 100);
    assert_int_equal(points_of(svg, 3, true, d, 8), 0);
    assert_true(d[0].y < d[1].y);
    sh("cat out/index.html");
    expect_in(last.out,
              "<td>types that count</td><td class=\"left\">injected header</td><td>25</td>");
    expect_in(last.out, "<td>-75</td>"); /* points against text */
}

#define FIDELITY                                                                                   \
    "{\"model\":\"tiny\",\"weights\":\"Q4_0\",\"codec\":\"%s\",\"kv_bytes_per_token\":%d,"         \
    "\"seed\":1,"                                                                                  \
    "\"orders\":2,\"conversations\":[\"c\"],\"resampled\":\"questions\",\"rows\":["                \
    "{\"arm\":\"B\",\"policy\":\"header\",\"repair\":0,\"k\":%d,\"n\":%d,\"kl_mean\":0.2,"         \
    "\"order_ratio\":%g,\"ratio_lo\":%g,\"ratio_hi\":%g,\"order_ratio_s\":5},"                     \
    "{\"arm\":\"S_free\",\"policy\":null,\"repair\":0,\"k\":%d,\"n\":%d,\"kl_mean\":0.1,"          \
    "\"order_ratio\":1,\"ratio_lo\":1,\"ratio_hi\":1,\"order_ratio_s\":1.5}]}"

static void fidelity(const char *name, const char *codec, int bytes, int k, int n, double ratio)
{
    char text[2048];

    snprintf(text, sizeof text, FIDELITY, codec, bytes, k, n, ratio, ratio / 2, ratio * 2, k, n);
    put(name, text);
}

static void files_share_a_plot(void **state)
{
    drawn d[8];
    axis x, y;
    const char *svg;

    (void)state;
    fidelity("a.json", "f16", 1000, 10, 104, 2);
    fidelity("b.json", "f16", 1000, 50, 8, 4);
    fidelity("c.json", "f16", 1000, 10, 5, 3); /* fewer questions than a.json asked */
    fidelity("d.json", "int8", 516, 10, 104, 2.5);
    sh("$IS eval report a.json b.json c.json d.json --out out --json");
    expect_code(0);
    assert_int_equal(number_at("plots"), 6);
    svg = plot("order-k-tiny-Q4_0-rows-in-f16");
    x = axis_of(svg, 'x', false);
    y = axis_of(svg, 'y', true);
    assert_int_equal(points_of(svg, 0, false, d, 8), 2);
    near(value_at(&x, d[0].x), 10);
    near(value_at(&y, d[0].y), 2);
    near(value_at(&x, d[1].x), 50);
    near(value_at(&y, d[1].y), 4);
    near(value_at(&y, d[1].y + d[1].hi), 8);
    svg = plot("codec-tiny-Q4_0-k-10");
    x = axis_of(svg, 'x', false);
    y = axis_of(svg, 'y', true);
    assert_int_equal(points_of(svg, 0, false, d, 8), 2);
    near(value_at(&x, d[0].x), 516);
    near(value_at(&y, d[0].y), 2.5);
    near(value_at(&x, d[1].x), 1000);
    near(value_at(&y, d[1].y), 2);
    svg = plot("a");
    x = axis_of(svg, 'x', true);
    assert_int_equal(points_of(svg, 0, true, d, 8), 1);
    near(value_at(&x, d[0].x + d[0].lo), 1);
    sh("cat out/index.html");
    expect_in(last.out, "eval fidelity --codec int8 --data FILE");
}

static void servers_and_searches(void **state)
{
    drawn d[8];
    axis x, y;
    const char *svg;

    (void)state;
    put("serve.json",
        "{\"model\":\"tiny\",\"k\":50,\"max_tokens\":32,\"pairs\":2,\"rows\":["
        "{\"users\":8,\"mode\":\"kv\",\"rate\":null,\"request_throughput\":1.5,\"completed\":40,"
        "\"median_ttft_ms\":250,\"windows\":[{\"request_throughput\":1.25},{\"request_throughput\":"
        "1.75}]},"
        "{\"users\":8,\"mode\":\"text\",\"rate\":null,\"request_throughput\":0.25},"
        "{\"users\":100,\"mode\":\"text\",\"rate\":null,\"request_throughput\":0.5},"
        "{\"users\":8,\"mode\":\"kv\",\"rate\":2.0,\"request_throughput\":9,\"completed\":40}]}");
    put("recall.json", "{\"model\":\"mini\",\"conversations\":5,\"rows\":["
                       "{\"store\":\"turns\",\"method\":\"fused\",\"categories\":\"1-4\",\"k\":10,"
                       "\"recall\":0.75,\"n\":90},"
                       "{\"store\":\"turns\",\"method\":\"fused\",\"categories\":\"5\",\"k\":10,"
                       "\"recall\":0.1,\"n\":9}]}");
    sh("$IS eval report serve.json recall.json --out out");
    expect_code(0);
    svg = plot("serve");
    x = axis_of(svg, 'x', false);
    y = axis_of(svg, 'y', false);
    assert_int_equal(points_of(svg, 0, false, d, 8), 1); /* the open loop is not drawn */
    near(value_at(&x, d[0].x), 8);
    near(value_at(&y, d[0].y), 1.5);
    near(value_at(&y, d[0].y + d[0].lo), 1.25);
    near(value_at(&y, d[0].y + d[0].hi), 1.75);
    assert_int_equal(points_of(svg, 1, false, d, 8), 2);
    near(value_at(&x, d[1].x), 100);
    svg = plot("recall"); /* a single k: no line, a row */
    expect_in(svg, ">10 results</text>");
    x = axis_of(svg, 'x', false);
    assert_int_equal(points_of(svg, 0, true, d, 8), 1);
    near(value_at(&x, d[0].x), 75);
}

/* What the commands write today is recognised, each by its own section; and what they draw it from
 * is there. */
static void what_the_commands_write_is_read(void **state)
{
    static const char *const runs[] = {
        "eval fidelity --data $DATA --policy header --codec f16 --k 2 --n 1 --json >f.json",
        "eval accuracy --data $DATA --method lexical --policy header --k 2 --plain --results "
        "a.jsonl --json >b.json",
        "eval accuracy --data $DATA --method lexical --policy header --k 2 --best-first --results "
        "o.jsonl --json >p.json",
        "bench ttft --k 0,2 --runs 3 --json >t.json",
    };
    static const char *const plots[] = { "a", "b", "o", "p", "c", "f", "r", "t" };

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        sh("$IS %s --engine mock --model mock", runs[i]);
        expect_code(0);
    }
    sh("$IS eval recall --data $DATA --lexical-only --json >r.json");
    sh("$IS eval compare f.json f.json --json >c.json");
    expect_code(0);
    sh("$IS eval report *.json *.jsonl --out out");
    expect_code(0);
    for (size_t i = 0; i < sizeof plots / sizeof *plots; i++)
        expect_in(plot(plots[i]), "<g class=\"point\"");
    expect_in(plot("t"), ">plain</text>");
    expect_in(plot("a"), ">plain</text>");
    expect_in(plot("o"), "questions, best fact first<");
    expect_in(plot("p"), "questions, best fact first<");
    expect_not_in(plot("a"), "best fact first");
    sh("grep -c -e '--best-first' out/index.html");
    expect_in(last.out, "1");
    sh("cat f.json");
    expect_in(last.out, "\"codec\":\"f16\",\"kv_bytes_per_token\":");
}

/* ---- Files that are not as they should be ---------------------------------------------------- */

static void refuse(const char *text, const char *code, const char *why)
{
    put("bad.json", text);
    sh("$IS eval report ttft.json bad.json --out none --json");
    expect_code(1);
    expect_error(code, why);
    expect_in(last.err, "bad.json");
    sh("ls none");
    assert_int_not_equal(last.code, 0); /* nothing was written */
}

static void bad_files_are_named(void **state)
{
    (void)state;
    put("ttft.json", ttft);
    refuse("", "E_PARSE", "is empty");
    refuse(" \n", "E_PARSE", "is empty");
    refuse("{\"rows\":[", "E_PARSE", "is no JSON: line 1");
    refuse("k,ms\n5,45\n", "E_PARSE", "is no JSON");
    refuse("{\"rows\":[],\"rows\":[]}", "E_PARSE", "is no JSON");
    refuse("{\"rows\":[{\"layout\":\"rows\"}]}", "E_INVALID", "no result that a plot is made of");
    refuse("[1]", "E_INVALID", "no result that a plot is made of");
    refuse(HEAD, "E_PARSE", "holds no question's result");
    refuse(HEAD "{\"index\":0}\n", "E_PARSE", "line 2 of bad.json");
    refuse(HEAD QUESTION("single", 0, 1, 1) "{\"ind\n" QUESTION("single", 0, 1, 1), "E_PARSE",
           "line 3 of bad.json is no JSON object");
    refuse("{\"results\":\"inferscale", "E_PARSE", "is cut off");
    refuse("{\"results\":\"x\",\"configuration\":{},\"arms\":[\"none\"]}\n", "E_PARSE",
           "lacks the arm none or text");
    sh("$IS eval report missing.json --out none");
    expect_code(1);
    expect_in(last.err, "missing.json");
    sh("$IS eval report ttft.json");
    expect_code(2);
    sh("$IS eval report --out none");
    expect_code(2);
    sh("mkdir results && $IS eval report results --out none");
    expect_code(2);
    expect_in(last.err, "results is a folder; give the files of results in it, e.g. results/*.json");
}

/* What a file does not say is a question mark. */
static void what_a_file_does_not_say_is_marked(void **state)
{
    (void)state;
    put("bare.json", "{\"model\":\"nanny\",\"rows\":[{\"arm\":\"B\",\"policy\":\"header\",\"kl_mean\":0.1,"
                     "\"order_ratio\":2,\"ratio_lo\":1,\"ratio_hi\":3,\"order_ratio_s\":5}]}");
    sh("$IS eval report bare.json --out out");
    expect_code(0);
    sh("cat out/index.html out/*.svg");
    expect_in(last.out, "? questions");
    expect_in(last.out, "--n ?");
    expect_in(last.out, "nanny");
    expect_not_in(last.out, "nan ");
    expect_not_in(last.out, "nan<");
}

static void a_torn_last_line_is_left_out(void **state)
{
    char text[sizeof accuracy];

    (void)state;
    memcpy(text, accuracy, sizeof text);
    text[sizeof accuracy - 20] = 0;
    put("torn.jsonl", text);
    sh("$IS eval report torn.jsonl --out out");
    expect_code(0);
    sh("cat out/index.html");
    expect_in(last.out, "k = 10, 4 synthetic questions");
    expect_in(last.out, "its last line is torn and left out");
}

/* The arm of a usual memory stack, where a run has it, against text. */
static void an_arm_more_is_drawn(void **state)
{
    drawn d[8];
    axis x;

    (void)state;
    put("plain.jsonl",
        "{\"results\":\"inferscale eval accuracy\",\"configuration\":{\"k\":5,\"seed\":1},\"arms\":"
        "[\"none\",\"text\",\"plain\"]}\n"
        "{\"type\":\"single\",\"marks\":[" MARK(0) "," MARK(0) "," MARK(1) "]}\n"
        "{\"type\":\"single\",\"marks\":[" MARK(0) "," MARK(1) "," MARK(1) "]}\n");
    sh("$IS eval report plain.jsonl --out out");
    expect_code(0);
    x = axis_of(plot("plain"), 'x', false);
    assert_int_equal(points_of(last.out, 2, true, d, 8), 3);
    near(value_at(&x, d[0].x), 100);
    sh("cat out/index.html");
    expect_in(last.out, "<td class=\"left\">plain</td><td>100</td><td>[34.2, 100]</td><td>2</td>"
                        "<td>50</td>");
}

/* Everything that comes from a file is text. */
static void hostile_strings_are_text(void **state)
{
    (void)state;
    put("x'\"&.json",
        "{\"machine\":\"</style><script>alert(1)</script>\",\"model\":\"a\\\" onload=\\\"b\","
        "\"weights\":\"\\u0001\\u202e\\u2028\",\"date\":\"<img "
        "src=x>\",\"commit\":\"'&lt;\",\"rows\":["
        "{\"users\":1,\"mode\":\"<b>]]>\",\"request_throughput\":1,\"completed\":1},"
        "{\"users\":2,\"mode\":\"../../x\",\"request_throughput\":1e300,\"completed\":1}]}");
    sh("$IS eval report *.json --out out");
    expect_code(0);
    sh("cat out/index.html out/*.svg");
    expect_not_in(last.out, "<script");
    expect_not_in(last.out, "<img");
    expect_not_in(last.out, "<b>");
    expect_not_in(last.out, " onload=\"");
    expect_not_in(last.out, "\xE2\x80\xAE");
    expect_not_in(last.out, "\xE2\x80\xA8");
    expect_not_in(last.out, "\x01");
    expect_in(last.out, "&lt;/style&gt;&lt;script&gt;alert(1)&lt;/script&gt;");
    expect_in(last.out, "&#39;&amp;lt;");
    sh("ls out");
    assert_string_equal(last.out, "index.html\nx.svg\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(lines_stand_where_the_numbers_are, program_fresh),
        cmocka_unit_test_setup(dots_stand_where_the_shares_are, program_fresh),
        cmocka_unit_test_setup(files_share_a_plot, program_fresh),
        cmocka_unit_test_setup(servers_and_searches, program_fresh),
        cmocka_unit_test_setup(what_the_commands_write_is_read, program_fresh),
        cmocka_unit_test_setup(bad_files_are_named, program_fresh),
        cmocka_unit_test_setup(a_torn_last_line_is_left_out, program_fresh),
        cmocka_unit_test_setup(what_a_file_does_not_say_is_marked, program_fresh),
        cmocka_unit_test_setup(an_arm_more_is_drawn, program_fresh),
        cmocka_unit_test_setup(hostile_strings_are_text, program_fresh),
    };

    return cmocka_run_group_tests(tests, set_up, program_tear_down);
}
