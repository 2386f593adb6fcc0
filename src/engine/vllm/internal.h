/* internal.h - what the files of the vLLM plug-in share: a REMOTE engine (engine.h) whose servers are unmodified vLLM with our
 * connector (docs/vllm.md is the contract).
 *
 *   describe   what a server says of its model          upstream   which server gets a request, and what is known of each
 *   tokens     text to ids, each text once               keeper     the thread that looks after servers in the background
 *   chat       the chat format's literal pieces          heads      rows of prompt headers, captured once
 *   prompt     a run's tokens, its stored parts, salt    request    the JSON of a completion
 *   run        begin, more, token, sample                run_stats  what was injected after all, and why not
 *   capture    rows of spans                             spool      the files that they come in
 *   arrive     those that workers on other hosts bring
 *   tail       what stands between a later turn's new facts and what the server has of the run
 *   revoke     a tag's lower epochs are given up         tickets    what the connector trusts
 *   open       the store's folder, the first word        secret     what tickets are signed with
 *   report     what is known of it
 *
 * Locks: vllm.lock guards the servers' states and the small tables; nothing is waited for under it. Each other object has its own,
 * and takes vllm.lock inside it, never the other way round. */
#ifndef IS_ENGINE_VLLM_INTERNAL_H
#define IS_ENGINE_VLLM_INTERNAL_H

#include <jansson.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/vllm/describe.h"
#include "engine/vllm/http.h"
#include "engine/vllm/stream.h"

enum {
    VLLM_UPSTREAMS = 64,
    VLLM_POLL_MS = 5,               /* how often flags are looked at */
    VLLM_ANSWER_MAX = 64 << 20,     /* bytes of an answer that is no stream */
    VLLM_CAPTURES = 16,             /* spans of one capture call that are under way at once */
};

/* What is waited for at most. Tests set them; nobody else does. */
typedef struct vllm_limits {
    uint32_t connect_ms, silent_ms; /* of any request: a server under load may queue one for minutes */
    uint32_t small_ms;              /* of what is computed at once: tokenising, tickets without work */
    uint32_t open_ms;               /* for servers that are still loading */
    uint32_t backoff_ms;            /* after a first failure; doubles */
    uint32_t keeper_ms;
    uint32_t arrive_ms;             /* for the next piece of rows that a worker on another host brings */
    uint32_t confirm_ms;            /* a request waits so long for a server to confirm what was forgotten before it */
} vllm_limits;
extern vllm_limits vllm_limit;

typedef struct vllm_flags { const volatile int *cancel, *stop; } vllm_flags; /* either may be NULL */
bool vllm_flagged(vllm_flags f);
void vllm_nap(uint32_t ms);

/* ---- Servers (upstream.c) ------------------------------------------------------------------------------------------------- */

typedef enum vllm_state { VLLM_NEW, VLLM_READY, VLLM_FOREIGN } vllm_state; /* not described yet; usable; of another model */
/* Of a request: the server answered it; the server failed (no answer, or one that is no request's fault); it says nothing of the server. */
typedef enum vllm_outcome { VLLM_WORKED, VLLM_FAILED, VLLM_NEITHER } vllm_outcome;

typedef struct vllm_pending { is_realm of; bool late; } vllm_pending; /* late: the keeper asks; before, whoever revoked it */

typedef struct vllm_upstream {
    char *url;                      /* without a slash at its end */
    vllm_state state;
    uint32_t in_flight, n_row;      /* failures in a row */
    double down_until_ms;           /* 0 = healthy */
    bool unsure;                    /* it has failed since it said what it is: another model may be behind the address now */
    bool no_gateway;                /* its address was looked at: it is no `inferscale serve` */
    char why[256];                  /* the last failure, or why it is not used */
    char version[64], name[128];    /* as described */
    char served[VLLM_SERVED_MAX];   /* what its requests call the model */
    uint8_t fingerprint[IS_HASH_BYTES];
    bool can_inject;
    uint64_t n_requests, n_failures, n_retries, tokens_injected;
    uint32_t n_reasons;
    struct { char code[24]; uint64_t n; } reasons[IS_REASONS_MAX];
    vllm_pending *pending;          /* revocations it has not confirmed */
    uint32_t n_pending, cap_pending;
    bool overflowed;                /* there were more than are remembered, and it was said */
} vllm_upstream;

typedef struct vllm_counters {
    uint64_t completions, tokens_out, retries, continued, captures, captured_tokens, spool_shredded, heads_made, heads_used,
        tokenised, token_cache_hits, split_texts, refused_texts, status_asked, injected_tokens, planned_tokens, fell_short,
        attempts_raised, cold_starts, revocations, chat_fallbacks, foreign_servers, tails_made, tails_failed;
} vllm_counters;

typedef struct vllm_attempt { uint8_t key[IS_HASH_BYTES]; uint32_t attempt; uint64_t used; } vllm_attempt;
enum { VLLM_ATTEMPTS = 4096 };

typedef struct vllm_floor { uint8_t tag[IS_HASH_BYTES]; uint64_t epoch; } vllm_floor; /* the lowest epoch that is of use */
/* The secret's file (secret.c). */
typedef struct vllm_secret {
    pthread_mutex_t lock;
    char *path;
    uint8_t bytes[IS_KEY_BYTES];
    uint64_t file, n_read;          /* which file it was; how many secrets there were so far */
    bool said;
} vllm_secret;

typedef struct vllm_spool vllm_spool;
typedef struct vllm_tokens vllm_tokens;
typedef struct vllm_heads vllm_heads;
typedef struct vllm_arrivals vllm_arrivals;

typedef struct vllm {
    char *home, *dir;               /* HOME, HOME/vllm */
    vllm_secret secret;
    vllm_http *http;
    vllm_model *model;
    is_chat_format chat;
    bool has_chat;
    char chat_why[200];             /* why the template is not used, or how contents differ from what it makes of them */
    vllm_tokens *tokens;
    vllm_heads *heads;
    vllm_spool *spool;
    vllm_arrivals *arrivals;
    is_file *seen;                  /* its file */
    int seen_failed;                /* it was said that it fails */

    pthread_mutex_t lock;           /* of what follows */
    vllm_upstream up[VLLM_UPSTREAMS];
    uint32_t n_up;
    vllm_counters n;
    vllm_attempt *attempts;         /* [VLLM_ATTEMPTS], hashed by key */
    uint64_t clock;
    vllm_floor *floors;
    uint32_t n_floors, cap_floors;

    pthread_t keeper;
    pthread_cond_t wake;
    bool keeping, closing;
    volatile int stopping;          /* closing, as a flag for what the keeper waits for */
} vllm;

#define VLLM_COUNT(e, what, by) __atomic_add_fetch(&(e)->n.what, (by), __ATOMIC_RELAXED)

is_status vllm_no_memory(void);

/* A usable server for work of this tag (NULL = nobody's) that is not in *tried, which it joins; it counts as busy until it is given
 * back. One that has failed says first what it is. E_BUSY: those that are left have not confirmed a revocation. E_ENGINE: none is left.
 * E_CANCELLED: a flag was set meanwhile. */
is_status vllm_upstream_take(vllm *e, const uint8_t *tag, uint64_t *tried, vllm_flags flags, uint32_t *i);
/* The same for this one server: false if it is not usable now. */
bool vllm_upstream_take_this(vllm *e, const uint8_t *tag, uint64_t *tried, uint32_t i);
void vllm_upstream_give(vllm *e, uint32_t i, vllm_outcome outcome);
/* The same of a look at one that was not taken. */
void vllm_upstream_note(vllm *e, uint32_t i, vllm_outcome outcome);
/* Its connector says that it has another model: it says what it is before it gets more work. */
void vllm_upstream_doubt(vllm *e, uint32_t i);
/* retry: another server may do better. One that has too much to do (E_BUSY) has not failed. */
vllm_outcome vllm_outcome_of(is_status st, bool retry);
bool vllm_upstream_pends(const vllm_upstream *u, const uint8_t *tag);  /* under the lock */

/* One request (body NULL: a GET), answered in JSON. *retry: another server may do better. */
is_status vllm_ask(vllm *e, uint32_t up, const char *path, const char *body, vllm_flags flags, uint32_t ms, json_t **out, bool *retry);
/* The body (a JSON object without "model") with the name that server i has for the model; is_free. */
is_status vllm_body_for(vllm *e, uint32_t i, const char *body, char **out);
/* E_DENIED and E_NOTFOUND as E_ENGINE: said of a server, they are not meant for whoever asks us. */
is_status vllm_server_fault(is_status st);
/* On one server after another; the body as for vllm_body_for. */
is_status vllm_ask_any(vllm *e, const uint8_t *tag, const char *path, const char *body, vllm_flags flags, uint32_t ms, json_t **out);
/* The JSON of a call that has ended. */
is_status vllm_call_json(vllm_call *c, json_t **out, bool *retry);
/* Waits on the line in short steps until each call has ended or a flag is set: E_CANCELLED. */
is_status vllm_wait_all(vllm_line *l, vllm_call *const *calls, size_t n, vllm_flags flags);

/* ---- Tickets -------------------------------------------------------------------------------------------------------------- */

typedef struct vllm_part {          /* stored rows of a prompt */
    uint8_t name[IS_HASH_BYTES];
    bool head;                      /* under heads; else in the vault */
    uint32_t pos, n_tokens;
} vllm_part;

typedef struct vllm_ask_for {
    int op;                         /* INFERSCALE_TICKET_* */
    uint8_t id[16];
    is_realm realm;                 /* zero = nobody's */
    uint8_t salt[IS_HASH_BYTES];
    const int32_t *prompt;
    uint32_t n_prompt;
    const vllm_part *parts;
    uint32_t n_parts, capture_begin, capture_n;
    bool salted;                    /* salt is the one to use; else a capture gets a random one */
    uint64_t n_secret;              /* out: which secret signed it */
} vllm_ask_for;

/* The secret as its file has it now, read again when that has changed; returns how many there were so far. */
uint64_t vllm_secret_get(vllm *e, uint8_t out[IS_KEY_BYTES]);
/* Reads the file whatever it looks like: a connector does not trust what was signed. True: it is another one. */
bool vllm_secret_again(vllm *e);
is_status vllm_secret_open(vllm *e);
void vllm_secret_close(vllm *e);

/* The signed ticket as text; is_free. */
is_status vllm_ticket_make(vllm *e, vllm_ask_for *a, char **out);
/* The salt of a run: of the tokens of its header, the names of its first turn's stored parts, and attempts. */
is_status vllm_salt_make(vllm *e, const is_realm *realm, const int32_t *header, uint32_t n_header, const vllm_part *parts,
                         uint32_t n_parts, uint32_t attempt, uint8_t out[IS_HASH_BYTES]);
/* A request that computes nothing for anybody (DESCRIBE, REVOKE, STATUS), and the connector's word to it (a new reference).
 * E_NOTFOUND: there is no connector in this vLLM. E_DENIED: it does not trust the ticket; *code (may be NULL) is its reason. */
is_status vllm_ticket_body(vllm *e, vllm_ask_for *a, char **body);
is_status vllm_ticket_answer(const json_t *answer, json_t **out, const char **code);
/* Both, of one server; once more where the secret turns out to be another one. */
is_status vllm_ticket_ask(vllm *e, uint32_t up, vllm_ask_for *a, vllm_flags flags, uint32_t ms, json_t **out, const char **code);

/* ---- Opening ---------------------------------------------------------------------------------------------------------------- */

is_status vllm_open(const is_engine_opts *opts, void **impl);
void vllm_close(void *impl);
/* Asks server i what it is, and waits ms for that at most. E_NOTFOUND: no connector. The model's first description becomes e->model. */
is_status vllm_describe(vllm *e, uint32_t i, vllm_flags flags, uint32_t ms);
/* The same in two steps: the call is the caller's; once it has ended, what came of it. */
is_status vllm_describe_begin(vllm *e, uint32_t i, vllm_line *l, uint32_t ms, vllm_call **out);
is_status vllm_describe_end(vllm *e, uint32_t i, vllm_call *c);
is_status vllm_keeper_start(vllm *e);
void vllm_keeper_stop(vllm *e);

/* ---- Text ------------------------------------------------------------------------------------------------------------------- */

is_status vllm_tokens_new(vllm_tokens **out);
void vllm_tokens_drop(vllm_tokens *t);
void vllm_tokens_forget(vllm_tokens *t, const uint8_t *tag); /* what is kept of the texts of one is overwritten and freed */
is_status vllm_tokenize(void *impl, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                        int32_t **out, uint32_t *n);
void vllm_tokens_free(void *impl, int32_t *tokens);
int vllm_token_piece(void *impl, int32_t token, char *buf, int cap);
bool vllm_is_eog(void *impl, int32_t token);
/* The ids of a server's answer to /tokenize. */
is_status vllm_ids_read(const vllm *e, const json_t *answer, int32_t **out, uint32_t *n);
is_status vllm_chat_find(vllm *e);
/* whole, again: a conversation as the server's template renders it with the first and with the second placeholders; system:
 * it has a place for a system text. *why: why the template's pieces cannot be used (static); NULL if they can. *trims: it
 * takes blanks off. E_NOMEM. */
is_status vllm_chat_doubt(const char *whole, const char *again, bool system, bool *trims, const char **why);

/* How rows that belong to a run are captured: under its salt, on the server that has its blocks, behind these stored parts. */
typedef struct vllm_rows_how {
    const uint8_t *salt;
    const vllm_part *parts;
    uint32_t n_parts;
    bool has_up;                    /* on `up` and on no other; else up is where it was done */
    uint32_t up;
} vllm_rows_how;

/* ---- Heads ------------------------------------------------------------------------------------------------------------------ */

is_status vllm_heads_open(vllm *e, vllm_heads **out);
void vllm_heads_close(vllm_heads *h);
/* The stored rows of these first tokens of a prompt. What is not there is captured now; unless `soon`, only when it is asked for the
 * second time. E_NOTFOUND: not there, or another thread is at it. realm NULL = nobody's: they hold no client's words. */
is_status vllm_heads_get(vllm *e, const is_realm *realm, const int32_t *tokens, uint32_t n, bool soon, vllm_flags flags, vllm_part *out);
/* Rows that depend on what stood before them in one run: captured as `how` says, under a name of their own that nobody else can know, so that
 * they are never taken for a header's. They go with disown, with their epoch, with this process; a dead one's at the next open. */
is_status vllm_heads_own(vllm *e, is_capture *c, vllm_rows_how *how, uint8_t name[IS_HASH_BYTES]);
void vllm_heads_disown(vllm *e, const uint8_t name[IS_HASH_BYTES]);
/* A server could not use these rows: where their file is damaged it goes, and is captured anew when it is wanted. */
void vllm_heads_doubt(vllm *e, const uint8_t name[IS_HASH_BYTES]);
/* Rows of this tag that were made under a lower epoch are overwritten and removed, if they are this process's. */
void vllm_heads_forget(vllm_heads *h, const uint8_t *tag, uint64_t epoch);

/* ---- Capture ---------------------------------------------------------------------------------------------------------------- */

is_status vllm_capture(void *impl, is_capture *c, size_t n);
is_status vllm_capture_of_run(vllm *e, is_capture *c, vllm_rows_how *how);

/* The spool (spool.c): files of captures on their way, each overwritten when it was read. An id begins with its process's mark, so that
 * what a dead process left is known. */
is_status vllm_spool_open(vllm *e);
void vllm_spool_close(vllm *e);
void vllm_spool_id(vllm *e, uint8_t id[16]);
/* The same for names: they begin with the process's mark. Does the process of such a name live? */
void vllm_spool_name(vllm *e, uint8_t name[IS_HASH_BYTES]);
void vllm_spool_sign(vllm *e, uint8_t name[IS_HASH_BYTES]); /* a name that is there gets the mark */
bool vllm_spool_lives(vllm *e, const uint8_t name[IS_HASH_BYTES]);
/* The rows of a capture from all its files: rows[plane] = [n_span][n_heads][head_dim]. The files are gone afterwards in any case. */
is_status vllm_spool_take(vllm *e, const uint8_t id[16], const int32_t *span, uint32_t n_span, float **rows);
/* A capture that failed: what it wrote, or may still write, is overwritten and removed. */
void vllm_spool_drop(vllm *e, const uint8_t id[16]);
void vllm_spool_sweep(vllm *e);     /* the keeper: late files of those */

/* Rows that workers on other hosts bring (arrive.c): only of ids that are expected, and no more than their spans can have. */
is_status vllm_arrivals_new(vllm *e);
void vllm_arrivals_free(vllm *e);
is_status vllm_arrivals_expect(vllm *e, const uint8_t id[16], uint32_t n_span);
void vllm_arrivals_over(vllm *e, const uint8_t id[16]);   /* nothing of it is written any more when this returns */
/* How many files of it are whole; *since: when the last piece of it came, or when it was expected. */
uint32_t vllm_arrivals_count(vllm *e, const uint8_t id[16], double *since);
is_status vllm_worker_secret(void *impl, uint8_t out[IS_KEY_BYTES]);
is_status vllm_worker_rows(void *impl, const is_rows_piece *p);

/* ---- Runs ------------------------------------------------------------------------------------------------------------------- */

is_status vllm_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run);
is_status vllm_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts);
is_status vllm_token_fed(void *impl, is_run *run, int32_t token);
uint32_t vllm_left(void *impl, is_run *run);
void vllm_undo(void *impl, is_run *run);
void vllm_finish_run(void *impl, is_run *run);
void vllm_stats(void *impl, is_run *run, is_run_stats *out);
is_status vllm_sample(void *impl, is_run *run, int32_t *token);
const float *vllm_logits(void *impl, is_run *run);
is_status vllm_likely(void *impl, is_run *run, int32_t token, uint32_t n, is_likely *out, uint32_t *n_out);
uint32_t vllm_run_tokens(void *impl, is_run *run);
void vllm_rest(void *impl, is_run *run);

/* What a run has to do with the attempts of its salt (run_stats.c). */
uint32_t vllm_attempt_of(vllm *e, const uint8_t key[IS_HASH_BYTES]);
void vllm_attempt_raise(vllm *e, const uint8_t key[IS_HASH_BYTES]);

/* Was a prompt of this salt, whose new part begins there, sent before by anybody on this store? From now on it was. True where that cannot be
 * known (seen.c). */
is_status vllm_seen_open(vllm *e);
void vllm_seen_close(vllm *e);
bool vllm_seen(vllm *e, const uint8_t salt[IS_HASH_BYTES], uint32_t begin);

/* ---- Giving up ------------------------------------------------------------------------------------------------------------- */

is_status vllm_revoke(void *impl, const is_realm *realm, uint32_t wait_ms, size_t *n_pending);
/* The keeper: what server i has not confirmed, those first that were asked about longest ago; how many of `most`. */
uint32_t vllm_revoke_due(vllm *e, uint32_t i, is_realm *out, uint32_t most);
is_status vllm_revoke_begin(vllm *e, uint32_t i, vllm_line *l, const is_realm *r, uint32_t ms, vllm_call **out);
/* Once that call has ended. *ok: confirmed. Else OK where the server answered all the same. */
is_status vllm_revoke_end(vllm *e, uint32_t i, vllm_call *c, const is_realm *r, bool *ok);
/* E_STALE: a higher epoch of this tag was revoked. */
is_status vllm_realm_check(vllm *e, const is_realm *realm);

/* ---- What is known of it (report.c) ---------------------------------------------------------------------------------------------- */

is_status vllm_info(void *impl, is_engine_info *out);
const is_geometry *vllm_geometry(void *impl);
const is_chat_format *vllm_chat(void *impl);
size_t vllm_upstreams(void *impl, is_upstream *out, size_t most);
/* An answer of this server is over: rows that were injected, and why others were not ("" = all were). */
void vllm_upstream_injected(vllm *e, uint32_t i, uint64_t tokens, const char *reason);
void vllm_upstream_retried(vllm *e, uint32_t i);    /* another one answers instead */
/* Segments that a server says it could not use (bad.c): those under heads are looked at here, those of the vault go to *out, whoever hears it. */
void vllm_bad_take(vllm *e, const json_t *said, is_run_stats *out);
/* What our clients are told of a reason code: the server's own sentence is for the log, it may name files. */
const char *vllm_reason_says(const char *code);

extern const is_engine_vtable is_vllm_engine;

#endif
