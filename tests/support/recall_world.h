/* recall_world.h - a random memory that the test knows by heart, what plain brute force recalls from it, and short ways to ask. Everything
 * asserts. */
#ifndef TESTS_RECALL_WORLD_H
#define TESTS_RECALL_WORLD_H

#include <cmocka.h>

#include "embed/embed.h"
#include "recall/recall.h"
#include "support/bank_kit.h"

enum { ITEMS = 400, DIM = 24, WORDS = 40, MAX_LEN = 14 };

typedef struct thing {
    int64_t id, time;
    int kind, n_words, words[MAX_LEN], agent, colour, expired;
    bool has_vector;
    int8_t q[DIM];
    float scale;
} thing;

typedef struct world {
    thing t[ITEMS];
    int n;
    unsigned long long seed;
} world;

world *rw_make(bank_kit *k, int n, const char *name); /* is_free */
/* Adds one random item to the bank (and its vector, three times of four). */
void rw_add_thing(bank_kit *k, world *w, bool vectors);
void rw_random_vector(unsigned long long *seed, float *v);

typedef struct ask {
    int words[3], n_words;
    float vec[DIM];
    char text[64];
} ask;

void rw_random_ask(world *w, ask *a);
is_status rw_ask(is_recall *r, const is_partition *p, const ask *a, const inferscale_recall_options *o, const inferscale_scope *scope,
                 is_hit **hits, size_t *n, size_t *n_unembedded);

typedef bool (*keep_fn)(const thing *t); /* NULL keeps all */
/* The hits are those of brute force over what `keep` keeps, in its order, with its scores. */
void rw_compare(const world *w, const ask *a, const inferscale_recall_options *o, keep_fn keep, const is_hit *hits, size_t n);
/* How many items are found by the words of the text, and the best one's id (0 = none). */
size_t rw_search_words(is_recall *r, const is_partition *p, const char *text, inferscale_recall_options o, int64_t *first);

#endif
