/* encode_kit.h - what the tests of the encode room share: a memory on the mock engine, whose rows tell exactly what stood before a token,
 * and the check that a fact's segment holds what it says it was computed from. Everything asserts. */
#ifndef TESTS_ENCODE_KIT_H
#define TESTS_ENCODE_KIT_H

#include "eval/lab.h"
#include "support/kit.h"
#include "support/scratch.h"

enum { FACTS = 45, TURNS = 30 };

extern unsigned long long ek_rng;
int ek_begin(void **state); /* of a group: finds the plug-ins, seeds ek_rng */

lab *ek_open(const char *model, const char *policy, const char *refine, const char *codec);
/* Facts number from ... from + n - 1, with their turns; their ids to ids[from]. */
void ek_remember(lab *l, int from, int n, int64_t *ids);
is_encoder ek_encoder(lab *l);
is_policy ek_policy(const char *text);
is_encode_job ek_encode(lab *l, const is_policy *policy, const int64_t *ids, size_t n, uint64_t ram);
/* One item; the list is freed by the caller. */
inferscale_list *ek_item(lab *l, int64_t id);
bool ek_has_row(lab *l, const is_policy *policy, int64_t id, is_segment_row *row);
size_t ek_n_rows(lab *l, const is_policy *policy, int64_t id);
/* The items that the fact's segments under the policy depend on, in id order, read past the library; returns how many. */
size_t ek_deps(lab *l, const char *policy, int64_t id, int64_t *out, size_t cap);
/* The fact's rows are those of its contexts, and the dependency table names the items of these and no others. */
void ek_check_fact(lab *l, const is_policy *policy, int64_t id);

#endif
