/* vllm_fake.h - a server that looks to the vLLM plug-in like vLLM with our connector, and misbehaves as told.
 *
 * Its model is a function of the token ids alone: tokens are bytes (0..255) and four control tokens, the next one is a letter that
 * depends on all before it, and after `length` letters the answer ends. Captured rows are a function of plane, head, and all tokens up to
 * the row's own. Tickets are verified as the connector does. */
#ifndef TESTS_SUPPORT_VLLM_FAKE_H
#define TESTS_SUPPORT_VLLM_FAKE_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "engine/engine.h"

enum { FAKE_START = 256, FAKE_END = 257, FAKE_BOS = 258, FAKE_X = 259, FAKE_VOCAB = 260, FAKE_BLOCK = 16, FAKE_CTX = 2048 };
enum { FAKE_LAYERS = 4, FAKE_HEADS = 4, FAKE_DIM = 8 };

typedef enum fake_mood {
    FAKE_GOOD, FAKE_LOADING,        /* every request is a 503 */
    /* of completions that stream */
    FAKE_500, FAKE_429, FAKE_400, FAKE_TORN_FIRST, FAKE_TORN_MID, FAKE_WRONG_ID, FAKE_HANG, FAKE_HANG_MID, FAKE_NOT_JSON, FAKE_ENDLESS, FAKE_ERROR_EVENT,
    FAKE_ABORTED, FAKE_NO_END_TOKEN, FAKE_TWO_CHOICES, FAKE_BEHIND_THE_END, FAKE_FEW_LOGPROBS, FAKE_DEEP, FAKE_EMPTY, FAKE_REDIRECT,
    FAKE_LOAD_FAILS,                /* stored parts are computed: reason torn, the first of the vault's is said to be bad */
    FAKE_HEAD_FAILS,                /* the same, and it is the first under heads */
    FAKE_EVICTED,                   /* no block of the salt is left */
    FAKE_NO_USAGE,                  /* no prompt_tokens_details */
    /* of tickets */
    FAKE_NO_CONNECTOR, FAKE_UNSIGNED, FAKE_NOT_REVOKED, FAKE_CAPTURE_LIES, FAKE_CAPTURE_HALF, FAKE_CAPTURE_OTHER, FAKE_CAPTURE_500,
    FAKE_CAPTURE_HANG,
    /* of the description */
    FAKE_GATEWAY,                   /* it is an `inferscale serve` */
    FAKE_FOREIGN, FAKE_BAD_GEOMETRY, FAKE_BAD_PIECES, FAKE_BAD_EOS, FAKE_HUGE_PIECES, FAKE_NO_INJECT
} fake_mood;

/* A ticket for work, as it came. */
typedef struct fake_job {
    int op;
    uint8_t salt[32];
    uint32_t n_prompt, n_parts, capture_from, capture_n, local, injected;
    uint8_t tail[32];               /* the part under heads that does not begin the prompt; zero = none */
    uint32_t tail_pos, tail_n;
    bool tail_there;                /* its file is, and has the rows of these tokens at this place */
} fake_job;
enum { FAKE_JOBS = 64 };

/* What the chat template does. */
typedef enum fake_chat { FAKE_CHATML, FAKE_TRIMS, FAKE_DATES, FAKE_REORDERS, FAKE_DROPS, FAKE_NO_TEMPLATE, FAKE_NO_SYSTEM } fake_chat;

typedef struct fake_seen {          /* counts since the start */
    uint32_t completions, tokenized, captures, revokes, statuses, describes, cut, health, bad_tickets, hung;
    uint32_t unsalted;              /* tickets whose request, were it refused, would leave blocks that anybody finds; none is by fake_stop */
} fake_seen;

typedef struct vllm_fake {
    int port;
    char url[64];
    char *home;                     /* whose secret it has */
    char *elsewhere;                /* its workers are on another host: a folder that captured rows are left in, to be brought. NULL = in home */
    fake_mood mood;                 /* set by fake_set */
    fake_chat chat;
    uint32_t length, tp, pp, chunk, delay_ms;
    int max_logprobs;               /* --max-logprobs */
    const char *served;             /* what it calls its model in requests: another name there is 404 */
    unsigned refuse;                /* not 0: streaming completions are refused with this HTTP status ... */
    bool refuse_late;               /* ... as an event, in a stream that began with 200 */
    const char *refuse_says;
    bool refuse_tickets;            /* as unsigned, of streaming completions */
    const char *load_reason;        /* with FAKE_LOAD_FAILS, instead of torn */
    bool health_hangs;              /* /health does not answer */
    int op_hangs;                   /* nor do tickets of this INFERSCALE_TICKET_*; 0 = none */
    uint8_t keeps_tag;              /* a REVOKE of the tag that begins so is not confirmed; 0 = none */
    bool no_prefix_cache;
    bool no_status;                 /* the connector knows nothing of any request */
    fake_seen seen;
    json_t *last;                   /* the last completion's body */
    inferscale_ticket *ticket;      /* of the last streaming one */
    pthread_mutex_t lock;
    bool closing;
    void *daemon;
    char *cached[64];               /* salts that were seen: "SALT" */
    uint32_t n_cached;
    struct { uint8_t id[16]; uint32_t injected, local; char reason[24], bad[65]; int where; } books[64];
    uint32_t n_books;
    fake_job jobs[FAKE_JOBS];       /* the first ones; fake_forget_jobs begins anew */
    uint32_t n_jobs;
} vllm_fake;

/* A field of it, while it may be answering. */
#define FAKE_PUT(f, field, value) \
    do { \
        pthread_mutex_lock(&(f)->lock); \
        (f)->field = (value); \
        pthread_mutex_unlock(&(f)->lock); \
    } while (0)

vllm_fake *fake_start(const char *home);
void fake_stop(vllm_fake *f);
void fake_set(vllm_fake *f, fake_mood mood);
fake_seen fake_look(vllm_fake *f);
uint32_t fake_jobs(vllm_fake *f, fake_job *out); /* [FAKE_JOBS]; how many */
void fake_forget_jobs(vllm_fake *f);

/* The model. The type of its cache: every value of fake_row needs all bits that this type has.
 * Set before a fake starts. */
extern is_codec fake_codec;
int32_t fake_next(const int32_t *tokens, uint32_t n, uint32_t prompt, uint32_t length);
float fake_row(uint32_t plane, uint32_t head, uint32_t dim, const int32_t *tokens, uint32_t upto);
is_geometry *fake_geometry(void);
void fake_fingerprint(uint8_t out[32], bool foreign);

#endif
