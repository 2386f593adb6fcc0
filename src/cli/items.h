/* items.h - facts and turns as JSON objects and as table rows, the same in every verb. */
#ifndef IS_CLI_ITEMS_H
#define IS_CLI_ITEMS_H

#include "cli/cli.h"

/* One item; with_score adds score, score_lexical, score_dense. */
json_t *cli_item_json(const inferscale_item *item, bool with_score);
json_t *cli_items_json(const inferscale_list *list, bool with_score);
/* A table: id, (score), when, kind, KV, text cut to the terminal. */
void cli_items_print(const inferscale_list *list, bool with_score);

#endif
