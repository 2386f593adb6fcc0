/* mock.h - a deterministic engine for the tests of everything above engines. No model file, no floating-point weather.
 *
 * What it computes. Every token has a 64-bit "state" that depends on all tokens before it in its sequence and on the rows that
 * were seen there; positions do not enter (as in a real model, where only distances do). The state is written into the token's
 * K and V rows, four bits an element, so that it can be read back after rounding to 16 bits and rotation. Hence:
 *   - rows encoded after the right context give logits equal to those of the text twin, bit for bit;
 *   - rows encoded after another context (a stitched fact) move the logits a little, and the greedy answer not at all;
 *   - rows that were un-rotated wrongly, belong to another layer or come from elsewhere are recognised and refused;
 *   - the mean of up to MOCK_PASSES captures (policy company) is recognised by the steps of its values, over a segment's rows
 *     together, and moves the logits a little; more of them are rows that no capture made;
 *   - a span captured after stored context has the rows it would have after computed context, bit for bit in any codec, if that
 *     was encoded after what stands before it here; else other rows, always the same.
 * The greedy answer tells what was in the prompt: "I recall: FACT (HASH)", FACT = the last fact part, HASH = of all token ids.
 *
 * Options stand in the model path, "mock:OPT,OPT=N,...", and in $INFERSCALE_MOCK (added after it); any other path means none:
 *   noinject            can_inject is false, STORED parts are E_UNSUPPORTED
 *   fail-CALL=N         the Nth call of CALL (tokenize, capture, start, extend, sample, feed, embed) fails with E_ENGINE
 *   slow=MS             each decode (a step's or a capture's batch of tokens) takes that long; cancel is polled meanwhile
 *   ctx=N, id=N, dim=N  context size; another model (fingerprint and rows); the embedder's dimension
 *   most=N              the embedder takes N words of a text
 *   text-log=FILE       every text that is tokenised is a line of it (its bytes)
 *   unsized             does not say how long a token's text may be
 *   embed-log=FILE      every text that the embedder begins is a line of it (its first 40 bytes)
 *   embed-gate=FILE     the embedder computes as many texts in all as FILE has bytes, and waits meanwhile; cancel is polled
 *   nochat              no chat template: a plain one is used
 *   lenient             rows that no capture made are accepted, and spoil the logits
 *   garble              composed rows are damaged before they are checked: the check must notice
 *   load=MS             opening takes that long; cancel is polled meanwhile
 *   slow-inject=MS      each injected part takes that long; cancel is polled meanwhile
 *   witness=FILE        every call that computes or samples is written there: when, in which run, on which text (mock_witness.c)
 *   remote              as an engine that computes elsewhere (engine.h): no steps, captures without position, rows in bf16, no prefix
 *                       that is kept, late tidings; rows of bare segments are read from HOME/vault, and what cannot be read is computed
 *                       and told as bad. Only then:
 *   late=CODE           stored parts are computed after all, which is told for this reason only when the answer is over
 *   late-from=N         ... from the Nth stored part of a run on (1 = all, the default)
 *   pending=N           the first N revocations are not confirmed
 *   down                its server is not up: what computes is E_ENGINE
 *   blind               its server sees no folder: no stored segment is there
 *   steps=FILE          a line for every step: of each lane "RUN:TOKENS", runs counted as they began, "+" behind what is done then */
#ifndef IS_ENGINE_MOCK_MOCK_H
#define IS_ENGINE_MOCK_MOCK_H

#include <pthread.h>

#include "engine/engine.h"
#include "kv/rope.h"

enum {
    MOCK_LAYERS = 4, MOCK_PLANES = 2 * MOCK_LAYERS, MOCK_HEADS = 2, MOCK_HEAD_DIM = 8, MOCK_WIDTH = MOCK_HEADS * MOCK_HEAD_DIM,
    MOCK_WINDOW = 64, MOCK_BATCH = 512, MOCK_SPANS = 30, MOCK_PASSES = 12,
    /* token ids: control tokens, then bytes, then pairs of [a-z ] */
    MOCK_BOS = 1, MOCK_END = 2, MOCK_SYSTEM = 3, MOCK_USER = 4, MOCK_ASSISTANT = 5, MOCK_BYTES = 16, MOCK_PAIRS = 272,
    MOCK_VOCAB = MOCK_PAIRS + 27 * 27
};

enum { MOCK_TOKENIZE, MOCK_CAPTURE, MOCK_START, MOCK_EXTEND, MOCK_SAMPLE, MOCK_FEED, MOCK_EMBED, MOCK_CALLS };

typedef struct mock_opts {
    bool noinject, nochat, lenient, garble, remote, down, blind;
    uint32_t slow_ms, slow_inject_ms, load_ms, n_ctx, id, dim, most;
    uint32_t fail_at[MOCK_CALLS], calls[MOCK_CALLS];
    uint32_t late_from, n_pending;
    char late[24];           /* "" = nothing is late */
    char witness[512];       /* "" = nobody watches */
    char steps[512];         /* likewise */
    bool unsized;
    char text_log[512];
    char embed_log[512], embed_gate[512]; /* likewise */
} mock_opts;

typedef struct mock {
    mock_opts opt;
    is_geometry *geometry;
    is_rope *rope;
    is_chat_format chat;
    uint8_t fingerprint[IS_HASH_BYTES];
    uint64_t seed;
    char *vault;             /* where segments are; NULL = no home was given */
    int32_t *kept;           /* the exact prefix kept from the last run: only leading COMPUTED parts ever enter it */
    uint32_t n_kept;
    int32_t *captured;       /* computed tokens that the last capture left, and where they began: they are not run again */
    uint32_t n_captured, captured_pos0;
    int witness_fd, steps_fd; /* -1 = nobody watches */
    unsigned n_begun;        /* runs, counted atomically */
    pthread_mutex_t lock;    /* of what follows: as a remote engine it is called by several threads */
    is_realm *revoked;       /* [n_revoked] */
    size_t n_revoked;
    uint64_t n_injected, n_late, n_refused;
    char late_why[24];       /* of the last that was late */
} mock;

/* mock_opts.c */
is_status mock_opts_parse(const char *path, mock_opts *out);
/* Counts a call and says whether it is the one to fail: E_ENGINE with a sentence. */
is_status mock_call(mock_opts *opt, int call);
/* Waits as a decode would; E_CANCELLED as soon as *cancel is set. */
is_status mock_decode_time(const mock_opts *opt, uint32_t n_tokens, uint32_t batch, const volatile int *cancel);
is_status mock_embed_time(const mock_opts *opt, const volatile int *cancel, const volatile int *stop);
is_status mock_capture_time(const mock_opts *opt, uint32_t n_tokens, const is_capture *c);
is_status mock_inject_time(const mock_opts *opt, const volatile int *cancel, const volatile int *stop);
is_status mock_load_time(const mock_opts *o, const volatile int *cancel);
is_status mock_step_time(const mock_opts *opt, const is_lane *lanes, size_t n); /* E_CANCELLED as soon as all are */

/* mock_text.c */
is_status mock_cut(const char *text, size_t len, bool parse_special, bool add_bos, int32_t **out, uint32_t *n); /* is_free */
is_status mock_tokenize(void *impl, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                        int32_t **out, uint32_t *n);
void mock_tokens_free(void *impl, int32_t *tokens);
int mock_token_piece(void *impl, int32_t token, char *buf, int cap);
bool mock_is_eog(void *impl, int32_t token);
is_status mock_check_tokens(const int32_t *tokens, uint32_t n, const char *what);

/* mock_rows.c: the model's arithmetic */
uint64_t mock_mix(uint64_t a, uint64_t b);                   /* splitmix64 of both */
is_geometry *mock_geometry(void);                            /* NULL = out of memory */
/* Row of a state in one plane, keys rotated to pos. Its own rotation, in double: an oracle for kv/rope. */
void mock_row(const mock *m, uint32_t plane, uint64_t state, uint32_t pos, float out[MOCK_WIDTH]);
void mock_unrotate(const mock *m, uint32_t plane, uint32_t pos, float row[MOCK_WIDTH]);
void mock_stored_row(const is_segment *s, uint32_t plane, uint32_t token, float out[MOCK_WIDTH]);
/* Of how many captures' rows the segment's are the mean: the least number that all of them fit; 0 = no captures made them. */
uint32_t mock_passes(const is_segment *s);
/* The state in an un-rotated row of a segment with so many passes (0: as 1); false if no capture of this model made it (*state is
 * then a hash of what is there). A mean's state is a hash of what is in it, another one in every plane. */
bool mock_state(const mock *m, uint32_t plane, const float row[MOCK_WIDTH], uint32_t n_passes, uint64_t *state);
/* What attention makes of a token's rows: folded plane by plane from 0; first = the state read in plane 0. Rows that agree in all
 * planes give that state. */
uint64_t mock_see(uint64_t seen, uint32_t plane, uint64_t first, uint64_t state);
/* The segment is of this model and holds tokens[n]; E_INVALID. */
is_status mock_check_segment(const mock *m, const is_segment *s, const int32_t *tokens, uint32_t n);

/* mock_capture.c */
is_status mock_capture(void *impl, is_capture *c, size_t n);
is_status mock_capture_here(mock *m, is_capture *c, size_t n); /* all stored contexts have their rows */

/* mock_run.c */
is_status mock_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run);
is_status mock_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts);
is_status mock_token(void *impl, is_run *run, int32_t token);
uint32_t mock_left(void *impl, is_run *run);
void mock_step(void *impl, is_lane *lanes, size_t n);
void mock_undo(void *impl, is_run *run);
void mock_finish(void *impl, is_run *run);
void mock_stats(void *impl, is_run *run, is_run_stats *out);
const float *mock_logits(void *impl, is_run *run);
uint32_t mock_run_tokens(void *impl, is_run *run);

/* mock_witness.c: the calls of the engine's table that are watched; each does its work and says so. */
is_status mock_witness_open(mock *m);
void mock_witness_close(mock *m);
is_status mock_seen_capture(void *impl, is_capture *c, size_t n);
is_status mock_seen_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run);
is_status mock_seen_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts);
is_status mock_seen_token(void *impl, is_run *run, int32_t token);
void mock_seen_step(void *impl, is_lane *lanes, size_t n);
void mock_seen_undo(void *impl, is_run *run);
is_status mock_seen_sample(void *impl, is_run *run, int32_t *token);

/* mock_remote.c */
is_status mock_whole_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run);
is_status mock_whole_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts);
is_status mock_whole_token(void *impl, is_run *run, int32_t token);
is_status mock_revoke(void *impl, const is_realm *realm, uint32_t wait_ms, size_t *n_pending);
void mock_rest(void *impl, is_run *run);
size_t mock_upstreams(void *impl, is_upstream *out, size_t most);
/* Nothing of this realm may be used any more. */
bool mock_is_revoked(mock *m, const is_realm *realm);
/* The rows of the run's next stored part; NULL: it is to be computed after all, and why is noted, to be told when the answer is over. */
is_status mock_take_part(is_run *r, is_segment **rows);
/* Rows of the stored contexts come from the vault; a context of which some cannot be read is computed. */
is_status mock_capture_elsewhere(mock *m, is_capture *c, size_t n);

/* mock_sample.c */
is_status mock_sampling_take(is_run *r, const is_sampling *how);  /* E_UNSUPPORTED (a grammar), E_INVALID */
is_status mock_sample(void *impl, is_run *run, int32_t *token);
/* Draws from logits[n] as the sampling settings say; *rng is advanced. */
int32_t mock_draw(const float *logits, uint32_t n, const is_sampling *how, uint64_t *rng);

typedef struct mock_before { uint32_t n, n_foreign; uint64_t chain, ids, seen; } mock_before;

struct is_run {
    mock *m;
    unsigned long serial;            /* of the process's runs, for the witness */
    unsigned number;                 /* of the engine's */
    const char *call;                /* that is under way, for the witness; NULL = none, or it has been told */
    const is_plan *told_plan;        /* its plan; NULL = a token */
    double began;
    /* what it has to do: the rest of a plan, or a token */
    const is_plan *plan;             /* borrowed; NULL = the token */
    uint32_t part, at_token, n_cached, left, batch, cache_parts;
    int32_t token;
    bool fresh;                      /* no step yet */
    const volatile int *cancel, *stop;
    bool want_logits, has_realm;
    is_realm realm;
    uint32_t n_stored, n_refused, first_refused; /* of the call: parts met, tokens of those computed after all, where they began */
    char reason[24];                 /* why; "" = none was */
    is_run_stats found;              /* its bad ones */
    bool over;                       /* the answer ended: what was late is told */
    mock_before before;              /* as it was when the call began */
    is_run_stats stats;
    uint32_t n, cap;                 /* tokens live, room */
    int32_t *tokens;                 /* [cap] */
    uint16_t *rows[MOCK_PLANES];     /* the cache, f16: [cap][MOCK_WIDTH], keys rotated */
    uint64_t *states[MOCK_PLANES];   /* [cap] what was read back from the rows */
    uint64_t chain;                  /* of all states: what the next token's state depends on */
    uint64_t ids;                    /* of all token ids in order */
    uint64_t seen;                   /* sum over positions and full planes */
    uint32_t n_foreign;              /* rows no capture made */
    int32_t *script;                 /* [n_script] the greedy answer */
    uint32_t n_script, at;           /* at = n_script: the answer left its script */
    is_sampling sampling;            /* its biases are `bias` */
    is_bias *bias;
    uint32_t n_fed;                  /* since the last start or extend: what penalties count */
    uint64_t rng;
    float logits[MOCK_VOCAB];
};

/* mock_embed.c */
extern const is_embedder_vtable mock_embedder;

#endif
