/* maintain.h - looking after a bank: checking it, listing its owners and books, dropping views, measuring, copying. Nothing here
 * is on the way of a question. */
#ifndef IS_BANK_MAINTAIN_H
#define IS_BANK_MAINTAIN_H

#include "bank/bank.h"

/* ---- Owners -------------------------------------------------------------------------------------------------------------- */

typedef struct is_owner {
    is_partition p;
    int kind;            /* 1 user, 2 agent, 3 run, 4 app */
    char *tenant, *name; /* owned */
} is_owner;

/* Every partition in id order; is_owners_free. */
is_status is_bank_owners(is_bank *b, is_owner **out, size_t *n);
void is_owners_free(is_owner *owners, size_t n);
/* The scope that leads to it; strings borrowed. */
inferscale_scope is_owner_scope(const is_owner *o);
const char *is_owner_kind_name(int kind); /* "user", ... */

/* ---- Check --------------------------------------------------------------------------------------------------------------- */

/* What is wrong, one call a finding: a short kind ("dependency-missing") and a sentence. repaired: it is gone again. Called with the
 * bank's lock held; non-OK stops the check. */
typedef is_status (*is_bank_problem_fn)(void *ctx, const char *kind, const char *what, bool repaired);

/* SQLite's own integrity check and foreign keys, texts against their checksums, and the books of the views against the truth. A
 * damaged bank is a finding, not a failure. repair: rows of views that are wrong are dropped (they are made again) and indexes made
 * anew; the truth is never touched. *stale: segment names dropped on the way, doomed; the caller removes their files. */
is_status is_bank_verify(is_bank *b, bool repair, is_bank_problem_fn each, void *ctx, is_names *stale);

/* What can be told cheaply of a bank that is open: its file is at its place and answers a connection of its own. Where a statement has
 * found damage since the last time, all of it is read, to see whether that is still so. The handle's lock is hardly held. */
is_status is_bank_probe(is_bank *b);

/* ---- Books --------------------------------------------------------------------------------------------------------------- */

/* A row of the books of segments, with what it takes to judge its use. */
typedef struct is_book {
    uint8_t name[IS_HASH_BYTES], fingerprint[IS_HASH_BYTES];
    int64_t partition_id, item_id, write_time;
    int version;
    uint32_t n_tokens, n_passes;
    bool lead, pinned;
    bool lapsed;         /* the fact is expired, or was true only until now */
    char policy[32];
} is_book;

/* All rows (one partition's if partition_id is not 0), sorted by name; *out is is_free'd. */
is_status is_bank_books(is_bank *b, int64_t partition_id, is_book **out, size_t *n);
/* Do the books hold this segment right now? */
is_status is_bank_names_it(is_bank *b, int64_t partition_id, const uint8_t name[IS_HASH_BYTES], bool *named);
/* Drops every row of these names in one transaction; the names are doomed: the caller removes the files, then
 * is_bank_doomed_done. */
is_status is_bank_drop_books(is_bank *b, const is_book *const *books, size_t n);

/* The names of every segment that depends on one of these items (ids NULL: of the whole partition). is_names_free. */
is_status is_bank_dependents(is_bank *b, int64_t partition_id, const int64_t *ids, size_t n, is_names *out);

/* One view: what made it, how many rows and bytes it has in the bank. policy "" for embeddings. */
typedef struct is_view_row {
    bool is_embedding;
    uint8_t fingerprint[IS_HASH_BYTES];
    char policy[32];
    uint64_t n, bytes;   /* bytes: of embeddings; 0 for segments, whose bytes are the vault's */
} is_view_row;
is_status is_bank_views(is_bank *b, is_view_row **out, size_t *n); /* *out is is_free'd */
/* Drops an embedder's vectors, some thousand a transaction. */
is_status is_bank_drop_embeddings(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], uint64_t *n_dropped);
/* Drops the page books of a view that is dropped. */
is_status is_bank_drop_pages(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy);

/* ---- Size ---------------------------------------------------------------------------------------------------------------- */

typedef struct is_usage_row {
    int64_t partition_id;
    bool is_embedding;       /* else text: facts with all versions, and turns */
    uint8_t fingerprint[IS_HASH_BYTES]; /* embeddings */
    uint64_t n, bytes;
} is_usage_row;
is_status is_bank_usage(is_bank *b, is_usage_row **out, size_t *n); /* *out is is_free'd */
/* Pages of the database that hold nothing, in bytes. */
is_status is_bank_free_bytes(is_bank *b, uint64_t *out);
/* Gives free pages back to the filesystem, some hundred a transaction. full: also makes the file anew without gaps, which holds
 * writers up for its whole time, and needs as much space again. Banks made before this existed only shrink so. */
is_status is_bank_compact(is_bank *b, bool full, uint64_t *freed);
is_status is_bank_reindex(is_bank *b); /* SQLite's indexes, made anew */

/* ---- Copy ---------------------------------------------------------------------------------------------------------------- */

/* Copies the bank at `from`, as it is at one instant, to a new file `to` (0600, one file, no log), a few pages at a time, so that
 * writers go on meanwhile. progress may be NULL. */
is_status is_bank_copy(const char *from, const char *to, inferscale_progress_fn progress, void *ctx);

#endif
