/* internal.h - what the files of the llama plug-in share: one engine's state, and who does what.
 *
 *   model.c       open, close, info, contexts         gguf_check.c   is this file fit for libllama
 *   text.c        tokens and pieces                   chat_format.c  the literal pieces of the chat template
 *   probe.c       geometry from the live graph        capture.c      F32 rows of a span
 *   layout.c      the sequence-state blob's framing   inject.c       stored segments -> blob -> cache
 *   prefix.c      exact prefixes kept between runs    run.c          runs, and what they have to do
 *   step.c        one decode for several runs         cells.c        no memory for cells that nobody uses
 *   decode.c      token batches, errors, cancel       sample.c       logits -> token
 *   grammar_check.c  is this text a grammar
 *   tuning.c      flash attention by measuring        selftest.c     layout, rope and identity at load
 *   fingerprint.c what KV depends on                  plugin.c       the table; log lines to the host
 *
 * What touches the contexts is done by one thread at a time (engine.h says what is not). libllama asserts on bad ids and ranges,
 * which ends the process, so everything is checked before it is called. */
#ifndef IS_LLAMA_INTERNAL_H
#define IS_LLAMA_INTERNAL_H

#include <pthread.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/llama/shim.h"
#include "kv/compose.h"
#include "kv/rope.h"

enum {
    SEQ_MAX = 32,            /* sequences of the capture context */
    SEQ_SCRATCH = SEQ_MAX - 1,
    SERVE_SEQS_MAX = 192,    /* those of the serving context: 32, or more if more runs are to share it */
    PREFIX_MAX = 16,         /* exact prefixes kept */
    BLOBS_MAX = 8,           /* composition buffers kept */
    CELL_BUFFERS_MAX = 16,
    UBATCH = 512,
    SPANS_MAX = SEQ_MAX - 2, /* spans captured in one decode: sequence 0 is held, the last is scratch */
};

/* One block of the state blob: the planes of one KV cache, in the blob's order (all K, then all V). Sliding-window models have
 * two: full layers, then window layers. */
typedef struct is_block {
    uint32_t n_k, n_v;
    uint32_t *k, *v;         /* plane indices; owned */
    uint32_t window;         /* 0 = full layers */
} is_block;

typedef struct is_layout {
    uint32_t n_blocks;
    is_block block[2];
    bool v_trans;
    uint32_t n_streams;      /* 1 = unified */
} is_layout;

/* An exact prefix: tokens whose KV was computed here, in this order, at positions 0 ..., with nothing injected. */
/* Whose an exact prefix is. */
typedef struct is_whose {
    uint8_t tag[IS_HASH_BYTES]; /* the realm's; zeros: nobody's */
    uint32_t n_shared;       /* its first so many tokens are everybody's */
} is_whose;

typedef struct is_prefix {
    int32_t *tokens;         /* [n]; NULL = unused */
    is_whose whose;
    uint32_t n;
    int seq;                 /* its sequence; -1 = parked: bytes hold its state, no cells are used */
    uint8_t *bytes;
    size_t n_bytes;
    uint64_t used_at;        /* for LRU */
    uint32_t n_runs;         /* live runs that share its cells */
} is_prefix;

/* A composed sequence state, or room for one. */
typedef struct is_blob {
    uint8_t *bytes;          /* NULL = none */
    size_t cap, len;         /* len 0 = nothing is composed */
    uint32_t to;             /* it holds the positions up to here */
    uint32_t gap;            /* its first cells, to be filled with what the sequence holds already */
} is_blob;

typedef struct is_count { int32_t token; uint32_t n; } is_count;

/* How a run's tokens are chosen, and what that depends on. */
typedef struct is_sampler {
    struct llama_sampler *chain;   /* NULL = greedy */
    struct llama_sampler *grammar; /* NULL = any text */
    double presence, frequency;
    is_bias *bias;
    uint32_t n_bias;
    is_count *counts;        /* [n_counts] how often each token was fed; kept only where a penalty wants it */
    uint32_t n_counts, cap_counts;
    llama_token_data *candidates; /* [n_vocab], made when first needed */
} is_sampler;

struct is_run {
    int seq;                 /* its sequence */
    uint32_t pos;            /* position of the next token */
    float *logits;           /* [n_vocab] of the last token */
    bool has_logits, broken; /* broken: a failed extend could not be undone */
    bool begun;              /* it had its first step, and is in the engine's list */
    int prefix;              /* index of the prefix it shares cells with; -1 = none */
    is_sampler *sampler;

    /* what it has to do: the rest of a plan, or a token */
    const is_plan *plan;     /* of the call under way, borrowed; NULL = the token */
    uint32_t part, at;       /* the next token to provide: of which part, and where in it */
    int32_t token;
    bool fed;                /* the token was run, and the sampler does not know yet */
    uint32_t left;           /* tokens to compute yet */
    uint32_t before;         /* where it stood when the call began */
    uint32_t batch;          /* most tokens a decode; 0 = as many as may be */
    int32_t *prefix_tokens;  /* [n_prefix] of the leading parts that may be an exact prefix; n_prefix 0 = none, or done with */
    uint32_t n_prefix;
    is_whose whose;
    is_blob ahead;           /* composed before its turn came */
    is_sampler *sampler_next; /* from the extension on */
    const volatile int *cancel, *stop;
    is_run_stats stats;

    /* of the step under way */
    uint64_t stepped_at;     /* for the choice of who is put aside */
    uint8_t *aside;          /* its state while it has no stream: [n_aside]; NULL = it has, or never had */
    size_t n_aside;
    uint32_t chunk, last;    /* tokens that it runs, and where the last of them stands in the batch */
    bool moved;              /* something was injected */
    is_status waited;        /* why it could do nothing; OK = it could */
    struct is_run *next;
};

typedef struct is_llama {
    char *path, *cache_dir;
    struct llama_model *model;
    const struct llama_vocab *vocab;
    struct llama_context *serve, *capture;
    struct ggml_threadpool *pool;          /* NULL with one thread */
    is_engine_info info;
    uint8_t file_hash[IS_HASH_BYTES];
    uint32_t n_ctx, n_vocab, n_batch;
    uint32_t fit_threads;                  /* threads when the machine is free; 0 = the caller's number, never changed */
    bool no_partial_memory;                /* recurrent state: sequences cannot be cut, so no prefixes are kept */

    is_geometry *geometry;                 /* NULL = not known or not usable */
    is_rope *rope;
    is_layout layout;                      /* of the serving context */
    is_layout layout_capture;              /* of the other, which is unified: the same blocks, borrowed */
    is_chat_format chat;

    is_blob blob;                          /* composition buffer of what is done alone */
    pthread_mutex_t blobs_lock;
    is_blob spare[BLOBS_MAX];              /* those of runs, for the next; under blobs_lock */

    bool streams;                          /* each sequence of the serving context has cells of its own; else one pool for all */
    uint32_t n_seqs, n_parallel;           /* of the serving context; its last sequence is scratch if it is unified */
    bool seq_used[SERVE_SEQS_MAX];
    is_prefix prefixes[PREFIX_MAX];
    uint64_t clock;                        /* LRU time */
    is_run *runs;

    const volatile int *load_off;          /* calls opening off; NULL = none, or it is open */
    const volatile int *cancel;            /* of the capture in progress; NULL = none */
    void (*pause)(void *ctx);              /* likewise */
    void *pause_ctx;
    const is_lane *lanes;                  /* of the step in progress */
    size_t n_lanes;

    /* the batch given to libllama, n_batch long */
    int32_t *b_token, *b_pos, *b_nseq;
    llama_seq_id **b_seq, *b_ids;
    llama_seq_id b_id;
    int8_t *b_out;

    /* the same for a capture's: a step may come between two of its nodes */
    llama_seq_id *c_seq[UBATCH];
    int8_t c_out[UBATCH];

    /* capture: the tokens that sequence 0 of the capture context holds, all computed, and where rows go */
    int32_t *held;                         /* [n_ctx] tokens */
    uint32_t n_held, held_pos0;
    struct is_tap *tap, *tap_serve;        /* the eval callbacks' states: of the capture context, of the serving one */
} is_llama;

/* Stored in the engine's own thread-local: the last error line libllama logged, so that a failed load can say why. */
const char *is_llama_last_error(void);
void is_llama_clear_error(void);
/* This thread computes from now on, and off(ctx) says whether that is called off: errors are then not logged as such. NULL: it is done. */
void is_llama_computes(bool (*off)(void *ctx), void *ctx);

/* ---- threads.c ---- */
/* Before a decode: ctx's threads become `wanted`, or one while the machine is crowded. wanted < 2 = leave them. */
void is_threads_fit(struct llama_context *ctx, uint32_t wanted);

/* ---- gguf_check.c ---- */
typedef struct is_gguf_facts {
    uint64_t file_bytes;
    char weights[32];        /* type of most of the tensor bytes, e.g. "Q4_0" */
    char arch[32];           /* general.architecture; "" if absent */
} is_gguf_facts;
/* Walks the whole header: magic, version, counts, keys, tensor table, and that every tensor lies inside the file. E_MODEL. */
is_status is_gguf_check(const char *path, is_gguf_facts *out);

/* ---- fingerprint.c ---- */
/* Hash of the file's content; kept in cache_dir (may be NULL) by device, inode, size and time. */
is_status is_file_fingerprint(const char *path, const char *cache_dir, const volatile int *cancel, uint8_t out[IS_HASH_BYTES]);
/* The engine's fingerprint from the file's hash and the geometry (which holds the rope settings). */
is_status is_engine_fingerprint(is_llama *e);
/* A small text kept in cache_dir under a hashed name; false = absent. */
bool is_cache_read(const char *cache_dir, const char *kind, const uint8_t key[IS_HASH_BYTES], char *out, size_t cap);
void is_cache_write(const char *cache_dir, const char *kind, const uint8_t key[IS_HASH_BYTES], const char *text);

/* ---- model.c ---- */
is_status is_llama_open(const is_engine_opts *opts, void **impl);
void is_llama_close(void *impl);
is_status is_llama_info(void *impl, is_engine_info *out);
const is_geometry *is_llama_geometry(void *impl);
const is_chat_format *is_llama_chat(void *impl);
/* A context of this engine's model. NULL on failure (no sentence). tap: the eval callback's state or NULL. whole: window layers
 * keep every row, not only the window's. */
struct llama_context *is_llama_context(is_llama *e, uint32_t n_ctx, uint32_t n_seq, uint32_t n_batch, bool flash_attention,
                                       bool whole, bool streams, struct is_tap *tap);
/* Marks the model as one that cannot be injected, for this reason. */
void is_llama_refuse(is_llama *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- text.c ---- */
uint32_t is_llama_longest_piece(const is_llama *e);  /* 0 = one token may stand for any text */
is_status is_llama_tokenize(void *impl, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos, int32_t **out,
                            uint32_t *n);
void is_llama_tokens_free(void *impl, int32_t *tokens);
int is_llama_piece(void *impl, int32_t token, char *buf, int cap);
bool is_llama_is_eog(void *impl, int32_t token);

/* ---- chat_format.c ---- */
is_status is_chat_format_find(is_llama *e);

/* ---- decode.c ---- */
bool is_llama_abort(void *engine);       /* ggml's abort callback: the flag of a capture, or of all runs of a step */
/* Runs n tokens of one sequence of ctx at pos ..., in decodes of at most `batch` tokens; the last token's logits if want_last.
 * E_CANCELLED, E_CONTEXT (no free cell), E_ENGINE, E_INVALID (a token outside the vocabulary). What was run before a failure
 * stays in the sequence: the caller undoes it. */
is_status is_llama_decode(is_llama *e, struct llama_context *ctx, int seq, const int32_t *tokens, uint32_t n, uint32_t pos,
                          uint32_t batch, bool want_last);
/* Runs n tokens, each of its own sequence at its own position, in one decode: n <= n_batch of ctx and engine. out[i]: logits are
 * wanted; NULL = none. */
is_status is_llama_decode_mixed(is_llama *e, struct llama_context *ctx, const int32_t *tokens, const int32_t *pos,
                                llama_seq_id *seq, int8_t *out, uint32_t n);
/* Computes one token with one thread and forgets it: what ggml finds impossible in this model is an error then (shim.cpp), and
 * not the end of the process. Leaves the context's memory empty. E_MODEL. */
is_status is_llama_first_token(is_llama *e, struct llama_context *ctx);
is_status is_tokens_check(const is_llama *e, const int32_t *tokens, uint32_t n);
int is_seq_take(is_llama *e);            /* a free sequence, or -1 */
void is_seq_drop(is_llama *e, int seq);  /* its cells are freed too; -1 is allowed */

/* ---- cells.c ---- */
bool is_cells_find(struct is_tap *tap, struct ggml_tensor *t); /* notes the buffer of a node that stores into the cache; false */
void is_cells_untouch(const struct is_tap *tap);               /* the cache is empty and takes no memory until it is used */

/* ---- probe.c ---- */
/* Reads the geometry from the capture context's graph. E_UNSUPPORTED with the reason if it cannot be injected. */
is_status is_probe(is_llama *e, is_geometry **out);

/* ---- capture.c ---- */
typedef struct is_slot { is_capture *c; uint32_t row; } is_slot; /* where a token's rows go; c NULL = nowhere */

typedef struct is_tap {
    int mode;                /* 0 off, 1 probe, 2 capture, 3 find the cells */
    ggml_backend_buffer_t cells[CELL_BUFFERS_MAX]; /* where the cache lies: [n_cells] */
    uint32_t n_cells;
    struct is_probe *probe;
    is_llama *engine;
    uint32_t n;              /* tokens of the decode in progress, and where the rows of each go */
    is_slot slot[UBATCH];
    bool wanted;             /* any of them goes somewhere */
    uint32_t n_planes_seen;
    int *plane_of;           /* [layers * 2] plane index or -1 */
    uint32_t n_layers;
    bool failed;
    /* pauses of a capture: the work since the last one, when that was, and how much is done in a millisecond */
    double work, work_per_ms, paused_ms;
} is_tap;
bool is_tap_eval(struct ggml_tensor *t, bool ask, void *tap);
/* "cache_k_l7" -> layer 7, is_v 0; false for any other node. */
bool is_cache_node(const struct ggml_tensor *t, uint32_t *layer, bool *is_v);
bool is_tap_probe(is_tap *tap, struct ggml_tensor *t); /* probe.c */
is_status is_llama_capture(void *impl, is_capture *c, size_t n);

/* ---- layout.c ---- */
/* Builds the blocks from the geometry and checks them against a state the engine itself wrote. E_UNSUPPORTED. */
is_status is_layout_find(is_llama *e, struct llama_context *ctx, is_layout *out);
void is_layout_free(is_layout *l);
/* Bytes of a block of n cells, header and meta included. */
size_t is_block_bytes(const is_geometry *g, const is_layout *l, const is_block *b, uint32_t n_cells);
size_t is_blob_head(uint8_t *dst);                        /* magic and sequence id; returns bytes (8) */
/* Writes a block's framing for cells at positions pos ... pos + n - 1; rows_k[i] and rows_v[i] (may be NULL) receive where the
 * i-th K and V plane's rows go. Returns the bytes of the block. */
size_t is_block_frame(const is_geometry *g, const is_layout *l, const is_block *b, uint8_t *dst, uint32_t pos, uint32_t n,
                      uint8_t **rows_k, uint8_t **rows_v);

/* ---- inject.c ---- */
/* Composes parts[0 .. n) (all STORED, contiguous, the first at position pos) and puts them into sequence seq of ctx, the serving or
 * the capture context (its scratch sequence is used). Adds to stats. E_CONTEXT if there are no cells. */
is_status is_inject(is_llama *e, struct llama_context *ctx, int seq, const is_part *parts, uint32_t n, uint32_t pos, is_blob *ahead,
                    is_run_stats *stats);
/* Composes the first piece of the same parts, which is_inject then takes from `ahead`. Any thread. E_NOMEM. */
is_status is_inject_ahead(is_llama *e, const is_part *parts, uint32_t n, is_blob *ahead);
void is_blob_give(is_llama *e, is_blob *b);               /* for others to use; b is empty then. Any thread */
/* The whole of a sequence into or out of memory. false = it cannot be had; *bytes is then NULL. */
bool is_seq_save(is_llama *e, int seq, uint8_t **bytes, size_t *n);
bool is_seq_load(is_llama *e, int seq, const uint8_t *bytes, size_t n);
is_status is_part_check(is_llama *e, const is_part *p);   /* segment fits part and model */
/* A blob of n cells at positions 0 ... with zero rows, for measuring. *out: is_free. */
is_status is_blob_zero(is_llama *e, const is_layout *l, uint32_t n, uint8_t **out, size_t *len);
bool is_blob_reserve(is_blob *b, size_t bytes);

/* ---- prefix.c ---- */
/* Copies the longest kept exact prefix of tokens[0..n) to sequence seq; *len = its length (0 = none), *index = which. */
void is_prefix_find(is_llama *e, const is_whose *whose, const int32_t *tokens, uint32_t n, int seq, uint32_t *len, int *index);
/* Keeps sequence seq's first n cells, whose KV is exact, as a prefix. *index = which, or -1 if it could not be kept. */
void is_prefix_keep(is_llama *e, const is_whose *whose, const int32_t *tokens, uint32_t n, int seq, int *index);
/* drops the least recently used one without runs; false = none left */
bool is_prefix_evict(is_llama *e, int except);
void is_prefix_free_all(is_llama *e);

/* ---- run.c, step.c, sample.c ---- */
is_status is_llama_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run);
is_status is_llama_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts);
is_status is_llama_token(void *impl, is_run *run, int32_t token);
uint32_t is_llama_left(void *impl, is_run *run);
void is_llama_step(void *impl, is_lane *lanes, size_t n);
void is_llama_undo(void *impl, is_run *run);
void is_llama_stats(void *impl, is_run *run, is_run_stats *out);
const float *is_llama_logits(void *impl, is_run *run);
uint32_t is_llama_run_tokens(void *impl, is_run *run);
void is_llama_finish(void *impl, is_run *run);
/* All steps of a plan, with nobody beside it: for the self-test. */
is_status is_llama_run_alone(is_llama *e, const is_plan *plan, const is_run_opts *o, is_run **out);
is_status is_llama_sample(void *impl, is_run *run, int32_t *token);
is_status is_sampler_new(const is_llama *e, const is_sampling *how, is_sampler **out); /* E_INVALID, E_PARSE, E_UNSUPPORTED */
void is_sampler_free(is_sampler *s);                                                   /* NULL is allowed */
bool is_sampler_allows(is_sampler *s, int32_t token);                                  /* the grammar does */
is_status is_sampler_accept(is_sampler *s, int32_t token);                             /* it was fed */
is_status is_sampler_choose(is_sampler *s, const float *logits, uint32_t n, int32_t *token);
is_status is_grammar_check(const char *grammar);                                       /* grammar_check.c: E_PARSE with the line */

/* ---- tuning.c, selftest.c ---- */
/* Whether flash attention is faster for short suffixes; sets info.fa_on_ms and fa_off_ms if measured. */
bool is_tune_flash_attention(is_llama *e);
/* E_UNSUPPORTED with the reason if injected KV would not be what the engine computes. */
is_status is_selftest(is_llama *e);

extern const is_engine_vtable is_llama_engine;

#endif
