/* test_mock.c - the mock engine shows what tests above rely on: wrong tokens, wrong positions, stale and foreign segments all
 * tell, and everything right is equal bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "support/kit.h"

enum { VOCAB = 1001 };

typedef struct fixture {
    is_engine *e;
    is_rope *rope;
    int32_t *ids;
    kit_ids header, fact_a, fact_b, question;
    uint64_t seed;
} fixture;

static is_engine *open_mock(const char *path)
{
    is_engine_opts opts = { .model_path = path };
    is_engine *e = NULL;

    KIT_OK(is_engine_open(NULL, "mock", &opts, &e));
    return e;
}

static void begin(fixture *f, const char *path)
{
    f->e = open_mock(path);
    if (is_engine_geometry(f->e)) KIT_OK(is_rope_new(is_engine_geometry(f->e), 1024, &f->rope));
    else f->rope = NULL;
    f->seed = 11;
    print_message("seed %d\n", (int)f->seed);
    f->ids = kit_random_ids(&f->seed, 200, 16, VOCAB);
    kit_ids all = { f->ids, 200 };
    f->header = kit_cut(all, 0, 20);
    f->fact_a = kit_cut(all, 20, 70); /* with the header longer than the window of the mock's last layer */
    f->fact_b = kit_cut(all, 90, 50);
    f->question = kit_cut(all, 140, 25);
}

static void end(fixture *f)
{
    is_free(f->ids);
    is_rope_free(f->rope);
    is_engine_close(f->e);
}

/* A fact's segment, encoded after a context. */
static is_segment *encode(fixture *f, kit_ids context, kit_ids fact, kit_harm harm, uint32_t serve_pos)
{
    kit_rows rows;

    kit_capture(f->e, context, fact, 3, &rows);
    is_segment *s = kit_segment(f->e, f->rope, &rows, 0, fact, IS_CODEC_F16, harm, serve_pos);
    kit_rows_free(&rows);
    return s;
}

static void plan(fixture *f, is_segment *a, is_segment *b, kit_plan *p)
{
    kit_plan_begin(p, 0);
    kit_plan_add(p, IS_ROLE_HEADER, f->header, NULL);
    kit_plan_add(p, IS_ROLE_FACT, f->fact_a, a);
    kit_plan_add(p, IS_ROLE_FACT, f->fact_b, b);
    kit_plan_add(p, IS_ROLE_QUESTION, f->question, NULL);
}

static uint32_t top(const float *p)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < VOCAB; i++)
        if (p[i] > p[at]) at = i;
    return at;
}

static void test_text_comes_back(void **state)
{
    static const char *const texts[] = { "", "Anna likes tea.",
                                         "caf\xc3\xa9 \xf0\x9f\x8d\xb5 <|user|> 8 May 2023:\n\ttabs", "aaa bbb  c" };
    is_engine *e = open_mock(NULL);
    int32_t *ids;
    uint32_t n;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char back[200];
        int len = 0;
        KIT_OK(is_engine_tokenize(e, NULL, texts[i], strlen(texts[i]), false, false, &ids, &n));
        for (uint32_t k = 0; k < n; k++) {
            assert_false(is_engine_is_eog(e, ids[k]));
            int got = is_engine_piece(e, ids[k], back + len, (int)sizeof back - len);
            assert_true(got > 0);
            len += got;
        }
        assert_int_equal(len, strlen(texts[i]));
        assert_memory_equal(back, texts[i], strlen(texts[i]));
        is_free(ids);
    }
    KIT_OK(is_engine_tokenize(e, NULL, "<|user|>\nhi<|end|>", 18, true, true, &ids, &n));
    assert_int_equal(n, 5); /* <s> <|user|> \n hi <|end|> */
    assert_true(is_engine_is_eog(e, ids[4]));
    assert_int_equal(is_engine_piece(e, ids[1], NULL, 0), 0);
    assert_int_equal(is_engine_piece(e, ids[3], NULL, 0), -2);
    is_free(ids);
    is_engine_close(e);
}

/* Rows encoded after exactly what stands before them give the text twin's logits, wherever they were captured. */
static void test_exact_rows_are_exact(void **state)
{
    fixture f;
    float text[VOCAB], kv[VOCAB];
    is_run_stats stats;
    is_run_opts opts = { .no_prefix_cache = true };
    kit_plan p, twin;
    int32_t both[90];

    begin(&f, NULL);
    memcpy(both, f.header.p, 20 * sizeof *both);
    memcpy(both + 20, f.fact_a.p, 70 * sizeof *both);
    plan(&f, encode(&f, f.header, f.fact_a, KIT_GOOD, 20), encode(&f, (kit_ids){ both, 90 }, f.fact_b, KIT_GOOD, 90), &p);
    kit_plan_twin(&p, &twin);
    kit_logits(f.e, &p.plan, &opts, kv, &stats);
    assert_int_equal(stats.tokens_injected, 120);
    assert_int_equal(stats.tokens_computed, 45);
    kit_logits(f.e, &twin.plan, &opts, text, &stats);
    assert_int_equal(stats.tokens_injected, 0);
    assert_int_equal(stats.tokens_computed, 165);
    assert_memory_equal(text, kv, sizeof text);
    opts.batch = 7; /* no floating-point weather: batching changes nothing */
    kit_logits(f.e, &twin.plan, &opts, kv, &stats);
    assert_memory_equal(text, kv, sizeof text);
    kit_plan_unref(&p);
    end(&f);
}

/* Stitched rows move the logits but not the answer; another context, another move; other tokens, another answer. */
static void test_context_and_tokens_tell(void **state)
{
    fixture f;
    float text[VOCAB], header[VOCAB], alone[VOCAB], other[VOCAB];
    is_run_opts opts = { 0 };
    kit_plan p, twin;

    begin(&f, "mock:");
    plan(&f, encode(&f, f.header, f.fact_a, KIT_GOOD, 20), encode(&f, f.header, f.fact_b, KIT_GOOD, 90), &p);
    kit_plan_twin(&p, &twin);
    kit_logits(f.e, &twin.plan, &opts, text, NULL);
    kit_logits(f.e, &p.plan, &opts, header, NULL);
    assert_int_equal(top(text), top(header));
    assert_memory_not_equal(text, header, sizeof text);
    is_segment_unref(p.parts[2].segment);
    p.parts[2].segment = encode(&f, (kit_ids){ NULL, 0 }, f.fact_b, KIT_GOOD, 90);
    kit_logits(f.e, &p.plan, &opts, alone, NULL);
    assert_int_equal(top(text), top(alone));
    assert_memory_not_equal(alone, header, sizeof text);
    int32_t was = f.ids[30]; /* a token of the first fact, in the text twin */
    f.ids[30] = was == 700 ? 701 : 700;
    kit_logits(f.e, &twin.plan, &opts, other, NULL);
    double most = 0;
    for (uint32_t i = 0; i < VOCAB; i++) most = most > other[i] - text[i] ? most : other[i] - text[i];
    assert_true(most > 1);
    kit_plan_unref(&p);
    end(&f);
}

static void test_wrong_rows_are_refused(void **state)
{
    fixture f;
    is_run_opts opts = { 0 };
    is_run_stats stats;
    is_run *run;
    kit_plan p;

    begin(&f, NULL);
    for (int harm = KIT_GOOD + 1; harm < KIT_HARMS; harm++) {
        if (harm == KIT_LAYERS_SWAPPED) continue; /* no two layers of the mock are alike */
        plan(&f, encode(&f, f.header, f.fact_a, (kit_harm)harm, 20), NULL, &p);
        KIT_FAILS(INFERSCALE_E_ENGINE, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
        assert_null(run);
        kit_plan_unref(&p);
    }
    /* V of one layer under the name of another */
    kit_rows rows;
    kit_capture(f.e, f.header, f.fact_a, 0, &rows);
    float *v = rows.rows[1];
    rows.rows[1] = rows.rows[3];
    rows.rows[3] = v;
    plan(&f, kit_segment(f.e, f.rope, &rows, 0, f.fact_a, IS_CODEC_F16, KIT_GOOD, 20), NULL, &p);
    is_run_opts logits = { .want_logits = true };
    float swapped[VOCAB], good[VOCAB];
    kit_logits(f.e, &p.plan, &logits, swapped, NULL);
    kit_plan_unref(&p);
    plan(&f, encode(&f, f.header, f.fact_a, KIT_GOOD, 20), NULL, &p);
    kit_logits(f.e, &p.plan, &logits, good, NULL);
    assert_memory_not_equal(swapped, good, sizeof good);
    kit_plan_unref(&p);
    kit_rows_free(&rows);
    end(&f);
}

/* The mean of a fact's rows after n contexts of one length, of the second token nothing (all zero) where that is asked for. */
static is_segment *mean(fixture *f, uint32_t n, is_codec codec, kit_harm harm, bool hole)
{
    kit_rows sum, one;

    kit_capture(f->e, f->header, f->fact_a, 0, &sum);
    for (uint32_t i = 1; i < n; i++) {
        kit_capture(f->e, kit_cut((kit_ids){ f->ids, 200 }, i, f->header.n), f->fact_a, 0, &one);
        for (uint32_t p = 0; p < sum.g->n_planes; p++)
            for (size_t k = 0; k < (size_t)sum.n * is_plane_width(&sum.g->planes[p]); k++) sum.rows[p][k] += one.rows[p][k];
        kit_rows_free(&one);
    }
    for (uint32_t p = 0; p < sum.g->n_planes; p++) {
        const size_t width = is_plane_width(&sum.g->planes[p]);

        for (size_t k = 0; k < sum.n * width; k++) sum.rows[p][k] /= (float)n;
        if (hole) memset(sum.rows[p] + width, 0, width * sizeof(float));
    }
    is_segment *s = kit_segment(f->e, f->rope, &sum, 0, f->fact_a, codec, harm, 20);
    kit_rows_free(&sum);
    return s;
}

/* The second fact, captured after the header and these rows of the first. */
static is_status capture_after(fixture *f, is_segment *s)
{
    int32_t context[90];
    kit_rows out;

    memcpy(context, f->header.p, 20 * sizeof *context);
    memcpy(context + 20, f->fact_a.p, 70 * sizeof *context);
    kit_capture(f->e, f->header, f->fact_b, 0, &out);
    is_capture c = { .context = context, .n_context = 90, .span = f->fact_b.p, .n_span = f->fact_b.n, .rows = out.rows, .stored = &s, .n_stored = 1 };
    is_status st = is_engine_capture(f->e, &c);
    kit_rows_free(&out);
    return st;
}

/* A mean is served, and read as context: it moves the logits, always alike and not the answer. */
static void expect_known(fixture *f, is_segment *s)
{
    float text[VOCAB], kv[VOCAB], again[VOCAB];
    is_run_opts opts = { .no_prefix_cache = true };
    kit_plan p, twin;

    plan(f, s, NULL, &p);
    kit_plan_twin(&p, &twin);
    kit_logits(f->e, &twin.plan, &opts, text, NULL);
    kit_logits(f->e, &p.plan, &opts, kv, NULL);
    kit_logits(f->e, &p.plan, &opts, again, NULL);
    assert_int_equal(top(text), top(kv));
    assert_memory_not_equal(text, kv, sizeof text);
    assert_memory_equal(kv, again, sizeof kv);
    KIT_OK(capture_after(f, s));
    kit_plan_unref(&p);
}

static void expect_refused(fixture *f, is_segment *s)
{
    is_run *run;
    kit_plan p;

    plan(f, s, NULL, &p);
    KIT_FAILS(INFERSCALE_E_ENGINE, is_engine_start(f->e, &p.plan, &(is_run_opts){ 0 }, &run, NULL));
    KIT_FAILS(INFERSCALE_E_ENGINE, capture_after(f, s));
    kit_plan_unref(&p);
}

/* The second stage keeps means of rows; they are no less ours. Spoilt, or of more captures than are known, they are refused. */
static void test_means_are_known(void **state)
{
    static const is_codec codecs[] = { IS_CODEC_F16, IS_CODEC_BF16, IS_CODEC_F32 };
    enum { MOST = 12 };
    fixture f;

    begin(&f, NULL);
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        for (uint32_t n = 2; n <= MOST; n++) {
            expect_known(&f, mean(&f, n, codecs[i], KIT_GOOD, false));
            expect_refused(&f, mean(&f, n, codecs[i], KIT_GOOD, true));
            for (int harm = KIT_GOOD + 1; harm < KIT_HARMS; harm++)
                if (harm != KIT_LAYERS_SWAPPED) expect_refused(&f, mean(&f, n, codecs[i], (kit_harm)harm, false));
        }
        expect_refused(&f, mean(&f, MOST + 1, codecs[i], KIT_GOOD, false));
    }
    end(&f);
}

/* Segments of another model, with other tokens, gaps in positions, ids out of range: each is named. */
static void test_bad_plans_are_named(void **state)
{
    fixture f, g;
    is_run_opts opts = { 0 };
    is_run_stats stats;
    is_run *run;
    kit_plan p;

    begin(&f, NULL);
    begin(&g, "mock:id=2");
    assert_memory_not_equal(is_engine_describe(f.e)->fingerprint, is_engine_describe(g.e)->fingerprint, IS_HASH_BYTES);
    plan(&f, encode(&g, g.header, g.fact_a, KIT_GOOD, 20), NULL, &p);
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    kit_plan_unref(&p);
    plan(&f, encode(&f, f.header, f.fact_a, KIT_GOOD, 20), NULL, &p);
    p.parts[1].tokens = f.question.p;
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    p.parts[1].tokens = f.fact_a.p;
    p.parts[2].pos++;
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    p.parts[2].pos--;
    p.plan.n_parts = 2; /* ends with stored rows: no logits */
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    p.plan.n_parts = 4;
    p.parts[0].source = IS_SRC_RESIDENT;
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    p.parts[0].source = IS_SRC_COMPUTED;
    f.ids[0] = VOCAB;
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    f.ids[0] = 20;
    KIT_OK(is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    is_engine_finish(f.e, run);
    kit_plan_unref(&p);
    end(&g);
    end(&f);
}

static void test_garbled_composition_is_noticed(void **state)
{
    fixture f;
    is_run_opts opts = { 0 };
    is_run_stats stats;
    is_run *run;
    kit_plan p;

    begin(&f, "mock:garble");
    plan(&f, encode(&f, f.header, f.fact_a, KIT_GOOD, 20), NULL, &p);
    KIT_FAILS(INFERSCALE_E_INTERNAL, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    kit_plan_unref(&p);
    end(&f);
}

static void generate(is_engine *e, is_run *run, char *out, size_t cap)
{
    size_t len = 0;
    int32_t token;

    for (;;) {
        KIT_OK(is_engine_sample(e, run, &token));
        if (is_engine_is_eog(e, token)) break;
        len += (size_t)is_engine_piece(e, token, out + len, (int)(cap - len - 1));
        assert_true(len + 4 < cap);
        KIT_OK(is_engine_feed(e, run, token));
    }
    out[len] = 0;
}

/* The answer tells the last fact and all tokens; a turn more goes on in the same sequence; the same seed draws the same. */
static void test_answers(void **state)
{
    static const char text[] = "- Anna likes green tea.\n";
    fixture f;
    is_run_opts opts = { 0 };
    is_run_stats stats;
    is_run *run;
    kit_plan p, more;
    int32_t *ids, drawn[2][8];
    uint32_t n;
    char answer[2][200];

    begin(&f, NULL);
    KIT_OK(is_engine_tokenize(f.e, NULL, text, strlen(text), false, false, &ids, &n));
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_HEADER, f.header, NULL);
    kit_plan_add(&p, IS_ROLE_FACT, (kit_ids){ ids, n }, NULL);
    kit_plan_add(&p, IS_ROLE_QUESTION, f.question, NULL);
    KIT_OK(is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    generate(f.e, run, answer[0], sizeof answer[0]);
    assert_non_null(strstr(answer[0], "I recall: - Anna likes green tea. ("));
    kit_plan_begin(&more, is_engine_run_tokens(f.e, run));
    kit_plan_add(&more, IS_ROLE_QUESTION, f.fact_b, NULL);
    KIT_OK(is_engine_extend(f.e, run, &more.plan, &opts, &stats));
    assert_int_equal(stats.tokens_computed, f.fact_b.n);
    assert_int_equal(stats.tokens_resident, more.parts[0].pos);
    generate(f.e, run, answer[1], sizeof answer[1]);
    assert_non_null(strstr(answer[1], "I recall nothing ("));
    more.parts[0].pos = 1; /* not where the sequence stands: refused, and the run goes on as if nothing had happened */
    uint32_t was = is_engine_run_tokens(f.e, run);
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_extend(f.e, run, &more.plan, &opts, &stats));
    assert_int_equal(is_engine_run_tokens(f.e, run), was);
    KIT_OK(is_engine_feed(f.e, run, 20));
    is_engine_finish(f.e, run);
    opts.sampling = (is_sampling){ .temperature = 3, .top_k = 40, .top_p = 0.95, .min_p = 0.01, .seed = 5 };
    for (int i = 0; i < 2; i++) {
        KIT_OK(is_engine_start(f.e, &p.plan, &opts, &run, &stats));
        for (int k = 0; k < 8; k++) {
            KIT_OK(is_engine_sample(f.e, run, &drawn[i][k]));
            KIT_OK(is_engine_feed(f.e, run, drawn[i][k]));
        }
        is_engine_finish(f.e, run);
    }
    assert_memory_equal(drawn[0], drawn[1], sizeof drawn[0]);
    is_free(ids);
    end(&f);
}

/* The exact prefix is reused, and rows that were injected never enter it. */
static void test_prefix_holds_only_computed_parts(void **state)
{
    fixture f;
    float first[VOCAB], again[VOCAB], kv[VOCAB];
    is_run_stats stats;
    is_run_opts opts = { .cache_parts = 3 };
    kit_plan p, twin;

    begin(&f, NULL);
    plan(&f, encode(&f, (kit_ids){ NULL, 0 }, f.fact_a, KIT_GOOD, 20), NULL, &p);
    kit_plan_twin(&p, &twin);
    kit_logits(f.e, &p.plan, &opts, kv, &stats);
    assert_int_equal(stats.tokens_resident, 0);
    kit_logits(f.e, &twin.plan, &opts, first, &stats);
    assert_int_equal(stats.tokens_resident, 20); /* the header, and nothing that was injected */
    kit_logits(f.e, &twin.plan, &opts, again, &stats);
    assert_int_equal(stats.tokens_resident, 140);
    assert_int_equal(stats.tokens_computed, 25);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, kv, sizeof first);
    kit_plan_unref(&p);
    end(&f);
}

static void test_told_to_fail(void **state)
{
    fixture f;
    is_run_opts opts = { 0 };
    is_run_stats stats;
    is_run *run;
    kit_plan p;
    is_engine *e = NULL;
    volatile int cancel = 1;
    is_engine_opts bad = { .model_path = "mock:no-such-thing" };

    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_open(NULL, "mock", &bad, &e));
    assert_null(e);
    begin(&f, "mock:noinject");
    assert_false(is_engine_describe(f.e)->can_inject);
    assert_true(is_engine_describe(f.e)->why_not[0]);
    assert_null(is_engine_geometry(f.e));
    plan(&f, NULL, NULL, &p);
    KIT_OK(is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    is_engine_finish(f.e, run);
    p.parts[1].source = IS_SRC_STORED;
    KIT_FAILS(INFERSCALE_E_UNSUPPORTED, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    end(&f);

    begin(&f, "mock:fail-start=2,ctx=170");
    plan(&f, NULL, NULL, &p);
    KIT_OK(is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    for (int i = 0; i < 5; i++) KIT_OK(is_engine_feed(f.e, run, 20));
    KIT_FAILS(INFERSCALE_E_CONTEXT, is_engine_feed(f.e, run, 20));
    is_engine_finish(f.e, run);
    KIT_FAILS(INFERSCALE_E_ENGINE, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    opts.cancel = &cancel;
    KIT_FAILS(INFERSCALE_E_CANCELLED, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    cancel = 0;
    p.parts[1].tokens = f.ids;
    p.parts[1].n_tokens = 170;
    p.parts[2].pos = 190;
    p.parts[3].pos = 240;
    KIT_FAILS(INFERSCALE_E_CONTEXT, is_engine_start(f.e, &p.plan, &opts, &run, &stats));
    end(&f);

    setenv("INFERSCALE_MOCK", "fail-capture=1", 1);
    begin(&f, NULL);
    unsetenv("INFERSCALE_MOCK");
    float *none[8] = { 0 };
    is_capture c = { .span = f.ids, .n_span = 1, .rows = none };
    KIT_FAILS(INFERSCALE_E_ENGINE, is_engine_capture(f.e, &c));
    end(&f);
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < 64; i++) sum += (double)a[i] * b[i];
    return sum;
}

static void test_embedder(void **state)
{
    static const char *const texts[] = { "Anna likes green tea", "which tea does anna like? green tea",
                                         "the train to Lisbon left at noon", "!?" };
    static const char *const blank[] = { "ok", " \t\n" };
    const is_plugin *plugin;
    uint8_t fp[2][IS_HASH_BYTES];
    float v[4 * 64];
    void *e, *other;

    KIT_OK(is_plugin_load(NULL, "mock", &plugin));
    assert_non_null(plugin->embedder);
    KIT_OK(plugin->embedder->open(&(is_embedder_opts){ .spec = "mock:" }, &e));
    KIT_OK(plugin->embedder->open(&(is_embedder_opts){ .spec = "mock:id=9,fail-embed=1" }, &other));
    assert_int_equal(plugin->embedder->dim(e), 64);
    plugin->embedder->fingerprint(e, fp[0]);
    plugin->embedder->fingerprint(other, fp[1]);
    assert_memory_not_equal(fp[0], fp[1], IS_HASH_BYTES);
    KIT_OK(plugin->embedder->embed(e, texts, 4, v, &(is_embed_call){ 0 }));
    for (int i = 0; i < 4; i++) assert_true(dot(v + 64 * i, v + 64 * i) > 0.9999 && dot(v + 64 * i, v + 64 * i) < 1.0001);
    assert_true(dot(v, v + 64) > 0.4);
    assert_true(dot(v, v + 128) < dot(v, v + 64) - 0.2);
    KIT_FAILS(INFERSCALE_E_INVALID, plugin->embedder->embed(e, blank, 2, v, &(is_embed_call){ 0 }));
    KIT_FAILS(INFERSCALE_E_ENGINE, plugin->embedder->embed(other, texts, 1, v, &(is_embed_call){ 0 }));
    plugin->embedder->close(other);
    plugin->embedder->close(e);
}

/* A plug-in has its own copy of the words, and asks its host who reads. */
static void test_sentences_of_a_plugin_are_for_the_reader(void **state)
{
    const is_engine_opts o = { .home = "/nowhere" }; /* no server is named */
    is_engine *e = NULL;

    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_open(NULL, "vllm", &o, &e));
    assert_non_null(strstr(is_error(), "inferscale_options.upstream"));
    assert_int_equal(is_reader_set(IS_READER_CLI), IS_READER_C);
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_open(NULL, "vllm", &o, &e));
    assert_non_null(strstr(is_error(), "--upstream"));
    assert_null(strstr(is_error(), "inferscale_"));
    is_reader_set(IS_READER_C);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_comes_back),
        cmocka_unit_test(test_exact_rows_are_exact),
        cmocka_unit_test(test_context_and_tokens_tell),
        cmocka_unit_test(test_wrong_rows_are_refused),
        cmocka_unit_test(test_means_are_known),
        cmocka_unit_test(test_bad_plans_are_named),
        cmocka_unit_test(test_garbled_composition_is_noticed),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_prefix_holds_only_computed_parts),
        cmocka_unit_test(test_told_to_fail),
        cmocka_unit_test(test_embedder),
        cmocka_unit_test(test_sentences_of_a_plugin_are_for_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
