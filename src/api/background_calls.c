/* background_calls.c - what the calls of a handle tell its background encoder, and what it lets them add: back-pressure. */
#include "api/background.h"

/* Until both views are known only one stage's counts are there, and what this handle added is among them. */
static uint64_t n_waiting(const is_background *b)
{
    const uint64_t counted = b->waiting[IS_STAGE_EMBED] > b->waiting[IS_STAGE_FIRST] ? b->waiting[IS_STAGE_EMBED] : b->waiting[IS_STAGE_FIRST];
    const uint64_t added = b->fresh + b->writing;

    if (b->counted) return counted + added;
    return counted > added ? counted : added;
}

is_status is_background_take(is_background *b, size_t n)
{
    uint64_t waiting;
    bool room, fails;

    if (!b || n == 0) return INFERSCALE_OK;
    pthread_mutex_lock(&b->lock);
    waiting = n_waiting(b);
    room = waiting + n <= b->max_pending || (waiting == 0 && n > b->max_pending);
    if (room) b->writing += n, b->n_begun += n;
    fails = b->state.error != INFERSCALE_OK;
    pthread_mutex_unlock(&b->lock);
    if (room) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_BUSY, "%llu items wait for the background encoder and %llu may (max_pending); wait with "
                   "inferscale_encode_wait or 'inferscale encode --wait', then remember again%s", (unsigned long long)waiting,
                   (unsigned long long)b->max_pending, fails ? "; it fails: inferscale_encode_status or 'inferscale encode --status' says why" : "");
}

void is_background_took(is_background *b, size_t n, bool added)
{
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    b->writing -= n;
    if (added) b->fresh += n;
    b->poked = b->poked || added;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

void is_background_look(is_background *b)
{
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    b->poked = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

void is_background_again(is_background *b, int64_t partition_id)
{
    bool there = false;

    if (!b) return;
    pthread_mutex_lock(&b->lock);
    for (size_t i = 0; i < b->n_again && !there; i++) there = b->again[i] == partition_id;
    if (!there && b->n_again < sizeof b->again / sizeof *b->again) b->again[b->n_again++] = partition_id;
    b->poked = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}
