/* engine.h - the one interface to a language-model engine, and the plan that it executes.
 *
 * Engines are plug-ins (libinferscale-NAME.so) with one entry, is_plugin_entry. A plug-in carries its own copy of src/base and
 * src/kv; its error sentences and log lines reach the host through is_host. */
#ifndef IS_ENGINE_ENGINE_H
#define IS_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/gate.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/words.h"
#include "kv/geometry.h"
#include "kv/segment.h"
#include "kv/vault.h"

/* ---- The plan (design.md 1) ---------------------------------------------------------------------------------------------- */

typedef enum is_role { IS_ROLE_HEADER, IS_ROLE_FACT, IS_ROLE_FOOTER, IS_ROLE_QUESTION, IS_ROLE_TURN } is_role;

/* Who provides a part's KV. RESIDENT: already live in this run's sequence from an earlier turn. */
typedef enum is_source { IS_SRC_STORED = 1, IS_SRC_COMPUTED = 2, IS_SRC_RESIDENT = 3 } is_source;

typedef struct is_part {
    is_role role;
    is_source source;
    const int32_t *tokens;   /* [n_tokens] */
    uint32_t n_tokens;
    uint32_t pos;            /* position of tokens[0]; parts are contiguous: pos = the sum of the n_tokens before it */
    bool common;             /* headers: the same for everybody, nothing in it was said by a client */
    int64_t fact_id;         /* facts; else 0 */
    int version;
    is_segment *segment;     /* STORED: the rows, segment tokens == tokens (checked by the engine); else NULL. Borrowed. An engine that
                                computes elsewhere needs its name, model and tokens only: it may be bare (is_engine_segment) */
} is_part;

/* The text twin of a plan is the same list with every STORED part COMPUTED. */
typedef struct is_plan {
    uint32_t n_parts;
    is_part *parts;
    uint32_t n_tokens;       /* sum */
} is_plan;

/* ---- What an engine says of itself --------------------------------------------------------------------------------------- */

enum { IS_ENGINE_ABI = 18, IS_PARALLEL_DEFAULT = 4, IS_PARALLEL_MAX = 64, IS_REASONS_MAX = 24, IS_UPSTREAMS_MAX = 64, IS_BAD_MAX = 16 };

/* Whose memory a run or a capture is made of, and as of when. Opaque to engines: runs of different tags share nothing that was computed
 * from memory or from a client's words, and nothing of a lower epoch is used once a higher one was revoked (below). */
typedef struct is_realm {
    uint8_t tag[IS_HASH_BYTES];   /* keyed hash of store and partition */
    uint64_t epoch;
} is_realm;

typedef struct is_engine_opts {
    const char *model_path;  /* a GGUF file; remote engines: URL[,URL ...] of its servers */
    const char *home;        /* the store's folder, for what a remote engine shares with its workers; NULL = none (tests of local ones) */
    const char *key;         /* remote engines: API key of its servers; NULL = none */
    uint32_t n_ctx;          /* 0 = min(8192, trained) */
    uint32_t n_threads;      /* 0 = physical cores */
    int flash_attention;     /* INFERSCALE_FA_* */
    const char *cache_dir;   /* for the measured flash-attention choice and the file fingerprint; NULL = do not keep */
    bool no_selftest;        /* tests and benchmarks that do their own */
    uint32_t n_parallel;     /* runs that share the engine's steps; 0 = IS_PARALLEL_DEFAULT */
    const volatile int *cancel; /* polled while it opens: not 0 = E_CANCELLED, within about a second. NULL = none; not used later */
    uint32_t open_ms;        /* remote engines: so long servers that are not up are waited for; 0 = the engine's own patience */
    is_gate *gate;           /* the host's: questions first, shared with other background work; borrowed. NULL = one of its own */
} is_engine_opts;

typedef struct is_engine_info {
    char engine[64], name[128], arch[32], weights[32];
    uint8_t fingerprint[IS_HASH_BYTES]; /* everything its KV depends on: the file's content, rope settings */
    char why_not[256];       /* why KV cannot be injected; "" if it can */
    bool can_inject, flash_attention, has_chat_template;
    uint64_t n_params;
    uint32_t n_layers, n_ctx, n_ctx_train, n_vocab, n_threads, n_batch;
    uint32_t n_capture_spans; /* spans that one decode of a capture may hold; 1 = one at a time (says why_one), 0 = no capture */
    char why_one[128];       /* why spans are not captured together; "" if they are */
    double fa_on_ms, fa_off_ms; /* 0 = not measured */
    double selftest_kl, selftest_noise;
    bool unrotated;          /* captures give K without position already */
    bool remote;             /* computes elsewhere: see "Remote engines" */
    uint32_t longest_piece;  /* bytes of text that one token stands for at most; 0 = not known, or texts become shorter first */
    is_codec exact_codec;    /* the type of its cache: the narrowest codec whose rows are as precise as those that it computes */
    is_codec default_codec;  /* what its rows are stored in unless another codec is asked for */
} is_engine_info;

/* The literal pieces of the model's chat format, found by rendering its template with placeholders. Never NULL. */
typedef struct is_chat_format {
    char *system_open, *system_close, *user_open, *user_close, *assistant_open, *assistant_close;
} is_chat_format;

/* ---- Encoding (capture) -------------------------------------------------------------------------------------------------- */

/* Runs context + span at positions pos0 ..., and gives the span's K and V as the engine computed them (F32, before the cache's
 * rounding), K ROTATED at its position pos0 + n_context + i. The caller un-rotates (kv/rope.h), unless is_engine_info.unrotated.
 *
 * The last part of the context may be given as segments: their rows are rotated to their positions and injected instead of being
 * computed, so the span sees THOSE rows (rounded to their codec, then to the engine's cache), whatever context they were encoded
 * in. The engine checks that they are its own model's and that their tokens, one segment after another, are the end of `context`:
 * E_INVALID. Injected rows live for this call only; they never serve another capture. */
enum { IS_CAPTURE_NOW = 0, IS_CAPTURE_SOON = 1 /* with a share under load */, IS_CAPTURE_IDLE = 2 /* only when no question is open */ };

typedef struct is_capture {
    const int32_t *context;  /* [n_context], the stored part included; may be empty */
    uint32_t n_context;
    const int32_t *span;     /* [n_span], n_span >= 1 */
    uint32_t n_span;
    uint32_t pos0;
    is_segment *const *stored; /* [n_stored] the end of the context, in order; borrowed */
    uint32_t n_stored;
    int background;          /* IS_CAPTURE_*: gives way to questions (see is_engine_question_begin); the host sets cancel then */
    float **rows;            /* out: rows[plane] = [n_span][n_heads][head_dim], caller-allocated for all planes of the geometry */
    uint32_t n_computed;     /* out: tokens really run for this span (kept, shared and injected ones are not) */
    uint32_t n_injected;     /* out: tokens of the stored part */
    const volatile int *cancel; /* may be NULL */
    const is_realm *realm;   /* whose; NULL = nobody's */
    uint32_t n_common;       /* so many first tokens of the context are the same for everybody */
    /* The host's; NULL = none. Engines that compute here call it on the capture's thread between two parts of the computation, every few
     * milliseconds, while no thread of theirs computes: it may wait for long. Meanwhile all but another capture may be called. After
     * it, cancel is looked at. */
    void (*pause)(void *ctx);
    void *pause_ctx;
    const volatile int *crowded; /* remote engines: while this is not 0 questions are open: one span at a time. NULL = none are */
} is_capture;

/* ---- Running a plan ------------------------------------------------------------------------------------------------------ */

typedef struct is_bias { int32_t token; float add; } is_bias;

/* How the next token is chosen. Start and extend copy what is pointed to; an extend that is given options begins anew with these. */
typedef struct is_sampling {
    double temperature;      /* 0 = greedy */
    uint32_t top_k;
    double top_p, min_p;
    uint64_t seed;
    /* Of each token that was fed since the last start or extend: `presence` off its logit, and `frequency` for each time. */
    double presence, frequency;
    const is_bias *bias;     /* [n_bias] added to logits; -INFINITY = never */
    uint32_t n_bias;
    const char *grammar;     /* GBNF, its rule "root": the answer is a text of it, and ends only where such a text may. E_PARSE
                                where it does not parse; feed is E_INVALID for a token that it forbids. NULL or "" = any text */
} is_sampling;

typedef struct is_run_opts {
    is_sampling sampling;
    uint32_t batch;          /* split computed tokens in decodes of this size; 0 = n_batch. Another batching of the same text is
                                the numerical floor N of the evaluation. */
    uint32_t cache_parts;    /* keep the first so many parts (all COMPUTED) as an exact prefix for later runs; default 1 */
    bool no_prefix_cache;    /* neither use nor keep exact prefixes */
    bool want_logits;        /* is_engine_logits will be called */
    bool want_likely;        /* is_engine_likely will be called, for n_likely at most; E_UNSUPPORTED where that is more than there is */
    uint32_t n_likely;
    const volatile int *cancel;
    const volatile int *stop; /* a second flag of the same meaning: the host's own beside its caller's. May be NULL */
    void (*on_begun)(void *ctx); /* the host's, called on the caller's thread when begin or more has accepted all of this, before
                                    the first step (remote engines call it themselves as soon as they have, the host once
                                    more when they are done: it must bear that); NULL = none */
    void *begun_ctx;
    const is_realm *realm;   /* whose memory; NULL = nobody's. Copied. An extension keeps the tag */
    uint32_t n_shared;       /* of the plan's first tokens so many are no secret of the realm's (the host's own header): of an exact prefix no
                                more serves another realm, which could tell by the time whether somebody had the same words */
    uint32_t n_predict;      /* at most so many tokens will be sampled before the next extension; 0 = unknown */
} is_run_opts;

typedef struct is_run_stats {
    uint32_t tokens_computed, tokens_injected, tokens_resident; /* resident: exact prefix or earlier turn */
    double compose_ms, inject_ms, compute_ms;                   /* compose into the blob; blob into the cache; llama_decode */
    char why[256];           /* why stored parts were computed after all; "" if none were. Remote engines may know it only with the last token:
                                the prompt's first tokens_resident + tokens_injected tokens were then not computed, all others were */
    char reason[24];         /* the same as a code (docs/vllm.md); "" if none were */
    /* Remote engines: segments in the store's vault that a server says it could not use, each with its reason. Hearsay: the server may be
     * the one at fault (it sees no folder), so who hears it looks at the file. */
    uint32_t n_bad;
    struct { uint8_t name[IS_HASH_BYTES]; char reason[24]; } bad[IS_BAD_MAX];
} is_run_stats;

/* One server of a remote engine, as it is now. Counters never go down while the engine is open. */
typedef struct is_upstream {
    char url[256], version[64], model[128]; /* version: of engine and connector; "" = not known yet, as model */
    uint8_t fingerprint[IS_HASH_BYTES];
    bool up, can_inject;
    char why[256];           /* why it is not up, or why nothing can be injected there; "" = all is well */
    uint32_t in_flight, n_pending;          /* requests under way; revocations that it has not confirmed */
    uint64_t n_requests, n_retries, tokens_injected; /* retries: requests that another server answered instead */
    uint32_t n_reasons;
    /* runs whose stored parts were computed after all, and other failures */
    struct { char code[24]; uint64_t n; } reasons[IS_REASONS_MAX];
} is_upstream;

/* Bytes [at, at + n) of a file of captured rows, as a worker of a remote engine named it. */
typedef struct is_rows_piece {
    const char *name;
    uint64_t at, total;
    const void *data;
    size_t n;
} is_rows_piece;

typedef struct is_run is_run; /* one live sequence */

/* How likely a token was, over the whole vocabulary, before temperature and cuts. */
typedef struct is_likely { int32_t id; double logprob; } is_likely;

/* What one step does for one run. */
typedef struct is_lane {
    is_run *run;
    uint32_t most;           /* in: tokens that may be computed for it, >= 1 */
    uint32_t n_computed;     /* out: of these */
    bool done;               /* out: nothing is left to do, its logits are there */
    is_status status;        /* out: not OK: its call has failed, and the host undoes it or ends the run. Other lanes go on */
    char why[512];           /* out: the sentence to that */
} is_lane;

/* The engine's functions. impl is what open returned. Errors are statuses with a sentence; bad tokens, positions and sizes are
 * checked, never asserted.
 *
 * Who calls what. ANY: any thread at any time, several at once. OWNER: whoever holds the run, while no call of it is under way; beside
 * everything else. ALONE: never two of these at a time (engine.c and batch.c see to it). */
typedef struct is_engine_vtable {
    const char *name;
    is_status (*open)(const is_engine_opts *opts, void **impl);
    void (*close)(void *impl);
    is_status (*info)(void *impl, is_engine_info *out);
    /* ANY, down to is_eog */
    const is_geometry *(*geometry)(void *impl);          /* NULL if can_inject is false */
    const is_chat_format *(*chat_format)(void *impl);
    /* Tokens of text, in a new array (is_free by the caller through is_engine_tokens_free: the copy of base differs).
     * parse_special: control tokens written out in text become control tokens (only for our own template pieces).
     * add_bos: put the model's BOS first if its tokenizer wants one.
     * whose: whose text it is; NULL = a template's, or nobody's. An engine that keeps the tokens of texts keeps each tag's apart (how long an
     * answer takes must not tell whether somebody else said the same), and lets go of them when the tag is revoked. */
    is_status (*tokenize)(void *impl, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos, int32_t **out,
                          uint32_t *n);
    void (*tokens_free)(void *impl, int32_t *tokens);
    /* Appends the bytes of one token to buf[cap]; returns the length (0 for control tokens), or -needed. */
    int (*token_piece)(void *impl, int32_t token, char *buf, int cap);
    bool (*is_eog)(void *impl, int32_t token);
    /* ALONE. n >= 1 spans; see is_engine_capture_many. */
    is_status (*capture)(void *impl, is_capture *c, size_t n);

    /* ANY. Makes a run that has the plan's parts to provide: they are checked, and what can be composed without the engine is. The
     * plan and the flags of opts must live until it is done. E_CONTEXT if it can never fit, E_INVALID (a STORED part whose segment does
     * not match: fingerprint, geometry, tokens), E_UNSUPPORTED (STORED on an engine that cannot inject), E_PARSE. */
    is_status (*begin)(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run);
    /* OWNER. The same for a run that goes on with more parts (positions go on where it stands); or with one token. opts may be NULL. */
    is_status (*more)(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts);
    is_status (*token)(void *impl, is_run *run, int32_t token);
    /* ALONE or OWNER. Tokens that the run has to compute yet; before its first step perhaps more than turn out to be. */
    uint32_t (*left)(void *impl, is_run *run);
    /* ALONE. One decode for all lanes (n >= 1, each of another run with something to do): for each at most `most` tokens of its parts,
     * what is stored injected when it is reached, and the logits of its last token if that is among them. A lane that finds no room
     * among others may do nothing in this step. Computing stops when the flags of all its runs say so: they are E_CANCELLED. */
    void (*step)(void *impl, is_lane *lanes, size_t n);
    /* ALONE. After a failure: the run is what it was before its last more or token. */
    void (*undo)(void *impl, is_run *run);
    void (*finish)(void *impl, is_run *run); /* ALONE. NULL is allowed */
    /* OWNER */
    void (*stats)(void *impl, is_run *run, is_run_stats *out);             /* of the last begin or more */
    is_status (*sample)(void *impl, is_run *run, int32_t *token);          /* from the last logits; does not run it */
    const float *(*logits)(void *impl, is_run *run);                       /* [n_vocab] of the last token, raw; until the next call */
    /* Of the token that sample gave, in out[0], and behind it of the n likeliest, the likeliest first; *n_out <= n + 1. NULL: by logits. */
    is_status (*likely)(void *impl, is_run *run, int32_t token, uint32_t n, is_likely *out, uint32_t *n_out);
    uint32_t (*run_tokens)(void *impl, is_run *run);                       /* position of the next token */

    /* ANY; NULL = nothing is kept that could outlive its epoch. From now on nothing of this tag that was made under a lower epoch is used;
     * what a server keeps of it is thrown away. Waits wait_ms at most; *n_pending = servers that have not confirmed (E_BUSY): they
     * get no work of this tag until they do, and is called again with the same. */
    is_status (*revoke)(void *impl, const is_realm *realm, uint32_t wait_ms, size_t *n_pending);

    /* Remote engines (info.remote; step is not called and may be NULL): they batch elsewhere. begin, more and token do all there is to do, on
     * the caller's thread, and may wait for it; their flags are polled. Functions that are ALONE elsewhere are OWNER here, capture is ANY;
     * left is 0; undo is not called: what fails leaves the run as it was. logits is NULL unless opts.want_logits. n_parallel is not looked
     * at. rest: the answer is over, what the server still computes for it is called off. */
    void (*rest)(void *impl, is_run *run);
    /* ANY. The first `most` of its servers; returns how many there are. NULL: there are none, the engine computes here. */
    size_t (*upstreams)(void *impl, is_upstream *out, size_t most);
    /* ANY; NULL: it has no workers that could stand on other hosts. What they and we know and nobody else does; and a piece of the rows that
     * one of them captured for us: E_NOTFOUND (we have not asked for it, or not for this much), E_INVALID (no such name, or beyond its end),
     * E_STALE (what stands before it has not come). A piece may come twice. */
    is_status (*worker_secret)(void *impl, uint8_t out[IS_KEY_BYTES]);
    is_status (*worker_rows)(void *impl, const is_rows_piece *p);
} is_engine_vtable;

/* ---- Embedders come from plug-ins too ------------------------------------------------------------------------------------- */

typedef struct is_embed_size {
    uint32_t n, most;        /* of a text longer than `most` (0 = there is no limit) only that it is longer is promised */
    const char *unit;        /* "tokens" or "bytes" */
} is_embed_size;

typedef struct is_embedder_opts {
    const char *spec;        /* a GGUF path, or a URL */
    const char *key;         /* API key; NULL = none */
    uint32_t n_threads;      /* 0 = physical cores */
    uint32_t wait_ms;        /* embedders elsewhere: how long the first byte of an answer may take; 0 = the plug-in's patience */
    const volatile int *cancel; /* polled while it opens: non-zero = E_CANCELLED. NULL = none; not used later */
} is_embedder_opts;

typedef struct is_embed_call {
    const volatile int *cancel, *stop; /* polled; either non-zero = E_CANCELLED within milliseconds. NULL = none */
    uint32_t wait_ms;        /* as in is_embedder_opts, for this call */
    uint64_t n_tokens;       /* out: += the tokens that were embedded, in its own count; 0 where that is not known */
    size_t n_done;           /* out: the vectors of the first n_done texts are there, also when the call failed */
} is_embed_call;

typedef struct is_embedder_vtable {
    const char *name;
    float cosine_low, cosine_high; /* embed/calibrate.h, of all its models; both 0 = each model is measured */
    bool remote;             /* computes elsewhere: embed and measure may be called by any thread, many at once. Else one at a time */
    is_status (*open)(const is_embedder_opts *opts, void **impl);
    void (*close)(void *impl);
    uint32_t (*dim)(void *impl);
    void (*fingerprint)(void *impl, uint8_t out[IS_HASH_BYTES]); /* equal fingerprints = interchangeable vectors */
    /* n texts -> out[n][dim], L2-normalised. Texts are cut to the model's length. Blank text is E_INVALID. */
    is_status (*embed)(void *impl, const char *const *texts, size_t n, float *out, is_embed_call *call);
    /* How long a text is and how much of it is embedded, without embedding it. */
    is_status (*measure)(void *impl, const char *text, is_embed_size *out);
} is_embedder_vtable;

/* ---- Plug-ins ------------------------------------------------------------------------------------------------------------- */

typedef struct is_host {
    uint32_t abi;            /* IS_ENGINE_ABI */
    void (*error)(is_status status, const char *sentence);
    void (*log)(int level, const char *message);
    bool (*refuse)(void);    /* is_mem_refuse of the host: its tests fail our allocations too */
    is_reader (*reader)(void); /* is_reader_now of the host: who reads our sentences */
} is_host;

typedef struct is_plugin {
    uint32_t abi;
    const char *name, *version;
    const is_engine_vtable *engine;       /* NULL = none */
    const is_embedder_vtable *embedder;   /* NULL = none */
} is_plugin;

/* The one exported symbol of a plug-in: "inferscale_plugin". NULL = the host's ABI is not supported. */
typedef const is_plugin *(*is_plugin_entry)(const is_host *host);

/* Loads libinferscale-NAME.so from dir (NULL: $INFERSCALE_PLUGINS, else the folder of this library or binary, and ../lib beside it) once
 * per process; it is never unloaded. E_NOTFOUND names the folders tried and the next step. */
is_status is_plugin_load(const char *dir, const char *name, const is_plugin **out);

/* ---- Host side: an engine that many threads use ---------------------------------------------------------------------------- */

/* Every function may be called by any thread. Start, extend and feed of different runs share the engine's steps (batch.h says by which
 * rule); one run is one thread's at a time. */
typedef struct is_engine is_engine;

is_status is_engine_open(const char *plugin_dir, const char *name, const is_engine_opts *opts, is_engine **out);
void is_engine_close(is_engine *e);
const is_engine_info *is_engine_describe(is_engine *e);
const is_geometry *is_engine_geometry(is_engine *e);
const is_chat_format *is_engine_chat(is_engine *e);
is_status is_engine_tokenize(is_engine *e, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                             int32_t **out, uint32_t *n); /* *out: is_free */
/* The same of a text that is no use with more than `room` tokens: E_CONTEXT before it is tokenised, where that can be known, and never
 * where it has no more. E_CANCELLED within one piece of 32 KiB, unless all of it may fit. fit NULL: as is_engine_tokenize (fit.c). */
typedef struct is_fit {
    uint32_t room;
    const volatile int *cancel;  /* may be NULL */
} is_fit;
is_status is_engine_tokenize_fit(is_engine *e, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                                 const is_fit *fit, int32_t **out, uint32_t *n);
int is_engine_piece(is_engine *e, int32_t token, char *buf, int cap);
bool is_engine_is_eog(is_engine *e, int32_t token);
is_status is_engine_capture(is_engine *e, is_capture *c);
/* A stored segment as this engine needs it: with its rows, or bare where they are injected elsewhere. E_NOTFOUND: absent, unusable, or of
 * another model (is_vault_get). */
is_status is_engine_segment(is_engine *e, is_vault *v, const uint8_t name[IS_HASH_BYTES], is_segment **out);
/* n spans in as few decodes as fit: the longest prefix common to all their contexts (stored parts apart) is run or kept once, each
 * span goes on from it as a sequence of its own. Spans may differ in length and context; pos0, cancel and background are the
 * first one's (another pos0: E_INVALID). All or nothing: on failure no rows count, and every n_computed is 0. A prefix that all
 * share is counted at the first span, so the n_computed add up to the tokens run. Rows differ from those of one-at-a-time
 * captures by the numerical noise of another batching, never bit by bit the same. One by one where the engine cannot
 * (is_engine_info.why_one). n = 0 is nothing to do.
 * Errors of both: E_INVALID (empty span, wrong tokens or segments), E_CONTEXT (context + span beyond n_ctx), E_CANCELLED, E_BUSY
 * (background only), E_UNSUPPORTED, E_ENGINE, E_NOMEM. */
is_status is_engine_capture_many(is_engine *e, is_capture *c, size_t n);
/* Questions first. Everything from a question's start to its last token stands between begin and end (several may be open). A
 * background capture waits meanwhile, before it begins and between two parts of its computation, and goes on where it stood; one
 * that is IS_CAPTURE_SOON goes on in slices, if what waits has waited too long (base/gate.h). It is dropped, E_BUSY with nothing kept,
 * for a capture that a person asks for, for who revokes its memory, and when the handle is closed. On remote engines it does not wait for
 * questions, but IS_CAPTURE_IDLE is dropped for one. Captures that a person asked for are not touched. question_wait: until none is
 * open, or timeout_ms have passed (< 0: for ever), or the gate is shut; true if none is open. */
void is_engine_question_begin(is_engine *e);
void is_engine_question_end(is_engine *e);
bool is_engine_question_wait(is_engine *e, int64_t timeout_ms);
/* Executes the plan's parts and leaves the logits of the last token. *run is the live sequence; finish frees it. E_CONTEXT if it does
 * not fit, E_CANCELLED, E_INVALID, E_UNSUPPORTED, E_PARSE as begin above; E_BUSY (no sequence is free). On failure *run is NULL and
 * nothing stays behind. Waits while n_parallel runs are at work. */
is_status is_engine_start(is_engine *e, const is_plan *plan, const is_run_opts *opts, is_run **run, is_run_stats *stats);
is_status is_engine_extend(is_engine *e, is_run *run, const is_plan *more, const is_run_opts *opts, is_run_stats *stats);
is_status is_engine_sample(is_engine *e, is_run *run, int32_t *token);
is_status is_engine_feed(is_engine *e, is_run *run, int32_t token);
const float *is_engine_logits(is_engine *e, is_run *run);
/* See the vtable's likely; out: [n + 1]. E_ENGINE: nothing is known of that token, or it was not said before that it would be asked for. */
is_status is_engine_likely(is_engine *e, is_run *run, int32_t token, uint32_t n, is_likely *out, uint32_t *n_out);
uint32_t is_engine_run_tokens(is_engine *e, is_run *run);
void is_engine_stats(is_engine *e, is_run *run, is_run_stats *out); /* of the last start or extend, as it is known now */
/* Drops background captures of this tag and waits until they have ended, at most wait_ms; then the vtable's revoke. OK where the engine
 * has none. */
is_status is_engine_revoke(is_engine *e, const is_realm *realm, uint32_t wait_ms, size_t *n_pending);
/* See the vtable's upstreams; 0 where the engine has none. */
size_t is_engine_upstreams(is_engine *e, is_upstream *out, size_t most);
/* See the vtable's; E_UNSUPPORTED where the engine has no workers elsewhere. */
is_status is_engine_worker_secret(is_engine *e, uint8_t out[IS_KEY_BYTES]);
is_status is_engine_worker_rows(is_engine *e, const is_rows_piece *p);
/* The answer is over, the run is kept: others need not wait for it (batch.h). NULL is allowed. */
void is_engine_rest(is_engine *e, is_run *run);
void is_engine_finish(is_engine *e, is_run *run);

/* The same from logits (likely.c). 0 <= token < n_vocab. */
void is_likely_of(const float *logits, uint32_t n_vocab, int32_t token, uint32_t n, is_likely *out, uint32_t *n_out);

#endif
