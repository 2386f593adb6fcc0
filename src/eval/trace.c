/* trace.c - see trace.h. */
#include "eval/trace.h"

#include "base/mem.h"
#include "eval/stats.h"

struct trace {
    is_engine *engine;
    size_t n_vocab;
    uint32_t max_tokens, n;
    int32_t *tokens;          /* [max_tokens] the answer */
    int32_t *tops;            /* [max_tokens] the reference's likeliest; of its own greedy answer, the same */
    double *log_p;            /* [max_tokens][n_vocab] of the reference */
    double *log_q;            /* [n_vocab] of the plan under comparison */
};

is_status trace_new(is_engine *e, uint32_t max_tokens, trace **out)
{
    trace *t = is_calloc(1, sizeof *t);

    *out = NULL;
    if (max_tokens == 0) max_tokens = 1;
    if (t == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while preparing a comparison");
    t->engine = e;
    t->n_vocab = is_engine_describe(e)->n_vocab;
    t->max_tokens = max_tokens;
    t->tokens = is_malloc(max_tokens * sizeof *t->tokens);
    t->tops = is_malloc(max_tokens * sizeof *t->tops);
    t->log_p = is_malloc((size_t)max_tokens * t->n_vocab * sizeof *t->log_p);
    t->log_q = is_malloc(t->n_vocab * sizeof *t->log_q);
    if (t->tokens == NULL || t->tops == NULL || t->log_p == NULL || t->log_q == NULL) {
        trace_free(t);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for %u distributions over %zu tokens; compare fewer", max_tokens,
                       t->n_vocab);
    }
    *out = t;
    return INFERSCALE_OK;
}

void trace_free(trace *t)
{
    if (t == NULL) return;
    is_free(t->tokens);
    is_free(t->tops);
    is_free(t->log_p);
    is_free(t->log_q);
    is_free(t);
}

const int32_t *trace_answer(const trace *t, uint32_t *n)
{
    *n = t->n;
    return t->tokens;
}

/* The logits after what the run has seen, as log-probabilities; *top = the likeliest token. */
static is_status next_distribution(trace *t, is_run *run, double *log_p, int32_t *top)
{
    const float *logits = is_engine_logits(t->engine, run);

    if (logits == NULL) return is_fail(INFERSCALE_E_ENGINE, "the engine gave no logits; evaluate with one that gives them");
    stats_log_softmax(logits, t->n_vocab, log_p);
    *top = (int32_t)stats_argmax(logits, t->n_vocab);
    return INFERSCALE_OK;
}

static is_status stopped(const is_run_opts *o)
{
    if ((o->cancel && __atomic_load_n(o->cancel, __ATOMIC_ACQUIRE)) || (o->stop && __atomic_load_n(o->stop, __ATOMIC_ACQUIRE)))
        return is_fail(INFERSCALE_E_CANCELLED, "the comparison was cancelled");
    return INFERSCALE_OK;
}

/* answer NULL: its own greedy one. */
static is_status record(trace *t, is_run *run, const is_run_opts *opts, const is_tokens *answer)
{
    uint32_t n = answer && answer->n < t->max_tokens ? answer->n : t->max_tokens;

    for (t->n = 0; t->n < n;) {
        int32_t *top = &t->tops[t->n], token;

        IS_TRY(stopped(opts));
        IS_TRY(next_distribution(t, run, t->log_p + t->n * t->n_vocab, top));
        token = t->tokens[t->n] = answer ? answer->ids[t->n] : *top;
        t->n++;
        if ((!answer && is_engine_is_eog(t->engine, token)) || t->n == n) break;
        IS_TRY(is_engine_feed(t->engine, run, token));
    }
    return INFERSCALE_OK;
}

/* n tokens are looked at. */
static is_status start(const trace *t, const is_plan *plan, const is_run_opts *opts, uint32_t n, is_run **run, is_run_stats *stats)
{
    is_run_opts own = *opts;

    own.want_logits = true;
    own.n_predict = n;
    return is_engine_start(t->engine, plan, &own, run, stats);
}

static is_status start_and_record(trace *t, const is_plan *plan, const is_run_opts *opts, const is_tokens *answer)
{
    is_run_stats stats;
    is_run *run = NULL;
    is_status st;

    t->n = 0;
    IS_TRY(start(t, plan, opts, t->max_tokens, &run, &stats));
    st = record(t, run, opts, answer);
    is_engine_finish(t->engine, run);
    if (st != INFERSCALE_OK) t->n = 0;
    return st;
}

is_status trace_record(trace *t, const is_plan *plan, const is_run_opts *opts)
{
    return start_and_record(t, plan, opts, NULL);
}

is_status trace_record_along(trace *t, const is_plan *plan, const is_run_opts *opts, const is_tokens *answer)
{
    if (answer->n == 0) return is_fail(INFERSCALE_E_INVALID, "an empty answer cannot be followed; give its tokens");
    return start_and_record(t, plan, opts, answer);
}

static is_status compare(trace *t, is_run *run, const is_run_opts *opts, trace_distance *out)
{
    uint32_t n_same = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        int32_t top = 0;
        double kl;

        IS_TRY(stopped(opts));
        IS_TRY(next_distribution(t, run, t->log_q, &top));
        kl = stats_kl(t->log_p + i * t->n_vocab, t->log_q, t->n_vocab);
        if (i == 0) out->kl_first = kl;
        out->kl += kl / t->n;
        n_same += top == t->tops[i];
        if (i + 1 < t->n) IS_TRY(is_engine_feed(t->engine, run, t->tokens[i]));
    }
    out->top1 = (double)n_same / t->n;
    return INFERSCALE_OK;
}

is_status trace_compare(trace *t, const is_plan *plan, const is_run_opts *opts, trace_distance *out)
{
    is_run_stats stats;
    is_run *run = NULL;
    is_status st;

    *out = (trace_distance){ 0 };
    if (t->n == 0) return is_fail(INFERSCALE_E_INVALID, "there is no reference to compare with; record one first");
    IS_TRY(start(t, plan, opts, t->n, &run, &stats));
    st = compare(t, run, opts, out);
    is_engine_finish(t->engine, run);
    return st;
}

is_status trace_nll(trace *t, const is_plan *plan, const is_run_opts *opts, const is_tokens *answer, double *out)
{
    is_run_stats stats;
    is_run *run = NULL;
    is_status st;
    double sum = 0;

    *out = 0;
    if (answer->n == 0) return is_fail(INFERSCALE_E_INVALID, "an empty answer has no likelihood; give its tokens");
    IS_TRY(start(t, plan, opts, answer->n, &run, &stats));
    st = INFERSCALE_OK;
    for (uint32_t i = 0; i < answer->n && st == INFERSCALE_OK; i++) {
        int32_t top = 0;

        if (answer->ids[i] < 0 || (size_t)answer->ids[i] >= t->n_vocab)
            st = is_fail(INFERSCALE_E_INVALID, "token %d is not in the vocabulary of %zu", answer->ids[i], t->n_vocab);
        if (st == INFERSCALE_OK) st = next_distribution(t, run, t->log_q, &top);
        if (st == INFERSCALE_OK) sum -= t->log_q[answer->ids[i]];
        if (st == INFERSCALE_OK && i + 1 < answer->n) st = is_engine_feed(t->engine, run, answer->ids[i]);
    }
    is_engine_finish(t->engine, run);
    if (st == INFERSCALE_OK) *out = sum / answer->n;
    return st;
}
