/* gate.h - questions first: work that can wait stands behind a gate, and a question that comes stops what has begun.
 *
 * Whoever answers a question enters for as long as it lasts. Work in the background is either run with the gate's flag as its cancel flag:
 * it ends within the few milliseconds between two looks at the flag. Or it is paced: it asks at its pauses whether it may go on, and
 * waits there while it may not, without losing what it has done. Paced work goes on when no question is open any more, or, once
 * what waits has waited for too long, in small slices while questions are open (share.h). It is dropped only for those who need
 * what it holds. Thread safe. */
#ifndef IS_BASE_GATE_H
#define IS_BASE_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/share.h"
#include "base/status.h"

typedef struct is_gate is_gate;

is_status is_gate_new(is_gate **out);   /* E_NOMEM. Nothing has a share until is_gate_rules */
void is_gate_free(is_gate *g);          /* NULL is allowed; nobody may be inside or waiting */

void is_gate_enter(is_gate *g);         /* a question begins; many may be open */
void is_gate_leave(is_gate *g);         /* one for each enter */
bool is_gate_open(is_gate *g);          /* no question is open now */
/* Waits until no question is open, the gate is closed for good, or timeout_ms have passed (< 0: for ever). True if none is open. */
bool is_gate_wait(is_gate *g, int64_t timeout_ms);
/* For good: the flag stays set, paced work is dropped, and nobody waits any more. What ends the background work of a handle that is closed. */
void is_gate_shut(is_gate *g);

/* Non-zero while questions are open; lives as long as the gate. Read it with __atomic_load_n, as cancel flags are. */
const volatile int *is_gate_flag(const is_gate *g);

/* ---- Paced work ------------------------------------------------------------------------------------------------------------ */

/* One piece of work, on its worker's stack. The caller sets the first part. */
typedef struct is_gate_work {
    bool shares;             /* it may run while questions are open, with its share; else it waits until none is */
    bool always;             /* it costs the questions here nothing: it never waits for them, and may run beside other work */
    const uint8_t *tag;      /* [IS_HASH_BYTES] whose memory it is of, as of which epoch; NULL = nobody's */
    uint64_t epoch;
    void (*take)(void *ctx); /* takes and gives back what it shares with the questions: around every pause, and begin and end */
    void (*give)(void *ctx);
    void *ctx;
    /* the gate's */
    int drop;                /* atomic, may be polled as a cancel flag: not 0 = it must end now */
    bool begun, paused, slice;
    struct is_gate_work *next;
} is_gate_work;

/* Waits until it may run. False: it was dropped before it began, and there is nothing to end. Else what it takes is taken. */
bool is_gate_work_begin(is_gate *g, is_gate_work *w);
/* Between two parts of it, often. Returns when it may go on, or w->drop is set. */
void is_gate_work_pause(is_gate *g, is_gate_work *w);
void is_gate_work_end(is_gate *g, is_gate_work *w);

/* Waits until work may begin: no question is open, or (shares) what waits has waited long enough; or until the gate is shut, or
 * timeout_ms have passed (< 0: for ever). True if it may. */
bool is_gate_work_wait(is_gate *g, bool shares, int64_t timeout_ms);

/* Nothing paced runs from now on until release; what is under way or waits to begin is dropped, and nothing runs when this
 * returns. Calls nest. */
void is_gate_hold(is_gate *g);
/* Waits until nobody holds, the gate is shut, or timeout_ms have passed (< 0: for ever). True if nobody holds. */
bool is_gate_hold_wait(is_gate *g, int64_t timeout_ms);
void is_gate_release(is_gate *g);
/* Drops work of this tag and of an older epoch, and waits until it has ended, at most wait_ms. */
void is_gate_drop_of(is_gate *g, const uint8_t tag[IS_HASH_BYTES], uint64_t epoch, uint32_t wait_ms);
/* Something else is to be done before work without a share. Such work is dropped if it is paused or
 * waits to begin; and until is_gate_idle_again, where it would pause for a question, or wait for one
 * before it begins. While no question is open it runs. */
void is_gate_drop_idle(is_gate *g);
/* That something has been seen: work without a share waits for questions again. */
void is_gate_idle_again(is_gate *g);

void is_gate_rules(is_gate *g, const is_share_rules *rules);
void is_gate_rules_of(is_gate *g, is_share_rules *out);
/* The oldest item that waits for work with a share does so since then (is_now_ms); waits false: nothing does. */
void is_gate_waits(is_gate *g, bool waits, double since_ms);

typedef struct is_gate_stats {
    double lag_ms, share;    /* now; the share that work has while questions are open */
    double open_ms, used_ms; /* time with questions open, and in slices meanwhile */
    uint64_t slices, pauses, drops;
} is_gate_stats;
void is_gate_get_stats(is_gate *g, is_gate_stats *out);

#endif
