/* twin.c - see twin.h. */
#include "eval/twin.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { FACTS_LEAST = 3, OTHER_BATCH = 24, ABOVE_NOISE = 5, RESAMPLES = 1000 };

/* Where another batching changes nothing (a reference engine), a KL is still a difference of sums of floats. */
static const double NOISE_LEAST = 1e-7;

void twin_order(uint64_t seed, uint32_t *order, uint32_t n)
{
    bool same = true;

    for (uint64_t draw = 0; same; draw++) {
        rng r = rng_stream(seed, 0x0de7, draw);

        rng_permutation(&r, order, n - 1);
        for (uint32_t i = 0; i < n - 1; i++) same = same && order[i] == i;
    }
    order[n - 1] = n - 1;
}

/* A copy of the plan's list with everything computed; is_free. */
static is_status text_twin(const is_plan *plan, is_plan *out)
{
    *out = (is_plan){ .n_parts = plan->n_parts, .n_tokens = plan->n_tokens };
    out->parts = is_malloc((plan->n_parts + 1u) * sizeof *out->parts);
    if (out->parts == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for a text twin");
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        out->parts[i] = plan->parts[i];
        out->parts[i].source = IS_SRC_COMPUTED;
        out->parts[i].segment = NULL;
    }
    return INFERSCALE_OK;
}

/* The facts that stand together before the question: [*first, *first + *n). */
static void newest_facts(const is_plan *plan, uint32_t *first, uint32_t *n)
{
    uint32_t end = plan->n_parts;

    while (end > 0 && plan->parts[end - 1].role != IS_ROLE_FACT) end--;
    *first = end;
    while (*first > 0 && plan->parts[*first - 1].role == IS_ROLE_FACT) --*first;
    *n = end - *first;
}

static is_status reorder(is_plan *twin, uint32_t first, uint32_t n, uint64_t seed)
{
    is_part *old = is_malloc(n * sizeof *old);
    uint32_t *order = is_malloc(n * sizeof *order), pos = twin->parts[first].pos;

    if (old == NULL || order == NULL) {
        is_free(old);
        is_free(order);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for a reordering");
    }
    memcpy(old, twin->parts + first, n * sizeof *old);
    twin_order(seed, order, n);
    for (uint32_t i = 0; i < n; i++) {
        twin->parts[first + i] = old[order[i]];
        twin->parts[first + i].pos = pos;
        pos += old[order[i]].n_tokens;
    }
    is_free(old);
    is_free(order);
    return INFERSCALE_OK;
}

is_status twin_measure(is_engine *e, const is_plan *plan, const is_tokens *answer, uint32_t max_tokens, uint64_t seed,
                       const is_run_opts *opts, twin_result *out)
{
    uint32_t first, n;
    is_plan twin;
    trace *t = NULL;
    is_status st;

    *out = (twin_result){ 0 };
    IS_TRY(text_twin(plan, &twin));
    newest_facts(plan, &first, &n);
    st = trace_new(e, answer->n < max_tokens ? answer->n : max_tokens, &t);
    if (st == INFERSCALE_OK) st = trace_record_along(t, &twin, opts, answer);
    if (st == INFERSCALE_OK) trace_answer(t, &out->n_tokens);
    if (st == INFERSCALE_OK) st = trace_compare(t, plan, opts, &out->kv);
    if (st == INFERSCALE_OK && n >= FACTS_LEAST) {
        is_run_opts other = *opts;

        other.batch = OTHER_BATCH;
        other.no_prefix_cache = true; /* the header too */
        st = trace_compare(t, &twin, &other, &out->noise);
        if (st == INFERSCALE_OK) st = reorder(&twin, first, n, seed);
        if (st == INFERSCALE_OK) st = trace_compare(t, &twin, opts, &out->order);
        out->has_order = st == INFERSCALE_OK;
    }
    trace_free(t);
    is_free(twin.parts);
    if (st != INFERSCALE_OK) *out = (twin_result){ 0 };
    return st;
}

/* The interval of the ones that have both. */
static stats_interval resampled(const twin_result *r, size_t n, size_t used)
{
    stats_interval i = { NAN, NAN };
    double *kv = is_malloc(2 * used * sizeof *kv);
    size_t at = 0;

    for (size_t k = 0; kv && k < n; k++)
        if (r[k].has_order) kv[at] = r[k].kv.kl, kv[used + at++] = r[k].order.kl;
    if (kv && stats_bootstrap(kv, kv + used, used, NULL, 0, RESAMPLES, 1, &i) != INFERSCALE_OK) i = (stats_interval){ NAN, NAN };
    is_free(kv);
    return i;
}

double twin_order_ratio(const twin_result *r, size_t n, size_t *used, stats_interval *interval)
{
    double kv = 0, order = 0, noise = 0;
    bool holds;

    *used = 0;
    for (size_t i = 0; i < n; i++) {
        if (!r[i].has_order) continue;
        kv += r[i].kv.kl;
        order += r[i].order.kl;
        noise += r[i].noise.kl > NOISE_LEAST ? r[i].noise.kl : NOISE_LEAST;
        ++*used;
    }
    holds = *used >= TWIN_ORDERS_LEAST && order > ABOVE_NOISE * noise;
    if (interval) *interval = holds ? resampled(r, n, *used) : (stats_interval){ NAN, NAN };
    return holds ? kv / order : NAN;
}
