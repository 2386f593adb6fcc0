/* test_identity.c - a block encoded jointly, un-rotated, stored, read back from a file, rotated and injected gives the logits
 * of plain prefill, wherever it was encoded; spoilt in any of four ways it does not. For every model, with flash attention off
 * and on, several batchings, and sliding windows of which the plan fills a half, one, two and four. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/vault.h"
#include "llama/support/subject.h"

enum { HEADER = 24, QUESTION = 20 };

/* The prompt: a header, `block` tokens cut into facts of unequal length, a question. */
typedef struct layout { kit_ids header, block, question, facts[8]; uint32_t n_facts; } layout;

static void lay_out(const subject *s, uint32_t block, layout *l)
{
    uint32_t at = HEADER, left = block;

    memset(l, 0, sizeof *l);
    l->header = kit_cut(s->all, 0, HEADER);
    l->block = kit_cut(s->all, HEADER, block);
    l->question = kit_cut(s->all, HEADER + block, QUESTION);
    while (left) {
        uint32_t n = l->n_facts == 7 ? left : left / 3 + 1;
        l->facts[l->n_facts++] = kit_cut(s->all, at, n);
        at += n;
        left -= n;
    }
}

static void plan_of(const layout *l, is_segment **segments, kit_plan *p)
{
    kit_plan_begin(p, 0);
    kit_plan_add(p, IS_ROLE_HEADER, l->header, NULL);
    for (uint32_t i = 0; i < l->n_facts; i++) kit_plan_add(p, IS_ROLE_FACT, l->facts[i], segments ? segments[i] : NULL);
    kit_plan_add(p, IS_ROLE_QUESTION, l->question, NULL);
}

/* Through a file: stored, forgotten by the RAM tier, read back. */
static is_segment *through_vault(is_vault *v, is_segment *s)
{
    is_segment *back = NULL;

    KIT_OK(is_vault_put(v, s));
    is_vault_drop_ram(v);
    KIT_OK(is_vault_get(v, is_segment_info(s)->name, is_segment_info(s)->fingerprint, &back));
    assert_ptr_not_equal(back, s);
    is_segment_unref(s);
    return back;
}

static void cut_segments(subject *s, const layout *l, const kit_rows *rows, is_codec codec, kit_harm harm, is_vault *v,
                         is_segment **out)
{
    uint32_t begin = 0;

    for (uint32_t i = 0; i < l->n_facts; i++) {
        out[i] = kit_segment(s->e, s->rope, rows, begin, l->facts[i], codec, harm, HEADER + begin);
        if (v) out[i] = through_vault(v, out[i]);
        begin += l->facts[i].n;
    }
}

static void inject(subject *s, const layout *l, is_segment **segments, uint32_t batch, float *out)
{
    is_run_opts opts = { .batch = batch, .no_prefix_cache = true };
    is_run_stats stats;
    kit_plan p;

    plan_of(l, segments, &p);
    kit_logits(s->e, &p.plan, &opts, out, &stats);
    assert_int_equal(stats.tokens_injected, l->block.n);
    assert_int_equal(stats.tokens_computed, HEADER + QUESTION);
    kit_plan_unref(&p);
}

static is_vault *open_vault(char dir[64])
{
    is_vault *v = NULL;

    snprintf(dir, 64, "%s/identity-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(dir));
    KIT_OK(is_vault_open(is_fs_posix(), dir, 64u << 20, false, &v));
    return v;
}

static void remove_tree(const char *dir)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

typedef struct work { float *oracle, *text, *got; floor_n n; } work;

static void work_alloc(const subject *s, work *w)
{
    w->oracle = is_malloc(s->n_vocab * sizeof *w->oracle);
    w->text = is_malloc(s->n_vocab * sizeof *w->text);
    w->got = is_malloc(s->n_vocab * sizeof *w->got);
    assert_true(w->oracle && w->text && w->got);
}

static void work_begin(subject *s, const layout *l, work *w)
{
    is_run_opts opts = { .no_prefix_cache = true };
    kit_plan twin;

    work_alloc(s, w);
    plan_of(l, NULL, &twin);
    assert_true(oracle_prefill(s->o, s->ids, HEADER + l->block.n + QUESTION, 0, w->oracle));
    kit_logits(s->e, &twin.plan, &opts, w->text, NULL);
    w->n = subject_floor(s, &twin.plan, w->text);
    print_message("  %-16s fa %-3s %u tokens, N = KL %.3g, largest difference %.3g\n", s->name, s->fa ? "on" : "off",
                  HEADER + l->block.n + QUESTION, w->n.kl, w->n.diff);
    subject_same(s, "text against plain prefill", w->oracle, w->text, w->n);
}

static void work_end(work *w)
{
    is_free(w->oracle);
    is_free(w->text);
    is_free(w->got);
}

/* Encoded as one block whose first token stands `at` places later than it is served. */
static void encoded_at(subject *s, const layout *l, uint32_t at, is_vault *v, work *w)
{
    is_segment *segments[8];
    kit_rows rows;
    char what[64];

    kit_capture(s->e, l->header, l->block, at, &rows);
    for (int codec = at ? IS_CODEC_F16 : IS_CODEC_F32; codec <= IS_CODEC_F16; codec++) {
        cut_segments(s, l, &rows, (is_codec)codec, KIT_GOOD, v, segments);
        inject(s, l, segments, at == 1 ? 8 : 0, w->got);
        snprintf(what, sizeof what, "encoded at +%u, %s", at, is_codec_name((is_codec)codec));
        subject_same(s, what, w->oracle, w->got, w->n);
    }
    if (at == 0) {
        cut_segments(s, l, &rows, IS_CODEC_INT8, KIT_GOOD, NULL, segments);
        inject(s, l, segments, 0, w->got);
        subject_close_to(s, "encoded at +0, int8", w->oracle, w->got, w->n);
    }
    for (int harm = KIT_GOOD + 1; at == 1 && harm < KIT_HARMS; harm++) {
        cut_segments(s, l, &rows, IS_CODEC_F16, (kit_harm)harm, NULL, segments);
        inject(s, l, segments, 0, w->got);
        subject_differs(s, kit_harm_name((kit_harm)harm), w->oracle, w->got, w->n);
    }
    kit_rows_free(&rows);
}

/* Every fact by itself after all that stands before it. */
static void encoded_piece_by_piece(subject *s, const layout *l, work *w)
{
    is_segment *segments[8];
    kit_rows rows;

    for (uint32_t i = 0, begin = HEADER; i < l->n_facts; begin += l->facts[i++].n) {
        kit_capture(s->e, kit_cut(s->all, 0, begin), l->facts[i], 0, &rows);
        segments[i] = kit_segment(s->e, s->rope, &rows, 0, l->facts[i], IS_CODEC_F16, KIT_GOOD, begin);
        kit_rows_free(&rows);
    }
    inject(s, l, segments, 0, w->got);
    subject_same(s, "piece by piece", w->oracle, w->got, w->n);
}

static void encoded_within(subject *s, uint32_t block)
{
    layout l;
    work w;

    lay_out(s, block, &l);
    work_begin(s, &l, &w);
    encoded_piece_by_piece(s, &l, &w);
    work_end(&w);
}

static void identity_of(subject *s, uint32_t block)
{
    char dir[64];
    is_vault *v = open_vault(dir);
    layout l;
    work w;

    lay_out(s, block, &l);
    work_begin(s, &l, &w);
    encoded_at(s, &l, 0, v, &w);
    encoded_at(s, &l, 1, v, &w);
    encoded_at(s, &l, 301, v, &w);
    encoded_piece_by_piece(s, &l, &w);
    is_vault_close(v);
    remove_tree(dir);
    work_end(&w);
}

static void identity(subject *s)
{
    if (!s->window) {
        identity_of(s, 150);
        return;
    }
    for (uint32_t half = 1; half <= 8; half *= 2) { /* the plan fills 0.5, 1, 2 and 4 windows */
        uint32_t tokens = half * s->window / 2;
        identity_of(s, tokens > HEADER + QUESTION + 8 ? tokens - HEADER - QUESTION : 8);
    }
    identity_of(s, s->window + 1);
}

/* A conversation: stored facts, a question, four tokens of an answer, then more stored facts and another question in the same
 * sequence. All encoded after exactly what stands before them, so plain prefill of everything is what must come out. */
enum { TURN_PARTS = 7 };
static const struct turn_part { uint32_t n; is_role role; char how; /* Stored, Computed, Fed */ } turns[TURN_PARTS] = {
    { HEADER, IS_ROLE_HEADER, 'C' }, { 41, IS_ROLE_FACT, 'S' }, { 15, IS_ROLE_QUESTION, 'C' }, { 4, IS_ROLE_TURN, 'F' },
    { 6, IS_ROLE_HEADER, 'C' }, { 30, IS_ROLE_FACT, 'S' }, { QUESTION, IS_ROLE_QUESTION, 'C' },
};

static is_segment *segment_at(subject *s, uint32_t begin, uint32_t n)
{
    kit_ids ids = kit_cut(s->all, begin, n);
    kit_rows rows;

    kit_capture(s->e, kit_cut(s->all, 0, begin), ids, 0, &rows);
    is_segment *out = kit_segment(s->e, s->rope, &rows, 0, ids, IS_CODEC_F16, KIT_GOOD, begin);
    kit_rows_free(&rows);
    return out;
}

static void two_turns(subject *s, uint32_t batch, float *out)
{
    is_run_opts opts = { .batch = batch, .want_logits = true };
    is_run_stats stats;
    is_run *run = NULL;
    kit_plan p;
    uint32_t at = 0;

    kit_plan_begin(&p, 0);
    for (uint32_t i = 0; i < TURN_PARTS; at += turns[i++].n) {
        if (turns[i].how != 'F') {
            is_segment *stored = turns[i].how == 'S' ? segment_at(s, at, turns[i].n) : NULL;
            kit_plan_add(&p, turns[i].role, kit_cut(s->all, at, turns[i].n), stored);
            continue;
        }
        KIT_OK(is_engine_start(s->e, &p.plan, &opts, &run, &stats));
        kit_plan_unref(&p);
        for (uint32_t k = 0; k < turns[i].n; k++) KIT_OK(is_engine_feed(s->e, run, s->ids[at + k]));
        kit_plan_begin(&p, at + turns[i].n);
    }
    for (uint32_t i = 0; i < p.plan.n_parts; i++) p.parts[i].pos++; /* not where the sequence stands */
    KIT_FAILS(INFERSCALE_E_INVALID, is_engine_extend(s->e, run, &p.plan, &opts, &stats));
    for (uint32_t i = 0; i < p.plan.n_parts; i++) p.parts[i].pos--;
    KIT_OK(is_engine_extend(s->e, run, &p.plan, &opts, &stats));
    assert_int_equal(stats.tokens_injected, 30);
    assert_int_equal(stats.tokens_computed, 6 + QUESTION);
    assert_int_equal(is_engine_run_tokens(s->e, run), at);
    memcpy(out, is_engine_logits(s->e, run), s->n_vocab * sizeof *out);
    is_engine_finish(s->e, run);
    kit_plan_unref(&p);
}

static void conversation(subject *s)
{
    uint32_t total = 0;
    layout l;
    work w;

    if (s->noisy) return; /* decided by its twin without quantised arithmetic */
    for (uint32_t i = 0; i < TURN_PARTS; i++) total += turns[i].n;
    lay_out(s, total - HEADER - QUESTION, &l);
    work_begin(s, &l, &w);
    two_turns(s, 0, w.got);
    subject_same(s, "two turns", w.oracle, w.got, w.n);
    two_turns(s, 5, w.got); /* the header now comes from the exact prefix */
    subject_same(s, "two turns, small batches", w.oracle, w.got, w.n);
    work_end(&w);
}

/* Approximate rows never enter the exact prefix: after a stitched run the same tokens as text give what a fresh run gives. */
static void prefix_stays_exact(subject *s)
{
    is_run_opts fresh = { .no_prefix_cache = true }, keep = { .cache_parts = 8 };
    is_segment *segments[8];
    is_run_stats stats;
    kit_plan p, twin;
    kit_rows rows;
    layout l;
    work w;

    if (s->noisy) return; /* decided by its twin without quantised arithmetic */
    lay_out(s, 100, &l);
    work_begin(s, &l, &w);
    for (uint32_t i = 0; i < l.n_facts; i++) {
        kit_capture(s->e, (kit_ids){ NULL, 0 }, l.facts[i], 0, &rows);
        segments[i] = kit_segment(s->e, s->rope, &rows, 0, l.facts[i], IS_CODEC_F16, KIT_GOOD, 0);
        kit_rows_free(&rows);
    }
    plan_of(&l, segments, &p);
    kit_plan_twin(&p, &twin);
    for (int i = 0; i < 2; i++) {
        kit_logits(s->e, &p.plan, &keep, w.got, &stats);
        assert_int_equal(stats.tokens_injected, l.block.n);
    }
    subject_differs(s, "stitched, facts alone", w.oracle, w.got, w.n);
    kit_logits(s->e, &twin.plan, &keep, w.got, &stats);
    assert_true(stats.tokens_resident <= HEADER);
    subject_same(s, "the same tokens as text afterwards", w.oracle, w.got, w.n);
    kit_logits(s->e, &twin.plan, &keep, w.got, &stats);
    subject_same(s, "and from the exact prefix", w.oracle, w.got, w.n);
    kit_logits(s->e, &twin.plan, &fresh, w.got, &stats);
    assert_int_equal(stats.tokens_resident, 0);
    kit_plan_unref(&p);
    work_end(&w);
}

static void test_identity(void **state)
{
    subject_each(identity);
}

/* The context's size says nothing about windows: with a small one all layers' caches have the same number of cells. */
static void test_small_context(void **state)
{
    static const uint32_t sizes[] = { 257, 512, 700 };

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        subject s;
        uint32_t windows = 0;
        subject_open(&s, "tiny-gemma3", i % 2, sizes[i]);
        print_message("  context of %u: %s\n", sizes[i], is_engine_describe(s.e)->why_not);
        assert_true(is_engine_describe(s.e)->can_inject);
        for (uint32_t p = 0; p < is_engine_geometry(s.e)->n_planes; p++)
            windows += is_engine_geometry(s.e)->planes[p].window == s.window;
        assert_int_equal(windows, 12); /* K and V of six layers of seven */
        assert_true(is_engine_describe(s.e)->n_ctx >= 244);
        encoded_within(&s, 200);
        subject_close(&s);
    }
    subject_verdict();
}

/* More stored tokens than are composed at a time (54 MB): all pieces must land, in rows and in columns. */
static void test_long_stretch(void **state)
{
    is_run_opts opts = { .batch = 48, .no_prefix_cache = true };

    for (int fa = 0; fa < 2; fa++) {
        subject s;
        kit_plan twin;
        layout l;
        work w;

        subject_open(&s, "tiny-gemma3-wide", fa, SUBJECT_CTX);
        lay_out(&s, 1900, &l);
        work_alloc(&s, &w);
        plan_of(&l, NULL, &twin);
        assert_true(oracle_prefill(s.o, s.ids, twin.plan.n_tokens, 0, w.oracle));
        kit_logits(s.e, &twin.plan, &opts, w.text, NULL);
        w.n.kl = fmax(SUBJECT_KL_FLOOR, logits_kl(w.oracle, w.text, s.n_vocab));
        w.n.diff = fmax(SUBJECT_DIFF_FLOOR, logits_max_diff(w.oracle, w.text, s.n_vocab));
        kit_plan_unref(&twin);
        encoded_piece_by_piece(&s, &l, &w);
        work_end(&w);
        subject_close(&s);
    }
    subject_verdict();
}

static void test_conversation(void **state)
{
    subject_each(conversation);
}

static void test_prefix_stays_exact(void **state)
{
    subject_each(prefix_stays_exact);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_small_context),
        cmocka_unit_test(test_long_stretch),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_prefix_stays_exact),
    };

    print_message("weights and prompts from seed %d\n", SUBJECT_SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
