/* complete_kit.h - a store in which two owners have facts about topics, and conversations about them that are sent whole each time. */
#ifndef TESTS_COMPLETE_KIT_H
#define TESTS_COMPLETE_KIT_H

#include <stdbool.h>
#include <stdint.h>

#include "inferscale.h"

enum { TURNS = 6, FACTS = 12 };

extern const char *const topics[FACTS];

typedef struct store { char *home; inferscale *is; int64_t ids[FACTS]; char model[600]; } store;

/* A conversation: question i is about topic i. */
typedef struct talk {
    inferscale_message m[2 * TURNS + 2];
    char text[2 * TURNS + 2][400];
    size_t n;
} talk;

void remember_topics(inferscale *is, const inferscale_scope *who, int64_t *ids);
void store_begin(store *s, const char *options);
void store_restart(store *s);
void store_end(store *s);
void say(talk *t, const char *role, const char *text);
void ask_about(talk *t, int topic);
inferscale_complete_options options(void);
inferscale_answer *complete(inferscale *is, const inferscale_scope *who, const talk *t, const inferscale_complete_options *o);
void tell(inferscale *is, const inferscale_scope *who, talk *t, int first, int n, const inferscale_complete_options *o,
                 char answers[][400]);
bool uses(const inferscale_answer *a, int64_t id);
void forget_topic(store *s, int topic);
uint32_t resident_facts(const inferscale_answer *a);

#endif
