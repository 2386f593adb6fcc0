/* tail.c - new facts of a later turn, brought within reach of what the server has of the earlier ones.
 *
 * vLLM takes rows from outside only right behind its own prefix hit, which are full blocks. Between them and a later turn's new facts stand
 * the unfinished block and the words that open the turn:
 *
 *   earlier turns, full blocks of the cache | rest of a block, opener | new facts | question
 *                                           `------- tail ---------'
 *
 * So first everything up to the facts is computed under the run's own salt, which leaves its full blocks in the cache, and the rows behind
 * the last full one are captured: the tail. Then the turn is asked for with the tail and the facts as stored parts. The tail's rows depend on
 * the facts before them, so they are good for this place of this run only: their name is random, and they go when the turn is over.
 *
 * Never more than a block: the last token of what is computed always is, so the hit cannot reach beyond the tail's begin. Where it is
 * shorter (the blocks were evicted meanwhile), the facts are computed: `gap`. */
#include "engine/vllm/run.h"

#include <stdio.h>
#include <string.h>

static uint32_t end_of(const vllm_part *p)
{
    return p->pos + p->n_tokens;
}

/* ---- Parts ------------------------------------------------------------------------------------------------------------------------ */

/* The end of the chain of the first n parts, ascending as they are, that covers `at`; `at` if none does. */
static uint32_t chain(const vllm_part *parts, uint32_t n, uint32_t at)
{
    for (uint32_t i = 0; i < n; i++)
        if (parts[i].pos <= at && at < end_of(&parts[i])) at = end_of(&parts[i]);
    return at;
}

uint32_t vllm_tail_reach(const is_run *r, uint32_t at)
{
    at = chain(r->parts, r->n_parts, at);
    if (!r->tail.n_tokens || chain(&r->tail, 1, at) == at) return at;
    return chain(r->parts, r->n_parts, end_of(&r->tail));
}

/* What the tail covers needs no rows of its own: an earlier turn's facts in the unfinished block. */
is_status vllm_tail_parts(const is_run *r, uint32_t n, vllm_part **out, uint32_t *n_out)
{
    const vllm_part *tail = r->tail.n_tokens && end_of(&r->tail) <= n ? &r->tail : NULL;
    vllm_part *list = is_calloc((size_t)r->n_parts + 2, sizeof *list);

    *out = list;
    *n_out = 0;
    if (!list) return vllm_no_memory();
    for (uint32_t i = 0; i < r->n_parts && end_of(&r->parts[i]) <= n; i++) {
        const vllm_part *p = &r->parts[i];

        if (tail && p->pos >= tail->pos) {
            list[(*n_out)++] = *tail;
            while (i < r->n_parts && r->parts[i].pos < end_of(tail)) i++;
            tail = NULL;
            i--;
            continue;
        }
        list[(*n_out)++] = *p;
    }
    if (tail) list[(*n_out)++] = *tail;
    return INFERSCALE_OK;
}

/* ---- A tail ----------------------------------------------------------------------------------------------------------------------- */

void vllm_tail_drop(is_run *r)
{
    if (r->tail.n_tokens) vllm_heads_disown(r->e, r->tail.name);
    r->tail = (vllm_part){ 0 };
}

/* Captures [from, to); the tail before it, if there is one, is used for that and has served then. */
static is_status make(is_run *r, uint32_t from, uint32_t to)
{
    is_capture c = { .context = r->tokens, .n_context = from, .span = r->tokens + from, .n_span = to - from, .cancel = r->flags.cancel,
                     .realm = r->owned ? &r->realm : NULL };
    vllm_rows_how how = { .salt = r->salt, .has_up = r->has_up, .up = r->up };
    vllm_part tail = { .head = true, .pos = from, .n_tokens = to - from }, *parts;
    is_status st;

    IS_TRY(vllm_tail_parts(r, from, &parts, &how.n_parts));
    how.parts = parts;
    st = vllm_heads_own(r->e, &c, &how, tail.name);
    is_free(parts);
    vllm_tail_drop(r);
    if (st != INFERSCALE_OK) return st;
    r->tail = tail;
    r->n_ahead_computed += c.n_computed;
    r->up = how.up;
    r->has_up = true;
    VLLM_COUNT(r->e, tails_made, 1);
    return INFERSCALE_OK;
}

/* The facts are computed then. The reason is the run's, unless it has one already. */
static void failed(is_run *r)
{
    VLLM_COUNT(r->e, tails_failed, 1);
    is_log(IS_LOG_WARN, "the rows before a turn's new facts could not be captured: %s", is_error());
    if (r->stats.why[0]) return;
    snprintf(r->stats.why, sizeof r->stats.why, "the rows before the turn's new facts could not be captured: %.180s", is_error());
    snprintf(r->stats.reason, sizeof r->stats.reason, "tail");
}

is_status vllm_tail_bridge(is_run *r)
{
    const uint32_t block = r->e->model->block_size;
    uint32_t at = r->n_before ? (r->n_before - 1) / block * block : 0;

    vllm_tail_drop(r);
    r->n_ahead_computed = 0;
    if (!r->n_before && !(r->n_parts && r->parts[0].head)) return INFERSCALE_OK; /* not even the header's rows are there */
    for (uint32_t i = 0; i < r->n_parts; i++) {
        const vllm_part *p = &r->parts[i];
        uint32_t end = chain(r->parts, r->n_parts, p->pos), from;
        is_status st;

        if (p->pos < r->n_before || p->pos <= vllm_tail_reach(r, at)) continue;
        from = chain(r->parts, i, (p->pos - 1) / block * block);
        if (from < p->pos && end - p->pos > p->pos - from) {
            st = make(r, from, p->pos);
            if (st == INFERSCALE_E_CANCELLED || st == INFERSCALE_E_NOMEM || st == INFERSCALE_E_STALE) return st;
            if (st != INFERSCALE_OK) return failed(r), INFERSCALE_OK;
            at = p->pos / block * block;
        }
        while (i + 1 < r->n_parts && end_of(&r->parts[i + 1]) <= end) i++; /* the whole chain, in reach or not worth it */
    }
    return INFERSCALE_OK;
}
