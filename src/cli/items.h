/* items.h - facts and turns as JSON objects and as table rows, the same in every verb. */
#ifndef IS_CLI_ITEMS_H
#define IS_CLI_ITEMS_H

#include "cli/cli.h"
#include "exchange/json.h"

/* Scores come from a search; whether a fact's KV is stored is known only when a model is loaded. */
enum { CLI_SCORE = IS_ITEM_SCORE, CLI_KV = IS_ITEM_KV };

/* One item; CLI_SCORE adds score, score_lexical, score_dense, score_fused, CLI_KV kv_ready of facts. */
json_t *cli_item_json(const inferscale_item *item, unsigned with);
json_t *cli_items_json(const inferscale_list *list, unsigned with);
/* A table: id, (score), when, (kind if there are both), (KV), text cut to the terminal. */
void cli_items_print(const inferscale_list *list, unsigned with);

/* What a verb that takes several ids says of those that are not in the owner's memory: a sentence on stderr; with --json members
 * "unknown_ids" and "error" (E_NOTFOUND) in *report, which is made if it is NULL. Returns CLI_FAILED. The others are done. */
int cli_unknown_ids(const cli_args *a, const int64_t *ids, size_t n, json_t **report);

#endif
