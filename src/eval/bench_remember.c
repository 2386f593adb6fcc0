/* bench_remember.c - see bench_remember.h. */
#include "eval/bench_remember.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "eval/stats.h"
#include "eval/synth.h"

enum { ASKED_FACTS = 60, SPARE = 500, FACTS_MAX = 10000, SAMPLES_MAX = 20000, WRITE_PAUSE_MS = 4, SETTLE_MS = 40, GAP_MS = 360, BLOCK = 4096 };

typedef struct bench {
    const bench_remember_options *o;
    lab *l;
    char question[SYNTH_QUESTION];
    char **texts;                  /* [n_texts] invented facts, all different */
    int64_t *times;
    size_t n_texts, used;          /* used: by the owner whose facts wait, and by the one that is asked about */
    is_file *disk;
    char *disk_path;

    pthread_mutex_t lock;          /* of what follows */
    pthread_cond_t changed;
    bool quiet, resting, end;      /* the writer is to rest; rests; is to end */
    double *remember_ms, *disk_ms; /* [n_samples] */
    uint32_t n_samples;
    is_status failed;
    char why[512];
} bench;

static void pause_ms(double ms)
{
    struct timespec t = { (time_t)(ms / 1000), (long)((ms - (double)(time_t)(ms / 1000) * 1000) * 1e6) };

    nanosleep(&t, NULL);
}

static is_status step(const bench *b, uint64_t done)
{
    if (b->o->cancel && *b->o->cancel) return is_fail(INFERSCALE_E_CANCELLED, "the measurement was cancelled");
    if (b->o->on_progress && b->o->on_progress(b->o->progress_ctx, done, b->o->rounds, "measuring"))
        return is_fail(INFERSCALE_E_CANCELLED, "the measurement was cancelled");
    return INFERSCALE_OK;
}

/* ---- The writer ----------------------------------------------------------------------------------------------------------- */

static is_status remember_one(bench *b, uint32_t i, double *ms)
{
    const inferscale_scope writer = { .user = "writer" };
    char text[128];
    inferscale_fact fact = { .text = text };
    double t0;

    snprintf(text, sizeof text, "Note %u: the parcel number %u was handed over at the back door.", i, i * 7 + 13);
    t0 = is_now_ms();
    IS_TRY(inferscale_remember(b->l->is, &writer, &fact, 1, NULL));
    *ms = is_now_ms() - t0;
    return INFERSCALE_OK;
}

static is_status write_block(bench *b, uint32_t i, double *ms)
{
    static const uint8_t block[BLOCK] = { 1 };
    const is_fs *fs = is_fs_default();
    double t0 = is_now_ms();

    IS_TRY(fs->pwrite(fs, b->disk, block, BLOCK, (uint64_t)i * BLOCK));
    IS_TRY(fs->sync(fs, b->disk));
    *ms = is_now_ms() - t0;
    return INFERSCALE_OK;
}

/* True until the writer is to end; rests as long as it is asked to. */
static bool may_go_on(bench *b)
{
    bool go;

    pthread_mutex_lock(&b->lock);
    while (b->quiet && !b->end) {
        b->resting = true;
        pthread_cond_broadcast(&b->changed);
        pthread_cond_wait(&b->changed, &b->lock);
    }
    b->resting = false;
    go = !b->end && b->n_samples < SAMPLES_MAX;
    pthread_mutex_unlock(&b->lock);
    return go;
}

static void *write_all_the_time(void *arg)
{
    bench *b = arg;
    is_status st = INFERSCALE_OK;

    for (uint32_t i = 0; may_go_on(b); i++) {
        double remember_ms = 0, disk_ms = 0;

        st = remember_one(b, i, &remember_ms);
        if (st == INFERSCALE_OK) st = write_block(b, i, &disk_ms);
        if (st != INFERSCALE_OK) break;
        pthread_mutex_lock(&b->lock);
        b->remember_ms[b->n_samples] = remember_ms;
        b->disk_ms[b->n_samples++] = disk_ms;
        pthread_mutex_unlock(&b->lock);
        pause_ms(WRITE_PAUSE_MS);
    }
    pthread_mutex_lock(&b->lock);
    b->failed = st;
    if (st != INFERSCALE_OK) snprintf(b->why, sizeof b->why, "%s", is_error());
    b->end = b->resting = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

static is_status set_quiet(bench *b, bool quiet)
{
    is_status st;

    pthread_mutex_lock(&b->lock);
    b->quiet = quiet;
    pthread_cond_broadcast(&b->changed);
    while (quiet && !b->resting) pthread_cond_wait(&b->changed, &b->lock);
    st = b->failed != INFERSCALE_OK ? is_fail(b->failed, "%s", b->why) : INFERSCALE_OK;
    pthread_mutex_unlock(&b->lock);
    return st;
}

/* ---- The store ------------------------------------------------------------------------------------------------------------ */

static is_status add(bench *b, const char *user, size_t n)
{
    inferscale_fact *facts = is_calloc(n + 1, sizeof *facts);
    is_status st = facts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu facts", n);

    if (st == INFERSCALE_OK && b->used + n > b->n_texts) st = is_fail(INFERSCALE_E_INVALID, "the measurement needs more than %zu invented "
                                                                      "facts; take fewer rounds", b->n_texts);
    for (size_t i = 0; st == INFERSCALE_OK && i < n; i++)
        facts[i] = (inferscale_fact){ .text = b->texts[b->used + i], .event_time = b->times[b->used + i] };
    if (st == INFERSCALE_OK) st = lab_use(b->l, user);
    if (st == INFERSCALE_OK) st = lab_remember(b->l, facts, n, NULL);
    if (st == INFERSCALE_OK) b->used += n;
    is_free(facts);
    return st;
}

/* It must have something to do all the time. */
static is_status keep_waiting(bench *b, bench_remember_result *out)
{
    const inferscale_scope who = { .user = "waiting" };
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;

    IS_TRY(inferscale_encode_status(b->l->is, &who, &s));
    if (s.n_unencoded < out->waiting_min) out->waiting_min = s.n_unencoded;
    if (s.error != INFERSCALE_OK) return is_fail(s.error, "the background encoder fails: %s", s.last_error);
    return s.n_unencoded < b->o->waiting + SPARE / 2 ? add(b, "waiting", SPARE / 2) : INFERSCALE_OK;
}

/* Embeddings are soon made; what is to wait all the time is the longer work, KV. */
static is_status wait_for_embeddings(bench *b)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;

    for (;;) {
        IS_TRY(inferscale_encode_status(b->l->is, NULL, &s));
        if (s.n_unembedded == 0) return INFERSCALE_OK;
        if (s.error != INFERSCALE_OK) return is_fail(s.error, "the background encoder fails: %s", s.last_error);
        IS_TRY(step(b, 0));
        pause_ms(SETTLE_MS);
    }
}

static is_status prepare(bench *b, inferscale_model_info *info)
{
    inferscale_options store = b->o->store;
    inferscale_encode_options encode = INFERSCALE_ENCODE_OPTIONS_INIT;
    const is_fs *fs = is_fs_default();

    store.background = 1;
    store.refine = "none";
    IS_TRY(lab_open(&store, "asked", &b->l));
    IS_TRY(inferscale_model(b->l->is, info));
    if (!info->can_inject)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be injected: %s; take another --model", info->why_not);
    b->n_texts = FACTS_MAX;
    b->texts = is_calloc(FACTS_MAX, sizeof *b->texts);
    b->times = is_calloc(FACTS_MAX, sizeof *b->times);
    b->remember_ms = is_calloc(SAMPLES_MAX, sizeof *b->remember_ms);
    b->disk_ms = is_calloc(SAMPLES_MAX, sizeof *b->disk_ms);
    b->disk_path = is_path_join(b->l->home, "disk");
    if (!b->texts || !b->times || !b->remember_ms || !b->disk_ms || !b->disk_path)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for the measurement");
    IS_TRY(fs->open(fs, b->disk_path, IS_OPEN_CREATE_NEW, &b->disk));
    IS_TRY(synth_facts(b->o->seed, FACTS_MAX, b->texts, b->times));
    synth_question(b->o->seed, b->question);
    IS_TRY(add(b, "asked", ASKED_FACTS));
    encode.on_progress = b->o->on_progress;
    encode.progress_ctx = b->o->progress_ctx;
    IS_TRY(inferscale_encode(b->l->is, &b->l->scope, &encode));
    IS_TRY(add(b, "waiting", b->o->waiting + SPARE));
    return wait_for_embeddings(b);
}

static void clean_up(bench *b)
{
    const is_fs *fs = is_fs_default();

    if (b->disk) fs->close(fs, b->disk);
    lab_close(b->l);
    for (size_t i = 0; b->texts && i < b->n_texts; i++) is_free(b->texts[i]);
    is_free(b->texts);
    is_free(b->times);
    is_free(b->remember_ms);
    is_free(b->disk_ms);
    is_free(b->disk_path);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
}

/* ---- Questions ------------------------------------------------------------------------------------------------------------ */

static is_status ask(bench *b, double *ttft_ms)
{
    const inferscale_scope who = { .user = "asked" };
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.k = b->o->k;
    o.max_tokens = b->o->max_tokens;
    IS_TRY(inferscale_ask(b->l->is, &who, b->question, &o, &a));
    *ttft_ms = a->ttft_ms;
    inferscale_answer_free(a);
    return INFERSCALE_OK;
}

/* Encoder and writer stand still, what they had begun is over. */
static is_status ask_idle(bench *b, double *ttft_ms)
{
    is_status st = set_quiet(b, true);

    if (st != INFERSCALE_OK) return st;
    is_gate_hold(b->l->is->gate); /* a question alone no longer stops an encoder that lags */
    pause_ms(SETTLE_MS);
    st = ask(b, ttft_ms);
    is_gate_release(b->l->is->gate);
    return st;
}

/* Both are in the midst of their work; when the question comes is drawn. */
static is_status ask_loaded(bench *b, rng *r, double *ttft_ms, bench_remember_result *out)
{
    double t0 = is_now_ms();

    IS_TRY(set_quiet(b, false));
    pause_ms(SETTLE_MS + (double)rng_below(r, GAP_MS));
    IS_TRY(ask(b, ttft_ms));
    IS_TRY(keep_waiting(b, out));
    out->seconds += (is_now_ms() - t0) / 1000;
    return INFERSCALE_OK;
}

static is_status measure(bench *b, double *idle, double *loaded, bench_remember_result *out)
{
    double warm;

    for (int i = 0; i < 2; i++) IS_TRY(ask(b, &warm));
    for (uint32_t i = 0; i < b->o->rounds; i++) {
        rng r = rng_stream(b->o->seed, 1, i);

        if (rng_below(&r, 2)) {
            IS_TRY(ask_idle(b, &idle[i]));
            IS_TRY(ask_loaded(b, &r, &loaded[i], out));
        } else {
            IS_TRY(ask_loaded(b, &r, &loaded[i], out));
            IS_TRY(ask_idle(b, &idle[i]));
        }
        IS_TRY(step(b, i + 1));
    }
    return INFERSCALE_OK;
}

static void sum_up(const bench *b, const double *idle, const double *loaded, bench_remember_result *out)
{
    const uint32_t n = b->n_samples, q = b->o->rounds;

    out->n_remembered = n;
    out->n_questions = q;
    out->p50_ms = stats_percentile(b->remember_ms, n, 0.5);
    out->p99_ms = stats_percentile(b->remember_ms, n, 0.99);
    out->max_ms = stats_percentile(b->remember_ms, n, 1);
    out->disk_p50_ms = stats_percentile(b->disk_ms, n, 0.5);
    out->disk_p99_ms = stats_percentile(b->disk_ms, n, 0.99);
    out->disk_max_ms = stats_percentile(b->disk_ms, n, 1);
    out->ttft_idle_ms = stats_median(idle, q);
    out->ttft_loaded_ms = stats_median(loaded, q);
    out->ttft_idle_p90_ms = stats_percentile(idle, q, 0.9);
    out->ttft_loaded_p90_ms = stats_percentile(loaded, q, 0.9);
    out->ttft_ratio = out->ttft_loaded_ms / out->ttft_idle_ms;
}

/* With the writer beside. */
static is_status run(bench *b, bench_remember_result *out)
{
    double *idle = is_calloc(b->o->rounds + 1, sizeof *idle), *loaded = is_calloc(b->o->rounds + 1, sizeof *loaded);
    inferscale_encoder_state before = INFERSCALE_ENCODER_STATE_INIT, after = INFERSCALE_ENCODER_STATE_INIT;
    pthread_t writer;
    is_status st = idle && loaded ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the measurement");

    if (st == INFERSCALE_OK) st = inferscale_encode_status(b->l->is, NULL, &before);
    if (st == INFERSCALE_OK && pthread_create(&writer, NULL, write_all_the_time, b) != 0)
        st = is_fail(INFERSCALE_E_NOMEM, "the writing thread cannot be started; free some memory");
    if (st == INFERSCALE_OK) {
        st = measure(b, idle, loaded, out);
        pthread_mutex_lock(&b->lock);
        b->end = true;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        pthread_join(writer, NULL);
    }
    if (st == INFERSCALE_OK) st = inferscale_encode_status(b->l->is, NULL, &after);
    if (st == INFERSCALE_OK) {
        out->facts_encoded = after.facts_encoded - before.facts_encoded;
        out->aborted_for_questions = after.aborted_for_questions - before.aborted_for_questions;
        sum_up(b, idle, loaded, out);
    }
    is_free(idle);
    is_free(loaded);
    return st;
}

is_status bench_remember_run(const bench_remember_options *options, bench_remember_result *out, inferscale_model_info *info)
{
    bench b = { .o = options };
    is_status st;

    *out = (bench_remember_result){ .waiting_min = UINT64_MAX };
    if (options->rounds < 1) return is_fail(INFERSCALE_E_INVALID, "give at least one round");
    if (options->waiting > FACTS_MAX / 2) return is_fail(INFERSCALE_E_INVALID, "at most %d facts can wait here", FACTS_MAX / 2);
    pthread_mutex_init(&b.lock, NULL);
    pthread_cond_init(&b.changed, NULL);
    b.quiet = true;
    st = prepare(&b, info);
    if (st == INFERSCALE_OK) st = run(&b, out);
    clean_up(&b);
    return st;
}
