/* recall.c - the cache of partition indexes, the filters, and the query.
 *
 * An index belongs to one partition, with its own lock: queries of a fresh index run side by side; the first to see a new
 * revision brings it up to date. Indexes stay in memory within a budget; the longest unused goes first. */
#include "recall/recall.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "base/time.h"
#include "embed/embed.h"
#include "recall/fuse.h"
#include "recall/index.h"
#include "recall/scan.h"
#include "recall/score.h"

static const size_t BUDGET_BYTES = (size_t)1 << 30;
enum { MAX_INDEXES = 1024, MAX_K = 1000 };

typedef struct slot {
    int64_t partition;
    pthread_rwlock_t lock;       /* of index */
    is_index index;
    unsigned n_built;            /* whole builds; atomic */
    size_t bytes;                /* under the table's lock, like the rest below */
    unsigned users;
    bool dropped;                /* out of the table; freed by its last user */
    struct slot *next;
} slot;

struct is_recall {
    is_bank *bank;
    pthread_mutex_t lock;        /* of the table */
    slot *slots;                 /* the last used first */
    size_t n_slots, bytes;       /* bytes: of all of them */
};

is_status is_recall_new(is_bank *bank, is_recall **out)
{
    is_recall *r = is_calloc(1, sizeof *r);
    *out = r;
    if (!r) return is_fail(INFERSCALE_E_NOMEM, "out of memory; free some and try again");
    r->bank = bank;
    pthread_mutex_init(&r->lock, NULL);
    return INFERSCALE_OK;
}

static void free_slot(slot *s)
{
    is_index_clear(&s->index);
    pthread_rwlock_destroy(&s->lock);
    is_free(s);
}

void is_recall_free(is_recall *r)
{
    if (!r) return;
    while (r->slots) {
        slot *s = r->slots;
        r->slots = s->next;
        free_slot(s);
    }
    pthread_mutex_destroy(&r->lock);
    is_free(r);
}

/* ---- The table of indexes (r->lock held) --------------------------------------------------------------------------------- */

static void unlink_slot(is_recall *r, slot *s)
{
    slot **at = &r->slots;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    r->n_slots--;
    r->bytes -= s->bytes;
    s->dropped = true;
    if (s->users == 0) free_slot(s);
}

static void evict(is_recall *r)
{
    while (r->bytes > BUDGET_BYTES || r->n_slots > MAX_INDEXES) {
        slot *oldest = NULL;
        for (slot *s = r->slots; s; s = s->next)
            if (s->users == 0) oldest = s;
        if (!oldest) return;
        unlink_slot(r, oldest);
    }
}

/* The partition's slot at the head of the table: whoever asks again finds it at once, however many owners there are. */
static slot *find_slot(is_recall *r, int64_t partition)
{
    slot **at = &r->slots, *s;
    while (*at && (*at)->partition != partition) at = &(*at)->next;
    s = *at;
    if (!s) return NULL;
    *at = s->next;
    s->next = r->slots;
    r->slots = s;
    return s;
}

static slot *acquire(is_recall *r, int64_t partition)
{
    pthread_mutex_lock(&r->lock);
    slot *s = find_slot(r, partition);
    if (!s && (s = is_calloc(1, sizeof *s))) {
        s->partition = partition;
        pthread_rwlock_init(&s->lock, NULL);
        s->next = r->slots;
        r->slots = s;
        r->n_slots++;
    }
    if (s) s->users++;
    pthread_mutex_unlock(&r->lock);
    return s;
}

static void release(is_recall *r, slot *s, size_t bytes)
{
    pthread_mutex_lock(&r->lock);
    s->users--;
    if (!s->dropped) {
        r->bytes += bytes - s->bytes;
        s->bytes = bytes;
        evict(r);
    } else if (s->users == 0) free_slot(s);
    pthread_mutex_unlock(&r->lock);
}

void is_recall_forget(is_recall *r, int64_t partition_id)
{
    pthread_mutex_lock(&r->lock);
    for (slot *s = r->slots; s; s = s->next)
        if (s->partition == partition_id) {
            unlink_slot(r, s);
            break;
        }
    pthread_mutex_unlock(&r->lock);
}

/* ---- Filters ------------------------------------------------------------------------------------------------------------- */

static bool given(const char *s)
{
    return s && *s;
}

/* Is an attribute a filter? Not where it names the partition itself. */
static uint32_t want_name(const is_index *x, const char *name, bool is_owner)
{
    return is_owner ? 0 : is_index_name(x, name);
}

static void filter(const is_index *x, const is_query *q, int kinds, bool *keep)
{
    const inferscale_recall_options *o = q->options;
    const inferscale_scope none = {0}, *s = q->scope ? q->scope : &none;
    bool user = given(s->user), agent_owns = !user && given(s->agent), run_owns = !user && !agent_owns && given(s->run);
    uint32_t agent = want_name(x, s->agent, agent_owns), run = want_name(x, s->run, run_owns);
    uint32_t app = want_name(x, s->app, !user && !agent_owns && !run_owns);
    const int64_t now = is_now_epoch(), as_of = o->as_of ? is_time_seconds(o->as_of) : now;
    const int64_t from = is_time_given(o->from) ? is_time_seconds(o->from) : INT64_MIN;
    const int64_t to = is_time_given(o->to) ? is_time_seconds(o->to) : INT64_MAX;
    bool today = !o->as_of; /* what held when it was told holds still if the clock has gone back since */

    for (size_t i = 0; i < x->n; i++) {
        const is_entry *e = &x->items[i];
        bool fact = e->kind == INFERSCALE_FACTS;
        keep[i] = (e->kind & kinds) && (!agent || e->agent == agent) && (!run || e->run == run) && (!app || e->app == app) &&
                  is_time_seconds(e->event_time) >= from && is_time_seconds(e->event_time) <= to &&
                  (!e->expires || e->expires > now) && (!fact || is_time_seconds(e->valid_from) <= as_of || (today && e->told)) &&
                  (!fact || !e->valid_to || is_time_seconds(e->valid_to) > as_of);
    }
}

static is_status filter_metadata(is_bank *bank, const is_index *x, const is_partition *p, const char *metadata, bool *keep)
{
    size_t n = 0;
    is_dep *versions = is_malloc((x->n ? x->n : 1) * sizeof *versions);
    bool *match = is_calloc(x->n ? x->n : 1, sizeof *match);
    is_status st = INFERSCALE_OK;

    if (!versions || !match) st = is_fail(INFERSCALE_E_NOMEM, "out of memory while filtering; free some and try again");
    for (size_t i = 0; st == INFERSCALE_OK && i < x->n; i++)
        if (keep[i]) versions[n++] = (is_dep){ x->items[i].id, x->items[i].version };
    if (st == INFERSCALE_OK) st = is_bank_match_versions(bank, p, metadata, versions, n, match);
    for (size_t i = 0, j = 0; st == INFERSCALE_OK && i < x->n; i++)
        if (keep[i]) keep[i] = match[j++];
    is_free(versions);
    is_free(match);
    return st;
}

/* ---- The query ----------------------------------------------------------------------------------------------------------- */

/* Moves the pinned items to the front: those that were ranked in their order, then the others by the words and meaning they share with
 * the query. ranked has room for all of them; at most k stay. */
static void put_first(const is_index *x, const int64_t *pinned, size_t n_pinned, const bool *keep, const double *lexical,
                      const float *dense, size_t k, is_ranked *ranked, size_t *n, size_t *n_first)
{
    *n_first = 0;
    for (size_t i = 0; i < *n; i++) {
        const is_ranked r = ranked[i];

        for (size_t p = 0; p < n_pinned; p++) {
            if (x->items[r.item].id != pinned[p]) continue;
            memmove(ranked + *n_first + 1, ranked + *n_first, (i - *n_first) * sizeof *ranked);
            ranked[(*n_first)++] = r;
        }
    }
    for (size_t p = 0; p < n_pinned; p++) {
        const is_entry *e = is_index_find(x, pinned[p]);
        size_t item = e ? (size_t)(e - x->items) : 0;
        bool there = !e || !keep[item];

        for (size_t i = 0; i < *n_first && !there; i++) there = ranked[i].item == item;
        if (there) continue;
        memmove(ranked + *n_first + 1, ranked + *n_first, (*n - *n_first) * sizeof *ranked);
        ranked[(*n_first)++] = (is_ranked){ .item = (uint32_t)item, .lexical = lexical[item], .pinned = true,
                                            .dense = dense && !isnan(dense[item]) ? (double)dense[item] : 0 };
        ++*n;
    }
    if (*n > k) *n = k;
}

static void mark_pinned(const is_index *x, const int64_t *pinned, size_t n_pinned, is_ranked *ranked,
                        size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t p = 0; p < n_pinned; p++)
            if (x->items[ranked[i].item].id == pinned[p]) ranked[i].pinned = true;
}

/* What a search knows of the index's items, by item. */
typedef struct known {
    bool *keep;
    double *lexical, *shares, *grounds; /* grounds: NULL = no vectors that anybody can read */
    uint32_t *companies;
    float *dense;                /* NULL = no vectors */
} known;

/* Ranked and scored as far as the candidates go: only then the first k are taken, and the pinned ones
 * put before them. */
static is_status rank(const is_recall *r, const is_index *x, const is_partition *p, const is_query *q,
                      const known *w, is_ranked **ranked, size_t *n, size_t *n_first)
{
    const size_t k = q->options->k ? q->options->k : 10;
    const size_t most = k > IS_FUSE_CANDIDATES ? k : IS_FUSE_CANDIDATES;
    const is_score_parts parts = { w->dense, w->grounds, w->shares };
    int64_t *pinned = NULL;
    size_t n_pinned = 0;
    is_status st = is_fuse(w->lexical, w->dense, w->keep, x->n, q->options->method, most, ranked, n);

    *n_first = 0;
    if (st == INFERSCALE_OK && q->pins) st = is_bank_pinned(r->bank, p, &pinned, &n_pinned);
    if (st == INFERSCALE_OK) mark_pinned(x, pinned, n_pinned, *ranked, *n);
    if (st == INFERSCALE_OK) st = is_score_ranked(*ranked, *n, &parts, q->calibration);
    if (*n > k) *n = k;
    if (st == INFERSCALE_OK && n_pinned) {
        is_ranked *grown = is_realloc(*ranked, (*n + n_pinned + 1) * sizeof *grown);

        if (grown) *ranked = grown;
        if (grown)
            put_first(x, pinned, n_pinned, w->keep, w->lexical, w->dense, k, *ranked, n, n_first);
        else st = is_fail(INFERSCALE_E_NOMEM, "out of memory for the results; ask for fewer");
        if (st == INFERSCALE_OK)
            st = is_score_ranked(*ranked, *n_first, &parts, q->calibration);
    }
    is_free(pinned);
    return st;
}

static is_status take_hits(const is_index *x, const is_ranked *ranked, size_t n, size_t n_pinned, const inferscale_recall_options *o,
                           is_hit **hits, size_t *n_hits)
{
    is_hit *h = is_malloc((n ? n : 1) * sizeof *h);
    if (!h) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the results; ask for fewer");
    *n_hits = 0;
    for (size_t i = 0; i < n; i++) {
        const is_entry *e = &x->items[ranked[i].item];
        if (i >= n_pinned && o->has_threshold && ranked[i].shown < o->threshold) break; /* best first */
        h[(*n_hits)++] = (is_hit){ .id = e->id, .kind = e->kind, .version = e->version, .score = ranked[i].shown,
                                   .fused = ranked[i].score, .lexical = ranked[i].lexical,
                                   .dense = ranked[i].dense };
    }
    *hits = h;
    return INFERSCALE_OK;
}

/* The vectors that came with the query stand in where the bank has none. */
static is_status add_extra(const is_index *x, const is_query *q, float *dense)
{
    float scale;
    int8_t *v = q->n_extra ? is_malloc(q->dim) : NULL;

    if (q->n_extra && !v) return is_fail(INFERSCALE_E_NOMEM, "out of memory while searching; free some and try again");
    if (v) is_quantize_i8(q->vec, q->dim, v, &scale);
    for (size_t i = 0; i < q->n_extra; i++) {
        const is_entry *e = is_index_find(x, q->extra[i].id);
        int32_t dot;

        if (!e || e->version != q->extra[i].version || e->row != IS_NO_ROW) continue;
        is_scan_dot(v, q->extra[i].q, q->dim, q->dim, 1, &dot);
        dense[e - x->items] = (float)dot * scale * q->extra[i].scale;
    }
    is_free(v);
    return INFERSCALE_OK;
}

static size_t count_unembedded(const is_index *x, const bool *keep, const float *dense)
{
    size_t n = 0;

    for (size_t i = 0; i < x->n; i++) n += keep[i] && (!dense || isnan(dense[i]));
    return n;
}

/* What a query finds in an index. */
typedef struct found {
    is_hit *hits;
    is_dep *missing;
    size_t n, n_unembedded, most;
} found;

static void free_known(known *w)
{
    is_free(w->keep);
    is_free(w->lexical);
    is_free(w->shares);
    is_free(w->grounds);
    is_free(w->companies);
    is_free(w->dense);
}

/* *w is free_known'd, whatever came of it. */
static is_status new_known(size_t n, bool vectors, bool readable, known *w)
{
    const size_t room = n ? n : 1;

    w->keep = is_malloc(room * sizeof *w->keep);
    w->lexical = is_malloc(room * sizeof *w->lexical);
    w->shares = is_malloc(room * sizeof *w->shares);
    w->companies = is_malloc(room * sizeof *w->companies);
    w->dense = vectors ? is_malloc(room * sizeof *w->dense) : NULL;
    w->grounds = readable ? is_malloc(room * sizeof *w->grounds) : NULL;
    if (w->keep && w->lexical && w->shares && w->companies && (w->dense || !vectors) &&
        (w->grounds || !readable))
        return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "out of memory while searching; free some and try again");
}

static is_status search(is_recall *r, const is_index *x, const is_partition *p, const is_query *q, int kinds, found *out)
{
    const inferscale_recall_options *o = q->options;
    size_t n_ranked = 0, n_first = 0;
    is_ranked *ranked = NULL;
    known w;
    is_status st = new_known(x->n, q->vec, q->vec && q->calibration, &w);

    if (st != INFERSCALE_OK) goto end;
    filter(x, q, kinds, w.keep);
    if (given(o->metadata)) IS_TRY_GOTO(st, end, filter_metadata(r->bank, x, p, o->metadata, w.keep));
    IS_TRY_GOTO(st, end, is_lexical_score(x->words, q->text, w.lexical, w.shares, w.companies));
    if (w.dense) IS_TRY_GOTO(st, end, is_index_dense(x, q->vec, q->dim, w.dense));
    if (w.dense) IS_TRY_GOTO(st, end, add_extra(x, q, w.dense));
    if (w.grounds)
        IS_TRY_GOTO(st, end,
                    is_score_grounds(w.dense, w.companies, x->n, q->calibration, w.grounds));
    IS_TRY_GOTO(st, end, rank(r, x, p, q, &w, &ranked, &n_ranked, &n_first));
    out->n_unembedded = count_unembedded(x, w.keep, w.dense);
    st = take_hits(x, ranked, n_ranked, n_first, o, &out->hits, &out->n);
end:
    is_free(ranked);
    free_known(&w);
    return st;
}

/* ---- What has no vector -------------------------------------------------------------------------------------------------- */

typedef struct wordy { double lexical; uint32_t item; } wordy;

static int by_words_then_newest(const void *a, const void *b)
{
    const wordy *x = a, *y = b;

    if (x->lexical != y->lexical) return x->lexical > y->lexical ? -1 : 1;
    return x->item > y->item ? -1 : x->item < y->item;
}

static is_status take_missing(const is_index *x, wordy *w, size_t n, found *out)
{
    const size_t take = n < out->most ? n : out->most;

    out->missing = is_malloc((take + 1) * sizeof *out->missing);
    if (!out->missing) return is_fail(INFERSCALE_E_NOMEM, "out of memory while searching; free some and try again");
    is_sort(w, n, sizeof *w, by_words_then_newest);
    for (size_t i = 0; i < take; i++) out->missing[i] = (is_dep){ x->items[w[i].item].id, x->items[w[i].item].version };
    out->n = take;
    return INFERSCALE_OK;
}

static is_status missing(is_recall *r, const is_index *x, const is_partition *p, const is_query *q, int kinds, found *out)
{
    const bool whole = x->n_rows == x->n; /* as nearly always */
    bool *keep = whole ? NULL : is_malloc(x->n * sizeof *keep);
    double *lexical = whole ? NULL : is_malloc(x->n * sizeof *lexical);
    wordy *w = whole ? NULL : is_malloc(x->n * sizeof *w);
    size_t n = 0;
    is_status st = INFERSCALE_OK;

    if (whole) return INFERSCALE_OK;
    if (!keep || !lexical || !w) {
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory while searching; free some and try again");
        goto end;
    }
    filter(x, q, kinds, keep);
    if (given(q->options->metadata)) IS_TRY_GOTO(st, end, filter_metadata(r->bank, x, p, q->options->metadata, keep));
    IS_TRY_GOTO(st, end, is_lexical_score(x->words, q->text, lexical, NULL, NULL));
    for (size_t i = 0; i < x->n; i++)
        if (keep[i] && x->items[i].row == IS_NO_ROW) w[n++] = (wordy){ lexical[i], (uint32_t)i };
    out->n_unembedded = n;
    if (n) st = take_missing(x, w, n, out);
end:
    is_free(keep);
    is_free(lexical);
    is_free(w);
    return st;
}

/* ---- An index to look into ----------------------------------------------------------------------------------------------- */

static is_status check(const is_query *q)
{
    const inferscale_recall_options *o = q->options;
    if (!q->text) return is_fail(INFERSCALE_E_INVALID, "the query has no text; pass what to look for");
    if (o->k > MAX_K) return is_fail(INFERSCALE_E_INVALID, "k is %u; ask for 1 to %d results", o->k, MAX_K);
    if (o->method != INFERSCALE_FUSED && o->method != INFERSCALE_LEXICAL && o->method != INFERSCALE_DENSE)
        return is_fail(INFERSCALE_E_INVALID, "search method %d is unknown; use fused, lexical or dense", o->method);
    if (o->kinds & ~(INFERSCALE_FACTS | INFERSCALE_TURNS))
        return is_fail(INFERSCALE_E_INVALID, "item kinds %d are unknown; use facts, turns or both", o->kinds);
    if (is_time_given(o->from) && is_time_given(o->to) && is_time_seconds(o->from) > is_time_seconds(o->to))
        return is_fail(INFERSCALE_E_INVALID, "the time window ends before it begins; swap its ends");
    if (o->method == INFERSCALE_DENSE && !q->vec)
        return is_fail(INFERSCALE_E_INVALID,
                       "a dense search needs an embedder; configure one, or search with fused or lexical");
    if (q->vec && !q->fingerprint)
        return is_fail(INFERSCALE_E_INVALID, "the query's vector has no embedder fingerprint; pass it too");
    return INFERSCALE_OK;
}

/* A whole index is read through a connection of its own: the bank's is everybody's, and one owner's index may take seconds. Where there
 * can be no other (too many files are open, say) the bank's own serves. */
static is_bank *own_connection(const is_recall *r)
{
    is_bank *own = NULL;

    if (is_bank_open(is_bank_path(r->bank), true, &own) != INFERSCALE_OK) return NULL;
    if (!is_bank_frozen(own) || is_bank_frozen(r->bank)) return own;
    is_bank_close(own); /* it would not see what was written since */
    return NULL;
}

static is_status sync_index(const is_recall *r, slot *s, const is_partition *now, const uint8_t *fingerprint)
{
    const is_index *x = &s->index;
    const bool whole = !x->loaded || x->epoch != now->epoch || (fingerprint && !x->has_vectors);
    is_bank *own = whole ? own_connection(r) : NULL;
    is_status st = is_index_sync(&s->index, own ? own : r->bank, now, fingerprint);

    is_bank_close(own);
    if (whole) __atomic_add_fetch(&s->n_built, 1, __ATOMIC_RELEASE);
    return st;
}

typedef is_status (*look_fn)(is_recall *r, const is_index *x, const is_partition *p, const is_query *q, int kinds, found *out);

/* As it was at a time when some facts had other versions: an index for this question alone. */
static is_status look_at_past(is_recall *r, const is_partition *p, const is_query *q, const int64_t *past, size_t n_past, int kinds,
                              look_fn look, found *out)
{
    const double t0 = is_now_ms();
    is_bank *own = own_connection(r);
    is_index x = { 0 };
    is_status st = is_index_build_at(&x, own ? own : r->bank, p, q->options->as_of, past, n_past, q->fingerprint);

    is_bank_close(own);
    if (q->wait) *q->wait = (is_index_wait){ q->wait->ms + is_now_ms() - t0, true };
    if (st == INFERSCALE_OK) st = look(r, &x, p, q, kinds, out);
    is_index_clear(&x);
    return st;
}

static is_status look_at_now(is_recall *r, is_partition *now, const is_query *q, int kinds, look_fn look, found *out)
{
    const double t0 = is_now_ms();
    slot *s = acquire(r, now->id);
    const unsigned n_built = s ? __atomic_load_n(&s->n_built, __ATOMIC_ACQUIRE) : 0;
    is_status st = INFERSCALE_OK;

    if (!s) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the recall index; free some and try again");
    pthread_rwlock_rdlock(&s->lock);
    if (!is_index_fresh(&s->index, now, q->fingerprint)) {
        pthread_rwlock_unlock(&s->lock);
        pthread_rwlock_wrlock(&s->lock); /* the search then runs under it too: nobody can turn the index away in between */
        st = is_bank_partition_refresh(r->bank, now);
        if (st == INFERSCALE_OK && !is_index_fresh(&s->index, now, q->fingerprint))
            st = sync_index(r, s, now, q->fingerprint);
    }
    if (q->wait) q->wait->ms += is_now_ms() - t0;
    if (q->wait && __atomic_load_n(&s->n_built, __ATOMIC_ACQUIRE) != n_built) q->wait->built = true;
    if (st == INFERSCALE_OK) st = look(r, &s->index, now, q, kinds, out);
    size_t bytes = is_index_bytes(&s->index);
    pthread_rwlock_unlock(&s->lock);
    release(r, s, bytes);
    return st;
}

static is_status look_at(is_recall *r, const is_partition *p, const is_query *q, look_fn look, found *out)
{
    is_partition now = *p;
    int kinds = q->options->kinds ? q->options->kinds : INFERSCALE_FACTS;
    int64_t *past = NULL;
    size_t n_past = 0;
    is_status st = INFERSCALE_OK;

    IS_TRY(is_bank_partition_refresh(r->bank, &now));
    if (q->options->as_of) st = is_bank_differs_at(r->bank, &now, q->options->as_of, &past, &n_past);
    if (st == INFERSCALE_OK)
        st = n_past ? look_at_past(r, &now, q, past, n_past, kinds, look, out) : look_at_now(r, &now, q, kinds, look, out);
    is_free(past);
    return st;
}

is_status is_recall_query(is_recall *r, const is_partition *p, const is_query *q, is_hit **hits, size_t *n, size_t *n_unembedded)
{
    found f = { 0 };
    is_status st = check(q);

    if (st == INFERSCALE_OK) st = look_at(r, p, q, search, &f);
    *hits = f.hits;
    *n = f.n;
    if (n_unembedded) *n_unembedded = f.n_unembedded;
    return st;
}

is_status is_recall_missing(is_recall *r, const is_partition *p, const is_query *q, size_t most, is_dep **items, size_t *n, size_t *all)
{
    found f = { .most = most };
    is_status st = check(q);

    if (st == INFERSCALE_OK) st = look_at(r, p, q, missing, &f);
    *items = f.missing;
    *n = f.n;
    *all = f.n_unembedded;
    return st;
}

char *is_dense_text(const inferscale_item *item)
{
    is_buf b = IS_BUF_INIT;
    if (item->kind != INFERSCALE_TURNS || !given(item->speaker)) return is_strdup(item->text);
    is_buf_str(&b, item->speaker);
    is_buf_str(&b, ": ");
    is_buf_str(&b, item->text);
    return is_buf_take(&b);
}
