/* study_plan.c - the prompts of a fidelity run: as the product plans them, each arm with its own rows over shared tokens. */
#include "eval/study.h"

#include <string.h>

#include "base/mem.h"

static is_status copy(const is_tokens *from, is_tokens *to)
{
    to->ids = is_malloc((from->n + 1) * sizeof *to->ids);
    if (to->ids == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");
    memcpy(to->ids, from->ids, from->n * sizeof *to->ids);
    to->n = from->n;
    return INFERSCALE_OK;
}

/* The m best facts are computed, in some arms, and a computed one cannot begin. All arms have one order, so none of them may. */
static size_t most_repaired(const study *s)
{
    size_t most = 0;

    for (size_t i = 0; i < s->o->n_repairs; i++) most = s->o->repairs[i] > most ? s->o->repairs[i] : most;
    return most;
}

/* The order of all arms follows the first policy that gives header-only rows to some facts. */
static bool may_begin(const study *s, int64_t fact_id)
{
    for (size_t p = 0; p < s->o->n_policies; p++)
        if (s->o->policies[p].policy.header_one_in) return is_policy_takes_header(&s->o->policies[p].policy, fact_id);
    return false;
}

/* Gives the plan's first stored fact its rows behind the bare header, if the policy made them. Never behind another header than
 * theirs: of such a plan is_planned_first knows no exact one. */
static is_status exact_first(study *s, const study_prompt *prompt, is_planned *planned)
{
    const fidelity_variant *policy = &s->o->policies[prompt->policy];
    const is_plan *plan = is_planned_plan(planned);
    const size_t at = is_planned_first(planned);

    if (at == plan->n_parts) return INFERSCALE_OK;
    if (!policy->first_exact && !is_policy_takes_header(&policy->policy, plan->parts[at].fact_id)) return INFERSCALE_OK;
    for (size_t i = 0; i < s->n_facts; i++)
        if (s->facts[i].fact.id == plan->parts[at].fact_id)
            return is_planned_replace(planned, at, s->facts[i].segments[prompt->rows][s->header]);
    return is_fail(INFERSCALE_E_INTERNAL, "a plan holds a fact that was not retrieved");
}

/* Behind a client's system text the order is made here, once for both arms: the planner moves a fact to the front only where it is
 * exact there, which is so for matching rows alone. The same fact as there, the worst that may begin but not the best; k = none. */
static size_t client_first(const study *s, const asked *q)
{
    for (size_t rank = s->o->k; rank-- > most_repaired(s) + 1;)
        if (may_begin(s, s->facts[q->facts[rank]].fact.id)) return rank;
    return s->o->k;
}

/* The facts best first, each with its segment if a policy is injected. */
static is_status take_facts(study *s, const asked *q, const study_prompt *prompt, is_plan_fact *facts, size_t n)
{
    const size_t first = prompt->system == CLIENT && !prompt->order ? client_first(s, q) : s->o->k;

    for (size_t i = 0; i < n; i++) {
        const size_t rank = prompt->order ? prompt->order[i] : i < first ? i : i + 1 < n ? i + 1 : first;
        const needed *from = &s->facts[q->facts[rank]];

        facts[i].id = from->fact.id;
        facts[i].version = from->fact.version;
        facts[i].exact_first = prompt->system == OWN && !prompt->order && rank > most_repaired(s) &&
                               may_begin(s, from->fact.id); /* a reordering is free */
        IS_TRY(copy(&from->fact.tokens, &facts[i].tokens));
        if (prompt->policy != NO_POLICY) facts[i].segment = is_segment_ref(from->segments[prompt->rows][s->of[prompt->policy]]);
    }
    return INFERSCALE_OK;
}

/* As the server does it: a profile's own system text is its header; another one comes with the prompt. */
static const is_profile *frame(const study *s, const study_prompt *prompt, is_plan_opts *opts)
{
    const bool generic = prompt->system == CLIENT && prompt->policy != NO_POLICY && prompt->rows == OWN;

    if (!generic) return s->profiles[prompt->system];
    opts->header = &s->profiles[CLIENT]->header;
    opts->header_plain = &s->profiles[CLIENT]->header_plain;
    return s->profiles[OWN];
}

is_status study_plan(study *s, const asked *q, const study_prompt *prompt, is_planned **out)
{
    const is_engine_info *info = is_engine_describe(s->engine);
    const uint32_t answer = STUDY_ANSWER + s->o->n_tokens;
    is_plan_opts opts = { .repair = prompt->repair, .with_memory = prompt->memory,
                          .n_ctx_left = info->n_ctx > answer ? info->n_ctx - answer : 0 };
    const is_profile *profile = frame(s, prompt, &opts);
    const size_t n = prompt->memory ? s->o->k : 0;
    is_plan_fact *facts = is_calloc(n + 1, sizeof *facts);
    is_tokens question = { 0 };
    is_status st = facts ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");

    *out = NULL;
    if (st == INFERSCALE_OK) st = is_profile_question(s->engine, NULL, q->qa->question, &question);
    if (st == INFERSCALE_OK) st = take_facts(s, q, prompt, facts, n);
    if (st == INFERSCALE_OK) st = is_plan_new(profile, facts, n, &question, &opts, out);
    else for (size_t i = 0; facts && i < n; i++) is_tokens_free(&facts[i].tokens), is_segment_unref(facts[i].segment);
    if (st == INFERSCALE_OK && is_planned_dropped(*out) > 0)
        st = is_fail(INFERSCALE_E_CONTEXT, "%u facts do not fit into a context of %u tokens; use a smaller --k or larger --ctx", s->o->k,
                     info->n_ctx);
    if (st == INFERSCALE_OK && prompt->policy != NO_POLICY) st = exact_first(s, prompt, *out);
    if (st != INFERSCALE_OK) {
        is_planned_free(*out);
        *out = NULL;
    }
    is_tokens_free(&question);
    is_free(facts);
    return st;
}

is_status study_same_tokens(const is_plan *a, const is_plan *b)
{
    bool same = a->n_parts == b->n_parts && a->n_tokens == b->n_tokens;

    for (uint32_t i = 0; same && i < a->n_parts; i++)
        same = a->parts[i].n_tokens == b->parts[i].n_tokens &&
               memcmp(a->parts[i].tokens, b->parts[i].tokens, a->parts[i].n_tokens * sizeof(int32_t)) == 0;
    return same ? INFERSCALE_OK : is_fail(INFERSCALE_E_INTERNAL, "two arms of the evaluation saw different tokens");
}
