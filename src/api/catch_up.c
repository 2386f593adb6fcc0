/* catch_up.c - see catch_up.h.
 *
 * An embedder may be a server that does not answer, so the question does not embed by itself. A thread does, one batch after another,
 * and the question waits for it until the budget is spent. Then it sets the thread's cancel flag, takes what is done, and goes on. The
 * thread stores what it has and ends. Few such threads may be left over: while as many are, questions name what they did not search. */
#include "api/catch_up.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { BUDGET_MS = 50, MOST_TEXTS = 256, MOST_THREADS = 8, MOST_BATCH = 16, MOST_FAILURES = 3 };

struct is_catch_up {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_threads;
};

/* What a thread works on; freed by whoever leaves it last. */
typedef struct job {
    is_catch_up *home;
    is_bank *bank;            /* NULL = nothing is stored */
    is_embedder *embedder;
    uint64_t log;             /* where its lines go */
    is_partition p;
    inferscale_list *items;
    double until_ms;
    int cancel;               /* atomic */
    /* under home->lock */
    unsigned users;
    bool ended;
    size_t n_done;            /* the first so many items were tried; what of them is written never changes */
    bool *have;               /* [items->n] */
    float *vecs;              /* [items->n][dim] */
} job;

is_status is_catch_up_new(is_catch_up **out)
{
    is_catch_up *c = is_calloc(1, sizeof *c);
    pthread_condattr_t attr;

    *out = c;
    if (!c) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a lock; free some and try again");
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    return INFERSCALE_OK;
}

void is_catch_up_free(is_catch_up *c)
{
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    while (c->n_threads) pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    is_free(c);
}

static void free_job(job *j)
{
    inferscale_list_free(j->items);
    is_free(j->have);
    is_free(j->vecs);
    is_free(j);
}

/* home->lock is held. */
static bool leave(job *j)
{
    return --j->users == 0;
}

/* ---- The thread ---------------------------------------------------------------------------------------------------------- */

static bool is_over(const job *j)
{
    return __atomic_load_n(&j->cancel, __ATOMIC_ACQUIRE) || is_now_ms() >= j->until_ms;
}

static is_status embed(job *j, size_t from, size_t n)
{
    char *texts[MOST_BATCH] = { 0 };
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++)
        if (!(texts[i] = is_dense_text(&j->items->items[from + i]))) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a text");
    if (st == INFERSCALE_OK)
        st = is_embedder_embed_until(j->embedder, (const char *const *)texts, n, j->vecs + from * is_embedder_dim(j->embedder), &j->cancel);
    for (size_t i = 0; i < n; i++) is_free(texts[i]);
    return st;
}

static void publish(job *j, size_t from, size_t n, bool have)
{
    pthread_mutex_lock(&j->home->lock);
    for (size_t i = 0; i < n; i++) j->have[from + i] = have;
    j->n_done = from + n;
    pthread_mutex_unlock(&j->home->lock);
}

/* The next batch. A server elsewhere is not asked for one text after the other: twice the last one, where the time for it is left by the
 * last one's measure. An embedder that runs here gets one at a time: another question waits behind no more. */
static size_t next_batch(const job *j, size_t last, double last_ms)
{
    const double left = j->until_ms - is_now_ms();
    size_t n = last * 2 < MOST_BATCH ? last * 2 : MOST_BATCH;

    if (!is_embedder_is_remote(j->embedder)) return 1;
    while (n > 1 && last_ms / (double)last * (double)n > left) n /= 2;
    return n;
}

/* A batch that fails is tried again text by text; a text that fails is passed over. */
static void embed_all(job *j)
{
    size_t at = 0, batch = 1, n_failed = 0, careful = 0;

    while (at < j->items->n && n_failed < MOST_FAILURES && !is_over(j)) {
        const size_t n = batch < j->items->n - at ? batch : j->items->n - at;
        const double t0 = is_now_ms();
        const is_status st = embed(j, at, n);

        if (st == INFERSCALE_E_CANCELLED) return;
        if (st != INFERSCALE_OK) {
            is_log(IS_LOG_DEBUG, "a question could not embed what is new: %s", is_error());
            n_failed++;
            if (n == 1) publish(j, at++, 1, false);
            batch = 1;
            careful = at + n > careful ? at + n : careful;
            continue;
        }
        publish(j, at, n, true);
        at += n;
        batch = at < careful ? 1 : next_batch(j, n, is_now_ms() - t0);
    }
}

/* Items that were forgotten or changed meanwhile are left out by the bank. */
static void store(job *j)
{
    const size_t dim = is_embedder_dim(j->embedder);
    inferscale_list some = { .items = is_malloc((j->n_done + 1) * sizeof *some.items) };
    float *vecs = is_malloc((j->n_done * dim + 1) * sizeof *vecs);

    for (size_t i = 0; some.items && vecs && i < j->n_done; i++) {
        if (!j->have[i]) continue;
        memcpy(vecs + some.n * dim, j->vecs + i * dim, dim * sizeof *vecs);
        some.items[some.n++] = j->items->items[i];
    }
    if (some.n && is_vectors_store(j->bank, &j->p, j->embedder, &some, vecs) != INFERSCALE_OK)
        is_log(IS_LOG_DEBUG, "a question's vectors were not stored: %s", is_error());
    is_free(some.items);
    is_free(vecs);
}

static void *work(void *ctx)
{
    job *j = ctx;
    is_catch_up *c = j->home;
    bool last;

    is_log_for(j->log);
    embed_all(j);
    if (j->bank) store(j);
    pthread_mutex_lock(&c->lock);
    j->ended = true;
    last = leave(j);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (last) free_job(j);
    is_stack_wipe(); /* the C library keeps the stack for the next thread */
    pthread_mutex_lock(&c->lock);
    c->n_threads--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static bool start(job *j)
{
    pthread_attr_t attr;
    pthread_t id;
    bool ok;

    pthread_mutex_lock(&j->home->lock);
    ok = j->home->n_threads < MOST_THREADS;
    if (ok) j->home->n_threads++;
    pthread_mutex_unlock(&j->home->lock);
    if (!ok) return false;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    ok = pthread_create(&id, &attr, work, j) == 0;
    pthread_attr_destroy(&attr);
    if (ok) return true;
    pthread_mutex_lock(&j->home->lock);
    j->home->n_threads--;
    pthread_mutex_unlock(&j->home->lock);
    return false;
}

/* ---- The question -------------------------------------------------------------------------------------------------------- */

static struct timespec time_of(double ms)
{
    struct timespec t = { .tv_sec = (time_t)(ms / 1000) };

    t.tv_nsec = (long)((ms - (double)t.tv_sec * 1000) * 1e6);
    if (t.tv_nsec > 999999999) t.tv_nsec = 999999999;
    return t;
}

static is_status take(const job *j, is_caught *out)
{
    const uint32_t dim = is_embedder_dim(j->embedder);

    out->v = is_malloc((j->n_done + 1) * sizeof *out->v);
    out->q = is_malloc(j->n_done * dim + 1);
    if (!out->v || !out->q) return is_fail(INFERSCALE_E_NOMEM, "out of memory for vectors; free some and try again");
    for (size_t i = 0; i < j->n_done; i++) {
        int8_t *q = out->q + out->n * dim;

        if (!j->have[i]) continue;
        out->v[out->n] = (is_vector){ .id = j->items->items[i].id, .version = j->items->items[i].version, .q = q };
        is_quantize_i8(j->vecs + i * dim, dim, q, &out->v[out->n++].scale);
    }
    return INFERSCALE_OK;
}

/* Until the thread is through, or the budget is spent. */
static is_status wait_for(job *j, is_caught *out)
{
    is_catch_up *c = j->home;
    const struct timespec until = time_of(j->until_ms);
    is_status st;
    bool last;

    pthread_mutex_lock(&c->lock);
    while (!j->ended && pthread_cond_timedwait(&c->changed, &c->lock, &until) != ETIMEDOUT) continue;
    __atomic_store_n(&j->cancel, 1, __ATOMIC_RELEASE);
    st = take(j, out);
    last = leave(j);
    pthread_mutex_unlock(&c->lock);
    if (last) free_job(j);
    return st;
}

static is_status new_job(inferscale *is, const is_partition *p, inferscale_list *items, double until_ms, job **out)
{
    job *j = is_calloc(1, sizeof *j);

    *out = j;
    if (!j) {
        inferscale_list_free(items);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for vectors; free some and try again");
    }
    *j = (job){ .home = is->catch_up, .log = is->logger.id, .bank = is->read_only ? NULL : is->bank,
                .embedder = is->embedder, .p = *p, .items = items, .until_ms = until_ms,
                .users = 2 };
    j->have = is_calloc(items->n + 1, sizeof *j->have);
    j->vecs = is_malloc((items->n * is_embedder_dim(is->embedder) + 1) * sizeof *j->vecs);
    return j->have && j->vecs ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for vectors; free some and try again");
}

is_status is_catch_up_run(inferscale *is, const is_partition *p, const is_query *q, is_caught *out)
{
    const double ms = is->question_embed_ms < 0 ? 0 : is->question_embed_ms ? is->question_embed_ms : BUDGET_MS;
    const size_t most = is->question_embed_texts && is->question_embed_texts < MOST_TEXTS ? is->question_embed_texts : MOST_TEXTS;
    inferscale_list *items = NULL;
    is_dep *missing = NULL;
    size_t n = 0, all = 0;
    job *j = NULL;
    is_status st;

    *out = (is_caught){ 0 };
    if (ms <= 0) return INFERSCALE_OK;
    st = is_recall_missing(is->recall, p, q, most, &missing, &n, &all);
    if (st == INFERSCALE_OK && n) st = is_bank_get_versions(is->bank, p, missing, n, &items);
    is_free(missing);
    if (st != INFERSCALE_OK || !items) return st;
    st = new_job(is, p, items, is_now_ms() + ms, &j);
    if (st == INFERSCALE_OK && start(j)) return wait_for(j, out);
    if (j) free_job(j);
    return st;
}

void is_caught_free(is_caught *c)
{
    is_free(c->v);
    is_free(c->q);
    *c = (is_caught){ 0 };
}
