/* test_stitching.c - facts that were encoded separately, composed and injected, equal the engine's own decode of each fact
 * after its own encoding context, shifted to where it is served (oracle.h). For every model and encoding: alone, after the
 * header, after the header and other text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "llama/support/subject.h"

enum { HEADER = 24, QUESTION = 40, FACTS = 5, COMPANY = 45 };

typedef enum encoding { ALONE, AFTER_HEADER, AFTER_COMPANY, ENCODINGS } encoding;
static const char *const encoding_names[ENCODINGS] = {
    "facts alone", "facts after the header", "facts after header and company",
};

typedef struct stitch {
    kit_ids header, question, fact[FACTS], context[FACTS];
    int32_t mixed[FACTS][HEADER + COMPANY]; /* header, then company that stands nowhere in the plan */
} stitch;

static void lay_out(const subject *s, encoding how, stitch *t)
{
    static const uint32_t lengths[FACTS] = { 31, 9, 17, 26, 12 };
    uint32_t at = HEADER;

    t->header = kit_cut(s->all, 0, HEADER);
    for (uint32_t i = 0; i < FACTS; at += lengths[i++]) {
        t->fact[i] = kit_cut(s->all, at, lengths[i]);
        memcpy(t->mixed[i], t->header.p, HEADER * sizeof(int32_t));
        memcpy(t->mixed[i] + HEADER, s->ids + 400 + i * COMPANY, COMPANY * sizeof(int32_t));
        t->context[i] = (kit_ids){ t->mixed[i], how == ALONE ? 0 : how == AFTER_HEADER ? HEADER : HEADER + COMPANY };
    }
    t->question = kit_cut(s->all, at, QUESTION);
}

static void plan_of(subject *s, const stitch *t, bool stored, kit_plan *p)
{
    kit_rows rows;

    kit_plan_begin(p, 0);
    kit_plan_add(p, IS_ROLE_HEADER, t->header, NULL);
    for (uint32_t i = 0; i < FACTS; i++) {
        is_segment *segment = NULL;
        if (stored) {
            kit_capture(s->e, t->context[i], t->fact[i], 0, &rows);
            segment = kit_segment(s->e, s->rope, &rows, 0, t->fact[i], IS_CODEC_F16, KIT_GOOD, 0);
            kit_rows_free(&rows);
        }
        kit_plan_add(p, IS_ROLE_FACT, t->fact[i], segment);
    }
    kit_plan_add(p, IS_ROLE_QUESTION, t->question, NULL);
}

static void oracle_of(subject *s, const stitch *t, float *out)
{
    oracle_span spans[FACTS];

    for (uint32_t i = 0; i < FACTS; i++)
        spans[i] = (oracle_span){ t->context[i].p, t->context[i].n, t->fact[i].p, t->fact[i].n };
    assert_true(oracle_stitch(s->o, t->header.p, t->header.n, spans, FACTS, t->question.p, t->question.n, out));
}

static void stitching(subject *s)
{
    float *want = is_malloc(s->n_vocab * sizeof *want), *got = is_malloc(s->n_vocab * sizeof *got);
    float *text = is_malloc(s->n_vocab * sizeof *text);
    is_run_opts opts = { .no_prefix_cache = true };
    stitch t;
    kit_plan p, twin;

    assert_true(want && got && text);
    lay_out(s, ALONE, &t);
    plan_of(s, &t, false, &twin); /* the same tokens whatever the encoding */
    kit_logits(s->e, &twin.plan, &opts, text, NULL);
    floor_n n = subject_floor(s, &twin.plan, text);
    for (int how = ALONE; how < ENCODINGS; how++) {
        lay_out(s, (encoding)how, &t);
        plan_of(s, &t, true, &p);
        kit_logits(s->e, &p.plan, &opts, got, NULL);
        oracle_of(s, &t, want);
        subject_same(s, encoding_names[how], want, got, n);
        subject_differs(s, "... against joint prefill", text, got, n); /* stitched is not joint: the test can tell */
        opts.batch = opts.batch ? 0 : 13;
        kit_plan_unref(&p);
    }
    is_free(want);
    is_free(got);
    is_free(text);
}

static void test_stitching(void **state)
{
    subject_each(stitching);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_stitching) };

    print_message("weights and prompts from seed %d\n", SUBJECT_SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
