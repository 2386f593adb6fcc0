/* test_engine_basic.c - the llama engine on a real model: what must hold whatever is asked of it. Identity and the negative
 * controls are in test_identity.c; here: determinism, exact prefixes, limits, cancelling, bad plans, bad model files. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "llama/support/tiny_models.h"
#include "support/kit.h"
#include "support/scratch.h"

enum { CTX = 1024 };

static is_engine *e;
static is_rope *rope;
static uint32_t n_vocab;
static float *logits_a, *logits_b, *logits_c;
static const is_run_opts plain_opts = { .no_prefix_cache = true };

static const char *model_path(const char *name)
{
    static char path[1024];
    const char *dir = getenv("INFERSCALE_MODELS"), *home = getenv("HOME");

    if (dir && *dir) snprintf(path, sizeof path, "%s/%s", dir, name);
    else snprintf(path, sizeof path, "%s/.cache/inferscale/models/%s", home ? home : "", name);
    if (access(path, R_OK) != 0) fail_msg("%s is missing: run scripts/setup.sh, or set INFERSCALE_MODELS", path);
    return path;
}

static int open_engine(void **state)
{
    is_engine_opts o = { .n_ctx = CTX, .n_threads = 1, .flash_attention = INFERSCALE_FA_OFF, .no_selftest = true, .n_parallel = 1 };

    (void)state;
    o.model_path = model_path("smollm2-135m-instruct-q4_0.gguf");
    OK(is_engine_open(NULL, "llama", &o, &e));
    n_vocab = is_engine_describe(e)->n_vocab;
    assert_non_null(is_engine_geometry(e));
    OK(is_rope_new(is_engine_geometry(e), CTX, &rope));
    logits_a = calloc(n_vocab, sizeof *logits_a);
    logits_b = calloc(n_vocab, sizeof *logits_b);
    logits_c = calloc(n_vocab, sizeof *logits_c);
    return 0;
}

static int close_engine(void **state)
{
    (void)state;
    is_rope_free(rope);
    is_engine_close(e);
    free(logits_a);
    free(logits_b);
    free(logits_c);
    return 0;
}

static kit_ids ids_of(const char *text)
{
    int32_t *p;
    uint32_t n;

    OK(is_engine_tokenize(e, NULL, text, strlen(text), true, false, &p, &n));
    assert_true(n > 0);
    return (kit_ids){ p, n };
}

/* n ids of ordinary text, made by repeating a sentence. */
static kit_ids long_ids(uint32_t n)
{
    kit_ids one = ids_of("Anna went to the market in Lisbon and bought nine lemons for Tom. ");
    int32_t *p = is_malloc(n * sizeof *p);

    for (uint32_t i = 0; i < n; i++) p[i] = one.p[i % one.n];
    is_free((void *)one.p);
    return (kit_ids){ p, n };
}

static void drop(kit_ids ids)
{
    is_free((void *)ids.p);
}

static void header_fact_question(kit_plan *p, kit_ids h, kit_ids f, is_segment *s, kit_ids q)
{
    kit_plan_begin(p, 0);
    kit_plan_add(p, IS_ROLE_HEADER, h, NULL);
    kit_plan_add(p, IS_ROLE_FACT, f, s);
    kit_plan_add(p, IS_ROLE_QUESTION, q, NULL);
}

static void same_logits(const float *a, const float *b)
{
    assert_memory_equal(a, b, n_vocab * sizeof *a);
}

/* KL(a || b) in nats. */
static double kl(const float *a, const float *b)
{
    double ma = a[0], mb = b[0], za = 0, zb = 0, sum = 0;

    for (uint32_t i = 1; i < n_vocab; i++) {
        if (a[i] > ma) ma = a[i];
        if (b[i] > mb) mb = b[i];
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        za += exp(a[i] - ma);
        zb += exp(b[i] - mb);
    }
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp(a[i] - ma) / za * (a[i] - ma - log(za) - (b[i] - mb - log(zb)));
    return sum;
}

static void greedy(const is_plan *plan, const is_sampling *s, int32_t *out, int n)
{
    is_run_opts o = { .sampling = *s };
    is_run *run;

    OK(is_engine_start(e, plan, &o, &run, NULL));
    for (int i = 0; i < n; i++) {
        OK(is_engine_sample(e, run, &out[i]));
        assert_true(out[i] >= 0 && (uint32_t)out[i] < n_vocab);
        OK(is_engine_feed(e, run, out[i]));
    }
    is_engine_finish(e, run);
}

static void test_text_is_deterministic(void **state)
{
    kit_ids q = ids_of("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n");
    is_sampling zero = { 0 }, warm = { .temperature = 1.0, .top_k = 40, .top_p = 0.95, .min_p = 0.02, .seed = 7 }, other = warm;
    int32_t a[12], b[12];
    char answer[512] = "";
    int len = 0;
    kit_plan p;

    (void)state;
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, q, NULL);
    kit_logits(e, &p.plan, &plain_opts, logits_a, NULL);
    kit_logits(e, &p.plan, &plain_opts, logits_b, NULL);
    same_logits(logits_a, logits_b);
    greedy(&p.plan, &zero, a, 12);
    greedy(&p.plan, &zero, b, 12);
    assert_memory_equal(a, b, sizeof a);
    for (int i = 0; i < 12; i++) {
        int n = is_engine_piece(e, a[i], answer + len, (int)sizeof answer - 1 - len);

        assert_true(n >= 0);
        len += n;
    }
    assert_non_null(strstr(answer, "Paris")); /* the model works */
    greedy(&p.plan, &warm, a, 12);
    greedy(&p.plan, &warm, b, 12);
    assert_memory_equal(a, b, sizeof a);
    other.seed = 8;
    greedy(&p.plan, &other, b, 12);
    assert_memory_not_equal(a, b, sizeof a);
    drop(q);
}

/* A segment of f's tokens whose rows are those of other tokens: if it leaked into an exact prefix, logits would show it. */
static is_segment *wrong_segment(kit_ids h, kit_ids f)
{
    uint64_t seed = 11;
    kit_ids junk = { kit_random_ids(&seed, f.n, 1000, 40000), f.n };
    kit_rows rows;
    is_segment *s;

    kit_capture(e, h, junk, 0, &rows);
    s = kit_segment(e, rope, &rows, 0, f, IS_CODEC_F16, KIT_GOOD, 0);
    kit_rows_free(&rows);
    drop(junk);
    return s;
}

/* Sums run over the cache's cells in their order, so the same text in other cells differs in the last bits: below 0.01 nats
 * with 4-bit weights. The wrong rows cost ten times that at least. */
static void test_prefixes_are_exact(void **state)
{
    kit_ids h = ids_of("<|im_start|>user\nWhat is known:\n"), f = long_ids(150), q = ids_of("Where did she go?");
    is_run_opts keep_all = { .cache_parts = 2 }, keep_header = { .cache_parts = 1 };
    kit_plan kv, text;
    is_run_stats st;

    (void)state;
    header_fact_question(&text, h, f, NULL, q);
    header_fact_question(&kv, h, f, wrong_segment(h, f), q);
    kit_logits(e, &text.plan, &plain_opts, logits_a, &st);
    assert_int_equal(st.tokens_computed, text.plan.n_tokens);
    for (int round = 0; round < 2; round++) { /* in the second, with the long prefix put aside between */
        kit_logits(e, &kv.plan, &keep_all, logits_b, &st);
        assert_int_equal(st.tokens_injected, f.n);
        assert_true(kl(logits_a, logits_b) > 0.1); /* the wrong rows do matter */
        kit_logits(e, &text.plan, &keep_header, logits_b, &st);
        assert_int_equal(st.tokens_resident, h.n);
        assert_true(kl(logits_a, logits_b) < 0.01);
        kit_logits(e, &text.plan, &keep_all, logits_b, &st);
        assert_int_equal(st.tokens_resident, round ? h.n + f.n : h.n);
        kit_logits(e, &text.plan, &keep_all, logits_c, &st);
        assert_int_equal(st.tokens_resident, h.n + f.n);
        assert_int_equal(st.tokens_computed, q.n);
        assert_true(kl(logits_a, logits_c) < 0.01);
    }
    kit_plan_unref(&kv);
    drop(h);
    drop(f);
    drop(q);
}

/* What one client's text was computed for is no quicker for another's, who would know that it had been said; the host's own header is
 * everybody's. */
static void test_prefixes_are_the_realms_own(void **state)
{
    kit_ids own = ids_of("<|im_start|>user\nThe header of this house, the same for all:\n"), f = long_ids(20), q = ids_of("Where did she go?");
    kit_ids secret = ids_of("<|im_start|>system\nThe client is called Severin and lives by the mill.\n");
    const is_realm a = { .tag = { 1 } }, b = { .tag = { 2 } }, c = { .tag = { 3 } }, *const realms[] = { &a, &b, &c };
    kit_plan house, client;
    is_run_stats st;

    (void)state;
    header_fact_question(&house, own, f, NULL, q);
    header_fact_question(&client, secret, f, NULL, q);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 3; i++) {
            is_run_opts o = { .cache_parts = 1, .realm = realms[i], .n_shared = own.n };

            kit_logits(e, &house.plan, &o, logits_a, &st);
            assert_int_equal(st.tokens_resident, round || i ? own.n : 0);
            o.n_shared = 0;
            kit_logits(e, &client.plan, &o, logits_b, &st);
            if (round) assert_int_equal(st.tokens_resident, secret.n);
            else assert_true(st.tokens_resident <= 1); /* all prompts of the model begin with that token, the realm's own too */
        }
    kit_logits(e, &house.plan, &(is_run_opts){ .cache_parts = 1, .realm = &(is_realm){ .tag = { 9 } } }, logits_a, &st);
    assert_int_equal(st.tokens_resident, 0); /* who does not say that it is the house's gets nothing of it */
    kit_logits(e, &client.plan, &(is_run_opts){ .cache_parts = 1 }, logits_a, &st);
    assert_true(st.tokens_resident <= 1); /* the first token it has in common with what nobody's runs before this test had */
    drop(own);
    drop(secret);
    drop(f);
    drop(q);
}

static void test_context_is_a_limit(void **state)
{
    kit_ids all = long_ids(CTX + 1);
    is_run *runs[8] = { NULL }, *one;
    is_status st = INFERSCALE_OK;
    int32_t token;
    int n = 0;
    kit_plan p;

    (void)state;
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, all, NULL);
    FAILS(E_CONTEXT, is_engine_start(e, &p.plan, &plain_opts, &one, NULL));
    assert_null(one);
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, kit_cut(all, 0, 300), NULL);
    for (; n < 8 && st == INFERSCALE_OK; n++) st = is_engine_start(e, &p.plan, &plain_opts, &runs[n], NULL);
    assert_int_equal(st, INFERSCALE_E_CONTEXT); /* the fourth of 300 tokens does not fit beside three */
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++) is_engine_finish(e, runs[i]);
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, kit_cut(all, 0, CTX - 2), NULL);
    OK(is_engine_start(e, &p.plan, &plain_opts, &one, NULL));
    for (int i = 0; i < 2; i++) {
        OK(is_engine_sample(e, one, &token));
        OK(is_engine_feed(e, one, token));
    }
    FAILS(E_CONTEXT, is_engine_feed(e, one, token));
    assert_int_equal(is_engine_run_tokens(e, one), CTX);
    is_engine_finish(e, one);
    drop(all);
}

static volatile int cancel_flag;

static void *cancel_soon(void *ms)
{
    usleep(1000 * (useconds_t)*(int *)ms);
    cancel_flag = 1;
    return NULL;
}

static volatile int n_complaints;

static void count_complaints(void *ctx, int level, const char *message)
{
    if (level <= IS_LOG_WARN && strstr(message, "libllama: ")) n_complaints++;
}

/* Nor a warning: questions end background work so, all day long. */
static void test_cancel_leaves_nothing(void **state)
{
    kit_ids all = long_ids(1000), q = ids_of("Where did she go?");
    is_run_opts o = { .cancel = &cancel_flag, .no_prefix_cache = true };
    is_run *run;
    pthread_t thread;
    int ms = 15;
    kit_plan p, small;

    (void)state;
    kit_plan_begin(&small, 0);
    kit_plan_add(&small, IS_ROLE_QUESTION, q, NULL);
    kit_logits(e, &small.plan, &plain_opts, logits_a, NULL);
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, all, NULL);
    cancel_flag = 1;
    FAILS(E_CANCELLED, is_engine_start(e, &p.plan, &o, &run, NULL));
    cancel_flag = 0;
    is_log_set(count_complaints, NULL);
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &ms), 0);
    FAILS(E_CANCELLED, is_engine_start(e, &p.plan, &o, &run, NULL)); /* prefilling 1,000 tokens takes far longer */
    pthread_join(thread, NULL);
    is_log_set(NULL, NULL);
    assert_int_equal(n_complaints, 0);
    assert_null(run);
    kit_logits(e, &small.plan, &plain_opts, logits_b, NULL);
    same_logits(logits_a, logits_b);
    drop(all);
    drop(q);
}

/* A run whose extension was cancelled goes on as if it had not been tried. */
static void test_extend_is_undone(void **state)
{
    kit_ids q = ids_of("Where did she go?"), more = long_ids(700), q2 = ids_of(" And then?");
    is_run_opts o = { .cancel = &cancel_flag, .no_prefix_cache = true };
    is_run *run;
    kit_plan p, long_one, next;

    (void)state;
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, q, NULL);
    kit_plan_begin(&long_one, q.n);
    kit_plan_add(&long_one, IS_ROLE_QUESTION, more, NULL);
    kit_plan_begin(&next, q.n);
    kit_plan_add(&next, IS_ROLE_QUESTION, q2, NULL);
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        cancel_flag = 0;
        OK(is_engine_start(e, &p.plan, &o, &run, NULL));
        cancel_flag = 1;
        if (cancelled) FAILS(E_CANCELLED, is_engine_extend(e, run, &long_one.plan, &o, NULL));
        cancel_flag = 0;
        assert_int_equal(is_engine_run_tokens(e, run), q.n);
        OK(is_engine_extend(e, run, &next.plan, &o, NULL));
        assert_int_equal(is_engine_run_tokens(e, run), q.n + q2.n);
        memcpy(cancelled ? logits_b : logits_a, is_engine_logits(e, run), n_vocab * sizeof *logits_a);
        is_engine_finish(e, run);
    }
    same_logits(logits_a, logits_b);
    drop(q);
    drop(more);
    drop(q2);
}

static void refused(is_plan *plan)
{
    is_run *run = (is_run *)&plan;

    FAILS(E_INVALID, is_engine_start(e, plan, &plain_opts, &run, NULL));
    assert_null(run);
}

static void test_bad_plans_are_refused(void **state)
{
    kit_ids h = ids_of("What is known:\n"), f = ids_of("- Anna has two cats.\n"), q = ids_of("How many?");
    kit_ids f2 = ids_of("- Anna has ten dogs.\n");
    is_segment *good, *foreign;
    is_segment_desc d;
    kit_rows rows;
    int32_t bad_token;
    kit_plan p;

    (void)state;
    kit_capture(e, h, f, 0, &rows);
    good = kit_segment(e, rope, &rows, 0, f, IS_CODEC_F16, KIT_GOOD, 0);
    d = *is_segment_info(good);
    d.fingerprint[0] ^= 1;
    OK(is_segment_new(&d, (const float *const *)rows.rows, &foreign));
    kit_plan_begin(&p, 0);
    refused(&p.plan);
    for (int i = 0; i < 2; i++) { /* ids below and above the vocabulary */
        bad_token = i ? (int32_t)n_vocab : -1;
        kit_plan_begin(&p, 0);
        kit_plan_add(&p, IS_ROLE_QUESTION, (kit_ids){ &bad_token, 1 }, NULL);
        refused(&p.plan);
    }
    header_fact_question(&p, h, f, NULL, q);
    p.parts[1].pos++;
    refused(&p.plan);
    header_fact_question(&p, h, f, NULL, q);
    p.parts[0].source = IS_SRC_RESIDENT;
    refused(&p.plan);
    header_fact_question(&p, h, f, NULL, q);
    p.parts[1].source = IS_SRC_STORED; /* without a segment */
    refused(&p.plan);
    header_fact_question(&p, h, f2, good, q); /* another fact's tokens */
    refused(&p.plan);
    header_fact_question(&p, h, f, foreign, q);
    refused(&p.plan);
    header_fact_question(&p, h, f, good, q); /* nothing computed at the end */
    p.plan.n_parts = 2;
    refused(&p.plan);
    p.plan.n_parts = 3;
    kit_logits(e, &p.plan, &plain_opts, logits_a, NULL); /* and the good one runs */
    kit_rows_free(&rows);
    is_segment_unref(good);
    is_segment_unref(foreign);
    drop(h);
    drop(f);
    drop(f2);
    drop(q);
}

static double rows_differ(const kit_rows *a, const kit_rows *b)
{
    double worst = 0;

    for (uint32_t i = 0; i < a->g->n_planes; i++) {
        double diff = 0, sum = 0;

        for (size_t k = 0; k < (size_t)a->n * is_plane_width(&a->g->planes[i]); k++) {
            double x = a->rows[i][k], y = b->rows[i][k];

            diff += (x - y) * (x - y);
            sum += x * x;
        }
        if (diff / sum > worst) worst = diff / sum;
    }
    return worst;
}

static void test_capture_keeps_its_context(void **state)
{
    kit_ids all = long_ids(CTX), context = kit_cut(all, 0, 600), span = kit_cut(all, 600, 40);
    const is_geometry *g = is_engine_geometry(e);
    volatile int stop = 1;
    is_capture c = { .context = context.p, .n_context = context.n, .span = span.p, .n_span = span.n };
    kit_rows first, again;

    (void)state;
    kit_capture(e, context, span, 0, &first);
    kit_capture(e, context, span, 0, &again);
    assert_true(rows_differ(&first, &again) < 1e-4);
    c.rows = again.rows;
    for (uint32_t i = 0; i < g->n_planes; i++) memset(again.rows[i], 0,
                                                      (size_t)span.n * is_plane_width(&g->planes[i]) * sizeof(float));
    OK(is_engine_capture(e, &c));
    assert_int_equal(c.n_computed, span.n); /* 600 context tokens, two micro-batches, are still there */
    assert_true(rows_differ(&first, &again) < 1e-4);
    c.context = all.p + 1; /* another context: nothing may be kept */
    OK(is_engine_capture(e, &c));
    assert_int_equal(c.n_computed, context.n + span.n);
    assert_true(rows_differ(&first, &again) > 1e-4);
    c.cancel = &stop;
    FAILS(E_CANCELLED, is_engine_capture(e, &c));
    c.cancel = NULL;
    c.pos0 = CTX - 600;
    FAILS(E_CONTEXT, is_engine_capture(e, &c));
    c.pos0 = 0;
    c.n_span = 0;
    FAILS(E_INVALID, is_engine_capture(e, &c));
    c.n_span = span.n;
    c.context = context.p;
    OK(is_engine_capture(e, &c));
    assert_true(rows_differ(&first, &again) < 1e-4);
    kit_rows_free(&first);
    kit_rows_free(&again);
    drop(all);
}

static void test_chat_format(void **state)
{
    const is_chat_format *f = is_engine_chat(e);
    char text[512];

    (void)state;
    assert_true(is_engine_describe(e)->has_chat_template);
    snprintf(text, sizeof text, "%sS%s%sU%s%sA%s%sV%s%s", f->system_open, f->system_close, f->user_open, f->user_close,
             f->assistant_open,
             f->assistant_close, f->user_open, f->user_close, f->assistant_open);
    assert_string_equal(text, "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
                              "<|im_start|>assistant\nA<|im_end|>\n"
                              "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n");
}

static void test_control_tokens_stay_text(void **state)
{
    const char *text = "<|im_end|>";
    int32_t *p;
    uint32_t n;

    (void)state;
    OK(is_engine_tokenize(e, NULL, text, strlen(text), false, false, &p, &n));
    assert_true(n > 1);
    for (uint32_t i = 0; i < n; i++) assert_false(is_engine_is_eog(e, p[i]));
    is_free(p);
    OK(is_engine_tokenize(e, NULL, text, strlen(text), true, false, &p, &n));
    assert_int_equal(n, 1);
    assert_true(is_engine_is_eog(e, p[0]));
    is_free(p);
    OK(is_engine_tokenize(e, NULL, "", 0, false, false, &p, &n));
    assert_int_equal(n, 0);
    is_free(p);
}

static void unloadable(const char *path)
{
    is_engine_opts o = { .model_path = path, .n_ctx = 256, .n_threads = 1 };
    is_engine *none = e;

    FAILS(E_MODEL, is_engine_open(NULL, "llama", &o, &none));
    assert_null(none);
    assert_true(strlen(is_error()) > 20);
}

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Headers that say impossible things: libllama asserts, throws or loads. The process goes on, and a refusal has a sentence. */
static void test_impossible_headers(void **state)
{
    static const char *const keys[] = { "llama.block_count", "llama.attention.layer_norm_rms_epsilon",
                                        "llama.attention.head_count_kv", "llama.rope.dimension_count" };
    static const uint32_t values[] = { 0, 0x7fc00000 /* NaN */ };
    char *dir = scratch_make();
    const char *bad = scratch_path(dir, "bad.gguf");
    size_t n, refused = 0;
    uint8_t *whole;

    (void)state;
    OK(is_file_read_all(is_fs_posix(), model_path("smollm2-135m-instruct-q4_0.gguf"), (size_t)1 << 30, &whole, &n));
    write_file(bad, whole, n);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        uint8_t *at = memmem(whole, 1 << 21, keys[k], strlen(keys[k]));
        long place = at ? (long)(at - whole) + (long)strlen(keys[k]) + 4 : 0; /* the value, behind its type */

        assert_true(place > 0);
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            is_engine_opts o = { .model_path = bad, .n_ctx = 256, .n_threads = 2, .no_selftest = true,
                                 .flash_attention = INFERSCALE_FA_OFF };
            is_engine *none = NULL;
            FILE *f = fopen(bad, "r+b");

            assert_non_null(f);
            assert_int_equal(fseek(f, place, SEEK_SET), 0);
            assert_int_equal(fwrite(&values[v], 1, 4, f), 4);
            assert_int_equal(fclose(f), 0);
            if (is_engine_open(NULL, "llama", &o, &none) != INFERSCALE_OK) {
                assert_null(none);
                assert_true(strlen(is_error()) > 20);
                refused++;
            }
            is_engine_close(none);
        }
        FILE *f = fopen(bad, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, place, SEEK_SET), 0);
        assert_int_equal(fwrite(whole + place, 1, 4, f), 4);
        assert_int_equal(fclose(f), 0);
    }
    print_message("  %zu of 8 headers refused\n", refused);
    assert_true(refused >= 5);
    is_free(whole);
    scratch_remove(dir);
}

/* No text has fewer tokens than its bytes by the longest token's, so that none is refused that fits; one that is far too long is. */
static void test_what_cannot_fit(void **state)
{
    static const char *const words[] = { "the", " ", "        ", "\n\n", "memory", "\xc3\xa9", "\xe6\xbc\xa2", "====", "{}", "0", "\t", "." };
    const uint32_t longest = is_engine_describe(e)->longest_piece;
    unsigned long long rng = scratch_seed("fit");
    static char text[300000];

    (void)state;
    assert_in_range(longest, 2, 512);
    for (int i = 0; i < 60; i++) {
        const size_t most = i % 6 ? 2000 : 200000;
        size_t len = 0;
        int32_t *ids = NULL, *fitting = NULL;
        uint32_t n = 0, m = 0;

        for (size_t one = scratch_below(&rng, 12); len < most; one = scratch_below(&rng, 3) ? one : scratch_below(&rng, 12)) {
            memcpy(text + len, words[one], strlen(words[one]));
            len += strlen(words[one]);
        }
        OK(is_engine_tokenize(e, NULL, text, len, false, false, &ids, &n));
        if ((uint64_t)n * longest < len) fail_msg("%u tokens for %zu bytes, the longest stands for %u", n, len, longest);
        const is_fit fit = { n, NULL }, none = { n / 4, NULL };
        OK(is_engine_tokenize_fit(e, NULL, text, len, false, false, &fit, &fitting, &m));
        assert_int_equal(m, n);
        assert_memory_equal(ids, fitting, n * sizeof *ids);
        is_free(fitting);
        inferscale_status st = is_engine_tokenize_fit(e, NULL, text, len, false, false, &none, &fitting, &m);
        if (n > 20000) assert_int_equal(st, INFERSCALE_E_CONTEXT);
        is_free(fitting);
        is_free(ids);
    }
}

static void test_bad_model_files(void **state)
{
    char *dir = scratch_make();
    const char *cut = scratch_path(dir, "cut.gguf"), *junk = scratch_path(dir, "junk.gguf");
    unsigned long long seed = scratch_seed("bad_model_files");
    uint8_t noise[4096];
    size_t n;
    uint8_t *whole;

    (void)state;
    unloadable(scratch_path(dir, "absent.gguf"));
    assert_int_equal(mkfifo(scratch_path(dir, "pipe.gguf"), 0600), 0);
    unloadable(scratch_path(dir, "pipe.gguf"));
    unloadable(dir);
    write_file(junk, "", 0);
    unloadable(junk);
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (uint8_t)scratch_next(&seed);
    write_file(junk, noise, sizeof noise);
    unloadable(junk);
    memcpy(noise, "GGUF\3\0\0\0", 8);
    write_file(junk, noise, sizeof noise);
    unloadable(junk);
    OK(is_file_read_all(is_fs_posix(), model_path("smollm2-135m-instruct-q4_0.gguf"), (size_t)1 << 30, &whole, &n));
    write_file(cut, whole, n);
    assert_int_equal(truncate(cut, (off_t)n - 1), 0);
    unloadable(cut);
    for (int i = 0; i < 8; i++) { /* always shorter */
        n = n / (2 + scratch_below(&seed, 6)) + scratch_below(&seed, 8);
        assert_int_equal(truncate(cut, (off_t)n), 0);
        unloadable(cut);
    }
    unloadable(model_path("all-minilm-l6-v2-f16.gguf")); /* an encoder */
    is_free(whole);
    scratch_remove(dir);
}

static void test_runs_may_outlive_their_caller(void **state)
{
    is_engine_opts o = { .n_ctx = 256, .n_threads = 2, .flash_attention = INFERSCALE_FA_ON, .no_selftest = true };
    kit_ids q = ids_of("Where did she go?");
    is_engine *other;
    is_run *run;
    kit_plan p;

    (void)state;
    o.model_path = model_path("smollm2-135m-instruct-q4_0.gguf");
    OK(is_engine_open(NULL, "llama", &o, &other));
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, q, NULL);
    OK(is_engine_start(other, &p.plan, NULL, &run, NULL));
    is_engine_close(other); /* frees the run too: the leak checker would tell */
    drop(q);
}

/* n_ctx 0: what the model was trained for, and no more than 8192. */
static void test_context_without_options(void **state)
{
    is_engine_opts o = { .n_threads = 1, .no_selftest = true,
                         .flash_attention = INFERSCALE_FA_OFF };
    is_engine *tiny = NULL;

    (void)state;
    o.model_path = tiny_model_path(tiny_model_find("tiny-llama"), 1);
    OK(is_engine_open(NULL, "llama", &o, &tiny));
    assert_int_equal(is_engine_describe(tiny)->n_ctx_train, TINY_CTX);
    assert_int_equal(is_engine_describe(tiny)->n_ctx, TINY_CTX);
    is_engine_close(tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_deterministic),
        cmocka_unit_test(test_prefixes_are_exact),
        cmocka_unit_test(test_prefixes_are_the_realms_own),
        cmocka_unit_test(test_context_is_a_limit),
        cmocka_unit_test(test_context_without_options),
        cmocka_unit_test(test_cancel_leaves_nothing),
        cmocka_unit_test(test_extend_is_undone),
        cmocka_unit_test(test_bad_plans_are_refused),
        cmocka_unit_test(test_capture_keeps_its_context),
        cmocka_unit_test(test_chat_format),
        cmocka_unit_test(test_control_tokens_stay_text),
        cmocka_unit_test(test_what_cannot_fit),
        cmocka_unit_test(test_bad_model_files),
        cmocka_unit_test(test_impossible_headers),
        cmocka_unit_test(test_runs_may_outlive_their_caller),
    };

    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
