/* prompt.c - from plans to a sequence of tokens with its stored parts, and the salt that its blocks in vLLM's cache have. */
#include "engine/vllm/run.h"

#include <stdio.h>
#include <string.h>

is_status vllm_prompt_room(is_run *r, uint64_t n)
{
    int32_t *tokens;
    uint32_t cap = r->cap ? r->cap : 256;

    if (n <= r->cap) return INFERSCALE_OK;
    while (cap < n) cap *= 2;
    tokens = is_realloc(r->tokens, cap * sizeof *tokens);
    if (!tokens) return vllm_no_memory();
    r->tokens = tokens;
    r->cap = cap;
    return INFERSCALE_OK;
}

static is_status room_for_parts(is_run *r, uint32_t n)
{
    vllm_part *parts = n > r->cap_parts ? is_realloc(r->parts, n * sizeof *parts) : r->parts;

    if (n == 0) return INFERSCALE_OK;
    if (!parts) return vllm_no_memory();
    if (n > r->cap_parts) r->cap_parts = n;
    r->parts = parts;
    return INFERSCALE_OK;
}

/* ---- Checking ------------------------------------------------------------------------------------------------------------------------ */

static is_status check_stored(const vllm *e, const is_part *p, uint32_t i)
{
    const is_segment_desc *d = p->segment ? is_segment_info(p->segment) : NULL;

    if (!e->model->can_inject) return is_fail(INFERSCALE_E_UNSUPPORTED, "stored rows cannot be injected: %s", e->model->why_not);
    if (!d) return is_fail(INFERSCALE_E_INVALID, "part %u is stored but has no segment; compute it as text", i);
    if (memcmp(d->fingerprint, e->model->fingerprint, IS_HASH_BYTES) != 0 || !is_geometry_equal(d->geometry, e->model->geometry))
        return is_fail(INFERSCALE_E_INVALID, "the segment of part %u is of another model; compute it as text", i);
    if (d->n_tokens != p->n_tokens || memcmp(d->tokens, p->tokens, p->n_tokens * sizeof *p->tokens) != 0)
        return is_fail(INFERSCALE_E_INVALID, "the segment of part %u holds other tokens; compute it as text", i);
    return INFERSCALE_OK;
}

static is_status check_resident(const is_run *r, const is_part *p, uint32_t i)
{
    if ((uint64_t)p->pos + p->n_tokens <= r->n && (!p->n_tokens || memcmp(p->tokens, r->tokens + p->pos, p->n_tokens * sizeof *p->tokens) == 0))
        return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID, "part %u is not resident at position %u; compute it", i, p->pos);
}

static is_status check_part(const is_run *r, const is_part *p, uint32_t i, uint64_t pos)
{
    const vllm *e = r->e;

    if (p->n_tokens && !p->tokens) return is_fail(INFERSCALE_E_INVALID, "part %u has no tokens", i);
    for (uint32_t t = 0; t < p->n_tokens; t++)
        if (p->tokens[t] < 0 || (uint32_t)p->tokens[t] >= e->model->n_vocab)
            return is_fail(INFERSCALE_E_INVALID, "token %d of part %u is not in the vocabulary of %u", p->tokens[t], i, e->model->n_vocab);
    if (p->pos != pos)
        return is_fail(INFERSCALE_E_INVALID, "part %u stands at position %u, the sequence at %llu; leave no gap", i, p->pos,
                       (unsigned long long)pos);
    if (p->source == IS_SRC_STORED) return check_stored(e, p, i);
    if (p->source == IS_SRC_COMPUTED) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID, "part %u has no known source (%d); use stored or computed", i, p->source);
}

static is_status check_plan(const is_run *r, const is_plan *plan, uint64_t *n, uint32_t *n_stored)
{
    const is_part *last;
    bool resident = true;

    *n = r->n;
    *n_stored = 0;
    if (!plan || !plan->n_parts || !plan->parts) return is_fail(INFERSCALE_E_INVALID, "the plan is empty; give at least a question");
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *p = &plan->parts[i];

        if (p->source == IS_SRC_RESIDENT) {
            if (!resident) return is_fail(INFERSCALE_E_INVALID, "part %u is resident behind one that is not", i);
            IS_TRY(check_resident(r, p, i));
            continue;
        }
        resident = false;
        IS_TRY(check_part(r, p, i, *n));
        *n_stored += p->source == IS_SRC_STORED && p->n_tokens;
        *n += p->n_tokens;
    }
    last = &plan->parts[plan->n_parts - 1];
    if (last->source != IS_SRC_COMPUTED || !last->n_tokens)
        return is_fail(INFERSCALE_E_INVALID, "the plan must end with tokens to compute: they give the logits; add a question");
    if (*n + 1 > r->e->model->n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "%llu tokens do not fit into the context of %u; ask with less memory or a shorter text",
                       (unsigned long long)*n, r->e->model->n_ctx);
    return INFERSCALE_OK;
}

/* ---- The header ------------------------------------------------------------------------------------------------------------------------ */

/* What stands computed before the first stored part of a prompt; *common: no client's words are in it. */
static uint32_t leading(const is_plan *plan, bool *common, bool *stored)
{
    uint32_t n = 0, i = 0;

    *common = true;
    for (; i < plan->n_parts && plan->parts[i].source == IS_SRC_COMPUTED; i++) {
        n += plan->parts[i].n_tokens;
        *common = *common && plan->parts[i].common;
    }
    *stored = i < plan->n_parts;
    return n;
}

/* The header's stored rows as the run's first part, where facts stand behind them. Without them the facts are computed, and it is said. */
static is_status add_head(is_run *r, const is_plan *plan)
{
    bool common, stored;
    uint32_t n = leading(plan, &common, &stored);
    vllm_part head;
    is_status st;

    r->n_header = plan->parts[0].role == IS_ROLE_HEADER ? plan->parts[0].n_tokens : 0;
    if (!stored || n == 0) return INFERSCALE_OK;
    r->n_header = n;
    st = vllm_heads_get(r->e, common || !r->owned ? NULL : &r->realm, r->tokens, n, true, r->flags, &head);
    if (st == INFERSCALE_E_NOMEM || st == INFERSCALE_E_CANCELLED) return st;
    if (st != INFERSCALE_OK) {
        VLLM_COUNT(r->e, cold_starts, 1);
        snprintf(r->stats.why, sizeof r->stats.why, "the rows of the prompt's header are not there: %.200s", is_error());
        snprintf(r->stats.reason, sizeof r->stats.reason, "header");
        return INFERSCALE_OK;
    }
    memmove(r->parts + 1, r->parts, r->n_parts * sizeof *r->parts);
    r->parts[0] = head;
    r->n_parts++;
    return INFERSCALE_OK;
}

/* ---- Adding ------------------------------------------------------------------------------------------------------------------------------ */

is_status vllm_prompt_add(is_run *r, const is_plan *plan, bool first)
{
    uint32_t n_stored;
    uint64_t n;

    IS_TRY(check_plan(r, plan, &n, &n_stored));
    IS_TRY(vllm_prompt_room(r, n + 1));
    IS_TRY(room_for_parts(r, r->n_parts + n_stored + 1));
    r->n_before = r->n;
    r->plan_stored = 0;
    r->stats = (is_run_stats){ 0 };
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *p = &plan->parts[i];

        if (p->source == IS_SRC_RESIDENT || !p->n_tokens) continue;
        if (p->source == IS_SRC_STORED) {
            vllm_part *own = &r->parts[r->n_parts++];

            *own = (vllm_part){ .pos = r->n, .n_tokens = p->n_tokens };
            memcpy(own->name, is_segment_info(p->segment)->name, IS_HASH_BYTES);
            r->plan_stored += p->n_tokens;
        }
        memcpy(r->tokens + r->n, p->tokens, p->n_tokens * sizeof *p->tokens);
        r->n += p->n_tokens;
    }
    if (!first) return INFERSCALE_OK;
    IS_TRY(add_head(r, plan));
    r->n_first = r->n_parts;
    return INFERSCALE_OK;
}

is_status vllm_prompt_salt(is_run *r)
{
    const is_realm *realm = r->owned ? &r->realm : NULL;

    if (r->apart) {
        if (r->n_before == 0) is_random(r->salt, sizeof r->salt);
        return INFERSCALE_OK;
    }
    IS_TRY(vllm_salt_make(r->e, realm, r->tokens, r->n_header, r->parts, r->n_first, 0, r->key));
    r->attempt = vllm_attempt_of(r->e, r->key);
    if (r->attempt) return vllm_salt_make(r->e, realm, r->tokens, r->n_header, r->parts, r->n_first, r->attempt, r->salt);
    memcpy(r->salt, r->key, sizeof r->salt);
    return INFERSCALE_OK;
}
