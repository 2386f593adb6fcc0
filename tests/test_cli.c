/* test_cli.c - the program itself, run as a person or a script runs it, with the mock engine and a home of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static char program[4096], home[64], work[80];

/* ---- Running ------------------------------------------------------------------------------------------------------------- */

typedef struct result {
    int code;          /* exit code; -1 = killed */
    char *out, *err;
    json_t *json;      /* the last line of out, if it is an object */
} result;

static result last;

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *s = NULL;
    long n;
    if (!f) return strdup("");
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    rewind(f);
    s = calloc(1, (size_t)n + 1);
    assert_int_equal(fread(s, 1, (size_t)n, f), n);
    fclose(f);
    return s;
}

static void write_file(const char *name, const char *text, size_t n)
{
    char path[256];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", work, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void forget_last(void)
{
    free(last.out);
    free(last.err);
    json_decref(last.json);
    memset(&last, 0, sizeof last);
}

static void parse_last_line(void)
{
    char *line = last.out;
    size_t n = strlen(line);
    while (n && line[n - 1] == '\n') n--;
    for (size_t i = n; i-- > 0;)
        if (line[i] == '\n') {
            line += i + 1;
            n -= i + 1;
            break;
        }
    if (line[0] == '{') last.json = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
}

/* Runs a shell command in the work folder, where $IS is the program and --engine mock comes from the caller. */
static int sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static int sh(const char *fmt, ...)
{
    char command[8192], full[12288], path[256];
    int status;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    forget_last();
    snprintf(full, sizeof full, "cd %s && { %s ; } >%s/.out 2>%s/.err", work, command, work, work);
    status = system(full);
    last.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    snprintf(path, sizeof path, "%s/.out", work);
    last.out = read_file(path);
    snprintf(path, sizeof path, "%s/.err", work);
    last.err = read_file(path);
    parse_last_line();
    return last.code;
}

#define expect_code(want)                                                                                                      \
    do {                                                                                                                       \
        if (last.code != (want)) fail_msg("exit code %d, not %d\n%s\n%s", last.code, (want), last.out, last.err);              \
    } while (0)
#define expect_in(text, part)                                                                                                  \
    do {                                                                                                                       \
        if (!strstr((text), (part))) fail_msg("\"%s\" is not in: %s", (part), (text));                                         \
    } while (0)

static const char *text_at(const char *name) { return json_string_value(json_object_get(last.json, name)); }
static json_int_t number_at(const char *name) { return json_integer_value(json_object_get(last.json, name)); }
static json_t *item(const char *list, size_t i) { return json_array_get(json_object_get(last.json, list), i); }
static size_t count(const char *list) { return json_array_size(json_object_get(last.json, list)); }
static const char *of(json_t *o, const char *name) { return json_string_value(json_object_get(o, name)); }

static void expect_error(const char *code, const char *part)
{
    json_t *e = json_object_get(last.json, "error");
    if (!e) fail_msg("no error object in: %s", last.out);
    assert_string_equal(of(e, "code"), code);
    expect_in(of(e, "message"), part);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw) { return remove(path); }

static int fresh_home(void **state)
{
    nftw(work, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return mkdir(work, 0700);
}

/* ---- Usage --------------------------------------------------------------------------------------------------------------- */

static void explains_itself(void **state)
{
    static const char *const verbs[] = { "remember", "recall", "ask", "chat", "ls", "show", "forget", "encode", "import", "export",
                                         "demo", "doctor", "completion", "man", "help", "bench ttft", "bench compose",
                                         "eval recall", "eval fidelity", "import locomo" };
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
        "recall", "recall a b", "recall q -k 0", "recall q -k 1001", "recall q --from yesterday", "recall q --metadata '[1]'",
        "recall q --from 2024-02-01 --to 2024-01-01", "ask", "ask q --mode maybe", "ask q --temperature -1", "ask q --top-p 2",
        "ask q --max-tokens 0", "ask q --repair x", "show", "show x", "show 0", "show -1", "forget", "forget 1 --all", "forget --all",
        "forget one", "remember x --turns --metadata '{}'", "remember x --speaker Anna", "remember x --time never",
        "remember --jsonl f x", "remember x --ram 3Q", "import", "import a b", "export --json", "export a b", "ls x", "chat x",
        "encode x", "doctor x", "demo x", "demo --costs 0", "demo --costs ,", "completion", "completion tcsh", "man x", "help a b c",
        "ls --json=1", "ls --nothing",
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

/* ---- Verbs ----------------------------------------------------------------------------------------------------------------- */

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
    expect_code(0);
    assert_int_equal(number_at("deleted"), 1);
    assert_int_equal(number_at("unknown"), 1);
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
}

static void scopes_stay_apart(void **state)
{
    sh("$IS remember --later --user anna 'Anna likes tea.' && $IS remember --later --user ben 'Ben likes coffee.' &&"
       " $IS remember --later --tenant t2 --user anna 'Another Anna.' && $IS remember --later --user anna --agent bot 'For the bot.'");
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
    sh("printf 'What about peanuts?\\n/facts\\n/stats\\n/nothing\\n/remember Anna moved to Lyon.\\nWhere did Anna move?\\n/quit\\nnot read\\n' |"
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
    sh("$IS chat --engine mock </dev/null");
    expect_code(0);
    assert_string_equal(last.out, "");
}

/* ---- Import and export ----------------------------------------------------------------------------------------------------- */

/* Exports without the head line, ids and write times: what must be the same after a round trip. */
#define STRIP "sed -e 1d -e 's/\"id\":[0-9]*,//;s/\"source_turn\":[0-9]*/\"source_turn\":N/;s/\"write_time\":\"[^\"]*\",//;s/\"version\":[0-9]*,//'"

static void round_trip(void **state)
{
    static const char lines[] =
        "{\"type\":\"inferscale\",\"format\":1}\n"
        "{\"type\":\"turn\",\"id\":900,\"text\":\"I cannot eat nuts \xf0\x9f\xa5\x9c\",\"conversation\":\"c1\",\"speaker\":\"Anna\",\"time\":\"2024-05-01T10:00:00Z\","
        "\"external_id\":\"m-1\"}\n"
        "{\"type\":\"turn\",\"id\":901,\"text\":\"Noted.\",\"conversation\":\"c1\",\"speaker\":\"Bot\",\"time\":\"2024-05-01T10:00:05Z\"}\n"
        "{\"text\":\"Anna is allergic to nuts.\",\"event_time\":\"2024-05-01T10:00:00Z\",\"source_turn\":900,\"metadata\":{\"a\":{\"b\":[1,\"\xc3\xa9\"]}}}\n"
        "\n"
        "{\"text\":\"A \\\"quoted\\\" \\\\ fact\\nwith two lines.\",\"event_time\":1714521600,\"valid_from\":\"2024-01-01\",\"valid_to\":\"2024-12-31\","
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
    sh("INFERSCALE_HOME=$PWD/home2 $IS import --later out1.jsonl && INFERSCALE_HOME=$PWD/home2 $IS export --user anna > out2.jsonl");
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
    sh("$IS export keep.jsonl && head -c 8 keep.jsonl && ls");
    expect_in(last.out, "{\"type\"");
    assert_null(strstr(last.out, ".tmp."));
}

/* ---- What can go wrong ------------------------------------------------------------------------------------------------------ */

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
#define INTERRUPT_AT_WORK "pid=$!; for i in $(seq 200); do [ -n \"$(find $INFERSCALE_HOME/vault -type f | head -n 1)\" ] && break;" \
                          " sleep 0.05; done; kill -INT $pid; wait $pid"

static void interrupted_work_is_kept(void **state)
{
    size_t encoded;
    sh("for i in $(seq 40); do echo \"Fact number $i.\"; done > facts; $IS remember --later - < facts");
    expect_code(0);
    sh("$IS encode --engine mock --model mock:slow=50 --policy header --json & " INTERRUPT_AT_WORK);
    expect_code(1);
    expect_error("E_CANCELLED", "");
    sh("$IS encode --engine mock --policy header --json");
    expect_code(0);
    encoded = (size_t)number_at("facts_encoded");
    if (encoded == 0 || encoded == 40) fail_msg("%zu facts were left after the interruption, of 40", encoded);
    sh("export INFERSCALE_HOME=$PWD/second; $IS remember --engine mock --model mock:slow=100 --json One Two Three Four Five Six"
       " Seven Eight & " INTERRUPT_AT_WORK);
    expect_code(1);
    expect_in(last.err, "Stored. Not encoded yet");
    assert_int_equal(count("facts"), 8);
    sh("INFERSCALE_HOME=$PWD/second $IS ls --json");
    assert_int_equal(count("items"), 8);
}

static void corrupt_store(void **state)
{
    sh("$IS remember --later 'A fact.' && for f in $INFERSCALE_HOME/*.sqlite; do printf 'not a database at all, but long enough' > $f; done;"
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

/* ---- Manual and completion -------------------------------------------------------------------------------------------------- */

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
    /* The fact that answers is among those used: the first one in the table. */
    expect_in(last.out, "facts used   Nora adopted a grey cat");
    expect_in(last.out, "facts used   Nora left a spare key");
    sh("ls -d inferscale-* 2>/dev/null");
    assert_string_equal(last.out, ""); /* the demo's store is gone */
    sh("$IS demo --engine mock --runs 1 --costs 5 --json | wc -l");
    assert_string_equal(last.out, "1\n");
}

/* ---- Start ------------------------------------------------------------------------------------------------------------------ */

static int set_up(void **state)
{
    char exe[2048], is_home[128];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash;
    if (n < 0) return -1;
    exe[n] = '\0';
    slash = strrchr(exe, '/');
    *slash = '\0';
    snprintf(program, sizeof program, "%s/../inferscale", exe);
    if (access(program, X_OK) != 0) {
        print_error("%s is not there; build it with make bin plugins\n", program);
        return -1;
    }
    snprintf(home, sizeof home, "/tmp/is-test-cli-XXXXXX");
    if (!mkdtemp(home)) return -1;
    snprintf(work, sizeof work, "%s/w", home);
    snprintf(is_home, sizeof is_home, "%s/store", work);
    setenv("IS", program, 1);
    setenv("INFERSCALE_HOME", is_home, 1);
    unsetenv("INFERSCALE_MOCK");
    unsetenv("INFERSCALE_PLUGINS");
    return 0;
}

static int tear_down(void **state)
{
    forget_last();
    nftw(home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(explains_itself, fresh_home),
        cmocka_unit_test_setup(guesses_what_was_meant, fresh_home),
        cmocka_unit_test_setup(refuses_wrong_usage, fresh_home),
        cmocka_unit_test_setup(whole_flow, fresh_home),
        cmocka_unit_test_setup(remembers_from_everywhere, fresh_home),
        cmocka_unit_test_setup(scopes_stay_apart, fresh_home),
        cmocka_unit_test_setup(chats, fresh_home),
        cmocka_unit_test_setup(round_trip, fresh_home),
        cmocka_unit_test_setup(import_says_what_was_stored, fresh_home),
        cmocka_unit_test_setup(export_fails_whole, fresh_home),
        cmocka_unit_test_setup(read_only_homes, fresh_home),
        cmocka_unit_test_setup(stores_without_a_model, fresh_home),
        cmocka_unit_test_setup(falls_back_to_text, fresh_home),
        cmocka_unit_test_setup(interrupted_work_is_kept, fresh_home),
        cmocka_unit_test_setup(corrupt_store, fresh_home),
        cmocka_unit_test_setup(texts_cannot_upset_the_terminal, fresh_home),
        cmocka_unit_test_setup(manual_renders, fresh_home),
        cmocka_unit_test_setup(completions_load, fresh_home),
        cmocka_unit_test_setup(demo_runs, fresh_home),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
