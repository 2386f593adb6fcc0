/* accuracy_measure.c - one prompt: its greedy answer, and how likely it makes the choices. */
#include "eval/accuracy_run.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { OPTION_MOST = 32 /* tokens of a choice or an answer that are looked at */, PIECE = 256 };

void accuracy_key_free(accuracy_key *key)
{
    for (size_t i = 0; i < QUIZ_CHOICES; i++) is_tokens_free(&key->options[i]);
    key->n_options = 0;
}

is_status accuracy_key_new(accuracy_work *w, const quiz_question *q, accuracy_key *out)
{
    const bool choices = q->choices[0] != NULL;
    is_status st = INFERSCALE_OK;

    *out = (accuracy_key){ .question = q, .right = choices ? q->right : 0 };
    for (size_t i = 0; i < (choices ? QUIZ_CHOICES : 1) && st == INFERSCALE_OK; i++) {
        const char *text = choices ? q->choices[i] : q->answers[0];
        is_tokens *t = &out->options[out->n_options++];

        st = is_engine_tokenize(w->engine, NULL, text, strlen(text), false, false, &t->ids, &t->n);
        if (t->n > OPTION_MOST) t->n = OPTION_MOST;
        if (st == INFERSCALE_OK && t->n == 0)
            st = is_fail(INFERSCALE_E_INVALID, "\"%.60s\" has no tokens and cannot be an answer",
                         text);
    }
    if (st != INFERSCALE_OK) accuracy_key_free(out);
    return st;
}

static is_status stopped(const accuracy_work *w)
{
    if (w->o->cancel && __atomic_load_n(w->o->cancel, __ATOMIC_ACQUIRE))
        return is_fail(INFERSCALE_E_CANCELLED, "the evaluation was cancelled");
    return INFERSCALE_OK;
}

/* A text prompt is asked several times: all of it but what follows the question is kept. */
static is_status start(accuracy_work *w, const is_plan *plan, uint32_t n, is_run **run)
{
    const is_run_opts opts = { .want_logits = true,
                               .n_predict = n,
                               .cancel = w->o->cancel,
                               .cache_parts = plan->n_parts - 1 };
    is_run_stats stats;

    IS_TRY(stopped(w));
    return is_engine_start(w->engine, plan, &opts, run, &stats);
}

static is_status next(accuracy_work *w, is_run *run, const float **logits)
{
    *logits = is_engine_logits(w->engine, run);
    if (*logits) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_ENGINE,
                   "the engine gave no logits; evaluate with one that gives them");
}

/* log p of one token. */
static double log_p(const float *logits, size_t n_vocab, int32_t token)
{
    double max = -INFINITY, sum = 0;

    for (size_t i = 0; i < n_vocab; i++)
        if (logits[i] > max) max = logits[i];
    for (size_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - max);
    return (double)logits[token] - max - log(sum);
}

static is_status add_piece(accuracy_work *w, int32_t token, is_buf *text)
{
    char piece[PIECE];
    int n = is_engine_piece(w->engine, token, piece, sizeof piece);

    if (n > 0) is_buf_add(text, piece, (size_t)n);
    if (is_buf_ok(text)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for an answer");
}

/* first[i]: log p of option i's first token. */
static is_status answer(accuracy_work *w, is_run *run, const accuracy_key *key, is_buf *text,
                        double *first)
{
    const size_t n_vocab = is_engine_describe(w->engine)->n_vocab;
    const float *logits;

    for (uint32_t i = 0; i < w->o->n_tokens; i++) {
        int32_t token;

        IS_TRY(stopped(w));
        IS_TRY(next(w, run, &logits));
        for (size_t k = 0; i == 0 && k < key->n_options; k++)
            first[k] = log_p(logits, n_vocab, key->options[k].ids[0]);
        token = (int32_t)stats_argmax(logits, n_vocab);
        if (is_engine_is_eog(w->engine, token)) break;
        IS_TRY(add_piece(w, token, text));
        if (i + 1 < w->o->n_tokens) IS_TRY(is_engine_feed(w->engine, run, token));
    }
    return INFERSCALE_OK;
}

/* The rest of an option, behind its first token: log p is added. */
static is_status rest(accuracy_work *w, const is_plan *plan, const is_tokens *option, double *sum)
{
    const size_t n_vocab = is_engine_describe(w->engine)->n_vocab;
    const float *logits;
    is_run *run = NULL;
    is_status st = INFERSCALE_OK;

    if (option->n == 1) return INFERSCALE_OK;
    IS_TRY(start(w, plan, option->n, &run));
    for (uint32_t i = 1; i < option->n && st == INFERSCALE_OK; i++) {
        st = is_engine_feed(w->engine, run, option->ids[i - 1]);
        if (st == INFERSCALE_OK) st = next(w, run, &logits);
        if (st == INFERSCALE_OK) *sum += log_p(logits, n_vocab, option->ids[i]);
    }
    is_engine_finish(w->engine, run);
    return st;
}

/* Mean log-likelihoods a token: which choice is the likeliest, the first of equals. */
static is_status likelihoods(accuracy_work *w, const is_plan *plan, const accuracy_key *key,
                             double *sums, accuracy_mark *out)
{
    size_t best = 0;

    for (size_t i = 0; i < key->n_options; i++) {
        IS_TRY(rest(w, plan, &key->options[i], &sums[i]));
        sums[i] /= key->options[i].n;
        if (sums[i] > sums[best]) best = i;
    }
    out->nll = -sums[key->right];
    out->choice = key->n_options > 1 ? best == key->right : -1;
    return INFERSCALE_OK;
}

is_status accuracy_measure(accuracy_work *w, const is_plan *plan, const accuracy_key *key,
                           accuracy_mark *out)
{
    double sums[QUIZ_CHOICES] = { 0 };
    is_buf text = IS_BUF_INIT;
    is_run *run = NULL;
    grade g = { 0 };
    int judged = -1;
    is_status st = start(w, plan, w->o->n_tokens, &run);

    is_buf_str(&text, "");
    if (st == INFERSCALE_OK) st = answer(w, run, key, &text, sums);
    is_engine_finish(w->engine, run);
    if (st == INFERSCALE_OK) is_buf_u8(&text, 0);
    if (st == INFERSCALE_OK && !is_buf_ok(&text))
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory for an answer");
    if (st == INFERSCALE_OK)
        st = grade_answer(w->grader, key->question, (const char *)text.data, &g);
    if (st == INFERSCALE_OK)
        st = accuracy_ask_judge(w, key->question, (const char *)text.data, &judged);
    is_buf_free(&text);
    *out = (accuracy_mark){
        .asked = st == INFERSCALE_OK, .right = g.right, .f1 = g.f1, .judged = judged
    };
    return st == INFERSCALE_OK ? likelihoods(w, plan, key, sums, out) : st;
}
