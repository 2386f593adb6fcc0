/* turns.h - who computes next on an embedder that does one thing at a time.
 *
 * Questions go in the order in which they came. Background work is not given up for them, and they do not wait for much of it:
 *   - a question waits behind at most one background text, from its first moment to its turn;
 *   - background work that waits gets a turn of at least one text whenever the first question in the line has not waited
 *     behind a background text yet. So it goes on however many questions there are.
 * While no question is about, a turn of background work may be several texts long. A question that comes then sets the turn's
 * flag; the turn ends at once, and what it has not finished is computed later, text by text.
 *
 * The lock is held while the line is changed only, never while something is computed. */
#ifndef IS_EMBED_TURNS_H
#define IS_EMBED_TURNS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct is_turns {
    pthread_mutex_t lock;           /* of what follows */
    pthread_cond_t changed;
    bool busy, background;          /* somebody computes; it is background work */
    struct is_turns_waiter *first;  /* questions that wait, in order */
    uint32_t n_questions;           /* that wait or compute */
    uint32_t n_background;          /* background callers that wait */
    size_t calm;                    /* background texts since a question last came */
    int yield;                      /* of a long turn of background work: 1 = end it; read atomically */
} is_turns;

void is_turns_init(is_turns *t);
void is_turns_destroy(is_turns *t);  /* nobody may wait or compute */

/* Waits for a question's turn. False: *cancel was set first (it may be NULL), and there is no turn to end. */
bool is_turns_question(is_turns *t, const volatile int *cancel);
/* Waits for a turn of background work on `left` > 0 texts. Returns how many texts it may be, 0 = *cancel was set first. A turn of
 * more than one text is to be ended early when is_turns_flag says so. */
size_t is_turns_background(is_turns *t, size_t left, const volatile int *cancel);
const volatile int *is_turns_flag(const is_turns *t);
/* The turn is over; n = the background texts that it finished (0 for a question's). */
void is_turns_end(is_turns *t, size_t n);
/* Questions that wait or compute now, and background callers that wait. */
void is_turns_line(is_turns *t, uint32_t *n_questions, uint32_t *n_background);

#endif
