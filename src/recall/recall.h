/* recall.h - question to the facts that matter: exact dense search + BM25, fused. One index a partition, its own statistics.
 *
 * Dense: exact int8 scan (scan.h). Lexical: BM25 over Snowball stems without stop words; a turn's key is its date, the turn
 * before it and itself; a fact's is its date and text. Fusion: candidates = the top 100 (or k, if more) of each side, the TRUE
 * scores of both for every candidate, z-scored over the candidates, summed 1:1. */
#ifndef IS_RECALL_RECALL_H
#define IS_RECALL_RECALL_H

#include "bank/bank.h"
#include "embed/calibrate.h"

typedef struct is_recall is_recall; /* a cache of partition indexes over one bank; thread safe */

is_status is_recall_new(is_bank *bank, is_recall **out);
void is_recall_free(is_recall *r);

typedef struct is_query {
    const char *text;
    const float *vec;                          /* [dim] unit length; NULL = lexical only */
    uint32_t dim;
    const uint8_t *fingerprint;                /* of the embedder that made vec */
    const is_calibration *calibration;         /* of that embedder; NULL = not known: scores go by words alone */
    const inferscale_scope *scope;             /* attribute filter (agent, run, app where given) */
    const inferscale_recall_options *options;  /* k, kinds, method, threshold, times, metadata; never NULL */
    bool pins;                                 /* pinned facts that pass the filters come first, whatever their scores */
    const is_vector *extra;                    /* [n_extra] vectors that the bank does not have (yet), of the same embedder */
    size_t n_extra;
    struct is_index_wait *wait;                /* out, added to; may be NULL */
} is_query;

/* What a search waited for until its index was there. */
typedef struct is_index_wait {
    double ms;
    bool built;                                /* the whole index was built meanwhile, by this search or another one */
} is_index_wait;

typedef struct is_hit {
    int64_t id;
    int kind, version;                         /* version: the one that was found; as_of may find older ones */
    double score;                              /* 0.01 to 1: score.h; falls in the ranking's order, but for pinned facts */
    double fused, lexical, dense;              /* fused: what it was ranked by; lexical: BM25; dense: cosine */
} is_hit;

/* Best first; *hits is is_free'd. Turns that are withdrawn and what has expired are never found. The index follows the bank's
 * revision (other processes' writes included). *n_unembedded (may be NULL) = items that pass the filters and have no vector: only
 * their words were searched. */
is_status is_recall_query(is_recall *r, const is_partition *p, const is_query *q, is_hit **hits, size_t *n,
                          size_t *n_unembedded);
/* The items that pass the query's filters and have no vector of its embedder, at most `most`: those that share words with the query
 * first, the best before the others, then the newest. *items is is_free'd; *all = how many there are. The query's vec is not used. */
is_status is_recall_missing(is_recall *r, const is_partition *p, const is_query *q, size_t most, is_dep **items, size_t *n, size_t *all);
/* What an item is embedded as: "Speaker: text" for turns, the bare text for facts. is_free'd; NULL = out of memory. */
char *is_dense_text(const inferscale_item *item);
void is_recall_forget(is_recall *r, int64_t partition_id); /* drop a partition's index from memory */

#endif
