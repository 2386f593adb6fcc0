/* audit.c - see audit.h. Answers come in on their own threads (on_answer); one thread measures. */
#include "serve/audit.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/listen.h"
#include "api/talks.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "eval/stats.h"
#include "serve/audit_plan.h"

enum {
    QUEUE_MAX = 8,                   /* answers that wait; more are skipped, counted */
    ANSWER_TOKENS = 32,              /* compared of each */
    WINDOW = 200,                    /* audits that "of late" means */
    QUIET_MS = 100,                  /* without a question, before one begins */
    TRIES = 50,                      /* interrupted by questions so often, it is given up */
};

/* Why an answer was not audited after all. */
typedef enum skip { SKIP_QUEUE, SKIP_GONE, SKIP_ROWS, SKIP_BUSY, SKIP_ROOM, N_SKIPS } skip;
static const char *const SKIPS[N_SKIPS] = { "queue_full", "forgotten_or_changed", "rows_replaced", "interrupted", "no_room" };

struct is_audit {
    is_server *s;
    struct is_listener listener;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    int stop;                        /* atomic */
    is_hold hold;                    /* of the one that is being measured */
    rng draw;
    audit_entry *first, *last;
    uint32_t n_queued;
    bool measuring;
    /* what came out */
    uint64_t offered, done, failed, skipped[N_SKIPS], tokens, tokens_same;
    double kl_sum, kl_most;          /* over audits */
    twin_result window[WINDOW];      /* a ring; done % WINDOW is the next */
    char error[256];                 /* of the last that failed */
};

/* ---- Answers come in ------------------------------------------------------------------------------------------------------- */

/* The lock is held. */
static void count_skipped(struct is_audit *a, skip why)
{
    a->skipped[why]++;
    is_metric_add(a->s->metrics, IS_M_AUDITS, "skipped", NULL, 1);
}

static bool is_wanted(struct is_audit *a)
{
    bool wanted;

    pthread_mutex_lock(&a->lock);
    wanted = rng_unit(&a->draw) < a->s->config->audit;
    a->offered += wanted;
    if (wanted && a->n_queued == QUEUE_MAX) {
        count_skipped(a, SKIP_QUEUE);
        wanted = false;
    }
    pthread_mutex_unlock(&a->lock);
    return wanted;
}

static void on_answer(void *ctx, const is_asking *asking, const is_plan *plan, const int32_t *told, size_t n_told)
{
    struct is_audit *a = ctx;
    audit_entry *e = NULL;
    is_status st;

    if (asking->answer->mode != INFERSCALE_MODE_KV || !audit_worth(plan) || is_hold_stopped(&asking->hold) || !is_wanted(a)) return;
    st = audit_entry_new(&asking->p, asking->hold.as_of, plan, told, n_told < ANSWER_TOKENS ? n_told : ANSWER_TOKENS, &e);
    pthread_mutex_lock(&a->lock);
    if (st != INFERSCALE_OK) {
        a->failed++;
        is_metric_add(a->s->metrics, IS_M_AUDITS, "failed", NULL, 1);
    } else if (a->n_queued == QUEUE_MAX) {
        count_skipped(a, SKIP_QUEUE);
    } else {
        e->seed = rng_next(&a->draw);
        if (a->last) a->last->next = e;
        else a->first = e;
        a->last = e;
        a->n_queued++;
        e = NULL;
        pthread_cond_signal(&a->more);
    }
    pthread_mutex_unlock(&a->lock);
    audit_entry_free(e);
}

/* What waits and used it goes: the one that is measured is stopped as questions are (its hold). */
static void on_gone(void *ctx, const is_partition *p)
{
    struct is_audit *a = ctx;

    pthread_mutex_lock(&a->lock);
    a->last = NULL;
    for (audit_entry **at = &a->first; *at;) {
        audit_entry *e = *at;

        if (e->p.id != p->id || audit_entry_holds(a->s->is, p, e)) {
            a->last = e;
            at = &e->next;
            continue;
        }
        *at = e->next;
        a->n_queued--;
        count_skipped(a, SKIP_GONE);
        audit_entry_free(e);
    }
    pthread_mutex_unlock(&a->lock);
}

/* ---- Measuring ------------------------------------------------------------------------------------------------------------- */

static bool stopping(struct is_audit *a)
{
    return __atomic_load_n(&a->stop, __ATOMIC_ACQUIRE) != 0;
}

/* Over the window; *noise: the mean KL of another batching there, NaN where none was measured. The lock is held. */
static double order_ratio(const struct is_audit *a, size_t *n, double *noise, stats_interval *interval)
{
    const size_t have = a->done < WINDOW ? (size_t)a->done : WINDOW;
    double ratio = twin_order_ratio(a->window, have, n, interval);

    *noise = 0;
    for (size_t i = 0; i < have; i++) *noise += a->window[i].has_order ? a->window[i].noise.kl : 0;
    *noise = *n ? *noise / (double)*n : NAN;
    return ratio;
}

static void count_done(struct is_audit *a, const twin_result *r)
{
    const double same = floor(r->kv.top1 * r->n_tokens + 0.5);
    double ratio, noise;
    size_t n;

    a->window[a->done % WINDOW] = *r;
    a->done++;
    a->tokens += r->n_tokens;
    a->tokens_same += (uint64_t)same;
    a->kl_sum += r->kv.kl;
    if (r->kv.kl > a->kl_most) a->kl_most = r->kv.kl;
    ratio = order_ratio(a, &n, &noise, NULL);
    is_metric_add(a->s->metrics, IS_M_AUDITS, "done", NULL, 1);
    is_metric_observe(a->s->metrics, IS_M_AUDIT_KL, NULL, r->kv.kl);
    is_metric_add(a->s->metrics, IS_M_AUDIT_TOP1, "same", NULL, same);
    is_metric_add(a->s->metrics, IS_M_AUDIT_TOP1, "different", NULL, r->n_tokens - same);
    is_metric_set(a->s->metrics, IS_M_AUDIT_ORDER, NULL, NULL, ratio); /* NaN is no number to it: the last one stays */
}

/* One try. E_CANCELLED: a question came, or what it uses went, or the server ends. */
static is_status measure(struct is_audit *a, const audit_entry *e, twin_result *r)
{
    inferscale *is = a->s->is;
    const is_realm realm = is_realm_of(&e->p);
    const is_run_opts opts = { .cancel = is_gate_flag(is->gate), .stop = &a->hold.stop, .realm = e->p.id ? &realm : NULL };
    const is_tokens answer = { (int32_t *)e->told, e->n_told };
    is_plan plan = { 0 };
    is_status st;

    is_hold_enter(&a->hold, is, e->as_of);
    st = audit_plan_new(is, e, &a->hold, &plan);
    if (st == INFERSCALE_OK && stopping(a)) st = is_fail(INFERSCALE_E_CANCELLED, "the server ends");
    if (st == INFERSCALE_OK) st = twin_measure(is->engine, &plan, &answer, ANSWER_TOKENS, e->seed, &opts, r);
    if (st == INFERSCALE_E_CANCELLED && is_hold_stopped(&a->hold)) st = is_fail(INFERSCALE_E_STALE, "what the answer used was changed or forgotten");
    audit_plan_free(&plan);
    is_hold_leave(&a->hold);
    return st;
}

static void pause_ms(long ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&t, NULL);
}

/* Until no question has been open for a moment; false = the server ends. */
static bool wait_for_quiet(struct is_audit *a)
{
    is_gate *gate = a->s->is->gate;

    while (!stopping(a)) {
        if (!is_gate_wait(gate, 500)) continue;
        pause_ms(QUIET_MS);
        if (is_gate_open(gate)) return true;
    }
    return false;
}

static void finish(struct is_audit *a, is_status st, const twin_result *r)
{
    pthread_mutex_lock(&a->lock);
    switch (st) {
    case INFERSCALE_OK: count_done(a, r); break;
    case INFERSCALE_E_STALE: count_skipped(a, SKIP_GONE); break;
    case INFERSCALE_E_NOTFOUND: count_skipped(a, SKIP_ROWS); break;
    case INFERSCALE_E_CANCELLED: count_skipped(a, SKIP_BUSY); break;
    case INFERSCALE_E_BUSY:
    case INFERSCALE_E_CONTEXT: count_skipped(a, SKIP_ROOM); break;
    default:
        a->failed++;
        is_metric_add(a->s->metrics, IS_M_AUDITS, "failed", NULL, 1);
        snprintf(a->error, sizeof a->error, "%s", is_error());
        is_log(IS_LOG_WARN, "audit: %s", is_error());
    }
    a->measuring = false;
    pthread_mutex_unlock(&a->lock);
}

static void audit_one(struct is_audit *a, const audit_entry *e)
{
    twin_result r = { 0 };
    is_status st = INFERSCALE_E_CANCELLED;

    for (int i = 0; i < TRIES; i++) {
        if (!wait_for_quiet(a)) return;
        do st = measure(a, e, &r); /* idle conversations make room, as they do for a question: they find their way back through the bank */
        while ((st == INFERSCALE_E_BUSY || st == INFERSCALE_E_CONTEXT) && !stopping(a) && is_talks_evict(a->s->is));
        if (st != INFERSCALE_E_CANCELLED && st != INFERSCALE_E_BUSY && st != INFERSCALE_E_CONTEXT) break;
    }
    finish(a, st, &r);
}

static void *auditor(void *arg)
{
    struct is_audit *a = arg;

    pthread_mutex_lock(&a->lock);
    while (!stopping(a)) {
        audit_entry *e = a->first;

        if (e == NULL) {
            pthread_cond_wait(&a->more, &a->lock);
            continue;
        }
        a->first = e->next;
        if (a->first == NULL) a->last = NULL;
        a->n_queued--;
        a->measuring = true;
        pthread_mutex_unlock(&a->lock);
        audit_one(a, e);
        audit_entry_free(e);
        is_stack_wipe();
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- Begin and end --------------------------------------------------------------------------------------------------------- */

is_status is_audit_start(is_server *s)
{
    const double share = s->config->audit;
    struct is_audit *a;

    s->audit = NULL;
    if (!(share >= 0 && share <= 1)) return is_fail(INFERSCALE_E_INVALID, "audit is %g; give the share of answers to audit, from 0 to 1", share);
    if (share == 0) return INFERSCALE_OK;
    a = is_calloc(1, sizeof *a);
    if (a == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the audit");
    a->s = s;
    a->draw = rng_stream((uint64_t)is_now_epoch(), (uint64_t)(is_now_ms() * 1e3), 0xa0d17);
    a->listener = (struct is_listener){ on_answer, on_gone, a };
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->more, NULL);
    if (pthread_create(&a->thread, NULL, auditor, a) != 0) {
        pthread_cond_destroy(&a->more);
        pthread_mutex_destroy(&a->lock);
        is_free(a);
        return is_fail(INFERSCALE_E_NOMEM, "no thread for the audit; raise the limit of processes");
    }
    s->audit = a;
    is_handle_listen(s->is, &a->listener);
    return INFERSCALE_OK;
}

void is_audit_stop(is_server *s)
{
    struct is_audit *a = s->audit;

    if (a == NULL) return;
    is_handle_listen(s->is, NULL);
    pthread_mutex_lock(&a->lock);
    __atomic_store_n(&a->stop, 1, __ATOMIC_RELEASE);
    pthread_cond_signal(&a->more);
    pthread_mutex_unlock(&a->lock);
    __atomic_store_n(&a->hold.stop, 1, __ATOMIC_RELEASE); /* one that begins just now looks at a->stop */
    pthread_join(a->thread, NULL);
    while (a->first) {
        audit_entry *e = a->first;

        a->first = e->next;
        audit_entry_free(e);
    }
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->lock);
    is_free(a);
    s->audit = NULL;
}

/* ---- What came out --------------------------------------------------------------------------------------------------------- */

static json_t *real_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* Numbers of the last ones, newest first. */
static json_t *recent_json(const struct is_audit *a)
{
    const size_t have = a->done < WINDOW ? (size_t)a->done : WINDOW;
    json_t *list = json_array();

    for (size_t i = 0; i < have && i < 20; i++) {
        const twin_result *r = &a->window[(a->done - 1 - i) % WINDOW];

        json_array_append_new(list, json_pack("{s:f,s:f,s:f,s:o,s:o,s:i}", "kl", r->kv.kl, "kl_first", r->kv.kl_first, "top1", r->kv.top1,
                                              "order_kl", r->has_order ? json_real(r->order.kl) : json_null(), "noise_kl",
                                              r->has_order ? json_real(r->noise.kl) : json_null(), "tokens", (int)r->n_tokens));
    }
    return list;
}

json_t *is_audit_json(is_server *s)
{
    struct is_audit *a = s->audit;
    json_t *o, *skipped;
    stats_interval interval;
    double ratio, noise;
    size_t n;

    if (a == NULL) return json_pack("{s:f}", "share", 0.0);
    skipped = json_object();
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < N_SKIPS; i++) json_object_set_new(skipped, SKIPS[i], json_integer((json_int_t)a->skipped[i]));
    ratio = order_ratio(a, &n, &noise, &interval);
    o = json_pack("{s:f,s:I,s:I,s:o,s:I,s:i,s:b,s:s}", "share", s->config->audit, "chosen", (json_int_t)a->offered, "done",
                  (json_int_t)a->done, "skipped", skipped, "failed", (json_int_t)a->failed, "waiting", (int)a->n_queued, "measuring",
                  a->measuring, "last_error", a->error);
    json_object_set_new(o, "tokens", json_integer((json_int_t)a->tokens));
    json_object_set_new(o, "kl_mean", a->done ? json_real(a->kl_sum / (double)a->done) : json_null());
    json_object_set_new(o, "kl_max", a->done ? json_real(a->kl_most) : json_null());
    json_object_set_new(o, "top1", a->tokens ? json_real((double)a->tokens_same / (double)a->tokens) : json_null());
    json_object_set_new(o, "order_ratio", real_or_null(ratio));
    json_object_set_new(o, "order_ratio_95", isfinite(interval.lo) ? json_pack("[f,f]", interval.lo, interval.hi) : json_null());
    json_object_set_new(o, "order_audits", json_integer((json_int_t)n));
    json_object_set_new(o, "noise", real_or_null(noise));
    json_object_set_new(o, "recent", recent_json(a));
    pthread_mutex_unlock(&a->lock);
    return o;
}
