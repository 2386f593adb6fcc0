/* gate.h - questions first: work that can wait stands behind a gate, and a question that comes stops what has begun.
 *
 * Whoever answers a question enters for as long as it lasts. Background work is run with the gate's flag as its cancel flag: it ends
 * within the few milliseconds between two looks at the flag, and waits until no question is open any more. Thread safe. */
#ifndef IS_BASE_GATE_H
#define IS_BASE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct is_gate is_gate;

is_status is_gate_new(is_gate **out);   /* E_NOMEM */
void is_gate_free(is_gate *g);          /* NULL is allowed; nobody may be inside or waiting */

void is_gate_enter(is_gate *g);         /* a question begins; many may be open */
void is_gate_leave(is_gate *g);         /* one for each enter */
bool is_gate_open(is_gate *g);          /* no question is open now */
/* Waits until no question is open, the gate is closed for good, or timeout_ms have passed (< 0: for ever). True if none is open. */
bool is_gate_wait(is_gate *g, int64_t timeout_ms);
/* For good: the flag stays set and nobody waits any more. What ends the background work of a handle that is closed. */
void is_gate_shut(is_gate *g);

/* Non-zero while background work must stop; lives as long as the gate. Read it with __atomic_load_n, as cancel flags are. */
const volatile int *is_gate_flag(const is_gate *g);

#endif
