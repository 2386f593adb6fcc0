/* bank.h - what is remembered: the truth, in SQLite (WAL, synchronous=FULL, secure_delete, foreign keys).
 *
 * Everything else (embeddings, recall index, vault) is a view that can be made again from here; the bank also keeps the books
 * of views: which embeddings and segments exist, and what each segment depends on. One bank handle is thread safe (one lock);
 * many processes may open one bank. An acknowledged write survives kill -9 and power loss.
 *
 * application_id marks our files; user_version is the schema's version; older ones are migrated when opened for writing,
 * newer ones refused (E_FOREIGN). */
#ifndef IS_BANK_BANK_H
#define IS_BANK_BANK_H

#include <stdbool.h>

#include "base/hash.h"
#include "base/status.h"

typedef struct is_bank is_bank;

is_status is_bank_open(const char *path, bool read_only, is_bank **out); /* creates the file (0600) unless read_only */
/* The same where there must be one already: nothing is created. *lost: the file is missing, empty, no database, or has no tables
 * (E_CORRUPT, E_FOREIGN); it is left as it is, and so is its log. */
is_status is_bank_open_existing(const char *path, bool read_only, bool *lost, is_bank **out);
void is_bank_close(is_bank *b);
const char *is_bank_path(const is_bank *b);
bool is_bank_frozen(const is_bank *b); /* opened for reading where SQLite can make no file: it does not see what is written later */
int is_bank_schema_version(is_bank *b);
is_status is_bank_check(is_bank *b, bool *ok);     /* PRAGMA quick_check */

/* ---- Partitions ---------------------------------------------------------------------------------------------------------- */

/* (tenant, owner kind, owner): the unit of isolation. Every other call takes it; each SQL statement is keyed by id. */
typedef struct is_partition {
    int64_t id;
    uint8_t key[IS_KEY_BYTES];   /* secret; names segments; made at random with the partition */
    int64_t epoch;               /* raised by update and forget: what was read before is stale */
    int64_t revision;            /* raised by every write: index caches follow it */
} is_partition;

/* The scope's partition. create = false: E_NOTFOUND if it does not exist. E_INVALID without any owner, or with bytes that are
 * not UTF-8, or names over INFERSCALE_NAME_MAX bytes. */
is_status is_bank_partition(is_bank *b, const inferscale_scope *scope, bool create, is_partition *out);
is_status is_bank_partition_refresh(is_bank *b, is_partition *p); /* reads epoch and revision again */

/* ---- Writing (each call is one durable transaction) ---------------------------------------------------------------------- */

/* Names of segments that a write made invalid: the caller removes the files. */
typedef struct is_names {
    size_t n;
    uint8_t (*names)[IS_HASH_BYTES];
    size_t n_others; /* of a change: other facts that lost segments, whose context had held it */
} is_names;
void is_names_free(is_names *n);
is_status is_names_add(is_names *n, const void *name); /* a copy; E_NOMEM */

is_status is_bank_add_facts(is_bank *b, const is_partition *p, const inferscale_scope *scope,
                            const inferscale_fact *facts, size_t n,
                            inferscale_event *events /* may be NULL */);
/* As is_bank_add_facts. A known text without a date takes one that is given, as a new version.
 * *changed = that happened: the epoch is raised. *stale = what was made of such facts (may be NULL:
 * the names stay entered as doomed, for the next opening). */
is_status is_bank_remember(is_bank *b, const is_partition *p, const inferscale_scope *scope,
                           const inferscale_fact *facts, size_t n, inferscale_event *events,
                           bool *changed, is_names *stale);
is_status is_bank_add_turns(is_bank *b, const is_partition *p, const inferscale_scope *scope,
                            const inferscale_turn *turns, size_t n, int64_t *ids /* may be NULL */);

/* A new version (metadata NULL keeps it; the same text only changes the other fields). Drops the old version's embedding and the
 * rows of every segment that depends on it (*stale, may be NULL); raises the epoch. E_NOTFOUND outside the partition. */
is_status is_bank_update_fact(is_bank *b, const is_partition *p, int64_t id, const inferscale_fact *fact, is_names *stale);

/* A fact of its own that takes the place of fact `id`: the old one's validity ends where the new one's begins, and it leads to the
 * new one. *stale as above, without the old fact's own segments: they serve questions about its time. E_NOTFOUND, E_INVALID. */
is_status is_bank_supersede(is_bank *b, const is_partition *p, const inferscale_scope *scope, int64_t id,
                            const inferscale_fact *fact, int64_t *new_id, is_names *stale);
/* E_NOTFOUND (no fact), E_FULL (INFERSCALE_PINNED_MAX others are pinned). is_bank_pinned: the ids, in order; *ids is is_free'd. */
is_status is_bank_pin(is_bank *b, const is_partition *p, int64_t id, bool pinned);
is_status is_bank_pinned(is_bank *b, const is_partition *p, int64_t **ids, size_t *n);

/* Deletes items (facts with all versions, turns), their embeddings, their segments' rows, and the rows of every segment that
 * depends on them; raises the epoch. *stale = all those segments. filter (may be NULL): only rows with the scope's agent, run
 * and app attributes where given. ids NULL = all items. */
is_status is_bank_forget(is_bank *b, const is_partition *p, const int64_t *ids, size_t n, const inferscale_scope *filter,
                         size_t *n_deleted, is_names *stale);

/* The same with all there is to say. A forgotten fact's text (every version's) leaves a tombstone, and the turns that it came from
 * are withdrawn: they stay in lists and history, and are in no index, context or extraction any more. Unlike is_bank_forget it does
 * not cut the log: is_bank_cut_log does. each (may be NULL): the bytes that are about to go, called in the transaction. */
enum { IS_GONE_TEXT = 1, IS_GONE_VECTOR = 2 };
typedef struct is_closure {
    const int64_t *ids;      /* NULL = all that pass the filter */
    size_t n;
    const inferscale_scope *filter; /* agent, run, app where given; NULL = none */
    bool expired;            /* of those only facts whose time is over */
    bool with_turns;         /* facts take their source turns with them */
    bool with_facts;         /* turns take the facts with them that came from them */
    is_status (*each)(void *ctx, int kind, const void *bytes, size_t n);
    void *ctx;
    size_t n_deleted, n_withdrawn; /* out */
    size_t n_reencode;       /* out: facts that stay and lost segments */
    int64_t *unknown;        /* room for n ids, or NULL: receives those of `ids` that the partition and the filter do not have */
    size_t n_unknown;        /* out: how many they are; an id that was given twice counts twice */
    is_names stale;          /* out: is_names_free */
} is_closure;
is_status is_bank_forget_closure(is_bank *b, const is_partition *p, is_closure *c);
/* Copies the write-ahead log into the database, overwrites it with zeros and cuts it to nothing: it holds older copies of pages.
 * E_BUSY if readers or writers still used it after wait_ms. */
is_status is_bank_cut_log(is_bank *b, uint32_t wait_ms);
/* Frees the pages that SQLite keeps in memory for every bank of this process: call it after a
 * forgetting. A bank in use drops its pages when its call ends. Waits for no bank. */
void is_bank_drop_caches(void);

/* Was a fact with this text, but for case, spacing and signs, forgotten? Then it is not to be extracted again by itself. Telling it
 * (is_bank_add_facts) is allowed, is said in the event, and lifts the mark. */
is_status is_bank_is_tombstoned(is_bank *b, const is_partition *p, const char *text, bool *forgotten);
char *is_bank_normalised(const char *text); /* what is compared: lower case, words, one space; is_free; NULL = out of memory */

/* The names in *stale are also kept in the bank, written in the same transaction, so that a crash before their files are gone
 * does not leave KV of forgotten text behind: whoever opens the store removes the files that are still named here, and says so.
 * A name that is entered again as a segment is taken off. *out is is_names_free'd. */
is_status is_bank_doomed(is_bank *b, is_names *out);
is_status is_bank_doomed_done(is_bank *b, const is_names *names); /* their files are gone */
/* For the opening of a store: remove() the files of doomed names, a few hundred at a time, each time in a transaction that takes the
 * names off. A name is also doomed while a living process writes its file, so names of partitions whose writers hold a lease stay;
 * and as such a process dooms a name before it writes the file, no file that is removed here is a new one. *n_removed counts. */
typedef is_status is_doomed_remove_fn(void *ctx, const is_names *names);
is_status is_bank_sweep_doomed(is_bank *b, is_doomed_remove_fn *remove, void *ctx, size_t *n_removed);
/* Call before a segment's file is written: until is_bank_put_segment takes the name off, the file counts as one that must go, so
 * that a crash in between leaves nothing that the books do not know: after a power loss too, so it waits for the disk. */
is_status is_bank_doom(is_bank *b, const is_partition *p, const uint8_t name[IS_HASH_BYTES]);

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

/* Lists are made of inferscale_item (text etc. owned by the list). kinds: INFERSCALE_FACTS | INFERSCALE_TURNS. */
is_status is_bank_list(is_bank *b, const is_partition *p, const inferscale_scope *filter, int kinds, int64_t after_id, size_t limit,
                       inferscale_list **out);
/* The current versions of these ids, in the order given; ids not in the partition are left out. */
is_status is_bank_get(is_bank *b, const is_partition *p, const int64_t *ids, size_t n, inferscale_list **out);
is_status is_bank_history(is_bank *b, const is_partition *p, int64_t id, inferscale_list **out); /* all versions, oldest first */
/* Whose an item is, whoever asks: the one reading call that takes no partition. */
is_status is_bank_whose(is_bank *b, int64_t id, inferscale_owner *out);
/* Exactly these versions, in the order given; those that are not there are left out. Turns have version 1. */
typedef struct is_dep { int64_t item_id; int version; } is_dep;
is_status is_bank_get_versions(is_bank *b, const is_partition *p, const is_dep *versions, size_t n, inferscale_list **out);
/* May an answer go on that holds these fact versions and segments? false if one was forgotten, changed, superseded or has expired,
 * or if a segment is not in the books any more (something in its context went). as_of: the time asked about; 0 = now. */
is_status is_bank_still_holds(is_bank *b, const is_partition *p, const is_dep *facts, size_t n, const is_names *segments,
                              int64_t as_of, bool *holds);

/* The w turns before turn `id` in its conversation (not itself; withdrawn ones are passed over), oldest first. */
is_status is_bank_turns_before(is_bank *b, const is_partition *p, int64_t turn_id, size_t w, inferscale_list **out);
/* The w facts before fact `id` in id order that hold now (not itself; expired and superseded ones are passed over), oldest first. */
is_status is_bank_facts_before(is_bank *b, const is_partition *p, int64_t fact_id, size_t w, inferscale_list **out);

/* For the recall index: every item that is not withdrawn with id > after_id in id order; prev = the turn before it in its conversation ("" texts for
 * facts and first turns). Strings live during the call of each(). each() returning non-OK stops. The bank's lock is held. */
typedef is_status (*is_bank_each_fn)(void *ctx, const inferscale_item *item, const char *prev_speaker, const char *prev_text);
is_status is_bank_each(is_bank *b, const is_partition *p, int64_t after_id, is_bank_each_fn each, void *ctx);

/* The same over the facts' versions that were valid at a time, and all turns. is_bank_differs_at: the facts, in id order, of which an
 * older version was valid then and not the current one; *ids is is_free'd. */
is_status is_bank_each_at(is_bank *b, const is_partition *p, int64_t at, is_bank_each_fn each, void *ctx);
is_status is_bank_differs_at(is_bank *b, const is_partition *p, int64_t at, int64_t **ids, size_t *n);

/* Which of these ids have metadata equal to all members of the JSON object `metadata`: keep[i] set accordingly. */
is_status is_bank_match_metadata(is_bank *b, const is_partition *p, const char *metadata, const int64_t *ids, size_t n, bool *keep);
is_status is_bank_match_versions(is_bank *b, const is_partition *p, const char *metadata, const is_dep *versions, size_t n, bool *keep);

/* ---- Books of the views -------------------------------------------------------------------------------------------------- */

/* Embeddings: int8 vectors of an item's current version under an embedder fingerprint. */
is_status is_bank_put_embedding(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t id, int version,
                                const int8_t *q, uint32_t dim, float scale);
/* Many in one transaction; vectors of items that were forgotten or changed meanwhile are left out. */
typedef struct is_vector { int64_t id; int version; float scale; const int8_t *q; } is_vector;
is_status is_bank_put_embeddings(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const is_vector *v,
                                 size_t n, uint32_t dim);
/* One item's vector, of its current version; *q is is_free'd. E_NOTFOUND if it has none. */
is_status is_bank_get_embedding(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t id, int8_t **q,
                                uint32_t *dim, float *scale);
typedef is_status (*is_bank_embedding_fn)(void *ctx, int64_t id, const int8_t *q, uint32_t dim, float scale);
is_status is_bank_each_embedding(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], is_bank_embedding_fn each, void *ctx);
/* How an embedder's cosines are to be read (embed/calibrate.h), of the whole store: it says nothing of anybody. Putting replaces,
 * and waits for no disk. E_INVALID: low is not below high. E_NOTFOUND: there is none of this embedder. */
is_status is_bank_put_calibration(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], double low, double high);
is_status is_bank_get_calibration(is_bank *b, const uint8_t fingerprint[IS_HASH_BYTES], double *low, double *high);

/* The codec that was named for the store last, as it was named ("" = none, or the default again); setting waits for the disk. */
enum { IS_BANK_CODEC_BYTES = 16 };
is_status is_bank_codec(is_bank *b, char out[IS_BANK_CODEC_BYTES]);
is_status is_bank_set_codec(is_bank *b, const char *codec);

/* Segments: a fact version's variants. A dependency is an item version whose text stood in the encoding context or span. */
typedef struct is_segment_row {
    uint8_t name[IS_HASH_BYTES];
    int64_t fact_id;
    int version;
    char policy[32];
    uint32_t n_tokens, n_context, n_computed;
    uint64_t bytes;
    uint32_t n_passes;       /* contexts that the rows are the mean of; 0 counts as 1 */
    bool lead;               /* rows of a fact at the head of another page: context for that page, never served */
    bool wide;               /* in the type of the engine's cache still; the view's codec is narrower */
} is_segment_row;

/* Enters a segment with its dependencies, if the partition's epoch is still `epoch` and all dependencies still exist in these
 * versions (else E_STALE: the caller removes the file). fingerprint: of the model and profile. */
is_status is_bank_put_segment(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t fingerprint[IS_HASH_BYTES],
                              const is_segment_row *row, const is_dep *deps, size_t n_deps);
/* The same for several, in one transaction: all or none. */
typedef struct is_segment_entry { is_segment_row row; const is_dep *deps; size_t n_deps; } is_segment_entry;
is_status is_bank_put_segments(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t fingerprint[IS_HASH_BYTES],
                               const is_segment_entry *entries, size_t n);
/* The segments of a fact's current version under a fingerprint and policy (NULL = any that may be served, so no leads), newest
 * first; *rows is is_free'd. Outdated ones (schema.c, version 7) are served, so they are among any, behind the others; a policy has
 * made none of them. */
is_status is_bank_segments(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy, int64_t fact_id,
                           is_segment_row **rows, size_t *n);
/* Which of these fact versions are current and have a segment under fingerprint and policy: have[n]. */
is_status is_bank_have_segments(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                                const is_dep *facts, size_t n, bool *have);
is_status is_bank_drop_segment(is_bank *b, const is_partition *p, const uint8_t name[IS_HASH_BYTES]); /* its file was bad */
/* The facts of a view that have outdated rows, in id order after after_id, at most limit (0 = all); *ids is is_free'd. Encoding them
 * and is_bank_retire_outdated replace these. */
is_status is_bank_outdated(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t after_id, size_t limit,
                           int64_t **ids, size_t *n);
/* Takes a fact's segment of this name under a policy out of the books, or, with others, all but
 * that one: they are no longer wanted. *stale = the names that nothing uses any more; they are
 * doomed, as after forgetting. */
is_status is_bank_retire(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                         int64_t fact_id, const uint8_t name[IS_HASH_BYTES], bool others, is_names *stale);
/* Takes a fact's outdated segments under every policy out of the books, once its current version
 * has newer ones under this policy; until then nothing goes. *stale as above. */
is_status is_bank_retire_outdated(is_bank *b, const is_partition *p,
                                  const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                                  int64_t fact_id, is_names *stale);

/* Rows that move to another codec (recode.c): from one view to another that differs in nothing else, or, within
 * a view, from the type of the engine's cache to the view's own codec. */
typedef struct is_recode {
    int64_t row_id;
    uint8_t from[IS_HASH_BYTES], to[IS_HASH_BYTES]; /* names */
    bool keep;           /* false: the row goes. The new view has its own already, or nobody asks for it again (leads of pages) */
    bool open;           /* the row belongs to a page that takes more facts */
    bool wide;           /* it will be wide in the new view (is_segment_row) */
    uint64_t bytes;      /* of the segment; the caller sets those of a new one */
} is_recode;
typedef struct is_recode_range {
    int64_t after, until; /* rows with greater ids than after, up to until */
    size_t most;
    bool take;            /* all rows; else only those that the new view has rows in place of */
} is_recode_range;
/* The rows of view `from` in the range, in order of ids: out[most] with row_id, from, keep, open and bytes. from = to:
 * the view's wide rows that belong to no open page. */
is_status is_bank_recodable(is_bank *b, const is_partition *p, const uint8_t from[IS_HASH_BYTES],
                            const uint8_t to[IS_HASH_BYTES], const is_recode_range *range, is_recode *out,
                            size_t *n);
is_status is_bank_last_segment(is_bank *b, int64_t *id); /* the greatest id of a row; 0 = there is none */
/* Moves these rows, and with them the view's pages, in one transaction; what they depend on stays as it is. *stale = the old names,
 * doomed: the caller removes their files, then is_bank_doomed_done. E_STALE: the epoch is not `epoch` any more. */
is_status is_bank_recode(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t from[IS_HASH_BYTES],
                         const uint8_t to[IS_HASH_BYTES], const is_recode *rows, size_t n, is_names *stale);
/* Rows of a view and their bytes; p NULL = of all partitions. */
is_status is_bank_count_view(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], uint64_t *n, uint64_t *bytes);
/* Its wide rows that belong to no open page. */
is_status is_bank_count_wide(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], uint64_t *n,
                             uint64_t *bytes);

/* Pages (pages.c): what a page policy encodes together. Pages of a view (fingerprint, policy) are numbered along lanes; the
 * newest page of a lane may be open. The first places of a page may be leads: facts that have their place elsewhere, context only.
 * Only places of current versions are given back: a fact that was changed or forgotten has left its page. */
typedef struct is_page_fact {
    is_dep dep;
    bool lead;
    bool over;               /* it has expired or holds no more: nothing new is to see it */
} is_page_fact;
typedef struct is_page {
    int64_t id;
    uint32_t lane;
    bool open;
    size_t n, n_lead;        /* places, the leads among them */
    is_page_fact *facts;     /* [n] in order */
} is_page;
void is_page_free(is_page *page);
/* The newest page of a lane. E_NOTFOUND if the lane is empty. */
is_status is_bank_lane(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                       uint32_t lane, is_page *out);
/* The page where this version of a fact has its place (not as a lead). E_NOTFOUND if it has none yet. */
is_status is_bank_page_of(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                          int64_t fact_id, int version, is_page *out);
/* How many places the view's pages have, leads apart. */
is_status is_bank_paged(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                        size_t *n_facts);
/* Appends page->facts to page->id, or, if that is 0, to a new page of page->lane (the lane's older ones are closed) whose id is
 * filled in; closes it unless page->open. E_STALE if the epoch moved on, a fact is not current, or has a place already. */
is_status is_bank_lay_page(is_bank *b, const is_partition *p, int64_t epoch, const uint8_t fingerprint[IS_HASH_BYTES],
                           const char *policy, is_page *page);

/* Placements (design.md 1): the ordered fact versions that stood before a turn, keyed by a hash of the messages up to the turn. A
 * change or forgetting of one of its facts removes it. put replaces; E_STALE if a fact is not current. get: E_NOTFOUND if there
 * is none; *facts is is_free'd. The newest 10,000 of a partition are kept. */
is_status is_bank_put_placement(is_bank *b, const is_partition *p, const uint8_t profile[IS_HASH_BYTES],
                                const uint8_t prefix[IS_HASH_BYTES], const is_dep *facts, size_t n);
is_status is_bank_placement(is_bank *b, const is_partition *p, const uint8_t profile[IS_HASH_BYTES], const uint8_t prefix[IS_HASH_BYTES],
                            is_dep **facts, size_t *n);

/* ---- What waits (backlog.c) ------------------------------------------------------------------------------------------------ */

/* Changes whenever another connection, of this process or another, has written; the connection's own writes do not count. */
is_status is_bank_data_version(is_bank *b, int64_t *out);
/* All partitions in id order; *out is is_free'd. */
typedef struct is_partition_mark { int64_t id, epoch, revision; } is_partition_mark;
is_status is_bank_partition_marks(is_bank *b, is_partition_mark **out, size_t *n);
is_status is_bank_partition_by_id(is_bank *b, int64_t id, is_partition *out); /* E_NOTFOUND */

bool is_bank_one_in(int64_t id, uint32_t n); /* is it one of those, about one id in n? n = 0: none is */
/* Items (unencoded: facts) whose current version has no embedding under the fingerprint, no segment under fingerprint and policy
 * (NULL: none that may be served). Left out: withdrawn turns, what has expired, for segments also what does not hold any more
 * (valid_to). header_one_in: one fact in so many (is_bank_one_in) must have a segment under "header" too; 0 = none. In id order, of
 * ids greater than after_id (ids grow: work that is done need not be looked at again), at most limit (0 = all). *ids is is_free'd. */
is_status is_bank_unembedded(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], int64_t after_id,
                             size_t limit, int64_t **ids, size_t *n);
is_status is_bank_unencoded(is_bank *b, const is_partition *p, const uint8_t fingerprint[IS_HASH_BYTES], const char *policy,
                            uint32_t header_one_in, int64_t after_id, size_t limit, int64_t **ids, size_t *n);
/* How many of a partition's (NULL: of all) wait so, and when the oldest of them was written (0 = none waits).
 * fingerprint NULL: those without any embedding, without KV of any model; policy NULL: of any policy. Costs a look at every item
 * after after_id. */
typedef struct is_waiting { uint64_t n; int64_t oldest; } is_waiting;
is_status is_bank_count_unembedded(is_bank *b, const is_partition *p, const uint8_t *fingerprint, int64_t after_id, is_waiting *out);
is_status is_bank_count_unencoded(is_bank *b, const is_partition *p, const uint8_t *fingerprint, const char *policy,
                                  uint32_t header_one_in, int64_t after_id, is_waiting *out);

/* For a store with work in the background: locks of other connections are waited for in steps of 0.2 ms, and no longer when *stop
 * (may be NULL; must outlive the bank) is set: E_BUSY. */
void is_bank_wait_finely(is_bank *b, const volatile int *stop);
/* leave: this connection's commits leave the copying of the log into the file to another one that calls is_bank_checkpoint often,
 * unless the log has grown very long. is_bank_checkpoint copies what it can without holding anybody up. */
void is_bank_leave_checkpoints(is_bank *b, bool leave);
is_status is_bank_checkpoint(is_bank *b);

typedef struct is_bank_counts { uint64_t partitions, facts, turns, embeddings, segments, bytes; } is_bank_counts;
is_status is_bank_count(is_bank *b, is_bank_counts *out);

/* Lists for other rooms that build them. add copies the strings. */
inferscale_list *is_list_new(void);
is_status is_list_add(inferscale_list *l, const inferscale_item *item);

#endif
