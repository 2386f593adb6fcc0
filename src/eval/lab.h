/* lab.h - a throw-away store for experiments: a handle on a new folder under $TMPDIR, removed when closed, so that measuring
 * never touches anyone's memory. What is measured is the product's own code on it. With engine vllm the store is the one that the upstream's
 * connector reads, and what is measured is a user of its own in it, forgotten at the end. */
#ifndef IS_EVAL_LAB_H
#define IS_EVAL_LAB_H

#include "api/handle.h"
#include "eval/locomo.h"

typedef struct lab {
    inferscale *is;
    char *home;
    bool shared;              /* the home is that of an upstream's connector: it stays, the user's memory is forgotten */
    char *user;
    inferscale_scope scope;   /* whose memory the experiment fills; .user = user */
    is_partition partition;   /* refreshed by the functions below */
} lab;

/* options->home is ignored, but with engine vllm. *out is to be closed, also by the caller's error path; NULL on failure. */
is_status lab_open(const inferscale_options *options, const char *user, lab **out);
void lab_close(lab *l);       /* removes the folder; NULL is allowed */

/* From now on the memory of another user (a partition of its own). */
is_status lab_use(lab *l, const char *user);

/* Adds facts; ids[n] (may be NULL) receives their ids (of a text given twice, the same). */
is_status lab_remember(lab *l, const inferscale_fact *facts, size_t n, int64_t *ids);
/* Adds a conversation: its turns, and its observations as facts that cite their first turn. fact_ids[n_observations]. */
is_status lab_remember_locomo(lab *l, const locomo_conversation *c, int64_t *fact_ids);

/* Tokens of facts and question in the layout of the lab's profile. */
typedef struct lab_fact {
    int64_t id;
    int version;
    is_tokens tokens;
} lab_fact;
/* The facts of ids[n], in that order; out[n] is filled and to be freed with lab_facts_free. E_NOTFOUND if one is not there. */
is_status lab_facts(lab *l, const int64_t *ids, size_t n, lab_fact *out);
void lab_facts_free(lab_fact *facts, size_t n);   /* the tokens, not the array */

#endif
