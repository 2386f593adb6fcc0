/* recall_eval.c - the retrieval evaluation on LoCoMo conversations. */
#include "eval/recall_eval.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/sort.h"
#include "base/utf8.h"
#include "recall/recall.h"

enum { N_STORES = 3, N_METHODS = 3, N_CATEGORIES = 6, BATCH = 32 };
static const struct { const char *name; int kinds; } stores[N_STORES] = {
    {"turns", INFERSCALE_TURNS}, {"facts", INFERSCALE_FACTS}, {"both", INFERSCALE_TURNS | INFERSCALE_FACTS}};
static const struct { const char *name; int method; } methods[N_METHODS] = {
    {"lexical", INFERSCALE_LEXICAL}, {"dense", INFERSCALE_DENSE}, {"fused", INFERSCALE_FUSED}};
static const char *const categories[N_CATEGORIES] = {"1-4", "1", "2", "3", "4", "5"};

/* What one remembered item credits. */
typedef struct credit { int64_t id; char **dia_ids; size_t n; char *own; } credit;

typedef struct work {
    const recall_eval_opts *opts;
    char dir[512];
    is_bank *bank;
    is_recall *recall;
    credit *credits; size_t n_credits;       /* of the current conversation, by id */
    double *embed_ms, *recall_ms; size_t n_timed;
    uint64_t done, total;                    /* texts embedded, for the progress bar */
    double sum[N_STORES][N_METHODS][N_CATEGORIES][RECALL_EVAL_MAX_K];
    size_t n[N_CATEGORIES];
    recall_eval_report *report;
} work;

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory during the evaluation; free some and try again");
}

/* ---- The temporary bank -------------------------------------------------------------------------------------------------- */

static is_status open_bank(work *w)
{
    const char *tmp = getenv("TMPDIR");
    char path[600];

    snprintf(w->dir, sizeof w->dir, "%s/inferscale-eval-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(w->dir)) {
        w->dir[0] = 0;
        return is_fail_errno("cannot make a temporary folder (set TMPDIR to a folder that can be written)");
    }
    snprintf(path, sizeof path, "%s/bank.db", w->dir);
    IS_TRY(is_bank_open(path, false, &w->bank));
    return is_recall_new(w->bank, &w->recall);
}

static is_status remove_one(void *ctx, const char *name, bool is_dir)
{
    char path[1024];
    if (!is_dir && snprintf(path, sizeof path, "%s/%s", (const char *)ctx, name) < (int)sizeof path) unlink(path);
    return INFERSCALE_OK;
}

static void close_bank(work *w)
{
    is_recall_free(w->recall);
    is_bank_close(w->bank);
    if (!w->dir[0]) return;
    is_fs_posix()->list(is_fs_posix(), w->dir, remove_one, w->dir);
    rmdir(w->dir);
}

/* ---- Remembering a conversation ------------------------------------------------------------------------------------------ */

static void clear_credits(work *w)
{
    is_free(w->credits);
    w->credits = NULL;
    w->n_credits = 0;
}

static is_status add_turns(work *w, const is_partition *p, const inferscale_scope *scope, const locomo_conversation *c)
{
    for (size_t i = 0; i < c->n_turns; i++) {
        const locomo_turn *t = &c->turns[i];
        char *text = locomo_turn_text(t);
        if (!text) return no_memory();
        inferscale_turn turn = {.conversation = c->id, .speaker = t->speaker, .text = text, .external_id = t->dia_id,
                                .time = t->time};
        credit *cr = &w->credits[w->n_credits];
        is_status st = INFERSCALE_OK;
        if (!is_utf8_blank(text, strlen(text))) st = is_bank_add_turns(w->bank, p, scope, &turn, 1, &cr->id);
        is_free(text);
        if (st != INFERSCALE_OK) return st;
        if (!cr->id) continue;
        cr->own = t->dia_id;
        w->n_credits++;
        w->report->n_turns++;
    }
    return INFERSCALE_OK;
}

static is_status add_facts(work *w, const is_partition *p, const inferscale_scope *scope, const locomo_conversation *c)
{
    for (size_t i = 0; i < c->n_observations; i++) {
        const locomo_observation *o = &c->observations[i];
        inferscale_fact fact = {.text = o->text, .event_time = o->time};
        inferscale_event event;
        if (is_utf8_blank(o->text, strlen(o->text))) continue;
        IS_TRY(is_bank_add_facts(w->bank, p, scope, &fact, 1, &event));
        w->credits[w->n_credits++] = (credit){.id = event.id, .dia_ids = o->dia_ids, .n = o->n_dia_ids};
        w->report->n_facts += event.event == INFERSCALE_EVENT_ADD;
    }
    return INFERSCALE_OK;
}

static is_status embed_some(work *w, const is_partition *p, const int64_t *ids, size_t n, float *vectors)
{
    is_embedder *e = w->opts->embedder;
    uint32_t dim = is_embedder_dim(e);
    inferscale_list *items = NULL;
    char *texts[BATCH] = {0};
    int8_t *q = is_malloc(dim);
    is_status st = q ? is_bank_get(w->bank, p, ids, n, &items) : no_memory();

    for (size_t i = 0; st == INFERSCALE_OK && i < items->n; i++)
        if (!(texts[i] = is_dense_text(&items->items[i]))) st = no_memory();
    if (st == INFERSCALE_OK) st = is_embedder_embed(e, (const char *const *)texts, items->n, vectors);
    for (size_t i = 0; st == INFERSCALE_OK && i < items->n; i++) {
        float scale;
        is_quantize_i8(vectors + i * dim, dim, q, &scale);
        st = is_bank_put_embedding(w->bank, p, is_embedder_fingerprint(e), items->items[i].id, items->items[i].version, q,
                                   dim, scale);
    }
    for (size_t i = 0; i < BATCH; i++) is_free(texts[i]);
    inferscale_list_free(items);
    is_free(q);
    w->done += n;
    if (st != INFERSCALE_OK || !w->opts->on_progress) return st;
    if (w->opts->on_progress(w->opts->progress_ctx, w->done, w->total, "embedding"))
        return is_fail(INFERSCALE_E_CANCELLED, "the evaluation was cancelled");
    return st;
}

static is_status embed_all(work *w, const is_partition *p)
{
    float *vectors = is_malloc((size_t)BATCH * is_embedder_dim(w->opts->embedder) * sizeof *vectors);
    is_status st = vectors ? INFERSCALE_OK : no_memory();

    while (st == INFERSCALE_OK) {
        int64_t *ids = NULL;
        size_t n = 0;
        st = is_bank_unembedded(w->bank, p, is_embedder_fingerprint(w->opts->embedder), 0, BATCH, &ids, &n);
        if (st == INFERSCALE_OK && n) st = embed_some(w, p, ids, n, vectors);
        is_free(ids);
        if (n == 0) break;
    }
    is_free(vectors);
    return st;
}

/* ---- Asking -------------------------------------------------------------------------------------------------------------- */

/* The question's evidence turns that exist in the conversation: gold[] of them. */
static size_t gold_turns(const locomo_conversation *c, const locomo_qa *q, const char **gold, size_t max)
{
    size_t n = 0;
    for (size_t e = 0; e < q->n_evidence && n < max; e++)
        for (size_t i = 0; i < c->n_turns; i++)
            if (strcmp(c->turns[i].dia_id, q->evidence[e]) == 0) {
                gold[n++] = q->evidence[e];
                break;
            }
    return n;
}

static bool credits_turn(const credit *c, const char *dia_id)
{
    if (c->own && strcmp(c->own, dia_id) == 0) return true;
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->dia_ids[i], dia_id) == 0) return true;
    return false;
}

static double recall_of(const work *w, const is_hit *hits, size_t n, const char *const *gold, size_t n_gold)
{
    size_t found = 0;
    for (size_t g = 0; g < n_gold; g++) {
        bool hit = false;
        for (size_t h = 0; h < n && !hit; h++)
            for (size_t i = 0; i < w->n_credits && !hit; i++) /* one fact may stand for several equal observations */
                hit = w->credits[i].id == hits[h].id && credits_turn(&w->credits[i], gold[g]);
        found += hit;
    }
    return (double)found / (double)n_gold;
}

static is_status ask_one(work *w, const is_partition *p, const inferscale_scope *scope, const locomo_qa *qa, const float *vec,
                         const char *const *gold, size_t n_gold)
{
    is_embedder *e = w->opts->embedder;
    for (size_t s = 0; s < N_STORES; s++)
        for (size_t m = 0; m < N_METHODS; m++)
            for (size_t k = 0; k < w->opts->n_k; k++) {
                inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
                is_query q = {.text = qa->question, .vec = vec, .scope = scope, .options = &o};
                is_hit *hits = NULL;
                size_t n = 0;
                if (!vec && methods[m].method != INFERSCALE_LEXICAL) continue;
                if (vec) q.dim = is_embedder_dim(e), q.fingerprint = is_embedder_fingerprint(e);
                o.k = w->opts->k[k];
                o.kinds = stores[s].kinds;
                o.method = methods[m].method;
                double start = is_now_ms();
                IS_TRY(is_recall_query(w->recall, p, &q, &hits, &n, NULL));
                w->recall_ms[w->n_timed] = is_now_ms() - start; /* the last one stands: both stores, fused, largest k */
                double r = recall_of(w, hits, n, gold, n_gold);
                is_free(hits);
                w->sum[s][m][qa->category][k] += r;
                if (qa->category != 5) w->sum[s][m][0][k] += r;
            }
    w->n[qa->category == 5 ? 5 : qa->category]++;
    if (qa->category != 5) w->n[0]++;
    return INFERSCALE_OK;
}

static is_status ask_all(work *w, const is_partition *p, const inferscale_scope *scope, const locomo_conversation *c)
{
    is_embedder *e = w->opts->embedder;
    float *vec = e ? is_malloc(is_embedder_dim(e) * sizeof *vec) : NULL;
    is_status st = e && !vec ? no_memory() : INFERSCALE_OK;

    for (size_t i = 0; st == INFERSCALE_OK && i < c->n_qa; i++) {
        const char *gold[64];
        size_t n_gold = gold_turns(c, &c->qa[i], gold, 64);
        if (n_gold == 0) continue;
        double start = is_now_ms();
        if (e) st = is_embedder_embed(e, (const char *const[]){c->qa[i].question}, 1, vec);
        w->embed_ms[w->n_timed] = is_now_ms() - start;
        if (st == INFERSCALE_OK) st = ask_one(w, p, scope, &c->qa[i], vec, gold, n_gold);
        w->n_timed++;
        w->report->n_questions++;
    }
    is_free(vec);
    return st;
}

static is_status run_conversation(work *w, const locomo_conversation *c)
{
    inferscale_scope scope = {.user = c->id};
    is_partition p;

    clear_credits(w);
    w->credits = is_calloc(c->n_turns + c->n_observations + 1, sizeof *w->credits);
    if (!w->credits) return no_memory();
    IS_TRY(is_bank_partition(w->bank, &scope, true, &p));
    IS_TRY(add_turns(w, &p, &scope, c));
    IS_TRY(add_facts(w, &p, &scope, c));
    if (w->opts->embedder) IS_TRY(embed_all(w, &p));
    w->report->n_conversations++;
    return ask_all(w, &p, &scope, c);
}

/* ---- The report ---------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, size_t n)
{
    if (n == 0) return 0;
    is_sort(v, n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static is_status fill_report(work *w)
{
    recall_eval_report *r = w->report;
    r->rows = is_calloc((size_t)N_STORES * N_METHODS * N_CATEGORIES * RECALL_EVAL_MAX_K, sizeof *r->rows);
    if (!r->rows) return no_memory();
    for (size_t c = 0; c < N_CATEGORIES; c++)
        for (size_t s = 0; s < N_STORES; s++)
            for (size_t m = 0; m < N_METHODS; m++)
                for (size_t k = 0; k < w->opts->n_k; k++) {
                    if (w->n[c] == 0 || (!w->opts->embedder && methods[m].method != INFERSCALE_LEXICAL)) continue;
                    r->rows[r->n_rows++] = (recall_eval_row){stores[s].name, methods[m].name, categories[c], w->opts->k[k],
                                                             w->sum[s][m][c][k] / (double)w->n[c], w->n[c]};
                }
    r->embed_ms = w->opts->embedder ? median(w->embed_ms, w->n_timed) : 0;
    r->recall_ms = median(w->recall_ms, w->n_timed);
    return INFERSCALE_OK;
}

static is_status run_all(work *w, const locomo *l)
{
    size_t questions = 0;

    for (size_t i = 0; i < l->n; i++) {
        const locomo_conversation *c = &l->conversations[i];
        if (w->opts->conversation && strcmp(c->id, w->opts->conversation) != 0) continue;
        w->total += c->n_turns + c->n_observations;
        questions += c->n_qa;
    }
    w->embed_ms = is_calloc(questions + 1, sizeof *w->embed_ms);
    w->recall_ms = is_calloc(questions + 1, sizeof *w->recall_ms);
    if (!w->embed_ms || !w->recall_ms) return no_memory();
    IS_TRY(open_bank(w));
    for (size_t i = 0; i < l->n; i++) {
        const locomo_conversation *c = &l->conversations[i];
        if (!w->opts->conversation || strcmp(c->id, w->opts->conversation) == 0) IS_TRY(run_conversation(w, c));
    }
    return fill_report(w);
}

is_status recall_eval_run(const locomo *l, const recall_eval_opts *opts, recall_eval_report **out)
{
    *out = NULL;
    if (opts->n_k == 0 || opts->n_k > RECALL_EVAL_MAX_K)
        return is_fail(INFERSCALE_E_INVALID, "give 1 to %d values of k", RECALL_EVAL_MAX_K);
    if (opts->conversation && !locomo_find(l, opts->conversation))
        return is_fail(INFERSCALE_E_NOTFOUND, "there is no conversation %s in the file; leave --conversation out to use all",
                       opts->conversation);
    work *w = is_calloc(1, sizeof *w);
    if (!w) return no_memory();
    w->opts = opts;
    w->report = is_calloc(1, sizeof *w->report);
    is_status st = w->report ? run_all(w, l) : no_memory();
    close_bank(w);
    clear_credits(w);
    is_free(w->embed_ms);
    is_free(w->recall_ms);
    if (st == INFERSCALE_OK) *out = w->report;
    else recall_eval_free(w->report);
    is_free(w);
    return st;
}

void recall_eval_free(recall_eval_report *r)
{
    if (!r) return;
    is_free(r->rows);
    is_free(r);
}
