/* test_load.c - the load generator: what it takes from a stream, however its bytes are cut; what it says of servers that fail; that
 * requests are neither lost nor counted twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "eval/load_events.h"
#include "eval/stats.h"

static const char stream[] = ": ping\n\n"
                             "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"memory\":{\"mode\":\"kv\",\"n\":1}}\r\n\r\n"
                             "event: x\ndata: {\"choices\":[{\"delta\":{\"content\":\"I rec\"}}]}\n\n"
                             "data:{\"choices\":[{\"delta\":{\"content\":\"all \xc3\xa9\"}}]}\n\n"
                             "data: {\"choices\":[{\"delta\":{\"content\":\"!\"},\"finish_reason\":null}]}\n\n"
                             "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}],\"memory\":{\"mode\":\"kv\",\"n\":2}}\n\n"
                             "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5,"
                             "\"prompt_tokens_details\":{\"cached_tokens\":3}}}\n\n"
                             "data: [DONE]\n\n";

static bool feed(load_events *e, load_sample *s, const char *text)
{
    load_events_reset(e);
    return load_events_feed(e, text, strlen(text), 1, s);
}

static void cut_anywhere_it_reads_the_same(void **state)
{
    rng r = { 20261130 };
    load_events e = { 0 };

    (void)state;
    for (int round = 0; round < 400; round++) {
        load_sample s = { 0 };
        size_t at = 0, most = 1 + (size_t)rng_below(&r, 40);

        load_events_reset(&e);
        while (at < sizeof stream - 1) {
            size_t n = 1 + (size_t)rng_below(&r, most);

            if (n > sizeof stream - 1 - at) n = sizeof stream - 1 - at;
            assert_true(load_events_feed(&e, stream + at, n, (double)at, &s));
            at += n;
        }
        assert_true(e.done);
        assert_string_equal((char *)s.text.data, "I recall \xc3\xa9!");
        assert_string_equal(s.finish, "length");
        assert_int_equal(s.n_tokens, 5);
        assert_int_equal(s.n_prompt, 7);
        assert_int_equal(s.n_cached, 3);
        assert_int_equal(s.n_itl, 2);
        assert_int_equal(json_integer_value(json_object_get(s.memory, "n")), 2);
        assert_true(s.ttft_ms > 0 && s.itl_ms[0] >= 0 && s.itl_ms[1] >= 0);
        assert_string_equal(s.error, "");
        load_sample_free(&s);
    }
    load_events_free(&e);
}

static void what_is_no_such_stream_is_said(void **state)
{
    static const struct { const char *text, *part; } wrong[] = {
        { "data: nonsense\n", "no JSON object" },
        { "data: [1]\n", "no JSON object" },
        { "data: {\"error\":{\"message\":\"the engine failed\"}}\n", "the engine failed" },
        { "data: [DONE]\n\ndata: {}\n", "after [DONE]" },
    };
    load_events e = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        load_sample s = { 0 };

        assert_false(feed(&e, &s, wrong[i].text));
        if (!strstr(s.error, wrong[i].part)) fail_msg("\"%s\" does not say \"%s\"", s.error, wrong[i].part);
        load_sample_free(&s);
    }
    load_events_free(&e);
}

static void without_usage_pieces_are_counted(void **state)
{
    load_events e = { 0 };
    load_sample s = { 0 };

    (void)state;
    assert_true(feed(&e, &s, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"));
    assert_false(e.done);
    assert_int_equal(s.n_tokens, 2);
    load_sample_free(&s);
    load_events_free(&e);
}

static char *empty_body(void *ctx, uint32_t number, uint32_t user)
{
    uint32_t *seen = ctx;

    assert_int_equal(number, seen[0]); /* each once, in order */
    assert_true(user < 3);
    seen[0]++;
    return is_strdup("{}");
}

/* Port 9 of this machine has nobody; every request fails, none is lost. */
static void a_server_that_is_not_there(void **state)
{
    uint32_t seen = 0;
    load_result r;
    load_options o = { .url = "http://127.0.0.1:9/v1", .users = 3, .n = 10, .body = empty_body, .ctx = &seen };

    (void)state;
    assert_int_equal(load_run(&o, &r), INFERSCALE_OK);
    assert_int_equal(r.n, 10);
    assert_int_equal(r.n_failed, 10);
    assert_int_equal(r.n_completed + r.n_cut, 0);
    for (size_t i = 0; i < r.n; i++) assert_true(r.samples[i].error[0] && r.samples[i].status == 0);
    load_result_free(&r);
    seen = 0;
    o.rate = 1000;
    assert_int_equal(load_run(&o, &r), INFERSCALE_OK);
    assert_int_equal(r.n_failed, 10);
    assert_true(r.offered > 100 && r.offered < 10000);
    load_result_free(&r);
    o.url = "localhost";
    assert_int_equal(load_run(&o, &r), INFERSCALE_E_INVALID);
    assert_null(r.samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_anywhere_it_reads_the_same),
        cmocka_unit_test(what_is_no_such_stream_is_said),
        cmocka_unit_test(without_usage_pieces_are_counted),
        cmocka_unit_test(a_server_that_is_not_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
