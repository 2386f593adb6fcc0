#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "support/recall_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- A random memory that the test knows by heart ------------------------------------------------------------------------ */

static const char *const agents[] = {"", "planner", "critic"};

void rw_random_vector(unsigned long long *seed, float *v)
{
    double square = 0;
    for (int d = 0; d < DIM; d++) {
        v[d] = (float)scratch_below(seed, 2001) / 1000 - 1;
        square += v[d] * v[d];
    }
    for (int d = 0; d < DIM; d++) v[d] = (float)(v[d] / sqrt(square));
}

static void write_text(const thing *t, char *out)
{
    *out = 0;
    for (int i = 0; i < t->n_words; i++) sprintf(out + strlen(out), "zq%dk ", t->words[i]);
}

/* Adds one random item to the bank (and its vector, three times of four). */
void rw_add_thing(bank_kit *k, world *w, bool vectors)
{
    thing *t = &w->t[w->n++];
    char text[MAX_LEN * 8], metadata[40];
    float v[DIM];

    memset(t, 0, sizeof *t);
    t->kind = scratch_below(&w->seed, 2) ? INFERSCALE_TURNS : INFERSCALE_FACTS;
    t->time = 1700000000 + (int64_t)scratch_below(&w->seed, 1000) * 86400 / 10;
    t->n_words = 2 + (int)scratch_below(&w->seed, MAX_LEN - 2);
    for (int i = 0; i < t->n_words; i++) t->words[i] = (int)(scratch_below(&w->seed, WORDS) * scratch_below(&w->seed,
            WORDS) / WORDS);
    t->agent = (int)scratch_below(&w->seed, 3);
    t->colour = (int)scratch_below(&w->seed, 3);
    t->expired = t->kind == INFERSCALE_FACTS && scratch_below(&w->seed, 10) == 0;
    write_text(t, text);
    inferscale_scope scope = {.user = "anna", .agent = agents[t->agent]};
    if (t->kind == INFERSCALE_FACTS) {
        inferscale_event event;
        /* a serial number as a word, since equal facts are one fact; nobody asks for it */
        sprintf(text + strlen(text), "serial%d", w->n);
        sprintf(metadata, "{\"colour\":%d}", t->colour);
        inferscale_fact f = {.text = text, .event_time = t->time, .metadata = metadata, .expires = t->expired ? 1700000001 : 0};
        OK(is_bank_add_facts(k->bank, &k->pa, &scope, &f, 1, &event));
        t->id = event.id;
    } else {
        inferscale_turn turn = {.conversation = "c", .speaker = "zsk", .text = text, .time = t->time};
        OK(is_bank_add_turns(k->bank, &k->pa, &scope, &turn, 1, &t->id));
    }
    if (!vectors || scratch_below(&w->seed, 4) == 0) return;
    rw_random_vector(&w->seed, v);
    is_quantize_i8(v, DIM, t->q, &t->scale);
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, t->id, 1, t->q, DIM, t->scale));
    t->has_vector = true;
}

/* ---- Brute force --------------------------------------------------------------------------------------------------------- */

static const thing *previous_turn(const world *w, const thing *t)
{
    for (const thing *p = t - 1; p >= w->t; p--)
        if (p->kind == INFERSCALE_TURNS) return p;
    return NULL;
}

/* Terms in the lexical key: date (3), then a fact's words and serial number, or the previous turn's speaker and words and its
 * own. */
static int key_length(const world *w, const thing *t)
{
    if (t->kind == INFERSCALE_FACTS) return 3 + t->n_words + 1;
    const thing *p = previous_turn(w, t);
    return 3 + (p ? 1 + p->n_words : 0) + 1 + t->n_words;
}

static int key_count(const world *w, const thing *t, int word)
{
    const thing *p = t->kind == INFERSCALE_TURNS ? previous_turn(w, t) : NULL;
    int n = 0;
    for (int i = 0; i < t->n_words; i++) n += t->words[i] == word;
    for (int i = 0; p && i < p->n_words; i++) n += p->words[i] == word;
    return n;
}

static double plain_bm25(const world *w, const thing *t, const int *query, int n_query)
{
    double n = 0, sum = 0, score = 0;
    for (int i = 0; i < w->n; i++)
        if (w->t[i].kind == t->kind) n++, sum += key_length(w, &w->t[i]);
    for (int q = 0; q < n_query; q++) {
        double df = 0, tf = key_count(w, t, query[q]);
        for (int i = 0; i < w->n; i++) df += w->t[i].kind == t->kind && key_count(w, &w->t[i], query[q]) > 0;
        if (tf > 0) score += log(1 + (n - df + 0.5) / (df + 0.5)) * tf * 1.9 / (tf + 0.9 * (0.6 + 0.4 * key_length(w,
                t) / (sum / n)));
    }
    return score;
}

typedef struct scored { const thing *t; double lexical, dense, score; bool candidate; } scored;

static int by_lexical(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->lexical != y->lexical ? (x->lexical < y->lexical ? 1 : -1) : (x->t > y->t) - (x->t < y->t);
}

static int by_dense(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->dense != y->dense ? (x->dense < y->dense ? 1 : -1) : (x->t > y->t) - (x->t < y->t);
}

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->candidate != y->candidate) return x->candidate ? -1 : 1;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : (x->t > y->t) - (x->t < y->t);
}

/* Adds the fused score, written down apart from src/recall/fuse.c: the words' z, and as much again as is known of the vector's, for
 * the rest a quarter of the words'. */
static void fuse_plainly(scored *s, int n)
{
    double sum[2] = {0}, square[2] = {0}, m[2] = {0}, z[2];

    for (int i = 0; i < n; i++)
        for (int side = 0; side < 2; side++)
            if (s[i].candidate && (!side || s[i].t->has_vector)) sum[side] += side ? s[i].dense : s[i].lexical, m[side]++;
    for (int i = 0; i < n; i++)
        for (int side = 0; side < 2; side++)
            if (s[i].candidate && (!side || s[i].t->has_vector))
                square[side] += pow((side ? s[i].dense : s[i].lexical) - sum[side] / m[side], 2);
    double trust = m[1] < 2 ? 0 : m[1] / (m[1] + fmin(m[0] - m[1], 4));
    for (int i = 0; i < n; i++) {
        double known = s[i].t->has_vector ? trust : 0;
        for (int side = 0; side < 2; side++)
            z[side] = m[side] < 2 || square[side] / m[side] < 1e-24 ? 0 : ((side ? s[i].dense : s[i].lexical) - sum[side] / m[side]) /
                                                                             sqrt(square[side] / m[side]);
        s[i].score = z[0] + (m[1] > 0 ? known * z[1] + (1 - known) * 0.25 * z[0] : 0);
    }
}

/* The expected ranking into s[]; returns how many. */
static int brute_force(const world *w, const int *query, int n_query, const float *vec, int method, int k, int kinds,
                       keep_fn keep, scored *s)
{
    int n = 0, m = method == INFERSCALE_FUSED && k < 100 ? 100 : k, found = 0;
    int8_t q[DIM];
    float scale;

    is_quantize_i8(vec, DIM, q, &scale);
    for (int i = 0; i < w->n; i++) {
        const thing *t = &w->t[i];
        int64_t dot = 0;
        if (!(t->kind & kinds) || t->expired || (keep && !keep(t))) continue;
        for (int d = 0; d < DIM; d++) dot += (int64_t)q[d] * t->q[d];
        s[n++] = (scored){t, plain_bm25(w, t, query, n_query), t->has_vector ? (double)((float)dot * scale * t->scale) : -9,
                          0, false};
    }
    if (method != INFERSCALE_DENSE) {
        qsort(s, (size_t)n, sizeof *s, by_lexical);
        for (int i = 0; i < n && i < m; i++) s[i].candidate |= s[i].lexical > 0;
    }
    if (method != INFERSCALE_LEXICAL) {
        int embedded = 0, places = m;
        for (int i = 0; i < n; i++) embedded += s[i].t->has_vector;
        if (method == INFERSCALE_FUSED) places = n ? ((m < w->n ? m : w->n) * embedded + n - 1) / n : 0; /* the embedded share */
        qsort(s, (size_t)n, sizeof *s, by_dense);
        for (int i = 0; i < n && i < places; i++) s[i].candidate |= s[i].t->has_vector;
    }
    if (method == INFERSCALE_FUSED) fuse_plainly(s, n);
    for (int i = 0; i < n; i++) {
        if (method != INFERSCALE_FUSED) s[i].score = method == INFERSCALE_DENSE ? s[i].dense : s[i].lexical;
        found += s[i].candidate;
    }
    qsort(s, (size_t)n, sizeof *s, by_score);
    return found < k ? found : k;
}

/* ---- Asking -------------------------------------------------------------------------------------------------------------- */

void rw_random_ask(world *w, ask *a)
{
    a->n_words = 1 + (int)scratch_below(&w->seed, 3);
    a->text[0] = 0;
    for (int i = 0; i < a->n_words; i++) {
        a->words[i] = i * 13 + (int)scratch_below(&w->seed, 13); /* distinct */
        sprintf(a->text + strlen(a->text), "%sZQ%dK", i ? ", " : "the ", a->words[i]);
    }
    rw_random_vector(&w->seed, a->vec);
}

is_status rw_ask(is_recall *r, const is_partition *p, const ask *a, const inferscale_recall_options *o,
                         const inferscale_scope *scope, is_hit **hits, size_t *n, size_t *n_unembedded)
{
    is_query q = {.text = a->text, .vec = a->vec, .dim = DIM, .fingerprint = kit_model, .scope = scope, .options = o};
    return is_recall_query(r, p, &q, hits, n, n_unembedded);
}

void rw_compare(const world *w, const ask *a, const inferscale_recall_options *o, keep_fn keep, const is_hit *hits,
                    size_t n)
{
    scored *s = is_malloc(ITEMS * sizeof *s);
    int want = brute_force(w, a->words, a->n_words, a->vec, o->method, (int)o->k, o->kinds, keep, s);

    assert_int_equal(n, want);
    for (int i = 0; i < want; i++) {
        assert_true(fabs(hits[i].fused - s[i].score) < 1e-6);
        if (hits[i].id != s[i].t->id) { /* only rounding may swap two */
            print_message("rank %d: id %lld for %lld\n", i, (long long)hits[i].id, (long long)s[i].t->id);
            bool next_ties = i + 1 < want && fabs(s[i + 1].score - s[i].score) < 1e-9;
            assert_true(next_ties || (i > 0 && fabs(s[i - 1].score - s[i].score) < 1e-9));
            continue;
        }
        assert_int_equal(hits[i].kind, s[i].t->kind);
        assert_true(fabs(hits[i].lexical - s[i].lexical) < 1e-9);
        assert_true(fabs(hits[i].dense - (s[i].t->has_vector ? s[i].dense : 0)) < 1e-6);
    }
    is_free(s);
}

world *rw_make(bank_kit *k, int n, const char *name)
{
    world *w = is_calloc(1, sizeof *w);
    w->seed = scratch_seed(name);
    while (w->n < n) rw_add_thing(k, w, true);
    return w;
}

size_t rw_search_words(is_recall *r, const is_partition *p, const char *text, inferscale_recall_options o, int64_t *first)
{
    is_query q = {.text = text, .options = &o};
    is_hit *hits;
    size_t n;

    OK(is_recall_query(r, p, &q, &hits, &n, NULL));
    *first = n ? hits[0].id : 0;
    is_free(hits);
    return n;
}
