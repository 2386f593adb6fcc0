/* find.c - recall: embed the question, search the partition's index, fetch what was found. */
#include <stdio.h>
#include <string.h>

#include "api/answer.h"
#include "api/calibrate.h"
#include "api/catch_up.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

/* What failed is in the log. Where the embedder is a server, its address and what libcurl says of it are for the log only. */
static void say_words_only(const inferscale *is, char why[256])
{
    is_log(IS_LOG_WARN, "found by words only, no embedding: %s", is_error());
    if (is->embedder_spec && strstr(is->embedder_spec, "://"))
        snprintf(why, 256, "found by words only, no embedding: the embedder's server gave none");
    else
        snprintf(why, 256, "found by words only, no embedding: %.200s", is_error());
}

void is_handle_embed_question(inferscale *is, const char *query, int method, is_sought *out)
{
    const double t0 = is_now_ms();

    *out = (is_sought){ .tried = true };
    if (method == INFERSCALE_LEXICAL) return;
    if (is_handle_question_vectors(is, &query, 1, NULL, &out->vec) != INFERSCALE_OK) {
        if (method == INFERSCALE_DENSE) snprintf(out->why, sizeof out->why, "%s", is_error());
        else say_words_only(is, out->why);
    }
    out->ms = is_now_ms() - t0;
}

void is_sought_free(is_sought *s)
{
    is_free(s->vec);
    *s = (is_sought){ 0 };
}

is_status is_asking_embed(is_asking *a)
{
    const inferscale_recall_options *r = a->o.recall;
    is_partition p;
    is_status st;

    if (a->sought.tried || a->o.mode == INFERSCALE_MODE_NONE || !a->scope || a->c.n_ids)
        return INFERSCALE_OK;
    if (r && r->struct_size < sizeof *r) return INFERSCALE_OK; /* search() refuses it */
    st = is_bank_partition(a->is->bank, a->scope, false, &p);
    if (st != INFERSCALE_OK) return st == INFERSCALE_E_NOTFOUND ? INFERSCALE_OK : st;
    is_handle_embed_question(a->is, a->question, r ? r->method : INFERSCALE_FUSED, &a->sought);
    return INFERSCALE_OK;
}

/* The sentence about what has no vector yet. */
static void say_not_embedded(const inferscale *is, inferscale_list *told, char why[256])
{
    const size_t n = told->n_unembedded;

    told->fallbacks |= INFERSCALE_FALLBACK_NOT_EMBEDDED;
    snprintf(why, 256, "%zu of what is remembered %s no vector yet and %s looked for by words only; %s", n, n == 1 ? "has" : "have",
             n == 1 ? "was" : "were", is->background ? "it is being embedded in the background" : "encode to embed it");
}

/* How the vector's cosines are to be read; *known false: nobody knows yet. */
static is_status calibration(inferscale *is, is_calibration *out, bool *known)
{
    IS_TRY(is_handle_calibration(is, is->bank, out, known));
    if (*known || is->background) return INFERSCALE_OK;
    is_handle_calibrate(is, is->bank, IS_CALIBRATE_IN_QUESTION, NULL);
    return is_handle_calibration(is, is->bank, out, known);
}

static is_status search(inferscale *is, const is_partition *p, is_query *q, is_hit **hits, size_t *n, inferscale_list *told)
{
    is_caught caught = { 0 };
    is_status st = q->vec ? is_catch_up_run(is, p, q, &caught) : INFERSCALE_OK;

    q->extra = caught.v;
    q->n_extra = told->n_embedded = caught.n;
    if (st == INFERSCALE_OK) st = is_recall_query(is->recall, p, q, hits, n, &told->n_unembedded);
    is_caught_free(&caught);
    return st;
}

static is_status find(inferscale *is, const is_partition *p, is_query *q, const is_sought *embedded,
                      inferscale_recall_options *o, is_hit **hits, size_t *n, inferscale_list *told)
{
    is_index_wait wait = { 0 };
    is_calibration scale;
    const double t0 = is_now_ms();
    bool known = false;
    is_status st = INFERSCALE_OK;

    if (embedded->vec) {
        q->vec = embedded->vec;
        q->dim = is_embedder_dim(is->embedder);
        q->fingerprint = is_embedder_fingerprint(is->embedder);
        st = calibration(is, &scale, &known);
        if (known) q->calibration = &scale;
    } else o->method = INFERSCALE_LEXICAL;
    q->options = o;
    q->wait = &wait;
    if (st == INFERSCALE_OK) st = search(is, p, q, hits, n, told);
    told->embed_ms = embedded->ms;
    told->recall_ms = is_now_ms() - t0;
    told->index_ms = wait.ms;
    told->index_built = wait.built;
    return st;
}

is_status is_handle_find(inferscale *is, const is_partition *p, const inferscale_scope *scope,
                         const char *query, const is_sought *embedded,
                         const inferscale_recall_options *options, is_hit **hits, size_t *n,
                         inferscale_list *told, char why[256])
{
    is_query q = { .text = query, .scope = scope, .pins = true };
    inferscale_recall_options o = *options;
    is_sought own = { 0 };
    is_status st;

    why[0] = 0;
    if (!is_time_given(o.as_of)) o.as_of = 0;
    if (!embedded || !embedded->tried) {
        is_handle_embed_question(is, query, o.method, &own);
        embedded = &own;
    }
    snprintf(why, 256, "%s", embedded->why);
    if (!embedded->vec && o.method == INFERSCALE_DENSE)
        return is_fail(INFERSCALE_E_ENGINE, "dense search is not possible: %s", why);
    st = find(is, p, &q, embedded, &o, hits, n, told);
    if (options->method == INFERSCALE_LEXICAL) told->n_unembedded = 0; /* words were asked for, and no vector looked at */
    if (why[0]) told->fallbacks |= INFERSCALE_FALLBACK_WORDS_ONLY;
    else if (told->n_unembedded) say_not_embedded(is, told, why);
    is_sought_free(&own);
    return st;
}

static is_status check_options(const inferscale_recall_options *o)
{
    if (o->struct_size < sizeof(inferscale_recall_options))
        return is_fail(INFERSCALE_E_INVALID, "the recall options are not initialised; use INFERSCALE_RECALL_OPTIONS_INIT");
    if (o->k > 1000) return is_fail(INFERSCALE_E_INVALID, "k is %u; ask for at most 1000 items", o->k);
    if (o->method < INFERSCALE_FUSED || o->method > INFERSCALE_DENSE)
        return is_fail(INFERSCALE_E_INVALID, "method is %d; use INFERSCALE_FUSED, _LEXICAL or _DENSE", o->method);
    if (o->kinds & ~(INFERSCALE_FACTS | INFERSCALE_TURNS))
        return is_fail(INFERSCALE_E_INVALID, "kinds is %d; use INFERSCALE_FACTS and INFERSCALE_TURNS", o->kinds);
    return INFERSCALE_OK;
}

is_status is_handle_fetch(inferscale *is, const is_partition *p, const is_hit *hits, size_t n, int64_t as_of, inferscale_list **out)
{
    is_dep *versions = is_malloc((n + 1) * sizeof *versions);
    int64_t *ids = is_malloc((n + 1) * sizeof *ids);
    is_status st = INFERSCALE_OK;

    *out = NULL;
    if (!ids || !versions) st = is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        ids[i] = hits[i].id;
        versions[i] = (is_dep){ hits[i].id, hits[i].version };
    }
    if (st == INFERSCALE_OK) st = as_of ? is_bank_get_versions(is->bank, p, versions, n, out) : is_bank_get(is->bank, p, ids, n, out);
    is_free(versions);
    is_free(ids);
    return st;
}

/* The hits' items, scores filled in. An item that vanished since the search is left out. */
static is_status fetch(inferscale *is, const is_partition *p, const is_hit *hits, size_t n, int64_t as_of, inferscale_list **out)
{
    IS_TRY(is_handle_fetch(is, p, hits, n, as_of, out));
    for (size_t i = 0, h = 0; i < (*out)->n; i++) {
        inferscale_item *item = &(*out)->items[i];

        while (h < n && hits[h].id != item->id) h++;
        if (h == n) break;
        item->score = hits[h].score;
        item->score_fused = hits[h].fused;
        item->score_lexical = hits[h].lexical;
        item->score_dense = hits[h].dense;
    }
    return INFERSCALE_OK;
}

static is_status tell(inferscale_list *out, const inferscale_list *told, const char *why)
{
    is_buf sentence = IS_BUF_INIT;

    out->embed_ms = told->embed_ms;
    out->recall_ms = told->recall_ms;
    out->n_unembedded = told->n_unembedded;
    out->n_embedded = told->n_embedded;
    out->index_ms = told->index_ms;
    out->index_built = told->index_built;
    out->fallbacks = told->fallbacks;
    if (!why[0]) return INFERSCALE_OK;
    is_add_without_places(&sentence, why);
    out->fallback = is_buf_take(&sentence);
    return out->fallback ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

is_status inferscale_recall(inferscale *is, const inferscale_scope *scope, const char *query, const inferscale_recall_options *options,
                            inferscale_list **out)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list told = { 0 };
    is_partition p;
    is_hit *hits = NULL;
    size_t n = 0;
    char why[256];
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the list; pass its address");
    *out = NULL;
    IS_TRY(is_handle_check(is));
    IS_TRY(is_text_check(query, "query"));
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory to search (user, agent, run or app)");
    if (options) {
        IS_TRY(check_options(options));
        o = *options;
    }
    if (!is_time_given(o.as_of)) o.as_of = 0;
    if (!o.k) o.k = 10;
    if (!o.kinds) o.kinds = INFERSCALE_FACTS;
    st = is_bank_partition(is->bank, scope, false, &p);
    if (st == INFERSCALE_E_NOTFOUND) {
        *out = is_list_new();
        return *out ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    }
    if (st == INFERSCALE_OK) {
        is_gate_enter(is->gate); /* a question's embedding goes before documents' */
        st = is_handle_find(is, &p, scope, query, NULL, &o, &hits, &n, &told, why);
        is_gate_leave(is->gate);
    }
    if (st == INFERSCALE_OK) st = fetch(is, &p, hits, n, o.as_of, out);
    is_free(hits);
    if (st == INFERSCALE_OK) st = tell(*out, &told, why);
    if (st == INFERSCALE_OK) return st;
    inferscale_list_free(*out);
    *out = NULL;
    return st;
}
