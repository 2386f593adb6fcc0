/* background.c - the background encoder's thread: looking where there is work, taking turns, backing off, ending.
 *
 * It runs at ordinary priority: on a crowded machine a thread of idle priority notices a question only when it is its turn again, a
 * fifth of a second to two seconds later, and the question waits for its lock so long (docs/design.md). */
#include "api/background.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    POLL_MS = 200,               /* between looks for what other processes wrote */
    LOOK_MS = 20,                /* looks are at least so far apart, and take at most a tenth of the time */
    FULL_LOOK_MS = 600000,       /* everything is looked at again, whatever the marks say */
    LEASE_MS = 1000,             /* between tries for a lease that another holds */
    CHECKPOINT_MS = 500,
    RETRY_MIN_MS = 200, RETRY_MAX_MS = 60000,
    PENDING_DEFAULT = 100000,
    OVERLAPPED_MOST = 10,        /* looks in a row whose counts are not taken */
};

/* ---- Errors and back-off -------------------------------------------------------------------------------------------------- */

static void note_failure(is_background *b, int stage, is_status st)
{
    static const char *const doing[] = { "embedding", "encoding", "refining", "refining" };
    is_bg_stage *s = &b->stages[stage];

    s->delay_ms = s->delay_ms > 0 ? s->delay_ms * 2 : RETRY_MIN_MS;
    if (s->delay_ms > RETRY_MAX_MS) s->delay_ms = RETRY_MAX_MS;
    s->retry_ms = is_now_ms() + s->delay_ms;
    s->careful = true;
    s->n_failed++;
    b->n_up = is_bg_servers_up(b);
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
    for (int i = 0; i < IS_STAGES; i++) all = all && b->stages[i].n_failed == 0;
    pthread_mutex_lock(&b->lock);
    b->failed_in_a_row[stage] = 0;
    if (all) b->state.error = INFERSCALE_OK;
    pthread_mutex_unlock(&b->lock);
}

/* ---- Looking where there is work ------------------------------------------------------------------------------------------ */

static void mark_all(is_bg_part *part, bool from_start)
{
    for (int s = 0; s < IS_STAGES; s++) {
        part->dirty[s] = true;
        if (!from_start) continue;
        part->done[s] = 0;
        part->passed[s] = 0;
    }
}

/* The parts that the bank has now, what is known of them carried over; both lists are in id order. */
static is_status merge_parts(is_background *b, const is_partition_mark *marks, size_t n)
{
    is_bg_part *parts = is_calloc(n + 1, sizeof *parts);

    if (!parts) return is_fail(INFERSCALE_E_NOMEM, "no memory for a list of partitions; free some memory and try again");
    for (size_t i = 0, old = 0; i < n; i++) {
        is_bg_part *part = &parts[i];

        while (old < b->n_parts && b->parts[old].id < marks[i].id) old++;
        if (old < b->n_parts && b->parts[old].id == marks[i].id) *part = b->parts[old];
        if (part->epoch != marks[i].epoch) mark_all(part, true);
        else if (part->revision != marks[i].revision) mark_all(part, false);
        part->id = marks[i].id;
        part->epoch = marks[i].epoch;
        part->revision = marks[i].revision;
    }
    is_free(b->parts);
    b->parts = parts;
    b->n_parts = n;
    return INFERSCALE_OK;
}

static is_status count_part(is_background *b, is_bg_part *part, int stage)
{
    const is_partition p = { .id = part->id };
    is_waiting w = { 0 };

    if (stage == IS_STAGE_EMBED) IS_TRY(is_bank_count_unembedded(b->bank, &p, is_bg_view(b, stage), part->done[stage], &w));
    else IS_TRY(is_bank_count_unencoded(b->bank, &p, is_bg_view(b, stage), is_bg_policy(b, stage)->name, is_bg_policy(b, stage)->header_one_in,
                                         part->done[stage], &w));
    part->n[stage] = w.n < UINT32_MAX ? (uint32_t)w.n : UINT32_MAX;
    return INFERSCALE_OK;
}

static is_status count_dirty(is_background *b)
{
    for (int s = 0; s < IS_STAGES; s++)
        for (size_t i = 0; b->stages[s].ready && i < b->n_parts && !is_bg_stopping(b); i++)
            if (b->parts[i].dirty[s] || (b->stages[s].elsewhere && b->parts[i].n[s])) IS_TRY(count_part(b, &b->parts[i], s));
    return INFERSCALE_OK;
}

/* Until both views are known their counts are missing, and what was added counts as waiting. */
static bool counts_all(const is_background *b)
{
    bool all = true;

    for (int s = IS_STAGE_EMBED; s <= IS_STAGE_FIRST; s++) all = all && (b->stages[s].ready || b->stages[s].off);
    return all;
}

/* What callers asked to be looked at again. *n_begun is what publish_waiting compares with. */
static void take_requests(is_background *b, uint64_t *n_begun)
{
    pthread_mutex_lock(&b->lock);
    b->poked = false;
    *n_begun = b->writing ? UINT64_MAX : b->n_begun;
    for (size_t i = 0; b->n_again && i < b->n_parts; i++)
        for (size_t k = 0; k < b->n_again; k++)
            if (b->n_again == sizeof b->again / sizeof *b->again || b->again[k] == b->parts[i].id) mark_all(&b->parts[i], true);
    b->n_again = 0;
    pthread_mutex_unlock(&b->lock);
}

/* Items whose writing overlapped the look may be in its counts or not, and would be taken for waiting twice. Then what was known, and
 * all that was added since, stays what waits, and the next look tells; but a handle that writes without a pause is counted as it is. */
static void publish_waiting(is_background *b, uint64_t n_begun)
{
    const bool all = counts_all(b);
    uint64_t sum[IS_STAGES] = { 0 };

    for (int s = 0; s < IS_STAGES; s++)
        for (size_t i = 0; i < b->n_parts; i++) sum[s] += b->parts[i].n[s];
    pthread_mutex_lock(&b->lock);
    if (b->n_begun != n_begun && ++b->n_overlapped < OVERLAPPED_MOST) {
        b->poked = true;
    } else {
        memcpy(b->waiting, sum, sizeof sum);
        if (all) b->fresh = 0;
        b->counted = all;
        b->n_overlapped = 0;
    }
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
}

/* Cheap when nothing changed. */
static is_status look(is_background *b)
{
    const double t0 = is_now_ms();
    is_partition_mark *marks = NULL;
    int64_t version = 0;
    uint64_t n_begun = 0;
    size_t n = 0;
    is_status st;
    bool asked;

    if (t0 < b->next_look_ms) return INFERSCALE_OK;
    pthread_mutex_lock(&b->lock);
    asked = b->poked || b->n_again > 0;
    pthread_mutex_unlock(&b->lock);
    IS_TRY(is_bank_data_version(b->bank, &version));
    if (t0 >= b->next_full_ms) {
        b->next_full_ms = t0 + FULL_LOOK_MS;
        for (size_t i = 0; i < b->n_parts; i++) mark_all(&b->parts[i], true);
    } else if (!asked && version == b->data_version) {
        return INFERSCALE_OK;
    }
    take_requests(b, &n_begun);
    st = is_bank_partition_marks(b->bank, &marks, &n);
    if (st == INFERSCALE_OK) st = merge_parts(b, marks, n);
    is_free(marks);
    if (st == INFERSCALE_OK) st = count_dirty(b);
    if (st != INFERSCALE_OK) return st;
    b->data_version = version;
    publish_waiting(b, n_begun);
    b->next_look_ms = t0 + LOOK_MS + 10 * (is_now_ms() - t0);
    return INFERSCALE_OK;
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

static is_bg_part *next_part(is_background *b, int stage)
{
    is_bg_stage *s = &b->stages[stage];

    for (size_t i = 0; i < b->n_parts; i++) {
        is_bg_part *part = &b->parts[(s->turn + i) % b->n_parts];

        if (!has_work(part, stage)) continue;
        s->turn = (s->turn + i + 1) % b->n_parts;
        return part;
    }
    return NULL;
}

/* Nothing is left behind part->done. What failed on the way is tried once more, later. */
static void end_of_pass(is_background *b, int stage, is_bg_part *part)
{
    is_bg_stage *s = &b->stages[stage];

    part->n[stage] = 0;
    part->dirty[stage] = part->again[stage];
    if (!part->again[stage]) return;
    part->again[stage] = false;
    part->done[stage] = 0;
    if (s->retry_ms < is_now_ms() + RETRY_MIN_MS) s->retry_ms = is_now_ms() + RETRY_MIN_MS;
}

static void after_slice(is_background *b, int stage, is_bg_part *part, uint32_t n_done)
{
    uint64_t left = part->n[stage] > n_done ? n_done : part->n[stage];

    part->n[stage] -= (uint32_t)left;
    pthread_mutex_lock(&b->lock);
    b->in_slice = false;
    b->n_slices++;
    b->waiting[stage] -= left < b->waiting[stage] ? left : b->waiting[stage];
    b->state.facts_per_s = b->rate_ms > 0 ? b->rate_facts / b->rate_ms * 1000 : 0;
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
}

/* One slice of one partition. True if there was something to do. */
static bool do_slice(is_background *b, int stage)
{
    is_bg_part *part = next_part(b, stage);
    const double t0 = is_now_ms();
    uint32_t n_done = 0;
    is_status st;

    if (!part) return false;
    if (!is_bg_give_way(b)) return true;
    pthread_mutex_lock(&b->lock);
    b->in_slice = true;
    pthread_mutex_unlock(&b->lock);
    st = is_bg_slice(b, stage, part, &n_done);
    if (st == INFERSCALE_E_NOTFOUND) end_of_pass(b, stage, part); /* the partition is gone */
    else if (st == INFERSCALE_OK && n_done == 0) end_of_pass(b, stage, part);
    else if (st == INFERSCALE_OK) note_success(b, stage);
    else if (st != INFERSCALE_E_CANCELLED && !b->dropped) note_failure(b, stage, st);
    if (stage == IS_STAGE_FIRST && n_done) {
        b->rate_facts *= 0.95;
        b->rate_ms = b->rate_ms * 0.95 + is_now_ms() - t0;
    }
    after_slice(b, stage, part, n_done);
    return true;
}

/* The stage's view must be known before its work can be counted. False: not now. */
static bool make_ready(is_background *b, int stage)
{
    is_bg_stage *s = &b->stages[stage];
    is_status st;

    if (s->ready) return true;
    if (b->n_parts == 0) return false; /* nothing was ever remembered: no reason to load anything */
    st = is_bg_prepare(b, stage);
    if (st == INFERSCALE_E_UNSUPPORTED) {
        is_log(IS_LOG_INFO, "background encoder: %s", is_error());
        s->off = true;
        return false;
    }
    if (st != INFERSCALE_OK) {
        note_failure(b, stage, st);
        return false;
    }
    s->ready = true;
    note_success(b, stage);
    for (size_t i = 0; i < b->n_parts; i++) b->parts[i].dirty[stage] = true;
    b->next_look_ms = 0;
    pthread_mutex_lock(&b->lock);
    b->poked = true; /* count */
    pthread_mutex_unlock(&b->lock);
    return true;
}

static bool stage_turn(is_background *b, int stage)
{
    is_bg_stage *s = &b->stages[stage];
    is_status st;
    bool any = false;

    if (s->off || is_now_ms() < s->retry_ms || !make_ready(b, stage)) return false;
    for (size_t i = 0; i < b->n_parts && !any; i++) any = has_work(&b->parts[i], stage);
    if (!any) return false;
    if (!hold_lease(b, stage, &st)) {
        if (st != INFERSCALE_OK) note_failure(b, stage, st);
        return false;
    }
    return do_slice(b, stage);
}

/* ---- The thread ----------------------------------------------------------------------------------------------------------- */

/* Partitions with items that were passed over, few if any. */
static void publish_passed(is_background *b)
{
    size_t n = 0, at = 0;

    for (size_t i = 0; i < b->n_parts; i++) n += b->parts[i].passed[IS_STAGE_EMBED] + b->parts[i].passed[IS_STAGE_FIRST] > 0;
    if (n > b->n_passed) {
        struct is_bg_passed *grown = is_realloc(b->passed, n * sizeof *grown);

        if (!grown) return; /* the next time */
        b->passed = grown;
    }
    for (size_t i = 0; n && i < b->n_parts; i++) {
        const uint32_t passed = b->parts[i].passed[IS_STAGE_EMBED] + b->parts[i].passed[IS_STAGE_FIRST];

        if (passed) b->passed[at++] = (struct is_bg_passed){ b->parts[i].id, passed };
    }
    b->n_passed = n;
}

static void publish(is_background *b, bool working)
{
    bool elsewhere = false;

    for (int s = 0; s < IS_STAGES; s++) elsewhere = elsewhere || b->stages[s].elsewhere;
    pthread_mutex_lock(&b->lock);
    b->state.running = working;
    b->state.elsewhere = elsewhere;
    publish_passed(b);
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
static void sleep_a_while(is_background *b)
{
    double now = is_now_ms(), ms = POLL_MS;
    struct timespec until, look_at;
    int rc = 0;

    for (int s = 0; s < IS_STAGES; s++)
        if (b->stages[s].retry_ms > now && b->stages[s].retry_ms - now < ms) ms = b->stages[s].retry_ms - now;
    until = is_in_ms(ms + 1);
    look_at = is_in_ms(b->next_look_ms - now);
    pthread_mutex_lock(&b->lock);
    while (rc == 0 && !b->poked && !is_bg_stopping(b)) rc = pthread_cond_timedwait(&b->wake, &b->lock, &until);
    for (rc = 0; rc == 0 && !is_bg_stopping(b);) rc = pthread_cond_timedwait(&b->wake, &b->lock, &look_at);
    pthread_mutex_unlock(&b->lock);
}

static void tend_log(is_background *b)
{
    if (is_now_ms() < b->next_checkpoint_ms) return;
    b->next_checkpoint_ms = is_now_ms() + CHECKPOINT_MS;
    if (is_bank_checkpoint(b->bank) != INFERSCALE_OK) is_log(IS_LOG_WARN, "background checkpoint: %s", is_error());
}

static void *run(void *arg)
{
    is_background *b = arg;

    while (!is_bg_stopping(b)) {
        bool worked = false;
        is_status st = look(b);

        if (st != INFERSCALE_OK && !is_bg_stopping(b)) note_failure(b, IS_STAGE_EMBED, st);
        is_bg_watch_servers(b);
        for (int s = 0; s < IS_STAGES && !worked && st == INFERSCALE_OK; s++) worked = stage_turn(b, s);
        tend_log(b);
        publish(b, worked);
        if (!worked) sleep_a_while(b);
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
    is_background *b = is_calloc(1, sizeof *b);
    pthread_condattr_t attr;

    *out = b;
    if (!b) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the background encoder");
    b->is = is;
    b->max_pending = max_pending ? max_pending : PENDING_DEFAULT;
    take_policies(b);
    b->state.background = 1;
    b->next_full_ms = is_now_ms() + FULL_LOOK_MS;
    b->data_version = -1;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->wake, &attr);
    pthread_cond_init(&b->moved, &attr);
    pthread_condattr_destroy(&attr);
    return INFERSCALE_OK;
}

static void destroy(is_background *b)
{
    for (int s = 0; s < IS_STAGES; s++)
        if (b->stages[s].lease) is_fs_default()->close(is_fs_default(), b->stages[s].lease);
    if (b->bank) is_bank_close(b->bank);
    pthread_cond_destroy(&b->moved);
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
    is_free(b->passed);
    is_free(b->parts);
    is_free(b);
}

is_status is_background_start(inferscale *is, uint64_t max_pending, is_background **out)
{
    is_background *b = NULL;
    is_status st = make(is, max_pending, &b);
    int rc;

    *out = NULL;
    if (st != INFERSCALE_OK) return st;
    st = is_bank_open(is_bank_path(is->bank), false, &b->bank);
    if (st == INFERSCALE_OK) {
        is_bank_wait_finely(b->bank, &b->stop);
        is_bank_wait_finely(is->bank, NULL);
        is_bank_leave_checkpoints(is->bank, true);
        is_bank_leave_checkpoints(b->bank, true);
        rc = pthread_create(&b->thread, NULL, run, b);
        if (rc != 0) st = is_fail(INFERSCALE_E_NOMEM, "the background encoder's thread cannot be started (%s); free some memory", strerror(rc));
    }
    if (st != INFERSCALE_OK) {
        destroy(b);
        return st;
    }
    *out = b;
    return INFERSCALE_OK;
}

void is_background_stop(is_background *b)
{
    if (!b) return;
    __atomic_store_n(&b->stop, 1, __ATOMIC_RELEASE);
    is_gate_shut(b->is->gate); /* aborts a capture or an embedding in progress */
    pthread_mutex_lock(&b->lock);
    pthread_cond_broadcast(&b->wake);
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    destroy(b);
}
