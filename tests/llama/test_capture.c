/* test_capture.c - many spans captured in one decode have the rows that each has alone; a span captured after stored context has
 * the rows it has after the same context computed; and nothing of one capture is ever taken for another's: not one span's rows,
 * not one span's context, not injected rows for computed ones. For every model, window layers included. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "llama/support/subject.h"
#include "support/scratch.h"

enum { HEADER = 24, QUESTION = 24, SPANS = 7, LONGEST = 64 };

/* ---- Rows ---------------------------------------------------------------------------------------------------------------- */

/* Largest relative difference of the first n tokens over the planes. */
static double rows_differ(const kit_rows *a, const kit_rows *b, uint32_t n)
{
    double worst = 0;

    for (uint32_t i = 0; i < a->g->n_planes; i++) {
        double diff = 0, sum = 0;

        for (size_t k = 0; k < (size_t)n * is_plane_width(&a->g->planes[i]); k++) {
            double x = (double)a->rows[i][k], y = (double)b->rows[i][k];

            diff += (x - y) * (x - y);
            sum += x * x;
        }
        if (!(diff / sum <= worst)) worst = diff / sum; /* NaN is the worst */
    }
    return sqrt(worst);
}

static void spoil(const kit_rows *r)
{
    for (uint32_t i = 0; i < r->g->n_planes; i++)
        memset(r->rows[i], 0xff, (size_t)r->n * is_plane_width(&r->g->planes[i]) * sizeof(float)); /* NaN */
}

/* Room for a span's rows, spoilt: what a capture does not write stays NaN. */
static void room_for(is_engine *e, kit_ids span, kit_rows *out)
{
    kit_capture(e, (kit_ids){ 0 }, span, 0, out);
    spoil(out);
}

/* Every model, flash attention off and on; SmolLM2 once, and not where a sanitizer makes it slow. */
static void each(void (*test)(subject *s))
{
#ifdef __SANITIZE_ADDRESS__
    const unsigned n = 2 * tiny_model_count;
#else
    const unsigned n = 2 * tiny_model_count + 1;
#endif

    for (unsigned i = 0; i < n; i++) {
        const tiny_model *m = i < 2 * tiny_model_count ? &tiny_models[i / 2] : NULL;
        const char *only = getenv("SUBJECT"), *name = m ? m->name : "smollm2"; /* one model, while looking for a fault */
        subject s;

        if ((m && !m->can_inject) || (only && strcmp(only, name) != 0)) continue;
        subject_open(&s, name, m && i % 2, SUBJECT_CTX);
        test(&s);
        subject_close(&s);
    }
    subject_verdict();
}

/* The capture context forgets what it holds: another first token. */
static void reset(is_engine *e, kit_ids all, int32_t first)
{
    int32_t other = first == all.p[1] ? all.p[2] : all.p[1];
    kit_rows r;

    kit_capture(e, (kit_ids){ 0 }, (kit_ids){ &other, 1 }, 0, &r);
    kit_rows_free(&r);
}

/* All of the context and the span in one go, nothing kept from before. */
static void capture_fresh(is_engine *e, kit_ids all, kit_ids context, kit_ids span, kit_rows *out)
{
    reset(e, all, context.n ? context.p[0] : span.p[0]);
    kit_capture(e, context, span, 0, out);
}

/* What another batching does to the rows: at most, of several cuts between the decodes, and never less than the rounding of a
 * 16-bit cache can do. */
static double rows_floor(is_engine *e, kit_ids all, kit_ids context, kit_ids span, const kit_rows *fresh)
{
    double worst = 2e-3;

    for (uint32_t cut = 7; cut + 2 < context.n; cut += context.n / 3 + 1) {
        kit_rows r;

        reset(e, all, context.p[0]);
        kit_capture(e, kit_cut(context, 0, cut), kit_cut(context, cut, 1), 0, &r); /* cut + 1 tokens are held from now on */
        kit_rows_free(&r);
        kit_capture(e, context, span, 0, &r);
        worst = fmax(worst, rows_differ(fresh, &r, span.n));
        kit_rows_free(&r);
    }
    return worst;
}

/* Without flash attention one thread computes the same whatever the batching; where arithmetic is quantised, what such noise grows
 * to is seen with the other attention kernel. */
static double kernel_floor(const subject *s, kit_ids context, kit_ids span, const kit_rows *fresh)
{
    is_engine_opts o = { .model_path = s->path, .n_ctx = 512, .n_threads = 1, .no_selftest = true,
                         .flash_attention = s->fa ? INFERSCALE_FA_OFF : INFERSCALE_FA_ON };
    is_engine *other;
    kit_rows r;
    double differ;

    if (!s->noisy) return 0;
    KIT_OK(is_engine_open(NULL, "llama", &o, &other));
    kit_capture(other, context, span, 0, &r);
    differ = rows_differ(fresh, &r, span.n);
    kit_rows_free(&r);
    is_engine_close(other);
    return differ;
}

static is_capture capture_of(kit_ids context, kit_rows *rows, kit_ids span)
{
    rows->pos = context.n;
    return (is_capture){ .context = context.p, .n_context = context.n, .span = span.p, .n_span = span.n, .rows = rows->rows };
}

/* ---- Together ------------------------------------------------------------------------------------------------------------- */

typedef struct spans {
    int32_t mixed[SPANS][HEADER + 80];
    kit_ids context[SPANS], span[SPANS];
    kit_rows alone[SPANS], many[SPANS];
    is_capture c[SPANS];
} spans;

/* Spans of unlike lengths; a third after the header alone, a third after company of its own, a third after the beginning of
 * company that another has too. */
static void lay_out(subject *s, spans *t)
{
    static const uint32_t lengths[SPANS] = { 31, 1, 17, LONGEST, 9, 26, 12 };
    uint32_t at = HEADER;

    for (uint32_t i = 0; i < SPANS; at += lengths[i++]) {
        uint32_t company = i % 3 == 0 ? 0 : i % 3 == 1 ? 30 + i : 7 * i;

        memcpy(t->mixed[i], s->ids, HEADER * sizeof(int32_t));
        memcpy(t->mixed[i] + HEADER, s->ids + 400 + (i % 3 == 1 ? i * 90 : 0), company * sizeof(int32_t));
        t->context[i] = (kit_ids){ t->mixed[i], HEADER + company };
        t->span[i] = kit_cut(s->all, at, lengths[i]);
    }
}

/* Rows of one span against those of another: they must not agree, or the test could not tell a mix-up. */
static void check_apart(const spans *t, double limit)
{
    for (uint32_t i = 0; i < SPANS; i++)
        for (uint32_t k = 0; k < SPANS; k++) {
            uint32_t n = t->span[i].n < t->span[k].n ? t->span[i].n : t->span[k].n;

            if (i != k) assert_true(rows_differ(&t->alone[i], &t->many[k], n) > 3 * limit);
        }
}

/* The same spans served, against the engine's own decode of each after its context. */
static void check_served(subject *s, const spans *t)
{
    float *want = is_malloc(s->n_vocab * sizeof *want), *got = is_malloc(s->n_vocab * sizeof *got);
    kit_ids header = kit_cut(s->all, 0, HEADER), question;
    is_run_opts opts = { .no_prefix_cache = true };
    oracle_span parts[SPANS];
    kit_plan p, twin;

    assert_true(want && got);
    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_HEADER, header, NULL);
    question = kit_cut(s->all, (uint32_t)(t->span[SPANS - 1].p - s->ids) + t->span[SPANS - 1].n, QUESTION);
    for (uint32_t i = 0; i < SPANS; i++) {
        is_segment *g = kit_segment(s->e, s->rope, &t->many[i], 0, t->span[i], IS_CODEC_F16, KIT_GOOD, 0);

        parts[i] = (oracle_span){ t->context[i].p, t->context[i].n, t->span[i].p, t->span[i].n };
        kit_plan_add(&p, IS_ROLE_FACT, t->span[i], g);
    }
    kit_plan_add(&p, IS_ROLE_QUESTION, question, NULL);
    kit_plan_twin(&p, &twin);
    kit_logits(s->e, &twin.plan, &opts, want, NULL);
    floor_n n = subject_floor_quick(s, &twin.plan, want);
    kit_logits(s->e, &p.plan, &opts, got, NULL);
    assert_true(oracle_stitch(s->o, header.p, header.n, parts, SPANS, question.p, question.n, want));
    subject_same(s, "spans captured together", want, got, n);
    kit_plan_unref(&p);
    is_free(want);
    is_free(got);
}

static void together(subject *s)
{
    spans *t = is_calloc(1, sizeof *t);
    double floor = 0, worst = 0;
    uint32_t ran = 0, sum = HEADER;

    assert_non_null(t);
    lay_out(s, t);
    for (uint32_t i = 0; i < SPANS; i++) {
        room_for(s->e, t->span[i], &t->many[i]);
        capture_fresh(s->e, s->all, t->context[i], t->span[i], &t->alone[i]);
        floor = fmax(floor, rows_floor(s->e, s->all, t->context[i], t->span[i], &t->alone[i]));
        if (i == 3) floor = fmax(floor, kernel_floor(s, t->context[i], t->span[i], &t->alone[i]));
        t->c[i] = capture_of(t->context[i], &t->many[i], t->span[i]);
        sum += t->context[i].n - HEADER + t->span[i].n;
    }
    reset(s->e, s->all, s->ids[0]);
    KIT_OK(is_engine_capture_many(s->e, t->c, SPANS));
    for (uint32_t i = 0; i < SPANS; i++) {
        ran += t->c[i].n_computed;
        worst = fmax(worst, rows_differ(&t->alone[i], &t->many[i], t->span[i].n));
    }
    print_message("  %-16s fa %-3s rows together against alone %.2g, noise %.2g\n", s->name, s->fa ? "on" : "off", worst, floor);
    assert_true(worst <= 3 * floor);
    check_apart(t, floor);
    assert_int_equal(ran, sum); /* the header once */
    KIT_OK(is_engine_capture_many(s->e, t->c, SPANS));
    assert_int_equal(t->c[0].n_computed, t->span[0].n); /* now it is held */
    check_served(s, t);
    for (uint32_t i = 0; i < SPANS; i++) {
        kit_rows_free(&t->alone[i]);
        kit_rows_free(&t->many[i]);
    }
    is_free(t);
}

static void test_together(void **state)
{
    each(together);
}

/* ---- Stored context ------------------------------------------------------------------------------------------------------- */

enum { A_LEN = 40, B_LEN = 50, C_LEN = 21 }; /* A and B together are longer than the window of the window models */

typedef struct blocks {
    kit_ids header, a, b, c, ab, context, question; /* context = header a b */
    is_segment *exact[2], *foreign[2];              /* a and b, each after what stands before it here; and after other things */
    kit_rows fresh, got;                            /* of c */
    double floor;
} blocks;

static is_segment *segment_after(subject *s, kit_ids context, kit_ids span)
{
    kit_rows r;
    is_segment *g;

    kit_capture(s->e, context, span, 0, &r);
    g = kit_segment(s->e, s->rope, &r, 0, span, IS_CODEC_F16, KIT_GOOD, 0);
    kit_rows_free(&r);
    return g;
}

static void blocks_make(subject *s, blocks *t)
{
    t->header = kit_cut(s->all, 0, HEADER);
    t->a = kit_cut(s->all, HEADER, A_LEN);
    t->b = kit_cut(s->all, HEADER + A_LEN, B_LEN);
    t->context = kit_cut(s->all, 0, HEADER + A_LEN + B_LEN);
    t->c = kit_cut(s->all, t->context.n, C_LEN);
    t->question = kit_cut(s->all, t->context.n + C_LEN, QUESTION);
    t->exact[0] = segment_after(s, t->header, t->a);
    t->exact[1] = segment_after(s, kit_cut(s->all, 0, HEADER + A_LEN), t->b);
    t->foreign[0] = segment_after(s, (kit_ids){ 0 }, t->a);
    t->foreign[1] = segment_after(s, kit_cut(s->all, 500, 33), t->b);
    capture_fresh(s->e, s->all, t->context, t->c, &t->fresh);
    t->floor = fmax(rows_floor(s->e, s->all, t->context, t->c, &t->fresh), kernel_floor(s, t->context, t->c, &t->fresh));
    room_for(s->e, t->c, &t->got);
}

static void blocks_free(blocks *t)
{
    for (int i = 0; i < 2; i++) {
        is_segment_unref(t->exact[i]);
        is_segment_unref(t->foreign[i]);
    }
    kit_rows_free(&t->fresh);
    kit_rows_free(&t->got);
}

/* Captures c after the header and these segments. */
static void capture_after(subject *s, const blocks *t, is_segment *const *stored, kit_rows *out)
{
    is_capture c = capture_of(t->context, out, t->c);

    c.stored = stored;
    c.n_stored = 2;
    spoil(out);
    KIT_OK(is_engine_capture(s->e, &c));
    assert_int_equal(c.n_injected, A_LEN + B_LEN);
    assert_in_range(c.n_computed, C_LEN, HEADER + C_LEN);
}

/* header | a | b | c | question; a and b stored as given, c from rows (NULL = computed). */
static void serve(subject *s, const blocks *t, is_segment *const *stored, const kit_rows *c, float *out)
{
    is_run_opts opts = { .no_prefix_cache = true };
    kit_plan p;

    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_HEADER, t->header, NULL);
    kit_plan_add(&p, IS_ROLE_FACT, t->a, stored ? is_segment_ref(stored[0]) : NULL);
    kit_plan_add(&p, IS_ROLE_FACT, t->b, stored ? is_segment_ref(stored[1]) : NULL);
    kit_plan_add(&p, IS_ROLE_FACT, t->c, c ? kit_segment(s->e, s->rope, c, 0, t->c, IS_CODEC_F16, KIT_GOOD, 0) : NULL);
    kit_plan_add(&p, IS_ROLE_QUESTION, t->question, NULL);
    kit_logits(s->e, &p.plan, &opts, out, NULL);
    kit_plan_unref(&p);
}

/* The floor N of the text header a b c question. */
static floor_n text_floor(subject *s, const blocks *t, float *text)
{
    is_run_opts opts = { .no_prefix_cache = true };
    kit_ids all = kit_cut(s->all, 0, t->context.n + C_LEN + QUESTION);
    kit_plan p;

    kit_plan_begin(&p, 0);
    kit_plan_add(&p, IS_ROLE_QUESTION, all, NULL);
    kit_logits(s->e, &p.plan, &opts, text, NULL);
    return subject_floor_quick(s, &p.plan, text);
}

/* Rows injected for one capture must not be there for the next, alone or with others, whose context has the same tokens. */
static void nothing_stays(subject *s, blocks *t)
{
    is_capture c[3];
    kit_rows r[3];

    capture_after(s, t, t->foreign, &t->got);
    c[0] = capture_of(t->context, &t->got, t->c);
    KIT_OK(is_engine_capture(s->e, &c[0]));
    assert_int_equal(c[0].n_computed, A_LEN + B_LEN + C_LEN); /* the header is held, the injected blocks are not */
    assert_true(rows_differ(&t->fresh, &t->got, C_LEN) <= 3 * t->floor);
    for (int i = 0; i < 3; i++) {
        room_for(s->e, t->c, &r[i]);
        c[i] = capture_of(t->context, &r[i], t->c);
        if (i == 1) continue;
        c[i].stored = i ? t->exact + 1 : t->foreign; /* the last: header and a computed, b stored */
        c[i].n_stored = i ? 1 : 2;
    }
    KIT_OK(is_engine_capture_many(s->e, c, 3));
    capture_after(s, t, t->foreign, &t->got);
    assert_true(rows_differ(&t->got, &r[0], C_LEN) <= 3 * t->floor);
    assert_true(rows_differ(&t->fresh, &r[1], C_LEN) <= 3 * t->floor);
    assert_true(rows_differ(&t->fresh, &r[2], C_LEN) <= 3 * t->floor);
    assert_int_equal(c[2].n_injected, B_LEN);
    for (int i = 0; i < 3; i++) kit_rows_free(&r[i]);
}

static void stored(subject *s)
{
    float *text = is_malloc(s->n_vocab * sizeof *text), *want = is_malloc(s->n_vocab * sizeof *want);
    float *got = is_malloc(s->n_vocab * sizeof *got);
    double exact, foreign;
    blocks t;

    assert_true(text && want && got);
    blocks_make(s, &t);
    floor_n n = text_floor(s, &t, text);
    capture_after(s, &t, t.exact, &t.got);
    exact = rows_differ(&t.fresh, &t.got, C_LEN);
    serve(s, &t, t.exact, &t.got, got);
    subject_same(s, "after stored context", text, got, n);
    capture_after(s, &t, t.foreign, &t.got);
    foreign = rows_differ(&t.fresh, &t.got, C_LEN);
    print_message("  %-16s fa %-3s rows after stored context %.2g, after foreign %.2g, noise %.2g\n", s->name,
                  s->fa ? "on" : "off", exact, foreign, t.floor);
    assert_true(exact <= 3 * t.floor);
    assert_true(foreign > 3 * t.floor);
    serve(s, &t, t.foreign, NULL, want); /* the serving context computes c after the same stored rows */
    serve(s, &t, t.foreign, &t.got, got);
    subject_same(s, "after foreign stored context", want, got, n);
    subject_differs(s, "... against joint prefill", text, got, n);
    nothing_stays(s, &t);
    blocks_free(&t);
    is_free(text);
    is_free(want);
    is_free(got);
}

static void test_stored_context(void **state)
{
    each(stored);
}

/* ---- Whatever order ------------------------------------------------------------------------------------------------------- */

enum { SMALL_CTX = 320, ROUNDS = 14, MOST = 36, ROUND_TOKENS = 260 };

typedef struct draw {
    int32_t ids[MOST][SMALL_CTX];
    kit_ids context[MOST], span[MOST];
    is_segment *stored[MOST];
    kit_rows rows[MOST];
    is_capture c[MOST];
    uint32_t n;
} draw;

/* A context that begins with one of three texts and ends in tokens of its own, perhaps stored; a span. */
static void draw_one(subject *s, subject *clean, unsigned long long *seed, uint32_t most, draw *d)
{
    uint32_t i = d->n++, common = scratch_below(seed, most / 2), own = scratch_below(seed, most / 3), text = scratch_below(seed, 3);
    uint32_t n = 1 + scratch_below(seed, most - common - own - 1);

    memcpy(d->ids[i], s->ids + 500 * text, common * sizeof(int32_t));
    memcpy(d->ids[i] + common, s->ids + scratch_below(seed, 1500), (own + n) * sizeof(int32_t));
    d->context[i] = (kit_ids){ d->ids[i], common + own };
    d->span[i] = (kit_ids){ d->ids[i] + common + own, n };
    d->stored[i] = NULL;
    room_for(clean->e, d->span[i], &d->rows[i]);
    d->c[i] = capture_of(d->context[i], &d->rows[i], d->span[i]);
    if (own == 0 || scratch_below(seed, 3)) return;
    d->stored[i] = segment_after(clean, kit_cut(d->context[i], 0, common), kit_cut(d->context[i], common, own));
    d->c[i].stored = &d->stored[i];
    d->c[i].n_stored = 1;
}

/* Captures of all sorts, one after the other on one engine with a small cache, against fresh ones on another. */
static void any_order(const char *name, bool fa, unsigned long long *seed)
{
    draw *d = is_calloc(1, sizeof *d);
    subject s, clean;
    double worst = 0;

    assert_non_null(d);
    subject_open(&s, name, fa, SMALL_CTX);
    subject_open(&clean, name, fa, SMALL_CTX);
    for (int round = 0; round < (getenv("INFERSCALE_SOAK") ? 20 * ROUNDS : ROUNDS); round++) {
        uint32_t n = scratch_below(seed, 3) ? 1 + scratch_below(seed, 5) : 1 + scratch_below(seed, MOST);

        for (d->n = 0; d->n < n;) draw_one(&s, &clean, seed, n > 5 ? 20 : ROUND_TOKENS, d);
        if (scratch_below(seed, 5) == 0) d->c[n - 1].n_span = 0; /* refused as a whole: nothing is touched */
        if (d->c[n - 1].n_span == 0) KIT_FAILS(INFERSCALE_E_INVALID, is_engine_capture_many(s.e, d->c, n));
        d->c[n - 1].n_span = d->span[n - 1].n;
        KIT_OK(is_engine_capture_many(s.e, d->c, n));
        for (uint32_t i = 0; i < n; i++) {
            kit_rows want;

            capture_fresh(clean.e, clean.all, d->context[i], d->span[i], &want);
            worst = fmax(worst, rows_differ(&want, &d->rows[i], want.n));
            if (!(worst < 0.1)) fail_msg("%s: round %d, span %u of %u differs by %g", name, round, i, n, worst);
            kit_rows_free(&want);
            kit_rows_free(&d->rows[i]);
            is_segment_unref(d->stored[i]);
        }
    }
    print_message("  %-16s fa %-3s any order: at most %.2g\n", name, fa ? "on" : "off", worst);
    subject_close(&s);
    subject_close(&clean);
    is_free(d);
}

static void test_any_order(void **state)
{
    unsigned long long seed = scratch_seed("any_order");

    any_order("tiny-llama", false, &seed);
    any_order("tiny-gemma3", true, &seed);
    any_order("tiny-gemma3", false, &seed);
}

/* ---- Refusals and cancelling ---------------------------------------------------------------------------------------------- */

static void refuse(subject *s, is_capture *c, is_status why)
{
    c[0].n_computed = c[1].n_computed = 99;
    KIT_FAILS(why, is_engine_capture_many(s->e, c, 2));
    assert_int_equal(c[0].n_computed + c[1].n_computed, 0);
}

static void test_refusals(void **state)
{
    subject s;
    blocks t;
    is_capture good[2], bad[2];
    is_segment_desc d;
    is_segment *other_model, *none = NULL, *swapped[2];
    int32_t wrong_token;

    subject_open(&s, "tiny-llama", true, 512);
    blocks_make(&s, &t);
    d = *is_segment_info(t.exact[0]);
    d.fingerprint[3] ^= 1;
    d.n_tokens = C_LEN;
    KIT_OK(is_segment_new(&d, (const float *const *)t.fresh.rows, &other_model));
    swapped[0] = t.exact[1];
    swapped[1] = t.exact[0];
    good[0] = capture_of(t.header, &t.got, t.c);
    good[1] = capture_of(t.context, &t.fresh, t.c);
    good[1].stored = t.exact;
    good[1].n_stored = 2;
    wrong_token = (int32_t)s.n_vocab;
#define BAD(why, change)                                                                                                       \
    do {                                                                                                                       \
        memcpy(bad, good, sizeof good);                                                                                        \
        change;                                                                                                                \
        refuse(&s, bad, INFERSCALE_##why);                                                                                     \
    } while (0)
    BAD(E_INVALID, bad[1].n_span = 0);
    BAD(E_INVALID, bad[1].rows = NULL);
    BAD(E_INVALID, bad[1].pos0 = 1);
    BAD(E_INVALID, (bad[0].span = &wrong_token, bad[0].n_span = 1));
    BAD(E_INVALID, (bad[1].stored = swapped));
    BAD(E_INVALID, bad[1].stored = NULL);
    BAD(E_INVALID, (bad[1].stored = &none, bad[1].n_stored = 1));
    BAD(E_INVALID, (bad[1].stored = &other_model, bad[1].n_stored = 1));
    BAD(E_INVALID, bad[1].n_context--);                       /* shifted by one: other tokens */
    BAD(E_INVALID, bad[1].n_context = A_LEN + B_LEN - 1);     /* more stored than there is context */
    BAD(E_CONTEXT, (bad[0].pos0 = bad[1].pos0 = 400));
#undef BAD
    memcpy(bad, good, sizeof good);
    KIT_OK(is_engine_capture_many(s.e, bad, 2));
    KIT_OK(is_engine_capture_many(s.e, bad, 0));
    is_segment_unref(other_model);
    blocks_free(&t);
    subject_close(&s);
}

static volatile int cancel_flag;

static void *cancel_soon(void *ms)
{
    usleep(1000 * (useconds_t)*(int *)ms);
    __atomic_store_n(&cancel_flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Ended at any moment, the next capture is right and finds at most what was computed in full. */
static void test_cancel(void **state)
{
    enum { N = 8 };
    subject s;
    kit_ids context, span[N];
    kit_rows want[N], got[N];
    is_capture c[N];
    unsigned n_cancelled = 0;

    subject_open(&s, "smollm2", false, 1024);
    context = kit_cut(s.all, 0, 120);
    for (uint32_t i = 0; i < N; i++) {
        span[i] = kit_cut(s.all, 300 + 40 * i, 10 + 2 * i);
        room_for(s.e, span[i], &want[i]);
        room_for(s.e, span[i], &got[i]);
        c[i] = capture_of(context, &want[i], span[i]);
    }
    KIT_OK(is_engine_capture_many(s.e, c, N));
    for (uint32_t i = 0; i < N; i++) c[i] = capture_of(context, &got[i], span[i]);
    for (int ms = 0; ms <= 400; ms = ms ? 4 * ms : 6) {
        pthread_t thread;
        is_status st;

        reset(s.e, s.all, s.ids[0]);
        cancel_flag = ms == 0;
        c[0].cancel = &cancel_flag;
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &ms), 0);
        st = is_engine_capture_many(s.e, c, N);
        pthread_join(thread, NULL);
        assert_true(st == INFERSCALE_E_CANCELLED || (st == INFERSCALE_OK && ms > 0));
        n_cancelled += st == INFERSCALE_E_CANCELLED;
        c[0].cancel = NULL;
        for (uint32_t i = 0; i < N; i++) spoil(&got[i]);
        KIT_OK(is_engine_capture_many(s.e, c, N));
        for (uint32_t i = 0; i < N; i++) assert_true(rows_differ(&want[i], &got[i], span[i].n) < 0.1);
    }
    assert_true(n_cancelled >= 2);
    for (uint32_t i = 0; i < N; i++) {
        kit_rows_free(&want[i]);
        kit_rows_free(&got[i]);
    }
    subject_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_any_order), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_together), cmocka_unit_test(test_stored_context),
    };

    print_message("weights and prompts from seed %d\n", SUBJECT_SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
