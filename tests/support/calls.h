/* calls.h - every public call of include/inferscale.h, made so that a test can fail something inside it and see what is left.
 *
 * To add a public call: write its case in calls_write.c, calls_ask.c or calls_keep.c (what comes before it, the call, what must hold after
 * it), a row in call_cases, and run test_faults; a symbol of scripts/symbols.txt that is neither in call_cases nor in calls_cannot_fail
 * fails that test. In a case:
 *   prepare  without faults; may write to `own`, a scope that is emptied after each try. NULL = nothing.
 *   run      with the fault armed: the one call, with what it gives back checked if it succeeded and freed. Returns its status.
 *   after    without faults: what the call was to do is done, or not at all (and done if st is OK). NULL = nothing.
 * Asserts on everything that must hold. */
#ifndef TESTS_CALLS_H
#define TESTS_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "inferscale.h"

enum { CALLS_FACTS = 3 };

typedef struct calls {
    char plugins[1024], home[600], spare[600]; /* spare: a folder's name beside the store, free before each try */
    char segment[700];           /* a segment's file */
    inferscale_scope base, own;  /* base: facts and turns that must always be there; own: what a case plays with */
    int64_t facts[CALLS_FACTS], turn;
    inferscale *is, *aside;      /* aside: another handle on the store, of the case */
    inferscale_chat *chat;
    inferscale_segment *seg;
    inferscale_kv *kv;           /* of a connector: one layer, its segments in spare */
    inferscale_kv_load *load;
    char *ticket;
    int64_t ids[4];              /* of the case */
    bool cold;                   /* the next try gets a handle that has loaded nothing */
} calls;

typedef struct call_case {
    const char *symbol, *what;   /* what: "" or what is special about it */
    void (*prepare)(calls *c);
    inferscale_status (*run)(calls *c);
    void (*after)(calls *c, inferscale_status st);
} call_case;

extern const call_case call_cases[];
extern const size_t n_call_cases;
extern const char *const calls_cannot_fail[]; /* symbols that give back no status and take nothing that could fail; NULL at the end */

void calls_begin(calls *c, const char *folder, const char *plugins); /* a store with the base in it, encoded; in folder */
void calls_end(calls *c);
inferscale_status calls_open(calls *c);
/* After a try, without faults: the base is whole, and the same handle remembers, finds, encodes and answers. Empties `own`. */
void calls_expect_works(calls *c, bool thoroughly);

#endif
