/* batch.h - continuous batching: the runs of many threads share the engine's steps.
 *
 * One thread steps the engine. A step is one decode for several lanes: the next token of every run that generates, and pieces of the
 * prompts that are being computed. The rules, in the order of their rank:
 *
 *   Tokens first.    Every run that has its next token is in the next step.
 *   Bounded steps.   A step computes at most IS_STEP_TOKENS tokens (IS_ALONE_TOKENS for one run alone): so long may those who generate,
 *                    or come, have to wait.
 *   Short before     Of prompts, those with the fewest tokens left come first: a question behind injected facts is through in one step
 *   long, but none   whatever else is being computed. But a quarter of what a step has for prompts goes to the one that has been there
 *   for ever.        longest, so each is through after a bounded number of steps, however many short ones come.
 *   Seats.           n_parallel runs are seated, from the start or extension until their end. Who finds no seat waits; seats are given in
 *                    the order of arrival, but a short prompt (IS_SHORT_TOKENS) may overtake long ones: each at most IS_OVERTAKEN times.
 *                    A run whose caller lets it rest, or stays away for IS_AWAY_MS, loses its seat to one who waits; it goes on as
 *                    it likes.
 *   Together.        After a step the runs that got logits are waited for, a quarter of the step's time, IS_GATHER_MS at most, so that
 *                    they come into the next one together.
 *   Each its own.    A flag that cancels a run is looked at between steps, and within one where all its runs are cancelled. A run that
 *                    fails is undone alone. */
#ifndef IS_ENGINE_BATCH_H
#define IS_ENGINE_BATCH_H

#include "engine/engine.h"

enum {
    IS_STEP_TOKENS = 256, IS_ALONE_TOKENS = 512, IS_SHORT_TOKENS = 64, IS_OVERTAKEN = 8, IS_AWAY_MS = 200, IS_GATHER_MS = 4
};

/* First come, first served: the engine's thread, which wants its impl again at once, cannot keep a capture out. */
typedef struct is_turns is_turns;
is_status is_turns_new(is_turns **out);
void is_turns_free(is_turns *t);          /* NULL is allowed */
void is_turns_take(is_turns *t);
void is_turns_give(is_turns *t);

typedef struct is_batch is_batch;

/* turns: taken for all that is to be done ALONE; borrowed, as impl. */
is_status is_batch_new(const is_engine_vtable *v, void *impl, is_turns *turns, uint32_t n_parallel, is_batch **out);
void is_batch_free(is_batch *b);          /* ends the thread; NULL is allowed. No call may be under way */
/* Steps the run until what begin, more or token gave it is done. prompt: of begin or more. On failure what more or token gave it is
 * undone; a run that was begun is to be finished. cancel and stop may be NULL. */
is_status is_batch_do(is_batch *b, is_run *run, bool prompt, const volatile int *cancel, const volatile int *stop);
/* The caller wants no more of the run for now: its seat is another's at once, and no step waits for it. It may go on later. */
void is_batch_rest(is_batch *b, is_run *run);
/* Ends the run before the next step; returns at once. */
void is_batch_finish(is_batch *b, is_run *run);

#endif
