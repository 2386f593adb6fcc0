/* calls_first.h - every public call that takes a store, to be made as the first call on a handle that has loaded nothing, and every
 * field of every options struct, each set alone.
 *
 * A new call needs a row in first_calls, a new field of an options struct one in first_options: test_first_call reads
 * scripts/symbols.txt and include/inferscale.h, and fails until they are there. */
#ifndef TESTS_CALLS_FIRST_H
#define TESTS_CALLS_FIRST_H

#include <stdbool.h>
#include <stddef.h>

#include "inferscale.h"

typedef struct first {
    const char *folder;          /* for what a call writes beside the store */
    inferscale *is;              /* open, nothing loaded */
    inferscale_scope scope;      /* of an owner with facts 1 and 2, if the store is filled */
    int64_t id;                  /* of a fact of his */
} first;

/* The call's own options, or those of the struct at hand, initialised; a row changes one field of one of them. */
typedef struct first_opts {
    inferscale_options open;
    inferscale_recall_options recall;
    inferscale_ask_options ask;
    inferscale_complete_options complete;
    inferscale_encode_options encode;
    inferscale_forget_options forget;
    inferscale_fsck_options fsck;
    inferscale_gc_options gc;
    inferscale_backup_options backup;
    inferscale_restore_options restore;
    inferscale_rebuild_options rebuild;
    bool no_messages;            /* complete: the prompt alone */
} first_opts;

typedef struct first_call {
    const char *symbol;
    const char *structs;         /* the options structs that it takes, each with a blank behind it: "ask recall " */
    inferscale_status (*run)(first *f, first_opts *o);
    bool loads_engine;           /* for what is tried with a real engine too */
} first_call;

/* One field with one value. `want`: the status of every call that takes it, on a filled store. */
typedef struct first_option {
    const char *in, *field, *value;
    inferscale_status want;
} first_option;

extern const first_call first_calls[];
extern const size_t n_first_calls;
extern const first_option first_options[];
extern const size_t n_first_options;
extern const char *const first_no_store[]; /* symbols that take no store, or only one that is being closed; NULL at the end */

void first_opts_init(first_opts *o, const char *home, const char *plugins);
void first_set(first_opts *o, size_t option); /* sets the field of first_options[option] */

#endif
