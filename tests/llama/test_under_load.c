/* test_under_load.c - a busy server goes on taking in memory, with the real model, the real
 * embedder and real clients: two that ask without a pause and one stream that does not end by
 * itself. What is told meanwhile is embedded and encoded, in slices and pauses, while answers go
 * on; the next answer is made from it; and rows that were captured in slices are, byte for byte,
 * those that an engine without questions captures. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "inferscale.h"
#include "support/live.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/store_kit.h"

enum { CLIENTS = 2, LONG_WORDS = 420, PATIENCE_MS = 600000 /* a backstop: nothing is measured */ };

static const char *const facts[] = {
    "Anna keeps bees in Graz.", "Anna plays the cello.",      "Anna is allergic to peanuts.",
    "Anna drives a red van.",   "Anna was born in Linz.",     "Anna works at the harbour.",
    "Anna has two cats.",
};
enum { FACTS = sizeof facts / sizeof *facts };

static serve_kit *kit;
static char *home;
static atomic_int stop, n_answered;

/* ---- The load ---------------------------------------------------------------------------- */

static void *ask_all_the_time(void *arg)
{
    const char *who = arg;
    char body[400];

    for (int i = 0; !atomic_load(&stop); i++) {
        serve_reply r;

        snprintf(body, sizeof body,
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"%s asks for word %d.\"}],"
                 " \"stream\": true, \"temperature\": 0, \"max_tokens\": 8}", who, i);
        r = serve_call(kit, "POST", "/v1/chat/completions", NULL, body);
        if (r.status != 200 || !strstr(r.body, "[DONE]"))
            fail_msg("status %d: %s", r.status, r.body);
        serve_reply_free(&r);
        atomic_fetch_add(&n_answered, 1);
    }
    return NULL;
}

static int begin_stream(void)
{
    static const char ask[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Count.\"}],"
                              " \"stream\": true, \"ignore_eos\": true, \"max_tokens\": 1500}";
    int fd = serve_connect(kit);

    serve_sendf(fd, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    "Content-Length: %zu\r\n\r\n%s", sizeof ask - 1, ask);
    return fd;
}

/* Takes what has come; another one begins where this one has come to its end. */
static void go_on_reading(int *fd)
{
    char piece[4096];
    ssize_t n;

    while ((n = recv(*fd, piece, sizeof piece, MSG_DONTWAIT)) > 0) continue;
    if (n != 0) return;
    close(*fd);
    *fd = begin_stream();
}

/* ---- What is told ------------------------------------------------------------------------ */

static double encoder_says(const char *name)
{
    serve_reply r = serve_call(kit, "GET", "/inferscale/encode", NULL, NULL);
    double v = json_number_value(json_object_get(r.json, name));

    assert_int_equal(r.status, 200);
    if (!json_is_number(json_object_get(r.json, name))) fail_msg("no %s: %s", name, r.body);
    serve_reply_free(&r);
    return v;
}

static json_t *message(const char *text)
{
    return json_pack("{s:s, s:s}", "role", "user", "content", text);
}

/* The short ones and the long one in one request, so that they are encoded together, whenever that
 * is. */
static void tell(void)
{
    char text[16 * LONG_WORDS] = "Anna's shelf holds, from left to right,", *body;
    json_t *messages = json_array(), *request;
    serve_reply r;

    for (int i = 0, n = (int)strlen(text); i < LONG_WORDS; i++)
        n += sprintf(text + n, " %s %d", i % 3 ? "tea" : "jar", i % 10);
    for (int i = 0; i < FACTS; i++) json_array_append_new(messages, message(facts[i]));
    json_array_append_new(messages, message(text));
    request = json_pack("{s:s, s:b, s:o}", "user_id", "anna", "infer", 0, "messages", messages);
    body = json_dumps(request, JSON_COMPACT);
    r = serve_call(kit, "POST", "/memories", NULL, body);
    if (r.status != 200) fail_msg("status %d: %s", r.status, r.body);
    serve_reply_free(&r);
    free(body);
    json_decref(request);
}

static void expect_that_it_is_injected(void)
{
    serve_reply r = serve_call(kit, "POST", "/v1/chat/completions", NULL,
                               "{\"messages\": [{\"role\": \"user\","
                               " \"content\": \"What does Anna play?\"}],"
                               " \"temperature\": 0, \"max_tokens\": 4,"
                               " \"memory\": {\"user_id\": \"anna\", \"k\": 4}}");
    json_t *memory = json_object_get(r.json, "memory"), *tokens = json_object_get(memory, "tokens");

    assert_int_equal(r.status, 200);
    assert_string_equal(json_string_value(json_object_get(memory, "fallback")), "");
    assert_int_equal(json_array_size(json_object_get(memory, "facts")), 4);
    assert_true(json_integer_value(json_object_get(tokens, "injected")) > 0);
    serve_reply_free(&r);
}

static void memory_is_taken_in_under_load(void **state)
{
    static const char *const names[CLIENTS] = { "Ben", "Cleo" };
    pthread_t clients[CLIENTS];
    const double t0 = is_now_ms();
    int fd = begin_stream(), before;

    (void)state;
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, ask_all_the_time, (void *)names[i]), 0);
    while (atomic_load(&n_answered) < CLIENTS) {
        go_on_reading(&fd);
        if (is_now_ms() - t0 > PATIENCE_MS) fail_msg("nobody is answered");
        usleep(10000);
    }
    assert_int_equal((int)encoder_says("n_slices"), 0);
    before = atomic_load(&n_answered);
    tell();
    while (encoder_says("n_unembedded") + encoder_says("n_unencoded") > 0) {
        go_on_reading(&fd);
        if (is_now_ms() - t0 > PATIENCE_MS)
            fail_msg("%g facts are not embedded, %g not encoded", encoder_says("n_unembedded"),
                     encoder_says("n_unencoded"));
        usleep(20000);
    }
    assert_true(atomic_load(&n_answered) > before);
    assert_true(encoder_says("n_slices") + encoder_says("n_pauses") > 0);
    assert_true(encoder_says("shared_s") > 0);
    assert_int_equal((int)encoder_says("n_drops"), 0);
    assert_int_equal((int)encoder_says("facts_encoded"), FACTS + 1);
    expect_that_it_is_injected();
    print_message("          %d answers meanwhile, %g slices, %g pauses\n",
                  atomic_load(&n_answered) - before, encoder_says("n_slices"),
                  encoder_says("n_pauses"));
    atomic_store(&stop, 1);
    close(fd);
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i], NULL);
}

/* ---- The same rows ----------------------------------------------------------------------- */

typedef struct rows { char **paths; void **bytes; size_t *sizes, n; } rows;

static rows read_rows(void)
{
    rows r = { 0 };

    r.paths = store_files(home, ".seg", &r.n);
    r.bytes = calloc(r.n + 1, sizeof *r.bytes);
    r.sizes = calloc(r.n + 1, sizeof *r.sizes);
    for (size_t i = 0; i < r.n; i++) r.bytes[i] = store_read(r.paths[i], &r.sizes[i]);
    return r;
}

static void drop_rows(rows *r)
{
    for (size_t i = 0; i < r->n; i++) free(r->bytes[i]);
    free(r->bytes);
    free(r->sizes);
    store_files_free(r->paths, r->n);
}

/* Captured once more, with nothing else to do and none of the files there. */
static void rows_are_those_of_an_idle_engine(void **state)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale_encode_options again = INFERSCALE_ENCODE_OPTIONS_INIT;
    const inferscale_scope anna = { .user = "anna" };
    inferscale *is = NULL;
    rows loaded, idle;

    (void)state;
    serve_stop(kit);
    kit = NULL;
    loaded = read_rows();
    assert_true(loaded.n > FACTS);
    for (size_t i = 0; i < loaded.n; i++) assert_int_equal(unlink(loaded.paths[i]), 0);
    o.home = home;
    o.plugin_dir = live_plugins();
    o.refine = "none";
    o.n_ctx = 2048;
    again.again = 1;
    OK(inferscale_open(&is, &o));
    OK(inferscale_encode(is, &anna, &again));
    assert_int_equal(again.facts_encoded, FACTS + 1);
    inferscale_close(is);
    idle = read_rows();
    assert_int_equal(idle.n, loaded.n);
    for (size_t i = 0; i < idle.n; i++) {
        assert_string_equal(idle.paths[i], loaded.paths[i]);
        assert_int_equal(idle.sizes[i], loaded.sizes[i]);
        assert_memory_equal(idle.bytes[i], loaded.bytes[i], idle.sizes[i]);
    }
    drop_rows(&loaded);
    drop_rows(&idle);
}

/* ------------------------------------------------------------------------------------------ */

static int start(void **state)
{
    home = scratch_make();
    serve_be_patient(PATIENCE_MS);
    kit = serve_start("engine", "llama", "ctx", "2048", "home", home, "encode_lag_s", "1",
                      "encode_share", "0.4", NULL);
    return 0;
}

static int end(void **state)
{
    if (kit) serve_stop(kit);
    scratch_remove(home);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_taken_in_under_load),
        cmocka_unit_test(rows_are_those_of_an_idle_engine),
    };

    return cmocka_run_group_tests_name("under load, on the real model", tests, start, end);
}
