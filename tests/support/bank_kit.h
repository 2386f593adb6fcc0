/* bank_kit.h - what the bank's tests share: a bank in a folder of its own with two owners, and short ways to write to it. */
#ifndef TESTS_BANK_KIT_H
#define TESTS_BANK_KIT_H

#include "bank/bank.h"
#include "support/scratch.h"

typedef struct bank_kit {
    char *folder;
    const char *path;
    is_bank *bank;
    inferscale_scope anna, ben;
    is_partition pa, pb;
} bank_kit;

int bank_kit_setup(void **state);      /* *state = a bank_kit */
int bank_kit_teardown(void **state);
void bank_kit_reopen(bank_kit *k, bool read_only);

int64_t kit_fact(bank_kit *k, const is_partition *p, const inferscale_scope *s, const char *text); /* asserts that it is new */
int64_t kit_turn(bank_kit *k, const is_partition *p, const inferscale_scope *s, const char *conversation, const char *text);
/* A segment of the item's current version with these dependencies; its name is made of `tag`. */
is_status kit_segment_put(bank_kit *k, const is_partition *p, int64_t fact, const char *policy, int tag, const is_dep *deps, size_t n);
/* The one item with this id; the list is freed by the caller. */
inferscale_list *kit_get(bank_kit *k, const is_partition *p, int64_t id);
int kit_version(bank_kit *k, const is_partition *p, int64_t id);      /* 0 = not there */
bool kit_named(const is_names *names, int tag);
extern const uint8_t kit_model[IS_HASH_BYTES], kit_other_model[IS_HASH_BYTES];
void kit_name(int tag, uint8_t name[IS_HASH_BYTES]);
/* Are these bytes anywhere in the bank's files (database, log)? */
bool kit_on_disk(const bank_kit *k, const char *needle);

#endif
