/* subject.h - a model under test with everything the tests of injection need: the engine, its rotation tables, the oracle, a
 * prompt of the right length, and the numerical floor N of its text. */
#ifndef TESTS_LLAMA_SUBJECT_H
#define TESTS_LLAMA_SUBJECT_H

#include "llama/support/oracle.h"
#include "llama/support/tiny_models.h"
#include "support/kit.h"

enum { SUBJECT_CTX = 2048, SUBJECT_SEED = 20260 };

/* KL (nats) that rounding keys and values to 16 bits twice, where the engine does it once, may make where the arithmetic does
 * not depend on the batching (N = 0); and the difference of logits that goes with it. */
#define SUBJECT_KL_FLOOR 1e-5
#define SUBJECT_DIFF_FLOOR 0.02

typedef struct subject {
    const char *name;
    const tiny_model *tiny;  /* NULL = SmolLM2 */
    char *path;
    bool fa;
    bool noisy;              /* quantised arithmetic: rounding of 1 in 10^4 grows to a KL of thousandths */
    is_engine *e;
    is_rope *rope;
    oracle *o, *other;       /* with the same flash attention as the engine, and with the other */
    uint32_t n_vocab, window;
    int32_t *ids;            /* [SUBJECT_CTX] a prompt to cut parts from */
    kit_ids all;
} subject;

/* Opens a model by name: "smollm2", "smollm2-f16" (the same weights without quantised arithmetic) or one of tiny_models, with
 * the plug-in "llama" ($INFERSCALE_PLUGINS says where it is). */
void subject_open(subject *s, const char *name, bool flash_attention, uint32_t n_ctx /* <= SUBJECT_CTX */);
void subject_close(subject *s);

typedef struct floor_n { double kl, diff; } floor_n;

/* N: the same text in other batchings, against `text` (its logits in one batch): through the engine, and by the oracle with the
 * other attention kernel, since without flash attention one thread computes the same whatever the batching, and quantised
 * arithmetic would have a floor of nothing. At least the floors above. */
floor_n subject_floor(subject *s, const is_plan *twin, const float *text);
/* The same, but only with the other kernel's two batchings where the model takes its time: a floor that is at most as high. */
floor_n subject_floor_quick(subject *s, const is_plan *twin, const float *text);

/* got against want: KL <= 3 N, and the same best token unless want's lead is under N's largest difference. Prints one
 * line; what is wrong is counted, and fails the test at subject_verdict. */
void subject_same(const subject *s, const char *what, const float *want, const float *got, floor_n n);
/* For rows that lost precision when they were stored: KL <= 0.003, or half of what subject_same allows where that is more. */
void subject_close_to(const subject *s, const char *what, const float *want, const float *got, floor_n n);
/* got must be told from want: KL > 20 N. Only printed if the model is noisy: its twin without quantised arithmetic decides. */
void subject_differs(const subject *s, const char *what, const float *want, const float *got, floor_n n);

/* Fails the test if any comparison since the last call went wrong. */
void subject_verdict(void);

/* Every model that can be injected, flash attention off and on (which also decides how values lie in the cache). */
void subject_each(void (*test)(subject *s));

#endif
