/* talks.c - see talks.h. The lock is held to look and to link, never while the engine works. */
#include "api/talks.h"

#include <string.h>

#include "base/mem.h"

enum { TALKS_MAX = 8 };

struct is_talks {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    is_talk *first;          /* used last */
    size_t n_ending;         /* not in the list any more, and their runs may still be there */
};

is_status is_talks_new(is_talks **out)
{
    *out = is_calloc(1, sizeof **out);
    if (!*out) return is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->ended, NULL);
    return INFERSCALE_OK;
}

void is_talk_end(inferscale *is, is_talk *t)
{
    if (!t) return;
    if (t->run) is_engine_finish(is->engine, t->run);
    is_free(t->tokens);
    is_free(t->parts);
    is_free(t->facts);
    is_made_of_free(&t->rows);
    is_names_free(&t->segments);
    is_free(t);
}

static void end_all(inferscale *is, is_talk *list)
{
    while (list) {
        is_talk *next = list->next;

        is_talk_end(is, list);
        list = next;
    }
}

/* Those that were unlinked under the lock, n_ending being raised: who forgets waits for it. */
static void end_unlinked(inferscale *is, is_talk *list)
{
    end_all(is, list);
    pthread_mutex_lock(&is->talks->lock);
    is->talks->n_ending--;
    pthread_cond_broadcast(&is->talks->ended);
    pthread_mutex_unlock(&is->talks->lock);
}

void is_talks_free(inferscale *is)
{
    if (!is->talks) return;
    end_all(is, is->talks->first);
    pthread_cond_destroy(&is->talks->ended);
    pthread_mutex_destroy(&is->talks->lock);
    is_free(is->talks);
    is->talks = NULL;
}

/* ---- Making -------------------------------------------------------------------------------------------------------------- */

static is_status copy_parts(const is_plan *plan, const int32_t *told, size_t n_told, is_talk *t)
{
    uint32_t n = 0;

    t->tokens = is_malloc((plan->n_tokens + n_told + 1) * sizeof *t->tokens);
    t->parts = is_calloc(plan->n_parts + 1u, sizeof *t->parts);
    if (!t->tokens || !t->parts) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a conversation");
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        t->parts[i] = plan->parts[i];
        t->parts[i].segment = NULL;
        t->parts[i].tokens = t->tokens + n;
        if (plan->parts[i].role == IS_ROLE_QUESTION) t->parts[i].role = IS_ROLE_TURN;
        if (plan->parts[i].n_tokens) memcpy(t->tokens + n, plan->parts[i].tokens, plan->parts[i].n_tokens * sizeof *t->tokens);
        n += plan->parts[i].n_tokens;
    }
    t->n_parts = plan->n_parts;
    if (n_told) {
        memcpy(t->tokens + n, told, n_told * sizeof *told);
        t->parts[t->n_parts++] = (is_part){ .role = IS_ROLE_TURN, .tokens = t->tokens + n, .n_tokens = (uint32_t)n_told, .pos = n };
    }
    t->n_tokens = n + (uint32_t)n_told;
    return INFERSCALE_OK;
}

static is_status copy_held(const is_hold *h, is_talk *t)
{
    t->p = h->p;
    t->as_of = h->as_of;
    t->facts = is_malloc((h->n_facts + 1) * sizeof *t->facts);
    if (!t->facts) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a conversation");
    if (h->n_facts) memcpy(t->facts, h->facts, h->n_facts * sizeof *t->facts);
    t->n_facts = h->n_facts;
    for (size_t i = 0; i < h->segments.n; i++) IS_TRY(is_names_add(&t->segments, h->segments.names[i]));
    return INFERSCALE_OK;
}

is_status is_talk_new(const is_plan *plan, const int32_t *told, size_t n_told, const is_hold *hold, is_talk **out)
{
    is_talk *t = is_calloc(1, sizeof *t);
    is_status st = t ? copy_parts(plan, told, n_told, t) : is_fail(INFERSCALE_E_NOMEM, "out of memory for a conversation");

    *out = NULL;
    if (st == INFERSCALE_OK) st = copy_held(hold, t);
    if (st != INFERSCALE_OK) {
        is_talk_end(NULL, t);
        return st;
    }
    t->pending = -1;
    *out = t;
    return INFERSCALE_OK;
}

/* ---- Keeping and finding ------------------------------------------------------------------------------------------------- */

/* Does all that it holds hold still? Rows that left the books without a change of the memory (better ones came) still serve. */
static bool holds_still(inferscale *is, const is_talk *t, const is_partition *now)
{
    const is_names none = { 0 };
    bool holds = false;

    if (!t->p.id || !t->n_facts) return true;
    return is_bank_still_holds(is->bank, now, t->facts, t->n_facts, now->epoch == t->p.epoch ? &none : &t->segments, t->as_of, &holds) ==
               INFERSCALE_OK && holds;
}

/* The talk with this name, unlinked; NULL = there is none. */
static is_talk *unlink_named(inferscale *is, int64_t partition, const uint8_t key[IS_HASH_BYTES])
{
    is_talk **at, *t;

    for (at = &is->talks->first; *at && ((*at)->p.id != partition || memcmp((*at)->key, key, IS_HASH_BYTES) != 0); at = &(*at)->next) continue;
    t = *at;
    if (t) *at = t->next;
    return t;
}

is_talk *is_talks_take(inferscale *is, const is_partition *p, const uint8_t key[IS_HASH_BYTES])
{
    is_talk *t, *taken;

    pthread_mutex_lock(&is->talks->lock);
    t = unlink_named(is, p ? p->id : 0, key);
    is->talks->n_ending += t != NULL;
    pthread_mutex_unlock(&is->talks->lock);
    if (t) t->next = NULL;
    taken = t && (!p || holds_still(is, t, p)) ? t : NULL;
    if (t) end_unlinked(is, taken ? NULL : t);
    return taken;
}

/* What is more than may be kept, unlinked. */
static is_talk *too_many(inferscale *is)
{
    const uint64_t most = is_engine_describe(is->engine)->n_ctx; /* every token that is kept costs all others a little */
    uint64_t tokens = 0;
    is_talk **at = &is->talks->first, *rest;
    int n = 0;

    for (; *at && n < TALKS_MAX && (n == 0 || tokens + (*at)->n_tokens <= most); at = &(*at)->next, n++) tokens += (*at)->n_tokens;
    rest = *at;
    *at = NULL;
    return rest;
}

void is_talks_keep(inferscale *is, is_talk *t, const is_hold *hold)
{
    is_talk *gone, *same = NULL;

    /* Who forgets stops the holds first and then looks here: with the lock held it is one or the other. */
    pthread_mutex_lock(&is->talks->lock);
    if (is_hold_stopped(hold)) {
        t->next = NULL;
        gone = t;
    } else {
        same = unlink_named(is, t->p.id, t->key);
        t->next = is->talks->first;
        is->talks->first = t;
        gone = too_many(is);
    }
    if (same) {
        same->next = gone;
        gone = same;
    }
    is->talks->n_ending++;
    pthread_mutex_unlock(&is->talks->lock);
    end_unlinked(is, gone);
}

bool is_talks_evict(inferscale *is)
{
    is_talk **at, *t;

    pthread_mutex_lock(&is->talks->lock);
    for (at = &is->talks->first; *at && (*at)->next; at = &(*at)->next) continue;
    t = *at;
    *at = NULL;
    is->talks->n_ending += t != NULL;
    pthread_mutex_unlock(&is->talks->lock);
    if (t) end_unlinked(is, t);
    return t != NULL;
}

void is_talks_drop(inferscale *is, const is_partition *p)
{
    is_talk **at, *gone = NULL;

    pthread_mutex_lock(&is->talks->lock);
    for (at = &is->talks->first; *at;) {
        is_talk *t = *at;

        if (t->p.id != p->id || holds_still(is, t, p)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->next = gone;
        gone = t;
    }
    while (is->talks->n_ending) pthread_cond_wait(&is->talks->ended, &is->talks->lock); /* one of them may hold it */
    pthread_mutex_unlock(&is->talks->lock);
    end_all(is, gone);
}
