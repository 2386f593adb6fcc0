/* handle.h - what is behind the public handle. Bank and vault are open from the start; model and embedder are loaded at first use. */
#ifndef IS_API_HANDLE_H
#define IS_API_HANDLE_H

#include <pthread.h>

#include "api/loader.h"
#include "base/log.h"
#include "embed/calibrate.h"
#include "embed/embed.h"
#include "encode/encode.h"
#include "recall/recall.h"

/* The embedder's loader, and how it has been of late: one elsewhere that fails is left alone for a while. */
typedef struct is_embedder_slot {
    is_loader loader;
    pthread_mutex_t lock;    /* of what follows */
    double retry_ms;         /* questions do not ask it before (is_now_ms); 0 = it is well */
    uint32_t delay_ms;
    bool trying;             /* a question asks it again, for all others */
    is_status status;        /* of the last failure, with its sentence */
    char why[256];
    uint64_t n_failed, n_spared; /* questions that failed; that did not ask because another had failed just before */
} is_embedder_slot;

/* What the embedder's cosines mean (calibrate.h). */
typedef struct is_measured {
    pthread_mutex_t lock;    /* of what follows */
    is_calibration calibration;
    bool known, measuring;   /* measuring: a thread is at it */
    double retry_ms;         /* not before (is_now_ms) */
} is_measured;

struct inferscale {
    is_logger logger;              /* of what is done for this handle */
    /* set by open, then constant */
    char *home, *model, *embedder_spec, *embedder_key, *engine_name, *plugin_dir, *system;
    char *upstream, *upstream_key; /* of an engine that computes elsewhere; NULL = none */
    uint32_t n_ctx, n_threads, n_parallel;
    int flash_attention;
    is_policy policy, refine;  /* of the stages; see is_handle_policies */
    bool has_refine;
    bool read_only;
    int question_embed_ms;     /* as inferscale_options */
    uint32_t question_embed_texts;
    is_bank *bank;
    is_vault *vault;
    is_recall *recall;
    uint32_t embedder_wait_ms; /* 0 = the default */
    volatile int load_off;   /* nothing is loaded any more, what loads ends; atomic */
    inferscale_loading_fn on_loading; /* set by open; may be NULL */
    void *loading_ctx;
    /* Loaded once, each by its own loader (load.c), and read without a lock by those whom the loader gave OK; others read profile and
     * embedder atomically, which are published last. */
    is_loader engine_loader;
    is_engine *engine;
    is_profile *profile;
    pthread_mutex_t codec_lock; /* of codec and profiles; see store_codec.h */
    char codec[IS_BANK_CODEC_BYTES]; /* the store's, as it was named: a codec's name, "auto", or "" = the engine's default */
    bool codec_named;        /* when this handle was opened; set by open */
    bool codec_told;         /* that it is another than before; set by open */
    bool codec_alone;        /* the store keeps another: it is read-only, or full. Set by open */
    is_profile *profiles[IS_CODECS]; /* those made so far; they live as long as the handle, and profile is one of them */
    is_rope *rope;           /* NULL if the model cannot be injected */
    is_embedder_slot embedder_slot;
    is_embedder *embedder;
    is_measured measured;
    pthread_mutex_t chats_lock; /* of the list of those that are open */
    inferscale_chat *chats;
    struct is_talks *talks;  /* conversations that may go on (talks.h) */
    pthread_mutex_t holds_lock;
    struct is_hold *holds;   /* questions under way (hold.h), a list; under holds_lock */
    pthread_mutex_t watch_lock; /* held to publish it only */
    is_bank *watch;          /* reads epochs between tokens; opened at the first question, then constant; bank = it could not be. Atomic */
    pthread_rwlock_t listener_lock;
    const struct is_listener *listener; /* of answers (listen.h); under listener_lock */
    is_gate *gate;           /* entered by every question; engine and embedder know it */
    struct is_background *background; /* NULL = no background encoder */
    struct is_damage *damage; /* segments that failed (damage.h) */
    struct is_catch_up *catch_up; /* embedding inside questions (catch_up.h) */
    char *notice;            /* why it is read-only though it was to be written to; NULL = it is as asked. Set by open */
};

/* Ends the open chats' runs: from now on they refuse to speak, and can still be closed. */
void is_handle_end_chats(inferscale *is);

/* Each loads what is missing; threads wait for the first. */
is_status is_handle_engine(inferscale *is);
is_status is_handle_engine_within(inferscale *is, uint32_t ms); /* servers elsewhere that are not up are not waited for longer */
is_status is_handle_embedder(inferscale *is);            /* patiently: for work that is not a question's */
/* The file (is_free'd) that the engine or the embedder is loaded from, or the address of the server that computes. */
is_status is_handle_model_path(const inferscale *is, char **path);
is_status is_handle_embedder_path(const inferscale *is, char **path, bool *remote);
/* A question's vectors of texts[n], out = a new [n][dim] (is_free): the embedder is loaded if need be, and asked no longer than its limit.
 * One elsewhere that has failed is not asked again for a while (1 s, doubling to 60 s, then one question tries): E_ENGINE at once. *cancel
 * (NULL = none) ends the waiting. */
is_status is_handle_question_vectors(inferscale *is, const char *const *texts, size_t n, const volatile int *cancel, float **out);
/* Does it answer questions, as far as is known? *n_failed: questions that it failed; *n_spared: that did not ask it after that. */
bool is_handle_embedder_state(inferscale *is, uint64_t *n_failed, uint64_t *n_spared);
/* The embedder has answered somebody else: questions may ask it again. */
void is_handle_embedder_well(inferscale *is);
/* Does the engine compute elsewhere? Known without loading it, but for the mock's. */
bool is_handle_is_remote(const inferscale *is);
/* What is loaded already, by whatever thread; NULL = nothing is. Loading publishes them last, so what they need is there too. */
const is_profile *is_handle_profile(inferscale *is);
is_embedder *is_handle_embedder_if_loaded(inferscale *is);
is_engine *is_handle_engine_if_loaded(inferscale *is);
is_encoder is_handle_encoder(inferscale *is);            /* after is_handle_engine; with is_handle_embedder's vectors if it was loaded */

/* The policies of one stage (INFERSCALE_STAGE_FIRST or _REFINE), in the order they are to be encoded; returns how many (0 = the
 * stage is off). Refining is the refine policy's rows, and those behind the bare header for the fact that comes first in a plan. */
enum { IS_STAGE_POLICIES = 2 };
size_t is_handle_policies(const inferscale *is, int stage, is_policy out[IS_STAGE_POLICIES]);
/* Does this handle make rows that are stored in other codecs its own (is_encode_narrow)? After is_handle_engine. */
bool is_handle_narrows(inferscale *is);
/* All of a partition's, now. *rounded += segments that were rounded. */
is_status is_handle_narrow(inferscale *is, const is_partition *p, uint64_t *rounded);
/* Embeds every item of the partition that lacks it. on_progress may be NULL; E_CANCELLED if it says so. */
is_status is_handle_embed(inferscale *is, const is_partition *p, inferscale_progress_fn on_progress, void *ctx);
/* Every item, also those that have it; *n += how many. */
is_status is_handle_embed_again(inferscale *is, const is_partition *p, inferscale_progress_fn on_progress, void *ctx, uint64_t *n);

/* Where a store is when nobody says: $INFERSCALE_HOME, the user's data folder, or a folder here. is_free'd; NULL = out of memory. */
char *is_default_home(void);

/* Quantises and enters the vectors of items, vecs[items->n][dim], in one transaction. */
is_status is_vectors_store(is_bank *bank, const is_partition *p, is_embedder *e, const inferscale_list *items, const float *vecs);

/* Rejects NULL handles and texts that are not UTF-8. */
is_status is_handle_check(const inferscale *is);
is_status is_text_check(const char *text, const char *what);
is_status is_scope_check(const inferscale_scope *scope); /* not NULL, for questions */

/* Removes the files of segments that a write made invalid, frees the names, and forgets the partition's index. */
is_status is_handle_drop(inferscale *is, const is_partition *p, is_names *stale);

/* A question's vector, or why there is none. */
typedef struct is_sought {
    bool tried;
    float *vec;         /* is_free'd; NULL = words alone, and why says why */
    char why[256];
    double ms;
} is_sought;
/* Embeds the question, and waits for it; nothing for a lexical search. Before the question holds
 * anything that others need: an embedder elsewhere may take its time. */
void is_handle_embed_question(inferscale *is, const char *query, int method, is_sought *out);
void is_sought_free(is_sought *s);

/* Search as asked; *hits is is_free'd. embedded: the query's; NULL or not tried = it is embedded
 * here unless the method is lexical. Embeds what has no vector yet as far as the budget goes
 * (catch_up.h). What was searched by words only is said in told: its times, counts and fallbacks;
 * why is their sentence, for the log: it may name files and servers. "" = all was searched as
 * asked. */
is_status is_handle_find(inferscale *is, const is_partition *p, const inferscale_scope *scope,
                         const char *query, const is_sought *embedded,
                         const inferscale_recall_options *options, is_hit **hits, size_t *n,
                         inferscale_list *told, char why[256]);

/* The items that were found: the current versions, or with as_of those that were found. What vanished since is left out. */
is_status is_handle_fetch(inferscale *is, const is_partition *p, const is_hit *hits, size_t n, int64_t as_of, inferscale_list **out);

/* An installed model's path by name ("NAME", "NAME.gguf" in $INFERSCALE_MODELS or the cache folder) or the path itself; NULL =
 * fallback. is_free'd. E_NOTFOUND says where it looked and the next step. */
is_status is_model_find(const char *name, const char *fallback, char **path);

/* $INFERSCALE_CACHE/WHAT, else $XDG_CACHE_HOME/inferscale/WHAT, else ~/.cache/inferscale/WHAT: what can be made again and is no
 * one store's. is_free'd; not created. *out NULL = none of them is set. E_NOMEM. */
is_status is_cache_folder(const char *what, char **out);

#define IS_DEFAULT_MODEL "smollm2-135m-instruct-q4_0"
#define IS_DEFAULT_EMBEDDER "all-minilm-l6-v2-f16"
#define IS_DEFAULT_POLICY "page:16/6"
#define IS_DEFAULT_REFINE "company:10"

#endif
