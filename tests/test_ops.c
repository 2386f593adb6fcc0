/* What operators look at, over HTTP and below it: readiness and why not, metrics that agree with the store, who may read them, and that
 * every way in which an answer falls short is counted under its own name. */
#include <setjmp.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "serve/embedded.h"
#include "serve/ops.h"
#include "serve/server.h"
#include "support/exposition.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

static char *metrics_of(const serve_kit *k, const char *target)
{
    serve_reply r = serve_call(k, "GET", target, NULL, NULL);
    char why[256], *text = strdup(r.body);

    assert_int_equal(r.status, 200);
    assert_non_null(text);
    assert_string_equal(serve_head(&r, "Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
    if (!exposition_ok(r.body, r.n, why)) fail_msg("%s", why);
    serve_reply_free(&r);
    return text;
}

static void expect_status(const serve_kit *k, const char *target, const char *headers, int status)
{
    serve_reply r = serve_call(k, "GET", target, headers, NULL);

    if (r.status != status) fail_msg("%s: %d, not %d: %s", target, r.status, status, r.body);
    serve_reply_free(&r);
}

static void test_health_and_ready(void **state)
{
    serve_kit *k = serve_start(NULL, NULL);
    serve_reply r = serve_call(k, "GET", "/health", NULL, NULL);

    (void)state;
    assert_int_equal(r.status, 200);
    assert_string_equal(json_string_value(json_object_get(r.json, "status")), "ok");
    serve_reply_free(&r);
    r = serve_call(k, "GET", "/ready", NULL, NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(json_string_value(json_object_get(r.json, "status")), "ready");
    assert_null(json_object_get(r.json, "reason"));
    serve_reply_free(&r);
    serve_stop(k);
}

/* Below HTTP, where every reason can be made. */
static void test_not_ready_says_why(void **state)
{
    char *home = scratch_make(), why[256];
    is_server s = { .is = store_open(home, NULL, NULL, false) };

    (void)state;
    assert_true(is_ops_not_ready(&s, why));
    assert_non_null(strstr(why, "model is being loaded"));
    s.ready = 1;
    assert_false(is_ops_not_ready(&s, why));
    s.draining = 1;
    assert_true(is_ops_not_ready(&s, why));
    assert_non_null(strstr(why, "ending"));
    s.draining = 0;
    store_fill(s.is, 2, false);
    store_sql(home, "ALTER TABLE partitions RENAME TO taken_away");
    assert_true(is_ops_not_ready(&s, why));
    assert_non_null(strstr(why, "store cannot be read"));
    inferscale_close(s.is);
    scratch_remove(home);
}

/* ---- What happens to the store under a server ------------------------------------------------------------------------------ */

/* /ready comes to have this status, with `member` saying `part`; NULL = without the member. */
static void until_ready_is(const serve_kit *k, int status, const char *member, const char *part)
{
    char last[600] = "";

    for (int i = 0; i < 400; i++) {
        serve_reply r = serve_call(k, "GET", "/ready", NULL, NULL);
        const char *said = json_string_value(json_object_get(r.json, member));
        bool there = r.status == status && (part ? said && strstr(said, part) : !said);

        snprintf(last, sizeof last, "%d %s", r.status, r.body);
        serve_reply_free(&r);
        if (there) return;
        usleep(50000);
    }
    fail_msg("/ready stays %s", last);
}

static void expect_metric(const serve_kit *k, const char *series, double value)
{
    char *text = metrics_of(k, "/metrics");

    if (exposition_value(text, series) != value) fail_msg("%s is %g, not %g", series, exposition_value(text, series), value);
    free(text);
}

/* The same file, other bytes: store_write makes a new one. */
static void overwrite(const char *path, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, 0), n);
    close(fd);
}

static char *filled(char **bank)
{
    char *home = scratch_make();
    inferscale *is = store_open(home, NULL, NULL, false);

    store_fill(is, 40, false);
    inferscale_close(is);
    *bank = malloc(strlen(home) + 20);
    assert_non_null(*bank);
    snprintf(*bank, strlen(home) + 20, "%s/bank.sqlite", home);
    return home;
}

static void test_a_bank_that_is_damaged_under_the_server(void **state)
{
    char *bank, *home = filled(&bank), *bytes;
    serve_kit *k = serve_start("home", home, "read_only", "on", NULL); /* nobody writes: the log stays empty */
    size_t n;

    (void)state;
    until_ready_is(k, 200, "reason", NULL);
    expect_metric(k, "inferscale_store_usable{what=\"read\"}", 1);
    bytes = store_read(bank, &n);
    char *spoilt = malloc(n);
    assert_non_null(spoilt);
    memcpy(spoilt, bytes, n);
    memset(spoilt + 4096, 0x5a, n - 4096); /* all but the first page */
    overwrite(bank, spoilt, n);
    until_ready_is(k, 503, "reason", "damaged");
    expect_metric(k, "inferscale_store_usable{what=\"read\"}", 0);
    expect_status(k, "/health", NULL, 200);
    overwrite(bank, bytes, n);
    until_ready_is(k, 200, "reason", NULL);
    expect_metric(k, "inferscale_store_usable{what=\"read\"}", 1);
    assert_int_equal(unlink(bank), 0); /* SQLite would go on in the file that has no name any more */
    until_ready_is(k, 503, "reason", "moved away or deleted");
    serve_stop(k);
    free(spoilt), free(bytes), free(bank);
    scratch_remove(home);
}

/* Damage that a look at a few rows does not find, but a request did: it counts until all of the bank has been read. */
static void test_damage_that_a_request_finds(void **state)
{
    char *bank, *home = filled(&bank), *bytes, *spoilt;
    serve_kit *k = serve_start("home", home, "read_only", "on", NULL);
    size_t n, at = 0;

    (void)state;
    bytes = store_read(bank, &n);
    spoilt = malloc(n);
    assert_non_null(spoilt);
    for (size_t page = (n / 4096) - 1; page > 0 && !at; page--) { /* the last page that ends a question of anna's */
        serve_reply r;

        memcpy(spoilt, bytes, n);
        memset(spoilt + page * 4096, 0x5a, 4096);
        overwrite(bank, spoilt, n);
        r = serve_call(k, "GET", "/memories?user_id=anna&limit=1000", NULL, NULL);
        if (r.status == 500) at = page;
        serve_reply_free(&r);
        if (at) break;
        overwrite(bank, bytes, n);
    }
    if (!at) fail_msg("no page was missed");
    until_ready_is(k, 503, "reason", "damaged");
    overwrite(bank, bytes, n);
    until_ready_is(k, 200, "reason", NULL);
    serve_stop(k);
    free(spoilt), free(bytes), free(bank);
    scratch_remove(home);
}

static void fill_disk(const char *filler)
{
    static const char block[4096];
    FILE *f = fopen(filler, "w");

    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    while (fwrite(block, sizeof block, 1, f) == 1) continue;
    fclose(f);
}

static void test_a_disk_that_fills_under_the_server(void **state)
{
    static const char add[] = "{\"text\": \"Anna has a canoe.\", \"user_id\": \"anna\"}";
    char *folder = scratch_make(), home[300], filler[320];
    serve_kit *k;
    serve_reply r;

    (void)state;
    if (geteuid() != 0 || mount("tmpfs", folder, "tmpfs", 0, "size=8m") != 0) {
        scratch_remove(folder);
        skip(); /* reported as skipped: mounting is not allowed here */
    }
    snprintf(home, sizeof home, "%s/store", folder);
    snprintf(filler, sizeof filler, "%s/filler", folder);
    k = serve_start("home", home, NULL);
    until_ready_is(k, 200, "notice", NULL);
    expect_metric(k, "inferscale_store_usable{what=\"write\"}", 1);
    fill_disk(filler);
    until_ready_is(k, 200, "notice", "full");
    expect_metric(k, "inferscale_store_usable{what=\"write\"}", 0);
    expect_metric(k, "inferscale_store_usable{what=\"read\"}", 1);
    assert_int_equal(unlink(filler), 0);
    until_ready_is(k, 200, "notice", NULL);
    expect_metric(k, "inferscale_store_usable{what=\"write\"}", 1);
    r = serve_call(k, "POST", "/memories", NULL, add);
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    serve_stop(k);
    snprintf(filler, sizeof filler, "%s/probe", home);
    assert_int_not_equal(access(filler, F_OK), 0); /* what it tried with is gone */
    umount2(folder, MNT_DETACH);
    scratch_remove(folder);
}

/* What is measured beside the scrapes, and requests that were answered just now, come into them within moments. */
static void until_counted(const serve_kit *k, const char *series)
{
    for (int i = 0; i < 400; i++) {
        char *text = metrics_of(k, "/metrics?aliases=no");
        bool there = exposition_value(text, series) > 0;

        free(text);
        if (there) return;
        usleep(50000);
    }
    fail_msg("%s stays 0", series);
}

static void test_metrics_agree_with_the_store(void **state)
{
    serve_kit *k;
    char *home = scratch_make(), *text;
    inferscale *is = store_open(home, NULL, NULL, false);
    inferscale_store_info info;
    inferscale_encoder_state e = INFERSCALE_ENCODER_STATE_INIT;
    inferscale_model_info model;
    char build[300];

    (void)state;
    store_fill(is, 12, true);
    OK(inferscale_model(is, &model));
    snprintf(build, sizeof build, "inferscale_build_info{version=\"%s\",model=\"%s\",engine=\"%s\"}", inferscale_version(), model.name, model.engine);
    store_fact(is, &store_anna, "Anna has a canoe that nobody has encoded.");
    OK(inferscale_store(is, 0, &info));
    OK(inferscale_encode_status(is, NULL, &e));
    assert_true(e.n_unembedded > 0);
    inferscale_close(is);
    k = serve_start("home", home, "read_only", "on", NULL); /* nobody encodes meanwhile */
    text = metrics_of(k, "/metrics");
    assert_true(exposition_value(text, "inferscale_store_items{what=\"facts\"}") == (double)info.n_facts);
    assert_true(exposition_value(text, "inferscale_store_items{what=\"turns\"}") == (double)info.n_turns);
    assert_true(exposition_value(text, "inferscale_store_items{what=\"partitions\"}") == 2);
    assert_true(exposition_value(text, "inferscale_store_items{what=\"segments\"}") == (double)info.n_segments);
    assert_true(exposition_value(text, "inferscale_store_bytes{what=\"vault\"}") == (double)info.vault_bytes);
    assert_true(exposition_value(text, "inferscale_encoder_waiting{stage=\"embed\"}") == (double)e.n_unembedded);
    assert_true(exposition_value(text, "inferscale_encoder_waiting{stage=\"first\"}") == 1);
    assert_true(exposition_value(text, build) == 1);
    snprintf(build, sizeof build, "\nvllm:num_requests_running{model_name=\"%s\",engine=\"0\"} ", model.name);
    assert_non_null(strstr(text, build));
    free(text);
    text = metrics_of(k, "/metrics?aliases=no");
    assert_null(strstr(text, "vllm:"));
    free(text);
    until_counted(k, "inferscale_http_requests_total{route=\"/metrics\",code=\"200\"}");
    serve_stop(k);
    scratch_remove(home);
}

static double encoder_says(const serve_kit *k, const char *name)
{
    serve_reply r = serve_call(k, "GET", "/inferscale/encode", NULL, NULL);
    double v = json_number_value(json_object_get(r.json, name));

    assert_int_equal(r.status, 200);
    if (!json_is_number(json_object_get(r.json, name))) fail_msg("no %s: %s", name, r.body);
    serve_reply_free(&r);
    return v;
}

static void add_fact(const serve_kit *k, int n)
{
    char body[200];
    serve_reply r;

    snprintf(body, sizeof body, "{\"text\": \"Anna's canoe number %d is green.\", \"user_id\": \"anna\"}", n);
    r = serve_call(k, "POST", "/memories", NULL, body);
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
}

/* A stream that nobody reads to its end, and facts told meanwhile: the settings give them their share, and all that counts it moves. */
static void test_encoding_under_a_stream_is_shown(void **state)
{
    static const char ask[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"stream\": true, \"ignore_eos\": true, \"n\": 8, "
                              "\"max_tokens\": 1500}";
    serve_kit *k = serve_start("model", "mock:slow=20", "encode_lag_s", "0", "encode_share", "0.25", "encode_share_most", "0.25",
                               "question_embed_ms", "0", NULL);
    static const char *const moved[] = { "n_slices", "shared_s", "questions_s" };
    double share = 0, lag = 0;
    int n = 0, fd = serve_connect(k);
    char *text;

    (void)state;
    for (size_t i = 0; i < 3; i++) assert_true(encoder_says(k, moved[i]) == 0);
    serve_sendf(fd, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", sizeof ask - 1, ask);
    for (int i = 0; encoder_says(k, "questions_s") == 0; i++) {
        if (i == 2000) fail_msg("the question never begins");
        usleep(10000);
    }
    for (int i = 0; share == 0 || lag == 0 || encoder_says(k, "n_slices") == 0 || encoder_says(k, "facts_encoded") < 1; i++) {
        if (i == 2000) fail_msg("no share of the time: %d facts were told, %g encoded", n, encoder_says(k, "facts_encoded"));
        if (encoder_says(k, "n_unencoded") < 3) add_fact(k, n++);
        if (share == 0) share = encoder_says(k, "share");
        if (lag == 0) lag = encoder_says(k, "first_lag_s");
    }
    assert_true(share == 0.25);
    assert_true(encoder_says(k, "shared_s") > 0 && encoder_says(k, "shared_s") < encoder_says(k, "questions_s"));
    assert_true(encoder_says(k, "n_drops") == 0);
    until_counted(k, "inferscale_encoder_turns_total{what=\"slice\"}");
    until_counted(k, "inferscale_encoder_shared_seconds_total");
    text = metrics_of(k, "/metrics");
    assert_true(exposition_value(text, "inferscale_encoder_turns_total{what=\"drop\"}") == 0);
    assert_true(exposition_value(text, "inferscale_encoder_questions_seconds_total") > 0);
    assert_true(exposition_value(text, "inferscale_encoder_share") >= 0);
    assert_true(exposition_value(text, "inferscale_encoder_first_lag_seconds") >= 0);
    free(text);
    close(fd);
    serve_stop(k);
}

static void test_who_may_read_metrics(void **state)
{
    char *home = scratch_make();
    const char *keys = scratch_path(home, "keys");
    static const char text[] = "isk_admin_0123456789 admin\nisk_bound_0123456789 user=anna\n";
    serve_kit *k;

    (void)state;
    store_write(keys, text, sizeof text - 1);
    assert_int_equal(chmod(keys, 0600), 0);
    k = serve_start("keys", keys, NULL);
    expect_status(k, "/health", NULL, 200);
    expect_status(k, "/ready", NULL, 200);
    expect_status(k, "/metrics", NULL, 401);
    expect_status(k, "/metrics", "Authorization: Bearer isk_bound_0123456789\r\n", 403);
    expect_status(k, "/metrics", "Authorization: Bearer isk_admin_0123456789\r\n", 200);
    expect_status(k, "/inferscale/audit", "Authorization: Bearer isk_bound_0123456789\r\n", 403);
    expect_status(k, "/inferscale/audit", "Authorization: Bearer isk_admin_0123456789\r\n", 200);
    serve_stop(k);
    scratch_remove(home);
}

static void test_openapi_is_what_the_build_carries(void **state)
{
    const is_embedded *f = is_embedded_find("openapi.json");
    serve_kit *k = serve_start(NULL, NULL);
    serve_reply r = serve_call(k, "GET", "/openapi.json", NULL, NULL);

    (void)state;
    assert_null(is_embedded_find("no such file"));
    if (f) {
        assert_int_equal(r.status, 200);
        assert_string_equal(serve_head(&r, "Content-Type"), "application/json");
        assert_int_equal(r.n, f->len);
        assert_memory_equal(r.body, f->data, f->len);
        assert_non_null(json_object_get(r.json, "paths"));
    } else {
        assert_int_equal(r.status, 404);
    }
    serve_reply_free(&r);
    serve_stop(k);
}

/* ---- Fallbacks ------------------------------------------------------------------------------------------------------------- */

/* The answer falls short for this reason, and for no other. */
static void expect_reason(inferscale *is, const inferscale_scope *who, const inferscale_ask_options *o, unsigned reason, const char *name)
{
    inferscale_answer *a = NULL;
    unsigned i = 0;

    OK(inferscale_ask(is, who, "What does Anna think of?", o, &a));
    if (!(a->fallbacks & reason)) fail_msg("not %s: \"%s\"", name, a->fallback);
    while (reason >> i != 1) i++;
    assert_string_equal(inferscale_fallback_name(i), name);
    assert_true((a->fallbacks != 0) == (a->fallback[0] != 0));
    inferscale_answer_free(a);
}

static void test_fallbacks_have_names(void **state)
{
    char *home = scratch_make(), **files;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_options small = store_options(home);
    inferscale *is = store_open(home, NULL, NULL, false);
    const inferscale_scope nobody = { .user = "nobody" };
    size_t n;

    (void)state;
    o.max_tokens = 4;
    store_fill(is, 8, false);
    expect_reason(is, &store_anna, &o, INFERSCALE_FALLBACK_NOT_ENCODED, "not_encoded");
    expect_reason(is, &nobody, &o, INFERSCALE_FALLBACK_NOTHING_REMEMBERED, "nothing_remembered");
    store_encode(is);
    inferscale_close(is);
    is = store_open(home, NULL, "http://127.0.0.1:1/v1#nobody-listens", false);
    expect_reason(is, &store_anna, &o, INFERSCALE_FALLBACK_WORDS_ONLY, "words_only");
    inferscale_close(is);
    small.n_ctx = 300;
    OK(inferscale_open(&is, &small));
    expect_reason(is, &store_anna, &o, INFERSCALE_FALLBACK_CONTEXT_FULL, "context_full");
    inferscale_close(is);
    files = store_files(home, ".seg", &n);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) store_write(files[i], "rotten", 6);
    store_files_free(files, n);
    is = store_open(home, NULL, NULL, false);
    expect_reason(is, &store_anna, &o, INFERSCALE_FALLBACK_DAMAGED, "damaged");
    inferscale_close(is);
    scratch_remove(home);
}

/* Each reason has a name of its own, and all are there from the first scrape on, so that a rate can be taken of the first one. */
static void test_all_fallbacks_have_names(void **state)
{
    serve_kit *k = serve_start(NULL, NULL);
    char *text = metrics_of(k, "/metrics"), series[100];

    (void)state;
    for (unsigned i = 0; i < INFERSCALE_N_FALLBACKS; i++) {
        assert_non_null(inferscale_fallback_name(i));
        for (unsigned j = 0; j < i; j++) assert_string_not_equal(inferscale_fallback_name(i), inferscale_fallback_name(j));
        snprintf(series, sizeof series, "inferscale_fallbacks_total{why=\"%s\"}", inferscale_fallback_name(i));
        assert_true(exposition_value(text, series) == 0);
    }
    assert_null(inferscale_fallback_name(INFERSCALE_N_FALLBACKS));
    free(text);
    serve_stop(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_health_and_ready),
        cmocka_unit_test(test_not_ready_says_why),
        cmocka_unit_test(test_a_bank_that_is_damaged_under_the_server),
        cmocka_unit_test(test_damage_that_a_request_finds),
        cmocka_unit_test(test_a_disk_that_fills_under_the_server),
        cmocka_unit_test(test_metrics_agree_with_the_store),
        cmocka_unit_test(test_encoding_under_a_stream_is_shown),
        cmocka_unit_test(test_who_may_read_metrics),
        cmocka_unit_test(test_openapi_is_what_the_build_carries),
        cmocka_unit_test(test_fallbacks_have_names),
        cmocka_unit_test(test_all_fallbacks_have_names),
    };

    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
