/* live.h - a memory in memory beside the store: what every fact says now, and since when it no longer says what it said before.
 * Threads and processes share it. The mock engine's witness (mock_witness.c) is then asked what the engine computed on, and when:
 * nothing that had ended, nothing of another partition.
 *
 * A fact's text carries two words: a tag "zq00012v3p1" (fact 12, version 3, partition 1), by which a text is recognised wherever it
 * turns up, and a search word "kx00012", by which a question finds the fact without carrying the tag. */
#ifndef TESTS_LIVE_H
#define TESTS_LIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "inferscale.h"

enum { LIVE_PARTITIONS = 3, LIVE_FACTS = 8192, LIVE_VERSIONS = 30, LIVE_TEXT = 512 };

typedef struct live_fact {
    atomic_llong id;                             /* 0: not remembered yet */
    atomic_int version;                          /* the last one acknowledged */
    atomic_int busy;                             /* a call that adds, changes or forgets it is under way */
    atomic_int forgotten;
    _Atomic double ended[LIVE_VERSIONS + 1];     /* when the call returned that ended version v (is_now_ms); 0 = it holds */
} live_fact;

typedef struct live {
    live_fact facts[LIVE_FACTS];
    atomic_ulong adds, changes, forgets, asks, stale, cut, finds, chats, encodes, outranked, failures; /* what was done */
    atomic_int writers;                          /* still at work */
    unsigned long long seed;
} live;

live *live_new(unsigned long long seed);         /* shared with processes forked afterwards */
void live_free(live *l);

const inferscale_scope *live_scope(int partition);
static inline int live_partition(int n) { return n % LIVE_PARTITIONS; }
void live_text(const live *l, int n, int version, char out[LIVE_TEXT]);

/* What went wrong, counted and printed (the first ones); the tests fail at the end, when all is seen. */
void live_complain(live *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Calls on the store whose outcome is entered in the model. One thread a fact. Failures are complained about; true = it went well. */
/* E_BUSY where nothing was done: writers of other processes were faster all the time. */
bool live_is_to_try_again(inferscale_status st);
bool live_add(live *l, inferscale *is, int n);
bool live_change(live *l, inferscale *is, int n);
bool live_forget(live *l, inferscale *is, const int *n, size_t count);

/* A living fact drawn from the facts n with n % of == which, or -1. Several facts that one thread owns. */
int live_pick(live *l, unsigned long long *rng, int limit, int which, int of);

/* Asks a question about a fact of the partition, and checks the answer: no fact that had ended before, none of another partition. */
void live_ask(live *l, inferscale *is, unsigned long long *rng, int limit, unsigned max_tokens);
/* Looks for a fact that was acknowledged: it must be found in its version, unless it is changed meanwhile. */
void live_find(live *l, inferscale *is, unsigned long long *rng, int limit);
/* A conversation of a few questions. */
void live_chat(live *l, inferscale *is, unsigned long long *rng, int limit);

/* The store holds exactly what the model holds: ids, versions, texts; nothing else. limit: facts that were ever added. */
void live_check_store(live *l, inferscale *is, int limit);

typedef struct live_seen { unsigned long calls, runs, captures, tags, late_captures; } live_seen;
/* Reads the witness's file: no start, extend, sample or feed ended on a text that had ended; no run and no capture mixed partitions.
 * Returns what it saw, so that a test can tell that it saw enough. */
live_seen live_check_witness(live *l, const char *path);

/* Where plug-ins are (the folder above the test program's), and a store's handle with the mock engine; model may be NULL. */
const char *live_plugins(void);
inferscale *live_open(const char *home, const char *model);

#endif
