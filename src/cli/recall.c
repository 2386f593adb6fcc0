/* recall.c - `inferscale recall`: what is remembered that matters for a question. */
#include <stdio.h>

#include "cli/answer.h"
#include "cli/args.h"
#include "cli/items.h"
#include "cli/out.h"
#include "exchange/json.h"

/* A search by words looks at no vector: what has none is counted here. */
static void count_unembedded(inferscale *is, const inferscale_scope *scope, inferscale_list *list)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
    if (inferscale_encode_status(is, scope, &s) == INFERSCALE_OK) list->n_unembedded = (size_t)s.n_unembedded;
}

static int cmd_recall(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_scope scope;
    inferscale_recall_options o;
    inferscale_list *list = NULL;
    inferscale_status st;
    char embed[32], search[32];
    int rc;
    if (cli_n(a) != 1) return cli_usage(a, "give one query, in quotes");
    if (cli_blank(cli_at(a, 0))) return cli_usage(a, "the query is empty; say what to look for");
    cli_recall_options(a, &o);
    cli_scope(a, &scope);
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    st = o.method == INFERSCALE_LEXICAL ? INFERSCALE_OK : cli_load_embedder(a, is, &scope);
    if (st == INFERSCALE_OK) st = inferscale_recall(is, &scope, cli_at(a, 0), &o, &list);
    if (st == INFERSCALE_OK && o.method == INFERSCALE_LEXICAL) count_unembedded(is, &scope, list);
    if (st != INFERSCALE_OK) {
        rc = cli_fail_as(a, st);
    } else if (cli_wants_json(a)) {
        cli_print_json(json_pack("{s:o,s:o,s:f,s:f,s:f,s:b,s:I,s:o,s:o}", "query", cli_json_text(cli_at(a, 0)), "items",
                                 cli_items_json(list, CLI_SCORE), "embed_ms", list->embed_ms, "recall_ms", list->recall_ms,
                                 "index_ms", list->index_ms, "index_built", list->index_built,
                                 "unembedded", (json_int_t)list->n_unembedded, "fallback",
                                 cli_json_text(list->fallback ? list->fallback : ""), "fallbacks",
                                 is_json_fallbacks(list->fallbacks)));
    } else {
        cli_items_print(list, CLI_SCORE);
        cli_ms(list->embed_ms, embed);
        cli_ms(list->recall_ms, search);
        if (!cli_printed())
            list->n_unembedded = 0; /* nor that */
        else if (list->n == 0)
            fprintf(stderr, "Nothing found. `inferscale ls` shows what is remembered for this owner.\n");
        else
            fprintf(stderr, "%zu found; embedding %s, search %s\n", list->n, embed, search);
        if (list->fallback)
            fprintf(stderr, "Note: %s\n", list->fallback);
        else if (list->n_unembedded)
            fprintf(stderr, "Found by words only so far: %zu; `inferscale encode` embeds them.\n", list->n_unembedded);
    }
    inferscale_list_free(list);
    inferscale_close(is);
    return rc;
}

static const cli_option options[] = {
    { "-k", "N", "how many, 1-1000 (default: 10)" },
    { "--threads", "N", "threads of the embedder (default: physical cores)" },
    CLI_RECALL_OPTIONS,
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_recall = {
    "recall", "QUERY", "Find what matters for a question",
    "Best first. Words and meaning are both searched (fused) unless --method says otherwise. SCORE is\n"
    "0.01 to 1, also in other answers: what scores below 0.3 has probably nothing to do with the query.\n\n"
    "Examples:\n  inferscale recall \"What must Anna not eat?\" -k 5\n"
    "  inferscale recall \"trips\" --from 2024-01-01 --to 2024-06-30 --kinds both\n",
    options, CLI_STORE | CLI_SCOPE | CLI_JSON | CLI_THERE, cmd_recall,
};
