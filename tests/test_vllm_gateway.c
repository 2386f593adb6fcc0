/* The gateway with engine vllm, in front of a fake server: what the server says against a request reaches the client as the request's fault, what
 * the server fails at as 503 with Retry-After; /ready, the metric and the page's source say when nothing can be answered, and that it is over;
 * memory goes on meanwhile; log-probabilities come in the numbers that vLLM gives; errors have one spelling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "serve/http.h"
#include "serve/mcp.h"
#include "serve/server.h"
#include "support/live.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/vllm_kit.h"

typedef struct pair { char *home; vllm_fake *f; serve_kit *k; } pair;

static pair begin(void)
{
    pair p = { .home = scratch_make() };

    p.f = fake_start(p.home);
    p.k = serve_start("home", p.home, "engine", "vllm", "upstream", p.f->url, NULL);
    return p;
}

static void end(pair *p)
{
    serve_stop(p->k);
    fake_stop(p->f);
    scratch_remove(p->home);
}

static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"What does Anna like?\"}], \"max_tokens\": 6%s}";

static serve_reply ask(const pair *p, const char *headers, const char *more)
{
    char body[400];

    snprintf(body, sizeof body, chat, more);
    return serve_call(p->k, "POST", "/v1/chat/completions", headers, body);
}

static const char *error_of(const serve_reply *r, const char *member)
{
    return json_string_value(json_object_get(json_object_get(r->json, "error"), member));
}

static void expect_ok(const pair *p)
{
    serve_reply r = ask(p, NULL, "");

    if (r.status != 200) fail_msg("%d: %s", r.status, r.body);
    serve_reply_free(&r);
}

/* /ready comes to have this status by itself; its body. */
static json_t *wait_ready(const pair *p, int status)
{
    for (int i = 0;; i++) {
        serve_reply r = serve_call(p->k, "GET", "/ready", NULL, NULL);
        json_t *body = json_incref(r.json);
        bool there = r.status == status, after = serve_head(&r, "Retry-After") != NULL;

        serve_reply_free(&r);
        if (there) {
            assert_int_equal(after, status == 503);
            return body;
        }
        json_decref(body);
        if (i == 1000) fail_msg("/ready does not come to be %d", status);
        vt_nap(20);
    }
}

static double metric(const pair *p, const char *name)
{
    serve_reply r = serve_call(p->k, "GET", "/metrics", NULL, NULL);
    const char *at = strstr(r.body, name);
    double x = -1;

    for (; at && at[-1] != '\n'; at = strstr(at + 1, name)) continue;
    if (at) sscanf(at + strlen(name), " %lf", &x);
    serve_reply_free(&r);
    return x;
}

/* ---- Whose fault ---------------------------------------------------------------------------------------------------------------------- */

static void a_refused_request_is_a_400(void **state)
{
    pair p = begin();

    (void)state;
    for (int late = 0; late < 2; late++)
        for (int streamed = 0; streamed < 2; streamed++) {
            serve_reply r;
            const uint32_t before = fake_look(p.f).completions;

            FAKE_PUT(p.f, refuse, 422);
            FAKE_PUT(p.f, refuse_late, late);
            FAKE_PUT(p.f, refuse_says, "no such thing in /etc/vllm/model, says vLLM");
            r = ask(&p, NULL, streamed ? ", \"stream\": true" : "");
            assert_int_equal(fake_look(p.f).completions, before + 1);
            FAKE_PUT(p.f, refuse, 0);
            if (late && streamed) { /* the server's 200 began it */
                assert_non_null(strstr(r.body, "no such thing in ..., says vLLM"));
                assert_non_null(strstr(r.body, "invalid_request_error"));
                assert_null(strstr(r.body, "[DONE]"));
            } else {
                if (r.status != 400) fail_msg("late %d, streamed %d: %d, %s", late, streamed, r.status, r.body);
                assert_string_equal(error_of(&r, "type"), "invalid_request_error");
                assert_non_null(strstr(error_of(&r, "message"), "no such thing in ..., says vLLM"));
            }
            serve_reply_free(&r);
            json_decref(wait_ready(&p, 200));
            assert_true(metric(&p, "inferscale_ready") == 1);
            expect_ok(&p);
        }
    end(&p);
}

/* How often an owner's question costs the server's tokenizer, which takes time that can be measured. */
static uint32_t tokenized_for(const pair *p, const char *owner)
{
    static const char *const said[] = { "[{\"role\":\"user\",\"content\":\"I am ill, nobody knows\"}]",
        "[{\"role\":\"system\",\"content\":\"Be kind to the ill\"},{\"role\":\"user\",\"content\":\"Hello\"},"
        "{\"role\":\"assistant\",\"content\":\"Are you well?\"},{\"role\":\"user\",\"content\":\"No, and nobody knows\"}]" };
    const uint32_t before = fake_look(p->f).tokenized;
    char body[600];

    for (size_t i = 0; i < 2; i++) {
        snprintf(body, sizeof body, "{\"messages\":%s,\"max_tokens\":2,\"memory\":{\"user_id\":\"%s\"}}", said[i], owner);
        serve_reply r = serve_call(p->k, "POST", "/v1/chat/completions", NULL, body);
        if (r.status != 200) fail_msg("%d: %s", r.status, r.body);
        serve_reply_free(&r);
    }
    return fake_look(p->f).tokenized - before;
}

/* Who says what another said waits as if nobody had said it. */
static void nothing_is_quicker_because_another_said_it(void **state)
{
    pair p = begin();

    (void)state;
    tokenized_for(&p, "first of all"); /* templates too */
    uint32_t anna = tokenized_for(&p, "anna");
    assert_int_equal(anna, 5);
    assert_int_equal(tokenized_for(&p, "anna"), 0);
    assert_int_equal(tokenized_for(&p, "ben"), anna);
    end(&p);
}

static void log_probabilities_as_many_as_vllm_gives(void **state)
{
    pair p;

    (void)state;
    p.home = scratch_make();
    p.f = fake_start(p.home);
    FAKE_PUT(p.f, max_logprobs, 5);
    p.k = serve_start("home", p.home, "engine", "vllm", "upstream", p.f->url, NULL);
    for (int top = 0; top <= 6; top++) {
        json_t *step, *steps;
        char more[80];
        serve_reply r;
        size_t i;

        snprintf(more, sizeof more, ", \"logprobs\": true, \"top_logprobs\": %d", top);
        r = ask(&p, NULL, more);
        if (top == 6) {
            assert_int_equal(r.status, 400);
            assert_string_equal(error_of(&r, "code"), "unsupported");
            assert_non_null(strstr(error_of(&r, "message"), "--max-logprobs 6"));
        } else {
            if (r.status != 200) fail_msg("top %d: %d, %s", top, r.status, r.body);
            steps = json_object_get(json_object_get(json_array_get(json_object_get(r.json, "choices"), 0), "logprobs"), "content");
            assert_int_equal(json_array_size(steps), 6);
            json_array_foreach(steps, i, step) {
                assert_true(json_real_value(json_object_get(step, "logprob")) == -0.5);
                assert_int_equal(json_array_size(json_object_get(step, "top_logprobs")), top);
            }
        }
        serve_reply_free(&r);
    }
    json_decref(wait_ready(&p, 200));
    end(&p);
}

/* ---- Nobody there --------------------------------------------------------------------------------------------------------------------- */

static void with_no_server_it_says_so_and_goes_on(void **state)
{
    pair p = begin();
    json_t *body;
    serve_reply r;

    (void)state;
    expect_ok(&p);
    assert_true(metric(&p, "inferscale_ready") == 1);
    fake_set(p.f, FAKE_LOADING); /* nobody asks anything */
    body = wait_ready(&p, 503);
    assert_string_equal(json_string_value(json_object_get(body, "status")), "not ready");
    assert_non_null(strstr(json_string_value(json_object_get(body, "reason")), "the vLLM server is not up: http"));
    json_decref(body);
    assert_true(metric(&p, "inferscale_ready") == 0);
    for (int i = 0; i < 2; i++) {
        r = ask(&p, NULL, i ? ", \"stream\": true" : "");
        assert_int_equal(r.status, 503);
        assert_string_equal(serve_head(&r, "Retry-After"), "2");
        assert_string_equal(error_of(&r, "type"), "server_error");
        assert_string_equal(error_of(&r, "code"), "upstream_unavailable");
        serve_reply_free(&r);
    }
    r = serve_call(p.k, "GET", "/health", NULL, NULL);
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    r = serve_call(p.k, "POST", "/memories", NULL, "{\"user_id\": \"bob\", \"infer\": false, \"messages\": [{\"role\": \"user\", \"content\": \"Bob plays the cello.\"}]}");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    r = serve_call(p.k, "POST", "/search", NULL, "{\"user_id\": \"bob\", \"query\": \"cello\"}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "cello"));
    serve_reply_free(&r);
    fake_set(p.f, FAKE_GOOD);
    json_decref(wait_ready(&p, 200));
    assert_true(metric(&p, "inferscale_ready") == 1);
    expect_ok(&p);
    end(&p);
}

static json_t *encoder(const pair *p)
{
    serve_reply r = serve_call(p->k, "GET", "/inferscale/encode", NULL, NULL);
    json_t *body = json_incref(r.json);

    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    return body;
}

/* Its pauses have become long while nothing answered; it does not sit out the last one once a server is back. */
static void the_encoder_is_woken(void **state)
{
    pair p = begin();
    double pause = 0;
    int64_t left = 1;
    serve_reply r;

    (void)state;
    fake_set(p.f, FAKE_LOADING);
    json_decref(wait_ready(&p, 503));
    r = serve_call(p.k, "POST", "/memories", NULL, "{\"user_id\": \"bob\", \"infer\": false, \"messages\": [{\"role\": \"user\", \"content\": \"Bob plays the cello.\"}]}");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    while (pause < 12) {
        json_t *e = encoder(&p);

        pause = json_number_value(json_object_get(e, "retry_s"));
        if (pause > 0) assert_string_equal(json_string_value(json_object_get(e, "error")), "upstream_unavailable");
        json_decref(e);
        vt_nap(20);
    }
    fake_set(p.f, FAKE_GOOD);
    json_decref(wait_ready(&p, 200));
    for (int i = 0; i < 300 && left; i++) { /* 6 s, less than half of the pause */
        json_t *e = encoder(&p);

        left = json_integer_value(json_object_get(e, "n_unencoded")) + json_integer_value(json_object_get(e, "n_unembedded"));
        json_decref(e);
        vt_nap(20);
    }
    assert_int_equal(left, 0);
    end(&p);
}

static void another_model_is_a_503(void **state)
{
    pair p = begin();
    serve_reply r;
    json_t *body;

    (void)state;
    expect_ok(&p);
    fake_set(p.f, FAKE_LOADING);
    json_decref(wait_ready(&p, 503));
    fake_set(p.f, FAKE_FOREIGN);
    for (int i = 0; i < 1000; i++) {
        body = wait_ready(&p, 503);
        if (strstr(json_string_value(json_object_get(body, "reason")), "another model")) i = 1000;
        else if (i == 999) fail_msg("it is not noticed");
        json_decref(body);
        vt_nap(10);
    }
    r = ask(&p, NULL, "");
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(error_of(&r, "message"), "another model"));
    serve_reply_free(&r);
    end(&p);
}

/* Where keys keep users apart nobody but an admin hears where the servers are. */
static void with_keys_nothing_is_told_of_servers(void **state)
{
    static const char user[] = "Authorization: Bearer isk_0123456789abcdef0123\r\n";
    char path[300], where[32];
    serve_reply r;
    json_t *body;
    pair p;
    FILE *out;

    (void)state;
    p.home = scratch_make();
    snprintf(path, sizeof path, "%s/keys", p.home);
    out = fopen(path, "w");
    fputs("isk_0123456789abcdef0123 user=anna\n", out);
    fclose(out);
    chmod(path, 0600);
    p.f = fake_start(p.home);
    p.k = serve_start("home", p.home, "engine", "vllm", "upstream", p.f->url, "keys", path, NULL);
    fake_set(p.f, FAKE_LOADING);
    snprintf(where, sizeof where, ":%d", p.f->port);
    body = wait_ready(&p, 503);
    assert_null(strstr(json_string_value(json_object_get(body, "reason")), where));
    json_decref(body);
    r = ask(&p, user, "");
    assert_int_equal(r.status, 503);
    assert_null(strstr(r.body, where));
    assert_string_equal(error_of(&r, "code"), "upstream_unavailable");
    serve_reply_free(&r);
    r = serve_call(p.k, "POST", "/memories", user, "{\"user_id\": \"anna\", \"infer\": false, \"messages\": [{\"role\": \"user\", \"content\": \"Anna plays the cello.\"}]}");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    for (int i = 0; i < 1000; i++) { /* the encoder fails */
        const char *said;
        bool failed;

        r = serve_call(p.k, "GET", "/inferscale/encode", user, NULL);
        assert_int_equal(r.status, 200);
        said = json_string_value(json_object_get(r.json, "last_error"));
        failed = said && *said;
        if (failed && (strstr(said, "127.0.0.1") || strstr(said, "://"))) fail_msg("%s", said);
        serve_reply_free(&r);
        if (failed) break;
        if (i == 999) fail_msg("the encoder does not fail");
        vt_nap(20);
    }
    fake_set(p.f, FAKE_GOOD);
    json_decref(wait_ready(&p, 200));
    for (int streamed = 0; streamed < 2; streamed++) { /* it has too much to do */
        fake_set(p.f, FAKE_429);
        r = ask(&p, user, streamed ? ", \"stream\": true" : "");
        assert_int_equal(r.status, 429);
        assert_null(strstr(r.body, "127.0.0.1"));
        assert_non_null(strstr(error_of(&r, "message"), "(a server) has too much to do (HTTP 429: slow down)"));
        serve_reply_free(&r);
    }
    end(&p);
}

static void what_is_told_names_no_place(void **state)
{
    static const struct { inferscale_status st; const char *said, *told; } cases[] = {
        { INFERSCALE_E_BUSY, "http://10.0.0.3:8000/v1 has too much to do; try again later", "(a server) has too much to do; try again later" },
        { INFERSCALE_E_ENGINE, "cannot reach the embedder at http://h:1 (Failed to connect to h port 1); start it",
          "a server that this one needs did not do its part; try again in a moment" },
        { INFERSCALE_OK, "cannot reach vLLM at http://h:1 (Failed to connect to h port 1)", "a server that this one needs did not do its part; try again in a moment" },
        { INFERSCALE_E_DENIED, "cannot open /srv/store/bank.db: Permission denied", "cannot open (a file): Permission denied" },
        { INFERSCALE_E_IO, "cannot read /srv/store/vault/ab/x.seg: Input/output error", "cannot read (a file): Input/output error" },
        { INFERSCALE_E_INVALID, "send it to /v1/chat/completions", "send it to /v1/chat/completions" }, /* the API's, not a file's */
        { INFERSCALE_E_INVALID, "http://10.0.0.3:8000 refuses it", "(a server) refuses it" },
        { INFERSCALE_E_BUSY, "", "" },
    };
    const is_server guarded = { .keys = (void *)(uintptr_t)cases }, open = { 0 };
    const is_mcp m = { .server = &guarded, .how_to_name = "ask at http://10.0.0.3:8000" }, own = { .how_to_name = m.how_to_name };
    json_t *arguments = json_pack("{s:s}", "query", "cello"), *reply;
    char out[IS_TOLD_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(is_error_message(&guarded, cases[i].st, cases[i].said, out), cases[i].told);
        assert_string_equal(is_error_message(&open, cases[i].st, cases[i].said, out), cases[i].said);
    }
    for (int guard = 0; guard < 2; guard++) {
        char *text;

        reply = is_mcp_call(guard ? &m : &own, "search_memories", arguments);
        text = json_dumps(reply, 0);
        assert_non_null(strstr(text, "whose memory this is was not said"));
        assert_int_equal(strstr(text, "10.0.0.3") == NULL, guard);
        free(text);
        json_decref(reply);
    }
    json_decref(arguments);
}

/* ---- Addresses ------------------------------------------------------------------------------------------------------------------------ */

static void wrong_addresses_are_refused_at_once(void **state)
{
    static const char *const wrong[] = { "http://127.0.0.1:99999", "http://127.0.0.1:0", "127.0.0.1:8000", "http://", "http://:8000", "ftp://a",
                                         "http://a b", "http://a:80x", "http://u:secret@a", "http://a?b", "http://a:8000,http://b:70000", ",",
                                         "http://[::1", "http://a:8000\\x" };
    char error[1024];

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(serve_start_fails(error, "engine", "vllm", "upstream", wrong[i], NULL), INFERSCALE_E_INVALID);
        if (!strstr(error, "upstream")) fail_msg("%s: %s", wrong[i], error);
        assert_null(strstr(error, "secret"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_request_is_a_400),
        cmocka_unit_test(nothing_is_quicker_because_another_said_it),
        cmocka_unit_test(log_probabilities_as_many_as_vllm_gives),
        cmocka_unit_test(with_no_server_it_says_so_and_goes_on),
        cmocka_unit_test(the_encoder_is_woken),
        cmocka_unit_test(another_model_is_a_503),
        cmocka_unit_test(with_keys_nothing_is_told_of_servers),
        cmocka_unit_test(what_is_told_names_no_place),
        cmocka_unit_test(wrong_addresses_are_refused_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
