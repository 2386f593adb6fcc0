/* inferscale.h - memory for language models that costs almost nothing at prompt time.
 *
 *   #include <inferscale.h>
 *   #include <stdio.h>
 *
 *   static int print(void *ctx, const char *text, size_t len)      // one piece of the answer; 0 = go on
 *   {
 *       (void)ctx;
 *       return fwrite(text, 1, len, stdout) != len;
 *   }
 *
 *   int main(int argc, char **argv)
 *   {
 *       inferscale *is = NULL;
 *       inferscale_options opt = INFERSCALE_OPTIONS_INIT;
 *       inferscale_scope anna = { .user = "anna" };
 *       inferscale_fact fact = { .text = "Anna is allergic to peanuts.", .event_time = 1714521600 };
 *       inferscale_event event;
 *       inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
 *       inferscale_answer *answer = NULL;
 *
 *       opt.home = argv[1];                                         // a folder of its own
 *       opt.model = argc > 2 ? argv[2] : NULL;                      // a GGUF file; NULL = the default model
 *       ask.on_text = print;
 *       if (inferscale_open(&is, &opt) != INFERSCALE_OK ||
 *           inferscale_remember(is, &anna, &fact, 1, &event) != INFERSCALE_OK ||
 *           inferscale_encode(is, &anna, NULL) != INFERSCALE_OK ||  // compute the fact's keys and values once
 *           inferscale_ask(is, &anna, "Which food is Anna allergic to?", &ask, &answer) != INFERSCALE_OK)
 *           fprintf(stderr, "%s\n", inferscale_error());
 *       else
 *           printf("\n(%u tokens computed, %u injected)\n", answer->tokens_computed, answer->tokens_injected);
 *       inferscale_answer_free(answer);
 *       inferscale_close(is);
 *       return 0;
 *   }
 *
 * Link with -linferscale (pkg-config: inferscale).
 *
 * HOW IT WORKS. A fact's keys and values (KV) are computed once, after an encoding context, and kept without position in the
 * vault. To answer, the facts that matter are found, their keys rotated to the positions they get in this prompt, and the rows
 * written into the engine's KV cache; only the question is computed. See docs/design.md.
 *
 * CAVEATS. Injected KV is an approximation: facts did not attend to one another. It is never mixed with exact cached prefixes.
 * Every answer says what was injected (inferscale_answer.tokens_injected) and why not if it was not (fallback). Keys and values
 * can be turned back into text: the vault is as private as the text (folders 0700, files 0600). Deleting a fact here cannot
 * reach backups, snapshots or copy-on-write filesystems.
 *
 * ERRORS. Functions return an inferscale_status; inferscale_error() then holds one sentence with the cause and the next step,
 * for the calling thread, until its next failing call. On failure outputs are NULL or zeroed unless stated otherwise. The
 * library never prints, exits or aborts: a broken internal invariant poisons the handle and returns INFERSCALE_E_INTERNAL.
 *
 * THREADS. A handle may be shared by threads; calls on one engine are serialised inside. Many processes may open one store.
 *
 * STRINGS are UTF-8 without NUL. Times are seconds since the epoch (UTC); 0 = not given. Ids are int64 > 0, unique per store.
 * Every options struct begins with struct_size (set by its _INIT macro) so that it can grow; output structs only grow.
 */
#ifndef INFERSCALE_H
#define INFERSCALE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INFERSCALE_VERSION_MAJOR 0
#define INFERSCALE_VERSION_MINOR 1
#define INFERSCALE_VERSION_PATCH 0
#define INFERSCALE_VERSION "0.1.0"

#if defined(__GNUC__)
#define INFERSCALE_API __attribute__((visibility("default")))
#else
#define INFERSCALE_API
#endif

/* ---- Status -------------------------------------------------------------------------------------------------------------- */

/* X(NAME, value, meaning). Values are part of the ABI and never change. */
#define INFERSCALE_STATUS_MAP(X)                                                                                               \
    X(OK, 0, "success")                                                                                                        \
    X(E_INVALID, 1, "invalid argument")                                                                                        \
    X(E_NOMEM, 2, "out of memory")                                                                                             \
    X(E_IO, 3, "input/output error")                                                                                           \
    X(E_FULL, 4, "no space left")                                                                                              \
    X(E_READONLY, 5, "store is read-only")                                                                                     \
    X(E_NOTFOUND, 6, "not found")                                                                                              \
    X(E_CORRUPT, 7, "data is corrupt")                                                                                         \
    X(E_FOREIGN, 8, "not a file of ours, or of a newer version")                                                               \
    X(E_BUSY, 9, "busy; try again")                                                                                            \
    X(E_CONTEXT, 10, "context length exceeded")                                                                                \
    X(E_UNSUPPORTED, 11, "not supported")                                                                                      \
    X(E_MODEL, 12, "model cannot be loaded")                                                                                   \
    X(E_ENGINE, 13, "engine failed")                                                                                           \
    X(E_CANCELLED, 14, "cancelled")                                                                                            \
    X(E_DENIED, 15, "permission denied")                                                                                       \
    X(E_STALE, 16, "memory changed meanwhile; plan again")                                                                     \
    X(E_PARSE, 17, "input does not parse")                                                                                     \
    X(E_INTERNAL, 18, "internal error; the handle is poisoned")

typedef enum inferscale_status {
#define INFERSCALE_X(name, value, meaning) INFERSCALE_##name = value,
    INFERSCALE_STATUS_MAP(INFERSCALE_X)
#undef INFERSCALE_X
} inferscale_status;

/* The status's name ("E_CONTEXT") or meaning ("context length exceeded"); static strings, "unknown" for unknown values. */
INFERSCALE_API const char *inferscale_status_name(inferscale_status status);
INFERSCALE_API const char *inferscale_status_meaning(inferscale_status status);

/* One sentence about this thread's last failed call: the cause and the next step. "" if none failed. Valid until this thread's
 * next failing call. */
INFERSCALE_API const char *inferscale_error(void);

/* The library's version, e.g. "0.1.0". Static. */
INFERSCALE_API const char *inferscale_version(void);

/* ---- Store handle -------------------------------------------------------------------------------------------------------- */

typedef struct inferscale inferscale;

/* How a log line is received: level 0 error, 1 warning, 2 info, 3 debug. No prompt or fact text is ever logged. Called from any
 * thread; must not call back into the library. */
typedef void (*inferscale_log_fn)(void *ctx, int level, const char *message);

/* Progress of long work: done of total units (total 0 = unknown). Return non-zero to cancel (INFERSCALE_E_CANCELLED). */
typedef int (*inferscale_progress_fn)(void *ctx, uint64_t done, uint64_t total, const char *what);

enum { INFERSCALE_FA_AUTO = 0, INFERSCALE_FA_ON = 1, INFERSCALE_FA_OFF = 2 };

typedef struct inferscale_options {
    size_t struct_size;       /* sizeof(inferscale_options) */
    const char *home;         /* folder of bank and vault; NULL = $INFERSCALE_HOME, else $XDG_DATA_HOME/inferscale, else ~/.local/share/inferscale */
    const char *model;        /* GGUF path or installed name; NULL = the default model. Opened at first use. */
    const char *embedder;     /* GGUF path, installed name, or http(s)://host/v1 for an OpenAI-style endpoint; NULL = default */
    const char *embedder_key; /* API key for an HTTP embedder; NULL = $INFERSCALE_EMBEDDER_KEY */
    const char *engine;       /* engine plug-in: "llama" (NULL) or "mock" */
    const char *plugin_dir;   /* where plug-ins are; NULL = $INFERSCALE_PLUGINS, else next to the library */
    const char *system;       /* system text of the encoding header; NULL = the default */
    const char *policy;       /* encoding policy of the first stage: "page:N", "facts:W", "header", ... (docs/design.md 4); NULL = the default */
    const char *codec;        /* KV codec in the vault: "f16" (NULL), "bf16", "f32" */
    uint32_t n_ctx;           /* engine context in tokens; 0 = min(8192, what the model was trained for) */
    uint32_t n_threads;       /* 0 = physical cores */
    int flash_attention;      /* INFERSCALE_FA_*; AUTO = measured at first load */
    uint64_t ram_bytes;       /* budget of the RAM tier; 0 = 1 GiB */
    int read_only;            /* 1 = never write; the store must exist */
    inferscale_log_fn on_log; /* may be NULL */
    void *log_ctx;
    const char *refine;       /* encoding policy of the second stage, in idle time: "company:N", ...; NULL = the default, "none" = off */
} inferscale_options;

#define INFERSCALE_OPTIONS_INIT { .struct_size = sizeof(inferscale_options) }

/* Opens (creating unless read_only) the store in options->home. *out must be closed with inferscale_close, also after a failed
 * open if it is not NULL. The model and the embedder are loaded at first use, not here. Errors: E_INVALID, E_IO, E_FULL,
 * E_READONLY, E_DENIED, E_FOREIGN (another application's or a newer version's bank), E_CORRUPT, E_NOMEM. */
INFERSCALE_API inferscale_status inferscale_open(inferscale **out, const inferscale_options *options);

/* Closes the handle and frees all it owns. NULL is allowed. No other thread may be inside a call. */
INFERSCALE_API void inferscale_close(inferscale *is);

/* ---- Whose memory -------------------------------------------------------------------------------------------------------- */

/* The partition is (tenant, owner), owner = user, else agent, else run, else app: one of them must be given. It is the unit of
 * isolation. Where user is given, agent, run and app are attributes filtered inside it. NULL or "" = not given. */
typedef struct inferscale_scope {
    const char *tenant, *user, *agent, *run, *app;
} inferscale_scope;

/* ---- Remember ------------------------------------------------------------------------------------------------------------ */

typedef struct inferscale_fact {
    const char *text;        /* 1 byte .. 64 KiB of valid UTF-8, not blank */
    int64_t event_time;      /* when it happened or was said; 0 = now */
    int64_t source_turn;     /* id of the turn it came from; 0 = none */
    int64_t valid_from;      /* 0 = event_time, or now if that lies ahead */
    int64_t valid_to;        /* closed validity; 0 = open */
    int64_t expires;         /* not recalled from then on; 0 = never */
    const char *metadata;    /* a JSON object; NULL = {} */
} inferscale_fact;

enum { INFERSCALE_EVENT_ADD = 1, INFERSCALE_EVENT_UPDATE = 2, INFERSCALE_EVENT_DELETE = 3, INFERSCALE_EVENT_NONE = 4 };

typedef struct inferscale_event {
    int64_t id;   /* the fact's id */
    int event;    /* INFERSCALE_EVENT_*; NONE = the same text is already there (id is its id) */
} inferscale_event;

/* Adds n facts in one transaction: durable and findable by words when it returns. events[n] may be NULL. All or nothing.
 * Errors: E_INVALID (which fact and why), E_READONLY, E_FULL, E_IO, E_BUSY. */
INFERSCALE_API inferscale_status inferscale_remember(inferscale *is, const inferscale_scope *scope, const inferscale_fact *facts,
                                                     size_t n, inferscale_event *events);

typedef struct inferscale_turn {
    const char *conversation; /* name, unique in the partition; NULL = "default" */
    const char *speaker;      /* NULL = "user" */
    const char *text;
    const char *external_id;  /* the application's name for the turn; NULL = none */
    int64_t time;             /* 0 = now */
} inferscale_turn;

/* Adds n conversation turns, in order, in one transaction; ids[n] (may be NULL) receives their ids. Turns are found by recall
 * beside facts and are what the turns:W policy encodes facts after. Errors as inferscale_remember. */
INFERSCALE_API inferscale_status inferscale_add_turns(inferscale *is, const inferscale_scope *scope, const inferscale_turn *turns,
                                                      size_t n, int64_t *ids);

/* Makes a new version of a fact (metadata NULL keeps it). Errors: E_NOTFOUND (also: not in this partition), E_INVALID, ... */
INFERSCALE_API inferscale_status inferscale_update(inferscale *is, const inferscale_scope *scope, int64_t id,
                                                   const inferscale_fact *fact);

/* Deletes the facts and turns with these ids: their text, versions, index rows, embeddings and KV segments, and every segment
 * whose encoding context held them. *n_deleted (may be NULL) = how many were there. Unknown ids are not an error. */
INFERSCALE_API inferscale_status inferscale_forget(inferscale *is, const inferscale_scope *scope, const int64_t *ids, size_t n,
                                                   size_t *n_deleted);

/* Forgets everything in the scope; with agent, run or app beside user only what carries these attributes. */
INFERSCALE_API inferscale_status inferscale_forget_all(inferscale *is, const inferscale_scope *scope, size_t *n_deleted);

/* ---- Find ---------------------------------------------------------------------------------------------------------------- */

enum { INFERSCALE_FACTS = 1, INFERSCALE_TURNS = 2 };
enum { INFERSCALE_FUSED = 0, INFERSCALE_LEXICAL = 1, INFERSCALE_DENSE = 2 };

typedef struct inferscale_item {
    int64_t id;
    int kind;                 /* INFERSCALE_FACTS or INFERSCALE_TURNS */
    int version;              /* facts: 1, 2, ... */
    double score;             /* of this search; 0 in listings */
    double score_lexical, score_dense;
    int64_t event_time, write_time, valid_from, valid_to, expires, source_turn;
    const char *text;         /* owned by the list */
    const char *speaker;      /* turns; else "" */
    const char *conversation; /* turns; else "" */
    const char *external_id;  /* turns; else "" */
    const char *metadata;     /* JSON object */
    const char *user, *agent, *run, *app; /* attributes; "" if not set */
    int kv_ready;             /* facts: 1 if KV for the current model and policy is in the vault */
} inferscale_item;

typedef struct inferscale_list {
    size_t n;
    inferscale_item *items;
    double embed_ms, recall_ms; /* time spent; 0 in listings */
    size_t n_unembedded;        /* items of the partition that could only be found by words */
} inferscale_list;

INFERSCALE_API void inferscale_list_free(inferscale_list *list); /* NULL is allowed */

typedef struct inferscale_recall_options {
    size_t struct_size;
    uint32_t k;            /* 1..1000; 0 = 10 */
    int kinds;             /* INFERSCALE_FACTS | INFERSCALE_TURNS; 0 = FACTS */
    int method;            /* INFERSCALE_FUSED, _LEXICAL, _DENSE */
    int has_threshold;     /* 1 = drop items with score < threshold */
    double threshold;
    int64_t from, to;      /* event time in [from, to]; 0 = open */
    int64_t as_of;         /* facts valid at this time; 0 = now */
    const char *metadata;  /* JSON object whose members must all be equal in the item's metadata; NULL = any */
} inferscale_recall_options;

#define INFERSCALE_RECALL_OPTIONS_INIT { .struct_size = sizeof(inferscale_recall_options) }

/* The k items of the scope that matter most for query, best first. *out is freed with inferscale_list_free. An unknown scope
 * gives an empty list. Errors: E_INVALID, E_MODEL / E_ENGINE (embedder), E_IO. */
INFERSCALE_API inferscale_status inferscale_recall(inferscale *is, const inferscale_scope *scope, const char *query,
                                                   const inferscale_recall_options *options, inferscale_list **out);

/* Items in id order after after_id (0 = from the start), at most limit (0 = all). kinds as above (0 = both). */
INFERSCALE_API inferscale_status inferscale_ls(inferscale *is, const inferscale_scope *scope, int kinds, int64_t after_id,
                                               size_t limit, inferscale_list **out);

/* One item with all its versions, oldest first (facts) or the turn. E_NOTFOUND if it is not in this scope. */
INFERSCALE_API inferscale_status inferscale_show(inferscale *is, const inferscale_scope *scope, int64_t id, inferscale_list **out);

/* ---- Encode -------------------------------------------------------------------------------------------------------------- */

/* FIRST: soon and cheap, each fact about once. REFINE: many passes a fact, and a copy of its own for the fact that stands first in a
 * plan; answers come closer to those from text. */
enum { INFERSCALE_STAGE_FIRST = 1, INFERSCALE_STAGE_REFINE = 2, INFERSCALE_STAGE_ALL = 3 };

typedef struct inferscale_encode_options {
    size_t struct_size;
    const char *policy;               /* of the first stage; NULL = the handle's */
    int again;                        /* 1 = encode also what is already in the vault */
    inferscale_progress_fn on_progress;
    void *progress_ctx;
    uint64_t facts_encoded, tokens_stored, tokens_computed; /* results; a fact counts once for each policy that encodes it */
    int stage;                        /* INFERSCALE_STAGE_*; 0 = FIRST */
    const char *refine;               /* of the second stage; NULL = the handle's, "none" = off */
    uint64_t facts_left;              /* result: facts that do not fit into the context or kept changing; they are served as text */
} inferscale_encode_options;

#define INFERSCALE_ENCODE_OPTIONS_INIT { .struct_size = sizeof(inferscale_encode_options) }

/* Embeds and computes the KV of everything in the scope that lacks it. options may be NULL. Safe to interrupt. Errors:
 * E_MODEL, E_ENGINE, E_UNSUPPORTED (this model's KV cannot be injected; asking still works, from text), E_FULL, E_IO. */
INFERSCALE_API inferscale_status inferscale_encode(inferscale *is, const inferscale_scope *scope, inferscale_encode_options *options);

/* ---- Ask ----------------------------------------------------------------------------------------------------------------- */

enum { INFERSCALE_MODE_KV = 0, INFERSCALE_MODE_TEXT = 1, INFERSCALE_MODE_NONE = 2 };
enum { INFERSCALE_SOURCE_STORED = 1, INFERSCALE_SOURCE_COMPUTED = 2, INFERSCALE_SOURCE_RESIDENT = 3 };

typedef struct inferscale_ask_options {
    size_t struct_size;
    int mode;              /* INFERSCALE_MODE_*: inject, prefill the same tokens, or no memory */
    uint32_t k;            /* facts; 0 = 10; at most 1000 */
    uint32_t repair;       /* the m best facts are computed instead of injected (more faithful, slower) */
    uint32_t max_tokens;   /* 0 = 128 */
    double temperature;    /* 0 = greedy */
    uint32_t top_k;        /* 0 = off */
    double top_p;          /* 0 or >= 1 = off */
    double min_p;          /* 0 = off */
    uint64_t seed;
    const inferscale_recall_options *recall; /* filters; its k is ignored; NULL = none */
    int (*on_text)(void *ctx, const char *text, size_t len); /* streaming: whole UTF-8 characters; non-zero stops */
    void *text_ctx;
    const volatile int *cancel; /* polled; non-zero = INFERSCALE_E_CANCELLED. May be NULL. */
} inferscale_ask_options;

#define INFERSCALE_ASK_OPTIONS_INIT { .struct_size = sizeof(inferscale_ask_options) }

typedef struct inferscale_used {
    int64_t id;
    int version;
    double score;
    uint32_t tokens;
    int source;            /* INFERSCALE_SOURCE_* */
} inferscale_used;

typedef struct inferscale_answer {
    char *text;
    const char *finish;    /* "stop", "length" or "cancelled"; static */
    int mode;              /* what was really done; differs from what was asked only with fallback set */
    char *fallback;        /* why facts were computed instead of injected, or facts left out; "" if nothing of the kind */
    inferscale_used *facts; /* in prompt order (best last in its group) */
    size_t n_facts;
    size_t n_dropped;      /* facts found but left out because the context is full (the worst ones) */
    uint32_t tokens_prompt, tokens_computed, tokens_injected, tokens_resident, tokens_answer;
    double ttft_ms;        /* question in to first token out, everything included */
    double embed_ms, recall_ms, plan_ms, compose_ms, inject_ms, question_ms, first_token_ms, total_ms;
} inferscale_answer;

INFERSCALE_API void inferscale_answer_free(inferscale_answer *answer); /* NULL is allowed */

/* Finds the facts that matter, plans, injects (or computes) them and answers. *out is freed with inferscale_answer_free. When
 * KV cannot be used the same plan is computed as text: answer->fallback says why. Errors: E_INVALID, E_MODEL, E_ENGINE,
 * E_CONTEXT (the question alone does not fit), E_CANCELLED, E_IO. */
INFERSCALE_API inferscale_status inferscale_ask(inferscale *is, const inferscale_scope *scope, const char *question,
                                                const inferscale_ask_options *options, inferscale_answer **out);

/* A conversation: earlier turns stay in the engine's cache; new memory is placed before the newest user turn. When its store is
 * closed it refuses to go on (E_INVALID), and is still to be closed. */
typedef struct inferscale_chat inferscale_chat;
INFERSCALE_API inferscale_status inferscale_chat_open(inferscale *is, const inferscale_scope *scope, inferscale_chat **out);
INFERSCALE_API inferscale_status inferscale_chat_say(inferscale_chat *chat, const char *text, const inferscale_ask_options *options,
                                                     inferscale_answer **out);
INFERSCALE_API void inferscale_chat_close(inferscale_chat *chat); /* NULL is allowed; also after inferscale_close */

/* ---- What is loaded ------------------------------------------------------------------------------------------------------ */

typedef struct inferscale_model_info {
    char name[128], arch[32], weights[32], path[512]; /* weights: the file's quantisation, e.g. "Q4_0" */
    char fingerprint[65];     /* hex of what the KV depends on */
    char why_not[256];        /* why KV cannot be injected; "" if it can */
    char engine[64];          /* engine and its version */
    char cpu[64];             /* SIMD level our kernels use */
    uint64_t n_params;
    uint32_t n_layers, n_planes, n_ctx, n_ctx_train, n_vocab, n_threads;
    uint32_t kv_bytes_per_token; /* in the handle's codec */
    int can_inject, flash_attention;
    double fa_on_ms, fa_off_ms;  /* the measurement behind flash_attention; 0 = forced */
    double selftest_kl, selftest_noise; /* identity self-test: KL(injected || prefill), and of the same text batched otherwise */
} inferscale_model_info;

/* Loads the model if needed and describes it. */
INFERSCALE_API inferscale_status inferscale_model(inferscale *is, inferscale_model_info *out);

typedef struct inferscale_store_info {
    char home[512], embedder[128], embedder_fingerprint[65];
    uint64_t n_partitions, n_facts, n_turns, n_embedded, n_segments, bank_bytes, vault_bytes, ram_bytes_used, ram_bytes_budget;
    int schema_version, sqlite_ok; /* sqlite_ok: quick_check passed */
} inferscale_store_info;

/* check = 1 also runs the database's quick check (seconds on large stores). */
INFERSCALE_API inferscale_status inferscale_store(inferscale *is, int check, inferscale_store_info *out);

/* ---- KV section: for connectors (see docs/formats.md) -------------------------------------------------------------------- */

/* A segment opened from a file: checked, immutable, position-free KV rows of one encoded span. */
typedef struct inferscale_segment inferscale_segment;

typedef struct inferscale_plane {
    uint32_t layer;
    int is_v;                 /* 0 K, 1 V */
    uint32_t n_heads, head_dim;
    uint32_t rot_begin, rot_dim; /* rotated range of each head; rot_dim 0 = no RoPE */
    int pairing;              /* 0 none, 1 adjacent (2i, 2i+1), 2 halves (i, i + rot_dim/2) */
    uint32_t freq;            /* index of its frequency table */
    uint32_t window;          /* sliding window in tokens; 0 = full attention */
} inferscale_plane;

enum { INFERSCALE_F32 = 0, INFERSCALE_F16 = 1, INFERSCALE_BF16 = 2 };

/* Opens and verifies a segment file. Errors: E_NOTFOUND, E_CORRUPT, E_FOREIGN, E_IO, E_NOMEM. */
INFERSCALE_API inferscale_status inferscale_segment_open(const char *path, inferscale_segment **out);
INFERSCALE_API void inferscale_segment_close(inferscale_segment *segment); /* NULL is allowed */
INFERSCALE_API uint32_t inferscale_segment_tokens(const inferscale_segment *segment);
INFERSCALE_API uint32_t inferscale_segment_planes(const inferscale_segment *segment);
INFERSCALE_API inferscale_status inferscale_segment_plane(const inferscale_segment *segment, uint32_t plane, inferscale_plane *out);
/* The span's own token ids: inferscale_segment_tokens of them, valid while the segment is open. */
INFERSCALE_API const int32_t *inferscale_segment_token_ids(const inferscale_segment *segment);

/* Copies the rows [token_begin, token_end) x heads [head_begin, head_end) of one plane to dst as [token][head][dim] of dst_type
 * (INFERSCALE_F32 ...), token_stride and head_stride in elements, keys rotated so that token token_begin stands at position
 * pos. Errors: E_INVALID. */
INFERSCALE_API inferscale_status inferscale_segment_read(const inferscale_segment *segment, uint32_t plane, uint32_t token_begin,
                                                         uint32_t token_end, uint32_t head_begin, uint32_t head_end, int32_t pos,
                                                         int dst_type, void *dst, size_t token_stride, size_t head_stride);

#ifdef __cplusplus
}
#endif
#endif
