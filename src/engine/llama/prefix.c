/* prefix.c - exact prefixes: KV that this engine computed itself from a plan's first parts, kept for later runs.
 *
 * Only sequences in which nothing was injected get here (run.c sees to it), so a hit is what prefill would give.
 *
 * A client's own words serve nobody else, who could tell by the time that they had been said: of another realm's prefix only what is
 * everybody's (the host's own header) is a hit.
 *
 * The cache is unified: every used cell costs attention work in every run, so a long prefix that the current run does not use
 * is parked: its state goes to memory byte for byte and its cells are freed; a later hit loads it back. */
#include "engine/llama/internal.h"

#include <string.h>

enum { PARK_TOKENS = 64 /* shorter idle prefixes keep their cells */, PARKED_MAX = 8 };

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How much of the tokens the prefix holds, for that realm. */
static uint32_t common(const is_prefix *p, const is_whose *whose, const int32_t *tokens, uint32_t n)
{
    uint32_t i = 0, most = least(p->n, n);

    if (memcmp(p->whose.tag, whose->tag, sizeof whose->tag) != 0) most = least(most, least(p->whose.n_shared, whose->n_shared));
    while (i < most && p->tokens[i] == tokens[i]) i++;
    return i;
}

static void drop(is_llama *e, is_prefix *p)
{
    is_seq_drop(e, p->seq);
    is_free(p->tokens);
    is_free(p->bytes);
    memset(p, 0, sizeof *p);
    p->seq = -1;
}

/* Usable length of a resident prefix cut to n: window layers must still hold what the next token sees. */
static uint32_t usable(const is_llama *e, const is_prefix *p, uint32_t n)
{
    llama_pos low = llama_memory_seq_pos_min(llama_get_memory(e->serve), p->seq);
    llama_pos window = llama_model_n_swa(e->model);

    if (low < 0) return 0;
    return low == 0 || (window > 0 && low <= (llama_pos)n - window) ? n : 0;
}

static void drop_oldest_parked(is_llama *e)
{
    is_prefix *oldest = NULL;
    uint32_t parked = 0;

    for (int i = 0; i < PREFIX_MAX; i++) {
        is_prefix *q = &e->prefixes[i];

        if (!q->tokens || !q->bytes) continue;
        parked++;
        if (!oldest || q->used_at < oldest->used_at) oldest = q;
    }
    if (parked > PARKED_MAX) drop(e, oldest);
}

static void park(is_llama *e, is_prefix *p)
{
    if (!is_seq_save(e, p->seq, &p->bytes, &p->n_bytes)) {
        drop(e, p);
        return;
    }
    is_seq_drop(e, p->seq);
    p->seq = -1;
    drop_oldest_parked(e);
}

static bool unpark(is_llama *e, is_prefix *p)
{
    int seq = is_seq_take(e);

    if (seq < 0) return false;
    while (is_shim_state_set(e->serve, p->bytes, p->n_bytes, seq) != p->n_bytes) {
        llama_memory_seq_rm(llama_get_memory(e->serve), seq, -1, -1);
        if (!is_prefix_evict(e, (int)(p - e->prefixes))) {
            is_seq_drop(e, seq);
            return false;
        }
    }
    is_free(p->bytes);
    p->bytes = NULL;
    p->n_bytes = 0;
    p->seq = seq;
    return true;
}

/* Long prefixes that this run does not use give their cells back. */
static void park_idle(is_llama *e, int used)
{
    for (int i = 0; i < PREFIX_MAX; i++) {
        is_prefix *p = &e->prefixes[i];

        if (i != used && p->tokens && p->seq >= 0 && p->n_runs == 0 && p->n > PARK_TOKENS) park(e, p);
    }
}

/* Where sequences have streams of their own cells are not shared: every prefix is parked, and a hit copies it. */
static void find_parked(is_llama *e, const is_whose *whose, const int32_t *tokens, uint32_t n, int seq, uint32_t *len)
{
    is_prefix *best = NULL;

    for (int i = 0; i < PREFIX_MAX && n > 0; i++) {
        is_prefix *p = &e->prefixes[i];
        uint32_t m = p->tokens ? common(p, whose, tokens, n) : 0;

        if (m && (m == p->n || m > p->n / 2) && m > *len) {
            best = p;
            *len = m;
        }
    }
    if (!best) return;
    best->used_at = ++e->clock;
    if (is_seq_load(e, seq, best->bytes, best->n_bytes) &&
        (*len == best->n || llama_memory_seq_rm(llama_get_memory(e->serve), seq, (llama_pos)*len, -1)))
        return;
    llama_memory_seq_rm(llama_get_memory(e->serve), seq, -1, -1);
    *len = 0;
}

void is_prefix_find(is_llama *e, const is_whose *whose, const int32_t *tokens, uint32_t n, int seq, uint32_t *len, int *index)
{
    int best = -1;
    uint32_t best_len = 0;

    *len = 0;
    *index = -1;
    if (e->streams) {
        find_parked(e, whose, tokens, n, seq, len);
        return;
    }
    for (int i = 0; i < PREFIX_MAX && n > 0; i++) {
        is_prefix *p = &e->prefixes[i];
        uint32_t m = p->tokens ? common(p, whose, tokens, n) : 0;

        if (m && p->seq >= 0) m = usable(e, p, m);
        /* Loading a parked one back pays only for most of it. */
        if (m && p->seq < 0) m = m == p->n || m > p->n / 2 ? m : 0;
        if (m > best_len || (m && m == best_len && best >= 0 && p->seq >= 0 && p->n < e->prefixes[best].n)) {
            best = i;
            best_len = m;
        }
    }
    if (best >= 0 && e->prefixes[best].seq < 0 && (!unpark(e, &e->prefixes[best]) || !usable(e, &e->prefixes[best],
        best_len))) best = -1;
    /* A short hit inside a long prefix does not keep the whole of it in the cache. */
    park_idle(e, best >= 0 && best_len > e->prefixes[best].n / 2 ? best : -1);
    if (best < 0) return;
    if (e->prefixes[best].seq < 0) { /* it was parked just now: its head is computed again and kept apart */
        return;
    }
    llama_memory_seq_cp(llama_get_memory(e->serve), e->prefixes[best].seq, seq, 0, (llama_pos)best_len);
    e->prefixes[best].used_at = ++e->clock;
    *len = best_len;
    *index = best;
}

static void keep_parked(is_llama *e, is_prefix *slot, const is_whose *whose, const int32_t *tokens, uint32_t n, int seq)
{
    slot->tokens = is_malloc(n * sizeof *tokens);
    if (!slot->tokens || !is_seq_save(e, seq, &slot->bytes, &slot->n_bytes)) {
        is_free(slot->tokens);
        slot->tokens = NULL;
        return;
    }
    memcpy(slot->tokens, tokens, n * sizeof *tokens);
    slot->n = n;
    slot->whose = *whose;
    slot->seq = -1;
    slot->used_at = ++e->clock;
    drop_oldest_parked(e);
}

void is_prefix_keep(is_llama *e, const is_whose *whose, const int32_t *tokens, uint32_t n, int seq, int *index)
{
    is_prefix *slot = NULL;
    int own;

    *index = -1;
    for (int i = 0; i < PREFIX_MAX; i++) {
        if (!e->prefixes[i].tokens) slot = slot ? slot : &e->prefixes[i];
        else if (common(&e->prefixes[i], whose, tokens, n) == n) return; /* a longer one holds it */
    }
    if (!slot) { /* the least recently used without runs makes room */
        for (int i = 0; i < PREFIX_MAX; i++) {
            is_prefix *p = &e->prefixes[i];

            if (p->n_runs == 0 && (!slot || p->used_at < slot->used_at)) slot = p;
        }
        if (!slot) return;
        drop(e, slot);
    }
    if (e->streams) {
        keep_parked(e, slot, whose, tokens, n, seq);
        return;
    }
    own = is_seq_take(e);
    if (own < 0) return;
    slot->tokens = is_malloc(n * sizeof *tokens);
    if (!slot->tokens) {
        is_seq_drop(e, own);
        return;
    }
    memcpy(slot->tokens, tokens, n * sizeof *tokens);
    llama_memory_seq_cp(llama_get_memory(e->serve), seq, own, 0, (llama_pos)n);
    slot->n = n;
    slot->whose = *whose;
    slot->seq = own;
    slot->used_at = ++e->clock;
    *index = (int)(slot - e->prefixes);
}

bool is_prefix_evict(is_llama *e, int except)
{
    is_prefix *oldest = NULL;

    for (int i = 0; i < PREFIX_MAX; i++) {
        is_prefix *p = &e->prefixes[i];

        if (i != except && p->tokens && p->seq >= 0 && p->n_runs == 0 && (!oldest || p->used_at < oldest->used_at)) oldest = p;
    }
    if (!oldest) return false;
    drop(e, oldest);
    return true;
}

void is_prefix_free_all(is_llama *e)
{
    for (int i = 0; i < PREFIX_MAX; i++)
        if (e->prefixes[i].tokens) drop(e, &e->prefixes[i]);
}
