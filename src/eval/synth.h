/* synth.h - invented facts to measure speed on: no third-party text, the same bytes for the same seed on every machine. */
#ifndef IS_EVAL_SYNTH_H
#define IS_EVAL_SYNTH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SYNTH_QUESTION = 256 };

/* n different facts about invented people, some 28 tokens each as they stand in a prompt, over two years. texts[n] are to be
 * is_free'd (all NULL on failure); times[n] in order. n <= 10,000. */
is_status synth_facts(uint64_t seed, size_t n, char **texts, int64_t *times);
/* A question about two of the same people: some 28 tokens with the prompt's closing pieces around it. */
void synth_question(uint64_t seed, char out[SYNTH_QUESTION]);

#endif
