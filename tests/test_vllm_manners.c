/* How the vLLM engine behaves towards its servers: what a server says against a request is the request's and costs the server nothing; what a
 * server fails at is the server's; as many log-probabilities as it gives are asked for; a secret that is replaced is used at once. Servers that
 * come and go: test_vllm_away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/url.h"
#include "support/fault_fs.h"
#include "support/scratch.h"
#include "support/vllm_kit.h"

/* ---- Whose fault ---------------------------------------------------------------------------------------------------------------------- */

/* Refused by status, and as an event in a stream that began well: the same. */
static void a_refusal_is_the_request_s(void **state)
{
    static const struct { unsigned code; is_status st; } codes[] = {
        { 400, INFERSCALE_E_INVALID }, { 402, INFERSCALE_E_INVALID }, { 405, INFERSCALE_E_INVALID }, { 409, INFERSCALE_E_INVALID },
        { 413, INFERSCALE_E_INVALID }, { 415, INFERSCALE_E_INVALID }, { 422, INFERSCALE_E_INVALID }, { 431, INFERSCALE_E_INVALID },
        { 501, INFERSCALE_E_UNSUPPORTED } };
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    vt_question(&p);
    for (size_t i = 0; i < 2 * sizeof codes / sizeof *codes; i++) {
        const uint32_t before = fake_look(s.f[0]).completions + fake_look(s.f[1]).completions;
        is_status st;
        is_run *run;

        for (int k = 0; k < 2; k++) {
            FAKE_PUT(s.f[k], refuse, codes[i / 2].code);
            FAKE_PUT(s.f[k], refuse_late, i % 2);
            FAKE_PUT(s.f[k], refuse_says, "the third word is wrong");
        }
        st = V->begin(s.e, &p.plan, NULL, &run);
        if (st != codes[i / 2].st) fail_msg("HTTP %u%s: status %d, %s", codes[i / 2].code, i % 2 ? " (late)" : "", st, is_error());
        assert_null(run);
        assert_non_null(strstr(is_error(), "the third word is wrong"));
        assert_int_equal(fake_look(s.f[0]).completions + fake_look(s.f[1]).completions, before + 1); /* no other is asked the same */
        for (int k = 0; k < 2; k++) {
            assert_true(vt_up_of(&s, k).up);
            assert_int_equal(vt_up_of(&s, k).n_retries, 0);
            FAKE_PUT(s.f[k], refuse, 0);
        }
        OK(V->begin(s.e, &p.plan, NULL, &run)); /* at once */
        V->finish(s.e, run);
    }
    vt_drop(&p);
    vt_stop(&s);
}

static void a_server_s_failure_is_the_server_s(void **state)
{
    static const struct { unsigned code; bool failed; } codes[] = { { 500, true }, { 503, true }, { 408, true }, { 401, true }, { 403, true },
                                                                    { 404, true }, { 429, false } };
    char http[16];
    vt_plan p;

    (void)state;
    vt_question(&p);
    for (size_t i = 0; i < 2 * sizeof codes / sizeof *codes; i++) {
        is_run *run;
        is_status st;
        vt_set s;

        vt_start_unkept(&s, 2);
        vllm_limit.backoff_ms = 60000;
        for (int k = 0; k < 2; k++) {
            FAKE_PUT(s.f[k], refuse, codes[i / 2].code);
            FAKE_PUT(s.f[k], refuse_late, i % 2);
        }
        st = V->begin(s.e, &p.plan, NULL, &run);
        assert_int_equal(st, codes[i / 2].failed ? INFERSCALE_E_ENGINE : INFERSCALE_E_BUSY); /* never what would blame who asks */
        snprintf(http, sizeof http, "HTTP %u", codes[i / 2].code);
        if (!strstr(is_error(), http)) fail_msg("%s: %s", http, is_error()); /* it is of that failure, not of the search for another server */
        assert_int_equal(fake_look(s.f[0]).completions + fake_look(s.f[1]).completions, 2); /* each once */
        for (int k = 0; k < 2; k++) {
            assert_int_equal(vt_up_of(&s, k).up, !codes[i / 2].failed);
            FAKE_PUT(s.f[k], refuse, 0);
        }
        OK(V->begin(s.e, &p.plan, NULL, &run));
        V->finish(s.e, run);
        vt_stop(&s);
    }
    vt_drop(&p);
}

static void a_sentence_names_no_path(void **state)
{
    static const struct { const char *says, *shown; } of[] = {
        { "no file /data/models/x.safetensors", "no file ..." }, { "at '/srv/a/b' and (/opt/c/d): no", "at '...' and (...): no" },
        { "/models/mine is gone", "... is gone" }, { "use 1/2 or a/b/c, not /v1", "use 1/2 or a/b/c, not /v1" }, { "", "" },
        { "/", "/" }, { "x=/a/b/c", "x=..." }, { "in /a/b", "in ..." } };

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char out[240], body[300];
        int n = snprintf(body, sizeof body, "{\"error\":{\"message\":\"%s\"}}", of[i].says);

        vllm_says((uint8_t *)body, (size_t)n, out);
        assert_string_equal(out, of[i].shown);
    }
}

/* ---- Log-probabilities ---------------------------------------------------------------------------------------------------------------- */

static void as_many_as_it_gives(void **state)
{
    static const uint32_t tops[] = { 0, 1, 2, 3, 5, 20 };
    is_likely got[FAKE_VOCAB + 1];
    int32_t token;
    uint32_t n;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start_fakes(&s, 1);
    FAKE_PUT(s.f[0], max_logprobs, 20);
    OK(vt_open_set(&s));
    vt_question(&p);
    for (size_t k = 0; k < sizeof tops / sizeof *tops; k++) {
        is_run_opts o = { .want_likely = true, .n_likely = tops[k] };
        const uint32_t before = fake_look(s.f[0]).completions;

        OK(V->begin(s.e, &p.plan, &o, &run));
        assert_int_equal(json_integer_value(json_object_get(s.f[0]->last, "logprobs")), tops[k]);
        assert_null(V->logits(s.e, run));
        for (int i = 0; i < 12; i++) {
            OK(V->sample(s.e, run, &token));
            OK(V->likely(s.e, run, token, tops[k], got, &n));
            assert_int_equal(n, tops[k] + 1);
            assert_int_equal(got[0].id, token);
            assert_true(got[0].logprob == -0.5);
            for (uint32_t r = 1; r < n; r++) { /* 0, 1, the chosen one, 2, 3, ... */
                assert_int_equal(got[r].id, r == 3 ? token : r < 3 ? (int)r - 1 : (int)r - 2);
                assert_true(r == 1 || got[r].logprob <= got[r - 1].logprob);
            }
            OK(V->token(s.e, run, token));
        }
        V->rest(s.e, run);
        V->finish(s.e, run);
        assert_int_equal(fake_look(s.f[0]).completions, before + 1);
    }
    FAILS(E_UNSUPPORTED, V->begin(s.e, &p.plan, &(is_run_opts){ .want_likely = true, .n_likely = 21 }, &run));
    assert_non_null(strstr(is_error(), "at most 20"));
    FAILS(E_UNSUPPORTED, V->begin(s.e, &p.plan, &(is_run_opts){ .want_logits = true }, &run));
    assert_non_null(strstr(is_error(), "--max-logprobs -1"));
    assert_int_equal(fake_look(s.f[0]).completions, sizeof tops / sizeof *tops); /* neither was sent */
    assert_true(vt_up_of(&s, 0).up);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .want_likely = true }, &run));
    OK(V->sample(s.e, run, &token));
    FAILS(E_ENGINE, V->likely(s.e, run, token + 1, 0, got, &n)); /* of that one nothing was said */
    FAILS(E_INVALID, V->likely(s.e, run, -1, 0, got, &n));
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_FEW_LOGPROBS);
    FAILS(E_ENGINE, V->begin(s.e, &p.plan, &(is_run_opts){ .want_likely = true, .n_likely = 3 }, &run));
    vt_drop(&p);
    vt_stop(&s);
}

/* The host's own way, from logits: the same answer as by hand. */
static void likely_by_logits(void **state)
{
    static const float logits[] = { 1, 3, -2, 3.5f, 0, 3 };
    static const int32_t order[] = { 3, 1, 5, 0, 4, 2 };
    is_likely got[8];
    double sum = 0;
    uint32_t n;

    (void)state;
    for (int i = 0; i < 6; i++) sum += exp((double)logits[i]);
    for (uint32_t top = 0; top <= 7; top++) {
        is_likely_of(logits, 6, 4, top, got, &n);
        assert_int_equal(n, 1 + (top < 6 ? top : 6));
        assert_int_equal(got[0].id, 4);
        for (uint32_t i = 0; i < n; i++) {
            if (i) assert_int_equal(got[i].id, order[i - 1]);
            assert_true(fabs(got[i].logprob - ((double)logits[got[i].id] - log(sum))) < 1e-12);
        }
    }
}

/* ---- The secret ----------------------------------------------------------------------------------------------------------------------- */

static void put_secret(const vt_set *s, char digit, bool in_place)
{
    char path[300], tmp[320];
    FILE *out;

    snprintf(path, sizeof path, "%s/vllm/secret", s->home);
    snprintf(tmp, sizeof tmp, "%s.new", path);
    out = fopen(in_place ? path : tmp, "w");
    for (int i = 0; i < 64; i++) fputc(digit, out);
    fputc('\n', out);
    fclose(out);
    if (!in_place) rename(tmp, path);
}

static void a_new_secret_is_used_at_once(void **state)
{
    is_realm r = vt_realm(5, 1);
    is_run_stats stats;
    size_t pending;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    for (int i = 0; i < 6; i++) {
        const uint32_t bad = fake_look(s.f[0]).bad_tickets;
        vt_capture a;
        is_run *run;

        if (i < 4) put_secret(&s, (char)('1' + i), i % 2);
        else unlink(scratch_path(s.home, "vllm/secret")); /* who takes it away gets a new one */
        OK(V->begin(s.e, &p.plan, &(is_run_opts){ .realm = &r, .no_prefix_cache = true }, &run));
        vt_expect_answer(s.e, run, p.ids, p.n, 12);
        V->rest(s.e, run);
        V->stats(s.e, run, &stats);
        assert_string_equal(stats.why, "");
        assert_int_equal(stats.tokens_injected, p.parts[1].n_tokens + p.parts[2].n_tokens);
        V->finish(s.e, run);
        r.epoch++;
        OK(V->revoke(s.e, &r, 5000, &pending));
        assert_int_equal(pending, 0);
        vt_make_capture(&a, 20, 8, (uint8_t)(i + 1));
        OK(V->capture(s.e, &a.c, 1));
        vt_expect_rows(&a);
        vt_free_capture(&a);
        assert_int_equal(fake_look(s.f[0]).bad_tickets, bad);
    }
    vt_drop(&p);
    vt_stop(&s);
}

/* Half of a new one is none: the old one stays in force until it is whole. */
static void half_a_secret_is_none(void **state)
{
    char old[80] = "";
    is_run *run;
    vt_plan p;
    vt_set s;
    FILE *f;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    f = fopen(scratch_path(s.home, "vllm/secret"), "r");
    assert_non_null(fgets(old, sizeof old, f));
    fclose(f);
    f = fopen(scratch_path(s.home, "vllm/secret"), "w");
    fputs("0011", f);
    fclose(f);
    OK(V->begin(s.e, &p.plan, NULL, &run)); /* computed by a connector that knows no secret now */
    V->finish(s.e, run);
    f = fopen(scratch_path(s.home, "vllm/secret"), "w");
    fputs(old, f);
    fclose(f);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .no_prefix_cache = true }, &run));
    assert_non_null(s.f[0]->ticket);
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

/* The reason is told as it is, also when the question about it is not trusted either. */
static void unsigned_is_told_as_unsigned(void **state)
{
    is_run_stats stats;
    is_upstream up;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    OK(V->begin(s.e, &p.plan, NULL, &run)); /* the header is there */
    V->finish(s.e, run);
    pthread_mutex_lock(&s.f[0]->lock); /* a connector with another store's secret */
    free(s.f[0]->home);
    s.f[0]->home = strdup("/nonexistent");
    pthread_mutex_unlock(&s.f[0]->lock);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .no_prefix_cache = true }, &run));
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->rest(s.e, run);
    V->stats(s.e, run, &stats);
    assert_string_equal(stats.reason, "unsigned");
    assert_int_equal(stats.tokens_injected, 0);
    V->finish(s.e, run);
    up = vt_up_of(&s, 0);
    assert_int_equal(up.n_reasons, 1);
    assert_string_equal(up.reasons[0].code, "unsigned");
    vt_drop(&p);
    vt_stop(&s);
}

/* Replaced while an answer is on its way: its ticket was refused, and what asks about it is trusted. */
static void unsigned_since_a_moment(void **state)
{
    is_run_stats stats;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    FAKE_PUT(s.f[0], refuse_tickets, true);
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .no_prefix_cache = true }, &run));
    FAKE_PUT(s.f[0], refuse_tickets, false);
    put_secret(&s, '7', false);
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->rest(s.e, run);
    V->stats(s.e, run, &stats);
    assert_string_equal(stats.reason, "unsigned");
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

/* ---- What was sent before --------------------------------------------------------------------------------------------------------------- */

/* The file is on the store's filesystem: where that fails nothing is known, and the next process knows what it holds. */
static void what_was_sent_is_kept_in_the_store(void **state)
{
    fault_clock *clock = fault_clock_new();
    fault_fs *fs = fault_fs_on(clock, NULL);
    uint8_t a[IS_HASH_BYTES] = { 1 }, b[IS_HASH_BYTES] = { 2 };
    vt_set s;

    (void)state;
    is_fs_set_default(fault_fs_fs(fs));
    vt_start_unkept(&s, 1);
    assert_false(vllm_seen(s.e, a, 3));
    assert_true(vllm_seen(s.e, a, 3));
    assert_false(vllm_seen(s.e, a, 4));
    for (int i = 0; i < 2; i++) {
        fault_clock_refuse(clock, 1u << (i ? FAULT_WRITE : FAULT_READ), EIO, 1, true);
        assert_true(vllm_seen(s.e, b, 3));
        assert_int_equal(fault_clock_hits(clock), 1);
        fault_clock_off(clock);
    }
    assert_false(vllm_seen(s.e, b, 3)); /* neither was noted */
    V->close(s.e);
    OK(vt_open_set(&s));
    assert_true(vllm_seen(s.e, a, 3));
    assert_true(vllm_seen(s.e, b, 3));
    vt_stop(&s);
    is_fs_set_default(NULL);
    fault_fs_free(fs);
    fault_clock_free(clock);
}

/* ---- Addresses ------------------------------------------------------------------------------------------------------------------------ */

static void addresses(void **state)
{
    static const char *const good[] = { "http://a", "https://a.b-c_d:1/", "http://127.0.0.1:65535/v1", "http://[::1]:8000/x/y",
                                        " http://a , http://b:2 ,", "http://a:0080" };
    static const char *const bad[] = { "", " , ", "a", "http:/a", "HTTP://a", "http://a:", "http://a:65536", "http://a:-1", "http://a:1:2", "http://a:1 2",
                                       "http://[]", "http://[::1", "http://[g::1]", "http://a/b#c", "http://a/\"b", "http://\xc3\xa4", "http://a\nb",
                                       "http://a,b" };

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        OK(is_urls_check(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (is_urls_check(bad[i]) != INFERSCALE_E_INVALID) fail_msg("'%s' is taken", bad[i]);
    FAILS(E_INVALID, is_url_check("http://a b", 10));
    OK(is_url_check("http://a b", 8)); /* so many bytes and no more */
    for (size_t n = 0; n <= 7; n++) FAILS(E_INVALID, is_url_check("http://a", n));
}

static void a_gateway_is_told_as_one(void **state)
{
    vt_set s;

    (void)state;
    vt_start_fakes(&s, 1);
    fake_set(s.f[0], FAKE_GATEWAY);
    FAILS(E_INVALID, vt_open_set(&s));
    assert_non_null(strstr(is_error(), "`inferscale serve`, not a vLLM"));
    fake_set(s.f[0], FAKE_500);
    FAKE_PUT(s.f[0], max_logprobs, 20);
    OK(vt_open_set(&s));
    vt_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_is_the_request_s),
        cmocka_unit_test(a_server_s_failure_is_the_server_s),
        cmocka_unit_test(a_sentence_names_no_path),
        cmocka_unit_test(as_many_as_it_gives),
        cmocka_unit_test(likely_by_logits),
        cmocka_unit_test(a_new_secret_is_used_at_once),
        cmocka_unit_test(half_a_secret_is_none),
        cmocka_unit_test(unsigned_is_told_as_unsigned),
        cmocka_unit_test(unsigned_since_a_moment),
        cmocka_unit_test(what_was_sent_is_kept_in_the_store),
        cmocka_unit_test(addresses),
        cmocka_unit_test(a_gateway_is_told_as_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
