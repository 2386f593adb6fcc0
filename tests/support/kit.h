/* kit.h - what tests of engines share: capture into segments, right or deliberately wrong, and plans from lists of parts.
 *
 * Everything here asserts: a call that should work and does not fails the test with its sentence. */
#ifndef TESTS_SUPPORT_KIT_H
#define TESTS_SUPPORT_KIT_H

#include "engine/engine.h"
#include "kv/rope.h"

/* The call must succeed; its sentence is printed if it does not. */
#define KIT_OK(expr) kit_ok((expr), #expr, __FILE__, __LINE__)
void kit_ok(is_status st, const char *what, const char *file, int line);
/* The call must fail with this status and a sentence. */
#define KIT_FAILS(status, expr) kit_fails((status), (expr), #expr, __FILE__, __LINE__)
void kit_fails(is_status want, is_status got, const char *what, const char *file, int line);

typedef struct kit_ids { const int32_t *p; uint32_t n; } kit_ids;
kit_ids kit_cut(kit_ids all, uint32_t begin, uint32_t n);
/* n ids, uniform in [low, high), from a running seed. Freed with is_free. */
int32_t *kit_random_ids(uint64_t *seed, uint32_t n, int32_t low, int32_t high);

/* Rows of a span in all planes, as an engine gives them: keys rotated at pos. */
typedef struct kit_rows {
    const is_geometry *g;    /* borrowed from the engine */
    uint32_t n, pos;
    float **rows;            /* [n_planes][n * width] */
} kit_rows;
void kit_capture(is_engine *e, kit_ids context, kit_ids span, uint32_t pos0, kit_rows *out);
void kit_rows_free(kit_rows *r);

/* How a segment is spoilt, for negative controls. serve_pos: where its first token will stand. */
typedef enum kit_harm {
    KIT_GOOD, KIT_NOT_ROTATED, KIT_POSITION_PLUS_1, KIT_LAYERS_SWAPPED, KIT_OTHER_PAIRING, KIT_HARMS
} kit_harm;
const char *kit_harm_name(kit_harm h);

/* A segment of tokens [begin, begin + ids.n) of the captured rows. */
is_segment *kit_segment(is_engine *e, const is_rope *rope, const kit_rows *r, uint32_t begin, kit_ids ids, is_codec codec,
                        kit_harm harm, uint32_t serve_pos);

/* A plan that grows part by part; positions follow. */
enum { KIT_PARTS = 64 };
typedef struct kit_plan { is_plan plan; is_part parts[KIT_PARTS]; } kit_plan;
void kit_plan_begin(kit_plan *p, uint32_t pos);
void kit_plan_add(kit_plan *p, is_role role, kit_ids ids, is_segment *segment /* NULL = computed */);
/* The text twin of p. */
void kit_plan_twin(const kit_plan *p, kit_plan *twin);
void kit_plan_unref(kit_plan *p);      /* drops the segments' references */

/* Runs the plan and copies the logits of its last token to out[n_vocab]; *stats may be NULL. */
void kit_logits(is_engine *e, const is_plan *plan, const is_run_opts *opts, float *out, is_run_stats *stats);

#endif
