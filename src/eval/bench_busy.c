/* bench_busy.c - see bench_busy.h. */
#include "eval/bench_busy.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/background.h"
#include "base/clock.h"
#include "base/mem.h"
#include "eval/stats.h"
#include "eval/synth.h"

enum { ASKED_FACTS = 60, FACTS_MAX = 10000, LOOK_MS = 2, SETTLE_MS = 50 };
enum { PAUSE_MIN_MS = 50, PAUSE_MS = 200 }; /* before the next fact: at least, and drawn beside */
enum window { QUIET, TOLD, IDLE, BUSY, WINDOWS };

typedef struct bench {
    const bench_busy_options *o;
    bench_busy_result *out;
    lab *l;
    char question[SYNTH_QUESTION];
    char **texts;                  /* [FACTS_MAX] invented facts, all different */
    int64_t *times;
    size_t used;
    uint64_t steps;                /* that are done; for who watches */
    rng pauses;

    pthread_t threads[BENCH_BUSY_CLIENTS];
    uint32_t n_threads;
    pthread_mutex_t lock;          /* of what follows */
    pthread_cond_t changed;
    bool asking, end;              /* the clients are to ask; to end */
    uint32_t n_asking;             /* that have a question open */
    bench_busy_ttft *into;         /* where their times go; NULL = nowhere */
    is_status failed;
    char why[512];
} bench;

static void pause_ms(double ms)
{
    const time_t s = (time_t)(ms / 1000);
    const struct timespec t = { s, (long)((ms - 1000 * (double)s) * 1e6) };

    nanosleep(&t, NULL);
}

static is_status step(const bench *b)
{
    const bench_busy_options *o = b->o;

    const uint64_t total = (uint64_t)WINDOWS * o->pairs;

    if ((o->cancel && *o->cancel) ||
        (o->on_progress && o->on_progress(o->progress_ctx, b->steps, total, "measuring")))
        return is_fail(INFERSCALE_E_CANCELLED, "the measurement was cancelled");
    return INFERSCALE_OK;
}

/* ---- The clients ------------------------------------------------------------------------- */

static is_status ask(const bench *b, double *ttft_ms)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    const inferscale_scope who = { .user = "asked" };
    inferscale_answer *a = NULL;

    o.k = b->o->k;
    o.max_tokens = b->o->max_tokens;
    IS_TRY(inferscale_ask(b->l->is, &who, b->question, &o, &a));
    *ttft_ms = a->ttft_ms;
    inferscale_answer_free(a);
    return INFERSCALE_OK;
}

/* True: ask now. False: the thread is to end. */
static bool may_ask(bench *b)
{
    bool end;

    pthread_mutex_lock(&b->lock);
    while (!b->asking && !b->end) pthread_cond_wait(&b->changed, &b->lock);
    end = b->end;
    b->n_asking += !end;
    pthread_mutex_unlock(&b->lock);
    return !end;
}

static void answered(bench *b, const bench_busy_ttft *begun_in, is_status st, double ms)
{
    pthread_mutex_lock(&b->lock);
    b->n_asking--;
    if (st == INFERSCALE_OK && b->into && b->into == begun_in && b->into->n < BENCH_BUSY_TTFTS)
        b->into->ms[b->into->n++] = ms;
    if (st != INFERSCALE_OK && b->failed == INFERSCALE_OK) {
        b->failed = st;
        snprintf(b->why, sizeof b->why, "%s", is_error());
        b->end = true;
    }
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static const bench_busy_ttft *where(bench *b)
{
    const bench_busy_ttft *into;

    pthread_mutex_lock(&b->lock);
    into = b->into;
    pthread_mutex_unlock(&b->lock);
    return into;
}

static void *ask_all_the_time(void *arg)
{
    bench *b = arg;

    while (may_ask(b)) {
        const bench_busy_ttft *begun_in = where(b);
        double ms = 0;
        is_status st = ask(b, &ms);

        answered(b, begun_in, st, ms);
    }
    return NULL;
}

static is_status failure(const bench *b)
{
    return b->failed == INFERSCALE_OK ? INFERSCALE_OK : is_fail(b->failed, "%s", b->why);
}

/* Returns when all of them have a question open, or none has. */
static is_status set_asking(bench *b, bool asking)
{
    is_status st;

    pthread_mutex_lock(&b->lock);
    b->asking = asking;
    pthread_cond_broadcast(&b->changed);
    while (!b->end && b->n_asking != (asking ? b->n_threads : 0))
        pthread_cond_wait(&b->changed, &b->lock);
    st = failure(b);
    pthread_mutex_unlock(&b->lock);
    return st;
}

static is_status set_into(bench *b, bench_busy_ttft *into)
{
    is_status st;

    pthread_mutex_lock(&b->lock);
    b->into = into;
    st = failure(b);
    pthread_mutex_unlock(&b->lock);
    return st;
}

static is_status start_clients(bench *b)
{
    for (; b->n_threads < b->o->clients; b->n_threads++)
        if (pthread_create(&b->threads[b->n_threads], NULL, ask_all_the_time, b) != 0)
            return is_fail(INFERSCALE_E_NOMEM, "a client's thread cannot be started; take fewer");
    return INFERSCALE_OK;
}

static void end_clients(bench *b)
{
    pthread_mutex_lock(&b->lock);
    b->end = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    for (uint32_t i = 0; i < b->n_threads; i++) pthread_join(b->threads[i], NULL);
}

/* ---- What is told ------------------------------------------------------------------------ */

static is_status tell(bench *b, const char *user, size_t n)
{
    const inferscale_scope who = { .user = user };
    inferscale_fact *facts = is_calloc(n + 1, sizeof *facts);
    is_status st = INFERSCALE_OK;

    if (!facts) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", n);
    else if (b->used + n > FACTS_MAX)
        st = is_fail(INFERSCALE_E_INVALID, "that needs over %d facts; take fewer pairs", FACTS_MAX);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++, b->used++)
        facts[i] = (inferscale_fact){ .text = b->texts[b->used], .event_time = b->times[b->used] };
    if (st == INFERSCALE_OK) st = inferscale_remember(b->l->is, &who, facts, n, NULL);
    is_free(facts);
    return st;
}

/* Items that the background has embedded, and how it fares. Reads counters only: asking for the
 * encoder's status counts in the bank, which would be work beside what is measured. */
static is_status embedded(const bench *b, uint64_t *n)
{
    is_background *bg = b->l->is->background;
    is_status st = INFERSCALE_OK;

    pthread_mutex_lock(&bg->lock);
    *n = bg->state.items_embedded;
    if (bg->failed_in_a_row[IS_STAGE_EMBED])
        st = is_fail(bg->state.error, "the background encoder fails: %s", bg->state.last_error);
    pthread_mutex_unlock(&bg->lock);
    return st;
}

/* Until so many have been; nobody else tells anything. */
static is_status until_embedded(const bench *b, uint64_t wanted)
{
    uint64_t n = 0;

    for (;;) {
        IS_TRY(embedded(b, &n));
        if (n >= wanted) return INFERSCALE_OK;
        if (b->o->cancel && *b->o->cancel)
            return is_fail(INFERSCALE_E_CANCELLED, "the measurement was cancelled");
        pause_ms(LOOK_MS);
    }
}

static is_status until_all_is_done(const bench *b)
{
    is_status st;

    do {
        IS_TRY(step(b));
        st = inferscale_encode_wait(b->l->is, NULL, 500);
    } while (st == INFERSCALE_E_BUSY);
    if (st == INFERSCALE_OK) pause_ms(SETTLE_MS);
    return st;
}

/* ---- The windows ------------------------------------------------------------------------- */

static is_status tell_one_by_one(bench *b, double until_ms)
{
    bench_busy_result *out = b->out;

    while (is_now_ms() < until_ms && out->n_lags < BENCH_BUSY_LAGS) {
        uint64_t before = 0;
        double t0;

        IS_TRY(embedded(b, &before));
        IS_TRY(tell(b, "teller", 1));
        t0 = is_now_ms();
        IS_TRY(until_embedded(b, before + 1));
        out->lag_ms[out->n_lags++] = is_now_ms() - t0;
        pause_ms(PAUSE_MIN_MS + (double)rng_below(&b->pauses, PAUSE_MS));
    }
    return INFERSCALE_OK;
}

static is_status slices(const bench *b, uint64_t *n)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;

    IS_TRY(inferscale_encode_status(b->l->is, NULL, &s));
    *n = s.n_slices;
    return INFERSCALE_OK;
}

/* A question has ended in the window (or failed: who waits is to go on). */
static bool any_since(bench *b, const bench_busy_ttft *t, uint32_t first)
{
    bool any;

    pthread_mutex_lock(&b->lock);
    any = t->n > first || b->end;
    pthread_mutex_unlock(&b->lock);
    return any;
}

/* The clients' questions, with facts told beside them or without. A window that is too short for
 * one question is longer. */
static is_status measure_questions(bench *b, bool told, uint32_t pair)
{
    bench_busy_ttft *t = told ? &b->out->told : &b->out->quiet;
    const uint32_t first = t->n;
    uint64_t before = 0, after = 0;
    double until;

    IS_TRY(set_asking(b, true));
    IS_TRY(set_into(b, t));
    IS_TRY(slices(b, &before));
    until = is_now_ms() + 1000 * b->o->window_s;
    if (told) IS_TRY(tell_one_by_one(b, until));
    while (is_now_ms() < until || !any_since(b, t, first)) {
        IS_TRY(step(b));
        pause_ms(LOOK_MS);
    }
    IS_TRY(slices(b, &after));
    IS_TRY(set_into(b, NULL));
    IS_TRY(set_asking(b, false));
    if (told) b->out->n_slices += after - before;
    t->window_ms[pair] = stats_median(t->ms + first, t->n - first);
    return INFERSCALE_OK;
}

/* Facts a second of a batch. */
static is_status measure_rate(bench *b, bool busy, uint32_t pair)
{
    double t0, *into = busy ? b->out->busy : b->out->idle;
    uint64_t before = 0;
    is_status st;

    if (busy) IS_TRY(set_asking(b, true));
    else is_gate_hold(b->l->is->gate);
    t0 = is_now_ms();
    st = embedded(b, &before);
    if (st == INFERSCALE_OK) st = tell(b, "teller", b->o->batch);
    if (st == INFERSCALE_OK) st = until_embedded(b, before + b->o->batch);
    into[pair] = 1000.0 * b->o->batch / (is_now_ms() - t0);
    if (busy && st == INFERSCALE_OK) st = set_asking(b, false);
    else if (!busy) is_gate_release(b->l->is->gate);
    return st;
}

static is_status measure(bench *b)
{
    for (uint32_t i = 0; i < b->o->pairs; i++) {
        rng r = rng_stream(b->o->seed, 2, i);
        uint32_t order[WINDOWS];

        rng_permutation(&r, order, WINDOWS);
        for (int w = 0; w < WINDOWS; w++, b->steps++) {
            const uint32_t kind = order[w];

            IS_TRY(until_all_is_done(b));
            if (kind == QUIET || kind == TOLD) IS_TRY(measure_questions(b, kind == TOLD, i));
            else IS_TRY(measure_rate(b, kind == BUSY, i));
        }
        b->out->n_pairs++;
    }
    return INFERSCALE_OK;
}

/* ---- Begin and end ----------------------------------------------------------------------- */

static is_status prepare(bench *b, inferscale_model_info *info)
{
    inferscale_options store = b->o->store;
    inferscale_encode_options encode = INFERSCALE_ENCODE_OPTIONS_INIT;
    double warm;

    store.background = 1;
    store.refine = "none";
    IS_TRY(lab_open(&store, "asked", &b->l));
    IS_TRY(inferscale_model(b->l->is, info));
    if (!info->can_inject)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be injected: %s; "
                       "take another --model", info->why_not);
    b->texts = is_calloc(FACTS_MAX, sizeof *b->texts);
    b->times = is_calloc(FACTS_MAX, sizeof *b->times);
    b->out->quiet.ms = is_calloc(BENCH_BUSY_TTFTS, sizeof(double));
    b->out->told.ms = is_calloc(BENCH_BUSY_TTFTS, sizeof(double));
    b->out->lag_ms = is_calloc(BENCH_BUSY_LAGS, sizeof(double));
    if (!b->texts || !b->times || !b->out->quiet.ms || !b->out->told.ms || !b->out->lag_ms)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for the measurement");
    IS_TRY(synth_facts(b->o->seed, FACTS_MAX, b->texts, b->times));
    synth_question(b->o->seed, b->question);
    IS_TRY(tell(b, "asked", ASKED_FACTS));
    IS_TRY(inferscale_encode(b->l->is, &b->l->scope, &encode));
    for (int i = 0; i < 2; i++) IS_TRY(ask(b, &warm));
    return start_clients(b);
}

static void sum_up(bench_busy_result *r)
{
    bench_busy_ttft *all[] = { &r->quiet, &r->told };
    const uint32_t n = r->n_pairs;

    for (size_t i = 0; i < 2; i++) {
        all[i]->median_ms = stats_median(all[i]->ms, all[i]->n);
        all[i]->p95_ms = stats_percentile(all[i]->ms, all[i]->n, 0.95);
    }
    for (uint32_t i = 0; i < n; i++) {
        r->ttft_ratios[i] = r->told.window_ms[i] / r->quiet.window_ms[i];
        r->rate_ratios[i] = r->busy[i] / r->idle[i];
    }
    r->ttft_ratio = stats_median(r->ttft_ratios, n);
    r->rate_ratio = stats_median(r->rate_ratios, n);
    r->idle_facts_per_s = stats_median(r->idle, n);
    r->busy_facts_per_s = stats_median(r->busy, n);
    r->lag_p50_ms = stats_percentile(r->lag_ms, r->n_lags, 0.5);
    r->lag_p95_ms = stats_percentile(r->lag_ms, r->n_lags, 0.95);
    r->lag_max_ms = stats_percentile(r->lag_ms, r->n_lags, 1);
}

static is_status check(const bench_busy_options *o)
{
    const bool clients = o->clients >= 1 && o->clients <= BENCH_BUSY_CLIENTS;
    const bool pairs = o->pairs >= 1 && o->pairs <= BENCH_BUSY_PAIRS;

    if (clients && pairs && o->batch >= 1 && o->window_s > 0) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID, "give 1 to %d clients, 1 to %d pairs, a window, a batch",
                   BENCH_BUSY_CLIENTS, BENCH_BUSY_PAIRS);
}

is_status bench_busy_run(const bench_busy_options *options, bench_busy_result *out,
                         inferscale_model_info *info)
{
    bench b = { .o = options, .out = out, .pauses = rng_stream(options->seed, 3, 0) };
    is_status st;

    memset(out, 0, sizeof *out);
    IS_TRY(check(options));
    pthread_mutex_init(&b.lock, NULL);
    pthread_cond_init(&b.changed, NULL);
    st = prepare(&b, info);
    if (st == INFERSCALE_OK) st = measure(&b);
    end_clients(&b);
    if (st == INFERSCALE_OK) sum_up(out);
    lab_close(b.l);
    for (size_t i = 0; b.texts && i < FACTS_MAX; i++) is_free(b.texts[i]);
    is_free(b.texts);
    is_free(b.times);
    pthread_cond_destroy(&b.changed);
    pthread_mutex_destroy(&b.lock);
    return st;
}

void bench_busy_result_free(bench_busy_result *r)
{
    is_free(r->quiet.ms);
    is_free(r->told.ms);
    is_free(r->lag_ms);
    *r = (bench_busy_result){ 0 };
}
