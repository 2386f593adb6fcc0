/* background.h - the background encoder: two threads of a handle. One embeds what is unembedded; the other encodes what is unencoded,
 * then refines, in all partitions.
 *
 * The queue is the bank itself: nothing that waits is held in memory, so a restart goes on where a kill stopped it. What a thread
 * remembers of a partition is which ids are done (some 200 bytes each). Each works on a connection of its own, so that neither its
 * reads nor its checkpoints hold up who remembers, and takes turns between partitions in small slices. Embedding does not wait for
 * questions, and nothing that holds up the encoder (a question, a model that loads, a server that hangs) holds it up. Encoding gives
 * way to questions (base/gate.h). Among all handles and processes on a store one encodes each view (a lock file); the others watch
 * and take over. */
#ifndef IS_API_BACKGROUND_H
#define IS_API_BACKGROUND_H

#include <pthread.h>
#include <time.h>

#include "api/handle.h"
#include "base/file.h"

/* The second stage may have two policies (is_handle_policies). */
enum { IS_STAGE_EMBED, IS_STAGE_FIRST, IS_STAGE_REFINE, IS_STAGE_REFINE_2, IS_STAGES };

/* The two threads. */
enum { IS_BG_EMBEDDER, IS_BG_ENCODER, IS_BG_WORKERS };

/* What a worker knows of one partition. Only its thread touches it. */
typedef struct is_bg_part {
    int64_t id, epoch, revision;      /* as of the last look */
    int64_t done[IS_STAGES];          /* ids up to here wait for nothing in this epoch */
    uint32_t n[IS_STAGES];            /* that waited at the last count, less what was done since */
    double since_ms;                  /* since when the oldest of them waits for the first stage, as far as is known; 0 = none does */
    uint32_t passed[IS_STAGES];       /* items that cannot be done as they are; they do not wait */
    bool dirty[IS_STAGES], again[IS_STAGES]; /* there may be work behind `done`; some failed: once more from the start */
    is_narrowing narrowing;           /* of rows in other codecs; those that were there at the first look */
    is_narrowing settling;            /* of rows whose page has been closed */
    uint32_t narrow_failed;
    int64_t replaced_to;              /* outdated rows of facts up to this id are replaced */
    bool replaced;                    /* all are */
} is_bg_part;

typedef struct is_bg_stage {
    bool off;                         /* not asked for, or this model's KV cannot be injected */
    bool ready;                       /* what it needs is loaded, its view is known */
    bool careful;                     /* after a failure: one item at a time, so that one bad item stops no other */
    size_t slice;                     /* items at a time: halved when a question drops them, doubled when they are done */
    is_file *lease;                   /* locked; NULL = not held */
    bool elsewhere;                   /* another holds the lease */
    double retry_ms, delay_ms;        /* not before; how long after the next failure */
    uint32_t n_failed;                /* in a row */
    size_t turn;                      /* the partition that is next */
} is_bg_stage;

/* One thread, and the stages that are its own. */
typedef struct is_bg_worker {
    struct is_background *b;
    int first, end;                   /* stages [first, end) */
    is_bank *bank;                    /* its own connection */
    pthread_t thread;
    bool started;

    /* of the thread alone */
    is_bg_part *parts;                /* [n_parts] in id order */
    size_t n_parts;
    const is_profile *profile;        /* of the last look; NULL = no model was loaded then */
    int64_t data_version;
    double next_look_ms, next_full_ms;
    unsigned n_overlapped;            /* looks in a row */
    bool dropped;                     /* the slice in progress was dropped for a question */
    size_t n_up;                      /* servers that compute elsewhere and were up when a stage failed, or since */

    /* under the lock of the background encoder */
    bool poked;
    bool working;                     /* it did something in its last round */
    bool in_slice;                    /* a slice is being done: what it has put into the bank is not in the counters yet */
    uint64_t n_slices;                /* that have ended */
    int64_t again[16];                /* partitions to look at from the start; more than fit: all */
    size_t n_again;
    uint64_t fresh;                   /* items that this handle added since its last look that no write overlapped */
    bool counted;                     /* that look knew the views */
} is_bg_worker;

typedef struct is_background {
    inferscale *is;
    is_bg_worker workers[IS_BG_WORKERS];
    int stop;                         /* atomic */
    uint64_t max_pending;
    is_policy policies[IS_STAGES];    /* FIRST and on */
    is_bg_stage stages[IS_STAGES];    /* each its worker's alone */
    double rate_facts, rate_ms;       /* of late; the encoder's alone */

    pthread_mutex_t lock;             /* of what follows */
    pthread_cond_t wake, moved;       /* there may be work; something was done, failed or changed */
    double next_checkpoint_ms;
    uint64_t waiting[IS_STAGES];      /* sums over the partitions, as of the worker's last look that no write of this handle overlapped */
    uint64_t writing, n_begun;        /* items that calls are adding now; that calls began to add, ever */
    inferscale_encoder_state state;   /* counters, errors */
    uint32_t failed_in_a_row[IS_STAGES];
    bool elsewhere[IS_STAGES];
    struct is_bg_passed { int64_t partition; uint64_t n; } *passed; /* [n_passed] partitions with items that were passed over */
    size_t n_passed;
} is_background;

/* Starts the threads. *out is is_background_stop'ed before anything of the handle is freed. */
is_status is_background_start(inferscale *is, const inferscale_options *o, is_background **out);
/* Ends the threads, within milliseconds also in the midst of a capture (a model that is being loaded is waited for, and so is a remote
 * engine's server that was asked for a text's tokens), and frees them. */
void is_background_stop(is_background *b);       /* NULL is allowed */

/* For the calls of the handle (background_calls.c); b NULL (no background encoder) is allowed in all of them. */
is_status is_background_take(is_background *b, size_t n); /* before n items are added. E_BUSY: too much waits already to take them */
void is_background_took(is_background *b, size_t n, bool added); /* after a take that was OK, whatever came of it */
void is_background_look(is_background *b);                /* something was changed */
void is_background_again(is_background *b, int64_t partition_id); /* a view of it lost something that the bank's marks do not tell */

struct timespec is_in_ms(double ms);                      /* the monotonic time so much from now */

/* ---- background_look.c: where there is work ---- */

enum { IS_BG_FULL_LOOK_MS = 600000 }; /* everything is looked at again, whatever the marks say */
is_status is_bg_look(is_bg_worker *w);                              /* cheap when nothing changed */
/* Since when the oldest fact waits is asked again, after a slice, and the gate is told. */
void is_bg_look_at_oldest(is_bg_worker *w, is_bg_part *part);
void is_bg_tell_lag(is_bg_worker *w);

/* ---- background_work.c: one slice ---- */

/* Loads what the stage needs and finds its view. E_UNSUPPORTED: it has nothing to do with this model. */
is_status is_bg_prepare(is_background *b, int stage);
const uint8_t *is_bg_view(is_background *b, int stage);             /* fingerprint of the stage's view, once it is ready */
const is_policy *is_bg_policy(is_background *b, int stage);         /* FIRST and on */
/* Does the next few items of the partition. *n_done = items that left the queue, 0 = there is nothing behind part->done. E_BUSY and
 * w->dropped: a question came. */
is_status is_bg_slice(is_bg_worker *w, int stage, is_bg_part *part, uint32_t *n_done);
/* Encodes the next few facts of the partition that have outdated rows (is_bank_outdated), which replaces these. *n_done as above. */
is_status is_bg_replace(is_bg_worker *w, is_bg_part *part, uint32_t *n_done);
/* The stage needs vectors that are not there yet and are being made: a policy that goes by them waits for those of the partition,
 * refining for all. */
bool is_bg_embeds_first(is_bg_worker *w, int stage, const is_bg_part *part);
bool is_bg_stopping(const is_background *b);
/* The next few rows that are stored in another codec than the handle's (is_encode_narrow). Comes before encoding, which would
 * compute them anew. False: there are none, or not now; *st is a failure that is worth telling, else INFERSCALE_OK. */
bool is_bg_narrow(is_bg_worker *w, is_status *st);
/* The same of rows whose page has been closed (is_encode_settle); when nothing waits for the first stage. */
bool is_bg_settle(is_bg_worker *w, is_status *st);
/* The first stage, or one of the second, has done all of this partition's for now. */
void is_bg_narrow_again(is_bg_part *part);
/* Servers of a remote engine that are up now; 0 where the engine computes here. */
size_t is_bg_servers_up(is_background *b);
void is_bg_watch_servers(is_bg_worker *w);
/* Waits until the stage may work: no question is open, or (the first stage) what waits has waited for too long, or the engine
 * computes elsewhere. False if the thread is to end. */
bool is_bg_give_way(is_background *b, int stage);

#endif
