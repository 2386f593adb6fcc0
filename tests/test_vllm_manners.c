/* How the vLLM engine behaves towards its servers: what a server says against a request is the request's and costs the server nothing; what a
 * server fails at is the server's; as many log-probabilities as it gives are asked for; a secret that is replaced is used at once; a server
 * that was away is asked again what it is, and gets no work as another model. */
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

static is_upstream up_of(const vt_set *s, int i)
{
    is_upstream up[SERVERS];

    V->upstreams(s->e, up, SERVERS);
    return up[i];
}

/* Nobody makes a server well meanwhile. */
static void start_unkept(vt_set *s, int n)
{
    vt_start_fakes(s, n);
    vllm_limit.keeper_ms = 60000; /* before its first look */
    OK(vt_open_set(s));
}

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
            assert_true(up_of(&s, k).up);
            assert_int_equal(up_of(&s, k).n_retries, 0);
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

        start_unkept(&s, 2);
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
            assert_int_equal(up_of(&s, k).up, !codes[i / 2].failed);
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
    assert_true(up_of(&s, 0).up);
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
    up = up_of(&s, 0);
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

typedef struct hanger { vllm_fake *f; uint32_t before; volatile int *cancel; } hanger;

static void *hang_up_when_asked(void *arg)
{
    const hanger *h = arg;

    for (int k = 0; k < 1000 && fake_look(h->f).hung == h->before; k++) vt_nap(10);
    __atomic_store_n(h->cancel, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* ---- Well, away, back, another -------------------------------------------------------------------------------------------------------- */

static bool wait_up(const vt_set *s, int i, bool up)
{
    for (int k = 0; k < 1000 && up_of(s, i).up != up; k++) vt_nap(10);
    return up_of(s, i).up == up;
}

/* Nobody needs to ask for anything. */
static void who_dies_is_noticed_and_who_comes_back(void **state)
{
    char why[256];
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    vt_question(&p);
    for (int round = 0; round < 2; round++) {
        fake_set(s.f[1], FAKE_LOADING);
        assert_true(wait_up(&s, 1, false));
        snprintf(why, sizeof why, "%s", up_of(&s, 1).why);
        assert_non_null(strstr(why, "503"));
        assert_true(up_of(&s, 0).up);
        vt_nap(200); /* long enough for the pauses between tries to have become long */
        fake_set(s.f[1], FAKE_GOOD);
        assert_true(wait_up(&s, 1, true));
        assert_string_equal(up_of(&s, 1).why, "");
    }
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

/* One that hangs holds up nobody else's look. */
static void one_that_hangs_is_no_bother(void **state)
{
    vt_set s;

    (void)state;
    vt_start(&s, 3);
    FAKE_PUT(s.f[0], health_hangs, true);
    vt_nap(100);
    fake_set(s.f[2], FAKE_LOADING);
    assert_true(wait_up(&s, 2, false));
    fake_set(s.f[2], FAKE_GOOD);
    assert_true(wait_up(&s, 2, true));
    FAKE_PUT(s.f[0], health_hangs, false);
    vt_stop(&s);
}

/* Nor does one whose first word, or whose word about what was forgotten, never comes. */
static void one_that_is_silent_is_no_bother(void **state)
{
    is_realm r = vt_realm(5, 2);
    size_t pending;
    vt_set s;

    (void)state;
    vt_start(&s, 3);
    for (int round = 0; round < 2; round++) {
        const uint32_t before = fake_look(s.f[0]).hung;

        FAKE_PUT(s.f[0], op_hangs, round ? INFERSCALE_TICKET_REVOKE : INFERSCALE_TICKET_DESCRIBE);
        if (round) {
            FAILS(E_BUSY, V->revoke(s.e, &r, 1000, &pending));
        } else {
            fake_set(s.f[0], FAKE_LOADING);
            assert_true(wait_up(&s, 0, false));
            fake_set(s.f[0], FAKE_GOOD);
        }
        for (int k = 0; k < 1000 && fake_look(s.f[0]).hung <= before + (uint32_t)round; k++) vt_nap(10);
        assert_int_equal(fake_look(s.f[0]).hung, before + 1 + (uint32_t)round); /* the keeper waits for it now */
        fake_set(s.f[2], FAKE_LOADING);
        assert_true(wait_up(&s, 2, false));
        fake_set(s.f[2], FAKE_GOOD);
        assert_true(wait_up(&s, 2, true));
        assert_int_equal(fake_look(s.f[0]).hung, before + 1 + (uint32_t)round); /* and did all the time */
        FAKE_PUT(s.f[0], op_hangs, 0);
        assert_true(wait_up(&s, 0, true));
        for (int k = 0; k < 1000 && up_of(&s, 0).n_pending; k++) vt_nap(10);
        assert_int_equal(up_of(&s, 0).n_pending, 0);
    }
    vt_stop(&s);
}

/* Who says nothing to a revocation has failed. */
static void silence_about_what_was_forgotten_is_a_failure(void **state)
{
    is_realm r = vt_realm(5, 2);
    size_t pending;
    vt_set s;

    (void)state;
    vt_start_fakes(&s, 2);
    vllm_limit.small_ms = 1000;
    OK(vt_open_set(&s));
    FAKE_PUT(s.f[0], op_hangs, INFERSCALE_TICKET_REVOKE);
    FAKE_PUT(s.f[0], health_hangs, true); /* nothing makes it well again */
    FAILS(E_BUSY, V->revoke(s.e, &r, 50, &pending));
    for (int k = 0; k < 1000 && !strstr(up_of(&s, 0).why, "/v1/completions"); k++) vt_nap(10);
    assert_non_null(strstr(up_of(&s, 0).why, "/v1/completions"));
    assert_false(up_of(&s, 0).up);
    assert_true(up_of(&s, 1).up);
    FAKE_PUT(s.f[0], op_hangs, 0);
    FAKE_PUT(s.f[0], health_hangs, false);
    assert_true(wait_up(&s, 0, true));
    vt_stop(&s);
}

static uint32_t n_warned, n_confirmed;

static void count_lines(void *ctx, int level, const char *text)
{
    (void)ctx;
    if (level == IS_LOG_WARN && strstr(text, "has not confirmed")) __atomic_add_fetch(&n_warned, 1, __ATOMIC_RELAXED);
    if (strstr(text, "has confirmed")) __atomic_add_fetch(&n_confirmed, 1, __ATOMIC_RELAXED);
}

/* What is never confirmed is in nobody's way, and said once. */
static void one_memory_holds_up_no_other(void **state)
{
    size_t pending;
    vt_set s;

    (void)state;
    vt_start(&s, 2);
    n_warned = n_confirmed = 0;
    is_log_set(count_lines, NULL);
    fake_set(s.f[0], FAKE_NOT_REVOKED);
    for (uint8_t tag = 5; tag < 45; tag++) {
        is_realm r = vt_realm(tag, 2);

        FAILS(E_BUSY, V->revoke(s.e, &r, 5000, &pending));
        assert_int_equal(pending, 1);
    }
    assert_int_equal(up_of(&s, 0).n_pending, 40);
    FAKE_PUT(s.f[0], keeps_tag, 5);
    fake_set(s.f[0], FAKE_GOOD);
    for (int k = 0; k < 1000 && up_of(&s, 0).n_pending > 1; k++) vt_nap(10);
    vt_nap(200); /* some rounds more */
    assert_int_equal(up_of(&s, 0).n_pending, 1);
    assert_true(up_of(&s, 0).up); /* it answers */
    FAKE_PUT(s.f[0], keeps_tag, 0);
    for (int k = 0; k < 1000 && up_of(&s, 0).n_pending; k++) vt_nap(10);
    assert_int_equal(up_of(&s, 0).n_pending, 0);
    V->close(s.e); /* and its thread */
    s.e = NULL;
    is_log_set(NULL, NULL);
    assert_int_equal(n_warned, 40);
    assert_int_equal(n_confirmed, 40);
    vt_stop(&s);
}

static uint32_t n_there;
static void count_there(void *ctx, int level, const char *line)
{
    (void)ctx;
    (void)level;
    if (strstr(line, " is there: ")) __atomic_add_fetch(&n_there, 1, __ATOMIC_RELAXED);
}

/* The log says once of each server that it is there, also of one that was at the first look. */
static void a_server_s_first_word_is_news(void **state)
{
    vt_set s;

    (void)state;
    n_there = 0;
    is_log_set(count_there, NULL);
    vt_start(&s, 2);
    vt_stop(&s);
    is_log_set(NULL, NULL);
    assert_int_equal(n_there, 2);
}

/* Restarted with another model: also the first request does not go there, though nobody looked after it meanwhile. */
static void another_model_gets_no_work(void **state)
{
    uint32_t before;
    is_run *run = NULL;
    vt_capture a;
    vt_plan p;
    vt_set s;

    (void)state;
    start_unkept(&s, 1);
    vt_question(&p);
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_LOADING);
    FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run));
    fake_set(s.f[0], FAKE_FOREIGN);
    before = fake_look(s.f[0]).completions;
    for (int i = 0; i < 3; i++) {
        FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run));
        assert_non_null(strstr(is_error(), "another model"));
        vt_make_capture(&a, 10, 4, 2);
        FAILS(E_ENGINE, V->capture(s.e, &a.c, 1));
        vt_free_capture(&a);
    }
    assert_int_equal(fake_look(s.f[0]).completions, before);
    assert_int_equal(fake_look(s.f[0]).captures, 1);
    assert_false(up_of(&s, 0).up);
    vt_drop(&p);
    vt_stop(&s);
}

/* Changed behind its address without a moment's silence: the connector knows it first, and nothing more goes there. */
static void another_model_without_a_pause(void **state)
{
    is_run_stats stats;
    uint32_t before;
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    start_unkept(&s, 1);
    vt_question(&p);
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_LOAD_FAILS);
    FAKE_PUT(s.f[0], load_reason, "model");
    OK(V->begin(s.e, &p.plan, &(is_run_opts){ .no_prefix_cache = true }, &run));
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->rest(s.e, run);
    V->stats(s.e, run, &stats);
    assert_string_equal(stats.reason, "model");
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_FOREIGN);
    before = fake_look(s.f[0]).completions;
    FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run));
    assert_non_null(strstr(is_error(), "another model"));
    assert_int_equal(fake_look(s.f[0]).completions, before);
    vt_drop(&p);
    vt_stop(&s);
}

/* A name that it does not know is another model too; and the right one again serves again, under whatever name. */
static void the_right_model_serves_again(void **state)
{
    is_run *run;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    FAKE_PUT(s.f[0], served, "renamed"); /* between two looks: the request is what notices */
    FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run)); /* that one; it says what it is then */
    assert_true(wait_up(&s, 0, true));
    OK(V->begin(s.e, &p.plan, NULL, &run));
    vt_expect_answer(s.e, run, p.ids, p.n, 12);
    V->finish(s.e, run);
    fake_set(s.f[0], FAKE_LOADING);
    assert_true(wait_up(&s, 0, false));
    fake_set(s.f[0], FAKE_FOREIGN);
    for (int k = 0; k < 1000 && !strstr(up_of(&s, 0).why, "another model"); k++) vt_nap(10);
    assert_non_null(strstr(up_of(&s, 0).why, "another model"));
    fake_set(s.f[0], FAKE_LOADING);
    vt_nap(200);
    fake_set(s.f[0], FAKE_GOOD);
    assert_true(wait_up(&s, 0, true));
    OK(V->begin(s.e, &p.plan, NULL, &run));
    V->finish(s.e, run);
    vt_drop(&p);
    vt_stop(&s);
}

/* A server whose first word hangs does not keep who waits for it: an answer and a capture end with their flag. */
static void who_hangs_up_waits_for_no_word(void **state)
{
    vt_capture a;
    vt_plan p;
    vt_set s;

    (void)state;
    start_unkept(&s, 1);
    vt_question(&p);
    for (int i = 0; i < 2; i++) {
        const uint32_t before = fake_look(s.f[0]).hung;
        volatile int cancel = 0;
        pthread_t t;
        is_run *run = NULL;

        FAKE_PUT(s.f[0], refuse, 500);
        FAILS(E_ENGINE, V->begin(s.e, &p.plan, NULL, &run)); /* it is to say what it is before it gets more */
        FAKE_PUT(s.f[0], refuse, 0);
        FAKE_PUT(s.f[0], op_hangs, INFERSCALE_TICKET_DESCRIBE);
        vt_make_capture(&a, 20, 8, 3);
        a.c.cancel = &cancel;
        pthread_create(&t, NULL, hang_up_when_asked, &(hanger){ s.f[0], before, &cancel });
        if (i) FAILS(E_CANCELLED, V->capture(s.e, &a.c, 1));
        else FAILS(E_CANCELLED, V->begin(s.e, &p.plan, &(is_run_opts){ .cancel = &cancel }, &run));
        pthread_join(t, NULL);
        assert_int_equal(fake_look(s.f[0]).hung, before + 1);
        FAKE_PUT(s.f[0], op_hangs, 0);
        vt_free_capture(&a);
        OK(V->begin(s.e, &p.plan, NULL, &run)); /* and who asks next is served */
        V->finish(s.e, run);
    }
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
    start_unkept(&s, 1);
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
        cmocka_unit_test(who_dies_is_noticed_and_who_comes_back),
        cmocka_unit_test(one_that_hangs_is_no_bother),
        cmocka_unit_test(one_that_is_silent_is_no_bother),
        cmocka_unit_test(silence_about_what_was_forgotten_is_a_failure),
        cmocka_unit_test(one_memory_holds_up_no_other),
        cmocka_unit_test(a_server_s_first_word_is_news),
        cmocka_unit_test(another_model_gets_no_work),
        cmocka_unit_test(another_model_without_a_pause),
        cmocka_unit_test(the_right_model_serves_again),
        cmocka_unit_test(who_hangs_up_waits_for_no_word),
        cmocka_unit_test(what_was_sent_is_kept_in_the_store),
        cmocka_unit_test(addresses),
        cmocka_unit_test(a_gateway_is_told_as_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
