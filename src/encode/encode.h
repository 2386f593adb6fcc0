/* encode.h - from facts to their segments: context, capture, un-rotate, name, store, enter in the books. */
#ifndef IS_ENCODE_ENCODE_H
#define IS_ENCODE_ENCODE_H

#include "bank/lease.h"
#include "encode/policy.h"

/* ---- Encoding facts ------------------------------------------------------------------------------------------------------ */

typedef struct is_encode_job {
    const is_policy *policy;
    bool again;                  /* also what is in the vault already */
    uint64_t ram_bytes;          /* company: for sums of rows; 0 = 512 MiB. Less means passes are run again, and counted */
    is_status (*on_facts)(void *ctx, size_t n, const char *what); /* n more facts are done; non-OK ends the job with that status */
    void *ctx;
    /* results, added to */
    uint64_t facts, tokens_stored, tokens_computed;
    uint64_t n_left;             /* facts that have no KV because they do not fit or kept changing; logged, try again later */
} is_encode_job;

/* Encodes these facts (ids that are gone are passed over) under the job's policy. What is done is kept, whatever ends the job;
 * calling again goes on. Under a page policy facts without a place get one, and the missing rows of their pages are computed.
 * Errors: E_UNSUPPORTED (no KV with this model; near without embedder), E_CANCELLED, E_BUSY (background, without on_busy),
 * E_ENGINE, E_FULL, E_IO, E_NOMEM, and those of on_facts. */
is_status is_encode_facts(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job);

/* Outdated rows of these facts go, under every policy, where the fact has newer ones under this
 * one. After is_encode_facts, whatever ended it: until then they serve, and what was broken off is
 * still listed as outdated (is_bank_outdated). E_IO, E_NOMEM, E_BUSY. */
is_status is_encode_retire(const is_encoder *enc, const is_partition *p, const is_policy *policy,
                           const int64_t *ids, size_t n);

/* One fact, unless it is there already; *row is its segment's entry. E_STALE if the memory changed meanwhile (nothing is left
 * behind), E_CONTEXT if the fact does not fit into the model's context. */
is_status is_encode_fact(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact, bool again,
                         is_segment_row *row);

/* ---- Rows in other codecs ------------------------------------------------------------------------------------------------- */

/* How far one of the two walks over a partition's rows has come. All zero at first. */
typedef struct is_narrowing {
    int step;                    /* codecs below this one are done */
    int64_t after, until;        /* rows of the books up to `after` are done; those behind `until` came later */
    uint64_t rows, files;        /* added to: rows of the books that were written anew or went, files written */
    uint64_t entered;            /* added to: rows of another codec that the profile's view took as they are */
    uint64_t bytes_before, bytes_after;
    bool done;                   /* nothing is left behind `after` */
    bool left;                   /* rows in other codecs stay, until the profile's codec has rows in their place */
} is_narrowing;

/* Rows of the same model, header and memory that are stored in other codecs than the profile's, the next few. Those
 * that an encoding in the profile's codec would round (f32; of int8 and int4 also the engine's own type)
 * become its own; others go once it has rows in their place. Nothing is computed by the engine. E_STALE: the memory
 * changed meanwhile; call again. E_IO, E_FULL, ... */
is_status is_encode_narrow(const is_encoder *enc, const is_partition *p, is_narrowing *n);
/* Rows that were stored wide because their page was open, and whose page is closed now, the next few: rounded to the
 * profile's codec, as encoding them now would. Errors as above. */
is_status is_encode_settle(const is_encoder *enc, const is_partition *p, is_narrowing *n);
/* How many rows wait for either of them, and their bytes; p NULL = of all partitions. */
is_status is_encode_count_wide(is_bank *bank, const is_engine_info *model, const is_profile *profile,
                               const is_partition *p, uint64_t *n, uint64_t *bytes);

/* ---- What a segment was computed from ------------------------------------------------------------------------------------ */

/* The contexts whose rows a fact's segment under a policy is the mean of, if it were encoded now (is_free'd with
 * is_contexts_free): one, several for company, none for a page policy before the fact has a place. In a page only the fact's
 * place counts: it sees what stands before it. An encoder that computes each of them followed by the fact's own tokens, and
 * takes the mean, gets the segment's rows. */
is_status is_encode_contexts(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                             is_context **out, size_t *n);
void is_contexts_free(is_context *contexts, size_t n);

/* ---- Pieces, for the encoder's files, the evaluation and tests ----------------------------------------------------------- */

/* The segment's name: keyed by the partition, of EVERYTHING its rows are computed from: the model, each context (its computed
 * tokens, then the names of the segments whose stored rows ended it), the own tokens, and what they are held in. n_behind tokens
 * of a context stand behind its stored rows (computed after them). held: the codec; of wide rows 256 times that of
 * their view more, so that two views never share an entry of the books. */
is_status is_segment_name(const is_partition *p, const is_engine_info *model, uint64_t held, const is_context *contexts,
                          size_t n, uint32_t n_behind, const is_tokens *span, uint8_t out[IS_HASH_BYTES]);

/* What an engine is told of a partition: whose memory, as of when. */
is_realm is_realm_of(const is_partition *p);

/* Rows of a span as F32, keys un-rotated: rows[plane] = [n_tokens][width of the plane]. */
typedef struct is_rows {
    float **rows;
    uint32_t n_tokens, n_computed;
} is_rows;
void is_rows_free(is_rows *r);
is_status is_rows_new(const is_geometry *g, uint32_t n_tokens, is_rows *out); /* zeroed */

typedef struct is_span { const is_context *context; const is_tokens *tokens; } is_span;
/* n spans, each after its context, in as few decodes as the engine can; out[n]. All or nothing. Waits while questions run if the
 * encoder says so. p: whose memory it is; NULL = nobody's. E_UNSUPPORTED also where the engine cannot take stored rows as context. */
is_status is_capture_spans(const is_encoder *enc, const is_partition *p, const is_span *spans, size_t n, is_rows *out);
/* Tokens [from, from + span->n) of the rows as a segment, rounded once. */
is_status is_rows_segment(const is_encoder *enc, const is_rows *r, uint32_t from, is_codec codec,
                          const uint8_t name[IS_HASH_BYTES], const is_tokens *span, uint32_t n_context,
                          is_segment **out);

/* Who forgets waits for this lease: no file of an old epoch is written after he returned, and none stays that was. E_STALE: p is old. */
is_status is_keep_begin(const is_encoder *enc, const is_partition *p, is_lease **lease);
/* Between files, with that lease: E_STALE when p has become old. So a call that forgets waits for one file, not for many. */
is_status is_keep_goes_on(const is_encoder *enc, const is_partition *p);

/* A segment on its way into the books. */
typedef struct is_made {
    is_segment_row row;
    is_segment *segment;         /* owned */
    const is_dep *deps;          /* borrowed */
    size_t n_deps;
} is_made;
/* Stores the segments' files and enters them in one transaction; on failure none is entered, and files that were not there
 * before are gone. What the same policy made of these facts before is retired. The segments' references are dropped in any case. */
is_status is_keep_made(const is_encoder *enc, const is_partition *p, is_made *made, size_t n);
/* Takes a fact's rows of this name under a policy out of the books (with others: all but those), and removes their files. */
is_status is_retire_kept(const is_encoder *enc, const is_partition *p, const char *policy, int64_t fact_id,
                         const uint8_t name[IS_HASH_BYTES], bool others);
/* The newest usable row (file in the vault) of a fact's current version under a policy's name. */
bool is_find_kept(const is_encoder *enc, const is_partition *p, const char *policy, int64_t fact_id, is_segment_row *row);

/* Facts as the encoder holds them while it works. */
typedef struct is_work {
    inferscale_list *list;       /* of the facts that are still there */
    is_tokens *tokens;           /* [list->n] */
} is_work;
is_status is_work_new(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_work *out);
void is_work_free(is_work *w);
/* n facts are done: counts and tells. */
is_status is_job_done(is_encode_job *job, size_t n, uint64_t stored, uint64_t computed);
/* A fact that cannot be encoded now: logged, counted, and told as done. The cause is the last error's sentence. */
is_status is_job_left(is_encode_job *job, int64_t fact_id);

/* The policies that encode facts together. p is fresh; E_STALE = it no longer is: call again with a fresh one. */
is_status is_encode_pages(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job);
is_status is_encode_company(const is_encoder *enc, const is_partition *p, const int64_t *ids, size_t n, is_encode_job *job);
is_status is_page_contexts(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                           is_context **out, size_t *n);
is_status is_company_contexts(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                              is_context **out, size_t *n);

#endif
