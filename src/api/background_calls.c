/* background_calls.c - what the calls of a handle tell its background encoder, and what it lets them add: back-pressure. */
#include "api/background.h"
#include "base/words.h"

/* What waits for one worker. Until its view is known its counts may miss what is there, and what this handle added is among them. */
static uint64_t n_waiting_for(const is_background *b, const is_bg_worker *w)
{
    const uint64_t counted = b->waiting[w->first], added = w->fresh + b->writing;

    if (w->counted) return counted + added;
    return counted > added ? counted : added;
}

static uint64_t n_waiting(const is_background *b)
{
    uint64_t most = 0;

    for (int i = 0; i < IS_BG_WORKERS; i++) {
        const uint64_t n = n_waiting_for(b, &b->workers[i]);

        if (n > most) most = n;
    }
    return most;
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
    return is_fail(INFERSCALE_E_BUSY, "%llu items wait for the background encoder and %llu may (max_pending); %s, then remember again%s%s%s",
                   (unsigned long long)waiting, (unsigned long long)b->max_pending, is_words(IS_CALL_ENCODE_WAIT), fails ? "; it fails: " : "",
                   fails ? is_words(IS_CALL_ENCODE_STATUS) : "", fails ? " says why" : "");
}

/* The lock is held. */
static void poke(is_background *b)
{
    for (int i = 0; i < IS_BG_WORKERS; i++) b->workers[i].poked = true;
    pthread_cond_broadcast(&b->wake);
    is_gate_drop_idle(b->is->gate); /* refining that is paused would keep the encoder from it */
}

void is_background_took(is_background *b, size_t n, bool added)
{
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    b->writing -= n;
    for (int i = 0; added && i < IS_BG_WORKERS; i++) b->workers[i].fresh += n;
    if (added) poke(b);
    pthread_mutex_unlock(&b->lock);
}

void is_background_look(is_background *b)
{
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    poke(b);
    pthread_mutex_unlock(&b->lock);
}

static void add_again(is_bg_worker *w, int64_t partition_id)
{
    bool there = false;

    for (size_t i = 0; i < w->n_again && !there; i++) there = w->again[i] == partition_id;
    if (!there && w->n_again < sizeof w->again / sizeof *w->again) w->again[w->n_again++] = partition_id;
}

void is_background_again(is_background *b, int64_t partition_id)
{
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < IS_BG_WORKERS; i++) add_again(&b->workers[i], partition_id);
    poke(b);
    pthread_mutex_unlock(&b->lock);
}
