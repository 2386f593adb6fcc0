/* inferscale.h - memory for language models that costs almost nothing at prompt time.
 *
 *   #include <inferscale.h>
 *   #include <stdio.h>
 *
 *   static int print(void *out, const char *text, size_t len) { return fwrite(text, 1, len, out) != len; } // a piece; 0 = go on
 *
 *   int main(int argc, char **argv)
 *   {
 *       inferscale *is = NULL;
 *       inferscale_options opt = INFERSCALE_OPTIONS_INIT;
 *       inferscale_scope anna = { .user = "anna" };
 *       inferscale_fact fact = { .text = "Anna is allergic to peanuts." };
 *       inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
 *       inferscale_answer *answer = NULL;
 *
 *       if (argc < 2) return fprintf(stderr, "Usage: remember FOLDER [MODEL.gguf]\n"), 2;
 *       opt.home = argv[1];                              // a folder of its own
 *       opt.model = argc > 2 ? argv[2] : NULL;           // a GGUF file; NULL = the default model
 *       ask.on_text = print;
 *       ask.text_ctx = stdout;
 *       int failed = inferscale_open(&is, &opt) || inferscale_remember(is, &anna, &fact, 1, NULL) ||
 *                    inferscale_encode(is, &anna, NULL) || // compute the fact's keys and values once
 *                    inferscale_ask(is, &anna, "Which food is Anna allergic to?", &ask, &answer);
 *       if (failed) fprintf(stderr, "%s\n", inferscale_error());
 *       else printf("\n(%u tokens computed, %u injected)\n", answer->tokens_computed, answer->tokens_injected);
 *       inferscale_answer_free(answer);
 *       inferscale_close(is);
 *       return failed;
 *   }
 *
 * Link with -linferscale (pkg-config --cflags --libs inferscale). If the program does not find libinferscale.so.0 when it runs, it was
 * installed where the loader does not look: run ldconfig, or link with -Wl,-rpath,$(pkg-config --variable=libdir inferscale) as well.
 *
 * HOW IT WORKS. A fact's keys and values (KV) are computed once, after an encoding context, and kept without position in the
 * vault. To answer, the facts that matter are found, their keys rotated to the positions they get in this prompt, and the rows
 * written into the engine's KV cache; only the question is computed. See docs/design.md (installed
 * in share/doc/inferscale, as all of docs/ named here).
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
 * THREADS. A handle may be shared by threads; their questions share the engine's steps (n_parallel). Many processes may open one store.
 *
 * STRINGS are UTF-8 without NUL. Ids are int64 > 0, unique per store.
 * TIMES are seconds since 1970-01-01T00:00:00Z, of the years 0 to 9999; others are E_INVALID. 0 and INFERSCALE_NO_TIME mean that
 * no time is given: a zeroed struct has none. That first second itself is INFERSCALE_TIME_ZERO, in what is given and in what comes
 * back, so that every time of an item can be handed in again as it is.
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
    X(E_INTERNAL, 18, "internal error; the handle is poisoned")                                                                 \
    X(E_TRACE, 19, "forgotten, but a trace of it was found")

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

#define INFERSCALE_NO_TIME INT64_MIN         /* no time, as 0 */
#define INFERSCALE_TIME_ZERO (INT64_MIN + 1) /* 1970-01-01T00:00:00Z */

/* ---- Store handle -------------------------------------------------------------------------------------------------------- */

typedef struct inferscale inferscale;

/* How a log line is received: level 0 error, 1 warning, 2 info, 3 debug. No prompt or fact text is ever logged. Called from any
 * thread; must not call back into the library. */
typedef void (*inferscale_log_fn)(void *ctx, int level, const char *message);

/* Progress of long work: done of total units (total 0 = unknown). Return non-zero to cancel (INFERSCALE_E_CANCELLED). */
typedef int (*inferscale_progress_fn)(void *ctx, uint64_t done, uint64_t total, const char *what);

/* A model begins to load (loading 1) or has loaded, or failed to (0): what = "model" or "embedder", name = its file, or the address of
 * who computes it. Called on the thread that needs it, which may be the background encoder's; must not call back into the library but
 * for inferscale_stop_loading. */
typedef void (*inferscale_loading_fn)(void *ctx, int loading, const char *what, const char *name);

enum { INFERSCALE_FA_AUTO = 0, INFERSCALE_FA_ON = 1, INFERSCALE_FA_OFF = 2 };

typedef struct inferscale_options {
    size_t struct_size;       /* sizeof(inferscale_options) */
    const char *home;         /* folder of bank and vault; NULL = $INFERSCALE_HOME, else $XDG_DATA_HOME/inferscale, else ~/.local/share/inferscale */
    const char *model;        /* GGUF path or installed name; NULL = the default model. Opened at first use. */
    const char *embedder;     /* GGUF path, installed name, or http(s)://HOST/v1#MODEL for an OpenAI-style endpoint; NULL = default */
    const char *embedder_key; /* API key for an HTTP embedder; NULL = $INFERSCALE_EMBEDDER_KEY */
    const char *engine;       /* engine plug-in: "llama" (NULL), "vllm" (docs/vllm.md) or "mock" */
    const char *plugin_dir;   /* where plug-ins are; NULL = $INFERSCALE_PLUGINS, else next to the library */
    const char *system;       /* system text of the encoding header; NULL = the default */
    const char *policy;       /* encoding policy of the first stage: "page:N", "facts:W", "header", ... (docs/design.md 4); NULL = the default */
    const char *codec;        /* "f16", "bf16", "f32", "int8", "int4", "auto" (the cache's), "default" (int8): the store keeps it; NULL = its own */
    uint32_t n_ctx;           /* engine context in tokens; 0 = min(8192, what the model was trained for) */
    uint32_t n_threads;       /* 0 = physical cores */
    int flash_attention;      /* INFERSCALE_FA_*; AUTO = measured at first load */
    uint64_t ram_bytes;       /* budget of the RAM tier; 0 = 1 GiB */
    int read_only;            /* 1 = never write; the store must exist */
    int background;           /* 1 = embed and encode what is remembered in the background: see "Background encoder" */
    uint64_t max_pending;     /* background: remembering is refused (E_BUSY) while so many items wait; 0 = 100,000 */
    inferscale_log_fn on_log; /* may be NULL */
    void *log_ctx;
    const char *refine;       /* encoding policy of the second stage, in idle time: "company:N", ...; NULL = the default, "none" = off */
    uint32_t n_parallel;      /* questions in the engine at once, sharing its steps; 0 = 4. More wait */
    const char *upstream;     /* engine vllm: its servers, http(s)://HOST:PORT[,...], in place of model; NULL = $INFERSCALE_UPSTREAM */
    const char *upstream_key; /* API key that they want; NULL = $INFERSCALE_UPSTREAM_KEY */
    int start_empty;          /* 1 = where the bank is lost (E_CORRUPT) or another memory's (E_FOREIGN), begin a new memory; bank and
                                 vault are set aside in home/lost-N. A sound bank is opened as ever */
    /* Background, while questions are open: from a lag of the first stage of encode_lag_s seconds on (0 = 5; < 0 = never) it gets a share of
     * the engine's time: encode_share at that lag (0 = 0.10), growing in proportion to the lag to encode_share_most (0 = 0.50; below 1) */
    double encode_lag_s, encode_share, encode_share_most;
    /* A question first embeds what its owner has told and has no vector yet: for so many milliseconds at most (0 = 50, -1 = never), and
     * so many texts (0 = 256, which is the most). What is left is named: INFERSCALE_FALLBACK_NOT_EMBEDDED. */
    int question_embed_ms;
    uint32_t question_embed_texts;
    uint32_t embedder_wait_ms; /* HTTP embedders: how long a question waits for an answer's first byte before the search goes on by
                                  words; 0 = 5,000. What is embedded in the background waits a minute */
    inferscale_loading_fn on_loading; /* told when a model begins to load, and when that is over; NULL = nobody */
    void *loading_ctx;
} inferscale_options;

#define INFERSCALE_OPTIONS_INIT { .struct_size = sizeof(inferscale_options) }

/* Opens (creating unless read_only) the store in options->home. *out must be closed with inferscale_close, also after a failed open if it is not
 * NULL. The model and the embedder are loaded at first use, not here. Errors: E_INVALID, E_IO, E_FULL, E_READONLY, E_DENIED, E_FOREIGN (another
 * application's, another memory's or a newer version's bank), E_NOMEM, E_CORRUPT: the bank is damaged, or missing or empty where home says that a
 * memory was there. Ids are never given twice in a home, whatever becomes of its bank. */
INFERSCALE_API inferscale_status inferscale_open(inferscale **out, const inferscale_options *options);

/* Why a store that was to be opened for writing is open for reading only: its disk is full, or its filesystem read-only. It can be read,
 * asked and backed up; what it needs to write again is space, or a filesystem that can be written. "" = it is open as asked. Lives as
 * long as the handle. */
INFERSCALE_API const char *inferscale_notice(const inferscale *is);

/* Closes the handle and frees all it owns. NULL is allowed. No other thread may be inside a call. */
INFERSCALE_API void inferscale_close(inferscale *is);

/* ---- Whose memory -------------------------------------------------------------------------------------------------------- */

/* Each of these names has at most so many bytes of UTF-8, everywhere: here, over HTTP and MCP, in a keys file, in imported files. */
#define INFERSCALE_NAME_MAX 512

/* The partition is (tenant, owner), owner = user, else agent, else run, else app: one of them must be given. It is the unit of
 * isolation. Where user is given, agent, run and app are attributes filtered inside it. NULL or "" = not given. */
typedef struct inferscale_scope {
    const char *tenant, *user, *agent, *run, *app;
} inferscale_scope;

/* ---- Remember ------------------------------------------------------------------------------------------------------------ */

typedef struct inferscale_fact {
    const char *text;        /* 1 byte .. 64 KiB of valid UTF-8, not blank */
    int64_t event_time;      /* when it happened: the prompt shows the date. 0 = nobody said: it shows none, and filters go by the write time */
    int64_t source_turn;     /* id of the turn it came from; 0 = none */
    int64_t valid_from;      /* 0 = event_time, or now if that lies ahead */
    int64_t valid_to;        /* closed validity; 0 = open */
    int64_t expires;         /* not recalled from then on; 0 = never */
    const char *metadata;    /* a JSON object; NULL = {} */
    int undated;             /* 1 = event_time is for filters and order alone; the prompt shows no date */
} inferscale_fact;

/* What inferscale_remember did with a fact. UPDATE: the text was known, and took the date that it
 * did not have. DELETE is what inferscale_forget does: here for those who keep a log of events. */
enum { INFERSCALE_EVENT_ADD = 1, INFERSCALE_EVENT_UPDATE = 2, INFERSCALE_EVENT_DELETE = 3, INFERSCALE_EVENT_NONE = 4 };
enum { INFERSCALE_KEPT_DATE = 1, INFERSCALE_KEPT_METADATA = 2, INFERSCALE_KEPT_EXPIRES = 4 };
typedef struct inferscale_event {
    int64_t id;   /* the fact's id */
    int event;    /* ADD; NONE or UPDATE: the same text is already there (id is its id) */
    int again;    /* 1 = a text that was forgotten once, and is remembered now because you said so; it may be extracted again too */
    int64_t same_as; /* another fact of this owner with the same text, which did not make this one superfluous; 0 = none */
    int kept;     /* _KEPT_* in a sum: what NONE did not take; inferscale_update changes it */
} inferscale_event;

/* Adds n facts in one transaction: durable and findable by words when it returns. events[n] may be NULL. All or nothing.
 * Errors: E_INVALID (which fact and why), E_READONLY, E_FULL, E_IO, E_BUSY (another process holds the bank for long; or more than
 * max_pending items wait for the background encoder: wait with inferscale_encode_wait). */
INFERSCALE_API inferscale_status inferscale_remember(inferscale *is, const inferscale_scope *scope, const inferscale_fact *facts,
                                                     size_t n, inferscale_event *events);

typedef struct inferscale_turn {
    const char *conversation; /* name, unique in the partition; NULL = "default" */
    const char *speaker;      /* NULL = "user" */
    const char *text;
    const char *external_id;  /* the application's name for the turn; NULL = none */
    int64_t time;             /* when it was said; 0 = not told: as event_time of a fact */
    int undated;              /* as of a fact */
} inferscale_turn;

/* Adds n conversation turns, in order, in one transaction; ids[n] (may be NULL) receives their ids. Turns are found by recall
 * beside facts and are what the turns:W policy encodes facts after. Errors as inferscale_remember. */
INFERSCALE_API inferscale_status inferscale_add_turns(inferscale *is, const inferscale_scope *scope, const inferscale_turn *turns,
                                                      size_t n, int64_t *ids);

/* Makes a new version of a fact (metadata NULL keeps it). event_time 0: if the text is the same, the version keeps the date of the one before, and
 * whether it was given; another text has no date, for nobody said when that happened, and counts as of now. In both cases it holds from now on,
 * unless valid_from says otherwise. The old version stays in the history, valid until the new one's valid_from. When it returns no token that is
 * generated depends on the old text, in other processes of this machine either. Errors: E_NOTFOUND (also: of others), E_INVALID (or superseded),
 * E_BUSY (changed, but a question that uses the old text has not ended in 10 s; it ends before its next token), ... */
INFERSCALE_API inferscale_status inferscale_update(inferscale *is, const inferscale_scope *scope, int64_t id,
                                                   const inferscale_fact *fact);

/* Adds a fact of its own that takes the place of fact `id`: the old one's validity ends where the new one's begins. Both stay,
 * each with its history, and inferscale_item.superseded_by of the old one leads to the new one. *new_id may be NULL. Errors as
 * inferscale_update; E_INVALID also if the new fact is valid only from before the old one, or the old one was superseded. */
INFERSCALE_API inferscale_status inferscale_supersede(inferscale *is, const inferscale_scope *scope, int64_t id,
                                                      const inferscale_fact *fact, int64_t *new_id);

/* Pinned facts are always found first, and used by every question (of those that pass its filters), at most INFERSCALE_PINNED_MAX
 * in a partition and k in a search. pinned = 0 takes the pin off. Errors: E_NOTFOUND, E_INVALID (a turn), E_FULL (too many). */
enum { INFERSCALE_PINNED_MAX = 8 };
INFERSCALE_API inferscale_status inferscale_pin(inferscale *is, const inferscale_scope *scope, int64_t id, int pinned);

/* Deletes the facts and turns with these ids: their text, versions, index rows, embeddings and KV segments, and every segment whose encoding
 * context held them (it is encoded again by the next encode). The turn that a forgotten fact came from is withdrawn: it stays in the
 * conversation's record (ls, show, export), and is not found, not put into contexts and not extracted from any more. When it returns no token that
 * is generated depends on what is forgotten, in other processes of this machine either. A keyed hash of each forgotten fact's text stays, so that
 * it is not extracted again. *n_deleted (may be NULL) = how many were there. Unknown ids are not an error; inferscale_forget_with says which they
 * are. Not to be called from on_text: it waits for the answer that is under way. Errors: E_BUSY (all is forgotten, but a question that uses it has
 * not ended in 10 s; it ends before its next token), E_READONLY, E_IO, ... */
INFERSCALE_API inferscale_status inferscale_forget(inferscale *is, const inferscale_scope *scope, const int64_t *ids, size_t n,
                                                   size_t *n_deleted);

/* Forgets everything in the scope; with agent, run or app beside user only what carries these attributes. */
INFERSCALE_API inferscale_status inferscale_forget_all(inferscale *is, const inferscale_scope *scope, size_t *n_deleted);

typedef struct inferscale_forget_options {
    size_t struct_size;
    int all;             /* everything in the scope; n must be 0 */
    int expired;         /* the facts of the scope that have expired; n must be 0 */
    int with_turns;      /* a fact's source turn is deleted too, not only withdrawn */
    int with_facts;      /* a turn takes the facts with it that came from it */
    int prove;           /* look for what was forgotten in every file of the store afterwards */
    uint32_t wait_ms;    /* for questions under way, and for readers that keep the bank's log; 0 = 10,000 */
    inferscale_progress_fn on_progress; /* of the proof: bytes. NULL = none */
    void *progress_ctx;
    int64_t *unknown;    /* room for n ids, or NULL: receives those of the ids that are not in the scope's memory, in their order */
    size_t *n_unknown;   /* may be NULL: receives how many of the ids those are; 0 if the call fails before it has forgotten */
} inferscale_forget_options;

#define INFERSCALE_FORGET_OPTIONS_INIT { .struct_size = sizeof(inferscale_forget_options) }

typedef struct inferscale_forget_report {
    uint64_t forgotten;      /* facts and turns deleted */
    uint64_t withdrawn;      /* source turns that stay in the record and are not used any more */
    uint64_t segments;       /* files of KV destroyed */
    uint64_t reencode;       /* other facts that lost KV because its context held what was forgotten: the next encode makes it anew */
    uint64_t pending;        /* questions that use what was forgotten and had not ended when the time was over (E_BUSY) */
    /* With prove: */
    int proven;              /* 1 = every file was searched for something (needles) and nothing found */
    uint64_t needles;        /* pieces looked for: of texts, normalised texts, vectors, 64-byte windows of KV */
    uint64_t unsearched;     /* pieces too short (under 8 bytes) or too uniform to look for, and windows beyond the limit of memory */
    uint64_t scanned_bytes, scanned_files;
    uint64_t traces;         /* hits that nothing accounts for; trace_text has the first ones, a line each: FILE, offset, what */
    uint64_t allowed;        /* hits that are no traces: what is kept says the same (another fact with that sentence); allowed_text the first ones */
    char trace_text[2048], allowed_text[2048];
} inferscale_forget_report;

/* inferscale_forget with all there is to say. report (may be NULL) is filled in also on failure. What the proof looks for is held in memory during
 * the call only. Not looked for: backups and exports elsewhere, older blocks of copy-on-write filesystems and SSDs, swap, core dumps, other
 * processes' memory. Errors as inferscale_forget; E_TRACE (a trace was found), E_BUSY (also: a reader keeps the bank's write-ahead log from being
 * emptied). In both cases all is forgotten, and its ids lead nowhere any more; end the reader, and a call with n = 0 empties the log. */
INFERSCALE_API inferscale_status inferscale_forget_with(inferscale *is, const inferscale_scope *scope, const int64_t *ids, size_t n,
                                                        const inferscale_forget_options *options, inferscale_forget_report *report);

/* ---- Find ---------------------------------------------------------------------------------------------------------------- */

enum { INFERSCALE_FACTS = 1, INFERSCALE_TURNS = 2 };
enum { INFERSCALE_FUSED = 0, INFERSCALE_LEXICAL = 1, INFERSCALE_DENSE = 2 };

typedef struct inferscale_item {
    int64_t id;
    int kind;                 /* INFERSCALE_FACTS or INFERSCALE_TURNS */
    int version;              /* facts: 1, 2, ... */
    double score;             /* searches: 0.01 to 1, how sure it is that it has to do with the query; else 0 */
    double score_lexical, score_dense, score_fused; /* its parts: BM25, cosine, what it was ranked by */
    int64_t event_time, write_time, valid_from, valid_to, expires, source_turn;
    const char *text;         /* owned by the list */
    const char *speaker;      /* turns; else "" */
    const char *conversation; /* turns; else "" */
    const char *external_id;  /* turns; else "" */
    const char *metadata;     /* JSON object */
    const char *user, *agent, *run, *app; /* attributes; "" if not set */
    int kv_ready;             /* facts: 1 if KV for the current model and policy is in the vault */
    int pinned;               /* facts: inferscale_pin */
    int withdrawn;            /* turns: a fact that came from it was forgotten; it is not found and not used any more */
    int expired;              /* 1 = its time is over: not found, not used; inferscale_forget_with (expired) deletes it */
    int64_t superseded_by;    /* facts: inferscale_supersede; 0 = none */
    int dated;                /* 1 = event_time was given, and the prompt shows it; 0 = it is the time of writing, and does not */
} inferscale_item;

typedef struct inferscale_list {
    size_t n;
    inferscale_item *items;
    double embed_ms, recall_ms; /* time spent; 0 in listings */
    size_t n_unembedded;        /* items that pass the filters and were looked for by words only; 0 if INFERSCALE_LEXICAL asked for words */
    unsigned fallbacks;         /* INFERSCALE_FALLBACK_WORDS_ONLY or _NOT_EMBEDDED: n_unembedded items were looked for by words only */
    char *fallback;             /* the same as a sentence, owned by the list; NULL = all was searched as asked */
    size_t n_embedded;          /* items that this search embedded first, as they had no vector yet */
    double index_ms;            /* of recall_ms: waiting until the owner's index was there; 0 in listings */
    int index_built;            /* 1 = it was built meanwhile, as at an owner's first search after a start: the next one is faster */
} inferscale_list;

INFERSCALE_API void inferscale_list_free(inferscale_list *list); /* NULL is allowed */

typedef struct inferscale_recall_options {
    size_t struct_size;
    uint32_t k;            /* 1..1000; 0 = 10 */
    int kinds;             /* INFERSCALE_FACTS | INFERSCALE_TURNS; 0 = FACTS */
    int method;            /* INFERSCALE_FUSED, _LEXICAL, _DENSE */
    int has_threshold;     /* 1 = drop items with score < threshold, but for pinned ones */
    double threshold;      /* 0 to 1 */
    int64_t from, to;      /* event time in [from, to]; 0 = open */
    int64_t as_of;         /* facts as they were valid at this time, older versions included; 0 = now */
    const char *metadata;  /* JSON object whose members must all be equal in the item's metadata; NULL = any */
} inferscale_recall_options;

#define INFERSCALE_RECALL_OPTIONS_INIT { .struct_size = sizeof(inferscale_recall_options) }

/* The k items of the scope that matter most for query, best first; scores fall in that order, but for pinned facts, which stand
 * first. *out is freed with inferscale_list_free. An unknown scope gives an empty list. Errors: E_INVALID, E_MODEL / E_ENGINE (embedder), E_IO. */
INFERSCALE_API inferscale_status inferscale_recall(inferscale *is, const inferscale_scope *scope, const char *query,
                                                   const inferscale_recall_options *options, inferscale_list **out);

/* Items in id order after after_id (0 = from the start), at most limit (0 = all). kinds as above (0 = both). */
INFERSCALE_API inferscale_status inferscale_ls(inferscale *is, const inferscale_scope *scope, int kinds, int64_t after_id,
                                               size_t limit, inferscale_list **out);

/* One item with all its versions, oldest first (facts) or the turn. Versions of a fact hold one after the other: after an update the older one's
 * valid_to is the newer one's valid_from (if it was to end earlier, that stays), and the last one's is what was given, 0 = open. A version that
 * began no earlier than the one that replaced it was corrected: its valid_to is its valid_from, it never held. A fact that was superseded has no
 * new version; the valid_to of its last one is the other fact's valid_from, and superseded_by its id. E_NOTFOUND if it is not in this scope. */
INFERSCALE_API inferscale_status inferscale_show(inferscale *is, const inferscale_scope *scope, int64_t id, inferscale_list **out);

/* Whose an item is: its tenant, and its owner and attributes under their names; "" if not set. For those who may ask about every owner: a
 * caller that may not must compare the answer with what it may see, and say "not found" where it differs. E_NOTFOUND. */
typedef struct inferscale_owner {
    char tenant[513], user[513], agent[513], run[513], app[513]; /* INFERSCALE_NAME_MAX + 1 */
} inferscale_owner;
INFERSCALE_API inferscale_status inferscale_whose(inferscale *is, int64_t id, inferscale_owner *out);

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
    uint64_t facts_encoded, sets_encoded, tokens_stored, tokens_computed; /* results; each policy makes a set of rows of a fact */
    int stage;                        /* INFERSCALE_STAGE_*; 0 = FIRST */
    const char *refine;               /* of the second stage; NULL = the handle's, "none" = off */
    uint64_t facts_left, rounded;     /* results: facts served as text (no room, or changing all the time); segments rounded to the codec */
} inferscale_encode_options;

#define INFERSCALE_ENCODE_OPTIONS_INIT { .struct_size = sizeof(inferscale_encode_options) }

/* Embeds and computes the KV of everything in the scope that lacks it. options may be NULL. Safe to interrupt. Where it is known
 * from an earlier call of the same program with the same models that nothing waits, no model is loaded. Errors:
 * E_MODEL, E_ENGINE, E_UNSUPPORTED (this model's KV cannot be injected; asking still works, from text), E_FULL, E_IO. */
INFERSCALE_API inferscale_status inferscale_encode(inferscale *is, const inferscale_scope *scope, inferscale_encode_options *options);

/* ---- Background encoder -------------------------------------------------------------------------------------------------- */

/* With inferscale_options.background a thread embeds and encodes what is remembered, by this handle and by others on the same store, in all
 * partitions by turns. remember returns when the text is durable and found by words; until a fact's KV is there it is served as text, and the answer
 * says so. Questions come first: work in progress is paused within milliseconds and goes on later, or in slices between their steps (encode_lag_s).
 * What waits is kept in the store alone, so a restart goes on where a kill stopped it. Of several handles on one store one does the work of a model,
 * policy and embedder, the others take over when it ends. The model is loaded when there is something to encode. Failures (a model that is gone, a
 * full disk) are kept here, logged, and tried again after 0.2 s to 60 s. Off by default: programs that end after a few calls use inferscale_encode */
typedef struct inferscale_encoder_state {
    size_t struct_size;
    int background;          /* 1 = this handle has a background encoder */
    int running;             /* 1 = it is working now */
    int elsewhere;           /* 1 = another handle or process does the work; this one watches */
    int model_known;         /* 0 = no model is loaded: n_unencoded counts facts without KV of any model */
    uint64_t n_unembedded;   /* items of the scope that wait for an embedding, those that cannot be embedded included */
    uint64_t n_unencoded;    /* facts of the scope that wait for KV under the handle's policy; 0 if the model's cannot be injected */
    uint64_t n_unrefined;    /* facts of the scope that wait for the second stage; 0 if there is none */
    uint64_t n_passed;       /* items of the scope that were passed over: too long for the model; text serves */
    double lag_s;            /* age of the oldest item that waits in the scope; 0 = none does */
    double facts_per_s;      /* of late, while encoding */
    uint64_t items_embedded, facts_encoded, facts_refined, tokens_stored, tokens_computed; /* by this handle's encoder */
    uint64_t aborted_for_questions; /* batches begun again as their computation was dropped (n_drops), for whatever; a question only pauses it */
    uint64_t n_errors;
    inferscale_status error; /* of the last failure; INFERSCALE_OK = all has succeeded since */
    char last_error[512];    /* its sentence, kept after it is over; "" = none yet */
    int64_t error_time;
    double retry_s;          /* until it is tried again */
    /* Rows of this handle's answers that were found missing or damaged: queued to be encoded again; too soon after the last time, so that they
     * rest; disputed: a server elsewhere could not use them, and they are well here */
    uint64_t damaged_queued, damaged_resting, damaged_disputed;
    /* Segments of the scope in more bytes than the handle's codec takes, and their bytes: of another codec, or of pages that are full now. They
     * wait to be rounded, computing nothing; 0 until a model is loaded. And how many this handle's encoder rounded or removed, bytes freed */
    uint64_t n_wide, wide_bytes, narrowed, narrowed_bytes;
    /* This handle's encoder beside questions: how long the store's oldest fact has waited for KV as far as it knows; the share of the engine's
     * time that this gives it while a question is open (0 = none); seconds with a question open, and those of them that it had; slices in
     * which it went on; pauses, which keep what was done; computations dropped for who needed what they held */
    double first_lag_s, share, questions_s, shared_s;
    uint64_t n_slices, n_pauses, n_drops;
} inferscale_encoder_state;

#define INFERSCALE_ENCODER_STATE_INIT { .struct_size = sizeof(inferscale_encoder_state) }

/* Fills *out (initialised with INFERSCALE_ENCODER_STATE_INIT) for a scope; NULL = the whole store, which looks at every item. Loads
 * no model. An owner nobody knows has nothing waiting. Errors: E_INVALID, E_IO. */
INFERSCALE_API inferscale_status inferscale_encode_status(inferscale *is, const inferscale_scope *scope, inferscale_encoder_state *out);

/* Waits until nothing of the scope (NULL = of the store) waits for its embedding or its KV, the second stage apart, at most
 * timeout_ms (< 0 = for ever). Errors: E_INVALID (no background encoder), E_BUSY (time is over; how many still wait), or what the
 * encoder fails with, when it has failed three times in a row. */
INFERSCALE_API inferscale_status inferscale_encode_wait(inferscale *is, const inferscale_scope *scope, int64_t timeout_ms);

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
    int stage;             /* 0 = the best rows there are; INFERSCALE_STAGE_FIRST or _REFINE = that stage's only, and text for facts without them */
} inferscale_ask_options;

#define INFERSCALE_ASK_OPTIONS_INIT { .struct_size = sizeof(inferscale_ask_options) }

/* One token of an answer, or one that could have stood in its place. */
typedef struct inferscale_token {
    int32_t id;
    const char *bytes;     /* its bytes, not always whole characters; NUL-terminated behind len */
    size_t len;
    double logprob;        /* natural logarithm, over the whole vocabulary, before temperature and cuts */
    const struct inferscale_token *top; /* [n_top] the likeliest instead, best first */
    size_t n_top;
} inferscale_token;

typedef struct inferscale_used {
    int64_t id;
    int version;
    double score;          /* as in inferscale_item; 0 = it was not searched for */
    uint32_t tokens;
    int source;            /* INFERSCALE_SOURCE_* */
    char policy[32];       /* STORED: the encoding policy that made the rows; else "" */
} inferscale_used;

/* Why an answer did less than was asked for. */
enum {
    INFERSCALE_FALLBACK_NOT_ENCODED = 1 << 0,        /* facts had no KV yet and were computed as text */
    INFERSCALE_FALLBACK_NO_INJECTION = 1 << 1,       /* this model's KV cannot be injected */
    INFERSCALE_FALLBACK_DAMAGED = 1 << 2,            /* segments were missing, damaged or not to be read just now */
    INFERSCALE_FALLBACK_REFUSED = 1 << 3,            /* the engine refused the stored rows */
    INFERSCALE_FALLBACK_COMPUTED_AFTER_ALL = 1 << 4, /* an engine elsewhere did not use them */
    INFERSCALE_FALLBACK_CONTEXT_FULL = 1 << 5,       /* facts were left out */
    INFERSCALE_FALLBACK_TURNS_DROPPED = 1 << 6,      /* the oldest turns were left out */
    INFERSCALE_FALLBACK_PLACEMENT_NOT_KEPT = 1 << 7, /* where memory stood could not be written down */
    INFERSCALE_FALLBACK_WORDS_ONLY = 1 << 8,         /* the search was by words alone */
    INFERSCALE_FALLBACK_NOTHING_REMEMBERED = 1 << 9, /* there is nothing of this owner's */
    INFERSCALE_FALLBACK_CHANGED_MEANWHILE = 1 << 10, /* a fact was changed or forgotten, and the answer ends there */
    INFERSCALE_FALLBACK_CHANGED_EARLIER = 1 << 11,   /* one that earlier turns used */
    INFERSCALE_FALLBACK_NOT_EMBEDDED = 1 << 12,      /* facts have no vector yet and were looked for by words only */
    INFERSCALE_N_FALLBACKS = 13
};
/* "not_encoded", ... of bit i (0 to INFERSCALE_N_FALLBACKS - 1); NULL beyond. Static. */
INFERSCALE_API const char *inferscale_fallback_name(unsigned i);

typedef struct inferscale_answer {
    char *text;
    const char *finish;    /* "stop", "length" or "cancelled"; static */
    int mode;              /* what was really done; differs from what was asked only with fallback set */
    char *fallback;        /* why facts were computed instead of injected, or left out, or that nothing is remembered for this
                              owner; "" if nothing of the kind */
    inferscale_used *facts; /* in prompt order (best last in its group) */
    size_t n_facts, n_dropped; /* n_dropped: facts found but left out because the context is full (the worst ones) */
    uint32_t tokens_prompt, tokens_computed, tokens_injected, tokens_resident, tokens_answer;
    double ttft_ms;        /* question in to first token out, everything included */
    double embed_ms, recall_ms, plan_ms, compose_ms, inject_ms, question_ms, first_token_ms, total_ms;
    size_t n_refined;      /* facts injected from rows of the second stage */
    size_t n_exact;        /* facts injected from rows that are exact where they stand (the prompt's first, behind the bare header) */
    const char *header;    /* inferscale_complete: "exact" (the prompt begins with what facts were encoded after), "generic" (another system
                              text stands there: one more approximation), "none" (no memory); static */
    size_t n_placed_kept, n_placed_new, n_placed_lost; /* turns of the conversation whose memory stands where it stood, was placed
                              now, or was lost (a fact of it was changed or forgotten, or nobody remembers it) */
    inferscale_token *tokens; /* logprobs = 1: the answer's tokens in order; else NULL */
    size_t n_tokens;
    const char *stopped_by;   /* the stop string that ended it, borrowed from the options; NULL = none */
    size_t n_turns_dropped;   /* on_full: oldest turns left out */
    unsigned fallbacks;       /* INFERSCALE_FALLBACK_*: what fallback says, for programs */
    size_t n_unembedded;      /* facts that were looked for by words only */
    double index_ms; int index_built; /* as in inferscale_list */
    char rows_digest[65];     /* hex; equal = equal facts from equal rows, as really used, earlier turns' too (docs/server.md); "" = no fact */
} inferscale_answer;

INFERSCALE_API void inferscale_answer_free(inferscale_answer *answer); /* NULL is allowed */

/* Finds the facts that matter, plans, injects (or computes) them and answers. *out is freed with inferscale_answer_free. When
 * KV cannot be used the same plan is computed as text: answer->fallback says why. Errors: E_INVALID, E_MODEL, E_ENGINE,
 * E_CONTEXT (the question alone does not fit), E_CANCELLED, E_IO. */
INFERSCALE_API inferscale_status inferscale_ask(inferscale *is, const inferscale_scope *scope, const char *question,
                                                const inferscale_ask_options *options, inferscale_answer **out);

/* What inferscale_ask would run, without running it. */
typedef struct inferscale_preview_part {
    const char *role;       /* "header", "fact", "footer", "question" or "tail"; static */
    int source;             /* INFERSCALE_SOURCE_*: who would provide its KV */
    int64_t id;             /* facts; else 0 */
    int version;
    double score;           /* as in inferscale_used */
    uint32_t position, tokens;
    const char *text;       /* as the model would read it, control tokens written out */
} inferscale_preview_part;

typedef struct inferscale_preview {
    int mode;               /* as in inferscale_answer */
    char *prompt, *fallback;
    inferscale_preview_part *parts; /* in prompt order */
    size_t n_parts, n_dropped;
    uint32_t tokens_prompt, tokens_stored, tokens_computed;
    double embed_ms, recall_ms, plan_ms;
    unsigned fallbacks;     /* as in inferscale_answer */
    size_t n_unembedded;
} inferscale_preview;

/* Finds the facts and plans, as inferscale_ask does with the same arguments; the model's tokenizer is used, the model does not run.
 * *out is freed with inferscale_preview_free. Errors as inferscale_ask. */
INFERSCALE_API inferscale_status inferscale_dry_run(inferscale *is, const inferscale_scope *scope, const char *question,
                                                    const inferscale_ask_options *options, inferscale_preview **out);
INFERSCALE_API void inferscale_preview_free(inferscale_preview *preview); /* NULL is allowed */

/* A conversation: earlier turns stay in the engine's cache; new memory is placed before the newest user turn. When its store is
 * closed it refuses to go on (E_INVALID), and is still to be closed. */
typedef struct inferscale_chat inferscale_chat;
INFERSCALE_API inferscale_status inferscale_chat_open(inferscale *is, const inferscale_scope *scope, inferscale_chat **out);
INFERSCALE_API inferscale_status inferscale_chat_say(inferscale_chat *chat, const char *text, const inferscale_ask_options *options,
                                                     inferscale_answer **out);
INFERSCALE_API void inferscale_chat_close(inferscale_chat *chat); /* NULL is allowed; also after inferscale_close */

/* ---- Complete: what a server is asked ------------------------------------------------------------------------------------ */

typedef struct inferscale_message {
    const char *role;      /* "system", "user" or "assistant"; system messages first, then user and assistant by turns, a user last */
    const char *content;   /* not empty; control tokens written out in it stay text */
} inferscale_message;

/* Where memory stands. TURNS: before the newest user turn, and in earlier turns where it stood then: the conversation's prefix stays as it
 * was. FRONT: all of it behind the header, as the paper has it: every new turn computes the earlier ones again. */
enum { INFERSCALE_LAYOUT_TURNS = 0, INFERSCALE_LAYOUT_FRONT = 1 };

typedef struct inferscale_bias { int32_t token; double bias; } inferscale_bias;

typedef struct inferscale_complete_options {
    size_t struct_size;
    inferscale_ask_options ask;    /* initialised with INFERSCALE_ASK_OPTIONS_INIT */
    int layout;                    /* INFERSCALE_LAYOUT_* */
    const int64_t *ids;            /* [n_ids] the facts to use, best first, instead of searching; unknown ones: E_NOTFOUND */
    size_t n_ids;
    const char *prompt;            /* n_messages 0: this text as it is, no chat format, no memory */
    const char *const *stop;       /* [n_stop] strings that end the answer, not part of it; at most 16 of at most 256 bytes */
    size_t n_stop;
    int logprobs;                  /* 1 = answer->tokens */
    uint32_t top_logprobs;         /* of each token, at most 20 */
    double presence_penalty, frequency_penalty; /* -2 .. 2 */
    const inferscale_bias *bias;   /* [n_bias] added to logits; at most 1024 */
    size_t n_bias;
    const char *grammar;           /* GBNF that the answer must follow, from "root"; NULL = free. E_PARSE, E_UNSUPPORTED (the engine) */
    int on_full;                   /* 0 = E_CONTEXT; 1 = leave out the oldest turns */
    int (*on_token)(void *ctx, const inferscale_token *token); /* with logprobs, before on_text gets its text; NULL = none */
    void *token_ctx;
    void (*on_plan)(void *ctx, const inferscale_answer *so_far); /* once, when the prompt has its place in the engine and before the first
                                      token: facts, tokens of the prompt, mode, header, placements and times so far; NULL = none */
    void *plan_ctx;
    const char *cache_salt;        /* a conversation that stays in the engine goes on only under the same one; for callers who share a handle
                                      without memory and are not to notice one another. NULL = none */
    void (*on_accepted)(void *ctx); /* once, when the prompt fits and nothing that was asked for is refused any more, before any of it is
                                      computed: a server begins its stream here. The prompt may still be planned anew if memory
                                      changes; NULL = none */
    void *accepted_ctx;
    int endless;                   /* 1 = the tokens that end an answer are never chosen: it has max_tokens, unless a stop string ends it. For
                                      load tests, which want answers of one length. Not with a grammar: E_INVALID */
} inferscale_complete_options;

#define INFERSCALE_COMPLETE_OPTIONS_INIT                                                                                       \
    { .struct_size = sizeof(inferscale_complete_options), .ask = INFERSCALE_ASK_OPTIONS_INIT }

/* Answers the newest user message of a conversation that the caller sends in full each time. scope NULL = without memory. Which facts
 * stood before which turn is kept in the store, by the hash of the messages before it: a restart, another process, a fork of the
 * history find it again. A turn whose memory was changed or forgotten is computed without it. System messages other than the
 * handle's system text serve too (answer->header says "generic"). options may be NULL. *out is freed with inferscale_answer_free.
 * Many threads may call: they share the engine's steps. Errors as inferscale_ask, E_CONTEXT if it does not fit. */
INFERSCALE_API inferscale_status inferscale_complete(inferscale *is, const inferscale_scope *scope, const inferscale_message *messages,
                                                     size_t n_messages, const inferscale_complete_options *options, inferscale_answer **out);

/* The text's tokens in the model's own numbers, as a question would have them; *ids (n of them) is freed with inferscale_tokens_free. */
INFERSCALE_API inferscale_status inferscale_tokenize(inferscale *is, const char *text, int32_t **ids, size_t *n);
INFERSCALE_API void inferscale_tokens_free(int32_t *ids); /* NULL is allowed */

/* Vectors of the texts, [n][dim], unit length, each of as much of its text as the embedder reads; *out is freed with
 * inferscale_vectors_free. Errors: E_INVALID (blank, not UTF-8),
 * E_MODEL, E_ENGINE. */
INFERSCALE_API inferscale_status inferscale_embed(inferscale *is, const char *const *texts, size_t n, float **out, uint32_t *dim);
/* The same, and no text is cut unawares: cut[i] (may be NULL) = 1 if text i is longer than the embedder reads. Such a text is cut if
 * may_cut is not 0; else the call is E_CONTEXT at the first of them. *n_tokens (may be NULL) = the tokens that were embedded, in the
 * embedder's own count; 0 where an endpoint does not say. */
INFERSCALE_API inferscale_status inferscale_embed_whole(inferscale *is, const char *const *texts, size_t n, int may_cut, int *cut,
                                                        float **out, uint32_t *dim, uint64_t *n_tokens);
INFERSCALE_API void inferscale_vectors_free(float *vectors); /* NULL is allowed */

/* From now on nothing is loaded any more: a model that is being loaded, by whichever call or thread, is dropped within about a second, and
 * that call is E_CANCELLED, as every later one that would load. For who wants to end; inferscale_close follows. NULL is allowed. */
INFERSCALE_API void inferscale_stop_loading(inferscale *is);

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

/* ---- Looking after a store ----------------------------------------------------------------------------------------------- */

/* A finding. docs/design.md lists the kinds. */
typedef struct inferscale_problem {
    const char *kind;  /* short and stable; owned by the report, as what is */
    const char *what;  /* a sentence */
    int repaired;      /* 1 = mended; -1 = no damage: the next open for writing removes it */
} inferscale_problem;

typedef struct inferscale_fsck_options {
    size_t struct_size;
    int repair;        /* 1 = drop what is wrong in views, so that it is made again; what is remembered is never touched */
    int quick;         /* 1 = segment files are looked for, not read */
    inferscale_progress_fn on_progress;
    void *progress_ctx;
} inferscale_fsck_options;

#define INFERSCALE_FSCK_OPTIONS_INIT { .struct_size = sizeof(inferscale_fsck_options) }

typedef struct inferscale_fsck_report {
    int ok;            /* nothing is wrong, or nothing any more */
    size_t n_problems; /* listed */
    inferscale_problem *problems;
    uint64_t n_more;   /* beyond the 10,000 that are listed */
    uint64_t n_owners, n_segments, n_files, bytes_read; /* what was checked */
} inferscale_fsck_report;

/* Checks bank, books and vault against each other, while the store is in use. *out is freed with inferscale_fsck_free. Damage is in
 * the report, not an error. Errors: E_READONLY (repair), E_CANCELLED, E_IO, E_NOMEM. */
INFERSCALE_API inferscale_status inferscale_fsck(inferscale *is, const inferscale_fsck_options *options, inferscale_fsck_report **out);
INFERSCALE_API void inferscale_fsck_free(inferscale_fsck_report *report); /* NULL is allowed */

typedef struct inferscale_gc_options {
    size_t struct_size;
    const char *keep;   /* views to keep, commas between: "current" (this handle's model, system text, codec and embedder), hex digits
                           that a model of inferscale_usage begins with (8 or more), "policy:NAME"; NULL = all. With a policy only
                           segments of the policies named are kept. */
    uint64_t max_bytes; /* budget of the vault; what is least useful goes first; 0 = none */
    int compact;        /* 1 = make the database file anew without gaps: writers wait meanwhile */
    int dry_run;        /* 1 = only say what would be done */
    inferscale_progress_fn on_progress;
    void *progress_ctx;
    /* results */
    uint64_t unnamed_files, bad_files, left_over_files; /* files that nothing names, were set aside, or left by a crash */
    uint64_t view_files, view_embeddings;               /* of views that are not kept */
    uint64_t evicted_files;                             /* for the budget; their facts are served as text until they are encoded again */
    uint64_t removed_bytes, vault_bytes, bank_freed_bytes; /* vault_bytes: afterwards */
    int unnamed;        /* asked, not a result: 1 = remove KV files that no book names, and what lost memories left (home/lost-N) */
    uint64_t kept_unnamed_files, kept_unnamed_bytes;       /* results: without it they are kept */
} inferscale_gc_options;

#define INFERSCALE_GC_OPTIONS_INIT { .struct_size = sizeof(inferscale_gc_options) }

/* Removes what nobody needs any more. options may be NULL. Only views and left-overs, never what is remembered. KV files that no book
 * names are another bank's (a lost or a newer one): they go only with options->unnamed. Errors:
 * E_INVALID (keep), E_READONLY, E_MODEL / E_ENGINE (keep "current"), E_CANCELLED, E_IO. */
INFERSCALE_API inferscale_status inferscale_gc(inferscale *is, inferscale_gc_options *options);

typedef struct inferscale_backup_options {
    size_t struct_size;
    int no_vault;       /* 1 = leave the KV out: smaller, and computed again after a restore */
    int link;           /* 1 = second names instead of copies of KV files where the filesystem can: at once and without space, but
                           forgetting later overwrites them there too */
    inferscale_progress_fn on_progress;
    void *progress_ctx;
    /* results */
    uint64_t bank_bytes, vault_files, vault_bytes, linked_files, missing_files; /* missing: encoded again after a restore */
} inferscale_backup_options;

#define INFERSCALE_BACKUP_OPTIONS_INIT { .struct_size = sizeof(inferscale_backup_options) }

/* Copies the store as it is at one instant to the folder dir (new, empty, or holding a backup that was interrupted), while others read
 * and write. It is whole when its manifest, written last, is there. options may be NULL. A backup keeps what is forgotten later.
 * Errors: E_INVALID (dir is not empty), E_FULL, E_IO, E_CANCELLED. */
INFERSCALE_API inferscale_status inferscale_backup(inferscale *is, const char *dir, inferscale_backup_options *options);

typedef struct inferscale_restore_options {
    size_t struct_size;
    int verify_only;    /* 1 = only check the backup, with every checksum; home is not used */
    inferscale_progress_fn on_progress;
    void *progress_ctx;
    /* results */
    int64_t created;    /* when the backup was made */
    uint64_t bank_bytes, vault_files, vault_bytes;
    uint64_t bad_files; /* KV files that are missing or damaged: left out, encoded again */
} inferscale_restore_options;

#define INFERSCALE_RESTORE_OPTIONS_INIT { .struct_size = sizeof(inferscale_restore_options) }

/* Makes a store in home (new or empty; NULL = the default) from a backup. Never overwrites: E_INVALID. A home that has lost its bank
 * takes the backup too: its vault stays, what is left of the bank is set aside in home/lost-N, and ids go on above all that were given
 * there. options may be NULL. Errors: E_NOTFOUND (no whole backup there), E_CORRUPT (bank or manifest do not match their checksums),
 * E_FOREIGN (also: a backup of another memory than the one that home lost), E_FULL, E_IO. */
INFERSCALE_API inferscale_status inferscale_restore(const char *dir, const char *home, inferscale_restore_options *options);

typedef struct inferscale_usage_row {
    const char *tenant, *owner_kind, *owner; /* "user", "agent", "run" or "app", and its name; owned by the report, as all strings */
    const char *what;     /* "text", "embeddings" or "segments" */
    char model[65];       /* hex of what made the view: embedder, or model with system text and codec; "" for text */
    const char *policy;   /* segments; else "" */
    int current;          /* 1 = the view of the model or embedder that this handle has loaded */
    uint64_t n, bytes;    /* items or segments; bytes of text, of vectors, of files (a shared file counts once) */
} inferscale_usage_row;

typedef struct inferscale_usage_report {
    size_t n;
    inferscale_usage_row *rows; /* by owner, then what, model, policy */
    uint64_t bank_bytes, bank_free_bytes, log_bytes; /* the database file, what of it is empty, its write-ahead log */
    uint64_t vault_bytes, vault_files, unnamed_bytes; /* all files of the vault; those that no row of the books names */
    uint64_t wide_bytes; int model_known; /* files that wait to be stored in fewer bytes (encoder_state.n_wide); 1 = it is known, a model is loaded */
} inferscale_usage_report;

/* Bytes by owner, model and policy; scope NULL = of all owners. *out is freed with inferscale_usage_free. Errors: E_IO, E_NOMEM. */
INFERSCALE_API inferscale_status inferscale_usage(inferscale *is, const inferscale_scope *scope, inferscale_usage_report **out);
INFERSCALE_API void inferscale_usage_free(inferscale_usage_report *report); /* NULL is allowed */

enum { INFERSCALE_REBUILD_EMBEDDINGS = 1, INFERSCALE_REBUILD_INDEX = 2, INFERSCALE_REBUILD_KV = 4, INFERSCALE_REBUILD_ALL = 7 };

typedef struct inferscale_rebuild_options {
    size_t struct_size;
    int what;             /* INFERSCALE_REBUILD_*, added; 0 = ALL */
    inferscale_progress_fn on_progress;
    void *progress_ctx;
    uint64_t owners, embedded, facts_encoded, tokens_stored, tokens_computed; /* results */
} inferscale_rebuild_options;

#define INFERSCALE_REBUILD_OPTIONS_INIT { .struct_size = sizeof(inferscale_rebuild_options) }

/* Makes views anew from what is remembered, for the handle's model, system text, codec, policy and embedder; scope NULL = for all
 * owners. What is there serves until its replacement takes its place; views of other models stay beside it. options may be NULL. Safe to
 * interrupt. Errors as inferscale_encode. */
INFERSCALE_API inferscale_status inferscale_rebuild(inferscale *is, const inferscale_scope *scope, inferscale_rebuild_options *options);

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

/* ---- KV section, the rest: what a connector inside another engine needs (docs/vllm.md) ------------------------------------ */

/* One rotary embedding of the live engine. w[n_pairs]: radians per position. table (may be NULL: computed from w): what the engine itself
 * multiplies by, [n_pos][2 * n_pairs] floats, cosines then sines, rounded as the engine keeps it; keys are then rotated with it. */
typedef struct inferscale_kv_freqs {
    uint32_t n_pairs, n_pos;
    double mscale;
    const double *w;
    const float *table;
} inferscale_kv_freqs;

/* How an engine computes y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin. One of these, plus INFERSCALE_ROT_CUT if 16 bits are cut out of the
 * F32 result instead of rounded, plus INFERSCALE_ROT_BLOCK(n, rest) if only whole blocks of n pairs of a head are done so and the pairs that
 * are left by the arithmetic `rest` (one of the first four). */
enum {
    INFERSCALE_ROT_F32 = 0,       /* in F32, each operation rounded; the result rounded once to the cache's type */
    INFERSCALE_ROT_PRODUCTS = 1,  /* each product and the result rounded to the cache's type (torch's own operators) */
    INFERSCALE_ROT_FUSED_SIN = 2, /* in F32; the product with the sine goes unrounded into the sum (fused multiply-add) */
    INFERSCALE_ROT_FUSED_COS = 3, /* in F32; the product with the cosine does */
    INFERSCALE_ROT_CUT = 16
};
#define INFERSCALE_ROT_BLOCK(n, rest) ((n) << 8 | (rest) << 16)

/* A live model's cache: all layers and all KV heads of the model, whatever part of them this worker holds. All is copied. */
typedef struct inferscale_kv_desc {
    size_t struct_size;
    uint32_t n_planes, n_freqs;
    const inferscale_plane *planes;   /* in the order layer 0 K, layer 0 V, layer 1 K, ...; latent attention: one plane a layer */
    const inferscale_kv_freqs *freqs;
    uint8_t fingerprint[32];          /* of the model; segments of another are refused */
    int rotation;                     /* INFERSCALE_ROT_*: the engine's arithmetic, until inferscale_kv_match finds it out */
    const char *const *dirs;          /* [n_dirs] folders with segments DIR/ab/abcd....seg; may not exist yet */
    uint32_t n_dirs;
    uint64_t ram_bytes;               /* verified segments kept in memory; 0 = 256 MiB */
} inferscale_kv_desc;

#define INFERSCALE_KV_DESC_INIT { .struct_size = sizeof(inferscale_kv_desc) }

typedef struct inferscale_kv inferscale_kv;

/* *out is closed with inferscale_kv_close. Any number of threads may use one. Errors: E_INVALID (an inconsistent description), E_NOMEM. */
INFERSCALE_API inferscale_status inferscale_kv_open(const inferscale_kv_desc *desc, inferscale_kv **out);
INFERSCALE_API void inferscale_kv_close(inferscale_kv *kv); /* NULL is allowed */
/* The geometry's serial form: equal bytes for equal geometries. Owned by kv. */
INFERSCALE_API inferscale_status inferscale_kv_geometry(const inferscale_kv *kv, const uint8_t **bytes, size_t *n);

/* Finds out how the live engine rotates: keys[n_tokens][n_heads][head_dim] of `type` (the cache's), contiguous, and what the engine made of
 * them when token i stood at position pos + i. The arithmetic that gives the same bits is kept for all planes with the same rotary
 * embedding; *rotation (may be NULL) = it. Before the handle is shared. E_UNSUPPORTED: none does (the handle is as it was), E_INVALID. */
INFERSCALE_API inferscale_status inferscale_kv_match(inferscale_kv *kv, uint32_t plane, int type, const void *keys,
                                                     const void *rotated, uint32_t n_tokens, uint32_t n_heads, uint32_t pos,
                                                     int *rotation);

/* A piece of a prompt: tokens [begin, begin + n_tokens) of the segment `name` in folder dirs[dir], the first of them at position pos. */
typedef struct inferscale_kv_part {
    uint8_t name[32];
    uint32_t dir, begin, n_tokens, pos;
} inferscale_kv_part;

/* Is the segment there, of this model, and are its tokens those of the prompt at part->pos? Reads the head of the file only, and not again
 * until the file changes.
 * prompt: [n_prompt] token ids. E_NOTFOUND, E_CORRUPT (torn), E_FOREIGN (another model or format), E_INVALID (other tokens), E_IO. */
INFERSCALE_API inferscale_status inferscale_kv_check(inferscale_kv *kv, const inferscale_kv_part *part, const int32_t *prompt,
                                                     uint32_t n_prompt);

/* What memory holds of these segments, in whatever folder, is overwritten and freed; by an open load when that is closed. */
INFERSCALE_API void inferscale_kv_forget(inferscale_kv *kv, const uint8_t (*names)[32], size_t n);

/* Parts made ready to be read: the bytes of planes in [plane_begin, plane_end) and of heads [head_begin, head_end) are read and their
 * checksums verified, no others (of planes that have one head: that one). Nothing changes under an open load. *bad (may be NULL)
 * = the part that failed. Errors as inferscale_kv_check, E_NOMEM. */
typedef struct inferscale_kv_load inferscale_kv_load;
INFERSCALE_API inferscale_status inferscale_kv_load_open(inferscale_kv *kv, const inferscale_kv_part *parts, size_t n,
                                                         uint32_t plane_begin, uint32_t plane_end, uint32_t head_begin,
                                                         uint32_t head_end, inferscale_kv_load **out, size_t *bad);
INFERSCALE_API void inferscale_kv_load_close(inferscale_kv_load *load); /* NULL is allowed */
/* One plane of all parts, one after another: dst[token][head][dim] of dst_type (INFERSCALE_F32 ...), strides in elements, keys rotated to
 * their positions. E_INVALID. */
INFERSCALE_API inferscale_status inferscale_kv_load_read(const inferscale_kv_load *load, uint32_t plane, int dst_type, void *dst,
                                                         size_t token_stride, size_t head_stride);

/* Writes captured rows as a segment file at path (to path.part, synced, renamed): of planes [plane_begin, plane_end) and heads
 * [head_begin, head_end), its geometry being that part of the model's. rows[i]: plane plane_begin + i, [n_tokens][heads][head_dim] of
 * src_type, contiguous, keys WITHOUT position; kept in that type. E_INVALID, E_IO, E_FULL, E_DENIED, E_NOMEM. */
INFERSCALE_API inferscale_status inferscale_kv_write(inferscale_kv *kv, const char *path, const int32_t *tokens, uint32_t n_tokens,
                                                     uint32_t n_context, uint32_t plane_begin, uint32_t plane_end,
                                                     uint32_t head_begin, uint32_t head_end, int src_type, const void *const *rows);

/* Keyed hash of n bytes, 32 out: fingerprints and names. key: 32 bytes, or NULL. */
INFERSCALE_API void inferscale_hash(const uint8_t *key, const void *bytes, size_t n, uint8_t out[32]);

/* ---- Tickets: what a gateway lets a connector do (docs/vllm.md) ------------------------------------------------------------- */

enum { INFERSCALE_TICKET_DESCRIBE = 1, INFERSCALE_TICKET_INJECT = 2, INFERSCALE_TICKET_CAPTURE = 3, INFERSCALE_TICKET_REVOKE = 4,
       INFERSCALE_TICKET_STATUS = 5 };

typedef struct inferscale_ticket {
    size_t struct_size;
    int op;
    uint8_t id[16], fingerprint[32], tag[32], salt[32];
    uint64_t epoch;
    int64_t expires;                   /* seconds since the epoch */
    uint32_t n_prompt;
    uint8_t prompt_hash[32];           /* inferscale_hash(NULL, ids as little-endian i32) */
    uint32_t n_parts;                  /* <= 65,536 */
    const inferscale_kv_part *parts;   /* ascending by pos, not overlapping, inside the prompt */
    uint32_t capture_from, capture_n;
} inferscale_ticket;

#define INFERSCALE_TICKET_INIT { .struct_size = sizeof(inferscale_ticket) }

/* The signed text of a ticket (base64url); freed with inferscale_ticket_text_free. secret: 32 bytes. E_INVALID, E_NOMEM. */
INFERSCALE_API inferscale_status inferscale_ticket_write(const inferscale_ticket *ticket, const uint8_t secret[32], char **text);
INFERSCALE_API void inferscale_ticket_text_free(char *text);
/* Reads and verifies; now: seconds since the epoch. *out is freed with inferscale_ticket_free. E_PARSE (no ticket), E_DENIED (not signed with
 * this secret), E_STALE (its time is over), E_INVALID (signed nonsense), E_NOMEM. Safe for any bytes; the signature is compared in constant time. */
INFERSCALE_API inferscale_status inferscale_ticket_read(const char *text, const uint8_t secret[32], int64_t now, inferscale_ticket **out);
INFERSCALE_API void inferscale_ticket_free(inferscale_ticket *ticket); /* of inferscale_ticket_read; NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
