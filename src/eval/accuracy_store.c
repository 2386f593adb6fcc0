/* accuracy_store.c - a store of the quiz as the product's own memory: remembered, embedded,
 * encoded, searched and planned as it does. */
#include "eval/accuracy_run.h"

#include <string.h>

#include "base/mem.h"

static int add_kind(accuracy_work *w, const is_policy *policy)
{
    for (size_t i = 0; i < w->n_kinds; i++)
        if (strcmp(w->kinds[i].name, policy->name) == 0) return (int)i;
    w->kinds[w->n_kinds] = *policy;
    return (int)w->n_kinds++;
}

is_status accuracy_kinds(accuracy_work *w)
{
    is_policy header;
    bool wanted = false;

    w->header = -1;
    IS_TRY(is_policy_parse("header", &header));
    for (size_t p = 0; p < w->o->n_policies; p++) {
        w->of[p] = add_kind(w, &w->o->policies[p].policy);
        wanted = wanted || w->o->policies[p].first_exact || w->o->policies[p].policy.header_one_in;
    }
    if (wanted) w->header = add_kind(w, &header);
    return INFERSCALE_OK;
}

/* ---- The memory ------------------------------------------------------------------------------ */

static bool sees_turns(const accuracy_work *w)
{
    for (size_t i = 0; i < w->n_kinds; i++)
        if (w->kinds[i].kind == IS_POLICY_CWE || w->kinds[i].kind == IS_POLICY_TURNS) return true;
    return false;
}

/* An invented memory has no conversation. For policies whose context is turns (cwe:W, turns:W) each
 * fact is also remembered as a turn with the same words and date, spoken by "user", and cites it:
 * the W turns before its source turn are then the W facts before it. Questions search facts alone. */
static is_status add_turns(accuracy_work *w, inferscale_fact *facts)
{
    const quiz_store *s = w->store;
    inferscale_turn *turns = is_calloc(s->n_facts + 1, sizeof *turns);
    int64_t *ids = is_calloc(s->n_facts + 1, sizeof *ids);
    is_status st = INFERSCALE_OK;

    if (turns == NULL || ids == NULL)
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory while remembering %zu facts", s->n_facts);
    for (size_t i = 0; st == INFERSCALE_OK && i < s->n_facts; i++)
        turns[i] = (inferscale_turn){ .conversation = s->id,
                                      .speaker = "user",
                                      .text = s->facts[i].text,
                                      .time = s->facts[i].time };
    if (st == INFERSCALE_OK)
        st = is_bank_add_turns(w->l->is->bank, &w->l->partition, &w->l->scope, turns, s->n_facts,
                               ids);
    for (size_t i = 0; st == INFERSCALE_OK && i < s->n_facts; i++) facts[i].source_turn = ids[i];
    is_free(ids);
    is_free(turns);
    return st;
}

static is_status remember(accuracy_work *w)
{
    const quiz_store *s = w->store;
    inferscale_fact *facts;
    is_status st = INFERSCALE_OK;

    if (s->talk) return lab_remember_locomo(w->l, s->talk, w->fact_ids);
    facts = is_calloc(s->n_facts + 1, sizeof *facts);
    if (facts == NULL)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory while remembering %zu facts", s->n_facts);
    for (size_t i = 0; i < s->n_facts; i++)
        facts[i] = (inferscale_fact){ .text = s->facts[i].text, .event_time = s->facts[i].time };
    if (sees_turns(w)) st = add_turns(w, facts);
    if (st == INFERSCALE_OK) st = lab_remember(w->l, facts, s->n_facts, w->fact_ids);
    is_free(facts);
    return st;
}

is_status accuracy_remember(accuracy_work *w, const quiz_store *s)
{
    w->store = s;
    is_free(w->fact_ids);
    w->fact_ids = is_calloc(s->n_facts + 1, sizeof *w->fact_ids);
    if (w->fact_ids == NULL)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory while remembering %zu facts", s->n_facts);
    IS_TRY(lab_use(w->l, s->id));
    return remember(w);
}

static is_status on_facts(void *ctx, size_t n, const char *what)
{
    (void)n;
    (void)what;
    return accuracy_progress(ctx, "encoding");
}

static bool needs_vectors(const is_policy *p)
{
    return p->kind == IS_POLICY_NEAR || p->kind == IS_POLICY_COMPANY ||
           (p->kind == IS_POLICY_PAGE && p->order == IS_PAGE_TOPIC);
}

static is_status encode_kind(accuracy_work *w, const is_policy *policy)
{
    is_encoder enc = is_handle_encoder(w->l->is);
    is_encode_job job = { .policy = policy, .on_facts = on_facts, .ctx = w };
    int64_t *ids = NULL;
    size_t n = 0;
    is_status st;

    enc.cancel = w->o->cancel;
    enc.shuffle = w->shuffle;
    IS_TRY(is_bank_unencoded(enc.bank, &w->l->partition, enc.profile->fingerprint, policy->name,
                             policy->header_one_in, 0, 0, &ids, &n));
    st = is_encode_facts(&enc, &w->l->partition, ids, n, &job);
    is_free(ids);
    return st;
}

is_status accuracy_encode(accuracy_work *w)
{
    bool vectors = w->o->method != INFERSCALE_LEXICAL;

    for (size_t i = 0; i < w->n_kinds; i++) vectors = vectors || needs_vectors(&w->kinds[i]);
    if (vectors) IS_TRY(is_handle_embed(w->l->is, &w->l->partition, NULL, NULL));
    IS_TRY(is_bank_partition_refresh(w->l->is->bank, &w->l->partition));
    for (size_t i = 0; i < w->n_kinds; i++) IS_TRY(encode_kind(w, &w->kinds[i]));
    return is_bank_partition_refresh(w->l->is->bank, &w->l->partition);
}

is_status accuracy_forget(accuracy_work *w)
{
    return inferscale_forget_all(w->l->is, &w->l->scope, NULL);
}

is_status accuracy_find(accuracy_work *w, const quiz_question *q, int64_t **ids, size_t *n)
{
    inferscale_recall_options r = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list told = { 0 };
    is_hit *hits = NULL;
    char why[256] = "";
    is_status st = INFERSCALE_OK;

    *ids = NULL;
    r.k = w->o->k;
    r.kinds = INFERSCALE_FACTS;
    r.method = w->o->method;
    IS_TRY(is_handle_find(w->l->is, &w->l->partition, &w->l->scope, q->text, NULL, &r, &hits, n,
                          &told, why));
    if (why[0])
        st = is_fail(INFERSCALE_E_UNSUPPORTED, "the retrieval asked for cannot be done: %s", why);
    if (st == INFERSCALE_OK) *ids = is_calloc(*n + 1, sizeof **ids);
    if (st == INFERSCALE_OK && *ids == NULL)
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory while searching");
    for (size_t i = 0; *ids && i < *n; i++) (*ids)[i] = hits[i].id;
    is_free(hits);
    return st;
}

/* ---- Prompts --------------------------------------------------------------------------------- */

/* -1: the arm injects nothing, and no order of its own comes from a policy. */
static int policy_of(const accuracy_work *w, const accuracy_arm *arm)
{
    for (size_t p = 0; p < w->o->n_policies; p++)
        if (arm->policy == w->o->policies[p].name) return (int)p;
    return -1;
}

/* The rows of a fact under a kind of policy, from the lab's own books. */
static is_status load(accuracy_work *w, size_t kind, int64_t id, is_segment **out)
{
    const is_encoder enc = is_handle_encoder(w->l->is);
    is_segment_row row;

    if (!is_find_kept(&enc, &w->l->partition, w->kinds[kind].name, id, &row))
        return is_fail(INFERSCALE_E_CONTEXT,
                       "a fact could not be encoded with %s; use a larger --ctx",
                       w->kinds[kind].name);
    return is_engine_segment(w->engine, enc.vault, row.name, out);
}

static is_status take_facts(accuracy_work *w, int policy, const int64_t *ids, size_t n,
                            is_plan_fact *facts)
{
    const fidelity_variant *v = policy < 0 ? NULL : &w->o->policies[policy];
    lab_fact *found = is_calloc(n + 1, sizeof *found);
    is_status st = found ? lab_facts(w->l, ids, n, found)
                         : is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        facts[i] = (is_plan_fact){ .id = found[i].id,
                                   .version = found[i].version,
                                   .tokens = found[i].tokens };
        if (v) facts[i].exact_first = v->first_exact || is_policy_takes_header(&v->policy, ids[i]);
    }
    is_free(found);
    for (size_t i = 0; i < n && st == INFERSCALE_OK && v; i++)
        st = load(w, (size_t)w->of[policy], ids[i], &facts[i].segment);
    return st;
}

/* The plan's first fact has its rows behind the bare header, if the policy made them. */
static is_status exact_first(accuracy_work *w, const fidelity_variant *v, is_planned *planned)
{
    const is_plan *plan = is_planned_plan(planned);
    const size_t at = is_planned_first(planned);
    is_segment *exact = NULL;
    is_status st;

    if (at == plan->n_parts) return INFERSCALE_OK;
    if (!v->first_exact && !is_policy_takes_header(&v->policy, plan->parts[at].fact_id))
        return INFERSCALE_OK;
    IS_TRY(load(w, (size_t)w->header, plan->parts[at].fact_id, &exact));
    st = is_planned_replace(planned, at, exact);
    is_segment_unref(exact);
    return st;
}

static void drop_facts(is_plan_fact *facts, size_t n)
{
    for (size_t i = 0; facts && i < n; i++) {
        is_tokens_free(&facts[i].tokens);
        is_segment_unref(facts[i].segment);
    }
}

is_status accuracy_plan(accuracy_work *w, const accuracy_arm *arm, const quiz_question *q,
                        const int64_t *ids, size_t n, is_planned **out)
{
    const is_engine_info *info = is_engine_describe(w->engine);
    const uint32_t room = info->n_ctx > w->o->n_tokens ? info->n_ctx - w->o->n_tokens : 0;
    const is_plan_opts opts = { .with_memory = arm->kind != ARM_NONE,
                                .best_first = w->o->best_first,
                                .n_ctx = info->n_ctx,
                                .n_ctx_left = room };
    const int policy = policy_of(w, arm);
    is_plan_fact *facts = is_calloc(n + 1, sizeof *facts);
    is_tokens question = { 0 };
    is_status st =
        facts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");

    *out = NULL;
    if (st == INFERSCALE_OK) st = is_profile_question(w->engine, NULL, q->text, &question);
    if (st == INFERSCALE_OK) st = take_facts(w, policy, ids, n, facts);
    if (st == INFERSCALE_OK) st = is_plan_new(w->l->is->profile, facts, n, &question, &opts, out);
    else drop_facts(facts, n);
    if (st == INFERSCALE_OK && is_planned_dropped(*out) > 0)
        st = is_fail(
            INFERSCALE_E_CONTEXT,
            "%zu facts do not fit into a context of %u tokens; use a smaller --k or larger --ctx",
            n, info->n_ctx);
    if (st == INFERSCALE_OK && policy >= 0) st = exact_first(w, &w->o->policies[policy], *out);
    if (st != INFERSCALE_OK) {
        is_planned_free(*out);
        *out = NULL;
    }
    is_tokens_free(&question);
    is_free(facts);
    return st;
}

/* The facts of ids[n] as they stand in the plain prompt, their texts borrowed from the list. */
static is_status plain_facts(accuracy_work *w, const int64_t *ids, size_t n, plain_fact *facts,
                             inferscale_list **list)
{
    IS_TRY(is_bank_get(w->l->is->bank, &w->l->partition, ids, n, list));
    if ((*list)->n != n)
        return is_fail(INFERSCALE_E_NOTFOUND, "%zu of %zu facts are no longer there; run it again",
                       n - (*list)->n, n);
    for (size_t i = 0; i < n; i++) {
        const inferscale_item *item = &(*list)->items[i];

        facts[i] = (plain_fact){ item->text, item->dated ? item->event_time : 0 };
    }
    return INFERSCALE_OK;
}

is_status accuracy_plain(accuracy_work *w, const quiz_question *q, const int64_t *ids, size_t n,
                         plain_prompt *out)
{
    const uint32_t n_ctx = is_engine_describe(w->engine)->n_ctx;
    plain_fact *facts = is_calloc(n + 1, sizeof *facts);
    inferscale_list *list = NULL;
    is_status st =
        facts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");

    *out = (plain_prompt){ .n_shared = 0 };
    if (st == INFERSCALE_OK) st = plain_facts(w, ids, n, facts, &list);
    if (st == INFERSCALE_OK)
        st = plain_prompt_new(w->engine, w->l->is->system, facts, n, q->text, out);
    if (st == INFERSCALE_OK && out->tokens.n + w->o->n_tokens > n_ctx)
        st = is_fail(
            INFERSCALE_E_CONTEXT,
            "%zu facts do not fit into a context of %u tokens; use a smaller --k or larger --ctx",
            n, n_ctx);
    if (st == INFERSCALE_OK) plain_prompt_split(out, out->tokens.n - 1);
    inferscale_list_free(list);
    is_free(facts);
    return st;
}
