/* generate.c - the answer, token by token: what is shown when, where it ends, and how likely each token was. */
#include <stdint.h>
#include <string.h>

#include "api/answer.h"
#include "api/stops.h"
#include "api/talks.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { TOP_MAX = 20, PIECE_MAX = 512 };

/* One answer on its way. */
typedef struct telling {
    is_asking *a;
    is_run *run;
    is_buf text;         /* all bytes so far */
    size_t shown;        /* of them, to the listener */
    size_t *begins;      /* [n_tokens of the answer] where each token's bytes begin */
    size_t n_reported;   /* tokens, to their listener */
    size_t cap;
    bool wants_no_more;  /* a listener said so */
    bool mended;         /* bytes were no text and stand as '?': the text is not exactly what was told */
    int stopped_by;      /* index of the stop string; -1 = none */
} telling;

/* ---- How likely ---------------------------------------------------------------------------------------------------------- */

static char *piece_of(is_engine *e, int32_t token, size_t *len)
{
    char piece[PIECE_MAX];
    int n = is_engine_piece(e, token, piece, (int)sizeof piece);
    char *out = is_malloc((n > 0 ? (size_t)n : 0) + 1);

    *len = n > 0 ? (size_t)n : 0;
    if (!out) return NULL;
    memcpy(out, piece, *len);
    out[*len] = 0;
    return out;
}

static void free_token(const inferscale_token *t)
{
    for (size_t i = 0; i < t->n_top; i++) is_free((char *)(uintptr_t)t->top[i].bytes);
    is_free((inferscale_token *)(uintptr_t)t->top);
    is_free((char *)(uintptr_t)t->bytes);
}

static is_status describe(is_engine *e, const is_likely *l, inferscale_token *out)
{
    *out = (inferscale_token){ .id = l->id, .logprob = l->logprob };
    out->bytes = piece_of(e, l->id, &out->len);
    return out->bytes ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the answer's tokens");
}

/* The token beside the likeliest ones, as they were when it was drawn. */
static is_status weigh(telling *t, int32_t id, inferscale_token *out)
{
    is_engine *e = t->a->is->engine;
    is_likely all[TOP_MAX + 1];
    inferscale_token *top;
    uint32_t n;

    *out = (inferscale_token){ 0 };
    IS_TRY(is_engine_likely(e, t->run, id, t->a->c.top_logprobs, all, &n));
    IS_TRY(describe(e, &all[0], out));
    top = is_calloc(n, sizeof *top);
    if (!top) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the answer's tokens");
    out->top = top;
    for (uint32_t i = 1; i < n; i++) {
        IS_TRY(describe(e, &all[i], &top[i - 1]));
        out->n_top++;
    }
    return INFERSCALE_OK;
}

/* ---- What is shown ------------------------------------------------------------------------------------------------------- */

/* The token joins the answer's list; where its bytes begin is kept beside it. */
static is_status list_token(telling *t, int32_t id)
{
    inferscale_answer *ans = t->a->answer;

    if (!t->a->c.logprobs) return INFERSCALE_OK;
    if (ans->n_tokens == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 32;
        inferscale_token *tokens = is_realloc(ans->tokens, cap * sizeof *tokens);
        size_t *begins = tokens ? is_realloc(t->begins, cap * sizeof *begins) : NULL;

        if (tokens) ans->tokens = tokens;
        if (begins) t->begins = begins;
        if (!begins) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the answer's tokens");
        t->cap = cap;
    }
    t->begins[ans->n_tokens] = t->text.len;
    return weigh(t, id, &ans->tokens[ans->n_tokens++]);
}

/* A token is part of the text up to byte `until` if some of its bytes are; one without bytes, if it is not behind that. */
static bool is_behind(const telling *t, size_t i, size_t until)
{
    return t->begins[i] + (t->a->answer->tokens[i].len > 0) > until;
}

static void report_tokens(telling *t, size_t until)
{
    const inferscale_complete_options *c = &t->a->c;

    for (; c->on_token && t->n_reported < t->a->answer->n_tokens && !t->wants_no_more; t->n_reported++) {
        if (is_behind(t, t->n_reported, until)) break;
        t->wants_no_more = c->on_token(c->token_ctx, &t->a->answer->tokens[t->n_reported]) != 0;
    }
}

/* Bytes that never became a character (a model may tell any, or end half-way through one) are replaced before anybody sees them: what is
 * shown, like the whole answer, is valid UTF-8 without NUL. */
static void make_valid(telling *t, size_t until)
{
    size_t bad;

    for (; !is_utf8_valid((const char *)t->text.data + t->shown, until - t->shown, &bad); t->mended = true)
        t->text.data[t->shown + bad] = '?';
}

/* Shows the text up to byte `until`. */
static void show(telling *t, size_t until)
{
    const inferscale_ask_options *o = &t->a->o;

    if (until <= t->shown) return;
    make_valid(t, until);
    report_tokens(t, until);
    if (o->on_text && !t->wants_no_more)
        t->wants_no_more = o->on_text(o->text_ctx, (const char *)t->text.data + t->shown, until - t->shown) != 0;
    t->shown = until;
}

/* Appends the token's bytes; shows whole characters that no stop string can take back any more. */
static is_status add_token(telling *t, int32_t id)
{
    const inferscale_complete_options *c = &t->a->c;
    const size_t before = t->text.len;
    char piece[PIECE_MAX];
    int n = is_engine_piece(t->a->is->engine, id, piece, (int)sizeof piece);
    size_t until, whole;

    is_buf_add(&t->a->told, &id, sizeof id);
    if (n > 0) is_buf_add(&t->text, piece, (size_t)n);
    if (!is_buf_ok(&t->text) || !is_buf_ok(&t->a->told)) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the answer");
    t->stopped_by = is_stops_find(c->stop, c->n_stop, (const char *)t->text.data, t->text.len, before, &until);
    if (t->stopped_by >= 0) {
        t->text.len = until;
        t->text.data[until] = 0;
        return INFERSCALE_OK;
    }
    if (until < t->shown) until = t->shown;
    whole = t->shown + is_utf8_whole((const char *)t->text.data + t->shown, until - t->shown);
    show(t, whole);
    return INFERSCALE_OK;
}

/* The bytes of the answer's first n tokens, all told. */
static size_t bytes_of(const is_asking *a, size_t n)
{
    size_t bytes = 0;
    char piece[PIECE_MAX];

    for (size_t i = 0; i < n; i++) {
        int32_t id;
        int len;

        memcpy(&id, a->told.data + i * sizeof id, sizeof id);
        len = is_engine_piece(a->is->engine, id, piece, (int)sizeof piece);
        bytes += len > 0 ? (size_t)len : 0;
    }
    return bytes;
}

/* What no stop string took back is shown; tokens behind the text are none of the answer. */
static is_status close_text(telling *t, int32_t *pending)
{
    inferscale_answer *ans = t->a->answer;
    size_t n_told = t->a->told.len / sizeof(int32_t);

    show(t, t->text.len);
    report_tokens(t, t->text.len);
    while (ans->n_tokens && is_behind(t, ans->n_tokens - 1, t->text.len)) free_token(&ans->tokens[--ans->n_tokens]);
    if (t->stopped_by >= 0 && *pending >= 0 && n_told && bytes_of(t->a, n_told - 1) == t->text.len) {
        *pending = -1; /* the stop string was that token alone: it never ran */
        t->a->told.len = --n_told * sizeof(int32_t);
    }
    t->a->exactly = !t->mended && bytes_of(t->a, n_told) == t->text.len;
    ans->stopped_by = t->stopped_by >= 0 ? t->a->c.stop[t->stopped_by] : NULL;
    ans->text = is_buf_take(&t->text);
    return ans->text ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the answer");
}

/* ---- Telling ------------------------------------------------------------------------------------------------------------- */

/* What the answer uses went. What was said stays said. */
static is_status end_early(is_asking *a)
{
    if (a->answer->tokens_answer == 0) return is_asking_gone();
    __atomic_store_n(&a->hold.stop, 1, __ATOMIC_RELEASE);
    a->answer->finish = "cancelled";
    is_asking_note(a, INFERSCALE_FALLBACK_CHANGED_MEANWHILE, "a fact that the answer used was changed or forgotten: it ends here");
    return INFERSCALE_OK;
}

is_status is_asking_feed(is_asking *a, is_run *run, int32_t token)
{
    is_status st;

    do st = is_engine_feed(a->is->engine, run, token);
    while ((st == INFERSCALE_E_BUSY || st == INFERSCALE_E_CONTEXT) && is_talks_evict(a->is));
    return st == INFERSCALE_E_CANCELLED && is_hold_stopped(&a->hold) ? is_asking_gone() : st; /* engines elsewhere look at the flag too */
}

/* *over: the answer ends behind this token. */
static bool is_last(telling *t, uint32_t i)
{
    inferscale_answer *ans = t->a->answer;

    if (t->stopped_by >= 0) return true;
    if (t->wants_no_more) ans->finish = "cancelled";
    else if (i + 1 >= t->a->o.max_tokens) ans->finish = "length";
    return t->wants_no_more || i + 1 >= t->a->o.max_tokens;
}

/* The prompt is in the engine, and nothing of the answer is out yet. What the answer will own is lent it for the call. */
static void announce(is_asking *a)
{
    static char empty[] = "";
    inferscale_answer *ans = a->answer;

    if (!a->c.on_plan) return;
    ans->text = empty;
    ans->fallback = a->why.len && is_buf_ok(&a->why) ? (char *)a->why.data : empty;
    a->c.on_plan(a->c.plan_ctx, ans);
    ans->text = ans->fallback = NULL;
}

static is_status tell(telling *t, int32_t *pending)
{
    is_asking *a = t->a;
    inferscale_answer *ans = a->answer;
    const double t_first = is_now_ms();

    for (uint32_t i = 0;; i++) {
        bool gone;
        int32_t token;
        is_status st;

        IS_TRY(is_hold_check(&a->hold, &gone));
        if (gone) return end_early(a);
        st = is_engine_sample(a->is->engine, t->run, &token);
        if (st == INFERSCALE_E_CANCELLED && is_hold_stopped(&a->hold)) return end_early(a);
        if (st != INFERSCALE_OK) return st;
        if (i == 0) announce(a);
        if (is_engine_is_eog(a->is->engine, token)) break;
        *pending = token;
        ans->tokens_answer++;
        IS_TRY(list_token(t, token));
        IS_TRY(add_token(t, token));
        if (i == 0) {
            ans->ttft_ms = is_now_ms() - a->t0_ms;
            ans->first_token_ms = is_now_ms() - t_first;
        }
        if (is_last(t, i)) break;
        if (a->o.cancel && __atomic_load_n(a->o.cancel, __ATOMIC_RELAXED))
            return is_fail(INFERSCALE_E_CANCELLED, "the answer was cancelled");
        st = is_asking_feed(a, t->run, token);
        if (st == INFERSCALE_E_STALE) return end_early(a);
        if (st != INFERSCALE_OK) return st;
        *pending = -1;
    }
    if (ans->tokens_answer == 0) ans->ttft_ms = is_now_ms() - a->t0_ms;
    return INFERSCALE_OK;
}

is_status is_asking_generate(is_asking *a, is_run *run, int32_t *pending)
{
    telling t = { .a = a, .run = run, .stopped_by = -1 };
    is_status st;

    *pending = -1;
    is_buf_clear(&a->told);
    is_buf_str(&t.text, "");
    st = tell(&t, pending);
    is_engine_rest(a->is->engine, run); /* kept or not, it computes no more for this question */
    if (st == INFERSCALE_OK) is_asking_settle(a, run);
    if (st == INFERSCALE_OK && a->ran) st = is_asking_made_of(a);
    if (st == INFERSCALE_OK) st = close_text(&t, pending);
    is_buf_free(&t.text);
    is_free(t.begins);
    return st;
}

is_status is_asking_finish(is_asking *a, inferscale_answer **out)
{
    is_buf_str(&a->why, "");
    a->answer->fallback = is_buf_take(&a->why);
    if (!a->answer->fallback) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the answer");
    a->answer->total_ms = is_now_ms() - a->t0_ms;
    *out = a->answer;
    a->answer = NULL;
    return INFERSCALE_OK;
}

void inferscale_answer_free(inferscale_answer *answer)
{
    if (!answer) return;
    for (size_t i = 0; i < answer->n_tokens; i++) free_token(&answer->tokens[i]);
    is_free(answer->tokens);
    is_free(answer->text);
    is_free(answer->fallback);
    is_free(answer->facts);
    is_free(answer);
}
