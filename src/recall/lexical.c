/* lexical.c - postings and BM25.
 *
 * A term's postings are pairs (document, count) in document order. Terms are found by a hash table of term numbers (open
 * addressing, at most half full); their bytes lie in one arena. */
#include "recall/lexical.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/sort.h"

/* Chosen on the five LoCoMo development conversations, where all of k1 0.9 to 2.0 and b 0.2 to 0.75 lie within 0.8 points. */
static const double BM25_K1 = 0.9, BM25_B = 0.4;

typedef struct posting { uint32_t doc, count; } posting;

typedef struct term {
    size_t at;                     /* bytes in the arena */
    uint32_t len, n, cap;
    uint32_t df[IS_LEX_GROUPS];
    posting *postings;             /* [n] */
} term;

typedef struct doc { uint32_t len; uint8_t group; } doc;

struct is_lexical {
    is_terms *tokeniser;           /* of the appending thread */
    char *arena; size_t arena_len, arena_cap;
    term *terms; uint32_t n_terms, cap_terms;
    uint32_t *slots, n_slots;      /* term number + 1; 0 = free */
    doc *docs; size_t n_docs, cap_docs;
    uint64_t len_sum[IS_LEX_GROUPS];
    uint32_t doc_sum[IS_LEX_GROUPS];
    size_t posting_bytes;
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the word index; free some and try again");
}

/* Makes room for `want` elements; doubles. */
static is_status grow(void *array, size_t *cap, size_t want, size_t size)
{
    void **p = array;
    if (want <= *cap) return INFERSCALE_OK;
    size_t next = *cap ? *cap * 2 : 16;
    if (next < want) next = want;
    void *q = next > SIZE_MAX / size ? NULL : is_realloc(*p, next * size);
    if (!q) return no_memory();
    *p = q;
    *cap = next;
    return INFERSCALE_OK;
}

is_status is_lexical_new(is_lexical **out)
{
    is_lexical *x = is_calloc(1, sizeof *x);
    *out = NULL;
    if (!x) return no_memory();
    x->n_slots = 1024;
    x->slots = is_calloc(x->n_slots, sizeof *x->slots);
    is_status st = x->slots ? is_terms_new(&x->tokeniser) : no_memory();
    if (st != INFERSCALE_OK) {
        is_lexical_free(x);
        return st;
    }
    *out = x;
    return INFERSCALE_OK;
}

void is_lexical_free(is_lexical *x)
{
    if (!x) return;
    for (uint32_t i = 0; i < x->n_terms; i++) is_free(x->terms[i].postings);
    is_terms_free(x->tokeniser);
    is_free(x->arena);
    is_free(x->terms);
    is_free(x->slots);
    is_free(x->docs);
    is_free(x);
}

/* The slot of a term: its own, or the free one where it belongs. */
static uint32_t slot_of(const is_lexical *x, const char *s, size_t n)
{
    uint32_t i = (uint32_t)is_checksum(s, n) & (x->n_slots - 1);
    while (x->slots[i]) {
        const term *t = &x->terms[x->slots[i] - 1];
        if (t->len == n && memcmp(x->arena + t->at, s, n) == 0) break;
        i = (i + 1) & (x->n_slots - 1);
    }
    return i;
}

static is_status rehash(is_lexical *x)
{
    uint32_t *old = x->slots;
    if (x->n_slots > UINT32_MAX / 4) return no_memory();
    uint32_t *slots = is_calloc((size_t)x->n_slots * 2, sizeof *slots);
    if (!slots) return no_memory();
    x->slots = slots;
    x->n_slots *= 2;
    for (uint32_t i = 0; i < x->n_terms; i++) x->slots[slot_of(x, x->arena + x->terms[i].at, x->terms[i].len)] = i + 1;
    is_free(old);
    return INFERSCALE_OK;
}

static is_status new_term(is_lexical *x, const char *s, size_t n, uint32_t slot)
{
    size_t cap = x->cap_terms;
    IS_TRY(grow(&x->arena, &x->arena_cap, x->arena_len + n, 1));
    IS_TRY(grow(&x->terms, &cap, (size_t)x->n_terms + 1, sizeof *x->terms));
    x->cap_terms = (uint32_t)cap;
    memcpy(x->arena + x->arena_len, s, n);
    x->terms[x->n_terms] = (term){.at = x->arena_len, .len = (uint32_t)n};
    x->arena_len += n;
    x->slots[slot] = ++x->n_terms;
    return INFERSCALE_OK;
}

static is_status add_term(void *ctx, const char *s, size_t n)
{
    is_lexical *x = ctx;
    uint32_t d = (uint32_t)x->n_docs, slot;
    doc *dc = &x->docs[d];

    if (x->n_terms >= x->n_slots / 2) IS_TRY(rehash(x));
    slot = slot_of(x, s, n);
    if (!x->slots[slot]) IS_TRY(new_term(x, s, n, slot));
    term *t = &x->terms[x->slots[slot] - 1];
    dc->len++;
    if (t->n && t->postings[t->n - 1].doc == d) {
        t->postings[t->n - 1].count++;
        return INFERSCALE_OK;
    }
    size_t cap = t->cap;
    IS_TRY(grow(&t->postings, &cap, (size_t)t->n + 1, sizeof *t->postings));
    x->posting_bytes += (cap - t->cap) * sizeof *t->postings;
    t->cap = (uint32_t)cap;
    t->postings[t->n++] = (posting){.doc = d, .count = 1};
    t->df[dc->group]++;
    return INFERSCALE_OK;
}

is_status is_lexical_add(is_lexical *x, unsigned group, const char *const *texts, size_t n)
{
    if (group >= IS_LEX_GROUPS) return is_fail(INFERSCALE_E_INVALID, "document group %u does not exist; use 0 or 1", group);
    if (x->n_docs >= UINT32_MAX - 1) return is_fail(INFERSCALE_E_FULL, "the word index is full; split the partition");
    IS_TRY(grow(&x->docs, &x->cap_docs, x->n_docs + 1, sizeof *x->docs));
    x->docs[x->n_docs] = (doc){.group = (uint8_t)group};
    for (size_t i = 0; i < n; i++)
        if (texts[i]) IS_TRY(is_terms_each(x->tokeniser, texts[i], strlen(texts[i]), add_term, x));
    x->len_sum[group] += x->docs[x->n_docs].len;
    x->doc_sum[group]++;
    x->n_docs++;
    return INFERSCALE_OK;
}

size_t is_lexical_docs(const is_lexical *x)
{
    return x->n_docs;
}

size_t is_lexical_bytes(const is_lexical *x)
{
    return sizeof *x + x->arena_cap + x->cap_terms * sizeof *x->terms + x->n_slots * sizeof *x->slots +
           x->cap_docs * sizeof *x->docs + x->posting_bytes;
}

/* ---- Scoring ------------------------------------------------------------------------------------------------------------- */

typedef struct wanted {
    const is_lexical *x;
    uint64_t *terms;  /* the query's: a number of the index's, or UNKNOWN and a checksum */
    size_t n, cap;
} wanted;

static const uint64_t UNKNOWN = (uint64_t)1 << 63;
static const double AS_IF = 30, OTHERS = 2; /* documents; see rarity */

static is_status want_term(void *ctx, const char *s, size_t n)
{
    wanted *w = ctx;
    uint32_t t = w->x->slots[slot_of(w->x, s, n)];

    IS_TRY(grow(&w->terms, &w->cap, w->n + 1, sizeof *w->terms));
    w->terms[w->n++] = t ? t - 1 : UNKNOWN | is_checksum(s, n);
    return INFERSCALE_OK;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Distinct, in the order of their numbers: unknown ones last. */
static void make_distinct(wanted *w)
{
    size_t n = 0;

    if (w->n) is_sort(w->terms, w->n, sizeof *w->terms, by_number);
    for (size_t i = 0; i < w->n; i++)
        if (n == 0 || w->terms[i] != w->terms[n - 1]) w->terms[n++] = w->terms[i];
    w->n = n;
}

static void score_term(const is_lexical *x, const term *t, double *scores)
{
    double idf[IS_LEX_GROUPS], mean[IS_LEX_GROUPS];
    for (unsigned g = 0; g < IS_LEX_GROUPS; g++) {
        double n = x->doc_sum[g], df = t->df[g];
        idf[g] = log(1 + (n - df + 0.5) / (df + 0.5));
        mean[g] = x->doc_sum[g] && x->len_sum[g] ? (double)x->len_sum[g] / x->doc_sum[g] : 1;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        const doc *d = &x->docs[t->postings[i].doc];
        double tf = t->postings[i].count;
        scores[t->postings[i].doc] +=
            idf[d->group] * tf * (BM25_K1 + 1) / (tf + BM25_K1 * (1 - BM25_B + BM25_B * d->len / mean[d->group]));
    }
}

/* As if there were AS_IF more documents without the term: in a memory of three facts a word that
 * two of them have is no common one. But what nearly all of the others have, as the name of the
 * only person whom a memory is about, tells nothing however few there are: a term counts by the
 * share of the other documents that lack it, as if there were OTHERS more of those. */
static double rarity(const is_lexical *x, unsigned group, uint64_t which)
{
    const double n = x->doc_sum[group], df = which & UNKNOWN ? 0 : x->terms[which].df[group];
    const double rare = log(1 + (n + AS_IF - df + 0.5) / (df + 0.5));

    return df > 1 ? rare * (1 - (df - 1) / (n - 1 + OTHERS)) : rare;
}

static void share_out(const is_lexical *x, const wanted *w, double *shares)
{
    double whole[IS_LEX_GROUPS] = { 0 }, rare[IS_LEX_GROUPS];

    memset(shares, 0, x->n_docs * sizeof *shares);
    for (size_t i = 0; i < w->n; i++) {
        const uint64_t t = w->terms[i];
        const term *known = t & UNKNOWN ? NULL : &x->terms[t];

        for (unsigned g = 0; g < IS_LEX_GROUPS; g++) whole[g] += rare[g] = rarity(x, g, t);
        for (uint32_t p = 0; known && p < known->n; p++)
            shares[known->postings[p].doc] += rare[x->docs[known->postings[p].doc].group];
    }
    for (size_t d = 0; d < x->n_docs && w->n; d++) shares[d] = fmin(1, shares[d] / whole[x->docs[d].group]);
}

static void gather(const is_lexical *x, const wanted *w, uint32_t *companies)
{
    for (size_t d = 0; d < x->n_docs; d++) companies[d] = x->docs[d].group;
    for (size_t i = 0; i < w->n && !(w->terms[i] & UNKNOWN); i++) {
        const term *t = &x->terms[w->terms[i]];

        for (uint32_t p = 0; p < t->n; p++) {
            const uint32_t d = t->postings[p].doc, g = x->docs[d].group;
            const uint32_t had = companies[d] / IS_LEX_GROUPS;

            if (had && x->terms[w->terms[had - 1]].df[g] >= t->df[g]) continue;
            companies[d] = (uint32_t)(i + 1) * IS_LEX_GROUPS + g;
        }
    }
}

is_status is_lexical_score(const is_lexical *x, const char *query, double *scores, double *shares,
                           uint32_t *companies)
{
    wanted w = {.x = x};
    is_terms *tokeniser = NULL; /* stemmers keep state: one for this call */

    memset(scores, 0, x->n_docs * sizeof *scores);
    IS_TRY(is_terms_new(&tokeniser));
    is_status st = is_terms_each(tokeniser, query, strlen(query), want_term, &w);
    is_terms_free(tokeniser);
    if (st == INFERSCALE_OK) {
        make_distinct(&w);
        for (size_t i = 0; i < w.n && !(w.terms[i] & UNKNOWN); i++) score_term(x, &x->terms[w.terms[i]], scores);
        if (shares) share_out(x, &w, shares);
        if (companies) gather(x, &w, companies);
    }
    is_free(w.terms);
    return st;
}
