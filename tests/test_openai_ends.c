/* test_openai_ends.c - how answers of the OpenAI face end when not all goes well: engines that fail, time that is over, clients that hang
 * up, facts that are forgotten, keys. Each test has a server of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/server.h"
#include "support/openai_kit.h"
#include "support/scratch.h"

static void fails_in_the_midst(void **state)
{
    kit = serve_start("model", "mock:fail-feed=4", "embedder", "mock", NULL);
    serve_reply r = post("/v1/chat/completions", "{" HI ",\"temperature\":0,\"stream\":true}", 200);
    const char *mock = getenv("INFERSCALE_MOCK");
    const bool elsewhere = mock && strcmp(mock, "remote") == 0; /* then it is a server of others that failed, and may be back */
    const size_t n = serve_events(&r);
    char *event = serve_event(&r, n - 1);
    json_t *v = loads(event);

    assert_true(n >= 3);
    assert_string_equal(json_text_at(v, "error.type"), "server_error");
    assert_true(*json_text_at(v, "error.message"));
    assert_null(strstr(r.body, "[DONE]"));
    assert_true(r.whole);
    json_decref(v);
    free(event);
    serve_reply_free(&r);
    r = post("/v1/chat/completions", "{" HI ",\"temperature\":0,\"stream\":true}", 200); /* and the next one is served */
    assert_non_null(strstr(r.body, "[DONE]"));
    serve_reply_free(&r);
    openai_stop(state);
    kit = serve_start("model", "mock:fail-start=1", "embedder", "mock", NULL);
    r = post("/v1/chat/completions", "{" HI ",\"stream\":true}", elsewhere ? 503 : 500);
    assert_string_equal(json_text_at(r.json, "error.type"), "server_error");
    serve_reply_free(&r);
    openai_stop(state);
    kit = serve_start("model", "mock:fail-sample=1", "embedder", "mock", NULL); /* the stream has begun, and nothing is in it yet */
    r = post("/v1/chat/completions", "{" HI ",\"stream\":true}", 200);
    assert_int_equal(serve_events(&r), 1);
    assert_non_null(strstr(r.body, "data: {\"error\":{"));
    assert_null(strstr(r.body, "[DONE]"));
    serve_reply_free(&r);
    openai_stop(state);
}

/* What a stream holds before its first event: only pings, whole ones. */
static size_t pings_before(const serve_reply *r)
{
    static const char ping[] = ": ping\n\n";
    size_t n = 0;

    while (strncmp(r->body + n * (sizeof ping - 1), ping, sizeof ping - 1) == 0) n++;
    assert_int_equal(strncmp(r->body + n * (sizeof ping - 1), "data: ", 6), 0);
    return n;
}

/* A prompt of many steps: the stream begins before the first of them. */
static void a_long_prompt_is_pinged(void **state)
{
    is_http_tune tune = { .ping_ms = 20, .watch_ms = 5 };
    char words[2001], body[2200];

    is_http_set_tune(&tune);
    kit = serve_start("model", "mock:slow=100,ctx=8192", "embedder", "mock", NULL);
    for (size_t i = 0; i < sizeof words - 1; i++) words[i] = "0123456789 "[i % 11];
    words[sizeof words - 1] = '\0';
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":2,\"stream\":true}", words);
    serve_reply r = post("/v1/chat/completions", body, 200);
    assert_true(pings_before(&r) >= 2);
    char *event = serve_event(&r, 0);
    json_t *v = loads(event);
    assert_string_equal(json_text_at(v, "choices.0.delta.role"), "assistant");
    assert_true(json_number_at(v, "memory.tokens.prompt") > 2000); /* the plan's own figures are in the first event all the same */
    if (!strstr(r.body, "data: [DONE]")) fail_msg("%s", r.body);
    json_decref(v);
    free(event);
    serve_reply_free(&r);
    /* What is refused before is a plain error still. */
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":8000,\"stream\":true}", words);
    r = post("/v1/chat/completions", body, 400);
    assert_string_equal(json_text_at(r.json, "error.code"), "context_length_exceeded");
    serve_reply_free(&r);
    r = post("/v1/chat/completions", "{" HI ",\"stream\":true,\"response_format\":{\"type\":\"json_object\"}}", 400);
    assert_string_equal(json_text_at(r.json, "error.code"), "unsupported");
    serve_reply_free(&r);
    openai_stop(state);
    is_http_set_tune(&(is_http_tune){ 0 });
}

/* Bytes that are no character do not break a stream; whole and streamed, the text is the same. */
static void stray_bytes_are_replaced(void **state)
{
    kit = serve_start("embedder", "mock", NULL);
    serve_reply r = post("/v1/chat/completions", "{" HI ",\"temperature\":0,\"max_tokens\":3,\"logit_bias\":{\"271\":100}}", 200);
    assert_string_equal(json_text_at(r.json, "choices.0.message.content"), "???");
    serve_reply_free(&r);
    r = post("/v1/chat/completions", "{" HI ",\"temperature\":0,\"max_tokens\":3,\"logit_bias\":{\"271\":100},\"stream\":true}", 200);
    size_t marks = 0;
    for (const char *p = r.body; (p = strstr(p, "\"delta\":{\"content\":\"?")); p++) marks++;
    assert_true(marks >= 1);
    assert_non_null(strstr(r.body, "data: [DONE]"));
    serve_reply_free(&r);
    openai_stop(state);
}

/* The event that a stream which was cut ends with; *r is freed. */
static void ends_with_error(serve_reply *r, size_t least, const char *code)
{
    const size_t n = serve_events(r);
    char *event = n ? serve_event(r, n - 1) : NULL;
    json_t *v;

    if (r->status != 200 || !r->whole || n < least) fail_msg("status %d, %zu events: %s", r->status, n, r->body);
    v = loads(event);
    assert_string_equal(json_text_at(v, "error.type"), "server_error");
    assert_string_equal(json_text_at(v, "error.code"), code);
    assert_true(*json_text_at(v, "error.message"));
    assert_null(strstr(r->body, "[DONE]"));
    json_decref(v);
    free(event);
    serve_reply_free(r);
}

/* Its time is over: in the midst of an answer, and before the first token. */
static void too_slow_streams_say_so(void **state)
{
    static const char body[] = "{" HI ",\"temperature\":0,\"stream\":true,\"n\":2,\"stream_options\":{\"include_usage\":true}}";

    kit = serve_start("model", "mock:slow=100", "embedder", "mock", "generate_s", "1", NULL);
    serve_reply r = post("/v1/chat/completions", body, 200);
    ends_with_error(&r, 3, "timeout");
    openai_stop(state);
    kit = serve_start("model", "mock:slow=3000", "embedder", "mock", "generate_s", "1", NULL);
    r = post("/v1/chat/completions", body, 200);
    ends_with_error(&r, 1, "timeout");
    r = post("/v1/chat/completions", "{" HI "}", 504);
    assert_string_equal(json_text_at(r.json, "error.code"), "timeout");
    serve_reply_free(&r);
    openai_stop(state);
}

/* The server ends while it streams, and has no time left to wait for the answer. */
static void streams_of_a_server_that_ends_say_so(void **state)
{
    static const char body[] = "{" HI ",\"temperature\":0,\"stream\":true}";
    char some;

    kit = serve_start("model", "mock:slow=200", "embedder", "mock", "drain_s", "0", NULL);
    int fd = serve_connect(kit);
    serve_sendf(fd, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                strlen(body), body);
    while (recv(fd, &some, 1, MSG_PEEK) != 1) usleep(1000);
    is_server_stop();
    serve_reply r = serve_read(fd, "POST");
    ends_with_error(&r, 1, "server_ending");
    close(fd);
    openai_stop(state);
}

static double metric(const char *name)
{
    serve_reply r = serve_call(kit, "GET", "/metrics", NULL, NULL);
    const char *p = r.body;
    double sum = 0;
    size_t n = strlen(name);

    assert_int_equal(r.status, 200);
    for (; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, name, n) == 0 && strchr(" {,", p[n])) sum += strtod(strchr(p, p[n] == ' ' ? ' ' : '}') + 1, NULL);
    serve_reply_free(&r);
    return sum;
}

static void hanging_up_ends_it(void **state)
{
    kit = serve_start("model", "mock:slow=300", "embedder", "mock", NULL);
    int fd = serve_connect(kit);
    static const char body[] = "{" HI ",\"temperature\":0,\"stream\":true,\"n\":2}";
    char some[200];

    serve_sendf(fd, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                strlen(body), body);
    assert_true(read(fd, some, sizeof some) > 0); /* it has begun */
    assert_true(metric("inferscale_requests_running") >= 1);
    close(fd);
    while (metric("inferscale_requests_running") > 0) usleep(20000);
    assert_true(metric("inferscale_answers_total{finish=\"stop\"") == 0); /* none came to its end */
    assert_true(metric("inferscale_answers_total{finish=\"length\"") == 0);
    openai_stop(state);
}

/* The stream's first event is there; all is left to be read. */
static void await_event(int fd)
{
    char some[2000] = "";

    while (!strstr(some, "data: ")) {
        ssize_t n = recv(fd, some, sizeof some - 1, MSG_PEEK);
        assert_true(n > 0);
        some[n] = '\0';
        usleep(1000);
    }
}

/* Forgetting ends an answer that uses the fact: what was said stays, why it ended is said. */
static void *forget_anna(void *ctx)
{
    serve_reply r = serve_call(kit, "DELETE", "/memories?user_id=anna", NULL, NULL);
    *(int *)ctx = r.status;
    serve_reply_free(&r);
    return NULL;
}

static void forgetting_ends_it(void **state)
{
    kit = serve_start("model", "mock:slow=150", "embedder", "mock", NULL);
    static const char body[] = "{" TEA ",\"temperature\":0,\"stream\":true,\"memory\":{\"user_id\":\"anna\"}}";
    pthread_t thread;
    int status = 0;

    remembers("anna", "Anna likes tea with milk and sugar in the early afternoon.");
    int fd = serve_connect(kit);
    serve_sendf(fd, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                strlen(body), body);
    await_event(fd); /* the fact is in its prompt */
    pthread_create(&thread, NULL, forget_anna, &status);
    serve_reply r = serve_read(fd, "POST");
    pthread_join(thread, NULL);
    assert_int_equal(status, 200);
    assert_int_equal(r.status, 200);
    char *event = serve_event(&r, serve_events(&r) - 2);
    json_t *v = loads(event);
    if (strcmp(json_text_at(v, "choices.0.finish_reason"), "content_filter") != 0) fail_msg("%s", r.body);
    assert_non_null(strstr(json_text_at(v, "memory.fallback"), "forgotten"));
    json_decref(v);
    free(event);
    serve_reply_free(&r);
    close(fd);
    openai_stop(state);
}

static void keys_bind(void **state)
{
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "keys");
    FILE *f = fopen(path, "w");

    fprintf(f, "isk_anna_0123456789abcdef user=anna\nisk_all_0123456789abcdefg\n");
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
    kit = serve_start("keys", path, "embedder", "mock", NULL);
    const char *anna = "Authorization: Bearer isk_anna_0123456789abcdef\r\n";
    serve_reply r = serve_call(kit, "POST", "/v1/chat/completions", NULL, "{" HI "}");
    assert_int_equal(r.status, 401);
    serve_reply_free(&r);
    r = serve_call(kit, "POST", "/memories", anna, "{\"messages\":[{\"role\":\"user\",\"content\":\"Anna likes tea.\"}],\"infer\":false}");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    r = serve_call(kit, "POST", "/v1/chat/completions", anna, "{" TEA ",\"temperature\":0}"); /* the key names the owner */
    if (!strstr(json_text_at(r.json, "choices.0.message.content"), "Anna likes tea.")) fail_msg("%s", r.body);
    serve_reply_free(&r);
    r = serve_call(kit, "POST", "/v1/chat/completions", anna, "{" HI ",\"memory\":{\"user_id\":\"ben\"}}");
    assert_int_equal(r.status, 403);
    serve_reply_free(&r);
    r = serve_call(kit, "POST", "/v1/completions", "Authorization: Bearer isk_anna_0123456789abcdef\r\nX-Inferscale-User: ben\r\n",
                   "{\"prompt\":\"a\"}");
    assert_int_equal(r.status, 403);
    serve_reply_free(&r);
    openai_stop(state);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fails_in_the_midst), cmocka_unit_test(stray_bytes_are_replaced), cmocka_unit_test(a_long_prompt_is_pinged), cmocka_unit_test(too_slow_streams_say_so),
        cmocka_unit_test(streams_of_a_server_that_ends_say_so), cmocka_unit_test(hanging_up_ends_it), cmocka_unit_test(forgetting_ends_it),
        cmocka_unit_test(keys_bind),
    };
    return cmocka_run_group_tests_name("openai: ends", tests, NULL, NULL);
}
