/* audit_plan.c - see audit_plan.h. */
#include "serve/audit_plan.h"

#include <string.h>

#include "api/variant.h"
#include "base/mem.h"

bool audit_worth(const is_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT && plan->parts[i].source != IS_SRC_COMPUTED) return true;
    return false;
}

/* ---- Keeping --------------------------------------------------------------------------------------------------------------- */

static audit_part keep(const is_part *part, int32_t **at)
{
    audit_part k = { .role = part->role, .n_tokens = part->n_tokens };

    if (part->role != IS_ROLE_FACT) {
        memcpy(*at, part->tokens, part->n_tokens * sizeof **at);
        k.tokens = *at;
        *at += part->n_tokens;
        return k;
    }
    k.fact_id = part->fact_id;
    k.version = part->version;
    k.stored = part->source == IS_SRC_STORED && part->segment;
    k.resident = part->source == IS_SRC_RESIDENT;
    if (k.stored) memcpy(k.segment, is_segment_info(part->segment)->name, IS_HASH_BYTES);
    return k;
}

is_status audit_entry_new(const is_partition *p, int64_t as_of, const is_plan *plan, const int32_t *told, size_t n_told, audit_entry **out)
{
    audit_entry *e = is_calloc(1, sizeof *e);
    int32_t *at;

    *out = NULL;
    if (e) {
        e->parts = is_calloc(plan->n_parts + 1u, sizeof *e->parts);
        e->tokens = is_malloc((plan->n_tokens + n_told) * sizeof *e->tokens);
    }
    if (!e || !e->parts || !e->tokens) {
        if (e) is_free(e->parts), is_free(e->tokens);
        is_free(e);
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for an audit");
    }
    e->p = *p;
    e->as_of = as_of;
    e->n_parts = plan->n_parts;
    at = e->tokens;
    for (uint32_t i = 0; i < plan->n_parts; i++) e->parts[i] = keep(&plan->parts[i], &at);
    memcpy(at, told, n_told * sizeof *at);
    e->told = at;
    e->n_told = (uint32_t)n_told;
    e->n_tokens = (uint32_t)(at - e->tokens) + e->n_told;
    *out = e;
    return INFERSCALE_OK;
}

void audit_entry_free(audit_entry *e)
{
    if (e == NULL) return;
    explicit_bzero(e->tokens, e->n_tokens * sizeof *e->tokens);
    is_free(e->tokens);
    is_free(e->parts);
    is_free(e);
}

/* ---- Making it anew -------------------------------------------------------------------------------------------------------- */

static is_status gone(void)
{
    return is_fail(INFERSCALE_E_STALE, "what the answer used was changed or forgotten");
}

/* The facts' ids and versions in order, is_free; NULL = out of memory. */
static is_dep *deps_of(const audit_entry *e, size_t *n)
{
    is_dep *deps = is_calloc(e->n_parts + 1u, sizeof *deps);

    *n = 0;
    for (uint32_t i = 0; deps && i < e->n_parts; i++)
        if (e->parts[i].role == IS_ROLE_FACT) deps[(*n)++] = (is_dep){ e->parts[i].fact_id, e->parts[i].version };
    return deps;
}

bool audit_entry_holds(inferscale *is, const is_partition *now, const audit_entry *e)
{
    const is_names none = { 0 };
    bool holds = false;
    size_t n;
    is_dep *deps = deps_of(e, &n);

    if (!deps || is_bank_still_holds(is->bank, now, deps, n, &none, e->as_of, &holds) != INFERSCALE_OK) holds = false;
    is_free(deps);
    return holds;
}

/* First the lease and the entry in the list of those that hold something, then the look: who forgets after it finds the entry. */
static is_status hold_facts(inferscale *is, const audit_entry *e, is_hold *hold, const is_dep *deps, size_t n)
{
    is_names segments = { 0 };
    is_partition now = e->p;
    bool holds = false, gone_before;
    is_status st = is_hold_lease(hold, &now, &gone_before); /* nothing is held yet */

    for (uint32_t i = 0; st == INFERSCALE_OK && i < e->n_parts; i++)
        if (e->parts[i].stored) st = is_names_add(&segments, e->parts[i].segment);
    if (st == INFERSCALE_OK) st = is_hold_add(hold, deps, n, &segments);
    is_names_free(&segments);
    if (st == INFERSCALE_OK) st = is_bank_still_holds(is->bank, &now, deps, n, &segments, e->as_of, &holds);
    return st != INFERSCALE_OK || holds ? st : gone();
}

/* The rows and tokens of one fact. */
static size_t facts_of(const audit_entry *e)
{
    size_t n = 0;

    for (uint32_t i = 0; i < e->n_parts; i++) n += e->parts[i].role == IS_ROLE_FACT;
    return n;
}

static is_status load_fact(inferscale *is, const audit_entry *e, const audit_part *from, const inferscale_item *item, is_part *to)
{
    is_variant variant;
    const is_realm whose = is_realm_of(&e->p);
    is_tokens tokens = { 0 };
    is_unusable n_bad = { 0 };

    if (from->stored) {
        if (is_engine_segment(is->engine, is->vault, from->segment, &to->segment) != INFERSCALE_OK)
            return is_fail(INFERSCALE_E_NOTFOUND, "the rows that the answer used were replaced");
    } else if (from->resident) {
        IS_TRY(is_variant_load(is, &e->p, item, facts_of(e), 0, &variant, &to->segment, &n_bad));
    }
    if (to->segment) {
        to->source = IS_SRC_STORED;
        to->tokens = is_segment_info(to->segment)->tokens;
        to->n_tokens = is_segment_info(to->segment)->n_tokens;
    } else {
        IS_TRY(is_profile_fact(is->engine, &whose, item, &tokens));
        to->tokens = tokens.ids; /* freed with the plan: a fact that is computed owns them */
        to->n_tokens = tokens.n;
    }
    return to->n_tokens == from->n_tokens ? INFERSCALE_OK : gone();
}

static is_status fill(inferscale *is, const audit_entry *e, const inferscale_list *items, is_plan *out)
{
    size_t next = 0;

    for (uint32_t i = 0; i < e->n_parts; i++) {
        const audit_part *from = &e->parts[i];
        is_part *to = &out->parts[out->n_parts++];

        *to = (is_part){ .role = from->role, .source = IS_SRC_COMPUTED, .tokens = from->tokens, .n_tokens = from->n_tokens, .pos = out->n_tokens,
                         .fact_id = from->fact_id, .version = from->version };
        if (from->role == IS_ROLE_FACT) {
            if (next == items->n || items->items[next].id != from->fact_id || items->items[next].version != from->version) return gone();
            IS_TRY(load_fact(is, e, from, &items->items[next++], to));
        }
        out->n_tokens += to->n_tokens;
    }
    return INFERSCALE_OK;
}

is_status audit_plan_new(inferscale *is, const audit_entry *e, is_hold *hold, is_plan *out)
{
    inferscale_list *items = NULL;
    size_t n;
    is_dep *deps = deps_of(e, &n);
    is_status st;

    *out = (is_plan){ .parts = is_calloc(e->n_parts + 1u, sizeof *out->parts) };
    st = deps && out->parts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for an audit");
    if (st == INFERSCALE_OK) st = hold_facts(is, e, hold, deps, n);
    if (st == INFERSCALE_OK) st = is_bank_get_versions(is->bank, &e->p, deps, n, &items);
    if (st == INFERSCALE_OK) st = fill(is, e, items, out);
    inferscale_list_free(items);
    is_free(deps);
    return st;
}

void audit_plan_free(is_plan *plan)
{
    for (uint32_t i = 0; plan->parts && i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];

        if (part->role == IS_ROLE_FACT && !part->segment) is_free((int32_t *)part->tokens);
        is_segment_unref(part->segment);
    }
    is_free(plan->parts);
    *plan = (is_plan){ 0 };
}
