/* background.c - the background encoder's threads: taking turns, backing off, ending.
 *
 * They run at ordinary priority: on a crowded machine a thread of idle priority notices a question only when it is its turn again, a
 * fifth of a second to two seconds later, and the question waits for its lock so long (docs/design.md). */
#include "api/background.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/calibrate.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    POLL_MS = 200,               /* between looks for what other processes wrote */
    LEASE_MS = 1000,             /* between tries for a lease that another holds */
    CHECKPOINT_MS = 500,
    RETRY_MIN_MS = 200, RETRY_MAX_MS = 60000,
    PENDING_DEFAULT = 100000,
};

/* ---- Errors and back-off -------------------------------------------------------------------------------------------------- */

static void note_failure(is_bg_worker *w, int stage, is_status st)
{
    is_background *b = w->b;
    static const char *const doing[] = { "embedding", "encoding", "refining", "refining" };
    is_bg_stage *s = &b->stages[stage];

    s->delay_ms = s->delay_ms > 0 ? s->delay_ms * 2 : RETRY_MIN_MS;
    if (s->delay_ms > RETRY_MAX_MS) s->delay_ms = RETRY_MAX_MS;
    s->retry_ms = is_now_ms() + s->delay_ms;
    s->careful = true;
    s->n_failed++;
    if (stage != IS_STAGE_EMBED) w->n_up = is_bg_servers_up(b);
    is_log(s->n_failed == 1 ? IS_LOG_ERROR : IS_LOG_WARN, "background %s failed %u times in a row, next try in %.1f s: %s", doing[stage],
           s->n_failed, s->delay_ms / 1000, is_error());
    pthread_mutex_lock(&b->lock);
    b->failed_in_a_row[stage] = s->n_failed;
    b->state.n_errors++;
    b->state.error = st;
    b->state.error_time = is_now_epoch();
    b->state.retry_s = s->delay_ms / 1000;
    snprintf(b->state.last_error, sizeof b->state.last_error, "%s", is_error());
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
}

static void note_success(is_background *b, int stage)
{
    is_bg_stage *s = &b->stages[stage];
    bool all = true;

    if (!s->n_failed && !s->careful) return;
    s->n_failed = 0;
    s->delay_ms = s->retry_ms = 0;
    s->careful = false;
    pthread_mutex_lock(&b->lock);
    b->failed_in_a_row[stage] = 0;
    for (int i = 0; i < IS_STAGES; i++) all = all && b->failed_in_a_row[i] == 0;
    if (all) b->state.error = INFERSCALE_OK;
    pthread_mutex_unlock(&b->lock);
}

/* ---- Leases --------------------------------------------------------------------------------------------------------------- */

/* HOME/leases/encode-VIEW: a hash of everything that makes the stage's work another's work too. */
static is_status lease_path(is_background *b, int stage, char **out)
{
    const is_fs *fs = is_fs_default();
    uint8_t view[IS_HASH_BYTES];
    char hex[2 * IS_HASH_BYTES + 1];
    char *dir = is_path_join(b->is->home, "leases");
    is_buf path = IS_BUF_INIT;
    is_hash *h = NULL;
    is_status st = dir ? is_hash_new(NULL, &h) : is_fail(INFERSCALE_E_NOMEM, "out of memory for a path");

    *out = NULL;
    if (st == INFERSCALE_OK) {
        is_hash_field(h, is_bg_view(b, stage), IS_HASH_BYTES);
        if (stage != IS_STAGE_EMBED) is_hash_field(h, is_bg_policy(b, stage)->name, strlen(is_bg_policy(b, stage)->name));
        is_hash_end(h, view);
        is_hex(view, 16, hex);
        st = fs->mkdirs(fs, dir);
    }
    if (st == INFERSCALE_OK) {
        is_buf_fmt(&path, "%s/encode-%s", dir, hex);
        *out = is_buf_take(&path);
        if (!*out) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for a path");
    }
    is_free(dir);
    return st;
}

/* E_BUSY: another holds it. */
static is_status lock_file(const char *path, is_file **out)
{
    const is_fs *fs = is_fs_default();
    is_file *f = NULL;
    is_status st = fs->open(fs, path, IS_OPEN_CREATE_NEW, &f);

    if (st != INFERSCALE_OK && fs->exists(fs, path)) st = fs->open(fs, path, IS_OPEN_RDWR, &f);
    if (st == INFERSCALE_OK) st = fs->lock(fs, f, true);
    if (st == INFERSCALE_OK) *out = f;
    else if (f) fs->close(fs, f);
    return st;
}

/* False with *st OK: another encodes this view. */
static bool hold_lease(is_background *b, int stage, is_status *st)
{
    is_bg_stage *s = &b->stages[stage];
    char *path = NULL;

    *st = INFERSCALE_OK;
    if (s->lease) return true;
    *st = lease_path(b, stage, &path);
    if (*st == INFERSCALE_OK) *st = lock_file(path, &s->lease);
    is_free(path);
    s->elsewhere = *st == INFERSCALE_E_BUSY;
    if (!s->elsewhere) return *st == INFERSCALE_OK;
    s->retry_ms = is_now_ms() + LEASE_MS;
    *st = INFERSCALE_OK;
    return false;
}

/* ---- Turns ---------------------------------------------------------------------------------------------------------------- */

static bool has_work(const is_bg_part *part, int stage)
{
    return part->dirty[stage] || part->n[stage] > 0;
}

static is_bg_part *next_part(is_bg_worker *w, int stage)
{
    is_bg_stage *s = &w->b->stages[stage];

    for (size_t i = 0; i < w->n_parts; i++) {
        is_bg_part *part = &w->parts[(s->turn + i) % w->n_parts];

        if (!has_work(part, stage) || is_bg_embeds_first(w, stage, part)) continue;
        s->turn = (s->turn + i + 1) % w->n_parts;
        return part;
    }
    return NULL;
}

/* Nothing is left behind part->done. What failed on the way is tried once more, later. */
static void end_of_pass(is_background *b, int stage, is_bg_part *part)
{
    is_bg_stage *s = &b->stages[stage];

    part->n[stage] = 0;
    if (stage >= IS_STAGE_FIRST) is_bg_narrow_again(part);
    if (stage == IS_STAGE_FIRST) part->since_ms = 0;
    part->dirty[stage] = part->again[stage];
    if (!part->again[stage]) return;
    part->again[stage] = false;
    part->done[stage] = 0;
    if (s->retry_ms < is_now_ms() + RETRY_MIN_MS) s->retry_ms = is_now_ms() + RETRY_MIN_MS;
}

/* The encoder may have waited for vectors. The lock is held. */
static void tell_encoder(is_background *b, int stage, uint32_t n_done)
{
    if (stage != IS_STAGE_EMBED || n_done == 0) return;
    b->workers[IS_BG_ENCODER].poked = true;
    pthread_cond_broadcast(&b->wake);
    is_gate_drop_idle(b->is->gate);
}

static void after_slice(is_bg_worker *w, int stage, is_bg_part *part, uint32_t n_done)
{
    is_background *b = w->b;
    uint64_t left = part->n[stage] > n_done ? n_done : part->n[stage];

    part->n[stage] -= (uint32_t)left;
    if (stage == IS_STAGE_FIRST) {
        if (n_done) is_bg_look_at_oldest(w, part);
        is_bg_tell_lag(w);
    }
    pthread_mutex_lock(&b->lock);
    w->in_slice = false;
    w->n_slices++;
    b->waiting[stage] -= left < b->waiting[stage] ? left : b->waiting[stage];
    if (stage != IS_STAGE_EMBED) b->state.facts_per_s = b->rate_ms > 0 ? b->rate_facts / b->rate_ms * 1000 : 0;
    tell_encoder(b, stage, n_done);
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
}

/* The gate must know how long it has waited. A part that was not counted yet may have nothing to do, which needs no leave. */
static bool may_begin(is_bg_worker *w, is_bg_part *part)
{
    if (part->since_ms <= 0) {
        is_bg_look_at_oldest(w, part);
        is_bg_tell_lag(w);
    }
    return part->since_ms <= 0 ? !is_bg_stopping(w->b) : is_bg_give_way(w->b, IS_STAGE_FIRST);
}

/* One slice of one partition. True if there was something to do. */
static bool do_slice(is_bg_worker *w, int stage)
{
    is_background *b = w->b;
    is_bg_part *part = next_part(w, stage);
    const double t0 = is_now_ms();
    uint32_t n_done = 0;
    is_status st;

    if (!part) return false;
    if (stage == IS_STAGE_FIRST && !may_begin(w, part)) return true;
    pthread_mutex_lock(&b->lock);
    w->in_slice = true;
    pthread_mutex_unlock(&b->lock);
    st = is_bg_slice(w, stage, part, &n_done);
    if (st == INFERSCALE_E_NOTFOUND) end_of_pass(b, stage, part); /* the partition is gone */
    else if (st == INFERSCALE_OK && n_done == 0) end_of_pass(b, stage, part);
    else if (st == INFERSCALE_OK) {
        note_success(b, stage);
        if (stage == IS_STAGE_EMBED) is_handle_calibrate(b->is, w->bank, IS_CALIBRATE_IN_BACKGROUND, &b->stop);
    } else if (st != INFERSCALE_E_CANCELLED && !w->dropped) note_failure(w, stage, st);
    if (stage == IS_STAGE_FIRST && n_done) {
        b->rate_facts *= 0.95;
        b->rate_ms = b->rate_ms * 0.95 + is_now_ms() - t0;
    }
    after_slice(w, stage, part, n_done);
    return true;
}

/* The stage's view must be known before its work can be counted. False: not now. */
static bool make_ready(is_bg_worker *w, int stage)
{
    is_background *b = w->b;
    is_bg_stage *s = &b->stages[stage];
    is_status st;

    if (s->ready) return true;
    if (w->n_parts == 0) return false; /* nothing was ever remembered: no reason to load anything */
    st = is_bg_prepare(b, stage);
    if (st == INFERSCALE_E_UNSUPPORTED) {
        is_log(IS_LOG_INFO, "background encoder: %s", is_error());
        s->off = true;
        return false;
    }
    if (st != INFERSCALE_OK) {
        note_failure(w, stage, st);
        return false;
    }
    s->ready = true;
    note_success(b, stage);
    for (size_t i = 0; i < w->n_parts; i++) w->parts[i].dirty[stage] = true;
    w->next_look_ms = 0;
    pthread_mutex_lock(&b->lock);
    w->poked = true; /* count */
    pthread_mutex_unlock(&b->lock);
    return true;
}

/* The next partition that may have outdated rows; with the lease of the first stage, whose work it is. NULL: none, or not now. */
static is_bg_part *part_to_replace(is_bg_worker *w)
{
    is_background *b = w->b;
    const is_bg_stage *s = &b->stages[IS_STAGE_FIRST];
    is_status st;

    if (s->off || !s->ready || is_now_ms() < s->retry_ms) return NULL;
    for (size_t i = 0; i < w->n_parts; i++) {
        if (w->parts[i].replaced) continue;
        if (hold_lease(b, IS_STAGE_FIRST, &st)) return &w->parts[i];
        if (st != INFERSCALE_OK) note_failure(w, IS_STAGE_FIRST, st);
        return NULL;
    }
    return NULL;
}

/* Rows that a schema change made outdated serve until nothing new waits for the first stage; then they are replaced, before any are
 * refined. */
static bool replace_turn(is_bg_worker *w)
{
    is_background *b = w->b;
    is_bg_part *part;
    uint32_t n_done = 0;

    while ((part = part_to_replace(w)) && n_done == 0) {
        is_status st;

        if (!is_bg_give_way(b, IS_STAGE_REFINE)) return true;
        pthread_mutex_lock(&b->lock);
        w->in_slice = true;
        pthread_mutex_unlock(&b->lock);
        st = is_bg_replace(w, part, &n_done);
        after_slice(w, IS_STAGE_FIRST, part, 0);
        if (st == INFERSCALE_E_NOTFOUND || (st == INFERSCALE_OK && n_done == 0)) {
            part->replaced = true;
            continue;
        }
        if (st == INFERSCALE_OK) return true;
        if (st != INFERSCALE_E_CANCELLED && !w->dropped) note_failure(w, IS_STAGE_FIRST, st);
        return true;
    }
    return false;
}

static bool stage_turn(is_bg_worker *w, int stage)
{
    is_background *b = w->b;
    is_bg_stage *s = &b->stages[stage];
    is_status st;
    bool any = false;

    if (stage >= IS_STAGE_REFINE && !is_gate_open(b->is->gate)) return false;
    if (stage == IS_STAGE_REFINE) {
        if (replace_turn(w)) return true;
        if (is_bg_settle(w, &st)) {
            if (st != INFERSCALE_OK) note_failure(w, IS_STAGE_FIRST, st);
            return true;
        }
    }
    if (s->off || is_now_ms() < s->retry_ms || !make_ready(w, stage)) return false;
    if (stage == IS_STAGE_FIRST && is_bg_narrow(w, &st)) {
        if (st != INFERSCALE_OK) note_failure(w, stage, st);
        return true;
    }
    for (size_t i = 0; i < w->n_parts && !any; i++) any = has_work(&w->parts[i], stage);
    if (!any && stage == IS_STAGE_EMBED) is_handle_calibrate(b->is, w->bank, IS_CALIBRATE_IN_BACKGROUND, &b->stop);
    if (!any) return false;
    if (!hold_lease(b, stage, &st)) {
        if (st != INFERSCALE_OK) note_failure(w, stage, st);
        return false;
    }
    return do_slice(w, stage);
}

/* ---- The thread ----------------------------------------------------------------------------------------------------------- */

/* Partitions with items that were passed over, few if any. The lock is held. */
static void publish_passed(is_bg_worker *w)
{
    is_background *b = w->b;
    size_t n = 0, at = 0;

    for (size_t i = 0; i < w->n_parts; i++) n += w->parts[i].passed[IS_STAGE_FIRST] > 0;
    if (n > b->n_passed) {
        struct is_bg_passed *grown = is_realloc(b->passed, n * sizeof *grown);

        if (!grown) return; /* the next time */
        b->passed = grown;
    }
    for (size_t i = 0; n && i < w->n_parts; i++)
        if (w->parts[i].passed[IS_STAGE_FIRST]) b->passed[at++] = (struct is_bg_passed){ w->parts[i].id, w->parts[i].passed[IS_STAGE_FIRST] };
    b->n_passed = n;
}

static void publish(is_bg_worker *w, bool working)
{
    is_background *b = w->b;

    pthread_mutex_lock(&b->lock);
    w->working = working;
    for (int s = w->first; s < w->end; s++) b->elsewhere[s] = b->stages[s].elsewhere;
    if (w->first != IS_STAGE_EMBED) publish_passed(w);
    pthread_mutex_unlock(&b->lock);
}

struct timespec is_in_ms(double ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    if (ms < 0) ms = 0;
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)((ms - (double)(time_t)(ms / 1000) * 1000) * 1e6);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* Sleeps until there may be work: poked, a retry is due, or it is time to look what others wrote. A burst of writes is looked at
 * once. */
static void sleep_a_while(is_bg_worker *w)
{
    is_background *b = w->b;
    double now = is_now_ms(), ms = POLL_MS;
    struct timespec until, look_at;
    int rc = 0;

    for (int s = w->first; s < w->end; s++)
        if (b->stages[s].retry_ms > now && b->stages[s].retry_ms - now < ms) ms = b->stages[s].retry_ms - now;
    until = is_in_ms(ms + 1);
    look_at = is_in_ms(w->next_look_ms - now);
    pthread_mutex_lock(&b->lock);
    while (rc == 0 && !w->poked && !is_bg_stopping(b)) rc = pthread_cond_timedwait(&b->wake, &b->lock, &until);
    for (rc = 0; rc == 0 && !is_bg_stopping(b);) rc = pthread_cond_timedwait(&b->wake, &b->lock, &look_at);
    pthread_mutex_unlock(&b->lock);
}

/* Whichever worker comes by: either may be held up. */
static void tend_log(is_bg_worker *w)
{
    is_background *b = w->b;
    const double now = is_now_ms();
    bool due;

    pthread_mutex_lock(&b->lock);
    due = now >= b->next_checkpoint_ms;
    if (due) b->next_checkpoint_ms = now + CHECKPOINT_MS;
    pthread_mutex_unlock(&b->lock);
    if (due && is_bank_checkpoint(w->bank) != INFERSCALE_OK) is_log(IS_LOG_WARN, "background checkpoint: %s", is_error());
}

static void *run(void *arg)
{
    is_bg_worker *w = arg;
    is_background *b = w->b;

    is_log_for(b->is->logger.id);
    while (!is_bg_stopping(b)) {
        bool worked = false;
        is_status st = is_bg_look(w);

        if (st != INFERSCALE_OK && !is_bg_stopping(b)) note_failure(w, w->first, st);
        is_bg_watch_servers(w);
        for (int s = w->first; s < w->end && !worked && st == INFERSCALE_OK; s++) worked = stage_turn(w, s);
        tend_log(w);
        publish(w, worked);
        if (worked) is_stack_wipe();
        if (!worked) sleep_a_while(w);
    }
    return NULL;
}

/* ---- Start and end -------------------------------------------------------------------------------------------------------- */

static void take_policies(is_background *b)
{
    is_policy refine[IS_STAGE_POLICIES];
    size_t n = is_handle_policies(b->is, INFERSCALE_STAGE_REFINE, refine);

    b->policies[IS_STAGE_FIRST] = b->is->policy;
    for (size_t i = 0; i < IS_STAGE_POLICIES; i++) {
        if (i < n) b->policies[IS_STAGE_REFINE + i] = refine[i];
        b->stages[IS_STAGE_REFINE + i].off = i >= n;
    }
}

static is_status make(inferscale *is, uint64_t max_pending, is_background **out)
{
    static const int bounds[IS_BG_WORKERS][2] = { { IS_STAGE_EMBED, IS_STAGE_FIRST }, { IS_STAGE_FIRST, IS_STAGES } };
    is_background *b = is_calloc(1, sizeof *b);
    pthread_condattr_t attr;

    *out = b;
    if (!b) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the background encoder");
    b->is = is;
    b->max_pending = max_pending ? max_pending : PENDING_DEFAULT;
    take_policies(b);
    b->state.background = 1;
    for (int i = 0; i < IS_BG_WORKERS; i++)
        b->workers[i] = (is_bg_worker){ .b = b, .first = bounds[i][0], .end = bounds[i][1], .data_version = -1,
                                        .next_full_ms = is_now_ms() + IS_BG_FULL_LOOK_MS };
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->wake, &attr);
    pthread_cond_init(&b->moved, &attr);
    pthread_condattr_destroy(&attr);
    return INFERSCALE_OK;
}

static is_status start(is_bg_worker *w)
{
    int rc;

    IS_TRY(is_bank_open(is_bank_path(w->b->is->bank), false, &w->bank));
    is_bank_wait_finely(w->bank, &w->b->stop);
    is_bank_leave_checkpoints(w->bank, true);
    rc = pthread_create(&w->thread, NULL, run, w);
    w->started = rc == 0;
    if (rc == 0) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "a thread of the background encoder cannot be started (%s); free some memory", strerror(rc));
}

/* Checked by open. */
static void set_rules(is_gate *g, const inferscale_options *o)
{
    const is_share_rules rules = { .limit_ms = o->encode_lag_s < 0 ? -1 : o->encode_lag_s > 0 ? 1000 * o->encode_lag_s : IS_SHARE_LIMIT_MS,
                                   .least = o->encode_share > 0 ? o->encode_share : IS_SHARE_LEAST,
                                   .most = o->encode_share_most > 0 ? o->encode_share_most : IS_SHARE_MOST, .slice_ms = IS_SHARE_SLICE_MS };

    is_gate_rules(g, &rules);
}

is_status is_background_start(inferscale *is, const inferscale_options *o, is_background **out)
{
    is_background *b = NULL;
    is_status st = make(is, o->max_pending, &b);

    *out = NULL;
    if (st == INFERSCALE_OK) {
        set_rules(is->gate, o);
        is_bank_wait_finely(is->bank, NULL);
        is_bank_leave_checkpoints(is->bank, true);
    }
    for (int i = 0; i < IS_BG_WORKERS && st == INFERSCALE_OK; i++) st = start(&b->workers[i]);
    if (st != INFERSCALE_OK) {
        is_background_stop(b);
        return st;
    }
    *out = b;
    return INFERSCALE_OK;
}

static void destroy(is_background *b)
{
    for (int s = 0; s < IS_STAGES; s++)
        if (b->stages[s].lease) is_fs_default()->close(is_fs_default(), b->stages[s].lease);
    for (int i = 0; i < IS_BG_WORKERS; i++) {
        if (b->workers[i].bank) is_bank_close(b->workers[i].bank);
        is_free(b->workers[i].parts);
    }
    pthread_cond_destroy(&b->moved);
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    is_free(b->passed);
    is_free(b);
}

void is_background_stop(is_background *b)
{
    if (!b) return;
    __atomic_store_n(&b->stop, 1, __ATOMIC_RELEASE);
    is_gate_shut(b->is->gate); /* aborts a capture in progress */
    pthread_mutex_lock(&b->lock);
    pthread_cond_broadcast(&b->wake);
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < IS_BG_WORKERS; i++)
        if (b->workers[i].started) pthread_join(b->workers[i].thread, NULL);
    destroy(b);
}
