/* What must hold of recall: it ranks as plain brute force does, filters come before top-k, partitions do not touch each other,
 * and the index that followed the bank equals one built anew, whoever wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "embed/embed.h"
#include "recall/fuse.h"
#include "recall/recall.h"
#include "support/bank_kit.h"

enum { ITEMS = 400, DIM = 24, WORDS = 40, MAX_LEN = 14 };

/* ---- A random memory that the test knows by heart ------------------------------------------------------------------------ */

typedef struct thing {
    int64_t id, time;
    int kind, n_words, words[MAX_LEN], agent, colour, expired;
    bool has_vector;
    int8_t q[DIM];
    float scale;
} thing;

typedef struct world {
    thing t[ITEMS];
    int n;
    unsigned long long seed;
} world;

static const char *const agents[] = {"", "planner", "critic"};

static void random_vector(unsigned long long *seed, float *v)
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
static void add_thing(bank_kit *k, world *w, bool vectors)
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
    random_vector(&w->seed, v);
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

typedef bool (*keep_fn)(const thing *t);

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

typedef struct ask {
    int words[3], n_words;
    float vec[DIM];
    char text[64];
} ask;

static void random_ask(world *w, ask *a)
{
    a->n_words = 1 + (int)scratch_below(&w->seed, 3);
    a->text[0] = 0;
    for (int i = 0; i < a->n_words; i++) {
        a->words[i] = i * 13 + (int)scratch_below(&w->seed, 13); /* distinct */
        sprintf(a->text + strlen(a->text), "%sZQ%dK", i ? ", " : "the ", a->words[i]);
    }
    random_vector(&w->seed, a->vec);
}

static is_status run_ask(is_recall *r, const is_partition *p, const ask *a, const inferscale_recall_options *o,
                         const inferscale_scope *scope, is_hit **hits, size_t *n, size_t *n_unembedded)
{
    is_query q = {.text = a->text, .vec = a->vec, .dim = DIM, .fingerprint = kit_model, .scope = scope, .options = o};
    return is_recall_query(r, p, &q, hits, n, n_unembedded);
}

static void compare(const world *w, const ask *a, const inferscale_recall_options *o, keep_fn keep, const is_hit *hits,
                    size_t n)
{
    scored *s = is_malloc(ITEMS * sizeof *s);
    int want = brute_force(w, a->words, a->n_words, a->vec, o->method, (int)o->k, o->kinds, keep, s);

    assert_int_equal(n, want);
    for (int i = 0; i < want; i++) {
        assert_true(fabs(hits[i].score - s[i].score) < 1e-6);
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

static world *make_world(bank_kit *k, int n, const char *name)
{
    world *w = is_calloc(1, sizeof *w);
    w->seed = scratch_seed(name);
    while (w->n < n) add_thing(k, w, true);
    return w;
}

/* ---- What must hold ------------------------------------------------------------------------------------------------------ */

static void equals_brute_force(void **state)
{
    static const uint32_t ks[] = {1, 10, 99, 150, 1000};
    bank_kit *k = *state;
    world *w = make_world(k, ITEMS, "brute force");
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    for (int round = 0; round < 12; round++)
        for (int method = 0; method < 3; method++)
            for (int kinds = 1; kinds <= 3; kinds++) {
                inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
                is_hit *hits;
                size_t n, unembedded, want = 0;
                ask a;
                random_ask(w, &a);
                o.k = ks[scratch_below(&w->seed, 5)];
                o.method = method;
                o.kinds = kinds;
                OK(run_ask(r, &k->pa, &a, &o, NULL, &hits, &n, &unembedded));
                compare(w, &a, &o, NULL, hits, n);
                for (int i = 0; i < w->n; i++) want += (w->t[i].kind & kinds) && !w->t[i].has_vector;
                assert_int_equal(unembedded, want);
                is_free(hits);
            }
    is_recall_free(r);
    is_free(w);
}

/* The fused rank (0 = best) of item 0, and its score. */
static int rank_of_first(const double *lexical, const float *dense, size_t n, double *score)
{
    bool keep[256];
    is_ranked *ranked = NULL;
    size_t n_out = 0, rank = n;

    memset(keep, 1, sizeof keep);
    OK(is_fuse(lexical, dense, keep, n, INFERSCALE_FUSED, n, &ranked, &n_out));
    for (size_t i = 0; i < n_out; i++)
        if (ranked[i].item == 0) rank = i, *score = ranked[i].score;
    is_free(ranked);
    return (int)rank;
}

/* Item 0 holds the question's words best and has no vector yet; a few that hold one of the words have one, far from the question. None
 * of these may come before it, however the far ones lie among one another. */
static void few_far_vectors_do_not_outrank_the_words(void **state)
{
    unsigned long long seed = scratch_seed("few vectors");
    int first = 0, rounds = 0;
    double lexical[200], score;
    float dense[200];

    (void)state;
    for (size_t n_embedded = 1; n_embedded <= 20; n_embedded++)
        for (int round = 0; round < 100; round++) {
            const size_t n = 2 * n_embedded + 10;

            lexical[0] = 8;
            dense[0] = NAN;
            for (size_t i = 1; i < n; i++) {
                lexical[i] = scratch_below(&seed, 600) / 100.0;
                dense[i] = i <= n_embedded ? (float)scratch_below(&seed, 1000) / 10000 - 0.05f : NAN; /* all nearly at right angles */
            }
            first += rank_of_first(lexical, dense, n, &score) == 0;
            rounds++;
        }
    printf("first in %d of %d\n", first, rounds);
    assert_true(first >= rounds * 99 / 100);

    const double words[5] = {8, 5, 4.5, 7, 4}; /* the smallest such case: the best of three far vectors won */
    const float far[5] = {NAN, -0.02f, 0.001f, 0.06f, NAN};
    assert_int_equal(rank_of_first(words, far, 5, &score), 0);
}

/* With the last vector the rule is the sum of two z-scores, and one vector that is missing changes little. */
static void with_all_vectors_it_is_the_plain_sum(void **state)
{
    const double lexical[4] = {3, 0, 1, 0};
    const float dense[4] = {0.5f, 0.25f, 0, 0.25f};
    double score;

    (void)state;
    assert_int_equal(rank_of_first(lexical, dense, 4, &score), 0);
    assert_true(fabs(score - (2 / sqrt(1.5) + 0.25 / sqrt(0.03125))) < 1e-6);
    assert_int_equal(rank_of_first(lexical, NULL, 4, &score), 0);
    assert_true(fabs(score - (3 - 2) / 1.0) < 1e-6); /* words alone, over the two that hold one */
}

static bool keep_planner(const thing *t) { return t->agent == 1; }
static bool keep_window(const thing *t) { return t->time >= 1700000000 + 86400 * 20 && t->time <= 1700000000 + 86400 * 60; }
static bool keep_colour(const thing *t) { return t->kind == INFERSCALE_FACTS && t->colour == 2; }
static bool keep_all_three(const thing *t) { return keep_planner(t) && keep_window(t) && keep_colour(t); }

static void filters_come_before_top_k(void **state)
{
    bank_kit *k = *state;
    world *w = make_world(k, ITEMS, "filters");
    const inferscale_scope planner = {.user = "anna", .agent = "planner"}, nobody = {.user = "anna", .agent = "nobody"};
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    for (int round = 0; round < 10; round++) {
        const keep_fn keeps[] = {keep_planner, keep_window, keep_colour, keep_all_three};
        for (int f = 0; f < 5; f++) {
            inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
            is_hit *hits;
            size_t n;
            ask a;
            random_ask(w, &a);
            o.k = f == 3 ? 1000 : 10;
            o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
            if (f == 1 || f == 3) o.from = 1700000000 + 86400 * 20, o.to = 1700000000 + 86400 * 60;
            if (f == 2 || f == 3) o.metadata = "{\"colour\":2}";
            OK(run_ask(r, &k->pa, &a, &o, f == 4 ? &nobody : f == 0 || f == 3 ? &planner : NULL, &hits, &n, NULL));
            if (f == 4) assert_int_equal(n, 0);
            else compare(w, &a, &o, keeps[f], hits, n);
            if (f < 3) assert_int_equal(n, 10); /* enough match: a filter does not cost results */
            is_free(hits);
        }
    }
    is_recall_free(r);
    is_free(w);
}

static size_t search_words(is_recall *r, const is_partition *p, const char *text, inferscale_recall_options o, int64_t *first)
{
    is_query q = {.text = text, .options = &o};
    is_hit *hits;
    size_t n;

    OK(is_recall_query(r, p, &q, &hits, &n, NULL));
    *first = n ? hits[0].id : 0;
    is_free(hits);
    return n;
}

static void validity_and_expiry(void **state)
{
    bank_kit *k = *state;
    int64_t now = is_now_epoch(), id;
    inferscale_fact facts[] = {
        {.text = "boat moored north", .event_time = now - 1000, .valid_to = now - 500},
        {.text = "boat moored south", .event_time = now - 500},
        {.text = "boat moored east", .event_time = now - 10, .expires = now - 5},
        {.text = "boat moored west", .event_time = now - 10, .valid_from = now + 5000},
    };
    inferscale_event e[4];
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, facts, 4, e));
    assert_int_equal(search_words(r, &k->pa, "boat", o, &id), 1);
    assert_int_equal(id, e[1].id);
    o.as_of = now - 700;
    assert_int_equal(search_words(r, &k->pa, "boat", o, &id), 1);
    assert_int_equal(id, e[0].id);
    o.as_of = now - 500; /* closed at this very second, and open from it on */
    assert_int_equal(search_words(r, &k->pa, "boat", o, &id), 1);
    assert_int_equal(id, e[1].id);
    o.as_of = now + 5000;
    assert_int_equal(search_words(r, &k->pa, "boat", o, &id), 2);
    o.as_of = now - 5000;
    assert_int_equal(search_words(r, &k->pa, "boat", o, &id), 0);
    is_recall_free(r);
}

static void threshold_cuts_the_tail(void **state)
{
    bank_kit *k = *state;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = {.text = "lake boat", .options = &o};
    is_hit *all, *some;
    size_t n_all, n_some;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    kit_fact(k, &k->pa, &k->anna, "a boat on the lake");
    kit_fact(k, &k->pa, &k->anna, "a house by the lake");
    kit_fact(k, &k->pa, &k->anna, "the lake in winter is frozen and quiet and white");
    OK(is_recall_query(r, &k->pa, &q, &all, &n_all, NULL));
    assert_int_equal(n_all, 3);
    o.has_threshold = 1;
    o.threshold = all[1].score;
    OK(is_recall_query(r, &k->pa, &q, &some, &n_some, NULL));
    assert_int_equal(n_some, 2);
    assert_int_equal(some[1].id, all[1].id);
    is_free(all);
    is_free(some);
    is_recall_free(r);
}

/* Same scores to the last bit, whatever is in another partition. */
static void partitions_do_not_touch(void **state)
{
    bank_kit *k = *state;
    world *w = make_world(k, 120, "isolation");
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_hit *before, *after;
    size_t n, m;
    is_recall *r;
    ask a;

    OK(is_recall_new(k->bank, &r));
    random_ask(w, &a);
    o.k = 1000;
    o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
    OK(run_ask(r, &k->pa, &a, &o, NULL, &before, &n, NULL));
    for (int i = 0; i < 60; i++) {
        char text[160];
        float v[DIM], scale;
        int8_t q[DIM];
        sprintf(text, "%s %s other%d", a.text, a.text, i);
        int64_t id = kit_fact(k, &k->pb, &k->ben, text);
        random_vector(&w->seed, v);
        is_quantize_i8(v, DIM, q, &scale);
        OK(is_bank_put_embedding(k->bank, &k->pb, kit_model, id, 1, q, DIM, scale));
        if (i == 30) { /* the other index is alive too */
            is_hit *theirs;
            OK(run_ask(r, &k->pb, &a, &o, NULL, &theirs, &m, NULL));
            assert_int_equal(m, 31);
            for (size_t h = 0; h < m; h++)
                for (int t = 0; t < w->n; t++) assert_int_not_equal(theirs[h].id, w->t[t].id);
            is_free(theirs);
        }
    }
    OK(run_ask(r, &k->pa, &a, &o, NULL, &after, &m, NULL));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(before[i].id, after[i].id);
        assert_true(before[i].score == after[i].score && before[i].lexical == after[i].lexical &&
                    before[i].dense == after[i].dense);
    }
    is_free(before);
    is_free(after);
    is_recall_free(r);
    is_free(w);
}

/* Both indexes give the same hits, bit for bit. */
static void same(is_recall *r, is_recall *s, const bank_kit *k, world *w)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_hit *x, *y;
    size_t n, m;
    ask a;

    o.k = 1000;
    o.kinds = INFERSCALE_FACTS | INFERSCALE_TURNS;
    random_ask(w, &a);
    OK(run_ask(r, &k->pa, &a, &o, NULL, &x, &n, NULL));
    OK(run_ask(s, &k->pa, &a, &o, NULL, &y, &m, NULL));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(x[i].id, y[i].id);
        assert_true(x[i].score == y[i].score && x[i].lexical == y[i].lexical && x[i].dense == y[i].dense);
    }
    is_free(x);
    is_free(y);
}

static void followed_equals_rebuilt(void **state)
{
    bank_kit *k = *state;
    world *w = make_world(k, 5, "incremental");
    is_recall *followed, *fresh;

    OK(is_recall_new(k->bank, &followed));
    for (int round = 0; round < 25; round++) {
        unsigned what = scratch_below(&w->seed, 6);
        if (what == 0) {
            OK(is_bank_forget(k->bank, &k->pa, &w->t[scratch_below(&w->seed, (unsigned)w->n)].id, 1, NULL, NULL, NULL));
        } else if (what == 1) { /* a vector that came late */
            const thing *t = &w->t[scratch_below(&w->seed, (unsigned)w->n)];
            int8_t q[DIM] = {1, 2, 3};
            is_status st = is_bank_put_embedding(k->bank, &k->pa, kit_model, t->id, 1, q, DIM, 0.01f);
            assert_true(st == INFERSCALE_OK || st == INFERSCALE_E_NOTFOUND);
            is_recall_forget(followed, t->has_vector ? k->pa.id : 0); /* a held vector that is replaced is the next test's */
        } else {
            for (unsigned i = scratch_below(&w->seed, 12); i > 0 && w->n < ITEMS; i--) add_thing(k, w, what != 2);
        }
        OK(is_recall_new(k->bank, &fresh));
        for (int i = 0; i < 3; i++) same(followed, fresh, k, w);
        is_recall_free(fresh);
    }
    is_recall_free(followed);
    is_free(w);
}

/* What another process writes is seen; what it changes or forgets is not found by its old words. */
static void other_processes_are_seen(void **state)
{
    bank_kit *k = *state;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    int64_t first, id = kit_fact(k, &k->pa, &k->anna, "the zebra sleeps");
    int status;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    assert_int_equal(search_words(r, &k->pa, "zebra", o, &first), 1);
    for (int step = 0; step < 3; step++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) { /* its own handle; the inherited one is not touched */
            is_bank *b;
            is_partition p;
            is_status st = is_bank_open(k->path, false, &b);
            inferscale_fact f = {.text = step == 0 ? "the giraffe eats" : "the okapi sleeps"};
            if (st == INFERSCALE_OK) st = is_bank_partition(b, &k->anna, false, &p);
            if (st == INFERSCALE_OK && step == 0) st = is_bank_add_facts(b, &p, &k->anna, &f, 1, NULL);
            if (st == INFERSCALE_OK && step == 1) st = is_bank_update_fact(b, &p, id, &f, NULL);
            if (st == INFERSCALE_OK && step == 2) st = is_bank_forget(b, &p, &id, 1, NULL, NULL, NULL);
            _exit((int)st);
        }
        assert_true(child > 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(search_words(r, &k->pa, "giraffe", o, &first), 1);
        assert_int_equal(search_words(r, &k->pa, "zebra", o, &first), step == 0);
        assert_int_equal(search_words(r, &k->pa, "okapi", o, &first), step == 1);
    }
    is_recall_free(r);
}

static void another_embedder_is_another_view(void **state)
{
    bank_kit *k = *state;
    int64_t a = kit_fact(k, &k->pa, &k->anna, "first"), b = kit_fact(k, &k->pa, &k->anna, "second");
    const int8_t east[4] = {127, 0, 0, 0}, north[2] = {0, 127};
    const float v4[4] = {1, 0, 0, 0}, v2[2] = {0, 1};
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = {.text = "?", .options = &o};
    is_hit *hits;
    size_t n, unembedded;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_model, a, 1, east, 4, 1 / 127.0f));
    OK(is_bank_put_embedding(k->bank, &k->pa, kit_other_model, b, 1, north, 2, 1 / 127.0f));
    o.method = INFERSCALE_DENSE;
    for (int i = 0; i < 4; i++) { /* there and back */
        q.vec = i % 2 ? v2 : v4;
        q.dim = i % 2 ? 2 : 4;
        q.fingerprint = i % 2 ? kit_other_model : kit_model;
        OK(is_recall_query(r, &k->pa, &q, &hits, &n, &unembedded));
        assert_int_equal(n, 1);
        assert_int_equal(hits[0].id, i % 2 ? b : a);
        assert_true(fabs(hits[0].score - 1) < 1e-5);
        assert_int_equal(unembedded, 1);
        is_free(hits);
    }
    q.dim = 4;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    assert_null(hits);
    is_recall_free(r);
}

static void refusals_name_the_cause(void **state)
{
    bank_kit *k = *state;
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    is_query q = {.text = "x", .options = &o};
    is_hit *hits;
    size_t n;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    o.k = 1001;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.k = 1000;
    o.method = 7;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.method = INFERSCALE_DENSE;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.method = INFERSCALE_FUSED;
    o.kinds = 8;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.kinds = 0;
    o.from = 20;
    o.to = 10;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    o.from = o.to = 0;
    q.text = NULL;
    FAILS(E_INVALID, is_recall_query(r, &k->pa, &q, &hits, &n, NULL));
    q.text = "nothing is here";
    OK(is_recall_query(r, &k->pa, &q, &hits, &n, NULL)); /* an empty memory is no error */
    assert_int_equal(n, 0);
    is_free(hits);
    is_recall_free(r);
}

/* Fails the nth allocation of a query, for every n: an error or the right answer, and the next query is right. */
static void out_of_memory_loses_nothing(void **state)
{
    bank_kit *k = *state;
    world *w = make_world(k, 30, "memory");
    is_recall *r, *fresh;
    int failures = 0;
    ask a;

    OK(is_recall_new(k->bank, &r));
    random_ask(w, &a);
    for (size_t nth = 1; nth < 4000; nth += 1 + nth / 40) {
        inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
        is_hit *hits = NULL;
        size_t n;
        is_recall_forget(r, k->pa.id);
        is_mem_fail_at(nth);
        is_status st = run_ask(r, &k->pa, &a, &o, NULL, &hits, &n, NULL);
        is_mem_fail_at(0);
        is_free(hits);
        if (st == INFERSCALE_OK) continue;
        assert_int_equal(st, INFERSCALE_E_NOMEM);
        failures++;
    }
    assert_true(failures > 10);
    OK(is_recall_new(k->bank, &fresh));
    same(r, fresh, k, w);
    is_recall_free(fresh);
    is_recall_free(r);
    is_free(w);
}

typedef struct reader { is_recall *r; const bank_kit *k; ask a; int wrong; } reader;

static void *read_on(void *ctx)
{
    reader *me = ctx;
    size_t last = 0;

    for (int i = 0; i < 40; i++) {
        inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
        is_query q = {.text = "zebra", .options = &o};
        is_hit *hits = NULL;
        size_t n = 0;
        o.k = 1000;
        if (is_recall_query(me->r, &me->k->pa, &q, &hits, &n, NULL) != INFERSCALE_OK || n < last) me->wrong++;
        last = n; /* facts are only added: what was seen stays */
        is_free(hits);
        if (i % 10 == 9) is_recall_forget(me->r, me->k->pa.id);
    }
    return NULL;
}

static void threads_share_an_index(void **state)
{
    bank_kit *k = *state;
    pthread_t threads[4];
    reader readers[4];
    int64_t first;
    is_recall *r;

    OK(is_recall_new(k->bank, &r));
    for (int i = 0; i < 4; i++) {
        readers[i] = (reader){.r = r, .k = k};
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &readers[i]), 0);
    }
    for (int i = 0; i < 30; i++) {
        char text[40];
        sprintf(text, "zebra number %d", i);
        kit_fact(k, &k->pa, &k->anna, text);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(readers[i].wrong, 0);
    }
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    o.k = 1000;
    assert_int_equal(search_words(r, &k->pa, "zebra", o, &first), 30);
    is_recall_free(r);
}

static void dense_text_is_what_is_said(void **state)
{
    inferscale_item turn = {.kind = INFERSCALE_TURNS, .speaker = "Anna", .text = "I sail."};
    inferscale_item fact = {.kind = INFERSCALE_FACTS, .speaker = "", .text = "Anna sails."};
    char *a = is_dense_text(&turn), *b = is_dense_text(&fact);

    (void)state;
    assert_string_equal(a, "Anna: I sail.");
    assert_string_equal(b, "Anna sails.");
    is_free(a);
    is_free(b);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bank_kit_setup, bank_kit_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(equals_brute_force),       TEST(filters_come_before_top_k),        TEST(validity_and_expiry),
        TEST(threshold_cuts_the_tail),  TEST(partitions_do_not_touch),          TEST(followed_equals_rebuilt),
        TEST(other_processes_are_seen), TEST(another_embedder_is_another_view), TEST(refusals_name_the_cause),
        cmocka_unit_test(few_far_vectors_do_not_outrank_the_words), cmocka_unit_test(with_all_vectors_it_is_the_plain_sum),
        TEST(out_of_memory_loses_nothing), TEST(threads_share_an_index),        cmocka_unit_test(dense_text_is_what_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
