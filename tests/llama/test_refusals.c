/* test_refusals.c - models whose KV cannot be injected open all the same, say why not, refuse stored parts, and answer plans of
 * text as the engine itself does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <cmocka.h>

#include "base/mem.h"
#include "llama/support/subject.h"

enum { HEADER = 20, FACT = 30, QUESTION = 25, TOTAL = HEADER + FACT + QUESTION };

static void text_plan(const subject *s, kit_plan *p)
{
    kit_plan_begin(p, 0);
    kit_plan_add(p, IS_ROLE_HEADER, kit_cut(s->all, 0, HEADER), NULL);
    kit_plan_add(p, IS_ROLE_FACT, kit_cut(s->all, HEADER, FACT), NULL);
    kit_plan_add(p, IS_ROLE_QUESTION, kit_cut(s->all, HEADER + FACT, QUESTION), NULL);
}

static void says_why(const subject *s)
{
    const is_engine_info *info = is_engine_describe(s->e);

    print_message("  %s: %s\n", s->name, info->why_not);
    assert_false(info->can_inject);
    if (!strcasestr(info->why_not, s->tiny->why_not))
        fail_msg("\"%s\" does not speak of \"%s\"", info->why_not, s->tiny->why_not);
    assert_null(is_engine_geometry(s->e));
}

/* A segment made for some other model, as a bank would offer it after the model was changed. */
static is_segment *some_segment(const subject *s, kit_ids ids)
{
    is_segment_desc d = { .codec = IS_CODEC_F16, .n_tokens = ids.n, .tokens = ids.p };
    is_geometry *g = is_geometry_new(2, 0);
    float *row = is_calloc(ids.n * 8, sizeof *row);
    const float *rows[2] = { row, row };
    is_segment *out = NULL;

    assert_true(g && row);
    g->n_layers = 1;
    for (int i = 0; i < 2; i++) g->planes[i] = (is_plane){ .is_v = (uint8_t)i, .freq = 0xffff, .n_heads = 1, .head_dim = 8 };
    d.geometry = g;
    memcpy(d.fingerprint, is_engine_describe(s->e)->fingerprint, sizeof d.fingerprint);
    KIT_OK(is_segment_new(&d, rows, &out));
    is_geometry_free(g);
    is_free(row);
    return out;
}

static void refuses_stored(subject *s)
{
    is_run_opts opts = { 0 };
    is_run_stats stats;
    is_run *run = NULL;
    kit_plan p;
    float row[8] = { 0 }, *rows[2] = { row, row };
    is_capture c = { .span = s->ids, .n_span = 1, .rows = rows };

    KIT_FAILS(INFERSCALE_E_UNSUPPORTED, is_engine_capture(s->e, &c));
    text_plan(s, &p);
    p.parts[1].segment = some_segment(s, kit_cut(s->all, HEADER, FACT));
    p.parts[1].source = IS_SRC_STORED;
    KIT_FAILS(INFERSCALE_E_UNSUPPORTED, is_engine_start(s->e, &p.plan, &opts, &run, &stats));
    assert_null(run);
    kit_plan_unref(&p);
}

/* Text is answered as by the engine itself; again from kept prefixes; and generation goes on token by token. */
static void answers_text(subject *s)
{
    float *want = is_malloc(s->n_vocab * sizeof *want), *got = is_malloc(s->n_vocab * sizeof *got);
    is_run_opts fresh = { .no_prefix_cache = true }, keep = { .cache_parts = 1, .want_logits = true };
    is_run_stats stats;
    is_run *run;
    kit_plan p;
    int32_t ids[TOTAL + 4];

    assert_true(want && got);
    text_plan(s, &p);
    assert_true(oracle_prefill(s->o, s->ids, TOTAL, 0, want));
    kit_logits(s->e, &p.plan, &fresh, got, NULL);
    floor_n n = subject_floor(s, &p.plan, got);
    subject_same(s, "text", want, got, n);
    for (int i = 0; i < 2; i++) {
        kit_logits(s->e, &p.plan, &keep, got, &stats);
        assert_int_equal(stats.tokens_computed + stats.tokens_resident, TOTAL);
        subject_same(s, "text with prefixes kept", want, got, n);
    }
    memcpy(ids, s->ids, TOTAL * sizeof *ids);
    KIT_OK(is_engine_start(s->e, &p.plan, &keep, &run, &stats));
    for (int i = 0; i < 4; i++) {
        KIT_OK(is_engine_sample(s->e, run, &ids[TOTAL + i]));
        assert_int_equal(ids[TOTAL + i], logits_top(is_engine_logits(s->e, run), s->n_vocab));
        KIT_OK(is_engine_feed(s->e, run, ids[TOTAL + i]));
    }
    assert_true(oracle_prefill(s->o, ids, TOTAL + 4, 0, want));
    subject_same(s, "after four tokens of the answer", want, is_engine_logits(s->e, run), n);
    is_engine_finish(s->e, run);
    is_free(want);
    is_free(got);
}

static void test_refusals(void **state)
{
    for (unsigned i = 0; i < tiny_model_count; i++) {
        subject s;
        if (tiny_models[i].can_inject) continue;
        subject_open(&s, tiny_models[i].name, i & 1, SUBJECT_CTX);
        says_why(&s);
        refuses_stored(&s);
        answers_text(&s);
        subject_close(&s);
    }
    subject_verdict();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_refusals) };

    print_message("weights and prompts from seed %d\n", SUBJECT_SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
