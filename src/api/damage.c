/* damage.c - see damage.h. */
#include "api/damage.h"
#include "api/background.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { PLACES = 1024, REST_MS = 10000, REST_MAX_MS = 3600000, FORGIVEN_MS = 7200000 };

/* One fact's rows of one policy: encoded again they may get another name. */
typedef struct place {
    uint8_t key[IS_HASH_BYTES];
    uint32_t n;                      /* times; 0 = free */
    double last_ms, until_ms;
} place;

struct is_damage {
    pthread_mutex_t lock;
    place *places;                   /* [PLACES] */
    is_damage_counts n;
};

is_status is_damage_new(struct is_damage **out)
{
    struct is_damage *d = is_calloc(1, sizeof *d);

    *out = d;
    if (d) d->places = is_calloc(PLACES, sizeof *d->places);
    if (d) pthread_mutex_init(&d->lock, NULL);
    return d && d->places ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");
}

void is_damage_free(struct is_damage *d)
{
    if (!d) return;
    pthread_mutex_destroy(&d->lock);
    is_free(d->places);
    is_free(d);
}

void is_damage_count(inferscale *is, is_damage_counts *out)
{
    pthread_mutex_lock(&is->damage->lock);
    *out = is->damage->n;
    pthread_mutex_unlock(&is->damage->lock);
}

/* ---- Resting ------------------------------------------------------------------------------------------------------------- */

static void key_of(const is_partition *p, const is_segment_row *row, bool disputed, uint8_t out[IS_HASH_BYTES])
{
    struct {
        int64_t partition, fact;
        uint64_t disputed;
        char policy[sizeof row->policy];
    } of = { .partition = p->id, .fact = row->fact_id, .disputed = disputed };

    memcpy(of.policy, row->policy, strnlen(row->policy, sizeof of.policy));
    is_hash_once(NULL, &of, sizeof of, out);
}

/* Under the lock: its place, or the one that is to give way to it. */
static place *place_of(struct is_damage *d, const uint8_t *key)
{
    place *oldest = d->places;

    for (size_t i = 0; i < PLACES; i++) {
        place *at = &d->places[i];

        if (at->n && memcmp(at->key, key, IS_HASH_BYTES) == 0) return at;
        if (oldest->n && (!at->n || at->last_ms < oldest->last_ms)) oldest = at;
    }
    return oldest;
}

/* May something be done about it now? If so, not again before it has rested. */
static bool is_due(struct is_damage *d, const uint8_t *key, double now)
{
    place *at = place_of(d, key);
    double rest = REST_MS;

    if (!at->n || memcmp(at->key, key, IS_HASH_BYTES) != 0 || now - at->last_ms > FORGIVEN_MS) *at = (place){ .n = 0 };
    memcpy(at->key, key, IS_HASH_BYTES);
    if (at->n && now < at->until_ms) return false;
    for (uint32_t i = 0; i < at->n && rest < REST_MAX_MS; i++) rest *= 2;
    at->n++;
    at->last_ms = now;
    at->until_ms = now + (rest < REST_MAX_MS ? rest : REST_MAX_MS);
    return true;
}

/* The same, looked at alone. */
static bool rests(struct is_damage *d, const uint8_t *key)
{
    bool out;

    pthread_mutex_lock(&d->lock);
    const place *at = place_of(d, key);
    out = at->n && memcmp(at->key, key, IS_HASH_BYTES) == 0 && is_now_ms() < at->until_ms;
    pthread_mutex_unlock(&d->lock);
    return out;
}

static bool count_due(struct is_damage *d, const uint8_t *key, uint64_t *due, uint64_t *not)
{
    bool is;

    pthread_mutex_lock(&d->lock);
    is = is_due(d, key, is_now_ms());
    ++*(is ? due : not);
    pthread_mutex_unlock(&d->lock);
    return is;
}

/* ---- Found --------------------------------------------------------------------------------------------------------------- */

/* The books lose it, and the disk what is left of it under its name (set aside, half written by a process that was killed): encoded again
 * the fact may get another name, and then forgetting would not come by here. */
void is_damage_found(inferscale *is, const is_partition *p, const is_segment_row *row, is_unusable *n)
{
    struct is_damage *d = is->damage;
    uint8_t key[IS_HASH_BYTES];

    n->kept++;
    if (is->read_only) return;
    key_of(p, row, false, key);
    if (!count_due(d, key, &d->n.queued, &d->n.rested)) return;
    is_log(IS_LOG_WARN, "rows of fact %lld (%s) are missing or damaged; they are to be encoded again", (long long)row->fact_id, row->policy);
    if (is_bank_drop_segment(is->bank, p, row->name) != INFERSCALE_OK) {
        is_log(IS_LOG_WARN, "damaged rows stay in the books for now: %s", is_error());
        return;
    }
    n->kept--;
    n->queued++;
    if (is_vault_remove(is->vault, row->name) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "what is left of a damaged segment stays in the vault until the next gc: %s", is_error());
    is_background_again(is->background, p->id);
}

/* ---- Told ---------------------------------------------------------------------------------------------------------------- */

/* The row of the books that the part's segment is; false: none, it was forgotten or encoded anew meanwhile. */
static bool find_row(inferscale *is, const is_partition *p, const is_part *part, is_segment_row *out)
{
    const uint8_t *name = is_segment_info(part->segment)->name;
    is_segment_row *rows = NULL;
    size_t n = 0;
    bool found = false;

    if (is_bank_segments(is->bank, p, is_handle_profile(is)->fingerprint, NULL, part->fact_id, &rows, &n) != INFERSCALE_OK) {
        is_log(IS_LOG_WARN, "what a server says of a fact's rows cannot be looked at: %s", is_error());
        return false;
    }
    for (size_t i = 0; i < n && !found; i++) {
        found = memcmp(rows[i].name, name, IS_HASH_BYTES) == 0;
        if (found) *out = rows[i];
    }
    is_free(rows);
    return found;
}

/* The file as it is now: well, and of the part's tokens. */
static is_status look(inferscale *is, const is_part *part)
{
    const is_segment_desc *d;
    is_segment *s;
    is_status st;

    IS_TRY(is_vault_doubt(is->vault, is_segment_info(part->segment)->name));
    IS_TRY(is_engine_segment(is->engine, is->vault, is_segment_info(part->segment)->name, &s));
    d = is_segment_info(s);
    st = d->n_tokens == part->n_tokens && memcmp(d->tokens, part->tokens, d->n_tokens * sizeof *d->tokens) == 0
             ? INFERSCALE_OK
             : is_fail(INFERSCALE_E_NOTFOUND, "a KV segment's file holds other tokens than the fact's");
    is_segment_unref(s);
    return st;
}

static void dispute(inferscale *is, const uint8_t *key, const is_part *part, const char *reason)
{
    struct is_damage *d = is->damage;

    if (!count_due(d, key, &d->n.disputed, &d->n.disputed)) return;
    is_log(IS_LOG_WARN, "a server could not use the rows of fact %lld (%s), and their file is well here: does it see this store's folder, as it is "
           "now? Nothing is encoded again", (long long)part->fact_id, reason);
}

void is_damage_told(inferscale *is, const is_partition *p, const is_part *part, const char *reason, is_unusable *n)
{
    struct is_damage *d = is->damage;
    uint8_t disputed[IS_HASH_BYTES];
    is_segment_row row;
    is_status st;

    if (!part->segment || !find_row(is, p, part, &row)) return;
    key_of(p, &row, true, disputed);
    if (rests(d, disputed)) { /* its file was looked at not long ago */
        dispute(is, disputed, part, reason);
        return;
    }
    st = look(is, part);
    if (st == INFERSCALE_OK) dispute(is, disputed, part, reason);
    else if (st == INFERSCALE_E_NOTFOUND) is_damage_found(is, p, &row, n);
    else n->unread++; /* looked at the next time */
}
