/* forget_kit.h - what the tests of change, forgetting and its proof share: a store of the mock engine and short ways to write to it. */
#ifndef TESTS_FORGET_KIT_H
#define TESTS_FORGET_KIT_H

#include <stdbool.h>
#include <stdint.h>

#include "inferscale.h"

enum { LONG_AGO = 1000000000, YESTERDAY = 1700000000, LATER = 1710000000 };
extern char *forget_home; /* the store's folder, new for each test */

int forget_setup(void **state);
int forget_teardown(void **state);
inferscale *forget_open(const char *model); /* model NULL: the default */
int64_t forget_tell_from(inferscale *is, const inferscale_scope *who, const char *text, int64_t turn);
int64_t forget_tell(inferscale *is, const char *text);
int64_t forget_add_turn(inferscale *is, const char *text);
inferscale_list *forget_recall(inferscale *is, const char *query, int kinds, uint32_t k, int64_t as_of); /* by words, of anna */
size_t forget_found(inferscale *is, const char *query, int64_t as_of);
inferscale_status forget_proving(inferscale *is, int64_t id, inferscale_forget_report *r);
bool forget_on_disk(const char *text); /* is the text in any file of the store? */

#endif
