/* forget_world.h - a store and what the test knows of it: the items that were told, the segments of the books with what their rows were
 * computed from (by the engine's witness, mock_witness.c, not by the books' own table), and the checks that hold after each change. Everything
 * asserts. */
#ifndef TESTS_FORGET_WORLD_H
#define TESTS_FORGET_WORLD_H

#include <sqlite3.h>

#include "engine/engine.h"
#include "kv/rope.h"
#include "support/captured.h"
#include "support/traces.h"

enum { ITEMS = 1200, CAPTURES = 4000, WORD = TRACES_WORD, MATES = 24, FW_CHATS = 2 };

typedef struct item {
    int64_t id;
    int kind, owner, run, version, source; /* source: item number of the turn, -1 none */
    bool alive, withdrawn, over;                        /* over: expired or superseded */
} item;

typedef struct set { int64_t *v; size_t n; } set;      /* of id * 1000 + version */

typedef struct capture { captured c; set context; } capture; /* context: its texts, and what its stored parts were computed from */

typedef struct segment {
    int64_t row, item;
    int version, lead, n_passes;
    uint8_t name[IS_HASH_BYTES];
    set from;                                           /* what its rows were computed from */
    uint64_t file_hash;
} segment;

typedef struct world {
    unsigned long long seed;
    char *home, *store, *vault, *witness;
    inferscale *is;
    inferscale_chat *chat[FW_CHATS]; /* one an owner */
    item items[ITEMS];
    int n_items;
    segment *known;
    size_t n_known;
    capture *captures;
    size_t n_captures;
    long witness_at;
    is_engine *engine;                                  /* a second one, that computes from scratch */
    is_rope *rope;
    unsigned n_forgets, n_checked, n_means, n_unchecked, n_windows, n_by_policy[16];
} world;

/* ---- forget_world.c: the model, the witness, the books --------------------------------------------------------------------- */

unsigned fw_below(world *w, unsigned n);
/* The word that stands in a version of an item and nowhere else; a text around it. */
void fw_word(const world *w, int n, int version, char out[WORD]);
void fw_text(world *w, int n, int version, char out[6000]);
/* A random item that is alive (owner -1, kind 0: any), or -1. */
int fw_pick(world *w, int owner, int kind);
int fw_item(const world *w, int64_t id); /* its number, or -1 */

bool fw_set_has(const set *s, int64_t v);
void fw_set_add(set *s, int64_t v);
void fw_set_join(set *s, const set *more);
bool fw_set_within(const set *s, const set *all);
void fw_set_free(set *s);
/* The items whose words stand in text[0..n). */
void fw_add_words(const world *w, const char *text, size_t n, set *out);

segment *fw_known_by_name(world *w, const uint8_t *name);
/* What the engine did since the last time: captures are kept for fw_learn_books, runs are checked at once. */
void fw_read_witness(world *w);
void fw_free_captures(world *w);

/* The books, read past the library. */
sqlite3 *fw_open_bank(const world *w);
sqlite3_stmt *fw_query(sqlite3 *db, const char *sql, int64_t bound);
segment *fw_read_books(const world *w, size_t *n); /* all segments in order of rows; fw_free_segments */
void fw_free_segments(segment *all, size_t n);
int64_t fw_count(const world *w, const char *sql, int64_t bound);

/* ---- forget_checks.c ------------------------------------------------------------------------------------------------------- */

/* After encoding: new rows are checked against the witness, old ones are as they were (or replaced). */
void fw_learn_books(world *w);
/* After a change: the books hold exactly the segments of before that nothing in gone was computed into. own: segments of this item stay
 * (0 = none). */
void fw_check_books(world *w, const set *gone_items, int64_t own);
/* Everything about the items that are to go, taken before; traces_free. */
traces fw_traces_of(const world *w, const int *which, size_t n);
/* everywhere: the whole store is searched, as after --prove; else the vault. */
void fw_check_forgotten(world *w, const int *which, size_t n, traces *x, bool everywhere);

#endif
