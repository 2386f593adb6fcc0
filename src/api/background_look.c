/* background_look.c - where there is work: each worker of the background encoder counts what waits for its stages. */
#include <string.h>

#include "api/background.h"
#include "api/store_codec.h"
#include "base/clock.h"
#include "base/mem.h"

enum {
    LOOK_MS = 20,                /* looks are at least so far apart, and take at most a tenth of the time */
    OVERLAPPED_MOST = 10,        /* looks in a row whose counts are not taken */
};

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
static is_status merge_parts(is_bg_worker *w, const is_partition_mark *marks, size_t n)
{
    is_bg_part *parts = is_calloc(n + 1, sizeof *parts);

    if (!parts) return is_fail(INFERSCALE_E_NOMEM, "no memory for a list of partitions; free some memory and try again");
    for (size_t i = 0, old = 0; i < n; i++) {
        is_bg_part *part = &parts[i];

        while (old < w->n_parts && w->parts[old].id < marks[i].id) old++;
        if (old < w->n_parts && w->parts[old].id == marks[i].id) *part = w->parts[old];
        if (part->epoch != marks[i].epoch) mark_all(part, true);
        else if (part->revision != marks[i].revision) mark_all(part, false);
        part->id = marks[i].id;
        part->epoch = marks[i].epoch;
        part->revision = marks[i].revision;
    }
    is_free(w->parts);
    w->parts = parts;
    w->n_parts = n;
    return INFERSCALE_OK;
}

/* ---- How long the oldest fact has waited ------------------------------------------------------------------------------------- */

/* It was written at `written` (whole seconds), and cannot have waited for longer than since then. What waits again, because a fact that it
 * saw was forgotten, or with another model, has waited since it was first counted. */
static void set_oldest(is_bg_part *part, int64_t written)
{
    const double now = is_now_ms(), age = 1000.0 * (double)(is_now_epoch() - written + 1), from = now - (age > 0 ? age : 0);

    if (part->since_ms <= 0) part->since_ms = now;
    else if (from > part->since_ms) part->since_ms = from;
}

void is_bg_look_at_oldest(is_bg_worker *w, is_bg_part *part)
{
    const is_policy *policy = is_bg_policy(w->b, IS_STAGE_FIRST);
    const is_partition p = { .id = part->id };
    inferscale_list *items = NULL;
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st = is_bank_unencoded(w->bank, &p, is_bg_view(w->b, IS_STAGE_FIRST), policy->name, policy->header_one_in,
                                     part->done[IS_STAGE_FIRST], 1, &ids, &n);

    if (st == INFERSCALE_OK && n) st = is_bank_get(w->bank, &p, ids, n, &items);
    if (st == INFERSCALE_OK && items && items->n) set_oldest(part, items->items[0].write_time);
    else if (st == INFERSCALE_OK) part->since_ms = 0;
    inferscale_list_free(items);
    is_free(ids);
}

void is_bg_tell_lag(is_bg_worker *w)
{
    double oldest = 0;

    if (w->first != IS_STAGE_FIRST) return;
    for (size_t i = 0; i < w->n_parts && !w->b->stages[IS_STAGE_FIRST].elsewhere; i++)
        if (w->parts[i].since_ms > 0 && (oldest <= 0 || w->parts[i].since_ms < oldest)) oldest = w->parts[i].since_ms;
    is_gate_waits(w->b->is->gate, oldest > 0, oldest);
}

/* ---- Counting ------------------------------------------------------------------------------------------------------------- */

static is_status count_part(is_bg_worker *w, is_bg_part *part, int stage)
{
    const is_partition p = { .id = part->id };
    is_background *b = w->b;
    is_waiting waiting = { 0 };

    if (stage == IS_STAGE_EMBED) IS_TRY(is_bank_count_unembedded(w->bank, &p, is_bg_view(b, stage), part->done[stage], &waiting));
    else IS_TRY(is_bank_count_unencoded(w->bank, &p, is_bg_view(b, stage), is_bg_policy(b, stage)->name,
                                        is_bg_policy(b, stage)->header_one_in, part->done[stage], &waiting));
    part->n[stage] = waiting.n < UINT32_MAX ? (uint32_t)waiting.n : UINT32_MAX;
    if (stage == IS_STAGE_FIRST && waiting.n) set_oldest(part, waiting.oldest);
    else if (stage == IS_STAGE_FIRST) part->since_ms = 0;
    return INFERSCALE_OK;
}

static is_status count_dirty(is_bg_worker *w)
{
    const is_bg_stage *stages = w->b->stages;

    for (int s = w->first; s < w->end; s++)
        for (size_t i = 0; stages[s].ready && i < w->n_parts && !is_bg_stopping(w->b); i++)
            if (w->parts[i].dirty[s] || (stages[s].elsewhere && w->parts[i].n[s])) IS_TRY(count_part(w, &w->parts[i], s));
    return INFERSCALE_OK;
}

/* Until its first stage's view is known its count is missing, and what was added counts as waiting. */
static bool counts_all(const is_bg_worker *w)
{
    return w->b->stages[w->first].ready || w->b->stages[w->first].off;
}

/* What callers asked to be looked at again. *n_begun is what publish_waiting compares with. */
static void take_requests(is_bg_worker *w, uint64_t *n_begun)
{
    is_background *b = w->b;

    pthread_mutex_lock(&b->lock);
    w->poked = false;
    if (w->first == IS_STAGE_FIRST) is_gate_idle_again(b->is->gate);
    *n_begun = b->writing ? UINT64_MAX : b->n_begun;
    for (size_t i = 0; w->n_again && i < w->n_parts; i++)
        for (size_t k = 0; k < w->n_again; k++)
            if (w->n_again == sizeof w->again / sizeof *w->again || w->again[k] == w->parts[i].id) mark_all(&w->parts[i], true);
    w->n_again = 0;
    pthread_mutex_unlock(&b->lock);
}

/* Items whose writing overlapped the look may be in its counts or not, and would be taken for waiting twice. Then what was known, and
 * all that was added since, stays what waits, and the next look tells; but a handle that writes without a pause is counted as it is. */
static void publish_waiting(is_bg_worker *w, uint64_t n_begun)
{
    const bool all = counts_all(w);
    is_background *b = w->b;

    pthread_mutex_lock(&b->lock);
    if (b->n_begun != n_begun && ++w->n_overlapped < OVERLAPPED_MOST) {
        w->poked = true;
    } else {
        for (int s = w->first; s < w->end; s++) {
            b->waiting[s] = 0;
            for (size_t i = 0; i < w->n_parts; i++) b->waiting[s] += w->parts[i].n[s];
        }
        if (all) w->fresh = 0;
        w->counted = all;
        w->n_overlapped = 0;
    }
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
}

/* Rows of all partitions are wanted in another codec: in another view. */
static void start_again(is_bg_worker *w)
{
    for (size_t i = 0; i < w->n_parts; i++)
        w->parts[i] = (is_bg_part){ .id = w->parts[i].id };
    for (int s = w->first; s < w->end; s++) {
        if (w->b->stages[s].lease) is_fs_default()->close(is_fs_default(), w->b->stages[s].lease);
        w->b->stages[s].lease = NULL;
        w->b->stages[s].elsewhere = false;
    }
}

/* The store may be another codec's now: by another program, or by a call on this handle. */
static is_status follow_codec(is_bg_worker *w)
{
    const is_profile *now;

    if (w->first != IS_STAGE_FIRST) return INFERSCALE_OK;
    IS_TRY(is_handle_follow_codec(w->b->is, w->bank));
    now = is_handle_profile(w->b->is);
    if (w->profile && now != w->profile) start_again(w);
    w->profile = now;
    return INFERSCALE_OK;
}

is_status is_bg_look(is_bg_worker *w)
{
    const double t0 = is_now_ms();
    is_partition_mark *marks = NULL;
    int64_t version = 0;
    uint64_t n_begun = 0;
    size_t n = 0;
    is_status st;
    bool asked;

    if (t0 < w->next_look_ms) return INFERSCALE_OK;
    pthread_mutex_lock(&w->b->lock);
    asked = w->poked || w->n_again > 0;
    pthread_mutex_unlock(&w->b->lock);
    IS_TRY(is_bank_data_version(w->bank, &version));
    if (t0 >= w->next_full_ms) {
        w->next_full_ms = t0 + IS_BG_FULL_LOOK_MS;
        for (size_t i = 0; i < w->n_parts; i++) mark_all(&w->parts[i], true);
    } else if (!asked && version == w->data_version) {
        return INFERSCALE_OK;
    }
    IS_TRY(follow_codec(w));
    take_requests(w, &n_begun);
    st = is_bank_partition_marks(w->bank, &marks, &n);
    if (st == INFERSCALE_OK) st = merge_parts(w, marks, n);
    is_free(marks);
    if (st == INFERSCALE_OK) st = count_dirty(w);
    if (st != INFERSCALE_OK) return st;
    w->data_version = version;
    publish_waiting(w, n_begun);
    is_bg_tell_lag(w);
    w->next_look_ms = t0 + LOOK_MS + 10 * (is_now_ms() - t0);
    return INFERSCALE_OK;
}
