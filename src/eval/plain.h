/* plain.h - the prompt that a usual memory stack sends, to compare with (the arm `plain`): the
 * system text, behind it the facts found as plain lines, the best first, then the question:
 *
 *   You are a helpful assistant.
 *
 *   User memories:
 *   - 8 May 2023: the best fact
 *   - the next one
 *
 * The dates are those that the text twin shows too. Unlike there, system text and facts are
 * tokenised as one text. What an engine keeps of it is what llama-server keeps in a slot: the
 * longest prefix that the prompt has in common with the slot's last one, which was another user's:
 * the system text, up to the first fact. */
#ifndef IS_EVAL_PLAIN_H
#define IS_EVAL_PLAIN_H

#include "base/buf.h"
#include "plan/profile.h"

typedef struct plain_fact {
    const char *text;
    int64_t event_time; /* 0 = no date is shown */
} plain_fact;

/* Appends the system message: system (NULL = the product's default) and facts[n], the best first;
 * without facts the system text alone. Failures as of every is_buf. */
void plain_system(is_buf *out, const char *system, const plain_fact *facts, size_t n);

/* A prompt of its own, everything COMPUTED: parts[0], of a length that a prompt of another user
 * would share, and parts[1], the rest. Where nothing is shared plan has the rest alone. Not to be
 * moved in memory: plan points into it. */
typedef struct plain_prompt {
    is_tokens tokens;
    is_part parts[2];
    is_plan plan;
    uint32_t n_shared; /* tokens of parts[0] */
} plain_prompt;

/* The prompt of a question in the engine's chat format. Freed with plain_prompt_free, also after a
 * failure. E_NOMEM, errors of the tokenizer. */
is_status plain_prompt_new(is_engine *e, const char *system, const plain_fact *facts, size_t n,
                           const char *question, plain_prompt *out);
/* Makes parts[0] the first n tokens (n <= tokens.n). */
void plain_prompt_split(plain_prompt *p, uint32_t n);
void plain_prompt_free(plain_prompt *p);

#endif
