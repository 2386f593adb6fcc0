/* index.h - one partition's recall index: its items, their words, their vectors. A view of the bank in memory.
 *
 * It follows the bank: a new revision under the same epoch appends what was added, a new epoch (something was changed or
 * forgotten) builds it again. Not locked: the owner (recall.c) holds a read-write lock. */
#ifndef IS_RECALL_INDEX_H
#define IS_RECALL_INDEX_H

#include "bank/bank.h"
#include "recall/lexical.h"

typedef struct is_entry {
    int64_t id, event_time, valid_from, valid_to, expires;
    uint32_t row;                /* of its vector; IS_NO_ROW = none */
    uint32_t agent, run, app;    /* numbers of attribute strings; 0 = "" */
    int kind, version;
    bool told;                   /* a fact that held when it was written, by the clock of then */
} is_entry;

enum { IS_NO_ROW = 0xffffffffu };

typedef struct is_index {
    bool loaded;
    const int64_t *past;         /* [n_past] while it is built: facts whose vectors are of another version */
    size_t n_past;
    int64_t epoch, revision;     /* what of the bank is in it */
    is_entry *items;             /* [n] in id order */
    size_t n, cap;
    is_lexical *words;           /* document i = item i */
    uint8_t fingerprint[IS_HASH_BYTES]; /* of the embedder whose vectors are held */
    bool has_vectors;            /* a fingerprint was asked for */
    uint32_t dim;                /* 0 until the first vector */
    size_t stride;               /* bytes from row to row, a multiple of 64 */
    int8_t *rows;                /* [n_rows][stride], 64-byte aligned */
    float *scales;               /* [n_rows] */
    uint32_t *row_items;         /* [n_rows] item of a row */
    size_t n_rows, cap_rows;
    char **names;                /* attribute strings; [0] = "" */
    size_t n_names, cap_names;
} is_index;

/* Is the index what the bank's partition p (freshly read) and this embedder (NULL = whatever it holds) need? */
bool is_index_fresh(const is_index *x, const is_partition *p, const uint8_t *fingerprint);
/* Makes it so. After a failure it is empty and not loaded; a later call starts over. */
is_status is_index_sync(is_index *x, is_bank *bank, const is_partition *p, const uint8_t *fingerprint);
/* Another kind of index, made for one question: the facts as they were valid at a time. Those in past[n_past] (sorted) are there in an
 * older version, which has no vector. x is empty; cleared by the caller, also after a failure. */
is_status is_index_build_at(is_index *x, is_bank *bank, const is_partition *p, int64_t at, const int64_t *past, size_t n_past,
                            const uint8_t *fingerprint);
void is_index_clear(is_index *x); /* frees what it holds; back to zero */
size_t is_index_bytes(const is_index *x);

const is_entry *is_index_find(const is_index *x, int64_t id); /* NULL = not in it */

/* The number of an attribute string, or IS_NO_ROW if no item has it. NULL and "" are 0. */
uint32_t is_index_name(const is_index *x, const char *name);
/* cosine[i] of item i with v[dim] (unit length), NAN without a vector. cosine: [n]. E_INVALID if dim is another. */
is_status is_index_dense(const is_index *x, const float *v, uint32_t dim, float *cosine);

/* The text that a turn or a fact is indexed under, in parts of which some may be empty. date is filled: of what is not dated it is
 * empty, as in the prompt, so that a date in a question finds what happened then, not what happened to be written down then. */
void is_index_key(const inferscale_item *item, const char *prev_speaker, const char *prev_text, char date[32],
                  const char *parts[5]);

#endif
