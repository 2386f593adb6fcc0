/* While an outside thing accepts and never answers (the embedder's endpoint, the extractor's, a
 * vLLM server), the server goes on: /health, searches, forgetting and a stream that runs; and it
 * ends when it is told to. What hangs here may be waited for longer than the test's clients wait
 * (20 s): what they hear has not waited for it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/server.h"
#include "support/embed_server.h"
#include "support/scratch.h"
#include "support/silent.h"
#include "support/serve_kit.h"
#include "support/vllm_fake.h"

enum { WATCHDOG_S = 300, HUNG = 4, TOKENS = 60 };

static const char search[] = "{\"query\": \"peanuts\", \"user_id\": \"anna\"}";
static char *facts[2];
static serve_kit *kit;
static silent never;

/* ---- What hangs ------------------------------------------------------------------------------ */

static int set_up(void **state)
{
    (void)state;
    alarm(WATCHDOG_S);
    silent_start(&never);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    silent_stop(&never);
    alarm(0);
    return 0;
}

/* ---- Clients --------------------------------------------------------------------------------- */

static serve_reply call(const char *method, const char *path, const char *body)
{
    return serve_call(kit, method, path, NULL, body);
}

static void expect(const char *method, const char *path, const char *body, int status)
{
    serve_reply r = call(method, path, body);

    if (r.status != status)
        fail_msg("%s %s: %d, not %d: %s", method, path, r.status, status, r.body ? r.body : "");
    serve_reply_free(&r);
}

/* The id of a new fact; free(). */
static char *remember(const char *text)
{
    char body[300], *id;
    serve_reply r;
    json_t *fact;

    snprintf(body, sizeof body, "{\"text\": \"%s\", \"user_id\": \"anna\"}", text);
    r = call("POST", "/memories", body);
    assert_int_equal(r.status, 200);
    fact = json_array_get(json_object_get(r.json, "results"), 0);
    id = strdup(json_string_value(json_object_get(fact, "id")));
    serve_reply_free(&r);
    return id;
}

/* A request that is to hang, on a connection of its own. */
static int send_request(const char *path, const char *body)
{
    int fd = serve_connect(kit);

    serve_sendf(fd, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n", path, strlen(body));
    serve_sendf(fd, "Content-Type: application/json\r\n\r\n%s", body);
    return fd;
}

static bool has_heard(int fd)
{
    char c;

    return recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) >= 0;
}

static void expect_silent(int fd)
{
    assert_false(has_heard(fd));
}

static int stream_begin(void)
{
    char body[300];
    int fd;

    snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello.\"}],"
             " \"stream\": true, \"ignore_eos\": true, \"max_tokens\": %d}", TOKENS);
    fd = send_request("/v1/chat/completions", body);
    for (char c = 0; c != '{';) assert_int_equal(recv(fd, &c, 1, 0), 1); /* its first event */
    return fd;
}

/* All of it came. */
static void stream_ends_well(int fd)
{
    char all[1 << 16];
    size_t n = 0;
    ssize_t got;

    while ((got = recv(fd, all + n, sizeof all - 1 - n, 0)) > 0) {
        n += (size_t)got;
        all[n] = 0;
        if (strstr(all, "[DONE]")) break;
    }
    all[n] = 0;
    if (!strstr(all, "[DONE]") || !strstr(all, "\"finish_reason\":\"length\""))
        fail_msg("a broken stream: %s", all);
    close(fd);
}

/* What needs nothing of what hangs. */
static void all_goes_on(int doomed)
{
    char path[100];

    snprintf(path, sizeof path, "/memories/%s", facts[doomed]);
    expect("GET", "/health", NULL, 200);
    expect("GET", "/ready", NULL, 200);
    expect("GET", path, NULL, 200);
    expect("DELETE", path, NULL, 200);
    expect("GET", path, NULL, 404);
}

static void found_by_words(void)
{
    serve_reply r = call("POST", "/search", search);

    assert_int_equal(r.status, 200);
    assert_true(json_array_size(json_object_get(r.json, "results")) > 0);
    serve_reply_free(&r);
}

static void remember_some(void)
{
    free(remember("Anna is allergic to peanuts."));
    for (int i = 0; i < 2; i++) facts[i] = remember(i ? "Anna has a dog." : "Anna has a cat.");
}

/* Told to end, it ends: what hangs hears so, and has not run into a limit of its own. */
static void end_while_they_hang(int *fds, int n)
{
    for (int i = 0; i < n; i++) expect_silent(fds[i]); /* it does hang */
    serve_stop(kit);
    for (int i = 0; i < n; i++) {
        serve_reply r = serve_read(fds[i], "POST");

        if (r.status != 503 || !strstr(r.body, "the server is ending"))
            fail_msg("%d: %s", r.status, r.body ? r.body : "");
        serve_reply_free(&r);
        close(fds[i]);
    }
    for (int i = 0; i < 2; i++) free(facts[i]);
}

/* ---- The embedder ---------------------------------------------------------------------------- */

/* Searches that may wait for ten minutes hang; the rest goes on. Ended, the server answers them
 * by words. */
static void while_it_hangs(const char *url)
{
    int running, hung[HUNG];

    kit = serve_start("model", "mock:slow=20", "embedder", url, "embedder_wait_s", "600",
                      "drain_s", "0", NULL);
    remember_some();
    running = stream_begin();
    for (int i = 0; i < HUNG; i++) hung[i] = send_request("/search", search);
    all_goes_on(0);
    all_goes_on(1);
    stream_ends_well(running);
    for (int i = 0; i < HUNG; i++) expect_silent(hung[i]);
    serve_stop(kit);
    for (int i = 0; i < HUNG; i++) {
        serve_reply r = serve_read(hung[i], "POST");

        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body, "peanuts"));
        serve_reply_free(&r);
        close(hung[i]);
    }
    for (int i = 0; i < 2; i++) free(facts[i]);
}

static const char hello[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello.\"}], \"max_tokens\": 2}";

/* More questions of a memory than there are places wait for the embedder: the places are free. */
static void questions_that_wait_hold_no_place(void **state)
{
    enum { PLACES = 2, ASKED = 2 * PLACES + 1 };
    static const char asks[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Are peanuts bad?\"}],"
        " \"max_tokens\": 2, \"memory\": {\"user_id\": \"anna\"}}";
    embed_server *s = embed_server_start("peanuts bad");
    int hung[ASKED];

    (void)state;
    kit = serve_start("parallel", "2", "embedder", embed_server_spec(s), "embedder_wait_s", "600",
                      "drain_s", "0", NULL);
    free(remember("Anna is allergic to peanuts."));
    for (int i = 0; i < ASKED; i++) hung[i] = send_request("/v1/chat/completions", asks);
    while (embed_server_held(s) < ASKED) usleep(1000); /* each got as far as that */
    for (int i = 0; i < PLACES + 1; i++) expect("POST", "/v1/chat/completions", hello, 200);
    for (int i = 0; i < ASKED; i++) expect_silent(hung[i]);
    embed_server_release(s);
    for (int i = 0; i < ASKED; i++) {
        serve_reply r = serve_read(hung[i], "POST");

        if (r.status != 200 || !strstr(r.body, "\"facts\":[{"))
            fail_msg("%d: %s", r.status, r.body);
        serve_reply_free(&r);
        close(hung[i]);
    }
    serve_stop(kit);
    embed_server_stop(s);
}

static void while_the_embedder_hangs(void **state)
{
    char url[120];
    embed_server *s;

    (void)state;
    snprintf(url, sizeof url, "%s#m", never.url);
    while_it_hangs(url); /* its first word is waited for */
    s = embed_server_start("peanuts");
    while_it_hangs(embed_server_spec(s)); /* it has been opened */
    embed_server_stop(s);
}

/* With a limit that is over, words serve. */
static void searches_find_by_words(void **state)
{
    char url[120];

    (void)state;
    snprintf(url, sizeof url, "%s#m", never.url);
    kit = serve_start("embedder", url, "embedder_wait_s", "0.1", NULL);
    free(remember("Anna is allergic to peanuts."));
    for (int i = 0; i < 10; i++) found_by_words();
    serve_stop(kit);
}

/* ---- The extractor --------------------------------------------------------------------------- */

static void while_the_extractor_hangs(void **state)
{
    static const char told[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"I sail.\"}],"
                               " \"user_id\": \"anna\", \"infer\": true}";
    int running, hung[HUNG];

    (void)state;
    kit = serve_start("model", "mock:slow=20", "extractor", never.url, "drain_s", "0", NULL);
    remember_some();
    running = stream_begin();
    for (int i = 0; i < HUNG; i++) hung[i] = send_request("/memories", told);
    all_goes_on(0);
    found_by_words();
    all_goes_on(1);
    stream_ends_well(running);
    end_while_they_hang(hung, HUNG);
}

/* ---- A vLLM server --------------------------------------------------------------------------- */

static const char question[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}";

/* Two servers: one answers slowly, the other one takes everything and says nothing more. */
static void while_a_vllm_server_hangs(void **state)
{
    enum { ASKED = 8 };
    char *home = scratch_make(), urls[200];
    vllm_fake *f[2] = { fake_start(home), fake_start(home) };
    int running, hangs, asked[ASKED], hung[ASKED], n_hung = ASKED;

    (void)state;
    for (int i = 0; i < 2; i++) {
        FAKE_PUT(f[i], length, TOKENS);
        FAKE_PUT(f[i], chunk, 64);
        FAKE_PUT(f[i], delay_ms, 5);
    }
    snprintf(urls, sizeof urls, "%s,%s", f[0]->url, f[1]->url);
    kit = serve_start("home", home, "engine", "vllm", "upstream", urls, "parallel", "16",
                      "drain_s", "0", NULL);
    remember_some();
    running = stream_begin();
    hangs = fake_look(f[0]).completions == 0 ? 0 : 1; /* the one that does not stream */
    assert_int_equal(fake_look(f[hangs]).completions, 0);
    fake_set(f[hangs], FAKE_HANG);
    for (int i = 0; i < ASKED; i++)
        asked[i] = send_request("/v1/chat/completions", question);
    all_goes_on(0);
    found_by_words();
    stream_ends_well(running);
    all_goes_on(1);
    while (n_hung != (int)fake_look(f[hangs]).completions) { /* the others are answered */
        n_hung = 0;
        for (int i = 0; i < ASKED; i++)
            if (!has_heard(asked[i])) hung[n_hung++] = asked[i];
    }
    assert_true(n_hung > 0 && n_hung < ASKED);
    for (int i = 0; i < ASKED; i++)
        if (has_heard(asked[i])) close(asked[i]);
    end_while_they_hang(hung, n_hung);
    for (int i = 0; i < 2; i++) fake_stop(f[i]);
    scratch_remove(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_the_embedder_hangs),
        cmocka_unit_test(questions_that_wait_hold_no_place),
        cmocka_unit_test(searches_find_by_words),
        cmocka_unit_test(while_the_extractor_hangs),
        cmocka_unit_test(while_a_vllm_server_hangs),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
