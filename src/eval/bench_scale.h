/* bench_scale.h - does one owner's memory cost the same beside a thousand others as alone?
 *
 * Two throw-away stores: a large one with many owners, and one that holds only one of them, with the same facts and the same vectors
 * (made without a model: the mock's hashed words). What a person does is then done in both, interleaved, through the public calls, and
 * the medians are compared. The owners' facts are written in rounds, so that neighbours in time are other owners' facts, as in a server. */
#ifndef IS_EVAL_BENCH_SCALE_H
#define IS_EVAL_BENCH_SCALE_H

#include <stdint.h>

#include "base/status.h"
#include "inferscale.h"

typedef struct bench_scale_options {
    uint32_t owners;            /* 0 = 1,000 */
    uint32_t facts;             /* of each owner; 0 = 1,000; at most 10,000 */
    uint32_t kv_owners;         /* owners whose facts are encoded as well; 0 = 3. The measured one is the first of them */
    uint32_t repeats;           /* of what is quick; 0 = 101 */
    uint64_t seed;
    inferscale_options store;   /* plug-in folder and the like; home, engine and embedder are set here */
    inferscale_progress_fn on_progress; /* may be NULL */
    void *progress_ctx;
    /* Called when the large store is made, to have its memory measured (bench_scale_memory) in another process: in this one freed
     * memory hides what is taken. NULL = memory is not measured. */
    is_status (*on_home)(void *ctx, const char *home, uint64_t rss[3]);
    void *home_ctx;
} bench_scale_options;

/* Medians in milliseconds: in the large store, in the one that holds only this owner, and their quotient. */
typedef struct bench_scale_pair { double many_ms, alone_ms, ratio; } bench_scale_pair;

typedef struct bench_scale_row {
    uint32_t owners, facts, kv_owners, repeats;
    bench_scale_pair recall;        /* the index is in memory, in the large store among those of 100 owners */
    bench_scale_pair recall_words;  /* the same by words alone */
    bench_scale_pair first_recall;  /* the index is built from the bank first */
    bench_scale_pair ask;           /* plan, composing and one token of the mock: 10 facts from the vault */
    bench_scale_pair remember, update, forget; /* one fact, durably; update and forget with the KV that depends on it */
    bench_scale_pair open;          /* open and close */
    double forget_owner_ms;         /* another owner's whole memory (no KV), in the large store */
    double store_info_ms;           /* figures of the whole store: this one may grow */
    double fill_s, encode_s;        /* making the large store */
    uint64_t rss_open_bytes, rss_one_bytes, rss_many_bytes; /* see bench_scale_memory: store open; after one owner's recall; after 100 owners' */
    uint64_t bank_bytes, vault_bytes, n_files, n_folders;   /* of the large store, on disk */
} bench_scale_row;

/* Errors: E_INVALID, E_CANCELLED, E_FULL (some 1.2 KB a fact are needed in $TMPDIR), E_IO, E_NOMEM. */
is_status bench_scale(const bench_scale_options *options, bench_scale_row *row);

/* Resident bytes that opening the store in home takes in this process: [0] open, [1] after one owner's recall, [2] after 100 owners'. */
is_status bench_scale_memory(const bench_scale_options *options, const char *home, uint64_t rss[3]);

#endif
